# Writes test/golden/torch/kinds.bin: what torch.save makes of an OrderedDict with parameters,
# shared storages and several types. PyTorch is not needed: its classes' names alone are in the
# file.
#   python3 dev/golden_torch.py
import collections, io, pickle, struct, sys, types, zipfile, zlib

torch, utils = types.ModuleType("torch"), types.ModuleType("torch._utils")
sys.modules["torch"], sys.modules["torch._utils"] = torch, utils


def named(module, name):
    made = type(name, (), {}) if name.endswith("Storage") else (lambda *arguments: None)
    made.__module__, made.__name__, made.__qualname__ = module.__name__, name, name
    setattr(module, name, made)
    return made


types_ = {name: named(torch, name + "Storage") for name in ("Float", "Half", "BFloat16", "Long")}
rebuild_tensor, rebuild_parameter = named(utils, "_rebuild_tensor_v2"), named(utils, "_rebuild_parameter")


class Storage:
    def __init__(self, kind, key, numbers):
        self.kind, self.key, self.numbers = kind, key, numbers


class Tensor:
    def __init__(self, storage, offset, size, stride):
        self.arguments = (storage, offset, size, stride, False, collections.OrderedDict())

    def __reduce__(self):
        return rebuild_tensor, self.arguments


class Parameter:
    def __init__(self, tensor):
        self.tensor = tensor

    def __reduce__(self):
        return rebuild_parameter, (self.tensor, True, collections.OrderedDict())


class Pickler(pickle.Pickler):
    def persistent_id(self, x):
        return ("storage", types_[x.kind], x.key, "cpu", x.numbers) if isinstance(x, Storage) else None


floats, halves, brains, longs = (Storage("Float", "0", 8), Storage("Half", "1", 4), Storage("BFloat16", "2", 2),
                                 Storage("Long", "3", 1))
tensors = collections.OrderedDict(
    whole=Parameter(Tensor(floats, 0, (2, 4), (4, 1))), part=Tensor(floats, 4, (1, 4), (1, 1)),
    half=Tensor(halves, 0, (4,), (1,)), brain=Tensor(brains, 0, (2, 1), (1, 1)), count=Tensor(longs, 0, (), ()))
tensors._metadata = collections.OrderedDict([("", {"version": 1})])
data = {"0": struct.pack("<8f", *range(8)), "1": struct.pack("<4e", .5, -1, 2, 3), "2": bytes([0x80, 0x3f, 0, 0xc0]),
        "3": struct.pack("<q", 7)}
text = io.BytesIO()
Pickler(text, 2).dump(tensors)
# All lengths and places are in zip64's fields, as those of files beyond 4 GiB are.
entries = [("data.pkl", text.getvalue()), ("byteorder", b"little")] + [("data/" + k, v) for k, v in data.items()]
file, directory = b"", b""
for name, raw in entries:
    name, crc, full = ("archive/" + name).encode(), zlib.crc32(raw), 0xffffffff
    directory += struct.pack("<4s6H3I5H2I", b"PK\1\2", 45, 45, 0, 0, 0, 0, crc, full, full, len(name), 28, 0, 0, 0, 0, full)
    directory += name + struct.pack("<2H3Q", 1, 24, len(raw), len(raw), len(file))
    file += struct.pack("<4s5H3I2H", b"PK\3\4", 45, 0, 0, 0, 0, crc, len(raw), len(raw), len(name), 0) + name + raw
end = struct.pack("<4sQ2H2I4Q", b"PK\6\6", 44, 45, 45, 0, 0, len(entries), len(entries), len(directory), len(file))
end += struct.pack("<4sIQI", b"PK\6\7", 0, len(file) + len(directory), 1)
end += struct.pack("<4s4H2IH", b"PK\5\6", 0, 0, 0xffff, 0xffff, full, full, 0)
with open("test/golden/torch/kinds.bin", "wb") as f:
    f.write(file + directory + end)
with zipfile.ZipFile("test/golden/torch/kinds.bin") as z:
    assert z.testzip() is None and len(z.namelist()) == len(entries)

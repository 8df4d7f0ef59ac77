#!/usr/bin/env python3
"""test/golden/gguf/formats.gguf, by Python's gguf; the K formats' blocks by ggml (libggml-base.so of llama.cpp).

    pip install gguf
    dev/golden_gguf.py path/to/libggml-base.so test/golden/gguf

Metadata: a value and an array of every type. Tensors: for each format X random blocks "X", and "X.floats", which these
stand for; "normal" and "heavy" (Student's t, 2 degrees of freedom), and "normal.X", which ggml makes of them.
"""
import ctypes
import pathlib
import sys

import gguf
import numpy as np
from gguf import GGMLQuantizationType as Type
from gguf import GGUFValueType as Value

# Where a block has fp16 numbers.
HALVES = {"Q2_K": (80, 82), "Q3_K": (108,), "Q4_K": (0, 2), "Q5_K": (0, 2), "Q6_K": (208,), "Q4_0": (0,),
          "Q4_1": (0, 2), "Q5_0": (0,), "Q5_1": (0, 2), "Q8_0": (0,), "IQ4_NL": (0,)}
REFERENCE = ["Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q4_K", "Q6_K"]


def halves(random, n):    # finite, subnormal ones as well
    return (np.exp2(random.uniform(-20, 5, n)) * random.choice([-1, 1], n)).astype(np.float16)


def random_blocks(random, name):    # 256 numbers
    if name == "F32":
        return random.standard_normal(256).astype(np.float32).view(np.uint8)
    if name == "F16":
        return halves(random, 256).view(np.uint8)
    if name == "BF16":
        return random.standard_normal(256).astype(np.float32).view(np.uint16)[1::2].copy().view(np.uint8)
    numbers, size = gguf.GGML_QUANT_SIZES[Type[name]]
    blocks = random.integers(0, 256, (256 // numbers, size)).astype(np.uint8)
    for at in HALVES[name]:
        blocks[:, at:at + 2] = halves(random, len(blocks)).reshape(-1, 1).view(np.uint8)
    return blocks.reshape(-1)


def main(library, out):
    ggml = ctypes.CDLL(library)
    random = np.random.default_rng(13)
    w = gguf.GGUFWriter(pathlib.Path(out) / "formats.gguf", "test")
    for name, value in (("UINT8", 200), ("INT8", -100), ("UINT16", 60000), ("INT16", -30000), ("UINT32", 4000000000),
                        ("INT32", -2000000000), ("UINT64", 1 << 62), ("INT64", -(1 << 62)), ("FLOAT32", 0.15625),
                        ("FLOAT64", 1e-300), ("BOOL", True), ("STRING", "na\u00efve")):
        w.add_key_value("value." + name.lower(), value, Value[name])
        w.add_key_value("array." + name.lower(), [value, value], Value.ARRAY, sub_type=Value[name])
    for name in ["F32", "F16", "BF16", *HALVES]:
        blocks = random_blocks(random, name).reshape(1, -1)
        w.add_tensor(name, blocks, raw_dtype=Type[name])
        w.add_tensor(name + ".floats", gguf.quants.dequantize(blocks, Type[name]).astype(np.float32).reshape(2, 128))
    for kind, x in (("normal", random.standard_normal(512)), ("heavy", random.standard_t(2, 512))):
        x = x.astype(np.float32)
        w.add_tensor(kind, x)
        for name in REFERENCE:
            numbers, size = gguf.GGML_QUANT_SIZES[Type[name]]
            blocks = np.zeros((1, 512 // numbers * size), np.uint8)
            ggml.ggml_quantize_chunk(int(Type[name]), x.ctypes.data_as(ctypes.c_void_p),
                                     blocks.ctypes.data_as(ctypes.c_void_p), ctypes.c_int64(0), ctypes.c_int64(1),
                                     ctypes.c_int64(512), None)
            w.add_tensor(kind + "." + name, blocks, raw_dtype=Type[name])
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()


main(*sys.argv[1:])

#!/usr/bin/env python3
"""What llama.cpp's own converter makes of test/golden/families: test/golden/gguf/converter.txt.

    pip download llama-cpp-python==0.3.36 --no-deps --no-binary :all:    (and unpack it)
    pip install torch transformers gguf
    dev/golden_converter.py llama_cpp_python-0.3.36/vendor/llama.cpp test/golden/families test/golden/gguf [KEEP]

A line per key of the architecture: FAMILY KEY TYPE VALUE; per tensor: FAMILY NAME HASH SIZES, of F32. The hash is
hash_words of base/common.h. KEEP: a directory for the GGUF files.
"""
import json
import pathlib
import shutil
import struct
import sys
import tempfile

FAMILIES = ["gpt2", "llama", "llama3_tied", "llama_yarn", "mistral_full", "qwen2", "qwen3", "gemma", "gemma2", "gemma3",
            "phi3", "olmo2", "olmo3", "gpt_neox", "granite", "smollm3", "mixtral", "qwen2_moe", "qwen3_moe", "olmoe",
            "../pairs/t5", "../pairs/t5_gated", "../encoders/bert_base", "../encoders/distilbert_base",
            "../encoders/roberta_base", "../encoders/roberta_texts", "../encoders/modernbert_base", "../encoders/modernbert_mean",
            "../eval/t5"]


def hash_words(data):
    h = 0xCBF29CE484222325
    data += b"\0" * (-len(data) % 8)
    for (word,) in struct.iter_unpack("<Q", data):
        h = (h ^ word) * 0x100000001B3 & 0xFFFFFFFFFFFFFFFF
    return h


def without_vocabulary(cls):
    for sub in cls.__subclasses__():
        without_vocabulary(sub)
    cls.set_vocab = lambda self: None


def main(llama_cpp, families, out, keep=None):
    sys.path[:0] = [llama_cpp, llama_cpp + "/gguf-py"]
    import conversion
    import gguf
    import torch
    from conversion.base import ModelBase, TextModel
    lines = []
    for family in FAMILIES:
        with tempfile.TemporaryDirectory() as tmp:
            model, file = pathlib.Path(tmp) / "model", pathlib.Path(keep or tmp) / (pathlib.Path(family).name + ".gguf")
            shutil.copytree(pathlib.Path(families) / family, model)
            (model / "expected.safetensors").unlink(missing_ok=True)
            config = json.loads((model / "config.json").read_text())
            # What the converter wants and transformers no longer writes.
            if family == "gpt2":
                config["n_ctx"] = config["n_positions"]
            if family == "gpt_neox":
                config["rotary_pct"] = config["rope_parameters"]["partial_rotary_factor"]
            if config["model_type"] == "modernbert":
                config["layer_norm_eps"] = config["norm_eps"]
            (model / "config.json").write_text(json.dumps(config))
            config.pop("id2label", None)    # JSON has texts as keys, transformers numbers
            tokens = {str(i): i for i in range(config["vocab_size"])}    # Gemma 3 counts them
            (model / "tokenizer.json").write_text(json.dumps({"model": {"vocab": tokens}, "added_tokens": []}))
            hparams = {**ModelBase.load_hparams(model, False), **config}    # transformers swallows rotary_pct
            cls = conversion.get_model_class(hparams["architectures"][0])
            without_vocabulary(TextModel)
            with torch.inference_mode():
                cls(model, gguf.LlamaFileType.ALL_F32, file, hparams=hparams).write()
            reader = gguf.GGUFReader(file)
            arch = reader.fields["general.architecture"].contents()
            for key, field in sorted(reader.fields.items()):
                if key.startswith(arch + "."):
                    values = field.contents()
                    lines.append(f"{family} {key} {field.types[-1].name} {json.dumps(values).replace(' ', '')}")
            for t in sorted(reader.tensors, key=lambda t: t.name):
                assert t.tensor_type == gguf.GGMLQuantizationType.F32
                sizes = " ".join(str(n) for n in reversed(t.shape.tolist()))
                lines.append(f"{family} {t.name} {hash_words(t.data.tobytes()):016x} {sizes}")
    (pathlib.Path(out) / "converter.txt").write_text("\n".join(lines) + "\n")


main(*sys.argv[1:])

#!/usr/bin/env python3
"""test/golden/gguf/formats.gguf, by Python's gguf; the K formats' blocks by ggml (libggml-base.so of llama.cpp).

    pip install gguf
    dev/golden_gguf.py path/to/libggml-base.so test/golden/gguf

Metadata: a value and an array of every type. Tensors: for each format X random blocks "X", and "X.floats", which these
stand for; "normal" and "heavy" (Student's t, 2 degrees of freedom), and "normal.X", which ggml makes of them.

And the fuzzers' seeds, models of one layer: tiny_llama.gguf with pieces and scores, tiny_olmo2.gguf with merges.
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


def tiny(path, arch, shapes, numbers, tokenizer, tokens, types, ids, **arrays):
    w = gguf.GGUFWriter(path, arch)
    for key, value in {"context_length": 8, "embedding_length": 4, "block_count": 1, "feed_forward_length": 4,
                       "attention.head_count": 2, "attention.head_count_kv": 1, **numbers}.items():
        (w.add_float32 if isinstance(value, float) else w.add_uint32)(f"{arch}.{key}", value)
    w.add_string("tokenizer.ggml.model", tokenizer)
    w.add_array("tokenizer.ggml.tokens", tokens)
    w.add_array("tokenizer.ggml.token_type", types)
    for key, value in arrays.items():
        (w.add_string if isinstance(value, str) else w.add_array)("tokenizer.ggml." + key, value)
    for key, value in ids.items():
        w.add_uint32(f"tokenizer.ggml.{key}_token_id", value)
    for name, shape in shapes.items():
        w.add_tensor(name + ".weight", np.ones(shape, np.float16 if len(shape) > 1 else np.float32))
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()


def seeds(out):
    block = {"attn_q": (4, 4), "attn_k": (2, 4), "attn_v": (2, 4), "attn_output": (4, 4), "ffn_gate": (4, 4),
             "ffn_up": (4, 4), "ffn_down": (4, 4)}
    shapes = {f"blk.0.{name}": shape for name, shape in block.items()}
    pieces = ["<unk>", "<s>", "</s>", "<0x0A>", "<0xFF>", "\u2581", "a", "b", "ab", "\u2581ab", "<end>", "  "]
    tiny(out / "tiny_llama.gguf", "llama",
         {"token_embd": (12, 4), "output_norm": (4,), "rope_freqs": (1,), "blk.0.attn_norm": (4,),
          "blk.0.ffn_norm": (4,), **shapes},
         {"attention.layer_norm_rms_epsilon": 1e-5, "rope.freq_base": 1e4, "rope.dimension_count": 2}, "llama", pieces,
         [2, 3, 3, 6, 6, 1, 1, 1, 1, 1, 3, 4], {"bos": 1, "eos": 2, "unknown": 0, "eot": 10},
         scores=[-float(i) for i in range(12)], pre="default")
    norms = {f"blk.0.{name}": (n,) for name, n in
             (("attn_q_norm", 4), ("attn_k_norm", 2), ("post_attention_norm", 4), ("post_ffw_norm", 4))}
    tokens = ["a", "b", "\u0120", "ab", "\u0120a", "<|endoftext|>", "<|im_end|>", "1"]
    tiny(out / "tiny_olmo2.gguf", "olmo2",
         {"token_embd": (8, 4), "output": (8, 4), "output_norm": (4,), **norms, **shapes},
         {"attention.layer_norm_rms_epsilon": 1e-5, "rope.freq_base": 1e4, "attention.sliding_window": 3,
          "rope.scaling.factor": 4.0}, "gpt2", tokens, [1, 1, 1, 1, 1, 3, 3, 1], {"bos": 5, "eos": 5, "eom": 6},
         merges=["a b", "\u0120 a"], pre="llama-bpe")


def main(library, out):
    seeds(pathlib.Path(out))
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

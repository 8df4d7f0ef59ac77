#!/usr/bin/env python3
"""Writes test/golden/nanochat: a checkpoint as nanochat of 2025 saves it, and what its model computes.

Usage: golden_nanochat.py.  Needs torch, transformers. Run with transformers 5.24.
model_000010.pt, meta_000010.json: names, types and keys of nanochat's own files. expected.safetensors: as
golden_families.py writes it, by transformers' class of the same model, with the epsilon of nanochat's norms.
"""
import json
from pathlib import Path

import torch
from safetensors.torch import save_file

import golden_families as golden

NAMES = {"model.embed_tokens.": "transformer.wte.", "model.layers.": "transformer.h.", ".self_attn.q_proj.": ".attn.c_q.",
         ".self_attn.k_proj.": ".attn.c_k.", ".self_attn.v_proj.": ".attn.c_v.", ".self_attn.o_proj.": ".attn.c_proj.",
         ".mlp.fc1.": ".mlp.c_fc.", ".mlp.fc2.": ".mlp.c_proj."}


def main():
    out = Path("test/golden/nanochat")
    out.mkdir(exist_ok=True)
    fields = dict(golden.LLAMA, intermediate_size=4 * golden.C, rms_norm_eps=torch.finfo(torch.float32).eps)
    model = golden.make("nanochat", fields)
    golden.noisy(model, 1)
    tokens = torch.randint(0, golden.V, (2, 20), generator=torch.Generator().manual_seed(1001))
    save_file(golden.expected(model, tokens, False), str(out / "expected.safetensors"))
    saved = {}
    for name, x in model.state_dict().items():
        for theirs, ours in NAMES.items():
            name = name.replace(theirs, ours)
        saved[name] = x.bfloat16() if ".wte." in name else x    # nanochat's embeddings are bf16, its matrices fp32
    torch.save(saved, out / "model_000010.pt")
    config = model.config
    meta = {"step": 10, "val_bpb": 1.0, "model_config": {
        "sequence_len": config.max_position_embeddings, "vocab_size": golden.V, "n_layer": config.num_hidden_layers,
        "n_head": config.num_attention_heads, "n_kv_head": config.num_key_value_heads, "n_embd": golden.C},
        "user_config": {"run": "dummy"}, "device_batch_size": 32, "max_seq_len": config.max_position_embeddings}
    (out / "meta_000010.json").write_text(json.dumps(meta, indent=2))


if __name__ == "__main__":
    main()

#!/usr/bin/env python3
"""Writes test/golden/nanochat and families/nanochat_2026: checkpoints as nanochat saves them, and what its models compute.

Usage: golden_nanochat.py [NANOCHAT].  Needs torch, transformers. Run with transformers 5.24.
NANOCHAT: a checkout of nanochat of July 2026 (commit 92d63d4), whose own model computes nanochat_2026.
model_000010.pt, meta_000010.json: names, types and keys of nanochat's own files. expected.safetensors: as
golden_families.py writes it, of the model of 2025 by transformers' class, with the epsilon of nanochat's norms.
long_tokens, long_logits: more tokens than the short windows of 2026 have, and the last one's logits.
"""
import json
import sys
from pathlib import Path
from types import SimpleNamespace

import torch
from safetensors.torch import save_file

import golden_families as golden

NAMES = {"model.embed_tokens.": "transformer.wte.", "model.layers.": "transformer.h.", ".self_attn.q_proj.": ".attn.c_q.",
         ".self_attn.k_proj.": ".attn.c_k.", ".self_attn.v_proj.": ".attn.c_v.", ".self_attn.o_proj.": ".attn.c_proj.",
         ".mlp.fc1.": ".mlp.c_fc.", ".mlp.fc2.": ".mlp.c_proj."}


def write(out, saved, sizes):
    torch.save(saved, out / "model_000010.pt")
    meta = {"step": 10, "val_bpb": 1.0, "model_config": sizes, "user_config": {"run": "dummy"},
            "device_batch_size": 32, "max_seq_len": sizes["sequence_len"]}
    (out / "meta_000010.json").write_text(json.dumps(meta, indent=2))


class AsTransformers(torch.nn.Module):
    """nanochat's model with the calls of transformers' classes that golden_families.py needs."""
    def __init__(self, gpt):
        super().__init__()
        self.gpt = gpt

    def forward(self, tokens):
        return SimpleNamespace(logits=self.gpt(tokens))

    def named_parameters(self):
        return self.gpt.named_parameters()


def main_2026(checkout):
    sys.path.insert(0, checkout)
    from nanochat.gpt import GPT, GPTConfig
    out = Path("test/golden/families/nanochat_2026")
    out.mkdir(exist_ok=True)
    sizes = dict(sequence_len=512, vocab_size=golden.V, n_layer=3, n_head=4, n_kv_head=2, n_embd=32, window_pattern="SSL")
    gpt = GPT(GPTConfig(**sizes))
    gpt.init_weights()
    gpt = gpt.float().eval()
    model = AsTransformers(gpt)
    golden.noisy(model, 2)
    tokens = torch.randint(0, golden.V, (2, 20), generator=torch.Generator().manual_seed(1002))
    golden.in_files = lambda _, tensors: tensors
    expected = golden.expected(model, tokens, True)
    long_tokens = torch.randint(0, golden.V, (1, 160), generator=torch.Generator().manual_seed(1003))
    expected |= {"long_tokens": long_tokens[0].float(), "long_logits": gpt(long_tokens)[0, -1].detach()}
    save_file(expected, str(out / "expected.safetensors"))
    bf16 = (".wte.", "value_embeds.")
    write(out, {n: x.bfloat16() if any(b in n for b in bf16) else x for n, x in gpt.state_dict().items()}, sizes)


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
    config = model.config
    write(out, saved, {
        "sequence_len": config.max_position_embeddings, "vocab_size": golden.V, "n_layer": config.num_hidden_layers,
        "n_head": config.num_attention_heads, "n_kv_head": config.num_key_value_heads, "n_embd": golden.C})


if __name__ == "__main__":
    main()
    if len(sys.argv) > 1:
        main_2026(sys.argv[1])

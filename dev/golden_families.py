#!/usr/bin/env python3
"""Writes test/golden/families: a tiny random model of each family by transformers, and what it computes.

Usage: golden_families.py [OUT [NAME...]].  Needs torch, transformers. Run with transformers 5.23.
NAME/config.json, model.safetensors: as save_pretrained writes them, weights in bf16, computed in float32 (bf16 is exact
there). NAME/expected.safetensors: tokens (B,S) as numbers; logits (B,S,V); the mean loss of predicting each next token;
for some, the gradients of that loss, "grad.NAME"; greedy: what follows the first sequence's first 4 tokens.
"""
import copy
import json
import shutil
import sys
import tempfile
from pathlib import Path

import torch
import transformers
from safetensors.torch import load_file, save_file

V, C, T = 64, 16, 32
LLAMA = dict(vocab_size=V, hidden_size=C, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
             intermediate_size=24, max_position_embeddings=T, pad_token_id=None, bos_token_id=None, eos_token_id=None)
GEMMA = dict(LLAMA, head_dim=8)
GEMMA2 = dict(GEMMA, num_hidden_layers=3, sliding_window=5, query_pre_attn_scalar=24)
GPT = dict(vocab_size=V, n_embd=C, n_layer=2, n_head=4, n_positions=T, bos_token_id=None, eos_token_id=None)
NEOX = {k: v for k, v in LLAMA.items() if k != "num_key_value_heads"} | dict(intermediate_size=40)
LLAMA3 = dict(rope_type="llama3", rope_theta=500.0, factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0,
              original_max_position_embeddings=16)
YARN = dict(rope_type="yarn", rope_theta=100.0, factor=4.0, original_max_position_embeddings=8)
EXPERTS = dict(LLAMA, num_experts=4, num_experts_per_tok=2, moe_intermediate_size=12)
# name: (model_type, fields of its config, with gradients)
MODELS = {
    "gpt2": ("gpt2", GPT, True),
    "gpt2_untied": ("gpt2", dict(GPT, tie_word_embeddings=False, n_inner=24, activation_function="gelu"), False),
    "llama": ("llama", LLAMA, True),
    "llama3_tied": ("llama", dict(LLAMA, tie_word_embeddings=True, rope_parameters=LLAMA3), False),
    "llama_biases": ("llama", dict(LLAMA, attention_bias=True, mlp_bias=True, head_dim=6, hidden_act="relu2",
                                   rope_parameters=dict(rope_type="linear", rope_theta=1e3, factor=2.0)), False),
    "llama_yarn": ("llama", dict(LLAMA, rope_parameters=YARN), False),
    "llama_dynamic": ("llama", dict(LLAMA, rope_parameters=dict(rope_type="dynamic", rope_theta=1e3, factor=2.0)),
                      False),
    "mistral": ("mistral", dict(LLAMA, sliding_window=5), False),
    "mistral_full": ("mistral", dict(LLAMA, sliding_window=None, head_dim=6), False),
    "qwen2": ("qwen2", LLAMA, False),
    "qwen2_window": ("qwen2", dict(LLAMA, use_sliding_window=True, sliding_window=5, max_window_layers=0,
                                   tie_word_embeddings=True), False),
    "qwen2_mscale": ("qwen2", dict(LLAMA, num_attention_heads=2, num_key_value_heads=1, rope_parameters=dict(
        YARN, rope_theta=10.0, beta_fast=0.5, beta_slow=0.3, mscale=0.7, mscale_all_dim=1.3)), False),
    "qwen3": ("qwen3", dict(LLAMA, head_dim=8), True),
    "gemma": ("gemma", GEMMA, False),
    "gemma2": ("gemma2", GEMMA2, True),
    "gemma3": ("gemma3_text", dict(GEMMA2, num_hidden_layers=7, rope_parameters={
        "full_attention": dict(rope_type="linear", rope_theta=1e3, factor=2.0),
        "sliding_attention": dict(rope_type="default", rope_theta=50.0)}), False),
    "phi3": ("phi3", dict(LLAMA, sliding_window=6), False),
    "phi": ("phi", dict(LLAMA, partial_rotary_factor=0.5), False),
    "olmo": ("olmo", LLAMA, False),
    "olmo2": ("olmo2", LLAMA, True),
    "olmo3": ("olmo3", dict(LLAMA, num_hidden_layers=5, sliding_window=5, rope_parameters={
        "full_attention": YARN, "sliding_attention": dict(rope_type="default", rope_theta=100.0)}), False),
    "gpt_neox": ("gpt_neox", dict(NEOX, rope_parameters=dict(rope_type="default", rope_theta=1e3,
                                                             partial_rotary_factor=0.5)), True),
    "gpt_neox_sequential": ("gpt_neox", dict(NEOX, use_parallel_residual=False, tie_word_embeddings=True,
                                             rope_parameters=dict(rope_type="default", rope_theta=1e3,
                                                                  partial_rotary_factor=0.5)), False),
    "granite": ("granite", dict(LLAMA, embedding_multiplier=3.0, residual_multiplier=0.7, attention_multiplier=0.3,
                                logits_scaling=2.0), True),
    "stablelm": ("stablelm", dict(LLAMA, partial_rotary_factor=0.5, use_qkv_bias=True), False),
    "stablelm_parallel": ("stablelm", dict(LLAMA, partial_rotary_factor=0.5, use_parallel_residual=True), False),
    "opt": ("opt", dict(vocab_size=V, hidden_size=C, num_hidden_layers=2, num_attention_heads=4, ffn_dim=24,
                        max_position_embeddings=T, word_embed_proj_dim=C, pad_token_id=None, bos_token_id=None,
                        eos_token_id=None), False),
    "bloom": ("bloom", dict(vocab_size=V, hidden_size=12, n_layer=2, n_head=6, bos_token_id=None, eos_token_id=None),
              True),
    "cohere": ("cohere", dict(LLAMA, logit_scale=0.4), False),
    "cohere2": ("cohere2", dict(LLAMA, num_hidden_layers=5, sliding_window=5, logit_scale=0.4), False),
    "smollm3": ("smollm3", dict(LLAMA, num_hidden_layers=5), False),
    "starcoder2": ("starcoder2", dict(LLAMA, sliding_window=6), False),
    "starcoder2_untied": ("starcoder2", dict(LLAMA, use_bias=False, tie_word_embeddings=False), False),
    "gptj": ("gptj", dict(GPT, rotary_dim=2), False),
    "gpt_neo": ("gpt_neo", dict(vocab_size=V, hidden_size=C, num_layers=4, num_heads=4, max_position_embeddings=T,
                                attention_types=[[["global", "local"], 2]], window_size=5, bos_token_id=None,
                                eos_token_id=None), False),
    "mpt": ("mpt", dict(vocab_size=V, d_model=12, n_layers=2, n_heads=6, max_seq_len=T), False),
    "arcee": ("arcee", dict(LLAMA, mlp_bias=True), False),
    "nanochat": ("nanochat", dict(LLAMA, final_logit_softcapping=2.0, rope_parameters=dict(
        rope_type="default", rope_theta=100.0)), True),
    "nanochat_biases": ("nanochat", dict(LLAMA, attention_bias=True, final_logit_softcapping=None, head_dim=8,
                                         tie_word_embeddings=True), False),
    "mixtral": ("mixtral", dict(LLAMA, num_local_experts=4, num_experts_per_tok=2), True),
    "mixtral_window": ("mixtral", dict(LLAMA, num_local_experts=3, num_experts_per_tok=2, sliding_window=5), False),
    "qwen2_moe": ("qwen2_moe", dict(EXPERTS, shared_expert_intermediate_size=20), True),
    # A dense layer, then one with experts, whose factors are normalised.
    "qwen2_moe_sparse": ("qwen2_moe", dict(EXPERTS, num_hidden_layers=3, shared_expert_intermediate_size=20,
                                           decoder_sparse_step=2, norm_topk_prob=True, qkv_bias=False), False),
    "qwen3_moe": ("qwen3_moe", dict(EXPERTS, head_dim=8, norm_topk_prob=True), False),
    "qwen3_moe_sums": ("qwen3_moe", dict(EXPERTS, head_dim=8, attention_bias=True, tie_word_embeddings=True), False),
    "olmoe": ("olmoe", dict(LLAMA, num_key_value_heads=4, num_experts=4, num_experts_per_tok=3,
                            intermediate_size=12), True),
}


def noisy(model, seed):
    """Random weights, large enough that every form of every function shows; norms and biases are noised, too."""
    g = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, p in model.named_parameters():
            noise = torch.randn(p.shape, generator=g)
            if p.dim() >= 2:
                p.copy_(noise * (1.5 / p.shape[-1] ** 0.5 if "emb" not in name and "wte" not in name else 0.8))
            else:
                p.copy_(p + 0.3 * noise)
            p.copy_(p.bfloat16().float())


def clear(model, tokens):
    """Moves the weights of routers until no position is near a tie between experts: in bf16 it would go to another one
    there, and all after that would differ."""
    routers = [p for n, p in model.named_parameters() if n.endswith(".gate.weight")]
    if not routers:
        return
    K = model.config.num_experts_per_tok
    optimizer = torch.optim.Adam(routers, lr=0.02)
    for wanted in [0.3] * 300 + [0.15] * 700:
        logits = torch.cat(model(tokens, output_router_logits=True).router_logits)
        best = logits.sort(-1, descending=True).values / logits.std()
        lacking = wanted - (best[:, K - 1] - best[:, K])
        if lacking.max() < 0:
            break
        optimizer.zero_grad()
        lacking.clamp(0).sum().backward()
        optimizer.step()
        with torch.no_grad():
            for p in routers:
                p.copy_(p.bfloat16().float())
    else:
        raise SystemExit("some choices of experts are near ties")
    model.zero_grad()


def in_files(model, values):
    """Values of all parameters, under the names and in the shapes of the family's files."""
    other = copy.deepcopy(model)
    for name, p in other.named_parameters():
        p.data = values[name].clone()
    with tempfile.TemporaryDirectory() as dir:
        other.save_pretrained(dir)
        return load_file(dir + "/model.safetensors")


def expected(model, tokens, gradients):
    logits = model(tokens).logits
    loss = torch.nn.functional.cross_entropy(logits[:, :-1].reshape(-1, V), tokens[:, 1:].reshape(-1))
    found = {"tokens": tokens.float(), "logits": logits.detach(), "loss": loss.detach().reshape(1)}
    if gradients:
        loss.backward()
        all = in_files(model, {n: p.grad for n, p in model.named_parameters()})
        found |= {"grad." + n: g for n, g in all.items()}
    greedy = tokens[:1, :4]
    with torch.no_grad():
        while greedy.shape[1] < 20:
            greedy = torch.cat([greedy, model(greedy).logits[:, -1:].argmax(-1)], 1)
    found["greedy"] = greedy[0].float()
    return {k: v.clone().contiguous() for k, v in found.items()}    # .to() would round the gradients, too


def make(kind, fields):
    config = transformers.AutoConfig.for_model(kind, **fields)
    return transformers.AutoModelForCausalLM.from_config(config, attn_implementation="eager").float().eval()


def main():
    out = Path(sys.argv[1] if len(sys.argv) > 1 else "test/golden/families")
    for seed, (name, (kind, fields, gradients)) in enumerate(MODELS.items()):
        if sys.argv[2:] and name not in sys.argv[2:]:
            continue
        torch.manual_seed(seed)
        model = make(kind, fields)
        tokens = torch.randint(0, V, (2, 20), generator=torch.Generator().manual_seed(seed + 1000))
        noisy(model, seed)
        clear(model, tokens)
        found = expected(model, tokens, gradients)
        dir = out / name
        shutil.rmtree(dir, ignore_errors=True)
        model.to(torch.bfloat16).save_pretrained(dir)
        config = json.loads((dir / "config.json").read_text())
        for key in ("transformers_version", "id2label", "label2id"):
            config.pop(key, None)
        (dir / "config.json").write_text(json.dumps(config, separators=(",", ":")) + "\n")
        (dir / "generation_config.json").unlink(missing_ok=True)
        save_file(found, str(dir / "expected.safetensors"))
        spread = found["logits"].std().item()
        print(f"{name}: loss {found['loss'].item():.3f}, logits' spread {spread:.2f}, "
              f"{sum(f.stat().st_size for f in dir.iterdir())} bytes")


if __name__ == "__main__":
    main()

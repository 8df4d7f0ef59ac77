#!/usr/bin/env python3
"""Writes test/golden/kinds: tiny random models of kinds that no family has, and what PyTorch computes of them.

Usage: golden_kinds.py [OUT].  Needs torch 2.15, transformers 5.23.
Files as golden_families.py writes them, weights in bf16; computed in double. config.json has what flatgpt calls the
kinds, under the names of the family whose files these are like.

    transformer    Vaswani et al. 2017: sinusoids, scaled embeddings, norms of sums, ReLU: nn.TransformerEncoderLayer
    t5             a decoder of T5 1.1 alone, its head tied as in T5 1.0: transformers' T5Stack
    t5_encoder     its encoder: every position sees all
    t5_prefix      the same, but the first four see each other and others what lies before; the loss is of what follows
    pattern        a Llama with a mask (a window, every fifth position, the first two) and NTK-aware rotation
"""
import json
import shutil
import sys
from pathlib import Path

import torch
import transformers
from safetensors.torch import save_file
from transformers.models.t5.modeling_t5 import T5Stack

V, C, T, L, F, B, S, PREFIX = 32, 12, 32, 2, 16, 2, 20, 4


def causal(n):
    return torch.ones(n, n).tril().bool()


def transformer():
    layers = torch.nn.ModuleList(torch.nn.TransformerEncoderLayer(C, 3, F, 0.0, "relu", batch_first=True,
                                                                  norm_first=False) for _ in range(L))
    table = torch.nn.Embedding(V, C)
    angle = torch.arange(T).double()[:, None] * 10000.0 ** (-2 * (torch.arange(C) // 2).double() / C)
    positions = torch.where(torch.arange(C) % 2 == 0, angle.sin(), angle.cos())

    def logits(tokens):
        n = tokens.shape[1]
        x = C ** 0.5 * table(tokens) + positions[:n]
        for layer in layers:
            x = layer(x, src_mask=~causal(n))
        return x @ table.weight.T

    names = {"transformer.wte.weight": table.weight}
    for i, layer in enumerate(layers):
        gpt2 = {"attn.c_attn": (layer.self_attn.in_proj_weight, layer.self_attn.in_proj_bias),
                "attn.c_proj": (layer.self_attn.out_proj.weight, layer.self_attn.out_proj.bias),
                "mlp.c_fc": (layer.linear1.weight, layer.linear1.bias),
                "mlp.c_proj": (layer.linear2.weight, layer.linear2.bias)}
        for name, (weight, bias) in gpt2.items():
            names |= {f"transformer.h.{i}.{name}.weight": weight, f"transformer.h.{i}.{name}.bias": bias}
        for name, norm in (("post1", layer.norm1), ("post2", layer.norm2)):
            names |= {f"{i}.{name}w": norm.weight, f"{i}.{name}b": norm.bias}
    config = dict(model_type="flatgpt-gpt2", vocab_size=V, n_positions=T, n_embd=C, n_layer=L, n_head=3, n_inner=F,
                  activation_function="relu", layer_norm_epsilon=1e-5, tie_word_embeddings=True,
                  flatgpt_position="sinusoidal", flatgpt_norm_place="post", flatgpt_embedding_scale=C ** 0.5)
    return torch.nn.ModuleList([table, layers]), logits, names, config


def llama_names(layers, norm, table):
    """layers: of each its two norms, q, k, v, o, gate, up, down."""
    names = {"model.embed_tokens.weight": table, "model.norm.weight": norm}
    parts = ["input_layernorm", "post_attention_layernorm", "self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj",
             "self_attn.o_proj", "mlp.gate_proj", "mlp.up_proj", "mlp.down_proj"]
    for i, modules in enumerate(layers):
        names |= {f"model.layers.{i}.{part}.weight": module.weight for part, module in zip(parts, modules)}
    return names


def llama_config(NH, NKV, HS, **more):
    return dict(model_type="flatgpt-llama", vocab_size=V, max_position_embeddings=T, hidden_size=C,
                num_hidden_layers=L, num_attention_heads=NH, num_key_value_heads=NKV, head_dim=HS, intermediate_size=F,
                rms_norm_eps=1e-6, tie_word_embeddings=True, **more)


def t5(sees="causal"):
    config = transformers.T5Config(vocab_size=V, d_model=C, d_kv=5, num_heads=3, num_layers=L, d_ff=F, dropout_rate=0.0,
                                   feed_forward_proj="gated-gelu", is_decoder=sees == "causal", use_cache=False,
                                   is_encoder_decoder=False, attn_implementation="eager")
    stack = T5Stack(config)

    def logits(tokens):
        mask = causal(tokens.shape[1])
        mask[:, :PREFIX] = True
        mask = torch.zeros(mask.shape).double().masked_fill(~mask, -torch.inf).expand(tokens.shape[0], 1, -1, -1)
        x = stack(input_ids=tokens, attention_mask=mask if sees == "prefix" else None).last_hidden_state
        return C ** -0.5 * x @ stack.embed_tokens.weight.T

    layers = []
    for block in stack.block:
        first, ffn = block.layer[0], block.layer[-1]
        a, f = first.SelfAttention, ffn.DenseReluDense
        layers.append([first.layer_norm, ffn.layer_norm, a.q, a.k, a.v, a.o, f.wi_0, f.wi_1, f.wo])
    names = llama_names(layers, stack.final_layer_norm.weight, stack.embed_tokens.weight)
    names["relw"] = stack.block[0].layer[0].SelfAttention.relative_attention_bias.weight
    config = llama_config(3, 3, 5, hidden_act="gelu_new", flatgpt_position="t5", flatgpt_rope_dims=0,
                          flatgpt_attention_scale=1.0, flatgpt_logit_scale=C ** -0.5)
    if sees != "causal":
        config["flatgpt_sees"] = sees
    return stack, logits, names, config


def t5_encoder():
    return t5("all")


def t5_prefix():
    return t5("prefix")


def pattern():
    HS, window, stride, first, theta, factor = 6, 4, 5, 2, 100.0, 3.0
    config = transformers.LlamaConfig(
        vocab_size=V, hidden_size=C, num_hidden_layers=L, num_attention_heads=4, num_key_value_heads=2, head_dim=HS,
        intermediate_size=F, max_position_embeddings=T, tie_word_embeddings=True, attn_implementation="eager",
        rope_parameters=dict(rope_type="default", rope_theta=theta * factor ** (HS / (HS - 2))))
    model = transformers.LlamaForCausalLM(config)

    def logits(tokens):
        n = tokens.shape[1]
        sees = [[j <= i and (j > i - window or j % stride == 0 or j < first) for j in range(n)] for i in range(n)]
        mask = torch.zeros(1, 1, n, n).double().masked_fill(~torch.tensor(sees), -torch.inf)
        return model(tokens, attention_mask=mask.expand(tokens.shape[0], -1, -1, -1)).logits

    layers = [[x.input_layernorm, x.post_attention_layernorm, x.self_attn.q_proj, x.self_attn.k_proj,
               x.self_attn.v_proj, x.self_attn.o_proj, x.mlp.gate_proj, x.mlp.up_proj, x.mlp.down_proj]
              for x in model.model.layers]
    names = llama_names(layers, model.model.norm.weight, model.model.embed_tokens.weight)
    config = llama_config(4, 2, HS, hidden_act="silu", rope_parameters=dict(rope_type="default", rope_theta=theta),
                          flatgpt_rope_scaling="ntk", flatgpt_rope_factor=factor, sliding_window=window,
                          flatgpt_stride=stride, flatgpt_global_tokens=first)
    return model, logits, names, config


def noisy(names, g):
    """Random weights, large enough that every form of every function shows."""
    with torch.no_grad():
        for name, p in names.items():
            noise = torch.randn(p.shape, generator=g).double()
            if p.dim() == 1:
                p.copy_((0.0 if name.endswith(("bias", "b")) else 1.0) + 0.3 * noise)
            else:
                p.copy_(noise * (0.7 if name == "relw" or "wte" in name or "embed" in name else p.shape[1] ** -0.5))
            p.copy_(p.bfloat16())


def in_file(name, x):
    # GPT-2's products are stored the other way round.
    return (x.T if "transformer.h" in name and x.dim() == 2 else x).contiguous()


def main():
    out = Path(sys.argv[1] if len(sys.argv) > 1 else "test/golden/kinds")
    for seed, make in enumerate((transformer, t5, t5_encoder, t5_prefix, pattern)):
        torch.manual_seed(seed)
        g = torch.Generator().manual_seed(seed)
        modules, logits, names, config = make()
        modules.double().eval()
        noisy(names, g)
        tokens = torch.randint(0, V, (B, S), generator=g)
        target = tokens[:, 1:].clone()
        if make is t5_prefix:
            target[:, :PREFIX - 1] = -100    # which cross_entropy ignores
        loss = torch.nn.functional.cross_entropy(logits(tokens[:, :-1]).reshape(-1, V), target.reshape(-1))
        loss.backward()
        assert sum(p.grad is not None for p in modules.parameters()) == len(names)
        with torch.no_grad():
            all_logits, greedy = logits(tokens), tokens[:1, :PREFIX]
            while greedy.shape[1] < S:
                greedy = torch.cat([greedy, logits(greedy)[:, -1:].argmax(-1)], 1)
        found = {"tokens": tokens, "logits": all_logits, "loss": loss.reshape(1), "greedy": greedy[0]}
        found |= {"grad." + name: in_file(name, p.grad) for name, p in names.items()}
        dir = out / make.__name__
        shutil.rmtree(dir, ignore_errors=True)
        dir.mkdir(parents=True)
        (dir / "config.json").write_text(json.dumps(config, separators=(",", ":")) + "\n")
        save_file({k: in_file(k, p.detach().bfloat16()) for k, p in names.items()}, str(dir / "model.safetensors"))
        save_file({k: x.detach().float().contiguous() for k, x in found.items()}, str(dir / "expected.safetensors"))
        for f in dir.iterdir():
            f.chmod(0o644)
        print(f"{make.__name__}: loss {loss.item():.3f}, logits' spread {all_logits.std().item():.2f}, "
              f"{sum(f.stat().st_size for f in dir.iterdir())} bytes, greedy {greedy[0].tolist()}")


main()

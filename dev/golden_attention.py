#!/usr/bin/env python3
"""Golden numbers of attention's kinds from PyTorch and transformers, in double precision.

Usage: golden_attention.py [test/golden/attention.safetensors].  Needs torch 2.15, transformers 5.23.

    qkv, dy                inputs of every case, bf16: 20 rows of 40 numbers, which a case sees as B sequences of S
                           positions of NH + 2 * NKV heads; and of 24, NH heads
    table                  T5's biases, (32 buckets, NH), bf16
    buckets.{one,both}     of the distances -128..128 (key less query), where queries see one side or both, bf16
    CASE.y                 attention's output, (B,S,NH,HS), float32, as what follows
    CASE.dqkv              the gradient of sum(y * dy) for qkv
    CASE.dtable            and for the table

Masks are made here from what they mean, key by key; test/ops/test_golden_attention.cpp says the same as Heads and
spans. The attention is torch's own (scaled_dot_product_attention), but for the soft cap, which it lacks.
"""
import sys

import torch
from safetensors.torch import save_file
from torch.nn.functional import scaled_dot_product_attention
from transformers.models.bloom.modeling_bloom import build_alibi_tensor
from transformers.models.t5.modeling_t5 import T5Attention

N, WIDTH, OUT = 20, 40, 24
THREE, SIX = dict(NH=3, NKV=1, HS=8), dict(NH=6, NKV=2, HS=4)    # heads: the same numbers a position
ONE, TWO = dict(B=1, S=20), dict(B=2, S=10)


def document(starts, i):
    return sum(start <= i for start in starts)


def halves(starts, S, j):
    """Whether j lies in the first half, rounded up, of its document."""
    inside = [i for i in range(S) if document(starts, i) == document(starts, j)]
    return j < (inside[0] + inside[-1] + 2) // 2


def same(starts, i, j):
    return document(starts, i) == document(starts, j)


# Each sequence's documents begin at these places. The last three positions of the second one are
# padding.
CUT, PADDED, HALVES = [[3, 4], [6]], [[], [7]], [[4], []]
# name: (sizes, sees(b, i, j): query i, key j; what else)
CASES = {
    "causal": (ONE | THREE, lambda b, i, j: j <= i, {}),
    "grouped": (TWO | SIX, lambda b, i, j: j <= i, {}),
    "documents": (TWO | THREE, lambda b, i, j: j <= i and same(CUT[b], i, j), {}),
    "prefix": (TWO | SIX, lambda b, i, j: same(HALVES[b], i, j) and (j <= i or halves(HALVES[b], 10, j)), {}),
    "bidirectional": (TWO | THREE, lambda b, i, j: same(PADDED[b], i, j), {}),
    "window": (ONE | SIX, lambda b, i, j: i - 4 < j <= i, {}),
    "pattern": (ONE | THREE, lambda b, i, j: j <= i and (j > i - 3 or j % 5 == 0 or j < 2), {}),
    "alibi of 3 heads": (ONE | THREE, lambda b, i, j: j <= i, dict(alibi=True)),
    "alibi of 6 heads": (TWO | SIX, lambda b, i, j: j <= i, dict(alibi=True)),
    "capped": (ONE | THREE, lambda b, i, j: j <= i, dict(scale=0.4, softcap=1.5)),
    "t5": (ONE | THREE, lambda b, i, j: j <= i, dict(scale=1.0, buckets="one")),
    "t5, both sides": (TWO | THREE, lambda b, i, j: same(PADDED[b], i, j), dict(buckets="both")),
}


def relative(distance, buckets):
    return T5Attention._relative_position_bucket(distance, bidirectional=buckets == "both", num_buckets=32,
                                                 max_distance=128)


def attention(q, k, v, mask, table, alibi=False, scale=None, softcap=None, buckets=None):
    """q (B,NH,S,HS), k and v (B,NKV,S,HS); mask (B,1,S,S): what each query sees."""
    NH, S = q.shape[1:3]
    bias = torch.zeros(mask.shape, dtype=torch.double).masked_fill(~mask, -torch.inf)
    if alibi:
        bias = bias + build_alibi_tensor(torch.ones(1, S), NH, torch.double)[None]    # (1,NH,1,S): by the key alone
    if buckets:
        at = torch.arange(S)
        bias = bias + table[relative(at[None, :] - at[:, None], buckets)].permute(2, 0, 1)[None]
    if softcap is None:
        return scaled_dot_product_attention(q, k, v, attn_mask=bias, scale=scale, enable_gqa=True)
    group = NH // k.shape[1]
    scores = scale * q @ k.repeat_interleave(group, 1).transpose(2, 3)
    return torch.softmax(softcap * torch.tanh(scores / softcap) + bias, -1) @ v.repeat_interleave(group, 1)


def main():
    out = sys.argv[1] if len(sys.argv) > 1 else "test/golden/attention.safetensors"
    torch.manual_seed(14)
    qkv, dy = (1.3 * torch.randn(N, WIDTH)).bfloat16(), torch.randn(N, OUT).bfloat16()
    table = torch.randn(32, 3).bfloat16()
    found = {"qkv": qkv, "dy": dy, "table": table}
    for buckets in ("one", "both"):
        found["buckets." + buckets] = relative(torch.arange(-128, 129), buckets).bfloat16()
    for name, (sizes, sees, kinds) in CASES.items():
        B, S, NH, NKV, HS = (sizes[k] for k in ("B", "S", "NH", "NKV", "HS"))
        mask = torch.tensor([[[[sees(b, i, j) for j in range(S)] for i in range(S)]] for b in range(B)])
        packed, t = qkv.double().requires_grad_(), table.double().requires_grad_()
        q, k, v = packed.view(B, S, NH + 2 * NKV, HS).transpose(1, 2).split([NH, NKV, NKV], 1)
        y = attention(q, k, v, mask, t, **kinds).transpose(1, 2).reshape(N, OUT)
        (y * dy.double()).sum().backward()
        found |= {name + ".y": y, name + ".dqkv": packed.grad}
        if t.grad is not None:
            found[name + ".dtable"] = t.grad
        print(f"{name}: {int(mask.sum())} of {mask.numel()} pairs, |y| {y.norm():.4f}, |dqkv| {packed.grad.norm():.4f}")
    save_file({k: v.detach().to(v.dtype if v.dtype == torch.bfloat16 else torch.float32).contiguous()
               for k, v in found.items()}, out)


main()

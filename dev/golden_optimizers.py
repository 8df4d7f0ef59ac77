#!/usr/bin/env python3
"""Writes test/golden/optimizers.safetensors: weights after 1 and 20 steps of each optimizer, in double, for
test/test_optimizers.cpp.

golden_optimizers.py        needs torch 2.9 or later and safetensors

AdamW and Muon are torch.optim's; Muon's products are in double instead of bf16. Lion (Chen et al. 2023, algorithm 2),
Signum (Bernstein et al. 2018, algorithm 2) and NorMuon (Li et al. 2025, algorithm 1) are written out. Weights and
gradients are random numbers that both sides compute.
"""
import math
from pathlib import Path

import numpy as np
import torch
import torch.optim._muon
from safetensors.numpy import save_file

V, T, L, C, F = 17, 5, 1, 12, 20
LR, BETAS, EPS, DECAY, MOMENTUM = 1e-2, (0.9, 0.95), 1e-6, 0.1, 0.9


def shapes():
    yield from [("wte", (V, C)), ("wpe", (T, C))]
    for l in range(L):
        for name, shape in [("ln1w", (C,)), ("ln1b", (C,)), ("qkvw", (3 * C, C)), ("qkvb", (3 * C,)), ("projw", (C, C)),
                            ("projb", (C,)), ("ln2w", (C,)), ("ln2b", (C,)), ("fcw", (F, C)), ("fcb", (F,)),
                            ("fc2w", (C, F)), ("fc2b", (C,))]:
            yield f"{l}.{name}", shape
    yield from [("lnfw", (C,)), ("lnfb", (C,))]


def numbers(tensor, step, shape):
    i = np.arange(math.prod(shape), dtype=np.float64)
    x = np.sin(12.9898 * (i + 1) + 78.233 * (tensor + 1) + 37.719 * step) * 43758.5453
    return torch.from_numpy((x - np.floor(x) - 0.5).reshape(shape))


def is_matrix(name, w):
    return name[0].isdigit() and w.dim() == 2


def parts(name, w):
    """The matrices of a tensor: query, key and value are three."""
    return w.split(C) if name.endswith("qkvw") else (w,)


def in_double(f, *args):
    kept, torch.bfloat16 = torch.bfloat16, torch.float64
    try:
        return f(*args)
    finally:
        torch.bfloat16 = kept


def by_torch(weights, muon):
    """Returns a function that makes a step with gradients by name."""
    matrices = {n: [torch.nn.Parameter(p.clone()) for p in parts(n, w)] for n, w in weights.items()
                if muon and is_matrix(n, w)}
    others = {n: torch.nn.Parameter(w.clone()) for n, w in weights.items() if n not in matrices}
    adamw = torch.optim.AdamW([{"params": [w for w in others.values() if w.dim() == 2], "weight_decay": DECAY},
                               {"params": [w for w in others.values() if w.dim() == 1], "weight_decay": 0}],
                              lr=LR, betas=BETAS, eps=EPS)
    own = muon and torch.optim.Muon([p for all in matrices.values() for p in all], lr=LR, weight_decay=DECAY,
                                    momentum=MOMENTUM, adjust_lr_fn="match_rms_adamw")

    def step(gradients):
        for n, w in others.items():
            w.grad = gradients[n].clone()
        for n, all in matrices.items():
            for w, g in zip(all, parts(n, gradients[n])):
                w.grad = g.clone()
        adamw.step()
        if own:
            in_double(own.step)
        for n in weights:
            weights[n] = (torch.cat(tuple(p.data for p in matrices[n])) if n in matrices else others[n].data).clone()
    return step


def normuon(weights):
    adamw = by_torch(weights, False)
    momentum = {n: torch.zeros_like(w) for n, w in weights.items()}
    second = {n: torch.zeros(w.shape[0], 1, dtype=torch.float64) for n, w in weights.items()}

    def step(gradients):
        before = {n: w.clone() for n, w in weights.items()}
        adamw(gradients)
        for n, w in before.items():
            if not is_matrix(n, w):
                continue
            m, all = momentum[n], []
            m.lerp_(gradients[n], 1 - MOMENTUM)
            direction = gradients[n].lerp(m, MOMENTUM)
            for d, v in zip(parts(n, direction), parts(n, second[n])):
                o = in_double(torch.optim._muon._zeropower_via_newtonschulz, d, (3.4445, -4.7750, 2.0315), 5, 1e-7)
                v.mul_(BETAS[1]).add_((o * o).mean(1, keepdim=True), alpha=1 - BETAS[1])
                o = o / (v.sqrt() + EPS)
                all.append(o * 0.2 * math.sqrt(o.numel()) / o.norm())
            weights[n] = w - LR * (torch.cat(all) + DECAY * w)
    # AdamW's own copies of the matrices are not used.
    return step


def by_sign(weights, lion):
    momentum = {n: torch.zeros_like(w) for n, w in weights.items()}

    def step(gradients):
        for n, w in weights.items():
            m, g = momentum[n], gradients[n]
            ahead = BETAS[0] * m + (1 - BETAS[0]) * g
            momentum[n] = BETAS[1] * m + (1 - BETAS[1]) * g if lion else ahead
            weights[n] = w - LR * (ahead.sign() + (DECAY * w if w.dim() == 2 else 0))
    return step


OPTIMIZERS = {"adamw": lambda w: by_torch(w, False), "muon": lambda w: by_torch(w, True), "normuon": normuon,
              "lion": lambda w: by_sign(w, True), "signum": lambda w: by_sign(w, False)}
out = {}
for optimizer, make in OPTIMIZERS.items():
    weights = {n: numbers(i, 0, s) for i, (n, s) in enumerate(shapes())}
    step = make(weights)
    for k in range(1, 21):
        step({n: numbers(i, k, s) for i, (n, s) in enumerate(shapes())})
        if k in (1, 20):
            out |= {f"{optimizer}.{k}.{n}": w.numpy().astype(np.float32) for n, w in weights.items()}
save_file(out, Path(__file__).parent.parent / "test/golden/optimizers.safetensors")

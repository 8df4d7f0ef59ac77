#!/usr/bin/env python3
"""Golden numbers of a tiny GPT-2 from PyTorch and transformers, in double precision.

    golden_gpt.py [test/golden/gpt_tiny]

writes a checkpoint directory as transformers saves it, {config.json, model.safetensors} (float32), and
expected.safetensors, everything float32, computed in float64 from those float32 weights:

    input (B,S), target (B,S)      token ids; the targets are random ids, not the inputs moved by one
    logits (B,S,V)                 of the first forward
    losses (B,S), loss (1)         cross-entropy of each position, and their mean
    grad.NAME                      d loss / d NAME for every tensor of model.safetensors, in its name and orientation;
                                   wte's is the sum of embedding and tied head
    grad_norm (1)                  global L2 norm of those, before clipping
    adamw.losses (5)               mean loss before each of 5 AdamW updates on that same batch
    adamw.NAME                     weights after the fifth

AdamW: lr 1e-2 (constant), betas 0.9 and 0.95, eps 1e-8, weight decay 0.1 on tensors with two dimensions and none on
vectors, gradients scaled so that their global norm is at most 1.0 (times 1 / (norm + 1e-6) where it is larger, as
torch.nn.utils.clip_grad_norm_ does). The learning rate is large so that five steps move the loss by a lot.

Model: V=67, T=16, L=2, NH=2, C=16, F=64; B=3, S=13. The weights are random and larger than GPT-2's initial ones, the
biases and norms too, so that no gradient is near zero by accident. One is by nature: the key part of c_attn.bias moves
all scores of a query alike. AdamW blows its rounding noise up, so in float32 those 16 weights do not compare.
"""
import pathlib
import sys

import torch
from safetensors.torch import save_file
from transformers import GPT2Config, GPT2LMHeadModel

V, T, L, NH, C, B, S = 67, 16, 2, 2, 16, 3, 13
LR, BETAS, EPS, DECAY, CLIP, STEPS = 1e-2, (0.9, 0.95), 1e-8, 0.1, 1.0, 5


def main():
    out = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else "test/golden/gpt_tiny")
    torch.manual_seed(1)
    config = GPT2Config(vocab_size=V, n_positions=T, n_embd=C, n_layer=L, n_head=NH, resid_pdrop=0.0, embd_pdrop=0.0,
                        attn_pdrop=0.0, bos_token_id=V - 1, eos_token_id=V - 1, attn_implementation="eager")
    model = GPT2LMHeadModel(config)
    with torch.no_grad():
        for p in model.parameters():
            p.copy_(torch.randn(p.shape) * (0.3 if p.dim() == 2 else 0.2) + (p if p.dim() == 1 else 0))
    model.save_pretrained(out)
    model = model.double()

    tokens, target = torch.randint(V, (B, S)), torch.randint(V, (B, S))
    weights = dict(model.named_parameters())
    expected = {"input": tokens, "target": target}

    def losses():
        logits = model(tokens).logits
        each = torch.nn.functional.cross_entropy(logits.reshape(-1, V), target.reshape(-1), reduction="none")
        return logits, each.reshape(B, S)

    logits, each = losses()
    each.mean().backward()
    grads = {name: p.grad.clone() for name, p in weights.items()}
    expected |= {"logits": logits, "losses": each, "loss": each.mean().reshape(1)}
    expected |= {"grad." + name: g for name, g in grads.items()}
    expected["grad_norm"] = torch.sqrt(sum((g ** 2).sum() for g in grads.values())).reshape(1)

    groups = [{"params": [p for p in weights.values() if p.dim() == 2], "weight_decay": DECAY},
              {"params": [p for p in weights.values() if p.dim() != 2], "weight_decay": 0.0}]
    adamw = torch.optim.AdamW(groups, lr=LR, betas=BETAS, eps=EPS)
    history = []
    for _ in range(STEPS):
        adamw.zero_grad()
        loss = losses()[1].mean()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(weights.values(), CLIP)
        adamw.step()
        history.append(loss.detach().reshape(1))
    expected["adamw.losses"] = torch.cat(history)
    expected |= {"adamw." + name: p for name, p in weights.items()}

    save_file({name: t.detach().to(torch.float32).contiguous().clone() for name, t in expected.items()},
              out / "expected.safetensors", metadata={"format": "pt"})
    (out / "generation_config.json").unlink(missing_ok=True)    # saved, but nothing here reads it
    for f in out.iterdir():
        f.chmod(0o644)
    size = sum(f.stat().st_size for f in out.iterdir())
    print(f"{out}: {size} bytes; loss {each.mean().item():.9f}, grad norm {expected['grad_norm'].item():.9f}, "
          f"losses {[round(x.item(), 6) for x in history]}")


main()

#!/usr/bin/env python3
"""Does flatgpt see what transformers sees, in random models that no golden file has? Needs torch and transformers.

Usage: check_families.py [--seed N] [--flatgpt ./flatgpt] [NAME...]
For each model of golden_families.py, larger and with another seed: the loss of `flatgpt eval` against transformers';
then `flatgpt train` saves it after one step that changes nothing, and transformers must load that with the same logits.
Exit status 1 where a loss differs by more than 1e-5 of itself, or logits by more than 1e-5 of the largest.
"""
import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy
import torch
import transformers

import golden_families

V, T = 307, 48
LARGER = {"vocab_size": V, "max_position_embeddings": T, "n_positions": T, "max_seq_len": T, "num_hidden_layers": 5,
          "n_layer": 3, "n_layers": 3, "hidden_size": 48, "n_embd": 48, "d_model": 48, "word_embed_proj_dim": 48,
          "intermediate_size": 88, "ffn_dim": 72}


def shard(path, tokens):
    header = numpy.zeros(256, numpy.int32)
    header[:3] = 20240520, 1, len(tokens)
    path.write_bytes(header.tobytes() + tokens.astype(numpy.uint16).tobytes())


def run(args):
    done = subprocess.run([str(a) for a in args], capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"{' '.join(map(str, args))}: exit {done.returncode}\n{done.stderr}")
    return done.stdout


def check(name, seed, flatgpt, work):
    kind, fields, _ = golden_families.MODELS[name]
    fields = {k: LARGER.get(k, v) if v is not None else v for k, v in fields.items()}
    if kind == "gpt2" and "n_inner" in fields:
        fields["n_inner"] = 72
    torch.manual_seed(seed)
    model = golden_families.make(kind, fields)
    golden_families.noisy(model, seed)
    theirs = work / name
    model.save_pretrained(theirs)
    rng = numpy.random.default_rng(seed)
    tokens = rng.integers(0, V, 8 * T + 1)
    shard(work / "data.bin", tokens)
    ids = torch.tensor(tokens)
    with torch.no_grad():
        logits = model(ids[:-1].reshape(8, T)).logits
    loss = torch.nn.functional.cross_entropy(logits.double().reshape(-1, V), ids[1:]).item()
    out = run([flatgpt, "eval", theirs, "--data", work / "data.bin", "--seq-len", T,
                  "--dtype", "fp32", "--json"])
    ours = json.loads(out)["loss"]
    run_dir = work / (name + "-run")
    run([flatgpt, "train", "--from", theirs, "--data", work / "data.bin", "--out", run_dir, "--steps", 1,
         "--seq-len", T, "--batch", 1, "--lr", 0, "--weight-decay", 0, "--dtype", "fp32"])
    saved = sorted(run_dir.glob("step_*"))[-1]
    again = transformers.AutoModelForCausalLM.from_pretrained(saved, attn_implementation="eager").float().eval()
    with torch.no_grad():
        apart = (again(ids[:-1].reshape(8, T)).logits - logits).abs().max().item() / logits.abs().max().item()
    ok = abs(ours - loss) < 1e-5 * loss and apart < 1e-5 and type(again) is type(model)
    print(f"{name}: loss {loss:.6f}, flatgpt's {ours - loss:+.1e}; saved and loaded again {apart:.1e} apart"
          f"{'' if ok else '  DIFFERS'}", flush=True)
    return ok


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--flatgpt", default="./flatgpt")
    parser.add_argument("names", nargs="*")
    args = parser.parse_args()
    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    with tempfile.TemporaryDirectory() as work:
        results = [check(name, args.seed + i, args.flatgpt, Path(work))
                   for i, name in enumerate(args.names or golden_families.MODELS)]
    print(f"{sum(results)} of {len(results)} agree")
    sys.exit(not all(results))


if __name__ == "__main__":
    main()

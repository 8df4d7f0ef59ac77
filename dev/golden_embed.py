#!/usr/bin/env python3
"""Vectors of texts by sentence-transformers, into test/golden/eval/embed.json, for test/test_embed.cpp.

    python3 -m venv V && V/bin/pip install torch --index-url https://download.pytorch.org/whl/cpu
    V/bin/pip install sentence-transformers && V/bin/python dev/golden_embed.py

The models are those of test/golden/eval (dev/golden_eval.py). `mean2` is the first 8 numbers of the mean, not normalised.
"""
import json
import pathlib

from sentence_transformers import SentenceTransformer, models

GOLDEN = pathlib.Path("test/golden/eval")
TEXTS = ["The cat sat on the mat.", "a", "It is a truth universally acknowledged, that a single man in possession",
         "na\u00efve caf\u00e9", "def f(x): return x", "1 2 3"]
POOLINGS = {"mean": "mean", "first": "cls", "last": "lasttoken"}

found = {"texts": TEXTS}
for name in ("gpt2", "llama"):
    transformer = models.Transformer(str(GOLDEN / name))
    tokenizer = transformer.tokenizer
    tokenizer.pad_token, tokenizer.padding_side, tokenizer.chat_template = tokenizer.eos_token, "right", None
    found[name] = {}
    for ours, theirs in POOLINGS.items():
        pooling = models.Pooling(transformer.get_embedding_dimension(), theirs)
        model = SentenceTransformer(modules=[transformer, pooling], device="cpu").float()
        rows = model.encode(TEXTS, normalize_embeddings=True)
        found[name][ours] = [[float(f"{x:.8g}") for x in row] for row in rows]
        if ours == "mean":
            rows = model.encode(TEXTS, truncate_dim=8)
            found[name]["mean2"] = [[float(f"{x:.8g}") for x in row] for row in rows]
with open(GOLDEN / "embed.json", "w") as f:
    f.write("{" + ",\n".join(f"{json.dumps(k)}: {json.dumps(v)}" for k, v in found.items()) + "}\n")

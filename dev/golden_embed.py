#!/usr/bin/env python3
"""Vectors of texts by sentence-transformers, into test/golden/eval/embed.json, for test/test_embed.cpp.

    python3 -m venv V && V/bin/pip install torch --index-url https://download.pytorch.org/whl/cpu
    V/bin/pip install sentence-transformers && V/bin/python dev/golden_embed.py

The models are those of test/golden/eval (dev/golden_eval.py), and two that this script writes as sentence-transformers saves
them: bert, a tiny random BERT with a WordPiece tokenizer and max_seq_length 16; t5, a T5EncoderModel with ByT5's tokenizer
and two Dense layers. `mean2` is the first 8 numbers of the mean, not normalised.
"""
import json
import pathlib
import shutil
import string
import tempfile

import torch
import transformers
from sentence_transformers import SentenceTransformer, models

from golden_families import noisy

GOLDEN = pathlib.Path("test/golden/eval")
TEXTS = ["The cat sat on the mat.", "a", "It is a truth universally acknowledged, that a single man in possession",
         "na\u00efve caf\u00e9", "def f(x): return x", "1 2 3"]
POOLINGS = {"mean": "mean", "first": "cls", "last": "lasttoken"}



def bert():
    """A model whose vocabulary has characters and some pieces of words."""
    words = ["the", "cat", "sat", "on", "mat", "it", "is", "truth", "single", "man", "##ing", "##ed", "##ly", "uni", "##vers"]
    vocabulary = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"] + list(string.ascii_lowercase + string.digits + ".,():")
    vocabulary += ["##" + c for c in string.ascii_lowercase + string.digits] + words
    directory = tempfile.mkdtemp()
    pathlib.Path(directory + "/vocab.txt").write_text("\n".join(vocabulary) + "\n")
    tokenizer = transformers.BertTokenizerFast.from_pretrained(directory)
    config = transformers.BertConfig(vocab_size=len(vocabulary), hidden_size=32, num_hidden_layers=2, num_attention_heads=4,
                                     intermediate_size=48, max_position_embeddings=24)
    torch.manual_seed(1)
    model = transformers.BertModel(config)
    noisy(model, 1)
    model.save_pretrained(directory), tokenizer.save_pretrained(directory)
    transformer = models.Transformer(directory, max_seq_length=16)
    whole = SentenceTransformer(modules=[transformer, models.Pooling(32, "cls"), models.Normalize()], device="cpu")
    shutil.rmtree(GOLDEN / "bert", ignore_errors=True)
    whole.bfloat16().save(str(GOLDEN / "bert"))
    for name in ("README.md", "vocab.txt", ".gitattributes"):
        (GOLDEN / "bert" / name).unlink(missing_ok=True)


def t5():
    """An encoder of T5 1.1 whose vectors go through two layers."""
    directory = tempfile.mkdtemp()
    tokenizer = transformers.ByT5Tokenizer(extra_ids=0)
    config = transformers.T5Config(vocab_size=len(tokenizer), d_model=32, d_kv=8, d_ff=48, num_layers=3, num_heads=4,
                                   feed_forward_proj="gated-gelu")
    torch.manual_seed(2)
    model = transformers.T5EncoderModel(config)
    noisy(model, 2)
    model.save_pretrained(directory), tokenizer.save_pretrained(directory)
    layers = [models.Dense(32, 12, activation_function=torch.nn.Tanh()),
              models.Dense(12, 20, bias=False, activation_function=torch.nn.Identity())]
    for layer in layers:
        noisy(layer, 3)
    whole = SentenceTransformer(modules=[models.Transformer(directory, max_seq_length=48), models.Pooling(32, "mean"), *layers,
                                         models.Normalize()], device="cpu")
    shutil.rmtree(GOLDEN / "t5", ignore_errors=True)
    whole.save(str(GOLDEN / "t5"))
    for name in ("README.md", ".gitattributes"):
        (GOLDEN / "t5" / name).unlink(missing_ok=True)


bert()
t5()
found = {"texts": TEXTS}
for name in ("gpt2", "llama", "bert", "t5"):
    layers = [models.Dense.load(str(GOLDEN / name / f"{i}_Dense")) for i in (2, 3)] if name == "t5" else []
    transformer = models.Transformer(str(GOLDEN / name))
    tokenizer = transformer.tokenizer
    if name in ("gpt2", "llama"):
        tokenizer.pad_token, tokenizer.padding_side, tokenizer.chat_template = tokenizer.eos_token, "right", None
    found[name] = {}
    for ours, theirs in POOLINGS.items():
        pooling = models.Pooling(transformer.get_embedding_dimension(), theirs)
        model = SentenceTransformer(modules=[transformer, pooling, *layers], device="cpu").float()
        rows = model.encode(TEXTS, normalize_embeddings=True)
        found[name][ours] = [[float(f"{x:.8g}") for x in row] for row in rows]
        if ours == "mean":
            rows = model.encode(TEXTS, truncate_dim=8)
            found[name]["mean2"] = [[float(f"{x:.8g}") for x in row] for row in rows]
with open(GOLDEN / "embed.json", "w") as f:
    f.write("{" + ",\n".join(f"{json.dumps(k)}: {json.dumps(v)}" for k, v in found.items()) + "}\n")

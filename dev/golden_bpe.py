#!/usr/bin/env python3
"""Ids of test/golden/bpe_torture.txt by tiktoken (gpt2) and by Hugging Face's tokenizers (small vocabularies).

    pip install tiktoken tokenizers
    pip download openai-whisper==20250625 --no-deps --no-binary :all:
    dev/golden_bpe.py openai_whisper-20250625.tar.gz test/golden

The text (contractions, digits, every kind of space and line end, a dozen scripts, emoji with joiners, source code, all
of Latin-1, unassigned and private characters) has no letter younger than 2021: the libraries' Unicode versions differ.
"""
import base64
import pathlib
import struct
import sys
import tarfile

import tiktoken
import tokenizers
from tokenizers import Regex, decoders, models, pre_tokenizers, trainers

GPT2 = r"""'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"""
CL100K = (r"""(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"""
          r"""|\s*[\r\n]+|\s+(?!\S)|\s+""")


def gpt2_encoding(archive):
    with tarfile.open(archive) as tar:
        name = next(n for n in tar.getnames() if n.endswith("/assets/gpt2.tiktoken"))
        lines = tar.extractfile(name).read().splitlines()
    ranks = {base64.b64decode(token): int(rank) for token, rank in map(bytes.split, lines)}
    return tiktoken.Encoding("gpt2", pat_str=GPT2, mergeable_ranks=ranks, special_tokens={"<|endoftext|>": 50256})


def small_tokenizer(pattern, text):
    t = tokenizers.Tokenizer(models.BPE())
    if pattern == GPT2:
        t.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    else:
        t.pre_tokenizer = pre_tokenizers.Sequence([
            pre_tokenizers.Split(Regex(pattern), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    t.decoder = decoders.ByteLevel()
    t.train_from_iterator([text], trainers.BpeTrainer(
        vocab_size=600, show_progress=False, special_tokens=["<|endoftext|>", "<|pad|>"],    # they take ids 0 and 1
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet()))
    return t


def main():
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    out = pathlib.Path(sys.argv[2])
    text = (out / "bpe_torture.txt").read_bytes().decode()
    write = lambda name, ids: (out / name).write_bytes(struct.pack(f"<{len(ids)}H", *ids))
    write("bpe_gpt2.ids", gpt2_encoding(sys.argv[1]).encode_ordinary(text))
    for name, pattern in ("small_gpt2", GPT2), ("small_cl100k", CL100K):
        t = small_tokenizer(pattern, text)
        t.save(str(out / f"bpe_{name}.json"), pretty=False)
        t = tokenizers.Tokenizer.from_file(str(out / f"bpe_{name}.json"))
        write(f"bpe_{name}.ids", t.encode(text).ids)


main()

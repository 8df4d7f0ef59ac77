#!/usr/bin/env python3
"""Writes data/gpt2_merges.bin: GPT-2's 50,000 merges as pairs of little-endian uint16, merge i making token 256 + i.

    pip download openai-whisper==20250625 --no-deps --no-binary :all:
    dev/make_gpt2_merges.py openai_whisper-20250625.tar.gz data/gpt2_merges.bin

The package carries whisper/assets/gpt2.tiktoken: a line per token, its bytes in base64 and its id. A token's pair is
what is left of its bytes when only earlier merges are applied.
"""
import base64
import hashlib
import struct
import sys
import tarfile

SHA256 = "306cd27f03c1a714eca7108e03d66b7dc042abe8c258b44c199a7ed9838dd930"


def ranks_of(archive):
    with tarfile.open(archive) as tar:
        name = next(n for n in tar.getnames() if n.endswith("/assets/gpt2.tiktoken"))
        data = tar.extractfile(name).read()
    if hashlib.sha256(data).hexdigest() != SHA256:
        sys.exit(f"{archive}: {name} is not the expected file (SHA-256 {SHA256})")
    return {base64.b64decode(token): int(rank) for token, rank in map(bytes.split, data.splitlines())}


def pair_of(token, ranks):
    parts = [token[i:i + 1] for i in range(len(token))]
    while len(parts) > 2:
        rank, i = min((ranks.get(a + b, 1 << 30), i) for i, (a, b) in enumerate(zip(parts, parts[1:])))
        if rank >= ranks[token]:
            sys.exit(f"{token!r}: no pair of earlier tokens makes it")
        parts[i:i + 2] = [parts[i] + parts[i + 1]]
    return ranks[parts[0]], ranks[parts[1]]


def main():
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    ranks = ranks_of(sys.argv[1])
    tokens = sorted(ranks, key=ranks.get)
    if [ranks[t] for t in tokens] != list(range(50256)) or any(len(t) != 1 for t in tokens[:256]):
        sys.exit("expected 256 bytes and 50,000 merges with the ids 0 to 50,255")
    with open(sys.argv[2], "wb") as out:
        for token in tokens[256:]:
            out.write(struct.pack("<HH", *pair_of(token, ranks)))


main()

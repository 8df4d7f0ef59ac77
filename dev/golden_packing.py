#!/usr/bin/env python3
"""Writes test/golden/packing.txt: lengths of documents and the rows into which they are packed.

The rule (data/packing.h) is written here once more, by plain loops over a list: of the next 1000
documents the longest that fits the rest of the row, else the shortest, cropped. With --shares N it
packs N documents of log-normal lengths instead and prints the cropped share.

  python3 dev/golden_packing.py
  python3 dev/golden_packing.py --shares 100000
"""
import math
import random
import sys

BUFFER = 1000


def pack(lengths, row):
    """Returns rows of (document, tokens), and the number of tokens that are cropped."""
    buffer, after, rows, cropped = [], 0, [], 0
    pieces, free = [], row
    while True:
        while len(buffer) < BUFFER and after < len(lengths):
            buffer.append(after)
            after += 1
        if not buffer:
            return rows, cropped    # an open row is dropped
        best = None
        for k, document in enumerate(buffer):
            if lengths[document] <= free and (best is None or lengths[document] > lengths[buffer[best]]):
                best = k
        if best is None:
            best = min(range(len(buffer)), key=lambda k: lengths[buffer[k]])
        document = buffer.pop(best)
        used = min(lengths[document], free)
        cropped += lengths[document] - used
        pieces.append((document, used))
        free -= used
        if free == 0:
            rows.append(pieces)
            pieces, free = [], row


def log_normal(count, median, sigma, seed):
    draw = random.Random(seed)
    return [max(2, round(median * math.exp(sigma * draw.gauss(0, 1)))) for _ in range(count)]


def write(path):
    draw = random.Random(7)
    cases = {
        "log_normal": (129, log_normal(2600, 60, 1.0, 1)),
        "short": (33, [draw.randint(2, 12) for _ in range(1500)]),
        "long": (17, [draw.randint(17, 400) for _ in range(1100)]),
        "equal": (50, [20] * 1200),
        "few": (16, [5, 5, 6, 40, 3, 16, 2, 9]),
        "none": (100, [30, 30, 39]),
    }
    with open(path, "w") as out:
        out.write("# name, row, lengths of documents, then rows of document:tokens. dev/golden_packing.py\n")
        for name, (row, lengths) in cases.items():
            rows, cropped = pack(lengths, row)
            assert all(sum(used for _, used in pieces) == row for pieces in rows)
            out.write(f"{name} {row} {cropped}\n{' '.join(map(str, lengths))}\n")
            out.write(f"{len(rows)}\n")
            for pieces in rows:
                out.write(" ".join(f"{document}:{used}" for document, used in pieces) + "\n")


def shares(count):
    for median, sigma in [(300, 1.0), (400, 1.1), (600, 1.0), (800, 0.8), (200, 1.2)]:
        for row in (1025, 2049):
            lengths = log_normal(count, median, sigma, 3)
            rows, cropped = pack(lengths, row)
            print(f"median {median}, sigma {sigma}, mean {sum(lengths) / count:.0f}, row {row}: "
                  f"{100 * cropped / sum(lengths):.1f} % cropped, {len(rows)} rows", flush=True)


if __name__ == "__main__":
    if len(sys.argv) > 2 and sys.argv[1] == "--shares":
        shares(int(sys.argv[2]))
    else:
        write("test/golden/packing.txt")

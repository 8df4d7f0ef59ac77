#!/usr/bin/env python3
"""Plain text of the six Austen novels in Debian's r-cran-janeaustenr.

    austen.py SITE_LIBRARY/janeaustenr OUT_DIR [FILE.jsonl]

writes OUT_DIR/{emma,persuasion,...}.txt, and FILE.jsonl with a chapter a line, {"text": ...}: a model that learns from it
sees hundreds of beginnings, each of them a sentence. Title pages, headings and editors' notes are in neither.

The package keeps each novel as an R character vector, one string a printed line, in a lazy-load data base: Rdata.rdx is
a compressed, serialised list of (offset, length) into Rdata.rdb, where each piece is 4 bytes of length (big-endian) and
the compressed, serialised value. Only what that needs of R's serialisation is read here.
"""
import itertools
import json
import pathlib
import re
import struct
import sys
import zlib


class Reader:
    """R's binary serialisation, format 2 or 3, big-endian ("X")."""

    def __init__(self, data):
        self.data, self.at, self.references = data, 0, []
        if data[:2] != b"X\n":
            raise ValueError("expected R's XDR serialisation")
        self.at = 2
        version = self.integer()
        self.at += 8                          # versions of R
        if version == 3:
            n = self.integer()
            self.at += n                      # name of the encoding

    def integer(self):
        self.at += 4
        return struct.unpack_from(">i", self.data, self.at - 4)[0]

    def value(self):
        flags = self.integer()
        kind, attributes, tag = flags & 255, flags & 0x200, flags & 0x400
        if kind == 254:                       # NULL
            return None
        if kind == 255:                       # something seen before
            return self.references[(flags >> 8) - 1 if flags >> 8 else self.integer() - 1]
        if kind == 1:                         # symbol
            self.references.append(self.value())
            return self.references[-1]
        if kind == 2:                         # pairs: tag and value, then the rest
            pairs = {}
            if attributes:
                self.value()
            name = self.value() if tag else None
            pairs[name] = self.value()
            return {**pairs, **(self.value() or {})}
        if kind == 9:                         # one string
            n = self.integer()
            if n < 0:
                return None
            self.at += n
            raw = self.data[self.at - n:self.at]
            return raw.decode("latin-1" if flags >> 12 & 4 else "utf-8")
        if kind in (10, 13):                  # logical, integer
            out = [self.integer() for _ in range(self.integer())]
        elif kind in (16, 19):                # strings, list
            out = [self.value() for _ in range(self.integer())]
        else:
            raise ValueError(f"R type {kind} at byte {self.at} is not expected here")
        if attributes:
            names = self.value().get("names")
            if kind == 19 and names:
                return dict(zip(names, out))
        return out


def piece(database, offset, length):
    raw = database[offset:offset + length]
    size, = struct.unpack(">I", raw[:4])
    out = zlib.decompress(raw[4:])
    if len(out) != size:
        raise ValueError(f"expected {size} bytes at {offset}, found {len(out)}")
    return Reader(out).value()


HEADING = re.compile(r"chapter ([0-9]+|[ivxl]+)\.?", re.IGNORECASE)
# What is no part of the story: a volume's heading, the end, a row of stars, footnotes, what an
# editor says.
BETWEEN = re.compile(r"volume [ivx]+|finis|the end|\*.*|[\[(](at this point|end volume|end of volume) .*", re.IGNORECASE)
AFTER = "A NOTE ON THE TEXT"


def chapters(lines):
    """The paragraphs of each chapter, a line each: where the printed lines ended says nothing about English."""
    out = []
    for full, printed in itertools.groupby(lines, lambda line: bool(line.strip())):
        paragraph = " ".join(" ".join(printed).split())
        if HEADING.fullmatch(paragraph):
            out.append([])
        elif paragraph == AFTER:
            break
        elif full and out and not BETWEEN.fullmatch(paragraph):    # before the first heading: the title page
            # Underscores stand for italics.
            out[-1].append(paragraph.replace("_", "").replace("*", ""))
    return out


def main():
    if len(sys.argv) not in (3, 4):
        sys.exit(__doc__)
    package, out = map(pathlib.Path, sys.argv[1:3])
    gzip_or_zlib = 47
    index = zlib.decompress((package / "data/Rdata.rdx").read_bytes(), gzip_or_zlib)
    index = Reader(index).value()["variables"]
    database = (package / "data/Rdata.rdb").read_bytes()
    out.mkdir(parents=True, exist_ok=True)
    novels = {"sensesensibility", "prideprejudice", "mansfieldpark", "emma", "northangerabbey", "persuasion"}
    if not novels <= index.keys():
        sys.exit(f"austen.py: expected the novels {sorted(novels)}, found {sorted(index)}")
    documents = []
    for name in sorted(novels):
        texts = ["\n\n".join(paragraphs) for paragraphs in chapters(piece(database, *index[name]))]
        if len(texts) < 20 or not all(re.match(r'["A-Z]', text) for text in texts):
            sys.exit(f"austen.py: {name}: expected chapters that begin with a sentence, found {len(texts)}: "
                     f"{[text[:20] for text in texts]}")
        (out / f"{name}.txt").write_text("\n\n".join(texts) + "\n", encoding="utf-8")
        documents += texts
    if len(sys.argv) == 4:
        lines = "".join(json.dumps({"text": text}, ensure_ascii=False) + "\n" for text in documents)
        pathlib.Path(sys.argv[3]).write_text(lines, encoding="utf-8")


main()

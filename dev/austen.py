#!/usr/bin/env python3
"""Plain text of the six Austen novels in Debian's r-cran-janeaustenr.

    austen.py SITE_LIBRARY/janeaustenr OUT_DIR      writes OUT_DIR/{emma,persuasion,...}.txt

The package keeps each novel as an R character vector, one string a printed line, in a lazy-load data base: Rdata.rdx is
a compressed, serialised list of (offset, length) into Rdata.rdb, where each piece is 4 bytes of length (big-endian) and
the compressed, serialised value. Only what that needs of R's serialisation is read here.
"""
import itertools
import pathlib
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


def main():
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    package, out = map(pathlib.Path, sys.argv[1:])
    gzip_or_zlib = 47
    index = zlib.decompress((package / "data/Rdata.rdx").read_bytes(), gzip_or_zlib)
    index = Reader(index).value()["variables"]
    database = (package / "data/Rdata.rdb").read_bytes()
    out.mkdir(parents=True, exist_ok=True)
    novels = {"sensesensibility", "prideprejudice", "mansfieldpark", "emma", "northangerabbey", "persuasion"}
    if not novels <= index.keys():
        sys.exit(f"austen.py: expected the novels {sorted(novels)}, found {sorted(index)}")
    for name in sorted(novels):
        lines = piece(database, *index[name])
        # One line a paragraph: where the printed lines ended says nothing about English.
        paragraphs = [" ".join(words) for full, words in itertools.groupby(lines, bool) if full]
        (out / f"{name}.txt").write_text("\n\n".join(paragraphs) + "\n", encoding="utf-8")


main()

#!/usr/bin/env python3
"""Renames identifiers and moves files, in sources, tests, pages, mutants and SASS rules alike.

Usage: dev/rename.py TABLE [--dry-run] [--no-build]

A line of TABLE has fields between tabs:
  OLD   NEW   SCOPE   [NOTES]    an identifier. SCOPE: * or paths and globs between commas; path@f|g: only in the bodies
                                 of these functions, path@!f: in all but this one. NOTES: "strings" renames it within
                                 quotes, too; "!" allows that NEW is there already.
  FILE  OLD   NEW                a file, whose includes and mentions follow

All names change at once, so two may be swapped. In comments a name changes where it is written as code: in backticks,
with an underscore or capital within it, or beside :: ( . or ->. The comments that still have an old word are listed:
they are sentences, and a person rewords them. Afterwards clang-format runs, then `make` and the tests of the host.
"""
import argparse
import collections
import fnmatch
import os
import re
import subprocess
import sys

SOURCES = (".h", ".cpp", ".cu", ".cuh", ".inc")
MUTANTS = ("dev/mutants.txt", "dev/sass_mutants.txt")
IDENTIFIER = re.compile(r"[A-Za-z_]\w*")
# A comment, a string, a character (no separator of digits), or an identifier.
TOKEN = re.compile(r"""(?P<comment>//[^\n]*|/\*.*?\*/)
    |(?P<string>R"(?P<tag>[^(\s]*)\(.*?\)(?P=tag)"|"(?:\\.|[^"\\\n])*"|(?<![0-9A-Za-z])'(?:\\.|[^'\\\n])*')
    |(?P<name>[A-Za-z_]\w*)""", re.X | re.S)


def fail(text):
    sys.exit(f"rename.py: {text}")


def read_table(path):
    names, files = [], {}
    with open(path) as table:
        for number, line in enumerate(table, 1):
            fields = line.rstrip("\n").split("\t")
            if not line.strip() or line.startswith("#"):
                continue
            if len(fields) < 3:
                fail(f"{path}:{number}: expected OLD, NEW and SCOPE between tabs, found {line.strip()!r}")
            if fields[0] == "FILE":
                files[fields[1]] = fields[2]
            else:
                names.append((fields[0], fields[1], fields[2].split(","), fields[3] if len(fields) > 3 else ""))
    return names, files


def function_ranges(text, function):
    """Where the definitions of this name begin and end: functions, types, and OPERATION(...) of operations.inc."""
    ranges = []
    blank = TOKEN.sub(lambda m: m[0] if m["name"] else re.sub(r"[^\n]", " ", m[0]), text)
    for m in re.finditer(rf"\b{function}\s*\(", blank):
        depth, at = 1, m.end()
        while at < len(blank) and depth:
            depth += {"(": 1, ")": -1}.get(blank[at], 0)
            at += 1
        head = re.match(r"[^;{}=]*(?:\s*:[^;{]*\{[^}]*\}[^;{]*)*\{", blank[at:])
        if not head:
            continue
        depth, end = 1, at + head.end()
        while end < len(blank) and depth:
            depth += {"{": 1, "}": -1}.get(blank[end], 0)
            end += 1
        ranges.append((m.start(), end))
    for m in re.finditer(rf"\b(?:struct|class)\s+{function}\b[^;{{(]*\{{|\bOPERATION\(\s*{function},", blank):
        depth, end = 1, m.end() if blank[m.end() - 1] == "{" else m.start() + len("OPERATION(")
        while end < len(blank) and depth:
            depth += {"(": 1, ")": -1, "{": 1, "}": -1}.get(blank[end], 0)
            end += 1
        ranges.append((m.start(), end))
    return ranges


class Renames:
    """What a file's tokens become: the rows of the table whose scope names it."""

    def __init__(self, rows, path, text):
        self.new, self.strings, self.limits, self.allowed = {}, set(), collections.defaultdict(list), set()
        words = {m["name"] for m in TOKEN.finditer(text)}
        for old, new, scope, notes in rows:
            if text and old not in words and not ("strings" in notes and re.search(rf"\b{old}\b", text)):
                continue
            for entry in scope:
                glob, _, functions = entry.partition("@")
                if not fnmatch.fnmatch(path, glob):
                    continue
                if text and not functions and self.new.get(old, new) != new:
                    fail(f"{path}: {old} becomes {self.new[old]} and {new}: limit one row to functions")
                if functions:
                    exclude = functions.startswith("!")
                    ranges = [r for f in functions.lstrip("!").split("|") for r in function_ranges(text, f)]
                    if not ranges and text:
                        print(f"{path}: no function {functions} in which {old} could be renamed")
                    self.limits[old].append((exclude, ranges, new, functions.lstrip("!").split("|")))
                else:
                    self.new[old] = new
                if "strings" in notes:
                    self.strings.add(old)
                if "!" in notes:
                    self.allowed.add(new)

    def of(self, name, at):
        for exclude, ranges, new, _ in self.limits.get(name, ()):
            if any(a <= at < b for a, b in ranges) != exclude:
                return new
        return self.new.get(name, name)

    def of_function(self, name, function):
        """In a row of mutants, which names its function: "Model::forward"."""
        for exclude, _, new, functions in self.limits.get(name, ()):
            if (function.split("::")[-1].split("#")[0] in functions) != exclude:
                return new
        return self.new.get(name, name)


def is_code(text, begin, end):
    """Is this word of a comment written as code?"""
    word, before, after = text[begin:end], text[max(0, begin - 2):begin], text[end:end + 2]
    return (before[-1:] == "`" or after[:1] == "`" or "_" in word or re.search("[a-z0-9][A-Z]", word) is not None
            or "::" in (before, after) or after[:1] == "(" or before == "->" or after == "->"
            or (before[-1:] == "." and before[:1].isalnum()) or re.match(r"\.[a-z]", after) is not None)


def rename_source(text, renames, left, path):
    def in_comment(comment, start):
        def word(m):
            new = renames.of(m[0], start + m.start())
            if new == m[0]:
                return new
            if is_code(comment, m.start(), m.end()):
                return new
            left.append(f"{path}:{text.count(chr(10), 0, start + m.start()) + 1}: {m[0]} (now {new}): "
                        f"{comment[:110].splitlines()[0]}")
            return m[0]
        return IDENTIFIER.sub(word, comment)

    def token(m):
        if m["comment"]:
            return in_comment(m[0], m.start())
        if m["string"]:
            return IDENTIFIER.sub(lambda w: renames.of(w[0], m.start()) if w[0] in renames.strings else w[0], m[0])
        return renames.of(m[0], m.start())
    return TOKEN.sub(token, text)


def clashes(text, renames, path):
    """New names that the file has already, so that two things would get one name."""
    there = {m["name"] for m in TOKEN.finditer(text) if m["name"]}
    return [f"{path}: {old} becomes {new}, which is there already" for old, new in renames.new.items()
            if old in there and new in there and new not in renames.new and new not in renames.allowed]


def rename_row(row, rows):
    """A row of mutants: names change in its function and its change, not in its tests."""
    fields = row.split(" ;; ")
    if row.startswith("#") or len(fields) < 4:
        return row
    renames = Renames(rows, fields[0], "")
    function = fields[1]
    for i in (1, 2):
        fields[i] = IDENTIFIER.sub(lambda w: renames.of_function(w[0], function), fields[i])
    return " ;; ".join(fields)


def rename_sass(row, rows, files):
    """A row of the SASS table: the stem of a file in layers/, a kernel, numbers."""
    stem, _, rest = row.partition(" ")
    path = f"layers/{stem}.cu"
    renames = Renames(rows, path, "")
    kernel, bar, numbers = rest.partition(" | ")
    moved = files.get(path, path)[len("layers/"):-len(".cu")]
    return f"{moved} {IDENTIFIER.sub(lambda w: renames.of(w[0], -1), kernel)}{bar}{numbers}"


def moved_includes(text, path, files, tracked):
    """#include lines of a file that was at `path`, by where the files lie now."""
    here = os.path.dirname(files.get(path, path))

    def line(m):
        beside = os.path.normpath(os.path.join(os.path.dirname(path), m[2]))
        target = beside if beside in tracked else m[2]
        if target not in tracked:
            return m[0]
        now = files.get(target, target)
        sibling = beside == target and os.path.dirname(now) == here
        return f'{m[1]}"{os.path.basename(now) if sibling else now}"'
    return re.sub(r'^(\s*#\s*include\s+)"([^"]+)"', line, text, flags=re.M)


def moved_mentions(text, path, files):
    """Paths in comments, pages, scripts and rows; and the name that a file's first line has."""
    for old, new in files.items():
        if old in text:
            text = re.sub(rf"(?<![\w/.-]){re.escape(old)}(?![\w-])", new, text)
    if path in files:
        text = re.sub(rf"\A(// |# ){re.escape(os.path.basename(path))}\b", rf"\1{os.path.basename(files[path])}", text)
    return text


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("table")
    parser.add_argument("--dry-run", action="store_true", help="say what would change and what clashes")
    parser.add_argument("--no-build", action="store_true", help="neither make nor tests afterwards")
    options = parser.parse_args()
    os.chdir(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    rows, files = read_table(options.table)
    tracked = set(subprocess.check_output(["git", "ls-files"], text=True).splitlines())
    for old, new in files.items():
        if old not in tracked or new in tracked:
            fail(f"{old} -> {new}: " + ("no such file" if old not in tracked else "the new one exists"))

    changed, left, wrong = {}, [], []
    for path in sorted(tracked):
        if path.startswith("test/golden/") or path.startswith("dev/results/") or path.endswith(".bin"):
            continue
        with open(path, encoding="utf-8") as f:
            before = text = f.read()
        if path.endswith(SOURCES):
            renames = Renames(rows, path, text)
            wrong += clashes(text, renames, path)
            text = moved_includes(rename_source(text, renames, left, path), path, files, tracked)
        elif path in MUTANTS:
            text = "".join(rename_row(row, rows) for row in text.splitlines(keepends=True))
        elif path == "dev/sass.txt":
            lines = text.splitlines(keepends=True)
            text = "".join(rename_sass(row, rows, files) if " | " in row and row[0] != "#" else row for row in lines)
        elif path.endswith((".md", ".txt")):
            everywhere = {old: new for old, new, scope, _ in rows if scope == ["*"]}
            text = re.sub(r"`[^`\n]+`" if path.endswith(".md") else r"[^\n]+",
                          lambda m: IDENTIFIER.sub(lambda w: everywhere.get(w[0], w[0]), m[0]), text)
        text = moved_mentions(text, path, files)
        if text != before:
            changed[path] = text
    for line in wrong + left:
        print(line)
    print(f"{len(rows)} names, {len(files)} moves: {len(changed)} files change; {len(left)} comments to reword; "
          f"{len(wrong)} clashes")
    if wrong:
        fail("two things would have one name: give another, limit the scope, or allow it by !")
    if options.dry_run:
        return
    for path, text in changed.items():
        with open(path, "w", encoding="utf-8") as f:
            f.write(text)
    for old, new in files.items():
        os.makedirs(os.path.dirname(new) or ".", exist_ok=True)
        subprocess.check_call(["git", "mv", old, new])
    sources = [files.get(p, p) for p in changed if p.endswith(SOURCES) and not p.endswith(".inc")]
    if sources:
        subprocess.check_call(["clang-format", "-i", *sources])
    if not options.no_build:
        subprocess.check_call("make flatgpt build/test_all NVCC= && FLATGPT_EMU=none build/test_all", shell=True)


if __name__ == "__main__":
    main()

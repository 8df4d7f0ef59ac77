"""Breaks a kernel on purpose for each rule of sass.py, and demands that this rule fails.   make sass ARGS=--mutants"""
import collections
import os
import shutil
import subprocess

import sass
import sass_read

ROWS = os.path.join(sass.ROOT, "dev", "sass_mutants.txt")


def failing(nvcc, version, launches, tree, source):
    """The rules that `source`, compiled in `tree` for sm_90a, does not keep; None: it does not compile."""
    cubin = os.path.join(tree, source.removesuffix(".cu") + ".cubin")
    with open(cubin + ".log", "w") as log:
        if subprocess.run([nvcc, "-std=c++20", "-O3", "-lineinfo", "-I.", "-gencode", "arch=compute_90a,code=sm_90a",
                           "-cubin", "-x", "cu", source, "-o", cubin], cwd=tree, stdout=log, stderr=log).returncode:
            return None
    kernels, (table_version, known) = sass.read([cubin], None, launches), sass.read_table()
    found = set(sass.check(kernels, say=False)[1]) | {"ptxas's remarks" for _ in sass.remarks([cubin])}
    if table_version == version:
        found |= {"the table" for k in kernels if known[f"{k.file} {k.name}"].get(k.arch) != sass.cell(k)}
    return found


def run(nvcc, version, launches):
    """Whether a mutant is not caught. Rows of dev/sass_mutants.txt: file ;; sed expression ;; what is compiled, for
    sm_90a ;; the rule that must fail."""
    counts, unbroken = collections.Counter(), {}
    for row in open(ROWS):
        file, change, source, rule = row.rstrip("\n").split(" ;; ")
        tree = f"{sass_read.BUILD}/mutants"
        shutil.rmtree(tree, ignore_errors=True)
        for room in ("layers", "base"):
            shutil.copytree(os.path.join(sass.ROOT, room), os.path.join(tree, room))
        if source not in unbroken:
            unbroken[source] = failing(nvcc, version, launches, tree, source)
        before = open(os.path.join(tree, file)).read()
        subprocess.run(["sed", "-i", change, os.path.join(tree, file)], check=True)
        gone = before == open(os.path.join(tree, file)).read()
        found = None if gone else failing(nvcc, version, launches, tree, source)
        verdict = ("FAILED   (the line to break is gone)" if gone else
                   "FAILED   (nvcc refuses it)" if found is None else
                   "skipped " if rule == "the table" and sass.read_table()[0] != version else
                   "FAILED   (unbroken, it fails, too)" if unbroken[source] is None or rule in unbroken[source] else
                   "caught  " if rule in found else "SURVIVED")
        print(f"{verdict} {file}: {change}", flush=True)
        counts[verdict.strip() if verdict in ("caught  ", "skipped ") else "failed"] += 1
    print(f"\n{counts['caught']} passed, {counts['failed']} failed, {counts['skipped']} skipped")
    return counts["failed"] > 0

"""Breaks a kernel on purpose for each rule of sass.py, and demands that this rule fails.   make sass ARGS=--mutants"""
import collections
import concurrent.futures
import os
import shutil
import subprocess

import sass
import sass_read

ROWS = os.path.join(sass.ROOT, "dev", "sass_mutants.txt")


def tree_of(name):
    """A copy of what kernels are compiled from."""
    tree = f"{sass_read.BUILD}/mutants/{name}"
    shutil.rmtree(tree, ignore_errors=True)
    for room in ("layers", "base"):
        shutil.copytree(os.path.join(sass.ROOT, room), os.path.join(tree, room))
    return tree


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


def run(nvcc, version, launches, k, n):
    """Whether a mutant is not caught. Rows of dev/sass_mutants.txt: file ;; sed expression ;; what is compiled, for
    sm_90a ;; the rule that must fail. Of each n rows one is tried."""
    rows = [line.rstrip("\n").split(" ;; ") for line in open(ROWS)][k % n::n]

    def try_row(number, file, change, source, rule):
        tree = tree_of(number)
        path = os.path.join(tree, file)
        before = open(path).read()
        subprocess.run(["sed", "-i", change, path], check=True)
        if before == open(path).read():
            return "FAILED   (the line to break is gone)"
        if rule == "the table" and sass.read_table()[0] != version:
            return "skipped "
        found = failing(nvcc, version, launches, tree, source)
        if found is None:
            return "FAILED   (nvcc refuses it)"
        unbroken = sound[source].result()
        if unbroken is None or rule in unbroken:
            return "FAILED   (unbroken, it fails, too)"
        return "caught  " if rule in found else "SURVIVED"

    counts = collections.Counter()
    pool = concurrent.futures.ThreadPoolExecutor(len(os.sched_getaffinity(0)))
    try:
        sound = {source: pool.submit(failing, nvcc, version, launches, tree_of(os.path.basename(source)), source)
                 for source in dict.fromkeys(row[2] for row in rows)}
        verdicts = [pool.submit(try_row, number, *row) for number, row in enumerate(rows)]
        for (file, change, *_), verdict in zip(rows, map(concurrent.futures.Future.result, verdicts)):
            print(f"{verdict} {file}: {change}", flush=True)
            counts[verdict.strip() if verdict in ("caught  ", "skipped ") else "failed"] += 1
    finally:
        pool.shutdown(cancel_futures=True)
    print(f"\n{counts['caught']} passed, {counts['failed']} failed, {counts['skipped']} skipped")
    return counts["failed"] > 0

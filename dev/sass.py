#!/usr/bin/env python3
"""What nvcc has made of the kernels, held to what they claim.   make sass [ARGS="--write | --mutants[=K/N] | NAME..."]

Reads the objects that `make` compiles with nvcc, for each architecture: what a kernel takes (registers, stack, shared
memory) and its instructions. No GPU is needed.

dev/sass.txt is the table of what every kernel takes and holds, for the nvcc that its first line names. A change of it
is a change to be read: `make sass ARGS=--write` writes it anew. RULES below are claims that hold for any nvcc.
--mutants breaks a kernel for every rule (dev/sass_mutants.txt), and demands that this rule fails; K/N: only each N-th
of these, from the K-th on.
NAME: only kernels whose names contain it; then each one's loops are shown.

The last line counts each rule of each kernel and each row of the table. Without nvcc, or where its tools cuobjdump and
nvdisasm are neither there nor to be had from PyPI, everything is skipped, and this is said.
"""
import argparse
import collections
import os
import re
import sys

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from sass_read import ROOT, find_tools, launches_of_tests, output, read, shortest_round    # noqa: E402

TABLE = os.path.join(ROOT, "dev", "sass.txt")


# ---- the table -----------------------------------------------------------------------------------

def cell(k):
    """What a kernel takes on one architecture, and how much of what it holds; zeros are left out."""
    launch, warps = k.occupancy()
    parts = [f"{k.registers}r", f"{launch.threads}x" if launch else "?x", f"{warps}w"]
    for letter, n in (("m", k.shared), ("d", launch.shared if launch else 0), ("s", k.stack),
                      ("l", k.count("LDL|STL")), ("b", k.count("BAR")), ("f", k.count("MEMBAR")),
                      ("v", k.count(r"(LDG|STG)\S*\.128")), ("t", k.count("HGMMA|HMMA"))):
        if n:
            parts.append(f"{n}{letter}")
    return " ".join(parts)


def table_of(kernels):
    """{file and name: {architecture: cell}}"""
    rows = collections.defaultdict(dict)
    for k in kernels:
        rows[f"{k.file} {k.name}"][k.arch] = cell(k)
    return rows


def write_table(rows, version, archs):
    with open(TABLE, "w") as f:
        f.write(f"""# {version}. What each kernel takes and holds, by architecture; written by `make sass ARGS=--write`.
# r registers   x threads of a block, d bytes of dynamic shared memory: in the tests, of several
# launches the one that leaves fewest warps; ? no test launches it   w warps that an SM holds then
# m bytes of static shared memory   s bytes of stack   Instructions: l local memory   b barriers
# f fences   v 16-byte accesses to global memory   t tensor core products
# One column an architecture ({' | '.join(archs)}); = as the one before.
""")
        for name, cells in sorted(rows.items()):
            columns, before = [], None
            for arch in archs:
                now = cells.get(arch, "-")
                columns.append("=" if now == before else now)
                before = now
            f.write(f"{name} | {' | '.join(columns)}\n")


def read_table():
    """The version of the table, and its rows."""
    with open(TABLE) as f:
        lines = f.read().splitlines()
    head = [line for line in lines if line.startswith("#")]
    archs = re.search(r"\((.*)\)", head[-1])[1].split(" | ")
    rows = collections.defaultdict(dict)
    for line in lines[len(head):]:
        name, *columns = line.split(" | ")
        for i, arch in enumerate(archs):
            columns[i] = columns[i - 1] if columns[i] == "=" else columns[i]
            if columns[i] != "-":
                rows[name][arch] = columns[i]
    return lines[0].split(". ")[0].lstrip("# "), rows


# ---- rules ---------------------------------------------------------------------------------------
# A rule is a function of a kernel that gives None, or says what is wrong.

# Kernels that may use the stack in their loops, with the bytes that they may take, and what for.
STACK = [
    (r"attention/sm80\S* \w+<\d+, (true, )+", 144, "caps, biases, spans or dropout"),
    (r"attention/simt_backward dq_kernel<\w+, 64, true, true>", 328, "also the spans of a two-sided pattern"),
    (r"attention/simt\S* ", 248, "streams of keys, addresses of eight queries' biases, and dropout's function"),
    (r"attention/cached\w* \w+<(bf16, fp8|float, bf16), 1, 32", 24, "heads wider than 128"),
    (r"attention/cached decode_kernel<bf16, bf16, 4, 8, 8, 4, true, As", 120, "four queries with caps in 168 registers"),
    (r"attention/recurrent features_backward_kernel", 24, "addresses of rows that its loop over channels needs"),
    (r"attention/sm90_backward \w+<(32|64), true>", 16, "caps and slopes: three registers a tile"),
    (r"rope rope_backward_\w+<.*QkNorm\)[12]", 8, "QK-norm: a register"),
]
# Others keep it out of their inner loops: an address or two that are needed again at the end.
STACK_OUTSIDE = 24


def launched(k):
    if not k.launches:    # by name: kernels of one name in two files count as one
        return "no test launches it"


def no_local_memory(k):
    listed = next((n for pattern, n, _ in STACK if re.match(pattern, f"{k.file} {k.name}")), 0)
    if k.stack > (listed or STACK_OUTSIDE):
        return f"{k.stack} bytes of stack, {listed or STACK_OUTSIDE} are allowed"
    for loop in k.inner_loops():
        if not listed and (n := k.count("LDL|STL", loop)):
            return f"{n} accesses to local memory in the loop at {loop[0].address:#x}"


def main_loop(k):
    """A tile that needs no mask, in attention's loop over tiles."""
    loop = k.loop_with("HGMMA", "MUFU.EX2") or k.loop_with("HMMA", "MUFU.EX2")
    return shortest_round(loop) if loop else []


def behind_first_wait(loop):
    """The loop's code between its first wait for wgmma and the next: what runs while a product does."""
    waits = [n for n, i in enumerate(loop) if i.op.startswith("WARPGROUP.DEPBAR")]
    return loop[waits[0]:waits[1]] if len(waits) > 1 else []


def size_of(k):
    return int(re.search(r"<(\d+)", k.name)[1])


def forward_keys(HS):
    """Keys of a tile."""
    return 128 if HS <= 128 else 112 if HS <= 192 else 80


def softmax_overlaps(k):
    """While O += P v runs, a thread computes an exponential for every two keys, and two for its rows' old maxima."""
    n, wanted = k.count("MUFU.EX2", behind_first_wait(main_loop(k))), forward_keys(size_of(k)) // 2 - 4
    if n < wanted:
        return f"{n} exponentials between the first two waits of the main loop, expected at least {wanted}"


def backward_rows(HS):
    """Queries of a tile."""
    return 128 if HS <= 64 else 64


def probabilities_overlap(k):
    """All exponentials that a thread computes of a query tile come before dy v^T is waited for."""
    wanted = backward_rows(size_of(k)) // 2 if size_of(k) <= 128 else 16
    n = k.count("MUFU.EX2", behind_first_wait(main_loop(k)))
    if n < wanted:
        return f"{n} exponentials between the first two waits of the main loop, expected {wanted}"


def products_in_loop(expected):
    def check(k):
        loop, size = main_loop(k), size_of(k)
        n, waits = k.count("HGMMA", loop), k.count("WARPGROUP.DEPBAR", loop)
        if (n, waits) != expected(size):
            return f"{n} HGMMA and {waits} waits in the main loop, expected %d and %d" % expected(size)
    return check


def forward_products(HS):
    """q k^T by 16 channels and P v by 16 of a tile's keys; a wait for each."""
    return HS // 16 + forward_keys(HS) // 16, 2


def backward_products(HS):
    """q k^T and dy v^T by 16 channels, P^T dy and dS^T q by 16 of M queries, dS k by 16 of 128 keys or of 64."""
    M, keys, waits = backward_rows(HS), *((128, 4) if HS <= 128 else (64, 5))
    return 2 * HS // 16 + 2 * M // 16 + keys // 16, waits


def no_moves_to_uniform(k):
    """The warpgroup's index is uniform for the compiler, so descriptors are computed in uniform registers."""
    if not (loop := main_loop(k)):
        return "no loop over tiles"
    if n := k.count("R2UR", loop):
        return f"{n} R2UR in the main loop: descriptors come from a thread's registers"


# Kernels that may have fences, and how many.
FENCES = [
    (r"attention/cached\w* decode_kernel", 2),          # the last block of a head sees what the others wrote
    (r"attention/sm90_backward backward_kernel", 4),    # dS and dq for the async proxy; dq's turn passes on (2)
    (r"attention/sm90_backward_large_head backward_kernel", 5),    # P, too
]


def no_other_fences(k):
    allowed = next((n for pattern, n in FENCES if re.match(pattern, f"{k.file} {k.name}")), 0)
    if (n := k.count("MEMBAR")) > allowed:
        return f"{n} MEMBAR, {allowed} allowed"


def wide(k):
    """Kernels whose template names a width of 16 bytes move as many at once."""
    if not k.count(r"LDG\S*\.128|LDGSTS\S*\.128"):
        return "no load of 16 bytes"


def barriers(most):
    """Barriers of the block in one round of the main loop."""
    def check(k):
        if not (loop := main_loop(k)):
            return "no loop over tiles"
        if (n := k.count("BAR", loop)) > most:
            return f"{n} barriers in the main loop, {most} expected"
    return check


def overlaps(op, least):
    """It waits once for the kernel in front. Only then it lets the next one start, and writes; before, it fetches."""
    def check(k):
        waits, starts = ([n for n, i in enumerate(k.code) if i.op.startswith(op)] for op in ("ACQBULK", "PREEXIT"))
        if len(waits) != 1 or len(starts) != 1 or starts < waits:
            return f"{len(waits)} ACQBULK and {len(starts)} PREEXIT, expected one, and one behind it"
        before = k.code[:waits[0]]
        if n := k.count("STG|RED|ATOM", before):
            return f"{n} writes before the wait for the kernel in front"
        if (n := k.count(op, before)) < least:
            return f"{n} {op} before the wait for the kernel in front, expected {least}"
    return check


WGMMA, MMA = r"attention/sm90\S* (forward|backward)_kernel", r"attention/sm80 forward_kernel<\d+, false, false, false>"
# Name; kernels, by file and name; architectures; the check.
RULES = [
    ("launched by a test", r"(?!cuda any_kernel)", "sm_90a", launched),    # any_kernel is only asked about
    ("no local memory", "", "", no_local_memory),
    ("no other fences", "", "", no_other_fences),
    ("16 bytes a thread", r"(?!attention/cached|router)\S+ \w+<(bf16, 8|float, 4)\b(?!, \w+ByPosition)", "", wide),
    ("16 bytes a thread", r"attention/(sm80\S*|sm90_backward\w* (prepare|finish))|optimizer/update (update|momentum|squares)_kernel(?!<1>)|"
                          r"matmul/experts tensor_kernel|attention/cached\w* \w+<(bf16, bf16|float, float), \d, \d+, [84]", "",
     wide),
    ("overlaps the kernel in front", r"(matmul/linear gemv|matmul/norm_linear normed)_kernel", "sm_90a", overlaps("LDG", 4)),
    ("overlaps the kernel in front", r"attention/cached\w* decode_kernel", "sm_90a", overlaps("CCTL.E.PF2", 2)),
    ("overlaps the kernel in front", r"(norm norm_forward|embedding embed)", "sm_90a", overlaps("LDG", 0)),
    ("the softmax overlaps P v", r"attention/sm90 forward_kernel", "sm_90a", softmax_overlaps),
    ("probabilities overlap dy v^T", r"attention/sm90_backward\w* backward_kernel<\d+, false>", "sm_90a",
     probabilities_overlap),
    ("products of a tile", r"attention/sm90 forward_kernel", "sm_90a", products_in_loop(forward_products)),
    ("products of a tile", r"attention/sm90_backward\w* backward_kernel", "sm_90a",
     products_in_loop(backward_products)),
    ("descriptors are uniform", WGMMA, "sm_90a", no_moves_to_uniform),
    ("barriers of a tile", r"attention/sm90 forward_kernel", "sm_90a", barriers(2)),
    ("barriers of a tile", r"attention/sm90_backward backward_kernel", "sm_90a", barriers(3)),
    ("barriers of a tile", r"attention/sm90_backward_large_head backward_kernel", "sm_90a", barriers(4)),
    ("barriers of a tile", MMA, "", barriers(2)),
]


def check(kernels, say=True):
    """(passed, names of the rules that failed)"""
    passed, failed = 0, []
    archs = {k.arch for k in kernels}
    for name, pattern, arch, rule in RULES:
        matching = [k for k in kernels if re.match(pattern, f"{k.file} {k.name}") and k.arch.startswith(arch)]
        if say and not matching and (not arch or arch in archs):
            print(f"FAILED {name}: no kernel is called {pattern}")
            failed.append(name)
        for k in matching:
            wrong = rule(k)
            passed += not wrong
            if wrong:
                failed.append(name)
                if say:
                    print(f"FAILED {k}: {name}: {wrong}")
    return passed, failed


# ---- what is asked for ---------------------------------------------------------------------------

def remarks(objects):
    """ptxas's remarks that products by warpgroup wait for each other (C75xx). The build keeps them beside an object."""
    logs = [o + ".log" for o in objects]
    return [f"{log} is missing: make clean" for log in logs if not os.path.exists(log)] + [
        f"{log}: {line.strip()}" for log in logs if os.path.exists(log) for line in open(log)
        if re.search(r"\bC75\d\d\b", line)]


def compare(rows, version):
    """(passed, failed, skipped): each row of the table against what is now, for the architectures that both have."""
    before, known = read_table()
    if before != version:
        print(f"dev/sass.txt is of {before}, this is {version}: only rules are checked")
        return 0, 0, len(known)
    archs, failed = set().union(*rows.values()) & set().union(*known.values()), 0
    for name in sorted(set(rows) | set(known)):
        for arch in sorted((set(rows[name]) | set(known[name])) & archs):
            now, then = rows[name].get(arch, "nothing"), known[name].get(arch, "nothing")
            if now != then:
                print(f"FAILED {name} {arch}: {now}, the table has {then}")
                failed += 1
    if failed:
        print("If these changes are meant: make sass ARGS=--write, and commit dev/sass.txt")
    return len(rows) - min(failed, len(rows)), failed, 0


def show(kernels):
    for k in kernels:
        print(f"\n{k}: {cell(k)}")
        for loop in k.loops():
            ops = collections.Counter(i.op.split(".")[0] for i in loop)
            print(f"  {loop[0].address:#6x} to {loop[-1].address:#6x}, {len(loop)}: " +
                  " ".join(f"{n} {op}" for op, n in ops.most_common(14)))


def part(text):
    if not re.fullmatch(r"\d+/[1-9]\d*", text):
        raise argparse.ArgumentTypeError(f"expected K/N, such as 0/4, found {text}")
    return tuple(map(int, text.split("/")))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true", help="write dev/sass.txt anew")
    parser.add_argument("--mutants", nargs="?", const=(0, 1), type=part, metavar="K/N", help="break rules on purpose")
    parser.add_argument("--objects", nargs="*", default=[], help="what make has compiled")
    parser.add_argument("--emulated", default="build/emu", help="the folder with make's test_cuda")
    parser.add_argument("names", nargs="*", help="show only the kernels whose names contain one of these")
    a = parser.parse_args()
    nvcc = find_tools()
    version = "nvcc " + re.search(r"V([\d.]+)", output(nvcc, "--version"))[1]
    launches = launches_of_tests(os.path.join(a.emulated, "test_cuda"))
    if a.mutants:
        import sass_mutants
        return sass_mutants.run(nvcc, version, launches, *a.mutants)
    kernels = read(a.objects, None, launches)
    if a.names:
        return show([k for k in kernels if any(n in str(k) for n in a.names)])
    rows = table_of(kernels)
    if a.write:
        archs = sorted({k.arch for k in kernels}, key=lambda arch: int(re.search(r"\d+", arch)[0]))
        if missing := set().union(*read_table()[1].values()) - set(archs):
            sys.exit(f"dev/sass.txt has {', '.join(sorted(missing))}, too; these objects have {', '.join(archs)} "
                     "alone: run it without ARCH")
        write_table(rows, version, archs)
    passed, wrong = check(kernels)
    same, changed, skipped = compare(rows, version)
    serial = remarks(a.objects)
    print("".join(f"FAILED {line}\n" for line in serial), end="")
    failed = len(wrong) + changed + len(serial)
    print(f"\n{passed + same} passed, {failed} failed, {skipped} skipped")
    return failed > 0


if __name__ == "__main__":
    sys.exit(main())

#!/usr/bin/env python3
"""What nvcc has made of the kernels, held to what they claim.   make sass [ARGS="--write | --mutants | NAME..."]

Reads the objects that `make` compiles with nvcc, for each architecture: what a kernel takes (registers, stack, shared
memory) and its instructions. No GPU is needed.

dev/sass.txt is the table of what every kernel takes and holds, for the nvcc that its first line names. A change of it
is a change to be read: `make sass ARGS=--write` writes it anew. RULES below are claims that hold for any nvcc.
--mutants breaks a kernel for every rule (dev/sass_mutants.txt), and demands that this rule fails.
NAME: only kernels whose names contain it; then each one's loops are shown.

The last line counts each rule of each kernel and each row of the table. Without nvcc, or where its tools cuobjdump and
nvdisasm are neither there nor to be had from PyPI, everything is skipped, and this is said.
"""
import argparse
import collections
import concurrent.futures
import glob
import os
import re
import shutil
import subprocess
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
TABLE = os.path.join(ROOT, "dev", "sass.txt")
BUILD = os.path.join(ROOT, "build", "sass")
# Warps that an SM holds, for each architecture; all have 65536 registers, given to warps 256 at a time.
WARPS = {"sm_80": 64, "sm_89": 48, "sm_90a": 64, "sm_100": 64}


def skip(why):
    print(f"kernels are not read: {why}\n\n0 passed, 0 failed, 1 skipped")
    sys.exit(0)


# ---- reading ---------------------------------------------------------------------------------------------------------

def find_tools():
    """nvcc. Puts cuobjdump and nvdisasm on the PATH: the toolkit's, or those from PyPI, which are fetched once."""
    nvcc = shutil.which(os.environ.get("NVCC", "nvcc")) or shutil.which("nvcc", path="/usr/local/cuda/bin")
    if not nvcc or os.environ.get("NVCC") == "":    # make NVCC= is a build without
        skip("no nvcc here, so there is nothing to read")
    for attempt in range(2):
        places = [os.path.dirname(os.path.realpath(nvcc)), *glob.glob(f"{BUILD}/tools/nvidia/*/bin")]
        os.environ["PATH"] = os.pathsep.join([*places, os.environ.get("PATH", "")])
        if shutil.which("cuobjdump") and shutil.which("nvdisasm"):
            return nvcc
        if attempt == 0:
            subprocess.run([sys.executable, "-m", "pip", "install", "--quiet", "--retries", "0", "--timeout", "10",
                            "--disable-pip-version-check", "--target", f"{BUILD}/tools", *(f"nvidia-cuda-{tool}>=13"
                            for tool in ("cuobjdump", "nvdisasm"))], check=False)
    skip("cuobjdump and nvdisasm are missing, and pip could not fetch nvidia-cuda-cuobjdump and nvidia-cuda-nvdisasm; "
         "they are part of the CUDA toolkit")


Instruction = collections.namedtuple("Instruction", "address predicate op operands")


def branch(i):
    """(the address that it may go to, whether it always does); (None, False): no branch."""
    to = re.search(r"0x([0-9a-f]+)$", i.operands) if i.op in ("BRA", "BRA.U") else None
    return (int(to[1], 16), not i.predicate and i.operands == to[0]) if to else (None, False)


class Kernel:
    def __init__(self, file, arch, name):
        self.file, self.arch, self.name = file, arch, name
        self.registers = self.stack = self.shared = 0
        self.code = []

    def __str__(self):
        return f"{self.file} {self.name} {self.arch}"

    def count(self, pattern, code=None):
        """Instructions whose name begins so, such as LDG or HGMMA."""
        return sum(1 for i in (self.code if code is None else code) if re.match(pattern, i.op))

    def warps(self):
        """How many warps of an SM its registers allow."""
        each = -(-max(self.registers, 1) * 32 // 256) * 256
        return min(WARPS.get(self.arch, 64), 65536 // each // 4 * 4)

    def loops(self):
        """Code between a branch backwards and its target: the innermost first. Loops of a few instructions that wait
        for a barrier are left out."""
        found = []
        for end, i in enumerate(self.code):
            target, _ = branch(i)
            if target is not None and target <= i.address:
                begin = next(n for n, j in enumerate(self.code) if j.address >= target)
                # A wait's second attempt lies behind the kernel's end and jumps back.
                if end - begin > 8 and not any(j.op == "EXIT" and not j.predicate for j in self.code[begin:end]):
                    found.append(self.code[begin:end + 1])
        return sorted(found, key=len)

    def inner_loops(self):
        """Loops that hold no other loop."""
        inner = []
        for loop in self.loops():
            within = range(loop[0].address, loop[-1].address)
            if not any(other[0].address in within for other in inner):
                inner.append(loop)
        return inner

    def loop_with(self, *ops):
        """The smallest loop that has all of these."""
        return next((loop for loop in self.loops() if all(self.count(op, loop) for op in ops)), [])


def short(name):
    """A demangled name without namespaces, return type and arguments: forward_kernel<64, false>."""
    depth, end = 0, len(name)
    for at, c in enumerate(name):    # the arguments begin at the last ( outside <>
        depth += (c == "<") - (c == ">")
        if c == "(" and depth == 0 and not name.startswith("(anonymous namespace)", at):
            end = at
            break
    name = re.sub(r"\(anonymous namespace\)::|_GLOBAL__N__\w+::|\bsm90::", "", name[:end])
    return re.sub(r"^(void|int|float) ", "", name)


def output(*command):
    return subprocess.run(command, check=True, text=True, stdout=subprocess.PIPE).stdout


def read_object(o, arch):
    """The kernels of an object or a cubin, whose path names their file in layers/."""
    only = ["-arch", arch] if arch else []
    file = re.sub(r"^.*?layers/|\.cu\.o$|\.cubin$", "", o)
    usage, sass = (output("cuobjdump", *only, what, o) for what in ("-res-usage", "-sass"))
    symbols = sorted(set(re.findall(r"^\s*Function (\S+):$", usage, re.M)))
    names = dict(zip(symbols, map(short, output("c++filt", *symbols).splitlines())))
    found, arch = {}, ""
    for line in sass.splitlines():
        if m := re.match(r"\s*code for (sm_\w+)", line):
            arch = m[1]
        elif m := re.match(r"\s*Function : (\S+)", line):
            kernel = found[arch, m[1]] = Kernel(file, arch, names[m[1]])
        elif m := re.match(r"\s*/\*([0-9a-f]{4,})\*/\s+(?:@(!?U?P\w+)\s+)?([A-Z]\S*)\s*(.*?)\s*;", line):
            kernel.code.append(Instruction(int(m[1], 16), m[2] or "", m[3], m[4]))
    for line in usage.splitlines():    # of a cubin it names no architecture: then there is but one
        if m := re.match(r"arch = (sm_\w+)", line):
            arch = m[1]
        elif m := re.match(r"\s*Function (\S+):$", line):
            kernel = found[arch, m[1]]
        elif m := re.match(r"\s*REG:(\d+) STACK:(\d+) SHARED:(\d+)", line):
            kernel.registers, kernel.stack, kernel.shared = int(m[1]), int(m[2]), int(m[3])
    return list(found.values())


def read(objects, arch=None):
    """All kernels of these objects or cubins, or those of one architecture."""
    objects = sorted(objects, key=os.path.getsize, reverse=True)    # the longest first
    with concurrent.futures.ProcessPoolExecutor() as pool:
        kernels = [k for some in pool.map(read_object, objects, [arch] * len(objects)) for k in some]
    return sorted(kernels, key=lambda k: (k.file, k.name, k.arch))


# ---- the table -------------------------------------------------------------------------------------------------------

def cell(k):
    """What a kernel takes on one architecture, and how much of what it holds; zeros are left out."""
    parts = [f"{k.registers}r", f"{k.warps()}w"]
    for letter, n in (("m", k.shared), ("s", k.stack), ("l", k.count("LDL|STL")), ("b", k.count("BAR")),
                      ("f", k.count("MEMBAR")), ("v", k.count(r"(LDG|STG)\S*\.128")), ("t", k.count("HGMMA|HMMA"))):
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
# r registers   w warps of an SM that they allow   m bytes of static shared memory   s bytes of stack
# Instructions: l local memory   b barriers   f fences   v 16-byte accesses to global memory   t tensor core products
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
    archs = re.search(r"\((.*)\)", lines[3])[1].split(" | ")
    rows = collections.defaultdict(dict)
    for line in lines[4:]:
        name, *columns = line.split(" | ")
        for i, arch in enumerate(archs):
            columns[i] = columns[i - 1] if columns[i] == "=" else columns[i]
            if columns[i] != "-":
                rows[name][arch] = columns[i]
    return lines[0].split(". ")[0].lstrip("# "), rows


# ---- rules -----------------------------------------------------------------------------------------------------------
# A rule is a function of a kernel that gives None, or says what is wrong.

# Kernels that may use the stack in their loops, with the bytes that they may take, and what for.
STACK = [
    (r"attention/sm80\S* \w+<\d+, (true, )+", 136, "caps, slopes, spans or dropout"),
    (r"attention/plain\S* ", 200, "streams of keys, and dropout's function"),
    (r"attention/cached \w+<bf16, fp8, 1, 32", 16, "heads wider than 128"),
    (r"attention/sm90_backward \w+<(32|64), true>", 16, "caps and slopes: three registers a tile"),
    (r"rope turn_backward_\w+<.*Normed\)[12]", 8, "QK-norm: a register"),
]
# Others keep it out of their inner loops: an address or two that are needed again at the end.
STACK_OUTSIDE = 24


def no_local_memory(k):
    listed = next((n for pattern, n, _ in STACK if re.match(pattern, f"{k.file} {k.name}")), 0)
    if k.stack > (listed or STACK_OUTSIDE):
        return f"{k.stack} bytes of stack, {listed or STACK_OUTSIDE} are allowed"
    for loop in k.inner_loops():
        if not listed and (n := k.count("LDL|STL", loop)):
            return f"{n} accesses to local memory in the loop at {loop[0].address:#x}"


def shortest_round(loop):
    """The instructions of the loop's shortest way round: a tile that needs no mask."""
    index = {i.address: n for n, i in enumerate(loop)}
    best = {0: (0, None)}
    for n, i in enumerate(loop):    # a branch forwards skips; no other loop within is followed
        if n not in best:
            continue
        target, always = branch(i)
        ways = [index.get(target)] + ([] if always else [n + 1])
        for way in ways:
            if way is not None and way > n and (way not in best or best[n][0] + 1 < best[way][0]):
                best[way] = (best[n][0] + 1, n)
    way, at = [], len(loop) - 1
    while at is not None:
        way.append(loop[at])
        at = best[at][1]
    return way[::-1]


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
    (r"attention/cached decode_kernel", 2),             # the last block of a head sees what the others wrote
    (r"attention/sm90_backward backward_kernel", 4),    # dS and dq for the async proxy; dq's turn passes on (2)
    (r"attention/sm90_backward_wide backward_kernel", 5),    # P, too
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


WGMMA, MMA = r"attention/sm90\S* (forward|backward)_kernel", r"attention/sm80 forward_kernel<\d+, false, false, false>"
# Name; kernels, by file and name; architectures; the check.
RULES = [
    ("no local memory", "", "", no_local_memory),
    ("no other fences", "", "", no_other_fences),
    ("16 bytes a thread", r"(?!attention/cached|router)\S+ \w+<(bf16, 8|float, 4)\b(?!, \w+ByPosition)", "", wide),
    ("16 bytes a thread", r"attention/(sm80\S*|sm90_backward\w* (prepare|finish))|adamw (adamw|squares)_kernel|"
                          r"attention/cached \w+<(bf16, bf16|float, float), \d, \d+, (8|4)|experts tensor_kernel", "",
     wide),
    ("the softmax overlaps P v", r"attention/sm90 forward_kernel", "sm_90a", softmax_overlaps),
    ("probabilities overlap dy v^T", r"attention/sm90_backward\w* backward_kernel<\d+, false>", "sm_90a",
     probabilities_overlap),
    ("products of a tile", r"attention/sm90 forward_kernel", "sm_90a", products_in_loop(forward_products)),
    ("products of a tile", r"attention/sm90_backward\w* backward_kernel", "sm_90a",
     products_in_loop(backward_products)),
    ("descriptors are uniform", WGMMA, "sm_90a", no_moves_to_uniform),
    ("barriers of a tile", r"attention/sm90 forward_kernel", "sm_90a", barriers(2)),
    ("barriers of a tile", r"attention/sm90_backward backward_kernel", "sm_90a", barriers(3)),
    ("barriers of a tile", r"attention/sm90_backward_wide backward_kernel", "sm_90a", barriers(4)),
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


# ---- what is asked for -----------------------------------------------------------------------------------------------

def remarks(objects):
    """ptxas's remarks that products by warpgroup wait for each other (C75xx). The build keeps them beside an object."""
    logs = [o + ".log" for o in objects]
    return [f"{log} is missing: make clean" for log in logs if not os.path.exists(log)] + [
        f"{log}: {line.strip()}" for log in logs if os.path.exists(log) for line in open(log)
        if re.search(r"\bC75\d\d\b", line)]


def compare(rows, version):
    """(passed, failed, skipped): each row of the table against what is now."""
    before, known = read_table()
    if before != version:
        print(f"dev/sass.txt is of {before}, this is {version}: only rules are checked")
        return 0, 0, len(known)
    failed = 0
    for name in sorted(set(rows) | set(known)):
        for arch in sorted(set(rows[name]) | set(known[name])):
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


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true", help="write dev/sass.txt anew")
    parser.add_argument("--mutants", action="store_true", help="break each rule on purpose")
    parser.add_argument("--objects", nargs="*", default=[], help="what make has compiled")
    parser.add_argument("names", nargs="*", help="show only the kernels whose names contain one of these")
    a = parser.parse_args()
    nvcc = find_tools()
    version = "nvcc " + re.search(r"V([\d.]+)", output(nvcc, "--version"))[1]
    if a.mutants:
        import sass_mutants
        return sass_mutants.run(nvcc, version)
    kernels = read(a.objects)
    if a.names:
        return show([k for k in kernels if any(n in str(k) for n in a.names)])
    rows = table_of(kernels)
    if a.write:
        archs = sorted({k.arch for k in kernels}, key=lambda arch: int(re.search(r"\d+", arch)[0]))
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

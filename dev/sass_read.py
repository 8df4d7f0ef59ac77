"""The kernels that nvcc has made, as sass.py and gpu_time.py read them: what each takes, its instructions, its loops,
how it is launched, and how many warps of a multiprocessor that leaves."""
import bisect
import collections
import concurrent.futures
import functools
import glob
import os
import re
import shutil
import subprocess
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
BUILD = os.path.join(ROOT, "build", "sass")
# Of a multiprocessor: warps, blocks, bytes of shared memory, and of these for one block (CUDA C++
# Programming Guide, technical specifications per compute capability). All have 65536 registers,
# given to warps 256 at a time.
Limits = collections.namedtuple("Limits", "warps blocks shared block_shared")
LIMITS = {"sm_80": Limits(64, 32, 164 << 10, 163 << 10), "sm_86": Limits(48, 16, 100 << 10, 99 << 10),
          "sm_89": Limits(48, 24, 100 << 10, 99 << 10),
          "sm_90a": Limits(64, 32, 228 << 10, 227 << 10), "sm_100": Limits(64, 32, 228 << 10, 227 << 10)}
# Cases of the CUDA backend's tests that launch what others do, and take minutes or look at results.
NOT_NEEDED = ("emulator*,nccl*,model*,families*,cuda choice*,cuda device*,ptx*,hopper*,fp8: products*,fp8 model*,"
              "textbook*,cuda generation*,cuda sampling*,attention golden*")
RESERVED = 1024    # bytes of shared memory that CUDA takes for each block; from sm_90 on cuobjdump counts them


def skip(why):
    print(f"kernels are not read: {why}\n\n0 passed, 0 failed, 1 skipped")
    sys.exit(0)


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
Launch = collections.namedtuple("Launch", "threads shared")    # of a block; bytes of dynamic shared memory


def branch(i):
    """(the address that it may go to, whether it always does); (None, False): no branch."""
    to = re.search(r"0x([0-9a-f]+)$", i.operands) if i.op in ("BRA", "BRA.U") else None
    return (int(to[1], 16), not i.predicate and i.operands == to[0]) if to else (None, False)


class Kernel:
    def __init__(self, file, arch, name):
        self.file, self.arch, self.name = file, arch, name
        self.registers = self.stack = self.shared = 0
        self.launches = set()
        self.code = []

    def __str__(self):
        return f"{self.file} {self.name} {self.arch}"

    def count(self, pattern, code=None):
        """Instructions whose name begins so, such as LDG or HGMMA."""
        ops = self.ops if code is None else collections.Counter(i.op for i in code)
        return sum(n for op, n in ops.items() if re.match(pattern, op))

    @functools.cached_property
    def ops(self):
        """{instruction: how many}"""
        return collections.Counter(i.op for i in self.code)

    def warps_by_registers(self):
        """A multiprocessor's four parts have a fourth of them each."""
        return 65536 // (-(-max(self.registers, 1) * 32 // 256) * 256) // 4 * 4

    def resident(self, launch, limits=None):
        """Blocks of a launch that a multiprocessor holds, by registers, shared memory, warps and blocks; 0: it cannot
        be launched so. limits: of another GPU than the one that the code is for."""
        limits, warps = limits or LIMITS[self.arch], -(-launch.threads // 32)
        shared = self.shared + launch.shared + (RESERVED if int(re.search(r"\d+", self.arch)[0]) < 90 else 0)
        if shared - RESERVED > limits.block_shared:
            return 0
        return min(limits.blocks, limits.warps // warps, self.warps_by_registers() // warps,
                   limits.shared // max(1, -(-shared // 128) * 128))

    def occupancy(self):
        """(launch, warps that a multiprocessor holds) of the launch that leaves fewest; (None, what registers allow) of
        a kernel that nobody launches."""
        fits = [(l, self.resident(l) * -(-l.threads // 32)) for l in self.launches if self.resident(l)]
        return min(fits, key=lambda fit: (fit[1], fit[0]),
                   default=(None, min(LIMITS[self.arch].warps, self.warps_by_registers())))

    def loops(self):
        """Code between a branch backwards and its target: the innermost first. Loops of a few instructions that wait
        for a barrier are left out."""
        found, addresses = [], [i.address for i in self.code]
        for end, i in enumerate(self.code):
            target, _ = branch(i)
            if target is not None and target <= i.address:
                begin = bisect.bisect_left(addresses, target)
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


def kernel_names(binary):
    """{address: names} of what an emulated binary may launch."""
    names = collections.defaultdict(set)
    for line in output("nm", "-C", "--defined-only", binary).splitlines():
        address, kind, name = line.split(" ", 2)
        if kind in "tTwW":
            names[int(address, 16)].add(short(name))
    return names


def dry_run(binary, capability):
    """The file with what the tests launch on such a GPU, kept beside the binary."""
    path = f"{binary}.launches_{capability}"
    if os.path.exists(path) and os.path.getmtime(path) >= max(map(os.path.getmtime, (binary, __file__))):
        return path
    theirs = {name: value for name, value in os.environ.items()    # all tests, in the order of no seed
              if name not in ("FLATGPT_TEST_PART", "FLATGPT_TEST_LIMIT", "EMU_SEED")}
    environment = {**theirs, "EMU_RUN": "0", "EMU_CC": capability, "EMU_LAUNCHES": path + ".new"}
    ended = subprocess.run([binary, "-tce=" + NOT_NEEDED], env=environment, stdout=subprocess.PIPE, text=True,
                           errors="replace", stderr=subprocess.DEVNULL, check=False)
    # What is not computed fails. A case over its limit starts the program again, which forgets its
    # notes.
    if "over its limit" in ended.stdout or not re.search(r"^\d+ passed, .* skipped\s*\Z", ended.stdout, re.M):
        sys.exit(f"{binary}: the tests ended early (exit status {ended.returncode}), so what they launch is not known")
    os.replace(path + ".new", path)
    return path


def launches_of_tests(binary):
    """{name: launches}, by the tests of the CUDA backend on the emulator, which only notes what they launch."""
    names, found = kernel_names(binary), collections.defaultdict(set)
    with concurrent.futures.ThreadPoolExecutor() as pool:
        for path in pool.map(dry_run, [binary] * 2, ["80", "90"]):
            for line in open(path):
                address, threads, shared, _ = line.split()
                for name in names[int(address, 16)]:
                    found[name].add(Launch(int(threads), int(shared)))
    return found


def read(objects, arch=None, launches=None):
    """All kernels of these objects or cubins, or those of one architecture, with how they are launched."""
    objects = sorted(objects, key=os.path.getsize, reverse=True)    # the longest first
    with concurrent.futures.ProcessPoolExecutor() as pool:
        each = pool.map if len(objects) > 1 else map    # for one no process is started, so threads may call this
        kernels = [k for some in each(read_object, objects, [arch] * len(objects)) for k in some]
    for k in kernels:
        k.launches = (launches or {}).get(k.name, set())
    return sorted(kernels, key=lambda k: (k.file, k.name, k.arch))

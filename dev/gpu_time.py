#!/usr/bin/env python3
"""What every operation of `flatgpt bench` should take on a GPU, and what bounds it.   make gpu-time [ARGS=...]

No GPU is needed: these are expectations, to be held beside the day's measurements (--measured). What was fitted to
an H200's (2026-11-27, dev/results) says so. FLOPs, bytes and launches are those of dev/launches.cpp: bench's own
counts, at bench's sizes. Rates are the data sheet's. Then:
- an operation of ours takes as long as its busiest unit: DRAM, or one of a multiprocessor's, by the instructions of
  the kernel's main loop as nvcc has compiled it; attention by mma.sync or without softmax by gpu_ways.py, with the
  tiles that masks visit, dropout's random numbers and biases;
- attention on sm_90 takes what gpu_attention.py says, for the tiles that its mask visits;
- a product of cuBLASLt reaches CUBLAS of the peak in full waves of tiles: an assumption, whose source is below;
- a launch adds its gap and what its blocks wait from begin to end (gpu_latency.py), a copy between host and device a
  launch's gap, and each wait of the host for results HOST_WAIT.
An expectation is too low by what is not counted:
- rounds of loops that wait, but for main loops that move memory; another warp's instructions meanwhile;
- attention: a softmax's new maximum; on sm_90 the tests of masked tiles, and where half of the peak is assumed
  (attention_units) all of a tile but its visible pairs;
- attention without softmax: the state's decay, and what is stored; of a single token, all but the products;
- double arithmetic's own unit, and code behind other branches: sampling, the router, a cache in 8 bits.
An instruction whose predicate is false counts. Then the operations of a training step and of a token, by what they
take above bench's floor, and what each would save if its bound were halved: the first line is where to begin. Then
tokens, a checked draft and a prompt of this model and of Llama 3.2 1B, and the bars. gpu_measured.py holds the whole
against what an H200 has measured, where the constants were not fitted to it, and against published figures.
--save and --before show what a change of kernels gains. NAME: only the rows whose names contain one.
"""
import argparse
import collections
import json
import math
import os
import re
import sys

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import gpu_attention    # noqa: E402
import gpu_latency      # noqa: E402
import gpu_measured     # noqa: E402
import gpu_ways         # noqa: E402
import sass_read        # noqa: E402
from gpu_latency import LAUNCH    # noqa: E402
from gpu_measured import bench_rows    # noqa: E402
from gpu_ways import way_with    # noqa: E402
from sass_read import Launch    # noqa: E402

# By compute capability: the architecture whose code runs there; a multiprocessor's FLOPs of dense
# bf16 a clock (data sheets; GeForce has half); what mma.sync reaches of these (on sm_90 about two
# thirds, the rest is wgmma's; on sm_100 a guess); fp32 lanes (CUDA C++ Programming Guide,
# throughput of arithmetic instructions, as all of UNITS).
Chip = collections.namedtuple("Chip", "arch tensor mma lanes")
CHIPS = {80: Chip("sm_80", 2048, 1, 64), 86: Chip("sm_80", 1024, 1, 128), 89: Chip("sm_89", 1024, 1, 128),
         90: Chip("sm_90a", 4096, 0.65, 128), 100: Chip("sm_100", 8192, 0.5, 128)}
# Instructions of a warp that a multiprocessor takes a clock, by kind.
UNITS = [("MUFU", 16 / 32, r"MUFU"), ("shuffle", 32 / 32, r"SHFL|REDUX"), ("IMAD", 64 / 32, r"IMAD"),
         ("ALU", 64 / 32, r"LOP3|PLOP3|IADD3|VIADD|ISETP|FSETP|FSEL|SEL|FMNMX|IMNMX|VIMNMX|SHF|PRMT|LEA|POPC|"
                          r"F2FP|F2F|I2F|F2I|FLO|IABS|FRND")]
ISSUE, SHARED = 4, 128      # instructions of a warp, bytes of shared memory
COPY = 0.885                # of DRAM's rate, what a copy reaches: 4.25 of 4.8 TB/s on an H200
LATENCY = 600e-9            # seconds from a load to its data
CUBLAS = 0.78               # of the peak: 769 to 798 of 989 TFLOP/s were measured on an H200, 8192^3 of random numbers
SUSTAINED = 0.82            # of that, the products of GPT-2 124M, whose clock falls at the limit of 700 W: fitted
TILE = (128, 256)           # and cuBLASLt's outputs of one block there; a last wave may be partly empty
WORKSPACE = 128 << 20       # bytes that linear.cu gives to a product
LIBRARY = 3.8e-6            # seconds of its blocks' begin and end: fitted to GPT-2's token of 16 sequences, 562 us
LLAMA = "llama-3.2-1b"      # the other model
STEP = 54.3e3               # us of a training step of GPT-2 124M, B=32 T=1024, on an H200: the median of two runs
HOST_WAIT = 6e-6            # seconds of an upload that was waited for (profile of a token, a84e32b)
PCIE = 25e9                 # bytes a second between host and device, whose memory is pinned: an assumption
BYTES = {"128": 16, "64": 8, "U16": 2, "S16": 2, "U8": 1, "S8": 1, "4": 16}    # 4: LDSM's tiles

# Kernels that compute products: (FLOPs that they execute, as a part of what their operation
# counts). The scores again are not counted; the biases' gradient counts a FLOP for each pair.
# SHARE: the operation's launches share them.
SHARE = -1
PRODUCTS = [
    (r"attention/(sm\d+|simt) forward_kernel", 1), (r"attention/sm90_backward\w* backward_kernel", 5 / 4),
    (r"attention/(sm80|simt)_backward (query|dq)_kernel", 3 / 4),
    (r"attention/(sm80|simt)_backward (key|dkv)_kernel", 1), (r"attention/position_bias (mma|plain)_kernel", 256),
    (r"matmul/experts (tensor|plain)_kernel", SHARE), (r"attention/recurrent walk_kernel", 1)]


class Gpu:
    def __init__(self, row):
        self.name, self.sms, self.peak, self.dram = (row[key] for key in ("gpu", "multiprocessors", "peak",
                                                                          "bandwidth"))
        if row["capability"] not in CHIPS:
            sys.exit(f"{self.name}: make compiles no code for this GPU; its driver would, from PTX. Known "
                     f"capabilities: {', '.join(map(str, CHIPS))}")
        self.chip = CHIPS[row["capability"]]
        self.limits = sass_read.LIMITS["sm_86" if row["capability"] == 86 else self.chip.arch]
        self.tensor = self.chip.tensor / (2 if "GeForce" in self.name else 1)
        self.clock = self.peak / self.sms / self.tensor

    def floor(self, row):
        """bench's, with the peaks that it should measure."""
        return max((row["products"] + row["arithmetic"]) / (CUBLAS * self.peak), row["bytes"] / (COPY * self.dram))

    def clocks(self, clocks_of_an_sm):
        return clocks_of_an_sm / self.sms / self.clock


# ---- one launch: seconds of each unit ------------------------------------------------------------

def width(i):
    """Bytes that a thread moves."""
    return next((BYTES[part] for part in i.op.split(".") if part in BYTES), 4)


def moved(way, ops="LDG|STG"):
    return 32 * sum(width(i) for i in way if re.match(ops, i.op))


WIDE = r"(LDG|STG)\S*\.128"


def memory_loop(k):
    """The inner loop that moves most bytes, on the way that does all of its work, past the checks for the row's end; a
    way through the kernel if none moves 16 at once."""
    ways = [way_with(WIDE + "|STS|MUFU", loop) for loop in k.inner_loops()]
    return max([way for way in ways if k.count(WIDE, way)] or [way_with(WIDE, k.code)], key=moved)


def product_loop(k):
    """(the instruction of its products, the smallest loop that has it)"""
    op = next((op for op in ("HGMMA", "HMMA", "FFMA") if k.count(op)), None)
    return op, way_with(op, k.loop_with(op) or k.code) if op else None


def clocks_of(k, way, gpu):
    """Clocks of a multiprocessor's units for a warp's round."""
    units = {"issue": len(way) / ISSUE, "FMA": k.count("FFMA|FMUL|FADD", way) * 32 / gpu.chip.lanes,
             "shared memory": moved(way, "LDS|STS") / SHARED}
    return units | {name: k.count(pattern, way) / rate for name, rate, pattern in UNITS}


def spread(gpu, launch):
    """The part of the GPU's multiprocessors that have a block at all."""
    return min(1, launch["blocks"] / gpu.sms)


def memory_units(k, gpu, launch, bytes):
    way = memory_loop(k)
    if not moved(way):
        return {}
    rounds = bytes / moved(way)
    resident = k.resident(Launch(launch["threads"], launch["shared"]), gpu.limits) or 1
    warps = launch["threads"] / 32 * min(resident, launch["blocks"] / gpu.sms)
    in_flight = gpu.sms * warps * max(moved(way, "LDG"), moved(way) / 2)
    units = {unit: gpu.clocks(c * rounds) / spread(gpu, launch) for unit, c in clocks_of(k, way, gpu).items()}
    # Blocks behind those that begin together wait for their ends.
    waves = max(0, launch["blocks"] / gpu.sms / resident - 1)
    return units | {"DRAM": bytes / (COPY * gpu.dram), "latency": max(
        bytes / in_flight * LATENCY, waves * gpu_latency.waits_of(k) / gpu.clock)}


def product_units(k, gpu, launch, row, flops):
    op, way = product_loop(k)
    if not way:
        return {}
    each = {"HMMA": 4096, "FFMA": 64}[op]    # HGMMA is attention's alone: attention_units
    units = collections.Counter()
    for way, rounds in gpu_ways.executed(k, row) or [(way, flops / (each * k.count(op, way)))]:
        clocks = clocks_of(k, way, gpu)
        if op == "HMMA":    # cuBLASLt's products are mma.sync, too, where that is all there is
            clocks["tensor"] = each * k.count(op, way) / (gpu.tensor * min(gpu.chip.mma, CUBLAS))
        units.update({unit: gpu.clocks(c * rounds) / spread(gpu, launch) for unit, c in clocks.items()})
    return dict(units)


def library_units(gpu, m, n, k):
    """Where tiles are few, blocks may share k; then their sums are written and read, in fp32."""
    tiles = min(math.ceil(m / a) * math.ceil(n / b) for a, b in (TILE, TILE[::-1]))
    tile = 2 * TILE[0] * TILE[1] * k / (SUSTAINED * CUBLAS * gpu.peak / gpu.sms)
    return {"tensor": min(math.ceil(tiles * parts / gpu.sms) * tile / parts +
                          (parts > 1) * 8 * parts * m * n / (COPY * gpu.dram)
                          for parts in range(1, max(1, WORKSPACE // (4 * m * n)) + 1))}


# ---- an operation --------------------------------------------------------------------------------

Phase = collections.namedtuple("Phase", "kernel units fixed")    # fixed: seconds of a block from begin to end


def attention_units(row, k, part, gpu, models):
    """sm_90's kernels, by the tiles that they visit. gpu_attention.py knows an H100, by whose clocks another GPU goes.
    It does not know 192 and 256's backward, caps and slopes: there half of the peak is assumed, and the special
    function unit has an exponential for each pair of positions, with a cap two more instructions for tanh."""
    kernel = re.match(r"attention/sm90\w* (forward|backward)_kernel<\d+, (true|false)>", f"{k.file} {k.name}")
    if not kernel:
        return None
    pairs = row["products"] / ((4 if kernel[1] == "forward" else 8) * row["HS"])
    model = models[kernel[1]].get(row["HS"])
    if kernel[2] == "true" or not model:
        return {"tensor": part * row["products"] / gpu.peak / 0.5,
                "MUFU": gpu.clocks(pairs * (3 if row["softcap"] else 1) / gpu_attention.MUFU)}
    slower = gpu_attention.SMS * gpu_attention.CLOCK / (gpu.sms * gpu.clock)
    return {"tensor and MUFU": model(row["B"], row["NH"], row["S"], row["HS"], gpu_ways.sees_of(row)) * slower}


def phases_of(row, gpu, kernels, models):
    """What an operation's launches take, one after the other. Where no product does, the largest moves its bytes."""
    launches, flops, own = row["launches"], row["products"] + row["arithmetic"], []
    for l in launches:
        k = kernels.get(l.get("kernel"))
        name = f"{k.file} {k.name}" if k else ""
        own.append((l, k, next((part for pattern, part in PRODUCTS if re.match(pattern, name)), 0)))
    library = sum("product" in l for l in launches)
    computes = library or any(part for _, _, part in own)
    largest = max((l for l, k, _ in own if k), key=lambda l: l["blocks"] * l["threads"], default=None)
    phases = []
    for l, k, part in own:
        if "product" in l:
            units = library_units(gpu, *l["product"]) | {"DRAM": row["bytes"] / library / (COPY * gpu.dram)}
        elif part:
            part = 1 / len(own) if part == SHARE else part
            units = attention_units(row, k, part, gpu, models) or product_units(k, gpu, l, row, part * flops)
            units["DRAM"] = row["bytes"] / sum(bool(part) for *_, part in own) / (COPY * gpu.dram)
        else:
            units = memory_units(k, gpu, l, row["bytes"]) if l is largest and not computes else {}
        name = "cuBLASLt" if "product" in l else f"{k.file} {k.name}" if k else "?"
        counted = not k or re.match(r"attention/sm90", name)    # what attention's model has
        phases.append(Phase(name, units, LIBRARY if "product" in l else 0 if counted else
                            gpu_latency.block_clocks(k) / gpu.clock))
    return phases or [Phase("a copy", {"DRAM": row["bytes"] / (COPY * gpu.dram)}, 0)]


class Expected:
    """seconds; what bounds the longest of the launches, and its kernel; what half of that bound would save."""

    def __init__(self, row, gpu, kernels, models):
        self.row, self.floor = row, gpu.floor(row)
        self.phases = phases_of(row, gpu, kernels, models)
        times = [max(p.units.values(), default=0) for p in self.phases]
        gaps, fixed = LAUNCH * len(self.phases), sum(p.fixed for p in self.phases)
        self.seconds = sum(times) + gaps + fixed
        self.kernel, units, _ = self.phases[times.index(max(times))]
        if max(gaps, fixed) > max(times):
            self.bound, self.half = "launch" if gaps > fixed else "a block's waits", max(gaps, fixed) / 2
        else:
            self.bound = max(units, key=units.get)
            self.half = max(times) - max([max(times) / 2] + [s for unit, s in units.items() if unit != self.bound])
        self.dram = row["bytes"] / self.seconds / gpu.dram
        self.products = (row["products"] + row["arithmetic"]) / self.seconds / gpu.peak


# ---- tables --------------------------------------------------------------------------------------

def print_bench(rows, measured):
    print(f"{'':46} {'us':>9} {'floor us':>9} {'ratio':>6} {'DRAM':>5} {'peak':>5}  bound" +
          ("             measured us, expected / measured" if measured else ""))
    for e in rows:
        shares = "".join(f" {100 * x:4.0f}%" if x > 0.005 else "      " for x in (e.dram, e.products))
        line = (f"{e.row['name']:46} {1e6 * e.seconds:9.1f} {1e6 * e.floor:9.1f} {100 * e.floor / e.seconds:5.0f}%"
                f"{shares}  {e.bound}")
        if us := measured.get(e.row["name"]):
            line = f"{line:<{46 + 61}} {us:10.1f} {1e6 * e.seconds / us:6.2f}"
        print(f"{line}  {e.kernel}" if not measured else line)


class Total:
    """A table's operations, one after the other, and its copies between host and device."""

    def __init__(self, rows, copies, gpu):
        def add(get):
            return sum(e.row["times"] * get(e) for e in rows)
        host = (LAUNCH * (copies["uploads"] + copies["downloads"]) + copies["bytes"] / PCIE +
                HOST_WAIT * copies["waits"])
        self.copies, self.launches = copies, add(lambda e: len(e.phases))
        self.seconds, self.floor = add(lambda e: e.seconds) + host, add(lambda e: e.floor)
        self.share = self.floor / self.seconds
        self.mfu = add(lambda e: e.row["products"] + e.row["arithmetic"]) / self.seconds / gpu.peak


def print_step(what, rows, total):
    """Operations of a step: those first that lose most."""
    print(f"\n{what}: {1e3 * total.seconds:.2f} ms expected, {1e3 * total.floor:.2f} ms by the floors, "
          f"{100 * total.mfu:.0f} % of the peak of products\n"
          f"'half saves': what halving the bound would save; microseconds of the whole step\n"
          f"{'':36} {'times':>5} {'us':>9} {'above':>8} {'half saves':>10}  bound")
    for e in sorted(rows, key=lambda e: -e.row["times"] * (e.seconds - e.floor)):
        n = e.row["times"]
        print(f"{e.row['name']:36} {n:5} {1e6 * n * e.seconds:9.0f} {1e6 * n * (e.seconds - e.floor):8.0f} "
              f"{1e6 * n * e.half:10.0f}  {e.bound:15} {e.kernel}")


def print_totals(model, totals, before, when):
    """before: {table: us} of other kernels, when of which time."""
    print(f"\n{model:36} {'us':>9} {'floor':>8} {'share':>6} {'launches':>8} {'copies':>7} {'kB':>6}  waits" +
          (f"{when + ' us':>35}  ratio" if before else ""))
    for table, t in totals.items():
        c, us = t.copies, 1e6 * t.seconds
        waits = f"{c['waits']}" + (f", {c['later']} for the step before" if c["later"] else "")
        was = f"{before[table]:14.0f} {us / before[table]:6.2f}" if table in before else ""
        print(f"{table:36} {us:9.0f} {1e6 * t.floor:8.0f} {100 * t.share:5.0f}% {t.launches:8} "
              f"{c['uploads'] + c['downloads']:7} {c['bytes'] / 1e3:6.0f}  {waits:26}{was}".rstrip())


def operations(binary, **options):
    """What dev/launches.cpp says: the GPU, {table: rows}, {table: its copies}."""
    arguments = [x for name, value in options.items() for x in ("--" + name.replace("_", "-"), str(value))]
    lines = [json.loads(line) for line in sass_read.output(binary, *arguments).splitlines()]
    tables, copies = collections.defaultdict(list), {}
    for row in lines[1:]:
        if "uploads" in row:
            copies[row["table"]] = row
        else:
            tables[row["table"]].append(row)
    return Gpu(lines[0]), tables, copies


def kernels_by_address(binary, compiled):
    """{address in the emulated binary: what nvcc has made of that kernel}"""
    named = {k.name: k for k in compiled}
    return {f"{address:x}": named[name] for address, names in sass_read.kernel_names(binary).items()
            for name in names if name in named}


def beside_an_h200(expected):
    """[(whether, what is wrong otherwise)]: bench's rows of GPT-2 124M there, and published figures."""
    _, rows, totals = expected("h200", "gpt2", batch=32, seq_len=1024, prompt=512)
    measured = bench_rows(gpu_measured.archived())
    tables = {"token" if n == 1 else f"token of {n} sequences":
              measured[f"generation, {n} sequence{'s' * (n > 1)}"] for n in (1, 2, 4, 8, 16, 64)}
    tables |= {"step": STEP, "prompt of 512": measured["prompt of 512"]}
    print("\nOn an H200:")
    print_totals("gpt2", totals, tables, "measured")
    attention = {e.row["name"]: e.seconds for e in rows["bench"]}
    checks = gpu_measured.beside_bench(rows["bench"], measured)
    checks += gpu_measured.beside_published(COPY, attention["attention_forward"], attention["attention_backward"])
    off = 1e6 * totals["step"].seconds / STEP - 1
    # Kernels may have become faster since.
    return checks + [(-0.25 < off < 0.1, f"a training step: {100 * off:.0f} % off what an H200 took")]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gpu", default="h100", help="as flatgpt train --gpu has them")
    parser.add_argument("--batch", default="32", help="bench's")
    parser.add_argument("--seq-len", default="1024", help="bench's")
    parser.add_argument("--model", default="gpt2", help="bench's")
    parser.add_argument("--measured", metavar="FILE", help="also put beside it what flatgpt bench printed on a GPU")
    parser.add_argument("--save", metavar="FILE", help="also write there what steps, tokens and prompts take")
    parser.add_argument("--before", metavar="FILE", help="also put beside them what another commit's --save wrote")
    parser.add_argument("--emulated", default="build/emu", help="the folder with make's launches")
    parser.add_argument("--objects", nargs="*", default=[], help="what make has compiled")
    parser.add_argument("names", nargs="*", metavar="NAME", help="only rows whose names contain one of these")
    a = parser.parse_args()
    sass_read.find_tools()
    binary = os.path.join(a.emulated, "launches")
    compiled = sass_read.read(a.objects, operations(binary, gpu=a.gpu)[0].chip.arch)
    kernels, models = kernels_by_address(binary, compiled), {"forward": {}, "backward": {}}
    checks = gpu_ways.check(compiled)
    hopper = any(k.arch == "sm_90a" for k in compiled)
    if hopper:
        found, models = gpu_attention.check(compiled)
        checks += found + gpu_latency.check()

    def expected(card, model, **options):
        """(the GPU, {table: expectations}, {table: Total})"""
        gpu, tables, copies = operations(binary, gpu=card, model=model, **options)
        rows = {table: [Expected(row, gpu, kernels, models) for row in all] for table, all in tables.items()}
        for e in sum(rows.values(), []):
            checks.append(("?" not in [p.kernel for p in e.phases], f"{e.row['name']}: a kernel that no object has"))
            checks.append((e.seconds >= 0.999 * e.floor, f"{e.row['name']}: expected below its floor"))
        return gpu, rows, {table: Total(rows[table], copies[table], gpu) for table in copies}

    gpu, rows, totals = expected(a.gpu, a.model, batch=a.batch, seq_len=a.seq_len)
    chosen = [e for e in rows["bench"] if not a.names or any(n in e.row["name"] for n in a.names)]
    print(f"\nflatgpt bench --model {a.model} --batch {a.batch} --seq-len {a.seq_len} on one {gpu.name}, as expected: "
          f"{gpu.sms} SMs at {gpu.clock / 1e9:.2f} GHz, {gpu.peak / 1e12:.0f} TFLOP/s of bf16 products, "
          f"{gpu.dram / 1e12:.2f} TB/s")
    print_bench(chosen, bench_rows(open(a.measured, errors="replace")) if a.measured else {})
    if not a.names:
        print_step(f"a training step, B={a.batch} T={a.seq_len}", rows["step"], totals["step"])
        print_step("a generated token, 1 sequence", rows["token"], totals["token"])
        _, _, llama = expected(a.gpu, LLAMA, batch=1, prompt=8192)
        all_totals = {a.model: totals, LLAMA: llama}
        before = json.load(open(a.before)) if a.before else {}
        for model, some in all_totals.items():
            print_totals(model, some, before.get(model, {}), "before")
        gpu_measured.print_bars(gpu, all_totals)
        if a.save:
            json.dump({model: {table: 1e6 * t.seconds for table, t in some.items()}
                       for model, some in all_totals.items()}, open(a.save, "w"), indent=1)
    if not a.names and hopper:
        checks += beside_an_h200(expected)
    wrong = [why for right, why in checks if not right]
    print("".join(f"FAILED {why}\n" for why in wrong) +
          f"\n{len(checks) - len(wrong)} passed, {len(wrong)} failed, 0 skipped")
    return len(wrong) > 0


if __name__ == "__main__":
    sys.exit(main())

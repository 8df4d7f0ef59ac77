#!/usr/bin/env python3
"""On the GPU's machine, where a minute counts: steps in their order until the deadline.

usage: dev/gpu_call.py SECONDS STEP...      STEPS below has their names

Runs the binaries of carry/gpu.tar.xz, which dev/gpu_pack.sh makes. Each step ends by its own limit
or the deadline, with all that it has started. After each, $OUT (default build/call) has summary.txt
and results.tar.gz and nothing else, as few files come back. Prints a row for each step with the
figures found in it: the end of the output is all that is seen at once. Beside a figure stands that
of the same row in the day's call before on such a card, from dev/results or the folder $GPU_BEFORE.
"""
import concurrent.futures
import glob
import hashlib
import json
import os
import re
import shutil
import statistics
import subprocess
import sys
import tarfile
import threading
import time

from gpu_step import (BIN, PARTS, SPARE, WORK, archive, begin, beside, execute, figure, left, number, part, samples,
                      say, step)

BENCH = ["bench", "--device", "cuda", "--batch", "32", "--seq-len", "1024"]
ONLY = [f"-tc={os.environ['GPU_TESTS']}"] if os.environ.get("GPU_TESTS") else []    # doctest's filter

# ---- the machine ---------------------------------------------------------------------------------

def watch():
    """One for all steps: the driver stays loaded, and no step pays for asking."""
    p = subprocess.Popen(["nvidia-smi", "--query-gpu=clocks.sm,power.draw,clocks_event_reasons.active,memory.used",
                          "--format=csv,noheader,nounits", "-lms", "250"], stdout=subprocess.PIPE,
                         stderr=subprocess.DEVNULL, text=True)
    beside.append(p)
    for line in p.stdout:
        row = [x.strip() for x in line.split(",")]
        if len(row) == 4:    # older drivers refuse the query in a sentence
            samples.append((time.monotonic(), row))


def find_libraries():
    """Of what the binaries need, carry/gpu/lib gives only what this machine lacks; cuBLASLt and NCCL are loaded by
    name, from the toolkit or pip's packages."""
    missing = subprocess.run(["ldd", f"{BIN}/flatgpt", f"{BIN}/test_cuda"], capture_output=True, text=True).stdout
    own = f"{WORK}/lib"
    os.makedirs(own)
    for name in set(re.findall(r"(\S+) => not found", missing)):
        if os.path.exists(f"{BIN}/lib/{name}"):
            os.symlink(f"{BIN}/lib/{name}", f"{own}/{name}")
    places = ["/usr/local/cuda/lib64", "/usr/lib/x86_64-linux-gnu"]
    places += [g for p in sys.path for g in sorted(glob.glob(f"{p}/nvidia/*/lib"))]
    folders = [own]
    for name in ("libcublasLt.so.13", "libnccl.so.2"):
        place = next((p for p in places if os.path.exists(f"{p}/{name}")), None)
        if not place:
            say(f"    {name}: not found in {' '.join(places)}")
        elif place != "/usr/lib/x86_64-linux-gnu":
            folders.append(place)
    os.environ["LD_LIBRARY_PATH"] = ":".join(folders + [os.environ.get("LD_LIBRARY_PATH", "")]).rstrip(":")


def machine():
    if shutil.which("nvidia-smi"):
        threading.Thread(target=watch, daemon=True).start()
    find_libraries()
    # Read once now, beside the tests, what PyTorch takes long to load from a cold disk.
    beside.append(subprocess.Popen([sys.executable, "-c", "import torch; torch.zeros(1, device='cuda')"],
                                   stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL))
    return step("machine", 60, ["bash", "-c", f"""
        nvidia-smi --query-gpu=name,driver_version,memory.total,clocks.max.sm --format=csv,noheader
        echo "$(uname -r), $(nproc) cores, $(lscpu | sed -n 's/^Model name: *//p')"; cat {BIN}/commit
        echo "LD_LIBRARY_PATH=$LD_LIBRARY_PATH"; ldd {BIN}/test_cuda
        time {BIN}/test_cuda -ltc"""], r"NVIDIA|cores|passing|not found|FAILED|^real")


# ---- tests ---------------------------------------------------------------------------------------

def cases(first, last, seconds, tool=(), kind="cases"):
    """{number: 'passed', 'failed' or 'skipped'} for cases that came to their end, exit status, output"""
    head = "".join(f"{n}: {names[n - 1]}\n" for n in range(first, last + 1))    # a hang prints no name
    status, text = execute(f"{kind}-{first}-{last}", seconds, [
        *tool, f"{BIN}/test_cuda", *ONLY, f"-f={first}", f"-l={last}"], head, OMP_NUM_THREADS="2")
    ended = re.findall(r"^(passed|FAILED|skipped) +[\d.]+ s  ", text, re.M)
    return {first + i: e.lower() for i, e in enumerate(ended)}, status, text


def report(number, status, text):
    say(f"    FAILED {status}: {names[number - 1]}")
    for line in [x for x in text.splitlines() if re.search(r"GPU failed|ERROR|values:|CHECK|===== [^C]", x)][:2]:
        say(f"        {line.strip()[:130]}")


names, failed = [], {}


def tests():
    """Five cases a process, several processes at a time; where one does not pass, each of its cases gets a process of
    its own, as a kernel that fails or hangs takes its process with it. What fails then runs again with nothing beside
    it: cases that look at free memory may fail beside others."""
    began = time.monotonic()
    status, listed = execute("list", 60, [f"{BIN}/test_cuda", *ONLY, "-ltc", "-nv"])
    names[:] = "".join(re.split(r"^===+\n", listed, flags=re.M)[1:2]).splitlines()
    if status != 0 or not names:
        say(f"{'tests':22} no case is listed: exit {status}")
        return archive()
    archive()    # the names are out before anything runs
    limit, last = float(os.environ.get("CASE_LIMIT", 40)), {}    # number: verdict, exit status, output
    end = time.monotonic() + float(os.environ.get("TESTS_LIMIT", 130))    # a hang must not take all that follows along

    def run(first, count, seconds):
        has = min(seconds, end - time.monotonic(), left())
        ended, status, text = cases(first, first + count - 1, has)
        return ended, "no time left" if has < seconds and str(status).startswith("over") else status, text

    def judge(n, ended, status, text):
        if n in ended and status in (0, 1):
            last[n] = ended[n], status, text
        elif status != "no time left":
            last[n] = "hung" if str(status).startswith("over") else f"exit {status}", status, text

    with concurrent.futures.ThreadPoolExecutor(int(os.environ.get("JOBS", 8))) as pool:
        groups = [range(n, min(n + 5, len(names) + 1)) for n in range(1, len(names) + 1, 5)]
        for group, (ended, status, text) in zip(groups, pool.map(lambda g: run(g[0], len(g), 2 * limit), groups)):
            if len(ended) < len(group) or status in (0, 1):    # else the process died behind its last case
                last.update({n: (e, status, text) for n, e in ended.items()})
        again = [n for group in groups for n in group if n not in last or last[n][0] == "failed"]
        say(f"{'tests':22} {len(names)} cases, {len(again)} of them again  {time.monotonic() - began:5.1f} s")
        archive()
        for n, result in zip(again, pool.map(lambda n: run(n, 1, limit), again)):
            judge(n, *result)
    for n in again:
        if n in last and last[n][0] not in ("passed", "skipped", "hung"):
            judge(n, *run(n, 1, limit))
    verdicts = [last.get(n, ("not run",))[0] for n in range(1, len(names) + 1)]
    failed.update({n: x[1:] for n, x in sorted(last.items()) if x[0] not in ("passed", "skipped")})
    with open(part("tests"), "w") as f:
        f.writelines(f"{v}\t{name}\n" for v, name in zip(verdicts, names))
    count = ", ".join(f"{verdicts.count(v)} {v}" for v in sorted(set(verdicts)))
    say(f"    {count}; {time.monotonic() - began:.1f} s")
    for n in list(failed)[:20]:
        report(n, *failed[n])
    archive()


def sanitizer():
    """What failed: memory first; a hang is a barrier that somebody does not come to."""
    for n, (status, _) in list(failed.items())[:6]:
        tool = "synccheck" if str(status).startswith("over") else "memcheck"
        _, status, text = cases(n, n, 45, ["compute-sanitizer", "--tool", tool, "--print-limit", "3"], tool)
        report(n, f"{tool} {status}", text)
        archive()


# ---- figures -------------------------------------------------------------------------------------

def selftest():
    """Five types at once: each takes as long as one core needs for the reference."""
    began = time.monotonic()
    types = ("fp32", "tf32", "bf16", "fp8", "fp8-block")
    with concurrent.futures.ThreadPoolExecutor(5) as pool:
        rows = list(pool.map(lambda t: (t, *execute(f"selftest-{t}", 90, [
            f"{BIN}/flatgpt", "selftest", "--device", "cuda", "--dtype", t, "--threads", "3"])), types))
    for t, status, text in rows:
        say(f"{'selftest ' + t:22} {status}: {(text.splitlines() or [''])[-1][:120]}")
        for line in [x for x in text.splitlines() if re.search(r"FAIL|GPU failed", x)][:6]:
            say(f"    {line[:150]}")
    say(f"    {time.monotonic() - began:.1f} s")
    archive()


def train(name, seconds, *flags, **environment):
    run, began = f"{WORK}/run", time.monotonic()
    shutil.rmtree(run, ignore_errors=True)
    step(name, seconds, [f"{BIN}/flatgpt", "train", "--data", f"{BIN}/train.bin", "--model", "gpt2", "--device", "cuda",
                         "--seq-len", "1024", "--batch", "32", "--out", run, *flags],
         r"GPU failed|warning|by torchrun|NCCL does not", 4, **environment)
    if os.path.exists(f"{run}/metrics.jsonl"):
        shutil.copy(f"{run}/metrics.jsonl", part(f"{name}-metrics", ".jsonl"))
        for state in glob.glob(f"{run}/step_*/state.json"):    # which products cuBLASLt was chosen for
            shutil.copy(state, part(f"{name}-state", ".json"))
        rows = [json.loads(x) for x in open(f"{run}/metrics.jsonl") if x.endswith("\n")]
        late = rows[len(rows) // 4:]    # the first steps choose algorithms
        memory = max((number(r[3]) for t, r in list(samples) if t >= began), default=0)
        if late:
            figure(f"steps {late[0]['step']} to {late[-1]['step']}: median "
                   f"{statistics.median(x['tokens_per_second'] for x in late):.0f} tokens/s, "
                   f"{statistics.median(x['ms'] for x in late):.1f} ms, MFU "
                   f"{100 * statistics.median(x.get('mfu', 0) for x in late):.1f} %; loss {rows[0]['loss']:.3f} to "
                   f"{rows[-1]['loss']:.3f}; most memory {memory:.0f} MiB")
        archive()


def losses():
    """The first steps' losses beside the CPU's in fp32, which gpu_pack.sh computed: the whole model, forward, backward
    and update, in numbers that anybody understands."""
    expected = [float(x) for x in open(f"{BIN}/losses.txt").read().split()]
    for name, dtype, environment in (("fp32", "fp32", {}), ("bf16", "bf16", {}),
                                     ("bf16-sm80", "bf16", {"FLATGPT_ATTENTION": "sm80"})):
        run = f"{WORK}/losses"
        shutil.rmtree(run, ignore_errors=True)
        status, _ = execute(f"losses-{name}", 40, [
            f"{BIN}/flatgpt", "train", "--data", f"{BIN}/train.bin", "--device", "cuda", "--dtype", dtype, "--out", run,
            *open(f"{BIN}/losses.flags").read().split()], **environment)
        text = open(f"{run}/metrics.jsonl").read() if os.path.exists(f"{run}/metrics.jsonl") else ""
        got = [float(x) for x in re.findall(r'"loss":([\d.]+)', text)]
        worst = max((abs(a - b) for a, b in zip(got, expected)), default=float("nan"))
        say(f"{'losses ' + name:22} {status}: {len(got)} of {len(expected)} steps, largest difference from the CPU's "
            f"fp32 {worst:.2e}; last {got[-1] if got else '-'} for {expected[-1]}")
    archive()


def bench():
    step("bench", 110, [f"{BIN}/flatgpt", *BENCH],
         r"ceilings|tokens/s|training step|generation, (1|64) |attention_(for|back)ward  |linear_forward (qkv|fc)  ",
         20)


def profile():
    """Training and generation alone: what an operation takes within a step."""
    step("steps", 70, [f"{BIN}/flatgpt", *BENCH, "--filter", "training|generation|prompt", "--profile"],
         r"ceilings|tokens/s|training step|generation, |prompt", 18)


def variants():
    """The same rows by the other binaries that were packed, and with other environments."""
    own = f"{BIN}/flatgpt"
    ways = [("as it is", own, {}), ("any order", own, {"FLATGPT_ATTENTION_ORDER": "any"}),
            ("sm80", own, {"FLATGPT_ATTENTION": "sm80"})]
    ways += [(os.path.basename(f)[8:], f, {}) for f in sorted(glob.glob(f"{BIN}/variant_*"))]
    for name, binary, environment in ways:
        rows = ("attention_forward ", "attention_backward ") if environment else os.environ.get(
            "VARIANT_ROWS", "attention_forward |attention_backward |training|generation, 1 ").split("|")
        for row in rows:
            step(f"{name}, {row}", 40, [binary, *BENCH, "--filter", row.strip()], rf"^{row}|tokens/s", 3,
                 **environment)


def same_bits():
    """A run of 8 steps, and the same from its checkpoint at step 4: once without a break, once killed on its way."""
    began = time.monotonic()
    flags = ["--data", f"{BIN}/train.bin", "--model", "gpt2", "--device", "cuda", "--seq-len", "1024", "--batch", "8",
             "--lr", "6e-4", "--steps", "8", "--save-every", "2", "--keep", "0", "--save-minutes", "0"]

    def run(name, from_4, killed=False):
        to = f"{WORK}/bits-{name}"
        if from_4:
            whole = f"{WORK}/bits-whole"
            shutil.copytree(whole, to, ignore=lambda folder, files: [
                f for f in files if folder == whole and f != "step_00000004" and os.path.isdir(f"{whole}/{f}")])
        command = [f"{BIN}/flatgpt", "train", *flags, "--resume", "auto", "--out", to]
        if killed:
            p = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                                 stderr=subprocess.DEVNULL)
            until = time.monotonic() + min(30, left())
            while time.monotonic() < until and not os.path.exists(f"{to}/step_00000006/model.safetensors"):
                time.sleep(0.005)
            p.kill()
            p.wait()
        status, _ = execute(f"bits-{name}", 60, command)
        return status, [hashlib.sha256(open(f, "rb").read()).hexdigest()[:16] if os.path.exists(f) else "-" for f in
                        (f"{to}/step_00000008/{x}" for x in ("model.safetensors", "optimizer.safetensors"))]

    rows = {name: run(name, *how) for name, *how in (("whole", False), ("again", True), ("killed", True, True))}
    for name, (status, sums) in rows.items():
        say(f"{'bits, ' + name:22} exit {status}: {' '.join(sums)}")
    say(f"    {'the same bits' if len({tuple(r[1]) for r in rows.values()}) == 1 else 'DIFFERENT'}; "
        f"files {' '.join(sorted(os.listdir(f'{WORK}/bits-whole/step_00000008')))}; {time.monotonic() - began:.1f} s")
    for name in rows:
        shutil.rmtree(f"{WORK}/bits-{name}", ignore_errors=True)
    archive()


def ncu():
    """Counters of single kernels of bench, and the times of all kernels of some tokens. Their rows' names come from
    the command line, as the kernels' do."""
    tool = ["ncu", "--clock-control", "none"]
    for name, kernel, row in (("forward", "forward_kernel", "attention_forward"),
                              ("backward", "backward_kernel", "attention_backward"),
                              ("cross_entropy", "cross_entropy", "cross_entropy"),
                              ("norm_backward", "norm_backward_row", "norm_backward"),
                              ("update", "update_kernel", "update_weights")):
        step(f"ncu-{name}", 40, [*tool, "--set", "full", "-k", f"regex:{kernel}", "--launch-skip", "2",
                                 "--launch-count", "1", f"{BIN}/flatgpt", *BENCH, "--filter", row],
             r"==ERROR==|No kernels|Duration|Throughput +%|Registers Per|Achieved Occ|L2 Hit|Issue Slots", 12)
    step("ncu-token", 60, [*tool, "--cache-control", "none", "--csv", "--page", "raw", "--metrics",
                           "gpu__time_duration.sum,dram__bytes.sum,launch__grid_size,launch__block_size",
                           "--launch-skip", "600", "--launch-count", "80", f"{BIN}/flatgpt", "bench", "--device",
                           "cuda", "--filter", "generation, 1 "], "==ERROR==|No kernels")


def torch(*flags):
    step("torch", 200, [sys.executable, "dev/compare_torch.py", *flags], r"tflops|tokens|kernels|error|Error", 14)


STEPS = {
    "machine": machine, "tests": tests, "sanitizer": sanitizer, "selftest": selftest, "losses": losses, "bench": bench,
    "train": lambda: train("train", 60, "--lr", "6e-4", "--steps", "40"),
    "train80": lambda: train("train80", 60, "--lr", "6e-4", "--steps", "20", FLATGPT_ATTENTION="sm80"),
    # NCCL with one rank, as a launcher starts it.
    "ranks": lambda: train("ranks", 60, "--lr", "6e-4", "--steps", "8", RANK="0", WORLD_SIZE="1", LOCAL_RANK="0",
                           MASTER_ADDR="127.0.0.1", MASTER_PORT="29500"),
    "profile": profile, "variants": variants, "bits": same_bits, "ncu": ncu,
    "cudnn": lambda: torch("--sdpa", "cudnn"), "dry": lambda: step("dry-run", 20, [
        f"{BIN}/flatgpt", "train", "--data", f"{BIN}/train.bin", "--model", "gpt2", "--device", "cuda", "--seq-len",
        "1024", "--batch", "32", "--steps", "50", "--dry-run"], "total|driver"),
    "fp8": lambda: [step(f"gpt2-xl-{t}", 60, [
        f"{BIN}/flatgpt", "bench", "--device", "cuda", "--model", "gpt2-xl", "--batch", "8", "--seq-len", "1024",
        "--filter", "training", "--dtype", t], r"tokens/s|training step|algorithm")
        for t in ("bf16", "fp8", "fp8-block")],
    "sdpa": lambda: torch("--attention-only"), "torch": torch,
    "token": lambda: [step(os.path.basename(f), 40, [f], r"^ +\d+ |a token|WRONG", 14)
                      for f in sorted(glob.glob(f"{BIN}/ladder_token*"))],
    "ladders": lambda: [step(os.path.basename(f), 25, [f], "WRONG") for f in sorted(glob.glob(f"{BIN}/ladder_*"))],
}


def main():
    unknown = [s for s in sys.argv[2:] if s not in STEPS]
    if len(sys.argv) < 3 or unknown or not number(sys.argv[1]):
        sys.exit(f"{' '.join(sys.argv[1:])}: expected SECONDS STEP..., steps are {' '.join(STEPS)}")
    begin(number(sys.argv[1]))
    if not os.path.exists(BIN):
        with tarfile.open(f"{BIN}.tar.xz") as tar:
            tar.extractall(os.path.dirname(BIN), filter="data")
    for name in sys.argv[2:]:
        if left() < 2:
            say(f"{name:22} NOT RUN: the time is over")
            continue
        try:
            if STEPS[name]() is False and name == "machine":
                say("no GPU that these binaries can use: the rest is not run; give the machine back")
                break
        except Exception as error:    # the next step may still show something
            say(f"{name:22} the script failed: {type(error).__name__}: {error}")
            archive()
    for p in beside:
        p.kill()
    say(f"{left() + SPARE:.0f} s left")
    archive()


main()

#!/usr/bin/env python3
"""On the GPU's machine, where a minute counts: steps in their order until the deadline.

usage: dev/gpu_call.py SECONDS STEP...      STEPS below has their names

Runs the binaries of carry/gpu.tar.xz, which dev/gpu_pack.sh makes. Each step ends by its own limit or the deadline, with all that it
has started. After each, $OUT (default build/call) has summary.txt and results.tar.gz and nothing else, as few files come
back. Prints a row for each step with the figures found in it: the end of the output is all that is seen at once.
"""
import concurrent.futures
import glob
import hashlib
import json
import os
import re
import shutil
import signal
import statistics
import subprocess
import sys
import tarfile
import tempfile
import threading
import time

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
BIN = os.environ.get("GPU_BIN", f"{ROOT}/carry/gpu")
OUT = os.environ.get("OUT", f"{ROOT}/build/call")
WORK = tempfile.mkdtemp(dir="/dev/shm" if os.access("/dev/shm", os.W_OK) else None)    # a checkpoint is 1.7 GB
PARTS = f"{WORK}/parts"
START, DEADLINE = time.monotonic(), 0.0
ONLY = [f"-tc={os.environ['GPU_TESTS']}"] if os.environ.get("GPU_TESTS") else []    # doctest's filter
SPARE = 6    # seconds at the end, for the archive
summary, samples = [], []


def say(text):
    summary.append(text)
    print(text, flush=True)


def archive():
    with open(f"{OUT}/summary.txt", "w") as f:
        f.write("\n".join(summary) + "\n")
    with tarfile.open(f"{WORK}/results.tar.gz", "w:gz") as tar:
        tar.add(PARTS, "parts")
        tar.add(f"{OUT}/summary.txt", "summary.txt")
    shutil.move(f"{WORK}/results.tar.gz", f"{OUT}/results.tar.gz")


def left():
    return DEADLINE - SPARE - time.monotonic()


def execute(name, seconds, command, **environment):
    """(exit status, or 'over 30 s'; output), which parts/NAME.txt has, too"""
    path = f"{PARTS}/{name}.txt"
    seconds = min(seconds, left())
    if seconds < 2:
        return "no time left", ""
    with open(path, "w") as f:
        try:
            p = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=f, stderr=subprocess.STDOUT, cwd=ROOT,
                                 env={**os.environ, **environment}, start_new_session=True)
        except OSError as error:
            return str(error), ""
        try:
            status = p.wait(seconds)
        except subprocess.TimeoutExpired:
            status = f"over {seconds:.0f} s"
        try:
            os.killpg(p.pid, signal.SIGKILL)    # a hung kernel sees nothing gentler, and what was started goes along
        except ProcessLookupError:
            pass
        try:
            p.wait(5)
        except subprocess.TimeoutExpired:
            status = f"{status}, cannot be killed"
    return status, open(path, errors="replace").read()


def clocks(since):
    rows = [r for t, r in list(samples) if t >= since]
    rows = [(float(r[0]), float(r[1]), r[2]) for r in rows if re.match(r"[\d.]+$", r[0]) and re.match(r"[\d.]+$", r[1])]
    if not rows:
        return ""
    why = {r[2] for r in rows} - {"0x0000000000000000", "0x0000000000000001", "0x0000000000000004"}    # idle, power
    return (f"SM {min(r[0] for r in rows):.0f}-{max(r[0] for r in rows):.0f} MHz, {max(r[1] for r in rows):.0f} W" +
            (f", SLOWED {' '.join(sorted(why))}" if why else ""))


def step(name, seconds, command, figures=None, lines=8, **environment):
    began = time.monotonic()
    status, text = execute(name, seconds, command, **environment)
    say(f"{name:22} {'exit ' + str(status) if isinstance(status, int) else status:16} "
        f"{time.monotonic() - began:5.1f} s  {clocks(began)}")
    found = [line for line in text.splitlines() if figures and re.search(figures, line)]
    if status != 0 and not found:
        found = text.splitlines()[-3:]
    for line in found[:lines]:
        say(f"    {line[:150]}")
    archive()
    return status == 0


# ---- the machine ----------------------------------------------------------------------------------------------------

def watch():
    """One for all steps: the driver stays loaded, and no step pays for asking."""
    if not shutil.which("nvidia-smi"):
        return
    p = subprocess.Popen(["nvidia-smi", "--query-gpu=clocks.sm,power.draw,clocks_event_reasons.active,memory.used",
                          "--format=csv,noheader,nounits", "-lms", "250"], stdout=subprocess.PIPE,
                         stderr=subprocess.DEVNULL, text=True)
    for line in p.stdout:
        samples.append((time.monotonic(), [x.strip() for x in line.split(",")]))


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
    threading.Thread(target=watch, daemon=True).start()
    find_libraries()
    # Read once now, beside the tests, what PyTorch takes long to load from a cold disk.
    subprocess.Popen([sys.executable, "-c", "import torch; torch.zeros(1, device='cuda')"], stdout=subprocess.DEVNULL,
                     stderr=subprocess.DEVNULL)
    return step("machine", 60, ["bash", "-c", f"""
        nvidia-smi --query-gpu=name,driver_version,memory.total,clocks.max.sm --format=csv,noheader
        echo "$(uname -r), $(nproc) cores, $(lscpu | sed -n 's/^Model name: *//p')"; cat {BIN}/commit
        echo "LD_LIBRARY_PATH=$LD_LIBRARY_PATH"; ldd {BIN}/test_cuda
        time {BIN}/test_cuda -ltc"""], r"NVIDIA|cores|passing|not found|FAILED|^real")


# ---- tests ----------------------------------------------------------------------------------------------------------

def cases(first, last, seconds, tool=(), part="cases"):
    """{number: 'passed', 'failed' or 'skipped'} of those that came to their end, exit status, output"""
    status, text = execute(f"{part}-{first}-{last}", seconds,
                           [*tool, f"{BIN}/test_cuda", *ONLY, f"-f={first}", f"-l={last}"], OMP_NUM_THREADS="2")
    ended = re.findall(r"^(passed|FAILED|skipped) +[\d.]+ s  ", text, re.M)
    return {first + i: e.lower() for i, e in enumerate(ended)}, status, text


def report(number, status, text):
    say(f"    FAILED {status}: {names[number - 1]}")
    for line in [x for x in text.splitlines() if re.search(r"GPU failed|ERROR|values:|CHECK|=====", x)][:2]:
        say(f"        {line.strip()[:130]}")


names, failed = [], {}


def tests():
    """Five cases a process, several processes at a time; where one does not pass, each of its cases gets a process of
    its own, as a kernel that fails or hangs takes its process with it. What fails then runs again with nothing beside
    it: cases that look at free memory may fail beside others."""
    began = time.monotonic()
    listed = subprocess.run([f"{BIN}/test_cuda", *ONLY, "-ltc", "-nv"], capture_output=True, text=True, timeout=60).stdout
    names[:] = [x for x in listed.splitlines() if not re.match(r"\[doctest\]|===", x)]
    limit, result = float(os.environ.get("CASE_LIMIT", 40)), {}
    end = time.monotonic() + float(os.environ.get("TESTS_LIMIT", 130))    # a hang must not take all that follows along

    def run(first, last, seconds):
        return cases(first, last, min(seconds, end - time.monotonic()))
    with concurrent.futures.ThreadPoolExecutor(int(os.environ.get("JOBS", 8))) as pool:
        again = []
        for first, (ended, status, _) in zip(range(1, len(names) + 1, 5), pool.map(
                lambda f: run(f, min(f + 4, len(names)), 2 * limit), range(1, len(names) + 1, 5))):
            whole = len(ended) == min(5, len(names) - first + 1) and status in (0, 1)
            result |= {n: e for n, e in ended.items() if e != "failed"}
            again += [n for n, e in ended.items() if e == "failed"]
            again += [] if whole else [n for n in range(first, min(first + 5, len(names) + 1)) if n not in ended]
        say(f"{'tests':22} {len(names)} cases, {len(again)} of them again  {time.monotonic() - began:5.1f} s")
        alone = {n: (status, text) for n, (ended, status, text) in
                 zip(again, pool.map(lambda n: run(n, n, limit), again)) if not ended or ended[n] == "failed"}
        result |= {n: "passed" for n in again if n not in alone}
    for n, (status, text) in alone.items():
        if status == "no time left":
            continue
        hung, ended = str(status).startswith("over"), {}
        if not hung and end - time.monotonic() > 2:
            ended, status, text = run(n, n, limit)
        result[n] = "hung" if hung else ended.get(n, f"exit {status}")
        if result[n] not in ("passed", "skipped"):
            failed[n] = status, text
    with open(f"{PARTS}/tests.txt", "w") as f:
        f.writelines(f"{result.get(n, 'not run')}\t{name}\n" for n, name in enumerate(names, 1))
    count = {e: list(result.values()).count(e) for e in sorted(set(result.values()))}
    say(f"    {', '.join(f'{n} {e}' for e, n in count.items())}, {len(names) - len(result)} not run; "
        f"{time.monotonic() - began:.1f} s")
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


# ---- figures --------------------------------------------------------------------------------------------------------

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
                         "--seq-len", "1024", "--batch", "32", "--out", run, *flags], r"GPU failed|warning", 4,
         **environment)
    if os.path.exists(f"{run}/metrics.jsonl"):
        shutil.copy(f"{run}/metrics.jsonl", f"{PARTS}/{name}-metrics.jsonl")
        rows = [json.loads(x) for x in open(f"{run}/metrics.jsonl") if x.endswith("\n")]
        late = rows[len(rows) // 4:]    # the first steps choose algorithms
        if late:
            say(f"    steps {late[0]['step']} to {late[-1]['step']}: median "
                f"{statistics.median(x['tokens_per_second'] for x in late):.0f} tokens/s, "
                f"{statistics.median(x['ms'] for x in late):.1f} ms, MFU "
                f"{100 * statistics.median(x.get('mfu', 0) for x in late):.1f} %; loss {rows[0]['loss']:.3f} to "
                f"{rows[-1]['loss']:.3f}; most memory {max((float(r[3]) for t, r in list(samples) if t >= began), default=0):.0f} MiB")


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
    step("bench", 110, [f"{BIN}/flatgpt", "bench", "--device", "cuda", "--batch", "32", "--seq-len", "1024"],
         r"ceilings|tokens/s|training step|generation, (1|64) |attention_(for|back)ward  |linear_forward (qkv|fc)  ", 14)


def profile():
    """Training and generation alone: what an operation takes within a step."""
    step("steps", 70, [f"{BIN}/flatgpt", "bench", "--device", "cuda", "--batch", "32", "--seq-len", "1024",
                       "--steps-only", "--profile"], r"ceilings|tokens/s|training step|generation, |prompt", 12)


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
            step(f"{name}, {row}", 40, [binary, "bench", "--device", "cuda", "--batch", "32", "--seq-len", "1024",
                                        "--filter", row.strip()], rf"^{row}|tokens/s", 3, **environment)


def same_bits():
    """A run of 8 steps, and the same from its checkpoint at step 4: once without a break, once killed on its way."""
    began = time.monotonic()
    flags = ["--data", f"{BIN}/train.bin", "--model", "gpt2", "--device", "cuda", "--seq-len", "1024", "--batch", "8",
             "--lr", "6e-4", "--steps", "8", "--save-every", "2", "--keep", "0", "--save-minutes", "0"]

    def run(name, from_4, killed=False):
        to = f"{WORK}/bits-{name}"
        if from_4:
            os.makedirs(to)
            for f in os.listdir(f"{WORK}/bits-whole"):
                source = f"{WORK}/bits-whole/{f}"
                if f == "step_00000004": shutil.copytree(source, f"{to}/{f}")
                elif os.path.isfile(source): shutil.copy(source, to)
        command = [f"{BIN}/flatgpt", "train", *flags, "--resume", "auto", "--out", to]
        if killed:
            p = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                                 stderr=subprocess.DEVNULL)
            until = time.monotonic() + 30
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


def sample():
    """Tokens as a user gets them, behind a prompt, with the model's loading in it."""
    run = f"{WORK}/run"
    for name, flags in (("1", ()), ("64", ("--num", "64")), ("top-p", ("--top-p", "0.9")),
                        ("lookup", ("--temperature", "0", "--lookup", "8"))):
        step(f"sample-{name}", 40, ["bash", "-c", f"time {BIN}/flatgpt sample {run} --tokens 512 --ignore-end "
             f"--device cuda --prompt 'The model' {' '.join(flags)} >/dev/null"], r"^real|token", 4)


def ncu():
    """Counters of single kernels of bench, and the times of all kernels of some tokens. Their rows' names come from
    the command line, as the kernels' do."""
    bench = [f"{BIN}/flatgpt", "bench", "--device", "cuda", "--batch", "32", "--seq-len", "1024", "--filter"]
    tool = ["ncu", "--clock-control", "none"]
    for name, kernel, row in (("forward", "forward_kernel", "attention_forward"),
                              ("backward", "backward_kernel", "attention_backward"),
                              ("cross_entropy", "cross_entropy", "cross_entropy"),
                              ("norm_backward", "norm_backward_kernel", "norm_backward"),
                              ("adamw", "adamw_kernel", "adamw")):
        step(f"ncu-{name}", 40, [*tool, "--set", "full", "-k", f"regex:{kernel}", "--launch-skip", "2",
                                 "--launch-count", "1", *bench, row],
             r"==ERROR==|No kernels|Duration|Throughput +%|Registers Per|Achieved Occ|L2 Hit|Issue Slots", 12)
    for name, launches, skip in (("token", "80", "600"),):
        step(f"ncu-{name}", 60, [*tool, "--cache-control", "none", "--csv", "--page", "raw", "--metrics",
                                 "gpu__time_duration.sum,dram__bytes.sum,launch__grid_size,launch__block_size",
                                 "--launch-skip", skip, "--launch-count", launches, f"{BIN}/flatgpt", "bench",
                                 "--device", "cuda", "--filter", "generation, 1 "], "==ERROR==|No kernels")


def torch(*flags):
    step("torch", 200, [sys.executable, "dev/compare_torch.py", *flags], r"tflops|tokens|kernels|error|Error", 14,
         TORCHINDUCTOR_AUTOGRAD_CACHE="0")


STEPS = {
    "machine": machine, "tests": tests, "sanitizer": sanitizer, "selftest": selftest, "losses": losses, "bench": bench,
    "train": lambda: train("train", 60, "--lr", "6e-4", "--steps", "40"),
    "train80": lambda: train("train80", 60, "--lr", "6e-4", "--steps", "20", FLATGPT_ATTENTION="sm80"),
    "profile": profile, "variants": variants, "bits": same_bits, "sample": sample, "ncu": ncu,
    "cudnn": lambda: torch("--sdpa", "cudnn"), "dry": lambda: step("dry-run", 20, [
        f"{BIN}/flatgpt", "train", "--data", f"{BIN}/train.bin", "--model", "gpt2", "--device", "cuda", "--seq-len",
        "1024", "--batch", "32", "--steps", "50", "--dry-run"], "total|driver"),
    "fp8": lambda: [step(f"gpt2-xl-{t}", 60, [
        f"{BIN}/flatgpt", "bench", "--device", "cuda", "--model", "gpt2-xl", "--batch", "8", "--seq-len", "1024",
        "--filter", "training", "--dtype", t], r"tokens/s|training step|algorithm") for t in ("bf16", "fp8", "fp8-block")],
    "sdpa": lambda: torch("--attention-only"), "torch": torch,
    "ladders": lambda: [step(os.path.basename(f), 25, [f], "WRONG") for f in sorted(glob.glob(f"{BIN}/ladder_*"))],
}


def main():
    global DEADLINE
    DEADLINE = START + float(sys.argv[1])
    unknown = [s for s in sys.argv[2:] if s not in STEPS]
    if unknown:
        sys.exit(f"{unknown[0]}: expected {' '.join(STEPS)}")
    os.makedirs(OUT, exist_ok=True)
    os.makedirs(PARTS)
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
    say(f"{DEADLINE - time.monotonic():.0f} s left")
    archive()


main()

"""What dev/gpu_call.py runs its steps with: a deadline for all, an output for each, rows and an archive
that are whole whenever the machine is taken away."""
import atexit
import contextlib
import os
import re
import shutil
import signal
import subprocess
import tarfile
import tempfile
import time

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
BIN = os.environ.get("GPU_BIN", f"{ROOT}/carry/gpu")
OUT = os.environ.get("OUT", f"{ROOT}/build/call")
WORK = tempfile.mkdtemp(dir="/dev/shm" if os.access("/dev/shm", os.W_OK) else None)    # a checkpoint is 1.7 GB
atexit.register(shutil.rmtree, WORK, ignore_errors=True)
PARTS = f"{WORK}/parts"
START, DEADLINE = time.monotonic(), 0.0    # begin() sets the second
SPARE = 6    # seconds at the end, for the archive
summary, samples, beside = [], [], []    # beside: processes that run along with the steps


def say(text):
    summary.append(text)
    print(text, flush=True)


def archive():
    """Both files are whole at any time: each is written on the same disk under another name, then renamed."""
    with open(f"{OUT}/.summary", "w") as f:
        f.write("\n".join(summary) + "\n")
    with tarfile.open(f"{OUT}/.results", "w:gz") as tar:
        tar.add(PARTS, "parts")
        tar.add(f"{OUT}/.summary", "summary.txt")
    os.replace(f"{OUT}/.results", f"{OUT}/results.tar.gz")
    os.replace(f"{OUT}/.summary", f"{OUT}/summary.txt")


def begin(seconds):
    global DEADLINE
    DEADLINE = START + seconds
    os.makedirs(OUT, exist_ok=True)
    os.makedirs(PARTS)
    archive()


def left():
    return DEADLINE - SPARE - time.monotonic()


def part(stem, ending=".txt"):
    """A file of parts/ that does not exist yet, as a step may run twice."""
    names = [f"{PARTS}/{stem}{n}{ending}" for n in ["", *range(-2, -100, -1)]]
    return next(x for x in names if not os.path.exists(x))


def execute(name, seconds, command, head="", **environment):
    """(exit status, or 'over 30 s'; output), which parts/NAME.txt has behind `head`"""
    path = part(name)
    seconds = min(seconds, left())
    if seconds < 2:
        return "no time left", ""
    with open(path, "w") as f:
        f.write(head)
        f.flush()
        try:
            p = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=f, stderr=subprocess.STDOUT, cwd=ROOT,
                                 env={**os.environ, **environment}, start_new_session=True)
        except OSError as error:
            return str(error), ""
        try:
            status = p.wait(seconds)
        except subprocess.TimeoutExpired:
            status = f"over {seconds:.0f} s"
        with contextlib.suppress(ProcessLookupError):
            os.killpg(p.pid, signal.SIGKILL)    # a hung kernel sees nothing gentler, and what was started goes along
        try:
            p.wait(5)
        except subprocess.TimeoutExpired:
            status = f"{status}, cannot be killed"
    return status, open(path, errors="replace").read()[len(head):]


def number(text):    # "[N/A]" where a driver does not know it
    return float(text) if re.fullmatch(r"[\d.]+", text) else 0.0


def clocks(since):
    rows = [(number(r[0]), number(r[1]), r[2]) for t, r in list(samples) if t >= since and number(r[0])]
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

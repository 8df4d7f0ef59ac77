"""What dev/gpu_call.py runs its steps with: a deadline for all, an output for each, rows and an archive
that are whole whenever the machine is taken away."""
import atexit
import contextlib
import glob
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


# ---- the day's call before -----------------------------------------------------------------------

BEFORE = "   before: "
earlier = None    # figures() of that call, once the card is known


def row_name(line):
    """The text before a line's columns; or where it has none, the line without its numbers."""
    fields = re.split(r"\s{2,}", line.strip())
    return fields[0] if len(fields) > 1 else re.sub(r"\d[\d.]*", "#", fields[0])


def figures(lines):
    """{(step, row's name): its lines, as a step or a row may come twice}, and the last step"""
    rows, last = {}, ""
    for line in lines:
        if found := re.match(r"(\S.*?) +(exit -?\d+|over \d+ s|no time left)\b", line):
            last = found[1]
        elif line.startswith("    "):
            line = line.partition(BEFORE)[0]
            rows.setdefault((last, row_name(line)), []).append(line)
    return rows, last


def card_of(lines):
    return next((found[1] for line in lines if (found := re.match(r"    (NVIDIA[^,]*),", line))), None)


def find_earlier():
    """The newest of today's calls on this card in dev/results, which travels with the tree, or that in $GPU_BEFORE."""
    global earlier
    card, calls = card_of(summary), []
    if earlier is not None or not card:    # the step `machine` says which card it is
        return earlier or {}
    for folder in glob.glob(os.environ.get("GPU_BEFORE", f"{ROOT}/dev/results/{time.strftime('%Y-%m-%d')}_*")):
        with contextlib.suppress(OSError):
            lines = open(f"{folder}/summary.txt").read().splitlines()
            if card_of(lines) == card:
                began = lines[0] if re.match(r"\d{4}-", lines[0]) else ""    # begin() says it
                calls.append((began, folder, lines))
    earlier = figures(max(calls)[2])[0] if calls else {}
    if calls:
        say(f"    beside figures that have changed: {os.path.basename(max(calls)[1])}")
    return earlier


def figure(line):
    """Says a line of figures, with the same row of the call before beside it."""
    before = find_earlier()
    rows, last = figures(summary)
    key = last, row_name(line)
    same = before.get(key, [])[len(rows.get(key, [])):][:1]
    old = " ".join(same).strip().removeprefix(key[1]).strip()
    say(f"    {line}" + (BEFORE + re.sub(r"\s+", " ", old) if old and same != [f"    {line}"] else ""))


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
    say(time.strftime("%Y-%m-%d %H:%M:%S"))
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


def step(name, seconds, command, pattern=None, lines=8, **environment):
    began = time.monotonic()
    status, text = execute(name, seconds, command, **environment)
    say(f"{name:22} {'exit ' + str(status) if isinstance(status, int) else status:16} "
        f"{time.monotonic() - began:5.1f} s  {clocks(began)}")
    found = [line for line in text.splitlines() if pattern and re.search(pattern, line)]
    if status != 0 and not found:
        found = text.splitlines()[-3:]
    for line in found[:lines]:
        figure(line[:150])
    archive()
    return status == 0

"""What gpu_time.py expects beside what an H200 has measured (dev/results) and what others have published; and the bars
that its expectations are held to. Only agreement is checked: a bar is printed as met or not met."""
import os
import re
import statistics
import tarfile

from sass_read import ROOT

ARCHIVE = os.path.join(ROOT, "dev", "results", "2026-11-27_NVIDIA-H200_a84e32b", "results.tar.gz")

# Kinds of bench's rows, the first that a name begins with; the largest median error that is
# allowed. Kinds and limits were chosen with the ratios in view: they notice a model that becomes
# worse. Kernels may have become faster since: then a kind's ratios fall, and the next measurement
# is due. None: known to be off, and why.
KINDS = [
    ("memory-bound", r"embed|\w*norm|add_|activation|copy|rope|cross|sum_of|update_weights|nesterov|experts_(gather|comb)", 0.15),
    ("attention on sm_90", r"attention_(forward|backward)(, (8 doc|bidir|half|window 64$)|$)", 0.25),
    ("products of training", r"linear_\w*(forward|backward) \w+$", 0.15),
    ("short calls", r"sample, \d+ texts?$|attention_cached, 1 x|linear_attention_cached", 0.25),
    ("one row times w: launched again at once, it overlaps itself", r"linear.* 1 row", None),
    ("attention over many keys: how its rounds wait is not counted", r"attention_cached|cache_rotate", None),
    ("top-p: how its search's rounds wait is not counted", r"sample", None),
    ("mma.sync, sums without softmax, experts: not looked at", r"", None)]

# calm (github.com/zeux/calm, README at 021304d): Llama 2 7B, Mistral 7B and Phi 2.7B in fp16 on a
# GeForce RTX 4090 of 1008 GB/s, GB/s at the begin and the end of their contexts.
CALM, CALM_DRAM = (892, 901, 903, 905, 888, 895), 1008


def bench_rows(lines):
    """{row: microseconds}: the medians that `flatgpt bench` printed."""
    rows = (re.match(r"(\S.{45}.*?) +[\d.]+ +([\d.]+) .* [\d.]+ +\d+ %$", line)    # a name has 46 columns or more
            for line in lines)
    return {row[1].strip(): float(row[2]) for row in rows if row}


def archived(name="bench.txt"):
    """The lines of a step's output on the H200."""
    with tarfile.open(ARCHIVE) as archive:
        member = next(m for m in archive.getmembers() if m.name.endswith("parts/" + name))
        return archive.extractfile(member).read().decode(errors="replace").splitlines()


def beside_bench(expected, measured):
    """[(whether, what is wrong otherwise)] of bench's rows on an H200, by kind."""
    print("\nbench's rows on an H200, expected / measured on 2026-11-27: median (least to largest), by kind")
    checks, left = [], {e.row["name"]: 1e6 * e.seconds / measured[e.row["name"]] for e in expected
                        if e.row["name"] in measured}
    for kind, pattern, allowed in KINDS:
        ratios = sorted(left.pop(name) for name in list(left) if re.match(pattern, name))
        if not ratios:
            continue
        error = statistics.median(abs(r - 1) for r in ratios)
        print(f"  {len(ratios):2} {kind}: {statistics.median(ratios):.2f} ({ratios[0]:.2f} to {ratios[-1]:.2f})" +
              (f", median error {100 * error:.0f} %, allowed {100 * allowed:.0f} %" if allowed else ""))
        if allowed:
            checks.append((error <= allowed, f"{kind}: the median error beside an H200's rows is {100 * error:.0f} %"))
    return checks


def beside_published(copy, forward, backward):
    """copy: of DRAM's rate. forward, backward: expected seconds of attention at B=32 NH=12 T=1024 HS=64, an H200."""
    share = statistics.median(CALM) / CALM_DRAM
    print(f"\nA copy's share of DRAM's rate is {copy:.3f} (fitted to an H200); calm's tokens on an RTX 4090 are at "
          f"{share:.3f}\nattention on the H200, us, expected of ours / measured of cuDNN 9.19: forward "
          f"{1e6 * forward:.0f} / 154, backward {1e6 * backward:.0f} / 514")
    return [(abs(copy / share - 1) < 0.05, "a copy's share of DRAM's rate is not what calm's tokens reach")]


# ---- bars ----------------------------------------------------------------------------------------

# (what, GPU or any, model, its value of {table: Total}, the bar, its unit, whether more is better)
BARS = [
    ("a training step, B=32 T=1024", None, "gpt2", lambda t: 100 * t["step"].mfu, 45, "% MFU", True),
    ("a token of 1 sequence", "H100", "gpt2", lambda t: 1e6 * t["token"].seconds, 140, "us", False),
    ("a token at position 1000", None, "llama-3.2-1b", lambda t: 100 * t["token at position 1000"].share, 85,
     "% of the floor", True),
    ("a prompt of 8192", None, "llama-3.2-1b", lambda t: 1e3 * t["prompt of 8192"].seconds, 60, "ms", False)] + [
    ("a checked draft of 8", None, model, lambda t: t["draft of 8 at position 1000"].seconds /
     t["token at position 1000"].seconds, 1.3, "times a step", False) for model in ("gpt2", "llama-3.2-1b")]


def print_bars(gpu, totals):
    """totals: {model: {table: Total}}"""
    print(f"\nBars: expectations for one {gpu.name}, no measurements")
    for what, card, model, value, bar, unit, more in BARS:
        if model not in totals or (card and not gpu.name.startswith(card)):
            continue
        now = value(totals[model])
        met = now >= bar if more else now <= bar
        print(f"  {'met    ' if met else 'NOT MET'} {model}, {what}: {now:.3g} {unit}, the bar is "
              f"{'at least' if more else 'at most'} {bar}")

#!/usr/bin/env python3
"""PyTorch on the same machine, for side-by-side figures: attention's products and a training step on a GPU; training
steps of GPT-2 and Llama on a CPU.

usage: dev/compare_torch.py [--batch 32] [--seq-len 1024] [--steps 20] [--device cuda] [--attention-only]
       dev/compare_torch.py --device cpu [--rounds 3] [--models 0,1,2,3,4,5] [--dtypes fp32,bf16] [--threads N]
                            [--no-compile] [--apart]
Prints one JSON object a line. On a GPU: {"what": ..., "ms": median, ...}, with random inputs in rotation, by the
device's events. On a CPU: tokens/s of the best step of each round, medians over the rounds, of PyTorch eager and
compiled and of `flatgpt bench` (./flatgpt, or FLATGPT) in turns, and flatgpt's over the best PyTorch's. --models: rows
of CPU_MODELS; number 6, with 1B parameters, is not among the default ones and needs --apart: memory then holds one
PyTorch or flatgpt at a time, each started anew in each round. --threads: all CPUs by default.

On a CPU PyTorch runs as it comes, and again "preloaded": with libtcmalloc_minimal or libjemalloc, where it is
installed, and on AMD with MKL's check of the vendor overridden (needs cc); the first line tells which. PyPI's wheel
holds MKL within libtorch_cpu.so, which still calls mkl_serv_intel_cpu_true through its table of symbols, so LD_PRELOAD
replaces it. On one core of Zen 4 this took F.linear of torch 2.15 in fp32, four shapes, from between 75 and 95 GFLOP/s
to between 82 and 108, and torch.bmm from 68 to 84 (2026-11-29, a busy machine, by CPU time).

PyPI's torch needs NVIDIA's libraries to load, also on a CPU. Where the CUDA toolkit and cuDNN are installed, these
are enough: pip install --no-deps torch filelock typing-extensions sympy networkx jinja2 markupsafe fsspec mpmath
setuptools numpy nvidia-cufile nvidia-cusparselt-cu13 nvidia-nvshmem-cu13 nvidia-nccl-cu13, in the versions that torch
asks for. Elsewhere: pip install torch.
"""
import argparse
import contextlib
import ctypes.util
import functools
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time

# A second backend would get the first one's graph: PyTorch's key for it does not have the backend
# (its issue 185449).
os.environ["TORCHINDUCTOR_AUTOGRAD_CACHE"] = "0"

import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel

BACKENDS = {"flash": SDPBackend.FLASH_ATTENTION, "cudnn": SDPBackend.CUDNN_ATTENTION}


def timed(call, device, repeats=20):
    """Median milliseconds of a call. Several are queued between two events: the host's dispatch is not the device's."""
    queued = 20
    for _ in range(3):
        call()
    times = []
    for _ in range(max(3, repeats // queued) if device == "cuda" else repeats):
        if device == "cuda":
            start, stop = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            torch.cuda._sleep(10_000_000)    # the queue fills up behind it
            start.record()
            for _ in range(queued):
                call()
            stop.record()
            torch.cuda.synchronize()
            times.append(start.elapsed_time(stop) / queued)
        else:
            before = time.perf_counter()
            call()
            times.append(1e3 * (time.perf_counter() - before))
    return statistics.median(times)


def attention(args):
    B, H, T, D = args.batch, 12, args.seq_len, 64
    sets = [[torch.randn(B, H, T, D, device=args.device, dtype=torch.bfloat16, requires_grad=True) for _ in range(3)]
            for _ in range(4)]
    gradient = torch.randn(B, H, T, D, device=args.device, dtype=torch.bfloat16)
    pairs = B * H * T * (T + 1) / 2 * D
    for name, backend in BACKENDS.items():
        try:
            with sdpa_kernel(backend):
                turn = [0]

                def forward():
                    turn[0] += 1
                    return F.scaled_dot_product_attention(*sets[turn[0] % 4], is_causal=True)

                ms = timed(forward, args.device)
                outputs = [F.scaled_dot_product_attention(*s, is_causal=True) for s in sets]

                def backward():
                    turn[0] += 1
                    i = turn[0] % 4
                    torch.autograd.grad(outputs[i], sets[i], gradient, retain_graph=True)

                back = timed(backward, args.device)
        except RuntimeError as error:
            print(json.dumps({"what": f"sdpa {name}", "error": str(error).splitlines()[0]}), flush=True)
            continue
        print(json.dumps({"what": f"sdpa {name} forward", "ms": ms, "tflops": 4 * pairs / ms / 1e9}), flush=True)
        print(json.dumps({"what": f"sdpa {name} backward", "ms": back, "tflops": 8 * pairs / back / 1e9}), flush=True)


class Block(nn.Module):
    def __init__(self, channels, heads):
        super().__init__()
        self.heads = heads
        self.ln1, self.ln2 = nn.LayerNorm(channels), nn.LayerNorm(channels)
        self.qkv, self.proj = nn.Linear(channels, 3 * channels), nn.Linear(channels, channels)
        self.fc, self.fc2 = nn.Linear(channels, 4 * channels), nn.Linear(4 * channels, channels)

    def forward(self, x):
        B, T, C = x.shape
        q, k, v = (p.view(B, T, self.heads, C // self.heads).transpose(1, 2)
                   for p in self.qkv(self.ln1(x)).split(C, dim=2))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.proj(y.transpose(1, 2).reshape(B, T, C))
        return x + self.fc2(F.gelu(self.fc(self.ln2(x)), approximate="tanh"))


class Gpt(nn.Module):
    def __init__(self, vocabulary, context, layers, heads, channels):
        super().__init__()
        self.wte, self.wpe = nn.Embedding(vocabulary, channels), nn.Embedding(context, channels)
        self.blocks = nn.ModuleList(Block(channels, heads) for _ in range(layers))
        self.ln = nn.LayerNorm(channels)

    def forward(self, tokens, targets):
        x = self.wte(tokens) + self.wpe.weight[: tokens.shape[1]]
        for block in self.blocks:
            x = block(x)
        logits = F.linear(self.ln(x), self.wte.weight)
        return F.cross_entropy(logits.float().view(-1, logits.shape[-1]), targets.view(-1))


class LlamaBlock(nn.Module):
    def __init__(self, channels, heads, ffn):
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.RMSNorm(channels, eps=1e-5), nn.RMSNorm(channels, eps=1e-5)
        self.qkv = nn.Linear(channels, 3 * channels, bias=False)
        self.proj = nn.Linear(channels, channels, bias=False)
        self.gate_up = nn.Linear(channels, 2 * ffn, bias=False)
        self.down = nn.Linear(ffn, channels, bias=False)

    def forward(self, x, cos, sin):
        def turned(y):
            u, v = y.chunk(2, dim=-1)
            return torch.cat((u * cos - v * sin, v * cos + u * sin), dim=-1)

        B, T, C = x.shape
        q, k, v = (p.view(B, T, self.heads, C // self.heads).transpose(1, 2)
                   for p in self.qkv(self.norm1(x)).split(C, dim=2))
        y = F.scaled_dot_product_attention(turned(q), turned(k), v, is_causal=True)
        x = x + self.proj(y.transpose(1, 2).reshape(B, T, C))
        gate, up = self.gate_up(self.norm2(x)).chunk(2, dim=-1)
        return x + self.down(F.silu(gate) * up)


class Llama(nn.Module):
    """flatgpt's llama:dN: ffn 8/3 C in multiples of 32, head and embeddings apart."""

    def __init__(self, vocabulary, context, layers, heads, channels):
        super().__init__()
        self.embeddings = nn.Embedding(vocabulary, channels)
        ffn = -(-8 * channels // 3 // 32) * 32
        self.blocks = nn.ModuleList(LlamaBlock(channels, heads, ffn) for _ in range(layers))
        self.norm = nn.RMSNorm(channels, eps=1e-5)
        self.head = nn.Linear(channels, vocabulary, bias=False)
        frequencies = 1e4 ** (-torch.arange(0, channels // heads, 2) / (channels // heads))
        angles = torch.arange(context)[:, None] * frequencies
        self.register_buffer("cos", angles.cos())
        self.register_buffer("sin", angles.sin())

    def forward(self, tokens, targets):
        x = self.embeddings(tokens)
        T = tokens.shape[1]
        for block in self.blocks:
            x = block(x, self.cos[:T].to(x.dtype), self.sin[:T].to(x.dtype))
        logits = self.head(self.norm(x))
        return F.cross_entropy(logits.float().view(-1, logits.shape[-1]), targets.view(-1))


def training(args):
    torch.set_float32_matmul_precision("high")
    B, T = args.batch, args.seq_len
    model = Gpt(50304, 1024, 12, 12, 768).to(args.device)    # the padded vocabulary, as everybody trains it
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, betas=(0.9, 0.95), weight_decay=0.1, fused=True)
    run = torch.compile(model)
    tokens = torch.randint(0, 50257, (4, B, T + 1), device=args.device)
    turn = [0]

    def step():
        turn[0] += 1
        batch = tokens[turn[0] % 4]
        with torch.autocast(args.device, dtype=torch.bfloat16):
            loss = run(batch[:, :-1].contiguous(), batch[:, 1:].contiguous())
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    for name, backend in ((n, BACKENDS[n]) for n in args.sdpa.split(",")):
        try:
            with sdpa_kernel(backend):
                ms = timed(step, args.device, args.steps)
                kernels = attention_kernels(step) if args.device == "cuda" else []
        except RuntimeError as error:
            print(json.dumps({"what": f"training, sdpa {name}", "error": str(error).splitlines()[0]}), flush=True)
            torch.compiler.reset()
            continue
        print(json.dumps({"what": f"training step, compiled bf16, sdpa {name}", "ms": ms,
                          "tokens_per_second": B * T / ms * 1e3, "attention kernels": kernels}), flush=True)
        torch.compiler.reset()


def attention_kernels(step):
    """The names of the attention kernels that a step runs: a compiled graph may have another backend than was asked."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as seen:
        step()
        torch.cuda.synchronize()
    words = ("flash", "fmha", "sdpa", "cudnn_generated", "attention")
    return sorted({e.key[:60] for e in seen.key_averages() if any(w in e.key.lower() for w in words)})


# Name, family, layers, heads, channels, vocabulary (ours, and padded as everybody pads it), batch,
# sequence.
CPU_MODELS = [("GPT-2 124M, B=4 T=256", "gpt2", 12, 12, 768, 50257, 50304, 4, 256),
              ("GPT-2 124M, B=1 T=1024", "gpt2", 12, 12, 768, 50257, 50304, 1, 1024),
              ("6 layers, 6 heads, C=384, T=256, B=12, V=65", "gpt2", 6, 6, 384, 65, 65, 12, 256),
              ("4 layers, 4 heads, C=128, T=64, B=12, V=65", "gpt2", 4, 4, 128, 65, 65, 12, 64),
              ("Llama d12, B=4 T=256", "llama", 12, 12, 768, 50257, 50304, 4, 256),
              ("Llama d6, T=256, B=12, V=65", "llama", 6, 6, 384, 65, 65, 12, 256),
              ("Llama 1B, B=1 T=256", "llama", 16, 16, 2048, 50257, 50304, 1, 256)]
TWINS = {"gpt2": Gpt, "llama": Llama}


def flatgpt_speed(family, layers, heads, channels, vocabulary, B, T, dtype, threads):
    command = [os.environ.get("FLATGPT", "./flatgpt"), "bench", "--filter", "training", "--json", "--device", "cpu",
               "--model", f"{family}:d{layers}", "--layers", str(layers), "--heads", str(heads),
               "--channels", str(channels), "--vocab", str(vocabulary),
               "--batch", str(B), "--seq-len", str(T), "--dtype", dtype, "--threads", str(threads)]
    for line in subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines():
        row = json.loads(line)
        if row["name"].startswith("training step"):
            return B * T / row["best_us"] * 1e6
    raise RuntimeError("flatgpt bench printed no training step")


def torch_stepper(family, layers, heads, channels, vocabulary, B, T, dtype, compiled):
    torch.manual_seed(1)
    model = TWINS[family](vocabulary, T, layers, heads, channels)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, betas=(0.9, 0.95), weight_decay=0.1, fused=True)
    run = torch.compile(model) if compiled else model
    tokens = torch.randint(0, min(vocabulary, 50257), (4, B, T + 1))
    turn = [0]

    def step():
        turn[0] += 1
        batch = tokens[turn[0] % 4]
        half = torch.autocast("cpu", dtype=torch.bfloat16) if dtype == "bf16" else contextlib.nullcontext()
        with half:
            loss = run(batch[:, :-1].contiguous(), batch[:, 1:].contiguous())
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    return step


def preloads(folder):
    """The libraries that make PyTorch faster here."""
    found = [ctypes.util.find_library(name) for name in ("tcmalloc_minimal", "jemalloc")]
    libraries = [name for name in found if name][:1]
    with open("/proc/cpuinfo") as file:
        amd = "AuthenticAMD" in file.read()
    if amd:
        source, library = os.path.join(folder, "intel.c"), os.path.join(folder, "mkl_serv_intel_cpu_true.so")
        with open(source, "w") as file:
            file.write("int mkl_serv_intel_cpu_true(void) { return 1; }\n")
        subprocess.run(["cc", "-shared", "-fPIC", "-o", library, source], check=True)
        libraries.insert(0, library)
    return libraries


class Worker:
    """A process of this script with a model of its own, which measures when it is told to."""

    def __init__(self, args, model, dtype, compiled, libraries):
        command = [sys.executable, __file__, "--device", "cpu", "--threads", str(args.threads), "--models", str(model),
                   "--dtypes", dtype, "--worker"] + ([] if compiled else ["--no-compile"])
        environment = {**os.environ, "LD_PRELOAD": " ".join(libraries)}
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
                                        env=environment)
        self.answer()    # The warm-up is over before anything else is measured.

    def answer(self):
        line = self.process.stdout.readline()
        if not line:
            sys.exit(f"PyTorch ended with status {self.process.wait()}")
        return json.loads(line)

    def speed(self):
        print(file=self.process.stdin, flush=True)
        return self.answer()

    def close(self):
        self.process.communicate()


def work(args):
    """A worker's side: a line when warm, then tokens/s of the best step within 4 s for each line of the input."""
    torch.set_num_threads(args.threads)
    _, family, layers, heads, channels, _, padded, B, T = CPU_MODELS[int(args.models)]
    step = torch_stepper(family, layers, heads, channels, padded, B, T, args.dtypes, not args.no_compile)
    for _ in range(3):
        step()
    print("0", flush=True)
    for _ in sys.stdin:
        best = 1e9
        until = time.perf_counter() + 4
        while time.perf_counter() < until:
            before = time.perf_counter()
            step()
            best = min(best, time.perf_counter() - before)
        print(json.dumps(B * T / best), flush=True)


def on_cpu(args, libraries):
    variants = {"eager": (False, [])}
    if not args.no_compile:
        variants["compiled"] = (True, [])
    if libraries:
        variants.update({f"{who}, preloaded": (compiled, libraries) for who, (compiled, _) in list(variants.items())})
    for m in (int(i) for i in args.models.split(",")):
        name, family, layers, heads, channels, ours, _, B, T = CPU_MODELS[m]
        for dtype in args.dtypes.split(","):
            start = {who: functools.partial(Worker, args, m, dtype, *how) for who, how in variants.items()}
            workers = {} if args.apart else {who: begin() for who, begin in start.items()}
            speeds = {who: [] for who in ("flatgpt", *variants)}
            for _ in range(args.rounds):
                speeds["flatgpt"].append(flatgpt_speed(family, layers, heads, channels, ours, B, T, dtype,
                                                       args.threads))
                for who, begin in start.items():
                    worker = workers.get(who) or begin()
                    speeds[who].append(worker.speed())
                    if args.apart:
                        worker.close()
            for worker in workers.values():
                worker.close()
            median = {who: statistics.median(s) for who, s in speeds.items()}
            best = max(variants, key=median.get)
            row = {"what": name, "dtype": dtype, **{who: round(s) for who, s in median.items()}, "best": best,
                   "flatgpt / best": round(median["flatgpt"] / median[best], 2)}
            print(json.dumps(row), flush=True)


if __name__ == "__main__":
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--batch", type=int, default=32)
    p.add_argument("--seq-len", type=int, default=1024)
    p.add_argument("--steps", type=int, default=20)
    p.add_argument("--device", default="cuda")
    p.add_argument("--attention-only", action="store_true")
    p.add_argument("--sdpa", default="flash,cudnn", help="the backends of attention that a step is compiled with")
    p.add_argument("--rounds", type=int, default=3)
    p.add_argument("--models", default="0,1,2,3,4,5")
    p.add_argument("--threads", type=int, default=os.cpu_count())
    p.add_argument("--dtypes", default="fp32,bf16")
    p.add_argument("--no-compile", action="store_true")
    p.add_argument("--apart", action="store_true")
    p.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    options = p.parse_args()
    if options.worker:
        work(options)
    elif options.device == "cpu":
        with tempfile.TemporaryDirectory() as folder:
            libraries = preloads(folder)
            print(json.dumps({"torch": torch.__version__, "device": "cpu",
                              "preloaded": [os.path.basename(name) for name in libraries]}), flush=True)
            on_cpu(options, libraries)
    else:
        print(json.dumps({"torch": torch.__version__, "device": torch.cuda.get_device_name()}), flush=True)
        attention(options)
        if not options.attention_only:
            training(options)

#!/usr/bin/env python3
"""flatgpt against llama.cpp on one GGUF file: its tokens and logits, or its speed.

    pip install llama-cpp-python numpy && make build/dev/logits
    dev/compare_llama.py MODEL.gguf TEXT [--windows 4] [--length 256] [--greedy 32] [--repack]
    dev/compare_llama.py --build
    dev/compare_llama.py MODEL.gguf --speed [--prompts 512] [--depths 0,512,900] [--tokens 32] [--rounds 5]
                         [--threads N] [--llama-bench 'PROGRAM [OPTION...]']...

With a TEXT: prints whether both have the same tokens of the text, the largest difference of logits over the same
windows, both perplexities, and whether the likeliest continuations of the first half window are equal. llama.cpp runs
with a cache of floats and no flash attention; without --repack also without its own layouts of quantised weights.
Exit status 1 where tokens differ, or perplexities by more than 0.5 %.
Where the CPU has AMX, llama-cpp-python 0.3.36 crashes with weights in blocks: build it with CMAKE_ARGS that hold
-DGGML_NATIVE=OFF and the instruction sets by name.

--build takes llama.cpp's source from the sdist of llama-cpp-python and builds its llama-bench for this CPU, into
build/llama.cpp. For ik_llama.cpp clone https://github.com/ikawrakow/ik_llama.cpp and give cmake the same options
but for LLAMA_BUILD_EXAMPLES, since its llama-bench is one of the examples.

--speed prints a table: tokens/s of prompts (--prompts, tokens), and of --tokens tokens generated after as many as
--depths says are in the cache. Lengths beyond the model's context are left out. Its columns: flatgpt (./flatgpt, or
FLATGPT), each llama-bench, the ratio of their medians over the rounds, and the smallest and the largest ratio of a
round. A round runs all in turns; its figure of a prompt, and of a llama-bench, is the median of three. Give
--llama-bench several times for several peers or settings ('ik/bin/llama-bench -rtr 1'); by default it is
build/llama.cpp's, else the one that the shell finds. --threads: all CPUs by default.
flatgpt's side is `flatgpt sample --temperature 0`, timed by when its output comes, so it also chooses and prints each
token, which llama-bench does not.
"""
import argparse
import ctypes
import json
import os
import random
import shlex
import shutil
import statistics
import struct
import subprocess
import sys
import tarfile
import tempfile
import time

try:
    import llama_cpp
    import numpy
except ImportError:    # --speed and --build do without
    llama_cpp = None

BUILD = os.path.join(os.path.dirname(__file__), "..", "build")
LOGITS = os.path.join(BUILD, "dev", "logits")
LLAMA_BUILD = os.path.join(BUILD, "llama.cpp")
LLAMA_BENCH = os.path.join(LLAMA_BUILD, "bin", "llama-bench")
PROGRAM = os.environ.get("FLATGPT", "./flatgpt")
REPEATS = 3    # per round
WARM_UP = 12    # tokens
# Each is one token of every common vocabulary, so a prompt has the length that was asked for.
WORDS = ("the of and to in is that for it with as was on be at by this had not are but from or have an they which one "
         "you were all her she there would their we him been has when who will more no if out so said what up").split()


class Llama:
    def __init__(self, path, repack):
        params = llama_cpp.llama_model_default_params()
        params.use_extra_bufts = repack
        self.model = llama_cpp.llama_model_load_from_file(path.encode(), params)
        if not self.model:
            sys.exit(f"llama.cpp cannot load {path}")
        self.vocab = llama_cpp.llama_model_get_vocab(self.model)
        self.size = llama_cpp.llama_vocab_n_tokens(self.vocab)
        self.context = None

    def tokens(self, text):
        if llama_cpp.llama_vocab_type(self.vocab) == llama_cpp.LLAMA_VOCAB_TYPE_NONE:
            return [byte % self.size for byte in text]
        ids = (llama_cpp.llama_token * (len(text) + 8))()
        return ids[:llama_cpp.llama_tokenize(self.vocab, text, len(text), ids, len(ids), False, False)]

    def start(self, length):
        params = llama_cpp.llama_context_default_params()
        params.n_ctx = params.n_batch = params.n_ubatch = max(length, 32)
        params.type_k = params.type_v = llama_cpp.GGML_TYPE_F32
        params.flash_attn_type = llama_cpp.LLAMA_FLASH_ATTN_TYPE_DISABLED
        params.swa_full = True
        if self.context:
            llama_cpp.llama_free(self.context)
        self.context = llama_cpp.llama_init_from_model(self.model, params)
        self.past = 0

    def extend(self, ids):
        """The logits after each of the tokens."""
        batch = llama_cpp.llama_batch_init(len(ids), 0, 1)
        batch.n_tokens = len(ids)
        for i, token in enumerate(ids):
            batch.token[i], batch.pos[i], batch.n_seq_id[i], batch.logits[i] = token, self.past + i, 1, 1
            batch.seq_id[i][0] = 0
        if llama_cpp.llama_decode(self.context, batch):
            sys.exit("llama_decode failed")
        self.past += len(ids)
        rows = [numpy.ctypeslib.as_array(llama_cpp.llama_get_logits_ith(self.context, i), (self.size,)).copy()
                for i in range(len(ids))]
        llama_cpp.llama_batch_free(batch)
        return numpy.stack(rows)


def build():
    """Builds llama-bench into LLAMA_BUILD, from a source that holds no more than the release of llama-cpp-python."""
    source = os.path.join(LLAMA_BUILD, "source")
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run([sys.executable, "-m", "pip", "download", "--no-deps", "--no-binary", "llama-cpp-python",
                        "--dest", folder, "llama-cpp-python"], check=True)
        [archive] = os.listdir(folder)
        with tarfile.open(os.path.join(folder, archive)) as sdist:
            for member in sdist:
                _, *path = member.name.split("/")
                if path[:2] == ["vendor", "llama.cpp"] and path[2:]:
                    sdist.extract(member.replace(name="/".join(path[2:])), source, filter="data")
    off = ("LLAMA_CURL", "LLAMA_OPENSSL", "LLAMA_BUILD_TESTS", "LLAMA_BUILD_EXAMPLES", "LLAMA_BUILD_SERVER",
           "LLAMA_BUILD_APP", "BUILD_SHARED_LIBS")
    subprocess.run(["cmake", "-S", source, "-B", LLAMA_BUILD, "-DCMAKE_BUILD_TYPE=Release", "-DGGML_NATIVE=ON",
                    f"-DLLAMA_BUILD_COMMIT={archive.removesuffix('.tar.gz')}", *(f"-D{option}=OFF" for option in off)],
                   check=True)
    subprocess.run(["cmake", "--build", LLAMA_BUILD, "--target", "llama-bench", "--parallel"], check=True)


class LlamaBench:
    """A llama-bench: llama.cpp's, or ik_llama.cpp's, whose option for tokens after a prompt has another name."""

    def __init__(self, command, model, threads):
        self.command = [*shlex.split(command), "-m", model, "-t", str(threads), "-o", "json"]
        usage = subprocess.run([self.command[0], "--help"], capture_output=True, text=True).stdout
        self.has_depth = "--n-depth" in usage

    def speed(self, what, length, tokens):
        if what == "prompt":
            test = ["-p", str(length), "-n", "0"]
        elif length == 0 or self.has_depth:
            test = ["-p", "0", "-n", str(tokens)] + (["-d", str(length)] if length else [])
        else:
            test = ["-p", "0", "-n", "0", "-gp", f"{length},{tokens}"]
        out = subprocess.run([*self.command, *test, "-r", str(REPEATS)], check=True, stdout=subprocess.PIPE,
                             stderr=subprocess.DEVNULL, text=True).stdout
        [row] = json.loads(out[out.index("[\n"):])
        self.title = f"{row['model_type']}, {row['n_threads']} threads, build {row['build_commit']}"
        return (length if what == "prompt" else tokens) / statistics.median(row["samples_ns"]) * 1e9


class Sample:
    """`flatgpt sample`, timed by when its output comes: the start, with the loading of the model, does not count."""

    def __init__(self, model, threads, folder):
        self.model, self.threads, self.folder = model, threads, folder
        self.random = random.Random(1)

    def run(self, *options):
        """The seconds at which parts of the output came."""
        command = [PROGRAM, "sample", self.model, "--device", "cpu", "--threads", str(self.threads), "--ignore-end",
                   "--temperature", "0", "--no-echo", *options]
        times = []
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as process:
            while os.read(process.stdout.fileno(), 1 << 16):
                times.append(time.perf_counter())
        if process.returncode:
            sys.exit(f"{' '.join(command)}: exit status {process.returncode}")
        return times

    def prompts(self, words, count):
        """A file with so many different prompts, a line each: none can use the cache of the one before."""
        path = os.path.join(self.folder, "prompts.txt")
        with open(path, "w") as file:
            file.write("\n".join(" ".join(self.random.choices(WORDS, k=words)) for _ in range(count)))
        return path

    def check_length(self, words):
        """Exits if the model's tokenizer makes more than a token of a word: llama-bench counts tokens."""
        shards = os.path.join(self.folder, "prompt")
        subprocess.run([PROGRAM, "tokenize", self.prompts(words, 1), "--tokenizer", self.model, "--out", shards,
                        "--overwrite"], check=True, stderr=subprocess.DEVNULL)
        with open(shards + "_train_000.bin", "rb") as file:
            tokens = struct.unpack("3i", file.read(12))[2] - 1    # without the one that ends a document
        if abs(tokens - words) > 1:
            sys.exit(f"{words} words are {tokens} tokens: the model's tokenizer splits the words of this script")

    def speed(self, what, length, tokens):
        if what == "prompt":
            # Prompts follow each other, a line of output each: the time between two is a prompt's.
            times = self.run("--prompts", self.prompts(length, REPEATS + 1), "--format", "text", "--batch", "1",
                             "--tokens", "1", "--json")
            return length / statistics.median(b - a for a, b in zip(times, times[1:]))
        # The first token ends the prompt's pass, the other ones have a pass each. During WARM_UP
        # passes weights in floats move from their file into panels; llama-bench has a warm-up, too.
        # (A token that is part of a character is printed with the next one, so one in a hundred
        # starts is too late.)
        options = ["--prompt-file", self.prompts(length, 1)] if length else []
        times = self.run("--tokens", str(WARM_UP + tokens + 1), *options)
        return (len(times) - 1 - WARM_UP) / (times[-1] - times[WARM_UP])


def speed(args):
    benches = args.llama_bench or [LLAMA_BENCH if os.path.exists(LLAMA_BENCH) else shutil.which("llama-bench")]
    if not benches[0]:
        sys.exit("no llama-bench: give --llama-bench PATH, or build it by --build")
    info = subprocess.run([PROGRAM, "info", "--json", args.model], check=True, stdout=subprocess.PIPE).stdout
    context = json.loads(info)["context"]
    with tempfile.TemporaryDirectory() as folder:
        ours = Sample(args.model, args.threads, folder)
        peers = [LlamaBench(command, args.model, args.threads) for command in benches]
        tests = [("prompt", n) for n in args.prompts if n < context]
        tests += [("tokens", n) for n in args.depths if n + WARM_UP + args.tokens < context]
        ours.check_length(max([1, *(length for _, length in tests)]))
        speeds = {test: [[] for _ in (ours, *peers)] for test in tests}
        for _ in range(args.rounds):
            for (what, length), rows in speeds.items():
                for who, row in zip((ours, *peers), rows):
                    row.append(who.speed(what, length, args.tokens))
    for i, (command, peer) in enumerate(zip(benches, peers)):
        print(f"llama-bench {i + 1}: {command}: {peer.title}")
    names = [name for i in range(len(peers)) for name in (f"llama-bench {i + 1}", "ratio", "from, to")]
    print("| tokens/s | flatgpt | " + " | ".join(names) + " |\n|" + "---|" * (2 + len(names)))
    for (what, length), (mine, *theirs) in speeds.items():
        cells = [f"prompt of {length}" if what == "prompt" else f"{args.tokens} tokens after {length}",
                 f"{statistics.median(mine):.1f}"]
        for row in theirs:
            ratios = [a / b for a, b in zip(mine, row)]
            cells += [f"{statistics.median(row):.1f}", f"{statistics.median(mine) / statistics.median(row):.2f}",
                      f"{min(ratios):.2f}, {max(ratios):.2f}"]
        print("| " + " | ".join(cells) + " |")


def loss(logits, ids):
    """The sum over the tokens after the first."""
    x = logits[:-1].astype(numpy.float64)
    most = x.max(1)
    return (most + numpy.log(numpy.exp(x - most[:, None]).sum(1)) - x[numpy.arange(len(x)), ids[1:]]).sum()


def compare(args):
    silent = llama_cpp.llama_log_callback(lambda level, text, data: None)
    llama_cpp.llama_log_set(silent, ctypes.c_void_p())
    with tempfile.NamedTemporaryFile() as file:
        out = subprocess.run([LOGITS, args.model, args.text, file.name, str(args.windows), str(args.length),
                              str(args.greedy)], check=True, stdout=subprocess.PIPE).stdout
        ours = json.loads(out)
        windows, length, ids = ours["windows"], ours["length"], ours["ids"]
        logits = numpy.fromfile(file.name, numpy.float32).reshape(windows, length, -1)
    theirs = Llama(args.model, args.repack)
    with open(args.text, "rb") as f:
        same_ids = theirs.tokens(f.read()) == ids
    worst, largest, sums = 0, 0, [0, 0]
    for w in range(windows):
        window = ids[w * length:(w + 1) * length]
        theirs.start(length)
        x = theirs.extend(window)
        worst = max(worst, numpy.abs(x - logits[w]).max())
        largest = max(largest, numpy.abs(x).max())
        sums = [sums[0] + loss(logits[w], window), sums[1] + loss(x, window)]
    answer = []
    theirs.start(length // 2 + len(ours["greedy"]))
    x = theirs.extend(ids[:length // 2])
    for _ in ours["greedy"]:
        answer.append(int(x[-1].argmax()))
        x = theirs.extend(answer[-1:])
    equal = next((i for i, (a, b) in enumerate(zip(ours["greedy"], answer)) if a != b), len(answer))
    perplexity = [float(numpy.exp(s / (windows * (length - 1)))) for s in sums]
    print(f"{len(ids)} tokens of the text: {'equal' if same_ids else 'DIFFERENT'}")
    print(f"logits over {windows} windows of {length}: largest difference {worst:.3g}, largest logit {largest:.3g}")
    apart = perplexity[0] / perplexity[1] - 1
    print("perplexity: flatgpt %.5f, llama.cpp %.5f (%+.3f %%)" % (*perplexity, 100 * apart))
    print(f"greedy: {equal} of {len(answer)} tokens equal")
    return int(not same_ids or abs(apart) > 0.005)


def numbers(text):
    return [int(n) for n in text.split(",") if n]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", nargs="?")
    parser.add_argument("text", nargs="?")
    parser.add_argument("--windows", type=int, default=4)
    parser.add_argument("--length", type=int, default=256)
    parser.add_argument("--greedy", type=int, default=32)
    parser.add_argument("--repack", action="store_true")
    parser.add_argument("--build", action="store_true")
    parser.add_argument("--speed", action="store_true")
    parser.add_argument("--prompts", type=numbers, default=[512])
    parser.add_argument("--depths", type=numbers, default=[0, 512, 900])
    parser.add_argument("--tokens", type=int, default=32)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--llama-bench", action="append")
    args = parser.parse_args()
    if args.build:
        return build()
    if not args.model or bool(args.text) == args.speed:
        parser.error("give a model and a text, or a model and --speed, or --build")
    if args.speed:
        return speed(args)
    if not llama_cpp:
        parser.error("pip install llama-cpp-python numpy")
    return compare(args)


sys.exit(main())

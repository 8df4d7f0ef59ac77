#!/usr/bin/env python3
"""flatgpt against llama.cpp on one GGUF file and one text.

    pip install llama-cpp-python numpy && make build/dev/logits
    dev/compare_llama.py MODEL.gguf TEXT [--windows 4] [--length 256] [--greedy 32] [--repack]
    dev/compare_llama.py MODEL.gguf --speed [--length 512] [--threads 2]

Prints whether both have the same tokens of the text, the largest difference of logits over the same windows, both
perplexities, and whether the likeliest continuations of the first half window are equal. llama.cpp runs with
a cache of floats and no flash attention; without --repack also without its own layouts of quantised weights.
Exit status 1 where tokens differ, or perplexities by more than 0.5 %.
Where the CPU has AMX, llama-cpp-python 0.3.36 crashes with weights in blocks: build it with CMAKE_ARGS that hold
-DGGML_NATIVE=OFF and the instruction sets by name.
--speed: llama.cpp as it is by default, best and median of 5 prompts of random tokens, and of 100 tokens after one.
"""
import argparse
import ctypes
import json
import os
import subprocess
import sys
import statistics
import tempfile
import time

import llama_cpp
import numpy

FLATGPT = os.path.join(os.path.dirname(__file__), "..", "build", "dev", "logits")


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


def speed(path, length, threads):
    model = llama_cpp.llama_model_load_from_file(path.encode(), llama_cpp.llama_model_default_params())
    size = llama_cpp.llama_vocab_n_tokens(llama_cpp.llama_model_get_vocab(model))
    params = llama_cpp.llama_context_default_params()
    params.n_ctx, params.n_batch, params.n_ubatch = length + 128, length, length
    params.n_threads = params.n_threads_batch = threads
    context = llama_cpp.llama_init_from_model(model, params)
    random = numpy.random.default_rng(1)

    def decode(count):
        """Seconds until the logits after so many tokens are there."""
        ids = (llama_cpp.llama_token * count)(*random.integers(0, size, count).tolist())
        start = time.perf_counter()
        if llama_cpp.llama_decode(context, llama_cpp.llama_batch_get_one(ids, count)):
            sys.exit("llama_decode failed")
        llama_cpp.llama_get_logits(context)[0]
        return time.perf_counter() - start

    prompts = []
    for _ in range(6):
        llama_cpp.llama_memory_clear(llama_cpp.llama_get_memory(context), True)
        prompts.append(decode(length))
    tokens = [decode(1) for _ in range(100)]
    for what, of, seconds in ((f"prompt of {length}", length, prompts[1:]), ("a token", 1, tokens)):
        best, middle = min(seconds), statistics.median(seconds)
        print(f"llama.cpp, {what}: best {best * 1e3:.2f} ms, median {middle * 1e3:.2f} ms, "
              f"{of / middle:.0f} tokens/s by the median")


def loss(logits, ids):
    """The sum over the tokens after the first."""
    x = logits[:-1].astype(numpy.float64)
    most = x.max(1)
    return (most + numpy.log(numpy.exp(x - most[:, None]).sum(1)) - x[numpy.arange(len(x)), ids[1:]]).sum()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("text", nargs="?")
    parser.add_argument("--windows", type=int, default=4)
    parser.add_argument("--length", type=int, default=0)
    parser.add_argument("--greedy", type=int, default=32)
    parser.add_argument("--repack", action="store_true")
    parser.add_argument("--speed", action="store_true")
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    args = parser.parse_args()
    args.length = args.length or (512 if args.speed else 256)
    if bool(args.text) == args.speed:
        parser.error("give a text, or --speed")
    silent = llama_cpp.llama_log_callback(lambda level, text, data: None)
    llama_cpp.llama_log_set(silent, ctypes.c_void_p())
    if args.speed:
        return speed(args.model, args.length, args.threads)
    with tempfile.NamedTemporaryFile() as file:
        out = subprocess.run([FLATGPT, args.model, args.text, file.name, str(args.windows), str(args.length),
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
    print("perplexity: flatgpt %.5f, llama.cpp %.5f (%+.3f %%)" % (*perplexity, 100 * (perplexity[0] / perplexity[1] - 1)))
    print(f"greedy: {equal} of {len(answer)} tokens equal")
    return int(not same_ids or abs(perplexity[0] / perplexity[1] - 1) > 0.005)


sys.exit(main())

#!/usr/bin/env python3
"""Runs flatgpt's commands on damaged files, and names each input that ends one by a signal, a sanitizer or never.

Usage: dev/mutate_files.py [--binary build/asan/flatgpt] [--runs 20000] [--first 0] [--seed 1] [--jobs 2]
                           [--keep DIR] [KIND...]

Unlike `make fuzz`, which calls parsers in one process, this takes whole commands: options, opening, use, messages.
An input that fails is kept as DIR/KIND-NUMBER with the command beside it. Exit 1 where there is one.
"""
import argparse
import collections
import concurrent.futures
import gzip
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile

GOLDEN = "test/golden"
LLAMA = f"{GOLDEN}/gguf/tiny_llama.gguf"
TEXT = b'{"text": "It is a truth universally acknowledged"}\n{"text": "a \\u00e9 \\ud83d\\ude00"}\n'
SCHEMA = (b'{"type": "object", "properties": {"a": {"enum": [1, "b"]}, "c": {"items": {"$ref": "#"}, "maxItems": 2}},'
          b' "required": ["a"]}')
UNION = (b'{"allOf": [{"required": ["a"]}, {"properties": {"a": {"type": "integer", "minimum": 3, "maximum": 90}}}],'
         b' "oneOf": [{"properties": {"k": {"const": 1}}, "required": ["k"]}, {"properties": {"k": {"const": 2}},'
         b' "required": ["k"]}], "properties": {"p": {"type": "string", "pattern": "^[a-c]{2}-\\\\d+$"}}}')
JSON = b'[{"text": "It is", "a": {"b": "c"}}, "a truth",\n {"a": [1, {"text": "]"}], "text": "acknowledged"}]\n'
CSV = b'id,text\r\n1,"a, ""b""\nc"\r\n2,It is a truth\r\n'
ITEMS = (b'{"ind": 1, "activity_label": "A", "ctx_a": "A man", "ctx_b": "he", "ctx": "A man he",'
         b' "endings": ["runs.", "sits."], "label": 1}\n{"ind": 2, "activity_label": "B", "ctx_a": "A dog", "ctx_b":'
         b' "it", "ctx": "A dog it", "endings": ["barks.", "flies."], "label": "0"}\n')
TOML = b'data = "x.bin"\nsteps = 3\nlr = 1e-3\nmodel = "d1"\n'
METRICS = b'{"step":1,"loss":3.5,"lr":0.001}\n{"step":2,"loss":3.25,"val_loss":3.5}\n'


def beside(path, name):
    """The directory of a model, with this file of it damaged."""
    return lambda work, data: (shutil.copytree(path, f"{work}/m"), write(f"{work}/m/{name}", data), f"{work}/m")[-1]


def alone(name):
    return lambda work, data: write(f"{work}/{name}", data)


def write(path, data):
    with open(path, "wb") as f:
        f.write(data)
    return path


def content(path):
    with open(path, "rb") as f:
        return f.read()


SAMPLE = ["--tokens", "2", "--threads", "1"]
# Kind: valid contents, where a damaged one is put, and commands, in which @ stands for that place
# and % for a folder.
KINDS = {
    "safetensors": ([content(f"{GOLDEN}/hf_tiny/model.safetensors")], beside(f"{GOLDEN}/hf_tiny", "model.safetensors"),
                    [["info", "@"], ["sample", "@", "--tokenizer", "gpt2", *SAMPLE], ["convert", "@", "%/x.gguf"]]),
    "config": ([content(f"{GOLDEN}/hf_tiny/config.json")], beside(f"{GOLDEN}/hf_tiny", "config.json"),
               [["info", "@"], ["sample", "@", "--tokenizer", "gpt2", *SAMPLE]]),
    "adapter": ([content(f"{GOLDEN}/lora/start/adapter_model.safetensors")],
                beside(f"{GOLDEN}/lora/start", "adapter_model.safetensors"),
                [["info", "@"], ["sample", f"{GOLDEN}/sft", "--adapter", "@", *SAMPLE],
                 ["merge", f"{GOLDEN}/sft", "@", "%/out"]]),
    "adapter_config": ([content(f"{GOLDEN}/lora/start/adapter_config.json")],
                       beside(f"{GOLDEN}/lora/start", "adapter_config.json"),
                       [["info", "@"], ["sample", "@", *SAMPLE], ["convert", "@", "%/x.gguf", "--adapter-only"]]),
    "state": ([content(f"{GOLDEN}/checkpoint_1/state.json")], beside(f"{GOLDEN}/checkpoint_1", "state.json"),
              [["info", "@"], ["train", "--resume", "@", "--data", "%/none.bin", "--out", "%/run"]]),
    "manifest": ([content(f"{GOLDEN}/checkpoint_1/MANIFEST")], beside(f"{GOLDEN}/checkpoint_1", "MANIFEST"),
                 [["info", "@"], ["eval", "@", "--text", "LICENSE", "--threads", "1"]]),
    "torch": ([content(f"{GOLDEN}/torch/pytorch_model.bin"), content(f"{GOLDEN}/torch/kinds.bin")],
              beside(f"{GOLDEN}/torch", "pytorch_model.bin"), [["info", "@"], ["convert", "@", "%/x.gguf"]]),
    "gguf": ([content(LLAMA), content(f"{GOLDEN}/gguf/tiny_olmo2.gguf"), content(f"{GOLDEN}/gguf/formats.gguf")],
             alone("x.gguf"), [["info", "@"], ["sample", "@", *SAMPLE], ["convert", "@", "%/out"],
                               ["tokenize", "--tokenizer", "@", "--out", "%/t", "README.md"]]),
    "tokenizer": ([content(f"{GOLDEN}/tokenizers/{n}.json") for n in ("first", "roberta", "falcon", "gemma", "smollm")],
                  alone("tok.json"), [["tokenize", "--tokenizer", "@", "--out", "%/t", "LICENSE"], ["info", "@"]]),
    "sentencepiece": ([content(f"{GOLDEN}/tokenizers/{n}.model") for n in ("symbols", "prefixed")],
                      alone("tokenizer.model"), [["tokenize", "--tokenizer", "@", "--out", "%/t", "LICENSE"]]),
    "text": ([TEXT, gzip.compress(TEXT), TEXT.decode().encode("utf-16")], alone("x.jsonl"),
             [["tokenize", "--out", "%/t", "@"], ["eval", LLAMA, "--text", "@", "--threads", "1"],
              ["sample", LLAMA, "--prompts", "@", *SAMPLE]]),
    "schema": ([SCHEMA, UNION], alone("s.json"), [["sample", LLAMA, "--prompt", "a", "--json-schema", "@", *SAMPLE]]),
    "grammar": ([b'root ::= "a" x* # b\nx ::= [^a-c\\n]{1,3} | (. "\\u00e9")? | root\n'], alone("g.gbnf"),
                [["sample", LLAMA, "--prompt", "a", "--grammar", "@", *SAMPLE]]),
    "template": ([content(f"{GOLDEN}/templates/{n}") for n in sorted(os.listdir(f"{GOLDEN}/templates"))
                  if n.endswith(".jinja")], alone("t.jinja"),
                 [["chat", LLAMA, "--template", "@", "--threads", "1"]]),
    "toml": ([TOML], alone("run.toml"), [["train", "--config", "@", "--dry-run"]]),
    "documents": ([JSON, CSV], alone("x"), [["tokenize", "--out", "%/t", "@"],
                                            ["tokenize", "--format", "csv", "--out", "%/t", "@"],
                                            ["tokenize", "--dedup", "minhash", "--out", "%/t", "@"]]),
    "parquet": ([content(f"{GOLDEN}/parquet/{n}") for n in sorted(os.listdir(f"{GOLDEN}/parquet"))
                 if n.endswith(".parquet")], alone("x.parquet"), [["tokenize", "--out", "%/t", "@"]]),
    "sentences": ([b'{"pooling_mode_mean_tokens": true}'],
                  lambda work, data: (shutil.copytree(f"{GOLDEN}/eval/llama", f"{work}/m"),
                                      os.mkdir(f"{work}/m/1_Pooling"),
                                      write(f"{work}/m/1_Pooling/config.json", data), f"{work}/m")[-1],
                  [["embed", "@", "--text", "LICENSE", "--out", "%/x.npy", "--threads", "1"]]),
    "items": ([ITEMS], alone("x.jsonl"), [["eval", LLAMA, "--task", "hellaswag", "--file", "@", "--threads", "1"]]),
    "metrics": ([METRICS], alone("metrics.jsonl"),
                [["plot", "@"], ["plot", "@", "--html", "%/x.html"], ["info", "@"], ["runs", "%"]]),
}


def damaged(data, rng):
    data = bytearray(data)
    for _ in range(rng.choice((1, 1, 2, 4, 16))):
        at = rng.randrange(len(data) + 1)
        # Headers are where most of what can go wrong lies.
        at = min(at, rng.choice((64, 1024, len(data))))
        way = rng.randrange(8)
        if way == 0:
            del data[at:]
        elif way == 1:
            data[at:at + 1] = bytes([rng.randrange(256)])
        elif way == 2 and at < len(data):
            data[at] ^= 1 << rng.randrange(8)
        elif way == 3:
            data[at:at] = data[max(0, at - rng.randrange(1, 64)):at] * rng.choice((1, 2, 1000))
        elif way == 4:
            del data[at:at + rng.randrange(1, 32)]
        elif way == 5:
            data[at:at + 8] = rng.choice((b"\xff" * 8, b"\0" * 8, b"\xff" * 7 + b"\x7f", b"\0\0\0\x80" * 2))
        elif way == 6:
            data[at:at] = rng.choice((b"[" * 5000, b'{"a":' * 5000, b"-1", b"1e999", b"99999999999999999999", b"null",
                                      b"\xc0\x80", b"\xed\xa0\x80", b"(" * 5000))
        else:
            digits = [i for i, c in enumerate(data[:4096]) if 48 <= c <= 57]
            if digits:
                data[rng.choice(digits)] = rng.randrange(48, 58)
    return bytes(data)


def try_one(kind, number, options):
    rng = random.Random(f"{options.seed} {kind} {number}")
    contents, place, commands = KINDS[kind]
    data = damaged(rng.choice(contents), rng)
    command = rng.choice(commands)
    with tempfile.TemporaryDirectory(prefix="flatgpt-mutate-") as work:
        path = place(work, data)
        words = [options.binary] + [w.replace("@", path).replace("%", work) for w in command]
        # Allocations that a file asks for are refused instead of taking this machine's memory.
        environment = dict(os.environ, ASAN_OPTIONS="allocator_may_return_null=1:max_allocation_size_mb=2000:"
                           "detect_leaks=0", OMP_NUM_THREADS="1")
        try:
            run = subprocess.run(words, input=b"hello\n", capture_output=True, timeout=options.limit, env=environment)
            code, said = run.returncode, run.stderr
        except subprocess.TimeoutExpired as e:
            code, said = "hung", e.stderr or b""
        if code in range(0, 8) and b"Sanitizer" not in said and b"runtime error" not in said:
            return code, None
        os.makedirs(options.keep, exist_ok=True)
        kept = f"{options.keep}/{kind}-{number}"
        write(kept, data)
        if isinstance(code, int) and code < 0:
            code = signal.Signals(-code).name
        write(kept + ".txt", f"{' '.join(words)}\n{code}\n".encode() + said)
        return code, f"{code}: {kept}: {' '.join(command)}"


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--binary", default="build/asan/flatgpt")
    p.add_argument("--runs", type=int, default=20000)
    p.add_argument("--first", type=int, default=0, help="number of the first run, to go on with an earlier call's")
    p.add_argument("--seed", type=int, default=1)
    p.add_argument("--jobs", type=int, default=os.cpu_count())
    p.add_argument("--limit", type=int, default=60, help="seconds of a run")
    p.add_argument("--keep", default="build/mutated")
    p.add_argument("kinds", nargs="*", metavar="KIND", help=", ".join(KINDS))
    options = p.parse_args()
    kinds = options.kinds or list(KINDS)
    if unknown := [k for k in kinds if k not in KINDS]:
        p.error(f"unknown kind {unknown[0]}; there are {', '.join(KINDS)}")
    failed, codes = 0, collections.Counter()
    with concurrent.futures.ThreadPoolExecutor(options.jobs) as pool:
        for code, fault in pool.map(lambda i: try_one(kinds[i % len(kinds)], i, options),
                                    range(options.first, options.first + options.runs)):
            codes[code] += 1
            if fault:
                failed += 1
                print(fault, flush=True)
    print("exit codes:", ", ".join(f"{code} {n} times" for code, n in codes.most_common()))
    print(f"{options.runs - failed} passed, {failed} failed, 0 skipped")
    sys.exit(failed > 0)


main()

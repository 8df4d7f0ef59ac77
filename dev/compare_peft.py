#!/usr/bin/env python3
"""PEFT and TRL beside flatgpt on this CPU, in turns: tokens/s and peak memory of LoRA, packed fine-tuning's tokens/s,
and tokens/s of sampling in groups.

usage: dev/compare_peft.py MODEL [--rounds 3] [--dtypes fp32,bf16] [--what lora,sft,sample] [--threads 2]
MODEL: a Hugging Face directory of a Llama-like model, such as `flatgpt convert build/chat/*.gguf smol` writes.
Prints one JSON object a line: each side's best step (medians over the rounds), peak resident MiB, and the ratios.
Needs torch, transformers, peft and trl. PyTorch runs as it comes and "preloaded" (dev/compare_torch.py).
"""
import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time

FLATGPT = os.environ.get("FLATGPT", "./flatgpt")
B, T, RANK, STEPS, GROUP, ANSWER = 4, 256, 16, 5, 8, 64
QUESTION = "Tell me a story about a bear that learns to swim."


def torch_side(args):
    """One measurement by PyTorch, in a process of its own."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer
    torch.set_num_threads(args.threads)
    half = args.dtype == "bf16"
    tokenizer = AutoTokenizer.from_pretrained(args.model)
    model = AutoModelForCausalLM.from_pretrained(args.model, dtype=torch.bfloat16 if half else torch.float32)
    if args.what == "sample":
        prompt = tokenizer.apply_chat_template([{"role": "user", "content": QUESTION}], add_generation_prompt=True,
                                               return_tensors="pt", return_dict=True)["input_ids"]
        best = 0
        for _ in range(3):
            before = time.perf_counter()
            out = model.generate(prompt.repeat(GROUP, 1), do_sample=True, temperature=1.0, max_new_tokens=ANSWER,
                                 min_new_tokens=ANSWER, pad_token_id=0)
            best = max(best, GROUP * (out.shape[1] - prompt.shape[1]) / (time.perf_counter() - before))
        return best
    if args.what == "lora":
        from peft import LoraConfig, get_peft_model
        model = get_peft_model(model, LoraConfig(r=RANK, lora_alpha=2 * RANK, target_modules="all-linear",
                                                 task_type="CAUSAL_LM"))
        optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-4)
        torch.manual_seed(1)
        best = 0
        for _ in range(STEPS):
            x = torch.randint(0, 40000, (B, T))
            before = time.perf_counter()
            model(input_ids=x, labels=x).loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
            best = max(best, B * T / (time.perf_counter() - before))
        return best
    from datasets import Dataset
    from transformers import TrainerCallback
    from trl import SFTConfig, SFTTrainer
    times = []

    class Clock(TrainerCallback):
        def on_step_begin(self, *_, **__):
            times.append(-time.perf_counter())

        def on_step_end(self, *_, **__):
            times[-1] += time.perf_counter()

    texts = [line for line in open("README.md").read().split("\n") if len(line) > 60] * 4
    rows = [{"messages": [{"role": "user", "content": t[:40]}, {"role": "assistant", "content": t}]} for t in texts]
    with tempfile.TemporaryDirectory() as folder:
        config = SFTConfig(output_dir=folder, per_device_train_batch_size=B, max_steps=STEPS, max_length=T, packing=True,
                           report_to=[], use_cpu=True, bf16=half, save_strategy="no", gradient_checkpointing=False,
                           logging_steps=1)
        trainer = SFTTrainer(model=model, args=config, processing_class=tokenizer, train_dataset=Dataset.from_list(rows),
                             callbacks=[Clock()])
        trainer.train()
        tokens = sum(len(s) for s in list(trainer.train_dataset["input_ids"])) / len(trainer.train_dataset)
    return B * tokens / min(times)


def flatgpt_side(args, folder):
    common = ["--dtype", args.dtype, "--threads", str(args.threads)]
    if args.what == "sample":
        best = 0
        for _ in range(2):
            run = subprocess.run([FLATGPT, "sample", args.model, "--prompt", QUESTION, "--num", str(GROUP), "--tokens",
                                  str(ANSWER), "--ignore-end", "--temperature", "1", *common],
                                 capture_output=True, text=True, check=True)
            best = max(best, float(run.stderr.split(" tokens/s")[0].split()[-1]))
        return best
    out = os.path.join(folder, f"run{time.time()}")
    command = [FLATGPT, "train", "--from", args.model, "--batch", str(B), "--seq-len", str(T), "--steps", str(STEPS),
               "--out", out, "--lr", "1e-5", *common]
    if args.what == "lora":
        shard = os.path.join(folder, "t")
        if not os.path.exists(shard + "_train_000.bin"):
            subprocess.run([FLATGPT, "tokenize", "--tokenizer", args.model, "--out", shard, *(["LICENSE"] * 1),
                            "README.md", "dev/use.md", "dev/data.md"], check=True, capture_output=True)
        shards = sorted(f for f in os.listdir(folder) if f.startswith("t_") and "train" in f)
        command += ["--data", os.path.join(folder, shards[0]), "--lora-rank", str(RANK)]
    else:
        chat = os.path.join(folder, "chat.jsonl")
        texts = [line for line in open("README.md").read().split("\n") if len(line) > 60] * 4
        with open(chat, "w") as f:
            for t in texts:
                f.write(json.dumps({"messages": [{"role": "user", "content": t[:40]},
                                                 {"role": "assistant", "content": t}]}) + "\n")
        command += ["--chat", chat, "--pack"]
    subprocess.run(command, check=True, capture_output=True)
    with open(os.path.join(out, "metrics.jsonl")) as f:
        return max(json.loads(line)["tokens_per_second"] for line in f)


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("model")
    p.add_argument("--rounds", type=int, default=3)
    p.add_argument("--dtypes", default="fp32,bf16")
    p.add_argument("--what", default="lora,sft,sample")
    p.add_argument("--threads", type=int, default=os.cpu_count())
    p.add_argument("--side", help=argparse.SUPPRESS)
    p.add_argument("--dtype", help=argparse.SUPPRESS)
    args = p.parse_args()
    if args.side:
        with tempfile.TemporaryDirectory() as folder:
            speed = torch_side(args) if args.side == "torch" else flatgpt_side(args, folder)
        who = resource.RUSAGE_SELF if args.side == "torch" else resource.RUSAGE_CHILDREN
        print(json.dumps({"speed": speed, "mib": resource.getrusage(who).ru_maxrss / 1024}))
        return
    sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
    from compare_torch import preloads
    with tempfile.TemporaryDirectory() as folder:
        libraries = preloads(folder)
        sides = {"flatgpt": ("flatgpt", []), "torch": ("torch", []), "torch, preloaded": ("torch", libraries)}
        for what in args.what.split(","):
            for dtype in args.dtypes.split(","):
                seen = {name: [] for name in sides}
                for _ in range(args.rounds):
                    for name, (side, loaded) in sides.items():
                        command = [sys.executable, os.path.abspath(__file__), args.model, "--what", what, "--dtype", dtype,
                                   "--side", side, "--threads", str(args.threads)]
                        run = subprocess.run(command, capture_output=True, text=True,
                                             env={**os.environ, "LD_PRELOAD": " ".join(loaded)})
                        if run.returncode:
                            sys.exit(f"{name}: {run.stderr[-2000:]}")
                        seen[name].append(json.loads(run.stdout.strip().splitlines()[-1]))
                middle = {name: {k: round(statistics.median(x[k] for x in rows), 1) for k in ("speed", "mib")}
                          for name, rows in seen.items()}
                best = max(middle["torch"]["speed"], middle["torch, preloaded"]["speed"])
                print(json.dumps({"what": what, "dtype": dtype, **middle, "speed_ratio": round(
                    middle["flatgpt"]["speed"] / best, 2), "memory_ratio": round(
                        middle["flatgpt"]["mib"] / middle["torch"]["mib"], 2)}), flush=True)


main()

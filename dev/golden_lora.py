#!/usr/bin/env python3
"""Writes test/golden/lora and test/golden/dora: adapters of test/golden/sft's model before and after 50 steps of TRL's
SFTTrainer with PEFT, and the losses between, for test/test_train_lora.cpp.

golden_lora.py        needs torch, transformers, datasets, trl and peft

The conversations, their order and the optimizer are those of golden_sft.py. k_proj has no adapter, so that the
adapters of a fused product differ. end/tokens.json has tokens and PEFT's mean loss on them, also after the merge.
"""
import json
import shutil
import tempfile

import torch
from datasets import Dataset
from golden_sft import OUT as BASE, ROOT, SEED, STEPS, InOrder, messages, shuffled
from peft import LoraConfig, get_peft_model
from transformers import AutoTokenizer, LlamaForCausalLM
from trl import SFTConfig


def save(model, path):
    model.save_pretrained(path)
    (path / "README.md").unlink(missing_ok=True)


def write(out, dora):
    shutil.rmtree(out, ignore_errors=True)
    tokenizer = AutoTokenizer.from_pretrained(BASE)
    base = LlamaForCausalLM.from_pretrained(BASE, dtype=torch.float32)
    base.config.name_or_path = base.name_or_path = "test/golden/sft"
    torch.manual_seed(3)
    targets = ["q_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
    model = get_peft_model(base, LoraConfig(r=4, lora_alpha=12, target_modules=targets, lora_dropout=0.0, use_dora=dora,
                                            task_type="CAUSAL_LM"))
    for name, p in model.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(p, std=0.05)
    save(model, out / "start")
    rows = [messages(json.loads(line)) for line in (ROOT / "dev/questions.jsonl").read_text().splitlines()]
    n = len(rows)
    order = [shuffled(SEED, i // n, n, i % n) for i in range(4 * STEPS)]
    with tempfile.TemporaryDirectory() as folder:
        args = SFTConfig(output_dir=folder, per_device_train_batch_size=2, gradient_accumulation_steps=2,
                         max_steps=STEPS, learning_rate=1e-2, lr_scheduler_type="constant", warmup_steps=0,
                         weight_decay=0.0, adam_beta1=0.9, adam_beta2=0.95, adam_epsilon=1e-8, max_grad_norm=1.0,
                         logging_steps=1, save_strategy="no", report_to=[], use_cpu=True, bf16=False, fp16=False,
                         assistant_only_loss=True, max_length=128, packing=False, gradient_checkpointing=False,
                         dataloader_drop_last=False)
        trainer = InOrder(model=model, args=args, processing_class=tokenizer,
                          train_dataset=Dataset.from_list([{"messages": rows[i]} for i in order]))
        trainer.train()
    logged = [(row["loss"], row["grad_norm"]) for row in trainer.state.log_history if "loss" in row]
    (out / "losses.json").write_text(json.dumps({"losses": [a for a, _ in logged], "norms": [b for _, b in logged]}) + "\n")
    save(model, out / "end")
    ids = tokenizer.encode("The capital of France is Paris. 2 + 2 = 4, and water boils at 100 degrees.")[:32]
    model.eval()
    with torch.no_grad():
        x = torch.tensor([ids])
        applied = model(input_ids=x, labels=x).loss.item()
        merged = model.merge_and_unload()(input_ids=x, labels=x).loss.item()
    (out / "end" / "tokens.json").write_text(json.dumps({"ids": ids, "applied": applied, "merged": merged}) + "\n")
    print(len(logged), "steps:", logged[0], "...", logged[-1], "applied", applied, "merged", merged)


if __name__ == "__main__":
    for name in ("lora", "dora"):
        write(ROOT / "test" / "golden" / name, name == "dora")

#!/usr/bin/env python3
"""Writes test/golden/lora and test/golden/dora: adapters of test/golden/sft's model before and after 50 steps of TRL's
SFTTrainer with PEFT, and the losses between, for test/test_train_lora.cpp.

golden_lora.py [NAME...]      needs torch, transformers, datasets, trl and peft

The conversations, their order and the optimizer are those of golden_sft.py. k_proj has no adapter, so that the
adapters of a fused product differ. end/tokens.json has tokens and PEFT's mean loss on them, also after the merge.

test/golden/lora_pairs (NAME: pairs; needs neither datasets nor trl): adapters of test/golden/pairs's models, and
expected.safetensors: logits, loss and grad.NAME for the source and target there, and the greedy tokens, for
test/test_lora_pairs.cpp. Seen with torch 2.15, transformers 5.24, peft 0.21.2.
"""
import json
import shutil
import sys
import tempfile
from pathlib import Path

import torch
from peft import LoraConfig, get_peft_model
from safetensors.torch import load_file, save_file
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer, LlamaForCausalLM

ROOT = Path(__file__).resolve().parent.parent
# name: (model of test/golden/pairs, further fields of LoraConfig); the scale is 2 everywhere
PAIRS = {
    "t5": ("t5", dict(target_modules=["q", "v", "o", "wi", "wo"])),
    "t5_gated": ("t5_gated", dict(target_modules=["q", "k", "v", "o", "wi_0", "wi_1", "wo"], use_dora=True)),
    "bart": ("bart", dict(target_modules=["q_proj", "k_proj", "v_proj", "out_proj", "fc1", "fc2"],
                          rank_pattern={"encoder_attn.v_proj": 2}, alpha_pattern={"encoder_attn.v_proj": 4})),
    "marian": ("marian", dict(target_modules=["q_proj", "v_proj"])),
}


def save(model, path):
    model.save_pretrained(path)
    (path / "README.md").unlink(missing_ok=True)


def write(out, dora):
    from datasets import Dataset
    from golden_sft import OUT as BASE, SEED, STEPS, InOrder, messages, shuffled
    from trl import SFTConfig

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


def write_pairs(out, base, fields):
    shutil.rmtree(out, ignore_errors=True)
    known = load_file(ROOT / "test/golden/pairs" / base / "expected.safetensors")
    model = AutoModelForSeq2SeqLM.from_pretrained(ROOT / "test/golden/pairs" / base, dtype=torch.float32,
                                                  attn_implementation="eager")
    model.config.name_or_path = model.name_or_path = "test/golden/pairs/" + base
    torch.manual_seed(len(base))
    model = get_peft_model(model, LoraConfig(r=3, lora_alpha=6, lora_dropout=0.0, task_type="SEQ_2_SEQ_LM", **fields))
    for name, p in model.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(p, std=0.1)
        if "magnitude" in name:
            p.data *= 1 + 0.1 * torch.randn_like(p)
    save(model, out)
    model.eval().double()
    for m in model.modules():
        if hasattr(m, "create_weight"):    # Marian's sinusoids are not rounded
            m.weight.data.copy_(m.create_weight())
    source, tokens, target = (known[k].long() for k in ("source", "tokens", "target"))
    mask = torch.arange(source.shape[1])[None] < known["lengths"][:, None]
    result = model(input_ids=source, attention_mask=mask.long(), decoder_input_ids=tokens, labels=target)
    result.loss.backward()
    arrays = dict(logits=result.logits.detach(), loss=result.loss.detach().reshape(1))
    for name, p in model.named_parameters():
        if p.grad is not None:
            arrays["grad." + name.replace(".default", "").replace("vector.weight", "vector")] = p.grad
    with torch.no_grad():
        arrays["greedy"] = model.generate(input_ids=source[:1], attention_mask=mask[:1].long(), num_beams=1,
                                          max_new_tokens=12, do_sample=False, eos_token_id=None,
                                          forced_bos_token_id=None, forced_eos_token_id=None, bad_words_ids=None,
                                          pad_token_id=0)[0, 1:]
        merged = model.merge_and_unload()(input_ids=source, attention_mask=mask.long(), decoder_input_ids=tokens)
    save_file({k: x.float().clone().contiguous() for k, x in arrays.items()}, out / "expected.safetensors")
    change = (arrays["logits"] - known["logits"]).abs().max().item()
    print(out.name, arrays["loss"].item(), "changes logits by", change, "greedy", arrays["greedy"].tolist(), "merged",
          (merged.logits - arrays["logits"]).abs().max().item())


if __name__ == "__main__":
    names = sys.argv[1:] or ["lora", "dora", "pairs"]
    for name in {"lora", "dora"} & {*names}:
        write(ROOT / "test" / "golden" / name, name == "dora")
    for name, (base, fields) in PAIRS.items() if "pairs" in names else ():
        write_pairs(ROOT / "test" / "golden" / "lora_pairs" / name, base, fields)

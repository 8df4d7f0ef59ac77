#!/usr/bin/env python3
"""Writes test/golden/dpo: pairs of answers, and what TRL's DPOTrainer and torch make of them, for test/test_prefer.cpp.

golden_dpo.py         needs torch, transformers, datasets and trl

The model is test/golden/sft's. dpo.json has 30 steps of DPOTrainer in fp32, in flatgpt's order (data/loader.cpp): four
pairs a step in two batches of two, AdamW at a constant rate. steps.json has, for each row of train/preference.cpp,
three such steps in double: TRL's own functions where it has the loss, else the formula; and of ipo, and of pairs of
texts, DPOTrainer's.
"""
import json
import pathlib
import sys
import tempfile
import types

import torch
import torch.nn.functional as F
from datasets import Dataset
from transformers import AutoModelForCausalLM, AutoTokenizer
from trl import DPOConfig, DPOTrainer
from trl.experimental.cpo import CPOTrainer
from trl.experimental.orpo import ORPOTrainer

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "dev"))
from golden_sft import messages, shuffled  # noqa: E402

OUT, SFT = ROOT / "test/golden/dpo", ROOT / "test/golden/sft"
STEPS, FEW, SEED, PAIRS, RATE, BETA = 30, 3, 5, 4, 1e-3, {"simpo": 2.0}
METRICS = {"loss": "loss", "grad_norm": "grad_norm", "margin": "rewards/margins", "accuracy": "rewards/accuracies",
           "reward_chosen": "rewards/chosen", "reward_rejected": "rewards/rejected", "logp_chosen": "logps/chosen",
           "logp_rejected": "logps/rejected"}


class InOrder(DPOTrainer):
    def _get_train_sampler(self, dataset=None):
        return torch.utils.data.SequentialSampler(dataset if dataset is not None else self.train_dataset)


def pairs():
    """Each question with its answer and, as the rejected one, the answer to the next question."""
    rows = [messages(json.loads(line)) for line in (ROOT / "dev/questions.jsonl").read_text().splitlines()]
    for i, row in enumerate(rows):
        prompt, chosen = row[:-1], row[-1:]
        rejected = rows[(i + 1) % len(rows)][-1:]
        if rejected[0]["content"] == chosen[0]["content"]:
            rejected = [{"role": "assistant", "content": "I do not know."}]
        yield {"prompt": prompt, "chosen": chosen, "rejected": rejected}


def write_pairs(all_pairs):
    """Writes the pairs in the three shapes of messages in turn."""
    with (OUT / "pairs.jsonl").open("w") as out:
        for i, pair in enumerate(all_pairs):
            whole = {name: pair["prompt"] + pair[name] for name in ("chosen", "rejected")}
            shapes = [pair, whole, {"prompt": pair["prompt"][-1]["content"], **whole}]
            out.write(json.dumps(shapes[i % 3], ensure_ascii=False) + "\n")
    (OUT / "texts.jsonl").write_text("".join(json.dumps(texts(pair)) + "\n" for pair in all_pairs))


def texts(pair):
    return {"prompt": "Q: " + pair["prompt"][-1]["content"] + "\nA:", "chosen": " " + pair["chosen"][0]["content"],
            "rejected": " " + pair["rejected"][0]["content"]}


def train(tokenizer, ordered, loss_type, steps):
    with tempfile.TemporaryDirectory() as folder:
        args = DPOConfig(output_dir=folder, per_device_train_batch_size=PAIRS // 2, gradient_accumulation_steps=2,
                         max_steps=steps, learning_rate=RATE, lr_scheduler_type="constant", warmup_steps=0,
                         weight_decay=0.0, adam_beta1=0.9, adam_beta2=0.95, adam_epsilon=1e-8, max_grad_norm=1.0,
                         logging_steps=1, save_strategy="no", report_to=[], use_cpu=True, bf16=False, fp16=False,
                         beta=0.1, loss_type=[loss_type], max_length=128, gradient_checkpointing=False)
        trainer = InOrder(model=AutoModelForCausalLM.from_pretrained(SFT, dtype=torch.float32),
                          ref_model=AutoModelForCausalLM.from_pretrained(SFT, dtype=torch.float32), args=args,
                          processing_class=tokenizer, train_dataset=Dataset.from_list(ordered[:PAIRS * steps]))
        trainer.train()
    logged = [row for row in trainer.state.log_history if "loss" in row]
    return {ours: [row[theirs] for row in logged] for ours, theirs in METRICS.items()}


def answer_scores(model, tokenizer, pair, name):
    """Sum of the log-probabilities of an answer's tokens, and their number."""
    ids = tokenizer.apply_chat_template(pair["prompt"] + pair[name], return_dict=False)
    begin = len(tokenizer.apply_chat_template(pair["prompt"], add_generation_prompt=True, return_dict=False))
    logits = model(torch.tensor([ids])).logits[0, :-1]
    return logits.log_softmax(-1).gather(1, torch.tensor(ids[1:])[:, None])[begin - 1:, 0].sum(), len(ids) - begin


def pair_loss(name, c, r, beta):
    """The loss of one pair. c, r: scores less the reference's, or divided by lengths, as the row has them."""
    trl = types.SimpleNamespace(beta=beta, alpha=0.0, loss_type="simpo", simpo_gamma=1.0, label_smoothing=0.0,
                                accelerator=types.SimpleNamespace(device="cpu"))
    if name == "dpo":
        return -F.logsigmoid(beta * (c - r))
    if name == "ipo":
        return (c - r - 1 / (2 * beta)) ** 2
    if name == "kto-paired":  # TRL 0.8's kto_pair for one pair, its estimates of KL detached as in the paper
        kl_c, kl_r = c.detach().clamp(min=0), r.detach().clamp(min=0)
        return (1 - torch.sigmoid(beta * (c - kl_r)) + 1 - torch.sigmoid(beta * (kl_c - r))) / 2
    if name == "orpo":
        return -c - ORPOTrainer.odds_ratio_loss(trl, c, r)[0]
    return CPOTrainer.cpo_loss(trl, c, r)[0]


def by_hand(tokenizer, ordered, name, smoothing=0.0):
    model = AutoModelForCausalLM.from_pretrained(SFT, dtype=torch.float64)
    frozen = AutoModelForCausalLM.from_pretrained(SFT, dtype=torch.float64)
    optimizer = torch.optim.AdamW(model.parameters(), lr=RATE, betas=(0.9, 0.95), eps=1e-8, weight_decay=0)
    beta, all_steps = BETA.get(name, 0.1), {"loss": [], "grad_norm": [], "margin": []}
    for step in range(FEW):
        losses, margins = [], []
        for pair in ordered[PAIRS * step:PAIRS * (step + 1)]:
            numbers, rewards = [], []
            for answer in ("chosen", "rejected"):
                score, n = answer_scores(model, tokenizer, pair, answer)
                if name in ("dpo", "ipo", "kto-paired"):
                    score = score - answer_scores(frozen, tokenizer, pair, answer)[0].detach()
                numbers.append(score / n if name in ("ipo", "orpo", "simpo") else score)
                rewards.append(beta * float(numbers[-1] * n if name == "ipo" else numbers[-1]))
            loss = pair_loss(name, *numbers, beta)
            if smoothing:
                loss = (1 - smoothing) * loss + smoothing * pair_loss(name, *numbers[::-1], beta)
            losses.append(loss)
            margins.append(rewards[0] - rewards[1])
        loss = torch.stack(losses).mean()
        optimizer.zero_grad()
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        for key, value in (("loss", loss), ("grad_norm", norm), ("margin", sum(margins) / len(margins))):
            all_steps[key].append(float(value))
    return all_steps


def main():
    OUT.mkdir(parents=True, exist_ok=True)
    tokenizer = AutoTokenizer.from_pretrained(SFT)
    all_pairs = list(pairs())
    write_pairs(all_pairs)
    n = len(all_pairs)
    ordered = [all_pairs[shuffled(SEED, i // n, n, i % n)] for i in range(PAIRS * STEPS)]
    few = {name: by_hand(tokenizer, ordered, name) for name in ("dpo", "ipo", "kto-paired", "orpo", "simpo")}
    few["dpo smoothed"] = by_hand(tokenizer, ordered, "dpo", 0.2)
    few["ipo of DPOTrainer"] = train(tokenizer, ordered, "ipo", FEW)
    few["texts"] = train(tokenizer, [texts(pair) for pair in ordered], "sigmoid", FEW)
    (OUT / "steps.json").write_text(json.dumps(few, indent=1) + "\n")
    dpo = train(tokenizer, ordered, "sigmoid", STEPS)
    (OUT / "dpo.json").write_text(json.dumps(dpo) + "\n")
    for ours, theirs in ((few["dpo"], dpo), (few["ipo"], few["ipo of DPOTrainer"])):
        print("by hand", ours["loss"], ours["margin"], "\nTRL    ", theirs["loss"][:FEW], theirs["margin"][:FEW])
    print(STEPS, "steps of DPO: loss", dpo["loss"][0], "...", dpo["loss"][-1], "margin", dpo["margin"][-1], "accuracy",
          dpo["accuracy"][-1])


if __name__ == "__main__":
    main()

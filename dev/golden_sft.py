#!/usr/bin/env python3
"""Writes test/golden/sft: a tiny model, and the losses of TRL's SFTTrainer on dev/questions.jsonl, for
test/test_train_chat.cpp.

golden_sft.py         needs torch, transformers, datasets and trl

The trainer reads the conversations in flatgpt's order (data/loader.cpp), four a step in two batches of two, in fp32, with
AdamW at a constant rate. Its loss of a step is the mean over all trained tokens of the step.
"""
import json
import pathlib
import shutil
import tempfile

import torch
from datasets import Dataset
from tokenizers import AddedToken
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast
from trl import SFTConfig, SFTTrainer

ROOT = pathlib.Path(__file__).resolve().parent.parent
OUT = ROOT / "test" / "golden" / "sft"
STEPS, SEED, MASK32 = 50, 5, 2**32 - 1
TEMPLATE = """{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' }}{% if m.role == 'assistant' %}{% generation %}\
{{ m.content + '<|im_end|>\n' }}{% endgeneration %}{% else %}{{ m.content + '<|im_end|>\n' }}{% endif %}{% endfor %}\
{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"""


def philox(key, stream, counter):
    """Philox4x32-10 (Salmon et al. 2011), as base/philox.h calls it: the first two words."""
    c = [counter & MASK32, counter >> 32, stream & MASK32, stream >> 32]
    k = [key & MASK32, key >> 32]
    for _ in range(10):
        a, b = 0xD2511F53 * c[0], 0xCD9E8D57 * c[2]
        c = [(b >> 32) ^ c[1] ^ k[0], b & MASK32, (a >> 32) ^ c[3] ^ k[1], a & MASK32]
        k = [(k[0] + 0x9E3779B9) & MASK32, (k[1] + 0xBB67AE85) & MASK32]
    return c


def shuffled(seed, epoch, n, i):
    """Element i of an epoch's order: a Feistel network, walked until it is within n."""
    bits, x = (n - 1).bit_length(), i
    while True:
        low, high = bits // 2, bits - bits // 2
        for round_ in range(8):
            right, left = x & ((1 << low) - 1), x >> low
            f = philox(seed, (0xDA7A << 48) ^ epoch, round_ << 56 | right)
            x = right << high | ((left ^ (f[1] << 32 | f[0])) & ((1 << high) - 1))
            low, high = high, low
        if x < n:
            return x


def messages(row):
    if "messages" in row:
        return row["messages"]
    if "conversations" in row:
        roles = {"human": "user", "gpt": "assistant", "system": "system"}
        return [{"role": roles[m["from"]], "content": m["value"]} for m in row["conversations"]]
    prompt, completion = row["prompt"], row["completion"]
    if isinstance(prompt, list):
        return prompt + completion
    return [{"role": "user", "content": prompt}, {"role": "assistant", "content": completion}]


class InOrder(SFTTrainer):
    def _get_train_sampler(self, dataset=None):
        return torch.utils.data.SequentialSampler(dataset if dataset is not None else self.train_dataset)


def main():
    assert shuffled(1, 0, 1000, 0) == 791 and shuffled(1, 0, 1000, 1) == 742  # as in test/test_loader.cpp
    shutil.rmtree(OUT, ignore_errors=True)
    OUT.mkdir(parents=True)
    tokenizer = PreTrainedTokenizerFast(tokenizer_file=str(ROOT / "test/golden/tokenizers/qwen2.json"),
                                        eos_token="<|im_end|>", pad_token="<|endoftext|>")
    tokenizer.chat_template = TEMPLATE
    torch.manual_seed(1)
    config = LlamaConfig(vocab_size=len(tokenizer), hidden_size=32, intermediate_size=48, num_hidden_layers=2,
                         num_attention_heads=2, num_key_value_heads=1, max_position_embeddings=128,
                         initializer_range=0.1, tie_word_embeddings=True, eos_token_id=tokenizer.eos_token_id,
                         bos_token_id=None, pad_token_id=None)
    LlamaForCausalLM(config).save_pretrained(OUT)
    tokenizer.save_pretrained(OUT)
    rows = [messages(json.loads(line)) for line in (ROOT / "dev/questions.jsonl").read_text().splitlines()]
    n = len(rows)
    order = [shuffled(SEED, i // n, n, i % n) for i in range(4 * STEPS)]
    with tempfile.TemporaryDirectory() as folder:
        args = SFTConfig(output_dir=folder, per_device_train_batch_size=2, gradient_accumulation_steps=2,
                         max_steps=STEPS, learning_rate=3e-3, lr_scheduler_type="constant", warmup_steps=0,
                         weight_decay=0.0, adam_beta1=0.9, adam_beta2=0.95, adam_epsilon=1e-8, max_grad_norm=1.0,
                         logging_steps=1, save_strategy="no", report_to=[], use_cpu=True, bf16=False, fp16=False,
                         assistant_only_loss=True, max_length=128, packing=False, gradient_checkpointing=False,
                         dataloader_drop_last=False)
        trainer = InOrder(model=LlamaForCausalLM.from_pretrained(OUT, dtype=torch.float32), args=args,
                          processing_class=tokenizer, train_dataset=Dataset.from_list([{"messages": rows[i]} for i in order]))
        trainer.train()
    logged = [(row["loss"], row["grad_norm"]) for row in trainer.state.log_history if "loss" in row]
    (OUT / "losses.json").write_text(json.dumps({"losses": [a for a, _ in logged], "norms": [b for _, b in logged]}) + "\n")
    print(len(logged), "steps:", logged[0], "...", logged[-1])


if __name__ == "__main__":
    main()

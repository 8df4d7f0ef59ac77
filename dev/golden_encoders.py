#!/usr/bin/env python3
"""Writes test/golden/encoders: tiny random encoders by transformers, and what they compute.

Usage: golden_encoders.py [OUT [NAME...]].  Needs torch, transformers. Run with transformers 5.24; *_relative with
4.50, because later versions have no relative keys.
NAME/config.json, model.safetensors: as save_pretrained writes them, weights in bf16. NAME/expected.safetensors, which
is computed in double: tokens,
segments (B,S); lengths (B): what follows is padding; hidden (B,S,C): the last states; logits (B,S,outputs), of a
classifier of texts (B,outputs); target (B,S), -100: none; loss; grad.NAME: its gradients; of pairs next_logits (B,2) and
next_target (B), whose loss is in the sum.
"""
import json
import shutil
import sys
from pathlib import Path

import torch
import transformers
from safetensors.torch import save_file

from golden_families import in_files, noisy

V, C, S, LENGTHS = 64, 16, 20, (20, 13)
BERT = dict(vocab_size=V, hidden_size=C, num_hidden_layers=2, num_attention_heads=4, intermediate_size=24,
            max_position_embeddings=32)
ROBERTA = dict(BERT, max_position_embeddings=34, type_vocab_size=1)
DISTIL = dict(vocab_size=V, dim=C, n_layers=2, n_heads=4, hidden_dim=24, max_position_embeddings=32)
ELECTRA = dict(BERT, embedding_size=8)
MODERN = dict({k: v for k, v in BERT.items()}, num_hidden_layers=4, local_attention=8, pad_token_id=0, bos_token_id=1,
              eos_token_id=2, cls_token_id=1, sep_token_id=2)
# Local attention reaches 3 positions to each side; the first token of each text is global.
LONG = dict(BERT, max_position_embeddings=34, attention_window=6, pad_token_id=1)
LM, TEXTS, TOKENS = "MaskedLM", "SequenceClassification", "TokenClassification"
# name: (model_type, head, fields of its config)
MODELS = {
    "bert": ("bert", LM, BERT),
    "bert_relu": ("bert", LM, dict(BERT, hidden_act="relu", layer_norm_eps=1e-5)),
    "bert_base": ("bert", "", BERT),
    "bert_texts": ("bert", TEXTS, dict(BERT, num_labels=3)),
    "bert_tokens": ("bert", TOKENS, dict(BERT, num_labels=4)),
    "bert_value": ("bert", TEXTS, dict(BERT, num_labels=1)),
    "roberta": ("roberta", LM, ROBERTA),
    "roberta_base": ("roberta", "", ROBERTA),
    "roberta_texts": ("roberta", TEXTS, dict(ROBERTA, id2label={0: "bad", 1: "good"}, label2id={"bad": 0, "good": 1})),
    "xlm_roberta": ("xlm-roberta", LM, ROBERTA),
    "camembert": ("camembert", LM, ROBERTA),
    "distilbert": ("distilbert", LM, DISTIL),
    "distilbert_base": ("distilbert", "", DISTIL),
    "distilbert_texts": ("distilbert", TEXTS, DISTIL),
    "electra": ("electra", "PreTraining", ELECTRA),
    "electra_base": ("electra", "", dict(ELECTRA, embedding_size=C)),
    "electra_generator": ("electra", LM, dict(ELECTRA, embedding_size=24)),
    "electra_texts": ("electra", TEXTS, ELECTRA),
    "modernbert": ("modernbert", LM, MODERN),
    "modernbert_base": ("modernbert", "", MODERN),
    "modernbert_texts": ("modernbert", TEXTS, dict(MODERN, norm_bias=True, classifier_bias=True)),
    "modernbert_tokens": ("modernbert", TOKENS, dict(MODERN, attention_bias=True, mlp_bias=True)),
    "bert_pairs": ("bert", "PreTraining", BERT),
    "modernbert_mean": ("modernbert", TEXTS, dict(MODERN, num_labels=3, classifier_pooling="mean")),
    "longformer": ("longformer", LM, LONG),
    "longformer_base": ("longformer", "", dict(LONG, type_vocab_size=1)),
    "longformer_texts": ("longformer", TEXTS, dict(LONG, num_labels=3)),
    "longformer_tokens": ("longformer", TOKENS, dict(LONG, attention_window=4, num_labels=4)),
    "bert_relative": ("bert", LM, dict(BERT, position_embedding_type="relative_key", max_position_embeddings=24)),
    "roberta_relative": ("roberta", TEXTS, dict(ROBERTA, position_embedding_type="relative_key")),
}


def make(kind, head, fields):
    config = transformers.AutoConfig.for_model(kind, **fields)
    auto = getattr(transformers, "AutoModelFor" + head if head else "AutoModel")
    attention = "eager" if kind == "longformer" else "sdpa"
    return auto.from_config(config, attn_implementation=attention).double().eval()


def targets_of(head, model, mask, g):
    """Targets at some positions of a text; a classifier of texts has one, at its first position."""
    shape, outputs = mask.shape, getattr(model.config, "num_labels", 0)
    if head == TEXTS:
        first = torch.randn(shape[0], generator=g).double() if outputs == 1 else torch.randint(0, outputs, shape[:1], generator=g)
        target = torch.full(shape, -100.0)
        target[:, 0] = first
        return target, first
    if head == "PreTraining" and model.config.model_type == "electra":
        target = torch.randint(0, 2, shape, generator=g)
        return target.float().masked_fill(~mask, -100), target
    target = torch.randint(0, V if head in (LM, "PreTraining") else outputs, shape, generator=g)
    keep = mask & (torch.rand(shape, generator=g) < 0.4)
    target = target.masked_fill(~keep, -100)
    return target.float(), target


def expected(model, head, tokens, segments, mask, g):
    inputs = dict(input_ids=tokens, attention_mask=mask.long())
    if hasattr(model.config, "type_vocab_size"):
        inputs["token_type_ids"] = segments
    if model.config.model_type == "longformer":
        inputs["global_attention_mask"] = torch.zeros_like(tokens)
        inputs["global_attention_mask"][:, 0] = 1
    found = {"tokens": tokens.float(), "segments": segments.float(), "lengths": mask.sum(1).float()}
    with torch.no_grad():
        found["hidden"] = model.base_model(**inputs).last_hidden_state
    if head:
        found["target"], labels = targets_of(head, model, mask, g)
        pairs = {}
        if type(model).__name__ == "BertForPreTraining":
            found["next_target"] = pairs["next_sentence_label"] = torch.tensor([1, 0])
        out = model(**inputs, labels=labels, **pairs)
        out.loss.backward()
        logits = out.prediction_logits if pairs else out.logits
        found |= {"logits": logits.detach(), "loss": out.loss.detach().reshape(1)}
        if pairs:
            found["next_logits"] = out.seq_relationship_logits.detach()
        grads = {n: torch.zeros_like(p) if p.grad is None else p.grad for n, p in model.named_parameters()}
        found |= {"grad." + n: g for n, g in in_files(model, grads).items()}
    return {k: v.float().contiguous() for k, v in found.items()}


def main():
    out = Path(sys.argv[1] if len(sys.argv) > 1 else "test/golden/encoders")
    for seed, (name, (kind, head, fields)) in enumerate(MODELS.items()):
        if sys.argv[2:] and name not in sys.argv[2:]:
            continue
        torch.manual_seed(seed)
        model = make(kind, head, fields)
        g = torch.Generator().manual_seed(seed + 1000)
        tokens = torch.randint(5, V, (2, S), generator=g)
        mask = torch.arange(S)[None] < torch.tensor(LENGTHS)[:, None]
        tokens[~mask] = model.config.pad_token_id
        rows = getattr(model.config, "type_vocab_size", 1)
        segments = (torch.arange(S)[None] >= torch.tensor([[9], [4]])).long().clamp(max=rows - 1) * mask
        noisy(model, seed)
        found = expected(model, head, tokens, segments, mask, g)
        dir = out / name
        shutil.rmtree(dir, ignore_errors=True)
        model.to(torch.bfloat16).save_pretrained(dir)
        config = json.loads((dir / "config.json").read_text())
        for key in ("transformers_version",) + (() if head in (TEXTS, TOKENS) else ("id2label", "label2id")):
            config.pop(key, None)
        (dir / "config.json").write_text(json.dumps(config, separators=(",", ":")) + "\n")
        (dir / "generation_config.json").unlink(missing_ok=True)
        save_file(found, str(dir / "expected.safetensors"))
        print(name, type(model).__name__, found.get("loss"), sum(f.stat().st_size for f in dir.iterdir()), "bytes")


if __name__ == "__main__":
    main()

#!/usr/bin/env python3
"""Writes test/golden/seq2seq: pairs as transformers prepares them, and BLEU scores of sacrebleu.

Usage: python3 dev/golden_seq2seq.py     (pip install sacrebleu transformers tokenizers torch)

t5.json, bart.json    small tokenizers with T5's and BART's templates
pairs.json            by tokenizer: pairs, limits, and a batch of them: input_ids, decoder_input_ids, labels
bleu.json             texts, references; scores of all of them and of each; texts split as 13a does
"""
import json
import pathlib
import random

import sacrebleu
from sacrebleu.metrics import BLEU
from sacrebleu.tokenizers.tokenizer_13a import Tokenizer13a
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers
from transformers import (BartConfig, BartForConditionalGeneration, DataCollatorForSeq2Seq, PreTrainedTokenizerFast,
                          T5Config, T5ForConditionalGeneration)

OUT = pathlib.Path(__file__).resolve().parent.parent / "test/golden/seq2seq"
TEXTS = ["the quick brown fox jumps over the lazy dog", "a small house near the river", "we read books in the evening",
         "she sells sea shells by the sea shore", "numbers like 12 and 3.5 are words", "the dog sleeps near the house"]
PAIRS = [("the fox jumps", "the dog sleeps"), ("", "a house"), ("we read", ""),
         ("sea <extra_id_0> shore", "<extra_id_0> by"),
         ("the quick brown fox jumps over the lazy dog near the river in the evening", "a river"),
         ("a dog", "the quick brown fox sells small books and sea shells by the lazy river"), ("zebra é 日", "x</s>y"),
         ("  two  spaces ", "end ")]


def t5():
    special = ["<pad>", "</s>", "<unk>"] + [f"<extra_id_{i}>" for i in range(12)]
    words = dict.fromkeys("\u2581" + word for text in TEXTS for word in text.split())
    letters = sorted(set("".join(words)))
    pieces = dict.fromkeys([*letters, *(word[:n] for word in words for n in (2, 4) if len(word) > n)])
    scores = [(piece, -3 - 0.0625 * i / len(piece)) for i, piece in enumerate(pieces)]    # no training, which varies
    t = Tokenizer(models.Unigram([(name, 0.0) for name in special] + scores, unk_id=2))
    t.add_special_tokens(special)
    t.normalizer = normalizers.Sequence([normalizers.Replace("\t", " ")])
    t.pre_tokenizer = pre_tokenizers.Metaspace()
    t.decoder = decoders.Metaspace()
    t.post_processor = processors.TemplateProcessing(single="$A </s>", pair="$A </s> $B </s>",
                                                         special_tokens=[("</s>", 1)])
    fast = PreTrainedTokenizerFast(tokenizer_object=t, eos_token="</s>", pad_token="<pad>", unk_token="<unk>")
    config = T5Config(vocab_size=len(fast), d_model=8, d_kv=4, d_ff=8, num_layers=1, num_heads=2, pad_token_id=0,
                      eos_token_id=1, decoder_start_token_id=0)
    return fast, T5ForConditionalGeneration(config)


def bart():
    t = Tokenizer(models.BPE())
    t.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    t.decoder = decoders.ByteLevel()
    t.train_from_iterator(TEXTS * 4, trainers.BpeTrainer(
        vocab_size=320, special_tokens=["<s>", "<pad>", "</s>", "<unk>", "<mask>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False))
    t.post_processor = processors.RobertaProcessing(("</s>", 2), ("<s>", 0), add_prefix_space=False)
    fast = PreTrainedTokenizerFast(tokenizer_object=t, bos_token="<s>", eos_token="</s>", pad_token="<pad>",
                                   unk_token="<unk>", mask_token="<mask>", cls_token="<s>", sep_token="</s>")
    config = BartConfig(vocab_size=len(fast), d_model=8, encoder_layers=1, decoder_layers=1, encoder_attention_heads=2,
                        decoder_attention_heads=2, encoder_ffn_dim=8, decoder_ffn_dim=8, pad_token_id=1, bos_token_id=0,
                        eos_token_id=2, decoder_start_token_id=2)
    return fast, BartForConditionalGeneration(config)


def pairs():
    cases = {}
    for name, make in (("t5", t5), ("bart", bart)):
        tokenizer, model = make()
        (OUT / f"{name}.json").write_text(tokenizer.backend_tokenizer.to_str(pretty=False))
        source_len, target_len = 24, 16
        rows = [tokenizer(s, max_length=source_len, truncation=True) |
                {"labels": tokenizer(text_target=t, max_length=target_len, truncation=True)["input_ids"]}
                for s, t in PAIRS]
        rows = [{k: r[k] for k in ("input_ids", "attention_mask", "labels")} for r in rows]
        batch = DataCollatorForSeq2Seq(tokenizer, model)(rows)
        shifted = model.prepare_decoder_input_ids_from_labels(batch["labels"])
        cases[name] = {"pairs": PAIRS, "source_len": source_len, "target_len": target_len,
                       "start": model.config.decoder_start_token_id, "pad": model.config.pad_token_id,
                       "lengths": batch["attention_mask"].sum(1).tolist(), "source": batch["input_ids"].tolist(),
                       "tokens": shifted.tolist(), "labels": batch["labels"].tolist()}
    (OUT / "pairs.json").write_text(json.dumps(cases, separators=(",", ":")) + "\n")


def bleu():
    r = random.Random(43)
    words = ("the a Cat sat on mat. It's 3.5 10,000 1-2 -5 U.S.A. don't (really) \"quote\" &quot;hi&quot; &amp;lt; x&y "
             "<skipped> [1] a/b e-mail naïve Straße ÉCOLE Привет, мир! 日本語。 मानक 50% $9.99 … – — ‘so’ "
             "end.) .,.. ,5 5, 7. .7 9-,9 tab\tbed no\u00a0break wide\u3000space zero\u200bwidth 😀 {x}~ `y` @z _u_ ^ "
             "\\ | * + = ; : ? ! ' '' , . - -- Ｆ１２ ٣.٤ İstanbul \x1cfs \u2028ls \u0085nl line\nend "
             "hy-\nphen").split(" ")
    texts, references = [], []
    for i in range(240):
        reference = [r.choice(words[:20] if i % 3 else words) for _ in range(r.choice([0, 1, 2, 3, 4, 6, 9, 14]))]
        text = [w if r.random() < 0.8 else r.choice(words) for w in reference]
        if r.random() < 0.3 and text:
            del text[r.randrange(len(text))]
        if r.random() < 0.2:
            text += r.choices(words, k=3)
        texts.append(" ".join(text) + r.choice(["", "", " ", "\n", "."]))
        references.append(" ".join(reference))

    def score(found, expected, lowercase=False):
        metric = BLEU(lowercase=lowercase, force=True)
        s = metric.corpus_score(found, [expected])
        return {"score": s.score, "counts": s.counts, "totals": s.totals, "precisions": s.precisions, "bp": s.bp,
                "length": s.sys_len, "reference_length": s.ref_len, "text": str(s), "lowercase": lowercase,
                "signature": str(metric.get_signature())}

    split = Tokenizer13a()
    all_of = {"sacrebleu": sacrebleu.__version__, "texts": texts, "references": references,
              "all": [score(texts, references), score(texts, references, True)],
              "each": [score([t], [e])["score"] for t, e in zip(texts, references)],
              "each_lower": [score([t], [e], True)["score"] for t, e in zip(texts, references)],
              "tens": [score(texts[i:i + 10], references[i:i + 10])["score"] for i in range(0, 240, 10)],
              "none": score([""] * 3, ["a b c d e"] * 3), "short": score(["a b c"], ["a b c"]),
              "split": [[t, split(t.rstrip())] for t in dict.fromkeys(
                  texts[::4] + ["&lt;skipped&gt;", "<skip<skipped>ped>", "a.b,c.5,d", "1.,2", "..", "-\n-", "5--3"])]}
    (OUT / "bleu.json").write_text(json.dumps(all_of, separators=(",", ":")) + "\n")


OUT.mkdir(exist_ok=True)
pairs()
bleu()

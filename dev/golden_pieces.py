#!/usr/bin/env python3
"""Small WordPiece and Unigram tokenizers, and what Hugging Face's tokenizers and SentencePiece make of some texts.

    pip install tokenizers sentencepiece protobuf
    dev/golden_pieces.py test/golden

Writes pieces/NAME.json (T5's, ALBERT's, XLM-R's and BERT's steps, byte fallback), pieces/bert/vocab.txt,
pieces/unigram.model and pieces/cases.json: the texts; for each tokenizer ids and decoded text, and a pair with its
segments, whole and truncated; WordPiece tokens learnt from the torture text. SentencePiece's map of characters has
a few rules only, so that the files stay small.
"""
import base64
import io
import json
import pathlib
import sys
import tempfile

import sentencepiece
from sentencepiece import sentencepiece_model_pb2
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

MARK = "\u2581"
SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
RULES = [("\n", " "), ("\t", " "), ("\r", " "), ("\u00a0", " "), ("\u3000", " "), ("\uff21", "A"), ("\ufb01", "fi"), ("\u2460", "1"),
         ("e\u0301", "\u00e9"), ("\u200b", ""), ("\u00bd", "1/2"), ("\x01", ""), ("\u0430\u0308", "\u04d3")]
PAIR = ("Hello there, unaffable world!", "A second (shorter) one; what's up?")
metaspace = lambda scheme, split=True: {
    "type": "Metaspace", "replacement": MARK, "prepend_scheme": scheme, "split": split}
replace = lambda a, b: {"type": "Replace", "pattern": {"String": a}, "content": b}
normal = lambda *steps: {"type": "Sequence", "normalizers": list(steps)}
WORDS = {"type": "Sequence", "pretokenizers": [{"type": "WhitespaceSplit"}, metaspace("always")]}
token = lambda name, segment: {"SpecialToken": {"id": name, "type_id": segment}}
text = lambda name, segment: {"Sequence": {"id": name, "type_id": segment}}
T5 = {"type": "TemplateProcessing", "single": [text("A", 0), token("</s>", 0)],
      "pair": [text("A", 0), token("</s>", 0), text("B", 0), token("</s>", 0)],
      "special_tokens": {"</s>": {"id": "</s>", "ids": [1], "tokens": ["</s>"]}}}


def bert(corpus, vocab=400, alphabet=80, **steps):
    t = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    t.normalizer = normalizers.BertNormalizer(**steps)
    t.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    t.decoder = decoders.WordPiece()
    t.train_from_iterator(corpus, trainers.WordPieceTrainer(
        vocab_size=vocab, show_progress=False, limit_alphabet=alphabet, special_tokens=SPECIAL))
    j = json.loads(t.to_str())
    ordered = sorted(j["model"]["vocab"], key=lambda k: (j["model"]["vocab"][k] >= 5, len(k), k) if k not in SPECIAL
                     else (False, SPECIAL.index(k), k))    # the trainer's ids of ## differ from run to run
    j["model"]["vocab"] = {k: i for i, k in enumerate(ordered)}
    ids = j["model"]["vocab"]
    j["post_processor"] = {"type": "BertProcessing", "sep": ["[SEP]", ids["[SEP]"]], "cls": ["[CLS]", ids["[CLS]"]]}
    return j


def sentencepieces(corpus, vocab_size=300, **options):
    out = io.BytesIO()
    with tempfile.NamedTemporaryFile("w", suffix=".tsv") as rules:
        for a, b in RULES:
            hexes = lambda s: " ".join(f"{ord(c):X}" for c in s)
            rules.write(f"{hexes(a)}\t{hexes(b)}\n")
        rules.flush()
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter(corpus), model_writer=out, model_type="unigram", vocab_size=vocab_size,
            character_coverage=0.98, normalization_rule_tsv=rules.name, pad_id=0, eos_id=1, unk_id=2, bos_id=-1,
            num_threads=1, minloglevel=2, hard_vocab_limit=False, **options)
    model = sentencepiece_model_pb2.ModelProto()
    model.ParseFromString(out.getvalue())
    return out.getvalue(), model


def unigram(model, normalizer, pre, decoder, byte_fallback=False):
    vocab = [[p.piece, p.score] for p in model.pieces]
    special = [{"id": i, "content": p.piece, "single_word": False, "lstrip": False, "rstrip": False,
                "normalized": False, "special": True} for i, p in enumerate(model.pieces) if p.type in (2, 3)]
    special.append(dict(special[0], id=len(vocab), content="<extra_id_0>", lstrip=True))
    return {"version": "1.0", "truncation": None, "padding": None, "added_tokens": special, "normalizer": normalizer,
            "pre_tokenizer": pre, "post_processor": T5, "decoder": decoder,
            "model": {"type": "Unigram", "unk_id": 2, "vocab": vocab, "byte_fallback": byte_fallback}}


def tokenizers(corpus):
    file, model = sentencepieces(corpus)
    charsmap = {"type": "Precompiled", "precompiled_charsmap": base64.b64encode(
        model.normalizer_spec.precompiled_charsmap).decode()}
    right = {"type": "Strip", "strip_left": False, "strip_right": True}
    runs = lambda to: {"type": "Replace", "pattern": {"Regex": " {2,}"}, "content": to}
    bytes_ = sentencepieces(corpus, vocab_size=560, byte_fallback=True, remove_extra_whitespaces=False)[1]
    fused = {"type": "Sequence", "decoders": [replace(MARK, " "), {"type": "ByteFallback"}, {"type": "Fuse"},
                                              {"type": "Strip", "content": " ", "start": 1, "stop": 0}]}
    return file, {
        "bert": bert(corpus), "bert_cased": bert(corpus, lowercase=False, strip_accents=False),
        "t5": unigram(model, charsmap, WORDS, metaspace("always")),
        "t5_runs": unigram(model, normal(charsmap, right, runs(MARK)), metaspace("always"), metaspace("always")),
        "first": unigram(model, normal(right, runs(" ")), metaspace("first"), metaspace("first")),
        "whole": unigram(model, charsmap, metaspace("always", False), metaspace("always")),
        "albert": unigram(model, normal(replace("``", '"'), {"type": "NFKD"}, {"type": "StripAccents"},
                                        {"type": "Lowercase"}, charsmap, runs(" ")), WORDS, metaspace("always")),
        "bytes": unigram(bytes_, normal({"type": "Prepend", "prepend": MARK}, replace(" ", MARK)), None, fused, True)}


def main(folder):
    torture = (folder / "bpe_torture.txt").read_bytes().decode()
    texts = json.loads((folder / "tokenizers" / "cases.json").read_text())["texts"] + torture.split("\n") + [
        "[CLS] hello [SEP] x [MASK]", "\u0130stanbul \u00c0\u00c9\u00ce \u0141 \u01c5 \u1e9e \u03a3\u03af\u03c3\u03c5\u03c6\u03bf\u03a3",
        "a" * 100 + " " + "b" * 101, "a" * 130, "don't do not I'm we've it's , . ? ! ' x", "\r\n\r \n a\rb",
        "e\u0301\u0301\u0323 \uac01 \u1161\u11a8", "\ufb01\uff21\u2460\u00bd", "\U0001F1E9\U0001F1EA \U0001F468\u200d\U0001F469",
        "\u200b\u200d\ufeffa\u00adb\x01c\x85d", "``quoted''", f"{MARK} a {MARK}{MARK}b {MARK}", "  lots   of space  ", "\u3000\u00a0x",
        "\U0001d165\u0301\U0001d16d\u0323x", "<extra_id_0> a <extra_id_0>b </s> <unk>", "\u0928\u092e\u0938\u094d\u0924\u0947", "\u6f22a\u5b57\u304b\u30ab\uf900b", "\u0430\u0308x \u0430 e\u0301e", "A" * 40, "ab" * 60]
    corpus = [line for line in (torture * 3 + " Hello there, unaffable world! A second shorter one, what's up" * 9)
              .split("\n") if sum(c < "\u0080" for c in line) > 0.9 * len(line) and line.strip()]
    out = folder / "pieces"
    (out / "bert").mkdir(parents=True, exist_ok=True)
    file, made = tokenizers(corpus)
    (out / "unigram.model").write_bytes(file)
    cases = {"texts": texts, "pair": PAIR, "tokenizers": {}}
    for name, j in made.items():
        (out / f"{name}.json").write_text(json.dumps(j, ensure_ascii=True, indent=0) + "\n")
        t = Tokenizer.from_str(json.dumps(j))
        ids = [t.encode(s, add_special_tokens=False).ids for s in texts]
        pairs = []
        for most in (0, 16, 9, 4):
            t.enable_truncation(most) if most else t.no_truncation()
            e = t.encode(*PAIR)
            pairs.append({"most": most, "ids": e.ids, "segments": e.type_ids, "first": t.encode(PAIR[0]).ids})
        cases["tokenizers"][name] = {"ids": ids, "pairs": pairs}
        if name in ("bert", "t5", "bytes"):
            cases["tokenizers"][name]["decoded"] = [t.decode(i, skip_special_tokens=False) for i in ids]
    vocab = made["bert"]["model"]["vocab"]
    (out / "bert" / "vocab.txt").write_text("".join(f"{k}\n" for k in sorted(vocab, key=vocab.get)))
    p = sentencepiece.SentencePieceProcessor(model_proto=file)
    cases["unigram.model"] = [p.encode(s) for s in texts]
    # No two pairs occur equally often, so the result does not depend on ids.
    cases["counts"] = {"ab": 31, "abc": 57, "ac": 101, "bc": 7, "bca": 13, "cab": 211, "cabd": 17, "ca": 5, "dab": 97, "eab": 89}
    some = [" ".join([w] * n) for w, n in cases["counts"].items()]
    learnt = [sorted(k for k in bert(some, 21, 1000)["model"]["vocab"] if len(k.removeprefix("##")) > 1 and
                     k not in SPECIAL) for _ in range(4)]
    assert all(one == learnt[0] for one in learnt), learnt
    cases["learnt"] = learnt[0]
    cases["corpus"] = corpus
    (out / "cases.json").write_text(json.dumps(cases, ensure_ascii=True) + "\n")


main(pathlib.Path(sys.argv[1]))

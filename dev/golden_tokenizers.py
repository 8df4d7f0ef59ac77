#!/usr/bin/env python3
"""Small tokenizers of each kind and what Hugging Face's tokenizers and SentencePiece make of some texts.

    pip install tokenizers sentencepiece
    dev/golden_tokenizers.py test/golden

Writes tokenizers/NAME.json, tokenizers/NAME.model and tokenizers/cases.json: the texts, and for each tokenizer
the ids with and without special tokens and the decoded text. No letter in them is younger than 2021: the libraries'
Unicode versions differ.
"""
import io
import json
import pathlib
import sys

import sentencepiece
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

CL100K = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|%s| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
          r"|\s+(?!\S)|\s+")
O200K = (r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
         r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
         r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+")
V3 = [r"\p{N}{1,3}", "[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+",
      "[!\"#$%&'()*+,\\-./:;<=>?@\\[\\\\\\]^_`{|}~][A-Za-z]+|[^\r\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+"
      "| ?[\\p{P}\\p{S}]+[\r\n]*|\\s*[\r\n]+|\\s+(?!\\S)|\\s+"]
CODER = ["[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", "[\u4e00-\u9fa5\u0800-\u4e00\uac00-\ud7ff]+"]
split = lambda regex, how="isolated", invert=False: pre_tokenizers.Split(Regex(regex), how, invert)
byte_level = lambda regex=False, prefix=False: pre_tokenizers.ByteLevel(add_prefix_space=prefix, use_regex=regex)
digits = pre_tokenizers.Digits
sequence = pre_tokenizers.Sequence
MARK = "\u2581"


def byte_tokenizer(text, pre, normalizer=None, vocab=340, alphabet=True, **model):
    t = Tokenizer(models.BPE(**model))
    if normalizer:
        t.normalizer = normalizer
    t.pre_tokenizer = pre
    t.decoder = decoders.ByteLevel()
    t.train_from_iterator([text], trainers.BpeTrainer(
        vocab_size=vocab, show_progress=False, special_tokens=["<|endoftext|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet() if alphabet else []))
    return t


def character_tokenizer(text, prefix):
    """As transformers makes them of SentencePiece's: the whole text is one piece."""
    special = ["<unk>", "<s>", "</s>"]
    t = Tokenizer(models.BPE(unk_token="<unk>", byte_fallback=True, fuse_unk=True))
    t.pre_tokenizer = pre_tokenizers.Metaspace(MARK, "always", True)    # words, to train on
    t.train_from_iterator([text], trainers.BpeTrainer(
        vocab_size=460, show_progress=False, special_tokens=special + [f"<0x{b:02X}>" for b in range(256)],
        limit_alphabet=60))
    j = json.loads(t.to_str())
    j["added_tokens"] = [a for a in j["added_tokens"] if a["content"] in special]
    strip = []
    if prefix == "prepend":
        j["normalizer"] = {"type": "Sequence", "normalizers": [
            {"type": "Prepend", "prepend": MARK}, {"type": "Replace", "pattern": {"String": " "}, "content": MARK}]}
        j["pre_tokenizer"] = None
    elif prefix == "first":
        j["pre_tokenizer"] = {"type": "Metaspace", "replacement": MARK, "prepend_scheme": "first", "split": False}
    else:    # Gemma's
        j["normalizer"] = {"type": "Replace", "pattern": {"String": " "}, "content": MARK}
        j["pre_tokenizer"] = {"type": "Split", "pattern": {"String": " "}, "behavior": "MergedWithPrevious",
                              "invert": False}
    if prefix != "none":
        strip = [{"type": "Strip", "content": " ", "start": 1, "stop": 0}]
    j["decoder"] = {"type": "Sequence", "decoders": [
        {"type": "Replace", "pattern": {"String": MARK}, "content": " "}, {"type": "ByteFallback"}, {"type": "Fuse"}]
        + strip}
    t = Tokenizer.from_str(json.dumps(j))
    t.post_processor = processors.TemplateProcessing(single="<s> $A", pair="<s> $A <s> $B", special_tokens=[("<s>", 1)])
    return t


def tokenizers(text):
    nfc = normalizers.NFC()
    llama3 = byte_tokenizer(text, sequence([split(CL100K % r"\p{N}{1,3}"), byte_level()]), ignore_merges=True)
    llama3.add_special_tokens(["<|begin|>", "<|eot|>"])
    begin = ("<|begin|>", llama3.token_to_id("<|begin|>"))
    llama3.post_processor = processors.Sequence([
        processors.ByteLevel(trim_offsets=False),
        processors.TemplateProcessing(single="<|begin|> $A", pair="<|begin|> $A $B", special_tokens=[begin])])
    yield "llama3", llama3
    qwen2 = byte_tokenizer(text, sequence([split(CL100K % r"\p{N}"), byte_level()]), nfc)
    qwen2.add_special_tokens(["<|im_start|>", "<|im_end|>"])
    qwen2.add_tokens(["<tool_call>"])
    yield "qwen2", qwen2
    yield "o200k", byte_tokenizer(text, sequence([split(O200K), byte_level()]))
    # bytes are missing
    yield "smollm", byte_tokenizer(text, sequence([digits(True), byte_level(True)]), alphabet=False)
    yield "deepseek_v3", byte_tokenizer(text, sequence([split(r) for r in V3] + [byte_level()]))
    yield "deepseek_coder", byte_tokenizer(text, sequence([*map(split, CODER), digits(True), byte_level()]), nfc)
    yield "falcon", byte_tokenizer(text, sequence([
        pre_tokenizers.Punctuation("contiguous"), byte_level(True), digits(False), split("[0-9][0-9][0-9]")]))
    neox = byte_tokenizer(text, byte_level(True), nfc)
    neox.add_tokens([AddedToken(" " * n, normalized=True) for n in range(2, 7)])
    yield "neox", neox
    roberta = byte_tokenizer(text, byte_level(True, True))
    roberta.add_special_tokens([AddedToken("<mask>", lstrip=True), "<s>", "</s>"])
    roberta.post_processor = processors.RobertaProcessing(
        ("</s>", roberta.token_to_id("</s>")), ("<s>", roberta.token_to_id("<s>")), True, True)
    yield "roberta", roberta
    other = sequence([split("[aeiou]+", "merged_with_next"), split(r"\d", "removed"),
                      split(r"[^\W_]+|\s+", "contiguous"), split("x|y", "merged_with_previous"),
                      split(r"^\w|z?", "isolated", True), byte_level()])
    yield "other", byte_tokenizer(text, other)
    phi3 = character_tokenizer(text, "prepend")
    phi3.add_special_tokens([AddedToken("<|end|>", rstrip=True), AddedToken("<|user|>", rstrip=True, lstrip=True)])
    phi3.add_tokens([AddedToken("wold", single_word=True, normalized=False)])
    yield "phi3", phi3
    yield "first", character_tokenizer(text, "first")
    gemma = character_tokenizer(text, "none")
    gemma.add_tokens([AddedToken("\n\n", normalized=False), AddedToken("\n", normalized=False)])
    yield "gemma", gemma


def main():
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    golden = pathlib.Path(sys.argv[1])
    out = golden / "tokenizers"
    out.mkdir(exist_ok=True)
    text = (golden / "bpe_torture.txt").read_bytes().decode()
    texts = ["", " ", "  a", "Hello world", " Hello  world ", "x" * 70,
             "a\u0301e\u0301 \u1100\u1161\u11a8 か\u3099 \u0958", "1234567 12 ½ ²3", "I'LL we've 'S it's",
             "A\r\n\r\n  B\n/ C//\n", "<s>a</s> <unk> <|endoftext|> <0x41>",
             "<|begin|>hi <|eot|>\n\n<|im_start|>user\nyo<|im_end|> <tool_call> x",
             "a <|user|>  b <|end|>  \n c<|end|>", "wold awold wold_ (wold) wold", "a <mask> b  <mask>",
             "    x      y  \n   z", "▁a▁▁ b▁", "\x01\x04\x13\x7f", "the quick brown fox the quick brown",
             text[:700], text[700:1400], text[1400:]]
    cases = {"texts": texts, "tokenizers": {}, "models": {}}
    for name, t in tokenizers(text * 3 + " the quick brown fox jumps over the lazy dog" * 9):
        t.save(str(out / f"{name}.json"), pretty=False)
        t = Tokenizer.from_file(str(out / f"{name}.json"))
        both = []
        for special in True, False:
            t.encode_special_tokens = not special
            both.append([t.encode(s, add_special_tokens=False).ids for s in texts])
        t.encode_special_tokens = False
        around = t.encode("x", add_special_tokens=True).ids
        plain = t.encode("x", add_special_tokens=False).ids
        at = around.index(plain[0])
        cases["tokenizers"][name] = {"special": both[0], "plain": both[1], "before": around[:at],
                                     "after": around[at + len(plain):],
                                     "decoded": [t.decode(ids, skip_special_tokens=False) for ids in both[0]]}

    lines = (text + "\nthe quick brown fox jumps over the lazy dog" * 9).split("\n")
    for name, prefix, symbols in ("prefixed", True, []), ("symbols", False, ["<sep>", "\t", MARK * 2]):
        model = io.BytesIO()
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter(lines), model_writer=model, model_type="bpe", vocab_size=750, byte_fallback=True,
            normalization_rule_name="identity", remove_extra_whitespaces=False, character_coverage=0.98,
            split_digits=True, user_defined_symbols=symbols, add_dummy_prefix=prefix, num_threads=1)
        (out / f"{name}.model").write_bytes(model.getvalue())
        p = sentencepiece.SentencePieceProcessor(model_proto=model.getvalue())
        ids = [p.encode(s) for s in texts]
        cases["models"][name] = {"plain": ids, "decoded": [p.decode(i) for i in ids]}
    (out / "cases.json").write_text(json.dumps(cases, separators=(",", ":")) + "\n")


main()

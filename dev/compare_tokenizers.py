#!/usr/bin/env python3
"""flatgpt's tokenizers against Hugging Face's tokenizers and SentencePiece, over options and hostile texts.

    pip install tokenizers sentencepiece && make build/dev/encode
    dev/compare_tokenizers.py [--kinds 300] [--texts 300] [--seed 1] [--only NAME] [--keep FOLDER]
    dev/compare_tokenizers.py --small test/golden/tokenizers

Draws tokenizers: every pre-tokenizer, normalizer, decoder, kind of added token and flag of the model
that flatgpt reads, over bytes and over characters, and SentencePiece's models. Each one's ids with and
without special tokens and what they decode to must be those of the library, also after flatgpt has
written the tokenizer and read it again; or flatgpt refuses the file by name. Prints the refusals, and
the first differences of each tokenizer; exit status 1 where there are any.
Not drawn: a decoder without ByteFallback, whose <0x0A> flatgpt makes a byte all the same. Not compared:
what SentencePiece decodes an unknown piece to, and texts that the library panics at.
--small writes options.json and user_defined.model: a small tokenizer for each kind of difference that
was found, with the right ids, for test_tokenizer_options.cpp.
"""
import argparse
import io
import json
import os
import pathlib
import random
import subprocess
import sys
import tempfile

import sentencepiece
from tokenizers import Tokenizer, models, pre_tokenizers, trainers

ROOT = pathlib.Path(__file__).resolve().parent.parent
ENCODE = ROOT / "build" / "dev" / "encode"
MARK = "\u2581"
CL100K = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|%s| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
          r"|\s+(?!\S)|\s+")
split = lambda regex, how="Isolated", invert=False: {
    "type": "Split", "pattern": {"Regex": regex}, "behavior": how, "invert": invert}
level = lambda regex=False, prefix=False: {
    "type": "ByteLevel", "add_prefix_space": prefix, "trim_offsets": True, "use_regex": regex}
sequence = lambda *steps: {"type": "Sequence", "pretokenizers": list(steps)}
digits = lambda each: {"type": "Digits", "individual_digits": each}
replace = lambda a, b: {"type": "Replace", "pattern": {"String": a}, "content": b}
metaspace = lambda scheme, cut: {"type": "Metaspace", "replacement": MARK, "prepend_scheme": scheme, "split": cut}
BYTE_PRE = [
    level(True), level(True, True), level(), level(False, True), sequence(split(CL100K % r"\p{N}{1,3}"), level()),
    sequence(split(CL100K % r"\p{N}"), level()), sequence(digits(True), level(True)),
    sequence({"type": "Punctuation", "behavior": "Contiguous"}, level(True), digits(False), split("[0-9][0-9][0-9]")),
    sequence(split(r"\s+", "Removed"), level()), sequence(split(r"\w+|\s", "Removed", True), level()),
    sequence(split("[aeiou]+", "MergedWithNext"), split(r"\d", "Contiguous"), level()),
    sequence({"type": "Punctuation", "behavior": "MergedWithPrevious"}, level(False, False)),
    sequence(split(r"\p{N}{1,3}(?=(?:\p{N}{3})*(?!\p{N}))|\P{N}+"), level())]
FORMS = [{"type": f} for f in ("NFC", "NFD", "NFKC", "NFKD")]
NORMAL = [None] * 3 + FORMS + [replace("e", "oo"), {"type": "Prepend", "prepend": "x"}, {
    "type": "Sequence", "normalizers": [FORMS[0], replace("\n", "<n>"), {"type": "Prepend", "prepend": " "}]}]
PREPEND = {"type": "Sequence", "normalizers": [{"type": "Prepend", "prepend": MARK}, replace(" ", MARK)]}
CHARACTER_PRE = [None] * 3 + [metaspace(s, c) for s in ("always", "first", "never") for c in (True, False)] + [
    {"type": "Split", "pattern": {"String": " "}, "behavior": "MergedWithPrevious", "invert": False},
    sequence(metaspace("first", True), digits(True)), split(r"\s+|[^\s]+")]
CHARACTER_NORMAL = [PREPEND, PREPEND, replace(" ", MARK), None, FORMS[0], FORMS[2], {
    "type": "Sequence", "normalizers": [FORMS[3], replace(" ", MARK)]}]
FUSED = [replace(MARK, " "), {"type": "ByteFallback"}, {"type": "Fuse"}]
STRIP = {"type": "Strip", "content": " ", "start": 1, "stop": 0}
CHARACTER_DECODERS = [{"type": "Sequence", "decoders": FUSED}, {"type": "Sequence", "decoders": FUSED + [STRIP]},
                      *({"type": "Sequence", "decoders": [
                          {"type": "Metaspace", "replacement": MARK, "prepend_scheme": s, "split": True}, *FUSED[1:]]}
                        for s in ("always", "first", "never"))]
ADDED = ["<|im_start|>", "<tool>", "wold", "ä", "é\u0301", "e\u0301", "für", " sp", "\n", "\n\n", "  ", MARK,
         MARK + "the", "Ġq", "a b", "!", "x", "<0x41>", "漢字", "ﬁ", "foo bar", "THE", "▁▁"]
PARTS = [" ", " ", "  ", "\n", "\n\n", "\r\n", "\t", "a", "b", "e", "x", "q", "the", "The", "THE", "Hello",
         "world", "S", "'s", "'LL", "1", "23", "456", "é", "e\u0301", "ä", "a\u0308", "ﬁ", "½", "漢", "字", "漢字",
         "か", "\u3099", "가", "\u1100", "\u1161", ".", "!", "/", "-", "=", "$", "_", MARK, MARK + MARK,
         "<|endoftext|>", "<s>", "</s>", "<unk>", "<tool>", "wold", "<sep>", "\x01", "\0", "\u00a0", "\u2003",
         "\u200b", "😀", "👩\u200d👩", "ü", "für", "Ġ", "Ġq", "<0x41>", "foo bar", "sp", "\u0316\u0301",
         "\u0323\u0307", "Å", "\u212b", "ſ", "İ", "\ufeff", "\ufffd", "[REF]", "Viṇt"]


def texts(count, seed):
    draw = random.Random(seed)
    fixed = ["", " ", "  a", "a", " lead", "trail ", "Hello world", "x" * 70, "a\u0301" * 40, " " * 33, "1234567", MARK,
             "hi <tool>x", "<tool>", "see [REF]doc [REF] x", "[REF]", "中", "a" + "\u0316\u0301" * 100, "\n" * 20]
    return fixed + ["".join(draw.choices(PARTS, k=draw.randint(1, 24))) for _ in range(count - len(fixed))]


def corpus():
    text = (ROOT / "test" / "golden" / "bpe_torture.txt").read_bytes().decode()
    return text * 3 + " the quick brown fox jumps over the lazy dog, Hello world: for für éa 漢字 the x q wold" * 9


def trained(bytes_, alphabet):
    t = Tokenizer(models.BPE())
    t.pre_tokenizer = (pre_tokenizers.ByteLevel(add_prefix_space=False) if bytes_
                       else pre_tokenizers.Metaspace(MARK, "always", True))
    special = ["<unk>", "<s>", "</s>", "<|endoftext|>"]
    spelled = [] if bytes_ else [f"<0x{b:02X}>" for b in range(256)]
    t.train_from_iterator([corpus()], trainers.BpeTrainer(
        vocab_size=520, show_progress=False, special_tokens=special + spelled, limit_alphabet=400 if alphabet else 50,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet() if bytes_ and alphabet else []))
    return json.loads(t.to_str())["model"]


def tokenizer(draw, base):
    bytes_ = draw.random() < 0.5
    model = json.loads(json.dumps(base[bytes_, draw.random() < 0.7]))
    vocab = model["vocab"]
    drop = draw.choice(["none", "none", "some", "all"])
    for name in [k for k in vocab if k.startswith("<0x")]:
        if drop == "all" or (drop == "some" and draw.random() < 0.2):
            del vocab[name]
    vocab = model["vocab"] = {name: i for i, name in enumerate(sorted(vocab, key=vocab.get))}    # no holes
    model["byte_fallback"] = not bytes_ and draw.random() < 0.7
    model["unk_token"] = "<unk>" if draw.random() < 0.5 else None
    model["fuse_unk"] = draw.random() < 0.5
    model["ignore_merges"] = draw.random() < 0.25
    added = [{"id": vocab[n], "content": n, "special": True, "normalized": False} for n in
             ("<unk>", "<s>", "</s>", "<|endoftext|>")]
    taken = max(vocab.values()) + 1
    for name in draw.sample(ADDED, draw.choice([0, 1, 2, 4, 8])):
        known = name in vocab
        special = draw.random() < 0.3
        added.append({"id": vocab[name] if known else taken, "content": name, "special": special,
                      "normalized": not special and draw.random() < 0.5})
        taken += not known
    for a in added:
        a.update({flag: draw.random() < 0.1 for flag in ("single_word", "lstrip", "rstrip")})
    return {"version": "1.0", "truncation": None, "padding": None, "added_tokens": added,
            "normalizer": draw.choice(NORMAL if bytes_ else CHARACTER_NORMAL),
            "pre_tokenizer": draw.choice(BYTE_PRE if bytes_ else CHARACTER_PRE), "post_processor": None,
            "decoder": level() if bytes_ else draw.choice(CHARACTER_DECODERS), "model": model}


def pieces(draw, folder):
    """A SentencePiece model with drawn options."""
    out = io.BytesIO()
    symbols = draw.sample(["[REF]", "<sep>", "\n", "\t", MARK * 2, "<|im_start|>", "wold", "é", MARK + "the", "a b",
                           "!"], draw.choice([0, 1, 3, 6]))
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(corpus().split("\n")), model_writer=out, model_type="bpe",
        vocab_size=800, byte_fallback=draw.random() < 0.8, normalization_rule_name="identity",
        remove_extra_whitespaces=False, character_coverage=0.98, split_digits=draw.random() < 0.5,
        user_defined_symbols=symbols, add_dummy_prefix=draw.random() < 0.7, num_threads=1, minloglevel=2)
    return out.getvalue()


def wanted(path, these):
    """What the library makes of the texts: ids with special tokens, ids without, decoded."""
    if path.suffix == ".model":
        p = sentencepiece.SentencePieceProcessor(model_file=str(path))
        ids = [p.encode(s) for s in these]
        return {"plain": ids, "decoded_plain": [None if p.unk_id() in i else p.decode(i) for i in ids]}
    t = Tokenizer.from_file(str(path))
    want = {}
    for key, plain in ("special", False), ("plain", True):
        t.encode_special_tokens = plain
        want[key] = [attempt(lambda: t.encode(s, add_special_tokens=False).ids) for s in these]
    want["decoded"] = [attempt(lambda: t.decode(ids, skip_special_tokens=False)) for ids in want["special"]]
    return want


def attempt(call):
    try:
        return call()
    except BaseException as error:    # a panic of the library's is no Exception
        if isinstance(error, KeyboardInterrupt):
            raise
        return None


def ours(paths, texts_file):
    run = subprocess.run([ENCODE, texts_file, *map(str, paths)], stdout=subprocess.PIPE, check=True)
    return [json.loads(line) for line in run.stdout.splitlines()]


def differences(want, got, these):
    for key in [k for k in ("special", "plain", "decoded", "decoded_plain") if k in want and k in got]:
        for text, a, b in zip(these, want[key], got[key]):
            if a is not None and a != b:
                text, a, b = (repr(x)[:200] for x in (text, a, b))
                yield f"{key} {text}\n      wanted {a}\n      got    {b}"


def show(path):
    if path.suffix == ".model":
        p = sentencepiece.SentencePieceProcessor(model_file=str(path))
        return f"pieces {[p.id_to_piece(i) for i in range(3, 20)]}"
    j = json.loads(path.read_text())
    j["model"].pop("vocab"), j["model"].pop("merges")
    flags = {k: v for k, v in j["model"].items() if v and k != "type"}
    added = [{k: v for k, v in a.items() if v} for a in j["added_tokens"][4:]]
    return f"{flags} normalizer {j['normalizer']} pre {j['pre_tokenizer']} decoder {j['decoder']['type']} added {added}"


def small_kinds():
    """(name, tokenizer, texts): what differed once."""
    def kind(symbols, merges=(), added=(), **model):
        vocab = {s: i for i, s in enumerate([*symbols, *(a + b for a, b in merges)])}
        tokens = []
        for name, flags in added:
            at = vocab.get(name, len(vocab) + sum(t["content"] not in vocab for t in tokens))
            flags = set(flags.split())
            tokens.append({"id": at, "content": name, **{f: f in flags for f in (
                "single_word", "lstrip", "rstrip", "normalized", "special")}})
        steps = {k: model.pop(k, None) for k in ("normalizer", "pre_tokenizer", "decoder")}
        return {"version": "1.0", "truncation": None, "padding": None, "added_tokens": tokens, **steps,
                "post_processor": None, "model": {
                    "type": "BPE", "dropout": None, "unk_token": None, "fuse_unk": False, "byte_fallback": False,
                    "ignore_merges": False, "continuing_subword_prefix": None, "end_of_word_suffix": None, **model,
                    "vocab": vocab, "merges": list(map(list, merges))}}

    bytes_ = list("abftx!<>|\n") + ["Ġ", "ä", "¸", "Ń", "Ã", "¤", "¼", "Â", "½", "r", "å", "-", "_"]
    bytes_[9] = "Ċ"
    level_pre = {"pre_tokenizer": level(), "decoder": level()}
    yield "a byte's spelling", kind(bytes_, [], [("ä", "normalized")], **level_pre), ["中aä", "ä"]
    yield "a byte that is special", kind(bytes_, [("a", "!")], [("!", "special")], **level_pre), ["b!", "a!", "!"]
    yield "a name in the alphabet", kind(bytes_, [], [("für", ""), ("Ġb", "")], **level_pre), ["a für", "Ġb b"]
    yield "special text hides", kind(bytes_, [], [("<|x|>", "special"), ("x", "")], **level_pre), ["<|x|>x", "<|x"]
    yield "taken white space", kind(bytes_, [], [("x", "rstrip"), ("\n", ""), ("  ", "lstrip rstrip")], **level_pre), [
        "x\n\na", "x \n a", "a     b", "x   "]
    yield "words", kind(bytes_, [], [("ab", "single_word")], **level_pre), ["½ab", "ab\u200d", "ab\u0301", "ab-ab_"]
    marked = [MARK, *"abVit!", "\u0301"]
    fused = {"decoder": {"type": "Sequence", "decoders": FUSED + [STRIP]}}
    yield "nothing for unknown", kind(marked, [("i", "t"), (MARK, "a"), ("b", MARK)], normalizer=PREPEND, **fused), [
        "Vi\u1ec7t", "b\u1ec7 a", "\u1ec7 \u1ec7a", "bé" * 40]
    yield "bytes pass unknown", kind(["<unk>", "<0xC3>", "<0xA4>", *marked], [], unk_token="<unk>", byte_fallback=True,
                                     normalizer=PREPEND, **fused), ["a\u1ec7äb", "\u1ec7ä\u1ec7\u1ec7", "ä \u1ec7ä a"]
    yield "found with a space", kind(marked, [], [("<t>", "normalized"), (" i", "normalized")], normalizer=PREPEND,
                                     **fused), ["a <t>b", "<t>", "a<t>", "a  i"]
    metaspace_decoder = {"decoder": {"type": "Sequence", "decoders": [metaspace("always", False), *FUSED[1:]]}}
    yield "marks of the first token", kind(marked, [(MARK, MARK), (MARK + MARK, "a")],
                                           pre_tokenizer=metaspace("first", False), **metaspace_decoder), [
        "  a  a", "   ", "a  a"]
    yield "a byte's name", kind(["<unk>", *marked], [], [("<0x41>", "")], unk_token="<unk>", **fused), ["a<0x41>b"]
    these = ["äa½b_a-ä\u0301x", "ab ab!\u0301a", "aab x-½_"]
    for name, regex in [("letters with marks", r"\w+"), ("no letters in a class", r"[^\W_]+"), ("others", r"[\W_]|\w"),
                        ("borders", r"\b"), ("hexadecimal", r"\h+"), ("groups", r"(a)(b)?|(x)")]:
        pre = sequence(split(regex, "Removed"), level())
        yield name, kind(bytes_, [], pre_tokenizer=pre, decoder=level()), these


def small(folder):
    cases = []
    for name, t, these in small_kinds():
        path = folder / "options.json"
        path.write_text(json.dumps(t))
        cases.append({"name": name, "tokenizer": t, "texts": these, **wanted(path, these)})
    out = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(["see doc one and a doc two [REF]", "the end of a doc"] * 9), model_writer=out,
        model_type="bpe", vocab_size=40, normalization_rule_name="identity", remove_extra_whitespaces=False,
        user_defined_symbols=["[REF]", "\n", MARK + MARK], num_threads=1, minloglevel=2)
    model = folder / "user_defined.model"
    model.write_bytes(out.getvalue())
    these = ["see [REF]doc [REF] end", "[REF]", "\n a\nb", "  a", "a  [REF]  ", MARK + "a" + MARK * 3, ""]
    cases.append({"name": "user_defined.model", "texts": these, **wanted(model, these)})
    (folder / "options.json").write_text(json.dumps(cases, separators=(",", ":")) + "\n")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kinds", type=int, default=300)
    parser.add_argument("--texts", type=int, default=300)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", help="one tokenizer's name")
    parser.add_argument("--keep", help="a folder that gets the tokenizers")
    parser.add_argument("--small", help="a folder for the small tests")
    args = parser.parse_args()
    if args.small:
        return small(pathlib.Path(args.small))
    folder = pathlib.Path(args.keep or tempfile.mkdtemp())
    folder.mkdir(exist_ok=True)
    these = texts(args.texts, args.seed)
    texts_file = folder / "texts"
    texts_file.write_text(json.dumps(these))
    base = {(b, a): trained(b, a) for b in (True, False) for a in (True, False)}
    draw = random.Random(args.seed)
    paths = []
    for i in range(args.kinds):
        of_pieces = i % 10 == 9
        paths.append(folder / f"{i}.{'model' if of_pieces else 'json'}")
        if of_pieces:
            paths[-1].write_bytes(pieces(draw, folder))
        else:
            paths[-1].write_text(json.dumps(tokenizer(draw, base), ensure_ascii=False))
    paths = [p for p in paths if args.only in (None, p.name)]
    refused, wrong, equal = {}, 0, 0
    for path, got in zip(paths, ours(paths, texts_file)):
        if "error" in got:
            why = got["error"].removeprefix(str(path) + ": ")[:90]
            refused.setdefault(why, []).append(path.name)
            continue
        try:
            want = wanted(path, these)
        except Exception as error:    # the library's own: flatgpt may read what it does not
            print(f"{path.name}: the library: {error}")
            continue
        again = folder / ("again." + path.name + ".json")
        again.write_text(got.pop("json"))
        second = ours([again], texts_file)[0]
        found = list(differences(want, got, these))
        found += ["written and read again: " + d for d in differences(got, second, these)]
        if "error" in second:
            found.append("written and read again: " + second["error"])
        wrong, equal = wrong + bool(found), equal + (not found)
        if found:
            print(f"{path.name}: {len(found)} differences; {show(path)}")
            for line in found[:2]:
                print("   " + line)
    for why, names in refused.items():
        print(f"refused {len(names)}: {why}")
    print(f"{equal} tokenizers equal, {wrong} not, {sum(map(len, refused.values()))} refused")
    sys.exit(wrong > 0)


main()

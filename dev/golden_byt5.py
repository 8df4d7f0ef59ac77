#!/usr/bin/env python3
"""What transformers' ByT5Tokenizer makes of some texts: test/golden/byt5. Run with transformers 5.24.

Usage: golden_byt5.py [OUT]

first/tokenizer_config.json: as the first checkpoints have it, without a list of added tokens; saved/: as save_pretrained
writes it. cases.json: the texts, and by directory the ids of each and of a pair, and the decoded texts.
"""
import json
import sys
from pathlib import Path

from transformers import AutoTokenizer, ByT5Tokenizer

TEXTS = ["", "a", " two  words\n\t", "a\u00e9\u6f22\U0001F600", "e\u0301 \u0627\u0644 \u0928\u092e\u0938\u094d\u0924\u0947", "\x00\x7f\u0080\uffff",
         "<extra_id_0> a <extra_id_124>b", "a </s> b <pad><unk> c", "<extra_id_125>", "</", "\ufffd"]
PAIR = ("a \u6f22", "b")


def token(content):
    return {"content": content, "single_word": False, "lstrip": False, "rstrip": False, "normalized": True,
            "__type": "AddedToken"}


def main(out):
    first = {"eos_token": token("</s>"), "unk_token": token("<unk>"), "pad_token": token("<pad>"), "extra_ids": 125,
             "additional_special_tokens": [f"<extra_id_{i}>" for i in range(125)], "tokenizer_class": "ByT5Tokenizer"}
    ByT5Tokenizer().save_pretrained(out / "saved")
    (out / "saved" / "added_tokens.json").unlink()
    saved = json.loads((out / "saved" / "tokenizer_config.json").read_text())
    cases = {"texts": TEXTS, "pair": PAIR}
    for name, config in (("first", first), ("saved", saved)):
        (out / name).mkdir(exist_ok=True)
        (out / name / "tokenizer_config.json").write_text(json.dumps(config, separators=(",", ":")) + "\n")
        t = AutoTokenizer.from_pretrained(out / name)
        assert isinstance(t, ByT5Tokenizer)
        ids = [t(s).input_ids for s in TEXTS]
        decoded = [t.decode(i, clean_up_tokenization_spaces=False) for i in ids]
        cases[name] = {"ids": ids, "decoded": decoded, "pair": t(*PAIR).input_ids}
    (out / "cases.json").write_text(json.dumps(cases) + "\n")


main(Path(sys.argv[1] if len(sys.argv) > 1 else "test/golden/byt5"))

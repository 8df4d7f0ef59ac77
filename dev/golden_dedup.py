#!/usr/bin/env python3
"""Documents with near-duplicates, for test/golden/dedup.jsonl: which ones `tokenize --dedup minhash` must drop.

    pip install datasketch
    dev/golden_dedup.py test/golden/dedup.jsonl

The reference compares all pairs by their true Jaccard similarity; the first of similar documents is kept. No pair is
near the threshold of 0.8, so that MinHash must agree; datasketch's MinHashLSH does. A line: {"text", "of": number of
the document that is kept in its stead, or -1, "similarity"}.
"""
import json
import random
import re
import sys

from datasketch import MinHash, MinHashLSH

THRESHOLD, NGRAM, PERM = 0.8, 5, 128
# Words: runs of letters, digits and _; a kana or CJK character is one. See data/documents/words.h.
GAP = "\x80-\xBF\u2000-\u207F\u3000-\u303F"
WORD = re.compile(f"[\u3040-\u9FFF\U00020000-\U0010FFFF]|(?:[A-Za-z0-9_]|(?![{GAP}\u3040-\u9FFF])[^\x00-\x7F\U00020000-\U0010FFFF])+")


def ngrams(text):
    words = [re.sub("[A-Z]", lambda m: m[0].lower(), w) for w in WORD.findall(text)]
    if len(words) < NGRAM: return {tuple(words)} if words else {("whole text", text)}
    return {tuple(words[i:i + NGRAM]) for i in range(len(words) - NGRAM + 1)}


def documents():
    rng = random.Random(11)
    vocabulary = ["".join(rng.choice("abcdefghijklmnopqrstuvwxyz") for _ in range(rng.randrange(2, 9))) for _ in range(900)]
    vocabulary += ["Straße", "naïve", "漢字仮名", "данные", "x_1"]
    fresh = lambda n: [rng.choice(vocabulary) for _ in range(n)]
    texts = []
    for i in range(24):
        words = fresh(rng.randrange(120, 220))
        texts.append(" ".join(words))
        kind = i % 8
        changed = list(words)
        if kind == 0: texts.append(" ".join(words))                                      # equal
        elif kind == 1: texts.append(", ".join(words).upper().replace("STRASSE", "Straße") + "!\n")
        elif kind == 2:                                                                  # one word of many
            changed[len(words) // 2] = "different"
            texts.append(" ".join(changed))
        elif kind == 3: texts.append(" ".join(words + fresh(2)))                           # a longer end
        elif kind == 4:                                                                  # every tenth word
            changed[::10] = fresh(len(changed[::10]))
            texts.append(" ".join(changed))
        elif kind == 5: texts.append(" ".join(words[:len(words) // 2] + fresh(len(words) // 2)))
        elif kind == 6: texts.append(" ".join(words[3:]))
        else: texts.append(" ".join(reversed(words)))
    texts += ["two words", "Two Words", "two other", "", "...", "...", "!!!", "漢字仮名交じり文の例です", "漢字仮名交じり文の例です。"]
    order = list(range(len(texts)))
    rng.shuffle(order)
    return [texts[i] for i in order]


def main(path):
    texts, kept, rows = documents(), [], []
    lsh, library = MinHashLSH(THRESHOLD, PERM, weights=(0.1, 0.9)), []
    for i, text in enumerate(texts):
        grams = ngrams(text)
        same = [(len(grams & other) / len(grams | other), j) for j, other in kept] if text else []
        assert not any(0.7 < s < 0.92 for s, _ in same), "a pair is too near the threshold"
        best = max(same, key=lambda pair: (pair[0], -pair[1]), default=(0, -1))
        sketch = MinHash(PERM)
        for gram in grams: sketch.update(" ".join(gram).encode())
        if text and lsh.query(sketch): library.append(i)
        elif text: lsh.insert(i, sketch)
        if best[0] < THRESHOLD:
            if text: kept.append((i, grams))
            best = (best[0], -1)
        rows.append({"text": text, "of": best[1], "similarity": round(best[0], 4)})
    dropped = [i for i, row in enumerate(rows) if row["of"] >= 0]
    assert dropped == library, "datasketch drops others"
    with open(path, "w") as out:
        for row in rows: out.write(json.dumps(row, ensure_ascii=False) + "\n")
    print(len(texts), "documents,", len(dropped), "dropped")


if __name__ == "__main__": main(sys.argv[1])

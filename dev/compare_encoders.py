#!/usr/bin/env python3
"""Ids and speed of flatgpt's tokenizers beside tiktoken, tokenizers and gigatoken.

    python3 -m venv V && V/bin/pip install tiktoken tokenizers gigatoken numpy
    V/bin/pip download litellm --no-deps        # its wheel carries the ranks of cl100k_base and o200k_base
    V/bin/python dev/compare_encoders.py --wheel litellm-*.whl --dir SCRATCH [--repeat N] TEXT...

GPT-2's merges are the repository's. Each text is encoded by `flatgpt tokenize` on one core and by every library on one
thread; all ids must be equal. MB/s count user CPU time, the best of N turns: of flatgpt the whole process less the one
that encodes a few bytes, of a library the call alone, the first of its process (cold) and the second (warm).
"""
import argparse
import json
import pathlib
import resource
import struct
import subprocess
import sys
import zipfile

GPT2 = r"""'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"""
CL100K = (r"""(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|"""
          r"""\s+(?!\S)|\s+""")
SUFFIX = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
O200K = (r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+" + SUFFIX +
         r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*" + SUFFIX +
         r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+")
# Name, file in litellm's wheel, pattern, gigatoken's name of the pattern, id of <|endoftext|>.
KINDS = [("gpt2", None, GPT2, "gpt2", 50256),
         ("cl100k", "9b5ad71b2ce5302211f9c61530b329a4922fc6a4", CL100K, "cl100k", 100257),
         ("o200k", "fb374d419588a4632f3f557e76b4b70aebbca790", O200K, "o200k", 199999)]
END = "<|endoftext|>"


def byte_alphabet():
    plain = [b for b in range(256) if 33 <= b <= 126 or 161 <= b <= 172 or b >= 174]
    return plain, {b: chr(b) if b in plain else chr(256 + [c for c in range(256) if c not in plain].index(b))
                   for b in range(256)}


def gpt2_ranks():
    pairs = (pathlib.Path(__file__).parent.parent / "data/gpt2_merges.bin").read_bytes()
    plain, _ = byte_alphabet()
    tokens = [bytes([b]) for b in plain + [b for b in range(256) if b not in plain]]
    for left, right in struct.iter_unpack("<HH", pairs):
        tokens.append(tokens[left] + tokens[right])
    return {token: rank for rank, token in enumerate(tokens)}


def halves(token, ranks):
    parts = [token[i:i + 1] for i in range(len(token))]
    while len(parts) > 2:
        rank, i = min((ranks.get(a + b, 1 << 30), i) for i, (a, b) in enumerate(zip(parts, parts[1:])))
        assert rank < ranks[token], token
        parts[i:i + 2] = [parts[i] + parts[i + 1]]
    return parts


def write_files(folder, name, ranks, pattern, end):
    """Writes NAME.tiktoken and NAME.json, a tokenizer.json of these ranks."""
    import base64
    (folder / f"{name}.tiktoken").write_bytes(
        b"".join(base64.b64encode(t) + b" %d\n" % r for t, r in sorted(ranks.items(), key=lambda x: x[1])))
    _, letter = byte_alphabet()
    spell = lambda token: "".join(letter[b] for b in token)
    merges = [halves(t, ranks) for t in sorted(ranks, key=ranks.get) if len(t) > 1]
    level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
    split = {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}
    (folder / f"{name}.json").write_text(json.dumps({
        "version": "1.0", "truncation": None, "padding": None, "normalizer": None, "post_processor": None,
        "added_tokens": [{"id": end, "content": END, "single_word": False, "lstrip": False, "rstrip": False,
                          "normalized": False, "special": True}],
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [split, level]}, "decoder": level,
        "model": {"type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None,
                  "end_of_word_suffix": None, "fuse_unk": False, "byte_fallback": False, "ignore_merges": False,
                  "vocab": {spell(t): r for t, r in ranks.items()},
                  "merges": [[spell(a), spell(b)] for a, b in merges]}}))


def ranks_of(wheel, file):
    import base64
    data = zipfile.ZipFile(wheel).read(f"litellm/litellm_core_utils/tokenizers/{file}")
    return {base64.b64decode(token): int(rank) for token, rank in map(bytes.split, data.splitlines())}


def user_seconds(who=resource.RUSAGE_SELF):
    return resource.getrusage(who).ru_utime


def timed(call):
    start = user_seconds()
    result = call()
    return result, user_seconds() - start


def library(which, name, folder, text):
    """One library in a process of its own: prints its two times and writes its ids."""
    import numpy
    pattern, giga, end = next((k[2], k[3], k[4]) for k in KINDS if k[0] == name)
    data = pathlib.Path(text).read_bytes()
    if which == "gigatoken":
        import gigatoken
        t = gigatoken.Tokenizer.from_tiktoken(folder / f"{name}.tiktoken", giga, {END: end})
        call = lambda: t.encode(data)
    elif which == "tiktoken":
        import tiktoken
        from tiktoken.load import load_tiktoken_bpe
        t = tiktoken.Encoding(name, pat_str=pattern, special_tokens={END: end},
                              mergeable_ranks=load_tiktoken_bpe(str(folder / f"{name}.tiktoken")))
        string = data.decode()
        call = lambda: t.encode_to_numpy(string, disallowed_special=())
    else:
        import tokenizers
        t = tokenizers.Tokenizer.from_file(str(folder / f"{name}.json"))
        # Parts of the text, because one call takes some 100 bytes of memory a byte.
        string = data.decode()
        call = lambda: [i for part in pieces_at_paragraphs(string) for i in t.encode(part, add_special_tokens=False).ids]
    ids, cold = timed(call)
    _, warm = timed(call) if which != "tokenizers" else (None, cold)
    numpy.asarray(ids, dtype=numpy.uint32).tofile(folder / f"{which}.ids")
    print(json.dumps([cold, warm]))


def pieces_at_paragraphs(string, size=1 << 20):
    """Parts that begin behind a line end which a letter follows: no pattern's piece crosses there."""
    begin = 0
    while begin < len(string):
        end = begin + size
        while end < len(string) and not (string[end - 1] == "\n" and "a" <= string[end] <= "z" and
                                         string[end - 2].isalpha()):
            end += 1
        yield string[begin:end]
        begin = end


def flatgpt(binary, name, folder, text):
    import numpy
    out = folder / "flat"
    times = []
    (folder / "few.txt").write_text("a few bytes\n")
    for source in folder / "few.txt", text:
        start = user_seconds(resource.RUSAGE_CHILDREN)
        subprocess.run(["taskset", "-c", "0", binary, "tokenize", "--tokenizer", folder / f"{name}.json", "--out", out,
                        "--overwrite", "--format", "text", source], check=True, stderr=subprocess.DEVNULL)
        times.append(user_seconds(resource.RUSAGE_CHILDREN) - start)
    ids = []
    for shard in sorted(folder.glob("flat_train_*.bin")):
        raw = shard.read_bytes()
        wide = struct.unpack("<i", raw[:4])[0] == 20240801
        ids.append(numpy.frombuffer(raw[1024:], dtype="<u4" if wide else "<u2").astype(numpy.uint32))
        shard.unlink()
    return numpy.concatenate(ids)[1:-1], times[1] - times[0]    # without <|endoftext|> at both ends


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--wheel", required=True)
    parser.add_argument("--dir", required=True, type=pathlib.Path)
    parser.add_argument("--flatgpt", default="./flatgpt")
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--only", default="gpt2,cl100k,o200k")
    parser.add_argument("--libraries", default="gigatoken,tiktoken,tokenizers")
    parser.add_argument("texts", nargs="+")
    args = parser.parse_args()
    import numpy
    args.dir.mkdir(exist_ok=True)
    bad = 0
    for name, file, pattern, _, end in KINDS:
        if name not in args.only.split(","):
            continue
        if not (args.dir / f"{name}.json").exists():
            write_files(args.dir, name, ranks_of(args.wheel, file) if file else gpt2_ranks(), pattern, end)
        for text in args.texts:
            megabytes = pathlib.Path(text).stat().st_size / 1e6
            best, ids = {}, {}
            for turn in range(args.repeat):
                ids["flatgpt"], seconds = flatgpt(args.flatgpt, name, args.dir, text)
                best["flatgpt"] = min(best.get("flatgpt", 1e9), seconds)
                for which in args.libraries.split(","):
                    if turn and which != "gigatoken":
                        continue    # a slow library takes one turn
                    run = subprocess.run(["taskset", "-c", "0", sys.executable, __file__, "library", which, name,
                                          args.dir, text], check=True, stdout=subprocess.PIPE,
                                         env={"RAYON_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"})
                    cold, warm = json.loads(run.stdout)
                    best[which] = min(best.get(which, 1e9), cold)
                    best[which + " warm"] = min(best.get(which + " warm", 1e9), warm)
                    ids[which] = numpy.fromfile(args.dir / f"{which}.ids", dtype=numpy.uint32)
            for which, some in ids.items():
                if not numpy.array_equal(some, ids["flatgpt"]):
                    n = min(len(some), len(ids["flatgpt"]))
                    first = int(numpy.argmax(some[:n] != ids["flatgpt"][:n]))
                    print(f"{name} {text}: {which} differs from token {first} on", some[first:first + 8],
                          ids["flatgpt"][first:first + 8])
                    bad += 1
            print(f"{name} {pathlib.Path(text).name} {megabytes:.1f} MB, {len(ids['flatgpt'])} ids, MB/s:",
                  ", ".join(f"{k} {megabytes / v:.0f}" for k, v in best.items()), flush=True)
    return bad


if len(sys.argv) > 1 and sys.argv[1] == "library":
    library(sys.argv[2], sys.argv[3], pathlib.Path(sys.argv[4]), sys.argv[5])
else:
    sys.exit(main())

#!/usr/bin/env python3
"""Parquet files by four writers, for test/golden/parquet.

    pip install pyarrow polars fastparquet duckdb pandas
    dev/golden_parquet.py test/golden/parquet            writes small files, and texts.json
    dev/golden_parquet.py --check ./flatgpt [SEED]       random large ones: flatgpt must read equal texts

texts.json: {"texts": [text or null], "files": {name: {"field": column, "rows": how often the texts come,
"required": nulls are "" there}}, "refused": {name: a part of flatgpt's message}}.
"""
import json
import os
import pathlib
import random
import struct
import subprocess
import sys
import tempfile

import duckdb
import fastparquet
import pandas
import polars
import pyarrow as pa
import pyarrow.parquet as pq


def texts_of(rng, n, longest=400):
    words = ["alpha", "beta", "gamma", "Straße", "漢字", "emoji 😀", "naïve", "\"quoted\"", "tab\tnewline\n", "x"]
    texts = []
    for i in range(n):
        kind = rng.randrange(9)
        if kind == 0: texts.append(None)
        elif kind == 1: texts.append("")
        elif kind == 2 and texts: texts.append(rng.choice(texts))
        elif kind == 3: texts.append("a common prefix of several rows " + str(i))
        else: texts.append(" ".join(rng.choice(words) for _ in range(rng.randrange(1, longest // 6))))
    return texts


def write_pyarrow(path, texts, required=False, kind=None, name="text", around=True, **options):
    values = [t or "" for t in texts] if required else texts
    n = len(values)
    field = pa.field("text", kind or pa.string(), nullable=not required)
    column = pa.array(values, type=kind or pa.string())
    columns, fields = [column], [field]
    if name != "text":
        inner, outer = name.split(".")[1], name.split(".")[0]
        structs = pa.StructArray.from_arrays([column, pa.array(range(n))], [inner, "number"])
        columns, fields = [structs], [pa.field(outer, structs.type)]
    if around:
        columns = [pa.array(range(n))] + columns + [pa.array([[str(i)] * (i % 3) for i in range(n)])]
        fields = [pa.field("id", pa.int64())] + fields + [pa.field("tags", pa.list_(pa.string()))]
    pq.write_table(pa.Table.from_arrays(columns, schema=pa.schema(fields)), path, **options)


def write_duckdb(path, texts, options):
    con = duckdb.connect()
    con.register("t", pa.table({"id": list(range(len(texts))), "text": pa.array(texts, type=pa.string())}))
    con.execute("SET threads = 1")
    con.execute(f"COPY (SELECT * FROM t ORDER BY id) TO '{path}' (FORMAT parquet, {options})")


def write_all(out, texts, group, page):
    """Returns {name: {"field", "rows", "required"}} of the files written."""
    files = {}

    def add(name, field="text", required=False):
        files[name + ".parquet"] = {"field": field, "required": required}
        return str(out / (name + ".parquet"))

    for codec in ["none", "snappy", "gzip", "zstd", "lz4"]:
        for version in ["1.0", "2.0"]:
            write_pyarrow(add(f"pyarrow_{codec}_v{version[0]}"), texts, compression=codec, data_page_version=version,
                          row_group_size=group, data_page_size=page)
    plain = dict(use_dictionary=False, row_group_size=group, data_page_size=page)
    for version in ["1.0", "2.0"]:
        for encoding in ["PLAIN", "DELTA_LENGTH_BYTE_ARRAY", "DELTA_BYTE_ARRAY"]:
            write_pyarrow(add(f"pyarrow_{encoding.lower()}_v{version[0]}"), texts, around=False,
                          column_encoding={"text": encoding}, data_page_version=version, **plain)
    write_pyarrow(add("pyarrow_required", required=True), texts, required=True, compression="zstd",
                  write_page_checksum=True, row_group_size=group)
    write_pyarrow(add("pyarrow_checksum"), texts, data_page_version="2.0", write_page_checksum=True)
    write_pyarrow(add("pyarrow_large"), texts, kind=pa.large_string(), around=False, dictionary_pagesize_limit=64,
                  data_page_size=page)
    write_pyarrow(add("pyarrow_struct", "doc.body"), texts, name="doc.body", compression="zstd", row_group_size=group)
    write_pyarrow(add("pyarrow_binary"), [t and t.encode() for t in texts], kind=pa.binary(), around=False)
    frame = polars.DataFrame({"id": list(range(len(texts))), "text": texts})
    for codec in ["zstd", "snappy", "lz4", "uncompressed", "gzip"]:
        frame.write_parquet(add(f"polars_{codec}"), compression=codec, row_group_size=group, data_page_size=page)
    panda = pandas.DataFrame({"id": list(range(len(texts))), "text": pandas.Series(texts, dtype=object)})
    for codec in ["SNAPPY", "GZIP", "ZSTD", "UNCOMPRESSED"]:
        fastparquet.write(add(f"fastparquet_{codec.lower()}"), panda, compression=codec, row_group_offsets=group)
    write_duckdb(add("duckdb_snappy"), texts, "COMPRESSION snappy")
    write_duckdb(add("duckdb_zstd"), texts, "COMPRESSION zstd, ROW_GROUP_SIZE 2048")
    write_duckdb(add("duckdb_v2"), texts, "PARQUET_VERSION V2, COMPRESSION zstd")
    write_duckdb(add("duckdb_v2_plain"), texts, "PARQUET_VERSION V2, COMPRESSION uncompressed")
    return files


def golden(out):
    out.mkdir(parents=True, exist_ok=True)
    texts = texts_of(random.Random(1), 60, 60) + ["pages " * 300, None, "the end"]
    files = write_all(out, texts, 25, 300)
    write_pyarrow(out / "refused_brotli.parquet", texts[:5], compression="brotli")
    refused = {"refused_brotli.parquet": "row group 0, column text, page at offset", }
    pq.write_table(pa.table({"text": [["a"], ["b", "c"]], "n": [1, 2]}), out / "refused_list.parquet")
    refused["refused_list.parquet"] = "column text: expected texts, found a list"
    pq.write_table(pa.table({"text": [1, 2]}), out / "refused_number.parquet")
    refused["refused_number.parquet"] = "column text: expected texts, found int64"
    pq.write_table(pa.table({"body": ["a"], "n": [1]}), out / "refused_name.parquet")
    refused["refused_name.parquet"] = "found: \"body\" (string), \"n\" (int64); --field names another"
    nulls = [None] * 5 + texts[:4] + [None] * 5
    for name, options in [("dictionary", {}), ("delta", dict(use_dictionary=False, column_encoding={"text": "DELTA_BYTE_ARRAY"}))]:
        write_pyarrow(out / f"nulls_{name}.parquet", nulls, around=False, row_group_size=5, **options)
    polars.DataFrame({"text": nulls}).write_parquet(out / "nulls_polars.parquet", row_group_size=5)
    for name in ["dictionary", "delta", "polars"]:
        files[f"nulls_{name}.parquet"] = {"field": "text", "required": False, "nulls": True}
    special = ["<|endoftext|>", "a<|endoftext|><|im_start|>user\nb<|im_end|>", "plain"]
    pq.write_table(pa.table({"text": special}), out / "special.parquet")
    (out / "texts.json").write_text(json.dumps({"texts": texts, "files": files, "refused": refused}, indent=0) + "\n")
    print(sum(f.stat().st_size for f in out.iterdir()), "bytes")


def read_shard(path, tokens):
    """The documents of a shard, decoded. tokens: id -> bytes."""
    data = path.read_bytes()
    ids = struct.iter_unpack("<H", data[1024:])
    documents, text = [], b""
    for (i,) in ids:
        if tokens[i] is None:
            documents.append(text)
            text = b""
        else: text += tokens[i]
    return documents[1:]


def byte_tokens(path):
    spec = json.loads(path.read_text())
    shown = [b for b in range(256) if 33 <= b <= 126 or 161 <= b <= 172 or 174 <= b]
    letters = {chr(b): b for b in shown}
    letters.update({chr(256 + k): b for k, b in enumerate(b for b in range(256) if b not in shown)})
    tokens = {i: bytes(letters[c] for c in t) for t, i in spec["model"]["vocab"].items() if t != "<|endoftext|>"}
    for t in spec["added_tokens"]: tokens[t["id"]] = None
    return tokens


def check(flatgpt, seed):
    rng = random.Random(seed)
    with tempfile.TemporaryDirectory(dir=os.environ.get("TMPDIR")) as name:
        d = pathlib.Path(name)
        (d / "a.txt").write_text("abab" * 100)
        subprocess.run([flatgpt, "train-tokenizer", "--vocab", "258", "--out", d / "tok.json", d / "a.txt"], check=True,
                       stderr=subprocess.DEVNULL)
        tokens, wrong = byte_tokens(d / "tok.json"), 0
        for n, group, page, longest in [(3000, 700, 2000, 400), (20000, 7000, 1 << 20, 100), (300, 100, 1 << 16, 30000)]:
            texts = texts_of(rng, n, longest)
            for file, how in write_all(d, texts, group, page).items():
                subprocess.run([flatgpt, "tokenize", "--tokenizer", d / "tok.json", "--overwrite", "--out", d / "o",
                                "--field", how["field"], d / file], check=True, stderr=subprocess.DEVNULL)
                wanted = [t.encode() for t in texts if t]
                same = read_shard(d / "o_train_000.bin", tokens) == wanted
                wrong += not same
                print(n, file, "equal" if same else "DIFFERENT")
        return wrong


if __name__ == "__main__":
    if sys.argv[1] == "--check": sys.exit(check(sys.argv[2], int(sys.argv[3]) if len(sys.argv) > 3 else 1) > 0)
    golden(pathlib.Path(sys.argv[1]))

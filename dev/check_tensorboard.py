#!/usr/bin/env python3
"""Does TensorBoard read what `flatgpt train --tensorboard` writes? Needs tensorboard; no test depends on it.

check_tensorboard.py RUN     compares RUN/tensorboard, read by TensorBoard's own EventAccumulator and EventFileLoader,
                             with RUN/metrics.jsonl: every number of every step once, every sample
check_tensorboard.py --golden    prints the records whose bytes test/test_events.cpp expects
Exit status 1 where something differs.
"""
import io
import json
import math
import os
import sys

from tensorboard.backend.event_processing import event_accumulator, event_file_loader
from tensorboard.compat.proto import event_pb2, summary_pb2, types_pb2
from tensorboard.summary.writer.record_writer import RecordWriter


def scalars_of(row):
    """The numbers of a row of metrics.jsonl, by tag."""
    out = {}

    def add(tag, value):
        if isinstance(value, bool) or value is None:
            return
        if isinstance(value, (int, float)):
            out[tag] = value
        elif isinstance(value, list):
            for i, item in enumerate(value):
                add(f"{tag}/{i}", item)
        elif isinstance(value, dict):
            for key, item in value.items():
                add(f"{tag}/{key}", item)

    for key, value in row.items():
        if key == "norms":
            for tensor, norms in value.items():
                for kind, norm in zip(("weight_norm", "gradient_norm", "update_norm"), norms):
                    add(f"{kind}/{tensor}", norm)
        elif key != "samples" and isinstance(value, list) and "val_loss" not in row and row["step"] % 100:
            continue    # lists, as expert_load, are written with validations and every 100th step
        elif key not in ("step", "time", "samples"):
            add(key, value)
    return out


def check(run):
    rows = [json.loads(line) for line in open(os.path.join(run, "metrics.jsonl"))]
    reader = event_accumulator.EventAccumulator(os.path.join(run, "tensorboard"), size_guidance={"scalars": 0, "tensors": 0})
    reader.Reload()
    wanted, texts = {}, {}
    for row in rows:
        for tag, value in scalars_of(row).items():
            wanted.setdefault(tag, []).append((row["step"], value))
        if "sample" in row:
            texts.setdefault("sample", []).append((row["step"], row["sample"]))
        for i, sample in enumerate(row.get("samples", [])):
            texts.setdefault(f"sample/{i + 1}", []).append((row["step"], sample["prompt"] + sample["text"]))
    bad = 0
    found = {tag: [(e.step, e.value) for e in reader.Scalars(tag)] for tag in reader.Tags()["scalars"]}
    for tag in sorted(wanted.keys() | found.keys()):
        a, b = wanted.get(tag, []), found.get(tag, [])
        same = len(a) == len(b) and all(s == t and math.isclose(x, y, rel_tol=1e-6, abs_tol=1e-37)
                                        for (s, x), (t, y) in zip(a, b))
        if not same:
            bad += 1
            print(f"{tag}: metrics.jsonl has {len(a)} values, TensorBoard reads {len(b)}, or they differ")
    read = {tag: [(e.step, e.tensor_proto.string_val[0].decode()) for e in reader.Tensors(tag)]
            for tag in reader.Tags()["tensors"]}
    for tag in sorted(texts.keys() | read.keys()):
        if texts.get(tag) != read.get(tag):
            bad += 1
            print(f"{tag}: the texts differ")
    files = sorted(f for f in os.listdir(os.path.join(run, "tensorboard")) if "tfevents" in f)
    steps = [e.step for f in files for e in event_file_loader.EventFileLoader(os.path.join(run, "tensorboard", f)).Load()
             if e.HasField("summary")]
    if steps != [row["step"] for row in rows]:
        bad += 1
        print("the steps of the event file are not those of metrics.jsonl")
    print(f"{run}: {len(rows)} steps, {len(found)} scalars, {len(read)} texts, {len(files)} file(s): "
          f"{'equal' if not bad else 'DIFFERENT'}")
    return bad


def golden():
    summary = summary_pb2.Summary()
    summary.value.add(tag="loss", simple_value=2.25)
    summary.value.add(tag="lr", simple_value=0.001)
    text = summary.value.add(tag="sample")
    text.metadata.plugin_data.plugin_name = "text"
    text.metadata.data_class = summary_pb2.DATA_CLASS_TENSOR
    text.tensor.dtype = types_pb2.DT_STRING
    text.tensor.tensor_shape.SetInParent()
    text.tensor.string_val.append("a\u00e4\n".encode())
    start = event_pb2.SessionLog(status=event_pb2.SessionLog.START)
    for event in (event_pb2.Event(wall_time=1.5, file_version="brain.Event:2"),
                  event_pb2.Event(wall_time=1.5, step=300, session_log=start),
                  event_pb2.Event(wall_time=1790000000.125, step=7, summary=summary)):
        to = io.BytesIO()
        RecordWriter(to).write(event.SerializeToString())
        print(to.getvalue().hex())


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    if sys.argv[1] == "--golden":
        golden()
    else:
        sys.exit(1 if check(sys.argv[1]) else 0)

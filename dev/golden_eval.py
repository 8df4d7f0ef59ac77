#!/usr/bin/env python3
"""Writes test/golden/eval: evaluation files made here, two tiny random models, and what lm-evaluation-harness finds.

Usage: golden_eval.py [OUT].  Needs lm-eval 0.4.13 with transformers and torch (CPU). No data is downloaded: lm-eval's own
task files run on local JSON lines. FILE.jsonl: items in Hugging Face's fields; FILE_pool.jsonl: examples for few-shot
prompts. gpt2/, llama/: models with a byte-level BPE of 512 tokens; llama's begins texts with BOS. MODEL.json: for each run
its metrics and, by item, each answer's log-likelihood and whether it is greedy, or the generated text.
"""
import json
import os
import random
import shutil
import sys
import tempfile
from pathlib import Path

os.environ["HF_HUB_OFFLINE"] = os.environ["HF_DATASETS_OFFLINE"] = "1"
import lm_eval  # noqa: E402
import torch  # noqa: E402
import transformers  # noqa: E402
from lm_eval.models.huggingface import HFLM  # noqa: E402
from lm_eval.tasks import TaskManager  # noqa: E402
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers  # noqa: E402

T, ITEMS = 320, 100
WORDS = """the a of to and in that it is was for on with as his her they river stone cook paints slowly walks under over
bright small window garden horse market letter seven 12 3.5 music science because then after before never often who what
garden's isn't café naïve Straße 日本 语言 Ωmega été 🎉 🐎 don't [step] 1,200 $40 -7 light water plant energy moon""".split()
LONG = 700    # words of an item longer than the context


def words(r, least, most):
    return " ".join(r.choice(WORDS) for _ in range(r.randint(least, most)))


def sentence(r, least=3, most=12):
    text = words(r, least, most)
    return text[0].upper() + text[1:] + r.choice([".", ".", "!", "?"])


def answer(r):
    return r.choice([words(r, 1, 2), words(r, 3, 7), words(r, 10, 25), words(r, 1, 3) + " ", " " + words(r, 1, 3)])


def hellaswag(r, i):
    mark = r.choice(["", "[header] How to " + words(r, 2, 4) + " [title] ", "[step] ", "a [unclosed "])
    return dict(ind=i, activity_label=words(r, 1, 3), ctx_a=mark + sentence(r, 4, 12),
                ctx_b="" if i % 7 == 0 else words(r, 1, 4), endings=[answer(r) + r.choice(["", " [substeps] x", "  y"])
                                                                     for _ in range(4)], label=str(r.randrange(4)))


def arc(r, i):
    labels = ["1", "2", "3", "4"] if i % 5 == 0 else list("ABCDE"[:r.choice([3, 4, 4, 5])])
    return dict(question=sentence(r, 5, 15) + r.choice(["", "  "]), answerKey=r.choice(labels),
                choices=dict(text=[answer(r) for _ in labels], label=labels))


def openbookqa(r, i):
    stem = "" if i % 20 == 3 else words(r, 3, 9) + r.choice(["", " ", "\n", "\u00a0"])
    return dict(question_stem=stem, answerKey=r.choice([" ", ""]) + r.choice("ABCD"),
                choices=dict(text=[answer(r) for _ in range(4)], label=list("ABCD")))


def piqa(r, i):
    return dict(goal=sentence(r), sol1=answer(r), sol2=answer(r), label=r.randrange(2))


def winogrande(r, i):
    rest = "" if i % 11 == 0 else " " + words(r, 2, 8) + "."
    return dict(sentence=sentence(r, 3, 8)[:-1] + " _" + rest, option1=r.choice(WORDS), option2=words(r, 1, 2),
                answer=str(r.randrange(1, 3)))


def boolq(r, i):
    passage = words(r, LONG, LONG) if i % 25 == 1 else sentence(r, 10, 40)
    if i % 10 == 4:
        passage += " <|endoftext|> " + sentence(r)
    return dict(passage=passage, question=words(r, 3, 8), label=r.randrange(2))


def mmlu(r, i):
    return dict(question=r.choice(["", " "]) + sentence(r, 5, 12) + r.choice(["", "\n"]), subject="abstract_algebra",
                choices=[answer(r) for _ in range(4)], answer=r.randrange(4))


def lambada(r, i):
    text = sentence(r, 5, 30)[:-1]
    if i % 3 == 0:
        return dict(text=text + likeliest(text))
    return dict(text=r.choice(WORDS) if i % 30 == 7 else text + r.choice(["", "  twice", " \n end"]))


def truthfulqa(r, i):
    def targets(right):
        n = r.randint(2, 5)
        return dict(choices=[answer(r) for _ in range(n)], labels=[1] * min(right, n - 1) + [0] * (n - min(right, n - 1)))
    return dict(question=sentence(r), mc1_targets=targets(1), mc2_targets=targets(r.randint(1, 3)))


def gsm8k(r, i):
    n = r.randrange(10000)
    return dict(question=sentence(r, 5, 12), answer=sentence(r, 3, 6) + f" <<{n}+1={n + 1}>>\n#### {n + 1:,}")


MAKERS = dict(hellaswag=hellaswag, arc=arc, openbookqa=openbookqa, piqa=piqa, winogrande=winogrande, boolq=boolq,
              mmlu=mmlu, lambada=lambada, truthfulqa=truthfulqa, gsm8k=gsm8k)
# Run: (our task, file, lm-eval's task file, examples, where examples come from, items)
RUNS = [
    ("hellaswag", "hellaswag", "hellaswag/hellaswag", 0, "pool", ITEMS),
    ("hellaswag", "hellaswag", "hellaswag/hellaswag", 3, "pool", 30),
    ("arc_easy", "arc", "arc/arc_easy", 0, "pool", ITEMS),
    ("arc_easy", "arc", "arc/arc_easy", 2, "same", ITEMS),
    ("arc_challenge", "arc", "arc/arc_challenge", 6, "pool", 20),
    ("openbookqa", "openbookqa", "openbookqa/openbookqa", 0, "pool", ITEMS),
    ("piqa", "piqa", "piqa/piqa", 0, "pool", ITEMS),
    ("winogrande", "winogrande", "winogrande/default", 0, "pool", ITEMS),
    ("winogrande", "winogrande", "winogrande/default", 2, "pool", 30),
    ("boolq", "boolq", "super_glue/boolq/default", 0, "pool", ITEMS),
    ("mmlu", "mmlu", "mmlu/default/mmlu_abstract_algebra", 0, "pool", ITEMS),
    ("mmlu", "mmlu", "mmlu/default/mmlu_abstract_algebra", 2, "pool", ITEMS),
    ("lambada", "lambada", "lambada/lambada_openai", 0, "pool", ITEMS),
    ("lambada", "lambada", "lambada/lambada_openai", 1, "same", 20),
    ("truthfulqa_mc1", "truthfulqa", "truthfulqa/truthfulqa_mc1", 0, "pool", 40),
    ("truthfulqa_mc2", "truthfulqa", "truthfulqa/truthfulqa_mc2", 0, "pool", 40),
    ("gsm8k", "gsm8k", "gsm8k/gsm8k", 1, "pool", 6),
    ("wikitext", "wikitext", "wikitext/wikitext", 0, "pool", 6),
]

LIKELIEST = {}    # the first model and its tokenizer


def likeliest(text, before=()):
    """The word that the first model finds likeliest, with a space before it; "" if it is no word."""
    with torch.no_grad():
        logits = LIKELIEST["model"](torch.tensor([list(before) + LIKELIEST["tokenizer"].encode(text)])).logits[0, -1]
    word = LIKELIEST["tokenizer"].decode([int(logits.argmax())])
    return word if word[0] == " " and len(word) > 1 and word[1:].isalnum() else ""


def write_lines(path, items):
    path.write_text("".join(json.dumps(x, ensure_ascii=False) + "\n" for x in items))


def write_items(out):
    for number, (name, make) in enumerate(MAKERS.items()):
        r = random.Random(number)
        n = 6 if name == "gsm8k" else 40 if name == "truthfulqa" else ITEMS
        write_lines(out / f"{name}.jsonl", [make(r, i) for i in range(n)])
        write_lines(out / f"{name}_pool.jsonl", [make(r, i) for i in range(12)])
    r = random.Random(99)
    pages = [" = Title = \n \n " + " \n ".join(sentence(r, 5, 60).replace(".", " .") for _ in range(n)) + " \n"
             for n in (1, 3, 12, 20, 30, 60)]
    write_lines(out / "wikitext.jsonl", [dict(page=p) for p in pages])


def bpe(bos):
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    r = random.Random(7)
    trainer = trainers.BpeTrainer(vocab_size=512, special_tokens=["<|endoftext|>"] + (["<s>"] if bos else []),
                                  initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False)
    tokenizer.train_from_iterator([sentence(r) + " Question: Answer:" for _ in range(3000)], trainer)
    if bos:
        tokenizer.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)])
    names = dict(eos_token="<|endoftext|>", bos_token="<s>") if bos else dict(eos_token="<|endoftext|>",
                                                                             bos_token="<|endoftext|>")
    return transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer, **names)


def write_model(out, name):
    torch.manual_seed(5)
    if name == "gpt2":
        config = transformers.GPT2Config(vocab_size=512, n_embd=32, n_layer=2, n_head=4, n_positions=T, bos_token_id=0,
                                         eos_token_id=0)
        model = transformers.GPT2LMHeadModel(config)
    else:
        config = transformers.LlamaConfig(vocab_size=512, hidden_size=32, num_hidden_layers=2, num_attention_heads=4,
                                          num_key_value_heads=2, intermediate_size=48, max_position_embeddings=T,
                                          bos_token_id=1, eos_token_id=0, tie_word_embeddings=True)
        model = transformers.LlamaForCausalLM(config)
    with torch.no_grad():
        for key, p in model.named_parameters():
            if p.dim() >= 2:
                p.copy_(torch.randn_like(p) * (0.6 if "emb" in key or "wte" in key else 1.2 / p.shape[-1] ** 0.5))
            p.copy_(p.bfloat16().float())
    model.bfloat16().save_pretrained(out / name)
    bpe(name == "llama").save_pretrained(out / name)
    (out / name / "generation_config.json").unlink(missing_ok=True)


def task_yaml(folder, out, run):
    task, file, original, shots, where, _ = run
    root = Path(lm_eval.__file__).parent / "tasks"
    source = root / (original + ".yaml")
    name = f"golden_{task}_{shots}"
    splits = dict(train=str(out / f"{file}_pool.jsonl"), validation=str(out / f"{file}.jsonl"))
    if file == "wikitext":
        splits["train"] = splits["validation"]
    lines = [f"include: {source}", f"task: {name}", "dataset_path: json", "dataset_name: null", "tag: null",
             "dataset_kwargs:", "  data_files:"] + [f"    {k}: {v}" for k, v in splits.items()]
    lines += ["training_split: train", "validation_split: validation", "test_split: validation",
              f"fewshot_split: {'validation' if where == 'same' else 'train'}"]
    (folder / f"{name}.yaml").write_text("\n".join(lines) + "\n")
    return name


def evaluate(out, name):
    model = HFLM(pretrained=str(out / name), device="cpu", batch_size=8, dtype="float32")
    found = []
    with tempfile.TemporaryDirectory() as folder:
        for run in RUNS:
            task = task_yaml(Path(folder), out, run)
            result = lm_eval.simple_evaluate(model, tasks=[task], num_fewshot=run[3], limit=run[5], log_samples=True,
                                             bootstrap_iters=0, task_manager=TaskManager(include_path=folder))
            metrics = {k.replace(",none", ""): v for k, v in result["results"][task].items()
                       if isinstance(v, float) and "stderr" not in k}
            samples = sorted(result["samples"][task], key=lambda s: s["doc_id"])
            row = dict(task=run[0], file=run[1], shots=run[3], where=run[4], limit=run[5], metrics=metrics)
            if run[0] == "gsm8k":
                row["texts"] = [s["resps"][0][0] for s in samples if s["filter"] == "strict-match"]
            elif run[0] == "wikitext":
                row["logprobs"] = [[s["resps"][0][0]] for s in samples]
            else:
                row["logprobs"] = [[round(float(x[0][0]), 5) for x in s["resps"]] for s in samples]
                row["greedy"] = [[int(str(x[0][1]) == "True") for x in s["resps"]] for s in samples]
            found.append(row)
            print(name, run[0], run[3], metrics)
    text = ",\n".join(json.dumps(row, ensure_ascii=False, separators=(",", ":")) for row in found)
    (out / f"{name}.json").write_text("[" + text + "]\n")


# ---- CORE: a bundle made here, and its figures by the DCLM paper's formula ----------------------

CORE = [("choice", "multiple_choice", 2, "\nAnswer: ", 25.0), ("schema", "schema", 1, " ", 50.0),
        ("language", "language_modeling", 0, " ", 0.0)]


def write_bundle(out):
    r = random.Random(5)
    bundle = out / "bundle"
    (bundle / "eval_data/some").mkdir(parents=True)
    yaml, csv = ["icl_tasks:"], ["Eval Task,Task Category,Random baseline,Description"]
    for label, kind, shots, delimiter, baseline in CORE:
        items = []
        for i in range(24):
            if kind == "multiple_choice":
                items.append(dict(query=sentence(r), choices=[words(r, 1, 3) + f" {k}" for k in range(4)], gold=r.randrange(4)))
            elif kind == "schema":
                items.append(dict(context_options=[words(r, 2, 5) + " a", words(r, 2, 5) + " b"], gold=r.randrange(2),
                                  continuation=words(r, 2, 4)))
            else:
                context = sentence(r)
                word = likeliest(context, [0])[1:] if i % 2 else ""
                items.append(dict(context=context + " ", continuation=word or r.choice(["the", "a", "moon", "e"])))
        write_lines(bundle / f"eval_data/some/{label}.jsonl", items)
        yaml += ["-", f"  label: {label}", f"  dataset_uri: some/{label}.jsonl # a comment", f"  num_fewshot: [{shots}]",
                 f"  icl_task_type: {kind}"]
        if delimiter != " ":
            yaml.append("  continuation_delimiter: " + json.dumps(delimiter))
        csv.append(f'{label},"made, here",{baseline},"a ""toy"""')
    (bundle / "core.yaml").write_text("seed: 1\n\n" + "\n".join(yaml) + "\n")
    (bundle / "eval_meta_data.csv").write_text("\n".join(csv) + "\n")


def core(out, name):
    """An item's prompts are whole texts behind BOS. Scored: what the choices do not share at their beginning, the end
    that all contexts share, or the continuation, which must be the likeliest token each time."""
    model = transformers.AutoModelForCausalLM.from_pretrained(out / name, dtype=torch.float32)
    tokenizer = transformers.AutoTokenizer.from_pretrained(out / name)
    results = {}
    for label, kind, shots, delimiter, baseline in CORE:
        items = [json.loads(line) for line in open(out / f"bundle/eval_data/some/{label}.jsonl")]
        random.Random(1337).shuffle(items)

        def texts(item):
            if kind == "multiple_choice":
                return [item["query"] + delimiter + c for c in item["choices"]]
            if kind == "schema":
                return [c + delimiter + item["continuation"] for c in item["context_options"]]
            return [item["context"].strip() + delimiter + item["continuation"]]

        def encoded(text):
            return [tokenizer.bos_token_id] + tokenizer.encode(text, add_special_tokens=False)

        right = []
        for i, item in enumerate(items):
            others = items[:i] + items[i + 1:]
            drawn = [others[k] for k in random.Random(1234 + i).sample(range(len(others)), shots)]
            before = "".join(texts(x)[x.get("gold", 0)] + "\n\n" for x in drawn)
            tokens = [encoded(before + t) for t in texts(item)]
            least = min(map(len, tokens))
            if kind == "multiple_choice":
                n = next((k for k in range(least) if len({t[k] for t in tokens}) > 1), least)
                starts = [n] * len(tokens)
            elif kind == "schema":
                n = next((k for k in range(least) if len({t[-1 - k] for t in tokens}) > 1), least)
                starts = [len(t) - n for t in tokens]
            else:
                starts = [len(encoded((before + item["context"].strip() + delimiter).strip()))]
            means, greedy = [], True
            for t, start in zip(tokens, starts):
                t, start = t[-T:], max(1, start - max(0, len(t) - T))
                with torch.no_grad():
                    logprobs = model(torch.tensor([t[:-1]])).logits[0].double().log_softmax(-1)
                rows = range(start - 1, len(t) - 1)
                means.append(sum(float(logprobs[k, t[k + 1]]) for k in rows) / len(rows))
                greedy = greedy and all(int(logprobs[k].argmax()) == t[k + 1] for k in rows)
            right.append(greedy if kind == "language_modeling" else means.index(max(means)) == item["gold"])
        acc = sum(right) / len(right)
        results[label] = dict(acc=acc, centred=(acc - baseline / 100) / (1 - baseline / 100))
    results["core"] = sum(x["centred"] for x in results.values()) / len(results)
    print(name, results)
    return results


def main():
    out = Path(sys.argv[1] if len(sys.argv) > 1 else "test/golden/eval").resolve()
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir(parents=True)
    for name in ("gpt2", "llama"):
        write_model(out, name)
    LIKELIEST["model"] = transformers.AutoModelForCausalLM.from_pretrained(out / "gpt2", dtype=torch.float32)
    LIKELIEST["tokenizer"] = transformers.AutoTokenizer.from_pretrained(out / "gpt2")
    write_items(out)
    write_bundle(out)
    for name in ("gpt2", "llama"):
        evaluate(out, name)
    (out / "core.json").write_text(json.dumps({name: core(out, name) for name in ("gpt2", "llama")}) + "\n")


if __name__ == "__main__":
    main()

#!/usr/bin/env python3
"""Writes test/golden/chat: what transformers makes of conversations, for test/test_chat_encoder.cpp.

golden_chat.py        needs transformers, jinja2 and trl (for its templates with {% generation %} marks)

Each case has a template, a conversation, its token ids, and the runs of tokens that are to be learnt, from one of

- marks: apply_chat_template(return_assistant_tokens_mask=True), with the marks that TRL has put into real templates;
- prefixes: the text of the conversation up to an answer, less the text before it with the generation prompt, for the
  templates of test/golden/templates, which have no marks;
- content: where a prefix is not one (a template that writes old answers otherwise): from an answer's text to the first
  end token behind it.

parts.json has what templates write of contents that are lists of parts: the text of the lists where a template has read
them, else that of the joined texts.

With the templates of the last two kinds, a copy with marks around those answers must give the same (`patched`).
"""
import json
import pathlib
import re

import trl
from tokenizers import AddedToken
from transformers import PreTrainedTokenizerFast
from transformers.utils import chat_template_utils

TEST = pathlib.Path(__file__).resolve().parent.parent / "test" / "golden"
OUT = TEST / "chat"
TRL = pathlib.Path(trl.__file__).parent / "chat_templates"
MARKED = "qwen3 qwen2_5 gemma llama3 phi3 deepseek_r1_distill cohere glm4moe gptoss lfm2 deepseekv3 qwen3_instruct_2507".split()
PLAIN = """SmolLM2-135M-Instruct Qwen-Qwen2.5-7B-Instruct Qwen-Qwen3-0.6B google-gemma-2-2b-it microsoft-Phi-3.5-mini-instruct
meta-llama-Llama-3.1-8B-Instruct meta-llama-Llama-3.2-3B-Instruct mistralai-Mistral-Nemo-Instruct-2407
HuggingFaceTB-SmolLM3-3B Qwen-QwQ-32B deepseek-ai-DeepSeek-R1-Distill-Qwen-32B ibm-granite-granite-3.3-2B-Instruct
NousResearch-Hermes-3-Llama-3.1-8B-tool_use LFM2-8B-A1B GLM-4.6 Bielik-11B-v3.0-Instruct tencent-Hy3 Kimi-K2-Instruct
deepseek-ai-DeepSeek-V3.1""".split()
ENDS = ["<|im_end|>", "<|eot_id|>", "<end_of_turn>", "<|end|>", "</s>", "<|endoftext|>", "<|end_of_text|>",
        "<｜end▁of▁sentence｜>"]
SPECIAL = ENDS + ["<s>", "<|im_start|>", "<start_of_turn>", "<|user|>", "<|assistant|>", "<|system|>", "<|start_header_id|>",
                  "<|end_header_id|>", "[INST]", "[/INST]", "<｜User｜>", "<｜Assistant｜>", "<|start_of_role|>",
                  "<|end_of_role|>", "<|start|>", "<|message|>", "<|channel|>", "<|im_middle|>", "<|im_user|>",
                  "<|im_assistant|>", "<|im_system|>"]
DATE = chat_template_utils.datetime.fromtimestamp(1721995200)  # as in infer/chat/chat_encoder.cpp


class Clock(chat_template_utils.datetime):
    @classmethod
    def now(cls, tz=None):
        return DATE


def say(role, content, **more):
    return {"role": role, "content": content, **more}


def conversations():
    system, hello = say("system", "You are brief."), say("user", "Hello, how are you?")
    fine, sum_, four = say("assistant", "I'm fine, thanks."), say("user", "What is 2 + 2?"), say("assistant", "It is 4.")
    why, because = say("user", "Why?\n"), say("assistant", "Because 1 + 1 + 1 + 1 = 4,\n\nno more; \u00fcn\u00efcode \u65e5\u672c e\u0301.")
    call = {"id": "abcdefghi", "type": "function", "function": {"name": "add", "arguments": {"a": 2, "b": 2}}}
    return {
        "one answer": [hello, fine],
        "three answers": [hello, fine, sum_, four, why, because],
        "system": [system, hello, fine, sum_, four],
        "spaces": [hello, say("assistant", "  indented\n\n")],
        "reasoning": [hello, say("assistant", "It is 4.", reasoning_content="Two and two.")],
        "call": [sum_, say("assistant", "", tool_calls=[call]), say("tool", "4", name="add", tool_call_id="abcdefghi"), four],
    }


def tokenizer_of(name):
    tokenizer = PreTrainedTokenizerFast(tokenizer_file=str(TEST / "tokenizers" / (name + ".json")), bos_token="<s>",
                                        eos_token="</s>")
    tokenizer.add_tokens([AddedToken(text, special=True, normalized=False) for text in SPECIAL])
    return tokenizer


def rendered(template, messages, prompts):
    try:
        text = chat_template_utils._compile_jinja_template(template).render(
            messages=messages, tools=None, documents=None, add_generation_prompt=prompts, bos_token="<s>", eos_token="</s>")
    except Exception:
        return None
    return text


def behind_end(text, at):
    """The offset behind the first end token from `at` on, and white space behind it."""
    found = min(((text.find(end, at), -len(end)) for end in ENDS if end in text[at:]), default=None)
    return found and re.compile(r"[ \n]*").match(text, found[0] - found[1]).end()


def ranges_of(template, messages):
    """How the answers were found, and their ranges; None where neither way does."""
    whole, how, ranges = rendered(template, messages, False), "prefixes", []
    for k, message in enumerate(messages):
        if message["role"] != "assistant":
            continue
        before, after = rendered(template, messages[:k], True), rendered(template, messages[:k + 1], False)
        if whole is None or before is None or after is None:
            return None
        begin = len(before) if whole.startswith(before) else None
        end = len(after) if whole.startswith(after) else None
        if begin is None or end is None:
            how = "content"
            past, answer = rendered(template, messages[:k], False), message["content"].strip()
            if begin is None and (not answer or whole.count(answer) != 1 or len(before) - len(past) > 0):
                return None  # a generation prompt that the conversation has not: the test has a case by hand
            begin = whole.index(answer) if begin is None else begin
            end = behind_end(whole, begin) if end is None else end
        if end is None or begin >= end:
            return None
        ranges.append((begin, end))
    return how, ranges


def runs(mask):
    edges = [i for i in range(len(mask) + 1) if (mask[i - 1] if i else 0) != (mask[i] if i < len(mask) else 0)]
    return edges


def overlapped(tokenizer, text, ranges):
    encoded = tokenizer(text, add_special_tokens=False, return_offsets_mapping=True)
    mask = [int(any(e > a and s < b for a, b in ranges)) for s, e in encoded["offset_mapping"]]
    return encoded["input_ids"], mask


def patched_mask(tokenizer, text, ranges):
    """The mask by marks, with a template that writes this text, and generation blocks around the ranges."""
    pieces, at = [], 0
    for begin, end in ranges:
        pieces += [f"{{{{ {json.dumps(text[at:begin])} }}}}", "{% generation %}", f"{{{{ {json.dumps(text[begin:end])} }}}}",
                   "{% endgeneration %}"]
        at = end
    pieces.append(f"{{{{ {json.dumps(text[at:])} }}}}")
    out = tokenizer.apply_chat_template([say("user", "x")], chat_template="".join(pieces), return_dict=True,
                                        return_assistant_tokens_mask=True, tokenizer_kwargs={"split_special_tokens": False})
    return list(out["input_ids"]), list(out["assistant_masks"])


def parts_case(template):
    """The messages and text of contents in parts, and whether the template has read the lists."""
    def say_parts(role, *texts):
        return say(role, [{"type": "text", "text": text} for text in texts])
    lists = [say_parts("user", "Look: ", "it is\n", " red."), say_parts("assistant", " A rose, ", "yes."),
             say_parts("user", "Why?"), say("assistant", "No idea.")]
    joined = [say(m["role"], m["content"] if isinstance(m["content"], str) else "".join(p["text"] for p in m["content"]))
              for m in lists]
    text, whole = rendered(template, lists, False), rendered(template, joined, False)
    reads = text is not None and "'type'" not in text and '"type"' not in text and "rose" in text
    return lists, text if reads else whole, reads and text != whole


def main():
    OUT.mkdir(exist_ok=True)
    chat_template_utils.datetime = Clock
    cases, skipped = [], 0
    for tokenizer_name in ("qwen2", "phi3"):
        tokenizer = tokenizer_of(tokenizer_name)
        tokenizer.backend_tokenizer.save(str(OUT / (tokenizer_name + ".json")), pretty=False)
        for name in MARKED:
            template = (TRL / (name + "_training.jinja")).read_text()
            (OUT / (name + ".jinja")).write_text(template)
            for conversation, messages in conversations().items():
                try:
                    out = tokenizer.apply_chat_template(messages, chat_template=template, return_dict=True,
                                                        return_assistant_tokens_mask=True)
                except Exception:
                    skipped += 1
                    continue
                cases.append([tokenizer_name, "chat/" + name, conversation, "marks", list(out["input_ids"]),
                              runs(list(out["assistant_masks"]))])
        for name in PLAIN:
            template = (TEST / "templates" / (name + ".jinja")).read_text()
            for conversation, messages in conversations().items():
                found = ranges_of(template, messages)
                if not found:
                    skipped += 1
                    continue
                text = rendered(template, messages, False)
                ids, mask = overlapped(tokenizer, text, found[1])
                assert (ids, mask) == patched_mask(tokenizer, text, found[1]), (name, conversation)
                cases.append([tokenizer_name, "templates/" + name, conversation, found[0], ids, runs(mask)])
    rows = ",\n".join(json.dumps(case, ensure_ascii=False) for case in cases)
    (OUT / "masks.json").write_text("[\n" + rows + "\n]\n")
    (OUT / "conversations.json").write_text(json.dumps(conversations(), ensure_ascii=False, indent=1) + "\n")
    texts = []
    for path in sorted((TEST / "templates").glob("*.jinja")):
        messages, text, reads = parts_case(path.read_text())
        if text is not None:
            texts.append([path.stem, text, reads])
    rows = ",\n".join(json.dumps(row, ensure_ascii=False) for row in [messages] + texts)
    (OUT / "parts.json").write_text("[\n" + rows + "\n]\n")
    kinds = {kind: sum(case[3] == kind for case in cases) for kind in ("marks", "prefixes", "content")}
    print(f"{len(cases)} cases ({kinds}), {skipped} that a template refuses or writes otherwise")


if __name__ == "__main__":
    main()

#!/usr/bin/env python3
"""Writes what test/test_template.cpp compares with: real chat templates and small ones that show one rule each, with
what jinja2 makes of them in transformers' environment.

golden_templates.py FOLDER        renews test/golden/templates; FOLDER: llama.cpp's models/templates
golden_templates.py FOLDER OUT    all templates of FOLDER, into OUT; then compare by
                                  FLATGPT_TEMPLATES=OUT build/test_all -tc='template: *'

Needs transformers and jinja2. The small templates are read from snippets.json, where new ones are added by hand.
"""
import copy
import datetime
import json
import os
import pathlib
import sys
import time
import zlib

from transformers.utils import chat_template_utils

NOW = 1700000000  # 2023-11-14 22:13:20 UTC
GOLDEN = pathlib.Path(__file__).resolve().parent.parent / "test" / "golden" / "templates"
CHOSEN = """SmolLM2-135M-Instruct microsoft-Phi-3.5-mini-instruct google-gemma-2-2b-it Qwen-Qwen2.5-7B-Instruct Qwen-Qwen3-0.6B
Qwen-QwQ-32B meta-llama-Llama-3.1-8B-Instruct meta-llama-Llama-3.2-3B-Instruct mistralai-Mistral-Nemo-Instruct-2407
deepseek-ai-DeepSeek-R1-Distill-Qwen-32B deepseek-ai-DeepSeek-V3.1 HuggingFaceTB-SmolLM3-3B
ibm-granite-granite-3.3-2B-Instruct NousResearch-Hermes-3-Llama-3.1-8B-tool_use meetkai-functionary-medium-v3.1 LFM2-8B-A1B
GLM-4.6 Kimi-K2-Instruct llama-cpp-rwkv-world Qwen3-Coder Qwen3.5-4B Bielik-11B-v3.0-Instruct
fireworks-ai-llama-3-firefunction-v2 tencent-Hy3 openai-gpt-oss-120b google-gemma-4-31B-it Reka-Edge Kimi-K3""".split()
IN_FULL = ("turns", "a call and its answer")  # the others as zlib.crc32


class Clock(datetime.datetime):
    @classmethod
    def now(cls, tz=None):
        return cls.fromtimestamp(NOW, tz)


def rendered(template, context):
    """What jinja2 makes of it, None where it refuses."""
    chat_template_utils.datetime = Clock
    try:
        return chat_template_utils._compile_jinja_template(template).render(**copy.deepcopy(context))
    except Exception:
        return None


WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Tells the weather <now> & \"here\"; it's exact.",
        "parameters": {
            "type": "object",
            "properties": {
                "city": {"type": "string", "description": "The city, e.g. Zürich"},
                "unit": {"type": "string", "enum": ["celsius", "fahrenheit"], "default": "celsius"},
                "days": {"type": "array", "items": {"type": "integer"}},
                "where": {"type": "object", "properties": {"lat": {"type": "number"}}, "required": ["lat"]},
                "either": {"anyOf": [{"type": "string"}, {"type": "null"}]},
                "both": {"type": ["string", "null"], "minLength": 2, "maxLength": 1.5},
            },
            "required": ["city"],
        },
        "return": {"type": "string", "description": "the weather"},
    },
}
PLAIN_TOOL = {
    "type": "function",
    "function": {"name": "now", "description": "The time", "parameters": {"type": "object", "properties": {}}},
}


def call(name, arguments, call_id="abcdefghi"):
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}


def contexts():
    """Conversations by name, each a template's whole context."""
    system = {"role": "system", "content": "You are a helpful assistant."}
    hello = {"role": "user", "content": "Hello, how are you?"}
    fine = {"role": "assistant", "content": "I'm fine, thanks."}
    more = {"role": "user", "content": "  What is 2 + 2?\n"}
    weird = {"role": "user", "content": "Ünïcode 日本語 😀 <b>&amp;\"'\\ \t {{ x }} {% raw %} </s>\u00a0"}
    parts = {"role": "user", "content": [{"type": "text", "text": "part one"}, {"type": "text", "text": "part two"}]}
    image = {"role": "user", "content": [{"type": "image"}, {"type": "text", "text": "What is this?"}]}
    thought = {"role": "assistant", "content": "<think>\nLet me see.\n</think>\n\nIt is 4."}
    reason = {"role": "assistant", "content": "It is 4.", "reasoning_content": "Let me see.", "thinking": "Let me see."}
    ask = {"role": "user", "content": "Weather in Zürich?"}
    calls = {"role": "assistant", "content": "", "tool_calls": [
        call("get_weather", {"city": "Zürich", "days": [1, 2], "where": {"lat": 1.0}, "ok": True, "none": None, "n": 5})]}
    null = {**calls, "content": None}
    text_calls = {**calls, "tool_calls": [call("get_weather", "{\"city\": \"Zürich\"}")]}
    two = {**calls, "content": "Both.", "tool_calls": [
        call("get_weather", {"city": "Bern"}, "abcdefgh1"), call("now", {}, "abcdefgh2")]}
    answer = {"role": "tool", "name": "get_weather", "content": "{\"sun\": true}", "tool_call_id": "abcdefghi"}
    one = {**answer, "content": "rain", "tool_call_id": "abcdefgh1"}
    other = {**answer, "content": "12:00", "name": "now", "tool_call_id": "abcdefgh2"}
    nested = {**answer, "content": {"sun": True, "list": [1, 2.5, None]}}
    developer = {"role": "developer", "content": "Be terse."}
    tools = [WEATHER, PLAIN_TOOL]
    conversations = {
        "hello": ([hello], {}),
        "system": ([system, hello], {}),
        "turns": ([system, hello, fine, more], {}),
        "ends with the assistant": ([hello, fine], {"add_generation_prompt": False}),
        "no system": ([hello, fine, more, fine, weird], {}),
        "unicode": ([system, weird], {}),
        "parts": ([system, parts, fine, parts], {}),
        "image": ([image], {}),
        "thoughts": ([hello, thought, more, thought], {"add_generation_prompt": False}),
        "reasoning": ([system, hello, reason, more, reason, hello], {}),
        "no thinking": ([system, hello], {"enable_thinking": False, "thinking": False}),
        "thinking": ([system, hello, fine, more], {"enable_thinking": True, "thinking": True, "reasoning_effort": "high"}),
        "tools": ([system, ask], {"tools": tools}),
        "tools, no system": ([ask], {"tools": [WEATHER]}),
        "a call": ([ask, calls], {"tools": tools, "add_generation_prompt": False}),
        "a call and its answer": ([system, ask, calls, answer], {"tools": tools}),
        "a call with null": ([system, ask, null, answer, fine, more], {"tools": tools}),
        "arguments as text": ([system, ask, text_calls, answer, fine], {"tools": tools, "add_generation_prompt": False}),
        "two calls": ([system, ask, two, one, other], {"tools": tools}),
        "an answer as an object": ([ask, calls, nested], {"tools": tools}),
        "calls without tools": ([ask, calls, answer, fine], {}),
        "developer": ([developer, hello], {}),
        "documents": ([hello], {"documents": [{"title": "T", "text": "Text <1>"}, {"title": "U", "text": "é"}]}),
        "two users": ([hello, more], {}),
        "begins with the assistant": ([fine, hello], {}),
        "a role that nobody knows": ([{"role": "narrator", "content": "Once"}, hello], {}),
        "system in the middle": ([hello, system, more], {}),
        "no content": ([{"role": "user"}], {}),
        "null content": ([system, hello, {"role": "assistant", "content": None}, more], {}),
        "empty content": ([{"role": "system", "content": ""}, {"role": "user", "content": ""}], {}),
        "nothing": ([], {}),
        "no tokens": ([system, hello], {"bos_token": "", "eos_token": None}),
        "tools nowhere": ([system, hello, fine, more], {"tools": ..., "documents": ...}),
        "a tool without types": ([system, ask], {"tools": [PLAIN_TOOL], "functions": "[]", "datetime": "now"}),
        "date": ([system, hello], {"date_string": "26 Jul 2024", "tools": [PLAIN_TOOL], "tools_in_user_message": False}),
    }
    base = {"tools": None, "documents": None, "add_generation_prompt": True, "bos_token": "<s>", "eos_token": "</s>",
            "pad_token": "<pad>"}
    every = {name: {"messages": messages, **base, **extra} for name, (messages, extra) in conversations.items()}
    return {name: {k: v for k, v in context.items() if v is not ...} for name, context in every.items()}


def save(path, rows):
    """A JSON list or object, an entry a line."""
    text = [json.dumps(row, ensure_ascii=False) for row in (rows if isinstance(rows, list) else rows.values())]
    if isinstance(rows, dict):
        text = [json.dumps(key, ensure_ascii=False) + ": " + row for key, row in zip(rows, text)]
    first, last = "[]" if isinstance(rows, list) else "{}"
    path.write_text(first + "\n" + ",\n".join(text) + "\n" + last + "\n")


def main():
    folder, out = pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2]) if len(sys.argv) > 2 else GOLDEN
    os.environ["TZ"] = "UTC"
    time.tzset()
    out.mkdir(parents=True, exist_ok=True)
    expected, conversations, refused = {}, contexts(), 0
    for path in sorted(folder.glob("*.jinja")):
        if out == GOLDEN and path.stem not in CHOSEN:
            continue
        template = path.read_bytes()
        (out / path.name).write_bytes(template)
        texts = {name: rendered(template.decode(), context) for name, context in conversations.items()}
        refused += sum(text is None for text in texts.values())
        expected[path.name] = {name: text if text is None or name in IN_FULL else zlib.crc32(text.encode())
                               for name, text in texts.items()}
    save(out / "conversations.json", conversations)
    save(out / "expected.json", expected)
    snippets = json.loads((GOLDEN / "snippets.json").read_text())
    context = conversations["turns"] | {"d": {"b": 2, "a": 1}}
    save(out / "snippets.json", [[template, rendered(template, context)] for template, _ in snippets])
    print(f"{len(expected)} templates, {len(conversations)} conversations: {refused} renderings refused, "
          f"{len(snippets)} small templates")


if __name__ == "__main__":
    main()

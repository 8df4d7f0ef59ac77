#!/usr/bin/env python3
"""Every chat template of a folder with many conversations, by flatgpt's interpreter and by jinja2 as transformers uses it.

check_templates.py DRIVER FOLDER [-v]
DRIVER: a program that reads lines {"template": ..., "context": {...}} and answers {"ok": ..., "text": ...}, such as
`build/test_all templates`. Prints what differs; both refusing counts as equal. FOLDER: *.jinja, for instance llama.cpp's
models/templates. Needs transformers and jinja2.
"""
import json
import os
import pathlib
import subprocess
import sys

os.environ["TZ"] = "UTC"
sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from golden_templates import NOW, contexts, rendered  # noqa: E402


def main():
    driver, folder = sys.argv[1], pathlib.Path(sys.argv[2])
    process = subprocess.Popen(driver.split(), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    total = differ = refused = 0
    for path in sorted(folder.glob("*.jinja")):
        template = path.read_text()
        for name, context in contexts().items():
            total += 1
            expected = rendered(template, context)
            process.stdin.write(json.dumps({"template": template, "context": context, "now": NOW}) + "\n")
            process.stdin.flush()
            found = json.loads(process.stdout.readline())
            ours = found["text"] if found["ok"] else None
            refused += expected is None and ours is None
            if ours == expected:
                continue
            differ += 1
            print(f"{path.name}, {name}: differs")
            if "-v" in sys.argv:
                print(f"  jinja2:  {expected!r}\n  flatgpt: {found['text']!r}")
    print(f"{total} renderings, {refused} refused by both, {differ} differ")
    return differ > 0


if __name__ == "__main__":
    sys.exit(main())

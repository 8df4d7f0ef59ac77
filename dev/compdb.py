#!/usr/bin/env python3
"""compile_commands.json (clang's format) from the commands that `make -nB V=1` prints.   make compile_commands.json"""
import json
import os
import re
import sys

commands = {}
for line in sys.stdin:
    compiled = re.search(r"\s-c (\S+\.(?:cpp|cu)) -o (\S+)", line)
    # Of the instruction sets for which a loop is compiled, the first stands for all.
    if compiled:
        commands.setdefault(compiled[1], {"directory": os.getcwd(), "command": line.strip(), "file": compiled[1]})
json.dump(list(commands.values()), sys.stdout, indent=1)

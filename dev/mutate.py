#!/usr/bin/env python3
"""Breaks a source as a row of dev/mutants.txt says. A row names a function and a counted site, not the text of a line.

Usage: dev/mutate.py check          every row still changes its file: rows that do not are named, and it exits 1
       dev/mutate.py apply ROW      prints the broken file
       dev/mutate.py names FILE     prints the functions that rows for this file may name

A row is FILE ;; FUNCTION ;; CHANGE ;; TEST CASES that must fail[ ;; CPU flag].

FUNCTION  `name` or `Class::name`; `name#2` is the second one of this name in the file. Macros, variables at namespace
          scope and classes (without their methods) are named likewise; `-` is the rest of the file.
CHANGE    drop SITE | replace SITE by TEXT | swap arg NAME N I J. In TEXT, @ stands for the replaced text.
SITE      KIND TOKEN N: code around the function's N-th TOKEN, from 1; comments do not count. Kinds:
  token      The token alone: an identifier, a number, a string, an operator.
  expr       The expression around it: an operator with its operands; a name with `a.` before and (...) behind.
  name       The same expression, without the brackets behind the name.
  left       The operator's left operand, which is dropped with the operator. Of `?`: the value if true.
  right      The right operand. Of `?`: the value if false. Of `return`: its expression.
  arg        TOKEN N I: the I-th item in the brackets behind the name, or in TOKEN itself, if it is a bracket.
  cond       The condition of an if, while, for or ?, by its keyword or a token within. A drop takes the head, if (...).
  statement  The innermost statement that contains it. Of `else`: the else and its branch.

FILE ;; sed ;; EXPRESSION ;; TEST CASES[ ;; CPU flag] is for a change that no row of this kind can express.
"""
import os
import re
import subprocess
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
TOKENS = re.compile(r"""
    (?P<directive> (?<![^\n])[ ]*\#(?:[ ]*define\b|(?:\\\n|(?!//)[^\n])*))
  | (?P<space> [^\S\n]+ | \n+ | //(?:\\\n|[^\n])* | /\*.*?\*/ | \\\n)
  | (?P<string> (?:u8|[uUL])?(?:R"(?P<tag>[^(\s"]*)\(.*?\)(?P=tag)" | "(?:\\.|[^"\\\n])*" | '(?:\\.|[^'\\\n])+'))
  | (?P<number> \.?\d(?:[eEpP][+-]|'?[\w.])*)
  | (?P<name> [A-Za-z_]\w*)
  | (?P<mark> <<<|>>>|<<=|>>=|<=>|\.\.\.|->\*|::|->|\+\+|--|<<|>>|[-+*/%&|^=!<>]=|&&|\|\||\#\#|.)
""", re.X | re.S)
CHANGE = re.compile(r"""(drop|replace|swap)[ ](\w+)[ ]("(?:\\.|[^"])*"|'(?:\\.|[^'])+'|\S+)    # verb, kind, token
                        [ ](\d+)((?:[ ]\d+)*)(?:[ ]by[ ](.+))?""", re.X)                          # count, items, text
CLOSE = {"(": ")", "[": "]", "{": "}", "<<<": ">>>"}
OPEN = {closing: opening for opening, closing in CLOSE.items()}
ANGLES = {">", ">>", ">>>"}
CLASS = {"class", "struct", "union", "enum"}
ATTRIBUTES = {"alignas", "decltype", "explicit", "noexcept", "requires", "__launch_bounds__", "__attribute__"}
HEADS = {"if", "while", "for", "switch"}
STARTS = {"return", "case", "throw", "else", "do"}    # an expression follows
NO_OPERAND = STARTS | {"new", "delete", "operator", "constexpr"}
ASSIGN = {"=", "+=", "-=", "*=", "/=", "%=", "&=", "|=", "^=", "<<=", ">>="}
LEVELS = [{","}, ASSIGN, {"?"}, {"||"}, {"&&"}, {"|"}, {"^"}, {"&"}, {"==", "!="}, {"<", ">", "<=", ">="}, {"<=>"},
          {"<<", ">>"}, {"+", "-"}, {"*", "/", "%"}]
LEVEL = {word: level for level, words in enumerate(LEVELS) for word in words}
COMMA, ASSIGNMENT, CHOICE = 0, 1, 2
UNARY = {"+", "-", "*", "&", "&&", "!", "~", "++", "--"}    # && declares a reference


class Gone(Exception):
    """The site of a row does not exist, or its change changes nothing."""


def tokens(text):
    """(word, first character, end) of each token."""
    return [(m.group().strip(), m.start(), m.end()) for m in TOKENS.finditer(text) if m.lastgroup != "space"]


def words_of(text):
    return [word for word, _, _ in tokens(text)]


def is_name(word):
    return word[:1].isalpha() or word[:1] == "_"


class Source:
    """The tokens of a file.

    pair    the other bracket of each bracket; template arguments and <<<...>>> count
    outer   the bracket around each token
    blocks  each { that statements follow
    owner   the function of each token; owned: its tokens by their word
    """

    def __init__(self, text):
        self.text, found = text, tokens(text)
        self.size = len(found)
        self.words = [word for word, _, _ in found] + [""] * 4
        self.start = [start for _, start, _ in found]
        self.end = [end for _, _, end in found]
        self.pair, self.blocks, self.outer = {}, set(), []
        self.pair_brackets()
        self.pair_angles()
        self.owner, self.count, self.owned = ["-"] * self.size, {}, {}
        self.find_functions()
        for i, name in enumerate(self.owner):
            self.owned.setdefault(name, {}).setdefault(self.words[i], []).append(i)

    def pair_brackets(self):
        stack = []
        for i, word in enumerate(self.words):
            if word in OPEN and (word != ">>>" or (stack and self.words[stack[-1]] == "<<<")):
                while stack and CLOSE[self.words[stack[-1]]] != word:    # the other branch of an #if
                    stack.pop()
                if stack:
                    self.pair[i] = stack[-1]
                    self.pair[stack.pop()] = i
            self.outer.append(stack[-1] if stack else None)
            if word in CLOSE:
                if word == "{" and self.opens_block(i):
                    self.blocks.add(i)
                stack.append(i)

    def opens_block(self, i):
        before = self.words[i - 1] if i else ";"
        if before in (")", "]", "else", "do", "try", "const", "noexcept", "override", "mutable"):
            return True
        if before in ("{", "}", ";", ":") or before[0] == "#":
            return self.outer[i] is None or self.outer[i] in self.blocks
        for k in range(i - 1, max(i - 14, -1), -1):    # struct X : Y<Z> {    extern "C" {    [](int x) -> int {
            word = self.words[k]
            if word in CLASS or word in ("namespace", "extern") or (word == "->" and self.words[k - 1] == ")"):
                return True
            if not is_name(word) and word[0] not in '"<>:,*&':
                return False
        return False

    def is_angle(self, i):
        """Whether a < begins template arguments. A comparison has a space in front."""
        before = self.words[i - 1]
        return before == "template" or (is_name(before) and before != "operator" and self.end[i - 1] == self.start[i])

    def pair_angles(self):
        for i in (i for i, word in enumerate(self.words) if word == "<" and i and self.is_angle(i)):
            k, depth = i + 1, 1
            while depth > 0 and self.words[k] not in (")", "]", "}", ";", ""):
                if self.words[k] in ANGLES:
                    depth -= len(self.words[k])
                depth += self.words[k] == "<" and self.is_angle(k)
                k = self.pair.get(k, k) + 1 if self.words[k] in CLOSE else k + 1
            if depth <= 0:
                self.pair[i] = k - 1
                self.pair.setdefault(k - 1, i)

    # Functions

    def find_functions(self):
        """Visits the declarations of namespaces and classes. flat: one so far, brackets without their contents."""
        scopes, flat, begin, i = [], [], 0, 0
        while i < self.size:
            word, after, name = self.words[i], i + 1, ""
            if word[0] == "#" and word.endswith("define") and "\n" not in word:
                line = re.compile(r"(?:\\\n|[^\n])*").match(self.text, self.start[i]).end()
                while after < self.size and self.start[after] < line:
                    after += 1
                name = self.words[i + 1]
            elif word == "}" and scopes and self.pair.get(i) == scopes[-1][1]:
                scopes.pop()
            elif word == ";" and not any(scope for scope, _ in scopes):
                name = self.variable(flat)
            elif word == "{" and i in self.blocks and (opened := self.opened(flat, scopes)):
                name, is_function = opened
                after = self.pair.get(i, i) + 1
            elif word not in "};" and word[0] != "#" and not (word == ":" and len(flat) == 1):
                flat.append(i)
                i = max(self.pair.get(i, i), i) + 1
                continue
            if name:
                self.count[name] = number = self.count.get(name, 0) + 1
                self.owner[begin if flat else i:after] = [f"{name}#{number}" if number > 1 else name] * (
                    after - (begin if flat else i))
            if word == "{" and not is_function:
                scopes.append((name, i))
                after = i + 1
            flat, i, begin = [], after, after

    def opened(self, flat, scopes):
        """(name, whether a function) if the { behind this declaration opens a namespace, class or function."""
        words = [self.words[k] for k in flat]
        prefix = "".join(name + "::" for name, _ in scopes if name)
        calls = [k for k, word in enumerate(words) if word == "(" and k and words[k - 1] not in ATTRIBUTES
                 and (is_name(words[k - 1]) or "operator" in words)]
        if "namespace" in words or (words[:1] == ["extern"] and len(words) == 2):
            return "", False
        if "operator" in words and calls:
            at = words.index("operator")
            return prefix + "".join(self.words[flat[at]:flat[calls[words[at + 1] == "("]]]), True
        if "=" in words:
            return None
        if calls:
            at = calls[0] - 1
            if ":" in words and is_name(words[-1]):
                return None    # a member's initial value
            while at > 1 and words[at - 1] in ("::", "~"):
                at -= 1 if words[at - 1] == "~" else 2
            return prefix + "".join(words[at:calls[0]]), True
        if keys := [k for k, word in enumerate(words) if word in CLASS]:
            rest = words[keys[-1] + 1:words.index(":") if ":" in words else None]
            names = [word for word, after in zip(rest, rest[1:] + [""]) if is_name(word) and after != "("]
            names = [name for name in names if name != "final"]
            return prefix + names[-1] if names else "", False
        return None

    def variable(self, flat):
        """The name that a declaration gives a value."""
        words = [self.words[k] for k in flat]
        value = min((words.index(word) for word in ("=", "{") if word in words), default=0)
        names = [word for word in words[:words.index("[") if "[" in words[:value] else value] if is_name(word)]
        is_call = "(" in words[:value] and ATTRIBUTES.isdisjoint(names)
        return names[-1] if names and not is_call else ""

    # Sites: each is (begin, end) and the list of ranges that a drop takes.

    def find(self, function, word, n):
        if function not in self.owned:
            raise Gone(f"the file has no function {function}")
        found = self.owned[function].get(word, [])
        if not 1 <= n <= len(found):
            raise Gone(f"{function} has {len(found)} of `{word}`, not {n}")
        return found[n - 1]

    def beside(self, i, step):
        """(near, far) for each token after i (step 1) or before it (-1), up to the end of its bracket or statement.
        A bracket and its contents count as one."""
        k = i + step
        while 0 <= k < self.size and self.words[k] != ";" and self.words[k][0] != "#":
            far = self.pair.get(k, k)
            if (far - k) * step < 0 or (step < 0 and far in self.blocks):
                return
            yield k, far
            k = far + step

    def follows_head(self, i):
        """Whether the ) at i ends an if (...)."""
        return self.words[i] == ")" and i in self.pair and self.words[self.pair[i] - 1] in HEADS | {"constexpr"}

    def is_binary(self, i):
        word, before = self.words[i], self.words[i - 1]
        if word not in LEVEL or (word in "<>>" and i in self.pair):
            return False
        return word not in UNARY or (not self.follows_head(i - 1) and before not in NO_OPERAND and (
            before in (")", "]", "}") or before[0].isalnum() or before[0] in "_.\"'"
            or (before in ANGLES and i - 1 in self.pair)))

    def right_end(self, i, level):
        end, choices = i + 1, 0
        for k, far in self.beside(i, 1):
            word = self.words[k]
            own = LEVEL[word] if k > i + 1 and self.is_binary(k) else level + 1
            if own < level or (own == level and level not in (ASSIGNMENT, CHOICE)) or (word == ":" and not choices):
                break
            choices += (word == "?") - (word == ":")
            end = far + 1
        return end

    def left_begin(self, i, level):
        begin = i
        for k, far in self.beside(i, -1):
            word = self.words[k]
            own = LEVEL[word] if self.is_binary(k) else level + 1
            if (word in STARTS or self.follows_head(k) or own < level or (own == level == ASSIGNMENT)
                    or (word == ":" and level >= CHOICE)):
                break
            begin = far
        return begin

    def operands(self, i):
        """(begin, end) of an operator with its operands, and where its right operand begins."""
        word = self.words[i]
        if word == "return":
            return i + 1, self.right_end(i, COMMA - 1), i + 1
        if not self.is_binary(i):
            raise Gone(f"`{word}` has no two operands")
        middle, choices = i, word == "?"
        while choices:    # up to the colon
            middle = max(self.pair.get(middle + 1, 0), middle + 1)
            choices += (self.words[middle] == "?") - (self.words[middle] == ":")
        return self.left_begin(i, LEVEL[word]), self.right_end(middle, LEVEL[word]), middle + 1

    def token(self, i):
        return (i, i + 1), [(i, i + 1)]

    def left(self, i):
        begin, _, middle = self.operands(i)
        return (i + 1, middle - 1) if self.words[i] == "?" else (begin, i), [(begin, middle)]

    def right(self, i):
        begin, end, middle = self.operands(i)
        if self.words[i] == "?":
            return (middle, end), [(begin, i + 1), (middle - 1, end)]
        return (middle, end), [(max(i, begin), end)]

    def brackets_end(self, k):
        """Behind the brackets that begin at k."""
        while self.pair.get(k, 0) > k and k not in self.blocks:
            k = self.pair[k] + 1
        return k

    def name(self, i):
        begin = i
        while is_name(self.words[i]) and self.words[begin - 1] in ("::", ".", "->"):
            begin -= 1
            while self.pair.get(begin - 1, begin) < begin - 1 and self.pair[begin - 1] not in self.blocks:
                begin = self.pair[begin - 1]
            if is_name(self.words[begin - 1]) and self.words[begin - 1] not in NO_OPERAND:
                begin -= 1
        return (begin, i + 1), [(begin, i + 1)]

    def expr(self, i):
        if self.is_binary(i):
            begin, end, _ = self.operands(i)
        elif self.words[i] in UNARY:
            begin, end = i, i + 1
            while self.words[end] in UNARY:
                end += 1
            end = self.brackets_end(end if self.words[end] in CLOSE else end + 1)
            while self.words[end] in (".", "->", "::"):
                end = self.brackets_end(end + 2)
        else:
            begin, end = self.name(i)[0][0], self.brackets_end(i if self.words[i] in CLOSE else i + 1)
        return (begin, end), [(begin, end)]

    def arg(self, i, number):
        opening = i
        if self.words[i] not in CLOSE and self.words[i] != "<":
            opening = self.pair[i + 1] + 1 if self.words[i + 1] == "<" and i + 1 in self.pair else i + 1
        if self.pair.get(opening, 0) < opening:
            raise Gone(f"no brackets follow `{self.words[i]}`")
        commas = [k for k, _ in self.beside(opening, 1) if self.words[k] == ","]
        ends = [opening, *commas, self.pair[opening]]
        if not 1 <= number < len(ends) or ends[number - 1] + 1 == ends[number]:
            raise Gone(f"`{self.words[i]}` has no argument {number}")
        begin, end = ends[number - 1] + 1, ends[number]
        return (begin, end), [(begin - 1, end) if number > 1 else (begin, end + bool(commas))]

    def cond(self, i):
        if self.words[i] == "?":
            begin = self.left_begin(i, CHOICE)
            return (begin, i), [(begin, i)]
        k = i
        if self.words[i] in HEADS:
            k += 1 + (self.words[i + 1] == "constexpr")
        while k is not None and not (self.words[k] == "(" and self.follows_head(self.pair.get(k, k))):
            k = self.outer[k]
        if k is None:
            raise Gone(f"`{self.words[i]}` is in no condition")
        head = k - 1 - (self.words[k - 1] == "constexpr")
        ends = [k, *(j for j in range(k, self.pair[k]) if self.words[j] == ";" and self.outer[j] == k), self.pair[k]]
        part = 2 if self.words[head] == "for" and len(ends) == 4 else len(ends) - 1
        return (ends[part - 1] + 1, ends[part]), [(head, self.pair[k] + 1)]

    def statement(self, i):
        block, found = self.outer[i], []
        while block is not None and block not in self.blocks:
            block = self.outer[block]
        k = block + 1 if block is not None else self.size
        while k < self.size and k < self.pair.get(block, k):
            k = self.read_statement(k, False, found)
        found = [s for s in found if s[0] <= i < s[1] and self.owner[s[0]] == self.owner[s[1] - 1]]
        if not found:
            raise Gone(f"`{self.words[i]}` is in no statement")
        begin, end, is_body = min(found, key=lambda s: s[1] - s[0])
        return (begin, end), [(begin, end - is_body)]    # a body leaves its semicolon

    def read_statement(self, k, is_body, found):
        """Adds (begin, end, whether a body without braces) of each statement of the one at k; returns its end."""
        begin, word = k, self.words[k]
        if word[0] == "#":
            return k + 1
        if word in ("case", "default") or (is_name(word) and self.words[k + 1] == ":"):
            return next(j for j in range(k, self.size) if self.words[j] == ":") + 1
        if word in HEADS:
            k = self.read_statement(self.pair[k + 1 + (self.words[k + 1] == "constexpr")] + 1, True, found)
            if word == "if" and self.words[k] == "else":
                found.append((k, branch := self.read_statement(k + 1, True, found), False))
                k = branch
        elif word == "{":
            k = self.pair[k] + 1
        else:
            k = max((far + 1 for _, far in self.beside(k - 1, 1)), default=k) + 1
        found.append((begin, k, is_body and self.words[k - 1] == ";"))
        return k

    # Changes

    def characters(self, begin, end):
        return self.start[begin], self.end[end - 1] if end > begin else self.start[begin]

    def edits(self, function, change):
        """[(first character, end, new text)], in order."""
        m = CHANGE.fullmatch(change)
        verb, kind, word, n, items, text = m.groups() if m else [""] * 6
        items = [int(item) for item in items.split()]
        kinds = ("arg",) if verb == "swap" else KINDS
        if kind not in kinds or (verb == "replace") != bool(text) or len(items) != (kind == "arg") + (verb == "swap"):
            raise Gone("no such change")
        i = self.find(function, word, int(n))
        if verb == "swap":
            a, b = (self.characters(*self.arg(i, item)[0]) for item in sorted(items))
            return [(*a, self.text[slice(*b)]), (*b, self.text[slice(*a)])]
        site, taken = getattr(self, kind)(i, *items)
        if verb == "drop":
            return [(*self.characters(*part), "") for part in taken]
        begin, end = self.characters(*site)
        return [(begin, end, text.replace("@", self.text[begin:end]))]


KINDS = ("token", "expr", "name", "left", "right", "arg", "cond", "statement")


def read(path):
    with open(os.path.join(ROOT, path), encoding="utf-8", newline="") as file:
        return file.read()


def broken(path, function, change, source=None):
    """The text of the file after the change. source: of the file, if it is at hand."""
    text = read(path)
    if function == "sed":
        after = subprocess.run(["sed", change], input=text.encode(), stdout=subprocess.PIPE, check=True).stdout.decode()
        if words_of(after) == words_of(text):
            raise Gone("the text is gone")
        return after
    edits = (source or Source(text)).edits(function, change)
    if all(words_of(text[begin:end]) == words_of(new) for begin, end, new in edits):
        raise Gone("nothing changes")
    for begin, end, new in reversed(edits):
        text = text[:begin] + new + text[end:]
    return text


def check():
    """Whether a row does not change its file. Prints such rows."""
    sources, gone = {}, False
    for row in read("dev/mutants.txt").splitlines():
        path, function, change, cases, *_ = row.split(" ;; ") + [""] * 2
        try:
            if "," in cases:    # doctest would take it for two names
                raise Gone(f"expected test cases without a comma, found {cases}")
            if function != "sed" and path not in sources:
                sources[path] = Source(read(path))
            broken(path, function, change, sources.get(path))
        except (Gone, OSError, subprocess.CalledProcessError) as error:
            print(f"FAILED   {path}: {function}: {change}: {error}")
            gone = True
    return gone


def main(arguments):
    match arguments:
        case ["check"]:
            return check()
        case ["apply", row] if row.count(" ;; ") >= 2:
            try:
                sys.stdout.write(broken(*row.split(" ;; ")[:3]))
            except (Gone, OSError, subprocess.CalledProcessError) as error:
                return f"mutate.py: {error}: {row}"
        case ["names", path]:
            print(*Source(read(path)).owned, sep="\n")
        case _:
            print(__doc__.strip(), file=sys.stderr)
            return 2


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

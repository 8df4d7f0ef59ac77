// syntax.h - the syntax tree of a chat template.
#pragma once
#include <memory>
#include <string>
#include <vector>

#include "infer/jinja/value.h"

namespace jinja {

enum class Op : uint8_t {
    // Expressions, with their children (kids). Kids in [] are optional, null if absent.
    constant,    // value
    name,        // text
    list,
    tuple,          // kids
    dict,           // kids: key, value, key, value, ...
    sign,           // text: + or -; kid
    logical_not,    // kid
    logical_and,
    logical_or,     // two kids
    arithmetic,     // text: the operator; two kids
    concatenate,    // ~: kids
    compare,        // kids; names: the operators between them
    condition,      // kids: value, test, [other value]
    attribute,      // kid, text
    subscript,      // kid, index
    slice,          // kid, [start], [stop], [step]
    call,           // kids: callee, arguments; `names` belong to the last ones
    filter,
    test,       // text; kids: value, arguments; `names` belong to the last ones
    macro,      // text; names: parameters; kids: last parameters' defaults, body
    capture,    // kid: a body whose output becomes a string
    // statements
    data,      // text
    print,     // kid
    branch,    // kids: test, body, test, body, ..., [else body]
    loop,      // kids: target, iterable, [filter], body, [else body]
    set,       // kids: target, value
    leave,
    next,          // break, continue
    block,         // kids: statements
    generation,    // kid: a capture, the text that an assistant generates
};

struct Node {
    Op op;
    int line;
    int depth = 1;
    std::string text;
    Value value;
    std::vector<std::unique_ptr<Node>> kids;
    std::vector<std::string> names;
};

struct Token {
    enum Type : uint8_t { data, print_begin, print_end, block_begin, block_end, name, string, integer, real, op, end };
    Type type;
    int line;
    std::string text;    // a string's value, unquoted
};
// Both functions raise an Error with its line.
std::vector<Token> tokens(const std::string& text);
std::unique_ptr<Node> parse(const std::string& text);
}    // namespace jinja

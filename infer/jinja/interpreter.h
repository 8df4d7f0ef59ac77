// interpreter.h - interpreter of a chat template's syntax tree, as the built-ins use it.
#pragma once
#include <memory>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "infer/jinja/chat_template.h"
#include "infer/jinja/syntax.h"

namespace jinja {

constexpr int64_t MAX_STEPS = 5'000'000;    // about a second
constexpr size_t MAX_OUTPUT = 16 << 20;     // bytes
constexpr int MAX_CALLS = 1000;             // nested nodes, also through macros

struct Frame {    // names of a scope
    std::unordered_map<std::string, Value> names;
    std::shared_ptr<Frame> outer;
};
struct Builtin;
// A built-in function, which may be a method of `self`, or a macro with the frame in which it was
// defined. Interpreter::captured keeps such frames until the interpreter is destroyed, so that
// destruction never recurses through a chain of macros.
struct Function : Object {
    const Builtin* builtin = nullptr;
    const Value self = Value();
    const Node* macro = nullptr;
    const std::shared_ptr<Frame> frame;
    Function(const Builtin* b, const Value& object) : builtin(b), self(object) { contain(self); }
    Function(const Node& node, std::shared_ptr<Frame> outer) : macro(&node), frame(std::move(outer)) {}
};
struct Loop : Object {    // the template's variable `loop`
    const Value items;
    size_t at = 0;
    explicit Loop(const Value& list) : items(list) { contain(items); }
};
struct Arguments {
    Items items;
    std::vector<std::pair<std::string, Value>> named;
};

class Interpreter {
  public:
    Meter meter{MAX_STEPS};
    const int64_t now;
    // Bytes of the output that {% generation %} blocks wrote. `hidden`: line of such a block inside
    // a macro or a captured block, whose text's place in the output is unknown; 0: none.
    std::vector<TextRange> generated;
    int hidden = 0;
    Interpreter(const Value& context, int64_t time);
    ~Interpreter();
    Interpreter(const Interpreter&) = delete;
    Interpreter& operator=(const Interpreter&) = delete;
    std::string render(const Node& root);

    // Interface for the built-in functions.
    Value filter(const std::string& name, const Value& self, Arguments args);
    bool test(const std::string& name, const Value& self, Arguments args);
    Value method(const Value& self, const std::string& name, Items args);    // calls the method
    Value attribute(const Value& v, const std::string& name);
    Value subscript(const Value& v, const Value& index);
    Value path(Value v, const Value& path);    // path: attributes and indices, like "a.b.0"
    Value new_space(Items items);

  private:
    enum class Flow { on, leave, next };
    std::string out;
    std::shared_ptr<Frame> frame;
    std::vector<std::shared_ptr<Frame>> captured;    // breaks reference cycles with macros and namespaces
    std::vector<Value> spaces;
    int depth = 0, captures = 0;    // captures: nested bodies whose output is captured
    struct Deeper;
    struct Scope;

    template <class F> auto at_line(const Node& n, F work);
    Flow exec(const Node& n);
    Flow executed(const Node& n);
    Flow loop(const Node& n);
    void set(const Node& target, const Value& value);
    void emit(const std::string& text);
    std::string captured_output(const Node& body);
    Value eval(const Node& n);
    Value evaluated(const Node& n);
    Value lookup(const std::string& name);
    Value compare(const Node& n);
    Value slice(const Node& n);
    Value macro(const Node& n);
    Value call(const Node& n);
    Value call_macro(const Function& f, Arguments args);
    Value invoke(const Builtin& b, const Value& self, Arguments args);
    Arguments arguments(const Node& n);
};

// ---- built-in filters, tests, methods and functions ---------------------------------------------

struct Call {
    Interpreter& run;
    const char* name;    // name of the built-in
    const Value& self;
    Items args;                                          // one per parameter; Kind::unset: not given
    std::vector<std::pair<std::string, Value>> named;    // keyword arguments, if the built-in accepts any

    Meter& meter() { return run.meter; }
    bool given(size_t i) const { return i < args.size() && !args[i].is(Kind::unset) && !args[i].is(Kind::none); }
    bool flag(size_t i) const { return given(i) && truth(args[i]); }
    int64_t integer(size_t i, int64_t otherwise) const;
    std::string text(size_t i, const char* otherwise = "") const;
    Value named_or(const char* name, Value otherwise) const;
};
struct Builtin {
    const char* name;
    const char* parameters;    // names separated by spaces; null: any
    int required;
    Value (*run)(Call&);
    const char* aliases[2] = {};    // further names, or null
};
template <size_t N> const Builtin* named(const Builtin (&table)[N], const std::string& name) {
    for (auto& row : table)
        for (const char* known : {row.name, row.aliases[0], row.aliases[1]})
            if (known && name == known) return &row;
    return nullptr;
}
const Builtin* filter_named(const std::string& name);
const Builtin* test_named(const std::string& name);
const Builtin* method_named(Kind kind, const std::string& name);
const Builtin* string_method(const std::string& name);
const Builtin* global_named(const std::string& name);
std::string upper(const std::string& text);
std::string lower(const std::string& text);
std::string capitalized(const std::string& text);
std::vector<std::string> split_lines(const std::string& text, bool keep_ends = false);
std::string replaced(const std::string& text, const std::string& from, const std::string& to, int64_t most,
                     Meter& meter);
}    // namespace jinja

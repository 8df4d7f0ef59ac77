// chat_template.cpp - chat templates: evaluation of the syntax tree. Scopes of names are frames:
// for loops, macros and captured blocks have a frame each, ifs have none. Names set in a loop's
// body vanish after each iteration.
#include "infer/jinja/chat_template.h"

#include <iterator>
#include <sstream>
#include <algorithm>
#include <nlohmann/json.hpp>

#include "infer/jinja/interpreter.h"

namespace jinja {

struct Interpreter::Deeper {
    Interpreter& run;
    explicit Deeper(Interpreter& interpreter) : run(interpreter) {
        if (++run.depth > MAX_CALLS) raise("calls nested too deep");
    }
    ~Deeper() { run.depth--; }
};
struct Interpreter::Scope {
    Interpreter& run;
    std::shared_ptr<Frame> before;
    explicit Scope(Interpreter& interpreter, std::shared_ptr<Frame> outer = nullptr)
        : run(interpreter), before(run.frame) {
        run.meter.charge(4);
        auto inner = std::make_shared<Frame>();
        inner->outer = outer ? std::move(outer) : run.frame;
        run.frame = std::move(inner);
    }
    ~Scope() { run.frame = std::move(before); }
};

// Evaluates a node and adds its line to an error; the innermost node's line is the most precise.
template <class F> auto Interpreter::at_line(const Node& n, F work) {
    meter.charge();
    Deeper deeper(*this);
    try {
        return work();
    } catch (Error& e) {
        if (e.line == 0) e.line = n.line;
        throw;
    }
}
Interpreter::Interpreter(const Value& context, int64_t time) : now(time), frame(std::make_shared<Frame>()) {
    for (size_t i = 0; i < context.items().size(); i += 2)
        frame->names[context.items()[i].text()] = context.items()[i + 1];
}
Interpreter::~Interpreter() {    // breaks reference cycles
    for (auto& f : captured) f->names.clear();
    for (auto& space : spaces) static_cast<Sequence&>(*space.object).items.clear();
}
std::string Interpreter::render(const Node& root) {
    exec(root);
    return std::move(out);
}

// ---- statements ---------------------------------------------------------------------------------

void Interpreter::emit(const std::string& text) {
    meter.charge_text(text.size());
    if (out.size() + text.size() > MAX_OUTPUT) raise("more than %zu bytes of output", MAX_OUTPUT);
    out += text;
}
std::string Interpreter::captured_output(const Node& body) {
    std::string outer = std::exchange(out, {});
    captures++;
    exec(body);
    captures--;
    return std::exchange(out, std::move(outer));
}
Interpreter::Flow Interpreter::exec(const Node& n) {
    return at_line(n, [&] { return executed(n); });
}
Interpreter::Flow Interpreter::executed(const Node& n) {
    switch (n.op) {
        case Op::block:
            for (auto& kid : n.kids)
                if (const Flow flow = exec(*kid); flow != Flow::on) return flow;
            return Flow::on;
        case Op::data: return emit(n.text), Flow::on;
        case Op::print: return emit(str(eval(*n.kids[0]), meter)), Flow::on;
        case Op::branch:
            for (size_t i = 0; i < n.kids.size(); i += 2) {
                if (i + 1 == n.kids.size()) return exec(*n.kids[i]);
                if (truth(eval(*n.kids[i]))) return exec(*n.kids[i + 1]);
            }
            return Flow::on;
        case Op::generation: {
            const size_t from = out.size();
            emit(str(eval(*n.kids[0]), meter));
            if (captures) hidden = n.line;
            else generated.push_back({from, out.size()});
            return Flow::on;
        }
        case Op::loop: return loop(n);
        case Op::set: return set(*n.kids[0], eval(*n.kids[1])), Flow::on;
        case Op::leave: return Flow::leave;
        case Op::next: return Flow::next;
        default: raise("an expression where a statement belongs");
    }
}
Interpreter::Flow Interpreter::loop(const Node& n) {
    const Node &target = *n.kids[0], *filter = n.kids[2].get(), *otherwise = n.kids[4].get();
    Value items = iterated(eval(*n.kids[1]), meter);
    if (filter) {
        Items some;
        for (auto& item : items.items()) {
            Scope scope(*this);
            set(target, item);
            if (truth(eval(*filter))) some.push_back(item);
        }
        items = Value(Kind::list, std::move(some));
    }
    if (items.items().empty()) return otherwise ? exec(*otherwise) : Flow::on;
    const auto state = std::make_shared<Loop>(items);
    const Value object(Kind::loop, state);
    for (state->at = 0; state->at < items.items().size(); state->at++) {
        Scope scope(*this);
        frame->names["loop"] = object;
        set(target, items.items()[state->at]);
        if (exec(*n.kids[3]) == Flow::leave) break;
    }
    return Flow::on;
}
void Interpreter::set(const Node& target, const Value& value) {
    if (target.op == Op::name) frame->names[target.text] = value;
    else if (target.op == Op::attribute) assign(eval(*target.kids[0]), target.text, value, meter);
    else {
        const Value parts = iterated(value, meter);
        if (parts.items().size() != target.kids.size())
            raise("expected %zu values to unpack, found %zu", target.kids.size(), parts.items().size());
        for (size_t i = 0; i < target.kids.size(); i++) set(*target.kids[i], parts.items()[i]);
    }
}

// ---- expressions --------------------------------------------------------------------------------

namespace {
Value number(const Value& v) {
    if (!v.is_number()) raise("a sign before '%s'", type_name(v));
    return v;
}
}    // namespace

Value Interpreter::eval(const Node& n) {
    return at_line(n, [&] { return evaluated(n); });
}
Value Interpreter::evaluated(const Node& n) {
    auto kid = [&](size_t i) { return eval(*n.kids[i]); };
    switch (n.op) {
        case Op::constant: return n.value;
        case Op::name: return lookup(n.text);
        case Op::list:
        case Op::tuple:
        case Op::dict: {
            Items items;
            Value key;
            for (size_t i = 0; i < n.kids.size(); i++)
                if (n.op != Op::dict) items.push_back(kid(i));
                else if (i % 2 == 0) key = kid(i);
                else put(items, key, kid(i), meter);
            return Value(n.op == Op::list    ? Kind::list
                         : n.op == Op::tuple ? Kind::tuple
                                             : Kind::dict,
                         std::move(items));
        }
        case Op::sign: return arithmetic("*", int64_t(n.text == "-" ? -1 : 1), number(kid(0)), meter);
        case Op::logical_not: return !truth(kid(0));
        case Op::logical_and:
        case Op::logical_or: {
            Value left = kid(0);
            return truth(left) == (n.op == Op::logical_and) ? kid(1) : left;
        }
        case Op::arithmetic: {
            const Value left = kid(0);
            return arithmetic(n.text, left, kid(1), meter);
        }
        case Op::concatenate: {
            std::string text;
            for (size_t i = 0; i < n.kids.size(); i++) text += str(kid(i), meter);
            meter.charge_text(text.size());
            return text;
        }
        case Op::compare: return compare(n);
        case Op::condition:
            if (truth(kid(1))) return kid(0);
            return n.kids[2] ? kid(2) : undefined("the else of an if that has none");
        case Op::attribute: return attribute(kid(0), n.text);
        case Op::subscript: {
            const Value v = kid(0);
            return subscript(v, kid(1));
        }
        case Op::slice: return slice(n);
        case Op::call: return call(n);
        case Op::filter: {
            const Value v = kid(0);
            return filter(n.text, v, arguments(n));
        }
        case Op::test: {
            const Value v = kid(0);
            return test(n.text, v, arguments(n));
        }
        case Op::macro: return macro(n);
        case Op::capture: {
            Scope scope(*this);
            return captured_output(*n.kids[0]);
        }
        default: raise("a statement where an expression belongs");
    }
}
Value Interpreter::lookup(const std::string& name) {
    int hops = 0;
    for (const Frame* f = frame.get(); f; f = f->outer.get()) {
        if (++hops % 16 == 0) meter.charge();
        if (auto found = f->names.find(name); found != f->names.end()) return found->second;
    }
    if (name == "self") raise("self: a chat template has no blocks");
    if (const Builtin* b = global_named(name)) return Value(Kind::function, std::make_shared<Function>(b, Value()));
    return undefined(name);
}
Value Interpreter::compare(const Node& n) {
    Value left = eval(*n.kids[0]);
    for (size_t i = 0; i < n.names.size(); i++) {
        Value right = eval(*n.kids[i + 1]);
        if (!jinja::compare(n.names[i], left, right, meter)) return false;
        left = std::move(right);
    }
    return true;
}
// Evaluates v[start:stop:step] with bounds as in Python's slice.indices.
Value Interpreter::slice(const Node& n) {
    const Value v = eval(*n.kids[0]);
    check_defined(v);
    if (!v.is(Kind::string) && !v.is(Kind::list) && !v.is(Kind::tuple) && !v.is(Kind::range))
        raise("'%s' object cannot be sliced", type_name(v));
    Value bound[3];
    for (size_t i = 0; i < 3; i++)
        if (n.kids[i + 1]) bound[i] = eval(*n.kids[i + 1]);
    for (auto& b : bound)
        if (!b.is(Kind::unset) && !b.is(Kind::none) && !b.is_int()) raise("slice indices must be integers");
    const Value items = iterated(v, meter);
    const int64_t size = int64_t(items.items().size()), step = bound[2].is_int() ? bound[2].integer : 1;
    if (step == 0) raise("slice step cannot be zero");
    auto clamped = [&](const Value& b, int64_t otherwise) {
        if (!b.is_int()) return otherwise;
        const int64_t i = b.integer < 0 ? std::max(b.integer, -size - 1) + size : b.integer;
        return step > 0 ? std::clamp<int64_t>(i, 0, size) : std::clamp<int64_t>(i, -1, size - 1);
    };
    const int64_t from = clamped(bound[0], step > 0 ? 0 : size - 1), to = clamped(bound[1], step > 0 ? size : -1);
    if (v.is(Kind::range)) {
        const auto& range = static_cast<Range&>(*v.object);
        auto scaled = [&](int64_t i) { return arithmetic("*", i, range.step, meter); };
        auto item = [&](int64_t i) { return arithmetic("+", range.from, scaled(i), meter).integer; };
        meter.charge(size + 1);    // an upper bound of the slice's size
        return range_of(item(from), item(to), scaled(step).integer);
    }
    Items some;
    std::string text;
    for (int64_t i = from; step > 0 ? i < to : i > to;) {
        if (v.is(Kind::string)) text += items.items()[size_t(i)].text();
        else some.push_back(items.items()[size_t(i)]);
        if (__builtin_add_overflow(i, step, &i)) break;
    }
    meter.charge(int64_t(some.size()) + 1);
    return v.is(Kind::string) ? Value(text) : Value(v.kind, std::move(some));
}
Value Interpreter::attribute(const Value& v, const std::string& name) {
    check_defined(v);
    if (const Builtin* b = method_named(v.kind, name)) return Value(Kind::function, std::make_shared<Function>(b, v));
    if (v.is(Kind::dict) || v.is(Kind::space))
        if (const Value* found = find(v, name, meter)) return *found;
    if (v.is(Kind::loop)) {
        const auto& loop = static_cast<Loop&>(*v.object);
        const auto at = int64_t(loop.at), size = int64_t(loop.items.items().size());
        if (name == "index") return at + 1;
        if (name == "index0") return at;
        if (name == "first") return at == 0;
        if (name == "last") return at + 1 == size;
        if (name == "length") return size;
        if (name == "revindex") return size - at;
        if (name == "revindex0") return size - at - 1;
        if (name == "depth") return int64_t(1);
        if (name == "depth0") return int64_t(0);
        if (name == "previtem") return at > 0 ? loop.items.items()[size_t(at) - 1] : undefined(name);
        if (name == "nextitem") return at + 1 < size ? loop.items.items()[size_t(at) + 1] : undefined(name);
    }
    if (v.is_number()) {
        if (name == "real") return v.is(Kind::real) ? v : Value(v.integer);
        if (name == "imag") return v.is(Kind::real) ? Value(0.0) : Value(int64_t(0));
        if (v.is_int() && name == "numerator") return v.integer;
        if (v.is_int() && name == "denominator") return int64_t(1);
    }
    if (v.is_view() && name == "mapping") raise("a view's mapping is not supported");
    if (v.is(Kind::range)) {
        const auto& range = static_cast<Range&>(*v.object);
        if (name == "start") return range.from;
        if (name == "stop") return range.to;
        if (name == "step") return range.step;
    }
    if (const Function* f = v.is(Kind::function) ? static_cast<Function*>(v.object.get()) : nullptr; f && f->macro) {
        if (name == "name") return f->macro->text;
        Items parameters(f->macro->names.begin(), f->macro->names.end());
        if (name == "arguments") return Value(Kind::tuple, std::move(parameters));
        for (const char* other : {"caller", "catch_kwargs", "catch_varargs", "defaults", "explicit_caller"})
            if (name == other) raise("a macro's %s is not supported", other);
    }
    return undefined(name);
}
Value Interpreter::subscript(const Value& v, const Value& index) {
    check_defined(v);
    if (v.is(Kind::dict) && !index.is(Kind::list) && !index.is(Kind::dict))
        if (const Value* found = find(v, index, meter)) return *found;
    const bool is_string = v.is(Kind::string);
    if (index.is_int() && (is_string || v.is(Kind::list) || v.is(Kind::tuple) || v.is(Kind::range))) {
        if (is_string) meter.charge_text(v.text().size());
        const std::u32string characters = is_string ? to_utf32(v.text()) : std::u32string();
        const int64_t size = int64_t(is_string ? characters.size() : v.items().size());
        if (index.integer >= size || index.integer < -size) return undefined("an index beyond the end");
        const size_t at = size_t(index.integer + (index.integer < 0 ? size : 0));
        return is_string ? Value(to_utf8({&characters[at], 1})) : v.items()[at];
    }
    return index.is(Kind::string) ? attribute(v, index.text()) : undefined(str(index, meter));
}

// ---- calls --------------------------------------------------------------------------------------

Value Interpreter::new_space(Items items) {
    spaces.push_back(Value(Kind::space, std::move(items)));
    return spaces.back();
}
Value Interpreter::macro(const Node& n) {
    meter.charge(16);
    if (captured.empty() || captured.back() != frame) captured.push_back(frame);
    return Value(Kind::function, std::make_shared<Function>(n, frame));
}
Arguments Interpreter::arguments(const Node& n) {    // evaluates all child nodes after the first
    Arguments args;
    const size_t named = n.kids.size() - n.names.size();
    for (size_t i = 1; i < n.kids.size(); i++)
        if (i < named) args.items.push_back(eval(*n.kids[i]));
        else args.named.emplace_back(n.names[i - named], eval(*n.kids[i]));
    return args;
}
Value Interpreter::call(const Node& n) {
    const Value callee = eval(*n.kids[0]);
    if (callee.is(Kind::undefined)) {
        for (const char* changes : {"append", "pop", "update", "insert", "extend", "remove", "setdefault", "clear",
                                    "sort", "reverse", "popitem"})
            if (n.kids[0]->op == Op::attribute && n.kids[0]->text == changes)
                raise("%s: a template may change namespaces only", changes);
        if (n.kids[0]->op == Op::attribute) raise("there is no method '%s'", n.kids[0]->text.c_str());
        raise("'%s' is undefined", callee.text().c_str());
    }
    if (!callee.is(Kind::function)) raise("'%s' object is not callable", type_name(callee));
    const auto& f = static_cast<Function&>(*callee.object);
    return f.macro ? call_macro(f, arguments(n)) : invoke(*f.builtin, f.self, arguments(n));
}
Value Interpreter::call_macro(const Function& f, Arguments args) {
    const Node& m = *f.macro;
    Scope scope(*this, f.frame);
    auto& names = frame->names;
    const size_t given = std::min(args.items.size(), m.names.size());
    for (size_t i = 0; i < given; i++) names[m.names[i]] = args.items[i];
    for (auto& [name, value] : args.named) {
        const bool parameter = std::find(m.names.begin(), m.names.end(), name) != m.names.end();
        if (parameter && names.count(name)) raise("macro %s got two values for %s", m.text.c_str(), name.c_str());
        if (parameter) names[name] = value;
        else raise("macro %s has no parameter %s", m.text.c_str(), name.c_str());
    }
    if (given < args.items.size()) raise("macro %s takes at most %zu arguments", m.text.c_str(), m.names.size());
    const size_t required = m.names.size() - (m.kids.size() - 1);
    for (size_t i = 0; i < m.names.size(); i++)
        if (!names.count(m.names[i]))
            names[m.names[i]] = i < required ? undefined(m.names[i]) : eval(*m.kids[i - required]);
    names.try_emplace("varargs", Kind::tuple, Items());    // always empty: too many arguments are errors
    names.try_emplace("kwargs", Kind::dict, Items());
    return captured_output(*m.kids.back());
}
// Assigns a built-in's arguments to its parameters.
Value Interpreter::invoke(const Builtin& b, const Value& self, Arguments args) {
    auto touch = [&](const Value& v, int64_t each) {
        if (v.is(Kind::string)) meter.charge_text(v.text().size());
        else if (v.kind >= Kind::list && v.kind <= Kind::generator) meter.charge(each * int64_t(v.items().size()));
    };
    touch(self, 1);
    Call c{*this, b.name, self, std::move(args.items), {}};
    if (b.parameters) {
        std::istringstream text(b.parameters);
        const std::vector<std::string> names(std::istream_iterator<std::string>(text), {});
        if (c.args.size() > names.size()) raise("%s takes at most %zu arguments", b.name, names.size());
        c.args.resize(names.size());
        for (auto& [name, value] : args.named) {
            const auto at = std::find(names.begin(), names.end(), name);
            if (at == names.end()) raise("%s has no parameter %s", b.name, name.c_str());
            c.args[size_t(at - names.begin())] = value;
        }
        for (int i = 0; i < b.required; i++)
            if (c.args[size_t(i)].is(Kind::unset)) raise("%s needs %s", b.name, names[size_t(i)].c_str());
    } else {
        c.named = std::move(args.named);
    }
    for (auto& arg : c.args) touch(arg, 1);
    Value result = b.run(c);
    touch(result, 4);
    return result;
}
Value Interpreter::method(const Value& self, const std::string& name, Items args) {
    return invoke(*method_named(self.kind, name), self, {std::move(args), {}});
}
Value Interpreter::filter(const std::string& name, const Value& self, Arguments args) {
    const Builtin* b = filter_named(name);
    if (!b) raise("there is no filter '%s'", name.c_str());
    return invoke(*b, self, std::move(args));
}
bool Interpreter::test(const std::string& name, const Value& self, Arguments args) {
    const Builtin* b = test_named(name);
    if (!b) raise("there is no test '%s'", name.c_str());
    return truth(invoke(*b, self, std::move(args)));
}
}    // namespace jinja

// ---- the template -------------------------------------------------------------------------------

namespace {
Status failed(const jinja::Error& e) {
    const std::string line = e.line ? "line " + std::to_string(e.line) + ": " : "";
    return fail(Exit::input, "chat template: %s%s", line.c_str(), e.message.c_str());
}
}    // namespace

static bool has_generation(const jinja::Node& n) {
    return n.op == jinja::Op::generation ||
           std::any_of(n.kids.begin(), n.kids.end(), [](auto& kid) { return kid && has_generation(*kid); });
}

Result<ChatTemplate> ChatTemplate::parse(const std::string& text) {
    try {
        ChatTemplate t;
        t.root = jinja::parse(text);
        return t;
    } catch (const jinja::Error& e) { return failed(e); }
}
Result<std::string> ChatTemplate::render(const nlohmann::ordered_json& context, int64_t now,
                                         std::vector<TextRange>* generated) const {
    if (!context.is_object()) return fail(Exit::input, "chat template: expected an object as its context");
    jinja::Value values;
    TRY(convert(context, &values));
    return render(values, now, generated);
}
Status ChatTemplate::convert(const nlohmann::ordered_json& json, jinja::Value* to) {
    try {
        *to = jinja::from_json(json);
        return {};
    } catch (const jinja::Error& e) { return failed(e); }
}
Result<std::string> ChatTemplate::render(const jinja::Value& context, int64_t now,
                                         std::vector<TextRange>* generated) const {
    try {
        jinja::Interpreter run(context, now);
        std::string text = run.render(*root);
        if (generated && run.hidden)
            throw jinja::Error{"{% generation %} inside a macro or a captured block: its text could be anywhere",
                               run.hidden};
        if (generated) *generated = std::move(run.generated);
        return text;
    } catch (const jinja::Error& e) { return failed(e); }
}
bool ChatTemplate::marks_generation() const { return has_generation(*root); }

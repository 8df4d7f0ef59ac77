// methods.cpp - the methods of Python's dict, list and tuple, and the global functions.
#include <algorithm>
#include <ctime>

#include "infer/jinja/interpreter.h"

namespace jinja {

int64_t Call::integer(size_t i, int64_t otherwise) const {
    if (!given(i)) return otherwise;
    if (!args[i].is_int()) raise("expected an integer as argument %zu, found %s", i + 1, type_name(args[i]));
    return args[i].integer;
}
std::string Call::text(size_t i, const char* otherwise) const {
    if (!given(i)) return otherwise;
    if (!args[i].is(Kind::string)) raise("expected a string as argument %zu, found %s", i + 1, type_name(args[i]));
    return args[i].text();
}
Value Call::named_or(const char* argument, Value otherwise) const {
    for (auto& [key, value] : named)
        if (key == argument) return value;
    return otherwise;
}
Value Interpreter::path(Value v, const Value& path) {
    if (!path.is(Kind::string)) return subscript(v, path);
    const std::string& names = path.text();
    for (size_t at = 0, end; at <= names.size(); at = end + 1) {
        end = std::min(names.find('.', at), names.size());
        const std::string part = names.substr(at, end - at);
        const bool digits = !part.empty() && part.size() < 10 && part.find_first_not_of("0123456789") == part.npos;
        v = subscript(v, digits ? Value(int64_t(atoll(part.c_str()))) : Value(part));
    }
    return v;
}

namespace {
// Returns a view of a dict's keys (FIRST 0) or values (FIRST 1); the dict's items alternate between
// keys and values.
template <size_t FIRST, Kind VIEW> Value every_other(Call& c) {
    Items some;
    for (size_t i = FIRST; i < c.self.items().size(); i += 2) some.push_back(c.self.items()[i]);
    return Value(VIEW, std::move(some));
}
Value get(Call& c) {
    const Value* found = find(c.self, c.args[0], c.meter());
    return found ? *found : c.args[1].is(Kind::unset) ? Value(Kind::none) : c.args[1];
}
const Builtin DICT[] = {
    {"copy", "", 0, [](Call& c) -> Value { return c.self; }},
    {"get", "key default", 1, get},
    {"items", "", 0, [](Call& c) -> Value { return Value(Kind::entries, pairs(c.self).items()); }},
    {"keys", "", 0, every_other<0, Kind::keys>},
    {"values", "", 0, every_other<1, Kind::values>},
};

Value list_index(Call& c) {
    const auto size = int64_t(c.self.items().size());
    auto bound = [&](size_t i, int64_t otherwise) {
        const int64_t x = c.integer(i, otherwise);
        return std::clamp<int64_t>(x < 0 ? x + size : x, 0, size);
    };
    for (int64_t i = bound(1, 0); i < bound(2, size); i++)
        if (equal(c.self.items()[size_t(i)], c.args[0], c.meter())) return i;
    raise("the value is not in the list");
}
Value count_items(Call& c) {
    int64_t n = 0;
    for (auto& item : c.self.items()) n += equal(item, c.args[0], c.meter());
    return n;
}
const Builtin LIST[] = {{"copy", "", 0, [](Call& c) -> Value { return c.self; }},
                        {"count", "value", 1, count_items},
                        {"index", "value start stop", 1, list_index}};
const Builtin RANGE[] = {{"count", "value", 1, count_items}, {"index", "value", 1, list_index}};

Value cycle(Call& c) {
    if (c.args.empty()) raise("cycle needs values");
    return c.args[static_cast<Loop&>(*c.self.object).at % c.args.size()];
}
const Builtin LOOP[] = {{"cycle", nullptr, 0, cycle}};

// ---- functions ----------------------------------------------------------------------------------

Value range(Call& c) {    // start stop step
    const int64_t from = c.args[1].is(Kind::unset) ? 0 : c.integer(0, 0), step = c.integer(2, 1);
    const int64_t to = c.args[1].is(Kind::unset) ? c.integer(0, 0) : c.integer(1, 0);
    if (step == 0) raise("range() arg 3 must not be zero");
    return range_of(from, to, step);
}
Value new_dict(Call& c) {
    if (!c.args.empty()) raise("dict: expected named arguments only");
    Items items;
    for (auto& [name, value] : c.named) put(items, name, value, c.meter());
    return Value(Kind::dict, std::move(items));
}
Value new_namespace(Call& c) {
    if (!c.args.empty()) raise("expected named arguments only");
    Value space = c.run.new_space({});
    for (auto& [name, value] : c.named) assign(space, name, value, c.meter());
    return space;
}
Value strftime_now(Call& c) {
    const time_t now = time_t(c.run.now);
    struct tm local = {};
    char text[1024];
    const std::string format = c.text(0);
    if (!localtime_r(&now, &local)) raise("a time that has no date");
    const size_t n = strftime(text, sizeof text, format.c_str(), &local);
    if (n == 0 && !format.empty()) raise("strftime_now: more than 1023 characters, or none");
    return std::string(text, n);
}
const Builtin GLOBALS[] = {
    {"dict", nullptr, 0, new_dict},
    {"namespace", nullptr, 0, new_namespace},
    {"raise_exception", "message", 1, [](Call& c) -> Value { raise("%s", str(c.args[0], c.meter()).c_str()); }},
    {"range", "start stop step", 1, range},
    {"strftime_now", "format", 1, strftime_now},
};
}    // namespace

const Builtin* method_named(Kind kind, const std::string& name) {
    switch (kind) {
        case Kind::string: return string_method(name);
        case Kind::dict: return named(DICT, name);
        case Kind::list:
        case Kind::tuple: return named(LIST, name);
        case Kind::range: return named(RANGE, name);
        case Kind::loop: return named(LOOP, name);
        default: return nullptr;
    }
}
const Builtin* global_named(const std::string& name) { return named(GLOBALS, name); }
}    // namespace jinja

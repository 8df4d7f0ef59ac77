// value.h - Python's values, as far as chat templates need them.
//
// Everything but a namespace is immutable, so values are shared, not copied. Errors inside the
// interpreter are thrown; ChatTemplate turns them into a Status.
#pragma once
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/common.h"

namespace jinja {

struct Error {
    std::string message;
    int line = 0;    // 0: unknown yet
};
[[noreturn, gnu::format(printf, 1, 2)]] void raise(const char* format, ...);

// Work that a template may still do, in units: an evaluated node, an item touched, or 16 bytes of
// text touched. The limit also bounds memory, because every allocation is charged. An allocation
// whose size the template chooses is charged before it is made.
struct Meter {
    int64_t steps;
    void charge(int64_t n = 1) {
        if (n > steps) raise("the template does too much: more than its limit of steps");
        steps -= n;
    }
    void charge_text(size_t bytes) { charge(int64_t(bytes / 16) + 1); }
};

// unset: an argument that was not given. keys, values, entries: a dict's views. generator: the
// result of filters such as map; it can be iterated once.
enum class Kind : uint8_t {
    unset,
    undefined,
    none,
    boolean,
    integer,
    real,
    string,
    list,
    tuple,
    range,
    keys,
    values,
    entries,
    dict,
    generator,
    space,
    function,
    loop
};
constexpr int MAX_DEPTH = 100;    // nested values, because printers, comparisons, destructors recurse
struct Value;
typedef std::vector<Value> Items;
// The heap part of a Value. depth: levels of nested values inside; a text has 0.
struct Object {
    int depth = 1;
    virtual ~Object() = default;
    void contain(const Value& inner);    // raises an Error if nested too deeply
};

struct Value {
    Kind kind = Kind::unset;
    bool safe = false;    // result of |safe: + escapes strings appended, like Markup
    union {
        int64_t integer = 0;    // also the value of a boolean
        double real;
    };
    std::shared_ptr<Object> object;    // Text, Sequence (list to space), Function, Loop

    Value() = default;
    explicit Value(Kind k) : kind(k) {}
    Value(bool b) : kind(Kind::boolean), integer(b) {}
    Value(int64_t i) : kind(Kind::integer), integer(i) {}
    Value(double d) : kind(Kind::real), real(d) {}
    Value(std::string s);
    Value(const char* s) : Value(std::string(s)) {}
    template <class H> Value(Kind k, const std::shared_ptr<H>& h) : kind(k), object(h) {}
    Value(Kind k, Items items);    // raises an Error if nested too deeply

    bool is(Kind k) const { return kind == k; }
    bool is_int() const { return is(Kind::integer) || is(Kind::boolean); }
    bool is_number() const { return is_int() || is(Kind::real); }
    bool is_sequence() const { return kind >= Kind::list && kind <= Kind::entries; }
    bool is_view() const { return kind >= Kind::keys && kind <= Kind::entries; }
    double number() const { return is(Kind::real) ? real : double(integer); }
    const std::string& text() const;    // text of a string; name of an undefined
    const Items& items() const;         // dict and namespace: key, value, key, value, ...
};
struct Text : Object {
    std::string text;
    Text() { depth = 0; }
};
struct Sequence : Object {
    Items items;
};
struct Range : Sequence {
    int64_t from = 0, to = 0, step = 1;
};

Value range_of(int64_t from, int64_t to, int64_t step);
Value undefined(std::string name);
const char* type_name(const Value& v);    // type's name in Python
bool truth(const Value& v);
void check_defined(const Value& v);    // raises if v is undefined
// The items that a loop visits: a dict's keys, a string's characters. Empties a generator.
Value iterated(const Value& v, Meter& meter);
// A dict's or a namespace's value; null: no such key. Raises if the key's type is not hashable.
const Value* find(const Value& dict, const Value& key, Meter& meter);
void put(Items& dict, const Value& key, const Value& value, Meter& meter);    // adds or replaces
void assign(const Value& space, const std::string& name, const Value& value, Meter& meter);

bool equal(const Value& a, const Value& b, Meter& meter, int depth = 0);
int order(const Value& a, const Value& b, Meter& meter, int depth = 0);    // < 0, 0, > 0; raises if not comparable
bool contains(const Value& container, const Value& item, Meter& meter);
// Compares a op b, where `op` is one of == != < <= > >= in, not in.
bool compare(std::string_view op, const Value& a, const Value& b, Meter& meter);

std::string str(const Value& v, Meter& meter);
std::string repr(const Value& v, Meter& meter, int depth = 0);
struct JsonStyle {
    bool ascii = false, sorted = false;
    int64_t indent = -1;    // -1: on one line
    std::string between = ", ", colon = ": ";
};
std::string to_json(const Value& v, const JsonStyle& style, Meter& meter, int depth = 0);
Value pairs(const Value& dict);    // list of (key, value)
Value from_json(const nlohmann::ordered_json& json, int depth = 0);

// a op b with Python's semantics. op: one of + - * / // % **
Value arithmetic(std::string_view op, const Value& a, const Value& b, Meter& meter);

// ---- text ---------------------------------------------------------------------------------------

// Converts UTF-8 to code points. Invalid bytes become lone surrogates, which to_utf8 restores.
std::u32string to_utf32(std::string_view text);
std::string to_utf8(std::u32string_view text);
int64_t length(const std::string& text);    // number of code points
// Python's int(text, base) and float(text); none if text is no number. Raises beyond 64 bits.
std::optional<int64_t> integer_of(const std::string& text, int64_t base);
std::optional<double> real_of(const std::string& text);
bool is_space(char32_t c);    // Python's str.isspace
size_t after_spaces(std::string_view text, size_t at);
// Python's str.strip; without `characters`, of white space.
std::string strip(const std::string& text, const Value& characters = {}, bool left = true, bool right = true);
std::string escaped_html(const std::string& text);
}    // namespace jinja

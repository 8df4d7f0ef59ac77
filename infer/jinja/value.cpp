// value.cpp - Python's values: truth, equality, order, arithmetic, containers.
#include "infer/jinja/value.h"

#include <cmath>
#include <cstdarg>
#include <nlohmann/json.hpp>

namespace jinja {

void raise(const char* format, ...) {
    va_list args;
    va_start(args, format);
    Error e{formatted(format, args)};
    va_end(args);
    throw e;
}

Value::Value(std::string s) : kind(Kind::string) {
    auto t = std::make_shared<Text>();
    t->text = std::move(s);
    object = std::move(t);
}
void Object::contain(const Value& inner) {
    if (inner.object) depth = std::max(depth, inner.object->depth + 1);
    if (depth > MAX_DEPTH) raise("values nested more than %d deep", MAX_DEPTH);
}
Value::Value(Kind k, Items items) : kind(k) {
    auto s = std::make_shared<Sequence>();
    for (auto& item : items) s->contain(item);
    s->items = std::move(items);
    object = std::move(s);
}
const std::string& Value::text() const { return static_cast<Text&>(*object).text; }
const Items& Value::items() const { return static_cast<Sequence&>(*object).items; }

Value range_of(int64_t from, int64_t to, int64_t step) {
    auto range = std::make_shared<Range>();
    range->from = from;
    range->to = to;
    range->step = step;
    for (int64_t i = from; step > 0 ? i < to : i > to;) {
        if (range->items.size() >= 100'000) raise("a range of more than 100000 items");    // like jinja2's sandbox
        range->items.push_back(i);
        if (__builtin_add_overflow(i, step, &i)) break;
    }
    return Value(Kind::range, range);
}
Value undefined(std::string name) {
    Value v(std::move(name));
    v.kind = Kind::undefined;
    return v;
}
const char* type_name(const Value& v) {
    static const char* const NAMES[] = {"Undefined", "Undefined",   "NoneType",   "bool",  "int",
                                        "float",     "str",         "list",       "tuple", "range",
                                        "dict_keys", "dict_values", "dict_items", "dict",  "generator",
                                        "Namespace", "function",    "LoopContext"};
    return NAMES[size_t(v.kind)];
}
bool truth(const Value& v) {
    if (v.is_int()) return v.integer != 0;
    if (v.is(Kind::real)) return v.real != 0;
    if (v.is(Kind::string)) return !v.text().empty();
    if (v.is_sequence() || v.is(Kind::dict)) return !v.items().empty();
    return v.kind > Kind::none;
}
void check_defined(const Value& v) {
    if (v.is(Kind::undefined)) raise("'%s' is undefined", v.text().c_str());
}

// ---- containers ---------------------------------------------------------------------------------

Value iterated(const Value& v, Meter& meter) {
    if (v.is_sequence()) return v;
    switch (v.kind) {
        case Kind::undefined: return Value(Kind::list, {});
        case Kind::generator: return Value(Kind::list, std::exchange(static_cast<Sequence&>(*v.object).items, {}));
        case Kind::string: {
            meter.charge(4 * int64_t(v.text().size()));
            Items characters;
            for (char32_t c : to_utf32(v.text())) characters.push_back(to_utf8({&c, 1}));
            return Value(Kind::list, std::move(characters));
        }
        case Kind::dict: {
            meter.charge(int64_t(v.items().size()));
            Items keys;
            for (size_t i = 0; i < v.items().size(); i += 2) keys.push_back(v.items()[i]);
            return Value(Kind::list, std::move(keys));
        }
        default: raise("'%s' object is not iterable", type_name(v));
    }
}
namespace {
bool is_set(const Value& v) { return v.is(Kind::keys) || v.is(Kind::entries); }
void check_hashable(const Value& key) {
    if (key.is(Kind::list) || key.is(Kind::dict) || is_set(key)) raise("unhashable type: '%s'", type_name(key));
}
}    // namespace

const Value* find(const Value& dict, const Value& key, Meter& meter) {
    check_hashable(key);
    const Items& items = dict.items();
    for (size_t i = 0; i < items.size(); i += 2) {
        if (i % 16 == 14) meter.charge();
        if (equal(items[i], key, meter)) return &items[i + 1];
    }
    return nullptr;
}
void put(Items& dict, const Value& key, const Value& value, Meter& meter) {
    check_hashable(key);
    meter.charge(int64_t(dict.size() / 16) + 1);
    for (size_t i = 0; i < dict.size(); i += 2)
        if (equal(dict[i], key, meter)) return void(dict[i + 1] = value);
    dict.push_back(key);
    dict.push_back(value);
}
Value pairs(const Value& dict) {
    Items all;
    for (size_t i = 0; i < dict.items().size(); i += 2)
        all.push_back(Value(Kind::tuple, {dict.items()[i], dict.items()[i + 1]}));
    return Value(Kind::list, std::move(all));
}
void assign(const Value& space, const std::string& name, const Value& value, Meter& meter) {
    if (!space.is(Kind::space)) raise("cannot assign attribute '%s': not a namespace", name.c_str());
    if (name.starts_with('_')) raise("a namespace's attribute may not begin with _: %s", name.c_str());
    Items items = std::move(static_cast<Sequence&>(*space.object).items);
    put(items, name, value, meter);
    Value checked(Kind::space, std::move(items));
    static_cast<Sequence&>(*space.object) = std::move(static_cast<Sequence&>(*checked.object));
}
bool contains(const Value& container, const Value& item, Meter& meter) {
    if (container.is(Kind::string)) {
        if (!item.is(Kind::string)) raise("'in <string>' requires string as left operand, not %s", type_name(item));
        meter.charge_text(container.text().size());
        return container.text().find(item.text()) != std::string::npos;
    }
    if (container.is(Kind::dict)) return find(container, item, meter) != nullptr;
    if (container.is(Kind::keys)) check_hashable(item);
    const Value all = iterated(container, meter);
    for (auto& one : all.items())
        if (meter.charge(), equal(one, item, meter)) return true;
    return false;
}

// ---- comparison ---------------------------------------------------------------------------------

bool equal(const Value& a, const Value& b, Meter& meter, int depth) {
    if (depth > MAX_DEPTH) raise("values nested more than %d deep", MAX_DEPTH);
    if (a.is_int() && b.is_int()) return a.integer == b.integer;
    if (a.is_number() && b.is_number()) return a.number() == b.number();
    if (is_set(a) && is_set(b)) {
        if (a.items().size() != b.items().size()) return false;
        for (auto& one : a.items())
            if (!contains(b, one, meter)) return false;
        return true;
    }
    if (a.kind != b.kind) return false;
    switch (a.kind) {
        case Kind::undefined:
        case Kind::none: return true;
        case Kind::string:
            if (a.text().size() == b.text().size()) meter.charge_text(a.text().size());
            return a.text() == b.text();
        case Kind::list:
        case Kind::tuple:
        case Kind::range:
            if (a.items().size() != b.items().size()) return false;
            for (size_t i = 0; i < a.items().size(); i++)
                if (meter.charge(), !equal(a.items()[i], b.items()[i], meter, depth + 1)) return false;
            return true;
        case Kind::dict:
            if (a.items().size() != b.items().size()) return false;
            for (size_t i = 0; i < a.items().size(); i += 2) {
                const Value* other = find(b, a.items()[i], meter);
                if (meter.charge(), !other || !equal(a.items()[i + 1], *other, meter, depth + 1)) return false;
            }
            return true;
        default: return a.object == b.object;
    }
}
int order(const Value& a, const Value& b, Meter& meter, int depth) {
    meter.charge();
    if (depth > MAX_DEPTH) raise("values nested more than %d deep", MAX_DEPTH);
    auto three_way = [](auto x, auto y) { return x < y ? -1 : x > y; };
    if (a.is_int() && b.is_int()) return three_way(a.integer, b.integer);
    if (a.is_number() && b.is_number()) return three_way(a.number(), b.number());
    if (a.kind == b.kind && a.is(Kind::string)) {
        meter.charge_text(std::min(a.text().size(), b.text().size()));
        return a.text().compare(b.text());    // UTF-8 bytes sort like code points
    }
    if (a.kind != b.kind || !(a.is(Kind::list) || a.is(Kind::tuple)))
        raise("'<' not supported between '%s' and '%s'", type_name(a), type_name(b));
    for (size_t i = 0; i < std::min(a.items().size(), b.items().size()); i++)
        if (meter.charge(), !equal(a.items()[i], b.items()[i], meter, depth + 1))
            return order(a.items()[i], b.items()[i], meter, depth + 1);
    return three_way(a.items().size(), b.items().size());
}
bool compare(std::string_view op, const Value& a, const Value& b, Meter& meter) {
    if (op == "==" || op == "!=") return equal(a, b, meter) == (op == "==");
    if (op == "in" || op == "not in") return contains(b, a, meter) == (op == "in");
    check_defined(a);
    check_defined(b);
    const int o = order(a, b, meter);
    return op == "<" ? o < 0 : op == "<=" ? o <= 0 : op == ">" ? o > 0 : o >= 0;
}

// ---- arithmetic ---------------------------------------------------------------------------------

namespace {
Value whole(std::string_view op, int64_t a, int64_t b) {
    int64_t r = 0;
    bool over = false;
    if (op == "+") over = __builtin_add_overflow(a, b, &r);
    else if (op == "-") over = __builtin_sub_overflow(a, b, &r);
    else if (op == "*") over = __builtin_mul_overflow(a, b, &r);
    else if (op == "**") {
        if (b < 0 && a == 0) raise("division by zero");
        if (b < 0) return std::pow(double(a), double(b));
        r = 1;
        if (a == 1 || a == -1) b &= 1;
        for (; b > 0 && !over && (a != 0 || r != 0); b--) over = __builtin_mul_overflow(r, a, &r);
    } else {
        if (b == 0) raise("division by zero");
        if (op == "/") return double(a) / double(b);
        if (b == -1) over = op == "//" && __builtin_sub_overflow(int64_t(0), a, &r);
        else {
            const int64_t floor = a / b - (a % b != 0 && (a % b < 0) != (b < 0));
            r = op == "//" ? floor : a - floor * b;
        }
    }
    if (over) raise("an integer beyond 64 bits");
    return r;
}
Value reals(std::string_view op, double a, double b) {
    if (op == "+") return a + b;
    if (op == "-") return a - b;
    if (op == "*") return a * b;
    if (op == "**") {
        if (a == 0 && b < 0) raise("division by zero");
        const double power = std::pow(a, b);
        if (std::isfinite(a) && std::isfinite(b) && !std::isfinite(power))
            raise("%g ** %g is %s", a, b, std::isnan(power) ? "no real number" : "too large");
        return power;
    }
    if (b == 0) raise("division by zero");
    if (op == "/") return a / b;
    double rest = std::fmod(a, b);
    if (rest == 0) rest = std::copysign(0.0, b);
    else if ((rest < 0) != (b < 0)) rest += b;
    if (op == "%") return rest;
    const double whole = std::floor((a - rest) / b + 0.5);
    return whole == 0 ? std::copysign(0.0, a / b) : whole;
}
Value repeated(const Value& v, int64_t times, Meter& meter) {
    times = std::max<int64_t>(times, 0);
    const size_t size = v.is(Kind::string) ? v.text().size() : v.items().size();
    int64_t total = 0;
    if (!mul_checked(int64_t(size), times, &total)) raise("a result too large");
    meter.charge(v.is(Kind::string) ? total / 16 + times / 16 : total);
    std::string text;
    Items items;
    for (int64_t i = 0; size > 0 && i < times; i++)
        if (v.is(Kind::string)) text += v.text();
        else items.insert(items.end(), v.items().begin(), v.items().end());
    return v.is(Kind::string) ? Value(text) : Value(v.kind, std::move(items));
}
}    // namespace

Value arithmetic(std::string_view op, const Value& a, const Value& b, Meter& meter) {
    auto is_sequence = [](const Value& v) { return v.is(Kind::string) || v.is(Kind::list) || v.is(Kind::tuple); };
    if (a.is_int() && b.is_int()) return whole(op, a.integer, b.integer);
    if (a.is_number() && b.is_number()) return reals(op, a.number(), b.number());
    if (op == "*" && is_sequence(a) && b.is_int()) return repeated(a, b.integer, meter);
    if (op == "*" && a.is_int() && is_sequence(b)) return repeated(b, a.integer, meter);
    if (op == "+" && a.kind == b.kind && a.is(Kind::string)) {
        const bool safe = a.safe || b.safe;
        auto part = [&](const Value& v) { return safe && !v.safe ? escaped_html(v.text()) : v.text(); };
        meter.charge_text(a.text().size() + b.text().size());
        Value sum(part(a) + part(b));
        sum.safe = safe;
        return sum;
    }
    if (op == "+" && a.kind == b.kind && is_sequence(a)) {
        meter.charge(int64_t(a.items().size() + b.items().size()));
        Items items = a.items();
        items.insert(items.end(), b.items().begin(), b.items().end());
        return Value(a.kind, std::move(items));
    }
    check_defined(a);
    check_defined(b);
    raise("unsupported operands for %s: '%s' and '%s'", std::string(op).c_str(), type_name(a), type_name(b));
}

Value from_json(const nlohmann::ordered_json& json, int depth) {
    if (depth > MAX_DEPTH) raise("values nested more than %d deep", MAX_DEPTH);
    Items items;
    switch (json.type()) {
        case nlohmann::ordered_json::value_t::boolean: return json.get<bool>();
        case nlohmann::ordered_json::value_t::number_integer: return json.get<int64_t>();
        case nlohmann::ordered_json::value_t::number_unsigned:
            if (json.get<uint64_t>() > uint64_t(INT64_MAX)) raise("an integer beyond 64 bits: %s", json.dump().c_str());
            return json.get<int64_t>();
        case nlohmann::ordered_json::value_t::number_float: return json.get<double>();
        case nlohmann::ordered_json::value_t::string: return json.get<std::string>();
        case nlohmann::ordered_json::value_t::array:
            for (auto& item : json) items.push_back(from_json(item, depth + 1));
            return Value(Kind::list, std::move(items));
        case nlohmann::ordered_json::value_t::object:
            for (auto& [key, item] : json.items()) items.push_back(key), items.push_back(from_json(item, depth + 1));
            return Value(Kind::dict, std::move(items));
        default: return Value(Kind::none);
    }
}
}    // namespace jinja

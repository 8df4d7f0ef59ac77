// filters.cpp - Jinja2's filters and tests, as far as chat templates are likely to use them.
#include <algorithm>
#include <cmath>

#include "infer/jinja/interpreter.h"

namespace jinja {
namespace {
Value marked(std::string text, bool safe) {
    Value v(std::move(text));
    v.safe = safe;
    return v;
}
Value generated(Items items) { return Value(Kind::generator, std::move(items)); }
// The key by which v is sorted: v or one of its attributes; lower case unless case_sensitive.
Value sort_key(Call& c, const Value& v, const Value& attribute, bool case_sensitive) {
    Value key = attribute.is(Kind::unset) || attribute.is(Kind::none) ? v : c.run.path(v, attribute);
    return key.is(Kind::string) && !case_sensitive ? Value(lower(key.text())) : key;
}
// Sorts items by the key at each item's index.
Items sorted(Call& c, const Items& items, const Items& keys, bool reverse) {
    std::vector<size_t> indices(items.size());
    for (size_t i = 0; i < indices.size(); i++) indices[i] = i;
    std::stable_sort(indices.begin(), indices.end(), [&](size_t a, size_t b) {
        return reverse ? order(keys[b], keys[a], c.meter()) < 0 : order(keys[a], keys[b], c.meter()) < 0;
    });
    Items all;
    for (size_t index : indices) all.push_back(items[index]);
    return all;
}
Value sort(Call& c) {    // reverse case_sensitive attribute
    const Value items = iterated(c.self, c.meter());
    Items keys;
    for (auto& item : items.items()) keys.push_back(sort_key(c, item, c.args[2], c.flag(1)));
    return Value(Kind::list, sorted(c, items.items(), keys, c.flag(0)));
}
Value dictsort(Call& c) {    // case_sensitive by reverse
    if (!c.self.is(Kind::dict)) raise("dictsort needs a mapping, found %s", type_name(c.self));
    const std::string by = c.text(1, "key");
    if (by != "key" && by != "value") raise("dictsort sorts by 'key' or 'value'");
    const Value all = pairs(c.self);
    Items keys;
    for (auto& pair : all.items()) keys.push_back(sort_key(c, pair.items()[by == "value"], {}, c.flag(0)));
    return Value(Kind::list, sorted(c, all.items(), keys, c.flag(2)));
}
Value unique(Call& c) {    // case_sensitive attribute
    const Value items = iterated(c.self, c.meter());
    Items some, seen;
    for (auto& item : items.items()) {
        const size_t before = seen.size();
        put(seen, sort_key(c, item, c.args[1], c.flag(0)), true, c.meter());
        if (seen.size() > before) some.push_back(item);
    }
    return generated(std::move(some));
}
template <int SIGN> Value extreme(Call& c) {    // case_sensitive attribute
    const Value items = iterated(c.self, c.meter());
    if (items.items().empty()) return undefined("the extreme of an empty sequence");
    const Value* best = nullptr;
    Value best_key;
    for (auto& item : items.items()) {
        Value key = sort_key(c, item, c.args[1], c.flag(0));
        if (!best || SIGN * order(key, best_key, c.meter()) > 0) best = &item, best_key = key;
    }
    return *best;
}
// Four filters: select, reject, selectattr, rejectattr. Arguments: [attribute,] [test, its
// arguments]
template <bool ATTRIBUTE, bool KEEP> Value select(Call& c) {
    if (ATTRIBUTE && c.args.empty()) raise("expected the name of an attribute");
    const Value items = truth(c.self) ? iterated(c.self, c.meter()) : Value(Kind::list, {});    // none counts as empty
    const size_t first = ATTRIBUTE ? 1 : 0;
    Items some;
    for (auto& item : items.items()) {
        const Value v = ATTRIBUTE ? c.run.path(item, c.args[0]) : item;
        bool holds = false;
        if (c.args.size() <= first) holds = truth(v);
        else if (!c.args[first].is(Kind::string)) raise("the name of a test must be a string");
        else holds = c.run.test(c.args[first].text(), v, {{c.args.begin() + long(first) + 1, c.args.end()}, c.named});
        if (c.meter().charge(), holds == KEEP) some.push_back(item);
    }
    return generated(std::move(some));
}
Value map(Call& c) {    // attribute=, default=; or a filter's name and arguments
    const Value items = truth(c.self) ? iterated(c.self, c.meter()) : Value(Kind::list, {});
    const Value attribute = c.named_or("attribute", {}), otherwise = c.named_or("default", {});
    if (attribute.is(Kind::unset) && (c.args.empty() || !c.args[0].is(Kind::string))) raise("map needs a filter");
    Items all;
    for (auto& item : items.items()) {
        c.meter().charge();
        if (attribute.is(Kind::unset))
            all.push_back(c.run.filter(c.args[0].text(), item, {{c.args.begin() + 1, c.args.end()}, c.named}));
        else all.push_back(c.run.path(item, attribute));
        if (all.back().is(Kind::undefined) && !otherwise.is(Kind::unset)) all.back() = otherwise;
    }
    return generated(std::move(all));
}
Value join(Call& c) {    // d attribute
    const Value items = iterated(c.self, c.meter());
    const std::string between = c.given(0) ? str(c.args[0], c.meter()) : "";
    std::string text;
    for (size_t i = 0; i < items.items().size(); i++) {
        const Value& item = items.items()[i];
        const std::string part = str(c.given(1) ? c.run.path(item, c.args[1]) : item, c.meter());
        c.meter().charge_text(part.size() + between.size());
        text += (i ? between : "") + part;
    }
    return text;
}
Value items_of(Call& c) {
    if (c.self.is(Kind::undefined)) return generated({});
    if (!c.self.is(Kind::dict)) raise("items needs a mapping, found %s", type_name(c.self));
    return generated(pairs(c.self).items());
}
Value size_of(Call& c) {
    if (c.self.is(Kind::undefined)) return int64_t(0);
    if (c.self.is(Kind::string)) return length(c.self.text());
    if (c.self.is(Kind::dict)) return int64_t(c.self.items().size() / 2);
    if (c.self.is_sequence()) return int64_t(c.self.items().size());
    raise("object of type '%s' has no len()", type_name(c.self));
}
Value tojson(Call& c) {    // ensure_ascii indent separators sort_keys
    JsonStyle style;
    style.ascii = c.flag(0);
    style.sorted = c.flag(3);
    if (c.given(1)) style.indent = std::max<int64_t>(c.integer(1, 0), 0), style.between = ",";
    if (c.given(2)) {
        const Value pair = iterated(c.args[2], c.meter());
        if (pair.items().size() != 2 || !pair.items()[0].is(Kind::string) || !pair.items()[1].is(Kind::string))
            raise("separators must be two strings");
        style.between = pair.items()[0].text();
        style.colon = pair.items()[1].text();
    }
    return to_json(c.self, style, c.meter());
}
Value indent(Call& c) {    // width first blank
    const std::string by = c.given(0) && c.args[0].is(Kind::string)
                               ? c.args[0].text()
                               : std::string(size_t(std::clamp<int64_t>(c.integer(0, 4), 0, 1000)), ' ');
    const std::vector<std::string> lines = split_lines(str(c.self, c.meter()) + "\n");
    std::string text = c.flag(1) ? by : "";
    for (size_t i = 0; i < lines.size(); i++) {
        c.meter().charge_text(lines[i].size() + by.size());
        if (i > 0) text += "\n" + (!lines[i].empty() || c.flag(2) ? by : "");
        text += lines[i];
    }
    return text;
}
// Converts numbers, "12" and "1.5"; returns the default on failure.
Value to_int(Call& c) {    // default base
    const int64_t base = c.integer(1, 10);
    check_defined(c.self);
    if (base < 0 || base > 36 || base == 1) raise("a base must be 0 or from 2 to 36");
    if (c.self.is_int()) return c.self.integer;
    double x = c.self.is(Kind::real) ? c.self.real : NAN;
    if (std::isinf(x)) raise("int: cannot convert an infinite number to an integer");
    if (c.self.is(Kind::string)) {
        if (const std::optional<int64_t> i = integer_of(c.self.text(), base)) return *i;
        x = real_of(c.self.text()).value_or(NAN);
    }
    if (x >= -0x1p63 && x < 0x1p63) return int64_t(x);
    if (std::isfinite(x)) raise("int: an integer beyond 64 bits: %g", x);
    return c.args[0].is(Kind::unset) ? Value(int64_t(0)) : c.args[0];
}
Value to_real(Call& c) {    // default
    if (c.self.is_number()) return c.self.number();
    check_defined(c.self);
    if (c.self.is(Kind::string))
        if (const std::optional<double> x = real_of(c.self.text())) return *x;
    return c.args[0].is(Kind::unset) ? Value(0.0) : c.args[0];
}
Value escape(Call& c) { return marked(c.self.safe ? c.self.text() : escaped_html(str(c.self, c.meter())), true); }
Value reversed(Call& c) {
    if (c.self.is(Kind::string)) {
        std::u32string s = to_utf32(c.self.text());
        return to_utf8(std::u32string(s.rbegin(), s.rend()));
    }
    const Value v = iterated(c.self, c.meter());
    return generated(Items(v.items().rbegin(), v.items().rend()));
}
template <bool FIRST> Value end_of(Call& c) {
    const Value v = iterated(c.self, c.meter());
    if (v.items().empty()) return undefined("an item of an empty sequence");
    return FIRST ? v.items().front() : v.items().back();
}
Value default_of(Call& c) {    // default_value boolean
    const bool missing = c.self.is(Kind::undefined) || (c.flag(1) && !truth(c.self));
    return !missing ? c.self : c.args[0].is(Kind::unset) ? Value("") : c.args[0];
}
Value replace(Call& c) {    // old new count
    return replaced(str(c.self, c.meter()), str(c.args[0], c.meter()), str(c.args[1], c.meter()), c.integer(2, -1),
                    c.meter());
}

Value absolute(Call& c) {
    if (!c.self.is_number()) raise("abs needs a number, found %s", type_name(c.self));
    if (c.self.is(Kind::real)) return std::fabs(c.self.real);
    return arithmetic("*", int64_t(c.self.integer < 0 ? -1 : 1), c.self, c.meter());
}
// Jinja's filter round. Its method common rounds to `precision` decimals, ties to even as in
// Python.
Value rounded(Call& c) {    // precision method
    const int64_t precision = c.integer(0, 0);
    const std::string method = c.text(1, "common");
    if (method != "common" && method != "ceil" && method != "floor") raise("method must be common, ceil or floor");
    if (!c.self.is_number()) raise("round needs a number, found %s", type_name(c.self));
    if (precision < 0 || precision > 300) raise("round: expected a precision from 0 to 300");
    if (method != "common") {
        const double scale = std::pow(10, double(precision)), x = c.self.number() * scale;
        return (method == "ceil" ? std::ceil(x) : std::floor(x)) / scale;
    }
    if (c.self.is_int()) return c.self.integer;
    return strtod(formatted("%.*f", int(precision), c.self.real).c_str(), nullptr);
}
Value sum(Call& c) {    // attribute start
    const Value items = iterated(c.self, c.meter());
    Value all = c.args[1].is(Kind::unset) ? Value(int64_t(0)) : c.args[1];
    for (auto& item : items.items())
        all = arithmetic("+", all, c.given(0) ? c.run.path(item, c.args[0]) : item, c.meter());
    return all;
}
// With LINES, Jinja's filter batch: lists of n items, the last one padded. Without LINES, Jinja's
// filter slice: n lists of nearly equal size, longer ones first.
template <bool LINES> Value in_parts(Call& c) {    // linecount or slices, fill_with
    const Value items = iterated(c.self, c.meter());
    const int64_t n = c.integer(0, 0), size = int64_t(items.items().size()), each = n > 0 ? size / n : 0;
    if (n <= 0) raise("expected a count of at least 1");
    c.meter().charge(n);
    Items all;
    for (int64_t at = 0, i = 0; LINES ? at < size : i < n; i++) {
        const int64_t count = LINES ? n : each + (i < size % n), last = std::min(at + count, size);
        Items one(items.items().begin() + at, items.items().begin() + last);
        const bool less = LINES ? last - at < n : i >= size % n;
        if (c.given(1) && less && LINES) one.resize(size_t(n), c.args[1]);
        if (c.given(1) && less && !LINES) one.push_back(c.args[1]);
        all.push_back(Value(Kind::list, std::move(one)));
        at = last;
    }
    return generated(std::move(all));
}
Value title(Call& c) {    // words begin after whitespace and - ( { [ <
    const std::u32string s = to_utf32(str(c.self, c.meter()));
    auto parts = [](char32_t x) { return is_space(x) || std::u32string(U"-({[<").find(x) != std::u32string::npos; };
    std::string text;
    for (size_t at = 0, end; at < s.size(); at = end) {
        for (end = at + 1; end < s.size() && parts(s[end]) == parts(s[at]);) end++;
        text += upper(to_utf8(s.substr(at, 1))) + lower(to_utf8(s.substr(at + 1, end - at - 1)));
    }
    return text;
}
Value truncate(Call& c) {    // length killwords end leeway
    const std::u32string s = to_utf32(str(c.self, c.meter())), end = to_utf32(c.text(2, "..."));
    const int64_t size = std::clamp<int64_t>(c.integer(0, 255), -1, INT32_MAX);
    const int64_t leeway = std::clamp<int64_t>(c.integer(3, 5), -1, INT32_MAX), left = size - int64_t(end.size());
    if (left < 0 || leeway < 0) raise("truncate: expected a length of at least that of its end, and a leeway from 0");
    if (int64_t(s.size()) <= size + leeway) return to_utf8(s);
    std::u32string text = s.substr(0, size_t(left));
    if (const size_t space = text.rfind(U' '); !c.flag(1) && space != text.npos) text.resize(space);
    return to_utf8(text + end);
}
Value method_of_text(Call& c, const char* name) {    // calls a method of str as a filter
    return c.run.method(str(c.self, c.meter()), name, c.args);
}

const Builtin FILTERS[] = {
    {"abs", "", 0, absolute},
    {"batch", "linecount fill_with", 1, in_parts<true>},
    {"capitalize", "", 0, [](Call& c) -> Value { return capitalized(str(c.self, c.meter())); }},
    {"center", "width", 0, [](Call& c) -> Value { return method_of_text(c, "center"); }},
    {"default", "default_value boolean", 0, default_of, {"d"}},
    {"dictsort", "case_sensitive by reverse", 0, dictsort},
    {"escape", "", 0, escape, {"e"}},
    {"first", "", 0, end_of<true>},
    {"float", "default", 0, to_real},
    {"forceescape", "", 0, [](Call& c) -> Value { return marked(escaped_html(str(c.self, c.meter())), true); }},
    {"indent", "width first blank", 0, indent},
    {"int", "default base", 0, to_int},
    {"items", "", 0, items_of},
    {"join", "d attribute", 0, join},
    {"last", "", 0, end_of<false>},
    {"length", "", 0, size_of, {"count"}},
    {"list", "", 0, [](Call& c) -> Value { return Value(Kind::list, iterated(c.self, c.meter()).items()); }},
    {"lower", "", 0, [](Call& c) -> Value { return lower(str(c.self, c.meter())); }},
    {"map", nullptr, 0, map},
    {"max", "case_sensitive attribute", 0, extreme<1>},
    {"min", "case_sensitive attribute", 0, extreme<-1>},
    {"reject", nullptr, 0, select<false, false>},
    {"rejectattr", nullptr, 0, select<true, false>},
    {"replace", "old new count", 2, replace},
    {"reverse", "", 0, reversed},
    {"round", "precision method", 0, rounded},
    {"safe", "", 0, [](Call& c) -> Value { return marked(str(c.self, c.meter()), true); }},
    {"select", nullptr, 0, select<false, true>},
    {"selectattr", nullptr, 0, select<true, true>},
    {"slice", "slices fill_with", 1, in_parts<false>},
    {"sort", "reverse case_sensitive attribute", 0, sort},
    {"string", "", 0, [](Call& c) -> Value { return marked(str(c.self, c.meter()), c.self.safe); }},
    {"sum", "attribute start", 0, sum},
    {"title", "", 0, title},
    {"tojson", "ensure_ascii indent separators sort_keys", 0, tojson},
    {"trim", "chars", 0,
     [](Call& c) -> Value { return marked(strip(str(c.self, c.meter()), c.args[0], true, true), c.self.safe); }},
    {"truncate", "length killwords end leeway", 0, truncate},
    {"unique", "case_sensitive attribute", 0, unique},
    {"upper", "", 0, [](Call& c) -> Value { return upper(str(c.self, c.meter())); }},
};

// ---- tests --------------------------------------------------------------------------------------

template <Kind... K> Value is_a(Call& c) { return ((c.self.kind == K) || ...); }
int64_t whole(const Value& v) {
    if (!v.is_int()) raise("expected an integer, found %s", type_name(v));
    return v.integer;
}
Value compared(Call& c) { return compare(c.name, c.self, c.args[0], c.meter()); }
Value same_as(Call& c) {
    const Value& other = c.args[0];
    if (c.self.kind != other.kind) return false;
    return c.self.is(Kind::string) || !c.self.object ? equal(c.self, other, c.meter()) : c.self.object == other.object;
}
const Builtin TESTS[] = {
    {"!=", "other", 1, compared, {"ne"}},
    {"<", "other", 1, compared, {"lt", "lessthan"}},
    {"<=", "other", 1, compared, {"le"}},
    {"==", "other", 1, compared, {"eq", "equalto"}},
    {">", "other", 1, compared, {"gt", "greaterthan"}},
    {">=", "other", 1, compared, {"ge"}},
    {"boolean", "", 0, is_a<Kind::boolean>},
    {"callable", "", 0, is_a<Kind::function>},
    {"defined", "", 0, [](Call& c) -> Value { return !c.self.is(Kind::undefined); }},
    {"divisibleby", "num", 1,
     [](Call& c) -> Value { return whole(arithmetic("%", c.self, c.args[0], c.meter())) == 0; }},
    {"escaped", "", 0, [](Call& c) -> Value { return c.self.safe; }},
    {"even", "", 0, [](Call& c) -> Value { return whole(c.self) % 2 == 0; }},
    {"false", "", 0, [](Call& c) -> Value { return c.self.is(Kind::boolean) && !c.self.integer; }},
    {"filter", "", 0, [](Call& c) -> Value { return c.self.is(Kind::string) && filter_named(c.self.text()); }},
    {"float", "", 0, is_a<Kind::real>},
    {"in", "seq", 1, compared},
    {"integer", "", 0, is_a<Kind::integer>},
    {"iterable", "", 0,
     is_a<Kind::undefined, Kind::string, Kind::list, Kind::tuple, Kind::dict, Kind::keys, Kind::values, Kind::entries,
          Kind::range, Kind::generator, Kind::loop>},
    {"lower", "", 0, [](Call& c) -> Value { return method_of_text(c, "islower"); }},
    {"mapping", "", 0, is_a<Kind::dict>},
    {"none", "", 0, is_a<Kind::none>},
    {"number", "", 0, is_a<Kind::boolean, Kind::integer, Kind::real>},
    {"odd", "", 0, [](Call& c) -> Value { return whole(c.self) % 2 != 0; }},
    {"sameas", "other", 1, same_as},
    {"sequence", "", 0, is_a<Kind::undefined, Kind::string, Kind::list, Kind::tuple, Kind::dict, Kind::range>},
    {"string", "", 0, is_a<Kind::string>},
    {"test", "", 0, [](Call& c) -> Value { return c.self.is(Kind::string) && test_named(c.self.text()); }},
    {"true", "", 0, [](Call& c) -> Value { return c.self.is(Kind::boolean) && c.self.integer; }},
    {"undefined", "", 0, is_a<Kind::undefined>},
    {"upper", "", 0, [](Call& c) -> Value { return method_of_text(c, "isupper"); }},
};
}    // namespace

const Builtin* filter_named(const std::string& name) { return named(FILTERS, name); }
const Builtin* test_named(const std::string& name) { return named(TESTS, name); }
}    // namespace jinja

// template_methods.cpp - the methods of Python's str, dict, list and tuple, and the functions that templates may call.
#include <wctype.h>

#include <algorithm>
#include <ctime>

#include "infer/template_run.h"

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
Value Call::named_or(const char* name, Value otherwise) const {
    for (auto& [key, value] : named)
        if (key == name) return value;
    return otherwise;
}
Value Run::path(Value v, const Value& path) {
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

// ---- letters --------------------------------------------------------------------------------------------------------

namespace {
// Unicode's simple cases, whatever the process's locale is.
std::string mapped(const std::string& text, wint_t (*change)(wint_t, locale_t)) {
    static const locale_t unicode = newlocale(LC_CTYPE_MASK, "C.UTF-8", locale_t());
    std::u32string s = wide(text);
    for (char32_t& c : s)
        if (unicode) c = char32_t(change(wint_t(c), unicode));
        else if (c < 0x80) c = char32_t(change == towupper_l ? toupper(int(c)) : tolower(int(c)));
    return narrow(s);
}
}   // namespace

std::string upper(const std::string& text) { return mapped(text, towupper_l); }
std::string lower(const std::string& text) { return mapped(text, towlower_l); }
std::string capitalized(const std::string& text) {
    const std::u32string s = wide(text);
    return s.empty() ? "" : upper(narrow(s.substr(0, 1))) + narrow(s.substr(1));
}
std::vector<std::string> split_lines(const std::string& text) {
    std::vector<std::string> lines;
    std::u32string line;
    const std::u32string s = wide(text);
    for (size_t i = 0; i < s.size(); i++) {
        const char32_t c = s[i];
        const bool ends = (c >= 10 && c <= 13) || (c >= 0x1C && c <= 0x1E) || c == 0x85 || c == 0x2028 || c == 0x2029;
        if (!ends) line += c;
        else lines.push_back(narrow(std::exchange(line, {})));
        if (c == '\r' && i + 1 < s.size() && s[i + 1] == '\n') i++;
    }
    if (!line.empty()) lines.push_back(narrow(line));
    return lines;
}
std::string replaced(const std::string& text, const std::string& from, const std::string& to, int64_t most,
                     Meter& meter) {
    std::string out;
    if (from.empty()) {    // before each character and at the end
        for (char32_t c : wide(text)) {
            if (most != 0) meter.charge_text(to.size()), out += to, most--;
            out += narrow({&c, 1});
        }
        return most != 0 ? out + to : out;
    }
    size_t at = 0;
    for (size_t found; most != 0 && (found = text.find(from, at)) != text.npos; at = found + from.size(), most--) {
        meter.charge_text(to.size());
        out.append(text, at, found - at) += to;
    }
    return out.append(text, at);
}

// ---- methods --------------------------------------------------------------------------------------------------------

namespace {
template <bool LEFT, bool RIGHT> Value stripped(Call& c) { return strip(c.self.text(), c.args[0], LEFT, RIGHT); }
template <bool AT_END> Value has_affix(Call& c) {
    const Items options = c.args[0].is(Kind::tuple) ? c.args[0].items() : Items{c.args[0]};
    for (auto& option : options) {
        if (!option.is(Kind::string)) raise("expected a string or a tuple of them, found %s", type_name(option));
        if (AT_END ? c.self.text().ends_with(option.text()) : c.self.text().starts_with(option.text())) return true;
    }
    return false;
}
template <bool AT_END> Value remove_affix(Call& c) {
    const std::string &s = c.self.text(), affix = c.text(0);
    if (!(AT_END ? s.ends_with(affix) : s.starts_with(affix))) return s;
    return AT_END ? s.substr(0, s.size() - affix.size()) : s.substr(affix.size());
}
// Words between white space; after `most` cuts the rest of the text, without the space at the cut.
Items words(const std::string& text, int64_t most, bool from_right) {
    const std::u32string s = wide(text);
    Items parts;
    const int64_t size = int64_t(s.size()), step = from_right ? -1 : 1;
    auto inside = [&](int64_t i) { return i >= 0 && i < size; };
    for (int64_t at = from_right ? size - 1 : 0;; most--) {
        while (inside(at) && is_space(s[size_t(at)])) at += step;
        if (!inside(at)) break;
        int64_t end = at;
        if (most == 0) end = from_right ? -1 : size;
        while (inside(end) && !is_space(s[size_t(end)])) end += step;
        const int64_t first = std::min(at, end + (from_right ? 1 : 0));
        parts.push_back(narrow(std::u32string_view(s).substr(size_t(first), size_t(std::abs(end - at)))));
        if (most == 0) break;
        at = end;
    }
    if (from_right) std::reverse(parts.begin(), parts.end());
    return parts;
}
template <bool FROM_RIGHT> Value split(Call& c) {    // sep maxsplit
    int64_t most = c.integer(1, -1);
    if (!c.given(0)) return Value(Kind::list, words(c.self.text(), most, FROM_RIGHT));
    const std::string &s = c.self.text(), sep = c.text(0);
    if (sep.empty()) raise("empty separator");
    Items parts;
    size_t from = 0, to = s.size();
    for (; most != 0; most--) {
        const size_t at = FROM_RIGHT ? (to < sep.size() ? s.npos : s.rfind(sep, to - sep.size())) : s.find(sep, from);
        if (at == s.npos) break;
        c.meter().charge(4);
        parts.push_back(FROM_RIGHT ? s.substr(at + sep.size(), to - at - sep.size()) : s.substr(from, at - from));
        (FROM_RIGHT ? to : from) = FROM_RIGHT ? at : at + sep.size();
    }
    parts.push_back(s.substr(from, to - from));
    if (FROM_RIGHT) std::reverse(parts.begin(), parts.end());
    return Value(Kind::list, std::move(parts));
}
template <bool FROM_RIGHT> Value partition(Call& c) {
    const std::string &s = c.self.text(), sep = c.text(0);
    if (sep.empty()) raise("empty separator");
    const size_t at = FROM_RIGHT ? s.rfind(sep) : s.find(sep);
    if (at == s.npos) return Value(Kind::tuple, FROM_RIGHT ? Items{"", "", s} : Items{s, "", ""});
    return Value(Kind::tuple, {s.substr(0, at), sep, s.substr(at + sep.size())});
}
template <bool FROM_RIGHT, bool REQUIRED> Value found_at(Call& c) {
    const std::string &s = c.self.text(), part = c.text(0);
    const size_t at = FROM_RIGHT ? s.rfind(part) : s.find(part);
    if (at != s.npos) return length(s.substr(0, at));
    if (REQUIRED) raise("substring not found");
    return int64_t(-1);
}
Value count_text(Call& c) {
    const std::string &s = c.self.text(), part = c.text(0);
    if (part.empty()) return length(s) + 1;
    int64_t n = 0;
    for (size_t at = 0; (at = s.find(part, at)) != s.npos; at += part.size()) n++;
    return n;
}
Value join(Call& c) {
    const Value items = iterated(c.args[0], c.meter());
    std::string text;
    for (size_t i = 0; i < items.items().size(); i++) {
        if (!items.items()[i].is(Kind::string)) raise("join needs strings, found %s", type_name(items.items()[i]));
        c.meter().charge_text(items.items()[i].text().size() + c.self.text().size());
        text += (i ? c.self.text() : "") + items.items()[i].text();
    }
    return text;
}
// "{} {0} {name}".format(...): plain fields, without conversions and specifications.
Value format(Call& c) {
    const std::string& s = c.self.text();
    std::string out;
    size_t next = 0;
    for (size_t at = 0; at < s.size(); at++) {
        if (s[at] != '{' && s[at] != '}') out += s[at];
        else if (at + 1 < s.size() && s[at + 1] == s[at]) out += s[at++];
        else if (s[at] == '}') raise("a } in a format that closes nothing");
        else {
            const size_t end = s.find('}', at);
            if (end == s.npos) raise("a { in a format that is not closed");
            const std::string name = s.substr(at + 1, end - at - 1);
            if (name.find_first_of("!:.[{") != name.npos) raise("format: expected a plain field: {%s}", name.c_str());
            const bool number = name.find_first_not_of("0123456789") == name.npos;
            const size_t i = name.empty() ? next++ : size_t(atoi(name.substr(0, 6).c_str()));
            const Value v = number && i < c.args.size() ? c.args[i] : number ? Value() : c.named_or(name.c_str(), {});
            if (v.is(Kind::unset)) raise("format has no value for {%s}", name.c_str());
            const std::string text = str(v, c.meter());
            c.meter().charge_text(text.size());
            out += text;
            at = end;
        }
    }
    return out;
}
Value lines(Call& c) {
    Items all;
    for (auto& line : split_lines(c.self.text())) all.push_back(line);
    return Value(Kind::list, std::move(all));
}

const Builtin STRING[] = {
    {"capitalize", "", 0, [](Call& c) -> Value { return capitalized(lower(c.self.text())); }},
    {"count", "sub", 1, count_text},
    {"endswith", "suffix", 1, has_affix<true>},
    {"find", "sub", 1, found_at<false, false>},
    {"format", nullptr, 0, format},
    {"index", "sub", 1, found_at<false, true>},
    {"isdigit", "", 0,
     [](Call& c) -> Value {
         return !c.self.text().empty() && c.self.text().find_first_not_of("0123456789") == std::string::npos;
     }},
    {"isspace", "", 0,
     [](Call& c) -> Value { return !c.self.text().empty() && strip(c.self.text(), {}, true, true).empty(); }},
    {"join", "iterable", 1, join},
    {"lower", "", 0, [](Call& c) -> Value { return lower(c.self.text()); }},
    {"lstrip", "chars", 0, stripped<true, false>},
    {"partition", "sep", 1, partition<false>},
    {"removeprefix", "prefix", 1, remove_affix<false>},
    {"removesuffix", "suffix", 1, remove_affix<true>},
    {"replace", "old new count", 2,
     [](Call& c) -> Value { return replaced(c.self.text(), c.text(0), c.text(1), c.integer(2, -1), c.meter()); }},
    {"rfind", "sub", 1, found_at<true, false>},
    {"rindex", "sub", 1, found_at<true, true>},
    {"rpartition", "sep", 1, partition<true>},
    {"rsplit", "sep maxsplit", 0, split<true>},
    {"rstrip", "chars", 0, stripped<false, true>},
    {"split", "sep maxsplit", 0, split<false>},
    {"splitlines", "", 0, lines},
    {"startswith", "prefix", 1, has_affix<false>},
    {"strip", "chars", 0, stripped<true, true>},
    {"upper", "", 0, [](Call& c) -> Value { return upper(c.self.text()); }},
};

// Every STEP-th thing of a dict from FIRST: its keys, its values.
template <size_t FIRST> Value every_other(Call& c) {
    Items some;
    for (size_t i = FIRST; i < c.self.items().size(); i += 2) some.push_back(c.self.items()[i]);
    return Value(Kind::list, std::move(some));
}
Value get(Call& c) {
    const Value* found = find(c.self, c.args[0], c.meter());
    return found ? *found : c.args[1].is(Kind::unset) ? Value(Kind::none) : c.args[1];
}
const Builtin DICT[] = {
    {"copy", "", 0, [](Call& c) -> Value { return c.self; }},
    {"get", "key default", 1, get},
    {"items", "", 0, [](Call& c) -> Value { return pairs(c.self); }},
    {"keys", "", 0, every_other<0>},
    {"values", "", 0, every_other<1>},
};

Value place(Call& c) {
    for (size_t i = 0; i < c.self.items().size(); i++)
        if (equal(c.self.items()[i], c.args[0], c.meter())) return int64_t(i);
    raise("the value is not in the list");
}
Value count_items(Call& c) {
    int64_t n = 0;
    for (auto& item : c.self.items()) n += equal(item, c.args[0], c.meter());
    return n;
}
const Builtin LIST[] = {{"count", "value", 1, count_items}, {"index", "value", 1, place}};

Value cycle(Call& c) {
    if (c.args.empty()) raise("cycle needs values");
    return c.args[static_cast<Loop&>(*c.self.held).at % c.args.size()];
}
const Builtin LOOP[] = {{"cycle", nullptr, 0, cycle}};

// ---- functions ------------------------------------------------------------------------------------------------------

Value range(Call& c) {    // start stop step
    const int64_t from = c.args[1].is(Kind::unset) ? 0 : c.integer(0, 0), step = c.integer(2, 1);
    const int64_t to = c.args[1].is(Kind::unset) ? c.integer(0, 0) : c.integer(1, 0);
    if (step == 0) raise("range() arg 3 must not be zero");
    Items all;
    for (int64_t i = from; step > 0 ? i < to : i > to;) {
        if (all.size() >= 100'000) raise("a range of more than 100000 items");    // as jinja2's sandbox
        all.push_back(i);
        if (__builtin_add_overflow(i, step, &i)) break;
    }
    return Value(Kind::list, std::move(all));
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
    {"namespace", nullptr, 0, new_namespace},
    {"raise_exception", "message", 1, [](Call& c) -> Value { raise("%s", str(c.args[0], c.meter()).c_str()); }},
    {"range", "start stop step", 1, range},
    {"strftime_now", "format", 1, strftime_now},
};
}   // namespace

const Builtin* method_named(Kind kind, const std::string& name) {
    switch (kind) {
        case Kind::string: return named(STRING, name);
        case Kind::dict: return named(DICT, name);
        case Kind::list: case Kind::tuple: return named(LIST, name);
        case Kind::loop: return named(LOOP, name);
        default: return nullptr;
    }
}
const Builtin* global_named(const std::string& name) { return named(GLOBALS, name); }
}   // namespace jinja

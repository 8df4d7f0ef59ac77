// strings.cpp - the methods of Python's str, except encode, maketrans, translate and format_map,
// which need bytes, translation tables and format specifications.
#include <utf8proc.h>

#include <algorithm>

#include "infer/jinja/interpreter.h"

namespace jinja {

// ---- letters ------------------------------------------------------------------------------------

namespace {
int category(char32_t c) { return utf8proc_category(utf8proc_int32_t(c)); }
bool is_upper(char32_t c) { return utf8proc_isupper(utf8proc_int32_t(c)) != 0; }
bool is_lower(char32_t c) { return utf8proc_islower(utf8proc_int32_t(c)) != 0; }
bool is_cased(char32_t c) { return is_upper(c) || is_lower(c) || category(c) == UTF8PROC_CATEGORY_LT; }

// A letter's case folding, possibly several letters (Unicode's SpecialCasing.txt), in any locale.
std::u32string folded(char32_t c) {
    utf8proc_int32_t letters[8] = {utf8proc_int32_t(c)};
    int boundary = 0;
    const auto n = utf8proc_decompose_char(letters[0], letters, 8, UTF8PROC_CASEFOLD, &boundary);
    return std::u32string(letters, letters + std::clamp<utf8proc_ssize_t>(n, 1, 8));
}
// The upper case of a letter. If the letter's case folding has several letters, the result is the
// upper case of all of them. The exceptions, U+0130 and U+1E9E, are upper case already.
std::u32string large(char32_t c) {
    std::u32string letters = folded(c);
    if (letters.size() < 2 || c == U'\u0130' || c == U'\u1E9E') letters = c;
    for (char32_t& x : letters) x = char32_t(utf8proc_toupper(utf8proc_int32_t(x)));
    return letters;
}
std::u32string large_first(char32_t c) {
    const auto simple = char32_t(utf8proc_totitle(utf8proc_int32_t(c)));
    std::u32string letters = folded(c);
    const bool titled = category(c) == UTF8PROC_CATEGORY_LT || c == U'\u0130';
    if ((simple != c && c != U'\u00DF') || letters.size() < 2 || titled) return {simple};
    if (c == U'\u0149') return large(c);
    if (c >= 0x1F80 && c < 0x2000 && letters.back() == 0x3B9) letters.back() = 0x345;    // the iota stays a subscript
    letters[0] = char32_t(utf8proc_totitle(utf8proc_int32_t(letters[0])));
    return letters;
}
// The lower case of s[i]. Sigma has a separate form at a word's end (Unicode's rule Final_Sigma).
std::u32string small(std::u32string_view s, size_t i) {
    if (s[i] == U'\u0130') return U"i\u0307";
    if (s[i] != U'\u03A3') return {char32_t(utf8proc_tolower(utf8proc_int32_t(s[i])))};
    auto passed_over = [](char32_t c) {
        const int k = category(c);
        return k == UTF8PROC_CATEGORY_MN || k == UTF8PROC_CATEGORY_ME || k == UTF8PROC_CATEGORY_CF ||
               k == UTF8PROC_CATEGORY_LM || k == UTF8PROC_CATEGORY_SK ||
               std::u32string_view(
                   U"'.:\u00B7\u0387\u055F\u05F4\u2018\u2019\u2024\u2027\uFE13\uFE52\uFE55\uFF07"
                   U"\uFF0E\uFF1A")
                       .find(c) != std::u32string_view::npos;
    };
    size_t before = i, after = i + 1;
    while (before > 0 && passed_over(s[before - 1])) before--;
    while (after < s.size() && passed_over(s[after])) after++;
    const bool ends = before > 0 && is_cased(s[before - 1]) && (after == s.size() || !is_cased(s[after]));
    return {ends ? U'\u03C2' : U'\u03C3'};
}
}    // namespace

std::string upper(const std::string& text) {
    std::u32string all;
    for (char32_t c : to_utf32(text)) all += large(c);
    return to_utf8(all);
}
std::string lower(const std::string& text) {
    const std::u32string s = to_utf32(text);
    std::u32string all;
    for (size_t i = 0; i < s.size(); i++) all += small(s, i);
    return to_utf8(all);
}
std::string capitalized(const std::string& text) {
    const std::u32string s = to_utf32(text);
    std::u32string all;
    for (size_t i = 0; i < s.size(); i++) all += i ? small(s, i) : large_first(s[0]);
    return to_utf8(all);
}
std::vector<std::string> split_lines(const std::string& text, bool keep_ends) {
    std::vector<std::string> lines;
    std::u32string line;
    const std::u32string s = to_utf32(text);
    for (size_t i = 0; i < s.size(); i++) {
        const char32_t c = s[i];
        const bool ends = (c >= 10 && c <= 13) || (c >= 0x1C && c <= 0x1E) || c == 0x85 || c == 0x2028 || c == 0x2029;
        if (!ends || keep_ends) line += c;
        if (c == '\r' && i + 1 < s.size() && s[i + 1] == '\n') {
            if (i++; keep_ends) line += '\n';
        }
        if (ends) lines.push_back(to_utf8(std::exchange(line, {})));
    }
    if (!line.empty()) lines.push_back(to_utf8(line));
    return lines;
}
std::string replaced(const std::string& text, const std::string& from, const std::string& to, int64_t most,
                     Meter& meter) {
    std::string out;
    if (from.empty()) {    // inserts before each character and at the end
        for (char32_t c : to_utf32(text)) {
            if (most != 0) meter.charge_text(to.size()), out += to, most--;
            out += to_utf8({&c, 1});
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

// ---- methods ------------------------------------------------------------------------------------

namespace {
template <bool LEFT, bool RIGHT> Value stripped(Call& c) { return strip(c.self.text(), c.args[0], LEFT, RIGHT); }
// The slice between the arguments `start` and `end`, in code points. `inside` is false if `start`
// lies after `end`.
struct Part {
    std::string text;
    int64_t from = 0;
    bool inside = true;
};
Part part(Call& c) {    // sub start end
    if (!c.given(1) && !c.given(2)) return {c.self.text()};
    const std::u32string s = to_utf32(c.self.text());
    const auto size = int64_t(s.size());
    auto bound = [&](size_t i, int64_t otherwise) {
        const int64_t x = c.integer(i, otherwise);
        return x < 0 ? std::max(x, -size) + size : x;
    };
    const int64_t from = bound(1, 0), to = std::min(bound(2, size), size);
    if (from > to) return {"", from, false};
    return {to_utf8(std::u32string_view(s).substr(size_t(from), size_t(to - from))), from, true};
}
template <bool AT_END> Value has_affix(Call& c) {    // prefix start end
    const Part p = part(c);
    const Items options = c.args[0].is(Kind::tuple) ? c.args[0].items() : Items{c.args[0]};
    for (auto& option : options) {
        if (!option.is(Kind::string)) raise("expected a string or a tuple of them, found %s", type_name(option));
        if (p.inside && (AT_END ? p.text.ends_with(option.text()) : p.text.starts_with(option.text()))) return true;
    }
    return false;
}
template <bool AT_END> Value remove_affix(Call& c) {
    const std::string &s = c.self.text(), affix = c.text(0);
    if (!(AT_END ? s.ends_with(affix) : s.starts_with(affix))) return s;
    return AT_END ? s.substr(0, s.size() - affix.size()) : s.substr(affix.size());
}
// Splits a text into words at whitespace. After `most` splits the rest of the text is one word,
// without the whitespace at the split.
Items words(const std::string& text, int64_t most, bool from_right) {
    const std::u32string s = to_utf32(text);
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
        parts.push_back(to_utf8(std::u32string_view(s).substr(size_t(first), size_t(std::abs(end - at)))));
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
template <bool FROM_RIGHT, bool REQUIRED> Value found_at(Call& c) {    // sub start end
    const Part p = part(c);
    const std::string sub = c.text(0);
    const size_t at = !p.inside ? sub.npos : FROM_RIGHT ? p.text.rfind(sub) : p.text.find(sub);
    if (at != sub.npos) return p.from + length(p.text.substr(0, at));
    if (REQUIRED) raise("substring not found");
    return int64_t(-1);
}
Value count_text(Call& c) {    // sub start end
    const Part p = part(c);
    const std::string sub = c.text(0);
    if (sub.empty()) return p.inside ? length(p.text) + 1 : 0;
    int64_t n = 0;
    for (size_t at = 0; (at = p.text.find(sub, at)) != sub.npos; at += sub.size()) n++;
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
// str.format: "{} {0} {name}".format(...), without conversions (!r) and format specifications
// (:>8).
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
            const Value v = number && i < c.args.size() ? c.args[i] : c.named_or(name.c_str(), {});
            if (v.is(Kind::unset)) raise("format has no value for {%s}", name.c_str());
            const std::string text = str(v, c.meter());
            c.meter().charge_text(text.size());
            out += text;
            at = end;
        }
    }
    return out;
}
Value lines(Call& c) {    // keepends
    Items all;
    for (auto& line : split_lines(c.self.text(), c.flag(0))) all.push_back(line);
    return Value(Kind::list, std::move(all));
}

// ---- letters' cases and kinds -------------------------------------------------------------------

bool is_decimal(char32_t c) { return category(c) == UTF8PROC_CATEGORY_ND; }
bool is_digit(char32_t c) {    // includes superscripts
    return is_decimal(c) || c == 0xB2 || c == 0xB3 || c == 0xB9 || c == 0x2070 || (c >= 0x2074 && c <= 0x2079) ||
           (c >= 0x2080 && c <= 0x2089);
}
bool is_numeric(char32_t c) { return category(c) >= UTF8PROC_CATEGORY_ND && category(c) <= UTF8PROC_CATEGORY_NO; }
bool is_alpha(char32_t c) { return category(c) >= UTF8PROC_CATEGORY_LU && category(c) <= UTF8PROC_CATEGORY_LO; }
bool is_alnum(char32_t c) { return is_alpha(c) || is_numeric(c); }
template <bool (*IS)(char32_t)> Value all_are(Call& c) {
    const std::u32string s = to_utf32(c.self.text());
    return !s.empty() && std::all_of(s.begin(), s.end(), IS);
}
// Whether the text has at least one cased letter, and IS holds for all of them.
template <bool (*IS)(char32_t)> Value cased(Call& c) {
    const std::u32string s = to_utf32(c.self.text());
    return std::any_of(s.begin(), s.end(), is_cased) &&
           std::all_of(s.begin(), s.end(), [](char32_t x) { return !is_cased(x) || IS(x); });
}
// Python's str.title; with SWAPPED, str.swapcase.
template <bool SWAPPED> std::string in_cases(const std::string& text) {
    const std::u32string s = to_utf32(text);
    std::u32string all;
    bool inside = false;
    for (size_t i = 0; i < s.size(); i++) {
        const bool lowers = SWAPPED ? is_upper(s[i]) : inside;
        all += lowers ? small(s, i) : !SWAPPED ? large_first(s[i]) : is_lower(s[i]) ? large(s[i]) : s.substr(i, 1);
        inside = is_cased(s[i]);
    }
    return to_utf8(all);
}
Value is_title(Call& c) {
    const std::u32string s = to_utf32(c.self.text());
    return std::any_of(s.begin(), s.end(), is_cased) && in_cases<false>(c.self.text()) == c.self.text();
}
Value casefold(Call& c) {
    utf8proc_uint8_t* out = nullptr;
    const std::string& s = c.self.text();
    const auto n = utf8proc_map(reinterpret_cast<const utf8proc_uint8_t*>(s.data()), utf8proc_ssize_t(s.size()), &out,
                                UTF8PROC_CASEFOLD);
    const std::string folded = n < 0 ? lower(s) : std::string(reinterpret_cast<char*>(out), size_t(n));
    free(out);
    return folded;
}

// ---- widths -------------------------------------------------------------------------------------

// Arguments: width, fillchar. Places the text left (SIDE < 0), centered (0) or right (> 0).
template <int SIDE> Value justified(Call& c) {
    const int64_t width = c.integer(0, 80), missing = std::max<int64_t>(width - length(c.self.text()), 0);
    const std::string fill = c.text(1, " ");
    if (length(fill) != 1) raise("the fill character must be exactly one character long");
    c.meter().charge_text(size_t(missing));
    c.meter().charge_text(size_t(missing) * fill.size());
    const int64_t left = SIDE < 0 ? 0 : SIDE > 0 ? missing : missing / 2 + (missing & width & 1);
    std::string text;
    for (int64_t i = 0; i < left; i++) text += fill;
    text += c.self.text();
    for (int64_t i = left; i < missing; i++) text += fill;
    return text;
}
Value zfill(Call& c) {    // width
    const int64_t missing = std::max<int64_t>(c.integer(0, 0) - length(c.self.text()), 0);
    c.meter().charge_text(size_t(missing));
    const bool sign = c.self.text().starts_with('-') || c.self.text().starts_with('+');
    return c.self.text().substr(0, sign) + std::string(size_t(missing), '0') + c.self.text().substr(sign);
}
Value expandtabs(Call& c) {    // tabsize
    const int64_t size = c.integer(0, 8);
    std::string out;
    int64_t column = 0;
    for (char32_t x : to_utf32(c.self.text())) {
        const int64_t blanks = size > 0 ? size - column % size : 0;
        if (x == '\t') c.meter().charge_text(size_t(blanks)), out.append(size_t(blanks), ' '), column += blanks;
        else out += to_utf8({&x, 1}), column = x == '\n' || x == '\r' ? 0 : column + 1;
    }
    return out;
}

const Builtin STRING[] = {
    {"capitalize", "", 0, [](Call& c) -> Value { return capitalized(c.self.text()); }},
    {"casefold", "", 0, casefold},
    {"center", "width fillchar", 1, justified<0>},
    {"count", "sub start end", 1, count_text},
    {"endswith", "suffix start end", 1, has_affix<true>},
    {"expandtabs", "tabsize", 0, expandtabs},
    {"find", "sub start end", 1, found_at<false, false>},
    {"format", nullptr, 0, format},
    {"index", "sub start end", 1, found_at<false, true>},
    {"isalnum", "", 0, all_are<is_alnum>},
    {"isalpha", "", 0, all_are<is_alpha>},
    {"isascii", "", 0,
     [](Call& c) -> Value { return std::all_of(c.self.text().begin(), c.self.text().end(), isascii); }},
    {"isdecimal", "", 0, all_are<is_decimal>},
    {"isdigit", "", 0, all_are<is_digit>},
    {"islower", "", 0, cased<is_lower>},
    {"isnumeric", "", 0, all_are<is_numeric>},
    {"isspace", "", 0, all_are<is_space>},
    {"istitle", "", 0, is_title},
    {"isupper", "", 0, cased<is_upper>},
    {"join", "iterable", 1, join},
    {"ljust", "width fillchar", 1, justified<-1>},
    {"lower", "", 0, [](Call& c) -> Value { return lower(c.self.text()); }},
    {"lstrip", "chars", 0, stripped<true, false>},
    {"partition", "sep", 1, partition<false>},
    {"removeprefix", "prefix", 1, remove_affix<false>},
    {"removesuffix", "suffix", 1, remove_affix<true>},
    {"replace", "old new count", 2,
     [](Call& c) -> Value { return replaced(c.self.text(), c.text(0), c.text(1), c.integer(2, -1), c.meter()); }},
    {"rfind", "sub start end", 1, found_at<true, false>},
    {"rindex", "sub start end", 1, found_at<true, true>},
    {"rjust", "width fillchar", 1, justified<1>},
    {"rpartition", "sep", 1, partition<true>},
    {"rsplit", "sep maxsplit", 0, split<true>},
    {"rstrip", "chars", 0, stripped<false, true>},
    {"split", "sep maxsplit", 0, split<false>},
    {"splitlines", "keepends", 0, lines},
    {"startswith", "prefix start end", 1, has_affix<false>},
    {"strip", "chars", 0, stripped<true, true>},
    {"swapcase", "", 0, [](Call& c) -> Value { return in_cases<true>(c.self.text()); }},
    {"title", "", 0, [](Call& c) -> Value { return in_cases<false>(c.self.text()); }},
    {"upper", "", 0, [](Call& c) -> Value { return upper(c.self.text()); }},
    {"zfill", "width", 1, zfill},
};
}    // namespace

const Builtin* string_method(const std::string& name) { return named(STRING, name); }
}    // namespace jinja

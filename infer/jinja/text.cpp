// text.cpp - conversions of values to text (str, repr, JSON), and of strings to code points.
#include <utf8proc.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <nlohmann/json.hpp>
#include <numeric>

#include "base/console.h"
#include "infer/jinja/value.h"

namespace jinja {

// ---- code points --------------------------------------------------------------------------------

namespace {
char32_t next_character(std::string_view text, size_t& at) {
    const auto first = static_cast<unsigned char>(text[at]);
    bool complete = true;
    const size_t n = first < 0x80 ? 1 : utf8_character(text.substr(at, 4), complete);
    if (!complete) return at++, 0xDC00 | first;    // as in Python's surrogateescape
    char32_t c = n == 1 ? first : first & (0x7F >> n);
    for (size_t i = 1; i < n; i++) c = c << 6 | (text[at + i] & 0x3F);
    at += n;
    return c;
}
}    // namespace

std::u32string to_utf32(std::string_view text) {
    std::u32string s;
    for (size_t at = 0; at < text.size();) s += next_character(text, at);
    return s;
}
std::string to_utf8(std::u32string_view text) {
    std::string s;
    for (char32_t c : text)
        if (c >= 0xDC80 && c <= 0xDCFF) s += char(c & 0xFF);
        else append_utf8(s, c);
    return s;
}
int64_t length(const std::string& text) {
    int64_t n = 0;
    for (size_t at = 0; at < text.size(); n++) next_character(text, at);
    return n;
}
bool is_space(char32_t c) {
    return (c >= 9 && c <= 13) || (c >= 0x1C && c <= 0x20) || c == 0x85 || c == 0xA0 || c == 0x1680 ||
           (c >= 0x2000 && c <= 0x200A) || c == 0x2028 || c == 0x2029 || c == 0x202F || c == 0x205F || c == 0x3000;
}
size_t after_spaces(std::string_view text, size_t at) {
    for (size_t next = at; at < text.size() && is_space(next_character(text, next)); at = next) {}
    return at;
}
namespace {
bool is_decimal(char32_t c) { return utf8proc_category(utf8proc_int32_t(c)) == UTF8PROC_CATEGORY_ND; }
// A number without surrounding spaces. Digits of any script become ASCII, and a _ between two
// digits is dropped. Returns an empty text if a character fits no number.
std::string plain_number(const std::string& text, bool letters) {
    const std::u32string s = to_utf32(strip(text));
    auto digit = [&](size_t i) {
        return i < s.size() && (is_decimal(s[i]) || (letters && s[i] < 0x80 && isalnum(int(s[i]))));
    };
    std::string plain;
    for (size_t i = 0; i < s.size(); i++) {
        if (s[i] == '_' && digit(i - 1) && digit(i + 1)) continue;
        char32_t zero = s[i];
        while (s[i] >= 0x80 && is_decimal(zero - 1)) zero--;    // each script's ten digits are consecutive
        if (s[i] < 0x80) plain += char(s[i]);
        else if (is_decimal(s[i])) plain += char('0' + (s[i] - zero) % 10);
        else return "";
    }
    return plain;
}
}    // namespace

std::optional<int64_t> integer_of(const std::string& text, int64_t base) {
    const std::string plain = plain_number(text, true);
    const bool minus = plain.starts_with('-');
    std::string digits = plain.substr(minus || plain.starts_with('+'));
    const char prefix = digits.size() > 2 && digits[0] == '0' ? char(digits[1] | 32) : '0';
    const int named = prefix == 'b' ? 2 : prefix == 'o' ? 8 : prefix == 'x' ? 16 : -1;
    if (named > 0 && (base == 0 || base == named)) base = named, digits.erase(0, 2);
    else if (base == 0 && digits.starts_with('0') && digits.find_first_not_of('0') != digits.npos) return {};
    if (digits.empty() || !isalnum(static_cast<unsigned char>(digits[0]))) return {};
    if (minus) digits.insert(0, "-");
    int64_t value = 0;
    const auto read = std::from_chars(digits.data(), digits.data() + digits.size(), value, base ? int(base) : 10);
    if (read.ptr != digits.data() + digits.size() || read.ec == std::errc::invalid_argument) return {};
    if (read.ec != std::errc()) raise("int: an integer beyond 64 bits: %s", plain.substr(0, 40).c_str());
    return value;
}
std::optional<double> real_of(const std::string& text) {
    const std::string plain = plain_number(text, false);
    std::string word = plain.substr(plain.starts_with('-') || plain.starts_with('+'));
    for (char& c : word) c = char(tolower(c));
    const bool named = word == "inf" || word == "infinity" || word == "nan";
    if (plain.empty() || (!named && plain.find_first_not_of("0123456789.eE+-") != plain.npos)) return {};
    char* end = nullptr;
    const double x = strtod(plain.c_str(), &end);
    return *end ? std::optional<double>() : x;
}
std::string strip(const std::string& text, const Value& characters, bool left, bool right) {
    const bool spaces = characters.is(Kind::unset) || characters.is(Kind::none);
    if (!spaces && !characters.is(Kind::string)) raise("strip arg must be None or str, not %s", type_name(characters));
    const std::u32string s = to_utf32(text), set = spaces ? std::u32string() : to_utf32(characters.text());
    auto goes = [&](char32_t c) { return spaces ? is_space(c) : set.find(c) != set.npos; };
    size_t from = 0, to = s.size();
    while (left && from < to && goes(s[from])) from++;
    while (right && from < to && goes(s[to - 1])) to--;
    return to_utf8(std::u32string_view(s).substr(from, to - from));
}
std::string escaped_html(const std::string& text) {
    std::string s;
    for (char c : text)
        if (c == '&') s += "&amp;";
        else if (c == '<') s += "&lt;";
        else if (c == '>') s += "&gt;";
        else if (c == '"') s += "&#34;";
        else if (c == '\'') s += "&#39;";
        else s += c;
    return s;
}

// ---- str and repr -------------------------------------------------------------------------------

namespace {
// The shortest digits that read back as x; with an exponent below 1e-4 and from 1e16 on.
std::string real_text(double x) {
    if (std::isnan(x)) return "nan";
    if (std::isinf(x)) return x < 0 ? "-inf" : "inf";
    char text[40];
    const double size = std::fabs(x);
    const bool exponent = size != 0 && (size < 1e-4 || size >= 1e16);
    const auto format = exponent ? std::chars_format::scientific : std::chars_format::fixed;
    std::string s(text, std::to_chars(text, text + sizeof text, x, format).ptr);
    return exponent || s.find('.') != s.npos ? s : s + ".0";
}
bool is_printable(char32_t c) {
    return !(c < 0x20 || (c >= 0x7F && c <= 0xA0) || c == 0xAD || (c != ' ' && is_space(c)) || c == 0xFEFF ||
             (c >= 0x200B && c <= 0x200F) || (c >= 0x202A && c <= 0x202E) || (c >= 0x2060 && c <= 0x206F) ||
             (c >= 0xD800 && c <= 0xF8FF));
}
std::string string_repr(const std::string& text) {
    const bool only_single = text.find('\'') != text.npos && text.find('"') == text.npos;
    const char32_t quote = only_single ? '"' : '\'';
    std::string s(1, char(quote));
    for (char32_t c : to_utf32(text)) {
        if (c == quote || c == '\\') s += '\\', s += char(c);
        else if (c == '\n') s += "\\n";
        else if (c == '\r') s += "\\r";
        else if (c == '\t') s += "\\t";
        else if (is_printable(c)) append_utf8(s, c);
        else s += c < 0x100 ? formatted("\\x%02x", unsigned(c)) : formatted("\\u%04x", unsigned(c));
    }
    return s + char(quote);
}
}    // namespace

std::string str(const Value& v, Meter& meter) {
    if (v.is(Kind::undefined)) return "";
    return v.is(Kind::string) ? v.text() : repr(v, meter);
}
std::string repr(const Value& v, Meter& meter, int depth) {
    meter.charge();
    if (depth > MAX_DEPTH) raise("values nested more than %d deep", MAX_DEPTH);
    switch (v.kind) {
        case Kind::undefined: return "Undefined";
        case Kind::none: return "None";
        case Kind::boolean: return v.integer ? "True" : "False";
        case Kind::integer: return std::to_string(v.integer);
        case Kind::real: return real_text(v.real);
        case Kind::string: return meter.charge_text(v.text().size()), string_repr(v.text());
        case Kind::range: {
            const auto& r = static_cast<Range&>(*v.object);
            const std::string ends = "range(" + std::to_string(r.from) + ", " + std::to_string(r.to);
            return ends + (r.step == 1 ? ")" : ", " + std::to_string(r.step) + ")");
        }
        case Kind::list:
        case Kind::tuple:
        case Kind::keys:
        case Kind::values:
        case Kind::entries: {
            std::string s;
            for (auto& item : v.items()) s += (s.empty() ? "" : ", ") + repr(item, meter, depth + 1);
            meter.charge_text(s.size());
            if (v.is(Kind::list)) return "[" + s + "]";
            if (v.is_view()) return std::string(type_name(v)) + "([" + s + "])";
            return "(" + s + (v.items().size() == 1 ? ",)" : ")");
        }
        case Kind::dict:
        case Kind::space: {
            std::string s;
            for (size_t i = 0; i < v.items().size(); i += 2)
                s += (i ? ", " : "") + repr(v.items()[i], meter, depth + 1) + ": " +
                     repr(v.items()[i + 1], meter, depth + 1);
            meter.charge_text(s.size());
            return v.is(Kind::dict) ? "{" + s + "}" : "<Namespace {" + s + "}>";
        }
        // Python would print an address for these.
        case Kind::generator: raise("a generator has no text: add |list or |join");
        case Kind::function: raise("a function has no text: call it with ()");
        default: raise("a loop has no text: expected loop.index or another of its attributes");
    }
}

// ---- JSON, in json.dumps' format ----------------------------------------------------------------

namespace {
std::string json_text(const std::string& text, bool ascii) {
    return nlohmann::json(text).dump(-1, ' ', ascii, nlohmann::json::error_handler_t::replace);
}
std::string json_key(const Value& key, const JsonStyle& style, Meter& meter) {
    if (key.is(Kind::string)) return json_text(key.text(), style.ascii);
    if (!key.is_number() && !key.is(Kind::none)) raise("keys of JSON must be strings, not %s", type_name(key));
    return "\"" + to_json(key, style, meter) + "\"";
}
}    // namespace

std::string to_json(const Value& v, const JsonStyle& style, Meter& meter, int depth) {
    meter.charge();
    switch (v.kind) {
        case Kind::none: return "null";
        case Kind::boolean: return v.integer ? "true" : "false";
        case Kind::integer: return std::to_string(v.integer);
        case Kind::real:
            return std::isnan(v.real)   ? "NaN"
                   : std::isinf(v.real) ? (v.real < 0 ? "-Infinity" : "Infinity")
                                        : real_text(v.real);
        case Kind::string: return meter.charge_text(v.text().size()), json_text(v.text(), style.ascii);
        case Kind::list:
        case Kind::tuple:
        case Kind::dict: break;
        default: raise("%s has no JSON", type_name(v));
    }
    const Items& items = v.items();
    const bool dict = v.is(Kind::dict);
    if (items.empty()) return dict ? "{}" : "[]";
    std::vector<size_t> indices(items.size() / (dict ? 2 : 1));
    std::iota(indices.begin(), indices.end(), 0);
    if (dict && style.sorted)
        std::stable_sort(indices.begin(), indices.end(),
                         [&](size_t a, size_t b) { return order(items[2 * a], items[2 * b], meter) < 0; });
    std::string newline;
    if (style.indent >= 0) {
        if (style.indent > 100) raise("expected an indent of at most 100");
        newline = "\n" + std::string(size_t(style.indent) * size_t(depth), ' ');
        meter.charge_text(newline.size() * indices.size());
    }
    const std::string step = style.indent > 0 ? std::string(size_t(style.indent), ' ') : "";
    std::string s;
    for (size_t i : indices) {
        s += s.empty() ? "" : style.between;
        s += newline + (newline.empty() ? "" : step);
        if (dict) s += json_key(items[2 * i], style, meter) + style.colon;
        s += to_json(items[dict ? 2 * i + 1 : i], style, meter, depth + 1);
    }
    s += newline;
    meter.charge_text(s.size());
    return (dict ? "{" : "[") + s + (dict ? "}" : "]");
}
}    // namespace jinja

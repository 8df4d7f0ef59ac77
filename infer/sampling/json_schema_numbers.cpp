// json_schema_numbers.cpp - ranges of integers and of decimals, written as GBNF digit by digit.
#include <algorithm>

#include "json_schema_parts.h"

std::string gbnf_quoted(const std::string& text) {
    std::string out = "\"";
    for (char c : text) {
        if (static_cast<unsigned char>(c) < ' ') out += formatted("\\x%02X", c);
        else if (c == '"' || c == '\\') out += std::string("\\") + c;
        else out += c;
    }
    return out + "\"";
}

namespace {
constexpr int64_t MOST = 9'999'999'999'999'999;
constexpr size_t DIGITS = 15;    // decimal digits that every double preserves

// GBNF for the integers from a to b, which have equally many digits.
std::string digits_between(const std::string& a, const std::string& b) {
    if (a == b) return gbnf_quoted(a);
    const size_t n = a.size() - 1;
    if (a[0] == b[0]) return gbnf_quoted(a.substr(0, 1)) + " " + digits_between(a.substr(1), b.substr(1));
    const bool whole_a = a.substr(1) == std::string(n, '0'), whole_b = b.substr(1) == std::string(n, '9');
    const char from = char(a[0] + !whole_a), to = char(b[0] - !whole_b);
    std::string all;
    if (from <= to) all = formatted(" | [%c-%c] [0-9]{%zu}", from, to, n);
    if (!whole_a) all += formatted(" | \"%c\" ", a[0]) + digits_between(a.substr(1), std::string(n, '9'));
    if (!whole_b) all += formatted(" | \"%c\" ", b[0]) + digits_between(std::string(n, '0'), b.substr(1));
    return "(" + all.substr(3) + ")";
}
// GBNF for the integers from `least` >= 0 to `most`; each alternative begins with |.
std::string between(int64_t least, int64_t most) {
    std::string all;
    for (int64_t first = 1, from = least; from <= most; first *= 10) {    // integers of equal length
        if (from >= first * 10) continue;
        const int64_t to = std::min(most, first * 10 - 1);
        all += " | " + digits_between(std::to_string(from), std::to_string(to));
        from = to + 1;
    }
    return all;
}

// A bound for the digits after the decimal point that are still to be written.
struct Limit {
    std::string digits;
    bool exclusive = false;
    std::string rest() const { return digits.empty() ? "" : digits.substr(1); }
};
// Returns GBNF for up to `n` digits (at least one if `some`) between the bounds `low` and `high`;
// high null: no upper bound. Each alternative begins with |.
std::string fractions(const Limit& low, const Limit* high, size_t n, bool some) {
    const bool free = low.digits.empty() && !low.exclusive;
    if (some && n == 0) return "";
    if (high && high->digits.empty())
        return high->exclusive || !free ? "" : formatted(" | \"0\"{%d,%zu}", int(some), n);
    if (free && !high) return formatted(" | [0-9]{%d,%zu}", int(some), n);
    std::string all = free && !some ? " | \"\"" : "";
    const char least = low.digits.empty() ? '0' : low.digits[0], most = high ? high->digits[0] : '9';
    if (n == 0 || least > most) return all;
    auto digit = [&](char c, const Limit& l, const Limit* h) {
        if (const std::string rest = fractions(l, h, n - 1, false); !rest.empty())
            all += formatted(" | \"%c\" (", c) + rest.substr(3) + ")";
    };
    const Limit low_rest{low.rest(), low.exclusive}, high_rest{high ? high->rest() : "", high && high->exclusive};
    const char from = char(least + !free),
               to = char(most - (high != nullptr));    // digits strictly between the bounds'
    if (from <= to) all += formatted(" | [%c-%c] [0-9]{0,%zu}", from, to, n - 1);
    if (!free) digit(least, low_rest, high && least == most ? &high_rest : nullptr);
    if (high && (free || most > least)) digit(most, {}, &high_rest);
    return all;
}
// GBNF for a whole part with the fractions that the bounds allow, beginning with |; "" if none.
std::string with_fraction(const std::string& whole, const Limit& low, const Limit* high) {
    const bool bare = low.digits.empty() && !low.exclusive && !(high && high->digits.empty() && high->exclusive);
    const std::string f = fractions(low, high, DIGITS - std::min(DIGITS, whole.size()), true);
    return (bare ? " | " + gbnf_quoted(whole) : "") +
           (f.empty() ? "" : " | " + gbnf_quoted(whole + ".") + " (" + f.substr(3) + ")");
}
// GBNF for unsigned decimals from `low` to `high`; each alternative begins with |.
std::string positive(const Decimal& low, const std::optional<Decimal>& high) {
    const int64_t first = std::stoll(low.whole), last = high ? std::stoll(high->whole) : MOST;
    const Limit from{low.fraction, low.exclusive}, to{high ? high->fraction : "", high && high->exclusive};
    if (first > last) return "";
    if (high && first == last) return with_fraction(low.whole, from, &to);
    std::string all = with_fraction(low.whole, from, nullptr);
    const int64_t before = high ? last - 1 : last;    // whole parts in between allow any fraction
    const size_t n = !high ? DIGITS : std::max(size_t(1), DIGITS - std::min(DIGITS, high->whole.size()));
    if (first < before)
        all += " | (" + between(first + 1, before).substr(3) + ")" + formatted(" (\".\" [0-9]{1,%zu})?", n);
    return high ? all + with_fraction(high->whole, {}, &to) : all;
}
bool is_zero(const Decimal& d) { return d.whole == "0" && d.fraction.empty(); }
}    // namespace

std::optional<Decimal> decimal(const nlohmann::ordered_json& number) {
    std::string text = number.dump();
    Decimal d;
    if (text[0] == '-') d.negative = true, text.erase(0, 1);
    int exponent = 0;
    if (const size_t e = text.find('e'); e != text.npos) exponent = atoi(text.c_str() + e + 1), text.resize(e);
    const size_t point = std::min(text.find('.'), text.size());
    d.whole = text.substr(0, point);
    d.fraction = point < text.size() ? text.substr(point + 1) : "";
    if (std::abs(exponent) > 2 * int(DIGITS)) return {};
    for (; exponent > 0; exponent--) {
        d.whole += d.fraction.empty() ? '0' : d.fraction[0];
        if (!d.fraction.empty()) d.fraction.erase(0, 1);
    }
    for (; exponent < 0; exponent++) {
        d.fraction.insert(0, 1, d.whole.empty() ? '0' : d.whole.back());
        if (!d.whole.empty()) d.whole.pop_back();
    }
    while (d.fraction.ends_with('0')) d.fraction.pop_back();
    d.whole.erase(0, d.whole.find_first_not_of('0'));
    if (d.whole.empty()) d.whole = "0";
    if (d.whole.size() + d.fraction.size() > DIGITS) return {};
    d.negative &= !is_zero(d);
    return d;
}

std::string decimals_between(const std::optional<Decimal>& least, const std::optional<Decimal>& most) {
    std::string all;
    if (!least || least->negative) {
        const bool below = most && (most->negative || (is_zero(*most) && most->exclusive));
        const Decimal low = below && most->negative ? *most : Decimal{false, "0", "", true};    // excludes -0
        if (const std::string body = positive(low, least); !body.empty()) all += " | \"-\" (" + body.substr(3) + ")";
    }
    if (!most || !most->negative) all += positive(least && !least->negative ? *least : Decimal{}, most);
    return all.empty() ? "" : all.substr(3);
}
std::string integers_between(int64_t least, int64_t most) {
    std::string all;
    if (least < 0) all = " | \"-\" (" + between(std::max<int64_t>(1, -most), -least).substr(3) + ")";
    if (most >= 0) all += between(std::max<int64_t>(0, least), most);
    return all.substr(3);
}

// grammar_parse.cpp - parses GBNF: names, literals, classes, groups and repetitions become rules.
#include <algorithm>
#include <cstring>
#include <map>
#include <utility>

#include "grammar_rules.h"

namespace {
using Kind = Grammar::Kind;
using Sequence = std::vector<Grammar::Element>;
constexpr int MOST_DEPTH = 200, MOST_TIMES = 100'000;
constexpr size_t MOST_ELEMENTS = 1 << 20, MOST_BYTES = 8 << 20;
constexpr uint32_t LAST = 0x10FFFF;

struct Range {
    uint32_t from, to;
};    // range of code points
struct Bytes {
    unsigned char from, to;
};

// Writes a range of code points as sequences of byte ranges. It is split where the length of UTF-8
// changes, around the surrogates, and where a trailing byte's range is not all of 80 to BF.
void byte_sequences(uint32_t from, uint32_t to, std::vector<std::vector<Bytes>>& out) {
    if (from > to) return;
    auto cut = [&](uint32_t last, uint32_t next) {
        byte_sequences(from, last, out);
        byte_sequences(next, to, out);
    };
    if (from < 0xE000 && to > 0xD7FF) return cut(0xD7FF, 0xE000);
    for (uint32_t last : {0x7Fu, 0x7FFu, 0xFFFFu})
        if (from <= last && to > last) return cut(last, last + 1);
    for (int bits = 6; bits <= 18 && to > 0x7F; bits += 6) {
        const uint32_t low = (1u << bits) - 1;
        if ((from & ~low) == (to & ~low)) continue;
        if (from & low) return cut(from | low, (from | low) + 1);
        if ((to & low) != low) return cut((to & ~low) - 1, to & ~low);
    }
    const int trailing = (to > 0x7F) + (to > 0x7FF) + (to > 0xFFFF);
    const unsigned lead[] = {0, 0xC0, 0xE0, 0xF0};
    std::vector<Bytes> sequence;
    for (int i = trailing; i >= 0; i--) {
        auto byte = [&](uint32_t x) {
            return static_cast<unsigned char>(i == trailing ? lead[trailing] | x >> 6 * i : 0x80 | (x >> 6 * i & 0x3F));
        };
        sequence.push_back({byte(from), byte(to)});
    }
    out.push_back(sequence);
}

class Parser {
  public:
    Parser(std::string_view grammar, const std::string& file) : text(grammar), name(file) {}
    Result<std::shared_ptr<const Grammar>> run();

  private:
    Status error(const std::string& what) const {
        const auto line = 1 + std::count(text.begin(), text.begin() + ptrdiff_t(std::min(at, text.size())), '\n');
        return fail(Exit::input, "%s:%lld: %s", name.c_str(), (long long)line, what.c_str());
    }
    std::string found() const {
        if (at >= text.size()) return ", found the end";
        return std::string(", found '") + (text[at] >= ' ' && text[at] < 127 ? text[at] : '?') + "'";
    }
    char peek() const { return at < text.size() ? text[at] : 0; }
    bool eat(std::string_view what) {
        if (!text.substr(at).starts_with(what)) return false;
        at += what.size();
        return true;
    }
    void skip_space();
    std::string_view word();
    bool begins_rule();
    Result<uint32_t> character(bool in_class);
    Result<uint32_t> hex(int digits);
    Status alternatives(int rule, int depth);
    Result<Sequence> sequence(int depth);
    Result<Sequence> item(int depth);
    Result<Sequence> literal();
    Result<Sequence> char_class();
    Result<Sequence> repeated(Sequence what);
    Result<Sequence> times(Sequence what, int least, int most);
    Result<int> number();
    Sequence characters(std::vector<Range> ranges, bool all_but);
    int bytes(const std::bitset<256>& set);
    int new_rule() { return g.rules.emplace_back(), int(g.rules.size()) - 1; }
    int rule_of(const std::string& rule);
    void add(int rule, const Sequence& alternative);
    Status check();

    std::string_view text;
    const std::string& name;
    size_t at = 0;
    Grammar g;
    std::map<std::string, int> named;
    std::vector<std::string> names;    // by rule; "": rule of an unnamed part
    std::map<std::string, int> set_of;
    int any = -1;    // rule for `.`
};

void Parser::skip_space() {
    for (; at < text.size(); at++) {
        if (text[at] == '#') at = std::min(text.find('\n', at), text.size() - 1);
        else if (!strchr(" \t\r\n", text[at]) || !text[at]) return;
    }
}
std::string_view Parser::word() {
    const size_t from = at;
    while (isalnum(static_cast<unsigned char>(peek())) || peek() == '-' || peek() == '_') at++;
    return text.substr(from, at - from);
}
bool Parser::begins_rule() {
    const size_t from = at;
    const bool is = !word().empty() && (skip_space(), text.substr(at).starts_with("::="));
    at = from;
    return is;
}
int Parser::rule_of(const std::string& rule) {
    const auto [known, fresh] = named.try_emplace(rule, int(g.rules.size()));
    if (fresh) names.resize(size_t(new_rule()) + 1), names.back() = rule;
    return known->second;
}
void Parser::add(int rule, const Sequence& alternative) {
    g.rules[size_t(rule)].push_back(int(g.elements.size()));
    g.elements.insert(g.elements.end(), alternative.begin(), alternative.end());
    g.elements.push_back({Kind::end});
}
int Parser::bytes(const std::bitset<256>& set) {
    const auto [known, fresh] = set_of.try_emplace(set.to_string(), int(g.sets.size()));
    if (fresh) g.sets.push_back(set);
    return known->second;
}

// ---- characters ---------------------------------------------------------------------------------

Result<uint32_t> Parser::hex(int digits) {
    uint32_t x = 0;
    for (int i = 0; i < digits; i++, at++) {
        if (!isxdigit(static_cast<unsigned char>(peek())))
            return error("expected " + std::to_string(digits) + " hexadecimal digits" + found());
        x = x * 16 + uint32_t(isdigit(static_cast<unsigned char>(peek())) ? peek() - '0' : (peek() | 32) - 'a' + 10);
    }
    if (x > LAST || (x >= 0xD800 && x < 0xE000)) return error("an escape that is no Unicode character");
    return x;
}
// Parses one character of a literal or a class, which may be escaped.
Result<uint32_t> Parser::character(bool in_class) {
    if (at >= text.size()) return error(in_class ? "a class without its ]" : "a literal without its \"");
    const auto byte = [&] { return uint32_t(static_cast<unsigned char>(peek())); };
    if (eat("\\")) {
        if (eat("x")) return hex(2);
        if (eat("u")) return hex(4);
        if (eat("U")) return hex(8);
        const char *from = "nrt\\\"'[]-^/", *to = "\n\r\t\\\"'[]-^/", *is = peek() ? strchr(from, peek()) : nullptr;
        if (!is) return error("expected n r t \\ \" [ ] - ^ x12 u1234 or U00012345 after \\" + found());
        at++;
        return uint32_t(static_cast<unsigned char>(to[is - from]));
    }
    uint32_t x = byte();
    const int more = x < 0x80 ? 0 : x < 0xC2 ? -1 : x < 0xE0 ? 1 : x < 0xF0 ? 2 : x < 0xF5 ? 3 : -1;
    const uint32_t least[] = {0, 0x80, 0x800, 0x10000};
    x &= more > 0 ? 0x3Fu >> more : 0x7Fu;
    at++;
    for (int i = 0; i < more; i++, at++) {
        if ((byte() & 0xC0) != 0x80) return error("bytes that are not UTF-8");
        x = x << 6 | (byte() & 0x3F);
    }
    if (more < 0 || x < least[more] || x > LAST || (x >= 0xD800 && x < 0xE000))
        return error("bytes that are not UTF-8");
    return x;
}
// Adds a character class: one element if all characters are ASCII, else a rule of byte sequences.
Sequence Parser::characters(std::vector<Range> ranges, bool all_but) {
    std::sort(ranges.begin(), ranges.end(), [](const Range& a, const Range& b) { return a.from < b.from; });
    std::vector<Range> apart;
    for (const Range& r : ranges)
        if (!apart.empty() && r.from <= apart.back().to) apart.back().to = std::max(apart.back().to, r.to);
        else apart.push_back(r);
    if (all_but) {
        std::vector<Range> others;
        uint32_t from = 0;
        for (const Range& r : apart) {
            if (r.from > from) others.push_back({from, r.from - 1});
            from = r.to + 1;
        }
        if (from <= LAST) others.push_back({from, LAST});
        apart = others;
    }
    std::vector<std::vector<Bytes>> all;
    for (const Range& r : apart) byte_sequences(r.from, r.to, all);
    auto set_of_bytes = [](const Bytes& b, std::bitset<256> set = {}) {
        for (int x = b.from; x <= b.to; x++) set.set(size_t(x));
        return set;
    };
    std::bitset<256> single;
    for (auto& sequence : all)
        if (sequence.size() == 1) single = set_of_bytes(sequence[0], single);
    const bool ascii = std::all_of(all.begin(), all.end(), [](auto& s) { return s.size() == 1; });
    if (ascii) return {{Kind::bytes, bytes(single)}};
    const int rule = new_rule();
    if (single.any()) add(rule, {{Kind::bytes, bytes(single)}});
    for (auto& sequence : all) {
        Sequence s;
        for (const Bytes& b : sequence) s.push_back({Kind::bytes, bytes(set_of_bytes(b))});
        if (s.size() > 1) add(rule, s);
    }
    return {{Kind::rule, rule}};
}
Result<Sequence> Parser::literal() {
    Sequence all;
    while (!eat("\"")) {
        const uint32_t x = TRY(character(false));
        std::vector<std::vector<Bytes>> one;
        byte_sequences(x, x, one);
        for (const Bytes& b : one[0]) all.push_back({Kind::bytes, bytes(std::bitset<256>().set(b.from))});
    }
    return all;
}
Result<Sequence> Parser::char_class() {
    const bool all_but = eat("^");
    std::vector<Range> ranges;
    while (!eat("]")) {
        Range r;
        r.from = r.to = TRY(character(true));
        if (peek() == '-' && at + 1 < text.size() && text[at + 1] != ']') {
            at++;
            r.to = TRY(character(true));
        }
        if (r.to < r.from) return error("a range of characters from a larger to a smaller one");
        ranges.push_back(r);
    }
    Sequence all = characters(ranges, all_but);
    if (all[0].kind == Kind::bytes && g.sets[size_t(all[0].value)].none())
        return error("a class without characters: nothing can stand there");
    return all;
}

// ---- rules --------------------------------------------------------------------------------------

Result<Sequence> Parser::item(int depth) {
    if (eat("\"")) return literal();
    if (eat("[")) return char_class();
    if (eat(".")) {
        if (any < 0) any = characters({}, true)[0].value;
        return Sequence{{Kind::rule, any}};
    }
    if (eat("(")) {
        if (depth >= MOST_DEPTH) return error("groups more than " + std::to_string(MOST_DEPTH) + " deep");
        const int rule = new_rule();
        TRY(alternatives(rule, depth + 1));
        skip_space();
        if (!eat(")")) return error("expected )" + found());
        return Sequence{{Kind::rule, rule}};
    }
    const std::string_view rule = word();
    if (rule.empty()) return error("expected a literal, a class, a name or (" + found());
    return Sequence{{Kind::rule, rule_of(std::string(rule))}};
}
Result<int> Parser::number() {
    int n = 0;
    if (!isdigit(static_cast<unsigned char>(peek()))) return error("expected a number" + found());
    for (; isdigit(static_cast<unsigned char>(peek())); at++) {
        n = n * 10 + peek() - '0';
        if (n > MOST_TIMES) return error("a repetition of more than " + std::to_string(MOST_TIMES) + " times");
    }
    return n;
}
Result<Sequence> Parser::repeated(Sequence what) {
    for (;;) {
        skip_space();
        int least = 0, most = -1;
        if (eat("?")) {
            most = 1;
        } else if (eat("+")) {
            least = 1;
        } else if (eat("{")) {
            skip_space();
            least = most = TRY(number());
            skip_space();
            if (eat(",")) {
                skip_space();
                most = peek() == '}' ? -1 : TRY(number());
                skip_space();
            }
            if (!eat("}")) return error("expected }" + found());
            if (most >= 0 && most < least) return error("a repetition of at least more times than at most");
        } else if (!eat("*")) {
            return what;
        }
        what = TRY(times(std::move(what), least, most));
    }
}
// Repeats `what` at least `least` and at most `most` times, by nested rules. most -1: unbounded.
Result<Sequence> Parser::times(Sequence what, int least, int most) {
    if (g.elements.size() + size_t(least) + size_t(std::max(0, most - least)) * 4 + what.size() > MOST_ELEMENTS)
        return error("a grammar of more than " + std::to_string(MOST_ELEMENTS) + " elements");
    if (what.size() != 1) {
        const int rule = new_rule();
        add(rule, what);
        what = {{Kind::rule, rule}};
    }
    int rest = -1;
    if (most < 0) {
        rest = new_rule();
        add(rest, {what[0], {Kind::rule, rest}});
        add(rest, {});
    }
    for (int i = least; i < most; i++) {
        const int rule = new_rule();
        Sequence more = what;
        if (rest >= 0) more.push_back({Kind::rule, rest});
        add(rule, more);
        add(rule, {});
        rest = rule;
    }
    Sequence all(size_t(least), what[0]);
    if (rest >= 0) all.push_back({Kind::rule, rest});
    return all;
}
Result<Sequence> Parser::sequence(int depth) {
    Sequence all;
    for (;;) {
        skip_space();
        if (at >= text.size() || peek() == '|' || peek() == ')' || (depth == 0 && begins_rule())) return all;
        const Sequence more = TRY(repeated(TRY(item(depth))));
        all.insert(all.end(), more.begin(), more.end());
        if (g.elements.size() + all.size() > MOST_ELEMENTS)
            return error("a grammar of more than " + std::to_string(MOST_ELEMENTS) + " elements");
    }
}
Status Parser::alternatives(int rule, int depth) {
    do add(rule, TRY(sequence(depth)));
    while (eat("|"));
    return {};
}

Result<std::shared_ptr<const Grammar>> Parser::run() {
    if (text.size() > MOST_BYTES) return error("a grammar of more than 8 MiB");
    for (skip_space(); at < text.size(); skip_space()) {
        const std::string rule(word());
        if (rule.empty()) return error("expected a rule's name" + found());
        skip_space();
        if (!eat("::=")) return error("expected ::= after " + rule + found());
        const int number = rule_of(rule);
        if (!g.rules[size_t(number)].empty()) return error("rule " + rule + " is there twice");
        TRY(alternatives(number, 0));
    }
    TRY(check());
    auto whole = std::make_shared<const Grammar>(std::move(g));
    if (GrammarMachine(whole).start() == GrammarMachine::DEAD)
        return fail(Exit::input, "%s: root allows no text, or can begin in more than %d ways", name.c_str(),
                    GrammarMachine::MOST_STEPS);
    return whole;
}

Status Parser::check() {
    const auto root = named.find("root");
    if (root == named.end())
        return fail(Exit::input, "%s: there is no rule root, which a text begins with", name.c_str());
    g.root = root->second;
    for (auto& [rule, number] : named)
        if (g.rules[size_t(number)].empty())
            return fail(Exit::input, "%s: there is no rule %s, which others name", name.c_str(), rule.c_str());
    names.resize(g.rules.size());
    if (const int rule = left_recursive(g); rule >= 0)
        return fail(Exit::input, "%s: rule %s begins with itself (left recursion); write it as a repetition, x*",
                    name.c_str(), names[size_t(rule)].empty() ? "of a group" : names[size_t(rule)].c_str());
    const std::vector<char> ends = derivable(g, true);
    if (!ends[size_t(g.root)])
        return fail(Exit::input,
                    "%s: root allows no text that ends: each way from it comes to a rule that needs itself again (in a "
                    "schema, a required property that refers back); give it an alternative that ends",
                    name.c_str());
    for (std::vector<int>& rule : g.rules)    // drops alternatives that derive no finite text
        std::erase_if(rule, [&](int i) {
            while (g.elements[size_t(i)].kind == Kind::bytes ||
                   (g.elements[size_t(i)].kind == Kind::rule && ends[size_t(g.elements[size_t(i)].value)]))
                i++;
            return g.elements[size_t(i)].kind != Kind::end;
        });
    return {};
}
}    // namespace

Result<std::shared_ptr<const Grammar>> Grammar::parse(std::string_view text, const std::string& name) {
    return Parser(text, name).run();
}

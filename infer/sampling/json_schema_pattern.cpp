// json_schema_pattern.cpp - ECMA-262 regular expressions as GBNF: a syntax tree, then an automaton
// (Thompson 1968), then a rule for each pair of a state and a length of the text so far.
#include <algorithm>
#include <cstring>
#include <map>
#include <vector>

#include "base/console.h"
#include "json_schema_parts.h"

namespace {
constexpr int MOST_DEPTH = 50, MOST_TIMES = 1000;
constexpr size_t MOST_NODES = 20'000, MOST_RULES = 100'000;
constexpr uint32_t LAST = 0x10FFFF;

struct Range {
    uint32_t from, to;
};
using Set = std::vector<Range>;    // sorted, disjoint
Set ordered(Set set) {
    std::sort(set.begin(), set.end(), [](const Range& a, const Range& b) { return a.from < b.from; });
    Set all;
    for (const Range& r : set)
        if (!all.empty() && r.from <= all.back().to) all.back().to = std::max(all.back().to, r.to);
        else all.push_back(r);
    return all;
}
Set all_but(const Set& set, uint32_t last = LAST) {
    Set others;
    uint32_t from = 0;
    for (const Range& r : ordered(set)) {
        if (r.from > from) others.push_back({from, r.from - 1});
        from = r.to + 1;
    }
    if (from <= last) others.push_back({from, last});
    return others;
}
const Set DIGITS = {{'0', '9'}}, WORD = {{'0', '9'}, {'A', 'Z'}, {'_', '_'}, {'a', 'z'}},
          SPACE = {{9, 13},          {32, 32},         {0xA0, 0xA0},     {0x1680, 0x1680}, {0x2000, 0x200A},
                   {0x2028, 0x2029}, {0x202F, 0x202F}, {0x205F, 0x205F}, {0x3000, 0x3000}},
          SOME_SPACE = {{0x1C, 0x1F}, {0x85, 0x85}, {0xFEFF, 0xFEFF}},    // white space in some implementations only
    LINE_ENDS = {{10, 10}, {13, 13}, {0x2028, 0x2029}};

struct Tree {
    enum Kind { set, sequence, either, repeat, begin, end } kind;
    Set characters = {};
    std::vector<Tree> kids = {};
    int least = 0, most = 0;    // number of repetitions; most -1: unbounded
};
struct Unknown {    // an unsupported part of the expression
    std::string what;
};

class Reader {
  public:
    explicit Reader(const std::string& text) {
        for (std::string_view rest = text; !rest.empty();) {
            bool complete;
            const size_t n = utf8_character(rest, complete);
            uint32_t c = static_cast<unsigned char>(rest[0]);
            if (n > 1) c &= 0x7Fu >> n;
            for (size_t i = 1; i < n; i++) c = c << 6 | (rest[i] & 0x3F);
            s += char32_t(c);
            rest.remove_prefix(n);
        }
    }
    Tree run() {
        Tree t = either(0);
        if (at < s.size()) throw Unknown{"a ) that closes nothing"};
        return t;
    }

  private:
    std::u32string s;
    size_t at = 0;

    bool more() const { return at < s.size(); }
    char32_t peek(size_t ahead = 0) const { return at + ahead < s.size() ? s[at + ahead] : 0; }
    bool take(std::string_view text) {
        for (size_t i = 0; i < text.size(); i++)
            if (peek(i) != char32_t(text[i])) return false;
        at += text.size();
        return true;
    }
    Tree either(int depth) {
        if (depth > MOST_DEPTH) throw Unknown{formatted("groups more than %d deep", MOST_DEPTH)};
        Tree all{Tree::either};
        do {
            Tree one{Tree::sequence};
            while (more() && peek() != '|' && peek() != ')') one.kids.push_back(repeated(item(depth)));
            all.kids.push_back(std::move(one));
        } while (take("|"));
        return all;
    }
    Tree item(int depth) {
        if (take("^")) return {Tree::begin};
        if (take("$")) return {Tree::end};
        if (take(".")) return {Tree::set, all_but(LINE_ENDS)};
        if (take("[")) return {Tree::set, char_class()};
        if (take("\\")) return {Tree::set, escape(false, false)};
        if (take("(")) {
            if (take("?<") && peek() != '=' && peek() != '!') {    // name of a group
                while (more() && s[at++] != '>') {}
            } else if (peek() == '?' && !take("?:")) {
                throw Unknown{"(? other than (?: ) and (?<name> )"};
            } else if (s[at - 1] == '<') {
                throw Unknown{"a look behind"};
            }
            Tree t = either(depth + 1);
            if (!take(")")) throw Unknown{"a ( without its )"};
            return t;
        }
        if (std::u32string_view(U"*+?{").find(peek()) != std::u32string_view::npos)
            throw Unknown{std::string("a ") + char(peek()) + " that repeats nothing; write \\" + char(peek())};
        return {Tree::set, {{s[at], s[at++]}}};
    }
    int number() {
        int n = 0;
        while (peek() >= '0' && peek() <= '9' && n <= MOST_TIMES) n = 10 * n + int(s[at++] - '0');
        if (n > MOST_TIMES) throw Unknown{formatted("more than %d times", MOST_TIMES)};
        return n;
    }
    Tree repeated(Tree what) {
        for (bool again = false;; again = true) {
            Tree t{Tree::repeat};
            if (take("*")) t.most = -1;
            else if (take("+")) t.least = 1, t.most = -1;
            else if (take("?")) t.most = 1;
            else if (peek() == '{' && peek(1) >= '0' && peek(1) <= '9') {
                at++;
                t.least = t.most = number();
                if (take(",")) t.most = peek() == '}' ? -1 : number();
                if (!take("}") || (t.most >= 0 && t.most < t.least)) throw Unknown{"a repetition other than {2,5}"};
            } else return what;
            if (again || what.kind == Tree::begin || what.kind == Tree::end)
                throw Unknown{"a repetition of a repetition or of ^ or $"};
            take("?");    // a lazy quantifier matches equal texts
            t.kids.push_back(std::move(what));
            what = std::move(t);
        }
    }
    uint32_t hex(int digits) {
        uint32_t x = 0;
        for (int i = 0; i < digits; i++, at++) {
            if (!more() || peek() > 'f' || !isxdigit(int(peek()))) throw Unknown{"an escape without its digits"};
            x = x * 16 + uint32_t(isdigit(int(peek())) ? peek() - '0' : (peek() | 32) - 'a' + 10);
        }
        if (x >= 0xD800 && x < 0xE000) throw Unknown{"an escape of half a character"};
        return x;
    }
    static Set with(Set set, const Set& more) { return set.insert(set.end(), more.begin(), more.end()), set; }
    // Implementations differ on some characters of \D, \W and \s, so generated texts avoid these.
    Set escape(bool in_class, bool negated) {
        if (!more()) throw Unknown{"a \\ at the end"};
        const char32_t c = s[at++];
        if (c == 'd') return DIGITS;
        if (c == 'D') return all_but(DIGITS, 127);
        if (c == 'w') return WORD;
        if (c == 'W') return all_but(WORD, 127);
        if (c == 's') return negated ? with(SPACE, SOME_SPACE) : SPACE;
        if (c == 'S') return all_but(with(SPACE, SOME_SPACE));
        if (c == 'b' && in_class) return {{8, 8}};
        if (c == '0' && !(peek() >= '0' && peek() <= '9')) return {{0, 0}};
        static const std::string NAMES = "fnrtv", VALUES = "\f\n\r\t\v";
        if (const size_t i = c < 128 ? NAMES.find(char(c)) : NAMES.npos; i != NAMES.npos)
            return {{uint32_t(VALUES[i]), uint32_t(VALUES[i])}};
        uint32_t x = c;
        if (c == 'x') x = hex(2);
        else if (c == 'u') x = hex(4);
        else if (c < 128 && isalnum(int(c))) throw Unknown{std::string("\\") + char(c)};
        return {{x, x}};
    }
    Set char_class() {    // after its [
        const bool negated = take("^");
        Set all;
        while (!take("]")) {
            if (!more()) throw Unknown{"a [ without its ]"};
            auto one = [&]() -> Set {
                if (take("\\")) return escape(true, negated);
                return {{s[at], s[at++]}};
            };
            Set set = one();
            if (peek() == '-' && at + 1 < s.size() && peek(1) != ']') {
                at++;
                const Set last = one();
                if (set.size() != 1 || last.size() != 1 || set[0].from != set[0].to || last[0].from != last[0].to ||
                    last[0].to < set[0].from)
                    throw Unknown{"a range in [ ] other than a-z"};
                set[0].to = last[0].to;
            }
            all.insert(all.end(), set.begin(), set.end());
        }
        return negated ? all_but(all) : ordered(all);
    }
};

// ---- the automaton ------------------------------------------------------------------------------

struct Node {
    enum Kind { fork, set, begin, end, final } kind;
    std::vector<int> to = {};
    int characters = -1;    // index into `sets`
};
class Automaton {
  public:
    std::vector<Node> nodes = {{Node::final}};
    std::vector<std::string> sets;    // classes of characters, as GBNF

    // Adds nodes that match `t` and then continue at node `to`; returns the first of them.
    int add(const Tree& t, int to) {
        switch (t.kind) {
            case Tree::set: return node({Node::set, {to}, set_of(t.characters)});
            case Tree::begin: return node({Node::begin, {to}});
            case Tree::end: return node({Node::end, {to}});
            case Tree::sequence:
                for (size_t i = t.kids.size(); i-- > 0;) to = add(t.kids[i], to);
                return to;
            case Tree::either: {
                Node n{Node::fork};
                for (const Tree& kid : t.kids) n.to.push_back(add(kid, to));
                return node(n);
            }
            case Tree::repeat: break;
        }
        if (t.most < 0) {
            const int loop = node({Node::fork, {to}});
            const int body = add(t.kids[0], loop);
            nodes[size_t(loop)].to.push_back(body);
            to = loop;
        }
        for (int i = t.least, after = to; i < t.most; i++) to = node({Node::fork, {add(t.kids[0], to), after}});
        for (int i = 0; i < t.least; i++) to = add(t.kids[0], to);
        return to;
    }

    // Continuations of a node: nodes that read a character; whether the text may end; whether any
    // text may follow.
    struct Next {
        std::vector<int> readers;
        bool ends = false, goes_on = false;
    };
    Next next(int from, bool at_start) const {
        Next all;
        std::vector<std::pair<int, bool>> open = {{from, false}};    // node; whether the text must end there
        std::vector<char> seen(2 * nodes.size());
        while (!open.empty()) {
            const auto [n, ended] = open.back();
            open.pop_back();
            if (std::exchange(seen[2 * size_t(n) + ended], true)) continue;
            const Node& node = nodes[size_t(n)];
            if (node.kind == Node::final) (ended ? all.ends : all.goes_on) = true;
            else if (node.kind == Node::set && !ended) all.readers.push_back(n);
            else if (node.kind == Node::fork || node.kind == Node::end || (node.kind == Node::begin && at_start))
                for (int to : node.to) open.push_back({to, ended || node.kind == Node::end});
        }
        std::sort(all.readers.begin(), all.readers.end());
        return all;
    }

  private:
    std::map<std::string, int> known;
    int node(Node n) {
        if (nodes.size() >= MOST_NODES) throw Unknown{"so long an expression, with its repetitions written out"};
        nodes.push_back(std::move(n));
        return int(nodes.size()) - 1;
    }
    // Writes a class of characters as GBNF, with their spellings in JSON strings.
    int set_of(const Set& set) {
        auto holds = [&](uint32_t c) {
            return std::any_of(set.begin(), set.end(), [&](const Range& r) { return r.from <= c && c <= r.to; });
        };
        std::string plain, all;
        Set escaped = {{0, 31}, {'"', '"'}, {'\\', '\\'}, {127, 127}, {0xD800, 0xDFFF}};
        for (const Range& r : all_but(set)) escaped.push_back(r);
        for (const Range& r : all_but(escaped)) plain += formatted("\\U%08X-\\U%08X", r.from, r.to);
        if (!plain.empty()) all += " | [" + plain + "]";
        static const std::string NAMED = "\"\\\b\f\n\r\t", NAMES = "\"\\bfnrt";
        for (size_t i = 0; i < NAMED.size(); i++)
            if (holds(uint32_t(NAMED[i]))) all += " | " + gbnf_quoted(std::string("\\") + NAMES[i]);
        for (uint32_t c = 0; c <= 127 && all.empty(); c++)    // a single control character
            if (holds(c)) all += " | " + gbnf_quoted(formatted("\\u%04x", c));
        if (all.empty()) throw Unknown{"a [ ] without characters"};
        const auto [found, fresh] = known.try_emplace(all.substr(3), int(sets.size()));
        if (fresh) sets.push_back(all.substr(3));
        return found->second;
    }
};

// ---- rules --------------------------------------------------------------------------------------

// State of matching after `length` characters of the text: at the text's start, before the match
// begins, at a node of the automaton, or after the match.
struct Place {
    enum Kind { start, before, node, behind } kind;
    int at;
    int64_t length;
    auto operator<=>(const Place&) const = default;
};
struct Rule {
    std::vector<std::pair<int, int>> steps;    // class read (-1: any character), next rule
    bool ends = false, leads = false;          // may end here; can reach an end
};

// Writes the rules and returns the first one's name; "" if no text matches.
std::string rules_of(const Automaton& a, int entry, int64_t least, int64_t most, const std::string& prefix,
                     std::string* text) {
    std::vector<Rule> rules;
    std::vector<Place> open;
    std::map<Place, int> known;
    std::map<std::pair<int, bool>, Automaton::Next> nexts;
    size_t steps = 0;
    auto rule = [&](Place::Kind kind, int at, int64_t length) {
        const Place p{kind, at, most >= 0 ? length : std::min(length, std::max<int64_t>(least, 0))};
        const auto [found, fresh] = known.try_emplace(p, int(open.size()));
        if (fresh) open.push_back(p);
        return found->second;
    };
    rule(Place::start, entry, 0);
    for (size_t i = 0; i < open.size(); i++) {
        const Place p = open[i];
        Rule r;
        Automaton::Next n;
        n.goes_on = true;
        if (p.kind != Place::behind) {
            const auto [known_next, fresh] = nexts.try_emplace({p.at, p.kind == Place::start});
            if (fresh) known_next->second = a.next(p.at, p.kind == Place::start);
            n = known_next->second;
        }
        r.ends = (n.ends || n.goes_on) && p.length >= least;
        if (most < 0 || p.length < most) {
            for (int reader : n.readers)
                r.steps.push_back({a.nodes[size_t(reader)].characters,
                                   rule(Place::node, a.nodes[size_t(reader)].to[0], p.length + 1)});
            if (n.goes_on) r.steps.push_back({-1, rule(Place::behind, 0, p.length + 1)});
            else if (p.kind == Place::start || p.kind == Place::before)
                r.steps.push_back({-1, rule(Place::before, entry, p.length + 1)});
        }
        rules.push_back(std::move(r));
        if ((steps += rules.back().steps.size() + 1) > MOST_RULES)
            throw Unknown{"so long an expression beside these lengths"};
    }
    // Searches backwards from the ends; rules that cannot reach an end are dropped.
    std::vector<std::vector<int>> before(rules.size());
    std::vector<int> found;
    for (size_t i = 0; i < rules.size(); i++) {
        for (auto [set, to] : rules[i].steps) before[size_t(to)].push_back(int(i));
        if (rules[i].ends) rules[i].leads = true, found.push_back(int(i));
    }
    while (!found.empty()) {
        const size_t i = size_t(found.back());
        found.pop_back();
        for (int b : before[i])
            if (!std::exchange(rules[size_t(b)].leads, true)) found.push_back(b);
    }
    if (!rules[0].leads) return "";
    for (size_t i = 0; i < a.sets.size(); i++) *text += prefix + "c" + std::to_string(i) + " ::= " + a.sets[i] + "\n";
    for (size_t i = 0; i < rules.size(); i++) {
        if (!rules[i].leads) continue;
        std::string body = rules[i].ends ? " | \"\"" : "";
        for (auto [set, to] : rules[i].steps)
            if (rules[size_t(to)].leads)
                body += " | " + (set < 0 ? "char" : prefix + "c" + std::to_string(set)) + " " + prefix +
                        std::to_string(to);
        *text += prefix + std::to_string(i) + " ::= " + body.substr(3) + "\n";
    }
    return prefix + "0";
}
}    // namespace

// Writes one rule for each prefix of a taken string.
std::string other_strings(const std::set<std::string>& taken, const std::string& prefix, std::string* rules) {
    std::map<std::string, std::string> next;    // by prefix: characters that extend it to another prefix
    std::map<std::string, std::string> alternatives;
    std::map<std::string, std::string> rule_of;
    auto rule = [&](const std::string& beginning) {
        const auto [known, fresh] = rule_of.try_emplace(beginning, "");
        if (fresh) known->second = prefix + std::to_string(rule_of.size()), next[beginning];
        return known->second;
    };
    const std::string first = rule("");
    for (const std::string& key : taken) {
        bool plain = true;    // whether its JSON needs no escapes
        for (char c : key) plain &= static_cast<unsigned char>(c) >= ' ' && c != '"' && c != '\\' && c != '\x7F';
        for (size_t at = 0, end; plain && at < key.size(); at = end) {
            end = at + 1;
            while (end < key.size() && (key[end] & 0xC0) == 0x80) end++;
            const std::string c = key.substr(at, end - at), before = key.substr(0, at);
            const bool fresh = !rule_of.count(key.substr(0, end));
            const std::string to = rule(key.substr(0, end));
            if (!fresh) continue;
            next[before] += strchr("]^-", c[0]) ? "\\" + c : c;
            alternatives[before] += " | " + gbnf_quoted(c) + " " + to;
        }
    }
    for (auto& [beginning, number] : rule_of)
        *rules += number + " ::= [^\"\\\\\\x7F\\x00-\\x1F" + next[beginning] + "] plain*" + alternatives[beginning] +
                  (taken.count(beginning) ? "" : " | \"\"") + "\n";
    return "\"\\\"\" " + first + " \"\\\"\"";
}

PatternRules pattern_rules(const std::string& pattern, int64_t least, int64_t most, const std::string& prefix,
                           std::string* rules) {
    try {
        const Tree tree = Reader(pattern).run();
        Automaton a;
        const int entry = a.add(tree, 0);
        return {rules_of(a, entry, least, most, prefix, rules), ""};
    } catch (const Unknown& u) { return {"", u.what + " is not known here; write a grammar (--grammar)"}; }
}

// test_grammar.cpp - grammars against a plain matcher of random trees, and the tokens they allow.
#include "infer/sampling/grammar.h"

#include <functional>
#include <memory>
#include <set>

#include "base/console.h"
#include "base/philox.h"
#include "data/tokenizer_files/sentencepiece.h"
#include "infer/sampling/sampler.h"
#include "memory_growth.h"
#include "sanitizers.h"

namespace {
std::shared_ptr<const Grammar> grammar_of(const std::string& text) {
    Result<std::shared_ptr<const Grammar>> g = Grammar::parse(text, "g");
    REQUIRE_MESSAGE(g.ok(), (g.status.message + " in\n" + text));
    return g.take();
}
std::string grammar_error(const std::string& text) {
    const Status s = Grammar::parse(text, "g").status;
    CHECK((s.ok() || s.code == Exit::input));
    return s.message;
}
// '+': the text is in the language; '-': some continuation is; 'x': neither.
char verdict(GrammarMachine& m, const std::string& text) {
    int state = m.start();
    for (char c : text) state = m.step(state, static_cast<unsigned char>(c));
    return state == GrammarMachine::DEAD ? 'x' : m.may_end(state) ? '+' : '-';
}
std::string verdicts(const std::string& grammar, const std::vector<std::string>& texts) {
    GrammarMachine m(grammar_of(grammar));
    std::string all;
    for (const std::string& text : texts) all += verdict(m, text);
    return all;
}
Tokenizer words() {    // all bytes and five merges
    const int a = 'a' - 33, b = 'b' - 33;
    return Tokenizer::from_merges({{a, b}, {256, a}, {a, a}, {b, a}, {b, b}}, Pattern::gpt2, {"<|endoftext|>"});
}
}    // namespace

TEST_CASE("grammar: what each construct matches") {
    CHECK(verdicts("root ::= \"ab\" | \"a\" [c-e]", {"", "a", "ab", "ac", "ae", "af", "abc"}) == "--+++xx");
    CHECK(verdicts("root ::= \"a\"* \"b\"", {"", "b", "ab", "aaab", "aa", "ba"}) == "-+++-x");
    CHECK(verdicts("root ::= \"ab\"+", {"", "ab", "a", "aba", "abab", "b"}) == "-+--+x");
    CHECK(verdicts("root ::= (\"a\" | \"b\")? \"c\"", {"c", "ac", "bc", "abc", "a"}) == "+++x-");
    CHECK(verdicts("root ::= [ab]{2}", {"a", "ab", "aba"}) == "-+x");
    CHECK(verdicts("root ::= [ab]{1,3}", {"", "a", "ab", "aba", "abab"}) == "-+++x");
    CHECK(verdicts("root ::= [ab]{2,}", {"a", "ab", "abab"}) == "-++");
    CHECK(verdicts("root ::= [ab]{0,0} [ab]{ 1 , 1 }", {"", "a", "ab"}) == "-+x");
    CHECK(verdicts("root ::= x y x\nx ::= \"a\" | \"\"\ny ::= \"b\"", {"b", "ab", "aba", "ba", "bb", "aa"}) ==
          "++++xx");
    CHECK(verdicts("root ::= \"(\" root \")\" | \"\"", {"", "()", "(())", "(()", "())", ")"}) == "+++-xx");
    CHECK(verdicts("root ::= [^a-c\"]",
                   {"a", "d", "\"", "\u00e9", "\xC3", "\u20ac", "\U0001F600", "\xED\xA0", "\xFF"}) == "x+x+-++xx");
    CHECK(verdicts("root ::= .", {"\n", "\u00e9", "\xC0", "\xF4\x8F\xBF\xBF", "\xF4\x90", "\xE0\x80", "ab"}) ==
          "++x+xxx");
    CHECK(verdicts("root ::= [\u00e0-\u00ea\U0001F600-\U0001F64F]",
                   {"\u00e0", "\u00ea", "\u00eb", "\U0001F601", "\xF0\x9F"}) == "++x+-");
    CHECK(verdicts("root ::= \"\\n\\t\\\\\\\"\\x41\\u00e9\\U0001F600\"", {"\n\t\\\"A\u00e9\U0001F600"}) == "+");
    CHECK(verdicts("root ::= [\\]\\-a-]", {"]", "-", "a", "b", "\\"}) == "+++xx");
    CHECK(verdicts("# a comment\nroot ::= # another\n  a |\n  b # \"c\"\na ::= (\n \"a\"\n\n)\nb ::= \"b\"\n  \"c\" #",
                   {"a", "bc", "b"}) == "++-");
    CHECK(verdicts("root ::= (\"a\"? \"b\"?)* \"c\"", {"c", "abc", "babac", "d"}) ==
          "+++x");    // repetition of a possibly empty group
    CHECK(verdicts("root ::= ((\"a\"*)*)* ", {"", "aaa", "b"}) == "++x");
    CHECK(verdicts("root ::= \"\"{2} \"a\" | \"\"* \"b\" | \"\"+ \"c\"", {"a", "b", "c", ""}) == "+++-");
    CHECK(verdicts("root ::= a_b-C9\na_b-C9 ::= \"\\x4A\\x4a\" [a-zb]", {"JJz", "JJb", "JJ{"}) == "++x");
    // A range with ends where UTF-8's length changes matches exactly the characters within it.
    const uint32_t edges[] = {0,      'A',    0x7F,   0x80,   0xBF,    0xC0,    0x7FF,   0x800,   0xFFF,   0x1000,
                              0x2030, 0xD7FF, 0xE000, 0xFFFF, 0x10000, 0x1F600, 0x3FFFF, 0x40000, 0x10FFFF};
    for (const uint32_t from : edges)
        for (const uint32_t to : edges) {
            if (to < from || (from == 0 && to == 0x10FFFF)) continue;
            CAPTURE(from);
            CAPTURE(to);
            const std::string range = formatted("\\U%08X-\\U%08X", from, to);
            GrammarMachine in(grammar_of("root ::= [" + range + "] \"!\" | \"!\""));
            GrammarMachine out(grammar_of("root ::= [^" + range + "] \"!\" | \"!\""));
            for (const uint32_t edge : edges)
                for (const uint32_t c : {edge - (edge > 0), edge, edge + (edge < 0x10FFFF)}) {
                    if (c >= 0xD800 && c < 0xE000) continue;
                    std::string text;
                    append_utf8(text, c);
                    const bool is = from <= c && c <= to;
                    REQUIRE((verdict(in, text + "!") == '+') == is);
                    REQUIRE((verdict(out, text + "!") == '+') == !is);
                }
        }
}

TEST_CASE("grammar: rules that are empty are found in one pass, however many there are") {
    std::string rules, all = "all ::= ";
    for (int i = 100'000; i-- > 0;) rules += "r" + std::to_string(i) + "::=\"\"\n";
    for (int i = 0; i < 100'000; i++) all += "r" + std::to_string(i) + " ";
    CHECK(verdicts(rules + all + "\nroot ::= \"a\" | \"b\" all", {"a", "c"}) == "+x");
    CHECK(grammar_error(rules + all + "all \"c\"\nroot ::= all").find("rule all begins with itself") !=
          std::string::npos);
    CHECK(grammar_error("root ::= e e root \"a\" | \"b\"\ne ::= f f\nf ::= \"\" | \"c\"").find("rule root") !=
          std::string::npos);
    CHECK(verdicts("root ::= x root \"a\" | \"b\"\nx ::= f g\nf ::= \"\"\ng ::= \"c\"", {"cba", "cb", "bc"}) == "+-x");
    CHECK(verdicts("root ::= e \"d\" root | \"b\"\ne ::= f f\nf ::= \"\" | \"c\"", {"ccdb", "db", "cccd"}) == "++x");
}

TEST_CASE("grammar: what it is not, by its line") {
    auto has = [](const std::string& grammar, const char* what) {
        CAPTURE(grammar);
        CHECK(grammar_error(grammar).find(what) != std::string::npos);
    };
    for (const char* g : {"", "a ::= \"b\"", "# only"}) has(g, "no rule root");
    has("root ::= a", "no rule a");
    // An alternative that never ends is dropped; a grammar without another one is refused.
    for (const char* g :
         {"root ::= \"a\" root", "root ::= [a-c] x\nx ::= \"b\" root | \"c\" x", "root ::= \"a\" root+"})
        has(g, "root allows no text that ends");
    CHECK(verdicts("root ::= \"b\" | x\nx ::= \"a\" x", {"", "b", "a"}) == "-+x");
    CHECK(verdicts("root ::= \"a\" x? \"b\"\nx ::= \"x\" x", {"a", "ab", "ax"}) == "-+x");
    has("root ::= \"a", "g:1: a literal without");
    has("root ::= \"a\"\n\nx ::= [a", "g:3: a class without");
    has("root ::= [z-a]", "from a larger");
    has("root ::= []", "without characters");
    has("root ::= [^\\x00-\\U0010FFFF]", "without characters");
    has("root ::= (\"a\"", "expected )");
    has("root ::= \"a\")", "expected a rule's name");
    has("root = \"a\"", "expected ::=");
    has("root ::= *", "expected a literal");
    has("root ::= \"a\"{", "expected a number");
    has("root ::= \"a\"{2,1}", "at least more times");
    has("root ::= \"a\"{1", "expected }");
    has(std::string("root ::= \"a\" ") + '\0', "expected a literal, a class, a name or (, found '?'");
    has("root ::= \"a\"{1000001}", "more than 100000 times");
    has("root ::= (\"abc\"{100000}){100000} (\"abc\"{100000}){100000} (\"abc\"{100000}){100000} \"abc\"{0,99999} "
        "\"abc\"{0,99999} "
        "\"abc\"{0,99999}",
        "1048576 elements");
    has("root ::= \"\\q\"", "expected n r t");
    has("root ::= \"\\xG0\"", "hexadecimal");
    has("root ::= \"\\uD800\"", "no Unicode character");
    has("root ::= \"\xFF\"", "not UTF-8");
    for (const char* bytes :
         {"\xC0\x80", "\xC1\xBF", "\xE0\x80\x80", "\xE0\x9F\xBF", "\xED\xA0\x80", "\xF0\x80\x80\x80", "\xE2\x82",
          "\xF4\x90\x80\x80", "\xF5\x80\x80\x80", "\xF9\x80\x80\x80", "\x80", "\xE2(\xA1"})
        has(std::string("root ::= \"") + bytes + "\"", "not UTF-8");
    for (const char* escape : {"\\U00110000", "\\UFFFFFFFF", "\\uDFFF"})
        has(std::string("root ::= \"") + escape + "\"", "no Unicode character");
    has("a ::= root", "no rule root");
    has("root ::= (\"a\"\nb ::= \"c\")", "g:2: expected a literal, a class, a name or (, found ':'");
    has("root ::= \"a\"{100001}", "more than 100000 times");
    has("root ::= \"a\"{99999999999999999999}", "more than 100000 times");
    has("root ::= \"" + std::string((1 << 20) + 1, 'a') + "\"", "1048576 elements");
    has(std::string((8 << 20) + 1, ' '), "more than 8 MiB");
    has("root ::= \"a\"\nroot ::= \"b\"", "twice");
    has(std::string("root ::= ") + std::string(300, '('), "200 deep");
    has("root ::= " + std::string(201, '(') + "\"a\"" + std::string(201, ')'), "200 deep");
    CHECK(grammar_error("root ::= " + std::string(200, '(') + "\"a\"" + std::string(200, ')')) == "");
    has("root ::= root", "root allows no text");
    // Left recursion (direct, through other rules, behind an empty one) is refused, right recursion
    // not.
    has("root ::= root \"a\" | \"b\"", "rule root begins with itself");
    has("root ::= x \"a\"\nx ::= y \"b\" | \"c\"\ny ::= x | \"d\"", "begins with itself");
    has("root ::= e root \"a\" | \"b\"\ne ::= \"x\"?", "begins with itself");
    has("root ::= (root | \"b\") \"c\"", "begins with itself");
    has("root ::= (root \"a\" | \"b\")", "rule of a group begins with itself");
    CHECK(grammar_error("root ::= x \"1\" | y \"2\"\nx ::= \"a\"\ny ::= x \"b\"") == "");
    CHECK(grammar_error("root ::= \"a\" root | \"b\"") == "");
    CHECK(grammar_error("root ::= e root | \"b\"\ne ::= \"x\"?") == "");
    // Each rule begins with the next in two ways: 40 levels have 2^40 beginnings.
    std::string wide = "root ::= r0\n";
    for (int i = 0; i < 40; i++) wide += formatted("r%d ::= r%d \"a\" | r%d \"b\"\n", i, i + 1, i + 1);
    has(wide + "r40 ::= \"c\"", "more than 65536 ways");
    CHECK(verdicts(wide.substr(0, wide.find("r12 ::=")) + "r12 ::= \"c\"", {"caaabbbaaabbb", "caabbbaaabbb"}) == "+-");
}

// ---- against a plain matcher --------------------------------------------------------------------

namespace {
// A random grammar: its GBNF text, and all ends of matches that begin at `from`.
struct Tree {
    std::function<std::set<size_t>(const std::string&, size_t from)> ends;
    std::string text;
};
struct Trees {
    uint64_t stream, count = 0;
    uint32_t draw(uint32_t n) { return philox(77, stream, count++).v[0] % n; }
    static std::set<size_t> repeat(const Tree& t, const std::string& s, size_t from, int least, int most) {
        std::set<size_t> now = {from}, all;
        for (int i = 0; (most < 0 ? i <= least + int(s.size()) : i <= most) && !now.empty(); i++) {
            if (i >= least) all.insert(now.begin(), now.end());
            std::set<size_t> next;
            for (size_t at : now) next.merge(t.ends(s, at));
            now = next;
        }
        return all;
    }
    Tree make(int depth) {
        const uint32_t kind = draw(depth > 0 ? 8 : 3);
        if (kind == 0) {
            const std::string word = std::vector<std::string>{"a", "b", "ab", "\u00e9", ""}[draw(5)];
            return {[word](auto& s, size_t at) {
                        return s.compare(at, word.size(), word) == 0 ? std::set<size_t>{at + word.size()}
                                                                     : std::set<size_t>{};
                    },
                    "\"" + word + "\""};
        }
        if (kind <= 2) {    // a class over a, b, two-byte letter
            const bool but = draw(2);
            return {[but](const std::string& s, size_t at) {
                        const bool ascii = at < s.size() && s[at] != '\xC3';
                        const bool two = s.compare(at, 2, "\u00e9") == 0;
                        if (but)
                            return two                     ? std::set<size_t>{at + 2}
                                   : ascii && s[at] == 'b' ? std::set<size_t>{at + 1}
                                                           : std::set<size_t>{};
                        return ascii && s[at] != '\xA9' ? std::set<size_t>{at + 1} : std::set<size_t>{};
                    },
                    but ? "[^a]" : "[a-b]"};
        }
        const Tree x = make(depth - 1), y = make(depth - 1);
        if (kind == 3)
            return {[x, y](auto& s, size_t at) {
                        std::set<size_t> all = x.ends(s, at);
                        all.merge(y.ends(s, at));
                        return all;
                    },
                    "(" + x.text + " | " + y.text + ")"};
        if (kind <= 5)
            return {[x, y](auto& s, size_t at) {
                        std::set<size_t> all;
                        for (size_t end : x.ends(s, at)) all.merge(y.ends(s, end));
                        return all;
                    },
                    x.text + " " + y.text};
        const int least = int(draw(3)), most = draw(2) ? -1 : least + int(draw(3));
        return {[=](auto& s, size_t at) { return repeat(x, s, at, least, most); },
                "(" + x.text + "){" + std::to_string(least) + "," + (most < 0 ? "" : std::to_string(most)) + "}"};
    }
};
}    // namespace

TEST_CASE("grammar: random ones match what a plain matcher does, and tokens are allowed that lead on") {
    std::vector<std::string> texts = {""};
    for (size_t i = 0; texts[i].size() < 5; i++)
        for (const char* c : {"a", "b", "\u00e9"}) texts.push_back(texts[i] + c);
    const Tokenizer tokenizer = words();
    for (uint64_t stream = 0; stream < 150; stream++) {
        Trees trees{stream};
        const Tree tree = trees.make(4);
        CAPTURE(tree.text);
        const Result<std::shared_ptr<const Grammar>> g = Grammar::parse("root ::= " + tree.text, "g");
        REQUIRE_MESSAGE(g.ok(), g.status.message);
        GrammarMachine m(g.value);
        for (const std::string& text : texts) {
            const bool is = tree.ends(text, 0).count(text.size()) > 0;
            REQUIRE((verdict(m, text) == '+') == is);
        }
        for (const char* start : {"", "a", "ab", "\xC3", "aab"}) {
            GrammarMatcher matcher(g.value, tokenizer, tokenizer.vocab_size(), {tokenizer.end_of_text()});
            for (int id : tokenizer.encode(start)) matcher.accept(id);
            for (int again = 0; again < 2; again++)
                for (int id = 0; id < tokenizer.vocab_size(); id++) {
                    const char after = verdict(m, start + std::string(tokenizer.token(id)));
                    const bool end = id == tokenizer.end_of_text();
                    REQUIRE(matcher.allows(id) == (end ? verdict(m, start) == '+' : after != 'x'));
                    REQUIRE(matcher.allowed()[size_t(id)] == matcher.allows(id));
                }
        }
    }
}

TEST_CASE("grammar: states are forgotten and found again in long texts") {
    const Tokenizer tokenizer = words();
    GrammarMatcher matcher(grammar_of("root ::= x\nx ::= \"(\" x \")\" | \"[\" x \"]\" | \"a\""), tokenizer,
                           tokenizer.vocab_size(), {});
    std::string open;
    for (uint64_t i = 0; i < 20000; i++) open += philox(1, 2, i).v[0] % 2 ? '(' : '[';
    auto id = [&](char c) { return tokenizer.encode(std::string(1, c))[0]; };
    for (char c : open) matcher.accept(id(c));
    matcher.accept(id('a'));
    for (size_t i = open.size(); i-- > 0;) {
        REQUIRE(!matcher.done());
        const char close = open[i] == '(' ? ')' : ']';
        REQUIRE(!matcher.allows(id(close == ')' ? ']' : ')')));
        if (i % 1000 == 0) CHECK(std::count(matcher.allowed().begin(), matcher.allowed().end(), true) == 1);
        matcher.accept(id(close));
    }
    CHECK(matcher.done());
    CHECK(!matcher.broken());
    matcher.accept(id('a'));
    CHECK(matcher.broken());
}

TEST_CASE("grammar: after each of many tokens exactly those that fit are allowed, in bounded memory") {
    const Tokenizer tokenizer = words();
    int ids[128];
    for (int c = 0; c < 128; c++) ids[c] = tokenizer.encode(std::string(1, char(c)))[0];
    const auto grammar = grammar_of("root ::= x \"!\"\nx ::= \"(\" x \")\" | \"[\" x \"]\" | \"a\"");
    auto id = [&](char c) { return ids[size_t(c)]; };
    auto run = [&](uint64_t depth, int V, bool often) {
        GrammarMatcher matcher(grammar, tokenizer, V, {});
        int64_t wrong = 0;
        std::string open;
        auto fits = [&](const std::string& all) {
            const std::vector<bool>& mask = matcher.allowed();
            int64_t n = 0;
            for (int i = 0; i < tokenizer.vocab_size(); i++) n += mask[size_t(i)];
            for (char c : all) n -= mask[size_t(id(c))];
            wrong += n != 0 || matcher.done();
        };
        for (uint64_t i = 0; i < depth; i++) {
            if (often || i < 32) fits("([a");
            open += philox(1, 2, i).v[0] % 2 ? '(' : '[';
            matcher.accept(id(open.back()));
        }
        matcher.accept(id('a'));
        for (; !open.empty(); open.pop_back()) {
            const char close = open.back() == '(' ? ')' : ']';
            if (often || (open.size() < 2000 && open.size() % 5 == 0)) fits(std::string(1, close));
            matcher.accept(id(close));
        }
        fits("!");
        matcher.accept(id('!'));
        return wrong + !matcher.done() + matcher.broken();
    };
    // Many states; large masks; state numbers that are reused once all states but one are
    // forgotten.
    for (auto [depth, V, often] :
         {std::tuple(6000, 300, true), std::tuple(300, 1 << 18, true), std::tuple(3000, 300, false)}) {
        int64_t wrong = -1;
        const int64_t bytes = memory_growth([&] { return run(uint64_t(depth), V, often); }, &wrong);
        CHECK(wrong == 0);
        // The limit lies below 12,000 x 1 KiB and 600 x 32 KiB.
        if (!ASAN && !TSAN) CHECK(bytes < 10 << 20);
    }
}

TEST_CASE("grammar: which tokens are words, which one ends a text, and what is no token") {
    const Tokenizer tokenizer = words();
    const int V = tokenizer.vocab_size() + 40, end = tokenizer.end_of_text();
    auto id = [&](const char* text) { return tokenizer.encode(text)[0]; };
    // An end token never matches as text, even if its id is 0; it is allowed where the text may
    // end.
    GrammarMatcher ends(grammar_of("root ::= \"!\"* \"a\" | \"a\""), tokenizer, V, {-1, V, id("!"), end});
    REQUIRE(id("!") == 0);
    CHECK(ends.end() == 0);
    CHECK_FALSE(ends.allows(0));
    CHECK_FALSE(ends.allowed()[0]);
    ends.accept(id("a"));    // two derivations, merged to one state
    CHECK(ends.done());
    CHECK(ends.allows(0));
    CHECK(ends.allows(end));
    CHECK(ends.allowed()[0]);
    CHECK_FALSE(ends.broken());
    ends.accept(id("b"));
    CHECK(ends.broken());
    CHECK(ends.done());
    ends.accept(end);
    CHECK(ends.broken());
    // Special tokens and ids beyond the vocabulary are never allowed as text.
    const GrammarMatcher any(grammar_of("root ::= .*"), tokenizer, V, {});
    CHECK(any.end() == -1);
    CHECK_FALSE(any.done());    // the text may end, but need not
    for (int none : {end, -1, V - 1, V, 1 << 30}) CHECK_FALSE(any.allows(none));
    CHECK_FALSE(any.allowed()[size_t(end)]);
    CHECK_FALSE(any.allowed()[size_t(V - 1)]);
    CHECK(std::count(any.allowed().begin(), any.allowed().end(), true) == 128 + 51 + 5);    // ASCII, UTF-8, merges
    GrammarMachine machine(grammar_of("root ::= \"a\""));
    CHECK(machine.forget_all_but(GrammarMachine::DEAD) == GrammarMachine::DEAD);
    // A token with an empty text is never allowed.
    const std::vector<ScoredPiece> pieces = {{"<unk>", 0, ScoredPiece::unknown}, {"a"}, {""}};
    const Tokenizer gap(vocabulary_of_pieces(pieces, false, "t").value);
    const GrammarMatcher gaps(grammar_of("root ::= \"a\""), gap, 3, {});
    CHECK(gaps.allows(1));
    CHECK_FALSE(gaps.allows(2));
    CHECK_FALSE(gaps.allowed()[2]);
    // Two tokens with a common prefix: the first fails within it, so the second must fail as well.
    const int a = 'a' - 33, b = 'b' - 33, c = 'c' - 33, d = 'd' - 33;
    const Tokenizer shared =
        Tokenizer::from_merges({{d, a}, {256, a}, {256, b}, {c, 257}, {c, 258}}, Pattern::gpt2, {});
    const GrammarMatcher only(grammar_of("root ::= [ab]"), shared, shared.vocab_size(), {});
    CHECK(std::count(only.allowed().begin(), only.allowed().end(), true) == 2);
}

TEST_CASE("grammar: where the tokens that fit would take too long to find, none is allowed") {
    const Tokenizer tokenizer = Tokenizer::gpt2();
    auto allowed = [&](const std::string& text) {
        const GrammarMatcher m(grammar_of(text), tokenizer, tokenizer.vocab_size(), {});
        return std::count(m.allowed().begin(), m.allowed().end(), true);
    };
    auto ways = [](int n) {
        std::string all = "root ::= x*\nx ::= [a-z]";
        while (--n > 0) all += " | [a-z]";
        return all;
    };
    CHECK(allowed(ways(20)) > 10000);
    CHECK(allowed(ways(4000)) == 0);
    std::string nested = "root ::= [^A-Za-z]";    // a new state for every text
    for (char c = 'A'; c <= 'z'; c = c == 'Z' ? 'a' : char(c + 1)) nested += formatted(" | \"%c\" root \"%d\"", c, c);
    CHECK(allowed(nested) == 0);
}

TEST_CASE("grammar: tokens are drawn as from a masked softmax, greedily too") {
    const Tokenizer tokenizer = words();
    const int V = tokenizer.vocab_size();
    const auto grammar = grammar_of("root ::= \"ab\" [a-c] | \"aba\" \"x\"* | [d-f] [^\\x00-\\x7F]*");
    for (const Sampling& base :
         {Sampling{.temperature = 0}, Sampling{.temperature = 1, .top_k = 3}, Sampling{.temperature = 1, .top_k = 0},
          Sampling{.temperature = 2, .top_k = 0, .top_p = 0.7}}) {
        Sampling s = base, plain = base;
        s.grammar = grammar;
        Sampler sampler = Sampler::open(s, tokenizer, V, {tokenizer.end_of_text()}).take();
        const Sampler free = Sampler::open(plain, tokenizer, V).take();
        std::string text;
        for (uint64_t step_index = 0; step_index < 40 && !sampler.done(); step_index++) {
            std::vector<float> logits;
            for (int i = 0; i < V; i++) logits.push_back(philox_normal(1, step_index, uint64_t(i)));
            GrammarMatcher matcher(grammar, tokenizer, V, {tokenizer.end_of_text()});
            for (char c : text) matcher.accept(tokenizer.encode(std::string(1, c))[0]);
            std::vector<float> masked = logits;
            for (int i = 0; i < V; i++)
                if (!matcher.allows(i)) masked[size_t(i)] = -INFINITY;
            for (uint64_t other = 0; other < 20; other++)
                REQUIRE(sampler.choose(logits.data(), other).id == free.choose(masked.data(), other).id);
            const Sampler::Choice c = sampler.choose(logits.data(), step_index);
            sampler.accept(c);
            if (!tokenizer.is_special(c.id)) text += tokenizer.token(c.id);
        }
        CHECK(!sampler.broken());
    }
}

TEST_CASE("grammar: where no token fits, the text ends, and that is said") {
    const Tokenizer tokenizer = words();
    const Sampling s = {.temperature = 0, .grammar = grammar_of("root ::= \"ab\"")};
    const std::vector<float> logits(size_t(tokenizer.vocab_size()), 0.f);
    Sampler sampler = Sampler::open(s, tokenizer, 60, {}).take();    // the first 60 tokens: no a, no b
    const Sampler::Choice c = sampler.choose(logits.data(), 0);
    CHECK(c.id == -1);
    sampler.accept(c);
    CHECK(sampler.done());
    CHECK(sampler.broken());
}

// pretokenize.cpp - a pre-tokenizer's splitting steps, matched by PCRE2's JIT.
#define PCRE2_CODE_UNIT_WIDTH 8
#include "pretokenize.h"

#include <pcre2.h>

#include <algorithm>

#include "base/console.h"
#include "base/memory.h"
#include "byte_alphabet.h"
#include "character_class.h"
#include "files/json_write.h"
#include "vocabulary.h"

namespace {
using View = std::string_view;
constexpr uint32_t MOST_STEPS = 10'000'000;    // limit on a match's steps for a file's regex
// A match of a regex from a file first sees AHEAD bytes. While the result depends on bytes beyond,
// the match is tried again with four times as many. All these repetitions together may see WIDENED
// bytes, plus 32 for each byte of the text. After that, the rest of the text is cut every AHEAD
// bytes before it is matched, which keeps the time linear.
constexpr size_t AHEAD = 1 << 10, WIDENED = 64 << 20;
constexpr size_t LONGEST_REGEX = 64 << 10, STACK = 8 << 20;
constexpr uint32_t OPTIONS = PCRE2_UTF | PCRE2_UCP | PCRE2_MATCH_INVALID_UTF | PCRE2_NEVER_BACKSLASH_C;
// WORD is Oniguruma's \w in a class. LONE_WORD is \w outside of classes, where it also matches the
// fractions and superscript digits of Latin-1. PCRE2's \w has all numbers and, before 10.43, no
// marks.
const std::string WORD = "\\p{Alphabetic}\\p{M}\\p{Nd}\\p{Pc}", LONE_WORD = WORD + "\\xb2\\xb3\\xb9\\xbc-\\xbe";

Status wrong_regex(const std::string& regex, const std::string& what) {
    return fail(Exit::input, "the regular expression %s: %s", json_string(regex.substr(0, 60)).c_str(), what.c_str());
}

// Returns a class that matches `items` and \W. It is written as the complement of \w without
// `items`.
std::string with_outside(const std::string& items) {
    const bool negated = items.starts_with("[^"), alone = items == "[]" || items == "[^]";
    if (alone) return (negated ? "[" : "[^") + WORD + "]";
    return negated ? "(?:(?=[" + WORD + "])" + items + ")" : "(?:" + items + "|[^" + WORD + "])";
}

// Translates a regular expression from Oniguruma's syntax, which tokenizers use, to PCRE2's: \s
// becomes White_Space, \w has marks and all connecting punctuation, and nested classes are unions.
Status translate(const std::string& regex, std::string& out) {
    if (regex.size() > LONGEST_REGEX) return wrong_regex(regex, "longer than 65536 bytes");
    int depth = 0;           // number of classes open here
    size_t open = 0;         // begin of the outermost one in `out`
    bool outside = false;    // the open class contains \W
    const std::string word = "[" + LONE_WORD + "])";
    const std::string border = "(?:(?<=" + word + "(?!" + word + "|(?<!" + word + "(?=" + word + ")";    // \b
    auto set = [&](const std::string& items, bool negated) {
        return depth ? items : (negated ? "[^" : "[") + items + "]";
    };
    for (size_t i = 0; i < regex.size(); i++) {
        const View rest = View(regex).substr(i);
        if (rest[0] == '\\' && rest.size() > 1) {
            i++;
            const char c = rest[1];
            if (c == 's' || (c == 'S' && !depth)) out += set(WHITE_SPACE, c == 'S');
            else if (c == 'w' || (c == 'W' && !depth)) out += set(depth ? WORD : LONE_WORD, c == 'W');
            else if (c == 'h' || (c == 'H' && !depth)) out += set("0-9a-fA-F", c == 'H');
            else if (c == 'W') outside = true;
            else if (c == 'b' && !depth) out += border;
            else if (View("BHRXKGyY").find(c) != View::npos)
                return wrong_regex(regex, std::string("\\") + c + " is not supported");
            else out += rest.substr(0, 2);
        } else if (depth && rest.starts_with("&&")) {
            return wrong_regex(regex, "intersections of classes (&&) are not supported");
        } else if (depth && (rest.starts_with("[^") || rest.starts_with("[:"))) {
            return wrong_regex(regex, "[^ and [: inside a class are not supported");
        } else if (!depth && rest.starts_with("(*")) {
            return wrong_regex(regex, "nothing can be repeated after (");
        } else {
            depth += rest[0] == '[' ? 1 : rest[0] == ']' && depth ? -1 : 0;
            const bool nested = (rest[0] == '[' && depth > 1) || (rest[0] == ']' && depth > 0);
            if (rest[0] == '[' && depth == 1) open = out.size(), outside = false;
            if (!nested) out += rest[0];
            if (rest[0] == ']' && depth == 0 && outside) out = out.substr(0, open) + with_outside(out.substr(open));
        }
    }
    return {};
}

Result<pcre2_code*> compile_regex(const std::string& regex, uint32_t options, bool partial) {
    static pcre2_compile_context* const context = [] {
        pcre2_compile_context* c = pcre2_compile_context_create(nullptr);
        CHECK(c && pcre2_set_newline(c, PCRE2_NEWLINE_LF) == 0);
        return c;
    }();
    int error = 0;
    PCRE2_SIZE at = 0;
    pcre2_code* code = pcre2_compile(reinterpret_cast<PCRE2_SPTR>(regex.data()), regex.size(), OPTIONS | options,
                                     &error, &at, context);
    if (!code) {
        PCRE2_UCHAR why[128] = {};
        pcre2_get_error_message(error, why, sizeof why);
        return wrong_regex(regex, reinterpret_cast<const char*>(why));
    }
    // If JIT compilation fails, pcre2_match interprets: slower, with equal results.
    pcre2_jit_compile(code, PCRE2_JIT_COMPLETE | (partial ? PCRE2_JIT_PARTIAL_HARD : 0));
    return code;
}

pcre2_code* must_compile(const std::string& regex) {
    Result<pcre2_code*> code = compile_regex(regex, 0, false);
    CHECK(code.ok(), "%s: %s", regex.c_str(), code.status.message.c_str());
    return code.value;
}

struct Freed {
    void operator()(pcre2_code* p) const { pcre2_code_free(p); }
    void operator()(pcre2_match_data* p) const { pcre2_match_data_free(p); }
    void operator()(pcre2_match_context* p) const { pcre2_match_context_free(p); }
    void operator()(pcre2_jit_stack* p) const { pcre2_jit_stack_free(p); }
};
template <class T> using Held = std::unique_ptr<T, Freed>;

struct Range {
    size_t begin, end;
    bool match;
};
}    // namespace

struct Pretokenizer::Steps {
    struct Step {
        Held<pcre2_code> code;
        Split::Behavior behavior = Split::Behavior::isolated;
        bool invert = false, spelled = false;
    };
    std::vector<Step> all;
    bool streams = false;    // a single step, whose matches are the pieces
    bool trusted = false;    // known pattern: matches need no limits
    ScanPieces scan = nullptr;
};

Result<Pretokenizer> Pretokenizer::compile(const std::vector<Split>& splits) {
    auto made = std::make_shared<Steps>();
    for (const Split& cut : splits) {
        std::string regex;
        TRY(translate(cut.regex, regex));
        // In Oniguruma's Ruby syntax, ^ and $ match at every line.
        Held<pcre2_code> code(TRY(compile_regex(regex, PCRE2_MULTILINE, true)));
        made->all.push_back({std::move(code), cut.behavior, cut.invert, cut.spelled});
    }
    const bool one = splits.size() == 1;
    made->streams = one && splits[0].behavior == Split::Behavior::isolated && !splits[0].invert && !splits[0].spelled;
    Pretokenizer p;
    p.steps = std::move(made);
    return p;
}

const Pretokenizer& Pretokenizer::known(Pattern pattern) {
    static const std::vector<Pretokenizer> all = [] {
        std::vector<Pretokenizer> made;
        for (const PatternRow& row : pattern_rows()) {
            Result<Pretokenizer> p = compile(row.fast || row.scan ? std::vector<Split>{} : row.splits);
            CHECK(p.ok(), "%s: %s", row.name, p.status.message.c_str());
            auto fast = std::make_shared<Steps>();
            if (row.fast) fast->all.push_back({Held<pcre2_code>(must_compile(row.fast))});
            fast->streams = fast->trusted = true;
            fast->scan = row.scan;
            if (row.fast || row.scan) p.value.steps = std::move(fast);
            made.push_back(p.value);
        }
        return made;
    }();
    return all.at(size_t(pattern));
}

namespace {
// Only these planes have letters, marks, numbers and spaces beyond ASCII.
constexpr uint32_t CLASSED[][2] = {{0x80, 0xD800}, {0xE000, 0x40000}, {0xE0000, 0xE1000}};

// Puts `bits` in place of SYMBOL for each character of `text`, consecutive code points from `first`
// on, that a class matches.
void classify(const std::string& text, uint32_t first, const std::string& characters, uint8_t bits, uint8_t* classes) {
    const Held<pcre2_code> code(must_compile("[" + characters + "]++"));
    const Held<pcre2_match_data> match(pcre2_match_data_create(1, nullptr));
    if (!match) out_of_memory();
    const PCRE2_SIZE* range = pcre2_get_ovector_pointer(match.get());
    uint32_t c = first;
    size_t at = 0;
    auto* subject = reinterpret_cast<PCRE2_SPTR>(text.data());
    while (pcre2_match(code.get(), subject, text.size(), at, PCRE2_NO_UTF_CHECK, match.get(), nullptr) >= 0)
        for (; at < range[1]; at++) {
            const bool begins = (text[at] & 0xC0) != 0x80, inside = at >= range[0];
            if (begins && inside) classes[c] = uint8_t((classes[c] & ~SYMBOL) | bits);
            c += begins;
        }
}
}    // namespace

const uint8_t* character_classes() {
    static const std::vector<uint8_t> all = [] {
        std::vector<uint8_t> classes(0x110000, SYMBOL);
        for (auto [first, end] : CLASSED) {
            std::string text;
            for (uint32_t c = first; c < end; c++) append_utf8(text, c);
            classify(text, first, "\\p{L}", LETTER, classes.data());
            classify(text, first, "\\p{M}", MARK | UPPER | LOWER, classes.data());
            classify(text, first, "\\p{N}", NUMBER, classes.data());
            classify(text, first, WHITE_SPACE, SPACE, classes.data());
            classify(text, first, "\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}", UPPER, classes.data());
            classify(text, first, "\\p{Ll}\\p{Lm}\\p{Lo}", LOWER, classes.data());
        }
        return classes;
    }();
    return all.data();
}

// ---- cutting ------------------------------------------------------------------------------------

struct Splitter::State {
    std::shared_ptr<const Pretokenizer::Steps> steps;
    Held<pcre2_match_data> match;
    Held<pcre2_match_context> context;
    Held<pcre2_jit_stack> stack;
    View text;
    size_t at = 0, begin = 0, end = 0;    // streaming: end of the emitted pieces; next match
    size_t widened = 0, wall = 0;         // bytes used beyond AHEAD; next cut after exhaustion
    bool exhausted = false;
    std::vector<View> pieces;      // not streaming: all pieces; `at` counts emitted ones
    std::vector<Range> cutting;    // member, so that no piece allocates
    std::string spelled;
    std::vector<size_t> byte;    // offset in the text, by offset in `spelled`

    int run(const pcre2_code* code, View in, size_t from, uint32_t options) {
        auto* subject = reinterpret_cast<PCRE2_SPTR>(in.data());
        return pcre2_match(code, subject, in.size(), from, options, match.get(), context.get());
    }
    int run_bounded(const pcre2_code* code, View in, size_t& from) {
        auto character = [&](size_t i) {
            while (i < in.size() && (in[i] & 0xC0) == 0x80) i++;
            return std::min(i, in.size());
        };
        for (size_t ahead = AHEAD;;) {
            if (exhausted && wall <= from) wall = character(from + AHEAD);
            const size_t stop = exhausted ? wall : character(from + ahead);
            const bool last = exhausted || stop == in.size();
            const int rc = run(code, in.substr(0, stop), from, last ? 0 : PCRE2_PARTIAL_HARD);
            if (rc == PCRE2_ERROR_NOMATCH && stop < in.size()) {    // no match begins before `stop`
                from = stop;
                ahead = AHEAD;
            } else if (rc == PCRE2_ERROR_PARTIAL) {
                if ((widened += ahead *= 4) > WIDENED + 32 * text.size()) exhaust();
            } else if (rc < 0 && rc != PCRE2_ERROR_NOMATCH && !exhausted) {    // PCRE2's limit on steps
                exhaust();
            } else {
                return rc;
            }
        }
    }
    void exhaust() {
        exhausted = true;
        note_once("warning: the tokenizer's regular expression looks ahead too far in a text of " +
                  human_bytes(double(text.size())) +
                  ": parts of it are cut every 1024 bytes first, so their "
                  "tokens may differ from other programs'");
    }
    // Finds the next match from `from` on; false: none. The match data has room for the whole match
    // only, so PCRE2 returns rc = 0 if the regex has groups.
    bool find(const pcre2_code* code, View in, size_t from, size_t& first, size_t& last) {
        const int rc = steps->trusted ? run(code, in, from, 0) : run_bounded(code, in, from);
        CHECK(rc >= 0 || rc == PCRE2_ERROR_NOMATCH || !steps->trusted, "PCRE2 error %d at byte %zu of %zu", rc, from,
              in.size());
        const PCRE2_SIZE* range = pcre2_get_ovector_pointer(match.get());
        if (rc < 0 || range[0] < from || range[1] < range[0]) return false;
        first = range[0], last = range[1];
        return true;
    }
    void ranges(const pcre2_code* code, View in, bool invert) {
        cutting.clear();
        wall = 0;
        size_t done = 0;
        for (size_t from = 0, first = 0, last = 0; from <= in.size() && find(code, in, from, first, last);) {
            if (first > done) cutting.push_back({done, first, invert});
            cutting.push_back({first, last, !invert});
            done = last;
            bool whole = false;    // after an empty match, the next character
            from = last > first ? last : last + (last < in.size() ? utf8_character(in.substr(last), whole) : 1);
        }
        if (done < in.size()) cutting.push_back({done, in.size(), invert});
    }
    void cut(const Pretokenizer::Steps::Step& step, View piece, std::vector<View>& out);
    bool next(View& piece);
    void advance() {    // streaming: finds the next non-empty match after `at`
        const pcre2_code* code = steps->all[0].code.get();
        bool found = find(code, text, at, begin, end), whole = false;
        if (found && end == at) found = find(code, text, at + utf8_character(text.substr(at), whole), begin, end);
        if (!found) begin = end = text.size();
    }
};

namespace {
// Turns matches and the text between into pieces, by Hugging Face's SplitDelimiterBehavior.
void join(std::vector<Range>& all, Split::Behavior how) {
    std::vector<Range> out;
    bool previous = false;
    if (how == Split::Behavior::merged_with_next) std::reverse(all.begin(), all.end());
    for (const Range& r : all) {
        const bool joins = how == Split::Behavior::contiguous ? r.match == previous : r.match && !previous;
        previous = r.match;
        if (how == Split::Behavior::removed && r.match) continue;
        if (how == Split::Behavior::removed || !joins || out.empty()) {
            out.push_back(r);
        } else {
            out.back().begin = std::min(out.back().begin, r.begin);
            out.back().end = std::max(out.back().end, r.end);
        }
    }
    if (how == Split::Behavior::merged_with_next) std::reverse(out.begin(), out.end());
    all = std::move(out);
}
}    // namespace

void Splitter::State::cut(const Pretokenizer::Steps::Step& step, View piece, std::vector<View>& out) {
    if (step.spelled) {
        spelled.clear();
        byte.assign(1, 0);
        for (size_t i = 0; i < piece.size(); i++) {
            spelled += byte_alphabet().spelling[static_cast<unsigned char>(piece[i])];
            byte.resize(spelled.size() + 1, i + 1);
        }
        ranges(step.code.get(), spelled, step.invert);
        for (Range& r : cutting) r.begin = byte[r.begin], r.end = byte[r.end];
    } else {
        ranges(step.code.get(), piece, step.invert);
    }
    if (step.behavior != Split::Behavior::isolated) join(cutting, step.behavior);
    for (const Range& r : cutting)
        if (r.end > r.begin) out.push_back(piece.substr(r.begin, r.end - r.begin));
}

Splitter::Splitter(const Pretokenizer& pretokenizer) : s(new State) {
    s->steps = pretokenizer.steps;
    s->match.reset(pcre2_match_data_create(1, nullptr));
    s->context.reset(pcre2_match_context_create(nullptr));
    if (!s->match || !s->context) out_of_memory();
    const uint32_t most = s->steps->trusted ? UINT32_MAX : MOST_STEPS;    // a long run may need many steps
    pcre2_set_match_limit(s->context.get(), most);
    pcre2_set_depth_limit(s->context.get(), most);
    if (s->steps->trusted) return;
    s->stack.reset(pcre2_jit_stack_create(32 << 10, STACK, nullptr));
    if (!s->stack) out_of_memory();
    pcre2_jit_stack_assign(s->context.get(), nullptr, s->stack.get());
}
Splitter::~Splitter() = default;

void Splitter::start(View text) {
    s->text = text;
    s->at = s->begin = s->end = s->widened = s->wall = 0;
    s->exhausted = false;
    s->pieces.clear();
    if (s->steps->streams || text.empty()) return;
    std::vector<View> next;
    s->pieces.push_back(text);
    for (const auto& step : s->steps->all) {
        next.clear();
        for (View piece : s->pieces) s->cut(step, piece, next);
        std::swap(s->pieces, next);
    }
}

bool Splitter::State::next(View& piece) {
    if (!steps->streams) {
        if (at == pieces.size()) return false;
        piece = pieces[at++];
        return true;
    }
    if (at == text.size()) return false;
    if (at == end) advance();
    const size_t to = begin > at ? begin : end;
    piece = text.substr(at, to - at);
    at = to;
    return true;
}
size_t Splitter::next(View* pieces, size_t most) {
    size_t n = 0;
    if (!s->steps->scan) {
        while (n < most && s->next(pieces[n])) n++;
        return n;
    }
    n = s->steps->scan(s->text.substr(s->at), pieces, most);
    if (n) s->at = size_t(pieces[n - 1].data() + pieces[n - 1].size() - s->text.data());
    return n;
}

// ---- where a text may be cut in two -------------------------------------------------------------

size_t space_length(View text) {
    auto* p = reinterpret_cast<const unsigned char*>(text.data());
    const size_t n = text.size();
    if (n == 0) return 0;
    if (p[0] < 0x80) return p[0] == ' ' || (p[0] >= 9 && p[0] <= 13);
    if (p[0] == 0xC2 && n >= 2) return p[1] == 0x85 || p[1] == 0xA0 ? 2 : 0;
    if (n < 3 || p[0] < 0xE1 || p[0] > 0xE3) return 0;
    int tail = p[1] << 8 | p[2];
    if (p[0] == 0xE1) return tail == 0x9A80 ? 3 : 0;
    if (p[0] == 0xE3) return tail == 0x8080 ? 3 : 0;
    bool line = tail == 0x80A8 || tail == 0x80A9, narrow_space = tail == 0x80AF || tail == 0x819F;
    return (tail >= 0x8080 && tail <= 0x808A) || line || narrow_space ? 3 : 0;
}
bool space_before(View text, size_t at) {
    for (size_t n = 1; n <= 3 && n <= at; n++)
        if (space_length(text.substr(at - n, n)) == n) return true;
    return false;
}

// Finds a cut after which both sides have the pieces of the whole text. Spaces are all white space.
// A blank is ' ' or, with the patterns of the last two rows below, a tab. No known pattern looks
// behind, so it suffices that a piece ends at the cut, and that earlier pieces would be equal if
// the text ended there. Only runs of spaces look ahead, so these cuts are safe:
//   all     before a blank that follows a non-space: a piece or a run of spaces begins there.
//   deepseek_llm, deepseek_coder, bloom   the same, but only after a letter: text that no rule
//           matches may continue over the blank.
//   gpt2, smollm   also before a line end that follows a non-space. In other patterns it may belong
//           to the punctuation before it.
//   bert, metaspace   before any blank or line end, and before any mark.
//   cl100k, qwen2, o200k   also after a line end, unless a space follows or, in o200k, a slash,
//           which there continues a run of line ends.
size_t safe_cut(Pattern pattern, View text, size_t limit) {
    if (text.empty() || pattern == Pattern::other || pattern == Pattern::none || pattern == Pattern::lines) return 0;
    if (pattern == Pattern::metaspace) {
        const size_t at = text.rfind(SPACE_MARK, std::min(limit, text.size() - 1));
        return at == View::npos ? 0 : at;
    }
    if (pattern == Pattern::bert) {
        const size_t at = text.find_last_of(" \n", std::min(limit, text.size() - 1));
        return at == View::npos ? 0 : at;
    }
    const bool gpt2 = pattern == Pattern::gpt2 || pattern == Pattern::smollm;
    const bool lines = pattern == Pattern::cl100k || pattern == Pattern::qwen2 || pattern == Pattern::o200k;
    const bool gaps = pattern == Pattern::deepseek_llm || pattern == Pattern::deepseek_coder ||
                      pattern == Pattern::bloom;
    const size_t n = text.size();
    for (size_t at = limit < n ? limit : n - 1; at > 0; at--) {
        const int before = text[at - 1] | 0x20;
        if (gaps && !(before >= 'a' && before <= 'z')) continue;
        const char c = text[at];
        bool line_end = c == '\n' || c == '\r', blank = c == ' ' || (c == '\t' && (gpt2 || lines));
        if ((blank || (line_end && gpt2)) && !space_before(text, at)) return at;
        bool known = static_cast<unsigned char>(c) < 0x80 || n - at >= 3;    // whether it is a space
        if (lines && text[at - 1] == '\n' && known && c != '/' && !space_length(text.substr(at))) return at;
    }
    return 0;
}

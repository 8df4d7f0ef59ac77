// pretokenize.cpp - the patterns, compiled by PCRE2's JIT once for each process.
//
// Both patterns are alternatives over classes of characters. Written as published, `\s+(?!\S)` and `\s*[\r\n]+` try
// again from every length of a run and keep a stack frame for each, so they are written here without backtracking:
//   \s+(?!\S)|\s+   a run of spaces without its last one when something follows  ->  (?:\s(?!\S))++|\s
//   \s*[\r\n]+      a run of spaces up to its last line end                      ->  (?:[^\S\r\n]*+[\r\n]++)++
// and every other repetition is possessive, since its class is disjoint from what may come next.
#define PCRE2_CODE_UNIT_WIDTH 8
#include "pretokenize.h"

#include <pcre2.h>
#include <string>

namespace {
// Unicode's White_Space. PCRE2's own \s would add U+180E, which left it in Unicode 6.3.
#define WIDE "\\x85\\xa0\\x{1680}\\x{2000}-\\x{200a}\\x{2028}\\x{2029}\\x{202f}\\x{205f}\\x{3000}"
#define SPACES "\\x09-\\x0d\\x20" WIDE
#define SPACE "[" SPACES "]"
#define NOT_SPACE "[^" SPACES "]"
#define SPACE_RUN "(?:" SPACE "(?!" NOT_SPACE "))++|" SPACE
#define BLANK "[\\x09\\x0b\\x0c\\x20" WIDE "]"
#define OTHER "[^" SPACES "\\p{L}\\p{N}]"
const char* const GPT2 = "'(?:[stdm]|re|ve|ll)| ?+\\p{L}++| ?+\\p{N}++| ?+" OTHER "++|" SPACE_RUN;
const char* const CL100K = "(?i:'(?:[stdm]|re|ve|ll))|[^\\r\\n\\p{L}\\p{N}]?+\\p{L}++|\\p{N}{1,3}+| ?+" OTHER
                           "++[\\r\\n]*+|(?:" BLANK "*+[\\r\\n]++)++|" SPACE_RUN;

// The length of the white space character that starts at p, 0 for anything else.
size_t space_at(const unsigned char* p, size_t n) {
    if (n == 0) return 0;
    if (p[0] < 0x80) return p[0] == ' ' || (p[0] >= 9 && p[0] <= 13);
    if (p[0] == 0xC2 && n >= 2) return p[1] == 0x85 || p[1] == 0xA0 ? 2 : 0;
    if (n < 3 || p[0] < 0xE1 || p[0] > 0xE3) return 0;
    int tail = p[1] << 8 | p[2];
    if (p[0] == 0xE1) return tail == 0x9A80 ? 3 : 0;
    if (p[0] == 0xE3) return tail == 0x8080 ? 3 : 0;
    bool line = tail == 0x80A8 || tail == 0x80A9, narrow = tail == 0x80AF || tail == 0x819F;
    return (tail >= 0x8080 && tail <= 0x808A) || line || narrow ? 3 : 0;
}
bool space_before(const unsigned char* text, size_t at) {
    for (size_t n = 1; n <= 3 && n <= at; n++)
        if (space_at(text + at - n, n) == n) return true;
    return false;
}

pcre2_code* compile(const char* pattern) {
    int error = 0;
    PCRE2_SIZE offset = 0;
    pcre2_code* code = pcre2_compile(reinterpret_cast<PCRE2_SPTR>(pattern), PCRE2_ZERO_TERMINATED,
                                     PCRE2_UTF | PCRE2_UCP | PCRE2_MATCH_INVALID_UTF, &error, &offset, nullptr);
    CHECK(code, "pattern at %zu: PCRE2 error %d", size_t(offset), error);
    pcre2_jit_compile(code, PCRE2_JIT_COMPLETE);    // where it fails, pcre2_match interprets: slower, the same answer
    return code;
}
const pcre2_code* compiled(Pattern pattern) {
    static const pcre2_code* gpt2 = compile(GPT2);
    static const pcre2_code* cl100k = compile(CL100K);
    return pattern == Pattern::gpt2 ? gpt2 : cl100k;
}
// PCRE2's own limits would end the match of a long run.
pcre2_match_context* without_limits() {
    pcre2_match_context* context = pcre2_match_context_create(nullptr);
    CHECK(context, "out of memory");
    pcre2_set_match_limit(context, UINT32_MAX);
    pcre2_set_depth_limit(context, UINT32_MAX);
    pcre2_set_heap_limit(context, UINT32_MAX);
    return context;
}
}   // namespace

const char* pattern_text(Pattern pattern) {
    return pattern == Pattern::gpt2
        ? R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)"
        : R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|)"
          R"(\s+(?!\S)|\s+)";
}

struct Splitter::State {
    const pcre2_code* code;
    pcre2_match_data* match;
    std::string_view text;
    size_t at = 0, begin = 0, end = 0;    // pieces are given up to at; the match found beyond is [begin, end)
};
Splitter::Splitter(Pattern pattern) : s(new State{compiled(pattern), pcre2_match_data_create(1, nullptr), {}}) {
    CHECK(s->match, "out of memory");
}
Splitter::~Splitter() { pcre2_match_data_free(s->match); }

void Splitter::start(std::string_view text) {
    s->text = text;
    s->at = s->begin = s->end = 0;
}

bool Splitter::next(std::string_view& piece) {
    State& m = *s;
    if (m.at == m.text.size()) return false;
    if (m.at == m.end) {
        auto* subject = reinterpret_cast<PCRE2_SPTR>(m.text.data());
        static pcre2_match_context* const limits = without_limits();
        int rc = pcre2_match(m.code, subject, m.text.size(), m.at, 0, m.match, limits);
        CHECK(rc > 0 || rc == PCRE2_ERROR_NOMATCH, "PCRE2 error %d at byte %zu of %zu", rc, m.at, m.text.size());
        const PCRE2_SIZE* range = pcre2_get_ovector_pointer(m.match);
        m.begin = rc > 0 ? range[0] : m.text.size();
        m.end = rc > 0 ? range[1] : m.text.size();
    }
    size_t to = m.begin > m.at ? m.begin : m.end;
    piece = m.text.substr(m.at, to - m.at);
    m.at = to;
    return true;
}

// Neither pattern looks behind, so a cut keeps the pieces if one ends there anyway and those before it would be the
// same if the text ended there. Only runs of spaces look ahead, so:
//   gpt2    before a space that follows no space: a space can only begin a piece, or be in a run of spaces.
//   cl100k  before a blank that follows no space, likewise; line ends may belong to the punctuation before them, but
//           after the last one of a run of spaces, with no blank behind it, a piece ends.
size_t safe_cut(Pattern pattern, std::string_view text, size_t limit) {
    auto* p = reinterpret_cast<const unsigned char*>(text.data());
    size_t n = text.size();
    if (n == 0) return 0;
    for (size_t at = limit < n ? limit : n - 1; at > 0; at--) {
        bool line_end = p[at] == '\n' || p[at] == '\r', blank = p[at] == ' ' || p[at] == '\t';
        if ((blank || (line_end && pattern == Pattern::gpt2)) && !space_before(p, at)) return at;
        bool known = p[at] < 0x80 || n - at >= 3;    // whether it is a space
        if (pattern == Pattern::cl100k && p[at - 1] == '\n' && known && !space_at(p + at, n - at)) return at;
    }
    return 0;
}

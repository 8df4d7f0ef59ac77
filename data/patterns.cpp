// patterns.cpp - the known pre-tokenizers, one row each.
//
// The regular expressions are exactly the published ones, because a tokenizer.json is recognised by
// comparing with them. Sources: the tokenizer.json of each model; GGUF names: llama.cpp's
// convert_hf_to_gguf.py.
#include "pretokenize.h"
#include "vocabulary.h"

const char* const GPT2_REGEX = R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";

// Unicode's White_Space. PCRE2's \s also has U+180E, which is no white space since Unicode 6.3.
#define WIDE "\\x85\\xa0\\x{1680}\\x{2000}-\\x{200a}\\x{2028}\\x{2029}\\x{202f}\\x{205f}\\x{3000}"
#define SPACES "\\x09-\\x0d\\x20" WIDE
const char* const WHITE_SPACE = SPACES;
const char* const PUNCTUATION = R"([\p{P}$+<=>^`|~])";

namespace {
#define SPACE "[" SPACES "]"
#define BLANK "[\\x09\\x0b\\x0c\\x20" WIDE "]"

// Common patterns have a scanner. Others may have a faster regular expression with equal pieces:
// the published `\s+(?!\S)` tries every length of a run again, so it becomes `(?:\s(?!\S))++|\s`,
// and every other repetition is possessive if its class is disjoint from whatever may follow.
#define CL100K(digits)                                                                                             \
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|)" digits R"(| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|)" \
    R"(\s+(?!\S)|\s+)"
#define O200K(suffix, digits)                                                                            \
    R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+)" suffix             \
    R"(|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*)" suffix "|" digits \
    R"(| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+)"
#define SUFFIXES "(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
#define LETTERS                                                                                                \
    "A-Za-z\u00B5\u00C0-\u00D6\u00D8-\u00F6\u00F8-\u01BA\u01BC-\u01BF\u01C4-\u0293\u0295-\u02AF\u0370-\u0373"  \
    "\u0376\u0377\u037B-\u037D\u037F\u0386\u0388-\u038A\u038C\u038E-\u03A1\u03A3-\u03F5\u03F7-\u0481\u048A-"   \
    "\u052F\u0531-\u0556\u10A0-\u10C5\u13A0-\u13F5\u13F8-\u13FD\u1C90-\u1CBA\u1CBD-\u1CBF\u1D00-\u1D2B\u1D6B-" \
    "\u1D77\u1D79-\u1D9A\u1E00-\u1F15\u1F18-\u1F1D\u1F20-\u1F45\u1F48-\u1F4D\u1F50-\u1F57\u1F59\u1F5B\u1F5D"   \
    "\u1F5F-\u1F7D\u1F80-\u1FB4\u1FB6-\u1FBC\u1FBE\u1FC2-\u1FC4\u1FC6-\u1FCC\u1FD0-\u1FD3\u1FD6-\u1FDB\u1FE0-" \
    "\u1FEC\u1FF2-\u1FF4\u1FF6-\u1FFC\u2102\u2107\u210A-\u2113\u2115\u2119-\u211D\u2124\u2126\u2128\u212A-"    \
    "\u212D\u212F-\u2134\u2139\u213C-\u213F\u2145-\u2149\u214E\u2183\u2184\u2C00-\u2C7B\u2C7E-\u2CE4\u2CEB-"   \
    "\u2CEE\u2CF2\u2CF3\uA640-\uA66D\uA680-\uA69B\uA722-\uA76F\uA771-\uA787\uA78B-\uA78E\uAB70-\uABBF\uFB00-"  \
    "\uFB06\uFB13-\uFB17\uFF21-\uFF3A\uFF41-\uFF5A\U00010400-\U0001044F\U000104B0-\U000104D3\U000104D8-"       \
    "\U000104FB\U00010C80-\U00010CB2\U00010CC0-\U00010CF2\U000118A0-\U000118DF\U0001E900-\U0001E943"
// The characters are written as escapes, because editors may compose some of them.
#define CJK "[\u4E00-\u9FA5\u0800-\u4E00\uAC00-\uD7FF]"

// One regex for all steps of "default". The published first step splits off punctuation, so that
// the suffixes of GPT2_REGEX ('s, 't, ...) never match. The third splits digits from the space
// before them.
#define MARKS "\\p{P}$+<=>^~|"
const char* const DEFAULT_FAST = "[" MARKS "]++| ?+\\p{L}++|[0-9]{3}|(?:(?![0-9]{3})\\p{N})++| ?+[^" SPACES
                                 "\\p{L}\\p{N}" MARKS "]++|(?:" SPACE "(?![^" SPACES MARKS "]))++|" SPACE;
// One regex for all steps of "deepseek-coder". The published fourth step splits pieces of letters
// or of punctuation, which may begin with a space, around runs of CJK. The fifth splits off digits.
#define IN_CJK(what) "(?:(?=" what ")" CJK ")"
#define NOT_CJK(what) "(?:(?!" CJK ")" what ")"
#define RUNS(ascii, what)                                                                                     \
    NOT_CJK(BLANK)                                                                                            \
    "?+(?:" ascii "++|" NOT_CJK(what) ")++|" NOT_CJK(BLANK) "(?=" IN_CJK(what) ")|" IN_CJK(BLANK) "?" IN_CJK( \
        what) "++|" IN_CJK(BLANK) "(?=" what ")|"
const char* const CODER_FAST = "[\\r\\n]|" RUNS("[A-Za-z]", "\\p{L}")
    RUNS("[.,;]", "\\p{P}") "(?:(?!" BLANK "?+[\\p{L}\\p{P}]|\\p{N})" CJK ")++|\\p{N}";

std::vector<Split> splits(std::initializer_list<const char*> regexes) {
    std::vector<Split> all;
    for (const char* regex : regexes) all.push_back({regex});
    return all;
}
Split spelled(const char* regex) { return {regex, Split::Behavior::isolated, false, true}; }
}    // namespace

const std::vector<PatternRow>& pattern_rows() {
    static const std::vector<PatternRow> rows = {
        {Pattern::gpt2,
         "gpt2",
         {{"gpt-2 phi-2 jais trillion granite-docling jina-es jina-de jina-v2-es jina-v2-de a.x-4.0 mellum "
           "gigachat roberta-bpe jina-v1-en jina-v2-code exaone4"},
          {.names = "mpt olmo modern-bert", .nfc = true}},
         splits({GPT2_REGEX}),
         nullptr,
         scan_gpt2},
        {Pattern::cl100k,
         "cl100k",
         {{"dbrx smaug-bpe chatglm-bpe"},
          {.names = "llama-bpe llama3 llama-v3 falcon3 falcon-h1 pixtral midm-2.0 lfm2 jina-v5-nano",
           .ignore_merges = true,
           .bos = true},
          {.names = "glm4 glm5", .ignore_merges = true}},
         splits({CL100K(R"(\p{N}{1,3})")}),
         nullptr,
         scan_cl100k},
        {Pattern::qwen2,
         "qwen2",
         {{.names = "qwen2 stablelm2 deepseek-r1-qwen", .nfc = true},
          {"megrez hunyuan solar-open grok-2 kormo f2llmv2"}},
         splits({CL100K(R"(\p{N})")}),
         nullptr,
         scan_qwen2},
        {Pattern::o200k,
         "o200k",
         {{"gpt-4o llama4 kanana2 minimax-m2"}},
         splits({O200K(SUFFIXES, R"(\p{N}{1,3})")}),
         nullptr,
         scan_o200k},
        {Pattern::smollm,
         "smollm",
         {{"smollm starcoder refact codeshell exaone minerva-7b mellum2"}, {.names = "command-r", .nfc = true}},
         splits({R"(\p{N})", GPT2_REGEX}),
         nullptr,
         scan_smollm},
        {Pattern::tekken,
         "tekken",
         {{.names = "tekken", .ignore_merges = true, .bos = true}},
         splits({O200K("", R"(\p{N})")}),
         nullptr,
         scan_tekken},
        {Pattern::qwen35,
         "qwen35",
         {{"qwen35"}},
         splits({R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|)"
                 R"(\s*[\r\n]+|\s+(?!\S)|\s+)"}),
         nullptr,
         scan_qwen35},
        {Pattern::deepseek_v3,
         "deepseek-v3",
         {{"deepseek-v3 hunyuan-dense joyai-llm"}},
         splits({R"(\p{N}{1,3})", "[\u4E00-\u9FA5\u3040-\u309F\u30A0-\u30FF]+",
                 R"([!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^)"
                 "\r\n"
                 R"(\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+|)"
                 R"( ?[\p{P}\p{S}]+[)"
                 "\r\n"
                 R"(]*|\s*[)"
                 "\r\n"
                 R"(]+|\s+(?!\S)|\s+)"})},
        {Pattern::deepseek_llm,
         "deepseek-llm",
         {{"deepseek-llm"}},
         splits({"[\r\n]", "\\s?[" LETTERS "]+", "\\s?[!-/:-~\uFF01-\uFF0F\uFF1A-\uFF5E\u2018-\u201F\u3000-\u3002]+",
                 "\\s+$", CJK "+", R"(\p{N})"})},
        {Pattern::deepseek_coder,
         "deepseek-coder",
         {{"deepseek-coder"}},
         splits({"[\r\n]", R"(\s?\p{L}+)", R"(\s?\p{P}+)", CJK "+", R"(\p{N})"}),
         CODER_FAST},
        {Pattern::falcon,
         "falcon",
         {{"falcon"}},
         {{R"([\p{P}$+<=>^`|~]+)"}, {GPT2_REGEX}, spelled(R"(\p{N}+)"), spelled("[0-9][0-9][0-9]")}},
        {Pattern::bloom,
         "bloom",
         {{"bloom poro-chat gpt3-finnish"}},
         splits({" ?[^(\\s|[.,!?\u2026\u3002\uFF0C\u3001\u0964\u06D4\u060C])]+"})},
        {Pattern::gguf_default,
         "default",
         {{"default"}},
         splits({R"([\p{P}$+<=>^~|]+)", GPT2_REGEX, R"(\p{N}+)", "[0-9][0-9][0-9]"}),
         DEFAULT_FAST},
        {Pattern::lines, "lines", {{"gemma4 sarvam-moe"}}, splits({R"([^\n]+|[\n]+)"})},
        {Pattern::bert, "bert", {}, {{SPACE, Split::Behavior::removed}, {PUNCTUATION}}, nullptr, scan_bert},
        {Pattern::metaspace,
         "metaspace",
         {},
         {{SPACE_MARK, Split::Behavior::merged_with_next}},
         nullptr,
         scan_metaspace},
        {Pattern::none, "none", {}, {}},
    };
    return rows;
}

const PatternRow& pattern_row(Pattern pattern) {
    const PatternRow& row = pattern_rows().at(size_t(pattern));
    CHECK(row.pattern == pattern, "pattern %d is not in its place", int(pattern));
    return row;
}
Pattern known_pattern(const std::vector<Split>& splits) {
    // Newer files spell cl100k with possessive repetitions.
    static const std::vector<Split> possessive = {
        {R"('(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]++[\r\n]*|\s*[\r\n]|)"
         R"(\s+(?!\S)|\s+)"}};
    if (splits == possessive) return Pattern::cl100k;
    for (const PatternRow& row : pattern_rows())
        if (row.splits == splits) return row.pattern;
    return Pattern::other;
}

// pretokenize.h - splits text into pieces; symbols merge only within a piece.
#pragma once
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/common.h"
#include "scan.h"

// One step of tokenizer.json's pre-tokenizer: matches of the regular expression (invert: the text
// between matches) become pieces. Each step splits the pieces of the step before. The steps Digits
// and Punctuation are expressed like this, too.
struct Split {
    enum class Behavior { isolated, removed, contiguous, merged_with_previous, merged_with_next };
    std::string regex;
    Behavior behavior = Behavior::isolated;
    bool invert = false;
    bool spelled = false;    // matches text in GPT-2's byte alphabet, as after ByteLevel
    bool operator==(const Split&) const = default;
};

// Known pre-tokenizers, each a row of patterns.cpp. none: one piece. other: steps from a file.
enum class Pattern {
    gpt2,
    cl100k,
    qwen2,
    o200k,
    smollm,
    tekken,
    qwen35,
    deepseek_v3,
    deepseek_llm,
    deepseek_coder,
    falcon,
    bloom,
    gguf_default,
    lines,
    bert,
    metaspace,
    none,
    other
};
// Names in GGUF's tokenizer.ggml.pre, separated by spaces. Such a name also implies the properties
// below: ignore_merges and bos as in llama.cpp, nfc as in the tokenizer.json of models with this
// name.
struct GgufPre {
    const char* names;    // the first one is written
    bool ignore_merges = false, nfc = false;
    bool bos = false;    // BOS is added if the file has no add_bos_token
};
struct PatternRow {
    Pattern pattern;
    const char* name;    // name in --pattern and messages
    std::vector<GgufPre> gguf;
    std::vector<Split> splits;     // as published
    const char* fast = nullptr;    // one regex: equal pieces, no backtracking over runs
    ScanPieces scan = nullptr;     // a scanner: equal pieces, without PCRE2
};
const std::vector<PatternRow>& pattern_rows();    // by Pattern, without `other`
const PatternRow& pattern_row(Pattern pattern);
Pattern known_pattern(const std::vector<Split>& splits);    // Pattern::other: no row has these steps
extern const char* const GPT2_REGEX;
// Unicode's White_Space, as items of a class of a regular expression.
extern const char* const WHITE_SPACE;
extern const char* const PUNCTUATION;    // regular expression: Unicode's and ASCII's

// A pre-tokenizer's compiled steps.
class Pretokenizer {
  public:
    // Compiles the steps. Exit 3: PCRE2 cannot compile one, or reads it differently from Oniguruma.
    static Result<Pretokenizer> compile(const std::vector<Split>& splits);
    static const Pretokenizer& known(Pattern pattern);    // compiled once per process

  private:
    friend class Splitter;
    struct Steps;
    std::shared_ptr<const Steps> steps;
};

// Yields a text's pieces in order. Invalid UTF-8 becomes pieces between matches. Classes of letters
// and digits are those of PCRE2's Unicode version (10.42: Unicode 14).
class Splitter {
  public:
    explicit Splitter(const Pretokenizer& pretokenizer);
    explicit Splitter(Pattern pattern) : Splitter(Pretokenizer::known(pattern)) {}
    ~Splitter();
    void start(std::string_view text);                                     // text must live until the last call of next
    bool next(std::string_view& piece) { return next(&piece, 1) == 1; }    // false at the end
    size_t next(std::string_view* pieces, size_t most);                    // number of pieces; 0 at the end

  private:
    struct State;
    std::unique_ptr<State> s;
};

// Largest offset in (0, limit] at which a cut keeps the pieces, whatever follows text; 0: none.
size_t safe_cut(Pattern pattern, std::string_view text, size_t limit);
bool space_before(std::string_view text, size_t at);    // whether the character before `at` is white space
size_t space_length(std::string_view text);             // bytes of a leading white space character; 0: none

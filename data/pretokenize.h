// pretokenize.h - cuts text into the pieces inside which symbols may merge.
#pragma once
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/common.h"

// One step of cutting, as tokenizer.json has it: where a regular expression matches (or, inverted, between the matches)
// a piece is cut out. Each step cuts the pieces of the one before. Digits and Punctuation are such steps, too.
struct Split {
    enum class Behavior { isolated, removed, contiguous, merged_with_previous, merged_with_next };
    std::string regex;
    Behavior behavior = Behavior::isolated;
    bool invert = false;
    bool spelled = false;    // sees each byte as its character of GPT-2's alphabet: the steps behind ByteLevel
    bool operator==(const Split&) const = default;
};

// The pre-tokenizers that are known: rows of patterns.cpp. none: a text is one piece. other: any steps from a file.
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
    none,
    other
};
// Values of tokenizer.ggml.pre, with spaces between, and what these names mean besides the cuts. A GGUF does not say it
// otherwise: ignore_merges and bos are llama.cpp's, nfc is what the models do that bear the names.
struct GgufPre {
    const char* names;    // the first is written
    bool ignore_merges = false, nfc = false;
    bool bos = false;    // BOS comes before a text where add_bos_token is missing
};
struct PatternRow {
    Pattern pattern;
    const char* name;    // for --pattern and messages
    std::vector<GgufPre> gguf;
    std::vector<Split> splits;     // as published
    const char* fast = nullptr;    // one regular expression with the same pieces and no backtracking over runs
};
const std::vector<PatternRow>& pattern_rows();    // by Pattern, without `other`
const PatternRow& pattern_row(Pattern pattern);
Pattern known_pattern(const std::vector<Split>& splits);    // the row with these steps, or Pattern::other
extern const char* const GPT2_REGEX;

// Compiled steps.
class Pretokenizer {
  public:
    // Exit 3 where PCRE2 cannot compile a step, or would take it for something else than Oniguruma does.
    static Result<Pretokenizer> compile(const std::vector<Split>& splits);
    static const Pretokenizer& known(Pattern pattern);    // compiled once for each process

  private:
    friend class Splitter;
    struct Steps;
    std::shared_ptr<const Steps> steps;
};

// The pieces of a text, in order. Bytes that are not UTF-8 are pieces between the matches. PCRE2 knows the letters and
// digits of its own Unicode version (10.42: Unicode 14).
class Splitter {
  public:
    explicit Splitter(const Pretokenizer& pretokenizer);
    explicit Splitter(Pattern pattern) : Splitter(Pretokenizer::known(pattern)) {}
    ~Splitter();
    void start(std::string_view text);     // text stays the caller's and must live until the last next
    bool next(std::string_view& piece);    // false at the end

  private:
    struct State;
    std::unique_ptr<State> s;
};

// The largest place in (0, limit] where text may be cut in two without changing the pieces, whatever follows text; 0
// where there is none.
size_t safe_cut(Pattern pattern, std::string_view text, size_t limit);
bool space_before(std::string_view text, size_t at);    // whether the character that ends at `at` is white space
size_t space_length(std::string_view text);    // bytes of the white space character that text begins with, or 0

// pretokenize.h - splits text into the pieces inside which symbols may merge.
#pragma once
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/common.h"

// One step of tokenizer.json's pre-tokenizer: matches of the regular expression (inverted: the text
// between them) become pieces. Each step splits the pieces of the step before. Digits and
// Punctuation are such steps, too.
struct Split {
    enum class Behavior { isolated, removed, contiguous, merged_with_previous, merged_with_next };
    std::string regex;
    Behavior behavior = Behavior::isolated;
    bool invert = false;
    bool spelled = false;    // matches bytes as GPT-2's alphabet: steps after ByteLevel
    bool operator==(const Split&) const = default;
};

// Known pre-tokenizers: rows of patterns.cpp. none: one piece. other: steps from a file.
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
// Values of tokenizer.ggml.pre, separated by spaces, and properties that these names imply besides
// the split, because a GGUF has no keys for them: ignore_merges and bos are llama.cpp's; nfc
// follows the models that use the names.
struct GgufPre {
    const char* names;    // the first is written
    bool ignore_merges = false, nfc = false;
    bool bos = false;    // adds BOS where add_bos_token is missing
};
struct PatternRow {
    Pattern pattern;
    const char* name;    // for --pattern and messages
    std::vector<GgufPre> gguf;
    std::vector<Split> splits;     // as published
    const char* fast = nullptr;    // one regex, equal pieces, no backtracking over runs
};
const std::vector<PatternRow>& pattern_rows();    // by Pattern, without `other`
const PatternRow& pattern_row(Pattern pattern);
Pattern known_pattern(const std::vector<Split>& splits);    // the row with these steps, or Pattern::other
extern const char* const GPT2_REGEX;

// Compiled steps.
class Pretokenizer {
  public:
    // Exit 3: PCRE2 cannot compile a step, or reads it differently from Oniguruma.
    static Result<Pretokenizer> compile(const std::vector<Split>& splits);
    static const Pretokenizer& known(Pattern pattern);    // compiled once per process

  private:
    friend class Splitter;
    struct Steps;
    std::shared_ptr<const Steps> steps;
};

// Yields the pieces of a text in order. Bytes that are not UTF-8 become pieces between the matches.
// Letters and digits follow PCRE2's Unicode version (10.42: Unicode 14).
class Splitter {
  public:
    explicit Splitter(const Pretokenizer& pretokenizer);
    explicit Splitter(Pattern pattern) : Splitter(Pretokenizer::known(pattern)) {}
    ~Splitter();
    void start(std::string_view text);     // text must live until the last next
    bool next(std::string_view& piece);    // false at the end

  private:
    struct State;
    std::unique_ptr<State> s;
};

// The largest offset in (0, limit] where text may be cut without changing the pieces, whatever
// follows text; 0: none.
size_t safe_cut(Pattern pattern, std::string_view text, size_t limit);
bool space_before(std::string_view text, size_t at);    // whether white space ends at `at`
size_t space_length(std::string_view text);             // bytes of leading white space character, or 0

// pretokenize.h - cuts text into the pieces inside which byte pairs may merge.
#pragma once
#include <memory>
#include <string_view>

#include "base/common.h"

enum class Pattern { gpt2, cl100k };

// The pattern as published, for messages, tokenizer.json and the test that holds Splitter to it.
const char* pattern_text(Pattern pattern);

// The pieces of a text, in order and without gaps. Bytes that are not UTF-8 are pieces between the matches. PCRE2 knows
// the letters and digits of its own Unicode version (10.42: Unicode 14).
class Splitter {
  public:
    explicit Splitter(Pattern pattern);
    ~Splitter();
    void start(std::string_view text);          // text stays the caller's and must live until the last next
    bool next(std::string_view& piece);         // false at the end

  private:
    struct State;
    std::unique_ptr<State> s;
};

// The largest place in (0, limit] where text may be cut in two without changing the pieces, whatever follows text; 0
// where there is none.
size_t safe_cut(Pattern pattern, std::string_view text, size_t limit);

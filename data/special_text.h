// special_text.h - special tokens that a text spells: found, and kept whole where the text is cut.
#pragma once
#include "added.h"
#include "bpe.h"

class SpecialText {
  public:
    explicit SpecialText(const Tokenizer& tokenizer);
    // The first special token that the text spells; -1: none.
    int spelled(std::string_view text) const;
    // As Tokenizer::safe_cut, of a text that is encoded with its special tokens.
    size_t safe_cut(std::string_view text, size_t limit) const;

  private:
    Tokenizer tokenizer;
    AddedTokens raw, late;    // looked for in the text, in the normalized text
};

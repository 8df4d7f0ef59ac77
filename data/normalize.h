// normalize.h - changes text as a tokenizer requires: Unicode forms, replacements, marks for
// spaces.
#pragma once
#include <string>
#include <string_view>
#include <vector>

#include "vocabulary.h"

// Applies `steps`; invalid UTF-8 stays. `follows`: the text continues another one, so it gets no
// prefix.
std::string normalized(std::string_view text, const std::vector<Normalization>& steps, bool follows);
// Checks cheaply whether `steps` leave text unchanged; false: unknown.
bool is_normalized(std::string_view text, const std::vector<Normalization>& steps, bool follows);
// Whether the last character is a letter or a number that no space after it changes.
bool ends_word(std::string_view text);
// Marks spaces as `spaces` requires. `beginning`: the text is at the start of the whole text.
// `follows`: the text continues another one.
std::string marked(std::string_view text, Spaces spaces, bool beginning, bool follows);

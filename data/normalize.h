// normalize.h - a text in the form that a tokenizer's vocabulary has: Unicode forms, replacements, marks for spaces.
#pragma once
#include <string>
#include <string_view>
#include <vector>

#include "vocabulary.h"

// Bytes that are not UTF-8 stay as they are. follows: text goes on one that came before, and gets no prefix.
std::string normalized(std::string_view text, const std::vector<Normalization>& steps, bool follows);
// Whether `steps` would leave text alone, found out without doing it; false: perhaps not.
bool is_normalized(std::string_view text, const std::vector<Normalization>& steps, bool follows);
// beginning: of the whole text.
std::string marked(std::string_view text, Spaces spaces, bool beginning, bool follows);

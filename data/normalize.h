// normalize.h - a tokenizer's normalization: Unicode forms, replacements, marks for spaces.
#pragma once
#include <string>
#include <string_view>
#include <vector>

#include "vocabulary.h"

// Bytes that are not UTF-8 stay unchanged. follows: text continues another and gets no prefix.
std::string normalized(std::string_view text, const std::vector<Normalization>& steps, bool follows);
// A cheap check that `steps` leave text unchanged; false: unknown.
bool is_normalized(std::string_view text, const std::vector<Normalization>& steps, bool follows);
// beginning: text is at the start of the whole text.
std::string marked(std::string_view text, Spaces spaces, bool beginning, bool follows);

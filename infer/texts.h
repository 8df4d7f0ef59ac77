// texts.h - the loss of texts, each by itself, several in a forward pass.
#pragma once
#include "generate.h"

// The tokens of each line of a file that is not blank, or of the field of each JSON line; `begin` before each, and BOS
// where the tokenizer puts it there instead. Exit 3 naming the line.
Result<std::vector<std::vector<int>>> read_texts(const std::string& path, const std::string& field,
                                                 const Tokenizer& tokenizer, const std::vector<int>& begin);

// Each text's loss over all tokens but its first one, or over the masked ones, or those after a prefix: which these are
// is drawn by its number in the file. Longer texts than the model's plan come in pieces that do not see each other.
// Pieces of about the same length are computed together, the shorter ones padded: to rounding, each has the loss that it
// would have alone.
std::vector<Evaluation> evaluate_texts(Model& g, const Tokenizer& tokenizer,
                                       const std::vector<std::vector<int>>& texts, const Objective& objective);
Evaluation together(const std::vector<Evaluation>& each);

// texts.h - the loss of texts, each by itself, several in a forward pass.
#pragma once
#include "evaluate.h"

struct Line {
    std::string text;
    int64_t number;    // in the file, from 1
};
// A file's lines that are not blank, or the field of its JSON lines (.jsonl, .ndjson; empty: text). -: standard input.
// Exit 3 naming the line, or where there is none; 2 where a field is given and the lines are no JSON.
Result<std::vector<Line>> read_lines(const std::string& path, const std::string& field);
// Their tokens; `begin` before each, and BOS where the tokenizer puts it there instead.
std::vector<std::vector<int>> encode_texts(const std::vector<Line>& lines, const Tokenizer& tokenizer,
                                           const std::vector<int>& begin);

// The ids below V that stand for text: all where the tokenizer is unknown. Tokens are drawn from these.
std::vector<int> ordinary_tokens(const Tokenizer& tokenizer, int V);

// Each text's loss over all tokens but its first one, or over the masked ones, or those after a prefix: which these are
// is drawn by its number in the file. Longer texts than the model's plan come in pieces that do not see each other.
// Pieces of about the same length are computed together, the shorter ones padded: to rounding, each has the loss that
// it would have alone.
std::vector<Evaluation> evaluate_texts(Model& g, const Tokenizer& tokenizer,
                                       const std::vector<std::vector<int>>& texts, const Objective& objective);
Evaluation together(const std::vector<Evaluation>& each);

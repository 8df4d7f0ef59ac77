// needle.h - is something found again that was said once, at every depth of a context, for every length of it?
//
// A sequence is filler, with a needle in it: a key and its value, each NEEDLE_TOKENS random tokens. At its end the key
// comes again. It is found where the value's tokens are each the likeliest next one.
#pragma once
#include <functional>

#include "infer/decode/generate.h"

constexpr int NEEDLE_TOKENS = 4;

struct NeedleOptions {
    int longest = 0;    // tokens of the longest sequence, question and answer included
    int depths = 11, lengths = 8, trials = 4;
    int64_t seed = 1;
    int batch = 8;                                // sequences at once
    std::vector<int> begin = {}, choices = {};    // what a sequence begins with; the tokens to draw from
    std::vector<int> haystack = {};               // each trial begins at a random place of it; empty: random tokens
};
struct NeedleCell {
    int length;
    double depth;    // the part of the filler that lies before the needle
    int trials = 0, found = 0;
    double logprob = 0;    // mean of the value's tokens, nats
};
// A sequence of a trial; its last NEEDLE_TOKENS are the answer.
std::vector<int> needle_sequence(const NeedleOptions& o, int length, double depth, int trial);
// Cells by length, then depth. Lengths too short for a needle are left out. Exit 2: all are, or there are too few
// tokens to draw from; 5. progress may be empty: in tokens. A model whose prompts see all of themselves needs a plan of
// batch sequences of the longest length.
Result<std::vector<NeedleCell>> find_needles(Model& model, const NeedleOptions& o,
                                             const std::function<void(int64_t done, int64_t all)>& progress);

std::string needle_json(const std::vector<NeedleCell>& cells);
void print_needles(const std::vector<NeedleCell>& cells);
// Exit 2, 4: as of replace_file.
Status write_needle_csv(const std::string& path, const std::vector<NeedleCell>& cells);
Status write_needle_picture(const std::string& path, const std::vector<NeedleCell>& cells);

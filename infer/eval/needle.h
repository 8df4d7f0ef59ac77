// needle.h - needle-in-a-haystack test: retrieval of a fact by its depth and the context length.
//
// A sequence is a haystack with a needle in it: a key and its value, each NEEDLE_TOKENS random
// tokens. The key comes again at the end. The needle is found if each value token is the most
// probable next one.
#pragma once
#include <functional>

#include "files/json_write.h"
#include "infer/decode/generate.h"

constexpr int NEEDLE_TOKENS = 4;

struct NeedleOptions {
    int longest = 0;    // tokens of the longest sequence, question and answer included
    int depths = 11, lengths = 8, trials = 4;
    int64_t seed = 1;
    int batch = 8;                     // sequences per pass
    std::vector<int> begin = {};       // first tokens of a sequence, such as BOS
    std::vector<int> choices = {};     // random tokens are drawn from these
    std::vector<int> haystack = {};    // each trial uses a random part; empty: random tokens
};
struct NeedleCell {
    int length;
    double depth;    // fraction of the haystack before the needle
    int trials = 0, found = 0;
    double logprob = 0;    // mean over the value's tokens, nats
};
// A trial's sequence. Its last NEEDLE_TOKENS tokens are the answer.
std::vector<int> needle_sequence(const NeedleOptions& o, int length, double depth, int trial);
// Returns the cells ordered by length, then depth. Lengths too short for a needle are omitted.
// `progress` counts tokens and may be empty. If prompts are bidirectional, each runs in one pass,
// so model.plan must allow `batch` sequences of the longest length. Exit 2: all lengths are too
// short, or there are too few tokens to draw from. Exit 5: no memory.
Result<std::vector<NeedleCell>> find_needles(Model& model, const NeedleOptions& o,
                                             const std::function<void(int64_t done, int64_t all)>& progress);

Json needle_json(const std::vector<NeedleCell>& cells);
void print_needles(const std::vector<NeedleCell>& cells);
// Writes the cells to a file. Errors are those of replace_file (exit 2, 4).
Status write_needle_csv(const std::string& path, const std::vector<NeedleCell>& cells);
Status write_needle_picture(const std::string& path, const std::vector<NeedleCell>& cells);

// generate.h - text out of a model: sampling from logits, generation with a key/value cache, loss over shards.
#pragma once
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "data/bpe.h"
#include "data/loader.h"
#include "gpt.h"

struct Sampling {
    double temperature = 0.8;         // 0: always the likeliest token
    int top_k = 50;                   // only the k likeliest; 0: all
    double top_p = 1;                 // the smallest set of likeliest tokens with at least this probability
    double min_p = 0;                 // no token below min_p times the likeliest one's probability
    double repetition_penalty = 1;    // logits of tokens seen so far: divided where positive, multiplied where negative
    uint64_t seed = 1;
};
// Keskar et al. 2019 (penalty), Fan et al. 2018 (top-k), Holtzman et al. 2020 (top-p), Nguyen et al. 2024 (min-p), in
// the order penalty, temperature, top-k, top-p, min-p. A pure function: the random number is philox(seed, sequence,
// place).
int sample_token(const float* logits, int V, const Sampling& s, const std::vector<int>& seen, uint64_t sequence,
                 uint64_t place);

struct Generation {
    std::vector<int> prompt = {};    // at least one token
    int num = 1, tokens = 200;       // sequences, new tokens each at most
    Sampling sampling;
    std::vector<std::string> stop = {};    // a sequence ends before the first of these
    bool end_of_text = true;               // ... and at <|endoftext|>
    std::function<bool(int sequence, std::string_view text)> text =
        {};                                               // whole UTF-8 characters; false: stop everything
    std::function<void(const std::string&)> note = {};    // what a person should know
};
struct Generated {
    std::vector<std::string> texts;    // without the prompt
    int64_t tokens = 0;                // generated, of all sequences
};
// What a text without a prompt begins with: end-of-text, as documents do; a line's start where the tokenizer has none,
// or where it began fewer than 16 documents of the training data (-1: unknown, as of a model from elsewhere).
std::vector<int> beginning_of_text(const Tokenizer& tokenizer, int64_t documents);

// The prompt is fed once and shared by all sequences. When the context is full, the last half of it is fed again and
// generation goes on from there (with a note).
Result<Generated> generate(Model& g, const Tokenizer& tokenizer, const Generation& what);

struct Evaluation {
    double loss = 0;    // mean, nats per token
    int64_t tokens = 0;
    double bits_per_byte = 0;    // over the bytes that the target tokens stand for; 0 where the tokenizer is unknown
};
// Every window of the loader's epoch once, in its order; g is forward only here. The windows' losses are added in that
// order: the result does not depend on the batch size B or the number of ranks, beyond what the products round. watch:
// the ranks take turns at the batches, as their loaders do. progress may be empty.
Result<Evaluation> evaluate(Model& g, Loader& loader, const Tokenizer& tokenizer, int B, int S,
                            const std::function<void(int64_t done, int64_t windows)>& progress = {},
                            Watch* watch = nullptr);
std::string evaluation_progress(const char* what, int64_t done, int64_t windows, double seconds);    // with its ETA

// sampler.h - one token out of a sequence's logits: penalties, then what is left to draw from.
#pragma once
#include <memory>
#include <string>
#include <vector>

#include "data/bpe.h"

struct Sampling {
    double temperature = 0.8;         // 0: always the likeliest token
    int top_k = 50;                   // only the k likeliest; 0: all
    double top_p = 1;                 // the smallest set of likeliest tokens with at least this probability
    double min_p = 0;                 // no token below min_p times the likeliest one's probability
    double repetition_penalty = 1;    // logits of tokens seen so far: divided where positive, multiplied where negative
    uint64_t seed = 1;
};

// Chooses a sequence's tokens. Keskar et al. 2019 (penalty), Fan et al. 2018 (top-k), Holtzman et al. 2020 (top-p),
// Nguyen et al. 2024 (min-p), in the order penalty, temperature, top-k, top-p, min-p.
class Sampler {
  public:
    struct Choice {
        int id = 0;
    };
    Sampler() = default;
    // For sequence 0, which has no tokens yet. V: tokens to choose from; logits may have more.
    static Result<Sampler> open(const Sampling& s, const Tokenizer& tokenizer, int V);
    Sampler of(uint64_t sequence) const;    // the same for another sequence, as open left it

    void see(const std::vector<int>& prompt);
    // A pure function of logits (V), the tokens so far and place: its random number is philox(seed, sequence, place).
    Choice choose(const float* logits, uint64_t place) const;
    void take(const Choice& choice);    // what was chosen, or another token: the next one follows it
    bool done() const { return false; }    // nothing may follow

  private:
    Sampling s;
    int V = 0;
    uint64_t sequence = 0;
    std::vector<int> seen;    // in order of ids, each once
};

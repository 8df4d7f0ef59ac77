// sampler.h - one token out of a sequence's logits.
//
// The order, whichever of them are on: logit biases; repetition penalty; presence and frequency penalties; DRY;
// grammar; temperature; then either mirostat or top-n-sigma, top-k, typical-p, top-p, min-p; then a random number. Each
// sees what the ones before it leave; but top-n-sigma's deviation is that of all tokens, the grammar's or not.
#pragma once
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "grammar.h"
#include "layers/ops.h"
#include "penalties.h"

struct Sampling {
    double temperature = 0.8;    // 0: always the likeliest token
    int top_k = 50;              // only the k likeliest; 0: all (Fan et al. 2018)
    double top_p = 1;            // the smallest set of likeliest tokens with at least this probability (Holtzman 2020)
    double min_p = 0;            // no token below min_p times the likeliest one's probability (Nguyen et al. 2024)
    double typical_p = 1;        // ... of tokens whose surprise is nearest to what is expected (Meister et al. 2023)
    double top_n_sigma = 0;      // no logit further below the largest one than n standard deviations of all (Tang et
                                 // al. 2024); 0: off
    double mirostat = 0;         // aims at this surprise, in bits (version 2 of Basu et al. 2021, by whom surprise is
                                 // that of the whole distribution; llama.cpp's is that of what is left); 0: off
    double mirostat_rate = 0.1;
    Penalties penalties = {};
    std::shared_ptr<const Grammar> grammar = {};    // what may be generated; null: anything
    uint64_t seed = 1;
};

constexpr const char* NO_TOKEN =
    "the text ends here: no token of the vocabulary fits the grammar, or too many "
    "ways lead through it";

class Sampler {
  public:
    struct Choice {
        int id = 0;             // -1: the grammar allows none, and no token ends a text
        double surprise = 0;    // in bits; for mirostat
    };
    Sampler() = default;
    // For sequence 0, which has no tokens yet. V: tokens to choose from; logits may have more. ends: tokens that may
    // stand where the grammar may end. exit 2: penalties that name no token
    static Result<Sampler> open(const Sampling& sampling, const Tokenizer& tokenizer, int V,
                                const std::vector<int>& ends = {});
    Sampler for_sequence(uint64_t sequence) const;    // the same for another sequence, as open left it

    void accept_prompt(const std::vector<int>& prompt);
    // A pure function of logits (V), the tokens so far and place: its random number is philox(seed, sequence, place).
    Choice choose(const float* logits, uint64_t step_index) const;
    void accept(const Choice& choice);    // what was chosen, or another token: the next one follows it
    bool broken() const { return sampling.grammar && matcher.broken(); }    // no token was allowed: NO_TOKEN
    bool done() const { return sampling.grammar && matcher.done(); }        // nothing may follow

    // The same choices by operation `sample`; none: they need the host.
    std::optional<SampleParams> on_device() const;
    uint64_t number() const { return sequence; }
    const History& token_history() const { return history; }

  private:
    std::vector<Candidate> candidates(const float* logits, int most) const;
    void truncate(std::vector<Candidate>& all) const;

    Sampling sampling;
    int V = 0;
    uint64_t sequence = 0;
    History history;
    GrammarMatcher matcher;
    double mu = 0;    // mirostat's: the largest surprise
};

// log softmax of the logits as the model gave them: of `id`, then of the n likeliest, likeliest first.
struct TokenLogprob {
    int id;
    double logprob;
};
std::vector<TokenLogprob> logprobs(const float* logits, int V, int id, int n);

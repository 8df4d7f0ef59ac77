// sampler.h - samples a token from a sequence's logits.
//
// Steps in order, each optional: logit biases; repetition penalty; presence and frequency
// penalties; DRY; grammar; temperature; then either mirostat or top-n-sigma, top-k, typical-p,
// top-p, min-p; then a random number. Each step works on the candidates that the step before left.
// Only top-n-sigma's deviation is over all tokens, including those that the grammar forbids.
#pragma once
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "grammar.h"
#include "layers/ops.h"
#include "penalties.h"

struct Sampling {
    double temperature = 0.8;    // 0: greedy
    int top_k = 50;              // most probable tokens kept; 0: all (Fan et al. 2018)
    double top_p = 1;            // smallest set with this total probability (Holtzman 2020)
    double min_p = 0;            // minimum, relative to the largest (Nguyen et al. 2024)
    double typical_p = 1;        // smallest set by |surprise - entropy| (Meister et al. 2023)
    double top_n_sigma = 0;      // deviations below the largest logit (Tang 2024); 0: off
    // Target surprise in bits; 0: off (version 2 of Basu et al. 2021). Surprise is computed from a
    // token's probability before truncation; llama.cpp takes the probability after truncation.
    double mirostat = 0;
    double mirostat_rate = 0.1;
    Penalties penalties = {};
    std::shared_ptr<const Grammar> grammar = {};    // null: no constraint
    uint64_t seed = 1;
};

constexpr const char* NO_TOKEN =
    "the text ends here: no token of the vocabulary fits the grammar, or too many "
    "ways lead through it";

class Sampler {
  public:
    struct Choice {
        int id = 0;             // -1: no token is allowed, and none ends texts
        double surprise = 0;    // in bits; for mirostat
    };
    Sampler() = default;
    // Returns a sampler for sequence 0, without tokens yet. `V`: number of tokens to choose from;
    // the model may have more logits. `ends`: tokens allowed where the grammar may end. Exit 2: a
    // bias names no token.
    static Result<Sampler> open(const Sampling& sampling, const Tokenizer& tokenizer, int V,
                                const std::vector<int>& ends = {});
    Sampler for_sequence(uint64_t sequence) const;    // in the initial state

    void accept_prompt(const std::vector<int>& prompt);
    // Depends only on logits (V), previous tokens and step_index. The random number is philox(seed,
    // sequence, step_index).
    Choice choose(const float* logits, uint64_t step_index) const;
    void accept(const Choice& choice);                                      // chosen token, or another that replaces it
    bool broken() const { return sampling.grammar && matcher.broken(); }    // no token was allowed: NO_TOKEN
    bool done() const { return sampling.grammar && matcher.done(); }        // the grammar allows nothing more

    // Settings with which operation `sample` makes equal choices; empty: only the host can sample.
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
    double mu = 0;    // mirostat: largest surprise that is kept, bits
};

// Log softmax of the unchanged logits: `id` first, then the n most probable tokens in order.
struct TokenLogprob {
    int id;
    double logprob;
};
std::vector<TokenLogprob> logprobs(const float* logits, int V, int id, int n);

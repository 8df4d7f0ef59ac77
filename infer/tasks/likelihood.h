// likelihood.h - log-likelihoods of continuations, many at once.
//
// Requests of a group share the beginning of their tokens, which runs once: the key/value cache
// forks it. Groups of similar length share a forward pass. Logits are computed only for positions
// that predict a token of a continuation. Results do not depend on the batch (bit-identical where
// matrix products compute rows independently, as on a CPU).
#pragma once
#include <functional>

#include "model/decoder.h"

struct LikelihoodRequest {
    std::vector<int> tokens;    // context, then continuation
    int from = 0;               // index of the continuation's first token, >= 1
    int64_t group = 0;          // requests of a group follow each other
};
struct Likelihood {
    double logprob = 0;    // sum over the continuation's tokens, nats
    bool greedy = true;    // each token is the likeliest one; only if LikelihoodOptions::ranked
};
struct LikelihoodOptions {
    int groups = 0;         // most groups at a time; 0: as many as fit a pass
    bool ranked = false;    // TokenScore::likeliest
    std::function<void(int64_t done, int64_t requests)> progress = {};
};
// Requests have at most T + 1 tokens. Exit 5: not enough memory for the cache.
Result<std::vector<Likelihood>> likelihoods(Model& model, const std::vector<LikelihoodRequest>& requests,
                                            const LikelihoodOptions& options);

// policy.h - GRPO's arithmetic: advantages within a group of answers, and the loss of a token.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

// (r - mean) / (deviation + 1e-4) for each answer of a group (Shao et al. 2024, eq. 3), with the
// sample's deviation, as TRL takes it; if not `normalised`, r - mean (Dr. GRPO: Liu et al. 2025).
// Equal rewards have advantages of exactly 0.
std::vector<double> advantages(const std::vector<double>& rewards, bool normalised);
double deviation(const std::vector<double>& rewards);    // a sample's: divides by n - 1
bool all_equal(const std::vector<double>& rewards);

// Ratios are clipped to [1 - clip, 1 + clip_high]; DAPO (Yu et al. 2025) takes 0.28 for the second.
// kl: factor of the divergence from the reference.
struct PolicyParams {
    double clip = 0.2, clip_high = 0.2, kl = 0;
};
// Log-probabilities of a token: now, when it was sampled, and under the reference.
struct TokenLogps {
    double now = 0, sampled = 0, reference = 0;
};
struct TokenTerms {
    double loss, dlogp;    // dlogp: the loss's derivative by TokenLogps::now
    double kl;             // estimate of the divergence
    bool clipped;          // the ratio has no gradient
};
// L = -min(p A, clip(p) A) + kl (q - log q - 1) with the ratio p = exp(now - sampled) and q =
// exp(reference - now), whose term is the estimator k3 of Schulman 2020.
TokenTerms token_terms(const PolicyParams& params, double advantage, const TokenLogps& logps);

// How tokens' losses become a step's: a mean over answers of each one's mean (GRPO), a mean over
// all tokens (DAPO), or a sum over tokens divided by answers and by a constant (Dr. GRPO).
struct LossNormRow {
    const char* name;      // value of --loss-norm
    const char* source;    // for people
    // Factor of a token's loss in an answer of `tokens` tokens; the step's loss is the mean over
    // answers. all: tokens of the step's `answers` answers; most: the longest answer allowed.
    double (*factor)(int64_t tokens, int64_t all, int64_t answers, int64_t most);
};
extern const LossNormRow LOSS_NORMS[3];
const LossNormRow& loss_norm_named(const std::string& name);    // name: of a row
std::vector<std::string> loss_norm_names();

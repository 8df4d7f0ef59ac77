// policy.cpp - see policy.h.
#include "train/reward/policy.h"

#include <algorithm>
#include <cmath>

#include "base/common.h"

namespace {
constexpr double EPS = 1e-4;
double mean_of(const std::vector<double>& x) {
    double sum = 0;
    for (double v : x) sum += v;
    return sum / double(x.size());
}
}    // namespace

bool all_equal(const std::vector<double>& rewards) {
    return std::all_of(rewards.begin(), rewards.end(), [&](double r) { return r == rewards[0]; });
}

double deviation(const std::vector<double>& rewards) {
    CHECK(rewards.size() > 1, "%zu rewards", rewards.size());
    const double mean = mean_of(rewards);
    double square = 0;
    for (double r : rewards) square += (r - mean) * (r - mean);
    return std::sqrt(square / double(rewards.size() - 1));
}

std::vector<double> advantages(const std::vector<double>& rewards, bool normalised) {
    std::vector<double> all(rewards.size(), 0);
    if (all_equal(rewards)) return all;    // a rounded mean may differ from them
    const double mean = mean_of(rewards), by = normalised ? deviation(rewards) + EPS : 1;
    for (size_t i = 0; i < all.size(); i++) all[i] = (rewards[i] - mean) / by;
    return all;
}

TokenTerms token_terms(const PolicyParams& p, double advantage, const TokenLogps& logps) {
    const double ratio = std::exp(logps.now - logps.sampled);
    const bool clipped = advantage > 0 ? ratio > 1 + p.clip_high : advantage < 0 && ratio < 1 - p.clip;
    const double kept = clipped ? std::clamp(ratio, 1 - p.clip, 1 + p.clip_high) : ratio;
    TokenTerms t = {-kept * advantage, clipped ? 0 : -ratio * advantage, 0, clipped};
    if (p.kl == 0) return t;
    const double log_q = logps.reference - logps.now;
    t.kl = std::expm1(log_q) - log_q;
    t.loss += p.kl * t.kl;
    t.dlogp -= p.kl * std::expm1(log_q);
    return t;
}

const LossNormRow LOSS_NORMS[3] = {
    {"sequence", "Shao et al. 2024", [](int64_t tokens, int64_t, int64_t, int64_t) { return 1 / double(tokens); }},
    {"tokens", "DAPO, Yu et al. 2025",
     [](int64_t, int64_t all, int64_t answers, int64_t) { return double(answers) / double(all); }},
    {"constant", "Dr. GRPO, Liu et al. 2025", [](int64_t, int64_t, int64_t, int64_t most) { return 1 / double(most); }},
};
const LossNormRow& loss_norm_named(const std::string& name) {
    for (const LossNormRow& row : LOSS_NORMS)
        if (row.name == name) return row;
    CHECK(false, "--loss-norm %s", name.c_str());
}
std::vector<std::string> loss_norm_names() {
    std::vector<std::string> all;
    for (const LossNormRow& row : LOSS_NORMS) all.push_back(row.name);
    return all;
}

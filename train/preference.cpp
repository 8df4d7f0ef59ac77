// preference.cpp - see preference.h. In the formulas, c and r are the numbers of the chosen and the
// rejected answer: scores, less the reference's and divided by lengths as the row says.
#include "train/preference.h"

#include <algorithm>
#include <cmath>

#include "base/common.h"

namespace {
double sigmoid(double x) { return x < 0 ? std::exp(x) / (1 + std::exp(x)) : 1 / (1 + std::exp(-x)); }
double minus_log_sigmoid(double x) { return std::max(-x, 0.0) + std::log1p(std::exp(-std::fabs(x))); }

// L = -(1-e) log s(x) - e log s(-x) with the sigmoid s, x = beta (c - r), the scores c and r of the
// chosen and the rejected answer, and the share e of labels that are expected to be wrong.
// e = 0: DPO, Rafailov et al. 2023, eq. 7; e > 0: conservative DPO, Mitchell 2023.
PairTerms dpo(double c, double r, const PreferenceParams& p) {
    const double x = p.beta * (c - r), e = p.label_smoothing;
    const double dx = e * sigmoid(x) - (1 - e) * sigmoid(-x);
    return {(1 - e) * minus_log_sigmoid(x) + e * minus_log_sigmoid(-x), p.beta * dx, -p.beta * dx};
}

// L = (c - r - 1/(2 beta))^2. Azar et al. 2023, eq. 17. Scores are divided by the lengths: TRL's
// authors report that the paper's results have this form.
PairTerms ipo(double c, double r, const PreferenceParams& p) {
    const double error = c - r - 1 / (2 * p.beta);
    return {error * error, 2 * error, -2 * error};
}

// L = (1 - s(beta (c - max(0, r))) + 1 - s(beta (max(0, c) - r))) / 2. Ethayarajh et al. 2024,
// eq. 8, on pairs: the KL of an answer's example is estimated by the pair's other answer, and has
// no gradient. A mean over the batch would make the loss depend on the batch's size.
PairTerms kto_paired(double c, double r, const PreferenceParams& p) {
    const double good = sigmoid(p.beta * (c - std::max(0.0, r))), bad = sigmoid(p.beta * (std::max(0.0, c) - r));
    return {(1 - good + 1 - bad) / 2, -p.beta * good * (1 - good) / 2, p.beta * bad * (1 - bad) / 2};
}

// L = -c - beta log s(x) with the log odds ratio x = (c - log(1 - e^c)) - (r - log(1 - e^r)). Hong
// et al. 2024, eq. 6-7. An average probability of 1 would have infinite odds: it counts as
// 1 - 1e-6.
PairTerms orpo(double c, double r, const PreferenceParams& p) {
    const double cc = std::min(c, -1e-6), rr = std::min(r, -1e-6);
    const double x = (cc - std::log(-std::expm1(cc))) - (rr - std::log(-std::expm1(rr)));
    const double dx = -p.beta * sigmoid(-x);
    return {p.beta * minus_log_sigmoid(x) - c, dx / -std::expm1(cc) - 1, -dx / -std::expm1(rr)};
}

// L = -log s(beta (c - r) - gamma). Meng et al. 2024, eq. 6.
PairTerms simpo(double c, double r, const PreferenceParams& p) {
    const double x = p.beta * (c - r) - p.gamma, dx = -sigmoid(-x);
    return {minus_log_sigmoid(x), p.beta * dx, -p.beta * dx};
}
}    // namespace

const PreferenceRow PREFERENCES[5] = {
    {"dpo", "Rafailov et al. 2023", 0.1, true, false, dpo},
    {"ipo", "Azar et al. 2023", 0.1, true, true, ipo},
    {"kto-paired", "Ethayarajh et al. 2024", 0.1, true, false, kto_paired},
    {"orpo", "Hong et al. 2024", 0.1, false, true, orpo},
    {"simpo", "Meng et al. 2024", 2, false, true, simpo},
};
const PreferenceRow& preference_named(const std::string& name) {
    for (const PreferenceRow& row : PREFERENCES)
        if (row.name == name) return row;
    CHECK(false, "--prefer-loss %s", name.c_str());
}
std::vector<std::string> preference_names() {
    std::vector<std::string> all;
    for (const PreferenceRow& row : PREFERENCES) all.push_back(row.name);
    return all;
}

PairLoss pair_loss(const PreferenceRow& row, const PreferenceParams& p, const AnswerScore& chosen,
                   const AnswerScore& rejected) {
    CHECK(chosen.tokens > 0 && rejected.tokens > 0, "%d and %d tokens", chosen.tokens, rejected.tokens);
    const double by_chosen = row.normalises ? 1.0 / chosen.tokens : 1,
                 by_rejected = row.normalises ? 1.0 / rejected.tokens : 1;
    const double c = chosen.score - chosen.reference, r = rejected.score - rejected.reference;
    PairTerms t = row.terms(c * by_chosen, r * by_rejected, p);
    t.dchosen *= by_chosen;
    t.drejected *= by_rejected;
    if (row.reference) return {t, p.beta * c, p.beta * r, chosen.score, rejected.score};
    return {t, p.beta * c * by_chosen, p.beta * r * by_rejected, c * by_chosen, r * by_rejected};
}

// preference.h - losses that learn which of two answers is preferred, a row each.
//
// An answer's score is the sum of its tokens' log-probabilities given the prompt. Rows with a
// reference subtract the score under the starting weights. Rows that normalise divide by the
// answer's number of tokens.
#pragma once
#include <string>
#include <vector>

// An answer's score, and its number of tokens. reference: 0 if the row has none.
struct AnswerScore {
    double score = 0, reference = 0;
    int tokens = 0;
};
struct PreferenceParams {
    double beta = 0, label_smoothing = 0, gamma = 0;
};
// The loss of a pair and its derivatives by the two numbers that it depends on.
struct PairTerms {
    double loss, dchosen, drejected;
};
struct PreferenceRow {
    const char* name;      // value of --prefer-loss
    const char* source;    // for people
    double beta;           // --beta if it is 0
    bool reference, normalises;
    PairTerms (*terms)(double chosen, double rejected, const PreferenceParams& p);
};
extern const PreferenceRow PREFERENCES[5];
const PreferenceRow& preference_named(const std::string& name);    // name: of a row
std::vector<std::string> preference_names();

// A pair's loss, its derivatives by both scores, and the metrics. Rewards are beta times the score
// less the reference's; without a reference, beta times the normalised score. logp_chosen and
// logp_rejected are the scores in the same unit.
struct PairLoss {
    PairTerms terms;
    double reward_chosen, reward_rejected, logp_chosen, logp_rejected;
};
PairLoss pair_loss(const PreferenceRow& row, const PreferenceParams& p, const AnswerScore& chosen,
                   const AnswerScore& rejected);

// penalties.h - logit biases and repetition penalties.
#pragma once
#include <string>
#include <unordered_map>
#include <vector>

#include "data/bpe.h"

struct Penalties {
    double repetition = 1;                 // divides positive logits of seen tokens, multiplies others
    double presence = 0, frequency = 0;    // subtracted from a generated token's logit: once; per occurrence
    int last = 0;                          // number of last tokens counted; 0: all
    // DRY: a token that would extend a repetition of n >= dry_length tokens loses dry * base^(n -
    // dry_length) from its logit.
    double dry = 0, dry_base = 1.75;
    int dry_length = 2;
    std::vector<std::string> dry_breakers = {};    // texts that end a repetition; empty: \n : " *
    std::vector<std::string> bias = {};            // "ID=VALUE" or "TEXT=VALUE", TEXT one token; -inf bans it
};

struct Candidate {
    double score;
    int id;
};

// A sequence's tokens, counted for its penalties. The repetition penalty (Keskar et al. 2019) and
// DRY (p-e-w 2024) count tokens of prompt and text. The presence and frequency penalties (OpenAI's
// API) count only tokens of the text.
class History {
  public:
    static constexpr size_t MOST = 1024;    // limit on matches that DRY tracks per token
    History() = default;
    // `V`: number of tokens to choose from. Exit 2: a bias is malformed.
    static Result<History> open(const Penalties& p, const Tokenizer& tokenizer, int V);
    void accept(int id, bool generated);
    // Candidates with new logits, by ascending id: tokens whose logits are changed by bias,
    // repetition, presence, frequency or DRY. NaN counts as -inf.
    std::vector<Candidate> changes(const float* logits) const;
    // Arguments token_counts and bias of operation `sample` (layers/operations.inc), both of shape
    // (V). The result of bias() is empty if there are no biases.
    std::vector<int> counts() const;
    std::vector<double> bias() const;

  private:
    struct TokenCount {
        int id, all, generated;
    };    // number of occurrences
    struct PastToken {
        int id;
        bool generated, breaks;
    };
    void count(const PastToken& token, int by);
    bool breaks(int id);
    std::vector<std::pair<int, int>> repeats() const;

    Penalties p;
    Tokenizer tokenizer;
    int V = 0;
    std::vector<std::pair<int, double>> biases;    // by ascending id
    std::vector<TokenCount> token_counts;          // by ascending id
    std::vector<PastToken> past;                   // kept only for a window or for DRY
    // Matches for DRY: indices in `past` at which the last token occurred before, latest first,
    // each with the number of last tokens that are repeated there. After a token that completes one
    // of dry_breakers there are none. At most MOST are kept: those that extend a match of the
    // previous token come before new ones, and later new ones before earlier ones.
    struct Match {
        int at, length;
    };
    std::vector<Match> matches;
    std::vector<int> earlier;               // by index: previous occurrence of the token; -1: none
    std::unordered_map<int, int> latest;    // by token: index of its latest occurrence
    std::string tail;                       // end of the text that may become a breaker
};

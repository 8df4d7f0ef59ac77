// penalties.h - what changes a token's logit before one is drawn: biases, and what the sequence has said already.
#pragma once
#include <string>
#include <unordered_map>
#include <vector>

#include "data/bpe.h"

struct Penalties {
    double repetition = 1;                 // seen tokens' logits: divided where positive, multiplied where negative
    double presence = 0, frequency = 0;    // taken from generated tokens' logits: once; for each time
    int last = 0;                          // only the last so many tokens count; 0: all
    // DRY: a token that would lengthen a repetition of n tokens loses dry * base^(n - length), from n = length on.
    double dry = 0, dry_base = 1.75;
    int dry_length = 2;
    std::vector<std::string> dry_breakers = {};    // texts that no repetition goes across; none: \n : " *
    std::vector<std::string> bias = {};            // "ID=VALUE" or "TEXT=VALUE", TEXT one token; -inf bans it
};

struct Candidate {
    double score;
    int id;
};

// A sequence's tokens as its penalties see them. Keskar et al. 2019 (repetition: of the prompt and what is generated),
// OpenAI's API (presence, frequency: of what is generated), p-e-w 2024 (DRY: of both).
class History {
  public:
    static constexpr size_t MOST = 1024;    // places that DRY follows at a time: a token costs no more than these
    History() = default;
    // V: tokens that may be chosen. exit 2: a bias that is none
    static Result<History> open(const Penalties& p, const Tokenizer& tokenizer, int V);
    void accept(int id, bool generated);
    // The tokens whose logits change, in order of ids, with their new ones: bias, repetition, presence and frequency,
    // DRY. NaN counts as -inf.
    std::vector<Candidate> changes(const float* logits) const;
    // For a device (operation `sample`): what the tokens change, and the biases; (V), empty: none.
    std::vector<int> counts() const;
    std::vector<double> bias() const;

  private:
    struct TokenCount {
        int id, all, generated;
    };    // how often
    struct PastToken {
        int id;
        bool generated, breaks;
    };
    void count(const PastToken& past, int by);
    bool breaks(int id);
    std::vector<std::pair<int, int>> repeats() const;

    Penalties p;
    Tokenizer tokenizer;
    int V = 0;
    std::vector<std::pair<int, double>> biases;    // in order of ids
    std::vector<TokenCount> token_counts;          // in order of ids
    std::vector<PastToken> past;                   // where a window or DRY needs it
    // DRY: where the last token stood before, latest first, and how many tokens up to there are those at the end; none
    // where a breaker stands at the end. At most MOST: those that the last token made longer, then the latest.
    struct Match {
        int at, length;
    };
    std::vector<Match> matches;
    std::vector<int> earlier;               // by place: where its token stood before; -1: nowhere
    std::unordered_map<int, int> latest;    // by token
    std::string tail;                       // text that may become a breaker
};

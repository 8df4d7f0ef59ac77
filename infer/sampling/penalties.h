// penalties.h - logit biases and repetition penalties.
#pragma once
#include <string>
#include <unordered_map>
#include <vector>

#include "data/bpe.h"

struct Penalties {
    double repetition = 1;                 // seen tokens: logit divided if positive, else multiplied
    double presence = 0, frequency = 0;    // subtracted from generated tokens' logits: once; per occurrence
    int last = 0;                          // window in tokens; 0: all
    // DRY: a token that would extend a repetition of n >= length tokens loses dry * base^(n -
    // length).
    double dry = 0, dry_base = 1.75;
    int dry_length = 2;
    std::vector<std::string> dry_breakers = {};    // texts that end a repetition; none: \n : " *
    std::vector<std::string> bias = {};            // "ID=VALUE" or "TEXT=VALUE", TEXT one token; -inf bans it
};

struct Candidate {
    double score;
    int id;
};

// A sequence's tokens, counted for the penalties. Repetition counts prompt and generated tokens
// (Keskar et al. 2019), presence and frequency only generated ones (OpenAI's API), DRY both (p-e-w
// 2024).
class History {
  public:
    static constexpr size_t MOST = 1024;    // matches that DRY tracks: bounds the cost per token
    History() = default;
    // V: tokens to choose from. exit 2: a malformed bias
    static Result<History> open(const Penalties& p, const Tokenizer& tokenizer, int V);
    void accept(int id, bool generated);
    // Tokens whose logits change, by ascending id, with the new logits: bias, repetition, presence
    // and frequency, DRY. NaN counts as -inf.
    std::vector<Candidate> changes(const float* logits) const;
    // For operation `sample`: (V) each; empty: none.
    std::vector<int> counts() const;
    std::vector<double> bias() const;

  private:
    struct TokenCount {
        int id, all, generated;
    };    // occurrences
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
    std::vector<std::pair<int, double>> biases;    // by ascending id
    std::vector<TokenCount> token_counts;          // by ascending id
    std::vector<PastToken> past;                   // kept if a window or DRY needs it
    // DRY: earlier occurrences of the last token, latest first, with the length of the suffix that
    // repeats there; none after a breaker. At most MOST: extended matches first, then the latest.
    struct Match {
        int at, length;
    };
    std::vector<Match> matches;
    std::vector<int> earlier;               // by index: previous occurrence; -1: none
    std::unordered_map<int, int> latest;    // by token
    std::string tail;                       // text that may become a breaker
};

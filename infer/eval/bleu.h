// bleu.h - scores of texts against references: BLEU by sacrebleu's rule, exact match.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

// Corpus BLEU (Papineni et al. 2002) as sacrebleu 2 computes it by default (Post 2018): texts are
// split as mteval-v13a does, orders 1 to 4, and a precision without a match is smoothed by NIST's
// rule ("exp"; Chen & Cherry 2014, method 3). One reference per text. For each order of
// n-grams: how many match, how many the texts have, and the precision in percent.
struct BleuScore {
    static constexpr int ORDER = 4;
    double score = 0;    // 0 to 100
    int64_t counts[ORDER] = {}, totals[ORDER] = {};
    double precisions[ORDER] = {};
    double brevity_penalty = 1;
    int64_t length = 0, reference_length = 0;    // tokens
};
// lowercase: compares the texts in lower case (each character by itself: Greek's final sigma is an
// ordinary one). Equally many texts and references.
BleuScore bleu(const std::vector<std::string>& texts, const std::vector<std::string>& references,
               bool lowercase = false);
std::string bleu_text(const BleuScore& score);    // as sacrebleu prints it
std::string bleu_signature(bool lowercase);       // settings, in sacrebleu's form
// The words of a text as mteval-v13a splits it, with single spaces between them.
std::string split_13a(std::string_view text);

// Share of texts that are their reference, without white space at both ends.
double exact_match(const std::vector<std::string>& texts, const std::vector<std::string>& references);

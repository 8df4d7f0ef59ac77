// labels.h - `flatgpt train --labels`: a classifier's texts as samples, and its loss.
#pragma once
#include "infer/eval/labels.h"
#include "data/documents/json_lines.h"
#include "train/train.h"

// A text for each sample, padded to S tokens.
class LabelSource : public LineSource {
  public:
    LabelSource(std::vector<LabelledText> all, int length, int padding, std::string what);
    int longest() const override;
    void shorten(int length) override { S = length; }
    std::string items() const override { return counted(samples(), "text"); }
    std::string note() const override { return ""; }
    int64_t samples() const override { return int64_t(texts.size()); }
    int64_t tokens() const override { return all_tokens; }
    int64_t targets(int64_t sample) const override;
    uint64_t fingerprint() const override;
    std::string text() const override { return items() + ", " + classes; }
    Status read(int64_t sample, int* tokens, int* targets, std::vector<Text>* texts) const override;

    const std::vector<LabelledText> texts;

  private:
    int S, pad;
    int64_t all_tokens = 0;
    const std::string classes;    // for people
};

// The mean loss of all targets, and a classifier's scores on the validation texts.
class LabelLoss : public TokenLoss {
  public:
    using TokenLoss::TokenLoss;
    double of_guess() const override;
    Result<double> validate(const Show& show) override;
    void add_validation(Json& row) const override { set_scores(row, scores, t.config); }

  private:
    LabelScores scores;
};
std::string labels_text(const Trainer& t);    // for --dry-run

// preference_loss.h - the step loss of `flatgpt train --prefer`: pairs of sequences, a row of
// preference.h, and the reference's scores.
#pragma once
#include "train/objectives.h"
#include "train/preference.h"
#include "train/reference.h"

class Loader;

// Sums over pairs.
struct PreferenceSums {
    double pairs = 0, loss = 0, accurate = 0, reward_chosen = 0, reward_rejected = 0, logp_chosen = 0,
           logp_rejected = 0;
    void add(const PairLoss& pair);
    void add(const PreferenceSums& other);
    void add_to(Json& row, const std::string& prefix) const;    // means
};

class PreferenceLoss : public StepLoss {
  public:
    explicit PreferenceLoss(Trainer& trainer);
    Status prepare() override;    // computes, or on resume reads, the reference's scores
    double prepare_flops() const override;
    int64_t begin(int64_t first, int64_t sequences) override;
    void batch(int i, int S, int64_t terms) override;
    void end() override;
    bool on_host() const override { return true; }
    std::string text() const override;
    void add_metrics(Json& row) const override { step.add_to(row, ""); }
    Result<double> validate(const Show& show) override;
    void add_validation(Json& row) const override { validation.add_to(row, "val_"); }

  private:
    Result<std::vector<AnswerScore>> scores(Loader& loader, const Show& show);
    Result<std::vector<double>> reference_of(Loader& loader, const char* what);
    Status compute_reference();
    Status read_reference();
    Trainer& t;
    const PreferenceRow& kind;
    PreferenceParams params;
    ReferenceScores reference;
    std::vector<int64_t> samples;    // pairs of this rank in the step, by batch
    PreferenceSums step, validation;
};

std::string preference_text(const Trainer& t);    // for --dry-run

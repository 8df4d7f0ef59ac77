// loss.h - the step loss of `flatgpt train --prompts`: groups of answers that the model in training
// has sampled, their rewards, and the clipped loss of policy.h.
#pragma once
#include "train/objectives.h"
#include "train/reward/policy.h"
#include "train/reward/rewards.h"

struct Model;
struct GenerationOptions;

// Sums over answers, groups and tokens.
struct RewardSums {
    double answers = 0, reward = 0, tokens = 0, cut = 0;    // cut: answers without an end
    double groups = 0, deviation = 0, equal = 0;            // equal: groups whose rewards are equal
    double trained = 0, clipped = 0, kl = 0;                // tokens, in all updates
    void add(const RewardSums& other);
    void add_to(Json& row, const std::string& prefix, bool with_kl) const;    // means
};

class RewardLoss : public StepLoss {
  public:
    explicit RewardLoss(Trainer& trainer);
    ~RewardLoss() override;
    Status prepare() override;
    Status draw() override;
    int updates() const override;
    int64_t begin(int64_t first, int64_t sequences) override;
    bool fill(int i) override;
    void batch(int i, int S, int64_t terms) override;
    void end() override;
    bool on_host() const override { return true; }
    Status sync() override;
    std::string text() const override;
    void add_metrics(Json& row) const override;
    void add_speeds(Json& row) const override;
    Status add_memory(std::vector<MemoryRow>& rows, int B) const override;
    Result<double> validate(const Show& show) override;
    void add_validation(Json& row) const override { validation.add_to(row, "val_", false); }

    // An answer to a prompt. logps and reference have an entry for each of the answer's tokens.
    struct Rollout {
        const PromptLine* line = nullptr;
        std::vector<int> ids = {};    // the answer's tokens
        std::string text = {};
        bool cut = false;    // it has no end
        double reward = 0, advantage = 0;
        std::vector<double> logps = {}, reference = {};
    };
    // Samples `group` answers to each prompt. sequence: number of the first answer in the step, for
    // random numbers.
    Result<std::vector<Rollout>> sample(const std::vector<const PromptLine*>& prompts, int group, double temperature,
                                        uint64_t seed, int64_t sequence) const;

  private:
    Result<std::vector<Rollout>> sample_on_ranks(const std::vector<const PromptLine*>& prompts, int group,
                                                 double temperature, uint64_t seed, int64_t sequence);
    Status open_samples();
    Status open_reference();
    Status score_reference();
    Status share();
    std::string rows() const;
    Trainer& t;
    PolicyParams params;
    const LossNormRow& norm;
    std::unique_ptr<Model> reference;    // null: --kl 0
    std::vector<Rollout> rollouts;       // this rank's answers, groups one behind the other
    int update = -1;                     // within the step
    int64_t all_tokens = 0;              // in the step's answers, on all ranks
    RewardSums step, validation;
    double seconds = 0;       // that sampling took on this rank
    int samples_file = -1;    // rank 0's
    int64_t new_bytes = 0;    // written to samples.jsonl in this step
};

std::string reward_text(const Trainer& t);    // for --dry-run

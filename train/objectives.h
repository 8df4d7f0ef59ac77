// objectives.h - what `flatgpt train` may learn, a row each: files of samples, their reader, the
// attention mask, the loss and its metrics. The step loop is the same for all.
#pragma once
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/common.h"
#include "data/seq2seq/seq2seq.h"
#include "files/json_write.h"
#include "infer/eval/evaluate.h"
#include "model/config.h"
#include "model/plan.h"

class LineSource;
struct Trainer;
struct TrainOptions;

// The loss of the steps, and its metrics.
class StepLoss {
  public:
    virtual ~StepLoss() = default;
    // Prepares the first step; weights are loaded. All ranks call it.
    virtual Status prepare() { return {}; }
    virtual double prepare_flops() const { return 0; }    // on all ranks
    // Samples the texts that a step learns from, and moves data.position() behind their prompts.
    virtual Status draw() { return {}; }
    virtual int updates() const { return 1; }    // in a step, all on the same texts
    // Begins an update of `sequences` sequences, counted over all ranks, the first of them at
    // data.position() before draw(). `first`: number of sequences that the run has used before.
    // Returns the number of terms whose mean is the update's loss.
    virtual int64_t begin(int64_t first, int64_t sequences) = 0;
    // Sets tokens and targets of the i-th batch; false: the loader's come next.
    virtual bool fill(int) { return false; }
    // Uploads the batch that the trainer has read, whose first sequence has this number in the run,
    // and sets *S to its length; false: the trainer uploads it.
    virtual bool upload(int64_t, int*) { return false; }
    // After forward(true) of the step's i-th batch, with targets (batch,S): queues its part of the
    // loss, and the gradients of the head.
    virtual void batch(int i, int S, int64_t terms) = 0;
    // Ends the oldest step: sums its metrics over the ranks.
    virtual void end() {}
    // The host waits for each batch's losses, so no step is queued while another one runs.
    virtual bool on_host() const { return false; }
    virtual double of_guess() const { return INFINITY; }    // a random guess has this loss; INFINITY: unknown
    virtual std::string text() const { return ""; }         // metrics for the progress line
    virtual void add_metrics(Json&) const {}                // the last ended step's metrics
    // The last ended step's loss beside the mean of begin()'s terms; the loss is the sum of both.
    virtual double beside() const { return 0; }
    virtual void add_speeds(Json&) const {}    // metrics that depend on the clock
    // Adds what a run with batches of B sequences holds beside the model.
    virtual Status add_memory(std::vector<MemoryRow>&, int) const { return {}; }
    virtual Status sync() { return {}; }    // flushes files on which a checkpoint relies
    // Returns the loss on the validation data, equal on all ranks, because it decides on the best
    // checkpoint. `show`: receives finished and all windows.
    typedef std::function<void(int64_t done, int64_t windows)> Show;
    virtual Result<double> validate(const Show& show) = 0;
    virtual void add_validation(Json&) const {}    // metrics besides the loss
};

// The mean loss of all targets.
class TokenLoss : public StepLoss {
  public:
    explicit TokenLoss(Trainer& trainer) : t(trainer) {}
    int64_t begin(int64_t first, int64_t sequences) override;
    void batch(int i, int S, int64_t terms) override;
    double of_guess() const override;
    Status add_memory(std::vector<MemoryRow>& rows, int B) const override;
    Result<double> validate(const Show& show) override;
    void add_validation(Json& row) const override;

  protected:
    Trainer& t;

  private:
    Evaluation validation;
    std::shared_ptr<const std::vector<int>> drawn;    // replacements in validation, read once
};
// TokenLoss and, as a sum, the mean loss of the pairs of texts.
class NextSentenceLoss : public TokenLoss {
  public:
    using TokenLoss::TokenLoss;
    void batch(int i, int S, int64_t terms) override;
    void end() override;
    double beside() const override { return next_loss; }
    std::string text() const override;
    void add_metrics(Json& row) const override;

  private:
    double next_loss = 0;
};
// TokenLoss of samples that do not have a target at each position; their number is a metric.
class SomeTokensLoss : public TokenLoss {
  public:
    using TokenLoss::TokenLoss;
    void add_metrics(Json& row) const override;
};

struct ObjectiveRow {
    const char* name;
    MaskKind mask_kind;
    const char* flag;    // option that names the files
    std::string TrainOptions::*files;
    std::string TrainOptions::*val_files;
    const char *noun, *settings;    // what the files hold; options that decide which tokens are learnt
    int sequences;                  // sequences in a sample; 0: Trainer::sequences
    bool weighted;                  // Plan::weighted: the loss is one of whole sequences
    Status (Trainer::*choose)();    // once the model is known: checks options, finds the chat template
    // Reads a file of lines into memory; null: shards.
    Result<std::shared_ptr<LineSource>> (Trainer::*read)(const std::string& pattern, const std::string& flag);
    Status (Trainer::*open)();    // opens the loaders
    Status (Trainer::*preview)() const;
    std::string (*text)(const Trainer& t);    // for --dry-run; "": plain
    std::unique_ptr<StepLoss> (*loss)(Trainer& t);
    Seq2SeqKind pair = Seq2SeqKind::pairs;    // what an encoder-decoder's pairs are made of
    HeadKind head = HeadKind::tokens;         // the model's head, of an objective on shards
    bool next_sentence = false;               // Config::next_sentence
};
// The row that the options choose. With shards, the name of an objective decides, or if it is auto
// the model's mask and head.
const ObjectiveRow& objective_row(const TrainOptions& o, const Config& c = {});

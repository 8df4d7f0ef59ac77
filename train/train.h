// train.h - the parts of `flatgpt train`: flags.cpp has the flags, setup.cpp all up to the first step, start.cpp what
// it starts from, dry_run.cpp what a run would take, train_gpt.cu steps.
#pragma once
#include "checkpoint/checkpoint.h"
#include "comm/comm.h"
#include "base/command.h"
#include "base/console.h"
#include "data/loader.h"
#include "model/device.h"
#include "train/schedule.h"
#include "infer/eval/evaluate.h"
#include "infer/decode/generate.h"

struct TrainOptions {
    std::string data, val, tokenizer, model, from, out, resume = "no", lr_schedule = "cosine", sample_prompt;
    ConfigOverrides shape = no_overrides();    // what the flags ask of the model
    int batch = 8, seq_len = 0, context = 0, keep = 3, sample_tokens = 64;
    int64_t total_batch = 0, steps = 0, warmup = -1, eval_every = 0, eval_tokens = 1000000, patience = 0,
            sample_every = 0, save_every = 0, seed = 1;
    double save_minutes = 15;
    bool keep_best = true;
    double lr = 6e-4, final_lr_frac = 0.1, weight_decay = 0.1, beta1 = 0.9, beta2 = 0.95, grad_clip = 1;
    double dropout = 0, attention_dropout = -1, balance_loss = 0.01, router_z_loss = 0.001;
    double skip_loss_z = 0, skip_norm_z = 0;
    bool init = false, resize_vocab = false;
    std::string objective = "auto";
    bool documents = false;
    double mask_fraction = Objective{}.fraction;
    int mask_token = -1;
    bool dry_run = false, raw_u16 = false, stochastic_rounding = false;
    std::string recompute = "none";
    DeviceOptions device;
    CommOptions comm;
    int zero = 0;
    std::string reduce_dtype = "fp32";
    int node_ranks = 0;                  // this and the next two are for a dry run; 0: the device's
    double bandwidth = 0, tflops = 0;    // GB/s and TFLOP/s of a rank
    std::string gpu;                     // the GPU that a dry run plans for, here or not
    std::string resolved;                // run.toml
};

int64_t resident_bytes();    // memory that this process holds now

struct Trainer {
    TrainOptions o;
    Ranks ranks;
    Device device;
    Plan plan;
    Config config;
    Tokenizer tokenizer;
    GenerationConfig generation;    // from where it starts
    Objective objective;
    Loader data, val;
    Schedule schedule;
    TrainState state;    // after the last step whose outcome is known
    Progress progress;
    std::string start;                    // a checkpoint's directory; empty: new weights
    bool resuming = false;                // start is this run's own past
    int start_vocabulary = 0;             // with --resize-vocab: what start has
    bool above_guessing = false;          // the losses of the last steps lie far above a guess's
    bool vocabulary_assumed = false;      // no option and no file names a vocabulary: GPT-2's is taken
    bool all_ranks_end = false;           // all ranks end here, each by itself
    int stop = 0;                         // the signal that ends the run, of whichever rank
    std::vector<RankReport> reports;      // in the last step
    std::vector<double> router_totals;    // in the last step: the routers' totals, (L,E+2)
    bool save_due = false;                // by --save-minutes, on rank 0's clock
    int accumulate = 1, lock = -1;
    FILE* metrics = nullptr;
    std::vector<int> tokens, targets;
    std::string extra_metrics, val_text;    // more metrics of this step; the last validation loss
    std::pair<int64_t, double> previous_best = {-1,
                                                INFINITY};    // the best step and its loss before the last validation
    double started = 0, last_step_end = 0,
           saved_at = 0;                              // seconds: the loop; the last step's end; the last checkpoint
    double flops_per_token = 0, measured_peak = 0;    // FLOPs of one token; the device's FLOP/s, measured
    int64_t first_step = 0, issued = 0, device_bytes = 0;    // issued: steps given to the device; bytes: of its memory

    ~Trainer();
    Status run();

    // train/plan.cpp
    Status set_up();    // all before the loop
    Status agreed(const Status& mine);
    // The same text on every rank, line by line; else exit 7 saying who differs in what.
    Status check_same_on_ranks(const std::string& text);
    Status check_same_config();
    Status check_same_start();
    void broadcast_algorithms();    // as rank 0's
    void share_cores();
    Status choose_batch();    // plan, and with --batch auto the largest batch that fits the device
    void agree_on_batch();
    void resolve(const std::string& key, const std::string& unset, const std::string& value);
    Status open_data();     // loaders
    Status plan_steps();    // what follows from the data's size: steps, warm-up, the schedule
    void warn_of_repetition();
    std::string launcher_text() const;
    Status open_run();    // the directory, locked
    Status lock_run();
    static void remove_empty_run();    // the directory that this process made for it, where no step is in it
    Status open_metrics();

    // train/start.cpp
    Result<ModelSource> newest(const std::string& path);
    Status find_start();    // the checkpoint to resume, or --from: rank 0 decides
    Status look_for_start();
    Status extend_context();    // --context of a model that is here
    Result<Config> named_model(bool there, ModelSource& base);
    Status choose_model();    // config and tokenizer
    Status choose_tokenizer(const ModelSource& base);
    Status choose_objective();    // and the mask token
    Status load();                // weights: resumed, --from, or new ones
    Status load_resized();
    Status resume();
    std::string new_rate(const TrainState& before) const;    // what another schedule does to the learning rate; or ""

    // train/dry_run.cpp
    Status dry_run();

    // train_gpt.cu
    Status loop();
    Status issue();                         // gives the device one more step
    bool due_after(int64_t steps) const;    // something happens between this many steps and the next
    bool out_of_patience() const { return o.patience > 0 && state.bad_validations >= o.patience; }
    int stop_flags() const;    // what update takes: the signal that stops this rank, and whether to save
    Step outcome();            // waits for the oldest step issued, and counts it
    Status report(const Step& step, double seconds, bool whole = true);    // whole: what follows the step did not fail
    Status write_rows();                                                   // state.unwritten to metrics.jsonl
    Status catch_up();                // what a resumed run has not written or not validated
    double guess_limit() const;       // losses above it are far above those of guessing
    double busiest_expert() const;    // its rows in the last step, over the mean of its layer
    std::string experts_json() const;
    Status validate_and_sample();    // validation, sample
    Status validate();
    Status save();
    Status finished();
    Status save_before_exit(Status why);
    Status diverged();
    Status stopped();
    Status sample_text();
};

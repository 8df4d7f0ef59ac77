// train.h - `flatgpt train`. flags.cpp: flags; plan.cpp: everything before the first step;
// start.cpp: resume, --from, model and tokenizer; shards.cpp: --data and --val; objectives.cpp:
// what is learnt; chat.cpp: conversations; prefer.cpp: pairs of answers; dry_run.cpp: memory, work
// and communication of ranks; train_gpt.cu: step loop.
#pragma once
#include <optional>

#include "checkpoint/writer.h"
#include "comm/comm.h"
#include "base/command.h"
#include "base/console.h"
#include "data/loader.h"
#include "files/json_write.h"
#include "model/device.h"
#include "train/conversations.h"
#include "train/objectives.h"
#include "train/report/live.h"
#include "train/reward/rewards.h"
#include "train/schedule.h"
#include "infer/eval/evaluate.h"
#include "infer/decode/generate.h"
#include "infer/load.h"
#include "infer/trace.h"

struct TrainOptions {
    std::string chat, chat_val, chat_template, train_on = "assistant", too_long = "cut";
    bool pack = false;
    int preview = 0, epochs = 0;
    std::string labels, labels_val, pairs, pairs_val;
    std::string prefer, prefer_val, prefer_loss = "dpo";
    double beta = 0, label_smoothing = 0, gamma = 1;
    std::string prompts, prompts_val, reward, advantage = "normalised", loss_norm = "sequence";
    int group = 8, answer_tokens = 256, updates = 1;
    double temperature = 1, clip = 0.2, clip_high = 0, kl = 0, reward_timeout = 60;
    std::string data, val, tokenizer, model, from, out, resume = "no", lr_schedule = "cosine", sample_prompt,
                                                        sample_prompts;
    ConfigOverrides shape = no_overrides();    // overrides of the model's configuration
    int batch = 8, seq_len = 0, context = 0, keep = 3, sample_tokens = 64;
    int64_t total_batch = 0, batch_warmup = 0, steps = 0, decay_steps = 0, eval_every = 0, eval_tokens = 1000000,
            patience = 0, sample_every = 0, save_every = 0, seed = 1;
    std::string decay_from;
    std::string eval_tasks;
    int64_t eval_limit = 0;
    double warmup = -1, decay_part = 0.2;
    double save_minutes = 15;
    bool async_save = true;
    bool keep_best = true, report = false, tensorboard = false;
    int64_t norms_every = 0;
    double lr = -1, final_lr_frac = 0.1, grad_clip = 1;
    std::string optimizer = "adamw", state_dtype = "fp32", group_rules;
    double weight_decay = -1, beta1 = -1, beta2 = -1, momentum = 0.95;
    double lr_embedding = 1, lr_head = 1, lr_scalars = 1, decay_embedding = 1, decay_head = 1, decay_scalars = 0;
    bool cautious_decay = false, clip_groups = false;
    double ema = 0, average_tail = 0;
    int mup_base = 0;
    std::string recipe = "none";
    int64_t tokens = 0;
    std::vector<std::string> given;    // names of the flags that were set
    int source_len = 0;
    double corrupted = 0, span_length = 3;    // share of a text, tokens
    double z_loss = 0, dropout = 0, attention_dropout = -1, balance_loss = 0.01, router_z_loss = 0.001;
    double skip_loss_z = 0, skip_norm_z = 0;
    bool noise_scale = false;
    std::vector<std::string> set;    // a sweep's lists (sweep.h)
    bool init = false, zero_init = false, resize_vocab = false;
    std::string train_only, lora_targets = "all";
    int lora_rank = 0;
    double lora_alpha = 0, lora_dropout = -1, lora_plus = 1;
    bool lora_rank_stabilised = false, lora_dora = false;
    std::string quantize = "none";
    std::string teacher;
    double distill_temperature = 2, distill_mix = 0.5;
    std::string objective = "auto";
    bool documents = false;
    double mask_fraction = Objective{}.fraction;
    int mask_token = -1;
    bool dry_run = false, table = false, raw_u16 = false, stochastic_rounding = false;
    std::string recompute = "none";
    DeviceOptions device;
    CommOptions comm;
    int zero = 0, cp = 1;
    std::string reduce_dtype = "fp32";
    int node_ranks = 0;                  // for --dry-run, with the next two; 0: the device's
    double bandwidth = 0, tflops = 0;    // per rank: GB/s, TFLOP/s
    std::string gpu;                     // dry run: the GPU to plan for
    std::string trace;                   // file for the first step's operations
    std::string resolved;                // contents of run.toml
};

struct Trainer;
struct LabelledFile;
std::vector<Flag> optimizer_flags(TrainOptions& o);    // train/optimizer.cpp
FlagGroup report_flags(TrainOptions& o);               // train/observe.cpp
FlagGroup label_flags(TrainOptions& o);                // train/labels.cpp
FlagGroup pair_flags(TrainOptions& o);                 // train/source_target.cpp, as the next three
std::unique_ptr<StepLoss> pair_loss(Trainer& t);
// The flags, and the objectives that only --data can have: what excludes a flag for other files.
std::vector<std::string> with_shard_objectives(std::vector<std::string> flags);
std::string pairs_text(const Trainer& t);    // for --dry-run

int64_t resident_bytes();    // resident memory of this process

// Flags that each rank sends to all others with every step, beside its loss, so that all decide
// alike. They are packed into one number, because RankReport has room for one.
struct ReportFlags {
    int signal = 0;           // ends the run; 0: none
    bool save_due = false;    // on rank 0: a checkpoint is due by the clock
    int phase = 0;            // finished phase of the checkpoint that is being written
    int packed() const { return signal + 1024 * save_due + 2048 * phase; }
    static ReportFlags of(double packed) {
        const int n = int(packed);
        return {n % 1024, n / 1024 % 2 == 1, n / 2048};
    }
};

struct Trainer {
    TrainOptions o;
    Ranks ranks;
    std::unique_ptr<Trace> trace;    // null: none
    Device device;
    Plan plan;
    OptimizerParams optimizer_params = {};    // but for the rate, which a step sets
    Config config;
    Tokenizer tokenizer;
    GenerationConfig generation;    // from the checkpoint at the start
    const ObjectiveRow* task = &objective_row({});
    Objective objective;
    Seq2Seq seq2seq;                                 // what an encoder-decoder learns from
    std::shared_ptr<const LabelledFile> labelled;    // --labels' file until it is encoded; or null
    std::unique_ptr<StepLoss> loss;
    std::optional<ChatEncoder> chat_encoder;           // with --chat; with --prefer if there is a template
    std::shared_ptr<LineSource> source, val_source;    // null: shards; no validation
    Reward reward;                                     // with --prompts
    bool length_given = true;                          // --seq-len is not 0
    Loader data, val;
    Schedule schedule;
    BatchSchedule batches;
    TrainState state;    // after the last finished step
    Progress progress;
    LoadedModel teacher;                  // model: null without --teacher
    Spans spans;                          // spans of the last batch read
    ModelSource packed_base;              // the model whose packed weights stay mapped
    std::string start;                    // checkpoint to start from; empty: random weights
    bool resuming = false;                // start is a checkpoint of this run, or --decay-from's
    bool decaying = false;                // start is --decay-from's
    int start_vocabulary = 0;             // vocabulary of `start`, with --resize-vocab
    bool new_head = false;                // the head's weights are not those of `start`
    bool above_guessing = false;          // recent losses are above guess_limit
    bool vocabulary_assumed = false;      // neither options nor files give a vocabulary: GPT-2's
    bool all_ranks_end = false;           // each rank ends by itself; none is aborted
    int stop = 0;                         // signal that ends the run, from any rank
    std::vector<RankReport> reports;      // reports of all ranks on the last step
    std::vector<double> router_totals;    // (L,E+2): sums of router_forward in the last step
    bool save_due = false;                // --save-minutes have passed on rank 0
    int lock = -1;
    FILE* metrics = nullptr;
    LiveReports live;                           // --report, --tensorboard
    std::vector<std::string> sample_prompts;    // the lines of --sample-prompts
    Json norms = Json::object();                // measured in the last due step
    std::vector<int> tokens, targets;
    std::vector<std::vector<Text>> texts;    // the texts in each sequence of a batch
    struct StepSize {
        int64_t positions;                                        // this rank computes them, in all updates
        int64_t terms;                                            // StepLoss::begin, on all ranks
        int64_t first_targets;                                    // targets of this rank's first batch
    } sizes[2] = {};                                              // steps on the device: two at most
    std::shared_ptr<struct Evaluations> evaluations;              // null: no --eval-tasks
    Json extra_metrics = Json::object();                          // more metrics of this step
    std::string val_text;                                         // last validation loss
    std::pair<int64_t, double> previous_best = {-1, INFINITY};    // best step and loss before the last validation
    double started = 0, last_step_end = 0,
           saved_at = 0;                                     // seconds: start of loop, last step's end, last checkpoint
    double flops_per_token = 0, measured_peak = 0;           // FLOPs; FLOP/s of a large product
    int64_t first_step = 0, issued = 0, device_bytes = 0;    // issued: steps queued on the device so far
    int64_t save_step = 0;
    double save_seconds = 0;                     // training waited for `save`, since the last row
    bool no_room = false;                        // a note said that memory for a copy is missing
    std::unique_ptr<CheckpointWriter> writer;    // last, as its thread uses the members above

    ~Trainer();
    Status run();

    // Functions of train/plan.cpp.
    Status set_up();    // everything before the step loop
    Status agreed(const Status& mine);
    // Compares a text between ranks, line by line. Exit 7: names a rank and the line that differs.
    Status check_same_on_ranks(const std::string& text);
    Status check_same_config();
    Status check_same_start();
    void broadcast_algorithms();    // gives rank 0's algorithms to all ranks
    void share_cores();
    Status apply_recipe();        // train/recipe.cpp: options that were left open
    Status choose_optimizer();    // train/optimizer.cpp: the plan's row, states, groups
    std::string optimizer_text() const;
    float average_rate(int64_t step) const;
    Status choose_batch();    // plan; --batch auto: the largest that fits
    void agree_on_batch();
    void resolve(const std::string& key, const std::string& unset, const std::string& value);
    bool has_data() const { return !(o.*task->files).empty(); }
    bool validates() const { return !(o.*task->val_files).empty(); }
    bool samples_answers() const { return task->sequences == 0; }                      // the objective is reward
    int sequences() const { return samples_answers() ? o.group : task->sequences; }    // in a loader's sample
    // A batch has whole samples, so a multiple of this number of sequences. A group may span
    // batches.
    int batch_unit() const { return samples_answers() ? 1 : task->sequences; }
    Status read_lines();                   // reads files of lines; without --seq-len, sets the length
    Status open_data();                    // opens the loaders
    LoaderConfig loader_config() const;    // training data's, without the files
    int64_t pass_tokens() const { return data.samples() * sequences() * o.seq_len; }    // positions in an epoch
    Status open_shards();    // opens --data and --val; train/shards.cpp
    Status open_lines();     // opens the loaders of what read_lines has read
    Status no_work() { return {}; }
    Status no_preview() const { return {}; }
    // Returns the steps that read the data `epochs` times; 0: the default.
    int64_t steps_of(int64_t epochs, const BatchSchedule& b) const;
    Status plan_steps();    // steps, batches and schedule from the data's size
    Status plan_decay();    // --decay-from: the steps and the schedule that remain
    int64_t samples_before(int64_t step) const;
    // Epochs of each part of the data after so many samples of the run.
    std::vector<double> epochs_of(int64_t samples) const;
    // A line for each source of a mixture: shares, tokens and epochs of the first samples; empty if
    // there is one source.
    std::string mixture_text(int64_t samples, const char* indent) const;
    void warn_of_repetition();
    std::string launcher_text() const;
    Status open_run();    // creates and locks the run's directory
    Status lock_run();
    static void remove_empty_run();    // removes a directory made here, if without steps
    Status open_metrics();

    // Functions of train/start.cpp.
    Result<ModelSource> newest(const std::string& path);
    Status find_start();    // on rank 0: checkpoint to resume, or --from
    Status look_for_start();
    Status extend_context();    // applies --context to an existing model
    Result<Config> named_model(bool there, ModelSource& base);
    Status choose_model();      // sets config and tokenizer
    Status choose_trained();    // everything, adapters or some tensors
    ModelOptions teacher_options() const;
    Capacity teacher_capacity(int B) const;
    Result<std::vector<MemoryRow>> teacher_memory(int B) const;
    Status open_teacher();    // loads --teacher
    Status keep_packed();     // keeps the base's weights in their file's blocks, beside adapters
    Status choose_tokenizer(const ModelSource& base);
    Status choose_objective();    // also finds the mask token
    Status choose_head();         // train/labels.cpp, as the next three
    Status choose_shards_head();
    bool set_head();
    Status load_below_head();
    Status load();    // loads weights: resumed, --from, or random
    Status load_resized();
    Result<bool> as_before(const std::string& key) const;    // an option has the resumed run's value
    Status resume();
    // The schedule of the run that wrote a checkpoint; none: its options are not this version's.
    std::optional<Schedule> schedule_before(const TrainState& before) const;
    std::string new_rate(const TrainState& before) const;    // note on a changed schedule; "": unchanged

    // Defined in train/chat.cpp, train/prefer.cpp and train/reward/setup.cpp. The previews print
    // conversations or pairs and mark the tokens that are learnt, or print sampled answers.
    Status check_chat_model() const;
    Status choose_chat_template();
    Result<std::shared_ptr<LineSource>> read_conversations(const std::string& pattern, const std::string& flag);
    void note_padding();    // where a batch is not cut behind its last target
    std::string preview_text(const EncodedChat& e) const;
    Status preview_conversations() const;
    Result<std::shared_ptr<LineSource>> read_labels_file(const std::string& pattern, const std::string& flag);
    Status choose_source_target();
    std::string pairs_flag() const;                     // option that makes an encoder-decoder learn
    int source_length() const;                          // most tokens of a source
    int row_tokens() const;                             // tokens of a sequence as the loader gives it
    int target_positions() const;                       // most positions of a sequence in a pass
    double planned_flops() const;                       // FLOPs of a step, divided by its tokens
    Result<Seq2Seq> seq2seq_of(uint64_t seed) const;    // seed: of what is drawn
    Result<std::shared_ptr<LineSource>> read_source_target(const std::string& pattern, const std::string& flag);
    Status choose_preference();
    Result<std::shared_ptr<LineSource>> read_pairs(const std::string& pattern, const std::string& flag);
    Status preview_pairs() const;
    Status choose_reward();
    Result<std::shared_ptr<LineSource>> read_prompts(const std::string& pattern, const std::string& flag);
    Status preview_prompts() const;

    // Functions of train/evaluations.cpp: --eval-tasks.
    Status open_evaluations();    // reads the files
    Status run_evaluations();     // after a validation; the ranks split the items

    // Function of train/dry_run.cpp.
    Status dry_run();

    // Functions of train_gpt.cu.
    Status loop();
    bool needs_padding() const;
    Status issue();                                   // queues one more step on the device
    Status issue_update(int64_t first, bool last);    // first: number of sequences before the step
    bool due_after(int64_t steps) const;              // work is due between this step and the next
    bool out_of_patience() const { return o.patience > 0 && state.bad_validations >= o.patience; }
    ReportFlags flags() const;
    Step outcome();                                                        // waits for the oldest issued step
    Status report(const Step& step, double seconds, bool whole = true);    // whole: validation and sample succeeded
    Status write_rows();                                                   // state.unwritten to metrics.jsonl
    Status catch_up();             // on resume: unwritten rows, missing validation
    double guess_limit() const;    // ln V + 2: well above a random guess's loss
    void add_noise(const StepSize& size, const Step& s);
    std::string critical_text() const;    // critical batch, for the progress line
    double busiest_expert() const;        // rows of the busiest / mean of its layer
    void add_experts(Json& row) const;    // their metrics
    void add_data(Json& row) const;
    void end_row();    // with extra_metrics
    Status validate_and_sample();
    Status validate();
    bool has_room_for_copy();
    Status save(bool wait);
    Status save_failed(const Status& s);
    Status end_save();
    Status advance_save();
    // Functions of train/observe.cpp.
    bool samples() const { return o.sample_every > 0 || !o.sample_prompts.empty(); }
    Status read_sample_prompts();
    void open_reports();
    bool norms_due(int64_t step) const { return o.norms_every > 0 && step % o.norms_every == 0; }
    void gather_norms(const std::vector<TensorSquares>& mine);     // sums all ranks', sets `norms`
    void add_report_memory(std::vector<MemoryRow>& rows) const;    // memory of --norms-every and rank 0's samples
    Status finished();
    Status save_before_exit(Status why);
    Status diverged();
    Status stopped();
    Status sample_text();    // train/observe.cpp
};

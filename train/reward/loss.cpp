// loss.cpp - see loss.h.
//
// A step draws its answers, with the weights as they are, and then makes one or more updates on
// them. The first update's pass gives the log-probabilities with which later ones are compared. So
// its ratios are 1, and with one update alone no pass without gradients is needed.
#include "train/reward/loss.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>

#include "base/file.h"
#include "base/philox.h"
#include "checkpoint/adapter_files.h"
#include "model/cost_table.h"
#include "train/reference.h"
#include "train/train.h"

namespace {
constexpr const char* SAMPLES_FILE = "samples.jsonl";    // in the run's directory
constexpr int MOST_TOGETHER = 64;                        // answers that are sampled together, at least --batch

uint64_t step_seed(const Trainer& t, int64_t step) {
    constexpr uint64_t STREAM = 0x6772706F;    // "grpo"
    const Philox4 r = philox(uint64_t(t.o.seed), STREAM, uint64_t(step));
    return r.v[0] | uint64_t(r.v[1]) << 32;
}
// Experts' counts have memory for --batch sequences alone.
int together(const Trainer& t, int B, int64_t answers) {
    const int most = t.config.experts ? B : std::max(B, MOST_TOGETHER);
    return int(std::min({answers, int64_t(most), int64_t(B) * t.o.seq_len}));
}
int64_t step_answers(const Trainer& t) { return t.o.total_batch / t.o.seq_len / t.plan.ranks; }    // a rank's
const Prompts& prompts_of(const SampleSource& source) { return static_cast<const Prompts&>(source); }
}    // namespace

// ---- metrics ------------------------------------------------------------------------------------

void RewardSums::add(const RewardSums& o) {
    answers += o.answers, reward += o.reward, tokens += o.tokens, cut += o.cut;
    groups += o.groups, deviation += o.deviation, equal += o.equal;
    trained += o.trained, clipped += o.clipped, kl += o.kl;
}
void RewardSums::add_to(Json& row, const std::string& prefix, bool with_kl) const {
    row.set(prefix + "reward", reward / answers);
    if (groups > 0) row.set(prefix + "reward_std", deviation / groups, prefix + "no_signal", equal / groups);
    row.set(prefix + "answer_tokens", tokens / answers, prefix + "cut", cut / answers);
    if (trained > 0) row.set(prefix + "clipped", clipped / trained);
    if (with_kl && trained > 0) row.set(prefix + "kl", kl / trained);
}
std::string RewardLoss::text() const { return formatted("  reward %.3f", step.reward / step.answers); }
void RewardLoss::add_metrics(Json& row) const { step.add_to(row, "", params.kl > 0); }
void RewardLoss::add_speeds(Json& row) const { row.set("sampled_per_second", step.tokens / std::max(seconds, 1e-9)); }

// ---- preparation --------------------------------------------------------------------------------

RewardLoss::RewardLoss(Trainer& trainer) : t(trainer), norm(loss_norm_named(trainer.o.loss_norm)) {
    params = {t.o.clip, t.o.clip_high > 0 ? t.o.clip_high : t.o.clip, t.o.kl};
}
RewardLoss::~RewardLoss() {
    if (samples_file >= 0) close(samples_file);
}
int RewardLoss::updates() const { return t.o.updates; }

Status RewardLoss::prepare() {
    TRY(t.agreed(t.ranks.first() ? open_samples() : Status{}));
    return params.kl > 0 ? t.agreed(open_reference()) : Status{};
}

// Truncates rows after the last checkpoint, because a resumed run writes them again.
Status RewardLoss::open_samples() {
    const std::string path = t.o.out + "/" + SAMPLES_FILE;
    samples_file = open(path.c_str(), O_CREAT | O_WRONLY | O_APPEND | O_CLOEXEC | O_NOFOLLOW, 0644);
    std::error_code error;
    t.state.samples_bytes = std::min(t.state.samples_bytes, int64_t(std::filesystem::file_size(path, error)));
    if (samples_file < 0 || error || ftruncate(samples_file, t.state.samples_bytes) != 0)
        return fail(Exit::io, "%s: cannot be written: %s", path.c_str(), strerror(errno));
    return {};
}

// The reference model has the weights of --from. A resumed run reads them again, and compares them
// with the hash that is kept in the run's directory.
Status RewardLoss::open_reference() {
    const std::string path = t.resuming ? TRY(t.newest(t.o.from)).path : t.start;
    Config c = t.config;
    c.trained.clear();
    if (!is_adapter(path)) c.adapter = {};
    reference = std::make_unique<Model>(t.device.model->op);
    Plan plan = {.mode = RunMode::infer, .B = t.o.batch, .S = t.o.seq_len};
    plan.stored = t.plan.stored;
    TRY(reference->allocate(c, plan));
    TRY(checkpoint_weights(path, *reference));
    const uint64_t hash = reference->store.hash(true);
    const std::string kept = (t.resuming ? std::filesystem::path(t.start).parent_path().string() : t.o.out) + "/" +
                             REFERENCE_FILE;
    if (t.resuming && TRY(reference_read(kept)).data != hash)
        return fail(Exit::input,
                    "--from %s: expected the weights that the run began with, found others; --kl needs them",
                    path.c_str());
    ReferenceScores identity;
    identity.data = hash;
    return t.ranks.first() ? reference_write(t.o.out + "/" + REFERENCE_FILE, identity) : Status{};
}

// Without --total-batch the number of a step's answers depends on B; then as many as are ever
// sampled together count.
Status RewardLoss::add_memory(std::vector<MemoryRow>& rows, int B) const {
    Config c = t.config;
    const int longest = std::max(t.source->longest(), t.val_source ? t.val_source->longest() : 0);
    c.T = std::min(c.T, longest + 1);
    const int64_t answers = t.o.total_batch ? step_answers(t) : INT32_MAX;
    const int64_t validated = t.val_source ? ceil_div(t.val_source->samples(), t.ranks.count()) : 0;
    const int sequences = std::max(together(t, B, answers), together(t, B, validated));
    rows.push_back({"keys and values of sampled answers", sequences * cache_bytes(c, t.device.model->op.activation)});
    if (params.kl == 0) return {};
    c = t.config;
    c.trained.clear();
    if (t.resuming || !is_adapter(t.start)) c.adapter = {};
    Plan plan = {.mode = RunMode::infer, .B = B, .S = t.o.seq_len};
    plan.stored = t.plan.stored;
    add_model(rows, "the reference (--kl)", TRY(memory_cost(t.device.model->op, c, plan)));
    return {};
}

// ---- answers ------------------------------------------------------------------------------------

Result<std::vector<RewardLoss::Rollout>> RewardLoss::sample(const std::vector<const PromptLine*>& prompts, int group,
                                                            double temperature, uint64_t seed, int64_t sequence) const {
    GenerationOptions what;
    for (const PromptLine* line : prompts) what.prompts.push_back(line->ids);
    what.num = group;
    what.tokens = t.o.answer_tokens;
    what.batch = together(t, t.o.batch, int64_t(prompts.size()) * group);
    what.sampling = {.temperature = temperature, .top_k = 0, .seed = seed};
    what.first_sequence = sequence;
    what.progress = [](int64_t, int64_t) { count_progress(); };
    GenerationResult made = TRY(generate(*t.device.model, t.tokenizer, what));
    std::vector<Rollout> all(prompts.size() * size_t(group));
    std::vector<SampledAnswer> answers;
    for (size_t i = 0; i < all.size(); i++) {
        Rollout& r = all[i];
        r = {prompts[i / size_t(group)], std::move(made.ids[i]), std::move(made.texts[i]),
             made.finish_reasons[i] == std::string("length")};
        CHECK(!r.ids.empty(), "an answer without tokens");
        answers.push_back({r.line, r.text});
    }
    const std::vector<double> rewards = TRY(t.reward(answers));
    CHECK(rewards.size() == all.size(), "%zu rewards of %zu answers", rewards.size(), all.size());
    for (size_t i = 0; i < all.size(); i++) all[i].reward = rewards[i];
    return all;
}

// Samples, on all ranks. A command may fail on one of them: the others hear of it and end with its
// exit code, so that together they write a checkpoint of the steps before.
Result<std::vector<RewardLoss::Rollout>> RewardLoss::sample_on_ranks(const std::vector<const PromptLine*>& prompts,
                                                                     int group, double temperature, uint64_t seed,
                                                                     int64_t sequence) {
    Result<std::vector<Rollout>> mine = std::vector<Rollout>();
    if (!prompts.empty()) mine = sample(prompts, group, temperature, seed, sequence);
    Status all = t.agreed(mine.status);
    if (all.code == Exit::peer) all.code = Exit::run;
    TRY(all);
    return mine;
}

// The ranks take the step's prompts in turn: the same ones, and the same random numbers, for any
// number of ranks.
Status RewardLoss::draw() {
    const int64_t prompts = step_answers(t) / t.o.group, first = t.ranks.rank() * prompts;
    const double began = now_seconds();
    std::vector<const PromptLine*> lines;
    for (int64_t k = 0; k < prompts; k++) lines.push_back(&prompts_of(t.data.source()).line(t.data.sample(first + k)));
    rollouts = TRY(sample_on_ranks(lines, t.o.group, t.o.temperature, step_seed(t, t.issued), first * t.o.group));
    seconds = now_seconds() - began;
    step = {};
    for (size_t i = 0; i < rollouts.size(); i += size_t(t.o.group)) {
        std::vector<double> rewards;
        for (size_t k = i; k < i + size_t(t.o.group); k++) rewards.push_back(rollouts[k].reward);
        const std::vector<double> a = advantages(rewards, t.o.advantage == "normalised");
        for (size_t k = 0; k < a.size(); k++) rollouts[i + k].advantage = a[k];
        step.groups++, step.deviation += deviation(rewards), step.equal += all_equal(rewards);
    }
    for (const Rollout& r : rollouts)
        step.answers++, step.reward += r.reward, step.tokens += double(r.ids.size()), step.cut += r.cut;
    TRY(share());
    const Loader::Position at = t.data.position();
    t.data.seek({at.epoch, at.index + prompts * t.ranks.count()});
    update = -1;
    return reference ? score_reference() : Status{};
}

// Rows of samples.jsonl.
std::string RewardLoss::rows() const {
    std::string all;
    for (const Rollout& r : rollouts)
        all += formatted("{\"step\":%lld,\"prompt\":", (long long)t.issued + 1) + r.line->prompt + "," +
               Json::object("answer", r.text, "reward", r.reward, "advantage", r.advantage, "tokens", r.ids.size())
                   .fields() +
               "}\n";
    return all;
}

// Writes the rows of all ranks to samples.jsonl, and gives every rank the step's number of tokens.
// samples_bytes counts finished steps alone, so that a resumed run can cut off the rest.
Status RewardLoss::share() {
    const std::string mine = rows();
    std::vector<std::string> parts = {mine};
    all_tokens = int64_t(step.tokens);
    if (t.ranks.coordinator) {
        parts = t.ranks.coordinator->gather(mine);
        int64_t sum = 0;
        for (const std::string& n : t.ranks.coordinator->gather(std::to_string(all_tokens))) sum += stoll(n);
        all_tokens = stoll(t.ranks.coordinator->broadcast(std::to_string(sum)));
    }
    new_bytes = 0;
    if (!t.ranks.first()) return {};
    for (const std::string& part : parts)
        for (size_t at = 0; at < part.size();) {
            const ssize_t n = write(samples_file, part.data() + at, part.size() - at);
            if (n < 0 && errno == EINTR) continue;
            if (n <= 0)
                return fail(Exit::io, "%s/%s: cannot be written: %s", t.o.out.c_str(), SAMPLES_FILE, strerror(errno));
            at += size_t(n), new_bytes += n;
        }
    return {};
}

Status RewardLoss::sync() {
    if (samples_file < 0 || fsync(samples_file) == 0) return {};
    return fail(Exit::io, "%s/%s: fsync: %s", t.o.out.c_str(), SAMPLES_FILE, strerror(errno));
}

// ---- updates ------------------------------------------------------------------------------------

int64_t RewardLoss::begin(int64_t, int64_t sequences) {
    update++;
    return sequences;
}

bool RewardLoss::fill(int i) {
    const size_t S = size_t(t.o.seq_len), B = size_t(t.o.batch);
    std::fill(t.tokens.begin(), t.tokens.end(), std::max(0, t.tokenizer.vocabulary().pad));
    std::fill(t.targets.begin(), t.targets.end(), -1);
    t.texts.assign(B, {Text{}});
    for (size_t b = 0; b < B; b++) {
        const Rollout& r = rollouts[size_t(i) * B + b];
        const std::vector<int>& prompt = r.line->ids;
        CHECK(prompt.size() + r.ids.size() <= S + 1, "%zu and %zu tokens", prompt.size(), r.ids.size());
        int *tokens = &t.tokens[b * S], *targets = &t.targets[b * S + prompt.size() - 1];
        std::copy(prompt.begin(), prompt.end(), tokens);
        std::copy(r.ids.begin(), r.ids.end() - 1, tokens + prompt.size());
        std::copy(r.ids.begin(), r.ids.end(), targets);
    }
    return true;
}

namespace {
// Returns the answers' log-probabilities by a model that has run a batch.
std::vector<double> answer_logps(const std::vector<float>& losses, size_t b, size_t S, const RewardLoss::Rollout& r) {
    std::vector<double> all;
    for (size_t k = 0; k < r.ids.size(); k++) all.push_back(-double(losses[b * S + r.line->ids.size() - 1 + k]));
    return all;
}
}    // namespace

Status RewardLoss::score_reference() {
    const int B = t.o.batch;
    for (int i = 0; i < t.batches.full; i++) {
        (void)fill(i);
        const int S = t.needs_padding() ? t.o.seq_len
                                        : cut_behind_targets(t.tokens.data(), t.targets.data(), B, t.o.seq_len);
        std::vector<float> losses(size_t(B) * size_t(S));
        reference->batch.upload(t.tokens.data(), t.targets.data(), B, S);
        reference->forward();
        reference->loss(false, 0);
        (void)reference->mean_loss(losses.data());
        for (size_t b = 0; b < size_t(B); b++) {
            Rollout& r = rollouts[size_t(i) * size_t(B) + b];
            r.reference = answer_logps(losses, b, size_t(S), r);
        }
    }
    return {};
}

// With one update and no reference all ratios are 1, whatever the log-probabilities are.
void RewardLoss::batch(int i, int S, int64_t terms) {
    Model& g = *t.device.model;
    const size_t B = size_t(t.o.batch), length = size_t(S);
    std::vector<float> losses(B * length), weights(B * length), of_answers(B);
    if (t.o.updates > 1 || reference) {
        g.loss(false, 0);
        (void)g.mean_loss(losses.data());
    }
    for (size_t b = 0; b < B; b++) {
        Rollout& r = rollouts[size_t(i) * B + b];
        const std::vector<double> now = answer_logps(losses, b, length, r);
        if (update == 0) r.logps = now;
        const double factor = norm.factor(int64_t(r.ids.size()), all_tokens, terms, t.o.answer_tokens);
        double loss = 0;
        for (size_t k = 0; k < now.size(); k++) {
            const TokenTerms token =
                token_terms(params, r.advantage, {now[k], r.logps[k], reference ? r.reference[k] : 0});
            loss += factor * token.loss;
            step.trained++, step.clipped += token.clipped, step.kl += token.kl;
            // A token's loss is minus its log-probability.
            weights[b * length + r.line->ids.size() - 1 + k] = float(-factor * token.dlogp);
        }
        of_answers[b] = float(loss);
    }
    g.weighted_loss(weights.data(), of_answers.data(), int(B), float(1.0 / double(terms)));
}

void RewardLoss::end() {
    t.state.samples_bytes += new_bytes;
    new_bytes = 0;
    if (!t.ranks.coordinator) return;
    struct Part {
        RewardSums sums;
        double seconds;
    } mine = {step, seconds}, all = {{}, 0};
    for (const std::string& text : t.ranks.coordinator->gather({reinterpret_cast<const char*>(&mine), sizeof mine})) {
        Part part;
        memcpy(&part, text.data(), sizeof part);
        all.sums.add(part.sums);
        all.seconds = std::max(all.seconds, part.seconds);
    }
    step = all.sums, seconds = all.seconds;    // on rank 0, which writes the metrics
}

// ---- validation ---------------------------------------------------------------------------------

// The likeliest answer to each prompt. The loss is minus the mean reward.
Result<double> RewardLoss::validate(const Show& show) {
    const Prompts& prompts = prompts_of(t.val.source());
    RewardSums sums;
    const int64_t all = t.val.samples(), ranks = t.ranks.count(), part = ceil_div(all, ranks);
    const int64_t first = std::min(all, t.ranks.rank() * part), end = std::min(all, first + part);
    std::vector<const PromptLine*> lines;
    t.val.seek({0, 0});
    for (int64_t i = first; i < end; i++) lines.push_back(&prompts.line(t.val.sample(i)));
    for (const Rollout& r : TRY(sample_on_ranks(lines, 1, 0, 0, first)))
        sums.answers++, sums.reward += r.reward, sums.tokens += double(r.ids.size()), sums.cut += r.cut;
    show(end - first, end - first);
    validation = sums;
    if (t.ranks.coordinator) {
        validation = {};
        for (const std::string& text :
             t.ranks.coordinator->gather({reinterpret_cast<const char*>(&sums), sizeof sums})) {
            RewardSums of_rank;
            memcpy(&of_rank, text.data(), sizeof of_rank);
            validation.add(of_rank);
        }
        const std::string bytes =
            t.ranks.coordinator->broadcast({reinterpret_cast<const char*>(&validation), sizeof validation});
        memcpy(&validation, bytes.data(), sizeof validation);
    }
    return -validation.reward / validation.answers;
}

std::string reward_text(const Trainer& t) {
    const LossNormRow& row = loss_norm_named(t.o.loss_norm);
    return formatted("rewards by %s, groups of %d answers of at most %s, %s, loss by %s (%s)", t.o.reward.c_str(),
                     t.o.group, counted(t.o.answer_tokens, "token").c_str(), counted(t.o.updates, "update").c_str(),
                     row.name, row.source) +
           (t.o.kl > 0 ? formatted(", KL %g to the starting weights", t.o.kl) : "");
}

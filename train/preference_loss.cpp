// preference_loss.cpp - see preference_loss.h.
//
// A batch takes two passes over the head. The first gives each token's log-probability without
// gradients. The host adds them up for each answer, and the row of preference.h gives the loss and
// its derivative by each answer's score. That derivative is the weight of the answer's tokens in
// the second pass, which computes the gradients.
#include "train/preference_loss.h"

#include <cstring>
#include <filesystem>

#include "base/countdown.h"
#include "data/samples.h"
#include "model/cost_table.h"
#include "train/train.h"

void PreferenceSums::add(const PairLoss& p) {
    const PreferenceSums one = {.pairs = 1,
                                .loss = p.terms.loss,
                                .accurate = p.reward_chosen > p.reward_rejected ? 1.0 : 0.0,
                                .reward_chosen = p.reward_chosen,
                                .reward_rejected = p.reward_rejected,
                                .logp_chosen = p.logp_chosen,
                                .logp_rejected = p.logp_rejected};
    add(one);
}
void PreferenceSums::add(const PreferenceSums& o) {
    pairs += o.pairs, loss += o.loss, accurate += o.accurate;
    reward_chosen += o.reward_chosen, reward_rejected += o.reward_rejected;
    logp_chosen += o.logp_chosen, logp_rejected += o.logp_rejected;
}
void PreferenceSums::add_to(Json& row, const std::string& prefix) const {
    const std::pair<const char*, double> metrics[] = {
        {"margin", reward_chosen - reward_rejected}, {"accuracy", accurate},       {"reward_chosen", reward_chosen},
        {"reward_rejected", reward_rejected},        {"logp_chosen", logp_chosen}, {"logp_rejected", logp_rejected}};
    for (auto& [name, sum] : metrics) row.set(prefix + name, sum / pairs);
}

PreferenceLoss::PreferenceLoss(Trainer& trainer) : t(trainer), kind(preference_named(trainer.o.prefer_loss)) {
    params = {t.o.beta > 0 ? t.o.beta : kind.beta, t.o.label_smoothing, t.o.gamma};
}

namespace {
// Adds up the losses of each of `rows` sequences of S positions: minus an answer's score.
std::vector<AnswerScore> add_up(const float* losses, const int* targets, int rows, int S) {
    std::vector<AnswerScore> all(static_cast<size_t>(rows));
    for (int64_t i = 0; i < int64_t(rows) * S; i++) {
        AnswerScore& a = all[size_t(i / S)];
        a.score -= double(losses[i]);
        a.tokens += targets[i] >= 0;
    }
    return all;
}
}    // namespace

// ---- a step -------------------------------------------------------------------------------------

int64_t PreferenceLoss::begin(int64_t, int64_t sequences) {
    const int64_t pairs = sequences / 2, batch = t.o.batch / 2, ranks = t.ranks.count();
    samples.clear();
    for (int64_t i = t.ranks.rank() * batch; i < pairs; i += ranks * batch)
        for (int64_t b = 0; b < batch; b++) samples.push_back(t.data.sample(i + b));
    step = {};
    return pairs;
}

void PreferenceLoss::batch(int i, int S, int64_t terms) {
    Model& g = *t.device.model;
    const int B = t.o.batch, pairs = B / 2;
    std::vector<float> losses(size_t(B) * size_t(S)), weights(losses.size()), of_pairs(static_cast<size_t>(pairs));
    g.loss(false, 0);
    (void)g.mean_loss(losses.data());
    std::vector<AnswerScore> answers = add_up(losses.data(), t.targets.data(), B, S);
    for (int k = 0; k < pairs; k++) {
        AnswerScore &chosen = answers[size_t(2 * k)], &rejected = answers[size_t(2 * k + 1)];
        const size_t sample = size_t(samples[size_t(i * pairs + k)]);
        if (kind.reference) {
            chosen.reference = reference.of_data[2 * sample];
            rejected.reference = reference.of_data[2 * sample + 1];
        }
        const PairLoss pair = pair_loss(kind, params, chosen, rejected);
        step.add(pair);
        of_pairs[size_t(k)] = float(pair.terms.loss);
        // A token's loss is minus its log-probability.
        std::fill_n(&weights[size_t(2 * k) * size_t(S)], S, float(-pair.terms.dchosen));
        std::fill_n(&weights[size_t(2 * k + 1) * size_t(S)], S, float(-pair.terms.drejected));
    }
    g.weighted_loss(weights.data(), of_pairs.data(), pairs, float(1.0 / double(terms)));
}

void PreferenceLoss::end() {
    if (!t.ranks.coordinator) return;
    PreferenceSums all;
    for (const std::string& part : t.ranks.coordinator->gather({reinterpret_cast<const char*>(&step), sizeof step})) {
        PreferenceSums of_rank;
        memcpy(&of_rank, part.data(), sizeof of_rank);
        all.add(of_rank);
    }
    step = all;    // on rank 0, which writes the metrics
}

std::string PreferenceLoss::text() const {
    return formatted("  margin %.3f  accuracy %.2f", (step.reward_chosen - step.reward_rejected) / step.pairs,
                     step.accurate / step.pairs);
}

// ---- all pairs ----------------------------------------------------------------------------------

// Returns both scores of each of the loader's samples, in its order, on every rank.
Result<std::vector<AnswerScore>> PreferenceLoss::scores(Loader& loader, const Show& show) {
    Model& g = *t.device.model;
    const int B = t.o.batch, pairs = B / 2, rank = t.ranks.rank(), ranks = t.ranks.count();
    std::vector<int> tokens(size_t(B) * size_t(t.o.seq_len)), targets(tokens.size());
    std::vector<float> losses(tokens.size());
    std::vector<AnswerScore> mine;
    loader.seek({0, 0});
    for (int64_t done = int64_t(rank) * pairs; done < loader.samples(); done += int64_t(ranks) * pairs) {
        TRY(loader.next(tokens.data(), targets.data()));
        const int S = g.op.on_host() ? cut_behind_targets(tokens.data(), targets.data(), B, t.o.seq_len) : t.o.seq_len;
        const int rows = 2 * int(std::min<int64_t>(pairs, loader.samples() - done));    // the last batch wraps
        g.batch.upload(tokens.data(), targets.data(), rows, S);
        g.forward();
        g.loss(false, 0);
        (void)g.mean_loss(losses.data());
        for (const AnswerScore& a : add_up(losses.data(), targets.data(), rows, S)) mine.push_back(a);
        show(done + rows / 2, loader.samples());
    }
    if (!t.ranks.coordinator) return mine;
    const std::string all =
        gather_batches({reinterpret_cast<const char*>(mine.data()), mine.size() * sizeof(AnswerScore)},
                       loader.samples(), pairs, 2 * sizeof(AnswerScore), *t.ranks.coordinator);
    mine.resize(all.size() / sizeof(AnswerScore));
    memcpy(mine.data(), all.data(), all.size());
    return mine;
}

Result<double> PreferenceLoss::validate(const Show& show) {
    std::vector<AnswerScore> answers = TRY(scores(t.val, show));
    validation = {};
    for (size_t i = 0; i < answers.size(); i += 2) {
        for (size_t k : {i, i + 1})
            if (kind.reference) answers[k].reference = reference.of_validation[k];
        validation.add(pair_loss(kind, params, answers[i], answers[i + 1]));
    }
    return validation.loss / validation.pairs;
}

// ---- the reference ------------------------------------------------------------------------------

Status PreferenceLoss::prepare() {
    if (!kind.reference) return {};
    TRY(t.resuming ? read_reference() : compute_reference());
    const std::string path = t.o.out + "/" + REFERENCE_FILE;
    return t.agreed(t.ranks.first() ? reference_write(path, reference) : Status{});
}

double PreferenceLoss::prepare_flops() const {
    if (!kind.reference || !t.has_data()) return 0;
    const double pairs = double(t.data.samples() + (t.validates() ? t.val.samples() : 0));
    return 2 * pairs * t.o.seq_len * scoring_flops(t.device.model->op, t.config, t.o.seq_len);
}

Result<std::vector<double>> PreferenceLoss::reference_of(Loader& loader, const char* what) {
    const double began = now_seconds();
    const std::vector<AnswerScore> answers = TRY(scores(loader, [&](int64_t done, int64_t pairs) {
        const double seconds = now_seconds() - began;
        if (seconds > 2) t.progress.line(countdown_text(what, "pairs", done, pairs, seconds));
    }));
    std::vector<double> all;
    for (const AnswerScore& a : answers) all.push_back(a.score);
    return all;
}

Status PreferenceLoss::compute_reference() {
    if (t.ranks.coordinator) t.ranks.coordinator->activity.enter("scoring the reference");
    LoaderConfig in_order = t.loader_config();
    in_order.shuffle = false;
    Loader all = TRY(Loader::open(t.source, in_order));
    reference.data = t.data.fingerprint();
    reference.of_data = TRY(reference_of(all, "reference"));
    if (!t.validates()) return {};
    reference.validation = t.state.validation;
    reference.of_validation = TRY(reference_of(t.val, "reference for validation"));
    return {};
}

// Every rank reads the file, which is in a directory that all ranks share.
Status PreferenceLoss::read_reference() {
    const std::string path = std::filesystem::path(t.start).parent_path() / REFERENCE_FILE;
    auto read = [&]() -> Status {
        reference = TRY(reference_read(path));
        if (reference.data != t.data.fingerprint() || reference.of_data.size() != size_t(2 * t.source->samples()))
            return fail(Exit::input, "%s: expected the scores of --prefer %s, found those of other pairs", path.c_str(),
                        t.o.prefer.c_str());
        if (t.validates() && (reference.validation != t.state.validation ||
                              reference.of_validation.size() != size_t(2 * t.val.samples())))
            return fail(Exit::usage,
                        "--prefer-val %s: the run began with other pairs for validation, or another --eval-tokens, and "
                        "its reference's scores are of those; give the same, or start again",
                        t.o.prefer_val.c_str());
        return {};
    };
    return t.agreed(read());
}

std::string preference_text(const Trainer& t) {
    const PreferenceRow& row = preference_named(t.o.prefer_loss);
    return formatted("preference, %s (%s), beta %g%s", row.name, row.source, t.o.beta > 0 ? t.o.beta : row.beta,
                     row.reference ? ", with the starting weights as reference" : "");
}

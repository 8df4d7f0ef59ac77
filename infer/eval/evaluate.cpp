// evaluate.cpp - see evaluate.h.
#include "evaluate.h"

#include <cmath>
#include <cstring>

#include "data/samples.h"

namespace {
struct Window {
    double loss = 0;     // sum over the window's targets, nats
    double bytes = 0;    // text bytes of the window's targets
    int64_t targets = 0;
    double next_loss = 0;                                         // the pair of texts'
    int64_t decisions = 0, right = 0, positive = 0, found = 0;    // positive: of class 1; found: and right

    // A loss below ln 2 belongs to a probability above a half.
    void decide(bool is_positive, double with_loss) {
        const bool is_right = with_loss < std::log(2.0);
        decisions++, right += is_right, positive += is_positive, found += is_positive && is_right;
    }
    void add(const Window& w) {
        loss += w.loss, bytes += w.bytes, targets += w.targets, next_loss += w.next_loss;
        decisions += w.decisions, right += w.right, positive += w.positive, found += w.found;
    }
};

// ring: successive ranks that have computed parts of the same windows.
std::vector<Window> gather_windows(const std::vector<Window>& mine, int64_t windows, int B, int ring,
                                   Coordinator& coordinator) {
    const std::string all = gather_batches({reinterpret_cast<const char*>(mine.data()), mine.size() * sizeof(Window)},
                                           windows, B, sizeof(Window), coordinator, ring);
    std::vector<Window> parts(all.size() / sizeof(Window)), sums(static_cast<size_t>(windows));
    memcpy(parts.data(), all.data(), all.size());
    const Window* from = parts.data();
    for (int64_t first = 0; first < windows; first += B)
        for (int r = 0; r < ring; r++)
            for (int64_t i = first; i < std::min(windows, first + B); i++, from++) sums[size_t(i)].add(*from);
    return sums;
}
}    // namespace

std::string gather_batches(const std::string& mine, int64_t samples, int B, size_t sample_bytes,
                           Coordinator& coordinator, int ring) {
    const std::vector<std::string> parts = coordinator.gather(mine);
    std::string all;
    std::vector<size_t> taken(parts.size());    // bytes read so far; empty except on rank 0
    for (int64_t first = 0; first < samples && !parts.empty(); first += B) {
        const size_t bytes = size_t(std::min<int64_t>(B, samples - first)) * sample_bytes;
        for (int r = 0; r < ring; r++) {
            const size_t rank = size_t(first / B) % (parts.size() / size_t(ring)) * size_t(ring) + size_t(r);
            all += parts[rank].substr(taken[rank], bytes);
            taken[rank] += bytes;
        }
    }
    return coordinator.broadcast(all);
}

Result<Evaluation> evaluate(Model& model, Loader& loader, const Tokenizer& tokenizer, int B, int S,
                            const EvaluationProgress& progress, Coordinator* coordinator, const Objective& objective,
                            const EachBatch& each) {
    auto upload = [&](int64_t first, int rows, std::vector<int>& tokens, std::vector<int>& targets,
                      const std::vector<std::vector<Text>>& texts) {
        const bool cut = objective.is_plain_causal() && model.op.on_host() && model.plan.cp == 1;
        const int n = cut ? cut_behind_targets(tokens.data(), targets.data(), B, S) : S;
        Spans spans;
        for (int b = 0; b < rows; b++)
            objective.apply(first + b, &tokens[size_t(b * n)], &targets[size_t(b * n)], n, n, &spans, texts[size_t(b)]);
        model.batch.upload(tokens.data(), targets.data(), rows, n, objective.is_plain_causal() ? nullptr : &spans);
        return std::vector<int>(targets.begin(), targets.begin() + rows * n);
    };
    return evaluate(model, loader, tokenizer, B, S, progress, coordinator, UploadRows(upload), each);
}

Result<Evaluation> evaluate(Model& model, Loader& loader, const Tokenizer& tokenizer, int B, int width,
                            const EvaluationProgress& progress, Coordinator* coordinator, const UploadRows& upload,
                            const EachBatch& each) {
    loader.seek({0, 0});
    const int64_t windows = loader.samples();
    const int ring = model.plan.cp;    // ranks that have parts of the same windows
    CHECK(!each || ring == 1, "a ring of %d", ring);
    const int rank = coordinator ? coordinator->rank() / ring : 0,
              ranks = coordinator ? coordinator->ranks() / ring : 1;
    std::vector<int> tokens(size_t(B) * size_t(width)), targets(tokens.size());
    std::vector<float> losses;
    std::vector<std::vector<Text>> texts;
    std::vector<Window> sums;
    for (int64_t done = int64_t(rank) * B; done < windows; done += int64_t(ranks) * B) {
        TRY(loader.next(tokens.data(), targets.data(), &texts));
        const int rows = int(std::min<int64_t>(B, windows - done));    // the last batch wraps into the next epoch
        const std::vector<int> learnt = upload(done, rows, tokens, targets, texts);
        losses.resize(learnt.size());
        model.forward();
        model.loss(false, 0);
        (void)model.mean_loss(losses.data());
        if (each) each(rows, losses.data(), learnt.data());
        const Zigzag& part = model.batch.zigzag();
        const int S = int(learnt.size()) / rows, own = S / ring;    // positions of a window, those of this rank
        const std::vector<float> next_losses = model.pair_losses();
        const bool decides = model.c.head == HeadKind::replaced;
        for (int i = 0; i < rows * own; i++) {
            if (i % own == 0) sums.emplace_back();
            if (const int row = i / own; i % own == 0 && !next_losses.empty() && texts[size_t(row)][0].label >= 0) {
                sums.back().next_loss = double(next_losses[size_t(row)]);
                sums.back().decide(texts[size_t(row)][0].label == 1, sums.back().next_loss);
            }
            sums.back().loss += double(losses[size_t(i)]);
            const int id = learnt[size_t(i / own * S + part.position(i % own))];
            if (id < 0) continue;
            sums.back().targets++;
            if (decides) sums.back().decide(id != 0, double(losses[size_t(i)]));
            else if (id < tokenizer.vocab_size() && !tokenizer.is_special(id))
                sums.back().bytes += double(tokenizer.token(id).size());
        }
        if (progress) progress(done + rows, windows);
    }
    if (coordinator) sums = gather_windows(sums, windows, B, ring, *coordinator);
    Window all;
    for (const Window& w : sums) all.add(w);
    Evaluation e;
    e.tokens = all.targets;
    e.loss = all.loss / double(e.tokens);
    e.bits_per_byte = all.bytes > 0 ? all.loss / std::log(2.0) / all.bytes : 0;
    e.decisions = all.decisions;
    if (!all.decisions) return e;
    const int64_t wrong_negatives = all.decisions - all.right - (all.positive - all.found);
    const int64_t either = 2 * all.found + (all.positive - all.found) + wrong_negatives;
    e.next_loss = all.next_loss / double(all.decisions);
    e.accuracy = double(all.right) / double(all.decisions);
    e.f1 = either ? 2 * double(all.found) / double(either) : 0;
    return e;
}

void set_decisions(Json& to, const Evaluation& e, const Config& c, const char* prefix) {
    if (!e.decisions) return;
    const std::string what = c.predicts_next() ? "next_sentence_" : "replaced_";
    if (c.predicts_next()) to.set((prefix + what + "loss").c_str(), e.next_loss);
    to.set((what + "accuracy").c_str(), e.accuracy, (what + "f1").c_str(), e.f1);
}

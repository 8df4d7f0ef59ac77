// step.cpp - the model's step: what begins it, AdamW at its end, and what is known of it later.
#include <algorithm>
#include <cmath>
#include <cstring>

#include "gpt.h"

void Model::begin_step(int64_t targets, uint64_t seed, int64_t number, int64_t positions) {
    shards.clear_gradients();
    op.zero(totals.loss, int64_t(sizeof(double)));
    if (totals.router_totals) op.zero(totals.router_totals, 8 * totals.router_totals_count);
    step_targets = 0, all_targets = targets, all_positions = positions;
    step_seed = seed, step_number = number, sequences = 0;
}

double Model::grad_norm() {
    double square;
    op.sum_of_squares(totals.squares, shards.grads, shards.flat);
    op.download(&square, totals.squares, int64_t(sizeof square));
    return std::sqrt(square);
}

void Model::update(const AdamW& adam, const Limits& limits, uint64_t seed, int signal) {
    CHECK(updates - finished < 2, "two updates are pending");
    const int squares = shards.sum(totals, signal);
    const double all = all_targets ? double(all_targets) : double(std::max<int64_t>(1, step_targets)) * plan.ranks;
    op.gate(step, totals.loss, 1 / all, totals.squares, squares, adam, limits);
    for (const Share& s : shards.updates()) {
        float* master = shards.master ? shards.master + s.held : nullptr;
        // Each share has a seed of its own, as elements are counted from 0.
        op.adamw(op.at(shards.params, s.first), master, shards.m + s.held, shards.v + s.held,
                 shards.share_gradients(s), shards.decays + s.first / 64, s.size, step, adam,
                 seed + uint64_t(s.first));
        shards.update_done(s);
    }
    char* to = results + updates % 2 * result_bytes();
    op.download_later(to, step, int64_t(sizeof(Step)));
    // The reports, and what follows them: the routers' totals.
    op.download_later(to + sizeof(Step), totals.reports, result_bytes() - int64_t(sizeof(Step)));
    marks[updates++ % 2] = op.mark();
}

Step Model::finish(std::vector<RankReport>* reports, std::vector<double>* router_totals) {
    CHECK(finished < updates, "no update is pending");
    {
        Waiting waiting(shards.comm ? shards.comm->pulse : nullptr);
        op.wait(marks[finished % 2]);
    }
    const char* from = results + finished++ % 2 * result_bytes();
    Step s;
    memcpy(&s, from, sizeof s);
    if (reports) {
        reports->resize(size_t(plan.ranks));
        memcpy(reports->data(), from + sizeof s, reports->size() * sizeof(RankReport));
    }
    if (router_totals) {
        const auto* end = reinterpret_cast<const double*>(from + result_bytes());
        router_totals->assign(end - totals.router_totals_count, end);
    }
    return s;
}

void Model::set_updates(int64_t done) {
    Step s = {};
    s.updates = done;
    op.upload(step, &s, int64_t(sizeof s));
}

// lengths.cpp - `flatgpt bench --lengths`: how a training step grows with its sequences' length.
//
// Attention's pairs of positions grow as T^2 (causal: T (T + 1) / 2), the other operations about as
// T: they also read weights. The optimizer's update does not grow. Scores, which a textbook's
// attention stores, would grow as T^2 in memory; here no operation stores them.
#include "bench.h"

#include "base/console.h"
#include "base/table.h"
#include "files/json_write.h"
#include "model/cost_table.h"

namespace {
struct LengthRow {
    int T = 0;
    double attention = 0, others = 0, update = 0;    // seconds of a step
    double attention_flops = 0;
    double activations = 0, scores = 0;    // bytes; scores: one layer's as fp32, not stored
};

// Times the fastest of several steps, attention's operations and the others.
Result<LengthRow> measure(const Bench& bench, Config c, int B, int T) {
    c.T = std::max(c.T, T);
    Profile profile(bench.device.model->op, bench.peak);
    Model model(profile.table);
    TRY(model.allocate(c, {RunMode::train, B, T}));
    model.init(1);
    TrainingStep step(c, B, T);
    LengthRow best = {.T = T, .scores = softmax_layers(c) ? 4 * score_elements(c, B, T) : 0};
    for (const MemoryRow& r : model.memory)
        if (std::string(r.purpose) == "activations") best.activations = double(r.bytes);
    double fastest = INFINITY, spent = 0;
    for (int i = 0; i < 3 || (i < 50 && spent < 1); i++) {
        profile.start();
        step.run(model);
        (void)model.train.finish();
        LengthRow now = best;
        now.attention = now.others = now.update = now.attention_flops = 0;
        for (const ProfileRow& r : profile.rows()) {
            const bool attends = r.name.find("attention") != std::string::npos;
            (attends ? now.attention : is_update(r.name) ? now.update : now.others) += r.seconds;
            now.attention_flops += attends ? r.work.flops() : 0;
        }
        const double all = now.attention + now.others + now.update;
        spent += all;
        if (i == 0 || all >= fastest) continue;    // the first step allocates
        fastest = all;
        best = now;
    }
    return best;
}

const std::vector<int> COLUMNS = {7, 13, 8, 8, 12, 8, 8, 11, 13, 13, 13};

void print(const Bench& bench, int B, const LengthRow& r, const LengthRow* before) {
    if (bench.o.json) {
        Json::object("length", r.T, "batch", B, "device", bench.device.text, "attention_ms", r.attention * 1e3,
                     "others_ms", r.others * 1e3, "update_ms", r.update * 1e3, "attention_FLOPs",
                     std::llround(r.attention_flops), "activation_bytes", std::llround(r.activations),
                     "score_bytes_not_stored", std::llround(r.scores))
            .print();
        fflush(stdout);
        return;
    }
    auto growth = [&](double now, double then) { return before && then > 0 ? Cell(now / then, "%.2f x") : Cell(); };
    const double length = before ? double(r.T) / before->T : 0;
    print_table_line(COLUMNS, {r.T, Cell(r.attention * 1e3, "%.3f"),
                               growth(r.attention, before ? before->attention : 0), growth(length * length, 1),
                               Cell(r.others * 1e3, "%.3f"), growth(r.others, before ? before->others : 0),
                               growth(length, 1), Cell(r.update * 1e3, "%.3f"), decimal(r.attention_flops, "FLOP"),
                               human_bytes(r.activations), r.scores > 0 ? Cell(human_bytes(r.scores)) : Cell()});
    fflush(stdout);
}
}    // namespace

Status bench_lengths(const Bench& bench, const Config& c, int B, const std::vector<int>& lengths) {
    if (!bench.o.json) {
        printf("training steps of %s; growth: from one line to the next\n", counted(B, "sequence").c_str());
        print_table_line(COLUMNS, {"T", "attention ms", "growth", "T^2's", "others ms", "growth", "T's", "update ms",
                                   "attention", "activations", "not stored"});
    }
    std::optional<LengthRow> before;
    for (const int T : lengths) {
        const LengthRow row = TRY(measure(bench, c, B, T));
        print(bench, B, row, before ? &*before : nullptr);
        before = row;
    }
    if (!bench.o.json && softmax_layers(c))
        printf("not stored: a layer's scores as fp32, %s of T x T\n", counted(c.NH, "head").c_str());
    return {};
}

// lengths.cpp - `flatgpt bench --lengths`: how a training step grows with its sequences' length.
//
// Attention's pairs of positions grow as T^2 (causal: T (T + 1) / 2), all other work as T. Scores,
// which a textbook's attention stores, would grow as T^2 in memory; here no operation stores them.
#include "bench.h"

#include "base/console.h"
#include "base/table.h"
#include "files/json_write.h"
#include "model/cost_table.h"

namespace {
struct LengthRow {
    int T = 0;
    double attention = 0, others = 0;    // seconds of a step, forward and backward
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
    LengthRow best = {.T = T, .scores = 4 * score_elements(c, B, T)};
    for (const MemoryRow& r : model.memory)
        if (std::string(r.purpose) == "activations") best.activations = double(r.bytes);
    double fastest = INFINITY, spent = 0;
    for (int i = 0; i < 3 || (i < 50 && spent < 1); i++) {
        profile.start();
        step.run(model);
        (void)model.train.finish();
        double attention = 0, all = 0, flops = 0;
        for (const ProfileRow& r : profile.rows()) {
            const bool attends = r.name.find("attention") != std::string::npos;
            all += r.seconds;
            attention += attends ? r.seconds : 0;
            flops += attends ? r.work.flops() : 0;
        }
        spent += all;
        if (i == 0 || all >= fastest) continue;    // the first step allocates
        fastest = all;
        best.attention = attention, best.others = all - attention, best.attention_flops = flops;
    }
    return best;
}

void print(const Bench& bench, const LengthRow& r, const LengthRow* before) {
    if (bench.o.json) {
        Json::object("length", r.T, "device", bench.device.text, "attention_ms", r.attention * 1e3, "others_ms",
                     r.others * 1e3, "attention_FLOPs", std::llround(r.attention_flops), "activation_bytes",
                     std::llround(r.activations), "score_bytes_not_stored", std::llround(r.scores))
            .print();
        fflush(stdout);
        return;
    }
    auto growth = [&](double now, double then) { return before && then > 0 ? Cell(now / then, "%.2f x") : Cell(); };
    const double length = before ? double(r.T) / before->T : 0;
    auto power = [&](double x) { return before ? Cell(x, "%.2f x") : Cell(); };
    print_table_line(
        {7, 13, 8, 8, 12, 8, 8, 10, 11, 11},
        {r.T, Cell(r.attention * 1e3, "%.3f"), growth(r.attention, before ? before->attention : 0),
         power(length * length), Cell(r.others * 1e3, "%.3f"), growth(r.others, before ? before->others : 0),
         power(length), decimal(r.attention_flops, "FLOP"), human_bytes(r.activations), human_bytes(r.scores)});
    fflush(stdout);
}
}    // namespace

Status bench_lengths(const Bench& bench, const Config& c, int B, const std::vector<int>& lengths) {
    if (!bench.o.json)
        printf(
            "training steps of %s; growth: from one line to the next\n%s\n", counted(B, "sequence").c_str(),
            table_line({7, 13, 8, 8, 12, 8, 8, 10, 11, 11}, {"T", "attention ms", "growth", "T^2's", "others ms",
                                                             "growth", "T's", "attention", "activations", "not stored"})
                .c_str());
    std::optional<LengthRow> before;
    for (const int T : lengths) {
        Result<LengthRow> row = measure(bench, c, B, T);
        TRY(row.status);
        print(bench, row.value, before ? &*before : nullptr);
        before = row.value;
    }
    if (!bench.o.json) printf("not stored: a layer's scores as fp32, %d heads of T x T\n", c.NH);
    return {};
}

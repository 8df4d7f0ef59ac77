// recipe.cpp - `flatgpt train --recipe`: settings that follow from the model and the tokens.
#include <cmath>

#include "train/metrics.h"
#include "train.h"

namespace {
// Sets `value` and its row of run.toml if the flag was not given.
template <class V>
bool fill(Trainer& t, const char* flag, V* value, V chosen, const std::string& unset, const std::string& text) {
    if (was_given(t.o.given, flag)) return false;
    *value = chosen;
    t.resolve(flag + 2, unset, text);
    return true;
}
}    // namespace

// compute-optimal: 20 tokens a parameter are the best use of compute (Hoffmann et al. 2022, table
// 3). Batch and rate are the fits over compute C of DeepSeek LLM (2024, equation 1), for AdamW;
// Muon's updates have its size. A rate that falls to 0 beats one that stays at a tenth (Bergsma et
// al. 2025).
Status Trainer::apply_recipe() {
    if (o.recipe == "none") return {};
    if (o.epochs)
        return fail(Exit::usage, "--recipe: it chooses the steps from --tokens; give these instead of --epochs");
    const double parameters = double(config_parameters(config));
    const double budget = o.tokens > 0 ? double(o.tokens) : 20 * parameters, compute = 6 * parameters * budget;
    const double best_batch = 0.2920 * std::pow(compute, 0.3271), rate = 0.3118 * std::pow(compute, -0.1250);
    const int64_t unit = int64_t(std::max(o.batch, batch_unit())) * o.seq_len * ranks.count() / o.cp;
    const int64_t batch = unit * std::max<int64_t>(1, std::llround(best_batch / double(unit)));
    std::string notes;
    auto note = [&](const std::string& what, const std::string& why) { notes += "\n  " + what + ": " + why; };
    if (fill(*this, "--optimizer", &o.optimizer, std::string("muon"), "\"adamw\"", "\"muon\""))
        note("--optimizer muon", "it needs about two thirds of AdamW's steps (dev/optimizers.md)");
    if (fill(*this, "--total-batch", &o.total_batch, batch, "0", std::to_string(batch)))
        note("--total-batch " + std::to_string(batch),
             formatted("about %s tokens, 0.2920 C^0.3271 for C = %.3g FLOPs (DeepSeek LLM, 2024)",
                       human_count(best_batch).c_str(), compute));
    const int64_t steps = std::max<int64_t>(1, std::llround(budget / double(o.total_batch)));
    if (fill(*this, "--steps", &o.steps, steps, "0", std::to_string(steps)))
        note("--steps " + std::to_string(steps),
             human_count(budget) + " tokens, " +
                 (o.tokens > 0 ? std::string("as --tokens says")
                               : "20 for each of " + human_count(parameters) + " parameters (Hoffmann et al. 2022)"));
    const double rounded = rounded_to(2, rate);
    if (fill(*this, "--lr", &o.lr, rounded, "-1.0", formatted("%.9g", rounded)))
        note(formatted("--lr %g", rounded), "0.3118 C^-0.1250 (DeepSeek LLM, 2024)");
    if (fill(*this, "--lr-schedule", &o.lr_schedule, std::string("linear"), "\"cosine\"", "\"linear\"") &&
        fill(*this, "--final-lr-frac", &o.final_lr_frac, 0.0, "0.1", "0.0"))
        note("--lr-schedule linear --final-lr-frac 0", "a decay to zero (Bergsma et al. 2025)");
    if (!notes.empty()) progress.note("recipe " + o.recipe + ":" + notes);
    return {};
}

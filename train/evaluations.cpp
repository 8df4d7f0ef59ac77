// evaluations.cpp - --eval-tasks: published evaluations at each validation (infer/tasks).
#include "infer/tasks/eval_tasks.h"
#include "base/countdown.h"
#include "train/train.h"

struct Evaluations {
    std::vector<PreparedEvaluation> all;    // CORE's items on rank 0 only
};

Status Trainer::open_evaluations() {
    if (o.eval_tasks.empty()) return {};
    if (tokenizer.vocab_size() == 0)
        return fail(Exit::usage, "--eval-tasks: the run has no tokenizer; give --tokenizer");
    if (config.mask_kind == MaskKind::all)
        return fail(Exit::usage, "--eval-tasks: a model that guesses masked tokens scores no continuations");
    // A prompt with bidirectional attention runs in one pass.
    const int context = config.mask_kind == MaskKind::causal ? config.T : std::min(config.T, int(plan.max_tokens()));
    std::vector<std::string> names, files;
    for (size_t at = 0, end; at <= o.eval_tasks.size(); at = end + 1) {
        end = std::min(o.eval_tasks.find(',', at), o.eval_tasks.size());
        const std::string pair = o.eval_tasks.substr(at, end - at), name = pair.substr(0, pair.find('='));
        if (name.size() + 1 >= pair.size())
            return fail(Exit::usage, "--eval-tasks: expected NAME=FILE,NAME=FILE..., found \"%s\"", pair.c_str());
        names.push_back(name);
        files.push_back(pair.substr(name.size() + 1));
        if (files.back() == "-")
            return fail(Exit::usage, "--eval-tasks: %s: a run cannot read its items from standard input; give a path",
                        name.c_str());
    }
    TRY(check_names(names, "--eval-tasks"));
    evaluations = std::make_shared<Evaluations>();
    evaluations->all =
        TRY(prepare_evaluations(names, files, tokenizer,
                                {.file = "", .limit = o.eval_limit, .limit_flag = "--eval-limit", .context = context}));
    for (PreparedEvaluation& e : evaluations->all)
        if (!ranks.first()) e.core.clear();
    return {};
}

// Numbers that are not finite do not end the run here: its steps decide on that (three bad ones).
Status Trainer::run_evaluations() {
    if (!evaluations) return {};
    double began = 0;
    std::string name;
    std::vector<TaskResult> results;
    RunOptions how = {.not_finite_is_nan = true};
    how.progress = [&](int64_t done, int64_t all) {
        count_progress();
        if (const double seconds = now_seconds() - began; seconds > 2)
            progress.line(countdown_text(name.c_str(), "requests", done, all, seconds));
    };
    for (const PreparedEvaluation& e : evaluations->all) {
        name = e.name;
        began = now_seconds();
        const bool alone = name == CORE_NAME;    // rank 0 runs it; the others wait in `agree`
        how.coordinator = alone ? nullptr : ranks.coordinator.get();
        if (ranks.coordinator) ranks.coordinator->activity.enter("an evaluation");
        Result<std::vector<RunResult>> found = Status{};
        if (ranks.first() || !alone) found = run_evaluation(*device.model, tokenizer, e, how);
        TRY(alone ? ranks.agree(found.status) : found.status);
        for (RunResult& r : found.value) results.push_back(std::move(r.result));
    }
    if (!ranks.first()) return {};
    std::string text;
    std::vector<std::string> wrong;
    for (const TaskResult& r : results) {
        if (r.task.starts_with("core/")) continue;    // only in metrics.jsonl
        text += (text.empty() ? "" : "; ") + r.task;
        for (const MetricResult& m : r.metrics) text += formatted(" %s %.4g", m.name.c_str(), m.value);
        if (!r.metrics.empty() && std::isnan(r.metrics[0].value)) wrong.push_back(r.task);
    }
    progress.note("evaluated after step " + std::to_string(state.step) + ": " + text);
    if (!wrong.empty())
        progress.note(
            "warning: --eval-tasks: the model's log-likelihoods are not finite, so metrics.jsonl has null "
            "for " +
            join(wrong, ", "));
    extra_metrics.set("eval", results_json(results));
    return {};
}

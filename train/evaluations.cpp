// evaluations.cpp - --eval-tasks: published evaluations at each validation (infer/tasks).
#include "infer/tasks/core.h"
#include "infer/tasks/eval_tasks.h"
#include "base/countdown.h"
#include "train/train.h"

struct Evaluations {
    std::vector<PreparedTask> tasks;
    std::string core;    // the bundle's directory; "": none
};

Status Trainer::open_evaluations() {
    if (o.eval_tasks.empty()) return {};
    if (tokenizer.vocab_size() == 0)
        return fail(Exit::usage, "--eval-tasks: the run has no tokenizer; give --tokenizer");
    if (config.mask_kind == MaskKind::all)
        return fail(Exit::usage, "--eval-tasks: a model that guesses masked tokens scores no continuations");
    // A prompt with bidirectional attention runs in one pass.
    const int context = config.mask_kind == MaskKind::causal ? config.T : std::min(config.T, int(plan.max_tokens()));
    evaluations = std::make_shared<Evaluations>();
    for (size_t at = 0, end; at <= o.eval_tasks.size(); at = end + 1) {
        end = std::min(o.eval_tasks.find(',', at), o.eval_tasks.size());
        const std::string pair = o.eval_tasks.substr(at, end - at), name = pair.substr(0, pair.find('='));
        if (name.size() + 1 >= pair.size())
            return fail(Exit::usage, "--eval-tasks: expected NAME=FILE,NAME=FILE..., found \"%s\"", pair.c_str());
        const std::string file = pair.substr(name.size() + 1);
        if (name == CORE_NAME) {
            evaluations->core = file;
            TRY(read_core(file).status);
            continue;
        }
        for (const Task* t : TRY(tasks_named(name)))
            evaluations->tasks.push_back(
                TRY(prepare_task(*t, tokenizer, {.file = file, .limit = o.eval_limit, .context = context})));
    }
    return {};
}

Status Trainer::run_evaluations() {
    if (!evaluations) return {};
    const double began = now_seconds();
    std::vector<TaskResult> results;
    RunOptions how = {.coordinator = ranks.coordinator.get()};
    std::string name;
    how.progress = [&](int64_t done, int64_t all) {
        count_progress();
        if (const double seconds = now_seconds() - began; seconds > 2)
            progress.line(countdown_text(name.c_str(), "requests", done, all, seconds));
    };
    for (const PreparedTask& t : evaluations->tasks) {
        name = t.task->name;
        if (ranks.coordinator) ranks.coordinator->activity.enter("an evaluation");
        results.push_back(TRY(run_task(*device.model, tokenizer, t, how)).result);
    }
    if (!evaluations->core.empty()) {    // rank 0 alone; the others wait in `agree`
        name = CORE_NAME;
        how.coordinator = nullptr;
        Result<std::vector<RunResult>> core = Status{};
        if (ranks.first())
            core = run_core(*device.model, tokenizer,
                            {.file = evaluations->core, .limit = o.eval_limit, .context = config.T}, how);
        TRY(ranks.agree(core.status));
        for (RunResult& r : core.value) results.push_back(std::move(r.result));
    }
    if (!ranks.first()) return {};
    std::string text;
    for (const TaskResult& r : results) {
        if (r.task.starts_with("core/")) continue;    // only in metrics.jsonl
        text += (text.empty() ? "" : "; ") + r.task;
        for (const MetricResult& m : r.metrics) text += formatted(" %s %.4g", m.name.c_str(), m.value);
    }
    progress.note("evaluated after step " + std::to_string(state.step) + ": " + text);
    extra_metrics.set("eval", results_json(results));
    return {};
}

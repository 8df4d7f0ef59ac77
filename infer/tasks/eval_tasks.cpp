// eval_tasks.cpp - see eval_tasks.h.
#include "eval_tasks.h"

#include <algorithm>

#include "base/countdown.h"
#include "base/file.h"
#include "base/table.h"
#include "core.h"

namespace {
void print_results(const std::vector<TaskResult>& results) {
    size_t width = 4;
    for (const TaskResult& r : results) width = std::max(width, r.task.size());
    printf("%-*s  shots  items  %-20s  %8s  %s\n", int(width), "task", "metric", "value", "standard error");
    for (const TaskResult& r : results)
        for (const MetricResult& m : r.metrics)
            printf("%-*s  %5d  %5lld  %-20s  %8.4f  %s\n", int(width), r.task.c_str(), r.shots, (long long)r.items,
                   m.name.c_str(), m.value,
                   std::isfinite(m.stderr_of_mean) ? formatted("%.4f", m.stderr_of_mean).c_str() : "");
}
}    // namespace

FlagGroup task_flags(TaskFlags& o) {
    return {
        "Evaluations",
        {{.name = "--task",
          .to = &o.tasks,
          .help = "instead: evaluations, each with its --file: " + join(task_names(), ", "),
          .needs = {"--file"},
          .excludes = {"--data", "--text", "--needle"}},
         {.name = "--file",
          .to = &o.files,
          .help = "the tasks' files as published, in their order: JSON lines, a JSON array or MMLU's CSV; a path, "
                  "a pattern or -; core: the bundle's directory",
          .needs = {"--task"}},
         {.name = "--shots",
          .to = &o.shots,
          .help = "examples before each item, drawn as lm-evaluation-harness does; -1: the task's usual number",
          .min = -1,
          .max = 1000,
          .needs = {"--task"}},
         {.name = "--limit",
          .to = &o.limit,
          .help = "only the first items of each task; 0: all",
          .min = 0,
          .max = 1e15,
          .needs = {"--task"}},
         {.name = "--samples",
          .to = &o.samples,
          .help = "a file for each item's prompt, answers, log-likelihoods and decisions, as JSON lines",
          .needs = {"--task"}}},
        {{.name = "--shots-file",
          .to = &o.shots_file,
          .help = "a file to draw examples from, such as the training set; none: the task's own",
          .needs = {"--task"}},
         {.name = "--stride",
          .to = &o.stride,
          .help = "wikitext and perplexity: tokens that each window of the context's length scores, after the others "
                  "in it; 0: all, as lm-evaluation-harness does",
          .min = 0,
          .max = 1 << 20,
          .needs = {"--task"}}}};
}

Json results_json(const std::vector<TaskResult>& results) {
    Json all = Json::object();
    for (const TaskResult& r : results) all.set(r.task, r.json());
    return all;
}

Status check_tasks(const TaskFlags& o) {
    for (const std::string& name : o.tasks)
        if (name != CORE_NAME) TRY(tasks_named(name));
    if (o.tasks.size() != o.files.size())
        return fail(Exit::usage, "expected a --file for each --task, in the same order, found %s and %s",
                    counted(int64_t(o.tasks.size()), "task").c_str(), counted(int64_t(o.files.size()), "file").c_str());
    for (size_t i = 0; i < o.tasks.size(); i++)
        if (std::count(o.tasks.begin(), o.tasks.end(), o.tasks[i]) > 1)
            return fail(Exit::usage, "--task %s is given twice; --file takes a pattern such as 'mmlu/*_test.csv'",
                        o.tasks[i].c_str());
    if (!o.shots_file.empty() && o.tasks.size() > 1)
        return fail(Exit::usage, "--shots-file: its examples are of one task, found %zu", o.tasks.size());
    return o.samples.empty() ? Status{} : check_writable(o.samples, "--samples");
}

Capacity task_capacity(const Config& c, bool gpu, int context) {
    const int rows = saturating_rows(gpu);
    if (c.mask_kind != MaskKind::causal) return {1, context};    // a prompt runs in one pass
    const int S = std::min(rows, context);
    return {int(ceil_div(rows, S)), S};
}

Status eval_tasks(LoadedModel& m, const TaskFlags& o) {
    TRY(check_tokenizer(m));
    TRY(check_generative(m));
    std::vector<TaskResult> results;
    std::string samples;
    for (size_t i = 0; i < o.tasks.size(); i++) {
        const TaskOptions options = {
            .file = o.files[i], .shots_file = o.shots_file, .shots = o.shots, .limit = o.limit, .context = o.context};
        RunOptions run = {.groups = o.batch, .each = !o.samples.empty()};
        auto add = [&](RunResult r) {
            results.push_back(std::move(r.result));
            for (const Json& sample : r.samples) samples += sample.text() + "\n";
        };
        if (o.tasks[i] == CORE_NAME) {
            Countdown countdown{"core"};
            run.progress = std::ref(countdown);
            for (RunResult& r : TRY(run_core(*m.model, m.tokenizer, options, run))) add(std::move(r));
            continue;
        }
        for (const Task* task : TRY(tasks_named(o.tasks[i]))) {
            const PreparedTask prepared = TRY(prepare_task(*task, m.tokenizer, options));
            Countdown countdown{task->name};
            run.progress = std::ref(countdown);
            add(TRY(run_task(*m.model, m.tokenizer, prepared, run)));
        }
    }
    if (!o.samples.empty()) TRY(replace_file(o.samples, samples));
    if (o.json) results_json(results).print();
    else print_results(results);
    return {};
}

// eval_tasks.cpp - see eval_tasks.h.
#include "eval_tasks.h"

#include <algorithm>

#include "base/countdown.h"
#include "base/file.h"
#include "base/table.h"
#include "data/loader.h"

namespace {
// Rows of a table on standard output, printed as soon as there is a result.
class ResultTable {
  public:
    explicit ResultTable(const std::vector<PreparedEvaluation>& all) {
        for (const PreparedEvaluation& e : all) {
            width = std::max(width, e.name.size());
            for (const PreparedCoreTask& t : e.core)
                width = std::max(width, std::string(CORE_NAME).size() + 1 + t.task.label.size());
        }
    }
    void print(const TaskResult& r) {
        if (!begun)
            printf("%-*s  shots  items  %-20s  %8s  %s\n", int(width), "task", "metric", "value", "standard error");
        begun = true;
        for (const MetricResult& m : r.metrics)
            printf("%-*s  %5d  %5lld  %-20s  %8s  %s\n", int(width), r.task.c_str(), r.shots, (long long)r.items,
                   m.name.c_str(), formatted(std::fabs(m.value) < 1e6 ? "%.4f" : "%.4g", m.value).c_str(),
                   std::isfinite(m.stderr_of_mean) ? formatted("%.4f", m.stderr_of_mean).c_str() : "");
        fflush(stdout);
    }

  private:
    size_t width = 4;
    bool begun = false;
};

// The tasks that names stand for; CORE has none.
Result<std::vector<const EvalTask*>> tasks_of(const std::vector<std::string>& names) {
    std::vector<const EvalTask*> all;
    for (const std::string& name : names)
        for (const EvalTask* task : TRY(tasks_named(name))) all.push_back(task);
    return all;
}
// Standard input can be read once. CORE reads a directory.
Status check_stdin(const TaskFlags& o) {
    size_t readers = o.shots_file == "-";
    for (size_t i = 0; i < o.tasks.size(); i++)
        if (o.files[i] == "-") readers += TRY(tasks_named(o.tasks[i])).size();
    if (readers > 1)
        return fail(Exit::usage,
                    "--file -: standard input can be read once, and these tasks read it %zu times; truthfulqa_mc "
                    "stands for two tasks; give a path",
                    readers);
    if (readers) note_typed_input();
    return {};
}
// A large model takes minutes to load: a file that is not there is named before.
Status check_found(const TaskFlags& o) {
    for (size_t i = 0; i < o.tasks.size(); i++) {
        if (o.tasks[i] == CORE_NAME) TRY(read_core(o.files[i]).status);
        else if (o.files[i] != "-") TRY(shard_glob(o.files[i]).status);
    }
    return o.shots_file.empty() || o.shots_file == "-" ? Status{} : shard_glob(o.shots_file).status;
}
// Refuses options that no task heeds, and notes the tasks that do not heed --shots.
Status check_heeded(const TaskFlags& o) {
    const std::vector<const EvalTask*> all = TRY(tasks_of(o.tasks));
    std::vector<std::string> without(size_t(std::count(o.tasks.begin(), o.tasks.end(), CORE_NAME)), CORE_NAME);
    bool heeded = false, windows = false;
    for (const EvalTask* t : all) {
        if (t->own_examples) without.push_back(t->name);
        heeded |= !t->own_examples;
        windows |= t->kind == TaskKind::rolling;
    }
    if (o.shots > 0 && !heeded)
        return fail(Exit::usage, "--shots %d: %s takes no examples; leave --shots out", o.shots,
                    join(without, ", ").c_str());
    if (o.shots > 0 && !without.empty())
        Progress().note("note: --shots does not apply to " + join(without, ", ") + ": examples of their own, or none");
    if (o.stride > 0 && !windows)
        return fail(Exit::usage, "--stride %d: of these tasks none reads texts in windows; wikitext and perplexity do",
                    o.stride);
    return {};
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
          .help = "only the first items of each task, in mmlu of each subject; 0: all",
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

Status check_names(const std::vector<std::string>& names, const char* flag) {
    std::vector<std::string> all(size_t(std::count(names.begin(), names.end(), CORE_NAME)), CORE_NAME);
    for (const EvalTask* task : TRY(tasks_of(names))) all.push_back(task->name);
    for (const std::string& name : all)
        if (std::count(all.begin(), all.end(), name) > 1)
            return fail(Exit::usage, "%s: %s is given twice; a file can be a pattern such as 'mmlu/*_test.csv'", flag,
                        name.c_str());
    return {};
}
Status check_tasks(const TaskFlags& o) {
    TRY(check_names(o.tasks, "--task"));
    if (o.tasks.size() != o.files.size())
        return fail(Exit::usage, "expected a --file for each --task, in the same order, found %s and %s",
                    counted(int64_t(o.tasks.size()), "task").c_str(), counted(int64_t(o.files.size()), "file").c_str());
    if (!o.shots_file.empty() && o.tasks.size() > 1)
        return fail(Exit::usage, "--shots-file: its examples are of one task, found %zu", o.tasks.size());
    TRY(check_heeded(o));
    TRY(check_found(o));
    TRY(check_stdin(o));
    return o.samples.empty() ? Status{} : check_writable(o.samples, "--samples");
}

Capacity task_capacity(const Config& c, bool gpu, int context) {
    const int rows = saturating_rows(gpu);
    if (c.mask_kind != MaskKind::causal) return {1, context};    // a prompt runs in one pass
    const int S = std::min(rows, context);
    return {int(ceil_div(rows, S)), S};
}

Result<std::vector<PreparedEvaluation>> prepare_evaluations(const std::vector<std::string>& names,
                                                            const std::vector<std::string>& files,
                                                            const Tokenizer& tokenizer, TaskOptions options) {
    std::vector<PreparedEvaluation> all;
    for (size_t i = 0; i < names.size(); i++) {
        options.file = files[i];
        if (names[i] == CORE_NAME) {
            all.push_back({.name = CORE_NAME, .core = TRY(prepare_core(tokenizer, options))});
            continue;
        }
        for (const EvalTask* task : TRY(tasks_named(names[i])))
            all.push_back({.name = task->name, .task = TRY(prepare_task(*task, tokenizer, options))});
    }
    return all;
}
Result<std::vector<RunResult>> run_evaluation(Model& model, const Tokenizer& tokenizer, const PreparedEvaluation& e,
                                              const RunOptions& options) {
    if (e.name == CORE_NAME) return run_core(model, e.core, options);
    return std::vector<RunResult>{TRY(run_task(model, tokenizer, e.task, options))};
}

Status eval_tasks(LoadedModel& m, const TaskFlags& o) {
    TRY(check_tokenizer(m));
    TRY(check_generative(m));
    // All files are read first, so that a wrong one does not end hours of other tasks.
    const std::vector<PreparedEvaluation> all = TRY(prepare_evaluations(o.tasks, o.files, m.tokenizer,
                                                                        {.file = "",
                                                                         .shots_file = o.shots_file,
                                                                         .shots = o.shots,
                                                                         .limit = o.limit,
                                                                         .context = o.context,
                                                                         .stride = o.stride}));
    std::vector<TaskResult> results;
    std::string samples;
    ResultTable table(all);
    auto run = [&](const PreparedEvaluation& e) {
        Countdown countdown{e.name.c_str()};
        RunOptions options = {.groups = o.batch, .each = !o.samples.empty()};
        options.progress = std::ref(countdown);
        return run_evaluation(*m.model, m.tokenizer, e, options);
    };
    Status s;
    for (size_t i = 0; i < all.size() && s.ok(); i++) {
        Result<std::vector<RunResult>> found = run(all[i]);
        s = found.status;
        for (RunResult& r : found.value) {
            for (const Json& sample : r.samples) samples += sample.text() + "\n";
            if (!o.json) table.print(r.result);
            results.push_back(std::move(r.result));
        }
        if (s.ok() && !o.samples.empty()) s = replace_file(o.samples, samples);
    }
    if (o.json && !results.empty()) results_json(results).print();
    return s;
}

// eval_tasks.h - `flatgpt eval --task`: evaluations by their names (task.h).
#pragma once
#include "infer/load.h"
#include "core.h"

struct TaskFlags {
    std::vector<std::string> tasks, files;    // pairs, in order
    std::string shots_file, samples;
    int shots = -1;
    int64_t limit = 0;
    int batch = 0;      // items at a time; 0: as many as fit a pass
    int context = 0;    // --seq-len; 0: the model's
    int stride = 0;
    bool json = false;
};
// The options of `flatgpt eval --task`.
FlagGroup task_flags(TaskFlags& o);
// Checks that names are those of different tasks. `flag`: for the message. Exit 2.
Status check_names(const std::vector<std::string>& names, const char* flag);
// Checks names, files and options before a model is loaded. Exit 2; 3: a file is missing.
Status check_tasks(const TaskFlags& o);
// Sizes of a model that runs tasks.
Capacity task_capacity(const Config& c, bool gpu, int context);
// Reads all files, runs the tasks, and prints each one's results when it has ended; JSON at the
// end, also of the tasks before one that fails. Exit 3: names file, line and field; 4: --samples
// cannot be written.
Status eval_tasks(LoadedModel& m, const TaskFlags& o);
// A task of task.h, or the bundle of CORE, whose files have been read.
struct PreparedEvaluation {
    std::string name;
    PreparedTask task = {};
    std::vector<PreparedCoreTask> core = {};    // CORE_NAME: instead of `task`
};
// Reads names' files, one for each; options.file has no effect. Exit 2, 3: as prepare_task and
// prepare_core.
Result<std::vector<PreparedEvaluation>> prepare_evaluations(const std::vector<std::string>& names,
                                                            const std::vector<std::string>& files,
                                                            const Tokenizer& tokenizer, TaskOptions options);
// One result, or those of CORE. The ranks share no CORE: options.coordinator is null there.
Result<std::vector<RunResult>> run_evaluation(Model& model, const Tokenizer& tokenizer,
                                              const PreparedEvaluation& evaluation, const RunOptions& options);

// Results as JSON, {"hellaswag": {"acc": ...}}.
Json results_json(const std::vector<TaskResult>& results);

// eval_tasks.h - `flatgpt eval --task`: evaluations by their names (task.h).
#pragma once
#include "infer/load.h"
#include "run.h"

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
// Checks names and files before a model is loaded. Exit 2.
Status check_tasks(const TaskFlags& o);
// Sizes of a model that runs tasks.
Capacity task_capacity(const Config& c, bool gpu, int context);
// Runs the tasks and prints their results. Exit 3: names file, line and field; 4: --samples cannot
// be written.
Status eval_tasks(LoadedModel& m, const TaskFlags& o);
// Results as JSON, {"hellaswag": {"acc": ...}}.
Json results_json(const std::vector<TaskResult>& results);

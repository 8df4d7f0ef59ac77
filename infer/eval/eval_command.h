// eval_command.h - `flatgpt eval`: loss over shards or texts, by position; needle test; tasks.
#pragma once
#include "needle.h"
#include "data/objective.h"
#include "infer/load.h"
#include "infer/tasks/eval_tasks.h"

struct EvalOptions {
    ModelOptions model_options;
    std::string data, text, labels, pairs, field, format = "auto", special = "text", csv, picture;
    int batch = 8, seq_len = 0, source_len = 0, longest_line = 32;
    int64_t eval_tokens = 0;
    double mask_fraction = Objective{}.fraction;
    bool raw_u16 = false, documents = false, json = false, lowercase = false, by_position = false, needle = false;
    NeedleOptions needles;
    TaskFlags tasks;
    DeviceOptions device;
    std::vector<std::string> given = {};    // names of the options that were set
};
Status eval(const EvalOptions& o);

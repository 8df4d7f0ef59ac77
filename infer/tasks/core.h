// core.h - CORE, the mean centred accuracy of many tasks (Li et al. 2024, DCLM, arXiv:2406.11794),
// over the bundle of files that DCLM and nanochat use.
//
// The bundle is a directory: core.yaml lists the tasks, eval_data/ has their JSON lines, and
// eval_meta_data.csv the accuracy of a random choice. Items are shuffled by Python's Random(1337),
// examples of item i drawn by Random(1234 + i), as nanochat does. A task's centred accuracy is
// (accuracy - random) / (1 - random).
#pragma once
#include "run.h"

// A task of core.yaml.
struct CoreTask {
    enum class Kind { multiple_choice, schema, language_modeling } kind = Kind::multiple_choice;
    std::string label = {}, uri = {}, delimiter = " ";
    int shots = 0, line = 0;
    double random = 0;    // accuracy of a random choice, in percent
};
// Parses core.yaml's list of tasks: block mappings of plain or quoted scalars. Exit 3: names file,
// line and key.
Result<std::vector<CoreTask>> parse_core_yaml(const std::string& text, const std::string& name);
// Sets `random` from eval_meta_data.csv. Exit 3: a task is missing.
Status parse_baselines(const std::string& csv, const std::string& name, std::vector<CoreTask>* tasks);
// The tasks of a bundle. Exit 3: as the functions above, or a file is missing.
Result<std::vector<CoreTask>> read_core(const std::string& directory);
inline double centred(double accuracy, double random_percent) {
    return (accuracy - 0.01 * random_percent) / (1 - 0.01 * random_percent);
}
// A task whose file has been read; it can run several times.
struct PreparedCoreTask {
    CoreTask task;
    std::vector<std::string> where = {};    // positions in the file, by item
    std::vector<size_t> golds = {};         // right choices, by item
    std::vector<LikelihoodRequest> requests = {};
    std::vector<std::vector<int64_t>> choices = {};    // each choice's request, by item; -1: nothing of it is scored
};
// Reads the bundle in directory options.file; options.shots has no effect. Exit 2: options.limit
// leaves a task too few items to draw examples from; 3: as read_core; names the item.
Result<std::vector<PreparedCoreTask>> prepare_core(const Tokenizer& tokenizer, const TaskOptions& options);
// A result for each task, with acc and centred, and one named CORE. A choice without a scored part
// has no mean; as in nanochat it is right only if it is the item's first choice and the right one.
// Exit 5, 6: as run_task.
Result<std::vector<RunResult>> run_core(Model& model, const std::vector<PreparedCoreTask>& tasks,
                                        const RunOptions& run);

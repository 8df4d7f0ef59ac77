// run.h - runs a task: items become requests, the model scores them, and metrics sum them up.
#pragma once
#include "comm/comm.h"
#include "files/json_write.h"
#include "items.h"
#include "requests.h"

struct TaskOptions {
    std::string file, shots_file = {};     // paths or glob patterns
    int shots = -1;                        // examples before each item; -1: the task's own number
    int64_t limit = 0;                     // only the first items, of each Item::pool; 0: all
    const char* limit_flag = "--limit";    // for messages
    int context = 0;                       // tokens that the model reads at most
    int stride = 0;                        // TaskKind::rolling; 0: the context
};
// A task whose files have been read; it can run several times.
struct PreparedTask {
    const EvalTask* task = nullptr;
    int shots = 0;
    std::vector<Item> items = {};
    std::vector<std::string> prefixes = {};          // description and examples, by item
    std::vector<LikelihoodRequest> requests = {};    // by item, answers in order
    std::vector<size_t> firsts = {0};                // each item's first request; at the end, their number
    std::vector<std::vector<int>> prompts = {};      // TaskKind::generation: tokens, by item
};
struct MetricResult {
    std::string name;
    double value = 0, stderr_of_mean = 0;    // NaN: unknown
};
struct TaskResult {
    std::string task;
    int64_t items = 0;
    int shots = 0;
    std::vector<MetricResult> metrics;
    std::vector<TaskResult> parts = {};    // one for each Item::pool, if there are several
    Json json() const;                     // {"acc": ..., "acc_stderr": ..., "items": ..., "shots": ...}
};
// Exit 2, 3: as task_prefixes, read_items and encode_requests; names the item. shots has no effect
// on a task with examples of its own.
Result<PreparedTask> prepare_task(const EvalTask& task, const Tokenizer& tokenizer, const TaskOptions& options);
struct RunOptions {
    int groups = 0;       // items at a time; 0: as many as fit a pass
    bool each = false;    // also fills in samples
    std::function<void(int64_t done, int64_t all)> progress = {};
    Coordinator* coordinator = nullptr;    // the ranks split the items; null: a single process
    bool not_finite_is_nan = false;        // metrics are NaN instead of exit 6
};
struct RunResult {
    TaskResult result;            // with ranks: metrics on rank 0 only
    std::vector<Json> samples;    // by item: prompt, answers, log-likelihoods, decisions; not with ranks
};
// Exit 5: no memory; 6: numbers are not finite. With ranks, all fail if one does.
Result<RunResult> run_task(Model& model, const Tokenizer& tokenizer, const PreparedTask& task,
                           const RunOptions& options);
// Exit 6: `where`, an item's position, has this log-likelihood.
Status not_finite(const std::string& where, double logprob);

// ---- metrics.cpp --------------------------------------------------------------------------------

// The first answer has the largest score unless a later one's is larger. NaN, CORE's mean of no
// tokens, is neither: Python's min over the losses, which nanochat takes, treats them likewise.
size_t best_of(const std::vector<double>& scores);

// A mean and its standard error, from the sample's variance (n - 1). `pools` names each value's
// pool (a subject, for instance). With several pools the variance is taken within each and pooled,
// because lm-evaluation-harness computes a group's error like this.
MetricResult mean_metric(const std::string& name, const std::vector<double>& values,
                         const std::vector<std::string>& pools = {});
// A task's metrics from its items' numbers: a number for each of EvalTask::metrics; rolling:
// log-likelihood, words and bytes.
// `pools`: Item::pool, by item.
std::vector<MetricResult> task_metrics(const EvalTask& task, const std::vector<std::vector<double>>& by_item,
                                       const std::vector<std::string>& pools = {});
// GSM8K's answer in a generated text: strict, the number behind "#### "; flexible, the last number.
// "[invalid]" if there is none.
std::string strict_number(const std::string& text);
std::string flexible_number(const std::string& text);
bool numbers_match(const std::string& found, const std::string& solution);

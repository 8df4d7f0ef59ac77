// items.h - a task's items: published files in, prompts and answers out.
#pragma once
#include <nlohmann/json_fwd.hpp>
#include <memory>
#include <string>
#include <vector>

#include "base/common.h"
#include "task.h"

// An object of a file, with its position for messages.
struct Record {
    std::string where;    // "file line 3"
    std::shared_ptr<const nlohmann::ordered_json> json;
    std::string subject = {};    // from the name of an MMLU file, such as virology_test.csv
};
// Reads JSON lines, a JSON array of objects, or, if `columns` is not empty, CSV without a header.
// Equal columns become a list. A .txt file is one object, {"text": ...}. "-" is standard input. A
// file may be compressed. Exit 3: names file and line; 4: reading fails.
Result<std::vector<Record>> read_records(const std::string& path, const std::vector<const char*>& columns);
// Parses such a file's text. `name`: for messages.
Result<std::vector<Record>> parse_records(const std::string& text, const std::string& name,
                                          const std::vector<const char*>& columns);

// Rows of CSV (RFC 4180); empty lines are left out. `lines`, if not null: each row's first line.
// Exit 3: a quoted field does not end.
Result<std::vector<std::vector<std::string>>> parse_csv_rows(const std::string& text, const std::string& name,
                                                             std::vector<int64_t>* lines = nullptr);

struct Item {
    Record record;
    std::string description = {}, pool = {};    // pool: the value of EvalTask::pool_by
    std::vector<std::string> prompts = {};      // one; TaskKind::contexts: several
    std::vector<std::string> answers = {};      // TaskKind::choices: several; other kinds: one
    int gold = -1;                              // number of the right answer or context
    std::vector<bool> truths = {};              // Metric::mass: which answers are right
    int64_t words = 0, bytes = 0;               // TaskKind::rolling: of the answer before EvalTask::clean
    const std::string& shown_prompt() const { return prompts[gold >= 0 && prompts.size() > 1 ? size_t(gold) : 0]; }
    const std::string& shown_answer() const { return answers[gold >= 0 && answers.size() > 1 ? size_t(gold) : 0]; }
};
// Makes items of a task's records. Exit 3: names file, line and field; for the fields of another
// task, that task.
Result<std::vector<Item>> task_items(const EvalTask& task, const std::vector<Record>& records);
// Reads the files that a path, or a glob pattern, names, as task_items. Exit 3 also if none matches
// or they have no items.
Result<std::vector<Item>> read_items(const EvalTask& task, const std::string& pattern);

// The text before each item's prompt: description and examples, drawn from `pool` as
// lm-evaluation-harness draws them. same_file: the pool has the items, too; an item is no example
// for itself. Exit 2: the pool has too few items.
Result<std::vector<std::string>> task_prefixes(const EvalTask& task, const std::vector<Item>& items,
                                               const std::vector<Item>& pool, bool same_file, int shots);

// task.h - the table of evaluations: a task is a row, which has the fields of its published files,
// and templates of its prompt and answers.
//
// Prompts and rules are those of lm-evaluation-harness 0.4.13, so that results can be compared. A
// template is Jinja (infer/jinja); it reads the fields by the names that a TaskLayout gives them.
#pragma once
#include <string>
#include <vector>

#include "base/common.h"

// Form of a field's value. label: a text, an integer or a Boolean. keys, values: of an object, as
// lists. blank: a text with "_" in it.
enum class FieldKind { text, texts, label, labels, keys, values, blank };
struct Field {
    const char* name;    // in templates
    const char* path;    // "question.stem": a member's member; of a list, each element's member
    FieldKind kind;
    bool optional = false;    // if it is missing, the template's value is empty
    int count = 0;            // length of a list; 0: any
};
// The fields of one published form of a task's files.
struct TaskLayout {
    std::vector<Field> fields;
    std::vector<const char*> columns = {};    // CSV without a header; empty: no CSV
};

// choices: the answers are continuations of one prompt. contexts: one answer continues several
// prompts. completion: one answer continues one prompt. generation: the model writes an answer.
// rolling: the answer is a text of any length, without a prompt (rolling_windows).
enum class TaskKind { choices, contexts, completion, generation, rolling };
// How an item counts. acc: the likeliest answer is right; acc_norm: the likeliest by character is.
// mass: the right answers' part of the probability. match_strict, match_flexible: the number in a
// generated text is right (strict_number, flexible_number).
enum class Metric {
    acc,
    acc_norm,
    mass,
    perplexity,
    match_strict,
    match_flexible,
    word_perplexity,
    byte_perplexity,
    bits_per_byte
};

struct EvalTask {
    const char* name;
    TaskKind kind;
    std::vector<TaskLayout> layouts;
    const char* prompt;     // template of a text; contexts: of a JSON list of texts
    const char* answers;    // choices: template of a JSON list of texts; rolling: a field; else template of the answer
    std::vector<Metric> metrics;
    // Field "gold" has the right answer: a text of field "labels" or of `labels`, or a number,
    // counted from first_label.
    std::vector<const char*> labels = {};
    int first_label = 0;
    std::string (*clean)(const std::string& text) = nullptr;    // applied to prompt and answers
    const char* description = "";                               // template of the text before all examples
    int shots = 0;                                              // examples by default
    bool own_examples = false;                                  // the prompt has examples: no others are added
    bool first_examples = false;                                // the first of the pool, not a random draw
    const char* pool_by = "";                                   // examples have an equal value of this field
    std::vector<const char*> stops = {};                        // generation: texts that end an answer
    int most_tokens = 256;                                      // generation
    const char* source = "";                                    // paper or page of the data
};
const std::vector<EvalTask>& tasks();
std::vector<std::string> task_names();
constexpr const char* CORE_NAME = "core";    // the bundle of core.h
// The tasks of a name: truthfulqa_mc is both of its metrics' tasks; CORE_NAME has none here. Exit
// 2: no such task; the message lists all.
Result<std::vector<const EvalTask*>> tasks_named(const std::string& name);
const char* metric_name(Metric metric);

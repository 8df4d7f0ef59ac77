// rewards.h - rewards of sampled answers: the values of --reward, a row each.
#pragma once
#include <functional>
#include <memory>

#include "train/reward/prompts.h"

// A sampled answer, and the line with its prompt.
struct SampledAnswer {
    const PromptLine* line;
    std::string text;
};
// Returns a finite reward for each answer. Exit 1: a reward command has died, is silent, or writes
// something else than a number.
typedef std::function<Result<std::vector<double>>(const std::vector<SampledAnswer>& answers)> Reward;

struct RewardRow {
    const char* form;      // as in help: "regex:RE"
    const char* prefix;    // the value begins so, then comes the argument; empty: a command
    bool needs_answer;     // lines must have the field "answer"
    // Exit 2, 3: the argument is wrong. timeout: seconds in which a command must go on.
    Result<Reward> (*make)(const std::string& argument, double timeout);
};
extern const RewardRow REWARDS[4];
// Returns the row of a value of --reward. Exit 2: it is none.
Result<const RewardRow*> reward_row(const std::string& value);
Result<Reward> reward_open(const std::string& value, double timeout);
std::string reward_forms();    // "exact, regex:RE, ..."

// Starts the command at the first call, writes a JSON line {"prompt", "answer", ...} for each
// answer to its standard input, and reads a number for each from its standard output. The command
// is killed with the last copy of the result. Exit 2: there is no such program.
Result<Reward> reward_command(const std::string& command, double timeout);
std::string trimmed(const std::string& text);    // without white space at both ends

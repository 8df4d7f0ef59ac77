// sweep.h - `flatgpt train --set lr=1e-4,3e-4 --set seed=1,2`: one run for each combination of the
// values, one after the other, each in a directory of its own, and a table of their losses.
//
// Every run is a process of its own (this program again), so that a run that ends by a fault or for
// lack of memory is a row of the table, and no state of a run reaches the next one.
#pragma once
#include <string>
#include <vector>

#include "base/command.h"

Command train_command();    // train/flags.cpp

struct SweepRun {
    std::string name;                      // "lr=3e-4_seed=2": its directory in --out
    std::vector<std::string> arguments;    // "--lr=3e-4", "--seed=2"
};
// The runs of the lists "KEY=VALUE,VALUE,...": the first list varies most slowly. base: the other
// options, as TOML. Exit 2: a list, an option, a value or a combination is refused, by name.
Result<std::vector<SweepRun>> sweep_runs(const std::vector<std::string>& lists, const std::string& base);

// Starts the runs of --set that have not ended yet, prints the table and keeps it in
// OUT/sweep.json, with the options that all runs share. resolved: the command's options as TOML;
// the runs get those that were given. Exit 6: every run diverged; another code: that of the first
// run that failed, or of a signal.
Status sweep(const std::vector<std::string>& lists, const std::string& out, const std::string& resolved,
             const std::vector<std::string>& given);

// sweep.h - `flatgpt train --set lr=1e-4,3e-4 --set seed=1,2`: one run for each combination of the
// values, each in a directory of its own, and a table of their losses.
//
// Every run is a process of its own (this program again), so that a run that ends by a fault or for
// lack of memory is a row of the table, and no state of a run reaches the next one. One rank starts
// the runs one after the other. Several ranks share them: each starts the next run that no rank has
// taken, on its own device.
#pragma once
#include <string>
#include <vector>

#include "base/command.h"
#include "comm/comm.h"

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
// run that failed, or of a signal. Several ranks need an OUT that all of them share, with locks
// (flock). Rank 0 prints; other ranks return an error only if they fail themselves or get a signal,
// because launchers end all ranks upon one.
Status sweep(const std::vector<std::string>& lists, const std::string& out, const std::string& resolved,
             const std::vector<std::string>& given, const CommOptions& comm);

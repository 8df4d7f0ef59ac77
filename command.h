// command.h - a command is a list of flag rows and a function. Parsing, ranges, --help, --config, the saved run.toml
// and shell completion all come from the rows (command.cpp); main.cpp holds the table of commands.
#pragma once
#include <functional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "common.h"

struct Flag {
    std::string name;    // "--lr"; a positional has no dashes: "RUN"
    std::variant<bool*, int*, int64_t*, double*, std::string*, std::vector<std::string>*> to;    // holds the default
    std::string help;
    double min = -1e18, max = 1e18;         // numbers only
    std::vector<std::string> choices = {};  // of a string; of a whole number: one word that stands for min
    bool required = false;
};

struct Command {
    std::string name, summary, example;
    std::vector<Flag> flags;
    std::function<Status()> run;
    // How the flags were set, filled in before run: TOML of every flag's resolved value.
    std::string* resolved = nullptr;
};

Command train_command();              // train_gpt.cu
Command sample_command();             // infer.cpp
Command eval_command();               // infer.cpp
Command tokenize_command();           // data/tokenize.cpp
Command train_tokenizer_command();    // data/tokenize.cpp
Command info_command();               // info.cpp
Command bench_command();              // bench.cpp
Command selftest_command();           // selftest/selftest.cpp
Command plot_command();               // plot.cpp

// ---- command.cpp ---------------------------------------------------------------------------------------------------

// One flag from text; a list takes any number of values, everything else one. Numbers: 1000, 1_000, 1e6, 0.5M, 4k; not
// nan, not inf. Exit 2: what was expected, what was found.
Status flag_set(const Flag& flag, const std::vector<std::string>& values);
// All flags from the arguments after the command's name and, for those not given there, from the file of --config. The
// value is false where --help was asked for. Exit 2 naming the flag, or the file, its line and the key; 3: unreadable.
Result<bool> command_parse(const Command& command, const std::vector<std::string>& args);
// The lines of a flat TOML file (key = value) into the rows, except those that `given` names, to which it adds its own.
Status command_read_toml(const Command& command, std::string_view toml, const std::string& name,
                         std::vector<const Flag*>* given);
std::string command_write_toml(const Command& command);    // reads back to the same bits
std::string command_help(const Command& command);
std::string did_you_mean(const std::string& word, const std::vector<std::string>& known);    // "" where nothing is near

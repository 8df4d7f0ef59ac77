// command.h - a command is a list of flag rows and a function. Parsing, ranges, --help, --config and the saved
// run.toml all come from the rows (main.cpp).
#pragma once
#include <functional>
#include <string>
#include <variant>
#include <vector>

#include "common.h"

struct Flag {
    std::string name;    // "--lr"; a positional has no dashes: "RUN"
    std::variant<bool*, int*, int64_t*, double*, std::string*, std::vector<std::string>*> to;    // holds the default
    std::string help;
    double min = -1e18, max = 1e18;         // numbers only
    std::vector<std::string> choices = {};  // strings only
    bool required = false;
};

struct Command {
    std::string name, summary, example;
    std::vector<Flag> flags;
    std::function<Status()> run;
    // How the flags were set, filled in by main before run: TOML of every flag's resolved value.
    std::string* resolved = nullptr;
};

Command train_command();              // train_gpt.cu
Command sample_command();             // infer.cpp
Command eval_command();               // infer.cpp
Command tokenize_command();           // data/tokenize.cpp
Command train_tokenizer_command();    // data/tokenize.cpp
Command info_command();               // info.cpp
Command plot_command();               // plot.cpp

// commands.h - the list of all commands, for main.cpp, help, completion and tests.
#pragma once
#include "base/command.h"

Command train_command();                    // train_gpt.cu
Command sample_command();                   // infer.cpp
Command chat_command();                     // infer.cpp
Command eval_command();                     // infer.cpp
Command embed_command();                    // infer/embed/embed_command.cpp
Command tokenize_command();                 // data/tokenize.cpp
Command train_tokenizer_command();          // data/tokenize.cpp
Command convert_command();                  // tools/convert.cpp
Command merge_command();                    // tools/convert.cpp
Command prune_command();                    // tools/heads/prune.cpp
Command info_command();                     // tools/info.cpp
Command bench_command();                    // tools/bench/bench.cpp
Command selftest_command();                 // tools/selftest/selftest.cpp
Command plot_command();                     // tools/plot.cpp
Command inspect_command();                  // tools/heads/inspect.cpp
Command runs_command();                     // tools/runs.cpp
inline std::vector<Command> commands() {    // in the order of --help
    return {train_command(),    sample_command(),          chat_command(),    eval_command(),  embed_command(),
            tokenize_command(), train_tokenizer_command(), convert_command(), merge_command(), prune_command(),
            info_command(),     inspect_command(),         plot_command(),    runs_command(),  bench_command(),
            selftest_command()};
}

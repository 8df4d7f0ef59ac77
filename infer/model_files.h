// model_files.h - what a model's directory says about its use: how text is chosen by default, where an answer ends, and
// the chat template. All of it is optional.
#pragma once
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/command.h"
#include "data/bpe.h"
#include "generate.h"

// generation_config.json (transformers' GenerationConfig). Empty: not said.
struct GenerationConfig {
    std::optional<bool> do_sample;    // false: always the likeliest token
    std::optional<double> temperature, top_p, min_p, repetition_penalty;
    std::optional<int> top_k, max_new_tokens;
    std::vector<int> ends;            // eos_token_id
    std::vector<std::string> stop;    // stop_strings
};
// exit 3: the field, what was expected and found.
Result<GenerationConfig> generation_config_parse(std::string_view json, const std::string& name);
// Empty where there is no file.
Result<GenerationConfig> read_generation_config(const std::string& dir);
// The file's values for the options that are not among `given`. do_sample without a temperature means 1, as in
// transformers. What was taken, in words, "" if nothing.
std::string take_defaults(const GenerationConfig& file, const std::vector<std::string>& given, Sampling* sampling,
                          int* tokens);
std::vector<Flag> sampling_flags(Sampling& s);    // a row for each of its fields but the seed

struct ChatFiles {
    std::string chat_template, name;    // Jinja, and the file it is from; empty: none
    std::string bos, eos;               // text of the tokens, for the template
    std::vector<int> ends;              // tokens that end an answer, by all these files and the template's own markers
    std::vector<std::string> stop;      // markers of the template that are no token of this tokenizer
};
// chat_template.jinja, else tokenizer_config.json's chat_template (of several the one named default). named: a file
// to take instead, or "chatml", which is built in; "": none. exit 2: no template at all, and what to do; 3, 4.
Result<ChatFiles> read_chat_files(const std::string& dir, const std::string& named, const Tokenizer& tokenizer);
// On the bytes of tokenizer_config.json, for the fuzzer: chat_template, name, bos and eos.
Result<ChatFiles> tokenizer_config_parse(std::string_view json, const std::string& name);

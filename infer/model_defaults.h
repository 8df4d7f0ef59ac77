// model_defaults.h - optional defaults in a model's files: sampling, end tokens, chat template.
#pragma once
#include <string>
#include <vector>

#include "base/command.h"
#include "checkpoint/generation_config.h"
#include "data/bpe.h"
#include "infer/decode/generate.h"

// Applies the file's values to options that are not in `given`. do_sample without a temperature
// means temperature 1, as in transformers. Returns a text that lists the applied values, "" if
// none.
std::string apply_generation_defaults(const GenerationConfig& file, const std::vector<std::string>& given,
                                      Sampling* sampling, int* tokens);
// Flags for all fields of Sampling except the grammar and the seed.
std::vector<Flag> sampling_flags(Sampling& sampling);
std::vector<Flag> penalty_flags(Penalties& p);
// The options that drop candidate tokens and are not at their default. Mirostat excludes them.
std::vector<std::string> truncation_flags(const Sampling& sampling);

// How a conversation is written as tokens, and where an answer ends.
struct ChatFormat {
    std::string chat_template = {}, name = {};    // Jinja source; its origin
    std::string bos = {}, eos = {};               // text of the tokens, for the template; "": none
    std::vector<int> ends = {};                   // end tokens, from all files and the template's markers
    std::vector<std::string> stop = {};           // template's end markers without a single token
};
// named: a template file, or "chatml" for the built-in template, or "" for the tokenizer's own.
// model: the model's name, for messages. Exit 2: no template; 3, 4: the template file cannot be
// read.
Result<ChatFormat> chat_format(const std::string& model, const std::string& named, const Tokenizer& tokenizer);

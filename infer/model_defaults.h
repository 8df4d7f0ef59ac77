// model_defaults.h - what a model's files say about its use: how tokens are chosen by default, where an answer ends,
// how a conversation is written. All of it is optional.
#pragma once
#include <string>
#include <vector>

#include "base/command.h"
#include "checkpoint/generation_config.h"
#include "data/bpe.h"
#include "infer/decode/generate.h"

// The file's values for the options that are not among `given`. do_sample without a temperature means 1, as in
// transformers. What was taken, in words, "" if nothing.
std::string apply_generation_defaults(const GenerationConfig& file, const std::vector<std::string>& given,
                                      Sampling* sampling, int* tokens);
// A row for each of its fields but the grammar and the seed.
std::vector<Flag> sampling_flags(Sampling& sampling);
std::vector<Flag> penalty_flags(Penalties& p);
// The options among these that narrow the choice of tokens and are not at their default; mirostat does without them.
std::vector<std::string> truncation_flags(const Sampling& sampling);
// exit 2: options that have no effect together, or without another one. given: as Command has it
Status check_sampling(const std::vector<std::string>& given, const Sampling& sampling);

// What a conversation needs to know besides the weights.
struct ChatFormat {
    std::string chat_template, name;    // Jinja, and where it is from
    std::string bos, eos;               // text of the tokens, for the template; "": none
    std::vector<int> ends;              // tokens that end an answer, by all the files and the template's own markers
    std::vector<std::string> stop;      // markers of the template that are no token of this tokenizer
};
// named: a file with the template, or "chatml", which is built in; "": the tokenizer's own. model: for messages.
// exit 2: there is no template, and what to do; 3, 4.
Result<ChatFormat> chat_format(const std::string& model, const std::string& named, const Tokenizer& tokenizer);

// generation_config.h - generation_config.json (transformers' GenerationConfig): a model's
// recommended sampling.
#pragma once
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "data/vocabulary.h"

// An empty field is not in the file. Tokens that end an answer are in Vocabulary::ends instead.
struct GenerationConfig {
    std::optional<bool> do_sample;    // false: greedy decoding
    std::optional<double> temperature, top_p, min_p, typical_p, repetition_penalty;
    std::optional<int> top_k, max_new_tokens;
    std::vector<std::string> stop;    // key stop_strings
    bool operator==(const GenerationConfig&) const = default;
};
// Parses generation_config.json. On exit 3 the message gives the field, the expected and the found
// value.
Result<GenerationConfig> generation_config_parse(std::string_view json, const std::string& name);
// Returns "" if there are no settings.
std::string generation_config_json(const GenerationConfig& g, const Vocabulary& v, const std::vector<int>& ends);

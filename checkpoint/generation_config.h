// generation_config.h - generation_config.json (transformers' GenerationConfig): how a model's makers choose tokens.
#pragma once
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "data/vocabulary.h"

// Empty: not said. Tokens that end an answer are Vocabulary::ends.
struct GenerationConfig {
    std::optional<bool> do_sample;    // false: always the likeliest token
    std::optional<double> temperature, top_p, min_p, typical_p, repetition_penalty;
    std::optional<int> top_k, max_new_tokens;
    std::vector<std::string> stop;    // stop_strings
    bool operator==(const GenerationConfig&) const = default;
};
// exit 3: the field, what was expected and found.
Result<GenerationConfig> generation_config_parse(std::string_view json, const std::string& name);
// "" where there is nothing to say.
std::string generation_config_json(const GenerationConfig& g, const Vocabulary& v, const std::vector<int>& ends);

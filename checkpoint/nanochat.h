// nanochat.h - nanochat's own checkpoints: model_NNNNNN.pt and meta_NNNNNN.json for each step. The
// names of their tensors become Hugging Face's by Family::renames.
#pragma once
#include <string>

#include "model/config.h"

// Path of the newest step's weights for which both files are there. Empty: `dir` has none, or has
// a config.json, which then describes it.
std::string nanochat_weights(const std::string& dir);
// The configuration that the meta file beside the weights describes. Exit 3: it is damaged, or has
// a key of another nanochat, whose model flatgpt lacks.
Result<Config> nanochat_config(const std::string& weights);

// config.h - what a model is: its sizes and kinds.
#pragma once
#include "layers/ops.h"

// GPT-2: pre-LayerNorm, learned positions, GELU ffn, biases, tied head. Each further kind (RMSNorm, RoPE, SwiGLU,
// grouped-query heads, windows) is one more field here, its rows in gpt.cpp and one branch in forward and backward.
struct Config {
    int V = 50257;    // vocabulary
    int T = 1024;     // context: positions that wpe has
    int L = 12;       // blocks
    int NH = 12;      // heads
    int C = 768;      // channels; a multiple of NH
    int F = 3072;     // ffn width
    float norm_eps = 1e-5f;

    // Rows of wte in memory, the last ones zero: GEMMs like multiples of 128, a small model does not like the waste.
    int Vp() const { return int(round_up(V, V < 1024 ? 16 : 128)); }
    Heads heads() const { return {NH, NH, C / NH}; }
    bool operator==(const Config&) const = default;
};
Status config_check(const Config& c);                    // exit 2: which size is impossible, and why
Result<Config> config_named(const std::string& name);    // gpt2, gpt2-medium, gpt2-large, gpt2-xl, dN

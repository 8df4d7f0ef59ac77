// families.cpp - the families of models, and the presets by name.
#include "families.h"

#include <cstdlib>

const Family GPT2 = {
    .type = "gpt2",
    .architecture = "GPT2LMHeadModel",
    .spelling = 0,
    .presets = {{"gpt2", {}},
                {"gpt2-medium", {.L = 24, .NH = 16, .C = 1024}},
                {"gpt2-large", {.L = 36, .NH = 20, .C = 1280}},
                {"gpt2-xl", {.L = 48, .NH = 25, .C = 1600}}},
    .lacks = {"kv_heads", "head_size", "window"},
    .fixed = {{"attn_pdrop", "0.0", true, false},
              {"embd_pdrop", "0.0", true, false},
              {"resid_pdrop", "0.0", true, false},
              {"initializer_range", "0.02", true, false},
              {"tie_word_embeddings", "true", true, true},
              {"scale_attn_weights", "true", false, true},
              {"scale_attn_by_inverse_layer_idx", "false", false, true},
              {"reorder_and_upcast_attn", "false", false, true},
              {"add_cross_attention", "false", false, true}},
    // Conv1D's weights are (in, out), ours are (out, in).
    .names = {{"wte", {"transformer.wte.weight"}},
              {"wpe", {"transformer.wpe.weight"}},
              {"ln1w", {"transformer.h.#.ln_1.weight"}},
              {"ln1b", {"transformer.h.#.ln_1.bias"}},
              {"qkvw", {"transformer.h.#.attn.c_attn.weight"}, true},
              {"qkvb", {"transformer.h.#.attn.c_attn.bias"}},
              {"projw", {"transformer.h.#.attn.c_proj.weight"}, true},
              {"projb", {"transformer.h.#.attn.c_proj.bias"}},
              {"ln2w", {"transformer.h.#.ln_2.weight"}},
              {"ln2b", {"transformer.h.#.ln_2.bias"}},
              {"fcw", {"transformer.h.#.mlp.c_fc.weight"}, true},
              {"fcb", {"transformer.h.#.mlp.c_fc.bias"}},
              {"fc2w", {"transformer.h.#.mlp.c_proj.weight"}, true},
              {"fc2b", {"transformer.h.#.mlp.c_proj.bias"}},
              {"lnfw", {"transformer.ln_f.weight"}},
              {"lnfb", {"transformer.ln_f.bias"}}},
    .prefix = "transformer.",
    .head = "lm_head.weight",
    .redundant = {".attn.bias", ".attn.masked_bias"},    // the causal mask
};

const std::vector<const Family*>& families() {
    static const std::vector<const Family*> all = {&GPT2};
    return all;
}

Config Config::plain() const {
    Config c = family->kinds;
    c.V = V, c.T = T, c.L = L, c.NH = NH, c.C = C, c.family = family;
    c.F = family->ffn ? family->ffn(C) : 4 * C;
    c.NKV = NH;
    c.HS = family->head_size ? family->head_size : NH > 0 && C % NH == 0 ? C / NH : 0;
    c.rope_dims = int(c.HS * family->rope_part);
    return c;
}

std::string config_names() {
    std::string names;
    for (const Family* family : families())
        for (auto& [name, preset] : family->presets) names += std::string(name) + ", ";
    return names + "dN (N layers, 64 N channels)";
}

Result<Config> config_named(const std::string& name) {
    for (const Family* family : families())
        for (auto& [known, preset] : family->presets)
            if (name == known) return preset;
    char* end = nullptr;
    const long depth = name.size() > 1 && name[0] == 'd' ? strtol(name.c_str() + 1, &end, 10) : 0;
    if (depth < 1 || depth > 1024 || *end || name[1] < '0' || name[1] > '9')
        return fail(Exit::usage, "model '%s': expected %s", name.c_str(), config_names().c_str());
    return Config{.L = int(depth), .NH = int(depth), .C = 64 * int(depth)};
}

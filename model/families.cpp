// families.cpp - GPT-2's row, the list of all families, and models by name.
#include "families.h"

#include <cstdlib>

const Family GPT2 = {
    .type = "gpt2",
    .architecture = "GPT2LMHeadModel",
    .keys = {{"vocab_size", &Config::V},
             {"n_positions", &Config::T},
             {"n_ctx", &Config::T},    // llama.cpp's converter asks for it
             {"n_embd", &Config::C},
             {"n_layer", &Config::L},
             {"n_head", &Config::NH},
             {"n_inner", &Config::F},
             {"activation_function", &Config::activation},
             {"layer_norm_epsilon", &Config::norm_eps},
             {"tie_word_embeddings", &Config::tied}},
    .fixed = {{"attn_pdrop", "0.0", true, false},
              {"embd_pdrop", "0.0", true, false},
              {"resid_pdrop", "0.0", true, false},
              {"initializer_range", "0.02", true, false},
              {"scale_attn_weights", "true", false, true},
              {"scale_attn_by_inverse_layer_idx", "false", false, true},
              {"reorder_and_upcast_attn", "false", false, true}},
    .names = {{"wte", {"transformer.wte"}},
              {"wpe", {"transformer.wpe"}},
              {"head", {"lm_head"}},
              {"ln1", {"transformer.h.#.ln_1"}},
              {"qkv", {"transformer.h.#.attn.c_attn"}, FileLayout::transposed},
              {"proj", {"transformer.h.#.attn.c_proj"}, FileLayout::transposed},
              {"ln2", {"transformer.h.#.ln_2"}},
              {"fc", {"transformer.h.#.mlp.c_fc"}, FileLayout::transposed},
              {"fc2", {"transformer.h.#.mlp.c_proj"}, FileLayout::transposed},
              {"lnf", {"transformer.ln_f"}}},
    .prefixes = {"transformer."},
    .redundant = {".attn.bias", ".attn.masked_bias"},    // the causal mask
    .presets = {{"gpt2", 50257, 1024, 12, 12, 12, 64, 768, 3072},
                {"gpt2-medium", 50257, 1024, 24, 16, 16, 64, 1024, 4096},
                {"gpt2-large", 50257, 1024, 36, 20, 20, 64, 1280, 5120},
                {"gpt2-xl", 50257, 1024, 48, 25, 25, 64, 1600, 6400}},
};

const std::vector<const Family*>& families() {
    static const std::vector<const Family*> all = [] {
        std::vector<const Family*> list = {&GPT2};
        for (const auto* rows : {&llama_families(), &gpt_families()})
            for (const Family& family : *rows) list.push_back(&family);
        return list;
    }();
    return all;
}

const char* missing_for(const std::string& type) {
    static const std::pair<const char*, const char*> known[] = {
        {"phimoe", "experts"},
        {"granitemoe", "experts"},
        {"gpt_oss", "experts and attention sinks"},
        {"deepseek_v2", "experts and latent attention"},
        {"deepseek_v3", "experts and latent attention"},
        {"openai-gpt", "norms after the residual sum"},
        {"nanochat", "QK-norm after the rotation"},
        {"falcon", "its fused qkv"},
        {"llama4_text", "experts and chunked attention"},
        {"qwen3_next", "linear attention"},
        {"mamba", "state spaces"},
        {"mamba2", "state spaces"},
        {"bert", "attention in both directions"},
        {"t5", "an encoder"},
    };
    for (auto& [name, lacks] : known)
        if (type == name) return lacks;
    return nullptr;
}

Config Config::plain() const {
    Config c = family->kinds;
    c.V = V, c.T = T, c.L = L, c.NH = NH, c.C = C, c.family = family;
    c.settle();
    return c;
}
void Config::settle() {
    // A gated ffn has three matrices: with 8/3 C as many parameters as 4 C has with two (Shazeer 2020).
    F = gated ? int(round_up((8 * int64_t(C) + 2) / 3, 32)) : 4 * C;
    NKV = NH;
    HS = NH > 0 && C % NH == 0 ? C / NH : 0;
    norm_bias = family->kinds.norm_bias && norm == NormKind::layer;
    embed_scale = family->kinds.embed_scale;
    if (family->sized) family->sized(*this);
    if (position == Position::sinusoidal) embed_scale = std::sqrt(float(C));    // Vaswani et al. 2017
    if (position != Position::rope) rope_dims = 0, rope_scaling = RopeScaling::none;
    else rope_dims = int(HS * family->rope.usual);
    if (rope_scaling == RopeScaling::none) rope_factor = 1;
    rope_high = rope_scaling == RopeScaling::yarn ? 32 : 4;
}

static Config sized(const Family& family, const Preset& p) {
    Config c;
    c.V = p.V, c.T = p.T, c.L = p.L, c.NH = p.NH, c.C = p.C, c.family = &family;
    c = c.plain();
    if (c.position == Position::rope) c.rope_dims = int(p.HS * family.rope.usual);
    c.NKV = p.NKV, c.HS = p.HS, c.F = p.F;
    if (p.more) p.more(c);
    c.fill_experts();
    return c;
}

std::string config_names() {
    std::string names;
    for (const Family* family : families())
        for (const Preset& preset : family->presets) names += std::string(preset.name) + ", ";
    return names + "dN (N layers, 64 N channels; llama:dN and so on: of another family)";
}

Result<Config> config_named(const std::string& name) {
    for (const Family* family : families())
        for (const Preset& preset : family->presets)
            if (name == preset.name) return sized(*family, preset);
    const size_t colon = name.find(':');
    const std::string type = colon == name.npos ? "gpt2" : name.substr(0, colon);
    const std::string size = colon == name.npos ? name : name.substr(colon + 1);
    char* end = nullptr;
    const long depth = size.size() > 1 && size[0] == 'd' ? strtol(size.c_str() + 1, &end, 10) : 0;
    if (depth >= 1 && depth <= 1024 && !*end && size[1] >= '0' && size[1] <= '9')
        for (const Family* family : families())
            if (type == family->type) {
                const int N = int(depth);
                Config c = Config{.L = N, .NH = N, .C = 64 * N, .family = family}.plain();
                c.fill_experts();
                return c;
            }
    return fail(Exit::usage, "model '%s': expected %s", name.c_str(), config_names().c_str());
}

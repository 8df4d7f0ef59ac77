// families.cpp - GPT-2's row, the list of all families, models by name.
#include "families.h"

#include <cctype>
#include <cstdlib>
#include <cstring>

const Family GPT2 = {
    .type = "gpt2",
    .architecture = "GPT2LMHeadModel",
    .keys = {{"vocab_size", &Config::V},
             {"n_positions", &Config::T},
             {"n_ctx", &Config::T},    // required by llama.cpp's converter
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
    .redundant = {".attn.bias", ".attn.masked_bias"},    // causal mask, stored by old exporters
    .presets = {{"gpt2", 50257, 1024, 12, 12, 12, 64, 768, 3072},
                {"gpt2-medium", 50257, 1024, 24, 16, 16, 64, 1024, 4096},
                {"gpt2-large", 50257, 1024, 36, 20, 20, 64, 1280, 5120},
                {"gpt2-xl", 50257, 1024, 48, 25, 25, 64, 1600, 6400}},
};

const std::vector<const Family*>& families() {
    static const std::vector<const Family*> all = [] {
        std::vector<const Family*> list = {&GPT2};
        for (const auto* rows : {&llama_families(), &gpt_families(), &encoder_families(), &encoder_decoder_families()})
            for (const Family& family : *rows) list.push_back(&family);
        return list;
    }();
    return all;
}

const Family::Head* Family::head_of(const Config& c) const {
    for (const Head& row : heads)
        if (row.kind == c.head && row.next_sentence == c.predicts_next()) return &row;
    return nullptr;
}

const char* missing_for(const std::string& name) {
    static const std::pair<const char*, const char*> known[] = {
        {"phimoe", "its SparseMixer router"},
        {"granitemoe", "the names of its experts, whose gate and up matrices are one tensor"},
        {"gpt_oss", "attention sinks, and experts with biases and clamped gates"},
        {"deepseek_v2", "latent attention and groups of experts"},
        {"deepseek_v3", "latent attention and groups of experts"},
        {"openai-gpt", "the names of its tensors"},
        {"falcon", "the layout of its fused qkv"},
        {"llama4_text", "chunked attention"},
        {"qwen3_next", "gated delta rule layers and gated attention"},
        {"mamba", "state spaces"},
        {"mamba2", "state spaces"},
    };
    for (auto& [each, lacks] : known)
        if (name == each) return lacks;
    return nullptr;
}

Config Config::family_defaults() const {
    Config c = family->kinds;
    c.V = V, c.T = T, c.L = L, c.NH = NH, c.C = C, c.family = family;
    c.derive();
    return c;
}
void Config::derive() {
    // A gated ffn has three matrices, an ungated one two: with F = 8/3 C instead of 4 C, both have
    // equally many parameters (Shazeer 2020).
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

static Config sized(const Family& family, const Preset& p, int context) {
    Config c;
    c.V = p.V, c.T = context ? context : p.T, c.L = p.L, c.NH = p.NH, c.C = p.C, c.family = &family;
    c = c.family_defaults();
    if (c.position == Position::rope) c.rope_dims = int(p.HS * family.rope.usual);
    c.NKV = p.NKV, c.HS = p.HS, c.F = p.F;
    if (p.more) p.more(c);
    c.fill_experts();
    return c;
}

// Whether a new model may have this family. Encoders without a head come from files alone.
static bool has_names(const Family& family) { return family.kinds.head != HeadKind::none; }

std::string config_names() {
    std::string names, types;
    for (const Family* family : families()) {
        if (!has_names(*family)) continue;
        for (const Preset& preset : family->presets) names += std::string(preset.name) + ", ";
        types += (types.empty() ? "" : ", ") + std::string(family->type);
        for (const char* also : family->also) types += std::string(", ") + also;
    }
    return names + "dN (a GPT-2 with N layers and 64 N channels), FAMILY:dN (FAMILY is one of " + types + ")";
}

// Lower-case letters and digits of a name, so that "GPT-NeoX", "gptneox" and "gpt_neox" are equal.
static std::string letters(const std::string& name) {
    std::string text;
    for (char c : name)
        if (!strchr("-_.", c)) text += char(tolower(static_cast<unsigned char>(c)));
    return text;
}
// Finds a family by its name, the part of "FAMILY:dN" before the colon; null: unknown.
static const Family* family_named(const std::string& name) {
    for (const Family* family : families()) {
        if (has_names(*family) && letters(name) == letters(family->type)) return family;
        for (const char* also : family->also)
            if (letters(name) == letters(also)) return family;
    }
    return nullptr;
}

Result<Config> config_named(const std::string& name, int context) {
    std::vector<std::string> known;
    const size_t colon = name.find(':');
    const std::string size = colon == name.npos ? name : name.substr(colon + 1);
    char* end = nullptr;
    const bool digits = size.size() > 1 && size[0] == 'd' && isdigit(static_cast<unsigned char>(size[1]));
    const long depth = digits ? strtol(size.c_str() + 1, &end, 10) : 0;
    const bool size_is_known = depth >= 1 && depth <= 1024 && !*end;
    for (const Family* family : families()) {
        for (const Preset& preset : family->presets) {
            if (name == preset.name) return sized(*family, preset, context);
            known.push_back(preset.name);
        }
        if (colon != name.npos && has_names(*family))
            known.push_back(family->type + (":" + (size_is_known ? size : "d12")));
    }
    const Family* family = colon == name.npos ? &GPT2 : family_named(name.substr(0, colon));
    if (family && size_is_known) {
        const int N = int(depth);
        Config c = {.L = N, .NH = N, .C = 64 * N, .family = family};
        if (context) c.T = context;
        c = c.family_defaults();
        c.fill_experts();
        return c;
    }
    return fail(Exit::usage, "model '%s'%s\nexpected %s", name.c_str(), did_you_mean(name, known).c_str(),
                config_names().c_str());
}

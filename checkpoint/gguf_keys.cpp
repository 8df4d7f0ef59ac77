// gguf_keys.cpp - checks the GGUF keys from which no field of Config is read.
//
// llama.cpp ignores keys that it does not know. A key that it knows (src/llama-arch.cpp, and
// load_hparams in src/llama-model.cpp and src/models/*.cpp) must have the value with which flatgpt
// computes, or a value without an effect.
#include <algorithm>
#include <cmath>

#include "checkpoint/gguf.h"

namespace {
// A key of the architecture, and the values that it may have: `value`, `other`, and the result of
// `own`, which depends on the model. If `own` is null, it counts as `value`. If the result of `own`
// is NaN, any value is accepted.
struct NeutralKey {
    const char* key;
    double value, other = value;
    double (*own)(const Config& c, const GgufArchitecture& a) = nullptr;
};
double head_size(const Config& c, const GgufArchitecture&) { return c.HS; }
const std::vector<NeutralKey>& neutral_keys() {
    using C = Config;
    using A = GgufArchitecture;
    static const std::vector<NeutralKey> keys = {
        {"attention.causal", 1},
        {"attention.clamp_kqv", 0},
        {"attention.key_length_swa", 0, 0, head_size},
        {"attention.kv_lora_rank", 0},
        {"attention.max_alibi_bias", 0},
        {"attention.output_scale", 0, 1},
        {"attention.q_lora_rank", 0},
        {"attention.scale", 0, 0,
         [](const C& c, const A&) { return c.score_scale != 0 ? double(c.score_scale) : 1 / std::sqrt(double(c.HS)); }},
        {"attention.shared_kv_layers", 0},
        {"attention.temperature_length", 0},
        {"attention.temperature_scale", 0},
        {"attention.value_length_swa", 0, 0, head_size},
        {"attention.value_scale", 0, 1},
        {"attn_logit_softcapping", 0},
        {"embedding_length_per_layer_input", 0},
        {"embedding_scale", 0, 1},
        {"expert_count", 0},
        {"expert_gating_func", 0, 1},    // 0: unset; 1: softmax
        {"expert_group_count", 0, 1},
        {"expert_group_scale", 0, 1},
        {"expert_group_used_count", 0, 1},
        {"expert_used_count", 0},
        {"expert_weights_norm", NAN, NAN,
         [](const C& c, const A&) { return c.experts ? double(c.experts_normalised) : double(NAN); }},
        {"expert_weights_scale", 0, 1},
        {"final_logit_softcapping", 0},
        {"full_attention_interval", 0, 1},
        {"interleave_moe_layer_step", 0, 1},
        {"leading_dense_block_count", 0},
        {"logit_scale", 0, 1},
        {"moe_every_n_layers", 0, 1},
        {"nextn_predict_layers", 0},
        {"residual_scale", 0, 1},
        {"rope.dimension_count_swa", 0, 0, [](const C& c, const A&) { return double(c.rope_dims); }},
        {"rope.dimension_sections", 0},
        {"rope.freq_base_swa", 0, 0, [](const C& c, const A&) { return double(c.rope_theta); }},
        {"rope.scaling.alpha", 0},
        {"rope.scaling.attn_factor", 1},
        {"rope.scaling.finetuned", NAN, NAN, [](const C&, const A& a) { return a.finetuned_rope ? 1.0 : double(NAN); }},
        {"rope.scaling.yarn_attn_factor", 1},
        {"rope.scaling.yarn_ext_factor", -1, -1,
         [](const C& c, const A&) { return c.rope_scaling == RopeScaling::yarn ? 1.0 : 0.0; }},
        {"rope.scaling.yarn_log_multiplier", 0},
        {"router_logit_softcapping", 0},
        {"swiglu_clamp_exp", 0},
        {"swiglu_clamp_shexp", 0},
        {"swin_norm", 0},
        {"use_parallel_residual", NAN, NAN, [](const C& c, const A&) { return double(c.parallel == Parallel::two); }},
    };
    return keys;
}
// Keys that are ignored if the model does not need them. Some are notes for users (pooling), or
// sizes that the tensors have, too. The others describe a property (norm, rotation, window,
// experts, a classifier) that the model lacks.
constexpr std::string_view WITHOUT_EFFECT[] = {"attention.layer_norm_epsilon",
                                               "attention.layer_norm_rms_epsilon",
                                               "attention.sliding_window_pattern",
                                               "classifier.output_labels",
                                               "classifier.pooling_type",
                                               "expert_feed_forward_length",
                                               "expert_shared_count",
                                               "expert_shared_feed_forward_length",
                                               "pooling_type",
                                               "rope.dimension_count",
                                               "rope.freq_base",
                                               "rope.scale_linear",
                                               "rope.scaling.factor",
                                               "rope.scaling.original_context_length",
                                               "rope.scaling.type",
                                               "rope.scaling.yarn_beta_fast",
                                               "rope.scaling.yarn_beta_slow",
                                               "tensor_data_layout",
                                               "vocab_size"};

bool close(double x, double y) { return std::fabs(x - y) <= 1e-5 * std::fabs(y); }
std::string text_of(const GgufValue& v, double x) {
    if (v.type == GgufType::boolean) return x != 0 ? "true" : "false";
    return formatted("%g", x);
}
Status check_neutral(const std::string& file, const std::string& key, const GgufValue& v, const NeutralKey& n,
                     const Config& c, const GgufArchitecture& a) {
    const double own = n.own ? n.own(c, a) : n.value;
    if (std::isnan(own)) return {};
    std::vector<double> all = v.numbers;
    all.insert(all.end(), v.integers.begin(), v.integers.end());
    auto bad = [&](double x) { return !(close(x, own) || close(x, n.value) || close(x, n.other)); };
    const auto found = std::find_if(all.begin(), all.end(), bad);
    if (found == all.end() && v.texts.empty()) return {};
    return fail(Exit::input, "%s: %s: flatgpt runs only models where it is %s, found %s", file.c_str(), key.c_str(),
                text_of(v, own).c_str(), v.texts.empty() ? text_of(v, *found).c_str() : "a text");
}
}    // namespace

Result<std::vector<std::string>> gguf_unread_keys(const GgufMetadata& m, const std::set<std::string>& read,
                                                  const Config& c, const GgufArchitecture& a) {
    const std::string prefix = std::string(a.name) + ".";
    std::vector<std::string> unknown;
    for (const auto& [key, value] : a.fixed) {
        const GgufValue* found = m.find(prefix + key);
        if (!found) return fail(Exit::input, "%s: %s%s: not found", m.name.c_str(), prefix.c_str(), key.c_str());
        TRY(check_neutral(m.name, prefix + key, *found, {key.c_str(), double(value.integers[0])}, c, a));
    }
    auto is_fixed = [&](const std::string& key) {
        return std::any_of(a.fixed.begin(), a.fixed.end(), [&](auto& row) { return row.first == key; });
    };
    for (const auto& [name, value] : m.values) {
        if (!name.starts_with(prefix) || read.contains(name)) continue;
        const std::string key = name.substr(prefix.size());
        if (is_fixed(key)) continue;
        const auto& rows = neutral_keys();
        const auto row = std::find_if(rows.begin(), rows.end(), [&](const NeutralKey& n) { return key == n.key; });
        if (row != rows.end()) TRY(check_neutral(m.name, name, value, *row, c, a));
        else if (std::find(std::begin(WITHOUT_EFFECT), std::end(WITHOUT_EFFECT), key) == std::end(WITHOUT_EFFECT))
            unknown.push_back(name);
    }
    return unknown;
}

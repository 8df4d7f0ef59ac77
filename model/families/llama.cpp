// llama.cpp - families like Llama: RoPE, grouped-query attention, mostly RMSNorm and GLUs.
#include <limits>

#include "families.h"

namespace {
using C = Config;
using Keys = std::vector<ConfigKey>;
using Names = std::vector<Family::Name>;

// Fields of most families here: RMSNorm, RoPE, SwiGLU, no biases, an untied head.
Config llama_kinds(void (*more)(Config& c) = nullptr) {
    Config c;
    c.norm = NormKind::rms;
    c.norm_eps = 1e-6f;
    c.norm_bias = false;
    c.activation = Act::silu;
    c.gated = true;
    c.position = Position::rope;
    c.qkv_bias = c.proj_bias = c.up_bias = c.down_bias = c.tied = false;
    if (more) more(c);
    return c;
}
// Fields of older families: LayerNorm, RoPE, GELU, all biases.
Config gelu_kinds(void (*more)(Config& c) = nullptr) {
    Config c;
    c.position = Position::rope;
    if (more) more(c);
    return c;
}

// Appends the rows of `more`; a row whose name is already present is replaced.
template <class Row>
std::vector<Row> with(std::vector<Row> rows, const std::vector<Row>& more, const char* Row::*name) {
    for (const Row& row : more) {
        auto same = [&](const Row& r) { return std::string_view(r.*name) == row.*name; };
        std::erase_if(rows, same);
        rows.push_back(row);
    }
    return rows;
}
Keys without(Keys keys, const char* key) {
    std::erase_if(keys, [&](const ConfigKey& k) { return std::string_view(k.key) == key; });
    return keys;
}
// Keys of models like Llama. kv: number of key/value heads that transformers' class assumes if
// their key is absent.
Keys llama_keys(const Keys& more = {}, double kv = NAN) {
    return with<ConfigKey>({{"vocab_size", &C::V},
                            {"max_position_embeddings", &C::T},
                            {"hidden_size", &C::C},
                            {"num_hidden_layers", &C::L},
                            {"num_attention_heads", &C::NH},
                            {"num_key_value_heads", &C::NKV, ConfigKey::as_is, kv},
                            {"intermediate_size", &C::F},
                            {"hidden_act", &C::activation, ConfigKey::torch_gelu},
                            {"tie_word_embeddings", &C::tied}},
                           more, &ConfigKey::key);
}
const ConfigKey HEAD_DIM = {"head_dim", &C::HS}, RMS_EPS = {"rms_norm_eps", &C::norm_eps},
                LAYER_EPS = {"layer_norm_eps", &C::norm_eps},
                WINDOW = {"sliding_window", &C::window, ConfigKey::or_none},
                QWEN_WINDOW = {"sliding_window", &C::window, ConfigKey::or_none, 4096};
// Adds one key that sets several fields.
Keys biases(const Keys& keys, const char* key, std::initializer_list<bool Config::*> fields) {
    Keys all = keys;
    for (bool Config::*field : fields) all.push_back({key, field});
    return all;
}
Keys attention_bias(const Keys& keys) { return biases(keys, "attention_bias", {&C::qkv_bias, &C::proj_bias}); }
Keys llama_biases(const Keys& keys) { return biases(attention_bias(keys), "mlp_bias", {&C::up_bias, &C::down_bias}); }

Names llama_names(const Names& more = {}) {
    return with<Family::Name>(
        {{"wte", {"model.embed_tokens"}},
         {"head", {"lm_head"}},
         {"ln1", {"model.layers.#.input_layernorm"}},
         {"qkv",
          {"model.layers.#.self_attn.q_proj", "model.layers.#.self_attn.k_proj", "model.layers.#.self_attn.v_proj"}},
         {"q", {"model.layers.#.self_attn.q_norm"}},
         {"k", {"model.layers.#.self_attn.k_norm"}},
         {"proj", {"model.layers.#.self_attn.o_proj"}},
         {"ln2", {"model.layers.#.post_attention_layernorm"}},
         {"fc", {"model.layers.#.mlp.gate_proj", "model.layers.#.mlp.up_proj"}},
         {"fc2", {"model.layers.#.mlp.down_proj"}},
         {"lnf", {"model.norm"}}},
        more, &Family::Name::ours);
}
// Names for models with norms after their branches.
Names branch_names() {
    return llama_names({{"post1", {"model.layers.#.post_attention_layernorm"}},
                        {"ln2", {"model.layers.#.pre_feedforward_layernorm"}},
                        {"post2", {"model.layers.#.post_feedforward_layernorm"}}});
}

// Names of tensors if the router and the experts are in `mlp`. `more` replaces some of these names,
// or adds those of a shared expert.
Names expert_names(const Names& more = {}) {
    return llama_names(with<Family::Name>(
        {{"router", {"model.layers.#.mlp.gate"}},
         {"expert_up", {"model.layers.#.mlp.experts.@.gate_proj", "model.layers.#.mlp.experts.@.up_proj"}},
         {"expert_down", {"model.layers.#.mlp.experts.@.down_proj"}}},
        more, &Family::Name::ours));
}
// Adds the keys of the number of experts, of the experts per token and of an expert's width. count,
// per_token, of_each: the values that transformers assumes if a key is absent.
Keys expert_keys(Keys keys, const char* number, double count, double per_token, const char* width, double of_each) {
    keys.push_back({number, &C::experts, ConfigKey::as_is, count});
    keys.push_back({"num_experts_per_tok", &C::experts_used, ConfigKey::as_is, per_token});
    keys.push_back({width, &C::expert_ffn, ConfigKey::as_is, of_each});
    return keys;
}
const ConfigKey SPARSE_STEP = {"decoder_sparse_step", &C::experts_every, ConfigKey::as_is, 1},
                NORM_TOPK = {"norm_topk_prob", &C::experts_normalised, ConfigKey::as_is, 0};

const std::vector<Family::Fixed> PLAIN = {{"initializer_range", "0.02", true, false},
                                          {"pad_token_id", "null", true, false}};
std::vector<Family::Fixed> fixed(const std::vector<Family::Fixed>& more) {
    std::vector<Family::Fixed> all = PLAIN;
    all.insert(all.end(), more.begin(), more.end());
    return all;
}
constexpr Family::Rope ROPE = {.theta = "rope_theta"};

void gemma_kinds(Config& c) {
    c.activation = Act::gelu_tanh;
    c.norm_plus = c.tied = true;
}
void gemma_sized(Config& c) { c.embed_scale = std::sqrt(float(c.C)); }
void gemma2_kinds(Config& c) {
    gemma_kinds(c);
    c.norm_placement = NormPlacement::sandwich;
    c.window = 4096;
    c.global_every = 2;
    c.score_cap = 50;
    c.logit_cap = 30;
}
void gemma3_kinds(Config& c) {
    gemma_kinds(c);
    c.norm_placement = NormPlacement::sandwich;
    c.window = 4096;
    c.global_every = 6;
    c.qk_norm = QkNormRope::QkNorm::head;
    c.rope_theta = 1e6f;
    c.rope_local_theta = 1e4f;
}
void expert_kinds(Config& c, int experts, int used) {
    c.experts = experts;
    c.experts_used = used;
    c.experts_normalised = false;
    c.norm_eps = 1e-5f;
}
void smollm_kinds(Config& c) {
    c.tied = true;
    c.norm_eps = 1e-5f;
    c.rope_theta = 1e5f;
}
void llama3_kinds(Config& c) {
    c.norm_eps = 1e-5f;
    c.rope_theta = 5e5f;
    c.rope_scaling = RopeScaling::llama3;
    c.rope_factor = 8;
    c.rope_low = 1;
    c.rope_high = 4;
    c.rope_original = 8192;
}
void llama32_kinds(Config& c) { llama3_kinds(c), c.rope_factor = 32, c.tied = true; }
void qwen_tied(Config& c) {
    c.rope_theta = 1e6f;
    c.tied = true;
}
void qwen_untied(Config& c) { c.rope_theta = 1e6f; }
void nanochat_kinds(Config& c) {
    c.activation = Act::relu2;
    c.gated = c.norm_weight = false;
    c.embed_norm = c.rope_backwards = true;
    c.qk_norm = QkNormRope::QkNorm::head;
    c.logit_cap = 15;
}
// nanochat of 2026, commit 92d63d4. It multiplies queries and keys by 1.2 after their norms.
void nanochat_2026_kinds(Config& c) {
    nanochat_kinds(c);
    c.residual_scalars = c.value_embeddings = c.smear = c.backout = true;
    c.rope_theta = 1e5f;
    c.norm_eps = std::numeric_limits<float>::epsilon();    // PyTorch's, as nanochat gives none
    c.window = 1;                                          // by size: nanochat_window
    c.global_every = 4;
    c.global_last = true;
}
void nanochat_sizes(Config& c) {
    c.window = nanochat_window(c.T);
    c.score_scale = 1.2f * 1.2f / std::sqrt(float(c.HS));
}
void cohere_kinds(Config& c) {
    c.norm = NormKind::layer;
    c.norm_eps = 1e-5f;
    c.parallel = Parallel::one;
    c.rope_interleaved = c.tied = true;
    c.logit_scale = 0.0625f;
    c.rope_theta = 5e5f;
}

const std::vector<Family> ROWS = {
    {.type = "llama",
     .architecture = "LlamaForCausalLM",
     .also = {"smollm", "smollm2", "tinyllama"},
     .kinds = llama_kinds(),
     .keys = llama_biases(llama_keys({HEAD_DIM, RMS_EPS})),
     .rope = ROPE,
     .fixed = PLAIN,
     .names = llama_names(),
     .presets = {{"smollm2-135m", 49152, 8192, 30, 9, 3, 64, 576, 1536, smollm_kinds},
                 {"smollm2-360m", 49152, 8192, 32, 15, 5, 64, 960, 2560, smollm_kinds},
                 {"smollm2-1.7b", 49152, 8192, 24, 32, 32, 64, 2048, 8192,
                  [](Config& c) { smollm_kinds(c), c.rope_theta = 130000; }},
                 {"tinyllama-1.1b", 32000, 2048, 22, 32, 4, 64, 2048, 5632, [](Config& c) { c.norm_eps = 1e-5f; }},
                 {"llama-2-7b", 32000, 4096, 32, 32, 32, 128, 4096, 11008, [](Config& c) { c.norm_eps = 1e-5f; }},
                 {"llama-3.1-8b", 128256, 131072, 32, 32, 8, 128, 4096, 14336, llama3_kinds},
                 {"llama-3.2-1b", 128256, 131072, 16, 32, 8, 64, 2048, 8192, llama32_kinds},
                 {"llama-3.2-3b", 128256, 131072, 28, 24, 8, 128, 3072, 8192, llama32_kinds}}},
    {.type = "mistral",
     .architecture = "MistralForCausalLM",
     .kinds = llama_kinds([](Config& c) { c.window = 4096; }),
     .keys = llama_keys({HEAD_DIM, RMS_EPS, WINDOW}, 8),
     .rope = ROPE,
     .fixed = fixed({{"layer_types", "null", false, true}}),    // with this key, transformers loads Ministral
     .names = llama_names(),
     .presets = {{"mistral-7b", 32000, 32768, 32, 32, 8, 128, 4096, 14336,
                  [](Config& c) { c.norm_eps = 1e-5f; }}}},
    {.type = "qwen2",
     .architecture = "Qwen2ForCausalLM",
     .also = {"qwen", "qwen2.5"},
     .kinds = llama_kinds([](Config& c) { c.qkv_bias = true; }),
     .keys = llama_keys({HEAD_DIM, RMS_EPS, QWEN_WINDOW}, 32),
     .rope = ROPE,
     .layers = Family::types | Family::use_window,
     .fixed = PLAIN,
     .names = llama_names(),
     .presets = {{"qwen2.5-0.5b", 151936, 32768, 24, 14, 2, 64, 896, 4864, qwen_tied},
                 {"qwen2.5-1.5b", 151936, 131072, 28, 12, 2, 128, 1536, 8960, qwen_tied},
                 {"qwen2.5-7b", 152064, 131072, 28, 28, 4, 128, 3584, 18944, qwen_untied}}},
    {.type = "qwen3",
     .architecture = "Qwen3ForCausalLM",
     .kinds = llama_kinds([](Config& c) { c.qk_norm = QkNormRope::QkNorm::head; }),
     .keys = attention_bias(llama_keys({{"head_dim", &C::HS, ConfigKey::as_is, 128}, RMS_EPS, QWEN_WINDOW}, 32)),
     .rope = ROPE,
     .layers = Family::types | Family::use_window,
     .fixed = PLAIN,
     .names = llama_names(),
     .presets = {{"qwen3-0.6b", 151936, 40960, 28, 16, 8, 128, 1024, 3072, qwen_tied},
                 {"qwen3-1.7b", 151936, 40960, 28, 16, 8, 128, 2048, 6144, qwen_tied},
                 {"qwen3-4b", 151936, 40960, 36, 32, 8, 128, 2560, 9728, qwen_tied}}},
    {.type = "mixtral",
     .architecture = "MixtralForCausalLM",
     .kinds = llama_kinds([](Config& c) {
         expert_kinds(c, 8, 2);
         c.experts_normalised = true;
         c.rope_theta = 1e6f;
     }),
     .keys = expert_keys(llama_keys({HEAD_DIM, RMS_EPS, WINDOW}, 8), "num_local_experts", 8, 2, "intermediate_size",
                         14336),
     .rope = ROPE,
     .fixed = PLAIN,
     .names = expert_names({{"router", {"model.layers.#.block_sparse_moe.gate"}},
                            {"expert_up", {"model.layers.#.block_sparse_moe.experts.@.w1",
                                           "model.layers.#.block_sparse_moe.experts.@.w3"}},
                            {"expert_down", {"model.layers.#.block_sparse_moe.experts.@.w2"}}}),
     .presets = {{"mixtral-8x7b", 32000, 32768, 32, 32, 8, 128, 4096, 14336,
                  [](Config& c) { c.expert_ffn = c.F; }}}},
    {.type = "qwen2_moe",
     .architecture = "Qwen2MoeForCausalLM",
     .kinds = llama_kinds([](Config& c) {
         expert_kinds(c, 60, 4);
         c.norm_eps = 1e-6f;
         c.qkv_bias = c.shared_gate = true;
     }),
     .sized = [](Config& c) { c.shared_ffn = c.F; },    // total width of a token's experts
     .keys = expert_keys(llama_keys({HEAD_DIM, RMS_EPS, QWEN_WINDOW, SPARSE_STEP, NORM_TOPK,
                                     {"qkv_bias", &C::qkv_bias, ConfigKey::as_is, 1},
                                     {"shared_expert_intermediate_size", &C::shared_ffn, ConfigKey::as_is, 5632}}, 16),
                         "num_experts", 60, 4, "moe_intermediate_size", 1408),
     .rope = ROPE,
     .layers = Family::types | Family::use_window | Family::every_other,
     .fixed = fixed({{"mlp_only_layers", "[]", false, true}}),
     .names = expert_names({{"shared_fc", {"model.layers.#.mlp.shared_expert.gate_proj",
                                           "model.layers.#.mlp.shared_expert.up_proj"}},
                            {"shared_fc2", {"model.layers.#.mlp.shared_expert.down_proj"}},
                            {"shared_gate", {"model.layers.#.mlp.shared_expert_gate"}}}),
     .presets = {{"qwen1.5-moe-a2.7b", 151936, 8192, 24, 16, 16, 128, 2048, 5632,
                  [](Config& c) {
                      c.expert_ffn = 1408;
                      c.shared_ffn = 5632;
                      c.rope_theta = 1e6f;
                  }}}},
    {.type = "qwen3_moe",
     .architecture = "Qwen3MoeForCausalLM",
     .kinds = llama_kinds([](Config& c) {
         expert_kinds(c, 128, 8);
         c.norm_eps = 1e-6f;
         c.qk_norm = QkNormRope::QkNorm::head;
     }),
     .keys = attention_bias(expert_keys(
         llama_keys({HEAD_DIM, RMS_EPS, QWEN_WINDOW, SPARSE_STEP, NORM_TOPK,
                     {"num_local_experts", &C::experts}}, 4),    // key that transformers 5 writes
         "num_experts", 128, 8, "moe_intermediate_size", 768)),
     .rope = ROPE,
     .layers = Family::use_window,
     .fixed = fixed({{"mlp_only_layers", "[]", false, true}}),
     .names = expert_names(),
     .presets = {{"qwen3-30b-a3b", 151936, 40960, 48, 32, 4, 128, 2048, 6144,
                  [](Config& c) {
                      c.expert_ffn = 768;
                      c.experts_normalised = true;
                      c.rope_theta = 1e6f;
                  }}}},
    {.type = "olmoe",
     .architecture = "OlmoeForCausalLM",
     .kinds = llama_kinds([](Config& c) { expert_kinds(c, 64, 8), c.qk_norm = QkNormRope::QkNorm::all; }),
     .keys = attention_bias(expert_keys(llama_keys({RMS_EPS, NORM_TOPK}), "num_experts", 64, 8,
                                        "intermediate_size", 2048)),
     .rope = ROPE,
     .fixed = fixed({{"clip_qkv", "null", false, true}}),
     .names = expert_names(),
     .presets = {{"olmoe-1b-7b", 50304, 4096, 16, 16, 16, 128, 2048, 1024, [](Config& c) { c.expert_ffn = c.F; }}}},
    {.type = "smollm3",
     .architecture = "SmolLM3ForCausalLM",
     .kinds = llama_kinds([](Config& c) {
         c.tied = true;
         c.rope_skip_every = 4;
         c.rope_theta = 2e6f;
     }),
     .keys = llama_biases(llama_keys({HEAD_DIM, RMS_EPS, WINDOW}, 4)),
     .rope = ROPE,
     .layers = Family::types | Family::use_window | Family::no_rope_layers,
     .fixed = PLAIN,
     .names = llama_names(),
     .presets = {{"smollm3-3b", 128256, 65536, 36, 16, 4, 128, 2048, 11008,
                  [](Config& c) { c.rope_theta = 5e6f; }}}},
    {.type = "gemma",
     .architecture = "GemmaForCausalLM",
     .kinds = llama_kinds(gemma_kinds),
     .sized = gemma_sized,
     .keys = attention_bias(llama_keys({{"hidden_act", &C::activation, ConfigKey::any_gelu},
                                        {"head_dim", &C::HS, ConfigKey::as_is, 256}, RMS_EPS}, 16)),
     .rope = ROPE,
     .fixed = PLAIN,
     .names = llama_names(),
     .presets = {{"gemma-2b", 256000, 8192, 18, 8, 1, 256, 2048, 16384}}},
    {.type = "gemma2",
     .architecture = "Gemma2ForCausalLM",
     .kinds = llama_kinds(gemma2_kinds),
     .sized = gemma_sized,
     .keys = attention_bias(without(
         llama_keys({{"hidden_activation", &C::activation, ConfigKey::torch_gelu},
                     {"head_dim", &C::HS, ConfigKey::as_is, 256},
                     {"query_pre_attn_scalar", &C::score_scale, ConfigKey::root, 256},
                     {"attn_logit_softcapping", &C::score_cap, ConfigKey::or_none},
                     {"final_logit_softcapping", &C::logit_cap, ConfigKey::or_none}, RMS_EPS, WINDOW}, 4),
         "hidden_act")),
     .rope = ROPE,
     .layers = Family::types,
     .fixed = PLAIN,
     .names = branch_names(),
     .presets = {{"gemma-2-2b", 256000, 8192, 26, 8, 4, 256, 2304, 9216}}},
    {.type = "gemma3_text",
     .architecture = "Gemma3ForCausalLM",
     .also = {"gemma3"},
     .kinds = llama_kinds(gemma3_kinds),
     .sized = gemma_sized,
     .keys = attention_bias(without(
         llama_keys({{"vocab_size", &C::V, ConfigKey::as_is, 262208},
                     {"max_position_embeddings", &C::T, ConfigKey::as_is, 131072},
                     {"hidden_size", &C::C, ConfigKey::as_is, 2304},
                     {"num_hidden_layers", &C::L, ConfigKey::as_is, 26},
                     {"num_attention_heads", &C::NH, ConfigKey::as_is, 8},
                     {"intermediate_size", &C::F, ConfigKey::as_is, 9216},
                     {"hidden_activation", &C::activation, ConfigKey::torch_gelu},
                     {"head_dim", &C::HS, ConfigKey::as_is, 256},
                     {"query_pre_attn_scalar", &C::score_scale, ConfigKey::root, 256},
                     {"final_logit_softcapping", &C::logit_cap, ConfigKey::or_none}, RMS_EPS, WINDOW}, 4),
         "hidden_act")),
     .rope = {.theta = "rope_theta", .local = "rope_local_base_freq", .by_layers = true},
     .layers = Family::types | Family::pattern,
     .fixed = PLAIN,
     .names = branch_names(),
     .prefixes = {"model.", "model.language_model.", "language_model.model."},
     .redundant = {".rotary_emb.inv_freq", "vision_tower.*", "model.vision_tower.*", "multi_modal_projector.*",
                   "model.multi_modal_projector.*"},
     .presets = {{"gemma-3-270m", 262144, 32768, 18, 4, 1, 256, 640, 2048, [](Config& c) { c.window = 512; }},
                 {"gemma-3-1b", 262144, 32768, 26, 4, 1, 256, 1152, 6912, [](Config& c) { c.window = 512; }}}},
    {.type = "phi3",
     .architecture = "Phi3ForCausalLM",
     .also = {"phi4"},
     .kinds = llama_kinds([](Config& c) { c.norm_eps = 1e-5f; }),
     .keys = llama_keys({HEAD_DIM, RMS_EPS, WINDOW}),
     .rope = {.theta = "rope_theta", .part = "partial_rotary_factor", .scaled = false},
     .fixed = PLAIN,
     .names = llama_names({{"qkv", {"model.layers.#.self_attn.qkv_proj"}},
                           {"fc", {"model.layers.#.mlp.gate_up_proj"}}}),
     .presets = {{"phi-3-mini", 32064, 4096, 32, 32, 32, 96, 3072, 8192, [](Config& c) { c.window = 2047; }}}},
    {.type = "olmo",
     .architecture = "OlmoForCausalLM",
     .kinds = llama_kinds([](Config& c) {
         c.norm = NormKind::layer;
         c.norm_eps = 1e-5f;
         c.norm_weight = false;
     }),
     .keys = attention_bias(llama_keys({HEAD_DIM})),
     .rope = ROPE,
     .fixed = fixed({{"clip_qkv", "null", false, true}}),
     .names = llama_names()},
    {.type = "olmo2",
     .architecture = "Olmo2ForCausalLM",
     .kinds = llama_kinds([](Config& c) {
         c.norm_eps = 1e-5f;
         c.norm_placement = NormPlacement::branch;
         c.qk_norm = QkNormRope::QkNorm::all;
     }),
     .keys = attention_bias(llama_keys({HEAD_DIM, RMS_EPS})),
     .rope = ROPE,
     .fixed = PLAIN,
     .names = branch_names(),
     .presets = {{"olmo-2-1b", 100352, 4096, 16, 16, 16, 128, 2048, 8192,
                  [](Config& c) {
                      c.norm_eps = 1e-6f;
                      c.rope_theta = 5e5f;
                  }}}},
    {.type = "olmo3",
     .architecture = "Olmo3ForCausalLM",
     .kinds = llama_kinds([](Config& c) {
         c.norm_eps = 1e-5f;
         c.norm_placement = NormPlacement::branch;
         c.window = 4096;
         c.qk_norm = QkNormRope::QkNorm::all;
         c.global_every = 4;
         c.rope_theta = c.rope_local_theta = 5e5f;
     }),
     .keys = attention_bias(llama_keys({HEAD_DIM, RMS_EPS, WINDOW})),
     .rope = {.theta = "rope_theta", .local = "rope_theta", .by_layers = true},
     .layers = Family::types,
     .fixed = PLAIN,
     .names = branch_names()},
    {.type = "granite",
     .architecture = "GraniteForCausalLM",
     .kinds = llama_kinds(),
     .keys = llama_biases(llama_keys({HEAD_DIM, RMS_EPS, {"embedding_multiplier", &C::embed_scale},
                                      {"residual_multiplier", &C::branch_scale},
                                      {"attention_multiplier", &C::score_scale, ConfigKey::scale, 1},
                                      {"logits_scaling", &C::logit_scale, ConfigKey::inverse}})),
     .rope = ROPE,
     .fixed = PLAIN,
     .names = llama_names(),
     .presets = {{"granite-3.0-2b", 49155, 4096, 40, 32, 8, 64, 2048, 8192,
                  [](Config& c) {
                      c.norm_eps = 1e-5f;
                      c.tied = true;
                      c.embed_scale = 12;
                      c.branch_scale = 0.22f;
                      c.score_scale = 1 / 64.0f;
                      c.logit_scale = 1 / 8.0f;
                  }}}},
    {.type = "cohere",
     .architecture = "CohereForCausalLM",
     .also = {"command-r"},
     .kinds = llama_kinds(cohere_kinds),
     .keys = attention_bias(llama_keys({HEAD_DIM, LAYER_EPS, {"logit_scale", &C::logit_scale}})),
     .rope = ROPE,
     .fixed = fixed({{"use_qk_norm", "false", false, true}}),
     .names = llama_names()},
    {.type = "cohere2",
     .architecture = "Cohere2ForCausalLM",
     .kinds = llama_kinds([](Config& c) {
         cohere_kinds(c);
         c.rope_theta = 1e4f;
         c.window = 4096;
         c.global_every = c.rope_skip_every = 4;
     }),
     .keys = attention_bias(llama_keys({HEAD_DIM, LAYER_EPS, WINDOW, {"logit_scale", &C::logit_scale}})),
     .rope = ROPE,
     .layers = Family::types | Family::pattern | Family::rope_if_windowed,
     .fixed = PLAIN,
     .names = llama_names()},
    {.type = "stablelm",
     .architecture = "StableLmForCausalLM",
     .kinds = llama_kinds([](Config& c) {
         c.norm = NormKind::layer;
         c.norm_eps = 1e-5f;
         c.norm_bias = true;
     }),
     .keys = biases(llama_keys({LAYER_EPS, {"use_parallel_residual", &C::parallel, ConfigKey::flag, NAN,
                                            int(Parallel::one)}}, 32),
                    "use_qkv_bias", {&C::qkv_bias}),
     .rope = {.theta = "rope_theta", .part = "partial_rotary_factor", .usual = 0.25},
     .fixed = fixed({{"qk_layernorm", "false", false, true}}),
     .names = llama_names()},
    {.type = "starcoder2",
     .architecture = "Starcoder2ForCausalLM",
     .kinds = gelu_kinds(),
     .keys = biases(llama_keys({HEAD_DIM, {"norm_epsilon", &C::norm_eps}, WINDOW}, 2), "use_bias",
                    {&C::qkv_bias, &C::proj_bias, &C::up_bias, &C::down_bias}),
     .rope = ROPE,
     .fixed = PLAIN,
     .names = llama_names({{"fc", {"model.layers.#.mlp.c_fc"}},
                           {"fc2", {"model.layers.#.mlp.c_proj"}}}),
     .presets = {{"starcoder2-3b", 49152, 16384, 30, 24, 2, 128, 3072, 12288,
                  [](Config& c) {
                      c.window = 4096;
                      c.rope_theta = 999999.4420358813f;
                  }}}},
    {.type = "phi",
     .architecture = "PhiForCausalLM",
     .also = {"phi1", "phi2"},
     .kinds = gelu_kinds([](Config& c) {
         c.parallel = Parallel::one;
         c.tied = false;
         c.head_bias = true;
     }),
     .keys = llama_keys({HEAD_DIM, LAYER_EPS}),
     .rope = {.theta = "rope_theta", .part = "partial_rotary_factor", .usual = 0.5},
     .fixed = fixed({{"qk_layernorm", "false", false, true}}),
     .names = llama_names({{"proj", {"model.layers.#.self_attn.dense"}},
                           {"fc", {"model.layers.#.mlp.fc1"}},
                           {"fc2", {"model.layers.#.mlp.fc2"}},
                           {"lnf", {"model.final_layernorm"}}})},
    {.type = "arcee",
     .architecture = "ArceeForCausalLM",
     .kinds = llama_kinds([](Config& c) {
         c.norm_eps = 1e-5f;
         c.activation = Act::relu2;
         c.gated = false;
     }),
     .keys = llama_biases(llama_keys({HEAD_DIM, RMS_EPS})),
     .rope = ROPE,
     .fixed = PLAIN,
     .names = llama_names({{"fc", {"model.layers.#.mlp.up_proj"}}})},
    // nanochat norms queries and keys after the rotation, and without weights. A rotation keeps a
    // head's length, so this norm gives equal results before it: QkNorm::head, which comes before.
    {.type = "nanochat",
     .architecture = "NanoChatForCausalLM",
     .kinds = llama_kinds(nanochat_kinds),
     .keys = attention_bias(llama_keys({HEAD_DIM, RMS_EPS, {"intermediate_size", &C::F, ConfigKey::as_is, 8192},
                                        {"final_logit_softcapping", &C::logit_cap, ConfigKey::or_none}})),
     .rope = {.theta = "rope_theta", .scaled = false},    // a norm after the rotation would undo YaRN's magnitude
     .fixed = PLAIN,
     .names = llama_names({{"fc", {"model.layers.#.mlp.fc1"}},
                           {"fc2", {"model.layers.#.mlp.fc2"}}}),
     .renames = {{"_orig_mod.", ""},
                 {"transformer.wte.", "model.embed_tokens."},
                 {"transformer.h.", "model.layers."},
                 {".attn.c_q.", ".self_attn.q_proj."},
                 {".attn.c_k.", ".self_attn.k_proj."},
                 {".attn.c_v.", ".self_attn.v_proj."},
                 {".attn.c_proj.", ".self_attn.o_proj."},
                 {".mlp.c_fc.", ".mlp.fc1."},
                 {".mlp.c_proj.", ".mlp.fc2."}},
     .presets = {{"nanochat-d20", 65536, 2048, 20, 10, 10, 128, 1280, 5120},
                 {"nanochat-d32", 65536, 2048, 32, 16, 16, 128, 2048, 8192}}},
    // transformers has no class for it: files have nanochat's own names.
    {.type = "nanochat_2026",
     .architecture = nullptr,
     .kinds = llama_kinds(nanochat_2026_kinds),
     .sized = nanochat_sizes,
     .keys = llama_keys({HEAD_DIM, RMS_EPS, WINDOW, {"final_logit_softcapping", &C::logit_cap, ConfigKey::or_none}}),
     .rope = {.theta = "rope_theta", .scaled = false},
     .layers = Family::types,
     .fixed = PLAIN,
     .names = {{"wte", {"transformer.wte"}},
               {"head", {"lm_head"}},
               {"smear_gate", {"smear_gate"}},
               {"qkv", {"transformer.h.#.attn.c_q", "transformer.h.#.attn.c_k", "transformer.h.#.attn.c_v"}},
               {"value_embed", {"value_embeds.#"}},
               {"value_gate", {"transformer.h.#.attn.ve_gate"}},
               {"proj", {"transformer.h.#.attn.c_proj"}},
               {"fc", {"transformer.h.#.mlp.c_fc"}},
               {"fc2", {"transformer.h.#.mlp.c_proj"}}},
     .prefixes = {"transformer."},
     .renames = {{"_orig_mod.", ""}},
     .presets = {{"nanochat-2026-d12", 32768, 2048, 12, 6, 6, 128, 768, 3072},
                 {"nanochat-2026-d20", 32768, 2048, 20, 10, 10, 128, 1280, 5120},
                 {"nanochat-2026-d24", 32768, 2048, 24, 12, 12, 128, 1536, 6144}}},
};
}    // namespace

const std::vector<Family>& llama_families() { return ROWS; }

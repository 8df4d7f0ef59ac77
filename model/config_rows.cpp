// config_rows.cpp - one row per field of a configuration.
#include "config.h"

// Row of a field that families write under different keys in config.json, or under none. If the
// family names no key, the key is "flatgpt_" + name.
static ConfigRow kind(ConfigRow::Member member, const char* name, const char* key, const char* flag, const char* help,
                      double min, double max, std::vector<std::vector<std::string>> choices = {},
                      const char* needs = "") {
    return {member, name, false, flag, key, nullptr, min, max, ConfigRow::rare, help, std::move(choices), needs};
}
#define KIND(member, name, ...) kind(member, name, "flatgpt_" name, nullptr, "", __VA_ARGS__)
#define FLATGPT_KEY(member, name, ...) kind(member, name, "flatgpt_" name, __VA_ARGS__)

static std::vector<ConfigRow> expert_rows() {
    using C = Config;
    using enum ConfigRow::Presence;
    // clang-format off
    return {
        {&C::experts, "experts", true, "--experts", "flatgpt_experts", "expert_count", 0, Router::MAX_EXPERTS, some,
         "experts in place of the feed-forward part, without biases; a router gives each token to some of them; 0: the "
         "model's, none in a new one"},
        {&C::experts_used, "experts_used", false, "--experts-used", "flatgpt_experts_used", "expert_used_count", 0,
         Router::MAX_EXPERTS, some, "experts per token; 0: the model's, 2 in a new one", {}, "--experts"},
        {&C::expert_ffn, "expert_ffn", false, "--expert-ffn", "flatgpt_expert_ffn", "expert_feed_forward_length", 0,
         1 << 18, rare, "width of each; 0: the model's (in a new one feed-forward width / experts used: as many FLOPs "
         "as without)", {}, "--experts"},
        {&C::experts_every, "experts_every", false, "--experts-every", "flatgpt_experts_every", nullptr, 1, 1024, rare,
         "every N-th layer has them; 0: the model's, all in a new one", {}, "--experts"},
        {&C::shared_ffn, "shared_ffn", false, "--shared-ffn", "flatgpt_shared_ffn", "expert_shared_feed_forward_length",
         0, 1 << 18, some, "width of a shared expert; 0: the model's, none in a new one", {},
         "--experts"},
        FLATGPT_KEY(&C::shared_gate, "shared_gate", "--shared-gate", "a sigmoid gate multiplies its output", 0, 1, {},
              "--shared-ffn"),
        FLATGPT_KEY(&C::router, "router", "--router", "how the experts' factors are computed", 0, 1,
              {{"softmax"}, {"sigmoid"}}, "--experts"),
        FLATGPT_KEY(&C::experts_normalised, "experts_normalised", "--normalise-experts",
              "the factors of a token's experts are divided by their sum; with one expert they are then 1, and the "
              "router does not learn from the loss", 0, 1, {}, "--experts"),
    };
    // clang-format on
}
static std::vector<ConfigRow> shortcut_rows() {
    using C = Config;
    // clang-format off
    return {
        FLATGPT_KEY(&C::residual_scalars, "residual_scalars", "--residual-scalars",
              "a block reads a weighted sum of its predecessor's output and of the embeddings, with two learned "
              "factors for each layer (modded-nanogpt, nanochat of 2026)", 0, 1),
        FLATGPT_KEY(&C::value_embeddings, "value_embeddings", "--value-embeddings",
              "values get an embedding of their token, through a gate for each key/value head, in every second layer "
              "(nanochat of 2026)", 0, 1),
        FLATGPT_KEY(&C::smear, "smear", "--smear",
              "a token's embedding gets a part of the one before, through a gate (nanochat of 2026)", 0, 1),
        FLATGPT_KEY(&C::backout, "backout", "--backout",
              "the head reads the last block's output less a learned part of the middle one's (nanochat of 2026)", 0,
              1),
    };
    // clang-format on
}
static const char* const NO_WINDOW = "--window: without, all is seen";
static std::vector<ConfigRow> window_rows() {
    using C = Config;
    using enum ConfigRow::Presence;
    // clang-format off
    return {
        {&C::window, "window", false, "--window", "sliding_window", "attention.sliding_window", 0, 1 << 20, rare,
         "positions that attention looks back, the token's own included; 0: the model's, all in a new one"},
        {&C::global_every, "global_every", false, "--global-every", "flatgpt_global_every", nullptr, 0, 1024, rare,
         "every N-th layer has none; 0: the model's, none in a new one", {}, NO_WINDOW},
        {&C::stride, "stride", false, "--stride", "flatgpt_stride", nullptr, 0, 1 << 20, rare,
         "attention also reads every N-th position beyond it; 0: the model's, none in a new one", {}, NO_WINDOW},
        {&C::global_tokens, "global_tokens", false, "--global-tokens", "flatgpt_global_tokens", nullptr, 0, 1 << 20,
         rare, "attention also reads the first N positions, and with --objective mlm these read all; 0: the model's, "
         "none in a new one", {}, NO_WINDOW},
        FLATGPT_KEY(&C::global_projections, "global_projections", "--global-projections",
              "with --objective mlm, these read all by queries, keys and values of their own (Longformer)", 0, 1, {},
              "--global-tokens"),
        {&C::dilation, "dilation", false, "--dilation", "flatgpt_dilation", nullptr, 0, 1 << 20, rare,
         "with --objective mlm, windows of the upper half of the layers have every N-th position (Longformer); "
         "0: the model's, every one in a new one", {}, NO_WINDOW},
        {&C::random_blocks, "random_blocks", false, "--random-blocks", "flatgpt_random_blocks", nullptr, 0, 64, rare,
         "with --objective mlm, each block of positions also reads N random blocks beyond its window, fewer if they "
         "lie in it (BigBird); 0: the model's, none in a new one", {}, NO_WINDOW},
        {&C::random_block, "random_block", false, "--random-block", "flatgpt_random_block", nullptr, 1, 1 << 20, rare,
         "positions of a random block; 0: the model's, 64 in a new one", {}, NO_WINDOW},
    };
    // clang-format on
}
static std::vector<ConfigRow> linear_rows() {
    using C = Config;
    // clang-format off
    return {
        FLATGPT_KEY(&C::linear, "linear_attention", "--linear-attention",
              "attention without softmax: a state of constant size replaces the key/value cache", 0, 4,
              {{"none"}, {"elu"}, {"retention"}, {"gated"}, {"performer"}}),
        {&C::softmax_every, "softmax_every", false, "--softmax-every", "flatgpt_softmax_every", nullptr, 0, 1024,
         ConfigRow::rare, "every N-th layer has softmax; 0: the model's, none in a new one", {},
         "--linear-attention: without, all layers have softmax"},
    };
    // clang-format on
}
static std::vector<ConfigRow> position_rows() {
    using C = Config;
    // clang-format off
    return {
        FLATGPT_KEY(&C::position, "position", "--position", "kind of position encoding", 0, 6,
              {{"none"}, {"learned"}, {"rope"}, {"alibi"}, {"sinusoidal"}, {"t5"}, {"relative_key"}}),
        {&C::max_distance, "max_distance", false, "--max-distance", "flatgpt_max_distance", nullptr, 0, 1 << 21,
         ConfigRow::rare,
         "positions from which on a key's distance does not count (Shaw et al.: 16); 0: the model's, in a new one its "
         "context", {}, "--position relative_key"},
        KIND(&C::position_offset, "position_offset", 0, 1024),
        KIND(&C::rope_dims, "rope_dims", 0, 1 << 16),
        KIND(&C::rope_interleaved, "rope_interleaved", 0, 1),
        KIND(&C::rope_backwards, "rope_backwards", 0, 1),
        KIND(&C::rope_skip_every, "rope_skip_every", 0, 1024),
        FLATGPT_KEY(&C::rope_theta, "rope_theta", "--rope-theta", "base of RoPE's frequencies; 0: the model's", 1.01,
              1e12, {}, "--position rope"),
        KIND(&C::rope_local_theta, "rope_local_theta", 0, 1e12),
        FLATGPT_KEY(&C::rope_scaling, "rope_scaling", "--rope-scaling",
              "how RoPE's frequencies are scaled for a longer context", 0, 5,
              {{"none"}, {"linear"}, {"dynamic"}, {"yarn"}, {"llama3"}, {"ntk"}}),
        FLATGPT_KEY(&C::rope_factor, "rope_factor", "--rope-factor", "the factor; 0: the model's", 1, 1e6, {},
              "--rope-scaling"),
        KIND(&C::rope_low, "rope_low", 1e-6, 1e6),
        KIND(&C::rope_high, "rope_high", 1e-6, 1e6),
        KIND(&C::rope_original, "rope_original_context", 0, 1 << 24),
        KIND(&C::rope_magnitude, "rope_magnitude", 0, 1000.0),
    };
    // clang-format on
}

static const std::vector<std::vector<std::string>> ACTIVATIONS = {
    {"gelu_new", "gelu_pytorch_tanh"}, {"gelu"}, {"silu", "swish"}, {"relu"}, {"relu2"}, {"tanh"}};
// Rows of encoders such as BERT, and of encoder-decoders.
static std::vector<ConfigRow> encoder_rows() {
    using C = Config;
    return {{&C::encoder_layers, "encoder_layers", true, "--encoder-layers", "flatgpt_encoder_layers", nullptr, 0, 1024,
             ConfigRow::some,
             "blocks of an encoder, to which each block of the decoder attends; 0: the model's, none in a new one"},
            KIND(&C::decoder_start, "decoder_start", 0, 1 << 24),
            KIND(&C::sinusoid_halves, "sinusoid_halves", 0, 1),
            KIND(&C::segments, "segments", 0, 1024),
            KIND(&C::embed_size, "embedding_size", 0, 1 << 16),
            KIND(&C::first_norm, "first_norm", 0, 1),
            KIND(&C::head, "head", 0, 4, {{"tokens"}, {"none"}, {"texts"}, {"positions"}, {"replaced"}}),
            KIND(&C::transform, "head_transform", 0, 2, {{"none"}, {"dense"}, {"norm"}}),
            KIND(&C::transform_act, "head_activation", 0, 5, ACTIVATIONS),
            KIND(&C::transform_bias, "head_transform_bias", 0, 1),
            KIND(&C::next_sentence, "next_sentence", 0, 1),
            KIND(&C::mean_pooled, "classifier_pooling", 0, 1, {{"cls"}, {"mean"}})};
}

const std::vector<ConfigRow>& config_rows() {
    using C = Config;
    using enum ConfigRow::Presence;
    // clang-format off
    static const std::vector<ConfigRow> rows = {
        {&C::V, "vocabulary", false, "--vocab", "vocab_size", "vocab_size", 2, 1 << 24, required,
         "tokens of the vocabulary; 0: the tokenizer's where one is used, else the model's"},
        {&C::T, "context", false, nullptr, "flatgpt_context", "context_length", 1, 1 << 20, required, ""},
        {&C::C, "channels", true, "--channels", "hidden_size", "embedding_length", 1, 1 << 16, required,
         "channels, without --head-size a multiple of the heads; 0: the model's"},
        {&C::L, "layers", true, "--layers", "num_hidden_layers", "block_count", 1, 1024, required,
         "layers; 0: the model's"},
        {&C::NH, "heads", true, "--heads", "num_attention_heads", "attention.head_count", 1, 1024, required,
         "attention heads; 0: the model's"},
        {&C::F, "ffn", false, "--ffn", "flatgpt_ffn", "feed_forward_length", 1, 1 << 18, usual,
         "width of the feed-forward part; 0: the model's (in a new one 4 x channels, gated 8/3)"},
        FLATGPT_KEY(&C::activation, "activation", "--activation", "activation function of the feed-forward part", 0, 5,
             ACTIVATIONS),
        {&C::norm_eps, "norm_epsilon", false, nullptr, "flatgpt_norm_epsilon", "attention.layer_norm_epsilon", 1e-12,
         0.1, rare, ""},
        {&C::NKV, "kv_heads", true, "--kv-heads", "num_key_value_heads", "attention.head_count_kv", 1, 1024, rare,
         "key/value heads, each shared by as many heads; 0: the model's (in a new one, or with other heads: as many)"},
        {&C::HS, "head_size", false, "--head-size", "head_dim", "attention.key_length", 1, 1 << 16, rare,
         "channels of a head; 0: the model's (in a new one, or where they change: channels / heads)"},
        // Variants of the architecture: structure, norms, biases, scales, caps.
        FLATGPT_KEY(&C::gated, "gated", "--gated",
              "the activated product gates a second one (with silu: SwiGLU)", 0, 1),
        FLATGPT_KEY(&C::norm, "norm", "--norm", "LayerNorm, or RMSNorm without biases", 0, 1, {{"layer"}, {"rms"}}),
        FLATGPT_KEY(&C::norm_placement, "norm_place", "--norm-place",
              "norms before attention and feed-forward, after them, both, or after their sum with the residual (as in "
              "2017; needs a --warmup)",
              0, 3, {{"pre"}, {"branch"}, {"sandwich"}, {"post"}}),
        FLATGPT_KEY(&C::parallel, "parallel", "--parallel",
              "attention and feed-forward in parallel, after one norm or two", 0, 2, {{"none"}, {"one"}, {"two"}}),
        FLATGPT_KEY(&C::norm_weight, "norm_weight", "--norm-weight",
              "norms have weights, QK-norm, too (OLMo, nanochat: none)", 0, 1),
        KIND(&C::norm_bias, "norm_bias", 0, 1),
        KIND(&C::norm_plus, "norm_plus_one", 0, 1),
        KIND(&C::embed_norm, "embedding_norm", 0, 1),
        FLATGPT_KEY(&C::qk_norm, "qk_norm", "--qk-norm",
              "RMSNorm of queries and keys: over each head or over all heads", 0, 2,
              {{"none"}, {"head"}, {"all"}}),
        KIND(&C::global_first, "global_first", 0, 1),
        KIND(&C::global_last, "global_last", 0, 1),
        KIND(&C::mask_kind, "sees", 0, 2, {{"causal"}, {"prefix"}, {"all"}}),
        KIND(&C::mask, "mask_token", -1, 1 << 24),
        KIND(&C::score_scale, "attention_scale", 0, 1000.0),
        FLATGPT_KEY(&C::score_cap, "attention_softcap", "--score-cap",
              "attention scores s become X tanh(s / X); 0: the model's", 0, 1000000.0),
        KIND(&C::qkv_bias, "qkv_bias", 0, 1),
        KIND(&C::proj_bias, "projection_bias", 0, 1),
        KIND(&C::up_bias, "ffn_bias", 0, 1),
        KIND(&C::down_bias, "ffn_output_bias", 0, 1),
        KIND(&C::head_bias, "head_bias", 0, 1),
        FLATGPT_KEY(&C::tied, "tied", "--tied", "the head shares the embedding matrix", 0, 1),
        FLATGPT_KEY(&C::embed_scale, "embedding_scale", "--embedding-scale",
              "factor of the embeddings; 0: the model's (sinusoidal positions: sqrt(channels))", -1e6, 1e6),
        KIND(&C::branch_scale, "residual_scale", -1e6, 1e6),
        KIND(&C::logit_scale, "logit_scale", -1e6, 1e6),
        FLATGPT_KEY(&C::logit_cap, "logit_softcap", "--logit-cap",
              "logits z become X tanh(z / X), in the loss and in samples (Gemma 2: 30, nanochat: 15); 0: the "
              "model's", 0, 1000000.0),
    };
    // clang-format on
    static const std::vector<ConfigRow> all = [] {
        std::vector<ConfigRow> joined = rows;
        for (const auto& more : {expert_rows(), window_rows(), linear_rows(), shortcut_rows(), encoder_rows()})
            joined.insert(joined.end(), more.begin(), more.end());
        for (const ConfigRow& row : position_rows()) joined.push_back(row);
        return joined;
    }();
    return all;
}

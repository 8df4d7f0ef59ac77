// encoder_decoders.cpp - families of encoder-decoders: T5, BART, Marian.
#include "families.h"

#include <algorithm>
#include <cstring>

namespace {
using C = Config;
using Names = std::vector<Family::Name>;

// T5's stacks: RMSNorm before each branch, no biases, unscaled scores with learned biases by
// distance.
void t5_kinds(Config& c) {
    c.norm = NormKind::rms;
    c.norm_eps = 1e-6f;
    c.norm_bias = c.qkv_bias = c.proj_bias = c.up_bias = c.down_bias = false;
    c.activation = Act::relu;
    c.position = Position::t5;
    c.score_scale = 1;
    c.encoder_layers = 6;
}
// BART's: norms of sums, one after the embeddings, learned positions.
void bart_kinds(Config& c) {
    c.norm_placement = NormPlacement::post;
    c.activation = Act::gelu;
    c.embed_norm = c.head_bias = true;
    c.position_offset = 2;
    c.encoder_layers = 6;
    c.decoder_start = 2;
}
// Marian's: as BART's, with sinusoids and scaled embeddings, without a norm of the embeddings.
void marian_kinds(Config& c) {
    bart_kinds(c);
    c.activation = Act::silu;
    c.embed_norm = false;
    c.position = Position::sinusoidal;
    c.sinusoid_halves = true;
    c.position_offset = 0;
}
Config kinds(void (*set)(Config& c)) {
    Config c;
    set(c);
    return c;
}

Family t5(const char* type, const char* architecture, std::vector<Preset> presets = {}) {
    return {.type = type,
            .architecture = architecture,
            .kinds = kinds(t5_kinds),
            .sized = [](Config& c) { c.encoder_layers = c.L; },
            .keys = {{"vocab_size", &C::V},
                     {"n_positions", &C::T, ConfigKey::as_is, 512},
                     {"d_model", &C::C},
                     {"num_decoder_layers", &C::L},
                     {"num_layers", &C::L},
                     {"num_layers", &C::encoder_layers},
                     {"num_heads", &C::NH},
                     {"d_kv", &C::HS},
                     {"d_ff", &C::F},
                     {"feed_forward_proj", &C::activation, ConfigKey::t5_ffn},
                     {"layer_norm_epsilon", &C::norm_eps},
                     {"decoder_start_token_id", &C::decoder_start, ConfigKey::as_is, 0},
                     {"tie_word_embeddings", &C::tied}},
            .fixed = {{"is_encoder_decoder", "true", true, true},
                      {"relative_attention_num_buckets", "32", true, true},
                      {"relative_attention_max_distance", "128", true, true},
                      {"dropout_rate", "0.0", true, false},
                      {"pad_token_id", "0", true, false}},
            .names = {{"wte", {"shared"}},
                      {"head", {"lm_head"}},
                      {"rel", {"decoder.block.0.layer.0.SelfAttention.relative_attention_bias"}},
                      {"ln1", {"decoder.block.#.layer.0.layer_norm"}},
                      {"qkv",
                       {"decoder.block.#.layer.0.SelfAttention.q", "decoder.block.#.layer.0.SelfAttention.k",
                        "decoder.block.#.layer.0.SelfAttention.v"}},
                      {"proj", {"decoder.block.#.layer.0.SelfAttention.o"}},
                      {"lnc", {"decoder.block.#.layer.1.layer_norm"}},
                      {"cross_q", {"decoder.block.#.layer.1.EncDecAttention.q"}},
                      {"cross_kv",
                       {"decoder.block.#.layer.1.EncDecAttention.k", "decoder.block.#.layer.1.EncDecAttention.v"}},
                      {"cross_proj", {"decoder.block.#.layer.1.EncDecAttention.o"}},
                      {"ln2", {"decoder.block.#.layer.2.layer_norm"}},
                      {"fc", {"decoder.block.#.layer.2.DenseReluDense.wi"}},
                      {"gated_fc",
                       {"decoder.block.#.layer.2.DenseReluDense.wi_0", "decoder.block.#.layer.2.DenseReluDense.wi_1"}},
                      {"fc2", {"decoder.block.#.layer.2.DenseReluDense.wo"}},
                      {"lnf", {"decoder.final_layer_norm"}}},
            .encoder_names = {{"rel", {"encoder.block.0.layer.0.SelfAttention.relative_attention_bias"}},
                              {"ln1", {"encoder.block.#.layer.0.layer_norm"}},
                              {"qkv",
                               {"encoder.block.#.layer.0.SelfAttention.q", "encoder.block.#.layer.0.SelfAttention.k",
                                "encoder.block.#.layer.0.SelfAttention.v"}},
                              {"proj", {"encoder.block.#.layer.0.SelfAttention.o"}},
                              {"ln2", {"encoder.block.#.layer.1.layer_norm"}},
                              {"fc", {"encoder.block.#.layer.1.DenseReluDense.wi"}},
                              {"gated_fc",
                               {"encoder.block.#.layer.1.DenseReluDense.wi_0",
                                "encoder.block.#.layer.1.DenseReluDense.wi_1"}},
                              {"fc2", {"encoder.block.#.layer.1.DenseReluDense.wo"}},
                              {"lnf", {"encoder.final_layer_norm"}}},
            .prefixes = {""},
            .redundant = {"encoder.embed_tokens.weight", "decoder.embed_tokens.weight",
                          "decoder.block.0.layer.1.EncDecAttention.relative_attention_bias.weight"},
            .presets = std::move(presets)};
}

// Names of BART's tensors in one of its stacks; the encoder has no cross-attention.
#define BART_STACK(stack)                                                                                          \
    {"wpe", {"model." stack ".embed_positions"}}, {"lne", {"model." stack ".layernorm_embedding"}},                \
        {"qkv",                                                                                                    \
         {"model." stack ".layers.#.self_attn.q_proj", "model." stack ".layers.#.self_attn.k_proj",                \
          "model." stack ".layers.#.self_attn.v_proj"}},                                                           \
        {"proj", {"model." stack ".layers.#.self_attn.out_proj"}},                                                 \
        {"post1", {"model." stack ".layers.#.self_attn_layer_norm"}},                                              \
        {"cross_q", {"model." stack ".layers.#.encoder_attn.q_proj"}},                                             \
        {"cross_kv",                                                                                               \
         {"model." stack ".layers.#.encoder_attn.k_proj", "model." stack ".layers.#.encoder_attn.v_proj"}},        \
        {"cross_proj", {"model." stack ".layers.#.encoder_attn.out_proj"}},                                        \
        {"postc", {"model." stack ".layers.#.encoder_attn_layer_norm"}}, {"fc", {"model." stack ".layers.#.fc1"}}, \
        {"fc2", {"model." stack ".layers.#.fc2"}}, {                                                               \
        "post2", { "model." stack ".layers.#.final_layer_norm" }                                                   \
    }
const std::vector<ConfigKey> BART_KEYS = {{"vocab_size", &C::V},
                                          {"max_position_embeddings", &C::T},
                                          {"d_model", &C::C},
                                          {"decoder_layers", &C::L},
                                          {"encoder_layers", &C::encoder_layers},
                                          {"num_hidden_layers", &C::encoder_layers},
                                          {"decoder_attention_heads", &C::NH},
                                          {"encoder_attention_heads", &C::NH, ConfigKey::copy},
                                          {"decoder_ffn_dim", &C::F},
                                          {"encoder_ffn_dim", &C::F, ConfigKey::copy},
                                          {"activation_function", &C::activation},
                                          {"decoder_start_token_id", &C::decoder_start},
                                          {"tie_word_embeddings", &C::tied}};
const std::vector<Family::Fixed> BART_FIXED = {{"is_encoder_decoder", "true", true, true},
                                               {"add_cross_attention", "false", false, false},
                                               {"add_final_layer_norm", "false", false, true},
                                               {"normalize_before", "false", false, true},
                                               {"dropout", "0.0", true, false},
                                               {"attention_dropout", "0.0", true, false},
                                               {"activation_dropout", "0.0", true, false}};
template <class Rows> Rows joined(Rows all, const Rows& more) {
    all.insert(all.end(), more.begin(), more.end());
    return all;
}
Family bart(const char* type, const char* architecture, void (*set)(Config& c), const std::vector<ConfigKey>& keys,
            const std::vector<Family::Fixed>& fixed) {
    return {.type = type,
            .architecture = architecture,
            .kinds = kinds(set),
            .sized = [](Config& c) { c.encoder_layers = c.L; },
            .keys = joined(BART_KEYS, keys),
            .fixed = joined(BART_FIXED, fixed),
            .names = {{"wte", {"model.shared"}},
                      {"headb", {"final_logits_bias"}, FileLayout::row},
                      {"head", {"lm_head"}},
                      BART_STACK("decoder")},
            .encoder_names = {BART_STACK("encoder")},
            .prefixes = {"model.", ""},
            .redundant = {"encoder.embed_tokens.weight", "decoder.embed_tokens.weight", "lm_head.weight",
                          ".embed_positions.weight"}};
}

// T5 1.0 scales the head's input, whose weights are wte; files say so by either key.
Family scaled_t5(Family family) {
    family.keys.insert(family.keys.begin(), {{"scale_decoder_outputs", &C::logit_scale, ConfigKey::width_inverse},
                                             {"tie_word_embeddings", &C::logit_scale, ConfigKey::width_inverse, 1}});
    return family;
}

// Returns the family of `both`'s encoders without their decoders.
Family alone(const Family& both, const char* type, const char* architecture) {
    Family f = both;
    f.type = type;
    f.architecture = architecture;
    f.class_type = architecture ? both.type : nullptr;
    f.kinds.encoder_layers = 0;
    f.kinds.decoder_start = Config().decoder_start;
    f.kinds.mask_kind = MaskKind::all;
    f.kinds.head = HeadKind::none;
    f.kinds.head_bias = false;
    f.sized = nullptr;
    const ConfigRow::Member of_decoder[] = {&C::L, &C::decoder_start, &C::tied, &C::logit_scale};
    std::erase_if(f.keys, [&](const ConfigKey& k) { return std::ranges::count(of_decoder, k.field) > 0; });
    for (ConfigKey& k : f.keys)
        if (k.field == ConfigRow::Member(&C::encoder_layers)) k.field = &C::L;
    for (Family::Fixed& each : f.fixed)
        if (!strcmp(each.key, "is_encoder_decoder")) each.value = "false", each.checked = false;
    f.names = joined({both.names[0]}, both.encoder_names);
    f.encoder_names = {};
    for (const char* name : {"decoder.*", "model.decoder.*", "lm_head.*", "final_logits_bias"})
        f.redundant.push_back(name);
    f.presets = {};
    return f;
}
}    // namespace

const std::vector<Family>& encoder_decoder_families() {
    static const std::vector<Family> rows = [] {
        std::vector<Family> all = {
            scaled_t5(t5("t5", "T5ForConditionalGeneration",
                         {{"t5-small", 32128, 512, 6, 8, 8, 64, 512, 2048},
                          {"t5-base", 32128, 512, 12, 12, 12, 64, 768, 3072}})),
            t5("mt5", "MT5ForConditionalGeneration"),
            bart("bart", "BartForConditionalGeneration", bart_kinds, {},
                 {{"scale_embedding", "false", true, true}, {"pad_token_id", "1", true, false}}),
            bart("marian", "MarianMTModel", marian_kinds,
                 {{"scale_embedding", &C::embed_scale, ConfigKey::width_root}, {"pad_token_id", &C::decoder_start}},
                 {{"share_encoder_decoder_embeddings", "true", false, true},
                  {"static_position_embeddings", "true", true, true}}),
        };
        const std::pair<const char*, const char*> encoders[] = {{"t5_encoder", "T5EncoderModel"},
                                                                {"mt5_encoder", "MT5EncoderModel"},
                                                                {"bart_encoder", nullptr},
                                                                {"marian_encoder", nullptr}};
        for (size_t i = 0; i < std::size(encoders); i++)
            all.push_back(alone(all[i], encoders[i].first, encoders[i].second));
        return all;
    }();
    return rows;
}

const Family* encoder_family(const Family& both) {
    const std::string type = std::string(both.type) + "_encoder";
    for (const Family& family : encoder_decoder_families())
        if (type == family.type) return &family;
    return nullptr;
}

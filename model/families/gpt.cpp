// gpt.cpp - families like GPT-2, with LayerNorm and ungated ffn.
#include "families.h"

namespace {
using C = Config;

Config kinds(void (*set)(Config& c)) {
    Config c;
    set(c);
    return c;
}
void no_biases(Config& c) { c.qkv_bias = c.proj_bias = c.up_bias = c.down_bias = false; }

const std::vector<Family> ROWS = {
    {.type = "gpt_neox",
     .architecture = "GPTNeoXForCausalLM",
     .also = {"pythia"},
     .kinds = kinds([](Config& c) {
         c.activation = Act::gelu;
         c.parallel = Parallel::two;
         c.position = Position::rope;
         c.tied = false;
     }),
     .keys = {{"vocab_size", &C::V},
              {"max_position_embeddings", &C::T},
              {"hidden_size", &C::C},
              {"num_hidden_layers", &C::L},
              {"num_attention_heads", &C::NH},
              {"intermediate_size", &C::F},
              {"hidden_act", &C::activation},
              {"layer_norm_eps", &C::norm_eps},
              {"use_parallel_residual", &C::parallel, ConfigKey::flag, NAN, int(Parallel::two)},
              {"attention_bias", &C::qkv_bias},
              {"attention_bias", &C::proj_bias},
              {"tie_word_embeddings", &C::tied}},
     .rope = {.theta = "rotary_emb_base", .part = "rotary_pct", .usual = 0.25},
     .fixed = {{"initializer_range", "0.02", true, false}},
     .names = {{"wte", {"gpt_neox.embed_in"}},
               {"head", {"embed_out"}},
               {"ln1", {"gpt_neox.layers.#.input_layernorm"}},
               {"qkv", {"gpt_neox.layers.#.attention.query_key_value"}, FileLayout::by_head},
               {"proj", {"gpt_neox.layers.#.attention.dense"}},
               {"ln2", {"gpt_neox.layers.#.post_attention_layernorm"}},
               {"fc", {"gpt_neox.layers.#.mlp.dense_h_to_4h"}},
               {"fc2", {"gpt_neox.layers.#.mlp.dense_4h_to_h"}},
               {"lnf", {"gpt_neox.final_layer_norm"}}},
     .prefixes = {"gpt_neox."},
     .redundant = {".attention.bias", ".attention.masked_bias", ".rotary_emb.inv_freq"},
     .presets = {{"pythia-70m", 50304, 2048, 6, 8, 8, 64, 512, 2048},
                 {"pythia-160m", 50304, 2048, 12, 12, 12, 64, 768, 3072},
                 {"pythia-410m", 50304, 2048, 24, 16, 16, 64, 1024, 4096},
                 {"pythia-1b", 50304, 2048, 16, 8, 8, 256, 2048, 8192},
                 {"pythia-1.4b", 50304, 2048, 24, 16, 16, 128, 2048, 8192}}},
    {.type = "gptj",
     .architecture = "GPTJForCausalLM",
     .kinds = kinds([](Config& c) {
         c.parallel = Parallel::one;
         c.position = Position::rope;
         c.rope_interleaved = c.head_bias = true;
         c.qkv_bias = c.proj_bias = c.tied = false;
     }),
     .keys = {{"vocab_size", &C::V},
              {"n_positions", &C::T},
              {"n_embd", &C::C},
              {"n_layer", &C::L},
              {"n_head", &C::NH},
              {"n_inner", &C::F},
              {"rotary_dim", &C::rope_dims, ConfigKey::as_is, 64},
              {"activation_function", &C::activation},
              {"layer_norm_epsilon", &C::norm_eps},
              {"tie_word_embeddings", &C::tied}},
     .fixed = {{"initializer_range", "0.02", true, false}},
     .names = {{"wte", {"transformer.wte"}},
               {"head", {"lm_head"}},
               {"ln1", {"transformer.h.#.ln_1"}},
               {"qkv", {"transformer.h.#.attn.q_proj", "transformer.h.#.attn.k_proj", "transformer.h.#.attn.v_proj"}},
               {"proj", {"transformer.h.#.attn.out_proj"}},
               {"fc", {"transformer.h.#.mlp.fc_in"}},
               {"fc2", {"transformer.h.#.mlp.fc_out"}},
               {"lnf", {"transformer.ln_f"}}},
     .prefixes = {"transformer."},
     .redundant = {".attn.bias", ".attn.masked_bias", ".attn.embed_positions"}},
    {.type = "gpt_neo",
     .architecture = "GPTNeoForCausalLM",
     .kinds = kinds([](Config& c) {
         c.qkv_bias = false;
         c.score_scale = 1;
         c.window = 256;
         c.global_every = 2;
         c.global_first = true;
     }),
     .keys = {{"vocab_size", &C::V},
              {"max_position_embeddings", &C::T},
              {"hidden_size", &C::C},
              {"num_layers", &C::L},
              {"num_heads", &C::NH},
              {"intermediate_size", &C::F},
              {"window_size", &C::window},
              {"activation_function", &C::activation},
              {"layer_norm_epsilon", &C::norm_eps},
              {"tie_word_embeddings", &C::tied}},
     .layers = Family::neo,
     .fixed = {{"initializer_range", "0.02", true, false}},
     .names = {{"wte", {"transformer.wte"}},
               {"wpe", {"transformer.wpe"}},
               {"head", {"lm_head"}},
               {"ln1", {"transformer.h.#.ln_1"}},
               {"qkv",
                {"transformer.h.#.attn.attention.q_proj", "transformer.h.#.attn.attention.k_proj",
                 "transformer.h.#.attn.attention.v_proj"}},
               {"proj", {"transformer.h.#.attn.attention.out_proj"}},
               {"ln2", {"transformer.h.#.ln_2"}},
               {"fc", {"transformer.h.#.mlp.c_fc"}},
               {"fc2", {"transformer.h.#.mlp.c_proj"}},
               {"lnf", {"transformer.ln_f"}}},
     .prefixes = {"transformer."},
     .redundant = {".attn.attention.bias", ".attn.attention.masked_bias"}},
    {.type = "opt",
     .architecture = "OPTForCausalLM",
     .kinds = kinds([](Config& c) {
         c.activation = Act::relu;
         c.position_offset = 2;
     }),
     .keys = {{"vocab_size", &C::V},
              {"max_position_embeddings", &C::T},
              {"hidden_size", &C::C},
              {"word_embed_proj_dim", &C::C, ConfigKey::copy},
              {"num_hidden_layers", &C::L},
              {"num_attention_heads", &C::NH},
              {"ffn_dim", &C::F},
              {"activation_function", &C::activation},
              {"enable_bias", &C::qkv_bias},
              {"enable_bias", &C::proj_bias},
              {"enable_bias", &C::up_bias},
              {"enable_bias", &C::down_bias},
              {"layer_norm_elementwise_affine", &C::norm_weight},
              {"layer_norm_elementwise_affine", &C::norm_bias},
              {"tie_word_embeddings", &C::tied}},
     .fixed = {{"do_layer_norm_before", "true", true, true},
               {"_remove_final_layer_norm", "false", false, true},
               {"dropout", "0.0", true, false},
               {"pad_token_id", "null", true, false}},
     .names = {{"wte", {"model.decoder.embed_tokens"}},
               {"wpe", {"model.decoder.embed_positions"}},
               {"head", {"lm_head"}},
               {"ln1", {"model.decoder.layers.#.self_attn_layer_norm"}},
               {"qkv",
                {"model.decoder.layers.#.self_attn.q_proj", "model.decoder.layers.#.self_attn.k_proj",
                 "model.decoder.layers.#.self_attn.v_proj"}},
               {"proj", {"model.decoder.layers.#.self_attn.out_proj"}},
               {"ln2", {"model.decoder.layers.#.final_layer_norm"}},
               {"fc", {"model.decoder.layers.#.fc1"}},
               {"fc2", {"model.decoder.layers.#.fc2"}},
               {"lnf", {"model.decoder.final_layer_norm"}}},
     .prefixes = {"model.decoder.", "decoder."},
     .presets = {{"opt-125m", 50272, 2048, 12, 12, 12, 64, 768, 3072}}},
    {.type = "bloom",
     .architecture = "BloomForCausalLM",
     .kinds = kinds([](Config& c) {
         c.embed_norm = true;
         c.position = Position::alibi;
     }),
     .keys = {{"vocab_size", &C::V},
              {"seq_length", &C::T, ConfigKey::as_is, 2048},
              {"hidden_size", &C::C},
              {"n_embed", &C::C},    // older name
              {"n_layer", &C::L},
              {"num_hidden_layers", &C::L},
              {"n_head", &C::NH},
              {"num_attention_heads", &C::NH},
              {"layer_norm_epsilon", &C::norm_eps},
              {"tie_word_embeddings", &C::tied}},
     .fixed = {{"initializer_range", "0.02", true, false},
               {"apply_residual_connection_post_layernorm", "false", false, true},
               {"slow_but_exact", "false", false, true}},
     .names = {{"wte", {"transformer.word_embeddings"}},
               {"lne", {"transformer.word_embeddings_layernorm"}},
               {"head", {"lm_head"}},
               {"ln1", {"transformer.h.#.input_layernorm"}},
               {"qkv", {"transformer.h.#.self_attention.query_key_value"}, FileLayout::by_head},
               {"proj", {"transformer.h.#.self_attention.dense"}},
               {"ln2", {"transformer.h.#.post_attention_layernorm"}},
               {"fc", {"transformer.h.#.mlp.dense_h_to_4h"}},
               {"fc2", {"transformer.h.#.mlp.dense_4h_to_h"}},
               {"lnf", {"transformer.ln_f"}}},
     .prefixes = {"transformer."},
     .presets = {{"bloom-560m", 250880, 2048, 24, 16, 16, 64, 1024, 4096}}},
    {.type = "mpt",
     .architecture = "MPTForCausalLM",    // spelling that llama.cpp expects
     .kinds = kinds([](Config& c) {
         no_biases(c);
         c.norm_bias = false;
         c.activation = Act::gelu;
         c.position = Position::alibi;
     }),
     .keys = {{"vocab_size", &C::V},
              {"max_seq_len", &C::T},
              {"d_model", &C::C},
              {"n_layers", &C::L},
              {"n_heads", &C::NH},
              {"layer_norm_epsilon", &C::norm_eps},
              {"tie_word_embeddings", &C::tied}},
     .fixed = {{"expansion_ratio", "4", true, true},
               {"no_bias", "true", true, true},
               {"logit_scale", "null", false, true},
               {"attn_config/alibi", "true", true, true},
               {"attn_config/alibi_bias_max", "8", true, true},
               {"attn_config/clip_qkv", "null", false, true},
               {"attn_config/softmax_scale", "null", false, true},
               {"attn_config/qk_ln", "false", false, true},
               {"attn_config/prefix_lm", "false", false, true}},
     .names = {{"wte", {"transformer.wte"}},
               {"head", {"lm_head"}},
               {"ln1", {"transformer.blocks.#.norm_1"}},
               {"qkv", {"transformer.blocks.#.attn.Wqkv"}},
               {"proj", {"transformer.blocks.#.attn.out_proj"}},
               {"ln2", {"transformer.blocks.#.norm_2"}},
               {"fc", {"transformer.blocks.#.ffn.up_proj"}},
               {"fc2", {"transformer.blocks.#.ffn.down_proj"}},
               {"lnf", {"transformer.norm_f"}}},
     .prefixes = {"transformer."}},
};
}    // namespace

const std::vector<Family>& gpt_families() { return ROWS; }

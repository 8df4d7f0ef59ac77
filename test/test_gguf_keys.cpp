// test_gguf_keys.cpp - every key that llama.cpp gives an architecture (src/llama-arch.cpp of
// 2026-11): read, fixed to one value, without an effect, or passed over with a note.
#include <filesystem>

#include "model/families/families.h"

#include "gguf_parts.h"

namespace {
typedef std::vector<const char*> Keys;
const Keys READ = {"context_length",
                   "embedding_length",
                   "block_count",
                   "feed_forward_length",
                   "attention.head_count",
                   "attention.head_count_kv",
                   "attention.key_length",
                   "attention.value_length",
                   "attention.layer_norm_rms_epsilon",
                   "rope.dimension_count",
                   "rope.freq_base",
                   "rope.scale_linear",
                   "rope.scaling.factor",
                   "expert_count"};
const std::vector<std::pair<const char*, double>> ONE_VALUE = {{"attention.causal", 1},
                                                               {"attention.clamp_kqv", 0},
                                                               {"attention.key_length_swa", 4},
                                                               {"attention.kv_lora_rank", 0},
                                                               {"attention.max_alibi_bias", 0},
                                                               {"attention.output_scale", 1},
                                                               {"attention.q_lora_rank", 0},
                                                               {"attention.scale", 0.5},
                                                               {"attention.shared_kv_layers", 0},
                                                               {"attention.temperature_length", 0},
                                                               {"attention.temperature_scale", 0},
                                                               {"attention.value_length_swa", 4},
                                                               {"attention.value_scale", 1},
                                                               {"attn_logit_softcapping", 0},
                                                               {"embedding_length_per_layer_input", 0},
                                                               {"embedding_scale", 1},
                                                               {"expert_gating_func", 1},
                                                               {"expert_group_count", 1},
                                                               {"expert_group_scale", 1},
                                                               {"expert_group_used_count", 1},
                                                               {"expert_used_count", 0},
                                                               {"expert_weights_scale", 1},
                                                               {"final_logit_softcapping", 0},
                                                               {"full_attention_interval", 1},
                                                               {"interleave_moe_layer_step", 1},
                                                               {"leading_dense_block_count", 0},
                                                               {"logit_scale", 1},
                                                               {"moe_every_n_layers", 0},
                                                               {"nextn_predict_layers", 0},
                                                               {"residual_scale", 1},
                                                               {"rope.dimension_count_swa", 4},
                                                               {"rope.dimension_sections", 0},
                                                               {"rope.freq_base_swa", 0},
                                                               {"rope.scaling.alpha", 0},
                                                               {"rope.scaling.attn_factor", 1},
                                                               {"rope.scaling.yarn_attn_factor", 1},
                                                               {"rope.scaling.yarn_ext_factor", -1},
                                                               {"rope.scaling.yarn_log_multiplier", 0},
                                                               {"router_logit_softcapping", 0},
                                                               {"swiglu_clamp_exp", 0},
                                                               {"swiglu_clamp_shexp", 0},
                                                               {"swin_norm", 0},
                                                               {"use_parallel_residual", 0}};
const Keys NO_EFFECT = {"attention.layer_norm_epsilon",
                        "attention.sliding_window",
                        "attention.sliding_window_pattern",
                        "classifier.output_labels",
                        "expert_feed_forward_length",
                        "expert_shared_count",
                        "expert_shared_feed_forward_length",
                        "expert_weights_norm",
                        "pooling_type",
                        "rope.scaling.finetuned",
                        "rope.scaling.original_context_length",
                        "rope.scaling.yarn_beta_fast",
                        "rope.scaling.yarn_beta_slow",
                        "tensor_data_layout",
                        "vocab_size"};
const Keys NOTED = {    // read by llama.cpp only for other architectures
    "embedding_length_out",
    "features_length",
    "decoder_start_token_id",
    "decoder_block_count",
    "time_mix_extra_dim",
    "rescale_every_n_layers",
    "token_shift_count",
    "experts_per_group",
    "hidden_activation",
    "n_deepstack_layers",
    "attention.group_norm_epsilon",
    "attention.relative_buckets_count",
    "attention.indexer.top_k",
    "ssm.conv_kernel",
    "wkv.head_size",
    "posnet.block_count",
    "convnext.block_count",
    "shortconv.l_cache",
    "kda.head_dim",
    "hyper_connection.count",
    "target_layers",
    "of_tomorrow"};

struct Tried {
    Status status;
    bool changed = false;
    std::vector<std::string> unknown = {};
};
struct Toy {
    std::string path = temporary_directory() + "/a.gguf", prefix;
    Parts parts;
    Config before;
    explicit Toy(const char* family) {
        REQUIRE(save(*load(FAMILIES + family).g, "f32", path).ok());
        parts = parts_of(path);
        prefix = parts["general.architecture"].texts[0] + ".";
        before = checkpoint_config(path).value;
    }
    Tried with(const std::string& key, const GgufValue& value) const {
        Parts p = parts;
        p[prefix + key] = value;
        write_file(path, p.written());
        Tried t;
        const Result<Config> read = gguf_config(GgufFile::open(path).value, &t.unknown);
        t.status = read.status;
        t.changed = read.ok() && !config_listed(read.value, &before).empty();
        return t;
    }
};
}    // namespace

TEST_CASE("gguf keys: each is applied, or has the one value that is ours, or is known to have no effect, or is noted") {
    const Toy toy("llama");
    auto same = [&](const std::string& key, const GgufValue& value) {
        const Tried t = toy.with(key, value);
        CHECK_MESSAGE(t.status.ok(), t.status.message);
        CHECK(!t.changed);
        return t.unknown;
    };
    const std::vector<std::string> none;
    for (const std::string key : READ) {
        CAPTURE(key);
        const Tried t = toy.with(key, GgufValue::number(7));
        CHECK((t.changed || t.status.code == Exit::input));
    }
    CHECK(toy.with("rope.scaling.type", GgufValue::text("longrope")).status.code == Exit::input);
    CHECK(toy.with("rope.scaling.type", GgufValue::text("yarn")).changed);
    for (const auto& [key, value] : ONE_VALUE) {
        CAPTURE(key);
        CHECK(same(key, GgufValue::number(float(value))) == none);
        const Status s = toy.with(key, GgufValue::integer(7)).status;
        CHECK(s.code == Exit::input);
        CHECK_MESSAGE(contains(s.message, "llama." + std::string(key) + ": flatgpt runs only models where it is "),
                      s.message);
        CHECK(toy.with(key, {GgufType::u32, true, {int64_t(value), 7}, {}, {}}).status.code == Exit::input);
        CHECK(toy.with(key, GgufValue::text("x")).status.code == Exit::input);
    }
    for (const std::string key : NO_EFFECT) CHECK(same(key, GgufValue::integer(7)) == none);
    for (const std::string key : NOTED)
        CHECK(same(key, GgufValue::integer(7)) == std::vector<std::string>{"llama." + key});
    CHECK(contains(toy.with("attention.causal", GgufValue::boolean(false)).status.message, "is true, found false"));
}

TEST_CASE("gguf keys: what other architectures make of a key") {
    const Toy granite("granite"), experts("qwen3_moe");
    CHECK(granite.with("rope.scaling.finetuned", GgufValue::boolean(true)).status.ok());
    CHECK(granite.with("rope.scaling.finetuned", GgufValue::boolean(false)).status.code == Exit::input);
    CHECK(granite.with("logit_scale", GgufValue::number(7)).changed);
    CHECK(experts.with("expert_weights_norm", GgufValue::boolean(true)).status.ok());
    CHECK(experts.with("expert_weights_norm", GgufValue::boolean(false)).status.code == Exit::input);
    CHECK(experts.with("expert_weights_scale", GgufValue::number(2.5)).status.code == Exit::input);
    CHECK(experts.with("expert_gating_func", GgufValue::integer(2)).status.code == Exit::input);
    const Toy yarn("llama_yarn");
    CHECK(yarn.with("rope.scaling.attn_factor", GgufValue::number(1.5)).changed);
    CHECK(yarn.with("rope.scaling.yarn_ext_factor", GgufValue::number(1)).status.ok());
    CHECK(yarn.with("rope.scaling.yarn_ext_factor", GgufValue::number(0.5)).status.code == Exit::input);
}

TEST_CASE("gguf keys: unknown ones are named in a note, and a file that is no model says what it is") {
    const Toy toy("llama");
    toy.with("of_tomorrow", GgufValue::integer(7));
    const std::string out = temporary_directory() + "/b.gguf";
    const ProcessResult r = run_flatgpt({"convert", toy.path, out});
    CHECK(r.exit_code == 0);
    CHECK_MESSAGE(contains(r.err, "flatgpt does not know these keys and passes over them: llama.of_tomorrow\n"), r.err);
    Parts p = toy.parts;
    p["general.type"] = GgufValue::text("adapter");
    write_file(toy.path, p.written());
    const Status s = checkpoint_config(toy.path).status;
    CHECK_MESSAGE(contains(s.message, "general.type: expected model, found \"adapter\": LoRA matrices"), s.message);
}

// test_family_config.cpp - config.json of every family: class defaults, spellings, errors; presets.
#include "checkpoint/checkpoint.h"
#include "files/json.h"
#include "model/families/families.h"
#include "test.h"

namespace {
using nlohmann::json;

// The smallest config.json of a family: sizes alone, and more.
json smallest(const std::string& type, const json& more = json::object()) {
    json j = {{"model_type", type},      {"vocab_size", 64},         {"hidden_size", 16},
              {"num_hidden_layers", 4},  {"num_attention_heads", 4}, {"max_position_embeddings", 32},
              {"intermediate_size", 24}, {"num_key_value_heads", 4}};
    j.update(more);
    return j;
}
Result<Config> parse(const json& j) { return config_parse(j.dump(), "c"); }
Config parsed(const json& j) {
    const Result<Config> c = parse(j);
    REQUIRE_MESSAGE(c.ok(), c.status.message);
    return c.value;
}
void refused(const json& j, const std::string& why) {
    const Result<Config> c = parse(j);
    INFO(j.dump());
    INFO(c.status.message);
    CHECK(c.status.code == Exit::input);
    CHECK(contains(c.status.message, why));
}
}    // namespace

TEST_CASE("family config: a key that is left out means what the class has") {
    const Config llama = parsed(smallest("llama"));
    CHECK((llama.norm == NormKind::rms && llama.norm_eps == 1e-6f && llama.gated && !llama.tied && !llama.qkv_bias));
    CHECK((llama.HS == 4 && llama.rope_dims == 4 && llama.rope_theta == 1e4f && llama.window == 0));
    json mistral = smallest("mistral");
    mistral.erase("num_key_value_heads"), mistral["num_attention_heads"] = 8;
    CHECK((parsed(mistral).window == 4096 && parsed(mistral).NKV == 8));
    mistral["sliding_window"] = nullptr, mistral["num_key_value_heads"] = nullptr;
    CHECK((parsed(mistral).window == 0 && parsed(mistral).NKV == 8));
    CHECK(parsed(smallest("qwen2", {{"sliding_window", 5}})).window == 0);    // use_sliding_window is false by default
    const Config qwen3 = parsed(smallest("qwen3"));
    CHECK((qwen3.HS == 128 && qwen3.rope_dims == 128 && qwen3.qk_norm == QkNormRope::QkNorm::head));
    const Config gemma = parsed(smallest("gemma", {{"hidden_act", "gelu"}}));
    CHECK((gemma.HS == 256 && gemma.tied && gemma.norm_plus && gemma.activation == Act::gelu_tanh));
    CHECK(gemma.embed_scale == 4);
    const Config gemma2 = parsed(smallest("gemma2"));
    CHECK((gemma2.score_cap == 50 && gemma2.logit_cap == 30 && gemma2.window == 4096 && gemma2.global_every == 2));
    CHECK((gemma2.windowed(0) && !gemma2.windowed(1) && gemma2.score_scale == 0));
    CHECK(parsed(smallest("gemma2", {{"final_logit_softcapping", nullptr}})).logit_cap == 0);
    const Config gemma3 = parsed({{"model_type", "gemma3"}, {"text_config", {{"num_hidden_layers", 7}}}});
    CHECK((gemma3.V == 262208 && gemma3.NKV == 4 && gemma3.rope_theta == 1e6f && gemma3.rope_local_theta == 1e4f));
    CHECK((gemma3.windowed(4) && !gemma3.windowed(5)));
    CHECK(parsed(smallest("gpt_neox", {{"num_attention_heads", 2}})).rope_dims == 2);
    const Config mixtral = parsed(smallest("mixtral"));
    CHECK((mixtral.experts == 8 && mixtral.experts_used == 2 && mixtral.expert_ffn == 24 && mixtral.window == 0));
    CHECK((mixtral.experts_normalised && mixtral.norm_eps == 1e-5f && mixtral.rope_theta == 1e6f));
    const Config moe = parsed(smallest("qwen2_moe"));
    CHECK((moe.experts == 60 && moe.experts_used == 4 && moe.expert_ffn == 1408 && moe.shared_ffn == 5632));
    CHECK((moe.shared_gate && moe.qkv_bias && !moe.experts_normalised && moe.experts_every == 1 && moe.F == 24));
    const Config moe3 = parsed(smallest("qwen3_moe"));
    CHECK((moe3.experts == 128 && moe3.experts_used == 8 && moe3.expert_ffn == 768 && moe3.shared_ffn == 0));
    CHECK((moe3.HS == 4 && !moe3.experts_normalised && moe3.qk_norm == QkNormRope::QkNorm::head));
    for (const char* key : {"num_experts", "num_local_experts"})    // spellings of transformers 4 and 5
        CHECK(parsed(smallest("qwen3_moe", {{key, 16}})).experts == 16);
    const Config olmoe = parsed(smallest("olmoe"));
    CHECK((olmoe.experts == 64 && olmoe.experts_used == 8 && olmoe.expert_ffn == 24 && !olmoe.experts_normalised));
}

TEST_CASE("family config: which layers have a window where use_sliding_window says so, as in transformers 5.23") {
    auto windows = [](const std::string& type, json more) {    // each layer's window, 0 without
        more["use_sliding_window"] = true;
        const Config c = parsed(smallest(type, more));
        std::vector<int> all;
        for (int l = 0; l < c.L; l++) all.push_back(c.windowed(l) ? c.window : 0);
        return all;
    };
    const std::vector<int> none(4, 0), all(4, 4096), five(4, 5);
    for (const std::string type : {"qwen2", "qwen3"}) {
        CHECK(windows(type, {{"max_window_layers", 0}}) == all);
        CHECK(windows(type, {{"max_window_layers", 0}, {"sliding_window", 5}}) == five);
        CHECK(windows(type, {{"max_window_layers", 0}, {"sliding_window", nullptr}}) == none);
        CHECK(windows(type, {{"sliding_window", 5}}) == none);    // by default only layers from the 28th on
        CHECK(windows(type, {{"layer_types", json(4, "sliding_attention")}}) == all);
    }
    CHECK(windows("qwen2_moe", {{"sliding_window", 5}}) == std::vector<int>{5, 0, 5, 0});
    CHECK(windows("qwen2_moe", {{"layer_types", json(4, "sliding_attention")}}) == all);
    CHECK(windows("qwen3_moe", {{"max_window_layers", 2}}) == all);
    CHECK(windows("qwen3_moe", {{"sliding_window", nullptr}}) == none);
    CHECK(windows("smollm3", {{"no_rope_layer_interval", 1}}) == none);
    CHECK(windows("smollm3", {{"no_rope_layer_interval", 1}, {"sliding_window", 5}}) == five);
    CHECK(windows("smollm3", {{"no_rope_layer_interval", 5}, {"sliding_window", 5}}) == none);    // all have RoPE
    CHECK(windows("smollm3", {{"layer_types", json(4, "sliding_attention")}, {"sliding_window", 5}}) == five);
    refused(smallest("smollm3", {{"use_sliding_window", true}, {"sliding_window", 5}}), "use_sliding_window: flatgpt");
}

TEST_CASE("family config: keys that a class passes over, and those that win, as in transformers 5.23") {
    const json windows = json(4, "sliding_attention"), none = json(4, "full_attention");
    const json both = {{"use_sliding_window", false}, {"layer_types", windows}, {"sliding_window", 3}};
    CHECK((parsed(smallest("smollm3", both)).window == 3 && parsed(smallest("smollm3", both)).windowed(0)));
    CHECK(parsed(smallest("qwen2", both)).window == 0);
    CHECK(parsed(smallest("gemma3_text", {{"attn_logit_softcapping", 1.0}})).score_cap == 0);
    CHECK(parsed(smallest("llama", {{"rope_parameters", {{"partial_rotary_factor", 0.5}}}})).rope_dims == 4);
    for (const std::string type : {"gemma2", "olmo3"})
        CHECK(parsed(smallest(type, {{"sliding_window_pattern", 3}})) == parsed(smallest(type)));
    const json yarn = {{"rope_type", "yarn"}, {"factor", 2.0}, {"original_max_position_embeddings", 12}};
    CHECK(parsed(smallest("llama", {{"rope_scaling", yarn}, {"original_max_position_embeddings", 30}})).rope_original ==
          30);
    CHECK(parsed(smallest("cohere2", {{"head_dim", 10}})).HS == 10);
    // A model without windowed layers has no RoPE in this family, and its class requires a number.
    const Config global = parsed(smallest("cohere2", {{"layer_types", none}}));
    CHECK((global.window == 0 && !global.has_rope(0)));
    const json written = json::parse(config_json(global, {0}));
    CHECK(written["sliding_window"] == global.T);
    CHECK(parsed(written) == global);
    json bloom = smallest("bloom");
    bloom.erase("num_attention_heads");
    CHECK(parse(bloom).status.code == Exit::input);
    bloom["num_attention_heads"] = 8;
    CHECK(parsed(bloom).NH == 8);
    refused(smallest("mistral", {{"layer_types", none}}), "layer_types: flatgpt runs only models where it is null");
    // A model without a window, in a class whose config.json must have a number for it.
    for (const std::string type : {"gemma2", "gemma3_text", "olmo3"}) {
        const Config c = parsed(smallest(type, {{"layer_types", none}}));
        CHECK(c.window == 0);
        const json written = json::parse(config_json(c, {}, -1));
        CHECK((written["model_type"] == type && written["sliding_window"] == 32));
        CHECK(parsed(written) == c);
    }
}

TEST_CASE("family config: rotation in the older spelling is the same; rope_scaling wins over rope_parameters") {
    const json llama3 = {{"rope_type", "llama3"},
                         {"factor", 8.0},
                         {"low_freq_factor", 1.0},
                         {"high_freq_factor", 4.0},
                         {"original_max_position_embeddings", 16}};
    json both = llama3;
    both["rope_theta"] = 5e5;
    const Config now = parsed(smallest("llama", {{"rope_parameters", both}}));
    CHECK((now.rope_theta == 5e5f && now.rope_scaling == RopeScaling::llama3 && now.rope_original == 16));
    CHECK(parsed(smallest("llama", {{"rope_theta", 5e5}, {"rope_scaling", llama3}})) == now);
    CHECK(parsed(smallest("llama", {{"rope_theta", 5e5},
                                    {"rope_scaling", llama3},
                                    {"rope_parameters", {{"rope_type", "linear"}, {"factor", 2.0}}}})) == now);
    const json linear = {{"type", "linear"}, {"factor", 4.0}};
    CHECK(parsed(smallest("qwen2", {{"rope_scaling", linear}})).rope_factor == 4);
    const Config neox = parsed(smallest("gpt_neox", {{"rotary_pct", 0.5}, {"rotary_emb_base", 777}}));
    CHECK((neox.rope_dims == 2 && neox.rope_theta == 777));
    CHECK(parsed(smallest("gpt_neox", {{"rope_parameters", {{"partial_rotary_factor", 0.5}, {"rope_theta", 777}}}})) ==
          neox);
    const json full = {{"rope_type", "linear"}, {"factor", 8.0}, {"rope_theta", 1e6}};
    CHECK(parsed(smallest("gemma3_text", {{"rope_theta", 1e6},
                                          {"rope_local_base_freq", 1e4},
                                          {"rope_scaling", linear},
                                          {"sliding_window_pattern", 2}})) ==
          parsed(smallest(
              "gemma3_text",
              {{"rope_parameters",
                {{"full_attention", {{"rope_type", "linear"}, {"factor", 4.0}, {"rope_theta", 1e6}}},
                 {"sliding_attention", {{"rope_theta", 1e4}}}}},
               {"layer_types", {"sliding_attention", "full_attention", "sliding_attention", "full_attention"}}})));
    const json of_full = {
        {"full_attention", {{"rope_type", "yarn"}, {"factor", 2.0}, {"original_max_position_embeddings", 12}}}};
    CHECK(parsed(smallest("gemma3_text", {{"rope_parameters", of_full}, {"original_max_position_embeddings", 30}}))
              .rope_original == 12);
    const json yarn = {{"rope_type", "yarn"}, {"factor", 4.0}, {"mscale", 1.0}, {"mscale_all_dim", 0.5}};
    CHECK(parsed(smallest("qwen2", {{"rope_scaling", yarn}})).rope_magnitude ==
          doctest::Approx((0.1 * std::log(4.0) + 1) / (0.05 * std::log(4.0) + 1)));
}

TEST_CASE("family config: what flatgpt lacks is refused by name") {
    refused(smallest("granitemoe"), "\"granitemoe\": flatgpt lacks");
    refused(smallest("qwen3_moe", {{"mlp_only_layers", {1}}}), "mlp_only_layers: flatgpt runs only models where it is");
    refused(smallest("olmoe", {{"clip_qkv", 8.0}}), "clip_qkv: flatgpt runs only models where it is null");
    refused(smallest("mixtral", {{"num_experts_per_tok", 9}}), "expected --experts-used of 1 to 8");
    refused(smallest("nothing"), "expected gpt2, llama,");
    refused(smallest("phi3", {{"rope_scaling", {{"type", "longrope"}}}}), "expected default, found \"longrope\"");
    refused(smallest("llama", {{"rope_scaling", {{"rope_type", "longrope"}}}}), "rope_type: expected default, linear");
    refused(smallest("llama", {{"rope_scaling", {{"rope_type", "yarn"}, {"factor", 2.0}, {"truncate", false}}}}),
            "truncate");
    refused(
        smallest("llama",
                 {{"rope_scaling",
                   {{"rope_type", "llama3"}, {"factor", 2.0}, {"low_freq_factor", 4.0}, {"high_freq_factor", 4.0}}}}),
        "rope high");
    refused(smallest("nanochat", {{"rope_scaling", {{"rope_type", "yarn"}, {"factor", 2.0}}}}),
            "rope_type: expected default");
    refused(smallest("llama", {{"rope_scaling", 4}}), "rope_scaling: expected an object");
    refused(smallest("llama", {{"rope_parameters", {{"full_attention", {{"rope_theta", 1e4}}}}}}),
            "one object for all");
    refused(smallest("olmo3", {{"rope_parameters", {{"rope_theta", 1e4}}}}), "objects full_attention and");
    refused(smallest("llama", {{"quantization_config", {{"bits", 4}}}}), "quantization_config");
    refused(smallest("llama", {{"hidden_act", "sigmoid"}}), "hidden_act: expected gelu_new or");
    refused(smallest("llama", {{"attention_bias", 1}}), "attention_bias: expected true or false, found 1");
    refused(smallest("llama", {{"num_key_value_heads", 3}}), "kv heads (3)");
    refused(smallest("olmo", {{"clip_qkv", 8.0}}), "clip_qkv: flatgpt runs only models where it is null");
    refused(smallest("phi", {{"qk_layernorm", true}}), "qk_layernorm");
    refused(smallest("cohere", {{"use_qk_norm", true}}), "use_qk_norm");
    refused(smallest("opt", {{"ffn_dim", 24}, {"do_layer_norm_before", false}}), "do_layer_norm_before");
    refused(smallest("opt", {{"ffn_dim", 24}, {"word_embed_proj_dim", 8}}), "word_embed_proj_dim");
    refused({{"model_type", "mpt"},
             {"vocab_size", 64},
             {"d_model", 16},
             {"n_layers", 1},
             {"n_heads", 2},
             {"max_seq_len", 8},
             {"attn_config", {{"clip_qkv", 6}}}},
            "attn_config/clip_qkv");
    const json sliding = {{"use_sliding_window", true}, {"sliding_window", 5}, {"max_window_layers", 1}};
    refused(smallest("qwen2", sliding), "max_window_layers: flatgpt runs only models in which");
    refused(smallest("gemma2", {{"layer_types", {"full_attention"}}}), "layer_types: expected an array of 4");
    refused(smallest("gemma2",
                     {{"layer_types", {"full_attention", "full_attention", "chunked_attention", "full_attention"}}}),
            "found \"chunked_attention\"");
    refused(smallest("gemma2", {{"layer_types",
                                 {"full_attention", "sliding_attention", "sliding_attention", "sliding_attention"}}}),
            "another order");
    refused(smallest("smollm3", {{"no_rope_layers", {1, 0, 0, 1}}}), "no_rope_layers");
    json neo = {{"model_type", "gpt_neo"}, {"vocab_size", 64}, {"hidden_size", 16},
                {"num_layers", 2},         {"num_heads", 2},   {"max_position_embeddings", 8}};
    CHECK(parsed(neo).windowed(1));
    for (const json& types : {json{{{"global", "local"}, 1e9}}, json{{{"global"}, 1}}, json{3}, json{{"global", 1}}}) {
        neo["attention_types"] = types;
        refused(neo, "attention_types");
    }
    // transformers runs attention_layers where both are there, whatever attention_types says.
    neo["attention_types"] = {{{"global", "local"}, 1}}, neo["attention_layers"] = {"local", "local"};
    CHECK((parsed(neo).windowed(0) && parsed(neo).windowed(1)));
    neo["attention_layers"] = {"local"};
    refused(neo, "attention_layers: expected an array of 2");
    for (const char* missing :
         {"vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads", "max_position_embeddings"}) {
        json j = smallest("llama");
        j.erase(missing);
        refused(j, std::string(missing) + ": expected an integer");
        j[missing] = -1;
        refused(j, std::string(missing) + ": expected an integer");
    }
}

TEST_CASE("family config: what a class cannot say has a model_type of ours, and reads back") {
    struct Row {
        const char* type;
        void (*change)(Config& c);
        const char* key;
    };
    for (const Row& row :
         {Row{"llama", [](Config& c) { c.window = 5; }, "sliding_window"},
          Row{"llama", [](Config& c) { c.qk_norm = QkNormRope::QkNorm::head; }, "flatgpt_qk_norm"},
          Row{"llama", [](Config& c) { c.proj_bias = true; }, "flatgpt_qkv_bias"},
          Row{"gpt2", [](Config& c) { c.position = Position::rope, c.rope_dims = 64; }, "flatgpt_position"},
          Row{"gpt2", [](Config& c) { c.gated = true; }, "flatgpt_gated"},
          Row{"bert", [](Config& c) { c.position = Position::t5; }, "flatgpt_position"},
          Row{"roberta", [](Config& c) { c.position = Position::relative_key, c.max_distance = 9; },
              "flatgpt_max_distance"},
          Row{"cohere2", [](Config& c) { c.rope_skip_every = 0; }, "flatgpt_rope_skip_every"},
          Row{"cohere2", [](Config& c) { c.window = 0; }, "flatgpt_rope_skip_every"},
          Row{"llama", [](Config& c) { c.experts = 2, c.fill_experts(); }, "flatgpt_experts_used"},
          Row{"mixtral", [](Config& c) { c.experts_normalised = false; }, "flatgpt_experts_normalised"},
          Row{"mixtral", [](Config& c) { c.shared_ffn = 8; }, "flatgpt_shared_ffn"},
          Row{"qwen2_moe", [](Config& c) { c.shared_gate = false; }, "flatgpt_shared_gate"},
          Row{"qwen3_moe", [](Config& c) { c.router = RouterKind::sigmoid; }, "flatgpt_router"},
          Row{"olmoe", [](Config& c) { c.HS = c.rope_dims = 32; }, "head_dim"},
          Row{"bloom", [](Config& c) { c.F = 24; }, "flatgpt_ffn"},
          Row{"llama", [](Config& c) { c.rope_backwards = true; }, "flatgpt_rope_backwards"},
          Row{"nanochat", [](Config& c) { c.norm_weight = true; }, "flatgpt_norm_weight"},
          Row{"gpt_neox", [](Config& c) { c.parallel = Parallel::one; }, "flatgpt_parallel"}}) {
        CAPTURE(row.key);
        Config c = config_named(std::string(row.type) + ":d2").value;
        CHECK(config_beyond_class(c).empty());
        row.change(c);
        REQUIRE(config_check(c).ok());
        const std::string text = config_json(c, {0});
        CHECK(contains(text, "\"flatgpt-" + std::string(row.type) + "\""));
        CHECK(json::parse(text).contains(row.key));
        CHECK(config_parse(text, "c").value == c);
    }
}

TEST_CASE("family config: presets have the parameters that they are known for, and their class can say them") {
    const std::pair<const char*, int64_t> known[] = {{"gpt2", 124439808},
                                                     {"smollm2-135m", 134515008},
                                                     {"smollm2-360m", 361821120},
                                                     {"smollm2-1.7b", 1711376384},
                                                     {"smollm3-3b", 3075098624},
                                                     {"llama-2-7b", 6738415616},
                                                     {"llama-3.1-8b", 8030261248},
                                                     {"llama-3.2-1b", 1235814400},
                                                     {"llama-3.2-3b", 3212749824},
                                                     {"tinyllama-1.1b", 1100048384},
                                                     {"mistral-7b", 7241732096},
                                                     {"qwen2.5-0.5b", 494032768},
                                                     {"qwen2.5-1.5b", 1543714304},
                                                     {"qwen2.5-7b", 7615616512},
                                                     {"qwen3-0.6b", 596049920},
                                                     {"qwen3-1.7b", 1720574976},
                                                     {"qwen3-4b", 4022468096},
                                                     {"gemma-2b", 2506172416},
                                                     {"gemma-2-2b", 2614341888},
                                                     {"gemma-3-270m", 268098176},
                                                     {"gemma-3-1b", 999885952},
                                                     {"phi-3-mini", 3821079552},
                                                     {"olmo-2-1b", 1484916736},
                                                     {"pythia-70m", 70426624},
                                                     {"pythia-160m", 162322944},
                                                     {"pythia-410m", 405334016},
                                                     {"pythia-1b", 1011781632},
                                                     {"pythia-1.4b", 1414647808},
                                                     {"bloom-560m", 559214592},
                                                     {"opt-125m", 125239296},
                                                     {"starcoder2-3b", 3030371328},
                                                     {"granite-3.0-2b", 2533531648},
                                                     {"mixtral-8x7b", 46702792704},
                                                     {"qwen1.5-moe-a2.7b", 14315784192},
                                                     {"qwen3-30b-a3b", 30532122624},
                                                     {"olmoe-1b-7b", 6919161856},
                                                     {"nanochat-d20", 560988160},
                                                     {"nanochat-d32", 1879048192}};
    for (auto& [name, parameters] : known)
        CHECK_MESSAGE(config_parameters(config_named(name).value) == parameters, name);
    // A token uses 12.9, 2.7, 3.3 and 1.3 billion parameters, as papers and model cards say.
    const std::pair<const char*, double> used[] = {
        {"mixtral-8x7b", 12.9}, {"qwen1.5-moe-a2.7b", 2.7}, {"qwen3-30b-a3b", 3.3}, {"olmoe-1b-7b", 1.3}};
    for (auto& [name, billions] : used)
        CHECK_MESSAGE(std::abs(double(config_used(config_named(name).value)) / 1e9 - billions) < 0.06, name);
    std::vector<std::string> names;
    for (const Family* family : families()) {
        // Encoders without a head come from files alone.
        if (family->kinds.head != HeadKind::none) names.push_back(std::string(family->type) + ":d2");
        for (const Preset& preset : family->presets) names.push_back(preset.name);
    }
    for (const std::string& name : names) {
        CAPTURE(name);
        const Result<Config> c = config_named(name);
        REQUIRE_MESSAGE(c.ok(), c.status.message);
        CHECK(config_check(c.value).ok());
        CHECK(config_text(c.value, config_beyond_class(c.value)) == "");
        CHECK(config_parse(config_json(c.value, {0}), "c").value == c.value);
    }
}

TEST_CASE("family config: dN of a family has its kinds, and about as many parameters as GPT-2's") {
    const Config llama = config_named("llama:d6").value, gpt2 = config_named("d6").value;
    CHECK((llama.F == 1024 && llama.C == 384 && llama.NH == 6 && llama.HS == 64 && llama.gated));
    CHECK(config_named("gpt2:d6").value == gpt2);
    const double blocks = double(config_parameters(llama)) - 2 * 50257.0 * 384;
    CHECK(blocks == doctest::Approx(double(config_parameters(gpt2)) - (50257.0 + 1024) * 384).epsilon(0.01));
    for (const char* bad : {"llama", "llama:", "llama:6", "lama:d6", "llama:d0", "llama:d6x"})
        CHECK(config_named(bad).status.code == Exit::usage);
    CHECK(config_text(config_named("gemma-2-2b").value, config_listed(config_named("gemma-2-2b").value)) ==
          "vocabulary 256000, context 8192, 2304 channels, 26 layers, 8 heads, ffn 9216, 4 kv heads, head size 256");
}

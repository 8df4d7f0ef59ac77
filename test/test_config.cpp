// test_config.cpp - model configurations: flags, limits, config.json; tensors in pieces of files.
#include "toy_checkpoint.h"
#include "toy_model.h"

#include "files/json.h"
#include "tensors.h"

namespace {
ConfigOverrides asked(std::initializer_list<std::pair<int Config::*, int>> fields) {
    ConfigOverrides c = no_overrides();
    for (auto [field, value] : fields) c.*field = value;
    return c;
}
void refused(const Config& c, const std::string& why) {
    const Status s = config_check(c);
    INFO(s.message);
    CHECK(s.code == Exit::usage);
    CHECK(s.message.find(why) != std::string::npos);
}
}    // namespace

TEST_CASE("config: fields follow from others until they are asked for") {
    const Config base = config_named("d6").value;
    CHECK(config_with(base, no_overrides()) == base);
    Config c = config_with(base, asked({{&Config::NH, 4}, {&Config::C, 512}}));
    CHECK(c == Config{.L = 6, .NH = 4, .C = 512, .F = 2048, .NKV = 4, .HS = 128});
    c = config_with(base, asked({{&Config::NKV, 2}, {&Config::HS, 48}, {&Config::window, 33}}));
    CHECK(c == Config{.L = 6, .NH = 6, .C = 384, .F = 1536, .NKV = 2, .HS = 48, .window = 33});
    CHECK(config_with(c, asked({{&Config::L, 3}})).NKV == 2);    // NH unchanged, so NKV keeps its value
    CHECK(config_with(c, asked({{&Config::NH, 12}})).NKV == 12);
    CHECK(config_with(c, asked({{&Config::NH, 12}, {&Config::NKV, 3}})).NKV == 3);
    CHECK(config_with(c, asked({{&Config::C, 256}})).window == 33);
    for (const std::string type : {"mixtral", "qwen2_moe"}) {    // expert widths follow from the ffn's
        const Config wide = config_named(type + ":d8").value;
        c = config_with(config_named(type + ":d4").value, asked({{&Config::C, wide.C}}));
        CHECK((c.expert_ffn == wide.expert_ffn && c.F == wide.F && c.shared_ffn == wide.shared_ffn));
    }
    std::vector<std::string> names;
    ConfigOverrides nothing = no_overrides();
    for (const Flag& f : config_flags(nothing)) names.push_back(f.name);
    for (const char* name : {"--vocab",      "--channels",        "--layers",   "--heads",      "--kv-heads",
                             "--head-size",  "--window",          "--ffn",      "--activation", "--gated",
                             "--norm",       "--norm-place",      "--parallel", "--qk-norm",    "--score-cap",
                             "--tied",       "--embedding-scale", "--position", "--rope-theta", "--rope-scaling",
                             "--rope-factor"})
        CHECK_MESSAGE(std::count(names.begin(), names.end(), name) == 1, name);
}

// The configuration of `base` with these command-line flags.
namespace {
Config flagged(std::initializer_list<std::pair<const char*, const char*>> given, const char* base = "d6") {
    ConfigOverrides asked = no_overrides();
    const std::vector<Flag> flags = config_flags(asked);
    for (auto [name, value] : given)
        for (const Flag& f : flags)
            if (f.name == name) CHECK(flag_set(f, {value}).ok());
    return config_with(config_named(base).value, asked);
}
}    // namespace

TEST_CASE("config: models by their names, by other spellings of a family, and what was meant") {
    for (auto [spelt, type] : {std::pair{"GPT-NeoX:d2", "gpt_neox"},
                               {"pythia:d2", "gpt_neox"},
                               {"gemma3:d2", "gemma3_text"},
                               {"qwen2.5:d2", "qwen2"},
                               {"d2", "gpt2"}}) {
        const Result<Config> c = config_named(spelt);
        CHECK_MESSAGE((c.ok() && c.value.family->type == std::string(type) && c.value.L == 2), spelt);
    }
    for (auto [wrong, meant] : {std::pair{"lama:d4", "llama:d4"},
                                {"qwen3-0.6", "qwen3-0.6b"},
                                {"gpt2-mdium", "gpt2-medium"},
                                {"llama:d", "llama:d12"},
                                {"gemma2:", "gemma2:d12"},
                                {"llama:d0", "llama:d12"},
                                {"gpt2:dd", "gpt2:d12"}}) {
        const Status s = config_named(wrong).status;
        CHECK(s.code == Exit::usage);
        CHECK_MESSAGE(contains(s.message, std::string("did you mean ") + meant + "?"), s.message);
    }
    for (const char* wrong : {"llama:d0", "llama:d", ":d4", "llama:x4", "d1025", "d4x"})
        CHECK_FALSE(config_named(wrong).ok());
}

TEST_CASE("config: kinds are asked for by their names, and what follows from them follows") {
    const Config d6 = config_named("d6").value;
    Config c = flagged({{"--position", "rope"}});
    CHECK((c.position == Position::rope && c.rope_dims == 64));
    CHECK(flagged({{"--position", "rope"}, {"--head-size", "32"}}).rope_dims == 32);
    c = flagged({{"--position", "rope"}, {"--rope-scaling", "yarn"}, {"--rope-factor", "4"}});
    CHECK((c.rope_scaling == RopeScaling::yarn && c.rope_factor == 4 && c.rope_high == 32));
    CHECK(config_check(c).ok());
    c = flagged({{"--position", "sinusoidal"}});
    CHECK(c.embed_scale == std::sqrt(384.0f));
    CHECK(flagged({{"--position", "sinusoidal"}, {"--embedding-scale", "2"}}).embed_scale == 2);
    c = flagged({{"--norm", "rms"}, {"--gated", "true"}, {"--activation", "silu"}, {"--tied", "false"}});
    CHECK((c.norm == NormKind::rms && !c.norm_bias && c.gated && c.F == 1024 && c.activation == Act::silu && !c.tied));
    CHECK(flagged({{"--gated", "true"}, {"--ffn", "100"}}).F == 100);
    c = flagged({{"--position", "none"}}, "llama-3.2-1b");    // no rotation, so no rope scaling
    CHECK((c.rope_scaling == RopeScaling::none && c.rope_dims == 0 && c.rope_factor == 1));
    CHECK(config_check(c).ok());
    CHECK(flagged({}) == d6);
    CHECK(flagged({{"--gated", "false"}, {"--position", "learned"}, {"--norm", "layer"}}) == d6);
}

TEST_CASE("config: kinds that no model has together are refused, and both are named") {
    refused(flagged({{"--rope-scaling", "linear"}}),
            "--rope-scaling linear needs --position rope, found --position learned");
    refused(flagged({{"--position", "rope"}, {"--rope-factor", "4"}}), "--rope-factor 4 needs --rope-scaling");
    refused(flagged({{"--norm-place", "post"}, {"--parallel", "two"}}), "--norm-place post, --parallel two");
    refused(flagged({{"--embedding-scale", "2"}}), "--embedding-scale 2, --position learned");
}

TEST_CASE("config: what no model can be is refused, with the field and its range") {
    refused({.NH = 5, .C = 12}, "channels (12) are not a multiple of heads (5)");
    CHECK(config_check({.NH = 5, .C = 12, .HS = 3}).ok());
    refused({.NH = 4, .C = 12, .NKV = 3}, "heads (4) are not a multiple of kv heads (3)");
    refused({.NKV = 0}, "kv heads: expected 1 to 1024, found 0");
    refused({.window = -1}, "window: expected 0 to 1048576, found -1");
    refused({.NH = 1024, .C = 1024, .HS = 1024}, "262144 at most");
    refused({.norm_eps = NAN}, "norm epsilon: expected 1e-12 to 0.1");
    for (double edge : {1e-12, 0.1}) {
        const Config c = {.norm_eps = float(edge)};
        CHECK(config_check(c).ok());
        CHECK(config_parse(config_json(c, {0}), "c").value == c);
    }
    for (const ConfigRow& row : config_rows())
        for (double wrong : {row.min - std::abs(row.min) - 1, 2 * row.max + 1}) {
            if (std::holds_alternative<bool Config::*>(row.member)) continue;
            Config c;
            config_set(c, row, wrong);
            CHECK(config_check(c).code == Exit::usage);
        }
}

TEST_CASE("config: what GPT-2 has not is written, listed and read back; transformers would refuse it") {
    for (auto [field, key, text] : {std::tuple{&Config::NKV, "num_key_value_heads", "3 kv heads"},
                                    std::tuple{&Config::HS, "head_dim", "head size 3"},
                                    std::tuple{&Config::window, "sliding_window", "window 3"}}) {
        Config c;
        CHECK(config_json(c, {0}).find(key) == std::string::npos);
        CHECK(config_text(c, config_listed(c)) ==
              "vocabulary 50257, context 1024, 768 channels, 12 layers, 12 heads, ffn 3072");
        c.*field = 3;
        const std::string json = config_json(c, {0});
        CHECK(json.find(std::string("\"") + key + "\": 3") != std::string::npos);
        CHECK(json.find("\"model_type\": \"flatgpt-gpt2\"") != std::string::npos);
        CHECK(json.find("GPT2LMHeadModel") == std::string::npos);
        CHECK(config_parse(json, "c").value == c);
        const size_t type = json.find("-gpt2");
        CHECK(config_parse(std::string(json).erase(type, 5), "c").value == c);    // the older model_type "flatgpt"
        CHECK(config_parse(std::string(json).replace(type, 5, "-bert"), "c").status.code == Exit::input);
        CHECK(config_text(c, config_listed(c)).ends_with(std::string("ffn 3072, ") + text));
        const Config gpt2 = config_named("gpt2").value;
        CHECK(config_text(c, config_listed(c, &gpt2)) == text);
    }
}

TEST_CASE("config: a field that the family's class has needs no model_type of ours") {
    Family windowed = GPT2;
    windowed.keys.push_back({"sliding_window", &Config::window, ConfigKey::or_none});
    const Config c = {.window = 3, .family = &windowed};
    const std::string json = config_json(c, {0});
    CHECK(json.find("\"sliding_window\": 3") != std::string::npos);
    CHECK(json.find("\"model_type\": \"gpt2\"") != std::string::npos);
    CHECK(config_beyond_class({.NKV = 3, .window = 3, .family = &windowed}).size() == 1);
}

TEST_CASE("config: a tensor may be several of a file, or none") {
    const Config whole = {.V = 20, .T = 4, .L = 2, .NH = 4, .C = 8, .F = 16, .NKV = 2, .HS = 3};
    for (bool transposed : {false, true}) {
        const Config split = split_config(whole, transposed);
        CHECK(config_parameters(split) == config_parameters(whole) - 2 * 8);    // split_config has no projb
        CHECK(config_tensors(split).size() == config_tensors(whole).size() - 2);
        const Params<Parameter> bound =
            bind<Parameter>(split, 1, [](const Tensor& t) { return reinterpret_cast<Parameter*>(64 + 4 * t.offset); });
        CHECK(bound.block[1].projb == nullptr);
        CHECK(bound.block[1].projw != nullptr);
        const std::string run = temporary_directory();
        ToyCheckpoint wrote(1, split), read(2, split);
        REQUIRE(checkpoint_write(run, wrote.g, Tokenizer(), toy_state(5, 1)).ok());
        const std::string dir = checkpoint_list(run).back();
        read.poison();
        const Status s = checkpoint_weights(dir, read.g, true);
        REQUIRE_MESSAGE(s.ok(), s.message);
        REQUIRE(checkpoint_optimizer(dir, read.g).ok());
        CHECK(same_bits(read.params, wrote.params));
        CHECK(same_bits(read.m, wrote.m));
        CHECK(same_bits(read.v, wrote.v));
        // Keys of block 1 are rows 12 to 17 of 24 in qkvw, elements 12 to 17 in qkvb.
        Result<SafetensorsFile> file = SafetensorsFile::open(dir + "/model.safetensors");
        REQUIRE(file.ok());
        const TensorEntry *k = find_tensor(file.value, "1.k.weight"), *b = find_tensor(file.value, "1.k.bias");
        REQUIRE((k && b && !find_tensor(file.value, "transformer.h.1.attn.c_proj.bias")));
        CHECK(k->shape == (transposed ? std::vector<int64_t>{8, 6} : std::vector<int64_t>{6, 8}));
        CHECK(b->shape == std::vector<int64_t>{6});
        for (const Tensor& t : wrote.g.tensors) {
            if (t.name != "1.qkvw" && t.name != "1.qkvb") continue;
            std::vector<float> x(size_t(6 * t.cols));
            REQUIRE(read_tensor(file.value, t.vector ? *b : *k, 0, int64_t(x.size()), x.data()).ok());
            const int64_t second = t.vector ? 1 : transposed ? 8 : 1;    // offset in params of the file's second number
            CHECK(x[0] == wrote.params[size_t(t.offset + 12 * t.cols)]);
            CHECK(x[1] == wrote.params[size_t(t.offset + 12 * t.cols + second)]);
        }
        ToyCheckpoint fused(2, whole);
        CHECK(checkpoint_weights(dir, fused.g).code == Exit::input);
    }
}

// test_gguf_model.cpp - models as GGUF files: compared with llama.cpp's converter, written and read
// in every type, errors, and `flatgpt convert`.
#include <algorithm>
#include <cmath>
#include <filesystem>
#include <map>
#include <sstream>

#include "files/json.h"
#include "model/families/families.h"

#include "gguf_parts.h"

namespace {
// Drops score_scale, which llama.cpp cannot express, but some families' goldens have.
void make_sayable(Config& c) {
    if (c.family->type == std::string("gemma2") || c.family->type == std::string("gemma3_text")) c.score_scale = 0;
}

GgufValue value_of(const std::string& type, const nlohmann::json& j) {
    if (j.is_string()) return GgufValue::text(j);
    if (j.is_array()) {
        if (type == "STRING") return GgufValue::text_array(j.get<std::vector<std::string>>());
        std::vector<int64_t> flags;
        for (bool b : j) flags.push_back(b);
        return {GgufType::boolean, true, flags, {}, {}};
    }
    if (type == "BOOL") return GgufValue::boolean(j);
    return type == "FLOAT32" ? GgufValue::number(j) : GgufValue::integer(j);
}
// The lines of converter.txt by family: keys and tensors ("name" -> "hash sizes").
struct Converted {
    GgufKeys keys;
    std::map<std::string, std::string> tensors;
};
std::map<std::string, Converted> converted() {
    std::map<std::string, Converted> all;
    std::istringstream lines(read_file("test/golden/gguf/converter.txt"));
    for (std::string line; std::getline(lines, line);) {
        std::istringstream words(line);
        std::string family, name, type, value;
        words >> family >> name >> type >> std::ws;
        std::getline(words, value);
        Converted& c = all[family];
        if (type[0] >= 'A' && type[0] <= 'Z') c.keys.push_back({name, value_of(type, nlohmann::json::parse(value))});
        else c.tensors[name] = type + " " + value;
    }
    return all;
}
bool equal(const GgufValue& a, const GgufValue& b) {
    return a.type == b.type && a.array == b.array && a.integers == b.integers && a.numbers == b.numbers &&
           a.texts == b.texts;
}
}    // namespace

TEST_CASE("gguf model: tensors and keys are those of llama.cpp's converter") {
    int families = 0;
    for (auto& [family, theirs] : converted()) {
        CAPTURE(family);
        families++;
        Loaded m = load(FAMILIES + family);
        make_sayable(m.g->c);
        const std::string path = temporary_directory() + "/a.gguf";
        const Status s = save(*m.g, "f32", path);
        REQUIRE_MESSAGE(s.ok(), s.message);
        const Result<GgufFile> f = GgufFile::open(path);
        REQUIRE(f.ok());
        CHECK(f.value.tensors().size() == theirs.tensors.size());
        for (const GgufTensor& t : f.value.tensors()) {
            CAPTURE(t.name);
            const std::string raw = bytes_of(f.value, t);
            std::string text =
                formatted("%016llx", (unsigned long long)fnv1a_words(FNV_OFFSET_BASIS, raw.data(), t.bytes));
            for (int64_t d : t.shape) text += " " + std::to_string(d);
            REQUIRE(theirs.tensors.count(t.name));
            // The converter computes Llama 3's divisors in float, we in double.
            const size_t hash = t.name == "rope_freqs.weight" ? 16 : 0;
            CHECK(theirs.tensors.at(t.name).substr(hash) == text.substr(hash));
        }
        Parts p = parts_of(path);
        const std::string prefix = p["general.architecture"].texts[0] + ".";
        for (auto& [key, value] : theirs.keys) {
            const GgufValue* ours = f.value.metadata().find(key);
            if (ours && key.find("sliding_window_pattern") == key.npos) CHECK_MESSAGE(equal(*ours, value), key);
        }
        // Read with the converter's keys in place of ours, the file gives the same configuration.
        const Result<Config> config = gguf_config(f.value);
        REQUIRE_MESSAGE(config.ok(), config.status.message);
        std::erase_if(p.keys, [&](auto& row) { return row.first.starts_with(prefix); });
        if (family == "gpt_neox")    // rope.freq_base, which the converter forgets
            p.keys.push_back({prefix + "rope.freq_base", *f.value.metadata().find(prefix + "rope.freq_base")});
        p.keys.insert(p.keys.end(), theirs.keys.begin(), theirs.keys.end());
        write_file(path, p.written());
        const Result<Config> read = checkpoint_config(path);
        REQUIRE_MESSAGE(read.ok(), read.status.message);
        const auto differ = config_listed(read.value, &config.value);
        CHECK_MESSAGE(differ.empty(), config_text(read.value, differ), " for ", config_text(config.value, differ));
        // llama.cpp makes no difference between Mistral without a window and Llama.
        // RoBERTa's table of positions has lost what tells it from BERT's.
        if (family != "mistral_full" && !family.starts_with("../encoders/roberta"))
            CHECK(read.value.family == m.g->c.family);
        CHECK(config.value.family == read.value.family);
    }
    CHECK(families == 29);
}

TEST_CASE("gguf model: there and back in every type") {
    for (const char* family : {"llama", "gemma3", "qwen2_moe"}) {
        Loaded m = load(FAMILIES + family);
        make_sayable(m.g->c);
        m.g->c.norm_eps = float(config_row(&Config::norm_eps).min);    // the minimum, rounded below it by float
        const std::vector<float> before = m.weights();
        for (const GgufFileType& type : gguf_file_types()) {
            const std::string what = std::string(family) + " " + type.name;
            CAPTURE(what);
            const std::string path = temporary_directory() + "/a.gguf";
            const Status s = save(*m.g, type.name, path);
            REQUIRE_MESSAGE(s.ok(), s.message);
            const Loaded again = load(path);
            CHECK(again.g->c.norm_eps == m.g->c.norm_eps);
            const std::vector<float> after = again.weights();
            REQUIRE(after.size() == before.size());
            // The weights are bf16. Rows of length C are not a multiple of a block and become F16;
            // rows of length F are, and are quantised.
            const double error = relative_error(after.data(), before.data(), int64_t(before.size()));
            if (type.matrices == BlockType::f32 || type.matrices == BlockType::bf16) CHECK(error == 0);
            else CHECK(error < (type.matrices == BlockType::f16 ? 1e-3 : 0.06));
        }
    }
}

// Checks each tensor's format in a q4_k_m file of a model with or without experts, with rows of C.
static void check_formats(const char* type, int C) {
    const auto family = std::find_if(families().begin(), families().end(),
                                     [&](const Family* f) { return f->type == std::string(type); });
    REQUIRE(family != families().end());
    Config c = Config{.V = 64, .T = 16, .L = 8, .NH = 4, .C = C, .family = *family}.family_defaults();
    c.F = 256;
    if (c.experts) c.experts = 3, c.experts_used = 2, c.expert_ffn = c.shared_ffn = 256;
    Loaded m;
    REQUIRE(m.g->allocate(c, {RunMode::infer, 1, 1}).ok());
    m.g->init(1);
    const std::vector<float> before = m.weights();
    const std::string path = temporary_directory() + "/a.gguf";
    const Status s = save(*m.g, "q4_k_m", path);
    REQUIRE_MESSAGE(s.ok(), s.message);
    const Result<GgufFile> f = GgufFile::open(path);
    REQUIRE(f.ok());
    auto format = [&](const std::string& name) -> std::string { return f.value.find(name + ".weight")->format->name; };
    // As llama.cpp's Q4_K_M. Rows of no multiple of 256 take a larger format in blocks of 32.
    const std::string four = C == 256 ? "Q4_K" : "Q5_0", six = C == 256 ? "Q6_K" : "Q8_0";
    CHECK(format("output") == six);
    CHECK(format("token_embd") == four);
    CHECK(format("output_norm") == "F32");
    for (int l = 0; l < 8; l++) {
        CAPTURE(l);
        const std::string block = "blk." + std::to_string(l) + ".";
        const bool more = l == 0 || l == 3 || l == 6 || l == 7;
        CHECK(format(block + "attn_norm") == "F32");
        CHECK(format(block + "attn_q") == four);
        CHECK(format(block + "attn_v") == (more ? six : four));
        for (const char* part : {"_exps", "_shexp"}) {
            const std::string end = c.experts ? part : "";
            CHECK(format(block + "ffn_down" + end) == (more ? "Q6_K" : "Q4_K"));    // rows of F = 256
            CHECK(format(block + "ffn_up" + end) == four);
        }
        for (const char* gate : {"ffn_gate_inp", "ffn_gate_inp_shexp"})
            if (c.experts) CHECK(format(block + gate) == "F32");
    }
    const std::vector<float> after = load(path).weights();
    CHECK(relative_error(after.data(), before.data(), int64_t(before.size())) < 0.1);
    int64_t number = 0;
    CHECK(f.value.metadata().get("general.file_type", &number, 15, 15).ok());
    CHECK(f.value.metadata().get("general.quantization_version", &number, 2, 2).ok());
}
TEST_CASE("gguf model: which tensor has which format") {
    for (const char* type : {"llama", "qwen2_moe"})
        for (const int C : {256, 96}) check_formats(type, C);
}

TEST_CASE("gguf model: what llama.cpp would pass over is refused by name") {
    const std::pair<const char*, const char*> cases[] = {
        {"mistral", "architecture llama has window 0, this model has window 5"},
        {"qwen2_window", "window"},
        {"gpt2_untied", "activation gelu_new, this model has activation gelu"},
        {"llama_biases", "activation"},
        {"llama_dynamic", "rope scaling none"},
        {"gemma2", "attention scale"},
        {"qwen2_moe_sparse",
         "architecture qwen2moe has experts every 1, no experts normalised, this model has experts "
         "every 2, experts normalised"},
        {"qwen3_moe_sums", "experts normalised, this model has projection bias, no experts normalised"},
        {"mixtral_window", "architecture llama has window 0, this model has window 5"},
        {"bloom", "this model's is bloom"},
        {"opt", "this model's is opt"}};
    for (auto& [family, message] : cases) {
        const Status s = gguf_architecture_for(checkpoint_config(FAMILIES + family).take()).status;
        CHECK(s.code == Exit::usage);
        CHECK_MESSAGE(contains(s.message, message), s.message);
    }
    // Weights beyond fp16's range.
    for (const float x : {70000.0f, -70000.0f, float(NAN)}) {
        Loaded m = load(FAMILIES + "llama");
        m.g->write(StateKind::weights, m.g->tensors[0].offset + 5, 1, &x);
        const std::string path = temporary_directory() + "/a.gguf";
        CHECK(save(*m.g, "f32", path).ok());
        CHECK(save(*m.g, "bf16", path).ok());
        const Status s = save(*m.g, "q8_0", path);
        CHECK(s.code == Exit::run);
        CHECK(contains(s.message, "token_embd.weight"));
    }
}

TEST_CASE("gguf model: a weight that is not finite is named when it is loaded, packed or not") {
    const Loaded m = load(FAMILIES + "llama");
    for (const char* type : {"f32", "bf16", "q8_0"})
        for (const bool packed : {false, true}) {
            const std::string path = temporary_directory() + "/a.gguf";
            REQUIRE(save(*m.g, type, path).ok());
            Parts p = parts_of(path);
            GgufSource& t = p.tensor("blk.1.ffn_down.weight");
            std::string raw = bytes_of(GgufFile::open(path).value, *GgufFile::open(path).value.find(t.name));
            const size_t at = raw.size() - size_t(t.format->bytes) + size_t(t.format->type == BlockType::f32 ? 2 : 0);
            raw[at] = '\xFF', raw[at + 1] = '\x7F';    // NaN as bf16, fp32 and fp16
            t = source(t.name, t.format->type, t.shape, raw);
            write_file(path, p.written());
            const ModelSource source(path);
            const Config c = checkpoint_config(source).value;
            Model g(packed ? Table(cpu_packed_ops()) : Table(cpu_ops<float>()));
            Plan plan = {RunMode::infer, 1, 1};
            if (packed) plan.stored = checkpoint_stored(source, c).value;
            REQUIRE(g.allocate(c, plan).ok());
            const Status s = checkpoint_weights(source, g);
            CHECK(s.code == Exit::input);
            CHECK_MESSAGE(contains(s.message, "tensor \"blk.1.ffn_down.weight\": expected finite numbers"), s.message);
        }
}

TEST_CASE("gguf model: a vector in blocks is refused") {
    Config c = load(FAMILIES + "llama").g->c;
    c.L = 1, c.C = c.F = 32, c.NH = c.NKV = 2, c.HS = c.rope_dims = 16;
    Loaded m;
    REQUIRE(m.g->allocate(c, {RunMode::infer, 1, 1}).ok());
    const std::string path = temporary_directory() + "/a.gguf";
    REQUIRE(save(*m.g, "f32", path).ok());
    Parts p = parts_of(path);
    p.tensor("output_norm.weight") = source("output_norm.weight", BlockType::q8_0, {32}, std::string(34, 1));
    write_file(path, p.written());
    const Status s = checkpoint_config(path).status;
    CHECK(s.code == Exit::input);
    CHECK_MESSAGE(contains(s.message, "expected a vector as F32, F16 or BF16, found Q8_0"), s.message);
}

TEST_CASE("gguf model: files that are no model") {
    Loaded m = load(FAMILIES + "llama3_tied");
    const std::string path = temporary_directory() + "/a.gguf";
    REQUIRE(save(*m.g, "f32", path).ok());
    const Parts good = parts_of(path);
    REQUIRE(checkpoint_config(path).ok());
    auto integer = [](const char* key, int64_t v) { return [=](Parts& p) { p[key] = GgufValue::integer(v); }; };
    auto number = [](const char* key, float v) { return [=](Parts& p) { p[key] = GgufValue::number(v); }; };
    auto text = [](const char* key, const char* v) { return [=](Parts& p) { p[key] = GgufValue::text(v); }; };
    auto without = [](const std::string& name) {
        return [=](Parts& p) {
            std::erase_if(p.keys, [&](auto& row) { return row.first == name; });
            std::erase_if(p.tensors, [&](auto& t) { return t.name == name; });
        };
    };
    auto turned = [](Parts& p) {
        std::reverse(p.tensor("blk.0.ffn_up.weight").shape.begin(), p.tensor("blk.0.ffn_up.weight").shape.end());
    };
    struct Case {
        std::function<void(Parts&)> change;
        const char* message;
    };
    const Case cases[] = {
        {text("general.architecture", "clip"), "general.architecture: expected gpt2, llama, "},
        {text("general.architecture", "mamba"), "\"mamba\": flatgpt lacks state spaces"},
        {without("general.architecture"), "general.architecture: expected a string, found no such key"},
        {integer("split.count", 3), "one of 3 files"},
        {without("token_embd.weight"), "tensor \"token_embd.weight\" (vocabulary, channels): not found"},
        {without("llama.block_count"), "llama.block_count"},
        {integer("llama.block_count", 1 << 30), "llama.block_count: expected an integer from 1 to 1024"},
        {integer("llama.block_count", 1000), "tensor \"blk.2.attn_norm.weight\""},
        {integer("llama.embedding_length", 65536), "expected shape (64, 65536), found (64, 16)"},
        {integer("llama.feed_forward_length", 77), "expected shape (77, "},
        {integer("llama.attention.head_count", 0), "llama.attention.head_count: expected an integer from 1"},
        {integer("llama.attention.head_count_kv", 3), "heads"},
        {integer("llama.attention.value_length", 5), "llama.attention.value_length"},
        {integer("llama.rope.dimension_count", 2), "expected the head size 4, found 2"},
        {number("llama.attention.layer_norm_rms_epsilon", -1), "layer_norm_rms_epsilon"},
        {text("llama.rope.scaling.type", "longrope"), "expected none, linear or yarn, found \"longrope\""},
        {without("blk.1.attn_q.weight"), "tensor \"blk.1.attn_q.weight\""},
        {turned, "tensor \"blk.0.ffn_up.weight\": expected shape"},
        {[](Parts& p) { p.tensors.push_back(source("blk.0.ffn_gate_inp.weight", BlockType::f32, {1}, "1234")); },
         "tensor \"blk.0.ffn_gate_inp.weight\" (1) is no part of this model"},
        {[](Parts& p) { p.tensors.push_back(source("rope_factors_long.weight", BlockType::f32, {1}, "1234")); },
         "has no LongRoPE"},
        {[](Parts& p) { p.tensor("rope_freqs.weight") = source("rope_freqs.weight", BlockType::f32, {1}, "1234"); },
         "rope_freqs.weight: expected 2 numbers"},
        {[](Parts& p) {
             const float odd[] = {7, 3};
             p.tensor("rope_freqs.weight") =
                 source("rope_freqs.weight", BlockType::f32, {2}, {reinterpret_cast<const char*>(odd), 8});
         },
         "expected Llama 3's divisors"},
    };
    for (const Case& c : cases) {
        CAPTURE(c.message);
        Parts p = good;
        c.change(p);
        write_file(path, p.written());
        const Result<Config> r = checkpoint_config(path);
        CHECK(r.status.code == Exit::input);
        CHECK_MESSAGE(contains(r.status.message, c.message), r.status.message);
        CHECK(checkpoint_find(path, nullptr).status.code == Exit::input);
    }
    // A file that has become shorter since it was opened.
    write_file(path, good.written());
    const Result<GgufFile> f = GgufFile::open(path);
    REQUIRE(f.ok());
    std::filesystem::resize_file(path, 5000);
    CHECK(gguf_weights(f.value, *m.g).code == Exit::input);
}

TEST_CASE("convert: a directory to GGUF and back, and as MODEL of other commands") {
    const std::string dir = temporary_directory(), from = "test/golden/checkpoint_1", file = dir + "/a.gguf";
    auto run = [](const std::vector<std::string>& args, int exit_code, const std::string& message) {
        const ProcessResult r = run_flatgpt(args);
        CHECK(r.exit_code == exit_code);
        CHECK_MESSAGE(contains(r.err, message), r.err);
        return r.out;
    };
    run({"convert", from, file}, 0, "wrote " + file);
    run({"convert", file, dir + "/back"}, 0, "wrote");
    const std::vector<float> weights = load(from).weights();
    CHECK(load(file).weights() == weights);
    CHECK(load(dir + "/back").weights() == weights);
    CHECK(checkpoint_config(dir + "/back").value == checkpoint_config(from).value);
    const std::vector<std::string> options = {"--prompt", "ab", "--tokens", "8", "--seed", "3"};
    std::string texts[2];
    for (int i : {0, 1}) {
        std::vector<std::string> args = {"sample", i ? file : from};
        args.insert(args.end(), options.begin(), options.end());
        texts[i] = run(args, 0, "");
    }
    CHECK(texts[0] == texts[1]);
    for (const std::string family : {"olmo2", "olmo3", "mixtral", "qwen2_moe", "qwen3_moe", "olmoe"}) {    // kept
        run({"convert", FAMILIES + family, dir + "/" + family + ".gguf"}, 0, "wrote");
        run({"convert", dir + "/" + family + ".gguf", dir + "/" + family}, 0, "wrote");
        CHECK(checkpoint_config(dir + "/" + family).value == checkpoint_config(FAMILIES + family).value);
        CHECK(!contains(read_file(dir + "/" + family + "/config.json"), "flatgpt"));
    }
    // The file names token 10 as another end besides EOS; conversion keeps it.
    const std::string named = dir + "/named.gguf";
    run({"convert", "test/golden/gguf/tiny_llama.gguf", named}, 0, "wrote");
    const Result<GgufFile> again = GgufFile::open(named);
    const GgufValue* eot = again.value.metadata().find("tokenizer.ggml.eot_token_id");
    CHECK((eot && equal(*eot, GgufValue::integer(10))));
    run({"convert", named, dir + "/named"}, 0, "wrote");
    CHECK(nlohmann::json::parse(read_file(dir + "/named/generation_config.json"))["eos_token_id"] ==
          nlohmann::json({2, 10}));
    // The first bytes say what a file is, not its name.
    std::filesystem::rename(file, dir + "/model");
    const std::string model = dir + "/model", text = dir + "/text", tokens = dir + "/tokens";
    CHECK(contains(run({"info", model}, 0, ""), "GGUF model"));
    run({"convert", model, dir + "/again"}, 0, "wrote");
    CHECK(load(dir + "/again").weights() == weights);
    run({"train", "--dry-run", "--model", model, "--init"}, 0, "");
    run({"train", "--dry-run", "--from", model}, 0, "");
    run({"train", "--dry-run", "--model", dir + "/none.gguf", "--init"}, 3, "none.gguf");
    write_file(text, "a text");
    write_file(dir + "/tok.json", Tokenizer::from_merges({}, Pattern::gpt2, {"<|endoftext|>"}).to_json());
    run({"tokenize", "--tokenizer", dir + "/tok.json", "--out", tokens, text}, 0, "");
    run({"eval", model, "--data", tokens + "*.bin", "--seq-len", "4"}, 3,
        "made with another tokenizer (257 tokens) than " + model +
            " (259 tokens); tokenize the text again with that one");
    run({"convert", from, dir + "/back"}, 2, "already there");
    run({"convert", from, dir + "/other", "--type", "q8_0"}, 2, "ending .gguf");
    run({"convert", from, file, "--type", "q9"}, 2, "--type");
    run({"convert", FAMILIES + "phi3", dir + "/p.gguf"}, 0, "llama.cpp does not use this model's window of 6 tokens");
    run({"convert", FAMILIES + "bloom", dir + "/b.gguf"}, 2, "this model's is bloom");
    run({"convert", from, dir + "/none/b.gguf"}, 4, "cannot be written");
    const std::string half = dir + "/half.gguf";
    write_file(half, read_file(file).substr(0, 3000));
    for (const char* command : {"sample", "info", "eval"}) run({command, half}, command[0] == 'e' ? 2 : 3, "");
    run({"convert", half, dir + "/c.gguf"}, 3, half);
    CHECK(!std::filesystem::exists(dir + "/c.gguf"));
}

// test_packed_weights.cpp - models with packed weights against plain ones; when weights are packed.
#include "layers/cpu.h"
#include "layers/quant/quant.h"
#include "model/packed_weights.h"

#include <fcntl.h>
#include <filesystem>
#include <sys/stat.h>
#include <unistd.h>

#include "files/json.h"
#include "gguf_parts.h"
#include "toy_model.h"
#include "toy_run.h"

namespace {
Config toy_config() {
    Config c;
    c.T = 24, c.V = 70, c.L = 2, c.NH = 4, c.NKV = 2, c.HS = 8, c.C = 32, c.F = 64;
    return c;
}
std::vector<float> logits_of(Model& g, const std::vector<int>& tok, int B, int S) {
    std::vector<float> logits(size_t(B) * size_t(g.c.V));
    g.batch.upload(tok.data(), nullptr, B, S);
    g.forward();
    compute_logits(g, whole_batch(g), logits.data());
    return logits;
}
}    // namespace

TEST_CASE("packed weights: a model of each kind has the logits of its plain self") {
    constexpr int B = 2, S = 9;
    int fused = 0;
    for (const Kind& kind : kind_configs(toy_config())) {
        CAPTURE(std::string(kind.name));
        const std::vector<int> tok = toy_tokens(B * S, kind.c.V, 1);
        for (BlockType format : {BlockType::f32, BlockType::f16, BlockType::q8_0}) {
            CAPTURE(std::string(block_format(format).name));
            Plan plan{RunMode::infer, B, S};
            Model plain(cpu_ops<float>()), packed(cpu_packed_ops());
            toy_model(plain, kind.c, plan);
            plan.stored = [&](const Tensor& t) {
                return std::vector<FormatRows>{{t.rows, t.cols % 32 ? BlockType::f16 : format}};
            };
            toy_model(packed, kind.c, plan);
            if (kind.c.up_width(0)) {    // GELU's input is stored unless fused
                CHECK(plain.a[0].fch);
                CHECK(!packed.a[0].fch == fuses_gelu(packed.op, packed.ffn(0)));
                fused += fuses_gelu(packed.op, packed.ffn(0));
            }
            for (const Tensor& t : plain.tensors) {    // plain gets the rounded weights
                std::vector<float> x(size_t(t.size()));
                packed.read(StateKind::weights, t.offset, t.size(), x.data());
                plain.write(StateKind::weights, t.offset, t.size(), x.data());
            }
            const double error = norm_error(logits_of(packed, tok, B, S), logits_of(plain, tok, B, S));
            CHECK(error < (format == BlockType::q8_0 ? 0.06 : 2e-5));
            generate_toy(packed, tok, B, S, 4, 1, [&](KvCache&, auto& cached, auto& whole) {
                CHECK(norm_error(cached, whole) < (format == BlockType::q8_0 ? 0.02 : 2e-5));
            });
        }
    }
    CHECK(fused > 0);
}

TEST_CASE("packed weights: of a GGUF file each matrix keeps its format, and the logits are the file's numbers'") {
    int files = 0;
    for (const char* type : {"f16", "bf16", "q8_0", "q4_0", "q4_1", "q5_0", "q5_1", "q4_k_m", "q6_k"}) {
        CAPTURE(std::string(type));
        Config c = load(FAMILIES + "llama").g->c;
        c.T = 16, c.V = 192, c.L = 2, c.NH = 8, c.NKV = 4, c.HS = 32, c.C = 256, c.F = 256, c.rope_dims = 32;
        Model made(cpu_ops<float>());
        REQUIRE(made.allocate(c, {RunMode::infer, 1, 1}).ok());
        made.init(1);
        const std::string path = temporary_directory() + "/a.gguf";
        REQUIRE(save(made, type, path).ok());
        Loaded plain;
        const ModelSource source(path);
        const Config found = checkpoint_config(source).take();
        REQUIRE(plain.g->allocate(found, {RunMode::infer, 1, 8}).ok());
        REQUIRE(checkpoint_weights(source, *plain.g).ok());
        Model packed(cpu_packed_ops());
        Plan plan{RunMode::infer, 1, 8};
        plan.stored = checkpoint_stored(source, found).take();
        REQUIRE(packed.allocate(found, plan).ok());
        REQUIRE(checkpoint_weights(source, packed).ok());
        for (const Tensor& t : packed.tensors) {    // equal bits
            std::vector<float> x(size_t(t.size())), y(x);
            packed.read(StateKind::weights, t.offset, t.size(), x.data());
            plain.g->read(StateKind::weights, t.offset, t.size(), y.data());
            CHECK(x == y);
        }
        const std::vector<int> tok = toy_tokens(8, c.V, 1);
        const std::vector<float> logits = logits_of(packed, tok, 1, 8);
        CHECK(norm_error(logits, logits_of(*plain.g, tok, 1, 8)) < 0.02);
        // Rows of f16 and bf16 stay in the file until a product packs them; the bits stay equal.
        const bool stays = type == std::string("f16") || type == std::string("bf16");
        for (const Tensor& t : packed.tensors) CHECK(packed.store.packed.uses_file(t.offset) == (stays && !t.vector));
        for (int call = 0; call < 9; call++) CHECK(logits_of(packed, tok, 1, 8) == logits);
        for (const Tensor& t : packed.tensors) {
            std::vector<float> x(size_t(t.size())), y(x);
            packed.read(StateKind::weights, t.offset, t.size(), x.data());
            plain.g->read(StateKind::weights, t.offset, t.size(), y.data());
            CHECK(x == y);
        }
        CHECK(packed.store.packed.bytes < 1.06 * double(std::filesystem::file_size(path)));
        files++;
    }
    CHECK(files == 9);
}

TEST_CASE("packed weights: a directory's rows stay in its files, but those that it holds transposed") {
    int stay = 0, read = 0;
    for (const char* family : {"llama", "gpt_neox", "gpt2", "qwen2_moe", "gemma3"}) {
        CAPTURE(std::string(family));
        const ModelSource source(FAMILIES + family);
        const Config c = checkpoint_config(source).take();
        Loaded plain;
        REQUIRE(plain.g->allocate(c, {RunMode::infer, 1, 8}).ok());
        REQUIRE(checkpoint_weights(source, *plain.g).ok());
        Model packed(cpu_packed_ops());
        Plan plan{RunMode::infer, 1, 8};
        plan.stored = checkpoint_stored(source, c).take();
        REQUIRE(packed.allocate(c, plan).ok());
        REQUIRE(checkpoint_weights(source, packed).ok());
        const std::vector<int> tok = toy_tokens(8, c.V, 1);
        std::vector<float> logits;
        for (int call = 0; call < 10; call++) {
            for (const Tensor& t : packed.tensors) {
                std::vector<float> x(size_t(t.size())), y(x);
                packed.read(StateKind::weights, t.offset, t.size(), x.data());
                plain.g->read(StateKind::weights, t.offset, t.size(), y.data());
                CHECK(x == y);
                if (call > 0) continue;
                const bool matrix = !t.vector && t.name != "wpe";
                CHECK(packed.store.packed.uses_file(t.offset) == (matrix && t.layout != FileLayout::transposed));
                (packed.store.packed.uses_file(t.offset) ? stay : read) += matrix;
            }
            const std::vector<float> now = logits_of(packed, tok, 1, 8);
            if (call == 0) logits = now;
            CHECK(now == logits);
        }
        CHECK(norm_error(logits, logits_of(*plain.g, tok, 1, 8)) < 0.02);
        Model other(cpu_packed_ops());    // with a format unlike the file's
        plan.stored = [](const Tensor& t) { return std::vector<FormatRows>{{t.rows, BlockType::f16}}; };
        REQUIRE(other.allocate(c, plan).ok());
        REQUIRE(checkpoint_weights(source, other).ok());
        for (const Tensor& t : other.tensors) CHECK(!other.store.packed.uses_file(t.offset));
    }
    CHECK(stay > 20);
    CHECK(read > 4);
}

TEST_CASE("packed weights: --quantize keeps a run's weights in fewer bits; a file's own are kept by default") {
    const Toy toy;
    REQUIRE(run_flatgpt(toy.args("run", {"--steps", "20"})).exit_code == 0);
    const std::string run = toy.dir + "/run";
    auto loss = [&](std::vector<std::string> more, const char* says) {
        more.insert(more.begin(), {"eval", run, "--data", toy.dir + "/val.bin", "--device", "cpu", "--json"});
        const ProcessResult r = run_flatgpt(more);
        REQUIRE_MESSAGE(r.exit_code == 0, r.err);
        const auto j = nlohmann::json::parse(r.out);
        CHECK(contains(r.err, says));
        return j.at("loss").get<double>();
    };
    const double plain = loss({}, "cpu fp32"), q8 = loss({"--quantize", "q8_0"}, "weights Q8_0");
    CHECK(std::fabs(q8 - plain) < 0.01);
    CHECK(q8 != plain);
    CHECK(std::fabs(loss({"--quantize", "q4_0"}, "weights Q4_0") - plain) < 0.1);
    REQUIRE(run_flatgpt({"convert", run, toy.dir + "/a.gguf", "--type", "q8_0"}).exit_code == 0);
    auto sampled = [&](std::vector<std::string> args, const char* says) {
        args.insert(args.begin(), "sample");
        for (const char* more : {"--prompt", "abc", "--tokens", "30", "--device", "cpu"}) args.push_back(more);
        const ProcessResult r = run_flatgpt(args);
        REQUIRE_MESSAGE(r.exit_code == 0, r.err);
        CHECK(contains(r.err, says));
        return r.out;
    };
    CHECK(sampled({toy.dir + "/a.gguf"}, "weights Q8_0") == sampled({run, "--quantize", "q8_0"}, "weights Q8_0"));
    CHECK(sampled({run}, "weights F32") != "");    // eval above packs nothing
    const ProcessResult both = run_flatgpt({"sample", run, "--quantize", "q8_0", "--dtype", "fp32"});
    CHECK(both.exit_code == 2);
    CHECK(contains(both.err, "--quantize and --dtype exclude each other"));
    CHECK(run_flatgpt({"sample", run, "--quantize", "q3"}).exit_code == 2);
}

TEST_CASE("packed weights: a file that becomes shorter while its rows are used ends the command with a message") {
    const Toy toy;
    REQUIRE(run_flatgpt(toy.args("run", {"--steps", "2"})).exit_code == 0);
    const std::string model = toy.dir + "/a.gguf", text = toy.dir + "/text";
    REQUIRE(run_flatgpt({"convert", toy.dir + "/run", model, "--type", "bf16"}).exit_code == 0);
    REQUIRE(mkfifo(text.c_str(), 0600) == 0);
    Process p({flatgpt_binary(), "eval", model, "--text", text, "--device", "cpu"});
    int f = -1;    // eval opens its text after the model
    while ((f = open(text.c_str(), O_WRONLY | O_NONBLOCK)) < 0 && p.running()) usleep(1000);
    REQUIRE(f >= 0);
    std::filesystem::resize_file(model, 100);
    CHECK(write(f, "abc abc\n", 8) == 8);
    close(f);
    const ProcessResult r = p.wait();
    CHECK(r.exit_code == 4);
    CHECK_MESSAGE(contains(r.err, "the model's file became shorter"), r.err);
}

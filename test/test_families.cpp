// test_families.cpp - each family against transformers: tiny models with logits, losses, gradients
// and greedy text (dev/golden_families.py), read, computed and written back.
#include <filesystem>
#include <set>

#include "files/json.h"
#include "test.h"
#include "family_goldens.h"

namespace fs = std::filesystem;

namespace {
// Calls visit(golden) for each model in test/golden/families.
template <class Visit> void each_golden(Visit visit) {
    std::set<std::string> names, types;
    cpu_set_threads(1);    // too small for more threads
    for (auto& entry : fs::directory_iterator("test/golden/families")) names.insert(entry.path().filename());
    for (const std::string& name : names) {
        CAPTURE(name);
        const Golden golden("families/" + name);
        types.insert(golden.c.family->type);
        visit(golden);
    }
    cpu_set_threads(0);
    // test_encoders.cpp and test_encoder_decoder.cpp have the others.
    CHECK(types.size() + encoder_families().size() + encoder_decoder_families().size() == families().size());
}
struct Tolerance {    // logits, gradients: relative to the largest
    double logits, gradients, loss;
};
template <class F> void each_table(F f) {
    // the goldens contain float32's own rounding
    f([] { return std::make_unique<Model>(reference_ops()); }, Tolerance{4e-6, 1.6e-5, 2e-6});
    f([] { return std::make_unique<Model>(cpu_ops<float>()); }, Tolerance{1e-5, 4e-5, 2e-6});
    // Rounding a product's inputs to bf16 costs 0.42 * 2^-8 in the root mean square, which the
    // goldens' large weights multiply. Errors seen: 0.073, 0.053 (an expert's 0.076), 0.004.
    f([] { return std::make_unique<Model>(cpu_ops<bf16>()); }, Tolerance{0.1, 0.06, 0.006});
}
}    // namespace

TEST_CASE("families: logits, whole and by the cache, and greedy text are those of transformers") {
    each_golden([](const Golden& golden) {
        each_table([&](auto model, const Tolerance& tolerance) {
            const auto g = model();
            golden.load(*g, {RunMode::infer, Golden::B, Golden::S});
            golden.check_logits(*g, tolerance.logits);
            if (g->op.parameter != Element::bf16) golden.check_greedy(*g);    // bf16 rounding changes near ties
        });
    });
}

TEST_CASE("families: losses and gradients are those of transformers") {
    int with_gradients = 0;
    each_golden([&](const Golden& golden) {
        bool gradients = false;
        each_table([&](auto model, const Tolerance& tolerance) {
            gradients = golden.check_training(*model(), tolerance.loss, tolerance.gradients);
        });
        with_gradients += gradients;
    });
    CHECK(with_gradients == 13);
}

TEST_CASE("families: models of kinds that no family has compute what PyTorch does") {
    cpu_set_threads(1);
    for (auto& entry : fs::directory_iterator("test/golden/kinds")) {
        CAPTURE(entry.path().string());
        const Golden golden("kinds/" + entry.path().filename().string());
        each_table([&](auto model, const Tolerance& tolerance) {
            golden.check_kind(*model(), *model(), tolerance.logits, tolerance.gradients, tolerance.loss);
        });
    }
    cpu_set_threads(0);
}

TEST_CASE("families: what is written has the family's names and shapes, and the same bits; config.json reads back") {
    each_golden([](const Golden& golden) {
        const nlohmann::json written = golden.check_written({RunMode::train, 1, 4});
        CHECK(written["model_type"] == golden.c.family->type);    // no "flatgpt-": the class expresses all
        const char* const architecture = golden.c.family->architecture;
        CHECK(written["architectures"] == (architecture ? nlohmann::json{architecture} : nlohmann::json::array()));
    });
}

// Writes weights to two files with an index; `prefix` replaces "model.", `more` names more tensors.
static void divide(const Arrays& arrays, std::map<std::string, std::vector<int64_t>> shapes, const std::string& prefix,
                   const std::vector<const char*>& more, const std::string& dir) {
    std::vector<TensorSource> files[2];
    nlohmann::json index;
    auto put = [&](const std::string& name, const std::vector<int64_t>& shape, const std::vector<float>& x) {
        const size_t i = name.size() % 2;
        files[i].push_back({name, TensorType::f32, shape, [&x](int64_t first, int64_t count, float* out) {
                                std::copy_n(x.data() + first, count, out);
                                return Status{};
                            }});
        index["weight_map"][name] = "part" + std::to_string(i);
    };
    for (const auto& [name, x] : arrays)
        put(name.starts_with("model.") ? prefix + name.substr(strlen("model.")) : name, shapes[name], x);
    const std::vector<float> pixel = {1};
    for (const char* name : more) put(name, {1}, pixel);
    for (size_t i : {0, 1}) {
        std::string bytes;
        REQUIRE(safetensors_write(files[i], [&](const void* data, int64_t n) -> Status {
                    bytes.append(static_cast<const char*>(data), size_t(n));
                    return {};
                }).ok());
        write_file(dir + "/part" + std::to_string(i), bytes);
    }
    write_file(dir + "/model.safetensors.index.json", index.dump());
}

TEST_CASE("families: in two files with an index; Gemma 3 as a part of a model of text and pictures") {
    for (const std::string name : {"gemma3", "mixtral", "qwen2_moe"}) {
        const std::string golden = "test/golden/families/" + name, dir = temporary_directory();
        const bool gemma = name == "gemma3";
        std::map<std::string, std::vector<int64_t>> shapes;
        const Arrays arrays = arrays_of(golden + "/model.safetensors", &shapes);
        const nlohmann::json text = nlohmann::json::parse(read_file(golden + "/config.json"));
        const nlohmann::json whole = {{"model_type", "gemma3"}, {"text_config", text}};
        write_file(dir + "/config.json", (gemma ? whole : text).dump());
        const Config c = checkpoint_config(golden).value;
        CHECK(checkpoint_config(dir).value == c);
        for (const char* prefix : {"language_model.model.", "model.language_model."}) {
            if (gemma)
                divide(arrays, shapes, prefix, {"vision_tower.embeddings.weight", "model.multi_modal_projector.norm"},
                       dir);
            else divide(arrays, shapes, "model.", {}, dir);
            Model g(cpu_ops<float>());
            REQUIRE(g.allocate(c, {RunMode::infer, 1, 4}).ok());
            const Status s = checkpoint_weights(dir, g);
            REQUIRE_MESSAGE(s.ok(), s.message);
            CHECK(in_files(g, StateKind::weights) == arrays);
        }
    }
}

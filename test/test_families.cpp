// test_families.cpp - each family as transformers has it: tiny models with their logits, losses, gradients and greedy
// text (dev/golden_families.py), read, computed and written back.
#include <filesystem>
#include <map>
#include <set>

#include "checkpoint/checkpoint.h"
#include "files/json.h"
#include "model/rope.h"
#include "tensors.h"
#include "test.h"
#include "toy_model.h"

namespace fs = std::filesystem;

namespace {
typedef std::map<std::string, std::vector<float>> Arrays;

Arrays arrays_of(const std::string& path, std::map<std::string, std::vector<int64_t>>* shapes = nullptr) {
    Result<SafetensorsFile> file = SafetensorsFile::open(path);
    REQUIRE_MESSAGE(file.ok(), file.status.message);
    Arrays all;
    for (const TensorEntry& e : file.value.entries()) {
        std::vector<float>& x = all[e.name];
        x.resize(size_t((e.end - e.begin) / SafetensorsFile::element_bytes(e.type)));
        REQUIRE(read_tensor(file.value, e, 0, int64_t(x.size()), x.data()).ok());
        if (shapes) (*shapes)[e.name] = e.shape;
    }
    return all;
}

// The model's own numbers under the names, and in the layout, of its family's files.
Arrays in_files(const Model& g, Part part) {
    std::vector<TensorSource> sources;
    checkpoint_tensors(g, part, "", &sources);
    Arrays all;
    for (const TensorSource& s : sources) {
        int64_t n = 1;
        for (int64_t d : s.shape) n *= d;
        std::vector<float>& x = all[s.name];
        x.resize(size_t(n));
        for (int64_t first = 0; first < n; first += 7) s.fill(first, std::min<int64_t>(7, n - first), x.data() + first);
    }
    return all;
}

constexpr int B = 2, S = 20;

struct Golden {
    std::string dir;
    Config c;
    Arrays expected;
    std::vector<int> tokens(const char* name = "tokens") const {
        const std::vector<float>& x = expected.at(name);
        return std::vector<int>(x.begin(), x.end());
    }
};
// visit(each of test/golden/families)
template <class Visit> void each_golden(Visit visit) {
    std::set<std::string> dirs, types;
    cpu_set_threads(1);    // more have nothing to divide
    for (auto& entry : fs::directory_iterator("test/golden/families")) dirs.insert(entry.path());
    for (const std::string& dir : dirs) {
        CAPTURE(dir);
        const Result<Config> c = checkpoint_config(dir);
        REQUIRE_MESSAGE(c.ok(), c.status.message);
        types.insert(c.value.family->type);
        visit(Golden{dir, c.value, arrays_of(dir + "/expected.safetensors")});
    }
    cpu_set_threads(0);
    CHECK(types.size() == families().size());    // every family has one
}
void load(Model& g, const Golden& golden, const Plan& plan) {
    const Status allocated = g.allocate(golden.c, plan);
    REQUIRE_MESSAGE(allocated.ok(), allocated.message);
    const Status loaded = checkpoint_weights(golden.dir, g);
    REQUIRE_MESSAGE(loaded.ok(), loaded.message);
}
template <class F> void each_table(F f) {
    f([] { return std::make_unique<Model>(reference_ops()); }, 4e-6);    // float's own rounding is in the goldens
    f([] { return std::make_unique<Model>(cpu_ops<float>()); }, 1e-5);
}

void check_logits(Model& g, const Golden& golden, double tolerance) {
    load(g, golden, {Use::infer, B, S});
    const std::vector<float>& logits = golden.expected.at("logits");
    const int V = golden.c.V;
    int length = 0;
    double worst[2] = {};
    generate_toy(g, golden.tokens(), B, S, 1, 1, [&](auto&, const auto& cached, const auto& whole) {
        std::vector<float> there;
        for (int b = 0; b < B; b++)
            there.insert(there.end(), &logits[size_t((b * S + length) * V)], &logits[size_t((b * S + length) * V)] + V);
        const std::vector<float>* both[] = {&cached, &whole};
        for (int i : {0, 1}) worst[i] = std::max(worst[i], relative_error(both[i]->data(), there.data(), B * V));
        length++;
    });
    CHECK(length == S);
    CHECK(worst[0] < tolerance);
    CHECK(worst[1] < tolerance);
    // The likeliest tokens, one after the other.
    const std::vector<int> greedy = golden.tokens("greedy");
    Cache cache;
    REQUIRE(g.cache_allocate(cache, 1, golden.c.T).ok());
    std::vector<int> found(greedy.begin(), greedy.begin() + 4);
    g.extend(cache, found.data(), 4);
    for (std::vector<float> last(static_cast<size_t>(V)); found.size() < greedy.size();) {
        g.logits(last.data());
        found.push_back(int(std::max_element(last.begin(), last.end()) - last.begin()));
        g.extend(cache, &found.back(), 1);
    }
    CHECK(found == greedy);
}

void check_training(Model& g, const Golden& golden, double tolerance) {
    load(g, golden, {Use::train, B, S - 1});
    std::vector<int> in, out;
    const std::vector<int> tokens = golden.tokens();
    for (int b = 0; b < B; b++) {
        in.insert(in.end(), tokens.begin() + b * S, tokens.begin() + (b + 1) * S - 1);
        out.insert(out.end(), tokens.begin() + b * S + 1, tokens.begin() + (b + 1) * S);
    }
    CHECK(train_pass(g, in, out, B, S - 1) == doctest::Approx(double(golden.expected.at("loss")[0])).epsilon(2e-6));
    const Arrays gradients = in_files(g, Part::gradients);
    size_t compared = 0;
    for (const auto& [name, theirs] : golden.expected)
        if (name.starts_with("grad.")) {
            CAPTURE(name);
            const auto ours = gradients.find(name.substr(5));
            REQUIRE(ours != gradients.end());
            REQUIRE(ours->second.size() == theirs.size());
            CHECK(relative_error(ours->second.data(), theirs.data(), int64_t(theirs.size())) < tolerance);
            compared++;
        }
    CHECK((compared == 0 || compared == gradients.size()));
}
}    // namespace

TEST_CASE("families: logits, whole and by the cache, and greedy text are those of transformers") {
    each_golden([](const Golden& golden) {
        each_table([&](auto model, double tolerance) { check_logits(*model(), golden, tolerance); });
    });
}

TEST_CASE("families: losses and gradients are those of transformers") {
    int with_gradients = 0;
    each_golden([&](const Golden& golden) {
        each_table([&](auto model, double tolerance) { check_training(*model(), golden, 4 * tolerance); });
        with_gradients += std::any_of(golden.expected.begin(), golden.expected.end(),
                                      [](auto& x) { return x.first.starts_with("grad."); });
    });
    CHECK(with_gradients == 8);
}

TEST_CASE("families: what is written has the family's names and shapes, and the same bits; config.json reads back") {
    each_golden([](const Golden& golden) {
        Model g(cpu_ops<float>());
        load(g, golden, {Use::train, 1, 4});
        const std::string run = temporary_directory();
        REQUIRE(checkpoint_write(run, g, Tokenizer(), {}).ok());
        const std::string dir = checkpoint_list(run).back();
        std::map<std::string, std::vector<int64_t>> shapes, expected_shapes;
        CHECK(arrays_of(dir + "/model.safetensors", &shapes) ==
              arrays_of(golden.dir + "/model.safetensors", &expected_shapes));
        CHECK(shapes == expected_shapes);
        CHECK(in_files(g, Part::weights) == arrays_of(dir + "/model.safetensors"));
        CHECK(checkpoint_config(dir).value == golden.c);
        const nlohmann::json written = nlohmann::json::parse(read_file(dir + "/config.json"));
        CHECK(written["model_type"] == golden.c.family->type);    // its class can say all of it
        CHECK(written["architectures"] == nlohmann::json{golden.c.family->architecture});
    });
}

TEST_CASE("families: Gemma 3 as a part of a model of text and pictures, in two files with an index") {
    const std::string golden = "test/golden/families/gemma3", dir = temporary_directory();
    std::map<std::string, std::vector<int64_t>> shapes;
    const Arrays arrays = arrays_of(golden + "/model.safetensors", &shapes);
    nlohmann::json text = nlohmann::json::parse(read_file(golden + "/config.json")), index;
    write_file(dir + "/config.json", nlohmann::json{{"model_type", "gemma3"}, {"text_config", text}}.dump());
    const Config c = checkpoint_config(golden).value;
    CHECK(checkpoint_config(dir).value == c);
    for (const char* prefix : {"language_model.model.", "model.language_model."}) {
        std::vector<TensorSource> files[2];
        auto put = [&](const std::string& name, const std::vector<int64_t>& shape, const std::vector<float>& x) {
            const size_t i = name.size() % 2;
            files[i].push_back({name, TensorType::f32, shape, [&x](int64_t first, int64_t count, float* out) {
                                    std::copy_n(x.data() + first, count, out);
                                }});
            index["weight_map"][name] = "part" + std::to_string(i);
        };
        index = {};
        for (const auto& [name, x] : arrays) put(prefix + name.substr(strlen("model.")), shapes[name], x);
        const std::vector<float> pixel = {1};
        put("vision_tower.embeddings.weight", {1}, pixel), put("model.multi_modal_projector.norm", {1}, pixel);
        for (size_t i : {0, 1}) {
            std::string bytes;
            REQUIRE(safetensors_write(files[i], [&](const void* data, int64_t n) -> Status {
                        bytes.append(static_cast<const char*>(data), size_t(n));
                        return {};
                    }).ok());
            write_file(dir + "/part" + std::to_string(i), bytes);
        }
        write_file(dir + "/model.safetensors.index.json", index.dump());
        Model g(cpu_ops<float>());
        REQUIRE(g.allocate(c, {Use::infer, 1, 4}).ok());
        const Status s = checkpoint_weights(dir, g);
        REQUIRE_MESSAGE(s.ok(), s.message);
        CHECK(in_files(g, Part::weights) == arrays);
    }
}

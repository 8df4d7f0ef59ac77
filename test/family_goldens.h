// family_goldens.h - tiny models of each family with transformers' results
// (dev/golden_families.py), and checks of ours against them. Include it after doctest.
#pragma once
#include <map>

#include "checkpoint/checkpoint.h"
#include "files/json.h"
#include "tensors.h"
#include "toy_model.h"

typedef std::map<std::string, std::vector<float>> Arrays;

inline Arrays arrays_of(const std::string& path, std::map<std::string, std::vector<int64_t>>* shapes = nullptr) {
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

// A model's weights or gradients (`part`) under the names and in the layout of its family's files.
inline Arrays in_files(const Model& g, StateKind part) {
    const std::vector<TensorSource> sources = checkpoint_tensors(g, {{part, "", g.tensors}});
    Arrays all;
    for (const TensorSource& s : sources) {
        int64_t n = 1;
        for (int64_t d : s.shape) n *= d;
        std::vector<float>& x = all[s.name];
        x.resize(size_t(n));
        for (int64_t first = 0; first < n; first += 7)
            REQUIRE(s.fill(first, std::min<int64_t>(7, n - first), x.data() + first).ok());
    }
    return all;
}

struct Golden {
    static constexpr int B = 2, S = 20;
    std::string dir;
    Config c;
    Arrays expected;
    explicit Golden(const std::string& name) : dir("test/golden/" + name) {    // "families/llama", "kinds/t5"
        const Result<Config> read = checkpoint_config(dir);
        REQUIRE_MESSAGE(read.ok(), read.status.message);
        c = read.value, expected = arrays_of(dir + "/expected.safetensors");
    }
    std::vector<int> tokens(const char* name = "tokens") const {
        const std::vector<float>& x = expected.at(name);
        return std::vector<int>(x.begin(), x.end());
    }
    void load(Model& g, const Plan& plan) const {
        const Status allocated = g.allocate(c, plan);
        REQUIRE_MESSAGE(allocated.ok(), allocated.message);
        const Status loaded = checkpoint_weights(dir, g);
        REQUIRE_MESSAGE(loaded.ok(), loaded.message);
    }
    // Writes the model and checks that names, shapes, bits and settings are the golden's. Returns
    // the written config.json.
    nlohmann::json check_written(const Plan& plan) const {
        Model g(cpu_ops<float>());
        load(g, plan);
        const std::string run = temporary_directory();
        REQUIRE(checkpoint_write(run, g, Tokenizer(), {}).ok());
        const std::string written = checkpoint_list(run).back();
        std::map<std::string, std::vector<int64_t>> shapes, expected_shapes;
        const std::string theirs = checkpoint_tensor_files(dir, "model").value.at(0);
        const Arrays arrays = arrays_of(written + "/model.safetensors", &shapes);
        Arrays expected_arrays = arrays_of(theirs, &expected_shapes);
        // With relative keys, transformers' models do not read their table of positions.
        const auto unread = [&](const auto& t) {
            return c.position == Position::relative_key && t.first.ends_with(".position_embeddings.weight");
        };
        std::erase_if(expected_arrays, unread);
        std::erase_if(expected_shapes, unread);
        CHECK(arrays == expected_arrays);
        CHECK(shapes == expected_shapes);
        CHECK(in_files(g, StateKind::weights) == arrays);
        CHECK(checkpoint_config(written).value == c);
        return nlohmann::json::parse(read_file(written + "/config.json"));
    }
    // Checks logits of whole passes and of cached decoding after every `every`-th position.
    void check_logits(Model& g, double tolerance, int every = 1) const {
        const std::vector<float>& logits = expected.at("logits");
        int length = 0;
        generate_toy(g, tokens(), B, S, every, every, [&](const KvCache& cache, const auto& cached, const auto& whole) {
            length = cache.table[0].pos;
            std::vector<float> there;
            for (int b = 0; b < B; b++) {
                const float* row = &logits[size_t((b * S + length - 1) * c.V)];
                there.insert(there.end(), row, row + c.V);
            }
            CAPTURE(length);
            CHECK(relative_error(cached.data(), there.data(), B * c.V) < tolerance);
            CHECK(relative_error(whole.data(), there.data(), B * c.V) < tolerance);
        });
        CHECK(length == S);
    }
    // Greedy decoding after the golden's first 4 tokens gives the rest of them.
    void check_greedy(Model& g) const {
        const std::vector<int> greedy = tokens("greedy");
        KvCache cache;
        REQUIRE(allocate_cache(g, cache, 1, c.T).ok());
        std::vector<int> found(greedy.begin(), greedy.begin() + 4);
        PendingHead head = extend(g, cache, found.data(), 4);
        for (std::vector<float> last(static_cast<size_t>(c.V)); found.size() < greedy.size();) {
            compute_logits(g, head, last.data());
            found.push_back(int(std::max_element(last.begin(), last.end()) - last.begin()));
            head = extend(g, cache, &found.back(), 1);
        }
        CHECK(found == greedy);
    }
    // Checks the loss and, where the golden has them, the gradients of each tensor; returns whether
    // it has them. The first `prefix` positions are visible to all and have no targets.
    bool check_training(Model& g, double loss_tolerance, double tolerance, int prefix = 0) const {
        load(g, {RunMode::train, B, S - 1});
        std::vector<int> in, out;
        Spans spans;
        const std::vector<int> all = tokens();
        for (int b = 0; b < B; b++) {
            in.insert(in.end(), all.begin() + b * S, all.begin() + (b + 1) * S - 1);
            out.insert(out.end(), all.begin() + b * S + 1, all.begin() + (b + 1) * S);
            for (int s = 0; s + 1 < prefix; s++) out[size_t(b * (S - 1) + s)] = -1;
            spans.add({Text{0, prefix}}, S - 1, c.mask_kind);
        }
        const double loss = double(expected.at("loss")[0]);
        const double found = train_pass(g, in, out, B, S - 1, prefix ? &spans : nullptr);
        CHECK(found == doctest::Approx(loss).epsilon(loss_tolerance));
        const Arrays gradients = in_files(g, StateKind::gradients);
        size_t compared = 0;
        for (const auto& [name, theirs] : expected)
            if (name.starts_with("grad.")) {
                CAPTURE(name);
                const auto ours = gradients.find(name.substr(5));
                REQUIRE(ours != gradients.end());
                REQUIRE(ours->second.size() == theirs.size());
                // k_proj.bias: adding one vector to all keys would not change softmax but for the
                // rotation, so the gradient is a small difference of large sums. experts: few rows
                // average out few roundings. _lambdas: sums of terms of both signs.
                const bool few = name.find(".experts.") != name.npos || name.ends_with("_lambdas");
                const double rest = name.ends_with("k_proj.bias") ? 2 : few ? 1.5 : 1;
                CHECK(relative_error(ours->second.data(), theirs.data(), int64_t(theirs.size())) < rest * tolerance);
                compared++;
            }
        CHECK((compared == 0 || compared == gradients.size()));
        return compared > 0;
    }
    // Checks a kind of model (dev/golden_kinds.py); text and training come empty. See check_logits.
    void check_kind(Model& text, Model& training, double logits, double gradients, double loss, int every = 1) const {
        load(text, {RunMode::infer, B, S});
        if (c.mask_kind == MaskKind::causal) check_logits(text, logits, every);
        // Not in bf16, whose rounding decides near ties differently. With a prefix mask, the prefix
        // is the greedy prompt's 4 tokens.
        if (c.mask_kind != MaskKind::all && text.op.parameter != Element::bf16) check_greedy(text);
        CHECK(check_training(training, loss, gradients, c.mask_kind == MaskKind::prefix ? 4 : 0));
    }
};

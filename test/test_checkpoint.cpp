// test_checkpoint.cpp - checkpoints read back bit for bit; errors name damaged and foreign files;
// weights of Hugging Face load. Failing writes are in test_crash.cpp.
#include "toy_checkpoint.h"
#include "base/philox.h"

#include <fstream>
#include <set>
#include <sys/resource.h>

#include "files/json.h"

#include "test.h"

namespace fs = std::filesystem;

namespace {
std::string flipped(std::string bytes, size_t bit) {
    bytes[bit / 8] = char(bytes[bit / 8] ^ 1 << bit % 8);
    return bytes;
}
// Writes tensors whose element i is i.
void write_tensors(const std::string& path, const std::vector<std::pair<std::string, std::vector<int64_t>>>& tensors,
                   TensorType type = TensorType::f32) {
    std::vector<TensorSource> sources;
    for (auto& [name, shape] : tensors)
        sources.push_back({name, type, shape, [](int64_t first, int64_t count, float* out) {
                               for (int64_t i = 0; i < count; i++) out[i] = float(first + i);
                               return Status{};
                           }});
    std::string file;
    REQUIRE(safetensors_write(sources, [&](const void* data, int64_t bytes) -> Status {
                file.append(static_cast<const char*>(data), size_t(bytes));
                return {};
            }).ok());
    write_file(path, file);
}
std::vector<std::pair<std::string, std::vector<int64_t>>> toy_tensors(bool prefix) {
    ToyCheckpoint toy(1);
    const std::vector<TensorSource> sources = checkpoint_tensors(toy.g, {weights_state(toy.g)});
    std::vector<std::pair<std::string, std::vector<int64_t>>> tensors;
    for (auto& s : sources) tensors.push_back({prefix ? s.name : s.name.substr(strlen("transformer.")), s.shape});
    return tensors;
}
}    // namespace

TEST_CASE("checkpoint: everything reads back bit for bit") {
    std::string run = temporary_directory(), dir = write_toy(run, 500, 7);
    CHECK(dir == run + "/step_00000500");
    CHECK(checkpoint_verify(dir).ok());
    CHECK(checkpoint_find(run, nullptr).value.path == dir);
    CHECK(checkpoint_find(dir, nullptr).value.path == dir);
    ToyCheckpoint wrote(7), read(8);
    read.poison();
    CHECK(checkpoint_config(dir).value == wrote.g.c);
    CHECK(checkpoint_weights(dir, read.g).ok());
    CHECK(checkpoint_optimizer(dir, read.g).ok());
    CHECK(same_bits(read.params, wrote.params));    // the padded rows of wte are zeros again
    CHECK(same_bits(read.m, wrote.m));
    CHECK(same_bits(read.v, wrote.v));
    Result<TrainState> state = checkpoint_state(dir);
    REQUIRE_MESSAGE(state.ok(), state.status.message);
    CHECK(state.value == toy_state(500, 7));
    CHECK(std::signbit(state.value.grad_norm.window[1]));
    CHECK(checkpoint_tokenizer(dir).value.vocab_size() == 0);
    std::set<std::string> names;
    for (auto& e : fs::directory_iterator(dir)) names.insert(e.path().filename());
    CHECK(names ==
          std::set<std::string>{"MANIFEST", "config.json", "model.safetensors", "optimizer.safetensors", "state.json"});
    CHECK(std::distance(fs::directory_iterator(run), fs::directory_iterator()) == 1);
    // A second checkpoint of the same step replaces the first.
    write_toy(run, 500, 9);
    CHECK(checkpoint_state(dir).value.seed == 9);
    CHECK(std::distance(fs::directory_iterator(run), fs::directory_iterator()) == 1);
}

TEST_CASE("checkpoint: headers of the weights are read once for all that is asked of a source") {
    const std::string dir = write_toy(temporary_directory(), 1, 7), file = dir + "/model.safetensors";
    const ModelSource source(dir);
    const auto first = source.weights();
    REQUIRE(first.ok());
    CHECK(source.weights().value == first.value);
    const std::string bytes = read_file(file);
    std::filesystem::remove(file);
    write_file(file, bytes);
    CHECK(source.weights().value == first.value);
    ToyCheckpoint wrote(7), read(8);
    CHECK(checkpoint_stored(source, wrote.g.c).ok());
    CHECK(checkpoint_weights(source, read.g, true).ok());
    CHECK(same_bits(read.params, wrote.params));
    std::filesystem::remove(file);
    const ModelSource gone(dir);
    for (int i = 0; i < 2; i++) CHECK(gone.weights().status.code == Exit::input);    // an error is not kept as success
}

TEST_CASE("checkpoint: a model saved by transformers") {
    const std::string dir = "test/golden/hf_tiny";
    Result<Config> c = checkpoint_config(dir);
    REQUIRE_MESSAGE(c.ok(), c.status.message);
    CHECK(c.value == Config{.V = 11, .T = 3, .L = 1, .NH = 2, .C = 4, .F = 16});
    CHECK(checkpoint_verify(dir).ok());
    CHECK(checkpoint_find(dir, nullptr).ok());
    ToyCheckpoint toy(1, c.value);
    toy.poison();
    Status s = checkpoint_weights(dir, toy.g);
    REQUIRE_MESSAGE(s.ok(), s.message);
    // In hf_tiny element i of the k-th tensor below is 1000 k + i, in Hugging Face's layout.
    const char* order[] = {"wte.weight",
                           "wpe.weight",
                           "h.0.ln_1.weight",
                           "h.0.ln_1.bias",
                           "h.0.attn.c_attn.weight",
                           "h.0.attn.c_attn.bias",
                           "h.0.attn.c_proj.weight",
                           "h.0.attn.c_proj.bias",
                           "h.0.ln_2.weight",
                           "h.0.ln_2.bias",
                           "h.0.mlp.c_fc.weight",
                           "h.0.mlp.c_fc.bias",
                           "h.0.mlp.c_proj.weight",
                           "h.0.mlp.c_proj.bias",
                           "ln_f.weight",
                           "ln_f.bias"};
    REQUIRE(toy.g.tensors.size() == std::size(order));
    for (const Tensor& t : toy.g.tensors) {
        auto is_it = [&](const char* name) { return t.pieces[0].name == std::string("transformer.") + name; };
        auto k = std::find_if(std::begin(order), std::end(order), is_it);
        REQUIRE(k != std::end(order));
        bool right = true;
        for (int64_t r = 0; r < t.rows; r++)
            for (int64_t col = 0; col < t.cols; col++) {
                int64_t place = t.layout == FileLayout::transposed ? col * t.rows + r : r * t.cols + col;
                float expected = r < t.file_rows ? float(1000 * (k - order) + place) : 0;
                right &= toy.params[size_t(t.offset + r * t.cols + col)] == expected;
            }
        INFO(t.name);
        CHECK(right);
    }
    CHECK(checkpoint_state(dir).status.code == Exit::input);
    CHECK(checkpoint_optimizer(dir, toy.g).code == Exit::input);
}

TEST_CASE("checkpoint: format 1 loads for ever") {
    const std::string dir = "test/golden/checkpoint_1";    // ToyCheckpoint(7) of V = 259, toy_state(500, 7)
    Config c = ToyCheckpoint::config();
    c.V = 259;
    CHECK(checkpoint_verify(dir).ok());
    REQUIRE(checkpoint_config(dir).value == c);
    ToyCheckpoint read(8, c), wrote(7, c);
    read.poison();
    CHECK(checkpoint_weights(dir, read.g).ok());
    CHECK(checkpoint_optimizer(dir, read.g).ok());
    // Not bit for bit: the toy's log and cos differ between machines.
    for (auto field : {&ToyCheckpoint::params, &ToyCheckpoint::m, &ToyCheckpoint::v})
        CHECK(relative_error((read.*field).data(), (wrote.*field).data(), int64_t((read.*field).size())) < 1e-6);
    Result<TrainState> state = checkpoint_state(dir);
    REQUIRE_MESSAGE(state.ok(), state.status.message);
    TrainState expected = toy_state(500, 7);
    CHECK(relative_error(state.value.loss.window, expected.loss.window, OutlierDetector::WINDOW) < 1e-6);
    expected.loss = state.value.loss;
    CHECK(state.value == expected);
    Result<Tokenizer> tokenizer = checkpoint_tokenizer(dir);
    REQUIRE_MESSAGE(tokenizer.ok(), tokenizer.status.message);
    CHECK(tokenizer.value.vocab_size() == 259);
    using nlohmann::json;
    CHECK(json::parse(read_file(dir + "/config.json")) == json::parse(config_json(c, {tokenizer.value.end_of_text()})));
    CHECK(read_file(dir + "/state.json") == state_json(state.value));
    CHECK(json::parse(read_file(dir + "/tokenizer.json")) == json::parse(tokenizer.value.to_json()));
}

TEST_CASE("checkpoint: a directory that cannot be listed is not taken for an empty one") {
    const std::string dir = temporary_directory();
    write_file(dir + "/notes.txt", "mine");
    rlimit limit;
    REQUIRE(getrlimit(RLIMIT_NOFILE, &limit) == 0);
    const rlimit none = {0, limit.rlim_max};
    REQUIRE(setrlimit(RLIMIT_NOFILE, &none) == 0);
    Status unreadable;
    const Status written_over = check_export(dir, Overwrite::yes);
    const size_t checkpoints = checkpoint_list(dir, &unreadable).size();
    REQUIRE(setrlimit(RLIMIT_NOFILE, &limit) == 0);
    CHECK(written_over.code == Exit::io);
    CHECK(unreadable.code == Exit::io);
    CHECK(checkpoints == 0);
    CHECK(check_export(dir, Overwrite::yes).code == Exit::usage);
    (void)checkpoint_list(dir + "/missing", &unreadable);
    CHECK(unreadable.ok());
}

TEST_CASE("checkpoint: weights of other exporters") {
    std::string dir = temporary_directory(), one = dir + "/model.safetensors";
    const Config c = ToyCheckpoint::config();
    ToyCheckpoint prefixed(1), toy(2);
    write_tensors(one, toy_tensors(true));
    CHECK(checkpoint_weights(dir, prefixed.g).ok());
    auto loads_the_same = [&] {
        toy.poison();
        Status s = checkpoint_weights(dir, toy.g);
        INFO(s.message);
        CHECK(s.ok());
        return same_bits(toy.params, prefixed.params);
    };
    auto tensors = toy_tensors(false);
    write_tensors(one, tensors);
    CHECK(loads_the_same());
    tensors.push_back({"h.0.attn.bias", {1, 1, c.T, c.T}});
    tensors.push_back({"h.0.attn.masked_bias", {}});
    tensors.push_back({"lm_head.weight", {c.V, c.C}});
    write_tensors(one, tensors);
    CHECK(loads_the_same());
    write_tensors(one, tensors, TensorType::bf16);    // integers up to 255, exact in bf16
    CHECK(loads_the_same());
    // lm_head may be stored in another dtype than the embeddings, which it must equal.
    nlohmann::json index;
    for (auto& [name, shape] : tensors) index["weight_map"][name] = name == tensors.back().first ? "head" : "rest";
    write_file(one + ".index.json", index.dump());
    write_tensors(dir + "/head", {tensors.back()}, TensorType::bf16);
    write_tensors(dir + "/rest", {tensors.begin(), tensors.end() - 1});
    std::filesystem::remove(one);
    CHECK(loads_the_same());
    write_tensors(one, tensors, TensorType::bf16);

    auto refused = [&](const std::string& text) {
        ToyCheckpoint before(2);
        Status s = checkpoint_weights(dir, before.g);
        INFO(s.message);
        CHECK(s.code == Exit::input);
        CHECK(s.message.find(text) != std::string::npos);
        CHECK(same_bits(before.params, ToyCheckpoint(2).params));    // no weight was overwritten
    };
    std::string changed = read_file(one);
    changed.back() ^= 1;    // the last number of lm_head
    write_file(one, changed);
    refused("\"lm_head.weight\": expected a copy of the embeddings, as tie_word_embeddings is true");
    tensors.back().second = {c.V + 1, c.C};
    write_tensors(one, tensors);
    refused("lm_head.weight");
    tensors.pop_back();
    for (size_t i = 0; i < toy_tensors(false).size(); i++) {
        auto missing = tensors;
        missing.erase(missing.begin() + int64_t(i));
        write_tensors(one, missing);
        refused(tensors[i].first);
        auto misshapen = tensors;
        misshapen[i].second.back()++;
        write_tensors(one, misshapen);
        refused(tensors[i].first);
    }
    auto extra = tensors;
    extra.push_back({"h.1.ln_1.weight", {c.C}});
    write_tensors(one, extra);
    refused("h.1.ln_1.weight");
    extra.back() = {"transformer.wpe.weight", {c.T, c.C}};
    write_tensors(one, extra);
    refused("twice");
}

TEST_CASE("checkpoint: weights in several files by an index") {
    std::string dir = temporary_directory();
    ToyCheckpoint expected(1), toy(2);
    write_tensors(dir + "/model.safetensors", toy_tensors(true));
    REQUIRE(checkpoint_weights(dir, expected.g).ok());
    fs::remove(dir + "/model.safetensors");
    auto refused = [&](const std::string& text) {
        Status s = checkpoint_weights(dir, toy.g);
        INFO(s.message);
        CHECK(s.code == Exit::input);
        CHECK(s.message.find(text) != std::string::npos);
    };
    auto all = toy_tensors(true), rest = all;
    all.resize(3);
    rest.erase(rest.begin(), rest.begin() + 3);
    write_tensors(dir + "/model-00001-of-00002.safetensors", all);
    write_tensors(dir + "/model-00002-of-00002.safetensors", rest);
    nlohmann::json index;
    for (auto& t : all) index["weight_map"][t.first] = "model-00001-of-00002.safetensors";
    for (auto& t : rest) index["weight_map"][t.first] = "model-00002-of-00002.safetensors";
    const std::string index_path = dir + "/model.safetensors.index.json";
    write_file(index_path, index.dump());
    CHECK(checkpoint_weights(dir, toy.g).ok());
    CHECK(same_bits(toy.params, expected.params));
    const std::string second = "/model-00002-of-00002.safetensors";
    index["weight_map"][rest[0].first] = "../" + fs::path(dir).filename().string() + second;
    write_file(index_path, index.dump());
    refused("weight_map");
    for (const char* map : {"", "[]", "{}", "{\"a\":1}", "{\"a\":\"\"}", "1"}) {
        write_file(index_path, std::string("{\"weight_map\":") + map + "}");
        refused(map == std::string("{\"a\":\"\"}") ? dir : "index.json");    // "" names the directory itself
    }
    fs::remove(index_path);
    refused("model.safetensors");
}

TEST_CASE("config.json: ours both ways, and what flatgpt cannot run is named") {
    const Config smallest = {.V = 2, .T = 1, .L = 1, .NH = 1, .C = 1, .F = 1, .norm_eps = 1e-6f};
    for (Config c : {Config{}, ToyCheckpoint::config(), smallest, Config{.norm_eps = 0.0123456789f}}) {
        Result<Config> r = config_parse(config_json(c, {5}), "c");
        REQUIRE_MESSAGE(r.ok(), r.status.message);
        CHECK(r.value == c);
    }
    const std::string text = config_json(Config{}, {50256});
    CHECK(text.find("\"layer_norm_epsilon\": 1e-05") != std::string::npos);
    CHECK(text.find("\"eos_token_id\": 50256") != std::string::npos);
    CHECK(config_json(Config{}, {}).find("\"eos_token_id\": null") != std::string::npos);
    using nlohmann::json;
    const json good = json::parse(text);
    struct {
        const char* key;
        json value;
    } bad[] = {{"model_type", "llama"},
               {"model_type", json()},
               {"activation_function", "mish"},
               {"activation_function", 1},
               {"tie_word_embeddings", 2},
               {"scale_attn_weights", false},
               {"scale_attn_by_inverse_layer_idx", true},
               {"reorder_and_upcast_attn", true},
               {"add_cross_attention", true},
               {"n_head", 7},
               {"n_head", 0},
               {"n_embd", 0},
               {"n_embd", -768},
               {"n_embd", 768.0},
               {"n_embd", "768"},
               {"n_embd", INT64_MAX},
               {"n_embd", UINT64_MAX},
               {"n_embd", 1e300},
               {"n_layer", int64_t(1) << 31},
               {"n_layer", INT32_MAX},
               {"vocab_size", 0},
               {"vocab_size", int64_t(1) << 32},
               {"n_positions", -1},
               {"n_positions", json::array({1024})},
               {"n_inner", 0},
               {"n_inner", -1},
               {"n_inner", INT32_MAX},
               {"layer_norm_epsilon", 0},
               {"layer_norm_epsilon", -1e-5},
               {"layer_norm_epsilon", "1e-5"},
               {"layer_norm_epsilon", 1},
               {"layer_norm_epsilon", 1e300}};
    for (auto& b : bad) {
        json j = good;
        j[b.key] = b.value;
        Status s = config_parse(j.dump(), "c.json").status;
        INFO(std::string(b.key), s.message);
        CHECK(s.code == Exit::input);
        CHECK(s.message.starts_with("c.json: "));
    }
    for (const char* key : {"model_type", "vocab_size", "n_positions", "n_embd", "n_layer", "n_head"}) {
        json j = good;
        j.erase(key);
        j.erase("n_ctx");    // another name of n_positions
        CHECK(config_parse(j.dump(), "c").status.message.find(key) != std::string::npos);
    }
    for (const char* key : {"n_inner", "activation_function", "layer_norm_epsilon", "tie_word_embeddings"}) {
        json j = good;
        j.erase(key);
        CHECK(config_parse(j.dump(), "c").value == Config{});
    }
    for (size_t n = 0; n + 1 < text.size(); n++) CHECK(config_parse(text.substr(0, n), "c").status.code == Exit::input);
    for (size_t bit = 0; bit < text.size() * 8; bit++) {
        Result<Config> r = config_parse(flipped(text, bit), "c");
        if (!r.ok()) CHECK(r.status.code == Exit::input);
        else CHECK(config_check(r.value).ok());
    }
    // A small file must not ask for a large model.
    std::string dir = write_toy(temporary_directory(), 1, 1);
    write_file(dir + "/config.json", text);
    CHECK(checkpoint_config(dir).status.code == Exit::input);
}

TEST_CASE("state.json: hostile fields") {
    using nlohmann::json;
    TrainState full = toy_state(3, 4);    // with all optional fields
    full.algorithms = full.dtype = full.backend = "x", full.validation = ~uint64_t(0);
    full.best_step = 0, full.best_loss = 1.0 / 3, full.bad_validations = 7, full.averaged = 3, full.documents = 0;
    full.decay_begin = 0, full.decay_rate = 1.0 / 3, full.noise = {1e300 / 3, -1.0 / 3};
    const std::string text = state_json(full);
    const json good = json::parse(text);
    CHECK(state_parse(text, "s").value == full);
    CHECK(state_parse(state_json(TrainState{}), "s").value == TrainState{});
    const std::set<std::string> texts = {"config", "algorithms", "dtype", "backend"};
    const std::set<std::string> hashes = {"data", "seed", "validation"};
    const std::set<std::string> optional = {"algorithms",      "dtype",    "backend",   "validation",
                                            "bad_validations", "averaged", "documents", "noise_scale"};
    for (auto& [key, value] : good.items()) {
        for (json bad : {json(), json(-1), json(1.5), json(UINT64_MAX), json(1e300), json("x"), json::array(),
                         json::object(), json(true)}) {
            if (texts.contains(key) && bad.is_string()) continue;
            if (key == "best_loss" && (bad == -1 || bad == 1.5 || bad == UINT64_MAX || bad == 1e300)) continue;
            if (key == "decay_rate" && bad == 1.5) continue;
            if (hashes.contains(key) && bad == UINT64_MAX) continue;
            json j = good;
            j[key] = bad;
            Status s = state_parse(j.dump(), "s.json").status;
            INFO(key, bad.dump(), s.message);
            CHECK(s.code == Exit::input);
            CHECK(s.message.find(key) != std::string::npos);
        }
        json j = good;
        j.erase(key);
        CHECK(state_parse(j.dump(), "s").status.code == (optional.contains(key) ? Exit::ok : Exit::input));
    }
    json j = good;
    j.erase("best_step"), j.erase("best_loss");
    CHECK(state_parse(j.dump(), "s").value.best_step == -1);
    CHECK(state_parse(j.dump(), "s").value.best_loss == INFINITY);
    j = good;
    j["more"] = 1;
    CHECK(state_parse(j.dump(), "s").status.code == Exit::input);
    for (json bad : {json(), json("1"), json::array({1})}) {
        j = good;
        j["loss"]["window"][3] = bad;
        CHECK(state_parse(j.dump(), "s").status.code == Exit::input);
    }
    for (json bad : {json::array({1}), json::array({1, 2, 3}), json::array({1, "2"}), json::array({nullptr, 1})}) {
        j = good;
        j["noise_scale"] = bad;
        CHECK(contains(state_parse(j.dump(), "s").status.message, "noise_scale"));
    }
    for (json seen : {json(127), json(-1), json(0), json(1e9)}) {
        j = good;
        j["loss"]["seen"] = seen;
        CHECK(state_parse(j.dump(), "s").status.code == Exit::input);
    }
    for (size_t n = 0; n + 1 < text.size(); n++) CHECK(state_parse(text.substr(0, n), "s").status.code == Exit::input);
    for (size_t bit = 0; bit < text.size() * 8; bit += 3) (void)state_parse(flipped(text, bit), "s");
}

TEST_CASE("checkpoint: every kind of damage is found and named, and the one before is used") {
    std::string run = temporary_directory(), old = write_toy(run, 1, 1), dir = write_toy(run, 2, 2);
    auto damaged = [&](const std::string& name) {
        std::vector<std::string> reports;
        Result<ModelSource> found = checkpoint_find(run, &reports);
        CHECK(found.value.path == old);
        REQUIRE(reports.size() == 1);
        INFO(reports[0]);
        CHECK(reports[0].find(dir + "/" + name) != std::string::npos);
        CHECK(checkpoint_verify(dir).code == Exit::input);
        CHECK(checkpoint_find(dir, nullptr).status.code == Exit::input);
    };
    uint64_t n = 0;
    for (const char* name : {"model.safetensors", "optimizer.safetensors", "config.json", "state.json", "MANIFEST"}) {
        const std::string path = dir + "/" + name, good = read_file(path);
        bool manifest = !strcmp(name, "MANIFEST");
        for (int i = 0; i < (manifest ? int(good.size() * 8) : 400); i++) {
            size_t bit = manifest ? size_t(i) : philox(5, 5, n++).v[0] % (good.size() * 8);
            flip_in_file(path, bit);
            damaged(name);
            flip_in_file(path, bit);
        }
        CHECK(checkpoint_find(run, nullptr).value.path == dir);
        for (size_t keep : {size_t(0), size_t(1), good.size() / 2, good.size() - 1}) {
            write_file(path, good.substr(0, keep));
            damaged(name);
        }
        write_file(path, good + "\n");
        damaged(name);
        write_file(path, good + good);
        damaged(name);
        fs::remove(path);
        damaged(name);
        fs::create_directory(path);
        damaged(name);
        fs::remove(path);
        write_file(path, good);
        CHECK(checkpoint_find(run, nullptr).value.path == dir);
    }
    // Other entries of a run's directory are not taken for checkpoints.
    for (const char* name : {"step_00000003.tmp", "step_3", "step_000000004", "step_0000000x"})
        fs::create_directory(run + "/" + name);
    write_file(run + "/step_00000009", "a file");
    write_file(run + "/metrics.jsonl", "{}\n");
    CHECK(checkpoint_list(run) == std::vector{old, dir});
    CHECK(checkpoint_find(run, nullptr).value.path == dir);
    fs::create_directory(run + "/step_00000005");    // the newest by name, but empty
    std::vector<std::string> reports;
    CHECK(checkpoint_find(run, &reports).value.path == dir);
    CHECK(reports.size() == 1);
    CHECK(checkpoint_find(run + "/none", nullptr).status.code == Exit::input);
    CHECK(checkpoint_find(temporary_directory(), nullptr).status.code == Exit::input);
}

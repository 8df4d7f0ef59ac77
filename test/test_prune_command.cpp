// test_prune_command.cpp - `flatgpt prune` from a run to one that trains on; outputs, refusals.
#include "base/console.h"
#include "files/json.h"
#include "files/safetensors.h"
#include "toy_run.h"
#include "toy_model.h"

namespace {
std::string trained(const Toy& toy, const std::string& name, const std::vector<std::string>& more) {
    std::vector<std::string> args = toy.args(name, {"--steps", "30", "--heads", "4", "--channels", "32"});
    for (size_t i = 0; i < more.size(); i += 2) Toy::set(args, more[i], more[i + 1]);
    must(args);
    return toy.dir + "/" + name;
}
nlohmann::json pruned(const Toy& toy, const std::string& model, const std::string& out, std::vector<std::string> more) {
    std::vector<std::string> args = {"prune",       model,
                                     "--data",      toy.dir + "/train.bin",
                                     "--eval-data", toy.dir + "/val.bin",
                                     "--out",       toy.dir + "/" + out,
                                     "--json"};
    if (std::count(more.begin(), more.end(), "--heads")) more.insert(more.end(), {"--tokens", "256"});
    args.insert(args.end(), more.begin(), more.end());
    return nlohmann::json::parse(must(args).out);
}
double perplexity(const Toy& toy, const std::string& model) {
    return number(must({"eval", model, "--data", toy.dir + "/val.bin", "--json"}).out, "\"perplexity\":");
}
}    // namespace

TEST_CASE("prune: a run becomes a smaller model, which is measured, sampled, converted and trained on") {
    Toy toy;
    const std::string run = trained(toy, "run", {}), out = toy.dir + "/small", csv = toy.dir + "/heads.csv";
    const nlohmann::json j = pruned(toy, run, "small", {"--heads", "30%", "--csv", csv});
    CHECK(j["heads"] == nlohmann::json{{"before", 4}, {"after", 3}});
    CHECK(j["kv_heads"] == j["heads"]);
    CHECK(j["cache_bytes_per_token"] == nlohmann::json{{"before", 512}, {"after", 384}});
    CHECK(j["parameters"]["before"].get<int>() - j["parameters"]["after"].get<int>() == 2 * 8 * (4 * 32 + 3));
    CHECK(j["file_bytes"]["after"] == fs::file_size(out + "/model.safetensors"));
    CHECK(j["file_bytes"]["after"] < j["file_bytes"]["before"]);
    CHECK(j["perplexity"]["before"] == perplexity(toy, run));
    CHECK(j["perplexity"]["after"] == perplexity(toy, out));
    // Only the least important head of each layer is removed.
    std::string rows = "layer,head,importance,removed\n";
    for (size_t l : {0, 1}) {
        const auto& all = j["importance"][l];
        const int least = int(std::min_element(all.begin(), all.end()) - all.begin());
        CHECK(j["removed"][l] == nlohmann::json{least});
        for (int h = 0; h < 4; h++)
            rows += std::to_string(l) + "," + std::to_string(h) + "," +
                    formatted("%.17g", all[size_t(h)].get<double>()) + (h == least ? ",1\n" : ",0\n");
    }
    CHECK(read_file(csv) == rows);
    must({"info", out}, 0, "3 heads");
    must({"sample", out, "--prompt", "abc", "--tokens", "8"});
    must({"convert", out, toy.dir + "/again"});
    CHECK(same_file(out + "/model.safetensors", toy.dir + "/again/model.safetensors"));
    // The train command that prune prints continues with the smaller model.
    std::vector<std::string> train;
    std::istringstream words(j["train"].get<std::string>());
    for (std::string word; words >> word;)
        if (word != "flatgpt") train.push_back(word);
    // The learning rate is a third of the run's.
    CHECK(contains(j["train"].get<std::string>(), "--batch 4 --lr 0.001 --steps 200"));
    Toy::set(train, "--steps", "20");
    must(train);
    CHECK(perplexity(toy, out + "-trained") < perplexity(toy, out));
    // Output as text, without --json.
    const std::string text = must({"prune", run, "--data", toy.dir + "/val.bin", "--heads", "1", "--random", "3",
                                   "--kv-heads", "1", "--out", toy.dir + "/other"})
                                 .out;
    CHECK(text.starts_with("removed                layer 0: "));
    CHECK(contains(text, "heads                  4 -> 3 in each layer (25.0 % fewer)\nkv heads               4 -> 1 "));
    CHECK(contains(text, "\nto train on:\n  flatgpt train --from "));
    CHECK_FALSE(contains(text, "importance"));
    const std::string table = must({"prune", run, "--data", toy.dir + "/val.bin", "--dry-run", "--heads", "1"}).out;
    CHECK(contains(table, "100.0"));
    CHECK(std::count(table.begin(), table.end(), 'x') == 3);    // a head per layer, the legend
}

TEST_CASE("prune: a Llama of grouped heads, from a directory and from a quantised GGUF file, stays a Llama") {
    Toy toy;
    const std::string run = trained(
        toy, "run", {"--model", "llama:d1", "--layers", "2", "--heads", "4", "--kv-heads", "2", "--channels", "32"});
    must({"convert", run, toy.dir + "/run.gguf", "--type", "q8_0"});
    for (const std::string from : {"/run", "/run.gguf"}) {
        const std::string out = "cut" + fs::path(from).extension().string();
        const nlohmann::json j = pruned(toy, toy.dir + from, out, {"--heads", "0.5"});
        CHECK(j["heads"] == nlohmann::json{{"before", 4}, {"after", 2}});
        CHECK(j["kv_heads"] == nlohmann::json{{"before", 2}, {"after", 1}});
        const nlohmann::json c = nlohmann::json::parse(read_file(toy.dir + "/" + out + "/config.json"));
        CHECK(c["model_type"] == "llama");
        CHECK(c["num_attention_heads"] == 2);
        CHECK(c["num_key_value_heads"] == 1);
        CHECK(c["head_dim"] == 8);
        CHECK(c["hidden_size"] == 32);
        CHECK(checkpoint_config(toy.dir + "/" + out).value.NKV == 1);
        CHECK(j["perplexity"]["after"] == perplexity(toy, toy.dir + "/" + out));
    }
    const std::string told =
        must({"prune", run, "--data", toy.dir + "/val.bin", "--kv-heads", "1", "--out", toy.dir + "/told"}).out;
    CHECK(contains(told, "heads                  4 in each layer\nkv heads               2 -> 1 in each layer\n"));
    const nlohmann::json j = pruned(toy, run, "merged", {"--kv-heads", "1"});
    CHECK(j["heads"] == nlohmann::json{{"before", 4}, {"after", 4}});
    CHECK(j["removed"] == nlohmann::json{nlohmann::json::array(), nlohmann::json::array()});
    CHECK_FALSE(j.contains("importance"));
}

namespace {
// Exports the run's newest checkpoint after change(weights (C,width), layer) of each attention
// projection. Returns the directory.
template <class Change> std::string with_projections(const Toy& toy, const std::string& name, Change change) {
    const std::string from = toy.newest("run"), dir = toy.dir + "/" + name;
    Model g(cpu_ops<float>());
    REQUIRE(g.allocate(checkpoint_config(from).value, {RunMode::infer, 1, 1}).ok());
    REQUIRE(checkpoint_weights(from, g).ok());
    for (const Tensor& t : g.tensors) {
        if (!t.name.ends_with(".projw")) continue;
        std::vector<float> x(size_t(t.size()));
        g.read(StateKind::weights, t.offset, t.size(), x.data());
        change(x, size_t(t.bucket - 1));
        g.write(StateKind::weights, t.offset, t.size(), x.data());
    }
    REQUIRE(checkpoint_export(dir, weights_reader(g), checkpoint_tokenizer(from).value, {}).ok());
    return dir;
}
}    // namespace

TEST_CASE("prune: heads that hardly count are found, and cost less than random ones") {
    Toy toy;
    trained(toy, "run", {"--steps", "100"});
    const std::vector<std::vector<int>> weak = {{0, 3}, {1, 2}};
    const std::string planted = with_projections(toy, "planted", [&](std::vector<float>& x, size_t l) {
        for (size_t i = 0; i < x.size(); i++)
            if (std::count(weak[l].begin(), weak[l].end(), int(i % 32 / 8))) x[i] *= 1e-3f;
    });
    auto cost = [&](const nlohmann::json& j) {
        return j["loss"]["after"].get<double>() - j["loss"]["before"].get<double>();
    };
    const nlohmann::json least = pruned(toy, planted, "least", {"--heads", "2"});
    CHECK(least["removed"] == nlohmann::json(weak));
    CHECK(std::fabs(cost(least)) < 1e-3);
    double mean = 0;
    for (int seed = 1; seed <= 5; seed++) {
        CAPTURE(seed);
        const std::string out = "random" + std::to_string(seed);
        const nlohmann::json random = nlohmann::json::parse(
            must({"prune", planted, "--eval-data", toy.dir + "/val.bin", "--heads", "2", "--random",
                  std::to_string(seed), "--out", toy.dir + "/" + out + "//", "--json"})
                .out);
        CHECK(cost(random) > cost(least));
        mean += cost(random) / 5;
        CHECK(random["out"] == toy.dir + "/" + out);
        CHECK(contains(random["train"].get<std::string>(), " --data SHARDS --val "));
    }
    CHECK(mean > cost(least) + 1e-2);
    CHECK(contains(must({"prune", planted, "--data", toy.dir + "/val.bin", "--heads", "1", "--random", "1", "--out",
                         toy.dir + "/told"})
                       .out,
                   "\nto train on (--lr and --batch by train's defaults: the model does not say what it was trained "
                   "with):\n  flatgpt train "));
}

TEST_CASE("prune: a model whose loss is not a number is refused") {
    Toy toy;
    trained(toy, "run", {"--steps", "1"});
    const std::string broken = with_projections(toy, "broken", [](std::vector<float>& x, size_t) {
        std::fill(x.begin(), x.end(), 3e38f);    // infinite sums in the next norm
    });
    const std::string val = toy.dir + "/val.bin", out = toy.dir + "/small";
    must({"prune", broken, "--data", val, "--heads", "1", "--random", "1", "--out", out}, 1,
         "its loss is not a number: the model has diverged or overflowed");
    must({"prune", broken, "--data", val, "--dry-run"}, 1, "importance of layer 0, head 0 in window 1");
    CHECK_FALSE(fs::exists(out));
}

TEST_CASE("prune: a note says that the smaller model is F32 where the whole one is not") {
    Toy toy;
    const std::string run = trained(
        toy, "run", {"--model", "llama:d1", "--layers", "2", "--heads", "4", "--channels", "32", "--steps", "1"});
    auto noted = [&](const std::string& model) {
        const std::string out = toy.dir + "/small";
        const ProcessResult r =
            must({"prune", model, "--data", toy.dir + "/val.bin", "--heads", "1", "--random", "1", "--out", out});
        const std::string size = human_bytes(double(fs::file_size(out + "/model.safetensors")));
        fs::remove_all(out);
        const std::string start = "note: " + out + " is written as F32 (" + size + "), while " + model + " has ";
        const size_t at = r.err.find(start);
        CHECK((at != r.err.npos || !contains(r.err, "note: ")));
        return at == r.err.npos ? "" : r.err.substr(at + start.size(), r.err.find(';', at) - at - start.size());
    };
    CHECK(noted(run) == "");
    Model g(cpu_ops<float>());
    REQUIRE(g.allocate(checkpoint_config(toy.newest("run")).value, {RunMode::infer, 1, 1}).ok());
    REQUIRE(checkpoint_weights(toy.newest("run"), g).ok());
    std::vector<TensorSource> weights = checkpoint_tensors(g, {weights_state(g)});
    for (TensorSource& t : weights) t.type = TensorType::bf16;
    std::string bytes;
    REQUIRE(safetensors_write(weights, [&](const void* data, int64_t n) {
                bytes.append(static_cast<const char*>(data), size_t(n));
                return Status{};
            }).ok());
    const std::string half = toy.dir + "/half";
    fs::create_directory(half);
    for (const char* name : {"/config.json", "/tokenizer.json"}) fs::copy(toy.newest("run") + name, half + name);
    write_file(half + "/model.safetensors", bytes);
    CHECK(noted(half) == "BF16 (" + human_bytes(double(bytes.size())) + ")");
    for (auto& [type, name] : {std::pair{"f32", ""}, {"f16", "F16"}, {"q8_0", "Q8_0"}}) {
        const std::string file = toy.dir + "/" + type + ".gguf";
        must({"convert", run, file, "--type", type});
        CHECK(noted(file) == (*name ? name + (" (" + human_bytes(double(fs::file_size(file))) + ")") : ""));
    }
}

TEST_CASE("prune: what cannot be is exit 2, and says why") {
    Toy toy;
    const std::string run = trained(toy, "run", {"--steps", "2"});
    auto refused = [&](const std::string& model, std::vector<std::string> more, const std::string& says, int code = 2) {
        std::vector<std::string> args = {"prune", model, "--data", toy.dir + "/val.bin"};
        args.insert(args.end(), more.begin(), more.end());
        must(args, code, says);
    };
    const std::string out = toy.dir + "/small";
    refused(run, {}, "--heads, --kv-heads or --dry-run is required: how many heads");
    refused(run, {"--heads", "1"}, "--out or --dry-run is required");
    refused(run, {"--dry-run", "--out", out}, "--dry-run and --out exclude each other: it writes no model");
    refused(run, {"--random", "1", "--kv-heads", "2", "--out", out}, "--random needs --heads: how many to remove");
    refused(run, {"--kv-heads", "2", "--out", out, "--csv", out}, "--csv needs --heads or --dry-run");
    refused(run, {"--kv-heads", "2", "--out", out, "--tokens", "64"}, "--tokens needs --heads or --dry-run");
    refused(run, {"--heads", "1", "--random", "1", "--out", out, "--tokens", "64"},
            "--tokens and --random exclude each other: random heads leave unmeasured");
    refused(run, {"--dry-run", "--random", "1"}, "--dry-run and --random exclude each other");
    for (const char* flag : {"--eval-data", "--eval-tokens", "--batch"})
        refused(run, {"--dry-run", flag, "4"}, std::string("--dry-run and ") + flag + " exclude each other: it");
    refused(run, {"--heads", "1", "--out", out, "--csv", out}, "--out, --csv");
    refused(run, {"--heads", "1", "--out", out, "--csv", out + "/heads.csv"}, "/heads.csv cannot be written", 4);
    refused(run, {"--heads", "1", "--out", out, "--csv", "/dev/null"}, "--csv /dev/null: expected a new name");
    refused(run, {"--heads", "1", "--out", "/proc/small"}, "--out: /proc/small cannot be written", 4);
    must({"prune", run, "--heads", "1", "--out", out}, 2, "--heads needs --data or --random: importance");
    must({"prune", run, "--dry-run"}, 2, "--dry-run needs --data");
    must({"prune", run, "--heads", "1", "--random", "1", "--out", out}, 2, "--data or --eval-data is required");
    refused(run, {"--heads", "1", "--out", toy.dir}, "already there");
    refused(run, {"--heads", "1", "--out", out + "/deeper"}, "there is no directory " + out, 4);
    refused(run, {"--heads", "4", "--out", out}, "expected 1 to 3");
    refused(run, {"--heads", "many", "--out", out}, "found \"many\"");
    refused(run, {"--kv-heads", "3", "--out", out}, "expected a divisor of 4");
    refused(run, {"--kv-heads", "4", "--out", out}, "nothing is to be merged");
    refused(run, {"--heads", "1", "--kv-heads", "2", "--out", out}, "divisor of 3, the key/value heads that --heads");
    refused(run, {"--heads", "1", "--seq-len", "64", "--out", out}, "--seq-len 64: the model's context has 32");
    refused(run, {"--heads", "1", "--eval-data", toy.dir + "/none.bin", "--out", out}, "none.bin", 3);
    refused(toy.dir + "/none", {"--heads", "1", "--out", out}, "no such", 3);
    const std::string alibi = trained(toy, "alibi", {"--steps", "1", "--position", "alibi"});
    refused(alibi, {"--heads", "1", "--out", out}, "--position alibi");
    const std::string decaying = trained(toy, "retention", {"--steps", "1", "--linear-attention", "retention"});
    refused(decaying, {"--heads", "1", "--out", out}, "--linear-attention retention");
    pruned(toy, alibi, "merged", {"--kv-heads", "2"});
    const std::string all = trained(toy, "all", {"--steps", "1", "--qk-norm", "all"});
    refused(all, {"--heads", "1", "--out", out}, "--qk-norm all");
    refused(all, {"--kv-heads", "2", "--out", out}, "--qk-norm all");
    const std::string one = trained(toy, "one", {"--steps", "1", "--kv-heads", "1"});
    refused(one, {"--heads", "1", "--out", out}, "one key/value head");
    CHECK_FALSE(fs::exists(out));
}

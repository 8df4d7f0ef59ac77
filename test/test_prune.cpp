// test_prune.cpp - heads that matter and heads that leave: importance against central differences, cut and merged
// models against whole ones, `flatgpt prune` from a run to a run that goes on.
#include "tools/heads.h"
#include "tools/importance.h"

#include "base/console.h"
#include "files/json.h"
#include "files/safetensors.h"
#include "toy_run.h"
#include "model_checks.h"

namespace {
// Four heads, each with keys and values of its own; and two groups of two.
const Config WHOLE = {.V = 13, .T = 8, .L = 2, .NH = 4, .C = 12, .F = 24, .HS = 5};
const Config GROUPS = {.V = 13, .T = 8, .L = 2, .NH = 4, .C = 12, .F = 24, .NKV = 2, .HS = 5};

// Kinds of model that can be cut.
template <class Visit> void each_kind(Visit visit) {
    for (const Config& base : {WHOLE, GROUPS})
        for (const Kind& kind : kind_configs(base)) {
            if (kind.c.qk_norm == Turn::Normed::all) continue;
            CAPTURE(std::string(kind.name));
            CAPTURE(base.NKV);
            visit(kind.c);
        }
}
std::vector<float> tensor(const Model& g, const Tensor& t) {
    std::vector<float> x(size_t(t.size()));
    g.read(Part::weights, t.offset, t.size(), x.data());
    return x;
}
const Tensor& row(const Model& g, const std::string& name) {
    for (const Tensor& t : g.tensors)
        if (t.name == name) return t;
    FAIL(name);
    return g.tensors[0];
}
// change(weights of every tensor whose name ends so, its layer)
template <class Change> void change_each(Model& g, const std::string& ending, Change change) {
    for (const Tensor& t : g.tensors) {
        if (!t.name.ends_with(ending)) continue;
        std::vector<float> x = tensor(g, t);
        change(x, size_t(t.bucket - 1));
        g.write(Part::weights, t.offset, t.size(), x.data());
    }
}
std::vector<double> losses(Model& g) {
    const Posed asked(g.c, 2, 7);
    std::vector<float> x(14);
    losses_of(g, asked.in, asked.out, asked.B, asked.S, x.data());
    return {x.begin(), x.end()};
}
bool decays(const Config& c) { return c.linear == Linear::retention || c.linear == Linear::gated; }    // refused
void make_cut(Model& cut, const Model& whole, const HeadCut& how) {
    const Result<Config> c = cut_config(whole.c, int(how.stay[0].size()), how.kv_heads);
    REQUIRE_MESSAGE(c.ok(), c.status.message);
    REQUIRE(cut.allocate(c.value, {Use::infer, 2, 7}).ok());
    cut_heads(cut, whole, how);
}
}    // namespace

TEST_CASE("prune: a head's importance is the loss's derivative by a factor on its output, in every kind of model") {
    const int S = 7;
    auto check = [&](const Config& c, const Objective& objective) {
        Model g(reference_ops());
        const bool spans = !objective.plain();
        toy_model(g, c, {.use = Use::train, .B = 1, .S = S, .updates = false, .spans = spans});
        CHECK(!g.shards.m);
        const Posed asked(c, 1, S, objective);
        train_pass(g, asked.in, asked.out, 1, S, asked.spans);
        std::vector<double> found(size_t(c.L * c.NH)), numeric;
        add_importance(g, found);
        double* weights = typed<double>(g, g.shards.params);
        for (int l = 0; l < c.L; l++)
            for (int h = 0; h < c.NH; h++) {
                const Tensor& t = row(g, std::to_string(l) + ".projw");
                const std::vector<double> saved(weights + t.offset, weights + t.offset + t.size());
                auto loss_with = [&](double factor) {
                    for (int64_t i = 0; i < t.size(); i++)
                        weights[t.offset + i] = saved[size_t(i)] * (i % t.cols / c.HS == h ? factor : 1);
                    return loss_in_double(g, asked);
                };
                numeric.push_back(std::fabs((loss_with(1 + 2e-5) - loss_with(1 - 2e-5)) / 4e-5));
                (void)loss_with(1);
            }
        CHECK(relative_error(found.data(), numeric.data(), int64_t(found.size())) < 1e-5);
    };
    for (const Config& base : {TOY, GROUPED})
        for (const Kind& kind : kind_configs(base)) {
            CAPTURE(std::string(kind.name));
            check(kind.c, {});
        }
    for (Sees sees : {Sees::prefix, Sees::all}) check(seeing(GROUPED, sees), toy_objective(sees));
}

TEST_CASE("prune: importance is the mean over the windows of the shards; the cpu tables agree") {
    const Config c = {.V = 257, .T = 16, .L = 2, .NH = 4, .C = 32, .NKV = 2, .HS = 8};
    Toy toy;
    const Result<Loader> opened =
        Loader::open({.pattern = toy.dir + "/val.bin", .B = 1, .S = 16, .vocab = 257, .shuffle = false,
                      .most_tokens = 80});
    REQUIRE(opened.ok());
    Loader loader = opened.value;
    const Plan plan = {.use = Use::train, .B = 1, .S = 16, .updates = false};
    Model r(reference_ops());
    toy_model(r, c, plan);
    std::vector<double> sums(8);
    std::vector<int> in(16), out(16);
    for (int i = 0; i < 5; i++) {
        REQUIRE(loader.next(in.data(), out.data()).ok());
        train_pass(r, in, out, 1, 16);
        add_importance(r, sums);
    }
    for (double& sum : sums) sum /= 5;
    int64_t told = 0;
    const auto found = head_importance(r, loader, {}, [&](int64_t done, int64_t all) { told = done * 100 + all; });
    REQUIRE(found.ok());
    CHECK(told == 505);
    CHECK(relative_error(found.value.data(), sums.data(), 8) < 1e-12);
    each_cpu_model([&](auto model, double tolerance) {
        auto g = model();
        toy_model(*g, c, plan);
        const auto theirs = head_importance(*g, loader, {});
        REQUIRE(theirs.ok());
        CHECK(relative_error(theirs.value.data(), sums.data(), 8) < 10 * tolerance);
    });
}

TEST_CASE("prune: a cut model computes what the whole one does without these heads' columns of the projection") {
    each_kind([](const Config& c) {
        if (c.position == Position::alibi || decays(c)) return;    // refused
        Model whole(reference_ops()), cut(reference_ops());
        toy_model(whole, c, {Use::infer, 2, 7});
        const int leaves = c.NKV == 4 ? 2 : 1, shared = c.NH / c.NKV, groups = c.NKV - leaves;
        const bool alike = c.position == Position::t5;
        // Others in each layer.
        const HeadCut how = {c.NKV == 4 ? std::vector<std::vector<int>>{{1, 2}, alike ? std::vector{1, 2}
                                                                                      : std::vector{0, 3}}
                                        : std::vector<std::vector<int>>{{1}, {alike ? 1 : 0}}, groups};
        const std::vector<double> before = losses(whole);
        make_cut(cut, whole, how);
        CHECK(cut.c.NH == groups * shared);
        CHECK(cut.c.HS == c.HS);
        change_each(whole, ".projw", [&](std::vector<float>& x, size_t l) {
            for (size_t i = 0; i < x.size(); i++) {
                const int group = int(i) % c.attention_width() / c.HS / shared;
                const auto& stay = how.stay[l];
                if (std::find(stay.begin(), stay.end(), group) == stay.end()) x[i] = 0;
            }
        });
        const std::vector<double> expected = losses(whole), found = losses(cut);
        CHECK(relative_error(found.data(), expected.data(), 14) < 1e-5);
        CHECK(relative_error(before.data(), expected.data(), 14) > 1e-3);
        CHECK(config_parameters(cut.c) < config_parameters(c));
    });
}

TEST_CASE("prune: merged keys and values are the mean of neighbours; where these are alike, nothing changes") {
    each_kind([](const Config& c) {
        if (decays(c)) return;
        Model whole(reference_ops()), cut(reference_ops()), alike(reference_ops()), again(reference_ops());
        toy_model(whole, c, {Use::infer, 2, 7});
        std::vector<std::vector<int>> all(2);
        for (int k = 0; k < c.NKV; k++) all[0].push_back(k), all[1].push_back(k);
        const int into = c.NKV / 2;
        make_cut(cut, whole, {all, into});
        CHECK(cut.c.NH == 4);
        CHECK(cut.c.NKV == into);
        // Row d of merged head k: keys, then values.
        const std::vector<float> x = tensor(whole, row(whole, "1.qkvw")), y = tensor(cut, row(cut, "1.qkvw"));
        auto at = [&](const std::vector<float>& w, int head, int d) { return w[size_t((head * c.HS + d) * c.C + 3)]; };
        for (int part : {0, 1})
            for (int k = 0; k < into; k++)
                for (int d = 0; d < c.HS; d++) {
                    const int first = c.NH + part * c.NKV + 2 * k;
                    CHECK(at(y, c.NH + part * into + k, d) ==
                          doctest::Approx((at(x, first, d) + at(x, first + 1, d)) / 2).epsilon(1e-6));
                }
        CHECK(std::equal(x.begin(), x.begin() + c.NH * c.HS * c.C, y.begin()));    // queries stay
        // The merged heads, each twice, in the whole model.
        toy_model(alike, c, {Use::infer, 2, 7});
        for (const char* name : {".qkvw", ".qkvb"})
            change_each(alike, name, [&](std::vector<float>& w, size_t) {
                const size_t head = w.size() / size_t(c.NH + 2 * c.NKV);
                for (size_t h = size_t(c.NH); h < size_t(c.NH + 2 * c.NKV); h += 2)
                    std::copy_n(w.begin() + long(h * head), head, w.begin() + long((h + 1) * head));
            });
        make_cut(again, alike, {all, into});
        const std::vector<double> expected = losses(alike), found = losses(again);
        CHECK(relative_error(found.data(), expected.data(), 14) < 1e-5);
    });
    // Heads leave first, then what stays is merged.
    Model whole(reference_ops()), cut(reference_ops());
    toy_model(whole, WHOLE, {Use::infer, 2, 7});
    make_cut(cut, whole, {{{0, 3}, {1, 2}}, 1});
    const std::vector<float> x = tensor(whole, row(whole, "0.qkvb")), y = tensor(cut, row(cut, "0.qkvb"));
    CHECK(y.size() == 4 * 5);
    CHECK(y[5] == x[15]);
    CHECK(y[10] == doctest::Approx((x[20] + x[35]) / 2));
}

TEST_CASE("prune: which heads leave, and how many") {
    for (auto& [text, groups, leave] : {std::tuple{"30%", 12, 4}, {"0.3", 10, 3}, {"3", 4, 3}, {"100%", 4, 3},
                                       {"50%", 3, 2}, {"1.0", 2, 1}, {"12.5%", 8, 1}, {"30%", 4, 1}}) {
        CAPTURE(text);
        const Result<int> found = groups_to_remove(text, groups);
        REQUIRE(found.ok());
        CHECK(found.value == leave);
    }
    for (const char* text : {"", "%", "x", "-1", "0", "0%", "1.5", "101%", "4", "1e9", "3 %", "30%%", "nan", "5%"}) {
        CAPTURE(text);
        CHECK(groups_to_remove(text, 4).status.code == Exit::usage);
    }
    CHECK(groups_to_remove("50%", 1).status.code == Exit::usage);

    const std::vector<double> each = {3, 1, 2, 4, 1, 1, 9, 0};
    using Groups = std::vector<std::vector<int>>;
    CHECK(most_important(WHOLE, each, 2) == Groups{{0, 3}, {0, 2}});
    CHECK(most_important(GROUPS, each, 1) == Groups{{1}, {1}});
    Config t5 = WHOLE;
    t5.position = Position::t5;
    CHECK(most_important(t5, each, 2) == Groups{{0, 2}, {0, 2}});
    // Every pair is drawn about as often as any other.
    std::map<std::vector<int>, int> seen;
    for (uint64_t seed = 0; seed < 300; seed++)
        for (const std::vector<int>& stay : random_groups(WHOLE, 2, seed)) seen[stay]++;
    CHECK(seen.size() == 6);
    for (auto& [stay, times] : seen) CHECK((times > 60 && times < 140));
}

namespace {
std::string trained(const Toy& toy, const std::string& name, const std::vector<std::string>& more) {
    std::vector<std::string> args = toy.args(name, {"--steps", "30", "--heads", "4", "--channels", "32"});
    for (size_t i = 0; i < more.size(); i += 2) Toy::set(args, more[i], more[i + 1]);
    must(args);
    return toy.dir + "/" + name;
}
nlohmann::json pruned(const Toy& toy, const std::string& model, const std::string& out,
                      std::vector<std::string> more) {
    std::vector<std::string> args = {"prune", model, "--data", toy.dir + "/train.bin", "--eval-data",
                                     toy.dir + "/val.bin", "--out", toy.dir + "/" + out, "--tokens", "256", "--json"};
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
    // The least important head of each layer.
    std::string rows = "layer,head,importance,removed\n";
    for (size_t l : {0, 1}) {
        const auto& all = j["importance"][l];
        const int least = int(std::min_element(all.begin(), all.end()) - all.begin());
        CHECK(j["removed"][l] == nlohmann::json{least});
        for (int h = 0; h < 4; h++)
            rows += std::to_string(l) + "," + std::to_string(h) + "," + json_number(all[size_t(h)].get<double>()) +
                    (h == least ? ",1\n" : ",0\n");
    }
    CHECK(read_file(csv) == rows);
    must({"info", out}, 0, "3 heads");
    must({"sample", out, "--prompt", "abc", "--tokens", "8"});
    must({"convert", out, toy.dir + "/again"});
    CHECK(same_file(out + "/model.safetensors", toy.dir + "/again/model.safetensors"));
    // On with the command that it names.
    std::vector<std::string> train;
    std::istringstream words(j["train"].get<std::string>());
    for (std::string word; words >> word;)
        if (word != "flatgpt") train.push_back(word);
    CHECK(contains(j["train"].get<std::string>(), "--batch 4 --lr 0.001 --steps 200"));    // a third of the run's
    Toy::set(train, "--steps", "20");
    must(train);
    CHECK(perplexity(toy, out + "-trained") < perplexity(toy, out));
    // For people.
    const std::string text = must({"prune", run, "--data", toy.dir + "/val.bin", "--heads", "1", "--random", "3",
                                   "--kv-heads", "1", "--out", toy.dir + "/other"}).out;
    CHECK(text.starts_with("removed                layer 0: "));
    CHECK(contains(text, "heads                  4 -> 3 in each layer (25.0 % fewer)\nkv heads               4 -> 1 "));
    CHECK(contains(text, "\nto train on:\n  flatgpt train --from "));
    CHECK_FALSE(contains(text, "importance"));
    const std::string table = must({"prune", run, "--data", toy.dir + "/val.bin", "--dry-run", "--heads", "1"}).out;
    CHECK(contains(table, "100.0"));
    CHECK(std::count(table.begin(), table.end(), 'x') == 3);    // two heads, and what x means
}

TEST_CASE("prune: a Llama of grouped heads, from a directory and from a quantised GGUF file, stays a Llama") {
    Toy toy;
    const std::string run = trained(toy, "run", {"--model", "llama:d1", "--layers", "2", "--heads", "4", "--kv-heads",
                                                 "2", "--channels", "32"});
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
        CHECK(perplexity(toy, toy.dir + "/" + out) == j["perplexity"]["after"]);
    }
    const std::string told = must({"prune", run, "--data", toy.dir + "/val.bin", "--kv-heads", "1", "--out",
                                   toy.dir + "/told"}).out;
    CHECK(contains(told, "heads                  4 in each layer\nkv heads               2 -> 1 in each layer\n"));
    const nlohmann::json j = pruned(toy, run, "merged", {"--kv-heads", "1"});
    CHECK(j["heads"] == nlohmann::json{{"before", 4}, {"after", 4}});
    CHECK(j["removed"] == nlohmann::json{nlohmann::json::array(), nlohmann::json::array()});
    CHECK_FALSE(j.contains("importance"));
}

TEST_CASE("prune: a note says that the smaller model is F32 where the whole one is not") {
    Toy toy;
    const std::string run = trained(toy, "run", {"--model", "llama:d1", "--layers", "2", "--heads", "4", "--channels",
                                                 "32", "--steps", "1"});
    auto noted = [&](const std::string& model) {
        const std::string out = toy.dir + "/small";
        const ProcessResult r = must({"prune", model, "--data", toy.dir + "/val.bin", "--heads", "1", "--random", "1",
                                      "--out", out});
        const std::string size = human_bytes(double(fs::file_size(out + "/model.safetensors")));
        fs::remove_all(out);
        const std::string start = "note: " + out + " is written as F32 (" + size + "), while " + model + " has ";
        const size_t at = r.err.find(start);
        CHECK((at != r.err.npos || !contains(r.err, "note: ")));
        return at == r.err.npos ? "" : r.err.substr(at + start.size(), r.err.find(';', at) - at - start.size());
    };
    CHECK(noted(run) == "");
    Model g(cpu_ops<float>());
    REQUIRE(g.allocate(checkpoint_config(toy.newest("run")).value, {Use::infer, 1, 1}).ok());
    REQUIRE(checkpoint_weights(toy.newest("run"), g).ok());
    std::vector<TensorSource> weights;
    checkpoint_tensors(g, Part::weights, "", &weights);
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
    refused(run, {}, "expected --heads");
    refused(run, {"--heads", "1"}, "--out is required");
    refused(run, {"--dry-run", "--out", out}, "--dry-run, --out");
    refused(run, {"--random", "1", "--kv-heads", "2", "--out", out}, "--random 1 needs --heads");
    refused(run, {"--kv-heads", "2", "--out", out, "--csv", out}, "--csv");
    refused(run, {"--heads", "1", "--out", toy.dir}, "already there");
    refused(run, {"--heads", "1", "--out", out + "/deeper"}, "there is no directory " + out, 4);
    refused(run, {"--heads", "4", "--out", out}, "expected 1 to 3");
    refused(run, {"--heads", "many", "--out", out}, "found \"many\"");
    refused(run, {"--kv-heads", "3", "--out", out}, "expected a divisor of 4");
    refused(run, {"--kv-heads", "4", "--out", out}, "nothing is to be merged");
    refused(run, {"--heads", "1", "--kv-heads", "2", "--out", out}, "divisor of 3, the key/value heads that --heads");
    refused(run, {"--heads", "1", "--seq-len", "64", "--out", out}, "--seq-len 64");
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

// test_small_runs.cpp - options of `train` from which small runs gain: penalties of the loss, first
// weights, a cap of the logits.
#include "files/json.h"
#include "model/families/families.h"
#include "tensors.h"
#include "toy_ranks.h"

namespace {
typedef std::vector<std::string> Words;
Words eval_of(const Toy& toy, const std::string& run) {
    return {"eval",  toy.dir + "/" + run, "--data", toy.dir + "/val.bin", "--eval-tokens",
            "256",   "--dtype",           "fp32",   "--device",           "cpu",
            "--json"};
}
// Values of a key of metrics.jsonl, step by step.
std::vector<double> series(const Toy& toy, const std::string& run, const std::string& key) {
    std::ifstream file(toy.dir + "/" + run + "/metrics.jsonl");
    std::vector<double> all;
    for (std::string line; std::getline(file, line);)
        if (const nlohmann::json row = nlohmann::json::parse(line); row.contains(key)) all.push_back(row[key]);
    return all;
}
}    // namespace

TEST_CASE("small runs: z-loss and label smoothing change the gradients; the losses stay cross entropy") {
    Toy toy;
    const Words steps = {"--steps", "12", "--eval-every", "6"};
    must(toy.args("plain", steps));
    for (const Words& penalty : std::vector<Words>{{"--z-loss", "0.1"}, {"--label-smoothing", "0.3"}}) {
        const std::string name = penalty[0].substr(2);
        must(toy.args(name, with(steps, penalty)));
        const std::vector<double> losses = series(toy, name, "loss"), plain = series(toy, "plain", "loss");
        REQUIRE(losses.size() == 12);
        CHECK(losses[0] == plain[0]);    // the same weights and batch
        CHECK(series(toy, name, "grad_norm")[0] != series(toy, "plain", "grad_norm")[0]);
        CHECK(losses[11] != plain[11]);
        // Validation and `eval`, which has no such option, agree.
        CHECK(number(must(eval_of(toy, name)).out, "\"loss\":") ==
              doctest::Approx(series(toy, name, "val_loss").back()).epsilon(1e-6));
        CHECK(contains(read_file(toy.dir + "/" + name + "/run.toml"), name + " = "));
        // A resumed run has the penalty, too.
        const std::string metrics = toy.metrics(name);
        must(toy.args("again", with({"--steps", "12", "--eval-every", "6", "--save-every", "6"}, penalty)));
        fs::remove_all(toy.newest("again"));
        must({"train", "--config", toy.dir + "/again/run.toml", "--resume", "auto"});
        CHECK(toy.metrics("again") == metrics);
        fs::remove_all(toy.dir + "/again");
    }
}

TEST_CASE("small runs: with --zero-init a new model's blocks pass on what they get, and learn") {
    Toy toy;
    must(with(toy.args("zero", {"--steps", "1", "--lr", "0", "--weight-decay", "0"}), {"--zero-init"}));
    Model g(cpu_ops<float>());
    const std::string dir = toy.newest("zero");
    REQUIRE(g.allocate(checkpoint_config(dir).value, {RunMode::infer, 1, 4}).ok());
    REQUIRE(checkpoint_weights(dir, g).ok());
    int last = 0;
    for (const Tensor& t : g.tensors) {
        if (t.vector) continue;
        std::vector<float> x(size_t(t.file_rows * t.cols));
        g.read(StateKind::weights, t.offset, int64_t(x.size()), x.data());
        const bool zero = std::ranges::all_of(x, [](float w) { return w == 0; });
        CHECK_MESSAGE(zero == (t.name.ends_with("projw") || t.name.ends_with("fc2w")), t.name);
        last += zero;
    }
    CHECK(last == 4);
    must(with(toy.args("learns", {"--steps", "20"}), {"--zero-init"}));
    const std::vector<double> losses = series(toy, "learns", "loss");
    CHECK(losses.back() < losses[0] - 0.3);
    must(with(toy.args("no", {"--from", dir, "--steps", "1"}), {"--zero-init"}), 2, "--zero-init");
    // Experts' last matrices are 0, too.
    Config c = config_named("d2").value;
    c.experts = c.experts_used = 2, c.fill_experts(), c.zero_init = true;
    int experts = 0;
    for (const Tensor& t : config_tensors(c)) {
        CHECK(t.init != Init::normal_residual);
        experts += t.name.ends_with("expert_downw") && t.init == Init::zero;
    }
    CHECK(experts == 2);
}

TEST_CASE("small runs: --logit-cap bounds the logits in training and in what is written") {
    Toy toy;
    must(toy.args("capped", {"--logit-cap", "0.5", "--steps", "12"}));
    // No token's probability exceeds e^0.5 / (e^0.5 + 256 e^-0.5).
    for (double loss : series(toy, "capped", "loss")) CHECK(loss > std::log(1 + 256 * std::exp(-1.0)));
    const nlohmann::json config = nlohmann::json::parse(read_file(toy.newest("capped") + "/config.json"));
    CHECK(config["flatgpt_logit_softcap"] == 0.5);
    CHECK(checkpoint_config(toy.newest("capped")).value.logit_cap == 0.5f);
    must(toy.args("no", {"--logit-cap", "-1"}), 2, "--logit-cap");
}

TEST_CASE("small runs: nanochat's kinds by a family's name or by flags; QK-norm has no weights without norms'") {
    Toy toy;
    must(toy.args("family", {"--model", "nanochat:d2", "--steps", "20"}));
    CHECK(series(toy, "family", "loss").back() < series(toy, "family", "loss")[0] - 0.3);
    const Config c = checkpoint_config(toy.newest("family")).value;
    CHECK((c.family->type == std::string("nanochat") && c.logit_cap == 15 && c.rope_backwards && !c.norm_weight));
    must(toy.args("flags", {"--model", "llama:d2", "--qk-norm", "head", "--norm-weight", "false", "--steps", "2"}));
    for (const Tensor& t : config_tensors(checkpoint_config(toy.newest("flags")).value)) CHECK(!t.vector);
    CHECK(must({"sample", toy.dir + "/family", "--prompt", "abc", "--tokens", "20", "--ignore-end", "--device", "cpu"})
              .exit_code == 0);
}

TEST_CASE("small runs: penalties belong to the loss on tokens, and what excludes them is named") {
    Toy toy;
    auto refused = [&](const Words& more, const std::string& says) { must(with(toy.args("no"), more), 2, says); };
    refused({"--z-loss", "-1"}, "--z-loss");
    refused({"--label-smoothing", "0.5"}, "--label-smoothing");
    refused({"--z-loss", "0.1", "--teacher", toy.dir}, "--z-loss");
    refused({"--label-smoothing", "0.1", "--teacher", toy.dir}, "--label-smoothing");
    must({"train", "--from", "test/golden/sft", "--prefer", "x.jsonl", "--z-loss", "0.1", "--out", toy.dir + "/no"}, 2,
         "--z-loss");
    CHECK(!fs::exists(toy.dir + "/no"));
}

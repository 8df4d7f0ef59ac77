// test_kind_flags.cpp - options of `train` for a block's design: run.toml, resume, checkpoints;
// `eval` and `sample` beyond the trained context.
#include "files/json.h"
#include "model/families/families.h"
#include "toy_run.h"

namespace {
double eval_loss(const Toy& toy, const std::string& run, const std::vector<std::string>& more = {}) {
    const std::vector<std::string> args = {
        "eval", toy.dir + "/" + run, "--data", toy.dir + "/val.bin", "--device", "cpu", "--dtype", "fp32", "--json"};
    return number(must(with(args, more)).out, "\"loss\":");
}
}    // namespace

TEST_CASE("kind flags: trained, resumed, saved and read back, every kind") {
    const std::vector<std::vector<std::string>> kinds = {
        {"--position", "sinusoidal", "--norm-place", "post", "--activation", "relu"},
        {"--position", "t5", "--norm", "rms", "--gated", "true", "--activation", "silu", "--tied", "false"},
        {"--position", "rope", "--rope-scaling", "ntk", "--rope-factor", "2", "--qk-norm", "head", "--norm-weight",
         "false"},
        {"--position", "alibi", "--parallel", "two", "--score-cap", "20", "--ffn", "48", "--logit-cap", "30"},
        {"--position", "none", "--norm-place", "sandwich", "--embedding-scale", "2"},
        {"--position", "relative_key", "--max-distance", "5", "--window", "9"},
    };
    Toy toy;
    for (const auto& kind : kinds) {
        CAPTURE(kind[1]);
        const std::string name = kind[1];
        must(toy.args(name, with({"--steps", "6", "--save-every", "3", "--keep", "0"}, kind)));
        const std::string toml = read_file(toy.dir + "/" + name + "/run.toml");
        for (size_t i = 0; i < kind.size(); i += 2) CHECK(contains(toml, kind[i].substr(2) + " = "));
        CHECK(contains(toml, "position = \"" + name + "\"\n"));
        // Resumed from step 3, with the options given again and without: equal bits.
        for (bool again : {true, false}) {
            const std::string other = name + (again ? "_again" : "_resumed");
            fs::create_directories(toy.dir + "/" + other);
            fs::copy(toy.dir + "/" + name + "/step_00000003", toy.dir + "/" + other + "/step_00000003",
                     fs::copy_options::recursive);
            std::vector<std::string> more = {"--steps", "6", "--resume", "auto", "--save-every", "3"};
            std::vector<std::string> args = toy.args(other, again ? with(more, kind) : more);
            must(args);
            CHECK(same_file(toy.newest(name) + "/model.safetensors", toy.newest(other) + "/model.safetensors"));
        }
        CHECK(std::isfinite(eval_loss(toy, name)));
        CHECK(must({"sample", toy.dir + "/" + name, "--prompt", "abc", "--tokens", "20", "--ignore-end", "--device",
                    "cpu"})
                  .exit_code == 0);
        must(toy.args(name, {"--steps", "8", "--resume", "auto", "--position", "learned"}), 2, "position");
    }
}

TEST_CASE("kind flags: kinds that no model has together are refused, and both are named") {
    Toy toy;
    must(toy.args("a", {"--rope-scaling", "linear", "--rope-factor", "2"}), 2,
         "--rope-scaling linear needs --position rope");
    must(toy.args("a", {"--position", "rope", "--rope-scaling", "linear"}), 2,
         "--rope-scaling linear needs a --rope-factor above 1");
    must(toy.args("a", {"--position", "rope", "--rope-factor", "2"}), 2, "--rope-factor 2 needs --rope-scaling");
    must(toy.args("a", {"--norm-place", "post", "--parallel", "one"}), 2, "--norm-place post, --parallel one");
    must(toy.args("a", {"--position", "t5", "--score-cap", "3"}), 2, "--score-cap 3, --position t5");
    must(toy.args("a", {"--position", "relative_key", "--score-cap", "3"}), 2,
         "--score-cap 3, --position relative_key");
    must(toy.args("a", {"--position", "relative_key", "--qk-norm", "head"}), 2,
         "--qk-norm head, --position relative_key");
    must(toy.args("a", {"--max-distance", "4"}), 2,
         "--max-distance 4 needs --position relative_key, found --position l");
    must(toy.args("a", {"--position", "relative_key", "--linear-attention", "elu"}), 2, "--position relative_key");
    must(toy.args("a", {"--position", "relative_key", "--window", "8", "--global-tokens", "2", "--objective", "mlm"}),
         2, "--global-tokens 2, --position relative_key, --objective mlm: its biases have no gradient");
    must(toy.args("a", {"--rope-theta", "5000"}), 2,
         "--rope-theta 5000 needs --position rope, found --position learned");
    must(toy.args("a", {"--global-every", "2"}), 2, "--global-every 2 needs --window");
    must(toy.args("a", {"--position", "cosine"}), 2,
         "--position: expected one of model, none, learned, rope, alibi, sinusoidal, t5, relative_key, found "
         "'cosine'");
    CHECK(!fs::exists(toy.dir + "/a/run.toml"));
}

TEST_CASE("kind flags: beyond the context where positions do not end with it") {
    Toy toy;
    for (const char* position : {"learned", "rope", "t5", "sinusoidal", "relative_key"})
        must(toy.args(position, {"--steps", "2", "--position", position}));
    CHECK(eval_loss(toy, "rope", {"--context", "32"}) == eval_loss(toy, "rope"));
    for (const char* position : {"rope", "t5", "sinusoidal", "relative_key"})
        CHECK(std::isfinite(eval_loss(toy, position, {"--context", "128"})));
    const double plain = eval_loss(toy, "rope", {"--context", "64"});
    for (const char* scaling : {"linear", "dynamic", "yarn", "ntk"})
        CHECK(eval_loss(toy, "rope", {"--context", "64", "--rope-scaling", scaling}) != plain);
    // Dynamic scaling is NTK-aware with factor * new / old - (factor - 1): 3 * 64 / 32 - 2 = 4.
    CHECK(eval_loss(toy, "rope", {"--context", "64", "--rope-scaling", "dynamic", "--rope-factor", "3"}) ==
          eval_loss(toy, "rope", {"--context", "64", "--rope-scaling", "ntk", "--rope-factor", "4"}));
    const std::vector<std::string> sample = {"sample", toy.dir + "/rope", "--prompt", "abc",          "--tokens",
                                             "50",     "--device",        "cpu",      "--ignore-end", "--context",
                                             "64"};
    CHECK(must(sample).exit_code == 0);
    auto refused = [&](const char* run, const std::vector<std::string>& more, const char* says) {
        must(with({"eval", toy.dir + "/" + run, "--data", toy.dir + "/val.bin", "--device", "cpu"}, more), 2, says);
    };
    refused("learned", {"--context", "64"}, "--context 64: the model has --position learned, a table of 32");
    refused("t5", {"--context", "64", "--rope-scaling", "ntk"}, "--rope-scaling ntk: the model has --position t5");
    must(with(sample, {"--rope-scaling", "none"}));
    refused("rope", {"--mask-fraction", "0.3"}, "--mask-fraction needs --objective mlm");
    refused("rope", {"--rope-scaling", "ntk"}, "--rope-scaling needs --context");
    refused("rope", {"--seq-len", "64"}, "; --context asks for more");
}

// test_optimizer_flags.cpp - optimizers, groups, small states and averages by `flatgpt train`.
#include "toy_run.h"

namespace {
typedef std::vector<std::string> Words;

std::string run_toml(const Toy& toy, const std::string& run) { return read_file(toy.dir + "/" + run + "/run.toml"); }
double last_number(const Toy& toy, const std::string& run, const std::string& key) {
    const std::string all = toy.metrics(run), quoted = "\"" + key + "\":";
    const size_t at = all.rfind(quoted);
    REQUIRE_MESSAGE(at != all.npos, key << " is not in " << all);
    return std::stod(all.substr(at + quoted.size()));
}
}    // namespace

TEST_CASE("optimizer flags: each optimizer learns, with its own defaults, and info names it") {
    Toy toy;
    for (const std::string name : {"adamw", "muon", "normuon", "lion", "signum"}) {
        CAPTURE(name);
        Words args = toy.args(name, {"--optimizer", name, "--steps", "40", "--lr", "-1"});
        must(args);
        const bool by_sign = name == "lion" || name == "signum";
        CHECK(contains(run_toml(toy, name), by_sign ? "lr = 0.0001\n" : "lr = 0.0006\n"));
        CHECK(contains(run_toml(toy, name), by_sign ? "weight-decay = 0.6" : "weight-decay = 0.1"));
        CHECK(last_number(toy, name, "val_loss") < (by_sign ? 5.5 : 5.3));    // ln 257 = 5.55
        const std::string states = name == "normuon" ? "m row_square v\n" : by_sign ? "m\n" : "m v\n";
        CHECK(contains(must({"info", toy.newest(name) + "/optimizer.safetensors"}).out, states));
    }
}

TEST_CASE("optimizer flags: a resumed run has the bits of one that was not interrupted, with everything on") {
    Toy toy;
    for (const Words& more : {Words{"--optimizer", "normuon", "--state-dtype", "int8,bf16", "--ema", "0.9"},
                              Words{"--optimizer", "adamw", "--state-dtype", "bf16", "--average-tail", "0.6"},
                              Words{"--optimizer", "lion", "--state-dtype", "int8", "--ema", "0.5"}}) {
        CAPTURE(more[1]);
        Words all = more;
        all.insert(all.end(), {"--steps", "12", "--eval-every", "6", "--save-every", "6", "--keep", "0"});
        auto run = [&](const std::string& out, const Words& extra) {
            Words args = toy.args(out, all);
            args.insert(args.end(), {"--clip-groups", "--cautious-decay"});
            for (size_t i = 0; i + 1 < extra.size(); i += 2) toy.set(args, extra[i], extra[i + 1]);
            must(args);
        };
        const std::string a = more[1] + "_a", b = more[1] + "_b";
        run(a, {});
        run(b, {"--resume", toy.dir + "/" + a + "/step_00000006"});
        for (const char* file : {"/model.safetensors", "/optimizer.safetensors"})
            CHECK(same_file(toy.newest(a) + file, toy.newest(b) + file));
        const std::string whole = toy.metrics(a), rest = toy.metrics(b);
        CHECK(whole.ends_with(rest));
        CHECK(contains(rest, "val_loss_average"));
        if (more[1] == "adamw") continue;
        // Codes would be read as numbers.
        Words other = toy.args(b + "x", all);
        toy.set(other, "--state-dtype", "fp32");
        toy.set(other, "--resume", toy.dir + "/" + a + "/step_00000006");
        const ProcessResult r = run_flatgpt(other);
        INFO(r.err);
        CHECK(r.exit_code == 2);
        CHECK(contains(r.err, "m_scales"));
        CHECK(contains(r.err, "--state-dtype"));
    }
}

TEST_CASE("optimizer flags: groups, an average that is exported, and a rate that follows the width") {
    Toy toy;
    must(toy.args("plain", {"--steps", "20"}));
    for (const Words& more :
         {Words{"--lr-embedding", "3"}, Words{"--lr-scalars", "0"}, Words{"--weight-decay-embedding", "0"},
          Words{"--weight-decay-scalars", "1"}, Words{"--param-group", "*.fc*:lr=0.5,decay=0 0.qkvw:lr=2"},
          Words{"--mup-base", "16", "--tied", "false"}, Words{"--momentum", "0.5", "--optimizer", "muon"}}) {
        CAPTURE(more[0]);
        Words all = more;
        all.insert(all.end(), {"--steps", "20"});
        must(toy.args("other" + more[0], all));
        CHECK(!same_file(toy.newest("plain") + "/model.safetensors",
                         toy.newest("other" + more[0]) + "/model.safetensors"));
    }
    must(toy.args("tail", {"--steps", "20", "--average-tail", "0.5", "--eval-every", "5"}));
    const std::string metrics = toy.metrics("tail");
    CHECK(metrics.find("val_loss_average") > metrics.find("\"step\":15"));
    const std::string out = toy.dir + "/averaged";
    must({"convert", toy.dir + "/tail", out, "--average"});
    const ProcessResult r =
        must({"eval", out, "--data", toy.dir + "/val.bin", "--seq-len", "32", "--batch", "4", "--json"});
    CHECK(std::isfinite(number(r.out, "\"loss\":")));
    must({"convert", toy.dir + "/plain", out + "2", "--average"}, 2, "--average");
    // A decay may begin an average, and leave one out.
    must(toy.args("decay", {"--steps", "24", "--average-tail", "0.1", "--decay-from", toy.newest("plain")}));
    CHECK(contains(toy.metrics("decay"), "val_loss_average"));
    must(toy.args("without", {"--steps", "24", "--decay-from", toy.newest("tail")}));
    CHECK(!contains(toy.metrics("without"), "val_loss_average"));
}

TEST_CASE("optimizer flags: the dry run foretells memory and Newton-Schulz's work, and warns where it does not pay") {
    Toy toy;
    const Words wide = {"--channels", "512", "--heads", "8", "--layers", "4", "--steps", "2", "--optimizer", "muon"};
    Words args = toy.args("memory", wide);
    const std::string said = check_memory(with(args, {"--state-dtype", "int8", "--ema", "0.9"}), 100e6);
    CHECK(contains(said, "Newton-Schulz takes"));
    CHECK(contains(said, "a larger --total-batch pays"));
    Words large = toy.args("large", wide);
    toy.set(large, "--total-batch", "131072");
    large.push_back("--dry-run");
    CHECK(!contains(must(large).out, "a larger --total-batch pays"));
}

TEST_CASE("optimizer flags: what is wrong is refused, and named") {
    Toy toy;
    auto refused = [&](const Words& more, const std::string& says) {
        CAPTURE(says);
        must(toy.args("never", more), 2, says);
        CHECK(!fs::exists(toy.dir + "/never"));
    };
    refused({"--optimizer", "adam"}, "adamw");
    refused({"--momentum", "0.9"}, "--optimizer muon");
    refused({"--state-dtype", "fp16"}, "expected fp32, bf16 or int8");
    refused({"--state-dtype", "int8,int8,int8"}, "expected fp32, bf16 or int8");
    refused({"--state-dtype", ""}, "expected fp32, bf16 or int8");
    refused({"--param-group", "0.qkvw"}, "PATTERN:lr=FACTOR");
    refused({"--param-group", "0.qkvw:lr"}, "PATTERN:lr=FACTOR");
    refused({"--param-group", "0.qkvw:lr=x"}, "PATTERN:lr=FACTOR");
    refused({"--param-group", "0.qkvw:rate=1"}, "PATTERN:lr=FACTOR");
    refused({"--param-group", "0.qkvw:lr=-1"}, "PATTERN:lr=FACTOR");
    refused({"--param-group", "9.qkvw:lr=1"}, "9.qkvw");
    refused({"--lr-head", "2"}, "--lr-embedding");
    refused({"--mup-base", "16"}, "--tied false");
    refused({"--param-group", "*.q_proj.weight:lr=2", "--model", "llama:d2"}, "names 1 of the 3 matrices");
    refused({"--ema", "0.9", "--average-tail", "0.5"}, "--ema");
    refused({"--ema", "1"}, "0.99");
    refused({"--lr", "-0.5"}, "not negative");
    refused({"--weight-decay", "-0.1"}, "not negative");
    must(toy.args("base", {"--steps", "1"}));
    Words adapter = toy.args("adapter", {"--steps", "2", "--from", toy.dir + "/base", "--lora-rank", "2"});
    for (const char* flag : {"--layers", "--heads", "--channels"}) {
        const auto at = std::find(adapter.begin(), adapter.end(), flag);
        adapter.erase(at, at + 2);
    }
    must(with(adapter, {"--optimizer", "muon"}), 2, "--optimizer muon");
    must(with(adapter, {"--optimizer", "lion", "--state-dtype", "int8"}));
}

TEST_CASE("optimizer flags: a recipe fills in what is not given, says why, and is kept by run.toml") {
    Toy toy;
    Words args = toy.args("r", {"--lr", "-1", "--recipe", "compute-optimal", "--tokens", "4000"});
    const auto lr = std::find(args.begin(), args.end(), "--lr");
    args.erase(lr, lr + 2);
    const ProcessResult r = must(args, 0, "recipe compute-optimal");
    for (const char* says : {"--optimizer muon", "--total-batch", "--steps", "--lr 0.0", "Bergsma", "DeepSeek"})
        CHECK(contains(r.err, says));
    const std::string toml = run_toml(toy, "r");
    CHECK(contains(toml, "optimizer = \"muon\""));
    CHECK(contains(toml, "lr-schedule = \"linear\""));
    CHECK(contains(toml, "final-lr-frac = 0.0"));
    CHECK(number(toml, "\ntotal-batch = ") > 0);
    const double steps = number(toml, "\nsteps = "), batch = number(toml, "\ntotal-batch = ");
    CHECK(std::fabs(steps * batch - 4000) <= batch / 2 + 1);
    // The same run again, from its file: nothing is left open, so nothing is chosen.
    const ProcessResult again = must({"train", "--config", toy.dir + "/r/run.toml", "--resume", "auto"});
    CHECK(contains(again.err, "nothing to do"));
    CHECK(!contains(again.err, "recipe"));
    Words given = toy.args("given", {"--recipe", "compute-optimal", "--optimizer", "lion", "--steps", "3"});
    must(given);
    CHECK(contains(run_toml(toy, "given"), "optimizer = \"lion\""));
    CHECK(contains(run_toml(toy, "given"), "steps = 3\n"));
    CHECK(contains(run_toml(toy, "given"), "lr = 0.003\n"));
    must(toy.args("bad", {"--recipe", "compute-optimal", "--epochs", "2"}), 2, "--tokens");
    must(toy.args("bad", {"--tokens", "1000"}), 2, "--recipe");
}

// test_validation.cpp - validation losses, best checkpoints, --patience, no ignored options.
#include "infer/eval/evaluate.h"
#include "infer/decode/generate.h"

#include <sstream>

#include "layers/cpu.h"
#include "toy_run.h"
#include "toy_model.h"

namespace {
std::vector<double> values(const std::string& metrics, const std::string& key) {
    std::vector<double> all;
    std::istringstream lines(metrics);
    for (std::string line; std::getline(lines, line);)
        if (contains(line, key)) all.push_back(number(line, key));
    return all;
}
ProcessResult must_run(const std::vector<std::string>& args, int code = 0, const std::string& says = "") {
    ProcessResult r = run_flatgpt(args);
    INFO(r.err);
    CHECK(r.exit_code == code);
    CHECK(contains(r.err, says));
    return r;
}
std::string step_dir(const Toy& toy, const std::string& out, int step) {
    char name[16];
    snprintf(name, sizeof name, "step_%08d", step);
    return toy.dir + "/" + out + "/" + name;
}
}    // namespace

TEST_CASE("validation: the same figure whatever the batch, and from eval") {
    Toy toy;
    toy.write("val", 30011, 2);
    toy.write("val2", 5000, 4);
    const std::string both = toy.dir + "/val.bin," + toy.dir + "/val2.bin";
    std::vector<double> losses;
    for (const char* batch : {"1", "4", "16"}) {
        const std::string out = std::string("b") + batch;
        // lr 0 keeps the initial weights, so that runs with different batches have equal models.
        must_run(
            toy.args(out, {"--steps", "2", "--batch", batch, "--lr", "0", "--val", both, "--eval-tokens", "8000"}));
        losses.push_back(values(toy.metrics(out), "\"val_loss\":").back());
        CHECK(losses.back() == doctest::Approx(losses[0]).epsilon(1e-6));
        ProcessResult e = must_run({"eval", toy.dir + "/" + out, "--data", both, "--eval-tokens", "8000", "--dtype",
                                    "fp32", "--json", "--batch", "7"});
        CHECK(number(e.out, "{\"loss\":") == doctest::Approx(losses[0]).epsilon(1e-6));
        CHECK(number(e.out, "\"tokens\":") == 8000);
    }
    ProcessResult all = must_run({"eval", toy.dir + "/b1", "--data", both, "--json"});
    CHECK(number(all.out, "\"tokens\":") == 30010 / 32 * 32 + 4999 / 32 * 32);    // whole windows
}

TEST_CASE("evaluate: the loss of a model does not depend on the batch, a ragged last one included") {
    Toy toy;
    Model g(cpu_ops<float>());
    toy_model(g, {257, 32, 2, 2, 32, 128, 1e-5f}, {RunMode::infer, 16, 32});
    const Result<Tokenizer> tokenizer = Tokenizer::load(toy.dir + "/tok.json");
    REQUIRE(tokenizer.ok());
    std::vector<Evaluation> all;
    for (int B : {1, 5, 16}) {
        Result<Loader> loader = Loader::open(
            {.pattern = toy.dir + "/val.bin", .B = B, .S = 32, .vocab = 257, .shuffle = false, .max_tokens = 37 * 32});
        REQUIRE(loader.ok());
        int64_t calls = 0;
        Result<Evaluation> e = evaluate(g, loader.value, tokenizer.value, B, 32,
                                        [&](int64_t, int64_t windows) { calls += windows == 37; });
        REQUIRE(e.ok());
        all.push_back(e.value);
        CHECK(calls == ceil_div(37, B));
        CHECK(all.back().tokens == 37 * 32);
        CHECK(all.back().loss == doctest::Approx(all[0].loss).epsilon(1e-6));
        CHECK(all.back().bits_per_byte == doctest::Approx(all[0].loss / std::log(2.0)).epsilon(1e-6));
    }
}

TEST_CASE("loader: some of an epoch's samples lie evenly over all shards, whatever the batch and the ranks") {
    Toy toy;
    for (int i = 0; i < 4; i++) toy.write("s" + std::to_string(i), 32 * 25 + 1, uint64_t(i));
    auto open = [&](int B, int rank, int ranks, int64_t most) {
        Result<Loader> l = Loader::open({.pattern = toy.dir + "/s*.bin",
                                         .B = B,
                                         .S = 32,
                                         .vocab = 64,
                                         .rank = rank,
                                         .ranks = ranks,
                                         .shuffle = false,
                                         .max_tokens = most});
        REQUIRE(l.ok());
        return std::move(l.value);
    };
    auto windows = [](Loader& l, int B, int count) {
        std::vector<std::vector<int>> all;
        std::vector<int> tokens(size_t(B * 32)), targets(tokens.size());
        for (int i = 0; i < count; i += B) {
            REQUIRE(l.next(tokens.data(), targets.data()).ok());
            for (int b = 0; b < B; b++) all.emplace_back(tokens.begin() + b * 32, tokens.begin() + b * 32 + 32);
        }
        return all;
    };
    Loader whole = open(1, 0, 1, 0), some = open(1, 0, 1, 32 * 8 - 5);
    CHECK(whole.samples() == 100);
    CHECK(some.samples() == 8);    // 251 tokens: rounded up
    const auto all = windows(whole, 1, 100), chosen = windows(some, 1, 8);
    for (int i = 0; i < 8; i++) CHECK(chosen[size_t(i)] == all[size_t(i * 100 / 8)]);
    for (int rank = 0; rank < 2; rank++) {
        Loader mine = open(2, rank, 2, 32 * 8);
        const auto got = windows(mine, 2, 4);
        for (int i = 0; i < 4; i++) CHECK(got[size_t(i)] == chosen[size_t(i / 2 * 4 + rank * 2 + i % 2)]);
    }
    Loader more = open(1, 0, 1, 1 << 30);
    CHECK(more.samples() == 100);
}

TEST_CASE("train: --patience ends the run, and goes on ending it; --keep-best keeps the best checkpoint") {
    Toy toy;
    // With lr 0 the first validation is the best for ever.
    const std::vector<std::string> flags = {"--steps",    "100", "--lr",   "0", "--eval-every", "5",
                                            "--patience", "2",   "--keep", "1", "--resume",     "auto"};
    ProcessResult r = must_run(toy.args("a", flags), 0, "has not fallen for 2 validations");
    CHECK(contains(r.err, "the best by validation is step 5"));
    CHECK(values(toy.metrics("a"), "\"val_loss\":").size() == 3);
    const std::vector<std::string> kept = {step_dir(toy, "a", 5), step_dir(toy, "a", 15)};
    CHECK(checkpoint_list(toy.dir + "/a") == kept);
    must_run(toy.args("a", flags), 0, "nothing to do");
    CHECK(checkpoint_list(toy.dir + "/a") == kept);
    for (auto [which, dir] : {std::pair{"best", "step_00000005"}, {"last", "step_00000015"}, {"5", "step_00000005"}}) {
        must_run({"sample", toy.dir + "/a", "--checkpoint", which, "--tokens", "3"}, 0, dir);
        must_run({"eval", toy.dir + "/a", "--checkpoint", which, "--data", toy.dir + "/val.bin"}, 0, dir);
    }
    must_run({"sample", toy.dir + "/a", "--checkpoint", "7", "--tokens", "3"}, 2, "7");
    // Without --keep-best the newest alone stays. A run that learns has its best at the end.
    std::vector<std::string> plain = toy.args("b", {"--steps", "15", "--lr", "0", "--eval-every", "5", "--keep", "1"});
    plain.push_back("--keep-best=false");
    must_run(plain);
    CHECK(checkpoint_list(toy.dir + "/b") == std::vector{step_dir(toy, "b", 15)});
    r = must_run(toy.args("c", {"--steps", "20", "--eval-every", "5", "--keep", "0"}));
    CHECK(!contains(r.err, "the best by validation"));
    CHECK(checkpoint_list(toy.dir + "/c").size() == 4);    // each validation was the best
    // A copy of the validation set under another path: the best stays the best.
    const std::string away = toy.dir + "/away";
    fs::create_directory(away);
    fs::copy_file(toy.dir + "/val.bin", away + "/val.bin");
    must_run(toy.args("a", {"--steps", "100", "--lr", "0", "--eval-every", "5", "--patience", "3", "--keep", "1",
                            "--resume", "auto", "--val", away + "/val.bin"}),
             0, "step 20: the validation loss");
    CHECK(checkpoint_list(toy.dir + "/a") == std::vector{step_dir(toy, "a", 5), step_dir(toy, "a", 20)});
    // Another validation set: its losses are not compared with the old one's.
    toy.write("other", 2000, 9);
    must_run(toy.args("a", {"--steps", "100", "--lr", "0", "--eval-every", "5", "--patience", "2", "--keep", "1",
                            "--resume", "auto", "--val", toy.dir + "/other.bin"}),
             0, "step 35: the validation loss");
}

TEST_CASE("train: a best checkpoint that could not be saved is not the best") {
    Toy toy;
    std::vector<std::string> a = toy.args("a", {"--steps", "20", "--lr", "0", "--eval-every", "5", "--keep", "0"});
    fs::create_directories(toy.dir + "/a");
    write_file(step_dir(toy, "a", 5), "in the way");
    ProcessResult r = must_run(a, 0, "no checkpoint of step 5");
    CHECK(contains(r.err, "the best by validation is step 10"));
    must_run({"sample", toy.dir + "/a", "--checkpoint", "best", "--tokens", "3"}, 0, "step_00000010");
    // The newest checkpoint records which one is the best, even if that is an older one.
    must_run({"sample", toy.dir + "/a", "--checkpoint", "20", "--tokens", "3"}, 0, "the best by validation is step 10");
}

TEST_CASE("eval: a run is measured in its own type, and has validation's bits") {
    Toy toy;
    int runs = 0;
    auto check = [&](const char* dtype, std::vector<std::string> more) {
        const std::string name = "run" + std::to_string(runs++);
        more.insert(more.begin(), {"--steps", "5", "--dtype", dtype, "--eval-tokens", "0"});
        must_run(toy.args(name, more));
        const ProcessResult e =
            must_run({"eval", toy.dir + "/" + name, "--data", toy.dir + "/val.bin", "--json"}, 0, dtype);
        CHECK(number(e.out, "{\"loss\":") == values(toy.metrics(name), "\"val_loss\":").back());
        CHECK_FALSE(contains(e.err, "weights "));    // no packed weights
    };
    check("fp32", {});
    check("bf16", {}), check("bf16", {"--stochastic-rounding"});
    // With tiles, sums of floats differ from those of packed weights, which eval must not use.
    const char* before = getenv("FLATGPT_AMX");
    const std::string own = before ? before : "";
    setenv("FLATGPT_AMX", "pretend", 1);
    check("fp32", {});
    setenv("FLATGPT_AMX", own.c_str(), 1);
}

TEST_CASE("train: checkpoints by the clock") {
    Toy toy;
    must_run(toy.args("a", {"--steps", "5", "--keep", "0"}));
    CHECK(checkpoint_list(toy.dir + "/a").size() == 1);
    must_run(toy.args("b", {"--steps", "5", "--keep", "0", "--save-minutes", "1e-9"}));
    CHECK(checkpoint_list(toy.dir + "/b").size() == 5);
    CHECK(same_file(toy.newest("a") + "/model.safetensors", toy.newest("b") + "/model.safetensors"));
}

TEST_CASE("train: shards of another tokenizer are refused by name before the first step, validation's too") {
    Toy toy;
    const std::string bytes =
        "It is a truth universally acknowledged, that a single man in possession of a good "
        "fortune, must be in want of a wife.\n";
    std::string text;
    for (int i = 0; i < 60; i++) text += bytes;
    std::ofstream(toy.dir + "/t.txt") << text;
    must_run({"train-tokenizer", "--vocab", "300", "--out", toy.dir + "/t.json", toy.dir + "/t.txt"});
    must_run({"tokenize", "--tokenizer", toy.dir + "/t.json", "--out", toy.dir + "/t", toy.dir + "/t.txt"});
    must_run({"tokenize", "--tokenizer", toy.dir + "/tok.json", "--out", toy.dir + "/bytes", toy.dir + "/t.txt"});
    const std::string own = toy.dir + "/t_train_000.bin", other = toy.dir + "/bytes_train_000.bin";
    auto args = [&](const std::string& out, const std::string& data, const std::string& val, const char* tokenizer) {
        std::vector<std::string> a = toy.args(out, {"--steps", "2", "--data", data, "--val", val, "--tokenizer",
                                                    toy.dir + tokenizer, "--resume", "auto"});
        return a;
    };
    for (auto& [data, val, bad] : {std::tuple{other, own, other}, {own, other, other}}) {
        ProcessResult r = must_run(args("x", data, val, "/t.json"), 3, bad);
        CHECK(contains(r.err, "300"));
        CHECK(contains(r.err, "257"));
        CHECK(!contains(r.err, "step 1/"));
    }
    std::vector<std::string> forgotten = args("x", own, own, "/t.json");    // default: GPT-2's
    forgotten.erase(std::find(forgotten.begin(), forgotten.end(), "--tokenizer"),
                    std::find(forgotten.begin(), forgotten.end(), "--tokenizer") + 2);
    must_run(forgotten, 3, own);
    must_run(args("a", own, own, "/t.json"));
    must_run(args("a", own, own, "/tok.json"), 2, "/tok.json");    // resumed with another tokenizer
    fs::remove(toy.dir + "/t.json");
    std::vector<std::string> gone = args("a", own, own, "/t.json");
    Toy::set(gone, "--steps", "3");
    must_run(gone);    // the checkpoint holds the tokenizer
    Toy::set(gone, "--tokenizer", toy.dir + "/mistyped.json");
    must_run(gone, 3, "mistyped.json");
    const std::string run = toy.dir + "/a";
    must_run({"eval", run, "--data", own});
    must_run({"eval", run, "--data", other}, 3, other);
    must_run({"eval", run, "--data", own, "--tokenizer", "gpt2"}, 2, "--tokenizer gpt2");
    must_run({"sample", run, "--tokenizer", toy.dir + "/tok.json"}, 2, "tok.json");
}

TEST_CASE("train: no option is passed over in silence") {
    Toy toy;
    must_run(toy.args("a", {"--steps", "6"}));
    const std::vector<std::string> tune = {"train", "--from",       toy.dir + "/a", "--data", toy.dir + "/train.bin",
                                           "--out", toy.dir + "/t", "--steps",      "2",      "--dtype",
                                           "fp32"};
    must_run(with(tune, {"--model", "d6"}), 2, "6 layers");
    must_run(with(tune, {"--eval-every", "2"}), 2, "--val");
    must_run(with(tune, {"--patience", "2"}), 2, "--eval-every");
    must_run(with(tune, {"--sample-prompt", "x"}), 2, "--sample-every");
    must_run(toy.args("a", {"--steps", "5", "--resume", "auto"}), 2, "6 steps already");
    must_run(toy.args("a", {"--steps", "6", "--resume", "auto"}), 0, "nothing to do");
    ProcessResult r = must_run(
        toy.args("a", {"--steps", "8", "--resume", "auto", "--lr", "1e-3", "--batch", "2", "--total-batch", "128"}));
    CHECK(contains(r.err, "resumed from " + step_dir(toy, "a", 6) +
                              " after step 6; changed: batch 4 -> 2, lr 0.003 -> "
                              "0.001, steps 6 -> 8"));
    r = must_run(
        toy.args("a", {"--steps", "10", "--resume", "auto", "--lr", "1e-3", "--batch", "2", "--total-batch", "128"}));
    CHECK(contains(r.err, "; changed: steps 8 -> 10\n"));
    // Options that are not given again are taken from the checkpoint.
    must_run({"train", "--data", toy.dir + "/train.bin", "--seq-len", "32", "--out", toy.dir + "/a", "--seed", "5",
              "--dtype", "fp32", "--resume", "auto", "--steps", "11"},
             0, "after step 10");
    must_run({"train", "--config", toy.dir + "/a/run.toml", "--resume", "auto", "--steps", "12"}, 0, "after step 11");
    must_run(with(tune, {"--eval-tokens", "5"}), 2, "--val");
    // A run whose shape came from a model's directory resumes without that directory.
    std::vector<std::string> shaped = toy.args("shaped", {"--steps", "2"});
    Toy::set(shaped, "--model", toy.dir + "/a");
    for (const char* flag : {"--layers", "--heads", "--channels"})
        shaped.erase(std::find(shaped.begin(), shaped.end(), flag), std::find(shaped.begin(), shaped.end(), flag) + 2);
    must_run(shaped);
    fs::rename(toy.dir + "/a", toy.dir + "/moved");
    must_run({"train", "--config", toy.dir + "/shaped/run.toml", "--resume", "auto", "--steps", "3"});
}

TEST_CASE("train: --vocab takes shards without a tokenizer; a model without one may be GPT-2's") {
    Toy toy;
    std::vector<std::string> a = {"train",
                                  "--data",
                                  toy.dir + "/train.bin",
                                  "--layers",
                                  "1",
                                  "--heads",
                                  "1",
                                  "--channels",
                                  "16",
                                  "--seq-len",
                                  "32",
                                  "--batch",
                                  "4",
                                  "--steps",
                                  "2",
                                  "--dtype",
                                  "fp32",
                                  "--out",
                                  toy.dir + "/chars",
                                  "--vocab",
                                  "65"};
    ProcessResult r = must_run(a, 0, "vocabulary 65");
    CHECK(!fs::exists(toy.newest("chars") + "/tokenizer.json"));
    must_run({"eval", toy.dir + "/chars", "--data", toy.dir + "/val.bin"});
    Toy::set(a, "--vocab", "3"), Toy::set(a, "--out", toy.dir + "/x");
    must_run(a, 3, "train.bin");    // the data has ids above 2
    Toy::set(a, "--vocab", "65"), Toy::set(a, "--sample-every", "1");
    must_run(a, 2, "--tokenizer");
    Toy::set(a, "--vocab", "65"), Toy::set(a, "--sample-every", "0"), Toy::set(a, "--tokenizer", "gpt2");
    must_run(a, 2, "50257");

    Toy::set(a, "--vocab", "0"), Toy::set(a, "--steps", "1");
    must_run(a);
    fs::remove(toy.newest("x") + "/tokenizer.json");
    // Without these files it is like a model from the Hub.
    for (const char* gone : {"/MANIFEST", "/state.json"}) fs::remove(toy.newest("x") + gone);
    must_run({"train", "--from", toy.newest("x"), "--data", toy.dir + "/train.bin", "--out", toy.dir + "/y", "--steps",
              "1", "--batch", "4", "--dtype", "fp32"},
             0, "taken for GPT-2's");
    CHECK(fs::exists(toy.newest("y") + "/tokenizer.json"));
    must_run({"train", "--from", toy.newest("chars"), "--data", toy.dir + "/train.bin", "--out", toy.dir + "/z",
              "--steps", "1", "--batch", "4", "--dtype", "fp32"},
             0, "vocabulary 65");
    CHECK(!fs::exists(toy.newest("z") + "/tokenizer.json"));
}

TEST_CASE("train: warns when the data is read too often") {
    Toy toy;
    toy.write("small", 6 * 32 + 1, 1);    // 192 tokens for 34.7 thousand parameters
    const std::string data = toy.dir + "/small.bin";
    must_run(toy.args("a", {"--steps", "32", "--data", data}), 0,
             "reads its data 21 times (192 tokens, fewer than the "
             "model's 34.7k parameters)");
    CHECK(contains(must_run(toy.args("b", {"--steps", "9", "--data", data})).err, "warning"));
    // The data is read 4 times: not too often.
    CHECK(!contains(must_run(toy.args("c", {"--steps", "6", "--data", data})).err, "warning"));
    // Fine-tuning: most weights were learnt elsewhere, so only repetition counts, not their number.
    std::vector<std::string> tune = {"train",   "--from", toy.dir + "/c", "--data", data,      "--out", toy.dir + "/d",
                                     "--steps", "9",      "--batch",      "4",      "--dtype", "fp32"};
    CHECK(!contains(must_run(tune).err, "warning"));
    Toy::set(tune, "--steps", "32"), Toy::set(tune, "--out", toy.dir + "/e");
    must_run(tune, 0, "reads its data 21 times (192 tokens): it");
}

TEST_CASE("generate: a text without a prompt begins where documents or lines begin") {
    const Tokenizer with = Tokenizer::from_merges({}, Pattern::gpt2, {"<|endoftext|>"});
    const Tokenizer without = Tokenizer::from_merges({}, Pattern::gpt2, {});
    const std::vector<int> line = with.encode("\n"), document = {with.end_of_text()};
    REQUIRE(line.size() == 1);
    CHECK(beginning_of_text(with, -1) == document);    // -1: unknown
    CHECK(beginning_of_text(with, 16) == document);
    CHECK(beginning_of_text(with, 1) == line);    // a single document teaches no beginning
    CHECK(beginning_of_text(with, 0) == line);
    CHECK(beginning_of_text(without, -1) == line);
}

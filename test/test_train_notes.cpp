// test_train_notes.cpp - notes of `flatgpt train`, and contexts longer than the model's.
#include "toy_run.h"

namespace {
const std::vector<std::string> THREAD = {"--threads", "1"};
std::string rate(const Toy& toy, const std::string& out, int step) {
    const std::string rows = read_file(toy.dir + "/" + out + "/metrics.jsonl");
    const size_t row = rows.find("{\"step\":" + std::to_string(step) + ",");
    REQUIRE(row != std::string::npos);
    return formatted("%.3g", number(rows.substr(row), "\"lr\":"));
}
}    // namespace

TEST_CASE("train notes: a loss far above that of a guess is said, in time and at the end") {
    Toy toy;
    std::vector<std::string> args = with(toy.args("wild", {"--steps", "30", "--lr", "10", "--grad-clip", "0"}), THREAD);
    ProcessResult r = must(args, 0, "warning: the loss has been far above 5.549, that of a random guess, for 20 steps");
    CHECK(contains(r.err, "warning: the last step's loss is "));
    Toy::set(args, "--out", toy.dir + "/short");
    Toy::set(args, "--steps", "12");
    r = must(args, 0, "warning: the last step's loss is ");
    CHECK_FALSE(contains(r.err, "for 20 steps"));
    r = must(with(toy.args("calm", {"--steps", "30"}), THREAD));
    CHECK_FALSE(contains(r.err, "random guess"));
}

TEST_CASE("train notes: the last n losses") {
    OutlierDetector d;
    CHECK(d.min_of_last(1) == -INFINITY);
    for (int i = 0; i < 300; i++) d.add(i == 280 ? 1 : 9);
    CHECK(d.min_of_last(19) == 9);
    CHECK(d.min_of_last(20) == 1);
    OutlierDetector young;
    for (int i = 0; i < 19; i++) young.add(9);
    CHECK(young.min_of_last(20) == -INFINITY);
    CHECK(young.min_of_last(19) == 9);
}

TEST_CASE("train notes: a resumed run with another schedule says from what rate to what") {
    Toy toy;
    auto args = [&](const char* steps, const char* lr = "3e-3") {
        return with(toy.args("a", {"--steps", steps, "--lr", lr}), {"--threads", "1", "--resume", "auto"});
    };
    CHECK_FALSE(contains(must(args("10")).err, "schedule"));
    CHECK_FALSE(contains(must(args("10")).err, "schedule"));
    ProcessResult r = must(args("20"));
    CHECK(contains(r.err, "the schedule of the learning rate changes: " + rate(toy, "a", 10) + " in step 10, then " +
                              rate(toy, "a", 11) + " in step 11\n"));
    // --steps 156 is one pass over the data, which the first run did by default.
    must(with(toy.args("b", {"--save-every", "20", "--keep", "0"}), THREAD));
    auto back = [&] {
        while (fs::path(toy.newest("b")).filename() > "step_00000100") fs::remove_all(toy.newest("b"));
    };
    back();
    std::vector<std::string> again = with(toy.args("b"), {"--threads", "1", "--resume", "auto", "--steps", "156"});
    r = must(again);    // 19999 tokens in steps of 128
    CHECK_FALSE(contains(r.err, "schedule"));
    back();
    Toy::set(again, "--lr", "6e-3");
    const std::string was = rate(toy, "b", 100);
    const std::string had = rate(toy, "b", 101);
    r = must(again);
    CHECK(contains(r.err, "the schedule of the learning rate changes: " + was + " in step 100, then " +
                              rate(toy, "b", 101) + " in step 101, where the old one had " + had + "\n"));
}

TEST_CASE("train notes: --context beyond the model's where its positions turn; learned ones are refused by name") {
    Toy toy;
    must(with(toy.args("rope", {"--steps", "1", "--position", "rope"}), THREAD));
    must(with(toy.args("learned", {"--steps", "1"}), THREAD));
    auto more = [&](const char* from, const char* out, const std::vector<std::string>& flags) {
        return with({"train", "--data", toy.dir + "/train.bin", "--from", toy.dir + "/" + from, "--out",
                     toy.dir + "/" + out, "--batch", "2", "--dtype", "fp32", "--threads", "1", "--steps", "2"},
                    flags);
    };
    const std::vector<std::string> longer = {"--context", "128", "--seq-len", "128", "--rope-scaling", "yarn"};
    must(more("rope", "long", longer));
    const Config c = checkpoint_config(toy.newest("long")).value;
    CHECK(c.T == 128);
    CHECK(c.rope_scaling == RopeScaling::yarn);
    CHECK(c.rope_factor == 4);
    CHECK(c.rope_original == 32);
    must({"train", "--config", toy.dir + "/long/run.toml", "--resume", "auto", "--steps", "3"}, 0, "after step 2");
    CHECK(checkpoint_config(toy.newest("long")).value == c);
    must(with(more("rope", "long", {"--resume", "auto", "--context", "256"}), {}), 2, "has 128 already");
    must(more("rope", "x", {"--context", "16"}), 2, "--context 16: ");
    must(more("learned", "x", {"--context", "64"}), 2, "the model has --position learned, a table of 32; 32 at most");
    CHECK_FALSE(fs::exists(toy.dir + "/x"));
    // A new model's context may be longer than its training sequences.
    must(with(toy.args("new", {"--steps", "1", "--context", "512"}), THREAD));
    CHECK(checkpoint_config(toy.newest("new")).value.T == 512);
}

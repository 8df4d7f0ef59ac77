// test_train_schedule.cpp - runs whose rate decays from another run's checkpoint, or whose batch
// grows: the same bits as the runs that they stand for, also after kill -9.
#include "toy_ranks.h"
#include "train/schedule.h"

namespace {
std::string rows_from(const std::string& metrics, int64_t step) {
    const size_t at = metrics.find("{\"step\":" + std::to_string(step) + ",");
    return at == std::string::npos ? "" : metrics.substr(at);
}
// Rows without what another validation or an earlier part of the run adds.
std::vector<double> fields(const std::string& metrics, const std::string& key) {
    std::vector<double> all;
    std::istringstream lines(metrics);
    for (std::string line; std::getline(lines, line);)
        if (contains(line, key)) all.push_back(number(line, key));
    return all;
}
}    // namespace

TEST_CASE("train schedule: --decay-from is a wsd run of those steps to the bit, also after kill -9") {
    Toy toy;
    // The stable part.
    must(toy.args(
        "base", {"--steps", "20", "--lr-schedule", "constant", "--warmup", "6", "--save-every", "10", "--keep", "0"}));
    for (const char* step : {"10", "20"}) {
        const int begin = atoi(step);
        const std::string from = toy.dir + "/base/step_000000" + step;
        must(toy.args("wsd", {"--steps", "30", "--lr-schedule", "wsd", "--warmup", "6", "--decay-part",
                              formatted("%.17g", 1 - begin / 30.0)}));
        const ProcessResult r =
            must({"train", "--config", toy.dir + "/base/run.toml", "--decay-from", from, "--decay-steps",
                  std::to_string(30 - begin), "--out", toy.dir + "/whole"},
                 0, "the decay begins from " + from + " after step " + step + ": from 0.003 to 0.0003 in ");
        CHECK(toy.metrics("whole") == rows_from(toy.metrics("wsd"), begin + 1));
        same_checkpoint(toy, "wsd", "whole");
        const std::string toml = read_file(toy.dir + "/whole/run.toml");
        CHECK(contains(toml, "\nsteps = 30\n"));
        CHECK(contains(toml, "\ndecay-steps = 0\n"));
        // A killed decay goes on, by run.toml or its first command, though the checkpoint is gone.
        std::vector<std::string> command = {"train",        "--config",     toy.dir + "/base/run.toml",
                                            "--decay-from", from,           "--steps",
                                            "30",           "--save-every", "3",
                                            "--resume",     "auto"};
        killed_and_resumed(toy, command, {1, 5}, [&](const std::string& out) { same_checkpoint(toy, "whole", out); });
        fs::rename(from, toy.dir + "/away");
        Toy::set(command, "--out", toy.dir + "/killed5");
        must(command, 0, "nothing to do, the run has ended with step 30");
        Toy::set(command, "--steps", "36");
        must(command, 0, "the schedule of the learning rate changes");
        CHECK(fields(toy.metrics("killed5"), "\"lr\":").back() == doctest::Approx(3e-4));
        fs::rename(toy.dir + "/away", from);
        // A decay from a decay begins at the rate that the first one had.
        const double rate = learning_rate(decay_from(begin, 3e-3, 0.1, 36), 32);
        must({"train", "--config", toy.dir + "/killed5/run.toml", "--resume", "no", "--decay-from",
              toy.dir + "/killed5/step_00000033", "--decay-steps", "2", "--out", toy.dir + "/again"},
             0, formatted(" after step 33: from %.3g to %.3g in 2 steps", rate, rate / 10));
        CHECK(fields(toy.metrics("again"), "\"lr\":")[0] == rate);
        fs::remove_all(toy.dir + "/again");
        for (const char* out : {"whole", "wsd", "killed1", "killed5"}) fs::remove_all(toy.dir + "/" + out);
    }
}

TEST_CASE("train schedule: what --decay-from cannot go on with is named") {
    Toy toy;
    must(toy.args("base", {"--steps", "8", "--lr-schedule", "constant"}));
    const std::string base = toy.dir + "/base", step = base + "/step_00000008";
    auto refused = [&](const std::vector<std::string>& more, const std::string& says, int code = 2) {
        must(with({"train", "--config", base + "/run.toml", "--out", toy.dir + "/d"}, more), code, says);
        CHECK(!fs::exists(toy.dir + "/d"));
    };
    refused({"--decay-from", base}, "it has done 8 steps, --steps 8 leaves none for the decay");
    refused({"--decay-from", base, "--steps", "7"}, "--steps 7 leaves none for the decay");
    refused({"--decay-from", toy.dir + "/nothing", "--steps", "9"}, "nothing: no such file or directory", 3);
    refused({"--decay-from", base, "--steps", "9", "--data", toy.dir + "/val.bin"}, "trained on other shards");
    refused({"--decay-from", base, "--steps", "9", "--seed", "6"}, "trained with --seed 5, asked for is 6");
    refused({"--decay-steps", "4"}, "--decay-steps needs --decay-from");
    refused({"--decay-part", "0.5"}, "--decay-part needs --lr-schedule wsd");
    refused({"--warmup", "1.5"}, "--warmup 1.5: expected a whole number of steps, below 1 a part");
    refused({"--warmup", "-0.5"}, "--warmup -0.5: expected a whole number of steps");
    refused({"--decay-from", base, "--decay-steps", "-1"}, "--decay-steps: expected a whole number from 0");
    // The weights alone, as from the Hub.
    fs::create_directory(toy.dir + "/hub");
    for (const char* file : {"model.safetensors", "config.json", "tokenizer.json"})
        fs::copy(step + "/" + file, toy.dir + "/hub/" + file);
    refused({"--decay-from", toy.dir + "/hub", "--steps", "9"}, "expected a checkpoint of a run, with its optimizer's");
    // Its --steps may be the run's, as run.toml has it, or the decay's end, and nothing else.
    refused({"--decay-from", base, "--decay-steps", "2", "--steps", "9"},
            "--steps 9 --decay-steps 2: the decay would end with step 10; give one of them");
    must({"train", "--config", base + "/run.toml", "--out", toy.dir + "/both", "--decay-from", base, "--decay-steps",
          "2", "--steps", "10"});
    // Options that no version writes.
    const std::string hostile = toy.dir + "/hostile", options = checkpoint_state(step).value.config;
    fs::copy(step, hostile);
    auto with_option = [&](const std::string& was, const std::string& now) {
        const size_t at = options.find("\n" + was + "\n");
        REQUIRE(at != options.npos);
        forge(hostile, [&](TrainState& s) { s.config = std::string(options).replace(at + 1, was.size(), now); });
    };
    for (auto [was, now] : {std::pair{"total-batch = 128", "total-batch = 1e18"},
                            {"steps = 8", "steps = 1e18"},
                            {"steps = 8", "steps = -5"},
                            {"batch-warmup = 0", "batch-warmup = 1e14"},
                            {"total-batch = 128", "total-batch = nan"},
                            {"warmup = -1.0", "warmup = 1e300"}}) {
        with_option(was, now);
        refused({"--decay-from", hostile, "--steps", "9"}, "with the options of its run; found none in state.json");
    }
    for (const char* rate : {"1e300", "-3", "nan", "inf", "10.5"}) {
        with_option("lr = 0.003", std::string("lr = ") + rate);
        refused({"--decay-from", hostile, "--steps", "9"}, "state.json: config: expected a learning rate from 0 to 10",
                3);
    }
    // The run's own directory is not that of a decay.
    must({"train", "--config", base + "/run.toml", "--decay-from", base, "--steps", "9"}, 2, "another --out");
    must({"train", "--config", base + "/run.toml", "--decay-from", base, "--steps", "9", "--resume", "auto"}, 2,
         "it begins a new run");
    CHECK(toy.newest("base") == step);
}

TEST_CASE("train schedule: a rate that falls to 0 leaves the weights of the step before") {
    Toy toy;
    for (const char* decay : {"cosine", "linear", "wsd"}) {
        must(toy.args("a", {"--steps", "12", "--lr-schedule", decay, "--final-lr-frac", "0", "--save-every", "10",
                            "--keep", "0", "--weight-decay", "0.5", "--eval-every", "11"}));
        must(toy.args("a", {"--steps", "12", "--lr-schedule", decay, "--final-lr-frac", "0", "--resume", "auto"}));
        CHECK(fields(toy.metrics("a"), "\"lr\":").back() == 0);
        const std::string before = toy.dir + "/a/step_00000011", last = toy.dir + "/a/step_00000012";
        CHECK(same_file(before + "/model.safetensors", last + "/model.safetensors"));
        CHECK(!same_file(before + "/optimizer.safetensors", last + "/optimizer.safetensors"));
        fs::remove_all(toy.dir + "/a");
    }
}

TEST_CASE("train schedule: a growing batch reads the data in its order, counts its tokens, and resumes after kill -9") {
    Toy toy;
    const std::vector<std::string> growing = {"--steps",        "12", "--total-batch", "640",
                                              "--batch-warmup", "8",  "--eval-tokens", "0"};
    std::vector<std::string> command = toy.args("whole", growing);
    const ProcessResult r = must(command, 0, "12 steps of 640 tokens (fewer in the first 8)");
    // 5 batches of 128 tokens: 1 + 4 * step / 8.
    const double batches[] = {1, 1, 2, 2, 3, 3, 4, 4, 5, 5, 5, 5};
    const std::vector<double> tokens = fields(toy.metrics("whole"), "\"tokens\":");
    REQUIRE(tokens.size() == 12);
    double sum = 0;
    for (size_t i = 0; i < 12; i++) CHECK(tokens[i] == (sum += 128 * batches[i]));
    const TrainState end = checkpoint_state(toy.newest("whole")).value;
    CHECK(end.tokens == 5120);
    CHECK(end.index == 5120 / 32);
    Toy::set(command, "--save-every", "3");
    killed_and_resumed(toy, command, {1, 4, 10}, [&](const std::string& out) {
        CHECK(same_file(toy.newest("whole") + "/model.safetensors", toy.newest(out) + "/model.safetensors"));
    });
    // The first step is that of a run with one batch a step; the last has all of them.
    must(toy.args("one", {"--steps", "12"}));
    CHECK(fields(toy.metrics("one"), "\"loss\":")[0] == fields(toy.metrics("whole"), "\"loss\":")[0]);
    must(toy.args("no", {"--batch-warmup", "2", "--steps", "3"}), 0, "--batch-warmup changes nothing");
    must(toy.args("long", with(growing, {"--batch-warmup", "13"})), 2, "--batch-warmup 13 is longer than --steps 12");
    // Steps for the data: 19 992 of 20 000 tokens are windows.
    std::vector<std::string> pass = toy.args("pass", {"--total-batch", "640", "--batch-warmup", "8", "--epochs", "1"});
    pass.push_back("--dry-run");
    const std::string dry = must(pass).out;
    CHECK(contains(dry, "640 tokens = 4 x 32 x 5 (accumulated), from 1 batch on in the first 8 steps; 36 steps = 20"));
}

TEST_CASE("train schedule: a growing batch is the same for one rank and for two") {
    NEED_MPIRUN();
    RanksToy toy;
    REQUIRE(toy.run(1, "one", {"--batch-warmup", "6"}).exit_code == 0);
    REQUIRE(toy.run(2, "two", {"--batch-warmup", "6", "--batch", "2"}).exit_code == 0);
    toy.same_losses("one", "two", 1e-5);
    CHECK(fields(toy.metrics("one"), "\"tokens\":") == fields(toy.metrics("two"), "\"tokens\":"));
}

// test_resume.cpp - runs whose shard or base model fails them; resumed runs have the same bits.
#include "toy_run.h"

namespace {
// Overwrites a token of a uint16 shard with an id that no vocabulary here has.
void spoil(const std::string& shard, int64_t token) {
    std::fstream file(shard, std::ios::in | std::ios::out | std::ios::binary);
    file.seekp(1024 + 2 * token);
    file.write("\x60\xea", 2);    // 60000
}
}    // namespace

TEST_CASE("train: a shard that turns out bad costs no step that was done") {
    for (const char* name : {"train", "val"}) {
        Toy toy;
        spoil(toy.dir + "/" + name + ".bin", name == std::string("val") ? 3 : 12345);
        ProcessResult r = run_flatgpt(toy.args("a", {"--steps", "300"}));
        INFO(r.err);
        CHECK(r.exit_code == 3);
        CHECK(contains(r.err, std::string(name) + ".bin"));
        CHECK(contains(r.err, "60000"));
        REQUIRE(!toy.newest("a").empty());
        CHECK(checkpoint_verify(toy.newest("a")).ok());
        Result<TrainState> s = checkpoint_state(toy.newest("a"));
        REQUIRE(s.ok());
        const std::string metrics = toy.metrics("a");
        CHECK(s.value.step == std::count(metrics.begin(), metrics.end(), '\n'));
        CHECK(s.value.step > 0);
    }
}

TEST_CASE("train: a fine-tuned run goes on when the model it came from is gone") {
    Toy toy;
    REQUIRE(run_flatgpt(toy.args("base", {"--steps", "5"})).exit_code == 0);
    std::vector<std::string> tune = {"train",
                                     "--from",
                                     toy.dir + "/base",
                                     "--data",
                                     toy.dir + "/train.bin",
                                     "--out",
                                     toy.dir + "/tuned",
                                     "--batch",
                                     "4",
                                     "--steps",
                                     "4",
                                     "--dtype",
                                     "fp32"};
    REQUIRE(run_flatgpt(tune).exit_code == 0);
    fs::rename(toy.dir + "/base", toy.dir + "/moved");
    fs::remove(toy.dir + "/tok.json");
    ProcessResult r =
        run_flatgpt({"train", "--config", toy.dir + "/tuned/run.toml", "--resume", "auto", "--steps", "8"});
    INFO(r.err);
    CHECK(r.exit_code == 0);
    CHECK(contains(toy.newest("tuned"), "step_00000008"));
    CHECK(run_flatgpt(tune).exit_code != 0);    // the base is needed without --resume
}

TEST_CASE("train: with bf16 parameters, too, a resumed run has the bits of one that was not interrupted") {
    Toy toy;
    for (bool master : {true, false}) {
        const std::string a = master ? "a" : "c", b = master ? "b" : "d";
        auto run = [&](const std::string& out, const std::vector<std::string>& more) {
            std::vector<std::string> args = toy.args(out, more);
            Toy::set(args, "--dtype", "bf16");
            if (!master) args.push_back("--stochastic-rounding");
            const ProcessResult r = run_flatgpt(args);
            INFO(r.err);
            CHECK(r.exit_code == 0);
        };
        run(a, {"--steps", "20", "--save-every", "10", "--keep", "0"});
        run(b, {"--steps", "20", "--resume", toy.dir + "/" + a + "/step_00000010"});
        for (const char* file : {"/model.safetensors", "/optimizer.safetensors"})
            CHECK(same_file(toy.newest(a) + file, toy.newest(b) + file));
    }
    CHECK(!same_file(toy.newest("a") + "/model.safetensors", toy.newest("c") + "/model.safetensors"));
}

TEST_CASE("train: with dropout a resumed run, and one that computes blocks again, has the bits of one that does not") {
    Toy toy;
    auto run = [&](const std::string& out, const std::vector<std::string>& more) {
        std::vector<std::string> args = toy.args(out, {"--steps", "20", "--dropout", "0.2"});
        for (size_t i = 0; i + 1 < more.size(); i += 2) Toy::set(args, more[i], more[i + 1]);
        const ProcessResult r = run_flatgpt(args);
        INFO(r.err);
        REQUIRE(r.exit_code == 0);
        return r;
    };
    run("a", {"--save-every", "10", "--keep", "0"});
    run("b", {"--resume", toy.dir + "/a/step_00000010"});
    run("c", {"--recompute", "blocks", "--threads", "1"});
    for (const char* out : {"b", "c"})
        for (const char* file : {"/model.safetensors", "/optimizer.safetensors"})
            CHECK(same_file(toy.newest("a") + file, toy.newest(out) + file));
    run("other", {"--attention-dropout", "0"});
    run("none", {"--dropout", "0"});
    for (const char* out : {"other", "none"})
        CHECK(!same_file(toy.newest("a") + "/model.safetensors", toy.newest(out) + "/model.safetensors"));
    CHECK(contains(read_file(toy.dir + "/a/run.toml"), "dropout = 0.2\n"));
}

TEST_CASE("train: an older checkpoint is not resumed beside newer ones") {
    Toy toy;
    REQUIRE(run_flatgpt(toy.args("a", {"--steps", "30", "--save-every", "10"})).exit_code == 0);
    const std::string older = toy.dir + "/a/step_00000010";
    ProcessResult r = run_flatgpt(toy.args("a", {"--steps", "30", "--resume", older}));
    INFO(r.err);
    CHECK(r.exit_code == 2);
    CHECK(contains(r.err, "newer"));
    // Into a directory of its own the older checkpoint may be resumed.
    CHECK(run_flatgpt(toy.args("b", {"--steps", "30", "--resume", older})).exit_code == 0);
    CHECK(same_file(toy.newest("a") + "/model.safetensors", toy.newest("b") + "/model.safetensors"));
}

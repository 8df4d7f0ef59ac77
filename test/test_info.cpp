// test_info.cpp - `flatgpt info`: kinds and contents of files and directories, and their errors.
#include "files/json.h"
#include "data/loader.h"
#include "toy_checkpoint.h"

#include "test.h"

#include <filesystem>

namespace {
namespace fs = std::filesystem;

nlohmann::json info(const std::string& path, int code = 0, const std::vector<std::string>& flags = {}) {
    std::vector<std::string> args = {"info", path, "--json"};
    args.insert(args.end(), flags.begin(), flags.end());
    ProcessResult r = run_flatgpt(args);
    INFO(path, r.out, r.err);
    CHECK(r.exit_code == code);
    CHECK(r.err.empty() == (code == 0));
    if (code) CHECK(r.err.find(path) != std::string::npos);
    return nlohmann::json::parse(r.out, nullptr, false);
}
}    // namespace

TEST_CASE("info: checkpoints and runs") {
    nlohmann::json j = info("test/golden/checkpoint_1");
    CHECK(j["kind"] == "checkpoint");
    CHECK(j["step"] == 500);
    CHECK(j["parameters"] == 2720);
    CHECK(j["vocabulary"] == 259);
    CHECK(j["tokenizer"] == 259);
    CHECK(j["checksums"] == "verified");
    CHECK(info("test/golden/hf_tiny")["checksums"] == "none");

    std::string run = temporary_directory();
    for (int step : {1, 2}) REQUIRE(checkpoint_write(run, ToyCheckpoint(1).g, Tokenizer(), toy_state(step, 1)).ok());
    j = info(run);
    CHECK(j["kind"] == "run");
    CHECK(j["checkpoints"] == 2);
    CHECK(j["step"] == 2);
    write_file(run + "/step_00000002/config.json", "{}");
    j = info(run, 3);
    CHECK(j["step"] == 1);
    CHECK(j["error"].get<std::string>().find("step_00000002/config.json") != std::string::npos);
    CHECK(info(run + "/step_00000002", 3)["kind"] == "checkpoint");
    write_file(run + "/step_00000001/MANIFEST", "");
    j = info(run, 3);
    const ProcessResult people = run_flatgpt({"info", run});
    for (const char* file : {"step_00000001/MANIFEST", "step_00000002/config.json"}) {
        CHECK(j["error"].get<std::string>().find(file) != std::string::npos);
        CHECK(people.out.find("  damaged         " + run + "/" + file) != std::string::npos);
    }
    info(temporary_directory(), 3);
    info(run + "/none", 3);
}

TEST_CASE("info: the other files of a run, and a folder of runs") {
    std::string dir = temporary_directory(), golden = "test/golden/checkpoint_1/";
    CHECK(info(golden + "config.json")["kind"] == "model configuration");
    CHECK(info(golden + "config.json")["parameters"] == 2720);
    CHECK(info(golden + "state.json")["kind"] == "training state");
    CHECK(info(golden + "state.json")["step"] == 500);
    CHECK(info(golden + "optimizer.safetensors")["kind"] == "optimizer state");
    CHECK(info(golden + "model.safetensors")["kind"] == "safetensors");
    write_file(dir + "/other.json", read_file(golden + "config.json"));    // recognised by keys, not by name
    CHECK(info(dir + "/other.json")["kind"] == "model configuration");

    const std::string rows = R"({"step":5,"loss":4.5,"val_loss":4.25}
{"step":6,"loss":3.5,"val_loss":4.75}
{"step":7,"loss":null}
)";
    auto make_run = [&](const std::string& name) {
        fs::create_directories(dir + "/runs/" + name);
        write_file(dir + "/runs/" + name + "/metrics.jsonl", rows);
        write_file(dir + "/runs/" + name + "/run.toml", "data = \"a.bin\"\nsteps = 20\nval = \"\"\nseed = 1\n");
    };
    make_run("first");
    make_run("second");
    fs::create_directories(dir + "/runs/no run");
    nlohmann::json j = info(dir + "/runs/first/metrics.jsonl");
    CHECK(j["kind"] == "metrics");
    CHECK(j["rows"] == 3);
    CHECK(j["steps"] == nlohmann::json({5, 7}));
    CHECK(j["last_loss"]["loss"] == 3.5);
    CHECK(j["last_validation"] == nlohmann::json({{"loss", 4.75}, {"step", 6}}));
    CHECK(j["best_validation"] == nlohmann::json({{"loss", 4.25}, {"step", 5}}));
    j = info(dir + "/runs/first/run.toml");
    CHECK(j["kind"] == "run configuration");
    CHECK(j["options"] == 4);
    CHECK(j["steps"] == "20");
    CHECK_FALSE(j.contains("val"));    // empty values are left out
    j = info(dir + "/runs/first");     // a run without a checkpoint
    CHECK(j["kind"] == "run");
    CHECK(j["checkpoints"] == 0);
    CHECK(j["step"] == 7);
    CHECK(j["last_loss"]["loss"] == 3.5);
    REQUIRE(checkpoint_write(dir + "/runs/second", ToyCheckpoint(1).g, Tokenizer(), toy_state(2, 1)).ok());
    for (std::string path : {dir + "/runs", dir + "/runs/"}) {
        j = info(path);
        CHECK(j["kind"] == "runs");
        REQUIRE(j["runs"].size() == 2);
        CHECK(j["runs"][0] ==
              nlohmann::json({{"name", "first"}, {"step", 7}, {"loss", 3.5}, {"val_loss", 4.75}, {"newest", ""}}));
        CHECK(j["runs"][1]["newest"] == "step_00000002");
    }
    ProcessResult people = run_flatgpt({"info", dir + "/runs"});
    CHECK_MESSAGE(people.out.find("first   step 7, loss 3.5000, validation 4.7500") != std::string::npos, people.out);

    write_file(dir + "/runs/first/metrics.jsonl", "{\"step\":1}\nrubbish\n{\"step\":2}\n");
    info(dir + "/runs/first/metrics.jsonl", 3);
    info(dir + "/runs", 3);
    write_file(dir + "/runs/first/run.toml", "steps = \n");
    info(dir + "/runs/first/run.toml", 3);
}

TEST_CASE("info: a file that it does not know is named, with what is known") {
    const std::string dir = temporary_directory();
    struct {
        std::string name, bytes;
        const char* message;
    } unknown[] = {{"/a.txt", "some text", "flatgpt tokenize"},
                   {"/a.jsonl", "{\"text\": \"x\"}\n", "flatgpt tokenize"},
                   {"/a.zip", "PK\x03\x04 and so on", "zip archive"},
                   {"/a.json", "{\"a\": 1}", "none of tokenizer.json"},
                   {"/empty", "", "empty file"}};
    for (auto& u : unknown) {
        write_file(dir + u.name, u.bytes);
        ProcessResult r = run_flatgpt({"info", dir + u.name});
        CHECK(r.exit_code == 3);
        CHECK_MESSAGE(r.err.find(u.message) != std::string::npos, r.err);
        CHECK_MESSAGE(r.err.find("state.json") != std::string::npos, r.err);    // the known kinds
    }
}

TEST_CASE("info: parameters that a token uses") {
    // In each of 2 layers a token uses 2 experts of 4, which have 3 matrices of 16 x 24 each.
    const nlohmann::json experts = info("test/golden/families/mixtral");
    CHECK((experts["parameters"] == 13008 && experts["parameters_used"] == 13008 - 2 * 2 * 3 * 16 * 24));
}

TEST_CASE("info: files") {
    nlohmann::json j = info("test/golden/tiny.safetensors");
    CHECK(j["kind"] == "safetensors");
    CHECK(j["numbers"] == 16);
    CHECK(j["bytes"] == 465);
    j = info("test/golden/checkpoint_1/tokenizer.json");
    CHECK(j["kind"] == "tokenizer");
    CHECK(j["vocabulary"] == 259);

    std::string dir = temporary_directory(), path = dir + "/s.bin";
    std::vector<int> tokens(1500000, 3);    // more tokens than one read
    tokens[1400000] = 777;
    ShardWriter w;
    REQUIRE(w.open(path, 1000).ok());
    REQUIRE(w.append(tokens.data(), int64_t(tokens.size())).ok());
    REQUIRE(w.commit().ok());
    j = info(path, 0, {"--vocab", "778"});
    CHECK(j["kind"] == "shard");
    CHECK(j["tokens"] == 1500000);
    CHECK(j["largest_id"] == 777);
    CHECK(info(path, 3, {"--vocab", "777"})["error"].get<std::string>().find("offset 2801024") != std::string::npos);
    CHECK(j.contains("tokenizer") == false);
    info(path, 3, {"--raw-u16"});    // a header, so no raw tokens
    REQUIRE(w.open(path, 1000, 0xFEDCBA9876543210u).ok());
    w.count_document();
    REQUIRE(w.append(tokens.data(), int64_t(tokens.size())).ok());
    REQUIRE(w.commit().ok());
    j = info(path);
    CHECK(j["tokenizer"]["vocabulary"] == 1000);
    CHECK(j["tokenizer"]["fingerprint"] == "fedcba9876543210");
    CHECK(j["documents"] == 1);
    write_file(path, read_file(path).substr(0, 3000));
    info(path, 3);
    for (const char* name : {"/x.safetensors", "/x.json", "/x.bin", "/x"}) {
        write_file(dir + name, "");
        info(dir + name, 3);
        write_file(dir + name, "{\"a\"");
        info(dir + name, 3);
    }

    // info reads a model's weights, too, and finds the NaN among them.
    fs::copy("test/golden/hf_tiny", dir + "/hf");
    std::string weights = read_file(dir + "/hf/model.safetensors");
    weights.replace(weights.size() - 4, 4, "\xFF\xFF\xFF\x7F");
    write_file(dir + "/hf/model.safetensors", weights);
    j = info(dir + "/hf", 3);
    CHECK(j["parameters"] == 308);
    CHECK(j["error"].get<std::string>().find("expected finite numbers") != std::string::npos);

    ProcessResult people = run_flatgpt({"info", "test/golden/hf_tiny", "test/golden/tiny.safetensors"});
    CHECK(people.exit_code == 0);
    CHECK(people.out.find("  parameters      308\n") != std::string::npos);
}

// test_checkpoint_find.cpp - which checkpoints of a run pruning keeps, and which one is loaded.
#include <filesystem>

#include "toy_checkpoint.h"

#include "test.h"

namespace fs = std::filesystem;

TEST_CASE("checkpoint: prune keeps the newest whole ones") {
    std::string run = temporary_directory();
    for (int step = 1; step <= 6; step++) write_toy(run, step, 1);
    const std::string left = temporary_name(run + "/step_00000009");
    fs::create_directory(left);
    write_file(left + "/model.safetensors", "x");
    write_file(run + "/metrics.jsonl", "{}\n");
    auto steps = [&] {
        std::string text;
        for (auto& dir : checkpoint_list(run)) text += dir.back();
        return text;
    };
    REQUIRE(checkpoint_prune(run, 0).ok());
    CHECK(steps() == "123456");
    CHECK(!fs::exists(left));
    fs::create_directory(run + "/step_00000000");           // without a MANIFEST: not ours, never deleted
    write_file(run + "/step_00000005/state.json", "{}");    // damaged: neither counted nor deleted
    REQUIRE(checkpoint_prune(run, 3).ok());
    CHECK(steps() == "03456");
    REQUIRE(checkpoint_prune(run, 1).ok());
    CHECK(steps() == "06");
    write_file(run + "/step_00000006/MANIFEST", "");
    REQUIRE(checkpoint_prune(run, 1).ok());
    CHECK(steps() == "06");
    CHECK(std::distance(fs::directory_iterator(run), fs::directory_iterator()) == 3);    // 0, 6, metrics.jsonl
}

namespace {
// A checkpoint whose state names `best` as the step of the lowest validation loss.
void write_with_best(const std::string& run, int64_t step, int64_t best) {
    TrainState state = toy_state(step, 1);
    state.best_step = best;
    if (best >= 0) state.best_loss = 4.19;
    REQUIRE(checkpoint_write(run, ToyCheckpoint(1).g, Tokenizer(), state).ok());
}
}    // namespace

TEST_CASE("checkpoint: prune keeps the best by validation beside the newest") {
    std::string run = temporary_directory();
    auto steps = [&] {
        std::string text;
        for (auto& dir : checkpoint_list(run)) text += dir.back();
        return text;
    };
    for (int step = 1; step <= 5; step++) write_with_best(run, step, step < 2 ? -1 : 2);
    REQUIRE(checkpoint_prune(run, 2).ok());
    CHECK(steps() == "245");
    REQUIRE(checkpoint_prune(run, 1).ok());
    CHECK(steps() == "25");
    write_with_best(run, 6, 6);    // a new best: step 2 may go
    REQUIRE(checkpoint_prune(run, 1).ok());
    CHECK(steps() == "6");
    write_with_best(run, 7, 6);
    write_with_best(run, 8, 8);
    write_file(run + "/step_00000008/model.safetensors", "");    // damaged: its best_step is ignored
    REQUIRE(checkpoint_prune(run, 1).ok());
    CHECK(steps() == "678");
    write_with_best(run, 9, 3);    // best step 3 is gone, without error
    REQUIRE(checkpoint_prune(run, 1).ok());
    CHECK(steps() == "9");
}

TEST_CASE("checkpoint: the last, the best by validation, or one by its step") {
    std::string run = temporary_directory();
    auto at = [&](int step) { return run + "/step_0000000" + std::to_string(step); };
    auto found = [&](const std::string& which) { return checkpoint_find(run, nullptr, which); };
    auto refused = [&](const std::string& path, const std::string& which, Exit code, const std::string& text) {
        Status s = checkpoint_find(path, nullptr, which).status;
        INFO(which, s.message);
        CHECK(s.code == code);
        CHECK(s.message.find(text) != std::string::npos);
    };
    refused(run, "last", Exit::input, "expected a run");
    refused(run, "best", Exit::input, "expected a run");
    for (int step : {1, 2}) write_with_best(run, step, -1);
    refused(run, "best", Exit::usage, "no validation is recorded");
    refused(run, "best", Exit::usage, "steps 1 and 2");
    for (int step : {3, 4}) write_with_best(run, step, 3);
    CHECK(found("last").value.path == at(4));
    CHECK(found("best").value.path == at(3));
    CHECK(found("2").value.path == at(2));
    CHECK(found("00000002").value.path == at(2));
    refused(run, "5", Exit::usage, "steps 1, 2, 3 and 4");
    for (const char* word : {"", "newest", "-1", "1.5", "123456789", "step_00000001"})
        refused(run, word, Exit::usage, "expected best, last or a step");
    refused(at(1), "best", Exit::usage, "itself a checkpoint");
    refused(at(1), "1", Exit::usage, "itself a checkpoint");
    CHECK(checkpoint_find(at(1), nullptr, "last").value.path == at(1));
    refused("test/golden/hf_tiny", "best", Exit::usage, "itself a checkpoint");

    flip_in_file(at(2) + "/model.safetensors", 8 * 900);
    refused(run, "2", Exit::input, at(2) + "/model.safetensors");
    CHECK(found("last").value.path == at(4));    // older checkpoints are not read
    flip_in_file(at(3) + "/model.safetensors", 8 * 900);
    refused(run, "best", Exit::input, at(3) + "/model.safetensors");
    fs::remove_all(at(3));
    refused(run, "best", Exit::input, "step 3, the best by validation, is not there");
    CHECK(checkpoint_step(at(4)) == 4);
    CHECK(checkpoint_step(run) == -1);
}

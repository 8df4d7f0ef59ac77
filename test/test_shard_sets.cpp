// test_shard_sets.cpp - sets of shards are read whole or refused by name; no shard counts twice.
#include "base/command.h"
#include "base/console.h"
#include "base/philox.h"
#include "data/bpe.h"
#include "data/loader.h"

#include <array>
#include <csignal>
#include <filesystem>
#include <sys/stat.h>

#include "test.h"
#include "tools/commands.h"

namespace {
namespace fs = std::filesystem;
using Strings = std::vector<std::string>;

std::string words(int lines, int seed) {
    std::string text;
    for (int i = 0; i < 10 * lines; i++)
        text += "w" + std::to_string(philox(2, uint64_t(seed), uint64_t(i)).v[0] % 97) + " ";
    return text;
}
void tokenize(const std::string& out, const std::string& text) {
    const std::string file = temporary_directory() + "/t.txt";
    write_file(file, text);
    Command c = tokenize_command();
    const Strings args = {"--out", out, "--overwrite", "--val-fraction", "0.2", "--shard-tokens", "500", file};
    REQUIRE(command_parse(c, args).ok());
    const Status s = c.run();
    REQUIRE_MESSAGE(s.ok(), s.message);
}
Status open(const std::string& pattern, bool allow_partial_set = false) {
    return Loader::open({.pattern = pattern, .allow_partial_set = allow_partial_set, .B = 1, .S = 8, .vocab = 50257})
        .status;
}
void refused(const std::string& pattern, Exit code, const Strings& parts) {
    const Status s = open(pattern);
    CAPTURE(s.message);
    CHECK(s.code == code);
    for (const std::string& part : parts) CHECK(contains(s.message, part));
}
}    // namespace

TEST_CASE("shard sets: a part of a set and a mixture of two are refused by name; whole and unknown ones are read") {
    const std::string dir = temporary_directory(), x = dir + "/x_train_00", y = dir + "/y_train_00";
    tokenize(dir + "/x", words(100, 1));
    tokenize(dir + "/y", words(100, 2));
    REQUIRE(fs::exists(x + "2.bin"));
    CHECK(open(dir + "/x_train_*.bin").ok());
    CHECK(open(dir + "/x_val_*.bin").ok());
    CHECK(open(dir + "/*.bin").ok());    // two sets, both whole
    for (const auto& entry : fs::directory_iterator(dir)) CHECK(entry.path().extension() == ".bin");

    refused(x + "0.bin", Exit::input,
            {x + "0.bin: expected all ", "found 1; number 1, " + x + "1.bin is missing", "x_train_*.bin"});
    refused(x + "1.bin," + x + "2.bin", Exit::input, {"number 0, " + x + "0.bin is missing"});
    fs::rename(x + "1.bin", dir + "/kept");
    refused(dir + "/x_train_*.bin", Exit::input, {"number 1, " + x + "1.bin is missing"});
    fs::copy(y + "1.bin", x + "1.bin");
    refused(dir + "/x_train_*.bin", Exit::input, {x + "1.bin belongs to another text"});
    fs::remove(x + "1.bin");
    fs::rename(dir + "/kept", x + "1.bin");
    CHECK(open(dir + "/x_train_*.bin").ok());
    fs::copy(x + "1.bin", dir + "/x_train_copy.bin");
    refused(dir + "/x_train_*.bin", Exit::input, {x + "1.bin and ", "x_train_copy.bin are the same shard"});
    fs::remove(dir + "/x_train_copy.bin");

    // Tokenizing again: an equal text makes equal shards; a shorter one replaces them by fewer.
    const std::string before = read_file(x + "1.bin");
    tokenize(dir + "/x", words(100, 1));
    CHECK(read_file(x + "1.bin") == before);
    tokenize(dir + "/x", words(60, 3));
    CHECK(open(dir + "/x_train_*.bin").ok());

    // Shards of llm.c, and older ones of ours, name no set: any of them may be read.
    for (int i = 0; i < 3; i++) {
        ShardWriter w;
        const std::vector<int> tokens(100, i);
        REQUIRE(w.open(dir + "/old_train_00" + std::to_string(i) + ".bin", 100).ok());
        REQUIRE(w.append(tokens.data(), 100).ok());
        REQUIRE(w.commit().ok());
    }
    CHECK(open(dir + "/old_train_001.bin").ok());
    CHECK(open(dir + "/old_train_00[02].bin").ok());
    std::string bytes = read_file(x + "0.bin");
    const int32_t place = 7;
    memcpy(bytes.data() + 36, &place, 4);
    write_file(dir + "/bad.bin", bytes);
    refused(dir + "/bad.bin", Exit::input, {"bad.bin: offset 36: the shard's place in its set"});
}

TEST_CASE("shard sets: train reads no part of a set, and eval any part, but no shard twice") {
    const std::string dir = temporary_directory(), x = dir + "/x_train_00";
    tokenize(dir + "/x", words(100, 1));
    CHECK(open(x + "1.bin", true).ok());
    fs::copy(x + "1.bin", dir + "/again.bin");
    const Status twice = open(x + "1.bin," + dir + "/again.bin", true);
    CHECK_MESSAGE(contains(twice.message, "are the same shard"), twice.message);
    const std::string run = dir + "/run";
    const Strings train = {"train",     "--data",     dir + "/x_train_*.bin",
                           "--layers",  "1",          "--heads",
                           "1",         "--channels", "8",
                           "--seq-len", "8",          "--batch",
                           "1",         "--steps",    "1",
                           "--device",  "cpu"};
    auto with = [](Strings args, const Strings& more) {
        args.insert(args.end(), more.begin(), more.end());
        return run_flatgpt(args);
    };
    const ProcessResult part = with(train, {"--val", x + "1.bin", "--out", dir + "/none"});
    CHECK(part.exit_code == 3);
    CHECK_MESSAGE(contains(part.err, "x_train_001.bin: expected all "), part.err);
    const ProcessResult whole = with(train, {"--val", dir + "/x_val_*.bin", "--out", run});
    CHECK_MESSAGE(whole.exit_code == 0, whole.err);
    const ProcessResult measured = run_flatgpt({"eval", run, "--data", x + "1.bin", "--device", "cpu"});
    CHECK_MESSAGE(measured.exit_code == 0, measured.err);
}
TEST_CASE("shard sets: train refuses validation shards among others that it trains on, also by a link or a copy") {
    const std::string dir = temporary_directory(), val = dir + "/a_val_000.bin";
    tokenize(dir + "/a", words(100, 1));
    fs::create_symlink(val, dir + "/link.bin");
    fs::copy(val, dir + "/copy.bin");
    ShardWriter w;
    const std::vector<int> tokens(100, 1);
    REQUIRE(w.open(dir + "/unknown.bin", 50257).ok());    // a shard of unknown set
    REQUIRE(w.append(tokens.data(), 100).ok());
    REQUIRE(w.commit().ok());
    fs::create_hard_link(dir + "/unknown.bin", dir + "/unknown_too.bin");
    auto train = [&](const std::string& data, const std::string& validation) {
        return run_flatgpt({"train", "--data",        data, "--val",     validation,  "--layers", "1", "--heads",
                            "1",     "--channels",    "8",  "--seq-len", "8",         "--batch",  "1", "--steps",
                            "1",     "--eval-tokens", "8",  "--out",     dir + "/run"});
    };
    for (const auto& [data, validation, named] :
         {std::array<std::string, 3>{dir + "/a_*.bin", dir + "/a_val_*.bin", val},
          {dir + "/a_*.bin", dir + "/link.bin", dir + "/link.bin, which is --data's " + val},
          {dir + "/a_*.bin", dir + "/copy.bin", dir + "/copy.bin, which is --data's " + val}}) {
        const ProcessResult r = train(data, validation);
        CAPTURE(r.err);
        CHECK(r.exit_code == 2);
        CHECK(contains(r.err, "--val: expected shards that are not trained on, found " + named));
        CHECK(contains(r.err, "'x_train_*.bin'"));
        CHECK_FALSE(fs::exists(dir + "/run"));
    }
    // Training and validating on equal sets of shards is allowed, to see them learnt by heart.
    for (const auto& [data, validation] : {std::pair{val, val}, {dir + "/unknown.bin", dir + "/unknown_too.bin"}}) {
        const ProcessResult r = train(data, validation);
        CHECK_MESSAGE(r.exit_code == 0, r.err);
        CHECK(contains(r.err, "note: --val has all shards of --data"));
        fs::remove_all(dir + "/run");
    }
    const ProcessResult r = train(dir + "/a_train_*.bin", val);
    CHECK_MESSAGE(r.exit_code == 0, r.err);
    CHECK(!contains(r.err, "note: --val"));
}

TEST_CASE("shard sets: when tokenize is stopped at any point, no part of a set has a name that train reads") {
    const std::string dir = temporary_directory();
    std::string text;
    for (int i = 0; i < 40; i++) text += words(200, i);
    write_file(dir + "/t.txt", text);
    tokenize(dir + "/x", words(100, 1));
    const Strings args = {flatgpt_binary(), "tokenize", "--out",          dir + "/x", "--overwrite",
                          "--val-fraction", "0.2",      "--shard-tokens", "500",      dir + "/t.txt"};
    for (double after : {0.05, 0.15, 0.3, 0.6}) {
        Process p(args);
        for (const double start = now_seconds(); now_seconds() < start + after && p.running();) {}
        p.send(9);
        (void)p.wait();
        for (const char* part : {"train", "val"}) {
            const std::string pattern = dir + "/x_" + part + "_*.bin";
            if (Result<Strings> files = shard_glob(pattern); files.ok()) {
                const Status s = open(pattern);
                CHECK_MESSAGE((s.ok() || contains(s.message, "expected all")), s.message);
            }
        }
    }
    // A full disk (here a limit on the size of files) leaves no shard of a new set.
    const ProcessResult r = run_process({"/bin/sh", "-c", "trap '' XFSZ; ulimit -f 20; exec \"$0\" \"$@\"", args[0],
                                         args[1], args[2], dir + "/z", args[4], dir + "/t.txt"});
    CHECK(r.exit_code == 4);
    CHECK_FALSE(fs::exists(dir + "/z_train_000.bin"));
}

TEST_CASE("shard sets: one file that is given twice, under one name or two, is refused and never dropped") {
    const std::string dir = temporary_directory(), x = dir + "/x_train_000.bin";
    tokenize(dir + "/x", words(10, 1));
    REQUIRE_FALSE(fs::exists(dir + "/x_train_001.bin"));
    for (const std::string& pattern : {x + "," + dir + "/x_train_*.bin", x + "," + x, dir + "/*.bin," + x})
        refused(pattern, Exit::usage, {x + " is given twice, and would count twice; name it once"});
    fs::create_symlink(x, dir + "/link.bin");
    fs::create_hard_link(x, dir + "/hard.bin");
    for (const std::string& other :
         {dir + "/link.bin", dir + "/hard.bin", dir + "/./x_train_000.bin", dir + "//x*train*.bin"})
        refused(x + "," + other, Exit::usage, {x, " are one file", "twice"});
}

TEST_CASE("shard sets: a signal that stops tokenize leaves no temporary file, and ends it as it would") {
    const std::string dir = temporary_directory(), never = dir + "/never.txt";
    std::string lines;
    const std::string line = "{\"text\":\"a\",\"more\":\"" + std::string(1000, 'a') + "\"}\n";
    for (int i = 0; i < 70000; i++) lines += line;    // four batches of 16 MiB, and the first is written
    write_file(dir + "/a.jsonl", lines);
    REQUIRE(mkfifo(never.c_str(), 0600) == 0);    // keeps tokenize waiting
    for (const int number : {SIGINT, SIGTERM, SIGHUP}) {
        Process p(
            {flatgpt_binary(), "tokenize", "--out", dir + "/x", "--shard-tokens", "10k", dir + "/a.jsonl", never});
        auto temporary = [&] {
            return std::count_if(fs::directory_iterator(dir), fs::directory_iterator(),
                                 [](auto& e) { return e.path().extension() == ".tmp"; });
        };
        const double start = now_seconds();
        while (temporary() < 5 && now_seconds() < start + 30 && p.running()) usleep(1000);
        CHECK(temporary() >= 5);    // four shards and the lock
        p.send(number);
        const ProcessResult r = p.wait();
        CHECK(r.signal == number);
        CHECK(temporary() == 0);
    }
}

// test_tokenize_resume.cpp - `flatgpt tokenize` killed at any moment, and continued by itself.
#include <csignal>
#include <filesystem>
#include <fstream>
#include <unistd.h>

#include "base/philox.h"
#include "test.h"

namespace {
namespace fs = std::filesystem;

// Some 40 MB of text in two files, of which one is compressed: three batches of tokenize.
struct Texts {
    std::string dir = temporary_directory();
    std::vector<std::string> command = {"tokenize", "--shard-tokens", "100000", "--val-fraction", "0.01", "--out",
                                        dir + "/x", "--save-every",   "0"};
    Texts() {
        std::string part;
        for (uint64_t i = 0; part.size() < 400000; i++)
            part += i % 9 ? (i % 5 ? " some words" : " <|endoftext|>")
                          : " " + std::to_string(philox(3, i, 0).v[0]) + "\n";
        std::ofstream plain(dir + "/a.txt", std::ios::binary), lines(dir + "/b.jsonl", std::ios::binary);
        for (int i = 0; i < 50; i++) plain << part << i;
        for (int i = 0; i < 40000; i++)
            lines << R"({"text": "Line )" << i << R"( has words, and )" << std::string(size_t(i % 900), '!') << "\"}\n";
        lines << "no JSON\n";
        plain.close();
        lines.close();
        CHECK(run_process({"gzip", "-1", dir + "/b.jsonl"}).exit_code == 0);
        for (const std::string arg : {"--skip-bad-lines", "/a.txt", "/b.jsonl.gz"})
            command.push_back(arg[0] == '/' ? dir + arg : arg);
    }
    std::string journal() const { return read_file(dir + "/x_tokenize.journal"); }
    // Names and bytes of the shards; removes them.
    std::string take_shards() const {
        std::vector<std::string> names;
        for (const auto& entry : fs::directory_iterator(dir)) names.push_back(entry.path().filename());
        std::sort(names.begin(), names.end());
        std::string all;
        for (const std::string& name : names) {
            if (name == "a.txt" || name == "b.jsonl.gz") continue;
            all += name + "\n" + read_file(dir + "/" + name);
            fs::remove(dir + "/" + name);
        }
        return all;
    }
    // Starts the command and kills it as soon as `moment` is true; false: it ended before.
    template <class Moment> bool killed(const Moment& moment) const {
        std::vector<std::string> program = command;
        program.insert(program.begin(), flatgpt_binary());
        Process p(program);
        for (int i = 0; i < 60000 && p.running() && !moment(); i++) usleep(200);
        p.send(SIGKILL);
        return p.wait().signal == SIGKILL;
    }
};
}    // namespace

TEST_CASE("tokenize resume: a run that was killed at any moment is continued to the same files") {
    const Texts texts;
    const ProcessResult whole = run_flatgpt(texts.command);
    REQUIRE_MESSAGE(whole.exit_code == 0, whole.err);
    CHECK(contains(whole.err, "1 line left out"));
    const std::string expected = texts.take_shards();
    CHECK(contains(expected, "x_train_050.bin"));
    CHECK(contains(expected, "x_val_000.bin"));
    CHECK(!contains(expected, "journal"));

    int killed = 0, continued = 0, publishing = 0;
    for (int saves = 1; saves <= 3; saves++) {    // killed after so many journals, then while shards get names
        std::string seen;
        int count = 0;
        killed += texts.killed([&] {
            const std::string now = texts.journal();
            count += !now.empty() && now != seen;
            seen = now;
            return saves == 3 ? contains(now, "\"complete\": true") : count == saves;
        });
        publishing += contains(texts.journal(), "\"complete\": true");
        const ProcessResult rest = run_flatgpt(texts.command);
        REQUIRE_MESSAGE(rest.exit_code == 0, rest.err);
        continued += contains(rest.err, "continues an interrupted run");
        CHECK(rest.err.substr(rest.err.find(" tokens (")) == whole.err.substr(whole.err.find(" tokens (")));
        CHECK(contains(rest.err, "spell special tokens") == contains(whole.err, "spell special tokens"));
        CHECK(contains(rest.err, "1 line left out"));
        CHECK(texts.take_shards() == expected);
    }
    CHECK(killed > 0);
    CHECK(continued > 0);
}

TEST_CASE("tokenize resume: another input or option needs --overwrite; stdin is never continued") {
    const Texts texts;
    auto saved = [&] { return !texts.journal().empty(); };
    REQUIRE(texts.killed(saved));
    std::ofstream(texts.dir + "/a.txt", std::ios::app) << "more";
    const std::string journal = texts.journal();
    const ProcessResult refused = run_flatgpt(texts.command);
    CHECK(refused.exit_code == 2);
    CHECK(contains(refused.err, "--overwrite to begin anew"));
    CHECK(texts.journal() == journal);
    std::vector<std::string> overwrite = texts.command;
    overwrite.push_back("--overwrite");
    const ProcessResult anew = run_flatgpt(overwrite);
    REQUIRE_MESSAGE(anew.exit_code == 0, anew.err);
    CHECK(contains(anew.err, "is given up"));
    CHECK(!contains(anew.err, "continues"));
    const std::string all = texts.take_shards();
    CHECK(!contains(all.substr(0, 100), ".tmp"));
    CHECK(run_flatgpt(texts.command).exit_code == 0);
    CHECK(texts.take_shards() == all);

    const std::string out = texts.dir + "/y";
    CHECK(run_flatgpt({"tokenize", "--save-every", "0", "--out", out, "-"}, {.stdin_text = "a text"}).exit_code == 0);
    write_file(out + "_tokenize.journal", R"({"run": 5, "complete": false, "train": {}, "val": {}, "counters": {}})");
    const ProcessResult again =
        run_flatgpt({"tokenize", "--overwrite", "--out", out, "-"}, {.stdin_text = "another text"});
    CHECK(again.exit_code == 0);
    CHECK(contains(again.err, "is given up"));
}

TEST_CASE("tokenize resume: a damaged journal is refused with its name, and harms no file") {
    const Texts texts;
    REQUIRE(texts.killed([&] { return !texts.journal().empty(); }));
    const std::string path = texts.dir + "/x_tokenize.journal", whole = texts.journal();
    for (size_t cut = 0; cut < whole.size(); cut += whole.size() / 11 + 1) {
        write_file(path, whole.substr(0, cut));
        const ProcessResult r = run_flatgpt(texts.command);
        CHECK(r.exit_code == 3);
        CHECK(contains(r.err, "x_tokenize.journal"));
    }
    for (const char* key : {"\"tokens\": ", "\"documents\": ", "\"segments\": ", "\"hash\": "}) {
        std::string changed = whole;
        changed.insert(changed.find(key) + std::string(key).size(), "-");
        write_file(path, changed);
        const ProcessResult r = run_flatgpt(texts.command);
        CHECK_MESSAGE(r.exit_code == 3, key, r.err);
    }
    for (const auto& entry : fs::directory_iterator(texts.dir))    // a shard that is shorter than the journal says
        if (contains(entry.path().filename(), "x_train_000")) fs::resize_file(entry.path(), 2000);
    write_file(path, whole);
    const ProcessResult r = run_flatgpt(texts.command);
    CHECK(r.exit_code == 4);
    CHECK(contains(r.err, "expected at least"));
    CHECK(contains(r.err, "remove that file to begin anew"));
    fs::remove(path);
    CHECK(run_flatgpt(texts.command).exit_code == 0);
    CHECK(!contains(texts.take_shards().substr(0, 100), ".tmp"));
}

// test_tokenize_resume.cpp - `flatgpt tokenize` killed at any moment, and continued by itself.
#include <csignal>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <unistd.h>

#include "base/philox.h"
#include "data/loader.h"
#include "data/merge.h"
#include "test.h"

namespace {
namespace fs = std::filesystem;
using nlohmann::json;

// A command in a directory of its own, with two threads: a batch of tokenize then has 16 MiB on any
// machine.
struct Tokenize {
    std::string dir = temporary_directory();
    std::vector<std::string> command = {"tokenize", "--out", dir + "/x", "--save-every", "0"};
    std::vector<std::string> inputs;    // names in dir

    // Adds arguments; those that begin with a slash are inputs.
    void add(const std::vector<std::string>& args) {
        for (const std::string& arg : args) {
            command.push_back(arg[0] == '/' ? dir + arg : arg);
            if (arg[0] == '/') inputs.push_back(arg.substr(1));
        }
    }
    ProcessResult run(const std::vector<std::string>& more = {}, int threads = 2) const {
        std::vector<std::string> args = command;
        args.insert(args.end(), more.begin(), more.end());
        return run_flatgpt(args, {.environment = {"OMP_NUM_THREADS=" + std::to_string(threads)}});
    }
    std::vector<std::string> program() const {
        std::vector<std::string> all = command;
        all.insert(all.begin(), flatgpt_binary());
        return all;
    }
    // Starts the command and kills it as soon as `moment` is true; false: it ended before.
    template <class Moment> bool killed(const Moment& moment) const {
        Process p(program(), {.environment = {"OMP_NUM_THREADS=2"}});
        for (int i = 0; i < 60000 && p.running() && !moment(); i++) usleep(200);
        p.send(SIGKILL);
        return p.wait().signal == SIGKILL;
    }
    bool killed_after_save() const {
        return killed([&] { return !journal().empty(); });
    }
    std::string journal() const { return read_file(dir + "/x_tokenize.journal"); }
    // Names of all that was written, sorted; the lock of a killed process is not of interest.
    std::vector<std::string> names() const {
        std::vector<std::string> all;
        for (const auto& entry : fs::directory_iterator(dir)) {
            const std::string name = entry.path().filename();
            const bool input = std::count(inputs.begin(), inputs.end(), name) > 0;
            if (!input && !contains(name, "_tokenize.lock")) all.push_back(name);
        }
        std::sort(all.begin(), all.end());
        return all;
    }
    std::string bytes() const {    // content of names(), each behind its name
        std::string all;
        for (const std::string& name : names()) all += name + "\n" + read_file(dir + "/" + name);
        return all;
    }
    std::string take() const {    // bytes(), of files that are then removed
        const std::string all = bytes();
        for (const std::string& name : names()) fs::remove(dir + "/" + name);
        return all;
    }
    // Appends to each shard's temporary, as a process does that is killed between two journals.
    void append_to_temporaries() const {
        for (const std::string& name : names())
            if (name.starts_with("x_") && name.ends_with(".tmp"))
                std::ofstream(dir + "/" + name, std::ios::app) << "not in the journal";
    }
};

// Some 40 MB of text in two files, of which one is compressed: three batches.
struct Texts : Tokenize {
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
        add({"--shard-tokens", "100000", "--val-fraction", "0.01", "/a.txt", "/b.jsonl.gz", "--skip-bad-lines"});
    }
};

// Documents of which a third are copies of earlier ones, and others nearly so: four batches, since
// sketches count, too.
struct Documents : Tokenize {
    Documents() {
        std::ofstream lines(dir + "/c.jsonl", std::ios::binary);
        for (uint64_t i = 0; i < 100000; i++) {
            lines << "{\"text\": \"";
            for (uint64_t k = 0; k < 30; k++) lines << "w" << philox(4, i % 3 ? i : i / 2, k).v[0] % 1000 << ' ';
            lines << (i % 7 ? "" : "more") << "\"}\n";
        }
        lines.close();
        add({"--dedup", "minhash", "--val-fraction", "0.1", "/c.jsonl", "--dedup-report"});
        command.push_back(dir + "/report.jsonl");
    }
};

std::string summary(const ProcessResult& r) {
    const size_t at = r.err.find(" tokens (");
    return at == std::string::npos ? "no summary: " + r.err : r.err.substr(at);
}

// The journal's part about complete shards.
json complete_series(const std::vector<std::string>& shards) {
    uint64_t hash = 0;
    int64_t tokens = 0, documents = 0;
    json list = json::array();
    for (const std::string& path : shards) {
        const Result<Shard> shard = shard_open(path, false);
        REQUIRE(shard.ok());
        const std::string all = read_file(path);
        for (size_t i = 0; i < size_t(shard.value.tokens); i++)
            hash = mix(hash, load_as<uint16_t>(&all[size_t(shard.value.data_offset) + 2 * i]));
        tokens += shard.value.tokens;
        documents += shard.value.documents;
        list.push_back({{"tokens", shard.value.tokens}, {"documents", shard.value.documents}});
    }
    return {{"tokens", tokens}, {"documents", documents}, {"hash", hash}, {"open", false}, {"shards", list}};
}
}    // namespace

TEST_CASE("tokenize resume: a run that was killed at any moment is continued to the same files") {
    const Texts texts;
    const ProcessResult whole = texts.run();
    REQUIRE_MESSAGE(whole.exit_code == 0, whole.err);
    CHECK(contains(whole.err, "1 line left out"));
    const std::string expected = texts.take();
    CHECK(contains(expected, "x_train_050.bin"));
    CHECK(contains(expected, "x_val_000.bin"));
    CHECK(!contains(expected, "journal"));

    int killed = 0, continued = 0;
    for (int saves = 1; saves <= 3; saves++) {    // killed after so many journals, then while shards get names
        std::string seen;
        int count = 0;
        killed += texts.killed([&] {
            const std::string now = texts.journal();
            count += !now.empty() && now != seen;
            seen = now;
            return saves == 3 ? contains(now, "\"complete\": true") : count == saves;
        });
        texts.append_to_temporaries();
        const ProcessResult rest = texts.run({}, saves == 2 ? 1 : 3);
        REQUIRE_MESSAGE(rest.exit_code == 0, rest.err);
        continued += contains(rest.err, "continues an interrupted run");
        CHECK(summary(rest) == summary(whole));
        CHECK(contains(rest.err, "spell special tokens") == contains(whole.err, "spell special tokens"));
        CHECK(contains(rest.err, "1 line left out"));
        CHECK(texts.take() == expected);
    }
    CHECK(killed > 0);
    CHECK(continued > 0);
}

TEST_CASE("tokenize resume: deduplication of a killed run is continued to the same shards and report") {
    const Documents documents;
    const ProcessResult whole = documents.run();
    REQUIRE_MESSAGE(whole.exit_code == 0, whole.err);
    const std::string report = read_file(documents.dir + "/report.jsonl"), expected = documents.take();
    CHECK(std::count(report.begin(), report.end(), '\n') > 10000);
    CHECK(contains(expected, "x_val_000.bin"));

    REQUIRE(documents.killed_after_save());
    documents.append_to_temporaries();
    const ProcessResult rest = documents.run();
    REQUIRE_MESSAGE(rest.exit_code == 0, rest.err);
    CHECK(contains(rest.err, "continues an interrupted run"));
    CHECK(summary(rest) == summary(whole));
    CHECK(read_file(documents.dir + "/report.jsonl") == report);
    CHECK(documents.take() == expected);
}

TEST_CASE("tokenize resume: complete shards get the names they lack, and no other file is taken for one") {
    const Texts texts;
    REQUIRE(texts.killed_after_save());
    json journal = json::parse(texts.journal());
    REQUIRE(texts.run().exit_code == 0);
    const std::string expected = texts.bytes();
    std::vector<std::string> train, val, all;    // all: in the order in which they get names
    for (const std::string& name : texts.names())
        (contains(name, "train") ? train : val).push_back(texts.dir + "/" + name);
    all = val;
    all.insert(all.end(), train.begin(), train.end());
    journal["complete"] = true;
    journal["train"] = complete_series(train);
    journal["val"] = complete_series(val);
    auto interrupt = [&](size_t named) {    // as if killed when so many shards had their names
        for (size_t i = named; i < all.size(); i++) fs::rename(all[i], all[i] + ".flatgpt-0123456789abcdef.tmp");
        write_file(texts.dir + "/x_tokenize.journal", journal.dump());
        write_file(texts.dir + "/x_train_900.bin", "a shard of an older run, which --overwrite replaces");
    };
    for (const size_t named : {size_t(0), val.size(), all.size() - 1, all.size()}) {
        interrupt(named);
        const ProcessResult rest = texts.run();
        REQUIRE_MESSAGE(rest.exit_code == 0, rest.err);
        CHECK(texts.bytes() == expected);
    }

    interrupt(all.size() - 1);
    fs::copy_file(train[1], train[0], fs::copy_options::overwrite_existing);
    const std::vector<std::string> before = texts.names();
    const ProcessResult other = texts.run();
    CHECK(other.exit_code == 3);
    CHECK(contains(other.err, "x_train_000.bin: expected shard 0 of the interrupted run"));
    CHECK(texts.names() == before);
}

TEST_CASE("tokenize resume: another input or option needs --overwrite; stdin is never continued") {
    const Texts texts;
    REQUIRE(texts.killed_after_save());
    std::ofstream(texts.dir + "/a.txt", std::ios::app) << "more";
    const std::string journal = texts.journal();
    const ProcessResult refused = texts.run();
    CHECK(refused.exit_code == 2);
    CHECK(contains(refused.err, "--overwrite to begin anew"));
    CHECK(texts.journal() == journal);
    const std::vector<std::string> before = texts.names();    // a mistyped name removes nothing
    const ProcessResult mistyped = texts.run({"--overwrite", texts.dir + "/no_such_file"});
    CHECK(mistyped.exit_code == 3);
    CHECK(texts.names() == before);

    // Shards that the new run does not have are removed, and no other file is.
    const std::string mark = ".flatgpt-0123456789abcdef.tmp", other = texts.dir + "/x_train_other.bin" + mark;
    write_file(texts.dir + "/x_train_777.bin" + mark, "a leftover");
    write_file(other, "a leftover of another command");
    const ProcessResult anew = texts.run({"--overwrite"});
    REQUIRE_MESSAGE(anew.exit_code == 0, anew.err);
    CHECK(contains(anew.err, "is given up"));
    CHECK(!contains(anew.err, "continues"));
    CHECK(fs::remove(other));
    for (const std::string& name : texts.names()) CHECK_MESSAGE(!contains(name, ".tmp"), name);

    const std::string out = texts.dir + "/y";
    CHECK(run_flatgpt({"tokenize", "--save-every", "0", "--out", out, "-"}, {.stdin_text = "a text"}).exit_code == 0);
    write_file(out + "_tokenize.journal", R"({"run": 5, "complete": false, "train": {}, "val": {}, "counters": {}})");
    const ProcessResult again =
        run_flatgpt({"tokenize", "--overwrite", "--out", out, "-"}, {.stdin_text = "another text"});
    CHECK(again.exit_code == 0);
    CHECK(contains(again.err, "is given up"));
}

TEST_CASE("tokenize resume: a second process that writes the same shards is refused") {
    const Texts texts;
    Process first(texts.program(), {.environment = {"OMP_NUM_THREADS=2"}});
    for (int i = 0; i < 60000 && first.running() && texts.journal().empty(); i++) usleep(200);
    first.send(SIGSTOP);
    usleep(50000);    // until all its threads stand still
    REQUIRE(first.running());
    const std::string journal = texts.journal();
    const std::vector<std::string> before = texts.names();
    for (const std::vector<std::string>& more :
         {std::vector<std::string>{}, {"--overwrite"}, {"--special", "token"}, {"--overwrite", "--special", "token"}}) {
        const ProcessResult second = texts.run(more);
        CHECK(second.exit_code == 2);
        CHECK_MESSAGE(contains(second.err, "x_: another process writes these shards"), second.err);
    }
    CHECK(texts.journal() == journal);
    CHECK(texts.names() == before);
    first.send(SIGCONT);
    CHECK(first.wait().exit_code == 0);
    CHECK(!fs::exists(texts.dir + "/x_tokenize.lock.flatgpt-0000000000000000.tmp"));
}

TEST_CASE("tokenize resume: an error says what is kept") {
    Texts texts;
    texts.command.pop_back();    // --skip-bad-lines
    for (int i = 0; i < 2; i++) {
        const ProcessResult r = texts.run();
        CHECK(r.exit_code == 3);
        CHECK(contains(r.err, "b.jsonl.gz"));
        CHECK(contains(r.err, "is kept for the same command"));
        CHECK(contains(r.err, "x_tokenize.journal"));
        CHECK(contains(r.err, "continues an interrupted run") == (i == 1));
        CHECK(!texts.journal().empty());
    }
}

TEST_CASE("tokenize resume: a line that is too long is refused with its file, behind good lines, too") {
    Tokenize lines;
    lines.add({"--longest-line", "1", "/long.jsonl"});
    const std::string good = "{\"text\": \"a good line\"}\n";
    write_file(lines.dir + "/long.jsonl", good + good + "{\"text\": \"" + std::string(3 << 20, 'a') + "\"}\n");
    for (const int threads : {1, 2}) {
        const ProcessResult r = lines.run({}, threads);
        CHECK_MESSAGE(r.exit_code == 3, r.err);
        CHECK_MESSAGE(contains(r.err, "long.jsonl"), r.err);
        CHECK_MESSAGE(contains(r.err, "--longest-line"), r.err);
        lines.take();
    }
}

TEST_CASE("tokenize resume: a damaged journal is refused with its name, and harms no file") {
    const Texts texts;
    REQUIRE(texts.killed_after_save());
    const std::vector<std::string> before = texts.names();
    const std::string path = texts.dir + "/x_tokenize.journal", whole = texts.journal();
    for (size_t cut = 0; cut < whole.size(); cut += whole.size() / 11 + 1) {
        write_file(path, whole.substr(0, cut));
        const ProcessResult r = texts.run();
        CHECK(r.exit_code == 3);
        CHECK(contains(r.err, "x_tokenize.journal"));
    }
    for (const std::string key : {"\"tokens\": ", "\"documents\": ", "\"segments\": ", "\"hash\": "})
        for (const bool val : {false, true}) {    // the key of train, or of val
            std::string changed = whole;
            changed.insert((val ? whole.rfind(key) : whole.find(key)) + key.size(), val ? "[], \"z\": " : "-");
            write_file(path, changed);
            const ProcessResult r = texts.run();
            CHECK_MESSAGE(r.exit_code == 3, key, r.err);
            CHECK(contains(r.err, "x_tokenize.journal"));
        }
    write_file(path, whole);
    CHECK(texts.names() == before);
    const size_t shards = json::parse(whole)["train"]["shards"].size();
    REQUIRE(shards > 1);
    for (const std::string& name : before)    // the last shard is shorter than the journal says
        if (contains(name, "x_train_" + formatted("%03zu", shards - 1))) fs::resize_file(texts.dir + "/" + name, 1024);
    const ProcessResult r = texts.run();
    CHECK(r.exit_code == 4);
    CHECK(contains(r.err, "expected at least"));
    CHECK(contains(r.err, "remove that file to begin anew"));
    CHECK(texts.names() == before);
    fs::remove(path);
    CHECK(texts.run().exit_code == 0);
    for (const std::string& name : texts.names()) CHECK_MESSAGE(!contains(name, ".tmp"), name);
}

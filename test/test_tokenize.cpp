// test_tokenize.cpp - `flatgpt train-tokenizer` and `flatgpt tokenize` from files to shards.
#include "base/command.h"
#include "data/bpe.h"
#include "data/tokenizer_models/training.h"
#include "data/corpus.h"
#include "base/file.h"
#include "base/philox.h"
#include "data/loader.h"

#include <fcntl.h>
#include <filesystem>
#include <fstream>
#include <unistd.h>

#include "packed.h"
#include "test.h"
#include "tools/commands.h"

namespace {
namespace fs = std::filesystem;
using Strings = std::vector<std::string>;

Status run(Command command, const Strings& args) {
    Result<bool> go = command_parse(command, args);
    return go.ok() ? command.run() : go.status;
}
Status tokenize(const Strings& args) { return run(tokenize_command(), args); }
void write(const std::string& path, const std::string& text) { std::ofstream(path, std::ios::binary) << text; }

std::vector<int> read_shard(const std::string& path, int vocab = 50257) {
    Result<Shard> shard = shard_open(path, false);
    REQUIRE_MESSAGE(shard.ok(), shard.status.message);
    std::vector<int> ids(size_t(shard.value.tokens));
    Status s = shard_read(shard.value, 0, shard.value.tokens, vocab, ids.data());
    REQUIRE_MESSAGE(s.ok(), s.message);
    return ids;
}
std::string story(int lines) {
    static const char* const words[] = {
        "the", "cat", "sat", "on", "a", "mat", "It's", "raining,", "said", "\"Emma.\"", "\xE6\xBC\xA2\xE5\xAD\x97",
        "1815"};
    std::string text;
    for (int i = 0; i < lines; i++) {
        for (uint64_t j = 0; j < 10; j++) text += std::string(words[philox(1, uint64_t(i), j).v[0] % 12]) + " ";
        text += i % 7 ? "\n" : "\r\n\n";
    }
    return text;
}
template <class V> V operator+(V a, const V& b) { return a.insert(a.end(), b.begin(), b.end()), a; }
// Token stream of the documents' shards: <|endoftext|> before each document and at the end.
std::vector<int> stream(const Strings& documents) {
    static const Tokenizer t = Tokenizer::gpt2();
    std::vector<int> ids = {t.end_of_text()};
    for (const std::string& text : documents) ids = ids + t.encode(text) + std::vector{t.end_of_text()};
    return ids;
}
}    // namespace

TEST_CASE("tokenize: a long text, cut for memory and for shards, has the ids of the whole") {
    std::string dir = temporary_directory(), text = story(60000);    // several segments
    write(dir + "/a.txt", text);
    write(dir + "/b.txt", "short");
    write(dir + "/empty.txt", "");
    REQUIRE(tokenize(
                {"--out", dir + "/new/x", "--shard-tokens", "300k", dir + "/a.txt", dir + "/b.txt", dir + "/empty.txt"})
                .ok());
    std::vector<int> ids;
    int64_t documents = 0;
    for (int i = 0; fs::exists(dir + "/new/x_train_00" + std::to_string(i) + ".bin"); i++) {
        std::string path = dir + "/new/x_train_00" + std::to_string(i) + ".bin";
        std::vector<int> shard = read_shard(path);
        CHECK(shard.size() <= 300000);
        ids = ids + shard;
        Shard about = shard_open(path, false).value;
        CHECK(about.vocab == 50257);
        CHECK(about.tokenizer == Tokenizer::gpt2().fingerprint());
        documents += about.documents;
    }
    CHECK(ids.size() > 600000);
    CHECK(ids == stream({text, "short"}));
    CHECK(documents == 2);
    CHECK_FALSE(fs::exists(dir + "/new/x_val_000.bin"));
}

TEST_CASE("tokenize: the tail of a text is held out") {
    std::string dir = temporary_directory(), text = story(20000);
    write(dir + "/a.txt", text);
    REQUIRE(tokenize({"--out", dir + "/x", "--val-fraction", "0.25", dir + "/a.txt"}).ok());
    Tokenizer t = Tokenizer::gpt2();
    std::vector<int> train = read_shard(dir + "/x_train_000.bin"), val = read_shard(dir + "/x_val_000.bin");
    // The held-out tail counts as a document.
    CHECK(shard_open(dir + "/x_val_000.bin", false).value.documents == 1);
    for (std::vector<int>* ids : {&train, &val}) {
        REQUIRE(ids->front() == 50256);
        REQUIRE(ids->back() == 50256);
        ids->erase(ids->begin());
        ids->pop_back();
    }
    CHECK(t.decode(train) + t.decode(val) == text);
    CHECK(train + val == t.encode(text));
    CHECK(double(t.decode(val).size()) / double(text.size()) == doctest::Approx(0.25).epsilon(0.001));
}

TEST_CASE("tokenize: JSON lines, one document each; every so many are held out") {
    std::string dir = temporary_directory(), lines;
    Strings train, val;
    for (int i = 0; i < 1000; i++) {
        std::string text = "document " + std::to_string(i) + "\nwith \xC3\xA9 <|endoftext|>";
        lines += "{\"id\": " + std::to_string(i) + ", \"body\": \"document " + std::to_string(i) +
                 "\\nwith \\u00e9 <|endoftext|>\"}" + (i % 3 ? "\n" : "\r\n\n");
        (i % 20 == 19 ? val : train).push_back(text);
    }
    write(dir + "/a.jsonl", lines);
    REQUIRE(tokenize({"--out", dir + "/x", "--val-fraction", "0.05", "--field", "body", dir + "/a.jsonl"}).ok());
    CHECK(read_shard(dir + "/x_train_000.bin") == stream(train));
    CHECK(read_shard(dir + "/x_val_000.bin") == stream(val));
    CHECK(shard_open(dir + "/x_train_000.bin", false).value.documents == 950);

    int in = dup(0), fd = open((dir + "/a.jsonl").c_str(), O_RDONLY);    // equal text from stdin
    dup2(fd, 0);
    CHECK(tokenize({"--out", dir + "/y", "--val-fraction", "0.05", "--field", "body", "-"}).ok());
    dup2(in, 0);
    close(fd);
    close(in);
    CHECK(read_shard(dir + "/y_val_000.bin") == stream(val));
}

TEST_CASE("tokenize: what is wrong, and where") {
    std::string dir = temporary_directory();
    auto check = [&](Status s, Exit code, const std::string& message) {
        CHECK(s.code == code);
        CHECK_MESSAGE(s.message.find(message) != std::string::npos, s.message);
    };
    auto line = [&](const std::string& bad) {
        write(dir + "/bad.jsonl", "{\"text\": \"fine\"}\n\n" + bad + "\n{\"text\": \"fine\"}\n");
        return tokenize({"--out", dir + "/z", dir + "/bad.jsonl"});
    };
    check(line("{\"text\": 5}"), Exit::input, "bad.jsonl:3: text: expected a string, found 5");
    check(line("{\"txt\": \"a\"}"), Exit::input, "bad.jsonl:3: text: expected a string, found nothing");
    check(line("[1]"), Exit::input, "bad.jsonl:3: expected a JSON object");
    check(line("{\"text\": \"a"), Exit::input, "bad.jsonl:3: ");
    check(line("{\"text\": \"\xFF\"}"), Exit::input, "bad.jsonl:3: ");
    check(tokenize({"--out", dir + "/z", dir + "/none.txt"}), Exit::input, "none.txt: cannot read");
    check(tokenize({"--out", dir + "/z", dir}), Exit::input, "found a directory");
    write(dir + "/empty.txt", "");
    check(tokenize({"--out", dir + "/z", dir + "/empty.txt"}), Exit::input, "found none");
    check(tokenize({"--out", dir + "/z", "--val-fraction", "0.1", "/dev/null"}), Exit::usage, "stream");
    write(dir + "/a.txt", "some text");
    write(dir + "/no_end.json", Tokenizer::from_merges({}, Pattern::gpt2, {"<|end|>"}).to_json());
    check(tokenize({"--tokenizer", dir + "/no_end.json", "--out", dir + "/z", dir + "/a.txt"}), Exit::input,
          "<|endoftext|>");
    check(tokenize({"--out", dir + "/a.txt/z", dir + "/a.txt"}), Exit::io, "cannot create");
    check(line("[1]"), Exit::input, "--skip-bad-lines");
    check(tokenize({"--out", "/dev/null/z", dir + "/a.txt"}), Exit::io, "cannot create");
    // A command that failed has written no shard.
    for (auto& entry : fs::directory_iterator(dir)) CHECK(entry.path().extension() != ".bin");

    // old shards are never overwritten unasked, nor left beside new ones
    Strings args = {"--out", dir + "/z", "--shard-tokens", "1", dir + "/a.txt"};
    REQUIRE(tokenize(args).ok());
    CHECK(fs::exists(dir + "/z_train_003.bin"));
    check(tokenize(args), Exit::usage, "z_train_000.bin exists");
    write(dir + "/z_train_x.bin", "somebody's");
    args[3] = "2";
    args.push_back("--overwrite");
    REQUIRE(tokenize(args).ok());
    CHECK(fs::exists(dir + "/z_train_001.bin"));
    CHECK_FALSE(fs::exists(dir + "/z_train_003.bin"));
    CHECK(fs::exists(dir + "/z_train_x.bin"));
}

TEST_CASE("tokenize: into a directory; bad lines are counted; a short text has no validation part") {
    std::string dir = temporary_directory();
    write(dir + "/a.txt", story(2000));
    REQUIRE(tokenize({"--out", dir + "/new/folder/", "--val-fraction", "0.1", dir + "/a.txt"}).ok());
    CHECK(fs::exists(dir + "/new/folder/train_000.bin"));
    CHECK(fs::exists(dir + "/new/folder/val_000.bin"));
    fs::create_directory(dir + "/old");
    REQUIRE(tokenize({"--out", dir + "/old", dir + "/a.txt"}).ok());
    CHECK(read_shard(dir + "/old/train_000.bin") == stream({story(2000)}));
    Status again = tokenize({"--out", dir + "/old", dir + "/a.txt"});
    CHECK(again.code == Exit::usage);
    CHECK_MESSAGE(again.message.find("old/train_000.bin exists") != std::string::npos, again.message);

    // Double slashes and /./ in --out: existing shards are found, and --overwrite does not take the
    // shards that it has just written for old ones.
    REQUIRE(tokenize({"--out", dir + "/old/x", dir + "/a.txt"}).ok());
    for (const char* out : {"/old//", "/old//x", "//old/x", "/./old//x"}) {
        Strings args = {"--out", dir + out, dir + "/a.txt"};
        CHECK_MESSAGE(tokenize(args).code == Exit::usage, out);
        args.push_back("--overwrite");
        CHECK_MESSAGE(tokenize(args).ok(), out);
        const std::string name = std::string(out).ends_with('x') ? "x_train_000.bin" : "train_000.bin";
        CHECK(read_shard(dir + "/old/" + name) == stream({story(2000)}));
    }

    write(dir + "/b.jsonl", "{\"text\": \"one\"}\n{\"text\": 5}\n{\"text\": \"two\"}\nrubbish\n{}\n");
    CHECK(tokenize({"--out", dir + "/b", dir + "/b.jsonl"}).code == Exit::input);
    ProcessResult r = run_flatgpt({"tokenize", "--out", dir + "/b", "--skip-bad-lines", dir + "/b.jsonl"});
    CHECK(r.exit_code == 0);
    CHECK_MESSAGE(r.err.find("3 lines left out") != std::string::npos, r.err);
    CHECK_MESSAGE(r.err.find("b.jsonl:2: text: expected a string, found 5") != std::string::npos, r.err);
    CHECK(read_shard(dir + "/b_train_000.bin") == stream({"one", "two"}));
    write(dir + "/c.jsonl", "rubbish\n");
    CHECK(tokenize({"--out", dir + "/c", "--skip-bad-lines", dir + "/c.jsonl"}).code == Exit::input);

    write(dir + "/short.txt", "hello world");
    r = run_flatgpt({"tokenize", "--out", dir + "/short", "--val-fraction", "0.01", dir + "/short.txt"});
    CHECK(r.exit_code == 0);
    for (const char* part : {"no validation shard", "11 B of text", "--val-fraction"})
        CHECK_MESSAGE(r.err.find(part) != std::string::npos, r.err);
}

TEST_CASE("tokenize: compressed, UTF-16 and .ndjson input is what it is unpacked") {
    std::string dir = temporary_directory(), text = story(20000), lines;
    for (int i = 0; i < 200; i++) lines += "{\"text\": \"document " + std::to_string(i) + "\"}\n";
    write(dir + "/plain.txt", text);
    write(dir + "/plain.jsonl", lines);
    write(dir + "/x.txt.gz", gzip(text));
    write(dir + "/x.txt.zst", zstd(text));
    write(dir + "/x16.txt", utf16(text));
    write(dir + "/x.jsonl.gz", gzip(lines));
    write(dir + "/X.JSONL.ZST", zstd(lines));
    write(dir + "/x.ndjson", lines);
    auto shards = [&](const std::string& name) {
        REQUIRE_MESSAGE(tokenize({"--out", dir + "/" + name, "--val-fraction", "0.1", dir + "/" + name}).ok(), name);
        std::string stem = dir + "/" + name;
        return std::pair(read_shard(stem + "_train_000.bin"), read_shard(stem + "_val_000.bin"));
    };
    auto plain = shards("plain.txt"), json = shards("plain.jsonl");
    for (const char* name : {"x.txt.gz", "x.txt.zst", "x16.txt"}) CHECK_MESSAGE(shards(name) == plain, name);
    for (const char* name : {"x.jsonl.gz", "X.JSONL.ZST", "x.ndjson"}) CHECK_MESSAGE(shards(name) == json, name);

    // From stdin no tail can be held out, because the length is unknown.
    ProcessOptions options;
    options.stdin_text = gzip(text);
    CHECK(run_flatgpt({"tokenize", "--out", dir + "/in", "-"}, options).exit_code == 0);
    CHECK(read_shard(dir + "/in_train_000.bin") == stream({text}));
    ProcessResult r = run_flatgpt({"tokenize", "--out", dir + "/in2", "--val-fraction", "0.1", "-"}, options);
    CHECK(r.exit_code == 2);
    CHECK_MESSAGE(r.err.find("give the file's name") != std::string::npos, r.err);

    // A file that is no text is refused before anything is written, even as the last input.
    Status s = tokenize({"--out", dir + "/no/x", dir + "/plain.txt", dir + "/in_train_000.bin"});
    CHECK(s.code == Exit::input);
    CHECK_MESSAGE(s.message.find("in_train_000.bin: expected text, but it is a shard") != std::string::npos, s.message);
    CHECK_FALSE(fs::exists(dir + "/no"));
}

TEST_CASE("train-tokenizer: files to tokenizer.json, the same for every way to give the text") {
    std::string dir = temporary_directory(), text = story(30000);
    write(dir + "/a.txt", text);
    for (std::string pattern : {"gpt2", "cl100k"}) {
        std::string out = dir + "/" + pattern + "/tok.json";
        Strings args = {"--vocab", "290", "--pattern", pattern, "--out", out, dir + "/a.txt"};
        REQUIRE(run(train_tokenizer_command(), args).ok());
        Result<Tokenizer> t = Tokenizer::load(out);
        REQUIRE(t.ok());
        CHECK(t.value.vocab_size() == 290);
        CHECK(t.value.end_of_text() == 289);
        TokenizerTraining whole;    // the whole text in one call
        whole.vocab = 290;
        whole.pattern = pattern == "gpt2" ? Pattern::gpt2 : Pattern::cl100k;
        bool given = false;
        whole.read = [&](std::string& s) -> Result<bool> { return s = text, !std::exchange(given, true); };
        CHECK(bpe_train(whole).value.to_json() == t.value.to_json());
        REQUIRE(tokenize({"--tokenizer", out, "--out", dir + "/" + pattern + "/x", dir + "/a.txt"}).ok());
        std::vector<int> ids = std::vector{289} + t.value.encode(text) + std::vector{289};
        CHECK(read_shard(dir + "/" + pattern + "/x_train_000.bin", 290) == ids);
    }
    Status s = run(train_tokenizer_command(), {"--vocab", "300", "--out", dir + "/t.json", dir + "/none"});
    CHECK(s.code == Exit::input);
    write(dir + "/bad.jsonl", "{\"text\": \"fine\"}\n{}\n");
    s = run(train_tokenizer_command(), {"--vocab", "300", "--out", dir + "/t.json", dir + "/bad.jsonl"});
    CHECK(s.code == Exit::input);
    CHECK(s.message.find("bad.jsonl:2: text") != std::string::npos);
    CHECK_FALSE(fs::exists(dir + "/t.json"));
    auto train = [&](Strings more) {
        more.insert(more.end(), {"--vocab", "300", "--skip-bad-lines", dir + "/bad.jsonl"});
        return run(train_tokenizer_command(), more);
    };
    CHECK(train({"--out", dir + "/t.json"}).ok());
    s = train({"--out", dir + "/t.json"});
    CHECK(s.code == Exit::usage);
    CHECK_MESSAGE(s.message.find("--overwrite") != std::string::npos, s.message);
    CHECK(train({"--out", dir + "/t.json", "--overwrite"}).ok());
    CHECK(train({"--out", dir}).code == Exit::usage);
    CHECK(train({"--out", "/dev/null/t.json"}).code == Exit::io);
    CHECK_FALSE(fs::exists(dir + "/t.json.tmp"));
}

TEST_CASE("corpus: segments are bounded, and many files are held out whole") {
    std::string dir = temporary_directory();
    write(dir + "/long.txt", story(50000));
    auto cut = [](std::string_view text, size_t limit) { return safe_cut(Pattern::gpt2, text, limit); };
    Result<Corpus> corpus = Corpus::open({{dir + "/long.txt"}, "", 0, cut});
    REQUIRE(corpus.ok());
    size_t largest = 0, n = 0;
    for (Segment s; corpus.value.next(s).value; n++) largest = std::max(largest, s.text.size());
    CHECK(n >= 2);
    CHECK(largest <= (1 << 20));
    CHECK(corpus.value.bytes_read() == corpus.value.bytes());
    Strings files;
    for (int i = 0; i < 101; i++) {
        files.push_back(dir + "/" + std::to_string(i) + ".txt");
        write(files.back(), "text " + std::to_string(i));
    }
    Result<Corpus> many = Corpus::open({files, "", 0.1, cut});
    REQUIRE(many.ok());
    int held_out = 0, documents = 0;
    for (Segment s; many.value.next(s).value; documents++) {
        CHECK(s.begins_document);
        held_out += s.validation;
    }
    CHECK(documents == 101);
    CHECK(held_out == 10);
}

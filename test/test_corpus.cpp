// test_corpus.cpp - how text files are recognised (JSON lines under any name, tables, Latin-1),
// special tokens in them, and the memory that a small file can cost.
#include "data/bpe.h"
#include "base/philox.h"
#include "data/loader.h"
#include "files/json.h"

#include <filesystem>

#include "memory_growth.h"
#include "packed.h"
#include "sanitizers.h"
#include "speaker.h"

namespace {
namespace fs = std::filesystem;
using Strings = std::vector<std::string>;

std::vector<int> shard(const std::string& path) {
    const Shard s = shard_open(path, false).value;
    std::vector<int> ids(size_t(s.tokens));
    REQUIRE(shard_read(s, 0, s.tokens, 1 << 20, ids.data()).ok());
    return ids;
}
// The documents that `flatgpt tokenize` makes of a file, as text.
struct Tokenized {
    ProcessResult r;
    Strings documents;
    std::vector<int> ids;    // the training shard's
};
Tokenized tokenized(const std::string& path, const Strings& more = {}, const std::string& input = "") {
    static const Tokenizer t = chat_tokenizer();    // byte tokens: quick to load
    Strings args = {"tokenize", "--overwrite", "--out", temporary_directory() + "/o", "--tokenizer"};
    args.push_back(args[3] + ".json");
    write_file(args.back(), t.to_json());
    args.insert(args.end(), more.begin(), more.end());
    args.push_back(path);
    Tokenized all{run_flatgpt(args, {.stdin_text = input}), {}, {}};
    if (all.r.exit_code) return all;
    const std::vector<int> ids = all.ids = shard(args[3] + "_train_000.bin");
    std::vector<int> document;
    for (size_t i = 1; i < ids.size(); i++) {
        if (ids[i] != t.end_of_text()) document.push_back(ids[i]);
        else all.documents.push_back(t.decode(document)), document.clear();
    }
    return all;
}
void refused(const Tokenized& t, int code, const Strings& parts) {
    CAPTURE(t.r.err);
    CHECK(t.r.exit_code == code);
    for (const std::string& part : parts) CHECK(contains(t.r.err, part));
}
const Strings TWO = {"hello", "world"};
}    // namespace

TEST_CASE("corpus: what begins as JSON lines is read as such, whatever its name") {
    const std::string dir = temporary_directory(), lines = "{\"text\":\"hello\",\"url\":\"u\"}\n{\"text\":\"world\"}\n";
    const std::string indented = " \n  { \"text\" : \"hello\" }\r\n" + lines.substr(lines.find('\n') + 1);
    const std::pair<const char*, std::string> files[] = {{"/c4-train.00000-of-01024.json", lines},
                                                         {"/c4-train.json.gz", gzip(lines)},
                                                         {"/X.JSON.GZ", gzip(indented)},
                                                         {"/dolma.zst", zstd(lines)},
                                                         {"/x.gz", gzip("\xEF\xBB\xBF" + lines)},
                                                         {"/part-00000", indented},
                                                         {"/x.jsonlines", "\xEF\xBB\xBF" + lines},
                                                         {"/x.txt", lines},
                                                         {"/16.json", utf16(lines)}};
    for (const auto& [name, bytes] : files) {
        write_file(dir + name, bytes);
        CHECK_MESSAGE(tokenized(dir + name).documents == TWO, name);
    }
    CHECK(tokenized("-", {}, lines).documents == TWO);
    CHECK(tokenized(dir + "/x.txt", {"--format", "text"}).documents.size() == 1);    // one document of plain text
    // A first line longer than the part by which the format is recognised.
    const std::string long_one(100000, 'a');
    write_file(dir + "/long.json", "{\"text\":\"" + long_one + "\"}\n{\"text\":\"world\"}\n");
    CHECK(tokenized(dir + "/long.json").documents == Strings{long_one, "world"});
    // Text that only looks a little like JSON stays text.
    for (const char* text : {"{name} is here\n", "[1] A reference", "{\"quoted\"} words"}) {
        write_file(dir + "/x.txt", text);
        CHECK_MESSAGE(tokenized(dir + "/x.txt").documents == Strings{text}, text);
    }
}

TEST_CASE("corpus: JSON of any layout and tables are read; missing fields are refused by name, with what to do") {
    const std::string dir = temporary_directory();
    auto check = [&](const char* name, const std::string& text, int code, const Strings& parts, Strings more = {}) {
        write_file(dir + name, text);
        refused(tokenized(dir + name, more), code, parts);
        if (more.empty() && !contains(parts[0], ":"))
            CHECK(tokenized(dir + name, {"--format", "text"}).documents == Strings{text});
    };
    auto reads = [&](const char* name, const std::string& text, Strings more = {}) {
        write_file(dir + name, text);
        const Tokenized t = tokenized(dir + name, more);
        CHECK_MESSAGE(t.documents == TWO, t.r.err);
    };
    const std::string array = "[\n {\"text\": \"hello\"},\n {\"text\":\n\"world\"}]\n",
                      pretty = "{\n  \"data\": [\n    {\"text\": \"a\"}\n  ]\n}\n";
    for (const char* name : {"/x.json", "/x.txt", "/x.jsonl"}) reads(name, array);
    reads("/x.json.zst", zstd(array));
    reads("/x.bin", gzip("[\"hello\", \"world\"]"));
    reads("/x.json", "{\n \"text\": \"hello\"\n}\n{\n \"text\": \"world\"}");
    CHECK(tokenized("-", {}, array).documents == TWO);
    reads("/x.csv", "text,url\nhello,u\n\"world\",\"a,\nb\"\n");
    reads("/x.tsv.gz", gzip("url\tbody\nu\thello\nu\tworld"), {"--field", "body"});
    reads("/x.txt", "text,url\nhello,u\nworld,u\n", {"--format", "csv"});
    reads("/x.json", "{\"doc\": {\"body\": \"hello\"}}\n{\"doc\": {\"body\": \"world\"}}\n", {"--field", "doc.body"});
    check("/x.json", pretty, 3,
          {"x.json:1: text: expected a string, found nothing; its fields: \"data\"", "--format text"});
    check("/x.json", array, 3, {"expected JSON lines, found a JSON array; --format json reads it"},
          {"--format", "jsonl"});
    check("/x.txt", "{\"a\": 1,\n \"b\": 2}\n", 3, {"x.txt:1: text: expected a string"});
    refused(tokenized("-", {}, pretty), 3, {"-:1: text"});
    check("/x.csv", "body,url\nhello,u\n", 3,
          {"x.csv: expected a column \"text\" in the first line, found: \"body\", \"url\"; --field names another"});
    check("/x.csv", "text,url\nhello,u\nworld\n", 3,
          {"x.csv:3: expected 2 fields, as in the first line, found 1", "--skip-bad-lines"});
    write_file(dir + "/x.csv", "text,url\nhello,u\nbad\nworld,u\n");
    CHECK(tokenized(dir + "/x.csv", {"--skip-bad-lines"}).documents == TWO);
    check("/x.parquet", "text\n", 3, {"x.parquet: expected a Parquet table"});
    check("/x.txt", "some text\n", 3, {"x.txt:1: "}, {"--field", "text"});    // --field makes every file JSON lines
    check("/x.txt", "some text\n", 2, {"--field and --format text exclude each other"},
          {"--field", "text", "--format", "text"});
    check("/x.json", "{\"id\":1,\"body\":\"b\"}\n", 3,
          {"x.json:1: text: expected a string, found nothing; its fields: \"body\", \"id\""});
    check("/x.json", "{\"a\":{\"text\":\"t\"},\"b\":[\"text\",\"t\"]}\n", 3,
          {"x.json:1: text: expected a string, found nothing"});
    check("/x.jsonl", "{\"text\":[\"a\"]}\n", 3, {"x.jsonl:1: text: expected a string, found an array"});
    check("/x.jsonl", "{\"text\":-7}\n", 3, {"x.jsonl:1: text: expected a string, found -7"});
    check("/x.jsonl", "{}\n", 3, {"x.jsonl:1: text: expected a string, found nothing; its fields: none"});
    std::string many;
    for (int i = 10; i < 30; i++) many += (many.empty() ? "{\"k" : ",\"k") + std::to_string(i) + "\":1";
    check("/x.jsonl", many + "}\n", 3, {"x.jsonl:1: ", "\"k17\" and 12 more"});
}

TEST_CASE("corpus: Latin-1 is noticed") {
    const std::string dir = temporary_directory();
    auto note = [&](const std::string& text, const Strings& more = {}) {
        write_file(dir + "/x.txt", text);
        const Tokenized t = tokenized(dir + "/x.txt", more);
        CHECK(t.documents == Strings{text});
        return t.r.err;
    };
    const std::string fill(100, 'a');
    CHECK(contains(note(fill + "caf\xE9 noir"), "x.txt: byte 103 is 0xE9, which is no UTF-8: is the text Latin-1?"));
    CHECK(contains(note("caf\xE9"), "byte 3 is 0xE9"));
    std::string later;    // past the first buffer
    while (later.size() < 3000000) later += "word ";
    CHECK(contains(note(later + "caf\xE9"), "byte 3000003 is 0xE9"));
    const std::string block((1 << 20) - 1, 'a');
    CHECK(contains(note(block + "\xC3\xA9 b \xC3"), "byte 1048580 is 0xC3"));
    CHECK_FALSE(contains(note(block + "\xC3\xA9\xF0\x9F\x98\x80 \xE6\xBC\xA2"), "UTF-8"));
    write_file(dir + "/y.jsonl", "{\"text\":\"caf\xE9\"}\n");
    refused(tokenized(dir + "/y.jsonl"), 3, {"y.jsonl:1: byte ", "is it Latin-1", "iconv"});
}

TEST_CASE("corpus: special tokens in a text are text, or tokens if asked for; tokenize and eval --text say which") {
    const std::string dir = temporary_directory(), chat = "<|im_start|>user\nhi<|im_end|>";
    const Tokenizer t = chat_tokenizer();
    write_file(dir + "/tok.json", t.to_json());
    write_file(dir + "/x.jsonl", nlohmann::json{{"text", chat}}.dump() + "\n{\"text\":\"none\"}\n");
    auto run = [&](const std::string& file, const Strings& more) {
        Strings args = {"tokenize", "--tokenizer", dir + "/tok.json", "--overwrite", "--out", dir + "/o", file};
        args.insert(args.end(), more.begin(), more.end());
        const ProcessResult r = run_flatgpt(args);
        REQUIRE_MESSAGE(r.exit_code == 0, r.err);
        return std::pair(shard(dir + "/o_train_000.bin"), r.err);
    };
    auto [text, note] = run(dir + "/x.jsonl", {});
    CHECK(std::count(text.begin(), text.end(), START_OF_TURN) == 0);
    CHECK_MESSAGE(contains(note, "1 document spells special tokens such as <|im_start|>"), note);
    CHECK(contains(note, "--special token"));
    auto [tokens, silent] = run(dir + "/x.jsonl", {"--special", "token"});
    const std::vector<int> ids = t.encode(chat, true), none = t.encode("none");
    CHECK(std::vector<int>(tokens.begin() + 1, tokens.begin() + 1 + int64_t(ids.size())) == ids);
    CHECK(tokens.size() == ids.size() + none.size() + 3);
    CHECK_FALSE(contains(silent, "special"));
    // Long files are encoded in parts; no part ends within a special token, even one with a space.
    const Tokenizer spaced = Tokenizer::from_merges({}, Pattern::gpt2, {"<|endoftext|>", "<|two words|>"});
    write_file(dir + "/tok.json", spaced.to_json());
    std::string longer;
    while (longer.size() < (3 << 20)) longer += "a <|two words|>";
    write_file(dir + "/long.txt", longer);
    const std::vector<int> all = run(dir + "/long.txt", {"--special", "token"}).first;
    const std::vector<int> whole = spaced.encode(longer, true);
    CHECK(std::vector<int>(all.begin() + 1, all.end() - 1) == whole);

    Talker model(64);
    const std::string m = write_model(model.g, t);
    auto targets = [&](const Strings& more) {
        Strings args = {"eval", m, "--text", dir + "/x.jsonl", "--json"};
        args.insert(args.end(), more.begin(), more.end());
        const ProcessResult r = run_flatgpt(args);
        REQUIRE_MESSAGE(r.exit_code == 0, r.err);
        CHECK(contains(r.err, "1 text spells special tokens") == more.empty());
        return nlohmann::json::parse(r.out.substr(0, r.out.find('\n')))["tokens"].get<int64_t>();
    };
    CHECK(targets({}) == int64_t(t.encode(chat).size()));
    CHECK(targets({"--special", "token"}) == int64_t(ids.size()));
}

TEST_CASE("corpus: special tokens in a document of any format are text unless asked for") {
    const std::string dir = temporary_directory();
    const Strings texts = {"<|endoftext|>", "a<|endoftext|><|im_start|>user\nb<|im_end|>", "plain"};
    std::string jsonl, array = "[", csv = "id,text\n";
    for (const std::string& t : texts) {
        const std::string json = nlohmann::json{{"text", t}}.dump();
        jsonl += json + "\n";
        array += (array == "[" ? "" : ", ") + json;
        csv += "1,\"" + t + "\"\n";
    }
    write_file(dir + "/x.jsonl", jsonl);
    write_file(dir + "/x.json", array + "]");
    write_file(dir + "/x.csv", csv);
    write_file(dir + "/x.jsonl.gz", gzip(jsonl));
    write_file(dir + "/x.parquet", read_file("test/golden/parquet/special.parquet"));
    const Tokenizer t = chat_tokenizer();
    const int end = t.end_of_text();
    for (const char* name : {"/x.jsonl", "/x.json", "/x.csv", "/x.jsonl.gz", "/x.parquet"}) {
        for (const bool tokens : {false, true}) {
            const Tokenized r = tokenized(dir + name, {"--special", tokens ? "token" : "text"});
            REQUIRE_MESSAGE(r.r.exit_code == 0, r.r.err);
            const std::vector<int>& ids = r.ids;
            std::vector<int> wanted;
            for (const std::string& text : texts) {
                wanted.push_back(end);
                for (const int id : t.encode(text, tokens)) wanted.push_back(id);
            }
            wanted.push_back(end);
            CHECK_MESSAGE(ids == wanted, name);
            CHECK(std::count(ids.begin(), ids.end(), end) == (tokens ? 6 : 4));
            CHECK(std::count(ids.begin(), ids.end(), START_OF_TURN) == tokens);
            CHECK(contains(r.r.err, "2 documents spell special tokens") == !tokens);
        }
    }
    for (size_t i = 0; i < texts.size(); i++) {    // texts, each a file
        const std::string path = dir + "/" + std::to_string(i) + ".txt";
        write_file(path, texts[i]);
        const Tokenized r = tokenized(path);
        CHECK(r.documents == Strings{texts[i]});
        CHECK(std::count(r.ids.begin(), r.ids.end(), end) == 2);
    }
    // sample has the same option, whose default is `token`, as transformers encodes prompts. The
    // model's next token tells how many tokens there were: "b" after one, "m" after twelve bytes.
    Actor model(t.encode("abcdefghijklmnopqrst"), 32);
    const std::string m = write_model(model.g, t);
    auto answer = [&](const Strings& more) {
        Strings args = {"sample", m, "--prompt", "<|im_start|>", "--tokens", "1", "--temperature", "0", "--no-echo"};
        args.insert(args.end(), more.begin(), more.end());
        const ProcessResult r = run_flatgpt(args);
        REQUIRE_MESSAGE(r.exit_code == 0, r.err);
        return r.out.substr(0, 1);
    };
    CHECK(answer({}) == "b");
    CHECK(answer({"--special", "token"}) == "b");
    CHECK(answer({"--special", "text"}) == "m");
}

TEST_CASE("corpus: a small file cannot take much memory, in any command that reads text") {
    if (ASAN || TSAN) SKIP("sanitizers reserve more address space than the limit");
    const std::string dir = temporary_directory(), line(1 << 20, 'a');
    std::string bomb;
    for (int i = 0; i < 34; i++) bomb += line;    // 34 MiB without a line end
    write_file(dir + "/bomb.gz", gzip(bomb));
    write_file(
        dir + "/deep.jsonl", "{\"text\":\"t\",\"a\":[" + [] {
            std::string all = "{}";
            while (all.size() < (12 << 20)) all += ",{}";
            return all;
        }() + "]}\n");
    Talker model(64);
    const std::string m = write_model(model.g, chat_tokenizer());
    auto limited = [&](Strings args) {
        args.insert(args.begin(), {"/bin/sh", "-c", "ulimit -v 400000; exec \"$0\" \"$@\"", flatgpt_binary()});
        return run_process(args, {.environment = {"OMP_NUM_THREADS=2", "MALLOC_ARENA_MAX=2"}});
    };
    std::string words;
    for (uint64_t i = 0; words.size() < (12 << 20); i++) {
        const Philox4 r = philox(4, 0, i);
        words += formatted(" %08x%08x%08x%08x", r.v[0], r.v[1], r.v[2], r.v[3]);
    }
    for (char& c : words) c = c >= '0' && c <= '9' ? char(c - '0' + 'g') : c;    // digits would be split off
    write_file(dir + "/words.txt", words);
    write_file(dir + "/some.txt", words.substr(0, 3 << 20));
    write_file(dir + "/long.txt", words.substr(0, 9 << 20));
    const std::string o = dir + "/o", gz = dir + "/bomb.gz";
    const struct {
        Strings args;
        const char* part;
    } rows[] = {{{"tokenize", "--out", o, gz}, "within 32 MiB"},
                {{"tokenize", "--out", o, "--format", "jsonl", gz}, "a line of at most 32 MiB"},
                {{"tokenize", "--out", o, "--longest-line", "4", gz}, "within 4 MiB"},
                {{"train-tokenizer", "--vocab", "300", "--out", o, "--longest-line", "2", gz}, "within 2 MiB"},
                {{"train-tokenizer", "--vocab", "300", "--out", o, "--distinct-words", "4", "--pattern", "gpt2",
                  dir + "/words.txt"},
                 "expected at most 4 MiB of distinct words"},
                {{"inspect", m, "--text-file", dir + "/long.txt"}, "long.txt: expected at most 8388608 bytes"},
                {{"eval", m, "--text", gz}, "bomb.gz:1: expected a line of at most 32 MiB"},
                {{"sample", m, "--prompts", gz}, "bomb.gz:1: expected a line of at most 32 MiB"}};
    for (const auto& row : rows) {
        const ProcessResult r = limited(row.args);
        CHECK_MESSAGE(r.exit_code == 3, r.err);
        CHECK_MESSAGE(contains(r.err, row.part), r.err);
    }
    const ProcessResult r = limited({"tokenize", "--out", o, dir + "/deep.jsonl"});    // no JSON tree of unused fields
    CHECK_MESSAGE(r.exit_code == 0, r.err);
    const ProcessResult learnt = limited(
        {"train-tokenizer", "--vocab", "300", "--out", o + ".json", "--distinct-words", "4", dir + "/some.txt"});
    CHECK_MESSAGE(learnt.exit_code == 0, learnt.err);

    // Texts are short enough for one thread, because memory_growth measures in a fork. The
    // difference of two lengths cancels what the encoder allocates once.
    const Tokenizer t = Tokenizer::gpt2();
    auto grown = [&](int64_t n) {
        int64_t ids = 0;
        const std::string text(size_t(n), 'a');
        const int64_t bytes = memory_growth([&] { return int64_t(t.encode(text).size()); }, &ids);
        CHECK(ids == n / 4);
        return bytes;
    };
    const int64_t few = 50 << 10, many = 250 << 10, each = (grown(many) - grown(few)) / (many - few);
    CHECK_MESSAGE((each > 4 && each < 22), "bytes of memory for a byte of text: ", each);
}

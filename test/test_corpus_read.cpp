// test_corpus_read.cpp - Corpus turns files into segments: formats, held-out tails, state that must
// not pass from file to file, and limits tested on both sides.
#include "data/corpus.h"

#include "base/meter.h"

#include <sys/stat.h>

#include <filesystem>

#include "files/json_write.h"
#include "packed.h"
#include "test.h"

namespace {
using Strings = std::vector<std::string>;
size_t anywhere(std::string_view text, size_t limit) { return std::min(text.size(), limit); }
struct Read {
    Status status;
    std::vector<Segment> all;
    std::string note;
    int64_t bytes = 0, read = 0;
    std::string text(bool validation) const {
        std::string t;
        for (const Segment& s : all) t += s.validation == validation ? s.text : "";
        return t;
    }
    Strings texts() const {
        Strings t;
        for (const Segment& s : all) t.push_back(s.text);
        return t;
    }
};
Read read(CorpusConfig config) {
    if (!config.safe_cut) config.safe_cut = anywhere;
    Read r;
    Result<Corpus> c = Corpus::open(config);
    r.status = c.status;
    for (Segment s; r.status.ok();) {
        const Result<bool> more = c.value.next(s);
        r.status = more.status;
        if (!more.ok() || !more.value) break;
        r.status = c.value.json_text(s);
        if (r.status.ok()) r.all.push_back(s);
    }
    if (c.ok()) r.note = c.value.encoding_note(), r.bytes = c.value.bytes(), r.read = c.value.bytes_read();
    return r;
}
std::string written(const std::string& name, const std::string& text) {
    const std::string path = temporary_directory() + "/" + name;
    write_file(path, text);
    return path;
}
void refused(CorpusConfig config, const char* what) {
    const Status s = read(std::move(config)).status;
    CHECK(s.code == Exit::input);
    CHECK_MESSAGE(contains(s.message, what), s.message);
}
}    // namespace

TEST_CASE("corpus read: what a file's beginning makes of it") {
    const std::string junk = "{\"a\": 1, " + std::string(1000, 'b') + "}";
    refused({{written("x.txt", junk)}}, "not JSON");
    refused({{written("x.json", "{ " + std::string(40000, 'b'))}}, "the file ends inside the value");
    refused({{written("x.tsv", "a\tb\n")}}, "expected a column \"text\" in the first line");
    refused({{written("x.csv.gz", gzip("a,b\n"))}}, "expected a column \"text\" in the first line");
    CHECK_FALSE(Corpus::open({{written("y.txt", "fine"), written("x.json", "a,b\n")}}).ok());    // before any reading
    refused({{std::filesystem::path(written("x", "")).parent_path()}}, "expected a file, found a directory");
    refused({{"/no/such/file"}}, "cannot read: No such file");
    CHECK(read({{written("x.txt", R"({"a\"b": 1, "text": "t"})"
                                  "\n")}})
              .texts() == Strings{"t"});
    for (const char* text : {"{\"he said\n\": yes}\n", " \n \n", "{", "{\"", "{\"a\\", "{\"a\"} b", "[", "{}"})
        CHECK(read({{written("x.txt", text)}}).texts() == Strings{text});
    CHECK(read({{written("x.txt", "")}}).texts() == Strings{});
    refused({{written("x.jsonl", "{\"a\": 1,\n \"b\": 2}\n")}}, "x.jsonl:1: ");
    CorpusConfig lines{{written("x.txt", "{\"a\": 1,\n \"text\": 2}\n")}};
    lines.format = TextFormat::jsonl;
    refused(lines, "x.txt:1: ");
    lines.files = {written("x.json", "{\"a\": 1,\n \"text\": 2}\n")};
    refused(lines, "x.json:1: ");
    lines.files = {written("x.txt", "{\"a\": 1,\n \"text\": 2}\n")};
    lines.format = TextFormat::automatic;
    lines.lines = true;    // prompts, one a line: never JSON
    CHECK(read(lines).texts() == Strings{"{\"a\": 1,", " \"text\": 2}"});
    lines.files = {written("x.txt", "[{\"a\": 1}]\n")};
    CHECK(read(lines).texts() == Strings{"[{\"a\": 1}]"});
    for (const char* name : {"x.jsonl", "x.json"}) {
        lines.files = {written(name, "[{\"text\": \"a\"}]\n")};
        CHECK(read(lines).texts() == Strings{"a"});
    }
    // JSON nests 64 levels at most: 63 arrays within an object are accepted, 64 are not.
    auto nested = [](int n) {
        return "{\"text\": \"t\", \"a\": " + std::string(size_t(n), '[') + std::string(size_t(n), ']') + "}\n";
    };
    CHECK(read({{written("x.jsonl", nested(63))}}).texts() == Strings{"t"});
    refused({{written("x.jsonl", nested(64))}}, "x.jsonl:1: ");
    CHECK(read({{written("x.txt", nested(63))}}).texts() == Strings{"t"});
    refused({{written("x.txt", nested(64))}}, "nested more than 64 deep");
    refused({{written("x.txt", "words\n")}, "name"}, "given --field, every file is JSON lines");
    CHECK(read({{written("x.jsonl", "{\"name\": \"n\", \"text\": \"t\"}\n")}, "name"}).texts() == Strings{"n"});
    CorpusConfig bare{{written("x.jsonl", "{\"body\": \"b\"}\n")}};
    refused(bare, "; --field names one");
    bare.flags = false;
    CHECK_FALSE(contains(read(bare).status.message, "--field"));
}

TEST_CASE("corpus read: JSON that is no JSON lines is read under any name, also over several lines") {
    std::string long_array = "[\"\xC3\xA9\"";
    Strings long_texts = {"\xC3\xA9"};
    while (long_array.size() < 200000) long_array += ",\n\"caf\xC3\xA9\"", long_texts.push_back("caf\xC3\xA9");
    for (const char* name : {"x.txt", "x.json", "x.jsonl", "x"}) {
        auto texts = [&](const std::string& text) { return read({{written(name, text)}}).texts(); };
        CHECK(texts("[\n {\n  \"text\": \"a\"\n }\n]") == Strings{"a"});
        CHECK(texts("[\"a\",\n\"b\"]") == Strings{"a", "b"});
        CHECK(texts(" \n [ ] \n") == Strings{});
        CHECK(texts(long_array + "]") == long_texts);
        CHECK(texts("\x1E{\"text\": \"a\"}\n\x1E{\"text\": \"b\"}\n") == Strings{"a", "b"});    // RFC 7464
        refused({{written(name, "[1, 2]")}}, ":1 (element 1): expected a JSON object or a string");
        refused({{written(name, "[\"caf\xE9\"]")}}, "is it Latin-1");
        refused({{written(name, "[\"a\", 1]\n[\"b\", 2]\n")}}, ":1 (element 2): expected a JSON object or a string");
        refused({{written(name, long_array + ",\n")}}, "expected ] at the array's end, found the file's");
        refused({{written(name, long_array + "] 1")}}, "expected nothing behind the JSON array");
    }
    for (const char* text : {"{\n \"cells\": [\n  {\"x\": 1}]}\n", "{\"a\"\n: 1}", "{\"a\":\n1}"})
        for (const char* name : {"x.txt", "x.ipynb", "x.json"})
            refused({{written(name, text)}}, ":1: text: expected a string, found nothing; its fields: ");
    refused({{written("x.txt", "{\"a\": 1} b\n")}}, "x.txt:1: text: expected a string");
    CHECK(read({{written("x.json", "\"Hello\"\n\"world\"\n")}}).texts() == Strings{"Hello", "world"});
    CHECK(read({{written("x.json", "\"Hello\"\n\"w\\u00f6rld\"\n")}}).texts() == Strings{"Hello", "w\xC3\xB6rld"});
    // Prose in quotes may look so, too.
    refused({{written("x.txt", "\"Hello\"\n\"w\\u00f6rld\"\n")}},
            "found JSON strings; --format json reads their texts");
    for (const char* text : {"\"Hello\"\nworld\n", "# made by\n{\"text\": \"a\"}\n", "12\n", "words\n"})
        refused({{written("x.json", text)}}, "a name of JSON and no object on the first line");
    CorpusConfig lines{{written("x.json", "# made by\n{\"text\": \"a\"}\n")}};
    lines.format = TextFormat::jsonl;
    refused(lines, "x.json:1: byte 1: not JSON");
    lines = {{written("x.json", "\x1E[1]\n")}};
    lines.format = TextFormat::text;
    CHECK(read(lines).texts() == Strings{"\x1E[1]\n"});
    // Texts that only look like JSON.
    for (const char* text : {"{\n  a: 1\n}\n", "[\"a\", he said]", "[1]\n[2] B\n", "[1]\nb\n", "\"a\"\n\"b\"\n", "12\n",
                             "\"\\a\"\n\"b\"\n", "[\n{ }", "[[a]]", "{\n\"a\" b"})
        CHECK(read({{written("x.txt", text)}}).texts() == Strings{text});
}

TEST_CASE("corpus read: an error in JSON lines that the first line made of a file names --format text") {
    for (const char* text : {"{\"a\": 1}\nwords\n", "{\"text\": \"a\"}\nwords\n", "{\"text\": 1}\n"}) {
        for (const char* name : {"x.txt", "x.json"})
            refused({{written(name, text)}}, "taken for JSON by its beginning: --format text takes it as it is");
        const Status named = read({{written("x.jsonl", text)}}).status;
        CHECK(named.code == Exit::input);
        CHECK_FALSE(contains(named.message, "--format"));
        CorpusConfig bare{{written("x.txt", text)}};
        bare.flags = false;
        CHECK_FALSE(contains(read(bare).status.message, "--format"));
    }
}

TEST_CASE("corpus read: JSON lines in Latin-1, or an array, are called that under any name") {
    for (const char* text : {"{\"text\": \"caf\xE9\"}\n{\"text\": \"a\"}\n", "[\"caf\xE9\", \"a\"]"})
        for (const char* name : {"x.json", "x.txt", "x.jsonl"})
            refused({{written(name, text)}}, "is it Latin-1? Convert it: iconv");
}

TEST_CASE("corpus read: the message about a long line is short, and cuts no character") {
    const std::string letters(100000, 'k'), digits(100000, '7');
    std::string accents;
    while (accents.size() < 100000) accents += "\xC3\xA9";
    const std::string text = "{\"text\": \"";
    for (const std::string& line : {"{\"text\": " + digits + "}", text + letters + "\\q\"}", text + accents + "\\q\"}",
                                    text + "a" + accents + "\\qa\"}", text + accents + "\\qa",
                                    "{\"" + letters + "\": 1, \"" + letters + "\": 2}"}) {
        const Status s = read({{written("x.jsonl", line + "\n")}}).status;
        CHECK(s.code == Exit::input);
        CHECK_MESSAGE((s.message.size() > 300 && s.message.size() < 700), s.message);
        CHECK_FALSE(contains(json_string(s.message), "\xEF\xBF\xBD"));
    }
}

TEST_CASE("corpus read: each file begins anew") {
    std::string large;
    while (large.size() < 3 << 20) large += "word ";
    const std::string a = written("a.txt", large + "caf\xE9"),
                      b = written("b.txt",
                                  "\xE9"
                                  "aaaaaaaaaaaaaaaaaaaaa"),
                      c = written("c.txt", "abc\xC3\xA9");
    Read r = read({{a, b, c}});
    CHECK(contains(r.note, "a.txt: byte " + std::to_string(large.size() + 3) + " is 0xE9"));
    CHECK(contains(r.note, " (and 1 other file): "));
    CHECK(r.bytes == r.read);
    CHECK(r.bytes == int64_t(large.size()) + 4 + 22 + 5);
    CHECK(r.text(false) == large +
                               "caf\xE9\xE9"
                               "aaaaaaaaaaaaaaaaaaaaa"
                               "abc\xC3\xA9");
    CHECK(std::count_if(r.all.begin(), r.all.end(), [](auto& s) { return s.begins_document; }) == 3);
    r = read({{written("d.txt", large), b}});
    CHECK_MESSAGE(contains(r.note, "b.txt: byte 0 is 0xE9, which is no UTF-8: is the text Latin-1?"), r.note);
    CHECK(read({{c}}).note == "");
    r = read({{written("x.jsonl", "{\"text\": \"a\"}\n\n{\"text\": \"b\"}\n"),
               written("y.jsonl", "{\"text\": \"c\"}\r\n")}});
    REQUIRE(r.all.size() == 3);
    CHECK(r.all[1].where.ends_with("x.jsonl:3"));
    CHECK(r.all[1].line == 3);
    CHECK(r.all[2].where.ends_with("y.jsonl:1"));
    r = read({{written("x.jsonl", "{\"text\": \"caf\xE9\"}\n")}});
    CHECK(contains(r.status.message, "is it Latin-1"));
    CHECK(r.note == "");
    CorpusConfig lines{{written("x.txt", "a\n\n \t\r\nb \r\nc")}};
    lines.lines = true;
    r = read(lines);
    CHECK(r.texts() == Strings{"a", "b ", "c"});
    CHECK(r.all[1].line == 4);
    CHECK(r.all[1].where == "");
    const std::string longest(1 << 20, 'a');
    lines.longest = 1;
    lines.files = {written("x.txt", longest + "\nb\n")};
    CHECK(read(lines).texts() == Strings{longest, "b"});
    lines.files = {written("x.txt", "b\n" + longest + "a\n")};
    refused(lines, "x.txt:2: expected a line of at most 1 MiB, found more (--longest-line)");
}

TEST_CASE("corpus read: segments are at most 1 MiB, also behind cuts that are far from it") {
    std::string text;
    for (int i = 0; text.size() < 1900 << 10; i++) text += std::to_string(i) + " ";
    CorpusConfig halves{{written("a.txt", text)}};
    halves.safe_cut = [](std::string_view rest, size_t limit) { return std::min(rest.size(), limit) / 2 + 1; };
    const Read r = read(halves);
    REQUIRE_MESSAGE(r.status.ok(), r.status.message);
    CHECK(r.text(false) == text);
    for (const Segment& s : r.all) CHECK(s.text.size() <= 1 << 20);
}

TEST_CASE("corpus read: what is held out of a text, and of many files") {
    auto held = [](CorpusConfig config, double fraction) {
        config.val_fraction = fraction;
        return read(std::move(config));
    };
    std::string large;
    for (int i = 0; large.size() < 3 << 20; i++) large += std::to_string(i) + " ";
    const std::string plain = written("a.txt", large), packed = written("b.txt.gz", gzip(large));
    for (const std::string& file : {plain, packed}) {
        const Read r = held({{file}}, 0.5);
        REQUIRE_MESSAGE(r.status.ok(), r.status.message);
        const size_t tail = size_t(double(large.size()) * 0.5);
        CHECK((r.text(false) == large.substr(0, large.size() - tail)));
        CHECK((r.text(true) == large.substr(large.size() - tail)));
        for (size_t i = 0; i < r.all.size(); i++)    // the tail is a document of its own
            CHECK(r.all[i].begins_document == (i == 0 || r.all[i].validation != r.all[i - 1].validation));
    }
    CHECK(held({{plain}}, 1e-9).text(true) == "");
    CorpusConfig whole{{written("c.txt", "0123456789")}};
    CHECK(held(whole, 0.2).text(true) == "89");
    whole.safe_cut = [](std::string_view text, size_t limit) { return limit < text.size() ? 0 : text.size(); };
    CHECK(held(whole, 0.2).texts() == Strings{"0123456789"});    // no safe cut: everything stays in training
    CHECK(held(whole, 0.2).text(true) == "");

    whole.safe_cut = [](std::string_view text, size_t limit) { return std::min(text.size(), limit) - 1; };
    CHECK(held(whole, 1e-9).texts() == Strings{"0123456789"});    // no tail: the text stays whole

    Strings files;
    for (int i = 0; i < 101; i++) files.push_back(written(std::to_string(i) + ".txt", "0123456789"));
    Read r = held({files}, 0.1);
    CHECK(r.all.size() == 101);
    CHECK(r.text(true).size() == 100);
    r = held({{files.begin(), files.end() - 1}}, 0.1);    // up to 100 files: a tail of each
    CHECK(r.all.size() == 200);
    CHECK(r.text(true) == std::string(100, '9'));

    const std::string pipe = temporary_directory() + "/pipe";
    for (const std::string& name : {pipe + ".txt", pipe + ".jsonl"}) {
        REQUIRE(mkfifo(name.c_str(), 0600) == 0);
        const Result<Corpus> open = Corpus::open({{plain, name}});
        REQUIRE(open.ok());
        CHECK(open.value.bytes() == 0);    // unknown size of a pipe
        const Status s = Corpus::open({{plain, name}, "", 0.1}).status;
        CHECK(s.code == (name.ends_with("l") ? Exit::ok : Exit::usage));
    }
    files[0] = pipe + ".txt";
    CHECK(Corpus::open({files, "", 0.1}).ok());
}

TEST_CASE("corpus read: the progress of compressed files counts their text, that of small ones kB") {
    CHECK(meter_line("tokenize", 25000000, 100000000, 24000000, 2) ==
          "tokenize: 25.0 MB of 100.0 MB, 12.5 MB/s, 6.0 s left");
    CHECK(meter_line("tokenize", 40000, 160000, 6000000, 0.5) ==
          "tokenize: 40.0 kB of 160.0 kB, 6.0 MB of text, 12.0 MB/s, 1.5 s left");
    CHECK(meter_line("tokenize", 160000, 160000, 999000, 2) ==
          "tokenize: 160.0 kB of 160.0 kB, 999.0 kB of text, 499.5 kB/s");
    CHECK(meter_line("tokenize", 2000000, 0, 2000000, 2) == "tokenize: 2.0 MB, 1.0 MB/s");
    CHECK(meter_line("tokenize", 0, 100, 0, 2) == "tokenize: 0.0 kB of 0.1 kB, 0.0 kB/s");
}

// test_documents.cpp - JSON arrays, JSON values, CSV: records of every shape, errors with lines.
#include "base/philox.h"
#include "data/corpus.h"
#include "files/json_check.h"
#include "packed.h"
#include "test.h"

namespace {
using Strings = std::vector<std::string>;
struct Read {
    Status status;
    Strings texts, bad;    // bad: messages of records without a text
    std::vector<int64_t> lines;
    std::string note;
};
Read read(const std::string& name, const std::string& bytes, CorpusConfig config = {}) {
    const std::string path = temporary_directory() + "/" + name;
    write_file(path, bytes);
    config.files = {path};
    config.safe_cut = [](std::string_view text, size_t limit) { return std::min(text.size(), limit); };
    Read r;
    Result<Corpus> c = Corpus::open(config);
    r.status = c.status;
    for (Segment s; r.status.ok();) {
        const Result<bool> more = c.value.next(s);
        r.status = more.status;
        if (!more.ok() || !more.value) break;
        const Status text = c.value.json_text(s);
        if (text.ok()) r.texts.push_back(s.text), r.lines.push_back(s.line);
        else r.bad.push_back(text.message);
    }
    if (c.ok()) r.note = c.value.encoding_note();
    return r;
}
void refused(const Read& r, const std::string& part) {
    CHECK(r.status.code == Exit::input);
    CHECK_MESSAGE(contains(r.status.message, part), r.status.message);
}
std::string csv_field(const std::string& text) {    // as a CSV field
    std::string all = "\"";
    for (const char c : text) all += c == '"' ? "\"\"" : std::string(1, c);
    return all + "\"";
}
}    // namespace

TEST_CASE("documents: a JSON array is read element by element, whatever its white space") {
    Read r =
        read("x.json",
             "[{\"text\":\"a]}\\\"[{\"},\n\n {\"text\" : \"\\\\\"} , \"b\\u00e9\"\t,{\"n\":[[1,{\"text\":\"no\"}]],"
             "\"text\":\"c\"}\r\n]\r\n");
    CHECK_MESSAGE(r.status.ok(), r.status.message);
    CHECK(r.texts == Strings{"a]}\"[{", "\\", "b\xC3\xA9", "c"});
    CHECK(r.lines == std::vector<int64_t>{1, 2, 3, 4});
    // Elements of every length around the reader's block of 1 MiB.
    std::string all = "[";
    Strings texts;
    for (int64_t i = 0; i < 400; i++) {
        texts.push_back(std::string(size_t(philox(7, 0, uint64_t(i)).v[0] % 20000), i % 3 ? 'x' : '\\'));
        std::string escaped;
        for (const char c : texts.back()) escaped += c == '\\' ? "\\\\" : std::string(1, c);
        all += (i ? " ,\n{\"text\":\"" : "{\"text\":\"") + escaped + "\"}";
    }
    r = read("x.json.gz", gzip(all + "]"));
    CHECK(r.texts == texts);
    // A bad element does not hide the next one.
    r = read("x.json", "[\"a\", {\"text\": nul}, {}, 5, [\"q\"], {\"text\": [1]}, null, \"b\"]");
    CHECK(r.texts == Strings{"a", "b"});
    REQUIRE(r.bad.size() == 6);
    CHECK(contains(r.bad[0], "x.json:1 (element 2): byte 13: not JSON"));
    CHECK(contains(r.bad[1], "(element 3): text: expected a string, found nothing; its fields: none"));
    CHECK(contains(r.bad[2], "(element 4): expected a JSON object or a string"));
    CHECK(contains(r.bad[4], "(element 6): text: expected a string, found an array"));
    refused(read("x.json", "[\"a\" \"b\"]"), "x.json:1 (element 1): expected a comma or ] behind it, on line 1");
    refused(read("x.json", "[\"a\",\n"), "x.json:2: expected ] at the array's end, found the file's");
    refused(read("x.json", "[\"a\",\n{\"text\": \"b"),
            "x.json:2 (element 2): not JSON: the file ends inside the value");
    refused(read("x.json", "[\"a\",\n\"b\\"), "x.json:2 (element 2): not JSON: the file ends inside the value");
    refused(read("x.json", "[\"a\"]\n\n{}"), "x.json:3: expected nothing behind the JSON array, found more");
    CHECK(contains(read("x.json", "[\"a\",]").bad.at(0), "(element 2): byte 1: not JSON"));
    CorpusConfig one_mib;
    one_mib.longest = 1;
    const std::string longest((1 << 20) - 2, 'a');
    CHECK(read("x.json", "[\"" + longest + "\"]", one_mib).texts == Strings{longest});
    refused(read("x.json", "[\"b\",\n\"" + longest + longest + "\"]", one_mib),
            "x.json:2 (element 2): expected a value of at most 1 MiB, found more (--longest-line)");
    const std::string deep = std::string(70, '[') + std::string(70, ']');
    CHECK(contains(read("x.json", "[\"a\", {\"text\": " + deep + "}]").bad.at(0), "nested more than 64 deep"));
}

TEST_CASE("documents: JSON values may follow each other on any lines") {
    const Read r = read("x.json", "{\n \"text\": \"a\"\n}{\"text\":\"b\"}\n\n\"c\"\n{\n\"text\"\n:\n\"d\"}");
    CHECK_MESSAGE(r.status.ok(), r.status.message);
    CHECK(r.texts == Strings{"a", "b", "c", "d"});
    CHECK(r.lines == std::vector<int64_t>{1, 3, 5, 6});
    CorpusConfig json;
    json.format = TextFormat::json;
    CHECK(read("x", "\"a\" \"b\"", json).texts == Strings{"a", "b"});
    CHECK(contains(read("x", "words here", json).bad.at(0), "x:1: byte "));
    CHECK(read("x", "", json).texts == Strings{});
    CHECK(read("x.jsonl", "{\"text\":\"a\"}\nbad\n{\"text\":\"b\"}\n", json).texts == Strings{"a", "b"});    // by line
}

TEST_CASE("documents: a field may lie within another one") {
    auto field = [](const std::string& json, const std::string& name) {
        const Result<std::string> text = json_text_field(json, "x", name, 64);
        return text.ok() ? text.value : "(" + text.status.message + ")";
    };
    CHECK(field(R"({"a": {"b": "t"}})", "a.b") == "t");
    CHECK(field(R"({"a.b": "t"})", "a.b") == "t");
    CHECK(field(R"({"x": {"a": {"b": "no"}}, "a": {"c": {"b": "no"}, "b": "t", "d": {"b": "no"}}})", "a.b") == "t");
    CHECK(field(R"({"a": {"b": {"c": {"d": "t"}}, "d": "no"}, "d": "no"})", "a.b.c.d") == "t");
    CHECK(field(R"({"a": {"b.c": "t"}})", "a.b.c") == "t");
    for (const char* json :
         {R"({"a": [{"b": "no"}]})", R"({"a": "no"})", R"({"ab": {"b": "no"}})", R"({"b": "no"})",
          R"({"a": 1, "c": {"b": "no"}})", R"({"a": [], "c": {"b": "no"}})", R"({"a": {}, "c": {"b": "no"}})",
          R"({"a": {"b": ["no"]}})", R"({"a": {"x": {"b": "no"}}})"})
        CHECK_MESSAGE(contains(field(json, "a.b"), "a.b: expected a string, found"), json);
    CHECK(field(R"({"a.b": "first", "a": {"b": 5}})", "a.b") == "first");
    CHECK(field(R"({"a": {"b": "first"}, "a.b": "second"})", "a.b") == "first");
}

TEST_CASE("documents: CSV with quotes, line ends in fields, CRLF and a byte order mark") {
    const std::string head =
        "\xEF\xBB\xBF"
        "id,\"text\",note\r\n";
    Read r =
        read("x.csv", head +
                          "1,plain,\r\n2,\"two\nlines, a \"\"quote\"\"\r\nend\",n\r\n\r\n3,,n\r\n4,it's 5\" long,n\r\n"
                          "5,\"\",\"\"\r\n6,\"\"\"\",n");
    CHECK_MESSAGE(r.status.ok(), r.status.message);
    CHECK(r.texts == Strings{"plain", "two\nlines, a \"quote\"\r\nend", "", "it's 5\" long", "", "\""});
    CHECK(r.lines == std::vector<int64_t>{2, 3, 7, 8, 9, 10});
    CHECK(read("x.tsv", "a\ttext\n1\tx,y\n2\t\"q\tr\"\n").texts == Strings{"x,y", "q\tr"});
    CHECK(read("x.csv", "text\nonly\n\ncolumn\n").texts == Strings{"only", "column"});
    CHECK(read("x.csv", "\n\ntext\na\n").texts == Strings{"a"});
    CHECK(read("x.csv", "").texts == Strings{});
    CHECK(read("x.csv", "text,b\n").texts == Strings{});
    // Random fields of all kinds of bytes, across the reader's blocks, quoted where they must be.
    std::string all = "n,text\n";
    Strings texts;
    for (uint64_t i = 0; all.size() < (5 << 20); i++) {
        const Philox4 p = philox(9, 0, i);
        std::string text;
        for (uint32_t k = 0; k < p.v[0] % 3000; k++) text += "ab\",\n\r x"[philox(9, i, k).v[0] % 8];
        texts.push_back(text);
        const bool plain = text.find_first_of("\",\n\r") == text.npos && p.v[1] % 2;
        all += (p.v[2] % 2 ? "1," : "\"1,\n\",") + (plain ? text : csv_field(text)) + (p.v[3] % 2 ? "\n" : "\r\n");
    }
    r = read("x.csv.zst", zstd(all));
    CHECK_MESSAGE(r.status.ok(), r.status.message);
    CHECK((r.texts == texts));
    // Errors.
    refused(read("x.csv", "text,b\na,b\n\"open,\nb\n"),
            "x.csv:3: expected a record of at most 32 MiB, found one with a quote");
    r = read("x.csv", "text,b\nx,1\n\"a\" b,2\ny,1,2\nz\nlast,3\n");
    CHECK(r.texts == Strings{"x", "last"});
    REQUIRE(r.bad.size() == 3);
    CHECK(contains(r.bad[0], "x.csv:3: expected a separator or the line's end behind a closing quote"));
    CHECK(contains(r.bad[1], "x.csv:4: expected 2 fields, as in the first line, found 3"));
    CHECK(contains(r.bad[2], "x.csv:5: expected 2 fields, as in the first line, found 1"));
    refused(read("x.csv", "a,b\n"),
            "expected a column \"text\" in the first line, found: \"a\", \"b\"; --field names another");
    refused(read("x.csv", "text,text\n"), "expected one column \"text\"");
    CorpusConfig one_mib;
    one_mib.longest = 1;
    refused(read("x.csv", "text\na\n" + std::string(3 << 20, 'x'), one_mib),
            "x.csv:3: expected a record of at most 1 MiB");
    CHECK(contains(read("x.csv", "text\ncaf\xE9\n").note, "x.csv: byte 8 is 0xE9, which is no UTF-8"));
    CorpusConfig held;
    held.val_fraction = 0.25;
    CHECK(contains(read("x.csv", "text,b\n\"a\"\r,1\nx,2\n").bad.at(0), "behind a closing quote"));
    CHECK(contains(read("x.csv", "text\n\"a\"\r\"b\"\n").bad.at(0), "behind a closing quote"));
    CHECK(read("x.csv", "text\na\nb\nc\nd\n", held).texts.size() == 4);
}

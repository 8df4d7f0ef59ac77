// test_parquet.cpp - texts of Parquet files by pyarrow, polars, fastparquet and DuckDB
// (dev/golden_parquet.py), damaged files, and limits.
#include "files/parquet/parquet.h"

#include <filesystem>
#include <fstream>

#include "base/philox.h"
#include "data/corpus.h"
#include "files/json.h"
#include "files/parquet/thrift.h"
#include "packed.h"
#include "test.h"

namespace {
namespace fs = std::filesystem;
using Strings = std::vector<std::string>;
const std::string GOLDEN = "test/golden/parquet/";
constexpr int64_t MIB = 1 << 20;

struct Read {
    Status status;
    Strings texts;
    int64_t rows = 0;
};
// at_most: bytes of texts after which reading ends, because a damaged file may hold very much.
Read read(const std::string& path, const std::string& field, int64_t longest = MIB, int64_t page = 8 * MIB,
          size_t at_most = SIZE_MAX) {
    Read r;
    Result<ParquetTexts> t = ParquetTexts::open(path, field, longest, page);
    r.status = t.status;
    size_t bytes = 0, count = 0;
    for (std::string_view text; r.status.ok() && bytes < at_most && count < at_most;) {
        const Result<bool> more = t.value.next(&text);
        r.status = more.status;
        if (!more.ok() || !more.value) break;
        bytes += text.size();
        count++;
        r.texts.emplace_back(text);
    }
    if (t.ok()) r.rows = t.value.row();
    return r;
}
nlohmann::json golden() { return json_parse(read_file(GOLDEN + "texts.json"), "texts.json", 8).value; }
Strings expected(const nlohmann::json& all, const nlohmann::json& file) {
    Strings texts;
    const size_t most = file.contains("nulls") ? 4 : SIZE_MAX;    // between row groups of nulls alone
    for (size_t i = 0; i < std::min(most, all["texts"].size()); i++)
        if (const auto& text = all["texts"][i]; text.is_string() || file["required"].get<bool>())
            texts.push_back(text.is_string() ? text.get<std::string>() : "");
    return texts;
}
std::string written(const std::string& name, const std::string& bytes) {
    const std::string path = temporary_directory() + "/" + name;
    write_file(path, bytes);
    return path;
}
// A Thrift varint, zigzag where numbers have a sign.
std::string varint(uint64_t n) {
    std::string s;
    for (; n >= 128; n >>= 7) s += char(n | 128);
    return s + char(n);
}
std::string number(int delta, int64_t n) { return char(delta << 4 | 5) + varint(uint64_t(n) << 1); }
std::string text_field(int delta, const std::string& s) { return char(delta << 4 | 8) + varint(s.size()) + s; }
// A file with one required column "text" and one chunk, whose pages are these bytes.
std::string one_chunk(const std::string& pages, int64_t rows, int64_t codec, int64_t offset = 4, int repetition = 0) {
    const std::string root = text_field(4, "root") + number(1, 1) + '\0',
                      leaf = number(1, 6) + number(2, repetition) + text_field(1, "text") + '\0';
    const std::string meta = number(4, codec) + number(1, rows) + number(2, int64_t(pages.size())) + number(2, offset) +
                             '\0',
                      group = std::string("\x19\x1C") + number(2, 4) + "\x1C" + meta + '\0' + number(2, rows) + '\0';
    const std::string footer = number(1, 1) + "\x19\x2C" + root + leaf + char(0x16) + varint(uint64_t(rows) << 1) +
                               "\x19\x1C" + group + '\0';
    std::string size(4, '\0');
    const auto bytes = uint32_t(footer.size());
    memcpy(size.data(), &bytes, 4);
    return "PAR1" + pages + footer + size + "PAR1";
}
std::string data_page(const std::string& body, int64_t unpacked, int64_t values, int encoding) {
    return number(1, 0) + number(1, unpacked) + number(1, int64_t(body.size())) + char(0x2C) + number(1, values) +
           number(1, encoding) + number(1, 3) + number(1, 3) + '\0' + '\0' + body;
}
std::string plain(const Strings& texts) {
    std::string all;
    for (const std::string& t : texts) {
        const auto n = uint32_t(t.size());
        all.append(reinterpret_cast<const char*>(&n), 4).append(t);
    }
    return all;
}
void refused(const std::string& bytes, const std::string& part) {
    const Read r = read(written("x.parquet", bytes), "text");
    CHECK(r.status.code == Exit::input);
    CHECK_MESSAGE(contains(r.status.message, part), r.status.message);
    CHECK(contains(r.status.message, "x.parquet"));
}
}    // namespace

TEST_CASE("parquet: texts of four writers, in all encodings and codecs") {
    const nlohmann::json all = golden();
    int files = 0;
    for (const auto& [name, file] : all["files"].items()) {
        const Read r = read(GOLDEN + name, file["field"]);
        CHECK_MESSAGE(r.status.ok(), r.status.message);
        CHECK_MESSAGE(r.texts == expected(all, file), name);
        CHECK(r.rows == (file.contains("nulls") ? 14 : int64_t(all["texts"].size())));
        // As documents of a corpus, whatever the file's name; numbers count nulls.
        CorpusConfig config{{written("x.bin", read_file(GOLDEN + name))}, file["field"]};
        Result<Corpus> corpus = Corpus::open(config);
        REQUIRE_MESSAGE(corpus.ok(), corpus.status.message);
        Strings texts;
        Segment s;
        while (corpus.value.next(s).value) {
            CHECK(s.begins_document);
            CHECK(corpus.value.json_text(s).ok());
            texts.push_back(s.text);
        }
        CHECK(texts == r.texts);
        CHECK(s.line == 0);
        CHECK(corpus.value.bytes_read() == corpus.value.bytes());
        files++;
    }
    CHECK(files == 37);
    for (const auto& [name, part] : all["refused"].items()) {
        CorpusConfig config{{GOLDEN + name}};
        Result<Corpus> corpus = Corpus::open(config);
        Segment s;
        const Status status = corpus.ok() ? corpus.value.next(s).status : corpus.status;
        CHECK(status.code == Exit::input);
        CHECK_MESSAGE(contains(status.message, part.get<std::string>()), status.message);
    }
}

TEST_CASE("parquet: damaged files end with a message, never with a crash or much memory") {
    const nlohmann::json all = golden();
    uint64_t number = 0;
    int64_t errors = 0, tried = 0;
    for (const auto& [name, file] : all["files"].items()) {
        const std::string good = read_file(GOLDEN + name);
        for (int round = 0; round < 120; round++) {
            std::string bad = good;
            const Philox4 r = philox(42, 0, number++);
            const size_t at = r.v[0] % bad.size(),
                         from_end = bad.size() - 9 - r.v[0] % std::min<size_t>(bad.size() - 9, 600);
            switch (r.v[1] % 6) {
                case 0: bad[at] = char(r.v[2]); break;
                case 1: bad[from_end] = char(r.v[2]); break;    // the footer
                case 2: bad[from_end] = char(bad[from_end] ^ (1 << r.v[2] % 8)); break;
                case 3: bad.resize(at); break;
                case 4: bad.erase(at, 1 + r.v[2] % 8); break;
                default: bad.replace(at, 4, std::string(4, char(0xFF)));
            }
            const Read read_bad = read(written("m.parquet", bad), file["field"], MIB, 8 * MIB, 1 << 22);
            tried++;
            errors += !read_bad.status.ok();
            if (read_bad.status.ok()) continue;
            CHECK(read_bad.status.code == Exit::input);
            CHECK(contains(read_bad.status.message, "m.parquet: "));
        }
    }
    CHECK(tried > 4000);
    CHECK(errors > tried / 2);
    const Read sum = read(written("m.parquet",
                                  [&] {
                                      std::string bad = read_file(GOLDEN + "pyarrow_checksum.parquet");
                                      const size_t text = bad.find("alpha");
                                      bad[text] = 'b';
                                      return bad;
                                  }()),
                          "text");
    CHECK_MESSAGE(contains(sum.status.message, "its checksum differs"), sum.status.message);
}

TEST_CASE("parquet: what a hostile file claims is compared with what it has") {
    const Strings texts = {"one", "", "three"};
    const std::string body = plain(texts), page = data_page(body, int64_t(body.size()), 3, 0);
    CHECK(read(written("x.parquet", one_chunk(page, 3, 0)), "text").texts == texts);
    refused("PAR1", "expected a Parquet table, found a file of 4 bytes");
    refused("PAR1xxxxxxxxxxxx", "expected PAR1 at the end of a Parquet table, at offset 12: was it cut short?");
    refused("PAR1xxxx\xFF\xFF\xFF\x7FPAR1", "expected a Parquet footer of at most 4 bytes, found 2147483647");
    refused("PARExxxx\x01\x01\x01\x01PARE", "encrypted");
    refused(one_chunk(page, 3, 0, 1 << 20), "expected pages within the file's");
    refused(one_chunk(page, 3, 0, -1), "expected pages within the file's");
    refused(one_chunk(page, 4, 0), "row group 0, column text, page at offset");
    refused(one_chunk(page, 4, 0), "the pages end, but 1 values are missing");
    refused(one_chunk(page, 2, 0), "expected at most 2 values, found 3");
    refused(one_chunk(page, 3, 9), "packed by an unknown one");
    refused(one_chunk(page, 3, 5), "packed by LZ4 (Hadoop's)");
    refused(one_chunk(page, 3, 1), "(codec: snappy), found");
    refused(one_chunk(data_page(body, 100 << 20, 3, 0), 3, 6), "expected at most 8 MiB in a page");
    refused(one_chunk(data_page(body, 7 << 20, 3, 0), 3, 7), "(codec: lz4_raw), found");
    refused(one_chunk(data_page(body, int64_t(body.size()), 3, 9), 3, 0), "found encoding 9");
    refused(one_chunk(data_page(body, int64_t(body.size()), 3, 8), 3, 0), "the page is damaged");
    refused(one_chunk(data_page(body, int64_t(body.size()) - 1, 3, 0), 3, 0), "(codec: none), found");
    // Levels whose lengths overflow, of a page of version 2.
    for (const int64_t bytes : {int64_t(1) << 62, int64_t(1) << 31, int64_t(1) << 30, int64_t(-1)}) {
        const std::string v2 = number(1, 3) + number(1, int64_t(body.size())) + number(1, int64_t(body.size())) +
                               char(0x5C) + number(1, 3) + number(1, 0) + number(1, 3) + number(1, 0) +
                               number(1, bytes) + number(1, bytes) + '\0' + '\0' + body;
        const Read r = read(written("x.parquet", one_chunk(v2, 3, 0)), "text");
        CHECK(r.status.code == Exit::input);
    }
    // A codec beyond 32 bits is not taken for one within.
    refused(one_chunk(page, 3, (int64_t(1) << 32) + 1), "footer is damaged");
    // Few bytes that claim millions of lengths in a delta encoding.
    const std::string many = varint(1 << 20) + varint(1) + varint(1 << 24) + varint(0) +
                             std::string(32, '\0');    // 16 blocks of 2^20
    refused(one_chunk(data_page(many, int64_t(many.size()), 1 << 24, 6), 1 << 24, 0), "its lengths");
    // A run of two billion nulls takes no time, and a text behind them is found.
    const int64_t nulls = 2'000'000'000;
    const std::string levels = varint(uint64_t(nulls) << 1) + '\0' + varint(2) + '\1', length("\x08\0\0\0", 4);
    REQUIRE(levels.size() == 8);
    const std::string sparse = length + levels + plain({"last"});
    const Read found = read(
        written("x.parquet", one_chunk(data_page(sparse, int64_t(sparse.size()), nulls + 1, 0), nulls + 1, 0, 4, 1)),
        "text");
    CHECK_MESSAGE(found.texts == Strings{"last"}, found.status.message);
    CHECK(found.rows == nulls + 1);
    // A text of the longest length is read, a longer one is not; likewise of a page.
    const std::string longest(size_t(MIB), 'a'), longer = longest + "b";
    for (const std::string& text : {longest, longer}) {
        const std::string large = plain({text});
        const Read r =
            read(written("x.parquet", one_chunk(data_page(large, int64_t(large.size()), 1, 0), 1, 0)), "text");
        CHECK(r.status.ok() == (text.size() == size_t(MIB)));
        if (!r.status.ok())
            CHECK(contains(r.status.message, "expected a text of at most 1 MiB, found a longer one in row 1"));
    }
    // Nested lists in a skipped field end at a depth.
    refused("PAR1" + std::string(5000, '\x19') + std::string("\x88\x13\0\0PAR1", 8), "the Parquet footer is damaged");
}

TEST_CASE("parquet: Snappy and LZ4 copy backwards, and never beyond either end") {
    std::string out;
    auto unpacked = [&](ParquetCodec codec, const std::string& in, size_t size) {
        return parquet_decompress(codec, in, size, out) ? out : "damaged";
    };
    const ParquetCodec snappy = ParquetCodec::snappy, lz4 = ParquetCodec::lz4_raw;
    using namespace std::string_literals;
    CHECK(unpacked(snappy, "\x09\x08"s + "abc" + "\x09\x03"s, 9) == "abcabcabc");        // one-byte offset: overlaps
    CHECK(unpacked(snappy, "\x07\x08"s + "abc" + "\x0E\x03\0"s, 7) == "abcabca");        // two-byte offset
    CHECK(unpacked(snappy, "\x07\x08"s + "abc" + "\x0F\x03\0\0\0"s, 7) == "abcabca");    // four-byte offset
    CHECK(unpacked(snappy, "\x46\xF0\x45"s + std::string(70, 'x'), 70) == std::string(70, 'x'));    // long literal
    CHECK(unpacked(snappy, "\x07\x08"s + "abc" + "\x0E\x04\0"s, 7) == "damaged");    // before the beginning
    CHECK(unpacked(snappy, "\x07\x08"s + "abc" + "\x0E\0\0"s, 7) == "damaged");      // distance 0
    CHECK(unpacked(snappy, "\x06\x08"s + "abc" + "\x0E\x03\0"s, 6) == "damaged");    // beyond the size
    CHECK(unpacked(snappy, "\x03\x0C"s + "abc", 3) == "damaged");                    // literal beyond the input
    CHECK(unpacked(snappy, "\x03\x08"s + "abc", 4) == "damaged");                    // another size
    CHECK(unpacked(snappy, "\xFF\xFF\xFF\xFF\xFF\xFF"s, 4) == "damaged");
    CHECK(unpacked(snappy, "\0"s, 0) == "");
    CHECK(unpacked(lz4, "\x32"s + "abc" + "\x03\0"s + "\x10z"s, 10) == "abcabcabcz");
    CHECK(unpacked(lz4, "\xF0\x01"s + "0123456789abcdef", 16) == "0123456789abcdef");
    CHECK(unpacked(lz4, "\x3F"s + "abc" + "\x03\0\x01"s + "\0"s, 23) == "abcabcabcabcabcabcabcab");
    CHECK(unpacked(lz4, "\x32"s + "abc" + "\x04\0"s + "\x10z"s, 10) == "damaged");
    CHECK(unpacked(lz4, "\x32"s + "abc" + "\0\0"s + "\x10z"s, 10) == "damaged");
    CHECK(unpacked(lz4, "\x32"s + "abc" + "\x03"s, 9) == "damaged");
    CHECK(unpacked(lz4, "\xF0\xFF"s, 300) == "damaged");
    const std::string large(3 << 20, 'q');
    CHECK(unpacked(ParquetCodec::gzip, gzip(large), large.size()) == large);
    CHECK(unpacked(ParquetCodec::zstd, zstd(large), large.size()) == large);
    CHECK(unpacked(ParquetCodec::zstd, zstd(large), large.size() - 1) != large);
    CHECK(unpacked(ParquetCodec::zstd, zstd(large), large.size() + 1) == "damaged");
    CHECK(unpacked(ParquetCodec::gzip, gzip(large).substr(0, 500), large.size()) == "damaged");
}

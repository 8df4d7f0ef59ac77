// test_text_file.cpp - compressed and UTF-16 files give the plain text; others are refused by name.
#include "files/text_file.h"
#include "base/philox.h"

#include "limit.h"
#include "memory_growth.h"
#include "packed.h"
#include "test.h"

namespace {
struct Reading {
    Status status;
    std::string text;
};
// Reads pieces of `piece` bytes until the file ends or `limit` bytes are read.
Reading read_text(const std::string& path, size_t piece, size_t limit = size_t(1) << 30) {
    Result<TextFile> f = TextFile::open(path);
    if (!f.ok()) return {f.status, ""};
    Reading r;
    std::string buffer(piece, '\0');
    while (r.text.size() < limit) {
        Result<size_t> n = f.value.read(buffer.data(), piece);
        r.status = n.status;
        if (!n.ok()) break;
        r.text.append(buffer, 0, n.value);
        if (n.value < piece) break;
    }
    return r;
}
std::string sample(size_t bytes) {    // text that compresses poorly
    std::string text;
    for (uint64_t i = 0; text.size() < bytes; i++) {
        uint32_t r = philox(4, 1, i).v[0];
        text += std::to_string(r);
        text += r % 5 == 0 ? " \xF0\x9F\x98\x80 " : r % 5 == 1 ? " \xC3\xA9\n" : r % 5 == 2 ? " \xE6\xBC\xA2 " : " ";
    }
    return text;
}
}    // namespace

TEST_CASE("text file: gzip, zstd and UTF-16 give the plain file's text, in pieces of any size") {
    std::string path = temporary_directory() + "/x", text = sample(300000), half = sample(70001);
    struct {
        std::string bytes, text;
        bool plain;
    } files[] = {{text, text, true},
                 {"\xEF\xBB\xBF" + text, text, true},
                 {"", "", true},
                 {gzip(text), text, false},
                 {gzip(text) + gzip("") + gzip(half), text + half, false},
                 {gzip(text) + std::string(100000, '\0'), text, false},
                 {zstd(text), text, false},
                 {zstd(text) + std::string("\x53\x2A\x4D\x18\x03\0\0\0abc", 11) + zstd(half), text + half, false},
                 {std::string("\x50\x2A\x4D\x18\x01\0\0\0a", 9) + zstd(text), text, false},
                 {utf16(text), text, false},
                 {utf16(text, true), text, false},
                 {gzip(utf16(text, true)), text, false},
                 {zstd(utf16(text)), text, false}};
    for (auto& f : files) {
        write_file(path, f.bytes);
        for (size_t piece : {1000, 65535, 65536, 1 << 20}) {
            Reading r = read_text(path, piece);
            CHECK_MESSAGE(r.status.ok(), r.status.message);
            CHECK((r.text == f.text));
        }
        Result<TextFile> open = TextFile::open(path);
        CHECK(open.value.plain() == f.plain);
        std::string all(1 << 20, '\0');
        REQUIRE(open.value.read(all.data(), all.size()).ok());
        CHECK(open.value.file_bytes() == int64_t(f.bytes.size()));
    }
    // UTF-16 with lone surrogates and half a unit at its end: each becomes U+FFFD.
    write_file(path, std::string("\xFF\xFE"
                                 "a\0\x00\xD8"
                                 "b\0\x00\xDC"
                                 "c\0"
                                 "\x3D\xD8",
                                 14) +
                         "d");
    CHECK(read_text(path, 100).text ==
          "a\xEF\xBF\xBD"
          "b\xEF\xBF\xBD"
          "c\xEF\xBF\xBD\xEF\xBF\xBD");
}

TEST_CASE("text file: a compressed file that is cut short or changed is exit 3 with file and offset") {
    std::string dir = temporary_directory(), text = sample(150000);
    for (bool gz : {true, false}) {
        std::string path = dir + (gz ? "/x.txt.gz" : "/x.txt.zst"), good = gz ? gzip(text) : zstd(text);
        auto damaged = [&](const std::string& bytes) {
            write_file(path, bytes);
            Status s = read_text(path, 1 << 20).status;
            CHECK(s.code == Exit::input);
            CHECK_MESSAGE(s.message.find(path + ": ") == 0, s.message);
            return s.message;
        };
        for (size_t n = 0; n < good.size(); n += n < 40 || n + 40 > good.size() ? 1 : 997) damaged(good.substr(0, n));
        std::string half = good.substr(0, good.size() / 2);
        CHECK(damaged(half).find("offset " + std::to_string(half.size())) != std::string::npos);
        for (size_t n = gz ? 10 : 6; n < good.size(); n += 991) {    // skips gzip's time and system
            std::string bad = good;
            bad[n] = char(bad[n] ^ 0x10);
            write_file(path, bad);
            Reading r = read_text(path, 1 << 20);
            CHECK((r.status.code == Exit::input || r.text == text));
        }
        damaged(good + "something");
        damaged(good + good.substr(0, good.size() - 1));
        damaged(text);                            // plain, under a compressed file's name
        damaged(gz ? gzip(good) : zstd(good));    // compressed twice
    }
}

TEST_CASE("text file: what is no text is said, with what to do") {
    std::string dir = temporary_directory(), path = dir + "/x";
    auto parts = [](std::initializer_list<int> bytes) { return std::string(bytes.begin(), bytes.end()); };
    auto shard = [](int32_t magic, int32_t version) {
        std::string s(1024, '\0');
        memcpy(s.data(), &magic, 4);
        memcpy(s.data() + 4, &version, 4);
        return s;
    };
    std::string tar(512, '\0');
    tar.replace(257, 5, "ustar");
    std::string latin16 = utf16("The cat sat on the mat. \xE6\xBC\xA2 It's fine.\n").substr(2);
    struct {
        std::string bytes;
        const char* message;
    } files[] = {{shard(20240520, 1), "tokenized already"},
                 {shard(20240801, 7), "tokenized already"},
                 {"PAR1" + parts({21, 4, 0}), "Parquet"},
                 {"PK\x03\x04 and so on", "zip archive"},
                 {parts({0xFD, '7', 'z', 'X', 'Z', 0, 0}), "xz -dc"},
                 {"BZh91AY&SY", "bzip2 -dc"},
                 {tar, "tar archive"},
                 {"%PDF-1.7\n", "PDF"},
                 {parts({0xFF, 0xFE, 0, 0, 'a', 0, 0, 0}), "UTF-32"},
                 {parts({0, 0, 0xFE, 0xFF, 0, 0, 0, 'a'}), "UTF-32"},
                 {latin16, "UTF-16LE"},
                 {utf16("The cat sat on the mat.", true).substr(2), "UTF-16BE"},
                 {std::string("a\0b", 3), "byte 1 is a NUL"},    // too short to be called UTF-16
                 {std::string("a\0b\0c\0d\0", 8), "byte 1 is a NUL"},
                 // Half a unit too long for UTF-16.
                 {utf16("The cat sat on the mat.").substr(2) + "x", "byte 1 is a NUL"},
                 {read_file("test/golden/tiny.safetensors"), "safetensors"},
                 {"\x7F"
                  "ELF" +
                      parts({2, 1, 1, 0}),
                  "byte 7 is a NUL"}};
    for (auto& f : files)
        for (int packed = 0; packed < 3; packed++) {
            write_file(path, packed == 0 ? f.bytes : packed == 1 ? gzip(f.bytes) : zstd(f.bytes));
            Status s = TextFile::open(path).status;
            CHECK(s.code == Exit::input);
            CHECK_MESSAGE(s.message.find(f.message) != std::string::npos, s.message);
            CHECK_MESSAGE(s.message.find(path + ": expected text") == 0, s.message);
        }
    for (const char* text : {"PAR 1", "BZh is a name", "PK", "%PDF", "\xC3\xA9t\xC3\xA9", "\xE9t\xE9 in Latin-1", ""}) {
        write_file(path, text);
        CHECK(read_text(path, 100).text == text);
    }
    CHECK(TextFile::open(dir + "/none").status.code == Exit::input);
    CHECK(decompressed_name("a.gz/X.JSONL.Gz") == "a.gz/x.jsonl");
    CHECK(decompressed_name("x.tar") == "x.tar");
}

TEST_CASE("text file: a file that unpacks to hundreds of times its size is read piece by piece") {
    std::string path = temporary_directory() + "/bomb.gz", line(1 << 20, 'a');
    for (size_t i = 63; i < line.size(); i += 64) line[i] = '\n';
    std::string one = gzip(line), packed;
    for (int i = 0; i < 256; i++) packed += one;
    write_file(path, packed);
    int64_t bytes = 0;
    const int64_t grown = memory_growth(
        [&] {
            Result<TextFile> f = TextFile::open(path);
            if (!f.ok()) return int64_t(-1);
            std::string buffer(1 << 20, '\0');
            int64_t all = 0;
            for (size_t n = buffer.size(); n == buffer.size(); all += int64_t(n))
                n = f.value.read(buffer.data(), n).value;
            return all;
        },
        &bytes);
    CHECK(bytes == int64_t(256) << 20);
    CHECK(int64_t(packed.size()) < bytes / 300);
    CHECK(grown >= 1 << 20);    // the buffer at least, else nothing was measured
    if (!ASAN) CHECK(grown < 16 << 20);
    write_file(path, gzip(std::string(1 << 20, '\0')));
    CHECK(TextFile::open(path).status.code == Exit::input);
}

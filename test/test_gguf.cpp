// test_gguf.cpp - GGUF against a file of Python's gguf, own files read back, cut and hostile files.
#include "files/gguf.h"

#include <algorithm>
#include <chrono>

#include "test.h"

namespace {
const char* const FORMATS = "test/golden/gguf/formats.gguf";

// Parses from a heap block of exactly the file's size: AddressSanitizer sees a read past it.
Result<GgufHeader> parse(const std::string& file, int64_t file_bytes = -1) {
    const std::vector<char> exact(file.begin(), file.end());
    auto read = [&](int64_t at, void* to, int64_t bytes) -> Status {
        if (at < 0 || at + bytes > int64_t(exact.size())) return fail(Exit::input, "x.gguf: the file ends");
        memcpy(to, exact.data() + at, size_t(bytes));
        return {};
    };
    return gguf_parse(read, file_bytes < 0 ? int64_t(file.size()) : file_bytes, "x.gguf");
}

std::string written(const std::vector<std::pair<std::string, GgufValue>>& metadata,
                    const std::vector<GgufSource>& tensors) {
    std::string file;
    const Status s = gguf_write(metadata, tensors, [&](const void* data, int64_t bytes) -> Status {
        file.append(static_cast<const char*>(data), size_t(bytes));
        return {};
    });
    REQUIRE(s.ok());
    return file;
}
typedef std::vector<int64_t> Shape;
GgufSource source(const std::string& name, BlockType type, const Shape& shape, const std::string& bytes) {
    return {name, &block_format(type), shape, [=](const FileSink& sink) -> Status {
                TRY(sink(bytes.data(), int64_t(bytes.size() / 2)));
                return sink(bytes.data() + bytes.size() / 2, int64_t(bytes.size() - bytes.size() / 2));
            }};
}

// Builds a header's bytes field by field; integers have the width of their type.
struct Bytes {
    std::string bytes;
    template <class T> Bytes& put(T v) {
        bytes.append(reinterpret_cast<const char*>(&v), sizeof v);
        return *this;
    }
    Bytes& text(const std::string& s) {
        put(uint64_t(s.size()));
        bytes += s;
        return *this;
    }
    Bytes& tensor(const char* name, const std::vector<uint64_t>& sizes, uint32_t type, uint64_t offset) {
        text(name).put(uint32_t(sizes.size()));
        for (uint64_t s : sizes) put(s);
        return put(type).put(offset);
    }
    Bytes& key(const char* name, GgufType type) { return text(name).put(uint32_t(type)); }
};
Bytes header(uint64_t tensors, uint64_t keys, uint32_t version = 3) {
    Bytes b;
    b.bytes = "GGUF";
    return b.put(version).put(tensors).put(keys);
}
std::string with_data(Bytes b, size_t bytes) {
    b.bytes.resize((b.bytes.size() + 31) / 32 * 32 + bytes);
    return b.bytes;
}
}    // namespace

TEST_CASE("gguf: metadata of a file of Python's gguf") {
    Result<GgufFile> f = GgufFile::open(FORMATS);
    REQUIRE_MESSAGE(f.ok(), f.status.message);
    const GgufMetadata& m = f.value.metadata();
    const std::pair<const char*, int64_t> integers[] = {{"uint8", 200},
                                                        {"int8", -100},
                                                        {"uint16", 60000},
                                                        {"int16", -30000},
                                                        {"uint32", 4000000000},
                                                        {"int32", -2000000000},
                                                        {"uint64", int64_t(1) << 62},
                                                        {"int64", -(int64_t(1) << 62)}};
    for (auto& [type, expected] : integers) {
        INFO(std::string(type));
        int64_t found = 0;
        std::vector<int64_t> all;
        REQUIRE(m.get(std::string("value.") + type, &found, INT64_MIN, INT64_MAX).ok());
        CHECK(found == expected);
        REQUIRE(m.get(std::string("array.") + type, &all).ok());
        CHECK(all == std::vector{expected, expected});
    }
    double number = 0;
    for (auto& [type, expected] : {std::pair{"float32", 0.15625}, {"float64", 1e-300}}) {
        std::vector<double> all;
        REQUIRE(m.get(std::string("value.") + type, &number, 0, 1).ok());
        CHECK(number == expected);
        REQUIRE(m.get(std::string("array.") + type, &all).ok());
        CHECK(all == std::vector{expected, expected});
    }
    bool yes = false;
    REQUIRE(m.get("value.bool", &yes).ok());
    CHECK(yes);
    std::string text;
    std::vector<std::string> texts;
    REQUIRE(m.get("value.string", &text).ok());
    CHECK(text == "na\xC3\xAFve");
    REQUIRE(m.get("array.string", &texts).ok());
    CHECK(texts == std::vector{text, text});
    std::vector<int64_t> flags;
    REQUIRE(m.get("array.bool", &flags).ok());
    CHECK(flags == std::vector<int64_t>{1, 1});

    // Errors for another type, or for a value out of range, name file, key and both types.
    int64_t i = 0;
    int small = 0;
    CHECK(contains(m.get("value.string", &i, 0, 1).message, "expected an integer from 0 to 1, found string"));
    CHECK(contains(m.get("array.int8", &i, 0, 1).message, "found an array of i8"));
    CHECK(contains(m.get("value.uint8", &small, 0, 199).message, "from 0 to 199, found 200"));
    CHECK(m.get("none", &yes).message == std::string(FORMATS) + ": none: expected a boolean, found no such key");
    CHECK(contains(m.get("value.float32", &number, 1, 2).message, "from 1 to 2, found 0.15625"));
    CHECK(!m.get("value.float32", &i, 0, 1).ok());
    CHECK(!m.get("value.float32", &text).ok());
    CHECK(!m.get("value.string", &texts).ok());
    CHECK(!m.get("array.string", &text).ok());
    CHECK(!m.get("array.float32", &flags).ok());
    CHECK(m.get("value.uint8", &number, 0, 255).ok());    // an integer, read as a double
}

TEST_CASE("gguf: what is written reads back, and lies where it should") {
    GgufValue wide = {GgufType::u64, false, {-1}, {}, {}};
    const std::string file = written(
        {{"general.architecture", GgufValue::text("llama")},
         {"n", GgufValue::integer(4000000000)},
         {"x", GgufValue::number(1e-5f)},
         {"b", GgufValue::boolean(true)},
         {"wide", wide},
         {"t", GgufValue::text_array({"a", "", "\xFF"})},
         {"none", GgufValue::text_array({})},
         {"i", GgufValue::integer_array({-1, 2})},
         {"f", GgufValue::number_array({0.5, -2})}},
        {source("odd", BlockType::f32, {3}, "abcdefghijkl"), source("empty", BlockType::f32, {0, 4}, ""),
         source("q", BlockType::q8_0, {2, 32}, std::string(68, 'q')), source("scalar", BlockType::f16, {}, "hh")});
    const Result<GgufHeader> h = parse(file);
    REQUIRE_MESSAGE(h.ok(), h.status.message);
    const GgufMetadata& m = h.value.metadata;
    int64_t n = 0;
    double x = 0;
    std::vector<std::string> t, none;
    std::vector<int64_t> i;
    std::vector<double> f;
    CHECK(m.get("n", &n, 0, INT64_MAX).ok());
    CHECK(n == 4000000000);
    CHECK(m.find("n")->type == GgufType::u32);
    CHECK(m.get("x", &x, 0, 1).ok());
    CHECK(x == double(1e-5f));
    CHECK(!m.get("wide", &n, INT64_MIN, INT64_MAX).ok());    // 2^64 - 1 is no int64_t
    CHECK(m.get("t", &t).ok());
    CHECK(t == std::vector<std::string>{"a", "", "\xFF"});
    CHECK(m.get("none", &none).ok());
    CHECK(none.empty());
    CHECK(m.get("i", &i).ok());
    CHECK(i == std::vector<int64_t>{-1, 2});
    CHECK(m.get("f", &f).ok());
    CHECK(f == std::vector<double>{0.5, -2});
    REQUIRE(h.value.tensors.size() == 4);
    const std::pair<const char*, std::string> expected[] = {
        {"odd", "abcdefghijkl"}, {"empty", ""}, {"q", std::string(68, 'q')}, {"scalar", "hh"}};
    for (auto& [name, bytes] : expected) {
        const auto it = std::find_if(h.value.tensors.begin(), h.value.tensors.end(),
                                     [&, name = name](const GgufTensor& g) { return g.name == name; });
        REQUIRE(it != h.value.tensors.end());
        CHECK(it->at % 32 == 0);
        CHECK(file.substr(size_t(it->at), size_t(it->bytes)) == bytes);
    }
    CHECK(h.value.tensors[2].shape == std::vector<int64_t>{2, 32});
    CHECK(h.value.tensors[2].numbers() == 64);
    CHECK(file.size() % 32 == 0);
}

TEST_CASE("gguf: cut at every length, every bit of the header flipped") {
    const std::string golden = read_file(FORMATS);
    const Result<GgufHeader> whole = parse(golden);
    REQUIRE(whole.ok());
    const GgufTensor& last = whole.value.tensors.back();
    for (int64_t n = 0; n < last.at + last.bytes; n += n < whole.value.data ? 1 : 97)
        CHECK(parse(golden.substr(0, size_t(n))).status.code == Exit::input);
    int64_t refused = 0, cases = 0;
    for (size_t bit = 0; bit < size_t(whole.value.data) * 8; bit += 3, cases++) {
        std::string bad = golden;
        bad[bit / 8] = char(bad[bit / 8] ^ 1 << bit % 8);
        const Result<GgufHeader> r = parse(bad);
        if (!r.ok()) {
            CHECK(r.status.code == Exit::input);
            CHECK(r.status.message.starts_with("x.gguf: "));
            refused++;
        }
        int64_t end = r.value.data;
        for (const GgufTensor& t : r.value.tensors) {
            CHECK((t.at >= end && t.bytes >= 0 && t.at + t.bytes <= int64_t(golden.size())));
            end = t.at + t.bytes;
        }
    }
    CHECK(refused > cases / 3);    // flips in names and values stay valid
    const std::string path = temporary_directory() + "/cut.gguf";
    for (size_t n : {size_t(0), size_t(3), size_t(4), size_t(100), size_t(last.at)}) {
        write_file(path, golden.substr(0, n));
        CHECK(GgufFile::open(path).status.code == Exit::input);
    }
    CHECK(GgufFile::open(path + ".none").status.code == Exit::input);
}

TEST_CASE("gguf: crafted headers") {
    constexpr uint64_t HUGE_COUNT = UINT64_MAX, BIG = uint64_t(1) << 62;
    struct Case {
        const char* what;
        Bytes b;
        const char* message;
    };
    const GgufType u32 = GgufType::u32, array = GgufType::array, text = GgufType::text;
    const Case cases[] = {
        {"magic", Bytes{"GGML"}.put(uint32_t(3)), "expected \"GGUF\""},
        {"version 1", header(0, 0, 1), "version: expected 2 or 3"},
        {"big-endian", header(0, 0, 0x03000000), "version: expected 2 or 3, little-endian, found 50331648"},
        {"tensors", header(HUGE_COUNT, 0), "tensors: expected at most"},
        {"tensors and keys", header(BIG, BIG), "tensors: expected at most"},
        {"keys", header(0, HUGE_COUNT), "keys: expected at most"},
        {"key length", header(0, 1).put(HUGE_COUNT).put(BIG), "a key: expected at most"},
        {"long key", header(0, 1).text(std::string(2000, 'k')).put(u32).put(1u), "a key: expected at most 1024 bytes"},
        {"type", header(0, 1).key("k", GgufType(13)).put(1u), "k: expected a value's type from 0 to 12, found 13"},
        {"array count", header(0, 1).key("k", array).put(text).put(HUGE_COUNT).put(BIG), "k: expected at most 13 in"},
        {"array of u8", header(0, 1).key("k", array).put(GgufType::u8).put(BIG).put(1u), "k: expected at most 111 in"},
        {"nested", header(0, 1).key("k", array).put(array).put(uint64_t(1)).put(BIG).put(BIG), "found an array of"},
        {"string", header(0, 1).key("k", text).put(HUGE_COUNT), "k: expected at most 115 in"},
        {"bool", header(0, 1).key("k", GgufType::boolean).put(uint8_t(2)), "k: expected booleans of 0 or 1, found 2"},
        {"key twice", header(0, 2).key("k", u32).put(1u).key("k", u32).put(1u), "key \"k\" occurs twice"},
        {"alignment", header(0, 1).key("general.alignment", u32).put(24u), "expected a power of two, found 24"},
        {"alignment 0", header(0, 1).key("general.alignment", u32).put(0u), "expected an integer from 1"},
        {"alignment type", header(0, 1).key("general.alignment", text).text("32"), "expected an integer"},
        {"rank", header(1, 0).tensor("t", {1, 1, 1, 1, 1}, 0, 0), "t: expected at most 4 dimensions, found 5"},
        {"size", header(1, 0).tensor("t", {HUGE_COUNT}, 0, 0), "t: expected sizes up to 2^40"},
        {"product", header(1, 0).tensor("t", {1ull << 40, 1ull << 40}, 0, 0), "with a product below 2^63"},
        {"bytes", header(1, 0).tensor("t", {1ull << 40, 1ull << 22}, 0, 0), "t: expected rows of whole F32 blocks"},
        {"format", header(1, 0).tensor("t", {256}, 16, 0), "found IQ2_XXS (16)"},
        {"no format", header(1, 0).tensor("t", {256}, 99, 0), "found unknown (99)"},
        {"half a block", header(1, 0).tensor("t", {48}, 8, 0), "blocks of 32 numbers, found rows of 48"},
        {"Q4_K's row", header(1, 0).tensor("t", {576}, 12, 0), "rows of whole Q4_K blocks of 256 numbers"},
        {"offset", header(1, 0).tensor("t", {8}, 0, HUGE_COUNT), "expected a multiple of 32"},
        {"aligned offset", header(1, 0).tensor("t", {8}, 0, 1ull << 62), "expected its end within 96 bytes of data"},
        {"odd offset", header(1, 0).tensor("t", {8}, 0, 8), "expected a multiple of 32"},
        {"end", header(1, 0).tensor("t", {8}, 0, 96), "expected its end within 96"},
        {"too long", header(1, 0).tensor("t", {25}, 0, 0), "found offset 0 and 100 bytes"},
        {"overlap", header(2, 0).tensor("a", {16}, 0, 0).tensor("b", {8}, 0, 32), "expected an offset from 64"},
        {"same place", header(2, 0).tensor("a", {8}, 0, 0).tensor("b", {8}, 0, 0), "expected an offset from 32 on"},
        {"tensor twice", header(2, 0).tensor("a", {8}, 0, 0).tensor("a", {8}, 0, 32), "tensor \"a\" occurs twice"},
    };
    for (const Case& c : cases) {
        INFO(std::string(c.what));
        const Result<GgufHeader> r = parse(with_data(c.b, 96));
        CHECK(r.status.code == Exit::input);
        CHECK_MESSAGE(contains(r.status.message, c.message), r.status.message);
    }
    // Valid headers that differ little from those above.
    CHECK(parse(with_data(header(0, 0), 0)).ok());
    CHECK(parse(with_data(header(0, 0, 2), 0)).ok());
    CHECK(parse(with_data(header(2, 0).tensor("b", {16}, 0, 32).tensor("a", {8}, 0, 0), 96)).ok());
    CHECK(parse(with_data(header(1, 0).tensor("t", {24}, 0, 0), 96)).ok());
    CHECK(parse(with_data(header(1, 1).key("general.alignment", u32).put(8u).tensor("t", {8}, 0, 8), 96)).ok());
}

TEST_CASE("gguf: a 7B model's header over a file of 1 KB is refused at once") {
    Bytes b = header(2, 1).key("llama.block_count", GgufType::u32).put(32u);
    b.tensor("token_embd.weight", {4096, 32000}, 1, 0).tensor("output.weight", {4096, 32000}, 1, 4096ull * 32000 * 2);
    const std::string path = temporary_directory() + "/7b.gguf";
    write_file(path, with_data(b, 1024));
    const auto begin = std::chrono::steady_clock::now();
    const Result<GgufFile> f = GgufFile::open(path);
    CHECK(std::chrono::steady_clock::now() - begin < std::chrono::milliseconds(100));
    CHECK(f.status.code == Exit::input);
    CHECK(contains(f.status.message, "expected its end within 1024 bytes of data, found offset 0 and 262144000 bytes"));
    // 2^20 tensors would fit a file of 2^40 bytes, but the readable bytes end before the first one.
    CHECK(parse(header(1 << 20, 0).bytes, int64_t(1) << 40).status.code == Exit::input);
}

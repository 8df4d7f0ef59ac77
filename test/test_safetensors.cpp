// test_safetensors.cpp - the format: a file of the Python library, our own files, hostile ones.
#include "tensors.h"

#include "test.h"

namespace {
std::string length_bytes(uint64_t length) { return {reinterpret_cast<const char*>(&length), 8}; }
std::string file_of(const std::string& header, int64_t data_bytes) {
    return length_bytes(header.size()) + header + std::string(size_t(data_bytes), '\x3f');
}
// Parses a heap block of exactly the file's size, so that AddressSanitizer sees a read past it.
Result<std::vector<TensorEntry>> parse(const std::string& file, int64_t file_bytes = -1) {
    std::vector<char> exact(file.begin(), file.end());
    return safetensors_parse({exact.data(), exact.size()}, file_bytes < 0 ? int64_t(file.size()) : file_bytes, "x.st");
}
std::string written(const std::vector<TensorSource>& tensors) {
    std::string file;
    Status s = safetensors_write(tensors, [&](const void* data, int64_t bytes) -> Status {
        file.append(static_cast<const char*>(data), size_t(bytes));
        return {};
    });
    REQUIRE(s.ok());
    return file;
}
std::vector<float> values(const SafetensorsFile& f, const char* name) {
    const TensorEntry* e = find_tensor(f, name);
    REQUIRE(e);
    int64_t n = 1;
    for (int64_t d : e->shape) n *= d;
    Guarded<float> out(n);
    REQUIRE(read_tensor(f, *e, 0, n, out).ok());
    CHECK(out.intact());
    return {out.data(), out.data() + n};
}
}    // namespace

TEST_CASE("safetensors: a file of the Python library") {
    Result<SafetensorsFile> f = SafetensorsFile::open("test/golden/tiny.safetensors");
    REQUIRE_MESSAGE(f.ok(), f.status.message);
    CHECK(f.value.entries().size() == 4);    // int and bool tensors are left out
    CHECK(values(f.value, "matrix") == std::vector<float>{1.5f, -2.25f, 3.f, 4.f, 5.5f, -0.f});
    CHECK(find_tensor(f.value, "matrix")->shape == std::vector<int64_t>{2, 3});
    CHECK(values(f.value, "brain") == std::vector<float>{1.f, -3.140625f, 0x1.94p99f, INFINITY});
    CHECK(values(f.value, "half") == std::vector<float>{1.f, -0.333251953125f, 0x1p-24f, 65504.f, -INFINITY});
    CHECK(values(f.value, "scalar") == std::vector<float>{2.5f});
    CHECK(find_tensor(f.value, "scalar")->shape.empty());
    CHECK(!find_tensor(f.value, "counts"));
    float part[2];
    REQUIRE(read_tensor(f.value, *find_tensor(f.value, "matrix"), 3, 2, part).ok());
    CHECK(part[0] == 4.f);
    CHECK(part[1] == 5.5f);
}

TEST_CASE("safetensors: what is written reads back") {
    const int64_t n = (1 << 20) + 5;    // more than one piece of writing
    auto value = [](int64_t i) { return float(i % 4099) / 64 - 30; };
    auto fill = [&](int64_t first, int64_t count, float* out) {
        for (int64_t i = 0; i < count; i++) out[i] = value(first + i);
        return Status{};
    };
    auto rounding = [](int64_t first, int64_t count, float* out) {
        const float x[] = {0x1.01p0f, 0x1.03p0f, -0x1.01p0f, 0x1.010002p0f, 0x1.fffffep127f, INFINITY, NAN, 0.f};
        std::copy_n(x + first, count, out);
        return Status{};
    };
    std::string path = temporary_directory() + "/a.safetensors";
    write_file(path, written({{"z", TensorType::f32, {n}, fill}, {"a", TensorType::bf16, {2, 4}, rounding}}));
    Result<SafetensorsFile> f = SafetensorsFile::open(path);
    REQUIRE_MESSAGE(f.ok(), f.status.message);
    CHECK(f.value.entries()[0].name == "z");    // in the order of writing
    std::vector<float> z = values(f.value, "z"), a = values(f.value, "a");
    bool same = true;
    for (int64_t i = 0; i < n; i++) same &= z[size_t(i)] == value(i);
    CHECK(same);
    // bf16: ties to even, the rest to nearest, overflow to infinity.
    const std::vector<float> expected = {1.f, 0x1.04p0f, -1.f, 0x1.02p0f, INFINITY, INFINITY};
    CHECK(std::vector<float>(a.begin(), a.begin() + 6) == expected);
    CHECK(std::isnan(a[6]));
    CHECK(read_file(path).substr(8, 1) == "{");
    // The header is padded to a multiple of 8 bytes.
    CHECK((f.value.entries()[0].begin == 0 && read_file(path).size() % 8 == (n * 4 + 16) % 8));
}

TEST_CASE("safetensors: cut at every length, with more behind, every bit of the header flipped") {
    std::string file = read_file("test/golden/tiny.safetensors");
    uint64_t header = 0;
    memcpy(&header, file.data(), 8);
    REQUIRE(parse(file).ok());
    for (size_t n = 0; n < file.size(); n++) CHECK(parse(file.substr(0, n)).status.code == Exit::input);
    for (size_t n = 1; n <= 64; n++) CHECK(parse(file + std::string(n, '\0')).status.code == Exit::input);
    int64_t refused = 0, cases = 0;
    for (size_t bit = 0; bit < (8 + header) * 8; bit++, cases++) {
        std::string bad = file;
        bad[bit / 8] = char(bad[bit / 8] ^ 1 << bit % 8);
        Result<std::vector<TensorEntry>> r = parse(bad);
        if (!r.ok()) {
            CHECK(r.status.code == Exit::input);
            CHECK(r.status.message.starts_with("x.st: "));
            refused++;
            continue;
        }
        // Accepted with another letter or a type of equal width: all tensors lie within the file.
        const int64_t end = int64_t(file.size() - 8 - header);
        for (const TensorEntry& e : r.value) CHECK((e.begin >= 0 && e.end >= e.begin && e.end <= end));
    }
    CHECK(refused > cases * 3 / 4);
    std::string path = temporary_directory() + "/cut.safetensors";
    for (size_t n : {size_t(0), size_t(7), size_t(8), size_t(100), file.size() - 1}) {
        write_file(path, file.substr(0, n));
        CHECK(SafetensorsFile::open(path).status.code == Exit::input);
    }
    CHECK(SafetensorsFile::open("/").status.code == Exit::input);
    CHECK(SafetensorsFile::open(path + ".none").status.code == Exit::input);
}

TEST_CASE("safetensors: crafted headers") {
    auto row = [](const std::string& name, const std::string& shape, const std::string& offsets,
                  const std::string& type = "F32") {
        return "\"" + name + "\":{\"dtype\":\"" + type + "\",\"shape\":" + shape + ",\"data_offsets\":" + offsets + "}";
    };
    auto tensor = [&](auto... fields) { return "{" + row("a", fields...) + "}"; };
    auto two = [&](const char* name, const char* shape, const char* first, const char* second) {
        return "{" + row("a", shape, first) + "," + row(name, shape, second) + "}";
    };
    CHECK(parse(file_of(tensor("[2]", "[0,8]"), 8)).ok());
    CHECK(parse(file_of(tensor("[0]", "[0,0]"), 0)).ok());
    const std::string nested = std::string(1000000, '[') + std::string(1000000, ']');
    struct {
        const char* what;
        std::string header;
        int64_t data;
    } bad[] = {
        {"product of sizes overflows to 0", tensor("[4398046511105,4194304]", "[0,0]"), 0},
        {"product within the sizes' limit overflows", tensor("[2147483648,2147483648,4]", "[0,0]"), 0},
        {"product overflows to 8", tensor("[2147483648,2147483648,2147483648,2]", "[0,8]"), 8},
        {"size 2^63-1 and 2", tensor("[9223372036854775807,2]", "[0,8]"), 8},
        {"size 2^64", tensor("[18446744073709551616]", "[0,8]"), 8},
        {"negative size", tensor("[-2]", "[0,8]"), 8},
        {"two negative sizes", tensor("[-1,-2]", "[0,8]"), 8},
        {"size is a fraction", tensor("[2.0]", "[0,8]"), 8},
        {"size is text", tensor("[\"2\"]", "[0,8]"), 8},
        {"nine sizes", tensor("[1,1,1,1,1,1,1,1,2]", "[0,8]"), 8},
        {"shape is no array", tensor("2", "[0,8]"), 8},
        {"end beyond the file", tensor("[2]", "[0,8]"), 7},
        {"begin after the end", tensor("[2]", "[8,0]"), 8},
        {"negative begin", tensor("[2]", "[-8,0]"), 8},
        {"end 2^64-1", tensor("[2]", "[0,18446744073709551615]"), 8},
        {"end -1", tensor("[2]", "[0,-1]"), 8},
        {"three offsets", tensor("[2]", "[0,8,8]"), 8},
        {"fewer bytes than the shape takes", tensor("[2]", "[0,4]"), 4},
        {"more bytes than the shape takes", tensor("[2]", "[0,12]"), 12},
        {"bytes behind the last tensor", tensor("[2]", "[0,8]"), 9},
        {"hole before the first tensor", tensor("[2]", "[4,12]"), 12},
        {"zero size and bytes", tensor("[0]", "[0,4]"), 4},
        {"unknown type", tensor("[2]", "[0,8]", "F31"), 8},
        {"empty type", tensor("[2]", "[0,8]", ""), 8},
        {"overlap", two("b", "[2]", "[0,8]", "[4,12]"), 12},
        {"the same bytes twice", two("b", "[2]", "[0,8]", "[0,8]"), 8},
        {"hole between tensors", two("b", "[1]", "[0,4]", "[8,12]"), 12},
        {"name twice", two("a", "[1]", "[0,4]", "[4,8]"), 8},
        {"field twice", R"({"a":{"dtype":"F32","dtype":"F32","shape":[1],"data_offsets":[0,4]}})", 4},
        {"empty name", R"({"":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}})", 4},
        {"field missing", R"({"a":{"dtype":"F32","data_offsets":[0,4]}})", 4},
        {"field too many", R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4],"x":1}})", 4},
        {"tensor is a number", R"({"a":4})", 0},
        {"metadata is no object", R"({"__metadata__":[]})", 0},
        {"metadata of numbers", R"({"__metadata__":{"format":1}})", 0},
        {"array, not object", "[]", 0},
        {"nested deeper than the format", R"({"a":{"dtype":"F32","shape":[[[[1]]]],"data_offsets":[0,4]}})", 4},
        {"not UTF-8", "{\"\xff\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]}}", 4},
        {"nothing", "", 0},
        {"space before the brace", " {}", 0},
        {"two objects", "{}{}", 0},
        {"NUL behind the brace", std::string("{}\0", 3), 0},
        {"comment", "{/**/}", 0},
        {"a number too large", R"({"a":{"dtype":"F32","shape":[1e999],"data_offsets":[0,4]}})", 4},
        {"nested until a recursion overflows the stack", "{\"a\":" + nested + "}", 0},
    };
    for (auto& b : bad) {
        INFO(std::string(b.what));
        Status s = parse(file_of(b.header, b.data)).status;
        CHECK(s.code == Exit::input);
        CHECK(!s.message.empty());
    }
}

TEST_CASE("safetensors: crafted header lengths") {
    const uint64_t one = 1;
    for (uint64_t length : {one - 1, one, 3 * one, 100000001 * one, one << 31, one << 32, (one << 63) - 1, one << 63,
                            ~one, ~one + 1, ~one - 6}) {
        INFO(length);
        CHECK(parse(length_bytes(length) + "{}").status.code == Exit::input);
        CHECK(parse(length_bytes(length) + "{}", INT64_MAX).status.code == Exit::input);
    }
}

// test_manifest.cpp - MANIFEST: files that it must list, names that it may not, and checksums.
#include "checkpoint/manifest.h"
#include "base/philox.h"

#include "test.h"

namespace {
const std::vector<FileChecksum> WHOLE = {
    {"model.safetensors", 5, 0x12}, {"config.json", 7, 0xFFFFFFFF}, {"state.json", 0, 0}};
void refused(const std::string& text, const char* what) {
    const Status s = manifest_parse(text, "M").status;
    CHECK(s.code == Exit::input);
    CHECK_MESSAGE(contains(s.message, what), s.message);
}
std::vector<FileChecksum> without(size_t i) {
    std::vector<FileChecksum> all = WHOLE;
    all.erase(all.begin() + long(i));
    return all;
}
FileChecksum sum_of(const std::string& text, const std::string& name) {
    return {name, int64_t(text.size()), crc32c(0, text.data(), int64_t(text.size()))};
}
}    // namespace

TEST_CASE("manifest: its lines, and what they must name") {
    CHECK(checksum_line(WHOLE[0]) == "00000012 5 model.safetensors\n");
    const std::string text = manifest_text(WHOLE);
    CHECK(text.starts_with("flatgpt checkpoint 1\n00000012 5 model.safetensors\nffffffff 7 config.json\n"));
    const Result<std::vector<FileChecksum>> read = manifest_parse(text, "M");
    REQUIRE_MESSAGE(read.ok(), read.status.message);
    REQUIRE(read.value.size() == 3);
    CHECK(read.value[1].name == "config.json");
    CHECK(read.value[1].bytes == 7);
    CHECK(read.value[1].crc == 0xFFFFFFFF);

    for (size_t i = 0; i < 3; i++) refused(manifest_text(without(i)), ("it does not list " + WHOLE[i].name).c_str());
    std::vector<FileChecksum> parts = without(0);
    parts.push_back({"model.safetensors.index.json", 1, 1});
    CHECK(manifest_parse(manifest_text(parts), "M").ok());
    parts.erase(parts.begin());
    refused(manifest_text(parts), "it does not list config.json");
    for (const char* name : {"", "a/b", "/etc/passwd", "../model.safetensors"}) {
        std::vector<FileChecksum> all = WHOLE;
        all.push_back({name, 1, 1});
        refused(manifest_text(all), "expected the name of a file");
    }
    std::string other = text;
    other[other.find('1')] = '2';
    refused(other, "line 1: expected \"flatgpt checkpoint 1\"");
    refused("", "line 1");
    refused(text + "x", "its own checksum is wrong, or it is cut short");
    refused(text + text, "its own checksum");
    refused(text.substr(0, text.size() - 1), "its own checksum");
    refused(text.substr(0, text.find("ffffffff")), "its own checksum");

    const std::string dir = temporary_directory();
    write_file(dir + "/MANIFEST", text);
    CHECK(manifest_read(dir).ok());
    std::vector<FileChecksum> many = WHOLE;
    for (int i = 0; i < 80'000; i++) many.push_back({"file" + std::to_string(i), 1, 1});
    write_file(dir + "/MANIFEST", manifest_text(many));
    CHECK(manifest_read(dir).status.code == Exit::input);    // more than 1 MiB
}

TEST_CASE("manifest: a file has the bytes and the sum of its line") {
    const std::string path = temporary_directory() + "/f";
    std::string text;
    // 600,000 bytes are read in three pieces of at most 256 KiB.
    for (int i = 0; i < 600'000; i++) text += char(philox(1, 1, uint64_t(i)).v[0]);
    for (const size_t n : {size_t(0), size_t(1), size_t(1) << 18, text.size()}) {
        const std::string some = text.substr(0, n);
        write_file(path, some);
        const FileChecksum right = sum_of(some, "f");
        CHECK(checksum_verify(path, right).ok());
        for (const int64_t more : {-1, 1}) {
            const Status s = checksum_verify(path, {"f", right.bytes + more, right.crc}, false);
            CHECK(s.code == Exit::input);
            CHECK(contains(s.message, "bytes (MANIFEST), found " + std::to_string(n)));
        }
        const FileChecksum wrong{"f", right.bytes, right.crc + 1};
        CHECK(checksum_verify(path, wrong, false).ok());
        CHECK(contains(checksum_verify(path, wrong).message, "expected CRC-32C"));
    }
    CHECK_FALSE(checksum_verify(path + "none", sum_of("", "f")).ok());
}

TEST_CASE("manifest: what was read in pieces of any order counts, and the rest is read") {
    const std::string path = temporary_directory() + "/f.safetensors";
    std::vector<float> values(100'000);
    for (size_t i = 0; i < values.size(); i++) values[i] = float(i);
    std::string text;
    auto fill = [&](int64_t first, int64_t n, float* out) {
        std::copy_n(values.data() + first, n, out);
        return Status{};
    };
    const std::vector<TensorSource> tensors = {{"a", TensorType::f32, {100'000}, fill}};
    REQUIRE(safetensors_write(tensors, [&](const void* p, int64_t n) {
                text.append(static_cast<const char*>(p), size_t(n));
                return Status{};
            }).ok());
    write_file(path, text);
    const Result<SafetensorsFile> file = SafetensorsFile::open(path);
    REQUIRE_MESSAGE(file.ok(), file.status.message);
    const FileChecksum right = sum_of(text, "f"), wrong{"f", right.bytes, right.crc + 1};
    const auto size = int64_t(text.size());
    const std::vector<std::pair<int64_t, int64_t>> orders[] = {
        {}, {{0, size}}, {{300'000, 1000}, {100, 200'000}}, {{size - 10, 10}, {0, 10}, {10, 10}}};
    for (const auto& pieces : orders)
        for (const bool damaged : {false, true}) {
            ReadChecksums sums;
            std::string memory = text;
            if (damaged) memory[size_t(pieces.empty() ? 0 : pieces[0].first)] ^= 1;
            for (auto [at, n] : pieces) sums.add(&file.value, at, memory.data() + at, n);
            CHECK(sums.check(file.value, right).ok() == (!damaged || pieces.empty()));
            ReadChecksums again;
            for (auto [at, n] : pieces) again.add(&file.value, at, text.data() + at, n);
            CHECK(contains(again.check(file.value, wrong).message, "expected CRC-32C"));
        }
}

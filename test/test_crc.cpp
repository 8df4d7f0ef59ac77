// test_crc.cpp - CRC-32C against its check values; the instruction and the tables agree.
#include "files/crc.h"
#include "base/philox.h"

#include "test.h"

TEST_CASE("crc32c: the check values of RFC 3720") {
    CHECK(crc32c(0, "123456789", 9) == 0xE3069283u);
    std::string zeros(32, '\0'), ones(32, '\xff');
    CHECK(crc32c(0, zeros.data(), 32) == 0x8A9136AAu);
    CHECK(crc32c(0, ones.data(), 32) == 0x62A8AB43u);
    for (int64_t cut = 0; cut <= 32; cut++)
        CHECK(crc32c(crc32c(0, ones.data(), cut), ones.data() + cut, 32 - cut) == 0x62A8AB43u);
    CHECK(crc32c_table(0, "123456789", 9) == 0xE3069283u);
}

TEST_CASE("crc32c: the instruction, the tables and joined pieces agree, for all lengths and alignments") {
    std::vector<unsigned char> bytes(100000);
    for (size_t i = 0; i < bytes.size(); i++) bytes[i] = static_cast<unsigned char>(philox(1, 2, i).v[0]);
    auto same = [&](int64_t at, int64_t n) {
        const unsigned char* p = bytes.data() + at;
        const uint32_t whole = crc32c_table(0, p, n);
        bool ok = crc32c(0, p, n) == whole;
        for (int64_t cut : {int64_t(0), n / 3, n / 2, n - n / 5, n}) {
            const uint32_t first = crc32c(0, p, cut);
            ok = ok && crc32c(first, p + cut, n - cut) == whole;
            ok = ok && crc32c_combine(first, crc32c(0, p + cut, n - cut), n - cut) == whole;
        }
        return ok;
    };
    int wrong = 0;
    for (int64_t at = 0; at < 9; at++)
        for (int64_t n = 0; n < 300; n++) wrong += !same(at, n);
    for (int64_t strips : {24576, 2 * 24576, 3 * 24576})    // lengths near multiples of three parallel strips
        for (int64_t n = strips - 17; n <= strips + 17; n++) wrong += !same(n % 8, n);
    CHECK(wrong == 0);
    uint32_t doubled = crc32c(0, bytes.data(), 1);    // 64 Ki times the same byte
    for (int64_t n = 1; n < 1 << 16; n *= 2) doubled = crc32c_combine(doubled, doubled, n);
    const std::vector<unsigned char> run(1 << 16, bytes[0]);
    CHECK(doubled == crc32c_table(0, run.data(), 1 << 16));
}

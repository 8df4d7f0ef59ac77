// crc.cpp - see crc.h.
//
// A checksum is the remainder of a polynomial over GF(2) modulo P; bit 31 is the coefficient of
// x^0. Appending n bytes multiplies the remainder by x^(8n), so the checksums of pieces can be
// combined by one multiplication (Adler, zlib's crc32_combine).
#include "crc.h"

#include <array>
#include <cstring>

namespace {
constexpr uint32_t P = 0x82F63B78, ONE = 1u << 31;

// TABLES[k][b] is the remainder of byte b followed by k zero bytes. Eight tables, because
// crc32c_table processes eight bytes per iteration.
constexpr auto TABLES = [] {
    std::array<std::array<uint32_t, 256>, 8> t{};
    for (uint32_t b = 0; b < 256; b++) {
        t[0][b] = b;
        for (int bit = 0; bit < 8; bit++) t[0][b] = (t[0][b] >> 1) ^ (t[0][b] & 1 ? P : 0);
    }
    for (size_t k = 1; k < 8; k++)
        for (uint32_t b = 0; b < 256; b++) t[k][b] = (t[k - 1][b] >> 8) ^ t[0][t[k - 1][b] & 255];
    return t;
}();

constexpr uint32_t multiply(uint32_t a, uint32_t b) {    // modulo P
    uint32_t product = 0;
    for (uint32_t bit = ONE; bit; bit >>= 1) {
        if (a & bit) product ^= b;
        b = (b >> 1) ^ (b & 1 ? P : 0);
    }
    return product;
}
constexpr uint32_t zeros(int64_t bytes) {    // x^(8 bytes) modulo P
    uint32_t power = ONE, square = ONE >> 8;
    for (; bytes; bytes >>= 1, square = multiply(square, square))
        if (bytes & 1) power = multiply(power, square);
    return power;
}

}    // namespace

#if defined(__x86_64__)
#include <nmmintrin.h>

static bool has_instruction() { return __builtin_cpu_supports("sse4.2"); }
// The instruction has latency 3 and throughput 1 a cycle, so three strips are summed side by side.
static __attribute__((target("sse4.2"))) uint32_t by_instruction(uint32_t start, const void* data, int64_t bytes) {
    constexpr int64_t STRIP = 8192;
    constexpr uint32_t SHIFT = zeros(STRIP);
    auto* p = static_cast<const char*>(data);
    auto word = [](const char* from) {
        uint64_t x;
        memcpy(&x, from, 8);
        return x;
    };
    uint64_t crc = ~start;
    for (; bytes >= 3 * STRIP; bytes -= 3 * STRIP, p += 3 * STRIP) {
        uint64_t second = 0, third = 0;
        for (int64_t i = 0; i < STRIP; i += 8) {
            crc = _mm_crc32_u64(crc, word(p + i));
            second = _mm_crc32_u64(second, word(p + STRIP + i));
            third = _mm_crc32_u64(third, word(p + 2 * STRIP + i));
        }
        crc = multiply(SHIFT, uint32_t(crc)) ^ second;
        crc = multiply(SHIFT, uint32_t(crc)) ^ third;
    }
    for (; bytes >= 8; bytes -= 8, p += 8) crc = _mm_crc32_u64(crc, word(p));
    for (; bytes > 0; bytes--, p++) crc = _mm_crc32_u8(uint32_t(crc), static_cast<unsigned char>(*p));
    return ~uint32_t(crc);
}
#else
static bool has_instruction() { return false; }
static uint32_t by_instruction(uint32_t, const void*, int64_t) { return 0; }
#endif

uint32_t crc32c_table(uint32_t crc, const void* data, int64_t bytes) {
    auto* p = static_cast<const unsigned char*>(data);
    auto& t = TABLES;
    crc = ~crc;
    for (; bytes >= 8; bytes -= 8, p += 8) {
        uint64_t x;
        memcpy(&x, p, 8);
        x ^= crc;
        crc = t[7][x & 255] ^ t[6][x >> 8 & 255] ^ t[5][x >> 16 & 255] ^ t[4][x >> 24 & 255] ^ t[3][x >> 32 & 255] ^
              t[2][x >> 40 & 255] ^ t[1][x >> 48 & 255] ^ t[0][x >> 56];
    }
    for (; bytes > 0; bytes--, p++) crc = (crc >> 8) ^ t[0][(crc ^ *p) & 255];
    return ~crc;
}

uint32_t crc32c(uint32_t crc, const void* data, int64_t bytes) {
    static const bool instruction = has_instruction();
    return instruction ? by_instruction(crc, data, bytes) : crc32c_table(crc, data, bytes);
}

uint32_t crc32c_combine(uint32_t first, uint32_t second, int64_t bytes) {
    return multiply(zeros(bytes), first) ^ second;
}

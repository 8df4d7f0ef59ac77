// decode.cpp - blocks of a GGUF file to floats.
//
// A block is a scale d (fp16), in some formats an offset m, and small integers q: x = d q + m. The
// "K" formats have 256 numbers a block, whose sub-blocks of 16 or 32 have integers s and t as
// scales and offsets: x = d s q - m t.
// The products d s q have at most 24 significant bits, so they are exact in a float and the sum is
// rounded once: the order of operations and FMAs do not change the bits.
// Layouts: ggml-common.h of llama.cpp. Bound by memory: reads 0.6 to 2 bytes and writes 4 a number.
#include "quant.h"

#include <cstring>

#include "base/element.h"
#include "base/half.h"

namespace {
float half_at(const uint8_t* p) {
    uint16_t bits;
    memcpy(&bits, p, 2);
    return half_to_float(bits);
}

// ---- 32 numbers: d [m] [a fifth bit of each] [4 or 8 bits of each; a byte has numbers j, 16 + j]

void decode_q8_0(const uint8_t* b, float* out) {
    const float d = half_at(b);
    for (int j = 0; j < 32; j++) out[j] = d * float(int8_t(b[2 + j]));
}
void decode_q4_0(const uint8_t* b, float* out) {
    const float d = half_at(b);
    for (int j = 0; j < 16; j++) {
        out[j] = d * float((b[2 + j] & 15) - 8);
        out[16 + j] = d * float((b[2 + j] >> 4) - 8);
    }
}
void decode_q4_1(const uint8_t* b, float* out) {
    const float d = half_at(b), m = half_at(b + 2);
    for (int j = 0; j < 16; j++) {
        out[j] = d * float(b[4 + j] & 15) + m;
        out[16 + j] = d * float(b[4 + j] >> 4) + m;
    }
}
// The fifth bit of number j is bit j of a 32-bit word.
void fifths(const uint8_t* bits, const uint8_t* quads, int q[32]) {
    uint32_t high;
    memcpy(&high, bits, 4);
    for (int j = 0; j < 16; j++) {
        q[j] = (quads[j] & 15) | int(high >> j & 1) << 4;
        q[16 + j] = quads[j] >> 4 | int(high >> (16 + j) & 1) << 4;
    }
}
void decode_q5_0(const uint8_t* b, float* out) {
    const float d = half_at(b);
    int q[32];
    fifths(b + 2, b + 6, q);
    for (int j = 0; j < 32; j++) out[j] = d * float(q[j] - 16);
}
void decode_q5_1(const uint8_t* b, float* out) {
    const float d = half_at(b), m = half_at(b + 2);
    int q[32];
    fifths(b + 4, b + 8, q);
    for (int j = 0; j < 32; j++) out[j] = d * float(q[j]) + m;
}
void decode_iq4_nl(const uint8_t* b, float* out) {
    static constexpr float LEVELS[16] = {-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113};
    const float d = half_at(b);
    for (int j = 0; j < 16; j++) {
        out[j] = d * LEVELS[b[2 + j] & 15];
        out[16 + j] = d * LEVELS[b[2 + j] >> 4];
    }
}

// ---- 256 numbers --------------------------------------------------------------------------------

// A byte of `bits` holds a number of each of four rows of 32: row r in bits 2 r and 2 r + 1.
int two_bits(const uint8_t* bits, int i) { return bits[i / 128 * 32 + i % 32] >> i % 128 / 32 * 2 & 3; }

// Sub-blocks of 16: scale in a byte's low half, offset in its high.    Layout: scales[16] q[64] d m
void decode_q2_k(const uint8_t* b, float* out) {
    const float d = half_at(b + 80), m = half_at(b + 82);
    for (int s = 0; s < 16; s++) {
        const float scale = d * float(b[s] & 15), offset = m * float(b[s] >> 4);
        for (int i = 16 * s; i < 16 * s + 16; i++) out[i] = scale * float(two_bits(b + 16, i)) - offset;
    }
}
// Sub-blocks of 16 with scales of 6 bits; if the third bit of a number is 0, 4 is subtracted.
// Layout: third[32] q[64] scales[12] d
void decode_q3_k(const uint8_t* b, float* out) {
    const float d = half_at(b + 108);
    const uint8_t* scales = b + 96;
    for (int s = 0; s < 16; s++) {
        const int low = s < 8 ? scales[s] & 15 : scales[s - 8] >> 4, high = scales[8 + s % 4] >> s / 4 * 2 & 3;
        const float scale = d * float((low | high << 4) - 32);
        for (int i = 16 * s; i < 16 * s + 16; i++) {
            const int third = b[i % 32] >> i / 32 & 1;
            out[i] = scale * float(two_bits(b + 32, i) - 4 + 4 * third);
        }
    }
}
// Eight scales and eight offsets of 6 bits in 12 bytes. Sub-blocks 0 to 3 use the low 6 bits of the
// first 8 bytes; the others use 4 bits of the last 4 bytes, and the high 2 bits of the first 8.
struct Scales {
    int scale[8], offset[8];
};
Scales unpack_scales(const uint8_t* p) {
    Scales s;
    for (int j = 0; j < 4; j++) {
        s.scale[j] = p[j] & 63;
        s.offset[j] = p[4 + j] & 63;
        s.scale[4 + j] = (p[8 + j] & 15) | p[j] >> 6 << 4;
        s.offset[4 + j] = p[8 + j] >> 4 | p[4 + j] >> 6 << 4;
    }
    return s;
}
// Sub-blocks of 32, two to a row of 32 bytes.    Layout: d m scales[12] q[128]
void decode_q4_k(const uint8_t* b, float* out) {
    const float d = half_at(b), m = half_at(b + 2);
    const Scales s = unpack_scales(b + 4);
    for (int j = 0; j < 8; j++) {
        const float scale = d * float(s.scale[j]), offset = m * float(s.offset[j]);
        const uint8_t* q = b + 16 + j / 2 * 32;
        for (int i = 0; i < 32; i++) out[32 * j + i] = scale * float(q[i] >> j % 2 * 4 & 15) - offset;
    }
}
// q4_k with a fifth bit for each number: for number i of sub-block j, it is bit j of fifth[i].
// Layout: d m scales[12] fifth[32] q[128]
void decode_q5_k(const uint8_t* b, float* out) {
    const float d = half_at(b), m = half_at(b + 2);
    const Scales s = unpack_scales(b + 4);
    for (int j = 0; j < 8; j++) {
        const float scale = d * float(s.scale[j]), offset = m * float(s.offset[j]);
        const uint8_t *fifth = b + 16, *q = b + 48 + j / 2 * 32;
        for (int i = 0; i < 32; i++)
            out[32 * j + i] = scale * float((q[i] >> j % 2 * 4 & 15) | (fifth[i] >> j & 1) << 4) - offset;
    }
}
// Sub-blocks of 16 with 8-bit scales.    Layout: low[128] (rows of 64) high[64] scales[16] d
void decode_q6_k(const uint8_t* b, float* out) {
    const float d = half_at(b + 208);
    for (int s = 0; s < 16; s++) {
        const float scale = d * float(int8_t(b[192 + s]));
        for (int i = 16 * s; i < 16 * s + 16; i++) {
            const int low = b[i / 128 * 64 + i % 64] >> i % 128 / 64 * 4 & 15;
            out[i] = scale * float((low | two_bits(b + 128, i) << 4) - 32);
        }
    }
}

// Returns whether n numbers are finite. Infinities and NaNs have an exponent of ones: adding the
// exponent's lowest bit carries into the sign. There is no branch, so that the loop is vectorised.
template <class Bits> bool finite_numbers(const void* from, int64_t n, Bits exponent, Bits lowest) {
    Bits carried = 0;
    for (int64_t i = 0; i < n; i++) {
        Bits bits;
        memcpy(&bits, static_cast<const char*>(from) + i * int64_t(sizeof bits), sizeof bits);
        carried = Bits(carried | (Bits(bits & exponent) + lowest));
    }
    return carried >> (8 * sizeof(Bits) - 1) == 0;
}

template <void (*decode)(const uint8_t*, float*)>
void decode_all(const BlockFormat& format, const void* blocks, int64_t n, float* out) {
    auto* b = static_cast<const uint8_t*>(blocks);
    for (int64_t i = 0; i < n; i += format.numbers, b += format.bytes) decode(b, out + i);
}
template <class Widen> void widen(const void* from, int64_t n, float* out, Widen to_float) {
    for (int64_t i = 0; i < n; i++) {
        uint16_t bits;    // may be unaligned
        memcpy(&bits, static_cast<const char*>(from) + 2 * i, 2);
        out[i] = to_float(bits);
    }
}
}    // namespace

bool all_finite(const BlockFormat& format, const void* blocks, int64_t n) {
    if (format.type == BlockType::f32) return finite_numbers<uint32_t>(blocks, n, 0x7F800000, 0x00800000);
    if (format.type == BlockType::f16) return finite_numbers<uint16_t>(blocks, n, 0x7C00, 0x0400);
    if (format.type == BlockType::bf16) return finite_numbers<uint16_t>(blocks, n, 0x7F80, 0x0080);
    // All numbers of a block except d and m (format.halves) are integers.
    bool finite = true;
    for (int64_t i = 0; i < n / format.numbers; i++)
        for (int at : format.halves)
            finite &=
                finite_numbers<uint16_t>(static_cast<const char*>(blocks) + i * format.bytes + at, 1, 0x7C00, 0x0400);
    return finite;
}

float largest_size(const float* x, int64_t n) {    // by bits: vectors compare integers
    int32_t most = 0;
    for (int64_t i = 0; i < n; i++) {
        int32_t bits;
        memcpy(&bits, x + i, 4);
        bits &= INT32_MAX;
        most = bits > most ? bits : most;
    }
    float size;
    memcpy(&size, &most, 4);
    return size;
}

void dequantise(const BlockFormat& format, const void* blocks, int64_t n, float* out) {
    CHECK(n % format.numbers == 0, "%s: %lld numbers", format.name, (long long)n);
    switch (format.type) {
        case BlockType::f32: memcpy(out, blocks, size_t(n) * 4); return;
        case BlockType::f16: return widen(blocks, n, out, half_to_float);
        case BlockType::bf16: return widen(blocks, n, out, [](uint16_t bits) { return to_float(bf16{bits}); });
        case BlockType::q4_0: return decode_all<decode_q4_0>(format, blocks, n, out);
        case BlockType::q4_1: return decode_all<decode_q4_1>(format, blocks, n, out);
        case BlockType::q5_0: return decode_all<decode_q5_0>(format, blocks, n, out);
        case BlockType::q5_1: return decode_all<decode_q5_1>(format, blocks, n, out);
        case BlockType::q8_0: return decode_all<decode_q8_0>(format, blocks, n, out);
        case BlockType::q2_k: return decode_all<decode_q2_k>(format, blocks, n, out);
        case BlockType::q3_k: return decode_all<decode_q3_k>(format, blocks, n, out);
        case BlockType::q4_k: return decode_all<decode_q4_k>(format, blocks, n, out);
        case BlockType::q5_k: return decode_all<decode_q5_k>(format, blocks, n, out);
        case BlockType::q6_k: return decode_all<decode_q6_k>(format, blocks, n, out);
        case BlockType::iq4_nl: return decode_all<decode_iq4_nl>(format, blocks, n, out);
    }
}

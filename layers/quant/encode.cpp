// encode.cpp - floats to the blocks of a GGUF file. decode.cpp has their layouts.
//
// For given integers q the scale with the least squared error is a ratio of sums, and for a given
// scale the best integers come from rounding. So a search begins with several scales near the
// largest number divided by the largest integer, alternates these two steps, and keeps the scale
// with the least error. A sub-block of the K formats first gets a scale as a float, which is
// rounded to an integer times the block's d. Then its numbers are rounded again with this scale.
// Bound by arithmetic: some hundred operations a number. encode_search.cpp does the searches and
// the last rounding by vectors; where a vector search cannot decide, the loops here do.
#include <algorithm>
#include <cmath>
#include <cstring>

#include "base/element.h"
#include "base/half.h"
#include "base/pool.h"
#include "layers/cpu.h"
#include "encode_search.h"
#include "quant.h"

namespace {
void put_half(uint8_t* p, float x) {
    const uint16_t bits = float_to_half(x);
    memcpy(p, &bits, 2);
}
float rounded_half(float x) { return half_to_float(float_to_half(x)); }
float inverse(float d) {
    const float r = 1 / d;
    return std::isfinite(r) ? r : 0;
}

// Rounds x to the nearest integer in [lo, hi], NaN to lo. The sum 1.5 * 2^23 + x has no bits below
// 1, so the addition rounds. Unlike lrintf it is vectorised.
float rounded(float x, float lo, float hi) {
    constexpr float ROUND = 0x1.8p23f;
    x = x > lo ? x : lo;
    x = x < hi ? x : hi;
    return (x + ROUND) - ROUND;
}

// Converts x to bytes: (x - m) inv, rounded to an integer in [lo, hi], minus lo.
void to_bytes(const float* x, int n, float m, float inv, float lo, float hi, uint8_t* q, const QuantiseSearch& search) {
    if (search.bytes) return search.bytes(x, n, m, inv, lo, hi, q);
    for (int i = 0; i < n; i++) q[i] = uint8_t(rounded((x[i] - m) * inv, lo, hi) - lo);
}

float largest_magnitude(const float* x, int n) {    // result keeps its sign
    float most = 0;
    for (int i = 0; i < n; i++)
        if (std::fabs(x[i]) > std::fabs(most)) most = x[i];
    return most;
}

// ---- x ~ d q ------------------------------------------------------------------------------------

// The scale for N numbers and integers in [LO, -LO - 1]: d = sum(x q) / sum(q q). The error is
// sum(x x) - sum(x q)^2 / sum(q q), so the largest gain sum(x q)^2 / sum(q q) wins.
template <int N, int LO> float find_scale(const float* x, const QuantiseSearch& search) {
    float best = 0, best_gain = 0;
    if constexpr (N == 16) {
        if (search.scale16 && search.scale16(x, &best)) return best;
    } else if (search.scale32 && search.scale32(x, LO, &best)) return best;
    const float most = largest_magnitude(x, N);
    if (!(std::fabs(most) > 0)) return 0;
    best = 0;
    // The largest number maps to LO + step / 8 or, with the other sign, to -LO - step / 8, before
    // it is clamped to LO .. -LO - 1.
    for (const float side : {-1.0f, 1.0f})
        for (int step = -6; step <= 10; step += 2) {
            float inv = side * (float(-LO) - float(step) / 8) / most;
            for (int iteration = 0; iteration < 2; iteration++) {
                float xq = 0, qq = 0;
                for (int i = 0; i < N; i++) {
                    const float q = rounded(x[i] * inv, LO, -LO - 1);
                    xq += x[i] * q;
                    qq += q * q;
                }
                if (!(qq > 0)) break;
                if (xq * xq > best_gain * qq) best_gain = xq * xq / qq, best = xq / qq;
                inv = inverse(xq / qq);
            }
        }
    return best;
}

template <int BITS> void put_fifths(uint8_t* bits, uint8_t* quads, const uint8_t* q) {
    for (int j = 0; BITS == 5 && j < 32; j += 8) {
        uint64_t eight;    // product's highest byte gathers every bit 4
        memcpy(&eight, q + j, 8);
        bits[j / 8] = uint8_t((eight >> 4 & 0x0101010101010101) * 0x0102040810204080 >> 56);
    }
    for (int j = 0; j < 16; j++) quads[j] = uint8_t((q[j] & 15) | q[16 + j] << 4);
}

template <int BITS> void encode_scaled(const float* x, uint8_t* b, const QuantiseSearch& search) {    // Q4_0, Q5_0
    constexpr int LO = -(1 << (BITS - 1));
    const float d = find_scale<32, LO>(x, search), inv = inverse(rounded_half(d));
    uint8_t q[32];
    to_bytes(x, 32, 0, inv, LO, -LO - 1, q, search);
    put_half(b, d);
    put_fifths<BITS>(b + 2, b + (BITS == 5 ? 6 : 2), q);
}

// Gives the same bits as ggml: no search, halves rounded away from zero.
void encode_q8_0(const float* x, uint8_t* b, const QuantiseSearch& search) {
    float found;
    if (search.q8_0 && search.q8_0(x, &found, b + 2)) return put_half(b, found);
    const float most = largest_size(x, 32);
    const float d = (most == most ? most : std::fabs(largest_magnitude(x, 32))) / 127, inv = inverse(d);
    put_half(b, d);
    // A half is added first, as the conversion to integers rounds towards zero.
    int32_t whole[32];
    for (int j = 0; j < 32; j++) {
        float q = x[j] * inv;
        q = q > -127 ? q : -127;
        q = q < 127 ? q : 127;
        whole[j] = int32_t(q + std::copysign(0.5f, q));
    }
    for (int j = 0; j < 32; j++) b[2 + j] = uint8_t(whole[j]);
}

void encode_q6_k(const float* x, uint8_t* b, const QuantiseSearch& search) {
    float scales[16];
    for (int s = 0; s < 16; s++) scales[s] = find_scale<16, -32>(x + 16 * s, search);
    const float d = rounded_half(largest_magnitude(scales, 16) / -128), inv = inverse(d);
    uint8_t q[256];
    put_half(b + 208, d);
    for (int s = 0; s < 16; s++) {
        const float scale = rounded(scales[s] * inv, -128, 127), inv_scale = inverse(d * scale);
        b[192 + s] = uint8_t(int8_t(scale));
        to_bytes(x + 16 * s, 16, 0, inv_scale, -32, 31, q + 16 * s, search);
    }
    for (int half = 0; half < 2; half++) {
        const uint8_t* from = q + 128 * half;
        uint8_t *low = b + 64 * half, *high = b + 128 + 32 * half;
        for (int i = 0; i < 64; i++) low[i] = uint8_t((from[i] & 15) | from[64 + i] << 4);
        for (int i = 0; i < 32; i++)
            high[i] = uint8_t(from[i] >> 4 | from[32 + i] >> 4 << 2 | from[64 + i] >> 4 << 4 | from[96 + i] >> 4 << 6);
    }
}

// ---- x ~ d q + m --------------------------------------------------------------------------------

// Squared error of 32 numbers that are stored as d q + m (`line`), each with the best integer q in
// [0, most].
float line_error(const float* x, LinearFit line, float most) {
    const float inv = inverse(line.d);
    float error = 0;
    for (int i = 0; i < 32; i++) {
        const float off = x[i] - (line.d * rounded((x[i] - line.m) * inv, 0, most) + line.m);
        error += off * off;
    }
    return error;
}

// Returns the line with the least squared error for the integers that `line` gives, with d > 0 and,
// if `below`, m <= 0; returns `line` if none exists.
LinearFit refit(const float* x, LinearFit line, float most, bool below) {
    const float inv = inverse(line.d);
    float q1 = 0, q2 = 0, x1 = 0, xq = 0;
    for (int i = 0; i < 32; i++) {
        const float q = rounded((x[i] - line.m) * inv, 0, most);
        q1 += q;
        q2 += q * q;
        x1 += x[i];
        xq += x[i] * q;
    }
    const float det = 32 * q2 - q1 * q1;
    if (!(det > 0)) return line;
    LinearFit fit = {(32 * xq - q1 * x1) / det, (q2 * x1 - q1 * xq) / det};
    if (below && fit.m > 0) fit = {xq / q2, 0};
    return fit.d > 0 ? fit : line;
}

LinearFit find_line(const float* x, float most, bool below, const QuantiseSearch& search) {
    LinearFit best;
    if (search.line && search.line(x, most, below, &best)) return best;
    float low = *std::min_element(x, x + 32), high = *std::max_element(x, x + 32);
    if (below) low = std::min(low, 0.0f);
    best = {0, low};
    if (!(high > low)) return best;
    float best_error = line_error(x, best = {(high - low) / most, low}, most);
    // The candidates' ranges omit up to 27 % of the width at either end: one outlier must not cost
    // the other numbers bits.
    for (int cut_low = 0; cut_low < 4; cut_low++)
        for (int cut_high = 0; cut_high < 4; cut_high++) {
            const float width = high - low, from = low + width * 0.06f * float(cut_low * cut_low) / 2;
            LinearFit line = {(high - width * 0.06f * float(cut_high * cut_high) / 2 - from) / most, from};
            for (int iteration = 0; iteration < 3; iteration++) {
                line = refit(x, line, most, below);
                const float error = line_error(x, line, most);
                if (error < best_error) best_error = error, best = line;
            }
        }
    return best;
}

template <int BITS> void encode_line(const float* x, uint8_t* b, const QuantiseSearch& search) {    // Q4_1, Q5_1
    constexpr float MOST = (1 << BITS) - 1;
    const LinearFit line = find_line(x, MOST, false, search);
    const float m = rounded_half(line.m), inv = inverse(rounded_half(line.d));
    uint8_t q[32];
    to_bytes(x, 32, m, inv, 0, MOST, q, search);
    put_half(b, line.d);
    put_half(b + 2, line.m);
    put_fifths<BITS>(b + 4, b + (BITS == 5 ? 8 : 4), q);
}

// Finds the integers (s, t) at or next to `near` whose line {d s, -m t} has the least error.
LinearFit find_pair(const float* x, float d, float m, LinearFit near, const QuantiseSearch& search) {
    LinearFit best = near;
    if (search.pair && search.pair(x, d, m, near, &best)) return best;
    float best_error = INFINITY;
    for (float s = std::max(near.d - 1, 0.0f); s <= std::min(near.d + 1, 63.0f); s++)
        for (float t = std::max(near.m - 1, 0.0f); t <= std::min(near.m + 1, 63.0f); t++)
            if (const float e = line_error(x, {d * s, -m * t}, 15); e < best_error) best_error = e, best = {s, t};
    return best;
}

void encode_q4_k(const float* x, uint8_t* b, const QuantiseSearch& search) {
    LinearFit lines[8];
    float most_d = 0, most_m = 0;
    for (int j = 0; j < 8; j++) {
        lines[j] = find_line(x + 32 * j, 15, true, search);
        most_d = std::max(most_d, lines[j].d);
        most_m = std::max(most_m, -lines[j].m);
    }
    const float d = rounded_half(most_d / 63), m = rounded_half(most_m / 63);
    uint8_t q[256];
    memset(b + 4, 0, 12);
    put_half(b, d);
    put_half(b + 2, m);
    for (int j = 0; j < 8; j++) {
        const LinearFit near = {rounded(lines[j].d * inverse(d), 0, 63), rounded(-lines[j].m * inverse(m), 0, 63)};
        const LinearFit best = find_pair(x + 32 * j, d, m, near, search);
        const int scale = int(best.d), offset = int(best.m);
        uint8_t* p = b + 4 + j % 4;    // see Scales in decode.cpp
        if (j < 4) p[0] |= uint8_t(scale), p[4] |= uint8_t(offset);
        else
            p[0] |= uint8_t(scale >> 4 << 6), p[4] |= uint8_t(offset >> 4 << 6),
                p[8] |= uint8_t((scale & 15) | (offset & 15) << 4);
        to_bytes(x + 32 * j, 32, -m * best.m, inverse(d * best.d), 0, 15, q + 32 * j, search);
    }
    for (int j = 0; j < 4; j++)
        for (int i = 0; i < 32; i++) b[16 + 32 * j + i] = uint8_t(q[64 * j + i] | q[64 * j + 32 + i] << 4);
}

typedef void (*Encode)(const float* x, uint8_t* block, const QuantiseSearch& search);
Encode encoder(const BlockFormat& format) {
    switch (format.type) {
        case BlockType::f32: return [](const float* x, uint8_t* b, const QuantiseSearch&) { memcpy(b, x, 4); };
        case BlockType::f16: return [](const float* x, uint8_t* b, const QuantiseSearch&) { put_half(b, *x); };
        case BlockType::bf16:
            return [](const float* x, uint8_t* b, const QuantiseSearch&) {
                const bf16 as_bf16 = to_bf16(*x);
                memcpy(b, &as_bf16, 2);
            };
        case BlockType::q4_0: return encode_scaled<4>;
        case BlockType::q5_0: return encode_scaled<5>;
        case BlockType::q4_1: return encode_line<4>;
        case BlockType::q5_1: return encode_line<5>;
        case BlockType::q8_0: return encode_q8_0;
        case BlockType::q4_k: return encode_q4_k;
        case BlockType::q6_k: return encode_q6_k;
        default: return nullptr;
    }
}
}    // namespace

bool can_quantise(const BlockFormat& format) { return encoder(format) != nullptr; }

// Weak: null on other architectures, which lack these instruction sets.
namespace avx2 {
[[gnu::weak]] QuantiseSearch quantise_search();
}
namespace avx512 {
[[gnu::weak]] QuantiseSearch quantise_search();
}
namespace avx512bf16 {
[[gnu::weak]] QuantiseSearch quantise_search();
}
QuantiseSearch quantise_search(Isa isa) {
    QuantiseSearch (*const all[ISA_COUNT])() = {base::quantise_search, avx2::quantise_search, avx512::quantise_search,
                                                avx512bf16::quantise_search};
    return all[int(isa)]();
}

void quantise(const BlockFormat& format, const float* x, int64_t n, void* blocks) {
    static const QuantiseSearch search = quantise_search(cpu_isa());
    quantise(format, x, n, blocks, search);
}
void quantise(const BlockFormat& format, const float* x, int64_t n, void* blocks, const QuantiseSearch& search) {
    const Encode encode = encoder(format);
    CHECK(encode && n % format.numbers == 0, "%s: %lld numbers", format.name, (long long)n);
    auto* b = static_cast<uint8_t*>(blocks);
    const int64_t all = n / format.numbers, chunks = n > 1 << 15 ? std::min<int64_t>(all, 8 * pool_threads()) : 1;
    each_chunk(chunks, [&](int64_t chunk, int) {
        for (int64_t i = all * chunk / chunks; i < all * (chunk + 1) / chunks; i++)
            encode(x + i * format.numbers, b + i * format.bytes, search);
    });
}

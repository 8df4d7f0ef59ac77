// half.h - IEEE half precision (fp16) as 16 bits, to and from float.
#pragma once
#include <cstdint>
#include <cstring>

// Converts exactly, and without branches, so that loops are vectorised. The multiplication by 2^112
// corrects the exponent's bias and normalises subnormals.
inline float half_to_float(uint16_t h) {
    const uint32_t sign = uint32_t(h & 0x8000) << 16, rest = uint32_t(h & 0x7FFF) << 13;
    float f;
    memcpy(&f, &rest, 4);
    f *= 0x1p112f;
    uint32_t bits;
    memcpy(&bits, &f, 4);
    bits = sign | (rest >= 31u << 23 ? rest | 0x7F800000u : bits);
    memcpy(&f, &bits, 4);
    return f;
}

// Rounds to nearest, ties to even; 65520 and more become infinity; NaN stays NaN.
inline uint16_t float_to_half(float x) {
    uint32_t bits;
    memcpy(&bits, &x, 4);
    const uint32_t sign = bits >> 16 & 0x8000;
    bits &= 0x7FFFFFFF;
    if (bits >= 0x47800000) return uint16_t(sign | (bits > 0x7F800000 ? 0x7E00 : 0x7C00));    // 2^16 or more
    if (bits >= 0x38800000) return uint16_t(sign | (bits - 0x38000000 + 0xFFF + (bits >> 13 & 1)) >> 13);
    float f;    // below 2^-14: 1/2 + x rounds x to 2^-24
    memcpy(&f, &bits, 4);
    f += 0.5f;
    memcpy(&bits, &f, 4);
    return uint16_t(sign | (bits - 0x3F000000));
}

// fp8.cuh - the 8-bit floats of tensor cores as storage types, with equal results on the host, the
// GPU and the emulator. Micikevicius et al. 2022, "FP8 formats for deep learning". Rounds to
// nearest, ties to even; larger numbers and infinity become the largest one, and every NaN becomes
// 0x7f, as by PTX's cvt.rn.satfinite.
#pragma once
#include "base/element.h"

// Sign, 4 bits of exponent, 3 of mantissa; largest number 448; no infinity, NaN is 0x7f and 0xff.
struct e4m3 {
    static constexpr int MANTISSA = 3, BIAS = 7, MOST = 0x7e;    // MOST: code of the largest number
    uint8_t bits;
};
// Sign, 5 bits of exponent, 2 of mantissa; largest number 57344; infinity is 0x7c, NaN above.
struct e5m2 {
    static constexpr int MANTISSA = 2, BIAS = 15, MOST = 0x7b;
    uint8_t bits;
};
template <> inline constexpr float LARGEST<e4m3> = 448;
template <> inline constexpr float LARGEST<e5m2> = 57344;

template <class F> HOST_DEVICE inline float fp8_to_float(F x) {
    const uint32_t code = x.bits & 0x7f, sign = uint32_t(x.bits & 0x80) << 24;
    const bool infinite = F::MANTISSA == 2 && code == 0x7c, nan = code > F::MOST && !infinite;
    uint32_t u = code << (23 - F::MANTISSA);
    float f;
    memcpy(&f, &u, 4);
    f *= F::BIAS == 7 ? 0x1p120f : 0x1p112f;    // 2^(127 - BIAS); denormal codes start as denormal floats
    memcpy(&u, &f, 4);
    u = (nan ? 0x7fc00000 : infinite ? 0x7f800000 : u) | sign;
    memcpy(&f, &u, 4);
    return f;
}
HOST_DEVICE inline float to_float(e4m3 x) { return fp8_to_float(x); }
HOST_DEVICE inline float to_float(e5m2 x) { return fp8_to_float(x); }

template <class F> HOST_DEVICE inline F fp8_from_float(float x) {
    constexpr int SHIFT = 23 - F::MANTISSA, LEAST = 128 - F::BIAS;    // LEAST: float exponent of the smallest normal
    uint32_t u;
    memcpy(&u, &x, 4);
    const uint32_t a = u & 0x7fffffff, sign = u >> 24 & 0x80;
    if (a > 0x7f800000) return {0x7f};
    uint32_t code;
    if (a >> 23 >= LEAST) {
        code = ((a + (1u << (SHIFT - 1)) - 1 + (a >> SHIFT & 1)) >> SHIFT) - ((LEAST - 1) << F::MANTISSA);
    } else {    // below the smallest normal: adding 2^23 rounds
        float scaled;
        memcpy(&scaled, &a, 4);
        scaled = scaled * (F::BIAS == 7 ? 0x1p9f : 0x1p16f) + 0x1p23f;
        memcpy(&code, &scaled, 4);
        code &= 0xff;
    }
    return {uint8_t((code > F::MOST ? F::MOST : code) | sign)};
}
// F is also the type's name in PTX. The instruction converts a pair; the code is its low byte.
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 890
#define FP8_FROM_FLOAT(F)                                                              \
    uint16_t pair;                                                                     \
    asm("cvt.rn.satfinite." #F "x2.f32 %0, %1, %2;" : "=h"(pair) : "f"(0.0f), "f"(x)); \
    return F { uint8_t(pair) }
#else
#define FP8_FROM_FLOAT(F) return fp8_from_float<F>(x)
#endif
template <> HOST_DEVICE inline e4m3 from_float<e4m3>(float x) { FP8_FROM_FLOAT(e4m3); }
template <> HOST_DEVICE inline e5m2 from_float<e5m2>(float x) { FP8_FROM_FLOAT(e5m2); }
#undef FP8_FROM_FLOAT

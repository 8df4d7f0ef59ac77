// element.h - element types of buffers, and bfloat16 as a storage type, equal on host, GPU and the
// emulated GPU (test/cuda_on_cpu/). Arithmetic is done in float.
#pragma once
#include <cstdint>
#include <cstring>

#include "common.h"

// packed: elements of several formats (layers/quant/packed.h), without a fixed size. uint8: codes.
enum class Element { f32, f64, bf16, fp8, int8, uint8, packed };
constexpr int64_t element_bytes(Element e) {
    return e == Element::f64 ? 8 : e == Element::f32 ? 4 : e == Element::bf16 ? 2 : e == Element::packed ? 0 : 1;
}

struct bf16 {
    uint16_t bits;
};    // upper half of a float
// Elements of a quantised key/value cache, multiplied by their row's factor. fp8 has a sign, 4 bits
// of exponent e and 3 of mantissa m, as E4M3, but no subnormals and no NaN: its absolute value is
// 2^(e-7) (1 + m/8), or 0 if e = m = 0.
struct fp8 {
    uint8_t bits;
};
struct int8 {
    int8_t value;
};

HOST_DEVICE inline float to_float(double x) { return float(x); }
HOST_DEVICE inline float to_float(float x) { return x; }
HOST_DEVICE inline float to_float(bf16 x) {
    const uint32_t wide = uint32_t(x.bits) << 16;
    float f;
    memcpy(&f, &wide, 4);
    return f;
}

// Rounds to nearest, ties to even; every NaN becomes 0x7fff, as by the GPU's cvt.rn.bf16.f32.
HOST_DEVICE inline bf16 to_bf16(float x) {
#ifdef __CUDA_ARCH__
    bf16 out;
    asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(out.bits) : "f"(x));
    return out;
#else
    uint32_t u;
    memcpy(&u, &x, 4);
    if ((u & 0x7fffffff) > 0x7f800000) return {0x7fff};
    return {uint16_t((u + 0x7fff + (u >> 16 & 1)) >> 16)};
#endif
}

HOST_DEVICE inline float to_float(fp8 x) {
    const uint32_t code = x.bits & 0x7f, u = (code ? (code + 960) << 20 : 0) | uint32_t(x.bits & 0x80) << 24;
    float f;
    memcpy(&f, &u, 4);
    return f;
}
HOST_DEVICE inline float to_float(int8 x) { return float(x.value); }
// Rounds to nearest, ties to even; too large values become the largest.
HOST_DEVICE inline fp8 to_fp8(float x) {
    uint32_t u;
    memcpy(&u, &x, 4);
    const uint32_t a = u & 0x7fffffff;
    const int code = int((a + 0x7ffff + (a >> 20 & 1)) >> 20) - 960;
    return {uint8_t((code < 0 ? 0 : code > 127 ? 127 : code) | (u >> 24 & 0x80))};
}
HOST_DEVICE inline int8 to_int8(float x) {
    const float magic = 0x1.8p23f, most = x > 127 ? 127 : x < -127 ? -127 : x == x ? x : 0;
    return {int8_t(most + magic - magic)};    // adding magic rounds to an integer
}

template <class T> HOST_DEVICE inline T from_float(float x);
template <> HOST_DEVICE inline double from_float<double>(float x) { return double(x); }
template <> HOST_DEVICE inline float from_float<float>(float x) { return x; }
template <> HOST_DEVICE inline bf16 from_float<bf16>(float x) { return to_bf16(x); }
template <> HOST_DEVICE inline fp8 from_float<fp8>(float x) { return to_fp8(x); }
template <> HOST_DEVICE inline int8 from_float<int8>(float x) { return to_int8(x); }

template <class T> constexpr Element element_of = sizeof(T) == 8   ? Element::f64
                                                  : sizeof(T) == 4 ? Element::f32
                                                                   : Element::bf16;
template <> inline constexpr Element element_of<fp8> = Element::fp8;
template <> inline constexpr Element element_of<int8> = Element::int8;

// Largest value of a type whose rows have factors; 0: no factors. A row's factor is its largest
// absolute value divided by LARGEST. A row whose values are all at most TINY becomes zero.
template <class T> constexpr float LARGEST = 0;
template <> inline constexpr float LARGEST<fp8> = 480;
template <> inline constexpr float LARGEST<int8> = 127;
constexpr float TINY = 1e-30f;

// Convert n elements of any type to and from floats, rounding to nearest. Host only.
inline void to_floats(float* to, const void* from, Element type, int64_t n) {
    auto convert = [&](auto* x) {
        for (int64_t i = 0; i < n; i++) to[i] = to_float(x[i]);
    };
    if (type == Element::uint8) {
        for (int64_t i = 0; i < n; i++) to[i] = float(static_cast<const uint8_t*>(from)[i]);
        return;
    }
    if (type == Element::f32) convert(static_cast<const float*>(from));
    else if (type == Element::f64) convert(static_cast<const double*>(from));
    else convert(static_cast<const bf16*>(from));
}
inline void from_floats(void* to, Element type, const float* from, int64_t n) {
    auto convert = [&]<class X>(X* x) {
        for (int64_t i = 0; i < n; i++) x[i] = from_float<X>(from[i]);
    };
    if (type == Element::uint8) {
        for (int64_t i = 0; i < n; i++) static_cast<uint8_t*>(to)[i] = uint8_t(from[i]);
        return;
    }
    if (type == Element::f32) convert(static_cast<float*>(to));
    else if (type == Element::f64) convert(static_cast<double*>(to));
    else convert(static_cast<bf16*>(to));
}

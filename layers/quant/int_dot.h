// int_dot.h - small integers in vectors: 4 bytes a lane, and their products with four bytes of x.
#pragma once
#include "layers/simd/vec.h"

namespace ISA {
typedef uint8_t vq __attribute__((vector_size(4 * VW)));
typedef uint8_t vq_unaligned __attribute__((vector_size(4 * VW), aligned(1), may_alias));
typedef uint16_t vq16 __attribute__((vector_size(4 * VW)));
typedef int16_t vi16 __attribute__((vector_size(4 * VW)));

INLINE vq load_quants(const uint8_t* p) { return *reinterpret_cast<const vq_unaligned*>(p); }
typedef int32_t vi_unaligned __attribute__((vector_size(4 * VW), aligned(4), may_alias));
INLINE vi load_ints(const int32_t* p) { return *reinterpret_cast<const vi_unaligned*>(p); }
INLINE vi whole(int i) { return i - vi{}; }
// Shift bytes within 16-bit lanes: callers must mask out bits that cross into another byte.
INLINE vq left(vq v, int bits) { return reinterpret_cast<vq>(reinterpret_cast<vq16>(v) << bits); }
INLINE vq right(vq v, int bits) { return reinterpret_cast<vq>(reinterpret_cast<vq16>(v) >> bits); }
INLINE vq moved(vq v, int bits) { return bits > 0 ? left(v, bits) : bits < 0 ? right(v, -bits) : v; }

// Conversion of VW numbers in half precision to floats. A template, as compilers for other
// instruction sets lack the builtins.
typedef int16_t halves_of_vector __attribute__((vector_size(2 * VW)));
template <class V> INLINE vf from_halves(V h) {
    if constexpr (VW == 16) return __builtin_ia32_vcvtph2ps512_mask(h, vf{}, -1, 4);
    else if constexpr (VW == 8) return __builtin_ia32_vcvtph2ps256(h);
    else {    // explained in base/half.h
        const vu wide = __builtin_convertvector(reinterpret_cast<vh>(h), vu), rest = (wide & 0x7FFF) << 13;
        const vu bits = reinterpret_cast<vu>(reinterpret_cast<vf>(rest) * 0x1p112f);
        return reinterpret_cast<vf>((rest >= 31u << 23 ? rest | 0x7F800000u : bits) | (wide & 0x8000) << 16);
    }
}
INLINE vf load_halves(const void* p) {
    halves_of_vector h;
    __builtin_memcpy(&h, p, sizeof h);
    return from_halves(h);
}

template <class V> INLINE vi add_products(V a, V b) {    // sums of neighbours' products
    if constexpr (VW == 16) return reinterpret_cast<vi>(__builtin_ia32_pmaddwd512_mask(a, b, vi{}, -1));
    else if constexpr (VW == 8) return reinterpret_cast<vi>(__builtin_ia32_pmaddwd256(a, b));
    else {
        const vi x = reinterpret_cast<vi>(a), y = reinterpret_cast<vi>(b);
        return (x << 16 >> 16) * (y << 16 >> 16) + (x >> 16) * (y >> 16);
    }
}
typedef char bytes_of_vector __attribute__((vector_size(4 * VW)));
template <class V> INLINE vi16 add_byte_products(V w, V x) {    // sums of neighbours' products, in 16 bits
    if constexpr (VW == 16) return __builtin_ia32_pmaddubsw512_mask(w, x, vi16{}, -1);
    else return __builtin_ia32_pmaddubsw256(w, x);
}
struct Four {
    int8_t of[4];
};    // x as the instruction reads it
// Adds products to each lane of s: w's four unsigned bytes times the four signed bytes at x. Sums
// are exact, so all code paths give equal bits. eight: w may exceed 127. vnni: for CPUs with VNNI.
template <bool eight, bool vnni> INLINE vi dot(vi s, vq w, const int8_t* x) {
    if constexpr (vnni && VW == 16) {    // asm: an intrinsic would cost register copies
        __asm__("vpdpbusd %2%{1to16%},%1,%0" : "+v"(s) : "v"(w), "m"(*reinterpret_cast<const Four*>(x)));
        return s;
    }
    int four;
    __builtin_memcpy(&four, x, 4);
    vi y = whole(four);
    if constexpr (vnni) {
        __asm__("%{vex%} vpdpbusd %2,%1,%0" : "+x"(s) : "x"(w), "x"(y));
        return s;
    } else if constexpr (!eight && VW >= 8) {
        const vi16 sums = add_byte_products(reinterpret_cast<bytes_of_vector>(w), reinterpret_cast<bytes_of_vector>(y));
        return s + add_products(sums, vi16{} + 1);
    } else {
        const vi16 y16 = reinterpret_cast<vi16>(y), w16 = reinterpret_cast<vi16>(w);
        const vi even = add_products(w16 & 0xFF, vi16(vi16(y16 << 8) >> 8));
        const vi odd = add_products(reinterpret_cast<vi16>(reinterpret_cast<vq16>(w16) >> 8), vi16(y16 >> 8));
        return s + even + odd;
    }
}
}    // namespace ISA

// philox_vec.h - philox (base/philox.h) for several indices at once.
#pragma once
#include "vec.h"

namespace ISA {
constexpr int COUNTERS = 16, RANDOMS = 4 * COUNTERS;

typedef uint64_t vl __attribute__((vector_size(4 * VW)));
typedef long long vll __attribute__((vector_size(4 * VW)));
// Products of the lanes' lower halves. GCC 12 multiplies whole lanes, so the instruction is named.
template <class I, class L> INLINE vl half_products(vl a, vl b) {
    if constexpr (VW == 16) return vl(__builtin_ia32_pmuludq512_mask(I(a), I(b), L{}, 0xff));
    else if constexpr (VW == 8) return vl(__builtin_ia32_pmuludq256(I(a), I(b)));
    else if constexpr (requires { __builtin_ia32_pmuludq128(I(a), I(b)); })
        return vl(__builtin_ia32_pmuludq128(I(a), I(b)));
    else return (a & 0xffffffff) * b;
}

// words[at * i + apart * k] = word k of philox(seed, stream, first + i), for i < COUNTERS. (at,
// apart) is (4, 1) or (1, COUNTERS).
template <int at, int apart> INLINE void random_words(uint32_t* words, uint64_t seed, uint64_t stream, uint64_t first) {
    static_assert((at == 4 && apart == 1) || (at == 1 && apart == COUNTERS));
    constexpr int LANES = VW / 2;
    constexpr auto multiply = half_products<vi, vll>;
    typedef uint32_t half __attribute__((vector_size(2 * VW)));
    vl lane, order[2];
    for (int i = 0; i < LANES; i++) {
        lane[i] = uint64_t(i);
        for (int h = 0; h < 2; h++) order[h][i] = uint64_t(LANES / 2 * h + i / 2 + i % 2 * LANES);
    }
#pragma GCC unroll 2
    for (int v = 0; v < COUNTERS; v += LANES) {
        // A word is the lower half of a lane; the upper half is arbitrary.
        vl c0 = lane + (first + uint64_t(v)), c1 = c0 >> 32, c2 = vl{} + stream, c3 = c2 >> 32;
        uint32_t k0 = uint32_t(seed), k1 = uint32_t(seed >> 32);
#pragma GCC unroll 10
        for (int round = 0; round < 10; round++, k0 += 0x9E3779B9u, k1 += 0xBB67AE85u) {
            const vl p0 = multiply(c0, vl{} + 0xD2511F53u), p1 = multiply(c2, vl{} + 0xCD9E8D57u);
            c0 = p1 >> 32 ^ c1 ^ k0;
            c1 = p1;
            c2 = p0 >> 32 ^ c3 ^ k1;
            c3 = p0;
        }
        if constexpr (at == 1) {
            const vl c[4] = {c0, c1, c2, c3};
#pragma GCC unroll 4
            for (int k = 0; k < 4; k++) {
                const half low = __builtin_convertvector(c[k], half);
                __builtin_memcpy(words + v + k * apart, &low, sizeof low);
            }
        } else {
            const vl pairs[2] = {(c0 & 0xffffffff) | c1 << 32, (c2 & 0xffffffff) | c3 << 32};
#pragma GCC unroll 2
            for (int h = 0; h < 2; h++) {
                const vl both = __builtin_shuffle(pairs[0], pairs[1], order[h]);
                __builtin_memcpy(words + v * 4 + h * VW, &both, sizeof both);
            }
        }
    }
}
}    // namespace ISA

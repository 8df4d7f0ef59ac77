// philox.h - base/common.h's philox for several indices at once.
#pragma once
#include "vec.h"

namespace ISA {
constexpr int COUNTERS = 16, RANDOMS = 4 * COUNTERS;

// words[at * i + apart * k] is word k of philox(seed, stream, first + i), for i < COUNTERS.
template <int at, int apart> INLINE void random_words(uint32_t* words, uint64_t seed, uint64_t stream, uint64_t first) {
#pragma omp simd
    for (int i = 0; i < COUNTERS; i++) {
        uint32_t k0 = uint32_t(seed), k1 = uint32_t(seed >> 32);
        uint32_t c0 = uint32_t(first + uint64_t(i)), c1 = uint32_t((first + uint64_t(i)) >> 32);
        uint32_t c2 = uint32_t(stream), c3 = uint32_t(stream >> 32);
        for (int round = 0; round < 10; round++, k0 += 0x9E3779B9u, k1 += 0xBB67AE85u) {
            const uint64_t p0 = uint64_t(0xD2511F53u) * c0, p1 = uint64_t(0xCD9E8D57u) * c2;
            c0 = uint32_t(p1 >> 32) ^ c1 ^ k0, c1 = uint32_t(p1);
            c2 = uint32_t(p0 >> 32) ^ c3 ^ k1, c3 = uint32_t(p0);
        }
        uint32_t* to = words + at * i;
        to[0] = c0, to[apart] = c1, to[2 * apart] = c2, to[3 * apart] = c3;
    }
}
}   // namespace ISA

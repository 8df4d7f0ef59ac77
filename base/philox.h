// philox.h - random numbers as a pure function of (seed, stream, index).
#pragma once
#include <cmath>

#include "base/common.h"

struct Philox4 {
    uint32_t v[4];
};

// Philox-4x32-10 (Salmon et al., SC 2011): 128 random bits as a pure function of (seed, stream,
// index). No generator state is saved; a resumed run uses the same indices again.
HOST_DEVICE inline Philox4 philox(uint64_t seed, uint64_t stream, uint64_t index) {
    uint32_t key[2] = {uint32_t(seed), uint32_t(seed >> 32)};
    Philox4 c{{uint32_t(index), uint32_t(index >> 32), uint32_t(stream), uint32_t(stream >> 32)}};
    for (int round = 0; round < 10; round++) {
        uint64_t p0 = uint64_t(0xD2511F53u) * c.v[0], p1 = uint64_t(0xCD9E8D57u) * c.v[2];
        c = {{uint32_t(p1 >> 32) ^ c.v[1] ^ key[0], uint32_t(p1), uint32_t(p0 >> 32) ^ c.v[3] ^ key[1], uint32_t(p0)}};
        key[0] += 0x9E3779B9u;
        key[1] += 0xBB67AE85u;
    }
    return c;
}

// Uniform in [0, 1), with 24 random bits.
inline float philox_uniform(uint32_t bits) { return float(bits >> 8) * 0x1p-24f; }

// Standard normal by Box-Muller, one number per (seed, stream, index).
inline float philox_normal(uint64_t seed, uint64_t stream, uint64_t index) {
    Philox4 r = philox(seed, stream, index >> 1);
    double radius = std::sqrt(-2.0 * std::log((r.v[0] + 1.0) * 0x1p-32)), angle = 6.283185307179586 * r.v[1] * 0x1p-32;
    return float(radius * ((index & 1) ? std::sin(angle) : std::cos(angle)));
}

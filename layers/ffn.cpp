// ffn.cpp - GELU by itself. Bound by memory beyond L2: 8 bytes per element forward, 12 backward.
#include "layers/simd/gelu.h"

namespace ISA {
constexpr int64_t BLOCK = 4096;

void gelu_forward(float* y, const float* x, int64_t n) {
#pragma omp parallel for schedule(static) if (n > BLOCK)
    for (int64_t i = 0; i < n; i += BLOCK)
        each_vector(least64(BLOCK, n - i), [&](int64_t j, auto at) {
            vf v = at.get(x + i + j);
            at.put(y + i + j, v * gate(v).s);
        });
}

// dx = dy (s + 2 x s (1-s) u')
void gelu_backward(float* dx, const float* dy, const float* x, int64_t n) {
#pragma omp parallel for schedule(static)
    for (int64_t i = 0; i < n; i += BLOCK)
        each_vector(least64(BLOCK, n - i), [&](int64_t j, auto at) {
            Gate g = gate(at.get(x + i + j));
            vf slope = g.x * g.x * (3 * K2 * CUBIC) + K2;    // 2u'
            at.put(dx + i + j, at.get(dy + i + j) * (g.s + g.x * (g.e * g.s * g.s) * slope));
        });
}

void exponentials(float* y, const float* x, int64_t n) {
    each_vector(n, [&](int64_t i, auto at) { at.put(y + i, exp(at.get(x + i))); });
}
}   // namespace ISA

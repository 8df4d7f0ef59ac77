// ffn.cpp - GELU by itself. Bound by memory beyond L2: 8 bytes per element forward, 12 backward.
#include "layers/simd/gelu.h"

namespace ISA {
constexpr int64_t BLOCK = 4096;

static void gelu_forward(float* y, const float* x, int64_t n) {
#pragma omp parallel for schedule(static) if (n > BLOCK)
    for (int64_t i = 0; i < n; i += BLOCK)
        each_vector(least64(BLOCK, n - i), [&](int64_t j, auto at) {
            at.put(y + i + j, gelu(at.get(x + i + j)));
        });
}

static void gelu_backward(float* dx, const float* dy, const float* x, int64_t n) {
#pragma omp parallel for schedule(static)
    for (int64_t i = 0; i < n; i += BLOCK)
        each_vector(least64(BLOCK, n - i), [&](int64_t j, auto at) {
            at.put(dx + i + j, at.get(dy + i + j) * gelu_slope(at.get(x + i + j)));
        });
}

void exponentials(float* y, const float* x, int64_t n) {
    each_vector(n, [&](int64_t i, auto at) { at.put(y + i, exp(at.get(x + i))); });
}

ENTRY(gelu_forward, gelu_forward)
ENTRY(gelu_backward, gelu_backward)
}   // namespace ISA

// ffn.cpp - GELU, the tanh form: y = x/2 (1 + tanh(u)) = x sigmoid(2u), u = sqrt(2/pi) (x + 0.044715 x^3).
// One exp and one division an element; bound by memory beyond L2 (8 bytes an element forward, 12 backward).
#include "vec.h"

namespace ISA {
constexpr float K2 = 2 * 0.7978845608f, CUBIC = 0.044715f;    // 2 sqrt(2/pi)
constexpr int64_t BLOCK = 4096;

// s = sigmoid(2u) and s (1 - s) = e s^2, e = exp(-2u). Beyond |x| = 10 both are constant in float; the clamp keeps e
// finite.
struct Gate { vf x, s, e; };
INLINE Gate gate(vf x) {
    vf c = max(set1(-10), min(set1(10), x)), e = exp(c * (c * c * (-K2 * CUBIC) - K2));
    return {c, 1 / (1 + e), e};
}

void gelu_forward(float* y, const float* x, int64_t n) {
#pragma omp parallel for schedule(static)
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

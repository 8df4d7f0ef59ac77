// gelu.h - GELU, the tanh form: y = x/2 (1 + tanh(u)) = x sigmoid(2u), u = sqrt(2/pi) (x + 0.044715
// x^3). One exp and one division per element.
#pragma once
#include "vec.h"

namespace ISA {
constexpr float K2 = 2 * 0.7978845608f, CUBIC = 0.044715f;    // 2 sqrt(2/pi)

// s = sigmoid(2u), e = exp(-2u) = 2^(-2u log2 e), and so s (1 - s) = e s^2. x is clamped to [-10,
// 10], which keeps the exponent below 126; beyond, s is 1 or less than 2e-38.
struct Gate {
    vf x, s, e;
};
INLINE Gate gate(vf x) {
    vf c = max(set1(-10), min(set1(10), x)), e = exp2(c * (c * c * (-K2 * CUBIC * LOG2E) - K2 * LOG2E));
    return {c, 1 / (1 + e), e};
}
INLINE vf gelu(vf x) { return x * gate(x).s; }
// y' = s + 2 x s (1-s) u'
INLINE vf gelu_slope(vf x) {
    const Gate g = gate(x);
    return g.s + g.x * (g.e * g.s * g.s) * (g.x * g.x * (3 * K2 * CUBIC) + K2);
}
}    // namespace ISA

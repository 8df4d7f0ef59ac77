// gelu.cuh - GELU, the tanh form, as y = x sigmoid(2u), u = sqrt(2/pi) (x + 0.044715 x^3), and its slope.
//
// An element takes two operations of the special function unit: exp2 and the reciprocal.
#pragma once
#include "ptx.cuh"

namespace {
// s = sigmoid(2u) and its slope s (1 - s), from a = exp(-|2u|): nothing overflows, and NaN stays NaN.
struct Gate { float s, slope; };
constexpr float GELU_K = 2 * 0.7978845608f, GELU_CUBIC = 0.044715f;    // 2 sqrt(2/pi)
__device__ inline Gate gate(float x) {
    const float u2 = x * (GELU_K + GELU_K * GELU_CUBIC * (x * x));
    const float a = exp2_approx(fabsf(u2) * -1.442695041f), r = __fdividef(1, 1 + a);
    return {u2 < 0 ? a * r : r, a * r * r};
}
__device__ inline float gelu(float x) { return x * gate(x).s; }
// d gelu / dx = s + x s (1-s) (2u)'
__device__ inline float gelu_slope(float x) {
    const Gate g = gate(x);
    return g.s + x * g.slope * (GELU_K + 3 * GELU_K * GELU_CUBIC * (x * x));
}
}   // namespace

// activation.cuh - the ffn's activations and their derivatives. Hendrycks & Gimpel 2016; So et al.
// 2021 (relu2).
//
//     gelu_tanh   x sigmoid(2u), u = sqrt(2/pi) (x + 0.044715 x^3): equals x (1 + tanh u) / 2
//     gelu        x Phi(x), Phi(x) = erfc(-x / sqrt 2) / 2           silu   x sigmoid(x)
//
// A sigmoid takes two operations of the special function unit: exp2 and a reciprocal. Phi by
// normal.h takes two as well; CUDA's erfcf, exact to the last bit also for the smallest results,
// takes twice the instructions.
#pragma once
#include "normal.h"
#include "layers/ptx/ptx.cuh"

namespace {
// s = sigmoid(z) and its derivative s (1 - s), from a = exp(-|z|): no overflow, and NaN stays NaN.
struct Gate {
    float s, slope;
};
__device__ inline Gate sigmoid(float z) {
    const float a = exp2_approx(fabsf(z) * -1.442695041f), r = __fdividef(1, 1 + a);
    return {z < 0 ? a * r : r, a * r * r};
}
constexpr float GELU_K = 2 * 0.7978845608f, GELU_CUBIC = 0.044715f;    // 2 sqrt(2/pi)
__device__ inline Gate gelu_gate(float x) { return sigmoid(x * (GELU_K + GELU_K * GELU_CUBIC * (x * x))); }
__device__ inline float gelu(float x) { return x * gelu_gate(x).s; }
// d gelu / dx = s + x s (1-s) (2u)'
__device__ inline float gelu_slope(float x) {
    const Gate g = gelu_gate(x);
    return g.s + x * g.slope * (GELU_K + 3 * GELU_K * GELU_CUBIC * (x * x));
}

// act(x) and its derivative; the compiler removes an unused one.
struct Activated {
    float value, slope;
};
template <Act A> __device__ inline Activated activate(float x) {
    if constexpr (A == Act::gelu_tanh) {
        const Gate g = gelu_gate(x);
        return {x * g.s, g.s + x * g.slope * (GELU_K + 3 * GELU_K * GELU_CUBIC * (x * x))};
    } else if constexpr (A == Act::gelu) {
        const float t = __fdividef(1, 1 + NORMAL_K * fabsf(x)), bell = exp2_approx(x * x * -0.7213475204f);
        const float tail = normal_polynomial(t) * bell, phi = x < 0 ? tail : 1 - tail;
        return {x * phi, phi + x * 0.3989422804f * bell};    // bell / sqrt(2 pi): the slope of Phi
    } else if constexpr (A == Act::silu) {
        const Gate g = sigmoid(x);
        return {x * g.s, g.s + x * g.slope};
    } else if constexpr (A == Act::tanh) {
        const float e = expf(-2 * fabsf(x)), inverse = 1 / (1 + e);
        return {tanhf(x), 4 * e * inverse * inverse};
    } else {
        const float positive = x <= 0 ? 0 : x, on = x <= 0 ? 0 : 1;    // NaN stays NaN
        return A == Act::relu ? Activated{positive, on} : Activated{positive * positive, 2 * positive};
    }
}
// act(x) with act chosen at run time, for kernels whose time does not depend on it.
__device__ inline float activated(Act act, float x) {
    switch (act) {
        case Act::gelu_tanh: return activate<Act::gelu_tanh>(x).value;
        case Act::gelu: return activate<Act::gelu>(x).value;
        case Act::silu: return activate<Act::silu>(x).value;
        case Act::relu: return activate<Act::relu>(x).value;
        case Act::tanh: return activate<Act::tanh>(x).value;
        default: return activate<Act::relu2>(x).value;
    }
}
}    // namespace

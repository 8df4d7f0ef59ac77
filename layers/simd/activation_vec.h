// activation_vec.h - the ffn's activations and their slopes by vectors. One exp, at most two
// divisions.
#pragma once
#include "gelu.h"
#include "layers/normal.h"

namespace ISA {
// Phi(x) as in normal.h. x is clamped to [-13, 13]: beyond, the tail is below 1e-38.
struct Normal {
    vf x, phi, density;
};    // x clamped
INLINE Normal normal(vf x) {
    const vf c = max(set1(-13), min(set1(13), x)), a = max(c, -c), t = 1 / (1 + a * NORMAL_K);
    const vf e = exp2(c * c * (-0.5f * LOG2E));
    const vf tail = normal_polynomial(t) * e;
    return {c, c > 0 ? 1 - tail : tail, e * 0x1.988454p-2f};    // 1/sqrt(2 pi)
}
// sigmoid(x) and its slope s (1 - s) = e s^2, e = exp(-x); x >= -87, so that e is finite.
struct Sigmoid {
    vf s, slope;
};
INLINE Sigmoid sigmoid(vf x) {
    const vf e = exp2(max(set1(-87), x) * -LOG2E), s = 1 / (1 + e);
    return {s, e * s * s};
}

// y = act(x) and dy/dx. If one is unused, it costs nothing, because everything is inlined.
struct Curve {
    vf y, slope;
};
template <Act act> INLINE Curve curve(vf x) {
    if constexpr (act == Act::gelu_tanh) return {gelu(x), gelu_slope(x)};
    if constexpr (act == Act::gelu) {
        const Normal n = normal(x);
        return {x * n.phi, n.phi + n.x * n.density};
    }
    if constexpr (act == Act::silu) {
        const Sigmoid g = sigmoid(x);
        return {x * g.s, g.s + x * g.slope};
    }
    if constexpr (act == Act::tanh) {
        // e = e^2x, m = e - 1: tanh = m / (e + 1), and its slope 4 e / (e + 1)^2 keeps all digits.
        const Power p = power_of_two(max(set1(-40), min(set1(40), x)) * (2 * LOG2E));
        const vf m = p.whole * p.rest + (p.whole - 1), e = p.whole * p.rest + p.whole;
        return {m / (m + 2), 4 * (e / (m + 2)) / (m + 2)};
    }
    const vf r = max(set1(0), x);    // NaN stays NaN
    if constexpr (act == Act::relu) return {r, x > 0 ? set1(1) : vf{}};
    return {r * r, 2 * r};
}
}    // namespace ISA

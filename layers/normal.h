// normal.h - Phi(x), the normal distribution function, for the exact GELU of CPU and GPU. Phi(x) is
// 1 - tail if x > 0, else tail, with tail = erfc(|x|/sqrt2)/2 = exp(-x^2/2) p(t) and t = 1/(1 +
// NORMAL_K |x|). The polynomial p is a minimax fit of degree 8 of the relative error, which is
// 4e-8; float arithmetic adds 3e-7.
#pragma once
#include "base/common.h"

constexpr float NORMAL_K = 0x1.301cccp-2f;
template <class V> [[gnu::always_inline]] HOST_DEVICE inline V normal_polynomial(V t) {
    V p = t * 0x1.41101p-5f - 0x1.6d7e26p-3f;
    p = p * t + 0x1.05431ap-2f;
    p = p * t - 0x1.a00b0cp-4f;
    p = p * t + 0x1.41b506p-3f;
    p = p * t + 0x1.6b287p-4f;
    p = p * t + 0x1.f2d338p-4f;
    p = p * t + 0x1.e3ffa6p-4f;
    return p * t + 0x1.b27e98p-17f;
}

// softcap.cuh - tanh for soft caps, cap * tanh(x / cap), on attention scores and on logits.
#pragma once
#include "layers/ptx/ptx.cuh"

// Computes tanh from a = exp(-2 |x|), so that nothing overflows and NaN stays NaN; the error is at
// most 1e-7. tanh.approx has errors of 5e-4, which a cap of 30 makes 0.015 of a logit.
__device__ inline float tanh_of(float x) {
    const float a = exp2_approx(fabsf(x) * -2.885390082f), t = __fdividef(1 - a, 1 + a);
    return x < 0 ? -t : t;
}

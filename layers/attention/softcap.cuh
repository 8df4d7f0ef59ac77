// softcap.cuh - tanh for soft caps, cap * tanh(x / cap), on attention scores and on logits.
#pragma once
#include "layers/ptx/ptx.cuh"

// Error at most 1e-7. From a = exp(-2 |x|), so nothing overflows and NaN stays NaN. tanh.approx
// errs by 5e-4: with a cap of 30 by 0.015 of a logit.
__device__ inline float tanh_of(float x) {
    const float a = exp2_approx(fabsf(x) * -2.885390082f), t = __fdividef(1 - a, 1 + a);
    return x < 0 ? -t : t;
}

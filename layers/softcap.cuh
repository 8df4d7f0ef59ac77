// softcap.cuh - tanh for soft caps: cap * tanh(x / cap), of attention's scores and of logits.
#pragma once
#include "layers/ptx/ptx.cuh"

// Off by 1e-7 at most: from a = exp(-2 |x|), nothing overflows, and NaN stays NaN. tanh.approx is off by 5e-4, which a
// cap of 30 makes 0.015 of a logit.
__device__ inline float tanh_of(float x) {
    const float a = exp2_approx(fabsf(x) * -2.885390082f), t = __fdividef(1 - a, 1 + a);
    return x < 0 ? -t : t;
}

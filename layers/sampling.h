// sampling.h - a token's score, its weight and its random number, defined once for every table.
// Scores and weights are double, so that another order of summing weights changes the token only
// once in 1e15 draws from the same logits.
#pragma once
#include "base/philox.h"
#include "ops.h"

// The logit of the head's product x, in float; NaN is -inf. Host and GPU give the same bits, except
// with a cap: their tanhf may differ in the last bits.
HOST_DEVICE inline double logit_of(float x, Logits z) {
    if (z.cap != 0) x = z.cap * tanhf(z.scale * x / z.cap);
    else if (z.scale != 1) x = z.scale * x;
    return x == x ? double(x) : -INFINITY;
}
// count: 2 for each time that the token was generated, + 1 if it is in the text (see `sample`).
HOST_DEVICE inline double score_of(double x, double bias, int count, const SampleParams& d) {
    x += bias;
    if (count == 0) return x;
    x = x > 0 ? x / d.repetition : x * d.repetition;
    return x - ((count >> 1) * d.frequency + (count > 1 ? d.presence : 0));
}
HOST_DEVICE inline int count_token(int count) { return (count + 2) | 1; }
// Weight relative to a token with score `top`; 0 for a score of -inf.
HOST_DEVICE inline double weight_of(double score, double top, const SampleParams& d) {
    return score > -INFINITY ? exp((score - top) / d.temperature) : 0;
}
// A uniformly distributed random number between 0 and `sum`.
HOST_DEVICE inline double random_part(double sum, const SampleParams& d, const SampleState& at) {
    const Philox4 r = philox(d.seed, at.sequence, at.pos);
    return (double(r.v[0]) * 0x1p32 + double(r.v[1])) * 0x1p-64 * sum;
}

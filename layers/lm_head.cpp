// lm_head.cpp - softmax and cross entropy of rows of logits. Bound by one exp per element.
//
// A row (V floats, 200 kB for GPT-2) is read in pieces that fit L1. The first pass sums and writes exp(x - top), where
// top is the largest logit so far. The second pass, from L2, multiplies each piece by scale / sum * exp(its top - last
// top). The loss is log(sum) + (top - target's logit): finite where -log(p) is not.
#include "layers/simd/vec.h"

namespace ISA {
constexpr int PIECES = 64;
constexpr float INF = __builtin_inff();

INLINE float scalar_exp(float x) { return exp(set1(x))[0]; }

// The loss of one row; e, if not null, gets the gradient (and may be x).
INLINE float row(float* e, const float* x, int target, float scale, int V, int Vp) {
    const int size = int(4096 + V / PIECES);    // at most PIECES of them
    const float logit = x[target];
    float top = -INF, total = 0, tops[PIECES];
    for (int p = 0, from = 0; from < V; p++, from += size) {
        const int n = least(size, V - from);
        vf piece_top = set1(-INF), s = {};
        each_vector(n, [&](int64_t i, auto at) { piece_top = max(at.others(at.get(x + from + i), -INF), piece_top); });
        float now = max(piece_top);
        if (now > top) {
            total *= scalar_exp(top - now);
            top = now;
        }
        tops[p] = top > -INF ? top : 0;    // -inf - -inf would be NaN
        each_vector(n, [&](int64_t i, auto at) {
            vf v = at.others(exp(at.get(x + from + i) - tops[p]), 0);
            s += v;
            if (e) at.put(e + from + i, v);
        });
        total += sum(s);
    }
    if (e) {
        for (int p = 0, from = 0; from < V; p++, from += size) {
            const float factor = scale / total * scalar_exp(tops[p] - top);
            each_vector(least(size, V - from), [&](int64_t i, auto at) {
                at.put(e + from + i, at.get(e + from + i) * factor);
            });
        }
        e[target] -= scale;
        for (int v = V; v < Vp; v++) e[v] = 0;
    }
    return __builtin_logf(total) + (top - logit);
}

static void cross_entropy(float* loss, float* dlogits, const float* logits, const int* target, float scale, int N,
                          int V, int Vp) {
#pragma omp parallel for schedule(static)
    for (int n = 0; n < N; n++) {
        int64_t at = int64_t(n) * Vp;
        loss[n] = row(dlogits ? dlogits + at : nullptr, logits + at, target[n], scale, V, Vp);
    }
}

ENTRY(cross_entropy, cross_entropy)
}   // namespace ISA

// lm_head.cpp - softmax and cross entropy of rows of logits. Bound by one exp per element.
//
// A row (V floats, 200 kB for GPT-2) is read in pieces that fit L1. For each piece the first pass
// finds `top`, the largest logit so far, then sums and writes exp(x - top). The second pass, from
// L2, multiplies each piece by scale / sum * exp(the piece's top - the row's top). The loss is
// log(sum) + (top - target's logit), which is finite where -log(p) is not.
//
// The first pass computes shaped logits (scaled, capped) twice: for `top` and for exp. It also
// multiplies by dz/dx, the gradient's factor, because its result may overwrite x.
#include "layers/simd/tanh.h"

namespace ISA {
constexpr int PIECES = 64;
constexpr float INF = __builtin_inff();

INLINE float scalar_exp(float x) { return exp(set1(x))[0]; }

enum class Shape { plain, scaled, capped };
struct Shaped {
    vf z, slope;
};    // a logit and dz/dx
template <Shape shape> INLINE Shaped shaped(vf x, Logits l) {
    if constexpr (shape == Shape::plain) return {x, set1(1)};
    if constexpr (shape == Shape::scaled) return {x * l.scale, set1(l.scale)};
    const vf t = tanh(x * (l.scale / l.cap));
    return {t * l.cap, (1 - t * t) * l.scale};
}

// Returns the loss of one row; d, if not null, gets the gradient. e (V) holds the exponentials: d
// itself if it has floats, which may be x.
template <Shape shape, class D>
INLINE float row(D* d, float* e, const float* x, int target, float scale, Logits l, int V, int Vp) {
    constexpr bool plain = shape == Shape::plain;
    const int size = int(4096 + V / PIECES);    // at most PIECES pieces
    const Shaped of_target = shaped<shape>(set1(x[target]), l);
    float top = -INF, total = 0, tops[PIECES];
    for (int p = 0, from = 0; from < V; p++, from += size) {
        const int n = least(size, V - from);
        vf piece_top = set1(-INF), s = {};
        each_vector(n, [&](int64_t i, auto at) {
            piece_top = max(at.fill_rest(shaped<shape>(at.get(x + from + i), l).z, -INF), piece_top);
        });
        float now = max(piece_top);
        if (now > top) {
            total *= scalar_exp(top - now);
            top = now;
        }
        tops[p] = top > -INF ? top : 0;    // -inf - -inf would be NaN
        each_vector(n, [&](int64_t i, auto at) {
            const Shaped logit = shaped<shape>(at.get(x + from + i), l);
            vf v = at.fill_rest(exp(logit.z - tops[p]), 0);
            s += v;
            if (d) at.put(e + from + i, plain ? v : v * logit.slope);
        });
        total += sum(s);
    }
    auto factor = [&](int p) { return scale / total * scalar_exp(tops[p] - top); };
    if (d) {
        const float label = rounded_product(set1(e[target] * factor(target / size)))[0];
        for (int p = 0, from = 0; from < V; p++, from += size) {
            const float f = factor(p);
            each_vector(least(size, V - from),
                        [&](int64_t i, auto at) { at.put(d + from + i, at.get(e + from + i) * f); });
        }
        store_some(d + target, set1(label - (plain ? scale : scale * of_target.slope[0])), 1);
        __builtin_memset(d + V, 0, size_t(Vp - V) * sizeof(D));
    }
    return __builtin_logf(total) + (top - of_target.z[0]);
}

// A row's exponentials need floats until they are scaled. Gradients that are floats hold them in
// place. For gradients in bf16 each worker has one row of scratch, which stays in its core's cache.
template <class D> static int64_t scratch_bytes(int V) {
    return sizeof(D) == sizeof(float) ? 0 : int64_t(sizeof(float)) * pool_threads() * padded(V);
}
template <class P> static int64_t scratch_of(const CallSizes& call) { return scratch_bytes<P>(call.in); }

template <Shape shape, class D> static void rows(float* loss, D* dlogits, const float* logits, const int* target,
                                                 const float* weights, float scale, Logits l, int N, int V, int Vp) {
    float* scratch = static_cast<float*>(cpu_scratch(scratch_bytes<D>(V)));
    each_range(N, 1, int64_t(N) * V, [&](Range r, int worker) {
        for (int64_t n = r.from; n < r.to; n++) {
            D* d = dlogits ? dlogits + n * Vp : nullptr;
            float* e = scratch + int64_t(worker) * padded(V);
            if constexpr (sizeof(D) == sizeof(float)) e = d;
            const float factor = weights ? scale * weights[n] : scale;
            loss[n] = target[n] < 0 ? 0 : row<shape>(d, e, logits + n * Vp, target[n], factor, l, V, Vp);
            if (target[n] < 0 && d) __builtin_memset(d, 0, size_t(Vp) * sizeof(D));
        }
    });
}
template <class P> static void cross_entropy(float* loss, P* dlogits, const float* logits, const int* target,
                                             const float* weights, float scale, Logits l, int N, int V, int Vp) {
    const auto run = l.cap != 0     ? rows<Shape::capped, P>
                     : l.scale != 1 ? rows<Shape::scaled, P>
                                    : rows<Shape::plain, P>;
    run(loss, dlogits, logits, target, weights, scale, l, N, V, Vp);
}

REGISTER_CPU_WITH_SCRATCH(cross_entropy, cross_entropy<P>, scratch_of<P>)
}    // namespace ISA

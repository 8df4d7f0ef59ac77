// lm_head.cpp - softmax and cross entropy of rows of logits. Bound by one exp per element.
//
// A row (V floats, 200 kB for GPT-2) is read in pieces that fit L1. For each piece the first pass
// finds `top`, the largest logit so far, then sums and writes exp(x - top). The second pass, from
// L2, multiplies each piece by scale / sum * exp(the piece's top - the row's top). The loss is
// log(sum) + (top - target's logit), which is finite where -log(p) is not.
//
// The first pass computes shaped logits (scaled, capped) twice: for `top` and for exp. It also
// multiplies by dz/dx, the gradient's factor, because its result may overwrite x. With label
// smoothing, whose gradient is no multiple of an exponential, it writes the shaped logits instead,
// and the second pass computes exp again.
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

// dz/dx of a shaped logit z.
template <Shape shape> INLINE vf slope_of(vf z, Logits l) {
    if constexpr (shape == Shape::plain) return set1(1);
    if constexpr (shape == Shape::scaled) return set1(l.scale);
    const vf part = z * (1 / l.cap);
    return (1 - part * part) * l.scale;
}

// Returns the loss of one row; d, if not null, gets the gradient. e (V) is scratch for
// exponentials or, if `smooth`, for shaped logits. If d has floats, e is d, and d may be x.
template <Shape shape, bool smooth, class D>
INLINE float row(D* d, float* e, const float* x, int target, float scale, LossPenalties more, Logits l, int V, int Vp) {
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
            if (d) at.put(e + from + i, smooth ? logit.z : plain ? v : v * logit.slope);
        });
        total += sum(s);
    }
    const float lse = __builtin_logf(total) + top, even = scale * more.label_smoothing / float(V);
    const float of_lse = more.z_loss != 0 ? scale * (1 + 2 * more.z_loss * lse) : scale;
    auto factor = [&](int p) { return of_lse / total * (smooth ? 1 : scalar_exp(tops[p] - top)); };
    auto gradient = [&](vf of, float f) {    // without the label; of: an element of e
        if constexpr (!smooth) return of * f;
        return (exp(of - top) * f - even) * slope_of<shape>(of, l);
    };
    if (d) {
        const float at_target = rounded_product(gradient(set1(e[target]), factor(target / size)))[0];
        for (int p = 0, from = 0; from < V; p++, from += size) {
            const float f = factor(p);
            each_vector(least(size, V - from),
                        [&](int64_t i, auto at) { at.put(d + from + i, gradient(at.get(e + from + i), f)); });
        }
        const float label = scale * (1 - more.label_smoothing);
        store_some(d + target, set1(at_target - (plain ? label : label * of_target.slope[0])), 1);
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

template <Shape shape, bool smooth, class D> static void rows(float* loss, D* dlogits, const float* logits,
                                                              const int* target, const float* weights, float scale,
                                                              LossPenalties more, Logits l, int N, int V, int Vp) {
    float* scratch = static_cast<float*>(cpu_scratch(scratch_bytes<D>(V)));
    each_range(N, 1, int64_t(N) * V, [&](Range r, int worker) {
        for (int64_t n = r.from; n < r.to; n++) {
            D* d = dlogits ? dlogits + n * Vp : nullptr;
            float* e = scratch + int64_t(worker) * padded(V);
            if constexpr (sizeof(D) == sizeof(float)) e = d;
            const float factor = weights ? scale * weights[n] : scale;
            loss[n] = target[n] < 0 ? 0 : row<shape, smooth>(d, e, logits + n * Vp, target[n], factor, more, l, V, Vp);
            if (target[n] < 0 && d) __builtin_memset(d, 0, size_t(Vp) * sizeof(D));
        }
    });
}
template <class P> static void cross_entropy(float* loss, P* dlogits, const float* logits, const int* target,
                                             const float* weights, float scale, LossPenalties more, Logits l, int N,
                                             int V, int Vp) {
    const bool smooth = more.label_smoothing != 0;
    const auto run = l.cap != 0     ? smooth ? rows<Shape::capped, true, P> : rows<Shape::capped, false, P>
                         : l.scale != 1 ? smooth ? rows<Shape::scaled, true, P> : rows<Shape::scaled, false, P>
                         : smooth ? rows<Shape::plain, true, P>
                                    : rows<Shape::plain, false, P>;
    run(loss, dlogits, logits, target, weights, scale, more, l, N, V, Vp);
}

// ---- distillation -------------------------------------------------------------------------------

// Three passes over the student's and the teacher's row, which stay in L2: their maxima; the
// exponentials' sums, and the teacher's mean difference of the logits, from which the divergence
// follows; the gradient. Bound by three exp per element, in passes two and three.
template <bool plain> INLINE vf value(vf x, Logits l) {
    if constexpr (plain) return x;
    return l.cap != 0 ? tanh(x * (l.scale / l.cap)) * l.cap : x * l.scale;
}
template <bool plain> INLINE float largest(const float* x, Logits l, int V) {
    vf top = set1(-INF);
    each_vector(V, [&](int64_t i, auto at) { top = max(at.fill_rest(value<plain>(at.get(x + i), l), -INF), top); });
    return max(top);
}

// Returns the loss of a row. d, which may be x, gets the gradient; null: loss only.
template <bool plain, class D> INLINE float distilled_row(D* d, const float* x, const float* teacher, int target,
                                                          float scale, Distillation how, Logits l, Logits teacher_l,
                                                          int V, int Vp) {
    const float top = largest<plain>(x, l, V), teacher_top = largest<plain>(teacher, teacher_l, V);
    const float inverse = 1 / how.temperature, own_share = 1 - how.mix;
    const float logit = value<plain>(set1(x[target]), l)[0];
    vf sums = {}, plain_sums = {}, teacher_sums = {}, differences = {};
    each_vector(V, [&](int64_t i, auto at) {
        const vf z = value<plain>(at.get(x + i), l) - top,
                 t = value<plain>(at.get(teacher + i), teacher_l) - teacher_top;
        const vf p = at.fill_rest(exp(t * inverse), 0);
        sums += at.fill_rest(exp(z * inverse), 0);
        plain_sums += at.fill_rest(exp(z), 0);
        teacher_sums += p;
        differences += at.fill_rest(p * (t - z), 0);
    });
    const float q_sum = sum(sums), p_sum = sum(teacher_sums), e_sum = sum(plain_sums);
    const float kl = sum(differences) / p_sum * inverse - __builtin_logf(p_sum) + __builtin_logf(q_sum);
    const float loss = how.mix * how.temperature * how.temperature * kl +
                       own_share * (__builtin_logf(e_sum) - (logit - top));
    if (!d) return loss;
    const float q_factor = scale * how.mix * how.temperature / q_sum,
                p_factor = scale * how.mix * how.temperature / p_sum;
    const float e_factor = scale * own_share / e_sum;
    auto slope = [&](vf z) {
        if constexpr (plain) return set1(1);
        const vf part = z * (l.cap != 0 ? 1 / l.cap : 0);
        return (1 - part * part) * l.scale;
    };
    const vf label = (exp(set1(logit - top)) * e_factor - scale * own_share);
    vf at_target = {};    // the target's element, computed apart: its label is subtracted in fp32
    {
        const vf z = set1(logit), t = value<plain>(set1(teacher[target]), teacher_l) - teacher_top;
        at_target = (exp((z - top) * inverse) * q_factor - exp(t * inverse) * p_factor + label) * slope(z);
    }
    each_vector(V, [&](int64_t i, auto at) {
        const vf z = value<plain>(at.get(x + i), l), t = value<plain>(at.get(teacher + i), teacher_l) - teacher_top;
        const vf g = exp((z - top) * inverse) * q_factor - exp(t * inverse) * p_factor + exp(z - top) * e_factor;
        at.put(d + i, g * slope(z));
    });
    store_some(d + target, at_target, 1);
    __builtin_memset(d + V, 0, size_t(Vp - V) * sizeof(D));
    return loss;
}

template <class P> static void distill_loss(float* loss, P* dlogits, const float* logits, const float* teacher,
                                            const int* target, float scale, Distillation how, Logits z,
                                            Logits teacher_z, int N, int V, int Vp) {
    const bool plain = z.scale == 1 && z.cap == 0 && teacher_z.scale == 1 && teacher_z.cap == 0;
    each_range(N, 1, 2 * int64_t(N) * V, [&](Range r, int) {
        for (int64_t n = r.from; n < r.to; n++) {
            P* d = dlogits ? dlogits + n * Vp : nullptr;
            const float *x = logits + n * Vp, *t = teacher + n * Vp;
            if (target[n] < 0) {
                loss[n] = 0;
                if (d) __builtin_memset(d, 0, size_t(Vp) * sizeof(P));
            } else {
                loss[n] = plain ? distilled_row<true>(d, x, t, target[n], scale, how, z, teacher_z, V, Vp)
                                : distilled_row<false>(d, x, t, target[n], scale, how, z, teacher_z, V, Vp);
            }
        }
    });
}

// One number for each row: a few rows of a text, so no loop here is worth a vector.
template <class P> static void value_loss(float* loss, P* dlogits, const float* logits, const int* target, float scale,
                                          bool binary, int N, int Vp) {
    for (int64_t n = 0; n < N; n++) {
        const float x = logits[n * Vp], y = __builtin_bit_cast(float, target[n]), e = scalar_exp(x < 0 ? x : -x);
        const float off = x - y, sigmoid = x < 0 ? e / (1 + e) : 1 / (1 + e);
        const bool given = y == y;
        const float of_logit = (x < 0 ? 0 : x) + __builtin_log1pf(e) - y * x;
        loss[n] = !given ? 0 : binary ? of_logit : off * off;
        if (!dlogits) continue;
        __builtin_memset(dlogits + n * Vp, 0, size_t(Vp) * sizeof(P));
        if (given) store_some(dlogits + n * Vp, set1(scale * (binary ? sigmoid - y : 2 * off)), 1);
    }
}
REGISTER_CPU(value_loss, value_loss<P>)
REGISTER_CPU_WITH_SCRATCH(cross_entropy, cross_entropy<P>, scratch_of<P>)
REGISTER_CPU(distill_loss, distill_loss<P>)
}    // namespace ISA

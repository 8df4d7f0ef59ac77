// norm.cpp - LayerNorm and RMSNorm over rows of C; sums of two activations. A row stays in L1 for
// all its passes, so memory is the bound: 8 bytes an element forward (bf16 y: 6), 16 backward.
#include "layers/dropout.h"
#include "layers/simd/philox_vec.h"

namespace ISA {
// The norm's factors w + plus from element c on; 1 without weights.
template <class P, class At> INLINE vf factors(const P* w, int64_t c, float plus, At at) {
    return w ? at.get(w + c) + plus : set1(1);
}

template <bool rms, class Y, class P>
INLINE void forward_row(Y* y, float* mean, float* rstd, const float* x, const P* w, const P* b, Norm norm, int C) {
    vf s = {}, q = {};
    if (!rms) each_vector(C, [&](int64_t c, auto at) { s += at.get(x + c); });
    const float m = rms ? 0 : sum(s) / float(C);
    each_vector(C, [&](int64_t c, auto at) {
        vf d = rms ? at.get(x + c) : at.fill_rest(at.get(x + c) - m, 0);
        q += d * d;
    });
    const float r = 1 / __builtin_sqrtf(sum(q) / float(C) + norm.eps);
    each_vector(C, [&](int64_t c, auto at) {
        const vf xhat = (rms ? at.get(x + c) : at.get(x + c) - m) * r, f = factors(w, c, norm.plus, at);
        at.put(y + c, b ? xhat * f + at.get(b + c) : xhat * f);
    });
    if (!rms) *mean = m;
    *rstd = r;
}

template <bool rms, class Y, class P>
static void forward(Y* y, float* mean, float* rstd, const float* x, const P* w, const P* b, Norm norm, int N, int C) {
    each_item(N, int64_t(N) * C, [&](int64_t n) {
        const int64_t row = int64_t(n) * C;
        forward_row<rms>(y + row, mean + n, rstd + n, x + row, w, b, norm, C);
    });
}
template <class Y, class P> static void norm_forward(Y* y, float* mean, float* rstd, const float* x, const P* w,
                                                     const P* b, Norm norm, int N, int C) {
    norm.rms ? forward<true>(y, mean, rstd, x, w, b, norm, N, C) : forward<false>(y, mean, rstd, x, w, b, norm, N, C);
}

// Backward pass of a row. dx += the gradient of x. part (2,C) += the row's terms of dw and, with
// bias, of db.
template <bool rms, class P> INLINE void backward_row(float* dx, float* part, const float* dy, const float* x,
                                                      const P* w, bool bias, float m, float r, float plus, int C) {
    vf g_sum = {}, gx_sum = {};
    each_vector(C, [&](int64_t c, auto at) {
        vf d = at.get(dy + c), xhat = (rms ? at.get(x + c) : at.get(x + c) - m) * r, g = d * factors(w, c, plus, at);
        if (!rms) g_sum += g;
        gx_sum += g * xhat;
        at.put(part + c, at.get(part + c) + d * xhat);
        if (bias) at.put(part + C + c, at.get(part + C + c) + d);
    });
    float g_mean = sum(g_sum) / float(C), gx_mean = sum(gx_sum) / float(C);
    each_vector(C, [&](int64_t c, auto at) {
        vf xhat = (rms ? at.get(x + c) : at.get(x + c) - m) * r, g = at.get(dy + c) * factors(w, c, plus, at);
        at.put(dx + c, at.get(dx + c) + r * ((rms ? g : g - g_mean) - xhat * gx_mean));
    });
}

static int64_t norm_scratch(int N, int C) { return int64_t(sizeof(float)) * least(N, RANGES) * 2 * C; }

template <bool rms, class P> static void backward(float* dx, float* dw, float* db, const float* dy, const float* x,
                                                  const P* w, const float* mean, const float* rstd, Norm norm, int N,
                                                  int C) {
    const int parts = least(N, RANGES);
    float* partial = static_cast<float*>(cpu_scratch(norm_scratch(N, C)));    // (parts,2,C)
    each_item(parts, int64_t(N) * C, [&](int64_t p) {
        float* part = partial + p * 2 * C;
        each_vector(2 * C, [&](int64_t c, auto at) { at.put(part + c, vf{}); });
        for (int64_t n = N * p / parts; n < N * (p + 1) / parts; n++) {
            const int64_t row = n * C;
            backward_row<rms>(dx + row, part, dy + row, x + row, w, db != nullptr, rms ? 0 : mean[n], rstd[n],
                              norm.plus, C);
        }
    });
    if (dw) add_parts(dw, partial, parts, 2 * C, C);
    if (db) add_parts(db, partial + C, parts, 2 * C, C);
}
template <class P> static void norm_backward(float* dx, float* dw, float* db, const float* dy, const float* x,
                                             const P* w, const float* mean, const float* rstd, Norm norm, int N,
                                             int C) {
    norm.rms ? backward<true>(dx, dw, db, dy, x, w, mean, rstd, norm, N, C)
             : backward<false>(dx, dw, db, dy, x, w, mean, rstd, norm, N, C);
}

// y = x + scale * drop(b) for n <= ONE_THREAD elements; x null: 0.
template <class X> static void add_with_dropout(X* y, const float* x, const X* b, float scale, int n, Dropout drop) {
    const float factor = scale * drop.factor();
    const vu keep_threshold = vu{} + drop.keep_threshold();
    uint32_t words[RANDOMS + VW];    // a tail reads a whole vector
    for (int count; n > 0; n -= count, drop.first += count, y += count, x += x ? count : 0, b += count) {
        const int skip = int(drop.first % 4);
        count = least(n, RANDOMS - skip);
        random_words<4, 1>(words, drop.seed, 0, uint64_t(drop.first / 4));
        each_vector(count, [&](int64_t i, auto at) {
            vu word;
            __builtin_memcpy(&word, words + skip + i, sizeof word);
            const vf add = word >= keep_threshold ? at.get(b + i) * factor : vf{};
            at.put(y + i, x ? at.get(x + i) + add : add);
        });
    }
}
template <class X>
static void each_with_dropout(X* y, const float* x, const X* b, float scale, int64_t n, Dropout drop) {
    each_range(n, ONE_THREAD, n, [&](Range r, int) {
        for (int64_t i = r.from; i < r.to; i += ONE_THREAD)
            add_with_dropout(y + i, x ? x + i : nullptr, b + i, scale, int(least64(ONE_THREAD, r.to - i)),
                             {drop.rate, drop.seed, drop.first + i});
    });
}
template <class X> static void drop_inputs(X* y, const X* x, int64_t n, Dropout drop) {
    each_with_dropout<X>(y, nullptr, x, 1, n, drop);
}
static void add_scaled(float* y, const float* x, const float* b, float scale, int64_t n, Dropout drop) {
    if (drop.rate > 0) return each_with_dropout(y, x, b, scale, n, drop);
    each_range(n, ONE_THREAD, n, [&](Range r, int) {
        each_vector(r.to - r.from, [&](int64_t j, auto at) {
            const int64_t i = r.from + j;
            const vf add = rounded_product(at.get(b + i) * scale);
            at.put(y + i, x ? at.get(x + i) + add : add);
        });
    });
}

static int64_t backward_scratch(const CallSizes& call) { return norm_scratch(call.rows, call.in); }

REGISTER_CPU(norm_forward, (norm_forward<P, P>))
REGISTER_CPU(stream_norm_forward, (norm_forward<float, P>))
REGISTER_CPU_WITH_SCRATCH(norm_backward, norm_backward<P>, backward_scratch)
REGISTER_CPU(add_scaled, add_scaled)
REGISTER_CPU(drop_inputs, drop_inputs<P>)
}    // namespace ISA

// norm.cpp - LayerNorm over rows of C. A row stays in L1 for all its passes, so memory is the bound: 8 bytes per
// element forward, 16 backward.
//
// dw and db sum over rows. The rows are cut into at most PARTS ranges, by N alone and never by the number of threads.
// Each range has sums of its own, and these are added in order.
#include "layers/simd/vec.h"

namespace ISA {
constexpr int PARTS = 32;

template <class P> static void layernorm_forward(float* y, float* mean, float* rstd, const float* x, const P* w,
                                                 const P* b, float eps, int N, int C) {
#pragma omp parallel for schedule(static) if (int64_t(N) * C > ONE_THREAD)
    for (int n = 0; n < N; n++) {
        const float* xn = x + int64_t(n) * C;
        float* yn = y + int64_t(n) * C;
        vf s = {}, q = {};
        each_vector(C, [&](int64_t c, auto at) { s += at.get(xn + c); });
        float m = sum(s) / float(C);
        each_vector(C, [&](int64_t c, auto at) {
            vf d = at.others(at.get(xn + c) - m, 0);
            q += d * d;
        });
        float r = 1 / __builtin_sqrtf(sum(q) / float(C) + eps);
        each_vector(C, [&](int64_t c, auto at) {
            at.put(yn + c, (at.get(xn + c) - m) * r * at.get(w + c) + at.get(b + c));
        });
        mean[n] = m;
        rstd[n] = r;
    }
}

// One row: dx += its gradient, part (2,C) += its share of dw and db.
template <class P> INLINE void backward_row(float* dx, float* part, const float* dy, const float* x, const P* w,
                                            float m, float r, int C) {
    vf g_sum = {}, gx_sum = {};
    each_vector(C, [&](int64_t c, auto at) {
        vf d = at.get(dy + c), xhat = (at.get(x + c) - m) * r, g = d * at.get(w + c);
        g_sum += g;
        gx_sum += g * xhat;
        at.put(part + c, at.get(part + c) + d * xhat);
        at.put(part + C + c, at.get(part + C + c) + d);
    });
    float g_mean = sum(g_sum) / float(C), gx_mean = sum(gx_sum) / float(C);
    each_vector(C, [&](int64_t c, auto at) {
        vf xhat = (at.get(x + c) - m) * r, g = at.get(dy + c) * at.get(w + c);
        at.put(dx + c, at.get(dx + c) + r * (g - g_mean - xhat * gx_mean));
    });
}

static int64_t norm_scratch(int N, int C) { return int64_t(sizeof(float)) * least(N, PARTS) * 2 * C; }

template <class P>
static void layernorm_backward(float* dx, float* dw, float* db, const float* dy, const float* x, const P* w,
                               const float* mean, const float* rstd, int N, int C) {
    const int parts = least(N, PARTS);
    float* partial = static_cast<float*>(cpu_scratch(norm_scratch(N, C)));    // (parts,2,C)
#pragma omp parallel
    {
#pragma omp for schedule(static)
        for (int p = 0; p < parts; p++) {
            float* part = partial + int64_t(p) * 2 * C;
            each_vector(2 * C, [&](int64_t c, auto at) { at.put(part + c, vf{}); });
            for (int n = int(int64_t(N) * p / parts); n < int(int64_t(N) * (p + 1) / parts); n++) {
                int64_t row = int64_t(n) * C;
                backward_row(dx + row, part, dy + row, x + row, w, mean[n], rstd[n], C);
            }
        }
        Range r = my_share(C, 16);
        each_vector(r.to - r.from, [&](int64_t i, auto at) {
            int64_t c = r.from + i;
            vf sw = at.get(partial + c), sb = at.get(partial + C + c);
            for (int p = 1; p < parts; p++) {
                sw += at.get(partial + int64_t(p) * 2 * C + c);
                sb += at.get(partial + int64_t(p) * 2 * C + C + c);
            }
            at.put(dw + c, at.get(dw + c) + sw);
            at.put(db + c, at.get(db + c) + sb);
        });
    }
}

static int64_t backward_scratch(const CallSizes& call) { return norm_scratch(call.rows, call.in); }

ENTRY(layernorm_forward, layernorm_forward<P>)
ENTRY_WITH_SCRATCH(layernorm_backward, layernorm_backward<P>, backward_scratch)
}   // namespace ISA

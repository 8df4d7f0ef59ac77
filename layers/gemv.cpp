// gemv.cpp - linear_forward for the few rows of generation, N <= GEMV_ROWS.
//
// Each thread owns a range of the rows of w and reads it once, in address order; all rows of x stay in L1. Bound by
// memory: 4 bytes a weight, 2 of bf16. There x is rounded to bf16, as the large products round it, once and beforehand.
#include "vec.h"

namespace ISA {
// Lines of w that are asked for beforehand: with several rows of x the CPU by itself does not look far enough ahead.
// 1 and 2 rows against GPT-2's head in bf16: 74 and 70 GB/s without, 86 and 80 with (2 cores of Zen 5, 2026-11-21).
constexpr int AHEAD = 64;

// n rows of x at a time against one row of w: U x n sums hide the latency of the FMAs.
template <int n, class P> static void dot_rows(float* y, const float* x, const P* w, const P* b, const float* residual,
                                               int C, int OC) {
    constexpr int U = n == 1 ? 8 : n == 2 ? 4 : 2, LINE = 64 / sizeof(P);
#pragma omp parallel
    {
        Range r = my_share(OC, 16);
        for (int64_t o = r.from; o < r.to; o++) {
            const P* row = w + o * C;
            vf s[U][n] = {};
            int c = 0;
            for (; c + U * VW <= C; c += U * VW)
#pragma GCC unroll 8
                for (int u = 0; u < U; u++) {
                    if (u * VW % LINE == 0) __builtin_prefetch(row + c + u * VW + AHEAD * LINE);
                    vf v = load(row + c + u * VW);
#pragma GCC unroll 4
                    for (int i = 0; i < n; i++) s[u][i] += v * load(x + int64_t(i) * C + c + u * VW);
                }
            each_vector(C - c, [&](int64_t j, auto at) {
                vf v = at.get(row + c + j);
#pragma GCC unroll 4
                for (int i = 0; i < n; i++) s[0][i] += v * at.get(x + int64_t(i) * C + c + j);
            });
#pragma GCC unroll 4
            for (int i = 0; i < n; i++) {
#pragma GCC unroll 8
                for (int u = 1; u < U; u++) s[0][i] += s[u][i];
                float add = (b ? widened(b[o]) : 0) + (residual ? residual[int64_t(i) * OC + o] : 0);
                y[int64_t(i) * OC + o] = sum(s[0][i]) + add;
            }
        }
    }
}

int64_t gemv_scratch(int C) { return int64_t(sizeof(float)) * GEMV_ROWS * C; }

template <class P> static void few_rows(float* y, const float* x, const P* w, const P* b, const float* residual, int N,
                                    int C, int OC) {
    if constexpr (sizeof(P) == 2) {
        float* rounded = static_cast<float*>(cpu_scratch(gemv_scratch(C)));
        each_vector(int64_t(N) * C, [&](int64_t i, auto at) { at.put(rounded + i, rounded_bf16(at.get(x + i))); });
        x = rounded;
    }
    if (N == 1) dot_rows<1>(y, x, w, b, residual, C, OC);
    if (N == 2) dot_rows<2>(y, x, w, b, residual, C, OC);
    if (N == 3) dot_rows<3>(y, x, w, b, residual, C, OC);
    if (N == 4) dot_rows<4>(y, x, w, b, residual, C, OC);
}

void gemv(float* y, const float* x, const float* w, const float* b, const float* residual, int N, int C, int OC) {
    few_rows(y, x, w, b, residual, N, C, OC);
}
void gemv(float* y, const float* x, const bf16* w, const bf16* b, const float* residual, int N, int C, int OC) {
    few_rows(y, x, w, b, residual, N, C, OC);
}
}   // namespace ISA

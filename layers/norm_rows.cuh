// norm_rows.cuh - norms within a block, for kernels that go on with what is normed: the same bits as norm_forward's.
#pragma once
#include "cuda.cuh"

namespace {
// No weights count as 0 + 1.
inline Norm with_weights(Norm norm, const void* w) {
    if (!w) norm.plus = 1;
    return norm;
}
// norm_forward adds a row up by so many threads, warp by warp; each has every threads-th vector.
template <class T> inline int norm_threads(int C) {
    const int64_t vectors = C / VEC<T>;
    return !rows_align<T>(C) || vectors <= 8 * 32 ? 32 : int(round_up(ceil_div(vectors, 4), 32));
}

template <class T> struct NormOf {
    const T *w, *b;
    Norm norm;
    float inv_C;
    int warps;    // that norm_forward has for a row
    NormOf(const T* w, const T* b, Norm norm, int C)
        : w(w), b(b), norm(with_weights(norm, w)), inv_C(1 / float(C)), warps(norm_threads<T>(C) / 32) {}
};

// to (N,C), in shared memory = x (N,C) normed, by a block of WARPS warps, each of which adds up whole parts of rows.
// x comes from memory once, then from L1. Ends with a barrier.
template <int WARPS, class T, int W, int N>
__device__ inline void norm_rows(T* to, const T* x, const NormOf<T>& of, int C) {
    SHARED(float[N][32], sums);
    SHARED(float[N][32], squares);
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    auto add_up = [&](float (&parts)[N][32], auto term) {    // term(n): a function of an element of row n
#pragma unroll 1
        for (int n = 0; n < N; n++)
            for (int part = (warp + N * WARPS - n) % WARPS; part < of.warps; part += WARPS) {
                const auto of_row = term(n);
                float s = 0;
#pragma unroll 4
                for (int c = (part * 32 + lane) * W; c < C; c += of.warps * 32 * W) {
                    const Vec<T, W> v = load<W>(x + int64_t(n) * C + c);
#pragma unroll
                    for (int i = 0; i < W; i++) s += of_row(v[i]);
                }
                s = warp_sum(s);
                if (lane == 0) parts[n][part] = s;
            }
        __syncthreads();
    };
    auto mean_of = [&](const float (&parts)[N][32], int n) {    // all lanes of a warp together
        return (of.warps > 1 ? warp_sum(lane < of.warps ? parts[n][lane] : 0) : parts[n][0]) * of.inv_C;
    };
    if (!of.norm.rms) add_up(sums, [&](int) { return [](float x) { return x; }; });
    add_up(squares, [&](int n) {
        const float m = of.norm.rms ? 0 : mean_of(sums, n);
        return [m](float x) { return (x - m) * (x - m); };
    });
    float m[N], r[N];
#pragma unroll
    for (int n = 0; n < N; n++) {
        m[n] = of.norm.rms ? 0 : mean_of(sums, n);
        r[n] = rsqrtf(mean_of(squares, n) + of.norm.eps);
    }
    for (int c = threadIdx.x * W; c < C; c += WARPS * 32 * W) {
        const Vec<T, W> weight = of.w ? load<W>(of.w + c) : Vec<T, W>{}, bias = of.b ? load<W>(of.b + c) : Vec<T, W>{};
#pragma unroll
        for (int n = 0; n < N; n++) {
            const Vec<T, W> v = load<W>(x + int64_t(n) * C + c);
            Vec<T, W> out;
#pragma unroll
            for (int i = 0; i < W; i++) out.set(i, (v[i] - m[n]) * r[n] * (weight[i] + of.norm.plus) + bias[i]);
            store<W>(to + int64_t(n) * C + c, out);
        }
    }
    __syncthreads();
}
}   // namespace

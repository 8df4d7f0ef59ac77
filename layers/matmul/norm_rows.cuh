// norm_rows.cuh - norms of rows within a block that then uses them; bits equal norm_forward's.
#pragma once
#include "layers/ptx/ptx.cuh"

namespace {
// Without weights the kernels read w as 0: plus = 1 then makes the norm's factor 1.
inline Norm with_weights(Norm norm, const void* w) {
    if (!w) norm.plus = 1;
    return norm;
}
// Number of threads with which norm_forward sums a row; each has every threads-th vector.
template <class T> inline int norm_threads(int C) {
    const int64_t vectors = C / VEC<T>;
    return !rows_align<T>(C) || vectors <= 8 * 32 ? 32 : int(round_up(ceil_div(vectors, 4), 32));
}

// A norm's steps with every rounding written out: nvcc's choice of FMAs depends on the surrounding
// code, and a norm within a product must have the bits of the norm alone.
__device__ inline float norm_mean(float sum, float inv_C) { return __fmul_rn(sum, inv_C); }
__device__ inline float norm_add_square(float sum, float x, float mean) {
    const float d = x - mean;
    return __fmaf_rn(d, d, sum);
}
__device__ inline float norm_rstd(float squares, float inv_C, float eps) {
    return rsqrtf(__fmaf_rn(squares, inv_C, eps));
}
__device__ inline float norm_value(float x, float mean, float rstd, float factor, float bias) {
    return __fmaf_rn(__fmul_rn(x - mean, rstd), factor, bias);
}

template <class T> struct NormOf {
    const T *w, *b;
    Norm norm;
    float inv_C;
    int warps;    // warps per row in norm_forward
    NormOf(const T* w, const T* b, Norm norm, int C)
        : w(w), b(b), norm(with_weights(norm, w)), inv_C(1 / float(C)), warps(norm_threads<T>(C) / 32) {}
    // Prefetches the weights to L2, a line of 128 bytes a thread.
    __device__ void prefetch(int C) const {
        constexpr int LINE = 128 / int(sizeof(T));
        for (int c = threadIdx.x * LINE; c < C; c += blockDim.x * LINE) {
            if (w) prefetch_l2(w + c);
            if (b) prefetch_l2(b + c);
        }
    }
};

// to (N,C), in shared memory = norm of x (N,C), by a block of WARPS warps. In norm_forward each
// warp sums a part of a row; here a warp sums whole parts, so that the bits are equal. x comes from
// memory once, then from L1. Ends in a barrier.
template <int WARPS, class T, int W, int N>
__device__ inline void norm_rows(T* to, const T* x, const NormOf<T>& of, int C) {
    SHARED(float[N][32], sums);
    SHARED(float[N][32], squares);
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    Vec<T, W> weight = {}, bias = {};    // the next columns', loaded during the reduction
    auto fetch = [&](int c) {
        if (of.w && c < C) weight = load<W>(of.w + c);
        if (of.b && c < C) bias = load<W>(of.b + c);
    };
    fetch(threadIdx.x * W);
    auto add_up = [&](float(&parts)[N][32], auto term) {    // term(n)(sum, x): row n's sum plus its term of x
#pragma unroll 1
        for (int n = 0; n < N; n++)
            for (int part = (warp + N * WARPS - n) % WARPS; part < of.warps; part += WARPS) {
                const auto of_row = term(n);
                float s = 0;
#pragma unroll 4
                for (int c = (part * 32 + lane) * W; c < C; c += of.warps * 32 * W) {
                    const Vec<T, W> v = load<W>(x + int64_t(n) * C + c);
#pragma unroll
                    for (int i = 0; i < W; i++) s = of_row(s, v[i]);
                }
                s = warp_sum(s);
                if (lane == 0) parts[n][part] = s;
            }
        __syncthreads();
    };
    auto total = [&](const float(&parts)[N][32], int n) {    // called by all lanes of a warp
        return of.warps > 1 ? warp_sum(lane < of.warps ? parts[n][lane] : 0) : parts[n][0];
    };
    if (!of.norm.rms) add_up(sums, [&](int) { return [](float s, float x) { return s + x; }; });
    add_up(squares, [&](int n) {
        const float m = of.norm.rms ? 0 : norm_mean(total(sums, n), of.inv_C);
        return [m](float s, float x) { return norm_add_square(s, x, m); };
    });
    float m[N], r[N];
#pragma unroll
    for (int n = 0; n < N; n++) {
        m[n] = of.norm.rms ? 0 : norm_mean(total(sums, n), of.inv_C);
        r[n] = norm_rstd(total(squares, n), of.inv_C, of.norm.eps);
    }
    for (int c = threadIdx.x * W; c < C; c += WARPS * 32 * W) {
#pragma unroll
        for (int n = 0; n < N; n++) {
            const Vec<T, W> v = load<W>(x + int64_t(n) * C + c);
            Vec<T, W> out;
#pragma unroll
            for (int i = 0; i < W; i++) out.set(i, norm_value(v[i], m[n], r[n], weight[i] + of.norm.plus, bias[i]));
            store<W>(to + int64_t(n) * C + c, out);
        }
        fetch(c + WARPS * 32 * W);
    }
    __syncthreads();
}
}    // namespace

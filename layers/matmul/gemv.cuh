// gemv.cuh - linear.cu's kernels that replace cuBLASLt: products of few rows, and column sums.
#pragma once
#include <algorithm>

#include "layers/activation.cuh"

namespace {
// ---- few rows -----------------------------------------------------------------------------------

// y[n,o] = sum_c x[n,c] w[o,c] + b[o] + residual[n,o];  with pre: pre = this sum, y = gelu(pre)
//
// Products of generation. Bound by reading w once, OC C elements; x comes from L1. A warp has R
// rows of w; for long C, 2 or 4 warps share them, so that a lane has about four 16-byte loads of w
// in flight. A weight costs its conversion, N multiply-adds and, as R = 2 rows share x, the
// conversions of N / 2 elements of x: 13 operations for N = 8. Per clock, a multiprocessor of an
// H200 reads 10 bf16 weights and does 128 operations, so operations would be the bound there.
//
// The first loads of w overlap the previous kernel, which writes x, never w (Launch::overlaps).
constexpr int GEMV_WARPS = 4;

// A lane's part of the products of R rows of w with N rows of x: vectors of W elements that begin
// `stride` elements apart. stride, a power of two, covers all lanes that share the rows of w.
template <class T, int W, int N, int R> struct GemvLane {
    static constexpr int FLIGHT = 4 / R;
    Vec<T, W> weight[FLIGHT][R];
    float sum[R][N] = {};
    int C, stride, from;
    __device__ GemvLane(int C, int split) : C(C), stride(split * 32 * W), from(threadIdx.x * W & (stride - 1)) {}
    // Loads the next vectors of w. row(r): address of row r.
    template <class F> __device__ void fetch(F row) {
#pragma unroll
        for (int k = 0; k < FLIGHT; k++)
            if (const int c = from + k * stride; c < C)
#pragma unroll
                for (int r = 0; r < R; r++) weight[k][r] = load<W>(row(r) + c);
    }
    // Multiplies the loaded vectors, and advances.
    __device__ void add(const T* x) {
        Vec<T, W> v[FLIGHT][N];
#pragma unroll
        for (int k = 0; k < FLIGHT; k++)
            if (const int c = from + k * stride; c < C)
#pragma unroll
                for (int n = 0; n < N; n++) v[k][n] = load<W>(x + int64_t(n) * C + c);
#pragma unroll
        for (int k = 0; k < FLIGHT; k++)
            if (from + k * stride < C)
#pragma unroll
                for (int r = 0; r < R; r++)
#pragma unroll
                    for (int n = 0; n < N; n++)
#pragma unroll
                        for (int i = 0; i < W; i++) sum[r][n] += v[k][n][i] * weight[k][r][i];
        from += FLIGHT * stride;
    }
    // Writes the warp's sums, and goes back to the lane's first column for the next rows of w.
    __device__ void finish(float (&sums)[R][N]) {
#pragma unroll
        for (int r = 0; r < R; r++)
#pragma unroll
            for (int n = 0; n < N; n++) {
                const float s = warp_sum(sum[r][n]);
                if (threadIdx.x % 32 == 0) sums[r][n] = s;
                sum[r][n] = 0;
            }
        from = threadIdx.x * W & (stride - 1);
    }
};

// b and residual are loaded before the products: loads after them would each cost a latency. 1 <<
// shift warps share rows of w.
template <class T, int W, int N, int R> __global__ void gemv_kernel(T* y, T* pre, const T* x, const T* w, const T* b,
                                                                    const T* residual, int C, int OC, int shift) {
    SHARED(float[GEMV_WARPS][R][N], sums);
    const int warp = threadIdx.x / 32, groups = GEMV_WARPS >> shift;
    const int64_t first = blockIdx.x * int64_t(groups * R), mine = first + (warp >> shift) * R;
    auto row = [&](int r) { return w + (mine + r < OC ? mine + r : OC - 1) * C; };    // rows past the last repeat it
    GemvLane<T, W, N, R> own(C, 1 << shift);
    own.fetch(row);
    const int t = threadIdx.x, n = t % N, r = t / N % R, group = t / (N * R);
    const int64_t o = first + group * R + r, at = n * int64_t(OC) + o;
    const bool writes = group < groups && o < OC;
    T bias = {}, before = {};
    if (b && writes) bias = b[o];
    wait_for_previous();
    let_next_start();
    if (residual && writes) before = residual[at];
    for (; own.from < C; own.fetch(row)) own.add(x);
    own.finish(sums[warp]);
    __syncthreads();
    if (!writes) return;
    float s = to_float(bias) + to_float(before);
#pragma unroll
    for (int i = 0; i < GEMV_WARPS; i++)
        if (i < 1 << shift) s += sums[(group << shift) + i][r][n];
    if (pre) pre[at] = from_float<T>(s), s = gelu(s);
    y[at] = from_float<T>(s);
}

// Logarithm of the number of warps that share a row.
template <class T> int gemv_shift(int C) {
    const int64_t loads = ceil_div(C, 32 * VEC<T>);
    return loads <= 4 ? 0 : loads <= 8 ? 1 : 2;
}
template <class T, int MOST = GEMV_ROWS, int N = 1>
void gemv(T* y, T* pre, const T* x, const T* w, const T* b, const T* residual, int rows, int C, int OC) {
    if constexpr (N < MOST)
        if (rows > N) return gemv<T, MOST, N + 1>(y, pre, x, w, b, residual, rows, C, OC);
    constexpr int R = N > 1 ? 2 : 1;    // two rows halve the loads of x
    const int shift = gemv_shift<T>(C);
    const Launch by = {
        .grid = unsigned(ceil_div(OC, (GEMV_WARPS >> shift) * R)), .block = GEMV_WARPS * 32, .overlaps = true};
    auto run = [&](auto kernel) { launch(kernel, by, y, pre, x, w, b, residual, C, OC, shift); };
    rows_align<T>(C) ? run(gemv_kernel<T, VEC<T>, N, R>) : run(gemv_kernel<T, 1, N, R>);
}

// ---- column sums --------------------------------------------------------------------------------

// out[p,c] = sum of x[n,c] over the p-th range of rows; += if there is only one range.
//
// Each lane has one vector of columns, each warp every eighth row; then the warps' sums are added
// in order. Bound by reading x: N C elements. The ranges' sums, at most 128 * 4 C bytes, stay in
// L2; the same kernel adds them. The number of ranges depends on N alone.
constexpr int SUM_WARPS = 8;

// Adds a warp's next ROWS rows; all loads are in flight before the first is used.
template <int ROWS, class X, int W> __device__ inline void add_rows(float (&sum)[W], const X* x, int C) {
    Vec<X, W> v[ROWS];
#pragma unroll
    for (int k = 0; k < ROWS; k++) v[k] = load<W>(x + int64_t(k * SUM_WARPS) * C);
#pragma unroll
    for (int k = 0; k < ROWS; k++)
#pragma unroll
        for (int i = 0; i < W; i++) sum[i] += v[k][i];
}

// Adds the sums that the warps' lanes have for W columns each, from column c on, warp by warp.
// Calls put(column, sum) for each column below C.
template <int W, class Put> __device__ inline void add_warps(const float (&sum)[W], int64_t c, int C, Put put) {
    SHARED(float[SUM_WARPS][W][32], sums);
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
#pragma unroll
    for (int i = 0; i < W; i++) sums[warp][i][lane] = sum[i];
    __syncthreads();
    if (warp >= W || c >= C) return;
    float s = 0;    // sum of column c + warp
    for (int i = 0; i < SUM_WARPS; i++) s += sums[i][warp][lane];
    put(c + warp, s);
}

template <class X, int W> __global__ void column_sums_kernel(float* out, const X* x, int N, int C, int rows, bool add) {
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const int64_t c = (blockIdx.x * 32ll + lane) * W, from = int64_t(blockIdx.y) * rows;
    const int64_t to = from + rows < N ? from + rows : N;
    float sum[W] = {};
    if (c < C) {
        int64_t n = from + warp;
        for (; n + 3 * SUM_WARPS < to; n += 4 * SUM_WARPS) add_rows<4>(sum, x + n * C + c, C);
        for (; n < to; n += SUM_WARPS) add_rows<1>(sum, x + n * C + c, C);
    }
    add_warps(sum, c, C, [&](int64_t column, float s) {
        float& to_column = out[blockIdx.y * int64_t(C) + column];
        to_column = add ? to_column + s : s;
    });
}

template <class X> void sum_ranges(float* out, const X* x, int N, int C, int rows, bool add) {
    auto run = [&](auto kernel, int W) {
        const dim3 grid(unsigned(ceil_div(C, 32 * W)), unsigned(ceil_div(N, rows)));
        launch(kernel, {grid, SUM_WARPS * 32}, out, x, N, C, rows, add);
    };
    rows_align<X>(C) ? run(column_sums_kernel<X, VEC<X>>, VEC<X>) : run(column_sums_kernel<X, 1>, 1);
}

// out[c] += sum_n x[n,c]
template <class X> void column_sums(float* out, const X* x, int N, int C) {
    const int rows = int(column_sum_rows(N)), parts = int(ceil_div(N, rows));
    if (parts == 1) return sum_ranges(out, x, N, C, N, true);
    float* partial = static_cast<float*>(cuda_scratch(int64_t(parts) * C * 4));
    sum_ranges(partial, x, N, C, rows, false);
    sum_ranges(out, partial, parts, C, parts, true);
}

// y[n,o] = b[o] + residual[n,o]; a product that cannot add a bias is then added to y.
template <class T> __global__ void bias_rows_kernel(T* y, const T* b, const T* residual, int64_t n, int OC) {
    const int64_t i = blockIdx.x * 256ll + threadIdx.x;
    if (i < n) y[i] = from_float<T>(to_float(b[i % OC]) + (residual ? to_float(residual[i]) : 0));
}
}    // namespace

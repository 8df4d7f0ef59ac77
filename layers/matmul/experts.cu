// experts.cu - products of rows ordered by expert (grouped_gemm.cuh), the permutation of rows to
// experts and back, and row gates.
//
// Gather, combine and gates are bound by memory and use 16-byte vectors. Gather moves N C (1 + K)
// elements, combine N C (2 + K) with the residual, and combine's backward pass N C (1 + 2 K): it
// reads dy K times, but only once from memory, then from L1. A warp has a row where sums run along
// it; else a thread has one vector of a row, so that few long rows also fill a GPU.
#include "layers/activation.cuh"
#include "grouped_gemm.cuh"

namespace {
constexpr int ROWS = 4;    // rows per block, a warp each

// Launch shape for rows of C elements in vectors of W: `per_row` blocks a row.
struct Vectors {
    unsigned per_row, threads;
    Vectors(int C, int W) {
        const int64_t vectors = ceil_div(C, W);
        threads = unsigned(std::min<int64_t>(256, round_up(vectors, 32)));
        per_row = unsigned(ceil_div(vectors, threads));
    }
    Launch over(int64_t rows) const { return {unsigned(rows * per_row), threads}; }
};
// Calls f(W), W an integral constant: elements of a vector, or 1 if rows of C are not aligned.
template <class T, class F> void for_width(int C, F f) {
    if (rows_align<T>(C)) f(std::integral_constant<int, VEC<T>>());
    else f(std::integral_constant<int, 1>());
}

// ---- permutation of rows ------------------------------------------------------------------------

template <class T, int W>
__global__ void gather_kernel(T* y, const T* x, const int* row, int K, int C, unsigned per_row) {
    const int64_t i = blockIdx.x / per_row;
    const int c = int(blockIdx.x % per_row * blockDim.x + threadIdx.x) * W;
    if (c < C) store<W>(y + i * C + c, load<W>(x + int64_t(row[i] / K) * C + c));
}
template <class T> void experts_gather(T* y, const T* x, Routes routes, Router r, int N, int C) {
    for_width<T>(C, [&](auto W) {
        const Vectors v(C, W);
        launch(gather_kernel<T, W>, v.over(int64_t(N) * r.K), y, x, routes.row, r.K, C, v.per_row);
    });
}

template <class T, int W> __global__ void combine_kernel(T* y, const T* residual, const T* x, const float* factors,
                                                         const int* permuted_row, int K, int C, unsigned per_row) {
    const int64_t n = blockIdx.x / per_row;
    const int c = int(blockIdx.x % per_row * blockDim.x + threadIdx.x) * W;
    if (c >= C) return;
    const Vec<T, W> old = residual ? load<W>(residual + n * C + c) : Vec<T, W>{};
    float sum[W];
#pragma unroll
    for (int j = 0; j < W; j++) sum[j] = old[j];
#pragma unroll 4
    for (int64_t row = n * K; row < (n + 1) * K; row++) {
        const Vec<T, W> v = load<W>(x + int64_t(permuted_row[row]) * C + c);
        const float factor = factors ? factors[row] : 1;
#pragma unroll
        for (int j = 0; j < W; j++) sum[j] += factor * v[j];
    }
    Vec<T, W> out;
#pragma unroll
    for (int j = 0; j < W; j++) out.set(j, sum[j]);
    store<W>(y + n * C + c, out);
}
template <class T>
void experts_combine(T* y, const T* residual, const T* x, const float* factors, Routes routes, Router r, int N, int C) {
    for_width<T>(C, [&](auto W) {
        const Vectors v(C, W);
        launch(combine_kernel<T, W>, v.over(N), y, residual, x, factors, routes.permuted_row, r.K, C, v.per_row);
    });
}

// to = factor * dy; returns dy . x over a row, by one warp. to may be dy or x.
template <class T, int W> __device__ inline float scale_and_dot(T* to, const T* dy, const T* x, float factor, int C) {
    float dot = 0;
#pragma unroll 4
    for (int c = threadIdx.x % 32 * W; c < C; c += 32 * W) {
        Vec<T, W> d = load<W>(dy + c);
        const Vec<T, W> v = load<W>(x + c);
#pragma unroll
        for (int j = 0; j < W; j++) {
            dot += d[j] * v[j];
            d.set(j, factor * d[j]);
        }
        store<W>(to + c, d);
    }
    return warp_sum(dot);
}

template <class T, int W> __global__ void combine_backward_kernel(T* dx, float* dfactors, const T* dy, const T* x,
                                                                  const float* factors, const int* permuted_row,
                                                                  int64_t rows, int K, int C) {
    const int64_t row = blockIdx.x * int64_t(ROWS) + threadIdx.x / 32;
    if (row >= rows) return;
    const int64_t at = int64_t(permuted_row[row]) * C;
    const float dot = scale_and_dot<T, W>(dx + at, dy + row / K * C, x + at, factors[row], C);
    if (threadIdx.x % 32 == 0) dfactors[row] = dot;
}
template <class T> void experts_combine_backward(T* dx, float* dfactors, const T* dy, const T* x, const float* factors,
                                                 Routes routes, Router r, int N, int C) {
    const int64_t rows = int64_t(N) * r.K;
    for_width<T>(C, [&](auto W) {
        launch(combine_backward_kernel<T, W>, {unsigned(ceil_div(rows, ROWS)), ROWS * 32}, dx, dfactors, dy, x, factors,
               routes.permuted_row, rows, r.K, C);
    });
}

// ---- products -----------------------------------------------------------------------------------

template <class T> void experts_forward(T* y, const T* x, const T* w, Routes routes, Router r, int N, int C, int OC) {
    grouped<Product::y>(y, x, w, routes, r, N, C, OC);
}
template <class T> void experts_backward(T* dx, GradTarget<Grad<T>> dw, const T* dy, const T* x, const T* w,
                                         Routes routes, Router r, int N, int C, int OC) {
    grouped<Product::dx>(dx, dy, w, routes, r, N, C, OC);
    if (dw.p) grouped<Product::dw>(dw.p, dy, x, routes, r, N, C, OC, dw.add);
}

// ---- the gate of a row --------------------------------------------------------------------------

template <class T, int W> __global__ void row_gate_kernel(T* y, const T* x, const T* gate, int F, unsigned per_row) {
    const int64_t n = blockIdx.x / per_row;
    const int c = int(blockIdx.x % per_row * blockDim.x + threadIdx.x) * W;
    if (c >= F) return;
    const float s = sigmoid(to_float(gate[n])).s;
    Vec<T, W> v = load<W>(x + n * F + c);
#pragma unroll
    for (int j = 0; j < W; j++) v.set(j, s * v[j]);
    store<W>(y + n * F + c, v);
}
template <class T> void row_gate_forward(T* y, const T* x, const T* gate, int N, int F) {
    for_width<T>(F, [&](auto W) {
        const Vectors v(F, W);
        launch(row_gate_kernel<T, W>, v.over(N), y, x, gate, F, v.per_row);
    });
}

template <class T, int W>
__global__ void row_gate_backward_kernel(T* dx, T* dgate, const T* dy, const T* x, const T* gate, int N, int F) {
    const int64_t n = blockIdx.x * int64_t(ROWS) + threadIdx.x / 32;
    if (n >= N) return;
    const Gate g = sigmoid(to_float(gate[n]));
    const float dot = scale_and_dot<T, W>(dx + n * F, dy + n * F, x + n * F, g.s, F);
    if (threadIdx.x % 32 == 0) dgate[n] = from_float<T>(g.slope * dot);
}
template <class T> void row_gate_backward(T* dx, T* dgate, const T* dy, const T* x, const T* gate, int N, int F) {
    for_width<T>(F, [&](auto W) {
        launch(row_gate_backward_kernel<T, W>, {unsigned(ceil_div(N, ROWS)), ROWS * 32}, dx, dgate, dy, x, gate, N, F);
    });
}

const CudaRegistration entries([]<class T>(Ops<T>& o, Dtype) {
    o.experts_gather = experts_gather<T>;
    o.experts_combine = experts_combine<T>;
    o.experts_combine_backward = experts_combine_backward<T>;
    o.experts_forward = experts_forward<T>;
    o.experts_backward = experts_backward<T>;
    o.row_gate_forward = row_gate_forward<T>;
    o.row_gate_backward = row_gate_backward<T>;
});
}    // namespace

template <class T>
void own_product(Product product, void* out, const T* a, const T* b, int N, int C, int OC, bool add) {
    const Groups<T> all = {nullptr, a, b, 1, C, OC, add, N};
    if (product == Product::y) grouped<Product::y>(static_cast<T*>(out), all);
    else if (product == Product::dx) grouped<Product::dx>(static_cast<T*>(out), all);
    else if (product == Product::symmetric) grouped<Product::symmetric>(static_cast<T*>(out), all);
    else grouped<Product::dw>(static_cast<Grad<T>*>(out), all);
}
template void own_product(Product, void*, const float*, const float*, int, int, int, bool);
template void own_product(Product, void*, const bf16*, const bf16*, int, int, int, bool);

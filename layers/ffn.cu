// ffn.cu - GELU of what is in memory; the formula is in gelu.cuh.
//
// A thread takes two 16-byte vectors, a block's width apart; both are in flight at once. Bound by memory: forward reads
// n and writes n elements, backward reads 2 n and writes n. A multiprocessor's special function unit does 16 operations
// per clock, two per element: 8 elements per clock, where an H200's memory feeds 5 of bf16.
#include "gelu.cuh"

namespace {
constexpr int THREADS = 256, VECS = 2;

// BACKWARD: out = dy gelu'(x). Else out = gelu(x), and dy is not read.
template <class T, bool BACKWARD> __global__ void gelu_kernel(T* out, const T* dy, const T* x, int64_t n) {
    constexpr int W = VEC<T>;
    auto value = [](float x, float d) { return BACKWARD ? d * gelu_slope(x) : gelu(x); };
    const int64_t first = (blockIdx.x * int64_t(VECS * THREADS) + threadIdx.x) * W;
    Vec<T> v[VECS], d[VECS] = {};
#pragma unroll
    for (int k = 0; k < VECS; k++)
        if (int64_t i = first + k * THREADS * W; i + W <= n) {
            v[k] = load<W>(x + i);
            if (BACKWARD) d[k] = load<W>(dy + i);
        }
#pragma unroll
    for (int k = 0; k < VECS; k++) {
        int64_t i = first + k * THREADS * W;
        if (i + W <= n) {
#pragma unroll
            for (int j = 0; j < W; j++) v[k].set(j, value(v[k][j], d[k][j]));
            store<W>(out + i, v[k]);
        } else
            for (; i < n; i++) out[i] = from_float<T>(value(to_float(x[i]), BACKWARD ? to_float(dy[i]) : 0));
    }
}

template <class T> unsigned blocks(int64_t n) { return unsigned(ceil_div(n, VECS * THREADS * VEC<T>)); }
template <class T> void gelu_forward(T* y, const T* x, int64_t n) {
    launch(gelu_kernel<T, false>, {blocks<T>(n), THREADS}, y, nullptr, x, n);
}
template <class T> void gelu_backward(T* dx, const T* dy, const T* x, int64_t n) {
    launch(gelu_kernel<T, true>, {blocks<T>(n), THREADS}, dx, dy, x, n);
}

const CudaEntries entries([]<class T>(Ops<T>& o, Dtype) {
    o.gelu_forward = gelu_forward<T>;
    o.gelu_backward = gelu_backward<T>;
});
}   // namespace

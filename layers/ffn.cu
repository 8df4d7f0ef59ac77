// ffn.cu - GELU, the tanh form, as y = x sigmoid(2u), u = sqrt(2/pi) (x + 0.044715 x^3).
//
// A thread takes two 16-byte vectors a block apart; both are in flight at once. Bound by memory: forward reads n and
// writes n elements, backward reads 2 n and writes n. Two operations of the special function unit an element (exp2,
// reciprocal): at 16 a clock and multiprocessor that is 8 elements a clock, where an H200's memory feeds 5 of bf16.
#include "ptx.cuh"

namespace {
constexpr int THREADS = 256, VECS = 2;

// s = sigmoid(2u) and its slope s (1 - s), from a = exp(-|2u|): nothing overflows, and NaN stays NaN.
struct Gate { float s, slope; };
constexpr float K = 2 * 0.7978845608f, CUBIC = 0.044715f;    // 2 sqrt(2/pi)
__device__ inline Gate gate(float x) {
    const float u2 = x * (K + K * CUBIC * (x * x));
    const float a = exp2_approx(fabsf(u2) * -1.442695041f), r = __fdividef(1, 1 + a);
    return {u2 < 0 ? a * r : r, a * r * r};
}
__device__ inline float gelu(float x) { return x * gate(x).s; }
// d gelu / dx = s + x s (1-s) (2u)'
__device__ inline float gelu_slope(float x) {
    const Gate g = gate(x);
    return g.s + x * g.slope * (K + 3 * K * CUBIC * (x * x));
}

// ---- forward -------------------------------------------------------------------------------------------------------

template <class T> __global__ void gelu_forward_kernel(T* y, const T* x, int64_t n) {
    constexpr int W = VEC<T>;
    const int64_t first = (blockIdx.x * int64_t(VECS * THREADS) + threadIdx.x) * W;
    Vec<T> v[VECS];
#pragma unroll
    for (int k = 0; k < VECS; k++)
        if (int64_t i = first + k * THREADS * W; i + W <= n) v[k] = load<W>(x + i);
#pragma unroll
    for (int k = 0; k < VECS; k++) {
        int64_t i = first + k * THREADS * W;
        if (i + W <= n) {
#pragma unroll
            for (int j = 0; j < W; j++) v[k].set(j, gelu(v[k][j]));
            store<W>(y + i, v[k]);
        } else
            for (; i < n; i++) y[i] = from_float<T>(gelu(to_float(x[i])));
    }
}

template <class T> void gelu_forward(T* y, const T* x, int64_t n) {
    launch(gelu_forward_kernel<T>, {unsigned(ceil_div(n, VECS * THREADS * VEC<T>)), THREADS}, y, x, n);
}

// ---- backward ------------------------------------------------------------------------------------------------------

template <class T> __global__ void gelu_backward_kernel(T* dx, const T* dy, const T* x, int64_t n) {
    constexpr int W = VEC<T>;
    const int64_t first = (blockIdx.x * int64_t(VECS * THREADS) + threadIdx.x) * W;
    Vec<T> v[VECS], d[VECS];
#pragma unroll
    for (int k = 0; k < VECS; k++)
        if (int64_t i = first + k * THREADS * W; i + W <= n) v[k] = load<W>(x + i), d[k] = load<W>(dy + i);
#pragma unroll
    for (int k = 0; k < VECS; k++) {
        int64_t i = first + k * THREADS * W;
        if (i + W <= n) {
#pragma unroll
            for (int j = 0; j < W; j++) d[k].set(j, d[k][j] * gelu_slope(v[k][j]));
            store<W>(dx + i, d[k]);
        } else
            for (; i < n; i++) dx[i] = from_float<T>(to_float(dy[i]) * gelu_slope(to_float(x[i])));
    }
}

template <class T> void gelu_backward(T* dx, const T* dy, const T* x, int64_t n) {
    launch(gelu_backward_kernel<T>, {unsigned(ceil_div(n, VECS * THREADS * VEC<T>)), THREADS}, dx, dy, x, n);
}
}   // namespace

// ---- entries -------------------------------------------------------------------------------------------------------

template <class T> void ffn_entries(Ops<T>& o) {
    o.gelu_forward = gelu_forward<T>;
    o.gelu_backward = gelu_backward<T>;
}
template void ffn_entries(Ops<float>&);
template void ffn_entries(Ops<bf16>&);

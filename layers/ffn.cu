// ffn.cu - activations, plain and gated, and scaled sums. activation.cuh has the formulas.
//
// A thread has two 16-byte vectors of the output, a block's width apart; all their inputs are in
// flight at once. Bound by memory: forward reads n and writes n elements, backward reads 2 n and
// writes n; with gates forward reads 2 n, backward reads 3 n and writes 2 n. A multiprocessor's
// special function unit does 16 operations per clock, two per element: 8 elements per clock, while
// an H200's memory delivers 5 of bf16. GELU with Phi has 27 instructions (nvcc 13.0, sm_90a); at
// the speed of a copy there is time for 28 on an H200, 41 on an H100.
#include "base/philox.h"
#include "activation.cuh"
#include "dropout.h"

namespace {
constexpr int THREADS = 256, VECS = 2;

// BACKWARD: out = dy act'(x). Else out = act(x), and dy is unused.
template <class T, Act A, bool BACKWARD> __global__ void activation_kernel(T* out, const T* dy, const T* x, int64_t n) {
    constexpr int W = VEC<T>;
    auto value = [](float x, float d) { return BACKWARD ? d * activate<A>(x).slope : activate<A>(x).value; };
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

// A row of x has F gates, then the F values that these multiply. out (N,F); if BACKWARD, out has
// x's shape. per_row blocks share a row.
template <class T, int W, Act A, bool BACKWARD>
__global__ void gated_kernel(T* out, const T* dy, const T* x, unsigned per_row, int F) {
    const int64_t n = blockIdx.x / per_row;
    const int first = int(blockIdx.x % per_row * (VECS * THREADS) + threadIdx.x) * W;
    const T* gate = x + n * 2 * F;
    Vec<T, W> g[VECS], u[VECS], d[VECS];
#pragma unroll
    for (int k = 0; k < VECS; k++)
        if (const int c = first + k * THREADS * W; c < F) {
            g[k] = load<W>(gate + c), u[k] = load<W>(gate + F + c);
            if (BACKWARD) d[k] = load<W>(dy + n * F + c);
        }
#pragma unroll
    for (int k = 0; k < VECS; k++)
        if (const int c = first + k * THREADS * W; c < F) {
#pragma unroll
            for (int j = 0; j < W; j++) {
                const Activated a = activate<A>(g[k][j]);
                if (BACKWARD) {
                    const float dy = d[k][j];
                    g[k].set(j, dy * u[k][j] * a.slope), u[k].set(j, dy * a.value);
                } else g[k].set(j, a.value * u[k][j]);
            }
            store<W>(out + n * (BACKWARD ? 2 : 1) * F + c, g[k]);
            if (BACKWARD) store<W>(out + n * 2 * F + F + c, u[k]);
        }
}

template <class F> void for_act(Act act, F f) {
    switch (act) {
        case Act::gelu_tanh: return f(std::integral_constant<Act, Act::gelu_tanh>());
        case Act::gelu: return f(std::integral_constant<Act, Act::gelu>());
        case Act::silu: return f(std::integral_constant<Act, Act::silu>());
        case Act::relu: return f(std::integral_constant<Act, Act::relu>());
        case Act::relu2: return f(std::integral_constant<Act, Act::relu2>());
        case Act::tanh: return f(std::integral_constant<Act, Act::tanh>());
    }
}

template <class T, bool BACKWARD> void run(T* out, const T* dy, const T* x, Act act, bool gated, int N, int F) {
    for_act(act, [&](auto A) {
        auto gates = [&]<int W>() {
            const unsigned per_row = unsigned(ceil_div(F, VECS * THREADS * W));
            launch(gated_kernel<T, W, A, BACKWARD>, {unsigned(N * per_row), THREADS}, out, dy, x, per_row, F);
        };
        const int64_t n = int64_t(N) * F;
        if (gated && rows_align<T>(F)) gates.template operator()<VEC<T>>();
        else if (gated) gates.template operator()<1>();
        else
            launch(activation_kernel<T, A, BACKWARD>, {unsigned(ceil_div(n, VECS * THREADS * VEC<T>)), THREADS}, out,
                   dy, x, n);
    });
}
template <class T> void activation_forward(T* y, const T* x, Act act, bool gated, int N, int F) {
    run<T, false>(y, nullptr, x, act, gated, N, F);
}
template <class T> void stream_activation_forward(T* y, const T* x, Act act, int N, int F) {
    run<T, false>(y, nullptr, x, act, false, N, F);
}
template <class T> void activation_backward(T* dx, const T* dy, const T* x, Act act, bool gated, int N, int F) {
    run<T, true>(dx, dy, x, act, gated, N, F);
}

// Bit j: dropout keeps element i + j, j < W.
template <int W> __device__ inline uint32_t kept(const Dropout& drop, int64_t i) {
    const uint64_t index = uint64_t(drop.first + i);
    const int skip = int(index % 4);
    uint32_t bits = 0;
#pragma unroll
    for (int call = 0; call < W / 4 + 1; call++) {
        if (4 * call >= W + skip) break;
        const Philox4 words = philox(drop.seed, 0, index / 4 + call);
#pragma unroll
        for (int k = 0; k < 4; k++) bits |= uint32_t(words.v[k] >= drop.keep_threshold()) << (4 * call + k);
    }
    return bits >> skip;
}

// y = x + scale * drop(b); x null: 0. scale already includes dropout's factor.
template <bool HAS_DROPOUT, class T>
__global__ void add_scaled_kernel(T* y, const T* x, const T* b, float scale, int64_t n, Dropout drop) {
    constexpr int W = VEC<T>;
    const int64_t first = (blockIdx.x * int64_t(VECS * THREADS) + threadIdx.x) * W;
    Vec<T> u[VECS] = {}, v[VECS];
#pragma unroll
    for (int k = 0; k < VECS; k++)
        if (int64_t i = first + k * THREADS * W; i + W <= n) {
            v[k] = load<W>(b + i);
            if (x) u[k] = load<W>(x + i);
        }
#pragma unroll
    for (int k = 0; k < VECS; k++) {
        int64_t i = first + k * THREADS * W;
        if (i >= n) break;
        const uint32_t bits = HAS_DROPOUT ? kept<W>(drop, i) : ~0u;
        auto scaled = [&](int j, float of_b) { return !HAS_DROPOUT || bits >> j & 1 ? scale * of_b : 0.0f; };
        if (i + W <= n) {
#pragma unroll
            for (int j = 0; j < W; j++) v[k].set(j, u[k][j] + scaled(j, v[k][j]));
            store<W>(y + i, v[k]);
        } else
            for (int j = 0; i < n; i++, j++) y[i] = from_float<T>((x ? to_float(x[i]) : 0) + scaled(j, to_float(b[i])));
    }
}
template <class T> void add_scaled(T* y, const T* x, const T* b, float scale, int64_t n, Dropout drop) {
    launch(drop.rate > 0 ? add_scaled_kernel<true, T> : add_scaled_kernel<false, T>,
           {unsigned(ceil_div(n, VECS * THREADS * VEC<T>)), THREADS}, y, x, b, scale * drop.factor(), n, drop);
}
template <class T> void drop_inputs(T* y, const T* x, int64_t n, Dropout drop) {
    add_scaled<T>(y, nullptr, x, 1, n, drop);
}

const CudaRegistration entries([]<class T>(Ops<T>& o, Dtype) {
    o.activation_forward = activation_forward<T>;
    o.stream_activation_forward = stream_activation_forward<T>;
    o.activation_backward = activation_backward<T>;
    o.add_scaled = add_scaled<T>;
    o.drop_inputs = drop_inputs<T>;
});
}    // namespace

// experts.cpp - products of rows that are sorted by expert, and the moves to this order and back.
// K: experts of a token.
//
// Experts' products, each of a range of rows, are computed one after the other, each on all
// threads, as in linear.cpp. Bound by FMAs: 2 N K C OC FLOPs forward, 4 N K C OC backward.
// Gathering, combining and gates are bound by memory: a gather moves 4 N C (1 + K) bytes, in bf16
// half as many. operations.inc has the bytes of the other operations.
#include "layers/simd/activation_vec.h"
#include "layers/matmul/matmul.h"

namespace ISA {
// Calls f(expert, first permuted row, number of rows) for each expert that has rows.
template <class F> INLINE void each_expert(const Routes& routes, const Router& r, F f) {
    for (int i = 0; i < r.E; i++) {
        const int from = routes.offsets[i], n = routes.offsets[i + 1] - from;
        if (n > 0) f(i, from, n);
    }
}

// Bytes of scratch if one expert has all rows: enough for every division of rows among experts.
template <class P, Tiles tiles> static int64_t forward_scratch(int rows, int C, int OC) {
    const P* w = nullptr;
    return max_matmul_scratch(output<P, tiles>(nullptr, w, w, rows, C, OC));
}
template <class P, Tiles tiles> static int64_t backward_scratch(int rows, int C, int OC) {
    const P* w = nullptr;
    const float* dy = nullptr;
    const int64_t dx = max_matmul_scratch(input_gradient<tiles>(nullptr, dy, w, rows, C, OC));
    const GradTarget<float> to = {nullptr, true};
    const int64_t dw = max_matmul_scratch(weight_gradient<tiles>(to, nullptr, dy, w, rows, C, OC));
    return dx > dw ? dx : dw;
}

template <class P, Tiles tiles>
static void forward(float* y, const P* x, const P* w, Routes routes, Router r, int N, int C, int OC) {
    cpu_scratch(forward_scratch<P, tiles>(N * r.K, C, OC));
    each_expert(routes, r, [&](int i, int64_t from, int n) {
        matmul(output<P, tiles>(y + from * OC, x + from * C, w + int64_t(i) * OC * C, n, C, OC));
    });
}
template <class P, Tiles tiles> static void backward(float* dx, GradTarget<float> dw, const float* dy, const P* x,
                                                     const P* w, Routes routes, Router r, int N, int C, int OC) {
    cpu_scratch(backward_scratch<P, tiles>(N * r.K, C, OC));
    for (int i = 0; i < r.E; i++)    // each_expert skips experts without rows
        if (dw.p && !dw.add && routes.offsets[i] == routes.offsets[i + 1])
            __builtin_memset(dw.p + int64_t(i) * OC * C, 0, sizeof(float) * size_t(OC) * size_t(C));
    each_expert(routes, r, [&](int i, int64_t from, int n) {
        const int64_t matrix = int64_t(i) * OC * C;
        matmul(input_gradient<tiles>(dx + from * C, dy + from * OC, w + matrix, n, C, OC));
        if (dw.p)
            matmul(weight_gradient<tiles>({dw.p + matrix, dw.add}, nullptr, dy + from * OC, x + from * C, n, C, OC));
    });
}

template <class P> static void gather(P* y, const P* x, Routes routes, Router r, int N, int C) {
    const int64_t rows = int64_t(N) * r.K;
    each_item(rows, rows * C, [&](int64_t i) {
        __builtin_memcpy(y + i * C, x + int64_t(routes.row[i] / r.K) * C, size_t(C) * sizeof(P));
    });
}

static void combine(float* y, const float* residual, const float* x, const float* factors, Routes routes, Router r,
                    int N, int C) {
    each_item(N, int64_t(N) * r.K * C, [&](int64_t n) {
        each_vector(C, [&](int64_t c, auto at) {
            vf s = residual ? at.get(residual + n * C + c) : vf{};
            for (int64_t row = n * r.K; row < (n + 1) * r.K; row++) {
                const vf v = at.get(x + int64_t(routes.permuted_row[row]) * C + c);
                s += factors ? v * factors[row] : v;
            }
            at.put(y + n * C + c, s);
        });
    });
}
static void combine_backward(float* dx, float* dfactors, const float* dy, const float* x, const float* factors,
                             Routes routes, Router r, int N, int C) {
    const int64_t rows = int64_t(N) * r.K;
    each_item(rows, rows * C, [&](int64_t row) {
        const int64_t to = int64_t(routes.permuted_row[row]) * C, from = row / r.K * C;
        vf dot = {};
        each_vector(C, [&](int64_t c, auto at) {
            const vf d = at.get(dy + from + c);
            dot += d * at.get(x + to + c);
            at.put(dx + to + c, d * factors[row]);
        });
        dfactors[row] = sum(dot);
    });
}

template <class P> static void gate_forward(P* y, const P* x, const float* gate, int N, int F) {
    each_item(N, int64_t(N) * F, [&](int64_t n) {
        const vf s = sigmoid(set1(gate[n])).s;
        each_vector(F, [&](int64_t i, auto at) { at.put(y + n * F + i, s * at.get(x + n * F + i)); });
    });
}
template <class P>
static void gate_backward(float* dx, float* dgate, const float* dy, const P* x, const float* gate, int N, int F) {
    each_item(N, int64_t(N) * F, [&](int64_t n) {
        const Sigmoid g = sigmoid(set1(gate[n]));
        vf dot = {};
        each_vector(F, [&](int64_t i, auto at) {
            const vf d = at.get(dy + n * F + i);
            dot += d * at.get(x + n * F + i);
            at.put(dx + n * F + i, g.s * d);
        });
        dgate[n] = sum(dot) * g.slope[0];
    });
}

template <class P, Tiles tiles> static int64_t forward_workspace(const CallSizes& c) {
    return forward_scratch<P, tiles>(c.rows, c.in, c.out);
}
template <class P, Tiles tiles> static int64_t backward_room(const CallSizes& c) {
    return backward_scratch<P, tiles>(c.rows, c.in, c.out);
}

REGISTER_CPU_TILES(experts_forward, forward, forward_workspace)
REGISTER_CPU_TILES(experts_backward, backward, backward_room)
REGISTER_CPU(experts_gather, gather<P>)
REGISTER_CPU(experts_combine, combine)
REGISTER_CPU(experts_combine_backward, combine_backward)
REGISTER_CPU(row_gate_forward, gate_forward<P>)
REGISTER_CPU(row_gate_backward, gate_backward<P>)
}    // namespace ISA

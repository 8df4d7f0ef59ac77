// ffn.cpp - activations that are not fused with a product. Bound by memory if the data exceed L2.
// Per element of y, forward moves 8 bytes and backward 12; if gated, forward moves 12 and backward
// 20. With a bf16 y, forward moves 2 bytes less.
#include "layers/simd/activation_vec.h"

namespace ISA {
constexpr int64_t BLOCK = 4096;

// Splits N rows of F elements into pieces of up to BLOCK elements of a row, and calls f(row, first
// column, elements) for each piece, on all threads.
template <class Run> INLINE void each_piece(int64_t N, int64_t F, Run f) {
    const int64_t pieces = (F + BLOCK - 1) / BLOCK;
    each_item(N * pieces, N * F, [&](int64_t i) {
        const int64_t from = i % pieces * BLOCK;
        f(i / pieces, from, least64(BLOCK, F - from));
    });
}

template <Act act, class P> static void forward(P* y, const float* x, bool gated, int N, int F) {
    if (gated)
        each_piece(N, F, [&](int64_t n, int64_t from, int64_t count) {
            const float *gate = x + n * 2 * F + from, *up = gate + F;
            P* out = y + n * F + from;
            each_vector(count,
                        [&](int64_t i, auto at) { at.put(out + i, curve<act>(at.get(gate + i)).y * at.get(up + i)); });
        });
    else
        each_piece(1, int64_t(N) * F, [&](int64_t, int64_t from, int64_t count) {
            each_vector(count, [&](int64_t i, auto at) { at.put(y + from + i, curve<act>(at.get(x + from + i)).y); });
        });
}

template <Act act> static void backward(float* dx, const float* dy, const float* x, bool gated, int N, int F) {
    if (gated)
        each_piece(N, F, [&](int64_t n, int64_t from, int64_t count) {
            const int64_t row = n * 2 * F + from;
            const float *gate = x + row, *up = gate + F, *d = dy + n * F + from;
            float *d_gate = dx + row, *d_up = d_gate + F;
            each_vector(count, [&](int64_t i, auto at) {
                const Curve c = curve<act>(at.get(gate + i));
                const vf g = at.get(d + i);
                at.put(d_gate + i, g * at.get(up + i) * c.slope);
                at.put(d_up + i, g * c.y);
            });
        });
    else
        each_piece(1, int64_t(N) * F, [&](int64_t, int64_t from, int64_t count) {
            each_vector(count, [&](int64_t i, auto at) {
                at.put(dx + from + i, at.get(dy + from + i) * curve<act>(at.get(x + from + i)).slope);
            });
        });
}

#define EACH_ACT(call)                                    \
    switch (act) {                                        \
        case Act::gelu_tanh: return call(Act::gelu_tanh); \
        case Act::gelu: return call(Act::gelu);           \
        case Act::silu: return call(Act::silu);           \
        case Act::relu: return call(Act::relu);           \
        case Act::relu2: return call(Act::relu2);         \
        case Act::tanh: return call(Act::tanh);           \
    }
template <class P> static void activation_forward(P* y, const float* x, Act act, bool gated, int N, int F) {
#define FORWARD(kind) forward<kind>(y, x, gated, N, F)
    EACH_ACT(FORWARD)
}
static void stream_activation_forward(float* y, const float* x, Act act, int N, int F) {
    activation_forward(y, x, act, false, N, F);
}
static void activation_backward(float* dx, const float* dy, const float* x, Act act, bool gated, int N, int F) {
#define BACKWARD(kind) backward<kind>(dx, dy, x, gated, N, F)
    EACH_ACT(BACKWARD)
}

void exponentials(float* y, const float* x, int64_t n) {
    each_vector(n, [&](int64_t i, auto at) { at.put(y + i, exp(at.get(x + i))); });
}

REGISTER_CPU(activation_forward, activation_forward<P>)
REGISTER_CPU(stream_activation_forward, stream_activation_forward)
REGISTER_CPU(activation_backward, activation_backward)
}    // namespace ISA

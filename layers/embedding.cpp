// embedding.cpp - forward: each position's sum of a row of wte (its token's) and a row of wpe.
// Backward: adds the gradient of the sum to both rows. Bound by memory: forward moves 12 bytes per
// element of x, 8 if the tables are bf16.
//
// Two positions may have the same token, or lie in two texts. So a chunk of the backward pass is a
// range of columns and reads all rows in order: no two threads add to one element, and sums have
// one order.
#include "layers/simd/vec.h"

namespace ISA {
template <class P> static void embedding_forward(float* x, const int* tok, const P* wte, const P* wpe, int B, int S,
                                                 int C, const int* pos) {
    each_item(B * S, int64_t(B) * S * C, [&](int64_t n) {
        const int at_row = pos ? (pos[n] > 0 ? pos[n] : 0) : n % S;
        const P *e = wte + int64_t(tok[n]) * C, *p = wpe ? wpe + int64_t(at_row) * C : nullptr;
        float* out = x + int64_t(n) * C;    // x[b,s,:]
        each_vector(C, [&](int64_t c, auto at) { at.put(out + c, p ? at.get(e + c) + at.get(p + c) : at.get(e + c)); });
    });
}

static void embedding_backward(float* dwte, float* dwpe, const float* dx, const int* tok, int B, int S, int C, int,
                               const int* pos) {
    each_range(C, 64, int64_t(B) * S * C, [&](Range r, int) {
        for (int n = 0; n < B * S; n++) {
            const float* d = dx + int64_t(n) * C + r.from;
            float* e = dwte ? dwte + int64_t(tok[n]) * C + r.from : nullptr;
            float* p = dwpe ? dwpe + int64_t(pos ? pos[n] : n % S) * C + r.from : nullptr;
            each_vector(r.to - r.from, [&](int64_t c, auto at) {
                if (e) at.put(e + c, at.get(e + c) + at.get(d + c));
                if (p) at.put(p + c, at.get(p + c) + at.get(d + c));
            });
        }
    });
}

REGISTER_CPU(embedding_forward, embedding_forward<P>)
REGISTER_CPU(embedding_backward, embedding_backward)
}    // namespace ISA

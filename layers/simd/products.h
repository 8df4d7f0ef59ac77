// products.h - the products of a linear layer, for linear.cpp and experts.cpp.
#pragma once
#include "vec.h"

namespace ISA {
void matmul(const Matmul<float>& m);
void matmul(const Matmul<bf16>& m);
int64_t matmul_scratch(const Matmul<float>& m);
int64_t matmul_scratch(const Matmul<bf16>& m);
// The most that this product asks for, or one with less of M, N or K.
int64_t most_matmul_scratch(const Matmul<float>& m);
int64_t most_matmul_scratch(const Matmul<bf16>& m);
// The same by tiles (amx.cpp). matmul goes there by itself.
void tile_matmul(const Matmul<float>& m);
void tile_matmul(const Matmul<bf16>& m);
int64_t tile_matmul_scratch(const Matmul<float>& m);    // not less for a product with more of M, N or K
int64_t tile_matmul_scratch(const Matmul<bf16>& m);

template <class P> constexpr bool halves = sizeof(P) == 2;

// The three products. y = x w^T
template <class P, Tiles tiles> INLINE Matmul<P> output(float* y, const float* x, const P* w, int N, int C, int OC) {
    return {.M = N, .N = OC, .K = C, .a = x, .ra = C, .ca = 1, .b = w, .rb = 1, .cb = C, .c = y, .halves = halves<P>,
            .tiles = tiles};
}
// dx = dy w
template <class P, Tiles tiles>
INLINE Matmul<P> input_gradient(float* dx, const float* dy, const P* w, int N, int C, int OC) {
    return {.M = N, .N = C, .K = OC, .a = dy, .ra = OC, .ca = 1, .b = w, .rb = C, .cb = 1, .c = dx,
            .halves = halves<P>, .tiles = tiles};
}
// dw (+)= dy^T x, db[o] += sum_n dy[n,o]
template <class P, Tiles tiles>
INLINE Matmul<float> weight_gradient(Into<float> dw, float* db, const float* dy, const float* x, int N, int C, int OC) {
    return {.M = OC, .N = C, .K = N, .a = dy, .ra = 1, .ca = OC, .b = x, .rb = C, .cb = 1, .c = dw.p, .add = dw.add,
            .halves = halves<P>, .tiles = tiles, .row_sums = db};
}
}   // namespace ISA

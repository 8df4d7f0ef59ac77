// matmul.h - the products of a linear layer, for linear.cpp and experts.cpp.
#pragma once
#include "layers/simd/vec.h"

namespace ISA {
// Floats, Halves: both inputs have one type. Mixed: for gradients, A is float and B bf16.
typedef Matmul<float, float> Floats;
typedef Matmul<bf16, bf16> Halves;
typedef Matmul<float, bf16> Mixed;
void matmul(const Floats& m);
void matmul(const Halves& m);
void matmul(const Mixed& m);
int64_t matmul_scratch(const Floats& m);
int64_t matmul_scratch(const Halves& m);
int64_t matmul_scratch(const Mixed& m);
// Scratch bytes for this product and for all with smaller M, N or K.
int64_t max_matmul_scratch(const Floats& m);
int64_t max_matmul_scratch(const Halves& m);
int64_t max_matmul_scratch(const Mixed& m);
// Products by AMX tiles (amx.cpp). matmul itself calls these functions.
void tile_matmul(const Floats& m);
void tile_matmul(const Halves& m);
void tile_matmul(const Mixed& m);
// Scratch bytes, which never decrease with M, N or K. is_bf16: B is bf16.
int64_t tile_matmul_scratch(int M, int N, int K, bool is_bf16);

// The three products of a linear layer. y = x w^T
template <class P, Tiles tiles> INLINE Matmul<P, P> output(float* y, const P* x, const P* w, int N, int C, int OC) {
    return {.M = N, .N = OC, .K = C, .a = x, .ra = C, .ca = 1, .b = w, .rb = 1, .cb = C, .c = y, .tiles = tiles};
}
// dx = dy w
template <Tiles tiles, class Dy, class P>
INLINE Matmul<Dy, P> input_gradient(float* dx, const Dy* dy, const P* w, int N, int C, int OC) {
    return {.M = N, .N = C, .K = OC, .a = dy, .ra = OC, .ca = 1, .b = w, .rb = C, .cb = 1, .c = dx, .tiles = tiles};
}
// dw (+)= dy^T x, db[o] += sum_n dy[n,o]
template <Tiles tiles, class Dy, class P>
INLINE Matmul<Dy, P> weight_gradient(GradTarget<float> dw, float* db, const Dy* dy, const P* x, int N, int C, int OC) {
    return {.M = OC,
            .N = C,
            .K = N,
            .a = dy,
            .ra = 1,
            .ca = OC,
            .b = x,
            .rb = C,
            .cb = 1,
            .c = dw.p,
            .add = dw.add,
            .tiles = tiles,
            .row_sums = db};
}
}    // namespace ISA

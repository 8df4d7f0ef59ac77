// tile.h - the inner loops of the matrix products in matmul.cpp and attention.cpp: products of small tiles that lie in
// L1, and transposes. MR x NV vectors of C stay in registers: 24 of AVX-512's 32, 12 of 16 elsewhere.
#pragma once
#include "vec.h"

namespace ISA {
constexpr int MR = 6, NV = VW == 16 ? 4 : 2;

// C (MR, nv*VW) (+)= A B:  A(i,k) = a[i*ra + k*ca],  B(k,:) = b[k*rb ..],  C(i,:) = c[i*rc ..]
template <int nv, bool add> static void kernel(int K, const float* a, int64_t ra, int64_t ca, const float* b,
                                               int64_t rb, float* c, int64_t rc) {
    vf s[MR][nv];
#pragma GCC unroll 8
    for (int i = 0; i < MR; i++)
#pragma GCC unroll 4
        for (int v = 0; v < nv; v++) s[i][v] = add ? load(c + i * rc + v * VW) : vf{};
    for (int k = 0; k < K; k++, a += ca, b += rb) {
        vf x[nv];
#pragma GCC unroll 4
        for (int v = 0; v < nv; v++) x[v] = load(b + v * VW);
#pragma GCC unroll 8
        for (int i = 0; i < MR; i++)
#pragma GCC unroll 4
            for (int v = 0; v < nv; v++) s[i][v] += a[i * ra] * x[v];
    }
#pragma GCC unroll 8
    for (int i = 0; i < MR; i++)
#pragma GCC unroll 4
        for (int v = 0; v < nv; v++) store(c + i * rc + v * VW, s[i][v]);
}

// The same for N columns, a multiple of VW, split evenly into kernels.
template <bool add> static void strip(int N, int K, const float* a, int64_t ra, int64_t ca, const float* b, int64_t rb,
                                      float* c, int64_t rc) {
    int left = N / VW, parts = (left + NV - 1) / NV;
    for (; parts > 0; parts--) {
        int nv = (left + parts - 1) / parts;
        if (nv == 1) kernel<1, add>(K, a, ra, ca, b, rb, c, rc);
        if (nv == 2) kernel<2, add>(K, a, ra, ca, b, rb, c, rc);
        if constexpr (NV == 4) {
            if (nv == 3) kernel<3, add>(K, a, ra, ca, b, rb, c, rc);
            if (nv == 4) kernel<4, add>(K, a, ra, ca, b, rb, c, rc);
        }
        b += nv * VW;
        c += nv * VW;
        left -= nv;
    }
}

// r[i][j] <-> r[j][i] for VW vectors: swap blocks of 1, 2, 4, ... off the diagonal.
template <int W = 1> INLINE void transpose(vf* r) {
    if constexpr (W < VW) {
        vi low = lanes(), high = lanes();
        low = (lanes() & W) ? low + (VW - W) : low;
        high = (lanes() & W) ? high + VW : high + W;
#pragma GCC unroll 16
        for (int i = 0; i < VW; i++)
            if (!(i & W)) {
                vf a = r[i], b = r[i + W];
                r[i] = __builtin_shuffle(a, b, low);
                r[i + W] = __builtin_shuffle(a, b, high);
            }
        transpose<2 * W>(r);
    }
}

// to[d*ldt + j] = from[j*ldf + d] for j < n, d < D, and 0 for the other j < columns and d < padded(D).
// columns: a multiple of VW.
template <class P>
static inline void pack_transposed(float* to, int64_t ldt, const P* from, int64_t ldf, int n, int columns, int D) {
    for (int j = 0; j < columns; j += VW)
        for (int d = 0; d < D; d += VW) {
            vf r[VW];
#pragma GCC unroll 16
            for (int i = 0; i < VW; i++) {
                const P* p = from + (j + i) * ldf + d;
                r[i] = j + i >= n ? vf{} : d + VW <= D ? load(p) : load_some(p, D - d);
            }
            transpose(r);
#pragma GCC unroll 16
            for (int i = 0; i < VW; i++) store(to + (d + i) * ldt + j, r[i]);
        }
}

// to (rows, padded(D)) = scale * from (n, D), the rest zero.
static inline void pack_rows(float* to, const float* from, int64_t ldf, int n, int rows, int D, float scale) {
    const int P = padded(D);
    for (int i = 0; i < rows; i++)
        for (int d = 0; d < D; d += VW) {
            const float* p = from + i * ldf + d;
            vf v = i >= n ? vf{} : d + VW <= D ? load(p) : load_some(p, D - d);
            store(to + int64_t(i) * P + d, v * scale);
        }
}
}   // namespace ISA

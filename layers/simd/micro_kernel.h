// micro_kernel.h - the inner loops of the matrix products in matmul.cpp and attention/: products of
// small tiles that lie in L1, and transposes. MR x NV vectors of C stay in registers: 24 of
// AVX-512's 32, 12 of 16 elsewhere.
// half: a 32-bit word k of A and B holds two bf16, elements 2k and 2k+1 along the summed dimension,
// so that a product takes half the instructions of fp32. It is allowed only if the instruction set
// multiplies bf16 (NATIVE_BF16).
#pragma once
#include "vec.h"

// ---- pairs of bf16 ------------------------------------------------------------------------------

#if defined(__AVX512BF16__)
#include <immintrin.h>

namespace ISA {
constexpr bool NATIVE_BF16 = true;
// Rounds the 16 numbers of first, then the 16 of second, to the nearest bf16; in memory order.
INLINE vf to_pairs(vf first, vf second) {
    return reinterpret_cast<vf>(_mm512_cvtne2ps_pbh(reinterpret_cast<__m512>(second), reinterpret_cast<__m512>(first)));
}
// Word i of the result: element i of even, then element i of odd.
INLINE vf interleaved(vf even, vf odd) {
    typedef short Words __attribute__((vector_size(64)));
    const Words both = reinterpret_cast<Words>(to_pairs(even, odd));
    const Words order = {0, 16, 1, 17, 2,  18, 3,  19, 4,  20, 5,  21, 6,  22, 7,  23,
                         8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31};
    return reinterpret_cast<vf>(__builtin_shuffle(both, order));
}
// s += the two products of each pair of a and x.
INLINE vf add_pairs(vf s, vf a, vf x) {
    return reinterpret_cast<vf>(
        _mm512_dpbf16_ps(reinterpret_cast<__m512>(s), reinterpret_cast<__m512bh>(a), reinterpret_cast<__m512bh>(x)));
}
}    // namespace ISA
#else
namespace ISA {
constexpr bool NATIVE_BF16 = false;
INLINE vf to_pairs(vf first, vf second) {
    const vh both[2] = {nearest_bf16(first), nearest_bf16(second)};
    vf pairs;
    __builtin_memcpy(&pairs, both, sizeof pairs);
    return pairs;
}
INLINE vf interleaved(vf even, vf odd) {
    const vu low = reinterpret_cast<vu>(rounded_bf16(even)), high = reinterpret_cast<vu>(rounded_bf16(odd));
    return reinterpret_cast<vf>(low >> 16 | high);
}
INLINE vf add_pairs(vf s, vf, vf) { return s; }    // never called
}    // namespace ISA
#endif

namespace ISA {
constexpr int MR = 6, NV = VW == 16 ? 4 : 2;

// The number of 32-bit words that hold n elements along the summed dimension: half, two bf16 each.
template <bool half> INLINE int words(int n) { return half ? (n + 1) / 2 : n; }

// s += a x, where *a is one word for all lanes.
template <bool half> INLINE vf multiply_add(vf s, const float* a, vf x) {
    if constexpr (half) {
        typedef int32_t word __attribute__((may_alias, aligned(2)));    // unaligned: bf16 may be read in place
        return add_pairs(s, reinterpret_cast<vf>(*reinterpret_cast<const word*>(a) + vi{}), x);
    }
    return s + *a * x;
}

// ---- products -----------------------------------------------------------------------------------

// C (MR, nv*VW) = A B, with `add` +=, over K words: A(i,k) = a[i*ra + k*ca],  B(k,:) = b[k*rb ..],
// C(i,:) = c[i*rc ..]
template <int nv, bool add, bool half = false>
static void kernel(int K, const float* a, int64_t ra, int64_t ca, const float* b, int64_t rb, float* c, int64_t rc) {
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
            for (int v = 0; v < nv; v++) s[i][v] = multiply_add<half>(s[i][v], a + i * ra, x[v]);
    }
#pragma GCC unroll 8
    for (int i = 0; i < MR; i++)
#pragma GCC unroll 4
        for (int v = 0; v < nv; v++) store(c + i * rc + v * VW, s[i][v]);
}

// Computes kernel() for N columns, a multiple of VW, in parts of nearly equal width.
template <bool add, bool half = false> static void strip(int N, int K, const float* a, int64_t ra, int64_t ca,
                                                         const float* b, int64_t rb, float* c, int64_t rc) {
    int left = N / VW, parts = (left + NV - 1) / NV;
    for (; parts > 0; parts--) {
        int nv = (left + parts - 1) / parts;
        if (nv == 1) kernel<1, add, half>(K, a, ra, ca, b, rb, c, rc);
        if (nv == 2) kernel<2, add, half>(K, a, ra, ca, b, rb, c, rc);
        if constexpr (NV == 4) {
            if (nv == 3) kernel<3, add, half>(K, a, ra, ca, b, rb, c, rc);
            if (nv == 4) kernel<4, add, half>(K, a, ra, ca, b, rb, c, rc);
        }
        b += nv * VW;
        c += nv * VW;
        left -= nv;
    }
}

// Transposes VW vectors: swaps r[i][j] and r[j][i], in blocks of 1, 2, 4, ... off the diagonal.
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

// Returns the sum of r[i]'s lanes in lane i. Changes r.
template <int W = 1> INLINE vf sums(vf* r) {
    if constexpr (W == VW) {
        return *r;
    } else {
        const vi low = (lanes() & W) ? lanes() + (VW - W) : lanes(), high = (lanes() & W) ? lanes() + VW : lanes() + W;
#pragma GCC unroll 8
        for (int i = 0; i < VW / W; i += 2)
            r[i / 2] = __builtin_shuffle(r[i], r[i + 1], low) + __builtin_shuffle(r[i], r[i + 1], high);
        return sums<2 * W>(r);
    }
}

template <bool b> struct Flag { static constexpr bool is = b; };

// ---- packing ------------------------------------------------------------------------------------

// VW words of a row of D elements, from word w on; zero beyond the row. whole: all VW words exist.
template <bool half, bool whole> INLINE vf row_words(const float* row, int w, int D) {
    auto piece = [&](int d) { return whole || d + VW <= D ? load(row + d) : d < D ? load_some(row + d, D - d) : vf{}; };
    if constexpr (half) return to_pairs(piece(2 * w), piece(2 * w + VW));
    return piece(w);
}
// Calls f(w, whole) for each vector of words of a row of D elements.
template <bool half, class F> INLINE void each_words(int D, F f) {
    int w = 0;
    for (; (half ? 2 : 1) * (w + VW) <= D; w += VW) f(w, Flag<true>());
    for (; w < words<half>(D); w += VW) f(w, Flag<false>());
}

// Writes word d of row j to to[d*ldt + j], for d < padded(words of D). Words beyond a row's end,
// and rows n..columns-1, are zero. columns: a multiple of VW.
template <bool half = false>
static void pack_transposed(float* to, int64_t ldt, const float* from, int64_t ldf, int n, int columns, int D) {
    for (int j = 0; j < columns; j += VW)
        each_words<half>(D, [&](int d, auto whole) {
            vf r[VW];
            const float* p = from + j * ldf;
            float* t = to + d * ldt + j;
#pragma GCC unroll 16
            for (int i = 0; i < VW; i++) __builtin_prefetch(t + i * ldt, 1);
            if (j + VW <= n)
#pragma GCC unroll 16
                for (int i = 0; i < VW; i++) r[i] = row_words<half, whole.is>(p + i * ldf, d, D);
            else
                for (int i = 0; i < VW; i++) r[i] = j + i < n ? row_words<half, whole.is>(p + i * ldf, d, D) : vf{};
            transpose(r);
#pragma GCC unroll 16
            for (int i = 0; i < VW; i++) store(t + i * ldt, r[i]);
        });
}

// to (rows, padded(words of D)) = the words of n rows of D elements, the rest zero.
template <bool half> static void pack_rows(float* to, const float* from, int64_t ldf, int n, int rows, int D) {
    const int P = padded(words<half>(D));
    for (int i = 0; i < n; i++, to += P, from += ldf)
        each_words<half>(D, [&](int w, auto whole) {
            __builtin_prefetch(to + 8 * P + w, 1);
            store(to + w, row_words<half, whole.is>(from, w, D));
        });
    for (int i = 0; i < (rows - n) * P; i += VW) store(to + i, vf{});
}

// Packs n rows of D elements as factor B of a product that sums over rows: to (words of `rows`,
// padded(D)). With half, a word is column d of two neighbouring rows. Rows n..rows-1 are zero.
template <bool half> static void pack_sum(float* to, const float* from, int64_t ldf, int n, int rows, int D) {
    if constexpr (!half) return pack_rows<false>(to, from, ldf, n, rows, D);
    const int P = padded(D);
    int i = 0;
    for (; i < n; i += 2, to += P, from += 2 * ldf)
        each_words<false>(D, [&](int d, auto whole) {
            __builtin_prefetch(to + 8 * P + d, 1);
            const vf odd = i + 1 < n ? row_words<false, whole.is>(from + ldf, d, D) : vf{};
            store(to + d, interleaved(row_words<false, whole.is>(from, d, D), odd));
        });
    for (; i < rows; i += 2, to += P)
        for (int d = 0; d < P; d += VW) store(to + d, vf{});
}

// Writes the words of pack_sum, transposed, to `to` (padded(D), pairs of rows) with row stride ldt.
// Rows from n on are zero, up to `rows` rounded up to a multiple of 2*VW.
INLINE void pack_turned(float* to, int64_t ldt, const float* from, int64_t ldf, int n, int rows, int D) {
    for (int i = 0; i < rows; i += 2 * VW)
        for (int d = 0; d < D; d += VW) {
            auto row = [&](int j) {
                const float* p = from + (i + j) * ldf + d;
                return i + j >= n ? vf{} : d + VW <= D ? load(p) : load_some(p, D - d);
            };
            vf r[VW];
            for (int j = 0; j < VW; j++) r[j] = interleaved(row(2 * j), row(2 * j + 1));
            transpose(r);
            for (int j = 0; j < VW; j++) store(to + (d + j) * ldt + i / 2, r[j]);
        }
}
}    // namespace ISA

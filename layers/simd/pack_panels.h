// pack_panels.h - copies operands of a matrix product into the order of its inner loop.
//
// A word is a float, or a pair of bf16 with neighbouring k; beyond the last k it is zero. A panel
// has W columns of B or W rows of A. Word k of column j lies at [j/W * panel + k*W + j%W]; columns
// beyond the last are zero.
#pragma once
#include "micro_kernel.h"

namespace ISA {
constexpr int PACKED = 96;    // largest number of columns per call
constexpr int AHEAD = 16;     // prefetch distance, rows

template <class E> INLINE vf load_most(const E* p, int n) { return n >= VW ? load(p) : load_some(p, n); }

INLINE vf pairs_along(const float* p, int n) {
    return to_pairs(load_most(p, n), n > VW ? load_most(p + VW, n - VW) : vf{});
}
INLINE vf load_pairs(const bf16* p) {    // p may be unaligned to pairs
    vf v;
    __builtin_memcpy(&v, p, sizeof v);
    return v;
}
INLINE vf pairs_along(const bf16* p, int n) {
    if (n >= 2 * VW) return load_pairs(p);
    bf16 t[2 * VW] = {};
    for (int i = 0; i < n; i++) t[i] = p[i];
    return load_pairs(t);
}
INLINE vf pairs_across(const float* p, const float* q, int n) {
    return interleaved(load_most(p, n), q ? load_most(q, n) : vf{});
}
INLINE vf pairs_across(const bf16* p, const bf16* q, int n) {    // widened bf16 have zeros in the lower half
    const vu low = reinterpret_cast<vu>(load_most(p, n)), high = reinterpret_cast<vu>(q ? load_most(q, n) : vf{});
    return reinterpret_cast<vf>(low >> 16 | high);
}
// Writes pairs_across of 2*VW columns to two vectors: each word holds p's element, then q's.
INLINE void pairs_across(vf* to, const bf16* p, const bf16* q) {
    typedef uint16_t halves __attribute__((vector_size(4 * VW)));
    halves low, high, first, second;
    __builtin_memcpy(&low, p, sizeof low);
    __builtin_memcpy(&high, q, sizeof high);
#pragma GCC unroll 16
    for (int i = 0; i < VW; i++) {
        first[2 * i] = uint16_t(i);
        first[2 * i + 1] = uint16_t(2 * VW + i);
        second[2 * i] = uint16_t(VW + i);
        second[2 * i + 1] = uint16_t(3 * VW + i);
    }
    to[0] = reinterpret_cast<vf>(__builtin_shuffle(low, high, first));
    to[1] = reinterpret_cast<vf>(__builtin_shuffle(low, high, second));
}

// How elements of type E become words. pairs: a word is a pair of bf16, else a float. rounds:
// floats are rounded to values of bf16.
template <class E, bool pairs, bool rounds> struct Words {
    static constexpr int PER = pairs ? 2 : 1;    // elements in a word

    static INLINE_MEMBER vf floats(const E* p, int n) {
        return rounds && sizeof(E) == 4 ? rounded_bf16(load_most(p, n)) : load_most(p, n);
    }
    // VW words along k, from element p on. Only n elements exist; the others count as zeros.
    static INLINE_MEMBER vf along(const E* p, int n) {
        if constexpr (pairs) return pairs_along(p, n);
        else return floats(p, n);
    }
    // One word of each of n columns. p points to a row of the operand, q to the next row (for
    // pairs; null after the last row).
    static INLINE_MEMBER vf across(const E* p, const E* q, int n) {
        if constexpr (pairs) return pairs_across(p, q, n);
        else return floats(p, n);
    }
};

// Packs a row of K elements into its words, which are contiguous.
template <class Words, class E> INLINE void pack_row(float* to, const E* p, int K) {
    constexpr int PER = Words::PER;
    for (int k = 0; k < K; k += VW * PER, to += VW) {
        const int left = (K - k + PER - 1) / PER;
        const vf v = Words::along(p + k, K - k);
        if (left >= VW) store(to, v);
        else store_some(to, v, left);
    }
}

// Stores word k of VW columns from j on.
template <int W> INLINE void put_words(float* to, int64_t panel, int j, int k, vf v) {
    constexpr int S = W < VW ? W : VW;
#pragma GCC unroll 4
    for (int i = 0; i < VW; i += S)
        __builtin_memcpy(to + (j + i) / W * panel + int64_t(k) * W + (j + i) % W,
                         reinterpret_cast<const char*>(&v) + 4 * i, 4 * S);
}

// Packs columns j to j + VW - 1 of an operand in which k is contiguous: column j begins at p +
// j*ld. Only columns below n exist; the others become zero.
template <class Words, int W, class E>
static void pack_along(float* to, int64_t panel, int j, int n, const E* p, int64_t ld, int K) {
    constexpr int PER = Words::PER;
    for (int k = 0; k < K; k += VW * PER) {
        vf r[VW];
#pragma GCC unroll 16
        for (int i = 0; i < VW; i++) r[i] = j + i < n ? Words::along(p + (j + i) * ld + k, K - k) : vf{};
        transpose(r);
        const int words = least(VW, (K - k + PER - 1) / PER);
        if (words == VW) {
#pragma GCC unroll 16
            for (int i = 0; i < VW; i++) put_words<W>(to, panel, j, k / PER + i, r[i]);
        } else {
            for (int i = 0; i < words; i++) put_words<W>(to, panel, j, k / PER + i, r[i]);
        }
    }
}

// Packs columns of an operand that stores all columns of one k contiguously: word k holds elements
// from p + k*PER*ld on. n columns exist. If `sums` is not null, each column's sum over k, before
// rounding, is added to it.
// columns: a multiple of VW, <= PACKED
template <class Words, int W, class E>
static void pack_across(float* to, int64_t panel, int columns, int n, const E* p, int64_t ld, int K, float* sums) {
    constexpr int PER = Words::PER;
    vf total[PACKED / VW] = {};
    for (int k = 0; k < K; k += PER) {
        const E *low = p + k * ld, *high = PER == 2 && k + 1 < K ? low + ld : nullptr;
        for (int r = 0; r < PER; r++)    // rows too far apart for hardware prefetch
            for (int j = 0; j < n; j += 64 / int(sizeof(E))) __builtin_prefetch(low + (AHEAD + r) * ld + j);
        for (int j = 0; j < columns; j += VW) {
            const E* odd = high ? high + j : nullptr;
            if (j + VW <= n) put_words<W>(to, panel, j, k / PER, Words::across(low + j, odd, VW));
            else put_words<W>(to, panel, j, k / PER, j < n ? Words::across(low + j, odd, n - j) : vf{});
        }
        for (int j = 0; sums && j < n; j += VW) {
            total[j / VW] += load_most(low + j, n - j);
            if (high) total[j / VW] += load_most(high + j, n - j);
        }
    }
    for (int j = 0; sums && j < n; j++) sums[j] += total[j / VW][j % VW];
}
}    // namespace ISA

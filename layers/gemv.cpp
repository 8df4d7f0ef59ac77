// gemv.cpp - linear_forward for the few rows of generation, N <= GEMV_ROWS, with GELU where the ffn has it.
//
// Each thread owns a range of the rows of w and reads it once, in address order. Up to 4 rows of x that stay in L1 are
// multiplied by one row of w at a time. More rows of x, or experts' of any number, are taken 4 at a time and multiplied
// by BLOCK rows of w.
// Bound by memory: 4 bytes per weight, 2 in bf16. With bf16 weights x is rounded to bf16 once, beforehand; where the
// CPU multiplies pairs of bf16, w is not widened.
#include "layers/simd/gelu.h"
#include "layers/simd/pack.h"

namespace ISA {
// Cache lines of w that are prefetched: the hardware alone does not look far enough ahead. 1 and 2 rows times GPT-2's
// head in bf16: 74 and 70 GB/s without, 86 and 80 with (2 cores of Zen 5, 2026-11-21).
constexpr int LINES = 64;

template <class P> struct Few {
    float* y;
    const float* x;    // rows of `row` floats: as given, rounded, or rounded pairs
    int row;
    const P *w, *b;
    const float* residual;
    float* gelu;       // null, or as y
    int N, C, OC;
    bool alike;    // each row goes through the same loop, whatever N is
};

// How w and x are multiplied: E elements of both at once.
struct AsFloats {
    static constexpr int E = VW;
    template <class P> static INLINE_MEMBER vf get(const P* p) { return load(p); }
    template <class P> static INLINE_MEMBER vf some(const P* p, int n) { return load_some(p, n); }
    static INLINE_MEMBER vf add(vf s, vf a, vf b) { return s + a * b; }
};
struct AsPairs {
    static constexpr int E = 2 * VW;
    static INLINE_MEMBER vf get(const bf16* p) { return load_pairs(p); }
    static INLINE_MEMBER vf some(const bf16* p, int n) { return pairs_along(p, n); }
    static INLINE_MEMBER vf add(vf s, vf a, vf b) { return add_pairs(s, a, b); }
};

// n rows of x times one row of w. U x n sums hide the latency of the FMAs.
template <int n, class As, class P> INLINE void dot_rows(const Few<P>& g, int64_t o) {
    constexpr int U = n == 1 ? 8 * VW / As::E : n == 2 ? 4 : 2, E = As::E, LINE = 64 / sizeof(P);
    const P* row = g.w + o * g.C;
    vf s[U][n] = {};
    int c = 0;
    auto x = [&](int i, int at) { return g.x + int64_t(i) * g.row + at * VW / E; };
    for (; c + U * E <= g.C; c += U * E)
#pragma GCC unroll 8
        for (int u = 0; u < U; u++) {
            if (u * E % LINE == 0) __builtin_prefetch(row + c + u * E + LINES * LINE);
            vf v = As::get(row + c + u * E);
#pragma GCC unroll 4
            for (int i = 0; i < n; i++) s[u][i] = As::add(s[u][i], v, load(x(i, c + u * E)));
        }
    for (; c < g.C; c += E) {
        vf v = g.C - c >= E ? As::get(row + c) : As::some(row + c, g.C - c);
#pragma GCC unroll 4
        for (int i = 0; i < n; i++)
            s[0][i] = As::add(s[0][i], v, g.C - c >= VW ? load(x(i, c)) : load_some(x(i, c), g.C - c));
    }
#pragma GCC unroll 4
    for (int i = 0; i < n; i++) {
#pragma GCC unroll 8
        for (int u = 1; u < U; u++) s[0][i] += s[u][i];
        const int64_t at = int64_t(i) * g.OC + o;
        g.y[at] = sum(s[0][i]) + ((g.b ? widened(g.b[o]) : 0) + (g.residual ? g.residual[at] : 0));
    }
}

// n rows of x from i0 on times R rows of w. ask: prefetch the next R rows, in address order.
template <int R, int n, class As, class P> INLINE void dot_block(const Few<P>& g, int64_t o, int i0, bool ask) {
    constexpr int E = As::E, LINE = 64 / sizeof(P);
    const P *w = g.w + o * g.C, *next = w + int64_t(R) * g.C;
    vf s[R][n] = {};
    auto step = [&](int c, auto get_w, auto get_x) {
        vf v[R];
#pragma GCC unroll 4
        for (int r = 0; r < R; r++) v[r] = get_w(w + int64_t(r) * g.C + c);
#pragma GCC unroll 4
        for (int i = 0; i < n; i++) {
            const vf x = get_x(g.x + int64_t(i0 + i) * g.row + c * VW / E);
#pragma GCC unroll 4
            for (int r = 0; r < R; r++) s[r][i] = As::add(s[r][i], v[r], x);
        }
    };
    int c = 0;
    for (; c + E <= g.C; c += E, next += R * E) {
#pragma GCC unroll 4
        for (int at = 0; at < R * E; at += LINE)
            if (ask) __builtin_prefetch(next + at);
        step(c, [](const P* p) { return As::get(p); }, [](const float* p) { return load(p); });
    }
    const int left = g.C - c;
    if (left > 0)
        step(c, [&](const P* p) { return As::some(p, left); },
             [&](const float* p) { return left >= VW ? load(p) : load_some(p, left); });
#pragma GCC unroll 4
    for (int i = 0; i < n; i++)
#pragma GCC unroll 4
        for (int r = 0; r < R; r++) {
            const int64_t at = int64_t(i0 + i) * g.OC + o + r;
            g.y[at] = sum(s[r][i]) + ((g.b ? widened(g.b[o + r]) : 0) + (g.residual ? g.residual[at] : 0));
        }
}
template <int R, class As, class P> INLINE void dot_blocks(const Few<P>& g, int64_t o) {
    const int groups = (g.N + 3) / 4;
    for (int k = 0; k < groups; k++) {
        const int from = g.N * k / groups, n = g.N * (k + 1) / groups - from;
        if (n == 1) dot_block<R, 1, As>(g, o, from, k == 0);
        if (n == 2) dot_block<R, 2, As>(g, o, from, k == 0);
        if (n == 3) dot_block<R, 3, As>(g, o, from, k == 0);
        if (n == 4) dot_block<R, 4, As>(g, o, from, k == 0);
    }
}

constexpr int BLOCK = VW == 16 ? 4 : 2;    // with 4 rows of x, as many sums as registers can hold
INLINE bool stays_in_L1(int N, int row) { return N <= 4 && int64_t(sizeof(float)) * N * row <= 32 << 10; }

// n = 0: any number of rows.
template <int n, class As, class P> static void all_rows(const Few<P>& g) {
#pragma omp parallel
    {
        const Range r = my_share(g.OC, 16);
        int64_t o = r.from;
        if constexpr (n > 0) {
            for (; o < r.to; o++) dot_rows<n, As>(g, o);
        } else {
            for (; o + BLOCK <= r.to; o += BLOCK) dot_blocks<BLOCK, As>(g, o);
            for (; o < r.to; o++) dot_blocks<1, As>(g, o);
        }
        for (int i = 0; g.gelu && i < g.N; i++)
            each_vector(r.to - r.from, [&](int64_t j, auto at) {
                const int64_t k = int64_t(i) * g.OC + r.from + j;
                at.put(g.gelu + k, gelu(at.get(g.y + k)));
            });
    }
}
template <class As, class P> static void multiply(const Few<P>& g) {
    if (g.alike || !stays_in_L1(g.N, g.row)) all_rows<0, As>(g);
    else if (g.N == 1) all_rows<1, As>(g);
    else if (g.N == 2) all_rows<2, As>(g);
    else if (g.N == 3) all_rows<3, As>(g);
    else all_rows<4, As>(g);
}

int64_t gemv_scratch(int C) { return int64_t(sizeof(float)) * GEMV_ROWS * (C + 2 * VW); }
// The distance between rows in scratch: rows a multiple of a page apart would share cache sets.
INLINE int apart(int row) { return row % 512 ? row : row + VW; }

void gemv(float* y, float* gelu, const float* x, const float* w, const float* b, const float* residual, int N, int C,
          int OC, bool alike) {
    if (stays_in_L1(N, C)) return multiply<AsFloats>(Few<float>{y, x, C, w, b, residual, gelu, N, C, OC, alike});
    const int row = apart(C);
    float* room = static_cast<float*>(cpu_scratch(gemv_scratch(C)));
    for (int i = 0; i < N; i++)
        each_vector(C, [&](int64_t c, auto at) { at.put(room + i * row + c, at.get(x + int64_t(i) * C + c)); });
    multiply<AsFloats>(Few<float>{y, room, row, w, b, residual, gelu, N, C, OC, alike});
}
void gemv(float* y, float* gelu, const float* x, const bf16* w, const bf16* b, const float* residual, int N, int C,
          int OC, bool alike) {
    float* room = static_cast<float*>(cpu_scratch(gemv_scratch(C)));
    if constexpr (NATIVE_BF16) {
        const int words = padded((C + 1) / 2), row = apart(words);
        for (int i = 0; i < N; i++) {
            store(room + i * row + words - VW, vf{});
            pack_row<Words<float, true, false>>(room + i * row, x + int64_t(i) * C, C);
        }
        multiply<AsPairs>(Few<bf16>{y, room, row, w, b, residual, gelu, N, C, OC, alike});
    } else {
        each_vector(int64_t(N) * C, [&](int64_t i, auto at) { at.put(room + i, rounded_bf16(at.get(x + i))); });
        multiply<AsFloats>(Few<bf16>{y, room, C, w, b, residual, gelu, N, C, OC, alike});
    }
}
}   // namespace ISA

// matmul.cpp - matrix products, with an epilogue while their result is in L1.
//
// A tile of ROWS x MICRO sums stays in registers over up to DEEP words of k (micro). The smaller of
// A and B is the shared operand, which is packed once for each block of k. The larger one is cut
// into panels of WIDE rows or columns. The thread that works on a panel packs it into L2 and
// multiplies it by the shared operand. Few panels are divided, so that all threads have work. The
// sum of an element adds k in order, whichever thread computes it. Rows of A that are contiguous
// along k are read in place, unless they must be rounded or widened, or consist of an odd number of
// bf16.
// Bound by FMAs: 2 M N K FLOPs; pairs of bf16 run at another rate (cpu.h).
#include "layers/simd/gelu.h"
#include "layers/simd/pack_panels.h"
#include "layers/matmul/matmul.h"

namespace ISA {
constexpr int ROWS = VW == 16 ? 8 : 4, MICRO = 3 * VW;    // sums: 24 of 32 registers; AVX2: 12 of 16
// DEEP: words of k in a block. WIDE: rows or columns of a panel. TALL: rows or columns of the
// shared operand packed at a time (4 MB). PAD: words between strips, because strips a power of two
// apart share cache sets.
constexpr int DEEP = 768, WIDE = PACKED, TALL = 14 * WIDE, PAD = 16;

INLINE int blocks_of(int K, int most) { return (K + most - 1) / most; }
INLINE int up(int n, int unit) { return blocks_of(n, unit) * unit; }
INLINE int even(int n, int most, int unit) { return up(blocks_of(n, blocks_of(n, most)), unit); }

// ROWS rows of A: word k of row i is p[i * row + k * step]; rows beyond `last` repeat it.
struct Strip {
    const float* p;
    int64_t row, step;
    int last;
};

// C (ROWS, nv vectors) = A B; with `add`, C += A B. Row k of B begins at b[k*MICRO].
template <int nv, bool pairs> static void micro(int words, Strip a, const float* b, float* c, int64_t rc, bool add) {
    vf s[ROWS][nv];
    const float* r[ROWS];
#pragma GCC unroll 8
    for (int i = 0; i < ROWS; i++) {
        r[i] = a.p + least(i, a.last) * a.row;
#pragma GCC unroll 4
        for (int v = 0; v < nv; v++) {
            s[i][v] = vf{};
            __builtin_prefetch(c + i * rc + v * VW, 1);    // needed after the sums
        }
    }
    int64_t at = 0;
#pragma GCC unroll 2    // Intel: 7 to 10 % faster; Zen 4: within 1 % (2026-11-22, 24)
    for (int k = 0; k < words; k++, at += a.step, b += MICRO) {
        vf x[nv];
#pragma GCC unroll 4
        for (int v = 0; v < nv; v++) x[v] = load(b + v * VW);
#pragma GCC unroll 8
        for (int i = 0; i < ROWS; i++)
#pragma GCC unroll 4
            for (int v = 0; v < nv; v++) s[i][v] = multiply_add<pairs>(s[i][v], r[i] + at, x[v]);
    }
#pragma GCC unroll 8
    for (int i = 0; i < ROWS; i++)
#pragma GCC unroll 4
        for (int v = 0; v < nv; v++) {
            float* p = c + i * rc + v * VW;
            store(p, add ? s[i][v] + load(p) : s[i][v]);
        }
}

// Prefetches the epilogue's inputs and outputs of a tile, while its sums are computed.
template <class X, class Y> INLINE void fetch(const Matmul<X, Y>& g, int m, int rows, int n, int nv) {
    for (int i = m; i < m + rows; i++)
        for (int v = 0; v < nv; v++) {
            const int64_t at = int64_t(i) * g.N + n + v * VW;
            if (g.residual) __builtin_prefetch(g.residual + at);
            if (g.gelu_of) __builtin_prefetch(g.gelu_of + at);
            if (g.gelu) __builtin_prefetch(g.gelu + at, 1);
        }
}

enum class Then { add, slope, gelu };    // the epilogue, besides bias and residual
template <Then then, class X, class Y>
static void epilogue(const Matmul<X, Y>& g, int m, int rows, int n, int columns) {
    for (int i = m; i < m + rows; i++) {
        const int64_t row = int64_t(i) * g.N + n;
        each_vector(columns, [&](int64_t j, auto lanes) {
            vf v = lanes.get(g.c + row + j);
            if (g.bias) v += lanes.get(g.bias + n + j);
            if (g.residual) v += lanes.get(g.residual + row + j);
            if constexpr (then == Then::slope) v *= gelu_slope(lanes.get(g.gelu_of + row + j));
            if constexpr (then == Then::gelu) lanes.put(g.gelu + row + j, gelu(v));
            lanes.put(g.c + row + j, v);
        });
    }
}

namespace {
template <class X, class Y> struct Product {
    const Matmul<X, Y>& g;
    static constexpr bool pairs = sizeof(Y) == 2 && NATIVE_BF16, rounds = sizeof(Y) == 2 && !pairs;
    static constexpr int PER = pairs ? 2 : 1;    // values of k in a word
    struct Block {
        int k, n, words;
    };    // a range of k: [k, k + n)

    bool own_a() const { return g.M > g.N; }
    bool a_in_rows() const { return g.ca == 1 && !g.row_sums; }
    bool a_in_place() const {
        if (sizeof(Y) == 4) return a_in_rows();
        return pairs && sizeof(X) == 2 && a_in_rows() && (g.K | g.ra) % 2 == 0;
    }
    int shared_all() const { return own_a() ? g.N : g.M; }
    int own_all() const { return own_a() ? g.M : g.N; }
    int depth() const { return even(g.K, DEEP * PER, 2 * VW); }
    int tall() const { return even(shared_all(), TALL, WIDE); }
    // Words for `count` (a multiple of WIDE) packed rows or columns of the largest block of k.
    int64_t packed(int count) const { return int64_t(count) * (depth() / PER + PAD); }
    // Words of two packed blocks of the shared operand, as one is read while the next is packed;
    // words of a thread's panel.
    int64_t shared_words() const { return own_a() || !a_in_place() ? 2 * packed(tall()) : 0; }
    int64_t panel_words() const { return own_a() && a_in_place() ? 0 : packed(WIDE); }
    int64_t scratch() const { return int64_t(sizeof(float)) * (shared_words() + pool_threads() * panel_words()); }
    // Upper bound of scratch() for this product and all with smaller M, N or K. A smaller product
    // may need more scratch than a larger one, because blocks of k and rows are split evenly.
    int64_t max_scratch() const {
        const int deep = least(round_up(g.K, 2 * VW), DEEP * PER), tall = least(round_up(shared_all(), WIDE), TALL);
        return int64_t(sizeof(float)) * (deep / PER + PAD) * (2 * tall + pool_threads() * WIDE);
    }

    // Offset of row m in A's packed block (m: a multiple of ROWS), and of column n in B's packed
    // block (n: a multiple of MICRO).
    int64_t a_at(int m, Block k) const { return m * int64_t(k.words) + (a_in_rows() ? m : m / ROWS) * PAD; }
    int64_t b_at(int n, Block k) const { return n * int64_t(k.words) + n / MICRO * PAD; }

    void pack_a(float* to, int m0, int rows, Block k, bool sums) const {
        typedef Words<X, pairs, rounds> Of;
        const X* from = g.a + m0 * g.ra + k.k * g.ca;
        const int n = least(rows, g.M - m0);
        if (!a_in_rows()) {
            float* to_sums = sums && g.row_sums ? g.row_sums + m0 : nullptr;
            return pack_across<Of, ROWS>(to, a_at(ROWS, k), rows, n, from, g.ca, k.n, to_sums);
        }
        for (int i = 0; i < n; i++) pack_row<Of>(to + a_at(i, k), from + i * g.ra, k.n);
    }
    void pack_b(float* to, int n0, int columns, Block k) const {
        typedef Words<Y, pairs, rounds> Of;
        const Y* from = g.b + k.k * g.rb + n0 * g.cb;
        const int n = least(columns, g.N - n0);
        if (g.rb != 1) return pack_across<Of, MICRO>(to, b_at(MICRO, k), columns, n, from, g.rb, k.n, nullptr);
        for (int j = 0; j < columns; j += VW) pack_along<Of, MICRO>(to, b_at(MICRO, k), j, n, from, g.cb, k.n);
    }

    // Strip of A from row m (a multiple of ROWS) on: in place, or packed in `block` from row m0.
    Strip strip(Block k, int m, const float* block, int m0) const {
        const int last = least(ROWS, g.M - m) - 1;
        if (a_in_place()) return {reinterpret_cast<const float*>(g.a + m * g.ra + k.k), g.ra / PER, 1, last};
        if (a_in_rows()) return {block + a_at(m - m0, k), k.words + PAD, 1, last};
        return {block + a_at(m - m0, k), 1, ROWS, last};
    }
    void tile(Block k, int m, int n, Strip a, const float* b) const {
        const int rows = least(ROWS, g.M - m), columns = least(MICRO, g.N - n), nv = (columns + VW - 1) / VW;
        const bool add = g.add || k.k > 0, whole = rows == ROWS && columns == nv * VW;
        float *c = g.c + int64_t(m) * g.N + n, edge[ROWS * MICRO], *to = whole ? c : edge;
        const int64_t rc = whole ? g.N : MICRO;
        const bool ends = k.k + k.n == g.K && (g.bias || g.residual || g.gelu || g.gelu_of);
        if (ends) fetch(g, m, rows, n, nv);
        if (nv == 3) micro<3, pairs>(k.words, a, b, to, rc, add && whole);
        else if (nv == 2) micro<2, pairs>(k.words, a, b, to, rc, add && whole);
        else micro<1, pairs>(k.words, a, b, to, rc, add && whole);
        for (int i = 0; i < (whole ? 0 : rows); i++)
            each_vector(columns, [&](int64_t j, auto lanes) {
                const vf v = lanes.get(edge + i * MICRO + j);
                lanes.put(c + i * int64_t(g.N) + j, add ? v + lanes.get(c + i * int64_t(g.N) + j) : v);
            });
        if (!ends) return;
        if (g.gelu) epilogue<Then::gelu>(g, m, rows, n, columns);
        else if (g.gelu_of) epilogue<Then::slope>(g, m, rows, n, columns);
        else epilogue<Then::add>(g, m, rows, n, columns);
    }

    // Multiplies the panel from row or column o0 on by strips [first, end) of the shared operand,
    // whose packed part begins at row or column s0.
    void panel(Block k, int o0, const float* own, int s0, const float* shared, int first, int end) const {
        for (int s = first; s < end; s++)
            if (own_a()) {
                for (int m = o0; m < least(g.M, o0 + WIDE); m += ROWS)
                    tile(k, m, s0 + s * MICRO, strip(k, m, own, o0), shared + b_at(s * MICRO, k));
            } else {
                const int m = s0 + s * ROWS;
                for (int n = o0; n < least(g.N, o0 + WIDE); n += MICRO)
                    tile(k, m, n, strip(k, m, shared, s0), own + b_at(n - o0, k));
            }
    }

    // A step of the product: a block of k, and `size` rows or columns of the shared operand from s0
    // on. shared: their packed copy, one of two by turns.
    struct Step {
        Block k;
        int s0, size;
        float* shared;
    };
    Step step(int i, float* workspace) const {
        const int deep = depth(), high = tall(), across = blocks_of(shared_all(), high);
        const int k0 = i / across * deep, s0 = i % across * high, kn = least(deep, g.K - k0);
        return {{k0, kn, (kn + PER - 1) / PER}, s0, least(high, shared_all() - s0), workspace + i % 2 * packed(high)};
    }
    bool shared_in_place() const { return !own_a() && a_in_place(); }
    void pack_shared(const Step& t, int i) const {
        if (own_a()) pack_b(t.shared + b_at(i, t.k), t.s0 + i, MICRO, t.k);
        else pack_a(t.shared + a_at(i, t.k), t.s0 + i, MICRO, t.k, true);
    }
    // Computes a range of a step's work, which is numbered panel by panel, then strip by strip; a
    // unit is one strip times one row or column of a panel.
    void multiply_range(const Step& t, Range range, float* own) const {
        const int64_t strips = blocks_of(t.size, own_a() ? MICRO : ROWS);
        for (int o0 = 0; o0 < own_all(); o0 += WIDE) {
            const int64_t n = least(WIDE, own_all() - o0), at = strips * o0;
            const int first = at >= range.from ? 0 : int(least64(strips, (range.from - at + n - 1) / n));
            const int end = at >= range.to ? 0 : int(least64(strips, (range.to - at + n - 1) / n));
            if (first >= end) continue;
            if (!own_a()) pack_b(own, o0, up(int(n), MICRO), t.k);
            else if (!a_in_place()) pack_a(own, o0, up(int(n), MICRO), t.k, first == 0 && t.s0 == 0);
            panel(t.k, o0, own, t.s0, t.shared, first, end);
        }
    }

    // Each loop multiplies a step and packs the next one's shared operand. With two panels or more
    // for each thread its chunks are whole panels; else panels are divided, and each chunk packs
    // those that it has a part of.
    void run() const {
        float* workspace = static_cast<float*>(cpu_scratch(scratch()));
        const int steps = blocks_of(g.K, depth()) * blocks_of(shared_all(), tall());
        const int panels = blocks_of(own_all(), WIDE), threads = pool_threads();
        const bool whole = panels >= 2 * threads;
        const int64_t chunks = whole ? panels : threads > 1 ? 2 * threads : 1;
        auto packs_of = [&](const Step& t) { return shared_in_place() ? 0 : blocks_of(t.size, MICRO); };
        Step now = step(0, workspace);
        each_chunk(packs_of(now), [&](int64_t i, int) { pack_shared(now, int(i) * MICRO); });
        for (int i = 0; i < steps; i++) {
            const Step next = i + 1 < steps ? step(i + 1, workspace) : now;
            const int64_t strips = blocks_of(now.size, own_a() ? MICRO : ROWS);
            each_chunk(chunks + (i + 1 < steps ? packs_of(next) : 0), [&](int64_t chunk, int worker) {
                if (chunk >= chunks) return pack_shared(next, int(chunk - chunks) * MICRO);
                multiply_range(now, part_of(strips * own_all(), whole ? strips * WIDE : 1, chunk, chunks),
                               workspace + shared_words() + worker * panel_words());
            });
            now = next;
        }
    }
};
}    // namespace

template <class X, class Y> static void multiply(const Matmul<X, Y>& g) {
    if (g.tiles != Tiles::none) return tile_matmul(g);
    Product<X, Y>{g}.run();
}
template <class X, class Y> static int64_t scratch_of(const Matmul<X, Y>& g) {
    return g.tiles != Tiles::none ? tile_matmul_scratch(g.M, g.N, g.K, g.is_bf16) : Product<X, Y>{g}.scratch();
}
template <class X, class Y> static int64_t max_scratch_of(const Matmul<X, Y>& g) {
    return g.tiles != Tiles::none ? tile_matmul_scratch(g.M, g.N, g.K, g.is_bf16) : Product<X, Y>{g}.max_scratch();
}
#define PRODUCT(Type)                                               \
    void matmul(const Type& g) { multiply(g); }                     \
    int64_t matmul_scratch(const Type& g) { return scratch_of(g); } \
    int64_t max_matmul_scratch(const Type& g) { return max_scratch_of(g); }
PRODUCT(Floats)
PRODUCT(Halves)
PRODUCT(Mixed)
}    // namespace ISA

// amx.cpp - matmul.cpp's products by AMX tiles, if the CPU has them.
//
// Tiles multiply bf16. A float is the sum of three bf16 numbers (planes), and a product of floats
// is six products of planes. The other three would add at most about 2^-24 of the product, as the
// second plane is at most 2^-8 of the first, the third 2^-17. A tile product adds 32 terms at once
// to a sum, so results are more accurate than by FMAs (test_amx.cpp). Infinity, and numbers that 8
// bits round to infinity, become NaN, as infinity - infinity is left for the next plane.
//
// Both operands are packed. A tile of A has 16 rows of 32 k; a tile of B has 16 pairs of k of 16
// columns. A panel is 32 rows of A or 32 columns of B, stored step after step. A step is 32 k: two
// tiles (2 KiB) for each plane. A block is 32 x 32 sums in four tile registers. For each step it
// takes four tile loads and four tile products; with floats, 14 loads and 24 products.
//
// A chunk of the loop, one for each thread, has a rectangle of the result. It packs its part of A
// and B into its worker's memory: packing twice takes less time than sharing, because cache lines
// go from core to core slowly (dev/speed.md). One operand is resident: as many of its panels as fit
// L2 are packed at a time. The other operand is streamed: one panel is packed into L1 and L2 and
// multiplied by all resident panels, SUB steps at a time, so that data that is read again stays in
// L1. Resident tiles bypass L1. If each row of memory has only one or two cache lines of a streamed
// panel, GROUP panels are packed together, because a core reads four lines of each row four times
// as fast as single lines (dev/speed.md).
//
// While a block is computed, the previous block passes through the epilogue, evenly over the
// products, because bursts of stores delay tile loads. Meanwhile the memory of the next streamed
// panel is prefetched. k is never divided among threads, and the order of its sums depends on K and
// N alone: neither threads nor other rows change the bits of a sum.
//
// Bound by tile products: each is 8192 multiply-adds in 16 cycles, 20 with random numbers. Measured
// with a prototype (2 cores of an Intel server, 2026-11-22): bursts of stores cost 15 %, resident
// tiles that pass through L1 18 %. Large results are stored past the caches, in half the time of
// stores that read the lines first. With floats (2026-11-26), loading each plane for each product
// would cost 17 %, storing rows only after each step 5 %.
#include "layers/simd/gelu.h"
#include "layers/simd/pack_panels.h"
#include "layers/simd/bf16_planes.h"
#include "layers/matmul/matmul.h"

namespace ISA {
namespace {
template <class Y> struct PlanesOf { typedef OnePlane type; };    // by the type of B
template <> struct PlanesOf<float> { typedef ThreePlanes type; };

// A or B in memory. along: k is contiguous, and element (i,k) is at i*ld + k. Otherwise i is
// contiguous, and element (i,k) is at k*ld + i; such a B may lie in panels (Matmul in cpu.h).
template <class Planes> struct Operand {
    static constexpr int PLANE = 2 * TILE, STEP = Planes::PLANES * PLANE;    // words of a step of a panel
    const void* p;
    bool half;    // bf16, else float
    int64_t ld;
    bool along;
    int n, K;         // bounds of i and k
    int panel = 0;    // columns per panel of B; 0: no panels

    int64_t offset(int i, int k) const {
        return along ? i * ld + k : k * ld + (panel ? int64_t(i / panel) * panel * K + i % panel : i);
    }
    // Packs one tile of each plane (bf16_planes.h) from `from` on. A tile is 16 lines of 16 words
    // of two numbers: elements k and k + 1 of bf16, or k and k + 16 of a plane of floats.
    // lies_along: k is contiguous, and a line is packed from one row of memory; otherwise from two
    // rows, one for each number of a word. transposed: lines and words of the tile are swapped.
    template <bool lies_along, bool transposed, class E>
    static INLINE_MEMBER void pack_whole(float* to, const E* from, int64_t ld) {
        for (int line = 0; line < 16; line += VW)
            for (int word = 0; word < 16; word += VW) {
                vf r[VW], low[VW], high[VW];
                if constexpr (Planes::PLANES > 1)
                    for (int j = 0; j < VW; j++) {
                        const E* p = from + (line + j) * ld + word;
                        low[j] = load(p);
                        high[j] = load(p + 16 * (lies_along ? 1 : ld));
                    }
                for (int plane = 0; plane < Planes::PLANES; plane++) {
#pragma GCC unroll 16
                    for (int j = 0; j < VW; j++)
                        if constexpr (Planes::PLANES > 1) {
                            r[j] = Planes::take(low[j], high[j], plane);
                        } else if constexpr (lies_along) {
                            r[j] = pairs_along(from + (line + j) * ld + 2 * word, 32);
                        } else {
                            const E* p = from + 2 * (line + j) * ld + word;
                            r[j] = pairs_across(p, p + ld, 16);
                        }
                    if (transposed) transpose(r);
#pragma GCC unroll 16
                    for (int j = 0; j < VW; j++)
                        store(to + plane * PLANE + (transposed ? 16 * (word + j) + line : 16 * (line + j) + word),
                              r[j]);
                }
            }
    }
    template <class E> [[gnu::noinline]] void pack_tile(float* to, bool is_a, int i0, int k0) const {
        const E* from = static_cast<const E*>(p) + offset(i0, k0);
        int64_t step = ld;
        E edge[16 * 32];
        if (i0 + 16 > n || k0 + 32 > K) {    // zeros beyond the edge
            __builtin_memset(edge, 0, sizeof edge);
            step = along ? 32 : 16;
            for (int i = 0; i < least(16, n - i0); i++)
                for (int k = 0; k < least(32, K - k0); k++)
                    edge[along ? i * 32 + k : k * 16 + i] = from[along ? i * ld + k : k * ld + i];
            from = edge;
        }
        if (along) is_a ? pack_whole<true, false>(to, from, step) : pack_whole<true, true>(to, from, step);
        else is_a ? pack_whole<false, true>(to, from, step) : pack_whole<false, false>(to, from, step);
    }
    // Packs both tiles of a panel's step at once, for bf16 B that is not contiguous along k: each
    // cache line is loaded once, not twice.
    [[gnu::noinline]] static void pack_lines(float* to, const bf16* from, int64_t ld) {
        for (int line = 0; line < 16; line++, to += 16, from += 2 * ld)
            for (int j = 0; j < SIDE; j += 2 * VW) {
                vf r[2];
                pairs_across(r, from + j, from + ld + j);
                for (int i = 0; i < 2; i++) store(to + (j + i * VW) / 16 * TILE + (j + i * VW) % 16, r[i]);
            }
    }
    // Packs 32 k, from k0 on, of the panel that begins at row or column i0. sums: null, or sums of
    // A's rows, to which these 32 k are added.
    [[gnu::noinline]] void pack(float* to, bool is_a, int i0, int k0, float* sums) const {
        if (Planes::PLANES == 1 && half && !is_a && !along && !panel && i0 + SIDE <= n && k0 + 32 <= K)
            return pack_lines(to, static_cast<const bf16*>(p) + offset(i0, k0), ld);
        for (int h = 0; h < 2; h++)
            if (Planes::PLANES == 1 && half) pack_tile<bf16>(to + h * TILE, is_a, i0 + 16 * h, k0);
            else pack_tile<float>(to + h * TILE, is_a, i0 + 16 * h, k0);
        if (sums && half) add_rows<bf16>(sums, i0, k0);
        else if (sums) add_rows<float>(sums, i0, k0);
    }
    template <class E> void add_rows(float* sums, int i0, int k0) const {
        for (int i = i0; i < least(n, i0 + SIDE); i += VW) {
            const E* row = static_cast<const E*>(p) + k0 * ld + i;
            vf total = {};
            for (int k = k0; k < least(K, k0 + 32); k++, row += ld) total += load_most(row, n - i);
            for (int j = 0; j < least(n - i, VW); j++) sums[i + j] += total[j];
        }
    }
};

// Cache lines of the next panel that are still to be prefetched: `rows` rows, `pitch` bytes apart,
// of `lines` lines. Only for operands that are contiguous along k.
struct Prefetch {
    const char* p = nullptr;
    int64_t pitch = 0;
    int line = 0, lines = 0, rows = 0;
    INLINE_MEMBER void some(int most) {
        for (int i = 0; i < most && rows > 0; i++) {
            __builtin_prefetch(p + 64 * line, 0, 2);
            if (++line == lines) line = 0, p += pitch, rows--;
        }
    }
};
template <class Planes> INLINE Prefetch next_panel(const Operand<Planes>& o, int i0, int k, int steps) {
    const int size = o.half ? 2 : 4;
    if (i0 + SIDE > o.n) return {};
    return {static_cast<const char*>(o.p) + (i0 * o.ld + k) * size, o.ld * size, 0,
            parts(least(32 * steps, o.K - k) * size, 64), SIDE};
}

// A block of k: its first step, its number of steps, whether its sums are added to C, and whether
// they complete C.
struct Depth {
    int from, steps;
    bool add, ends;
};
// Sums of a finished block, four tiles, that are still to be written to C from (m,n) on.
struct FinishedBlock {
    const float* from = nullptr;    // null: no sums to write
    int m = 0, n = 0;
};

struct Panels {
    int from, to;
    static Panels share(int n, int i, int of) { return {int(int64_t(n) * i / of), int(int64_t(n) * (i + 1) / of)}; }
};
// A chunk's part of the result. Chunks form a grid over the result's M x N panels; each computes
// some rows and some columns of panels, over all k. Grid and resident operand are chosen so that
// the largest chunk multiplies least and, among equals, packs least; if both operands cost the
// same, B is resident. most: panels that can be resident at once. A thread with more packs them in
// parts, and packs its streamed panels again for each part.
struct ThreadShare {
    bool a_resident = false, sums = false;    // sums: adds up its rows of A
    Panels resident = {}, streamed = {};
    int part = 0;    // resident panels of a part

    ThreadShare(int M, int N, int most, int thread, int threads) {
        int64_t least_products = INT64_MAX, least_packed = INT64_MAX;
        int down = 1, across = 1;
        for (int i = 1; i <= least(M, threads); i++) {
            const int j = least(N, threads / i), m = parts(M, i), n = parts(N, j);
            const int64_t products = int64_t(m) * n;
            const int64_t by_a = m + int64_t(n) * parts(m, most), by_b = n + int64_t(m) * parts(n, most);
            const int64_t packed = least64(by_a, by_b);
            if (products > least_products || (products == least_products && packed >= least_packed)) continue;
            least_products = products;
            least_packed = packed;
            down = i;
            across = j;
            a_resident = by_a < by_b;
        }
        if (thread >= down * across) return;    // empty chunk
        const Panels rows = Panels::share(M, thread / across, down);
        const Panels columns = Panels::share(N, thread % across, across);
        resident = a_resident ? rows : columns;
        streamed = a_resident ? columns : rows;
        sums = thread % across == 0;
        part = parts(resident.to - resident.from, parts(resident.to - resident.from, most));
    }
};
// The epilogue's work after bias and residual. add: nothing. slope: multiplies by GELU's
// derivative. gelu: also writes GELU of the result.
enum class Then { add, slope, gelu };
template <Then then, class X, class Y> struct Product {
    typedef Matmul<X, Y> Form;
    typedef typename PlanesOf<Y>::type Planes;
    static constexpr int MOST = Planes::MOST, SUB = Planes::SUB, SUB_PAST_CACHES = Planes::SUB_PAST_CACHES;
    static constexpr int STEP = Operand<Planes>::STEP, GROUP = 8;    // panels packed together
    const Form& g;
    const Operand<Planes> a, b;
    const bool past_caches;
    const int deep;    // steps of a block of k
    const ThreadShare share;
    const bool a_resident = share.a_resident;

    static int steps_of(int K) { return parts(K, 32); }
    static bool passes_by(const Form& g) {
        auto whole_lines = [&](const void* p) { return reinterpret_cast<uintptr_t>(p) % 64 == 0; };
        return VW == 16 && !g.add && steps_of(g.K) <= block_steps<Planes>(g.N, g.K) && g.N % 16 == 0 &&
               int64_t(g.M) * g.N * 4 > PASSES_BY && whole_lines(g.c) && whole_lines(g.gelu);
    }
    Product(const Form& form, int thread, int threads)
        : g(form), a{g.a, sizeof(X) == 2, g.ca == 1 && !g.row_sums ? g.ra : g.ca, g.ca == 1 && !g.row_sums, g.M, g.K},
          b{g.b, sizeof(Y) == 2, g.rb == 1 ? g.cb : g.rb, g.rb == 1, g.N, g.K, g.panel}, past_caches(passes_by(g)),
          deep(block_steps<Planes>(g.N, g.K)),
          share(parts(g.M, SIDE), parts(g.N, SIDE), RESIDENT / (deep * STEP), thread, threads) {}
    const Operand<Planes>& resident() const { return a_resident ? a : b; }
    const Operand<Planes>& streamed() const { return a_resident ? b : a; }

    // Words of a thread's scratch for resident panels. Like own_words, never less if M, N or K
    // grows.
    static int64_t resident_words(int M, int N, int K) {
        const int64_t panels = parts(M > N ? M : N, SIDE), steps = least(steps_of(K), MOST);
        return least64(panels * steps * STEP, RESIDENT);
    }
    // Words of a thread's scratch: resident panels, streamed panels, and sums of finished blocks.
    // It has the sums of one block or, if a block of k is divided, of one for each resident panel.
    static int64_t own_words(int M, int N, int K) {
        const int steps = least(steps_of(K), MOST);
        return resident_words(M, N, K) + GROUP * steps * STEP +
               (steps > SUB_PAST_CACHES ? RESIDENT / (SUB_PAST_CACHES * STEP) : 1) * SIDE * SIDE;
    }
    static int64_t scratch(int M, int N, int K) { return int64_t(sizeof(float)) * pool_threads() * own_words(M, N, K); }

    template <bool whole>
    INLINE_MEMBER void store_row(const FinishedBlock& l, const Depth& k, int r, int columns) const {
        const int64_t row = int64_t(l.m + r) * g.N + l.n;
        const float* from = l.from + r / 16 * 2 * TILE + r % 16 * 16;
        auto put = [&](auto* p, vf v, auto lanes) {
            if (whole && past_caches) store_past_caches(p, v);
            else lanes.put(p, v);
        };
        each_vector(whole ? SIDE : columns, [&](int64_t j, auto lanes) {
            vf v = load(from + j / 16 * TILE + j % 16);
            if (k.add) v += lanes.get(g.c + row + j);
            if (k.ends) {
                if (g.bias) v += lanes.get(g.bias + l.n + j);
                if (g.residual) v += lanes.get(g.residual + row + j);
                if constexpr (then == Then::slope) v *= gelu_slope(lanes.get(g.gelu_of + row + j));
            }
            put(g.c + row + j, v, lanes);
            if (then == Then::gelu && k.ends) put(g.gelu + row + j, gelu(v), lanes);    // gelu may be C
        });
    }
    // Prefetches the epilogue's inputs and outputs for row r of this block.
    INLINE_MEMBER void fetch_row(const FinishedBlock& l, const Depth& k, int r) const {
        const int64_t row = int64_t(l.m + r) * g.N + l.n;
        for (int j = 0; j < SIDE; j += 16) {
            if (!past_caches) __builtin_prefetch(g.c + row + j, 1, 2);
            if (k.ends && g.residual) __builtin_prefetch(g.residual + row + j, 0, 2);
            if (then == Then::slope && k.ends) __builtin_prefetch(g.gelu_of + row + j, 0, 2);
            if (then == Then::gelu && k.ends && !past_caches) __builtin_prefetch(g.gelu + row + j, 1, 2);
        }
    }

    // Stores rows row..end-1 of the finished block `l`, and prefetches what the epilogue of the
    // current block `here` needs for the same rows. Returns the next row.
    INLINE_MEMBER int store_rows(const FinishedBlock& l, const FinishedBlock& here, const Depth& k, int row,
                                 int end) const {
        for (; row < end; row++) {
            store_row<true>(l, k, row, SIDE);
            fetch_row(here, k, row);
        }
        return row;
    }
    // Not inlined, as a step of floats calls it five times.
    [[gnu::noinline]] int store_between(const FinishedBlock& l, const FinishedBlock& here, const Depth& k, int row,
                                        int end) const {
        return store_rows(l, here, k, row, end);
    }
    template <bool past, int tile, class Set> static INLINE_MEMBER void load_tile(Set& tiles, const float* p) {
        if constexpr (past) tiles.template load_past_l1<tile>(p, 64);
        else tiles.template load<tile>(p, 64);
    }
    // Adds the products of one step (32 k) to the four tiles of sums. Calls between(n) after the
    // n-th product of planes, except the last. A plane that the previous product used stays loaded.
    template <bool a_past, class Set, class F>
    static INLINE_MEMBER void step(Set& tiles, const float* x, const float* y, F between) {
        constexpr int PLANE = Operand<Planes>::PLANE;
        each_index<0, Planes::PRODUCTS>([&](auto product) {
            constexpr int n = product.is, last = n > 0 ? n - 1 : 0, of_a = Planes::A[n], of_b = Planes::B[n];
            constexpr bool new_a = n == 0 || of_a != Planes::A[last], new_b = n == 0 || of_b != Planes::B[last];
            if constexpr (new_a) load_tile<a_past, 4>(tiles, x + of_a * PLANE);
            if constexpr (new_b) load_tile<!a_past, 6>(tiles, y + of_b * PLANE);
            tiles.template products<0, 4, 6>();
            if constexpr (new_a) load_tile<a_past, 5>(tiles, x + of_a * PLANE + TILE);
            tiles.template products<2, 5, 6>();
            if constexpr (new_b) load_tile<!a_past, 7>(tiles, y + of_b * PLANE + TILE);
            tiles.template products<1, 4, 7>(), tiles.template products<3, 5, 7>();
            if constexpr (n + 1 < Planes::PRODUCTS) between(n + 1);
        });
    }

    // Computes the sums of a block over `steps` steps into `out` (four tiles); with `more` they are
    // added to its content. Meanwhile the block `finished` is written to C.
    template <class Set> [[gnu::noinline]] void block(Set& tiles, const float* x, const float* y, int steps, bool more,
                                                      float* out, const Depth& k, const FinishedBlock& here,
                                                      const FinishedBlock& finished, Prefetch& asked) const {
        if (more) {
            tiles.template load<0>(out, 64), tiles.template load<1>(out + TILE, 64);
            tiles.template load<2>(out + 2 * TILE, 64), tiles.template load<3>(out + 3 * TILE, 64);
        } else {
            tiles.template zero<0>(), tiles.template zero<1>(), tiles.template zero<2>(), tiles.template zero<3>();
        }
        int row = finished.from ? 0 : SIDE;
        for (int s = 0; s < steps; s++, x += STEP, y += STEP) {
            constexpr int P = Planes::PRODUCTS;
            auto between = [&](int n) {
                if (row < SIDE) row = store_between(finished, here, k, row, SIDE * (s * P + n) / (steps * P));
            };
            if (a_resident) step<true>(tiles, x, y, between);
            else step<false>(tiles, x, y, between);
            row = store_rows(finished, here, k, row, SIDE * (s + 1) / steps);
            asked.some(Planes::PREFETCH_LINES);
        }
        tiles.template store<0>(out, 64), tiles.template store<1>(out + TILE, 64);
        tiles.template store<2>(out + 2 * TILE, 64), tiles.template store<3>(out + 3 * TILE, 64);
    }
    void store_now(const FinishedBlock& l, const Depth& k, int rows, int columns) const {
        for (int r = 0; r < rows; r++) store_row<false>(l, k, r, columns);
    }

    // Multiplies the streamed panel that begins at row or column t0 by n resident panels, which
    // begin at row or column r0. blocks: memory for the sums of blocks before the epilogue.
    template <class Set> void panel(Set& tiles, const Depth& k, const float* own, int t0, const float* packed, int r0,
                                    int n, float* blocks, FinishedBlock& finished, Prefetch asked) const {
        const int pieces = parts(k.steps, past_caches ? SUB_PAST_CACHES : SUB), sub = parts(k.steps, pieces);
        for (int s = 0; s < k.steps; s += sub) {
            const int steps = least(sub, k.steps - s);
            for (int r = 0; r < n; r++) {
                const float *from_resident = packed + (r * k.steps + s) * STEP, *from_streamed = own + s * STEP;
                // If the block of k is one piece, all blocks share one memory for sums: block()
                // writes the previous sums to C before it stores new ones there.
                float* out = blocks + (pieces > 1 ? r : 0) * SIDE * SIDE;
                const int at = r0 + r * SIDE;
                const FinishedBlock here = {out, a_resident ? at : t0, a_resident ? t0 : at};
                block(tiles, a_resident ? from_resident : from_streamed, a_resident ? from_streamed : from_resident,
                      steps, s > 0, out, k, here, finished, asked);
                finished.from = nullptr;
                if (s + steps < k.steps) continue;
                if (here.m + SIDE <= g.M && here.n + SIDE <= g.N) finished = here;
                else store_now(here, k, least(SIDE, g.M - here.m), least(SIDE, g.N - here.n));
            }
        }
    }

    // Packs the n resident panels from panel p0 on, in the order in which they lie in memory, so
    // that the CPU prefetches them.
    void pack_resident(float* to, int p0, int n, const Depth& k) const {
        const Operand<Planes>& r = resident();
        const bool by_panels = r.along || r.panel;
        for (int i = 0; i < n * k.steps; i++) {
            const int p = by_panels ? i / k.steps : i % n, step = by_panels ? i % k.steps : i / n;
            r.pack(to + (p * k.steps + step) * STEP, a_resident, (p0 + p) * SIDE, 32 * (k.from + step),
                   a_resident && share.sums ? g.row_sums : nullptr);
        }
    }
    // Packs the n streamed panels from panel p0 on. With `sums`, adds up their rows to row_sums.
    void pack_streamed(float* to, int p0, int n, const Depth& k, bool sums) const {
        for (int step = 0; step < k.steps; step++)
            for (int p = 0; p < n; p++)
                streamed().pack(to + (p * k.steps + step) * STEP, !a_resident, (p0 + p) * SIDE, 32 * (k.from + step),
                                sums ? g.row_sums : nullptr);
    }

    template <class Set> void work(Set& tiles, float* workspace) const {
        const Panels r = share.resident, t = share.streamed;
        const int steps = steps_of(g.K);
        float *own = workspace + resident_words(g.M, g.N, g.K), *out = own + GROUP * least(steps, MOST) * STEP;
        for (int r0 = r.from; r0 < r.to; r0 += share.part)
            for (int k0 = 0; k0 < steps; k0 += deep) {
                const Depth k = {k0, least(deep, steps - k0), g.add || k0 > 0, k0 + deep >= steps};
                const int n = least(share.part, r.to - r0);
                pack_resident(workspace, r0, n, k);
                int group = t.from, packed = group;    // panels group..packed-1 are packed
                FinishedBlock finished;
                for (int p = t.from; p < t.to; p++) {
                    if (p == packed) {
                        group = p;
                        packed = least(t.to, p + (streamed().along ? 1 : GROUP));
                        pack_streamed(own, p, packed - p, k, !a_resident && share.sums && r0 == r.from);
                    }
                    Prefetch asked;
                    if (streamed().along && p + 1 < t.to)
                        asked = next_panel(streamed(), (p + 1) * SIDE, 32 * k0, k.steps);
                    panel(tiles, k, own + (p - group) * k.steps * STEP, p * SIDE, workspace, r0 * SIDE, n, out,
                          finished, asked);
                }
                if (finished.from) store_now(finished, k, SIDE, SIDE);
            }
        if (past_caches) __sync_synchronize();
    }
    static void run(const Form& g) {
        float* workspace = static_cast<float*>(cpu_scratch(scratch(g.M, g.N, g.K)));
        const int threads = pool_threads();
        each_chunk(threads, [&](int64_t thread, int worker) {
            const Product mine(g, int(thread), threads);
            with_tiles(g.tiles, [&](auto& tiles) { mine.work(tiles, workspace + worker * own_words(g.M, g.N, g.K)); });
        });
    }
};
template <class X, class Y> void multiply(const Matmul<X, Y>& g) {
    if (g.gelu) Product<Then::gelu, X, Y>::run(g);
    else if (g.gelu_of) Product<Then::slope, X, Y>::run(g);
    else Product<Then::add, X, Y>::run(g);
}
}    // namespace

void tile_matmul(const Floats& g) { multiply(g); }
void tile_matmul(const Halves& g) { multiply(g); }
void tile_matmul(const Mixed& g) { multiply(g); }
int64_t tile_matmul_scratch(int M, int N, int K, bool is_bf16) {
    return is_bf16 ? Product<Then::add, float, bf16>::scratch(M, N, K)
                   : Product<Then::add, float, float>::scratch(M, N, K);
}
}    // namespace ISA

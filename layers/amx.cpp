// amx.cpp - matrix products by tiles: what matmul.cpp computes, where the CPU has AMX.
//
// Tiles know bf16. Floats are the sum of three numbers of bf16 (planes), and a product of floats is six products of
// planes: the other three would add about 2^-24 of it at most, as the second plane is at most 2^-8 of the first, the
// third 2^-17. Sums of 32 k are added to the others at once, so results are nearer than those of FMAs (test_amx.cpp).
// Infinity, and what 8 bits round to it, becomes NaN, as infinity - infinity is left for the next plane.
//
// Both operands are packed into tiles: A into 16 rows of 32 k, B into 16 pairs of k of 16 columns. A panel is 32 rows
// or columns: for each plane of a step of 32 k two tiles, 2 KiB, the steps one after the other. A block is 32 x 32 sums
// in four tile registers; a step of it is four loads and four products, with floats 14 and 24. The smaller operand is
// resident: all threads pack a part of it that fits every L2, together. The other one is streamed: a thread packs a
// panel of it into L1 and L2 and multiplies it by all resident panels, SUB steps of k at a time, so that what it reads
// again stays in L1; resident tiles pass by L1. While a block is computed, the one before leaves through the epilogue,
// evenly over the products, as bursts of stores hold tile loads up, and the memory of the next streamed panel is asked
// for. Where a panel has only a line or two of each row of memory, GROUP of them are packed together instead: a core
// reads single lines of many rows a quarter as fast as four of each (speed.md). Work is divided in blocks; k never is,
// and its order depends on K and N alone: neither threads nor other rows change the bits of a sum.
//
// Bound by tile products: 16 cycles for 8192 multiply-adds, 20 with random numbers. Measurements of the prototype (2
// cores of an Intel server, 2026-11-22): bursts of stores cost 15 %, resident tiles that pass through L1 18 %. Large
// results are stored past the caches in half the time that stores take which read the lines first. With floats
// (2026-11-26) it costs 17 % to load each plane for each product, 5 % if rows leave after each step only.
#include "layers/simd/gelu.h"
#include "layers/simd/pack.h"
#include "layers/simd/planes.h"
#include "layers/simd/products.h"

namespace ISA {
namespace {
template <class Y> struct PlanesOf { typedef OnePlane type; };    // by the type of B
template <> struct PlanesOf<float> { typedef ThreePlanes type; };

// A or B as it lies in memory. along: k is contiguous, element (i,k) at i*ld + k; else at k*ld + i. B that is not along
// may lie in panels (Matmul).
template <class Planes> struct Operand {
    static constexpr int PLANE = 2 * TILE, STEP = Planes::PLANES * PLANE;    // words of a step of a panel
    const void* p;
    bool half;    // bf16, else float
    int64_t ld;
    bool along;
    int n, K;    // i is below n
    int panel = 0;    // its columns; 0: B does not lie in panels

    int64_t place(int i, int k) const {
        return along ? i * ld + k : k * ld + (panel ? int64_t(i / panel) * panel * K + i % panel : i);
    }
    // The rows or columns i0.. of the k0.. as a tile of each plane: 16 lines (rows if along, else pairs of k) of 16
    // words. turned: line and word change places. Pairs of k are neighbours, those of several planes k and k + 16.
    template <bool lies_along, bool turned, class E>
    static INLINE_MEMBER void pack_whole(float* to, const E* from, int64_t ld) {
        for (int line = 0; line < 16; line += VW)
            for (int word = 0; word < 16; word += VW) {
                vf r[VW], low[VW], high[VW];
                if constexpr (Planes::PLANES > 1)
                    for (int j = 0; j < VW; j++) {
                        const E* p = from + (line + j) * ld + word;
                        low[j] = load(p), high[j] = load(p + 16 * (lies_along ? 1 : ld));
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
                    if (turned) transpose(r);
#pragma GCC unroll 16
                    for (int j = 0; j < VW; j++)
                        store(to + plane * PLANE + (turned ? 16 * (word + j) + line : 16 * (line + j) + word), r[j]);
                }
            }
    }
    template <class E> [[gnu::noinline]] void pack_tile(float* to, bool is_a, int i0, int k0) const {
        const E* from = static_cast<const E*>(p) + place(i0, k0);
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
    // The step of a panel that begins at element k0 of k. sums, if not null: += the sums over its k of its rows.
    [[gnu::noinline]] void pack(float* to, bool is_a, int i0, int k0, float* sums) const {
        for (int h = 0; h < 2; h++)
            if (Planes::PLANES == 1 && half) pack_tile<bf16>(to + h * TILE, is_a, i0 + 16 * h, k0);
            else pack_tile<float>(to + h * TILE, is_a, i0 + 16 * h, k0);
        for (int i = i0; sums && i < least(n, i0 + SIDE); i += VW) {
            const float* row = static_cast<const float*>(p) + k0 * ld + i;
            vf total = {};
            for (int k = k0; k < least(K, k0 + 32); k++, row += ld) total += load_most(row, n - i);
            for (int j = 0; j < least(n - i, VW); j++) sums[i + j] += total[j];
        }
    }
};

// Lines of the next panel's memory; it lies along k.
struct Asked {
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
template <class Planes> INLINE Asked next_panel(const Operand<Planes>& o, int i0, int k, int steps) {
    const int size = o.half ? 2 : 4;
    if (i0 + SIDE > o.n) return {};
    return {static_cast<const char*>(o.p) + (i0 * o.ld + k) * size, o.ld * size, 0,
            parts(least(32 * steps, o.K - k) * size, 64), SIDE};
}

// Where a block of k begins, how many steps it has, and what happens to the sums at its end.
struct Depth { int from, steps; bool add, ends; };
// Sums on their way out: four tiles, to C from (m,n) on.
struct Leaving {
    const float* from = nullptr;    // null: nothing leaves
    int m = 0, n = 0;
};

enum class Then { add, slope, gelu };    // what the epilogue does besides adding bias and residual
template <Then then, class X, class Y> struct Product {
    typedef Matmul<X, Y> Form;
    typedef typename PlanesOf<Y>::type Planes;
    static constexpr int MOST = Planes::MOST, SUB = Planes::SUB, SUB_PAST_CACHES = Planes::SUB_PAST_CACHES;
    static constexpr int STEP = Operand<Planes>::STEP, GROUP = 8;    // panels that are packed together
    const Form& g;
    const Operand<Planes> a, b;
    const bool a_resident, past_caches;
    const int deep, strips;    // steps of a block of k, resident panels of a part

    static int steps_of(int K) { return parts(K, 32); }
    static bool passes_by(const Form& g) {
        auto whole_lines = [&](const void* p) { return reinterpret_cast<uintptr_t>(p) % 64 == 0; };
        return VW == 16 && !g.add && steps_of(g.K) <= block_steps<Planes>(g.N, g.K) && g.N % 16 == 0 &&
               int64_t(g.M) * g.N * 4 > PASSES_BY && whole_lines(g.c) && whole_lines(g.gelu);
    }
    explicit Product(const Form& g)
        : g(g), a{g.a, sizeof(X) == 2, g.ca == 1 && !g.row_sums ? g.ra : g.ca, g.ca == 1 && !g.row_sums, g.M, g.K},
          b{g.b, sizeof(Y) == 2, g.rb == 1 ? g.cb : g.rb, g.rb == 1, g.N, g.K, g.panel}, a_resident(g.M <= g.N),
          past_caches(passes_by(g)), deep(block_steps<Planes>(g.N, g.K)), strips(even_strips()) {}
    int even_strips() const {
        const int all = parts(resident().n, SIDE), most = RESIDENT / (deep * STEP);
        return parts(all, parts(all, most));
    }
    const Operand<Planes>& resident() const { return a_resident ? a : b; }
    const Operand<Planes>& streamed() const { return a_resident ? b : a; }

    // Words of scratch; not less for a product with more of M, N or K. Sums of parts of k: a block for each strip.
    static int64_t shared_words(int M, int N, int K) {
        const int64_t panels = parts(least(M, N), SIDE), steps = least(steps_of(K), MOST);
        return least64(panels * steps * STEP, RESIDENT);
    }
    static int64_t own_words(int K) {
        const int steps = least(steps_of(K), MOST);
        return GROUP * steps * STEP + (steps > SUB_PAST_CACHES ? RESIDENT / (SUB_PAST_CACHES * STEP) : 1) * SIDE * SIDE;
    }
    static int64_t scratch(int M, int N, int K) {
        return int64_t(sizeof(float)) * (2 * shared_words(M, N, K) + omp_get_max_threads() * own_words(K));
    }

    template <bool whole> INLINE_MEMBER void leave_row(const Leaving& l, const Depth& k, int r, int columns) const {
        const int64_t row = int64_t(l.m + r) * g.N + l.n;
        const float* from = l.from + r / 16 * 2 * TILE + r % 16 * 16;
        auto put = [&](auto* p, vf v, auto place) {
            if (whole && past_caches) store_past_caches(p, v);
            else place.put(p, v);
        };
        each_vector(whole ? SIDE : columns, [&](int64_t j, auto place) {
            vf v = load(from + j / 16 * TILE + j % 16);
            if (k.add) v += place.get(g.c + row + j);
            if (k.ends) {
                if (g.bias) v += place.get(g.bias + l.n + j);
                if (g.residual) v += place.get(g.residual + row + j);
                if constexpr (then == Then::slope) v *= gelu_slope(place.get(g.gelu_of + row + j));
            }
            put(g.c + row + j, v, place);
            if (then == Then::gelu && k.ends) put(g.gelu + row + j, gelu(v), place);    // which may be C
        });
    }
    // Asks for what row r of this block will meet when it leaves.
    INLINE_MEMBER void fetch_row(const Leaving& l, const Depth& k, int r) const {
        const int64_t row = int64_t(l.m + r) * g.N + l.n;
        for (int j = 0; j < SIDE; j += 16) {
            if (!past_caches) __builtin_prefetch(g.c + row + j, 1, 2);
            if (k.ends && g.residual) __builtin_prefetch(g.residual + row + j, 0, 2);
            if (then == Then::slope && k.ends) __builtin_prefetch(g.gelu_of + row + j, 0, 2);
            if (then == Then::gelu && k.ends && !past_caches) __builtin_prefetch(g.gelu + row + j, 1, 2);
        }
    }

    // Rows row..end of what leaves; the same rows of this block are asked for.
    INLINE_MEMBER int leave_rows(const Leaving& l, const Leaving& here, const Depth& k, int row, int end) const {
        for (; row < end; row++) {
            leave_row<true>(l, k, row, SIDE);
            fetch_row(here, k, row);
        }
        return row;
    }
    // Not inlined, as a step of floats calls it five times.
    [[gnu::noinline]] int leave_between(const Leaving& l, const Leaving& here, const Depth& k, int row, int end) const {
        return leave_rows(l, here, k, row, end);
    }
    template <bool past, int tile, class Set> static INLINE_MEMBER void load_tile(Set& tiles, const float* p) {
        if constexpr (past) tiles.template load_past_l1<tile>(p, 64);
        else tiles.template load<tile>(p, 64);
    }
    // Adds a step's products; between(n) after the n-th of planes, but for the last. A plane that the product before
    // had, too, is still there.
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

    // out (four tiles) = or += the sums of `steps` steps, while `leaving` leaves.
    template <class Set>
    [[gnu::noinline]] void block(Set& tiles, const float* x, const float* y, int steps, bool more, float* out,
                                 const Depth& k, const Leaving& here, const Leaving& leaving, Asked& asked) const {
        if (more) {
            tiles.template load<0>(out, 64), tiles.template load<1>(out + TILE, 64);
            tiles.template load<2>(out + 2 * TILE, 64), tiles.template load<3>(out + 3 * TILE, 64);
        } else {
            tiles.template zero<0>(), tiles.template zero<1>(), tiles.template zero<2>(), tiles.template zero<3>();
        }
        int row = leaving.from ? 0 : SIDE;
        for (int s = 0; s < steps; s++, x += STEP, y += STEP) {
            constexpr int P = Planes::PRODUCTS;
            auto between = [&](int n) {
                if (row < SIDE) row = leave_between(leaving, here, k, row, SIDE * (s * P + n) / (steps * P));
            };
            if (a_resident) step<true>(tiles, x, y, between);
            else step<false>(tiles, x, y, between);
            row = leave_rows(leaving, here, k, row, SIDE * (s + 1) / steps);
            asked.some(Planes::ASKS);
        }
        tiles.template store<0>(out, 64), tiles.template store<1>(out + TILE, 64);
        tiles.template store<2>(out + 2 * TILE, 64), tiles.template store<3>(out + 3 * TILE, 64);
    }
    void leave_now(const Leaving& l, const Depth& k, int rows, int columns) const {
        for (int r = 0; r < rows; r++) leave_row<false>(l, k, r, columns);
    }

    // The streamed panel at t0 times resident panels first..end of a part that begins at r0.
    template <class Set>
    void panel(Set& tiles, const Depth& k, const float* own, int t0, const float* shared, int r0, int first, int end,
               float* sums, Leaving& leaving, Asked asked) const {
        const int pieces = parts(k.steps, past_caches ? SUB_PAST_CACHES : SUB), sub = parts(k.steps, pieces);
        for (int s = 0; s < k.steps; s += sub) {
            const int n = least(sub, k.steps - s);
            for (int r = first; r < end; r++) {
                const float *theirs = shared + (r * int64_t(k.steps) + s) * STEP, *mine = own + s * STEP;
                float* out = sums + (pieces > 1 ? r - first : 0) * SIDE * SIDE;    // what was there has left by then
                const int at = r0 + r * SIDE;
                const Leaving here = {out, a_resident ? at : t0, a_resident ? t0 : at};
                block(tiles, a_resident ? theirs : mine, a_resident ? mine : theirs, n, s > 0, out, k, here, leaving,
                      asked);
                leaving.from = nullptr;
                if (s + n < k.steps) continue;
                if (here.m + SIDE <= g.M && here.n + SIDE <= g.N) leaving = here;
                else leave_now(here, k, least(SIDE, g.M - here.m), least(SIDE, g.N - here.n));
            }
        }
    }

    // All threads pack the n resident panels of a part.
    void pack_resident(float* to, int r0, int n, const Depth& k) const {
        const Operand<Planes>& r = resident();
        float* sums = a_resident ? g.row_sums : nullptr;
        auto pack = [&](int p, int step) {
            r.pack(to + (p * k.steps + step) * STEP, a_resident, r0 + p * SIDE, 32 * (k.from + step), sums);
        };
        if (sums) {    // one thread adds up all k of a row, in order
            const Range mine = my_share(n, 1);
            for (int step = 0; step < k.steps; step++)
                for (int p = int(mine.from); p < mine.to; p++) pack(p, step);
#pragma omp barrier
        } else {    // in the order of memory, which the CPU then fetches ahead
#pragma omp for schedule(static)
            for (int i = 0; i < n * k.steps; i++)
                r.along || r.panel ? pack(i / k.steps, i % k.steps) : pack(i % n, i / n);
        }
    }
    // A thread packs streamed panels first..end-1. From `summed` on their rows are added up.
    void pack_streamed(float* to, int first, int end, const Depth& k, int summed) const {
        for (int step = 0; step < k.steps; step++)
            for (int p = first; p < end; p++)
                streamed().pack(to + ((p - first) * k.steps + step) * STEP, !a_resident, p * SIDE, 32 * (k.from + step),
                                a_resident || p < summed ? nullptr : g.row_sums);
    }

    // What thread `id` of `threads` does: it shares packing with the others, and has a range of all blocks.
    template <class Set> void work(Set& tiles, float* room, int64_t id, int64_t threads) const {
        const Operand<Planes> &r = resident(), &t = streamed();
        const int steps = steps_of(g.K);
        const int64_t shared_size = shared_words(g.M, g.N, g.K);
        float* own = room + 2 * shared_size + id * own_words(g.K);
        float* out = own + GROUP * least(steps, MOST) * STEP;
        int flip = 0;
        for (int r0 = 0; r0 < r.n; r0 += strips * SIDE)
            for (int k0 = 0; k0 < steps; k0 += deep, flip ^= 1) {
                const Depth k = {k0, least(deep, steps - k0), g.add || k0 > 0, k0 + deep >= steps};
                const int here = least(strips, parts(r.n - r0, SIDE)), panels = parts(t.n, SIDE);
                float* shared = room + flip * shared_size;
                pack_resident(shared, r0, here, k);
                const int64_t all = int64_t(here) * panels, from = all * id / threads, to = all * (id + 1) / threads;
                const int last = int((to + here - 1) / here);
                int packed = int(from / here), group = packed;    // panels group..packed-1 are packed
                Leaving leaving;
                for (int64_t i = from; i < to;) {
                    const int p = int(i / here), first = int(i % here), end = int(least64(here, first + to - i));
                    if (p == packed) {    // the rows of a panel that the thread before begins are added up there
                        group = p, packed = least(last, p + (t.along ? 1 : GROUP));
                        pack_streamed(own, p, packed, k, r0 > 0 ? last : p + (first > 0));
                    }
                    Asked asked;
                    if (t.along && i + end - first < to) asked = next_panel(t, (p + 1) * SIDE, 32 * k0, k.steps);
                    panel(tiles, k, own + (p - group) * k.steps * STEP, p * SIDE, shared, r0, first, end, out, leaving,
                          asked);
                    i += end - first;
                }
                if (leaving.from) leave_now(leaving, k, SIDE, SIDE);
            }
        if (past_caches) __sync_synchronize();
    }
    void run() const {
        float* room = static_cast<float*>(cpu_scratch(scratch(g.M, g.N, g.K)));
#pragma omp parallel
        with_tiles(g.tiles, [&](auto& tiles) { work(tiles, room, omp_get_thread_num(), omp_get_num_threads()); });
    }
};
template <class X, class Y> void multiply(const Matmul<X, Y>& g) {
    if (g.gelu) Product<Then::gelu, X, Y>(g).run();
    else if (g.gelu_of) Product<Then::slope, X, Y>(g).run();
    else Product<Then::add, X, Y>(g).run();
}
}   // namespace

void tile_matmul(const Floats& g) { multiply(g); }
void tile_matmul(const Halves& g) { multiply(g); }
void tile_matmul(const Mixed& g) { multiply(g); }
int64_t tile_matmul_scratch(int M, int N, int K, bool halves) {
    return halves ? Product<Then::add, float, bf16>::scratch(M, N, K)
                  : Product<Then::add, float, float>::scratch(M, N, K);
}
}   // namespace ISA

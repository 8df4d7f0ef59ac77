// packed_tiles.cpp - packed_linear.cpp's products by AMX tiles.
//
// Floats: up to 16 rows are multiplied by a panel, both in three planes of bf16, with the bits of
// amx.cpp. While tiles multiply 32 k, vectors split the next 32. 32 k of a panel are 6 KiB, which
// take memory some 1,000 cycles. Their 18 tile products take at most 288 cycles; splitting 48 pairs
// of vectors, with 15 instructions each, takes about as many.
//
// Blocks of integers: rows of x are int8. A panel's numbers become signed bytes, PART blocks of 32
// k at a time, which are then multiplied by up to 64 rows of x. Tile A has 16 rows, tile B a block.
// Their exact sums leave the tile to be scaled by vectors as in block_panel (packed_linear.cpp), in
// the same order, so that a row has the same bits. The sums of a block leave while the tiles
// multiply the next block; the sums of the rows stay in registers (AVX-512 has 32).
// For 16 rows and a block, a core needs 16 cycles of the tiles, 16 stores of a cache line and, for
// each row, three or four vector instructions, of which it does two a cycle: about 35 cycles.
// Without tiles, the multiplications alone need 64 (VNNI). Measured (2026-11-25), it takes some 115
// cycles, a third of them in tilestored: a prompt is a tenth faster at most.
#include "layers/quant/block_panels.h"
#include "layers/simd/bf16_planes.h"

namespace ISA {
namespace {
// ---- floats -------------------------------------------------------------------------------------

constexpr int W = 48;    // outputs of a panel of floats

// A step: 32 k of a panel of floats, split into planes of bf16, as AMX tiles.
struct SplitStep {
    alignas(64) float tile[ThreePlanes::PLANES][W / 16][TILE];

    // Splits rows k and k + 16 of the step into a line of each tile. from: the step's first row.
    // Memory `ahead` bytes further on is prefetched into L1, memory twice as far on into L2: with
    // only one of these prefetches it is a tenth slower.
    INLINE_MEMBER void take(const float* from, int k, int ahead) {
        if (ahead > 0)
#pragma GCC unroll 6
            for (int i = 2 * W * k; i < 2 * W * (k + 1); i += 16) {
                __builtin_prefetch(from + ahead / 4 + i, 0, 3);
                __builtin_prefetch(from + ahead / 2 + i, 0, 2);
            }
        for (int j = 0; j < W; j += VW) {
            vf low = load(from + k * W + j), high = load(from + (k + 16) * W + j);
#pragma GCC unroll 3
            for (int plane = 0; plane < ThreePlanes::PLANES; plane++)
                store(tile[plane][j / 16] + 16 * k + j % 16, ThreePlanes::take(low, high, plane));
        }
    }
};

// Adds the products of 16 rows of x and step `now` to tiles 0 to 2. Meanwhile the floats at `from`,
// if it is not null, are split into step `next`.
template <class Set> INLINE void multiply_step(Set& tiles, const float* x, int64_t apart, const SplitStep& now,
                                               const float* from, SplitStep& next, int ahead) {
    each_index<0, ThreePlanes::PRODUCTS>([&](auto product) {
        constexpr int n = product.is, last = n > 0 ? n - 1 : 0, a = ThreePlanes::A[n], b = ThreePlanes::B[n];
        constexpr bool new_a = n == 0 || a != ThreePlanes::A[last], new_b = n == 0 || b != ThreePlanes::B[last];
        if constexpr (new_a) tiles.template load<4>(x + 16 * a, 4 * apart);
        each_index<0, W / 16>([&](auto v) {
            if constexpr (new_b) tiles.template load<5 + v.is>(now.tile[b][v.is], 64);
            tiles.template products<v.is, 4, 5 + v.is>();
            constexpr int k = W / 16 * n + v.is;
            if (k < 16 && from) next.take(from, k, ahead);
        });
    });
}

template <class Set> [[gnu::noinline]] void multiply_floats(void* set, float* sums, const char* panel,
                                                            const PlaneRows& x, int rows, int ahead) {
    Set& tiles = *static_cast<Set*>(set);
    alignas(64) float edge[32 * W], out[W / 16][TILE];
    SplitStep split[2];
    const int steps = parts(x.C, 32), deep = block_steps<ThreePlanes>(x.outputs, x.C);
    auto step_at = [&](int s) {    // null: no step; last one zero-padded
        const float* from = reinterpret_cast<const float*>(panel) + s * 32 * W;
        const int left = x.C - 32 * s;
        if (left >= 32 || left <= 0) return left > 0 ? from : nullptr;
        __builtin_memset(edge, 0, sizeof edge);
        __builtin_memcpy(edge, from, size_t(left) * W * 4);
        return static_cast<const float*>(edge);
    };
    const float* first = step_at(0);
    for (int k = 0; k < 16; k++) split[0].take(first, k, ahead);
    for (int s = 0; s < steps; s++) {
        if (s % deep == 0) each_index<0, W / 16>([&](auto v) { tiles.template zero<v.is>(); });
        multiply_step(tiles, x.planes + s * PlaneRows::STEP, x.apart, split[s % 2], step_at(s + 1), split[(s + 1) % 2],
                      ahead);
        if ((s + 1) % deep && s + 1 < steps) continue;
        each_index<0, W / 16>([&](auto v) { tiles.template store<v.is>(out[v.is], 64); });
        for (int r = 0; r < rows; r++)
            for (int j = 0; j < W; j += VW) {
                const vf v = load(out[j / 16] + 16 * r + j % 16);
                store(sums + r * W + j, s < deep ? v : v + load(sums + r * W + j));
            }
    }
}

// ---- blocks of integers -------------------------------------------------------------------------

// Blocks unpacked at a time: 8 KiB as bytes, which stay in L1 with the 8 KiB of 16 rows of x.
constexpr int PART = 16;

template <BlockType F> struct Unpacked {
    alignas(64) int8_t numbers[PART][8 * 64];    // quarters of 4 k of 16 outputs
    float scale[PART][SUMS<F>][16], offset[PART][16];

    // Reads `count` blocks from block b of the panel on. p: the address of block b or, if b % 8 ==
    // 0, of the head before it (BlockLayout). Returns the address after the last block.
    [[gnu::noinline]] const uint8_t* read(const uint8_t* p, int b, int count, BlockScales<F>* scales) {
        constexpr BlockLayout L = block_layout(F);
        constexpr uint8_t zero = L.zero;
        for (int i = 0; i < count; i++, p += L.block()) {
            const uint8_t* block = p;
            for (int lane = 0; lane < 16; lane += VW) {
                BlockScales<F>& s = scales[lane / VW];
                p = s.read(block, b + i, lane);
                for (int h = 0; h < SUMS<F>; h++) store(scale[i][h] + lane, s.scale[h]);
                if (L.offsets) store(offset[i] + lane, s.offset);
                const uint8_t *high = p + L.scales + 4 * lane, *quads = high + L.high;
                for (int g = 0; g < (F == BlockType::q8_0 ? 8 : 4); g++) {
                    __builtin_prefetch(quads + PrefetchDistance().blocks + 64 * g);
                    const vq both = load_quants(quads + 64 * g);
                    int8_t* to = numbers[i] + 64 * g + 4 * lane;
                    if constexpr (F == BlockType::q8_0) {
                        put(to, both - zero);
                    } else {
                        put(to, with_high<F>(both & 15, high, g) - zero);
                        put(to + 4 * 64, with_high<F>(right(both, 4) & 15, high, g + 4) - zero);
                    }
                }
            }
        }
        return p;
    }
    static INLINE_MEMBER void put(int8_t* to, vq v) { *reinterpret_cast<vq_unaligned*>(to) = v; }
};

// sums (16,16) += products of 16 rows of x, from column k on, with `count` blocks.
template <BlockType F, class Set>
[[gnu::noinline]] void add_tile(Set& tiles, float* sums, const Unpacked<F>& w, int count, ByteRows x, int k) {
    constexpr int DEPTH = block_depth(F);
    alignas(64) int32_t out[2][SUMS<F>][TILE];
    vf sum[16][16 / VW];
    const float* d = x.scales + k / 32;
    const int blocks = x.C / 32;
    const int64_t words = x.apart / 4;
    auto multiply = [&](int b) {
        each_index<0, SUMS<F>>([&](auto h) {
            tiles.template zero<h.is>();
            tiles.template load<4 + h.is>(x.numbers + k + 32 * b + DEPTH * h.is, x.apart);
            tiles.template load<6 + h.is>(w.numbers[b] + 16 * DEPTH * h.is, 64);
            tiles.template byte_products<h.is, 4 + h.is, 6 + h.is>();
            tiles.template store<h.is>(out[b % 2][h.is], 64);
        });
    };
    for (int v = 0; v < 16 / VW; v++)
#pragma GCC unroll 16
        for (int i = 0; i < 16; i++) sum[i][v] = load(sums + 16 * i + v * VW);
    multiply(0);
    for (int b = 0; b < count; b++) {
        if (b + 1 < count) multiply(b + 1);
        for (int v = 0; v < 16 / VW; v++) {
            vf scale[SUMS<F>];
            for (int h = 0; h < SUMS<F>; h++) scale[h] = load(w.scale[b][h] + v * VW);
            const vf offset = block_layout(F).offsets ? load(w.offset[b] + v * VW) : vf{};
#pragma GCC unroll 16
            for (int i = 0; i < 16; i++) {
                vi s[SUMS<F>];
                for (int h = 0; h < SUMS<F>; h++) s[h] = load_ints(out[b % 2][h] + 16 * i + v * VW);
                const float* dx = d + i * words + b;
                sum[i][v] = add_block<F>(sum[i][v], s, scale, offset, dx, dx + blocks);
            }
        }
    }
    for (int v = 0; v < 16 / VW; v++)
#pragma GCC unroll 16
        for (int i = 0; i < 16; i++) store(sums + 16 * i + v * VW, sum[i][v]);
}

template <BlockType F, class Set>
void multiply_panel(void* set, float* sums, const char* panel, const ByteRows& x, int rows) {
    Unpacked<F> part;
    BlockScales<F> scales[16 / VW];
    const uint8_t* p = reinterpret_cast<const uint8_t*>(panel);
    const int blocks = x.C / 32;
    __builtin_memset(sums, 0, size_t((rows + 15) / 16) * TILE * 4);
    for (int b = 0; b < blocks; b += PART) {
        const int count = least(PART, blocks - b);
        p = part.read(p, b, count, scales);
        for (int i = 0; i < rows; i += 16)
            add_tile<F>(*static_cast<Set*>(set), sums + 16 * i, part, count, x.from(i), 32 * b);
    }
}
// Calls f<Set>() with the set of tiles of this kind.
template <class F> auto with_set(Tiles kind, F f) {
#if defined(__AVX512BF16__)    // as with_tiles (simd/amx_tiles.h)
    if (kind == Tiles::amx) return f.template operator()<Amx>();
#endif
    (void)kind;
    return f.template operator()<Pretended>();
}
}    // namespace

FloatTiles float_tiles(Tiles kind) {
    return with_set(kind, []<class Set>() -> FloatTiles { return multiply_floats<Set>; });
}
BlockTiles block_tiles(BlockType format, Tiles kind) {
    return with_set(kind, [&]<class Set>() {
        return with_block_format(format, []<BlockType F>() -> BlockTiles { return multiply_panel<F, Set>; });
    });
}
}    // namespace ISA

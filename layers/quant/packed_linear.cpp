// packed_linear.cpp - y = x w^T + b + residual, or its GELU, with packed weights (packed.h), for
// one row of x or many.
//
// The sums of up to ROWS rows of x times one panel's outputs stay in registers during the loop over
// k. The unit of work is one panel times a block of up to BLOCK rows; further blocks read the panel
// from L2.
//
// Weights in blocks of integers: x becomes int8 in blocks of 32 with a scale. Products of integers
// are exact in 32 bits; their sums are scaled once a block. From TILES_FROM rows on, AMX tiles
// compute the sums (packed_tiles.cpp), with the same bits.
// fp32 weights: a prompt's rows (Precision::prefill) are multiplied by AMX tiles, each number as
// the sum of three bf16 numbers: up to FEW rows in packed_tiles.cpp, more in amx.cpp, with the same
// bits, which differ from those of vectors.
// bf16 weights: if the CPU multiplies pairs of bf16, by vectors or by AMX tiles, x is rounded to
// bf16; otherwise the weights are widened.
// A product of few rows is bound by memory, as each weight is read once; one of many rows is bound
// by its 2 N C OC FLOPs.
#include "layers/quant/block_panels.h"
#include "layers/quant/pack_file_rows.h"
#include "layers/simd/gelu.h"
#include "layers/simd/pack_panels.h"
#include "layers/simd/bf16_planes.h"
#include "layers/matmul/matmul.h"

namespace ISA {
constexpr int ROWS = VW == 16 ? 8 : 4, TILE_ROWS = 16, BLOCK = 64;
// From TILES_FROM rows on, tiles of bytes are worth their fixed cost. Only beyond FEW rows, amx.cpp
// is worth its packing of floats (dev/speed.md).
constexpr int TILES_FROM = 16, FEW = 128;

// ---- rows of x ----------------------------------------------------------------------------------

// Rows of x, prepared for the formats of the weights: as floats, pairs of bf16, planes (PlaneRows)
// or int8. For each 32 numbers, int8 rows have a scale d, d times the numbers' sum, and the negated
// sums of all 32, of the first 16 and of the last 16.
struct Prepared {
    const float* floats;    // x itself, or its copy
    float *copy, *pairs, *planes;
    int8_t* ints;                                       // null, like the three before, if unused
    int64_t float_row, pair_row, plane_row, int_row;    // row strides: words, the last one bytes
    int C;
    PrefetchDistance ahead;
    char* own;    // each thread's panel for rows in a file
    float* scales(int64_t row) const { return reinterpret_cast<float*>(ints + row * int_row + up(C)); }
    ByteRows bytes(int64_t row) const { return {ints + row * int_row, scales(row), int_row, C}; }
    PlaneRows split(int64_t row, int outputs) const { return {planes + row * plane_row, plane_row, C, outputs}; }
    static int64_t up(int64_t n) { return (n + 63) / 64 * 64; }
    static int64_t row_bytes(int64_t C) { return up(C) + up(C / 32 * 5 * 4); }
};
// Row stride in words: no multiple of 2 KiB, as rows that far apart would share cache sets.
INLINE int64_t apart(int64_t words) {
    const int64_t n = (words + VW - 1) / VW * VW;
    return n % 512 ? n : n + VW;
}

// Quantises a row of x to int8 (Prepared), in passes of short chains of instructions, so that the
// CPU works on several blocks at once.
INLINE void quantise_row(int8_t* q, float* scales, const float* x, int C) {
    const int blocks = C / 32;
    float *d = scales, *m = d + blocks;
    int32_t* sums = reinterpret_cast<int32_t*>(m + blocks);    // (blocks), then (blocks, 2)
    // Stays 0, or becomes NaN if a number is not finite; d[0] then makes the row's products NaN.
    vf finite = {};
    for (int b = 0; b < blocks; b++) {
        vf most = {}, zeros = {};
        for (int k = 32 * b; k < 32 * b + 32; k += VW) {
            const vf v = load(x + k);
            most = max(most, max(v, -v));
            zeros += v * 0;
        }
        d[b] = max(most) / 127;
        finite += zeros;
        m[b] = d[b] > 0 ? 1 / d[b] : 0;
    }
    d[0] += sum(finite);
    for (int b = 0; b < blocks; b++) {
        const vf inverse = set1(m[b]);
        float half[2];    // exact
        for (int h = 0; h < 2; h++) {
            vf total = {};
            for (int k = 32 * b + 16 * h; k < 32 * b + 16 * h + 16; k += VW) {
                int8* to = reinterpret_cast<int8*>(q + k);
                store(to, load(x + k) * inverse);
                total += load(to);
            }
            half[h] = sum(total);
        }
        sums[b] = -int32_t(half[0] + half[1]);
        sums[blocks + 2 * b] = -int32_t(half[0]);
        sums[blocks + 2 * b + 1] = -int32_t(half[1]);
        m[b] = d[b] * (half[0] + half[1]);
    }
}

INLINE void split_row(float* planes, const float* x, int C) {
    for (int k = 0; k < C; k += 32, planes += PlaneRows::STEP)
        for (int j = k; j < k + 16; j += VW) {
            vf low = load_most(x + j, C - j), high = load_most(x + j + 16, C - j - 16);
            for (int plane = 0; plane < ThreePlanes::PLANES; plane++)
                store(planes + 16 * plane + j - k, ThreePlanes::take(low, high, plane));
        }
}

// Whether AMX tiles multiply floats in planes of bf16. A matrix of several parts is excluded,
// because y of a part is not contiguous.
INLINE bool by_planes(const PackedProduct& p) {
    return p.precision == Precision::prefill && p.tiles != Tiles::none && p.w->count == 1 &&
           p.w->parts[0].format == BlockType::f32;
}
struct Needs {
    bool floats, pairs, planes, ints;
};
INLINE bool by_tiles(const PackedProduct& p, BlockType format) {    // whole tiles of k, any number of rows
    return format == BlockType::bf16 && p.tiles != Tiles::none && p.C % 32 == 0;
}
INLINE Needs needs(const PackedProduct& p) {
    Needs n = {};
    n.planes = by_planes(p);
    for (int i = 0; i < p.w->count; i++) {
        const BlockType f = p.w->parts[i].format;
        if (in_blocks(f)) n.ints = true;
        else if (by_tiles(p, f) || (NATIVE_BF16 && f == BlockType::bf16)) n.pairs = true;
        else n.floats = !n.planes;
    }
    return n;
}
// Bytes that a thread needs to pack one panel of rows in a file (Prepared::own).
INLINE int64_t own_panel(const PackedProduct& p) {
    int64_t most = 0;
    for (int i = 0; i < p.w->count; i++) {
        const BlockType f = p.w->parts[i].format;
        if (const int64_t bytes = in_blocks(f) ? 0 : Prepared::up(panel_bytes(f, p.C)); bytes > most) most = bytes;
    }
    return most;
}
// Layout of N prepared rows in scratch, and of TILE_ROWS more: AMX tiles read 16 rows at a time.
struct RowOffsets {
    Needs need;
    bool copied;
    int64_t float_row, pair_row, plane_row, int_row;     // strides as in Prepared
    int64_t pair_at, plane_at, int_at, own_at, bytes;    // words; last two: bytes
};
static RowOffsets places(const PackedProduct& product, int64_t N) {
    const int C = product.C;
    const int64_t plane_row = apart(parts(C, 32) * PlaneRows::STEP);
    RowOffsets p = {needs(product), false, C, apart((C + 1) / 2), plane_row, Prepared::row_bytes(C), 0, 0, 0, 0, 0};
    p.copied = p.need.floats && (C % 2 || (N > 1 && C % 512 == 0));
    if (p.copied) p.float_row = apart(C + C % 2);
    p.pair_at = p.copied ? N * p.float_row : 0;
    p.plane_at = p.pair_at + (p.need.pairs ? (N + TILE_ROWS) * p.pair_row : 0);
    p.int_at = p.plane_at + (p.need.planes ? (N + TILE_ROWS) * p.plane_row : 0);
    p.own_at = Prepared::up(4 * p.int_at + (p.need.ints ? (N + TILE_ROWS) * p.int_row : 0));
    p.bytes = p.own_at + pool_threads() * own_panel(product) + 64;
    return p;
}
// Scratch bytes of products with weights in these formats.
int64_t packed_scratch(const CallSizes& call, Tiles tiles) {
    PackedPart parts[32];
    int count = 0;
    for (int f = 0; f < 32; f++)
        if (call.formats >> f & 1) parts[count++] = {0, 0, BlockType(f), nullptr};
    const PackedWeight w = {nullptr, parts, count};
    PackedProduct p = {nullptr, nullptr, &w, nullptr, nullptr, call.rows, call.in, call.out, false, tiles};
    p.precision = call.precision;
    const bool many = by_planes(p) && p.N > FEW;
    return many ? tile_matmul_scratch(p.N, p.OC, p.C, false) : places(p, p.N).bytes;
}
// Allocates scratch for the prepared rows. Must not be called in a chunk of a loop.
static Prepared prepare_rows(const PackedProduct& product, int64_t N) {
    const RowOffsets at = places(product, N);
    Prepared p = {product.x,   nullptr,      nullptr,    nullptr,   nullptr,       at.float_row,
                  at.pair_row, at.plane_row, at.int_row, product.C, product.ahead, nullptr};
    float* workspace = static_cast<float*>(cpu_scratch(at.bytes));
    if (at.copied) p.floats = p.copy = workspace;
    if (at.need.pairs) p.pairs = workspace + at.pair_at;
    if (at.need.planes) p.planes = workspace + at.plane_at;
    if (at.need.ints) p.ints = reinterpret_cast<int8_t*>(workspace + at.int_at);
    p.own = reinterpret_cast<char*>(workspace) + at.own_at;
    return p;
}
// Fills the prepared rows.
static void prepare(const float* x, const Prepared& p, int64_t N) {
    each_item(N, N * p.C, [&](int64_t i) {
        const float* row = x + i * p.C;
        if (p.copy) {
            __builtin_memcpy(p.copy + i * p.float_row, row, size_t(p.C) * 4);
            if (p.C % 2) p.copy[i * p.float_row + p.C] = 0;
        }
        if (p.pairs) pack_row<Words<float, true, false>>(p.pairs + i * p.pair_row, row, p.C);
        if (p.planes) split_row(p.planes + i * p.plane_row, row, p.C);
        if (p.ints) quantise_row(p.ints + i * p.int_row, p.scales(i), row, p.C);
    });
}

// ---- one panel ----------------------------------------------------------------------------------

// How words of a panel are multiplied: add(s, x, w) returns s plus the products of the PER numbers
// at x and the VW words at w.
struct AsFp32 {
    static constexpr int BYTES = 4, PER = 1;    // bytes per word; numbers of k per word
    static INLINE_MEMBER vf add(vf s, const float* x, const char* w) {
        return s + *x * load(reinterpret_cast<const float*>(w));
    }
};
struct AsFp16 {
    static constexpr int BYTES = 2, PER = 1;
    static INLINE_MEMBER vf add(vf s, const float* x, const char* w) { return s + *x * load_halves(w); }
};
struct AsBf16 {
    static constexpr int BYTES = 4, PER = 2;
    static INLINE_MEMBER vf add(vf s, const float* x, const char* w) {
        const vf both = load(reinterpret_cast<const float*>(w));
        if constexpr (NATIVE_BF16) return multiply_add<true>(s, x, both);
        const vu u = reinterpret_cast<vu>(both);
        s += x[0] * reinterpret_cast<vf>(u << 16);
        return s + x[1] * reinterpret_cast<vf>(u & 0xFFFF0000);
    }
};
// Computes sums (n,48) = products of n rows of x, from `row` on, with a panel of floats. ahead:
// whether the panel comes from memory and must be prefetched.
template <class As, int n, bool ahead = true>
static void float_panel(float* sums, const char* panel, const Prepared& x, int64_t row) {
    constexpr bool PAIRS = NATIVE_BF16 && As::PER == 2;
    constexpr int W = 48, nv = n <= 2 && VW < 16 ? 6 : 3, STEP = PAIRS ? 1 : As::PER;
    const int words = (x.C + As::PER - 1) / As::PER;
    const float* rows[n];
#pragma GCC unroll 8
    for (int i = 0; i < n; i++) rows[i] = PAIRS ? x.pairs + (row + i) * x.pair_row : x.floats + (row + i) * x.float_row;
    for (int lane = 0; lane < W; lane += nv * VW) {
        vf s[n][nv] = {};
        const char* w = panel + lane * As::BYTES;
#pragma GCC unroll 2
        for (int k = 0; k < words; k++, w += W * As::BYTES) {
#pragma GCC unroll 6
            for (int at = 0; ahead && at < nv * VW * As::BYTES; at += 64) __builtin_prefetch(w + x.ahead.floats + at);
#pragma GCC unroll 8
            for (int i = 0; i < n; i++)
#pragma GCC unroll 6
                for (int v = 0; v < nv; v++) s[i][v] = As::add(s[i][v], rows[i] + k * STEP, w + v * VW * As::BYTES);
        }
#pragma GCC unroll 8
        for (int i = 0; i < n; i++)
#pragma GCC unroll 6
            for (int v = 0; v < nv; v++) store(sums + i * W + lane + v * VW, s[i][v]);
    }
}

// sums (n,16) = products of n rows with a panel of blocks.
template <BlockType F, int n, bool vnni>
static void block_panel(float* sums, const uint8_t* panel, const Prepared& x, int64_t row) {
    constexpr BlockLayout L = block_layout(F);
    constexpr bool eight = F == BlockType::q8_0, two = F == BlockType::q6_k;
    const int blocks = x.C / 32;
    const int8_t* q[n];
    const float* scales[n];
#pragma GCC unroll 8
    for (int i = 0; i < n; i++) q[i] = x.ints + (row + i) * x.int_row, scales[i] = x.scales(row + i);
    for (int lane = 0; lane < 16; lane += VW) {
        const uint8_t* p = panel;
        vf sum[n] = {};
        BlockScales<F> w;
        for (int b = 0; b < blocks; b++, p += L.block()) {
            p = w.read(p, b, lane);
            vi s[n][1 + two];
#pragma GCC unroll 8
            for (int i = 0; i < n; i++) {
                const int32_t* less = reinterpret_cast<const int32_t*>(scales[i] + 2 * blocks);
                s[i][0] = L.zero ? whole(less[two ? blocks + 2 * b : b]) * L.zero : vi{};
                if (two) s[i][two] = whole(less[blocks + 2 * b + 1]) * L.zero;
            }
            const uint8_t *high = p + L.scales, *quads = high + L.high + 4 * lane;
#pragma GCC unroll 8
            for (int g = 0; g < (eight ? 8 : 4); g++) {
                __builtin_prefetch(quads + x.ahead.blocks + 64 * g);
                const vq both = load_quants(quads + 64 * g);
                const vq low = eight ? both : with_high<F>(both & 15, high + 4 * lane, g);
#pragma GCC unroll 8
                for (int i = 0; i < n; i++) s[i][0] = dot<eight, vnni>(s[i][0], low, q[i] + 32 * b + 4 * g);
                if (eight) continue;
                const vq up = with_high<F>(right(both, 4) & 15, high + 4 * lane, g + 4);
#pragma GCC unroll 8
                for (int i = 0; i < n; i++) s[i][two] = dot<false, vnni>(s[i][two], up, q[i] + 32 * b + 16 + 4 * g);
            }
#pragma GCC unroll 8
            for (int i = 0; i < n; i++)
                sum[i] = add_block<F>(sum[i], s[i], w.scale, w.offset, scales[i] + b, scales[i] + blocks + b);
        }
#pragma GCC unroll 8
        for (int i = 0; i < n; i++) store(sums + i * 16 + lane, sum[i]);
    }
}

// ---- all panels ---------------------------------------------------------------------------------

typedef void (*PanelProduct)(float* sums, const char* panel, const Prepared& x, int64_t row);
struct ByRows {
    PanelProduct of[4], again;
};    // 1, 2, 4, 8 rows; again: panel in L2
template <class As> INLINE ByRows float_products() {
    return {{float_panel<As, 1>, float_panel<As, 2>, float_panel<As, 4>, float_panel<As, ROWS>},
            float_panel<As, ROWS, false>};
}
template <BlockType F, int n, bool vnni>
static void block_product(float* sums, const char* panel, const Prepared& x, int64_t row) {
    block_panel<F, n, vnni>(sums, reinterpret_cast<const uint8_t*>(panel), x, row);
}
template <BlockType F> INLINE ByRows block_products(bool has_vnni) {
    if constexpr (VW >= 8)
        if (has_vnni)
            return {{block_product<F, 1, true>, block_product<F, 2, true>, block_product<F, 4, true>,
                     block_product<F, ROWS, true>},
                    block_product<F, ROWS, true>};
    return {{block_product<F, 1, false>, block_product<F, 2, false>, block_product<F, 4, false>,
             block_product<F, ROWS, false>},
            block_product<F, ROWS, false>};
}
static ByRows products(BlockType format, bool vnni) {
    if (in_blocks(format)) return with_block_format(format, [&]<BlockType F>() { return block_products<F>(vnni); });
    if (format == BlockType::f16) return float_products<AsFp16>();
    return format == BlockType::bf16 ? float_products<AsBf16>() : float_products<AsFp32>();
}

INLINE bool leaves_rows(int64_t N) { return N <= FEW_ROWS; }
static_assert(FEW_ROWS <= BLOCK, "a panel is packed by one thread alone");
// Returns a panel's numbers for a product with N rows of x: packed in memory or, while the rows are
// in a mapped file, packed for this product alone.
static const char* panel_of(const PackedPart& part, int64_t panel, const Prepared& x, int64_t N, int worker) {
    const int64_t bytes = panel_bytes(part.format, x.C);
    char* panel_data = part.data + panel * bytes;
    if (!part.mapped || !leaves_rows(N)) return panel_data;
    if (part.wait > 0) panel_data = x.own + worker * Prepared::up(bytes);
    pack_file_rows(part, panel * panel_outputs(part.format), x.C, panel_data);
    return panel_data;
}
// Counts a finished product with N rows of x; if it packed the panels, releases the file's rows.
static void count_product(PackedPart& part, int64_t N, int C) {
    if (part.mapped && N > 0 && (!leaves_rows(N) || part.wait-- == 0)) packed_now(&part, C);
}

static_assert(BLOCK * 16 >= TILE_ROWS * 48, "part_product has sums for both kinds of tiles");
struct Chunk {    // number `number` of all chunks
    int64_t number, all;
    int worker;
};
// Multiplies rows [row, row + N) of x by the part's rows in [from, to) of the matrix: y, residual
// (N,to-from), b (to-from). `from` is the part's first row or an earlier one. Computes one of
// chunk.all chunks of this; rows that will not stay in their file must be packed.
static void part_product(const PackedProduct& p, const PackedPart& part, const Prepared& x, int64_t row, int N,
                         int64_t from, int64_t to, Chunk chunk) {
    const ByRows multiply = products(part.format, p.vnni);
    const int W = panel_outputs(part.format);
    const int64_t OC = to - from;
    const int64_t panels = (part.rows + W - 1) / W, blocks = (N + BLOCK - 1) / BLOCK;
    const Range mine = part_of(panels * blocks, 1, chunk.number, chunk.all);
    float sums[BLOCK * 16];
    // Results too large to be read from L2 again bypass the caches, so that lines of distant rows
    // are not read before they are written. Only whole lines can bypass the caches.
    const bool past_caches = VW == 16 && N * OC * 4 > PASSES_BY && (OC | part.rows | (part.first - from)) % VW == 0 &&
                             reinterpret_cast<uintptr_t>(p.y) % 64 == 0;
    // by(panel, i, left) fills sums of some of the `left` rows from i on, and returns their number.
    auto all = [&](auto by) {
        for (int64_t unit = mine.from; unit < mine.to; unit++) {
            const int64_t panel = unit / blocks, o = part.first - from + panel * W;
            const int end = least(N, int(unit % blocks + 1) * BLOCK);
            const int outputs = int(least64(W, part.rows - panel * W));
            const char* numbers = panel_of(part, panel, x, N, chunk.worker);
            for (int i = int(unit % blocks) * BLOCK, n; i < end; i += n) {
                n = by(numbers, row + i, end - i);
                for (int r = 0; r < n; r++) {
                    const int64_t at = (i + r) * OC + o;
                    each_vector(outputs, [&](int64_t j, auto lanes) {
                        vf v = lanes.get(sums + r * W + j);
                        if (p.b) v += lanes.get(p.b + o + j);
                        if (p.residual) v += lanes.get(p.residual + at + j);
                        if (p.gelu) v = gelu(v);
                        if (past_caches) store_past_caches(p.y + at + j, v);
                        else lanes.put(p.y + at + j, v);
                    });
                }
            }
        }
    };
    auto by_vectors = [&](const char* panel, int64_t i, int left) {
        const int most = least(left, ROWS), n = most == 8 ? 8 : most >= 4 ? 4 : most >= 2 ? 2 : 1;
        (n == 8 && i > row ? multiply.again : multiply.of[n == 8 ? 3 : n / 2])(sums, panel, x, i);
        return n;
    };
    if (x.planes || by_tiles(p, part.format)) {
        const FloatTiles multiply_floats = float_tiles(p.tiles);
        auto by_float_tiles = [&](auto& tiles) {
            all([&](const char* panel, int64_t i, int left) {
                const int n = least(left, TILE_ROWS), ahead = i == row ? p.ahead.floats : 0;
                if (x.planes) multiply_floats(&tiles, sums, panel, x.split(i, int(part.rows)), n, ahead);
                else
                    tile_kernel<3, false>(tiles, x.C / 2, x.pairs + i * x.pair_row, x.pair_row,
                                          reinterpret_cast<const float*>(panel), 48, sums, 48, ahead / 4);
                return n;
            });
        };
        with_tiles(p.tiles, by_float_tiles, 64, least(N, TILE_ROWS));
    } else if (in_blocks(part.format) && p.byte_tiles != Tiles::none && N >= TILES_FROM) {
        const BlockTiles multiply_panel = block_tiles(part.format, p.byte_tiles);
        auto by_byte_tiles = [&](auto& tiles) {
            all([&](const char* panel, int64_t i, int left) {
                const int n = least(left, (left + TILE_ROWS - TILES_FROM) / TILE_ROWS * TILE_ROWS);
                if (n == 0) return by_vectors(panel, i, left);
                multiply_panel(&tiles, sums, panel, x.bytes(i), n);
                return n;
            });
        };
        with_tiles(p.byte_tiles, by_byte_tiles, block_depth(part.format));
    } else {
        all(by_vectors);
    }
    if (past_caches) __sync_synchronize();
}

// Calls multiply(x, chunk) for all chunks of a product, with N prepared rows of x.
template <class F> static void with_rows(const PackedProduct& p, int64_t N, F multiply) {
    const Prepared x = prepare_rows(p, N);
    prepare(p.x, x, N);
    const int64_t chunks = N * p.C * p.OC > ONE_THREAD ? chunks_of((p.OC + 15) / 16) : 1;
    each_chunk(chunks, [&](int64_t chunk, int worker) { multiply(x, Chunk{chunk, chunks, worker}); });
}
// Packs the part's rows from its file, unless a product with so few rows of x (N) leaves them
// there.
static void pack_for(const PackedPart& part, int64_t N, int C) {
    if (part.mapped && !leaves_rows(N)) pack_all(part, C);
}

void packed_linear(const PackedProduct& p) {
    if (by_planes(p) && p.N > FEW) {
        PackedPart& part = p.w->parts[0];
        if (part.mapped) {
            pack_all(part, p.C);
            packed_now(&part, p.C);
        }
        const float* w = reinterpret_cast<const float*>(part.data);
        constexpr int W = panel_outputs(BlockType::f32);
        return tile_matmul(Floats{.M = p.N,
                                  .N = p.OC,
                                  .K = p.C,
                                  .a = p.x,
                                  .ra = p.C,
                                  .ca = 1,
                                  .b = w,
                                  .rb = W,
                                  .cb = 1,
                                  .c = p.y,
                                  .tiles = p.tiles,
                                  .panel = W,
                                  .bias = p.b,
                                  .residual = p.residual,
                                  .gelu = p.gelu ? p.y : nullptr});
    }
    for (int i = 0; i < p.w->count; i++) pack_for(p.w->parts[i], p.N, p.C);
    with_rows(p, p.N, [&](const Prepared& x, Chunk chunk) {
        for (int i = 0; i < p.w->count; i++) part_product(p, p.w->parts[i], x, 0, p.N, 0, p.OC, chunk);
    });
    for (int i = 0; i < p.w->count; i++) count_product(p.w->parts[i], p.N, p.C);
}

// Multiplies each expert's rows of x by its rows of the matrix, which begin at row e * OC for
// expert e. See operations.inc: experts_forward.
void packed_experts(const PackedProduct& p, Routes routes, Router r) {
    auto rows_of = [&](const PackedPart& part) {
        const int64_t e = part.first / p.OC;
        return routes.offsets[e + 1] - routes.offsets[e];
    };
    for (int i = 0; i < p.w->count; i++) pack_for(p.w->parts[i], rows_of(p.w->parts[i]), p.C);
    with_rows(p, int64_t(p.N) * r.K, [&](const Prepared& x, Chunk chunk) {
        const PackedPart* part = p.w->parts;
        for (int e = 0; e < r.E; e++) {
            const int first_row = routes.offsets[e], rows = routes.offsets[e + 1] - first_row;
            const int64_t from = int64_t(e) * p.OC, to = from + p.OC;
            PackedProduct mine = p;
            mine.y = p.y + int64_t(first_row) * p.OC;
            for (; part < p.w->parts + p.w->count && part->first < to; part++)
                if (rows > 0) part_product(mine, *part, x, first_row, rows, from, to, chunk);
        }
    });
    for (int i = 0; i < p.w->count; i++) count_product(p.w->parts[i], rows_of(p.w->parts[i]), p.C);
}
}    // namespace ISA

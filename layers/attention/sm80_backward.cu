// sm80_backward.cu - attention backward with mma.sync, for sm_80 and newer (Dao 2023,
// FlashAttention-2), in two kernels without atomics, so the bits are reproducible.
//
// P = exp(S - lse) is recomputed; dS = P (dP - delta), delta = dy . y.
//   dQ = dS K scale: a block has a tile of queries of one head, and reads keys and values. It
//     also writes its rows' lse, in log2 units, and delta for the other kernel.
//   dV = P^T dy, dK = dS^T Q scale: a block has a tile of keys of one kv head, and reads queries
//     and dy of all heads that share it. The keys of a sparse pattern have tiles of their own. It
//     computes the transposed S^T = K Q^T and dP^T = V dy^T.
// In both kernels a warp uses the registers that hold one product's result as the left operand of
// the next product.
//
// FLOPs: 3 and 4 products, 14 S^2/2 HS per head, and two exponentials for every 14 HS. One kernel
// that adds to dQ in memory would need only 5 products, but also 8 bytes of traffic per
// element of dQ and tile of 128 keys, and a fixed order of its blocks for reproducible bits. Bound
// by tensor cores, then by shared memory (see sm80.cu).
#include "sm80.cuh"

namespace {
using namespace sm80;

// S, padded to whole tiles. The statistics for the second kernel, (B,NH,2,padded S), are lse in
// log2 units, then delta.
__device__ inline int64_t padded(int S) {
    return (int64_t(S) + SM80_STATS_ROWS - 1) / SM80_STATS_ROWS * SM80_STATS_ROWS;
}

// Tiles take up to 49 KB of shared memory for D up to 64 (two blocks a multiprocessor even on sm_86
// and sm_89), 97 KB above.
template <int D> struct Shape {
    static constexpr int M = D > 64 ? 1 : 2, ROWS = D > 128 ? 64 : 128, COLUMNS = D > 128 ? 16 : 32;
    static constexpr int WARPS = ROWS / (16 * M);
    // If D > 128, a warp's registers cannot hold the sums of 16 rows of both dK and dV. Then two
    // warps share the 16 rows: each sums half of the columns, and both compute all of P and dS.
    static constexpr int HALVES = D > 128 ? 2 : 1;
};

// ---- dQ -----------------------------------------------------------------------------------------

template <int D> struct QueryTiles {
    static constexpr int THREADS = Shape<D>::WARPS * 32;
    Tile<Shape<D>::ROWS, D> q, dy;
    struct {
        Tile<Shape<D>::COLUMNS, D> k, v;
    } stage[2];
    float lse[Shape<D>::ROWS], delta[Shape<D>::ROWS];
};

// Computes lse and delta of the block's rows, for this kernel and for the other one.
template <int D> __device__ void row_stats(QueryTiles<D>& tiles, float* stats, const bf16* dy, const bf16* y,
                                           int64_t stride, const float* lse, int first, const Call& c) {
    const int lane = threadIdx.x % 8;    // eight threads share a row
    for (int r = threadIdx.x / 8; r < Shape<D>::ROWS; r += QueryTiles<D>::THREADS / 8) {
        const int s = first + r;
        float delta = 0;
        for (int i = lane * 8; i < c.h.HS && s < c.S; i += 64) {
            const auto a = load<8>(dy + s * stride + i), b = load<8>(y + s * stride + i);
#pragma unroll
            for (int j = 0; j < 8; j++) delta += a[j] * b[j];
        }
        delta = warp_sum<8>(delta);
        if (lane) continue;
        stats[s] = tiles.lse[r] = s < c.S ? lse[s] * LOG2E : 0;
        stats[padded(c.S) + s] = tiles.delta[r] = delta;
    }
}

// Reads a thread's rows of a statistic, from `row` of the tile on.
template <int M> __device__ inline void own_rows(float (&own)[M][2], const float* of_tile, int row) {
#pragma unroll
    for (int m = 0; m < M; m++)
#pragma unroll
        for (int r = 0; r < 2; r++) own[m][r] = of_tile[row + m * 16 + r * 8 + threadIdx.x % 32 / 4];
}

template <int D, bool SHAPED, bool SPARSE, bool HAS_DROPOUT>
__global__ void __launch_bounds__(QueryTiles<D>::THREADS, D > 64 ? 1 : 2)
    query_kernel(bf16* dqs, float* stats, const bf16* dy, const bf16* y, const bf16* qs, const bf16* kvs,
                 const float* lse, Call c) {
    typedef QueryTiles<D> Tiles;
    constexpr int M = Shape<D>::M, ROWS = Shape<D>::ROWS, KEYS = Shape<D>::COLUMNS;
    Tiles& tiles = dynamic_shared<Tiles>();
    const TileCoord at = tile_coord(c, blockIdx.x);
    const int b = at.head / c.h.NH, head = at.head % c.h.NH, kv = head / (c.h.NH / c.h.NKV);
    const int first = (c.tiles - 1 - at.tile) * ROWS, row = threadIdx.x / 32 * M * 16;
    const int64_t q = c.q(b, head), o = (int64_t(b) * c.S * c.h.NH + head) * c.h.HS;
    const bf16* k = kvs + c.k(b, kv);
    const Visits<KEYS, SPARSE> visits(c, b, first, min(first + ROWS, c.S) - 1);

    auto fill = [&](int n) {
        if (n < visits.all) {
            auto& stage = tiles.stage[n % 2];
            load_keys<Tiles::THREADS, SPARSE>(stage.k, {k, c.kv_row}, visits(n), c);
            load_keys<Tiles::THREADS, SPARSE>(stage.v, {k + c.h.NKV * c.h.HS, c.kv_row}, visits(n), c);
        }
        cp_async_commit();
    };
    const int64_t stride = int64_t(c.h.NH) * c.h.HS;
    load_tile<Tiles::THREADS>(tiles.q, {qs + q, c.q_row}, first, c.S, c);
    load_tile<Tiles::THREADS>(tiles.dy, {dy + o, stride}, first, c.S, c);
    fill(0);
    row_stats(tiles, stats + at.head * 2 * padded(c.S), dy + o, y + o, stride, lse + int64_t(at.head) * c.S, first, c);
    __syncthreads();
    float row_lse[M][2], row_delta[M][2];
    own_rows(row_lse, tiles.lse, row);
    own_rows(row_delta, tiles.delta, row);
    RowMask<M> sight(first + row, [&](int query) { return c.keys_of(b, query); });
    int stream = 0;    // the stream of `sight`
    const FromShared<M, ROWS, D> q_rows{tiles.q, row}, dy_rows{tiles.dy, row};
    const PositionBias slope = SHAPED ? c.scores.slope(head, int64_t(b) * c.S + first) : PositionBias{};
    const float factor = c.h.dropout.factor();
    float dq[M][D / 8][4] = {}, p[M][KEYS / 8][4], ds[M][KEYS / 8][4];
    for (int n = 0; n < visits.all; n++) {
        cp_async_wait<0>();
        __syncthreads();    // tile copied; the previous one is free
        fill(n + 1);
        const KeyTile tile = visits(n);
        if (SPARSE && tile.stream != stream) sight = RowMask<M>(c, b, first + row, stream = tile.stream);
        if (!meets(sight.some, tile.first, KEYS)) continue;
        const auto& stage = tiles.stage[n % 2];
        const Stream& keys = c.streams.s[tile.stream];
        const Stays<HAS_DROPOUT, false, M, KEYS / 8> stays(c.h, b, head, first + row, keys.key(tile.first), keys.step);
        multiply_transposed(p, q_rows, stage.k, 0);
        if (SHAPED) apply_cap_tanh(p, c.scores);
        sight.mask(p, tile.first);
        multiply_transposed(ds, dy_rows, stage.v, 0);
        const Distance<false> distance = distance_of<SPARSE>(c, first + row, tile);
        each(ds, [&](float& value, int m, int j, int e) {
            const float x = p[m][j][e];
            float lse = row_lse[m][e / 2];
            if (SHAPED) lse += c.query_bias(slope, first, row + own_row(m, e)) * distance.at(m, j, e);
            if (HAS_DROPOUT) value = stays.at(m, j, e) ? value * factor : 0;
            value = exp2_approx(fmaf(x, c.scores.log2, -lse)) * (value - row_delta[m][e / 2]);
            if (SHAPED) value *= c.scores.cap_slope(x);
        });
        multiply_add(dq, ds, stage.k, 0);
    }
    each(dq, [&](float& value, int, int, int) { value *= c.scores.scale; });
    store_rows({dqs + q, c.q_row}, tiles.q, dq, row, 0, first, c, [&](int s) { return s < c.S; });
}

// ---- dK, dV -------------------------------------------------------------------------------------

template <int D> struct KeyTiles {
    static constexpr int THREADS = Shape<D>::WARPS * Shape<D>::HALVES * 32, QUERIES = Shape<D>::COLUMNS;
    Tile<Shape<D>::ROWS, D> k, v;
    struct Stage {
        Tile<QUERIES, D> q, dy;
        float lse[QUERIES], delta[QUERIES];
    } stage[2];
};

// Starts copying queries of a head with their dy, lse and delta.
template <int D> __device__ void load_queries(typename KeyTiles<D>::Stage& stage, const float* stats, const bf16* dy,
                                              const bf16* qs, int b, int head, int query, const Call& c) {
    typedef KeyTiles<D> Tiles;
    const int64_t o = int64_t(b) * c.S * c.h.NH + head;
    load_tile<Tiles::THREADS>(stage.q, {qs + c.q(b, head), c.q_row}, query, c.S, c);
    load_tile<Tiles::THREADS>(stage.dy, {dy + o * c.h.HS, int64_t(c.h.NH) * c.h.HS}, query, c.S, c);
    const float* from = stats + (int64_t(b) * c.h.NH + head) * 2 * padded(c.S) + query;
    const int j = threadIdx.x * 4;
    if (j < Tiles::QUERIES) cp_async_16(stage.lse + j, from + j);
    if (j < Tiles::QUERIES) cp_async_16(stage.delta + j, from + padded(c.S) + j);
}

// Returns the block's tile of keys. Tiles of a sparse pattern come first: they take longest,
// because most queries see them.
template <int ROWS, bool SPARSE> __device__ inline KeyTile own_tile(const Call& c, int i) {
    if constexpr (SPARSE)
        for (int stream = c.streams.count - 1; stream > 0; stream--) {
            const int tiles = (c.streams.s[stream].keys + ROWS - 1) / ROWS;
            if (i < tiles) return {stream, i * ROWS};
            i -= tiles;
        }
    return {0, i * ROWS};
}

template <int D, bool SHAPED, bool SPARSE, bool HAS_DROPOUT> __global__ void __launch_bounds__(KeyTiles<D>::THREADS)
    key_kernel(bf16* dkv, const float* stats, const bf16* dy, const bf16* qs, const bf16* kvs, Call c) {
    typedef KeyTiles<D> Tiles;
    constexpr int M = Shape<D>::M, ROWS = Shape<D>::ROWS, QUERIES = Shape<D>::COLUMNS, HALVES = Shape<D>::HALVES;
    Tiles& tiles = dynamic_shared<Tiles>();
    const TileCoord at = tile_coord(c, blockIdx.x);
    const int b = at.head / c.h.NKV, kv = at.head % c.h.NKV, group = c.h.NH / c.h.NKV, head0 = kv * group;
    const KeyTile own = own_tile<ROWS, SPARSE>(c, at.tile);
    const Stream stream = SPARSE ? c.streams.s[own.stream] : Stream{0, 1, c.keys, true};
    const int first = own.first, warp = threadIdx.x / 32, row = warp / HALVES * M * 16;
    const int column = warp % HALVES * (D / HALVES);
    const int64_t k = c.k(b, kv), v = c.v(b, kv);
    const int from = c.queries_of(b, stream, first).from / QUERIES;
    const int end = c.queries_of(b, stream, min(first + ROWS, stream.keys) - 1).to;
    const int per_head = (end + QUERIES - 1) / QUERIES - from;

    auto query_of = [&](int i) { return (from + i % per_head) * QUERIES; };
    auto fill = [&](int i) {    // the i-th tile of queries, head after head
        if (i < group * per_head)
            load_queries<D>(tiles.stage[i % 2], stats, dy, qs, b, head0 + i / per_head, query_of(i), c);
        cp_async_commit();
    };
    load_tile<Tiles::THREADS>(tiles.k, in_stream(Rows<const bf16>{kvs + k, c.kv_row}, stream), first, stream.keys, c);
    load_tile<Tiles::THREADS>(tiles.v, in_stream(Rows<const bf16>{kvs + v, c.kv_row}, stream), first, stream.keys, c);
    fill(0);

    const RowMask<M> sight(first + row, [&](int t) { return c.queries_of(b, stream, t); });
    const float factor = c.h.dropout.factor();
    const FromShared<M, ROWS, D> k_rows{tiles.k, row}, v_rows{tiles.v, row};
    float dk[M][D / HALVES / 8][4] = {}, dv[M][D / HALVES / 8][4] = {}, p[M][QUERIES / 8][4], ds[M][QUERIES / 8][4];
    for (int i = 0; i < group * per_head; i++) {
        cp_async_wait<0>();
        __syncthreads();    // tile copied; the previous one is free
        fill(i + 1);
        if (!meets(sight.some, query_of(i), QUERIES)) continue;
        const auto& stage = tiles.stage[i % 2];
        const int j = threadIdx.x % 4 * 2, head = head0 + i / per_head;
        const Stays<HAS_DROPOUT, true, M, QUERIES / 8> stays(c.h, b, head, stream.key(first + row), query_of(i),
                                                             stream.step);
        multiply_transposed(p, k_rows, stage.q, 0);
        if (SHAPED) apply_cap_tanh(p, c.scores);
        sight.mask(p, query_of(i));
        multiply_transposed(ds, v_rows, stage.dy, 0);
        const PositionBias slope = SHAPED ? c.scores.slope(head, int64_t(b) * c.S) : PositionBias{};
        const Distance<true> distance(stream.key(first + row), query_of(i), stream.step);
        each(p, [&](float& value, int m, int n, int e) {
            const float x = value;
            float lse = load<2>(stage.lse + n * 8 + j)[e % 2];
            if constexpr (SHAPED) lse += c.query_bias(slope, 0, query_of(i) + n * 8 + j + e % 2) * distance.at(m, n, e);
            value = exp2_approx(fmaf(x, c.scores.log2, -lse));
            if (HAS_DROPOUT) ds[m][n][e] = stays.at(m, n, e) ? ds[m][n][e] * factor : 0;
            ds[m][n][e] = value * (ds[m][n][e] - load<2>(stage.delta + n * 8 + j)[e % 2]);
            if (SHAPED) ds[m][n][e] *= c.scores.cap_slope(x);
            if (HAS_DROPOUT && !stays.at(m, n, e)) value = 0;
        });
        multiply_add(dv, p, stage.dy, 0, column);
        multiply_add(dk, ds, stage.q, 0, column);
    }
    each(dk, [&](float& value, int, int, int) { value *= c.scores.scale; });
    if (HAS_DROPOUT) each(dv, [&](float& value, int, int, int) { value *= factor; });
    __syncthreads();    // all warps have read k and v
    // Keys of a sparse pattern are stored by the block that has them in the pattern's stream.
    auto mine = [&](int t) { return t < stream.keys && !(SPARSE && stream.all && in_pattern(c.h, t)); };
    store_rows(in_stream(Rows<bf16>{dkv + k, c.kv_row}, stream), tiles.k, dk, row, column, first, c, mine);
    store_rows(in_stream(Rows<bf16>{dkv + v, c.kv_row}, stream), tiles.v, dv, row, column, first, c, mine);
}

template <int D> void backward(bf16* dq, bf16* dkv, const bf16* dy, const bf16* y, const bf16* q, const bf16* kv,
                               const float* lse, int B, int S, Heads h) {
    static_assert(sizeof(QueryTiles<D>) <= 99 * 1024 && sizeof(KeyTiles<D>) <= 99 * 1024, "sm_86 and sm_89");
    float* stats = static_cast<float*>(cuda_scratch(attention_scratch(AttentionKernels::sm80, B, S, h)));
    const int key_count = h.keys_of(S);
    const int64_t row = 4 * h.HS, group = h.NH / h.NKV;    // bytes of two rows of a head
    const Call queries(B, S, h, h.NH, S, Shape<D>::ROWS, row * key_count / group + 1);
    Call keys(B, S, h, h.NKV, key_count, Shape<D>::ROWS, row * S * group);
    for (int i = 1; i < keys.streams.count; i++) keys.tiles += int(ceil_div(keys.streams.s[i].keys, Shape<D>::ROWS));
    for_kind(keys.scores, h, [&](auto SHAPED, auto SPARSE, auto HAS_DROPOUT) {
        launch(query_kernel<D, SHAPED, SPARSE, HAS_DROPOUT>,
               {dim3(queries.blocks()), dim3(QueryTiles<D>::THREADS), sizeof(QueryTiles<D>)}, dq, stats, dy, y, q, kv,
               lse, queries);
        launch(key_kernel<D, SHAPED, SPARSE, HAS_DROPOUT>,
               {dim3(keys.blocks()), dim3(KeyTiles<D>::THREADS), sizeof(KeyTiles<D>)}, dkv, stats, dy, q, kv, keys);
    });
}
}    // namespace

void attention_backward_sm80(bf16* dq, bf16* dkv, const bf16* dy, const bf16* y, const bf16* q, const bf16* kv,
                             const float* lse, int B, int S, Heads h) {
    for_head_size(h.HS, [&](auto D) { backward<D>(dq, dkv, dy, y, q, kv, lse, B, S, h); });
}

// sm80.cu - attention forward with mma.sync, for sm_80 and newer (Dao 2023, FlashAttention-2).
//
// A block has a tile of queries of one head, a warp 16 M of its rows. K and V pass through a ring
// of tiles that cp.async fills ahead, with one barrier per tile. S = Q K^T stays in registers,
// already in the layout of P V's left factor. Softmax is online, with exp2, whose argument has the
// scale.
//
// FLOPs: two products, 4 S^2/2 HS per head; an exponential for every 4 HS. The elements of q, k, v
// and y are 8 S HS bytes of memory traffic per head, which makes 256 FLOPs per byte at S = 1024. So
// tensor cores are the bound, unless shared memory is too slow: an element of a right factor, 2
// bytes, is multiplied with 16 M rows, which makes 16 M FLOPs per byte. sm_80 computes 16 FLOPs in
// the time in which shared memory delivers a byte. With M = 1 both would take equally long, so M is
// 2 wherever registers allow. Tiles take 48 KB, so that even sm_86 and sm_89 run two blocks per
// multiprocessor (HS = 256: 96 KB, one block).
#include "sm80.cuh"

namespace {
using namespace sm80;

template <int D> struct ForwardTiles {
    static constexpr int M = D > 128 ? 1 : 2, WARPS = D > 128 ? 8 : 4, THREADS = WARPS * 32;
    static constexpr int QUERIES = WARPS * M * 16, KEYS = D > 64 ? 32 : 64, STAGES = D > 96 ? 2 : 4;
    Tile<QUERIES, D> q;
    Tile<KEYS, D> ring[STAGES];    // k and v of the tiles in turn
};

// Rise of scores, in log2 units, up to which sums and outputs are not rescaled to the new maximum.
// Most tiles need no rescaling. Exponentials stay below 2^8, at no loss of precision.
constexpr float LAZY = 8;

// Replaces scores by exp2(scale * (score - top)). Each row has a top, and its sum and outputs have
// the same factor exp2(-scale * top).
template <int M, int N, int D> __device__ void online_softmax(float (&x)[M][N][4], float (&o)[M][D][4],
                                                              float (&top)[M][2], float (&sum)[M][2], float scale) {
    float now[M][2];
    bool risen = false;
#pragma unroll
    for (int m = 0; m < M; m++)
#pragma unroll
        for (int r = 0; r < 2; r++) {
            now[m][r] = top[m][r];
#pragma unroll
            for (int n = 0; n < N; n++) now[m][r] = fmaxf(now[m][r], fmaxf(x[m][n][r * 2], x[m][n][r * 2 + 1]));
            now[m][r] = warp_max<4>(now[m][r]);    // four lanes share a row
            risen = risen || (now[m][r] - top[m][r]) * scale > LAZY;
        }
    if (__any_sync(0xffffffff, risen)) {
#pragma unroll
        for (int m = 0; m < M; m++)
#pragma unroll
            for (int r = 0; r < 2; r++) {
                const float shrink = exp2_approx((top[m][r] - now[m][r]) * scale);
                top[m][r] = now[m][r];
                sum[m][r] *= shrink;
#pragma unroll
                for (int d = 0; d < D; d++) o[m][d][r * 2] *= shrink, o[m][d][r * 2 + 1] *= shrink;
            }
    }
    each(x, [&](float& value, int m, int, int e) {
        value = exp2_approx(fmaf(value, scale, -top[m][e / 2] * scale));
        sum[m][e / 2] += value;
    });
}

// Writes y and lse of the warp's rows, from `row` of the tile on. scale * top is in log2 units.
template <int M, int N, int ROWS, int D>
__device__ void finish(Rows<bf16> y, float* lse, Tile<ROWS, D>& tile, float (&o)[M][N][4], const float (&top)[M][2],
                       const float (&sums)[M][2], float scale, int row, int first, const Call& c) {
#pragma unroll
    for (int m = 0; m < M; m++)
#pragma unroll
        for (int r = 0; r < 2; r++) {
            float sum = sums[m][r];
            sum += __shfl_xor_sync(0xffffffff, sum, 1);
            sum += __shfl_xor_sync(0xffffffff, sum, 2);
            const float inverse = c.h.dropout.factor() / sum;
            const int lane = threadIdx.x % 32, s = first + row + m * 16 + r * 8 + lane / 4;
            if (lane % 4 == 0 && s < c.S) lse[s] = (top[m][r] * scale + log2f(sum)) * LN2;
#pragma unroll
            for (int n = 0; n < N; n++) o[m][n][r * 2] *= inverse, o[m][n][r * 2 + 1] *= inverse;
        }
    store_rows(y, tile, o, row, 0, first, c, [&](int s) { return s < c.S; });
}

template <int D, bool SHAPED, bool SPARSE, bool HAS_DROPOUT> __global__ void __launch_bounds__(ForwardTiles<D>::THREADS)
    forward_kernel(bf16* y, float* lse, const bf16* qs, const bf16* kvs, Call c) {
    typedef ForwardTiles<D> Tiles;
    constexpr int M = Tiles::M, KEYS = Tiles::KEYS, STAGES = Tiles::STAGES;
    Tiles& tiles = dynamic_shared<Tiles>();
    const TileCoord at = tile_coord(c, blockIdx.x);
    const int b = at.head / c.h.NH, head = at.head % c.h.NH, kv = head / (c.h.NH / c.h.NKV);
    const int first = (c.tiles - 1 - at.tile) * Tiles::QUERIES, row = threadIdx.x / 32 * M * 16;
    const Rows<const bf16> q = {qs + c.q(b, head), c.q_row};
    const bf16* k = kvs + c.k(b, kv);
    const Visits<KEYS, SPARSE> visits(c, b, first, min(first + Tiles::QUERIES, c.S) - 1);

    auto fill = [&](int i) {    // the i-th tile through the ring
        if (i < visits.all * 2)
            load_keys<Tiles::THREADS, SPARSE>(tiles.ring[i % STAGES], {k + i % 2 * c.h.NKV * c.h.HS, c.kv_row},
                                              visits(i / 2), c);
        cp_async_commit();
    };
    // Waits until the i-th tile is copied and all warps have used the previous one, and refills the
    // memory of the previous one. Returns the i-th tile.
    auto next = [&](int i) -> const Tile<KEYS, D>& {
        cp_async_wait<STAGES - 2>();
        __syncthreads();
        fill(i + STAGES - 1);
        return tiles.ring[i % STAGES];
    };
    load_tile<Tiles::THREADS>(tiles.q, q, first, c.S, c);
    for (int i = 0; i < STAGES - 1; i++) fill(i);

    cp_async_wait<STAGES - 2>();    // q came with the first tile
    __syncthreads();
    const std::conditional_t<D <= 64, FromRegisters<M, D>, FromShared<M, Tiles::QUERIES, D>> q_rows{tiles.q, row};
    RowMask<M> sight(first + row, [&](int query) { return c.keys_of(b, query); });
    int stream = 0;    // the stream of `sight`
    const PositionBias slope = SHAPED ? c.scores.slope(head, int64_t(b) * c.S + first) : PositionBias{};
    const float scale = SHAPED ? 1 : c.scores.log2;
    float o[M][D / 8][4] = {}, top[M][2], sum[M][2] = {};
    for (int m = 0; m < M; m++) top[m][0] = top[m][1] = -3e38f;    // finite, so that differences are numbers
    for (int n = 0; n < visits.all; n++) {
        const KeyTile tile = visits(n);
        const int key = tile.first;
        if (SPARSE && tile.stream != stream) sight = RowMask<M>(c, b, first + row, stream = tile.stream);
        const bool is_visible = meets(sight.some, key, KEYS);    // uniform for the warp
        float p[M][KEYS / 8][4];
        const Tile<KEYS, D>& k_tile = next(n * 2);
        if (is_visible) {
            const Stream& keys = c.streams.s[tile.stream];
            const Stays<HAS_DROPOUT, false, M, KEYS / 8> stays(c.h, b, head, first + row, keys.key(key), keys.step);
            multiply_transposed(p, q_rows, k_tile, 0);
            if constexpr (SHAPED) {
                const Distance<false> distance = distance_of<SPARSE>(c, first + row, tile);
                apply_cap_tanh(p, c.scores);
                each(p, [&](float& x, int m, int n, int e) {
                    x = c.scores.score(x, c.query_bias(slope, first, row + own_row(m, e)), distance.at(m, n, e));
                });
            }
            sight.mask(p, key);
            online_softmax(p, o, top, sum, scale);
            if (HAS_DROPOUT) each(p, [&](float& x, int m, int n, int e) { x = stays.at(m, n, e) ? x : 0; });
        }
        const Tile<KEYS, D>& v_tile = next(n * 2 + 1);
        if (is_visible) multiply_add(o, p, v_tile, 0);
    }
    finish(Rows<bf16>{y + (int64_t(b) * c.S * c.h.NH + head) * c.h.HS, int64_t(c.h.NH) * c.h.HS},
           lse + int64_t(at.head) * c.S, tiles.q, o, top, sum, scale, row, first, c);
}

template <int D> void forward(bf16* y, float* lse, const bf16* q, const bf16* kv, int B, int S, Heads h) {
    typedef ForwardTiles<D> Tiles;
    static_assert(sizeof(Tiles) <= 99 * 1024, "sm_86 and sm_89");
    const Call c(B, S, h, h.NH, S, Tiles::QUERIES, int64_t(4) * h.keys_of(S) * h.HS * h.NKV / h.NH + 1);
    for_kind(c.scores, h, [&](auto SHAPED, auto SPARSE, auto HAS_DROPOUT) {
        launch(forward_kernel<D, SHAPED, SPARSE, HAS_DROPOUT>, {dim3(c.blocks()), dim3(Tiles::THREADS), sizeof(Tiles)},
               y, lse, q, kv, c);
    });
}
}    // namespace

void attention_forward_sm80(bf16* y, float* lse, const bf16* q, const bf16* kv, int B, int S, Heads h) {
    for_head_size(h.HS, [&](auto D) { forward<D>(y, lse, q, kv, B, S, h); });
}

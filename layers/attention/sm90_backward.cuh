// sm90_backward.cuh - attention backward on sm_90, for all head sizes, except the products of its
// tiles: the kernels before and after, the visited tiles, masks, and the summation of dq.
//
// A block has BN keys and visits the tiles of BM queries that attend to them, so several blocks add
// to dq of a query tile. For reproducible bits dq_order fixes their order: from the last key tile
// that the query tile attends to (without spans, on the diagonal) down to the first. A block visits
// one query tile per step. If the block of key tile k does not start before the block of tile k +
// 1, it stays a step behind and hardly waits. So blocks take key tiles in the order in which the
// blocks start, the last tile first. As ends of spans never decrease, the key tiles of a query tile
// have no gaps, and a key tile's number in the order is its distance from the last of them. The
// first block stores dq and the others add to it, so nothing is zeroed. For measurements,
// FLATGPT_ATTENTION_ORDER=any adds in any order.
#pragma once
#include <cstdlib>
#include <cstring>

#include "sm90.cuh"

namespace sm90 {

constexpr int PRODUCER_REGISTERS = 40, CONSUMER_REGISTERS = 232;
static_assert(WARPGROUP * (PRODUCER_REGISTERS + CONSUMERS * CONSUMER_REGISTERS) <= REGISTERS);

template <int HS> constexpr int BM = Sm90Scratch::rows(HS);    // rows of a query tile
template <int HS> constexpr int BN = HS > 128 ? 64 : 128;      // keys of a block
// Columns of a chunk of a tile. HS = 192 has chunks of 32, as its second half begins at column 96.
template <int HS> constexpr int WIDTH = HS == 192 ? 32 : chunk_columns(HS);

// A consumer warpgroup's half of a query tile's dq: 64 of 128 rows, or half of the columns of 64
// rows. With HS = 96 each consumer computes 64 columns and keeps 48; the middle 32 are computed
// twice. The second 48 columns alone would begin within a chunk of k, which no wgmma descriptor can
// express.
template <int HS> struct Half {
    static constexpr bool BY_ROWS = BM<HS> == 128;
    static constexpr int COLUMNS = BY_ROWS ? HS : HS / 2, COMPUTED = HS == 96 ? 64 : COLUMNS, FLOATS = 64 * COLUMNS;
    int row, column, skipped;    // skipped: computed columns that the other keeps
    __device__ explicit Half(int consumer)
        : row(BY_ROWS ? consumer * 64 : 0), column(BY_ROWS ? 0 : consumer * (HS - COMPUTED)),
          skipped(consumer * (COMPUTED - COLUMNS)) {}
};

struct Backward {
    bf16 *dq_out, *dkv;
    float* dq;                              // (B,NH,query_tiles,BM/64,HS/8,128,4), see hand_over
    float *lse2, *delta;                    // (B,NH,query_tiles,BM)
    int* dq_order;                          // (B,NH,query_tiles): blocks that have added; null: unordered
    int S, keys, query_tiles, key_tiles;    // keys: per sequence
    Heads h;
    Scores scores;

    __device__ int64_t query_tile(int b, int head, int tile) const {
        return (int64_t(b) * h.NH + head) * query_tiles + tile;
    }
    __device__ Span queries_of(int b, int key) const { return ::queries_of(h, S, b, key); }
    // The last key tile that a query tile attends to.
    template <int HS> __device__ int last_key_tile(int b, int tile) const {
        const bool causal = !h.keys && !h.source;
        return causal ? tile * BM<HS> / BN<HS> : (keys_of(h, S, b, tile * BM<HS> + BM<HS> - 1).to - 1) / BN<HS>;
    }
    // Rows of a key/value head's keys from position `key` on, in dkv and in kv's tensor map.
    __device__ bf16* dk(int b, int key, int kv_head) const {
        return dkv + (int64_t(b) * keys + key) * h.kv_row() + h.first_k() + kv_head * h.HS;
    }
    __device__ int k_head(int kv_head) const { return h.first_k() / h.HS + kv_head; }
    __device__ int v_head(int kv_head) const { return k_head(kv_head) + h.NKV; }
};

// ---- before: delta, lse, dq_order ---------------------------------------------------------------

constexpr int PREPARE_THREADS = 256;

// Computes delta and lse2. A block has one query tile; LANES threads share a row, 16 bytes each.
template <int HS> __global__ void prepare(const Backward a, const bf16* dy, const bf16* y, const float* lse) {
    constexpr int LANES = HS / 8 & -(HS / 8), ROWS = PREPARE_THREADS / LANES;    // largest power of 2 in HS / 8
    const int tile = int(blockIdx.x) % a.query_tiles, head = int(blockIdx.x) / a.query_tiles % a.h.NH;
    const int b = int(blockIdx.x) / a.query_tiles / a.h.NH, lane = threadIdx.x % LANES;
    const int64_t index = blockIdx.x;
#pragma unroll
    for (int i = 0; i < BM<HS> / ROWS; i++) {
        const int row = i * ROWS + threadIdx.x / LANES, s = tile * BM<HS> + row;
        float sum = 0;
        if (s < a.S) {
            const int64_t at = ((int64_t(b) * a.S + s) * a.h.NH + head) * HS + lane * 8;    // y[b,s,head,:]
#pragma unroll
            for (int c = 0; c < HS; c += LANES * 8) {
                const Vec<bf16> u = load<8>(dy + at + c), v = load<8>(y + at + c);
#pragma unroll
                for (int i = 0; i < 8; i++) sum += u[i] * v[i];
            }
        }
        sum = warp_sum<LANES>(sum);
        if (lane == 0) {
            a.delta[index * BM<HS> + row] = sum;
            a.lse2[index * BM<HS> + row] = s < a.S ? lse[(int64_t(b) * a.h.NH + head) * a.S + s] * LOG2E : INFINITY;
        }
    }
    if (a.dq_order) {
        if (threadIdx.x == 0) a.dq_order[index] = 0;
    } else {
        for (int i = threadIdx.x * 4; i < BM<HS> * HS; i += PREPARE_THREADS * 4)
            store(a.dq + index * BM<HS> * HS + i, Vec<float>{});
    }
}

// ---- common to the main kernels -----------------------------------------------------------------

// A block's work: a tile of keys of one key/value head, and query tiles first, ..., first + tiles -
// 1 of each query head that uses this key/value head. If no query attends to the keys (padding of a
// source), `tiles` is 0, and the block only writes zeros to dk and dv.
struct TileCoord {
    int b, kv_head, tile, first, tiles, group;
    template <int HS> __device__ static TileCoord of(const Backward& a, int i) {
        TileCoord p;
        p.tile = i % a.key_tiles;    // unordered: longest first; ordered: last keys first
        if (a.dq_order) p.tile = a.key_tiles - 1 - p.tile;
        p.kv_head = i / a.key_tiles % a.h.NKV, p.b = i / a.key_tiles / a.h.NKV;
        const int from = a.queries_of(p.b, p.tile * BN<HS>).from;
        const int end = a.queries_of(p.b, min((p.tile + 1) * BN<HS>, a.keys) - 1).to;
        p.first = from / BM<HS>, p.tiles = from < a.S ? (end + BM<HS> - 1) / BM<HS> - p.first : 0;
        p.group = a.h.NH / a.h.NKV;
        return p;
    }
    __device__ int head(int g) const { return kv_head * group + g; }
};

// Named barriers. P_FULL, DS: both consumers have written P or dS. DQ_FULL + c: consumer c has
// written its dq. DQ_FREE + c: the warp that adds dq has read it.
enum { DS = 1, P_FULL, DQ_FULL, DQ_FREE = DQ_FULL + CONSUMERS };
constexpr int WITH_ADDER = WARPGROUP + 32;

// Run by one warp: adds the consumers' dq to the sums in global memory. One thread copies; the
// others take part because a barrier counts whole warps.
template <int HS, class Shared> __device__ __forceinline__ void add_dq(Shared& s, const Backward& a, TileCoord p) {
    const bool copies = threadIdx.x % 32 == 0;
    int left = p.group * p.tiles;
    for (int g = 0; g < p.group; g++) {
        const int64_t tile = a.query_tile(p.b, p.head(g), p.first);
        float* to = a.dq + tile * BM<HS> * HS;
        int* dq_order = a.dq_order ? a.dq_order + tile : nullptr;
#pragma unroll 1    // unrolled, the loop spills registers
        for (int t = 0; t < p.tiles; t++) {
            const int mine = a.last_key_tile<HS>(p.b, p.first + t) - p.tile;
            if (copies && dq_order) order_wait(dq_order + t, mine);
            for (int c = 0; c < CONSUMERS; c++, to += Half<HS>::FLOATS) {
                __syncwarp();
                named_barrier(DQ_FULL + c, WITH_ADDER);
                if (copies && dq_order && mine == 0) bulk_store(to, s.dq[c], sizeof(s.dq[c]));
                else if (copies) bulk_add(to, &s.dq[c][0][0].x, sizeof(s.dq[c]));
                if (copies) bulk_commit();
            }
            if (copies) bulk_wait_read();
            __syncwarp();
            if (--left)
                for (int c = 0; c < CONSUMERS; c++) named_barrier_arrive(DQ_FREE + c, WITH_ADDER);
            if (copies && dq_order) {
                bulk_wait();    // waits for the additions, not only the reads
                order_pass(dq_order + t, mine + 1);
            }
        }
    }
    if (copies) bulk_wait();
}

// Queries that attend to the two keys whose scores a consumer's thread has.
struct KeyMask {
    int key;         // the first key; the second is key + 8
    Span keys[2];    // queries that see each key
    Span all;        // queries that see all keys of the warp
    __device__ KeyMask(const Backward& a, int b, int key) : key(key) {
        // Hides keys beyond the sequence: their scores of 0 may be far above a query's lse.
        for (int r = 0; r < 2; r++) keys[r] = key + 8 * r < a.keys ? a.queries_of(b, key + 8 * r) : Span{a.S, a.S};
        all = {__shfl_sync(0xffffffff, keys[1].from, 31), __shfl_sync(0xffffffff, keys[0].to, 0)};
    }
    __device__ bool seen_by_all(int query, int n) const { return query >= all.from && query + n <= all.to; }
    template <int n> __device__ __forceinline__ void hide(float (&S)[n], int query) const {
        query += threadIdx.x % 4 * 2;
#pragma unroll
        for (int i = 0; i < n; i++) {
            const int r = i / 2 % 2, at = query + i / 4 * 8 + i % 2;
            if (at < keys[r].from || at >= keys[r].to) S[i] = -INFINITY;
        }
    }
};

// Calls f(i, row[column of i]) for each element i of a thread's part of a product.
template <int n, class F> __device__ __forceinline__ void each_with(const float* row, F f) {
#pragma unroll
    for (int j = 0; j < n / 4; j++) {
        const float2 x = *reinterpret_cast<const float2*>(row + 8 * j + threadIdx.x % 4 * 2);
#pragma unroll
        for (int e = 0; e < 4; e++) f(4 * j + e, e % 2 ? x.y : x.x);
    }
}

// Stores a warp's 16 rows of P^T or dS^T in shared memory, from row `row` on, for wgmma.
template <int ROWS, int COLUMNS, int n>
__device__ __forceinline__ void store_pairs(Tile<ROWS, COLUMNS>& to, const uint32_t (&a)[n], int row, int column) {
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int k = 0; k < n / 4; k++)
        stmatrix_x4(to.piece(row + lane % 16, column + 16 * k + lane / 16 * 8), a[4 * k], a[4 * k + 1], a[4 * k + 2],
                    a[4 * k + 3]);
    fence_async();
}
// Stores half of dq in the order of wgmma's fragments, so that one bulk copy moves it.
template <int groups, int n>
__device__ __forceinline__ void hand_over(float4 (&to)[groups][WARPGROUP], const float (&dq)[n], int skipped) {
#pragma unroll
    for (int j = 0; j < n / 4; j++)
        if (n / 4 == groups || unsigned(j - skipped / 8) < groups)
            store_shared(&to[j - skipped / 8][threadIdx.x % WARPGROUP],
                         {dq[4 * j], dq[4 * j + 1], dq[4 * j + 2], dq[4 * j + 3]});
    fence_async();
}

// Writes a warp's 16 rows of a product, times scale[r], to rows `stride` apart, but only the first
// `rows` of them. The warp first puts them into rows of `tile` that only it uses, so that it can
// store adjacent pieces of 16 bytes.
template <int ROWS, int HS> __device__ inline void store_rows(bf16* to, int64_t stride, int rows,
                                                              const float (&d)[HS / 2], const float (&scale)[2],
                                                              Tile<ROWS, HS>& tile, int first) {
    const int lane = threadIdx.x % 32;
    __syncwarp();    // the tile's rows may still be written
#pragma unroll
    for (int k = 0; k < HS / 16; k++) {
        const float* x = d + 8 * k;
        stmatrix_x4(tile.piece(first + lane % 16, 16 * k + lane / 16 * 8), pack_bf16(x[0] * scale[0], x[1] * scale[0]),
                    pack_bf16(x[2] * scale[1], x[3] * scale[1]), pack_bf16(x[4] * scale[0], x[5] * scale[0]),
                    pack_bf16(x[6] * scale[1], x[7] * scale[1]));
    }
    __syncwarp();
    constexpr int LANES = HS / 8, AT_ONCE = 32 / LANES;    // lanes per row; rows at once
    if (lane >= LANES * AT_ONCE) return;
    const int column = lane % LANES * 8;
    to += lane / LANES * stride + column;
    for (int row = lane / LANES; row < 16; row += AT_ONCE, to += AT_ONCE * stride)
        if (row < rows) store(to, load<8>(tile.piece(first + row, column)));
}

static __device__ unsigned begun;    // started blocks; see block_number

// Body of the main kernels. The file that includes this one defines produce, consume and Shared.
template <int HS, bool SHAPED, class Shared>
__device__ __forceinline__ void run_block(const CUtensorMap& kv, const CUtensorMap& q, const CUtensorMap& dy,
                                          const Backward& a) {
    static_assert(sizeof(Shared) <= SHARED_BYTES);
    auto& s = dynamic_shared<Shared>();
    if (threadIdx.x == 0) {
        const int number = block_number(&begun);    // early: the next lines hide its latency
        tensor_map_prefetch(kv), tensor_map_prefetch(q), tensor_map_prefetch(dy);
        mbarrier_init(&s.kv_full, 1);
        s.init_rings();
        mbarrier_init_fence();
        s.tile_coord = TileCoord::of<HS>(a, number);
    }
    __syncthreads();
    const int warpgroup = uniform_warpgroup();
    if (warpgroup == 0) {
        registers_give<PRODUCER_REGISTERS>();
        if (threadIdx.x == 0) produce(s, kv, q, dy, a, s.tile_coord);
        else if (threadIdx.x / 32 == 1) add_dq<HS>(s, a, s.tile_coord);
    } else {
        registers_take<CONSUMER_REGISTERS>();
        consume<HS, SHAPED>(s, a, s.tile_coord, warpgroup - 1);
    }
}

// ---- after: dq from its accumulator -------------------------------------------------------------

template <int HS> constexpr int FINISH_THREADS = 64 * HS / 16;

// Converts dq to bf16, times the scale. A block has 64 rows of a query tile. A thread has 8 columns
// of two rows, from 4 lanes' fragments.
template <int HS> __global__ void __launch_bounds__(FINISH_THREADS<HS>) finish(const Backward a) {
    constexpr int PARTS = BM<HS> / 64;
    const int64_t part = blockIdx.x;
    const int tile = int(part / PARTS % a.query_tiles);
    const int64_t sequence = part / PARTS / a.query_tiles;
    const int b = int(sequence / a.h.NH), head = int(sequence % a.h.NH);
    const int j = threadIdx.x % (HS / 8), pair = threadIdx.x / (HS / 8);    // a warp's 16 rows are 8 pairs
    const int warp = pair / 8, lane = pair % 8 * 4;
    const float* from = a.dq + part * 64 * HS + (j * WARPGROUP + warp * 32 + lane) * 4;
    Vec<float> x[4];
#pragma unroll
    for (int i = 0; i < 4; i++) x[i] = ::load<4>(from + 4 * i);
    const int row = tile * BM<HS> + int(part % PARTS) * 64 + warp * 16 + lane / 4;
#pragma unroll
    for (int r = 0; r < 2; r++) {
        if (row + 8 * r >= a.S) continue;
        Vec<bf16> dq;
#pragma unroll
        for (int i = 0; i < 8; i++) dq.set(i, x[i / 2].v[2 * r + i % 2] * a.scores.scale);
        const int64_t at = (int64_t(b) * a.S + row + 8 * r) * a.h.q_row() + head * HS;    // dq[b,s,head,:]
        store(a.dq_out + at + j * 8, dq);
    }
}

// ---- launches -----------------------------------------------------------------------------------

inline bool ordered_dq() {
    const char* order = getenv("FLATGPT_ATTENTION_ORDER");
    return !order || strcmp(order, "any") != 0;
}

// Launches prepare, then the main kernel main(SHAPED) of the head size, then finish.
template <int HS, class Main> void backward(bf16* dq, bf16* dkv, const bf16* dy, const bf16* y, const bf16* q,
                                            const bf16* kv, const float* lse, int B, int S, Heads h,
                                            size_t shared_bytes, Main main) {
    const int keys = h.keys_of(S);
    const CUtensorMap& kv_map = tensor_map(kv, B, keys, h.kv_row() / HS, HS, BN<HS>, WIDTH<HS>);
    const CUtensorMap& q_map = tensor_map(q, B, S, h.q_row() / HS, HS, BM<HS>, WIDTH<HS>);
    const CUtensorMap& dy_map = tensor_map(dy, B, S, h.NH, HS, BM<HS>, WIDTH<HS>);
    const Sm90Scratch at(B, S, h);
    char* base = static_cast<char*>(cuda_scratch(at.bytes));
    auto floats = [&](int64_t offset) { return reinterpret_cast<float*>(base + offset); };
    const Backward a{dq,
                     dkv,
                     floats(0),
                     floats(at.lse2),
                     floats(at.delta),
                     ordered_dq() ? reinterpret_cast<int*>(base + at.dq_order) : nullptr,
                     S,
                     keys,
                     int(ceil_div(S, BM<HS>)),
                     int(ceil_div(keys, BN<HS>)),
                     checked(h, S),
                     Scores(h)};
    const unsigned query_tiles = unsigned(B * h.NH * a.query_tiles);
    launch(prepare<HS>, {query_tiles, PREPARE_THREADS}, a, dy, y, lse);
    const Launch blocks{unsigned(B * h.NKV * a.key_tiles), THREADS, shared_bytes, a.dq_order != nullptr};
    for_shape(a.scores, [&](auto SHAPED) { launch(main(SHAPED), blocks, kv_map, q_map, dy_map, a); });
    launch(finish<HS>, {query_tiles * (BM<HS> / 64), FINISH_THREADS<HS>}, a);
}

// sm90_backward_large_head.cu: head sizes above 128.
void backward_wide(bf16* dq, bf16* dkv, const bf16* dy, const bf16* y, const bf16* q, const bf16* kv, const float* lse,
                   int B, int S, Heads h);

}    // namespace sm90

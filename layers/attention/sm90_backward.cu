// sm90_backward.cu - attention backward by wgmma and TMA, for sm_90 alone. Dao et al. 2022, algorithm 4, by columns of
// the score matrix: a block has 128 keys of one key/value head, and goes over the queries that see them.
//
//     P = exp(scale q k^T - lse)   dS = P * (dy v^T - delta)   delta = rowsum(dy * y)
//     dv = P^T dy                  dk = scale dS^T q           dq = scale dS k
//
// Three kernels: prepare (delta; lse in powers of two, infinite where there is no row so that P is 0 there), main,
// finish (dq from its accumulator). Main has a producer warpgroup and two consumers of 64 keys each. It computes S^T
// and dP^T (keys are rows), so that P^T and dS^T in registers are ready for the products for dv and dk; dS^T goes to
// shared memory once, for dq. For each query tile (BM = 128 rows for HS = 64, 64 for 128):
//
//     producer   warp 0   wait free -> q, lse come, then q_full;  dy, delta come, then dy_full
//     consumer   wait q_full    S = k q^T starts;   wait dy_full    D = v dy^T starts
//                S is there     P = exp2(S - lse)
//                D is there     dS = P (D - delta);   dv += P^T dy starts
//                dS to shared memory;  barrier DS of both consumers;  dq = dS k starts, half each;  dk += dS^T q starts
//                dv, dq there   wait DQ_FREE, dq to shared memory, DQ_FULL
//                dk there       free
//     producer   warp 1   wait for its turn at this query tile;  wait DQ_FULL -> adds dq to global memory, DQ_FREE;
//                         when the sum is visible to all: next block's turn
//
// dq of a query tile is summed over key tiles, that is over blocks. Turns keep the order the same every run: from the
// last key tile that the query tile sees (the one on the diagonal, without spans) to the left. Key tile k visits one
// query tile per step. If it starts with or after tile k + 1, it stays a step behind that one and hardly waits; blocks
// start in the order of their index, which falls with k. As no end of a span decreases, the key tiles of a query tile
// are a run without gaps, and the turn of tile k is its distance from the last. The first block stores, the others
// add: nothing is zeroed. FLATGPT_ATTENTION_ORDER=any, for measurements, adds without turns.
//
// All query heads of a group pass the same block: dk and dv stay in registers, whatever the grouping.
// FLOPs: 10 HS for each pair of a query and a key in the tiles that are visited. Bytes: q, k, v, dy, y read and dqkv
// written once, 2 each; for dq in fp32 4 written, 8 (L2) for each further key tile, 4 read.
#include "sm90.cuh"

#include <cstdlib>
#include <cstring>

namespace {
using namespace sm90;

constexpr int BN = 128;
constexpr int PRODUCER_REGISTERS = 40, CONSUMER_REGISTERS = 232;
static_assert(WARPGROUP * (PRODUCER_REGISTERS + CONSUMERS * CONSUMER_REGISTERS) <= REGISTERS);

template <int HS> constexpr int BM = Sm90Scratch::rows(HS);    // rows of a query tile: as many as fit registers
// Each consumer computes 64 x 64 of a query tile's dq: half of its rows for HS = 64, half of its columns for 128.
constexpr int HALF = 64 * 64;
template <int HS> constexpr bool BY_ROWS = BM<HS> == 128;

struct Backward {
    bf16* dqkv;
    float* dq;               // (B,NH,query_tiles,2,8,128,4): see hand_over
    float *lse2, *delta;     // (B,NH,query_tiles,BM)
    int* turn;               // (B,NH,query_tiles): how many blocks have added to dq; null: any order
    int S, query_tiles, key_tiles;
    Heads h;
    Scores scores;

    __device__ int64_t query_tile(int b, int head, int tile) const {
        return (int64_t(b) * h.NH + head) * query_tiles + tile;
    }
    __device__ Span queries_of(int b, int key) const { return ::queries_of(h, S, b, key); }
    // The last key tile that a query tile visits.
    template <int HS> __device__ int last_key_tile(int b, int tile) const {
        return h.keys ? (keys_of(h, S, b, tile * BM<HS> + BM<HS> - 1).to - 1) / BN : tile * BM<HS> / BN;
    }
};

// ---- before: delta, lse, turns --------------------------------------------------------------------------------------

constexpr int PREPARE_THREADS = 256;

// A block has one query tile; HS / 8 threads share a row. Bound by reading dy and y.
template <int HS> __global__ void prepare(const Backward a, const bf16* dy, const bf16* y, const float* lse) {
    constexpr int LANES = HS / 8, ROWS = PREPARE_THREADS / LANES;
    const int tile = int(blockIdx.x) % a.query_tiles, head = int(blockIdx.x) / a.query_tiles % a.h.NH;
    const int b = int(blockIdx.x) / a.query_tiles / a.h.NH, lane = threadIdx.x % LANES;
    const int64_t index = blockIdx.x;
#pragma unroll
    for (int i = 0; i < BM<HS> / ROWS; i++) {
        const int row = i * ROWS + threadIdx.x / LANES, s = tile * BM<HS> + row;
        float sum = 0;
        if (s < a.S) {
            const int64_t at = ((int64_t(b) * a.S + s) * a.h.NH + head) * HS + lane * 8;    // y[b,s,head,:]
            const Vec<bf16> u = load<8>(dy + at), v = load<8>(y + at);
#pragma unroll
            for (int i = 0; i < 8; i++) sum += u[i] * v[i];
        }
        sum = warp_sum<LANES>(sum);
        if (lane == 0) {
            a.delta[index * BM<HS> + row] = sum;
            a.lse2[index * BM<HS> + row] = s < a.S ? lse[(int64_t(b) * a.h.NH + head) * a.S + s] * LOG2E : INFINITY;
        }
    }
    if (a.turn) {
        if (threadIdx.x == 0) a.turn[index] = 0;
    } else {
        for (int i = threadIdx.x * 4; i < 2 * HALF; i += PREPARE_THREADS * 4)
            store(a.dq + index * 2 * HALF + i, Vec<float>{});
    }
}

// ---- main -----------------------------------------------------------------------------------------------------------

// What a block computes: 128 keys of one key/value head, over query tiles first, ..., first + tiles - 1 of each head of
// the group.
struct Place {
    int b, kv_head, tile, first, tiles, group;
    template <int HS> __device__ static Place of(const Backward& a) {
        Place p;
        const int i = int(blockIdx.x);
        p.tile = i % a.key_tiles;    // without turns the longest first; with turns from the last keys to the first
        if (a.turn) p.tile = a.key_tiles - 1 - p.tile;
        p.kv_head = i / a.key_tiles % a.h.NKV, p.b = i / a.key_tiles / a.h.NKV;
        const int end = a.queries_of(p.b, min(p.tile * BN + BN, a.S) - 1).to;
        p.first = a.queries_of(p.b, p.tile * BN).from / BM<HS>, p.tiles = (end + BM<HS> - 1) / BM<HS> - p.first;
        p.group = a.h.NH / a.h.NKV;
        return p;
    }
    __device__ int head(int g) const { return kv_head * group + g; }
};

template <int HS> struct BackwardShared {
    Tile<BN, HS> k, v;
    Tile<BM<HS>, HS> q[STAGES], dy[STAGES];
    Tile<BN, BM<HS>> ds[2];    // dS^T, twice: a consumer may write the next while the other's product reads this one
    float4 dq[CONSUMERS][HALF / 4 / WARPGROUP][WARPGROUP];
    alignas(128) float lse2[STAGES][BM<HS>], delta[STAGES][BM<HS>];
    uint64_t kv_full, q_full[STAGES], dy_full[STAGES], free[STAGES];
    Place place;    // read again behind the loop: consumers have no register to keep it in
};
static_assert(sizeof(BackwardShared<64>) <= SHARED_BYTES && sizeof(BackwardShared<128>) <= SHARED_BYTES);

// Named barriers. DS: both consumers have written dS. DQ_FULL, DQ_FREE + c: between consumer c and the warp that adds.
enum { DS = 1, DQ_FULL, DQ_FREE = DQ_FULL + CONSUMERS, EPILOGUE = DQ_FREE + CONSUMERS };
constexpr int WITH_ADDER = WARPGROUP + 32;

template <int HS>
__device__ __forceinline__ void produce(BackwardShared<HS>& s, const CUtensorMap& kv, const CUtensorMap& q,
                                        const CUtensorMap& dy, const Backward& a, Place p) {
    constexpr int rows = BM<HS> * int(sizeof(float));
    mbarrier_arrive_expect(&s.kv_full, s.k.bytes + s.v.bytes);
    load(s.k, kv, p.b, p.tile * BN, a.h.NH + p.kv_head, &s.kv_full);
    load(s.v, kv, p.b, p.tile * BN, a.h.NH + a.h.NKV + p.kv_head, &s.kv_full);
    unsigned step = 0;
    for (int g = 0; g < p.group; g++)
#pragma unroll 1    // unrolled, it spills
        for (int t = p.first; t < p.first + p.tiles; t++, step++) {
            const Slot at(step);
            const int64_t row = a.query_tile(p.b, p.head(g), t) * BM<HS>;
            mbarrier_wait(&s.free[at.slot], !at.parity);    // the first round passes at once
            mbarrier_arrive_expect(&s.q_full[at.slot], s.q[0].bytes + rows);
            load(s.q[at.slot], q, p.b, t * BM<HS>, p.head(g), &s.q_full[at.slot]);
            bulk_load(s.lse2[at.slot], a.lse2 + row, rows, &s.q_full[at.slot]);
            mbarrier_arrive_expect(&s.dy_full[at.slot], s.dy[0].bytes + rows);
            load(s.dy[at.slot], dy, p.b, t * BM<HS>, p.head(g), &s.dy_full[at.slot]);
            bulk_load(s.delta[at.slot], a.delta + row, rows, &s.dy_full[at.slot]);
        }
}

// One warp adds what the consumers hand over to the sums in global memory. One of its threads copies; the others come
// along because a barrier counts whole warps.
template <int HS> __device__ __forceinline__ void add_dq(BackwardShared<HS>& s, const Backward& a, Place p) {
    const bool copies = threadIdx.x % 32 == 0;
    int left = p.group * p.tiles;
    for (int g = 0; g < p.group; g++) {
        const int64_t tile = a.query_tile(p.b, p.head(g), p.first);
        float* to = a.dq + tile * CONSUMERS * HALF;
        int* turn = a.turn ? a.turn + tile : nullptr;
#pragma unroll 1    // unrolled, it spills
        for (int t = 0; t < p.tiles; t++) {
            const int mine = a.last_key_tile<HS>(p.b, p.first + t) - p.tile;
            if (copies && turn) turn_wait(turn + t, mine);
            for (int c = 0; c < CONSUMERS; c++, to += HALF) {
                __syncwarp();
                named_barrier(DQ_FULL + c, WITH_ADDER);
                if (copies && turn && mine == 0) bulk_store(to, s.dq[c], sizeof(s.dq[c]));
                else if (copies) bulk_add(to, &s.dq[c][0][0].x, sizeof(s.dq[c]));
                if (copies) bulk_commit();
            }
            if (copies) bulk_wait_read();
            __syncwarp();
            if (--left)
                for (int c = 0; c < CONSUMERS; c++) named_barrier_arrive(DQ_FREE + c, WITH_ADDER);
            if (copies && turn) {
                bulk_wait();    // done, not only read: the next block's sum must come after this one
                turn_pass(turn + t, mine + 1);
            }
        }
    }
    if (copies) bulk_wait();
}

// Starts d = a b^T: keys from `first` on times the rows of a query tile.
template <int HS, int n, int ROWS>
__device__ __forceinline__ void start_transposed(float (&d)[n], const Tile<BN, HS>& keys, int first,
                                                 const Tile<ROWS, HS>& queries) {
    wgmma_fence(d);
#pragma unroll
    for (int i = 0; i < HS; i += 16)
        wgmma<ALONG_K, ALONG_K>(d, keys.columns_as_k(first, i), queries.columns_as_k(0, i), i > 0);
    wgmma_commit();
}
// Starts d += a x: a from registers, x a query tile.
template <int HS, int n, int ROWS>
__device__ __forceinline__ void start_sum(float (&d)[HS / 2], uint32_t (&a)[n], const Tile<ROWS, HS>& x) {
    wgmma_fence(d, a);
#pragma unroll
    for (int row = 0; row < ROWS; row += 16) wgmma<ALONG_MN>(d, a + row / 4, x.rows_as_k(row, 0));
    wgmma_commit();
}
// Starts a consumer's 64 x 64 of dq = dS k.
template <int HS>
__device__ __forceinline__ void start_dq(float (&dq)[32], const Tile<BN, BM<HS>>& ds, const Tile<BN, HS>& k,
                                         int consumer) {
    const int row = BY_ROWS<HS> ? consumer * 64 : 0, column = BY_ROWS<HS> ? 0 : consumer * 64;
    wgmma_fence(dq);
#pragma unroll
    for (int key = 0; key < BN; key += 16)
        wgmma<ALONG_MN, ALONG_MN>(dq, ds.rows_as_k(key, row), k.rows_as_k(key, column), key > 0);
    wgmma_commit();
}

// Which queries see the keys of one consumer's thread.
struct View {
    int key;         // this thread's first key; its second is 8 further
    Span keys[2];    // the queries that see each of the two
    Span all;        // those that see all of the warp's keys: no end of a span decreases
    __device__ View(const Backward& a, int b, int key) : key(key) {
        for (int r = 0; r < 2; r++) keys[r] = a.queries_of(b, key + 8 * r);
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

// Calls f(i, row[column of i]) for each element of a product: `row` holds a number for each column.
template <int n, class F> __device__ __forceinline__ void each_with(const float* row, F f) {
#pragma unroll
    for (int j = 0; j < n / 4; j++) {
        const float2 x = *reinterpret_cast<const float2*>(row + 8 * j + threadIdx.x % 4 * 2);
#pragma unroll
        for (int e = 0; e < 4; e++) f(4 * j + e, e % 2 ? x.y : x.x);
    }
}

// Stores a warp's 16 keys of dS^T in shared memory, for wgmma.
template <int HS, int n>
__device__ __forceinline__ void store_ds(Tile<BN, BM<HS>>& ds, const uint32_t (&a)[n], int first) {
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int k = 0; k < n / 4; k++)
        stmatrix_x4(ds.piece(first + lane % 16, 16 * k + lane / 16 * 8), a[4 * k], a[4 * k + 1], a[4 * k + 2],
                    a[4 * k + 3]);
    fence_async();
}
// Stores dq in the order of its fragments, so that neither this nor the copy after it has to gather anything.
__device__ __forceinline__ void hand_over(float4 (&to)[HALF / 4 / WARPGROUP][WARPGROUP], const float (&dq)[32]) {
#pragma unroll
    for (int j = 0; j < 8; j++)
        store_shared(&to[j][threadIdx.x % WARPGROUP], {dq[4 * j], dq[4 * j + 1], dq[4 * j + 2], dq[4 * j + 3]});
    fence_async();
}

template <int HS, bool SHAPED>
__device__ __forceinline__ void consume(BackwardShared<HS>& s, const Backward& a, const Place& p, int consumer) {
    constexpr int M = BM<HS>;
    const int lane = threadIdx.x % 32, first = consumer * 64 + threadIdx.x % WARPGROUP / 32 * 16;
    const View view(a, p.b, p.tile * BN + first + lane / 4);
    float dk[HS / 2] = {}, dv[HS / 2] = {};

    mbarrier_wait(&s.kv_full, 0);
    const unsigned steps = unsigned(p.group * p.tiles);
    int t = p.first;
    for (unsigned step = 0; step < steps; step++) {
        const Slot at(step);
        float S[M / 2], D[M / 2], dq[32];
        uint32_t P[M / 4], dS[M / 4];
        mbarrier_wait(&s.q_full[at.slot], at.parity);
        start_transposed(S, s.k, consumer * 64, s.q[at.slot]);
        mbarrier_wait(&s.dy_full[at.slot], at.parity);
        start_transposed(D, s.v, consumer * 64, s.dy[at.slot]);
        wgmma_wait<1>(S);
        if (SHAPED) bend(S, a.scores);
        const float* const lses = s.lse2[at.slot];
        const float slope = SHAPED ? a.scores.alibi(p.head(int(step) / p.tiles)) : 0;
        const float behind = float(t * M + lane % 4 * 2 - view.key);
        auto exponentials = [&] {
            each_with<M / 2>(lses, [&](int i, float lse) { S[i] = exp2_approx(S[i] * a.scores.log2 - lse); });
        };
        // Written twice: behind exponentials where two ways meet, ptxas waits for D before it computes them.
        if (!view.seen_by_all(t * M, M)) {
            view.hide(S, t * M);
            if (!SHAPED) exponentials();
        } else if (!SHAPED) exponentials();
        wgmma_wait<0>(D);
        each_with<M / 2>(s.delta[at.slot], [&](int i, float delta) {
            if (SHAPED) {    // the scores' slopes follow from S, so it is needed until D is there
                const float lse = lses[i / 4 * 8 + lane % 4 * 2 + i % 2] + slope * distance<true>(behind, i);
                const float steepness = a.scores.steepness(S[i]);
                S[i] = exp2_approx(S[i] * a.scores.log2 - lse);
                D[i] = S[i] * steepness * (D[i] - delta);
            } else D[i] = S[i] * (D[i] - delta);
            // Rounded at once: registers cannot hold both the fp32 and the bf16 values.
            if (i % 2) P[i / 2] = pack_bf16(S[i - 1], S[i]), dS[i / 2] = pack_bf16(D[i - 1], D[i]);
        });
        start_sum<HS>(dv, P, s.dy[at.slot]);
        store_ds<HS>(s.ds[step % 2], dS, first);
        named_barrier(DS, CONSUMERS * WARPGROUP);
        start_dq<HS>(dq, s.ds[step % 2], s.k, consumer);
        start_sum<HS>(dk, dS, s.q[at.slot]);
        wgmma_wait<1>(dq, dv, P);
        if (step > 0) named_barrier(DQ_FREE + consumer, WITH_ADDER);
        hand_over(s.dq[consumer], dq);
        named_barrier_arrive(DQ_FULL + consumer, WITH_ADDER);
        wgmma_wait<0>(dk, dS);
        if (lane == 0) mbarrier_arrive(&s.free[at.slot]);
        if (++t == p.first + p.tiles) t = p.first;    // the next head of the group
    }
    named_barrier(EPILOGUE + consumer, WARPGROUP);    // the warpgroup has read its rows of v: outputs reuse them
    const int key = p.tile * BN + first;
    const int64_t stride = int64_t(a.h.NH + 2 * a.h.NKV) * HS, head = int64_t(a.h.NH + p.kv_head) * HS;
    bf16* to = a.dqkv + (int64_t(p.b) * a.S + key) * stride + head;
    store_rows(to + a.h.NKV * HS, stride, a.S - key, dv, {1, 1}, s.v, first);
    store_rows(to, stride, a.S - key, dk, {a.scores.scale, a.scores.scale}, s.v, first);
}

template <int HS, bool SHAPED>
__global__ void __launch_bounds__(THREADS, 1)
    backward_kernel(const __grid_constant__ CUtensorMap kv, const __grid_constant__ CUtensorMap q,
                    const __grid_constant__ CUtensorMap dy, const Backward a) {
    if constexpr (SM90A) {
        auto& s = dynamic_shared<BackwardShared<HS>>();
        if (threadIdx.x == 0) {
            tensor_map_prefetch(kv), tensor_map_prefetch(q), tensor_map_prefetch(dy);
            s.place = Place::of<HS>(a);
            mbarrier_init(&s.kv_full, 1);
            for (int i = 0; i < STAGES; i++) {
                mbarrier_init(&s.q_full[i], 1);
                mbarrier_init(&s.dy_full[i], 1);
                mbarrier_init(&s.free[i], CONSUMERS * 4);    // each warp arrives by itself
            }
            mbarrier_init_fence();
        }
        __syncthreads();
        const int warpgroup = uniform_warpgroup();
        if (warpgroup == 0) {
            registers_give<PRODUCER_REGISTERS>();
            if (threadIdx.x == 0) produce(s, kv, q, dy, a, s.place);
            else if (threadIdx.x / 32 == 1) add_dq(s, a, s.place);
        } else {
            registers_take<CONSUMER_REGISTERS>();
            consume<HS, SHAPED>(s, a, s.place, warpgroup - 1);
        }
    }
}

// ---- after: dq to its place -----------------------------------------------------------------------------------------

constexpr int FINISH_THREADS = HALF / 16;

// A block has one consumer's half of a query tile; a thread has 8 columns of two rows 8 apart: four lanes' fragments.
template <int HS> __global__ void finish(const Backward a) {
    const int64_t half = blockIdx.x;
    const int c = int(half % CONSUMERS), tile = int(half / CONSUMERS % a.query_tiles);
    const int64_t sequence = half / CONSUMERS / a.query_tiles;
    const int b = int(sequence / a.h.NH), head = int(sequence % a.h.NH);
    const int j = threadIdx.x % 8, warp = threadIdx.x / 64, lane = threadIdx.x % 64 / 8 * 4;
    const float* from = a.dq + half * HALF + (j * WARPGROUP + warp * 32 + lane) * 4;
    Vec<float> x[4];
#pragma unroll
    for (int i = 0; i < 4; i++) x[i] = load<4>(from + 4 * i);
    const int row = tile * BM<HS> + (BY_ROWS<HS> ? c * 64 : 0) + warp * 16 + lane / 4;
    const int column = (BY_ROWS<HS> ? 0 : c * 64) + j * 8;
#pragma unroll
    for (int r = 0; r < 2; r++) {
        if (row + 8 * r >= a.S) continue;
        Vec<bf16> dq;
#pragma unroll
        for (int i = 0; i < 8; i++) dq.set(i, x[i / 2].v[2 * r + i % 2] * a.scores.scale);
        const int64_t at = (int64_t(b) * a.S + row + 8 * r) * (a.h.NH + 2 * a.h.NKV) + head;    // dqkv[b,s,head,:]
        store(a.dqkv + at * HS + column, dq);
    }
}

// ---- launches -------------------------------------------------------------------------------------------------------

bool in_turns() {
    const char* order = getenv("FLATGPT_ATTENTION_ORDER");
    return !order || strcmp(order, "any") != 0;
}

template <int HS>
void backward(bf16* dqkv, const bf16* dy, const bf16* y, const bf16* qkv, const float* lse, int B, int S, Heads h) {
    const CUtensorMap& kv_map = tensor_map(qkv, B, S, h.NH + 2 * h.NKV, HS, BN);
    const CUtensorMap& q_map = tensor_map(qkv, B, S, h.NH + 2 * h.NKV, HS, BM<HS>);
    const CUtensorMap& dy_map = tensor_map(dy, B, S, h.NH, HS, BM<HS>);
    static_assert(BM<HS> * HS == 2 * HALF);
    const Sm90Scratch at(B, S, h);
    char* base = static_cast<char*>(cuda_scratch(at.bytes));
    auto floats = [&](int64_t offset) { return reinterpret_cast<float*>(base + offset); };
    const Backward a{dqkv, floats(0), floats(at.lse2), floats(at.delta),
                     in_turns() ? reinterpret_cast<int*>(base + at.turn) : nullptr,
                     S, int(ceil_div(S, BM<HS>)), int(ceil_div(S, BN)), checked(h, S),
                     Scores(h)};
    const unsigned query_tiles = unsigned(B * h.NH * a.query_tiles);
    launch(prepare<HS>, {query_tiles, PREPARE_THREADS}, a, dy, y, lse);
    const Launch main{unsigned(B * h.NKV * a.key_tiles), THREADS, sizeof(BackwardShared<HS>), a.turn != nullptr};
    for_shape(a.scores, [&](auto SHAPED) { launch(backward_kernel<HS, SHAPED>, main, kv_map, q_map, dy_map, a); });
    launch(finish<HS>, {query_tiles * CONSUMERS, FINISH_THREADS}, a);
}

}    // namespace

void attention_backward_sm90(bf16* dqkv, const bf16* dy, const bf16* y, const bf16* qkv, const float* lse, int B, int S,
                             Heads h) {
    h.HS == 64 ? backward<64>(dqkv, dy, y, qkv, lse, B, S, h) : backward<128>(dqkv, dy, y, qkv, lse, B, S, h);
}

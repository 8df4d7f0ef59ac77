// sm90_backward.cu - attention backward by wgmma and TMA, for sm_90 only. Dao et al. 2022,
// algorithm 4, by columns of the score matrix: a block has 128 keys of one key/value head, and
// visits the queries that attend to them. Head sizes up to 128; larger ones are in
// sm90_backward_large_head.cu, the common parts in sm90_backward.cuh.
//
//     P = exp(scale q k^T - lse)   dS = P * (dy v^T - delta)   delta = rowsum(dy * y)
//     dv = P^T dy                  dk = scale dS^T q           dq = scale dS k
//
// Three kernels: prepare (delta; lse in log2 units, infinite for missing rows so that P is 0
// there), main, finish (converts dq from its accumulator). Main has a producer warpgroup and two
// consumers of 64 keys each. A consumer computes S^T and dP^T (keys are rows), so that P^T and dS^T
// in registers are factors of the products for dv and dk; dS^T goes to shared memory once, for dq.
// For each query tile (BM = 128 rows for HS = 32 and 64, 64 for 96 and 128):
//
//     producer   warp 0   wait free -> copy q, lse, then q_full;  copy dy, delta, then dy_full
//     consumer   wait q_full    S = k q^T starts;   wait dy_full    D = v dy^T starts
//                S is done      P = exp2(S - lse)
//                D is done      dS = P (D - delta);   dv += P^T dy starts
//                dS to shared memory;  barrier DS of both consumers;
//                dq = dS k starts, half each;  dk += dS^T q starts
//                dv, dq done    wait DQ_FREE, dq to shared memory, DQ_FULL
//                dk is done     free
//     producer   warp 1   wait for dq_order at this query tile;
//                         wait DQ_FULL -> adds dq to global memory, DQ_FREE;
//                         when the sum is visible to all: advance dq_order
//
// A block visits the queries of all heads that share its keys, so dk and dv stay in its registers,
// whatever the group's size. FLOPs: 10 HS for each pair of a query and a key in the visited tiles.
// Bytes: q, k, v, dy and y are read and dqkv is written once, 2 bytes an element. An element of
// dq's fp32 sums takes 4 more for the first key tile, 8 in L2 for each further one, and 4 to read
// at the end.
#include "sm90_backward.cuh"

namespace {
using namespace sm90;

template <int HS> struct BackwardShared {
    Tile<BN<HS>, HS> k, v;
    Tile<BM<HS>, HS> q[STAGES], dy[STAGES];
    Tile<BN<HS>, BM<HS>> ds[2];    // dS^T, double-buffered between the consumers
    float4 dq[CONSUMERS][Half<HS>::COLUMNS / 8][WARPGROUP];
    alignas(128) float lse2[STAGES][BM<HS>], delta[STAGES][BM<HS>];
    uint64_t kv_full, q_full[STAGES], dy_full[STAGES], free[STAGES];
    TileCoord tile_coord;    // read again after the loop, which lacks registers
    __device__ void init_rings() {
        for (int i = 0; i < STAGES; i++) {
            mbarrier_init(&q_full[i], 1);
            mbarrier_init(&dy_full[i], 1);
            mbarrier_init(&free[i], CONSUMERS * 4);    // each warp arrives once
        }
    }
};

template <int HS> __device__ __forceinline__ void produce(BackwardShared<HS>& s, const CUtensorMap& kv,
                                                          const CUtensorMap& q, const CUtensorMap& dy,
                                                          const Backward& a, TileCoord p) {
    constexpr int rows = BM<HS> * int(sizeof(float));
    mbarrier_arrive_expect(&s.kv_full, s.k.bytes + s.v.bytes);
    load(s.k, kv, p.b, p.tile * BN<HS>, a.k_head(p.kv_head), &s.kv_full);
    load(s.v, kv, p.b, p.tile * BN<HS>, a.v_head(p.kv_head), &s.kv_full);
    unsigned step = 0;
    for (int g = 0; g < p.group; g++)
#pragma unroll 1    // unrolled, the loop spills registers
        for (int t = p.first; t < p.first + p.tiles; t++, step++) {
            const RingStage at(step);
            const int64_t row = a.query_tile(p.b, p.head(g), t) * BM<HS>;
            mbarrier_wait(&s.free[at.stage], !at.parity);    // the first round does not wait
            mbarrier_arrive_expect(&s.q_full[at.stage], s.q[0].bytes + rows);
            load(s.q[at.stage], q, p.b, t * BM<HS>, p.head(g), &s.q_full[at.stage]);
            bulk_load(s.lse2[at.stage], a.lse2 + row, rows, &s.q_full[at.stage]);
            mbarrier_arrive_expect(&s.dy_full[at.stage], s.dy[0].bytes + rows);
            load(s.dy[at.stage], dy, p.b, t * BM<HS>, p.head(g), &s.dy_full[at.stage]);
            bulk_load(s.delta[at.stage], a.delta + row, rows, &s.dy_full[at.stage]);
        }
}

// Starts d = a b^T: a has keys from row `first` on, b the rows of a query tile.
template <int HS, int n, int ROWS>
__device__ __forceinline__ void start_transposed(float (&d)[n], const Tile<BN<HS>, HS>& keys, int first,
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
// Starts a consumer's half of dq = dS k.
template <int HS, int n> __device__ __forceinline__ void start_dq(float (&dq)[n], const Tile<BN<HS>, BM<HS>>& ds,
                                                                  const Tile<BN<HS>, HS>& k, Half<HS> half) {
    wgmma_fence(dq);
#pragma unroll
    for (int key = 0; key < BN<HS>; key += 16)
        wgmma<ALONG_MN, ALONG_MN>(dq, ds.rows_as_k(key, half.row), k.rows_as_k(key, half.column), key > 0);
    wgmma_commit();
}

template <int HS, bool SHAPED>
__device__ __forceinline__ void consume(BackwardShared<HS>& s, const Backward& a, const TileCoord& p, int consumer) {
    constexpr int M = BM<HS>;
    const int lane = threadIdx.x % 32, first = consumer * 64 + threadIdx.x % WARPGROUP / 32 * 16;
    const KeyMask view(a, p.b, p.tile * BN<HS> + first + lane / 4);
    const Half<HS> half(consumer);
    float dk[HS / 2] = {}, dv[HS / 2] = {};

    mbarrier_wait(&s.kv_full, 0);
    const unsigned steps = unsigned(p.group * p.tiles);
    int t = p.first;
    for (unsigned step = 0; step < steps; step++) {
        const RingStage at(step);
        float S[M / 2], D[M / 2], dq[half.COMPUTED / 2];
        uint32_t P[M / 4], dS[M / 4];
        mbarrier_wait(&s.q_full[at.stage], at.parity);
        start_transposed(S, s.k, consumer * 64, s.q[at.stage]);
        mbarrier_wait(&s.dy_full[at.stage], at.parity);
        start_transposed(D, s.v, consumer * 64, s.dy[at.stage]);
        wgmma_wait<1>(S);
        if (SHAPED) apply_cap_tanh(S, a.scores);
        const float* const lses = s.lse2[at.stage];
        const float slope = SHAPED ? a.scores.alibi(p.head(int(step) / p.tiles)) : 0;
        const float behind = float(t * M + lane % 4 * 2 - view.key);
        auto exponentials = [&] {
            each_with<M / 2>(lses, [&](int i, float lse) { S[i] = exp2_approx(S[i] * a.scores.log2 - lse); });
        };
        // exponentials() is called in each branch: ptxas would wait for D where the branches join.
        if (!view.seen_by_all(t * M, M)) {
            view.hide(S, t * M);
            if (!SHAPED) exponentials();
        } else if (!SHAPED) exponentials();
        wgmma_wait<0>(D);
        each_with<M / 2>(s.delta[at.stage], [&](int i, float delta) {
            if (SHAPED && i % 16 == 0) __syncwarp();    // keeps ptxas from prefetching into registers
            if (SHAPED) {                               // cap_slope needs S until D is done
                const float lse = lses[i / 4 * 8 + lane % 4 * 2 + i % 2] + slope * distance<true>(behind, i);
                const float cap_slope = a.scores.cap_slope(S[i]);
                S[i] = exp2_approx(S[i] * a.scores.log2 - lse);
                D[i] = S[i] * cap_slope * (D[i] - delta);
            } else D[i] = S[i] * (D[i] - delta);
            // Rounded here, because registers cannot hold both the fp32 and the bf16 values.
            if (i % 2) P[i / 2] = pack_bf16(S[i - 1], S[i]), dS[i / 2] = pack_bf16(D[i - 1], D[i]);
        });
        start_sum<HS>(dv, P, s.dy[at.stage]);
        store_pairs(s.ds[step % 2], dS, first, 0);
        named_barrier(DS, CONSUMERS * WARPGROUP);
        start_dq<HS>(dq, s.ds[step % 2], s.k, half);
        start_sum<HS>(dk, dS, s.q[at.stage]);
        wgmma_wait<1>(dq, dv, P);
        if (step > 0) named_barrier(DQ_FREE + consumer, WITH_ADDER);
        hand_over(s.dq[consumer], dq, half.skipped);
        named_barrier_arrive(DQ_FULL + consumer, WITH_ADDER);
        wgmma_wait<0>(dk, dS);
        if (lane == 0) mbarrier_arrive(&s.free[at.stage]);
        if (++t == p.first + p.tiles) t = p.first;    // the next head of the group
    }
    // No product reads v after the last barrier DS, so the outputs reuse its memory.
    const int key = p.tile * BN<HS> + first;
    const int64_t stride = a.h.kv_row();
    bf16* to = a.dk(p.b, key, p.kv_head);
    store_rows(to + a.h.NKV * HS, stride, a.keys - key, dv, {1, 1}, s.v, first);
    store_rows(to, stride, a.keys - key, dk, {a.scores.scale, a.scores.scale}, s.v, first);
}

template <int HS, bool SHAPED> __global__ void __launch_bounds__(THREADS, 1)
    backward_kernel(const __grid_constant__ CUtensorMap kv, const __grid_constant__ CUtensorMap q,
                    const __grid_constant__ CUtensorMap dy, const Backward a) {
    if constexpr (SM90A) run_block<HS, SHAPED, BackwardShared<HS>>(kv, q, dy, a);
}

}    // namespace

void attention_backward_sm90(bf16* dq, bf16* dkv, const bf16* dy, const bf16* y, const bf16* q, const bf16* kv,
                             const float* lse, int B, int S, Heads h) {
    auto of_size = [&]<int HS>() {
        backward<HS>(dq, dkv, dy, y, q, kv, lse, B, S, h, sizeof(BackwardShared<HS>),
                     [](auto SHAPED) { return backward_kernel<HS, SHAPED>; });
    };
    if (h.HS == 32) of_size.operator()<32>();
    else if (h.HS == 64) of_size.operator()<64>();
    else if (h.HS == 96) of_size.operator()<96>();
    else if (h.HS == 128) of_size.operator()<128>();
    else backward_wide(dq, dkv, dy, y, q, kv, lse, B, S, h);
}

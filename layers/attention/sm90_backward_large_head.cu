// sm90_backward_large_head.cu - attention backward for head sizes 192 and 256, for sm_90 only.
// Formulas and kernels: see sm90_backward.cu.
//
// dk and dv of 128 keys do not fit the consumers' registers. So a block has 64 keys, and the
// consumers share them: each holds half of the columns of dk and dv, and computes S^T and dP^T of
// half of a tile's 64 queries. P^T and dS^T of all 64 are joined in shared memory, as factors of
// the three other products.
//
//     producer   warp 0   wait dy_free -> copy dy, delta, then dy_full;
//                         wait q_free -> copy q, lse, then q_full
//     consumer   wait q_full    S = k q^T starts;   wait dy_full    D = v dy^T starts
//                S is done      P = exp2(S - lse) to shared memory;  barrier P_FULL of both;
//                               dv += P^T dy starts
//                D is done      dS = P (D - delta) to shared memory;  barrier DS;
//                               dk += dS^T q, dq = dS k start
//                dv is done     dy_free
//                dk is done     q_free
//                dq is done     wait DQ_FREE, dq to shared memory, DQ_FULL
//
// With HS = 256 shared memory holds only one tile of q and of dy. The products that read these come
// first, so that the next tiles are in flight while dq is computed and stored. By a count of bytes
// the kernel is bound by shared memory: with HS = 256 a tile of 64 x 64 moves 544 KB, in 4,350
// cycles of 128 bytes. S and dP read 192 KB (each consumer reads all of k and v), the other
// products 144; writing and reading dq takes 128, all other writes 80. Tensor cores need 2,560
// cycles.
#include "sm90_backward.cuh"

namespace {
using namespace sm90;

constexpr int ROWS = 64, MINE = ROWS / CONSUMERS;             // queries per tile (keys per block), per consumer
template <int HS> constexpr int ROUNDS = HS > 192 ? 1 : 2;    // stages of the rings
template <int HS> using Rows = Tile<ROWS, HS, WIDTH<HS>>;

template <int HS> struct WideShared {
    Rows<HS> k, v, q[ROUNDS<HS>], dy[ROUNDS<HS>];
    // P^T has two buffers: a consumer may write P^T of the next tile while the other's product
    // reads this tile's. dS^T has one buffer: both consumers have read it when they pass P_FULL of
    // the next tile.
    Tile<ROWS, ROWS> p[2], ds;
    float4 dq[CONSUMERS][Half<HS>::COLUMNS / 8][WARPGROUP];
    alignas(128) float lse2[ROUNDS<HS>][ROWS], delta[ROUNDS<HS>][ROWS];
    uint64_t kv_full, q_full[ROUNDS<HS>], dy_full[ROUNDS<HS>], q_free[ROUNDS<HS>], dy_free[ROUNDS<HS>];
    TileCoord tile_coord;
    __device__ void init_rings() {
        for (int i = 0; i < ROUNDS<HS>; i++) {
            mbarrier_init(&q_full[i], 1);
            mbarrier_init(&dy_full[i], 1);
            mbarrier_init(&q_free[i], CONSUMERS * 4);    // each warp arrives once
            mbarrier_init(&dy_free[i], CONSUMERS * 4);
        }
    }
};

template <int HS> __device__ __forceinline__ void produce(WideShared<HS>& s, const CUtensorMap& kv,
                                                          const CUtensorMap& q, const CUtensorMap& dy,
                                                          const Backward& a, TileCoord p) {
    constexpr int bytes = ROWS * int(sizeof(float));
    mbarrier_arrive_expect(&s.kv_full, s.k.bytes + s.v.bytes);
    load(s.k, kv, p.b, p.tile * ROWS, a.k_head(p.kv_head), &s.kv_full);
    load(s.v, kv, p.b, p.tile * ROWS, a.v_head(p.kv_head), &s.kv_full);
    unsigned step = 0;
    for (int g = 0; g < p.group; g++)
#pragma unroll 1
        for (int t = p.first; t < p.first + p.tiles; t++, step++) {
            const RingStageOf<ROUNDS<HS>> at(step);
            const int64_t row = a.query_tile(p.b, p.head(g), t) * ROWS;
            mbarrier_wait(&s.dy_free[at.stage], !at.parity);    // the first round does not wait
            mbarrier_arrive_expect(&s.dy_full[at.stage], s.dy[0].bytes + bytes);
            load(s.dy[at.stage], dy, p.b, t * ROWS, p.head(g), &s.dy_full[at.stage]);
            bulk_load(s.delta[at.stage], a.delta + row, bytes, &s.dy_full[at.stage]);
            mbarrier_wait(&s.q_free[at.stage], !at.parity);
            mbarrier_arrive_expect(&s.q_full[at.stage], s.q[0].bytes + bytes);
            load(s.q[at.stage], q, p.b, t * ROWS, p.head(g), &s.q_full[at.stage]);
            bulk_load(s.lse2[at.stage], a.lse2 + row, bytes, &s.q_full[at.stage]);
        }
}

// Starts d = keys queries^T, for a consumer's queries from `first` on.
template <int HS> __device__ __forceinline__ void start_scores(float (&d)[MINE / 2], const Rows<HS>& keys,
                                                               const Rows<HS>& queries, int first) {
    wgmma_fence(d);
#pragma unroll
    for (int i = 0; i < HS; i += 16)
        wgmma<ALONG_K, ALONG_K>(d, keys.columns_as_k(0, i), queries.columns_as_k(first, i), i > 0);
    wgmma_commit();
}
// Starts d += a x: a is P^T or dS^T, x half of the columns of a query tile.
template <int HS, int n>
__device__ __forceinline__ void start_sum(float (&d)[n], const Tile<ROWS, ROWS>& a, const Rows<HS>& x, int column) {
    wgmma_fence(d);
#pragma unroll
    for (int i = 0; i < ROWS; i += 16) wgmma<ALONG_K, ALONG_MN>(d, a.columns_as_k(0, i), x.rows_as_k(i, column), true);
    wgmma_commit();
}
// Starts half of the columns of dq = dS k.
template <int HS, int n>
__device__ __forceinline__ void start_dq(float (&dq)[n], const Tile<ROWS, ROWS>& ds, const Rows<HS>& k, int column) {
    wgmma_fence(dq);
#pragma unroll
    for (int i = 0; i < ROWS; i += 16) wgmma<ALONG_MN, ALONG_MN>(dq, ds.rows_as_k(i, 0), k.rows_as_k(i, column), i > 0);
    wgmma_commit();
}

template <int HS, bool SHAPED>
__device__ __forceinline__ void consume(WideShared<HS>& s, const Backward& a, const TileCoord& p, int consumer) {
    constexpr int COLUMNS = Half<HS>::COLUMNS, n = MINE / 2;
    const int lane = threadIdx.x % 32, first = threadIdx.x % WARPGROUP / 32 * 16, mine = consumer * MINE;
    const int column = Half<HS>(consumer).column;
    const KeyMask view(a, p.b, p.tile * ROWS + first + lane / 4);
    float dk[COLUMNS / 2] = {}, dv[COLUMNS / 2] = {};

    mbarrier_wait(&s.kv_full, 0);
    const unsigned steps = unsigned(p.group * p.tiles);
    int t = p.first;
    for (unsigned step = 0; step < steps; step++) {
        const RingStageOf<ROUNDS<HS>> at(step);
        const int query = t * ROWS + mine;
        float S[n], D[n], P[n], dq[COLUMNS / 2];
        uint32_t pairs[n / 2];
        mbarrier_wait(&s.q_full[at.stage], at.parity);
        start_scores(S, s.k, s.q[at.stage], mine);
        mbarrier_wait(&s.dy_full[at.stage], at.parity);
        start_scores(D, s.v, s.dy[at.stage], mine);
        wgmma_wait<1>(S);
        if (SHAPED) apply_cap_tanh(S, a.scores);
        const float slope = SHAPED ? a.scores.alibi(p.head(int(step) / p.tiles)) : 0;
        const float behind = float(query + lane % 4 * 2 - view.key);
        auto exponentials = [&] {
            each_with<n>(s.lse2[at.stage] + mine, [&](int i, float lse) {
                if (SHAPED) lse += slope * distance<true>(behind, i);
                P[i] = exp2_approx(S[i] * a.scores.log2 - lse);
                if (i % 2) pairs[i / 2] = pack_bf16(P[i - 1], P[i]);
            });
        };
        // exponentials() is called in each branch: ptxas would wait for D where the branches join.
        if (!view.seen_by_all(query, MINE)) {
            view.hide(S, query);
            exponentials();
        } else exponentials();
        store_pairs(s.p[step % 2], pairs, first, mine);
        named_barrier(P_FULL, CONSUMERS * WARPGROUP);
        start_sum(dv, s.p[step % 2], s.dy[at.stage], column);
        wgmma_wait<1>(D);
        each_with<n>(s.delta[at.stage] + mine, [&](int i, float delta) {
            D[i] = (SHAPED ? P[i] * a.scores.cap_slope(S[i]) : P[i]) * (D[i] - delta);
            if (i % 2) pairs[i / 2] = pack_bf16(D[i - 1], D[i]);
        });
        store_pairs(s.ds, pairs, first, mine);
        named_barrier(DS, CONSUMERS * WARPGROUP);
        start_sum(dk, s.ds, s.q[at.stage], column);
        start_dq(dq, s.ds, s.k, column);
        wgmma_wait<2>(dv);
        if (lane == 0) mbarrier_arrive(&s.dy_free[at.stage]);
        wgmma_wait<1>(dk);
        if (lane == 0) mbarrier_arrive(&s.q_free[at.stage]);
        wgmma_wait<0>(dq);
        if (step > 0) named_barrier(DQ_FREE + consumer, WITH_ADDER);
        hand_over(s.dq[consumer], dq, 0);
        named_barrier_arrive(DQ_FULL + consumer, WITH_ADDER);
        if (++t == p.first + p.tiles) t = p.first;    // the next head of the group
    }
    // No product reads v after the last barrier DS, so the outputs reuse its memory.
    auto& rows = reinterpret_cast<Tile<ROWS, COLUMNS>*>(&s.v)[consumer];
    const int key = p.tile * ROWS + first;
    const int64_t stride = a.h.kv_row();
    bf16* to = a.dk(p.b, key, p.kv_head) + column;
    store_rows(to + a.h.NKV * HS, stride, a.keys - key, dv, {1, 1}, rows, first);
    store_rows(to, stride, a.keys - key, dk, {a.scores.scale, a.scores.scale}, rows, first);
}

template <int HS, bool SHAPED> __global__ void __launch_bounds__(THREADS, 1)
    backward_kernel(const __grid_constant__ CUtensorMap kv, const __grid_constant__ CUtensorMap q,
                    const __grid_constant__ CUtensorMap dy, const Backward a) {
    if constexpr (SM90A) run_block<HS, SHAPED, WideShared<HS>>(kv, q, dy, a);
}

}    // namespace

void sm90::backward_wide(bf16* dq, bf16* dkv, const bf16* dy, const bf16* y, const bf16* q, const bf16* kv,
                         const float* lse, int B, int S, Heads h) {
    auto of_size = [&]<int HS>() {
        backward<HS>(dq, dkv, dy, y, q, kv, lse, B, S, h, sizeof(WideShared<HS>),
                     [](auto SHAPED) { return backward_kernel<HS, SHAPED>; });
    };
    h.HS == 192 ? of_size.operator()<192>() : of_size.operator()<256>();
}

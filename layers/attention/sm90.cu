// sm90.cu - attention forward by wgmma and TMA, for sm_90 only. Dao et al. 2022, algorithm 1;
// overlapped as in Shah et al. 2024.
//
// A block computes 128 query rows of one head from tiles of BN keys, from the last visible tile
// (without spans, on the diagonal) to the left. Then it continues with other rows (row_order.h):
// there are as many blocks as multiprocessors, and the copies for the next rows begin before the
// current ones are finished. Warpgroup 0 is the producer: one thread copies q, and k and v tiles
// into rings of two. Warpgroups 1 and 2 are consumers with 64 rows each; scores, probabilities and
// output stay in their registers, and y is stored from there. For tile i:
//
//     producer   wait k_free -> copy k[i], then k_full;   wait v_free -> copy v[i], then v_full
//     consumer   wait k_full, wait for TURN    S = q k[i]^T starts
//                wait v_full                   O += P v[i-1] starts;  the other's TURN
//                S is done    k_free;          softmax of S, while O runs
//                O is done    v_free;          O *= exp(old maximum - new), P = S in bf16
//
// After starting its products a consumer arrives at the other's TURN and computes its softmax.
// Products in flight are in brackets:
//
//     consumer 0   [S0] softmax 0  [S1 O0] softmax 1  [S2 O1] softmax 2  ...  [O]  y, lse  [S0] ...
//     consumer 1        [S0] softmax 0  [S1 O0] softmax 1  [S2 O1] softmax 2  ...  [O]  y, lse ...
//
// FLOPs: 4 HS for each pair of a query and a key in the visited tiles; for causal rows of 1024 and
// tiles of 128 x 128, 0.89 of these pairs are visible. (With HS <= 64, registers allow three
// consumers, so tiles of 192 x 128. By the model of dev/gpu_time.py these take longer: by 12 % for
// rows of 1024, where a smaller part of their pairs is visible, by 1 % for 16384.) Per clock, an SM
// does 16 exponentials and 4096 FLOPs of products, that is 256 FLOPs for each exponential. So at HS
// = 64 exponentials take as long as products, at 128 half as long, at 32 twice as long. Bytes: qkv
// and y once (k, v of a head stay in L2 for its blocks), 4 for lse.
#include "row_order.h"
#include "sm90.cuh"

#include <algorithm>
#include <map>
#include <tuple>

namespace {
using namespace sm90;

// BM: queries of a tile. BN: keys of a tile, the most that registers (S, P, O) and shared memory
// (q, k, v) hold.
constexpr int BM = 64 * CONSUMERS;
template <int HS> constexpr int BN = HS <= 128 ? 128 : HS <= 192 ? 112 : 80;
constexpr int PRODUCER_REGISTERS = 40, CONSUMER_REGISTERS = 232;
static_assert(WARPGROUP * (PRODUCER_REGISTERS + CONSUMERS * CONSUMER_REGISTERS) <= REGISTERS);

struct Forward {
    bf16* y;
    float* lse;
    int S, keys;           // per sequence
    int k_head, v_head;    // first key head and value head in kv's tensor map
    RowOrder order;
    Heads h;
    Scores scores;
};
constexpr int64_t L2_BYTES = 16 << 20;    // a third of an H100's; halves may duplicate

template <int HS> struct ForwardShared {
    Tile<BM, HS> q;
    Tile<BN<HS>, HS> k[STAGES], v[STAGES];
    int rows;    // index of q's rows; all() or more: end
    uint64_t q_full, q_free, k_full[STAGES], k_free[STAGES], v_full[STAGES], v_free[STAGES];
};
static_assert(sizeof(ForwardShared<128>) <= SHARED_BYTES && sizeof(ForwardShared<192>) <= SHARED_BYTES &&
              sizeof(ForwardShared<256>) <= SHARED_BYTES);

// Named barriers. TURN + c: consumer c may start its products.
enum { TURN = 1 };

// The i-th tile of queries: rows from `row` on, `tiles` tiles of BN keys from tile `last` down.
template <int BN> struct TileCoord {
    int b, head, row, last, tiles;
    __device__ TileCoord(const Forward& a, int i) {
        const auto [all_heads, tile] = a.order[i];
        head = all_heads % a.h.NH, b = all_heads / a.h.NH, row = tile * BM;
        // Without spans a row's last visible key is at the row's own position, which may lie beyond
        // the sequence.
        last = (min(keys_of(a.h, a.S, b, row + BM - 1).to, a.keys) - 1) / BN;
        tiles = last + 1 - keys_of(a.h, a.S, b, row).from / BN;
    }
};

// Number of tiles of rows handed out. Each block requests tiles until none are left, so its last
// request is in vain; the very last one resets the number to 0. A block that starts late, because
// another kernel has its multiprocessor, finds none left.
__device__ unsigned taken;
__device__ inline int take_rows(const Forward& a) { return int(atomicInc(&taken, a.order.all() + gridDim.x - 1)); }

template <int HS> __device__ __forceinline__ void produce(ForwardShared<HS>& s, const CUtensorMap& q,
                                                          const CUtensorMap& kv, const Forward& a) {
    constexpr int BN = ::BN<HS>;
    unsigned step = 0;
    for (int n = 0, i = take_rows(a);; n++) {
        auto take_q = [&] {    // a ring's first round does not wait
            mbarrier_wait(&s.q_free, !(n % 2));
            s.rows = i;
        };
        if (i >= a.order.all()) {
            take_q();
            return mbarrier_arrive(&s.q_full);
        }
        const TileCoord<BN> p(a, i);
        const int kv_head = p.head / (a.h.NH / a.h.NKV), k_head = a.k_head + kv_head, v_head = a.v_head + kv_head;
#pragma unroll 1    // unrolled, the loop spills registers
        for (int key = p.last * BN; key > (p.last - p.tiles) * BN; key -= BN, step++) {
            const RingStage at(step);
            mbarrier_wait(&s.k_free[at.stage], !at.parity);
            mbarrier_arrive_expect(&s.k_full[at.stage], s.k[0].bytes);
            load(s.k[at.stage], kv, p.b, key, k_head, &s.k_full[at.stage]);
            if (key == p.last * BN) {    // after k, whose stage is free earlier
                take_q();
                mbarrier_arrive_expect(&s.q_full, s.q.bytes);
                load(s.q, q, p.b, p.row, p.head, &s.q_full);
                i = take_rows(a);
            }
            mbarrier_wait(&s.v_free[at.stage], !at.parity);
            mbarrier_arrive_expect(&s.v_full[at.stage], s.v[0].bytes);
            load(s.v[at.stage], kv, p.b, key, v_head, &s.v_full[at.stage]);
        }
    }
}

// Starts S = q k^T for the rows of q from `first` on.
template <int HS, int BN> __device__ __forceinline__ void start_scores(float (&S)[BN / 2], const Tile<BM, HS>& q,
                                                                       int first, const Tile<BN, HS>& k) {
    if constexpr (HS > 128) unknown(first);    // else descriptors are hoisted and spill
    wgmma_fence(S);
#pragma unroll
    for (int d = 0; d < HS; d += 16) wgmma<ALONG_K, ALONG_K>(S, q.columns_as_k(first, d), k.columns_as_k(0, d), d > 0);
    wgmma_commit();
}
// Starts O += P v.
template <int HS, int BN>
__device__ __forceinline__ void start_output(float (&O)[HS / 2], uint32_t (&P)[BN / 4], const Tile<BN, HS>& v) {
    wgmma_fence(O, P);
#pragma unroll
    for (int key = 0; key < BN; key += 16) wgmma<ALONG_MN>(O, P + key / 4, v.rows_as_k(key, 0));
    wgmma_commit();
}

// Softmax of a thread's two rows over the tiles so far. A row may see no key of the first tile; as
// top is finite, even then no difference of scores is NaN.
struct Softmax {
    float top[2] = {-1e30f, -1e30f};
    float sum[2] = {0, 0};    // over this thread's columns
    float shrink[2];          // factor for the output so far
};
__device__ __forceinline__ float quad_sum(float x) {
    x += __shfl_xor_sync(0xffffffff, x, 1);
    return x + __shfl_xor_sync(0xffffffff, x, 2);
}

// S = exp(scale S - its row's maximum)
template <int n> __device__ __forceinline__ void softmax(float (&S)[n], Softmax& x, float scale_log2) {
#pragma unroll
    for (int r = 0; r < 2; r++) {
        float top = x.top[r], sum = 0;
#pragma unroll
        for (int i = 2 * r; i < n; i += 4) top = fmaxf(top, fmaxf(S[i], S[i + 1]));
        top = warp_max<4>(top);
        const float shift = top * scale_log2;
        // Subtracts, then multiplies: if both tops are -1e30, this is 0. As an FMA, x.top *
        // scale_log2 - shift would be the rounding error of shift, about 1e22.
        x.shrink[r] = exp2_approx((x.top[r] - top) * scale_log2);
        x.top[r] = top;
#pragma unroll
        for (int i = 2 * r; i < n; i += 4)
#pragma unroll
            for (int c = 0; c < 2; c++) sum += S[i + c] = exp2_approx(S[i + c] * scale_log2 - shift);
        x.sum[r] = x.sum[r] * x.shrink[r] + sum;
    }
}

template <int n> __device__ __forceinline__ void pack(uint32_t (&P)[n], const float (&S)[2 * n]) {
#pragma unroll
    for (int i = 0; i < n; i++) P[i] = pack_bf16(S[2 * i], S[2 * i + 1]);
}

// Keys visible to the two rows of a consumer's thread.
struct RowMask {
    int row;         // the first row; the second is row + 8
    Span rows[2];    // keys visible to each row
    Span all;        // keys visible to all rows of the warp
    __device__ RowMask(const Forward& a, int b, int row) : row(row) {
        for (int r = 0; r < 2; r++) rows[r] = keys_of(a.h, a.S, b, row + 8 * r);
        all = {__shfl_sync(0xffffffff, rows[1].from, 31), __shfl_sync(0xffffffff, rows[0].to, 0)};
    }
    // Whether all rows of the warp see n keys from `key` on: the first and the last row decide, as
    // ends of spans never decrease. Uniform for the warp, whose lanes exchange data in the softmax.
    __device__ bool sees_all(int key, int n) const { return key >= all.from && key + n <= all.to; }
    template <int n> __device__ __forceinline__ void hide(float (&S)[n], int key) const {
        key += threadIdx.x % 4 * 2;
#pragma unroll
        for (int i = 0; i < n; i++) {
            const int r = i / 2 % 2, k = key + i / 4 * 8 + i % 2;
            if (k < rows[r].from || k >= rows[r].to) S[i] = -INFINITY;
        }
    }
};

// Turns a tile's products into scores in log2 units.
template <int n> __device__ __forceinline__ void shape(float (&S)[n], const Scores& scores, const PositionBias& slope,
                                                       int row, int key) {
    const float first = float(row - key - int(threadIdx.x) % 4 * 2);
    apply_cap_tanh(S, scores);
#pragma unroll
    for (int i = 0; i < n; i++) S[i] = scores.score(S[i], slope, distance<false>(first, i));
}

// Transposes 4 x 4 words among the four lanes of a row. Before, each lane has one word of each of
// four 16-byte pieces; afterwards lane i has piece i.
__device__ __forceinline__ void exchange(uint32_t (&x)[4]) {
#pragma unroll
    for (int apart = 1; apart <= 2; apart *= 2)
#pragma unroll
        for (int i = 0; i < 4; i++) {
            if (i & apart) continue;
            const bool upper = threadIdx.x & apart;
            const uint32_t got = __shfl_xor_sync(0xffffffff, upper ? x[i] : x[i + apart], apart);
            (upper ? x[i] : x[i + apart]) = got;
        }
}

// Writes y and lse of a warp's 16 rows, from row `first` on. unit * x.top is in log2 units.
template <int HS> __device__ __forceinline__ void finish(const Forward& a, int b, int head, int first,
                                                         const float (&O)[HS / 2], const Softmax& x, float unit) {
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int r = 0; r < 2; r++) {
        const float sum = quad_sum(x.sum[r]), scale = 1 / sum;
        const int row = first + lane / 4 + 8 * r;
        if (lane % 4 == 0 && row < a.S)
            a.lse[(int64_t(b) * a.h.NH + head) * a.S + row] = (x.top[r] * unit + log2f(sum)) * LN2;
        bf16* to = a.y + ((int64_t(b) * a.S + row) * a.h.NH + head) * HS + lane % 4 * 8;    // y[b,row,head,:]
#pragma unroll
        for (int column = 0; column < HS; column += 32) {
            Vec<uint32_t> pieces;
#pragma unroll
            for (int i = 0; i < 4; i++) {
                const float* pair = O + column / 2 + 4 * i + 2 * r;
                pieces.v[i] = pack_bf16(pair[0] * scale, pair[1] * scale);
            }
            exchange(pieces.v);
            if (row < a.S) store(reinterpret_cast<uint32_t*>(to + column), pieces);
        }
    }
}

// Barriers between the consumers, and between consumers and producer.
template <int HS> struct Consumer {
    ForwardShared<HS>& s;
    int consumer, lane;
    __device__ void my_turn() const { named_barrier(TURN + consumer, 2 * WARPGROUP); }
    __device__ void your_turn() const { named_barrier_arrive(TURN + (consumer ^ 1), 2 * WARPGROUP); }
    __device__ void arrive(uint64_t* free) const {
        if (lane == 0) mbarrier_arrive(free);
    }
};

// Computes y of the loaded rows of q. step: number of tiles of keys that the block has used before.
// It gives the ring stage of these rows' first tile.
template <int HS, bool SHAPED> __device__ __forceinline__ void consume(const Consumer<HS>& my, const Forward& a,
                                                                       const TileCoord<BN<HS>>& p, unsigned step) {
    constexpr int BN = ::BN<HS>;
    ForwardShared<HS>& s = my.s;
    const int first = my.consumer * 64, warp_row = first + threadIdx.x % WARPGROUP / 32 * 16;
    const RowMask view(a, p.b, p.row + warp_row + my.lane / 4);
    float S[BN / 2], O[HS / 2] = {};
    uint32_t P[BN / 4];
    Softmax x;
    const PositionBias slope = {SHAPED ? a.scores.alibi(p.head) : 0, nullptr, 0};
    const float unit = SHAPED ? 1 : a.scores.log2;
    auto scores_there = [&](int i, RingStage at) {
        my.arrive(&s.k_free[at.stage]);
        if (i + 1 == p.tiles) my.arrive(&s.q_free);
        if (SHAPED) shape(S, a.scores, slope, view.row, (p.last - i) * BN);
    };

    const RingStage begin(step);
    mbarrier_wait(&s.k_full[begin.stage], begin.parity);
    my.my_turn();
    start_scores(S, s.q, first, s.k[begin.stage]);
    my.your_turn();
    wgmma_wait<0>(S);
    scores_there(0, begin);
    view.hide(S, p.last * BN);
    softmax(S, x, unit);
    pack(P, S);
    for (int i = 1; i < p.tiles; i++) {
        const RingStage at(step + i), before(step + i - 1);
        const int key = (p.last - i) * BN;
        mbarrier_wait(&s.k_full[at.stage], at.parity);
        my.my_turn();
        start_scores(S, s.q, first, s.k[at.stage]);
        mbarrier_wait(&s.v_full[before.stage], before.parity);
        start_output(O, P, s.v[before.stage]);
        my.your_turn();
        wgmma_wait<1>(S);
        scores_there(i, at);
        // softmax() is called in each branch, because ptxas would wait for O where the branches
        // join.
        if (view.sees_all(key, BN)) softmax(S, x, unit);
        else {
            view.hide(S, key);
            softmax(S, x, unit);
        }
        wgmma_wait<0>(O, P);
        my.arrive(&s.v_free[before.stage]);
#pragma unroll
        for (int o = 0; o < HS / 2; o++) O[o] *= x.shrink[o / 2 % 2];
        pack(P, S);
    }
    const RingStage end(step + p.tiles - 1);
    mbarrier_wait(&s.v_full[end.stage], end.parity);
    start_output(O, P, s.v[end.stage]);
    wgmma_wait<0>(O, P);
    my.arrive(&s.v_free[end.stage]);
    finish<HS>(a, p.b, p.head, p.row + warp_row, O, x, unit);
}

template <int HS, bool SHAPED> __global__ void __launch_bounds__(THREADS, 1)
    forward_kernel(const __grid_constant__ CUtensorMap q, const __grid_constant__ CUtensorMap kv, const Forward a) {
    if constexpr (SM90A) {
        auto& s = dynamic_shared<ForwardShared<HS>>();
        if (threadIdx.x == 0) {
            tensor_map_prefetch(q), tensor_map_prefetch(kv);
            mbarrier_init(&s.q_full, 1);
            mbarrier_init(&s.q_free, CONSUMERS * 4);    // each warp arrives once
            for (int i = 0; i < STAGES; i++) {
                mbarrier_init(&s.k_full[i], 1);
                mbarrier_init(&s.v_full[i], 1);
                mbarrier_init(&s.k_free[i], CONSUMERS * 4);
                mbarrier_init(&s.v_free[i], CONSUMERS * 4);
            }
            mbarrier_init_fence();
        }
        __syncthreads();
        const int warpgroup = uniform_warpgroup();
        if (warpgroup == 0) {
            registers_give<PRODUCER_REGISTERS>();
            if (threadIdx.x == 0) produce(s, q, kv, a);
        } else {
            registers_take<CONSUMER_REGISTERS>();
            const Consumer<HS> my{s, warpgroup - 1, int(threadIdx.x) % 32};
            if (my.consumer == 1) my.your_turn();
            unsigned step = 0;
            for (int n = 0;; n++) {
                mbarrier_wait(&s.q_full, n % 2);
                const int rows = __shfl_sync(0xffffffff, my.lane == 0 ? s.rows : 0, 0);
                if (rows >= a.order.all()) break;
                const TileCoord<BN<HS>> p(a, rows);
                consume<HS, SHAPED>(my, a, p, step);
                step += p.tiles;
            }
            if (my.consumer == 0) my.my_turn();    // the other arrived at TURN once more
        }
    }
}

template <int HS> void forward(bf16* y, float* lse, const bf16* q, const bf16* kv, int B, int S, Heads h) {
    const int keys = h.keys_of(S);
    const CUtensorMap& q_map = tensor_map(q, B, S, h.q_row() / HS, HS, BM);
    const CUtensorMap& kv_map = tensor_map(kv, B, keys, h.kv_row() / HS, HS, BN<HS>);
    const int group = h.NH / h.NKV;    // heads that share keys and values
    const int64_t fit = L2_BYTES / (2 * int64_t(keys) * HS * int64_t(sizeof(bf16)));
    const int together = int(std::clamp<int64_t>(fit, 1, B * h.NKV)) * group;
    const Forward a{y,
                    lse,
                    S,
                    keys,
                    h.first_k() / HS,
                    h.first_v() / HS,
                    {B * h.NH, int(ceil_div(S, BM)), together},
                    checked(h, S),
                    Scores(h)};
    const unsigned blocks = unsigned(std::min(a.order.all(), cuda_multiprocessors()));
    for_shape(a.scores, [&](auto SHAPED) {
        launch(forward_kernel<HS, SHAPED>, {blocks, THREADS, sizeof(ForwardShared<HS>)}, q_map, kv_map, a);
    });
}

}    // namespace

// ---- tensor maps --------------------------------------------------------------------------------

namespace sm90 {

// Finds the driver's encoder through the runtime, because linking it would require the driver.
static auto encoder() {
    void* function = nullptr;
    cudaDriverEntryPointQueryResult found;
    const cudaError_t error =
        cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &function, 12000, cudaEnableDefault, &found);
    if (error != cudaSuccess || found != cudaDriverEntryPointSuccess) function = nullptr;
    return reinterpret_cast<decltype(&cuTensorMapEncodeTiled)>(function);
}

// Descriptors are cached: a model needs one or two per layer, equal at every step.
const CUtensorMap& tensor_map(const bf16* x, int B, int S, int heads, int HS, int rows, int width) {
    static const auto encode = encoder();
    static std::map<std::tuple<const bf16*, int, int, int, int, int, int>, CUtensorMap> known;
    const auto [entry, is_new] = known.try_emplace({x, B, S, heads, HS, rows, width});
    CUtensorMap& map = entry->second;
    if (!is_new) return map;
    const cuuint64_t head = cuuint64_t(HS) * sizeof(bf16), position = head * cuuint64_t(heads);
    const cuuint64_t size[4] = {cuuint64_t(HS), cuuint64_t(heads), cuuint64_t(S), cuuint64_t(B)};
    const cuuint64_t stride[3] = {head, position, position * cuuint64_t(S)};
    const cuuint32_t box[4] = {cuuint32_t(width), 1, cuuint32_t(rows), 1}, step[4] = {1, 1, 1, 1};
    const auto swizzle = width == 64 ? CU_TENSOR_MAP_SWIZZLE_128B : CU_TENSOR_MAP_SWIZZLE_64B;
    CHECK(encode && encode(&map, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, 4, const_cast<bf16*>(x), size, stride, box, step,
                           CU_TENSOR_MAP_INTERLEAVE_NONE, swizzle, CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
                           CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE) == CUDA_SUCCESS,
          "no tensor map of (%d,%d,%d,%d)", B, S, heads, HS);
    return map;
}

}    // namespace sm90

// ---- entries ------------------------------------------------------------------------------------

// Kernels built for sm_90 instead of sm_90a are empty, and need almost no registers.
static bool has_kernels() {
    cudaFuncAttributes kernel;
    const bool known = cudaFuncGetAttributes(&kernel, forward_kernel<64, false>) == cudaSuccess;
    (void)cudaGetLastError();    // clears the error if built without sm_90
    return known && kernel.numRegs > 32;
}
bool attention_has_sm90() {
    static const bool works = sm90::encoder() && has_kernels();
    return works && cuda_capability() == 90;
}
void attention_forward_sm90(bf16* y, float* lse, const bf16* q, const bf16* kv, int B, int S, Heads h) {
    switch (h.HS) {
        case 32: return forward<32>(y, lse, q, kv, B, S, h);
        case 64: return forward<64>(y, lse, q, kv, B, S, h);
        case 96: return forward<96>(y, lse, q, kv, B, S, h);
        case 128: return forward<128>(y, lse, q, kv, B, S, h);
        case 192: return forward<192>(y, lse, q, kv, B, S, h);
        case 256: return forward<256>(y, lse, q, kv, B, S, h);
    }
    CHECK(false, "attention_forward_sm90: heads of size %d", h.HS);
}

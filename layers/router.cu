// router.cu - the choice of experts, the order of rows by expert, and the router's gradient.
//
// A warp has a position: each lane has the logits of experts lane, lane + 32, ... in registers. The
// K choices are K rounds of a maximum over the warp, of (logit, lower index first), so ties have
// one order. Bound by instructions: about 15 a round, and 20 for every 32 experts; a position's E
// elements and 16 K bytes are too few for memory to matter.
//
// Rows are ordered by a counting sort without atomics on memory. Parts of 128 positions of one
// sequence count their rows of each expert; a warp for each expert turns the counts into the parts'
// first permuted rows, and one warp computes the experts' offsets; then each part writes its rows
// behind the earlier ones: a thread for each expert reads all of the part's choices in order.
// Totals are sums of parts' sums, in order and in double: the bits are reproducible.
#include "activation.cuh"

namespace {
constexpr int WARPS = 8, PART = RouterScratch::PART;

// A position's scores: score[j] is that of expert lane + 32 j. score * to_share: the score divided
// by the sum of all scores.
template <int R> struct Scores {
    float z[R], score[R], to_share, lse;
    template <class T> __device__ Scores(const T* logits, const Router& r) {
        const int lane = threadIdx.x % 32;
        float top = -INFINITY, sum = 0, gates = 0;
#pragma unroll
        for (int j = 0; j < R; j++) {
            z[j] = lane + 32 * j < r.E ? to_float(logits[lane + 32 * j]) : -INFINITY;
            top = fmaxf(top, z[j]);
        }
        top = warp_max(top);
#pragma unroll
        for (int j = 0; j < R; j++) {
            score[j] = lane + 32 * j < r.E ? expf(z[j] - top) : 0;
            sum += score[j];
        }
        sum = warp_sum(sum);
        lse = top + logf(sum);
        to_share = 1;
#pragma unroll
        for (int j = 0; j < R; j++) {
            if (!r.sigmoid) score[j] /= sum;
            else score[j] = lane + 32 * j < r.E ? sigmoid(z[j]).s : 0;
            gates += score[j];
        }
        if (r.sigmoid) to_share = 1 / warp_sum(gates);
    }
    // Rank of an expert: larger for a larger logit or, at ties, a lower index. NaN comes last.
    __device__ uint64_t rank(int j) const {
        const uint32_t bits = __float_as_uint(z[j] + 0.0f);    // -0 becomes 0
        const uint32_t rising = z[j] != z[j] ? 0 : bits >> 31 ? ~bits : bits | 0x80000000u;
        return uint64_t(rising) << 32 | ~uint32_t(threadIdx.x % 32 + 32 * j);
    }
    // The largest rank below `last`.
    __device__ uint64_t next(uint64_t last, const Router& r) const {
        uint64_t best = 0;
#pragma unroll
        for (int j = 0; j < R; j++)
            if (const uint64_t own = rank(j); int(threadIdx.x % 32) + 32 * j < r.E && own < last && own > best)
                best = own;
#pragma unroll
        for (int bit = 16; bit; bit >>= 1) {
            const uint64_t other = __shfl_xor_sync(0xffffffff, best, bit);
            best = other > best ? other : best;
        }
        return best;
    }
    __device__ float of(int expert) const {    // all lanes get it
        float s = 0;
#pragma unroll
        for (int j = 0; j < R; j++)
            if (expert == int(threadIdx.x % 32) + 32 * j) s = score[j];
        return __shfl_sync(0xffffffff, s, expert % 32);
    }
};
// Calls f(R), R an integral constant with 32 R >= E.
template <class F> void for_experts(int E, F f) {
    CHECK(E <= Router::MAX_EXPERTS, "%d experts: at most %d", E, Router::MAX_EXPERTS);
    if (E <= 32) f(std::integral_constant<int, 1>());
    else if (E <= 64) f(std::integral_constant<int, 2>());
    else if (E <= 128) f(std::integral_constant<int, 4>());
    else if (E <= 256) f(std::integral_constant<int, 8>());
    else f(std::integral_constant<int, 16>());
}

// ---- forward ------------------------------------------------------------------------------------

// router_forward's scratch; RouterScratch has the layout.
struct RouterBuffers {
    int parts, per_sequence;
    int* part_rows;     // (E,parts): rows; later first permuted rows
    float* shares;      // (E,parts)
    double* squares;    // (parts)
    int* rows;          // (E)
    double* balance;    // (E)
    RouterBuffers(const RouterScratch& s, char* at)
        : parts(s.parts), per_sequence(s.per_sequence), part_rows(reinterpret_cast<int*>(at + s.part_rows)),
          shares(reinterpret_cast<float*>(at + s.shares)), squares(reinterpret_cast<double*>(at + s.squares)),
          rows(reinterpret_cast<int*>(at + s.rows)), balance(reinterpret_cast<double*>(at + s.balance)) {}
    __device__ int64_t first(int part, int S) const {    // the part's first position
        return int64_t(part / per_sequence) * S + part % per_sequence * PART;
    }
    __device__ int positions(int part, int S) const { return min(PART, S - part % per_sequence * PART); }
};

// Computes a part's choices, factors, counts and partial sums.
template <class T, int R> __global__ void __launch_bounds__(WARPS * 32)
    choose(float* factors, int* expert, RouterBuffers kept, const T* logits, Router r, int S, bool totals) {
    SHARED(int[32 * R], count);
    SHARED(float[WARPS][32 * R], chosen);    // scores; then each warp's sums of shares
    SHARED(double[WARPS], squares);
    const int part = blockIdx.x, lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    for (int e = threadIdx.x; e < 32 * R; e += WARPS * 32) count[e] = 0;
    __syncthreads();
    float shares[R] = {};
    double square = 0;
    for (int i = warp; i < kept.positions(part, S); i += WARPS) {
        const int64_t n = kept.first(part, S) + i;
        const Scores<R> s(logits + n * r.E, r);
        float sum = 0;
        uint64_t last = ~uint64_t(0);
        for (int k = 0; k < r.K; k++) {
            last = s.next(last, r);
            const int e = int(~uint32_t(last));
            const float score = s.of(e);
            sum += score;
            if (lane == 0) {
                expert[n * r.K + k] = e, chosen[warp][k] = score;
                atomicAdd(&count[e], 1);
            }
        }
        __syncwarp();
        const float factor = r.normalise ? 1 / sum : 1;
        for (int k = lane; k < r.K; k += 32) factors[n * r.K + k] = chosen[warp][k] * factor;
        __syncwarp();    // the next position's scores overwrite them
#pragma unroll
        for (int j = 0; j < R; j++) shares[j] += s.score[j] * s.to_share;
        square += double(s.lse) * double(s.lse);
    }
#pragma unroll
    for (int j = 0; j < R; j++) chosen[warp][lane + 32 * j] = shares[j];
    if (lane == 0) squares[warp] = square;
    __syncthreads();
    for (int e = threadIdx.x; e < r.E; e += WARPS * 32) {
        kept.part_rows[int64_t(e) * kept.parts + part] = count[e];
        if (!totals) continue;
        float sum = 0;
        for (int w = 0; w < WARPS; w++) sum += chosen[w][e];
        kept.shares[int64_t(e) * kept.parts + part] = sum;
    }
    if (threadIdx.x != 0) return;
    double sum = 0;
    for (int w = 0; w < WARPS; w++) sum += squares[w];
    kept.squares[part] = sum;
}

// A warp computes, for one expert, the first permuted row of each part, and rows per sequence.
__global__ void order_parts(int* counts, RouterBuffers kept, int E, int B, int S, bool totals) {
    const int lane = threadIdx.x % 32, e = int(blockIdx.x * (blockDim.x / 32) + threadIdx.x / 32);
    if (e >= E) return;
    int* part_rows = kept.part_rows + int64_t(e) * kept.parts;
    const float* shares = kept.shares + int64_t(e) * kept.parts;
    int all = 0;
    for (int from = 0; from < kept.parts; from += 32) {
        const int part = from + lane, own = part < kept.parts ? part_rows[part] : 0, upto = warp_inclusive_sum(own);
        if (part < kept.parts) part_rows[part] = all + upto - own;
        all += __shfl_sync(0xffffffff, upto, 31);
    }
    __syncwarp();    // lanes read others' writes
    double balance = 0;
    for (int b = lane; b < B; b += 32) {
        const int from = b * kept.per_sequence, to = from + kept.per_sequence;
        const int n = (to < kept.parts ? part_rows[to] : all) - part_rows[from];
        counts[int64_t(b) * E + e] = n;
        double share = 0;
        for (int part = from; part < to && totals; part++) share += double(shares[part]);
        balance += double(n) / S * (share / S);
    }
    balance = warp_sum(balance);
    if (lane == 0) kept.rows[e] = all, kept.balance[e] = balance;
}

// Computes the experts' offsets and the totals, by one warp.
__global__ void order_experts(int* offsets, double* totals, RouterBuffers kept, Router r) {
    const int lane = threadIdx.x;
    int all = 0;
    for (int from = 0; from < r.E; from += 32) {
        const int e = from + lane, own = e < r.E ? kept.rows[e] : 0, upto = warp_inclusive_sum(own);
        if (e < r.E) offsets[e] = all + upto - own;
        all += __shfl_sync(0xffffffff, upto, 31);
    }
    if (lane == 0) offsets[r.E] = all;
    if (!totals) return;
    double balance = 0, squares = 0;
    for (int e = lane; e < r.E; e += 32) {
        totals[e] += kept.rows[e];
        balance += kept.balance[e];
    }
    for (int part = lane; part < kept.parts; part += 32) squares += kept.squares[part];
    balance = warp_sum(balance), squares = warp_sum(squares);
    if (lane != 0) return;
    totals[r.E] += double(r.E) / r.K * balance;
    totals[r.E + 1] += squares;
}

// Writes a part's rows to their permuted rows, in order: a thread for each expert.
constexpr int STAGED = 1024;
__global__ void permute_rows(int* permuted_row, int* row, const int* expert, const int* offsets, RouterBuffers kept,
                             Router r, int S) {
    SHARED(int[STAGED], choice);
    const int part = blockIdx.x, e = threadIdx.x, n = kept.positions(part, S) * r.K;
    const int64_t first = kept.first(part, S) * r.K;
    int at = e < r.E ? offsets[e] + kept.part_rows[int64_t(e) * kept.parts + part] : 0;
    for (int from = 0; from < n; from += STAGED) {
        const int staged = min(STAGED, n - from);
        __syncthreads();    // the previous choices have been used
        for (int i = threadIdx.x; i < staged; i += blockDim.x) choice[i] = expert[first + from + i];
        __syncthreads();
#pragma unroll 8
        for (int i = 0; i < staged; i++)
            if (choice[i] == e) {
                permuted_row[first + from + i] = at;
                row[at++] = int(first + from + i);
            }
    }
}

template <class T>
void router_forward(float* factors, Routes to, double* totals, const T* logits, Router r, int B, int S) {
    const RouterScratch scratch(B, S, r.E);
    const RouterBuffers kept(scratch, static_cast<char*>(cuda_scratch(scratch.bytes)));
    const unsigned parts = unsigned(kept.parts), threads = unsigned(r.E < 128 ? 128 : round_up(r.E, 32));
    for_experts(r.E, [&](auto R) {
        launch(choose<T, R>, {parts, WARPS * 32}, factors, to.expert, kept, logits, r, S, totals != nullptr);
    });
    launch(order_parts, {unsigned(ceil_div(r.E, 4)), 128}, to.counts, kept, r.E, B, S, totals != nullptr);
    launch(order_experts, {1, 32}, to.offsets, totals, kept, r);
    launch(permute_rows, {parts, threads}, to.permuted_row, to.row, to.expert, to.offsets, kept, r, S);
}

// ---- backward -----------------------------------------------------------------------------------

// A warp has a position. balance_slope: d balance / d share of an expert, per row of the expert.
template <class T, int R> __global__ void __launch_bounds__(WARPS * 32)
    router_backward_kernel(T* dlogits, const float* dfactors, const int* expert, const int* counts, const T* logits,
                           Router r, float balance_slope, float z, int N, int S) {
    const int lane = threadIdx.x % 32;
    const int64_t n = blockIdx.x * int64_t(WARPS) + threadIdx.x / 32;
    if (n >= N) return;
    const Scores<R> s(logits + n * r.E, r);
    float dw[R] = {};
    uint32_t taken = 0;    // bit j: expert lane + 32 j is chosen
    for (int from = 0; from < r.K; from += 32) {
        const bool any = from + lane < r.K;
        const int mine = any ? expert[n * r.K + from + lane] : 0;
        const float d = any ? dfactors[n * r.K + from + lane] : 0;
        for (int k = 0; k < min(32, r.K - from); k++) {
            const int e = __shfl_sync(0xffffffff, mine, k);
            const float of_e = __shfl_sync(0xffffffff, d, k);
            if (e % 32 != lane) continue;
            taken |= 1u << e / 32;
#pragma unroll
            for (int j = 0; j < R; j++)
                if (j == e / 32) dw[j] = of_e;
        }
    }
    float chosen = 0, dot = 0, mean_share = 0, mean_score = 0, slope[R];
#pragma unroll
    for (int j = 0; j < R; j++) {
        const int e = lane + 32 * j;
        if (taken >> j & 1) chosen += s.score[j], dot += s.score[j] * dw[j];
        slope[j] = e < r.E ? balance_slope * float(counts[n / S * r.E + e]) : 0;
        mean_share += s.score[j] * s.to_share * slope[j];
    }
    mean_share = warp_sum(mean_share);
    const float factor = r.normalise ? 1 / warp_sum(chosen) : 1;
    const float mean = r.normalise ? warp_sum(dot) * factor : 0;
#pragma unroll
    for (int j = 0; j < R; j++) {
        slope[j] = (slope[j] - mean_share) * s.to_share + (taken >> j & 1 ? (dw[j] - mean) * factor : 0);
        mean_score += s.score[j] * slope[j];
    }
    if (!r.sigmoid) mean_score = warp_sum(mean_score);
#pragma unroll
    for (int j = 0; j < R; j++) {
        if (lane + 32 * j >= r.E) continue;
        const float of_score = r.sigmoid ? sigmoid(s.z[j]).slope * slope[j] : s.score[j] * (slope[j] - mean_score);
        dlogits[n * r.E + lane + 32 * j] = from_float<T>(of_score + 2 * z * s.lse * expf(s.z[j] - s.lse));
    }
}

template <class T> void router_backward(T* dlogits, const float* dfactors, Routes routes, const T* logits, Router r,
                                        float balance, float z, int B, int S) {
    const int N = B * S;
    const float balance_slope = balance * float(r.E) / float(r.K) / float(S);
    for_experts(r.E, [&](auto R) {
        launch(router_backward_kernel<T, R>, {unsigned(ceil_div(N, WARPS)), WARPS * 32}, dlogits, dfactors,
               routes.expert, routes.counts, logits, r, balance_slope, z, N, S);
    });
}

const CudaRegistration entries([]<class T>(Ops<T>& o, Dtype) {
    o.router_forward = router_forward<T>;
    o.router_backward = router_backward<T>;
});
}    // namespace

// simt_backward.cu - attention backward by FMAs; p is recomputed from lse. See simt.cuh.
//
// FLOPs for each pair of query and key: 14 HS. Five products would do (10 HS), but dq sums over
// keys and dk, dv over queries, so the blocks of one kernel would add to each other's dq. Instead
// scores and dp are computed twice, for dq and for dk, dv. So each output has one writer, and the
// bits are reproducible.
#include "simt.cuh"

namespace {
using namespace simt;

// delta (B,NH,S) = dy . y: `lanes` lanes, a power of two, share a row. Bound by reading 2 HS
// elements a row.
template <class T> __global__ void __launch_bounds__(THREADS)
    delta_kernel(float* delta, const T* dy, const T* y, int B, int S, int lanes, Heads h) {
    const int64_t rows = int64_t(B) * S * h.NH, mine = (int64_t(blockIdx.x) * THREADS + threadIdx.x) / lanes;
    const int64_t row = mine < rows ? mine : rows - 1;    // (b,s,head)
    const int lane = int(threadIdx.x) % lanes;
    float sum = 0;
    const int HV = h.value_size();
    if (HV % VEC<T> == 0) {
        for (int d = lane * VEC<T>; d < HV; d += lanes * VEC<T>) {
            const Vec<T> a = load<VEC<T>>(dy + row * HV + d), b = load<VEC<T>>(y + row * HV + d);
#pragma unroll
            for (int e = 0; e < VEC<T>; e++) sum += a[e] * b[e];
        }
    } else {
        for (int d = lane; d < HV; d += lanes) sum += to_float(dy[row * HV + d]) * to_float(y[row * HV + d]);
    }
    for (int bit = lanes / 2; bit; bit >>= 1) sum += __shfl_xor_sync(0xffffffff, sum, bit);
    const int64_t n = row / h.NH;
    if (lane == 0 && mine < rows) delta[(n / S * h.NH + row % h.NH) * S + n % S] = sum;
}

struct DqShared {
    Tile q, dy, kv, ds;
};

// Computes dq of 64 queries of a head, over the keys that they attend to.
template <class T, int D, bool SHAPED, bool TWO_SIDED> __global__ void __launch_bounds__(THREADS, BLOCKS<D>)
    dq_kernel(T* dqs, const T* dy, const T* qs, const T* kv, const float* lse, const float* delta, int B, int S,
              Heads h, Scores scores) {
    DqShared& sh = dynamic_shared<DqShared>();
    const int HS = h.HS, HV = h.value_size();
    const Work w = work<D>(B, h.NH, S, HS, true);
    const int to = min(S, w.row + TILE);
    const Head<T> at(h, S, w.b, w.head);
    const Rows<T> q = at.queries(qs, w.row, to), g = at.in_y(dy, w.row, to), k = at.keys(kv), v = at.values(kv);
    const RowMask<TWO_SIDED> sight(h, S, w.b, w.row, 0);
    const Span first = keys_of(h, S, w.b, w.row), last = keys_of(h, S, w.b, to - 1);
    const Streams streams(h, at.key_count);
    const PositionBias slope = SHAPED ? scores.slope(w.head, int64_t(w.b) * S + w.row) : PositionBias{};

    const float factor = h.dropout.factor();
    Sums dq[D / TILE] = {};
    bool kept = false;
    for (int n = 0; n < streams.count; n++) {
        const Stream stream = streams.s[n];
        const auto [from, end] = visited<TWO_SIDED>(stream, first, last, h, S, w.b, w.row, to);
        const Rows<T> keys = k.in(stream, end), values = v.in(stream, end);
        for (int t0 = from; t0 < end; t0 += TILE, kept = true) {
            Sums dp = {}, s = {};
            add_abt(dp, Operand<T>{sh.dy, g, kept}, Operand<T>{sh.kv, values.from(t0), false}, HV);
#pragma unroll
            for (int r = 0; r < ROWS; r++) {
                const float mean = delta[at.lse + min(w.row + tile_row(r), S - 1)];
#pragma unroll
                for (int c = 0; c < COLUMNS; c++) {
                    const int j = stream.key(t0 + tile_column(c));
                    if (SHAPED) dp[r][c] = is_kept(h, w.b, w.head, w.row + tile_row(r), j) ? dp[r][c] * factor : 0;
                    sh.ds.x[tile_row(r)][tile_column(c)] = dp[r][c] - mean;
                }
            }
            add_abt(s, Operand<T>{sh.q, q, kept}, Operand<T>{sh.kv, keys.from(t0), false}, HS);
#pragma unroll
            for (int r = 0; r < ROWS; r++) {
                const float lse2 = lse[at.lse + min(w.row + tile_row(r), S - 1)] * LOG2E;
                const PositionBias bias = SHAPED ? scores.after(slope, sight.row_of(r)) : PositionBias{};
#pragma unroll
                for (int c = 0; c < COLUMNS; c++) {
                    float& ds = sh.ds.x[tile_row(r)][tile_column(c)];    // written by this thread
                    const int t = t0 + tile_column(c), behind = w.row + tile_row(r) - stream.key(t);
                    const float x = score<SHAPED>(scores, s[r][c], bias, behind);
                    ds = sight.is_visible(r, stream, t) ? ds * exp2f(x - lse2) : 0;
                    if (SHAPED) ds *= scores.cap_slope(scores.inside(s[r][c]));
                }
            }
            add_ab(dq, sh.ds, Operand<T>{sh.kv, keys.from(t0), true}, w.column, HS);
        }
    }
    float scales[ROWS];
#pragma unroll
    for (int r = 0; r < ROWS; r++) scales[r] = scores.scale;
    auto keep = [&](int r) { return w.row + r < S; };
    store_sums(dqs + (q.first - qs), q.stride, keep, w.column, HS, dq, scales);
}

struct DkvShared {
    Tile k, v, q, p;
};    // q: queries or dy
struct ShapedDkvShared : DkvShared {
    Tile slope;
};    // slope: d p / d product before dropout

// Returns the stream of the block's tile of keys; `tile` becomes an index within the stream. A
// sparse pattern's streams come first, because most queries attend to them.
__device__ inline Stream own_stream(const Streams& streams, int& tile) {
    for (int n = streams.count - 1; n > 0; n--) {
        const int tiles = (streams.s[n].keys + TILE - 1) / TILE;
        if (tile < tiles) return streams.s[n];
        tile -= tiles;
    }
    return streams.s[0];
}

// With a two-sided pattern: widens seen_by, the queries that attend to the stream's keys row..last
// within their windows, to all that attend to them. Returns the queries of seen_by that do not,
// between those of global tokens and the windows.
__device__ inline Span widen(Span& seen_by, const Stream& stream, const Heads& h, int S, int b, int row, int last) {
    const Span* queries = h.queries + int64_t(b) * S;
    const Span all = {queries[stream.key(row)].from, queries[stream.key(last)].to}, windows = seen_by;
    const int globals = min(h.global_tokens, all.to);
    if (!stream.all) seen_by = all;
    if (!stream.all || all.from >= globals) return {};
    seen_by.from = all.from;
    return {globals, windows.from};
}

// The positions at which a query attends to keys of the pattern, in its window or not.
template <bool TWO_SIDED> __device__ inline Span pattern_keys(const Heads& h, int S, int b, int i) {
    if constexpr (TWO_SIDED) return h.keys[int64_t(b) * S + i];
    return {0, i + 1};
}

// Computes dk and dv of 64 keys, over all queries of the group's heads that attend to them.
template <class T, int D, bool SHAPED, bool TWO_SIDED> __global__ void __launch_bounds__(THREADS, BLOCKS<D>)
    dkv_kernel(T* dkv, const T* dy, const T* qs, const T* kv, const float* lse, const float* delta, int B, int S,
               Heads h, Scores scores) {
    auto& sh = dynamic_shared<std::conditional_t<SHAPED, ShapedDkvShared, DkvShared>>();
    const int HS = h.HS, HV = h.value_size(), group = h.NH / h.NKV;
    const Work w = work<D>(B, h.NKV, S, max(HS, HV), false);
    const Head<T> own(h, S, w.b, w.head * group);
    const Streams streams(h, own.key_count);
    int tile = w.row / TILE;
    const Stream stream = own_stream(streams, tile);
    const int row = tile * TILE, last = min(stream.keys, row + TILE) - 1;
    const Rows<T> k = own.keys(kv).in(stream, last + 1).from(row), v = own.values(kv).in(stream, last + 1).from(row);
    Span seen_by = stream.all ? Span{queries_of(h, S, w.b, row).from, queries_of(h, S, w.b, last).to}
                              : Span{stream.key(row), S};
    const Span gap = TWO_SIDED ? widen(seen_by, stream, h, S, w.b, row, last) : Span{};
    const float factor = h.dropout.factor();
    Sums dk[D / TILE] = {}, dv[D / TILE] = {};
    for (int head = w.head * group; head < (w.head + 1) * group; head++) {
        const Head<T> at(h, S, w.b, head);
        const PositionBias slope = SHAPED ? scores.slope(head, int64_t(w.b) * S) : PositionBias{};
        for (int i0 = seen_by.from; i0 < seen_by.to; i0 += TILE) {
            if (TWO_SIDED && i0 >= gap.from && i0 + TILE <= gap.to) continue;
            const bool kept = i0 > seen_by.from || head > w.head * group;
            const Rows<T> q = at.queries(qs, i0, S), g = at.in_y(dy, i0, S);
            Sums s = {}, dp = {};
            add_abt(s, Operand<T>{sh.k, k, kept}, Operand<T>{sh.q, q, false}, HS);
#pragma unroll
            for (int c = 0; c < COLUMNS; c++) {
                const int i = i0 + tile_column(c), known = min(i, S - 1);
                const Span visible = stream.all ? keys_of(h, S, w.b, known) : pattern_keys<TWO_SIDED>(h, S, w.b, known);
                const float lse2 = lse[at.lse + known] * LOG2E;
                const PositionBias bias = SHAPED ? scores.after(slope, known) : PositionBias{};
#pragma unroll
                for (int r = 0; r < ROWS; r++) {
                    const int j = stream.key(row + tile_row(r));
                    float p = exp2f(score<SHAPED>(scores, s[r][c], bias, i - j) - lse2);
                    p = visible.from <= j && j < visible.to && i < S ? p : 0;
                    if constexpr (SHAPED)
                        sh.slope.x[tile_row(r)][tile_column(c)] = p * scores.cap_slope(scores.inside(s[r][c]));
                    sh.p.x[tile_row(r)][tile_column(c)] = !SHAPED || is_kept(h, w.b, head, i, j) ? p : 0;
                }
            }
            add_ab(dv, sh.p, Operand<T>{sh.q, g, false}, w.column, HV);
            add_abt(dp, Operand<T>{sh.v, v, kept}, Operand<T>{sh.q, g, w.column < HV}, HV);
#pragma unroll
            for (int c = 0; c < COLUMNS; c++) {
                const float mean = delta[at.lse + min(i0 + tile_column(c), S - 1)];
#pragma unroll
                for (int r = 0; r < ROWS; r++) {
                    float& p = sh.p.x[tile_row(r)][tile_column(c)];    // written by this thread
                    if constexpr (SHAPED) {
                        const int i = i0 + tile_column(c), j = stream.key(row + tile_row(r));
                        dp[r][c] = is_kept(h, w.b, head, i, j) ? dp[r][c] * factor : 0;
                        p = sh.slope.x[tile_row(r)][tile_column(c)];
                    }
                    p = p == 0 ? 0 : p * (dp[r][c] - mean);
                }
            }
            add_ab(dk, sh.p, Operand<T>{sh.q, q, false}, w.column, HS);
        }
    }
    float factors[ROWS], scales[ROWS];
#pragma unroll
    for (int r = 0; r < ROWS; r++) factors[r] = factor, scales[r] = scores.scale;
    // Keys of a sparse pattern are stored by the block that has them in the pattern's stream.
    auto keep = [&](int r) { return row + r <= last && !(stream.all && in_pattern(h, row + r)); };
    store_sums(dkv + (k.first - kv), k.stride, keep, w.column, HS, dk, scales);
    store_sums(dkv + (v.first - kv), v.stride, keep, w.column, HV, dv, factors);
}

template <class T, int D> void backward(T* dq, T* dkv, const T* dy, const T* q, const T* kv, const float* lse,
                                        const float* delta, int B, int S, Heads h) {
    const Scores scores(h);
    for_mask(scores, h, [&](auto SHAPED, auto TWO_SIDED) {
        const size_t shared = SHAPED ? sizeof(ShapedDkvShared) : sizeof(DkvShared);
        const Streams streams(h, h.keys_of(S));
        const int widest = std::max(h.HS, h.value_size());
        unsigned grid = 0;
        for (int n = 0; n < streams.count; n++) grid += blocks<D>(B, h.NKV, streams.s[n].keys, widest);
        launch(dkv_kernel<T, D, SHAPED, TWO_SIDED>, {grid, THREADS, shared}, dkv, dy, q, kv, lse, delta, B, S, h,
               scores);
        launch(dq_kernel<T, D, SHAPED, TWO_SIDED>, {blocks<D>(B, h.NH, S, h.HS), THREADS, sizeof(DqShared)}, dq, dy, q,
               kv, lse, delta, B, S, h, scores);
    });
}

}    // namespace

template <class T> void attention_delta(float* delta, const T* dy, const T* y, int B, int S, Heads h) {
    int lanes = 1;
    while (lanes < 32 && lanes * VEC<T> < h.value_size()) lanes *= 2;
    const int64_t rows = int64_t(B) * S * h.NH;
    launch(delta_kernel<T>, {unsigned(ceil_div(rows * lanes, THREADS)), THREADS}, delta, dy, y, B, S, lanes, h);
}
template void attention_delta(float*, const float*, const float*, int, int, Heads);
template void attention_delta(float*, const bf16*, const bf16*, int, int, Heads);

template <class T> void attention_backward_simt(T* dq, T* dkv, const T* dy, const T* y, const T* q, const T* kv,
                                                const float* lse, int B, int S, Heads h) {
    float* delta = static_cast<float*>(cuda_scratch(attention_scratch(AttentionKernels::simt, B, S, h)));
    attention_delta(delta, dy, y, B, S, h);
    if (std::max(h.HS, h.value_size()) <= 64) backward<T, 64>(dq, dkv, dy, q, kv, lse, delta, B, S, h);
    else backward<T, 128>(dq, dkv, dy, q, kv, lse, delta, B, S, h);
}
#define INSTANCE(T)                                                                                               \
    template void attention_backward_simt(T*, T*, const T*, const T*, const T*, const T*, const float*, int, int, \
                                          Heads);
INSTANCE(float)
INSTANCE(bf16)

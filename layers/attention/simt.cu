// simt.cu - attention forward by FMAs, for float and for head sizes without tensor core kernels.
//
// Scores stay in their block, which keeps a running maximum and sum of each row and rescales y when
// the maximum rises (Dao et al. 2022). FLOPs for each pair of query and key: 4 HS. Thread mapping
// and bound: simt.cuh. Prompts in generation read keys and values from a cache's pages and convert
// them to float in shared memory.
#include "simt.cuh"

namespace {
using namespace simt;

// Replaces a tile of products s by unnormalised probabilities p, and rescales sums and outputs to
// the new maximum. kept(row, key): dropout keeps the pair; dropped pairs still count in the sums.
template <bool SHAPED, bool TWO_SIDED, int U, class Kept>
__device__ inline void online_softmax(Tile& p, Sums (&o)[U], float (&top)[ROWS], float (&sum)[ROWS], Sums& s,
                                      const RowMask<TWO_SIDED>& sight, const Stream& stream, int t0,
                                      const Scores& scores, const PositionBias& slope, Kept kept) {
#pragma unroll
    for (int r = 0; r < ROWS; r++) {
        float now = top[r];
        const PositionBias bias = SHAPED ? scores.after(slope, sight.row_of(r)) : PositionBias{};
#pragma unroll
        for (int c = 0; c < COLUMNS; c++) {
            const int t = t0 + tile_column(c), behind = sight.row0 + tile_row(r) - stream.key(t);
            const float x = score<SHAPED>(scores, s[r][c], bias, behind);
            s[r][c] = sight.is_visible(r, stream, t) ? x : -INFINITY;
            now = fmaxf(now, s[r][c]);
        }
        now = warp_max<16>(now);
        const float base = now == -INFINITY ? 0 : now, factor = exp2f(top[r] - base);    // -inf: no key seen so far
        top[r] = now, sum[r] *= factor;
#pragma unroll
        for (int c = 0; c < COLUMNS; c++) {
            const float e = exp2f(s[r][c] - base);
            sum[r] += e;
            p.x[tile_row(r)][tile_column(c)] = !SHAPED || kept(r, stream.key(t0 + tile_column(c))) ? e : 0;
#pragma unroll
            for (int u = 0; u < U; u++) o[u][r][c] *= factor;
        }
    }
}

// Source of keys and values: an array.
template <class T> struct PackedKeys {
    typedef Rows<T> Some;
    static constexpr bool CACHED = false;
    const T* kv;
    __device__ int first(int, int) const { return 0; }    // position of a sequence's first query
    __device__ int queries(int, int S) const { return S; }
    __device__ Some keys(const Head<T>& at, int, int) const { return at.keys(kv); }
    __device__ Some values(const Head<T>& at, int, int) const { return at.values(kv); }
};
// Source of keys and values: a cache. pos (B,S): the queries' positions or, with Heads::source, the
// position of the last key; below 0 for padding.
template <class T> struct PagedKeys {
    typedef PagedRows Some;
    static constexpr bool CACHED = true;    // generation has no dropout
    Pages cache;
    const int* pos;
    __device__ int first(int b, int S) const { return pos[b * S]; }
    __device__ int queries(int b, int S) const {
        int n = 0, end = S;
        while (n < end) {
            const int middle = (n + end) / 2;
            if (pos[b * S + middle] >= 0) n = middle + 1;
            else end = middle;
        }
        return n;
    }
    __device__ Some keys(const Head<T>&, int b, int kv) const {
        return {cache.k, cache.k_scale, cache, b, kv, 0, 1, 0};
    }
    __device__ Some values(const Head<T>&, int b, int kv) const {
        return {cache.v, cache.v_scale, cache, b, kv, 0, 1, 0};
    }
};

struct ForwardShared {
    Tile q, kv, p;
};

// A block has 64 queries of a head. The last tiles, which see most keys, start first.
template <class T, int D, bool SHAPED, bool TWO_SIDED, class Source>
__global__ void __launch_bounds__(THREADS, BLOCKS<D>)
    forward_kernel(T* y, float* lse, const T* qs, Source source, int B, int S, Heads h, Scores scores) {
    typedef typename Source::Some Some;
    ForwardShared& sh = dynamic_shared<ForwardShared>();
    const int HS = h.HS, HV = h.value_size();
    const Work w = work<D>(B, h.NH, S, HV, true);
    const int p0 = source.first(w.b, S), queries = source.queries(w.b, S), to = min(queries, w.row + TILE);
    const Head<T> at(h, S, w.b, w.head);
    if (Source::CACHED && h.source) h.source = p0 + 1;
    if constexpr (Source::CACHED) {    // zeroes outputs of padding, from `queries` on
        const int columns = min(D, HV - w.column), pad = max(queries, w.row), rows = min(S, w.row + TILE) - pad;
        T* from = y + at.y + pad * at.y_row + w.column;
        for (int i = int(threadIdx.x); i < rows * columns; i += THREADS)
            from[i / columns * at.y_row + i % columns] = from_float<T>(0);
    }
    if (to <= w.row) return;
    const Span first = keys_of(h, S, w.b, p0 + w.row), last = keys_of(h, S, w.b, p0 + to - 1);
    const Streams streams(h, h.keys_of(p0 + queries));
    const Rows<T> q = at.queries(qs, w.row, to);
    const int kv = w.head / (h.NH / h.NKV);
    const Some k = source.keys(at, w.b, kv), v = source.values(at, w.b, kv);
    const RowMask<TWO_SIDED> sight(h, S, w.b, w.row, p0);
    const PositionBias slope = SHAPED ? scores.slope(w.head, int64_t(w.b) * S + w.row) : PositionBias{};

    auto stays = [&](int r, int key) {
        return Source::CACHED || is_kept(h, w.b, w.head, p0 + w.row + tile_row(r), key);
    };
    Sums o[D / TILE] = {};
    float top[ROWS], sum[ROWS] = {};    // top: log2 units; sum: this thread's columns
#pragma unroll
    for (int r = 0; r < ROWS; r++) top[r] = -INFINITY;
    bool kept = false;
    for (int n = 0; n < streams.count; n++) {
        const Stream stream = streams.s[n];
        const auto [from, end] = visited<TWO_SIDED>(stream, first, last, h, S, w.b, w.row, to);
        for (int t0 = from; t0 < end; t0 += TILE, kept = true) {
            Sums s = {};
            add_abt(s, Operand<T>{sh.q, q, kept}, Operand<T, Some>{sh.kv, k.in(stream, end).from(t0), false}, HS);
            online_softmax<SHAPED>(sh.p, o, top, sum, s, sight, stream, t0, scores, slope, stays);
            add_ab(o, sh.p, Operand<T, Some>{sh.kv, v.in(stream, end).from(t0), false}, w.column, HV);
        }
    }
    float inverse[ROWS];
#pragma unroll
    for (int r = 0; r < ROWS; r++) {
        sum[r] = warp_sum<16>(sum[r]);
        inverse[r] = h.dropout.factor() / sum[r];
        const int i = w.row + tile_row(r);
        if (lse && w.column == 0 && threadIdx.x % 16 == 0 && i < S) lse[at.lse + i] = (top[r] + log2f(sum[r])) * LN2;
    }
    auto keep = [&](int r) { return w.row + r < to; };
    store_sums(y + at.y + w.row * at.y_row, at.y_row, keep, w.column, HV, o, inverse);
}

template <class T, class Source> void forward(T* y, float* lse, const T* q, Source source, int B, int S, Heads h) {
    const Scores scores(h);
    for_mask(scores, h, [&](auto SHAPED, auto TWO_SIDED) {
        constexpr bool two_sided = TWO_SIDED && !Source::CACHED;    // generation has no spans
        const int HV = h.value_size();
        const bool small_head = HV <= 64;
        const unsigned grid = small_head ? blocks<64>(B, h.NH, S, HV) : blocks<128>(B, h.NH, S, HV);
        launch(small_head ? forward_kernel<T, 64, SHAPED, two_sided, Source>
                          : forward_kernel<T, 128, SHAPED, two_sided, Source>,
               {grid, THREADS, sizeof(ForwardShared)}, y, lse, q, source, B, S, h, scores);
    });
}

}    // namespace

// ---- entries ------------------------------------------------------------------------------------

template <class T> void attention_forward_simt(T* y, float* lse, const T* q, const T* kv, int B, int S, Heads h) {
    forward(y, lse, q, PackedKeys<T>{kv}, B, S, h);
}
template <class T> void attention_prompt(T* y, const T* q, const Pages& cache, int B, int S, const int* pos, Heads h) {
    forward(y, nullptr, q, PagedKeys<T>{cache, pos}, B, S, h);
}

#define INSTANCES(T)                                                                       \
    template void attention_forward_simt(T*, float*, const T*, const T*, int, int, Heads); \
    template void attention_prompt(T*, const T*, const Pages&, int, int, const int*, Heads);
INSTANCES(float)
INSTANCES(bf16)

// cached.cuh - attention in generation: new positions append their keys and values to the cache and
// attend to all cached ones. cached.cu and cached_float.cu each compile it for one type of
// activations, because nvcc takes long for it.
//
// One new position (S = 1): an item is up to G query heads that share a key/value head. Its keys
// are split among blocks, BLOCKS per multiprocessor, so that all multiprocessors read. Only the
// device knows pos, so kernels compute the splits, and blocks that get none end at once. Each block
// writes its output, maximum and sum to scratch. An item's last block to finish adds these in a
// fixed order. For a few positions (a draft that is verified, a short message in a chat) an item
// consists of pairs of a position and a head, and each pair masks keys that it must not see.
//
// Thread mapping: `lanes` lanes hold a row of keys, E elements each; the block's 128 threads read
// 128 / lanes rows at once, and U times as many before they use the first, so that a thread has 128
// bytes in flight for bf16. Each lane keeps maximum, sum and output over its keys for G queries
// that share them. More than 4 queries are several items; their keys come from memory once and then
// from L2.
//
// Bound by memory: each key and value is read once, 2 NKV HS (pos + 1) elements per sequence. For
// GPT-2 that is 3.1 MB at position 1024, less than a microsecond, so one sequence alone is bound by
// latency: one launch, few dependent reads. Keys lie in pages of 16 positions; the page table, in
// L1, gives each row's address. Scales of an fp8 or int8 cache multiply scores and weights.
//
// QK-norm and rotation of one position can be part of the launch: each block transforms its own
// queries and the key into shared memory, rounded as in rope_forward. The blocks of all splits
// repeat this work, while their first keys are in flight. A block prefetches its first keys and
// values to L2 before the previous kernel, which writes qkv, has ended (Launch::overlaps):
// positions and the page table do not change within a step.
//
// Several positions, or a new key of another type than the activations', are appended by an earlier
// kernel (kv_pages.cu). Many positions attend in tiles of queries, as in training: over the cache
// (simt.cu), or, at a sequence's start, among themselves (attention.cu).
#pragma once
#include "attention.cuh"
#include "layers/rope.cuh"

namespace {

constexpr int THREADS = CachedPlan::THREADS, WARPS = THREADS / 32, MAX_ITEMS = CachedPlan::MAX_ITEMS;
constexpr int MAX_ROPE_HEADS = 256;    // rotated heads up to this have E 8

// For each item the number of its blocks that have finished; 0 between launches.
__device__ unsigned finished[MAX_ITEMS];

// A lane's part of a row: E elements, zero beyond HS, moved W at a time.
template <class T, int E, int W> struct Piece {
    Vec<T, W> x[E / W];
    __device__ float operator[](int e) const { return x[e / W][e % W]; }
    __device__ void set(int e, float f) { x[e / W].set(e % W, f); }
    __device__ void from(const T* row, int lane, int HS) {
#pragma unroll
        for (int i = 0; i < E / W; i++) {
            const int d = lane * E + i * W;
            x[i] = d < HS ? load<W>(row + d) : Vec<T, W>{};
        }
    }
    __device__ void to(T* row, int lane, int HS) const {
#pragma unroll
        for (int i = 0; i < E / W; i++)
            if (lane * E + i * W < HS) store(row + lane * E + i * W, x[i]);
    }
};

template <int E, int W, class T> __device__ inline void copy_row(T* to, const T* from, int lane, int HS) {
    Piece<T, E, W> x;
    x.from(from, lane, HS);
    x.to(to, lane, HS);
}

// State of an online softmax. top: the largest score so far, in log2 units. sum and o (E elements
// of the weighted values) are sums with exponentials of score - top.
template <int E> struct alignas(8) State { float top, sum, o[E]; };
template <int E> __device__ inline State<E> nothing() {
    State<E> s = {};
    s.top = -INFINITY;
    return s;
}
template <int E> __device__ inline void rescale(State<E>& s, float top, float base) {
    const float factor = exp2f(s.top - base);
    s.top = top, s.sum *= factor;
#pragma unroll
    for (int e = 0; e < E; e++) s.o[e] *= factor;
}
__device__ inline float finite(float top) { return top == -INFINITY ? 0 : top; }
template <int E> __device__ inline void add(State<E>& s, State<E> other) {
    const float top = fmaxf(s.top, other.top);
    rescale(s, top, finite(top));
    rescale(other, top, finite(top));
    s.sum += other.sum;
#pragma unroll
    for (int e = 0; e < E; e++) s.o[e] += other.o[e];
}

// Sums the block's states. The first `lanes` threads get the sum for their elements. Two calls need
// a barrier between them.
template <int G, int E> __device__ inline void add_up(State<E> (&s)[G], int lanes) {
    typedef State<E> States[WARPS][G][32];
    SHARED(States, parts);
    const int lane = int(threadIdx.x) % 32, warp = int(threadIdx.x) / 32;
#pragma unroll
    for (int g = 0; g < G; g++) {
        for (int bit = lanes; bit < 32; bit *= 2) {
            State<E> other;
            other.top = __shfl_xor_sync(0xffffffff, s[g].top, bit);
            other.sum = __shfl_xor_sync(0xffffffff, s[g].sum, bit);
#pragma unroll
            for (int e = 0; e < E; e++) other.o[e] = __shfl_xor_sync(0xffffffff, s[g].o[e], bit);
            add(s[g], other);
        }
        if (lane < lanes) parts[warp][g][lane] = s[g];
    }
    __syncthreads();
    if (warp > 0 || lane >= lanes) return;
#pragma unroll
    for (int g = 0; g < G; g++)
        for (int w = 1; w < WARPS; w++) add(s[g], parts[w][g][lane]);
}

// Whether this block is the last of the item's `count` blocks to finish. If so, the writes of all
// of them are visible to it.
__device__ inline bool last_to_finish(int item, int count) {
    SHARED(bool[1], last);
    __syncthreads();
    if (threadIdx.x == 0) {
        __threadfence();    // orders writes, the count, the last block's reads
        last[0] = atomicInc(&finished[item], unsigned(count - 1)) == unsigned(count - 1);    // last block: 0
        __threadfence();
    }
    __syncthreads();
    return last[0];
}
// Reads a state from L2, because L1 may hold stale data.
template <int E> __device__ inline State<E> read(const State<E>* from) {
    State<E> s;
#pragma unroll
    for (int i = 0; i < (E + 2) / 2; i++) {
        const float2 two = __ldcg(reinterpret_cast<const float2*>(from) + i);
        (i ? s.o[2 * i - 2] : s.top) = two.x;
        (i ? s.o[2 * i - 1] : s.sum) = two.y;
    }
    return s;
}

// Keys from..to-1 of a split. A round is the keys that a block reads at once. Splits are whole
// rounds; only the first `count` splits have keys.
struct Range {
    int from, to, count;
};
__device__ inline Range range(int first, int end, int round, int splits, int split) {
    const int rounds = (end - first + round - 1) / round, each = (rounds + splits - 1) / splits;
    const int from = first + split * each * round;
    return {from, min(end, from + each * round), (rounds + each - 1) / each};
}

// Prefetches a lane's part of a split's first keys and values to L2.
template <class X, int E, int U> __device__ inline void prefetch_first(const Pages& cache, const VisibleKeys& seen,
                                                                       const Range& keys, int b, int kv, int row,
                                                                       int rows, int lane, int HS) {
    if (lane * E >= HS) return;
#pragma unroll
    for (int u = 0; u < U; u++) {
        const int64_t cache_row = cache.row(b, kv, seen.key(min(keys.from + row + u * rows, keys.to - 1)));
        prefetch_l2(static_cast<const X*>(cache.k) + cache_row * HS + lane * E);
        prefetch_l2(static_cast<const X*>(cache.v) + cache_row * HS + lane * E);
    }
}

// A block's work: one split of an item. An item is up to G queries that share the keys and values
// of kv head (b,kv). A query is one of S positions and one of `group` heads, in order of positions.
template <int G> struct Work {
    int split, item, cut, kv, b, S, group, count;    // count: queries
    __device__ Work(const Heads& h, int S, int splits) : S(S), group(h.NH / h.NKV) {
        const int cuts = (S * group + G - 1) / G;
        split = int(blockIdx.x) % splits, item = int(blockIdx.x) / splits, cut = item % cuts;
        kv = item / cuts % h.NKV, b = item / cuts / h.NKV, count = min(G, S * group - cut * G);
    }
    __device__ int64_t row(int g) const { return S == 1 ? b : int64_t(b) * S + (cut * G + g) / group; }    // in (B,S)
    __device__ int head(int g) const { return kv * group + (S == 1 ? cut * G + g : (cut * G + g) % group); }
};

// A block's queries. P = 1: all are at position p[0]. P = G: each query has its own position,
// negative if there is no such query.
template <int G, int E, int P> struct Queries {
    float q[G][E];    // scaled for log2 units, or for tanh
    PositionBias slope[G];
    int p[P];
    __device__ int at(int g) const { return p[P == 1 ? 0 : g]; }
    // Reads the positions. Returns the keys that at least one query attends to. If the first query
    // is padding, the result is not used.
    __device__ VisibleKeys find(const int* pos, const Work<G>& w, const Heads& h) {
        p[0] = pos[w.row(0)];
        int last = p[0];
#pragma unroll
        for (int g = 1; g < P; g++) last = max(last, p[g] = g < w.count ? pos[w.row(g)] : -1);
        VisibleKeys seen(h, max(p[0], 0));
        seen.n += last - p[0];
        return seen;
    }
    // Whether query g attends to `key`; -1 stands for a key beyond the last one.
    __device__ bool is_visible(const Heads& h, int g, int key) const {
        if constexpr (P == 1) return key >= 0;
        const int behind = p[g] - key;
        return key >= 0 && behind >= 0 && (!h.window || behind < h.window || in_pattern(h, key));
    }
    // Loads a lane's part of w.count queries; the last query is repeated up to G. from(g): address
    // of query g. SHAPED: with soft caps and slopes.
    template <bool SHAPED, int W, class From>
    __device__ void load(const Work<G>& w, From from, const Scores& scores, int lane, int HS) {
        const float scale = SHAPED && scores.inner != 0 ? scores.inner : scores.log2;
#pragma unroll
        for (int g = 0; g < G; g++) {
            const int last = min(g, w.count - 1);
            Piece<std::remove_cvref_t<decltype(*from(0))>, E, W> x;
            x.from(from(last), lane, HS);
#pragma unroll
            for (int e = 0; e < E; e++) q[g][e] = x[e] * scale;
            slope[g] = SHAPED ? scores.slope(w.head(last), w.row(last)) : PositionBias{};
        }
    }
};

// U rows of keys or values in the cache's type, and their scales.
template <class X, int E, int W, int U> struct Rows {
    Piece<X, E, W> x[U];
    float factor[U];
};

// Adds U keys and values to the softmaxes of G queries. key: their positions; -1 is skipped.
template <bool SHAPED, class X, int G, int E, int W, int U, int P>
__device__ inline void add_keys(State<E> (&s)[G], const Queries<G, E, P>& query, const Heads& h, const Scores& scores,
                                const Rows<X, E, W, U>& k, const Rows<X, E, W, U>& v, const int (&key)[U], int lanes) {
    float score[G][U] = {};
#pragma unroll
    for (int g = 0; g < G; g++)
#pragma unroll
        for (int u = 0; u < U; u++)
#pragma unroll
            for (int e = 0; e < E; e++) score[g][u] += query.q[g][e] * k.x[u][e];
    for (int bit = lanes / 2; bit; bit /= 2)
#pragma unroll
        for (int g = 0; g < G; g++)
#pragma unroll
            for (int u = 0; u < U; u++) score[g][u] += __shfl_xor_sync(0xffffffff, score[g][u], bit);
#pragma unroll
    for (int g = 0; g < G; g++)
#pragma unroll
        for (int u = 0; u < U; u++) {
            if (LARGEST<X> != 0) score[g][u] *= k.factor[u];
            if constexpr (SHAPED) {
                const float capped = scores.inner != 0 ? tanh_of(score[g][u]) * scores.log2 : score[g][u];
                score[g][u] = capped - query.slope[g] * float(query.at(g) - key[u]);
            }
        }
#pragma unroll
    for (int g = 0; g < G; g++) {
        float top = s[g].top;
#pragma unroll
        for (int u = 0; u < U; u++) {
            if (!query.is_visible(h, g, key[u])) score[g][u] = -INFINITY;
            top = fmaxf(top, score[g][u]);
        }
        rescale(s[g], top, finite(top));
#pragma unroll
        for (int u = 0; u < U; u++) {
            const float weight = exp2f(score[g][u] - finite(top)), factor = LARGEST<X> != 0 ? v.factor[u] : 1;
            s[g].sum += weight;
#pragma unroll
            for (int e = 0; e < E; e++) s[g].o[e] += weight * factor * v.x[u][e];
        }
    }
}

// Sums all splits of an item. The last block to finish has the sum in its first `lanes` threads and
// returns true; other blocks return false.
template <int G, int E> __device__ inline bool add_splits(State<E> (&s)[G], State<E>* partial, int item, int split,
                                                          int splits, int count, int lanes) {
    State<E>* part = partial + int64_t(item) * splits * G * lanes;
    const int lane = int(threadIdx.x) % lanes, row = int(threadIdx.x) / lanes, rows = THREADS / lanes;
#pragma unroll
    for (int g = 0; g < G; g++)
        if (row == 0) part[(split * G + g) * lanes + lane] = s[g];    // part (splits,G,lanes)
    if (!last_to_finish(item, count)) return false;
#pragma unroll
    for (int g = 0; g < G; g++) {
        s[g] = nothing<E>();
        for (int i = row; i < count; i += rows) add(s[g], read(part + (i * G + g) * lanes + lane));
    }
    add_up(s, lanes);
    return true;
}

// Writes a lane's part of a row of y; zeros if !there, which marks padding. Only the block's first
// threads call it, one for each lane of a row.
template <int W, class T, int E> __device__ inline void put_out(T* y, const State<E>& s, bool there, int lane, int HS) {
    Piece<T, E, W> out;
#pragma unroll
    for (int e = 0; e < E; e++) out.set(e, there ? s.o[e] / s.sum : 0);
    out.to(y, lane, HS);
}

// Kinds of calls of decode_kernel. AsTheyAre: one position per sequence, as the array has it.
// WithRope: one position per sequence, whose query and key the kernel rotates first (TURNS).
// Several: S positions per sequence, whose keys are in the cache already.
// APPENDS: the kernel appends the position's key and value to the cache. They are in the array of
// the queries (FROM_QKV); else the cache has all keys, as that of a source has. Both are constants,
// because flags that are read at run time cost registers.
template <bool FROM_QKV> struct AsTheyAre {
    static constexpr bool TURNS = false, APPENDS = FROM_QKV;
    static constexpr int S = 1;
};
struct Several {
    static constexpr bool TURNS = false, APPENDS = false;
    int S;
};
template <class T> struct WithRope {
    static constexpr bool TURNS = true, APPENDS = true;
    static constexpr int S = 1;
    RopeCall c;
    const T *qw, *kw;
};
// Norms and rotates `count` query heads of a row of qkv, and the key head that they share. Writes
// them to `to` (count + 1,HS) in shared memory.
template <class T, bool INTERLEAVED>
__device__ inline void rope_heads(T* to, const T* row, const WithRope<T>& by, int b, int head, int count, int key) {
    const RopeCall& c = by.c;
    const int lane = int(threadIdx.x) % c.lanes, groups = THREADS / c.lanes;
    RopeVector<VEC<T>, INTERLEAVED> piece(c, lane);
    const Rotation<VEC<T>> rotation(c, piece, c.rotation(b));
    for (int i = int(threadIdx.x) / c.lanes, first = i; i - first <= count; i += groups) {    // uniform for all lanes
        const bool there = i <= count;
        const int from = i < count ? head + i : key;
        if (there) piece.load(row + int64_t(from) * c.h.HS);
        if (c.t.norm == QkNorm::head) {
            const float own = rsqrtf(sum_over(there ? piece.squares() : 0, c.lanes) / float(c.h.HS) + c.t.eps);
            if (there) piece.norm(c.weights(by.qw, by.kw, from), own, c.t.plus);
        }
        if (!there) continue;
        rotation.rotate(piece);
        piece.store(to + i * c.h.HS);
    }
}

// Attention of an item's queries over one split of the keys. If the cache has another type than T,
// or there are several positions, cache_append has written the new keys. Otherwise the first split
// writes the new key, and all blocks read it from qkv, because they may not see that write yet.
template <class T, class X, int G, int E, int W, int U, bool SHAPED, class First>
__global__ void __launch_bounds__(THREADS)
    decode_kernel(T* y, const T* qkv, Pages cache, State<E>* partial, const int* pos, int splits, int lanes, Heads h,
                  Scores scores, const First first) {
    constexpr bool SEVERAL = std::is_same_v<First, Several>;
    static_assert(std::is_same_v<T, X> || !First::APPENDS);
    const int HS = h.HS, rows = THREADS / lanes, lane = int(threadIdx.x) % lanes, row = int(threadIdx.x) / lanes;
    const Work<G> w(h, first.S, splits);
    Queries<G, E, SEVERAL ? G : 1> queries;
    const VisibleKeys seen = queries.find(pos, w, h);
    const Range keys = range(0, seen.n, U * rows, splits, w.split);
    const int p = queries.p[0];
    const bool works = p >= 0 && w.split < keys.count;
    if (works) prefetch_first<X, E, U>(cache, seen, keys, w.b, w.kv, row, rows, lane, HS);
    wait_for_previous();
    let_next_start();
    auto out = [&](int g) { return y + (w.row(g) * h.NH + w.head(g)) * HS; };
    if (!works) {
        for (int g = 0; p < 0 && w.split == 0 && row == 0 && g < w.count; g++) Piece<T, E, W>{}.to(out(g), lane, HS);
        return;
    }

    const T *in = qkv + int64_t(w.b) * h.q_row(),
            *q = in + int64_t(w.head(0)) * HS;    // q: one position only
    const T *new_k = in + h.first_k() + int64_t(w.kv) * HS, *new_v = new_k + int64_t(h.NKV) * HS;
    if constexpr (First::TURNS) {
        SHARED(Vec<T>[(G + 1) * MAX_ROPE_HEADS / VEC<T>], own);
        if (first.c.t.interleaved) rope_heads<T, true>(own[0].v, in, first, w.b, w.head(0), w.count, h.NH + w.kv);
        else rope_heads<T, false>(own[0].v, in, first, w.b, w.head(0), w.count, h.NH + w.kv);
        __syncthreads();
        q = own[0].v, new_k = q + w.count * HS;
    }
    auto query = [&](int g) { return SEVERAL ? qkv + w.row(g) * h.q_row() + w.head(g) * HS : q + g * HS; };
    queries.template load<SHAPED, W>(w, query, scores, lane, HS);
    X *const all_k = static_cast<X*>(cache.k), *const all_v = static_cast<X*>(cache.v);
    State<E> s[G];
#pragma unroll
    for (int g = 0; g < G; g++) s[g] = nothing<E>();
    for (int j = keys.from + row; j - row < keys.to; j += U * rows) {    // equally often for all rows
        Rows<X, E, W, U> k, v;
        int key[U];
#pragma unroll
        for (int u = 0; u < U; u++) {    // beyond the end: last key, weight 0
            const int i = j + u * rows, at = seen.key(min(i, keys.to - 1));
            const int64_t cache_row = cache.row(w.b, w.kv, at);
            const X *from_k = all_k + cache_row * HS, *from_v = all_v + cache_row * HS;
            if constexpr (First::APPENDS)
                if (at == p) from_k = new_k, from_v = new_v;
            k.x[u].from(from_k, lane, HS);
            v.x[u].from(from_v, lane, HS);
            if (LARGEST<X> != 0) k.factor[u] = cache.k_scale[cache_row], v.factor[u] = cache.v_scale[cache_row];
            key[u] = i < keys.to ? at : -1;
        }
        add_keys<SHAPED>(s, queries, h, scores, k, v, key, lanes);
    }
    if constexpr (First::APPENDS)
        if (w.split == 0 && w.cut == 0 && row == 0) {
            const int64_t cache_row = cache.row(w.b, w.kv, p) * HS;
            copy_row<E, W>(all_k + cache_row, new_k, lane, HS);
            copy_row<E, W>(all_v + cache_row, new_v, lane, HS);
        }
    add_up(s, lanes);
    if (keys.count > 1 && !add_splits(s, partial, w.item, w.split, splits, keys.count, lanes)) return;
#pragma unroll
    for (int g = 0; g < G; g++)
        if (g < w.count && row == 0) put_out<W>(out(g), s[g], !SEVERAL || queries.at(g) >= 0, lane, HS);
}

template <class T, class X, int G, int E, int W, bool SHAPED, class First>
void decode(const CachedPlan& x, T* y, const T* qkv, const Pages& cache, const int* pos, Heads h, const First& first) {
    State<E>* partial = x.bytes ? static_cast<State<E>*>(cuda_scratch(x.bytes)) : nullptr;
    const Launch grid = {.grid = unsigned(x.items) * unsigned(x.splits), .block = THREADS, .overlaps = true};
    launch(decode_kernel<T, X, G, E, W, CachedPlan::unroll(E), SHAPED, First>, grid, y, qkv, cache, partial, pos,
           x.splits, x.lanes, h, Scores(h), first);
}
template <class T, class X, int G, int E, int W, class First>
void decode_shape(const CachedPlan& x, T* y, const T* qkv, const Pages& cache, const int* pos, Heads h, First first) {
    for_shape(Scores(h), [&](auto SHAPED) { decode<T, X, G, E, W, SHAPED>(x, y, qkv, cache, pos, h, first); });
}
// One position. Only rows of T may be unaligned: the prompt's kernels take those of other types.
template <class T, class X, class First> void decode_one(const CachedPlan& x, T* y, const T* qkv, const Pages& cache,
                                                         const int* pos, Heads h, bool aligned, First first) {
    if constexpr (std::is_same_v<T, X>)
        if (!aligned) return decode_shape<T, T, 1, 32, 1>(x, y, qkv, cache, pos, h, first);
    (x.E == 32  ? decode_shape<T, X, 1, 32, VEC<T>, First>
     : x.G == 1 ? decode_shape<T, X, 1, 8, VEC<T>, First>
     : x.G == 2 ? decode_shape<T, X, 2, 8, VEC<T>, First>
                : decode_shape<T, X, 4, 8, VEC<T>, First>)(x, y, qkv, cache, pos, h, first);
}

}    // namespace

// has_keys: q is qkv, whose keys and values are appended to the cache.
template <class T>
static void attend_cache(T* y, const T* q, bool has_keys, Pages cache, int B, int S, const int* pos, Heads h) {
    CHECK(!h.keys, "spans in generation");
    const bool cache_converts = cache.type != element_of<T>, aligned = rows_align<T>(h.HS);
    const CachedPlan x(B, S, cache.width * Pages::SIZE, aligned, h, cuda_multiprocessors());
    void* scratch = x.bytes ? cuda_scratch(x.bytes) : nullptr;
    const bool prompt = !x.takes || (cache_converts && !aligned);    // too rare a case for its own kernels
    if (has_keys && (S > 1 || prompt || cache_converts)) cache_append(cache, q, B, S, pos, h);
    if (has_keys && S > 1 && cache.from_start && !cache_converts)    // if it converts, queries must read rounded keys
        return attention_forward(y, static_cast<float*>(scratch), q, B, S, h);
    if (prompt) return attention_prompt(y, q, cache, B, S, pos, h);
    if (has_keys && !cache_converts && S == 1)
        return decode_one<T, T>(x, y, q, cache, pos, h, aligned, AsTheyAre<true>{});
    with_cache_type<T>(cache.type, [&]<class X>(X*) {
        if (S > 1) return decode_shape<T, X, 4, 8, VEC<T>>(x, y, q, cache, pos, h, Several{S});
        decode_one<T, X>(x, y, q, cache, pos, h, aligned, AsTheyAre<false>{});
    });
}
template <class T> void attention_cached(T* y, const T* qkv, Pages cache, int B, int S, const int* pos, Heads h) {
    attend_cache(y, qkv, true, cache, B, S, pos, h);
}
template <class T> void cross_attention_cached(T* y, const T* q, Pages cache, int B, int S, const int* last, Heads h) {
    attend_cache(y, q, false, cache, B, S, last, h);
}

// Falls back to two launches in cases without a fused kernel: scores with caps or slopes, norms
// over all heads, caches of another type, heads without 16-byte vectors.
template <class T> void rope_attention_cached(T* y, T* qkv_rot, float* rstd, const T* qkv, const T* qw, const T* kw,
                                              const float* cos_sin, Pages cache, int B, int S, const int* rope_pos,
                                              const int* pos, Heads h, QkNormRope t) {
    const bool vectors = rope_by_vectors<T>(h, t) && h.HS <= MAX_ROPE_HEADS && t.norm != QkNorm::all;
    if (S > 1 || !vectors || Scores(h).shaped() || cache.type != element_of<T>) {
        rope_forward(qkv_rot, rstd, qkv, qw, kw, cos_sin, B, S, rope_pos, h, t);
        return attention_cached(y, qkv_rot, cache, B, S, pos, h);
    }
    CHECK(!h.keys, "spans in generation");
    const CachedPlan x(B, S, cache.width * Pages::SIZE, true, h, cuda_multiprocessors());
    const WithRope<T> by = {RopeCall::of<VEC<T>>(cos_sin, rope_pos, B, 1, h, t), qw, kw};
    constexpr int E = 8;
    (x.G == 1   ? decode<T, T, 1, E, VEC<T>, false, WithRope<T>>
     : x.G == 2 ? decode<T, T, 2, E, VEC<T>, false, WithRope<T>>
                : decode<T, T, 4, E, VEC<T>, false, WithRope<T>>)(x, y, qkv, cache, pos, h, by);
}
#define CACHED(T)                                                                                                    \
    template void attention_cached(T*, const T*, Pages, int, int, const int*, Heads);                                \
    template void cross_attention_cached(T*, const T*, Pages, int, int, const int*, Heads);                          \
    template void rope_attention_cached(T*, T*, float*, const T*, const T*, const T*, const float*, Pages, int, int, \
                                        const int*, const int*, Heads, QkNormRope);

// forward.cpp - attention in tiles with an online softmax (Dao et al. 2022); only the log-sum-exp is saved.
//
// A tile is QB queries by KB keys. The keys of a head are transposed once, so that a strip of MR queries times a panel
// of keys runs along vectors of keys; strips stop at the diagonal. An item of work is (sequence, kv head, range of
// query tiles), and the split into items changes no result. Head sizes are padded to whole vectors within the tiles.
//
// With a window, spans or a pattern, tiles that no query sees are skipped, and tiles that some see in part have code of
// their own (masked: true), so that the others cost no more than without. A pattern's keys are packed as streams of
// their own, one after the other (tiles.h).
//
// half: q, k, v and the unnormalised probabilities, which lie in 0..1, are rounded to bf16 when they are packed. Sums,
// scores, maxima, exponentials and their totals are float. The bf16 table uses half where the CPU multiplies bf16.
//
// With a soft cap or ALiBi a tile's products become scores in a pass of their own, in L1. Dropout is a pass over the
// probabilities.
//
// Bound by FMAs: 4 S^2/2 HS FLOPs per head, and an exp for every 4 HS of them. Extra memory: O(S) per thread.
#include "kept.h"

namespace ISA {
constexpr int QB = 48, KB = 256, LDS = KB + VW;    // LDS: distance between rows of scores
constexpr int DEPTH = 128;                         // keys of a product with v: its rows of v fit L1

struct Call {
    float *y, *lse;      // lse may be null
    const float* qkv;
    Keys keys;
    int B, S, pos;       // of the first query
    Heads h;
    int64_t qkv_row() const { return int64_t(h.NH + 2 * h.NKV) * h.HS; }
};

// An item of work: queries from..to of the heads that share a key/value head.
struct Item { int b, kv, from, to; };
struct Work {
    static constexpr int COUNT = 3;
    const Call& c;
    int heads, qt, ranges, items;
    Work(const Call& c, int threads) : c(c) {
        heads = c.B * c.h.NKV, qt = tiles(c.S, QB), ranges = least(qt, tiles(4 * threads, heads));
        items = heads * ranges;
    }
    Item item(int i) const {
        const int head = i % heads, range = ranges - 1 - i / heads;    // the longest first
        return {head / c.h.NKV, head % c.h.NKV, qt * range / ranges * QB, least(qt * (range + 1) / ranges * QB, c.S)};
    }
    void rows(int i, Rows* r, int& from, int& to) const {
        const Item at = item(i);
        const int n = c.h.NH / c.h.NKV * c.h.HS;
        const int64_t keys = at.b * c.keys.sequence + at.kv * c.keys.head + c.pos * c.keys.row;
        r[0] = {c.qkv + int64_t(at.b) * c.S * c.qkv_row() + int64_t(at.kv) * n, c.qkv_row(), n};
        r[1] = {c.keys.k + keys, c.keys.row, c.h.HS};
        r[2] = {c.keys.v + keys, c.keys.row, c.h.HS};
        from = at.from, to = at.to;
    }
};

// ---- forward --------------------------------------------------------------------------------------------------------

// For GROUP rows of a strip, LDS apart: the scores of keys first..limit become 2^(c (score - top)), those of the other
// keys in from..end become zero; half packs them into words in place. Sums and output are rescaled to the new maximum.
// All rows see keys inner..outer. from and end are multiples of a vector of words, inner and outer of a vector.
constexpr int GROUP = MR / 2;
struct Sight { int from, inner, outer, end, first[GROUP], limit[GROUP]; };
template <bool half>
INLINE void online_softmax(float* s, const Sight& see, float c, float* top, float* sums, float* o, int P) {
    vf m[GROUP], base[GROUP], total[GROUP];
    auto part = [&](int r, int u, vf x, float fill) { return between(u, see.first[r], see.limit[r], x, fill); };
#pragma GCC unroll 4
    for (int r = 0; r < GROUP; r++) m[r] = set1(-INF);
    for (int u = see.inner; u < see.outer; u += VW)
#pragma GCC unroll 4
        for (int r = 0; r < GROUP; r++) m[r] = max(load(s + r * LDS + u), m[r]);
    auto seen_max = [&](int u, int to) {
        for (; u < to; u += VW)
#pragma GCC unroll 4
            for (int r = 0; r < GROUP; r++) m[r] = max(part(r, u, load(s + r * LDS + u), -INF), m[r]);
    };
    seen_max(see.from, see.inner);
    seen_max(see.outer, see.end);
#pragma GCC unroll 4
    for (int r = 0; r < GROUP; r++) {
        const float now = max(m[r]);
        total[r] = load(sums + r * VW);
        if (now > top[r]) {
            if (top[r] > -INF) {
                const vf factor = exp2(set1((top[r] - now) * c));
                total[r] *= factor;
                for (int d = 0; d < P; d += VW) store(o + r * P + d, load(o + r * P + d) * factor);
            }
            top[r] = now;
        }
        base[r] = set1(top[r] * c);
    }
    constexpr int UNIT = half ? 2 * VW : VW;
    auto probability = [&](int r, int u, bool all) {
        const vf e = exp2(load(s + r * LDS + u) * c - base[r]), seen = all ? e : part(r, u, e, 0);
        total[r] += seen;
        return seen;
    };
    auto put = [&](int u, bool all) {
#pragma GCC unroll 4
        for (int r = 0; r < GROUP; r++) {
            const vf low = probability(r, u, all);
            if constexpr (half) store(s + r * LDS + u / 2, to_pairs(low, probability(r, u + VW, all)));
            else store(s + r * LDS + u, low);
        }
    };
    int u = see.from;
    for (; u < see.inner; u += UNIT) put(u, false);
    for (; u + UNIT <= see.outer; u += UNIT) put(u, true);
    for (; u < see.end; u += UNIT) put(u, false);
#pragma GCC unroll 4
    for (int r = 0; r < GROUP; r++) store(sums + r * VW, total[r]);
}

// Products with keys from..end of the stream's tile at j0 become scores of the query at this position.
INLINE void shape_scores(float* s, const Sight& see, Shape shape, const Stream& stream, int j0, int query) {
    for (int u = see.from; u < see.end; u += VW)
        store(s + u, shape(load(s + u), lanes() * stream.step + (stream.key(j0 + u) - query)).z);
}

struct ForwardTiles {
    float *kt, *v, *q, *s, *o, *sums, *top;
    Span see[QB];    // what each query sees of the stream at hand, in its indices
};
// Panels of keys, each stream's from a new one on.
INLINE int panels(const Streams& streams) {
    int n = 0;
    for (int i = 0; i < streams.count; i++) n += tiles(streams.s[i].keys, PANEL);
    return n;
}
static int64_t forward_floats(const Heads& h, int keys) {    // enough for either kind of words
    const int P = padded(h.HS);
    return int64_t(panels(Streams(h, keys))) * PANEL * P * 2 + QB * (2 * P + LDS + VW + 1);
}
static ForwardTiles forward_tiles(float* p, const Heads& h, int keys) {
    const int P = padded(h.HS);
    const int64_t all = int64_t(panels(Streams(h, keys))) * PANEL * P;
    float *q = p + 2 * all, *s = q + QB * P, *o = s + QB * LDS, *sums = o + QB * P;
    return {p, p + all, q, s, o, sums, sums + QB * VW, {}};
}
// Where panel j of kt starts, and key j of v.
template <bool half> INLINE float* packed_k(const ForwardTiles& t, int j, int HS) {
    return t.kt + int64_t(j) * padded(words<half>(HS));
}
template <bool half> INLINE float* packed_v(const ForwardTiles& t, int j, int HS) {
    return t.v + int64_t(words<half>(j)) * padded(HS);
}
// m queries of a head at i0, and the stream of keys that is packed from `panel` on.
struct Queries { int b, head, i0, m; };
struct PackedStream { Stream stream; int panel; };

// Drops probabilities of a tile: row r has those of keys first(r)..limit(r), and zeros beside them. What stays gets its
// factor with y.
template <bool half, class First, class Limit>
static void drop(float* s, const Call& c, const Queries& at, const Stream& stream, int j0, First first, Limit limit) {
    Kept<QB, KB> kept;
    kept.draw(c.h.dropout, pair_row(c.h.dropout, at.b, at.head, c.h.NH), at.i0, at.m, stream, j0, first, limit);
    for (int r = 0; r < at.m; r++)
        for (int j = first(r) / VW * VW; j < limit(r); j += VW) {
            float* p = s + r * LDS + (half ? j / 2 : j);
            if (half) *reinterpret_cast<vs*>(p) &= __builtin_convertvector(kept.lanes_of(r, j), vs);
            else store(p, kept_lanes(load(p), kept.lanes_of(r, j)));
        }
}

// Adds tile j0 of the stream's packed keys to the softmax of the queries.
template <bool half, bool masked>
static void query_tile_step(const Call& c, const ForwardTiles& t, Ahead<Work>& ahead, const Queries& at,
                            const PackedStream& from_stream, int j0) {
    constexpr int UNIT = half ? 2 * VW : VW;
    const int HS = c.h.HS, P = padded(HS), D = words<half>(HS), Q = padded(D), i0 = at.i0, m = at.m;
    const int rows = tiles(m, MR) * MR, packed = from_stream.panel + j0;
    const Shape shape(c.h, at.head);
    const float scale = (has_shape(c.h) ? 1 : shape.scale) * LOG2E;
    // Row r sees keys first(r)..limit(r) of the tile; its strip is computed for from(r)..limit(strip's last row).
    auto limit = [&](int r) {
        return least(KB, (masked ? t.see[least(r, m - 1)].to : c.pos + i0 + least(r + 1, m)) - j0);
    };
    auto first = [&](int r) { return masked ? most(0, t.see[least(r, m - 1)].from - j0) : 0; };
    auto from = [&](int r) { return first(r) / UNIT * UNIT; };
    const int all = limit(rows - 1);
    for (int p = from(0) / PANEL * PANEL; p < all; p += PANEL)
        for (int r = 0; r < rows; r += MR) {
            const int n = least(limit(r + MR - 1) - p, PANEL), skip = most(0, from(r) - p);
            ahead.some();
            if (n > skip)
                strip<false, half>(padded(n) - skip, D, t.q + r * Q, Q, 1, packed_k<half>(t, packed + p, HS) + skip,
                                   PANEL, t.s + r * LDS + p + skip, LDS);
        }
    for (int r = 0; r < rows; r += GROUP) {
        const int strip_row = r / MR * MR, last = r + GROUP - 1;
        Sight see = {from(strip_row), tiles(first(last), VW) * VW, limit(r) / VW * VW,
                     tiles(limit(strip_row + MR - 1), UNIT) * UNIT, {}, {}};
        if (see.end <= see.from) continue;
        if (see.outer <= see.inner) see.inner = see.outer = see.from;
        for (int g = 0; g < GROUP; g++) {
            see.first[g] = first(r + g), see.limit[g] = limit(r + g);
            if (has_shape(c.h))
                shape_scores(t.s + (r + g) * LDS, see, shape, from_stream.stream, j0, c.pos + i0 + r + g);
            if (r + g < m) fetch(c.y + ((int64_t(at.b) * c.S + i0 + r + g) * c.h.NH + at.head) * HS, HS);
        }
        online_softmax<half>(t.s + r * LDS, see, scale, t.top + r, t.sums + r * VW, t.o + r * P, P);
    }
    if (c.h.dropout.rate > 0) drop<half>(t.s, c, at, from_stream.stream, j0, first, limit);
    for (int p = from(0) / DEPTH * DEPTH; p < all; p += DEPTH)
        for (int r = 0; r < rows; r += MR) {
            const int end = least(limit(r + MR - 1), p + DEPTH), start = most(from(r), p);
            if (end > start)
                strip<true, half>(P, words<half>(end - start), t.s + r * LDS + words<half>(start), LDS, 1,
                                  packed_v<half>(t, packed + start, HS), P, t.o + r * P, P);
        }
}

// Adds all tiles of a stream that the queries see.
template <bool half>
static void add_stream(const Call& c, ForwardTiles& t, Ahead<Work>& ahead, const Queries& at, const PackedStream& s) {
    for (int r = 0; r < at.m; r++) t.see[r] = s.stream.of(keys_of(c.h, c.S, c.pos, at.b, at.i0 + r));
    const int from = t.see[0].from, last = t.see[at.m - 1].from, to = t.see[at.m - 1].to;
    const bool causal = s.stream.all && !c.h.keys;
    for (int j0 = from / KB * KB; j0 < to; j0 += KB)
        causal && j0 >= last ? query_tile_step<half, false>(c, t, ahead, at, s, j0)
                             : query_tile_step<half, true>(c, t, ahead, at, s, j0);
}

// y and lse of a tile of queries, over packed keys.
template <bool half>
static void query_tile(const Call& c, ForwardTiles& t, Ahead<Work>& ahead, const Streams& streams, const Queries& at) {
    const int HS = c.h.HS, P = padded(HS), m = at.m, rows = tiles(m, MR) * MR;
    const int64_t row = int64_t(at.b) * c.S + at.i0;
    pack_rows<half>(t.q, c.qkv + row * c.qkv_row() + int64_t(at.head) * HS, c.qkv_row(), m, rows, HS);
    clear(t.o, int64_t(rows) * P);
    clear(t.sums, rows * VW);
    for (int r = 0; r < rows; r++) t.top[r] = -INF;
    for (int i = 0, panel = 0; i < streams.count; panel += tiles(streams.s[i++].keys, PANEL) * PANEL)
        add_stream<half>(c, t, ahead, at, {streams.s[i], panel});
    float* lse = c.lse + (int64_t(at.b) * c.h.NH + at.head) * c.S + at.i0;
    for (int r = 0; r < m; r++) {
        const float total = sum(load(t.sums + r * VW)), inverse = c.h.dropout.factor() / total;
        float* y = c.y + ((row + r) * c.h.NH + at.head) * HS;    // y[b,s,head,:]
        each_vector(HS, [&](int64_t d, auto at) { at.put(y + d, load(t.o + r * P + d) * inverse); });
        t.sums[r] = total;    // overwrites sums of row 0 or later ones, which have been read
    }
    const float scale = has_shape(c.h) ? 1 : scale_of(c.h);
    if (c.lse)
        each_vector(m, [&](int64_t r, auto at) {
            at.put(lse + r, at.get(t.top + r) * scale + log2(at.get(t.sums + r)) * (1 / LOG2E));
        });
}

// Packs keys and values of a stream from `from` on until those before `to` are there.
template <bool half>
static int pack_keys(const Call& c, const ForwardTiles& t, const PackedStream& s, int64_t head, int from, int to) {
    const int HS = c.h.HS;
    const int64_t step = s.stream.step * c.keys.row;
    for (; from < to; from += PANEL) {
        const int n = least(PANEL, s.stream.keys - from);
        const int64_t row = head + s.stream.key(from) * c.keys.row;
        pack_transposed<half>(packed_k<half>(t, s.panel + from, HS), PANEL, c.keys.k + row, step, n, PANEL, HS);
        pack_sum<half>(packed_v<half>(t, s.panel + from, HS), c.keys.v + row, step, n, n, HS);
    }
    return from;
}

template <bool half> static void forward(const Call& c) {
    const int group = c.h.NH / c.h.NKV, threads = omp_get_max_threads();
    const Work work(c, threads);
    const Streams streams(c.h, c.pos + c.S);
    const int64_t floats = forward_floats(c.h, c.pos + c.S);
    float* scratch = static_cast<float*>(cpu_scratch(int64_t(sizeof(float)) * floats * threads));
#pragma omp parallel
    {
        ForwardTiles t = forward_tiles(scratch + floats * omp_get_thread_num(), c.h, c.pos + c.S);
        Ahead<Work> ahead = {work, threads, 768 / (c.S + 64) + 1};    // all rows of an item within its products
#pragma omp for schedule(dynamic)
        for (int item = 0; item < work.items; item++) {
            const auto [b, kv, from, to] = work.item(item);
            const int64_t head = b * c.keys.sequence + kv * c.keys.head;
            int packed[3] = {keys_of(c.h, c.S, c.pos, b, from).from / KB * KB, 0, 0};
            ahead.begin(item);
            for (int i = kv * group; i < (kv + 1) * group; i++)
                for (int i0 = from; i0 < to; i0 += QB) {
                    const int m = least(QB, c.S - i0);
                    const Span window = keys_of(c.h, c.S, c.pos, b, i0 + m - 1);
                    for (int n = 0, panel = 0; n < streams.count; panel += tiles(streams.s[n++].keys, PANEL) * PANEL)
                        packed[n] = pack_keys<half>(c, t, {streams.s[n], panel}, head, packed[n],
                                                    streams.s[n].of(window).to);
                    query_tile<half>(c, t, ahead, streams, {b, i, i0, m});
                    if (i == kv * group) ahead.used(least(QB, to - i0));
                }
        }
    }
}

template <class P> static void attention_forward(float* y, float* lse, const float* qkv, int B, int S, Heads h) {
    forward<sizeof(P) == 2 && NATIVE_BF16>({y, lse, qkv, packed_keys(qkv, S, h), B, S, 0, h});
}

// ---- generation -----------------------------------------------------------------------------------------------------

constexpr int SPLIT = 256;    // keys of an item

// o[0..nv vectors) = sum_j p[j] v[j,:]. Meanwhile prefetches the n rows at `next` (null: none).
template <int nv> INLINE void weigh(float* o, const float* p, const float* v, const float* next, int n, int HS) {
    vf even[nv] = {}, odd[nv] = {};
    int j = 0;
    for (; j + 2 <= n; j += 2, v += 2 * HS) {
        if (next) fetch(next + int64_t(j) * HS, 2 * HS);
#pragma GCC unroll 4
        for (int u = 0; u < nv; u++) {
            even[u] += p[j] * load(v + u * VW);
            odd[u] += p[j + 1] * load(v + HS + u * VW);
        }
    }
#pragma GCC unroll 4
    for (int u = 0; u < nv; u++) store(o + u * VW, even[u] + odd[u] + (j < n ? p[j] * load(v + u * VW) : vf{}));
}

// n keys for one query: o (padded HS) = sum of exp(score - top) v. Bound by memory: each key and value is read once.
// A head has few rows, so its values are prefetched while its keys are read, the keys at `next` while its values are.
struct Part { float top, sum; };
// to_key: the first key's position less the query's.
static Part decode_part(float* o, const float* q, const float* k, const float* v, const float* next, int n, Heads h,
                        int head, int to_key) {
    const int HS = h.HS;
    const float scale = has_shape(h) ? 1 : scale_of(h);
    float score[SPLIT];
    vf top = set1(-INF), total = {};
    for (int j = 0; j < n; j++) {
        vf s = {};
        fetch(v + int64_t(j) * HS, HS);
        each_vector(HS, [&](int64_t d, auto at) { s += at.get(q + d) * at.get(k + int64_t(j) * HS + d); });
        score[j] = sum(s) * scale;
    }
    if (has_shape(h)) {
        const Shape shape(h, head);
        each_vector(n, [&](int64_t j, auto at) {
            at.put(score + j, shape(at.get(score + j), lanes() + (to_key + int(j))).z);
        });
    }
    each_vector(n, [&](int64_t j, auto at) { top = max(at.others(at.get(score + j), -INF), top); });
    const float most = max(top), base = most > -INF ? most : 0;
    each_vector(n, [&](int64_t j, auto at) {
        vf e = at.others(exp(at.get(score + j) - base), 0);
        total += e;
        at.put(score + j, e);
    });
    int d = 0;
    for (; d + 4 * VW <= HS; d += 4 * VW) weigh<4>(o + d, score, v + d, d ? nullptr : next, n, HS);
    for (; d + VW <= HS; d += VW) weigh<1>(o + d, score, v + d, d ? nullptr : next, n, HS);
    if (d < HS) {
        vf s = {};
        for (int j = 0; j < n; j++) s += score[j] * load_some(v + int64_t(j) * HS + d, HS - d);
        store(o + d, s);
    }
    return {base, sum(total)};
}

// y of one query of one head, joined from the parts that its keys are split in.
static void join_parts(float* y, const float* o, const Part* end, int splits, int HS) {
    float top = end[0].top, total = 0;
    for (int s = 1; s < splits; s++) top = end[s].top > top ? end[s].top : top;
    for (int s = 0; s < splits; s++) total += end[s].sum * exp(set1(end[s].top - top))[0];
    each_vector(HS, [&](int64_t d, auto at) {
        vf sum = {};
        for (int s = 0; s < splits; s++)
            sum += load(o + int64_t(s) * padded(HS) + d) * exp(set1(end[s].top - top));
        at.put(y + d, sum / total);
    });
}

static void copy_head(float* to, const float* from, int HS) {
    each_vector(HS, [&](int64_t d, auto at) { at.put(to + d, at.get(from + d)); });
}

// Each query's output, maximum and sum over each part of its keys.
static int64_t decode_scratch(int B, int pos, Heads h) {
    const int splits = tiles(pos + 1 - first_key(h, 1, pos, 0, 0), SPLIT);
    return int64_t(sizeof(float)) * B * h.NH * splits * (padded(h.HS) + 2);
}

// S = 1. k, v: the caches. The item with a head's last keys first appends the new one.
static void decode(const Call& c, float* k, float* v) {
    const int HS = c.h.HS, P = padded(HS), NH = c.h.NH, group = NH / c.h.NKV;
    const int first = first_key(c.h, 1, c.pos, 0, 0), n = c.pos + 1 - first, splits = tiles(n, SPLIT);
    const int64_t parts = int64_t(c.B) * NH * splits;
    float* o = static_cast<float*>(cpu_scratch(decode_scratch(c.B, c.pos, c.h)));
    Part* ends = reinterpret_cast<Part*>(o + parts * P);
    const Keys fresh = packed_keys(c.qkv, 1, c.h);
    const int items = c.B * c.h.NKV * splits;
    auto place = [&](int item) {    // where the item's first key is in the caches
        const int split = item % splits, kv = item / splits % c.h.NKV, b = item / splits / c.h.NKV;
        return b * c.keys.sequence + kv * c.keys.head + (first + int64_t(split) * SPLIT) * HS;
    };
#pragma omp parallel if (int64_t(c.B) * c.h.NKV * n * HS > ONE_THREAD)
    {
        const Range mine = my_share(items, 1), rows = my_share(c.B * NH, 1);
        for (int item = int(mine.from); item < mine.to; item++) {
            const int split = item % splits, kv = item / splits % c.h.NKV, b = item / splits / c.h.NKV;
            const int64_t at = place(item);
            const float* next = item + 1 < mine.to ? k + place(item + 1) : nullptr;
            if (split + 1 == splits) {
                const int64_t from = b * fresh.sequence + kv * fresh.head;
                const int64_t to = at + (n - 1 - split * SPLIT) * int64_t(HS);
                copy_head(k + to, fresh.k + from, HS);
                copy_head(v + to, fresh.v + from, HS);
            }
            for (int i = kv * group; i < (kv + 1) * group; i++) {
                const int64_t row = int64_t(b) * NH + i, part = row * splits + split;
                ends[part] = decode_part(o + part * P, c.qkv + b * c.qkv_row() + int64_t(i) * HS, k + at, v + at,
                                         next, least(SPLIT, n - split * SPLIT), c.h, i,
                                         first + split * SPLIT - c.pos);
                if (splits == 1) join_parts(c.y + row * HS, o + part * P, ends + part, 1, HS);
            }
        }
        if (splits > 1) {
#pragma omp barrier
            for (int64_t row = rows.from; row < rows.to; row++)
                join_parts(c.y + row * HS, o + row * splits * P, ends + row * splits, splits, HS);
        }
    }
}

static void attention_cached(float* y, float* k_cache, float* v_cache, const float* qkv, int B, int S, const int* p,
                             int maxT, Heads h) {
    const int pos = *p;
    const Keys fresh = packed_keys(qkv, S, h);
    const Keys cache = {k_cache, v_cache, h.HS, int64_t(h.NKV) * maxT * h.HS, int64_t(maxT) * h.HS};
    const Call c = {y, nullptr, qkv, cache, B, S, pos, h};
    if (S == 1) return decode(c, k_cache, v_cache);
#pragma omp parallel for schedule(static)
    for (int item = 0; item < B * h.NKV * S; item++) {
        const int s = item % S, kv = item / S % h.NKV, b = item / S / h.NKV;
        const int64_t from = b * fresh.sequence + s * fresh.row + kv * fresh.head;
        const int64_t to = b * cache.sequence + (pos + s) * cache.row + kv * cache.head;
        copy_head(k_cache + to, fresh.k + from, h.HS);
        copy_head(v_cache + to, fresh.v + from, h.HS);
    }
    forward<false>(c);
}

static int64_t tiles_scratch(const CallSizes& call) {
    return int64_t(sizeof(float)) * forward_floats(call.heads, call.p + call.S) * omp_get_max_threads();
}
static int64_t cached_scratch(const CallSizes& call) {
    return call.S == 1 ? decode_scratch(call.B, call.p, call.heads) : tiles_scratch(call);
}

ENTRY_WITH_SCRATCH(attention_forward, attention_forward<P>, tiles_scratch)
ENTRY_WITH_SCRATCH(attention_cached, attention_cached, cached_scratch)
}   // namespace ISA

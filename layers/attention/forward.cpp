// forward.cpp - attention in tiles with an online softmax (Dao et al. 2022); saves log-sum-exps.
//
// A tile is QB queries by KB keys. The keys of a head are transposed once, so that the product of a
// strip of MR queries and a panel of keys computes a vector of keys' scores at once. Strips end at
// the diagonal. An item of work is (sequence, kv head, range of query tiles), and the split into
// items changes no result. Head sizes are padded to whole vectors within the tiles.
//
// With a window, spans or a sparse pattern, tiles that are invisible to all queries are skipped.
// Partly visible tiles have code of their own (masked: true), so that the others cost no more. A
// pattern's keys are packed as streams of their own, one after the other (visible_keys.h).
//
// half: q, k, v and the unnormalised probabilities, which lie in 0..1, are rounded to bf16 when
// they are packed. Sums, scores, maxima, exponentials and their totals are float. The bf16 table
// uses half if the CPU multiplies bf16, by vectors of pairs or by AMX tiles. For AMX, strips have
// 16 rows and sums are padded with zeros to whole tiles.
//
// With a soft cap or ALiBi a tile's products become scores in a pass of their own, in L1. Dropout
// is a pass over the probabilities.
//
// Cross-attention: keys are those of another sequence, and values may have a size of their own.
//
// Bound by FMAs: 4 S^2/2 HS FLOPs per head, an exp for every 4 HS of them. Extra memory: O(S) a
// thread.
#include "layers/simd/amx_tiles.h"

#include "dropout_mask.h"

namespace ISA {
constexpr int QB = 48, KB = 256, LDS = KB + VW;    // LDS: stride of score rows
constexpr int DEPTH = 128;                         // keys per product with v; these fit L1

struct Call {
    Outputs y;
    float* lse;    // may be null
    const float* q;
    Keys keys;
    int B, S, pos;    // pos: of the first query
    Heads h;
    int64_t reserved = 0;    // bytes at the beginning of the scratch
    int key_count() const { return h.keys_of(pos + S); }
};

// An item of work: queries from..to of the heads that share a key/value head.
struct Item {
    int b, kv, from, to;
};
struct WorkItems {
    static constexpr int COUNT = 3;
    const Call& c;
    int heads, qt, ranges, items;
    WorkItems(const Call& call, int threads) : c(call) {
        heads = c.B * c.h.NKV;
        qt = tiles(c.S, QB);
        ranges = least(qt, tiles(4 * threads, heads));
        items = heads * ranges;
    }
    Item item(int i) const {
        const int head = i % heads, range = ranges - 1 - i / heads;    // longest range first
        return {head / c.h.NKV, head % c.h.NKV, qt * range / ranges * QB, least(qt * (range + 1) / ranges * QB, c.S)};
    }
    void rows(int i, Rows* r, int& from, int& to) const {
        const Item at = item(i);
        const int n = c.h.NH / c.h.NKV * c.h.HS;
        const int64_t keys = at.b * c.keys.sequence + c.pos * c.keys.row, row = c.h.q_row();
        r[0] = rows_of(c.q + int64_t(at.b) * c.S * row + int64_t(at.kv) * n, row, n);
        r[1] = rows_of(c.keys.k + keys + at.kv * c.keys.head, c.keys.row, c.h.HS);
        r[2] = rows_of(c.keys.v + keys + at.kv * c.keys.value_head, c.keys.row, c.h.value_size());
        from = at.from;
        to = at.to;
    }
};

// ---- forward ------------------------------------------------------------------------------------

// Keys visible to GROUP rows of a strip: row r sees first[r]..limit[r], all rows see inner..outer,
// and no row sees a key outside from..end. from and end are multiples of the keys in a vector of
// words (VW, with half 2 VW), inner and outer are multiples of VW.
constexpr int GROUP = MR / 2;
struct RowMask {
    int from, inner, outer, end, first[GROUP], limit[GROUP];
};
// Adds GROUP rows of a tile's scores, which lie LDS apart, to the softmax. Visible scores become
// 2^(c (score - top)), where top is the row's new maximum; the others in from..end become zero.
// With half, the results are packed into words in place. Sums and outputs are rescaled to the new
// maximum.
template <bool half>
INLINE void online_softmax(float* s, const RowMask& mask, float c, float* top, float* sums, float* o, int P) {
    vf m[GROUP], base[GROUP], total[GROUP];
    auto part = [&](int r, int u, vf x, float fill) { return between(u, mask.first[r], mask.limit[r], x, fill); };
#pragma GCC unroll 4
    for (int r = 0; r < GROUP; r++) m[r] = set1(-INF);
    for (int u = mask.inner; u < mask.outer; u += VW)
#pragma GCC unroll 4
        for (int r = 0; r < GROUP; r++) m[r] = max(load(s + r * LDS + u), m[r]);
    auto seen_max = [&](int u, int to) {
        for (; u < to; u += VW)
#pragma GCC unroll 4
            for (int r = 0; r < GROUP; r++) m[r] = max(part(r, u, load(s + r * LDS + u), -INF), m[r]);
    };
    seen_max(mask.from, mask.inner);
    seen_max(mask.outer, mask.end);
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
    int u = mask.from;
    for (; u < mask.inner; u += UNIT) put(u, false);
    for (; u + UNIT <= mask.outer; u += UNIT) put(u, true);
    for (; u < mask.end; u += UNIT) put(u, false);
#pragma GCC unroll 4
    for (int r = 0; r < GROUP; r++) store(sums + r * VW, total[r]);
}

// Turns one query's products with the keys mask.from to mask.end - 1 of the tile at j0 into scores.
INLINE void shape_scores(float* s, const RowMask& mask, ScoreTransform shape, const Stream& stream, int j0, int query) {
    for (int u = mask.from; u < mask.end; u += VW)
        store(s + u, shape(load(s + u), lanes() * stream.step + (stream.key(j0 + u) - query)).z);
}

struct ForwardTiles {
    float *kt, *v, *q, *s, *o, *sums, *top;
    Span mask[QB];     // visible keys of each query, as stream indices
    Span reach[QB];    // enclose mask; neither end decreases
};
// Number of panels of keys. Each stream begins a new panel.
INLINE int panels(const Streams& streams) {
    int n = 0;
    for (int i = 0; i < streams.count; i++) n += tiles(streams.s[i].keys, PANEL);
    return n;
}
static int64_t forward_floats(const Heads& h, int keys) {    // for floats, or pairs of bf16
    const int P = padded(h.HS) + padded(h.value_size());
    return int64_t(panels(Streams(h, keys))) * PANEL * P + QB * (P + LDS + VW + 1);
}
static ForwardTiles forward_tiles(float* p, const Heads& h, int keys) {
    const int P = padded(h.HS), V = padded(h.value_size());
    const int64_t all = int64_t(panels(Streams(h, keys))) * PANEL;
    float *v = p + all * P, *q = v + all * V, *s = q + QB * P, *o = s + QB * LDS, *sums = o + QB * V;
    return {p, v, q, s, o, sums, sums + QB * VW, {}, {}};
}
// Addresses of the panel of packed keys that begins with key j, and of the packed value of key j. j
// counts packed keys.
template <bool half> INLINE float* packed_k(const ForwardTiles& t, int j, int HS) {
    return t.kt + int64_t(j) * padded(words<half>(HS));
}
template <bool half> INLINE float* packed_v(const ForwardTiles& t, int j, int HV) {
    return t.v + int64_t(words<half>(j)) * padded(HV);
}
// m queries of a head from i0 on.
struct Queries {
    int b, head, i0, m;
};
// A stream (visible_keys.h). panel: index of its first key among the packed keys; a panel begins
// there.
struct PackedStream {
    Stream stream;
    int panel;
};

// Applies dropout to probabilities of a tile: row r has probabilities of keys first(r)..limit(r),
// and zeros around them. The factor 1 / (1 - rate) is applied to y.
template <bool half, class First, class Limit>
static void drop(float* s, const Call& c, const Queries& at, const Stream& stream, int j0, First first, Limit limit) {
    DropoutMask<QB, KB> kept;
    kept.draw(c.h.dropout, pair_row(c.h.dropout, at.b, at.head, c.h.NH), at.i0, at.m, stream, j0, first, limit);
    for (int r = 0; r < at.m; r++)
        for (int j = first(r) / VW * VW; j < limit(r); j += VW) {
            float* p = s + r * LDS + (half ? j / 2 : j);
            if (half) *reinterpret_cast<vs*>(p) &= __builtin_convertvector(kept.lanes_of(r, j), vs);
            else store(p, kept_lanes(load(p), kept.lanes_of(r, j)));
        }
}

// Adds tile j0 of the stream's packed keys to the softmax of the queries.
template <bool half, bool masked, class Set>
static void query_tile_step(const Call& c, const ForwardTiles& t, Set& set, Prefetcher<WorkItems>& ahead,
                            const Queries& at, const PackedStream& from_stream, int j0) {
    constexpr int UNIT = half ? 2 * VW : VW, R = STRIP<Set>;
    const int HS = c.h.HS, HV = c.h.value_size(), P = padded(HV), D = words<half>(HS), Q = padded(D);
    const int i0 = at.i0, m = at.m, rows = tiles(m, MR) * MR, packed = from_stream.panel + j0;
    const ScoreTransform shape(c.h, at.head, int64_t(at.b) * c.S + at.i0);
    const float scale = (has_score_transform(c.h) ? 1 : shape.scale) * LOG2E;
    // Row r attends to keys visible(r) of the tile, which are among first(r)..limit(r); its strip
    // is computed for keys from(r) to the limit of the strip's last row.
    auto limit = [&](int r) {
        return least(KB, (masked ? t.reach[least(r, m - 1)].to : c.pos + i0 + least(r + 1, m)) - j0);
    };
    auto first = [&](int r) { return masked ? most(0, t.reach[least(r, m - 1)].from - j0) : 0; };
    auto visible = [&](int r) {
        const Span exact = masked ? t.mask[least(r, m - 1)] : Span{j0, j0 + limit(r)};
        return Span{most(0, exact.from - j0), least(KB, exact.to - j0)};
    };
    auto from = [&](int r) { return first(r) / UNIT * UNIT; };
    const int all = limit(rows - 1);
    for (int p = from(0) / PANEL * PANEL; p < all; p += PANEL)
        for (int r = 0; r < m; r += R) {
            const int n = least(limit(r + R - 1) - p, PANEL), skip = most(0, from(r) - p);
            ahead.some();
            if (n > skip)
                strip_by<false, half>(set, padded(n) - skip, D, t.q + r * Q, Q,
                                      packed_k<half>(t, packed + p, HS) + skip, PANEL, t.s + r * LDS + p + skip, LDS);
        }
    for (int r = 0; r < rows; r += GROUP) {    // groups may span two strips of 16 rows
        const int last = r + GROUP - 1;
        RowMask mask = {from(r / R * R), 0, KB, tiles(limit(last / R * R + R - 1), UNIT) * UNIT, {}, {}};
        if (mask.end <= mask.from) continue;
        for (int g = 0; g < GROUP; g++) {
            const Span keys = visible(r + g);
            mask.first[g] = keys.from, mask.inner = most(mask.inner, tiles(keys.from, VW) * VW);
            mask.limit[g] = keys.to, mask.outer = least(mask.outer, keys.to / VW * VW);
        }
        if (mask.outer <= mask.inner) mask.inner = mask.outer = mask.from;
        for (int g = 0; g < GROUP; g++) {
            if (has_score_transform(c.h))
                shape_scores(t.s + (r + g) * LDS, mask, shape.of(least(r + g, m - 1)), from_stream.stream, j0,
                             c.pos + i0 + r + g);
            if (r + g < m)
                c.y.with(((int64_t(at.b) * c.S + i0 + r + g) * c.h.NH + at.head) * HV, [&](auto* y) { fetch(y, HV); });
        }
        online_softmax<half>(t.s + r * LDS, mask, scale, t.top + r, t.sums + r * VW, t.o + r * P, P);
    }
    if (c.h.dropout.rate > 0) drop<half>(t.s, c, at, from_stream.stream, j0, first, limit);
    for (int p = from(0) / DEPTH * DEPTH; p < all; p += DEPTH)
        for (int r = 0; r < m; r += R) {
            const int end = least(limit(r + R - 1), p + DEPTH), start = most(from(r), p);
            if (end > start)
                strip_by<true, half>(set, P, words<half>(end - start), t.s + r * LDS + words<half>(start), LDS,
                                     packed_v<half>(t, packed + start, HV), P, t.o + r * P, P);
        }
}

// Adds all tiles of a stream that are visible to the queries.
template <bool half, class Set> static void add_stream(const Call& c, ForwardTiles& t, Set& set,
                                                       Prefetcher<WorkItems>& ahead, const Queries& at,
                                                       const PackedStream& s) {
    const bool causal = s.stream.all && !c.h.keys && !c.h.source;
    for (int after = 0; after <= (is_two_sided(c.h) && !s.stream.all); after++) {
        for (int r = 0; r < at.m; r++)
            t.mask[r] = t.reach[r] = visible_in(s.stream, c.h, c.S, at.b, c.pos + at.i0 + r, after);
        for (int r = 1; r < at.m; r++) t.reach[r].to = most(t.reach[r].to, t.reach[r - 1].to);
        for (int r = at.m - 1; r > 0; r--) t.reach[r - 1].from = least(t.reach[r - 1].from, t.reach[r].from);
        const int from = t.reach[0].from, last = t.mask[at.m - 1].from, to = t.reach[at.m - 1].to;
        for (int j0 = from / KB * KB; j0 < to; j0 += KB)
            causal&& j0 >= last ? query_tile_step<half, false>(c, t, set, ahead, at, s, j0)
                                : query_tile_step<half, true>(c, t, set, ahead, at, s, j0);
    }
}

// Computes y and lse of a tile of queries, over packed keys.
template <bool half, class Set> static void query_tile(const Call& c, ForwardTiles& t, Set& set,
                                                       Prefetcher<WorkItems>& ahead, const Streams& streams,
                                                       const Queries& at) {
    const int HS = c.h.HS, HV = c.h.value_size(), P = padded(HV), m = at.m, rows = tiles(m, MR) * MR;
    const int64_t row = int64_t(at.b) * c.S + at.i0, q_row = c.h.q_row();
    pack_rows<half>(t.q, c.q + row * q_row + int64_t(at.head) * HS, q_row, m, rows, HS);
    clear(t.o, int64_t(rows) * P);
    clear(t.sums, rows * VW);
    for (int r = 0; r < rows; r++) t.top[r] = -INF;
    for (int i = 0, panel = 0; i < streams.count; panel += tiles(streams.s[i++].keys, PANEL) * PANEL)
        add_stream<half>(c, t, set, ahead, at, {streams.s[i], panel});
    float* lse = c.lse + (int64_t(at.b) * c.h.NH + at.head) * c.S + at.i0;
    for (int r = 0; r < m; r++) {
        const float total = sum(load(t.sums + r * VW)), inverse = c.h.dropout.factor() / total;
        c.y.with(((row + r) * c.h.NH + at.head) * HV, [&](auto* y) {    // y[b,s,head,:]
            each_vector(HV, [&](int64_t d, auto vec) { vec.put(y + d, load(t.o + r * P + d) * inverse); });
        });
        t.sums[r] = total;    // overwrites sums that have been read
    }
    const float scale = has_score_transform(c.h) ? 1 : scale_of(c.h);
    if (c.lse)
        each_vector(m, [&](int64_t r, auto vec) {
            vec.put(lse + r, vec.get(t.top + r) * scale + rounded_product(log2(vec.get(t.sums + r)) * (1 / LOG2E)));
        });
}

// Packs keys and values of a stream from `from` to `to`, in whole panels. Values beyond the last
// key become zero, because tiles multiply them by zero probabilities.
template <bool half>
static int pack_keys(const Call& c, const ForwardTiles& t, const PackedStream& s, int b, int kv, int from, int to) {
    const int HS = c.h.HS, HV = c.h.value_size();
    const int64_t step = s.stream.step * c.keys.row;
    for (; from < to; from += PANEL) {
        const int n = least(PANEL, s.stream.keys - from);
        const int64_t row = b * c.keys.sequence + s.stream.key(from) * c.keys.row;
        const float *k = c.keys.k + row + kv * c.keys.head, *v = c.keys.v + row + kv * c.keys.value_head;
        pack_transposed<half>(packed_k<half>(t, s.panel + from, HS), PANEL, k, step, n, PANEL, HS);
        pack_sum<half>(packed_v<half>(t, s.panel + from, HV), v, step, n, PANEL, HV);
    }
    return from;
}

template <bool half, class Set>
static void run_item(const Call& c, const WorkItems& work, int item, ForwardTiles t, Set& set) {
    const int group = c.h.NH / c.h.NKV;
    const Streams streams(c.h, c.key_count());
    Prefetcher<WorkItems> ahead = {work, 768 / (c.S + 64) + 1};    // all rows of an item within its products
    const auto [b, kv, from, to] = work.item(item);
    int packed[3] = {keys_of(c.h, c.S, b, c.pos + from).from / KB * KB, 0, 0};
    ahead.enter(item);
    for (int i = kv * group; i < (kv + 1) * group; i++)
        for (int i0 = from; i0 < to; i0 += QB) {
            const int m = least(QB, c.S - i0);
            const int last = i0 + m - 1, last_global = least(c.h.global_tokens - 1, last);
            const Span window = keys_of(c.h, c.S, b, c.pos + last);
            // The first key that these queries do not need. Queries of global tokens may need more
            // than the last one, and a two-sided pattern has keys after the window.
            auto end = [&](const Stream& stream) {
                if (!is_two_sided(c.h)) return stream.of(window).to;
                if (!stream.all) return visible_in(stream, c.h, c.S, b, last, true).to;
                return most(window.to, last_global < i0 ? 0 : keys_of(c.h, c.S, b, last_global).to);
            };
            for (int n = 0, panel = 0; n < streams.count; panel += tiles(streams.s[n++].keys, PANEL) * PANEL)
                packed[n] = pack_keys<half>(c, t, {streams.s[n], panel}, b, kv, packed[n], end(streams.s[n]));
            query_tile<half>(c, t, set, ahead, streams, {b, i, i0, m});
            if (i == kv * group) ahead.used(least(QB, to - i0));
        }
}
template <bool half> static void forward(const Call& c, Tiles kind = Tiles::none) {
    const int threads = pool_threads();
    const WorkItems work(c, threads);
    const int64_t floats = forward_floats(c.h, c.key_count());
    char* all = static_cast<char*>(cpu_scratch(c.reserved + int64_t(sizeof(float)) * floats * threads));
    float* scratch = reinterpret_cast<float*>(all + c.reserved);
    each_chunk(work.items, [&](int64_t item, int worker) {
        const ForwardTiles t = forward_tiles(scratch + floats * worker, c.h, c.key_count());
        Vectors vectors;
        if constexpr (half)
            if (kind != Tiles::none)
                return with_tiles(kind, [&](auto& set) { run_item<half>(c, work, int(item), t, set); });
        run_item<half>(c, work, int(item), t, vectors);
    });
}

template <class P, Tiles tiles>
static void cross_attention_forward(P* y, float* lse, const float* q, const float* kv, int B, int S, Heads h) {
    forward<sizeof(P) == 2 && NATIVE_BF16>({outputs(y), lse, q, packed_keys(kv, S, h), B, S, 0, h}, tiles);
}
template <class P, Tiles tiles>
static void attention_forward(P* y, float* lse, const float* qkv, int B, int S, Heads h) {
    cross_attention_forward<P, tiles>(y, lse, qkv, qkv, B, S, h);
}

template <class P, Tiles> static int64_t scratch_of(const CallSizes& call) {
    return prompt_bytes(call.heads, call.heads.keys_of(call.S));
}

// A prompt's attention in generation: bytes of scratch. The caller of prompt_forward allocates them
// together with `reserved` bytes of its own, which come first.
int64_t prompt_bytes(const Heads& h, int keys) {
    return int64_t(sizeof(float)) * forward_floats(h, keys) * pool_threads();
}
void prompt_forward(Outputs y, const float* q, Keys keys, int S, int pos, const Heads& h, int64_t reserved) {
    forward<false>({y, nullptr, q, keys, 1, S, pos, h, reserved});
}

REGISTER_CPU_TILES(attention_forward, attention_forward, scratch_of)
REGISTER_CPU_TILES(cross_attention_forward, cross_attention_forward, scratch_of)
}    // namespace ISA

// backward.cpp - gradients of attention, with probabilities recomputed from the log-sum-exp.
//
// A tile is QB queries by KB keys: s = q k^T and dp = dy v^T along vectors of keys, p = exp(s -
// lse) and ds = p (dp - delta), then dv += p^T dy, dk += ds^T q and dq += ds k. Queries are packed
// once for all tiles of keys; dk and dv of a tile of keys stay in cache until the last tile of
// queries.
//
// A head's tiles of keys are divided into n ranges of every n-th tile; n depends on the shape
// alone. Each range has a dq of its own, and these are added in order afterwards. An item of work
// is (sequence, kv head) or, if there are too few of these for the threads, one range of a head.
// Both kinds of items give the same bits.
//
// Windows, spans, streams, padding and half are as in forward.cpp. A sparse pattern's keys have a
// stream of their own (visible_keys.h), in which all queries after them add to their dk and dv; the
// stream of all keys does not write these. A query's dq takes such a key from the pattern's stream
// only if the key lies before the query's window, or after it, as in the forward pass. If the
// pattern is two-sided, queries of global tokens have no window, and a tile's ranges of keys do not
// rise. half rounds q, k, v, dy, p and ds, but not dy in delta. With dropout only the kept
// probabilities count for dv and dp; delta is dy . y.
//
// AMX tiles (used with half) need a left factor whose rows run along the summed dimension. For sums
// over queries, p^T and ds^T would have to be transposed. So the tiles add up dv^T = dy^T p and
// dk^T = q^T ds (HS,keys): dy^T and q^T are packed once for all tiles of keys, dv^T and dk^T are
// transposed at the end. Strips then have 16 rows, and sums over queries are padded to whole tiles
// of 32 by zeros in p and ds.
//
// Bound by FMAs: 10 S^2/2 HS FLOPs per head, and an exp for every 10 HS of them. Extra memory: O(S)
// per thread; if items are ranges, also n dq's for each head.
#include "layers/simd/amx_tiles.h"

#include "dropout_mask.h"

namespace ISA {
namespace {
constexpr int QB = 96, KB = 128, LDS = KB + 2 * VW;    // LDS: score stride; strips read beyond KB
constexpr int KEY_ROWS = tiles(KB, MR) * MR;
static_assert(QB % (2 * MR) == 0 && KB % PANEL == 0, "strips and panels are whole");

constexpr int NEXT = 16;    // rows prefetched before they are written

struct Back {
    float *dq, *dkv;
    const float* dy;
    Results y;
    const float *q, *kv, *lse;
    int B, S;
    Heads h;
    int key_count() const { return h.keys_of(S); }
    Keys keys() const { return packed_keys(kv, S, h); }
};
constexpr int QUERY_TILE = 32;    // queries of a tile of dy^T or q^T
// rows_held: a head's rows of packed queries. pairs_held: pairs of queries in a row of dy^T or q^T.
// They exceed S and S / 2, because products read whole strips, pairs and tiles.
INLINE int rows_held(int S) { return (S + QUERY_TILE) / 2 * 2; }
INLINE int pairs_held(int S) { return padded(S / 2) + QUERY_TILE; }

struct Workspace {
    float *kt, *vt, *k, *dk, *dv, *p, *ds, *ds_rows;    // ds_rows: bf16 ds, left factor of dq
    // q, dy: queries of the heads that share this k and v, and gradients of their outputs, packed
    // as left factors. q_sum, dy_sum: the same numbers, packed for the products that sum over
    // queries (dk, dv). For AMX tiles these are transposed; for vectors of bf16 they are right
    // factors. With floats they are unused: q and dy serve for these products, too.
    float *q, *dy, *q_sum, *dy_sum, *delta;
    float* dq;
    int packed;    // rows of q and dy packed so far
};
int64_t tile_floats(int S, Heads h) {
    const int64_t P = padded(h.HS), V = padded(h.value_size()), group = h.NH / h.NKV, rows = rows_held(S) * group;
    return (P + V) * (KB + KEY_ROWS + rows + (NATIVE_BF16 ? group * pairs_held(S) : 0)) + KB * P +
           (NATIVE_BF16 ? 5 : 4) * QB * LDS / 2 + padded(int(rows));
}
Workspace make_workspace(float* x, int S, Heads h) {
    const int64_t P = padded(h.HS), V = padded(h.value_size()), group = h.NH / h.NKV, rows = rows_held(S) * group;
    const int64_t pairs = NATIVE_BF16 ? group * pairs_held(S) : 0;
    auto take = [&](int64_t n) { return (x += n) - n; };
    Workspace t = {};
    t.kt = take(KB * P), t.vt = take(KB * V), t.k = take(KB * P);
    t.dk = take(KEY_ROWS * P), t.dv = take(KEY_ROWS * V);
    t.p = take(QB * LDS), t.ds = take(QB * LDS), t.ds_rows = take(NATIVE_BF16 ? QB * LDS / 2 : 0);
    t.q = take(rows * P), t.dy = take(rows * V), t.q_sum = take(pairs * P), t.dy_sum = take(pairs * V);
    t.delta = take(rows);
    return t;
}
int64_t dq_floats(int S, Heads h) { return int64_t(h.NH / h.NKV) * rows_held(S) * padded(h.HS); }
int ranges_of(int B, int S, Heads h) { return least(tiles(h.keys_of(S), KB), tiles(32, B * h.NKV)); }
// Whether one item per head keeps all threads busy.
bool whole_heads(int heads, int threads) { return heads % threads == 0 || heads >= 4 * threads; }

// An item of work: ranges from..to-1 of the tiles of keys of head (b,kv).
struct Item {
    int b, kv, from, to;
};
struct WorkItems {
    static constexpr int COUNT = 5;
    const Back& c;
    int ranges, parts, items;    // parts: items for each head
    WorkItems(const Back& call, int threads) : c(call) {
        const int heads = c.B * c.h.NKV;
        ranges = ranges_of(c.B, c.S, c.h);
        parts = whole_heads(heads, threads) ? 1 : ranges;
        items = heads * parts;
    }
    Item item(int i) const {
        const int head = i / parts, part = i % parts;
        return {head / c.h.NKV, head % c.h.NKV, part, parts == 1 ? ranges : part + 1};
    }
    void rows(int i, Rows* r, int& from, int& to) const {
        const Item at = item(i);
        const int group = c.h.NH / c.h.NKV, n = group * c.h.HS, HV = c.h.value_size();
        const Keys keys = c.keys();
        const int64_t head = int64_t(at.b) * c.S * c.h.width() + int64_t(at.kv) * group * HV, row = c.h.q_row();
        r[0] = rows_of(c.q + int64_t(at.b) * c.S * row + int64_t(at.kv) * n, row, n);
        r[1] = rows_of(keys.k + at.b * keys.sequence + at.kv * keys.head, keys.row, c.h.HS);
        r[2] = rows_of(keys.v + at.b * keys.sequence + at.kv * keys.value_head, keys.row, HV);
        r[3] = rows_of(c.dy + head, c.h.width(), group * HV);
        c.y.with(head, [&](auto* y) { r[4] = rows_of(y, c.h.width(), group * HV); });
        to = least(c.S, c.key_count());    // the same rows of all arrays
        from = least(at.from * KB, to - 1);
    }
};

// ---- one tile of queries and keys ---------------------------------------------------------------

// Returns v in the lanes i for which at + i lies outside of from..to-1, and 0 in the others.
INLINE vf outside(int at, int from, int to, vf v) { return (lanes() + at < from) | (lanes() + at >= to) ? v : vf{}; }

// A tile: m queries and n keys of a stream. Row r attends to keys first(r)..limit(r)-1.
struct Pair {
    int m, n;
    int ahead;                               // first query minus first key
    const float *q, *dy, *q_sum, *dy_sum;    // at the first query
    int64_t pairs;                           // row stride of q_sum and dy_sum, if transposed
    const float *lse, *delta;
    float* dq;
    ScoreTransform shape;
    Stream stream;
    int i0, j0;                   // first query; first key in the stream
    uint64_t row;                 // pair_row of the head (layers/dropout.h)
    int to_key;                   // first key's position minus the first query's
    int first[QB], limit[QB];     // 0 to n
    int before[QB], after[QB];    // sparse pattern: dq uses keys below `before`, and from `after` on
    Span reach[QB];               // enclose first and limit; neither end decreases
};
// Kind of a tile. near: causal mask only. masked: Pair::first and limit are the mask. shaped:
// masked, and a ScoreTransform turns products into scores.
enum class Kind { near, masked, shaped };

// Turns the products q k^T in t.p and dy v^T in t.ds of row r (with half also of row r + 1) into p
// and ds. Keys outside of first..limit, and rows beyond m, get zeros, because products read whole
// strips. strip: number of keys that they read at least.
template <bool half, Kind kind>
INLINE void probabilities(const Workspace& t, const Pair& c, int r, int strip, float scale) {
    constexpr bool masked = kind != Kind::near;
    constexpr int ROWS = half ? 2 : 1, UNIT = half ? 2 * VW : VW;
    int first[ROWS], limit[ROWS];
    float base[ROWS], delta[ROWS];
    const ScoreTransform shapes[] = {c.shape.of(least(r, c.m - 1)), c.shape.of(least(r + 1, c.m - 1))};
#pragma GCC unroll 2
    for (int i = 0; i < ROWS; i++) {
        const bool is = r + i < c.m;
        first[i] = masked && is ? c.first[r + i] : 0;
        limit[i] = !is ? 0 : masked ? c.limit[r + i] : least(c.n, c.ahead + r + i + 1);
        base[i] = is ? c.lse[r + i] * LOG2E : 0;
        delta[i] = is ? c.delta[r + i] : 0;
    }
    float *p = t.p + r * LDS, *ds = t.ds + r * LDS, *p_to = half ? t.p + r / 2 * LDS : p,
          *ds_to = half ? t.ds + r / 2 * LDS : ds;
    auto put = [&](int u, auto all) {
        vf e[UNIT / VW][ROWS], g[UNIT / VW][ROWS];
#pragma GCC unroll 2
        for (int w = 0; w < UNIT / VW; w++)
#pragma GCC unroll 2
            for (int i = 0; i < ROWS; i++) {
                const int at = u + w * VW;
                const vf product = load(p + i * LDS + at), d = load(ds + i * LDS + at) - delta[i];
                if constexpr (kind == Kind::shaped) {
                    const int step = c.stream.step, to_key = step * at + c.to_key - r - i;
                    const Score score = shapes[i](product, lanes() * step + to_key);
                    e[w][i] = exp2(score.z * LOG2E - base[i]);
                    g[w][i] = e[w][i] * d * score.dz;
                } else {
                    e[w][i] = exp2(product * scale - base[i]);
                    g[w][i] = e[w][i] * d;
                }
                if (!all.is) e[w][i] = between(at, first[i], limit[i], e[w][i], 0);
                if (!all.is) g[w][i] = between(at, first[i], limit[i], g[w][i], 0);
            }
#pragma GCC unroll 2
        for (int w = 0; w < UNIT / VW; w++) {
            store(p_to + u + w * VW, half ? interleaved(e[w][0], e[w][ROWS - 1]) : e[w][0]);
            store(ds_to + u + w * VW, half ? interleaved(g[w][0], g[w][ROWS - 1]) : g[w][0]);
        }
        if constexpr (half)
#pragma GCC unroll 2
            for (int i = 0; i < ROWS; i++) {
                if (masked && !c.stream.all)
                    for (int w = 0; w < 2; w++)
                        g[w][i] = outside(u + w * VW, r + i < c.m ? c.before[r + i] : 0,
                                          r + i < c.m ? c.after[r + i] : LDS, g[w][i]);
                store(t.ds_rows + ((r + i) * LDS + u) / 2, to_pairs(g[0][i], g[1][i]));
            }
    };
    const int inner = tiles(most(first[0], first[ROWS - 1]), UNIT) * UNIT,
              outer = least(limit[0], limit[ROWS - 1]) / UNIT * UNIT;
    const int seen = most(limit[0], limit[ROWS - 1]), end = least(LDS, tiles(most(seen, strip) + MR, UNIT) * UNIT);
    int u = 0;
    for (; u < inner && u < end; u += UNIT) put(u, Flag<false>());
    for (; u < outer; u += UNIT) put(u, Flag<true>());
    for (; u < seen; u += UNIT) put(u, Flag<false>());
    for (; u < end; u += UNIT) {
#pragma GCC unroll 2
        for (int w = 0; w < UNIT; w += VW) store(p_to + u + w, vf{}), store(ds_to + u + w, vf{});
        if constexpr (half)
            for (int i = 0; i < ROWS; i++) store(t.ds_rows + ((r + i) * LDS + u) / 2, vf{});
    }
}

// Applies dropout to a tile. With `before` it is called before probabilities() and turns dy v^T
// into dp. Else it is called afterwards and clears the dropped pairs of p, which is then used for
// dv.
template <bool half, class First, class Limit> void drop(const Workspace& t, const Pair& c, const Dropout& d,
                                                         const DropoutMask<QB, KB>& kept, bool before, First first,
                                                         Limit limit) {
    const float factor = d.factor();
    for (int r = 0; r < c.m; r += half && !before ? 2 : 1)
        for (int j = first(r) / VW * VW; j < limit(half && !before ? r + 1 : r); j += VW) {
            float *ds = t.ds + r * LDS + j, *p = t.p + (half ? r / 2 : r) * LDS + j;
            vi keep = kept.lanes_of(r, j);
            if (before) {
                store(ds, kept_lanes(load(ds) * factor, keep));
                continue;
            }
            if (half) keep = (keep & 0xffff) | kept.lanes_of(r + 1, j) << 16;    // a word has two queries
            store(p, kept_lanes(load(p), keep));
        }
}

// Adds a tile of queries and keys to dk, dv and dq.
template <bool half, Kind kind, class Set>
void backward_pair(const Workspace& t, Set& set, const Pair& c, Heads h, Prefetcher<WorkItems>& ahead) {
    constexpr bool masked = kind != Kind::near;
    constexpr int R = STRIP<Set>;
    const int P = padded(h.HS), D = words<half>(h.HS), Q = padded(D), m = c.m;
    const int V = padded(h.value_size()), VD = words<half>(h.value_size()), VQ = padded(VD);
    auto limit = [&](int r) { return masked ? c.reach[least(r, m - 1)].to : least(c.n, c.ahead + r + 1); };
    auto first = [&](int r) { return masked ? c.reach[least(r, m - 1)].from : 0; };
    for (int p = first(0) / PANEL * PANEL; p < limit(m - 1); p += PANEL)
        for (int r = 0; r < m; r += R) {
            const int keys = least(limit(r + R - 1) - p, PANEL), skip = most(0, first(r) / VW * VW - p);
            if (keys <= skip) continue;
            ahead.some();
            const int w = padded(keys) - skip, to = r * LDS + p + skip;
            strip_by<false, half>(set, w, D, c.q + r * Q, Q, t.kt + p * Q + skip, PANEL, t.p + to, LDS);
            strip_by<false, half>(set, w, VD, c.dy + r * VQ, VQ, t.vt + p * VQ + skip, PANEL, t.ds + to, LDS);
        }
    DropoutMask<QB, KB> kept;
    if (h.dropout.rate > 0) {
        kept.draw(h.dropout, c.row, c.i0, m, c.stream, c.j0, first, limit);
        drop<half>(t, c, h.dropout, kept, true, first, limit);
    }
    // The number of keys up to which products over queries read row r of p and ds. AMX tiles read
    // whole panels, up to the last panel that any of QUERY_TILE queries attends to.
    auto strip_end = [&](int r) {
        if (TILED<Set>) return tiles(limit(r / QUERY_TILE * QUERY_TILE + QUERY_TILE - 1), PANEL) * PANEL;
        return masked ? limit(r / MR * MR + MR - 1) : 0;
    };
    for (int r = 0; r < (TILED<Set> ? tiles(m, QUERY_TILE) * QUERY_TILE : m); r += half ? 2 : 1)
        probabilities<half, kind>(t, c, r, strip_end(r), scale_of(h) * LOG2E);
    if (h.dropout.rate > 0) drop<half>(t, c, h.dropout, kept, false, first, limit);
    // If masked, all queries that attend to any of the J keys from j on are in begin..end-1.
    int begin = 0, end = masked ? 0 : m;
    constexpr int J = TILED<Set> ? PANEL : MR;
    for (int j = 0; j < c.n; j += J) {
        while (masked && begin < m && limit(begin) <= j) begin++;
        while (masked && end < m && first(end) < j + J) end++;
        const int r = masked ? begin : most(0, j - c.ahead);
        if (r >= end) continue;
        if constexpr (TILED<Set>) {
            const int row = r / QUERY_TILE * (QUERY_TILE / 2), steps = (end + 1) / 2 - row,
                      keys = padded(least(PANEL, c.n - j));
            const float *p = t.p + row * LDS + j, *ds = t.ds + row * LDS + j;
            for (int d = 0, to = j; d < most(P, V); d += 16, to += 16 * KB) {
                const int64_t at = d * c.pairs + row;
                if (d < V) strip_by<true, half>(set, keys, steps, c.dy_sum + at, c.pairs, p, LDS, t.dv + to, KB);
                if (d < P) strip_by<true, half>(set, keys, steps, c.q_sum + at, c.pairs, ds, LDS, t.dk + to, KB);
            }
        } else {
            const int row = half ? r / 2 : r, steps = half ? (end + 1) / 2 - row : end - r;
            const float *dy = half ? c.dy_sum : c.dy, *q = half ? c.q_sum : c.q;
            strip<true, half>(V, steps, t.p + row * LDS + j, 1, LDS, dy + row * V, V, t.dv + j * V, V);
            strip<true, half>(P, steps, t.ds + row * LDS + j, 1, LDS, q + row * P, P, t.dk + j * P, P);
        }
    }
    if (masked && !half && !c.stream.all)
        for (int r = 0; r < m; r++)
            for (int u = c.before[r] / VW * VW; u < limit(r / MR * MR + MR - 1); u += VW)
                store(t.ds + r * LDS + u, outside(u, c.before[r], c.after[r], load(t.ds + r * LDS + u)));
    for (int r = 0; r < m; r += R) {
        constexpr int AT = TILED<Set> ? 32 : 2;
        const int keys = limit(r + R - 1), from = first(r) / AT * AT, word = words<half>(from);
        const float* ds = half ? t.ds_rows + r * LDS / 2 : t.ds + r * LDS;
        if (keys > from)
            strip_by<true, half>(set, P, words<half>(keys - from), ds + word, half ? LDS / 2 : LDS, t.k + word * P, P,
                                 c.dq + r * P, P);
    }
}

// ---- one head -----------------------------------------------------------------------------------

// The first query that attends to a key, rounded down to even: a word holds a pair of queries.
int first_query(const Back& c, int b, int key) { return queries_of(c.h, c.S, b, key).from / 2 * 2; }

// Packs the group's queries up to `to`: q and dy as left and right factors; delta[s] = dy . y.
template <bool half, class Set>
void pack_queries(const Back& c, Workspace& t, Prefetcher<WorkItems>& ahead, int b, int kv, int to) {
    const int HS = c.h.HS, HV = c.h.value_size(), group = c.h.NH / c.h.NKV, C = c.h.width(), P = padded(HS);
    const int V = padded(HV), Q = padded(words<half>(HS)), VQ = padded(words<half>(HV));
    const int from = t.packed, n = to - from, held = rows_held(c.S), rows = to == c.S ? held - from : n;
    const int64_t row = int64_t(b) * c.S + from, q_row = c.h.q_row();
    for (int g = 0; g < group; g++) {
        const int i = kv * group + g;
        const int64_t at = row * C + i * HV, to_row = int64_t(g) * held + from;
        const float *q = c.q + row * q_row + i * HS, *dy = c.dy + at;
        pack_rows<half>(t.q + to_row * Q, q, q_row, n, rows, HS);
        pack_rows<half>(t.dy + to_row * VQ, dy, C, n, rows, HV);
        if (TILED<Set>) {
            const int64_t pairs = pairs_held(c.S), to_pair = g * pairs, first = from / 2;
            pack_turned(t.q_sum + to_pair * P + first, pairs, q, q_row, n, rows, HS);
            pack_turned(t.dy_sum + to_pair * V + first, pairs, dy, C, n, rows, HV);
        } else if (half) {
            pack_sum<half>(t.q_sum + to_row / 2 * P, q, q_row, n, rows, HS);
            pack_sum<half>(t.dy_sum + to_row / 2 * V, dy, C, n, rows, HV);
        }
        c.y.with(at, [&](auto* y) { deltas(t.delta + to_row, dy, y, n, C, HV); });
    }
    t.packed = to;
    ahead.used(n);
}

// Sets which keys of a tile, the stream's keys from its j0-th on, each query of the pair of tiles
// attends to.
template <bool half> void see_keys(const Back& c, Pair& pair, int b, int i0, int j0) {
    auto in_tile = [&](int t) { return most(0, least(pair.n, t - j0)); };
    const bool two_sided = is_two_sided(c.h) && !pair.stream.all;
    for (int r = 0; r < pair.m; r++) {
        const Span window = keys_of(c.h, c.S, b, i0 + r), visible = visible_in(pair.stream, c.h, c.S, b, i0 + r);
        pair.first[r] = in_tile(visible.from);
        pair.before[r] = in_tile(visible.to);
        pair.limit[r] = pair.stream.all ? pair.before[r] : in_tile(pair.stream.below(i0 + r + 1));
        pair.after[r] = LDS;
        if (two_sided) {
            pair.limit[r] = in_tile(visible_in(pair.stream, c.h, c.S, b, i0 + r, true).to);
            pair.after[r] = in_tile(pair.stream.below(window.to));
        }
        pair.reach[r] = {pair.first[r], most(pair.limit[r], r ? pair.reach[r - 1].to : 0)};
    }
}

// Processes all pairs of a tile of queries of the group's head g and the tile of n keys at j0: adds
// to dk, dv and dq. span: the queries that attend to some of these keys, but for those in `gap`.
template <bool half, class Set> void query_tiles(const Back& c, Workspace& t, Set& set, Prefetcher<WorkItems>& ahead,
                                                 int b, int kv, int g, const Stream& stream, int j0, int n, Span span,
                                                 Span gap) {
    const int HS = c.h.HS, HV = c.h.value_size(), P = padded(HS), V = padded(HV), group = c.h.NH / c.h.NKV;
    const int Q = padded(words<half>(HS)), VQ = padded(words<half>(HV)), i = kv * group + g;
    const bool shaped = has_score_transform(c.h), plain = stream.all && !c.h.keys && !c.h.source && !shaped;
    for (int i0 = span.from; i0 < span.to; i0 += QB) {
        if (i0 >= gap.from && i0 + QB <= gap.to) continue;
        const int m = least(QB, c.S - i0);
        if (t.packed < i0 + m) pack_queries<half, Set>(c, t, ahead, b, kv, i0 + m);
        const int64_t row = int64_t(g) * rows_held(c.S) + i0, pairs = pairs_held(c.S);
        const int64_t head_pairs = TILED<Set> ? g * pairs : row / 2, first = TILED<Set> ? i0 / 2 : 0;
        Pair pair = {m,
                     n,
                     i0 - j0,
                     t.q + row * Q,
                     t.dy + row * VQ,
                     t.q_sum + head_pairs * P + first,
                     t.dy_sum + head_pairs * V + first,
                     pairs,
                     c.lse + (int64_t(b) * c.h.NH + i) * c.S + i0,
                     t.delta + row,
                     t.dq + row * P,
                     ScoreTransform(c.h, i, int64_t(b) * c.S + i0),
                     stream,
                     i0,
                     j0,
                     pair_row(c.h.dropout, b, i, c.h.NH),
                     stream.key(j0) - i0,
                     {},
                     {},
                     {},
                     {},
                     {}};
        const bool near = plain && keys_of(c.h, c.S, b, i0 + m - 1).from <= j0;
        if (!near) see_keys<half>(c, pair, b, i0, j0);
        if (shaped) backward_pair<half, Kind::shaped>(t, set, pair, c.h, ahead);
        else if (near) backward_pair<half, Kind::near>(t, set, pair, c.h, ahead);
        else backward_pair<half, Kind::masked>(t, set, pair, c.h, ahead);
    }
}

// Computes dk and dv of a tile of keys: up to KB keys of the stream (visible_keys.h) from its j0-th
// on, of sequence b and kv head kv. Adds the tile's contribution to dq.
template <bool half, class Set> void key_tile(const Back& c, Workspace& t, Set& set, Prefetcher<WorkItems>& ahead,
                                              int b, int kv, const Stream& stream, int j0) {
    const int HS = c.h.HS, HV = c.h.value_size(), P = padded(HS), V = padded(HV);
    const int Q = padded(words<half>(HS)), VQ = padded(words<half>(HV)), n = least(KB, stream.keys - j0);
    const Keys keys = c.keys();
    const int64_t step = stream.step * keys.row, row = b * keys.sequence + stream.key(j0) * keys.row;
    const int64_t at = row + kv * keys.head, value_at = row + kv * keys.value_head;
    for (int p = 0; p < n; p += PANEL) {
        const int m = least(PANEL, n - p);
        pack_transposed<half>(t.kt + p * Q, PANEL, keys.k + at + p * step, step, m, PANEL, HS);
        pack_transposed<half>(t.vt + p * VQ, PANEL, keys.v + value_at + p * step, step, m, PANEL, HV);
    }
    pack_sum<half>(t.k, keys.k + at, step, n, TILED<Set> ? KB : n, HS);
    clear(t.dk, KEY_ROWS * (P + V));    // also dv, which follows
    const int first_key = stream.key(j0), last_key = stream.key(j0 + n - 1);
    Span span = {first_query(c, b, first_key), stream.all ? queries_of(c.h, c.S, b, last_key).to : c.S}, gap = {};
    if (is_two_sided(c.h)) {
        const Span* queries = c.h.queries + int64_t(b) * c.S;
        const Span all = {queries[first_key].from / 2 * 2, queries[last_key].to};
        const int globals = least(c.h.global_tokens, all.to);    // queries before this have no window
        if (!stream.all) span = all;
        else if (all.from < globals) gap = {globals, span.from}, span = {all.from, most(globals, span.to)};
    }
    for (int g = 0; g < c.h.NH / c.h.NKV; g++) query_tiles<half>(c, t, set, ahead, b, kv, g, stream, j0, n, span, gap);
    float *dk = c.dkv + c.h.first_k() + at, *dv = c.dkv + c.h.first_v() + value_at;
    const float *dk_rows = TILED<Set> ? t.kt : t.dk,
                *dv_rows = TILED<Set> ? t.vt : t.dv;    // kt, vt are reused
    if (TILED<Set>) pack_transposed(t.kt, P, t.dk, KB, P, P, KB), pack_transposed(t.vt, V, t.dv, KB, V, V, KB);
    const float scale = scale_of(c.h), factor = c.h.dropout.factor();
    for (int j = 0; j < n; j++) {
        if (j + NEXT < n) fetch(dk + (j + NEXT) * step, HS), fetch(dv + (j + NEXT) * step, HV);
        if (stream.all && in_pattern(c.h, j0 + j)) continue;
        each_vector(HS,
                    [&](int64_t d, auto lanes) { lanes.put(dk + j * step + d, load(dk_rows + j * P + d) * scale); });
        each_vector(HV,
                    [&](int64_t d, auto lanes) { lanes.put(dv + j * step + d, load(dv_rows + j * V + d) * factor); });
    }
}

// Writes dq of queries from..to-1: scale * the sum of `count` parts, `stride` apart.
void write_dq(const Back& c, const float* parts, int count, int64_t stride, int b, int kv, int from, int to) {
    const int HS = c.h.HS, P = padded(HS), group = c.h.NH / c.h.NKV;
    const float scale = scale_of(c.h);
    for (int g = 0; g < group; g++)
        for (int s = from; s < to; s++) {
            const float* part = parts + (int64_t(g) * rows_held(c.S) + s) * P;
            float* dq = c.dq + (int64_t(b) * c.S + s) * c.h.q_row() + int64_t(kv * group + g) * HS;
            if (s + NEXT < to) fetch(dq + NEXT * c.h.q_row(), HS);
            each_vector(HS, [&](int64_t d, auto at) {
                vf total = load(part + d);
                for (int i = 1; i < count; i++) total += load(part + i * stride + d);
                at.put(dq + d, total * scale);
            });
        }
}

// Computes an item's ranges of keys. An item that has all ranges of its head also writes dq.
template <bool half, class Set>
void head(const WorkItems& work, Workspace& t, Set& set, Prefetcher<WorkItems>& ahead, float* dq, Item item) {
    const Back& c = work.c;
    const int64_t size = dq_floats(c.S, c.h);
    const Streams streams(c.h, c.key_count());
    t.packed = streams.count > 1 ? 0 : first_query(c, item.b, item.from * KB);
    for (int range = item.from; range < item.to; range++) {
        t.dq = range == item.from ? dq : dq + size;
        clear(t.dq, size);
        int tile = range;    // counts through the tiles of all streams
        for (int n = 0; n < streams.count; tile -= tiles(streams.s[n++].keys, KB))
            for (; tile * KB < streams.s[n].keys; tile += work.ranges)
                key_tile<half>(c, t, set, ahead, item.b, item.kv, streams.s[n], tile * KB);
        if (t.dq != dq)
            each_vector(size, [&](int64_t i, auto at) { at.put(dq + i, at.get(dq + i) + at.get(t.dq + i)); });
    }
    if (work.parts == 1) write_dq(c, dq, 1, 0, item.b, item.kv, 0, c.S);
}

int64_t backward_scratch(int B, int S, Heads h) {
    const int64_t threads = pool_threads(), heads = int64_t(B) * h.NKV;
    const int64_t dqs = whole_heads(int(heads), int(threads)) || ranges_of(B, S, h) == 1 ? 2 * threads
                                                                                         : heads * ranges_of(B, S, h);
    return int64_t(sizeof(float)) * (tile_floats(S, h) * threads + dq_floats(S, h) * dqs);
}

template <bool half, class Set> void run_item(const WorkItems& work, int item, Set& set, float* mine, float* dqs) {
    const Back& c = work.c;
    Workspace t = make_workspace(mine, c.S, c.h);
    Prefetcher<WorkItems> ahead = {work, 1536 / (c.S + 64) + 1};    // all rows well within the products
    ahead.enter(item);
    float* dq = work.parts > 1 ? dqs + dq_floats(c.S, c.h) * item : mine + tile_floats(c.S, c.h);
    head<half>(work, t, set, ahead, dq, work.item(item));
}
template <bool half> void backward(const Back& c, Tiles kind) {
    const int threads = pool_threads();
    const WorkItems work(c, threads);
    const int64_t size = dq_floats(c.S, c.h), own = tile_floats(c.S, c.h) + (work.parts > 1 ? 0 : 2 * size);
    float* scratch = static_cast<float*>(cpu_scratch(backward_scratch(c.B, c.S, c.h)));
    float* dqs = scratch + own * threads;    // per item, or per thread
    each_chunk(work.items, [&](int64_t item, int worker) {
        float* mine = scratch + own * worker;
        Vectors vectors;
        if constexpr (half)
            if (kind != Tiles::none)
                return with_tiles(kind, [&](auto& set) { run_item<half>(work, int(item), set, mine, dqs); });
        run_item<half>(work, int(item), vectors, mine, dqs);
    });
    each_chunk(work.parts > 1 ? work.items : 0, [&](int64_t item, int) {
        const Item at = work.item(int(item));
        write_dq(c, dqs + size * (item - at.from), work.parts, size, at.b, at.kv,
                 int(int64_t(c.S) * at.from / work.parts), int(int64_t(c.S) * at.to / work.parts));
    });
}
}    // namespace

template <class P, Tiles tiles> static void cross_attention_backward(float* dq, float* dkv, const float* dy, const P* y,
                                                                     const float* q, const float* kv, const float* lse,
                                                                     int B, int S, Heads h) {
    backward<sizeof(P) == 2 && NATIVE_BF16>({dq, dkv, dy, results(y), q, kv, lse, B, S, h}, tiles);
}
template <class P, Tiles tiles> static void attention_backward(float* dqkv, const float* dy, const P* y,
                                                               const float* qkv, const float* lse, int B, int S,
                                                               Heads h) {
    cross_attention_backward<P, tiles>(dqkv, dqkv, dy, y, qkv, qkv, lse, B, S, h);
}
template <class P, Tiles> static int64_t scratch_of(const CallSizes& call) {
    return backward_scratch(call.B, call.S, call.heads);
}

REGISTER_CPU_TILES(attention_backward, attention_backward, scratch_of)
REGISTER_CPU_TILES(cross_attention_backward, cross_attention_backward, scratch_of)
}    // namespace ISA

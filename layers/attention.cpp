// attention.cpp - causal attention in tiles with an online softmax (Dao et al. 2022); only the log-sum-exp is saved.
//
// A tile is QB queries by KB keys. The keys of a head are transposed once, so that a strip of MR queries times a tile
// of keys runs along vectors of keys; strips stop at the diagonal. Forward: 4 S^2/2 HS FLOPs a head, an item of work is
// (sequence, kv head, range of query tiles), and the split into items changes no result. Backward: 10 S^2/2 HS FLOPs
// a head, an item is (sequence, kv head, every n-th tile of keys); with n > 1 each item has a dQ of its own, added in
// order afterwards; n depends on the shape alone. Head sizes are padded to whole vectors within the tiles.
// A window or documents: the first key that a query sees grows with the query. Tiles before it are not looked at;
// those that it lies in have code of their own (far: true), so that the others cost what they cost without.
// Bound by FMAs; an exp for 4 HS (forward) or 10 HS (backward) of them. Extra memory: O(S) a thread, and n dQ's.
#include "tile.h"

namespace ISA {
constexpr int QB = 48, KB = 64, LDS = KB + VW;    // LDS: score rows; strips of MR keys read beyond KB
constexpr int KEY_ROWS = (KB + MR - 1) / MR * MR;
constexpr float INF = __builtin_inff();

INLINE int tiles(int n, int size) { return (n + size - 1) / size; }
INLINE void clear(float* p, int64_t n) { each_vector(n, [&](int64_t i, auto at) { at.put(p + i, vf{}); }); }
INLINE int most(int a, int b) { return a > b ? a : b; }
// Lane i is v where first <= at + i < limit.
INLINE vf between(int at, int first, int limit, vf v, float fill) {
    return (lanes() + at >= first) & (lanes() + at < limit) ? v : set1(fill);
}
// The first key that query s of sequence b sees, at position pos + s.
INLINE int first_key(Heads h, int S, int pos, int b, int s) {
    const int window = h.window ? most(0, pos + s - h.window + 1) : 0;
    return h.doc_start ? most(window, h.doc_start[int64_t(b) * S + s]) : window;
}

// Where the heads of one call are: positions within a sequence, sequences, heads.
struct Keys {
    const float *k, *v;
    int64_t row, sequence, head;
};
struct Call {
    float *y, *lse;      // lse may be null
    const float* qkv;
    Keys keys;
    int B, S, pos;       // query s sees keys first_key..pos+s
    Heads h;
    int64_t qkv_row() const { return int64_t(h.NH + 2 * h.NKV) * h.HS; }
    float scale() const { return 1 / __builtin_sqrtf(float(h.HS)); }
};

// ---- forward -------------------------------------------------------------------------------------------------------

// Row of scores -> exp(score - top), zero outside first..limit; sums and output are brought to the new maximum.
INLINE void online_softmax(float* s, int first, int limit, float* top, float* sums, float* o, int P) {
    vf m = set1(-INF), x[KB / VW];
#pragma GCC unroll 16
    for (int u = 0; u < KB / VW; u++) {
        x[u] = between(u * VW, first, limit, load(s + u * VW), -INF);
        m = max(x[u], m);
    }
    float now = max(m);
    vf total = load(sums);
    if (now > *top) {
        vf factor = exp(set1(*top - now));
        total *= factor;
        for (int d = 0; d < P; d += VW) store(o + d, load(o + d) * factor);
        *top = now;
    }
#pragma GCC unroll 16
    for (int u = 0; u < KB / VW; u++) {
        if (u * VW >= limit) break;    // nobody reads on
        vf e = exp(x[u] - *top);
        total += e;
        store(s + u * VW, e);
    }
    store(sums, total);
}

struct ForwardTiles { float *kt, *v, *q, *s, *o, *sums, *top; };
static int64_t forward_floats(int keys, int HS) {
    return int64_t(tiles(keys, KB)) * KB * padded(HS) * 2 + QB * (2 * padded(HS) + LDS + VW + 1);
}
static ForwardTiles forward_tiles(float* p, int keys, int HS) {
    const int64_t all = int64_t(tiles(keys, KB)) * KB * padded(HS);
    float *q = p + 2 * all, *s = q + QB * padded(HS), *o = s + QB * LDS, *sums = o + QB * padded(HS);
    return {p, p + all, q, s, o, sums, sums + QB * VW};
}

// The m queries at i0 meet the packed keys of tile j0. far: some see none of its first keys.
template <bool far> static void query_tile_step(const Call& c, const ForwardTiles& t, int b, int i0, int m, int j0) {
    const int HS = c.h.HS, P = padded(HS), rows = tiles(m, MR) * MR;
    const float *kt = t.kt + int64_t(j0) * P, *v = t.v + int64_t(j0) * P;
    // row r sees keys first(r)..limit(r) of the tile
    auto limit = [&](int r) { return least(KB, c.pos + i0 + least(r + 1, m) - j0); };
    auto first = [&](int r) { return far ? most(0, first_key(c.h, c.S, c.pos, b, i0 + least(r, m - 1)) - j0) : 0; };
    for (int r = 0; r < rows; r += MR) {
        const int n = limit(r + MR - 1), from = first(r) / VW * VW;
        if (n > from) strip<false>(padded(n) - from, HS, t.q + r * P, P, 1, kt + from, KB, t.s + r * LDS + from, LDS);
    }
    for (int r = 0; r < rows; r++) {
        const int n = limit(r), from = first(r);
        if (n > from) online_softmax(t.s + r * LDS, from, n, t.top + r, t.sums + r * VW, t.o + r * P, P);
        if (far && n <= from) clear(t.s + r * LDS, KB);    // the strip's first rows may see some
        // the strip's later rows see up to MR - 1 keys more
        const int end = n > 0 ? padded(n) : 0;
        if (end < KB && end < n + MR) clear(t.s + r * LDS + end, padded(MR));
    }
    for (int r = 0; r < rows; r += MR) {
        const int n = limit(r + MR - 1), from = first(r);
        if (n > from) strip<true>(P, n - from, t.s + r * LDS + from, LDS, 1, v + from * P, P, t.o + r * P, P);
    }
}

// y of queries i0..i0+m of head i, over packed keys
static void query_tile(const Call& c, const ForwardTiles& t, int b, int i, int i0) {
    const int HS = c.h.HS, P = padded(HS), m = least(QB, c.S - i0), rows = tiles(m, MR) * MR;
    const float* q = c.qkv + (int64_t(b) * c.S + i0) * c.qkv_row() + int64_t(i) * HS;
    pack_rows(t.q, q, c.qkv_row(), m, rows, HS, c.scale());
    clear(t.o, int64_t(rows) * P);
    clear(t.sums, rows * VW);
    for (int r = 0; r < rows; r++) t.top[r] = -INF;
    const int first = first_key(c.h, c.S, c.pos, b, i0), last = first_key(c.h, c.S, c.pos, b, i0 + m - 1);
    for (int j0 = first / KB * KB; j0 < c.pos + i0 + m; j0 += KB)
        j0 < last ? query_tile_step<true>(c, t, b, i0, m, j0) : query_tile_step<false>(c, t, b, i0, m, j0);
    for (int r = 0; r < m; r++) {
        float total = sum(load(t.sums + r * VW)), inverse = 1 / total;
        float* y = c.y + ((int64_t(b) * c.S + i0 + r) * c.h.NH + i) * HS;    // y[b,s,i,:]
        each_vector(HS, [&](int64_t d, auto at) { at.put(y + d, load(t.o + r * P + d) * inverse); });
        if (c.lse) c.lse[(int64_t(b) * c.h.NH + i) * c.S + i0 + r] = t.top[r] + __builtin_logf(total);
    }
}

static void forward(const Call& c) {
    const int HS = c.h.HS, P = padded(HS), group = c.h.NH / c.h.NKV, heads = c.B * c.h.NKV, qt = tiles(c.S, QB);
    const int threads = omp_get_max_threads(), ranges = least(qt, tiles(4 * threads, heads));
    const int64_t floats = forward_floats(c.pos + c.S, HS);
    float* scratch = static_cast<float*>(cpu_scratch(int64_t(sizeof(float)) * floats * threads));
#pragma omp parallel
    {
        ForwardTiles t = forward_tiles(scratch + floats * omp_get_thread_num(), c.pos + c.S, HS);
#pragma omp for schedule(dynamic)
        for (int item = 0; item < heads * ranges; item++) {
            const int head = item % heads, b = head / c.h.NKV, kv = head % c.h.NKV;
            const int range = ranges - 1 - item / heads;    // the longest first
            const int from = qt * range / ranges * QB, to = least(qt * (range + 1) / ranges * QB, c.S);
            const int64_t at = b * c.keys.sequence + kv * c.keys.head;
            for (int j0 = first_key(c.h, c.S, c.pos, b, from) / KB * KB; j0 < c.pos + to; j0 += KB) {
                const int n = least(KB, c.pos + to - j0);
                const int64_t row = at + j0 * c.keys.row;
                pack_transposed(t.kt + int64_t(j0) * P, KB, c.keys.k + row, c.keys.row, n, KB, HS);
                pack_rows(t.v + int64_t(j0) * P, c.keys.v + row, c.keys.row, n, n, HS, 1);
            }
            for (int i = kv * group; i < (kv + 1) * group; i++)
                for (int i0 = from; i0 < to; i0 += QB) query_tile(c, t, b, i, i0);
        }
    }
}

INLINE Keys packed_keys(const float* qkv, int S, Heads h) {
    const int64_t row = int64_t(h.NH + 2 * h.NKV) * h.HS;
    const float* k = qkv + int64_t(h.NH) * h.HS;
    return {k, k + int64_t(h.NKV) * h.HS, row, S * row, h.HS};
}
void attention_forward(float* y, float* lse, const float* qkv, int B, int S, Heads h) {
    forward({y, lse, qkv, packed_keys(qkv, S, h), B, S, 0, h});
}

// ---- backward ------------------------------------------------------------------------------------------------------

struct BackwardTiles { float *kt, *vt, *k, *dk, *dv, *q, *dy, *p, *ds, *delta, *dq; };
// Items per (sequence, kv head): enough for many threads at small batches.
INLINE int key_splits(int B, int S, Heads h) { return least(tiles(S, KB), tiles(32, B * h.NKV)); }
static int64_t backward_floats(int S, Heads h) {    // without dq
    return padded(h.HS) * (3 * KB + 2 * KEY_ROWS + 2 * QB) + 2 * QB * LDS + int64_t(padded(S)) * (h.NH / h.NKV);
}
static BackwardTiles backward_tiles(float* x, int HS) {
    const int P = padded(HS);
    BackwardTiles t;
    t.kt = x;
    t.vt = t.kt + KB * P;
    t.k = t.vt + KB * P;
    t.dk = t.k + KB * P;
    t.dv = t.dk + KEY_ROWS * P;
    t.q = t.dv + KEY_ROWS * P;
    t.dy = t.q + QB * P;
    t.p = t.dy + QB * P;
    t.ds = t.p + QB * LDS;
    t.delta = t.ds + QB * LDS;
    t.dq = nullptr;
    return t;
}

// Scores and dy v^T -> p and ds = p (dp - delta), zero outside first..limit
INLINE void probabilities(float* p, float* ds, int first, int limit, float lse, float delta) {
#pragma GCC unroll 16
    for (int u = 0; u < LDS; u += VW) {
        vf e = {}, g = {};
        if (u < limit && u + VW > first) {
            e = between(u, first, limit, exp(load(p + u) - lse), 0);
            g = between(u, first, limit, e * (load(ds + u) - delta), 0);
        }
        store(p + u, e);
        store(ds + u, g);
    }
}

// A tile of queries and one of keys: row r of m queries sees keys first(r)..ahead + r of n.
struct Pair {
    int m, n, ahead;           // ahead = i0 - j0
    const float *lse, *delta;
    float* dq;                 // of the queries' first row
    int first[QB];             // ascending; not below 0
};

// Adds to dk, dv and dq. far: some queries see none of the first keys.
template <bool far> static void backward_pair(const BackwardTiles& t, const Pair& c, int HS) {
    const int P = padded(HS), m = c.m, rows = tiles(m, MR) * MR;
    auto limit = [&](int r) { return least(c.n, c.ahead + r + 1); };
    auto first = [&](int r) { return far ? c.first[r] : 0; };
    for (int r = 0; r < rows; r += MR) {
        const int keys = limit(r + MR - 1), from = first(r) / VW * VW, w = padded(keys) - from;
        if (keys <= from) continue;
        strip<false>(w, HS, t.q + r * P, P, 1, t.kt + from, KB, t.p + r * LDS + from, LDS);
        strip<false>(w, HS, t.dy + r * P, P, 1, t.vt + from, KB, t.ds + r * LDS + from, LDS);
    }
    for (int r = 0; r < m; r++)
        probabilities(t.p + r * LDS, t.ds + r * LDS, first(r), limit(r), c.lse[r], c.delta[r]);
    int end = far ? 0 : m;    // of the queries that see any of the MR keys at j
    for (int j = 0; j < c.n; j += MR) {
        const int r = most(0, j - c.ahead);    // the first query that sees key j
        while (far && end < m && first(end) < j + MR) end++;
        if (r >= end) continue;
        strip<true>(P, end - r, t.p + r * LDS + j, 1, LDS, t.dy + r * P, P, t.dv + j * P, P);
        strip<true>(P, end - r, t.ds + r * LDS + j, 1, LDS, t.q + r * P, P, t.dk + j * P, P);
    }
    for (int r = 0; r < rows; r += MR) {
        const int keys = limit(r + MR - 1), from = first(r);
        if (keys > from) strip<true>(P, keys - from, t.ds + r * LDS + from, LDS, 1, t.k + from * P, P, c.dq + r * P, P);
    }
}

struct Back { float* dqkv; const float *dy, *y, *qkv, *lse; int B, S; Heads h; };
INLINE int64_t dq_floats(int S, Heads h) { return int64_t(h.NH / h.NKV) * tiles(S, QB) * QB * padded(h.HS); }

// dk and dv of the tile of keys at j0 of (b, kv), and its share of dq
static void key_tile(const Back& c, const BackwardTiles& t, int b, int kv, int j0) {
    const int HS = c.h.HS, P = padded(HS), group = c.h.NH / c.h.NKV, n = least(KB, c.S - j0), C = c.h.NH * HS;
    const Keys keys = packed_keys(c.qkv, c.S, c.h);
    const int64_t at = b * keys.sequence + j0 * keys.row + kv * keys.head;
    const float scale = 1 / __builtin_sqrtf(float(HS));
    pack_transposed(t.kt, KB, keys.k + at, keys.row, n, KB, HS);
    pack_transposed(t.vt, KB, keys.v + at, keys.row, n, KB, HS);
    pack_rows(t.k, keys.k + at, keys.row, n, KB, HS, 1);
    clear(t.dk, 2 * KEY_ROWS * P);    // dv follows
    for (int g = 0; g < group; g++)
        for (int i0 = j0 / QB * QB; i0 < c.S; i0 += QB) {
            const int i = kv * group + g, m = least(QB, c.S - i0), rows = tiles(m, MR) * MR;
            if (i0 + m <= j0) continue;
            auto first = [&](int r) { return most(0, first_key(c.h, c.S, 0, b, i0 + r) - j0); };
            if (first(0) >= n) break;    // later queries see nothing of this tile either
            const int64_t row = int64_t(b) * c.S + i0;
            pack_rows(t.q, c.qkv + row * keys.row + int64_t(i) * HS, keys.row, m, rows, HS, scale);
            pack_rows(t.dy, c.dy + row * C + int64_t(i) * HS, C, m, rows, HS, 1);
            Pair pair = {m, n, i0 - j0, c.lse + (int64_t(b) * c.h.NH + i) * c.S + i0,
                         t.delta + int64_t(g) * padded(c.S) + i0, t.dq + (int64_t(g) * tiles(c.S, QB) * QB + i0) * P,
                         {}};
            const bool far = first(m - 1) > 0;
            for (int r = 0; far && r < m; r++) pair.first[r] = first(r);
            far ? backward_pair<true>(t, pair, HS) : backward_pair<false>(t, pair, HS);
        }
    float *dk = c.dqkv + (keys.k - c.qkv) + at, *dv = c.dqkv + (keys.v - c.qkv) + at;
    for (int j = 0; j < n; j++)
        each_vector(HS, [&](int64_t d, auto place) {
            place.put(dk + j * keys.row + d, load(t.dk + j * P + d));
            place.put(dv + j * keys.row + d, load(t.dv + j * P + d));
        });
}

// delta[s] = dy . y, the sum over keys of p dp, for the group's heads
static void deltas(const Back& c, float* delta, int b, int kv) {
    const int group = c.h.NH / c.h.NKV;
    for (int g = 0; g < group; g++)
        for (int s = 0; s < c.S; s++) {
            const int64_t row = ((int64_t(b) * c.S + s) * c.h.NH + kv * group + g) * c.h.HS;
            vf total = {};
            each_vector(c.h.HS, [&](int64_t d, auto at) { total += at.get(c.dy + row + d) * at.get(c.y + row + d); });
            delta[int64_t(g) * padded(c.S) + s] = sum(total);
        }
}

// dq of query tile rows = scale * the sum of its parts, `stride` apart
static void write_dq(const Back& c, const float* parts, int count, int64_t stride, int b, int kv, int from, int to) {
    const int HS = c.h.HS, P = padded(HS), group = c.h.NH / c.h.NKV;
    const float scale = 1 / __builtin_sqrtf(float(HS));
    for (int g = 0; g < group; g++)
        for (int s = from; s < to; s++) {
            const float* part = parts + (int64_t(g) * tiles(c.S, QB) * QB + s) * P;
            float* dq = c.dqkv + (int64_t(b) * c.S + s) * (c.h.NH + 2 * c.h.NKV) * HS + int64_t(kv * group + g) * HS;
            each_vector(HS, [&](int64_t d, auto at) {
                vf total = load(part + d);
                for (int i = 1; i < count; i++) total += load(part + i * stride + d);
                at.put(dq + d, total * scale);
            });
        }
}

void attention_backward(float* dqkv, const float* dy, const float* y, const float* qkv, const float* lse, int B, int S,
                        Heads h) {
    const Back c = {dqkv, dy, y, qkv, lse, B, S, h};
    const int heads = B * h.NKV, splits = key_splits(B, S, h), threads = omp_get_max_threads();
    const int64_t floats = backward_floats(S, h), dq = dq_floats(S, h);
    float* scratch = static_cast<float*>(cpu_scratch(
        int64_t(sizeof(float)) * (floats * threads + dq * (splits > 1 ? int64_t(heads) * splits : threads))));
    float* dqs = scratch + floats * threads;    // one for each item, or for each thread
#pragma omp parallel
    {
        BackwardTiles t = backward_tiles(scratch + floats * omp_get_thread_num(), h.HS);
#pragma omp for schedule(dynamic)
        for (int item = 0; item < heads * splits; item++) {
            const int head = item / splits, split = item % splits, b = head / h.NKV, kv = head % h.NKV;
            t.dq = dqs + dq * (splits > 1 ? item : omp_get_thread_num());
            clear(t.dq, dq);
            deltas(c, t.delta, b, kv);
            for (int j0 = split * KB; j0 < S; j0 += splits * KB) key_tile(c, t, b, kv, j0);
            if (splits == 1) write_dq(c, t.dq, 1, 0, b, kv, 0, S);
        }
#pragma omp for schedule(static)
        for (int item = 0; item < (splits > 1 ? heads * splits : 0); item++) {
            const int head = item / splits, part = item % splits;
            write_dq(c, dqs + dq * splits * head, splits, dq, head / h.NKV, head % h.NKV,
                     int(int64_t(S) * part / splits), int(int64_t(S) * (part + 1) / splits));
        }
    }
}

int64_t attention_scratch(int B, int S, Heads h) {
    const int64_t threads = omp_get_max_threads(), splits = key_splits(B, S, h);
    const int64_t forward = forward_floats(S, h.HS) * threads;
    const int64_t items = splits > 1 ? int64_t(B) * h.NKV * splits : threads;
    const int64_t backward = backward_floats(S, h) * threads + dq_floats(S, h) * items;
    return int64_t(sizeof(float)) * (forward > backward ? forward : backward);
}

// ---- generation ----------------------------------------------------------------------------------------------------

constexpr int SPLIT = 256;    // keys of an item

// o[0..nv vectors) = sum_j p[j] v[j,:]
template <int nv> INLINE void weigh(float* o, const float* p, const float* v, int n, int HS) {
    vf even[nv] = {}, odd[nv] = {};
    int j = 0;
    for (; j + 2 <= n; j += 2, v += 2 * HS)
#pragma GCC unroll 4
        for (int u = 0; u < nv; u++) {
            even[u] += p[j] * load(v + u * VW);
            odd[u] += p[j + 1] * load(v + HS + u * VW);
        }
#pragma GCC unroll 4
    for (int u = 0; u < nv; u++) store(o + u * VW, even[u] + odd[u] + (j < n ? p[j] * load(v + u * VW) : vf{}));
}

// n keys for one query: o (padded HS) = sum of exp(score - top) v. Bound by memory: each key and value is read once.
struct Part { float top, sum; };
static Part decode_part(float* o, const float* q, const float* k, const float* v, int n, int HS, float scale) {
    float score[SPLIT];
    vf top = set1(-INF), total = {};
    for (int j = 0; j < n; j++) {
        vf s = {};
        each_vector(HS, [&](int64_t d, auto at) { s += at.get(q + d) * at.get(k + int64_t(j) * HS + d); });
        score[j] = sum(s) * scale;
    }
    each_vector(n, [&](int64_t j, auto at) { top = max(at.others(at.get(score + j), -INF), top); });
    const float most = max(top), base = most > -INF ? most : 0;
    each_vector(n, [&](int64_t j, auto at) {
        vf e = at.others(exp(at.get(score + j) - base), 0);
        total += e;
        at.put(score + j, e);
    });
    int d = 0;
    for (; d + 4 * VW <= HS; d += 4 * VW) weigh<4>(o + d, score, v + d, n, HS);
    for (; d + VW <= HS; d += VW) weigh<1>(o + d, score, v + d, n, HS);
    if (d < HS) {
        vf s = {};
        for (int j = 0; j < n; j++) s += score[j] * load_some(v + int64_t(j) * HS + d, HS - d);
        store(o + d, s);
    }
    return {base, sum(total)};
}

static void decode(const Call& c) {    // S = 1
    const int HS = c.h.HS, P = padded(HS), NH = c.h.NH, group = NH / c.h.NKV;
    const int first = first_key(c.h, 1, c.pos, 0, 0), n = c.pos + 1 - first, splits = tiles(n, SPLIT);
    const int64_t parts = int64_t(c.B) * NH * splits;
    float* o = static_cast<float*>(cpu_scratch(int64_t(sizeof(float)) * parts * (P + 2)));
    Part* ends = reinterpret_cast<Part*>(o + parts * P);
#pragma omp parallel
    {
#pragma omp for schedule(static)
        for (int item = 0; item < c.B * c.h.NKV * splits; item++) {
            const int split = item % splits, kv = item / splits % c.h.NKV, b = item / splits / c.h.NKV;
            const int64_t at = b * c.keys.sequence + kv * c.keys.head + (first + int64_t(split) * SPLIT) * HS;
            for (int i = kv * group; i < (kv + 1) * group; i++) {
                const int64_t part = (int64_t(b) * NH + i) * splits + split;
                ends[part] = decode_part(o + part * P, c.qkv + b * c.qkv_row() + int64_t(i) * HS, c.keys.k + at,
                                         c.keys.v + at, least(SPLIT, n - split * SPLIT), HS, c.scale());
            }
        }
#pragma omp for schedule(static)
        for (int row = 0; row < c.B * NH; row++) {
            const Part* end = ends + int64_t(row) * splits;
            float top = end[0].top, total = 0;
            for (int s = 1; s < splits; s++) top = end[s].top > top ? end[s].top : top;
            for (int s = 0; s < splits; s++) total += end[s].sum * exp(set1(end[s].top - top))[0];
            each_vector(HS, [&](int64_t d, auto at) {
                vf y = {};
                for (int s = 0; s < splits; s++)
                    y += load(o + (int64_t(row) * splits + s) * P + d) * exp(set1(end[s].top - top));
                at.put(c.y + int64_t(row) * HS + d, y / total);
            });
        }
    }
}

void attention_cached(float* y, float* k_cache, float* v_cache, const float* qkv, int B, int S, const int* p, int maxT,
                      Heads h) {
    const int pos = *p;
    const Keys fresh = packed_keys(qkv, S, h);
    const Keys cache = {k_cache, v_cache, h.HS, int64_t(h.NKV) * maxT * h.HS, int64_t(maxT) * h.HS};
#pragma omp parallel for schedule(static)
    for (int item = 0; item < B * h.NKV * S; item++) {
        const int s = item % S, kv = item / S % h.NKV, b = item / S / h.NKV;
        const int64_t from = b * fresh.sequence + s * fresh.row + kv * fresh.head;
        const int64_t to = b * cache.sequence + (pos + s) * cache.row + kv * cache.head;
        each_vector(h.HS, [&](int64_t d, auto at) {
            at.put(k_cache + to + d, at.get(fresh.k + from + d));
            at.put(v_cache + to + d, at.get(fresh.v + from + d));
        });
    }
    const Call c = {y, nullptr, qkv, cache, B, S, pos, h};
    S == 1 ? decode(c) : forward(c);
}
}   // namespace ISA

// recurrent.cpp - attention without softmax (layers/ops.h: LinearAttention), in chunks of positions
// (Yang et al. 2023, section 4).
//
// Within a chunk b, the sum of log a, begins at 0. With q~ = scale f(q) exp(b) and
// k~ = f(k) exp(-b) the chunk's rows are
//   num = tril(q~ k~^T) v + q~ S       y = n num       S' = exp(b of the last) (S + k~^T v)
// where S is the state before the chunk. The backward pass has two sweeps, so no state needs to be
// stored: one forward, which recomputes the states, for dq; one backward, with U, the gradient of
// S + k~^T v, for dk, dv and the gates:
//   P = tril(g v^T)    dq~ = P k~ + g S^T    dk~ = P^T q~ + v U^T
//   dv = tril(q~ k~^T)^T g + k~ U    dS = U + q~^T g
// with g the gradient of num. For elu and performer, b = 0, q~ = f(q), k~ = f(k) and n = 1 / (f(q)
// . z). The denominator is num of one more column of v, which is all ones: z is this column of S,
// dz this column of U, and h, the denominator's gradient, this column of g. Performer's f
// multiplies each row of queries and of keys by w, which takes 2 HS^2 FLOPs more. A chunk ends
// where a document ends, and the next chunk begins without a state. An item of work is a key/value
// head of a sequence with its query heads; its data fit the thread's L2. Bound by FMAs: a position
// and head cost 4 HS (HS + CHUNK / 2) FLOPs forward and 2.5 times that backward, whatever the
// length.
#include "attention_cpu.h"

namespace ISA {
namespace {
// Positions of a chunk, a multiple of MR. exp(-b) must fit a float: log a is at least -2 at every
// position (LOG_DECAY_MIN), so exp(-b) is at most exp(36 * 2), 2e31.
constexpr int CHUNK = 36;
static_assert(CHUNK % MR == 0);

struct Call {
    const float *qkv, *gates;
    int S;
    Heads h;
    bool elu() const { return h.linear == LinearAttention::elu; }
    bool performer() const { return h.linear == LinearAttention::performer; }
    bool has_z() const { return h.has_z(); }
    bool decays() const { return !has_z(); }
    // First position of the document that has position s.
    INLINE_MEMBER int first(int b, int s) const { return h.keys ? h.keys[int64_t(b) * S + s].from : 0; }
    int64_t row(int b, int s) const { return (int64_t(b) * S + s) * h.qkv_width(); }
    int64_t q(int b, int s, int i) const { return row(b, s) + int64_t(i) * h.HS; }
    int64_t k(int b, int s, int kv) const { return row(b, s) + int64_t(h.NH + kv) * h.HS; }
    int64_t v(int b, int s, int kv) const { return k(b, s, kv) + int64_t(h.NKV) * h.HS; }
    int64_t y(int b, int s, int i) const { return ((int64_t(b) * S + s) * h.NH + i) * h.HS; }
    int64_t gate(int b, int s, int kv) const { return ((int64_t(b) * S + s) * h.NKV + kv) * h.HS; }
    int64_t norm(int b, int s, int i) const { return (int64_t(b) * h.NH + i) * S + s; }
};

// ---- functions of one number --------------------------------------------------------------------

INLINE vf feature(bool elu, vf x) { return elu ? (x > 0 ? x + 1 : exp2(x * LOG2E)) : x; }
INLINE vf feature_slope(bool elu, vf x) { return elu ? (x > 0 ? set1(1) : exp2(x * LOG2E)) : set1(1); }
// log(1 + e^-|x|) = 2 artanh(s), s <= 1/3: its odd powers up to s^15 leave an error of 1e-9.
INLINE vf log_sigmoid(vf x) {
    const vf t = exp2(max(-x, x) * -LOG2E), s = t / (2 + t), s2 = s * s;
    vf odd = set1(1 / 15.0f);
#pragma GCC unroll 8
    for (int n = 13; n > 0; n -= 2) odd = odd * s2 + 1 / float(n);
    return min(x, set1(0)) - 2 * s * odd;
}
INLINE vf gate_decay(vf x) { return max(set1(LOG_DECAY_MIN), log_sigmoid(x) * GATE_SCALE); }
// d log a / d gate: GATE_SCALE sigmoid(-gate), or 0 if log a is at its bound.
INLINE vf gate_slope(vf x) {
    const vf slope = GATE_SCALE / (1 + exp2(max(set1(-87), min(set1(87), x)) * LOG2E));
    return log_sigmoid(x) * GATE_SCALE > LOG_DECAY_MIN ? slope : vf{};
}

// ---- a chunk ------------------------------------------------------------------------------------

// n positions from `from` on. fresh: the first of them begins a document or the sequence. ends: the
// last of them ends a document or the sequence. While a row is read, the row `ahead` rows further
// is prefetched: a head's rows are too far apart for hardware prefetchers.
struct Chunk {
    int from, n;
    bool fresh, ends;
    int ahead = CHUNK;
};
INLINE Chunk chunk_from(const Call& c, int b, int from, int S, bool begins) {
    int n = least(CHUNK, S - from);
    if (c.h.keys) n = 1;
    while (c.h.keys && n < CHUNK && from + n < S && c.first(b, from + n) != from + n) n++;
    return {from, n, c.h.keys ? c.first(b, from) == from : begins && from == 0, false};
}
INLINE Chunk chunk_to(const Call& c, int b, int to) {
    int n = 1;
    while (n < CHUNK && to - n > 0 && c.first(b, to - n) != to - n) n++;
    return {to - n, n, false, to == c.S || c.first(b, to) == to, -CHUNK};
}

// A thread's buffers. q~, k~, v, up = exp(b), g, the sums o and dv and x have the shape (CHUNK,P);
// the transposes kt and vt (P,CP); the scores a and p (CHUNK,CP); the states s and t (P,P), with
// rows for whole strips. Elements beyond HS and n are zero, up to whole strips of MR rows. x:
// performer's scaled queries or keys, or gradients of logarithms of features.
struct Workspace {
    float *q, *k, *v, *up, *g, *o, *dv, *x, *kt, *vt, *a, *p, *s, *t, *z, *h, *later;
    const float *w, *wt;    // (HS,P): performer's w and its transpose, for all threads
    int P, CP;
    static int64_t floats(int HS) {
        const int64_t P = padded(HS), CP = padded(CHUNK), rows = tiles(int(P), MR) * MR;
        return 8 * CHUNK * P + 2 * P * CP + 2 * CHUNK * CP + 2 * rows * P + 2 * P + padded(CHUNK);
    }
    static int64_t shared_floats(const Heads& h) { return h.features ? 2 * int64_t(h.HS) * padded(h.HS) : 0; }
    Workspace(float* own, const float* shared, int HS)
        : w(shared), wt(shared + int64_t(HS) * padded(HS)), P(padded(HS)), CP(padded(CHUNK)) {
        auto take = [&](int64_t n) {
            float* at = own;
            own += n;
            return at;
        };
        const int64_t chunk = CHUNK * P, across = P * CP, scores = CHUNK * CP, rows = tiles(P, MR) * MR;
        q = take(chunk), k = take(chunk), v = take(chunk), up = take(chunk), g = take(chunk), o = take(chunk);
        dv = take(chunk), x = take(chunk), kt = take(across), vt = take(across), a = take(scores), p = take(scores);
        s = take(rows * P), t = take(rows * P), z = take(P), later = take(P), h = take(padded(CHUNK));
    }
};
INLINE int strips(int n) { return tiles(n, MR) * MR; }
// Calls f(i, d, lanes) for each vector of n rows.
template <class F> INLINE void each_row(int n, int HS, F f) {
    for (int i = 0; i < n; i++) each_vector(HS, [&](int64_t d, auto at) { f(i, d, at); });
}
INLINE void clear_rows(float* x, int n, int P) { clear(x + n * P, (strips(n) - n) * P); }

// Computes exp(b) of a chunk as r.up.
void fill_decays(const Workspace& r, const Call& c, int b, int kv, const Chunk& x) {
    const int HS = c.h.HS;
    if (c.h.linear == LinearAttention::retention) {
        const float step = cpu_retention_decay(kv, c.h.NKV) * LOG2E;
        for (int i = 0; i < x.n; i++) {
            const vf all = exp2(set1(step * float(i + 1)));
            for (int d = 0; d < r.P; d += VW) store(r.up + i * r.P + d, all);
        }
    } else if (c.decays()) {
        for (int i = 0; i < x.n; i++) {
            const float* gates = c.gates + c.gate(b, x.from + i, kv);
            fetch(gates + x.ahead * c.h.gates(), HS);
            each_vector(HS, [&](int64_t d, auto at) {
                const vf before = i ? load(r.o + d) : vf{}, sum = before + gate_decay(at.get(gates + d));
                store(r.o + d, sum);
                store(r.up + i * r.P + d, exp2(sum * LOG2E));
            });
        }
    }
}

// Computes performer's features (layers/ops.h) of the chunk's rows as `to`. x: where qkv has the
// head's first row, of queries or of keys.
void random_features(float* to, const Workspace& r, const Call& c, const float* x, const Chunk& chunk, bool is_key) {
    const int HS = c.h.HS;
    const float root = __builtin_sqrtf(scale_of(c.h));
    float squares[CHUNK];
    for (int i = 0; i < chunk.n; i++) {
        const float* row = x + int64_t(i) * c.h.qkv_width();
        fetch(row + chunk.ahead * c.h.qkv_width(), HS);
        vf all = {};
        each_vector(HS, [&](int64_t d, auto at) {
            const vf scaled = at.get(row + d) * root;
            all += scaled * scaled;
            store(r.x + i * r.P + d, scaled);
        });
        squares[i] = sum(all);
    }
    clear_rows(r.x, chunk.n, r.P);
    for (int i = 0; i < chunk.n; i += MR) strip<false>(r.P, HS, r.x + i * r.P, r.P, 1, r.wt, r.P, to + i * r.P, r.P);
    for (int i = 0; i < chunk.n; i++) {
        float* f = to + i * r.P;
        vf largest = set1(-INF);
        each_vector(HS, [&](int64_t d, auto at) { largest = max(at.fill_rest(load(f + d), -INF), largest); });
        const float shift = is_key ? squares[i] / 2 : max(largest), least = is_key ? FEATURE_MIN : 0;
        each_vector(HS, [&](int64_t d, auto at) {
            store(f + d, at.fill_rest(min(exp(load(f + d) - shift), set1(FEATURE_MAX)) + least, 0));
        });
    }
}
// Replaces df, the gradients of the chunk's features f, by those of x. All features of a query have
// a factor in common that depends on x, but n cancels it.
void random_features_backward(float* df, const Workspace& r, const Call& c, const float* f, const float* x,
                              const Chunk& chunk, bool is_key) {
    const int HS = c.h.HS;
    const float root = __builtin_sqrtf(scale_of(c.h)), least = is_key ? FEATURE_MIN : 0;
    float totals[CHUNK];
    for (int i = 0; i < chunk.n; i++) {
        vf all = {};
        each_vector(HS, [&](int64_t d, auto at) {
            const vf exponential = load(f + i * r.P + d) - least, dlog = load(df + i * r.P + d) * exponential;
            const vf bounded = at.fill_rest(exponential < FEATURE_MAX ? dlog : vf{}, 0);
            all += bounded;
            store(r.x + i * r.P + d, bounded);
        });
        totals[i] = is_key ? sum(all) * root : 0;
    }
    clear_rows(r.x, chunk.n, r.P);
    for (int i = 0; i < chunk.n; i += MR) strip<false>(r.P, HS, r.x + i * r.P, r.P, 1, r.w, r.P, df + i * r.P, r.P);
    each_row(chunk.n, HS, [&](int i, int64_t d, auto at) {
        const vf outside = at.get(x + int64_t(i) * c.h.qkv_width() + d) * totals[i];
        store(df + i * r.P + d, (load(df + i * r.P + d) - outside) * root);
    });
}

// Loads k~ = f(k) exp(-b) and v.
void load_keys(const Workspace& r, const Call& c, int b, int kv, const Chunk& x) {
    const int HS = c.h.HS;
    fill_decays(r, c, b, kv, x);
    for (int i = 0; i < x.n; i++) {
        const float *k = c.qkv + c.k(b, x.from + i, kv), *v = c.qkv + c.v(b, x.from + i, kv);
        fetch(k + x.ahead * c.h.qkv_width(), HS);
        fetch(v + x.ahead * c.h.qkv_width(), HS);
        each_vector(HS, [&](int64_t d, auto at) {
            const vf f = feature(c.elu(), at.get(k + d));
            store(r.k + i * r.P + d, at.fill_rest(c.decays() ? f / load(r.up + i * r.P + d) : f, 0));
            store(r.v + i * r.P + d, at.get(v + d));
        });
    }
    if (c.performer()) random_features(r.k, r, c, c.qkv + c.k(b, x.from, kv), x, true);
    clear_rows(r.k, x.n, r.P);
    clear_rows(r.v, x.n, r.P);
}
INLINE float scale_or_one(const Call& c) { return c.has_z() ? 1 : scale_of(c.h); }
// Loads q~ = scale f(q) exp(b), without the factor exp(b) if `up` is false.
void load_queries(const Workspace& r, const Call& c, int b, int i, const Chunk& x, bool up = true) {
    const float scale = scale_or_one(c);
    if (c.performer()) return random_features(r.q, r, c, c.qkv + c.q(b, x.from, i), x, false);
    for (int row = 0; row < x.n; row++) {
        const float* q = c.qkv + c.q(b, x.from + row, i);
        fetch(q + x.ahead * c.h.qkv_width(), c.h.HS);
        each_vector(c.h.HS, [&](int64_t d, auto at) {
            const vf f = feature(c.elu(), at.get(q + d)) * scale;
            store(r.q + row * r.P + d, at.fill_rest(c.decays() && up ? f * load(r.up + row * r.P + d) : f, 0));
        });
    }
    clear_rows(r.q, x.n, r.P);
}
// Computes g, the gradient of num, from dy and, with has_z(), that of the denominators as r.h.
template <class Y> void load_gradients(const Workspace& r, const Call& c, const float* dy, const Y* y,
                                       const float* norms, int b, int i, const Chunk& x) {
    const int HS = c.h.HS;
    for (int row = 0; row < x.n; row++) {
        const int64_t at = c.y(b, x.from + row, i);
        const float n = norms[c.norm(b, x.from + row, i)];
        fetch(dy + at + x.ahead * c.h.width(), HS);
        fetch(y + at + x.ahead * c.h.width(), HS);
        vf both = {};
        each_vector(HS, [&](int64_t d, auto lanes) { both += lanes.get(dy + at + d) * lanes.get(y + at + d); });
        const float all = sum(both), mean = c.has_z() ? 0 : all / float(HS);
        each_vector(HS, [&](int64_t d, auto lanes) {
            store(r.g + row * r.P + d, n * (lanes.get(dy + at + d) - lanes.get(y + at + d) * mean));
        });
        r.h[row] = c.has_z() ? -n * all : 0;
    }
    clear_rows(r.g, x.n, r.P);
}

// a = tril(x yt), with h[i] added to row i unless h (n) is null. x: queries or gradients; yt:
// transposed keys or values.
void lower(float* a, const Workspace& r, const float* x, const float* yt, int n, int HS, const float* h) {
    for (int row = 0; row < n; row += MR)
        strip<false>(padded(least(n, row + MR)), HS, x + row * r.P, r.P, 1, yt, r.CP, a + row * r.CP, r.CP);
    for (int i = 0; i < strips(n); i++) {
        float* at = a + i * r.CP;
        for (int j = 0; h && j <= i; j++) at[j] += i < n ? h[i] : 0;
        for (int j = i + 1; j < padded(least(n, i / MR * MR + MR)); j++) at[j] = 0;
    }
}
// o = a x with a lower triangular; if there is a state s, o += q s.
void row_products(const Workspace& r, const float* a, const float* x, int n, const float* q, const float* s, int HS) {
    for (int row = 0; row < n; row += MR) {
        float* o = r.o + row * r.P;
        strip<false>(r.P, least(n, row + MR), a + row * r.CP, r.CP, 1, x, r.P, o, r.P);
        if (s) strip<true>(r.P, HS, q + row * r.P, r.P, 1, s, r.P, o, r.P);
    }
}
// o += a^T x
void column_products(float* o, const Workspace& r, const float* a, const float* x, int n) {
    for (int row = 0; row < n; row += MR)
        strip<true>(r.P, n - row, a + row * r.CP + row, 1, r.CP, x + row * r.P, r.P, o + row * r.P, r.P);
}
// s (HS,P) = x^T y over the chunk's rows. add: the product is added to s.
void outer(float* s, const Workspace& r, const float* x, const float* y, int n, int HS, bool add) {
    for (int d = 0; d < HS; d += MR) {
        if (add) strip<true>(r.P, n, x + d, 1, r.P, y, r.P, s + d * r.P, r.P);
        else strip<false>(r.P, n, x + d, 1, r.P, y, r.P, s + d * r.P, r.P);
    }
}
// z = the sum of x's rows, weighted by w. add: the sum is added to z.
void add_rows(float* z, const Workspace& r, const float* x, const float* w, int n, bool add) {
    for (int d = 0; d < r.P; d += VW) {
        vf total = add ? load(z + d) : vf{};
        for (int i = 0; i < n; i++) total += load(x + i * r.P + d) * (w ? w[i] : 1);
        store(z + d, total);
    }
}
// Multiplies the rows of s by the decay of the whole chunk.
void decay_rows(float* s, const Workspace& r, int n, int HS) {
    for (int d = 0; d < HS; d++)
        for (int e = 0; e < r.P; e += VW) store(s + d * r.P + e, load(s + d * r.P + e) * r.up[(n - 1) * r.P + d]);
}
INLINE float dot_row(const float* x, const float* y, int P) {
    vf total = {};
    for (int d = 0; d < P; d += VW) total += load(x + d) * load(y + d);
    return sum(total);
}

// ---- forward ------------------------------------------------------------------------------------

// Writes n num to the row of y at `to` and returns n: 1 / (root mean square of num) or, with
// has_z(), 1 / `weight`.
INLINE float finish_row(Outputs y, int64_t to, const float* num, float weight, const Call& c) {
    vf squares = {};
    each_vector(c.h.HS, [&](int64_t d, auto at) { squares += at.get(num + d) * at.get(num + d); });
    const float n = c.has_z() ? 1 / (weight + (c.elu() ? LINEAR_ATTENTION_EPS : 0))
                              : 1 / __builtin_sqrtf(sum(squares) / float(c.h.HS) + LINEAR_ATTENTION_EPS);
    y.with(to,
           [&](auto* row) { each_vector(c.h.HS, [&](int64_t d, auto at) { at.put(row + d, at.get(num + d) * n); }); });
    return n;
}

// Computes positions 0..S-1 of the call. begins: r.s and r.z hold no state yet. norms may be null.
void forward_head(Outputs y, float* norms, const Workspace& r, const Call& c, int b, int kv, int S, bool begins) {
    const int HS = c.h.HS, group = c.h.NH / c.h.NKV;
    for (int from = 0; from < S;) {
        const Chunk x = chunk_from(c, b, from, S, begins);
        load_keys(r, c, b, kv, x);
        pack_transposed(r.kt, r.CP, r.k, r.P, x.n, padded(x.n), HS);
        for (int i = kv * group; i < (kv + 1) * group; i++) {
            load_queries(r, c, b, i, x);
            lower(r.a, r, r.q, r.kt, x.n, HS, nullptr);
            row_products(r, r.a, r.v, x.n, r.q, x.fresh ? nullptr : r.s, HS);
            for (int row = 0; row < x.n; row++) {
                float weight = 0;
                if (c.has_z()) {
                    for (int j = 0; j <= row; j++) weight += r.a[row * r.CP + j];
                    if (!x.fresh) weight += dot_row(r.q + row * r.P, r.z, r.P);
                }
                const float n = finish_row(y, c.y(b, from + row, i), r.o + row * r.P, weight, c);
                if (norms) norms[c.norm(b, from + row, i)] = n;
            }
        }
        outer(r.s, r, r.k, r.v, x.n, HS, !x.fresh);
        if (c.has_z()) add_rows(r.z, r, r.k, nullptr, x.n, !x.fresh);
        else decay_rows(r.s, r, x.n, HS);
        from += x.n;
    }
}

int64_t scratch_of(const CallSizes& call) {
    const Heads& h = call.heads;
    return int64_t(sizeof(float)) * (pool_threads() * Workspace::floats(h.HS) + Workspace::shared_floats(h));
}
// Calls f(workspace, b, kv) for every key/value head of B sequences.
template <class F> void each_head(int B, const Heads& h, F f) {
    const int64_t floats = Workspace::floats(h.HS);
    float* scratch = static_cast<float*>(cpu_scratch(scratch_of({.heads = h})));
    float* shared = scratch + pool_threads() * floats;
    for (int row = 0; row < 2 * h.HS && h.features; row++)
        each_vector(h.HS, [&](int64_t d, auto at) {
            store(shared + int64_t(row) * padded(h.HS) + d, at.get(h.features + int64_t(row) * h.HS + d));
        });
    each_chunk(B * h.NKV, [&](int64_t item, int worker) {
        f(Workspace(scratch + worker * floats, shared, h.HS), int(item / h.NKV), int(item % h.NKV));
    });
}

template <class P> void forward(P* y, float* norms, const float* qkv, const float* gates, int B, int S, Heads h) {
    const Call c = {qkv, gates, S, h};
    each_head(B, h, [&](const Workspace& r, int b, int kv) { forward_head(outputs(y), norms, r, c, b, kv, S, true); });
}

// ---- generation ---------------------------------------------------------------------------------

// Computes one position and updates the state in place.
void step_head(Outputs y, float* state, float* z, const Workspace& r, const Call& c, int b, int kv) {
    const int HS = c.h.HS, group = c.h.NH / c.h.NKV;
    const Chunk x = {0, 1, false, false};
    load_keys(r, c, b, kv, x);
    for (int i = kv * group; i < (kv + 1) * group; i++) {
        const bool first = i == kv * group;    // the head that updates the state
        load_queries(r, c, b, i, x, false);
        clear(r.o, r.P);
        for (int d = 0; d < HS; d++) {
            float* row = state + int64_t(d) * HS;
            const vf k = set1(r.k[d]), q = set1(r.q[d]), a = set1(c.decays() ? r.up[d] : 1);
            each_vector(HS, [&](int64_t e, auto at) {
                vf s = at.get(row + e);
                if (first) at.put(row + e, s = (s + k * load(r.v + e)) * a);
                store(r.o + e, load(r.o + e) + q * s);
            });
        }
        vf weight = {};
        if (c.has_z())
            each_vector(HS, [&](int64_t d, auto at) {
                if (first) at.put(z + d, at.get(z + d) + at.get(r.k + d));
                weight += at.get(z + d) * at.get(r.q + d);
            });
        (void)finish_row(y, c.y(b, 0, i), r.o, sum(weight), c);
    }
}

template <class P>
void cached(P* y, States states, const float* qkv, const float* gates, int B, int S, const int* pos, Heads h) {
    const Call c = {qkv, gates, S, h};
    const int HS = h.HS;
    clear_padding(outputs(y), pos, B * S, h.width());
    each_head(B, h, [&](const Workspace& r, int b, int kv) {
        float* all = static_cast<float*>(states.p) + states.of[b] * states.stride;
        float *state = all + int64_t(kv) * HS * HS, *z = all + (int64_t(h.NKV) * HS + kv) * HS;
        const bool begins = pos[int64_t(b) * S] == 0;
        int n = 0;    // positions before padding
        while (n < S && pos[int64_t(b) * S + n] >= 0) n++;
        if (n == 0) return;
        if (begins) clear(state, int64_t(HS) * HS);
        if (begins && c.has_z()) clear(z, HS);
        if (n == 1) return step_head(outputs(y), state, z, r, c, b, kv);
        each_row(HS, HS, [&](int d, int64_t e, auto at) { store(r.s + d * r.P + e, at.get(state + d * HS + e)); });
        if (c.has_z()) each_vector(HS, [&](int64_t d, auto at) { store(r.z + d, at.get(z + d)); });
        forward_head(outputs(y), nullptr, r, c, b, kv, n, begins);
        each_row(HS, HS, [&](int d, int64_t e, auto at) { at.put(state + d * HS + e, load(r.s + d * r.P + e)); });
        if (c.has_z()) each_vector(HS, [&](int64_t d, auto at) { at.put(z + d, load(r.z + d)); });
    });
}

// ---- backward -----------------------------------------------------------------------------------

struct Gradients {
    float *dqkv, *dgates;
    const float *dy, *norms;
    Results y;
};

// The backward pass's sweep from the first position to the last: computes dq, with the transposed
// states in r.s. If there are gates, it also writes the elementwise product of q and dq, summed
// over heads, to dgates.
void backward_queries(const Gradients& to, const Workspace& r, const Call& c, int b, int kv) {
    const int HS = c.h.HS, group = c.h.NH / c.h.NKV;
    const float scale = scale_or_one(c);
    for (int from = 0; from < c.S;) {
        const Chunk x = chunk_from(c, b, from, c.S, true);
        load_keys(r, c, b, kv, x);
        pack_transposed(r.vt, r.CP, r.v, r.P, x.n, padded(x.n), HS);
        for (int i = kv * group; i < (kv + 1) * group; i++) {
            to.y.with(0, [&](auto* y) { load_gradients(r, c, to.dy, y, to.norms, b, i, x); });
            lower(r.p, r, r.g, r.vt, x.n, HS, r.h);
            row_products(r, r.p, r.k, x.n, r.g, x.fresh ? nullptr : r.s, HS);
            each_row(c.has_z() && !x.fresh ? x.n : 0, HS, [&](int row, int64_t d, auto) {
                store(r.o + row * r.P + d, load(r.o + row * r.P + d) + r.h[row] * load(r.z + d));
            });
            if (c.performer()) {
                load_queries(r, c, b, i, x);
                random_features_backward(r.o, r, c, r.q, c.qkv + c.q(b, from, i), x, false);
            }
            each_row(x.n, HS, [&](int row, int64_t d, auto at) {
                const vf q = at.get(c.qkv + c.q(b, from + row, i) + d), up = load(r.up + row * r.P + d) * scale;
                vf dq = load(r.o + row * r.P + d);
                dq *= c.decays() ? up * feature_slope(c.elu(), q) : feature_slope(c.elu(), q);
                at.put(to.dqkv + c.q(b, from + row, i) + d, dq);
                if (!c.h.gates()) return;
                float* sums = to.dgates + c.gate(b, from + row, kv) + d;
                at.put(sums, i == kv * group ? q * dq : at.get(sums) + q * dq);
            });
        }
        outer(r.s, r, r.v, r.k, x.n, HS, !x.fresh);
        if (c.has_z()) add_rows(r.z, r, r.k, nullptr, x.n, !x.fresh);
        for (int e = 0; e < HS && c.decays(); e++)
            for (int d = 0; d < r.P; d += VW)
                store(r.s + e * r.P + d, load(r.s + e * r.P + d) * load(r.up + (x.n - 1) * r.P + d));
        from += x.n;
    }
}

// Writes dk, dv and the gates' gradients of a chunk whose dk~ and dv are in r.o and r.dv. r.later:
// d log a, summed over later positions.
void store_keys(const Gradients& to, const Workspace& r, const Call& c, int b, int kv, const Chunk& x) {
    for (int i = x.n - 1; i >= 0; i--)
        each_vector(c.h.HS, [&](int64_t d, auto at) {
            const int64_t k = c.k(b, x.from + i, kv) + d;
            const vf dk = load(r.o + i * r.P + d), here = load(r.k + i * r.P + d) * dk;
            const vf slope = feature_slope(c.elu(), at.get(c.qkv + k));
            at.put(to.dqkv + k, c.decays() ? dk / load(r.up + i * r.P + d) : dk * slope);
            at.put(to.dqkv + c.v(b, x.from + i, kv) + d, load(r.dv + i * r.P + d));
            if (!c.h.gates()) return;
            const int64_t gate = c.gate(b, x.from + i, kv) + d;
            const vf sum = load(r.later + d) + (at.get(to.dgates + gate) - here);
            store(r.later + d, sum);
            at.put(to.dgates + gate, sum * gate_slope(at.get(c.gates + gate)));
        });
}

// The backward sweep: computes dk, dv and the gates' gradients. r.s holds dS after the chunk, then
// U, then dS before the chunk; r.t holds U transposed; r.z has dz.
void backward_keys(const Gradients& to, const Workspace& r, const Call& c, int b, int kv) {
    const int HS = c.h.HS, group = c.h.NH / c.h.NKV;
    for (int end = c.S; end > 0;) {
        const Chunk x = chunk_to(c, b, end);
        load_keys(r, c, b, kv, x);
        pack_transposed(r.kt, r.CP, r.k, r.P, x.n, padded(x.n), HS);
        pack_transposed(r.vt, r.CP, r.v, r.P, x.n, padded(x.n), HS);
        clear(r.o, strips(x.n) * r.P);
        clear(r.dv, strips(x.n) * r.P);
        if (x.ends) {
            clear(r.s, int64_t(HS) * r.P);
            clear(r.z, r.P);
            clear(r.later, r.P);
        } else {
            if (c.decays()) decay_rows(r.s, r, x.n, HS);
            pack_transposed(r.t, r.P, r.s, r.P, HS, r.P, HS);
            for (int row = 0; row < x.n; row += MR) {
                strip<false>(r.P, HS, r.v + row * r.P, r.P, 1, r.t, r.P, r.o + row * r.P, r.P);
                strip<false>(r.P, HS, r.k + row * r.P, r.P, 1, r.s, r.P, r.dv + row * r.P, r.P);
            }
            each_row(c.has_z() ? x.n : 0, HS, [&](int i, int64_t d, auto) {
                store(r.o + i * r.P + d, load(r.o + i * r.P + d) + load(r.z + d));
            });
        }
        for (int i = kv * group; i < (kv + 1) * group; i++) {
            load_queries(r, c, b, i, x);
            to.y.with(0, [&](auto* y) { load_gradients(r, c, to.dy, y, to.norms, b, i, x); });
            lower(r.a, r, r.q, r.kt, x.n, HS, nullptr);
            lower(r.p, r, r.g, r.vt, x.n, HS, r.h);
            column_products(r.o, r, r.p, r.q, x.n);
            column_products(r.dv, r, r.a, r.g, x.n);
            outer(r.s, r, r.q, r.g, x.n, HS, true);
            if (c.has_z()) add_rows(r.z, r, r.q, r.h, x.n, true);
        }
        if (c.performer()) random_features_backward(r.o, r, c, r.k, c.qkv + c.k(b, x.from, kv), x, true);
        store_keys(to, r, c, b, kv, x);
        end = x.from;
    }
}

template <class P> void backward(float* dqkv, float* dgates, const float* dy, const P* y, const float* qkv,
                                 const float* gates, const float* norms, int B, int S, Heads h) {
    const Call c = {qkv, gates, S, h};
    const Gradients to = {dqkv, dgates, dy, norms, results(y)};
    each_head(B, h, [&](const Workspace& r, int b, int kv) {
        backward_queries(to, r, c, b, kv);
        backward_keys(to, r, c, b, kv);
    });
}
}    // namespace

REGISTER_CPU_WITH_SCRATCH(linear_attention_forward, forward<P>, scratch_of)
REGISTER_CPU_WITH_SCRATCH(linear_attention_backward, backward<P>, scratch_of)
REGISTER_CPU_WITH_SCRATCH(linear_attention_cached, cached<P>, scratch_of)
}    // namespace ISA

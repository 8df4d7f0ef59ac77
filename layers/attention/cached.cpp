// cached.cpp - attention in generation: keys and values lie in pages of a cache, as floats or in narrower types.
//
// One new position, or a few (steps): an item of work is up to SPLIT of the keys that a position's queries of a kv head
// see, wherever they lie: a list of their rows, then scores, exponentials and the weighted sum of values. Parts of a
// head are joined in order. Factors of rows (int8, fp8) multiply scores and probabilities, not elements.
//
// Bound by memory: each key and value is read once. A head has few rows in a page, so its values are prefetched while
// its keys are read, the next item's keys while its values are.
//
// Several positions (a prompt): a sequence's pages are copied to dense floats, and forward.cpp's tiles do the rest. The
// copy costs less than their packing does.
//
// Either way a position's sums depend on its own keys alone: not on the call's other positions, on the other sequences,
// on who shares pages or on the number of threads.
#include "tiles.h"

namespace ISA {
constexpr int SPLIT = 256;    // keys of an item

// ---- rows of a cache ------------------------------------------------------------------------------------------------

// Keys or values.
template <class X> struct TypedRows { X* rows; float* factors; };
template <class X> struct TypedCache {
    TypedRows<X> k, v;
    explicit TypedCache(const Pages& p)
        : k{static_cast<X*>(p.k), p.k_factor}, v{static_cast<X*>(p.v), p.v_factor} {}
};
// Calls f(TypedCache<X>) with the cache's type.
template <class F> static void with_type(const Pages& p, F f) {
    if (p.type == Element::f32) f(TypedCache<float>(p));
    else if (p.type == Element::bf16) f(TypedCache<bf16>(p));
    else if (p.type == Element::fp8) f(TypedCache<fp8>(p));
    else f(TypedCache<int8>(p));
}

template <class X> static void put_row(TypedRows<X> all, int64_t row, const float* x, int HS) {
    X* to = all.rows + row * HS;
    float inverse = 1;
    if (LARGEST<X> != 0) {
        vf top = {}, finite = {};
        each_vector(HS, [&](int64_t d, auto at) {
            const vf v = at.get(x + d);
            top = max(max(v, -v), top), finite += v * 0;
        });
        const float most = max(top) + sum(finite);    // NaN, if not all are numbers
        inverse = most < TINY ? 0 : LARGEST<X> / most;
        all.factors[row] = most < TINY ? 0 : most / LARGEST<X>;
    }
    each_vector(HS, [&](int64_t d, auto at) {
        at.put(to + d, LARGEST<X> != 0 ? at.get(x + d) * inverse : at.get(x + d));
    });
}
template <class X> static void get_row(float* to, TypedRows<X> all, int64_t row, int HS) {
    const X* from = all.rows + row * HS;
    const float factor = LARGEST<X> != 0 ? all.factors[row] : 1;
    each_vector(HS, [&](int64_t d, auto at) {
        at.put(to + d, LARGEST<X> != 0 ? at.get(from + d) * factor : at.get(from + d));
    });
}

// ---- one position ---------------------------------------------------------------------------------------------------

// An item's keys: their positions, and their rows in the cache.
struct Run {
    int n, key[SPLIT + VW], row[SPLIT];
    void fill(const Pages& cache, const SeenKeys& seen, int b, int kv, int from) {
        n = most(0, least(SPLIT, seen.n - from));
        for (int i = 0; i < n;) {
            const int first = seen.key(from + i), left = Pages::SIZE - first % Pages::SIZE;
            const int end = from + i < seen.globals + seen.strided ? i + 1 : least(n, i + left);
            const int at = int(cache.row(b, kv, first)) - i;
            for (int j = i; j < end; j++) row[j] = at + j;
            for (int j = i; j < end; j++) key[j] = first - i + j;
            i = end;
        }
        for (int j = 0; j < VW && n; j++) key[n + j] = key[n - 1] + 1 + j;    // a vector's keys rise
    }
};

template <class X> INLINE void fetch_row(const X* p, int HS) {
    for (int i = 0; i < HS; i += 64 / int(sizeof(X))) __builtin_prefetch(p + i, 0, 2);    // to L2
}

// o[0..nv vectors) = sum_j p[j] v[row[j],:]. Meanwhile prefetches the rows of `next` (null: none).
template <int nv, class X>
INLINE void weigh(float* o, const float* p, const X* v, const Run& run, const X* next_k, const Run* next, int HS) {
    vf even[nv] = {}, odd[nv] = {};
    int j = 0;
    for (; j + 2 <= run.n; j += 2) {
        if (next && j + 2 <= next->n) {
            fetch_row(next_k + int64_t(next->row[j]) * HS, HS);
            fetch_row(next_k + int64_t(next->row[j + 1]) * HS, HS);
        }
        const X *v0 = v + int64_t(run.row[j]) * HS, *v1 = v + int64_t(run.row[j + 1]) * HS;
#pragma GCC unroll 4
        for (int u = 0; u < nv; u++) {
            even[u] += p[j] * load(v0 + u * VW);
            odd[u] += p[j + 1] * load(v1 + u * VW);
        }
    }
#pragma GCC unroll 4
    for (int u = 0; u < nv; u++)
        store(o + u * VW,
              even[u] + odd[u] + (j < run.n ? p[j] * load(v + int64_t(run.row[j]) * HS + u * VW) : vf{}));
}

// The keys of a run for one query: o (padded HS) = sum of exp(score - top) v.
struct Part { float top, sum; };
template <class X>
static Part decode_part(float* o, const float* q, TypedCache<X> typed, const Run& run, const Run* next, const Heads& h,
                        int head, int p) {
    const int HS = h.HS, n = run.n;
    const float scale = has_shape(h) ? 1 : scale_of(h);
    float score[SPLIT];
    vf top = set1(-INF), total = {};
    for (int j = 0; j < n; j++) {
        vf s = {};
        const X* k = typed.k.rows + int64_t(run.row[j]) * HS;
        fetch_row(typed.v.rows + int64_t(run.row[j]) * HS, HS);
        each_vector(HS, [&](int64_t d, auto at) { s += at.get(q + d) * at.get(k + d); });
        score[j] = sum(s) * scale;
        if (LARGEST<X> != 0) score[j] *= typed.k.factors[run.row[j]];
    }
    if (has_shape(h)) {
        const Shape shape(h, head);
        each_vector(n, [&](int64_t j, auto at) {
            vi key;
            __builtin_memcpy(&key, run.key + j, sizeof key);    // key has room for a whole vector
            at.put(score + j, shape(at.get(score + j), key - p).z);
        });
    }
    each_vector(n, [&](int64_t j, auto at) { top = max(at.others(at.get(score + j), -INF), top); });
    const float most = max(top), base = most > -INF ? most : 0;
    each_vector(n, [&](int64_t j, auto at) {
        vf e = at.others(exp(at.get(score + j) - base), 0);
        total += e;
        at.put(score + j, e);
    });
    for (int j = 0; j < n && LARGEST<X> != 0; j++) score[j] *= typed.v.factors[run.row[j]];
    const X *v = typed.v.rows, *k = typed.k.rows;
    int d = 0;
    for (; d + 4 * VW <= HS; d += 4 * VW) weigh<4>(o + d, score, v + d, run, k, d ? nullptr : next, HS);
    for (; d + VW <= HS; d += VW) weigh<1>(o + d, score, v + d, run, k, d ? nullptr : next, HS);
    if (d < HS) {
        vf s = {};
        for (int j = 0; j < n; j++) s += score[j] * load_some(v + int64_t(run.row[j]) * HS + d, HS - d);
        store(o + d, s);
    }
    return {base, sum(total)};
}

// y of one query of one head, joined from the parts that its keys are split in.
template <class Y> static void join_parts(Y* y, const float* o, const Part* end, int splits, int HS) {
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

// Each query's output, maximum and sum over each part of its keys.
static int64_t decode_scratch(int N, int p, const Heads& h) {
    return int64_t(sizeof(float)) * N * h.NH * tiles(SeenKeys(h, p).n, SPLIT) * (padded(h.HS) + 2);
}

// S positions of each sequence, each by itself. With S = 1 the item with a head's last keys first appends the new one.
template <class X>
static void decode(Outputs y, const float* qkv, TypedCache<X> typed, const Pages& cache, int B, int S, const int* pos,
                   Heads h) {
    const int HS = h.HS, P = padded(HS), NH = h.NH, group = NH / h.NKV, N = B * S;
    int last = 0;
    for (int n = 0; n < N; n++) last = most(last, pos[n]);
    const int most_keys = SeenKeys(h, last).n, splits = tiles(most_keys, SPLIT);
    const int64_t parts = int64_t(N) * NH * splits;
    float* o = static_cast<float*>(cpu_scratch(decode_scratch(N, last, h)));
    Part* ends = reinterpret_cast<Part*>(o + parts * P);
    const Keys fresh = packed_keys(qkv, 1, h);    // a position is a sequence here
    const int items = N * h.NKV * splits;
    auto fill = [&](Run& run, int item) {    // n = 0 where the position has fewer splits
        const int n = item / splits / h.NKV;
        run.n = 0;
        if (pos[n] >= 0)
            run.fill(cache, SeenKeys(h, pos[n]), n / S, item / splits % h.NKV, item % splits * SPLIT);
    };
    auto append = [&](int n, int kv, int64_t row) {
        const int64_t from = n * fresh.sequence + kv * fresh.head;
        put_row(typed.k, row, fresh.k + from, HS);
        put_row(typed.v, row, fresh.v + from, HS);
    };
#pragma omp parallel if (int64_t(N) * h.NKV * most_keys * HS > ONE_THREAD)
    {
        const Range mine = my_share(items, 1), rows = my_share(N * NH, 1);
        if (S > 1) {    // a position sees those before it
#pragma omp for schedule(static)
            for (int n = 0; n < N; n++)
                for (int kv = 0; kv < h.NKV && pos[n] >= 0; kv++) append(n, kv, cache.row(n / S, kv, pos[n]));
        }
        Run runs[2];
        if (mine.from < mine.to) fill(runs[0], int(mine.from));
        for (int item = int(mine.from); item < mine.to; item++) {
            const Run& run = runs[(item - mine.from) % 2];
            Run* next = item + 1 < mine.to ? &runs[(item + 1 - mine.from) % 2] : nullptr;
            if (next) fill(*next, item + 1);
            if (run.n == 0) continue;
            const int split = item % splits, kv = item / splits % h.NKV, n = item / splits / h.NKV;
            if (S == 1 && run.key[run.n - 1] == pos[n]) append(n, kv, run.row[run.n - 1]);
            for (int i = kv * group; i < (kv + 1) * group; i++) {
                const int64_t row = int64_t(n) * NH + i, part = row * splits + split;
                const float* q = qkv + n * fresh.sequence + int64_t(i) * HS;
                ends[part] = decode_part(o + part * P, q, typed, run, next, h, i, pos[n]);
                if (splits == 1)
                    y.with(row * HS, [&](auto* to) { join_parts(to, o + part * P, ends + part, 1, HS); });
            }
        }
        if (splits > 1) {
#pragma omp barrier
            for (int64_t row = rows.from; row < rows.to; row++) {
                const int p = pos[row / NH];
                if (p < 0) continue;
                const int parts_of_row = tiles(SeenKeys(h, p).n, SPLIT);
                y.with(row * HS, [&](auto* to) {
                    join_parts(to, o + row * splits * P, ends + row * splits, parts_of_row, HS);
                });
            }
        }
    }
}

// ---- several positions ----------------------------------------------------------------------------------------------

// One sequence's dense keys and values, all heads.
static int64_t dense_bytes(int keys, const Heads& h) {
    return (2 * int64_t(sizeof(float)) * h.NKV * keys * h.HS + 63) / 64 * 64;
}

// The first key that a prompt from position p on is given. Tiles begin at multiples of up to 256 keys; earlier keys,
// which no query sees, stay behind.
static int first_key(int p, const Heads& h) {
    return has_pattern(h) || !h.window ? 0 : most(0, p + 1 - h.window - 256);
}

// S positions of sequence b; those from `n` on are padding.
template <class X>
static void prompt(Outputs y, const float* qkv, TypedCache<X> typed, const Pages& cache, int b, int S, int p, int n,
                   Heads h) {
    const Keys fresh = packed_keys(qkv, S, h);
    const int HS = h.HS, end = p + n;
    const int first = first_key(p, h), keys = end - first;
    const int64_t bytes = dense_bytes(keys, h);
    float* dense = static_cast<float*>(cpu_scratch(bytes + prompt_bytes(h, end)));
    const int64_t head = int64_t(keys) * HS, values = h.NKV * head;
#pragma omp parallel for schedule(static)
    for (int item = 0; item < h.NKV * keys; item++) {
        const int kv = item / keys, j = first + item % keys;
        const int64_t row = cache.row(b, kv, j), to = kv * head + (j - first) * int64_t(HS);
        if (j >= p) {
            const int64_t from = b * fresh.sequence + (j - p) * fresh.row + kv * fresh.head;
            put_row(typed.k, row, fresh.k + from, HS);
            put_row(typed.v, row, fresh.v + from, HS);
        }
        get_row(dense + to, typed.k, row, HS);
        get_row(dense + values + to, typed.v, row, HS);
    }
    const Keys from = {dense - first * int64_t(HS), dense + values - first * int64_t(HS), HS, 0, head};
    const int64_t row = int64_t(b) * S;
    y.with(row * h.NH * HS, [&](auto* to) {
        prompt_forward(outputs(to), qkv + row * fresh.row, from, n, p, h, bytes);
    });
}

template <class P>
static void attention_cached(P* to, const float* qkv, Pages cache, int B, int S, const int* pos, Heads h) {
    const Outputs y = outputs(to);
    with_type(cache, [&](auto typed) {
        if (cache.steps(S)) return decode(y, qkv, typed, cache, B, S, pos, h);
        for (int b = 0; b < B; b++) {
            int n = 0;
            while (n < S && pos[b * S + n] >= 0) n++;
            if (n > 0) prompt(y, qkv, typed, cache, b, S, pos[b * S], n, h);
        }
    });
}
static int64_t cached_scratch(const CallSizes& call) {
    const int end = call.p + call.S;
    return call.steps ? decode_scratch(call.B * call.S, end - 1, call.heads)
                      : dense_bytes(end - first_key(call.p, call.heads), call.heads) + prompt_bytes(call.heads, end);
}

// Turns keys of copied pages; rope.cpp's formula.
static void cache_turn(Pages cache, const int* pages, int n, const float* turns, Heads h, Turn t) {
    const int half = t.dims / 2, HS = h.HS;
    float* scratch = static_cast<float*>(cpu_scratch(int64_t(sizeof(float)) * 2 * HS));
    with_type(cache, [&](auto typed) {
        for (int i = 0; i < n * h.NKV * Pages::SIZE; i++) {
            const int copy = i / Pages::SIZE / h.NKV, kv = i / Pages::SIZE % h.NKV, row = i % Pages::SIZE;
            const int64_t to = cache.row_of(pages[2 * copy], kv, row);
            const int64_t from = cache.row_of(pages[2 * copy + 1], kv, row);
            const float *cos = turns + int64_t(copy) * t.dims, *sin = cos + half;
            get_row(scratch, typed.k, from, HS);
            for (int c = 0; c < half; c++) {
                float &u = scratch[t.interleaved ? 2 * c : c], &v = scratch[t.interleaved ? 2 * c + 1 : c + half];
                const float u0 = u, v0 = v;
                u = u0 * cos[c] - v0 * sin[c], v = v0 * cos[c] + u0 * sin[c];
            }
            put_row(typed.k, to, scratch, HS);
            get_row(scratch, typed.v, from, HS);
            put_row(typed.v, to, scratch, HS);
        }
    });
}

ENTRY_WITH_SCRATCH(attention_cached, attention_cached<P>, cached_scratch)
ENTRY(cache_turn, cache_turn)
}   // namespace ISA

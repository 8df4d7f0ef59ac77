// cached.cpp - attention in generation: keys and values lie in pages, as floats or smaller types.
//
// One new position, or a few (decode): a thread takes a part of a position's visible keys, up to
// SPLIT of them wherever they lie in memory, and some of the heads. It computes their scores,
// exponentials, then weighted sums of values. The parts' results are combined in order. Scales of
// rows (int8, fp8) multiply scores and probabilities.
//
// Bound by memory: each key and value is read from memory once, in chunks of CHUNK keys of all the
// thread's heads, in the order of a page. Data that lie AHEAD bytes further on are prefetched to
// L1; prefetching to L2 alone gained nothing (Zen 5).
//
// Several positions (a prompt): a sequence's pages are copied to dense floats, and forward.cpp's
// tiles do the rest. The copy takes less time than the packing of keys and values for these tiles.
//
// Either way a position's sums depend on its own keys alone: not on the call's other positions, the
// other sequences, the sharing of pages or the number of threads.
#include "attention_cpu.h"

namespace ISA {
namespace {
constexpr int SPLIT = 128;     // keys per part
constexpr int CHUNK = 16;      // keys per chunk
constexpr int AHEAD = 8192;    // prefetch distance, bytes
constexpr int HEADS = 32;      // query heads at once; 16 KiB of scores

// ---- rows of a cache ----------------------------------------------------------------------------

// Rows of a cache's keys or values, with their scales.
template <class X> struct TypedRows {
    X* rows;
    float* factors;
};
template <class X> struct TypedCache {
    TypedRows<X> k, v;
    explicit TypedCache(const Pages& p) : k{static_cast<X*>(p.k), p.k_scale}, v{static_cast<X*>(p.v), p.v_scale} {}
};
// Calls f(TypedCache<X>) with the cache's type.
template <class F> void with_type(const Pages& p, F f) {
    if (p.type == Element::f32) f(TypedCache<float>(p));
    else if (p.type == Element::bf16) f(TypedCache<bf16>(p));
    else if (p.type == Element::fp8) f(TypedCache<fp8>(p));
    else f(TypedCache<int8>(p));
}

template <class X> void put_row(TypedRows<X> all, int64_t row, const float* x, int HS) {
    X* to = all.rows + row * HS;
    float inverse = 1;
    if (LARGEST<X> != 0) {
        vf top = {}, finite = {};
        each_vector(HS, [&](int64_t d, auto at) {
            const vf v = at.get(x + d);
            top = max(max(v, -v), top);
            finite += v * 0;
        });
        const float most = max(top) + sum(finite);    // NaN if a number is not finite
        inverse = most < TINY ? 0 : LARGEST<X> / most;
        all.factors[row] = most < TINY ? 0 : most / LARGEST<X>;
    }
    each_vector(HS,
                [&](int64_t d, auto at) { at.put(to + d, LARGEST<X> != 0 ? at.get(x + d) * inverse : at.get(x + d)); });
}
template <class X> void get_row(float* to, TypedRows<X> all, int64_t row, int HS) {
    const X* from = all.rows + row * HS;
    const float factor = LARGEST<X> != 0 ? all.factors[row] : 1;
    each_vector(HS, [&](int64_t d, auto at) {
        at.put(to + d, LARGEST<X> != 0 ? at.get(from + d) * factor : at.get(from + d));
    });
}

// Writes a new key and value of key/value head kv to a row of the cache. at: offset in fresh.
template <class X> void append_row(TypedCache<X> typed, int64_t row, const Keys& fresh, int64_t at, int kv, int HS) {
    put_row(typed.k, row, fresh.k + at + kv * fresh.head, HS);
    put_row(typed.v, row, fresh.v + at + kv * fresh.value_head, HS);
}

// ---- one position -------------------------------------------------------------------------------

// The keys of a part: their positions, and their rows in the cache for the first kv head. For each
// further kv head, rows lie Pages::SIZE rows later.
struct Run {
    int n, key[SPLIT + VW], row[SPLIT];
    void fill(const Pages& cache, const VisibleKeys& seen, int b, int from) {
        n = most(0, least(SPLIT, seen.n - from));
        for (int i = 0; i < n;) {
            const int first = seen.key(from + i), left = Pages::SIZE - first % Pages::SIZE;
            const int end = from + i < seen.global_tokens + seen.strided ? i + 1 : least(n, i + left);
            const int at = int(cache.row(b, 0, first)) - i;
            for (int j = i; j < end; j++) row[j] = at + j;
            for (int j = i; j < end; j++) key[j] = first - i + j;
            i = end;
        }
        for (int j = 0; j < VW && n; j++) key[n + j] = key[n - 1] + 1 + j;    // rising keys for a whole last vector
    }
};

// Addresses of CHUNK rows of a run, from its key number `from` on, for the first kv head. If the
// run has fewer, its last row is repeated. whole: there are CHUNK rows and they are adjacent, as in
// a page.
template <class X> struct Chunk {
    int n;
    bool whole;
    const X* rows[CHUNK];
    Chunk(const X* all, const Run& run, int from, int HS) : n(most(0, least(CHUNK, run.n - from))), whole(n == CHUNK) {
        for (int j = 0; j < CHUNK && n; j++) {
            rows[j] = all + int64_t(run.row[from + least(j, n - 1)]) * HS;
            whole = whole && rows[j] == rows[0] + j * HS;
        }
    }
};
// Rows of one head in a chunk. nv > 0: the chunk is whole, and each row is nv vectors.
template <class X, int nv> struct HeadRows {
    static constexpr int VECTORS = nv;
    const X* const* rows;
    int64_t head;
    int n, HS;
    INLINE_MEMBER const X* operator[](int j) const { return nv > 0 ? rows[0] + head + j * nv * VW : rows[j] + head; }
    INLINE_MEMBER void fetch(int j) const {
        if (j < n) ISA::fetch<true>((*this)[j], nv > 0 ? nv * VW : HS);
    }
};

// Returns q . row (first + j) in lane j, and prefetches the same rows of `soon`. nv > 0 requires
// that the rows of `soon` are adjacent, too, so the branch depends on how threads share the heads.
// Therefore both branches must give the same bits: each begins with 0 and adds products in the same
// order, by one multiply-add each.
template <class Rows> INLINE vf products(const float* q, const Rows& k, int first, const Rows& soon) {
    constexpr int nv = Rows::VECTORS;
    vf s[VW] = {};
    if constexpr (nv > 0) {
        vf x[nv];
#pragma GCC unroll 8
        for (int d = 0; d < nv; d++) x[d] = load(q + d * VW);
#pragma GCC unroll 16
        for (int j = 0; j < VW; j++) {
            const auto* row = k[first + j];
            soon.fetch(first + j);
#pragma GCC unroll 8
            for (int d = 0; d < nv; d++) s[j] += x[d] * load(row + d * VW);
        }
    } else {
        for (int j = first; j < first + VW; j++) soon.fetch(j);
        each_vector(k.HS, [&](int64_t d, auto at) {
            const vf x = at.get(q + d);
#pragma GCC unroll 16
            for (int j = 0; j < VW; j++) s[j] += x * at.get(k[first + j] + d);
        });
    }
    return sums(s);
}

// o = sum_j p[j] v[j,:], for nv vectors from d on; with `more` the sum is added to o. If d = 0,
// `soon` is prefetched.
template <int nv, class Rows>
INLINE void weigh(float* o, const float* p, const Rows& v, int d, const Rows& soon, bool more) {
    const int n = Rows::VECTORS > 0 ? CHUNK : v.n;
    vf even[nv], odd[nv] = {};
#pragma GCC unroll 4
    for (int u = 0; u < nv; u++) even[u] = more ? load(o + d + u * VW) : vf{};
#pragma GCC unroll 2
    for (int j = 0; j < n; j += 2) {
        if (d == 0) soon.fetch(j), soon.fetch(j + 1);
#pragma GCC unroll 4
        for (int u = 0; u < nv; u++) {
            even[u] += p[j] * load(v[j] + d + u * VW);
            if (j + 1 < n) odd[u] += p[j + 1] * load(v[j + 1] + d + u * VW);
        }
    }
#pragma GCC unroll 4
    for (int u = 0; u < nv; u++) store(o + d + u * VW, even[u] + odd[u]);
}
template <class Rows> INLINE void weigh_all(float* o, const float* p, const Rows& v, const Rows& soon, bool more) {
    constexpr int nv = Rows::VECTORS;
    const int HS = nv > 0 ? nv * VW : v.HS;
    int d = 0;
    for (; d + 4 * VW <= HS; d += 4 * VW) weigh<4>(o, p, v, d, soon, more);
    for (; d + VW <= HS; d += VW) weigh<1>(o, p, v, d, soon, more);
    if (d == HS) return;
    vf s = more ? load(o + d) : vf{};
    for (int j = 0; j < v.n; j++) s += p[j] * load_some(v[j] + d, HS - d);
    store(o + d, s);
}

struct PartialSoftmax {
    float top, sum;
};
// A query: its number among the call's B * S queries, and its position.
struct Query {
    int n, p;
};
// Turns the products of a query's head with a run's keys into exp(score - top) times the values'
// scales. Returns top, the largest score, and the sum of exp(score - top).
template <class X>
PartialSoftmax exponentials(float* score, TypedCache<X> typed, const Run& run, const Heads& h, int head, Query query) {
    const int n = run.n, first = head / (h.NH / h.NKV) * Pages::SIZE;
    const float scale = has_score_transform(h) ? 1 : scale_of(h);
    each_vector(n, [&](int64_t j, auto at) { at.put(score + j, at.get(score + j) * scale); });
    for (int j = 0; j < n && LARGEST<X> != 0; j++) score[j] *= typed.k.factors[run.row[j] + first];
    if (has_score_transform(h)) {
        const ScoreTransform shape(h, head, query.n);
        each_vector(n, [&](int64_t j, auto at) {
            vi key;
            __builtin_memcpy(&key, run.key + j, sizeof key);    // key is padded to a whole vector
            at.put(score + j, shape(at.get(score + j), key - query.p).z);
        });
    }
    vf top = set1(-INF), total = {};
    each_vector(n, [&](int64_t j, auto at) { top = max(at.fill_rest(at.get(score + j), -INF), top); });
    const float most = max(top), base = most > -INF ? most : 0;
    each_vector(n, [&](int64_t j, auto at) {
        const vf e = at.fill_rest(exp(at.get(score + j) - base), 0);
        total += e;
        at.put(score + j, e);
    });
    for (int j = 0; j < n && LARGEST<X> != 0; j++) score[j] *= typed.v.factors[run.row[j] + first];
    return {base, sum(total)};
}

// What is prefetched next: the keys of a run, from kv head kv on.
struct Next {
    const Run& run;
    int kv;
};
// Processes query heads first..end-1, at most HEADS, with a run's keys. For each of these heads o
// (NH, padded HS) = sum of exp(score - top) v, and parts (NH) = top and sum of exponentials.
template <class X> void decode_part(float* o, PartialSoftmax* parts, const float* q, TypedCache<X> typed,
                                    const Run& run, const Next& then, const Heads& h, int first, int end, Query query) {
    const int HS = h.HS, group = h.NH / h.NKV, first_kv = first / group, last_kv = (end - 1) / group;
    const int64_t rows = int64_t(Pages::SIZE) * HS;    // elements of a head in a page
    const int lead =
        least(last_kv - first_kv + 1, int(tiles(AHEAD, CHUNK * HS * sizeof(X))));    // prefetch distance in kv heads
    // For each chunk of keys and each query head, calls f(query head, its kv head's rows of the
    // chunk, number of the chunk's first key, rows to prefetch). During the last chunk it
    // prefetches rows of `after`, the chunk that the caller reads next, from kv head after_kv on.
    auto each = [&](const X* all, const Chunk<X>& after, int after_kv, auto f) {
        Chunk<X> chunk(all, run, 0, HS);
        for (int from = 0; from < run.n; from += CHUNK) {
            const bool last = from + CHUNK >= run.n;
            const Chunk<X> next = last ? after : Chunk<X>(all, run, from + CHUNK, HS);
            for (int i = first; i < end; i++) {
                const int kv = i / group, beyond = kv + lead - last_kv - 1;
                const Chunk<X>& ahead = beyond < 0 ? chunk : next;
                const int head = beyond < 0 ? kv + lead : (last ? after_kv : first_kv) + beyond;
                const int fetched = i > first && i % group ? 0 : ahead.n;    // once for all queries of a kv head
                auto call = [&]<int nv>() {
                    typedef HeadRows<X, nv> Rows;
                    f(i, Rows{chunk.rows, kv * rows, chunk.n, HS}, from, Rows{ahead.rows, head * rows, fetched, HS});
                };
                const bool whole = chunk.whole && (ahead.whole || fetched == 0);
                if (whole && HS == 4 * VW) call.template operator()<4>();
                else if (whole && HS == 8 * VW) call.template operator()<8>();
                else call.template operator()<0>();
            }
            chunk = next;
        }
    };
    float score[HEADS][SPLIT];
    const Chunk<X> values(typed.v.rows, run, 0, HS), keys_then(typed.k.rows, then.run, 0, HS);
    each(typed.k.rows, values, first_kv, [&](int i, const auto& k, int from, const auto& soon) {
        float* to = score[i - first] + from;
        for (int j = 0; j < k.n; j += VW) store(to + j, products(q + i * HS, k, j, soon));
    });
    for (int i = first; i < end; i++) parts[i] = exponentials(score[i - first], typed, run, h, i, query);
    each(typed.v.rows, keys_then, then.kv, [&](int i, const auto& v, int from, const auto& soon) {
        weigh_all(o + i * padded(HS), score[i - first] + from, v, soon, from > 0);
    });
}

// Combines a query head's partial outputs, one for each part of the keys, into y. In o and `parts`
// a part's entry lies `apart` entries after the previous part's. Each part's top is overwritten by
// exp(top - the largest top), the factor of the part's output.
template <class Y> void join_parts(Y* y, const float* o, PartialSoftmax* parts, int splits, int apart, int HS) {
    float top = parts[0].top, total = 0;
    for (int s = 1; s < splits; s++) top = parts[s * apart].top > top ? parts[s * apart].top : top;
    for (int s = 0; s < splits; s++) {
        float& factor = parts[s * apart].top;
        factor = exp(set1(factor - top))[0];
        total += parts[s * apart].sum * factor;
    }
    each_vector(HS, [&](int64_t d, auto at) {
        vf sum = {};
        for (int s = 0; s < splits; s++) sum += load(o + int64_t(s) * apart * padded(HS) + d) * parts[s * apart].top;
        at.put(y + d, sum / total);
    });
}

// Scratch bytes: each query's output, maximum and sum over each part of its keys.
int64_t decode_scratch(int N, int p, const Heads& h) {
    return int64_t(sizeof(float)) * N * h.NH * tiles(VisibleKeys(h, p).n, SPLIT) * (padded(h.HS) + 2);
}

int count_keys(int p, const Heads& h) { return p < 0 ? 0 : VisibleKeys(h, p).n; }
// A range's work on one part: kv heads kv..end-1 of part `split` of the keys of position n. next:
// number, as in KeyRange, of the next part's first key.
struct Piece {
    int n, split, kv = 0, end;
    int64_t next;
    Run run;
};
// A range of the work, for one chunk of the loop. All keys of all kv heads are numbered, ordered by
// position, then part, then kv head. A part's keys of a kv head belong to the range that has the
// first of them.
struct KeyRange {
    const Pages& cache;
    const Heads& h;
    const int* pos;
    int S;
    int64_t to;    // end of the range
    int n = 0;
    int64_t before = 0;    // keys of positions before n
    // Finds the range's next piece, from key number `key` on; run.n = 0 if there is none.
    void find(Piece& x, int64_t key) {
        x.run.n = 0;
        for (; key < to; key = x.next) {
            for (int64_t keys; key - before >= (keys = int64_t(count_keys(pos[n], h)) * h.NKV); n++) before += keys;
            x.n = n;
            x.split = int((key - before) / (SPLIT * h.NKV));
            const int keys = least(SPLIT, count_keys(pos[n], h) - x.split * SPLIT);
            const int64_t first = before + int64_t(x.split) * SPLIT * h.NKV;
            x.kv = int((key - first + keys - 1) / keys);
            x.end = int(least64(h.NKV, (to - first + keys - 1) / keys));
            x.next = first + int64_t(keys) * h.NKV;
            if (x.kv < x.end) return x.run.fill(cache, VisibleKeys(h, pos[n]), n / S, x.split * SPLIT);
        }
    }
};

// Computes y of S positions of each sequence, each position by itself. kv: rows of new keys and
// values, null if the cache has them already. With S = 1 the thread that takes a kv head's last
// part first appends the head's new key and value.
template <class X> void decode(Outputs y, const float* queries, const float* kv, TypedCache<X> typed,
                               const Pages& cache, int B, int S, const int* pos, Heads h) {
    const int HS = h.HS, P = padded(HS), NH = h.NH, group = NH / h.NKV, N = B * S;
    int last = 0;
    for (int n = 0; n < N; n++) last = most(last, pos[n]);
    const int most_keys = VisibleKeys(h, last).n, splits = tiles(most_keys, SPLIT);
    const int64_t parts = int64_t(N) * NH * splits;
    float* o = static_cast<float*>(cpu_scratch(decode_scratch(N, last, h)));
    PartialSoftmax* ends = reinterpret_cast<PartialSoftmax*>(o + parts * P);
    const Keys fresh = kv ? packed_keys(kv, 1, h) : Keys{};
    int64_t all = 0;
    for (int n = 0; n < N; n++) all += int64_t(count_keys(pos[n], h)) * h.NKV;
    auto append = [&](int n, int head, int64_t first_row) {
        append_row(typed, first_row + head * Pages::SIZE, fresh, n * fresh.row, head, HS);
    };
    auto join = [&](int n, int head) {
        const int64_t first = int64_t(n) * splits * NH + head, row = int64_t(n) * NH + head;
        const int count = tiles(count_keys(pos[n], h), SPLIT);
        if (count > 0) y.with(row * HS, [&](auto* to) { join_parts(to, o + first * P, ends + first, count, NH, HS); });
    };
    const int64_t elements = int64_t(N) * h.NKV * most_keys * HS;
    each_item(S > 1 && kv ? N : 0, elements, [&](int64_t n) {    // all keys before any attention
        for (int head = 0; head < h.NKV && pos[n] >= 0; head++) append(int(n), head, cache.row(int(n) / S, 0, pos[n]));
    });
    each_range(all, 1, elements, [&](Range mine, int) {
        KeyRange range = {cache, h, pos, S, mine.to};
        Piece pieces[2];
        range.find(pieces[0], mine.from);
        for (int i = 0; pieces[i % 2].run.n > 0; i++) {
            const Piece &x = pieces[i % 2], &following = pieces[(i + 1) % 2];
            range.find(pieces[(i + 1) % 2], x.next);
            const int p = pos[x.n], last_key = x.run.n - 1;
            for (int head = x.kv; S == 1 && kv && head < x.end && x.run.key[last_key] == p; head++)
                append(x.n, head, x.run.row[last_key]);
            const int64_t part = (int64_t(x.n) * splits + x.split) * NH;
            for (int first = x.kv * group; first < x.end * group; first += HEADS) {
                const int end = least(first + HEADS, x.end * group);
                const Next then = end < x.end * group ? Next{x.run, end / group} : Next{following.run, following.kv};
                const float* q = queries + int64_t(x.n) * h.q_row();
                decode_part(o + part * P, ends + part, q, typed, x.run, then, h, first, end, {x.n, p});
            }
            for (int head = x.kv * group; splits == 1 && head < x.end * group; head++) join(x.n, head);
        }
    });
    each_item(splits > 1 ? N * NH : 0, int64_t(N) * NH * splits * HS,
              [&](int64_t row) { join(int(row / NH), int(row % NH)); });
}

// ---- several positions --------------------------------------------------------------------------

// Bytes of one sequence's dense keys and values, all heads.
int64_t dense_bytes(int keys, const Heads& h) {
    return (2 * int64_t(sizeof(float)) * h.NKV * keys * h.HS + 63) / 64 * 64;
}

// First cached key to load for a prompt at position p: the window's beginning, less 256 because
// tiles begin at multiples of up to 256 keys.
int first_key(int p, const Heads& h) { return has_pattern(h) || !h.window ? 0 : most(0, p + 1 - h.window - 256); }

// Computes y of n positions of sequence b, which are followed by padding. kv: the sequence's new
// keys and values, for positions p to p + n - 1. Null: the cache has all keys, up to position p.
template <class X> void prompt(Outputs y, const float* q, const float* kv, TypedCache<X> typed, const Pages& cache,
                               int b, int p, int n, Heads h) {
    const Keys fresh = kv ? packed_keys(kv, n, h) : Keys{};
    const int HS = h.HS, end = kv ? p + n : p + 1;
    const int first = first_key(p, h), keys = end - first;
    const int64_t bytes = dense_bytes(keys, h);
    float* dense = static_cast<float*>(cpu_scratch(bytes + prompt_bytes(h, end)));
    const int64_t head = int64_t(keys) * HS, values = h.NKV * head;
    each_item(h.NKV * keys, int64_t(h.NKV) * keys * HS, [&](int64_t item) {
        const int i = int(item) / keys, j = first + int(item) % keys;
        const int64_t row = cache.row(b, i, j), to = i * head + (j - first) * int64_t(HS);
        if (kv && j >= p) append_row(typed, row, fresh, (j - p) * fresh.row, i, HS);
        get_row(dense + to, typed.k, row, HS);
        get_row(dense + values + to, typed.v, row, HS);
    });
    const Keys from = {dense - first * int64_t(HS), dense + values - first * int64_t(HS), HS, 0, head, head};
    if (!kv) h.source = end;
    prompt_forward(y, q, from, n, kv ? p : 0, h, bytes);
}

// kv: rows of the queries' own keys and values, or null.
template <class P>
void attend(P* to, const float* q, const float* kv, const Pages& cache, int B, int S, const int* pos, Heads h) {
    clear_padding(outputs(to), pos, B * S, h.width());
    with_type(cache, [&](auto typed) {
        if (cache.decode(S)) return decode(outputs(to), q, kv, typed, cache, B, S, pos, h);
        for (int64_t b = 0; b < B; b++) {
            int n = 0;
            while (n < S && pos[b * S + n] >= 0) n++;
            const float* own = kv ? kv + b * S * h.kv_row() : nullptr;
            Heads of_sequence = h;
            if (h.bias) of_sequence.bias += b * S * h.bias_step;
            if (n > 0)
                prompt(outputs(to + b * S * h.width()), q + b * S * h.q_row(), own, typed, cache, int(b), pos[b * S], n,
                       of_sequence);
        }
    });
}
template <class P> void attention_cached(P* y, const float* qkv, Pages cache, int B, int S, const int* pos, Heads h) {
    attend(y, qkv, qkv, cache, B, S, pos, h);
}
template <class P>
void cross_attention_cached(P* y, const float* q, Pages cache, int B, int S, const int* last, Heads h) {
    attend(y, q, nullptr, cache, B, S, last, h);
}
void cache_append(Pages cache, const float* kv, int B, int S, const int* pos, Heads h) {
    const Keys fresh = packed_keys(kv, 1, h);
    with_type(cache, [&](auto typed) {
        each_item(B * S, int64_t(B) * S * h.kv_row(), [&](int64_t n) {
            for (int head = 0; head < h.NKV && pos[n] >= 0; head++)
                append_row(typed, cache.row(int(n) / S, head, pos[n]), fresh, n * fresh.row, head, h.HS);
        });
    });
}
int64_t cached_scratch(const CallSizes& call) {
    const int end = call.heads.source ? call.p + 1 : call.p + call.S;
    return call.decode ? decode_scratch(call.B * call.S, end - 1, call.heads)
                       : dense_bytes(end - first_key(call.p, call.heads), call.heads) + prompt_bytes(call.heads, end);
}

// Rotates keys of copied pages with rope.cpp's formula.
void cache_rotate(Pages cache, const int* pages, int n, const float* cos_sin, Heads h, QkNormRope t) {
    const int half = t.dims / 2, HS = h.HS;
    float* scratch = static_cast<float*>(cpu_scratch(int64_t(sizeof(float)) * 2 * HS));
    with_type(cache, [&](auto typed) {
        for (int i = 0; i < n * h.NKV * Pages::SIZE; i++) {
            const int copy = i / Pages::SIZE / h.NKV, kv = i / Pages::SIZE % h.NKV, row = i % Pages::SIZE;
            const int64_t to = cache.row_of(pages[2 * copy], kv, row);
            const int64_t from = cache.row_of(pages[2 * copy + 1], kv, row);
            const float *cos = cos_sin + int64_t(copy) * t.dims, *sin = cos + half;
            get_row(scratch, typed.k, from, HS);
            for (int c = 0; c < half; c++) {
                float &u = scratch[t.interleaved ? 2 * c : c], &v = scratch[t.interleaved ? 2 * c + 1 : c + half];
                const float u0 = u, v0 = v;
                u = u0 * cos[c] - v0 * sin[c];
                v = v0 * cos[c] + u0 * sin[c];
            }
            put_row(typed.k, to, scratch, HS);
            get_row(scratch, typed.v, from, HS);
            put_row(typed.v, to, scratch, HS);
        }
    });
}

}    // namespace

REGISTER_CPU_WITH_SCRATCH(attention_cached, attention_cached<P>, cached_scratch)
REGISTER_CPU_WITH_SCRATCH(cross_attention_cached, cross_attention_cached<P>, cached_scratch)
REGISTER_CPU(cache_append, cache_append)
REGISTER_CPU(cache_rotate, cache_rotate)
}    // namespace ISA

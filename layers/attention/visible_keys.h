// visible_keys.h - the keys that a query attends to, on CPU and GPU: within a window, within spans
// (Heads::keys), and in a sparse pattern.
#pragma once
#include "layers/ops.h"

#ifdef __CUDACC__
#define EVERYWHERE __host__ __device__ __forceinline__
#else
#define EVERYWHERE inline __attribute__((always_inline))    // no function that instruction sets could share
#endif

EVERYWHERE int min_int(int a, int b) { return a < b ? a : b; }
EVERYWHERE int max_int(int a, int b) { return a > b ? a : b; }
EVERYWHERE int multiples_below(int end, int step) { return end <= 0 ? 0 : (end + step - 1) / step; }

// Whether a sparse pattern makes some keys visible to all later queries, whatever the window.
EVERYWHERE bool has_pattern(const Heads& h) { return h.global_tokens || h.stride; }
EVERYWHERE bool in_pattern(const Heads& h, int key) {
    return key < h.global_tokens || (h.stride && key % h.stride == 0);
}
// Whether a sparse pattern may have keys after a query's window, too. It may only with spans, which
// may extend to both sides of a query. The queries of global tokens then have no window.
EVERYWHERE bool is_two_sided(const Heads& h) { return h.keys && has_pattern(h); }
// The number of keys below `end` that belong to the pattern.
EVERYWHERE int pattern_below(const Heads& h, int end) {
    const int global = min_int(h.global_tokens, end);
    return global + (h.stride ? multiples_below(end, h.stride) - multiples_below(global, h.stride) : 0);
}
// The range of keys in the window and the span of the query at position i of sequence b. A sparse
// pattern's keys beyond the window are not in it. With spans, queries of global tokens have no
// window, and positions from S on have the span of position S-1. `from` never decreases with i;
// `to` decreases at most once, at the first query after those of global tokens.
EVERYWHERE Span keys_of(const Heads& h, int S, int b, int i) {
    if (h.source && !h.keys) return {0, h.source};
    const int window = h.window ? max_int(0, i - h.window + 1) : 0;
    if (!h.keys) return {window, i + 1};
    const Span span = h.keys[int64_t(b) * S + min_int(i, S - 1)];
    if (i < h.global_tokens) return span;
    return {max_int(window, span.from), h.window ? min_int(span.to, i + h.window) : span.to};
}
// The range of queries that have the key at position j in their window and their span. It lacks
// those that see the key by a sparse pattern or, as queries of global tokens, without a window.
EVERYWHERE Span queries_of(const Heads& h, int S, int b, int j) {
    if (h.source && !h.queries) return {0, S};
    const int keys = h.keys_of(S);
    const Span span = h.queries ? h.queries[int64_t(b) * keys + min_int(j, keys - 1)] : Span{j, S};
    if (!h.window) return span;
    return {max_int(span.from, j - h.window + 1), min_int(span.to, j + h.window)};
}

// Kernels read keys in streams: first + t * step for t = 0, 1, ... One stream has all keys (`all`):
// a query attends to those in its window. Other streams have the keys of a sparse pattern: a query
// attends to those before its window and, if the pattern is two-sided, to those behind the window,
// too, within its span. So no key counts twice.
struct Stream {
    int first, step, keys;
    bool all;
    EVERYWHERE int key(int t) const { return first + t * step; }
    // Keys of the stream that lie below `end`.
    EVERYWHERE int below(int end) const { return min_int(keys, multiples_below(end - first, step)); }
    EVERYWHERE Span of(Span window) const { return all ? window : Span{0, below(window.from)}; }
    EVERYWHERE Span within(Span span) const { return {below(span.from), below(span.to)}; }
};
struct Streams {
    Stream s[3];
    int count;
    EVERYWHERE Streams(const Heads& h, int S) : s{{0, 1, S, true}}, count(1) {
        if (h.global_tokens) s[count++] = {0, 1, min_int(h.global_tokens, S), false};
        if (!h.stride) return;
        const int first = multiples_below(h.global_tokens, h.stride) * h.stride;
        if (first < S) s[count++] = {first, h.stride, multiples_below(S - first, h.stride), false};
    }
};

// The range of t (Stream::key) of a stream's keys that a query attends to. In the stream of all
// keys, these are the keys in its window; in a pattern's stream, those before its window or, with
// `after`, those after it. `after` is only for a pattern's stream, if is_two_sided().
EVERYWHERE Span visible_in(const Stream& s, const Heads& h, int S, int b, int i, bool after = false) {
    const Span window = keys_of(h, S, b, i);
    if (s.all || !is_two_sided(h)) return s.of(window);
    const Span span = s.within(h.keys[int64_t(b) * S + min_int(i, S - 1)]);
    return after ? Span{s.below(window.to), span.to} : Span{span.from, s.below(window.from)};
}

// The keys of one query at position p, without spans, as a list of n keys: those of the sparse
// pattern before the window, then all keys from `first` on.
struct VisibleKeys {
    int global_tokens, strided, first, n, stride;
    EVERYWHERE VisibleKeys(const Heads& h, int p)
        : first(h.window ? max_int(0, p + 1 - h.window) : 0), stride(h.stride) {
        global_tokens = min_int(h.global_tokens, first);
        strided = stride ? multiples_below(first, stride) - multiples_below(global_tokens, stride) : 0;
        n = global_tokens + strided + p + 1 - first;
    }
    EVERYWHERE int key(int i) const {
        if (i >= global_tokens + strided) return first + i - global_tokens - strided;
        return i < global_tokens ? i : (multiples_below(global_tokens, stride) + i - global_tokens) * stride;
    }
};

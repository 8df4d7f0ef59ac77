// attention.h - checks of attention.
#pragma once
#include "check.h"

// TrueSpans of B sequences of S, by the definition: positions of a document see each other where the kind says so.
struct TrueSpans {
    // Within a document a position sees those before it and itself; and those of the document's first half; and all.
    enum Kind { causal, prefix, all };
    std::vector<Span> keys, queries;
    // Documents begin at these places of each sequence.
    TrueSpans(int S, const std::vector<std::vector<int>>& places, Kind kind = causal);
    // Each position ends its document with a chance of one in `length`.
    TrueSpans(int B, int S, int length, Kind kind = causal);
    Heads in(Heads h) const {
        h.keys = keys.data(), h.queries = queries.data();
        return h;
    }
};
// The same in a table's memory.
struct TableSpans {
    Array<int> keys, queries;
    TableSpans(Memory m, const TrueSpans& spans);
    Heads in(Heads h) {
        h.keys = reinterpret_cast<const Span*>(static_cast<int*>(keys));
        h.queries = reinterpret_cast<const Span*>(static_cast<int*>(queries));
        return h;
    }
};

// h: with spans of the host, if any; where it has a reach, biases are drawn.    scale: of q, k, v
template <class T, class P> Check check_attention_forward(const Ops<T, P>& op, int B, int S, Heads h, double scale = 1);
template <class T, class P>
Check check_attention_backward(const Ops<T, P>& op, int B, int S, Heads h, double scale = 1);
template <class T, class P> Check check_attention_bias_backward(const Ops<T, P>& op, int B, int S, Heads h);
template <class T, class P> Check check_bias_rows(const Ops<T, P>& op, int buckets, int NH, int n);

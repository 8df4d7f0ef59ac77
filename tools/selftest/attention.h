// attention.h - checks of attention.
#pragma once
#include "check.h"

// Spans of B sequences of S positions by the definition: documents are masked as the kind requires.
struct TrueSpans {
    // causal: positions up to itself; prefix: also the first half; all: the document.
    enum Kind { causal, prefix, all };
    std::vector<Span> keys, queries;
    // places: first positions of documents, by sequence.
    TrueSpans(int S, const std::vector<std::vector<int>>& places, Kind kind = causal);
    // Each position ends its document with probability 1 / length.
    TrueSpans(int B, int S, int length, Kind kind = causal);
    Heads in(Heads h) const {
        h.keys = keys.data(), h.queries = queries.data();
        return h;
    }
};
// TrueSpans in a table's memory.
struct TableSpans {
    Array<int> keys, queries;
    TableSpans(Memory m, const TrueSpans& spans);
    Heads in(Heads h) {
        h.keys = reinterpret_cast<const Span*>(static_cast<int*>(keys));
        h.queries = reinterpret_cast<const Span*>(static_cast<int*>(queries));
        return h;
    }
};

// h: with host spans, if any; max_distance > 0: with random biases. scale: of q, k, v.
template <class T, class P> Check check_attention_forward(const Ops<T, P>& op, int B, int S, Heads h, double scale = 1);
template <class T, class P>
Check check_attention_backward(const Ops<T, P>& op, int B, int S, Heads h, double scale = 1);
template <class T, class P> Check check_attention_bias_backward(const Ops<T, P>& op, int B, int S, Heads h);
template <class T, class P> Check check_bias_rows(const Ops<T, P>& op, int buckets, int NH, int n);

// merge.cpp - merges attention to further keys into y by the log-sum-exps of both (Milakov &
// Gimelshein 2018), and copies columns between rows of different widths, for attention around a
// ring of ranks (model/ring/ring.h) and sparse attention (model/sparse/sparse_attention.h).
//
// Rows are divided among the threads. Bound by memory: each merge reads and writes y once. That is
// little in a ring, where attention to a part's S keys takes 2 S multiply-adds an element of y.
#include "attention_cpu.h"

namespace ISA {
template <class P> static void attention_merge(float* y, float* lse, const P* part, const float* part_lse, bool add,
                                               int B, int S, Heads h) {
    const int HV = h.value_size();
    each_item(B * S, int64_t(B) * S * h.width(), [&](int64_t n) {
        const int b = int(n / S), s = int(n % S);
        if (h.keys && h.keys[n].from == h.keys[n].to) return;
        for (int i = 0; i < h.NH; i++) {
            const int64_t row = (int64_t(b) * h.NH + i) * S + s, at_y = (n * h.NH + i) * HV;
            const float old = lse[row], further = part_lse[row];
            // Exponentials are relative to the larger log-sum-exp, so that none overflows.
            const bool more = further > old;
            const float less = exp(set1(more ? old - further : further - old))[0];
            const float share = 1 / (1 + less), keep = !add ? 0 : more ? less * share : share;
            const float take = !add ? 1 : more ? share : less * share;
            each_vector(HV, [&](int64_t d, auto at) {
                const vf x = at.get(part + at_y + d) * take;
                at.put(y + at_y + d, add ? rounded_product(at.get(y + at_y + d) * keep) + x : x);
            });
            lse[row] = add ? (more ? further : old) + log2(set1(1 + less))[0] * (1 / LOG2E) : further;
        }
    });
}
static void copy_columns(float* to, int64_t to_row, const float* from, int64_t from_row, const int* rows, bool add,
                         int N, int C) {
    each_item(N, int64_t(N) * C, [&](int64_t n) {
        float* x = to + n * to_row;
        if (rows && rows[n] < 0) return;
        const float* row = from + (rows ? rows[n] : n) * from_row;
        each_vector(
            C, [&](int64_t c, auto at) { at.put(x + c, add ? at.get(x + c) + at.get(row + c) : at.get(row + c)); });
    });
}

REGISTER_CPU(attention_merge, attention_merge<P>)
REGISTER_CPU(copy_columns, copy_columns)
}    // namespace ISA

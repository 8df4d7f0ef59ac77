// attention_cpu.h - shared by attention's forward and backward pass on the CPU: scores, layout of
// heads in memory, a logarithm, prefetching.
#pragma once
#include "layers/simd/tanh.h"
#include "layers/simd/micro_kernel.h"
#include "visible_keys.h"

namespace ISA {
constexpr float INF = __builtin_inff();
constexpr int PANEL = NV * VW;    // columns of the micro kernel

constexpr int tiles(int n, int size) { return (n + size - 1) / size; }
INLINE void clear(float* p, int64_t n) {
    each_vector(n, [&](int64_t i, auto at) { at.put(p + i, vf{}); });
}
INLINE int most(int a, int b) { return a > b ? a : b; }
// v in the lanes i with first <= at + i < limit, `fill` in the others.
INLINE vf between(int at, int first, int limit, vf v, float fill) {
    return (lanes() + at >= first) & (lanes() + at < limit) ? v : set1(fill);
}
INLINE float scale_of(Heads h) { return h.scale != 0 ? h.scale : 1 / __builtin_sqrtf(float(h.HS)); }
INLINE bool has_score_transform(Heads h) { return h.softcap != 0 || h.alibi || h.bias; }
// Turns a query's products with keys into scores: scale, soft cap, ALiBi and biases. dz: derivative
// of the score with respect to the scaled product.
struct Score {
    vf z, dz;
};
struct ScoreTransform {
    float scale, cap, slope;
    const float* row;    // the head's biases from distance 0, of the first query, or null
    int max_distance, step;
    // first: the first query's number among the call's B * S queries
    ScoreTransform(Heads h, int head, int64_t first)
        : scale(scale_of(h)), cap(h.softcap), slope(h.alibi ? cpu_alibi_slope(head, h.NH) : 0),
          row(h.bias ? h.bias + first * h.bias_step + head * h.distances() + h.max_distance : nullptr),
          max_distance(h.max_distance), step(h.bias_step) {}
    // The transform of the query that comes i queries after the first one.
    INLINE_MEMBER ScoreTransform of(int i) const {
        ScoreTransform t = *this;
        if (row) t.row += int64_t(i) * step;
        return t;
    }
    INLINE_MEMBER vf biases(vi to_key) const {
        const int first = to_key[0], last = to_key[VW - 1];
        if (last <= -max_distance) return set1(row[-max_distance]);
        if (first >= -max_distance && last <= max_distance && last - first == VW - 1) return load(row + first);
        vf b;
        for (int i = 0; i < VW; i++) b[i] = row[least(most(to_key[i], -max_distance), max_distance)];
        return b;
    }
    // Turns products with a vector of keys into scores. to_key: each lane's key position minus the
    // query's position, which rises along the lanes.
    INLINE_MEMBER Score operator()(vf product, vi to_key) const {
        const vf bias = row ? biases(to_key) : __builtin_convertvector(to_key, vf) * slope;
        if (cap == 0) return {product * scale + bias, set1(1)};
        const vf t = tanh(product * (scale / cap));
        return {t * cap + bias, 1 - t * t};
    }
};

// log2(x) for x >= 1: a first guess from the float's bits, then Newton steps on 2^y = x.
INLINE vf log2(vf x) {
    vf y = __builtin_convertvector(reinterpret_cast<vi>(x) - 0x3f800000, vf) * 0x1p-23f;
    for (int i = 0; i < 3; i++) y += (x * exp2(-y) - 1) * LOG2E;
    return y;
}

// Layout of keys and values: elements from one position or sequence to the next, and from one head
// to the next for keys and for values.
struct Keys {
    const float *k, *v;
    int64_t row, sequence, head, value_head;
};
INLINE Keys packed_keys(const float* kv, int S, Heads h) {
    const int64_t row = h.kv_row();
    return {kv + h.first_k(), kv + h.first_v(), row, h.keys_of(S) * row, h.HS, h.value_size()};
}

// Attention's y, as floats or as bf16.
template <class Float, class Half> struct Either {
    Float* floats;
    Half* halves;    // null: floats are used
    // Calls f(elements from `at` on).
    template <class F> INLINE_MEMBER void with(int64_t at, F f) const { halves ? f(halves + at) : f(floats + at); }
};
typedef Either<float, bf16> Outputs;
typedef Either<const float, const bf16> Results;
INLINE Outputs outputs(float* y) { return {y, nullptr}; }
INLINE Outputs outputs(bf16* y) { return {nullptr, y}; }
INLINE Results results(const float* y) { return {y, nullptr}; }
INLINE Results results(const bf16* y) { return {nullptr, y}; }

// Zeroes y (N,width) of padding (positions below 0).
INLINE void clear_padding(Outputs y, const int* pos, int N, int width) {
    for (int n = 0; n < N; n++)
        if (pos[n] < 0)
            y.with(int64_t(n) * width,
                   [&](auto* row) { each_vector(width, [&](int64_t d, auto at) { at.put(row + d, vf{}); }); });
}

// delta = dy . y (the sum over keys of p dp) of n rows, C elements apart.
template <class Y> INLINE void deltas(float* delta, const float* dy, const Y* y, int n, int64_t C, int HS) {
    for (int i = 0; i < n; i++, dy += C, y += C) {
        vf total = {};
        each_vector(HS, [&](int64_t d, auto lanes) { total += lanes.get(dy + d) * lanes.get(y + d); });
        delta[i] = sum(total);
    }
}

// forward.cpp: prompt_forward computes y of S queries of one sequence, at positions from pos on,
// over all keys up to the last query's. The scratch has `reserved` bytes of the caller, followed by
// prompt_bytes.
int64_t prompt_bytes(const Heads& h, int keys);
void prompt_forward(Outputs y, const float* q, Keys keys, int S, int pos, const Heads& h, int64_t reserved);

// Prefetches the n elements that begin at p to L2 or, with `near`, to L1.
template <bool near = false, class X> INLINE void fetch(const X* p, int n) {
    for (int i = 0; i < n; i += 64 / int(sizeof(X))) __builtin_prefetch(p + i, 0, near ? 3 : 2);
}
struct Rows {
    const char* p;
    int64_t stride, bytes;    // bytes between rows; bytes of each row
};
template <class X> INLINE Rows rows_of(const X* p, int64_t stride, int n) {
    return {reinterpret_cast<const char*>(p), stride * int64_t(sizeof(X)), n * int64_t(sizeof(X))};
}
// Prefetches rows of activations, a few between any two products: the item's own rows, then the
// rows of the item that this thread will most likely take next. The rows of one head lie too far
// apart for hardware prefetchers. Gains 9 to 13 % FLOP/s forward and 6 to 7 % backward (2 shared
// cores of Zen 5, 2026-11-21, B=4 S=256, 11 to 16 heads of 64, not in cache; measured with one
// Prefetcher for all items of a thread). WorkItems::rows returns the COUNT arrays whose rows an
// item reads.
template <class WorkItems> struct Prefetcher {
    const WorkItems& work;
    int rate;    // rows per call
    int item = -1, row = 0, to = 0;
    int budget = LEAD;    // rows that may still be prefetched
    Rows rows[WorkItems::COUNT] = {};
    // Most rows that are prefetched before they are packed. Packing a panel of keys or a tile of
    // queries uses up fewer rows at once. All values from 160 to 256 are equally fast.
    static constexpr int LEAD = 200;

    void enter(int i) {
        item = i;
        if (item < work.items) work.rows(item, rows, row, to);
    }
    void used(int n) { budget = least(budget + n, LEAD); }
    INLINE_MEMBER void some() {
        for (int n = rate; n > 0 && budget > 0 && item < work.items; n--, budget--) {
            for (int i = 0; i < WorkItems::COUNT; i++) fetch(rows[i].p + row * rows[i].stride, int(rows[i].bytes));
            if (++row == to) enter(item + 1);
        }
    }
};

}    // namespace ISA

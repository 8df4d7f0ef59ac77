// cost.h - CostModel: FLOPs, bytes and sizes of a call of each operation. operations.inc has the
// formulas, this file their common parts. The program computes MFU (model FLOPs utilisation),
// GFLOP/s, lower bounds of times and scratch sizes from these costs.
//
// FLOPs are those that the maths needs: 2 per multiply-add of a matrix product, in attention only
// for visible pairs of positions. Recomputation, exponentials and the sums of norms are left out.
// The head's product counts with its padded width Vp.
#pragma once
#include <algorithm>
#include <cmath>
#include <functional>
#include <vector>

#include "layers/attention/visible_keys.h"
#include "layers/optimizer/muon.h"
#include "layers/ops.h"

struct Cost {
    CallSizes call = {};      // the caller sets its operation
    double products = 0;      // FLOPs of matrix products
    double arithmetic = 0;    // FLOPs of other arithmetic: attention in fp32
    double bytes = 0;
    double flops() const { return products + arithmetic; }
    void operator+=(const Cost& w) { products += w.products, arithmetic += w.arithmetic, bytes += w.bytes; }
};

class CostModel {
  public:
    // Reads from device memory what a cost depends on, such as a position. Returns false if it is
    // unavailable.
    typedef std::function<bool(void* to, const void* from, int64_t bytes)> ReadDevice;
    CostModel(const Table& op, ReadDevice reader)
        : e(double(element_bytes(op.activation))), i(double(element_bytes(op.input))),
          p(op.parameter == Element::packed ? 4 : double(element_bytes(op.parameter))),
          g(double(element_bytes(op.gradient))), is_bf16(op.parameter == Element::bf16),
          read_device(std::move(reader)) {}

    // One member function per operation of operations.inc returns the cost of a call.
    typedef Activation T;
    typedef Input I;
    typedef Parameter P;
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wunused-parameter"
#pragma GCC diagnostic warning "-Wshadow"    // an argument e, i, p or g would hide a member
#define OPERATION(name, need, arguments, outputs, ...) \
    Cost name arguments const { return __VA_ARGS__; }
#include "layers/operations.inc"
#undef OPERATION
#pragma GCC diagnostic pop

    // Visible (query, key) pairs of one sequence, with queries at p..p+S-1.
    static double pairs(int p, int S, int window) {
        auto triangle = [](double n) { return n * (n + 1) / 2; };
        if (!window || p + S <= window) return triangle(p + S) - triangle(p);
        const double growing = std::max(0, window - p);    // queries with fewer than `window` keys before them
        return growing > 0 ? triangle(window) - triangle(p) + (S - growing) * window : double(S) * window;
    }

    // Visible pairs whose keys lie before the window (Heads::stride, Heads::global_tokens).
    static double pattern(int p, int S, const Heads& h) {
        double n = 0;
        for (int i = p; i < p + S && (h.stride || h.global_tokens); i++) {
            const int end = std::max(0, i - h.window + 1), global_tokens = std::min(h.global_tokens, end);
            n += global_tokens +
                 (h.stride ? (end + h.stride - 1) / h.stride - (global_tokens + h.stride - 1) / h.stride : 0);
        }
        return n;
    }

  private:
    double e, i, p, g;    // bytes per element of T, I, P (packed: fp32), Grad<P>
    bool is_bf16;         // products multiply bf16
    ReadDevice read_device;

    static Cost moved(double bytes) { return {{}, 0, 0, bytes}; }
    static Cost rows(int N, int C, double bytes) { return {{.rows = N, .in = C}, 0, 0, bytes}; }
    static Cost value_rows(int N, int C, const Heads& h, double bytes) {
        CallSizes call = heads(1, N, h);
        call.rows = N;
        call.in = C;
        return {call, 0, 0, bytes};
    }
    static Cost routed(int B, int S, const Router& r, double bytes) {
        return {{.rows = B * S, .in = r.E, .out = r.K, .B = B, .S = S}, 0, 0, bytes};
    }
    // `products` matrix products of (N,C) and (C,OC).
    static Cost linear(int products, int N, int C, int OC, const void* bias, Precision precision, double bytes) {
        return {{.rows = N, .in = C, .out = OC, .bias = bias != nullptr, .precision = precision},
                2.0 * products * N * C * OC,
                0,
                bytes};
    }
    // Newton-Schulz iterations (layers/optimizer/muon.cpp). Bytes: factors and results of an
    // iteration's three products.
    Cost newton_schulz(int rows, int cols) const {
        const double k = std::min(rows, cols), n = std::max(rows, cols);
        return {{.rows = rows, .in = cols},
                NEWTON_SCHULZ_STEPS * newton_schulz_flops(rows, cols),
                0,
                NEWTON_SCHULZ_STEPS * p * (3 * k * n + 5 * k * k) + 2 * g * k * n};
    }
    static double state(const StateArray& s) {    // bytes of an element
        return s.p ? double(element_bytes(s.type)) + (s.type == Element::uint8 ? 4.0 / 64 : 0) : 0;
    }
    static int given(const void* a, const void* b) { return (a ? 1 : 0) + (b ? 1 : 0); }
    // Gradient elements moved for a matrix and its bias. dw.add: the matrix is read, too.
    static double gradients(int C, int OC, const GradTarget<Gradient>& dw, const void* db) {
        return (!dw.p ? 0.0 : dw.add ? 2.0 : 1.0) * C * OC + (db ? 2.0 * OC : 0);
    }
    static double vectors(int C, const void* w, const void* b) { return double(C) * ((w ? 1 : 0) + (b ? 1 : 0)); }
    static double qk_norm_weights(const Heads& h, const QkNormRope& t, const void* w) {
        return w ? t.weights(h.NH, h.HS) + t.weights(h.NKV, h.HS) : 0;
    }
    // The table of cos and sin counts as read once for all sequences.
    static Cost rope(int B, int S, const Heads& h, const QkNormRope& t, double bytes) {
        CallSizes call = heads(B, S, h);
        call.rows = B * S;
        call.rope = t;
        return {call, 0, 0, bytes + 4.0 * S * t.dims + 4.0 * B * S * t.rstd_count(h.NH, h.NKV)};
    }
    static double weights(int C, int OC, const void* bias) { return double(C) * OC + (bias ? OC : 0); }
    // Expected number of distinct tokens among N uniformly random ones: V (1 - (1 - 1/V)^N).
    static double differ(double N, int V) { return V * -std::expm1(N * std::log1p(-1.0 / V)); }
    static CallSizes heads(int B, int S, const Heads& h) { return {.B = B, .S = S, .heads = h}; }
    // Bytes of q, k, v and y at one position. row_backward adds the bytes of dqkv and dy.
    double row(const Heads& h) const { return e * h.qkv_width() + i * h.width(); }
    double row_backward(const Heads& h) const { return row(h) + e * (h.qkv_width() + h.width()); }

    // passes: 1 for the forward pass, 2 for the backward pass, whose dq, dk, dv and dp take twice
    // the products, and which reads each array and writes its gradient.
    Cost cross_attention(int passes, int B, int S, const Heads& h) const {
        const double pairs = h.keys ? visible_pairs(B, S, h) : double(B) * S * h.source;
        const double all = 2.0 * passes * h.NH * (h.HS + h.value_size()) * pairs;
        const double rows = e * (double(S) * h.q_row() + double(h.source) * h.kv_row());
        const double outputs = double(S) * h.width() * (i + (passes - 1) * e) + 4.0 * h.NH * S;
        return {heads(B, S, h), is_bf16 ? all : 0, is_bf16 ? 0 : all, B * (passes * rows + outputs)};
    }
    // flops: FLOPs per channel of a visible pair. The forward pass has 4, for the products q k and
    // p v. The backward pass has 8, for dv, dp, dq and dk; recomputed scores do not count. With
    // bf16, these FLOPs count as matrix products, because tensor cores or the CPU's bf16 units
    // compute them. Otherwise they count as arithmetic.
    Cost attention(double flops, double bytes_of_a_row, int B, int S, const Heads& h) const {
        const double all = flops / 2 * h.NH * (h.HS + h.value_size()) * visible_pairs(B, S, h);
        const double bytes = bytes_of_a_row * B * S + 4.0 * B * h.NH * S;
        return {heads(B, S, h), is_bf16 ? all : 0, is_bf16 ? 0 : all, bytes};
    }
    // Gradient of position biases (T5's, relative keys'). Only one addition per visible pair and
    // head counts, because attention_backward's cost has the rest of the work.
    Cost bias_gradient(int B, int S, const Heads& h) const {
        const double numbers = B * S * (row(h) + e * h.width()) + 4.0 * B * h.NH * S;
        const double biases = double(h.NH) * h.distances() * (h.bias_step ? double(B) * S : 1);
        return {heads(B, S, h), 0, h.NH * visible_pairs(B, S, h), numbers + 2 * g * biases};
    }
    // passes: 1 for the forward pass; 2 for the backward pass, which has two products as large, and
    // reads dq, too. dkeys are floats.
    Cost relative_keys(int passes, int N, const Heads& h) const {
        const double rows = double(N) * h.NH, n = h.distances();
        const double bytes = rows * (g * n + (2 * passes - 1) * e * h.HS) + n * h.HS * (p + (passes - 1) * 2 * g);
        return {heads(1, N, h), 0, 2.0 * passes * rows * n * h.HS, bytes};
    }
    // passes: 1 for the forward pass, in which each query reads a state and each key updates one; 2
    // for the backward pass, which does both twice. Performer's features are as large a product,
    // and so are their gradients.
    static Cost recurrence(int passes, int B, int S, const Heads& h, double bytes) {
        const int products = h.linear == LinearAttention::performer ? passes + 1 : passes;
        return {heads(B, S, h), 0, 2.0 * products * B * S * h.HS * h.HS * (h.NH + h.NKV), bytes};
    }
    // The cost assumes that all sequences are at the first one's position, because only that is
    // read.
    Cost cached(int B, int S, const int* pos, const Pages& cache, const Heads& h) const {
        const int first = position(pos, cache.width * cache.SIZE - S);
        const double keys = (h.window ? std::min(first + S, h.window + S - 1) : first + S) + pattern(first, 1, h);
        return of_cache(B, S, first, cache, h, pairs(first, S, h.window) + pattern(first, S, h), keys, S * row(h));
    }
    // All queries count as attending to as many keys as the first one.
    Cost cross_cached(int B, int S, const int* last, const Pages& cache, const Heads& h) const {
        const int at = position(last, cache.width * cache.SIZE - 1);
        return of_cache(B, S, at, cache, h, S * (at + 1.0), at + 1.0, (e + i) * S * h.width());
    }
    int position(const int* pos, int full) const {    // full: of a full cache, if pos is unavailable
        int first = full;
        (void)read_device(&first, pos, sizeof first);
        return first;
    }
    // The S queries of a sequence begin at position `first`. Per sequence: `pairs` of a query and a
    // visible key in each head, `keys` that are read once, `rows` bytes of other arrays.
    Cost of_cache(int B, int S, int first, const Pages& cache, const Heads& h, double pairs, double keys,
                  double rows) const {
        CallSizes call = heads(B, S, h);
        call.p = first;
        call.maxT = cache.width * cache.SIZE;
        call.cache = cache.type;
        call.decode = cache.decode(S);
        const double number = double(element_bytes(cache.type)) + (cache.k_scale ? 4.0 / h.HS : 0);
        return {call, 0, 4.0 * B * h.NH * pairs * h.HS, B * (2 * number * h.NKV * h.HS * keys + rows)};
    }
    Cost rope_cached(int B, int S, const int* pos, const Pages& cache, const Heads& h, const QkNormRope& t,
                     const void* w) const {
        Cost work = cached(B, S, pos, cache, h);
        work.call.rope = t;
        work.bytes += 4.0 * B * S * t.dims + p * qk_norm_weights(h, t, w);
        return work;
    }
    // Keys of a pattern in a span.
    static double pattern_within(const Heads& h, Span span) {
        return pattern_below(h, span.to) - pattern_below(h, span.from);
    }
    // Visible pairs of all sequences. Spans that cannot be read count as one causal text.
    double visible_pairs(int B, int S, const Heads& h) const {
        std::vector<Span> keys(h.keys ? size_t(B) * size_t(S) : 0);
        if (keys.empty() || !read_device(keys.data(), h.keys, int64_t(keys.size() * sizeof(Span))))
            return B * (pairs(0, S, h.window) + pattern(0, S, h));
        double n = 0;
        for (size_t k = 0; k < keys.size(); k++) {
            const int at = int(k) % S, window = h.window ? std::max(0, at - h.window + 1) : 0;
            const int end = h.window ? std::min(keys[k].to, at + h.window) : keys[k].to;
            const Span span = at < h.global_tokens ? keys[k] : Span{std::max(window, keys[k].from), end};
            n += span.to - span.from + pattern_within(h, keys[k]) - pattern_within(h, span);
        }
        return n;
    }
};

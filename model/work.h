// work.h - what a call of each operation costs, from its arguments: FLOPs, bytes and sizes. This is written nowhere
// else: MFU, GFLOP/s, floors, forecasts and the sizes of scratch all come from calls that were counted with these
// functions.
//
// FLOPs are what the maths needs: 2 for each multiply-add of a product; in attention, only pairs of positions that see
// each other count. Recomputation is left out, and so are exponentials and the sums of norms. The head's product is Vp
// wide, as it runs.
// Bytes: every input is read once, every output written once, sums that are added to are read and written.
#pragma once
#include <algorithm>
#include <cmath>
#include <functional>
#include <vector>

#include "layers/ops.h"

struct Work {
    CallSizes call = {};      // its operation is set by the caller
    double products = 0;      // FLOPs of matrix products, by what the device has for them
    double arithmetic = 0;    // FLOPs of other arithmetic: attention in fp32
    double bytes = 0;
    double flops() const { return products + arithmetic; }
    void operator+=(const Work& w) { products += w.products, arithmetic += w.arithmetic, bytes += w.bytes; }
};

// A function for each operation, with its name and its arguments.
class WorkOf {
  public:
    // Reads numbers that lie on the device; false: their values are not known.
    typedef std::function<bool(void* to, const void* from, int64_t bytes)> Look;
    WorkOf(const Table& op, Look look)
        : e(double(element_bytes(op.activation))), p(double(element_bytes(op.parameter))),
          g(double(element_bytes(op.gradient))), halves(op.parameter == Element::bf16), look(std::move(look)) {}

    Work zero(void*, int64_t bytes) const { return moved(double(bytes)); }
    Work copy(void*, const void*, int64_t bytes) const { return moved(2.0 * double(bytes)); }
    Work upload(void*, const void*, int64_t bytes) const { return moved(2.0 * double(bytes)); }
    Work download(void*, const void*, int64_t bytes) const { return moved(2.0 * double(bytes)); }
    Work upload_ahead(void*, const void*, int64_t bytes) const { return moved(2.0 * double(bytes)); }
    Work take(void*, const void*, int64_t bytes) const { return moved(2.0 * double(bytes)); }
    Work download_later(void*, const void*, int64_t bytes) const { return moved(2.0 * double(bytes)); }

    // A row of wte for each token: how many differ is not known.
    Work embedding_forward(Activation*, const int*, const Parameter*, const Parameter*, int B, int S, int C,
                           const int*) const {
        const double N = double(B) * S;
        return {rows(B * S, C), 0, 0, e * N * C + 4 * N + p * (N + S) * C};
    }
    // Rows of dwte: V (1 - (1 - 1/V)^N) of V differ among N random tokens.
    Work embedding_backward(Gradient*, Gradient*, const Activation*, const int*, int B, int S, int C, int V) const {
        const double N = double(B) * S, differ = V * -std::expm1(N * std::log1p(-1.0 / V));
        return {rows(B * S, C), 0, 0, e * N * C + 4 * N + 2 * g * (differ + S) * C};
    }

    Work layernorm_forward(Activation*, float*, float*, const Activation*, const Parameter*, const Parameter*, float,
                           int N, int C) const {
        return {rows(N, C), 0, 0, 2 * e * N * C + 8.0 * N + 2 * p * C};
    }
    Work layernorm_backward(Activation*, Gradient*, Gradient*, const Activation*, const Activation*, const Parameter*,
                            const float*, const float*, int N, int C) const {
        return {rows(N, C), 0, 0, 4 * e * N * C + 8.0 * N + (p + 4 * g) * C};
    }

    Work linear_forward(Activation*, const Activation*, const Parameter*, const Parameter* b,
                        const Activation* residual, int N, int C, int OC) const {
        Work w = linear(N, C, OC, b);
        w.bytes = e * N * (C + (residual ? 2.0 : 1.0) * OC) + p * (double(C) * OC + (b ? OC : 0));
        return w;
    }
    Work linear_backward(Activation* dx, Gradient*, Gradient* db, const Activation*, const Activation*,
                         const Parameter*, int N, int C, int OC) const {
        const double weights = double(C) * OC, products = dx ? 2 : 1;
        Work w = linear(N, C, OC, db);
        w.products *= products;
        w.bytes = e * N * (OC + products * C) + (products - 1) * p * weights + 2 * g * (weights + (db ? OC : 0));
        return w;
    }
    Work linear_gelu_forward(Activation* y, Activation*, const Activation* x, const Parameter* w, const Parameter* b,
                             int N, int C, int OC) const {
        Work work = linear_forward(y, x, w, b, nullptr, N, C, OC);
        work.bytes += e * N * OC;
        return work;
    }
    Work linear_gelu_backward(Activation* dpre, Gradient* dw, Gradient* db, Gradient* dpre_sum, const Activation* dy,
                              const Activation* x, const Parameter* w, const Activation*, int N, int C, int OC) const {
        Work work = linear_backward(dpre, dw, db, dy, x, w, N, C, OC);
        work.bytes += e * N * C + (dpre_sum ? 2 * g * C : 0);
        return work;
    }
    Work gelu_forward(Activation*, const Activation*, int64_t n) const { return moved(2 * e * double(n)); }
    Work gelu_backward(Activation*, const Activation*, const Activation*, int64_t n) const {
        return moved(3 * e * double(n));
    }

    // Pairs of a query at p..p+S-1 and a key that it sees, of one sequence.
    static double pairs(int p, int S, int window) {
        auto triangle = [](double n) { return n * (n + 1) / 2; };
        if (!window || p + S <= window) return triangle(p + S) - triangle(p);
        const double growing = std::max(0, window - p);    // queries that see fewer than `window` keys
        return growing > 0 ? triangle(window) - triangle(p) + (S - growing) * window : double(S) * window;
    }
    // q k and p v. In the backward: dv, dp, dq, dk; the scores again are left out.
    Work attention_forward(Activation*, float*, const Activation*, int B, int S, Heads h) const {
        return attention(4, 1, B, S, h);
    }
    Work attention_backward(Activation*, const Activation*, const Activation*, const Activation*, const float*, int B,
                            int S, Heads h) const {
        return attention(8, 2, B, S, h);
    }
    Work attention_cached(Activation*, Activation*, Activation*, const Activation*, int B, int S, const int* pos,
                          int maxT, Heads h) const {
        int first = maxT - S;    // the last that can be, where nobody knows
        (void)look(&first, pos, sizeof first);
        const double keys = h.window ? std::min(first + S, h.window + S - 1) : first + S;
        CallSizes call = heads(B, S, h);
        call.p = first, call.maxT = maxT;
        return {call, 0, 4.0 * B * h.NH * pairs(first, S, h.window) * h.HS,
                2 * e * B * h.NKV * h.HS * keys + e * B * S * row(h)};
    }

    Work cross_entropy(float*, Activation* dlogits, const Activation*, const int*, float, int N, int V, int Vp) const {
        return {rows(N, V), 0, 0, e * N * (double(V) + (dlogits ? Vp : 0)) + 8.0 * N};
    }
    Work add_losses(double*, const float*, int64_t n) const { return moved(4 * double(n)); }
    Work sum_of_squares(double*, const Gradient*, int64_t n) const { return moved(g * double(n)); }
    Work gate(Step*, const double*, double, const double*, int n, AdamW, Limits) const {
        return moved(8.0 * (n + 1) + sizeof(Step));
    }
    // m, v and the weights are read and written; beside masters the narrow weights are only written.
    Work adamw(Parameter*, float* master, float*, float*, const Gradient*, const uint8_t*, int64_t n, const Step*,
               AdamW, uint64_t) const {
        return moved((16 + g + (master ? 8 + p : 2 * p) + 1.0 / 64) * double(n));
    }
    Work from_floats(Parameter*, const float*, int64_t n) const { return moved((4 + p) * double(n)); }
    Work to_floats(float*, const Parameter*, int64_t n) const { return moved((4 + p) * double(n)); }

  private:
    double e, p, g;    // bytes of an element: of activations, parameters, gradients
    bool halves;       // products multiply bf16
    Look look;

    static Work moved(double bytes) { return {{}, 0, 0, bytes}; }
    static CallSizes rows(int N, int C) { return {.rows = N, .in = C}; }
    static CallSizes heads(int B, int S, const Heads& h) { return {.B = B, .S = S, .heads = h}; }
    static Work linear(int N, int C, int OC, const void* bias) {
        return {{.rows = N, .in = C, .out = OC, .bias = bias != nullptr}, 2.0 * N * C * OC};
    }
    static double row(const Heads& h) { return double(2 * h.NH + 2 * h.NKV) * h.HS; }    // q, k, v and y of a position

    // With bf16 these are products: tensor cores', or the CPU's own where it has them; else plain arithmetic.
    Work attention(double flops, double passes, int B, int S, const Heads& h) const {
        const double all = flops * h.NH * h.HS * seen(B, S, h);
        const double bytes = passes * e * B * S * row(h) + 4.0 * B * h.NH * S;
        return {heads(B, S, h), halves ? all : 0, halves ? 0 : all, bytes};
    }
    // Pairs in all sequences. If documents are not known, a sequence counts as one document.
    double seen(int B, int S, const Heads& h) const {
        std::vector<int> start(h.doc_start ? size_t(B) * size_t(S) : 0);
        if (start.empty() || !look(start.data(), h.doc_start, 4 * int64_t(start.size())))
            return B * pairs(0, S, h.window);
        double n = 0;
        for (size_t i = 0; i < start.size(); i++) n += pairs(int(i) % S - start[i], 1, h.window);
        return n;
    }
};

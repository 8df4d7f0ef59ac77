// bench_work.h - the least work of a call of each operation, FLOPs and bytes, from its arguments. The floors of
// `flatgpt bench`'s rows and of its profile follow from these.
//
// FLOPs: those of products and attention; an exp or a norm's sums are not counted. Bytes: every input is read once,
// every output written once, sums that are added to are read and written. Bytes bound a call if caches do not hold
// them.
#pragma once
#include <algorithm>
#include <vector>

#include "layers/ops.h"

struct Work {
    double products = 0;    // FLOPs at the products' ceiling
    double flops = 0;       // FLOPs at that of other arithmetic
    double bytes = 0;
    int in = 0, out = 0;    // a linear operation's channels
};

// A function for each operation, with its name and its arguments.
struct WorkOf {
    using T = Activation;
    using P = Parameter;
    using G = Gradient;
    const Table& op;    // to read what lies on the device
    double e, p, g;     // bytes of an element of each type

    explicit WorkOf(const Table& op)
        : op(op), e(double(element_bytes(op.activation))), p(double(element_bytes(op.parameter))),
          g(double(element_bytes(op.gradient))) {}

    Work moved(int64_t bytes) const { return {.bytes = 2 * double(bytes)}; }
    Work zero(void*, int64_t bytes) const { return {.bytes = double(bytes)}; }
    Work copy(void*, const void*, int64_t bytes) const { return moved(bytes); }
    Work upload(void*, const void*, int64_t bytes) const { return moved(bytes); }
    Work download(void*, const void*, int64_t bytes) const { return moved(bytes); }
    Work upload_ahead(void*, const void*, int64_t bytes) const { return moved(bytes); }
    Work take(void*, const void*, int64_t bytes) const { return moved(bytes); }
    Work download_later(void*, const void*, int64_t bytes) const { return moved(bytes); }

    double different(const int* tok, int64_t n) const {
        std::vector<int> ids(static_cast<size_t>(n));
        op.download(ids.data(), tok, 4 * n);
        std::sort(ids.begin(), ids.end());
        return double(std::unique(ids.begin(), ids.end()) - ids.begin());
    }
    Work embedding_forward(T*, const int* tok, const P*, const P*, int B, int S, int C, const int*) const {
        const double N = double(B) * S;
        return {.bytes = e * N * C + 4 * N + p * (different(tok, int64_t(B) * S) + S) * C};
    }
    Work embedding_backward(G*, G*, const T*, const int* tok, int B, int S, int C, int) const {
        const double N = double(B) * S;
        return {.bytes = e * N * C + 4 * N + 2 * g * (different(tok, int64_t(B) * S) + S) * C};
    }
    Work layernorm_forward(T*, float*, float*, const T*, const P*, const P*, float, int N, int C) const {
        return {.bytes = 2 * e * N * C + 8.0 * N + 2 * p * C};
    }
    Work layernorm_backward(T*, G*, G*, const T*, const T*, const P*, const float*, const float*, int N,
                            int C) const {
        return {.bytes = 4 * e * N * C + 8.0 * N + (p + 4 * g) * C};
    }

    static double product(int N, int C, int OC) { return 2.0 * N * C * OC; }
    Work linear_forward(T*, const T*, const P*, const P* b, const T* residual, int N, int C, int OC) const {
        const double weights = double(C) * OC + (b ? OC : 0);
        return {product(N, C, OC), 0, e * N * (C + (residual ? 2.0 : 1.0) * OC) + p * weights, C, OC};
    }
    Work linear_backward(T* dx, G*, G* db, const T*, const T*, const P*, int N, int C, int OC) const {
        const double weights = double(C) * OC, n = dx ? 2 : 1;
        return {n * product(N, C, OC), 0,
                e * N * (OC + n * C) + (n - 1) * p * weights + 2 * g * (weights + (db ? OC : 0)), C, OC};
    }
    Work linear_gelu_forward(T* y, T*, const T* x, const P* w, const P* b, int N, int C, int OC) const {
        Work work = linear_forward(y, x, w, b, nullptr, N, C, OC);
        work.bytes += e * N * OC;
        return work;
    }
    Work linear_gelu_backward(T* dpre, G* dw, G* db, G*, const T* dy, const T* x, const P* w,
                              const T*, int N, int C, int OC) const {
        Work work = linear_backward(dpre, dw, db, dy, x, w, N, C, OC);
        work.bytes += e * N * C + 2 * g * C;
        return work;
    }
    Work gelu_forward(T*, const T*, int64_t n) const { return {.bytes = 2 * e * double(n)}; }
    Work gelu_backward(T*, const T*, const T*, int64_t n) const { return {.bytes = 3 * e * double(n)}; }

    // Scores that queries at p..p+S-1 need; documents, which would need fewer, are not looked at.
    static double pairs(int p, int S, const Heads& h) {
        double n = 0;
        for (int s = p; s < p + S; s++) n += h.window ? std::min(s + 1, h.window) : s + 1;
        return n;
    }
    // With bf16 these are tensor cores' products on a GPU, and the CPU's own where it has them; else plain arithmetic.
    Work attention(double flops, double bytes) const {
        return p == 2 ? Work{.products = flops, .bytes = bytes} : Work{.flops = flops, .bytes = bytes};
    }
    static double qkv(const Heads& h) { return double(h.NH + 2 * h.NKV) * h.HS; }
    Work attention_forward(T*, float*, const T*, int B, int S, Heads h) const {
        const double N = double(B) * S, heads = double(B) * h.NH;
        return attention(4 * heads * pairs(0, S, h) * h.HS, e * N * (qkv(h) + h.NH * h.HS) + 4 * heads * S);
    }
    Work attention_backward(T*, const T*, const T*, const T*, const float*, int B, int S, Heads h) const {
        const double N = double(B) * S, heads = double(B) * h.NH;
        return attention(10 * heads * pairs(0, S, h) * h.HS, 2 * e * N * (qkv(h) + h.NH * h.HS) + 4 * heads * S);
    }
    Work attention_cached(T*, T*, T*, const T*, int B, int S, const int* pos, int, Heads h) const {
        int first;
        op.download(&first, pos, 4);
        const double keys = h.window ? std::min(first + S, h.window + S - 1) : first + S, N = double(B) * S;
        return {.flops = 4.0 * B * h.NH * pairs(first, S, h) * h.HS,
                .bytes = 2 * e * B * h.NKV * h.HS * keys + e * N * (qkv(h) + h.NH * h.HS)};
    }

    Work cross_entropy(float*, T* dlogits, const T*, const int*, float, int N, int V, int Vp) const {
        return {.bytes = e * N * (double(V) + (dlogits ? Vp : 0)) + 8.0 * N};
    }
    Work add_losses(double*, const float*, int64_t n) const { return {.bytes = 4 * double(n)}; }
    Work sum_of_squares(double*, const G*, int64_t n) const { return {.bytes = g * double(n)}; }
    Work gate(Step*, const double*, double, const double*, int n, AdamW, Limits) const {
        return {.bytes = 8.0 * (n + 1) + sizeof(Step)};
    }
    Work from_floats(P*, const float*, int64_t n) const { return {.bytes = (4 + p) * double(n)}; }
    Work to_floats(float*, const P*, int64_t n) const { return {.bytes = (4 + p) * double(n)}; }
    // m, v and the weights are read and written; with masters the narrow weights are written alone.
    Work adamw(P*, float* master, float*, float*, const G*, const uint8_t*, int64_t n, const Step*, AdamW,
               uint64_t) const {
        return {.bytes = (16 + g + (master ? 8 + p : 2 * p) + 1.0 / 64) * double(n)};
    }
};

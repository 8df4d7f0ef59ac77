// token.h - parts of token.cu: a model of GPT-2's or Llama's shape, a token computed operation by
// operation, and the check of faster ways against it.
#pragma once
#include <memory>

#include "ladder.h"
#include "tools/selftest/cached.h"
#include "tools/selftest/rope.h"

namespace {
constexpr int MOST_LAYERS = 16;
constexpr int LEAST_KEYS = 64;    // fewest keys per split in token.cu's kernel

// ---- the model ----------------------------------------------------------------------------------

struct Shape {
    const char* name;
    int V, Vp, C, L, NH, NKV, HS, F, pos;
    bool llama;    // RMSNorm, rope, gated ffn, no biases; else GPT-2
    HOST_DEVICE int qkv() const { return (NH + 2 * NKV) * HS; }
    Heads heads() const { return {NH, NKV, HS}; }
    Norm norm() const { return {llama}; }
    QkNormRope rope() const { return {llama ? HS : 0}; }
    Act act() const { return llama ? Act::silu : Act::gelu_tanh; }
    int up() const { return llama ? 2 * F : F; }
    int positions() const { return int(round_up(pos + 2, Pages::SIZE)); }
    double cache_bytes() const { return 4.0 * L * NKV * HS * (pos + 1); }
};

template <class T> struct Layer {
    const T *nw1, *nb1, *qkvw, *qkvb, *projw, *projb, *nw2, *nb2, *fcw, *fcb, *fc2w, *fc2b;
};
// take(there, n, K) returns n weights: for a product with sums of K terms, or for a norm (K = 0).
// If there is false, it returns null.
template <class T> struct Weights {
    const T *wte, *wpe, *nw, *nb;
    Layer<T> layer[MOST_LAYERS];
    template <class Take> Weights(const Shape& s, Take take) {
        const bool biases = !s.llama;
        const int64_t C = s.C, A = s.NH * s.HS;
        CHECK(s.L <= MOST_LAYERS, "%d layers", s.L);
        wte = take(true, s.Vp * C, 1), wpe = take(biases, s.positions() * C, 1);
        nw = take(true, C, 0), nb = take(biases, C, 1);
        for (int l = 0; l < s.L; l++)
            layer[l] = {take(true, C, 0),         take(biases, C, 1),       take(true, s.qkv() * C, C),
                        take(biases, s.qkv(), 1), take(true, C * A, A),     take(biases, C, 1),
                        take(true, C, 0),         take(biases, C, 1),       take(true, s.up() * C, C),
                        take(biases, s.F, 1),     take(true, C * s.F, s.F), take(biases, C, 1)};
    }
};
template <class T> Weights<T> weights_at(const Shape& s, const T* base, int64_t* count = nullptr) {
    int64_t used = 0;
    Weights<T> w(s, [&](bool there, int64_t n, int64_t) {
        const T* p = there ? base + used : nullptr;
        used += there ? round_up(n, 8) : 0;
        return p;
    });
    if (count) *count = used;
    return w;
}
Numbers random_weights(const Shape& s) {
    Numbers all;
    Weights<double>(s, [&](bool there, int64_t n, int64_t K) -> const double* {
        if (!there) return nullptr;
        Numbers x = random_normal(round_up(n, 8), all.size(), K ? 1 / std::sqrt(double(K)) : 0.3);
        for (double& v : x) all.push_back(v + !K);
        return nullptr;
    });
    return rounded<bf16>(all);
}

// All layers' keys and values.
struct Caches {
    std::vector<std::unique_ptr<CacheArrays<bf16>>> layers;
    Caches(const Memory& m, const Shape& s) {
        for (int l = 0; l < s.L; l++)
            layers.push_back(std::make_unique<CacheArrays<bf16>>(m, Element::bf16, s.NKV, s.HS,
                                                                 s.positions() / Pages::SIZE, std::vector{s.pos}));
    }
    Pages at(int l, bool reference) { return reference ? layers[size_t(l)]->host() : layers[size_t(l)]->device(); }
};

// A token's step: weights, caches, and activations.
template <class T> struct Token {
    Memory m;
    const Shape s;
    const Weights<T> w;
    std::vector<Pages> cache;
    Array<int> tok, pos;
    Array<float> cos_sin, mean, rstd;
    Array<T> x, x2, normed, qkv, qkv_rot, atty, pre, h, logits;
    Array<float> partial;    // token.cu's kernel: results of attention's splits
    Array<int> count;        // token.cu's kernel: arrivals at its grid barrier

    Token(const Ops<T>& op, const Shape& s, const T* weights, Caches& caches)
        : m(op), s(s), w(weights_at(s, weights)), tok(m, 1), pos(m, 1),
          cos_sin(m, cos_sin_table(s.positions(), s.rope().dims)), mean(m, 1), rstd(m, 1), x(m, s.C), x2(m, s.C),
          normed(m, s.C), qkv(m, s.qkv()), qkv_rot(m, s.qkv()), atty(m, s.NH * s.HS), pre(m, s.up()), h(m, s.F),
          logits(m, s.Vp), partial(m, s.NH * (s.HS + 2) * ceil_div(s.positions(), LEAST_KEYS)), count(m, Numbers{0}) {
        for (int l = 0; l < s.L; l++) cache.push_back(caches.at(l, sizeof(T) == 8));
    }
    void set(int token, int position) {
        m.upload(static_cast<int*>(tok), &token, 4);
        m.upload(static_cast<int*>(pos), &position, 4);
    }
    bool intact() const {
        for (const Array<T>* a : {&x, &x2, &normed, &qkv, &qkv_rot, &atty, &pre, &h, &logits})
            if (!a->intact()) return false;
        return partial.intact() && count.intact();
    }
};

// ---- separate operations, also for the reference ------------------------------------------------

template <class T> void in_turn(const Ops<T>& op, Token<T>& t) {
    const Shape& s = t.s;
    const Heads h = s.heads();
    const int C = s.C;
    op.embedding_forward(t.x, t.tok, t.w.wte, t.w.wpe, 1, 1, C, t.pos);
    for (int l = 0; l < s.L; l++) {
        const Layer<T>& p = t.w.layer[l];
        op.norm_forward(t.normed, t.mean, t.rstd, t.x, p.nw1, p.nb1, s.norm(), 1, C);
        op.linear_forward(t.qkv, t.normed, p.qkvw, p.qkvb, nullptr, 1, C, s.qkv(), {});
        if (s.llama) op.rope_forward(t.qkv_rot, nullptr, t.qkv, nullptr, nullptr, t.cos_sin, 1, 1, t.pos, h, s.rope());
        op.attention_cached(t.atty, s.llama ? t.qkv_rot : t.qkv, t.cache[size_t(l)], 1, 1, t.pos, h);
        op.linear_forward(t.x2, t.atty, p.projw, p.projb, t.x, 1, h.width(), C, {});
        op.norm_forward(t.normed, t.mean, t.rstd, t.x2, p.nw2, p.nb2, s.norm(), 1, C);
        op.linear_forward(t.pre, t.normed, p.fcw, p.fcb, nullptr, 1, C, s.up(), {});
        op.activation_forward(t.h, t.pre, s.act(), s.llama, 1, s.F);
        op.linear_forward(t.x, t.h, p.fc2w, p.fc2b, t.x2, 1, s.F, C, {});
    }
    op.norm_forward(t.normed, t.mean, t.rstd, t.x, t.w.nw, t.w.nb, s.norm(), 1, C);
    op.linear_forward(t.logits, t.normed, t.w.wte, nullptr, nullptr, 1, C, s.Vp, {});
}

// ---- the production chain: five launches a layer ------------------------------------------------

void chain(const Ops<bf16>& op, Token<bf16>& t) {
    const Shape& s = t.s;
    const Heads h = s.heads();
    const int C = s.C;
    op.embedding_forward(t.x, t.tok, t.w.wte, t.w.wpe, 1, 1, C, t.pos);
    for (int l = 0; l < s.L; l++) {
        const Layer<bf16>& p = t.w.layer[l];
        const Pages& cache = t.cache[size_t(l)];
        op.norm_linear_forward(t.qkv, t.normed, t.mean, t.rstd, t.x, p.nw1, p.nb1, s.norm(), p.qkvw, p.qkvb, 1, C,
                               s.qkv());
        if (s.llama)
            op.rope_attention_cached(t.atty, t.qkv_rot, nullptr, t.qkv, nullptr, nullptr, t.cos_sin, cache, 1, 1, t.pos,
                                     t.pos, h, s.rope());
        else op.attention_cached(t.atty, t.qkv, cache, 1, 1, t.pos, h);
        op.linear_forward(t.x2, t.atty, p.projw, p.projb, t.x, 1, h.width(), C, {});
        op.norm_ffn_forward(t.h, t.pre, t.normed, t.mean, t.rstd, t.x2, p.nw2, p.nb2, s.norm(), p.fcw, p.fcb, s.act(),
                            s.llama, 1, C, s.F);
        op.linear_forward(t.x, t.h, p.fc2w, p.fc2b, t.x2, 1, s.F, C, {});
    }
    op.norm_forward(t.normed, t.mean, t.rstd, t.x, t.w.nw, t.w.nb, s.norm(), 1, C);
    op.linear_forward(t.logits, t.normed, t.w.wte, nullptr, nullptr, 1, C, s.Vp, {});
}

// ---- the check ----------------------------------------------------------------------------------

typedef void (*TokenStep)(const Ops<bf16>&, Token<bf16>&);

// Checks two tokens, the second with the first's key and value cached. Each is computed twice and
// must have equal bits.
Check check_token(const Ops<bf16>& op, const Shape& s, TokenStep step) {
    Check check(s.name, {{"C", s.C}, {"NH", s.NH}, {"NKV", s.NKV}, {"HS", s.HS}, {"F", s.F}, {"pos", s.pos}});
    const Numbers w = random_weights(s);
    Array<bf16> device_w(Memory(op), w);
    Caches caches(Memory(op), s);
    Token<double> expected(reference_ops(), s, w.data(), caches);
    Token<bf16> got(op, s, device_w, caches);
    for (int i = 0; i < 2; i++) {
        expected.set(3 + 5 * i, s.pos + i), got.set(3 + 5 * i, s.pos + i);
        in_turn(reference_ops(), expected);
        step(op, got);
        check.expect(i ? "the second token's logits" : "logits", got.logits, expected.logits.read(), 1e-2);
        const auto bits = got.logits.bits();
        step(op, got);
        if (got.logits.bits() != bits || !got.intact()) check.note("the same bits, within bounds", INFINITY);
    }
    return check;
}
}    // namespace

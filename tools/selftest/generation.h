// generation.h - checks of fused operations of decode steps against the operations they replace,
// bit for bit. The checks pass if the backend has no such operation.
#pragma once
#include "cached.h"

// One output, computed by the fused operation and by the operations it replaces.
template <class X> struct TwoWays {
    Array<X> fused, in_steps;
    TwoWays(const Memory& m, int64_t n, double start = NAN)
        : fused(m, Numbers(size_t(n), start)), in_steps(m, Numbers(size_t(n), start)) {}
    void expect_same(Check& check, const char* what) const {
        check.note(what, fused.intact() && fused.bits() == in_steps.bits() ? 0 : INFINITY);
    }
};
// Operands of a norm and a product, and buffers between them.
template <class T, class P> struct NormProduct {
    const NormForm form;
    const bool has_bias;
    Array<T> x;
    Array<P> nw, nb, w, b;
    Array<InputType<T, P>> normed;
    Array<float> mean, rstd;
    NormProduct(const Memory& m, int N, int C, int OC, NormForm norm, bool with_bias)
        : form(norm), has_bias(with_bias), x(m, random_normal(int64_t(N) * C, 1, 3)),
          nw(m, norm_weights(C, form.norm.plus, 2)), nb(m, random_normal(C, 3)),
          w(m, random_normal(int64_t(OC) * C, 4, 1 / std::sqrt(C))), b(m, random_normal(OC, 5)),
          normed(m, int64_t(N) * C), mean(m, N), rstd(m, N) {}
    P* norm_w() { return or_null(form.w, nw); }
    P* norm_b() { return or_null(form.b, nb); }
    P* bias() { return or_null(has_bias, b); }
};

inline std::string text_of(NormForm form, bool bias) { return text_of(form) + (bias ? "" : " no bias"); }

template <class T, class P> Check check_norm_linear_forward(const Ops<T, P>& op, int N, int C, int OC,
                                                            NormForm form = LAYERNORM, bool bias = true) {
    Check check("norm_linear_forward", {{"N", N}, {"C", C}, {"OC", OC}}, text_of(form, bias));
    if (!op.norm_linear_forward) return check;
    NormProduct<T, P> o(op, N, C, OC, form, bias);
    TwoWays<T> y(op, int64_t(N) * OC);
    op.norm_linear_forward(y.fused, o.normed, o.mean, o.rstd, o.x, o.norm_w(), o.norm_b(), form.norm, o.w, o.bias(), N,
                           C, OC);
    op.norm_forward(o.normed, o.mean, o.rstd, o.x, o.norm_w(), o.norm_b(), form.norm, N, C);
    op.linear_forward(y.in_steps, o.normed, o.w, o.bias(), nullptr, N, C, OC, {});
    y.expect_same(check, "y");
    return check;
}

template <class T, class P> Check check_norm_ffn_forward(const Ops<T, P>& op, int N, int C, int F, Act act, bool gated,
                                                         NormForm form = LAYERNORM, bool bias = true) {
    const int up = gated ? 2 * F : F;
    Check check("norm_ffn_forward", {{"N", N}, {"C", C}, {"F", F}, {"act", int(act)}},
                (gated ? " gated" : "") + text_of(form, bias));
    if (!op.norm_ffn_forward) return check;
    NormProduct<T, P> o(op, N, C, up, form, bias);
    Array<T> pre(op, int64_t(N) * up);
    TwoWays<InputType<T, P>> y(op, int64_t(N) * F);
    op.norm_ffn_forward(y.fused, pre, o.normed, o.mean, o.rstd, o.x, o.norm_w(), o.norm_b(), form.norm, o.w, o.bias(),
                        act, gated, N, C, F);
    op.norm_forward(o.normed, o.mean, o.rstd, o.x, o.norm_w(), o.norm_b(), form.norm, N, C);
    if (act == Act::gelu_tanh && !gated && op.linear_gelu_forward) {
        op.linear_gelu_forward(y.in_steps, pre, o.normed, o.w, o.bias(), N, C, F, {});
    } else {
        op.linear_forward(pre, o.normed, o.w, o.bias(), nullptr, N, C, up, {});
        op.activation_forward(y.in_steps, pre, act, gated, N, F);
    }
    y.expect_same(check, "y");
    return check;
}

// Checks B sequences of S positions. Sequence b begins at pos - b, or 0; the last of several is
// padding. RoPE positions differ from cache positions. If type is f64, the cache stores type T.
template <class T, class P> Check check_rope_attention_cached(const Ops<T, P>& op, int B, int S, int pos, Heads h,
                                                              QkNormRope t, Element type = Element::f64,
                                                              bool with_weights = true) {
    Check check("rope_attention_cached",
                {{"B", B},
                 {"S", S},
                 {"NH", h.NH},
                 {"NKV", h.NKV},
                 {"HS", h.HS},
                 {"window", h.window},
                 {"dims", t.dims},
                 {"norm", int(t.norm)},
                 {"pos", pos}},
                std::string(t.interleaved ? " interleaved" : "") + (with_weights ? "" : " without weights"));
    if (!op.rope_attention_cached) return check;
    std::vector<int> held, at, rope_at, later;
    for (int b = 0; b < B; b++) {
        held.push_back(std::max(0, pos - b));
        const bool there = B == 1 || b + 1 < B;
        for (int s = 0; s < S; s++) {
            at.push_back(there ? held.back() + s : -1);
            rope_at.push_back(there ? (pos + 7 * b) % 50 + s : -1);
            later.push_back(there ? at.back() + S : -1);
        }
    }
    const int width = int(ceil_div(pos + S, Pages::SIZE)) + 1, weights = qk_norm_weights(h.NH, h.HS, t);
    CacheArrays<T> cache(op, type, h.NKV, h.HS, width, held), other(op, type, h.NKV, h.HS, width, held);
    Array<T> qkv(op, random_normal(int64_t(B) * S * h.qkv_width(), 1, 2)), qkv_rot(op, qkv.size());
    Array<T> next(op, random_normal(qkv.size(), 4));
    Array<P> qw(op, norm_weights(weights, t.plus, 2)), kw(op, norm_weights(weights, t.plus, 3));
    Array<float> cos_sin(op, cos_sin_table(60 + S, t.dims)), rstd(op, int64_t(B) * S * t.rstd_count(h.NH, h.NKV));
    Array<int> rope_pos(op, rope_at), cache_pos(op, at), next_pos(op, later);
    const bool normed = t.norms() && with_weights;
    P *const q = or_null(normed, qw), *const k = or_null(normed, kw);
    float* const angles = or_null(t.dims > 0, cos_sin);
    TwoWays<InputType<T, P>> y(op, int64_t(B) * S * h.width(), 0), y2(op, y.fused.size(), 0);
    op.rope_attention_cached(y.fused, qkv_rot, rstd, qkv, q, k, angles, cache.device(), B, S, rope_pos, cache_pos, h,
                             t);
    op.rope_forward(qkv_rot, rstd, qkv, q, k, angles, B, S, rope_pos, h, t);
    op.attention_cached(y.in_steps, qkv_rot, other.device(), B, S, cache_pos, h);
    y.expect_same(check, "y");
    // Attention at the next position is equal only if equal rows were written to both caches.
    op.attention_cached(y2.fused, next, cache.device(), B, S, next_pos, h);
    op.attention_cached(y2.in_steps, next, other.device(), B, S, next_pos, h);
    y2.expect_same(check, "y of the next position");
    if (!cache.intact()) check.note("beyond the cache", INFINITY);
    return check;
}

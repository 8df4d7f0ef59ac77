#include "generation.h"

#include "cached.h"
#include "rope.h"
#include "selftest.h"

namespace {
// Norm weights, about 1 after norm.plus is added.
Numbers norm_weights(int n, NormForm form, uint64_t stream) {
    Numbers w = random_normal(n, stream, 0.3);
    for (double& x : w) x += 1 - double(form.norm.plus);
    return w;
}
template <class X> void same(Check& check, const char* what, const Array<X>& got, const Array<X>& expected) {
    check.note(what, got.intact() && got.bits() == expected.bits() ? 0 : INFINITY);
}

// Operands of a norm and a product, and buffers between them.
template <class T, class P> struct Operands {
    const Memory m;
    const NormForm form;
    const bool has_bias;
    Array<T> x;
    Array<P> nw, nb, w, b;
    Array<InputType<T, P>> normed;
    Array<float> mean, rstd;
    Operands(const Ops<T, P>& op, int N, int C, int OC, NormForm form, bool bias)
        : m(op), form(form), has_bias(bias), x(m, random_normal(int64_t(N) * C, 1, 3)), nw(m, norm_weights(C, form, 2)),
          nb(m, random_normal(C, 3)), w(m, random_normal(int64_t(OC) * C, 4, 1 / std::sqrt(C))),
          b(m, random_normal(OC, 5)), normed(m, int64_t(N) * C), mean(m, N), rstd(m, N) {}
    P* norm_w() { return or_null(form.w, nw); }
    P* norm_b() { return or_null(form.b, nb); }
    P* bias() { return or_null(has_bias, b); }
};
std::string text_of(NormForm form, bool bias) {
    return std::string(form.norm.rms ? " rms" : "") + (form.w ? "" : " no weight") + (form.b ? "" : " no norm's bias") +
           (bias ? "" : " no bias");
}
}    // namespace

template <class T, class P>
Check check_norm_linear_forward(const Ops<T, P>& op, int N, int C, int OC, NormForm form, bool bias) {
    Check check("norm_linear_forward", {{"N", N}, {"C", C}, {"OC", OC}}, text_of(form, bias));
    if (!op.norm_linear_forward) return check;
    Operands<T, P> o(op, N, C, OC, form, bias);
    Array<T> y(o.m, int64_t(N) * OC), in_steps(o.m, y.size());
    op.norm_linear_forward(y, o.normed, o.mean, o.rstd, o.x, o.norm_w(), o.norm_b(), form.norm, o.w, o.bias(), N, C,
                           OC);
    op.norm_forward(o.normed, o.mean, o.rstd, o.x, o.norm_w(), o.norm_b(), form.norm, N, C);
    op.linear_forward(in_steps, o.normed, o.w, o.bias(), nullptr, N, C, OC, {});
    same(check, "y", y, in_steps);
    return check;
}

template <class T, class P>
Check check_norm_ffn_forward(const Ops<T, P>& op, int N, int C, int F, Act act, bool gated, NormForm form, bool bias) {
    const int up = gated ? 2 * F : F;
    Check check("norm_ffn_forward", {{"N", N}, {"C", C}, {"F", F}, {"act", int(act)}},
                (gated ? " gated" : "") + text_of(form, bias));
    if (!op.norm_ffn_forward) return check;
    Operands<T, P> o(op, N, C, up, form, bias);
    Array<T> pre(o.m, int64_t(N) * up);
    Array<InputType<T, P>> y(o.m, int64_t(N) * F), in_steps(o.m, y.size());
    op.norm_ffn_forward(y, pre, o.normed, o.mean, o.rstd, o.x, o.norm_w(), o.norm_b(), form.norm, o.w, o.bias(), act,
                        gated, N, C, F);
    op.norm_forward(o.normed, o.mean, o.rstd, o.x, o.norm_w(), o.norm_b(), form.norm, N, C);
    if (act == Act::gelu_tanh && !gated && op.linear_gelu_forward) {
        op.linear_gelu_forward(in_steps, pre, o.normed, o.w, o.bias(), N, C, F, {});
    } else {
        op.linear_forward(pre, o.normed, o.w, o.bias(), nullptr, N, C, up, {});
        op.activation_forward(in_steps, pre, act, gated, N, F);
    }
    same(check, "y", y, in_steps);
    return check;
}

template <class T, class P>
Check check_rope_attention_cached(const Ops<T, P>& op, int B, int S, int pos, Heads h, QkNormRope t, Element type) {
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
                t.interleaved ? " interleaved" : "");
    if (!op.rope_attention_cached) return check;
    const Memory m(op);
    std::vector<int> held;
    Numbers at, rope_pos;
    for (int b = 0; b < B; b++) {
        held.push_back(std::max(0, pos - b));
        for (int s = 0; s < S; s++) {
            const bool there = B == 1 || b + 1 < B;
            at.push_back(there ? held.back() + s : -1), rope_pos.push_back(there ? (pos + 7 * b) % 50 + s : -1);
        }
    }
    const int width = int(ceil_div(pos + S, Pages::SIZE)) + 1,
              norm = t.norm == QkNormRope::QkNorm::all ? h.NH * h.HS : h.HS;
    CacheArrays<T> cache(m, type == Element::f64 ? element_of<T> : type, h.NKV, h.HS, width, held);
    CacheArrays<T> other(m, type == Element::f64 ? element_of<T> : type, h.NKV, h.HS, width, held);
    const Numbers qkv = random_normal(int64_t(B) * S * h.qkv_width(), 1, 2);
    Array<T> in(m, qkv), qkv_rot(m, int64_t(qkv.size())), next(m, random_normal(int64_t(qkv.size()), 4));
    Array<P> qw(m, norm_weights(norm, {{true, 0, t.plus}}, 2)), kw(m, norm_weights(norm, {{true, 0, t.plus}}, 3));
    Array<float> cos_sin(m, cos_sin_table(60 + S, t.dims)), rstd(m, int64_t(B) * S * t.rstd_count(h.NH, h.NKV));
    Array<int> places(m, rope_pos), slots(m, at);
    const bool normed = t.norm != QkNormRope::QkNorm::none;
    P *const q = or_null(normed, qw), *const k = or_null(normed, kw);
    const Numbers none(size_t(int64_t(B) * S * h.width()));
    Array<InputType<T, P>> y(m, none), in_steps(m, none), y2(m, none), in_steps2(m, none);
    op.rope_attention_cached(y, qkv_rot, rstd, in, q, k, or_null(t.dims > 0, cos_sin), cache.device(), B, S, places,
                             slots, h, t);
    op.rope_forward(qkv_rot, rstd, in, q, k, or_null(t.dims > 0, cos_sin), B, S, places, h, t);
    op.attention_cached(in_steps, qkv_rot, other.device(), B, S, slots, h);
    same(check, "y", y, in_steps);
    // Attention at the next position checks the rows written to the cache.
    for (double& i : at) i += i < 0 ? 0 : S;
    Array<int> later(m, at);
    op.attention_cached(y2, next, cache.device(), B, S, later, h);
    op.attention_cached(in_steps2, next, other.device(), B, S, later, h);
    same(check, "y of the next position", y2, in_steps2);
    if (!cache.intact()) check.note("beyond the cache", INFINITY);
    return check;
}

FOR_EACH_TABLE(check_norm_linear_forward, int, int, int, NormForm, bool)
FOR_EACH_TABLE(check_norm_ffn_forward, int, int, int, Act, bool, NormForm, bool)
FOR_EACH_TABLE(check_rope_attention_cached, int, int, int, Heads, QkNormRope, Element)

static const SelftestRows rows([]<class T, class P>(Selftest& test, const Ops<T, P>& op, Dtype) {
    if (op.norm_linear_forward)
        for (int N : {1, 3}) {
            test.row("norm_linear_forward", [&] { return check_norm_linear_forward(op, N, gpt2.C, 3 * gpt2.C); });
            test.row("norm_linear_forward",
                     [&] { return check_norm_linear_forward(op, N, 4096, 256, RMSNORM, false); });
        }
    if (op.norm_ffn_forward)
        for (bool gated : {false, true})
            test.row("norm_ffn_forward", [&] {
                return check_norm_ffn_forward(op, 2, gpt2.C, gpt2.F, gated ? Act::silu : Act::gelu_tanh, gated);
            });
    if (op.rope_attention_cached)
        for (auto norm : {QkNormRope::QkNorm::none, QkNormRope::QkNorm::head})
            test.row("rope_attention_cached", [&] {
                return check_rope_attention_cached(op, 2, 1, 1000, {16, 8, 128}, {128, false, norm});
            });
});

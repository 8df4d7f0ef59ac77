#include "rope.h"

#include "selftest.h"

Numbers cos_sin_table(int positions, int dims) {
    Numbers cos_sin(size_t(positions) * size_t(dims));
    for (int p = 0; p < positions; p++)
        for (int i = 0; i < dims / 2; i++) {
            const double angle = p * std::pow(10000, -2.0 * i / dims);
            cos_sin[size_t(p * dims + i)] = std::cos(angle), cos_sin[size_t(p * dims + dims / 2 + i)] = std::sin(angle);
        }
    return rounded<float>(cos_sin);
}

namespace {
Check named(const char* op, int B, int S, Heads h, QkNormRope t, const std::string& more) {
    const char* norms[] = {"", " norm of heads", " norm of all"};
    return Check(op, {{"B", B}, {"S", S}, {"NH", h.NH}, {"NKV", h.NKV}, {"HS", h.HS}, {"dims", t.dims}},
                 std::string(t.interleaved ? " interleaved" : "") + norms[int(t.norm)] + more);
}
// Weights of a norm over n elements.
template <class P> Numbers weights(int n, float plus, uint64_t stream) {
    Numbers w = random_normal(n, stream, 0.3);
    for (double& x : w) x += 1 - double(plus);
    return rounded<P>(w);
}
// Number of a norm's weights: queries', keys'.
int query_weights(Heads h, QkNormRope t) { return t.norm == QkNormRope::QkNorm::all ? h.NH * h.HS : h.HS; }
int key_weights(Heads h, QkNormRope t) { return t.norm == QkNormRope::QkNorm::all ? h.NKV * h.HS : h.HS; }
std::vector<float> as_floats(const Numbers& x) { return std::vector<float>(x.begin(), x.end()); }
}    // namespace

template <class T, class P>
Check check_rope_forward(const Ops<T, P>& op, int B, int S, int pos, Heads h, QkNormRope t, bool in_place) {
    const Memory m(op);
    // Sequence b begins b positions later; the last position of all is padding.
    std::vector<int> places;
    for (int n = 0; n < B * S; n++) places.push_back(pos < 0 ? n % S : pos + n / S + n % S);
    if (pos >= 0 && B * S > 1) places.back() = -1;
    Check check = named("rope_forward", B, S, h, t, " pos=" + std::to_string(pos) + (in_place ? " in place" : ""));
    const bool norm = t.norm != QkNormRope::QkNorm::none;
    const Numbers x = rounded<T>(random_normal(int64_t(B) * S * h.qkv_width(), 1, 3));
    const Numbers cos_sin = cos_sin_table(std::max(0, pos) + B + S, t.dims);
    const Numbers qw = weights<P>(query_weights(h, t), t.plus, 2), kw = weights<P>(key_weights(h, t), t.plus, 3);
    Numbers y(x.size());
    std::vector<float> rstds(size_t(B * S * t.rstd_count(h.NH, h.NKV)));
    reference_ops().rope_forward(y.data(), rstds.data(), x.data(), qw.data(), kw.data(), as_floats(cos_sin).data(), B,
                                 S, places.data(), h, t);
    Array<T> ax(m, x), ay(m, int64_t(x.size()));
    Array<P> aq(m, qw), ak(m, kw);
    Array<float> rstd(m, int64_t(rstds.size())), at(m, cos_sin);
    Array<int> position(m, Numbers(places.begin(), places.end()));
    Array<T>& out = in_place ? ax : ay;
    op.rope_forward(out, or_null(norm, rstd), ax, or_null(norm, aq), or_null(norm, ak), or_null(t.dims > 0, at), B, S,
                    or_null(pos >= 0, position), h, t);
    check.expect("y", out, y, ROUNDING<T>);
    check.expect("rstd", rstd, Numbers(rstds.begin(), rstds.end()), ROUNDING<float>);
    return check;
}

template <class T, class P> Check check_rope_backward(const Ops<T, P>& op, int B, int S, Heads h, QkNormRope t) {
    const Memory m(op);
    Check check = named("rope_backward", B, S, h, t, "");
    const bool norm = t.norm != QkNormRope::QkNorm::none;
    const int64_t n = int64_t(B) * S * h.qkv_width();
    const Numbers x = rounded<T>(random_normal(n, 1, 3)), cos_sin = cos_sin_table(S, t.dims);
    const Numbers qw = weights<P>(query_weights(h, t), t.plus, 2), kw = weights<P>(key_weights(h, t), t.plus, 3);
    Numbers d = rounded<T>(random_normal(n, 4)),
            rstds = random_normal(int64_t(B) * S * t.rstd_count(h.NH, h.NKV), 5, 0.1);
    for (double& r : rstds) r = double(float(std::exp(r) / 3));
    Numbers dqw = rounded<Grad<P>>(random_normal(int64_t(qw.size()), 6));
    Numbers dkw = rounded<Grad<P>>(random_normal(int64_t(kw.size()), 7));
    Array<T> ad(m, d), ax(m, x);
    Array<P> aq(m, qw), ak(m, kw);
    Array<Grad<P>> adq(m, dqw), adk(m, dkw);
    Array<float> rstd(m, rstds), at(m, cos_sin);
    reference_ops().rope_backward(d.data(), dqw.data(), dkw.data(), x.data(), qw.data(), kw.data(),
                                  as_floats(cos_sin).data(), as_floats(rstds).data(), B, S, h, t);
    op.rope_backward(ad, or_null(norm, adq), or_null(norm, adk), or_null(norm, ax), or_null(norm, aq),
                     or_null(norm, ak), or_null(t.dims > 0, at), or_null(norm, rstd), B, S, h, t);
    check.expect("d", ad, d, ROUNDING<T>);
    const double terms = std::sqrt(double(B) * S);
    check.expect("dqw", adq, dqw, ROUNDING<Grad<P>>, terms);
    check.expect("dkw", adk, dkw, ROUNDING<Grad<P>>, terms);
    return check;
}

FOR_EACH_TABLE(check_rope_forward, int, int, int, Heads, QkNormRope, bool)
FOR_EACH_TABLE(check_rope_backward, int, int, Heads, QkNormRope)

static const SelftestRows rows([]<class T, class P>(Selftest& test, const Ops<T, P>& op, Dtype) {
    const Heads h = {16, 8, 128}, llama = {9, 3, 64};    // Qwen 3's, SmolLM2's
    const QkNormRope rope = {64}, normed = {128, false, QkNormRope::QkNorm::head},
                     all = {32, true, QkNormRope::QkNorm::all};
    test.row("rope_forward", [&] { return check_rope_forward(op, 2, 512, -1, llama, rope, true); });
    test.row("rope_forward", [&] { return check_rope_forward(op, 2, 128, 300, h, normed); });
    test.row("rope_forward", [&] { return check_rope_forward(op, 2, 128, 300, h, all); });
    test.row("rope_backward", [&] { return check_rope_backward(op, 2, 512, llama, rope); });
    test.row("rope_backward", [&] { return check_rope_backward(op, 2, 128, h, normed); });
    test.row("rope_backward", [&] { return check_rope_backward(op, 2, 128, h, all); });
});

// rope.h - checks of RoPE and QK-norm.
#pragma once
#include "embedding.h"
#include "norm.h"

// Returns cosines and sines (positions, 2, dims/2) of position / 10000^(2i/dims).
inline Numbers cos_sin_table(int positions, int dims) {
    Numbers cos_sin(size_t(positions) * size_t(dims));
    for (int p = 0; p < positions; p++)
        for (int i = 0; i < dims / 2; i++) {
            const double angle = p * std::pow(10000, -2.0 * i / dims);
            cos_sin[size_t(p * dims + i)] = std::cos(angle);
            cos_sin[size_t(p * dims + dims / 2 + i)] = std::sin(angle);
        }
    return rounded<float>(cos_sin);
}
inline Check rope_check(const char* op, int B, int S, Heads h, QkNormRope t, const std::string& more = "") {
    const char* norms[] = {"", " norm of heads", " norm of all"};
    return Check(op, {{"B", B}, {"S", S}, {"NH", h.NH}, {"NKV", h.NKV}, {"HS", h.HS}, {"dims", t.dims}},
                 std::string(t.interleaved ? " interleaved" : "") + norms[int(t.norm)] + more);
}
// Returns the number of QK-norm weights for queries or keys with this number of heads.
inline int qk_norm_weights(int heads, int HS, QkNormRope t) {
    return t.norm == QkNormRope::QkNorm::all ? heads * HS : HS;
}

// If pos is below 0, the operation's pos is null. If in_place, y is x, which a norm excludes.
template <class T, class P> Check check_rope_forward(const Ops<T, P>& op, int B, int S, int pos, Heads h, QkNormRope t,
                                                     bool in_place = false, bool weights = true) {
    Check check =
        rope_check("rope_forward", B, S, h, t,
                   " pos=" + std::to_string(pos) + (in_place ? " in place" : "") + (weights ? "" : " without weights"));
    const bool norm = t.norms();
    Dual<T> x(op, random_normal(int64_t(B) * S * h.qkv_width(), 1, 3)), apart(op, x.size());
    Dual<T>& y = in_place ? x : apart;
    Dual<P> qw(op, norm_weights(qk_norm_weights(h.NH, h.HS, t), t.plus, 2));
    Dual<P> kw(op, norm_weights(qk_norm_weights(h.NKV, h.HS, t), t.plus, 3));
    Statistics cos_sin(op, cos_sin_table(std::max(0, pos) + B + S, t.dims));
    Statistics rstd(op, int64_t(B) * S * t.rstd_count(h.NH, h.NKV));
    Integers positions(op, positions_from(pos, B, S));
    both(op, [&](auto& table, auto at) {
        table.rope_forward(at(y), at(rstd, norm), at(x), at(qw, norm && weights), at(kw, norm && weights),
                           at(cos_sin, t.dims > 0), B, S, at(positions, pos >= 0), h, t);
    });
    check.expect("y", y, ROUNDING<T>);
    check.expect("rstd", rstd, ROUNDING<float>);
    return check;
}

template <class T, class P>
Check check_rope_backward(const Ops<T, P>& op, int B, int S, Heads h, QkNormRope t, bool weights = true) {
    Check check = rope_check("rope_backward", B, S, h, t, weights ? "" : " without weights");
    const bool norm = t.norms();
    const int64_t n = int64_t(B) * S * h.qkv_width();
    Numbers rstds = random_normal(int64_t(B) * S * t.rstd_count(h.NH, h.NKV), 5, 0.1);
    for (double& r : rstds) r = std::exp(r) / 3;
    Dual<T> x(op, random_normal(n, 1, 3)), d(op, random_normal(n, 4));
    Dual<P> qw(op, norm_weights(qk_norm_weights(h.NH, h.HS, t), t.plus, 2));
    Dual<P> kw(op, norm_weights(qk_norm_weights(h.NKV, h.HS, t), t.plus, 3));
    Dual<Grad<P>> dqw(op, random_normal(qw.size(), 6)), dkw(op, random_normal(kw.size(), 7));
    Statistics rstd(op, rstds), cos_sin(op, cos_sin_table(S, t.dims));
    both(op, [&](auto& table, auto at) {
        table.rope_backward(at(d), at(dqw, norm && weights), at(dkw, norm && weights), at(x, norm),
                            at(qw, norm && weights), at(kw, norm && weights), at(cos_sin, t.dims > 0), at(rstd, norm),
                            B, S, h, t);
    });
    check.expect("d", d, ROUNDING<T>);
    const double terms = std::sqrt(double(B) * S);
    check.expect("dqw", dqw, ROUNDING<Grad<P>>, terms);
    check.expect("dkw", dkw, ROUNDING<Grad<P>>, terms);
    return check;
}

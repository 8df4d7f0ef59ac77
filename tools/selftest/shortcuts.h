// shortcuts.h - checks of the shortcuts around blocks.
#pragma once
#include "embedding.h"
#include "linear.h"

// The factors of layer l of 5. has_factor: x has one, too.
template <class T, class P>
Check check_residual_mix_forward(const Ops<T, P>& op, int64_t n, int l, float sign, bool has_factor, bool in_place) {
    Check check("residual_mix_forward", {{"n", n}, {"l", l}, {"factor", has_factor}}, in_place ? " in place" : "");
    Dual<T> x(op, random_normal(n, 1)), x0(op, random_normal(n, 2)), y(op, n);
    Dual<P> factor(op, random_normal(5, 3)), factor0(op, random_normal(5, 4));
    Dual<T>& to = in_place ? x : y;
    both(op, [&](auto& table, auto at) {
        table.residual_mix_forward(at(to), at(x), at(x0), at(factor, has_factor), at(factor0), l, sign, n);
    });
    check.expect("y", to, 2 * ROUNDING<T>);
    return check;
}
// Gradients d are around 1, because a long sum of numbers around 0 would be small against the
// errors of its terms.
template <class T, class P> Check check_residual_mix_backward(const Ops<T, P>& op, int64_t n, int l, float sign,
                                                              bool has_factor, bool frozen = false) {
    Check check("residual_mix_backward", {{"n", n}, {"l", l}, {"factor", has_factor}}, frozen ? " frozen" : "");
    Numbers around_1 = random_normal(n, 5), x_around_1 = random_normal(n, 1);
    for (double& number : around_1) number += 1;
    for (double& number : x_around_1) number += 1;
    Dual<T> x(op, x_around_1), x0(op, x_around_1), d(op, around_1), dx0(op, random_normal(n, 6));
    Dual<P> factor(op, random_normal(5, 3)), factor0(op, random_normal(5, 4));
    Dual<Grad<P>> dfactor(op, start_sums(5, 7, int(n))), dfactor0(op, start_sums(5, 8, int(n)));
    const bool of_x = has_factor && !frozen;
    both(op, [&](auto& table, auto at) {
        table.residual_mix_backward(at(d), at(dx0), at(dfactor, of_x), at(dfactor0, !frozen), at(x, of_x), at(x0),
                                    at(factor, has_factor), at(factor0), l, sign, n);
    });
    check.expect("d", d, ROUNDING<T>);
    check.expect("dx0", dx0, 2 * ROUNDING<T>);
    check.expect("dfactor", dfactor, product_limit<Grad<P>, T>(Dtype::fp32, n));
    check.expect("dfactor0", dfactor0, product_limit<Grad<P>, T>(Dtype::fp32, n));
    return check;
}

// texts: number of texts in a sequence, about; 0: pos is null. The last position is padding.
inline std::vector<int> padded_positions(int texts, int B, int S) {
    std::vector<int> all = positions_in_texts(std::max(1, texts), B, S);
    if (all.size() > 1) all.back() = -1;
    return all;
}
template <class T, class P>
Check check_smear_forward(const Ops<T, P>& op, int B, int S, int C, int texts, bool has_previous) {
    Check check("smear_forward", {{"B", B}, {"S", S}, {"C", C}, {"texts", texts}}, has_previous ? " previous" : "");
    const int64_t n = int64_t(B) * S * C;
    Dual<T> x(op, random_normal(n, 1)), previous(op, random_normal(n, 2)), y(op, n);
    Dual<P> w(op, random_normal(smear_channels(C), 3)), lambda(op, random_normal(1, 4));
    Integers pos(op, padded_positions(texts, B, S));
    both(op, [&](auto& table, auto at) {
        table.smear_forward(at(y), at(x), at(previous, has_previous), at(w), at(lambda), B, S, C, at(pos, texts > 0));
    });
    check.expect("y", y, 2 * ROUNDING<T>);
    return check;
}
template <class T, class P>
Check check_smear_backward(const Ops<T, P>& op, int B, int S, int C, int texts, bool frozen = false) {
    Check check("smear_backward", {{"B", B}, {"S", S}, {"C", C}, {"texts", texts}}, frozen ? " frozen" : "");
    const int64_t n = int64_t(B) * S * C;
    Numbers around_1 = random_normal(n, 1);
    for (double& number : around_1) number += 1;
    Dual<T> x(op, around_1), dy(op, random_normal(n, 2)), dx(op, n);
    Dual<P> w(op, random_normal(smear_channels(C), 3, 0.1)), lambda(op, Numbers{0.7});
    Dual<Grad<P>> dw(op, start_sums(w.size(), 5, int(n))), dlambda(op, start_sums(1, 6, int(n)));
    Integers pos(op, padded_positions(texts, B, S));
    both(op, [&](auto& table, auto at) {
        table.smear_backward(at(dx), at(dw, !frozen), at(dlambda, !frozen), at(dy), at(x), at(w), at(lambda), B, S, C,
                             at(pos, texts > 0));
    });
    check.expect("dx", dx, product_limit<T, T>(Dtype::fp32, C));
    check.expect("dw", dw, product_limit<Grad<P>, T>(Dtype::fp32, n));
    check.expect("dlambda", dlambda, product_limit<Grad<P>, T>(Dtype::fp32, n));
    return check;
}
// Sequences of a cache of 7, in descending order. Sequence b begins at position b; the last
// position is padding.
template <class T, class P> Check check_previous_tokens(const Ops<T, P>& op, int B, int S) {
    Check check("previous_tokens", {{"B", B}, {"S", S}});
    const int positions = B + S;
    std::vector<int> order, at_cache = positions_from(0, B, S);
    for (int b = 0; b < B; b++) order.push_back(6 - b);
    Integers history(op, random_tokens(7 * positions, 1000, 1)), tok(op, random_tokens(int64_t(B) * S, 1000, 2));
    Integers sequences(op, order), pos(op, at_cache), previous(op, int64_t(B) * S);
    both(op, [&](auto& table, auto at) {
        table.previous_tokens(at(previous), at(history), at(tok), at(sequences), at(pos), B, S, positions);
    });
    check.expect_equal("previous", previous);
    check.expect_equal("history", history);
    return check;
}

// by_token: the table's rows are those of tokens below 11, else row n.
template <class T, class P>
Check check_value_embedding_forward(const Ops<T, P>& op, int N, int C, Heads h, bool by_token) {
    Check check("value_embedding_forward", {{"N", N}, {"C", C}, {"NKV", h.NKV}, {"HS", h.HS}}, by_token ? "" : " rows");
    const int width = h.NKV * h.HS, V = by_token ? 11 : N;
    Dual<InputType<T, P>> x(op, random_normal(int64_t(N) * C, 1));
    Dual<T> qkv(op, random_normal(int64_t(N) * h.qkv_width(), 2));
    Dual<P> table_w(op, random_normal(int64_t(V) * width, 3)),
        gate_w(op, random_normal(h.NKV * value_gate_channels(C), 4));
    Integers tok(op, random_tokens(N, V, 5));
    both(op, [&](auto& table, auto at) {
        table.value_embedding_forward(at(qkv), at(x), at(table_w), at(gate_w), at(tok, by_token), N, C, h);
    });
    check.expect("qkv", qkv, 2 * ROUNDING<T>);
    return check;
}
template <class T, class P>
Check check_value_embedding_backward(const Ops<T, P>& op, int N, int C, Heads h, bool by_token, bool frozen = false) {
    Check check("value_embedding_backward", {{"N", N}, {"C", C}, {"NKV", h.NKV}, {"HS", h.HS}},
                frozen ? " frozen" : "");
    const int width = h.NKV * h.HS, V = by_token ? 11 : N;
    Dual<InputType<T, P>> x(op, random_normal(int64_t(N) * C, 1));
    Dual<T> dqkv(op, random_normal(int64_t(N) * h.qkv_width(), 2)), dx(op, random_normal(int64_t(N) * C, 6));
    Dual<T> dvalues(op, int64_t(N) * width);
    Dual<P> table_w(op, random_normal(int64_t(V) * width, 3)),
        gate_w(op, random_normal(h.NKV * value_gate_channels(C), 4));
    Dual<Grad<P>> dgate_w(op, start_sums(gate_w.size(), 7, N * h.HS));
    Integers tok(op, random_tokens(N, V, 5));
    both(op, [&](auto& table, auto at) {
        table.value_embedding_backward(at(dx), at(dvalues, !frozen), at(dgate_w, !frozen), at(dqkv), at(x), at(table_w),
                                       at(gate_w), at(tok, by_token), N, C, h);
    });
    check.expect("dx", dx, product_limit<T, T>(Dtype::fp32, width));
    if (!frozen) check.expect("dvalues", dvalues, ROUNDING<T>);
    check.expect("dgate_w", dgate_w, product_limit<Grad<P>, T>(Dtype::fp32, int64_t(N) * h.HS));
    return check;
}

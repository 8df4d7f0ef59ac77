// linear_attention.h - checks of attention without softmax.
#pragma once
#include "attention.h"

constexpr LinearAttention LINEARS[] = {LinearAttention::elu, LinearAttention::retention, LinearAttention::gated,
                                       LinearAttention::performer};
inline constexpr const char* LINEAR_NAME[] = {"none", "elu", "retention", "gated", "performer"};
template <class T> constexpr double LINEAR_LIMIT = sizeof(T) == 2 ? 1e-2 : 1e-5;

inline Check linear_attention_check(const char* op, int B, int S, Heads h, int pos = 0) {
    return Check(op, {{"B", B}, {"S", S}, {"NH", h.NH}, {"NKV", h.NKV}, {"HS", h.HS}, {"pos", pos}},
                 std::string(" ") + LINEAR_NAME[int(h.linear)] + (h.keys ? " spans" : ""));
}
// Inputs of all three operations. deviation is the standard deviation of the gates.
template <class T> struct LinearInputs {
    DualHeads heads;
    Dual<T> qkv, gates;
    const bool gated;
    LinearInputs(Memory m, int64_t N, Heads h, double deviation)
        : heads(m, N, h), qkv(m, random_normal(N * h.qkv_width(), 1)),
          gates(m, random_normal(N * h.gates(), 2, deviation)), gated(h.gates() > 0) {}
};

// h has a kind of linear attention and may have spans in host memory. With a large deviation of the
// gates, decays reach their lower bound.
template <class T, class P>
Check check_linear_attention_forward(const Ops<T, P>& op, int B, int S, Heads h, double deviation = 3) {
    Check check = linear_attention_check("linear_attention_forward", B, S, h);
    const int64_t N = int64_t(B) * S;
    LinearInputs<T> in(op, N, h, deviation);
    Dual<InputType<T, P>> y(op, N * h.width());
    Statistics norms(op, N * h.NH);
    both(op, [&](auto& table, auto at) {
        table.linear_attention_forward(at(y), at(norms), at(in.qkv), at(in.gates, in.gated), B, S, at(in.heads));
    });
    check.expect("y", y, LINEAR_LIMIT<InputType<T, P>>);
    // Each norm is compared relative to itself, because norms differ by orders of magnitude.
    Numbers parts = norms.read();
    for (size_t i = 0; i < parts.size(); i++) parts[i] /= double(norms.numbers[i]);
    check.note("norms", norms, Check::error_over_limit(parts, Numbers(parts.size(), 1), 1e-5));
    return check;
}

template <class T, class P>
Check check_linear_attention_backward(const Ops<T, P>& op, int B, int S, Heads h, double deviation = 3) {
    Check check = linear_attention_check("linear_attention_backward", B, S, h);
    const int64_t N = int64_t(B) * S;
    LinearInputs<T> in(op, N, h, deviation);
    Numbers exact(size_t(N * h.width()));
    std::vector<float> exact_norms(size_t(N * h.NH));
    reference_ops().linear_attention_forward(exact.data(), exact_norms.data(), in.qkv.host(), in.gates.host(), B, S,
                                             in.heads.host());
    Dual<T> dqkv(op, in.qkv.size()), dgates(op, in.gates.size()), dy(op, random_normal(N * h.width(), 3));
    Dual<InputType<T, P>> y(op, exact);    // n's gradient uses the rounded y
    Statistics norms(op, exact_norms);
    both(op, [&](auto& table, auto at) {
        table.linear_attention_backward(at(dqkv), at(dgates, in.gated), at(dy), at(y), at(in.qkv),
                                        at(in.gates, in.gated), at(norms), B, S, at(in.heads));
    });
    const Numbers got = dqkv.read();
    for (auto [name, first, n] : qkv_columns(h)) {
        const Numbers part = columns(got, h.qkv_width(), first, n);
        check.note(name, Check::error_over_limit(part, columns(dqkv.numbers, h.qkv_width(), first, n),
                                                 2 * LINEAR_LIMIT<T>, 1e-2));
    }
    check.note("beyond dqkv", dqkv, 0);
    if (in.gated) check.expect("dgates", dgates, 4 * LINEAR_LIMIT<T>, 1e-3);
    return check;
}

// Sequence b has S - 3 b positions from `pos` on; the rest is padding.
template <class T, class P>
Check check_linear_attention_cached(const Ops<T, P>& op, int B, int S, int pos, Heads h, double deviation = 3) {
    Check check = linear_attention_check("linear_attention_cached", B, S, h, pos);
    LinearInputs<T> in(op, int64_t(B) * S, h, deviation);
    std::vector<int> positions, reversed;
    for (int b = 0; b < B; b++) {
        reversed.push_back(B - 1 - b);
        for (int s = 0; s < S; s++) positions.push_back(s < std::max(1, S - 3 * b) ? pos + s : -1);
    }
    // At pos 0 the state must not be read, so it is NaN. With has_z() it is positive, because y is
    // divided by f(q) . z, which must not be near 0 (z is the end of the state).
    const int64_t stride = h.state() + 3;    // a gap after each state
    Numbers start = random_normal(B * stride, 4);
    for (double& x : start) x = pos == 0 ? NAN : h.has_z() ? std::abs(x) : x;
    Dual<float> states(op, start);
    Integers at_pos(op, positions), of(op, reversed);
    Dual<InputType<T, P>> y(op, int64_t(B) * S * h.width());
    both(op, [&](auto& table, auto at) {
        table.linear_attention_cached(at(y), {at(states), stride, at(of)}, at(in.qkv), at(in.gates, in.gated), B, S,
                                      at(at_pos), at(in.heads));
    });
    Numbers got = states.read();
    for (size_t i = 0; i < got.size(); i++) {
        double& expected = states.numbers[i];
        const bool same = std::isnan(expected) ? std::isnan(got[i]) : got[i] == expected;
        if (int64_t(i) % stride >= h.state() && same) got[i] = expected = 0;
    }
    check.expect("y", y, LINEAR_LIMIT<InputType<T, P>>);
    check.note("states", states, Check::error_over_limit(got, states.numbers, LINEAR_LIMIT<float>));
    return check;
}

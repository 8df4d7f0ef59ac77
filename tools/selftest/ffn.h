// ffn.h - checks of the ffn's activations.
#pragma once
#include "check.h"

constexpr Act ACTS[] = {Act::gelu_tanh, Act::gelu, Act::silu, Act::relu, Act::relu2, Act::tanh};
inline constexpr const char* ACT_NAME[] = {"gelu_tanh", "gelu", "silu", "relu", "relu2", "tanh"};

inline std::string text_of(Act act, bool gated) {
    return std::string(" ") + ACT_NAME[int(act)] + (gated ? " gated" : "");
}

// Inputs reach the range where GELU is x or 0.
template <class T, class P> Check check_activation_forward(const Ops<T, P>& op, Act act, bool gated, int N, int F) {
    Check check("activation_forward", {{"N", N}, {"F", F}}, text_of(act, gated));
    const int64_t n = int64_t(N) * F;
    Dual<T> x(op, random_normal((gated ? 2 : 1) * n, 1, 2));
    Dual<InputType<T, P>> y(op, n);
    both(op, [&](auto& table, auto at) { table.activation_forward(at(y), at(x), act, gated, N, F); });
    check.expect("y", y, ROUNDING<InputType<T, P>>);
    return check;
}

template <class T, class P> Check check_stream_activation_forward(const Ops<T, P>& op, Act act, int N, int F) {
    Check check("stream_activation_forward", {{"N", N}, {"F", F}}, text_of(act, false));
    const int64_t n = int64_t(N) * F;
    Dual<T> x(op, random_normal(n, 1, 2)), y(op, n);
    both(op, [&](auto& table, auto at) { table.stream_activation_forward(at(y), at(x), act, N, F); });
    check.expect("y", y, ROUNDING<T>);
    return check;
}

// If in_place, dx is dy. With gates this is impossible, because dx has twice the width of dy.
template <class T, class P>
Check check_activation_backward(const Ops<T, P>& op, Act act, bool gated, int N, int F, bool in_place = false) {
    Check check("activation_backward", {{"N", N}, {"F", F}}, text_of(act, gated) + (in_place ? " in place" : ""));
    const int64_t n = int64_t(N) * F;
    Dual<T> x(op, random_normal((gated ? 2 : 1) * n, 1, 2)), dy(op, random_normal(n, 2)), apart(op, x.size());
    Dual<T>& dx = in_place ? dy : apart;
    both(op, [&](auto& table, auto at) { table.activation_backward(at(dx), at(dy), at(x), act, gated, N, F); });
    check.expect("dx", dx, ROUNDING<T>);
    return check;
}

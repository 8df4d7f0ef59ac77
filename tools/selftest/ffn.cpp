#include "ffn.h"

#include "selftest.h"

namespace {
Check named(const char* op, Act act, bool gated, int N, int F, bool in_place = false) {
    return Check(op, {{"N", N}, {"F", F}},
                 std::string(" ") + ACT_NAME[int(act)] + (gated ? " gated" : "") + (in_place ? " in place" : ""));
}
}    // namespace

// Inputs reach the range where GELU is x or 0.
template <class T, class P> Check check_activation_forward(const Ops<T, P>& op, Act act, bool gated, int N, int F) {
    const Memory m(op);
    Check check = named("activation_forward", act, gated, N, F);
    const int64_t n = int64_t(N) * F;
    const Numbers x = rounded<T>(random_normal((gated ? 2 : 1) * n, 1, 2));
    Numbers y(static_cast<size_t>(n));
    reference_ops().activation_forward(y.data(), x.data(), act, gated, N, F);
    Array<InputType<T, P>> ay(m, n);
    Array<T> ax(m, x);
    op.activation_forward(ay, ax, act, gated, N, F);
    check.expect("y", ay, y, ROUNDING<InputType<T, P>>);
    return check;
}

template <class T, class P>
Check check_activation_backward(const Ops<T, P>& op, Act act, bool gated, int N, int F, bool in_place) {
    const Memory m(op);
    Check check = named("activation_backward", act, gated, N, F, in_place);
    const int64_t n = int64_t(N) * F;
    const Numbers x = rounded<T>(random_normal((gated ? 2 : 1) * n, 1, 2)), dy = rounded<T>(random_normal(n, 2));
    Numbers dx(x.size());
    reference_ops().activation_backward(dx.data(), dy.data(), x.data(), act, gated, N, F);
    Array<T> adx(m, int64_t(x.size())), ady(m, dy), ax(m, x);
    Array<T>& out = in_place ? ady : adx;
    op.activation_backward(out, ady, ax, act, gated, N, F);
    check.expect("dx", out, dx, ROUNDING<T>);
    return check;
}

FOR_EACH_TABLE(check_activation_forward, Act, bool, int, int)
FOR_EACH_TABLE(check_activation_backward, Act, bool, int, int, bool)

static const SelftestRows rows([]<class T, class P>(Selftest& test, const Ops<T, P>& op, Dtype) {
    for (Act act : ACTS)
        for (bool gated : {false, true}) {
            test.row("activation_forward", [&] { return check_activation_forward(op, act, gated, 32, gpt2.F); });
            test.row("activation_backward", [&] { return check_activation_backward(op, act, gated, 32, gpt2.F); });
        }
    test.row("activation_backward",
             [&] { return check_activation_backward(op, Act::gelu_tanh, false, 32, gpt2.F, true); });
});

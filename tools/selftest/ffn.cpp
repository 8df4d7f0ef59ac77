#include "ffn.h"

#include "selftest.h"

// Activations reach to where GELU is x or 0.
template <class T, class P> Check check_gelu_forward(const Ops<T, P>& op, int64_t n) {
    const Memory m(op);
    Check check("gelu_forward", {{"n", n}});
    const Numbers x = rounded<T>(random_normal(n, 1, 2));
    Numbers y(x.size());
    reference_ops().gelu_forward(y.data(), x.data(), n);
    Array<T> ay(m, n), ax(m, x);
    op.gelu_forward(ay, ax, n);
    check.expect("y", ay, y, ROUNDING<T>);
    return check;
}

template <class T, class P> Check check_gelu_backward(const Ops<T, P>& op, int64_t n, bool in_place) {
    const Memory m(op);
    Check check("gelu_backward", {{"n", n}}, in_place ? " in place" : "");
    const Numbers x = rounded<T>(random_normal(n, 1, 2)), dy = rounded<T>(random_normal(n, 2));
    Numbers dx(x.size());
    reference_ops().gelu_backward(dx.data(), dy.data(), x.data(), n);
    Array<T> adx(m, n), ady(m, dy), ax(m, x);
    Array<T>& out = in_place ? ady : adx;
    op.gelu_backward(out, ady, ax, n);
    check.expect("dx", out, dx, ROUNDING<T>);
    return check;
}

FOR_EACH_TABLE(check_gelu_forward, int64_t)
FOR_EACH_TABLE(check_gelu_backward, int64_t, bool)

static const SelftestRows rows([]<class T, class P>(Selftest& test, const Ops<T, P>& op, Dtype) {
    test.row("gelu_forward", [&] { return check_gelu_forward(op, 1024 * gpt2.F); });
    for (bool in_place : {false, true})
        test.row("gelu_backward", [&] { return check_gelu_backward(op, 512 * gpt2.F, in_place); });
});

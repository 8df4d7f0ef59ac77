#include "linear.h"

#include "selftest.h"

namespace {
Check named(const char* op, Dtype dtype, int N, int C, int OC, const std::string& more = "") {
    const char* type = dtype == Dtype::tf32        ? " tf32"
                       : dtype == Dtype::fp8       ? " fp8"
                       : dtype == Dtype::fp8_block ? " fp8-block"
                                                   : "";
    return Check(op, {{"N", N}, {"C", C}, {"OC", OC}}, type + more);
}
}    // namespace

template <class T, class P>
Check check_linear_forward(const Ops<T, P>& op, int N, int C, int OC, bool bias, Residual residual, Dtype dtype) {
    const Memory m(op);
    const int64_t n = int64_t(N) * OC;
    const char* added = residual == Residual::none ? "" : residual == Residual::in_y ? " residual in y" : " residual";
    Check check = named("linear_forward", dtype, N, C, OC, (bias ? " bias" : "") + std::string(added));
    const Numbers x = operand<InputType<T, P>>(dtype, int64_t(N) * C, 1);
    const Numbers w = operand<P>(dtype, int64_t(OC) * C, 2, 1 / std::sqrt(C));
    const Numbers b = operand<P>(dtype, OC, 3), r = operand<T>(dtype, n, 4);
    Numbers expected(static_cast<size_t>(n));
    reference_ops().linear_forward(expected.data(), x.data(), w.data(), bias ? b.data() : nullptr,
                                   residual != Residual::none ? r.data() : nullptr, N, C, OC, {});
    Array<InputType<T, P>> dx(m, x);
    Array<T> dr(m, r), apart(m, n);
    Array<P> dw(m, w), db(m, b);
    Array<T>& y = residual == Residual::in_y ? dr : apart;
    op.linear_forward(y, dx, dw, bias ? static_cast<P*>(db) : nullptr,
                      residual != Residual::none ? static_cast<T*>(dr) : nullptr, N, C, OC, precision_of(dtype));
    check.expect("y", y, expected, product_limit<T, T>(dtype, C) + fp8_limit(dtype, 3));
    return check;
}

template <class T, class P>
Check check_linear_backward(const Ops<T, P>& op, int N, int C, int OC, bool with_dx, bool bias, Dtype dtype, bool add) {
    const Memory m(op);
    Check check = named("linear_backward", dtype, N, C, OC,
                        std::string(with_dx ? " dx" : "") + (bias ? " db" : "") + (add ? "" : " assigned"));
    const Numbers dy = factor(operand<T>(dtype, int64_t(N) * OC, 1), add);
    const Numbers x = factor(operand<InputType<T, P>>(dtype, int64_t(N) * C, 2), add);
    const Numbers w = factor(operand<P>(dtype, int64_t(OC) * C, 3, 1 / std::sqrt(OC)), add);
    Numbers dw = start_into(int64_t(OC) * C, 4, N, add), db = start_sums(OC, 5, N);
    Array<Grad<P>> dw_out(m, dw), db_out(m, db);
    Array<T> dx_out(m, int64_t(N) * C), dy_in(m, dy);
    Array<InputType<T, P>> x_in(m, x);
    Array<P> w_in(m, w);
    Numbers dx(static_cast<size_t>(int64_t(N) * C));
    reference_ops().linear_backward(dx.data(), {dw.data(), add}, db.data(), dy.data(), x.data(), w.data(), N, C, OC,
                                    {});
    op.linear_backward(with_dx ? static_cast<T*>(dx_out) : nullptr, {dw_out, add},
                       bias ? static_cast<Grad<P>*>(db_out) : nullptr, dy_in, x_in, w_in, N, C, OC,
                       precision_of(dtype));
    if (with_dx) check.expect("dx", dx_out, dx, product_limit<T, T>(dtype, OC) + fp8_limit(dtype, 2));
    check.expect("dw", dw_out, dw, product_limit<Grad<P>, T>(dtype, N) + fp8_limit(dtype, 2));
    if (bias) check.expect("db", db_out, db, product_limit<Grad<P>, T>(dtype, N));
    return check;
}

// The limit of a product fused with GELU or its slope. cuBLASLt does not document its tanh's
// accuracy; users have found its GELU a little less exact than a plain one (llm.c, pull request
// 653). An error up to 1e-5 is attributed to it. The CPU's GELU is flatgpt's own, without this
// allowance.
template <class X, class T> double gelu_limit(bool on_host, Dtype dtype, int64_t K) {
    return product_limit<X, T>(dtype, K) + (on_host || sizeof(X) == 2 ? 0 : 1e-5 - ROUNDING<X>);
}

template <class T, class P>
Check check_linear_gelu_forward(const Ops<T, P>& op, int N, int C, int OC, Dtype dtype, bool bias) {
    const Memory m(op);
    Check check = named("linear_gelu_forward", dtype, N, C, OC);
    if (!op.linear_gelu_forward) return check;
    const Numbers x = operand<InputType<T, P>>(dtype, int64_t(N) * C, 1);
    const Numbers w = operand<P>(dtype, int64_t(OC) * C, 2, 1 / std::sqrt(C));
    const Numbers b = operand<P>(dtype, OC, 3);
    Numbers pre(static_cast<size_t>(int64_t(N) * OC)), y(pre.size());
    reference_ops().linear_forward(pre.data(), x.data(), w.data(), bias ? b.data() : nullptr, nullptr, N, C, OC, {});
    reference_ops().activation_forward(y.data(), pre.data(), Act::gelu_tanh, false, N, OC);
    Array<P> w_in(m, w), b_in(m, b);
    Array<InputType<T, P>> x_in(m, x), y_out(m, int64_t(N) * OC);
    Array<T> pre_out(m, int64_t(N) * OC);
    op.linear_gelu_forward(y_out, pre_out, x_in, w_in, bias ? static_cast<P*>(b_in) : nullptr, N, C, OC, {});
    check.expect("pre", pre_out, pre, product_limit<T, T>(dtype, C));
    check.expect("y", y_out, y, gelu_limit<InputType<T, P>, T>(op.upload == op.copy, dtype, C));
    return check;
}

template <class T, class P>
Check check_linear_gelu_backward(const Ops<T, P>& op, int N, int C, int OC, Dtype dtype, bool bias, bool add) {
    const Memory m(op);
    Check check = named("linear_gelu_backward", dtype, N, C, OC, add ? "" : " assigned");
    if (!op.linear_gelu_backward) return check;
    const int64_t n = int64_t(N) * C;
    const Numbers dy = factor(operand<T>(dtype, int64_t(N) * OC, 1), add);
    const Numbers x = factor(operand<InputType<T, P>>(dtype, n, 2), add);
    const Numbers pre = operand<T>(dtype, n, 3);
    const Numbers w = factor(operand<P>(dtype, int64_t(OC) * C, 4, 1 / std::sqrt(OC)), add);
    Numbers dw = start_into(int64_t(OC) * C, 5, N, add), db = start_sums(OC, 6, N), dpre_sum = start_sums(C, 7, N);
    Numbers dpre(static_cast<size_t>(n));
    Array<Grad<P>> dw_out(m, dw), db_out(m, db), sum_out(m, dpre_sum);
    Array<T> dpre_out(m, n), dy_in(m, dy), pre_in(m, pre);
    Array<InputType<T, P>> x_in(m, x);
    Array<P> w_in(m, w);
    reference_ops().linear_backward(dpre.data(), {dw.data(), add}, bias ? db.data() : nullptr, dy.data(), x.data(),
                                    w.data(), N, C, OC, {});
    reference_ops().activation_backward(dpre.data(), dpre.data(), pre.data(), Act::gelu_tanh, false, N, C);
    for (int64_t i = 0; i < n && bias; i++) dpre_sum[size_t(i % C)] += dpre[size_t(i)];
    Grad<P>* const db_at = bias ? static_cast<Grad<P>*>(db_out) : nullptr;
    Grad<P>* const sum_at = bias ? static_cast<Grad<P>*>(sum_out) : nullptr;
    op.linear_gelu_backward(dpre_out, {dw_out, add}, db_at, sum_at, dy_in, x_in, w_in, pre_in, N, C, OC);
    // Unfused, dy w is rounded, too.
    check.expect("dpre", dpre_out, dpre, gelu_limit<T, T>(op.upload == op.copy, dtype, OC) + ROUNDING<T> / 2);
    check.expect("dw", dw_out, dw, product_limit<Grad<P>, T>(dtype, N));
    check.expect("db", db_out, db, product_limit<Grad<P>, T>(dtype, N));
    // dpre or the sum may be rounded.
    check.expect("dpre_sum", sum_out, dpre_sum, gelu_limit<T, T>(op.upload == op.copy, dtype, N + OC));
    return check;
}

FOR_EACH_TABLE(check_linear_forward, int, int, int, bool, Residual, Dtype)
FOR_EACH_TABLE(check_linear_backward, int, int, int, bool, bool, Dtype, bool)
FOR_EACH_TABLE(check_linear_gelu_forward, int, int, int, Dtype, bool)
FOR_EACH_TABLE(check_linear_gelu_backward, int, int, int, Dtype, bool, bool)

static const SelftestRows rows([]<class T, class P>(Selftest& test, const Ops<T, P>& op, Dtype dtype) {
    auto forward = [&](int N, int in, int out, bool bias, Residual residual) {
        test.row("linear_forward", [&] { return check_linear_forward(op, N, in, out, bias, residual, dtype); });
    };
    auto backward = [&](int N, int in, int out, bool bias, bool add = true) {
        test.row("linear_backward", [&] { return check_linear_backward(op, N, in, out, true, bias, dtype, add); });
    };
    for (int N : {256, 64, 3, 1}) forward(N, gpt2.C, 3 * gpt2.C, true, Residual::none);    // training, then generation
    forward(256, gpt2.C, gpt2.C, true, Residual::apart);
    forward(256, gpt2.F, gpt2.C, true, Residual::in_y);
    forward(16, gpt2.C, test.Vp(), false, Residual::none);
    backward(256, gpt2.C, 3 * gpt2.C, true);
    backward(256, gpt2.F, gpt2.C, true, false);
    backward(8192, 128, 256, true);    // a long sum
    backward(64, 256, test.Vp(), false);
    if (op.linear_gelu_forward && !is_fp8(dtype))
        test.row("linear_gelu_forward", [&] { return check_linear_gelu_forward(op, 256, gpt2.C, gpt2.F, dtype); });
    if (op.linear_gelu_backward && !is_fp8(dtype))
        test.row("linear_gelu_backward", [&] { return check_linear_gelu_backward(op, 256, gpt2.F, gpt2.C, dtype); });
});

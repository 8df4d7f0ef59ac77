#include "norm.h"

#include "selftest.h"

namespace {
// Rows whose means are no small part of x.
template <class T> Numbers rows(int N, int C, uint64_t stream) {
    Numbers x = random_normal(int64_t(N) * C, stream);
    for (size_t i = 0; i < x.size(); i++) x[i] += 0.5 + double(i / size_t(C) % 4);
    return rounded<T>(x);
}
template <class T> Numbers weights(int C, uint64_t stream) {
    Numbers w = random_normal(C, stream, 0.3);
    for (double& x : w) x += 1;
    return rounded<T>(w);
}
}   // namespace

template <class T, class P> Check check_layernorm_forward(const Ops<T, P>& op, int N, int C) {
    const Memory m(op);
    Check check("layernorm_forward", {{"N", N}, {"C", C}});
    const float eps = 1e-5f;
    const Numbers x = rows<T>(N, C, 1), w = weights<P>(C, 2), b = rounded<P>(random_normal(C, 3));
    Numbers y(x.size());
    std::vector<float> means(static_cast<size_t>(N)), rstds(means);
    reference_ops().layernorm_forward(y.data(), means.data(), rstds.data(), x.data(), w.data(), b.data(), eps, N, C);
    Array<T> dy(m, int64_t(x.size())), dx(m, x);
    Array<P> dw(m, w), db(m, b);
    Array<float> mean(m, N), rstd(m, N);
    op.layernorm_forward(dy, mean, rstd, dx, dw, db, eps, N, C);
    double lost = 0;    // a mean rounded to float, seen in units of y: much where two numbers are a row
    for (size_t n = 0; n < means.size(); n++)
        lost = std::fmax(lost, std::fabs(double(means[n]) * double(rstds[n])) * 0x1p-24);
    check.expect("y", dy, y, ROUNDING<T> + lost);
    check.expect("mean", mean, Numbers(means.begin(), means.end()), ROUNDING<float>);
    check.expect("rstd", rstd, Numbers(rstds.begin(), rstds.end()), ROUNDING<float>);
    return check;
}

template <class T, class P> Check check_layernorm_backward(const Ops<T, P>& op, int N, int C) {
    const Memory m(op);
    Check check("layernorm_backward", {{"N", N}, {"C", C}});
    const Numbers x = rows<T>(N, C, 1), w = weights<P>(C, 2), dy = rounded<T>(random_normal(int64_t(N) * C, 3));
    // Statistics near those of x but not its own: with C = 1 these would multiply a difference that is 0 by 300.
    std::vector<float> means(static_cast<size_t>(N)), rstds(means);
    const Numbers noise = random_normal(N, 4, 0.1);
    for (size_t n = 0; n < means.size(); n++)
        means[n] = float(0.5 + double(n % 4) + noise[n]), rstds[n] = float(std::exp(noise[n]));
    Numbers dx = rounded<T>(random_normal(int64_t(N) * C, 5)), dw = random_normal(C, 6), db = random_normal(C, 7);
    dw = rounded<Grad<P>>(dw), db = rounded<Grad<P>>(db);
    Array<T> adx(m, dx), ady(m, dy), ax(m, x);
    Array<P> aw(m, w);
    Array<Grad<P>> adw(m, dw), adb(m, db);
    Array<float> mean(m, Numbers(means.begin(), means.end())), rstd(m, Numbers(rstds.begin(), rstds.end()));
    reference_ops().layernorm_backward(dx.data(), dw.data(), db.data(), dy.data(), x.data(), w.data(), means.data(),
                                       rstds.data(), N, C);
    op.layernorm_backward(adx, adw, adb, ady, ax, aw, mean, rstd, N, C);
    check.expect("dx", adx, dx, ROUNDING<T>);
    const double terms = std::sqrt(N);    // the size of a sum of N, though few columns may all cancel
    check.expect("dw", adw, dw, ROUNDING<Grad<P>>, terms);
    check.expect("db", adb, db, ROUNDING<Grad<P>>, terms);
    return check;
}

FOR_EACH_TABLE(check_layernorm_forward, int, int)
FOR_EACH_TABLE(check_layernorm_backward, int, int)

static const SelftestRows rows([]<class T, class P>(Selftest& test, const Ops<T, P>& op, Dtype) {
    for (int width : {gpt2.C, 1600}) {    // GPT-2 XL's
        test.row("layernorm_forward", [&] { return check_layernorm_forward(op, 1024, width); });
        test.row("layernorm_backward", [&] { return check_layernorm_backward(op, 1024, width); });
    }
});

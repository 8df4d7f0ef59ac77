#include "norm.h"

#include "selftest.h"

namespace {
// Rows whose means are a large part of x.
template <class T> Numbers rows(int N, int C, uint64_t stream) {
    Numbers x = random_normal(int64_t(N) * C, stream);
    for (size_t i = 0; i < x.size(); i++) x[i] += 0.5 + double(i / size_t(C) % 4);
    return rounded<T>(x);
}
template <class T> Numbers weights(int C, float plus, uint64_t stream) {
    Numbers w = random_normal(C, stream, 0.3);
    for (double& x : w) x += 1 - double(plus);
    return rounded<T>(w);
}
Check named(const char* op, int N, int C, NormForm f) {
    std::string form = f.norm.rms ? " rms" : "";
    if (f.norm.plus != 0) form += " w+" + std::to_string(f.norm.plus);
    if (!f.w) form += " no w";
    if (!f.b) form += " no b";
    return Check(op, {{"N", N}, {"C", C}}, form);
}
}    // namespace

// Y: the output's type; run: the table's operation
template <class Y, class T, class P, class F>
static Check check_forward(const char* name, const Ops<T, P>& op, F run, int N, int C, NormForm form) {
    const Memory m(op);
    const auto [norm, has_w, has_b] = form;
    Check check = named(name, N, C, form);
    Numbers x = rows<T>(N, C, 1), y(x.size());
    Numbers w = weights<P>(C, norm.plus, 2), b = rounded<P>(random_normal(C, 3));
    std::vector<float> means(static_cast<size_t>(N)), rstds(means);
    reference_ops().norm_forward(y.data(), norm.rms ? nullptr : means.data(), rstds.data(), x.data(),
                                 has_w ? w.data() : nullptr, has_b ? b.data() : nullptr, norm, N, C);
    Array<Y> ay(m, int64_t(x.size()));
    Array<T> ax(m, x);
    Array<P> aw(m, w), ab(m, b);
    Array<float> mean(m, N), rstd(m, N);
    run(ay, or_null(!norm.rms, mean), rstd, ax, or_null(has_w, aw), or_null(has_b, ab), norm, N, C);
    double lost = 0;    // rounding error of the mean, in units of y
    for (size_t n = 0; n < means.size(); n++)
        lost = std::fmax(lost, std::fabs(double(means[n]) * double(rstds[n])) * 0x1p-24);
    check.expect("y", ay, y, ROUNDING<Y> + lost);
    if (!norm.rms) check.expect("mean", mean, Numbers(means.begin(), means.end()), ROUNDING<float>);
    check.expect("rstd", rstd, Numbers(rstds.begin(), rstds.end()), ROUNDING<float>);
    return check;
}
template <class T, class P> Check check_norm_forward(const Ops<T, P>& op, int N, int C, NormForm form) {
    return check_forward<InputType<T, P>>("norm_forward", op, op.norm_forward, N, C, form);
}
template <class T, class P> Check check_stream_norm_forward(const Ops<T, P>& op, int N, int C, NormForm form) {
    return check_forward<T>("stream_norm_forward", op, op.stream_norm_forward, N, C, form);
}

template <class T, class P> Check check_norm_backward(const Ops<T, P>& op, int N, int C, NormForm form) {
    const Memory m(op);
    const auto [norm, has_w, has_b] = form;
    Check check = named("norm_backward", N, C, form);
    const Numbers x = rows<T>(N, C, 1), dy = rounded<T>(random_normal(int64_t(N) * C, 3));
    const Numbers w = weights<P>(C, norm.plus, 2);
    // Statistics near x's own but not equal: for C = 1 x's own would scale a difference of 0 by
    // 300.
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
    reference_ops().norm_backward(dx.data(), has_w ? dw.data() : nullptr, has_b ? db.data() : nullptr, dy.data(),
                                  x.data(), has_w ? w.data() : nullptr, norm.rms ? nullptr : means.data(), rstds.data(),
                                  norm, N, C);
    op.norm_backward(adx, or_null(has_w, adw), or_null(has_b, adb), ady, ax, or_null(has_w, aw),
                     or_null(!norm.rms, mean), rstd, norm, N, C);
    check.expect("dx", adx, dx, ROUNDING<T>);
    const double terms = std::sqrt(N);    // size of a sum of N terms; few columns may cancel
    check.expect("dw", adw, dw, ROUNDING<Grad<P>>, terms);
    check.expect("db", adb, db, ROUNDING<Grad<P>>, terms);
    return check;
}

template <class T, class P> Check check_add_scaled(const Ops<T, P>& op, int64_t n, Sum sum, Dropout drop) {
    const Memory m(op);
    const char* forms[] = {"", " x null", " in x", " in b"};
    Check check(drop.rate > 0 ? "add_scaled with dropout" : "add_scaled", {{"n", n}, {"first", drop.first}},
                forms[int(sum)]);
    const float scale = -0.37f;
    const Numbers x = rounded<T>(random_normal(n, 1)), b = rounded<T>(random_normal(n, 2));
    Numbers y(x.size());
    reference_ops().add_scaled(y.data(), sum == Sum::without ? nullptr : x.data(), b.data(), scale, n, drop);
    Array<T> ay(m, n), ax(m, x), ab(m, b);
    Array<T>& out = sum == Sum::in_x ? ax : sum == Sum::in_b ? ab : ay;
    op.add_scaled(out, or_null(sum != Sum::without, ax), ab, scale, n, drop);
    check.expect("y", out, y, ROUNDING<T>);
    return check;
}

FOR_EACH_TABLE(check_norm_forward, int, int, NormForm)
FOR_EACH_TABLE(check_stream_norm_forward, int, int, NormForm)
FOR_EACH_TABLE(check_norm_backward, int, int, NormForm)
FOR_EACH_TABLE(check_add_scaled, int64_t, Sum, Dropout)

static const SelftestRows rows([]<class T, class P>(Selftest& test, const Ops<T, P>& op, Dtype) {
    for (NormForm form : {LAYERNORM, RMSNORM})
        for (int width : {gpt2.C, 1600}) {    // width of GPT-2 XL
            test.row("norm_forward", [&] { return check_norm_forward(op, 1024, width, form); });
            test.row("stream_norm_forward", [&] { return check_stream_norm_forward(op, 1024, width, form); });
            test.row("norm_backward", [&] { return check_norm_backward(op, 1024, width, form); });
        }
    test.row("add_scaled", [&] { return check_add_scaled(op, 1024 * gpt2.C, Sum::apart); });
    test.row("add_scaled", [&] { return check_add_scaled(op, 1024 * gpt2.C, Sum::apart, {0.1f, 1, 1024 * gpt2.C}); });
});

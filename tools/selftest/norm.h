// norm.h - checks of norms, and of sums of activations.
#pragma once
#include "check.h"

// A norm, and whether it has weights and biases.
struct NormForm {
    Norm norm = {};
    bool w = true, b = true;
};
constexpr NormForm LAYERNORM = {}, RMSNORM = {{true}, true, false};
// LayerNorm, RMSNorm, Gemma's RMSNorm, LayerNorm without biases, LayerNorm without weights and
// biases, RMSNorm without weights, and a form that no model has.
constexpr NormForm NORM_FORMS[] = {LAYERNORM,
                                   RMSNORM,
                                   {{true, 1e-6f, 1}, true, false},
                                   {{}, true, false},
                                   {{}, false, false},
                                   {{true}, false, false},
                                   {{true, 1e-3f, -0.5f}, true, true}};

// Returns input rows of a norm, with means from 0.5 to 3.5 and a standard deviation of 1.
inline Numbers norm_rows(int N, int C, uint64_t stream) {
    Numbers x = random_normal(int64_t(N) * C, stream);
    for (size_t i = 0; i < x.size(); i++) x[i] += 0.5 + double(i / size_t(C) % 4);
    return x;
}
// Returns n weights, which are about 1 after norm.plus is added.
inline Numbers norm_weights(int n, float plus, uint64_t stream) {
    Numbers w = random_normal(n, stream, 0.3);
    for (double& x : w) x += 1 - double(plus);
    return w;
}
inline std::string text_of(NormForm f) {
    std::string text = f.norm.rms ? " rms" : "";
    if (f.norm.plus != 0) text += " w+" + std::to_string(f.norm.plus);
    return text + (f.w ? "" : " no w") + (f.b ? "" : " no b");
}

// Checks a norm's forward pass. Y is the type of y; run(table, arguments...) calls the operation.
template <class Y, class T, class P, class F>
Check check_norm(const char* name, const Ops<T, P>& op, int N, int C, NormForm form, F run) {
    Check check(name, {{"N", N}, {"C", C}}, text_of(form));
    const bool has_mean = !form.norm.rms;
    Dual<T> x(op, norm_rows(N, C, 1));
    Dual<Y> y(op, x.size());
    Dual<P> w(op, norm_weights(C, form.norm.plus, 2)), b(op, random_normal(C, 3));
    Statistics mean(op, N), rstd(op, N);
    both(op, [&](auto& table, auto at) {
        run(table, at(y), at(mean, has_mean), at(rstd), at(x), at(w, form.w), at(b, form.b), form.norm, N, C);
    });
    double lost = 0;    // rounding error of the mean, in units of y
    for (size_t n = 0; n < size_t(N); n++)
        lost = std::fmax(lost, std::fabs(double(mean.numbers[n]) * double(rstd.numbers[n])) * 0x1p-24);
    check.expect("y", y, ROUNDING<Y> + lost);
    if (has_mean) check.expect("mean", mean, ROUNDING<float>);
    check.expect("rstd", rstd, ROUNDING<float>);
    return check;
}
template <class T, class P> Check check_norm_forward(const Ops<T, P>& op, int N, int C, NormForm form = LAYERNORM) {
    return check_norm<InputType<T, P>>("norm_forward", op, N, C, form,
                                       [](auto& table, auto... a) { table.norm_forward(a...); });
}
template <class T, class P>
Check check_stream_norm_forward(const Ops<T, P>& op, int N, int C, NormForm form = LAYERNORM) {
    return check_norm<T>("stream_norm_forward", op, N, C, form,
                         [](auto& table, auto... a) { table.stream_norm_forward(a...); });
}

template <class T, class P> Check check_norm_backward(const Ops<T, P>& op, int N, int C, NormForm form = LAYERNORM) {
    Check check("norm_backward", {{"N", N}, {"C", C}}, text_of(form));
    const int64_t n = int64_t(N) * C;
    // Statistics are near x's own but not equal. With C = 1, x's own would multiply the rounding
    // error of x - mean = 0 by rstd = 1 / sqrt(eps) = 316.
    Numbers means = random_normal(N, 4, 0.1), rstds = means;
    for (int i = 0; i < N; i++) means[size_t(i)] += 0.5 + double(i % 4);
    for (double& r : rstds) r = std::exp(r);
    Dual<T> x(op, norm_rows(N, C, 1)), dy(op, random_normal(n, 3)), dx(op, random_normal(n, 5));
    Dual<P> w(op, norm_weights(C, form.norm.plus, 2));
    Dual<Grad<P>> dw(op, random_normal(C, 6)), db(op, random_normal(C, 7));
    Statistics mean(op, means), rstd(op, rstds);
    both(op, [&](auto& table, auto at) {
        table.norm_backward(at(dx), at(dw, form.w), at(db, form.b), at(dy), at(x), at(w, form.w),
                            at(mean, !form.norm.rms), at(rstd), form.norm, N, C);
    });
    check.expect("dx", dx, ROUNDING<T>);
    const double terms = std::sqrt(N);    // size of a sum of N terms; few columns may cancel
    check.expect("dw", dw, ROUNDING<Grad<P>>, terms);
    check.expect("db", db, ROUNDING<Grad<P>>, terms);
    return check;
}

// y is a separate array (apart) or overwrites x (in_x) or b (in_b); x may be null (without).
enum class Sum { apart, without, in_x, in_b };
template <class T, class P> Check check_add_scaled(const Ops<T, P>& op, int64_t n, Sum sum, Dropout drop = {}) {
    const char* forms[] = {"", " x null", " in x", " in b"};
    Check check(drop.rate > 0 ? "add_scaled with dropout" : "add_scaled", {{"n", n}, {"first", drop.first}},
                forms[int(sum)]);
    Dual<T> apart(op, n), x(op, random_normal(n, 1)), b(op, random_normal(n, 2));
    Dual<T>& y = sum == Sum::in_x ? x : sum == Sum::in_b ? b : apart;
    both(op,
         [&](auto& table, auto at) { table.add_scaled(at(y), at(x, sum != Sum::without), at(b), -0.37f, n, drop); });
    check.expect("y", y, ROUNDING<T>);
    return check;
}

template <class T, class P> Check check_drop_inputs(const Ops<T, P>& op, int64_t n, Dropout drop) {
    Check check("drop_inputs", {{"n", n}, {"first", drop.first}});
    typedef InputType<T, P> I;
    Dual<I> y(op, n), x(op, random_normal(n, 1));
    both(op, [&](auto& table, auto at) { table.drop_inputs(at(y), at(x), n, drop); });
    check.expect("y", y, ROUNDING<I>);
    return check;
}

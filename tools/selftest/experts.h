// experts.h - checks of the experts' operations.
#pragma once
#include "linear.h"

// Kinds of logits: random; random and rounded, so that many are equal (ties); random, but with
// expert E / 2 as the first choice of every row (one).
enum class LogitKind { random, ties, one };
inline Numbers router_logits(int E, int N, LogitKind spread) {
    Numbers z = random_normal(int64_t(N) * E, 1, 2);
    for (size_t i = 0; i < z.size(); i++) {
        if (spread == LogitKind::ties) z[i] = std::round(z[i]);
        if (spread == LogitKind::one && int(i) % E == E / 2) z[i] = 12;
    }
    return z;
}

// Routes and factors that the reference's router_forward computes from these logits.
struct ReferenceRoutes {
    std::vector<int> expert, permuted_row, row, counts, offsets;
    Numbers factors;
    ReferenceRoutes(const Numbers& logits, Router r, int B, int S, double* totals = nullptr)
        : expert(size_t(B * S * r.K)), permuted_row(expert), row(expert), counts(size_t(B * r.E)),
          offsets(size_t(r.E + 1)), factors(expert.size()) {
        reference_ops().router_forward(factors.data(), in(), totals, logits.data(), r, B, S);
    }
    Routes in() { return {expert.data(), permuted_row.data(), row.data(), counts.data(), offsets.data()}; }
};
// Routes for the tested table and for the reference. The first constructor copies given routes, the
// second allocates them as outputs.
struct DualRoutes {
    Integers expert, permuted_row, row, counts, offsets;
    DualRoutes(const Memory& m, const ReferenceRoutes& from)
        : expert(m, from.expert), permuted_row(m, from.permuted_row), row(m, from.row), counts(m, from.counts),
          offsets(m, from.offsets) {}
    DualRoutes(const Memory& m, Router r, int B, int S)
        : expert(m, int64_t(B) * S * r.K), permuted_row(m, expert.size()), row(m, expert.size()),
          counts(m, int64_t(B) * r.E), offsets(m, r.E + 1) {}
    Routes device() { return {expert, permuted_row, row, counts, offsets}; }
    Routes host() { return {expert.host(), permuted_row.host(), row.host(), counts.host(), offsets.host()}; }
};
// Returns the routes of one sequence of N positions with logits of the given kind.
inline ReferenceRoutes routes_of(Router r, int N, LogitKind spread = LogitKind::random) {
    return ReferenceRoutes(router_logits(r.E, N, spread), r, 1, N);
}

inline Check experts_check(const char* op, Router r, std::vector<Size> sizes, const std::string& more = "") {
    sizes.insert(sizes.begin(), {{"E", r.E}, {"K", r.K}});
    return Check(op, sizes, more);
}
inline std::string text_of(Router r, LogitKind spread) {
    const char* const of_rows = spread == LogitKind::ties ? " ties" : spread == LogitKind::one ? " one" : "";
    return std::string(r.sigmoid ? " sigmoid" : "") + (r.normalise ? " normalised" : "") + of_rows;
}

template <class T, class P>
Check check_router_forward(const Ops<T, P>& op, Router r, int B, int S, LogitKind spread, bool with_totals = true) {
    Check check = experts_check("router_forward", r, {{"B", B}, {"S", S}}, text_of(r, spread));
    Dual<T> logits(op, router_logits(r.E, B * S, spread));
    Dual<double> totals(op, random_normal(r.E + 2, 2));
    DualRoutes routes(op, r, B, S);
    Dual<Grad<P>> factors(op, routes.expert.size());
    both(op, [&](auto& table, auto at) {
        table.router_forward(at(factors), at(routes), at(totals, with_totals), at(logits), r, B, S);
    });
    check.expect_equal("expert", routes.expert);
    check.expect_equal("slot", routes.permuted_row);
    check.expect_equal("row", routes.row);
    check.expect_equal("counts", routes.counts);
    check.expect_equal("offsets", routes.offsets);
    check.expect("factors", factors, ROUNDING<float>);
    check.expect("totals", totals, ROUNDING<float>);
    return check;
}

// Gradients may cancel, as for one choice with factor 1. Errors are then relative to the size of a
// score, 1 / E.
template <class T, class P>
Check check_router_backward(const Ops<T, P>& op, Router r, int B, int S, LogitKind spread, float balance, float z) {
    Check check = experts_check("router_backward", r, {{"B", B}, {"S", S}},
                                text_of(r, spread) + (balance != 0 ? " balance" : "") + (z != 0 ? " z" : ""));
    Dual<T> logits(op, router_logits(r.E, B * S, spread)), dlogits(op, logits.size());
    DualRoutes routes(op, ReferenceRoutes(logits.numbers, r, B, S));
    Dual<Grad<P>> dfactors(op, random_normal(routes.expert.size(), 3));
    both(op, [&](auto& table, auto at) {
        table.router_backward(at(dlogits), at(dfactors), at(routes), at(logits), r, balance, z, B, S);
    });
    check.expect("dlogits", dlogits, 2 * ROUNDING<T>, 1.0 / r.E);
    return check;
}

template <class T, class P> Check check_experts_gather(const Ops<T, P>& op, Router r, int N, int C) {
    Check check = experts_check("experts_gather", r, {{"N", N}, {"C", C}});
    DualRoutes routes(op, routes_of(r, N));
    Dual<InputType<T, P>> x(op, random_normal(int64_t(N) * C, 2)), y(op, x.size() * r.K);
    both(op, [&](auto& table, auto at) { table.experts_gather(at(y), at(x), at(routes), r, N, C); });
    check.expect_equal("y", y);    // copies are exact
    return check;
}

template <class T, class P>
Check check_experts_combine(const Ops<T, P>& op, Router r, int N, int C, Residual residual, bool weighted) {
    Check check = experts_check("experts_combine", r, {{"N", N}, {"C", C}},
                                text_of(residual) + std::string(weighted ? " weighted" : ""));
    DualRoutes routes(op, routes_of(r, N));
    const int64_t n = int64_t(N) * C;
    Dual<T> x(op, random_normal(n * r.K, 2)), added(op, random_normal(n, 3)), apart(op, n);
    Dual<Grad<P>> factors(op, random_normal(int64_t(N) * r.K, 4));
    Dual<T>& y = residual == Residual::in_y ? added : apart;
    both(op, [&](auto& table, auto at) {
        table.experts_combine(at(y), at(added, residual != Residual::none), at(x), at(factors, weighted), at(routes), r,
                              N, C);
    });
    check.expect("y", y, product_limit<T, float>(Dtype::fp32, r.K));
    return check;
}

// If in_place, dx is x.
template <class T, class P>
Check check_experts_combine_backward(const Ops<T, P>& op, Router r, int N, int C, bool in_place) {
    Check check = experts_check("experts_combine_backward", r, {{"N", N}, {"C", C}}, in_place ? " in place" : "");
    DualRoutes routes(op, routes_of(r, N));
    Dual<T> x(op, random_normal(int64_t(N) * r.K * C, 2)), dy(op, random_normal(int64_t(N) * C, 3)),
        apart(op, x.size());
    Dual<Grad<P>> factors(op, random_normal(int64_t(N) * r.K, 4)), dfactors(op, factors.size());
    Dual<T>& dx = in_place ? x : apart;
    both(op, [&](auto& table, auto at) {
        table.experts_combine_backward(at(dx), at(dfactors), at(dy), at(x), at(factors), at(routes), r, N, C);
    });
    check.expect("dx", dx, ROUNDING<T>);
    check.expect("dfactors", dfactors, product_limit<Grad<P>, float>(Dtype::fp32, C));
    return check;
}

template <class T, class P> Check check_experts_forward(const Ops<T, P>& op, Router r, int N, int C, int OC,
                                                        LogitKind spread, Dtype dtype = DTYPE<P>) {
    Check check = experts_check("experts_forward", r, {{"N", N}, {"C", C}, {"OC", OC}}, text_of(r, spread));
    DualRoutes routes(op, routes_of(r, N, spread));
    const int64_t rows = int64_t(N) * r.K;
    Dual<InputType<T, P>> x(op, operand<InputType<T, P>>(dtype, rows * C, 2));
    Dual<P> w(op, operand<P>(dtype, int64_t(r.E) * OC * C, 3, 1 / std::sqrt(C)));
    Dual<T> y(op, rows * OC);
    both(op, [&](auto& table, auto at) { table.experts_forward(at(y), at(x), at(w), at(routes), r, N, C, OC); });
    check.expect("y", y, product_limit<T, T>(dtype, C));
    return check;
}

template <class T, class P> Check check_experts_backward(const Ops<T, P>& op, Router r, int N, int C, int OC,
                                                         LogitKind spread, Dtype dtype = DTYPE<P>, bool add = true) {
    Check check = experts_check("experts_backward", r, {{"N", N}, {"C", C}, {"OC", OC}},
                                text_of(r, spread) + (add ? "" : " assigned"));
    DualRoutes routes(op, routes_of(r, N, spread));
    const int64_t rows = int64_t(N) * r.K, weights = int64_t(r.E) * OC * C;
    Dual<InputType<T, P>> x(op, factor(operand<InputType<T, P>>(dtype, rows * C, 2), add));
    Dual<T> dy(op, factor(operand<T>(dtype, rows * OC, 3), add)), dx(op, rows * C);
    Dual<P> w(op, factor(operand<P>(dtype, weights, 4, 1 / std::sqrt(OC)), add));
    Dual<Grad<P>> dw(op, start_into(weights, 5, N, add));
    both(op, [&](auto& table, auto at) {
        table.experts_backward(at(dx), {at(dw), add}, at(dy), at(x), at(w), at(routes), r, N, C, OC);
    });
    check.expect("dx", dx, product_limit<T, T>(dtype, OC));
    check.expect("dw", dw, product_limit<Grad<P>, T>(dtype, N));
    return check;
}

template <class T, class P> Check check_row_gate_forward(const Ops<T, P>& op, int N, int F) {
    Check check("row_gate_forward", {{"N", N}, {"F", F}});
    Dual<InputType<T, P>> x(op, random_normal(int64_t(N) * F, 1)), y(op, x.size());
    Dual<T> gate(op, random_normal(N, 2, 2));
    both(op, [&](auto& table, auto at) { table.row_gate_forward(at(y), at(x), at(gate), N, F); });
    check.expect("y", y, ROUNDING<InputType<T, P>>);
    return check;
}

// If in_place, dx is dy.
template <class T, class P> Check check_row_gate_backward(const Ops<T, P>& op, int N, int F, bool in_place) {
    Check check("row_gate_backward", {{"N", N}, {"F", F}}, in_place ? " in place" : "");
    Dual<InputType<T, P>> x(op, random_normal(int64_t(N) * F, 1));
    Dual<T> gate(op, random_normal(N, 2, 2)), dy(op, random_normal(x.size(), 3)), apart(op, x.size()), dgate(op, N);
    Dual<T>& dx = in_place ? dy : apart;
    both(op, [&](auto& table, auto at) { table.row_gate_backward(at(dx), at(dgate), at(dy), at(x), at(gate), N, F); });
    check.expect("dx", dx, ROUNDING<T>);
    check.expect("dgate", dgate, product_limit<T, float>(Dtype::fp32, F));
    return check;
}

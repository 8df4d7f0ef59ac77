#include "experts.h"

#include "selftest.h"

Numbers router_logits(int E, int N, LogitKind spread) {
    Numbers z = random_normal(int64_t(N) * E, 1, 2);
    for (size_t i = 0; i < z.size(); i++) {
        if (spread == LogitKind::ties) z[i] = std::round(z[i]);
        if (spread == LogitKind::one && int(i) % E == E / 2) z[i] = 12;
    }
    return z;
}

ReferenceRoutes::ReferenceRoutes(const Numbers& logits, Router r, int B, int S, double* totals)
    : expert(size_t(B * S * r.K)), permuted_row(expert), row(expert), counts(size_t(B * r.E)), offsets(size_t(r.E + 1)),
      factors(expert.size()) {
    reference_ops().router_forward(factors.data(), in(), totals, logits.data(), r, B, S);
}
static Numbers numbers(const std::vector<int>& from) { return Numbers(from.begin(), from.end()); }
TableRoutes::TableRoutes(const Memory& m, const ReferenceRoutes& from)
    : expert(m, numbers(from.expert)), permuted_row(m, numbers(from.permuted_row)), row(m, numbers(from.row)),
      counts(m, numbers(from.counts)), offsets(m, numbers(from.offsets)) {}
TableRoutes::TableRoutes(const Memory& m, Router r, int B, int S)
    : expert(m, int64_t(B) * S * r.K), permuted_row(m, int64_t(B) * S * r.K), row(m, int64_t(B) * S * r.K),
      counts(m, int64_t(B) * r.E), offsets(m, r.E + 1) {}

namespace {
Check named(const char* op, Router r, std::vector<Size> sizes, const std::string& more = "") {
    sizes.insert(sizes.begin(), {{"E", r.E}, {"K", r.K}});
    return Check(op, sizes, more);
}
std::string text(Router r, LogitKind spread) {
    const char* const of_rows = spread == LogitKind::ties ? " ties" : spread == LogitKind::one ? " one" : "";
    return std::string(r.sigmoid ? " sigmoid" : "") + (r.normalise ? " normalised" : "") + of_rows;
}
void expect_same(Check& check, const char* what, const Array<int>& got, const std::vector<int>& expected) {
    check.note(what, got.intact() && got.read() == numbers(expected) ? 0 : INFINITY);
}
}    // namespace

template <class T, class P>
Check check_router_forward(const Ops<T, P>& op, Router r, int B, int S, LogitKind spread, bool with_totals) {
    const Memory m(op);
    Check check = named("router_forward", r, {{"B", B}, {"S", S}}, text(r, spread));
    const Numbers logits = rounded<T>(router_logits(r.E, B * S, spread));
    Numbers totals = random_normal(r.E + 2, 2);
    Array<double> totals_out(m, totals);
    ReferenceRoutes routes(logits, r, B, S, with_totals ? totals.data() : nullptr);
    TableRoutes out(m, r, B, S);
    Array<Grad<P>> factors(m, int64_t(routes.factors.size()));
    Array<T> logits_in(m, logits);
    op.router_forward(factors, out.in(), or_null(with_totals, totals_out), logits_in, r, B, S);
    expect_same(check, "expert", out.expert, routes.expert);
    expect_same(check, "slot", out.permuted_row, routes.permuted_row);
    expect_same(check, "row", out.row, routes.row);
    expect_same(check, "counts", out.counts, routes.counts);
    expect_same(check, "offsets", out.offsets, routes.offsets);
    check.expect("factors", factors, routes.factors, ROUNDING<float>);
    check.expect("totals", totals_out, totals, ROUNDING<float>);
    return check;
}

// Gradients that cancel, as for one choice with factor 1, have errors relative to a score's size.
template <class T, class P>
Check check_router_backward(const Ops<T, P>& op, Router r, int B, int S, LogitKind spread, float balance, float z) {
    const Memory m(op);
    Check check = named("router_backward", r, {{"B", B}, {"S", S}},
                        text(r, spread) + (balance != 0 ? " balance" : "") + (z != 0 ? " z" : ""));
    const Numbers logits = rounded<T>(router_logits(r.E, B * S, spread));
    ReferenceRoutes routes(logits, r, B, S);
    const Numbers dfactors = rounded<Grad<P>>(random_normal(int64_t(routes.factors.size()), 3));
    Numbers dlogits(logits.size());
    reference_ops().router_backward(dlogits.data(), dfactors.data(), routes.in(), logits.data(), r, balance, z, B, S);
    TableRoutes routes_in(m, routes);
    Array<T> dlogits_out(m, int64_t(logits.size())), logits_in(m, logits);
    Array<Grad<P>> dweight_in(m, dfactors);
    op.router_backward(dlogits_out, dweight_in, routes_in.in(), logits_in, r, balance, z, B, S);
    check.expect("dlogits", dlogits_out, dlogits, 2 * ROUNDING<T>, 1.0 / r.E);
    return check;
}

template <class T, class P> Check check_experts_gather(const Ops<T, P>& op, Router r, int N, int C) {
    const Memory m(op);
    Check check = named("experts_gather", r, {{"N", N}, {"C", C}});
    ReferenceRoutes routes(router_logits(r.E, N, LogitKind::random), r, 1, N);
    const Numbers x = rounded<InputType<T, P>>(random_normal(int64_t(N) * C, 2));
    Numbers y(size_t(N * r.K) * size_t(C));
    reference_ops().experts_gather(y.data(), x.data(), routes.in(), r, N, C);
    TableRoutes in(m, routes);
    Array<InputType<T, P>> x_in(m, x), y_out(m, int64_t(y.size()));
    op.experts_gather(y_out, x_in, in.in(), r, N, C);
    check.note("y", y_out.intact() && y_out.read() == y ? 0 : INFINITY);    // copies are exact
    return check;
}

template <class T, class P>
Check check_experts_combine(const Ops<T, P>& op, Router r, int N, int C, Residual residual, bool weighted) {
    const Memory m(op);
    const char* added = residual == Residual::none ? "" : residual == Residual::in_y ? " residual in y" : " residual";
    Check check = named("experts_combine", r, {{"N", N}, {"C", C}}, added + std::string(weighted ? " weighted" : ""));
    ReferenceRoutes routes(router_logits(r.E, N, LogitKind::random), r, 1, N);
    const Numbers x = rounded<T>(random_normal(int64_t(N) * r.K * C, 2)), old = random_normal(int64_t(N) * C, 3);
    const Numbers before = rounded<T>(old), factors = rounded<Grad<P>>(random_normal(int64_t(N) * r.K, 4));
    Numbers y(before.size());
    reference_ops().experts_combine(y.data(), residual != Residual::none ? before.data() : nullptr, x.data(),
                                    weighted ? factors.data() : nullptr, routes.in(), r, N, C);
    TableRoutes in(m, routes);
    Array<T> x_in(m, x), residual_in(m, before), apart(m, int64_t(y.size()));
    Array<Grad<P>> factors_in(m, factors);
    Array<T>& out = residual == Residual::in_y ? residual_in : apart;
    op.experts_combine(out, or_null(residual != Residual::none, residual_in), x_in, or_null(weighted, factors_in),
                       in.in(), r, N, C);
    check.expect("y", out, y, product_limit<T, float>(Dtype::fp32, r.K));
    return check;
}

template <class T, class P>
Check check_experts_combine_backward(const Ops<T, P>& op, Router r, int N, int C, bool in_place) {
    const Memory m(op);
    Check check = named("experts_combine_backward", r, {{"N", N}, {"C", C}}, in_place ? " in place" : "");
    ReferenceRoutes routes(router_logits(r.E, N, LogitKind::random), r, 1, N);
    const Numbers x = rounded<T>(random_normal(int64_t(N) * r.K * C, 2));
    const Numbers dy = rounded<T>(random_normal(int64_t(N) * C, 3));
    const Numbers factors = rounded<Grad<P>>(random_normal(int64_t(N) * r.K, 4));
    Numbers dx(x.size()), dfactors(factors.size());
    reference_ops().experts_combine_backward(dx.data(), dfactors.data(), dy.data(), x.data(), factors.data(),
                                             routes.in(), r, N, C);
    TableRoutes in(m, routes);
    Array<T> x_in(m, x), dy_in(m, dy), apart(m, int64_t(x.size()));
    Array<Grad<P>> factors_in(m, factors), dfactors_out(m, int64_t(dfactors.size()));
    Array<T>& out = in_place ? x_in : apart;
    op.experts_combine_backward(out, dfactors_out, dy_in, x_in, factors_in, in.in(), r, N, C);
    check.expect("dx", out, dx, ROUNDING<T>);
    check.expect("dfactors", dfactors_out, dfactors, product_limit<Grad<P>, float>(Dtype::fp32, C));
    return check;
}

template <class T, class P>
Check check_experts_forward(const Ops<T, P>& op, Router r, int N, int C, int OC, LogitKind spread, Dtype dtype) {
    const Memory m(op);
    Check check = named("experts_forward", r, {{"N", N}, {"C", C}, {"OC", OC}}, text(r, spread));
    ReferenceRoutes routes(router_logits(r.E, N, spread), r, 1, N);
    const int64_t rows = int64_t(N) * r.K;
    const Numbers x = operand<InputType<T, P>>(dtype, rows * C, 2);
    const Numbers w = operand<P>(dtype, int64_t(r.E) * OC * C, 3, 1 / std::sqrt(C));
    Numbers y(size_t(rows * OC));
    reference_ops().experts_forward(y.data(), x.data(), w.data(), routes.in(), r, N, C, OC);
    TableRoutes in(m, routes);
    Array<InputType<T, P>> x_in(m, x);
    Array<T> y_out(m, rows * OC);
    Array<P> w_in(m, w);
    op.experts_forward(y_out, x_in, w_in, in.in(), r, N, C, OC);
    check.expect("y", y_out, y, product_limit<T, T>(dtype, C));
    return check;
}

template <class T, class P> Check check_experts_backward(const Ops<T, P>& op, Router r, int N, int C, int OC,
                                                         LogitKind spread, Dtype dtype, bool add) {
    const Memory m(op);
    Check check =
        named("experts_backward", r, {{"N", N}, {"C", C}, {"OC", OC}}, text(r, spread) + (add ? "" : " assigned"));
    ReferenceRoutes routes(router_logits(r.E, N, spread), r, 1, N);
    const int64_t rows = int64_t(N) * r.K, weights = int64_t(r.E) * OC * C;
    const Numbers x = factor(operand<InputType<T, P>>(dtype, rows * C, 2), add);
    const Numbers dy = factor(operand<T>(dtype, rows * OC, 3), add);
    const Numbers w = factor(operand<P>(dtype, weights, 4, 1 / std::sqrt(OC)), add);
    Numbers dw = start_into(weights, 5, N, add), dx(x.size());
    Array<Grad<P>> dw_out(m, dw);
    reference_ops().experts_backward(dx.data(), {dw.data(), add}, dy.data(), x.data(), w.data(), routes.in(), r, N, C,
                                     OC);
    TableRoutes in(m, routes);
    Array<InputType<T, P>> x_in(m, x);
    Array<T> dy_in(m, dy), dx_out(m, rows * C);
    Array<P> w_in(m, w);
    op.experts_backward(dx_out, {dw_out, add}, dy_in, x_in, w_in, in.in(), r, N, C, OC);
    check.expect("dx", dx_out, dx, product_limit<T, T>(dtype, OC));
    check.expect("dw", dw_out, dw, product_limit<Grad<P>, T>(dtype, N));
    return check;
}

template <class T, class P> Check check_row_gate_forward(const Ops<T, P>& op, int N, int F) {
    const Memory m(op);
    Check check("row_gate_forward", {{"N", N}, {"F", F}});
    const Numbers x = rounded<InputType<T, P>>(random_normal(int64_t(N) * F, 1));
    const Numbers gate = rounded<T>(random_normal(N, 2, 2));
    Numbers y(x.size());
    reference_ops().row_gate_forward(y.data(), x.data(), gate.data(), N, F);
    Array<InputType<T, P>> x_in(m, x), y_out(m, int64_t(x.size()));
    Array<T> gate_in(m, gate);
    op.row_gate_forward(y_out, x_in, gate_in, N, F);
    check.expect("y", y_out, y, ROUNDING<InputType<T, P>>);
    return check;
}

template <class T, class P> Check check_row_gate_backward(const Ops<T, P>& op, int N, int F, bool in_place) {
    const Memory m(op);
    Check check("row_gate_backward", {{"N", N}, {"F", F}}, in_place ? " in place" : "");
    const Numbers x = rounded<InputType<T, P>>(random_normal(int64_t(N) * F, 1));
    const Numbers gate = rounded<T>(random_normal(N, 2, 2));
    const Numbers dy = rounded<T>(random_normal(int64_t(N) * F, 3));
    Numbers dx(x.size()), dgate(gate.size());
    reference_ops().row_gate_backward(dx.data(), dgate.data(), dy.data(), x.data(), gate.data(), N, F);
    Array<InputType<T, P>> x_in(m, x);
    Array<T> gate_in(m, gate), dy_in(m, dy), apart(m, int64_t(x.size())), dgate_out(m, N);
    Array<T>& out = in_place ? dy_in : apart;
    op.row_gate_backward(out, dgate_out, dy_in, x_in, gate_in, N, F);
    check.expect("dx", out, dx, ROUNDING<T>);
    check.expect("dgate", dgate_out, dgate, product_limit<T, float>(Dtype::fp32, F));
    return check;
}

FOR_EACH_TABLE(check_router_forward, Router, int, int, LogitKind, bool)
FOR_EACH_TABLE(check_router_backward, Router, int, int, LogitKind, float, float)
FOR_EACH_TABLE(check_experts_gather, Router, int, int)
FOR_EACH_TABLE(check_experts_combine, Router, int, int, Residual, bool)
FOR_EACH_TABLE(check_experts_combine_backward, Router, int, int, bool)
FOR_EACH_TABLE(check_experts_forward, Router, int, int, int, LogitKind, Dtype)
FOR_EACH_TABLE(check_experts_backward, Router, int, int, int, LogitKind, Dtype, bool)
FOR_EACH_TABLE(check_row_gate_forward, int, int)
FOR_EACH_TABLE(check_row_gate_backward, int, int, bool)

// OLMoE's router and widths; rows have an eighth of its width.
static const SelftestRows rows([]<class T, class P>(Selftest& test, const Ops<T, P>& op, Dtype dtype) {
    const Router olmoe = {.E = 64, .K = 8, .normalise = false}, deepseek = {.E = 256, .K = 8, .sigmoid = true};
    constexpr int N = 48, C = 256, F = 1024;
    for (Router r : {olmoe, deepseek}) {
        test.row("router_forward", [&] { return check_router_forward(op, r, 4, 1024, LogitKind::random); });
        test.row("router_backward", [&] { return check_router_backward(op, r, 4, 1024, LogitKind::random, 1, 0.1f); });
    }
    test.row("experts_gather", [&] { return check_experts_gather(op, olmoe, 1024, 2048); });
    test.row("experts_combine", [&] { return check_experts_combine(op, olmoe, 1024, 2048, Residual::in_y, true); });
    test.row("experts_combine_backward", [&] { return check_experts_combine_backward(op, olmoe, 1024, 2048, true); });
    for (LogitKind spread : {LogitKind::random, LogitKind::one}) {
        test.row("experts_forward", [&] { return check_experts_forward(op, olmoe, N, C, F, spread, dtype); });
        test.row("experts_backward", [&] {
            return check_experts_backward(op, olmoe, N, C, F, spread, dtype, spread == LogitKind::random);
        });
    }
    test.row("row_gate_forward", [&] { return check_row_gate_forward(op, 1024, 2048); });
    test.row("row_gate_backward", [&] { return check_row_gate_backward(op, 1024, 2048, true); });
});

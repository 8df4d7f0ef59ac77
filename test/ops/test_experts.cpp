// test_experts.cpp - routing, products of experts, gathering and combining rows, and a row's gate.
#include "ops.h"

#include "tools/selftest/experts.h"

namespace {
struct Count {
    int E, K;
};
constexpr LogitKind SPREADS[] = {LogitKind::random, LogitKind::ties, LogitKind::one};
constexpr Residual RESIDUALS[] = {Residual::none, Residual::apart, Residual::in_y};

// The four kinds of routers.
Router router(Count c, int kind) {
    return {.E = c.E, .K = c.K, .sigmoid = kind % 2 > 0, .normalise = kind / 2 % 2 > 0};
}
constexpr Count COUNTS[] = {{1, 1},   {2, 1},  {2, 2},  {7, 3},  {8, 2},   {31, 4},
                            {32, 32}, {33, 1}, {64, 8}, {65, 6}, {130, 9}, {512, 3}};
}    // namespace

// ---- routing ------------------------------------------------------------------------------------

TEST_CASE("experts: routing against the reference") {
    in_each_order([](auto& op) {
        int kind = 0;
        for (Count c : COUNTS)
            for (auto [B, S] : {std::pair{1, 1}, {5, 1}, {2, 3}, {3, 47}}) {
                const Router r = router(c, kind);
                const LogitKind spread = SPREADS[kind / 4 % 3];
                EXPECT(check_router_forward(op, r, B, S, spread, kind % 5 > 0));
                EXPECT(check_router_backward(op, r, B, S, spread, kind % 3 ? 0.7f : 0, kind % 4 ? 0.1f : 0));
                kind++;
            }
    });
}

TEST_CASE("experts: routing of many positions") {
    in_each_order([](auto& op) {
        for (LogitKind spread : SPREADS) {
            EXPECT(check_router_forward(op, router({5, 2}, 2), 2, 301, spread));
            EXPECT(check_router_forward(op, router({130, 3}, 3), 3, 129, spread));
        }
        EXPECT(check_router_forward(op, router({40, 12}, 2), 1, 130, LogitKind::random));    // on a GPU two parts
        EXPECT(check_router_backward(op, router({40, 3}, 3), 2, 301, LogitKind::random, 1, 0.1f));
    });
}

TEST_CASE("experts: of equal logits the lower numbers are chosen, in their order") {
    const Router r = {.E = 70, .K = 5};
    Numbers logits(size_t(3 * r.E), 1);
    for (int i : {68, 9, 41}) logits[size_t(r.E + i)] = 2;    // position 1: three equal maxima, then 0, 1
    for (int i : {0, 66}) logits[size_t(2 * r.E + i)] = i ? 0.0 : -1;
    for (int i = 1; i < r.E; i++) logits[size_t(2 * r.E + i)] = i % 2 ? 0.0 : -0.0;    // 0 and -0 are equal
    const Numbers expected = {0, 1, 2, 3, 4, 9, 41, 68, 0, 1, 1, 2, 3, 4, 5};
    each_table([&]<class T, class P>(const Ops<T, P>& op) {
        DualRoutes to(op, r, 1, 3);
        Array<T> z(op, logits);
        Array<Grad<P>> factors(op, 3 * r.K);
        op.router_forward(factors, to.device(), nullptr, z, r, 1, 3);
        CHECK(to.expert.read() == expected);
    });
}

// Even with NaN or infinite logits every position gets K different experts, and the tables of
// routes agree.
TEST_CASE("experts: logits that are no numbers spoil their position alone") {
    const int B = 2, S = 9, N = B * S;
    for (Count c : {Count{6, 2}, {40, 40}, {70, 8}})
        for (int kind : {0, 1, 2, 3}) {
            const Router r = router(c, kind);
            const Numbers sound = router_logits(r.E, N, LogitKind::random);
            Numbers spoilt = sound;
            for (int i = 0; i < r.E; i++) spoilt[size_t(4 * r.E + i)] = NAN;    // position 4: all logits NaN
            spoilt[size_t(11 * r.E + 1)] = NAN, spoilt[size_t(13 * r.E)] = INFINITY;
            auto harmed = [&](int64_t n) { return n == 4 || n == 11 || n == 13; };
            each_table([&]<class T, class P>(const Ops<T, P>& op) {
                DualRoutes to(op, r, B, S), as_sound(op, r, B, S);
                Array<T> z(op, spoilt), sound_z(op, sound), dz(op, N * r.E), sound_dz(op, N * r.E);
                Array<Grad<P>> factors(op, N * r.K), sound_factors(op, N * r.K),
                    dfactors(op, random_normal(N * r.K, 3));
                op.router_forward(sound_factors, as_sound.device(), nullptr, sound_z, r, B, S);
                op.router_forward(factors, to.device(), nullptr, z, r, B, S);
                op.router_backward(sound_dz, dfactors, as_sound.device(), sound_z, r, 0, 0.1f, B, S);
                op.router_backward(dz, dfactors, to.device(), z, r, 0, 0.1f, B, S);
                const Numbers expert = to.expert.read(), expected = as_sound.expert.read(),
                              permuted_row = to.permuted_row.read();
                const Numbers row = to.row.read(), offsets = to.offsets.read();
                std::vector<bool> taken(size_t(N * r.E)), filled(permuted_row.size());
                for (size_t i = 0; i < permuted_row.size(); i++) {
                    const int n = int(i) / r.K, e = int(expert[i]), at = int(permuted_row[i]);
                    REQUIRE((e >= 0 && e < r.E && at >= offsets[size_t(e)] && at < offsets[size_t(e) + 1]));
                    CHECK((!taken[size_t(n * r.E + e)] && !filled[size_t(at)] && row[size_t(at)] == double(i)));
                    taken[size_t(n * r.E + e)] = filled[size_t(at)] = true;
                    if (!harmed(n)) CHECK(expert[i] == expected[i]);
                }
                CHECK((offsets[0] == 0 && offsets.back() == N * r.K));
                CHECK((to.expert.intact() && to.permuted_row.intact() && to.row.intact() && to.counts.intact()));
                CHECK((to.offsets.intact() && factors.intact() && dz.intact()));
                const Numbers w = factors.read(), sound_w = sound_factors.read(), d = dz.read(), e = sound_dz.read();
                for (int i = 0; i < N * r.K; i++)
                    if (!harmed(i / r.K)) CHECK(w[size_t(i)] == sound_w[size_t(i)]);
                for (int i = 0; i < N * r.E; i++)
                    if (!harmed(i / r.E)) CHECK(d[size_t(i)] == e[size_t(i)]);
                CHECK(std::isnan(w[size_t(4 * r.K)]));
            });
        }
}

TEST_CASE("experts: routing gives the same bits in any order, and of a sequence whatever else is in the batch") {
    const int B = 3, S = 150, N = B * S;
    for (int kind : {2, 3}) {
        const Router r = router({40, 4}, kind);
        const Numbers logits = router_logits(r.E, N, LogitKind::ties), start = random_normal(r.E + 2, 2);
        each_table([&]<class T, class P>(const Ops<T, P>& op) {
            Array<T> z(op, logits);
            Array<Grad<P>> dfactors(op, random_normal(N * r.K, 3));
            expect_same_bits([&] {
                DualRoutes to(op, r, B, S), alone(op, r, 1, S);
                Array<Grad<P>> factors(op, N * r.K), factors_alone(op, S * r.K);
                Array<double> totals(op, start);
                Array<T> dz(op, N * r.E), dz_alone(op, S * r.E);
                op.router_forward(factors, to.device(), totals, z, r, B, S);
                op.router_backward(dz, dfactors, to.device(), z, r, 0.7f, 0.1f, B, S);
                op.router_forward(factors_alone, alone.device(), nullptr, z + S * r.E, r, 1, S);
                op.router_backward(dz_alone, dfactors + S * r.K, alone.device(), z + S * r.E, r, 0.7f, 0.1f, 1, S);
                auto same = [&](const auto& one, const auto& all) {    // `one` is the second third of `all`
                    const Bits a = one.bits(), b = all.bits();
                    CHECK((a.size() * B == b.size() && std::equal(a.begin(), a.end(), b.begin() + long(a.size()))));
                };
                same(alone.expert, to.expert), same(alone.counts, to.counts);
                same(factors_alone, factors), same(dz_alone, dz);
                return bits_of(to.expert, to.permuted_row, to.row, to.counts, to.offsets, factors, totals, dz);
            });
        });
    }
}

// ---- gathering and combining --------------------------------------------------------------------

TEST_CASE("experts: gathering and combining against the reference") {
    in_each_order([](auto& op) {
        int variant = 0;
        for (Count c : {Count{1, 1}, {3, 3}, {8, 2}, {130, 7}})
            for (int N : {1, 5, 33})
                for (int C : {1, 8, 33, 264}) {
                    const Router r = router(c, 2);
                    EXPECT(check_experts_gather(op, r, N, C));
                    EXPECT(check_experts_combine(op, r, N, C, RESIDUALS[variant % 3], variant / 3 % 2));
                    EXPECT(check_experts_combine_backward(op, r, N, C, variant % 2));
                    variant++;
                }
        EXPECT(check_experts_gather(op, router({4, 2}, 2), 3, 4104));
        EXPECT(check_experts_combine(op, router({4, 2}, 2), 3, 4104, Residual::in_y, true));
        EXPECT(check_experts_combine_backward(op, router({4, 2}, 2), 3, 4104, true));
    });
}

TEST_CASE("row gate: against the reference") {
    in_each_order([](auto& op) {
        for (int N : {1, 3, 34})
            for (int F : {1, 7, 8, 33, 264, 2056}) {
                EXPECT(check_row_gate_forward(op, N, F));
                EXPECT(check_row_gate_backward(op, N, F, false));
                EXPECT(check_row_gate_backward(op, N, F, true));
            }
    });
}

TEST_CASE("experts: rows give the same bits in any order, in place too") {
    const Router r = {.E = 6, .K = 3};
    const int N = 70, C = 520;
    each_table([&](auto& op) {
        expect_same_bits([&] {
            const auto y = bits_of({check_experts_combine(op, r, N, C, Residual::apart, true)});
            const auto dx = bits_of({check_experts_combine_backward(op, r, N, C, false)});
            const auto dgate = bits_of({check_row_gate_backward(op, N, C, false)});
            CHECK(bits_of({check_experts_combine(op, r, N, C, Residual::in_y, true)}) == y);
            CHECK(bits_of({check_experts_combine_backward(op, r, N, C, true)}) == dx);
            CHECK(bits_of({check_row_gate_backward(op, N, C, true)}) == dgate);
            return std::tuple(y, dx, dgate, bits_of({check_row_gate_forward(op, N, C)}));
        });
    });
}

// ---- products -----------------------------------------------------------------------------------

TEST_CASE("experts: products against the reference") {
    each_table(TablePart::products, [](auto& op, const TestTable& t) {
        auto both = [&](Count c, int N, int C, int OC, LogitKind spread) {
            EXPECT(check_experts_forward(op, router(c, 2), N, C, OC, spread, t.dtype));
            for (bool add : {true, false})
                EXPECT(check_experts_backward(op, router(c, 2), N, C, OC, spread, t.dtype, add));
        };
        const Count counts[] = {{1, 1}, {5, 2}, {9, 9}};
        int variant = 0;
        for (int N : {1, 4, 5, 33})
            for (auto [C, OC] : {std::pair{1, 1}, {7, 24}, {8, 8}, {40, 16}, {33, 9}, {72, 136}, {24, 40}}) {
                both(counts[variant % 3], N, C, OC, SPREADS[variant / 3 % 3]);
                variant++;
            }
        both({130, 3}, 20, 24, 16, LogitKind::random);    // most experts have no row
        both({3, 2}, 150, 200, 24, LogitKind::one);       // several tiles of rows, one partial
        both({2, 1}, 300, 40, 136, LogitKind::random);
    });
}

TEST_CASE("experts: products give the same bits in any order") {
    const Router r = {.E = 5, .K = 2};
    for (auto [C, OC] : {std::pair{72, 40}, {35, 30}})
        each_table(TablePart::products, [&, C = C, OC = OC](auto& op, const TestTable& t) {
            if (!t.same_bits) return;
            expect_same_bits([&] {
                return bits_of({check_experts_forward(op, r, 90, C, OC, LogitKind::one),
                                check_experts_backward(op, r, 90, C, OC, LogitKind::one)});
            });
        });
}

// An expert multiplies only the rows routed to it, so a NaN spreads neither to other rows nor to
// experts without that row.
TEST_CASE("experts: NaN in a row spoils that row and its expert's gradient alone") {
    const Router r = {.E = 4, .K = 1};
    const int N = 50;
    ReferenceRoutes routes(router_logits(r.E, N, LogitKind::random), r, 1, N);
    const int bad = 21, expert = routes.expert[size_t(routes.row[bad])];    // bad: a permuted row
    for (auto [C, OC] : {std::pair{40, 24}, {35, 9}})
        each_table(TablePart::products, [&, C = C, OC = OC]<class T, class P>(const Ops<T, P>& op) {
            DualRoutes in(op, routes);
            Numbers x = random_normal(N * C, 1), dy = random_normal(N * OC, 2);
            x[size_t(bad * C + 3)] = dy[size_t(bad * OC + 2)] = NAN;
            Array<InputType<T, P>> x_in(op, x);
            Array<T> dy_in(op, dy), y(op, N * OC), dx(op, N * C);
            Array<P> w(op, random_normal(r.E * OC * C, 3));
            Array<Grad<P>> dw(op, Numbers(size_t(r.E * OC * C), 1));
            op.experts_forward(y, x_in, w, in.device(), r, N, C, OC);
            op.experts_backward(dx, {dw, true}, dy_in, x_in, w, in.device(), r, N, C, OC);
            expect_nan(y.read(), [&](int64_t i) { return i / OC == bad; });
            expect_nan(dx.read(), [&](int64_t i) { return i / C == bad; });
            expect_nan(dw.read(), [&](int64_t i) { return i / (OC * C) == expert && (i % C == 3 || i / C % OC == 2); });
        });
}

TEST_CASE("experts: a row's product does not depend on what else is in the batch") {
    const Router r = {.E = 3, .K = 2};
    const int B = 4;
    for (auto [S, C, OC] : {std::tuple{40, 72, 40}, {40, 35, 9}, {3, 300, 40}, {3, 35, 9}}) {    // S = 3: few rows
        const int N = B * S;
        const Numbers logits = router_logits(r.E, N, LogitKind::random);
        ReferenceRoutes routes(logits, r, B, S);
        ReferenceRoutes second(Numbers(logits.begin() + S * r.E, logits.begin() + 2 * S * r.E), r, 1, S);
        each_table(
            TablePart::products, [&, S = S, C = C, OC = OC]<class T, class P>(const Ops<T, P>& op, const TestTable& t) {
                if (!t.same_bits) return;
                DualRoutes in(op, routes), in_one(op, second);
                Array<InputType<T, P>> h(op, random_normal(N * C, 1)), x(op, N * r.K * C), one_x(op, S * r.K * C);
                Array<T> y(op, N * r.K * OC), out(op, N * OC), one_y(op, S * r.K * OC), one_out(op, S * OC);
                Array<P> w(op, random_normal(r.E * OC * C, 3));
                op.experts_gather(x, h, in.device(), r, N, C);
                op.experts_forward(y, x, w, in.device(), r, N, C, OC);
                op.experts_combine(out, nullptr, y, nullptr, in.device(), r, N, OC);
                op.experts_gather(one_x, h + S * C, in_one.device(), r, S, C);
                op.experts_forward(one_y, one_x, w, in_one.device(), r, S, C, OC);
                op.experts_combine(one_out, nullptr, one_y, nullptr, in_one.device(), r, S, OC);
                const Bits all = out.bits(), alone = one_out.bits();
                CHECK(std::equal(alone.begin(), alone.end(), all.begin() + long(alone.size())));
            });
    }
}

// ---- gradients of the reference -----------------------------------------------------------------

TEST_CASE("experts: the router's gradients of the reference") {
    const Ops<double>& op = reference_ops();
    const int B = 2, S = 4, N = B * S;
    for (Count c : {Count{5, 2}, {4, 1}, {3, 3}})
        for (int kind : {0, 1, 2, 3}) {
            const Router r = router(c, kind);
            Numbers logits = router_logits(r.E, N, LogitKind::random), dfactors = random_normal(N * r.K, 2);
            const Numbers none(size_t(N * r.K), 0);
            ReferenceRoutes routes(logits, r, B, S);
            Numbers d(logits.size());
            auto of_factors = [&] { return dot(ReferenceRoutes(logits, r, B, S).factors, dfactors); };
            auto total = [&](int i) {    // choices and counts stay constant
                Numbers totals(size_t(r.E + 2), 0);
                ReferenceRoutes(logits, r, B, S, totals.data());
                return totals[size_t(r.E + i)];
            };
            op.router_backward(d.data(), dfactors.data(), routes.in(), logits.data(), r, 0, 0, B, S);
            if (r.K > 1 || !r.normalise) CHECK(gradient_error(logits, d, of_factors) < 1e-6);
            // The weight of `balance` is per position, so a sequence of S positions has S times
            // that weight.
            op.router_backward(d.data(), none.data(), routes.in(), logits.data(), r, 2, 0, B, S);
            if (r.K < r.E) CHECK(gradient_error(logits, d, [&] { return 2 * S * total(0); }) < 1e-6);
            op.router_backward(d.data(), none.data(), routes.in(), logits.data(), r, 0, 0.5f, B, S);
            CHECK(gradient_error(logits, d, [&] { return 0.5 * total(1); }) < 1e-6);
        }
}

TEST_CASE("experts: what the balance and the z term are") {
    Router r = {.E = 4, .K = 2};
    Numbers totals(6, 0);
    ReferenceRoutes(Numbers(3 * 4, 0.5), r, 1, 3, totals.data());    // all rows go to experts 0, 1
    CHECK(totals[0] == 3);
    CHECK(totals[1] == 3);
    CHECK(totals[2] == 0);
    CHECK(totals[4] == doctest::Approx(4.0 / 2 * (1 + 1) * 0.25));    // equal probabilities: 1 for any f
    CHECK(totals[5] == doctest::Approx(3 * std::pow(0.5 + std::log(4.0), 2)));
    r = {.E = 2, .K = 1};
    totals.assign(4, 0);
    ReferenceRoutes({50, -50, 50, -50}, r, 1, 2, totals.data());    // one expert takes all: maximum, E / K
    CHECK(totals[2] == doctest::Approx(2));
}

TEST_CASE("experts: gradients of the reference") {
    const Ops<double>& op = reference_ops();
    const Router r = {.E = 3, .K = 2};
    const int N = 5, C = 4, OC = 3, rows = N * r.K;
    ReferenceRoutes routes(router_logits(r.E, N, LogitKind::random), r, 1, N);
    Numbers h = random_normal(N * C, 1), x = random_normal(rows * C, 2), w = random_normal(r.E * OC * C, 3);
    Numbers factors = random_normal(rows, 4), g = random_normal(rows * OC, 5), gh = random_normal(N * C, 6);
    {
        Numbers y(g.size()), dx(x.size()), dw(w.size());
        op.experts_backward(dx.data(), {dw.data(), true}, g.data(), x.data(), w.data(), routes.in(), r, N, C, OC);
        auto loss = [&] {
            op.experts_forward(y.data(), x.data(), w.data(), routes.in(), r, N, C, OC);
            return dot(y, g);
        };
        CHECK(gradient_error(x, dx, loss) < 1e-7);
        CHECK(gradient_error(w, dw, loss) < 1e-7);
    }
    {
        Numbers y(gh.size()), dx(x.size()), dfactors(factors.size());
        op.experts_combine_backward(dx.data(), dfactors.data(), gh.data(), x.data(), factors.data(), routes.in(), r, N,
                                    C);
        auto loss = [&] {
            op.experts_combine(y.data(), h.data(), x.data(), factors.data(), routes.in(), r, N, C);
            return dot(y, gh);
        };
        CHECK(gradient_error(x, dx, loss) < 1e-7);
        CHECK(gradient_error(factors, dfactors, loss) < 1e-7);
        CHECK(gradient_error(h, gh, loss) < 1e-7);    // the residual passes dy on
    }
    {    // A position's gradient is the sum of its rows': combine without weights is gather's backward.
        Numbers y(x.size()), dh(h.size());
        op.experts_combine(dh.data(), nullptr, x.data(), nullptr, routes.in(), r, N, C);
        CHECK(gradient_error(h, dh, [&] {
                  op.experts_gather(y.data(), h.data(), routes.in(), r, N, C);
                  return dot(y, x);
              }) < 1e-7);
    }
}

TEST_CASE("row gate: gradients of the reference") {
    const Ops<double>& op = reference_ops();
    const int N = 4, F = 6;
    Numbers x = random_normal(N * F, 1), gate = random_normal(N, 2), g = random_normal(N * F, 3);
    Numbers y(x.size()), dx(x.size()), dgate(gate.size());
    op.row_gate_backward(dx.data(), dgate.data(), g.data(), x.data(), gate.data(), N, F);
    auto loss = [&] {
        op.row_gate_forward(y.data(), x.data(), gate.data(), N, F);
        return dot(y, g);
    };
    CHECK(gradient_error(x, dx, loss) < 1e-7);
    CHECK(gradient_error(gate, dgate, loss) < 1e-7);
}

#include "ops.h"

#include "tools/selftest/lm_head.h"

namespace {
template <class T, class P> void each_use(const Ops<T, P>& op, int N, int V, int Vp, Logits z = {}) {
    EXPECT(check_cross_entropy(op, N, V, Vp, false, false, z));
    EXPECT(check_cross_entropy(op, N, V, Vp, true, false, z));
    EXPECT(check_cross_entropy(op, N, V, Vp, true, true, z));
    EXPECT(check_cross_entropy(op, N, V, Vp, true, true, z, true));
}
// Scaled logits; a cap that changes them; both; a cap far above the logits.
constexpr Logits SHAPES[] = {{0.3f, 0}, {1, 2}, {1.7f, 5}, {1, 300}};
struct Row {
    double loss;
    Numbers gradient;
};
// Loss and gradient of one row: V logits, then padding.
template <class T, class P> Row row(const Ops<T, P>& op, const Numbers& logits, int V, int target) {
    Array<T> x(op, logits);
    Array<InputType<T, P>> d(op, int64_t(logits.size()));
    Array<float> loss(op, 1);
    Array<int> y(op, Numbers{double(target)});
    op.cross_entropy(loss, d, x, y, nullptr, 1, {}, {}, 1, V, int(logits.size()));
    return {loss.read()[0], d.read()};
}
}    // namespace

TEST_CASE("cross entropy: against the reference") {
    in_each_order([](auto& op) {
        for (int V : {1, 2, 3, 7, 17, 31, 33, 65, 257}) {
            each_use(op, 3, V, V);
            each_use(op, 2, V, int(round_up(V, 16)));
            each_use(op, 9, V, V + 3);
        }
        each_use(op, 8, 1000, 1200);
    });
}

TEST_CASE("cross entropy: rows of many logits") {
    in_each_order([]<class T, class P>(const Ops<T, P>& op) {
        for (int V : {4095, 4100, sizeof(T) == 2 ? 13001 : 9001}) {    // last V: 26 or 36 KB per row
            each_use(op, 2, V, int(round_up(V, 104)));
            each_use(op, 1, V, V | 1);
        }
    });
    each_table([]<class T, class P>(const Ops<T, P>& op) {
        each_use(op, 2, 50257, 50304);    // shared memory holds two rows: only bf16, sm_90
        if (sizeof(T) == 2) each_use(op, 2, 128256, 128256);
    });
}

TEST_CASE("cross entropy: scaled and capped logits") {
    in_each_order([](auto& op) {
        for (Logits z : SHAPES) {
            for (int V : {2, 7, 33, 257}) each_use(op, 9, V, V + 3, z);
            each_use(op, 2, 4100, 4160, z);
            each_use(op, 1, 9001, 9001, z);
        }
    });
}

TEST_CASE("cross entropy: the same bits in place, without gradients and in any order") {
    const int N = 5, V = 5003, Vp = 5008;
    Numbers logits = random_normal(N * Vp, 1, 5);
    for (int i = 0; i < N * Vp; i++)
        if (i % Vp >= V) logits[size_t(i)] = NAN;
    const std::vector<int> target = random_tokens(N, V, 2);
    each_table([&]<class T, class P>(const Ops<T, P>& op) {
        Array<int> y(op, target);
        for (auto [z, more] : {std::pair{Logits{}, LossPenalties{}}, {{0.7f, 6}, {}}, {{0.7f, 6}, {0.01f, 0.1f}}})
            expect_same_bits([&, z = z, more = more] {
                typedef InputType<T, P> I;
                Array<float> a(op, N), b(op, N), c(op, N);
                Array<T> x(op, logits), same(op, logits);
                Array<I> d(op, N * Vp);
                const Bits before = x.bits();
                op.cross_entropy(a, nullptr, x, y, nullptr, 0.1f, more, z, N, V, Vp);
                op.cross_entropy(b, d, x, y, nullptr, 0.1f, more, z, N, V, Vp);
                CHECK(x.bits() == before);
                CHECK(a.bits() == b.bits());
                if constexpr (std::is_same_v<I, T>) {
                    op.cross_entropy(c, same, same, y, nullptr, 0.1f, more, z, N, V, Vp);
                    CHECK(same.bits() == d.bits());
                    CHECK(a.bits() == c.bits());
                }
                return bits_of(a, d);
            });
    });
}

TEST_CASE("cross entropy: logits of some 1e4, and one of minus infinity") {
    each_table([]<class T, class P>(const Ops<T, P>& op) {
        for (int V : {3, 33, 4100}) {
            const int N = 7;
            Integers target(op, random_tokens(N, V, 2));
            Numbers numbers = random_normal(N * V, 1, 1e4);
            numbers[size_t((target.numbers[0] + 1) % V)] = -INFINITY;
            Dual<T> logits(op, numbers);
            Dual<InputType<T, P>> dlogits(op, N * V);
            Statistics loss(op, N);
            both(op, [&](auto& table, auto at) {
                table.cross_entropy(at(loss), at(dlogits), at(logits), at(target), nullptr, 0.5f, {}, {}, N, V, V);
            });
            Check check;
            check.expect("loss", loss, ROUNDING<float>);
            check.expect("dlogits", dlogits, ROUNDING<InputType<T, P>>);
            EXPECT(check);
        }
    });
}

TEST_CASE("cross entropy: extreme logits") {
    const int V = 300, Vp = 304;
    auto logits = [&](double x) {
        Numbers l(size_t(Vp), x);
        for (int v = V; v < Vp; v++) l[size_t(v)] = NAN;
        return l;
    };
    each_table([&](auto& op) {
        Numbers l = logits(-1000);
        l[5] = 1000;    // the target's probability is 0 in any float
        Row r = row(op, l, V, 7);
        CHECK(r.loss == doctest::Approx(2000));
        CHECK(r.gradient[5] == 1);
        CHECK(r.gradient[7] == -1);
        CHECK(r.gradient[8] == 0);

        l = logits(-INFINITY);    // all but two logits masked
        l[299] = l[0] = 3e38;
        r = row(op, l, V, 299);
        CHECK(r.loss == doctest::Approx(std::log(2)));
        CHECK(r.gradient[0] == doctest::Approx(0.5));
        CHECK(r.gradient[299] == doctest::Approx(-0.5));
        CHECK(r.gradient[1] == 0);
        CHECK(row(op, l, V, 1).loss == INFINITY);

        for (double bad : {double(NAN), double(INFINITY)})
            for (int at : {0, 150, 299}) {
                l = logits(1);
                l[size_t(at)] = bad;
                r = row(op, l, V, 2);
                CHECK(std::isnan(r.loss));
                CHECK(std::isnan(r.gradient[1]));
                CHECK(r.gradient[V] == 0);    // padding stays clean even then
            }
        CHECK(std::isnan(row(op, logits(-INFINITY), V, 2).loss));
    });
}

TEST_CASE("cross entropy: NaN and infinity spoil their row and no other") {
    const int N = 5;
    for (int V : {40, 5000})
        each_table([&]<class T, class P>(const Ops<T, P>& op) {
            Numbers logits = random_normal(N * V, 1);
            logits[size_t(V + 13)] = NAN, logits[size_t(4 * V - 1)] = INFINITY;
            Array<T> x(op, logits);
            Array<InputType<T, P>> d(op, N * V);
            Array<float> loss(op, N);
            Array<int> y(op, Numbers{3, 4, 5, 6, 7});
            op.cross_entropy(loss, d, x, y, nullptr, 1, {}, {}, N, V, V);
            expect_nan(loss.read(), [](int64_t n) { return n == 1 || n == 3; });
            expect_nan(d.read(), [&](int64_t i) { return i / V == 1 || i / V == 3; });
        });
}

TEST_CASE("cross entropy: gradients of the reference") {
    const Ops<double>& op = reference_ops();
    const int V = 9, Vp = 12;
    for (Logits z : {Logits{}, SHAPES[0], SHAPES[1], SHAPES[2]})
        for (int t : {0, 4, 8}) {
            Numbers logits = random_normal(Vp, 1, 2), d(Vp);
            float unused;
            op.cross_entropy(&unused, d.data(), logits.data(), &t, nullptr, 1, {}, z, 1, V, Vp);
            // the loss that the table returns is a float: too coarse for differences
            auto shaped = [&](int v) {
                const double x = double(z.scale) * logits[size_t(v)], cap = double(z.cap);
                return cap > 0 ? cap * std::tanh(x / cap) : x;
            };
            auto loss = [&] {
                double s = 0;
                for (int v = 0; v < V; v++) s += std::exp(shaped(v));
                return std::log(s) - shaped(t);
            };
            CHECK(unused == doctest::Approx(loss()).epsilon(1e-6));
            CHECK(gradient_error(logits, d, loss) < 1e-7);
            const LossPenalties more = {0.05f, 0.3f};
            auto penalised = [&] {
                double sum = 0, even = 0;
                for (int v = 0; v < V; v++) sum += std::exp(shaped(v)), even += shaped(v) / V;
                const double lse = std::log(sum), e = double(more.label_smoothing);
                return lse - (1 - e) * shaped(t) - e * even + double(more.z_loss) * lse * lse;
            };
            op.cross_entropy(&unused, d.data(), logits.data(), &t, nullptr, 1, more, z, 1, V, Vp);
            CHECK(unused == doctest::Approx(loss()).epsilon(1e-6));    // the loss leaves them out
            CHECK(gradient_error(logits, d, penalised) < 1e-7);
        }
}

TEST_CASE("cross entropy: with z-loss and label smoothing, against the reference") {
    in_each_order([](auto& op) {
        for (LossPenalties more : {LossPenalties{0.03f, 0}, {0, 0.2f}, {0.01f, 0.1f}})
            for (Logits z : {Logits{}, SHAPES[0], Logits{1, 8}})
                for (auto [N, V, Vp] : {std::tuple{9, 2, 5}, {9, 33, 36}, {9, 257, 257}, {2, 4100, 4160}}) {
                    EXPECT(check_cross_entropy(op, N, V, Vp, true, false, z, false, more));
                    EXPECT(check_cross_entropy(op, N, V, Vp, true, true, z, true, more));
                    EXPECT(check_cross_entropy(op, 2, V, Vp, false, false, z, false, more));
                }
    });
}

// The gradient is that of torch.nn.functional.cross_entropy(x, y, label_smoothing=0.1), plus 0.02 *
// torch.logsumexp(x, 1) ** 2, summed over the rows (PyTorch 2.15, float64).
TEST_CASE("cross entropy: z-loss and label smoothing are those of PyTorch; the loss leaves them out") {
    const Numbers x = {0.3, -1.2, 2.5, 0.7, -0.4, 1.5, 1.5, -3, 0.25, 4, -0.5, 0};
    const std::vector<int> target = {1, 3};
    const Numbers cross_entropy = {4.24448952, 0.127459852};
    const Numbers gradient = {0.0554425661, -0.900576922, 0.634120133,   0.0909076678, 0.0191417186,   0.222744417,
                              0.0675254229, -0.015731377, 0.00745477085, 0.109002956,  -0.00527250638, 0.00211912776};
    each_table([&]<class T, class P>(const Ops<T, P>& op) {
        typedef InputType<T, P> I;
        Array<T> logits(op, x);
        Array<I> d(op, int64_t(x.size()));
        Array<float> loss(op, 2);
        Array<int> y(op, target);
        op.cross_entropy(loss, d, logits, y, nullptr, 1, {0.02f, 0.1f}, {}, 2, 6, 6);
        const double limit = std::is_same_v<T, double> ? 1e-7 : sizeof(I) == 2 ? 8e-3 : 2e-6;
        CHECK(relative_error(d.read().data(), gradient.data(), 12) < limit);
        CHECK(relative_error(loss.read().data(), cross_entropy.data(), 2) < (sizeof(T) == 2 ? 8e-3 : 1e-6));
    });
}

TEST_CASE("lm_head_backward: against the reference") {
    each_table(TablePart::products, [](auto& op, const TestTable& t) {
        for (auto [N, C, V] : {std::tuple{1, 8, 16}, {2, 1, 33}, {7, 24, 100}, {33, 65, 257}, {130, 16, 513}})
            for (bool add : {true, false}) {
                EXPECT(check_lm_head_backward(op, N, C, V, add, t.dtype, add));
                EXPECT(check_lm_head_backward(op, N, C, V, !add, t.dtype, add));
            }
    });
}

TEST_CASE("distillation: against the reference") {
    in_each_order([](auto& op) {
        for (int V : {1, 2, 7, 33, 257, 1000})
            for (Distillation how : {Distillation{1, 1}, {2, 0.5f}, {0.7f, 0.3f}, {4, 0}}) {
                EXPECT(check_distill_loss(op, 4, V, V + 3, how, true));
                EXPECT(check_distill_loss(op, 4, V, V, how, false));
                EXPECT(check_distill_loss(op, 3, V, V + 1, how, true, {0.3f, 0}, {1, 2}));
                EXPECT(check_distill_loss(op, 3, V, V, how, true, {1.7f, 5}, {1, 0}));
            }
    });
}

TEST_CASE("distillation: gradient by differences; the teacher's own logits cost nothing") {
    const int V = 9, Vp = 12;
    const Ops<double>& op = reference_ops();
    Numbers x = random_normal(2 * Vp, 1), t = random_normal(2 * Vp, 2), d(2 * Vp);
    const int target[] = {3, 7};
    float losses[2];
    for (Distillation how : {Distillation{2, 0.4f}, {0.5f, 1}, {1, 0}})
        for (Logits z : {Logits{}, {0.7f, 3}}) {
            auto exact = [&](const Numbers& own) {    // in double, as loss is a float
                double sum = 0;
                for (int n = 0; n < 2; n++) {
                    auto lse = [&](const Numbers& all, double T, Logits l) {
                        double s = 0;
                        for (int v = 0; v < V; v++) {
                            const double u = all[size_t(n * Vp + v)] * double(l.scale);
                            s += std::exp((l.cap != 0 ? double(l.cap) * std::tanh(u / double(l.cap)) : u) / T);
                        }
                        return std::log(s);
                    };
                    auto value = [&](const Numbers& all, int v, Logits l) {
                        const double u = all[size_t(n * Vp + v)] * double(l.scale);
                        return l.cap != 0 ? double(l.cap) * std::tanh(u / double(l.cap)) : u;
                    };
                    const double T = double(how.temperature), m = double(how.mix);
                    for (int v = 0; v < V; v++) {
                        const double p = value(t, v, {}) / T - lse(t, T, {}), q = value(own, v, z) / T - lse(own, T, z);
                        sum += m * T * T * std::exp(p) * (p - q);
                    }
                    sum += (1 - m) * (lse(own, 1, z) - value(own, target[n], z));
                }
                return sum;
            };
            op.distill_loss(losses, d.data(), x.data(), t.data(), target, 1, how, z, {}, 2, V, Vp);
            CHECK(double(losses[0]) + double(losses[1]) == doctest::Approx(exact(x)).epsilon(1e-6));
            CHECK(gradient_error(x, d, [&] { return exact(x); }) < 1e-7);
        }
    op.distill_loss(losses, d.data(), t.data(), t.data(), target, 1, {2, 1}, {}, {}, 2, V, Vp);
    CHECK(std::fabs(losses[0]) < 1e-6);
    for (double g : d) CHECK(std::fabs(g) < 1e-12);
}

TEST_CASE("value loss: against the reference") {
    in_each_order([](auto& op) {
        for (int N : {1, 2, 3, 33, 130})
            for (int Vp : {1, 16, 40})
                for (bool binary : {false, true}) {
                    EXPECT(check_value_loss(op, N, Vp, binary, false, false));
                    EXPECT(check_value_loss(op, N, Vp, binary, true, false));
                    EXPECT(check_value_loss(op, N, Vp, binary, true, true));
                }
    });
}

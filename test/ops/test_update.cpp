#include "layers/optimizer/muon.h"
#include "ops.h"

#include "tools/selftest/update.h"

namespace {
const OptimizerParams RATES = {.lr = 1e-2f,
                               .beta1 = 0.9f,
                               .beta2 = 0.95f,
                               .eps = 1e-8f,
                               .weight_decay = 0.1f,
                               .momentum = 0.9f,
                               .groups = {{{1, 0}, {1, 1}, {3, 0}, {3, 1}}}};
const std::vector<int64_t> SIZES = {1,  2,  3,  4,   5,   7,    8,    15,   16,   17,   31,  33,
                                    63, 64, 65, 127, 129, 1023, 1024, 1025, 4099, 8191, 8193};
const std::vector<int64_t> BLOCKS = {64, 128, 192, 960, 1024, 1088, 8128, 8256};    // multiples of 64
// The Step that step_verdict leaves for update_weights after `updates` updates.
Step step_of(int64_t updates, float scale = 1) {
    const double b1 = double(RATES.beta1), b2 = double(RATES.beta2), t = double(updates);
    return {1, 1, updates, scale, float(1 / (1 - std::pow(b1, t))), float(1 / (1 - std::pow(b2, t))), 0};
}
// A Step in memory of the tested table.
struct TableStep {
    Array<double> memory;
    TableStep(Memory m, const Step& s) : memory(m, words(s)) {}
    operator Step*() { return reinterpret_cast<Step*>(static_cast<double*>(memory)); }
    static Numbers words(const Step& s) {
        Numbers w(size_t(ceil_div(sizeof s, 8)));
        memcpy(w.data(), &s, sizeof s);
        return w;
    }
};
StateArray state(Array<float>& a) { return {static_cast<float*>(a)}; }
Numbers some_groups(int64_t n) {    // a byte for each 64 elements
    Numbers d(size_t(ceil_div(n, 64)));
    for (size_t i = 0; i < d.size(); i++) d[i] = double(3 - i % 4);
    return d;
}
}    // namespace

TEST_CASE("update: every rule and type of states, against the reference") {
    each_order([] {
        each_table([]<class T, class P>(const Ops<T, P>& op) {
            for (int64_t n : {64, 192, 1088, 8256})
                for (bool master : {false, true})
                    for (const UpdateKind& kind : update_kinds(master))
                        if (sizeof(P) == 2 || !master) EXPECT(check_update(op, n, kind));
        });
    });
}

TEST_CASE("update: many elements; stochastic rounding is unbiased, and adds the bits that are promised") {
    each_table([]<class T, class P>(const Ops<T, P>& op) {
        EXPECT(check_update(op, 100032, {UpdateRule::adamw}));
        EXPECT(check_update(op, 100032, {UpdateRule::adamw, sizeof(P) == 2, Element::uint8, Element::bf16}));
    });
}

TEST_CASE("update: momentum of matrices") {
    each_order([] {
        each_table([]<class T, class P>(const Ops<T, P>& op) {
            for (int64_t n : BLOCKS)
                for (const Element type : STATE_ELEMENTS) EXPECT(check_momentum(op, n, type));
        });
    });
}

TEST_CASE("update: the weights' average") {
    each_order([] {
        each_table([]<class T, class P>(const Ops<T, P>& op) {
            for (int64_t n : BLOCKS)
                for (bool master : {false, true})
                    if (sizeof(P) == 2 || !master) EXPECT(check_average(op, n, master));
        });
    });
}

TEST_CASE("update: matrices are orthogonalized, of any shape") {
    each_order([] {
        each_table([]<class T, class P>(const Ops<T, P>& op) {
            for (auto [rows, cols] : std::vector<std::pair<int, int>>{
                     {2, 2}, {2, 5}, {7, 3}, {16, 16}, {24, 40}, {33, 130}, {136, 24}, {129, 131}, {192, 200}})
                EXPECT(check_orthogonalize(op, rows, cols));
        });
    });
}

TEST_CASE("update: an orthogonalized matrix has singular values of about 1, and its scale does not matter") {
    each_table([]<class T, class P>(const Ops<T, P>& op) {
        const Memory m(op);
        const int rows = 48, cols = 80;
        for (double size : {1e-6, 1.0, 1e6}) {
            Array<float> x(m, random_normal(rows * cols, 1, size)), work(m, orthogonalize_work(rows, cols));
            op.orthogonalize(x, work, 1, rows, cols);
            const Numbers y = x.read();
            for (int i = 0; i < rows; i++)
                for (int j = 0; j < rows; j++) {
                    double dot = 0;
                    for (int c = 0; c < cols; c++) dot += y[size_t(i * cols + c)] * y[size_t(j * cols + c)];
                    CHECK(std::fabs(dot - (i == j)) < 0.5);
                }
            // The singular values of a random matrix of this shape are at least 0.1 of the largest,
            // so they end between 0.67 and 1.21.
            double all = 0;
            for (double v : y) all += v * v;
            CHECK(all > 0.67 * 0.67 * rows);
            CHECK(all < 1.21 * 1.21 * rows);
        }
    });
}

TEST_CASE("update: rows are divided by their root mean square over time") {
    each_order([] {
        each_table([]<class T, class P>(const Ops<T, P>& op) {
            for (auto [rows, cols] : std::vector<std::pair<int, int>>{{1, 2}, {3, 5}, {16, 64}, {33, 257}, {300, 7}})
                EXPECT(check_normalize_rows(op, rows, cols));
        });
    });
}

TEST_CASE("update: over steps, from nothing, some of them skipped") {
    each_table([]<class T, class P>(const Ops<T, P>& op) {
        const Memory m(op);
        for (int n : {64, 128, 8256}) {
            const Numbers groups = some_groups(n), zeros(size_t(n), 0);
            const std::vector<uint8_t> bytes(groups.begin(), groups.end());
            Numbers w = rounded<float>(random_normal(n, 1));
            std::vector<float> mean(static_cast<size_t>(n)), square(mean);
            Array<P> aw(m, w);
            Array<float> master(m, w), amean(m, zeros), asquare(m, zeros);
            Array<uint8_t> agroups(m, groups);
            for (int updates = 1; updates <= 5; updates++) {
                Numbers g = rounded<float>(random_normal(n, uint64_t(10 + updates)));
                g[2] = 0;    // a parameter that no loss depends on
                Step step = step_of(updates, 0.5f);
                reference_ops().update_weights(w.data(), nullptr, {mean.data()}, {square.data()}, g.data(),
                                               bytes.data(), n, &step, UpdateRule::adamw, RATES, 0);
                Array<Grad<P>> dw(m, g);
                for (step.skipped = 0; step.skipped < 2; step.skipped++)
                    op.update_weights(aw, sizeof(P) == 2 ? static_cast<float*>(master) : nullptr, state(amean),
                                      state(asquare), dw, agroups, n, TableStep(m, step), UpdateRule::adamw, RATES, 0);
            }
            Check check;
            if constexpr (sizeof(P) == 2) check.expect("master", master, w, 1e-6);
            else check.expect("w", aw, w, 1e-6);
            check.expect("m", amean, Numbers(mean.begin(), mean.end()), 1e-6);
            check.expect("v", asquare, Numbers(square.begin(), square.end()), 1e-6);
            EXPECT(check);
        }
    });
}

TEST_CASE("update: rows that decay and rows that do not") {
    const int n = 64 * 5;
    each_table([]<class T, class P>(const Ops<T, P>& op) {
        const Memory m(op);
        const Numbers zeros(n, 0);
        Array<P> w(m, Numbers(n, 2));
        Array<float> master(m, Numbers(n, 2)), mean(m, zeros), square(m, zeros);
        Array<Grad<P>> dw(m, zeros);
        Array<uint8_t> groups(m, some_groups(n));
        op.update_weights(w, sizeof(P) == 2 ? static_cast<float*>(master) : nullptr, state(mean), state(square), dw,
                          groups, n, TableStep(m, step_of(1)), UpdateRule::adamw, RATES, 0);
        const Numbers got = sizeof(P) == 2 ? master.read() : w.read();
        for (size_t i = 0; i < n; i++) CHECK((got[i] < 2) == (i / 64 % 2 == 0));
    });
}

TEST_CASE("update: NaN and infinity stay where they are") {
    const int n = 192;
    Numbers gradient = random_normal(n, 1);
    gradient[67] = NAN, gradient[129] = INFINITY;
    each_table([&]<class T, class P>(const Ops<T, P>& op) {
        for (bool with_master : {false, true}) {
            const Memory m(op);
            Array<P> w(m, random_normal(n, 2));
            Array<float> master(m, random_normal(n, 2)), mean(m, Numbers(n, 0)), square(m, Numbers(n, 1));
            Array<Grad<P>> dw(m, gradient);
            Array<uint8_t> groups(m, Numbers(3, 1));
            op.update_weights(w, with_master ? static_cast<float*>(master) : nullptr, state(mean), state(square), dw,
                              groups, n, TableStep(m, step_of(1)), UpdateRule::adamw, RATES, 1);
            expect_nan(w.read(), [](int64_t i) { return i == 67 || i == 129; });
        }
    });
}

TEST_CASE("update: the same bits in any order, after very many steps") {
    const int n = 50048;
    const Numbers weights = random_normal(n, 1), zeros(n, 0);
    each_table([&]<class T, class P>(const Ops<T, P>& op) {
        const Memory m(op);
        Array<Grad<P>> dw(m, random_normal(n, 2));
        Array<uint8_t> groups(m, some_groups(n));
        for (bool with_master : {false, true})
            expect_same_bits([&] {
                Array<P> w(m, weights);
                Array<float> master(m, weights), mean(m, zeros), square(m, zeros);
                op.update_weights(w, with_master ? static_cast<float*>(master) : nullptr, state(mean), state(square),
                                  dw, groups, n, TableStep(m, step_of(1000000000000)), UpdateRule::adamw, RATES, 5);
                return bits_of(w, master, mean, square);
            });
        const int rows = 136, cols = 264;
        Array<float> work(m, orthogonalize_work(rows, cols));
        expect_same_bits([&] {
            Array<float> x(m, random_normal(rows * cols, 3)), v(m, Numbers(rows, 1));
            op.orthogonalize(x, work, 1, rows, cols);
            op.normalize_rows(x, v, 0.2f, TableStep(m, step_of(1)), RATES, rows, cols);
            return bits_of(x, v);
        });
    });
}

// ---- the step's verdict -------------------------------------------------------------------------

TEST_CASE("gate: every table against the reference") {
    each_order([] {
        each_table([](auto& op) {
            for (int n : {1, 2, 31, 32, 33, 150}) EXPECT(check_step_verdict(op, n));
        });
    });
}

TEST_CASE("gate: the reference clips, counts, skips what is over a limit or not finite") {
    const double squares[] = {9, 16}, broken[] = {9, NAN}, loss = 12;
    Step step = {};
    auto run = [&](double total, double scale, const double* parts, Limits limits) {
        reference_ops().step_verdict(&step, &total, scale, parts, nullptr, 2, RATES, limits);
        return step;
    };
    auto near = [](float x, double y) { return std::fabs(double(x) - y) <= 1e-6 * y; };
    Step s = run(loss, 0.25, squares, {});
    CHECK((s.loss == 3 && s.norm == 5 && s.updates == 1 && s.scale == 1 && !s.skipped));
    CHECK((near(s.m_correction, 10) && near(s.v_correction, 20)));
    s = run(loss, 0.25, squares, {.clip = 2});
    CHECK((s.updates == 2 && s.norm == 5 && near(s.scale, 0.4) && near(s.scale_of(3), 0.4) && !s.skipped));
    CHECK((near(s.m_correction, 1 / 0.19) && near(s.v_correction, 1 / 0.0975)));
    s = run(loss, 0.25, squares, {.clip = 6});
    CHECK((s.updates == 3 && s.scale == 1));
    const uint8_t groups[] = {5, 1};    // each group's norm is clipped by itself
    Step by_group = {};
    reference_ops().step_verdict(&by_group, &loss, 0.25, squares, groups, 2, RATES, {.clip = 3.5});
    CHECK((by_group.norm == 5 && by_group.scale == 1 && near(by_group.scale_of(1), 3.5 / 4)));
    CHECK((by_group.scale_of(5) == 1 && by_group.scale_of(0) == 1));
    for (const Limits& limits : {Limits{.loss = 2.9}, Limits{.norm = 4.9}}) {
        s = run(loss, 0.25, squares, limits);
        CHECK((s.skipped && s.updates == 3 && s.loss == 3 && s.norm == 5));
    }
    for (double bad : {double(NAN), double(INFINITY), -double(INFINITY)}) {
        s = run(bad, 1, squares, {});
        CHECK((s.skipped && s.updates == 3));
    }
    s = run(loss, 0.25, broken, {.clip = 1});
    CHECK((s.skipped && s.updates == 3 && std::isnan(s.norm)));
    s = run(loss, 0.25, squares, {.clip = 0, .loss = 3, .norm = 5});    // exactly at the limits
    CHECK((!s.skipped && s.updates == 4));
}

// ---- sums and casts -----------------------------------------------------------------------------

TEST_CASE("sums: in double, of squares and of losses") {
    each_order([] {
        each_table([](auto& op) {
            for (int64_t n : SIZES) {
                EXPECT(check_sum_of_squares(op, n));
                EXPECT(check_add_losses(op, n));
            }
            for (int64_t n : {4095, 4096, 12290}) EXPECT(check_sum_of_squares(op, n));
        });
    });
    each_table([](auto& op) {
        EXPECT(check_sum_of_squares(op, 300000));
        for (int64_t n : {8192, 20001}) EXPECT(check_add_losses(op, n));
    });
}

TEST_CASE("sums: as many blocks as there may be, and larger shares") {
    each_table([]<class T, class P>(const Ops<T, P>& op) {
        const Memory m(op);
        for (int64_t n : {4096 * 1024, 4096 * 1024 + 4097}) {
            Numbers x(static_cast<size_t>(n));
            double sum = 0;
            for (size_t i = 0; i < x.size(); i++) x[i] = double(i % 7), sum += x[i] * x[i];
            Array<double> out(m, 1);
            op.sum_of_squares(out, Array<Grad<P>>(m, x), n);
            CHECK(out.read()[0] == sum);
        }
    });
}

TEST_CASE("sums: of squares from any element on, as a matrix may begin anywhere in its tensor") {
    each_order([] {
        each_table([]<class T, class P>(const Ops<T, P>& op) {
            const Memory m(op);
            const Numbers x = rounded<float>(random_normal(9001, 1));
            Array<Grad<P>> squares(m, x);
            for (int at : {1, 2, 3, 5}) {
                double sum = 0;
                for (size_t i = size_t(at); i < x.size(); i++) sum += x[i] * x[i];
                Array<double> out(m, 1);
                op.sum_of_squares(out, squares + at, int64_t(x.size()) - at);
                CHECK(out.read()[0] == doctest::Approx(sum).epsilon(1e-12));
            }
        });
    });
}

TEST_CASE("sums: the same bits in any order; NaN and infinity come out") {
    each_table([]<class T, class P>(const Ops<T, P>& op) {
        const Memory m(op);
        for (int n : {9001, 300000}) {
            const Numbers x = random_normal(n, 1);
            Array<Grad<P>> squares(m, x);
            Array<float> losses(m, x);
            expect_same_bits([&] {
                Array<double> out(m, 1), total(m, Numbers{0});
                op.sum_of_squares(out, squares, n);
                op.add_losses(total, losses, n);
                return bits_of(out, total);
            });
        }
        const int n = 9001;
        for (int at : {0, 4095, 4096, n - 1}) {
            Array<double> out(m, 1);
            Numbers bad = random_normal(n, 1);
            bad[size_t(at)] = NAN;
            op.sum_of_squares(out, Array<Grad<P>>(m, bad), n);
            CHECK(std::isnan(out.read()[0]));
            bad[size_t(at)] = -INFINITY;
            op.sum_of_squares(out, Array<Grad<P>>(m, bad), n);
            CHECK(out.read()[0] == INFINITY);
        }
    });
}

TEST_CASE("casts: exact, of any bits") {
    each_order([] {
        each_table([](auto& op) {
            for (int64_t n : SIZES) EXPECT(check_casts(op, n));
        });
    });
    each_table([](auto& op) {
        for (int at : {0, 1, 4}) EXPECT(check_casts(op, 100001, at));
    });
}

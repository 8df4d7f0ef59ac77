#include "ops.h"

// What gate leaves for adamw after so many updates.
static Step step_of(AdamW a, int64_t updates, float scale = 1) {
    const double b1 = double(a.beta1), b2 = double(a.beta2), t = double(updates);
    return {1, 1, updates, scale, float(1 / (1 - std::pow(b1, t))), float(1 / (1 - std::pow(b2, t))), 0};
}
static std::vector<uint8_t> some_decays(int64_t n) {    // one for 64 elements
    std::vector<uint8_t> d(size_t(ceil_div(n, 64)));
    for (size_t i = 0; i < d.size(); i++) d[i] = i % 3 != 1;
    return d;
}
const AdamW RATES = {1e-2f, 0.9f, 0.95f, 1e-8f, 0.1f};

TEST_CASE("adamw: every instruction set against the reference, over steps") {
    const Ops<double>& ref = reference_ops();
    for (int n : {1, 2, 7, 31, 65, 129, 8191, 8193, 50000}) {
        CAPTURE(n);
        auto w = normal<float>(n, 1);
        auto decays = some_decays(n);
        each_isa([&](const Ops<float>& op) {
            std::vector<double> rw = doubles(w);
            std::vector<float> rm(n), rv(n);
            Guarded<float> fw(n), fm(n, 0), fv(n, 0);
            memcpy(fw.data(), w.data(), w.size() * sizeof(float));
            for (int updates = 1; updates <= 5; updates++) {
                Step step = step_of(RATES, updates, 0.5f);
                auto g = normal<float>(n, uint64_t(10 + updates));
                if (n > 2) g[2] = 0;
                ref.adamw(rw.data(), nullptr, rm.data(), rv.data(), doubles(g).data(), decays.data(), n, &step, RATES,
                          0);
                op.adamw(fw, nullptr, fm, fv, g.data(), decays.data(), n, &step, RATES, 0);
                step.skipped = 1;
                op.adamw(fw, nullptr, fm, fv, g.data(), decays.data(), n, &step, RATES, 0);
            }
            CHECK(relative_error(fw.data(), rw.data(), n) < 1e-6);
            CHECK(relative_error(fm.data(), rm.data(), n) < 1e-6);
            CHECK(relative_error(fv.data(), rv.data(), n) < 1e-6);
            CHECK((fw.intact() && fm.intact() && fv.intact()));
        });
    }
}

TEST_CASE("adamw: bf16 parameters, with masters and rounded stochastically") {
    for (int n : {1, 2, 3, 7, 15, 17, 33, 63, 64, 65, 127, 129, 1025, 8193, 100003})
        each_isa<bf16>([&](auto& op) {
            EXPECT(check_adamw(op, n, true));
            EXPECT(check_adamw(op, n, false));
        });
    // A master steps as float parameters do, to the bit.
    const int n = 9001;
    const auto w = normal<float>(n, 1), g = normal<float>(n, 2);
    const auto decays = some_decays(n);
    const Step step = step_of(RATES, 3);
    for (int i = 0; i < ISA_COUNT; i++) {
        if (!cpu_supports(Isa(i))) continue;
        std::vector<float> a = w, b = w, m(n), v(n), m2(n), v2(n);
        std::vector<bf16> rounded(n);
        cpu_ops_isa<float>(Isa(i)).adamw(a.data(), nullptr, m.data(), v.data(), g.data(), decays.data(), n, &step,
                                         RATES, 0);
        cpu_ops_isa<bf16>(Isa(i)).adamw(rounded.data(), b.data(), m2.data(), v2.data(), g.data(), decays.data(), n,
                                        &step, RATES, 0);
        CHECK((a == b && m == m2 && v == v2));
    }
}

TEST_CASE("adamw: rows that decay and rows that do not") {
    const int n = 64 * 4 + 10;
    std::vector<float> g(n, 0);
    auto decays = some_decays(n);
    const Step step = step_of(RATES, 1);
    each_isa([&](const Ops<float>& op) {
        std::vector<float> w(n, 2), m(n), v(n);
        op.adamw(w.data(), nullptr, m.data(), v.data(), g.data(), decays.data(), n, &step, RATES, 0);
        for (size_t i = 0; i < n; i++) CHECK((w[i] < 2) == (i / 64 % 3 != 1));
    });
}

TEST_CASE("adamw: the same bits for any number of threads; a NaN stays where it is") {
    const int n = 50001;
    auto w = normal<float>(n, 1), g = normal<float>(n, 2);
    auto decays = some_decays(n);
    const Step late = step_of(RATES, 1000000000000), first = step_of(RATES, 1);
    each_isa([&](const Ops<float>& op) {
        CHECK(same_bits(3 * n, [&](float* x) {
            memset(x, 0, size_t(3 * n) * sizeof(float));
            memcpy(x, w.data(), w.size() * sizeof(float));
            op.adamw(x, nullptr, x + n, x + 2 * n, g.data(), decays.data(), n, &late, RATES, 0);
        }));
    });
    auto one_nan = [&](auto& op, auto one, bool with_master) {
        std::vector<decltype(one)> x(100, one);
        std::vector<float> master(100, 1), m(100), v(100), d(100, 1);
        d[37] = NAN;
        op.adamw(x.data(), with_master ? master.data() : nullptr, m.data(), v.data(), d.data(), decays.data(), 100,
                 &first, RATES, 0);
        for (size_t i = 0; i < 100; i++) CHECK(std::isnan(to_float(x[i])) == (i == 37));
    };
    each_isa([&](auto& op) { one_nan(op, 1.0f, false); });
    each_isa<bf16>([&](auto& op) {
        for (bool with_master : {false, true}) one_nan(op, to_bf16(1), with_master);
        auto bits = [&](int threads) {
            Threads set(threads);
            std::vector<bf16> x = normal<bf16>(n, 1);
            std::vector<float> m(n), v(n);
            op.adamw(x.data(), nullptr, m.data(), v.data(), g.data(), decays.data(), n, &late, RATES, 5);
            return doubles(x);
        };
        CHECK(bits(1) == bits(3));
    });
}

template <class T> static void check_gate(const Ops<T>& op) {
    const double squares[] = {9, 16}, broken[] = {9, NAN}, loss = 12;
    Step step = {};
    auto run = [&](const double* total, double scale, const double* parts, Limits limits) {
        op.gate(&step, total, scale, parts, 2, RATES, limits);
        return step;
    };
    auto near = [](float x, double y) { return std::fabs(double(x) - y) <= 1e-6 * y; };
    Step s = run(&loss, 0.25, squares, {});
    CHECK((s.loss == 3 && s.norm == 5 && s.updates == 1 && s.scale == 1 && !s.skipped));
    CHECK((near(s.m_scale, 10) && near(s.v_scale, 20)));
    s = run(&loss, 0.25, squares, {.clip = 2});
    CHECK((s.updates == 2 && s.norm == 5 && near(s.scale, 0.4) && !s.skipped));
    CHECK((near(s.m_scale, 1 / 0.19) && near(s.v_scale, 1 / 0.0975)));
    s = run(&loss, 0.25, squares, {.clip = 6});
    CHECK((s.updates == 3 && s.scale == 1));
    for (const Limits& limits : {Limits{.loss = 2.9}, Limits{.norm = 4.9}}) {
        s = run(&loss, 0.25, squares, limits);
        CHECK((s.skipped && s.updates == 3 && s.loss == 3 && s.norm == 5));
    }
    for (double bad : {double(NAN), double(INFINITY), -double(INFINITY)}) {
        s = run(&bad, 1, squares, {});
        CHECK((s.skipped && s.updates == 3));
    }
    s = run(&loss, 0.25, broken, {.clip = 1});
    CHECK((s.skipped && s.updates == 3 && std::isnan(s.norm)));
    s = run(&loss, 0.25, squares, {.clip = 0, .loss = 3, .norm = 5});    // at the limits
    CHECK((!s.skipped && s.updates == 4));
}
TEST_CASE("gate: clips, counts, skips what is over a limit or not finite") {
    check_gate(reference_ops());
    check_gate(cpu_ops<float>());
}

TEST_CASE("sum of squares: double sums in an order of n alone") {
    for (int64_t n : {1, 2, 7, 31, 65, 8193, 300000}) {
        auto x = normal<float>(n, 1);
        if (n > 10) x[7] = 1e15f, x[8] = 1e-15f;    // squares that float cannot hold together
        double want = 0;
        reference_ops().sum_of_squares(&want, doubles(x).data(), n);
        each_isa([&](const Ops<float>& op) {
            for (int threads : {1, 2, 3}) {
                Threads set(threads);
                double got = NAN, again = NAN;
                op.sum_of_squares(&got, x.data(), n);
                CHECK(std::fabs(got - want) <= 1e-13 * want);
                Threads one(1);
                op.sum_of_squares(&again, x.data(), n);
                CHECK(got == again);
            }
            auto bad = x;
            double got = 0;
            bad[size_t(n - 1)] = NAN;
            op.sum_of_squares(&got, bad.data(), n);
            CHECK(std::isnan(got));
            bad[size_t(n - 1)] = -INFINITY;
            op.sum_of_squares(&got, bad.data(), n);
            CHECK(std::isinf(got));
        });
    }
}

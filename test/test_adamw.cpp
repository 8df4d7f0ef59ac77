#include "ops.h"

TEST_CASE("adamw: every instruction set against the reference, over steps") {
    const Ops<double>& ref = reference_ops();
    for (int n : {1, 2, 7, 31, 65, 8191, 8193, 50000}) {
        CAPTURE(n);
        auto w = normal<float>(n, 1);
        each_isa(Dtype::fp32, [&](const Ops<float>& op) {
            std::vector<double> rw = doubles(w);
            std::vector<float> rm(n), rv(n);
            Guarded<float> fw(n), fm(n, 0), fv(n, 0);
            memcpy(fw.data(), w.data(), w.size() * sizeof(float));
            for (int step = 1; step <= 5; step++) {
                AdamW a = {1e-2f, 0.9f, 0.95f, 1e-8f, 0.1f, 0.5f, step};
                auto g = normal<float>(n, uint64_t(10 + step));
                if (n > 2) g[2] = 0;
                ref.adamw(rw.data(), rm.data(), rv.data(), doubles(g).data(), n, a);
                op.adamw(fw, fm, fv, g.data(), n, a);
            }
            CHECK(relative_error(fw.data(), rw.data(), n) < 1e-6);
            CHECK(relative_error(fm.data(), rm.data(), n) < 1e-6);
            CHECK(relative_error(fv.data(), rv.data(), n) < 1e-6);
            CHECK((fw.intact() && fm.intact() && fv.intact()));
        });
    }
}

TEST_CASE("adamw: the same bits for any number of threads; a NaN stays where it is") {
    const int n = 50001;
    auto w = normal<float>(n, 1), g = normal<float>(n, 2);
    each_isa(Dtype::fp32, [&](const Ops<float>& op) {
        CHECK(same_bits(3 * n, [&](float* x) {
            memset(x, 0, size_t(3 * n) * sizeof(float));
            memcpy(x, w.data(), w.size() * sizeof(float));
            op.adamw(x, x + n, x + 2 * n, g.data(), n, {1e-3f, 0.9f, 0.95f, 1e-8f, 0.1f, 1, 1000000000000});
        }));
        std::vector<float> x(100, 1), m(100), v(100), d(100, 1);
        d[37] = NAN;
        op.adamw(x.data(), m.data(), v.data(), d.data(), 100, {1e-3f, 0.9f, 0.95f, 1e-8f, 0.1f, 1, 1});
        for (size_t i = 0; i < 100; i++) CHECK(std::isnan(x[i]) == (i == 37));
    });
}

TEST_CASE("sum of squares: double sums in an order of n alone") {
    for (int64_t n : {1, 2, 7, 31, 65, 8193, 300000}) {
        auto x = normal<float>(n, 1);
        if (n > 10) x[7] = 1e15f, x[8] = 1e-15f;    // squares that float cannot hold together
        double want = 0;
        reference_ops().sum_of_squares(&want, doubles(x).data(), n);
        each_isa(Dtype::fp32, [&](const Ops<float>& op) {
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

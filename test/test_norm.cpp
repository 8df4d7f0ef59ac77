#include "ops.h"

template <class P> static void against_reference() {
    const Ops<double>& ref = reference_ops();
    for (int C : {1, 3, 31, 32, 33, 96, 769})
        for (int N : {1, 2, 7, 31, 65}) {
            const int n = N * C;
            CAPTURE(C); CAPTURE(N);
            auto x = normal<float>(n, 1), dy = normal<float>(n, 4);
            auto w = normal<P>(C, 2), b = normal<P>(C, 3);
            for (float& v : x) v += 3;    // a mean that is no small part of x
            std::vector<double> y(n), dx(n, 0.5), dw(C, 0.25), db(C, 0.125);
            std::vector<float> mean(N), rstd(N);
            ref.layernorm_forward(y.data(), mean.data(), rstd.data(), doubles(x).data(), doubles(w).data(),
                                  doubles(b).data(), 1e-5f, N, C);
            ref.layernorm_backward(dx.data(), dw.data(), db.data(), doubles(dy).data(), doubles(x).data(),
                                   doubles(w).data(), mean.data(), rstd.data(), N, C);
            each_isa<P>([&](const Ops<float, P>& op) {
                Guarded<float> fy(n), fm(N), fr(N), fdx(n, 0.5), fdw(C, 0.25), fdb(C, 0.125);
                op.layernorm_forward(fy, fm, fr, x.data(), w.data(), b.data(), 1e-5f, N, C);
                op.layernorm_backward(fdx, fdw, fdb, dy.data(), x.data(), w.data(), mean.data(), rstd.data(), N, C);
                CHECK(relative_error(fy.data(), y.data(), n) < 3e-6);
                CHECK(relative_error(fm.data(), mean.data(), N) < 1e-6);
                CHECK(relative_error(fr.data(), rstd.data(), N) < 3e-6);
                CHECK(relative_error(fdx.data(), dx.data(), n) < 1e-5);
                CHECK(relative_error(fdw.data(), dw.data(), C) < 1e-5);
                CHECK(relative_error(fdb.data(), db.data(), C) < 1e-5);
                CHECK((fy.intact() && fm.intact() && fr.intact() && fdx.intact() && fdw.intact() && fdb.intact()));
            });
        }
}

TEST_CASE("layernorm: every instruction set against the reference") {
    against_reference<float>();
    against_reference<bf16>();
}

TEST_CASE("layernorm: the same bits for any number of threads") {
    const int N = 77, C = 100, n = N * C;
    auto x = normal<float>(n, 1), w = normal<float>(C, 2), dy = normal<float>(n, 4), mean = normal<float>(N, 5);
    std::vector<float> rstd(N, 0.9f);
    each_isa([&](const Ops<float>& op) {
        CHECK(same_bits(n + 2 * C, [&](float* d) {
            for (int i = 0; i < n + 2 * C; i++) d[i] = 1;
            op.layernorm_backward(d, d + n, d + n + C, dy.data(), x.data(), w.data(), mean.data(), rstd.data(), N, C);
        }));
    });
}

TEST_CASE("layernorm: gradients of the reference") {
    const Ops<double>& op = reference_ops();
    const int N = 3, C = 7, n = N * C;
    auto x = normal<double>(n, 1), w = normal<double>(C, 2), b = normal<double>(C, 3), g = normal<double>(n, 4);
    std::vector<double> y(n), dx(n), dw(C), db(C);
    std::vector<float> mean(N), rstd(N);
    auto loss = [&] {
        op.layernorm_forward(y.data(), mean.data(), rstd.data(), x.data(), w.data(), b.data(), 1e-5f, N, C);
        return dot(y, g);
    };
    loss();
    op.layernorm_backward(dx.data(), dw.data(), db.data(), g.data(), x.data(), w.data(), mean.data(), rstd.data(), N,
                          C);
    CHECK(gradient_error(x.data(), dx.data(), n, loss) < 1e-5);    // the statistics are float
    CHECK(gradient_error(w.data(), dw.data(), C, loss) < 1e-5);
    CHECK(gradient_error(b.data(), db.data(), C, loss) < 1e-5);
}

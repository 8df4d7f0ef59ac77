#include "tools/selftest/checks.h"
#include "cuda_test.h"

TEST_CASE("cuda gelu: against the reference") {
    auto all = [](auto& op, int64_t n) {
        EXPECT(check_gelu_forward(op, n));
        EXPECT(check_gelu_backward(op, n, false));
        EXPECT(check_gelu_backward(op, n, true));
    };
    each_schedule([&] {
        for (int64_t n : {1, 2, 3, 4, 5, 7, 8, 9, 31, 33, 64, 65, 1023, 1025, 2047, 2048, 2049, 4095, 4103, 12293}) {
            all(cuda_ops<float>(Dtype::fp32), n);
            all(cuda_ops<bf16>(Dtype::bf16), n);
        }
    });
}

TEST_CASE("cuda gelu: large, tiny and no numbers") {
    const Numbers x = {0,  -0.0, 1e-30, -1e-30, 1e-4, -1e-4, 0.5,  -0.5,  4,  -4,
                       9,  -9,   20,    -20,    300,  -300,  1e15, -1e15, NAN};
    const int64_t n = int64_t(x.size());
    Numbers y(x.size()), dx(x.size()), ones(x.size(), 1);
    auto run = [&](auto& op, auto zero) {
        typedef decltype(zero) T;
        const Memory m(op);
        const Numbers in = rounded<T>(x);
        Array<T> ax(m, in), ay(m, n), ady(m, ones), adx(m, n);
        reference_ops().gelu_forward(y.data(), in.data(), n);
        reference_ops().gelu_backward(dx.data(), ones.data(), in.data(), n);
        op.gelu_forward(ay, ax, n);
        op.gelu_backward(adx, ady, ax, n);
        const Numbers got_y = ay.read(), got_dx = adx.read();
        for (size_t i = 0; i < x.size(); i++) {
            CAPTURE(x[i]); CAPTURE(got_y[i]); CAPTURE(got_dx[i]);
            if (std::isnan(x[i])) {
                CHECK((std::isnan(got_y[i]) && std::isnan(got_dx[i])));
                continue;
            }
            // Far below zero the reference's 1 + tanh itself cancels: hence the absolute term.
            CHECK(std::fabs(got_y[i] - y[i]) <= 2 * ROUNDING<T> * std::fabs(y[i]) + 1e-15);
            CHECK(std::fabs(got_dx[i] - dx[i]) <= 2 * ROUNDING<T> * std::fabs(dx[i]) + 1e-15);
        }
    };
    run(cuda_ops<float>(Dtype::fp32), 0.0f);
    run(cuda_ops<bf16>(Dtype::bf16), bf16());
}

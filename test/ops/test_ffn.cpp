#include "ops.h"

#include "tools/selftest/ffn.h"

TEST_CASE("gelu: against the reference") {
    each_order([] {
        each_table([](auto& op) {
            for (int64_t n : {1, 2, 3, 4, 5, 7, 8, 9, 31, 33, 64, 65, 1023, 1025, 2047, 2048, 2049, 4095, 4097, 4103,
                              12293, 20000}) {
                EXPECT(check_gelu_forward(op, n));
                EXPECT(check_gelu_backward(op, n, false));
                EXPECT(check_gelu_backward(op, n, true));
            }
        });
    });
}

// Every 2^-15 from -16 to 16. y is held to the size of x: GELU is x times a number from 0 to 1, whose own digits are
// lost where it is almost 0.
TEST_CASE("gelu: as exact as the type everywhere") {
    const int n = 1 << 16;
    each_table([&]<class T, class P>(const Ops<T, P>& op) {
        const Memory m(op);
        double forward = 0, backward = 0;
        for (double from = -16; from < 16; from += 2) {
            Numbers x(n), ones(n, 1), y(n), dx(n);
            for (int i = 0; i < n; i++) x[size_t(i)] = from + 2.0 * i / n;
            x = rounded<T>(x);
            reference_ops().gelu_forward(y.data(), x.data(), n);
            reference_ops().gelu_backward(dx.data(), ones.data(), x.data(), n);
            Array<T> ax(m, x), ady(m, ones), ay(m, n), adx(m, n);
            op.gelu_forward(ay, ax, n);
            op.gelu_backward(adx, ady, ax, n);
            const Numbers got_y = ay.read(), got_dx = adx.read();
            for (size_t i = 0; i < n; i++) {
                forward = std::fmax(forward, std::fabs(got_y[i] - y[i]) / std::fmax(std::fabs(x[i]), 1e-3));
                backward = std::fmax(backward, std::fabs(got_dx[i] - dx[i]));
            }
        }
        CHECK(forward < (sizeof(T) == 2 ? 0x1p-8 : FAST_EXP ? 2e-6 : 1.5e-7));
        CHECK(backward < (sizeof(T) == 2 ? 0x1p-8 : FAST_EXP ? 4e-6 : 5e-7));
    });
}

TEST_CASE("gelu: large, tiny and no numbers") {
    const Numbers x = {0,  -0.0, 1e-30, -1e-30, 1e-4, -1e-4, 0.5, -0.5, 4,   -4,   9,
                       -9, 20,   -20,   300,    -300, 1e4,   -1e4, 1e15, -1e15, NAN};
    const int64_t n = int64_t(x.size());
    each_table([&]<class T, class P>(const Ops<T, P>& op) {
        const Memory m(op);
        const Numbers in = rounded<T>(x), ones(x.size(), 1);
        Numbers y(x.size()), dx(x.size());
        Array<T> ax(m, in), ay(m, n), ady(m, ones), adx(m, n);
        reference_ops().gelu_forward(y.data(), in.data(), n);
        reference_ops().gelu_backward(dx.data(), ones.data(), in.data(), n);
        op.gelu_forward(ay, ax, n);
        op.gelu_backward(adx, ady, ax, n);
        const Numbers got_y = ay.read(), got_dx = adx.read();
        for (size_t i = 0; i < x.size(); i++) {
            CAPTURE(x[i]); CAPTURE(got_y[i]); CAPTURE(got_dx[i]); CAPTURE(y[i]); CAPTURE(dx[i]);
            if (std::isnan(x[i])) {
                CHECK((std::isnan(got_y[i]) && std::isnan(got_dx[i])));
                continue;
            }
            // Far below zero the reference's 1 + tanh itself cancels: hence the absolute term.
            CHECK(std::fabs(got_y[i] - y[i]) <= 2 * ROUNDING<T> * std::fabs(y[i]) + 1e-15);
            CHECK(std::fabs(got_dx[i] - dx[i]) <= 2 * ROUNDING<T> * std::fabs(dx[i]) + 1e-15);
        }
    });
}

TEST_CASE("gelu: the same bits in any order, in place too") {
    const int n = 20000;
    each_table([&]<class T, class P>(const Ops<T, P>& op) {
        const Memory m(op);
        const Numbers numbers = random_normal(n, 2);
        Array<T> x(m, random_normal(n, 1, 3)), dy(m, numbers);
        expect_same_bits([&] {
            Array<T> y(m, n), dx(m, n), in_place(m, numbers);
            op.gelu_forward(y, x, n);
            op.gelu_backward(dx, dy, x, n);
            op.gelu_backward(in_place, in_place, x, n);
            CHECK(in_place.bits() == dx.bits());
            return bits_of(y, dx);
        });
    });
}

TEST_CASE("gelu: gradients of the reference") {
    const Ops<double>& op = reference_ops();
    const int n = 40;
    Numbers x = random_normal(n, 1, 2), g = random_normal(n, 2), y(n), dx(n);
    op.gelu_backward(dx.data(), g.data(), x.data(), n);
    auto loss = [&] {
        op.gelu_forward(y.data(), x.data(), n);
        return dot(y, g);
    };
    CHECK(gradient_error(x, dx, loss) < 1e-7);
}

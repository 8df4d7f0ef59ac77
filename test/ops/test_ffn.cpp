#include "ops.h"

#include "tools/selftest/ffn.h"

namespace {
constexpr bool BOTH[] = {false, true};    // gated or not
template <class F> void each_act(F f) {
    for (Act act : ACTS) {
        CAPTURE(std::string(ACT_NAME[int(act)]));
        f(act);
    }
}
}    // namespace

TEST_CASE("activation: against the reference") {
    each_order([] {
        each_table([](auto& op) {
            int k = 0;
            for (int n :
                 {1, 2, 3, 4, 5, 7, 8, 9, 31, 33, 64, 65, 1023, 1025, 2047, 2048, 2049, 4095, 4097, 4103, 12293, 20000})
                each_act([&](Act act) {
                    if (act != Act::gelu_tanh && k++ % 3) return;
                    EXPECT(check_activation_forward(op, act, false, 1, n));
                    EXPECT(check_activation_backward(op, act, false, 1, n, false));
                    EXPECT(check_activation_backward(op, act, false, 1, n, true));
                });
        });
    });
}

TEST_CASE("activation: gated, against the reference") {
    struct Shape {
        int N, F;
    };
    each_order([] {
        each_table([](auto& op) {
            int k = 0;
            for (auto [N, F] : {Shape{1, 1},
                                {3, 2},
                                {2, 7},
                                {5, 8},
                                {7, 33},
                                {4, 96},
                                {1, 2048},
                                {3, 1025},
                                {2, 4104},
                                {2, 8197},
                                {40, 264}})
                each_act([&, N = N, F = F](Act act) {
                    if (act != Act::silu && k++ % 3) return;
                    EXPECT(check_activation_forward(op, act, true, N, F));
                    EXPECT(check_activation_backward(op, act, true, N, F));
                });
        });
    });
}

// Every 2^-15 from -16 to 16. y is held to the size of x: GELU and SiLU are x times a number from 0 to 1, whose own
// digits are lost where it is almost 0.
TEST_CASE("activation: as exact as the type everywhere") {
    const int n = 1 << 16;
    each_table([&]<class T, class P>(const Ops<T, P>& op) {
        const Memory m(op);
        each_act([&](Act act) {
            double forward = 0, backward = 0;
            for (double from = -16; from < 16; from += 2) {
                Numbers x(n), ones(n, 1), y(n), dx(n);
                for (int i = 0; i < n; i++) x[size_t(i)] = from + 2.0 * i / n;
                x = rounded<T>(x);
                reference_ops().activation_forward(y.data(), x.data(), act, false, 1, n);
                reference_ops().activation_backward(dx.data(), ones.data(), x.data(), act, false, 1, n);
                Array<T> ax(m, x), ady(m, ones), adx(m, n);
                Array<InputType<T, P>> ay(m, n);
                op.activation_forward(ay, ax, act, false, 1, n);
                op.activation_backward(adx, ady, ax, act, false, 1, n);
                const Numbers got_y = ay.read(), got_dx = adx.read();
                const double power = act == Act::relu2 ? 2 : 1;
                for (size_t i = 0; i < n; i++) {
                    const double size = std::pow(std::fmax(std::fabs(x[i]), 1e-3), power);
                    forward = std::fmax(forward, std::fabs(got_y[i] - y[i]) / size);
                    backward = std::fmax(backward, std::fabs(got_dx[i] - dx[i]) / std::fmax(1, std::fabs(dx[i])));
                }
            }
            CAPTURE(forward);
            CAPTURE(backward);
            const double exact = act == Act::gelu ? 3e-7 : 1.5e-7;    // a polynomial's error and rounding
            CHECK(forward < (sizeof(InputType<T, P>) == 2 ? 0x1p-8 : FAST_EXP ? 2e-6 : exact));
            CHECK(backward < (sizeof(T) == 2 ? 0x1p-8 : FAST_EXP ? 4e-6 : 5e-7));
        });
    });
}

TEST_CASE("activation: large, tiny and no numbers") {
    const Numbers x = {0,  -0.0, 1e-30, -1e-30, 1e-4, -1e-4, 0.5,  -0.5, 4,     -4, 9,
                       -9, 20,   -20,   300,    -300, 1e4,   -1e4, 1e15, -1e15, NAN};
    const int n = int(x.size());
    each_table([&]<class T, class P>(const Ops<T, P>& op) {
        const Memory m(op);
        each_act([&](Act act) {
            const Numbers in = rounded<T>(x), ones(x.size(), 1);
            Numbers y(x.size()), dx(x.size());
            Array<T> ax(m, in), ady(m, ones), adx(m, n);
            Array<InputType<T, P>> ay(m, n);
            reference_ops().activation_forward(y.data(), in.data(), act, false, 1, n);
            reference_ops().activation_backward(dx.data(), ones.data(), in.data(), act, false, 1, n);
            op.activation_forward(ay, ax, act, false, 1, n);
            op.activation_backward(adx, ady, ax, act, false, 1, n);
            const Numbers got_y = ay.read(), got_dx = adx.read();
            for (size_t i = 0; i < x.size(); i++) {
                CAPTURE(x[i]);
                CAPTURE(got_y[i]);
                CAPTURE(got_dx[i]);
                CAPTURE(y[i]);
                CAPTURE(dx[i]);
                if (std::isnan(x[i])) {
                    CHECK(std::isnan(got_y[i]));
                    if (act != Act::relu) CHECK(std::isnan(got_dx[i]));    // relu's is 0 or 1
                    continue;
                }
                // Far below zero the reference's 1 + tanh itself cancels: hence the absolute term.
                CHECK(std::fabs(got_y[i] - y[i]) <= 2 * ROUNDING<InputType<T, P>> * std::fabs(y[i]) + 1e-15);
                CHECK(std::fabs(got_dx[i] - dx[i]) <= 2 * ROUNDING<T> * std::fabs(dx[i]) + 1e-15);
            }
        });
    });
}

TEST_CASE("activation: the same bits in any order, in place too") {
    const int N = 5, F = 4100, n = N * F;
    each_table([&]<class T, class P>(const Ops<T, P>& op) {
        const Memory m(op);
        const Numbers numbers = random_normal(n, 2);
        Array<T> x(m, random_normal(2 * n, 1, 3)), dy(m, numbers);
        each_act([&](Act act) {
            expect_same_bits([&] {
                Array<InputType<T, P>> y(m, n), gated_y(m, n);
                Array<T> dx(m, n), in_place(m, numbers), gated_dx(m, 2 * n);
                op.activation_forward(y, x, act, false, N, F);
                op.activation_backward(dx, dy, x, act, false, N, F);
                op.activation_backward(in_place, in_place, x, act, false, N, F);
                op.activation_forward(gated_y, x, act, true, N, F);
                op.activation_backward(gated_dx, dy, x, act, true, N, F);
                CHECK(in_place.bits() == dx.bits());
                return bits_of(y, dx, gated_y, gated_dx);
            });
        });
    });
}

TEST_CASE("activation: NaN stays where it is") {
    const int N = 3, F = 40;
    Numbers numbers = random_normal(N * 2 * F, 1);
    numbers[2 * F + 7] = NAN, numbers[5 * F + 9] = NAN;    // row 1's gate 7, row 2's other half 9
    auto in_y = [](int64_t i) { return i == F + 7 || i == 2 * F + 9; };
    auto in_dx = [](int64_t i) { return i == 2 * F + 7 || i == 3 * F + 7 || i == 4 * F + 9; };
    each_table([&]<class T, class P>(const Ops<T, P>& op) {
        const Memory m(op);
        Array<T> x(m, numbers), dx(m, N * 2 * F), dy(m, random_normal(N * F, 2));
        Array<InputType<T, P>> y(m, N * F);
        for (Act act : {Act::gelu_tanh, Act::gelu, Act::silu}) {
            op.activation_forward(y, x, act, true, N, F);
            expect_nan(y.read(), in_y);
            op.activation_backward(dx, dy, x, act, true, N, F);
            expect_nan(dx.read(), in_dx);
        }
    });
}

TEST_CASE("activation: gradients of the reference") {
    const Ops<double>& op = reference_ops();
    const int N = 4, F = 10, n = N * F;
    each_act([&](Act act) {
        for (bool gated : BOTH) {
            Numbers x = random_normal((gated ? 2 : 1) * n, 1, 2), g = random_normal(n, 2), y(n), dx(x.size());
            op.activation_backward(dx.data(), g.data(), x.data(), act, gated, N, F);
            auto loss = [&] {
                op.activation_forward(y.data(), x.data(), act, gated, N, F);
                return dot(y, g);
            };
            CHECK(gradient_error(x, dx, loss) < 1e-7);
        }
    });
}

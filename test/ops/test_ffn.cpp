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
// act(x) and its slope for each x, from the reference and from a table.
struct ValueAndSlope {
    Numbers x, y, dx, got_y, got_dx;
    template <class T, class P> ValueAndSlope(const Ops<T, P>& op, const Numbers& numbers, Act act) {
        const int n = int(numbers.size());
        Dual<T> in(op, numbers), ones(op, Numbers(numbers.size(), 1)), slope(op, n);
        Dual<InputType<T, P>> value(op, n);
        both(op, [&](auto& table, auto at) {
            table.activation_forward(at(value), at(in), act, false, 1, n);
            table.activation_backward(at(slope), at(ones), at(in), act, false, 1, n);
        });
        x = in.numbers, y = value.numbers, dx = slope.numbers;
        got_y = value.read(), got_dx = slope.read();
    }
};
constexpr std::pair<int, int> GATED_SHAPES[] = {{1, 1},    {3, 2},    {2, 7},    {5, 8},    {7, 33},  {4, 96},
                                                {1, 2048}, {3, 1025}, {2, 4104}, {2, 8197}, {40, 264}};
}    // namespace

TEST_CASE("activation: against the reference") {
    in_each_order([](auto& op) {
        int k = 0;
        for (int n :
             {1, 2, 3, 4, 5, 7, 8, 9, 31, 33, 64, 65, 1023, 1025, 2047, 2048, 2049, 4095, 4097, 4103, 12293, 20000})
            each_act([&](Act act) {
                if (act != Act::gelu_tanh && k++ % 3) return;
                EXPECT(check_activation_forward(op, act, false, 1, n));
                EXPECT(check_stream_activation_forward(op, act, 1, n));
                EXPECT(check_activation_backward(op, act, false, 1, n, false));
                EXPECT(check_activation_backward(op, act, false, 1, n, true));
            });
    });
}

TEST_CASE("activation: gated, against the reference") {
    in_each_order([](auto& op) {
        int k = 0;
        for (auto [N, F] : GATED_SHAPES)
            each_act([&, N = N, F = F](Act act) {
                if (act != Act::silu && k++ % 3) return;
                EXPECT(check_activation_forward(op, act, true, N, F));
                EXPECT(check_activation_backward(op, act, true, N, F));
            });
    });
}

// x in steps of 2^-15 from -16 to 16. y's error is relative to x, not to y: GELU and SiLU are x
// times a factor from 0 to 1, which loses its relative precision near 0.
TEST_CASE("activation: as exact as the type everywhere") {
    const int n = 1 << 16;
    each_table([&]<class T, class P>(const Ops<T, P>& op) {
        each_act([&](Act act) {
            double forward = 0, backward = 0;
            for (double from = -16; from < 16; from += 2) {
                Numbers numbers(n);
                for (int i = 0; i < n; i++) numbers[size_t(i)] = from + 2.0 * i / n;
                const ValueAndSlope r(op, numbers, act);
                const double power = act == Act::relu2 ? 2 : 1;
                for (size_t i = 0; i < n; i++) {
                    const double size = std::pow(std::fmax(std::fabs(r.x[i]), 1e-3), power);
                    forward = std::fmax(forward, std::fabs(r.got_y[i] - r.y[i]) / size);
                    backward = std::fmax(backward, std::fabs(r.got_dx[i] - r.dx[i]) / std::fmax(1, std::fabs(r.dx[i])));
                }
            }
            CAPTURE(forward);
            CAPTURE(backward);
            const double exact = act == Act::gelu || act == Act::tanh ? 3e-7
                                                                      : 1.5e-7;    // a polynomial's error and rounding
            CHECK(forward < (sizeof(InputType<T, P>) == 2 ? 0x1p-8 : FAST_EXP ? 2e-6 : exact));
            CHECK(backward < (sizeof(T) == 2 ? 0x1p-8 : FAST_EXP ? 4e-6 : 5e-7));
        });
    });
}

TEST_CASE("activation: large, tiny and no numbers") {
    const Numbers numbers = {0,  -0.0, 1e-30, -1e-30, 1e-4, -1e-4, 0.5,  -0.5, 4,     -4, 9,
                             -9, 20,   -20,   300,    -300, 1e4,   -1e4, 1e15, -1e15, NAN};
    each_table([&]<class T, class P>(const Ops<T, P>& op) {
        each_act([&](Act act) {
            const ValueAndSlope r(op, numbers, act);
            for (size_t i = 0; i < r.x.size(); i++) {
                CAPTURE(r.x[i]);
                CAPTURE(r.got_y[i]);
                CAPTURE(r.got_dx[i]);
                CAPTURE(r.y[i]);
                CAPTURE(r.dx[i]);
                if (std::isnan(r.x[i])) {
                    CHECK(std::isnan(r.got_y[i]));
                    if (act != Act::relu) CHECK(std::isnan(r.got_dx[i]));    // slope of relu: 0 or 1
                    continue;
                }
                // Far below zero the reference's 1 + tanh itself cancels: hence the absolute term.
                CHECK(std::fabs(r.got_y[i] - r.y[i]) <= 2 * ROUNDING<InputType<T, P>> * std::fabs(r.y[i]) + 1e-15);
                CHECK(std::fabs(r.got_dx[i] - r.dx[i]) <= 2 * ROUNDING<T> * std::fabs(r.dx[i]) + 1e-15);
            }
        });
    });
}

TEST_CASE("activation: the same bits in any order, in place too") {
    each_table([](auto& op) {
        const int N = 5, F = 4100;
        each_act([&](Act act) {
            expect_same_bits([&] {
                const Check dx = check_activation_backward(op, act, false, N, F);
                CHECK(bits_of({check_activation_backward(op, act, false, N, F, true)}) == bits_of({dx}));
                return bits_of({dx, check_activation_forward(op, act, false, N, F),
                                check_activation_forward(op, act, true, N, F),
                                check_activation_backward(op, act, true, N, F)});
            });
        });
    });
}

TEST_CASE("activation: NaN stays where it is") {
    const int N = 3, F = 40;
    Numbers numbers = random_normal(N * 2 * F, 1);
    numbers[2 * F + 7] = NAN, numbers[5 * F + 9] = NAN;    // row 1, gate; row 2, second half
    auto in_y = [](int64_t i) { return i == F + 7 || i == 2 * F + 9; };
    auto in_dx = [](int64_t i) { return i == 2 * F + 7 || i == 3 * F + 7 || i == 4 * F + 9; };
    each_table([&]<class T, class P>(const Ops<T, P>& op) {
        Array<T> x(op, numbers), dx(op, N * 2 * F), dy(op, random_normal(N * F, 2));
        Array<InputType<T, P>> y(op, N * F);
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

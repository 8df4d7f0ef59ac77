#include "ops.h"

// Distance in units of the last place of a double result rounded to float, denormals included.
static double ulps(float got, double want) {
    if (std::isinf(float(want))) return got == float(want) ? 0 : INFINITY;
    int exponent;
    frexp(want, &exponent);
    return std::fabs(double(got) - want) / std::ldexp(1.0, std::max(exponent - 24, -149));
}

TEST_CASE("exp: within 2 ulp everywhere, exact at the ends") {
    const int n = 1 << 16;
    for (int i = 0; i < ISA_COUNT; i++) {
        if (!cpu_supports(Isa(i))) continue;
        CAPTURE(i);
        double worst = 0;
        for (double from = -110; from < 95; from += 5) {
            std::vector<float> x(n), y(n);
            for (int j = 0; j < n; j++) x[size_t(j)] = float(from + 5.0 * j / n);
            cpu_loops<float>(Isa(i)).exponentials(y.data(), x.data(), n);
            for (int j = 0; j < n; j++) worst = std::fmax(worst, ulps(y[size_t(j)], std::exp(double(x[size_t(j)]))));
        }
        CHECK(worst < 2);
        std::vector<float> x = {0,      -0.0f,     -INFINITY, INFINITY, NAN,    88.72283f,
                                88.73f, -103.97f, -104,      1e30f,    -1e30f, 1e-30f};
        std::vector<float> y(x.size());
        cpu_loops<float>(Isa(i)).exponentials(y.data(), x.data(), int64_t(x.size()));
        CHECK(y[0] == 1);
        CHECK(y[1] == 1);
        CHECK(y[2] == 0);
        CHECK(y[3] == INFINITY);
        CHECK(std::isnan(y[4]));
        CHECK(std::isfinite(y[5]));
        CHECK(y[6] == INFINITY);
        CHECK(y[7] > 0);
        CHECK(y[8] == 0);
        CHECK(y[9] == INFINITY);
        CHECK(y[10] == 0);
        CHECK(y[11] == 1);
    }
}

TEST_CASE("gelu: every instruction set against the reference, 1e-7 of the result's size") {
    const Ops<double>& ref = reference_ops();
    each_isa([&](const Ops<float>& op) {
        double forward = 0, backward = 0;
        const int n = 1 << 16;
        for (double from = -16; from < 16; from += 2) {
            std::vector<float> x(n), dy(n, 1.0f), y(n), dx(n);
            for (int j = 0; j < n; j++) x[size_t(j)] = float(from + 2.0 * j / n);
            std::vector<double> wy(n), wdx(n);
            ref.gelu_forward(wy.data(), doubles(x).data(), n);
            ref.gelu_backward(wdx.data(), doubles(dy).data(), doubles(x).data(), n);
            op.gelu_forward(y.data(), x.data(), n);
            op.gelu_backward(dx.data(), dy.data(), x.data(), n);
            for (size_t j = 0; j < size_t(n); j++) {
                forward = std::fmax(forward, std::fabs(y[j] - wy[j]) / std::fmax(std::fabs(double(x[j])), 1e-3));
                backward = std::fmax(backward, std::fabs(dx[j] - wdx[j]));
            }
        }
        CHECK(forward < 1.5e-7);
        CHECK(backward < 5e-7);
    });
}

TEST_CASE("gelu: sizes, guards, far inputs, in place") {
    const Ops<double>& ref = reference_ops();
    for (int n : {1, 2, 7, 31, 65, 4095, 4097, 20000}) {
        CAPTURE(n);
        auto x = normal<float>(n, 1, 3), dy = normal<float>(n, 2);
        x[0] = 1e4f;
        x[size_t(n / 2)] = -1e4f;
        std::vector<double> y(n), dx(n);
        ref.gelu_forward(y.data(), doubles(x).data(), n);
        ref.gelu_backward(dx.data(), doubles(dy).data(), doubles(x).data(), n);
        each_isa([&](const Ops<float>& op) {
            Guarded<float> fy(n), fdx(n), in_place(n);
            memcpy(in_place.data(), dy.data(), dy.size() * sizeof(float));
            op.gelu_forward(fy, x.data(), n);
            op.gelu_backward(fdx, dy.data(), x.data(), n);
            op.gelu_backward(in_place, in_place, x.data(), n);
            for (int64_t i = 0; i < n; i++) {
                bool good = std::fabs(fy[i] - y[size_t(i)]) <= 2e-7 * (1 + std::fabs(y[size_t(i)])) &&
                            std::fabs(fdx[i] - dx[size_t(i)]) <= 5e-7 * (1 + std::fabs(dy[size_t(i)]));
                if (!good) CHECK(fy[i] == y[size_t(i)]);
            }
            CHECK(memcmp(in_place.data(), fdx.data(), size_t(n) * sizeof(float)) == 0);
            CHECK((fy.intact() && fdx.intact() && in_place.intact()));
        });
    }
    each_isa([&](const Ops<float>& op) {
        float x[3] = {1, NAN, 2}, y[3];
        op.gelu_forward(y, x, 3);
        CHECK((!std::isnan(y[0]) && std::isnan(y[1]) && !std::isnan(y[2])));
        CHECK(same_bits(20000, [&](float* out) { op.gelu_forward(out, normal<float>(20000, 1).data(), 20000); }));
    });
}

TEST_CASE("gelu: gradients of the reference") {
    const Ops<double>& op = reference_ops();
    const int n = 40;
    auto x = normal<double>(n, 1, 2), g = normal<double>(n, 2);
    std::vector<double> y(n), dx(n);
    op.gelu_backward(dx.data(), g.data(), x.data(), n);
    auto loss = [&] {
        op.gelu_forward(y.data(), x.data(), n);
        return dot(y, g);
    };
    CHECK(gradient_error(x.data(), dx.data(), n, loss) < 1e-7);
}

#include "tools/selftest/checks.h"
#include "cuda_test.h"

namespace {
template <class F> void both(F f) {
    f(cuda_ops<float>(Dtype::fp32));
    f(cuda_ops<bf16>(Dtype::bf16));
}
// A Step as device memory takes it.
Numbers words(const Step& s) {
    Numbers w(size_t(ceil_div(sizeof s, 8)));
    memcpy(w.data(), &s, sizeof s);
    return w;
}
Step* address(Array<double>& step) { return reinterpret_cast<Step*>(static_cast<double*>(step)); }
const std::vector<int64_t> SIZES = {1, 2, 3, 4, 5, 7, 8, 31, 33, 63, 64, 65, 127, 1023, 1024, 1025, 4099};
}   // namespace

TEST_CASE("cuda adamw: against the reference") {
    each_schedule([] {
        for (int64_t n : SIZES)
            both([&](auto& op) {
                EXPECT(check_adamw(op, n, false));
                EXPECT(check_adamw(op, n, true));
            });
    });
}

TEST_CASE("cuda adamw: stochastic rounding is unbiased, and adds the bits that are promised") {
    EXPECT(check_adamw(cuda_ops<bf16>(Dtype::bf16), 100003, false));
}

TEST_CASE("cuda adamw: NaN and infinity stay where they are") {
    auto run = [](auto& op, auto zero, bool with_master) {
        typedef decltype(zero) T;
        const Memory m(op);
        const int n = 130;
        Numbers gradient = random_normal(n, 1);
        gradient[67] = NAN, gradient[129] = INFINITY;
        Array<T> w(m, random_normal(n, 2));
        Array<float> master(m, random_normal(n, 2)), mean(m, Numbers(n, 0)), square(m, Numbers(n, 1)), dw(m, gradient);
        Array<uint8_t> decays(m, Numbers(3, 1));
        Step s = {};
        s.updates = 1, s.scale = s.m_scale = s.v_scale = 1;
        Array<double> step(m, words(s));
        op.adamw(w, with_master ? static_cast<float*>(master) : nullptr, mean, square, dw, decays, n, address(step),
                 {1e-2f, 0.9f, 0.95f, 1e-8f, 0.1f}, 1);
        const Numbers got = w.read();
        for (int i = 0; i < n; i++) CHECK(std::isnan(got[size_t(i)]) == (i == 67 || i == 129));
    };
    run(cuda_ops<float>(Dtype::fp32), 0.0f, false);
    run(cuda_ops<bf16>(Dtype::bf16), bf16(), false);
    run(cuda_ops<bf16>(Dtype::bf16), bf16(), true);
}

TEST_CASE("cuda sums: in double, of squares and of losses") {
    each_schedule([] {
        for (int64_t n : SIZES)
            both([&](auto& op) {
                EXPECT(check_sum_of_squares(op, n));
                EXPECT(check_add_losses(op, n));
            });
        for (int64_t n : {4095, 4096, 8191, 12290}) EXPECT(check_sum_of_squares(cuda_ops<float>(Dtype::fp32), n));
    });
}

TEST_CASE("cuda sums: as many blocks as there may be, and larger shares") {
    const Ops<float>& op = cuda_ops<float>(Dtype::fp32);
    const Memory m(op);
    for (int64_t n : {4096 * 1024, 4096 * 1024 + 4097}) {
        Numbers x(static_cast<size_t>(n));
        double sum = 0;
        for (size_t i = 0; i < x.size(); i++) x[i] = double(i % 7), sum += x[i] * x[i];
        Array<double> out(m, 1);
        op.sum_of_squares(out, Array<float>(m, x), n);
        CHECK(out.read()[0] == sum);
    }
    for (int64_t n : {8191, 8192, 20001}) EXPECT(check_add_losses(op, n));
}

TEST_CASE("cuda sums: the same bits in any order of threads; NaN and infinity come out") {
    const Ops<float>& op = cuda_ops<float>(Dtype::fp32);
    const Memory m(op);
    const int n = 9001;
    const Numbers x = random_normal(n, 1);
    std::vector<unsigned char> first;
    each_schedule([&] {
        Array<double> out(m, 1), total(m, Numbers{0});
        Array<float> ax(m, x);
        op.sum_of_squares(out, ax, n);
        op.add_losses(total, ax, n);
        auto bits = out.bits(), more = total.bits();
        bits.insert(bits.end(), more.begin(), more.end());
        if (first.empty()) first = bits;
        CHECK((bits == first));
    });
    for (int at : {0, 4095, 4096, n - 1}) {
        Array<double> out(m, 1);
        Numbers bad = x;
        bad[size_t(at)] = NAN;
        op.sum_of_squares(out, Array<float>(m, bad), n);
        CHECK(std::isnan(out.read()[0]));
        bad[size_t(at)] = -INFINITY;
        op.sum_of_squares(out, Array<float>(m, bad), n);
        CHECK(out.read()[0] == INFINITY);
    }
}

TEST_CASE("cuda gate: the reference's verdicts") {
    each_schedule([] {
        for (int n : {1, 2, 31, 32, 33, 150}) both([&](auto& op) { EXPECT(check_gate(op, n)); });
    });
}

TEST_CASE("cuda casts: exact, of any bits") {
    each_schedule([] {
        for (int64_t n : SIZES) both([&](auto& op) { EXPECT(check_casts(op, n)); });
    });
}

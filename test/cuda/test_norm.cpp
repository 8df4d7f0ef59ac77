#include "tools/selftest/checks.h"
#include "cuda_test.h"

namespace {
template <class F> void both(F f) {
    f(cuda_ops<float>(Dtype::fp32), 0.0f);
    f(cuda_ops<bf16>(Dtype::bf16), bf16());
}
void shapes(std::vector<int> Cs, std::vector<int> Ns) {
    for (int C : Cs)
        for (int N : Ns)
            both([&](auto& op, auto) {
                EXPECT(check_layernorm_forward(op, N, C));
                EXPECT(check_layernorm_backward(op, N, C));
            });
}
}   // namespace

TEST_CASE("cuda layernorm: against the reference, rows of a warp") {
    shapes({1, 2, 7, 8, 31, 33, 96, 100, 256, 768, 769}, {1, 2, 7, 33});
    each_schedule([] { shapes({8, 33, 264, 768}, {7}); });
}

// Each width of a thread's share, forward (1 to 8 vectors a lane, then blocks) and backward (1, 2, 4), and no vectors.
TEST_CASE("cuda layernorm: against the reference, long rows") {
    each_schedule([] { shapes({1600, 2056}, {5}); });
    shapes({128, 384, 512, 640, 1000, 1280, 1792, 2048, 3000, 3584, 5000, 7168, 16392}, {5});
}

TEST_CASE("cuda layernorm: many rows, each block takes several times four") {
    const int rows = 4 * 512 * 2 + 4 * 3 + 1;
    for (uint64_t seed : {1, 2}) {    // in thread order no warp is ahead
        cuda_schedule(seed);
        EXPECT(check_layernorm_backward(cuda_ops<float>(Dtype::fp32), rows, 136));
    }
    cuda_schedule(0);
    EXPECT(check_layernorm_backward(cuda_ops<bf16>(Dtype::bf16), rows, 16));
    EXPECT(check_layernorm_backward(cuda_ops<float>(Dtype::fp32), 1030, 7));
    EXPECT(check_layernorm_forward(cuda_ops<bf16>(Dtype::bf16), rows, 7));
}

TEST_CASE("cuda layernorm: the same bits in any order of threads") {
    both([](auto& op, auto zero) {
        typedef decltype(zero) T;
        struct Shape { int N, C; };
        for (Shape s : {Shape{37, 776}, {9, 101}, {2, 2400}}) {
            const int N = s.N, C = s.C;
            const Memory m(op);
            const int64_t n = int64_t(N) * C;
            const Numbers x = random_normal(n, 1), w = random_normal(C, 2), start = random_normal(n, 3);
            std::vector<unsigned char> first;
            each_schedule([&] {
                Array<T> ax(m, x), aw(m, w), y(m, n), dx(m, start);
                Array<Grad<T>> dw(m, w), db(m, w);
                Array<float> mean(m, N), rstd(m, N);
                op.layernorm_forward(y, mean, rstd, ax, aw, aw, 1e-5f, N, C);
                op.layernorm_backward(dx, dw, db, y, ax, aw, mean, rstd, N, C);
                std::vector<unsigned char> bits = y.bits();
                for (auto more : {mean.bits(), rstd.bits(), dx.bits(), dw.bits(), db.bits()})
                    bits.insert(bits.end(), more.begin(), more.end());
                if (first.empty()) first = bits;
                CHECK((bits == first));
            });
        }
    });
}

TEST_CASE("cuda layernorm: rows far from zero keep their variance") {
    const Ops<float>& op = cuda_ops<float>(Dtype::fp32);
    const Memory m(op);
    for (int C : {96, 101, 4096}) {
        Numbers x = random_normal(2 * C, 1);
        for (double& v : x) v = double(float(v + 1000));
        Numbers y(x.size()), ones(size_t(C), 1), zeros(size_t(C), 0);
        std::vector<float> mean(2), rstd(2);
        reference_ops().layernorm_forward(y.data(), mean.data(), rstd.data(), x.data(), ones.data(), zeros.data(),
                                          1e-5f, 2, C);
        Array<float> ay(m, 2 * C), ax(m, x), aw(m, ones), ab(m, zeros), amean(m, 2), arstd(m, 2);
        op.layernorm_forward(ay, amean, arstd, ax, aw, ab, 1e-5f, 2, C);
        Check check;
        check.expect("y", ay, y, 2e-4);    // the mean is off by a few times 1000 * 2^-24
        check.expect("rstd", arstd, Numbers(rstd.begin(), rstd.end()), 1e-6);
        EXPECT(check);
    }
}

TEST_CASE("cuda layernorm: NaN stays in its row, and reaches dw and db") {
    both([](auto& op, auto zero) {
        typedef decltype(zero) T;
        const int N = 6, C = 72;
        const Memory m(op);
        Numbers x = random_normal(N * C, 1);
        x[3 * C + 5] = NAN;
        Array<T> ax(m, x), aw(m, random_normal(C, 2)), y(m, N * C), dx(m, random_normal(N * C, 3));
        Array<Grad<T>> dw(m, Numbers(size_t(C), 0)), db(m, Numbers(size_t(C), 0));
        Array<float> mean(m, N), rstd(m, N);
        op.layernorm_forward(y, mean, rstd, ax, aw, aw, 1e-5f, N, C);
        op.layernorm_backward(dx, dw, db, aw, ax, aw, mean, rstd, 1, C);    // row 0 alone
        const Numbers got = y.read();
        for (int i = 0; i < N * C; i++) CHECK(std::isnan(got[size_t(i)]) == (i / C == 3));
        for (double v : dw.read()) CHECK(!std::isnan(v));
        Array<T> dy(m, random_normal(N * C, 4));
        op.layernorm_backward(dx, dw, db, dy, ax, aw, mean, rstd, N, C);
        const Numbers gradient = dx.read();
        for (int i = 0; i < N * C; i++) CHECK(std::isnan(gradient[size_t(i)]) == (i / C == 3));
        for (double v : dw.read()) CHECK(std::isnan(v));
        for (double v : db.read()) CHECK(!std::isnan(v));
    });
}

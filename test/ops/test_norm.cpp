#include "ops.h"

#include "tools/selftest/norm.h"

namespace {
void shapes(std::vector<int> Cs, std::vector<int> Ns) {
    each_table([&](auto& op) {
        for (int C : Cs)
            for (int N : Ns) {
                EXPECT(check_layernorm_forward(op, N, C));
                EXPECT(check_layernorm_backward(op, N, C));
            }
    });
}
}   // namespace

TEST_CASE("layernorm: against the reference, rows of a warp") {
    shapes({1, 2, 3, 7, 8, 31, 32, 33, 96, 100, 256, 768, 769}, {1, 2, 7, 31, 33, 65});
    each_order([] { shapes({8, 33, 264, 768}, {7}); });
}

// Each width of a thread's share on a GPU, forward (1 to 8 vectors a lane, then blocks) and backward (1, 2, 4), and no
// vectors.
TEST_CASE("layernorm: against the reference, long rows") {
    each_order([] { shapes({1600, 2056}, {5}); });
    shapes({128, 384, 512, 640, 1000, 1280, 1792, 2048, 3000, 3584, 5000, 7168, 16392}, {5});
}

TEST_CASE("layernorm: many rows, each block takes several times four") {
    const int rows = 4 * 512 * 2 + 4 * 3 + 1;
    each_table([&](auto& op) {
        for (int order : {1, 2}) {    // in thread order no warp is ahead
            set_order(order);
            EXPECT(check_layernorm_backward(op, rows, 136));
        }
        set_order(0);
        EXPECT(check_layernorm_backward(op, rows, 16));
        EXPECT(check_layernorm_backward(op, 1030, 7));
        EXPECT(check_layernorm_forward(op, rows, 7));
    });
}

TEST_CASE("layernorm: the same bits in any order") {
    struct Shape { int N, C; };
    each_table([]<class T, class P>(const Ops<T, P>& op) {
        for (auto [N, C] : {Shape{37, 776}, {9, 101}, {2, 2400}, {77, 100}}) {
            const Memory m(op);
            const int64_t n = int64_t(N) * C;
            Array<T> x(m, random_normal(n, 1));
            const Numbers weights = random_normal(C, 2), start = random_normal(n, 3);
            Array<P> w(m, weights);
            expect_same_bits([&] {
                Array<T> y(m, n), dx(m, start);
                Array<Grad<P>> dw(m, weights), db(m, weights);
                Array<float> mean(m, N), rstd(m, N);
                op.layernorm_forward(y, mean, rstd, x, w, w, 1e-5f, N, C);
                op.layernorm_backward(dx, dw, db, y, x, w, mean, rstd, N, C);
                return bits_of(y, mean, rstd, dx, dw, db);
            });
        }
    });
}

TEST_CASE("layernorm: rows far from zero keep their variance") {
    each_table([]<class T, class P>(const Ops<T, P>& op) {
        if (sizeof(T) == 2) return;    // a bf16 near 1000 is a multiple of 4
        const Memory m(op);
        for (int C : {96, 101, 4096}) {
            Numbers x = random_normal(2 * C, 1);
            for (double& v : x) v = double(float(v + 1000));
            Numbers y(x.size()), ones(size_t(C), 1), zeros(size_t(C), 0);
            std::vector<float> mean(2), rstd(2);
            reference_ops().layernorm_forward(y.data(), mean.data(), rstd.data(), x.data(), ones.data(), zeros.data(),
                                              1e-5f, 2, C);
            Array<T> ay(m, 2 * C), ax(m, x);
            Array<P> aw(m, ones), ab(m, zeros);
            Array<float> amean(m, 2), arstd(m, 2);
            op.layernorm_forward(ay, amean, arstd, ax, aw, ab, 1e-5f, 2, C);
            Check check;
            check.expect("y", ay, y, 2e-4);    // the mean is off by a few times 1000 * 2^-24
            check.expect("rstd", arstd, Numbers(rstd.begin(), rstd.end()), 1e-6);
            EXPECT(check);
        }
    });
}

TEST_CASE("layernorm: NaN stays in its row, and reaches dw and db") {
    each_table([]<class T, class P>(const Ops<T, P>& op) {
        const int N = 6, C = 72;
        const Memory m(op);
        Numbers numbers = random_normal(N * C, 1);
        numbers[3 * C + 5] = NAN;
        Array<T> x(m, numbers), y(m, N * C), dx(m, random_normal(N * C, 3)), dy(m, random_normal(N * C, 4));
        Array<P> w(m, random_normal(C, 2));
        Array<Grad<P>> dw(m, Numbers(size_t(C), 0)), db(m, Numbers(size_t(C), 0));
        Array<float> mean(m, N), rstd(m, N);
        auto in_its_row = [](int64_t i) { return i / C == 3; };
        op.layernorm_forward(y, mean, rstd, x, w, w, 1e-5f, N, C);
        expect_nan(y.read(), in_its_row);
        op.layernorm_backward(dx, dw, db, dy, x, w, mean, rstd, 1, C);    // row 0 alone
        expect_nan(dw.read(), [](int64_t) { return false; });
        op.layernorm_backward(dx, dw, db, dy, x, w, mean, rstd, N, C);
        expect_nan(dx.read(), in_its_row);
        expect_nan(dw.read(), [](int64_t) { return true; });
        expect_nan(db.read(), [](int64_t) { return false; });
    });
}

TEST_CASE("layernorm: gradients of the reference") {
    const Ops<double>& op = reference_ops();
    const int N = 3, C = 7, n = N * C;
    Numbers x = random_normal(n, 1), w = random_normal(C, 2), b = random_normal(C, 3), g = random_normal(n, 4);
    Numbers y(n), dx(n), dw(C), db(C);
    std::vector<float> mean(N), rstd(N);
    auto loss = [&] {
        op.layernorm_forward(y.data(), mean.data(), rstd.data(), x.data(), w.data(), b.data(), 1e-5f, N, C);
        return dot(y, g);
    };
    loss();
    op.layernorm_backward(dx.data(), dw.data(), db.data(), g.data(), x.data(), w.data(), mean.data(), rstd.data(), N,
                          C);
    CHECK(gradient_error(x, dx, loss) < 1e-5);    // the statistics are float
    CHECK(gradient_error(w, dw, loss) < 1e-5);
    CHECK(gradient_error(b, db, loss) < 1e-5);
}

#include "ops.h"

#include "tools/selftest/norm.h"

namespace {
void shapes(std::vector<int> Cs, std::vector<int> Ns, std::vector<NormForm> forms = {LAYERNORM, RMSNORM}) {
    each_table([&](auto& op) {
        for (int C : Cs)
            for (int N : Ns) {
                for (NormForm form : forms) {
                    EXPECT(check_norm_forward(op, N, C, form));
                    EXPECT(check_stream_norm_forward(op, N, C, form));
                    EXPECT(check_norm_backward(op, N, C, form));
                }
            }
    });
}
}    // namespace

TEST_CASE("norm: against the reference, rows of a warp") {
    shapes({1, 2, 3, 7, 8, 31, 32, 33, 96, 100, 256, 768, 769}, {1, 2, 7, 31, 33, 65});
    each_order([] { shapes({8, 33, 264, 768}, {7}); });
}

// C for each of a GPU's kernels: forward with 1 to 8 vectors per lane, then a block per row;
// backward with 1, 2 and 4 vectors; and C that fills no vectors.
TEST_CASE("norm: against the reference, long rows") {
    each_order([] { shapes({1600, 2056}, {5}); });
    shapes({128, 384, 512, 640, 1000, 1280, 1792, 2048, 3000, 3584, 5000, 7168, 16392}, {5});
    shapes({384, 512, 1792, 3000, 5000}, {5}, {{{}, true, false}});    // neither LayerNorm's nor RMSNorm's own kernels
}

TEST_CASE("norm: many rows, each block takes several times four") {
    const int rows = 4 * 512 * 2 + 4 * 3 + 1;
    each_table([&](auto& op) {
        for (int order : {1, 2}) {    // not thread order: warps run ahead
            set_order(order);
            EXPECT(check_norm_backward(op, rows, 136));
            EXPECT(check_norm_backward(op, rows, 136, RMSNORM));
        }
        set_order(0);
        EXPECT(check_norm_backward(op, rows, 16));
        EXPECT(check_norm_backward(op, 1600, 640));    // a warp has a second row
        EXPECT(check_norm_backward(op, 1100, 1000));
        EXPECT(check_norm_backward(op, 1030, 7, RMSNORM));
        EXPECT(check_norm_forward(op, rows, 7));
    });
}

TEST_CASE("norm: with and without weights, biases and what is added to weights") {
    in_each_order([](auto& op) {
        for (NormForm form : NORM_FORMS)
            for (int C : {1, 7, 64, 200, 640, 1000, 1032}) {
                EXPECT(check_norm_forward(op, 5, C, form));
                EXPECT(check_norm_backward(op, 67, C, form));
            }
    });
}

TEST_CASE("norm: x plus a multiple of b") {
    in_each_order([](auto& op) {
        for (int64_t n : {1, 3, 8, 17, 64, 1025, 8191, 8193, 20001})
            for (Sum sum : {Sum::apart, Sum::without, Sum::in_x, Sum::in_b})
                for (int64_t first : {-1, 0, 3, 100})
                    EXPECT(check_add_scaled(op, n, sum, first < 0 ? Dropout() : Dropout{0.3f, 7, first}));
    });
}

TEST_CASE("norm: dropout of products' inputs") {
    in_each_order([](auto& op) {
        for (int64_t n : {1, 3, 8, 17, 64, 1025, 8193})
            for (int64_t first : {0, 3, 100}) EXPECT(check_drop_inputs(op, n, {0.3f, 7, first}));
    });
}

TEST_CASE("norm: the same bits in any order") {
    each_table([](auto& op) {
        for (auto [N, C] : {std::pair{37, 776}, {9, 101}, {2, 2400}, {77, 100}})
            expect_same_bits([&, N = N, C = C] {
                return bits_of({check_norm_forward(op, N, C), check_norm_backward(op, N, C),
                                check_stream_norm_forward(op, N, C, RMSNORM), check_norm_backward(op, N, C, RMSNORM)});
            });
    });
}

TEST_CASE("norm: rows far from zero keep their variance") {
    each_table([]<class T, class P>(const Ops<T, P>& op) {
        if (sizeof(T) == 2) return;    // bf16 numbers near 1000: multiples of 4
        for (int C : {96, 101, 4096}) {
            Numbers numbers = random_normal(2 * C, 1);
            for (double& v : numbers) v += 1000;
            Dual<T> x(op, numbers), y(op, 2 * C);
            Dual<P> w(op, Numbers(size_t(C), 1)), b(op, Numbers(size_t(C), 0));
            Statistics mean(op, 2), rstd(op, 2);
            both(op, [&](auto& table, auto at) {
                table.stream_norm_forward(at(y), at(mean), at(rstd), at(x), at(w), at(b), {}, 2, C);
            });
            Check check;
            check.expect("y", y, 2e-4);    // error of the mean: some 1000 * 2^-24
            check.expect("rstd", rstd, 1e-6);
            EXPECT(check);
        }
    });
}

TEST_CASE("norm: NaN stays in its row, and reaches dw and db") {
    each_table([]<class T, class P>(const Ops<T, P>& op) {
        const int N = 6, C = 72;
        Numbers numbers = random_normal(N * C, 1);
        numbers[3 * C + 5] = NAN;
        auto in_its_row = [](int64_t i) { return i / C == 3; };
        for (NormForm form : {LAYERNORM, RMSNORM}) {
            CAPTURE(form.norm.rms);
            Array<InputType<T, P>> y(op, N * C);
            Array<T> x(op, numbers), dx(op, random_normal(N * C, 3)), dy(op, random_normal(N * C, 4));
            Array<P> w(op, random_normal(C, 2));
            Array<Grad<P>> dw(op, Numbers(size_t(C), 0)), db(op, Numbers(size_t(C), 0));
            Array<float> mean(op, N), rstd(op, N);
            auto backward = [&](int rows) {
                op.norm_backward(dx, dw, or_null(form.b, db), dy, x, w, or_null(form.b, mean), rstd, form.norm, rows,
                                 C);
            };
            op.norm_forward(y, or_null(form.b, mean), rstd, x, w, or_null(form.b, w), form.norm, N, C);
            expect_nan(y.read(), in_its_row);
            backward(1);    // row 0 alone
            expect_nan(dw.read(), [](int64_t) { return false; });
            backward(N);
            expect_nan(dx.read(), in_its_row);
            expect_nan(dw.read(), [](int64_t) { return true; });
            expect_nan(db.read(), [](int64_t) { return false; });
        }
    });
}

TEST_CASE("norm: gradients of the reference") {
    const Ops<double>& op = reference_ops();
    const int N = 3, C = 7, n = N * C;
    for (NormForm form : NORM_FORMS) {
        Numbers x = random_normal(n, 1), w = random_normal(C, 2), b = random_normal(C, 3), g = random_normal(n, 4);
        Numbers y(n), dx(n), dw(C), db(C);
        std::vector<float> means(N), rstd(N);
        float* mean = form.norm.rms ? nullptr : means.data();
        double *weights = form.w ? w.data() : nullptr, *biases = form.b ? b.data() : nullptr;
        auto loss = [&] {
            op.norm_forward(y.data(), mean, rstd.data(), x.data(), weights, biases, form.norm, N, C);
            return dot(y, g);
        };
        loss();
        op.norm_backward(dx.data(), form.w ? dw.data() : nullptr, form.b ? db.data() : nullptr, g.data(), x.data(),
                         weights, mean, rstd.data(), form.norm, N, C);
        CHECK(gradient_error(x, dx, loss) < 1e-5);    // the statistics are float
        if (form.w) CHECK(gradient_error(w, dw, loss) < 1e-5);
        if (form.b) CHECK(gradient_error(b, db, loss) < 1e-5);
    }
}

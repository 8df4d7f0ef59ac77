#include "ops.h"

#include "tools/selftest/linear.h"

namespace {
constexpr Residual RESIDUALS[] = {Residual::none, Residual::apart, Residual::in_y};
struct Shape {
    int N, C, OC;
};

// Each optional argument is null for some shape of each list.
template <class T, class P> void each_use(const Ops<T, P>& op, Dtype dtype, Shape s, int variant) {
    for (int i : {0, 1}) EXPECT(check_linear_forward(op, s.N, s.C, s.OC, i, RESIDUALS[(variant + i) % 3], dtype));
    EXPECT(check_linear_backward(op, s.N, s.C, s.OC, variant % 3 > 0, variant % 4 > 0, dtype, variant % 5 > 1,
                                 variant % 7 > 0));
}
void each_shape(std::vector<Shape> shapes) {
    each_table(TablePart::products, [&](auto& op, const TestTable& t) {
        int variant = 0;
        for (Shape s : shapes) each_use(op, t.dtype, s, variant++);
    });
}
}    // namespace

TEST_CASE("linear: against the reference, small") {
    static constexpr int SMALL[][2] = {{1, 1},   {1, 8},    {3, 20},  {7, 1},   {7, 24},   {8, 7},   {24, 100},
                                       {31, 48}, {32, 257}, {33, 50}, {96, 24}, {96, 113}, {100, 96}};
    std::vector<Shape> shapes;
    for (int N : {1, 2, 3, 4, 5, 7, 31, 65})
        for (auto [C, OC] : SMALL) shapes.push_back({N, C, OC});
    each_shape(shapes);
}

TEST_CASE("linear: against the reference, long rows and several blocks") {
    // Few rows: in groups of one to four; too long for L1; as long as a multiple of a page
    const Shape few_rows[] = {{6, 70, 19},   {9, 33, 21},  {16, 40, 20},  {17, 40, 20},
                              {16, 512, 50}, {2, 4099, 7}, {4, 3072, 18}, {8, 3072, 5}};
    // Several blocks in each dimension; either operand may be the larger one
    const Shape blocks[] = {{300, 130, 500}, {20, 1700, 90}, {150, 70, 2500}, {1700, 33, 20}, {2500, 16, 16}};
    std::vector<Shape> shapes;
    for (int N : {1, 2, 3, 4, 5, 7, 31, 65}) shapes.push_back({N, 769, 50});
    for (const Shape& s : few_rows) shapes.push_back(s);
    for (const Shape& s : blocks) shapes.push_back(s);
    each_shape(shapes);
}

TEST_CASE("linear: a long row of weights is shared by warps") {
    in_each_order([]<class T, class P>(const Ops<T, P>& op) {
        for (int N : {1, 4})
            for (int C : {513, 600, 1032, 1504, 2056}) {
                EXPECT(check_linear_forward(op, N, C, 9, true, Residual::apart));
                EXPECT(check_linear_gelu_forward(op, N, C, 3));
            }
    });
}

TEST_CASE("linear: zeros outside of an adapter's blocks") {
    in_each_order([](auto& op) {
        EXPECT(check_keep_blocks(op, {1, {0, 7}, {0, 3}}, 7, 3));
        EXPECT(check_keep_blocks(op, {2, {0, 1, 2}, {0, 1, 2}}, 2, 2));
        EXPECT(check_keep_blocks(op, {3, {0, 20, 25, 31}, {0, 2, 2, 9}}, 31, 9));    // the second is empty
        EXPECT(check_keep_blocks(op, {3, {0, 300, 301, 640}, {0, 16, 17, 48}}, 640, 48));
    });
}

TEST_CASE("linear: norms of adapted rows") {
    in_each_order([](auto& op) {
        EXPECT(check_inverse_row_norms(op, {1, {0, 7}, {0, 3}}, 5));
        EXPECT(check_inverse_row_norms(op, {2, {0, 1, 2}, {0, 1, 2}}, 64));
        EXPECT(check_inverse_row_norms(op, {3, {0, 20, 25, 31}, {0, 2, 2, 9}}, 33));    // the second has no adapter
        EXPECT(check_inverse_row_norms(op, {3, {0, 64, 65, 130}, {0, 16, 17, 48}}, 777));
    });
}

TEST_CASE("linear: columns times magnitudes") {
    in_each_order([](auto& op) {
        for (int N : {1, 3, 65, 300})
            for (int C : {1, 7, 64, 200}) {
                EXPECT(check_scale_columns_forward(op, N, C, true, false, false));
                EXPECT(check_scale_columns_forward(op, N, C, false, true, true));
                EXPECT(check_scale_columns_backward(op, N, C, false));
                EXPECT(check_scale_columns_backward(op, N, C, true));
            }
        EXPECT(check_scale_columns_backward(op, 9, 40, false, true));
        EXPECT(check_scale_columns_backward(op, 8197, 3, true));    // 128 ranges of rows
    });
}

TEST_CASE("linear: sums over many rows") {
    in_each_order(TablePart::products, [](auto& op, const TestTable& t) {
        EXPECT(check_linear_backward(op, 33, 1, 40, false, true, t.dtype));
        EXPECT(check_linear_backward(op, 129, 1, 300, false, true, t.dtype));    // three ranges of rows on a GPU
        EXPECT(check_linear_backward(op, 8197, 1, 3, false, true, t.dtype));     // 128 ranges of more than 64 rows
    });
}

TEST_CASE("linear: with GELU, against the reference") {
    each_table(TablePart::products, [](auto& op, const TestTable& t) {
        if (!op.linear_gelu_forward) return;    // optional
        auto both_ways = [&](Shape s) {
            EXPECT(check_linear_gelu_forward(op, s.N, s.C, s.OC, t.dtype));
            EXPECT(check_linear_gelu_backward(op, s.N, s.C, s.OC, t.dtype));
            EXPECT(check_linear_gelu_forward(op, s.N, s.C, s.OC, t.dtype, false));
            EXPECT(check_linear_gelu_backward(op, s.N, s.C, s.OC, t.dtype, false, false));
            EXPECT(check_linear_gelu_backward(op, s.N, s.C, s.OC, t.dtype, true, false));
        };
        for (int N : {1, 3, 4, 5, 33})
            for (auto [C, OC] :
                 {std::pair{1, 1}, {1, 8}, {7, 24}, {8, 7}, {24, 100}, {33, 20}, {40, 90}, {96, 24}, {100, 96}})
                both_ways({N, C, OC});
        both_ways({49, 100, 130}), both_ways({200, 1700, 50});
    });
}

TEST_CASE("linear: gradients add to what is there, dx does not") {
    const int N = 6, C = 8, OC = 16;
    each_table(TablePart::products, []<class T, class P>(const Ops<T, P>& op) {
        Array<T> dx(op, N * C), dy(op, Numbers(N * OC, 1));
        Array<InputType<T, P>> x(op, Numbers(N * C, 1));
        Array<P> w(op, Numbers(OC * C, 0.5));
        Array<Grad<P>> dw(op, Numbers(OC * C, 100)), db(op, Numbers(OC, 1000));
        for (int times = 1; times <= 3; times++) {
            op.linear_backward(dx, {dw, true}, db, dy, x, w, N, C, OC, {});
            CHECK(dx.read() == Numbers(N * C, OC * 0.5));
            CHECK(dw.read() == Numbers(OC * C, 100 + times * N));
            CHECK(db.read() == Numbers(OC, 1000 + times * N));
        }
    });
}

TEST_CASE("linear: pointers of any alignment") {
    const int N = 9, C = 16, OC = 24;
    each_table([]<class T, class P>(const Ops<T, P>& op) {
        Dual<P> w(op, random_normal(OC * C, 2));
        for (int offset : {0, 1, 2, 4, 8, 0}) {
            Numbers numbers = random_normal(N * C + offset, 1);
            std::fill_n(numbers.begin(), offset, NAN);
            Dual<InputType<T, P>> x(op, numbers);
            Numbers start(size_t(N * OC + offset), NAN);    // unwritten elements stay NaN
            std::fill_n(start.begin(), offset, 1);
            Dual<T> y(op, start);
            both(op, [&](auto& table, auto at) {
                table.linear_forward(at(y) + offset, at(x) + offset, at(w), nullptr, nullptr, N, C, OC, {});
            });
            CHECK(Check::error_over_limit(y.read(), y.numbers, ROUNDING<T>) <= 1);
        }
    });
}

TEST_CASE("linear: NaN spoils its row or its column, of few rows as of many") {
    const int C = 40, OC = 30;
    const uint32_t all_ones = 0x7fffffff;    // integer rounding would make this NaN -0
    float nan;
    memcpy(&nan, &all_ones, 4);
    each_table(TablePart::products, [&]<class T, class P>(const Ops<T, P>& op) {
        for (int N : {1, 2, 3, 4, 6, 9, 20})
            for (double bad : {double(nan), double(INFINITY)}) {
                Numbers x = random_normal(N * C, 1), w = random_normal(OC * C, 2);
                x[size_t((N - 1) * C + 11)] = bad;
                w[size_t(7 * C + 39)] = double(nan);
                Array<InputType<T, P>> x_in(op, x);
                Array<T> y(op, N * OC);
                Array<P> w_in(op, w);
                op.linear_forward(y, x_in, w_in, nullptr, nullptr, N, C, OC, {});
                Numbers got = y.read();
                for (double& v : got)
                    if (std::isinf(v)) v = NAN;
                expect_nan(got, [&](int64_t i) { return i / OC == N - 1 || i % OC == 7; });
            }
    });
}

TEST_CASE("linear: the same bits each time and in any order") {
    each_table(TablePart::products, []<class T, class P>(const Ops<T, P>& op, const TestTable& t) {
        if (!t.same_bits) return;
        const Shape shapes[] = {{3, 24, 104},  {700, 24, 104}, {3, 200, 300},  {3, 3072, 70},    {13, 65, 83},
                                {64, 96, 288}, {33, 769, 50},  {2048, 16, 16}, {256, 384, 1152}, {512, 128, 65}};
        for (const Shape& s : shapes) {
            const int N = s.N, C = s.C, OC = s.OC;
            if (EVERY > 1 && int64_t(N) * C * OC > 3000000) continue;
            CAPTURE(N);
            CAPTURE(C);
            CAPTURE(OC);
            const Numbers dw_start = random_normal(int64_t(OC) * C, 9), db_start = random_normal(std::max(OC, C), 9);
            Array<InputType<T, P>> x(op, random_normal(N * C, 1));
            Array<T> dy(op, random_normal(N * OC, 4)), pre_in(op, random_normal(N * C, 5));
            Array<P> w(op, random_normal(int64_t(OC) * C, 2)), b(op, random_normal(OC, 3));
            expect_same_bits([&] {
                Array<InputType<T, P>> y(op, N * OC);
                Array<T> pre(op, N * OC), out(op, N * OC), dx(op, N * C), dpre(op, N * C);
                Array<Grad<P>> dw(op, dw_start), db(op, db_start), sum(op, db_start);
                op.linear_forward(out, x, w, b, dy, N, C, OC, {});
                op.linear_backward(dx, {dw, true}, db, dy, x, w, N, C, OC, {});
                if (op.linear_gelu_forward) op.linear_gelu_forward(y, pre, x, w, b, N, C, OC, {});
                if (op.linear_gelu_backward)
                    op.linear_gelu_backward(dpre, {dw, true}, db, sum, dy, x, w, pre_in, N, C, OC);
                return bits_of(out, y, pre, dx, dpre, dw, db, sum);
            });
        }
    });
}

TEST_CASE("linear: gradients of the reference") {
    const Ops<double>& op = reference_ops();
    const int N = 4, C = 3, OC = 5;
    Numbers x = random_normal(N * C, 1), w = random_normal(OC * C, 2), b = random_normal(OC, 3);
    Numbers r = random_normal(N * OC, 4), g = random_normal(N * OC, 5), y(N * OC), dx(N * C), dw(OC * C), db(OC);
    auto loss = [&] {
        op.linear_forward(y.data(), x.data(), w.data(), b.data(), r.data(), N, C, OC, {});
        return dot(y, g);
    };
    op.linear_backward(dx.data(), {dw.data(), true}, db.data(), g.data(), x.data(), w.data(), N, C, OC, {});
    CHECK(gradient_error(x, dx, loss) < 1e-8);
    CHECK(gradient_error(w, dw, loss) < 1e-8);
    CHECK(gradient_error(b, db, loss) < 1e-8);
    CHECK(gradient_error(r, g, loss) < 1e-8);
}

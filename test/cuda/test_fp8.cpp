// test_fp8.cpp - 8-bit floats against their definition; linear_forward and linear_backward in fp8
// against the reference: of the original factors, within the cost of rounding them, and of factors
// rounded by the definition, within the error of any product. Scales are per tensor and, on sm_90,
// also per block.
#include "layers/matmul/fp8.cuh"
#include "base/philox.h"

#include "cuda_test.h"
#include "tools/selftest/linear.h"

namespace {
// Value of a code: (-1)^s 2^(e - bias) (1 + m / 2^M), and with e = 0 (-1)^s 2^(1 - bias) m / 2^M.
template <class F> double meaning(int code) {
    const bool narrow = std::is_same_v<F, e5m2>;
    const int bits = narrow ? 2 : 3, bias = narrow ? 15 : 7, m = code % (1 << bits), e = code % 128 >> bits;
    const double sign = code < 128 ? 1 : -1, size = std::exp2(-bits) * m;
    if (narrow && e == 31) return m ? NAN : sign * INFINITY;
    if (!narrow && code % 128 == 127) return NAN;
    return sign * (e ? std::exp2(e - bias) * (1 + size) : std::exp2(1 - bias) * size);
}
// The nearest code that stands for a number; of two, the even one.
template <class F> int nearest(double x) {
    static const std::vector<double> all = [] {
        std::vector<double> numbers;
        for (int code = 0; code < 128; code++) numbers.push_back(meaning<F>(code));
        return numbers;
    }();
    if (std::isnan(x)) return 127;
    int best = 0;
    for (int code = 0; code < 128; code++) {
        const double at = all[size_t(code)], size = std::min(std::fabs(x), std::is_same_v<F, e5m2> ? 57344.0 : 448.0);
        const double d = std::fabs(at - size), old = std::fabs(all[size_t(best)] - size);
        if (std::isfinite(at) && (d < old || (d == old && code % 2 == 0))) best = code;
    }
    return best + (std::signbit(x) ? 128 : 0);
}
// x (R,C) rounded to F and scaled back. Each block of `rows` x `columns` numbers shares a scale.
template <class F> Numbers cast(const Numbers& x, int R, int C, int rows, int columns) {
    const float largest = std::is_same_v<F, e5m2> ? 57344 : 448;
    Numbers out(x.size());
    for (int r0 = 0; r0 < R; r0 += rows)
        for (int c0 = 0; c0 < C; c0 += columns) {
            auto each_number = [&](auto f) {
                for (int r = r0; r < std::min(R, r0 + rows); r++)
                    for (int c = c0; c < std::min(C, c0 + columns); c++) f(size_t(r) * size_t(C) + size_t(c));
            };
            float most = 0;
            each_number([&](size_t i) { most = std::max(most, std::fabs(float(x[i]))); });
            const float factor = most > 0 ? std::min(largest / most, 0x1p126f) : 1;
            each_number(
                [&](size_t i) { out[i] = meaning<F>(nearest<F>(double(float(x[i]) * factor))) / double(factor); });
        }
    return out;
}

Ops<bf16> fp8_table(Dtype dtype = Dtype::fp8) { return cuda_ops<bf16>(dtype); }

struct Products {
    Numbers y, dx, dw, db;
};
// dw is added to start, or assigned if start is empty.
Products products(const Ops<bf16>& op, const Numbers& x, const Numbers& w, const Numbers& b, const Numbers& dy,
                  const Numbers& start, int N, int C, int OC) {
    const Memory m(op);
    Array<bf16> x_in(m, x), w_in(m, w), b_in(m, b), dy_in(m, dy), y(m, int64_t(N) * OC), dx(m, int64_t(N) * C);
    Array<float> dw(m, start.empty() ? Numbers(size_t(C) * size_t(OC), NAN) : start), db(m, Numbers(size_t(OC), 0));
    op.linear_forward(y, x_in, w_in, b_in, nullptr, N, C, OC, Precision::fp8);
    op.linear_backward(dx, {dw, !start.empty()}, db, dy_in, x_in, w_in, N, C, OC, Precision::fp8);
    for (const Array<bf16>* a : {&x_in, &w_in, &b_in, &dy_in, &y, &dx}) CHECK(a->intact());
    for (const Array<float>* a : {&dw, &db}) CHECK(a->intact());
    return {y.read(), dx.read(), dw.read(), db.read()};
}
Numbers halves(int64_t n, uint64_t stream, double scale) { return rounded<bf16>(random_normal(n, stream, scale)); }

// Tensor cores keep some 14 bits of sums of fp8 products. A result adds a few such sums, each
// truncated by less than 2^-13.
constexpr double FP8_SUMS = 0x1p-12;

// Scales each row, column and 128-block differently, so that a product with another row's or
// block's scale is wrong.
Numbers uneven(Numbers x, int C) {
    for (size_t i = 0; i < x.size(); i++) {
        const size_t r = i / size_t(C), c = i % size_t(C);
        x[i] *= 1 + double(r % 5 + c % 3 + 2 * (r / 128) + 3 * (c / 128));
    }
    return x;
}

void check_rounded(Dtype dtype, int N, int C, int OC, double x_scale, double w_scale, double dy_scale, bool add) {
    CAPTURE(int(dtype));
    CAPTURE(N);
    CAPTURE(C);
    CAPTURE(OC);
    CAPTURE(x_scale);
    Numbers x = halves(int64_t(N) * C, 1, x_scale), w = halves(int64_t(OC) * C, 2, w_scale);
    Numbers dy = halves(int64_t(N) * OC, 3, dy_scale), b = halves(OC, 4, x_scale * w_scale);
    x = uneven(x, C), w = uneven(w, C), dy = uneven(dy, OC);
    auto make_largest = [](Numbers& v, size_t at, double factor) {
        double most = 0;
        for (double number : v) most = std::max(most, std::fabs(number));
        v[at] = factor * most, v = rounded<bf16>(v);
    };
    make_largest(x, x.size() - 1, -6), make_largest(w, w.size() / 4 * 3, 5), make_largest(dy, 0, 8);
    const Numbers start = add ? halves(int64_t(OC) * C, 5, dy_scale * x_scale) : Numbers();
    const Products got = products(fp8_table(dtype), x, w, b, dy, start, N, C, OC);
    const bool blocks = dtype == Dtype::fp8_block;
    auto narrow = [&](const Numbers& v, int R, int columns, int block_rows, int block_columns) {
        return blocks ? cast<e4m3>(v, R, columns, block_rows, block_columns) : cast<e4m3>(v, R, columns, R, columns);
    };
    auto narrow_dy = [&](int block_rows, int block_columns) {
        return blocks ? narrow(dy, N, OC, block_rows, block_columns) : cast<e5m2>(dy, N, OC, N, OC);
    };
    const Numbers x8 = narrow(x, N, C, 1, 128), w8 = narrow(w, OC, C, 128, 128), dy8 = narrow_dy(1, 128);
    const Numbers x_turned = narrow(x, N, C, 128, 1), dy_turned = narrow_dy(128, 1);
    Numbers y(got.y.size()), dx(got.dx.size()), dw(add ? start : Numbers(got.dw.size())), db(got.db.size());
    Numbers none(std::max(got.dx.size(), size_t(OC))), other(got.dw.size());
    reference_ops().linear_forward(y.data(), x8.data(), w8.data(), b.data(), nullptr, N, C, OC, {});
    reference_ops().linear_backward(dx.data(), {other.data(), false}, none.data(), dy8.data(), x8.data(), w8.data(), N,
                                    C, OC, {});
    reference_ops().linear_backward(none.data(), {dw.data(), add}, none.data(), dy_turned.data(), x_turned.data(),
                                    w8.data(), N, C, OC, {});
    reference_ops().linear_backward(none.data(), {other.data(), false}, db.data(), dy.data(), x.data(), w.data(), N, C,
                                    OC, {});
    CHECK(Check::error_over_limit(got.y, y, product_limit<bf16, bf16>(Dtype::bf16, C)) <= 1);
    CHECK(Check::error_over_limit(got.dx, dx, product_limit<bf16, bf16>(Dtype::bf16, OC)) <= 1);
    CHECK(Check::error_over_limit(got.dw, dw, FP8_SUMS) <= 1);
    CHECK(Check::error_over_limit(got.db, db, 4 * product_limit<float, bf16>(Dtype::bf16, N)) <= 1);
}

template <class F> void check_format() {
    for (int code = 0; code < 256; code++) {
        CAPTURE(code);
        const double expected = meaning<F>(code), got = double(to_float(F{uint8_t(code)}));
        if (std::isnan(expected)) CHECK(std::isnan(got));
        else CHECK((got == expected && std::signbit(got) == std::signbit(expected)));
        if (!std::isfinite(expected)) continue;
        // The number itself, the tie with the next one, and the floats next to both.
        const double next = std::fabs(meaning<F>((code + 1) % 128));
        const double half = std::isfinite(next) ? (std::fabs(expected) + next) / 2 : 2 * std::fabs(expected);
        for (double at : {expected, std::copysign(half, expected)})
            for (float x : {float(at), std::nextafterf(float(at), INFINITY), std::nextafterf(float(at), -INFINITY)}) {
                CAPTURE(x);
                CHECK(int(from_float<F>(x).bits) == nearest<F>(double(x)));
            }
    }
    for (float x : {0.0f, -0.0f, 0x1p-149f, -0x1p-126f, 0x1p127f, -3e38f, INFINITY, -INFINITY, NAN, 448.0f, 464.0f,
                    480.0f, 57344.0f, 61440.0f, 65536.0f}) {
        CAPTURE(x);
        CHECK(int(from_float<F>(x).bits) == nearest<F>(double(x)));
    }
    for (uint64_t i = 0; i < 4000; i++) {    // random bit patterns; numbers in the type's range
        uint32_t u = philox(5, 1, i).v[0];
        float x;
        memcpy(&x, &u, 4);
        for (float v : {x, std::ldexp(float(philox_normal(5, 2, i)), int(u % 40) - 20)}) {
            CAPTURE(v);
            CHECK((int(from_float<F>(v).bits) == nearest<F>(double(v)) || std::isnan(v)));
        }
    }
}
}    // namespace

TEST_CASE("fp8: all codes, and rounding to nearest even, as the definition has them") {
    check_format<e4m3>();
    check_format<e5m2>();
}

TEST_CASE("fp8: products of factors that are rounded as the definition says") {
    NEED_FP8();
    for (const Dtype dtype : fp8_types()) {
        each_order([&] {
            check_rounded(dtype, 16, 16, 16, 1, 1, 1, true);
            check_rounded(dtype, 80, 48, 112, 1, 0.02, 1e-4, false);
            check_rounded(dtype, 64, 128, 64, 1e-30, 1e3, 1e-20, true);
            check_rounded(dtype, 144, 208, 32, 1e10, 1e-8, 1e4, false);
            check_rounded(dtype, 272, 144, 400, 1, 0.02, 1e-4, true);    // 3, 2 and 4 blocks, the last partial
        });
    }
    check_rounded(Dtype::fp8, 32, 4112, 528, 1, 0.1, 0.1, true);    // more numbers than one block's maximum covers
    if (cuda_device().major == 9) check_rounded(Dtype::fp8_block, 528, 80, 656, 1, 0.1, 0.1, false);
}

TEST_CASE("fp8: products within what rounding their factors may cost") {
    NEED_FP8();
    const struct {
        int N, C, OC;
    } shapes[] = {{16, 16, 16}, {32, 64, 48}, {64, 80, 144},  {240, 96, 16}, {17, 32, 48}, {32, 24, 48},
                  {48, 32, 40}, {3, 32, 48},  {16, 1040, 64}, {528, 16, 32}, {1, 1, 1}};
    int variant = 0;
    for (const Dtype dtype : fp8_types())
        for (auto [N, C, OC] : shapes) {
            const Ops<bf16> op = fp8_table(dtype);
            for (bool bias : {false, true})
                for (Residual r : {Residual::none, Residual::apart, Residual::in_y})
                    EXPECT(check_linear_forward(op, N, C, OC, bias, r, dtype));
            for (bool add : {false, true}) {
                variant++;
                EXPECT(check_linear_backward(op, N, C, OC, variant % 3 > 0, variant % 4 > 0, dtype, add));
            }
        }
}

static void check_wide(Dtype dtype) {
    const Ops<bf16> wide = cuda_ops<bf16>(Dtype::bf16), op = fp8_table(dtype);
    const struct {
        int N, C, OC;
        bool same;
    } shapes[] = {{17, 32, 48, true}, {32, 40, 48, true}, {32, 32, 56, true}, {32, 32, 48, false}};
    for (const auto& shape : shapes) {
        const int N = shape.N, C = shape.C, OC = shape.OC;
        CAPTURE(N);
        CAPTURE(C);
        CAPTURE(OC);
        const Numbers x = halves(N * C, 1, 1), w = halves(OC * C, 2, 1);
        const Numbers b = halves(OC, 3, 1), dy = halves(N * OC, 4, 1);
        const Products got = products(op, x, w, b, dy, {}, N, C, OC), other = products(wide, x, w, b, dy, {}, N, C, OC);
        CHECK((got.y == other.y) == shape.same);
        CHECK((got.dx == other.dx) == shape.same);
        CHECK((got.dw == other.dw) == shape.same);
        CHECK(got.db == other.db);
    }
    const Memory m(op);
    const int N = 32, C = 32, OC = 48;
    Array<bf16> x(m, halves(N * C + 1, 1, 1)), w(m, halves(OC * C, 2, 1)), y(m, N * OC), other(m, N * OC);
    op.linear_forward(y, x + 1, w, nullptr, nullptr, N, C, OC, Precision::fp8);
    wide.linear_forward(other, x + 1, w, nullptr, nullptr, N, C, OC, Precision::fp8);
    CHECK(y.bits() == other.bits());
}
TEST_CASE("fp8: sizes that are no multiples of 16, and odd addresses, have the bits of bf16") {
    NEED_FP8();
    for (const Dtype dtype : fp8_types()) check_wide(dtype);
}

TEST_CASE("fp8: zeros stay zeros, an infinity or a NaN makes all of the product NaN") {
    NEED_FP8();
    const int N = 80, C = 32, OC = 48;
    const Numbers x = halves(N * C, 1, 1), w = halves(OC * C, 2, 1), b = halves(OC, 3, 1), dy = halves(N * OC, 4, 1);
    auto all = [&](const Numbers& of, double value) {
        for (double v : of) {
            if (std::isnan(value) ? std::isnan(v) : v == value) continue;
            CAPTURE(v);
            CHECK(false);
            return;
        }
    };
    const Products zeros = products(fp8_table(), Numbers(size_t(N * C)), w, b, Numbers(size_t(N * OC)), {}, N, C, OC);
    for (int i = 0; i < N * OC; i++) CHECK(zeros.y[size_t(i)] == b[size_t(i % OC)]);
    all(zeros.dx, 0), all(zeros.dw, 0);
    for (double bad : {double(INFINITY), -double(INFINITY), double(NAN)}) {
        CAPTURE(bad);
        Numbers bad_x = x, bad_dy = dy, bad_w = w;
        bad_x[77] = bad_dy[1000] = bad_w[5] = bad;
        Products got = products(fp8_table(), bad_x, w, b, dy, {}, N, C, OC);
        all(got.y, NAN), all(got.dw, NAN);
        CHECK(std::isfinite(got.dx[0]));
        got = products(fp8_table(), x, bad_w, b, bad_dy, {}, N, C, OC);
        all(got.y, NAN), all(got.dx, NAN), all(got.dw, NAN);
    }
    // With x this small the scale, 448 over the largest |x|, overflows.
    const Products tiny = products(fp8_table(), Numbers(size_t(N * C), 0x1p-122), Numbers(size_t(OC * C), 0x1p20),
                                   Numbers(size_t(OC)), dy, {}, N, C, OC);
    CHECK(tiny.y[0] == doctest::Approx(32 * 0x1p-102).epsilon(1e-2));
}

TEST_CASE("fp8: with scales of blocks an infinity or a NaN reaches what its block does, and no more") {
    NEED_SM90();
    const int N = 144, C = 160, OC = 272;
    const Numbers x = halves(N * C, 1, 1), w = halves(OC * C, 2, 1), b = halves(OC, 3, 1), dy = halves(N * OC, 4, 1);
    // Expects NaN in exactly these rows and columns of a matrix.
    auto spoilt = [](const Numbers& v, int columns, auto rows_of, auto columns_of) {
        expect_nan(v, [&](int64_t i) { return rows_of(int(i / columns)) && columns_of(int(i % columns)); });
    };
    auto all = [](int) { return true; };
    auto none = [](int) { return false; };
    auto second = [](int i) { return i >= 128 && i < 256; };    // the second block
    for (double bad : {double(INFINITY), -double(INFINITY), double(NAN)}) {
        CAPTURE(bad);
        Numbers bad_x = x, bad_dy = dy, bad_w = w;
        bad_x[2 * C + 13] = bad_dy[3 * OC + 130] = bad_w[200 * C + 5] = bad;
        Products got = products(fp8_table(Dtype::fp8_block), bad_x, w, b, dy, {}, N, C, OC);
        spoilt(
            got.y, OC, [](int n) { return n == 2; }, all);
        spoilt(got.dx, C, none, all);
        spoilt(got.dw, C, all, [](int c) { return c == 13; });
        got = products(fp8_table(Dtype::fp8_block), x, w, b, bad_dy, {}, N, C, OC);
        spoilt(
            got.dx, C, [](int n) { return n == 3; }, all);
        spoilt(
            got.dw, C, [](int o) { return o == 130; }, all);
        got = products(fp8_table(Dtype::fp8_block), x, bad_w, b, dy, {}, N, C, OC);
        spoilt(got.y, OC, all, second);
        spoilt(got.dx, C, all, [](int c) { return c < 128; });
        spoilt(got.dw, C, none, all);
    }
    const Numbers zeros = products(fp8_table(Dtype::fp8_block), Numbers(x.size()), w, b, dy, {}, N, C, OC).y;
    for (int i = 0; i < N * OC; i++) CHECK(zeros[size_t(i)] == b[size_t(i % OC)]);
}

static void check_bits(Dtype dtype) {
    const Ops<bf16> op = fp8_table(dtype);
    const Memory m(op);
    const int N = 144, C = 80, OC = 208;
    Array<bf16> x(m, halves(N * C, 1, 1)), w(m, halves(OC * C, 2, 1)), b(m, halves(OC, 3, 1));
    Array<bf16> dy(m, halves(N * OC, 4, 1));
    std::vector<std::vector<unsigned char>> first;
    auto run = [&](bool record) {
        Array<bf16> y(m, N * OC), dx(m, N * C);
        Array<float> dw(m, Numbers(OC * C, 1)), db(m, Numbers(OC, 1));
        if (record) op.begin_capture();
        op.linear_forward(y, x, w, b, nullptr, N, C, OC, Precision::fp8);
        op.linear_backward(dx, {dw, true}, db, dy, x, w, N, C, OC, Precision::fp8);
        if (record) {
            void* graph = op.end_capture();
            op.launch_graph(graph);
            op.release_graph(graph);
        }
        const std::vector<std::vector<unsigned char>> bits = {y.bits(), dx.bits(), dw.bits(), db.bits()};
        if (first.empty()) first = bits;
        CHECK(bits == first);
    };
    each_order([&] { run(false), run(false), run(op.begin_capture != nullptr); });
}
TEST_CASE("fp8: the same bits in every schedule, and replayed") {
    NEED_FP8();
    for (const Dtype dtype : fp8_types()) check_bits(dtype);
}

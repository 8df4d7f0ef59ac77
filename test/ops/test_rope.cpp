#include "ops.h"

#include "tools/selftest/rope.h"

namespace {
typedef QkNormRope::QkNorm QkNorm;
struct Form {
    Heads h;
    QkNormRope t;
};
// Half and whole heads rotated, both orders of pairs, both QK-norms; head sizes without vectors.
const Form FORMS[] = {
    {{2, 2, 8}, {8}},
    {{4, 2, 64}, {64}},
    {{3, 1, 80}, {80, true}},
    {{2, 1, 20}, {8}},
    {{2, 2, 33}, {26, true}},
    {{1, 1, 2}, {2}},
    {{1, 1, 4}, {2, true}},
    {{4, 4, 96}, {24, false}},
    {{4, 2, 64}, {64, false, QkNorm::head}},
    {{4, 2, 128}, {128, false, QkNorm::head, 1e-6f, 1}},
    {{3, 3, 20}, {20, true, QkNorm::head, 1e-3f}},
    {{2, 1, 40}, {0, false, QkNorm::head}},
    {{4, 2, 64}, {64, false, QkNorm::all}},
    {{6, 3, 12}, {6, true, QkNorm::all, 1e-5f, -0.5f}},
    {{1, 1, 7}, {4, false, QkNorm::all}},
    {{2, 1, 256}, {64, false, QkNorm::head}},
    {{2, 1, 33}, {26, false, QkNorm::head}},
    {{4, 2, 64}, {64, true, QkNorm::head}},
    {{4, 2, 64}, {64, true, QkNorm::all}},
};
}    // namespace

TEST_CASE("rope: against the reference") {
    in_each_order([](auto& op) {
        for (const Form& f : FORMS)
            for (auto [B, S, pos] : {std::tuple{1, 1, -1}, {2, 7, -1}, {1, 3, 5}, {3, 1, 40}, {2, 33, 0}}) {
                EXPECT(check_rope_forward(op, B, S, pos, f.h, f.t));
                if (f.t.norm == QkNorm::none) EXPECT(check_rope_forward(op, B, S, pos, f.h, f.t, true));
                if (pos < 0) EXPECT(check_rope_backward(op, B, S, f.h, f.t));
            }
    });
}

TEST_CASE("rope: QK-norm without weights is one whose weights are 1, and commutes with the rotation") {
    in_each_order([](auto& op) {
        for (const Form& f : FORMS)
            for (auto [B, S, pos] : {std::tuple{2, 7, -1}, {3, 1, 40}}) {
                if (!f.t.norms()) continue;
                EXPECT(check_rope_forward(op, B, S, pos, f.h, f.t, false, false));
                if (pos < 0) EXPECT(check_rope_backward(op, B, S, f.h, f.t, false));
            }
    });
    // nanochat rotates first and norms then.
    const Ops<double>& op = reference_ops();
    const Heads h = {2, 1, 8};
    const QkNormRope both = {6, false, QkNormRope::QkNorm::head, 1e-3f};
    QkNormRope norm = both, rotation = {6};
    norm.dims = 0;
    const int S = 5, n = S * h.qkv_width();
    const Numbers x = random_normal(n, 1), cos_sin = cos_sin_table(S, 6), ones(8, 1);
    const std::vector<float> table(cos_sin.begin(), cos_sin.end());
    Numbers rotated(x), after(x), before(x), ones_after(x);
    std::vector<float> rstd(size_t(S * 3));
    op.rope_forward(rotated.data(), nullptr, x.data(), nullptr, nullptr, table.data(), 1, S, nullptr, h, rotation);
    op.rope_forward(after.data(), rstd.data(), rotated.data(), nullptr, nullptr, nullptr, 1, S, nullptr, h, norm);
    op.rope_forward(before.data(), rstd.data(), x.data(), nullptr, nullptr, table.data(), 1, S, nullptr, h, both);
    op.rope_forward(ones_after.data(), rstd.data(), x.data(), ones.data(), ones.data(), table.data(), 1, S, nullptr, h,
                    both);
    CHECK(relative_error(before.data(), after.data(), n) < 1e-7);    // the table's cosines are floats
    CHECK(before == ones_after);
}

TEST_CASE("rope: many rows, whose weights' gradients are sums of ranges") {
    each_table([](auto& op) {
        for (const Form& f : FORMS)
            if (f.h.HS <= 64) {
                EXPECT(check_rope_forward(op, 3, 65, -1, f.h, f.t));
                EXPECT(check_rope_backward(op, 3, 65, f.h, f.t));
            }
        EXPECT(check_rope_backward(op, 2, 700, {2, 1, 16}, {16, false, QkNorm::head}));
    });
}

TEST_CASE("rope: values are untouched, and d's too") {
    const int B = 2, S = 9;
    each_table([&]<class T, class P>(const Ops<T, P>& op) {
        for (const Form& f : FORMS) {
            const int width = f.h.qkv_width(), values = (f.h.NH + f.h.NKV) * f.h.HS;
            const Numbers x = rounded<T>(random_normal(B * S * width, 1)), ones(size_t(width), 1);
            Array<T> ax(op, x), y(op, B * S * width), d(op, x);
            Array<P> w(op, ones);
            Array<Grad<P>> dqw(op, ones), dkw(op, ones);
            Array<float> cos_sin(op, cos_sin_table(S, f.t.dims)), rstd(op, B * S * f.t.rstd_count(f.h.NH, f.h.NKV));
            op.rope_forward(y, rstd, ax, w, w, cos_sin, B, S, nullptr, f.h, f.t);
            op.rope_backward(d, dqw, dkw, ax, w, w, cos_sin, rstd, B, S, f.h, f.t);
            const Numbers got_y = y.read(), got_d = d.read();
            int64_t wrong = -1;
            for (size_t i = 0; i < x.size(); i++)
                if (int(i) % width >= values && (got_y[i] != x[i] || got_d[i] != x[i])) wrong = int64_t(i);
            CHECK(wrong == -1);
            CHECK((ax.read() == x && ax.intact()));
        }
    });
}

TEST_CASE("rope: the same bits in any order, in place too") {
    each_table([](auto& op) {
        const int B = 3, S = 50;
        for (const Form& f : FORMS)
            expect_same_bits([&] {
                const Check y = check_rope_forward(op, B, S, -1, f.h, f.t);
                if (f.t.norm == QkNorm::none)
                    CHECK(bits_of({check_rope_forward(op, B, S, -1, f.h, f.t, true)}) == bits_of({y}));
                return bits_of({y, check_rope_backward(op, B, S, f.h, f.t)});
            });
    });
}

TEST_CASE("rope: NaN spoils its norm and its pair alone") {
    const int S = 3, NH = 2, NKV = 1, HS = 16, width = (NH + 2 * NKV) * HS, bad = width + HS + 3;    // row 1, head 1
    Numbers numbers = random_normal(S * width, 1);
    numbers[bad] = NAN;
    const Numbers ones(size_t(NH * HS), 1);
    auto pair = [](int64_t i) { return i == bad || i == bad + HS / 2; };
    auto head = [](int64_t i) { return i >= width + HS && i < width + 2 * HS; };
    auto queries = [](int64_t i) { return i >= width && i < width + 2 * HS; };
    each_table([&]<class T, class P>(const Ops<T, P>& op) {
        Array<T> x(op, numbers), y(op, S * width);
        Array<P> w(op, ones);
        Array<float> cos_sin(op, cos_sin_table(S, HS)), rstd(op, S * (NH + NKV));
        op.rope_forward(y, rstd, x, w, w, cos_sin, 1, S, nullptr, {NH, NKV, HS}, {HS});
        expect_nan(y.read(), pair);
        op.rope_forward(y, rstd, x, w, w, cos_sin, 1, S, nullptr, {NH, NKV, HS}, {HS, false, QkNorm::head});
        expect_nan(y.read(), head);
        op.rope_forward(y, rstd, x, w, w, cos_sin, 1, S, nullptr, {NH, NKV, HS}, {HS, false, QkNorm::all});
        expect_nan(y.read(), queries);
    });
}

TEST_CASE("rope: gradients of the reference") {
    const Ops<double>& op = reference_ops();
    const int B = 2, S = 3;
    for (const Form& f : FORMS) {
        if (f.h.HS > 40) continue;
        const int n = B * S * f.h.qkv_width();
        Numbers x = random_normal(n, 1), qw = random_normal(f.h.NH * f.h.HS, 2), kw = random_normal(f.h.NH * f.h.HS, 3);
        Numbers g = random_normal(n, 4), y(g), d(g), dqw(qw.size()), dkw(kw.size());
        const Numbers cos_sin = cos_sin_table(S, f.t.dims);
        const std::vector<float> table(cos_sin.begin(), cos_sin.end());
        std::vector<float> rstd(size_t(B * S * f.t.rstd_count(f.h.NH, f.h.NKV)));
        auto loss = [&] {
            op.rope_forward(y.data(), rstd.data(), x.data(), qw.data(), kw.data(), table.data(), B, S, nullptr, f.h,
                            f.t);
            return dot(y, g);
        };
        loss();
        op.rope_backward(d.data(), dqw.data(), dkw.data(), x.data(), qw.data(), kw.data(), table.data(), rstd.data(), B,
                         S, f.h, f.t);
        CHECK(gradient_error(x, d, loss) < 1e-5);    // the statistics are float
        if (f.t.norm == QkNorm::none) continue;
        CHECK(gradient_error(qw, dqw, loss) < 1e-5);
        CHECK(gradient_error(kw, dkw, loss) < 1e-5);
        auto weightless = [&] {
            op.rope_forward(y.data(), rstd.data(), x.data(), nullptr, nullptr, table.data(), B, S, nullptr, f.h, f.t);
            return dot(y, g);
        };
        weightless();
        d = g;
        op.rope_backward(d.data(), nullptr, nullptr, x.data(), nullptr, nullptr, table.data(), rstd.data(), B, S, f.h,
                         f.t);
        CHECK(gradient_error(x, d, weightless) < 1e-5);
    }
}

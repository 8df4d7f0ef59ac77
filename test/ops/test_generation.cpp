#include "ops.h"

#include "tools/selftest/generation.h"

namespace {
constexpr std::pair<int, int> ROWS_AND_OUTPUTS[] = {{1, 1},    {7, 3},    {8, 5},     {64, 33},  {100, 96},
                                                    {200, 1},  {513, 20}, {768, 301}, {1024, 7}, {1032, 9},
                                                    {2056, 5}, {2500, 6}, {4104, 3}};
}    // namespace

// Rows with and without 16-byte vectors, of each kernel width; rows summed by one warp and by
// several; more outputs than blocks.
TEST_CASE("generation: a norm within its product is the two in turn, to the bit") {
    in_each_order(TablePart::products, [](auto& op) {
        int k = 0;
        for (auto [C, OC] : ROWS_AND_OUTPUTS)
            for (int N = 1; N <= 5; N++, k++)
                EXPECT(check_norm_linear_forward(op, N, C, OC, NORM_FORMS[k % 7], k % 3 > 0));
    });
}

TEST_CASE("generation: a norm within the ffn's first product and its activation, to the bit") {
    in_each_order(TablePart::products, [](auto& op) {
        int k = 0;
        for (auto [C, F] : {std::pair{1, 1}, {7, 5}, {48, 33}, {72, 200}, {513, 10}, {768, 70}, {1032, 9}, {2056, 3}})
            for (int N = 1; N <= 5; N++)
                for (bool gated : {false, true}) {
                    EXPECT(check_norm_ffn_forward(op, N, C, F, Act(k % 5), gated, NORM_FORMS[k % 7], k % 3 > 0));
                    k++;
                }
    });
}

TEST_CASE("generation: a row's outputs do not depend on the rows beside it") {
    const int C = 520, F = 40;
    each_table([&]<class T, class P>(const Ops<T, P>& op) {
        if (!op.norm_ffn_forward) return;
        const Numbers x = random_normal(4 * C, 1), row(x.begin() + 2 * C, x.begin() + 3 * C);
        Array<P> nw(op, random_normal(C, 2)), w(op, random_normal(2 * F * C, 3));
        auto third = [&](int N, int n) {
            Array<T> in(op, N == 1 ? row : x), pre(op, N * 2 * F);
            Array<InputType<T, P>> y(op, N * F), normed(op, N * C);
            Array<float> mean(op, N), rstd(op, N);
            op.norm_ffn_forward(y, pre, normed, mean, rstd, in, nw, nullptr, RMSNORM.norm, w, nullptr, Act::silu, true,
                                N, C, F);
            const Numbers all = y.read();
            return Numbers(all.begin() + n * F, all.begin() + (n + 1) * F);
        };
        CHECK(third(4, 2) == third(1, 0));
        CHECK(third(3, 2) == third(1, 0));
    });
}

TEST_CASE("generation: rotation and QK-norm within attention over the cache are the two in turn, to the bit") {
    const QkNormRope::QkNorm none = QkNormRope::QkNorm::none, head = QkNormRope::QkNorm::head,
                             all = QkNormRope::QkNorm::all;
    struct Form {
        Heads h;
        QkNormRope t;
    };
    const Form forms[] = {{{2, 2, 64}, {64, false, none}},
                          {{4, 2, 128}, {128, false, head, 1e-6f, 1}},
                          {{6, 2, 96}, {96, true, none}},
                          {{8, 2, 64, 20}, {64, false, head}},
                          {{5, 1, 64}, {32, true, head}},
                          {{3, 3, 256}, {64, false, none}},
                          {{7, 1, 32}, {32, false, head}},
                          {{2, 1, 80}, {80, false, none}},
                          {{4, 4, 96}, {24, false, none}},
                          {{2, 1, 64}, {0, false, head}},
                          // No fused kernel for these forms:
                          {{2, 1, 20}, {20, false, none}},
                          {{4, 2, 64}, {64, false, all}},
                          {{2, 1, 264}, {64, false, none}},
                          {{2, 2, 64}, {18, false, head}}};
    in_each_order([&](auto& op) {
        for (const Form& f : forms) {
            for (auto [B, pos] : {std::pair{1, 0}, {1, 40}, {3, 131}})
                EXPECT(check_rope_attention_cached(op, B, 1, pos, f.h, f.t));
            EXPECT(check_rope_attention_cached(op, 2, 5, 20, f.h, f.t));
            if (f.t.norms()) EXPECT(check_rope_attention_cached(op, 3, 1, 40, f.h, f.t, Element::f64, false));
        }
        Heads capped = {4, 2, 64};
        capped.softcap = 2;
        EXPECT(check_rope_attention_cached(op, 2, 1, 40, capped, {64}));
        for (Element type : {Element::bf16, Element::fp8, Element::int8})
            EXPECT(check_rope_attention_cached(op, 2, 1, 40, {4, 2, 64}, {64}, type));
    });
}

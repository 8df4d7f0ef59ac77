#include "ops.h"

#include "tools/selftest/shortcuts.h"

TEST_CASE("shortcuts: weighted sums against the reference") {
    in_each_order([](auto& op) {
        for (int64_t n : {1, 7, 8, 264, 4099, 40000})
            for (bool has_factor : {true, false}) {
                EXPECT(check_residual_mix_forward(op, n, 4, -1, has_factor, true));
                EXPECT(check_residual_mix_forward(op, n, 0, 1, has_factor, false));
                EXPECT(check_residual_mix_backward(op, n, 4, 1, has_factor));
                EXPECT(check_residual_mix_backward(op, n, 0, -1, has_factor));
            }
        EXPECT(check_residual_mix_backward(op, 300, 2, 1, true, true));
    });
}

TEST_CASE("shortcuts: smear against the reference") {
    in_each_order([](auto& op) {
        for (int C : {1, 7, 23, 24, 25, 33, 264})
            for (int texts : {0, 1, 3})
                for (auto [B, S] : {std::pair{1, 1}, {2, 31}, {3, 2}}) {
                    EXPECT(check_smear_forward(op, B, S, C, texts, false));
                    EXPECT(check_smear_forward(op, B, S, C, texts, true));
                    EXPECT(check_smear_backward(op, B, S, C, texts));
                }
        EXPECT(check_smear_backward(op, 2, 9, 40, 2, true));
        EXPECT(check_smear_backward(op, 3, 700, 3, 5));    // more rows than blocks on a GPU
        EXPECT(check_smear_forward(op, 2, 3, 2056, 0, false));
        EXPECT(check_smear_backward(op, 2, 3, 2056, 0));
    });
}

TEST_CASE("shortcuts: the token before, in a cache") {
    in_each_order([](auto& op) {
        for (auto [B, S] : {std::pair{1, 1}, {2, 1}, {7, 1}, {3, 5}, {7, 200}}) EXPECT(check_previous_tokens(op, B, S));
    });
}

TEST_CASE("shortcuts: embeddings of values against the reference") {
    in_each_order([](auto& op) {
        for (Heads h : {Heads{.NH = 1, .NKV = 1, .HS = 1}, Heads{.NH = 4, .NKV = 2, .HS = 8},
                        Heads{.NH = 3, .NKV = 3, .HS = 33}, Heads{.NH = 2, .NKV = 1, .HS = 264}})
            for (int C : {1, 7, 12, 40})
                for (int N : {1, 3, 65}) {
                    EXPECT(check_value_embedding_forward(op, N, C, h, true));
                    EXPECT(check_value_embedding_forward(op, N, C, h, false));
                    EXPECT(check_value_embedding_backward(op, N, C, h, N % 2 == 0));
                }
        const Heads h = {.NH = 4, .NKV = 2, .HS = 8};
        EXPECT(check_value_embedding_backward(op, 9, 40, h, true, true));
        EXPECT(check_value_embedding_backward(op, 2000, 16, h, true));    // several rows a block on a GPU
    });
}

TEST_CASE("shortcuts: the same bits in any order") {
    const Heads h = {.NH = 4, .NKV = 2, .HS = 24};
    each_table([&](auto& op) {
        expect_same_bits([&] {
            return bits_of({check_residual_mix_forward(op, 50000, 1, 1, true, false),
                            check_residual_mix_backward(op, 50000, 1, 1, true),
                            check_smear_forward(op, 5, 90, 40, 2, false), check_smear_backward(op, 5, 90, 40, 2),
                            check_value_embedding_forward(op, 700, 40, h, true),
                            check_value_embedding_backward(op, 700, 40, h, true)});
        });
    });
}

TEST_CASE("shortcuts: NaN in one row of x spoils what reads this row") {
    const int S = 5, C = 30, bad = 2;
    each_table([&]<class T, class P>(const Ops<T, P>& op) {
        Numbers numbers = random_normal(S * C, 1);
        numbers[size_t(bad * C + 3)] = NAN;
        Array<T> x(op, numbers), y(op, S * C);
        Array<P> w(op, random_normal(smear_channels(C), 2)), lambda(op, Numbers{0.5});
        op.smear_forward(y, x, nullptr, w, lambda, 1, S, C, nullptr);
        const Numbers got = y.read();
        for (int n = 0; n < S; n++)
            for (int c = 0; c < C; c++)
                CHECK(std::isnan(got[size_t(n * C + c)]) == (n == bad || (n == bad + 1 && c == 3)));
    });
}

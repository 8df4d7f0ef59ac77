#include "ops.h"

#include "tools/selftest/embedding.h"

TEST_CASE("embedding: forward against the reference") {
    in_each_order([](auto& op) {
        for (int C : {1, 3, 7, 8, 31, 32, 33, 96, 257, 264, 769})
            for (int S : {1, 2, 31}) {
                EXPECT(check_embedding_forward(op, 1, S, C, 11, -1));
                EXPECT(check_embedding_forward(op, 3, S, C, 300, S == 2 ? 5 : 0));
                EXPECT(check_embedding_forward(op, 2, S, C, 300, S == 2 ? 5 : 0, false));
            }
        EXPECT(check_embedding_forward(op, 2, 65, 33, 11, 70));
    });
}

TEST_CASE("embedding: backward against the reference") {
    in_each_order([](auto& op) {
        for (int C : {1, 8, 31, 33, 264})
            for (double hot : {0.0, 0.7, 1.0}) {
                EXPECT(check_embedding_backward(op, 1, 1, C, 2, hot));
                EXPECT(check_embedding_backward(op, 2, 31, C, 5, hot));
                EXPECT(check_embedding_backward(op, 3, 21, C, 7, hot, false));
                EXPECT(check_embedding_backward(op, 7, 16, C, 300, hot));    // two digits to sort; pieces of 16 rows
            }
        for (int texts : {1, 2, 5}) {
            EXPECT(check_embedding_backward(op, 2, 31, 8, 5, 0.7, true, texts));
            EXPECT(check_embedding_backward(op, 3, 21, 33, 7, 0, true, texts));
        }
        EXPECT(check_embedding_backward(op, 33, 1, 8, 1, 0));
        EXPECT(check_embedding_backward(op, 2, 65, 769, 11, 0));
        EXPECT(check_embedding_backward(op, 3, 5, 2056, 9, 0.5));    // several blocks of columns
    });
}

TEST_CASE("embedding: backward of many positions") {
    in_each_order([]<class T, class P>(const Ops<T, P>& op) {
        EXPECT(check_embedding_backward(op, 9, 500, 1, 70000, 0.1));    // three digits and three tiles to sort
        EXPECT(check_embedding_backward(op, 2, 2050, 8, 257, 0.5));
        EXPECT(check_embedding_backward(op, 2, 2050, 8, 257, 0.5, true, 3));
        // pieces longer than the staged indices; two warps of columns
        if (sizeof(T) == 2) EXPECT(check_embedding_backward(op, 66, 1000, 34, 256, 0.2));
    });
    each_table([]<class T, class P>(const Ops<T, P>& op) {    // a CPU's longest serial sums
        if (sizeof(T) == 2) EXPECT(check_embedding_backward(op, 300, 256, 1, 300, 1));
    });
}

TEST_CASE("embedding: the same bits in any order") {
    each_table([](auto& op) {
        expect_same_bits([&] { return bits_of({check_embedding_backward(op, 5, 900, 24, 400, 0.33)}); });
        expect_same_bits([&] { return bits_of({check_embedding_backward(op, 5, 900, 24, 400, 0.33, true, 7)}); });
        // Positions given as those of whole sequences are summed in the same order.
        CHECK(bits_of({check_embedding_backward(op, 5, 90, 24, 400, 0.33)}) ==
              bits_of({check_embedding_backward(op, 5, 90, 24, 400, 0.33, true, 1)}));
    });
}

TEST_CASE("embedding: NaN in one row of dx spoils its token and its position alone") {
    const int B = 4, S = 40, C = 8, V = 10, bad = 77;
    const std::vector<int> tok = random_tokens(B * S, V, 1);
    Numbers d = random_normal(B * S * C, 2);
    d[bad * C + 3] = NAN;
    each_table([&]<class T, class P>(const Ops<T, P>& op) {
        Array<int> t(op, tok);
        Array<T> dx(op, d);
        Array<Grad<P>> dwte(op, Numbers(V * C, 0)), dwpe(op, Numbers(S * C, 0));
        op.embedding_backward(dwte, dwpe, dx, t, B, S, C, V, nullptr);
        expect_nan(dwte.read(), [&](int64_t i) { return i == tok[bad] * C + 3; });
        expect_nan(dwpe.read(), [&](int64_t i) { return i == bad % S * C + 3; });
    });
}

TEST_CASE("embedding: gradients of the reference") {
    const Ops<double>& op = reference_ops();
    const int V = 5, B = 2, S = 4, C = 3, T = 6;
    Numbers wte = random_normal(V * C, 1), wpe = random_normal(T * C, 2), g = random_normal(B * S * C, 3);
    const std::vector<int> tok = random_tokens(B * S, V, 4), texts = {0, 1, 0, 1, 0, 0, 1, 2};
    for (const int* pos : {static_cast<const int*>(nullptr), texts.data()}) {
        Numbers x(g.size()), dwte(wte.size()), dwpe(wpe.size());
        auto loss = [&] {
            op.embedding_forward(x.data(), tok.data(), wte.data(), wpe.data(), B, S, C, pos);
            return dot(x, g);
        };
        op.embedding_backward(dwte.data(), dwpe.data(), g.data(), tok.data(), B, S, C, V, pos);
        CHECK(gradient_error(wte, dwte, loss) < 1e-8);
        CHECK(gradient_error(wpe, dwpe, loss) < 1e-8);
    }
}

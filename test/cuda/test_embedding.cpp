#include "cuda_test.h"
#include "tools/selftest/checks.h"

TEST_CASE("cuda embedding: forward against the reference") {
    auto all = [](auto& op) {
        for (int C : {1, 7, 8, 33, 96, 257, 264})
            for (int S : {1, 2, 31}) {
                EXPECT(check_embedding_forward(op, 1, S, C, 11, -1));
                EXPECT(check_embedding_forward(op, 3, S, C, 300, S == 2 ? 5 : 0));
            }
    };
    each_schedule([&] {
        all(cuda_ops<float>(Dtype::fp32));
        all(cuda_ops<bf16>(Dtype::bf16));
    });
}

TEST_CASE("cuda embedding: backward against the reference") {
    auto all = [](auto& op) {
        for (int C : {1, 8, 33, 264})
            for (double hot : {0.0, 0.7, 1.0}) {
                EXPECT(check_embedding_backward(op, 1, 1, C, 2, hot));
                EXPECT(check_embedding_backward(op, 2, 31, C, 5, hot));
                EXPECT(check_embedding_backward(op, 7, 16, C, 300, hot));    // two digits; a piece is 16 rows
            }
        EXPECT(check_embedding_backward(op, 33, 1, 8, 1, 0));
        EXPECT(check_embedding_backward(op, 3, 5, 2056, 9, 0.5));    // several blocks of columns
    };
    each_schedule([&] {
        all(cuda_ops<float>(Dtype::fp32));
        all(cuda_ops<bf16>(Dtype::bf16));
    });
}

TEST_CASE("cuda embedding: backward of many positions") {
    auto all = [](auto& op) {
        EXPECT(check_embedding_backward(op, 9, 500, 1, 70000, 0.1));    // three digits, three tiles
        EXPECT(check_embedding_backward(op, 2, 2050, 8, 257, 0.5));
    };
    each_schedule([&] {
        all(cuda_ops<float>(Dtype::fp32));
        all(cuda_ops<bf16>(Dtype::bf16));
    });
    // pieces longer than what is staged, two warps of columns
    each_schedule([&] { EXPECT(check_embedding_backward(cuda_ops<bf16>(Dtype::bf16), 66, 1000, 34, 256, 0.2)); });
    EXPECT(check_embedding_backward(cuda_ops<bf16>(Dtype::bf16), 300, 256, 1, 300, 1));
}

TEST_CASE("cuda embedding: the same bits whatever the order of blocks and threads") {
    const int B = 5, S = 900, C = 24, V = 400;
    const auto& op = cuda_ops<bf16>(Dtype::bf16);
    const Memory m(op);
    std::vector<int> tok = random_tokens(B * S, V, 1);
    for (int n = 0; n < B * S; n += 3) tok[size_t(n)] = 7;
    Array<int> t(m, Numbers(tok.begin(), tok.end()));
    Array<bf16> dx(m, random_normal(B * S * C, 2));
    std::vector<unsigned char> first;
    each_schedule([&] {
        Array<float> dwte(m, random_normal(V * C, 3)), dwpe(m, random_normal(S * C, 4));
        op.embedding_backward(dwte, dwpe, dx, t, B, S, C, V);
        std::vector<unsigned char> bits = dwte.bits(), more = dwpe.bits();
        bits.insert(bits.end(), more.begin(), more.end());
        if (first.empty()) first = bits;
        CHECK(bits == first);
    });
}

TEST_CASE("cuda embedding: NaN in one row of dx spoils its token and its position alone") {
    const int B = 4, S = 40, C = 8, V = 10;
    const auto& op = cuda_ops<float>(Dtype::fp32);
    const Memory m(op);
    const std::vector<int> tok = random_tokens(B * S, V, 1);
    const int bad = 77;
    Numbers d = random_normal(B * S * C, 2);
    d[bad * C + 3] = NAN;
    Array<int> t(m, Numbers(tok.begin(), tok.end()));
    Array<float> dx(m, d), dwte(m, Numbers(V * C, 0)), dwpe(m, Numbers(S * C, 0));
    op.embedding_backward(dwte, dwpe, dx, t, B, S, C, V);
    const Numbers e = dwte.read(), p = dwpe.read();
    for (int i = 0; i < V * C; i++) CHECK(std::isnan(e[size_t(i)]) == (i == tok[bad] * C + 3));
    for (int i = 0; i < S * C; i++) CHECK(std::isnan(p[size_t(i)]) == (i == bad % S * C + 3));
}

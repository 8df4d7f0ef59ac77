#include "ops.h"

template <class P> static void against_reference() {
    const Ops<double>& ref = reference_ops();
    const int V = 11, maxT = 140;
    for (int C : {1, 3, 31, 32, 33, 96, 769})
        for (int S : {1, 7, 65}) {
            const int B = 2, n = B * S * C, five = 5;
            const int* pos = S == 7 ? &five : nullptr;
            CAPTURE(C); CAPTURE(S);
            auto wte = normal<P>(V * C, 1), wpe = normal<P>(maxT * C, 2);
            auto dx = normal<float>(n, 3);
            auto tok = tokens(B * S, V, 4);
            std::vector<double> x(n), dwte(V * C, 0.5), dwpe(maxT * C, 0.25);
            ref.embedding_forward(x.data(), tok.data(), doubles(wte).data(), doubles(wpe).data(), B, S, C, pos);
            ref.embedding_backward(dwte.data(), dwpe.data(), doubles(dx).data(), tok.data(), B, S, C, V);
            each_isa<P>([&](const Ops<float, P>& op) {
                Guarded<float> y(n), de(V * C, 0.5), dp(maxT * C, 0.25);
                op.embedding_forward(y, tok.data(), wte.data(), wpe.data(), B, S, C, pos);
                op.embedding_backward(de, dp, dx.data(), tok.data(), B, S, C, V);
                CHECK(relative_error(y.data(), x.data(), n) < 1e-7);
                CHECK(relative_error(de.data(), dwte.data(), V * C) < 1e-6);
                CHECK(relative_error(dp.data(), dwpe.data(), maxT * C) < 1e-6);
                CHECK(y.intact());
                CHECK(de.intact());
                CHECK(dp.intact());
            });
        }
}

TEST_CASE("embedding: every instruction set against the reference") {
    against_reference<float>();
    against_reference<bf16>();
}

TEST_CASE("embedding: the same bits for any number of threads") {
    const int V = 5, B = 3, S = 40, C = 100;
    auto dx = normal<float>(B * S * C, 3);
    auto tok = tokens(B * S, V, 4);
    each_isa([&](const Ops<float>& op) {
        CHECK(same_bits((V + S) * C, [&](float* d) {
            for (int i = 0; i < (V + S) * C; i++) d[i] = 0;
            op.embedding_backward(d, d + V * C, dx.data(), tok.data(), B, S, C, V);
        }));
    });
}

TEST_CASE("embedding: gradients of the reference") {
    const Ops<double>& op = reference_ops();
    const int V = 5, B = 2, S = 4, C = 3, T = 6;
    auto wte = normal<double>(V * C, 1), wpe = normal<double>(T * C, 2), g = normal<double>(B * S * C, 3);
    auto tok = tokens(B * S, V, 4);
    std::vector<double> x(g.size()), dwte(wte.size()), dwpe(wpe.size());
    auto loss = [&] {
        op.embedding_forward(x.data(), tok.data(), wte.data(), wpe.data(), B, S, C, nullptr);
        return dot(x, g);
    };
    op.embedding_backward(dwte.data(), dwpe.data(), g.data(), tok.data(), B, S, C, V);
    CHECK(gradient_error(wte.data(), dwte.data(), V * C, loss) < 1e-8);
    CHECK(gradient_error(wpe.data(), dwpe.data(), T * C, loss) < 1e-8);
}

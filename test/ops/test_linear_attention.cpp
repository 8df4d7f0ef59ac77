// test_linear_attention.cpp - attention without softmax: the recurrence equals the sum over pairs,
// tables equal the reference, and the reference's gradients equal central differences.
#include "ops.h"

#include "tools/selftest/attention.h"
#include "tools/selftest/linear_attention.h"

namespace {
// Lengths below, at and above multiples of a chunk; groups; head sizes that fill no vector; short
// and long documents.
struct Shape {
    int B, S, NH, NKV, HS, document = 0;
};
const Shape SHAPES[] = {{2, 1, 2, 2, 8},       {1, 36, 2, 1, 16}, {3, 37, 3, 3, 7},      {1, 131, 4, 2, 64},
                        {2, 72, 6, 2, 20},     {1, 73, 2, 1, 65}, {1, 90, 2, 2, 33, 20}, {2, 100, 4, 2, 16, 6},
                        {1, 150, 2, 1, 8, 60}, {1, 67, 1, 1, 128}};
// Heads of size HS for the reference's table.
struct ReferenceHeads : Heads {
    const std::vector<float> w;
    ReferenceHeads(Heads h, uint64_t seed = 1) : Heads(h), w(random_features(h.HS, seed)) { features = w.data(); }
};
template <class F> void each_shape(F f) {
    for (const Shape& s : SHAPES) {
        const TrueSpans spans(s.B, s.document ? s.S : 1, std::max(s.document, 1));
        for (LinearAttention kind : LINEARS) {
            const Heads h = {.NH = s.NH, .NKV = s.NKV, .HS = s.HS, .linear = kind};
            f(s.B, s.S, s.document ? spans.in(h) : h);
        }
    }
}
}    // namespace

TEST_CASE("linear attention: forward and backward against the reference") {
    each_table(TablePart::attention, [](auto& op) {
        each_shape([&](int B, int S, Heads h) {
            EXPECT(check_linear_attention_forward(op, B, S, h));
            EXPECT(check_linear_attention_backward(op, B, S, h));
        });
        const Heads steep = {
            .NH = 2, .NKV = 2, .HS = 20, .linear = LinearAttention::gated};    // most decays at their bound
        EXPECT(check_linear_attention_forward(op, 1, 80, steep, 60));
        EXPECT(check_linear_attention_backward(op, 1, 80, steep, 60));
    });
}

TEST_CASE("linear attention: generation against the reference") {
    each_table([](auto& op) {
        for (const Shape& s : SHAPES)
            for (LinearAttention kind : LINEARS)
                for (auto [B, S, pos] : {std::tuple{1, 1, 0}, {3, 1, 9}, {2, 5, 0}, {2, 40, 3}, {1, 73, 100}}) {
                    if (s.document) continue;
                    EXPECT(check_linear_attention_cached(op, B, S, pos,
                                                         {.NH = s.NH, .NKV = s.NKV, .HS = s.HS, .linear = kind}));
                }
    });
}

TEST_CASE("linear attention: the same bits twice, in any order") {
    const Heads h = {.NH = 4, .NKV = 2, .HS = 24, .linear = LinearAttention::gated};
    each_table([&](auto& op) {
        expect_same_bits([&] {
            return bits_of(
                {check_linear_attention_forward(op, 2, 80, h), check_linear_attention_backward(op, 2, 80, h)});
        });
    });
}

TEST_CASE("linear attention: the reference's recurrence equals its sum over pairs") {
    const Ops<double>& op = reference_ops();
    const int B = 2, S = 50;
    for (LinearAttention kind : LINEARS) {
        const ReferenceHeads h = Heads{.NH = 4, .NKV = 2, .HS = 6, .linear = kind};
        const Numbers qkv = random_normal(B * S * h.qkv_width(), 1), gates = random_normal(B * S * h.gates(), 2, 3);
        Numbers y(size_t(B * S * h.width())), again(y), states(size_t(B * h.state()), NAN);
        std::vector<float> norms(size_t(B * S * h.NH));
        std::vector<int> pos, of = {1, 0};
        for (int n = 0; n < B * S; n++) pos.push_back(n % S);
        op.linear_attention_forward(y.data(), norms.data(), qkv.data(), gates.data(), B, S, h);
        op.linear_attention_cached(again.data(), {states.data(), h.state(), of.data()}, qkv.data(), gates.data(), B, S,
                                   pos.data(), h);
        double worst = 0;
        for (size_t i = 0; i < y.size(); i++) worst = worse(worst, std::abs(y[i] - again[i]));
        CHECK(worst < 1e-12);
    }
}

TEST_CASE("linear attention: the reference's gradients equal central differences") {
    const Ops<double>& op = reference_ops();
    const int B = 2, S = 9;
    const TrueSpans spans(S, {{0, 4}, {2}});
    for (LinearAttention kind : LINEARS)
        for (bool documents : {false, true}) {
            const Heads whole = {.NH = 4, .NKV = 2, .HS = 3, .scale = 0.7f, .linear = kind};
            const ReferenceHeads h = documents ? spans.in(whole) : whole;
            Numbers qkv = random_normal(B * S * h.qkv_width(), 1), gates = random_normal(B * S * h.gates(), 2, 25);
            const Numbers dy = random_normal(B * S * h.width(), 3);
            Numbers y(dy.size()), dqkv(qkv.size()), dgates(gates.size());
            std::vector<float> norms(size_t(B * S * h.NH));
            auto loss = [&] {
                op.linear_attention_forward(y.data(), norms.data(), qkv.data(), gates.data(), B, S, h);
                return dot(y, dy);
            };
            loss();
            op.linear_attention_backward(dqkv.data(), dgates.data(), dy.data(), y.data(), qkv.data(), gates.data(),
                                         norms.data(), B, S, h);
            CHECK(gradient_error(qkv, dqkv, loss) < 1e-5);
            if (h.gates()) CHECK(gradient_error(gates, dgates, loss) < 1e-5);
        }
}

TEST_CASE("performer: rows of w are orthogonal and as long as normal rows, and each seed has its own") {
    const int HS = 48;
    const std::vector<float> w = random_features(HS), other = random_features(HS, 7);
    CHECK(w != other);
    CHECK(w == random_features(HS));
    double lengths = 0, most = 0;
    for (int i = 0; i < HS; i++)
        for (int j = 0; j < HS; j++) {
            double product = 0;
            for (int d = 0; d < HS; d++) product += double(w[size_t(i * HS + d)]) * double(w[size_t(j * HS + d)]);
            if (i == j) lengths += product / HS;
            else most = worse(most, std::abs(product));
            CHECK(w[size_t(i * HS + j)] == w[size_t((HS + j) * HS + i)]);    // the transpose
        }
    CHECK(most < 1e-4);
    CHECK(std::abs(lengths - HS) < 0.1 * HS);    // |w_i|^2 has the mean HS, and its variance is 2 HS
}

// With one-hot values, y holds a query's weights of the keys. Weights of many draws of w, averaged
// with exact normalisers, are softmax's.
TEST_CASE("performer: on average over draws of w, scores are softmax's exponentials") {
    const int S = 6, HS = 8, DRAWS = 20000;
    const float scale = 0.6f;
    const Numbers q = random_normal(HS, 1), k = random_normal(S * HS, 2);
    Numbers mean(size_t(S), 0);
    double worst = 0;
    for (int draw = 0; draw < DRAWS; draw++) {
        const ReferenceHeads h(Heads{.NH = 1, .NKV = 1, .HS = HS, .scale = scale, .linear = LinearAttention::performer},
                               uint64_t(draw));
        // The estimates of lemma 1 from their definition.
        Numbers estimates(static_cast<size_t>(S)), qkv;
        double total = 0;
        for (int s = 0; s < S; s++) {
            double squares = 0;
            for (int d = 0; d < HS; d++) squares += std::pow(q[size_t(d)], 2) + std::pow(k[size_t(s * HS + d)], 2);
            for (int i = 0; i < HS; i++) {
                double sum = 0;
                for (int d = 0; d < HS; d++)
                    sum += double(h.w[size_t(i * HS + d)]) * (q[size_t(d)] + k[size_t(s * HS + d)]);
                estimates[size_t(s)] += std::exp(sum * std::sqrt(double(scale)) - squares * scale / 2) / HS;
            }
            mean[size_t(s)] += estimates[size_t(s)] / DRAWS;
            total += estimates[size_t(s)];
        }
        if (draw >= 100) continue;
        // The operation's weights of the last query are these estimates, divided by their sum.
        Numbers y(size_t(S * HS));
        std::vector<float> norms(static_cast<size_t>(S));
        for (int s = 0; s < S; s++) {
            qkv.insert(qkv.end(), q.begin(), q.end());
            qkv.insert(qkv.end(), k.begin() + s * HS, k.begin() + (s + 1) * HS);
            for (int d = 0; d < HS; d++) qkv.push_back(d == s);
        }
        reference_ops().linear_attention_forward(y.data(), norms.data(), qkv.data(), nullptr, 1, S, h);
        for (int s = 0; s < S; s++)
            worst = worse(worst, std::abs(y[size_t((S - 1) * HS + s)] - estimates[size_t(s)] / total));
    }
    CHECK(worst < 1e-4);    // FEATURE_MIN
    for (int s = 0; s < S; s++) {
        double product = 0;
        for (int d = 0; d < HS; d++) product += q[size_t(d)] * k[size_t(s * HS + d)];
        CAPTURE(s);
        CHECK(std::abs(mean[size_t(s)] / std::exp(product * scale) - 1) < 0.1);
    }
}

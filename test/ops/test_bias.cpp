// test_bias.cpp - attention biases by distance: every kernel that adds them, and their gradient.
#include "ops.h"

#include "tools/selftest/attention.h"
#include "tools/selftest/cached.h"

namespace {
// max_distance shorter and longer than the sequence; lengths that cross the tiles of every kernel;
// groups, windows, patterns, and spans of each kind.
const AttentionShape SHAPES[] = {
    {2, 1, {.NH = 2, .NKV = 2, .HS = 8, .max_distance = 3}},
    {2, 33, {.NH = 2, .NKV = 1, .HS = 20, .max_distance = 5}},
    {1, 130, {.NH = 4, .NKV = 2, .HS = 64, .max_distance = 128}},
    {3, 65, {.NH = 3, .NKV = 3, .HS = 33, .max_distance = 17}},
    {1, 200, {.NH = 2, .NKV = 1, .HS = 128, .max_distance = 128}},
    {1, 290, {.NH = 3, .NKV = 1, .HS = 16, .window = 64, .max_distance = 40}},
    {1, 130, {.NH = 1, .NKV = 1, .HS = 256, .max_distance = 70}},
    {1, 150, {.NH = 2, .NKV = 2, .HS = 96, .window = 20, .stride = 16, .global_tokens = 3, .max_distance = 30}},
    {2, 150, {.NH = 2, .NKV = 1, .HS = 64, .max_distance = 33}, 40},
    {1, 200, {.NH = 2, .NKV = 1, .HS = 40, .max_distance = 128}, 60, TrueSpans::prefix},
    {2, 130, {.NH = 2, .NKV = 2, .HS = 64, .max_distance = 20}, 1000, TrueSpans::all},
    {1, 129, {.NH = 2, .NKV = 2, .HS = 11, .max_distance = 200}, 70, TrueSpans::all},
    {2, 130, {.NH = 2, .NKV = 1, .HS = 64, .max_distance = 33, .dropout = {0.3f, 1, 2}}},
    {1, 150, {.NH = 2, .NKV = 2, .HS = 20, .window = 30, .stride = 5, .max_distance = 30, .dropout = {0.2f, 1, 5}}},
};
// With biases of each query, as relative keys have them.
Heads by_query(Heads h) {
    h.bias_step = h.NH * h.distances();
    return h;
}
// These shapes are held to the user-facing limits, not to the tests' share of them.
void expect_ok(const Check& check) {
    CAPTURE(check.op);
    CAPTURE(check.shape);
    CAPTURE(check.output);
    CAPTURE(check.worst);
    CHECK(check.ok());
}
void check_central_differences(Heads h) {
    const int B = 2, S = 7, n = h.NH * h.distances() * (h.bias_step ? B * S : 1);
    const Numbers qkv = random_normal(B * S * h.qkv_width(), 1), g = random_normal(B * S * h.width(), 2);
    Numbers bias = random_normal(n, 3), dbias(size_t(n), 0);
    h.bias = reinterpret_cast<const float*>(bias.data());
    const auto [y, lse] = ReferenceAttention(qkv, B, S, h);
    reference_ops().attention_bias_backward(dbias.data(), g.data(), y.data(), qkv.data(), lse.data(), B, S, h);
    auto loss = [&] { return dot(ReferenceAttention(qkv, B, S, h).y, g); };
    CHECK(gradient_error(bias, dbias, loss) < 1e-4);    // lse is float
}
}    // namespace

TEST_CASE("bias: rows of a table, and the table's gradient") {
    each_table([](auto& op) {
        for (auto [buckets, NH, n] : {std::tuple{32, 12, 257}, {1, 1, 1}, {32, 5, 31}, {3, 70, 9}})
            EXPECT(check_bias_rows(op, buckets, NH, n));
    });
}

TEST_CASE("bias: products with the keys of distances, and their gradients") {
    each_table([](auto& op) {
        for (int N : {1, 47, 64, 131, 1100})
            for (const Heads& h : {Heads{.NH = 2, .NKV = 1, .HS = 8, .max_distance = 1},
                                   Heads{.NH = 3, .NKV = 3, .HS = 33, .max_distance = 16},
                                   Heads{.NH = 1, .NKV = 1, .HS = 64, .scale = 0.3f, .max_distance = 40},
                                   Heads{.NH = 2, .NKV = 2, .HS = 100, .max_distance = 7}})
                if (N < 1000 || h.HS == 8) EXPECT(check_relative_keys(op, N, h));
        EXPECT(check_relative_keys(op, 20, {.NH = 1, .NKV = 1, .HS = 16, .max_distance = 511}));
    });
}

TEST_CASE("bias: attention with biases against the reference") {
    each_table(TablePart::attention, [](auto& op) {
        for (const AttentionShape& shape : SHAPES)
            shape.call([&](int B, int S, Heads shared) {
                for (const Heads& h : {shared, by_query(shared)}) {
                    expect_ok(check_attention_forward(op, B, S, h));
                    expect_ok(check_attention_backward(op, B, S, h));
                }
            });
    });
}

TEST_CASE("bias: generation with biases against the reference") {
    each_table([](auto& op) {
        for (int HS : {8, 33, 64})
            for (auto [B, S, pos] : {std::tuple{1, 1, 0}, {2, 1, 7}, {3, 1, 150}, {1, 20, 100}, {2, 33, 0}}) {
                const Heads shared = {.NH = 4, .NKV = 2, .HS = HS, .max_distance = 40};
                for (const Heads& h : {shared, by_query(shared)}) EXPECT(check_attention_cached(op, B, S, pos, 200, h));
            }
    });
}

TEST_CASE("bias: the gradient of attention's biases against the reference, the same bits in any order") {
    each_table(TablePart::attention, [](auto& op) {
        for (const AttentionShape& shape : SHAPES)
            shape.call([&](int B, int S, Heads h) {
                expect_ok(check_attention_bias_backward(op, B, S, h));
                expect_ok(check_attention_bias_backward(op, B, S, by_query(h)));
            });
    });
    each_table([](auto& op) {
        const Heads h = {.NH = 4, .NKV = 2, .HS = 24, .max_distance = 40};
        expect_same_bits([&] {
            return bits_of({check_attention_bias_backward(op, 3, 150, h),
                            check_attention_bias_backward(op, 3, 150, by_query(h)), check_relative_keys(op, 400, h)});
        });
    });
}

TEST_CASE("bias: the reference's gradient equals central differences") {
    for (const Heads& shared : {Heads{.NH = 2, .NKV = 1, .HS = 4, .max_distance = 3},
                                Heads{.NH = 1, .NKV = 1, .HS = 3, .window = 4, .max_distance = 9},
                                Heads{.NH = 2, .NKV = 1, .HS = 4, .max_distance = 3, .dropout = {0.3f, 1, 2}}}) {
        for (Heads h : {shared, by_query(shared)}) check_central_differences(h);
    }
}

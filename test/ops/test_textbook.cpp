// test_textbook.cpp - attention as in a textbook (Vaswani et al. 2017, section 3.2.1): three tokens
// by hand, and the reason why scores are divided by the square root of the head size.
#include "ops.h"

#include "tools/selftest/attention.h"

namespace {
const double E = std::exp(1.0);
typedef std::vector<Numbers> Rows;

// ---- three tokens -------------------------------------------------------------------------------

// One head of size 4. A token attends most to tokens whose keys match its query.
const Rows Q = {{1, 0, 1, 0}, {0, 2, 0, 2}, {1, 1, 1, 1}};
const Rows K = {{1, 0, 1, 0}, {0, 1, 0, 1}, {1, 1, 1, 1}};
const Rows V = {{1, 2, 0, 3}, {0, 1, 4, 3}, {2, 0, 2, 3}};    // the last column is the same for all

Numbers flat(const Rows& rows) {
    Numbers all;
    for (const Numbers& row : rows) all.insert(all.end(), row.begin(), row.end());
    return all;
}
void expect_rows(const Rows& got, const Rows& expected, double tolerance = 1e-12) {
    for (size_t i = 0; i < expected.size(); i++)
        for (size_t j = 0; j < expected[i].size(); j++) {
            CAPTURE(i);
            CAPTURE(j);
            CHECK(std::fabs(got[i][j] - expected[i][j]) <= tolerance);    // also fails for NaN
        }
}
// Checks attention of the textbook's three tokens with every operation table.
void expect_attention(const Rows& expected, TrueSpans::Kind kind) {
    auto expect = [&]<class T, class P>(const Ops<T, P>& op) {
        const TrueSpans spans(3, {{}}, kind);
        TableSpans there(op, spans);
        const Heads one = {.NH = 1, .NKV = 1, .HS = 4}, h = kind == TrueSpans::causal ? one : there.in(one);
        Array<T> qkv(op, flat({Q[0], K[0], V[0], Q[1], K[1], V[1], Q[2], K[2], V[2]}));
        Array<InputType<T, P>> y(op, 3 * 4);
        Array<float> lse(op, 3);
        op.attention_forward(y, lse, qkv, 1, 3, h);
        const Numbers all = y.read();
        Rows rows;
        for (auto at = all.begin(); at < all.end(); at += 4) rows.push_back(Numbers(at, at + 4));
        // bf16 has 8 bits; probabilities and outputs (4 at most) are rounded to them.
        const double rounding = sizeof(InputType<T, P>) == 2 ? 0x1p-6 : sizeof(T) == 4 ? 2e-6 : 1e-12;
        expect_rows(rows, expected, rounding);
    };
    expect(reference_ops());
    each_table(TablePart::attention, [&](auto& op) { expect(op); });
}
}    // namespace

TEST_CASE("textbook: scaled dot-product attention of three tokens") {
    // Scores: how well each query fits each key.     QK^T
    Rows scores(3, Numbers(3));
    for (size_t i = 0; i < 3; i++)
        for (size_t j = 0; j < 3; j++) scores[i][j] = dot(Q[i], K[j]);
    expect_rows(scores, {{2, 0, 2}, {0, 4, 4}, {2, 2, 4}});

    // Divided by sqrt(4) = 2.
    Rows scaled = scores;
    for (Numbers& row : scaled)
        for (double& x : row) x /= std::sqrt(4.0);
    expect_rows(scaled, {{1, 0, 1}, {0, 2, 2}, {1, 1, 2}});

    // Softmax of each row: e^score over the row's sum. In the first, e + 1 + e = 6.4366:
    //     0.4223 0.1554 0.4223
    //     0.0634 0.4683 0.4683        1 + 2 e^2 = 15.7781
    //     0.2119 0.2119 0.5761        e (2 + e), of which e falls out: 4.7183
    Rows weights = scaled;
    for (Numbers& row : weights) {
        double sum = 0;
        for (double& x : row) sum += x = std::exp(x);
        for (double& x : row) x /= sum;
    }
    expect_rows(weights, {{0.4223, 0.1554, 0.4223}, {0.0634, 0.4683, 0.4683}, {0.2119, 0.2119, 0.5761}}, 5e-5);

    // The output: each row is the mean of the values by these weights.
    //     1.2670 1      1.4661 3      (e+2e)/(1+2e)        (2e+1)/(1+2e)       (4+2e)/(1+2e)
    //     1      0.5951 2.8099 3      (1+2e^2)/(1+2e^2)    (2+e^2)/(1+2e^2)    6e^2/(1+2e^2)
    //     1.3642 0.6358 2      3      (1+2e)/(2+e)         3/(2+e)             (4+2e)/(2+e)
    // The last column, equal in all values, stays 3, because the weights of a row add up to 1.
    Rows output(3, Numbers(4));
    for (size_t i = 0; i < 3; i++)
        for (size_t j = 0; j < 3; j++)
            for (size_t d = 0; d < 4; d++) output[i][d] += weights[i][j] * V[j][d];
    const double first = 1 + 2 * E, second = 1 + 2 * E * E, third = 2 + E;
    expect_rows(output, {{3 * E / first, 1, (4 + 2 * E) / first, 3},
                         {1, (2 + E * E) / second, 6 * E * E / second, 3},
                         {(1 + 2 * E) / third, 3 / third, 2, 3}});
    expect_rows(output, {{1.2670, 1, 1.4661, 3}, {1, 0.5951, 2.8099, 3}, {1.3642, 0.6358, 2, 3}}, 5e-5);
    expect_attention(output, TrueSpans::all);
}

TEST_CASE("textbook: the same three tokens, each of which sees none that follows") {
    // The first attends only to itself: its output is its value. The second has scaled scores 0, 2:
    //     weights 1 / (1 + e^2) = 0.1192 and 0.8808
    // The third attends to all, as without a mask.
    const double sum = 1 + E * E;
    const Rows output = {
        V[0], {1 / sum, (2 + E * E) / sum, 4 * E * E / sum, 3}, {(1 + 2 * E) / (2 + E), 3 / (2 + E), 2, 3}};
    expect_rows(output, {{1, 2, 0, 3}, {0.1192, 1.1192, 3.5232, 3}, {1.3642, 0.6358, 2, 3}}, 5e-5);
    expect_attention(output, TrueSpans::causal);
}

// ---- the square root of the head size -----------------------------------------------------------

namespace {
const Ops<double>& op = reference_ops();

// Scores of n random queries and keys, whose numbers have mean 0 and variance 1. With a window of 1
// the log-sum-exp of a position is its only score.
std::vector<float> random_scores(int n, int HS, float scale) {
    const Heads h = {.NH = n / 64, .NKV = n / 64, .HS = HS, .window = 1, .scale = scale};
    const Numbers qkv = random_normal(int64_t(64) * h.qkv_width(), uint64_t(HS));
    Numbers y(size_t(64 * h.width()));
    std::vector<float> scores(static_cast<size_t>(n));
    op.attention_forward(y.data(), scores.data(), qkv.data(), 1, 64, h);
    return scores;
}

// Softmax of a query's scores of 16 keys: means over HEADS heads.
struct Softmax {
    double entropy;     // entropy of the weights
    double gradient;    // norm of dscores for random dweights
};
Softmax softmax_of(int HS, float scale) {
    const int S = 16, HEADS = 256;
    Heads h = {.NH = HEADS, .NKV = HEADS, .HS = HS, .scale = scale, .max_distance = S - 1};
    Numbers qkv = random_normal(int64_t(S) * h.qkv_width(), uint64_t(HS));
    // Value j is 1 at j and 0 elsewhere: the output then equals the weights, and dy their gradient.
    for (int s = 0; s < S; s++)
        for (int i = 0; i < HEADS * HS; i++) qkv[size_t(s * h.qkv_width() + 2 * h.width() + i)] = i % HS == s;
    Numbers y(size_t(S * h.width())), dy(y.size()), none(size_t(HEADS * (2 * S - 1))), dscores(none);
    std::vector<float> lse(size_t(HEADS * S));
    h.bias = reinterpret_cast<const float*>(none.data());
    op.attention_forward(y.data(), lse.data(), qkv.data(), 1, S, h);
    // The last query attends to all keys, each at its own distance, so the gradient of a distance's
    // bias is that of one key's score.
    const size_t last = size_t((S - 1) * h.width());
    const Numbers random = random_normal(h.width(), 1);
    std::copy(random.begin(), random.end(), dy.begin() + int64_t(last));
    op.attention_bias_backward(dscores.data(), dy.data(), y.data(), qkv.data(), lse.data(), 1, S, h);
    Softmax mean = {};
    for (int i = 0; i < HEADS; i++) {
        double square = 0;
        for (int j = 0; j < S; j++) {
            const double p = y[last + size_t(i * HS + j)], d = dscores[size_t(i * (2 * S - 1) + j)];
            mean.entropy -= p > 0 ? p * std::log(p) / HEADS : 0;
            square += d * d;
        }
        mean.gradient += std::sqrt(square) / HEADS;
    }
    return mean;
}
}    // namespace

// A product of two numbers of mean 0 and variance 1 has mean 0 and variance 1, and a score is a sum
// of HS of them.
TEST_CASE("textbook: scores have the variance of the head size, scaled ones 1") {
    const int n = 4096;
    for (int HS : {16, 32, 64, 128, 256}) {
        CAPTURE(HS);
        // The fourth moment of such a sum of normal numbers' products is 3 HS^2 + 6 HS, so that the
        // square has the variance 2 HS^2 + 6 HS. Five standard errors: one sound draw in two
        // million is further away.
        const double part = 5 * std::sqrt((2 + 6.0 / HS) / n);
        for (bool scaled : {false, true}) {
            const double variance = scaled ? 1 : HS;
            double sum = 0, squares = 0;
            for (float x : random_scores(n, HS, scaled ? 0 : 1)) sum += double(x), squares += double(x) * double(x);
            CHECK(std::fabs(sum / n) < 5 * std::sqrt(variance / n));
            CHECK(std::fabs(squares / n / variance - 1) < part);
        }
    }
}

// Scores that are far apart give one key nearly all weight. Such a softmax passes hardly any
// gradient.
TEST_CASE("textbook: unscaled, softmax hardens and its gradient vanishes as heads grow; scaled, neither") {
    const Softmax first = softmax_of(16, 0);
    Softmax before = {std::log(16.0), INFINITY};    // the highest entropy that 16 keys have
    for (int HS : {16, 64, 256}) {
        CAPTURE(HS);
        const Softmax scaled = softmax_of(HS, 0), unscaled = softmax_of(HS, 1);
        CHECK(scaled.entropy == doctest::Approx(first.entropy).epsilon(0.05));
        CHECK(scaled.gradient == doctest::Approx(first.gradient).epsilon(0.1));
        CHECK(unscaled.entropy < 0.7 * before.entropy);
        CHECK(unscaled.gradient < 0.7 * before.gradient);
        before = unscaled;
    }
    CHECK(before.entropy < first.entropy / 8);    // heads of 256
    CHECK(before.gradient < first.gradient / 3);
}

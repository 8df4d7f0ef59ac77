#include "cuda_test.h"
#include "tools/selftest/checks.h"

#include <cstdlib>

namespace {

// Which kernels bf16 goes to.
struct Use {
    explicit Use(const char* kernels) { setenv("FLATGPT_ATTENTION", kernels, 1); }
    ~Use() { unsetenv("FLATGPT_ATTENTION"); }
};

template <class T> void both_ways(const Ops<T>& op, int B, int S, Heads h, int document = 0, double scale = 1) {
    EXPECT(check_attention_forward(op, B, S, h, document, scale));
    EXPECT(check_attention_backward(op, B, S, h, document, scale));
}
void plain(int B, int S, Heads h, int document = 0) {
    Use use("plain");
    both_ways(cuda_ops<float>(Dtype::fp32), B, S, h, document);
    both_ways(cuda_ops<bf16>(Dtype::bf16), B, S, h, document);
}

// All outputs of both passes, as bits.
template <class T> std::vector<unsigned char> bits(const Ops<T>& op, int B, int S, Heads h) {
    const Memory m(op);
    const int64_t row = int64_t(h.NH + 2 * h.NKV) * h.HS, width = int64_t(h.NH) * h.HS;
    Array<T> qkv(m, random_normal(B * S * row, 1)), dy(m, random_normal(B * S * width, 2)), y(m, B * S * width),
        dqkv(m, B * S * row);
    Array<float> lse(m, int64_t(B) * h.NH * S);
    op.attention_forward(y, lse, qkv, B, S, h);
    op.attention_backward(dqkv, dy, y, qkv, lse, B, S, h);
    std::vector<unsigned char> all = y.bits();
    for (const auto& more : {lse.bits(), dqkv.bits()}) all.insert(all.end(), more.begin(), more.end());
    return all;
}

}   // namespace

// S, head size, heads a group, window and documents: each pair of values in some line.
TEST_CASE("cuda attention: every mask, group and head size against the reference") {
    plain(2, 1, {2, 2, 1});
    plain(1, 2, {4, 2, 64, 2}, 1);
    plain(2, 7, {6, 1, 3, 1}, 3);
    plain(1, 31, {2, 2, 7, 65});
    plain(2, 33, {4, 2, 8, 7}, 3);
    plain(1, 63, {6, 1, 32, 2});
    plain(1, 64, {2, 2, 40, 1}, 40);
    plain(1, 64, {6, 1, 64}, 1);
    plain(2, 65, {2, 1, 64, 63}, 40);
    plain(1, 65, {2, 2, 96, 2}, 3);
    plain(1, 127, {1, 1, 128, 65}, 3);
    plain(1, 128, {3, 1, 8, 128}, 40);
    plain(1, 129, {2, 1, 7}, 40);
    plain(1, 129, {1, 1, 96, 1});
    plain(1, 130, {2, 2, 64, 64}, 1);
    plain(1, 200, {2, 1, 40, 65});
    plain(1, 200, {1, 1, 64}, 130);
    plain(1, 130, {1, 1, 16, 2});
    plain(1, 33, {1, 1, 257});
    plain(1, 65, {2, 1, 256, 7}, 40);
}

TEST_CASE("cuda attention: large scores") {
    Use use("plain");
    const Heads h = {2, 1, 32};
    EXPECT(check_attention_forward(cuda_ops<bf16>(Dtype::bf16), 1, 100, h, 0, 6));
    // scores of some hundreds: their rounding alone is 1e-5 of a probability
    const Check check = check_attention_forward(cuda_ops<float>(Dtype::fp32), 1, 100, h, 0, 6);
    CAPTURE(check.worst);
    CHECK(check.worst < 10);
}

TEST_CASE("cuda attention: the same bits in any order of threads") {
    auto all = [](auto& op, Heads h) {
        std::vector<unsigned char> first;
        each_schedule([&] {
            const auto now = bits(op, 2, 130, h);
            if (first.empty()) first = now;
            CHECK(now == first);
        });
    };
    Use use("plain");
    all(cuda_ops<float>(Dtype::fp32), {2, 1, 40});
    all(cuda_ops<bf16>(Dtype::bf16), {2, 1, 36, 70});
    all(cuda_ops<float>(Dtype::fp32), {1, 1, 132});
}

TEST_CASE("cuda attention: a NaN key is seen by the positions after it and by no other") {
    const int S = 100, at = 70, HS = 16;
    const Heads h = {2, 2, HS, 20};
    const Ops<float>& op = cuda_ops<float>(Dtype::fp32);
    const Memory m(op);
    Numbers numbers = random_normal(S * 6 * HS, 1);
    numbers[size_t((at * 6 + 2) * HS + 5)] = NAN;    // k of head 0
    Array<float> qkv(m, numbers), y(m, S * 2 * HS), lse(m, 2 * S);
    op.attention_forward(y, lse, qkv, 1, S, h);
    const Numbers out = y.read();
    bool right = true;
    for (int s = 0; s < S; s++)
        for (int d = 0; d < 2 * HS; d++)
            right = right && std::isnan(out[size_t(s * 2 * HS + d)]) == (s >= at && s < at + 20 && d < HS);
    CHECK(right);
}

TEST_CASE("cuda attention: bf16 goes to the tensor cores where they take its head size") {
    const Ops<bf16>& op = cuda_ops<bf16>(Dtype::bf16);
    auto with = [&](const char* kernels, Heads h) {
        Use use(kernels);
        return bits(op, 1, 80, h);
    };
    const Heads wide = {2, 1, 40}, odd = {2, 1, 36};
    both_ways(op, 1, 80, wide);
    CHECK(bits(op, 1, 80, wide) == with("sm80", wide));
    CHECK(bits(op, 1, 80, wide) != with("plain", wide));
    CHECK(bits(op, 1, 80, odd) == with("plain", odd));
    if (cuda_device().major == 9) {
        const Heads h = {2, 1, 64};
        CHECK(bits(op, 1, 80, h) == with("sm90", h));
        CHECK(bits(op, 1, 80, h) != with("sm80", h));
    }
}

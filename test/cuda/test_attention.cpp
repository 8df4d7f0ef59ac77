#include <cstdlib>

#include "cuda_test.h"

#include "tools/selftest/cached.h"

namespace {
// Selects the attention kernels for bf16 while it lives.
struct Use {
    explicit Use(const char* kernels) { setenv("FLATGPT_ATTENTION", kernels, 1); }
    ~Use() { unsetenv("FLATGPT_ATTENTION"); }
};
// Bits of all outputs, forward and backward.
Bits bits(const Ops<bf16>& op, int B, int S, Heads h) {
    const Memory m(op);
    const int64_t row = int64_t(h.NH + 2 * h.NKV) * h.HS, width = int64_t(h.NH) * h.HS;
    Array<bf16> qkv(m, random_normal(B * S * row, 1)), dy(m, random_normal(B * S * width, 2)), y(m, B * S * width),
        dqkv(m, B * S * row);
    Array<float> lse(m, int64_t(B) * h.NH * S);
    op.attention_forward(y, lse, qkv, B, S, h);
    op.attention_backward(dqkv, dy, y, qkv, lse, B, S, h);
    return bits_of(y, lse, dqkv);
}
}    // namespace

TEST_CASE("cuda attention: bf16 goes to the tensor cores where they take its head size") {
    const Ops<bf16>& op = cuda_ops<bf16>(Dtype::bf16);
    auto with = [&](const char* kernels, Heads h) {
        Use use(kernels);
        return bits(op, 1, 80, h);
    };
    const Heads wide = {2, 1, 40}, odd = {2, 1, 36};
    CHECK(bits(op, 1, 80, wide) == with("sm80", wide));
    CHECK(bits(op, 1, 80, wide) != with("plain", wide));
    CHECK(bits(op, 1, 80, odd) == with("plain", odd));
    if (cuda_device().major == 9) {
        const Heads h = {2, 1, 64};
        CHECK(bits(op, 1, 80, h) == with("sm90", h));
        CHECK(bits(op, 1, 80, h) != with("sm80", h));
        for (int HS : {32, 96, 192, 256}) CHECK(bits(op, 1, 80, {2, 1, HS}) == with("sm90", {2, 1, HS}));
    }
}

TEST_CASE("cuda attention cached: a recorded call follows the position") {
    const Ops<float>& op = cuda_ops<float>(Dtype::fp32);
    REQUIRE((op.begin_capture != nullptr));
    const Heads h = {2, 1, 64};
    const Memory m(op);
    CacheArrays<float> cache(m, Element::f32, 1, h.HS, 13, {200}), again(m, Element::f32, 1, h.HS, 13, {200});
    Array<float> qkv(m, random_normal(4 * h.HS, 1)), y(m, 2 * h.HS), y2(m, 2 * h.HS);
    Array<int> pos(m, Numbers{0});
    auto at = [&](int p) { op.upload(static_cast<int*>(pos), &p, int64_t(sizeof p)); };
    op.attention_cached(y, qkv, cache.device(), 1, 1, pos, h);
    op.begin_capture();
    op.attention_cached(y, qkv, cache.device(), 1, 1, pos, h);
    void* graph = op.end_capture();
    op.attention_cached(y2, qkv, again.device(), 1, 1, pos, h);    // now both caches hold position 0
    for (int p : {63, 64, 199, 5, 128}) {
        at(p);
        op.launch_graph(graph);
        op.attention_cached(y2, qkv, again.device(), 1, 1, pos, h);
        CHECK(y.bits() == y2.bits());
    }
    op.release_graph(graph);
}

// Attention's kernels of sm_80 against the reference: every head size, mask and grouping, ragged
// tails; equal bits in every schedule. They are called directly, because attention.cu prefers other
// kernels on newer GPUs.
#include "layers/scratch.h"
#include "tools/selftest/attention.h"
#include "cuda_test.h"

void attention_forward_sm80(bf16* y, float* lse, const bf16* q, const bf16* kv, int B, int S, Heads h);
void attention_backward_sm80(bf16* dq, bf16* dkv, const bf16* dy, const bf16* y, const bf16* q, const bf16* kv,
                             const float* lse, int B, int S, Heads h);

namespace {

Ops<bf16> sm80() {
    Ops<bf16> op = cuda_ops<bf16>(Dtype::bf16);
    op.attention_forward = [](bf16* y, float* lse, const bf16* qkv, int B, int S, Heads h) {
        attention_forward_sm80(y, lse, qkv, qkv, B, S, h);
    };
    op.attention_backward = [](bf16* dqkv, const bf16* dy, const bf16* y, const bf16* qkv, const float* lse, int B,
                               int S, Heads h) { attention_backward_sm80(dqkv, dqkv, dy, y, qkv, qkv, lse, B, S, h); };
    op.cross_attention_forward = attention_forward_sm80;
    op.cross_attention_backward = attention_backward_sm80;
    return op;
}
void both_ways(int B, int S, Heads h, int document = 0, double scale = 1, TrueSpans::Kind kind = TrueSpans::causal) {
    REQUIRE(attention_fits_sm80(h));
    const TrueSpans spans(B, document ? S : 1, document ? document : 1, kind);
    if (document) h = spans.in(h);
    EXPECT(check_attention_forward(sm80(), B, S, h, scale));
    EXPECT(check_attention_backward(sm80(), B, S, h, scale));
}

// All outputs of both directions, as bits.
std::vector<unsigned char> bits(int B, int S, Heads h) {
    const Memory m(cuda_ops<bf16>(Dtype::bf16));
    const int64_t row = int64_t(h.NH + 2 * h.NKV) * h.HS, width = int64_t(h.NH) * h.HS;
    Array<bf16> qkv(m, random_normal(B * S * row, 1)), dy(m, random_normal(B * S * width, 2)), y(m, B * S * width),
        dqkv(m, B * S * row);
    Array<float> lse(m, int64_t(B) * h.NH * S);
    attention_forward_sm80(y, lse, qkv, qkv, B, S, h);
    attention_backward_sm80(dqkv, dqkv, dy, y, qkv, qkv, lse, B, S, h);
    std::vector<unsigned char> all = y.bits();
    for (const auto& more : {lse.bits(), dqkv.bits()}) all.insert(all.end(), more.begin(), more.end());
    return all;
}

}    // namespace

TEST_CASE("attention sm80: every length and head size") {
    const int sizes[] = {32, 64, 96, 128, 256, 40, 80, 8, 200};
    int i = 0;
    for (int S : {1, 2, 31, 63, 64, 65, 127, 128, 129, 193})
        for (int n = 0; n < 2; n++) both_ways(1, S, {1, 1, sizes[i++ % 9]});
    for (int HS : {32, 64, 96, 128, 256}) both_ways(1, 193, {1, 1, HS});
    CHECK(!attention_fits_sm80({1, 1, 264}));
    CHECK(!attention_fits_sm80({1, 1, 60}));
}

TEST_CASE("attention sm80: windows, documents and groups") {
    both_ways(2, 193, {1, 1, 64, 0}, 40);
    both_ways(1, 193, {2, 1, 64, 1}, 0);
    both_ways(1, 129, {4, 1, 32, 2}, 3);
    both_ways(1, 193, {2, 2, 32, 63}, 0);
    both_ways(2, 129, {3, 1, 40, 64}, 100);
    both_ways(1, 193, {4, 2, 64, 65}, 0);
    both_ways(2, 128, {2, 1, 96, 20}, 30);
    both_ways(1, 193, {2, 1, 96, 65}, 3);
    both_ways(1, 300, {1, 1, 128, 2}, 64);
    both_ways(2, 129, {4, 1, 128, 0}, 65);
    both_ways(1, 65, {2, 1, 128, 70}, 1);
    both_ways(1, 193, {2, 1, 256, 63}, 0);
    both_ways(2, 100, {2, 2, 256, 105}, 33);
    both_ways(2, 64, {6, 2, 80, 7}, 1);
}

TEST_CASE("attention sm80: prefixes and bidirectional attention") {
    for (TrueSpans::Kind kind : {TrueSpans::prefix, TrueSpans::all})
        for (int HS : {32, 64, 80, 128, 256}) {
            both_ways(2, 150, {2, 1, HS}, 60, 1, kind);
            both_ways(1, 193, {1, 1, HS}, 100000, 1, kind);
        }
    for (int window : {1, 2, 64, 65})    // in both directions
        for (int HS : {32, 64, 96, 256})
            both_ways(1, 193, {2, 1, HS, window}, window == 2 ? 60 : 100000, 1, TrueSpans::all);
}

TEST_CASE("attention sm80: dropout") {
    auto dropping = [](Heads h, int64_t first) {
        h.dropout = {0.3f, 42, first};
        return h;
    };
    for (int HS : {32, 64, 96, 128, 256, 40}) both_ways(1, 193, dropping({2, 1, HS}, HS));
    both_ways(2, 150, dropping({2, 2, 64, 65}, 0), 40);
    both_ways(2, 150, dropping({2, 1, 64}, 3), 60, 1, TrueSpans::all);
    both_ways(1, 193, dropping({.NH = 2, .NKV = 1, .HS = 64, .window = 20, .stride = 3, .global_tokens = 5}, 3));
    both_ways(1, 193, dropping({.NH = 2, .NKV = 2, .HS = 32, .window = 40, .stride = 0, .global_tokens = 70}, 3));
    Heads capped = {4, 2, 64};
    capped.softcap = 2, capped.alibi = true;
    both_ways(1, 100, dropping(capped, 5));
}

TEST_CASE("attention sm80: strides and global keys beside a window") {
    for (int HS : {32, 64, 96, 128, 256})
        for (const auto& [window, stride, global_tokens] :
             {std::tuple{20, 3, 0}, {40, 0, 70}, {1, 50, 1}, {33, 2, 40}}) {
            Heads h = {2, 1, HS, window};
            h.stride = stride, h.global_tokens = global_tokens;
            both_ways(1, HS == 64 ? 290 : 150, h);
        }
    Heads shaped = {4, 2, 64, 30};
    shaped.stride = 5, shaped.global_tokens = 3, shaped.alibi = true, shaped.softcap = 2;
    both_ways(1, 200, shaped);
}

TEST_CASE("attention sm80: soft caps, ALiBi, other scales") {
    auto shaped = [](Heads h, float scale, float softcap, bool alibi) {
        h.scale = scale, h.softcap = softcap, h.alibi = alibi;
        return h;
    };
    for (int HS : {32, 64, 80, 128, 256}) {
        both_ways(1, 193, shaped({2, 1, HS}, 0, 1.5f, false));
        both_ways(1, 130, shaped({6, 2, HS}, 0, 0, true));
        both_ways(2, 100, shaped({3, 1, HS, 40}, 0.2f, 2, true), 30);
        both_ways(1, 65, shaped({1, 1, HS}, 0.3f, 0, false));
    }
}

TEST_CASE("attention sm80: large and small scores") {
    for (double scale : {0.01, 6.0}) both_ways(1, 193, {2, 1, 64}, 0, scale);
    both_ways(1, 129, {1, 1, 128}, 0, 6);
    EXPECT(check_attention_forward(sm80(), 1, 193, {1, 1, 64}, 30));    // probabilities of 0 and 1
}

TEST_CASE("attention sm80: the same bits whatever the schedule") {
    for (Heads h : {Heads{2, 1, 32}, Heads{2, 1, 64}, Heads{1, 1, 96, 70}, Heads{1, 1, 128}, Heads{1, 1, 256}}) {
        CAPTURE(h.HS);
        const int S = h.HS == 256 ? 80 : h.HS > 64 ? 130 : 260;    // more tiles than are in flight
        const auto once = bits(1, S, h);
        each_order([&] { CHECK(bits(1, S, h) == once); });
    }
}

// Attention's kernels of sm_90 against the reference: every mask, grouped heads, ragged tails;
// equal bits in every schedule. They are called directly, because attention.cu uses them only on
// sm_90.
#include <cstdlib>

#include "cuda_test.h"
#include "layers/attention/row_order.h"
#include "tools/selftest/attention.h"

bool attention_has_sm90();
void attention_forward_sm90(bf16* y, float* lse, const bf16* q, const bf16* kv, int B, int S, Heads h);
void attention_backward_sm90(bf16* dq, bf16* dkv, const bf16* dy, const bf16* y, const bf16* q, const bf16* kv,
                             const float* lse, int B, int S, Heads h);
void attention_forward_sm80(bf16* y, float* lse, const bf16* q, const bf16* kv, int B, int S, Heads h);
void attention_backward_sm80(bf16* dq, bf16* dkv, const bf16* dy, const bf16* y, const bf16* q, const bf16* kv,
                             const float* lse, int B, int S, Heads h);

namespace {

constexpr int SIZES[] = {32, 64, 96, 128, 192, 256};

// Error relative to the 2-norm of the whole result: bf16 probabilities cost about 2e-3. The small
// term is for gradients that are zero (S = 1, window 1).
double relative_error(const Numbers& got, const Numbers& expected) {
    double error = 0, square = 0;
    for (size_t i = 0; i < got.size(); i++)
        error += (got[i] - expected[i]) * (got[i] - expected[i]), square += expected[i] * expected[i];
    return std::sqrt(error / (square + 1e-8 * double(got.size())));
}
double largest_error(const Numbers& got, const Numbers& expected) {
    double worst = 0;
    for (size_t i = 0; i < got.size(); i++) worst = worse(worst, std::fabs(got[i] - expected[i]));
    return worst;
}

struct Case {
    int B, S, NH, NKV, HS, window = 0, documents = 0;    // documents: their mean length, 0: none
    double scale = 1;                                    // factor on qkv
    float softcap = 0;
    bool alibi = false;
    float score_scale = 0;
    TrueSpans::Kind kind = TrueSpans::causal;
};

// A part of packed qkv: q (0), k (1) or v (2).
Numbers part_of(const Numbers& qkv, const Case& c, int part) {
    const size_t NH = size_t(c.NH), NKV = size_t(c.NKV), HS = size_t(c.HS);
    const size_t first = (part > 0 ? NH : 0) + (part > 1 ? NKV : 0), heads = part ? NKV : NH;
    Numbers out;
    for (size_t at = first * HS; at < qkv.size(); at += (NH + 2 * NKV) * HS)
        out.insert(out.end(), qkv.begin() + long(at), qkv.begin() + long(at + heads * HS));
    return out;
}

// Forward and backward pass, each from the reference's inputs. in_turns: the order in which blocks
// begin must not change a bit of dqkv.
void check(const Case& c, bool in_turns = true) {
    CAPTURE(c.B);
    CAPTURE(c.S);
    CAPTURE(c.NH);
    CAPTURE(c.NKV);
    CAPTURE(c.HS);
    CAPTURE(c.window);
    CAPTURE(c.documents);
    const Memory memory(cuda_ops<bf16>(Dtype::bf16));
    const TrueSpans spans(c.B, c.documents ? c.S : 1, c.documents ? c.documents : 1, c.kind);
    const int64_t N = int64_t(c.B) * c.S, row = (c.NH + 2 * c.NKV) * c.HS;
    const Numbers qkv = rounded<bf16>(random_normal(N * row, 1, c.scale));
    const Numbers dy = rounded<bf16>(random_normal(N * c.NH * c.HS, 2));

    Numbers y(dy.size()), dqkv(qkv.size());
    std::vector<float> lse(size_t(N * c.NH));
    Heads h{.NH = c.NH,
            .NKV = c.NKV,
            .HS = c.HS,
            .window = c.window,
            .scale = c.score_scale,
            .softcap = c.softcap,
            .alibi = c.alibi};
    if (c.documents) h = spans.in(h);
    reference_ops().attention_forward(y.data(), lse.data(), qkv.data(), c.B, c.S, h);
    const Numbers saved_y = rounded<bf16>(y), saved_lse(lse.begin(), lse.end());
    reference_ops().attention_backward(dqkv.data(), dy.data(), saved_y.data(), qkv.data(), lse.data(), c.B, c.S, h);

    Array<bf16> qkv_(memory, qkv), dy_(memory, dy), y_(memory, saved_y);
    Array<float> lse_(memory, saved_lse);
    TableSpans spans_(memory, spans);
    if (c.documents) h = spans_.in(h);
    REQUIRE(attention_has_sm90());
    std::vector<unsigned char> y_bits, lse_bits, dqkv_bits;
    for (int again = 0; again < (cuda_emulated() ? 1 : 4); again++)
        each_order([&] {
            Array<bf16> got_y(memory, N * c.NH * c.HS), got_dqkv(memory, N * row);
            Array<float> got_lse(memory, N * c.NH);
            attention_forward_sm90(got_y, got_lse, qkv_, qkv_, c.B, c.S, h);
            attention_backward_sm90(got_dqkv, got_dqkv, dy_, y_, qkv_, qkv_, lse_, c.B, c.S, h);
            CHECK(got_y.intact());
            CHECK(got_lse.intact());
            CHECK(got_dqkv.intact());
            CHECK(relative_error(got_y.read(), y) <= 5e-3);
            CHECK(largest_error(got_lse.read(), saved_lse) <= 1e-3);
            const Numbers got = got_dqkv.read();
            for (int part = 0; part < 3; part++) {
                CAPTURE(part);
                CHECK(relative_error(part_of(got, c, part), part_of(dqkv, c, part)) <= 5e-3);
            }
            if (y_bits.empty()) y_bits = got_y.bits(), lse_bits = got_lse.bits(), dqkv_bits = got_dqkv.bits();
            CHECK(got_y.bits() == y_bits);
            CHECK(got_lse.bits() == lse_bits);
            if (in_turns) CHECK(got_dqkv.bits() == dqkv_bits);
        });
}

}    // namespace

TEST_CASE("attention sm90: every length") {
    NEED_SM90();
    for (int HS : SIZES)
        for (int S : {1, 64, 127, 128, 129, 191, 256, 257, 385}) check({1, S, 1, 1, HS});
}

// More tiles of rows than the emulator has blocks: a block continues with other heads and
// sequences.
TEST_CASE("attention sm90: blocks that go on with other rows") {
    NEED_SM90();
    for (int HS : {64, 96, 256}) {
        check({3, 100, 5, 1, HS});                  // one key tile for each row tile
        check({3, 300, 4, 2, HS});                  // one to three key tiles
        check({1, 650, 2, 2, HS, 0, 150});          // numbers of key tiles in no order
        check({1, 520, 3, 1, HS, 140, 0, 1, 2});    // visible tiles differ within a warp
    }
}

// Keys and values of 133 heads exceed the forward kernel's share of L2 (L2_BYTES): blocks first
// process 131 heads, then 2.
TEST_CASE("attention sm90: heads in two parts") {
    NEED_SM90();
    const Memory memory(cuda_ops<bf16>(Dtype::bf16));
    const int S = 250, NH = 133, HS = 128;
    const Numbers qkv = rounded<bf16>(random_normal(int64_t(S) * 3 * NH * HS, 4));
    Numbers y(size_t(S) * NH * HS);
    std::vector<float> lse(size_t(S) * NH);
    reference_ops().attention_forward(y.data(), lse.data(), qkv.data(), 1, S, {NH, NH, HS});
    Array<bf16> qkv_(memory, qkv), got_y(memory, int64_t(y.size()));
    Array<float> got_lse(memory, int64_t(lse.size()));
    attention_forward_sm90(got_y, got_lse, qkv_, qkv_, 1, S, {NH, NH, HS});
    CHECK(got_y.intact());
    CHECK(got_lse.intact());
    CHECK(relative_error(got_y.read(), y) <= 5e-3);
    CHECK(largest_error(got_lse.read(), Numbers(lse.begin(), lse.end())) <= 1e-3);
}

TEST_CASE("attention sm90: the order of rows has each once, and of heads that go together the longest first") {
    for (int heads : {1, 2, 7, 12, 48})
        for (int tiles : {1, 2, 8, 13})
            for (int together : {1, 2, 5, 48}) {
                const RowOrder order{heads, tiles, std::min(together, heads)};
                std::vector<int> times(size_t(order.all()));
                for (int i = 0; i < order.all(); i++) {
                    const RowOrder::Rows r = order[i];
                    REQUIRE((r.head >= 0 && r.head < heads && r.tile >= 0 && r.tile < tiles));
                    times[size_t(r.head * tiles + r.tile)]++;
                    const int section = i / (order.together * tiles);
                    CHECK(r.head / order.together == section);
                    CHECK((i % (order.together * tiles) == 0 || r.tile <= order[i - 1].tile));
                }
                CHECK(std::count(times.begin(), times.end(), 1) == order.all());
            }
}

TEST_CASE("attention sm90: windows and documents") {
    NEED_SM90();
    for (int HS : SIZES) {
        for (int window : {1, 64, 65, 390}) check({1, 385, 1, 1, HS, window});
        for (int documents : {1, 37, 200}) check({1, 300, 1, 1, HS, 0, documents});
        check({1, 385, 1, 1, HS, 100, 150});
    }
}

TEST_CASE("attention sm90: prefixes and bidirectional attention") {
    NEED_SM90();
    for (TrueSpans::Kind kind : {TrueSpans::prefix, TrueSpans::all})
        for (int HS : {32, 128, 192})
            for (int documents : {37, 150, 100000})
                check({.B = 1, .S = 300, .NH = 2, .NKV = 1, .HS = HS, .documents = documents, .kind = kind});
    for (int window : {1, 63, 65, 130})    // in both directions
        for (int documents : {150, 100000})
            check({.B = 1,
                   .S = 385,
                   .NH = 2,
                   .NKV = 1,
                   .HS = window == 65 ? 128 : 64,
                   .window = window,
                   .documents = documents,
                   .kind = TrueSpans::all});
    // Some warps have rows of two documents, and the second document spans several tiles.
    check({.B = 1, .S = 900, .NH = 1, .NKV = 1, .HS = 64, .documents = 300, .kind = TrueSpans::all});
    check({.B = 1,
           .S = 300,
           .NH = 1,
           .NKV = 1,
           .HS = 64,
           .documents = 150,
           .softcap = 2,
           .alibi = true,
           .kind = TrueSpans::all});
}

TEST_CASE("attention sm90: sequences and grouped heads") {
    NEED_SM90();
    for (int HS : SIZES) {
        check({2, 191, 1, 1, HS, 0, 50});
        check({1, 257, 4, 2, HS, 70});
        check({1, 129, 8, 2, HS, 0, 90});
    }
}

TEST_CASE("attention sm90: soft caps, ALiBi, other scales") {
    NEED_SM90();
    for (int HS : SIZES) {
        check({1, 200, 4, 2, HS, 0, 0, 1.5, 2});
        check({1, 129, 6, 2, HS, 0, 0, 1, 0, true});
        check({2, 260, 3, 1, HS, 70, 60, 1, 1.5f, true, 0.2f});
        check({1, 140, 1, 1, HS, 0, 0, 1, 0, false, 0.3f});
    }
}

// Short documents and a large scale: some rows have so low an lse that exp(0 - lse), the weight of
// a padded key with score 0, would be infinite.
TEST_CASE("attention sm90: keys behind the last one weigh nothing") {
    NEED_SM90();
    for (int HS : {64, 192}) check({.B = 4, .S = 300, .NH = 1, .NKV = 1, .HS = HS, .documents = 2, .score_scale = 20});
}

TEST_CASE("attention sm90: a softmax that saturates") {
    NEED_SM90();
    for (int HS : SIZES) check({1, 260, 1, 1, HS, 0, 0, 3});
}

TEST_CASE("attention sm90: sums in any order") {
    NEED_SM90();
    setenv("FLATGPT_ATTENTION_ORDER", "any", 1);
    for (int HS : SIZES) check({1, 257, 2, 1, HS}, false);
    unsetenv("FLATGPT_ATTENTION_ORDER");
}

TEST_CASE("attention sm90: more tensors than there are maps for") {
    NEED_SM90();
    const Memory memory(cuda_ops<bf16>(Dtype::bf16));
    const int tensors = 300, row = 3 * 64;
    const Numbers qkv = rounded<bf16>(random_normal(tensors * row, 3));
    Array<bf16> qkv_(memory, qkv), y(memory, tensors * 64);
    Array<float> lse(memory, tensors);
    auto forward = [&](int i) {
        const bf16* at = static_cast<bf16*>(qkv_) + i * row;
        attention_forward_sm90(static_cast<bf16*>(y) + i * 64, static_cast<float*>(lse) + i, at, at, 1, 1, {1, 1, 64});
    };
    for (int i = 0; i < tensors; i++) forward(i);
    forward(0), forward(tensors - 1);    // map no longer kept; map still kept
    const Numbers got = y.read();
    for (int i = 0; i < tensors; i++)    // one position: y is its v
        for (int d = 0; d < 64; d++) CHECK(got[size_t(i * 64 + d)] == qkv[size_t(i * row + 128 + d)]);
}

// Only a GPU runs many blocks at a time: blocks wait for their turn to add to dq, and the sums keep
// their order. Expected are the results of the sm_80 kernels, because the reference would take
// minutes.
TEST_CASE("attention sm90: the sizes of a model, on a GPU") {
    NEED_SM90();
    if (cuda_emulated()) SKIP("too large for the emulator");
    const Memory memory(cuda_ops<bf16>(Dtype::bf16));
    for (Case c :
         {Case{4, 1024, 12, 12, 64}, Case{1, 4096, 8, 2, 128}, Case{2, 2000, 8, 8, 64, 300}, Case{2, 1024, 8, 8, 32},
          Case{2, 1024, 8, 8, 96}, Case{2, 1024, 8, 4, 192}, Case{2, 1024, 8, 4, 256}}) {
        CAPTURE(c.S);
        CAPTURE(c.HS);
        const Heads h{c.NH, c.NKV, c.HS, c.window};
        const int64_t N = int64_t(c.B) * c.S, row = (c.NH + 2 * c.NKV) * c.HS;
        Array<bf16> qkv(memory, random_normal(N * row, 1)), dy(memory, random_normal(N * c.NH * c.HS, 2));
        Array<bf16> y(memory, N * c.NH * c.HS), dqkv(memory, N * row);
        Array<float> lse(memory, N * c.NH);
        attention_forward_sm80(y, lse, qkv, qkv, c.B, c.S, h);
        attention_backward_sm80(dqkv, dqkv, dy, y, qkv, qkv, lse, c.B, c.S, h);
        const Numbers expected = dqkv.read();
        std::vector<unsigned char> y_bits, dqkv_bits;
        for (int again = 0; again < 20; again++) {
            Array<bf16> got_y(memory, y.size()), got_dqkv(memory, dqkv.size());
            Array<float> got_lse(memory, lse.size());
            attention_forward_sm90(got_y, got_lse, qkv, qkv, c.B, c.S, h);
            attention_backward_sm90(got_dqkv, got_dqkv, dy, y, qkv, qkv, lse, c.B, c.S, h);
            if (y_bits.empty()) y_bits = got_y.bits(), dqkv_bits = got_dqkv.bits();
            CHECK(got_y.bits() == y_bits);
            CHECK(got_dqkv.bits() == dqkv_bits);
            if (again) continue;
            CHECK(relative_error(got_y.read(), y.read()) <= 1e-2);    // each is within 5e-3
            CHECK(largest_error(got_lse.read(), lse.read()) <= 1e-3);
            const Numbers got = got_dqkv.read();
            for (int part = 0; part < 3; part++)
                CHECK(relative_error(part_of(got, c, part), part_of(expected, c, part)) <= 1e-2);
        }
    }
}

// test_generation.cpp - a generated token on the CUDA backend: its number of launches, and equal
// bits with and without fused operations.
#include "cuda_test.h"
#include "test/model_checks.h"

namespace {
// The table without the fused operations of generation.
Table in_steps(Table op) {
    op.norm_linear_forward = nullptr, op.norm_ffn_forward = nullptr, op.rope_attention_cached = nullptr;
    return op;
}
Table rope_table_of(bool half) {
    return half ? Table(cuda_ops<bf16>(Dtype::bf16)) : Table(cuda_ops<float>(Dtype::fp32));
}

// Logits of B sequences, token by token after a prompt; launches of the last token: all, and those
// that overlap the previous kernel.
struct Generated {
    std::vector<float> logits;
    int64_t launches, overlapping;
    Generated(const Table& op, const Config& c, int B, std::optional<Element> type = {}) {
        const int prompt = 5, tokens = 6;
        Model g(op);
        toy_model(g, c, {RunMode::infer, B, prompt});
        KvCache cache;
        REQUIRE(allocate_cache(g, cache, B, 32, {type}).ok());
        std::vector<float> last(size_t(B * c.V));
        for (int i = 0; i <= tokens; i++) {
            const int S = i ? 1 : prompt;
            launches = -cuda_launches(), overlapping = -cuda_launches(true);
            compute_logits(g, extend(g, cache, toy_tokens(B * S, c.V, uint64_t(i)).data(), S), last.data());
            launches += cuda_launches(), overlapping += cuda_launches(true);
            append(logits, last);
        }
    }
};

const Config GPT2_LIKE = {101, 48, 3, 2, 64};
Config llama_like(QkNormRope::QkNorm norm) {
    Config c = kind_configs({.V = 61, .T = 40, .L = 3, .NH = 4, .C = 128, .F = 88, .NKV = 2, .HS = 32})[0].c;
    c.qk_norm = norm;
    return c;
}
}    // namespace

TEST_CASE("cuda generation: a token is at most five launches a layer and six") {
    if (!cuda_emulated()) SKIP("only the emulator counts launches");
    struct Form {
        const char* name;
        Config c;
        int layer;
    };    // layer: launches per layer without fusion
    for (const Form& f : {Form{"GPT-2", GPT2_LIKE, 7},
                          {"Llama", llama_like(QkNormRope::QkNorm::none), 9},
                          {"Qwen 3", llama_like(QkNormRope::QkNorm::head), 9}})
        for (bool half : {false, true})
            for (int B = 1; B <= 4; B++) {
                CAPTURE(std::string(f.name));
                CAPTURE(half);
                CAPTURE(B);
                const Generated fused(rope_table_of(half), f.c, B), steps(in_steps(rope_table_of(half)), f.c, B);
                CHECK(fused.launches <= 5 * f.c.L + 6);
                CHECK(fused.launches == 5 * f.c.L + 3);    // 3: embedding, final norm, head
                CHECK(fused.overlapping == (cuda_device().major >= 9 ? fused.launches - 1 : 0));    // all but the first
                CHECK(steps.launches == f.layer * f.c.L + 3);
                CHECK(fused.logits == steps.logits);
            }
}

TEST_CASE("cuda generation: kernels that begin before the one in front has ended read nothing of it") {
    if (!cuda_emulated() || cuda_device().major < 9) SKIP("schedules are the emulator's, overlaps sm_90's");
    for (const Config& c : {GPT2_LIKE, llama_like(QkNormRope::QkNorm::head)})
        for (bool half : {false, true}) {
            CAPTURE(half);
            const std::vector<float> expected = Generated(rope_table_of(half), c, 2).logits;
            for (uint64_t seed = 1; seed <= 4; seed++) {
                CAPTURE(seed);
                cuda_schedule(seed);
                CHECK(Generated(rope_table_of(half), c, 2).logits == expected);
                cuda_schedule(0);
            }
        }
}

TEST_CASE("cuda generation: every kind of model the same, to the bit, as in steps") {
    for (const auto& [name, c] : kind_configs({.V = 61, .T = 40, .L = 2, .NH = 4, .C = 64, .F = 88, .NKV = 2}))
        for (auto [half, B] : {std::pair{false, 3}, {true, 1}}) {
            CAPTURE(std::string(name));
            CAPTURE(half);
            CHECK(Generated(rope_table_of(half), c, B).logits == Generated(in_steps(rope_table_of(half)), c, B).logits);
        }
    for (Element type : {Element::bf16, Element::int8}) {
        const Config c = llama_like(QkNormRope::QkNorm::head);
        CHECK(Generated(rope_table_of(false), c, 2, type).logits ==
              Generated(in_steps(rope_table_of(false)), c, 2, type).logits);
    }
}

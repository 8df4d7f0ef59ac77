// test_sampling.cpp - tokens drawn on the CUDA backend: equal to the host's, with few launches.
#include "cuda_test.h"
#include "test/ahead_checks.h"

namespace {
Table rope_table_of(bool half) {
    return half ? Table(cuda_ops<bf16>(Dtype::bf16)) : Table(cuda_ops<float>(Dtype::fp32));
}
}    // namespace

TEST_CASE("cuda sampling: a token that the device draws is at most five launches a layer and six") {
    if (!cuda_emulated()) SKIP("only the emulator counts launches");
    const Config c = {101, 48, 3, 2, 64};
    for (const SampleParams& draw :
         {SampleParams{.temperature = 0}, SampleParams{}, SampleParams{.min_p = 0.1}, SampleParams{.top_k = 50},
          SampleParams{.top_p = 0.9, .min_p = 0.1, .repetition = 1.2}})
        for (int B : {1, 4}) {
            Model g(rope_table_of(true));
            toy_model(g, c, {RunMode::infer, B, 5});
            KvCache cache;
            REQUIRE(allocate_cache(g, cache, B, 32).ok());
            Array<int> token_counts(g.op, Numbers(size_t(B * c.V)));
            Array<uint64_t> at(g.op, Numbers(size_t(3 * B)));
            const SampleArgs sample_args = {.counts = or_null(draw.penalises(), token_counts),
                                            .at = reinterpret_cast<SampleState*>(static_cast<uint64_t*>(at)),
                                            .params = draw,
                                            .V = c.V};
            for (int i = 0; i < 6; i++) {    // later steps replay the recorded one
                const int64_t before = cuda_launches();
                extend(g, cache, i > 2 ? nullptr : toy_tokens(B, c.V, uint64_t(i)).data(), 1, {}, {},
                       Pages::SumOrder::decode, &sample_args);
                CAPTURE(i);
                CAPTURE(B);
                CHECK(cuda_launches() - before <= 5 * c.L + 6);
            }
        }
}

TEST_CASE("cuda sampling: what the device draws is what the sampler draws") {
    for (auto [V, ties] : {std::pair{1, false}, {9, true}, {100, false}, {1030, true}, {2100, false}}) {
        expect_draws_of_sampler(cuda_ops<float>(Dtype::fp32), V < 1000 ? 96 : 16, V, ties);
        expect_draws_of_sampler(cuda_ops<bf16>(Dtype::bf16), V < 1000 ? 32 : 16, V, ties);
    }
}

TEST_CASE("cuda sampling: texts that the device draws are the host's") {
    Config toy = {.V = 94, .T = 16, .L = 2, .NH = 2, .C = 32, .F = 64, .tied = false};
    GenerationOptions what;
    for (int i = 0; i < 3; i++) what.prompts.push_back(toy_tokens(3 + 2 * i, 94, uint64_t(i)));
    what.tokens = 14, what.batch = 2, what.stop = {"a"};
    for (const Sampling& s : device_samplings())
        for (bool half : {false, true}) {
            what.sampling = s;
            expect_same_texts(rope_table_of(half), toy, what);
        }
    what.num = 2;
    what.batch = 5;    // contexts that fill; rows beyond fused kernels
    what.sampling = {.temperature = 1.5, .top_k = 20, .penalties = {.repetition = 1.2}};
    toy.T = 12;
    expect_same_texts(rope_table_of(true), toy, what);
    const Config small = {.V = 94, .T = 24, .L = 2, .NH = 2, .C = 32, .F = 24, .NKV = 1};
    for (const auto& [name, c] : kind_configs(small)) {
        CAPTURE(std::string(name));
        what.tokens = 6;
        expect_same_texts(rope_table_of(false), c, what);
    }
}

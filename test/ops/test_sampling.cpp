#include "ops.h"

#include "tools/selftest/sampling.h"

namespace {
const SampleParams DRAWS[] = {
    {.temperature = 0},
    {},
    {.temperature = 0.7},
    {.top_k = 1},
    {.temperature = 6, .top_k = 2},    // top-k at most the number of parts
    {.temperature = 6, .top_k = 3},
    {.temperature = 0.8, .top_k = 7},
    {.top_k = 50},
    {.top_k = 1030},
    {.top_p = 0.01},
    {.temperature = 3, .top_p = 0},
    {.temperature = 3, .top_p = 0.9},
    {.temperature = 1.5, .min_p = 0.02},
    {.repetition = 1.3},
    {.temperature = 0, .repetition = 1.3, .presence = 0.4},
    {.frequency = 0.3, .seed = uint64_t(1) << 40},
    {.temperature = 5, .top_k = 200, .top_p = 0.95, .min_p = 0.01},
    {.temperature = 2, .top_k = 30, .top_p = 0.8, .min_p = 0.1, .repetition = 1.1, .presence = 0.2, .frequency = 0.1}};
}    // namespace

// On a GPU, vocabularies of one part (1024 tokens) and of several, full and partial; 18 rows, more
// than run at a time.
TEST_CASE("sample: against the reference") {
    in_each_order([](auto& op) {
        int k = 0;
        for (const SampleParams& draw : DRAWS)
            for (int V : {1, 2, 5, 33, 257, 1024, 1025, 3000}) {
                EXPECT(check_sample(op, k % 11 ? 1 + k % 5 : 18, V, V + k % 4, draw, {}, k % 3 == 1, k % 2 == 0));
                k++;
            }
    });
}

TEST_CASE("sample: scaled and capped logits") {
    each_table([](auto& op) {
        for (Logits z : {Logits{0.3f, 0}, Logits{1, 2}, Logits{1.7f, 5}})
            for (const SampleParams& draw : {SampleParams{.temperature = 0}, SampleParams{}, SampleParams{.top_k = 9}})
                EXPECT(check_sample(op, 3, 300, 304, draw, z));
    });
}

TEST_CASE("sample: the vocabulary of Qwen") {
    each_table([](auto& op) {
        for (const SampleParams& draw : {SampleParams{}, SampleParams{.temperature = 0.8, .top_k = 50},
                                         SampleParams{.temperature = 2, .top_p = 0.95}})
            EXPECT(check_sample(op, 2, 151936, 151936, draw, {}, false, true));
    });
}

TEST_CASE("sample: the same ids twice, in any order, and alone") {
    const int N = 19, V = 2500, Vp = 2504;
    each_table([&]<class T, class P>(const Ops<T, P>& op) {
        if (!op.sample) return;
        Array<T> x(op, random_normal(N * Vp, 1, 2));
        Numbers at;
        for (int n = 0; n < N; n++) at.insert(at.end(), {double(n), 5, 0});
        for (SampleParams draw : {SampleParams{.temperature = 3}, SampleParams{.temperature = 3, .top_p = 0.9}}) {
            Array<int> ids(op, N);
            expect_same_bits([&] {
                DualStates states(op, at);
                op.sample(ids, nullptr, states.device(), nullptr, nullptr, x, nullptr, draw, {}, N, V, Vp);
                return bits_of(ids);
            });
            for (int n = 0; n < N; n += 6) {
                Array<int> one(op, 1);
                DualStates state(op, Numbers(at.begin() + 3 * n, at.begin() + 3 * n + 3));
                op.sample(one, nullptr, state.device(), nullptr, nullptr, x + n * Vp, nullptr, draw, {}, 1, V, Vp);
                CHECK(one.read()[0] == ids.read()[size_t(n)]);
            }
        }
    });
}

TEST_CASE("sample: rows without a finite logit, and with one that is infinite") {
    each_table([]<class T, class P>(const Ops<T, P>& op) {
        if (!op.sample) return;
        DualStates state(op, Numbers{0, 1, 0});
        const int V = 1500;
        Numbers none(V, -INFINITY), spoiled(V, double(NAN)), endless = random_normal(V, 1);
        endless[1300] = endless[1400] = INFINITY;
        for (const SampleParams& draw : {SampleParams{.temperature = 0}, SampleParams{}, SampleParams{.min_p = 0.1},
                                         SampleParams{.top_k = 3}, SampleParams{.top_p = 0.5}})
            for (auto& [logits, id] : {std::pair{none, 0}, {spoiled, 0}, {endless, 1300}}) {
                Array<T> x(op, logits);
                Array<int> ids(op, 1);
                op.sample(ids, nullptr, state.device(), nullptr, nullptr, x, nullptr, draw, {}, 1, V, V);
                CHECK(ids.read()[0] == id);
            }
    });
}

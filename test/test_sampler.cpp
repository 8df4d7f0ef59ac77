// test_sampler.cpp - the choice of tokens by hand-made logits.
#include "infer/sampler.h"

#include <set>

#include "test.h"

namespace {
const Sampling PLAIN = {.temperature = 1, .top_k = 0};

int draw(const std::vector<float>& logits, const Sampling& s, const std::vector<int>& seen = {}, uint64_t sequence = 0,
         uint64_t place = 0) {
    Sampler sampler = Sampler::open(s, {}, int(logits.size())).value.of(sequence);
    sampler.see(seen);
    return sampler.choose(logits.data(), place).id;
}
std::set<int> candidates(const std::vector<float>& logits, const Sampling& s) {
    std::set<int> ids;
    for (uint64_t place = 0; place < 4000; place++) ids.insert(draw(logits, s, {}, 0, place));
    return ids;
}
}    // namespace

TEST_CASE("sampler: the candidates that top-k, top-p and min-p leave") {
    const std::vector<float> logits = {0, 2, -1, 1, -2};    // probabilities .086 .636 .032 .234 .012
    using Ids = std::set<int>;
    auto with = [&](const Sampling& s) { return candidates(logits, s); };
    CHECK(with(PLAIN) == Ids{0, 1, 2, 3, 4});
    CHECK(with({.temperature = 1, .top_k = 1}) == Ids{1});
    CHECK(with({.temperature = 1, .top_k = 2}) == Ids{1, 3});
    CHECK(with({.temperature = 1, .top_k = 4}) == Ids{0, 1, 2, 3});
    CHECK(with({.temperature = 1, .top_k = 9}) == Ids{0, 1, 2, 3, 4});
    CHECK(with({.temperature = 1, .top_k = 0, .top_p = 0.01}) == Ids{1});
    CHECK(with({.temperature = 1, .top_k = 0, .top_p = 0.62}) == Ids{1});
    CHECK(with({.temperature = 1, .top_k = 0, .top_p = 0.65}) == Ids{1, 3});
    CHECK(with({.temperature = 1, .top_k = 0, .top_p = 0.9}) == Ids{0, 1, 3});
    CHECK(with({.temperature = 1, .top_k = 2, .top_p = 0.7}) == Ids{1});    // .731 of what top-k leaves
    CHECK(with({.temperature = 1, .top_k = 0, .min_p = 0.2}) == Ids{1, 3});      // against the likeliest: .368
    CHECK(with({.temperature = 1, .top_k = 0, .min_p = 0.1}) == Ids{0, 1, 3});    // .135
    CHECK(with({.temperature = 2, .top_k = 0, .min_p = 0.2}) == Ids{0, 1, 2, 3});
    CHECK(with({.temperature = 1, .top_k = 0, .min_p = 1}) == Ids{1});
}

TEST_CASE("sampler: top-k of many, with ties and penalties, is the head of the sorted scores") {
    std::vector<float> logits(5000);
    for (size_t i = 0; i < logits.size(); i++) logits[i] = std::floor(8 * philox_normal(1, 2, i)) / 4;
    logits[17] = NAN, logits[19] = -INFINITY;
    const std::vector<int> seen = {18, 4999, 0, 30, 30, 31};
    std::vector<std::pair<double, int>> sorted;    // minus the score, id
    for (int i = 0; i < 5000; i++) {
        const double x = i == 17 ? -INFINITY : double(logits[size_t(i)]);
        const bool less = std::find(seen.begin(), seen.end(), i) != seen.end();
        sorted.push_back({-(!less ? x : x > 0 ? x / 1.5 : x * 1.5), i});
    }
    std::sort(sorted.begin(), sorted.end());
    for (int k : {1, 2, 7, 40}) {
        std::set<int> expected;
        for (int i = 0; i < k; i++) expected.insert(sorted[size_t(i)].second);
        std::set<int> ids;
        for (uint64_t place = 0; place < 2000; place++)
            ids.insert(draw(logits, {.temperature = 50, .top_k = k, .penalties = {.repetition = 1.5}}, seen, 0, place));
        CAPTURE(k);
        CHECK(ids == expected);
    }
}

TEST_CASE("sampler: frequencies follow the softmax at the temperature") {
    const std::vector<float> logits = {0, 2, -1, 1, -2};
    const int n = 20000;
    for (double temperature : {0.5, 2.0}) {
        double sum = 0;
        for (float x : logits) sum += std::exp(double(x) / temperature);
        int count[5] = {};
        for (uint64_t place = 0; place < uint64_t(n); place++)
            count[draw(logits, {.temperature = temperature, .top_k = 0}, {}, 3, place)]++;
        for (int v = 0; v < 5; v++) {
            const double p = std::exp(double(logits[size_t(v)]) / temperature) / sum;
            CHECK(std::fabs(count[v] - n * p) < 4 * std::sqrt(n * p * (1 - p)));
        }
    }
}

TEST_CASE("sampler: penalty, greedy ties, NaN, and one id for one (seed, sequence, place)") {
    const Sampling greedy = {.temperature = 0}, penalty = {.temperature = 0, .penalties = {.repetition = 2}};
    CHECK(draw({1, 0.9f}, penalty) == 0);
    CHECK(draw({1, 0.9f}, penalty, {0}) == 1);
    CHECK(draw({1, 0.9f}, penalty, {1, 0}) == 0);
    CHECK(draw({1, 0.4f}, penalty, {0, 0, 0}) == 0);    // once, however often it was seen
    CHECK(draw({-1, -1.5f}, penalty, {0}) == 1);
    CHECK(draw({-1, -2.5f}, penalty, {0}) == 0);

    CHECK(draw({1, 3, 2, 3, 3}, greedy) == 1);
    CHECK(draw({-INFINITY, -5, -5}, greedy) == 1);
    CHECK(draw({NAN, 1, 2, NAN}, greedy) == 2);
    CHECK(candidates({NAN, 1, 2, NAN}, PLAIN) == std::set<int>{1, 2});
    CHECK(candidates({NAN, 1, 2, NAN}, {.temperature = 1, .top_k = 3}) == std::set<int>{1, 2});
    CHECK(candidates({NAN, 1, 2, NAN}, {.temperature = 1, .top_k = 0, .top_p = 0.999}) == std::set<int>{1, 2});

    auto sequence = [](uint64_t seed, uint64_t sequence, uint64_t from) {
        std::vector<int> ids;
        for (uint64_t place = from; place < from + 50; place++)
            ids.push_back(draw(std::vector<float>(10, 0.f), {.temperature = 1, .top_k = 0, .seed = seed}, {}, sequence,
                               place));
        return ids;
    };
    CHECK(sequence(1, 2, 3) == sequence(1, 2, 3));
    CHECK(sequence(1, 2, 3) != sequence(2, 2, 3));
    CHECK(sequence(1, 2, 3) != sequence(1, 3, 3));
    CHECK(sequence(1, 2, 3) != sequence(1, 2, 4));
}

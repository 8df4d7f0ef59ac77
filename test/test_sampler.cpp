// test_sampler.cpp - sampling from hand-made logits.
#include "infer/sampling/sampler.h"
#include "base/philox.h"

#include <algorithm>
#include <numeric>
#include <set>

#include "test.h"

namespace {
const Sampling PLAIN = {.temperature = 1, .top_k = 0};

int draw(const std::vector<float>& logits, const Sampling& s, const std::vector<int>& seen = {}, uint64_t sequence = 0,
         uint64_t step_index = 0) {
    Sampler sampler = Sampler::open(s, {}, int(logits.size())).value.for_sequence(sequence);
    sampler.accept_prompt(seen);
    return sampler.choose(logits.data(), step_index).id;
}
std::set<int> candidates(const std::vector<float>& logits, const Sampling& s) {
    std::set<int> ids;
    for (uint64_t step_index = 0; step_index < 4000; step_index++) ids.insert(draw(logits, s, {}, 0, step_index));
    return ids;
}
}    // namespace

TEST_CASE("sampler: the candidates that top-k, top-p and min-p leave") {
    const std::vector<float> logits = {0, 2, -1, 1, -2};    // softmax: .086 .636 .032 .234 .012
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
    CHECK(with({.temperature = 1, .top_k = 2, .top_p = 0.7}) == Ids{1});          // token 1: .731
    CHECK(with({.temperature = 1, .top_k = 0, .min_p = 0.2}) == Ids{1, 3});       // token 3: .368
    CHECK(with({.temperature = 1, .top_k = 0, .min_p = 0.1}) == Ids{0, 1, 3});    // token 0: .135
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
        for (uint64_t step_index = 0; step_index < 2000; step_index++)
            ids.insert(
                draw(logits, {.temperature = 50, .top_k = k, .penalties = {.repetition = 1.5}}, seen, 0, step_index));
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
        for (uint64_t step_index = 0; step_index < uint64_t(n); step_index++)
            count[draw(logits, {.temperature = temperature, .top_k = 0}, {}, 3, step_index)]++;
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
    CHECK(draw({1, 0.4f}, penalty, {0, 0, 0}) == 0);    // one penalty, though seen thrice
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
        for (uint64_t step_index = from; step_index < from + 50; step_index++)
            ids.push_back(draw(std::vector<float>(10, 0.f), {.temperature = 1, .top_k = 0, .seed = seed}, {}, sequence,
                               step_index));
        return ids;
    };
    CHECK(sequence(1, 2, 3) == sequence(1, 2, 3));
    CHECK(sequence(1, 2, 3) != sequence(2, 2, 3));
    CHECK(sequence(1, 2, 3) != sequence(1, 3, 3));
    CHECK(sequence(1, 2, 3) != sequence(1, 2, 4));
}

// ---- against a plain reference ------------------------------------------------------------------

namespace {
// Probabilities of all tokens by the definitions, in plain loops over the vocabulary.
struct Plain {
    std::vector<double> p;
    static std::vector<size_t> sorted(const std::vector<double>& key) {    // ties by id
        std::vector<size_t> order(key.size());
        for (size_t i = 0; i < order.size(); i++) order[i] = i;
        std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) { return key[a] > key[b]; });
        return order;
    }
    void normalise() {
        double sum = 0;
        for (double x : p) sum += x;
        for (double& x : p) x /= sum;
    }
    void keep(const std::vector<size_t>& order, double part) {
        double covered = 0;
        std::vector<double> kept(p.size(), 0);
        for (size_t id : order) {
            if (covered >= part && covered > 0) break;
            covered += kept[id] = p[id];
        }
        p = kept;
        normalise();
    }
};
std::vector<double> probabilities(std::vector<double> x, const Sampling& s) {
    const size_t V = x.size();
    for (double& y : x) y = std::isnan(y) ? -INFINITY : y;
    Plain d;
    std::vector<bool> out(V);
    double mean = 0, square = 0, n = 0;
    for (double y : x)
        if (std::isfinite(y)) mean += y, n++;
    for (double y : x)
        if (std::isfinite(y)) square += (y - mean / n) * (y - mean / n);
    const double top = *std::max_element(x.begin(), x.end()), sigma = std::sqrt(square / n);
    const std::vector<size_t> by_logit = Plain::sorted(x);
    for (size_t i = 0; i < V; i++) {
        if (s.top_n_sigma > 0 && x[by_logit[i]] < top - s.top_n_sigma * sigma) out[by_logit[i]] = true;
        if (s.mirostat == 0 && s.top_k > 0 && int(i) >= s.top_k) out[by_logit[i]] = true;
    }
    for (size_t i = 0; i < V; i++) d.p.push_back(out[i] ? 0 : std::exp((x[i] - top) / s.temperature));
    d.normalise();
    if (s.typical_p < 1) {
        double expected = 0;
        for (double p : d.p)
            if (p > 0) expected -= p * std::log(p);
        std::vector<double> near;
        for (double p : d.p) near.push_back(p > 0 ? -std::fabs(-std::log(p) - expected) : -INFINITY);
        d.keep(Plain::sorted(near), s.typical_p);
    }
    if (s.top_p < 1) d.keep(Plain::sorted(d.p), s.top_p);
    const double most = *std::max_element(d.p.begin(), d.p.end());
    for (double& p : d.p)
        if (p < s.min_p * most) p = 0;
    d.normalise();
    return d.p;
}
Sampler sampler_of(const Sampling& s, int V, const std::vector<int>& prompt = {}, const Tokenizer& tokenizer = {}) {
    Result<Sampler> made = Sampler::open(s, tokenizer, V);
    REQUIRE_MESSAGE(made.ok(), made.status.message);
    made.value.accept_prompt(prompt);
    return made.take();
}
// Chi-square test of `draws` tokens against p; none of probability 0 may come. The bound is lax: a
// correct sampler fails with one seed in some ten thousand.
void check_frequencies(const Sampler& sampler, const std::vector<float>& logits, const std::vector<double>& p,
                       int draws = 4000) {
    std::vector<int> counts(p.size());
    for (int i = 0; i < draws; i++) counts[size_t(sampler.choose(logits.data(), uint64_t(i)).id)]++;
    double square = 0, classes = -1, rare = 0, rare_count = 0;
    for (size_t i = 0; i < p.size(); i++) {
        if (p[i] == 0) REQUIRE(counts[i] == 0);
        const double expected = p[i] * draws;
        if (expected < 8) {
            rare += expected, rare_count += counts[i];
            continue;
        }
        square += (counts[i] - expected) * (counts[i] - expected) / expected, classes++;
    }
    if (rare > 0) square += (rare_count - rare) * (rare_count - rare) / std::max(rare, 1.0), classes++;
    CHECK(square < std::max(classes, 1.0) + 4 * std::sqrt(2 * std::max(classes, 1.0)) + 8);
}
std::vector<float> random_logits(int V, uint64_t stream) {
    std::vector<float> x;
    for (int i = 0; i < V; i++) x.push_back(2 * philox_normal(9, stream, uint64_t(i)));
    return x;
}
}    // namespace

TEST_CASE("sampler: tokens come as often as a plain reference says, whatever is on") {
    const Sampling rows[] = {
        {.temperature = 1, .top_k = 0},
        {.temperature = 0.7, .top_k = 7},
        {.temperature = 1.5, .top_k = 0, .top_p = 0.8},
        {.temperature = 1, .top_k = 0, .min_p = 0.07},
        {.temperature = 1, .top_k = 0, .typical_p = 0.4},
        {.temperature = 1.5, .top_k = 20, .typical_p = 0.7},
        {.temperature = 1.5, .top_k = 0, .top_n_sigma = 1},
        {.temperature = 1.2, .top_k = 12, .top_p = 0.9, .min_p = 0.05, .typical_p = 0.9, .top_n_sigma = 2},
    };
    for (int V : {1, 2, 5, 33})
        for (int odd = 0; odd < 3; odd++) {
            std::vector<float> logits = random_logits(V, uint64_t(V));
            if (odd == 1 && V > 2) logits[1] = NAN, logits[2] = -INFINITY;
            if (odd == 2)
                for (float& x : logits) x = std::round(x);    // rounded: ties
            const std::vector<double> exact(logits.begin(), logits.end());
            for (const Sampling& s : rows) {
                CAPTURE(V);
                CAPTURE(odd);
                CAPTURE(&s - rows);
                check_frequencies(sampler_of(s, V), logits, probabilities(exact, s));
            }
        }
}

TEST_CASE("sampler: logits that are all NaN or without end still give a token") {
    for (float x : {float(NAN), -INFINITY, INFINITY})
        for (const Sampling& s : {Sampling{.temperature = 0}, PLAIN, Sampling{.top_k = 0, .top_p = 0.5},
                                  Sampling{.top_k = 0, .typical_p = 0.5}, Sampling{.top_n_sigma = 1},
                                  Sampling{.mirostat = 3}, Sampling{.top_k = 2, .min_p = 0.1}}) {
            CHECK(draw({x}, s) == 0);
            CHECK(draw({x, x, x}, s) >= 0);
            if (x > 0) CHECK(draw({1, x, 2}, s) == 1);
        }
}

TEST_CASE("sampler: presence and frequency count what was generated, repetition the prompt too, within a window") {
    const std::vector<float> logits = {2, 1, -1, 0.5f, 3};
    auto scores = [&](const Penalties& p, const std::vector<int>& prompt, const std::vector<int>& generated) {
        History h = History::open(p, {}, 5).take();
        for (int id : prompt) h.accept(id, false);
        for (int id : generated) h.accept(id, true);
        std::vector<double> all(logits.begin(), logits.end());
        int before = -1;
        for (const Candidate& c : h.changes(logits.data())) {
            CHECK(c.id > before);
            all[size_t(before = c.id)] = c.score;
        }
        return all;
    };
    using Scores = std::vector<double>;
    CHECK(scores({}, {0, 1}, {2, 3}) == Scores{2, 1, -1, 0.5, 3});
    CHECK(scores({.presence = 0.5}, {0, 1}, {2, 3, 3}) == Scores{2, 1, -1.5, 0, 3});
    CHECK(scores({.frequency = 0.5}, {0, 1}, {2, 3, 3, 3}) == Scores{2, 1, -1.5, -1, 3});
    CHECK(scores({.presence = 1, .frequency = 0.25}, {}, {4, 4}) == Scores{2, 1, -1, 0.5, 1.5});
    // Token 2: -1 * 2 - 1.
    CHECK(scores({.repetition = 2, .presence = 1}, {0}, {2}) == Scores{1, 1, -3, 0.5, 3});
    CHECK(scores({.repetition = 2, .last = 2}, {0, 1}, {2, 3}) == Scores{2, 1, -2, 0.25, 3});
    CHECK(scores({.frequency = 1, .last = 2}, {}, {3, 3, 3, 4}) == Scores{2, 1, -1, -0.5, 2});
    // Token 0 of the prompt has left the window of 3, but was generated again.
    CHECK(scores({.repetition = 2, .last = 3}, {0, 1}, {0, 3}) == Scores{1, 0.5, -1, 0.25, 3});
    CHECK(scores({.repetition = 2, .last = 1}, {0, 0}, {}) == Scores{1, 1, -1, 0.5, 3});
    CHECK(scores({.bias = {"1=2", "4=-inf"}}, {}, {}) == Scores{2, 3, -1, 0.5, -INFINITY});
    CHECK(scores({.repetition = 2, .bias = {"2=-1", "0=-3"}}, {0, 2}, {}) ==
          Scores{-2, 1, -4, 0.5, 3});    // bias before the penalty
}

TEST_CASE("sampler: random histories' penalties are those of a plain count") {
    const int V = 12;
    const std::vector<float> logits = random_logits(V, 4);
    for (uint64_t trial = 0; trial < 60; trial++) {
        const Penalties p = {.repetition = trial % 2 ? 1.3 : 1,
                             .presence = 0.3,
                             .frequency = 0.2,
                             .last = int(trial % 9),
                             .dry = trial % 3 ? 0.8 : 0,
                             .dry_base = 1.5,
                             .dry_length = 1 + int(trial % 4)};
        History h = History::open(p, {}, V).take();
        std::vector<int> past;
        const size_t prompt = trial % 11, n = 40;
        for (size_t i = 0; i < n; i++) {
            past.push_back(int(philox(3, trial, i).v[0] % (trial % 5 ? 3 : 12)));
            h.accept(past.back(), i >= prompt);
        }
        std::vector<double> expected(logits.begin(), logits.end());
        const size_t from = p.last > 0 ? n - size_t(p.last) : 0;
        for (int id = 0; id < V; id++) {
            double& x = expected[size_t(id)];
            int all = 0, generated = 0, longest = 0;
            for (size_t i = from; i < n; i++) all += past[i] == id, generated += past[i] == id && i >= prompt;
            if (all) x = x > 0 ? x / p.repetition : x * p.repetition;
            x -= generated * p.frequency + (generated > 0) * p.presence;
            for (size_t i = 1; i < n; i++) {    // length of the repetition before past[i]
                size_t same = 0;
                while (past[i] == id && same < i && past[i - 1 - same] == past[n - 1 - same]) same++;
                longest = std::max(longest, int(same));
            }
            if (p.dry > 0 && longest >= p.dry_length) x -= p.dry * std::pow(p.dry_base, longest - p.dry_length);
        }
        for (const Candidate& c : h.changes(logits.data())) {
            CHECK(c.score == doctest::Approx(expected[size_t(c.id)]).epsilon(1e-12));
            expected[size_t(c.id)] = logits[size_t(c.id)];
        }
        CHECK(expected == std::vector<double>(logits.begin(), logits.end()));
    }
}

TEST_CASE("sampler: of a token's many places DRY looks at the latest, but follows each repetition to its end") {
    const std::vector<float> logits(12, 0.f);
    History h = History::open({.dry = 1, .dry_base = 2, .dry_length = 1}, {}, 12).take();
    auto take = [&](std::initializer_list<int> ids) {
        for (int id : ids) h.accept(id, false);
    };
    auto score = [&](int id) {
        for (const Candidate& c : h.changes(logits.data()))
            if (c.id == id) return c.score;
        return 0.0;
    };
    take({5, 6, 1, 2});
    for (size_t i = 1; i < History::MOST; i++) take({1, 3});
    take({1});
    CHECK(score(2) == -1);    // oldest of the MOST tracked matches
    CHECK(score(3) == -std::ldexp(1.0, 1 + 2 * (int(History::MOST) - 2) - 1));
    take({3, 1});
    CHECK(score(2) == 0);
    take({7, 5, 6, 1});
    CHECK(score(2) == -4);    // repeats 5 6 1
    CHECK(score(3) == -1);
}

TEST_CASE("sampler: DRY's repetitions do not go across breakers, in one token or several") {
    const Tokenizer bytes = Tokenizer::from_merges({}, Pattern::gpt2, {"<|endoftext|>"});
    const std::vector<float> logits(257, 0.f);
    auto penalised = [&](const std::string& text, const std::vector<std::string>& breakers) {
        History h =
            History::open({.dry = 1, .dry_base = 2, .dry_length = 2, .dry_breakers = breakers}, bytes, 257).take();
        for (int id : bytes.encode(text)) h.accept(id, false);
        std::string all;
        for (const Candidate& c : h.changes(logits.data()))
            all += std::string(bytes.token(c.id)) + formatted("%g ", c.score);
        return all;
    };
    CHECK(penalised("abcabx", {}) == "");    // x occurs for the first time
    CHECK(penalised("abcxab", {}) == "c-1 ");
    CHECK(penalised("xabcyxab", {}) == "c-2 ");          // repeats xab
    CHECK(penalised("xabcyxab", {"a"}) == "");           // only b since the breaker
    CHECK(penalised("xyabczxyab", {"x"}) == "c-2 ");     // repeats yab
    CHECK(penalised("xyabczxyab", {"xy"}) == "c-1 ");    // repeats ab, after the breaker's y
    CHECK(penalised("xyabczxyab", {"", "zz"}) == "c-4 ");
    CHECK(penalised("ab:xab", {":"}) == "");    // breakers may be repeated
    CHECK(penalised("ab:xab", {}) == "");       // : breaks by default
    CHECK(penalised("ab:xab", {"-"}) == ":-1 ");
    CHECK(penalised("abcabdab", {}) == "c-1 d-1 ");
}

TEST_CASE("sampler: mirostat leaves tokens up to a surprise, which what is drawn moves to the target") {
    const int V = 200;
    const Sampling s = {.temperature = 1, .mirostat = 3, .mirostat_rate = 0.2};
    Sampler sampler = sampler_of(s, V);
    double mu = 6, sum = 0;
    for (uint64_t step_index = 0; step_index < 400; step_index++) {
        const std::vector<float> logits = random_logits(V, 50 + step_index);
        std::vector<double> p = probabilities({logits.begin(), logits.end()}, PLAIN);
        std::vector<double> kept = p;
        for (double& x : kept)
            if (-std::log2(x) > mu && x < *std::max_element(p.begin(), p.end())) x = 0;
        if (step_index % 40 == 0) {
            const double total = std::accumulate(kept.begin(), kept.end(), 0.0);
            std::vector<double> drawn = kept;
            for (double& x : drawn) x /= total;
            check_frequencies(sampler, logits, drawn, 1000);
        }
        const Sampler::Choice c = sampler.choose(logits.data(), step_index);
        REQUIRE(kept[size_t(c.id)] > 0);
        CHECK(c.surprise == doctest::Approx(-std::log2(p[size_t(c.id)])));
        mu -= 0.2 * (c.surprise - 3);
        sampler.accept(c);
        sum += c.surprise;
    }
    CHECK(sum / 400 == doctest::Approx(3).epsilon(0.05));
}

TEST_CASE("sampler: choosing changes nothing, and sequences have their own numbers") {
    const std::vector<float> logits = random_logits(40, 1);
    for (const Sampling& s : {Sampling{.temperature = 1, .top_k = 0}, Sampling{.mirostat = 4},
                              Sampling{.top_k = 0, .penalties = {.repetition = 1.2, .dry = 1}}}) {
        const Sampler first = sampler_of(s, 40);
        auto run = [&](uint64_t sequence, int times) {
            Sampler sampler = first.for_sequence(sequence);
            sampler.accept_prompt({1, 2, 3});
            std::vector<int> ids;
            for (uint64_t step_index = 0; step_index < 30; step_index++) {
                Sampler::Choice c;
                for (int i = 0; i < times; i++) c = sampler.choose(logits.data(), step_index);
                sampler.accept(c);
                ids.push_back(c.id);
            }
            return ids;
        };
        CHECK(run(0, 1) == run(0, 3));
        CHECK(run(0, 1) != run(1, 1));
    }
}

TEST_CASE("sampler: biases name a token by its id or its text") {
    const Tokenizer bytes = Tokenizer::from_merges({}, Pattern::gpt2, {"<|endoftext|>"});
    auto error = [&](const std::string& bias) {
        const Status s = Sampler::open({.penalties = {.bias = {bias}}}, bytes, 257).status;
        CHECK((s.ok() || (s.code == Exit::usage && s.message.find(bias) != std::string::npos)));
        return s.message;
    };
    for (const char* bad : {"", "=", "=1", "1=", "1=x", "1=nan", "1=inf", "1=2x", "a"})
        CHECK(error(bad).find("expected TOKEN_ID=VALUE") != std::string::npos);
    CHECK(error("ab=1").find("2 tokens") != std::string::npos);
    CHECK(error("257=1").find("has 257 tokens") != std::string::npos);
    CHECK(error("256=1") == "");
    const int x = bytes.encode("x")[0], equals = bytes.encode("=")[0];
    auto likeliest = [&](const std::vector<std::string>& bias) {
        return sampler_of({.temperature = 0, .penalties = {.bias = bias}}, 257, {}, bytes)
            .choose(std::vector<float>(257, 1.f).data(), 0)
            .id;
    };
    CHECK(likeliest({"x=1"}) == x);
    CHECK(likeliest({"==1e-3"}) == equals);
    CHECK(likeliest({"<|endoftext|>=2", "x=1"}) == 256);
    CHECK(likeliest({"0=-inf"}) == 1);
    CHECK(likeliest({"x=1", "x=-1.5", "3=0.1"}) == 3);    // biases of a token add up
}

TEST_CASE("logprobs: a softmax of the logits as they are, and the likeliest") {
    const std::vector<float> logits = {1, 3, NAN, 2, 3, -INFINITY};
    double sum = 0;
    for (float x : {1.f, 3.f, 2.f, 3.f}) sum += std::exp(double(x));
    const auto all = logprobs(logits.data(), 6, 3, 4);
    REQUIRE(all.size() == 5);
    const int ids[] = {3, 1, 4, 3, 0};
    const double values[] = {2, 3, 3, 2, 1};
    for (size_t i = 0; i < 5; i++) {
        CHECK(all[i].id == ids[i]);
        CHECK(all[i].logprob == doctest::Approx(values[i] - std::log(sum)));
    }
    CHECK(logprobs(logits.data(), 6, 5, 100).size() == 7);
    CHECK(logprobs(logits.data(), 6, 5, 0)[0].logprob == -INFINITY);
}

// test_choice.cpp - the choice of the fastest matmul (layers/matmul/autotune.h), simulated times.
#include "layers/matmul/autotune.h"

#include <functional>

#include "test.h"

namespace {
// Candidates with true times (ms), on a clock that slows them by slowness(ms worked so far).
struct Machine {
    std::vector<float> truth;
    std::function<float(float worked)> slowness;
    float worked = 0;
    std::vector<int> turns = std::vector<int>(truth.size());

    int choose() {
        return pick(least_times(int(truth.size()), [&](int way) {
            turns[size_t(way)]++;
            const float ms = truth[size_t(way)] * slowness(worked);
            worked += ms;
            return ms;
        }));
    }
};
int chosen(std::vector<float> truth, std::function<float(float)> slowness) {
    return Machine{std::move(truth), std::move(slowness)}.choose();
}
}    // namespace

TEST_CASE("choice: the first that no other is clearly faster than") {
    CHECK(pick({}) == -1);
    CHECK(pick({INFINITY, INFINITY}) == -1);
    CHECK(pick({INFINITY, 5, 5}) == 1);
    CHECK(pick({1, 1, 1}) == 0);
    CHECK(pick({1, 0.98f, 0.99f}) == 0);
    CHECK(pick({1, 0.96f, 0.99f}) == 1);
    CHECK(pick({1, 0.98f, 0.96f}) == 1);    // only the first is clearly slower
    CHECK(pick({INFINITY, 3, 2, INFINITY}) == 2);
    CHECK(pick({0, 0}) == 0);
}

TEST_CASE("choice: a clock that rises or falls favours nobody") {
    for (const int ways : {2, 4, 9}) {
        CAPTURE(ways);
        const std::vector<float> equal(size_t(ways), 0.1f);
        std::vector<float> last_wins(size_t(ways), 0.1f), first_wins(size_t(ways), 0.105f);
        last_wins.back() = 0.095f, first_wins[0] = 0.1f;
        for (float when = 0; when < 40; when += 0.05f) {
            CAPTURE(when);
            const auto rises = [=](float worked) { return worked < when ? 3.0f : 1.0f; };
            CHECK(chosen(equal, rises) == 0);
            CHECK(chosen(last_wins, rises) == ways - 1);
            CHECK(chosen(first_wins, rises) == 0);
            if (when > WARM_MS / 2) continue;
            const auto falls = [=](float worked) { return worked < when ? 1.0f : 1.5f; };
            CHECK(chosen(last_wins, falls) == ways - 1);
            CHECK(chosen(first_wins, falls) == 0);
        }
        for (const float per_ms : {1.0f, 3.0f, 10.0f, 30.0f}) {
            const auto rises = [=](float worked) { return 1 + 2 * std::exp(-worked / per_ms); };
            CHECK(chosen(equal, rises) == 0);
            CHECK(chosen(last_wins, rises) == ways - 1);
        }
    }
}

TEST_CASE("choice: one disturbed turn decides nothing") {
    for (int disturbed = 0; disturbed < 12; disturbed++) {
        int turn = 0;
        float worked = 0;
        const int way = pick(least_times(3, [&](int i) {
            const bool counts = worked >= WARM_MS;
            const float ms = (i == 1 ? 9.0f : 10.0f) * (counts && turn++ == disturbed ? 5 : 1);
            worked += ms;
            return ms;
        }));
        CAPTURE(disturbed);
        CHECK(way == 1);
    }
}

TEST_CASE("choice: how many turns") {
    const auto steady = [](float) { return 1.0f; };
    Machine large = {{50, 60}, steady};
    CHECK(large.choose() == 0);
    CHECK(large.turns == std::vector<int>(2, 1 + LEAST_ROUNDS));
    Machine small = {{1, 1}, steady};
    CHECK(small.choose() == 0);
    CHECK(small.turns == std::vector<int>(2, int(WARM_MS) / 2 + LEAST_ROUNDS));
    Machine restless = {{50, 60}, [](float worked) { return std::exp(-worked / 1000); }};    // 10 % faster each round
    CHECK(restless.choose() == 0);
    CHECK(restless.turns == std::vector<int>(2, 1 + MAX_ROUNDS));
    Machine still = {{0, 0, 0}, steady};
    CHECK(still.choose() == 0);
    CHECK(still.turns == std::vector<int>(3, 1));
}

TEST_CASE("choice: who cannot run, then or later, gets no other turn") {
    std::vector<int> turns(4);
    const std::vector<float> least = least_times(4, [&](int way) {
        const int turn = ++turns[size_t(way)];
        return way == 1 || (way == 2 && turn == 3) ? INFINITY : 10.0f + float(way);
    });
    CHECK(turns[1] == 1);
    CHECK(turns[2] == 3);
    CHECK(turns[0] == turns[3]);
    CHECK(least == std::vector<float>{10, INFINITY, INFINITY, 13});
    CHECK(pick(least_times(2, [](int) { return INFINITY; })) == -1);
}

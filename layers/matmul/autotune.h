// autotune.h - which of several ways to do the same work is the fastest, by times that were measured.
//
// A GPU's clock rises for milliseconds after idleness, falls again when it gets hot or reaches its power limit, and
// other work disturbs single measurements. So a GPU that was idle gets WARM_MS of work whose times do not count; then
// all ways take turns, round by round, and each one's least time counts. A round that was clearly faster than the one
// before shows that the clock still rises: another follows.
#pragma once
#include <algorithm>
#include <cmath>
#include <vector>

constexpr float CLEARLY = 0.97f;    // a time below this share of another counts as faster
constexpr float WARM_MS = 20;
constexpr int LEAST_ROUNDS = 3, MAX_ROUNDS = 8;

// The least time of each way. time(way): milliseconds of one turn; infinite: it cannot run, and gets no other turn.
// warm_ms: of work before times count. A clock that stands still (the emulator's, mostly) has all there is to know in
// one round.
template <class Time> std::vector<float> least_times(int ways, Time time, float warm_ms = WARM_MS) {
    std::vector<float> least(size_t(ways), INFINITY);
    std::vector<char> fails(least.size());
    const auto round = [&] {
        float sum = 0;
        for (int way = 0; way < ways; way++) {
            char& failed = fails[size_t(way)];
            float& mine = least[size_t(way)];
            if (failed) continue;
            const float ms = time(way);
            failed = !(ms < INFINITY);
            mine = failed ? INFINITY : std::min(mine, ms);
            if (!failed) sum += ms;
        }
        return sum;
    };
    float sum = 0;
    for (float warm = 0; warm < warm_ms; warm += sum)
        if (sum = round(); !(sum > 0)) return least;
    std::fill(least.begin(), least.end(), INFINITY);
    for (int i = 0; i < MAX_ROUNDS; i++) {
        const float before = sum;
        sum = round();
        if (i + 1 >= LEAST_ROUNDS && sum >= CLEARLY * before) break;
    }
    return least;
}

// The first way that no other is clearly faster than: the heuristic has the likely ones first, and noise must not
// decide. -1: none can run.
inline int pick(const std::vector<float>& times) {
    const float least = times.empty() ? INFINITY : *std::min_element(times.begin(), times.end());
    for (size_t way = 0; way < times.size() && least < INFINITY; way++)
        if (CLEARLY * times[way] <= least) return int(way);
    return -1;
}

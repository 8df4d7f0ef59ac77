// autotune.h - chooses the fastest of several ways to do one computation, by measured times.
//
// A GPU's clock rises for milliseconds after idleness, falls again when it gets hot or reaches its
// power limit, and other work disturbs single measurements. So an idle GPU first gets WARM_MS of
// work that is not counted; then all ways alternate, round by round, and the least time of each way
// counts. A round that is clearly faster than the one before (the clock still rises) is repeated.
#pragma once
#include <algorithm>
#include <cmath>
#include <vector>

constexpr float CLEARLY = 0.97f;    // faster: below this share of another's time
constexpr float WARM_MS = 20;
constexpr int LEAST_ROUNDS = 3, MAX_ROUNDS = 8;

// Returns the least time of each way in milliseconds. time(way) measures one run; it is infinite if
// the way cannot run, which excludes the way. warm_ms: milliseconds of work before times count. If
// all times are 0, as in most tests (test/cuda_on_cpu/emulator.h), one round is enough.
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

// Returns the first way whose time is not clearly above the least: cuBLASLt's heuristic lists the
// likely ways first, and noise must not decide. Returns -1 if no way can run.
inline int pick(const std::vector<float>& times) {
    const float least = times.empty() ? INFINITY : *std::min_element(times.begin(), times.end());
    for (size_t way = 0; way < times.size() && least < INFINITY; way++)
        if (CLEARLY * times[way] <= least) return int(way);
    return -1;
}

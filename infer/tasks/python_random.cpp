// python_random.cpp - see python_random.h.
#include "python_random.h"

#include <algorithm>
#include <set>

PythonRandom::PythonRandom(uint32_t seed) {
    auto mixed = [&](int i) { return state[i - 1] ^ (state[i - 1] >> 30); };
    state[0] = 19650218;
    for (int i = 1; i < N; i++) state[i] = 1812433253u * mixed(i) + uint32_t(i);
    int i = 1;
    auto step = [&] {
        if (++i < N) return;
        state[0] = state[N - 1];
        i = 1;
    };
    for (int k = 0; k < N; k++, step()) state[i] = (state[i] ^ (mixed(i) * 1664525u)) + seed;
    for (int k = 1; k < N; k++, step()) state[i] = (state[i] ^ (mixed(i) * 1566083941u)) - uint32_t(i);
    state[0] = 0x80000000u;
}

uint32_t PythonRandom::next() {
    if (at == N) {
        for (int i = 0; i < N; i++) {
            const uint32_t y = (state[i] & 0x80000000u) | (state[(i + 1) % N] & 0x7FFFFFFFu);
            state[i] = state[(i + 397) % N] ^ (y >> 1) ^ (y & 1 ? 0x9908B0DFu : 0);
        }
        at = 0;
    }
    uint32_t y = state[at++];
    y ^= y >> 11;
    y ^= (y << 7) & 0x9D2C5680u;
    y ^= (y << 15) & 0xEFC60000u;
    return y ^ (y >> 18);
}

int64_t PythonRandom::below(int64_t n) {
    CHECK(n > 0 && n <= INT32_MAX, "n=%lld", (long long)n);
    const int bits = 32 - __builtin_clz(uint32_t(n));
    for (;;)
        if (const int64_t drawn = next() >> (32 - bits); drawn < n) return drawn;
}

// random.sample draws few of many by rejection, else from a shrinking pool. The limit between both
// is Python's.
std::vector<int> PythonRandom::sample(int population, int k) {
    CHECK(k >= 0 && k <= population, "%d of %d", k, population);
    int64_t most = 21;
    if (k > 5) most += int64_t(1) << (2 * int(std::ceil(std::log(3.0 * k) / std::log(4.0))));
    std::vector<int> chosen;
    if (population > most) {
        std::set<int> taken;
        while (int(chosen.size()) < k)
            if (const int i = int(below(population)); taken.insert(i).second) chosen.push_back(i);
        return chosen;
    }
    std::vector<int> pool(static_cast<size_t>(population));
    for (int i = 0; i < population; i++) pool[size_t(i)] = i;
    for (int i = 0; i < k; i++) {
        const size_t j = size_t(below(population - i));
        chosen.push_back(pool[j]);
        pool[j] = pool[size_t(population - i - 1)];
    }
    return chosen;
}

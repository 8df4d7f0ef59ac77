// python_random.h - the numbers that Python's random.Random(seed) draws, so that examples are drawn
// as lm-evaluation-harness and nanochat draw them.
//
// The generator is MT19937 (Matsumoto & Nishimura 1998), seeded by its init_by_array with one word.
#pragma once
#include <cstdint>
#include <utility>
#include <vector>

#include "base/common.h"

class PythonRandom {
  public:
    explicit PythonRandom(uint32_t seed);
    int64_t below(int64_t n);                          // Python's _randbelow: 0 <= result < n < 2^31
    std::vector<int> sample(int population, int k);    // indices that random.sample chooses, k <= population
    template <class T> void shuffle(std::vector<T>& items) {
        for (size_t i = items.size(); i-- > 1;) std::swap(items[i], items[size_t(below(int64_t(i) + 1))]);
    }

  private:
    uint32_t next();
    static constexpr int N = 624;
    uint32_t state[N];
    int at = N;
};

// positions.cpp - sinusoidal positions, and T5's buckets of distances.
#include "positions.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>

std::vector<float> sinusoids(const Config& c, int positions) {
    std::vector<float> table(size_t(positions) * size_t(c.C));
    for (int i = 0; i < c.C; i++) {
        const double frequency = std::pow(1e4, -2.0 * (i / 2) / c.C);
        for (int p = 0; p < positions; p++) {
            const double angle = p * frequency;
            table[size_t(p) * size_t(c.C) + size_t(i)] =
                float((i % 2 ? std::cos(angle) : std::sin(angle)) / double(c.embed_scale));
        }
    }
    return table;
}

std::vector<int> relative_buckets(bool both_sides) {
    const int buckets = both_sides ? RELATIVE_BUCKETS / 2 : RELATIVE_BUCKETS, exact = buckets / 2;
    std::vector<int> all;
    for (int d = -RELATIVE_MAX_DISTANCE; d <= RELATIVE_MAX_DISTANCE; d++) {
        const int n = both_sides ? std::abs(d) : std::max(-d, 0), first = both_sides && d > 0 ? buckets : 0;
        // 1e-9: rounding must not move a bucket's first distance into the bucket below.
        const double part = n < exact ? 0
                                      : std::log(double(n) / exact) / std::log(double(RELATIVE_MAX_DISTANCE) / exact);
        const int far = exact + int(part * (buckets - exact) + 1e-9);
        all.push_back(first + (n < exact ? n : std::min(far, buckets - 1)));
    }
    return all;
}

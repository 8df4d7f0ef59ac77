// positions.cpp - sinusoidal positions.
#include "positions.h"

#include <cmath>

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

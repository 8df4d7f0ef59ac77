// random_features.h - performer's random matrix (layers/ops.h: LinearAttention, Heads::features).
#pragma once
#include <cmath>
#include <vector>

#include "base/philox.h"

// Returns w (HS,HS), then w transposed. Each row of w is normally distributed. The rows are
// orthogonal to each other, so the estimates of scores have less variance than with independent
// rows (Choromanski et al. 2021, section 3.3): the rows' directions are a Gram-Schmidt basis of HS
// normal rows, and their lengths are those of HS other normal rows. w depends on HS and the seed
// alone. So a checkpoint need not hold it, and adding or removing layers does not change it.
inline std::vector<float> random_features(int HS, uint64_t seed = 0x6661766F72) {    // "favor"
    const size_t n = size_t(HS);
    auto normal = [&](size_t stream, size_t i) { return double(philox_normal(seed, stream, i)); };
    std::vector<double> w(n * n);
    std::vector<float> both(2 * n * n);
    for (size_t i = 0; i < n; i++) {
        double* row = &w[i * n];
        double squares = 0, length = 0;
        for (size_t d = 0; d < n; d++) row[d] = normal(0, i * n + d), length += std::pow(normal(1, i * n + d), 2);
        for (int pass = 0; pass < 2; pass++)    // the second removes what rounding left of the first
            for (size_t j = 0; j < i; j++) {
                const double* before = &w[j * n];
                double product = 0;
                for (size_t d = 0; d < n; d++) product += row[d] * before[d];
                for (size_t d = 0; d < n; d++) row[d] -= product * before[d];
            }
        for (size_t d = 0; d < n; d++) squares += row[d] * row[d];
        for (size_t d = 0; d < n; d++) {
            row[d] /= std::sqrt(squares);
            both[i * n + d] = both[(n + d) * n + i] = float(row[d] * std::sqrt(length));
        }
    }
    return both;
}

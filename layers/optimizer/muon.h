// muon.h - constants of operation orthogonalize, alike on all devices.
#pragma once
#include "base/common.h"

// The polynomial a s + b s^3 + c s^5 of Jordan et al. 2024, which takes singular values s in 0..1
// to about 1 fast: it has the largest slope at 0 for which they stay between 0.7 and 1.2.
constexpr int NEWTON_SCHULZ_STEPS = 5;
struct NewtonSchulz {
    static constexpr double a = 3.4445, b = -4.7750, c = 2.0315, eps = 1e-7;
};
// FLOPs of one iteration.
inline double newton_schulz_flops(double rows, double cols) {
    const double k = rows < cols ? rows : cols, n = rows < cols ? cols : rows;
    return 3 * k * k * n + k * k * k;
}
// Elements of orthogonalize's work memory for a matrix of this size: X and its successor, and two
// products of the shorter side's size.
inline int64_t orthogonalize_work(int64_t rows, int64_t cols) {
    const int64_t k = rows < cols ? rows : cols;
    return 2 * round_up(rows * cols, 64) + 3 * round_up(k * k, 64);
}

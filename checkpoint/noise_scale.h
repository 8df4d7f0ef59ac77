// noise_scale.h - the gradient's noise scale, from the norms of gradients of two batch sizes.
#pragma once
#include <cmath>

// The gradient of a batch of B targets is the true gradient G plus noise, whose covariance is
// Sigma / B. So its squared norm is |G|^2 + tr(Sigma) / B on average. The norms of two batch sizes
// give both unknowns, and the critical batch tr(Sigma) / |G|^2, the size from which on larger
// batches save few steps (McCandlish et al. 2018, equations 2.8 and A.1 to A.3). A single pair of
// norms says little, so both unknowns are averaged over steps, and only then divided.
struct NoiseScale {
    static constexpr double KEPT = 0.98;    // part of the averages that a step keeps: about 50 steps
    // Averages of estimates of tr(Sigma) and of |G|^2. Both lack the factor 1 / (1 - KEPT^steps),
    // which cancels in their ratio.
    double trace = 0, square = 0;

    // few, many: targets of the small and of the large batch; the large batch contains the small
    // one. few_square, many_square: squared norms of the gradients of their mean losses.
    void add(double few, double few_square, double many, double many_square) {
        const double s = (few_square - many_square) / (1 / few - 1 / many);
        const double g = (many * many_square - few * few_square) / (many - few);
        if (!(few > 0 && many > few) || !std::isfinite(s) || !std::isfinite(g)) return;
        trace = KEPT * trace + (1 - KEPT) * s;
        square = KEPT * square + (1 - KEPT) * g;
    }
    // The critical batch in targets; 0: unknown as yet, because an average is not positive.
    double critical_batch() const { return trace > 0 && square > 0 ? trace / square : 0; }
    bool operator==(const NoiseScale&) const = default;
};

// outlier_detector.h - finds outliers among a run's losses or gradient norms.
#pragma once
#include <algorithm>
#include <cmath>
#include <utility>

#include "base/common.h"

// Scores a value by its distance from the mean of the last WINDOW values, in standard deviations.
// Non-finite values score infinity and never enter the window, so that a NaN cannot spoil the mean.
struct OutlierDetector {
    static constexpr int WINDOW = 128, MIN_VALUES = 32;    // below MIN_VALUES values nothing is an outlier
    double window[WINDOW] = {};
    int64_t seen = 0;

    double score(double x) const {
        if (!std::isfinite(x)) return INFINITY;
        auto [mean, deviation] = moments();
        return deviation > 0 ? (x - mean) / deviation : 0;
    }
    // Largest value whose score is at most z.
    double limit(double z) const {
        auto [mean, deviation] = moments();
        return deviation > 0 ? mean + z * deviation : INFINITY;
    }
    void add(double x) {
        if (std::isfinite(x)) window[seen++ % WINDOW] = x;
    }
    // Smallest of the last n values, n <= WINDOW; minus infinity if there are fewer than n.
    double min_of_last(int n) const {
        double least = seen < n ? -INFINITY : INFINITY;
        for (int64_t i = seen; i-- > std::max<int64_t>(0, seen - n);) least = std::min(least, window[i % WINDOW]);
        return least;
    }
    bool operator==(const OutlierDetector&) const = default;

  private:
    std::pair<double, double> moments() const {    // mean, standard deviation; 0, 0 below MIN_VALUES values
        const int n = int(std::min<int64_t>(seen, WINDOW));
        double mean = 0, var = 0;
        if (n < MIN_VALUES) return {0, 0};
        for (int i = 0; i < n; i++) mean += window[i] / n;
        for (int i = 0; i < n; i++) var += (window[i] - mean) * (window[i] - mean) / n;
        return {mean, std::sqrt(var)};
    }
};

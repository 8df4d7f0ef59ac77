// schedule.h - learning rate and outlier detection: pure functions of (config, step, history).
#pragma once
#include <algorithm>

#include "base/common.h"

enum class Decay { cosine, linear, constant, wsd };    // wsd: warmup, stable, decay over the last fifth

struct Schedule {
    Decay decay = Decay::cosine;
    // The last step's rate is lr * final_fraction, if at least two steps follow the warmup.
    double lr = 1e-3, final_fraction = 0.1;
    int64_t warmup = 0, steps = 0;
    bool operator==(const Schedule&) const = default;
};
inline int64_t default_warmup(int64_t steps) { return std::min<int64_t>(700, steps / 10); }
inline Decay decay_named(const std::string& name) {    // a value of --lr-schedule
    return name == "cosine"   ? Decay::cosine
           : name == "linear" ? Decay::linear
           : name == "wsd"    ? Decay::wsd
                              : Decay::constant;
}

// Learning rate of step 0 .. steps-1. The warmup is linear and reaches lr at step warmup-1.
inline double learning_rate(const Schedule& s, int64_t step) {
    if (step < s.warmup) return s.lr * double(step + 1) / double(s.warmup);
    int64_t from = s.decay == Decay::wsd ? std::max(s.warmup, s.steps - std::max<int64_t>(2, s.steps / 5)) : s.warmup;
    double span = double(std::max<int64_t>(1, s.steps - 1 - from));
    double x = std::clamp(double(step - from) / span, 0.0, 1.0), floor = s.lr * s.final_fraction;
    switch (s.decay) {
        case Decay::constant: return s.lr;
        case Decay::cosine: return floor + (s.lr - floor) * 0.5 * (1 + std::cos(3.141592653589793 * x));
        case Decay::linear: return floor + (s.lr - floor) * (1 - x);
        case Decay::wsd: return floor + (s.lr - floor) * (1 - std::sqrt(x));    // Haegele et al. 2024: 1 - sqrt
    }
    return s.lr;
}

// Distance of a value from the mean of the last WINDOW values, in standard deviations. Values that
// are not finite score infinity and never enter the window, as one NaN would disable detection.
struct OutlierDetector {
    static constexpr int WINDOW = 128, MIN_VALUES = 32;    // fewer than MIN_VALUES: no outliers
    double window[WINDOW] = {};
    int64_t seen = 0;

    double score(double x) const {
        if (!std::isfinite(x)) return INFINITY;
        auto [mean, deviation] = moments();
        return deviation > 0 ? (x - mean) / deviation : 0;
    }
    // The largest value whose score is at most z.
    double limit(double z) const {
        auto [mean, deviation] = moments();
        return deviation > 0 ? mean + z * deviation : INFINITY;
    }
    void add(double x) {
        if (std::isfinite(x)) window[seen++ % WINDOW] = x;
    }
    // The smallest of the last n values, n <= WINDOW; minus infinity before there are n.
    double min_of_last(int n) const {
        double least = seen < n ? -INFINITY : INFINITY;
        for (int64_t i = seen; i-- > std::max<int64_t>(0, seen - n);) least = std::min(least, window[i % WINDOW]);
        return least;
    }
    bool operator==(const OutlierDetector&) const = default;

  private:
    std::pair<double, double> moments() const {    // mean, standard deviation; 0 before MIN_VALUES
        const int n = int(std::min<int64_t>(seen, WINDOW));
        double mean = 0, var = 0;
        if (n < MIN_VALUES) return {0, 0};
        for (int i = 0; i < n; i++) mean += window[i] / n;
        for (int i = 0; i < n; i++) var += (window[i] - mean) * (window[i] - mean) / n;
        return {mean, std::sqrt(var)};
    }
};

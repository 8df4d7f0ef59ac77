// schedule.h - the learning rate: a pure function of (schedule, step).
#pragma once
#include <algorithm>

#include "base/common.h"

enum class Decay { cosine, linear, constant, wsd };    // wsd: warmup, stable, decay in the last fifth

struct Schedule {
    Decay decay = Decay::cosine;
    // The last step's rate is lr * final_fraction if at least two steps follow the warmup. The
    // decay `constant` ignores final_fraction.
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

// Learning rate of a step in 0..steps-1. Warmup is linear and reaches lr at step warmup-1.
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

// schedule.h - the learning rate, and the batches of a step: pure functions of (schedule, step).
#pragma once
#include <algorithm>
#include <cfloat>

#include "base/common.h"

enum class Decay { cosine, linear, constant, wsd };    // wsd: warmup, stable, decay from decay_begin on

struct Schedule {
    Decay decay = Decay::cosine;
    // The last step's rate is lr * final_fraction if at least two steps follow the warmup. The
    // decay `constant` ignores final_fraction. A last step with the rate 0 leaves the weights as
    // they are; its gradients still enter the optimizer's state.
    double lr = 1e-3, final_fraction = 0.1;
    int64_t warmup = 0, steps = 0;
    int64_t decay_begin = 0;    // wsd: the first step of the decay, which still has the rate lr
    bool operator==(const Schedule&) const = default;
};
// The options of a schedule. warmup: steps, or below 1 a part of the steps, or -1: a tenth of the
// steps, 700 at most. decay_part: wsd's decay, as a part of the steps; it has at least two steps.
struct ScheduleOptions {
    std::string decay = "cosine";
    double lr = 1e-3, final_fraction = 0.1, warmup = -1, decay_part = 0.2;
};

// A number of steps, given as such or, below 1, as a part of `steps`, rounded down. The last factor
// keeps 0.29 of 100 steps from being 28.
inline int64_t steps_or_part(double x, int64_t steps) {
    return int64_t(x < 1 ? x * double(steps) * (1 + 4 * DBL_EPSILON) : x);
}
inline Schedule schedule_of(const ScheduleOptions& o, int64_t steps) {
    const Decay decay = o.decay == "cosine"   ? Decay::cosine
                        : o.decay == "linear" ? Decay::linear
                        : o.decay == "wsd"    ? Decay::wsd
                                              : Decay::constant;
    const int64_t warmup = o.warmup < 0 ? std::min<int64_t>(700, steps / 10) : steps_or_part(o.warmup, steps);
    const int64_t decays = o.decay_part < 1 ? std::max<int64_t>(2, steps_or_part(o.decay_part, steps)) : steps;
    return {decay, o.lr, o.final_fraction, warmup, steps, std::max(warmup, steps - decays)};
}
// A decay that begins with step `begin` at the rate lr, without a warmup before it.
inline Schedule decay_from(int64_t begin, double lr, double final_fraction, int64_t steps) {
    return {Decay::wsd, lr, final_fraction, 0, steps, begin};
}

// Learning rate of a step in 0..steps-1. Warmup is linear and reaches lr at step warmup-1.
inline double learning_rate(const Schedule& s, int64_t step) {
    if (step < s.warmup) return s.lr * double(step + 1) / double(s.warmup);
    const int64_t from = s.decay == Decay::wsd ? s.decay_begin : s.warmup;
    if (step <= from) return s.lr;
    const double span = double(std::max<int64_t>(1, s.steps - 1 - from));
    const double x = std::min(double(step - from) / span, 1.0), floor = s.lr * s.final_fraction;
    switch (s.decay) {
        case Decay::constant: return s.lr;
        case Decay::cosine: return floor + (s.lr - floor) * 0.5 * (1 + std::cos(3.141592653589793 * x));
        case Decay::linear: return floor + (s.lr - floor) * (1 - x);
        case Decay::wsd: return floor + (s.lr - floor) * (1 - std::sqrt(x));    // Haegele et al. 2024: 1 - sqrt
    }
    return s.lr;
}

// Returns the sum of floor(factor * i / divisor) for i = 0 to n - 1, in O(log divisor): the number
// of integer points with x < n and y > 0 on or below a line. Each iteration adds the points due to
// the integer parts of slope and offset, and then exchanges the axes, so that a slope below 1
// becomes one above 1, as in Euclid's algorithm.
inline int64_t floor_sum(int64_t n, int64_t factor, int64_t divisor) {
    int64_t sum = 0, offset = 0;
    while (n > 0) {
        sum += n * (n - 1) / 2 * (factor / divisor) + n * (offset / divisor);
        factor %= divisor, offset %= divisor;
        const int64_t top = factor * n + offset;
        n = top / divisor, offset = top % divisor;
        std::swap(factor, divisor);
    }
    return sum;
}

// How many batches, counted on one rank, a step accumulates: from 1 in step 0 up to `full` from
// step `warmup` on.
struct BatchSchedule {
    int64_t tokens = 1;    // tokens of one batch on all ranks
    int64_t full = 1, warmup = 0;
    int64_t batches(int64_t step) const { return step < warmup ? 1 + (full - 1) * step / warmup : full; }
    int64_t step_tokens(int64_t step) const { return batches(step) * tokens; }
    // Tokens of all steps before `step`.
    double tokens_before(int64_t step) const {
        const int64_t growing = std::min(step, warmup);
        const int64_t all = std::max<int64_t>(0, step - warmup) * full + growing + floor_sum(growing, full - 1, warmup);
        return double(all) * double(tokens);
    }
    // The least number of steps that have at least `wanted` tokens.
    int64_t steps_for(int64_t wanted) const {
        int64_t step = 0;
        for (; step < warmup && wanted > 0; step++) wanted -= step_tokens(step);
        return wanted > 0 ? step + ceil_div(wanted, step_tokens(step)) : step;
    }
};

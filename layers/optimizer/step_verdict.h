// step_verdict.h - whether a step is applied (operation step_verdict), alike on all devices.
#pragma once
#include "layers/ops.h"

HOST_DEVICE inline float clip_scale(double clip, double norm) {
    return clip > 0 && norm > clip ? float(clip / norm) : 1.0f;
}

// group_squares: the groups' sums of squares, or null.
HOST_DEVICE inline void decide_step(Step* step, double loss, double square_sum, const double* group_squares,
                                    OptimizerParams a, Limits limits) {
    const double norm = sqrt(square_sum);
    // x - x is 0 for finite x alone, and comparisons with NaN are false. So a step whose loss or
    // norm is not finite is never good.
    const bool good = loss - loss == 0 && norm - norm == 0 && loss <= limits.loss && norm <= limits.norm;
    step->loss = loss;
    step->norm = norm;
    step->skipped = !good;
    if (good) step->updates++;
    step->scale = group_squares ? 1 : clip_scale(limits.clip, norm);
    for (int g = 0; g < GroupFactors::MOST; g++)
        step->groups.of[g] = group_squares ? clip_scale(limits.clip, sqrt(group_squares[g])) : 1;
    step->m_correction = float(1 / (1 - pow(double(a.beta1), double(step->updates))));
    step->v_correction = float(1 / (1 - pow(double(a.beta2), double(step->updates))));
}

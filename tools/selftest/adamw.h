// adamw.h - checks of the optimizer step: sums of squares, the verdict whether to skip the step,
// AdamW; casts.
#pragma once
#include "check.h"

// Checks AdamW with a master copy or, for bf16, stochastic rounding; with scaled and unscaled
// gradients; with a skipped step.
template <class T, class P> Check check_adamw(const Ops<T, P>& op, int64_t n, bool with_master);
template <class T, class P> Check check_sum_of_squares(const Ops<T, P>& op, int64_t n);
template <class T, class P> Check check_add_losses(const Ops<T, P>& op, int64_t n);
template <class T, class P> Check check_step_verdict(const Ops<T, P>& op, int n);
// at: offset of the n elements in their arrays.
template <class T, class P> Check check_casts(const Ops<T, P>& op, int64_t n, int at = 0);

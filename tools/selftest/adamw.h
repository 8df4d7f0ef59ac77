// adamw.h - checks of the operations of an optimizer step: sums of losses and of squares, the
// verdict whether the step is applied, AdamW; checks of casts.
#pragma once
#include "check.h"

// Checks AdamW with a master copy or, for bf16, stochastic rounding; with scaled and unscaled
// gradients; with a skipped step.
template <class T, class P> Check check_adamw(const Ops<T, P>& op, int64_t n, bool with_master);
template <class T, class P> Check check_sum_of_squares(const Ops<T, P>& op, int64_t n);
template <class T, class P> Check check_add_losses(const Ops<T, P>& op, int64_t n);
template <class T, class P> Check check_step_verdict(const Ops<T, P>& op, int n);
// Checks casts of n elements at offset `at` of their arrays.
template <class T, class P> Check check_casts(const Ops<T, P>& op, int64_t n, int at = 0);

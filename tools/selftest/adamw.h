// adamw.h - checks of the step: sums, its verdict, AdamW; casts.
#pragma once
#include "check.h"

// with a master or, for bf16, rounded stochastically; the gradient scaled and not, and the step skipped
template <class T, class P> Check check_adamw(const Ops<T, P>& op, int64_t n, bool with_master);
template <class T, class P> Check check_sum_of_squares(const Ops<T, P>& op, int64_t n);
template <class T, class P> Check check_add_losses(const Ops<T, P>& op, int64_t n);
template <class T, class P> Check check_step_verdict(const Ops<T, P>& op, int n);
// at: where in their arrays the n numbers begin.
template <class T, class P> Check check_casts(const Ops<T, P>& op, int64_t n, int at = 0);

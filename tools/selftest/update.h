// update.h - checks of the operations of an optimizer step: sums of losses and of squares, the
// verdict whether the step is applied, the update, Muon's steps of matrices; checks of casts.
#pragma once
#include "check.h"

struct UpdateKind {
    UpdateRule rule;
    bool master = false;
    Element m = Element::f32, v = Element::f32;
    bool cautious = false;
};
constexpr Element STATE_ELEMENTS[] = {Element::f32, Element::bf16, Element::uint8};
std::vector<UpdateKind> update_kinds(bool with_master);    // every rule, type of states and flag

// Checks a step with scaled and unscaled gradients, with stochastic rounding, and when skipped.
// n: a multiple of 64.
template <class T, class P> Check check_update(const Ops<T, P>& op, int64_t n, UpdateKind kind);
template <class T, class P> Check check_momentum(const Ops<T, P>& op, int64_t n, Element type);
template <class T, class P> Check check_average(const Ops<T, P>& op, int64_t n, bool master);
template <class T, class P> Check check_orthogonalize(const Ops<T, P>& op, int rows, int cols);
template <class T, class P> Check check_normalize_rows(const Ops<T, P>& op, int rows, int cols);
template <class T, class P> Check check_sum_of_squares(const Ops<T, P>& op, int64_t n);
template <class T, class P> Check check_add_losses(const Ops<T, P>& op, int64_t n);
template <class T, class P> Check check_step_verdict(const Ops<T, P>& op, int n);
// Checks casts of n elements at offset `at` of their arrays.
template <class T, class P> Check check_casts(const Ops<T, P>& op, int64_t n, int at = 0);

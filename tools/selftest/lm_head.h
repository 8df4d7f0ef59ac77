// lm_head.h - checks of the cross-entropy.
#pragma once
#include "check.h"

// in_place: dlogits overwrite the logits
template <class T, class P>
Check check_cross_entropy(const Ops<T, P>& op, int N, int V, int Vp, bool with_gradient, bool in_place, Logits z = {});

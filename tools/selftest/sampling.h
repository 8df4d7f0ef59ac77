// sampling.h - checks of what draws tokens.
#pragma once
#include "check.h"

// N draws of V tokens, each for a text of its own. ties: logits are multiples of a half. Some are -inf or NaN.
template <class T, class P> Check check_sample(const Ops<T, P>& op, int N, int V, int Vp, SampleParams draw,
                                               Logits z = {}, bool bias = false, bool ties = false);

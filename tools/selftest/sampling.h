// sampling.h - checks of sampling.
#pragma once
#include "check.h"

// N samples of V tokens, each for a sequence of its own. ties: logits are multiples of 1/2. Some:
// -inf, NaN.
template <class T, class P> Check check_sample(const Ops<T, P>& op, int N, int V, int Vp, SampleParams draw,
                                               Logits z = {}, bool bias = false, bool ties = false);

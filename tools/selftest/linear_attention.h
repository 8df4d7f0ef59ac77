// linear_attention.h - checks of attention without softmax.
#pragma once
#include "check.h"

// h: its kind, and host spans, if any. gates: their standard deviation; large ones reach the
// decays' bound
template <class T, class P>
Check check_linear_attention_forward(const Ops<T, P>& op, int B, int S, Heads h, double gates = 3);
template <class T, class P>
Check check_linear_attention_backward(const Ops<T, P>& op, int B, int S, Heads h, double gates = 3);
// Sequence b has S - 3 b positions from `pos` on; the rest is padding.
template <class T, class P>
Check check_linear_attention_cached(const Ops<T, P>& op, int B, int S, int pos, Heads h, double gates = 3);

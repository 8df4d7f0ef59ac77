// rope.h - checks of RoPE and QK-norm.
#pragma once
#include "check.h"

// (positions, 2, dims/2): cosines and sines of position / 10000^(2i/dims)
Numbers cos_sin_table(int positions, int dims);
// pos below 0: a null pointer; in_place: y is x, never with a norm
template <class T, class P>
Check check_rope_forward(const Ops<T, P>& op, int B, int S, int pos, Heads h, QkNormRope t, bool in_place = false);
template <class T, class P> Check check_rope_backward(const Ops<T, P>& op, int B, int S, Heads h, QkNormRope t);

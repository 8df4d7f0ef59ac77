// norm.h - checks of norms.
#pragma once
#include "check.h"

template <class T, class P> Check check_layernorm_forward(const Ops<T, P>& op, int N, int C);
template <class T, class P> Check check_layernorm_backward(const Ops<T, P>& op, int N, int C);

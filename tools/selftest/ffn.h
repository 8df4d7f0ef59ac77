// ffn.h - checks of the ffn's activation.
#pragma once
#include "check.h"

template <class T, class P> Check check_gelu_forward(const Ops<T, P>& op, int64_t n);
template <class T, class P> Check check_gelu_backward(const Ops<T, P>& op, int64_t n, bool in_place);

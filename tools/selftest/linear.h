// linear.h - checks of matrix products.
#pragma once
#include "check.h"

// dtype says how much the products may round
enum class Residual { none, apart, in_y };
template <class T, class P>
Check check_linear_forward(const Ops<T, P>& op, int N, int C, int OC, bool bias, Residual residual,
                           Dtype dtype = DTYPE<P>);
template <class T, class P>
Check check_linear_backward(const Ops<T, P>& op, int N, int C, int OC, bool with_dx, bool bias, Dtype dtype = DTYPE<P>);
template <class T, class P>
Check check_linear_gelu_forward(const Ops<T, P>& op, int N, int C, int OC, Dtype dtype = DTYPE<P>,
                                bool bias = true);
template <class T, class P>
Check check_linear_gelu_backward(const Ops<T, P>& op, int N, int C, int OC, Dtype dtype = DTYPE<P>,
                                 bool bias = true);

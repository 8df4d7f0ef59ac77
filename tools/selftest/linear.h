// linear.h - checks of matrix products.
#pragma once
#include "check.h"

// The limit for an output of type X in a table of T, a sum of K products. Three errors: storing it;
// rounding the sum, randomly in float (also for a CPU's bf16, where T is float), always downward in
// tensor cores, 16 products at a time; tf32's inputs: 2^-11 each, twice that if they cancel.
template <class X, class T> double product_limit(Dtype dtype, int64_t K) {
    const bool random = dtype == Dtype::fp32 || (dtype == Dtype::bf16 && sizeof(T) == 4);
    const double sum = random ? std::sqrt(double(K)) * 0x1p-24 : double(K) * 0x1p-26;
    return ROUNDING<X> + sum + (dtype == Dtype::tf32 ? 2e-3 : 0);
}
// The error of rounding factors to fp8, one to E4M3, the other to a type with `bits` bits of
// mantissa (to E4M3, too, with scales of blocks). An error is within half of the last place, which
// is at most 2^-bits of the number: at most 2^-(bits + 1) / sqrt(3) of it in the root mean square.
// Errors of different numbers are independent, so the sums' are no larger.
inline double fp8_limit(Dtype dtype, int bits) {
    if (dtype == Dtype::fp8_block) bits = 3;
    return is_fp8(dtype) ? std::sqrt((std::exp2(-8) + std::exp2(-2 * bits - 2)) / 3) : 0;
}
inline Precision precision_of(Dtype dtype) { return is_fp8(dtype) ? Precision::fp8 : Precision::normal; }
// A float table's bf16 products get bf16 values, which rounding leaves unchanged.
template <class X> Numbers operand(Dtype dtype, int64_t n, uint64_t stream, double scale = 1) {
    const Numbers x = random_normal(n, stream, scale);
    return dtype == Dtype::bf16 ? rounded<bf16>(x) : rounded<X>(x);
}
// Start values of a gradient over N rows that is added to: far from zero, so that the sum is, too.
inline Numbers start_sums(int64_t n, uint64_t stream, int N) {
    Numbers v = random_normal(n, stream, std::sqrt(N));
    for (double& x : v) x += 4 * std::sqrt(N);
    return rounded<float>(v);
}
// start_sums, or NaN for a gradient that is assigned, because the old value must not be read.
inline Numbers start_into(int64_t n, uint64_t stream, int N, bool add) {
    return add ? start_sums(n, stream, N) : Numbers(size_t(n), NAN);
}
// An assigned sum is far from zero if its factors have one sign.
inline Numbers factor(Numbers x, bool add) {
    for (double& v : x) v = add ? v : std::abs(v);
    return x;
}

// dtype: type of the products; add: the gradient accumulates
enum class Residual { none, apart, in_y };
template <class T, class P> Check check_linear_forward(const Ops<T, P>& op, int N, int C, int OC, bool bias,
                                                       Residual residual, Dtype dtype = DTYPE<P>);
template <class T, class P> Check check_linear_backward(const Ops<T, P>& op, int N, int C, int OC, bool with_dx,
                                                        bool bias, Dtype dtype = DTYPE<P>, bool add = true);
template <class T, class P>
Check check_linear_gelu_forward(const Ops<T, P>& op, int N, int C, int OC, Dtype dtype = DTYPE<P>, bool bias = true);
template <class T, class P> Check check_linear_gelu_backward(const Ops<T, P>& op, int N, int C, int OC,
                                                             Dtype dtype = DTYPE<P>, bool bias = true, bool add = true);

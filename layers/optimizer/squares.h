// squares.h - sums of squares of floats on a CPU, in double (update.cpp).
#pragma once
#include <stdint.h>

namespace ISA {
double block_squares(const float* x, int64_t n);                // on this thread
void sum_of_squares(double* out, const float* x, int64_t n);    // the operation
}    // namespace ISA

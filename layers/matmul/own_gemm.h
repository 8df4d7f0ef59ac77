// own_gemm.h - a linear layer's three products without cuBLASLt: by the kernels for experts
// (grouped_gemm.cuh), with one expert that has all rows. These kernels support every size and
// alignment. For products that cuBLASLt supports, they are slower than cuBLASLt.
#pragma once
#include "base/element.h"

enum class Product { y, dx, dw, symmetric };
// y   y (N,OC)   (+)= x (N,C) w^T     a = x, b = w
// dx  dx (N,C)   (+)= dy (N,OC) w     a = dy, b = w
// dw  dw (OC,C)  (+)= dy^T x          a = dy, b = x    dw in float
// symmetric   out (N,N) = x (N,C) x^T: its lower tiles, and their mirror images; OC = N, not add
// T: float, bf16. Sums are float.
template <class T> void own_product(Product product, void* out, const T* a, const T* b, int N, int C, int OC, bool add);

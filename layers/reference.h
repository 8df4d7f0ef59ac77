// reference.h - what the files of the reference share: layers/reference.cpp and layers/attention/*reference.cpp.
#pragma once
#include "ops.h"

namespace reference {

// What dropout makes of a number.
inline double factor_of(const Dropout& drop, bool kept) { return kept ? 1 / (1 - double(drop.rate)) : 0; }

// Arguments as in operations.inc.
void attention_forward(double* y, float* lse, const double* qkv, int B, int S, Heads h);
void attention_backward(double* dqkv, const double* dy, const double* y, const double* qkv, const float* lse, int B,
                        int S, Heads h);
void attention_cached(double* y, const double* qkv, Pages cache, int B, int S, const int* pos, Heads h);
void bias_rows_forward(double* bias, const double* table, const int* bucket, int buckets, int NH, int n);
void bias_rows_backward(double* dtable, const double* dbias, const int* bucket, int buckets, int NH, int n);
void attention_bias_backward(double* dbias, const double* dy, const double* y, const double* qkv, const float* lse,
                             int B, int S, Heads h);
void linear_attention_forward(double* y, float* norms, const double* qkv, const double* gates, int B, int S, Heads h);
void linear_attention_backward(double* dqkv, double* dgates, const double* dy, const double* y, const double* qkv,
                               const double* gates, const float* norms, int B, int S, Heads h);
void linear_attention_cached(double* y, States states, const double* qkv, const double* gates, int B, int S,
                             const int* pos, Heads h);

}   // namespace reference

// reference.h - declarations and helpers shared by layers/reference/*.cpp.
#pragma once
#include "layers/ops.h"

namespace reference {

// Adds up eight sums: with a single one, each addition would wait for the one before.
inline double dot(const double* a, const double* b, int n) {
    double sums[8] = {}, rest = 0;
    int i = 0;
    for (; i + 8 <= n; i += 8)
        for (int j = 0; j < 8; j++) sums[j] += a[i + j] * b[i + j];
    for (; i < n; i++) rest += a[i] * b[i];
    for (double s : sums) rest += s;
    return rest;
}
inline void add(double* y, double a, const double* x, int n) {    // y += a x
    for (int i = 0; i < n; i++) y[i] += a * x[i];
}
// Factor of a number with dropout: 0 if it is dropped.
inline double factor_of(const Dropout& drop, bool kept) { return kept ? 1 / (1 - double(drop.rate)) : 0; }

// Arguments are as in operations.inc.
void attention_forward(double* y, float* lse, const double* qkv, int B, int S, Heads h);
void attention_backward(double* dqkv, const double* dy, const double* y, const double* qkv, const float* lse, int B,
                        int S, Heads h);
void cross_attention_forward(double* y, float* lse, const double* q, const double* kv, int B, int S, Heads h);
void cross_attention_backward(double* dq, double* dkv, const double* dy, const double* y, const double* q,
                              const double* kv, const float* lse, int B, int S, Heads h);
void attention_merge(double* y, float* lse, const double* part, const float* part_lse, bool add, int B, int S, Heads h);
void copy_columns(double* to, int64_t to_row, const double* from, int64_t from_row, const int* rows, bool add, int N,
                  int C);
void cache_append(Pages cache, const double* kv, int B, int S, const int* pos, Heads h);
void cross_attention_cached(double* y, const double* q, Pages cache, int B, int S, const int* last, Heads h);
void attention_cached(double* y, const double* qkv, Pages cache, int B, int S, const int* pos, Heads h);
void bias_rows_forward(double* bias, const double* table, const int* bucket, int buckets, int NH, int n);
void bias_rows_backward(double* dtable, const double* dbias, const int* bucket, int buckets, int NH, int n);
void relative_keys_forward(double* bias, const double* qkv, const double* keys, int N, Heads h);
void relative_keys_backward(double* dqkv, double* dkeys, const double* dbias, const double* qkv, const double* keys,
                            int N, Heads h);
void attention_bias_backward(double* dbias, const double* dy, const double* y, const double* qkv, const float* lse,
                             int B, int S, Heads h);
void linear_attention_forward(double* y, float* norms, const double* qkv, const double* gates, int B, int S, Heads h);
void linear_attention_backward(double* dqkv, double* dgates, const double* dy, const double* y, const double* qkv,
                               const double* gates, const float* norms, int B, int S, Heads h);
void linear_attention_cached(double* y, States states, const double* qkv, const double* gates, int B, int S,
                             const int* pos, Heads h);

void router_forward(double* factors, Routes to, double* totals, const double* logits, Router r, int B, int S);
void router_backward(double* dlogits, const double* dfactors, Routes routes, const double* logits, Router r,
                     float balance, float z, int B, int S);
void experts_gather(double* y, const double* x, Routes routes, Router r, int N, int C);
void experts_combine(double* y, const double* residual, const double* x, const double* factors, Routes routes, Router r,
                     int N, int C);
void experts_combine_backward(double* dx, double* dfactors, const double* dy, const double* x, const double* factors,
                              Routes routes, Router r, int N, int C);
void experts_forward(double* y, const double* x, const double* w, Routes routes, Router r, int N, int C, int OC);
void experts_backward(double* dx, GradTarget<double> dw, const double* dy, const double* x, const double* w,
                      Routes routes, Router r, int N, int C, int OC);
void row_gate_forward(double* y, const double* x, const double* gate, int N, int F);
void row_gate_backward(double* dx, double* dgate, const double* dy, const double* x, const double* gate, int N, int F);
void residual_mix_forward(double* y, const double* x, const double* x0, const double* factor, const double* factor0,
                          int l, float sign, int64_t n);
void residual_mix_backward(double* d, double* dx0, double* dfactor, double* dfactor0, const double* x, const double* x0,
                           const double* factor, const double* factor0, int l, float sign, int64_t n);
void smear_forward(double* y, const double* x, const double* previous, const double* w, const double* lambda, int B,
                   int S, int C, const int* pos);
void smear_backward(double* dx, double* dw, double* dlambda, const double* dy, const double* x, const double* w,
                    const double* lambda, int B, int S, int C, const int* pos);
void previous_tokens(int* previous, int* history, const int* tok, const int* sequences, const int* cache_pos, int B,
                     int S, int positions);
void value_embedding_forward(double* qkv, const double* x, const double* table, const double* gate_w, const int* tok,
                             int N, int C, Heads h);
void value_embedding_backward(double* dx, double* dvalues, double* dgate_w, const double* dqkv, const double* x,
                              const double* table, const double* gate_w, const int* tok, int N, int C, Heads h);
void sample(int* ids, int* token_counts, SampleState* at, int* cache_pos, int* pos, const double* logits,
            const double* bias, SampleParams draw, Logits z, int N, int V, int Vp);
// Attention probabilities of one head of one sequence, without dropout, and each query's number of
// visible keys.
// p (S,S): rows are queries   visible (S)   qkv (S,NH+2*NKV,HS), normed and rotated
void probabilities(double* p, int* visible, const double* qkv, int S, const Heads& h, int head);

}    // namespace reference

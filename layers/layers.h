// layers.h - every operation of the model, as one table. Read this file first.
//
// Three tables will exist: reference (double, plain loops, the definition), cpu (float, fast) and cuda (float, bf16).
// gpt.cpp is written once, over Ops<T>, and never asks which table it holds.
//
// Sizes: B batch, S positions of this call (T is the type here), N = B*S rows, C channels, OC output channels, NH query
// heads, NKV key/value heads, HS head size, V vocabulary, Vp padded vocabulary. All arrays are dense and row-major.
// Arguments: outputs, inputs, saved statistics, sizes. Statistics (mean, rstd, lse, losses) are float always.
// Gradients of parameters accumulate (+=); gradients of activations are assigned (=) except where "adds" is written.
// Every entry gives the same bits for the same inputs, whatever the number of threads (linear: see linear.cpp); no
// entry allocates after the first call with a given shape.
#pragma once
#include "../common.h"

struct Heads { int NH, NKV, HS; };    // query heads h share key/value head h / (NH / NKV)
struct AdamW { float lr, beta1, beta2, eps, weight_decay, grad_scale; int64_t step; };    // step counts from 1

template <class T> struct Ops {
    const char* name;    // "reference", "cpu fp32 (AVX-512, oneDNN 2.6)": for people

    // Memory of this device. allocate gives null when there is none; it is zeroed and 64-byte aligned.
    void* (*allocate)(int64_t bytes);
    void (*release)(void* p, int64_t bytes);
    void (*zero)(void* p, int64_t bytes);
    void (*copy)(void* to, const void* from, int64_t bytes);        // device to device
    void (*upload)(void* to, const void* from, int64_t bytes);      // host to device
    void (*download)(void* to, const void* from, int64_t bytes);    // device to host

    // x[b,s,:] = wte[tok[b,s],:] + wpe[pos+s,:]                       x (B,S,C)  tok (B,S)  wte (V,C)  wpe (maxT,C)
    void (*embedding_forward)(T* x, const int* tok, const T* wte, const T* wpe, int B, int S, int C, int pos);
    // dwte[tok[b,s],:] += dx[b,s,:]   dwpe[s,:] += sum_b dx[b,s,:]
    void (*embedding_backward)(T* dwte, T* dwpe, const T* dx, const int* tok, int B, int S, int C);

    // y = (x - mean) * rstd * w + b,  rstd = 1/sqrt(var + eps)        x, y (N,C)  mean, rstd (N)  w, b (C)
    // Ba et al. 2016, eq. 3-4; var is the biased one.
    void (*layernorm_forward)(T* y, float* mean, float* rstd, const T* x, const T* w, const T* b, float eps, int N,
                              int C);
    // dx adds: dx += rstd*(g - mean(g) - xhat*mean(g*xhat)), g = w*dy;  dw += sum_n dy*xhat;  db += sum_n dy
    void (*layernorm_backward)(T* dx, T* dw, T* db, const T* dy, const T* x, const T* w, const float* mean,
                               const float* rstd, int N, int C);

    // y = x w^T + b + residual      x (N,C)  w (OC,C)  y (N,OC)  b (OC) or null  residual (N,OC) or null, may be y
    void (*linear_forward)(T* y, const T* x, const T* w, const T* b, const T* residual, int N, int C, int OC);
    // dx = dy w (null: not wanted)   dw += dy^T x   db += sum_n dy (null: no bias)
    void (*linear_backward)(T* dx, T* dw, T* db, const T* dy, const T* x, const T* w, int N, int C, int OC);

    // y = softmax(q k^T / sqrt(HS), causal) v      qkv (B,S,NH+2*NKV,HS): q heads, k heads, v heads
    // y (B,S,NH,HS)  lse (B,NH,S) = log sum exp of the scaled scores.  Dao et al. 2022, algorithm 1.
    void (*attention_forward)(T* y, float* lse, const T* qkv, int B, int S, Heads h);
    // dqkv = gradient, from recomputed probabilities exp(score - lse).  Dao et al. 2022, algorithm 4.
    void (*attention_backward)(T* dqkv, const T* dy, const T* y, const T* qkv, const float* lse, int B, int S, Heads h);
    // Generation: appends the S new keys and values at pos to the caches, then attends over pos+S positions.
    // k_cache, v_cache (B,NKV,maxT,HS); pos + S <= maxT.  Equal to attention_forward on the whole sequence.
    void (*attention_cached)(T* y, T* k_cache, T* v_cache, const T* qkv, int B, int S, int pos, int maxT, Heads h);

    // y = x/2 * (1 + tanh(sqrt(2/pi) * (x + 0.044715 x^3)))   Hendrycks & Gimpel 2016, the tanh form (gelu_new)
    void (*gelu_forward)(T* y, const T* x, int64_t n);
    void (*gelu_backward)(T* dx, const T* dy, const T* x, int64_t n);    // dx may be dy

    // loss[n] = lse(logits[n,:V]) - logits[n,target[n]];  dlogits = scale * (softmax - onehot), 0 in columns V..Vp
    // dlogits null: loss only; may be logits.    logits (N,Vp)  target (N)  loss (N)
    void (*cross_entropy)(float* loss, T* dlogits, const T* logits, const int* target, float scale, int N, int V,
                          int Vp);

    // out[0] = sum x^2 in double, in an order that depends on n alone. NaN and infinity in x come out as such.
    void (*sum_of_squares)(double* out, const T* x, int64_t n);
    // One AdamW step (Loshchilov & Hutter 2019, algorithm 2) with gradient g = grad_scale * dw.
    void (*adamw)(T* w, float* m, float* v, const T* dw, int64_t n, AdamW a);

    // Bytes of scratch that the entries above will hold after calls of these sizes (for --dry-run).
    int64_t (*scratch_bytes)(int B, int S, int C, int F, int Vp, int head_rows, Heads h);
};

enum class Dtype { fp32, bf16 };

const Ops<double>& reference_ops();
// float storage everywhere; bf16 rounds the inputs of the matrix products to bf16 and accumulates in float.
const Ops<float>& cpu_ops(Dtype dtype);
bool cpu_has_bf16();         // the CPU multiplies bf16 natively (AVX512-BF16, AMX): elsewhere bf16 is slower than fp32
void cpu_set_threads(int threads);    // 0: the cores this process may use (affinity and cgroup quota)
int cpu_threads();

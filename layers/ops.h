// ops.h - every operation of the model, as one table. Read this file first.
//
// A table has two types: T is that of activations, P that of parameters. Three exist: reference (double, plain loops,
// the definition), cpu (float activations; float or bf16 parameters) and cuda (float or bf16 for both).
// gpt.cpp is written once, over Ops<T, P>, and never asks which table it holds.
//
// Sizes: B batch, S positions of this call (T is a type here), N = B*S rows, C channels, OC output channels, NH query
// heads, NKV key/value heads, HS head size, V vocabulary, Vp padded vocabulary. All arrays are dense and row-major and
// lie in the device's memory unless "host" is written. Arguments: outputs, inputs, saved statistics, sizes. Statistics
// (mean, rstd, lse, losses) are float always, and so are the gradients of bf16 parameters: Grad<P>.
// Gradients of parameters accumulate (+=); gradients of activations are assigned (=) except where "adds" is written.
// Every entry gives the same bits for the same inputs, whatever the number of threads (with AMX: see onednn.cpp); no
// entry allocates after the first call with a given shape. A device may work behind the caller's back: only download
// and wait wait for it.
#pragma once
#include "base/common.h"
#include "bf16.h"

template <class P> struct GradOf { typedef P type; };
template <> struct GradOf<bf16> { typedef float type; };
template <class P> using Grad = typename GradOf<P>::type;

// Attention's heads, and what a query sees of the keys at or before it: all; the last `window`, itself included; or
// those of its own document.
struct Heads {
    int NH, NKV, HS;    // query heads h share key/value head h / (NH / NKV)
    int window = 0;     // 0: no limit
    // (B,S) or both null: each position's document is [start, end); neither decreases along a sequence.
    const int *doc_start = nullptr, *doc_end = nullptr;
};

struct AdamW { float lr, beta1, beta2, eps, weight_decay; };
// Over which a step is not applied. A gradient norm above clip (0: never) is scaled down to it.
struct Limits { double clip = 0, loss = INFINITY, norm = INFINITY; };
// What a step came to. Lies on the device: gate writes it, adamw reads it.
struct Step {
    double loss, norm;           // mean loss, global gradient norm before clipping
    int64_t updates;             // applied so far, this one included
    float scale;                 // of the gradients: 1, or what clips them
    float m_scale, v_scale;      // 1 / (1 - beta^updates)
    int skipped;                 // 1: loss or norm not finite, or over its limit. adamw then changes nothing
};

template <class T, class P = T> struct Ops {
    const char* name;    // "reference", "cpu fp32 (AVX-512, oneDNN 2.6)": for people

    // Memory of this device. allocate gives null when there is none; it is zeroed and 64-byte aligned (256 on a GPU).
    void* (*allocate)(int64_t bytes);
    void (*release)(void* p, int64_t bytes);
    void* (*allocate_host)(int64_t bytes);    // host memory that the device copies to and from by itself
    void (*release_host)(void* p, int64_t bytes);
    void (*zero)(void* p, int64_t bytes);
    void (*copy)(void* to, const void* from, int64_t bytes);        // device to device
    void (*upload)(void* to, const void* from, int64_t bytes);      // host to device; from may be changed on return
    void (*download)(void* to, const void* from, int64_t bytes);    // device to host; waits for all that came before
    // A batch ahead of its step, beside the work under way: upload_ahead fills `staged` (from may be changed on
    // return), take moves it to where the operations after it find it. The next upload_ahead waits for the take, not
    // the caller.
    void (*upload_ahead)(void* staged, const void* from, int64_t bytes);
    void (*take)(void* to, const void* staged, int64_t bytes);
    // Results without waiting: download_later fills `to` (from allocate_host); wait(mark()) waits for all before mark.
    void (*download_later)(void* to, const void* from, int64_t bytes);
    int64_t (*mark)();
    void (*wait)(int64_t mark);
    // Optional: what is called between record and the graph it returns is not done but kept; replay does it. Pointers
    // and sizes stay those of the recording; everything must have been called once before.
    void (*record)();
    void* (*recorded)();
    void (*replay)(void* graph);
    void (*release_graph)(void* graph);

    // x[b,s,:] = wte[tok[b,s],:] + wpe[p+s,:]                         x (B,S,C)  tok (B,S)  wte (V,C)  wpe (maxT,C)
    // p = *pos, null: 0
    void (*embedding_forward)(T* x, const int* tok, const P* wte, const P* wpe, int B, int S, int C, const int* pos);
    // dwte[tok[b,s],:] += dx[b,s,:]   dwpe[s,:] += sum_b dx[b,s,:]    tokens below V
    void (*embedding_backward)(Grad<P>* dwte, Grad<P>* dwpe, const T* dx, const int* tok, int B, int S, int C, int V);

    // y = (x - mean) * rstd * w + b,  rstd = 1/sqrt(var + eps)        x, y (N,C)  mean, rstd (N)  w, b (C)
    // Ba et al. 2016, eq. 3-4; var is the biased one.
    void (*layernorm_forward)(T* y, float* mean, float* rstd, const T* x, const P* w, const P* b, float eps, int N,
                              int C);
    // dx adds: dx += rstd*(g - mean(g) - xhat*mean(g*xhat)), g = w*dy;  dw += sum_n dy*xhat;  db += sum_n dy
    void (*layernorm_backward)(T* dx, Grad<P>* dw, Grad<P>* db, const T* dy, const T* x, const P* w, const float* mean,
                               const float* rstd, int N, int C);

    // y = x w^T + b + residual      x (N,C)  w (OC,C)  y (N,OC)  b (OC) or null  residual (N,OC) or null, may be y
    void (*linear_forward)(T* y, const T* x, const P* w, const P* b, const T* residual, int N, int C, int OC);
    // dx = dy w (null: not wanted)   dw += dy^T x   db += sum_n dy (null: no bias)
    void (*linear_backward)(T* dx, Grad<P>* dw, Grad<P>* db, const T* dy, const T* x, const P* w, int N, int C, int OC);

    // y = softmax(q k^T / sqrt(HS), causal) v      qkv (B,S,NH+2*NKV,HS): q heads, k heads, v heads
    // y (B,S,NH,HS)  lse (B,NH,S) = log sum exp of the scaled scores.  Dao et al. 2022, algorithm 1.
    void (*attention_forward)(T* y, float* lse, const T* qkv, int B, int S, Heads h);
    // dqkv = gradient, from recomputed probabilities exp(score - lse).  Dao et al. 2022, algorithm 4.
    void (*attention_backward)(T* dqkv, const T* dy, const T* y, const T* qkv, const float* lse, int B, int S, Heads h);
    // Generation: appends the S new keys and values at p = *pos to the caches, then attends over p+S positions.
    // k_cache, v_cache (B,NKV,maxT,HS); p + S <= maxT; no documents.  Equal to attention_forward on the whole sequence.
    void (*attention_cached)(T* y, T* k_cache, T* v_cache, const T* qkv, int B, int S, const int* pos, int maxT,
                             Heads h);

    // y = x/2 * (1 + tanh(sqrt(2/pi) * (x + 0.044715 x^3)))   Hendrycks & Gimpel 2016, the tanh form (gelu_new)
    void (*gelu_forward)(T* y, const T* x, int64_t n);
    void (*gelu_backward)(T* dx, const T* dy, const T* x, int64_t n);    // dx may be dy
    // Optional (null: composed of linear and gelu): the ffn's first product with its GELU, and the second's backward
    // through it.       pre = x w^T + b, y = gelu(pre)     pre, y (N,OC)
    void (*linear_gelu_forward)(T* y, T* pre, const T* x, const P* w, const P* b, int N, int C, int OC);
    // dpre = (dy w) * gelu'(pre)   dw += dy^T x   db += sum_n dy   dpre_sum += sum_n dpre      dpre, pre, x (N,C)
    void (*linear_gelu_backward)(T* dpre, Grad<P>* dw, Grad<P>* db, Grad<P>* dpre_sum, const T* dy, const T* x,
                                 const P* w, const T* pre, int N, int C, int OC);

    // loss[n] = lse(logits[n,:V]) - logits[n,target[n]];  dlogits = scale * (softmax - onehot), 0 in columns V..Vp
    // dlogits null: loss only; may be logits.    logits (N,Vp)  target (N)  loss (N)
    void (*cross_entropy)(float* loss, T* dlogits, const T* logits, const int* target, float scale, int N, int V,
                          int Vp);
    void (*add_losses)(double* total, const float* loss, int64_t n);    // *total += sum loss, in an order of n alone

    // out[0] = sum x^2 in double, in an order that depends on n alone. NaN and infinity in x come out as such.
    void (*sum_of_squares)(double* out, const Grad<P>* x, int64_t n);
    // The step's verdict, of the summed loss and the n sums of squares: loss = loss_scale * *loss_total,
    // norm = sqrt(sum squares); updates, scale, m_scale, v_scale, skipped as Step says.
    void (*gate)(Step* step, const double* loss_total, double loss_scale, const double* squares, int n, AdamW a,
                 Limits limits);
    // One AdamW step (Loshchilov & Hutter 2019, algorithm 2) with gradient g = step->scale * dw; nothing if
    // step->skipped. Element i decays if decays[i / 64]. master: fp32 weights, of which w is the rounded copy; null: w
    // itself is stepped, and a bf16 w is rounded stochastically: with the upper half of word i % 4 of
    // philox(seed, step->updates, i / 4).
    void (*adamw)(P* w, float* master, float* m, float* v, const Grad<P>* dw, const uint8_t* decays, int64_t n,
                  const Step* step, AdamW a, uint64_t seed);
    void (*from_floats)(P* to, const float* from, int64_t n);    // rounded to nearest, ties to even
    void (*to_floats)(float* to, const P* from, int64_t n);

    int64_t logits_bytes;    // of a chunk of the LM head: large enough to keep the device busy
    // Bytes of scratch that the entries above will hold after calls of these sizes (for --dry-run).
    int64_t (*scratch_bytes)(int B, int S, int C, int F, int Vp, int head_rows, Heads h);
    int64_t (*free_bytes)();    // of this device's memory, now
    // T float: attention_forward and _backward round q, k, v, dy, probabilities and their gradients to bf16 before they
    // multiply them.
    bool attention_rounds = false;
};

enum class Dtype { fp32, tf32, bf16 };    // tf32: a GPU's fp32 products with 10-bit mantissas

const Ops<double>& reference_ops();
// Activations are float. P bf16: so are the parameters, and the matrix products' other input is rounded to bf16 (in
// attention both, with the probabilities and their gradients, where the CPU multiplies bf16); sums are float.
template <class P> const Ops<float, P>& cpu_ops();
bool cpu_has_bf16();         // the instruction set in use multiplies bf16 (AVX512-BF16, AMX): others are slower by it
void cpu_set_threads(int threads);    // 0: the cores this process may use (affinity and cgroup quota)
int cpu_threads();

// attention.cuh - the attention kernels of each generation of GPUs, behind attention.cu's choice. Arguments as in
// layers/ops.h. All read packed qkv in place, are causal, take windows, documents and grouped heads, and save only lse.
#pragma once
#include "layers/cuda.cuh"

// The first key that the query at position i sees; it sees all from there to i. Positions beyond the last have the
// last's document. Never decreases with i.
__device__ inline int first_key(Heads h, int S, int b, int i) {
    const int window = h.window ? max(0, i - h.window + 1) : 0;
    return h.doc_start ? max(window, h.doc_start[int64_t(b) * S + min(i, S - 1)]) : window;
}

// layers/attention/sm80.cu: mma.sync, for sm_80 and newer. Head sizes that are multiples of 8, up to 256.
void attention_forward_sm80(bf16* y, float* lse, const bf16* qkv, int B, int S, Heads h);
void attention_backward_sm80(bf16* dqkv, const bf16* dy, const bf16* y, const bf16* qkv, const float* lse, int B, int S,
                             Heads h);

// layers/attention/sm90.cu: wgmma and TMA, for sm_90 alone. Head sizes 64 and 128.
void attention_forward_sm90(bf16* y, float* lse, const bf16* qkv, int B, int S, Heads h);
void attention_backward_sm90(bf16* dqkv, const bf16* dy, const bf16* y, const bf16* qkv, const float* lse, int B, int S,
                             Heads h);

// layers/attention/plain.cu: FMAs, for every type and head size.
template <class T> void attention_forward_plain(T* y, float* lse, const T* qkv, int B, int S, Heads h);
template <class T>
void attention_backward_plain(T* dqkv, const T* dy, const T* y, const T* qkv, const float* lse, int B, int S, Heads h);
// S queries at positions from *pos on, over caches that already hold their keys and values.
template <class T>
void attention_prompt_plain(T* y, const T* k_cache, const T* v_cache, const T* qkv, int B, int S, const int* pos,
                            int maxT, Heads h);

// layers/attention/cached.cu: generation.
template <class T>
void attention_cached(T* y, T* k_cache, T* v_cache, const T* qkv, int B, int S, const int* pos, int maxT, Heads h);

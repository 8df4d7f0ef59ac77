// attention.cuh - declares the attention kernels for each generation of GPUs; attention.cu chooses
// among them. Arguments: layers/operations.inc. q and kv are one array, qkv, unless keys and values
// are another sequence's (Heads::source). All kernels support windows, spans and grouped heads, and
// save only lse for the backward pass.
#pragma once
#include "layers/dropout.h"
#include "layers/attention/softcap.cuh"
#include "visible_keys.h"

// A head's position bias in log2 units, which a score subtracts: slope * distance (ALiBi), or the
// negated bias in `row`. distance = query's position - key's; row is indexed by -distance.
struct PositionBias {
    float slope;
    const float* row;    // a query's bias at distance 0; null: ALiBi
    int max_distance;
};
__device__ inline float operator*(const PositionBias& t, float distance) {
    return t.row ? -LOG2E * t.row[max(min(-int(distance), t.max_distance), -t.max_distance)] : t.slope * distance;
}

// noinline, so that kernels without dropout do not reserve registers for it.
__device__ __attribute__((noinline)) inline bool is_pair_kept(float rate, uint64_t seed, uint64_t row, int query,
                                                              int key) {
    return is_pair_kept(Dropout{rate, seed, 0}, row, query, key);
}
__device__ inline bool is_kept(const Heads& h, int b, int head, int query, int key) {
    const Dropout& d = h.dropout;
    return d.rate == 0 || is_pair_kept(d.rate, d.seed, pair_row(d, b, head, h.NH), query, key);
}

// Turns products q . k into scores in log2 units. With a soft cap t = tanh(product * inner), else t
// = product. score = t * log2 - slope * distance: the member log2 is the cap or the scale, times
// log2(e); slope is the head's PositionBias. Kernels without SHAPED skip cap and bias.
struct Scores {
    float scale, log2, inner, has_cap;
    int NH;               // number of ALiBi heads; 0: no slopes
    const float* bias;    // Heads::bias
    int max_distance, bias_step;
    bool has_dropout;
    explicit Scores(Heads h)
        : scale(h.score_scale()), log2(LOG2E * (h.softcap != 0 ? h.softcap : scale)),
          inner(h.softcap != 0 ? scale / h.softcap : 0), has_cap(h.softcap != 0), NH(h.alibi ? h.NH : 0), bias(h.bias),
          max_distance(h.max_distance), bias_step(h.bias_step), has_dropout(h.dropout.rate > 0) {}
    bool shaped() const { return has_cap != 0 || NH || bias || has_dropout; }

    // The bias of query n, its number among the call's B * S queries.
    __device__ PositionBias slope(int head, int64_t n) const {
        if (!bias) return {alibi(head), nullptr, 0};
        return {0, bias + n * bias_step + head * (2 * max_distance + 1) + max_distance, max_distance};
    }
    // The bias of the query that comes i queries after the one of `first`.
    __device__ PositionBias after(const PositionBias& first, int i) const {
        return {first.slope, first.row ? first.row + int64_t(i) * bias_step : nullptr, first.max_distance};
    }
    __device__ float alibi(int head) const {    // alibi_slope() of layers/ops.h
        if (!NH) return 0;
        int p = 1;
        while (2 * p <= NH) p *= 2;
        const float halvings = head < p ? 8.0f * float(head + 1) : 4.0f * float(2 * (head - p) + 1);
        return LOG2E * exp2f(-halvings / float(p));
    }
    __device__ float inside(float product) const { return inner != 0 ? tanh_of(product * inner) : product; }
    __device__ float score(float t, const PositionBias& slope, float distance) const {
        return t * log2 - slope * distance;
    }
    // The derivative of a score (in natural units) with respect to the product, without the factor
    // scale. It is 0 where t is -infinity, which marks hidden keys.
    __device__ float cap_slope(float t) const { return fmaxf(1 - has_cap * t * t, 0); }
};
// Calls f(SHAPED, SPARSE, DROPS). SHAPED: soft caps, slopes or biases. SPARSE: a sparse pattern,
// which requires SHAPED. DROPS: dropout, which requires SHAPED and SPARSE.
template <class F> void for_kind(const Scores& s, const Heads& h, F f) {
    const std::true_type yes;
    const std::false_type no;
    if (s.has_dropout) f(yes, yes, yes);
    else if (has_pattern(h)) f(yes, yes, no);
    else if (s.shaped()) f(yes, no, no);
    else f(no, no, no);
}
// Calls f(SHAPED). Dropout needs SHAPED too.
template <class F> void for_shape(const Scores& s, F f) {
    if (s.shaped()) f(std::true_type());
    else f(std::false_type());
}

// attention.cu: calls the kernel that attention_kernels chooses.
template <class T> void attention_forward(T* y, float* lse, const T* qkv, int B, int S, Heads h);

// sm80.cu: mma.sync, sm_80 and newer. Head sizes are multiples of 8, up to 256; no other HV.
void attention_forward_sm80(bf16* y, float* lse, const bf16* q, const bf16* kv, int B, int S, Heads h);
void attention_backward_sm80(bf16* dq, bf16* dkv, const bf16* dy, const bf16* y, const bf16* q, const bf16* kv,
                             const float* lse, int B, int S, Heads h);

// sm90.cu: wgmma and TMA, sm_90 only, without sparse patterns, biases and dropout.
// Sm90Scratch::takes decides.
void attention_forward_sm90(bf16* y, float* lse, const bf16* q, const bf16* kv, int B, int S, Heads h);
void attention_backward_sm90(bf16* dq, bf16* dkv, const bf16* dy, const bf16* y, const bf16* q, const bf16* kv,
                             const float* lse, int B, int S, Heads h);

// simt.cu, simt_backward.cu: FMAs, for every type and head size.
template <class T> void attention_forward_simt(T* y, float* lse, const T* q, const T* kv, int B, int S, Heads h);
template <class T> void attention_backward_simt(T* dq, T* dkv, const T* dy, const T* y, const T* q, const T* kv,
                                                const float* lse, int B, int S, Heads h);
// simt_backward.cu: delta (B,NH,S) = dy . y
template <class T> void attention_delta(float* delta, const T* dy, const T* y, int B, int S, Heads h);

// simt.cu: attention of S queries over a cache that already holds their keys and values.
template <class T> void attention_prompt(T* y, const T* q, const Pages& cache, int B, int S, const int* pos, Heads h);

// cached.cuh, kv_pages.cu: generation.
template <class T> void attention_cached(T* y, const T* qkv, Pages cache, int B, int S, const int* pos, Heads h);
template <class T> void rope_attention_cached(T* y, T* qkv_rot, float* rstd, const T* qkv, const T* qw, const T* kw,
                                              const float* cos_sin, Pages cache, int B, int S, const int* rope_pos,
                                              const int* pos, Heads h, QkNormRope t);
template <class T> void cross_attention_cached(T* y, const T* q, Pages cache, int B, int S, const int* last, Heads h);
template <class T> void cache_append(Pages cache, const T* kv, int B, int S, const int* pos, Heads h);
template <class T> void cache_rotate(Pages cache, const int* pages, int n, const float* cos_sin, Heads h, QkNormRope t);

// Calls f with a null pointer to the cache's element type; T is the activations' type.
template <class T, class F> void with_cache_type(Element type, F f) {
    if (type == element_of<T>) return f(static_cast<T*>(nullptr));
    if (type == Element::bf16) return f(static_cast<bf16*>(nullptr));
    if (type == Element::fp8) return f(static_cast<fp8*>(nullptr));
    CHECK(type == Element::int8, "a cache of type %d", int(type));
    f(static_cast<int8*>(nullptr));
}

// attention.cu - causal attention: definitions, and the choice of kernels.
//
//     s_ij = scale q_i . k_j   lse_i = log sum_j exp(s_ij)   p_ij = exp(s_ij - lse_i)
//     y_i = sum_j p_ij v_j     delta_i = dy_i . y_i          dp_ij = dy_i . v_j
//     ds_ij = p_ij (dp_ij - delta_i) scale                   dq_i = sum_j ds_ij k_j
//     dk_j = sum_i ds_ij q_i   dv_j = sum_i p_ij dy_i
// over the pairs i, j where query i attends to key j. With a soft cap the score is cap t_ij, t_ij =
// tanh(s_ij / cap), and ds_ij gets the factor 1 - t_ij^2. ALiBi subtracts slope (i - j) from
// scores.
// With dropout r_ij = 0 or 1 / (1 - rate):
//     y_i = sum_j r_ij p_ij v_j     dp_ij = r_ij dy_i . v_j     dv_j = sum_i r_ij p_ij dy_i
//
// bf16 uses tensor cores (sm90.cu, sm80.cu) where these support the head size. Other sizes, and
// float, use FMAs (simt.cu). attention_kernels (layers/scratch.h) chooses. Generation: cached.cuh.
#include "attention.cuh"

static AttentionKernels kernels(Heads h) { return attention_kernels(sizeof(bf16), h, attention_has_sm90()); }

template <class T> static void cross_forward(T* y, float* lse, const T* q, const T* kv, int B, int S, Heads h) {
    if constexpr (sizeof(T) == 2) {
        const AttentionKernels k = kernels(h);
        if (k == AttentionKernels::sm90) return attention_forward_sm90(y, lse, q, kv, B, S, h);
        if (k == AttentionKernels::sm80) return attention_forward_sm80(y, lse, q, kv, B, S, h);
    }
    attention_forward_simt(y, lse, q, kv, B, S, h);
}
template <class T> void attention_forward(T* y, float* lse, const T* qkv, int B, int S, Heads h) {
    cross_forward(y, lse, qkv, qkv, B, S, h);
}
template void attention_forward(float*, float*, const float*, int, int, Heads);
template void attention_forward(bf16*, float*, const bf16*, int, int, Heads);

namespace {

template <class T> void cross_backward(T* dq, T* dkv, const T* dy, const T* y, const T* q, const T* kv,
                                       const float* lse, int B, int S, Heads h) {
    if constexpr (sizeof(T) == 2) {
        const AttentionKernels k = kernels(h);
        if (k == AttentionKernels::sm90) return attention_backward_sm90(dq, dkv, dy, y, q, kv, lse, B, S, h);
        if (k == AttentionKernels::sm80) return attention_backward_sm80(dq, dkv, dy, y, q, kv, lse, B, S, h);
    }
    attention_backward_simt(dq, dkv, dy, y, q, kv, lse, B, S, h);
}
template <class T>
void backward(T* dqkv, const T* dy, const T* y, const T* qkv, const float* lse, int B, int S, Heads h) {
    cross_backward(dqkv, dqkv, dy, y, qkv, qkv, lse, B, S, h);
}

const CudaRegistration entries([]<class T>(Ops<T>& o, Dtype) {
    o.attention_forward = attention_forward<T>;
    o.attention_backward = backward<T>;
    o.cross_attention_forward = cross_forward<T>;
    o.cross_attention_backward = cross_backward<T>;
    o.attention_cached = attention_cached<T>;
    o.cross_attention_cached = cross_attention_cached<T>;
    o.cache_append = cache_append<T>;
    o.rope_attention_cached = rope_attention_cached<T>;
    o.cache_rotate = cache_rotate<T>;
});
}    // namespace

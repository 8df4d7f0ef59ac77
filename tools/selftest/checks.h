// checks.h - one function per operation: runs it at these sizes against the reference. Instantiated for float, bf16,
// and float activations with bf16 parameters.
#pragma once
#include "check.h"

#define FOR_EACH_TABLE(check, ...)                        \
    template Check check(const Ops<float>&, __VA_ARGS__); \
    template Check check(const Ops<bf16>&, __VA_ARGS__);  \
    template Check check(const Ops<float, bf16>&, __VA_ARGS__);

// embedding: pos below 0: a null pointer; hot: the share of positions that hold the same token
template <class T, class P> Check check_embedding_forward(const Ops<T, P>& op, int B, int S, int C, int V, int pos);
template <class T, class P> Check check_embedding_backward(const Ops<T, P>& op, int B, int S, int C, int V, double hot);

// lm_head: in_place: dlogits are written over the logits
template <class T, class P>
Check check_cross_entropy(const Ops<T, P>& op, int N, int V, int Vp, bool with_gradient, bool in_place);

// linear: dtype says how much the products may round
enum class Residual { none, apart, in_y };
template <class P> constexpr Dtype DTYPE = sizeof(P) == 2 ? Dtype::bf16 : Dtype::fp32;
template <class T, class P>
Check check_linear_forward(const Ops<T, P>& op, int N, int C, int OC, bool bias, Residual residual,
                           Dtype dtype = DTYPE<P>);
template <class T, class P>
Check check_linear_backward(const Ops<T, P>& op, int N, int C, int OC, bool with_dx, bool bias, Dtype dtype = DTYPE<P>);
template <class T, class P>
Check check_linear_gelu_forward(const Ops<T, P>& op, int N, int C, int OC, Dtype dtype = DTYPE<P>,
                                bool bias = true);
template <class T, class P>
Check check_linear_gelu_backward(const Ops<T, P>& op, int N, int C, int OC, Dtype dtype = DTYPE<P>,
                                 bool bias = true);

// attention: h with documents of the host, or sequences are cut into some of about `document` positions (0: not).
// scale: of q, k, v
template <class T, class P>
Check check_attention_forward(const Ops<T, P>& op, int B, int S, Heads h, int document = 0, double scale = 1);
template <class T, class P>
Check check_attention_backward(const Ops<T, P>& op, int B, int S, Heads h, int document = 0, double scale = 1);
template <class T, class P>
Check check_attention_cached(const Ops<T, P>& op, int B, int S, int pos, int maxT, Heads h, double scale = 1);

// norm, ffn
template <class T, class P> Check check_layernorm_forward(const Ops<T, P>& op, int N, int C);
template <class T, class P> Check check_layernorm_backward(const Ops<T, P>& op, int N, int C);
template <class T, class P> Check check_gelu_forward(const Ops<T, P>& op, int64_t n);
template <class T, class P> Check check_gelu_backward(const Ops<T, P>& op, int64_t n, bool in_place);

// adamw: with a master or, for bf16, rounded stochastically; the gradient scaled and not, and the step skipped
template <class T, class P> Check check_adamw(const Ops<T, P>& op, int64_t n, bool with_master);
template <class T, class P> Check check_sum_of_squares(const Ops<T, P>& op, int64_t n);
template <class T, class P> Check check_add_losses(const Ops<T, P>& op, int64_t n);
template <class T, class P> Check check_gate(const Ops<T, P>& op, int n);
template <class T, class P> Check check_casts(const Ops<T, P>& op, int64_t n);

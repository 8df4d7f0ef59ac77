// norm.h - checks of norms, and of sums of activations.
#pragma once
#include "check.h"

// A norm, and whether it has weights and biases.
struct NormForm {
    Norm norm = {};
    bool w = true, b = true;
};
constexpr NormForm LAYERNORM = {}, RMSNORM = {{true}, true, false};
// LayerNorm, RMSNorm, Gemma's, LayerNorm without biases, without both, RMSNorm without weights,
// artificial.
constexpr NormForm NORM_FORMS[] = {LAYERNORM,
                                   RMSNORM,
                                   {{true, 1e-6f, 1}, true, false},
                                   {{}, true, false},
                                   {{}, false, false},
                                   {{true}, false, false},
                                   {{true, 1e-3f, -0.5f}, true, true}};

template <class T, class P> Check check_norm_forward(const Ops<T, P>& op, int N, int C, NormForm form = LAYERNORM);
template <class T, class P>
Check check_stream_norm_forward(const Ops<T, P>& op, int N, int C, NormForm form = LAYERNORM);
template <class T, class P> Check check_norm_backward(const Ops<T, P>& op, int N, int C, NormForm form = LAYERNORM);
// The input that y overwrites; without: x is null.
enum class Sum { apart, without, in_x, in_b };
template <class T, class P> Check check_add_scaled(const Ops<T, P>& op, int64_t n, Sum sum, Dropout drop = {});

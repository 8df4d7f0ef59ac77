// generation.h - checks of fused operations of decode steps against the operations they replace,
// bit for bit. A table without the operation passes.
#pragma once
#include "norm.h"

// bias: whether the product has one
template <class T, class P>
Check check_norm_linear_forward(const Ops<T, P>& op, int N, int C, int OC, NormForm form = LAYERNORM, bool bias = true);
template <class T, class P> Check check_norm_ffn_forward(const Ops<T, P>& op, int N, int C, int F, Act act, bool gated,
                                                         NormForm form = LAYERNORM, bool bias = true);
// B sequences of S positions from pos on, sequence b's b positions earlier; if there are several,
// the last is padding. RoPE positions differ from cache positions. type f64: T's own.
template <class T, class P> Check check_rope_attention_cached(const Ops<T, P>& op, int B, int S, int pos, Heads h,
                                                              QkNormRope t, Element type = Element::f64);

// generation.h - checks of the optional operations of generation's steps: as the operations that each stands for, to
// the bit. A table that lacks one passes.
#pragma once
#include "norm.h"

// bias: the product's
template <class T, class P>
Check check_norm_linear_forward(const Ops<T, P>& op, int N, int C, int OC, NormForm form = LAYERNORM, bool bias = true);
template <class T, class P> Check check_norm_ffn_forward(const Ops<T, P>& op, int N, int C, int F, Act act, bool gated,
                                                         NormForm form = LAYERNORM, bool bias = true);
// B sequences of S positions from pos on, sequence b's b positions earlier; the last sequence is padding if there are
// several. Their angles' places are others. type f64: T's own.
template <class T, class P> Check check_rope_attention_cached(const Ops<T, P>& op, int B, int S, int pos, Heads h,
                                                              QkNormRope t, Element type = Element::f64);

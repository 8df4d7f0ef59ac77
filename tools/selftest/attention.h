// attention.h - checks of attention.
#pragma once
#include "check.h"

// h with documents of the host, or sequences are cut into some of about `document` positions (0: not).
// scale: of q, k, v
template <class T, class P>
Check check_attention_forward(const Ops<T, P>& op, int B, int S, Heads h, int document = 0, double scale = 1);
template <class T, class P>
Check check_attention_backward(const Ops<T, P>& op, int B, int S, Heads h, int document = 0, double scale = 1);
template <class T, class P>
Check check_attention_cached(const Ops<T, P>& op, int B, int S, int pos, int maxT, Heads h, double scale = 1);

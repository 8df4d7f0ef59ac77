// embedding.h - checks of the embedding.
#pragma once
#include "check.h"

// pos below 0: a null pointer; hot: share of positions with one token; wpe: with positions
template <class T, class P>
Check check_embedding_forward(const Ops<T, P>& op, int B, int S, int C, int V, int pos, bool wpe = true);
template <class T, class P>
Check check_embedding_backward(const Ops<T, P>& op, int B, int S, int C, int V, double hot, bool wpe = true);

// ffn.h - checks of the ffn's activations.
#pragma once
#include "check.h"

constexpr Act ACTS[] = {Act::gelu_tanh, Act::gelu, Act::silu, Act::relu, Act::relu2};
constexpr const char* ACT_NAME[] = {"gelu_tanh", "gelu", "silu", "relu", "relu2"};

template <class T, class P> Check check_activation_forward(const Ops<T, P>& op, Act act, bool gated, int N, int F);
// in_place: dx is dy; not if gated
template <class T, class P>
Check check_activation_backward(const Ops<T, P>& op, Act act, bool gated, int N, int F, bool in_place = false);

// activations.h - the arrays of a model's passes: one row per array says its size and whether the backward pass finds
// it or computes it again.
#pragma once
#include "model/plan.h"

struct Gpt;

// What a block's forward leaves for its backward. Where a model has no such step, an array is the one that the step
// would have read, or its copy for products (Table::own_inputs), and null if nothing reads it.
struct Activations {
    Activation* x;                // (N,C): the block's input
    Input* ln1;                   // (N,C): normed
    Activation *qkv, *qkv_rot;    // (N,(NH+2*NKV)*HS), the same normed and rotated
    Input* atty;                  // (N,NH*HS)
    Activation* decay_gates;      // (N,Heads::gates())
    Activation* out1;             // (N,C): attention's projection, or its sum with x, before its norm
    Activation* x2;               // (N,C): with attention's branch added
    Input* ln2;                   // (N,C): normed
    Activation* fch;              // (N,F or 2*F): the ffn's first product
    Input* fcg;                   // (N,F): activated
    Activation* router_logits;    // (N,E)
    Gradient* factors;            // (N,K): weight of each chosen expert's output; float where gradients are
    Routes routes;
    Activation *expert_up, *expert_out;      // as fch, out2, in slots: (N*K,...)
    Input* expert_act;                       // as fcg
    Activation* shared_gate;                 // (N): the shared expert's gate
    Input* shared_act;                       // (N,F): fcg times its sigmoid
    Activation* out2;                        // (N,C): the ffn's second product, or its sum with x2, before its norm
    float *mean1, *rstd1, *mean2, *rstd2;    // (N)
    float *qk_rstd, *lse;                    // (N,Turn::sums()); (B,NH,S), without softmax what rows were scaled by
    float *post_mean1, *post_rstd1, *post_mean2, *post_rstd2;    // (N)
};

// Lays out memory. Called twice: with base null to count bytes, then to give pointers.
struct Layout {
    const Table& op;
    char* base = nullptr;
    int64_t used = 0;
    std::vector<MemoryRow> purposes = {};

    void purpose(const char* name) {
        // Arrays a power of two apart share cache sets: each purpose starts 17 more cache lines into its page.
        used = round_up(used, 4096) + 64 * 17 * int64_t(purposes.size());
        purposes.push_back({name, used});
    }
    template <class X> void reserve(X*& p, int64_t n) {
        used = round_up(used, 64);
        p = base ? reinterpret_cast<X*>(base + used) : nullptr;
        used += op.bytes(p, n);
    }
    void finish() {
        for (size_t i = 0; i < purposes.size(); i++)
            purposes[i].bytes = (i + 1 < purposes.size() ? purposes[i + 1].bytes : used) - purposes[i].bytes;
    }
};
void lay_out_activations(Layout& at, Gpt& g);
void lay_out_activation_gradients(Layout& at, Gpt& g);
void lay_out_logits(Layout& at, Gpt& g);

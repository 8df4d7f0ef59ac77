// activations.h - the arrays of a model's passes. In activations.cpp one row per array gives its
// size and whether it is kept for the backward pass or computed again.
#pragma once
#include "model/plan.h"

struct Gpt;

// A block's activations, which its backward pass reads. A model may lack the step that computes an
// array. The array's pointer is then null if nothing reads the array. Otherwise it points to the
// step's input, or to a copy of that input if matrix products read another element type than the
// activations' (Table::has_input_type).
struct Activations {
    Activation* in;               // (N,C): output of the block before; without residual scalars, an alias of x
    Activation* x;                // (N,C): the block's input
    Input* ln1;                   // (N,C): x after the branch's norm
    Activation *qkv, *qkv_rot;    // (N,(NH+2*NKV)*HS); after QK-norm and RoPE
    Input* atty;                  // (N,NH*HS)
    Activation* global_kv;        // (N,2*NKV*HS): keys and values that queries of global tokens see
    Activation* decay_gates;      // (N,Heads::gates())
    Activation* out1;             // (N,C): input of the attention branch's norm
    Activation* x2;               // (N,C): x plus attention branch
    // Attention to an encoder's output; NS: source positions.
    Input* lnc;                        // (N,C): x2 after the branch's norm
    Activation *cross_q, *cross_kv;    // (N,NH*HS), (NS,2*NKV*HS)
    Input* cross_y;                    // (N,NH*HS)
    Activation* outc;                  // (N,C): input of the branch's norm
    Activation* x3;                    // (N,C): x2 plus that branch; without an encoder an alias of x2
    Input* ln2;                        // (N,C): x3 after the branch's norm
    Activation* fch;                   // (N,F or 2*F): the ffn's first product
    Input* fcg;                        // (N,F): activated
    Activation* router_logits;         // (N,E)
    Gradient* factors;                 // (N,K): weight of each chosen expert's output
    Routes routes;
    Activation *expert_up, *expert_out;      // (N*K,...): like fch and out2, rows ordered by expert
    Input* expert_act;                       // (N*K,F): like fcg
    Activation* shared_gate;                 // (N): the shared expert's gate
    Input* shared_act;                       // (N,F): fcg * sigmoid(shared_gate)
    Activation* out2;                        // (N,C): input of the ffn branch's norm
    float *mean1, *rstd1, *mean2, *rstd2;    // (N)
    float *meanc, *rstdc, *post_meanc, *post_rstdc, *cross_lse;    // (N); (B,NH,S)
    float* global_lse;                                             // (B,NH,G)
    float *qk_rstd, *lse;    // (N,rstd_count()); (B,NH,S), in linear attention a factor per row
    float *post_mean1, *post_rstd1, *post_mean2, *post_rstd2;    // (N)
    // LowRank::low: (N,R), of cross_kv (NS,R)
    Input *qkv_low, *proj_low, *fc_low, *fc2_low, *cross_q_low, *cross_kv_low, *cross_proj_low;
    float* inverse_norms[Adapter::PRODUCTS];    // (OC): LowRank::inverse_norms
    Input* low(Adapter::Product p) const {
        return std::array{qkv_low, proj_low, fc_low, fc2_low, cross_q_low, cross_kv_low, cross_proj_low}[p];
    }
};

// Lays out memory in two passes: with base null it counts bytes, then it assigns pointers.
struct Layout {
    const Table& op;
    char* base = nullptr;
    int64_t used = 0;
    std::vector<MemoryRow> purposes = {};

    void purpose(const char* name) {
        // Arrays whose addresses differ by a multiple of 4096 bytes compete for the same cache
        // sets. So each purpose begins 17 cache lines further beyond such a multiple than the one
        // before.
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

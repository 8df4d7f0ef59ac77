// sparse_attention.h - attention in layers whose window is dilated, or whose queries also see
// random blocks of keys. It calls the operations of attention without dilation and random blocks,
// so that the cost grows with the number of visible pairs.
//
//     dilated window    q, k, v gathered in KeyParts' order -> attention in a window -> y gathered
//                       back; lse stays in KeyParts' order
//     random blocks     attention in the window -> y, lse; for each part: its keys and values
//                       gathered -> cross-attention -> merged into y, lse by the log-sum-exps
#pragma once
#include "model/activations.h"
#include "model/ring/ring.h"

class SparseAttention {
  public:
    SparseAttention(const Table& table, const Batch& uploaded, Ring& around)
        : op(table), batch(uploaded), ring(around) {}
    SparseAttention(const SparseAttention&) = delete;
    void lay_out(Layout& at, const Config& c, const Plan& plan);

    // The operations of these names, for a layer; without parts, over the ring of ranks.
    void forward(bool parts, Input* y, float* lse, const Activation* qkv, int B, int S, const Heads& h);
    void backward(bool parts, Activation* dqkv, const Activation* dy, const Input* y, const Activation* qkv,
                  const float* lse, int B, int S, const Heads& h);

  private:
    void copy_rows(Input* to, const Input* from, const int* rows, int N, const Heads& h);
    Heads masked(const Heads& h, int part) const;    // by the part's mask
    Heads part_of(const Heads& h, int part, int S) const;
    const Table& op;
    const Batch& batch;
    Ring& ring;
    Activation *rows = nullptr, *drows = nullptr;      // (B,S,qkv_width): rows of qkv in another order, or q, then kv
    Activation* dy_rows = nullptr;                     // (B,S,NH*HS)
    Input* part = nullptr;                             // (B,S,NH*HS)
    float* part_lse = nullptr;                         // (B,NH,S)
    Activation *sum = nullptr, *sum_rows = nullptr;    // (B,S,NH*HS); null: y has their type and serves
};

// global_attention.h - an encoder's global tokens with projections of their own (Longformer,
// Beltagy et al. 2020, section 3.1). The first G positions of each sequence are global tokens.
// Their queries attend to all keys of their text. These queries, and the keys and values for them,
// come from matrices of their own. All other queries attend as usual, also to the global tokens.
// Local attention computes the first G rows as well, and forward() replaces them: they are few.
//
//     x (B,S,C) -- kv.w --> keys, values (B,S,2*NKV*HS) --.
//     its first G rows -- q.w --> queries (B,G,NH*HS) ----+-> cross-attention -> first G rows of y
#pragma once
#include "layers/compose.h"
#include "model/activations.h"

class Batch;

// A layer's operands. If q.w is null, the layer has no such matrices, and nothing is done.
struct GlobalStep {
    ProductWeights q, kv;
    Precision precision;
    Heads h;    // the layer's attention
    int B, S, C;
    const Input* x;      // (B,S,C): normed
    Activation* keys;    // (B,S,2*NKV*HS)
    float* lse;          // (B,NH,G)
    Input* y;            // (B,S,NH*HS): the output of the layer's attention
};
// Targets of a GlobalStep's gradients. dkeys and dx_part are scratch like keys and x.
struct GlobalGradients {
    GradTarget<Gradient> q, kv;
    Gradient *qb, *kvb;
    Activation *dkeys, *dx_part;
};

class GlobalAttention {
  public:
    GlobalAttention(const Table& table, const Batch& uploaded) : op(table), batch(uploaded) {}
    GlobalAttention(const GlobalAttention&) = delete;
    void lay_out(Layout& at, const Config& c, const Plan& plan);

    // Replaces the first G rows of y, which local attention has written.
    void forward(const GlobalStep& s);
    // Moves the first G rows of each sequence of dy, the gradient of y, to scratch and zeroes them
    // in dy, so that local attention's backward pass ignores the rows that forward() replaced.
    void take(Activation* dy, const GlobalStep& s);
    // Backward pass of forward(), given the rows that take() took: dx += the gradient of x.
    void backward(Activation* dx, const GlobalGradients& d, const GlobalStep& s);

  private:
    template <class X> void copy_each(X* to, int64_t to_row, const X* from, int64_t from_row, int B, int64_t n);
    void project_queries(const GlobalStep& s, const Heads& h, int G);
    Heads heads_of(const GlobalStep& s) const;
    const Table& op;
    const Batch& batch;
    // Scratch of all layers, for the first G rows of each sequence: x; queries and y; gradients.
    Input *x = nullptr, *y = nullptr;
    Activation *q = nullptr, *dq = nullptr, *dy = nullptr;
};

// ring.h - attention of a sequence whose positions are divided among a ring of ranks (Liu et al.
// 2023), in zigzag order (zigzag.h).
//
//   forward   each rank keeps its queries; keys and values pass from rank to rank, and while they
//             travel, the rank attends to those that it has: N parts, merged by their lse
//   backward  keys and values pass once more, and behind them the sums of their gradients, which
//             come home last; dq stays
//
// A rank sends N-1 times its keys and values forward, and backward N-1 times these and their
// gradients: in all 3 (N-1) B S 2 NKV HS elements a layer and batch, where S = T / N, and a third
// more if the backward pass computes the block again.
#pragma once
#include "layers/ops.h"
#include "model/activations.h"
#include "model/plan.h"

class Batch;
struct Config;
struct ParamStore;

class Ring {
  public:
    Ring(const Table& table, const Batch& uploaded, const ParamStore& parameters)
        : op(table), batch(uploaded), store(parameters) {}
    Ring(const Ring&) = delete;
    // Exit 2: the model, the ranks or the length exclude Plan::cp, as --cp.
    static Status check(const Config& c, const Plan& plan);
    void lay_out(Layout& at, const Config& c, const Plan& plan);

    // The operations of these names; with several ranks, over the keys of the whole ring. All ranks
    // of the ring call them together.
    void attention_forward(Input* y, float* lse, const Activation* qkv, int B, int S, const Heads& h);
    void attention_backward(Activation* dqkv, const Activation* dy, const Input* y, const Activation* qkv,
                            const float* lse, int B, int S, const Heads& h);

  private:
    Heads part_of(const Heads& h, int source, int S) const;
    bool sees(int source, const Heads& h) const;
    int source_of(int step) const { return (rank + ranks - step) % ranks; }
    void split(const Activation* qkv, int N, const Heads& h);
    int64_t pass_on(Activation* to, const Activation* from, int64_t n);
    const Table& op;
    const Batch& batch;
    const ParamStore& store;
    int rank = 0, ranks = 1;
    Activation *q = nullptr, *kv[2] = {};      // (B,S,NH*HS); (B,S,2*NKV*HS): the present ones, the next ones
    Activation *dq = nullptr, *dkv[3] = {};    // as q; as kv: two of this rank's parts, the ring's sum so far
    Input* part = nullptr;                     // (B,S,NH*HS)
    float* part_lse = nullptr;                 // (B,NH,S)
    Activation* sum = nullptr;                 // (B,S,NH*HS); null: y has its type and serves
};

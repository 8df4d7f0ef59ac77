// plan.h - what a model is made for: training or inference, the largest batch, what is kept and what is recomputed.
#pragma once
#include "model/packed_weights.h"

enum class RunMode { train, infer };    // infer: no gradients, no optimizer state, one block's activations
// What the backward pass computes again instead of storing it: nothing; the outputs of norms and GELU; all of a block
// but its input. Less memory, more work, the same bits. One exception: a GPU's products apply GELU before they round,
// so with `cheap` the backward pass computes GELU from the rounded input.
enum class Recompute { none, cheap, blocks };

struct Plan {
    RunMode mode = RunMode::infer;
    int B = 1, S = 1;    // the largest batch
    Recompute recompute = Recompute::none;
    bool master = true;         // bf16 parameters have fp32 masters; else they are rounded stochastically
    bool updates = true;        // false: only gradients are computed; no masters, no optimizer state
    int rank = 0, ranks = 1;    // data parallel training: the batch is this rank's
    int zero = 0;          // divided among the ranks: 1 the optimizer's state, 2 also the gradients (model/weights.h)
    bool spans = false;    // batches come with spans; else only where Config::sees asks for them
    Element comm_dtype = Element::f32;    // type in which gradients travel; bf16 halves the bytes
    // Dropout while training: of the embeddings and of each branch's output; of attention's probabilities.
    float dropout = 0, attention_dropout = 0;
    // Models with experts: factors of two more losses, which keep experts in even use (router_forward's balance) and
    // the router's logits small (mean lse^2). Both are means over positions, whether or not these have targets. Each
    // layer's gradients are added; the losses that are reported leave them out.
    float balance = 0, router_z_loss = 0;
    WeightFormats stored = {};                               // the formats of packed parameters
    int64_t max_tokens() const { return int64_t(B) * S; }    // of a batch
};
struct MemoryRow {
    const char* purpose;
    int64_t bytes;
};

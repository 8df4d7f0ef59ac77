// plan.h - how a model is to run: training or inference, largest batch, recomputation, ranks.
#pragma once
#include "model/optimizers.h"
#include "model/packed_weights.h"

enum class RunMode { train, infer };    // infer: no gradients, no optimizer state, one block's activations
// Activations that the backward pass computes again instead of keeping them: none; the outputs of
// norms and GELU; all of a block but its input. Results keep their bits, with one exception: a
// GPU's products apply GELU before rounding, so with `cheap` the backward pass has GELU of a
// rounded input.
enum class Recompute { none, cheap, blocks };

struct Plan {
    RunMode mode = RunMode::infer;
    int B = 1, S = 1;    // the largest batch
    Recompute recompute = Recompute::none;
    bool master = true;                     // bf16 parameters: fp32 masters, else stochastic rounding
    const Optimizer* optimizer = &ADAMW;    // null: gradients only, no optimizer state
    int rank = 0, ranks = 1;                // data parallel; B is per rank
    int zero = 0;                           // ZeRO: 1 partitions optimizer state, 2 also gradients
    bool spans = false;                     // batches have spans, whatever Config::mask_kind
    Element comm_dtype = Element::f32;      // type in which gradients are reduced
    // Dropout rates: embeddings and branch outputs; attention probabilities.
    float dropout = 0, attention_dropout = 0;
    // Factors of two more losses of models with experts: an even load (router_forward's balance)
    // and small router logits (mean lse^2). Both are means over all positions, with or without
    // targets. They contribute gradients in each layer, but not to the reported loss.
    float balance = 0, router_z_loss = 0;
    WeightFormats stored = {};    // formats of packed parameters
    int64_t max_tokens() const { return int64_t(B) * S; }
};
struct MemoryRow {
    const char* purpose;
    int64_t bytes;
};

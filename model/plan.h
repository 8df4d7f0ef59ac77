// plan.h - how a model is to run: training or inference, largest batch, recomputation, ranks.
#pragma once
#include "model/optimizers.h"
#include "model/packed_weights.h"

enum class RunMode { train, infer };    // infer: no gradients or optimizer state, one block's activations
// Activations that are not kept but computed again in the backward pass. cheap: the outputs of
// norms and activation functions; blocks: all of a block but its input. Results stay bit-identical,
// with one exception: a GPU's fused GELU reads the product before it is rounded, but with `cheap`
// the backward pass applies GELU to the rounded product.
enum class Recompute { none, cheap, blocks };

struct Plan {
    RunMode mode = RunMode::infer;
    int B = 1, S = 1;    // largest batch
    Recompute recompute = Recompute::none;
    bool master = true;                     // bf16 parameters: fp32 masters, not stochastic rounding
    const Optimizer* optimizer = &ADAMW;    // null: gradients only, no optimizer state
    // Types of the optimizer's states m and v: f32, bf16 or int8 (StateArray).
    std::array<Element, 2> state_types = {Element::f32, Element::f32};
    std::vector<GroupRule> groups = {};    // factors of rate and decay
    bool clip_groups = false;              // each group's gradient norm is clipped by itself
    int mup_base = 0;                      // width to which initial weights are relative (mup_scale); 0: none
    bool average = false;                  // keeps an average of the weights
    int rank = 0, ranks = 1;               // B is per rank
    int cp = 1;                            // context parallel: S is a rank's 1 / cp of each sequence (Zigzag)
    int zero = 0;                          // ZeRO: 1 partitions optimizer state, 2 also gradients
    bool spans = false;                    // batches have spans, even with a causal mask
    Element comm_dtype = Element::f32;     // type in which gradients are reduced
    // Dropout rates. `dropout` is for the embeddings and each branch's output, attention_dropout
    // for the attention probabilities.
    float dropout = 0, attention_dropout = 0;
    // Factors of two auxiliary losses of experts. `balance` is for an even use of experts
    // (router_forward in layers/operations.inc), router_z_loss for small router logits (mean
    // squared log-sum-exp). Both losses are means over all positions, with or without targets. In
    // each layer their gradients are added, but the reported loss does not include them.
    float balance = 0, router_z_loss = 0;
    LossPenalties penalties = {};    // loss on tokens, without a teacher
    WeightFormats stored = {};       // packed parameters' formats
    bool weighted = false;           // gradients of positions have factors (Gpt::loss)
    bool first_squares = false;      // measure the gradient of each step's first batch (TrainStep::first_square)
    int source = 0;                  // encoder-decoders: positions of a source, at most; 0: as many as S
    int sources = 0;                 // encoder-decoders: sources of a pass, at most; 0: B
    int64_t max_tokens() const { return int64_t(B) * S; }
    int whole_S() const { return S * cp; }    // positions of a whole sequence
    // Rings of ranks that have the same sequences: this rank's, and how many there are.
    int ring() const { return rank / cp; }
    int rings() const { return ranks / cp; }
};
struct MemoryRow {
    const char* purpose;
    int64_t bytes;
};

// gpt.h - the model: weights and activations in, loss and gradients out. All computation is a table's operations
// (layers/ops.h), so the same code trains and generates on every device and in every type. Batches, memory, generation
// and the optimizer's step are model/'s.
#pragma once
#include <functional>

#include "layers/compose.h"
#include "model/activations.h"
#include "model/batch.h"
#include "model/tensors.h"

struct ParamStore;
struct KvCache;

// The forward pass that ran last, as its loss and its backward pass find it.
struct Pass : Batch::Sizes {
    bool training = false;    // dropout applies, products may be fp8's, the router's choices are counted
    // prefill: rows' sums are a prompt's, not those of a token that comes alone (Pages::Sums)
    Precision precision = Precision::prefill;
    int64_t first_sequence = 0;    // training: the batch's first one within the step
};
// What the passes of a training step share. model/train_step.h begins it.
struct StepState {
    double* loss = nullptr;                // device: losses are added
    double* router_totals = nullptr;       // device (L,E+2): router_forward's; null: no experts
    int64_t targets = 0, sequences = 0;    // so far: targets that count, sequences of forward passes
    int64_t positions = 0;                 // in the whole step, on all ranks; 0: those of one batch on each
    // Dropout depends on the run's seed, the step's number and a sequence's number within the step alone, as the loader
    // counts it: ranks and batches may divide a step in any way.
    uint64_t seed = 0;
    int64_t number = 0;
};

// The passes hand work to the device and return at once. Functions that return numbers wait for them.
struct Gpt {
    const Table op;
    Config c;
    Plan plan;
    Params<Parameter> w;    // named pointers to the parameters
    Params<Gradient> dw;    // and to where their gradients are computed
    ParamStore& store;      // which owns them
    Batch batch{op};
    Pass pass;
    StepState step;

    Gpt(const Table& table, ParamStore& store) : op(table), store(store) {}
    Gpt(const Gpt&) = delete;

    // The batch that was uploaded, up to the final norm.
    void forward(bool training = false);
    // Losses of the batch; with train also the head's gradients times scale (1 over the number of targets in the whole
    // step). Chunk by chunk: the logits of all positions never exist at once.
    void loss(bool train, float scale);
    // Gradients of everything, after forward and loss(train). Adds. last: the step's last batch, so that a bucket goes
    // to the other ranks as soon as it is done.
    void backward(bool last = true);
    // The parts of a forward pass, for model/decoder.cpp. cache null: no generation; else positions, keys and values
    // are the cache's.
    // recomputed: whole, for a backward pass: nothing is counted twice. out null: without the last product
    enum class BlockPart { whole, attention, after_attention, recomputed };
    void embed_forward(const KvCache* cache);
    void block_forward(int l, Activation* out, KvCache* cache, BlockPart part = BlockPart::whole);
    void final_norm();
    void head_forward(Activation* logits, const Input* x, int rows);
    FfnStep ffn(int l) const;

    // Called, if it is set, in each block with softmax after its attention, while a[l].turned holds what that has read.
    std::function<void(int l)> after_attention;

    // Activations and their gradients.
    std::vector<Activations> a;                    // (L); blocks share buffers that are not kept
    Activation* embedded = nullptr;                // (N,C): before the norm, if there is one
    float *mean_e = nullptr, *rstd_e = nullptr;    // (N)
    Activation* x_last = nullptr;                  // (N,C): the last block's output
    Input* lnf = nullptr;                          // (N,C): x_last normed; where a norm is its end: x_last, or a copy
    float *mean_f = nullptr, *rstd_f = nullptr, *losses = nullptr;    // (N)
    Activation* dx = nullptr;                                         // (N,C): gradients of the residual stream
    Activation* dt = nullptr;             // (N,max(C,NH*HS)): gradient of what is added to it
    Activation* dqkv_or_dup = nullptr;    // (N,max(F or 2*F,(NH+2*NKV)*HS, decay gates)); (N*K,up width)
    Activation* dactivated = nullptr;     // (N,F): gradient of the activation's output; dwide if it gates nothing
    Activation* dbranch = nullptr;        // (N,C): gradient of what a branch's norm or factor reads; later what
                                          // attention's input gets through the decay gates
    Activation* dffn = nullptr;           // (N,C): gradient of the ffn's input, if attention reads the same one
    Input* gathered = nullptr;            // (N*K,C): what goes to experts
    Activation* dgathered = nullptr;      // (N*K,C): its gradient; before and after that (N,C): what the shared
                                          // expert's gate and the router add to the ffn's input's gradient
    Activation *drouter_logits = nullptr, *dshared_gate = nullptr;    // (N,E), (N)
    Gradient* dfactors = nullptr;                                     // (N,K)
    float* cos_sin[2] = {};                  // (plan.S,2,rope_dims/2), one after the other: Config::table_of
    Parameter* sinusoids = nullptr;          // (T,C), in place of wpe
    const Parameter* positions = nullptr;    // added to embeddings: wpe, from its first position on, or sinusoids
    // Heads::bias, its gradient, and the bucket of each distance; null without T5's biases.
    Gradient *bias = nullptr, *dbias = nullptr;    // (NH,2*RELATIVE_REACH+1)
    int* bucket = nullptr;                         // (2*RELATIVE_REACH+1)
    Activation* head = nullptr;                    // (head_rows,Vp): logits, then their gradients
    int head_rows = 0;                             // rows of logits that exist at a time

  private:
    // Where dropout draws, each with another stream; layer l has three.
    enum class DropoutSite { embeddings, probabilities, attention, ffn };
    Precision precision_of(int l) const;
    Dropout dropout(DropoutSite where, int l = 0) const;
    Heads heads(int l) const;    // with the batch's spans and dropout
    NormStep norm1(int l) const;
    NormStep norm2(int l) const;
    Branch attention_branch(int l) const;
    Branch ffn_branch(int l) const;
    void softmax_attention(int l, KvCache* cache);
    void linear_attention(int l, KvCache* cache);
    void experts_forward(int l, bool counts);
    void recompute(int l);
    void block_backward(int l);
    void experts_backward(int l, Activation* to, const Activation* dy);
    void embed_backward();
};

// gpt.h - the model: weights and activations in, loss and gradients out. All computation goes
// through a table of operations (layers/ops.h), so one source trains and generates on every device
// and in every dtype. model/ has batches, memory layout, generation and the optimizer's step.
#pragma once
#include <functional>

#include "layers/compose.h"
#include "model/activations.h"
#include "model/batch.h"
#include "model/sparse/global_attention.h"
#include "model/sparse/sparse_attention.h"
#include "model/tensors.h"

struct ParamStore;
struct KvCache;

// State of the last forward pass, which loss() and backward() read.
struct Pass : Batch::Sizes {
    bool training = false;    // dropout applies, products may use fp8, router counts are kept
    // Order of the sums in matrix products: Precision::prefill in training and for prompts,
    // Precision::normal in decode steps.
    Precision precision = Precision::prefill;
    int layer = -1;                // block of the operations that run now; -1: none
    int64_t first_sequence = 0;    // first sequence's index within the training step
};
// State shared by all passes of a training step. TrainStep::begin (model/train_step.h) sets it.
struct StepState {
    double* loss = nullptr;                // device: sum of losses so far
    double* router_totals = nullptr;       // device (L,E+2): sums of router_forward; null without experts
    double* next_loss = nullptr;           // device: sum of next-sentence losses; null without that head
    int64_t targets = 0, sequences = 0;    // so far: targets not ignored, sequences
    int64_t positions = 0;                 // the step's, all ranks; 0: one batch per rank
    // Dropout depends only on the run's seed, the step's number and the sequence's index within the
    // step (the loader's order): neither the number of ranks nor the batch size matters.
    uint64_t seed = 0;
    int64_t number = 0;
};

// The model. Passes queue work on the device and return at once; a function that returns values to
// the host waits for that work.
struct Gpt {
    const Table op;
    Config c;
    Plan plan;
    Params<Parameter> w;    // parameters by name
    Params<Gradient> dw;    // buffers for their gradients
    ParamStore& store;      // owns the parameters
    Batch batch{op};
    Ring ring{op, batch, store};    // attention of sequences that several ranks share
    SparseAttention attention{op, batch, ring};
    GlobalAttention global_attention{op, batch};
    Pass pass;
    StepState step;

    Gpt(const Table& table, ParamStore& parameters) : op(table), store(parameters) {}
    Gpt(const Gpt&) = delete;

    // Runs the uploaded batch through the blocks and the final norm.
    void forward(bool training = false);
    // Computes the losses and, if `train`, the gradients of the head's weights and input,
    // multiplied by `scale` = 1 / the number of targets in the step. Computes logits for head_rows
    // positions at a time, so that (N,Vp) logits never exist.
    // With `terms`, the step's loss is a sum of so many terms of their own, such as one for each
    // pair of sequences. loss(false, 0) gives the positions' losses, on which the terms depend;
    // Model::weighted_loss then calls this function with term_losses and position_weights.
    // next_scale: with Config::next_sentence, 1 / the number of labelled texts in the step, whose
    // mean loss is added; it has a sum of its own (StepState::next_loss).
    void loss(bool train, float scale, int terms = 0, float next_scale = 0);
    // Adds the gradients of all parameters; call after forward(true) and loss(true). `last` marks
    // the step's last batch, whose backward pass also reduces each finished bucket of gradients
    // over the ranks.
    void backward(bool last = true);
    // Parts of a forward pass, called by model/decoder.cpp too. `cache`: the generation's keys,
    // values and positions; null in training. `recomputed`: a whole block runs again for the
    // backward pass, without counting router statistics twice. If `out` is null, the last product
    // is left out.
    enum class BlockPart { whole, attention, after_attention, recomputed };
    void embed_forward(const KvCache* cache);
    void embed_tokens(Activation* to, const int* tok, const int* pos);
    void block_forward(int l, Activation* out, KvCache* cache, BlockPart part = BlockPart::whole);
    void final_norm();
    CrossStep cross_step(int l, const KvCache* cache) const;
    void head_forward(Activation* logits, const Input* x, int rows);
    Input* head_input() const { return pooled ? pooled : lnf; }    // (N,C)
    void refresh_row_norms(int l);    // adapters' row norms, if the weights have changed since
    FfnStep ffn(int l) const;

    // If set, loss() learns from this model's probabilities, too. The teacher must have run
    // forward() on the same batch.
    Gpt* teacher = nullptr;
    Distillation distillation = {};

    // The encoder: each block of this decoder attends to its output; null: none. The Model owns it.
    // It has its own batch, and parameters in this store. forward() and backward() run both stacks.
    Gpt* encoder = nullptr;
    int first_bucket = 1;               // bucket of block 0
    Activation* dcross_kv = nullptr;    // (NS,2*NKV*HS): gradient of the encoder's keys and values

    // If set, called after each softmax attention, while a[l].qkv_rot still holds its inputs.
    std::function<void(int l)> after_attention;

    // Activations and their gradients.
    std::vector<Activations> a;                       // (L); blocks share arrays not kept for backward
    Activation* embedded = nullptr;                   // (N,E): embeddings before their norm
    Input* embedded_normed = nullptr;                 // (N,E): their norm, if a product follows it
    float *mean_e = nullptr, *rstd_e = nullptr;       // (N)
    Activation* unsmeared = nullptr;                  // (N,C): embeddings before smear
    Activation* previous = nullptr;                   // (N,C): in generation, each token's predecessor's embedding
    Activation *x0 = nullptr, *x_middle = nullptr;    // (N,C): the blocks' first input; output of the backout layer
    Activation* x_last = nullptr;                     // (N,C): the last block's output
    Input* lnf = nullptr;                             // (N,C): x_last normed; under post-norm x_last itself or a copy
    float *mean_f = nullptr, *rstd_f = nullptr, *losses = nullptr;    // (N)
    // The means of the texts' states, if a classifier reads them (PoolStep): (N,3*C), (N,C),
    // (B,NH,S), (3*C,C).
    Activation* pool_qkv = nullptr;
    Input* pooled = nullptr;
    float* pool_lse = nullptr;
    Parameter* pool_values = nullptr;
    Activation* dx = nullptr;             // (N,C): gradient of the residual stream
    Activation* dt = nullptr;             // (N,max(C,NH*HS)): gradient inside a branch
    Activation* dqkv_or_dup = nullptr;    // (N,max(F or 2*F, (NH+2*NKV)*HS + decay gates)) or (N*K,up width)
    Activation* dactivated = nullptr;     // (N,F): gradient of the activation's output; dqkv_or_dup if not gated
    Activation* dbranch = nullptr;        // (N,C): gradient before a branch's norm or factor; later scratch
    Activation* dffn = nullptr;           // (N,C): gradient of the ffn's input in parallel blocks
    Activation *dx0 = nullptr, *dx_middle = nullptr;    // (N,C): gradients of x0 and x_middle by the weighted sums
    Activation* dvalues = nullptr;                      // (N,NKV*HS): gradient of the rows of a value embedding
    Input* gathered = nullptr;                          // (N*K,C): the experts' inputs
    Activation* dgathered = nullptr;                    // (N*K,C): gradient of gathered; also (N,C) scratch
    Activation *drouter_logits = nullptr, *dshared_gate = nullptr;    // (N,E), (N)
    Gradient* dfactors = nullptr;                                     // (N,K)
    float* cos_sin[2] = {};                  // (plan.S,2,rope_dims/2) each; by Config::rope_table_of
    Parameter* sinusoids = nullptr;          // (T,C): fixed position embeddings, in place of wpe
    const Parameter* positions = nullptr;    // added to embeddings: rows of wpe, or sinusoids
    // Heads::bias, its gradient, and the bucket of each distance (T5).
    Gradient *bias = nullptr, *dbias = nullptr;
    int* bucket = nullptr;        // (2*RELATIVE_MAX_DISTANCE+1)
    float* features = nullptr;    // (2,HS,HS): performer's w (Heads::features)
    // Scratch of adapters (LowRank in layers/compose.h), and the blocks of their matrices.
    Activation *low_sum = nullptr, *low_gradient = nullptr, *wide = nullptr, *unscaled = nullptr;
    Input* dropped = nullptr;
    std::vector<std::array<RowBlocks, Adapter::PRODUCTS>> low_blocks;    // (L)
    // (L): the weights' ParamStore::version that each block's Activations::inverse_norms belong to;
    // 0: none yet.
    std::vector<uint64_t> row_norms_version;
    Activation* head = nullptr;    // (head_rows,padded_outputs()): logits
    Input* dhead = nullptr;        // their gradients; may be head
    int head_rows = 0;             // positions per chunk of logits
    // The head's transform, for a chunk of rows (HeadStep): (head_rows,head_width()), (head_rows).
    Activation *transform_pre = nullptr, *transform_activated = nullptr, *dtransform[2] = {};
    Input* transformed = nullptr;
    float *mean_h = nullptr, *rstd_h = nullptr;
    float* next_losses = nullptr;    // (N): next-sentence losses, 0 but at the first positions of texts
    // With Plan::weighted: factors of the positions' gradients; losses of the terms.
    float *position_weights = nullptr, *term_losses = nullptr;    // (N), (B)

  private:
    // Places where dropout applies, each with its own random numbers. The embeddings have one
    // dropout, and each layer has the three others, or five with an encoder.
    enum class DropoutSite { embeddings, probabilities, attention, ffn, cross_probabilities, cross_attention };
    Precision precision_of(int l) const;
    void head_loss(int n, int rows, bool train, float scale, bool weighted);    // from position n on
    // first: index of this pass's first element within the whole step. For attention probabilities,
    // it is the index of the first sequence instead.
    Dropout site_dropout(float rate, int site, int64_t first) const;
    Dropout dropout(DropoutSite where, int l = 0) const;
    const int* text_positions() const { return pass.pos ? batch.pos() : nullptr; }
    Heads heads(int l) const;    // with the batch's spans and dropout's seed
    NormStep norm_of_embeddings() const;
    HeadStep transform_step(ProductWeights p, Act act, NormStep norm, int H) const;
    HeadStep head_step() const;
    HeadStep pooler() const;
    PoolStep pool_step() const;
    void next_sentence_loss(bool train, float scale);
    const Parameter* head_weights() const { return c.reads_wte() ? w.wte : w.headw; }
    ProductWeights product(Adapter::Product which, int l) const;
    ProductGradients gradients(Adapter::Product which, int l) const;
    int lowest_trained_block() const;    // -1: the embeddings are trained, too; c.L: no block is
    struct Layer {
        const Block<Parameter>& p;
        const Activations& t;
    };
    Layer layer(int l) const { return {w.block[size_t(l)], a[size_t(l)]}; }
    NormStep norm_step(bool exists, const Parameter* nw, const Parameter* nb, float* mean, float* rstd) const;
    NormStep norm1(int l) const;
    NormStep norm2(int l) const;
    Branch branch(int l, Adapter::Product which, const Input* in, int width, DropoutSite site, Activation* out,
                  NormStep norm) const;
    Branch attention_branch(int l) const;
    Branch cross_branch(int l) const;
    CrossGradients cross_gradients(int l) const;
    Branch ffn_branch(int l) const;
    GlobalStep global_step(int l) const;
    GlobalGradients global_gradients(int l) const;
    void softmax_attention(int l, KvCache* cache);
    void linear_attention(int l, KvCache* cache);
    void experts_forward(int l, bool counts);
    void recompute(int l);
    void block_backward(int l);
    void experts_backward(int l, Activation* to, const Activation* dy);
    void embed_backward();
};

// model.h - a complete model: Gpt, its memory, parameters and training step.
#pragma once
#include <memory>

#include "gpt.h"
#include "model/train_step.h"
#include "model/weights.h"

// Host memory that grows: pinned if the device can allocate it, else pageable. It may outlive its
// table, which belongs to a model: it copies the two functions that it needs.
class HostBuffer {
  public:
    explicit HostBuffer(const Table& op) : allocate_host(op.allocate_host), release_host(op.release_host) {}
    HostBuffer(const HostBuffer&) = delete;
    ~HostBuffer() { release(); }
    char* at_least(int64_t bytes);

  private:
    void release();
    void* (*const allocate_host)(int64_t bytes);
    void (*const release_host)(void* p, int64_t bytes);
    char* pinned = nullptr;
    int64_t pinned_bytes = 0;
    std::vector<char> pageable;
};

struct Model : Gpt {
  private:
    ParamStore parameters{op};    // Gpt::store; destroyed last, as TrainStep uses it

  public:
    explicit Model(const Table& table);
    ~Model();
    Status allocate(const Config& config, const Plan& plan);    // exit 2: impossible sizes; 5: not enough memory
    // Uploads the next batch of an encoder-decoder: sources (B,source_S) of these lengths (B), and
    // tokens and targets (B,S) as in Batch::upload. If the tokens are null, only sizes are set.
    void upload_pairs(const int* sources, const int* lengths, int source_S, const int* tok, const int* target, int B,
                      int S);
    // Uploads whole sequences (B,S); an encoder-decoder has the tokens for its sources, too. If
    // they are null, only sizes are set, which is enough for a CostTable.
    void upload(const int* tok, const int* target, int B, int S) {
        if (encoder) upload_pairs(tok, nullptr, std::min(S, plan.source), tok, target, B, S);
        else batch.upload(tok, target, B, S);
    }
    void init(uint64_t seed) { store.init(c, seed); }    // random weights
    // Mean loss of the targets >= 0, summed in double, in the order of positions. If `losses` (N)
    // on the host is not null, copies all losses there.
    double mean_loss(float* losses = nullptr);
    std::vector<float> pair_losses();    // (B): next-sentence losses of the last batch; empty without that head
    // Computes the head's gradients for losses of whole sequences. weights (N): factor of each
    // position's gradient; terms (count): losses that are added to the step's. Both on the host.
    void weighted_loss(const float* weights, const float* terms, int count, float scale);
    // Reads and writes parts of the flat buffers, converted to and from float (ParamStore).
    void read(StateKind part, int64_t offset, int64_t n, float* to) const { store.read(part, offset, n, to); }
    void write(StateKind part, int64_t offset, int64_t n, const float* from) { store.write(part, offset, n, from); }

    TrainStep train{*this, store};
    std::vector<Tensor> tensors;      // the parameters: one row per tensor
    std::vector<MemoryRow> memory;    // allocated bytes, as memory_cost (cost_table.h) predicts
    int64_t arena_bytes = 0;
    HostBuffer host_logits;    // compute_logits' copy of one chunk

  private:
    void lay_out(Layout& at, const Config& config, Plan plan);
    void lay_out_encoder(Layout& at);
    void fill_positions(Gpt& stack);
    std::unique_ptr<Gpt> encoder_stack;
    void* arena = nullptr;    // device memory, caches and scratch excluded
};

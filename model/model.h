// model.h - a model with what it needs to live: its memory, its parameters, its training step.
#pragma once
#include "gpt.h"
#include "model/train_step.h"
#include "model/weights.h"

// Pinned host memory that grows, or plain memory where none can be had.
class HostBuffer {
  public:
    explicit HostBuffer(const Table& op) : op(op) {}
    HostBuffer(const HostBuffer&) = delete;
    ~HostBuffer() { release(); }
    char* at_least(int64_t bytes);

  private:
    void release();
    const Table& op;
    char* pinned = nullptr;
    int64_t pinned_bytes = 0;
    std::vector<char> pageable;
};

struct Model : Gpt {
    explicit Model(const Table& table);
    ~Model();
    Status allocate(const Config& config, const Plan& plan);    // exit 2: impossible sizes; 5: no memory
    void init(uint64_t seed) { store.init(c, seed); }           // new weights
    // The mean over the batch's targets that count, summed in double and in order.     losses (N), host
    double mean_loss(float* losses = nullptr);
    // Flat buffers as floats (ParamStore).
    void read(StateKind part, int64_t offset, int64_t n, float* to) const { store.read(part, offset, n, to); }
    void write(StateKind part, int64_t offset, int64_t n, const float* from) { store.write(part, offset, n, from); }

    TrainStep train{*this, store};
    std::vector<Tensor> tensors;      // the parameters: one row per tensor
    std::vector<MemoryRow> memory;    // what allocate took; model/cost_table.h tells beforehand
    int64_t arena_bytes = 0;          // in all
    HostBuffer host_logits;           // a chunk of logits on its way to the caller

  private:
    ParamStore parameters{op};    // Gpt::store
    void lay_out(Layout& at, const Config& config, Plan plan);
    void fill_positions();
    void* arena = nullptr;    // the device's memory but for caches and scratch, in one piece
};

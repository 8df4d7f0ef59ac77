// optimizers.h - one row per optimizer: its states and its step.
//
// A step updates ranges of elements: all parameters at once, or with ZeRO the rank's partition of
// each bucket. An optimizer that treats every element alone (AdamW) has only `update`. An optimizer
// that needs whole matrices (such as Muon) has three phases: `direction` replaces the gradients by
// the step's direction, `matrix` transforms each matrix of the blocks, and `update` applies the
// result. With ZeRO a rank gathers the directions of a bucket and transforms each matrix of which
// its partition has elements. So states and masters stay divided by elements, and the results have
// the same bits as those of a single process.
#pragma once
#include "model/tensors.h"

enum class StateSize { parameter, row };    // one value per parameter, or per row of a block's matrices
struct OptimizerState {
    const char* name;    // "m": its tensors in files are "m.NAME"
    StateSize size = StateSize::parameter;
    Element type = Element::f32;
};
// Arguments for a range of n elements in device memory. If step->skipped, nothing may change.
struct OptimizerRange {
    const Table& op;
    int64_t n;
    Parameter* w;
    float* master;    // null: w is the only copy
    Gradient* dw;
    std::vector<void*> states;    // by Optimizer::states; null: a state per row
    const uint8_t* groups;        // (n / 64): GROUP_DECAYS, GROUP_FAST
    const Step* step;
    OptimizerParams params;
    uint64_t seed;    // for stochastic rounding, another one for each range
};
// One matrix in device memory.
struct OptimizerMatrix {
    const Table& op;
    int64_t rows, cols;
    Gradient* direction;          // (rows,cols)
    std::vector<void*> states;    // (rows) each, by Optimizer::states; null: a state per parameter
    const Step* step;
    OptimizerParams params;
};
struct Optimizer {
    const char* name;
    float eps;
    std::vector<OptimizerState> states;
    void (*update)(const OptimizerRange&);
    void (*direction)(const OptimizerRange&) = nullptr;    // both or neither
    void (*matrix)(const OptimizerMatrix&) = nullptr;
};
extern const Optimizer ADAMW;
const std::vector<const Optimizer*>& optimizers();

// One matrix of a block. The matrices of experts, which share a tensor, count separately.
struct BlockMatrix {
    int bucket;
    int64_t offset, rows, cols;    // offset: in a full buffer
    int64_t first_row;             // offset in states per row
};
std::vector<BlockMatrix> block_matrices(const std::vector<Tensor>& tensors);
// Returns the tensors of one optimizer state: their offsets in memory, and their shapes in memory
// and in files.
std::vector<Tensor> state_tensors(const std::vector<Tensor>& tensors, StateSize size);

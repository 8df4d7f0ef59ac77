// optimizers.h - one row per optimizer: its rule and its states; groups of tensors with factors of
// the learning rate and the weight decay.
//
// A step updates ranges of elements: all parameters at once, or with ZeRO the rank's partition of
// each bucket. A rule (UpdateRule) treats every element alone. Muon (Jordan et al. 2024) needs
// whole matrices: momentum replaces the gradients of the blocks' matrices by directions, each
// matrix is orthogonalized by one rank, and the rule `given` applies the result. States and masters
// stay divided by elements, and results are those of one process but for rounding.
#pragma once
#include <optional>

#include "model/tensors.h"

// Values that a state has. parameter: one for each weight. elementwise: one for each weight that is
// updated by itself, so outside of matrices that are orthogonalized. row: one for each row of the
// orthogonalized matrices, in fp32 even if the other states have fewer bits, because rows are few.
enum class StateSize { parameter, elementwise, row };
struct OptimizerState {
    const char* name;    // "m": its tensors in files are "m.NAME"
    StateSize size = StateSize::parameter;
};
struct Optimizer {
    const char* name;
    const char* help;
    UpdateRule rule;    // Muon: for tensors that are not matrices of blocks
    // The first two states are the rule's m and v.
    std::vector<OptimizerState> states;
    OptimizerParams defaults;        // the learning rate is a peak
    bool orthogonalizes = false;     // Muon's steps for the blocks' matrices
    bool normalizes_rows = false;    // their rows, too (NorMuon)
};
extern const OptimizerState AVERAGE;    // the weights' average, beside any optimizer's states
extern const Optimizer ADAMW, MUON, NORMUON, LION, SIGNUM;
const std::vector<const Optimizer*>& optimizers();
std::vector<std::string> optimizer_names();

const Optimizer& optimizer_named(const std::string& name);

// A matrix of a block. The matrices of experts, and query, key, value, or gate and up, which share
// a tensor, count separately.
struct BlockMatrix {
    int bucket;
    int64_t offset, rows, cols;    // offset: in a full buffer
    int64_t first_row;             // offset in states per row
    int owner = 0;                 // the rank that orthogonalizes it
};
bool is_block_matrix(const Tensor& t);
// by_bucket: each bucket's work is divided among the ranks, else the whole model's.
std::vector<BlockMatrix> block_matrices(const std::vector<Tensor>& tensors, int ranks, bool by_bucket);
// Tensors of one optimizer state, with their shapes in memory and in files. Offsets are those of
// the parameters or, per row, in the state's own memory.
std::vector<Tensor> state_tensors(const std::vector<Tensor>& tensors, const Optimizer& o, StateSize size);
// Tensors of the scales of states in 8 bits (StateArray): each is a vector.
std::vector<Tensor> scale_tensors(std::vector<Tensor> state);

// ---- widths -------------------------------------------------------------------------------------

// Maximal update parametrization (muP; Yang et al. 2022, table 3): factors with which a model of
// another width than `base` changes as much per step as one of that width, so that a learning rate
// found at a small width serves a large one. init: of the standard deviation of initial weights.
struct MupScale {
    float init = 1, lr = 1;
};
MupScale mup_scale(const Config& c, int base, const Optimizer& o, const Tensor& t);

// ---- groups -------------------------------------------------------------------------------------

// Sets factors for some tensors; a later rule replaces an earlier one's.
struct GroupRule {
    enum class Which { named, embeddings, head, scalars } which = Which::named;
    std::string pattern;               // named: of our names or the files', as in --train-only
    std::optional<float> lr, decay;    // nothing: unchanged
};
struct ParamGroups {
    GroupFactors factors = {};
    int count = 0;
    std::vector<uint8_t> of_tensor;    // by tensor
};
// Without rules vectors do not decay. mup_base: as in mup_scale, whose factors of the rate multiply
// the rules'; the decay per step stays. Exit 2: a rule names no tensor, or a part of one, or there
// are more than GroupFactors::MOST different groups.
Result<ParamGroups> param_groups(const Config& c, const std::vector<Tensor>& tensors,
                                 const std::vector<GroupRule>& rules, int mup_base, const Optimizer& o);

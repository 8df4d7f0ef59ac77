// weights.h - a model's parameters, gradients and optimizer state in flat buffers, and their
// partition among the ranks.
//
// Trained tensors form a flat buffer of their own, which all that follows is about. Frozen tensors
// lie behind it, in the parameters alone: they have no gradients, no states and no masters.
//
// Every rank computes gradients of all parameters from its own sequences. They are summed over the
// ranks bucket by bucket (tensors.h), while the backward pass goes on. With ZeRO (Rajbhandari et
// al. 2020) each bucket is divided into one partition per rank:
//   zero 0  Each rank gets the whole sum and updates all parameters.                 all-reduce
//   zero 1  Each rank gets the sum of its partition and has the optimizer's states of its partition
//           alone. It updates its partition and gathers the others.     reduce-scatter, all-gather
//   zero 2  Each rank also keeps the gradients of its partition alone. A bucket's gradients are
//           computed in a work buffer and summed after every batch of a step, not only the last.
#pragma once
#include <atomic>
#include <map>

#include "comm/comm.h"
#include "model/plan.h"

// The model's flat buffers, which files and tests access as floats, whatever their type. weights:
// the master copies if there are any, else the parameters. The values from 0 on are the optimizer's
// states (optimizer_state) and their scales.
enum class StateKind : int { gradients = -2, weights = -1, scales = 16 };
constexpr StateKind optimizer_state(size_t i) { return StateKind(int(i)); }    // i-th of Optimizer::states
// The scales of the i-th state, if its numbers have 8 bits. Checkpoints then hold the state's
// codes, 0 to 255, not decoded numbers, so that loading restores the same bits.
constexpr StateKind state_scales(size_t i) { return StateKind(int(StateKind::scales) + int(i)); }

// A rank's report to all others in a step's update, so that all decide alike.
struct RankReport {
    double loss;      // sum over its tokens
    double signal;    // argument of TrainStep::update
};
// Contiguous in device memory, because one all-reduce sums them.
struct StepTotals {
    double *loss = nullptr, *squares = nullptr;    // (1); (squares_count): sums of squared gradients
    RankReport* reports = nullptr;                 // (ranks)
    double* router_totals = nullptr;               // (L,E+2): router_forward's totals
    int64_t router_totals_count = 0;               // 0: no experts
    double* next_loss = nullptr;                   // after them, Gpt::next_sentence_loss's sum; null: none
    int64_t more() const { return router_totals_count + (next_loss != nullptr); }
};

// This rank's partition of a bucket.
struct Partition {
    int bucket;             // -1: all buckets
    int64_t first, size;    // elements; first: in a full buffer
    int64_t local_first;    // first element in a buffer of partitions
};
// A range of a partition that a step updates by one rule. Without Muon it is the whole partition;
// with Muon it is a run of matrices of transformer blocks, or the other tensors between two runs.
struct UpdateRange {
    int64_t first, size;
    int64_t local_first;    // first element in a buffer of partitions
    int64_t elementwise;    // first element in states of tensors other than matrices of blocks
    bool matrices;
};

struct ParamStore {
    const Table& op;
    Comm* comm = nullptr;    // null: a single process. Set before the first step
    int rank = 0, ranks = 1, zero = 0;
    Element comm_dtype = Element::f32;    // type in which gradients are reduced
    std::vector<Bucket> buckets;
    std::vector<int> owners;    // the rank that saves each bucket
    int64_t flat = 0;           // elements of a full buffer
    int64_t frozen = 0;         // elements of the frozen tensors behind it, in params
    // Grows with updates and writes, which threads may share. Row norms (Gpt) depend on it.
    std::atomic<uint64_t> version = 1;

    PackedWeights packed;    // replaces params if the table's parameters are packed

    Parameter* params = nullptr;               // (flat + frozen): read by the passes
    Gradient* grads = nullptr;                 // (flat), with zero 2 (flat / ranks)
    Gradient* work[3] = {};                    // zero 2: one bucket each; see work_buffer
    float* master = nullptr;                   // (flat), with zero (flat / ranks); null: none. Beside packed
                                               // weights the only copy of what is trained
    const Optimizer* optimizer = nullptr;      // null: no updates
    std::vector<OptimizerState> state_rows;    // the optimizer's, and the weights' average
    std::vector<StateArray> states;            // by state_rows, each (state_elements)
    std::vector<UpdateRange> update_ranges;    // parts of updates(), in order
    std::vector<BlockMatrix> matrices;         // if the optimizer orthogonalizes them
    Gradient* matrix_work = nullptr;           // (matrix_work_elements)
    uint8_t* groups = nullptr;                 // (flat / 64): index of factors
    ParamGroups group_factors;
    std::vector<Tensor> clipped;         // trained tensors, if each group is clipped by itself
    uint8_t* square_groups = nullptr;    // (clipped): their groups
    double* first_squares = nullptr;     // (buckets): of this rank's first batch in a step; null: not measured

    explicit ParamStore(const Table& table) : op(table) {}
    ParamStore(const ParamStore&) = delete;
    void set_layout(const Config& c, const Plan& plan);
    int64_t state_elements(size_t i) const;    // on this rank
    // The weights' average, by partitions as masters are; null: none.
    float* average() const {
        return states.size() > optimizer->states.size() ? static_cast<float*>(states.back().p) : nullptr;
    }
    int64_t matrix_work_elements() const;    // orthogonalize's for the largest matrix
    // Number of sums of squares of which a gradient's norm consists: one a bucket, or a tensor.
    int64_t squares_count() const { return int64_t(clipped.empty() ? buckets.size() : clipped.size()); }
    Partition partition(int bucket) const;
    // Partitions that this rank updates: one of all parameters; with ZeRO, its partition of each
    // bucket.
    std::vector<Partition> updates() const;
    Gradient* gradients(int bucket) const;                      // buffer in which they are computed
    Gradient* partition_gradients(const Partition& s) const;    // buffer of the sum over ranks
    // Target for the gradient of a weight that a matrix product uses (Tensor::product). The first
    // batch of a step assigns this gradient and later batches add to it, so it need not be cleared.
    GradTarget<Gradient> into(Gradient* of_product) const { return {of_product, !first_batch}; }
    // Zero 2's work buffers: one for the embeddings, two that the blocks use alternately.
    static int work_buffer(int bucket) { return bucket == 0 ? 0 : 1 + bucket % 2; }

    // ---- a step: clear; per batch and bucket begin and done; sum; per partition update

    void clear_gradients();                        // except gradients that the first batch assigns
    void gradients_begin(int bucket);              // before they are computed
    void gradients_done(int bucket, bool last);    // after; last: the step's last batch
    // Waits for all gradients, computes their sums of squares and this rank's report, and adds both
    // over the ranks. Returns the number of sums of squares.
    int sum(const StepTotals& totals, int signal);
    // Runs the optimizer. With ZeRO, also gathers the parameters. seed: for stochastic rounding.
    void update(const Step* step, OptimizerParams settings, uint64_t seed);
    void await_parameters(int bucket);    // waits until they are complete
    // Makes the average the parameters, until restore. Called between steps, because it overwrites
    // gradients.
    void use_average();
    void restore();
    void await() const {
        if (comm) comm->join(comm->mark());
    }    // waits for all communication

    // ---- for files

    void init(const Config& c, uint64_t seed, bool adapters_only = false);    // random weights

    bool sharded(StateKind part) const;                             // this rank has only its partitions
    bool holds(StateKind part, int64_t offset, int64_t n) const;    // write would store part of it
    // Sharded parts can be read only between collect and forget, and only in buckets that this rank
    // saves (config_owners). All ranks call collect together, between steps; it overwrites the
    // gradients. Packed weights are written as fp32 and read in whole rows.
    void read(StateKind part, int64_t offset, int64_t n, float* to) const;
    void write(StateKind part, int64_t offset, int64_t n, const float* from);
    // Elements `first` to first + n - 1 of this rank's partition, of gradients or weights.
    void read_own(StateKind part, const Partition& s, int64_t first, int64_t n, float* to) const;
    void collect();
    void forget() { collected.clear(); }
    // Hash of the trained parameters, equal on all ranks; with `all`, of the frozen ones, too.
    uint64_t hash(bool all = false) const;

  private:
    struct StepArguments {
        const Step* step;
        OptimizerParams settings;
        uint64_t seed;
    };
    void sum_squares_by_tensor(double* squares);
    template <class F> void replace_parameters(F f);
    int64_t weight_bytes(int64_t n) const { return params ? op.bytes(params, n) : n * int64_t(sizeof(float)); }
    StateArray state_of(size_t i, const UpdateRange& s) const;
    int64_t state_first(StateKind part, const UpdateRange& s) const;
    bool by_ranges(StateKind part) const;    // this rank may have parts of it, or lack tensors
    template <class F> void each_piece(StateKind part, int64_t offset, int64_t n, F f) const;
    template <class F> void each_update_range(const Partition& s, F f) const;
    void set_ranges(const std::vector<Tensor>& tensors);
    bool has_matrices(int bucket) const;
    void momentum(const Partition& s, const StepArguments& to);
    void orthogonalize(const BlockMatrix& m, Gradient* direction, const StepArguments& to);
    void transform_matrices(int bucket, Gradient* whole, int64_t begin, const StepArguments& to);
    void transform_bucket(const Partition& s, const StepArguments& to);
    void apply(const Partition& s, const StepArguments& to);
    void gather_parameters(const Partition& s);    // with ZeRO: of the partition's bucket
    void collect_row_state(size_t i);
    void init_magnitudes(const Config& c, const std::vector<Tensor>& tensors);
    struct Buffer {
        void* data;
        Element type;
        void* at(int64_t i) const { return static_cast<char*>(data) + i * element_bytes(type); }
    };
    bool is_frozen(StateKind part, int64_t offset) const { return part == StateKind::weights && offset >= flat; }
    static bool is_scales(StateKind part) { return part >= StateKind::scales; }
    static size_t state_index(StateKind part) { return size_t(part) % size_t(StateKind::scales); }
    Buffer buffer(StateKind part) const;
    void get(float* to, const Buffer& from, int64_t at, int64_t n) const;
    void put(const Buffer& to, int64_t at, const float* from, int64_t n);

    struct Elements {
        int64_t first, size;
    };
    std::vector<Elements> cleared;        // ranges that clear_gradients clears
    bool first_batch = false;             // products assign gradients
    int mup_base = 0;                     // as in Plan
    int64_t work_mark[3] = {};            // mark of each work buffer's last message
    std::vector<int64_t> params_ready;    // marks, by bucket
    std::map<std::pair<StateKind, int>, std::vector<float>> collected;
};

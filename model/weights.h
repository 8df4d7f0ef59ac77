// weights.h - the parameters of a model, their gradients and the optimizer's state in flat buffers, and which part of
// them each rank has.
//
// Every rank computes gradients of all parameters from its own sequences. They are summed over the ranks bucket by
// bucket (tensors.h), beside the computation. With ZeRO (Rajbhandari et al. 2020) a bucket is divided into one share
// for each rank:
//   zero 0  Each rank gets the whole sum and updates all parameters.                    all-reduce
//   zero 1  Each rank gets the sum of its share, keeps AdamW's state for its share alone, updates it, and gathers the
//           others' parameters.                                                         reduce-scatter, all-gather
//   zero 2  Each rank also keeps the gradients of its share alone. A bucket's gradients are computed in a work buffer,
//           and summed after every batch of a step instead of only after the last one.
#pragma once
#include <map>

#include "comm/comm.h"
#include "model/packed_weights.h"

// The flat buffers as files and tests see them: float, whatever their type. weights: the masters, if there are any.
enum class StateKind { weights, gradients, m, v };

// What each rank tells all others in a step's update, so that all decide alike.
struct RankReport {
    double loss;      // its own, summed over its tokens
    double signal;    // as given to TrainStep::update
};
// Summed over the ranks in one message, so contiguous on the device.
struct StepTotals {
    double *loss = nullptr, *squares = nullptr;    // (1)  (buckets): the gradients' sums of squares
    RankReport* reports = nullptr;                 // (ranks)
    double* router_totals = nullptr;               // (L,E+2): router_forward's, by layer
    int64_t router_totals_count = 0;               // 0: no experts
};

// The part of a bucket that this rank updates.
struct Partition {
    int bucket;             // -1: all of them
    int64_t first, size;    // elements; first: in a buffer of all parameters
    int64_t local_first;    // its first element in a buffer of this rank's shares alone
};

struct ParamStore {
    const Table& op;
    Comm* comm = nullptr;    // null: a single process. Set before the first step
    int rank = 0, ranks = 1, zero = 0;
    Element comm_dtype = Element::f32;    // type in which gradients travel
    std::vector<Bucket> buckets;
    std::vector<int> owners;    // the rank that saves each bucket
    int64_t flat = 0;           // elements of a buffer of all parameters

    PackedWeights packed;    // in place of the flat parameters, if the table wants them packed

    Parameter* params = nullptr;                            // (flat): what the passes read
    Gradient* grads = nullptr;                              // (flat), with zero 2 (flat / ranks)
    Gradient* work[3] = {};                                 // zero 2: each holds one bucket; see work_buffer
    float *master = nullptr, *m = nullptr, *v = nullptr;    // (flat), with zero (flat / ranks). master null: none
    uint8_t* decays = nullptr;                              // (flat / 64): AdamW's weight decay applies

    explicit ParamStore(const Table& op) : op(op) {}
    ParamStore(const ParamStore&) = delete;
    void set_layout(const Config& c, int rank, int ranks, int zero, Element comm_dtype);
    Partition partition(int bucket) const;
    std::vector<Partition> updates()
        const;    // what this rank updates: all in one piece, with zero a share of each bucket
    Gradient* gradients(int bucket) const;                      // where they are computed
    Gradient* partition_gradients(const Partition& s) const;    // where this rank's sum is kept
    // A product's gradient (Tensor::product): assigned in a step's first batch, so that nobody needs to clear it.
    GradTarget<Gradient> into(Gradient* of_product) const { return {of_product, !first_batch}; }
    // Zero 2's work buffers: one for the embeddings, two that the blocks use in turns.
    static int work_buffer(int bucket) { return bucket == 0 ? 0 : 1 + bucket % 2; }

    // ---- a step: clear, then for each batch and bucket begin and done, then sum and, of each update, done

    void clear_gradients();                        // all but those that the first batch assigns
    void gradients_begin(int bucket);              // about to be computed
    void gradients_done(int bucket, bool last);    // computed; last: in the step's last batch
    // After all gradients: waits for them, fills the squares and this rank's report, sums. Returns how many squares.
    int sum(const StepTotals& totals, int signal);
    void update_done(const Partition& s);    // its parameters are updated: the others get them
    void await_parameters(int bucket);       // they are complete
    void await() const {
        if (comm) comm->join(comm->mark());
    }    // for everything

    // ---- for files

    void init(const Config& c, uint64_t seed);    // new weights

    bool sharded(StateKind part) const;                             // this rank has only its shares
    bool holds(StateKind part, int64_t offset, int64_t n) const;    // write would keep some of it
    // read: of a sharded part, only what collect has brought: the buckets that this rank owns, until forget.
    // collect: called by all ranks together, between steps; it overwrites the gradients.
    // Packed weights are written as fp32 and read as whole rows.
    void read(StateKind part, int64_t offset, int64_t n, float* to) const;
    void write(StateKind part, int64_t offset, int64_t n, const float* from);
    void collect();
    void forget() { collected.clear(); }
    uint64_t hash() const;    // the hash of the parameters that the passes read: the same on all ranks

  private:
    struct Buffer {
        void* data;
        Element type;
        void* at(int64_t i) const { return static_cast<char*>(data) + i * element_bytes(type); }
    };
    Buffer buffer(StateKind part) const;
    void put(const Buffer& to, int64_t at, const float* from, int64_t n);

    struct Elements {
        int64_t first, size;
    };
    std::vector<Elements> cleared;        // what clear_gradients clears: where no product assigns
    bool first_batch = false;             // products assign
    int64_t work_mark[3] = {};            // the last message sent from each work buffer
    std::vector<int64_t> params_ready;    // marks, by bucket
    std::map<std::pair<StateKind, int>, std::vector<float>> collected;    // by part and bucket
};

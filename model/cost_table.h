// cost_table.h - tables of operations that observe each call. CostTable computes nothing. A model
// whose code runs over it yields the cost of its passes: FLOPs, bytes, scratch, memory, messages
// between ranks.
#pragma once
#include <array>
#include <cstring>
#include <map>
#include <string_view>

#include "model/model.h"
#include "model/cost.h"

// A table like `real` that passes each operation to call(). It captures no graphs. Operations have
// no argument for the observer, so a thread-local variable points to it. If there are several
// observers, the last one made is used, and it must be destroyed first.
class Observer {
  public:
    Table table;    // to build a Model with
    explicit Observer(const Table& observed);
    virtual ~Observer();
    Observer(const Observer&) = delete;

  protected:
    const Table real;
    virtual void call(const Cost& work, const std::function<void()>& run) = 0;    // run(): the real operation
    const Parameter* weight = nullptr;    // the call's first weights; null: it has none. Valid in call()

  private:
    const CostModel cost_model;
    // Data uploaded to the device, by address. A batch is kept whole, because the cost model reads
    // spans from it. Of any other upload, the first int is kept, which may be a position.
    std::map<const char*, std::vector<char>> uploads;
    Observer* const outer;
    // Notes a call's weights, and adds the formats of packed ones.
    void add_weight(CallSizes& call, const Parameter* argument);
    void add_weight(CallSizes&, auto) {}
    bool read_device(void* to, const void* from, int64_t bytes) const;
    void remember(Operation operation, void* to, const void* from, int64_t bytes);
    void remember(Operation, int*, int*, SampleState*, int* cache_pos, auto...) {    // sample increments it
        if (const auto held = uploads.find(reinterpret_cast<char*>(cache_pos)); cache_pos && held != uploads.end()) {
            int first;
            memcpy(&first, held->second.data(), sizeof first);
            first++;
            memcpy(held->second.data(), &first, sizeof first);
        }
    }
    void remember(Operation, auto...) {}
};
const char* operation_name(Operation operation);

// Computes nothing. Allocations return addresses without memory, and downloads give zeros. Element
// types, optional operations, logits_bytes and scratch sizes are those of `like`.
class CostTable : public Observer {
  public:
    struct Sum {
        int64_t calls = 0;
        Cost work;
    };
    explicit CostTable(const Table& like);
    const Sum& of(Operation operation) const { return sums[size_t(operation)]; }
    Cost all() const;
    void clear() { sums = {}; }    // keeps `held` and `scratch`

    int64_t scratch = 0;    // largest scratch of a call, bytes
    int64_t held = 0;       // allocated device memory, bytes

  protected:
    void call(const Cost& work, const std::function<void()>& run) override;

  private:
    std::array<Sum, size_t(Operation::count)> sums = {};
};

// Stands in for the collectives of n ranks, and counts the bytes that one rank would send.
struct CostComm : Comm {
    int64_t calls = 0;
    // Bytes sent: for gradients and totals, for parameters, around rings of ranks (Ring).
    double sums = 0, gathers = 0, passes = 0;

    explicit CostComm(int n = 1) { ranks = n; }
    std::string name() const override { return "counting"; }
    void all_reduce(void*, int64_t n, Element type, Element comm_dtype) override {
        sums += 2 * sent(n, type, comm_dtype);
    }
    void reduce_scatter(void*, void*, int64_t n, Element type, Element comm_dtype) override {
        sums += sent(n * ranks, type, comm_dtype);
    }
    void all_gather(void*, int64_t n, Element type) override { gathers += sent(n * ranks, type, type); }
    // On average a rank owns 1 / ranks of what is broadcast.
    void broadcast(void*, int64_t n, Element type, int) override { gathers += sent(n, type, type); }
    void pass_on(void*, const void*, int64_t n, Element type, int) override {
        calls++;
        passes += double(n * element_bytes(type));
    }
    int64_t mark() override { return calls; }
    void join(int64_t) override {}

  private:
    // Bytes that a rank sends in a reduce-scatter or an all-gather of n elements: all bytes but its
    // own part, which is 1 / ranks of all. An all-reduce consists of both.
    double sent(int64_t n, Element type, Element comm_dtype) {
        calls++;
        return double(n * element_bytes(type == Element::f32 ? comm_dtype : type)) * (ranks - 1) / ranks;
    }
};

// ---- the model, counted -------------------------------------------------------------------------

// Runs a step of `batches` batches of plan.B x plan.whole_S() tokens, each sequence one document.
// The model's table must be a CostTable's.
void run_counted_step(Model& model, int batches = 1);
// Cost of a training step of B sequences of S tokens, without recomputation. training_flops: FLOPs
// per token of such a step. `weighted` and `source` as in Plan.
Cost training_cost(const Table& like, const Config& c, int B, int S, bool weighted = false, int source = 0);
inline double training_flops(const Table& like, Config c, int S, bool weighted = false, int source = 0) {
    c.adapter.magnitudes = false;    // their backward pass only repeats a product, and norms are few FLOPs
    return training_cost(like, c, 1, S, weighted, source).flops() / S;
}
// FLOPs per token of a forward pass with losses, on sequences of S tokens.
double scoring_flops(const Table& like, const Config& c, int S);
// Device memory of a model by purpose: its allocations, and the scratch of a step (RunMode::train)
// or a forward pass. Exit 2: impossible sizes.
Result<std::vector<MemoryRow>> memory_cost(const Table& like, const Config& c, const Plan& plan);
int64_t total_bytes(const std::vector<MemoryRow>& rows);
// Adds, as a row, another model's memory_cost to a model's. All models of a device share its
// scratch, so that the larger one counts.
void add_model(std::vector<MemoryRow>& rows, const char* purpose, const std::vector<MemoryRow>& other);
// Messages that a rank of plan.ranks sends in a step of `batches` batches. Exit 2: impossible
// sizes.
Result<CostComm> step_messages(const Table& like, const Config& c, const Plan& plan, int batches);
// Scratch bytes of a step's collectives on a rank. With GPUs this is a bucket's bf16 copies in
// comm/nccl.cu. With CPUs it is what comm/mpi.cpp receives from all ranks before it adds. The
// memory of the libraries themselves is unknown.
int64_t collective_scratch(const Table& like, const Config& c, const Plan& plan, bool gpu);

// ---- the parts of a step ------------------------------------------------------------------------

// The parts of a step's work. scores: the product q k^T; mixing: the product of probabilities with
// v. Linear attention has a state instead, which q reads (scores), and k and v update (mixing).
// norms also has additions to the residual stream and scales.
enum class CostPart { embeddings, qkv, scores, mixing, projection, ffn, norms, head, other, optimizer, count };
const char* cost_part_name(CostPart part, bool softmax = true);    // softmax: some layer has scores

struct PartCost {
    int64_t parameters = 0;    // elements in files
    Cost forward, backward;
    Cost update;    // the optimizer's, once a step
    Cost all() const {
        Cost sum = forward;
        sum += backward;
        sum += update;
        return sum;
    }
};
typedef std::array<PartCost, size_t(CostPart::count)> PartCosts;

// Parameters, and the cost of one batch and one update on one rank, without recomputation. A call
// belongs to one part: a product to the part of its weights (wte: the head), a norm to `norms`, and
// so on, so all parts add up to the cost of the step. A tied head has no parameters of its own.
PartCosts part_costs(const Table& like, const Config& c, Plan plan);
bool is_update(std::string_view operation);    // by name: part of the optimizer's update

// Elements of one layer's matrices of attention scores, which no operation stores: (B,NH,S,S).
inline double score_elements(const Config& c, int B, int S) { return double(B) * c.NH * S * S; }
int softmax_layers(const Config& c);

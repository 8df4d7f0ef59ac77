// cost_table.h - tables that see each call. Count only counts: the real model run over it says what it costs (FLOPs,
// bytes, scratch, memory, messages). The profile is another one.
#pragma once
#include <array>
#include <cstring>
#include <map>

#include "model/model.h"
#include "model/cost.h"

// A table like `real`, but each call of an operation comes here first. No graphs are recorded. Operations have no
// context: they find their observer through the thread. If there are several, the one made last is used and must end
// first.
class Observer {
  public:
    Table table;    // for a Model
    explicit Observer(const Table& real);
    virtual ~Observer();
    Observer(const Observer&) = delete;

  protected:
    const Table real;
    virtual void call(const Cost& work, const std::function<void()>& run) = 0;    // run: the real operation

  private:
    const CostModel work;
    // By address: the first int of each upload, all of a batch (its position, its spans).
    std::map<const char*, std::vector<char>> uploads;
    Observer* const outer;
    // The formats of packed weights among a call's arguments.
    void add_formats(CallSizes& call, const Parameter* weight) const;
    void add_formats(CallSizes&, auto) const {}
    bool read_device(void* to, const void* from, int64_t bytes) const;
    void remember(Operation operation, void* to, const void* from, int64_t bytes);
    void remember(Operation, int*, int*, SampleState*, int* cache_pos, auto...) {    // sample raises it
        if (const auto held = uploads.find(reinterpret_cast<char*>(cache_pos)); cache_pos && held != uploads.end()) {
            int first;
            memcpy(&first, held->second.data(), sizeof first);
            first++;
            memcpy(held->second.data(), &first, sizeof first);
        }
    }
    void remember(Operation, auto...) {}    // other operations
};
const char* operation_name(Operation operation);

// A table that computes nothing. Its addresses have no memory behind them, its downloads are zeros.
class CostTable : public Observer {
  public:
    struct Sum {
        int64_t calls = 0;
        Cost work;
    };
    explicit CostTable(
        const Table& like);    // takes over its element types, optional operations, logits_bytes, scratch
    const Sum& of(Operation operation) const { return sums[size_t(operation)]; }
    Cost all() const;
    void clear() { sums = {}; }    // keeps `held` and `scratch`

    int64_t scratch = 0;                      // bytes: the largest scratch of a call
    int64_t held = 0;                         // bytes of the device's memory that are allocated now
    std::function<void(const Cost&)> each;    // sees every call

  protected:
    void call(const Cost& work, const std::function<void()>& run) override;

  private:
    std::array<Sum, size_t(Operation::count)> sums = {};
};

// A rank's connection to other ranks that do not exist: counts what the rank would send.
struct CostComm : Comm {
    int64_t calls = 0;
    double bytes = 0;    // sent by this rank

    explicit CostComm(int n) { ranks = n; }
    std::string name() const override { return "counting"; }
    int64_t scratch_bytes(int64_t, Element, Element) const override { return 0; }
    void all_reduce(void*, int64_t n, Element type, Element comm_dtype) override {
        message(Kind::all_reduce, n, type, comm_dtype);
    }
    void reduce_scatter(void*, void*, int64_t n, Element type, Element comm_dtype) override {
        message(Kind::reduce_scatter, n * ranks, type, comm_dtype);
    }
    void all_gather(void*, int64_t n, Element type) override { message(Kind::all_gather, n * ranks, type, type); }
    int64_t mark() override { return calls; }
    void join(int64_t) override {}

  protected:
    enum class Kind { all_reduce, reduce_scatter, all_gather };
    // whole: bytes of the whole buffer, in the type that travels
    virtual void message(Kind kind, double whole, Element comm_dtype);
    void message(Kind kind, int64_t n, Element type, Element comm_dtype) {
        message(kind, double(n * element_bytes(type == Element::f32 ? comm_dtype : type)), comm_dtype);
    }
    static int passes(Kind kind) { return kind == Kind::all_reduce ? 2 : 1; }
    // A rank sends all but its own part: once, in an all-reduce twice.
    double sends(Kind kind, double whole) const { return passes(kind) * whole * (ranks - 1) / ranks; }
};

// ---- the model, counted ---------------------------------------------------------------------------------------------

// A step of `batches` batches of plan.B x plan.S tokens; each sequence is one document. The model's table must be a
// Count's.
void run_counted_step(Model& model, int batches = 1);
// The work of a step of B sequences of S tokens without recomputation; and the FLOPs per token.
Cost training_cost(const Table& like, const Config& c, int B, int S);
inline double training_flops(const Table& like, const Config& c, int S) {
    return training_cost(like, c, 1, S).flops() / S;
}
// The device memory that a model takes, by purpose: its allocations, and the scratch of a step (RunMode::train) or of a
// forward pass. exit 2: impossible sizes
Result<std::vector<MemoryRow>> memory_cost(const Table& like, const Config& c, const Plan& plan);
int64_t total_bytes(const std::vector<MemoryRow>& rows);

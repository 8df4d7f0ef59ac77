// count.h - tables that see each call: one that only counts, so that the real model run over it says what it costs
// (FLOPs, bytes, scratch, memory, messages); and what the profile is made of.
#pragma once
#include <array>
#include <unordered_map>

#include "gpt.h"
#include "model/work.h"

// A table like another, each call of whose operations comes here first. Nothing is recorded as a graph. Operations
// have no context: they find their observer by the thread. Of several the one made last is used, and it ends first.
class Observer {
  public:
    Table table;    // for a Model
    explicit Observer(const Table& real);
    virtual ~Observer();
    Observer(const Observer&) = delete;

  protected:
    const Table real;
    virtual void call(const Work& work, const std::function<void()>& run) = 0;    // run: the real operation

  private:
    const WorkOf work;
    std::unordered_map<const void*, int> first_ints;    // of what was uploaded, by where it lies
    Observer* const outer;
    bool look(void* to, const void* from, int64_t bytes) const;
    template <Operation, class... A> void remember(A... a);
};
const char* operation_name(Operation operation);

// A table that computes nothing, and hands out addresses where no memory is. What it downloads is zeros.
class Count : public Observer {
  public:
    struct Sum {
        int64_t calls = 0;
        Work work;
    };
    explicit Count(const Table& like);    // has its element types, optional operations, logits_bytes and scratch
    const Sum& of(Operation operation) const { return sums[size_t(operation)]; }
    Work all() const;
    void clear() { sums = {}; }    // not what memory is held

    int64_t scratch = 0;    // bytes: the most that a call asked for
    int64_t held = 0;       // bytes of the device's memory that are allocated now
    std::function<void(const Work&)> each;    // sees every call

  private:
    std::array<Sum, size_t(Operation::count)> sums = {};
    void call(const Work& work, const std::function<void()>& run) override;
};

// A rank's wire to others that are not there.
struct CountingComm : Comm {
    int64_t calls = 0;
    double bytes = 0;    // that this rank sends

    explicit CountingComm(int n) { ranks = n; }
    std::string name() const override { return "counting"; }
    int64_t scratch_bytes(int64_t, Element, Element) const override { return 0; }
    void all_reduce(void*, int64_t n, Element type, Element wire) override { message(Kind::all_reduce, n, type, wire); }
    void reduce_scatter(void*, void*, int64_t n, Element type, Element wire) override {
        message(Kind::reduce_scatter, n * ranks, type, wire);
    }
    void all_gather(void*, int64_t n, Element type) override { message(Kind::all_gather, n * ranks, type, type); }
    int64_t mark() override { return calls; }
    void join(int64_t) override {}

  protected:
    enum class Kind { all_reduce, reduce_scatter, all_gather };
    // whole: bytes of the buffer as it travels.
    virtual void message(Kind kind, double whole, Element wire);
    void message(Kind kind, int64_t n, Element type, Element wire) {
        message(kind, double(n * element_bytes(type == Element::f32 ? wire : type)), wire);
    }
    static int passes(Kind kind) { return kind == Kind::all_reduce ? 2 : 1; }
    // A rank sends all but its own part: once, in an all-reduce twice.
    double sends(Kind kind, double whole) const { return passes(kind) * whole * (ranks - 1) / ranks; }
};

// ---- the model, counted ---------------------------------------------------------------------------------------------

// A step of `batches` batches of the plan's B x S tokens, over a counting table.
void count_step(Model& model, int batches = 1);
// A step of B sequences of S tokens, nothing of which is computed again; and the FLOPs of each of its tokens.
Work training_work(const Table& like, const Config& c, int B, int S);
inline double training_flops(const Table& like, const Config& c, int S) {
    return training_work(like, c, 1, S).flops() / S;
}
// What a model takes of a device's memory, by purpose: what it allocates, and the scratch of a step (Use::train) or a
// forward. exit 2: impossible sizes
Result<std::vector<MemoryRow>> count_memory(const Table& like, const Config& c, const Plan& plan);
int64_t total_bytes(const std::vector<MemoryRow>& rows);

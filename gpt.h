// gpt.h - the model: its memory, and the passes over Ops<T, P>. Knows no device and no file; of other ranks the sums of
// their gradients.
#pragma once
#include <map>
#include <memory>

#include "comm/comm.h"
#include "model/tensors.h"

enum class Use { train, infer };    // infer: no gradients, no optimizer state, one block's activations
// What the backward computes again instead of keeping it: nothing; the outputs of norms and GELU; all of a block but
// its input. Less memory, more work, the same bits; but with cheap on a GPU, whose products apply GELU before they
// round, the GELU of the backward is that of the rounded input.
enum class Recompute { none, cheap, blocks };

struct Plan {
    Use use = Use::infer;
    int B = 1, S = 1;    // the largest batch
    Recompute recompute = Recompute::none;
    bool master = true;    // bf16 parameters have fp32 masters; else they are rounded stochastically
    int rank = 0, ranks = 1;    // of data parallel training: the batch is this rank's
    // What the ranks hold once instead of each: 1 the optimizer's state, 2 the gradients, too (Rajbhandari et al. 2020,
    // P_os and P_os+g). Then gradients are reduced after every batch of a step, not after the last one alone.
    int zero = 0;
    Element wire = Element::f32;    // in which gradients travel; bf16 halves the bytes
};
struct MemoryRow {
    const char* purpose;
    int64_t bytes;
};

// The flat buffers, as float, whatever type they have: what files and tests see. weights: the masters, if there are.
enum class Part { weights, gradients, m, v };

// Keys and values of generation, (L,B,NKV,maxT,HS) each, and how far they are filled.
struct Cache {
    void *k = nullptr, *v = nullptr;
    int B = 0, maxT = 0, pos = 0;    // pos: positions held
    int64_t bytes = 0;               // of both
    int steps = 0;                   // single tokens since the last longer piece
    void* graph = nullptr;           // the recorded step of one token
};

// What every rank says at the end of a step, so that all decide alike.
struct Said {    // two doubles
    double loss;      // its own, summed over its tokens
    double signal;    // what update was given
};

// A Gpt<T, P> whose types and device were chosen at run time. The passes only hand work to the device; what returns
// numbers waits for them.
struct Model {
    Config c;
    Plan plan;
    std::vector<Tensor> tensors;
    std::vector<Bucket> buckets;
    int64_t flat = 0;        // elements of each flat buffer
    Comm* comm = nullptr;    // of several ranks; set before the first step

    virtual ~Model() = default;
    virtual const char* backend() const = 0;    // Ops::name
    virtual bool on_host() const = 0;           // several threads may write at once, to memory of this process
    // What allocate will take, by purpose, the backend's scratch included.
    virtual std::vector<MemoryRow> memory(const Config& config, const Plan& plan) const = 0;
    virtual int64_t free_bytes() const = 0;                                 // of the device's memory, now
    virtual Status allocate(const Config& config, const Plan& plan) = 0;    // exit 2: impossible sizes; 5: no memory
    virtual void init(uint64_t seed) = 0;                                   // new weights
    // Of what is spread over the ranks only what collect has brought, until forget: the buckets that config_owners says
    // are this rank's. collect: all ranks together, between steps; it takes the gradients' place.
    virtual void read(Part part, int64_t offset, int64_t n, float* to) const = 0;
    virtual void collect() = 0;
    virtual void forget() = 0;
    virtual bool holds(Part part, int64_t offset, int64_t n) const = 0;    // write would keep any of it
    virtual uint64_t hash() const = 0;      // of the parameters that the passes read: the same on all ranks
    virtual void write(Part part, int64_t offset, int64_t n, const float* from) = 0;

    // Hands over the next batch; may come while the one before is being worked on.     tok, target (B,S), host
    virtual void batch(const int* tok, const int* target, int B, int S) = 0;
    virtual void forward() = 0;    // up to the final norm, of the batch handed over
    // Losses of the batch; with train also the head's gradients times scale (1 over the number of targets in the whole
    // step), chunk by chunk: (N,V) logits never exist.
    virtual void loss(bool train, float scale) = 0;
    // Gradients of everything, after forward and loss(train). Adds. last: of the step's batches, so that a bucket goes
    // to the other ranks as soon as it is done.
    virtual void backward(bool last = true) = 0;
    virtual double mean_loss(
        float* losses = nullptr) = 0;    // of the batch, in double and in order.   losses (N), host
    virtual double grad_norm() = 0;      // global

    // A step: begin_step, then batches, then update, which applies AdamW unless the step is over its limits. seed: of
    // stochastic rounding; signal: for the other ranks. finish gives the outcome of the oldest update not yet finished,
    // and what each rank said in it; at most two may be pending.
    virtual void begin_step() = 0;
    virtual void update(const AdamW& a, const Limits& limits, uint64_t seed, int signal = 0) = 0;
    virtual Step finish(std::vector<Said>* said = nullptr) = 0;
    virtual void set_updates(int64_t updates) = 0;    // AdamW's step count, when a run goes on

    // Generation. extend: S more tokens of each of the cache's sequences.     tok (B,S), host
    virtual Status cache_allocate(Cache& cache, int B, int maxT) = 0;
    virtual void cache_free(Cache& cache) = 0;
    virtual void cache_spread(const Cache& from, Cache& to) = 0;    // from's only sequence into each one of to
    virtual void extend(Cache& cache, const int* tok, int S) = 0;
    virtual void logits(float* out) = 0;    // of each sequence's last position, after forward or extend.   (B,V), host
};

template <class T> struct Activations {
    T *x, *ln1, *qkv, *atty, *x2, *ln2, *fch, *fcg;    // see activation_rows in model/memory.cpp
    float *mean1, *rstd1, *mean2, *rstd2, *lse;
};

// T: of activations; P: of the parameters that the passes read.
template <class T, class P = T> struct Gpt final : Model {
    const Ops<T, P>& op;
    P* params = nullptr;                                    // flat; what the passes read
    // flat, or with zero one part in `ranks`: of each bucket this rank's. master where P is narrower and plan.master
    float *master = nullptr, *m = nullptr, *v = nullptr;
    Grad<P>* grads = nullptr;      // flat; with zero 2 this rank's part, the sum so far
    Grad<P>* work[3] = {};         // zero 2: where gradients are made, of the embeddings and by turns of blocks
    int64_t work_mark[3] = {};     // what was last sent from there
    std::vector<int64_t> here;     // marks from which on each bucket's parameters are complete
    uint8_t* decays = nullptr;                              // (flat / 64): AdamW's decay applies
    Params<P> w;
    Params<Grad<P>> dw;
    std::vector<Activations<T>> a;       // L of them; shared where they are not kept
    T *x_last, *lnf;                     // (N,C): the last block's output; normed
    float *mean_f, *rstd_f, *loss_of;    // (N)
    T *dx, *dt, *dwide, *head;           // (N,C) (N,C) (N,max(F,3C)) (head_rows,Vp): logits
    int *in, *staged;                    // [pos, 15 unused, tok (N), target (N)]; the next batch's
    double *loss_total, *squares, *said;    // contiguous: (1), a number per bucket, (ranks) of Said
    Step* step;
    char* results = nullptr;    // on the host, (2): Step, (ranks) of Said
    int64_t marks[2] = {}, updates = 0, finished = 0;
    int64_t step_tokens = 0;    // since begin_step
    int B = 0, S = 0;           // of the current batch
    int next_B = 0, next_S = 0;
    int head_rows = 0;           // rows of logits that exist at a time
    std::vector<int> host_in;    // as `in`
    std::vector<float> host_loss;
    std::vector<T> host_logits;
    void* arena = nullptr;
    int64_t arena_bytes = 0;

    explicit Gpt(const Ops<T, P>& op) : op(op) {}
    Gpt(const Gpt&) = delete;
    ~Gpt() override;

    const char* backend() const override { return op.name; }
    bool on_host() const override { return op.upload == op.copy; }
    std::vector<MemoryRow> memory(const Config& config, const Plan& plan) const override;
    int64_t free_bytes() const override { return op.free_bytes(); }
    Status allocate(const Config& config, const Plan& plan) override;
    void collect() override;
    void forget() override { collected.clear(); }
    bool holds(Part part, int64_t offset, int64_t n) const override;
    uint64_t hash() const override;
    void init(uint64_t seed) override;
    void read(Part part, int64_t offset, int64_t n, float* to) const override;
    void write(Part part, int64_t offset, int64_t n, const float* from) override;
    void batch(const int* tok, const int* target, int B, int S) override;
    void forward() override;
    void loss(bool train, float scale) override;
    void backward(bool last = true) override;
    double mean_loss(float* losses = nullptr) override;
    double grad_norm() override;
    void begin_step() override;
    void update(const AdamW& a, const Limits& limits, uint64_t seed, int signal = 0) override;
    Step finish(std::vector<Said>* said = nullptr) override;
    void set_updates(int64_t updates) override;
    Status cache_allocate(Cache& cache, int B, int maxT) override;
    void cache_free(Cache& cache) override;
    void cache_spread(const Cache& from, Cache& to) override;
    void extend(Cache& cache, const int* tok, int S) override;
    void logits(float* out) override;

    // The ranks' parts. With one rank a part is the whole.
    int64_t part_of(int k) const { return buckets[size_t(k)].size / plan.ranks; }          // elements
    int64_t mine(int k) const { return buckets[size_t(k)].offset + plan.rank * part_of(k); }    // in a flat buffer
    int64_t shard(int k) const { return buckets[size_t(k)].offset / plan.ranks; }       // in a buffer of parts
    bool spread(Part part) const;    // over the ranks
    int work_of(int k) const { return k == 0 ? 0 : 1 + k % 2; }
    Grad<P>* made(int k) const { return plan.zero < 2 ? grads + buckets[size_t(k)].offset : work[work_of(k)]; }
    Grad<P>* reduced(int k) const { return plan.zero < 2 ? grads + mine(k) : grads + shard(k); }
    int64_t result_bytes() const { return int64_t(sizeof(Step)) + plan.ranks * int64_t(sizeof(Said)); }

  private:
    int* tok() { return in + IN_HEAD; }
    int* target() { return in + IN_HEAD + int64_t(plan.B) * plan.S; }
    void stack(Cache* cache);                           // every block, and the final norm
    void block_forward(int l, T* out, Cache* cache);    // out null: all but the block's last product
    void block_again(int l);                            // what plan.recompute did not keep
    void block_backward(int l);
    static constexpr int IN_HEAD = 16;

    void await(int k) { if (comm && plan.zero) comm->join(here[size_t(k)]); }    // bucket k's parameters
    void prepare(int k);    // bucket k's gradients are about to be made
    void send(int k, bool last);    // they are made
    int sum_over_ranks(int signal);    // what gate adds up; how many squares
    float* store(Part part) const;
    std::map<std::pair<Part, int>, std::vector<float>> collected;    // by part and bucket
};

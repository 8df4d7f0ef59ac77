// gpt.h - the model: what it holds and what it does. All computation is a table's operations (layers/ops.h), so the
// same code trains and generates on every device and in every type. It opens no file; ranks meet in model/shards.h.
#pragma once
#include <functional>
#include <map>

#include "model/cache.h"
#include "model/packed_weights.h"
#include "model/shards.h"
#include "model/spans.h"

enum class Use { train, infer };    // infer: no gradients, no optimizer state, one block's activations
// What the backward pass computes again instead of storing it: nothing; the outputs of norms and GELU; all of a block
// but its input. Less memory, more work, the same bits. One exception: a GPU's products apply GELU before they round,
// so with `cheap` the backward pass computes GELU from the rounded input.
enum class Recompute { none, cheap, blocks };

struct Plan {
    Use use = Use::infer;
    int B = 1, S = 1;    // the largest batch
    Recompute recompute = Recompute::none;
    bool master = true;         // bf16 parameters have fp32 masters; else they are rounded stochastically
    bool updates = true;        // false: gradients are all that is asked for; no masters, no optimizer state
    int rank = 0, ranks = 1;    // data parallel training: the batch is this rank's
    int zero = 0;    // divided among the ranks: 1 AdamW's state, 2 also the gradients (model/shards.h)
    bool spans = false;    // batches come with spans; else only where Config::sees asks for them
    Element wire = Element::f32;    // type in which gradients travel; bf16 halves the bytes
    // Dropout while training: of the embeddings and of each branch's output; of attention's probabilities.
    float dropout = 0, attention_dropout = 0;
    // Where there are experts: factors of two more losses, which keep experts in even use (router_forward's balance)
    // and the router's logits small (mean lse^2), both means over positions, whether or not these have targets. Each
    // layer's gradients are added; the losses that are reported leave them out.
    float balance = 0, router_z = 0;
    Stored stored = {};    // the formats of packed parameters
};
struct MemoryRow {
    const char* purpose;
    int64_t bytes;
};

// What a block's forward leaves for its backward. Where a model has no such step, an array is the one that the step
// would have read, or its copy for products (Table::own_inputs), and null what nobody reads.
struct Activations {
    Activation* x;                           // (N,C): the block's input
    Input* ln1;                              // (N,C): normed
    Activation *qkv, *turned;                // (N,(NH+2*NKV)*HS), the same normed and turned
    Input* atty;                             // (N,NH*HS)
    Activation* decay_gates;                 // (N,Heads::gates())
    Activation* out1;                        // (N,C): attention's projection, or its sum with x, before its norm
    Activation* x2;                          // (N,C): with attention's branch added
    Input* ln2;                              // (N,C): normed
    Activation* fch;                         // (N,F or 2*F): the ffn's first product
    Input* fcg;                              // (N,F): activated
    Activation* router_logits;               // (N,E)
    Gradient* factors;                       // (N,K): of each chosen expert's output; float where gradients are
    Routes routes;
    Activation *expert_up, *expert_out;      // as fch, out2, in slots: (N*K,...)
    Input* expert_act;                       // as fcg
    Activation* shared_gate;                 // (N): the shared expert's gate
    Input* shared_act;                       // (N,F): fcg times its sigmoid
    Activation* out2;                        // (N,C): the ffn's second product, or its sum with x2, before its norm
    float *mean1, *rstd1, *mean2, *rstd2;    // (N)
    float *qk_rstd, *lse;                    // (N,Turn::sums()); (B,NH,S), without softmax what rows were scaled by
    float *post_mean1, *post_rstd1, *post_mean2, *post_rstd2;    // (N)
};
// How Ops::sample draws each text's next token, one of V, after its step. Pointers are to the device's memory.
struct Drawing {
    int* counts = nullptr;           // Ops::sample's `said`
    const double* bias = nullptr;
    DrawAt* at = nullptr;
    Draw draw = {};
    int V = 0;
    bool operator==(const Drawing&) const = default;
};
// Keys and values of generation, and the last call's positions and tokens.
struct Cache {
    PageTable table;                 // what each sequence holds; fork and rewind sequences there
    CacheKind kind;
    Element type = {};
    int positions = 0, pages = 0;    // most that a sequence holds; in all
    int sink_pages = 0, width = 0;   // width: pages of a sequence, at most
    int64_t bytes = 0;               // all of it
    int64_t state_bytes = 0;         // a sequence's, of all layers without softmax
    Pages layer(const Config& c, int l) const;
    States states(const Config& c, int l) const;

    // On the device. The pages of layer after layer; the states of sequence after sequence; angles as Model's, of all
    // positions, or, where the cache rolls, of the rows of this call; the sinks' turns.
    char *memory = nullptr, *state = nullptr;
    float *angles[2] = {}, *turns[2] = {};
    int *ints = nullptr, *page_numbers = nullptr, *copies = nullptr;
    int* sequences = nullptr;    // (B): which run
    int *slot = nullptr, *place = nullptr, *tok = nullptr;    // (B,S): places in the cache; in `angles` and wpe

    std::vector<int> running;        // the sequences of the last call
    Pages::Sums sums = {};           // the last call's
    bool from_start = false;         // the last call began all its sequences
    std::vector<int> on_device;      // the host's copy of slot and place: values after all queued work
    int steps = 0;                   // steps of one token in a row, of equally many sequences, drawn as the last one
    bool drawn = false;              // the last call drew tokens
    Drawing drawing;                 // the last one, which graphs have
    std::map<std::pair<int, bool>, void*> graphs;    // recorded steps, by the number of sequences, and if they draw
    int64_t most_rows = 0;           // rows of the largest call so far
    const Table* op = nullptr;       // whose memory it is
    void release_graphs();
    Cache() = default;
    Cache(const Cache&) = delete;
    ~Cache();
};

// The passes hand work to the device and return at once. Functions that return numbers wait for them.
struct Model {
    const Table op;
    Config c;
    Plan plan;
    std::vector<Tensor> tensors;    // the parameters: one row per tensor
    Shards shards;                  // flat buffers of parameters, gradients and AdamW's state
    PackedWeights packed;           // in place of the flat parameters, where the table wants them packed
    Params<Parameter> w;            // named pointers to the parameters
    Params<Gradient> dw;            // and to where their gradients are computed

    explicit Model(const Table& table);
    Model(const Model&) = delete;
    ~Model();

    Status allocate(const Config& config, const Plan& plan);    // exit 2: impossible sizes; 5: no memory
    std::vector<MemoryRow> memory;                              // what it took; model/count.h tells beforehand
    int64_t arena_bytes = 0;                                    // in all
    void init(uint64_t seed);                                   // new weights

    // Hands over the next batch, perhaps while the device still works on the one before. tok null: only the sizes, for
    // a table that only counts.     tok, target (B,S), host; target null: none; a target below 0 does not count
    // spans (B,S): who sees whom; null: as Config::sees says of whole sequences without a prefix
    void batch(const int* tok, const int* target, int B, int S, const Spans* spans = nullptr);
    // The batch handed over, up to the final norm. drops: this is training: the plan's dropout applies, which
    // the backward draws again, and the routers' choices are counted.
    void forward(bool drops = false);
    // Losses of the batch; with train also the head's gradients times scale (1 over the number of targets in the whole
    // step). Chunk by chunk: the logits of all positions never exist at once.
    void loss(bool train, float scale);
    // Gradients of everything, after forward and loss(train). Adds. last: the step's last batch, so that a bucket goes
    // to the other ranks as soon as it is done.
    void backward(bool last = true);
    // Over the batch's targets that count, summed in double and in order.     losses (N), host
    double mean_loss(float* losses = nullptr);
    double grad_norm();                           // global; one rank's alone

    // A step: begin_step, then batches, then update, which applies AdamW unless the step is over its limits. seed: for
    // stochastic rounding; signal: passed to the other ranks. finish gives the outcome of the oldest update not yet
    // finished, and what each rank reported in it; at most two may be pending. targets: those that count in the whole
    // step, on all ranks; 0: as many on each rank as on this one. positions: likewise, all of them; 0: the batch's.
    // What is dropped depends on the run's seed, the step's number and that of a sequence within the step alone, as
    // the loader counts them: it is the same however ranks and batches divide the step.
    void begin_step(int64_t targets = 0, uint64_t seed = 0, int64_t number = 0, int64_t positions = 0);
    void update(const AdamW& a, const Limits& limits, uint64_t seed, int signal = 0);
    // router_totals: router_forward's in the step, (L,E+2)
    Step finish(std::vector<RankReport>* reports = nullptr, std::vector<double>* router_totals = nullptr);
    void set_updates(int64_t updates);    // AdamW's step count, when a run goes on

    // Generation (model/cache.cpp). The cache must end before the model. exit 5: no memory
    Status cache_allocate(Cache& cache, int sequences, int positions, const CacheKind& kind = {});
    // S more tokens for B of the cache's sequences, or all; lengths (B): how many of the S each has, the rest is
    // padding; none: all S.     tok (B,S), host; null: those that the last step has drawn for the same sequences
    // drawing: S is 1, and cache.tok (B) gets the next tokens. The caller uploads drawing.at before the first step.
    void extend(Cache& cache, const int* tok, int S, const std::vector<int>& sequences = {},
                const std::vector<int>& lengths = {}, Pages::Sums sums = Pages::Sums::by_length,
                const Drawing* drawing = nullptr);
    // After forward or extend, once: of these rows of (B,S), which rise; none: each sequence's last position. Of the
    // batch, only these rows are left.
    void logits(float* out, const std::vector<int>& rows = {});    // (rows,V), host

    // The flat buffers as floats (model/shards.h).
    void read(Part part, int64_t offset, int64_t n, float* to) const {
        if (packed.any()) packed.read(offset, n, to);
        else shards.read(part, offset, n, to);
    }
    void write(Part part, int64_t offset, int64_t n, const float* from) {
        if (packed.any()) packed.write(offset, n, block_format(BlockType::f32), from);
        else shards.write(part, offset, n, from);
    }

    // Called, where there is one, in each block with softmax after its attention, while a[l].turned holds what that has
    // read.
    std::function<void(int l)> after_attention;

    // Activations and their gradients.
    std::vector<Activations> a;    // (L); blocks share buffers that are not kept
    Activation* embedded = nullptr;                                   // (N,C): before the norm, if there is one
    float *mean_e = nullptr, *rstd_e = nullptr;                       // (N)
    Activation* x_last = nullptr;               // (N,C): the last block's output
    Input* lnf = nullptr;                       // (N,C): x_last normed; where a norm is its end: x_last, or a copy
    float *mean_f = nullptr, *rstd_f = nullptr, *losses = nullptr;    // (N)
    Activation* dx = nullptr;                   // (N,C): gradients of the residual stream
    Activation* dt = nullptr;                   // (N,max(C,NH*HS)): of what is added to it
    Activation* dwide = nullptr;                // (N,max(F or 2*F,(NH+2*NKV)*HS, decay gates)); (N*K,up width)
    Activation* dactivated = nullptr;           // (N,F): of the activation's output; dwide where it gates nothing
    Activation* dbranch = nullptr;              // (N,C): of what a branch's norm or factor reads; later what
                                                // attention's input gets through the decay gates
    Activation* dffn = nullptr;                 // (N,C): of the ffn's input, where attention reads the same one
    Input* gathered = nullptr;                  // (N*K,C): what goes to experts
    Activation* dgathered = nullptr;            // (N*K,C): its gradient; before and after that (N,C): what the shared
                                                // expert's gate and the router add to that of the ffn's input
    Activation *drouter_logits = nullptr, *dshared_gate = nullptr;    // (N,E), (N)
    Gradient* dfactors = nullptr;               // (N,K)
    float* angles[2] = {};                      // (plan.S,2,rope_dims/2), one after the other: Config::table_of
    Parameter* sinusoids = nullptr;             // (T,C), in place of wpe
    const Parameter* positions = nullptr;       // what is added to embeddings: wpe, of its first position, or sinusoids
    // Heads::bias, its gradient, and the bucket of each distance; null without T5's biases.
    Gradient *bias = nullptr, *dbias = nullptr;    // (NH,2*RELATIVE_REACH+1)
    int* bucket = nullptr;                         // (2*RELATIVE_REACH+1)
    Activation* head = nullptr;                 // (head_rows,Vp): logits, then their gradients
    int head_rows = 0;                          // rows of logits that exist at a time

    // The current batch, and the next one. input: tok (N), target (N), and where there may be spans, keys (N) and
    // queries (N)
    int *input = nullptr, *staged = nullptr;
    struct Batch {
        int64_t targets = 0;    // that count
        bool spans = false;
    } now, next;
    int B = 0, S = 0, next_B = 0, next_S = 0;
    int64_t most() const { return int64_t(plan.B) * plan.S; }
    int* tok() const { return input; }
    int* target() const { return tok() + most(); }
    Span* keys() const { return reinterpret_cast<Span*>(tok() + 2 * most()); }
    Span* queries() const { return keys() + most(); }
    bool may_span() const { return plan.spans || c.sees != Sees::causal; }
    int64_t input_ints() const { return (may_span() ? 6 : 2) * most(); }    // a batch's
    static int64_t input_bytes(int64_t n) { return int64_t(sizeof(int)) * n; }

    // The step.
    StepTotals totals;
    Step* step = nullptr;
    char* results = nullptr;       // (2) on the host: Step, (ranks) of RankReport
    int64_t marks[2] = {}, updates = 0, finished = 0;
    int64_t all_positions = 0;     // in the step, on all ranks; 0: one batch's
    bool counting = false;         // the router adds to the step's totals: not when a block is computed again
    int64_t step_targets = 0;      // since begin_step
    int64_t all_targets = 0;       // what begin_step was told
    uint64_t step_seed = 0;        // dropout's: the run's seed, the step's number
    int64_t step_number = 0;
    int64_t sequences = 0, first_sequence = 0;    // forward passes with dropout since begin_step; the batch's first one
    bool training = false;                        // the forward pass that ran last was a training step's
    int64_t result_bytes() const {
        return int64_t(sizeof(Step)) + plan.ranks * int64_t(sizeof(RankReport)) + 8 * totals.router_totals_count;
    }

    // Block l's products are fp8's, where the table has them. Not the first and the last block's: their errors cost the
    // most, and neither do the embedding and the head, next to them, round so. Nor where nothing is trained: a position
    // would depend on the batch that it is computed in.
    bool narrow(int l) const { return training && op.fp8 && l > 0 && l + 1 < c.L; }
    bool fused_gelu(int l) const {
        return op.linear_gelu_forward && !narrow(l) && c.activation == Act::gelu_tanh && !c.gated && !c.gates_shared(l);
    }

  private:
    // Every block, and the final norm. Where a cache gets more than one position of each sequence it stops after the
    // last block's attention: `logits` computes the rest, for the rows that it is asked for.
    void blocks(Cache* cache);
    void end_blocks(bool cached);    // the last block from its attention's output on, and the final norm
    // Where dropout draws, each place another stream; layer l has three.
    enum class Dropped { embeddings, probabilities, attention, ffn };
    Dropout dropout(Dropped where, int l = 0) const;
    Heads heads(int l) const;    // with the batch's spans and dropout
    void embed(const Cache* cache);
    void embed_backward();
    void turn(int l, const Cache* cache = nullptr);               // QK-norm and rotation
    void attend(int l, Cache* cache);                             // atty from turned
    void place_angles(float* (&tables)[2], float* at, int positions);
    void place_positions();
    void divide_angles(float* (&tables)[2], float* at, int positions) const;
    void upload_angles(float* to, int l, const std::vector<int>& positions, int count, bool turn);
    void cache_roll(Cache& cache, const std::vector<int>& lengths);
    void turn_sinks(Cache& cache, const std::vector<PageTable::Copy>& copies, const std::vector<int>& dropped);
    void upload_copies(Cache& cache, const std::vector<PageTable::Copy>& copies);
    void copy_pages(Cache& cache, const std::vector<PageTable::Copy>& copies);
    void copy_states(Cache& cache);
    void upload_table(Cache& cache);
    void run(Cache& cache, bool as_before, const Drawing* drawing);
    void draw(Cache& cache, const Drawing& d);
    template <class X> void to_front(X* x, int width, const std::vector<int>& rows);
    void head_product(const Input* x, int rows);
    // The end of a branch: its product (in (N,width) times w, and what the experts add), before its norm, and the norm.
    struct Branch {
        int layer;
        const Input* in;
        int width;
        const Parameter *w, *b;
        const Activations* experts;    // null: none
        Activation* product;
        float *mean, *rstd;
        const Parameter *norm_w, *norm_b;
        Dropout dropout;
    };
    Branch attention_end(int l) const;
    Branch ffn_end(int l) const;
    void add_branch(Activation* out, const Activation* x, const Branch& end);
    // The gradient of the branch's product, where dx is that of what add_branch makes. dx becomes that of the residual.
    // Adds to dw and db of its norm.
    const Activation* product_gradient(const Branch& end, Gradient* dw, Gradient* db);
    void to_attention(int l, Cache* cache);    // a block, as far as atty
    void from_attention(int l, Activation* out, bool cached);    // to its end; out null: what its backward needs
    void ffn_forward(int l, bool cached);
    // Generation keeps nothing of a block: what is normed for one product alone need not exist, nor what has been
    // turned for attention alone.
    bool norms_in_product(bool cached) const;
    bool turns_in_attention(int l, const Cache* cache) const;
    void attention_input(int l);    // what its products read: ln1
    void ffn_input(int l);          // ln2
    Precision precision() const { return prompt_sums ? Precision::prefill : Precision::normal; }
    Precision precision(int l) const { return narrow(l) ? Precision::fp8 : precision(); }    // block l's
    void dense_forward(int l);
    void dense_backward(int l, Activation* to, const Activation* dy);
    // Layers with experts (model/experts.cpp). outputs: all but their sum, which add_branch computes.
    void expert_outputs(int l);
    void experts_again(int l);
    void experts_backward(int l, Activation* to, const Activation* dy);
    void block_again(int l);                                      // what plan.recompute did not keep
    void block_backward(int l);
    void ffn_backward(int l, Activation* to);
    void attention_backward(int l);
    std::vector<int> host_input;
    std::vector<int> ends;       // how many of the S positions each sequence of the last call has
    bool prompt_sums = false;    // the batch's rows have a prompt's sums, not a token's (Pages::Sums)
    bool unfinished = false;     // `blocks` stopped, or is to stop, after the last attention
    std::vector<float> host_losses;
    char* host_logits = nullptr;    // pinned: a chunk of logits on its way to the caller
    int64_t host_logits_bytes = 0;
    void* arena = nullptr;    // the device's memory but for caches and scratch, in one piece
};

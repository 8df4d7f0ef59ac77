// cost_table.cpp - observed tables, the counting table, and the model run over it.
#include "cost_table.h"

#include <cstdlib>
#include <cstring>
#include <string_view>
#include <utility>

#include "layers/quant/packed.h"

// ---- observed tables ----------------------------------------------------------------------------

static thread_local Observer* current;

Observer::Observer(const Table& observed)
    : table(observed), real(observed),
      cost_model(observed, [this](void* to, const void* from, int64_t bytes) { return read_device(to, from, bytes); }),
      outer(current) {
    current = this;
    table.begin_capture = nullptr, table.end_capture = nullptr, table.launch_graph = nullptr,
    table.release_graph = nullptr;
#define OPERATION(name, need, arguments, ...)            \
    if (real.name)                                       \
        table.name = [](auto... a) {                     \
            Observer& o = *current;                      \
            Cost w = o.cost_model.name(a...);            \
            w.call.operation = Operation::name;          \
            o.weight = nullptr;                          \
            (o.add_weight(w.call, a), ...);              \
            o.remember(Operation::name, a...);           \
            const auto run = [&] { o.real.name(a...); }; \
            o.call(w, std::ref(run));                    \
        };
#include "layers/operations.inc"
#undef OPERATION
}
Observer::~Observer() { current = outer; }

void Observer::remember(Operation operation, void* to, const void* from, int64_t bytes) {
    const char *at = static_cast<char*>(to), *data = static_cast<const char*>(from);
    const bool batch = operation == Operation::upload_async;
    if (operation == Operation::use_uploaded) uploads[at] = uploads[data];
    else if (data && (batch || operation == Operation::upload))
        uploads[at] = {data, data + (batch ? bytes : std::min<int64_t>(4, bytes))};
}
bool Observer::read_device(void* to, const void* from, int64_t bytes) const {
    const char* at = static_cast<const char*>(from);
    auto found = uploads.upper_bound(at);
    if (found == uploads.begin()) return false;
    found--;
    const int64_t first = at - found->first;
    if (first + bytes > int64_t(found->second.size())) return false;
    memcpy(to, found->second.data() + first, size_t(bytes));
    return true;
}

void Observer::add_weight(CallSizes& call, const Parameter* argument) {
    if (!weight) weight = argument;
    if (real.parameter != Element::packed || !argument) return;
    const PackedWeight& w = *reinterpret_cast<const PackedWeight*>(argument);
    for (int i = 0; i < w.count; i++) call.formats |= 1u << int(w.parts[i].format);
}

const char* operation_name(Operation operation) {
    static const char* const names[] = {
#define OPERATION(name, need, arguments, ...) #name,
#include "layers/operations.inc"
#undef OPERATION
    };
    return names[size_t(operation)];
}

// ---- the counting table -------------------------------------------------------------------------

static Table silent(const Table& like) {
    Table t = like;
    t.allocate = [](int64_t bytes) {
        static thread_local uintptr_t next = uintptr_t(1) << 46;
        static_cast<CostTable&>(*current).held += bytes;
        return reinterpret_cast<void*>(std::exchange(next, next + uintptr_t(round_up(bytes, 4096))));
    };
    t.release = [](void*, int64_t bytes) { static_cast<CostTable&>(*current).held -= bytes; };
    t.allocate_host = [](int64_t bytes) { return calloc(1, size_t(bytes)); };
    t.release_host = [](void* p, int64_t) { free(p); };
    t.mark = [] { return int64_t(0); };
    t.wait = [](int64_t) {};
    t.download = t.download_async = [](void* to, const void*, int64_t bytes) { memset(to, 0, size_t(bytes)); };
    return t;
}
CostTable::CostTable(const Table& like) : Observer(silent(like)) {}

void CostTable::call(const Cost& work, const std::function<void()>& run) {
    Sum& sum = sums[size_t(work.call.operation)];
    sum.calls++;
    sum.work += work;
    if (table.scratch_bytes) scratch = std::max(scratch, table.scratch_bytes(work.call));
    if (work.call.operation == Operation::download || work.call.operation == Operation::download_async) run();
}
Cost CostTable::all() const {
    Cost all;
    for (const Sum& s : sums) all += s.work;
    return all;
}

// ---- the model, counted -------------------------------------------------------------------------

void run_counted_step(Model& model, int batches) {
    model.train.begin();
    for (int i = 0; i < batches; i++) {
        if (model.encoder)
            model.upload_pairs(nullptr, nullptr, model.plan.source, nullptr, nullptr, model.plan.B, model.plan.S);
        else model.upload(nullptr, nullptr, model.plan.B, model.plan.whole_S());
        model.forward(true);
        if (model.plan.weighted) model.loss(false, 0);
        model.loss(true, 1, model.plan.weighted ? model.plan.B : 0);
        model.backward(i + 1 == batches);
    }
    model.train.update(OptimizerParams(), Limits(), 0);
}

Cost training_cost(const Table& like, const Config& c, int B, int S, bool weighted, int source) {
    CostTable count(like);
    Model model(count.table);
    const Status s =
        model.allocate(c, {.mode = RunMode::train, .B = B, .S = S, .weighted = weighted, .source = source});
    CHECK(s.ok(), "%s", s.message.c_str());
    run_counted_step(model);
    return count.all();
}

double scoring_flops(const Table& like, const Config& c, int S) {
    CostTable count(like);
    Model model(count.table);
    const Status s = model.allocate(c, {RunMode::infer, 1, S});
    CHECK(s.ok(), "%s", s.message.c_str());
    model.upload(nullptr, nullptr, 1, S);
    model.forward();
    model.loss(false, 0);
    return count.all().flops() / S;
}

static constexpr const char* SCRATCH = "scratch of the operations";    // purpose of a row
Result<std::vector<MemoryRow>> memory_cost(const Table& like, const Config& c, const Plan& plan) {
    CostTable count(like);
    CostComm comm(plan.ranks);
    Model model(count.table);
    if (plan.ranks > 1) model.store.comm = &comm;
    TRY(model.allocate(c, plan));
    if (plan.mode == RunMode::train) {
        run_counted_step(model);
    } else {
        model.upload(nullptr, nullptr, plan.B, plan.whole_S());
        model.forward();
    }
    std::vector<MemoryRow> rows = model.memory;
    rows.push_back({SCRATCH, count.scratch});
    return rows;
}

int64_t total_bytes(const std::vector<MemoryRow>& rows) {
    int64_t bytes = 0;
    for (const MemoryRow& r : rows) bytes += r.bytes;
    return bytes;
}

void add_model(std::vector<MemoryRow>& rows, const char* purpose, const std::vector<MemoryRow>& other) {
    int64_t bytes = 0;
    for (const MemoryRow& theirs : other)
        for (MemoryRow& ours : rows)
            if (theirs.purpose == SCRATCH && ours.purpose == SCRATCH) {
                ours.bytes = std::max(ours.bytes, theirs.bytes);
                bytes -= theirs.bytes;
            }
    rows.push_back({purpose, bytes + total_bytes(other)});
}

Result<CostComm> step_messages(const Table& like, const Config& c, const Plan& plan, int batches) {
    CostTable count(like);
    CostComm comm(plan.ranks);
    Model model(count.table);
    model.store.comm = &comm;
    TRY(model.allocate(c, plan));
    run_counted_step(model, batches);
    return comm;
}

int64_t collective_scratch(const Table& like, const Config& c, const Plan& plan, bool gpu) {
    if (plan.ranks == 1) return 0;
    int64_t largest = 0;
    for (const Bucket& b : config_buckets(c, plan.ranks)) largest = std::max(largest, b.size);
    const bool casts_to_bf16 = like.gradient == Element::f32 && plan.comm_dtype == Element::bf16;
    if (gpu) return casts_to_bf16 ? 2 * largest : 0;
    const int64_t element = element_bytes(like.gradient);
    return plan.ranks * mpi_chunk(largest / plan.ranks, plan.ranks, element) * element;
}

// ---- the parts of a step ------------------------------------------------------------------------

const char* cost_part_name(CostPart part, bool softmax) {
    if (!softmax && part == CostPart::scores) return "q times states";
    if (!softmax && part == CostPart::mixing) return "states from k and v";
    static const char* const names[] = {"embeddings",
                                        "queries, keys, values",
                                        "scores q k^T",
                                        "probabilities times v",
                                        "output projection",
                                        "feed-forward",
                                        "norms",
                                        "head and loss",
                                        "rotations and others",
                                        "optimizer"};
    return names[size_t(part)];
}

namespace {
// The part to which a tensor's parameters and the product with it belong.
CostPart part_of_tensor(const Tensor& t) {
    const std::string_view name = std::string_view(t.name).substr(t.name.rfind('.') + 1);    // without stack and block
    const std::pair<const char*, CostPart> stems[] = {
        {"wte", CostPart::embeddings},    {"wpe", CostPart::embeddings},   {"rel", CostPart::scores},
        {"value_", CostPart::embeddings}, {"seg", CostPart::embeddings},   {"cross_proj", CostPart::projection},
        {"embed_", CostPart::embeddings}, {"cross_", CostPart::qkv},       {"global_", CostPart::qkv},
        {"transform", CostPart::head},    {"smear", CostPart::embeddings}, {"head", CostPart::head},
        {"pool", CostPart::head},         {"next", CostPart::head},        {"qkv", CostPart::qkv},
        {"decay", CostPart::qkv},         {"proj", CostPart::projection},  {"fc", CostPart::ffn},
        {"router", CostPart::ffn},        {"expert", CostPart::ffn},       {"shared_gate", CostPart::ffn},
        {"ln", CostPart::norms},          {"post", CostPart::norms},       {"qw", CostPart::norms},
        {"kw", CostPart::norms},          {"resid", CostPart::norms},      {"x0", CostPart::norms},
        {"backout", CostPart::norms}};
    for (const auto& [stem, part] : stems)
        if (name.starts_with(stem)) return part;
    return CostPart::other;
}

bool starts_with_any(std::string_view name, const std::vector<const char*>& starts) {
    for (const char* start : starts)
        if (name.starts_with(start)) return true;
    return false;
}

class PartTable : public CostTable {
  public:
    explicit PartTable(const Table& like) : CostTable(like) {}
    void set_model(Model& g) { model = &g; }
    PartCosts parts;

  protected:
    void call(const Cost& work, const std::function<void()>& run) override {
        CostTable::call(work, run);
        const std::string_view name = operation_name(work.call.operation);
        auto add = [&](CostPart part, double share) {
            PartCost& to = parts[size_t(part)];
            Cost some = work;
            some.products *= share, some.arithmetic *= share, some.bytes *= share;
            (part == CostPart::optimizer ? to.update : name.ends_with("_backward") ? to.backward : to.forward) += some;
        };
        // Each of attention's two products has half the FLOPs, forward and backward, and half the
        // bytes: q and k are as many elements as v and y.
        if (starts_with_any(name, {"attention", "cross_attention", "linear_attention"})) {
            add(CostPart::scores, 0.5);
            add(CostPart::mixing, 0.5);
        } else {
            add(is_update(name) ? CostPart::optimizer : part_of_call(name), 1);
        }
    }

  private:
    Model* model = nullptr;

    CostPart part_of_call(std::string_view name) const {
        if (starts_with_any(name, {"cross_entropy", "distill", "lm_head", "add_losses"})) return CostPart::head;
        if (starts_with_any(name, {"embedding", "value_embedding", "smear"})) return CostPart::embeddings;
        if (starts_with_any(name, {"activation", "row_gate", "router", "experts"})) return CostPart::ffn;
        const bool rotates = name.starts_with("rope");    // reads weights of the norms of q and k
        // The head's product reads the embeddings if they are tied.
        if (const Tensor* t = rotates ? nullptr : tensor_at(weight))
            return t->name == "wte" ? CostPart::head : part_of_tensor(*t);
        if (starts_with_any(name, {"norm_", "stream_norm", "add_scaled", "residual_mix"})) return CostPart::norms;
        return CostPart::other;
    }
    const Tensor* tensor_at(const Parameter* w) const {
        if (!w || !model) return nullptr;
        ParamStore& store = model->store;
        for (const Tensor& t : model->tensors)
            if ((store.packed.any() ? store.packed.at(t.offset) : table.at(store.params, t.offset)) == w) return &t;
        return nullptr;
    }
};
}    // namespace

bool is_update(std::string_view operation) {
    return starts_with_any(operation, {"sum_of_squares", "step_verdict", "update", "nesterov", "orthogonalize",
                                       "normalize_rows", "average"});
}

PartCosts part_costs(const Table& like, const Config& c, Plan plan) {
    plan.rank = 0;
    plan.ranks = 1;
    plan.zero = 0;
    plan.S = plan.whole_S();
    plan.cp = 1;
    plan.recompute = Recompute::none;
    PartTable count(like);
    Model model(count.table);
    const Status s = model.allocate(c, plan);
    CHECK(s.ok(), "%s", s.message.c_str());
    count.set_model(model);
    run_counted_step(model);
    for (const Tensor& t : config_tensors(c)) count.parts[size_t(part_of_tensor(t))].parameters += t.file_rows * t.cols;
    return count.parts;
}

int softmax_layers(const Config& c) {
    int layers = 0;
    for (int l = 0; l < c.L; l++) layers += !c.recurrent(l);
    return layers;
}

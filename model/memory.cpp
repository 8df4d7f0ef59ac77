// memory.cpp - the model's memory: how it is laid out, and new weights.
#include "gpt.h"

#include <algorithm>

#include "model/positions.h"
#include "model/rope.h"

namespace {
template <class X> struct ActivationRow {
    X* Activations::*field;
    int64_t per_token;       // 0: the model has no such step
    Recompute kept_up_to;    // the strongest recomputation that still keeps it
    X* Activations::*instead = nullptr;    // what is read where there is none; null: nothing
};

// What block l keeps for its backward, per token. first: the ffn's first product is stored.
std::vector<ActivationRow<Activation>> activation_rows(const Config& c, int l, bool first) {
    using A = Activations;
    const Recompute never = Recompute::blocks, cheap = Recompute::cheap, none = Recompute::none;
    const int C = c.C, post = c.post_norm() ? C : 0;
    const bool qk = c.qk_norm != Turn::Normed::none;
    const int K = c.routed(l) ? c.experts_used : 0, gates = c.gates_shared(l);
    return {{&A::x, C, never},
            {&A::qkv, c.qkv_width(), cheap},
            {&A::turned, qk ? c.qkv_width() : 0, none, &A::qkv},
            {&A::decay_gates, c.heads(l).gates(), cheap},
            {&A::out1, post, cheap},
            {&A::x2, C, cheap},
            {&A::fch, first ? c.up_width(l) : 0, cheap},
            {&A::router_logits, K ? c.experts : 0, cheap},
            {&A::expert_up, K * c.expert_up_width(), cheap},
            {&A::expert_out, K * C, cheap},
            {&A::shared_gate, gates, cheap},
            {&A::out2, post, cheap}};
}
// own: products read a type of their own: where nothing is normed ln1 and ln2 are copies.
std::vector<ActivationRow<Input>> input_rows(const Config& c, int l, bool own) {
    using A = Activations;
    const Recompute cheap = Recompute::cheap, none = Recompute::none;
    const int normed = c.pre_norm() || own ? c.C : 0, K = c.routed(l) ? c.experts_used : 0;
    return {{&A::ln1, normed, none},
            {&A::atty, c.attention_width(), cheap},
            {&A::ln2, c.parallel == Parallel::one ? 0 : normed, none},
            {&A::fcg, c.ffn_width(l), none},
            {&A::expert_act, K * c.expert_ffn, none},
            {&A::shared_act, c.gates_shared(l) ? c.ffn_width(l) : 0, none}};
}
std::vector<ActivationRow<float>> statistic_rows(const Config& c, int) {
    using A = Activations;
    const Recompute cheap = Recompute::cheap;
    const int mean = c.norm == NormKind::layer, pre = c.pre_norm(), two = pre && c.parallel != Parallel::one;
    const int post = c.post_norm();
    return {{&A::mean1, pre * mean, cheap},
            {&A::rstd1, pre, cheap},
            {&A::mean2, two * mean, cheap},
            {&A::rstd2, two, cheap},
            {&A::qk_rstd, c.turn(0).sums(c.NH, c.NKV), cheap},
            {&A::lse, c.NH, cheap},
            {&A::post_mean1, post * mean, cheap},
            {&A::post_rstd1, post, cheap},
            {&A::post_mean2, post * mean, cheap},
            {&A::post_rstd2, post, cheap}};
}

// Lays everything out; called twice: with base null to count, then to place.
struct Layout {
    const Table& op;
    char* base = nullptr;
    int64_t used = 0;
    std::vector<MemoryRow> purposes = {};

    void purpose(const char* name) {
        // Arrays a power of two apart share cache sets: each purpose starts 17 more cache lines into its page.
        used = round_up(used, 4096) + 64 * 17 * int64_t(purposes.size());
        purposes.push_back({name, used});
    }
    template <class X> void take(X*& p, int64_t n) {
        used = round_up(used, 64);
        p = base ? reinterpret_cast<X*>(base + used) : nullptr;
        used += op.bytes(p, n);
    }
    void finish() {
        for (size_t i = 0; i < purposes.size(); i++)
            purposes[i].bytes = (i + 1 < purposes.size() ? purposes[i + 1].bytes : used) - purposes[i].bytes;
    }
};

void place_training(Layout& at, Model& g) {
    Shards& s = g.shards;
    at.purpose("gradients");
    const int64_t held = s.flat / (s.zero ? s.ranks : 1);
    at.take(s.grads, s.zero == 2 ? held : s.flat);
    for (int i = 0; i < 3 && s.zero == 2; i++) {
        int64_t most = 0;
        for (int k = 0; k < int(s.buckets.size()); k++)
            if (s.work_buffer(k) == i) most = std::max(most, s.buckets[size_t(k)].size);
        at.take(s.work[i], most);
    }
    at.purpose("optimizer state");
    if (g.plan.updates) {
        at.take(s.m, held);
        at.used += 64 * 17;
        at.take(s.v, held);
        if (g.op.parameter == Element::bf16 && g.plan.master) at.take(s.master, held);
        at.take(s.decays, s.flat / 64);
    }
    g.totals.router_totals_count = g.c.experts ? int64_t(g.c.L) * (g.c.experts + 2) : 0;
    at.take(g.totals.loss, 1 + int64_t(s.buckets.size()) + 2 * s.ranks + g.totals.router_totals_count);
    g.totals.squares = g.totals.loss + 1;
    g.totals.reports = reinterpret_cast<RankReport*>(g.totals.squares + s.buckets.size());
    if (g.c.experts) g.totals.router_totals = reinterpret_cast<double*>(g.totals.reports + s.ranks);
    at.take(g.step, 1);
}

// Each block's arrays. What a block does not keep, all share: the largest, which the first one has that needs it.
template <class Rows> void place_rows(Layout& at, Model& g, int64_t N, Rows rows_of) {
    const bool train = g.plan.use == Use::train;    // else nobody reads a block's activations again
    std::vector<decltype(rows_of(g.c, 0))> rows;
    for (int l = 0; l < g.c.L; l++) rows.push_back(rows_of(g.c, l));
    std::vector<int> holder(rows[0].size(), -1);
    for (int l = 0; l < g.c.L; l++)
        for (size_t i = 0; i < rows[0].size(); i++) {
            const auto& row = rows[size_t(l)][i];
            auto& field = g.a[size_t(l)].*row.field;
            const bool kept = train && g.plan.recompute <= row.kept_up_to;
            int64_t most = row.per_token;
            for (const auto& others : rows) most = kept ? most : std::max(most, others[i].per_token);
            if (!row.per_token) field = row.instead ? g.a[size_t(l)].*row.instead : nullptr;
            else if (!kept && holder[i] >= 0) field = g.a[size_t(holder[i])].*row.field;
            else at.take(field, N * most), holder[i] = l;
        }
}
// Where rows go: of each block that the backward reads again.
void place_routes(Layout& at, Model& g, int64_t N) {
    const Config& c = g.c;
    const bool kept = g.plan.use == Use::train && g.plan.recompute != Recompute::blocks;
    const Activations* holder = nullptr;
    for (int l = 0; l < c.L; l++) {
        Activations& a = g.a[size_t(l)];
        if (!c.routed(l)) continue;
        if (holder && !kept) {
            a.factors = holder->factors, a.routes = holder->routes;
            continue;
        }
        holder = &a;
        const int64_t rows = N * c.experts_used;
        at.take(a.factors, rows);
        for (int** p : {&a.routes.expert, &a.routes.slot, &a.routes.row}) at.take(*p, rows);
        at.take(a.routes.counts, (g.plan.use == Use::train ? g.plan.B : N) * c.experts);
        at.take(a.routes.offsets, c.experts + 1);
    }
    if (holder) at.take(g.gathered, N * c.experts_used * c.C);
}
void place_activations(Layout& at, Model& g, int64_t N) {
    const Config& c = g.c;
    at.purpose("activations");
    g.a.assign(size_t(c.L), {});
    const bool own = g.op.own_inputs();
    place_rows(at, g, N, [&](const Config& config, int l) {
        return activation_rows(config, l, !g.fused_gelu(l) || g.op.linear_gelu_backward);
    });
    place_rows(at, g, N, [&](const Config& config, int l) { return input_rows(config, l, own); });
    place_rows(at, g, N, statistic_rows);
    auto as_input = [](Activation* x) { return reinterpret_cast<Input*>(x); };    // where both are one type
    for (Activations& a : g.a) {
        if (!c.pre_norm() && !own) a.ln1 = as_input(a.x), a.ln2 = as_input(a.x2);
        if (c.parallel == Parallel::one) a.ln2 = a.ln1;
    }
    place_routes(at, g, N);
    at.take(g.x_last, N * c.C);
    if (c.sum_norm() && !own) g.lnf = as_input(g.x_last);
    else at.take(g.lnf, N * c.C);
    for (float** p : {&g.mean_f, &g.rstd_f, &g.losses}) at.take(*p, N);
    if (c.norm == NormKind::rms) g.mean_f = nullptr;
    if (c.embed_norm) {
        at.take(g.embedded, N * c.C);
        for (float** p : {&g.mean_e, &g.rstd_e}) at.take(*p, N);
        if (c.norm == NormKind::rms) g.mean_e = nullptr;
    }
    at.take(g.angles[0], angle_bytes(c, g.plan.S) / int64_t(sizeof(float)));
    if (c.position == Position::sinusoidal && !g.packed.any()) at.take(g.sinusoids, int64_t(c.T) * c.C);
    if (c.position == Position::t5) {
        at.take(g.bias, int64_t(c.NH) * (2 * RELATIVE_REACH + 1));
        at.take(g.bucket, 2 * RELATIVE_REACH + 1);
    }
    for (int** p : {&g.input, &g.staged}) at.take(*p, g.input_ints());
}

void lay_out(Layout& at, Model& g, const Config& c, Plan plan) {
    if (plan.ranks == 1 && !g.shards.comm) plan.zero = 0;    // nobody has the other shares
    g.c = c, g.plan = plan, g.tensors = config_tensors(c, plan.ranks);
    g.shards.divide(c, plan.rank, plan.ranks, plan.zero, plan.wire);
    const int64_t N = int64_t(plan.B) * plan.S;
    const bool train = plan.use == Use::train;
    at.purpose("parameters");
    const bool packed = g.op.parameter == Element::packed, sinusoidal = c.position == Position::sinusoidal;
    if (packed) g.packed.lay_out(g.tensors, plan.stored, sinusoidal ? c.T : 0, c.C);
    char* weights = nullptr;
    if (packed) at.take(weights, g.packed.bytes);
    else at.take(g.shards.params, g.shards.flat);
    if (weights) g.packed.place(weights);
    if (train) place_training(at, g);
    place_activations(at, g, N);
    at.purpose("activation gradients");
    if (train) {
        at.take(g.dx, N * c.C);
        at.take(g.dt, N * std::max(c.C, c.attention_width()));
        const int64_t rows = N * c.experts_used, qkv = N * c.qkv_width();
        const int gates = c.heads(0).gates();    // the first layer has no softmax, if any has none
        at.take(g.dwide, std::max({N * c.widest_up(), round_up(qkv, 64) + N * gates, rows * c.expert_up_width()}));
        if (c.gated) at.take(g.dactivated, std::max(N * c.widest_up() / 2, rows * c.expert_ffn));
        else g.dactivated = g.dwide;
        if (c.experts) {
            at.take(g.dgathered, rows * c.C);
            at.take(g.dfactors, rows);
            at.take(g.drouter_logits, N * c.experts);
            at.take(g.dshared_gate, N);
        }
        if (c.position == Position::t5) at.take(g.dbias, int64_t(c.NH) * (2 * RELATIVE_REACH + 1));
        if (c.post_norm() || c.branch_scale != 1 || plan.dropout > 0 || gates) at.take(g.dbranch, N * c.C);
        if (c.parallel != Parallel::none) at.take(g.dffn, N * c.C);
    }
    at.purpose("logits");
    // Half of all rows at a time, as many as logits_bytes hold at most; from 256 rows on products are at speed.
    const int64_t most = std::min(g.op.logits_bytes / g.op.bytes(g.head, c.Vp()), ceil_div(N, 2));
    g.head_rows = int(std::min(N, round_up(std::max<int64_t>(64, most), 16)));
    at.take(g.head, int64_t(g.head_rows) * c.Vp());
    at.finish();
}
}    // namespace

Model::Model(const Table& table) : op(table), shards(op) {
    if (op.parameter == Element::packed) return;    // it only infers
    const char* missing = missing_operation(op);
    CHECK(!missing, "%s has no %s", op.name, missing);
    CHECK(!op.linear_gelu_forward == !op.linear_gelu_backward, "%s has one half of linear_gelu", op.name);
}
Model::~Model() {
    if (arena) op.release(arena, arena_bytes);
    if (results) op.release_host(results, 2 * result_bytes());
    if (host_logits) op.release_host(host_logits, host_logits_bytes);
}

Status Model::allocate(const Config& config, const Plan& what) {
    TRY(config_check(config));
    CHECK(op.parameter != Element::packed || what.use == Use::infer, "packed weights are only read");
    CHECK(!arena && what.B > 0 && what.S > 0 && what.S <= config.T, "B=%d S=%d context=%d", what.B, what.S, config.T);
    // Experts have several rows for each token.
    const int most = INT32_MAX / 4 / std::max(1, config.experts_used);
    if (int64_t(what.B) * what.S > most)
        return fail(Exit::usage, "batch x seq-len = %lld tokens at once, %d at most", (long long)what.B * what.S, most);
    Layout count{op};
    lay_out(count, *this, config, what);
    arena_bytes = count.used, memory = count.purposes;
    arena = op.allocate(arena_bytes);
    results = static_cast<char*>(op.allocate_host(2 * result_bytes()));
    if (!arena || !results)
        return fail(Exit::device,
                    "out of memory: the model needs %.2f GiB in one piece, %.2f GiB are free; a smaller --batch%s "
                    "needs less",
                    double(arena_bytes) / (1 << 30), double(op.free_bytes()) / (1 << 30),
                    what.use == Use::train ? ", or --recompute blocks," : " or --seq-len");
    Layout layout{op, static_cast<char*>(arena)};
    lay_out(layout, *this, config, what);
    place_angles(angles, angles[0], plan.S);
    place_positions();
    w = bind<Parameter>(c, plan.ranks, [&](const Tensor& t) {
        return packed.any() ? packed.at(t.offset) : op.at(shards.params, t.offset);
    });
    if (packed.any()) positions = packed.positions(c.position_offset);
    else positions = w.wpe ? op.at(w.wpe, int64_t(c.position_offset) * c.C) : sinusoids;
    if (what.use == Use::infer) return {};
    dw = bind<Gradient>(c, plan.ranks, [&](const Tensor& t) {
        return op.at(shards.gradients(t.bucket), t.offset - shards.buckets[size_t(t.bucket)].offset);
    });
    if (!plan.updates) return {};
    const std::vector<uint8_t> ones(1 << 16, 1);    // what allocate gives is zero
    for (const Tensor& t : tensors)
        for (int64_t i = t.offset / 64, end = ceil_div(t.offset + t.size(), 64); t.decay && i < end; i += 1 << 16)
            op.upload(shards.decays + i, ones.data(), std::min<int64_t>(end - i, 1 << 16));
    return {};
}

void Model::divide_angles(float* (&tables)[2], float* at, int positions) const {
    for (int table : {0, 1})
        if (c.reader_of(table) >= 0) tables[table] = at, at += int64_t(positions) * c.rope_dims;
}
void Model::place_angles(float* (&tables)[2], float* at, int positions) {
    divide_angles(tables, at, positions);
    for (int table : {0, 1})
        if (const int l = c.reader_of(table); l >= 0) {
            const std::vector<float> host = rope_angles(c, l, positions);
            op.upload(tables[table], host.data(), int64_t(host.size() * sizeof(float)));
        }
}

void Model::place_positions() {
    if (bucket) {
        const std::vector<int> buckets = relative_buckets(c.sees != Sees::causal);
        op.upload(bucket, buckets.data(), int64_t(buckets.size() * sizeof(int)));
    }
    if (c.position != Position::sinusoidal) return;
    const std::vector<float> exact = ::sinusoids(c, c.T);
    if (packed.any()) return op.upload(packed.position_table(), exact.data(), 4 * int64_t(exact.size()));
    std::vector<char> host(size_t(op.bytes(sinusoids, int64_t(exact.size()))));
    from_floats(host.data(), op.parameter, exact.data(), int64_t(exact.size()));
    op.upload(sinusoids, host.data(), int64_t(host.size()));
}

void Model::init(uint64_t seed) {
    const int64_t CHUNK = 1 << 20;
    std::vector<float> host(size_t(std::min(CHUNK, shards.flat)));
    for (size_t i = 0; i < tensors.size(); i++) {
        const Tensor& t = tensors[i];
        const double std = t.init == Init::normal_residual ? 0.02 / std::sqrt(2.0 * c.L) : 0.02;
        const int64_t size = t.size(), held = t.file_rows * t.cols;    // rows that pad the vocabulary stay zero
        for (int64_t from = 0; from < size; from += CHUNK) {
            const int64_t n = std::min(CHUNK, size - from);
#pragma omp parallel for schedule(static)
            for (int64_t k = 0; k < n; k++)
                host[size_t(k)] = from + k >= held       ? 0
                                  : t.init == Init::zero ? 0
                                  : t.init == Init::one
                                      ? 1
                                      : float(std * double(philox_normal(seed, i, uint64_t(from + k))));
            write(Part::weights, t.offset + from, n, host.data());
        }
    }
}

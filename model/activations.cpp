// activations.cpp - one row per array of a model's passes, and the arrays' layout in memory.
#include "model/activations.h"

#include <algorithm>

#include "gpt.h"
#include "model/adapter.h"
#include "model/position_tables.h"

namespace {
template <class X> struct ActivationRow {
    X* Activations::*field;
    int64_t per_token;                     // elements; 0: the model has no such step
    Recompute kept_up_to;                  // the strongest recomputation that still keeps it
    X* Activations::*instead = nullptr;    // array to use instead; null: none
};

// Arrays of block l with the activations' element type. first: whether the output of the ffn's
// first product is stored. A fused GELU without a backward pass does not write it.
std::vector<ActivationRow<Activation>> activation_rows(const Config& c, int l, bool first) {
    using A = Activations;
    const Recompute never = Recompute::blocks, cheap = Recompute::cheap, none = Recompute::none;
    const int C = c.C, post = c.post_norm() ? C : 0;
    const int K = c.has_experts(l) ? c.experts_used : 0, gates = c.gates_shared_expert(l), cross = c.encoder_layers > 0;
    // With residual scalars, x is a weighted sum of `in` and the embeddings, which both are kept.
    return {{&A::x, C, c.residual_scalars ? cheap : never},
            {&A::in, c.residual_scalars && l > 0 ? C : 0, never, &A::x},
            {&A::qkv, c.qkv_width(), cheap},
            {&A::qkv_rot, c.rope(l).norms() ? c.qkv_width() : 0, none, &A::qkv},
            {&A::global_kv, c.projects_globals(l) ? 2 * c.NKV * c.HS : 0, cheap},
            {&A::decay_gates, c.heads(l).gates(), cheap},
            {&A::out1, post, cheap},
            {&A::x2, C, cheap},
            {&A::cross_q, cross * c.attention_width(), cheap},
            {&A::outc, cross * post, cheap},
            {&A::x3, cross * C, cheap, &A::x2},
            {&A::fch, first ? c.up_width(l) : 0, cheap},
            {&A::router_logits, K ? c.experts : 0, cheap},
            {&A::expert_up, K * c.expert_up_width(), cheap},
            {&A::expert_out, K * C, cheap},
            {&A::shared_gate, gates, cheap},
            {&A::out2, post, cheap}};
}
// Arrays of block l that matrix products read. own: their element type differs from the
// activations'. A norm converts as it writes ln1 and ln2. Without a norm, ln1 and ln2 exist only if
// `own`, as converted copies of the branch's input.
std::vector<ActivationRow<Input>> input_rows(const Config& c, int l, bool own) {
    using A = Activations;
    const Recompute cheap = Recompute::cheap, none = Recompute::none;
    const int normed = c.pre_norm() || own ? c.C : 0, K = c.has_experts(l) ? c.experts_used : 0;
    const int cross = c.encoder_layers > 0;
    return {{&A::ln1, l > 0 || c.first_norm || own ? normed : 0, none},
            {&A::atty, c.attention_width(), cheap},
            {&A::lnc, cross * normed, none},
            {&A::cross_y, cross * c.attention_width(), cheap},
            {&A::ln2, c.parallel == Parallel::one ? 0 : normed, none},
            {&A::fcg, c.ffn_width(l), none},
            {&A::expert_act, K * c.expert_ffn, none},
            {&A::shared_act, c.gates_shared_expert(l) ? c.ffn_width(l) : 0, none},
            {&A::qkv_low, c.adapter.rank(Adapter::qkv), cheap},
            {&A::proj_low, c.adapter.rank(Adapter::proj), cheap},
            {&A::fc_low, c.ffn_width(l) ? c.adapter.rank(Adapter::fc) : 0, cheap},
            {&A::fc2_low, c.ffn_width(l) ? c.adapter.rank(Adapter::fc2) : 0, cheap},
            {&A::cross_q_low, c.adapter.rank(Adapter::cross_q), cheap},
            {&A::cross_proj_low, c.adapter.rank(Adapter::cross_proj), cheap}};
}
std::vector<ActivationRow<float>> statistic_rows(const Config& c, int l) {
    using A = Activations;
    const Recompute cheap = Recompute::cheap;
    const int mean = c.norm == NormKind::layer, pre = c.pre_norm(), two = pre && c.parallel != Parallel::one;
    const int post = c.post_norm(), cross = c.encoder_layers > 0;
    return {{&A::mean1, pre * mean, cheap},
            {&A::rstd1, pre, cheap},
            {&A::mean2, two * mean, cheap},
            {&A::rstd2, two, cheap},
            {&A::qk_rstd, c.rope(0).rstd_count(c.NH, c.NKV), cheap},
            {&A::lse, c.NH, cheap},
            {&A::global_lse, c.projects_globals(l) * c.NH, cheap},
            {&A::meanc, cross * pre * mean, cheap},
            {&A::rstdc, cross * pre, cheap},
            {&A::post_meanc, cross * post * mean, cheap},
            {&A::post_rstdc, cross * post, cheap},
            {&A::cross_lse, cross * c.NH, cheap},
            {&A::post_mean1, post * mean, cheap},
            {&A::post_rstd1, post, cheap},
            {&A::post_mean2, post * mean, cheap},
            {&A::post_rstd2, post, cheap}};
}

// Assigns each block's arrays. Blocks share an array that is not kept for the backward pass: the
// first block that needs it reserves the largest size of any block.
template <class Rows> void lay_out_rows(Layout& at, Gpt& g, int64_t N, Rows rows_of) {
    const bool train = g.plan.mode == RunMode::train;    // else no activation outlives its block
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
            else at.reserve(field, N * most), holder[i] = l;
        }
}
// Assigns each block's arrays that route tokens to experts. Blocks share these arrays, unless the
// backward pass reads them.
void lay_out_routes(Layout& at, Gpt& g, int64_t N) {
    const Config& c = g.c;
    const bool kept = g.plan.mode == RunMode::train && g.plan.recompute != Recompute::blocks;
    const Activations* holder = nullptr;
    for (int l = 0; l < c.L; l++) {
        Activations& a = g.a[size_t(l)];
        if (!c.has_experts(l)) continue;
        if (holder && !kept) {
            a.factors = holder->factors;
            a.routes = holder->routes;
            continue;
        }
        holder = &a;
        const int64_t rows = N * c.experts_used;
        at.reserve(a.factors, rows);
        for (int** p : {&a.routes.expert, &a.routes.permuted_row, &a.routes.row}) at.reserve(*p, rows);
        at.reserve(a.routes.counts, (g.plan.mode == RunMode::train ? g.plan.B : N) * c.experts);
        at.reserve(a.routes.offsets, c.experts + 1);
    }
    if (holder) at.reserve(g.gathered, N * c.experts_used * c.C);
}
}    // namespace

// Scratch of adapters, which all products share. Cross-attention's keys and values have a row for
// each position of the source, so there is room for the longer of both sequences.
static void lay_out_adapters(Layout& at, Gpt& g) {
    const Config& c = g.c;
    const int64_t N = std::max(g.plan.max_tokens(), g.encoder ? g.encoder->plan.max_tokens() : 0);
    const int R = c.adapter.widest();
    if (!R) return;
    const bool train = g.plan.mode == RunMode::train;
    int widest = std::max({c.C, c.attention_width(), c.qkv_width(), c.max_up_width()});
    g.low_blocks = adapter_blocks(c);
    g.low_blocks.erase(g.low_blocks.begin(), g.low_blocks.end() - c.L);    // an encoder has its own
    at.reserve(g.wide, N * widest);
    if (g.op.has_input_type()) at.reserve(g.low_sum, N * R);
    if (train) at.reserve(g.low_gradient, N * R);
    if (c.adapter.magnitudes) {
        at.reserve(g.unscaled, N * widest);
        g.row_norms_version.assign(size_t(c.L), 0);
        for (int l = 0; l < c.L; l++)
            for (int p = 0; p < Adapter::PRODUCTS; p++)
                if (c.adapter.rank(Adapter::Product(p)))
                    at.reserve(g.a[size_t(l)].inverse_norms[p], g.low_blocks[size_t(l)][size_t(p)].rows());
    }
    if (train && c.adapter.dropout > 0)
        at.reserve(g.dropped, N * std::max({c.C, c.attention_width(), c.max_up_width()}));
}

// Keys and values of the encoder's output, and LowRank::low of their adapter. Each block has its
// own if the backward pass reads them; else all blocks share the first one's.
static void lay_out_source(Layout& at, Gpt& g) {
    if (!g.encoder) return;
    const int64_t NS = g.encoder->plan.max_tokens();
    const bool kept = g.plan.mode == RunMode::train && g.plan.recompute != Recompute::blocks;
    for (Activations& a : g.a)
        if (kept || &a == &g.a[0]) {
            at.reserve(a.cross_kv, NS * 2 * g.c.NKV * g.c.HS);
            if (const int R = g.c.adapter.rank(Adapter::cross_kv)) at.reserve(a.cross_kv_low, NS * R);
        } else {
            a.cross_kv = g.a[0].cross_kv;
            a.cross_kv_low = g.a[0].cross_kv_low;
        }
}

// Elements of Heads::bias, for N positions.
static int64_t biases(const Config& c, int64_t N) {
    const Heads h = c.heads(0);    // no layer of models with biases is recurrent
    return h.NH * h.distances() * (h.bias_step ? N : 1);
}

void lay_out_activations(Layout& at, Gpt& g) {
    const Config& c = g.c;
    const int64_t N = g.plan.max_tokens();
    at.purpose(c.in_encoder ? "encoder's activations" : "activations");
    g.a.assign(size_t(c.L), {});
    const bool own = g.op.has_input_type();
    lay_out_rows(at, g, N, [&](const Config& config, int l) {
        const bool more = config.gates_shared_expert(l) || config.adapter.rank(Adapter::fc) ||
                          config.adapter.rank(Adapter::fc2);
        const bool fused = fuses_gelu(g.op, config.activation, config.gated, more, {});
        return activation_rows(config, l, !fused || g.op.linear_gelu_backward);
    });
    lay_out_rows(at, g, N, [&](const Config& config, int l) { return input_rows(config, l, own); });
    lay_out_rows(at, g, N, statistic_rows);
    auto as_input = [](Activation* x) { return reinterpret_cast<Input*>(x); };    // only where both types are equal
    for (Activations& a : g.a) {
        if (!c.pre_norm() && !own) {
            a.ln1 = as_input(a.x);
            a.lnc = as_input(a.x2);
            a.ln2 = as_input(a.x3);
        }
        if (!c.first_norm && !own && &a == &g.a[0]) a.ln1 = as_input(a.x);
        if (c.parallel == Parallel::one) a.ln2 = a.ln1;
    }
    lay_out_routes(at, g, N);
    lay_out_adapters(at, g);
    lay_out_source(at, g);
    at.reserve(g.x_last, N * std::max(c.C, c.embed_width()));
    g.x0 = g.a[0].x;
    if (c.residual_scalars) at.reserve(g.x0, N * c.C);
    g.a[0].in = g.unsmeared = g.x0;
    if (c.backout) at.reserve(g.x_middle, N * c.C);
    if (c.smear) at.reserve(g.unsmeared, N * c.C), at.reserve(g.previous, N * c.C);
    if (c.sum_norm() && !own) g.lnf = as_input(g.x_last);
    else at.reserve(g.lnf, N * c.C);
    for (float** p : {&g.mean_f, &g.rstd_f, &g.losses}) at.reserve(*p, N);
    if (g.plan.weighted) at.reserve(g.position_weights, N), at.reserve(g.term_losses, g.plan.B);
    if (c.norm == NormKind::rms) g.mean_f = nullptr;
    if (c.embed_norm) {
        at.reserve(g.embedded, N * c.embed_width());
        at.reserve(g.embedded_normed, N * c.embed_size);
        for (float** p : {&g.mean_e, &g.rstd_e}) at.reserve(*p, N);
        if (c.norm == NormKind::rms) g.mean_e = nullptr;
    }
    at.reserve(g.cos_sin[0], cos_sin_bytes(c, g.plan.S) / int64_t(sizeof(float)));
    if (c.position == Position::sinusoidal && g.op.parameter != Element::packed)
        at.reserve(g.sinusoids, int64_t(c.T) * c.C);
    if (c.bias_distance()) at.reserve(g.bias, biases(c, N));
    if (c.position == Position::t5) at.reserve(g.bucket, 2 * RELATIVE_MAX_DISTANCE + 1);
    if (c.linear == LinearAttention::performer) at.reserve(g.features, 2 * int64_t(c.HS) * c.HS);
    for (int** p : {&g.batch.input, &g.batch.staged}) at.reserve(*p, g.batch.ints());
}

void lay_out_activation_gradients(Layout& at, Gpt& g) {
    const Config& c = g.c;
    const int64_t N = g.plan.max_tokens();
    at.purpose(c.in_encoder ? "encoder's activation gradients" : "activation gradients");
    if (g.plan.mode != RunMode::train) return;
    if (g.encoder) at.reserve(g.dcross_kv, g.encoder->plan.max_tokens() * 2 * c.NKV * c.HS);
    at.reserve(g.dx, N * std::max(c.C, c.embed_width()));
    at.reserve(g.dt, N * std::max({c.C, c.attention_width(), c.embed_width()}));
    const int64_t rows = N * c.experts_used, qkv = N * c.qkv_width();
    const int gates = c.heads(0).gates();    // with linear attention, layer 0 has it
    at.reserve(g.dqkv_or_dup,
               std::max({N * c.max_up_width(), round_up(qkv, 64) + N * gates, rows * c.expert_up_width()}));
    if (c.gated) at.reserve(g.dactivated, std::max(N * c.max_up_width() / 2, rows * c.expert_ffn));
    else g.dactivated = g.dqkv_or_dup;
    if (c.experts) {
        at.reserve(g.dgathered, rows * c.C);
        at.reserve(g.dfactors, rows);
        at.reserve(g.drouter_logits, N * c.experts);
        at.reserve(g.dshared_gate, N);
    }
    if (c.bias_distance()) at.reserve(g.dbias, biases(c, N));
    if (c.post_norm() || c.branch_scale != 1 || g.plan.dropout > 0 || gates || c.global_projections)
        at.reserve(g.dbranch, N * c.C);
    if (c.parallel != Parallel::none) at.reserve(g.dffn, N * c.C);
    if (c.residual_scalars) at.reserve(g.dx0, N * c.C);
    if (c.backout) at.reserve(g.dx_middle, N * c.C);
    const auto is_trained_table = [](const Tensor& t) { return t.lookup && t.bucket > 0 && !t.frozen; };
    if (std::ranges::any_of(config_tensors(c), is_trained_table)) at.reserve(g.dvalues, N * c.NKV * c.HS);
}

void lay_out_logits(Layout& at, Gpt& g) {
    const int64_t N = g.plan.max_tokens();
    at.purpose("logits");
    // A chunk of logits has at most logits_bytes (layers/ops.h) and at most half of all rows. But
    // it has at least 64 rows, because products of fewer rows are slow.
    const bool next = g.c.predicts_next();
    const int outputs = std::max(g.c.padded_outputs(), next ? Config::NEXT_PADDED : 0);
    const int H = std::max(g.c.transform == HeadTransform::none ? 0 : g.c.head_width(), next ? g.c.C : 0);
    const int64_t most = std::min(g.op.logits_bytes / g.op.bytes(g.head, std::max(1, outputs)), ceil_div(N, 2));
    g.head_rows = int(std::min(N, round_up(std::max<int64_t>(64, most), 16)));
    const int64_t n = int64_t(g.head_rows) * outputs;
    at.reserve(g.head, n);
    for (Activation** p : {&g.transform_pre, &g.transform_activated}) at.reserve(*p, int64_t(g.head_rows) * H);
    at.reserve(g.transformed, int64_t(g.head_rows) * H);
    for (float** p : {&g.mean_h, &g.rstd_h}) at.reserve(*p, H ? g.head_rows : 0);
    if (g.c.norm == NormKind::rms) g.mean_h = nullptr;
    at.reserve(g.next_losses, next ? N : 0);
    for (Activation** p : {&g.dtransform[0], &g.dtransform[1]})
        at.reserve(*p, g.plan.mode == RunMode::train ? int64_t(g.head_rows) * H : 0);
    if (g.plan.mode == RunMode::train && g.op.has_input_type()) at.reserve(g.dhead, n);
    else g.dhead = reinterpret_cast<Input*>(g.head);    // equal types, or no training
    if (!g.c.pools_mean()) return;
    at.reserve(g.pool_qkv, 3 * N * g.c.C);
    at.reserve(g.pooled, N * g.c.C);
    at.reserve(g.pool_lse, N * g.c.NH);
    if (!copies_values(g.op)) at.reserve(g.pool_values, 3 * int64_t(g.c.C) * g.c.C);
}

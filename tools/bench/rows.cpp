// rows.cpp - times single operations at a model's sizes.
#include "rows.h"

#include "base/table.h"
#include "layers/cpu.h"

void Rows::memory_bound() {
    const int C = c.C, F = c.F;
    const int64_t wide = int64_t(N) * F;
    auto x = arrays<Activation>(2 * wide), y = arrays<Activation>(2 * wide), z = arrays<Activation>(wide);
    auto in = arrays<Input>(wide);
    auto w = arrays<Parameter>(C), b = arrays<Parameter>(C);
    auto dw = arrays<Gradient>(C), db = arrays<Gradient>(C);
    auto mean = arrays<float>(N), rstd = arrays<float>(N);
    auto wte = arrays<Parameter>(int64_t(c.Vp()) * C), wpe = arrays<Parameter>(int64_t(c.T) * C);
    auto dwte = arrays<Gradient>(int64_t(c.Vp()) * C), dwpe = arrays<Gradient>(int64_t(c.T) * C);
    auto tok = ids(N, c.V);
    if (!z[0] || !in[0] || !dwpe[0] || !tok[0]) return bench.short_of_memory("memory-bound operations");
    const int* from_0 = nullptr;
    ROW(embedding_forward, "", y[i], tok[i], wte[i], wpe[i], B, S, C, from_0);
    ROW(embedding_backward, "", dwte[i], dwpe[i], x[i], tok[i], B, S, C, c.V, from_0);
    const Norm layer, rms = {true};
    const Parameter* no_b = nullptr;
    Gradient* no_db = nullptr;
    float* no_mean = nullptr;
    ROW(norm_forward, ", layer", in[i], mean[i], rstd[i], x[i], w[i], b[i], layer, N, C);
    ROW(stream_norm_forward, ", layer", y[i], mean[i], rstd[i], x[i], w[i], b[i], layer, N, C);
    ROW(norm_backward, ", layer", y[i], dw[i], db[i], z[i], x[i], w[i], mean[i], rstd[i], layer, N, C);
    ROW(norm_forward, ", rms", in[i], no_mean, rstd[i], x[i], w[i], no_b, rms, N, C);
    ROW(norm_backward, ", rms", y[i], dw[i], no_db, z[i], x[i], w[i], no_mean, rstd[i], rms, N, C);
    ROW(add_scaled, "", y[i], x[i], z[i], 0.5f, int64_t(N) * C, Dropout());
    ROW(add_scaled, ", dropout", y[i], x[i], z[i], 0.5f, int64_t(N) * C, Dropout{0.1f, 1});
    for (auto [name, act, gated] : {std::tuple{", gelu_tanh", Act::gelu_tanh, false},
                                    {", gelu", Act::gelu, false},
                                    {", relu2", Act::relu2, false},
                                    {", silu gated", Act::silu, true},
                                    {", gelu_tanh gated", Act::gelu_tanh, true}}) {
        ROW(activation_forward, name, in[i], x[i], act, gated, N, F);
        ROW(activation_backward, name, y[i], z[i], x[i], act, gated, N, F);
    }
    ROW(copy, "", y[i], x[i], op.bytes(x[i], wide));
    free_all();
}

// Times the shortcuts around blocks, of models that have them.
void Rows::shortcuts() {
    const int C = c.C, KV = c.NKV * c.HS;
    const int64_t n = int64_t(N) * C;
    auto x = arrays<Activation>(n), y = arrays<Activation>(n), z = arrays<Activation>(n);
    auto factors = arrays<Parameter>(c.L), w = arrays<Parameter>(smear_channels(C));
    auto dfactors = arrays<Gradient>(c.L), dfactors0 = arrays<Gradient>(c.L), dw = arrays<Gradient>(smear_channels(C));
    if (!z[0] || !dw[0]) return bench.short_of_memory("shortcuts");
    const Activation* no_previous = nullptr;
    const int* from_0 = nullptr;
    if (c.residual_scalars) {
        ROW(residual_mix_forward, "", y[i], x[i], z[i], factors[i], factors[i], 0, 1.0f, n);
        ROW(residual_mix_backward, "", y[i], z[i], dfactors[i], dfactors0[i], x[i], x[i], factors[i], factors[i], 0,
            1.0f, n);
    }
    if (c.smear) {
        ROW(smear_forward, "", y[i], x[i], no_previous, w[i], factors[i], 1, N, C, from_0);
        ROW(smear_backward, "", y[i], dw[i], dfactors[i], z[i], x[i], w[i], factors[i], 1, N, C, from_0);
    }
    if (c.value_embeddings) {
        auto qkv = arrays<Activation>(int64_t(N) * h.qkv_width()), dvalues = arrays<Activation>(int64_t(N) * KV);
        auto in = arrays<Input>(n);
        auto table = arrays<Parameter>(int64_t(c.V) * KV), gate_w = arrays<Parameter>(c.NKV * value_gate_channels(C));
        auto dgate_w = arrays<Gradient>(c.NKV * value_gate_channels(C));
        auto tok = ids(N, c.V);
        if (!table[0] || !tok[0]) return bench.short_of_memory("value_embedding");
        ROW(value_embedding_forward, "", qkv[i], in[i], table[i], gate_w[i], tok[i], N, C, h);
        ROW(value_embedding_backward, "", y[i], dvalues[i], dgate_w[i], qkv[i], in[i], table[i], gate_w[i], tok[i], N,
            C, h);
    }
    free_all();
}

// Times RoPE of all dimensions of a head, even if the model rotates only some.
void Rows::rope() {
    const int64_t wide = int64_t(N) * h.qkv_width(), sums = int64_t(N) * (h.NH + h.NKV);
    auto x = arrays<Activation>(wide), y = arrays<Activation>(wide);
    auto w = arrays<Parameter>(h.HS);
    auto dqw = arrays<Gradient>(h.HS), dkw = arrays<Gradient>(h.HS);
    auto cos_sin = arrays<float>(int64_t(S) * h.HS), rstd = arrays<float>(sums);
    if (!y[0] || !rstd[0]) return bench.short_of_memory("rope");
    const int dims = h.HS / 2 * 2;
    const QkNormRope plain = {dims}, normed = {dims, false, QkNormRope::QkNorm::head}, pairs = {dims, true};
    const int* from_0 = nullptr;
    const Activation* no_x = nullptr;
    ROW(rope_forward, "", y[i], rstd[i], y[i], w[i], w[i], cos_sin[i], B, S, from_0, h, plain);
    ROW(rope_backward, "", y[i], dqw[i], dkw[i], no_x, w[i], w[i], cos_sin[i], rstd[i], B, S, h, plain);
    ROW(rope_forward, ", interleaved", y[i], rstd[i], y[i], w[i], w[i], cos_sin[i], B, S, from_0, h, pairs);
    ROW(rope_forward, ", QK-norm", y[i], rstd[i], x[i], w[i], w[i], cos_sin[i], B, S, from_0, h, normed);
    ROW(rope_backward, ", QK-norm", y[i], dqw[i], dkw[i], x[i], w[i], w[i], cos_sin[i], rstd[i], B, S, h, normed);
    free_all();
}

void Rows::head_and_update() {
    const int rows = head_rows();
    const int64_t n = int64_t(32) << 20;
    {
        auto logits = arrays<Activation>(int64_t(rows) * c.Vp());
        auto other = arrays<Input>(int64_t(rows) * c.Vp());
        auto loss = arrays<float>(rows);
        auto target = ids(rows, c.V);
        if (!other[0] || !target[0]) return bench.short_of_memory("cross_entropy");
        ROW(cross_entropy, ", " + std::to_string(rows) + " rows", loss[i], other[i], logits[i], target[i], nullptr,
            1e-3f, LossPenalties{}, c.logits_of(), rows, c.V, c.Vp());
        free_all();
    }
    const bool norm = bench.wanted("sum_of_squares, 32M"), update = bench.wanted("update_weights, adamw 32M, 8 bits");
    if (!norm && !update && !bench.wanted("orthogonalize")) return;    // their buffers are large
    auto w = arrays<Parameter>(n);
    auto master = arrays<float>(op.parameter == Element::bf16 ? n : 1), m = arrays<float>(n), v = arrays<float>(n, 0);
    auto model = arrays<Gradient>(n);
    auto groups = arrays<float>(n / 64 / 4);
    auto square = arrays<float>(2), step = arrays<float>(int64_t(sizeof(Step)) / 4);
    if (!model[0] || !step[0]) return bench.short_of_memory("update_weights");
    const Step one = {1, 1, 1, 1, 10, 20, 0};
    for (float* s : step) op.upload(s, &one, int64_t(sizeof one));
    const OptimizerParams a = {1e-4f, 0.9f, 0.95f, 1e-8f, 0.1f};
    ROW(sum_of_squares, ", 32M", reinterpret_cast<double*>(square[i]), model[i], n);
    ROW(update_weights, ", adamw 32M", w[i], op.parameter == Element::bf16 ? master[i] : nullptr, StateArray{m[i]},
        StateArray{v[i]}, model[i], reinterpret_cast<uint8_t*>(groups[i]), n, reinterpret_cast<Step*>(step[i]),
        UpdateRule::adamw, a, 1);
    // The codes lie in the floats' memory, and the scales behind them.
    auto codes = [&](float* p) { return StateArray{p, p + n / 4, Element::uint8}; };
    ROW(update_weights, ", adamw 32M, 8 bits", w[i], op.parameter == Element::bf16 ? master[i] : nullptr, codes(m[i]),
        codes(v[i]), model[i], reinterpret_cast<uint8_t*>(groups[i]), n, reinterpret_cast<Step*>(step[i]),
        UpdateRule::adamw, a, 1);
    free_all();
    const std::string shape = formatted(", %d x %d", c.C, c.F);
    if (!bench.wanted("orthogonalize" + shape)) return;
    auto matrix = arrays<Gradient>(int64_t(c.C) * c.F), work = arrays<Gradient>(orthogonalize_work(c.C, c.F));
    if (!matrix[0] || !work[0]) return bench.short_of_memory("orthogonalize");
    ROW(orthogonalize, shape, matrix[i], work[i], 1.0f, c.C, c.F);
    free_all();
}

// Times sampling on the device, if the backend has that operation.
void Rows::sample() {
    if (!op.sample) return;
    for (int texts : {1, 16}) {
        auto logits = arrays<Activation>(int64_t(texts) * c.Vp());
        auto drawn = ids(texts, c.V);
        auto at = arrays<float>(int64_t(sizeof(SampleState)) / 4 * texts);
        if (!logits[0] || !drawn[0] || !at[0]) return bench.short_of_memory("sample");
        const std::vector<SampleState> places(static_cast<size_t>(texts));
        for (float* a : at) op.upload(a, places.data(), int64_t(sizeof(SampleState)) * texts);
        int* none = nullptr;
        const double* no_bias = nullptr;
        const std::string name = formatted(", %d text%s", texts, texts == 1 ? "" : "s");
        for (auto [how, draw] : {std::pair{"", SampleParams()}, {", top-p 0.9", SampleParams{.top_p = 0.9}}})
            ROW(sample, name + how, drawn[i], none, reinterpret_cast<SampleState*>(at[i]), none, none, logits[i],
                no_bias, draw, c.logits_of(), texts, c.V, c.Vp());
        free_all();
    }
}

// Times the operations of the model's experts. For a model without experts, they are 8 experts, 2
// per token, with the FLOPs of its ffn. Rows are routed randomly.
void Rows::experts() {
    const Router r = c.experts ? c.router_of() : Router{.E = 8, .K = 2};
    const int C = c.C, F = c.experts ? c.expert_ffn : std::max(1, c.F / r.K), slots = N * r.K;
    auto x = arrays<Activation>(int64_t(N) * C), y = arrays<Activation>(int64_t(N) * C);
    auto to_gather = arrays<Input>(int64_t(N) * C), gathered = arrays<Input>(int64_t(slots) * C);
    auto in = arrays<Activation>(int64_t(slots) * C), out = arrays<Activation>(int64_t(slots) * F);
    auto logits = arrays<Activation>(int64_t(N) * r.E), dlogits = arrays<Activation>(int64_t(N) * r.E);
    auto w = arrays<Parameter>(int64_t(r.E) * F * C, 0.05f);
    auto dw = arrays<Gradient>(int64_t(r.E) * F * C);
    auto factors = arrays<Gradient>(slots), dfactors = arrays<Gradient>(slots);
    auto expert = ids(slots, 1), permuted_row = ids(slots, 1), rows = ids(slots, 1), counts = ids(B * r.E, 1);
    auto offsets = ids(r.E + 1, 1);
    if (!gathered[0] || !in[0] || !dw[0] || !dfactors[0] || !offsets[0]) return bench.short_of_memory("experts");
    auto to = [&](int n) {
        const size_t i = size_t(n);
        return Routes{expert[i], permuted_row[i], rows[i], counts[i], offsets[i]};
    };
    for (int i = 0; i < SETS; i++) op.router_forward(factors[i], to(i), nullptr, logits[i], r, B, S);
    const std::string name = formatted(", %d of %d", r.K, r.E);
    double* no_totals = nullptr;
    ROW(router_forward, name, factors[i], to(i), no_totals, logits[i], r, B, S);
    ROW(router_backward, name, dlogits[i], dfactors[i], to(i), logits[i], r, 0.01f, 0.001f, B, S);
    ROW(experts_gather, name, gathered[i], to_gather[i], to(i), r, N, C);
    ROW(experts_combine, name, y[i], x[i], in[i], factors[i], to(i), r, N, C);
    ROW(experts_combine_backward, name, in[i], dfactors[i], y[i], in[i], factors[i], to(i), r, N, C);
    ROW(experts_forward, name, out[i], gathered[i], w[i], to(i), r, N, C, F);
    ROW(experts_backward, name, in[i], GradTarget<Gradient>(dw[i], false), out[i], gathered[i], w[i], to(i), r, N, C,
        F);
    free_all();
}

// Times a product's forward and backward pass. With `ffn`, products fused with GELU are timed, too.
void Rows::linear(const std::string& name, int rows, int in, int out, bool ffn) {
    const bool head = name == "head";
    const int64_t most = int64_t(rows) * std::max(in, out), weights = int64_t(in) * out;
    auto x = arrays<Input>(most), dlogits = arrays<Input>(head ? most : 1), activated = arrays<Input>(ffn ? most : 1);
    auto y = arrays<Activation>(most), dx = arrays<Activation>(most), pre = arrays<Activation>(ffn ? most : 1);
    auto w = arrays<Parameter>(weights, 0.05f), b = arrays<Parameter>(out);
    auto dw = arrays<Gradient>(weights), db = arrays<Gradient>(out), pre_sum = arrays<Gradient>(in);
    const Parameter* bias = nullptr;
    const Activation* residual = nullptr;
    if (!x[0] || !dlogits[0] || !activated[0] || !pre[0] || !w[0] || !dw[0] || !pre_sum[0]) {
        bench.short_of_memory("linear " + name);
    } else {
        ROW(linear_forward, " " + name, y[i], x[i], w[i], head ? bias : b[i], residual, rows, in, out,
            Precision::normal);
        if (ffn && out > in && op.linear_gelu_forward)
            ROW(linear_gelu_forward, " " + name, activated[i], pre[i], x[i], w[i], b[i], rows, in, out,
                Precision::normal);
        Gradient* no_sums = nullptr;
        if (rows > 1 && head)
            ROW(lm_head_backward, "", dx[i], GradTarget<Gradient>(dw[i], false), no_sums, dlogits[i], x[i], w[i], rows,
                in, out, Precision::normal);
        else if (rows > 1)
            ROW(linear_backward, " " + name, dx[i], GradTarget<Gradient>(dw[i], false), db[i], y[i], x[i], w[i], rows,
                in, out, Precision::normal);
        if (ffn && in > out && rows > 1 && op.linear_gelu_backward)
            ROW(linear_gelu_backward, " " + name, dx[i], GradTarget<Gradient>(dw[i], false), db[i], pre_sum[i], y[i],
                x[i], w[i], pre[i], rows, in, out);
    }
    free_all();
}

void Rows::linear() {
    const int C = c.C, F = c.F, head = head_rows();
    linear("qkv", N, C, h.qkv_width(), false);
    linear("proj", N, h.width(), C, false);
    linear("fc", N, C, F, true);
    linear("fc2", N, F, C, true);
    linear("head", head, C, c.Vp(), false);
    linear("qkv, 1 row", 1, C, h.qkv_width(), false);
    linear("fc, 1 row", 1, C, F, true);
    linear("head, 1 row", 1, C, c.Vp(), false);
}

namespace {
void print_head(const Bench& bench, const Config& c, int B, int S) {
    const Peaks& peak = bench.peak;
    const std::string arithmetic =
        peak.flops != peak.products ? formatted("%.0f GFLOP/s of other arithmetic, ", peak.flops / 1e9) : "";
    printf(
        "%s\nceilings measured now: %.0f GFLOP/s of products%s, %s%.1f GB/s of memory\n%s"
        "B=%d S=%d C=%d NH=%d NKV=%d HS=%d%s\n"
        "of each call: the best and the median time; the rates of the best; the floor, what its FLOPs and bytes "
        "take at these ceilings; floor / best\n\n%s\n",
        bench.device.text.c_str(), peak.products / 1e9, peak.tiles ? " by tiles" : "", arithmetic.c_str(),
        peak.bytes / 1e9,
        bench.device.gpu ? "cuBLASLt's algorithms: the fastest; for generation and prompts the first, as in sample\n"
                         : "",
        B, S, c.C, c.NH, c.NKV, c.HS, c.window ? formatted(" window=%d", c.window).c_str() : "",
        table_line(ROW_WIDTHS, {"", "best us", "median us", "GFLOP/s", "GB/s", "floor us", "ratio"}).c_str());
}
}    // namespace

Status bench_ceilings(Bench& bench, const Config& c, int B, int S) {
    Rows rows(bench, bench.device.model->op, c, B, S);
    // A GPU's bandwidth is measured with copies of 256 MiB (less if memory is short), which read
    // and write. An H200 copies 256 MiB at 4.2 TB/s, but 1 GiB at 2.8 TB/s, because the driver then
    // uses another method (2026-11-27).
    if (bench.device.gpu) {
        const int64_t bytes = std::min<int64_t>(int64_t(1) << 28, rows.op.free_bytes() / 16);
        auto from = rows.arrays<float>(bytes / 4), to = rows.arrays<float>(bytes / 4);
        if (!from[0] || !to[0]) return fail(Exit::device, "out of memory");
        auto times = rows.time([&](int i) { rows.op.copy(to[i], from[i], bytes); });
        bench.peak.bytes = 2 * double(bytes) / *std::min_element(times.begin(), times.end());
        rows.free_all();
    }
    if (!bench.o.json) print_head(bench, c, B, S);
    return {};
}

Status bench_operations(Bench& bench, const Config& c, int B, int S) {
    Rows rows(bench, bench.device.model->op, c, B, S);
    typedef void (Rows::*Group)();
    static constexpr Group GROUPS[] = {&Rows::memory_bound,
                                       &Rows::shortcuts,
                                       &Rows::rope,
                                       &Rows::head_and_update,
                                       &Rows::sample,
                                       &Rows::attention,
                                       &Rows::biases,
                                       &Rows::relative_keys,
                                       &Rows::cross_attention,
                                       &Rows::recurrences,
                                       static_cast<Group>(&Rows::linear),
                                       &Rows::experts};
    // A group's buffers take gigabytes. A first pass, without buffers, tests whether --filter
    // matches one of the group's rows.
    for (Group group : GROUPS) {
        bool any = false;
        {
            const CostTable counts(rows.op);
            Rows names(bench, counts.table, c, B, S);
            names.any = &any;
            (names.*group)();
        }
        if (any) (rows.*group)();
    }
    return {};
}

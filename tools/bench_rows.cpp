// bench_rows.cpp - each operation by itself, at a model's sizes.
//
// On the CPU all buffers are flushed from the caches before each repetition. Output may still be in a cache when the
// clock stops, so an operation that adds to its output can be a little above 100 % of its floor. On a GPU a recorded
// graph of calls cycles through several sets of buffers, more than its L2 holds.
#include <array>
#include <optional>
#include <tuple>

#include "bench.h"
#include "base/console.h"
#include "gpt.h"
#include "layers/cpu.h"

namespace {
constexpr int SETS = 4;    // sets of buffers

template <class P> std::optional<Table> library_table() {
    const Ops<float, P>* op = onednn_ops<P>(cpu_isa());
    return op ? std::optional<Table>(*op) : std::nullopt;
}

struct Rows {
    Bench& bench;
    const Table& op;
    const Config c;
    const int B, S, N;
    const Heads h;
    std::vector<std::pair<void*, int64_t>> held;

    Rows(Bench& bench, const Table& op, const Config& c, int B, int S)
        : bench(bench), op(op), c(c), B(B), S(S), N(B * S), h(c.heads(0)) {}
    ~Rows() { free_all(); }

    template <class X> X* allocate(int64_t bytes) {    // until free_all; null: not enough memory
        void* p = op.allocate(bytes);
        if (p) held.push_back({p, bytes});
        return static_cast<X*>(p);
    }
    // SETS arrays of n random numbers; null: not enough memory.
    template <class X> std::array<X*, SETS> arrays(int64_t n, float scale = 1) {
        std::array<X*, SETS> sets{};
        const int64_t CHUNK = 1 << 16;
        std::vector<float> host(CHUNK);
        for (int64_t i = 0; i < CHUNK; i++) host[size_t(i)] = scale * philox_normal(4, held.size(), uint64_t(i));
        for (X*& p : sets) {
            if (!bench.device.gpu && p != sets[0]) {    // flushed instead
                p = sets[0];
                continue;
            }
            p = allocate<X>(op.bytes(p, n));
            if (!p) return {};
            std::vector<char> some(size_t(op.bytes(p, CHUNK)));
            from_floats(some.data(), op.element(p), host.data(), CHUNK);
            for (int64_t i = 0; i < n; i += CHUNK)
                op.upload(op.at(p, i), some.data(), op.bytes(p, std::min(CHUNK, n - i)));
        }
        return sets;
    }
    std::array<int*, SETS> ids(int64_t n, int V) {
        std::array<int*, SETS> sets{};
        std::vector<int> host(static_cast<size_t>(n));
        for (int64_t i = 0; i < n; i++) host[size_t(i)] = int(philox(5, 1, uint64_t(i)).v[0] % uint32_t(V));
        for (int*& p : sets) {
            p = allocate<int>(n * 4);
            if (!p) return {};
            op.upload(p, host.data(), n * 4);
        }
        return sets;
    }
    int head_rows() const {    // a model takes half of its rows at most
        return int(std::min<int64_t>(N, op.logits_bytes / (element_bytes(op.activation) * c.Vp())));
    }
    void free_all() {
        for (auto [p, bytes] : held) op.release(p, bytes);
        held.clear();
    }

    template <class Run> std::vector<double> time(Run run) {
        std::vector<double> times;
        for (int i = 0; i < SETS; i++) run(i);
        op.wait(op.mark());
        if (!op.record) {
            for (double spent = 0; times.size() < 3 || (times.size() < 15 && spent < 0.25); spent += times.back()) {
                for (auto [p, bytes] : held) cpu_flush(p, bytes);
                const double start = now_seconds();
                run(0);
                times.push_back(now_seconds() - start);
            }
            return times;
        }
        const double once = now_seconds();
        run(0);
        op.wait(op.mark());
        const int calls = std::clamp(int(2e-3 / std::max(1e-6, now_seconds() - once)), 1, 50) * SETS;
        op.record();
        for (int i = 0; i < calls; i++) run(i % SETS);
        void* graph = op.recorded();
        for (int r = 0; r < 11; r++) {
            const double start = now_seconds();
            op.replay(graph);
            op.wait(op.mark());
            if (r) times.push_back((now_seconds() - start) / calls);    // the first warms up
        }
        op.release_graph(graph);
        return times;
    }
    // entry: of a table. args(i): the arguments of a call with the i-th set of buffers
    template <auto entry, auto counts, class Args>
    void row(const std::string& name, const Table& from, Args args) {
        if (!bench.wanted(name)) return;
        const WorkOf work(op, [this](void* to, const void* from, int64_t bytes) {
            op.download(to, from, bytes);
            return true;
        });
        const Work w = std::apply([&](auto... a) { return (work.*counts)(a...); }, args(0));
        const Peaks& peak = &from == &op ? bench.peak : cpu_peaks(from);    // it may multiply by other instructions
        bench.print(name, time([&](int i) { std::apply(from.*entry, args(i)); }), w, peak.floor(w));
    }

    void memory_bound();
    void rope();
    void biases();
    void experts();
    void head_and_update();
    std::vector<std::pair<std::string, Heads>> masks();
    void attention();
    void cached(int rows, Element type, const std::string& name);
    void linear();
    void linear(const std::string& name, int rows, int in, int out, bool ffn);
    void linear_calls(const std::string& name, const Table& from, int rows, int in, int out, bool ffn);
};

// A row: the entry's name, the row's name, its table and, for the i-th set of buffers, its arguments.
#define ROW_FROM(table, entry, detail, ...)                                                                    \
    row<&Table::entry, &WorkOf::entry>(std::string(#entry) + (detail), table, [&](int i) {                     \
        return std::tuple(__VA_ARGS__);                                                                        \
    })
#define ROW(entry, detail, ...) ROW_FROM(op, entry, detail, __VA_ARGS__)

void Rows::memory_bound() {
    const int C = c.C, F = c.F;
    const int64_t wide = int64_t(N) * F;
    auto x = arrays<Activation>(2 * wide), y = arrays<Activation>(2 * wide), z = arrays<Activation>(wide);
    auto w = arrays<Parameter>(C), b = arrays<Parameter>(C);
    auto dw = arrays<Gradient>(C), db = arrays<Gradient>(C);
    auto mean = arrays<float>(N), rstd = arrays<float>(N);
    auto wte = arrays<Parameter>(int64_t(c.Vp()) * C), wpe = arrays<Parameter>(int64_t(c.T) * C);
    auto dwte = arrays<Gradient>(int64_t(c.Vp()) * C), dwpe = arrays<Gradient>(int64_t(c.T) * C);
    auto tok = ids(N, c.V);
    if (!z[0] || !dwpe[0] || !tok[0]) return bench.short_of_memory("memory-bound operations");
    const int* from_0 = nullptr;
    ROW(embedding_forward, "", y[i], tok[i], wte[i], wpe[i], B, S, C, from_0);
    ROW(embedding_backward, "", dwte[i], dwpe[i], x[i], tok[i], B, S, C, c.V);
    const Norm layer, rms = {true};
    const Parameter* no_b = nullptr;
    Gradient* no_db = nullptr;
    float* no_mean = nullptr;
    ROW(norm_forward, ", layer", y[i], mean[i], rstd[i], x[i], w[i], b[i], layer, N, C);
    ROW(norm_backward, ", layer", y[i], dw[i], db[i], z[i], x[i], w[i], mean[i], rstd[i], layer, N, C);
    ROW(norm_forward, ", rms", y[i], no_mean, rstd[i], x[i], w[i], no_b, rms, N, C);
    ROW(norm_backward, ", rms", y[i], dw[i], no_db, z[i], x[i], w[i], no_mean, rstd[i], rms, N, C);
    ROW(add_scaled, "", y[i], x[i], z[i], 0.5f, int64_t(N) * C, Dropout());
    ROW(add_scaled, ", dropout", y[i], x[i], z[i], 0.5f, int64_t(N) * C, Dropout{0.1f, 1});
    for (auto [name, act, gated] : {std::tuple{", gelu_tanh", Act::gelu_tanh, false}, {", gelu", Act::gelu, false},
                                    {", relu2", Act::relu2, false}, {", silu gated", Act::silu, true},
                                    {", gelu_tanh gated", Act::gelu_tanh, true}}) {
        ROW(activation_forward, name, y[i], x[i], act, gated, N, F);
        ROW(activation_backward, name, y[i], z[i], x[i], act, gated, N, F);
    }
    ROW(copy, "", y[i], x[i], op.bytes(x[i], wide));
    free_all();
}

// Whole heads turn.
void Rows::rope() {
    const int64_t wide = int64_t(N) * h.qkv_width(), sums = int64_t(N) * (h.NH + h.NKV);
    auto x = arrays<Activation>(wide), y = arrays<Activation>(wide);
    auto w = arrays<Parameter>(h.HS);
    auto dqw = arrays<Gradient>(h.HS), dkw = arrays<Gradient>(h.HS);
    auto turns = arrays<float>(int64_t(S) * h.HS), rstd = arrays<float>(sums);
    if (!y[0] || !rstd[0]) return bench.short_of_memory("rope");
    const int dims = h.HS / 2 * 2;
    const Turn plain = {dims}, normed = {dims, false, Turn::Normed::head}, pairs = {dims, true};
    const int* from_0 = nullptr;
    const Activation* no_x = nullptr;
    ROW(rope_forward, "", y[i], rstd[i], y[i], w[i], w[i], turns[i], B, S, from_0, h, plain);
    ROW(rope_backward, "", y[i], dqw[i], dkw[i], no_x, w[i], w[i], turns[i], rstd[i], B, S, h, plain);
    ROW(rope_forward, ", interleaved", y[i], rstd[i], y[i], w[i], w[i], turns[i], B, S, from_0, h, pairs);
    ROW(rope_forward, ", QK-norm", y[i], rstd[i], x[i], w[i], w[i], turns[i], B, S, from_0, h, normed);
    ROW(rope_backward, ", QK-norm", y[i], dqw[i], dkw[i], x[i], w[i], w[i], turns[i], rstd[i], B, S, h, normed);
    free_all();
}

void Rows::head_and_update() {
    const int rows = head_rows();
    const int64_t n = int64_t(32) << 20;
    {
        auto logits = arrays<Activation>(int64_t(rows) * c.Vp()), other = arrays<Activation>(int64_t(rows) * c.Vp());
        auto loss = arrays<float>(rows);
        auto target = ids(rows, c.V);
        if (!other[0] || !target[0]) return bench.short_of_memory("cross_entropy");
        ROW(cross_entropy, ", " + std::to_string(rows) + " rows", loss[i], other[i], logits[i], target[i], 1e-3f,
            c.logits_of(), rows, c.V, c.Vp());
        free_all();
    }
    const bool norm = bench.wanted("sum_of_squares, 32M"), update = bench.wanted("adamw, 32M");
    if (!norm && !update) return;    // their buffers are large
    auto w = arrays<Parameter>(n);
    auto master = arrays<float>(op.parameter == Element::bf16 ? n : 1), m = arrays<float>(n), v = arrays<float>(n, 0);
    auto g = arrays<Gradient>(n);
    auto decays = arrays<float>(n / 64 / 4);
    auto square = arrays<float>(2), step = arrays<float>(int64_t(sizeof(Step)) / 4);
    if (!g[0] || !step[0]) return bench.short_of_memory("adamw");
    const Step one = {1, 1, 1, 1, 10, 20, 0};
    for (float* s : step) op.upload(s, &one, int64_t(sizeof one));
    const AdamW a = {1e-4f, 0.9f, 0.95f, 1e-8f, 0.1f};
    ROW(sum_of_squares, ", 32M", reinterpret_cast<double*>(square[i]), g[i], n);
    ROW(adamw, ", 32M", w[i], op.parameter == Element::bf16 ? master[i] : nullptr, m[i], v[i], g[i],
        reinterpret_cast<uint8_t*>(decays[i]), n, reinterpret_cast<Step*>(step[i]), a, 1);
    free_all();
}

// The model's heads, and others that see fewer or more pairs.
std::vector<std::pair<std::string, Heads>> Rows::masks() {
    std::vector<std::pair<std::string, Heads>> all = {{"", h}};
    auto spans = [&](const char* name, Sees sees, const std::vector<Text>& texts) {
        Spans all_spans;
        for (int b = 0; b < B; b++) all_spans.add(texts, S, sees);
        const int64_t bytes = N * int64_t(sizeof(Span));
        Span* p = allocate<Span>(2 * bytes);
        if (!p) return;
        op.upload(p, all_spans.keys.data(), bytes);
        op.upload(p + N, all_spans.queries.data(), bytes);
        Heads masked = h;
        masked.window = 0, masked.keys = p, masked.queries = p + N;
        all.push_back({name, masked});
    };
    std::vector<Text> documents;
    for (int i = 0; i < std::min(8, S); i++) documents.push_back({int(int64_t(i) * S / std::min(8, S))});
    spans(", 8 documents", Sees::causal, documents);
    spans(", bidirectional", Sees::all, {Text{}});
    spans(", half a prefix", Sees::prefix, {{0, S / 2}});
    all.push_back({", dropout", h});
    all.back().second.dropout = {0.1f, 1};
    Heads window = h;
    window.window = std::max(1, S / 16);
    all.push_back({formatted(", window %d", window.window), window});
    window.stride = 64, window.globals = 4;
    all.push_back({formatted(", window %d, stride 64, 4 global", window.window), window});
    return all;
}

void Rows::attention() {
    const int64_t wide = int64_t(N) * h.qkv_width(), narrow = int64_t(N) * h.width();
    auto qkv = arrays<Activation>(wide), dqkv = arrays<Activation>(wide);
    auto y = arrays<Activation>(narrow), dy = arrays<Activation>(narrow);
    auto lse = arrays<float>(int64_t(N) * h.NH, 4);
    if (!dqkv[0] || !lse[0]) return bench.short_of_memory("attention");
    for (const auto& [name, heads] : masks()) {
        ROW(attention_forward, name, y[i], lse[i], qkv[i], B, S, heads);
        if (!bench.wanted("attention_backward" + name)) continue;
        for (int i = 0; i < SETS; i++) op.attention_forward(y[i], lse[i], qkv[i], B, S, heads);
        ROW(attention_backward, name, dqkv[i], dy[i], y[i], qkv[i], lse[i], B, S, heads);
    }
    free_all();
    for (int rows : {1, 8, 64}) cached(rows, op.activation, "");
    if (op.activation == Element::f32) cached(8, Element::bf16, " in bf16");
    cached(8, Element::fp8, " in fp8");
    cached(8, Element::int8, " in int8");
}

// A token for each of so many sequences, whose caches are full; and all their pages copied, keys turned.
void Rows::cached(int rows, Element type, const std::string& name) {
    const int width = pages_for(c.T), pages = rows * width, keys = h.window ? std::min(h.window, c.T) : c.T;
    const std::string size = ", " + std::to_string(rows) + " x " + std::to_string(keys) + " keys" + name;
    const bool turns_too = rows == 8;
    const bool attends = bench.wanted("attention_cached" + size);
    if (!(turns_too && bench.wanted("cache_turn" + size)) && !attends) return;
    const int all = turns_too ? 2 * pages : pages;
    const int64_t all_rows = int64_t(h.NKV) * all * Pages::SIZE, bytes = all_rows * h.HS * element_bytes(type);
    const Turn turn = {.dims = h.HS / 2 * 2};
    // Zeros of floats are numbers in every type.
    auto k = arrays<float>(bytes / 4 + 1, 0), v = arrays<float>(bytes / 4 + 1, 0);
    auto k_factor = arrays<float>(all_rows), v_factor = arrays<float>(all_rows);
    auto q = arrays<Activation>(int64_t(rows) * h.qkv_width()), o = arrays<Activation>(int64_t(rows) * h.width());
    auto pos = ids(rows, 1), table = ids(pages, 1), copies = ids(2 * pages, 1);
    auto turns = arrays<float>(int64_t(pages) * turn.dims);
    if (!k[0] || !v[0] || !v_factor[0] || !o[0] || !copies[0] || !turns[0])
        return bench.short_of_memory("attention_cached");
    const std::vector<int> last(size_t(rows), c.T - 1);
    std::vector<int> numbers, from_to;
    for (int i = 0; i < pages; i++) numbers.push_back(i), from_to.push_back(pages + i), from_to.push_back(i);
    for (int* p : pos) op.upload(p, last.data(), 4 * rows);
    for (int* t : table) op.upload(t, numbers.data(), 4 * pages);
    for (int* t : copies) op.upload(t, from_to.data(), 8 * pages);
    const bool factors = type == Element::fp8 || type == Element::int8;
    auto cache = [&](int i) {
        return Pages{type, k[size_t(i)], v[size_t(i)], factors ? k_factor[size_t(i)] : nullptr,
                     factors ? v_factor[size_t(i)] : nullptr, all, table[size_t(i)], width};
    };
    ROW(attention_cached, size, o[i], q[i], cache(i), rows, 1, pos[i], h);
    if (turns_too) ROW(cache_turn, size, cache(i), copies[i], pages, turns[i], h, turn);
    free_all();
}

// T5's, whose gradient is an operation of its own.
void Rows::biases() {
    const int64_t wide = int64_t(N) * h.qkv_width(), narrow = int64_t(N) * h.width();
    Heads with = h;
    with.alibi = false, with.softcap = 0, with.reach = RELATIVE_REACH;
    const int64_t numbers = int64_t(h.NH) * (2 * with.reach + 1);
    auto qkv = arrays<Activation>(wide), dqkv = arrays<Activation>(wide);
    auto y = arrays<Activation>(narrow), dy = arrays<Activation>(narrow);
    auto lse = arrays<float>(int64_t(N) * h.NH, 4), bias = arrays<float>(numbers);
    auto dbias = arrays<Gradient>(numbers);
    if (!dqkv[0] || !dbias[0]) return bench.short_of_memory("attention_bias_backward");
    with.bias = bias[0];
    for (int i = 0; i < SETS; i++) op.attention_forward(y[i], lse[i], qkv[i], B, S, with);
    ROW(attention_forward, ", biases", y[i], lse[i], qkv[i], B, S, with);
    ROW(attention_backward, ", biases", dqkv[i], dy[i], y[i], qkv[i], lse[i], B, S, with);
    ROW(attention_bias_backward, "", dbias[i], dy[i], y[i], qkv[i], lse[i], B, S, with);
    free_all();
}

// The model's experts, or 8 of which 2 are used, with as many FLOPs as the ffn has. Rows choose at random.
void Rows::experts() {
    const Router r = c.experts ? c.router_of() : Router{.E = 8, .K = 2};
    const int C = c.C, F = c.experts ? c.expert_ffn : std::max(1, c.F / r.K), slots = N * r.K;
    auto x = arrays<Activation>(int64_t(N) * C), y = arrays<Activation>(int64_t(N) * C);
    auto in = arrays<Activation>(int64_t(slots) * C), out = arrays<Activation>(int64_t(slots) * F);
    auto logits = arrays<Activation>(int64_t(N) * r.E), dlogits = arrays<Activation>(int64_t(N) * r.E);
    auto w = arrays<Parameter>(int64_t(r.E) * F * C, 0.05f);
    auto dw = arrays<Gradient>(int64_t(r.E) * F * C);
    auto weight = arrays<Gradient>(slots), dweight = arrays<Gradient>(slots);
    auto expert = ids(slots, 1), slot = ids(slots, 1), rows = ids(slots, 1), counts = ids(B * r.E, 1);
    auto offsets = ids(r.E + 1, 1);
    if (!in[0] || !dw[0] || !dweight[0] || !offsets[0]) return bench.short_of_memory("experts");
    auto to = [&](int n) {
        const size_t i = size_t(n);
        return Routes{expert[i], slot[i], rows[i], counts[i], offsets[i]};
    };
    for (int i = 0; i < SETS; i++) op.router_forward(weight[i], to(i), nullptr, logits[i], r, B, S);
    const std::string name = formatted(", %d of %d", r.K, r.E);
    double* no_totals = nullptr;
    ROW(router_forward, name, weight[i], to(i), no_totals, logits[i], r, B, S);
    ROW(router_backward, name, dlogits[i], dweight[i], to(i), logits[i], r, 0.01f, 0.001f, B, S);
    ROW(experts_gather, name, in[i], x[i], to(i), r, N, C);
    ROW(experts_combine, name, y[i], x[i], in[i], weight[i], to(i), r, N, C);
    ROW(experts_combine_backward, name, in[i], dweight[i], y[i], in[i], weight[i], to(i), r, N, C);
    ROW(experts_forward, name, out[i], in[i], w[i], to(i), r, N, C, F);
    ROW(experts_backward, name, in[i], dw[i], out[i], in[i], w[i], to(i), r, N, C, F);
    free_all();
}

// The entries of one table. ffn: also those with GELU in them.
void Rows::linear_calls(const std::string& name, const Table& from, int rows, int in, int out, bool ffn) {
    const int64_t most = int64_t(rows) * std::max(in, out), weights = int64_t(in) * out;
    auto x = arrays<Activation>(most), y = arrays<Activation>(most), dx = arrays<Activation>(most);
    auto pre = arrays<Activation>(ffn ? most : 1);
    auto w = arrays<Parameter>(weights, 0.05f), b = arrays<Parameter>(out);
    auto dw = arrays<Gradient>(weights), db = arrays<Gradient>(out), pre_sum = arrays<Gradient>(in);
    const Parameter* bias = nullptr;
    const Activation* residual = nullptr;
    if (!x[0] || !w[0] || !dw[0] || !pre_sum[0]) {
        bench.short_of_memory("linear " + name);
    } else {
        ROW_FROM(from, linear_forward, " " + name, y[i], x[i], w[i], name == "head" ? bias : b[i], residual, rows, in,
                 out);
        if (ffn && out > in && from.linear_gelu_forward)
            ROW_FROM(from, linear_gelu_forward, " " + name, y[i], pre[i], x[i], w[i], b[i], rows, in, out);
        if (rows > 1)
            ROW_FROM(from, linear_backward, " " + name, dx[i], dw[i], name == "head" ? nullptr : db[i], y[i], x[i],
                     w[i], rows, in, out);
        if (ffn && in > out && rows > 1 && from.linear_gelu_backward)
            ROW_FROM(from, linear_gelu_backward, " " + name, dx[i], dw[i], db[i], pre_sum[i], y[i], x[i], w[i],
                     pre[i], rows, in, out);
    }
    free_all();
}

// On the CPU the other table's products follow: a library's, if there is one, or ours, if the library's are in use.
// The library chooses its own instruction set, whatever FLATGPT_ISA says.
void Rows::linear(const std::string& name, int rows, int in, int out, bool ffn) {
    linear_calls(name, op, rows, in, out, ffn);
    if (bench.device.gpu || rows <= GEMV_ROWS) return;
    const bool half = op.parameter == Element::bf16;
    const Table own = cpu_table(half);
    if (op.linear_forward != own.linear_forward) return linear_calls(name + ", our own", own, rows, in, out, ffn);
    const std::optional<Table> library = half ? library_table<bf16>() : library_table<float>();
    if (library) linear_calls(name + ", oneDNN", *library, rows, in, out, ffn);
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

void print_head(const Bench& bench, const Config& c, int B, int S) {
    const Peaks& peak = bench.peak;
    const std::string arithmetic =
        peak.flops != peak.products ? formatted("%.0f GFLOP/s of other arithmetic, ", peak.flops / 1e9) : "";
    printf("%s\nceilings measured now: %.0f GFLOP/s of products%s, %s%.1f GB/s of memory\n"
           "B=%d S=%d C=%d NH=%d NKV=%d HS=%d%s\n\n%-46s %10s %10s %10s %8s %10s   ratio\n",
           bench.device.text.c_str(), peak.products / 1e9, peak.tiles ? " by tiles" : "", arithmetic.c_str(),
           peak.bytes / 1e9, B, S, c.C, c.NH, c.NKV, c.HS,
           c.window ? formatted(" window=%d", c.window).c_str() : "", "", "best us", "median us", "GFLOP/s", "GB/s",
           "floor us");
}
}    // namespace

Status bench_operations(Bench& bench, const Config& c, int B, int S) {
    Rows rows(bench, bench.device.model->op, c, B, S);
    if (bench.device.gpu) {    // the ceiling: a copy of 1 GiB (less where memory is short), read and written
        const int64_t bytes = std::min<int64_t>(int64_t(1) << 30, rows.op.free_bytes() / 16);
        auto from = rows.arrays<float>(bytes / 4), to = rows.arrays<float>(bytes / 4);
        if (!from[0] || !to[0]) return fail(Exit::device, "out of memory");
        auto times = rows.time([&](int i) { rows.op.copy(to[i], from[i], bytes); });
        bench.peak.bytes = 2 * double(bytes) / *std::min_element(times.begin(), times.end());
        rows.free_all();
    }
    if (!bench.o.json) print_head(bench, c, B, S);
    if (bench.o.steps_only) return {};
    rows.memory_bound();
    rows.rope();
    rows.head_and_update();
    rows.attention();
    rows.biases();
    rows.linear();
    rows.experts();
    return {};
}

// bench.cpp - `flatgpt bench`: each operation, training steps and generation on a device: measured, floor, ratio.
//
// The floor of a row is what its FLOPs and bytes cost at the ceilings measured first, in this run. On the CPU inputs
// are evicted from the caches before each repetition; on a GPU a recorded graph of calls goes round several sets of
// buffers, more than its L2 holds. Best and median are both shown: on a machine with other work the best is the figure,
// and the distance says how much to trust it.
#include "bench.h"

#include <algorithm>
#include <array>
#include <memory>

#include "console.h"
#include "data/json.h"

void Bench::print(const std::string& name, std::vector<double> times, double floor, double flops, double bytes,
                  double ratio) const {
    std::sort(times.begin(), times.end());
    const double best = times[0], median = times[times.size() / 2];
    const double gflops = flops / best / 1e9, gbytes = bytes / best / 1e9;
    if (ratio == 0) ratio = floor / best;
    if (o.json) {
        printf("{\"name\":%s,\"device\":%s,\"best_us\":%s,\"median_us\":%s,\"floor_us\":%s,\"ratio\":%s",
               json_string(name).c_str(), json_string(device.text).c_str(), json_number(best * 1e6).c_str(),
               json_number(median * 1e6).c_str(), json_number(floor * 1e6).c_str(),
               json_number(ratio).c_str());
        if (flops > 0) printf(",\"GFLOP/s\":%s", json_number(gflops).c_str());
        if (bytes > 0) printf(",\"GB/s\":%s", json_number(gbytes).c_str());
        printf("}\n");
    } else {
        char rates[2][24] = {"", ""};
        if (flops > 0) snprintf(rates[0], sizeof rates[0], "%.1f", gflops);
        if (bytes > 0) snprintf(rates[1], sizeof rates[1], "%.1f", gbytes);
        printf("%-46s %10.1f %10.1f %10s %8s %10.1f %5.0f %%\n", name.c_str(), best * 1e6, median * 1e6, rates[0],
               rates[1], floor * 1e6, ratio * 100);
    }
    fflush(stdout);
}
void Bench::short_of_memory(const std::string& what) const {
    fprintf(stderr, "flatgpt bench: %s: not enough memory, left out\n", what.c_str());
}

namespace {
// ---- operations ----------------------------------------------------------------------------------------------------

constexpr int SETS = 4;    // of buffers

template <class T, class P> struct Rows {
    Bench& bench;
    const Ops<T, P>& op;
    const Config c;
    const int B, S, N;
    const Heads h;
    std::vector<std::pair<void*, int64_t>> held;

    Rows(Bench& bench, const Ops<T, P>& op, const Config& c, int B, int S)
        : bench(bench), op(op), c(c), B(B), S(S), N(B * S), h(c.heads()) {}
    ~Rows() {
        for (auto [p, bytes] : held) op.release(p, bytes);
    }

    // SETS arrays of n random numbers; null where memory ends.
    template <class X> std::array<X*, SETS> arrays(int64_t n, float scale = 1) {
        std::array<X*, SETS> sets{};
        const int64_t CHUNK = 1 << 16;
        std::vector<float> host(CHUNK);
        for (int64_t i = 0; i < CHUNK; i++) host[size_t(i)] = scale * philox_normal(4, held.size(), uint64_t(i));
        for (X*& p : sets) {
            if (!bench.device.gpu && p != sets[0]) {    // evicted instead
                p = sets[0];
                continue;
            }
            const int64_t bytes = n * int64_t(sizeof(X));
            p = static_cast<X*>(op.allocate(bytes));
            if (!p) return {};
            held.push_back({p, bytes});
            std::vector<X> some(CHUNK);
            for (int64_t i = 0; i < CHUNK; i++) some[size_t(i)] = from_float<X>(host[size_t(i)]);
            for (int64_t i = 0; i < n; i += CHUNK)
                op.upload(p + i, some.data(), int64_t(sizeof(X)) * std::min(CHUNK, n - i));
        }
        return sets;
    }
    std::array<int*, SETS> ids(int64_t n, int V) {
        std::array<int*, SETS> sets{};
        std::vector<int> host(static_cast<size_t>(n));
        for (int64_t i = 0; i < n; i++) host[size_t(i)] = int(philox(5, 1, uint64_t(i)).v[0] % uint32_t(V));
        for (int*& p : sets) {
            p = static_cast<int*>(op.allocate(n * 4));
            if (!p) return {};
            held.push_back({p, n * 4});
            op.upload(p, host.data(), n * 4);
        }
        return sets;
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
                (void)cpu_read();
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
    // products: FLOPs at the products' ceiling; flops: at that of other arithmetic
    template <class Run> void row(const std::string& name, double products, double flops, double bytes, Run run) {
        if (!bench.wanted(name)) return;
        const double work = products / bench.peak.products + flops / bench.peak.flops, moved = bytes / bench.peak.bytes;
        bench.print(name, time(run), std::max(work, moved), products + flops, bytes);
    }

    void memory_bound();
    void head_and_update();
    void attention();
    void linear();
};

template <class T, class P> void Rows<T, P>::memory_bound() {
    const int C = c.C, F = c.F;
    const double e = sizeof(T), NC = double(N) * C;
    auto x = arrays<T>(int64_t(N) * F), y = arrays<T>(int64_t(N) * F), z = arrays<T>(int64_t(N) * F);
    auto w = arrays<P>(C), b = arrays<P>(C);
    auto dw = arrays<Grad<P>>(C), db = arrays<Grad<P>>(C);
    auto mean = arrays<float>(N), rstd = arrays<float>(N);
    auto wte = arrays<P>(int64_t(c.Vp()) * C), wpe = arrays<P>(int64_t(c.T) * C);
    auto dwte = arrays<Grad<P>>(int64_t(c.Vp()) * C), dwpe = arrays<Grad<P>>(int64_t(c.T) * C);
    auto tok = ids(N, c.V);
    if (!z[0] || !dwpe[0] || !tok[0]) return bench.short_of_memory("memory-bound operations");
    const int64_t wide = int64_t(N) * F;
    row("embedding_forward", 0, 0, (e + sizeof(P)) * NC,
        [&](int i) { op.embedding_forward(y[i], tok[i], wte[i], wpe[i], B, S, C, nullptr); });
    row("embedding_backward", 0, 0, e * NC + 2 * 4 * std::min(NC, double(c.V) * C),
        [&](int i) { op.embedding_backward(dwte[i], dwpe[i], x[i], tok[i], B, S, C, c.V); });
    row("layernorm_forward", 0, 0, 2 * e * NC,
        [&](int i) { op.layernorm_forward(y[i], mean[i], rstd[i], x[i], w[i], b[i], 1e-5f, N, C); });
    row("layernorm_backward", 0, 0, 4 * e * NC,
        [&](int i) { op.layernorm_backward(y[i], dw[i], db[i], z[i], x[i], w[i], mean[i], rstd[i], N, C); });
    row("gelu_forward", 0, 0, 2 * e * double(wide), [&](int i) { op.gelu_forward(y[i], x[i], wide); });
    row("gelu_backward", 0, 0, 3 * e * double(wide), [&](int i) { op.gelu_backward(y[i], z[i], x[i], wide); });
    row("copy", 0, 0, 2 * e * double(wide), [&](int i) { op.copy(y[i], x[i], int64_t(sizeof(T)) * wide); });
    free_all();
}

template <class T, class P> void Rows<T, P>::head_and_update() {
    const int rows = int(std::min<int64_t>(N, op.logits_bytes / (int64_t(sizeof(T)) * c.Vp())));
    const int64_t n = int64_t(32) << 20;
    {
        auto logits = arrays<T>(int64_t(rows) * c.Vp()), other = arrays<T>(int64_t(rows) * c.Vp());
        auto loss = arrays<float>(rows);
        auto target = ids(rows, c.V);
        if (!other[0] || !target[0]) return bench.short_of_memory("cross_entropy");
        row("cross_entropy, " + std::to_string(rows) + " rows", 0, 0, 2.0 * sizeof(T) * rows * c.Vp(),
            [&](int i) { op.cross_entropy(loss[i], other[i], logits[i], target[i], 1e-3f, rows, c.V, c.Vp()); });
        free_all();
    }
    auto w = arrays<P>(n);
    auto master = arrays<float>(sizeof(P) == 2 ? n : 1), m = arrays<float>(n), v = arrays<float>(n, 0);
    auto g = arrays<Grad<P>>(n);
    auto decays = arrays<float>(n / 64 / 4);
    auto square = arrays<float>(2), step = arrays<float>(int64_t(sizeof(Step)) / 4);
    if (!g[0] || !step[0]) return bench.short_of_memory("adamw");
    const Step one = {1, 1, 1, 1, 10, 20, 0};
    for (float* s : step) op.upload(s, &one, int64_t(sizeof one));
    const AdamW a = {1e-4f, 0.9f, 0.95f, 1e-8f, 0.1f};
    const bool half = sizeof(P) == 2;
    row("sum_of_squares, 32M", 0, 0, 4.0 * double(n),
        [&](int i) { op.sum_of_squares(reinterpret_cast<double*>(square[i]), g[i], n); });
    row("adamw, 32M", 0, 0, (half ? 30.0 : 28.0) * double(n), [&](int i) {
        op.adamw(w[i], half ? master[i] : nullptr, m[i], v[i], g[i], reinterpret_cast<uint8_t*>(decays[i]), n,
                 reinterpret_cast<Step*>(step[i]), a, 1);
    });
    free_all();
}

template <class T, class P> void Rows<T, P>::attention() {
    const int64_t NC = int64_t(N) * c.C;
    auto qkv = arrays<T>(3 * NC), y = arrays<T>(NC), dy = arrays<T>(NC), dqkv = arrays<T>(3 * NC);
    auto lse = arrays<float>(int64_t(N) * h.NH, 4);
    if (!dqkv[0] || !lse[0]) return bench.short_of_memory("attention");
    const double pairs = double(B) * h.NH * S * (S + 1) / 2 * h.HS, e = sizeof(T);
    // In bf16 these are tensor-core products on a GPU, and the CPU's own where it has them; else fp32 arithmetic.
    const bool tensor = bench.device.gpu ? sizeof(T) == 2 : bench.device.dtype == Dtype::bf16;
    auto both = [&](double flops) { return std::pair{tensor ? flops : 0, tensor ? 0 : flops}; };
    auto [forward, forward_plain] = both(4 * pairs);
    auto [backward, backward_plain] = both(10 * pairs);
    for (int i = 0; i < SETS; i++) op.attention_forward(y[i], lse[i], qkv[i], B, S, h);
    row("attention_forward", forward, forward_plain, 4 * e * double(NC),
        [&](int i) { op.attention_forward(y[i], lse[i], qkv[i], B, S, h); });
    row("attention_backward", backward, backward_plain, 8 * e * double(NC),
        [&](int i) { op.attention_backward(dqkv[i], dy[i], y[i], qkv[i], lse[i], B, S, h); });
    free_all();
    for (int rows : {1, 8, 64}) {
        const int64_t cache = int64_t(rows) * h.NKV * c.T * h.HS;
        auto k = arrays<T>(cache), v = arrays<T>(cache), q = arrays<T>(int64_t(rows) * 3 * c.C),
             o = arrays<T>(int64_t(rows) * c.C);
        auto pos = ids(1, 1);
        if (!v[0] || !pos[0]) return bench.short_of_memory("attention_cached");
        const int last = c.T - 1;
        for (int* p : pos) op.upload(p, &last, 4);
        row("attention_cached, " + std::to_string(rows) + " x " + std::to_string(c.T) + " keys", 0, 0,
            2 * e * double(cache),
            [&](int i) { op.attention_cached(o[i], k[i], v[i], q[i], rows, 1, pos[i], c.T, h); });
        free_all();
    }
}

template <class T, class P> void Rows<T, P>::linear() {
    const int C = c.C, F = c.F, head = int(std::min<int64_t>(N, op.logits_bytes / (int64_t(sizeof(T)) * c.Vp())));
    struct Shape {
        const char* name;
        int N, C, OC;
        bool gelu;
    };
    for (Shape s : {Shape{"qkv", N, C, 3 * C, false},
                    {"proj", N, C, C, false},
                    {"fc", N, C, F, true},
                    {"fc2", N, F, C, false},
                    {"head", head, C, c.Vp(), false},
                    {"qkv, 1 row", 1, C, 3 * C, false},
                    {"fc, 1 row", 1, C, F, true},
                    {"head, 1 row", 1, C, c.Vp(), false}}) {
        const int64_t in = int64_t(s.N) * s.C, out = int64_t(s.N) * s.OC, weights = int64_t(s.C) * s.OC;
        auto x = arrays<T>(in), y = arrays<T>(out), pre = arrays<T>(s.gelu ? out : 1), w = arrays<P>(weights, 0.05f);
        auto b = arrays<P>(s.OC);
        auto dx = arrays<T>(in);
        auto dw = arrays<Grad<P>>(weights);
        auto db = arrays<Grad<P>>(s.OC);
        if (!x[0] || !w[0] || !dw[0] || !db[0]) {
            bench.short_of_memory(std::string("linear ") + s.name);
            free_all();
            continue;
        }
        const double flops = 2.0 * double(s.N) * double(weights), e = sizeof(T);
        const double bytes = e * double(in + out) + sizeof(P) * double(weights);
        const std::string name = s.name;
        row("linear_forward " + name, flops, 0, bytes,
            [&](int i) { op.linear_forward(y[i], x[i], w[i], b[i], nullptr, s.N, s.C, s.OC); });
        if (s.gelu && op.linear_gelu_forward)
            row("linear_gelu_forward " + name, flops, 0, bytes + e * double(out),
                [&](int i) { op.linear_gelu_forward(y[i], pre[i], x[i], w[i], b[i], s.N, s.C, s.OC); });
        if (s.N > 1)
            row("linear_backward " + name, 2 * flops, 0, bytes + e * double(in) + 8.0 * double(weights),
                [&](int i) { op.linear_backward(dx[i], dw[i], db[i], y[i], x[i], w[i], s.N, s.C, s.OC); });
        free_all();
    }
}

template <class T, class P> Status bench_operations(Bench& bench, const Ops<T, P>& op, const Config& c, int B, int S) {
    Rows<T, P> rows(bench, op, c, B, S);
    if (bench.device.gpu) {    // the ceilings: a copy of 1 GiB (less where memory is short), read and written
        const int64_t bytes = std::min<int64_t>(int64_t(1) << 30, op.free_bytes() / 16);
        auto from = rows.template arrays<T>(bytes / int64_t(sizeof(T))),
             to = rows.template arrays<T>(bytes / int64_t(sizeof(T)));
        if (!from[0] || !to[0]) return fail(Exit::device, "out of memory");
        auto times = rows.time([&](int i) { op.copy(to[i], from[i], bytes); });
        bench.peak.bytes = 2 * double(bytes) / *std::min_element(times.begin(), times.end());
        rows.free_all();
    }
    if (!bench.o.json)
        printf(
            "%s\nceilings measured now: %.0f GFLOP/s of products, %.1f GB/s of memory; B=%d S=%d C=%d\n\n%-46s %10s "
            "%10s %10s %8s %10s   of it\n",
            bench.device.text.c_str(), bench.peak.products / 1e9, bench.peak.bytes / 1e9, B, S, c.C, "", "best us",
            "median us", "GFLOP/s", "GB/s", "floor us");
    if (bench.o.steps_only) return {};
    rows.memory_bound();
    rows.head_and_update();
    rows.attention();
    rows.linear();
    return {};
}

// ---- steps ---------------------------------------------------------------------------------------------------------

Status bench_training(Bench& bench, const Config& c, int B, int S) {
    Model& g = *bench.device.model;
    const std::string name = "training step B=" + std::to_string(B) + " T=" + std::to_string(S);
    if (!bench.wanted(name)) return {};
    TRY(g.allocate(c, {Use::train, B, S}));
    g.init(1);
    const int N = B * S;
    std::vector<int> tok(static_cast<size_t>(N)), target(tok);
    for (int i = 0; i < N; i++) {
        tok[size_t(i)] = int((i * 7919LL + 13) % c.V);
        target[size_t(i)] = int((i * 104729LL + 7) % c.V);
    }
    std::vector<double> times;
    bool ahead = false;
    for (double spent = 0; times.size() < 4 || (spent < 3 && times.size() < 50);) {
        const double start = now_seconds();
        g.begin_step();
        g.batch(tok.data(), target.data(), B, S);
        g.forward();
        g.loss(true, 1.0f / float(N));
        g.backward();
        g.update({1e-4f, 0.9f, 0.95f, 1e-8f, 0.1f}, {}, 1);
        if (ahead) (void)g.finish();    // of the step before, as the trainer does
        ahead = bench.device.gpu;
        if (!ahead) (void)g.finish();
        times.push_back(now_seconds() - start);
        spent += times.back();
    }
    if (ahead) (void)g.finish();
    times.erase(times.begin());    // allocates, and chooses algorithms
    // Products: 6 FLOPs a weight; causal attention: 2 C S forward, 5 C S backward, a layer.
    const double flops = N * (6.0 * (12.0 * c.L * c.C * c.C + double(c.V) * c.C) + 7.0 * c.L * c.C * S);
    bench.print(name, times, flops / bench.peak.products, flops, 0);
    const double best = *std::min_element(times.begin(), times.end());
    if (!bench.o.json) printf("%-46s %.0f tokens/s\n", "", N / best);
    return {};
}

Status run(const BenchOptions& o) {
    Result<Device> opened = open_device(o.device, true);
    TRY(opened.status);
    Result<Config> named = config_named(o.model);
    TRY(named.status);
    Config c = named.value;
    if (o.vocab) c.V = o.vocab;
    if (o.layers) c.L = o.layers;
    if (o.heads) c.NH = o.heads;
    if (o.channels) c.C = o.channels, c.F = 4 * c.C;
    TRY(config_check(c));
    Bench bench{o, std::move(opened.value), {}};
    const bool gpu = bench.device.gpu;
    const int S = std::min(c.T, o.seq_len ? o.seq_len : gpu ? 1024 : 256), B = o.batch ? o.batch : gpu ? 32 : 4;
    if (gpu) bench.peak.products = bench.peak.flops = measure_peak(bench.device);
    else bench.peak = cpu_peaks(bench.device.dtype == Dtype::bf16);
    TRY(with_ops(*bench.device.model, [&](auto& op) { return bench_operations(bench, op, c, B, S); }));
    TRY(bench_training(bench, c, B, S));
    std::vector<int> sizes = {1, 2, 4, 8, 16, 64};
    std::erase_if(sizes, [&](int rows) { return !bench.wanted(generation(rows)); });
    if (sizes.empty()) return {};
    opened = open_device(o.device, false);    // a model without training state
    TRY(opened.status);
    bench.device = std::move(opened.value);
    TRY(bench.device.model->allocate(c, {Use::infer, 64, 1}));
    bench.device.model->init(1);
    for (int rows : sizes) TRY(bench_generation(bench, c, rows));
    return {};
}
}    // namespace

Command bench_command() {
    auto o = std::make_shared<BenchOptions>();
    Command c{"bench",
              "Measure every operation, a training step and generation: time, floor, ratio.",
              "flatgpt bench --filter attention --batch 32 --seq-len 1024",
              {},
              {},
              nullptr};
    c.flags = {{"--filter", &o->filter, "only rows whose name has this part"},
               {"--model", &o->model, "sizes: gpt2, gpt2-medium, gpt2-large, gpt2-xl, dN"},
               {"--layers", &o->layers, "layers; 0: the model's", 0, 1024},
               {"--heads", &o->heads, "attention heads; 0: the model's", 0, 1024},
               {"--channels", &o->channels, "channels, a multiple of the heads; 0: the model's", 0, 65536},
               {"--batch", &o->batch, "sequences; 0: 32 on a GPU, 4 on the CPU", 0, 65536},
               {"--seq-len", &o->seq_len, "tokens of a sequence; 0: 1024 on a GPU, 256 on the CPU", 0, 1 << 20},
               {"--vocab", &o->vocab, "vocabulary; 0: GPT-2's", 0, 1 << 24},
               {"--steps-only", &o->steps_only, "no single operations"},
               {"--json", &o->json, "one JSON object a row on standard output"}};
    for (Flag& f : device_flags(o->device, "bf16 on a GPU and where the CPU multiplies it, else fp32"))
        c.flags.push_back(f);
    c.run = [o] { return run(*o); };
    return c;
}

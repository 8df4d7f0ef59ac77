// rows.h - buffers and clock for the rows of the benchmark's table. Private to tools/bench/rows.cpp
// and tools/bench/attention.cpp.
//
// On the CPU all buffers are flushed from the caches before each repetition. Output may still be in
// a cache when the clock stops, so an operation that adds to its output can be a little faster than
// its lower bound. On a GPU a captured graph of calls cycles through SETS sets of buffers, which
// together exceed L2 unless the operation is small.
#pragma once
#include <array>
#include <tuple>

#include "bench.h"
#include "base/console.h"
#include "base/philox.h"
#include "model/decoder.h"

struct Rows {
    static constexpr int SETS = 4;    // sets of buffers
    Bench& bench;
    const Table& op;
    const Config c;
    const int B, S, N;
    const Heads h;
    std::vector<std::pair<void*, int64_t>> held;
    bool* any = nullptr;    // not null: rows are not timed, only matched with --filter

    Rows(Bench& owner, const Table& table, const Config& config, int batch, int seq)
        : bench(owner), op(table), c(config), B(batch), S(seq), N(batch * seq), h(config.heads(0)) {}
    ~Rows() { free_all(); }

    template <class X> X* allocate(int64_t bytes) {    // freed by free_all; null: not enough memory
        void* p = op.allocate(bytes);
        if (p) held.push_back({p, bytes});
        return static_cast<X*>(p);
    }
    // Returns SETS arrays of n normal elements times `scale`, or nulls if memory is short. All are
    // one array on a CPU, whose caches are flushed, and where rows are not timed.
    template <class X> std::array<X*, SETS> arrays(int64_t n, float scale = 1) {
        std::array<X*, SETS> sets{};
        const int64_t CHUNK = 1 << 16;
        std::vector<float> host(CHUNK);
        for (int64_t i = 0; i < CHUNK; i++) host[size_t(i)] = scale * philox_normal(4, held.size(), uint64_t(i));
        for (X*& p : sets) {
            if ((!bench.device.gpu || bench.on_operation || any) && p != sets[0]) {    // flushed or not timed
                p = sets[0];
                continue;
            }
            p = allocate<X>(op.bytes(p, n));
            if (!p) return {};
            if (bench.on_operation || any) continue;
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
    int head_rows() const {    // at most half of the model's rows
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
        if (!op.begin_capture) {
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
        op.begin_capture();
        for (int i = 0; i < calls; i++) run(i % SETS);
        void* graph = op.end_capture();
        for (int r = 0; r < 11; r++) {
            const double start = now_seconds();
            op.launch_graph(graph);
            op.wait(op.mark());
            if (r) times.push_back((now_seconds() - start) / calls);    // the first warms up
        }
        op.release_graph(graph);
        return times;
    }
    // Prints the row of an operation, if --filter matches its name. entry is its member of the
    // table, counts its function of CostModel; args(i) returns the arguments of a call with set i
    // of the buffers.
    template <auto entry, auto counts, class Args> void row(const std::string& name, Args args) {
        if (!bench.wanted(name)) return;
        if (any) {
            *any = true;
            return;
        }
        const CostModel work(op, [this](void* to, const void* from, int64_t bytes) {
            op.download(to, from, bytes);
            return true;
        });
        const Cost w = std::apply([&](auto... a) { return (work.*counts)(a...); }, args(0));
        if (bench.on_operation) return bench.on_operation(name, w, [&] { std::apply(op.*entry, args(0)); });
        bench.print(name, time([&](int i) { std::apply(op.*entry, args(i)); }), w);
    }

    void memory_bound();
    void shortcuts();
    void rope();
    void biases();
    void relative_keys();
    void experts();
    void cross_attention();
    void recurrences();
    void head_and_update();
    void sample();
    std::vector<std::pair<std::string, Heads>> masks();
    void attention();
    void cached(int rows, Element type, const std::string& name);
    void linear();
    void linear(const std::string& name, int rows, int in, int out, bool ffn);
};

// Adds a row for an operation of the table. detail is a suffix of the row's name; the remaining
// arguments are those of a call with set i of the buffers.
#define ROW(entry, detail, ...)                                           \
    row<&Table::entry, &CostModel::entry>(std::string(#entry) + (detail), \
                                          [&](int i) { return std::tuple(__VA_ARGS__); })

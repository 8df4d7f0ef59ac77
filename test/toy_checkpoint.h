// toy_checkpoint.h - a small model in plain memory, and helpers for tests of checkpoints.
#pragma once
#include "base/philox.h"
#include "checkpoint/checkpoint.h"

#include <cstring>
#include <filesystem>
#include <fstream>
#include <memory>

#include "test.h"

// The cpu operations, copying without threads, which a forked child does not have.
inline const Ops<float>& host_ops() {
    static const Ops<float> ops = [] {
        Ops<float> o = cpu_ops<float>();
        o.zero = [](void* p, int64_t bytes) { memset(p, 0, size_t(bytes)); };
        o.upload = o.download = [](void* to, const void* from, int64_t bytes) { memcpy(to, from, size_t(bytes)); };
        return o;
    }();
    return ops;
}

// Weights and moments are functions of the seed; the rows that pad the vocabulary are zero.
struct ToyCheckpoint {
    Model g{host_ops()};
    std::vector<float> params, m, v;

    static Config config() { return {.V = 20, .T = 4, .L = 1, .NH = 2, .C = 8, .F = 16}; }
    explicit ToyCheckpoint(uint64_t seed, const Config& c = config(), int rank = 0, int ranks = 1) {
        g.c = c;
        g.plan.rank = rank;
        g.plan.ranks = ranks;
        g.tensors = config_tensors(c, ranks);
        g.store.set_layout(c, g.plan);
        params.resize(size_t(g.store.flat));
        m = v = params;
        g.store.params = reinterpret_cast<Parameter*>(params.data());
        g.store.states = {{m.data()}, {v.data()}};
        const std::vector<Tensor> alone = config_tensors(c);    // values depend on one rank's offsets
        uint64_t stream = seed * 3;
        for (float* flat : {params.data(), m.data(), v.data()}) {
            stream++;
            for (size_t i = 0; i < g.tensors.size(); i++) {
                const Tensor& t = g.tensors[i];
                fill_normal(flat + t.offset, t.file_rows * t.cols, stream << 32 | uint64_t(alone[i].offset));
            }
        }
    }
    void poison() {
        for (std::vector<float>* flat : {&params, &m, &v})
            for (const Tensor& t : g.tensors) std::fill_n(flat->data() + t.offset, t.size(), NAN);
    }
};
inline bool same_bits(const std::vector<float>& a, const std::vector<float>& b) {
    return a.size() == b.size() && memcmp(a.data(), b.data(), a.size() * 4) == 0;
}

// A run's state with this step and seed; its other values are hard to write and read back.
inline TrainState toy_state(int64_t step, uint64_t seed) {
    TrainState s;
    s.step = step, s.seed = seed;
    s.tokens = (int64_t(1) << 62) - 1, s.updates = 3, s.skipped = 2, s.bad_in_a_row = 1;
    s.epoch = 4, s.index = int64_t(1) << 40;
    s.data = ~uint64_t(0), s.metrics_bytes = 12345;
    for (int i = 0; i < 200; i++) s.loss.add(double(philox_normal(1, 2, uint64_t(i))) * std::pow(10.0, i % 40 - 20));
    for (double x : {0.1, -0.0, 5e-324, 1.7976931348623157e308, 1.0 / 3}) s.grad_norm.add(x);
    s.config = "[train]\nout = \"r\xc3\xa4\\n\"\n\tlr = 1e-3\n";
    return s;
}

inline std::string write_toy(const std::string& run, int64_t step, uint64_t seed) {
    Status s = checkpoint_write(run, ToyCheckpoint(seed).g, Tokenizer(), toy_state(step, seed));
    REQUIRE_MESSAGE(s.ok(), s.message);
    return checkpoint_list(run).back();
}
// Flips a bit in place: some filesystems flush a truncated and rewritten file when it is closed.
inline void flip_in_file(const std::string& path, size_t bit) {
    std::fstream f(path, std::ios::in | std::ios::out | std::ios::binary);
    f.seekg(std::streamoff(bit / 8));
    char byte = char(f.get() ^ 1 << bit % 8);
    f.seekp(std::streamoff(bit / 8));
    REQUIRE(f.put(byte));
}

// toy_model.h - a small model with parameters that make every gradient count, and a training pass. Include it after
// doctest.
#pragma once
#include "gpt.h"
#include "model/families.h"

// An array of a model's by its type, which the test must know; in memory of this process.
template <class T, class X> T* typed(const Model& g, X* p) {
    REQUIRE((g.op.element(p) == element_of<T> && g.op.on_host()));
    return reinterpret_cast<T*>(p);
}

// c as of a made-up family that holds q, k and v apart, in either orientation, and has no bias after attention.
inline Config split_config(Config c, bool transposed = false) {
    static const std::vector<Family> made_up = [] {
        std::vector<Family> both(2, GPT2);
        for (Family& family : both) {
            std::erase_if(family.names, [](const Family::Name& n) { return n.ours == std::string("projb"); });
            const bool turned = &family == &both[1];
            for (Family::Name& n : family.names)
                if (n.ours == std::string("qkvw")) n = {"qkvw", {"#.q.weight", "#.k.weight", "#.v.weight"}, turned};
                else if (n.ours == std::string("qkvb")) n = {"qkvb", {"#.q.bias", "#.k.bias", "#.v.bias"}};
        }
        return both;
    }();
    c.family = &made_up[transposed];
    return c;
}

// c as of made-up families, each without one of the tensors that a family may lack.
inline std::vector<Config> lacking_configs(Config c) {
    static std::vector<Family> made_up = [] {
        std::vector<Family> all;
        for (const char* name : {"qkvb", "projb", "fcb", "fc2b"})
            std::erase_if(all.emplace_back(GPT2).names, [&](auto& n) { return n.ours == std::string(name); });
        return all;
    }();
    std::vector<Config> all;
    for (const Family& family : made_up) all.push_back(c), all.back().family = &family;
    return all;
}

// Parameters and inputs that make every gradient count: biases and norms are not at their initial 0 and 1.
inline void toy_model(Model& g, const Config& c, const Plan& plan) {
    const Status allocated = g.allocate(c, plan);
    REQUIRE_MESSAGE(allocated.ok(), allocated.message);
    g.init(1);
    for (size_t i = 0; i < g.tensors.size(); i++) {
        const Tensor& t = g.tensors[i];
        std::vector<float> x(size_t(t.size()));
        g.read(Part::weights, t.offset, t.size(), x.data());
        for (int64_t k = 0; k < t.file_rows * t.cols; k++) x[size_t(k)] += 0.2f * philox_normal(3, i, uint64_t(k));
        g.write(Part::weights, t.offset, t.size(), x.data());
    }
}
inline std::vector<int> toy_tokens(int n, int V, uint64_t stream) {
    std::vector<int> t(static_cast<size_t>(n));
    for (int i = 0; i < n; i++) t[size_t(i)] = int(philox(5, stream, uint64_t(i)).v[0] % uint32_t(V));
    return t;
}
inline double add_pass(Model& g, const std::vector<int>& in, const std::vector<int>& out, int B, int S) {
    g.batch(in.data(), out.data(), B, S);
    g.forward();
    g.loss(true, float(1.0 / (B * S)));
    g.backward();
    return g.mean_loss();
}
inline double train_pass(Model& g, const std::vector<int>& in, const std::vector<int>& out, int B, int S) {
    g.begin_step();
    return add_pass(g, in, out, B, S);
}
inline void losses_of(Model& g, const std::vector<int>& in, const std::vector<int>& out, int B, int S, float* losses) {
    g.batch(in.data(), out.data(), B, S);
    g.forward();
    g.loss(false, 0);
    (void)g.mean_loss(losses);
}
inline Step update(Model& g, float lr, float beta2, float decay, double clip = 0) {
    g.update({lr, 0.9f, beta2, 1e-8f, decay}, {.clip = clip}, 1);
    return g.finish();
}
inline std::vector<float> flat_part(const Model& g, Part part) {
    std::vector<float> all(size_t(g.shards.flat));
    g.read(part, 0, g.shards.flat, all.data());
    return all;
}
inline void append(std::vector<float>& all, const std::vector<float>& more) {
    all.insert(all.end(), more.begin(), more.end());
}
// The error in the 2-norm, relative.
inline double norm_error(const std::vector<float>& got, const std::vector<float>& expected) {
    double error = 0, square = 0;
    for (size_t i = 0; i < got.size(); i++)
        error += std::pow(double(got[i]) - double(expected[i]), 2), square += std::pow(double(expected[i]), 2);
    return std::sqrt(error / square);
}
inline std::vector<float> flat_grads(const Model& g) { return flat_part(g, Part::gradients); }

// A model with bf16 parameters, without masters: learns, and holds nothing but bf16.
inline void train_stochastically(Model& g, const Config& c) {
    const int B = 2, S = 16;
    auto in = toy_tokens(B * S, c.V, 1), out = toy_tokens(B * S, c.V, 2);
    toy_model(g, c, {Use::train, B, S, Recompute::none, false});
    const double before = train_pass(g, in, out, B, S);
    double after = before;
    for (int step = 0; step < 12; step++) {
        update(g, 3e-3f, 0.95f, 0);
        after = train_pass(g, in, out, B, S);
    }
    CHECK(after < before - 1);
    for (float w : flat_part(g, Part::weights)) REQUIRE(to_float(to_bf16(w)) == w);
}

// Generates with a cache, the first `split` tokens of each sequence (B,S) at once, then one by one; at every n-th
// position same(cache, logits, the logits of the whole sequence so far).
template <class Same>
void generate_toy(Model& g, const std::vector<int>& in, int B, int S, int split, int every, Same same) {
    Cache cache;
    REQUIRE(g.cache_allocate(cache, B, g.c.T).ok());
    std::vector<float> cached(size_t(B * g.c.V)), whole(cached);
    for (int s = 0; s < S;) {
        const int n = s == 0 ? split : 1;
        std::vector<int> part, all;
        for (int b = 0; b < B; b++) {
            part.insert(part.end(), in.begin() + b * S + s, in.begin() + b * S + s + n);
            all.insert(all.end(), in.begin() + b * S, in.begin() + b * S + s + n);
        }
        g.extend(cache, part.data(), n);
        g.logits(cached.data());
        s += n;
        if (s % every && s < S) continue;
        g.batch(all.data(), nullptr, B, s);
        g.forward();
        g.logits(whole.data());
        same(cache, cached, whole);
    }
}

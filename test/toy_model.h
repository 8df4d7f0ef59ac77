// toy_model.h - small models in which all gradients matter; training passes. Include after doctest.
#pragma once
#include "base/philox.h"
#include "model/adapter.h"
#include "model/decoder.h"
#include "model/families/families.h"

// A model's array as its actual element type T, in memory of this process.
template <class T, class X> T* typed(const Model& g, X* p) {
    REQUIRE((g.op.element(p) == element_of<T> && g.op.on_host()));
    return reinterpret_cast<T*>(p);
}

// c with a made-up family that stores q, k, v apart, in either orientation; without proj_bias.
inline Config split_config(Config c, bool transposed = false) {
    static const std::vector<Family> made_up = [] {
        std::vector<Family> both(2, GPT2);
        for (Family& family : both) {
            const bool turned = &family == &both[1];
            for (Family::Name& n : family.names)
                if (n.ours == std::string("qkv"))
                    n = {"qkv", {"#.q", "#.k", "#.v"}, turned ? FileLayout::transposed : FileLayout::straight};
        }
        return both;
    }();
    c.family = &made_up[transposed], c.proj_bias = false;
    return c;
}

// Four copies of c, each without one of its biases.
inline std::vector<Config> lacking_configs(const Config& c) {
    std::vector<Config> all;
    for (bool Config::*bias : {&Config::qkv_bias, &Config::proj_bias, &Config::up_bias, &Config::down_bias})
        all.push_back(c), all.back().*bias = false;
    return all;
}

// A named kind of model. kind_configs(c) changes c into kinds that together have every option.
struct Kind {
    const char* name;
    Config c;
};
// Adds kinds with experts, without softmax, with T5's positions and with shortcuts around blocks,
// by add(name, config, change).
template <class Add> void add_rare_kinds(const Config& c, const Config& llama, Add add) {
    using enum RopeScaling;
    add("t5", llama, [](Config& k) { k.position = Position::t5, k.rope_dims = 0; });
    add("relative_key", llama, [](Config& k) { k.position = Position::relative_key, k.rope_dims = 0; });
    add("relative_key to 2", c, [](Config& k) { k.position = Position::relative_key, k.max_distance = 2; });
    // All experts are used: a choice of the best could differ between types that round differently.
    add("qwen2_moe", llama, [](Config& k) {
        k.experts = k.experts_used = 3, k.expert_ffn = 10, k.shared_ffn = 12, k.shared_gate = true;
        k.experts_normalised = false, k.qkv_bias = true;
    });
    add("experts in every second layer", c, [](Config& k) {
        k.experts = k.experts_used = 2, k.expert_ffn = 9, k.experts_every = 2, k.router = RouterKind::sigmoid;
    });
    add("elu", c, [](Config& k) { k.linear = LinearAttention::elu, k.window = 0; });
    add("retention, each 2nd softmax", llama, [](Config& k) {
        k.linear = LinearAttention::retention, k.softmax_every = 2, k.qk_norm = QkNormRope::QkNorm::head;
    });
    add("gated", llama,
        [](Config& k) { k.linear = LinearAttention::gated, k.window = 0, k.norm_placement = NormPlacement::sandwich; });
    add("performer", llama, [](Config& k) { k.linear = LinearAttention::performer, k.window = 0; });
    add("nanochat of 2026", llama, [](Config& k) {
        k.norm_weight = false, k.embed_norm = true, k.gated = false, k.activation = Act::relu2;
        k.qk_norm = QkNormRope::QkNorm::head, k.score_scale = 1.44f / std::sqrt(float(k.HS));
        k.residual_scalars = k.value_embeddings = k.smear = k.backout = k.global_last = true, k.window = 3;
    });
    add("norms of sums, shortcuts", llama,
        [](Config& k) { k.smear = k.backout = k.residual_scalars = true, k.norm_placement = NormPlacement::post; });
    add("retention, value embeddings", llama, [](Config& k) {
        k.linear = LinearAttention::retention, k.softmax_every = 2, k.parallel = Parallel::two;
        k.value_embeddings = k.residual_scalars = true;
    });
    add("electra", c, [](Config& k) {
        k.norm_placement = NormPlacement::post, k.activation = Act::gelu, k.embed_norm = k.head_bias = true;
        k.segments = 2, k.embed_size = k.C / 2 + 1, k.transform = HeadTransform::norm;
    });
    add("modernbert", llama, [](Config& k) {
        k.embed_norm = true, k.first_norm = false, k.transform = HeadTransform::dense, k.transform_act = Act::tanh;
    });
    add("dynamic", llama, [](Config& k) { k.rope_scaling = dynamic, k.rope_factor = 2, k.rope_original = 4; });
}
inline std::vector<Kind> kind_configs(Config c) {
    using enum RopeScaling;
    Config no_bias = c;
    no_bias.qkv_bias = no_bias.proj_bias = no_bias.up_bias = no_bias.down_bias = no_bias.norm_bias = false;
    Config llama = no_bias;
    llama.norm = NormKind::rms, llama.gated = true, llama.activation = Act::silu, llama.tied = false;
    llama.position = Position::rope, llama.rope_dims = c.HS / 2 * 2;
    std::vector<Kind> all = {{"llama", llama}};
    auto add = [&](const char* name, Config k, auto change) { change(k), all.push_back({name, k}); };
    add("llama3", llama, [](Config& k) {
        k.rope_scaling = llama3, k.rope_factor = 8, k.rope_original = 4, k.rope_theta = 100, k.qkv_bias = true;
    });
    add("yarn, qk-norm", llama, [](Config& k) {
        k.rope_scaling = yarn, k.rope_factor = 4, k.rope_low = 1, k.rope_high = 32, k.rope_original = 4;
        k.qk_norm = QkNormRope::QkNorm::head;
    });
    add("olmo2", llama,
        [](Config& k) { k.norm_placement = NormPlacement::branch, k.qk_norm = QkNormRope::QkNorm::all; });
    add("gemma2", llama, [](Config& k) {
        k.norm_placement = NormPlacement::sandwich, k.norm_plus = true, k.activation = Act::gelu_tanh,
        k.embed_scale = 2.5f;
        k.window = 3, k.global_every = 2, k.score_scale = 0.3f, k.score_cap = 1.5f, k.logit_cap = 2, k.tied = true;
    });
    add("gemma3", llama, [](Config& k) {
        k.norm_placement = NormPlacement::sandwich, k.norm_plus = true, k.qk_norm = QkNormRope::QkNorm::head,
        k.window = 3;
        k.global_every = 2, k.rope_local_theta = 10, k.rope_scaling = linear, k.rope_factor = 2;
    });
    add("granite", llama, [](Config& k) {
        k.embed_scale = 3, k.branch_scale = 0.6f, k.logit_scale = 0.4f, k.score_scale = 0.3f, k.tied = true;
    });
    add("smollm3", llama, [](Config& k) { k.rope_skip_every = 2, k.activation = Act::relu2; });
    add("neox", c, [](Config& k) {
        k.parallel = Parallel::two, k.activation = Act::gelu, k.tied = false;
        k.position = Position::rope, k.rope_dims = 2;
    });
    add("gptj", no_bias, [](Config& k) {
        k.parallel = Parallel::one, k.up_bias = k.down_bias = k.norm_bias = k.head_bias = true, k.tied = false;
        k.position = Position::rope, k.rope_dims = 2, k.rope_interleaved = true;
    });
    add("cohere", no_bias, [](Config& k) {
        k.parallel = Parallel::one, k.logit_scale = 0.3f, k.gated = true, k.activation = Act::gelu;
        k.position = Position::rope, k.rope_dims = k.HS / 2 * 2, k.rope_interleaved = true;
    });
    add("bloom", c, [](Config& k) { k.position = Position::alibi, k.embed_norm = true; });
    add("opt", c, [](Config& k) { k.position_offset = 2, k.activation = Act::relu; });
    add("olmo", llama, [](Config& k) { k.norm = NormKind::layer, k.norm_weight = false; });
    add("nanochat", llama, [](Config& k) {
        k.norm_weight = false, k.embed_norm = true, k.gated = false, k.activation = Act::relu2;
        k.qk_norm = QkNormRope::QkNorm::head, k.rope_backwards = true, k.logit_cap = 2;
    });
    add("none", c, [](Config& k) {
        k.position = Position::none, k.norm_placement = NormPlacement::sandwich, k.activation = Act::relu2,
        k.score_cap = 1;
    });
    add("transformer of 2017", c, [](Config& k) {
        k.position = Position::sinusoidal, k.norm_placement = NormPlacement::post, k.embed_scale = 2.5f,
        k.activation = Act::relu;
    });
    add("ntk, norms of sums", llama,
        [](Config& k) { k.norm_placement = NormPlacement::post, k.rope_scaling = ntk, k.rope_factor = 4; });
    add_rare_kinds(c, llama, add);
    return all;
}

// c with adapters of all products; products' pieces have different ranks.
inline Config adapted(Config c, float dropout = 0) {
    for (const AdaptedMatrix& m : adapted_matrices(c)) c.adapter.ranks[m.product][m.piece] = 2 + m.piece;
    c.adapter.scale = 0.7f;
    c.adapter.dropout = dropout;
    return c;
}
// As adapted, with magnitudes (DoRA). A product's second piece, such as the keys, has no adapter,
// so that some rows keep their weights.
inline Config decomposed(Config c) {
    c = adapted(c);
    for (auto& ranks : c.adapter.ranks) ranks[1] = 0;
    c.adapter.magnitudes = true;
    return c;
}
// Makes zero the elements that training never changes: b outside of its blocks, and magnitudes of
// rows without an adapter, which no operation reads.
inline void keep_adapter_blocks(const Config& c, const Tensor& t, std::vector<float>& x) {
    for (const AdaptedMatrix& m : adapted_matrices(c)) {
        if (!m.rank && t.name == adapter_tensor(m.tensor, 'm')) std::fill_n(x.begin() + m.first, m.rows, 0.0f);
        if (m.piece != 0 || t.name != adapter_tensor(m.tensor, 'b')) continue;
        std::vector<double> exact(x.begin(), x.end());
        reference_ops().keep_blocks(exact.data(), adapter_blocks(c)[size_t(m.block)][m.product], int(t.rows),
                                    int(t.cols));
        x.assign(exact.begin(), exact.end());
    }
}
// Adds noise to all parameters: biases and norms are not 0 and 1, so every gradient matters.
inline void toy_model(Model& g, const Config& c, const Plan& plan) {
    const Status allocated = g.allocate(c, plan);
    REQUIRE_MESSAGE(allocated.ok(), allocated.message);
    g.init(1);
    for (size_t i = 0; i < g.tensors.size(); i++) {
        const Tensor& t = g.tensors[i];
        std::vector<float> x(size_t(t.size()));
        g.read(StateKind::weights, t.offset, t.size(), x.data());
        for (int64_t k = 0; k < t.file_rows * t.cols; k++) x[size_t(k)] += 0.2f * philox_normal(3, i, uint64_t(k));
        if (t.adapter) keep_adapter_blocks(c, t, x);
        g.write(StateKind::weights, t.offset, t.size(), x.data());
    }
}
// Copies all weights, each changed by `change`, to a model of the same shape.
template <class F> void copy_weights(const Model& from, Model& to, F change) {
    for (const Tensor& t : from.tensors) {
        std::vector<float> x(size_t(t.size()));
        from.read(StateKind::weights, t.offset, t.size(), x.data());
        for (float& w : x) w = change(w);
        to.write(StateKind::weights, t.offset, t.size(), x.data());
    }
}
inline void copy_weights(const Model& from, Model& to) {
    copy_weights(from, to, [](float w) { return w; });
}
// For each element of the flat buffer whether training changes it. Padding, and what lies outside
// of an adapter's blocks, stays as it is.
inline std::vector<bool> trained_elements(const Model& g) {
    std::vector<bool> all(size_t(g.store.flat), false);
    for (const Tensor& t : g.tensors) {
        if (t.frozen) continue;
        std::vector<float> ones(size_t(t.file_rows * t.cols), 1);
        if (t.adapter) keep_adapter_blocks(g.c, t, ones);
        for (size_t k = 0; k < ones.size(); k++) all[size_t(t.offset) + k] = ones[k] != 0;
    }
    return all;
}
inline std::vector<int> toy_tokens(int n, int V, uint64_t stream) {
    std::vector<int> t(static_cast<size_t>(n));
    for (int i = 0; i < n; i++) t[size_t(i)] = int(philox(5, stream, uint64_t(i)).v[0] % uint32_t(V));
    return t;
}
// Number of targets that count: those not below 0.
inline int64_t counting(const std::vector<int>& out) {
    return std::count_if(out.begin(), out.end(), [](int t) { return t >= 0; });
}
// An encoder's sources are the same tokens, of which the first sequence has two less.
inline void upload_toy(Model& g, const std::vector<int>& in, const std::vector<int>& out, int B, int S,
                       const Spans* spans = nullptr) {
    if (!g.encoder) return g.batch.upload(in.data(), out.data(), B, S, spans);
    std::vector<int> lengths(size_t(B), S);
    lengths[0] -= 2;
    g.upload_pairs(in.data(), lengths.data(), S, in.data(), out.data(), B, S);
}
inline double add_pass(Model& g, const std::vector<int>& in, const std::vector<int>& out, int B, int S,
                       const Spans* spans = nullptr) {
    upload_toy(g, in, out, B, S, spans);
    g.forward(true);
    g.loss(true, float(1.0 / double(counting(out))));
    g.backward();
    return g.mean_loss();
}
inline double train_pass(Model& g, const std::vector<int>& in, const std::vector<int>& out, int B, int S,
                         const Spans* spans = nullptr) {
    g.train.begin();
    return add_pass(g, in, out, B, S, spans);
}
inline void losses_of(Model& g, const std::vector<int>& in, const std::vector<int>& out, int B, int S, float* losses,
                      const Spans* spans = nullptr) {
    g.batch.upload(in.data(), out.data(), B, S, spans);
    g.forward();
    g.loss(false, 0);
    (void)g.mean_loss(losses);
}
inline Step update(Model& g, float lr, float beta2, float decay, double clip = 0) {
    g.train.update({lr, 0.9f, beta2, 1e-8f, decay}, {.clip = clip}, 1);
    return g.train.finish();
}
inline std::vector<float> flat_part(const Model& g, StateKind part) {
    std::vector<float> all(size_t(g.store.flat));
    g.read(part, 0, g.store.flat, all.data());
    return all;
}
inline void append(std::vector<float>& all, const std::vector<float>& more) {
    all.insert(all.end(), more.begin(), more.end());
}
// Relative error in the 2-norm.
inline double norm_error(const std::vector<float>& got, const std::vector<float>& expected) {
    double error = 0, square = 0;
    for (size_t i = 0; i < got.size(); i++)
        error += std::pow(double(got[i]) - double(expected[i]), 2), square += std::pow(double(expected[i]), 2);
    return std::sqrt(error / square);
}
inline std::vector<float> flat_grads(const Model& g) { return flat_part(g, StateKind::gradients); }

// A model with bf16 parameters and no masters must learn, and must hold nothing but bf16.
inline void train_stochastically(Model& g, const Config& c) {
    const int B = 2, S = 16;
    auto in = toy_tokens(B * S, c.V, 1), out = toy_tokens(B * S, c.V, 2);
    toy_model(g, c, {RunMode::train, B, S, Recompute::none, false});
    const double before = train_pass(g, in, out, B, S);
    double after = before;
    for (int step = 0; step < 12; step++) {
        update(g, 3e-3f, 0.95f, 0);
        after = train_pass(g, in, out, B, S);
    }
    CHECK(after < before - 1);
    for (float w : flat_part(g, StateKind::weights)) REQUIRE(to_float(to_bf16(w)) == w);
}

// Runs sequences (B,S) with a cache, the first `split` tokens at once, then one by one; at every
// n-th position calls same(cache, logits, logits of the whole sequence so far). every: n.
template <class Same>
void generate_toy(Model& g, const std::vector<int>& in, int B, int S, int split, int every, Same same) {
    KvCache cache;
    REQUIRE(allocate_cache(g, cache, B, g.c.T).ok());
    std::vector<float> cached(size_t(B * g.c.V)), whole(cached);
    for (int s = 0; s < S;) {
        const int n = s == 0 ? split : 1;
        std::vector<int> part, all;
        for (int b = 0; b < B; b++) {
            part.insert(part.end(), in.begin() + b * S + s, in.begin() + b * S + s + n);
            all.insert(all.end(), in.begin() + b * S, in.begin() + b * S + s + n);
        }
        compute_logits(g, extend(g, cache, part.data(), n), cached.data());
        s += n;
        if (s % every && s < S) continue;
        g.batch.upload(all.data(), nullptr, B, s);
        g.forward();
        compute_logits(g, whole_batch(g), whole.data());
        same(cache, cached, whole);
    }
}

// test_kinds.cpp - every kind of model: gradients, the cpu tables, recomputation, generation.
#include "model/decoder.h"
#include "model/position_tables.h"
#include "test.h"
#include "model_checks.h"

TEST_CASE("kinds: gradients of every kind of model equal central differences") {
    for (const Config& base : {TOY, GROUPED})
        for (const Kind& kind : kind_configs(base)) {
            CAPTURE(std::string(kind.name));
            check_gradients(kind.c);
        }
}

TEST_CASE("kinds: gradients with z-loss and label smoothing; targets that are ignored have neither") {
    for (const Kind& kind : kind_configs(TOY)) {
        const std::string name = kind.name;
        if (name != "llama" && name != "gemma2" && name != "granite") continue;    // plain, capped, scaled logits
        CAPTURE(name);
        check_gradients(kind.c, {}, 0, {0.03f, 0.2f});
        check_gradients(seeing(kind.c, MaskKind::all), toy_objective(MaskKind::all), 0, {0.03f, 0.2f});
    }
}

TEST_CASE("kinds: the cpu tables agree with the reference") {
    const Config grouped = {.V = 101, .T = 40, .L = 2, .NH = 4, .C = 48, .NKV = 2, .HS = 24, .window = 9};
    for (const Kind& kind : kind_configs(grouped)) {
        CAPTURE(std::string(kind.name));
        // Rounding to bf16 may move ReLU's input across 0, where its slope jumps: 5.7e-2 seen.
        const bool kink = kind.c.activation == Act::relu || kind.c.activation == Act::relu2;
        // A transform without a norm passes on the states' rounding: 4.4e-2 seen. So do performer's
        // exponentials of queries and keys: 3.2e-2 seen.
        const bool passes_on = kind.c.transform == HeadTransform::dense || kind.c.linear == LinearAttention::performer;
        // Retention divides by no sum of weights: 3.1e-2 seen by FMAs of rounded numbers.
        const double usual = kind.c.linear == LinearAttention::retention ? 3.3 : 3;
        check_cpu_model(kind.c, kink ? 8 : passes_on ? 5 : usual);
    }
}

TEST_CASE("kinds: what the backward computes again has the same bits as what is kept, in less memory") {
    const int B = 2, S = 24;
    const Config plain = {.V = 61, .T = 32, .L = 3, .NH = 2, .C = 32, .NKV = 1, .HS = 12, .window = 5};
    std::vector<Kind> kinds = kind_configs(plain);
    kinds.push_back({"plain", plain});
    auto in = toy_tokens(B * S, plain.V, 1), out = toy_tokens(B * S, plain.V, 2);
    for (const auto& [name, c] : kinds) {
        CAPTURE(std::string(name));
        each_cpu_model([&](auto model, double) {
            std::vector<float> kept;
            int64_t bytes = INT64_MAX;
            for (Recompute r : {Recompute::none, Recompute::cheap, Recompute::blocks}) {
                auto g = model();
                toy_model(*g, c, {RunMode::train, B, S, r});
                train_pass(*g, in, out, B, S);
                auto grads = flat_grads(*g);
                if (kept.empty()) kept = grads;
                CHECK(memcmp(grads.data(), kept.data(), kept.size() * sizeof(float)) == 0);
                CHECK(g->arena_bytes < bytes);
                bytes = g->arena_bytes;
            }
        });
    }
}

TEST_CASE("kinds: generation with a cache equals the whole sequence") {
    const Config plain = {97, 40, 2, 3, 48, 96, 1e-5f};
    const Config grouped = {.V = 97, .T = 40, .L = 2, .NH = 4, .C = 48, .NKV = 2, .HS = 16, .window = 7};
    const int B = 2, S = 37;
    std::vector<Kind> kinds = kind_configs(grouped);
    kinds.push_back({"plain", plain}), kinds.push_back({"grouped", grouped});
    for (const auto& [name, c] : kinds) {
        CAPTURE(std::string(name));
        each_cpu_model([&](auto model, double tolerance) {
            auto in = toy_tokens(B * S, c.V, 1);
            auto g = model();
            toy_model(*g, c, {RunMode::infer, B, S});
            // The reference in double with these weights, which both results approximate.
            Model reference(reference_ops());
            toy_model(reference, c, {RunMode::infer, B, S});
            const std::vector<float> weights = flat_part(*g, StateKind::weights);
            reference.write(StateKind::weights, 0, int64_t(weights.size()), weights.data());
            std::vector<float> by_cache, by_whole, exact;
            for (int split : {1, 5, 36}) {
                generate_toy(reference, in, B, S, split, 1, [&](auto&, auto&, auto& whole) { append(exact, whole); });
                generate_toy(*g, in, B, S, split, 1, [&](const KvCache& cache, auto& cached, auto& whole) {
                    const int64_t states = 4 * c.recurrent_layers_below(c.L) * c.heads(0).state();
                    const int64_t all = B * (pages_for(c.T) * page_bytes(c, cache.type) + states) +
                                        cos_sin_bytes(c, c.T);
                    CHECK((cache.bytes >= all && cache.bytes < all + 4096));
                    // bf16: a window's averages over 7 positions hide less rounding; 0.031 seen.
                    const bool wide = tolerance > 1e-3 && c.window;
                    CHECK(relative_error(cached.data(), whole.data(), B * c.V) < (wide ? 4 : 1) * tolerance);
                    append(by_cache, cached), append(by_whole, whole);
                });
            }
            // Rounding to bf16 has an RMS error of 0.42 * 2^-8, here up to 0.5 * 2^-8: once for the
            // input of each product; for the whole sequence, not with the cache, also for a layer's
            // q, k, v and probabilities.
            const double gpt2s = tolerance > 1e-3 ? 0.5 * 0x1p-8 : 3e-7;
            // Gates and squares double relative errors.
            const double once = c.gated || c.activation == Act::relu2 ? 2 * gpt2s : gpt2s;
            CHECK(norm_error(by_cache, exact) < once * std::sqrt(4 * c.L + 1));
            CHECK(norm_error(by_whole, exact) < once * std::sqrt(8 * c.L + 1));
        });
    }
}

TEST_CASE("kinds: tables of angles are as long as the plan or the cache, and equal ones are one") {
    Config c = {.V = 13, .T = 64, .L = 2, .NH = 2, .C = 16, .F = 24, .HS = 8, .window = 3, .global_every = 2};
    c.position = Position::rope, c.rope_dims = 8, c.rope_local_theta = 100;
    Model pieces(cpu_ops<float>()), whole(cpu_ops<float>()), longer(cpu_ops<float>());
    toy_model(pieces, c, {RunMode::infer, 1, 4});
    toy_model(whole, c, {RunMode::infer, 1, 40});
    const auto in = toy_tokens(40, c.V, 1);
    KvCache cache;
    REQUIRE(allocate_cache(pieces, cache, 1, 40).ok());
    PendingHead head;
    for (int s = 0; s < 40; s += 4) head = extend(pieces, cache, in.data() + s, 4);
    whole.batch.upload(in.data(), nullptr, 1, 40);
    whole.forward();
    std::vector<float> cached(size_t(c.V)), exact(cached);
    compute_logits(pieces, head, cached.data());
    compute_logits(whole, whole_batch(whole), exact.data());
    CHECK(relative_error(cached.data(), exact.data(), c.V) < 1e-5);
    CHECK(cos_sin_bytes(c, 10) == 2 * 10 * 8 * 4);
    c.T = 1 << 17;
    REQUIRE(longer.allocate(c, {RunMode::infer, 1, 4}).ok());
    CHECK(longer.arena_bytes == pieces.arena_bytes);
    c.rope_local_theta = c.rope_theta;
    CHECK(cos_sin_bytes(c, 10) == 10 * 8 * 4);
    c.rope_scaling = RopeScaling::linear;    // global layers only
    CHECK(cos_sin_bytes(c, 10) == 2 * 10 * 8 * 4);
}

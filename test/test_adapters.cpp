// test_adapters.cpp - frozen parameters and low-rank adapters: gradients, memory, updates.
#include "test.h"

#include "model/cost_table.h"
#include "model_checks.h"

namespace {
const Config GROUPED_SPLIT = split_config(GROUPED);

Config trained(Config c, std::vector<std::string> patterns) {
    c.trained = std::move(patterns);
    return c;
}
// Gradients of the tensors that `c` trains equal those of a model that trains all.
void check_frozen(const Config& c) {
    Config all = c;
    all.trained.clear();
    const int B = 2, S = 7;
    const Posed asked(c, B, S);
    const Plan plan = {RunMode::train, B, S};
    Model some(reference_ops()), whole(reference_ops());
    toy_model(some, c, plan);
    toy_model(whole, all, plan);
    REQUIRE(some.tensors.size() == whole.tensors.size());
    CHECK(train_pass(some, asked.in, asked.out, B, S) == train_pass(whole, asked.in, asked.out, B, S));
    int64_t trained = 0;
    for (size_t i = 0; i < some.tensors.size(); i++) {
        const Tensor &t = some.tensors[i], &same = whole.tensors[i];
        CHECK((t.offset >= some.store.flat) == t.frozen);
        if (t.frozen) continue;
        trained++;
        std::vector<float> got(size_t(t.size())), expected(got);
        some.read(StateKind::gradients, t.offset, t.size(), got.data());
        whole.read(StateKind::gradients, same.offset, t.size(), expected.data());
        INFO(t.name);
        CHECK(got == expected);
    }
    CHECK(trained > 0);
    CHECK(trained < int64_t(some.tensors.size()));
}
}    // namespace

TEST_CASE("adapters: gradients of what is trained equal those of a model that trains all") {
    for (const char* pattern : {"*w", "*b", "0.*", "1.*", "*.qkv?", "*.ln*", "lnf?", "wte", "wpe", "*.fc2w"}) {
        INFO(pattern);
        check_frozen(trained(TOY, {pattern}));
    }
    check_frozen(trained(GROUPED_SPLIT, {"*.fc?", "lnfw"}));
    for (const Kind& kind : kind_configs(TOY)) {
        INFO(kind.name);
        for (const char* pattern : {"1.*", "0.*w", "*te", "[01].*"}) check_frozen(trained(kind.c, {pattern}));
        if (kind.c.position == Position::t5) check_frozen(trained(kind.c, {"relw"}));
        if (!kind.c.tied) check_frozen(trained(kind.c, {"head*"}));
        if (kind.c.experts) check_frozen(trained(kind.c, {"*expert_*", "*router*"}));
    }
}

TEST_CASE("adapters: the scalars and tables around blocks are trained alone, too") {
    for (const Kind& kind : kind_configs(TOY))
        for (const char* pattern : {"resid_lambdas", "x0_lambdas", "smear_gatew", "smear_lambda", "backout_lambda",
                                    "*value_embedw", "*value_gatew"}) {
            INFO(pattern);
            if (kind.name == std::string("nanochat of 2026")) check_frozen(trained(kind.c, {pattern}));
        }
}

TEST_CASE("adapters: gradients in double, every kind") {
    check_gradients(adapted(TOY));
    check_gradients(adapted(TOY, 0.3f));
    check_gradients(adapted(GROUPED_SPLIT));
    check_gradients(adapted(GROUPED_SPLIT), {}, 0.2f);
    check_gradients(decomposed(GROUPED_SPLIT), {}, 0.2f);
    // Products of several widths: the second layer's ffn is a shared expert's.
    Config mixed = TOY;
    mixed.gated = true;
    mixed.up_bias = mixed.down_bias = false;
    mixed.experts = mixed.experts_used = mixed.experts_every = 2;
    mixed.expert_ffn = 9;
    for (int width : {6, 2 * mixed.F}) {
        mixed.shared_ffn = width;
        check_gradients(adapted(split_config(mixed)));
        check_gradients(decomposed(split_config(mixed)));
    }
    for (const Kind& kind : kind_configs(TOY)) {
        INFO(kind.name);
        check_gradients(adapted(kind.c));
        check_gradients(decomposed(kind.c));
    }
    for (const Kind& kind : kind_configs(GROUPED)) {
        INFO(kind.name);
        check_gradients(adapted(kind.c, 0.2f));
    }
}

TEST_CASE("adapters: the CPU's gradients are the reference's") {
    Config grouped = {.V = 101, .T = 40, .L = 2, .NH = 4, .C = 48, .NKV = 2, .HS = 20, .window = 11};
    grouped.F = 4 * grouped.C;
    for (const Config& c :
         {adapted({101, 40, 2, 3, 48}), adapted(split_config(grouped)), adapted(grouped, 0.25f),
          decomposed(split_config(grouped)), trained({101, 40, 2, 3, 48}, {"*w"}), trained(grouped, {"*b", "*.projw"})})
        check_cpu_model(c, 3);
    for (const Kind& kind : kind_configs({101, 40, 2, 3, 48})) {
        INFO(kind.name);
        const bool kink = kind.c.activation == Act::relu || kind.c.activation == Act::relu2;
        check_cpu_model(adapted(kind.c), kink ? 8 : 5);
        check_cpu_model(decomposed(kind.c), 8);
    }
}

TEST_CASE("adapters: recomputed activations, accumulation and the cache have the same results") {
    const int B = 2, S = 7;
    for (const Config& c : {adapted(GROUPED_SPLIT, 0.2f), adapted(TOY), decomposed(GROUPED_SPLIT)}) {
        const Posed asked(c, B, S);
        const auto other = toy_tokens(B * S, c.V, 3);
        std::vector<float> first;
        for (const Recompute r : {Recompute::none, Recompute::cheap, Recompute::blocks}) {
            Model g(cpu_ops<float>());
            toy_model(g, c, {RunMode::train, B, S, r});
            train_pass(g, asked.in, asked.out, B, S);
            add_pass(g, other, asked.out, B, S);
            update(g, 1e-2f, 0.95f, 0.1f);
            const std::vector<float> now = flat_part(g, StateKind::weights);
            if (first.empty()) first = now;
            CHECK((now == first));
        }
        Model g(cpu_ops<float>());
        toy_model(g, c, {RunMode::infer, B, c.T});
        generate_toy(g, asked.in, B, S, 3, 1, [&](const KvCache&, auto& cached, auto& whole) {
            CHECK(relative_error(cached.data(), whole.data(), int64_t(whole.size())) < 1e-5);
        });
    }
}

TEST_CASE("adapters: a step changes what is trained alone, and b stays zero outside of its blocks") {
    const int B = 2, S = 7;
    for (const Config& c : {adapted(GROUPED_SPLIT), decomposed(GROUPED_SPLIT)})
        each_cpu_model([&](auto model, double) {
            const Posed asked(c, B, S);
            auto g = model();
            toy_model(*g, c, {RunMode::train, B, S});
            std::vector<std::vector<float>> before;
            auto read = [&](const Tensor& t) {
                std::vector<float> x(size_t(t.size()));
                g->read(StateKind::weights, t.offset, t.size(), x.data());
                return x;
            };
            for (const Tensor& t : g->tensors) before.push_back(read(t));
            for (int step = 0; step < 3; step++) {
                train_pass(*g, asked.in, asked.out, B, S);
                update(*g, 1e-2f, 0.95f, 0.1f);
            }
            for (size_t i = 0; i < g->tensors.size(); i++) {
                const Tensor& t = g->tensors[i];
                INFO(t.name);
                std::vector<float> now = read(t), kept = now;
                CHECK((now == before[i]) == t.frozen);
                if (t.adapter) keep_adapter_blocks(c, t, kept);
                CHECK((kept == now));
            }
        });
}

TEST_CASE("adapters: no gradients and no states for what is frozen, as a dry run tells") {
    const int B = 2, S = 16;
    const Config all = {101, 40, 2, 3, 48}, some = adapted(all), one = trained(all, {"1.fc2w"});
    const Plan plan = {RunMode::train, B, S};
    auto bytes = [&](const Config& c, const char* purpose) {
        Model g(cpu_ops<float>());
        REQUIRE(g.allocate(c, plan).ok());
        const std::vector<MemoryRow> told = memory_cost(g.op, c, plan).value;
        int64_t found = -1;
        for (size_t i = 0; i < g.memory.size(); i++) {
            CHECK(g.memory[i].bytes == told[i].bytes);
            if (g.memory[i].purpose == std::string(purpose)) found = g.memory[i].bytes;
        }
        REQUIRE(found >= 0);
        return found;
    };
    const int64_t slack = 3 * 64 * 17 + 4096;    // Layout::purpose
    CHECK(bytes(one, "gradients") < 4 * 48 * 192 + slack);
    CHECK(bytes(one, "optimizer state") < 8 * 48 * 192 + 48 * 192 / 64 + slack);
    CHECK(bytes(some, "gradients") < 4 * config_flat_size(some) + slack);
    CHECK(config_flat_size(some) < config_flat_size(all) / 8);
    CHECK(bytes(some, "parameters") > bytes(all, "parameters"));
    // The backward pass of what is trained alone: less than two thirds of the products.
    const double whole = training_cost(cpu_ops<float>(), all, B, S).products;
    CHECK(training_cost(cpu_ops<float>(), one, B, S).products < 0.6 * whole);
    CHECK(training_cost(cpu_ops<float>(), some, B, S).products < 0.85 * whole);
}

TEST_CASE("adapters: magnitudes are the norms of rows, at the start those of the base") {
    const Config base = split_config(GROUPED), c = decomposed(base);
    const int B = 2, S = 7;
    const Posed asked(c, B, S);
    Model plain(cpu_ops<float>()), g(cpu_ops<float>());
    toy_model(plain, base, {RunMode::train, B, S});
    REQUIRE(g.allocate(c, {RunMode::train, B, S}).ok());
    auto values = [](const Model& of, const std::string& name) {
        const auto t = std::ranges::find(of.tensors, name, &Tensor::name);
        std::vector<float> x(size_t(t->size()));
        of.read(StateKind::weights, t->offset, t->size(), x.data());
        return x;
    };
    auto set = [](Model& of, const std::string& name, const std::vector<float>& x) {
        const auto t = std::ranges::find(of.tensors, name, &Tensor::name);
        of.write(StateKind::weights, t->offset, t->size(), x.data());
    };
    for (const Tensor& t : plain.tensors) set(g, t.name, values(plain, t.name));
    g.store.init(c, 1, true);
    auto loss = [&](Model& of) { return train_pass(of, asked.in, asked.out, B, S); };
    const double before = loss(plain);
    CHECK(loss(g) == doctest::Approx(before).epsilon(1e-6));
    // Twice the magnitudes, and other directions.
    std::vector<float> w = values(g, "0.fc2w"), m = values(g, "0.fc2_m");
    const std::vector<float> a = values(g, "0.fc2_a");
    for (float& x : m) x *= 2;
    set(g, "0.fc2_m", m);
    set(g, "0.fc2_b", std::vector<float>(values(g, "0.fc2_b").size(), 0.1f));
    for (int o = 0; o < c.C; o++) {
        double was = 0, now = 0;
        std::vector<double> row;
        for (int k = 0; k < c.F; k++) {
            double low = 0;
            for (size_t at = size_t(k); at < a.size(); at += size_t(c.F)) low += 0.1 * double(a[at]);
            const double x = double(w[size_t(o * c.F + k)]);
            row.push_back(x + double(c.adapter.scale) * low);
            was += x * x;
            now += row.back() * row.back();
        }
        for (int k = 0; k < c.F; k++) w[size_t(o * c.F + k)] = float(row[size_t(k)] * 2 * std::sqrt(was / now));
    }
    set(plain, "0.fc2w", w);
    const double merged = loss(plain);
    CHECK(loss(g) == doctest::Approx(merged).epsilon(1e-6));
    CHECK(std::fabs(merged - before) > 1e-3);
}

TEST_CASE("adapters: gradients beside packed weights are those beside the same weights in floats") {
    Config c = {.V = 96, .T = 24, .L = 2, .NH = 4, .C = 256, .F = 512, .NKV = 2, .HS = 64};
    const Config adapters = adapted(split_config(c)), magnitudes = decomposed(split_config(c));
    const int B = 2, S = 20;
    const Posed asked(adapters, B, S);
    for (BlockType type : {BlockType::f32, BlockType::f16, BlockType::bf16, BlockType::q8_0, BlockType::q4_0,
                           BlockType::q4_1, BlockType::q5_0, BlockType::q5_1, BlockType::q4_k, BlockType::q6_k}) {
        INFO(block_format(type).name);
        c = type == BlockType::f32 || type == BlockType::q4_k ? magnitudes : adapters;
        Table table(cpu_packed_ops());
        table.linear_gelu_forward = nullptr;
        Model packed(table), floats(cpu_ops<float>());
        Plan plan = {RunMode::train, B, S};
        toy_model(floats, c, plan);
        // With smaller weights, rounding of activations is not amplified from product to product.
        copy_weights(floats, floats, [](float w) { return 0.3f * w; });
        plan.stored = [type](const Tensor& t) { return std::vector<FormatRows>{{t.rows, type}}; };
        REQUIRE(packed.allocate(c, plan).ok());
        copy_weights(floats, packed);
        copy_weights(packed, floats);    // rounded to the format
        const double loss = train_pass(floats, asked.in, asked.out, B, S);
        const bool exact = type == BlockType::f32 || type == BlockType::f16;
        CHECK(train_pass(packed, asked.in, asked.out, B, S) == doctest::Approx(loss).epsilon(exact ? 1e-5 : 1e-2));
        const std::vector<float> got = flat_grads(packed), expected = flat_grads(floats);
        REQUIRE(got.size() == expected.size());
        CHECK(norm_error(got, expected) < (exact ? 1e-5 : 3e-2));
        const uint64_t before = packed.store.hash();
        update(packed, 1e-2f, 0.95f, 0.1f);
        CHECK(packed.store.hash() != before);
        std::vector<float> w(size_t(c.C)), same(w);
        for (const Tensor& t : packed.tensors)
            if (t.name == "0.projw") {
                packed.read(StateKind::weights, t.offset, c.C, w.data());
                floats.read(StateKind::weights, t.offset, c.C, same.data());
            }
        CHECK((w == same));
    }
}

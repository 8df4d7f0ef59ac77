// test_count.cpp - predicted calls, FLOPs and memory equal a run's. Messages: test_scale.cpp.
#include <map>
#include <set>

#include "layers/cpu.h"
#include "train/gpu_plan.h"
#include "tools/bench/bench.h"
#include "tools/selftest/attention.h"

#include "test/ops/ops.h"
#include "toy_model.h"

namespace {
Config toy(int window = 0, int NKV = 2) {
    Config c = {.V = 61, .T = 64, .L = 2, .NH = 4, .C = 96, .F = 384};
    c.NKV = NKV, c.HS = 20, c.window = window;
    return c;
}
const auto nobody = [](void*, const void*, int64_t) { return false; };

// Makes a model call all of a table: a training step of two micro-batches, a prompt, two tokens.
void use(const Table& op, const Config& c, const Plan& plan) {
    const int N = plan.B * plan.S;
    const std::vector<int> tok = toy_tokens(N, c.V, 1);
    Model g(op);
    REQUIRE(g.allocate(c, plan).ok());
    g.init(1);
    g.train.begin();
    for (bool last : {false, true}) {
        g.batch.upload(tok.data(), tok.data(), plan.B, plan.S);
        g.forward(true);
        g.loss(true, 1 / float(2 * N));
        g.backward(last);
    }
    g.train.update({1e-3f, 0.9f, 0.95f, 1e-8f, 0.1f}, {}, 1);
    (void)g.train.finish();
    KvCache cache;
    REQUIRE(allocate_cache(g, cache, plan.B, c.T).ok());
    PendingHead head;
    for (int S : {plan.S, 1, 1}) head = extend(g, cache, tok.data(), S);
    std::vector<float> logits(size_t(plan.B) * size_t(c.V));
    compute_logits(g, head, logits.data());
}
}    // namespace

TEST_CASE("count: the work of a call follows from its arguments") {
    const Table op = cpu_ops<bf16>(), floats = cpu_ops<float>();
    const CostModel work(op, nobody), work_of_floats(floats, nobody);
    float numbers[64] = {};
    Activation* x = reinterpret_cast<Activation*>(numbers);
    Input* in = reinterpret_cast<Input*>(numbers);
    Parameter* w = reinterpret_cast<Parameter*>(numbers);
    Gradient* g = reinterpret_cast<Gradient*>(numbers);
    // y 8x2 in fp32, x 8x4, w 2x4 and b in bf16
    const Cost linear = work.linear_forward(x, in, w, w, nullptr, 8, 4, 2, {});
    CHECK(linear.products == 2 * 8 * 4 * 2);
    CHECK(linear.bytes == 4 * 8 * 2 + 2 * (8 * 4 + 2 * 4 + 2));
    CHECK(work.linear_forward(x, in, w, w, x, 8, 4, 2, {}).bytes == linear.bytes + 4 * 8 * 2);
    CHECK(work.linear_backward(nullptr, {g, true}, g, x, in, w, 8, 4, 2, {}).products == linear.products);
    CHECK(work.linear_backward(x, {g, true}, g, x, in, w, 8, 4, 2, {}).products == 2 * linear.products);
    // 3 sequences of 5, 2 heads of 4: 15 pairs each; with a window of 2: 9
    Heads h = {2, 2, 4};
    CHECK(work.attention_forward(in, numbers, x, 3, 5, h).products == 4 * 3 * 2 * 15 * 4);
    CHECK(work.attention_forward(in, numbers, x, 3, 5, h).bytes == 15 * (4 * 24 + 2 * 8) + 4 * 30);
    CHECK(work.attention_backward(x, x, in, x, numbers, 3, 5, h).bytes == 15 * (4 * 24 + 2 * 8 + 4 * 32) + 4 * 30);
    CHECK(work_of_floats.attention_forward(in, numbers, x, 3, 5, h).arithmetic == 4 * 3 * 2 * 15 * 4);
    h.window = 2;
    CHECK(work.attention_backward(x, x, in, x, numbers, 3, 5, h).products == 8 * 3 * 2 * 9 * 4);
    h.window = 0;
    // documents of 1 and 4, of 2 and 3, of 5: 1 + 10, 3 + 6 and 15 pairs
    const Span keys[15] = {{0, 1}, {1, 2}, {1, 3}, {1, 4}, {1, 5}, {0, 1}, {0, 2}, {2, 3},
                           {2, 4}, {2, 5}, {0, 1}, {0, 2}, {0, 3}, {0, 4}, {0, 5}};
    const auto memory = [](void* to, const void* from, int64_t bytes) {
        memcpy(to, from, size_t(bytes));
        return true;
    };
    h.keys = keys;
    CHECK(CostModel(op, memory).attention_forward(in, numbers, x, 3, 5, h).products == 4 * 2 * (11 + 9 + 15) * 4);
    h.keys = nullptr;
    const int pos = 6;
    const Pages pages = {Element::f32, x, x, nullptr, nullptr, h.NKV, &pos, 1};
    const Cost cached = CostModel(op, memory).attention_cached(in, x, pages, 3, 1, &pos, h);
    CHECK(cached.bytes == 4 * (2 * 3 * 2 * 4 * 7 + 3 * 24) + 2 * 3 * 8);
    CHECK(cached.flops() == 4 * 3 * 2 * 7 * 4);
    // 4 random tokens touch 2 (1 - 1/16) of 2 rows of dwte (read and written), and 2 of dwpe
    CHECK(work.embedding_backward(g, g, x, nullptr, 2, 2, 4, 2, nullptr).bytes ==
          doctest::Approx(4 * 4 * 4 + 4 * 4 + 2 * 4 * (2 * 15 / 16.0 + 2) * 4));
    const StateArray exact = {numbers}, codes = {numbers, numbers, Element::uint8};
    auto step = [&](const CostModel& of, float* master, StateArray m, StateArray v) {
        return of.update_weights(w, master, m, v, g, nullptr, 64, nullptr, UpdateRule::adamw, {}, 0).bytes;
    };
    CHECK(step(work, numbers, exact, exact) == 30 * 64 + 1);
    CHECK(step(work, nullptr, exact, exact) == 24 * 64 + 1);
    CHECK(step(work_of_floats, nullptr, exact, exact) == 28 * 64 + 1);
    CHECK(step(work_of_floats, nullptr, exact, {}) == 20 * 64 + 1);
    CHECK(step(work_of_floats, nullptr, codes, codes) == 16 * 64 + 2 * 2 * 4 + 1);
    CHECK(work.orthogonalize(g, g, 1, 3, 5).flops() == 5 * (3 * 9 * 5 + 27));
    CHECK(work.orthogonalize(g, g, 1, 5, 3).flops() == 5 * (3 * 9 * 5 + 27));
    CHECK(Peaks{4, 2, 1}.floor(Cost{.products = 8, .arithmetic = 2, .bytes = 2.5}) == 3);
    CHECK(Peaks{4, 2, 1}.floor(Cost{.products = 8, .arithmetic = 2, .bytes = 5}) == 5);
}

TEST_CASE("count: pairs of positions that see each other, one by one") {
    for (int p : {0, 1, 5, 20})
        for (int S : {1, 2, 7, 30})
            for (int window : {0, 1, 2, 6, 7, 21, 50, 100}) {
                double n = 0;
                for (int s = p; s < p + S; s++)
                    for (int k = 0; k <= s; k++) n += !window || k > s - window;
                CAPTURE(p);
                CAPTURE(S);
                CAPTURE(window);
                CHECK(CostModel::pairs(p, S, window) == n);
                for (int stride : {0, 1, 3, 10})
                    for (int global_tokens : {0, 1, 4, 50}) {
                        double more = 0;
                        for (int s = p; s < p + S; s++)
                            for (int k = 0; k <= s - window; k++)
                                more += k < global_tokens || (stride && k % stride == 0);
                        const Heads h = {.NH = 1,
                                         .NKV = 1,
                                         .HS = 1,
                                         .window = window,
                                         .stride = stride,
                                         .global_tokens = global_tokens};
                        if (window) CHECK(CostModel::pattern(p, S, h) == more);
                    }
            }
}

TEST_CASE("count: pairs of positions that see each other in patterns within spans, one by one") {
    const Table op = reference_ops();
    const int B = 2, S = 50;
    const Activation* const in = nullptr;
    Input* const out = nullptr;
    float* const lse = nullptr;
    const CostModel work(op, [](void* to, const void* from, int64_t bytes) {
        memcpy(to, from, size_t(bytes));
        return true;
    });
    for (int length : {9, 100000})
        for (int window : {1, 6, 100})
            for (int stride : {0, 1, 7})
                for (int global_tokens : {0, 1, 12, 80}) {
                    const TrueSpans spans(B, S, length, TrueSpans::all);
                    const Heads h = spans.in({.NH = 1,
                                              .NKV = 1,
                                              .HS = 1,
                                              .window = window,
                                              .stride = stride,
                                              .global_tokens = global_tokens});
                    double n = 0;
                    for (int k = 0; k < B * S; k++)
                        for (int j = h.keys[k].from; j < h.keys[k].to; j++) {
                            const int i = k % S;
                            n += std::abs(i - j) < window || std::min(i, j) < global_tokens ||
                                 (stride && j % stride == 0);
                        }
                    CHECK(work.attention_forward(out, lse, in, B, S, h).flops() == 4 * n);
                }
}

TEST_CASE("count: FLOPs of a step by hand, with a window, with fewer key heads, and however much is computed again") {
    Config c = {.V = 10, .T = 8, .L = 1, .NH = 2, .C = 8, .F = 16};
    // Weights: 192 of qkv, 64, 128 and 128 of the block, 16 x 8 of the head; 6 FLOPs each per
    // token. Causal pairs of 3 positions: 6, with 12 FLOPs for each of 8 channels (2 heads of 4).
    for (const Table& op : {Table(reference_ops()), Table(cpu_ops<float>()), Table(cpu_ops<bf16>())}) {
        CHECK(training_cost(op, c, 1, 3).flops() == 3 * 6 * 640 + 12 * 6 * 8);
        CHECK(training_cost(op, c, 5, 3).flops() == 5 * (3 * 6 * 640 + 12 * 6 * 8));
        CHECK(training_flops(op, c, 3) == 6 * 640 + 12 * 2 * 8);
        CHECK(training_flops(op, c, 3, true) == 6 * 640 + 12 * 2 * 8 + 2 * 128);    // the head forward once more
        CHECK(scoring_flops(op, c, 3) == 2 * 640 + 4 * 2 * 8);
        Config other = c;
        other.window = 2;    // 5 pairs
        CHECK(training_cost(op, other, 1, 3).flops() == 3 * 6 * 640 + 12 * 5 * 8);
        other = c;
        other.NKV = 1;    // 64 weights less
        CHECK(training_cost(op, other, 1, 3).flops() == 3 * 6 * 576 + 12 * 6 * 8);
        CostTable count(op);
        Model again(count.table);
        REQUIRE(again.allocate(c, {RunMode::train, 1, 3, Recompute::blocks}).ok());
        run_counted_step(again);    // one more forward, without head and last product
        CHECK(count.all().flops() == 3 * 6 * 640 + 12 * 6 * 8 + 3 * 2 * 384 + 4 * 6 * 8);
    }
}

TEST_CASE("count: calls, FLOPs and bytes are those of a real step") {
    struct Real final : Observer {
        std::map<Operation, CostTable::Sum> sums;
        using Observer::Observer;
        void call(const Cost& work, const std::function<void()>& run) override {
            run();
            CostTable::Sum& sum = sums[work.call.operation];
            sum.calls++, sum.work += work;
        }
    };
    for (const Table& op : {Table(reference_ops()), Table(cpu_ops<float>()), Table(cpu_ops<bf16>())})
        for (Recompute again : {Recompute::none, Recompute::cheap, Recompute::blocks}) {
            const Plan plan = {RunMode::train, 2, 37, again};
            Real real(op);
            {
                Model g(real.table);
                REQUIRE(g.allocate(toy(5), plan).ok());
                real.sums.clear();
                TrainingStep(toy(5), 2, 37).run(g);
                (void)g.train.finish();
            }
            CostTable count(op);
            Model g(count.table);
            REQUIRE(g.allocate(toy(5), plan).ok());
            count.clear();
            run_counted_step(g);
            (void)g.train.finish();
            for (int i = 0; i < int(Operation::count); i++) {
                CAPTURE(std::string(operation_name(Operation(i))));
                const CostTable::Sum &expected = real.sums[Operation(i)], &got = count.of(Operation(i));
                CHECK(got.calls == expected.calls);
                CHECK(got.work.flops() == expected.work.flops());
                CHECK(got.work.bytes == expected.work.bytes);
            }
        }
}

static void announced_scratch(const Table& op) {
    struct Measured final : Observer {
        int64_t most = 0;
        using Observer::Observer;
        void call(const Cost& work, const std::function<void()>& run) override {
            cpu_scratch_release();
            run();
            const int64_t told = real.scratch_bytes(work.call), held = cpu_scratch_allocated();
            CAPTURE(std::string(operation_name(work.call.operation)));
            CAPTURE(work.call.rows);
            CAPTURE(work.call.in);
            CAPTURE(work.call.out);
            CAPTURE(work.call.p);
            CHECK(held == told);
            most = std::max(most, held);
        }
    };
    CAPTURE(std::string(op.name));
    auto compare = [&](Config c, int B, int S) {
        c.T = 262, c.L = c.experts_every = 1, c.softmax_every = 0;
        Measured measured(op);
        use(measured.table, c, {RunMode::train, B, S, Recompute::cheap});
        CostTable count(op);
        use(count.table, c, {RunMode::train, B, S, Recompute::cheap});
        CHECK(count.scratch == measured.most);
    };
    for (auto [B, S, window] : {std::array{2, 40, 9}, {16, 1, 0}, {1, 260, 0}}) compare(toy(window), B, S);
    for (const Kind& k : kind_configs(toy(0))) {
        if (k.c.qk_norm == QkNormRope::QkNorm::none && k.name != std::string("llama")) continue;    // like other kinds
        CAPTURE(k.name);
        compare(k.c, 2, 40);
    }
    cpu_scratch_release();
}
TEST_CASE("cpu: scratch held is the scratch announced") {
    for (const TestTable& t : test_tables())    // base's emulated tiles are slow, and hold what the best set's do
        if (t.same_bits || test_long()) std::visit([](auto* op) { announced_scratch(*op); }, t.op);
}

// Prompts and steps of any length, with packed weights of all formats.
TEST_CASE("cpu: scratch held is the scratch announced, in generation") {
    struct Measured final : Observer {
        std::set<Operation> seen;
        using Observer::Observer;
        void call(const Cost& work, const std::function<void()>& run) override {
            cpu_scratch_release();
            run();
            CAPTURE(std::string(operation_name(work.call.operation)));
            CAPTURE(work.call.rows);
            CAPTURE(work.call.S);
            CAPTURE(work.call.p);
            CAPTURE(work.call.formats);
            CHECK(cpu_scratch_allocated() == real.scratch_bytes(work.call));
            if (cpu_scratch_allocated()) seen.insert(work.call.operation);
        }
    };
    const WeightFormats mixed = [](const Tensor& t) {
        const BlockType all[] = {BlockType::f32, BlockType::f16, BlockType::bf16, BlockType::q8_0, BlockType::q5_1};
        const auto i = size_t(t.offset / 64);
        return std::vector<FormatRows>{{48, all[i % 5]}, {t.rows, all[(i + 1 + i / 5) % 5]}};
    };
    std::vector<Table> tables = {cpu_ops<float>(), cpu_ops<bf16>()};
    for (int isa = 0; isa < ISA_COUNT; isa++)
        for (Tiles tiles : {Tiles::none, Tiles::emulated})
            if (cpu_supports(Isa(isa))) tables.push_back(cpu_packed_ops_isa(Isa(isa), tiles));
    for (const Table& op : tables)
        for (int kind = 0; kind < 5; kind++) {
            CAPTURE(std::string(op.name));
            CAPTURE(kind);
            Config c = toy(kind == 1 ? 9 : 0);
            c.T = 640, c.HS = 24;
            if (kind == 2) c.C = 512, c.HS = 128;    // rows copied, as they would share cache sets
            if (kind == 3) c.experts = 4, c.experts_used = 2, c.expert_ffn = 32;
            Measured measured(op);
            Model g(measured.table);
            REQUIRE(
                g.allocate(c, {.mode = RunMode::infer, .B = 2, .S = 90, .stored = kind < 4 ? mixed : nullptr}).ok());
            g.init(1);
            KvCache cache;
            REQUIRE(allocate_cache(g, cache, 2, c.T, {kind == 1 ? std::optional(Element::int8) : std::nullopt}).ok());
            const std::vector<int> tok = toy_tokens(180, c.V, 1);
            using enum Pages::SumOrder;
            extend(g, cache, tok.data(), 40);
            if (kind == 4) extend(g, cache, tok.data(), 90);    // more rows than packed_tiles.cpp takes
            for (int n = 0; n < 3 && kind == 1; n++) extend(g, cache, tok.data(), 90);    // more keys than a window
            extend(g, cache, tok.data(), 1);
            PendingHead head;
            for (auto [S, sums] : {std::pair{1, prefill}, {1, decode}, {5, decode}, {8, decode}, {3, prefill}})
                head = extend(g, cache, tok.data(), S, {1, 0}, {S, std::max(1, S - 2)}, sums);
            std::vector<float> logits(size_t(2 * c.V));
            compute_logits(g, head, logits.data());
            CHECK(measured.seen.contains(Operation::attention_cached));
            CHECK(measured.seen.contains(Operation::linear_forward));
        }
    cpu_scratch_release();
}

namespace {
// Counts calls of each operation with each precision.
struct CountByPrecision : CostTable {
    std::map<std::pair<Operation, Precision>, int64_t> calls;
    using CostTable::CostTable;

  protected:
    void call(const Cost& work, const std::function<void()>& run) override {
        calls[{work.call.operation, work.call.precision}]++;
        CostTable::call(work, run);
    }
};
}    // namespace

TEST_CASE("count: a prompt's products are its own, and no token's") {
    for (Act act : {Act::gelu_tanh, Act::silu}) {
        const Table op = cpu_packed_ops_isa(cpu_isa());
        Config c = toy();
        c.activation = act;
        const int fused = act == Act::gelu_tanh ? c.L : 0;
        CountByPrecision count(op);
        Model g(count.table);
        REQUIRE(g.allocate(c, {RunMode::infer, 2, 8}).ok());
        KvCache cache;
        REQUIRE(allocate_cache(g, cache, 2, c.T).ok());
        const std::vector<int> tok(16, 1);
        std::vector<float> logits(size_t(2 * c.V));
        auto is = [&](const PendingHead& head, bool prefill) {    // checks all products since its last call
            compute_logits(g, head, logits.data());
            for (Precision precision : {Precision::normal, Precision::fp8, Precision::prefill}) {
                const bool its = precision == (prefill ? Precision::prefill : Precision::normal);
                CHECK(count.calls[{Operation::linear_forward, precision}] == (its ? 4 * c.L - fused + 1 : 0));
                CHECK(count.calls[{Operation::linear_gelu_forward, precision}] == (its ? fused : 0));
            }
            count.calls.clear();
        };
        count.calls.clear();
        typedef Pages::SumOrder SumOrder;
        for (auto [S, sums, prefill] : {std::tuple{8, SumOrder::by_length, true},
                                        {1, SumOrder::by_length, false},
                                        {1, SumOrder::prefill, true},
                                        {3, SumOrder::decode, false},
                                        {3, SumOrder::prefill, true},
                                        {1, SumOrder::decode, false}}) {
            CAPTURE(S);
            CAPTURE(int(sums));
            is(extend(g, cache, tok.data(), S, {}, {}, sums), prefill);
        }
        g.batch.upload(tok.data(), nullptr, 2, 8);
        g.forward();
        is(whole_batch(g), true);
    }
}

static int64_t held = 0;
TEST_CASE("count: memory foretold is memory held") {
    auto counted = [](Table op) {
        static void* (*allocate)(int64_t);
        static void (*release)(void*, int64_t);
        allocate = op.allocate, release = op.release;
        op.allocate = [](int64_t bytes) { return held += bytes, allocate(bytes); };
        op.release = [](void* p, int64_t bytes) { held -= bytes, release(p, bytes); };
        return op;
    };
    for (const Table& op : {Table(cpu_ops<float>()), Table(cpu_ops<bf16>())})
        for (const Plan& plan : {Plan{RunMode::train, 2, 40}, Plan{RunMode::train, 3, 64, Recompute::blocks},
                                 Plan{RunMode::train, 1, 50, Recompute::cheap, false}, Plan{RunMode::infer, 4, 33}}) {
            const std::vector<MemoryRow> rows = memory_cost(op, toy(), plan).value;
            CHECK(std::string(rows.back().purpose) == "scratch of the operations");
            cpu_scratch_release();
            held = 0;
            Model g(counted(op));
            REQUIRE(g.allocate(toy(), plan).ok());
            CHECK(held == total_bytes(rows) - rows.back().bytes);
            const std::vector<int> tok = toy_tokens(plan.B * plan.S, toy().V, 1);
            if (plan.mode == RunMode::train) (void)train_pass(g, tok, tok, plan.B, plan.S);
            else losses_of(g, tok, tok, plan.B, plan.S, std::vector<float>(tok.size()).data());
            CHECK(cpu_scratch_allocated() == rows.back().bytes);
        }
    cpu_scratch_release();
    // A plan for 268 million tokens at once in a large model: nothing is computed or allocated.
    Config large = config_named("gpt2-xl").value;
    large.T = 1 << 16;
    CHECK(total_bytes(memory_cost(cpu_ops<float>(), large, {RunMode::train, 4096, 1 << 16}).value) > int64_t(1) << 40);
    CHECK(memory_cost(cpu_ops<float>(), large, {RunMode::train, 1 << 14, 1 << 16}).status.code == Exit::usage);
}

TEST_CASE("count: a generated token sees the positions before it") {
    const Config c = {97, 40, 2, 3, 48};
    CostTable count(cpu_ops<float>());
    Model g(count.table);
    REQUIRE(g.allocate(c, {RunMode::infer, 1, 8}).ok());
    KvCache cache;
    REQUIRE(allocate_cache(g, cache, 1, c.T).ok());
    const std::vector<int> tok(8, 1);
    extend(g, cache, tok.data(), 5);
    count.clear();
    extend(g, cache, tok.data(), 1);
    CHECK(count.of(Operation::attention_cached).work.flops() == 4.0 * c.L * c.NH * c.HS * 6);
}
TEST_CASE("count: a drawn token sees the positions before it, which the device has raised") {
    const Config c = {97, 40, 2, 3, 48};
    CostTable count{Table(reference_ops())};
    Model g(count.table);
    REQUIRE(g.allocate(c, {RunMode::infer, 1, 8}).ok());
    KvCache cache;
    REQUIRE(allocate_cache(g, cache, 1, c.T).ok());
    const std::vector<int> tok(8, 1);
    const SampleArgs sample_args = {.V = c.V};
    extend(g, cache, tok.data(), 5);
    for (int n = 6; n < 9; n++) {
        count.clear();
        extend(g, cache, n > 6 ? nullptr : tok.data(), 1, {}, {}, Pages::SumOrder::decode, &sample_args);
        CHECK(count.of(Operation::attention_cached).work.flops() == 4.0 * c.L * c.NH * c.HS * n);
        CHECK(count.of(Operation::sample).calls == 1);
        CHECK((count.of(Operation::upload).calls > 0) == (n == 6));
    }
}

TEST_CASE("experts: scratch is counted for any number of rows that one may get") {
    auto check = [](const auto& op) {
        for (auto [C, OC] : {std::pair{2048, 2048}, {512, 4096}, {96, 40}})
            for (auto [experts, linear] : {std::pair{Operation::experts_forward, Operation::linear_forward},
                                           {Operation::experts_backward, Operation::linear_backward}}) {
                const CallSizes all = {.operation = experts, .rows = 4096, .in = C, .out = OC};
                int64_t most = 0;
                for (int rows = 1; rows <= all.rows; rows++)
                    most = std::max(most, op.scratch_bytes({.operation = linear, .rows = rows, .in = C, .out = OC}));
                CHECK(op.scratch_bytes(all) >= most);
            }
    };
    check(cpu_ops<float>());
    check(cpu_ops<bf16>());
}

TEST_CASE("count: with fp8 all products between the first and the last block are fp8's, and no others") {
    for (Dtype dtype : {Dtype::fp8, Dtype::fp8_block, Dtype::bf16})
        for (int L : {1, 2, 3, 5})
            for (bool gated : {false, true}) {
                CAPTURE(L);
                CAPTURE(gated);
                Config c = {.V = 101, .T = 48, .L = L, .NH = 2, .C = 64};
                c.gated = gated;
                CountByPrecision count(planned_table(gpu_named("h100").value, dtype));
                Model g(count.table);
                REQUIRE(g.allocate(c, {RunMode::train, 2, 32}).ok());
                run_counted_step(g);
                auto calls = [&](Operation operation, Precision precision) {
                    return count.calls[{operation, precision}];
                };
                const int narrow = is_fp8(dtype) ? std::max(0, L - 2) : 0;
                CHECK(calls(Operation::linear_forward, Precision::fp8) == 4 * narrow);
                CHECK(calls(Operation::linear_backward, Precision::fp8) == 4 * narrow);
                CHECK(count.of(Operation::linear_forward).calls + count.of(Operation::linear_gelu_forward).calls ==
                      4 * L + 1);
                CHECK(count.of(Operation::linear_gelu_forward).calls == (gated ? 0 : L - narrow));
                // Validation and generation multiply in bf16.
                const std::vector<int> tok(32);
                g.batch.upload(tok.data(), nullptr, 1, 32);
                g.forward();
                KvCache cache;
                REQUIRE(allocate_cache(g, cache, 1, c.T).ok());
                for (int S : {16, 1}) extend(g, cache, tok.data(), S);
                CHECK(calls(Operation::linear_forward, Precision::fp8) == 4 * narrow);
            }
}

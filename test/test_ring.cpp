// test_ring.cpp - context parallelism: zigzag order, attention around a ring of ranks in double,
// the bytes that it sends, what excludes it.
#include "model/cost_table.h"
#include "test.h"
#include "thread_ranks.h"
#include "toy_model.h"

namespace {
constexpr int STEPS = 3, ROWS = 2, T = 48;    // ROWS: sequences of a step, over all ranks
const Config TOY = {.V = 37, .T = T, .L = 3, .NH = 2, .C = 12, .F = 20};

Config rope_config() {
    Config c = TOY;
    c.norm = NormKind::rms, c.gated = true, c.activation = Act::silu, c.position = Position::rope;
    c.NH = 4, c.NKV = 2, c.HS = 6, c.rope_dims = 6, c.qk_norm = QkNormRope::QkNorm::head;
    return c;
}
Config window_config(int window, int global_every) {
    Config c = rope_config();
    c.window = window, c.global_every = global_every, c.rope_local_theta = 10, c.score_cap = 2;
    return c;
}

struct RingJob {
    int ranks = 1, cp = 1;
    Config config = TOY;
    bool documents = false;
    int zero = 0;
    Recompute recompute = Recompute::none;
};
struct RingRun {
    std::vector<Step> steps;
    std::vector<double> params;    // by tensors, without padding
    double bytes = 0, loss = 0;    // sent by this rank; sum of the last batch's losses, without training
    bool operator==(const RingRun& o) const { return params == o.params; }
};

Spans documents_of(int rows, int first) {
    Spans spans;
    for (int b = first; b < first + rows; b++)
        spans.add(b % 2 ? std::vector<Text>{{0}, {5}, {6}, {29}} : std::vector<Text>{{0}, {24}, {41}}, T,
                  MaskKind::causal);
    return spans;
}

RingRun train(const RingJob& job, int rank = 0, ThreadComm* comm = nullptr) {
    Model g(reference_ops());
    g.store.comm = comm;
    const int rings = job.ranks / job.cp, rows = ROWS / rings, ring = rank / job.cp;
    toy_model(g, job.config,
              {.mode = RunMode::train,
               .B = rows,
               .S = T / job.cp,
               .recompute = job.recompute,
               .rank = rank,
               .ranks = job.ranks,
               .cp = job.cp,
               .zero = job.zero,
               .spans = job.documents});
    const Spans spans = documents_of(rows, ring * rows);
    RingRun run;
    auto batch = [&](uint64_t step) {
        const int first = ring * rows * T;
        auto in = toy_tokens(ROWS * T, job.config.V, 10 + step), out = toy_tokens(ROWS * T, job.config.V, 20 + step);
        g.batch.upload(in.data() + first, out.data() + first, rows, T, job.documents ? &spans : nullptr);
    };
    for (int step = 0; step < STEPS; step++) {
        g.train.begin(ROWS * T, 1, step, ROWS * T);
        batch(uint64_t(step));
        g.forward(true);
        g.loss(true, 1.0f / (ROWS * T));
        g.backward();
        // A key bias has gradient 0 but for rounding, which Adam with an eps of 1e-8 would amplify.
        g.train.update({.lr = 3e-2f, .beta1 = 0.9f, .beta2 = 0.95f, .eps = 1e-4f, .weight_decay = 0.1f}, {.clip = 0.7},
                       1);
        run.steps.push_back(g.train.finish());
    }
    if (comm) run.bytes = comm->bytes;
    batch(STEPS);
    g.forward();
    g.loss(false, 0);
    run.loss = g.mean_loss() * double(g.pass.targets);
    const double* params = typed<double>(g, g.store.params);
    for (const Tensor& t : g.tensors)
        run.params.insert(run.params.end(), params + t.offset, params + t.offset + t.size());
    return run;
}
std::vector<RingRun> train_ranks(const RingJob& job) {
    std::vector<RingRun> runs(static_cast<size_t>(job.ranks));
    Meeting meeting(job.ranks);
    std::vector<std::thread> threads;
    for (int r = 0; r < job.ranks; r++)
        threads.emplace_back([&, r] {
            ThreadComm comm(meeting, r, job.ranks);
            runs[size_t(r)] = train(job, r, &comm);
        });
    for (std::thread& t : threads) t.join();
    return runs;
}
// lse is float in the reference, too, which limits the agreement.
void expect_equal_runs(const RingJob& job) {
    RingJob alone = job;
    alone.ranks = alone.cp = 1, alone.zero = 0;
    const RingRun one = train(alone);
    const std::vector<RingRun> ring = train_ranks(job);
    double loss = 0;
    for (const RingRun& run : ring) {
        CHECK(run == ring[0]);
        loss += run.loss;
        for (size_t i = 0; i < STEPS; i++) {
            CHECK(run.steps[i].loss == doctest::Approx(one.steps[i].loss).epsilon(1e-6));
            CHECK(run.steps[i].norm == doctest::Approx(one.steps[i].norm).epsilon(1e-6));
        }
        REQUIRE(run.params.size() == one.params.size());
        double worst = 0;
        for (size_t i = 0; i < one.params.size(); i++)
            worst = std::max(worst, std::fabs(run.params[i] - one.params[i]));
        CHECK(worst < 1e-6);
    }
    // The ranks of every ring have summed the losses of their own positions.
    CHECK(loss == doctest::Approx(one.loss).epsilon(1e-6));
    CHECK(train_ranks(job)[0] == ring[0]);    // the same bits twice
}
}    // namespace

TEST_CASE("ring: zigzag order has each position once, and positions before another") {
    for (int ranks : {1, 2, 3, 4, 8}) {
        const int S = 6;
        std::vector<int> found(size_t(S * ranks), 0);
        for (int r = 0; r < ranks; r++) {
            const Zigzag z = {r, ranks, S};
            CHECK(z.position(0) == z.starts()[0]);
            if (ranks > 1) CHECK(z.position(S / 2) == z.starts()[1]);
            if (ranks > 1) CHECK(z.position(S / 2 - 1) + z.position(S / 2) == S * ranks - 1);
            for (int s = 0; s < S; s++) found[size_t(z.position(s))]++;
            for (int p = -2; p < S * ranks + 3; p++) {
                int before = 0;
                for (int s = 0; s < S; s++) before += z.position(s) < p;
                CHECK(z.before(p) == before);
            }
        }
        CHECK(std::ranges::count(found, 1) == S * ranks);
    }
}

TEST_CASE("ring: masks have the visible pairs of whole sequences, divided evenly if they are causal") {
    const int B = 2;
    for (int ranks : {2, 4, 8})
        for (int window : {0, 1, 7, 30})
            for (bool documents : {false, true}) {
                const int S = T / ranks;
                const Spans whole = documents_of(B, 0);
                std::vector<int> pairs_of;
                for (int r = 0; r < ranks; r++) {
                    const Zigzag mine = {r, ranks, S};
                    int pairs = 0;
                    for (int source = 0; source < ranks; source++) {
                        const Zigzag theirs = mine.of(source);
                        std::vector<Span> keys(size_t(B * S)), queries(keys);
                        const bool any =
                            mine.mask(keys.data(), queries.data(), source, documents ? &whole : nullptr, window, B);
                        int here = 0;
                        for (int n = 0; n < B * S * S; n++) {
                            const int b = n / S / S, i = n / S % S, j = n % S;
                            const int query = mine.position(i), key = theirs.position(j), row = b * T + query;
                            const bool seen = key <= query && (!window || query - key < window) &&
                                              (!documents || key >= whole.keys[size_t(row)].from);
                            const Span k = keys[size_t(b * S + i)], q = queries[size_t(b * S + j)];
                            const bool by_keys = j >= k.from && j < k.to, by_queries = i >= q.from && i < q.to;
                            if (by_keys != seen || by_queries != seen) CHECK(n == -1);
                            here += seen;
                        }
                        CHECK(any == (here > 0));
                        pairs += here;
                    }
                    pairs_of.push_back(pairs);
                }
                if (!window && !documents) CHECK(std::ranges::count(pairs_of, pairs_of[0]) == ranks);
            }
}

TEST_CASE("ring: several ranks are one process, with learned positions") {
    for (int ranks : {2, 4, 8}) expect_equal_runs({.ranks = ranks, .cp = ranks});
}

TEST_CASE("ring: rotary positions, groups of heads, norms of queries and keys; sinusoids") {
    for (int ranks : {2, 4}) expect_equal_runs({.ranks = ranks, .cp = ranks, .config = rope_config()});
    Config fixed = TOY;
    fixed.position = Position::sinusoidal;
    expect_equal_runs({.ranks = 2, .cp = 2, .config = fixed});
}

TEST_CASE("ring: windows, in all layers and in some") {
    for (int ranks : {2, 4, 8})
        for (int window : {1, 5, 20})
            expect_equal_runs({.ranks = ranks, .cp = ranks, .config = window_config(window, 2)});
    expect_equal_runs({.ranks = 4, .cp = 4, .config = window_config(9, 0)});
}

TEST_CASE("ring: documents apart, with positions that count from their beginnings, and in windows") {
    for (int ranks : {2, 4, 8}) {
        expect_equal_runs({.ranks = ranks, .cp = ranks, .documents = true});
        expect_equal_runs({.ranks = ranks, .cp = ranks, .config = window_config(7, 2), .documents = true});
    }
}

TEST_CASE("ring: two rings beside each other, with ZeRO 1 and 2 and recomputed blocks") {
    for (int zero : {0, 1, 2}) expect_equal_runs({.ranks = 4, .cp = 2, .zero = zero});
    expect_equal_runs({.ranks = 4, .cp = 4, .config = rope_config(), .zero = 2, .recompute = Recompute::blocks});
    expect_equal_runs({.ranks = 2, .cp = 2, .config = rope_config(), .recompute = Recompute::cheap});
}

// 3 (N-1) B S 2 NKV HS elements a layer and batch; a third more with recomputed blocks (ring.h).
TEST_CASE("ring: the bytes that are sent are the formula's, and those that a dry run counts") {
    for (int ranks : {2, 4, 8})
        for (Recompute recompute : {Recompute::none, Recompute::blocks}) {
            const Config c = rope_config();
            Plan plan = {.mode = RunMode::train, .B = ROWS, .S = T / ranks, .recompute = recompute};
            plan.ranks = plan.cp = ranks;
            const CostComm sent = step_messages(reference_ops(), c, plan, 2).value;
            const double keys = double(ROWS) * T / ranks * 2 * c.NKV * c.HS * 8;
            const int messages = (recompute == Recompute::blocks ? 4 : 3) * (ranks - 1);
            CHECK(sent.passes == 2 * c.L * messages * keys);
            plan.cp = 1;
            const CostComm plain = step_messages(reference_ops(), c, plan, 2).value;
            CHECK(plain.passes == 0);
            CHECK((plain.sums == sent.sums && plain.gathers == sent.gathers));
            const RingRun run = train_ranks({ranks, ranks, c, false, 0, recompute})[0];
            CHECK(run.bytes == doctest::Approx(STEPS * (sent.sums + sent.passes / 2)).epsilon(1e-12));
        }
}

TEST_CASE("ring: a rank has its part of the positions' memory and of the pairs' FLOPs") {
    Config c = rope_config();
    c.T = 4096;
    auto of = [&](int ranks) {
        Plan plan = {.mode = RunMode::train, .B = 1, .S = 4096 / ranks};
        plan.ranks = plan.cp = ranks;
        CostTable count(reference_ops());
        CostComm comm(ranks);
        Model model(count.table);
        model.store.comm = &comm;
        REQUIRE(model.allocate(c, plan).ok());
        run_counted_step(model);
        int64_t activations = 0;
        for (const MemoryRow& row : model.memory)
            if (contains(row.purpose, "activation")) activations += row.bytes;
        return std::pair{count.all().flops(), double(activations)};
    };
    const auto [flops, bytes] = of(1);
    for (int ranks : {2, 4, 8}) {
        CHECK(of(ranks).first * ranks == doctest::Approx(flops).epsilon(2e-3));
        CHECK(of(ranks).second * ranks == doctest::Approx(bytes).epsilon(0.15));    // beside the masks
    }
}

TEST_CASE("ring: what excludes a ring is refused, and the message says what was found") {
    auto said = [](const Config& c, int S, int ranks, int cp, float dropout = 0) {
        Plan plan = {.mode = RunMode::train, .B = 1, .S = S / cp};
        plan.ranks = ranks, plan.cp = cp, plan.dropout = dropout;
        const Status s = Ring::check(c, plan);
        CHECK(s.code == (s.message.empty() ? Exit::ok : Exit::usage));
        return s.message;
    };
    CHECK(said(TOY, 48, 4, 2) == "");
    CHECK(contains(said(TOY, 48, 3, 2), "a divisor of the number of ranks, found 3"));
    CHECK(contains(said(TOY, 14, 2, 2), "--seq-len 14: expected a multiple of 2 x cp = 4"));
    CHECK(contains(said(TOY, 48, 2, 2, 0.1f), "without dropout"));
    auto of = [&](auto change) {
        Config c = TOY;
        change(c);
        return said(c, 48, 2, 2);
    };
    CHECK(contains(of([](Config& c) { c.position = Position::alibi; }), "without ALiBi"));
    for (const Position position : {Position::t5, Position::relative_key})
        CHECK(contains(of([&](Config& c) { c.position = position; }), "without relative position biases"));
    CHECK(contains(of([](Config& c) { c.linear = LinearAttention::elu; }), "without linear attention"));
    CHECK(contains(of([](Config& c) { c.window = 4, c.stride = 2; }), "without sparse attention"));
    CHECK(contains(of([](Config& c) { c.mask_kind = MaskKind::all; }), "without a mask that is not causal"));
    CHECK(contains(of([](Config& c) { c.smear = true; }), "without smear"));
    CHECK(contains(of([](Config& c) { c.experts = 4; }), "without experts"));
}

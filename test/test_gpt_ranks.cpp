// test_gpt_ranks.cpp - training by ranks, in double, equals one process with the whole batch.
#include <cstring>
#include <mutex>
#include <set>

#include "model/cost_table.h"
#include "test.h"
#include "thread_ranks.h"
#include "toy_checkpoint.h"
#include "toy_model.h"

namespace {
const Config TOY = {.V = 37, .T = 9, .L = 3, .NH = 2, .C = 12, .F = 20};
constexpr int B = 4, S = 7, STEPS = 4;    // B: sequences of a step, over all ranks

struct Run {
    std::vector<Step> steps;
    std::vector<std::vector<RankReport>> reports;
    std::vector<std::vector<double>> router_totals;
    std::vector<double> first_squares;         // TrainStep::first_square of each step
    std::vector<double> params;                // by tensors, without padding
    std::vector<std::vector<float>> states;    // optimizer states; NaN for other owners' elements
    uint64_t hash = 0;
    int64_t calls = 0;
    double bytes = 0;
    bool operator==(const Run& o) const { return hash == o.hash && params == o.params && states == o.states; }
};

struct Job {
    int ranks = 1, zero = 0, batches = 1;    // batches per step, of B / ranks / batches
    Config config = TOY;
    const Optimizer* optimizer = &ADAMW;
    float dropout = 0;
    float balance = 0;        // the balance loss; router z-loss: a tenth
    bool extras = false;      // states of 8 bits, an average of the weights, clipping by groups
    double poison = 0;        // gradient of rank 1 in step 2
    std::string save = {};    // run directory of a final checkpoint
};

// Writes a checkpoint together with the other ranks.
void save(const std::string& run, const Model& g, const Listener& listener) {
    RankInfo info;
    info.rank = g.plan.rank, info.ranks = g.plan.ranks;
    auto coordinator = Coordinator::rendezvous(info, info.rank == 0 ? listener : Listener(), "127.0.0.1", listener.port,
                                               job_token("test_gpt_ranks"), 20);
    CHECK_MESSAGE(coordinator.ok(), coordinator.status.message);    // no REQUIRE: exceptions cannot leave a thread
    if (!coordinator.ok()) return;
    const Status s = checkpoint_write(run, g, Tokenizer(), toy_state(STEPS, 1), real_disk(), coordinator.value.get());
    CHECK_MESSAGE(s.ok(), s.message);
}

Run train(const Job& job, int rank = 0, Comm* comm = nullptr, const Listener& listener = {}) {
    const auto& [ranks, zero, batches, config, optimizer, dropout, balance, extras, poison, run_dir] = job;
    Model g(reference_ops());
    const int rows = B / ranks / batches;
    g.store.comm = comm;
    const Element state = extras ? Element::uint8 : Element::f32;
    toy_model(g, config,
              {.mode = RunMode::train,
               .B = rows,
               .S = S,
               .optimizer = optimizer,
               .state_types = {state, state},
               .clip_groups = extras,
               .average = extras,
               .rank = rank,
               .ranks = ranks,
               .zero = zero,
               .dropout = dropout,
               .attention_dropout = dropout,
               .balance = balance,
               .router_z_loss = balance / 10,
               .first_squares = true});
    Run run;
    for (int step = 0; step < STEPS; step++) {
        const int V = config.V;
        auto in = toy_tokens(B * S, V, uint64_t(10 + step)), out = toy_tokens(B * S, V, uint64_t(20 + step));
        g.train.begin(0, 1, step, batches == 1 ? 0 : B * S);
        for (int i = 0; i < batches; i++) {
            const int first = (i * ranks + rank) * rows * S;
            g.batch.upload(in.data() + first, out.data() + first, rows, S);
            g.forward(true);
            g.loss(true, 1.0f / (B * S));
            if (poison != 0 && step == 2 && rank == 1) typed<double>(g, g.dt)[3] = poison;
            g.backward(i + 1 == batches);
        }
        // A key bias has gradient 0 but for rounding, which Adam with an eps of 1e-8 would amplify.
        const OptimizerParams params = {.lr = 3e-2f,
                                        .beta1 = 0.9f,
                                        .beta2 = 0.95f,
                                        .eps = 1e-4f,
                                        .weight_decay = 0.1f,
                                        .momentum = 0.9f,
                                        .average_rate = extras ? 0.3f : 0};
        g.train.update(params, {.clip = 0.7}, 1, rank == 1 && step == 1 ? 15 : 0);
        run.reports.emplace_back(), run.router_totals.emplace_back();
        run.steps.push_back(g.train.finish(&run.reports.back(), &run.router_totals.back()));
        run.first_squares.push_back(g.train.first_square);
    }
    run.hash = g.store.hash();
    if (comm) run.calls = static_cast<ThreadComm*>(comm)->calls, run.bytes = static_cast<ThreadComm*>(comm)->bytes;
    const double* params = typed<double>(g, g.store.params);
    for (const Tensor& t : g.tensors)
        run.params.insert(run.params.end(), params + t.offset, params + t.offset + t.size());
    const std::vector<int> owners = config_owners(config, ranks);
    g.store.collect();
    if (!run_dir.empty()) save(run_dir, g, listener);
    for (const SavedState& state : optimizer_states(g)) {
        std::vector<float>& all = run.states.emplace_back();
        for (const Tensor& t : state.tensors) {
            std::vector<float> x(size_t(t.size()), NAN);
            if (owners[size_t(t.bucket)] == rank) g.read(state.part, t.offset, t.size(), x.data());
            all.insert(all.end(), x.begin(), x.end());
        }
    }
    return run;
}

std::vector<Run> train_ranks(const Job& job) {
    std::vector<Run> runs(static_cast<size_t>(job.ranks));
    Meeting meeting(job.ranks);
    const Listener listener = job.save.empty() ? Listener() : Listener::open("127.0.0.1", 0).value;
    std::vector<std::thread> threads;
    for (int r = 0; r < job.ranks; r++)
        threads.emplace_back([&, r] {
            ThreadComm comm(meeting, r, job.ranks);
            runs[size_t(r)] = train(job, r, &comm, listener);
        });
    for (std::thread& t : threads) t.join();
    return runs;
}
// An optimizer state of all ranks; every element comes from exactly one owner.
std::vector<float> together(const std::vector<Run>& runs, size_t state) {
    std::vector<float> all = runs[0].states[state];
    for (size_t i = 0; i < all.size(); i++) {
        int owners = 0;
        for (const Run& r : runs)
            if (const float x = r.states[state][i]; !std::isnan(x)) all[i] = x, owners++;
        REQUIRE(owners == 1);
    }
    return all;
}
}    // namespace

TEST_CASE("gpt ranks: a process of its own is the same with ZeRO and without") {
    const Run plain = train({.batches = 2});
    for (int zero : {1, 2}) CHECK(train({.zero = zero, .batches = 2}) == plain);
}

TEST_CASE("gpt ranks: each rank measures the gradient of its own first batch of a step") {
    // A model with the same weights and that batch alone.
    auto square = [](int rank, int ranks, int batches) {
        Model g(reference_ops());
        const int rows = B / ranks / batches, first = rank * rows * S;
        toy_model(g, TOY, {.mode = RunMode::train, .B = rows, .S = S});
        const auto in = toy_tokens(B * S, TOY.V, 10), out = toy_tokens(B * S, TOY.V, 20);
        g.train.begin(0, 1, 0, B * S);
        g.batch.upload(in.data() + first, out.data() + first, rows, S);
        g.forward(true);
        g.loss(true, 1.0f / (B * S));
        g.backward();
        return std::pow(g.train.grad_norm(), 2);
    };
    for (const auto& [ranks, batches] : {std::pair{1, 2}, {2, 1}, {2, 2}}) {
        std::vector<Run> plain;
        for (int zero : {0, 1, 2}) {
            const std::vector<Run> runs = train_ranks({.ranks = ranks, .zero = zero, .batches = batches});
            if (!zero) plain = runs;
            for (int r = 0; r < ranks; r++) {
                const std::vector<double>& squares = runs[size_t(r)].first_squares;
                CHECK(squares[0] == doctest::Approx(square(r, ranks, batches)).epsilon(1e-12));
                for (size_t i = 0; i < squares.size(); i++)
                    CHECK(squares[i] == doctest::Approx(plain[size_t(r)].first_squares[i]).epsilon(1e-12));
            }
        }
        CHECK(plain[0].first_squares[1] != plain[0].first_squares[0]);
    }
}

TEST_CASE("gpt ranks: buckets cover the buffer in equal parts, and have one owner each") {
    for (int ranks : {1, 2, 3, 8, 512}) {
        const std::vector<Bucket> buckets = config_buckets(TOY, ranks);
        REQUIRE(buckets.size() == size_t(TOY.L) + 1);
        int64_t at = 0;
        for (const Bucket& k : buckets) {
            CHECK(k.offset == at);
            CHECK(k.size % (64 * ranks) == 0);
            at += k.size;
        }
        CHECK(at == config_flat_size(TOY, ranks));
        for (const Tensor& t : config_tensors(TOY, ranks)) {
            const Bucket& k = buckets[size_t(t.bucket)];
            CHECK(t.offset >= k.offset);
            CHECK(t.offset + t.size() <= k.offset + k.size);
        }
        for (int owner : config_owners(TOY, ranks)) CHECK(owner < ranks);
    }
    // 124M parameters over 8 ranks: no rank saves more than the embeddings' bucket.
    const Config gpt2 = config_named("gpt2").value;
    std::vector<int64_t> load(8);
    const std::vector<Bucket> buckets = config_buckets(gpt2, 8);
    const std::vector<int> owners = config_owners(gpt2, 8);
    for (size_t k = 0; k < owners.size(); k++) load[size_t(owners[k])] += buckets[k].size;
    CHECK(*std::max_element(load.begin(), load.end()) == buckets[0].size);
}

namespace {
// For every ZeRO stage: equal within tolerance to one process with the whole batch, bit-identical
// to plain data parallelism.
void check_ranks(const Run& one, Job job) {
    const int ranks = job.ranks, batches = job.batches;
    const std::vector<Run> plain = train_ranks(job);
    for (int zero : {0, 1, 2}) {
        job.zero = zero;
        const std::vector<Run> runs = zero ? train_ranks(job) : plain;
        for (const Run& r : runs) {
            INFO("ranks " << ranks << " batches " << batches << " zero " << zero);
            CHECK(relative_error(r.params.data(), one.params.data(), int64_t(one.params.size())) < 1e-9);
            for (int s = 0; s < STEPS; s++) {
                CHECK(r.steps[size_t(s)].loss == doctest::Approx(one.steps[size_t(s)].loss).epsilon(1e-12));
                CHECK(r.steps[size_t(s)].norm == doctest::Approx(one.steps[size_t(s)].norm).epsilon(1e-10));
                const std::vector<double>&totals = r.router_totals[size_t(s)], &all = one.router_totals[size_t(s)];
                CHECK(relative_error(totals.data(), all.data(), int64_t(all.size())) < 1e-9);
            }
            CHECK(r.hash == runs[0].hash);
            // Gradients are reduced once a step, but by ZeRO-2 after every batch: with two batches
            // its floating-point sums come in another order.
            if (zero < 2 || batches == 1) CHECK(r.hash == plain[0].hash);
        }
        for (size_t i = 0; i < one.states.size(); i++) {
            const std::vector<float> all = together(runs, i);
            CAPTURE(i);
            CAPTURE(zero);
            CHECK(relative_error(all.data(), one.states[i].data(), int64_t(all.size())) < 1e-6);
        }
        const std::vector<Run> again = train_ranks(job);
        CHECK(again[0].hash == runs[0].hash);
    }
}

// A checkpoint by all ranks, loaded in one process, has the ranks' weights and states to the bit.
void check_saved(const Job& job) {
    const std::vector<Run> runs = train_ranks(job);
    const std::vector<std::string> saved = checkpoint_list(job.save);
    REQUIRE(!saved.empty());
    const std::string dir = saved.back();
    CHECK(checkpoint_verify(dir).ok());
    Model read(cpu_ops<float>());
    const Element type = job.extras ? Element::uint8 : Element::f32;
    const Plan plan = {
        .mode = RunMode::train, .optimizer = job.optimizer, .state_types = {type, type}, .average = job.extras};
    REQUIRE(read.allocate(job.config, plan).ok());
    const Status weights = checkpoint_weights(dir, read, true), states = checkpoint_optimizer(dir, read);
    REQUIRE_MESSAGE((weights.ok() && states.ok()), weights.message << states.message);
    auto by_tensors = [&](const SavedState& state) {
        std::vector<float> all;
        for (const Tensor& t : state.tensors) {
            std::vector<float> x(size_t(t.size()), NAN);
            read.read(state.part, t.offset, t.size(), x.data());
            all.insert(all.end(), x.begin(), x.end());
        }
        return all;
    };
    CHECK(same_bits(by_tensors(weights_state(read)), {runs[0].params.begin(), runs[0].params.end()}));
    const std::vector<SavedState> saved_states = optimizer_states(read);
    for (size_t i = 0; i < saved_states.size(); i++) CHECK(same_bits(by_tensors(saved_states[i]), together(runs, i)));
}
}    // namespace

TEST_CASE("gpt ranks: 2 and 4 ranks are one process with the whole batch; ZeRO-1 and 2 are plain to the bit") {
    const Run one = train({});
    for (int ranks : {1, 2, 4})
        for (int batches : {1, 2})
            if (B / ranks / batches) check_ranks(one, {.ranks = ranks, .batches = batches});
}

TEST_CASE("gpt ranks: the same of tensors that files hold in pieces, and without those that a family lacks") {
    std::vector<Config> configs = lacking_configs(TOY);
    for (bool transposed : {false, true}) configs.push_back(split_config(TOY, transposed));
    for (const Config& c : configs) {
        const Run one = train({.config = c});
        for (int ranks : {2, 4}) check_ranks(one, {.ranks = ranks, .config = c});
        for (int ranks : {1, 2, 4})
            for (int zero : {0, 1, 2})
                check_saved({.ranks = ranks, .zero = zero, .config = c, .save = temporary_directory()});
    }
}

TEST_CASE("gpt ranks: the same of other kinds of models") {
    Config grouped = TOY;
    grouped.NKV = 1, grouped.HS = 8;
    // olmo2: no norm before a branch, QK-norm, gate; gemma3: norms on both sides; gptj: one norm,
    // few biases; bloom: ALiBi, normed embeddings; qwen2_moe: shared expert; gated: no softmax
    std::set<std::string> names = {"olmo2", "gemma3", "gptj", "bloom", "qwen2_moe", "gated"};
    for (auto& [name, kind] : kind_configs(grouped)) {
        if (!names.erase(name)) continue;
        Config c = kind;
        if (c.experts) c.experts_used = 2;    // routing to 2 of 3 experts
        CAPTURE(std::string(name));
        const float balance = c.experts ? 0.3f : 0;
        const Run one = train({.config = c, .balance = balance});
        for (int batches : {1, 2}) check_ranks(one, {.ranks = 2, .batches = batches, .config = c, .balance = balance});
        for (int zero : {1, 2}) check_saved({.ranks = 4, .zero = zero, .config = c, .save = temporary_directory()});
    }
    CHECK(names.empty());
}

TEST_CASE("gpt ranks: with dropout, too: the same numbers are dropped, however the step is cut") {
    const Run one = train({.dropout = 0.3f}), none = train({});
    CHECK(one.steps[0].loss != none.steps[0].loss);
    for (int ranks : {1, 2, 4})
        for (int batches : {1, 2, 4})
            if (B / ranks / batches) check_ranks(one, {.ranks = ranks, .batches = batches, .dropout = 0.3f});
}

TEST_CASE("gpt ranks: the same with other optimizers: an optimizer is one row") {
    Config experts = TOY;
    experts.experts = 3, experts.experts_used = 2, experts.expert_ffn = 10;
    for (const Optimizer* optimizer : {&MUON, &NORMUON, &LION, &SIGNUM})
        for (Config c : {TOY, split_config(TOY, true), experts}) {
            INFO(std::string(optimizer->name));
            // The gradient of a key's bias is 0 but for rounding, and a sign does not forgive that.
            if (optimizer->rule != UpdateRule::adamw) c.qkv_bias = false;
            const Run one = train({.config = c, .optimizer = optimizer});
            CHECK(one.params != train({.config = c}).params);
            for (int ranks : {2, 4}) check_ranks(one, {.ranks = ranks, .config = c, .optimizer = optimizer});
            check_ranks(one, {.ranks = 2, .batches = 2, .config = c, .optimizer = optimizer});
            for (int ranks : {1, 4})
                for (int zero : {0, 1, 2})
                    check_saved({.ranks = ranks,
                                 .zero = zero,
                                 .config = c,
                                 .optimizer = optimizer,
                                 .save = temporary_directory()});
        }
}

TEST_CASE("gpt ranks: states of rows that every rank has loaded are collected, not added up") {
    Meeting meeting(2);
    std::vector<std::thread> threads;
    for (int rank = 0; rank < 2; rank++)
        threads.emplace_back([&, rank] {
            ThreadComm comm(meeting, rank, 2);
            Model g(reference_ops());
            g.store.comm = &comm;
            toy_model(g, TOY,
                      {.mode = RunMode::train, .B = 1, .S = S, .optimizer = &NORMUON, .rank = rank, .ranks = 2});
            const std::vector<Tensor> rows = state_tensors(g.tensors, NORMUON, StateSize::row);
            for (const Tensor& t : rows)
                g.write(optimizer_state(2), t.offset, t.rows, std::vector<float>(size_t(t.rows), 3).data());
            g.store.collect();
            for (const Tensor& t : rows) {
                std::vector<float> x(static_cast<size_t>(t.rows));
                g.read(optimizer_state(2), t.offset, t.rows, x.data());
                CHECK(std::ranges::count(x, 3.0f) == t.rows);
            }
            g.store.forget();
        });
    for (std::thread& t : threads) t.join();
}

TEST_CASE("gpt ranks: states of 8 bits, an average of the weights, and clipping by groups") {
    Config c = TOY;
    c.qkv_bias = false;    // the gradient of a key's bias is 0 but for rounding: its codes are arbitrary
    for (const Optimizer* optimizer : {&ADAMW, &NORMUON}) {
        INFO(std::string(optimizer->name));
        const Run one = train({.config = c, .optimizer = optimizer, .extras = true});
        CHECK(one.params != train({.config = c, .optimizer = optimizer}).params);
        for (int ranks : {2, 4})
            check_ranks(one, {.ranks = ranks, .config = c, .optimizer = optimizer, .extras = true});
        for (int ranks : {1, 4})
            for (int zero : {0, 1, 2})
                check_saved({.ranks = ranks,
                             .zero = zero,
                             .optimizer = optimizer,
                             .extras = true,
                             .save = temporary_directory()});
    }
}

TEST_CASE("gpt ranks: gradients are sent once a step, bucket by bucket; ZeRO-2's after every batch") {
    const int buckets = TOY.L + 1, verdict = 1;
    CHECK(train_ranks({2, 0, 2})[0].calls == STEPS * (buckets + verdict));
    CHECK(train_ranks({2, 1, 2})[0].calls == STEPS * (2 * buckets + verdict));
    CHECK(train_ranks({2, 2, 2})[0].calls == STEPS * (3 * buckets + verdict));
    // Reduce-scatter and all-gather are the two halves of an all-reduce.
    CHECK(train_ranks({4, 1, 1})[0].bytes == train_ranks({4, 0, 1})[0].bytes);
}

TEST_CASE("gpt ranks: a NaN of one rank stops the update of all, and every rank gets the others' reports") {
    for (int zero : {0, 1, 2}) {
        const std::vector<Run> runs = train_ranks({.ranks = 2, .zero = zero, .poison = NAN});
        for (const Run& r : runs) {
            CHECK(r.steps[1].skipped == 0);
            CHECK(r.steps[2].skipped == 1);
            CHECK(r.steps[2].updates == 2);
            CHECK(r.steps[3].skipped == 0);
            CHECK(r.hash == runs[0].hash);
            for (double p : r.params) REQUIRE(std::isfinite(p));
            CHECK(r.reports[0][0].signal == 0);
            CHECK(r.reports[1][0].signal == 0);
            CHECK(r.reports[1][1].signal == 15);
            CHECK(r.reports[1][0].loss != r.reports[1][1].loss);
            const double both = r.reports[1][0].loss + r.reports[1][1].loss;
            CHECK(both / (B * S) == doctest::Approx(r.steps[1].loss).epsilon(1e-12));
        }
    }
}

TEST_CASE("gpt ranks: memory of a rank shrinks as ZeRO says") {
    const Config c = config_named("gpt2").value;
    auto bytes = [&](int ranks, int zero, const char* purpose) {
        const Plan plan = {.mode = RunMode::train, .B = 1, .S = 64, .ranks = ranks, .zero = zero};
        for (const MemoryRow& r : memory_cost(cpu_ops<float>(), c, plan).value)
            if (!strcmp(r.purpose, purpose)) return double(r.bytes);
        return 0.0;
    };
    const double P = double(config_flat_size(c)), largest = double(config_buckets(c)[0].size);
    const double block = double(config_buckets(c)[1].size);
    CHECK(bytes(8, 0, "optimizer state") == doctest::Approx(8 * P).epsilon(0.01));
    CHECK(bytes(8, 1, "optimizer state") == doctest::Approx(P + P / 64).epsilon(0.01));
    CHECK(bytes(8, 1, "gradients") == doctest::Approx(4 * P).epsilon(0.01));
    CHECK(bytes(8, 2, "gradients") == doctest::Approx(P / 2 + 4 * largest + 8 * block).epsilon(0.01));
}

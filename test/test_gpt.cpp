// test_gpt.cpp - the whole model: gradients of all parameters, CPU against reference, training.
#include <atomic>
#include <chrono>
#include <thread>

#include "base/philox.h"
#include "base/pool.h"
#include "checkpoint/checkpoint.h"
#include "model/cost_table.h"
#include "tensors.h"
#include "test.h"
#include "model_checks.h"

TEST_CASE("gpt: known sizes") {
    CHECK(config_parameters(config_named("gpt2").value) == 124439808);
    CHECK(config_parameters(config_named("gpt2-xl").value) == 1557611200);
    CHECK(config_named("d6").value.C == 384);
    for (const char* bad : {"", "d", "d0", "d-1", "dx", "d6x", "gpt3", "d99999"})
        CHECK(config_named(bad).status.code == Exit::usage);
}

TEST_CASE("gpt: gradients of all parameters equal central differences") {
    Config multi_query = GROUPED, windowed = TOY, one_channel = TOY;
    multi_query.NKV = 1, multi_query.HS = 2, windowed.window = 1, one_channel.HS = 1;
    for (const Config& c : {TOY, GROUPED, multi_query, windowed, one_channel}) check_gradients(c);
    check_gradients(split_config(TOY));
    check_gradients(split_config(GROUPED));
    for (const Config& c : lacking_configs(TOY)) check_gradients(c);
}

TEST_CASE("gpt: gradients accumulate, and the head's chunks do not change them") {
    const int B = 2, S = 8;
    Model g(reference_ops());
    toy_model(g, TOY, {RunMode::train, B, S});
    auto in = toy_tokens(B * S, TOY.V, 1), out = toy_tokens(B * S, TOY.V, 2);
    double loss = train_pass(g, in, out, B, S);
    auto once = flat_grads(g);
    Model wide(reference_ops());    // several chunks: (N,V) logits never exist
    REQUIRE(wide.allocate({65, 256, 1, 1, 4, 4, 1e-5f}, {RunMode::train, 12, 256}).ok());
    CHECK(wide.head_rows <= 12 * 256 / 2);
    g.head_rows = 5;    // 16 rows: chunks of 5, 5, 5, 1
    CHECK(train_pass(g, in, out, B, S) == doctest::Approx(loss).epsilon(1e-6));
    CHECK(relative_error(flat_grads(g).data(), once.data(), int64_t(once.size())) < 1e-6);
    add_pass(g, in, out, B, S);
    auto twice = flat_grads(g);
    for (float& x : once) x *= 2;
    CHECK(relative_error(twice.data(), once.data(), int64_t(once.size())) < 1e-6);
}

TEST_CASE("gpt: the cpu tables agree with the reference") {
    const Config grouped = {.V = 101, .T = 40, .L = 2, .NH = 4, .C = 48, .NKV = 2, .HS = 24, .window = 9};
    for (const Config& c : {Config{101, 40, 2, 3, 48}, grouped}) check_cpu_model(c);
    check_cpu_model(split_config(grouped), 1.2);
    for (const Config& c : lacking_configs({101, 40, 2, 3, 48})) check_cpu_model(c, 1.4);
}

TEST_CASE("gpt: bf16 parameters take 2 bytes, and 4 more where there are masters") {
    const Config c = config_named("gpt2").value;
    const double P = double(config_flat_size(c));
    auto bytes = [&](const Plan& plan, const char* purpose) {
        for (const MemoryRow& r : memory_cost(cpu_ops<bf16>(), c, plan).value)
            if (!strcmp(r.purpose, purpose)) return double(r.bytes);
        return 0.0;
    };
    CHECK(bytes({RunMode::infer, 1, 64}, "parameters") == doctest::Approx(2 * P).epsilon(1e-3));
    for (bool master : {false, true}) {
        const Plan plan = {RunMode::train, 1, 64, Recompute::none, master};
        CHECK(bytes(plan, "parameters") == doctest::Approx(2 * P).epsilon(1e-3));
        CHECK(bytes(plan, "gradients") == doctest::Approx(4 * P).epsilon(1e-3));
        CHECK(bytes(plan, "optimizer state") == doctest::Approx((master ? 12 : 8) * P + P / 64).epsilon(1e-3));
    }
}

TEST_CASE("gpt: what the passes read are the masters, rounded; stochastic rounding learns without them") {
    const Config c = {101, 48, 2, 2, 64, 256, 1e-5f};
    const int B = 2, S = 16;
    auto in = toy_tokens(B * S, c.V, 1), out = toy_tokens(B * S, c.V, 2);
    Model g(cpu_ops<bf16>());
    toy_model(g, c, {RunMode::train, B, S});
    for (int step = 0; step < 3; step++) {
        train_pass(g, in, out, B, S);
        update(g, 1e-3f, 0.95f, 0.1f);
        int64_t apart = 0;
        const bf16* params = typed<bf16>(g, g.store.params);
        const std::vector<float> masters = flat_part(g, StateKind::weights);
        for (int64_t i = 0; i < g.store.flat; i++) {
            REQUIRE(params[i].bits == to_bf16(masters[size_t(i)]).bits);
            apart += to_float(params[i]) != masters[size_t(i)];
        }
        CHECK(apart > g.store.flat / 2);
    }
    Model alone(cpu_ops<bf16>());
    train_stochastically(alone, c);
}

TEST_CASE("gpt: a step over its limits changes nothing; outcomes come in order") {
    const int B = 2, S = 8;
    Model g(cpu_ops<float>());
    toy_model(g, TOY, {RunMode::train, B, S});
    auto in = toy_tokens(B * S, TOY.V, 1), out = toy_tokens(B * S, TOY.V, 2);
    auto weights = [&] { return flat_part(g, StateKind::weights); };
    const double loss = train_pass(g, in, out, B, S), norm = g.train.grad_norm();
    const OptimizerParams adam = {1e-2f, 0.9f, 0.95f, 1e-8f, 0.1f};
    const std::vector<float> before = weights();
    for (Limits l : {Limits{.loss = loss * 0.99}, Limits{.norm = norm * 0.99}}) {
        g.train.update(adam, l, 1);
        const Step s = g.train.finish();
        CHECK((s.skipped && s.updates == 0));
        CHECK(s.loss == doctest::Approx(loss));
        CHECK(s.norm == doctest::Approx(norm));
        CHECK(weights() == before);
    }
    g.train.update(adam, {}, 1);
    train_pass(g, in, out, B, S);
    g.train.update(adam, {}, 1);
    const Step first = g.train.finish(), second = g.train.finish();
    CHECK((!first.skipped && first.updates == 1 && first.loss == doctest::Approx(loss)));
    CHECK((second.updates == 2 && second.loss < loss));
    CHECK(weights() != before);
    g.train.begin();
    const float nan = NAN;
    g.write(StateKind::gradients, 5, 1, &nan);
    const std::vector<float> good = weights();
    g.train.update(adam, {}, 1);
    CHECK(g.train.finish().skipped);
    CHECK(weights() == good);
}

// Threads that are late take other chunks than threads that are not.
static void delay_randomly(int64_t chunk, int worker) {
    static std::atomic<uint64_t> calls{0};
    const uint32_t random = philox(7, calls++, uint64_t(chunk)).v[worker % 4];
    if (random % 4 == 0) std::this_thread::sleep_for(std::chrono::microseconds(random % 97));
}
TEST_CASE("gpt: same bits twice, for every number of threads, and with random delays of their chunks") {
    const int B = 2, S = 64;
    const Config c = {257, 64, 2, 2, 64, 256, 1e-5f};
    auto in = toy_tokens(B * S, c.V, 1), out = toy_tokens(B * S, c.V, 2);
    each_cpu_model([&](auto model, double) {
        for (bool master : {true, false}) {
            std::vector<float> first;
            double loss = 0;
            for (const auto& [threads, delayed] : std::vector<std::pair<int, bool>>{
                     {1, false}, {1, false}, {2, false}, {3, false}, {2, true}, {3, true}, {7, true}}) {
                cpu_set_threads(threads);
                pool_before_chunk = delayed ? delay_randomly : nullptr;
                auto g = model();
                toy_model(*g, c, {RunMode::train, B, S, Recompute::none, master});
                double now = train_pass(*g, in, out, B, S);
                update(*g, 1e-3f, 0.95f, 0.1f);
                std::vector<float> bits = flat_part(*g, StateKind::weights);
                if (first.empty()) first = bits, loss = now;
                CHECK(now == loss);
                CHECK(memcmp(bits.data(), first.data(), bits.size() * sizeof(float)) == 0);
            }
        }
    });
    pool_before_chunk = nullptr;
    cpu_set_threads(0);
}

TEST_CASE("gpt: a window of 3 in each of 2 layers is 5 positions") {
    const int S = 8;
    Model g(reference_ops());
    toy_model(g, GROUPED, {RunMode::infer, 1, S});
    auto in = toy_tokens(S, GROUPED.V, 1), out = toy_tokens(S, GROUPED.V, 2);
    std::vector<float> before(size_t(S), 0), after(before);
    losses_of(g, in, out, 1, S, before.data());
    in[0] = (in[0] + 1) % GROUPED.V;
    losses_of(g, in, out, 1, S, after.data());
    for (size_t s = 0; s < size_t(S); s++) CHECK((before[s] != after[s]) == (s < 5));
}

TEST_CASE("gpt: one batch is learnt by heart") {
    const int B = 2, S = 16;
    const Config c = {31, 16, 2, 2, 32, 128, 1e-5f};
    Model g(cpu_ops<float>());
    REQUIRE(g.allocate(c, {RunMode::train, B, S}).ok());
    g.init(1);
    auto in = toy_tokens(B * S, c.V, 1), out = toy_tokens(B * S, c.V, 2);
    double first = train_pass(g, in, out, B, S), last = first;
    CHECK(first == doctest::Approx(std::log(31.0)).epsilon(0.05));    // uniform over 31 tokens
    for (int step = 1; step <= 150; step++) {
        last = train_pass(g, in, out, B, S);
        update(g, 3e-3f, 0.95f, 0);
    }
    CHECK(last < 0.01);
}

TEST_CASE("gpt: an order-2 Markov chain is learnt to within 2 % of its entropy") {
    // 8 symbols; the next one depends on the last two. Entropy is measured on the validation text.
    const int V = 8, B = 16, S = 32;
    double p[64][8], entropy = 0;
    for (int s = 0; s < 64; s++) {
        double sum = 0;
        for (int v = 0; v < V; v++)
            sum += p[s][v] = std::exp(1.5 * double(philox_normal(11, uint64_t(s), uint64_t(v))));
        for (double& x : p[s]) x /= sum;
    }
    const int N = 400000;
    std::vector<int> text(N, 0);
    for (int i = 2; i < N; i++) {
        const double* row = p[text[size_t(i) - 2] * 8 + text[size_t(i) - 1]];
        double u = double(philox_uniform(philox(11, 99, uint64_t(i)).v[0]));
        int v = 0;
        while (v + 1 < V && (u -= row[v]) >= 0) v++;
        text[size_t(i)] = v;
    }
    const Config c = {V, S, 2, 2, 32, 128, 1e-5f};
    Model g(cpu_ops<float>());
    REQUIRE(g.allocate(c, {RunMode::train, B, S}).ok());
    g.init(1);
    auto batch = [&](int at, std::vector<int>& in, std::vector<int>& out) {
        in.clear(), out.clear();
        for (int b = 0; b < B; b++)
            for (int s = 0; s < S; s++)
                in.push_back(text[size_t(at + b * S + s)]), out.push_back(text[size_t(at + b * S + s + 1)]);
    };
    std::vector<int> in, out;
    for (int step = 1; step <= 1500; step++) {
        batch((step - 1) * B * S % 299000, in, out);
        train_pass(g, in, out, B, S);
        float lr = 1e-2f * (step < 50 ? float(step) / 50 : 0.02f + 0.98f * float(1500 - step) / 1450);
        update(g, lr, 0.99f, 0.01f);
    }
    double loss = 0;
    int count = 0;
    std::vector<float> losses(size_t(B * S));
    for (int k = 0; k < 200; k++) {
        int at = 300000 + k * B * S;
        if (at + B * S >= N) break;
        batch(at, in, out);
        losses_of(g, in, out, B, S, losses.data());
        for (int n = 0; n < B * S; n++)
            if (n % S >= 1) {    // position 0 has seen one symbol only
                loss += double(losses[size_t(n)]), count++;
                entropy -= std::log(p[in[size_t(n) - 1] * 8 + in[size_t(n)]][out[size_t(n)]]);
            }
    }
    loss /= count, entropy /= count;
    MESSAGE("loss " << loss << ", entropy " << entropy);
    CHECK(loss > entropy * 0.995);    // lower only if targets leak
    CHECK(loss < entropy * 1.02);
}

// ---- PyTorch's numbers: test/golden/gpt_tiny, made by dev/golden_gpt.py -------------------------

namespace {
struct Golden {
    SafetensorsFile file;
    std::vector<float> get(const std::string& name) const {
        const TensorEntry* e = find_tensor(file, name);
        INFO(name);
        REQUIRE(e != nullptr);
        std::vector<float> x(size_t((e->end - e->begin) / 4));
        REQUIRE(read_tensor(file, *e, 0, int64_t(x.size()), x.data()).ok());
        return x;
    }
    std::vector<int> ids(const std::string& name) const {
        std::vector<float> x = get(name);
        return {x.begin(), x.end()};
    }
};

// Compares all tensors of `part` with the golden's of this prefix, in the file's names and layout.
void check_tensors(const Golden& golden, const Model& g, StateKind part, const std::string& prefix, double tolerance,
                   bool key_bias) {
    const std::vector<TensorSource> sources = checkpoint_tensors(g, {{part, prefix, g.tensors}});
    CHECK(sources.size() == 28);
    for (const TensorSource& s : sources) {
        int64_t n = 1;
        for (int64_t d : s.shape) n *= d;
        std::vector<float> ours(static_cast<size_t>(n)), theirs = golden.get(s.name);
        REQUIRE(s.fill(0, n, ours.data()).ok());
        REQUIRE(theirs.size() == ours.size());
        if (!key_bias && s.name.find("c_attn.bias") != std::string::npos)    // key bias: true gradient 0, only noise
            for (size_t c = 16; c < 32; c++) ours[c] = theirs[c] = 0;
        INFO(s.name);
        CHECK(relative_error(ours.data(), theirs.data(), n) < tolerance);
    }
}

template <class T> void check_golden(const Ops<T>& op, double tolerance) {
    Result<SafetensorsFile> file = SafetensorsFile::open("test/golden/gpt_tiny/expected.safetensors");
    REQUIRE_MESSAGE(file.ok(), file.status.message);
    Golden golden{std::move(file.value)};
    const int B = 3, S = 13;
    Result<Config> config = checkpoint_config(std::string("test/golden/gpt_tiny"));
    REQUIRE_MESSAGE(config.ok(), config.status.message);
    const Config c = config.value;
    Model g(op);
    REQUIRE(g.allocate(c, {RunMode::train, B, S}).ok());
    REQUIRE(checkpoint_weights(std::string("test/golden/gpt_tiny"), g).ok());
    auto in = golden.ids("input"), out = golden.ids("target");

    std::vector<float> logits(size_t(B * c.V)), all = golden.get("logits");
    g.batch.upload(in.data(), nullptr, B, S);
    g.forward();
    compute_logits(g, whole_batch(g), logits.data());
    for (int b = 0; b < B; b++)
        CHECK(relative_error(&logits[size_t(b * c.V)], &all[size_t((b * S + S - 1) * c.V)], c.V) < tolerance);
    std::vector<float> losses(size_t(B * S)), expected = golden.get("losses");
    losses_of(g, in, out, B, S, losses.data());
    CHECK(relative_error(losses.data(), expected.data(), B * S) < tolerance);

    expected = golden.get("adamw.losses");
    for (int step = 1; step <= 5; step++) {
        CHECK(train_pass(g, in, out, B, S) == doctest::Approx(expected[size_t(step) - 1]).epsilon(10 * tolerance));
        if (step == 1) {
            CHECK(g.train.grad_norm() == doctest::Approx(golden.get("grad_norm")[0]).epsilon(tolerance));
            check_tensors(golden, g, StateKind::gradients, "grad.", 10 * tolerance, true);
        }
        CHECK(update(g, 1e-2f, 0.95f, 0.1f, 1).updates == step);
    }
    check_tensors(golden, g, StateKind::weights, "adamw.", 100 * tolerance, false);
}
}    // namespace

TEST_CASE("gpt: logits, losses, gradients and AdamW steps equal PyTorch's") {
    SUBCASE("reference") { check_golden(reference_ops(), 1e-6); }
    SUBCASE("cpu") { check_golden(cpu_ops<float>(), 3e-6); }
}

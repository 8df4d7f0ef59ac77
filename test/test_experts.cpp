// test_experts.cpp - mixtures of experts: gradients, CPU against reference, recomputation, balance,
// generation, the options of `train`.
#include <set>

#include "files/json.h"
#include "model/decoder.h"
#include "toy_run.h"
#include "model_checks.h"

namespace {
// Configurations with the routers of the families, and two with sigmoid routers.
std::vector<Kind> routed_configs(const Config& base) {
    Config c = base;
    c.norm = NormKind::rms, c.gated = true, c.activation = Act::silu, c.tied = false;
    c.qkv_bias = c.proj_bias = c.up_bias = c.down_bias = c.norm_bias = false;
    c.experts = 4, c.experts_used = 2, c.expert_ffn = 10;
    std::vector<Kind> all = {{"mixtral", c}};
    auto add = [&](const char* name, auto change) { all.push_back({name, c}), change(all.back().c); };
    add("olmoe", [](Config& k) { k.experts_normalised = false, k.qk_norm = QkNormRope::QkNorm::all, k.experts = 5; });
    add("qwen2_moe",
        [](Config& k) { k.experts_normalised = false, k.shared_ffn = 7, k.shared_gate = true, k.experts_every = 2; });
    add("sigmoid",
        [](Config& k) { k.router = RouterKind::sigmoid, k.experts_used = 3, k.norm_placement = NormPlacement::post; });
    add("one expert of three, beside attention", [](Config& k) {
        k.experts = 3, k.experts_used = 1, k.experts_normalised = false, k.parallel = Parallel::one, k.gated = false;
        k.activation = Act::gelu_tanh, k.shared_ffn = 6, k.router = RouterKind::sigmoid;
    });
    return all;
}
const Config SMALL = {.V = 101, .T = 40, .L = 2, .NH = 4, .C = 48, .NKV = 2, .HS = 12};
}    // namespace

TEST_CASE("experts: gradients of models with routers equal central differences") {
    for (const Kind& kind : routed_configs(TOY)) {
        CAPTURE(std::string(kind.name));
        check_gradients(kind.c);
        check_gradients(kind.c, {}, 0.2f);
    }
}

TEST_CASE("experts: the cpu agrees with the reference, and no row is dropped") {
    const int B = 3, S = 33;
    for (const Kind& kind : routed_configs(SMALL)) {
        CAPTURE(std::string(kind.name));
        const Posed asked(kind.c, B, S);
        Model r(reference_ops()), g(cpu_ops<float>());
        for (Model* m : {&r, &g}) {
            toy_model(*m, kind.c, {.mode = RunMode::train, .B = B, .S = S, .balance = 0.5f, .router_z_loss = 0.01f});
            train_pass(*m, asked.in, asked.out, B, S);
        }
        const std::vector<float> grads = flat_grads(g), expected = flat_grads(r);
        CHECK(norm_error(grads, expected) < 2e-5);
        for (int64_t i = 0; i < g.train.totals.router_totals_count; i++)
            CHECK(g.train.totals.router_totals[i] == doctest::Approx(r.train.totals.router_totals[i]).epsilon(1e-5));
        double rows = 0;
        for (int l = 0; l < kind.c.L; l++)
            for (int i = 0; i < kind.c.experts; i++) rows += g.train.totals.router_totals[l * (kind.c.experts + 2) + i];
        CHECK(rows == double(B) * S * kind.c.experts_used * (kind.c.L / kind.c.experts_every));
    }
}

TEST_CASE("experts: what the backward computes again has the same bits, for any number of threads") {
    const int B = 2, S = 24;
    Config deep = SMALL;
    deep.L = 4;    // two layers of each kind, sharing recomputed arrays
    for (const Kind& kind : routed_configs(deep)) {
        CAPTURE(std::string(kind.name));
        const Posed asked(kind.c, B, S);
        std::vector<float> first;
        std::vector<double> totals;
        for (Recompute how : {Recompute::none, Recompute::cheap, Recompute::blocks})
            for (int threads : {1, 3}) {
                cpu_set_threads(threads);
                Model g(cpu_ops<float>());
                toy_model(g, kind.c, {.mode = RunMode::train, .B = B, .S = S, .recompute = how, .balance = 0.1f});
                train_pass(g, asked.in, asked.out, B, S);
                const std::vector<float> grads = flat_grads(g);
                const double* from = g.train.totals.router_totals;
                const std::vector<double> now(from, from + g.train.totals.router_totals_count);
                if (first.empty()) first = grads, totals = now;
                CHECK(memcmp(grads.data(), first.data(), first.size() * sizeof(float)) == 0);
                CHECK(now == totals);
            }
        cpu_set_threads(0);
    }
}

// The balance loss is a sequence's own: batches of 1 sequence and one of 4 give equal gradients.
TEST_CASE("experts: gradients do not depend on how a step is divided into batches") {
    const int S = 20;
    Config c = routed_configs(SMALL)[0].c;
    const Posed asked(c, 4, S);
    std::vector<std::vector<float>> grads;
    for (int B : {4, 1}) {
        Model g(reference_ops());
        toy_model(g, c, {.mode = RunMode::train, .B = B, .S = S, .balance = 0.7f, .router_z_loss = 0.02f});
        g.train.begin(0, 0, 0, 4 * S);
        for (int b = 0; b < 4; b += B) {
            g.batch.upload(&asked.in[size_t(b * S)], &asked.out[size_t(b * S)], B, S);
            g.forward(true);
            g.loss(true, 1.0f / float(4 * S));
            g.backward(b + B == 4);
        }
        grads.push_back(flat_grads(g));
    }
    CHECK(norm_error(grads[1], grads[0]) < 1e-6);
}

// Masked and prefix training have few targets, which must not scale the routers' losses.
TEST_CASE("experts: what routers add to the gradient is a mean over positions, whatever their targets") {
    const int B = 2, S = 16;
    const Config c = routed_configs(SMALL)[0].c;
    const std::vector<int> in = toy_tokens(B * S, c.V, 1), none(size_t(B * S), -1);
    auto grads = [&](int64_t targets, int64_t positions, float scale) {
        Model g(cpu_ops<float>());
        toy_model(g, c, {.mode = RunMode::train, .B = B, .S = S, .balance = 0.7f, .router_z_loss = 0.02f});
        g.train.begin(targets, 0, 0, positions);
        g.batch.upload(in.data(), none.data(), B, S);
        g.forward(true);
        g.loss(true, scale);
        g.backward();
        return flat_grads(g);
    };
    const std::vector<float> plain = grads(0, 0, 1), other = grads(3, B * S, 0.25f), half = grads(0, 2 * B * S, 1);
    CHECK(*std::max_element(plain.begin(), plain.end()) > 1e-5f);
    CHECK(other == plain);
    for (size_t i = 0; i < plain.size(); i++) CHECK(2 * half[i] == doctest::Approx(plain[i]).epsilon(1e-4));
}

TEST_CASE("experts: generation with a cache equals the whole sequence") {
    const int B = 2, S = 37;
    for (const Kind& kind : routed_configs(SMALL)) {
        CAPTURE(std::string(kind.name));
        Model g(cpu_ops<float>());
        toy_model(g, kind.c, {RunMode::infer, B, S});
        for (int split : {1, 5, 36})
            generate_toy(g, toy_tokens(B * S, kind.c.V, 1), B, S, split, 6, [&](auto&, auto& cached, auto& whole) {
                CHECK(relative_error(cached.data(), whole.data(), B * kind.c.V) < 1e-5);
            });
    }
}

TEST_CASE("experts: a step with a balance evens out the rows") {
    const int B = 4, S = 32;
    Config c = routed_configs(SMALL)[0].c;
    c.experts = 8;
    const Posed asked(c, B, S);
    std::vector<double> uneven;
    for (float balance : {0.0f, 1.0f}) {
        Model g(cpu_ops<float>());
        toy_model(g, c, {.mode = RunMode::train, .B = B, .S = S, .balance = balance});
        std::vector<double> routed;
        for (int step = 0; step < 40; step++) {
            train_pass(g, asked.in, asked.out, B, S);
            g.train.update({3e-3f, 0.9f, 0.95f, 1e-8f, 0}, {}, 1);
            (void)g.train.finish(nullptr, &routed);
        }
        REQUIRE(int64_t(routed.size()) == c.L * (c.experts + 2));
        double most = 0;
        for (int i = 0; i < c.experts; i++) most = std::max(most, routed[size_t(i)]);
        uneven.push_back(most / (double(B) * S * c.experts_used / c.experts));
    }
    CHECK(uneven[1] < uneven[0]);
    CHECK(uneven[1] < 1.7);
}

TEST_CASE("experts: impossible sizes are refused by their options' names") {
    Config c = SMALL;
    c.experts = 4, c.experts_used = 5, c.expert_ffn = 8;
    const Status s = config_check(c);
    CHECK(s.code == Exit::usage);
    CHECK(s.message ==
          "--experts 4: expected --experts-used of 1 to 4 and an --expert-ffn of at least 1, found 5 and "
          "8");
    ConfigOverrides asked = no_overrides();
    asked.experts = 8;
    const Config filled = config_with(SMALL, asked);
    CHECK(filled.experts_used == 2);
    CHECK(filled.expert_ffn == SMALL.F / 2);
    asked.experts = 0, asked.expert_ffn = 24;
    CHECK(check_overrides(asked, config_with(SMALL, asked)).message == "--expert-ffn 24 needs --experts");
    c.experts_used = 2, c.experts_every = 3;
    CHECK(config_check(c).message == "--experts-every 3: none of the 2 layers would have experts; expected 1 to 2");
    c = SMALL, c.L = 1024, c.experts = 65, c.experts_used = 2, c.expert_ffn = 8;
    CHECK(config_check(c).message == "--experts 65: 1024 layers have them; 65536 in all at most");
    // Layers without experts have the ffn width of a model without experts.
    asked = no_overrides(), asked.experts_every = 2;
    const Config mixtral = config_with(config_named("mixtral:d4").value, asked);
    CHECK(mixtral.F == config_named("llama:d4").value.F);
    CHECK(mixtral.expert_ffn == mixtral.F / 2);
}

TEST_CASE("experts: beside every kind of attention each tensor has a name of its own in files") {
    for (const char* family : {"gpt2:d4", "mixtral:d4", "qwen2_moe:d4", "qwen3_moe:d4", "olmoe:d4", "llama:d4"})
        for (LinearAttention kind : {LinearAttention::none, LinearAttention::gated}) {
            Config c = config_named(family).value;
            c.linear = kind;
            if (!c.experts) c.experts = 4, c.experts_used = 2, c.expert_ffn = 8;
            c.shared_ffn = 16, c.shared_gate = true;
            std::set<std::string> names;
            for (const Tensor& t : config_tensors(c, 1))
                for (const auto& piece : t.pieces) CHECK_MESSAGE(names.insert(piece.name).second, piece.name);
        }
}

TEST_CASE("experts: trained, resumed, saved and read back; metrics and progress tell who gets how much") {
    const Toy toy;
    const struct {
        const char* name;
        size_t layers, experts;
        std::vector<std::string> flags;
    } kinds[] = {{"plain", 2, 4, {"--experts", "4"}},
                 {"one",
                  1,
                  3,
                  {"--experts", "3", "--experts-used", "1", "--experts-every", "2", "--router", "sigmoid",
                   "--shared-ffn", "24", "--shared-gate", "true", "--balance-loss", "0.5"}}};
    for (auto& kind : kinds) {
        const std::string name = kind.name, other = name + "_again";
        const std::vector<std::string> steps = {"--steps", "6", "--save-every", "3", "--keep", "0"};
        const ProcessResult r = must(toy.args(name, with(steps, kind.flags)));
        CHECK(contains(r.err, "  busiest expert "));
        fs::create_directories(toy.dir + "/" + other);
        fs::copy(toy.dir + "/" + name + "/step_00000003", toy.dir + "/" + other + "/step_00000003",
                 fs::copy_options::recursive);
        must(toy.args(other, with({"--steps", "6", "--resume", "auto", "--save-every", "3"}, kind.flags)));
        CHECK(same_file(toy.newest(name) + "/model.safetensors", toy.newest(other) + "/model.safetensors"));

        std::istringstream lines(read_file(toy.dir + "/" + name + "/metrics.jsonl"));
        int rows = 0;
        for (std::string line; std::getline(lines, line); rows++) {
            const auto step = nlohmann::json::parse(line);
            REQUIRE(step["expert_load"].size() == kind.layers);
            CHECK((step["expert_balance"].size() == kind.layers && step["router_z"].size() == kind.layers));
            double most = 0;
            for (auto& layer : step["expert_load"]) {
                REQUIRE(layer.size() == kind.experts);
                double sum = 0;
                for (double share : layer) sum += share, most = std::max(most, share);
                CHECK(sum == doctest::Approx(1).epsilon(1e-3));
            }
            CHECK(step["busiest_expert"].get<double>() == doctest::Approx(most * double(kind.experts)).epsilon(1e-3));
            for (double z : step["router_z"]) CHECK(z > 0.5 * std::pow(std::log(double(kind.experts)), 2));
            for (double balance : step["expert_balance"]) CHECK(balance > 0.9);    // 1: all experts equally loaded
        }
        CHECK(rows == 6);
        CHECK(contains(must({"plot", toy.dir + "/" + name, "--csv"}).out, ",sample,busiest_expert,memory,"));
        must({"eval", toy.dir + "/" + name, "--data", toy.dir + "/val.bin"}, 0, "perplexity");
        must({"sample", toy.dir + "/" + name, "--prompt", "abc", "--tokens", "9"});
    }
    const std::string one = read_file(toy.newest("one") + "/config.json");
    CHECK(contains(one, "\"flatgpt_experts_normalised\": false"));    // normalised, one expert's weight is always 1
}

TEST_CASE("experts: options that do not go together are refused, and both are named") {
    const Toy toy;
    const std::pair<std::vector<std::string>, const char*> rows[] = {
        {{"--experts-used", "2"}, "--experts-used 2 needs --experts"},
        {{"--balance-loss", "0.5"}, "--balance-loss"},
        {{"--router-z-loss", "0.5"}, "--router-z-loss"},
        {{"--experts", "4", "--experts-used", "5"}, "--experts 4: expected --experts-used of 1 to 4"},
        {{"--experts", "4", "--experts-every", "3"}, "--experts-every 3: none of the 2 layers would have experts"},
        {{"--experts", "4", "--shared-gate", "true"}, "--shared-gate true needs --shared-ffn"},
        {{"--experts", "4", "--expert-ffn", "24", "--ffn", "64"}, "--ffn 64 has no effect"},
        {{"--experts", "100000"}, "--experts"}};
    for (auto& [flags, says] : rows) must(toy.args("a", flags), 2, says);
    CHECK(!fs::exists(toy.dir + "/a/run.toml"));
    must({"train", "--dry-run", "--model", "llama:d2", "--experts", "8", "--experts-used", "8", "--batch", "65536",
          "--seq-len", "2048"},
         2, "134217728 tokens at once, 67108863 at most");
}

// test_recurrent.cpp - linear attention in all or some layers: states, lengths, options.
#include "infer/decode/generate.h"
#include "layers/attention/random_features.h"
#include "toy_run.h"
#include "model_checks.h"

namespace {
typedef std::vector<int> Ids;
const LinearAttention LINEARS[] = {LinearAttention::elu, LinearAttention::retention, LinearAttention::gated,
                                   LinearAttention::performer};
Config model_of(LinearAttention kind, int softmax_every = 0) {
    Config c = {.V = 97, .T = 64, .L = 3, .NH = 4, .C = 48, .F = 64, .NKV = 2, .HS = 16};
    c.position = Position::rope, c.rope_dims = 16, c.linear = kind, c.softmax_every = softmax_every;
    return c;
}
PendingHead head;    // output of the last call of extend
std::vector<float> logits_of(Model& g, const PendingHead& of = head) {
    std::vector<float> x(size_t(of.pass.B * g.c.V));
    compute_logits(g, of, x.data());
    return x;
}
bool same_bits(const std::vector<float>& a, const std::vector<float>& b) {
    return a.size() == b.size() && memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}
}    // namespace

TEST_CASE("recurrent: copies of a sequence do not disturb each other, and a sequence begins anew") {
    const Ids prompt = toy_tokens(21, 97, 1), a = toy_tokens(9, 97, 2), b = toy_tokens(9, 97, 3);
    for (LinearAttention kind : LINEARS)
        for (int every : {0, 3}) {
            Model g(cpu_ops<float>());
            toy_model(g, model_of(kind, every), {RunMode::infer, 2, 32});
            KvCache both, apart;
            REQUIRE(allocate_cache(g, both, 2, 64).ok());
            REQUIRE(allocate_cache(g, apart, 2, 64).ok());
            CHECK((both.pages == 0) == (every == 0));
            for (int round = 0; round < 2; round++) {    // round 2 reuses the memory
                head = extend(g, both, prompt.data(), 21, {1});
                both.table.fork(1, 0);
                for (int which : {0, 1}) head = extend(g, apart, prompt.data(), 21, {which});
                for (size_t i = 0; i < 9; i++) {
                    const Ids next = {a[i], b[i]};
                    head = extend(g, both, next.data(), 1);
                    const auto got = logits_of(g);
                    head = extend(g, apart, next.data(), 1);
                    CHECK(same_bits(got, logits_of(g)));
                }
                for (int which : {0, 1}) both.table.rewind(which, 0), apart.table.rewind(which, 0);
            }
        }
}

TEST_CASE("recurrent: prompts in pieces of any length are the whole, beyond the context, in constant memory") {
    for (LinearAttention kind : LINEARS) {
        const Config c = model_of(kind);
        Config longer = c;
        longer.T = 300;
        const Ids tokens = toy_tokens(300, c.V, 1);
        Model g(cpu_ops<float>()), whole(cpu_ops<float>());
        toy_model(g, c, {RunMode::infer, 1, 64});
        toy_model(whole, longer, {RunMode::infer, 1, 300});
        const CacheLimits limits = cache_limits(c, {}, 1000000).value;
        CHECK((limits.evicts && limits.lossless));
        KvCache cache, short_one;
        REQUIRE(allocate_cache(g, cache, 1, limits.positions, {{}, limits.evicts, limits.sinks}).ok());
        REQUIRE(allocate_cache(g, short_one, 1, 100, {{}, true}).ok());
        CHECK(cache.bytes == short_one.bytes);
        int at = 0;
        for (int n : {1, 1, 36, 50, 7, 64, 1, 64, 40, 1, 35}) {
            head = extend(g, cache, &tokens[size_t(at)], n);
            at += n;
            const auto got = logits_of(g);
            whole.batch.upload(tokens.data(), nullptr, 1, at);
            whole.forward();
            CHECK(relative_error(got.data(), logits_of(whole, whole_batch(whole)).data(), c.V) < 1e-5);
        }
        CHECK(at == 300);
    }
    // Learned positions are a finite table and softmax layers keep keys: no generation without end.
    Config learned = model_of(LinearAttention::gated);
    learned.position = Position::learned, learned.rope_dims = 0;
    CHECK(!cache_limits(learned, {}, 1000).value.evicts);
    CHECK(cache_limits(model_of(LinearAttention::gated, 2), {}, 1000).value.positions == 64);
    CHECK(cache_limits(model_of(LinearAttention::gated), {.positions = 32}, 1000).status.code == Exit::usage);
    CHECK(cache_limits(model_of(LinearAttention::gated), {.sinks = 4}, 1000).status.code == Exit::usage);
    CHECK(cache_type(model_of(LinearAttention::gated), "int8", Element::f32, true).status.code == Exit::usage);
    CHECK(!cache_type(model_of(LinearAttention::gated), "auto", Element::f32, true).value);
}

// Rounding of a state depends on where the prompt is cut, so that must not depend on the load.
TEST_CASE("recurrent: prompts are cut alike, however many run and whatever the context") {
    for (int context : {100, 2000})
        for (int softmax_every : {0, 3}) {
            Config c = model_of(LinearAttention::gated, softmax_every);
            c.T = context;
            std::vector<int> pieces;
            for (int B : {1, 4, 100}) {    // at most 512 rows a call
                Model g(cpu_ops<float>());
                toy_model(g, c, {RunMode::infer, B, std::min(context, std::max(1, 512 / B))});
                const CacheLimits limits = cache_limits(c, {}, 1000000).value;
                KvCache cache;
                REQUIRE(
                    allocate_cache(g, cache, B, limits.positions, {{}, limits.evicts, limits.sinks, 0, limits.lossless})
                        .ok());
                for (size_t running : {1, B}) pieces.push_back(chunk_length(g, cache, running));
            }
            CHECK(pieces == std::vector<int>(6, pieces[0]));
            CHECK(pieces[0] > 16);
        }
}

TEST_CASE("recurrent: trained on documents, each is what it is alone") {
    for (LinearAttention kind : LINEARS) {
        Model g(cpu_ops<float>());
        Config c = model_of(kind);
        c.position = Position::none, c.rope_dims = 0;
        toy_model(g, c, {.mode = RunMode::train, .B = 1, .S = 60, .spans = true});
        const Ids in = toy_tokens(60, c.V, 1), out = toy_tokens(60, c.V, 2);
        Spans spans;
        spans.add({Text{0}, Text{7}, Text{50}}, 60, MaskKind::causal);
        std::vector<float> together(60), alone(60);
        losses_of(g, in, out, 1, 60, together.data(), &spans);
        for (auto [from, n] : {std::pair{0, 7}, {7, 43}, {50, 10}})
            losses_of(g, {in.begin() + from, in.begin() + from + n}, {out.begin() + from, out.begin() + from + n}, 1, n,
                      &alone[size_t(from)]);
        CHECK(relative_error(together.data(), alone.data(), 60) < 1e-5);
    }
}

TEST_CASE("recurrent: trained, resumed, saved and read back; beyond the context") {
    Toy toy;
    const std::vector<std::vector<std::string>> kinds = {
        {"--linear-attention", "elu"},
        {"--linear-attention", "retention", "--position", "rope", "--softmax-every", "2", "--window", "9"},
        {"--linear-attention", "gated", "--position", "none", "--kv-heads", "1"},
        {"--linear-attention", "performer", "--position", "none", "--kv-heads", "1"}};
    for (const auto& kind : kinds) {
        CAPTURE(kind[1]);
        const std::string name = kind[1], other = name + "_again";
        const std::vector<std::string> steps = {"--steps", "6", "--save-every", "3", "--keep", "0"};
        std::vector<std::string> args = toy.args(name, with(steps, kind));
        if (name == "gated") args.push_back("--documents");
        must(args);
        CHECK(contains(read_file(toy.newest(name) + "/config.json"), "\"flatgpt-gpt2\""));
        fs::create_directories(toy.dir + "/" + other);
        fs::copy(toy.dir + "/" + name + "/step_00000003", toy.dir + "/" + other + "/step_00000003",
                 fs::copy_options::recursive);
        must(toy.args(other, {"--steps", "6", "--resume", "auto", "--save-every", "3"}));
        CHECK(same_file(toy.newest(name) + "/model.safetensors", toy.newest(other) + "/model.safetensors"));
        const std::vector<std::string> sample = {"sample", toy.dir + "/" + name, "--prompt", "abc", "--tokens",
                                                 "80",     "--ignore-end",       "--device", "cpu"};
        const ProcessResult r = must(sample);
        // Only gated and performer generate without end: they have neither positions nor keys.
        CHECK(contains(r.err, "is full") == (name != "gated" && name != "performer"));
        if (name == "gated") must(with(sample, {"--cache", "32"}), 2, "--cache 32: with --linear-attention");
        must({"convert", toy.dir + "/" + name, toy.dir + "/" + name + ".gguf"}, 2, "linear attention none, ");
    }
}

TEST_CASE("recurrent: performer's models have the features of their head size, and others have none") {
    for (LinearAttention kind : LINEARS) {
        Model g(cpu_ops<float>());
        toy_model(g, model_of(kind), {RunMode::infer, 1, 8});
        const std::vector<float> expected = random_features(g.c.HS);
        CHECK((g.features != nullptr) == (kind == LinearAttention::performer));
        if (g.features) CHECK(std::equal(expected.begin(), expected.end(), g.features));
    }
}

TEST_CASE("recurrent: a family's rotation is left out where no layer turns") {
    ConfigOverrides asked = no_overrides();
    const Config llama = config_named("llama:d2").value;
    auto position = [&](LinearAttention kind, int softmax_every) {
        for (size_t i = 0; i < config_rows().size(); i++)
            if (config_rows()[i].member == ConfigRow::Member(&Config::linear))
                asked.words[i] = kind == LinearAttention::elu ? "elu" : "retention";
        asked.softmax_every = softmax_every;
        const Config c = config_with(llama, asked);
        CHECK(config_check(c).ok());
        return c.position;
    };
    CHECK(position(LinearAttention::elu, 0) == Position::none);
    CHECK(position(LinearAttention::elu, 2) == Position::rope);
    CHECK(position(LinearAttention::retention, 0) == Position::rope);
}

TEST_CASE("recurrent: options that do not go together are refused, and both are named") {
    Toy toy;
    auto refused = [&](std::vector<std::string> more, const char* says) {
        must(toy.args("a", with({"--linear-attention", "gated"}, more)), 2, says);
    };
    refused({"--position", "alibi"}, "--linear-attention gated, --position alibi");
    refused({"--position", "t5", "--softmax-every", "2"}, "--linear-attention gated, --position t5");
    refused({"--score-cap", "5"}, "--linear-attention gated, --score-cap 5");
    refused({"--objective", "prefix"}, "--linear-attention gated, --objective prefix");
    refused({"--objective", "mlm"}, "--linear-attention gated, --objective mlm");
    refused({"--window", "8"}, "--window 8, --linear-attention gated without --softmax-every");
    refused({"--position", "rope"}, "--position rope: no layer rotates with --linear-attention gated in all layers");
    refused({"--softmax-every", "20"}, "--softmax-every 20: none of the ");
    refused({"--softmax-every", "1"}, "--softmax-every 1, --linear-attention gated");
    refused({"--head-size", "300"}, "--linear-attention gated, head size 300");
    refused({"--attention-dropout", "0.1"}, "--attention-dropout 0.1, --linear-attention without --softmax-every");
    must(toy.args("a", {"--softmax-every", "2"}), 2, "--softmax-every 2 needs --linear-attention");
    CHECK(!fs::exists(toy.dir + "/a/run.toml"));
}

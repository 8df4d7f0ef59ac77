// test_lora_pairs.cpp - adapters of encoder-decoders: PEFT's logits, losses, gradients and tokens
// (dev/golden_lora.py), central differences, files, merging, training on pairs.
#include <set>

#include "test.h"
#include "checkpoint/adapter_files.h"
#include "checkpoint/gguf.h"
#include "model/cost_table.h"
#include "model_checks.h"
#include "pair_goldens.h"
#include "toy_ranks.h"

namespace {
typedef std::vector<std::string> Words;
const std::string ADAPTERS = "test/golden/lora_pairs/", BASES = "test/golden/pairs/";

// A model of test/golden/pairs with an adapter, whose results replace the model's own.
struct LoraGolden : PairGolden {
    std::string adapter;
    Config plain;
    std::vector<AdapterFiles> files;
    explicit LoraGolden(const std::string& name) : PairGolden(name), adapter(ADAPTERS + name), plain(c) {
        files = {adapter_open(adapter).take()};
        const Status added = add_adapters(&c, files);
        REQUIRE_MESSAGE(added.ok(), added.message);
        for (const auto& [key, values] : arrays_of(adapter + "/expected.safetensors")) expected[key] = values;
    }
    void load_all(Model& g, const Plan& plan) const {
        load(g, plan);
        REQUIRE(load_adapters(g, files).ok());
    }
    // Logits of the source and target, by the base or by base and adapter.
    std::vector<float> logits(Model& g) const {
        run(g, false);
        std::vector<float> found(size_t(B * LENGTH * c.V));
        compute_logits_of_all(g, found);
        return found;
    }
    void check_logits(Model& g, double tolerance) const {
        const std::vector<float> found = logits(g);
        CHECK(relative_error(found.data(), expected.at("logits").data(), int64_t(found.size())) < tolerance);
    }
    void check_learning(Model& g, double tolerance, Recompute recompute) const {
        Plan train = plan(RunMode::train);
        train.recompute = recompute;
        load_all(g, train);
        g.train.begin();
        check_logits(g, tolerance);
        run(g, true);
        g.loss(true, 1 / float(g.pass.targets));
        g.backward();
        CHECK(g.mean_loss() == doctest::Approx(double(expected.at("loss")[0])).epsilon(tolerance));
        size_t compared = 0;
        for (const TensorSource& s : adapter_sources(g, StateKind::gradients)) {
            CAPTURE(s.name);
            const auto theirs = expected.find("grad." + s.name);
            REQUIRE(theirs != expected.end());
            std::vector<float> ours(theirs->second.size());
            REQUIRE(int64_t(ours.size()) == s.shape[0] * (s.shape.size() > 1 ? s.shape[1] : 1));
            REQUIRE(s.fill(0, int64_t(ours.size()), ours.data()).ok());
            CHECK(relative_error(ours.data(), theirs->second.data(), int64_t(ours.size())) < 4 * tolerance);
            compared++;
        }
        CHECK(compared == size_t(std::ranges::count_if(
                              expected, [](const auto& e) { return e.first.starts_with("grad.base_model"); })));
        CHECK(compared > 25);
    }
};
template <class Visit> void each_adapter(Visit visit) {
    cpu_set_threads(1);
    for (const std::string name : {"t5", "t5_gated", "bart", "marian"}) {
        CAPTURE(name);
        visit(LoraGolden(name));
    }
    cpu_set_threads(0);
}
// Small encoder-decoders of the shapes of TOY: of BART's kinds, of T5's, of 2017.
std::vector<Kind> encoder_kinds(const Config& c) {
    std::vector<Kind> all;
    auto add = [&](const char* name, auto change) {
        Config k = c;
        k.encoder_layers = 1;
        k.window = 0;
        change(k);
        all.push_back({name, k});
    };
    add("bart", [](Config& k) {
        k.norm_placement = NormPlacement::post;
        k.embed_norm = k.head_bias = true;
        k.position_offset = 2;
    });
    add("t5", [](Config& k) {
        k.norm = NormKind::rms;
        k.position = Position::t5;
        k.gated = true;
        k.score_scale = 0.3f;
        k.qkv_bias = k.proj_bias = k.up_bias = k.down_bias = k.norm_bias = false;
    });
    add("of 2017", [](Config& k) { k.position = Position::sinusoidal, k.encoder_layers = 2; });
    return all;
}
// Runs on 24 pairs of two kinds.
struct PairsToy : RanksToy {
    std::string pairs = dir + "/pairs.jsonl";
    PairsToy() {
        std::string lines;
        for (int i = 0; i < 24; i++)
            lines +=
                formatted("{\"source\": \"%s\", \"target\": \"%s\"}\n", i % 2 ? "abab" : "dede", i % 2 ? "x y" : "the");
        write_file(pairs, lines);
    }
    std::string path(const std::string& name) const { return dir + "/" + name; }
    Words train(const std::string& out, const Words& more) const {
        return with({"train", "--pairs", pairs, "--seq-len", "16", "--lr", "2e-2", "--out", path(out)}, more);
    }
    // A model that adapters change: name is a family's.
    void make_base(const std::string& name, const Words& more = {}) const {
        must(train(name, with({"--model", name + ":d1", "--tokenizer", path("tok.json"), "--steps", "2", "--batch", "4",
                               "--dtype", "fp32"},
                              more)));
    }
    double loss(const Words& of) const {
        const Words how = {"--pairs", pairs, "--dtype", "fp32", "--json"};
        return number(must(with(with({"eval"}, of), how)).out, "\"loss\":");
    }
};
}    // namespace

TEST_CASE("lora of pairs: logits and losses and gradients are those of PEFT") {
    each_adapter([](const LoraGolden& golden) {
        for (Recompute recompute : {Recompute::none, Recompute::cheap, Recompute::blocks}) {
            Model reference{Table(reference_ops())}, floats{Table(cpu_ops<float>())};
            golden.check_learning(reference, 2e-5, recompute);    // statistics and factors are floats
            golden.check_learning(floats, 4e-5, recompute);
        }
    });
}

TEST_CASE("lora of pairs: cached decoding has the logits and tokens of PEFT") {
    each_adapter([](const LoraGolden& golden) {
        Model g{Table(cpu_ops<float>())};
        golden.load_all(g, {.mode = RunMode::infer, .B = 1, .S = 20, .source = PairGolden::NS});
        KvCache cache;
        REQUIRE(allocate_cache(g, cache, 1, 20, {.source = PairGolden::NS}).ok());
        encode_source(g, cache, 0, golden.tokens("source").data(), PairGolden::NS);
        int greedy = 0;
        std::vector<int> next(1, golden.c.decoder_start);
        std::vector<float> logits(size_t(golden.c.V));
        for (const int expected : golden.tokens("greedy")) {
            compute_logits(g, extend(g, cache, next.data(), 1), logits.data());
            if (greedy++ == 0)    // the golden's first position has the same token
                CHECK(relative_error(logits.data(), golden.expected.at("logits").data(), golden.c.V) < 4e-5);
            next[0] = int(std::ranges::max_element(logits) - logits.begin());
            CHECK(next[0] == expected);
        }
    });
}

TEST_CASE("lora of pairs: gradients in double, with dropout and magnitudes") {
    for (const Config& shape : {TOY, GROUPED})
        for (const Kind& kind : encoder_kinds(shape)) {
            INFO(kind.name);
            check_gradients(adapted(kind.c));
            check_gradients(adapted(kind.c, 0.3f), {}, 0.2f);
            check_gradients(decomposed(kind.c));
            // Cross-attention's products alone.
            Config cross = kind.c;
            for (const Adapter::Product p : {Adapter::cross_q, Adapter::cross_kv, Adapter::cross_proj})
                cross.adapter.ranks[p][0] = 2;
            check_gradients(cross);
        }
}

TEST_CASE("lora of pairs: the CPU's gradients are the reference's") {
    for (const Kind& kind : encoder_kinds({101, 40, 2, 3, 48})) {
        INFO(kind.name);
        check_cpu_model(adapted(kind.c), 8);    // 5.5e-2 seen of 8e-2
        check_cpu_model(decomposed(kind.c), 8);
    }
}

TEST_CASE("lora of pairs: the same numbers are dropped in any batch") {
    // Dropout counts the step's sequences, in both stacks.
    for (const Kind& kind : encoder_kinds(TOY)) {
        INFO(kind.name);
        const Config c = adapted(kind.c, 0.5f);
        const int B = 3, S = 6, NS = 4;
        const std::vector<int> in = toy_tokens(B * S, c.V, 1), out = toy_tokens(B * S, c.V, 2),
                               source = toy_tokens(B * NS, c.V, 3);
        auto losses = [&](int batch) {
            Model g(reference_ops());
            toy_model(g, c, {.mode = RunMode::train, .B = batch, .S = S, .source = NS});
            g.train.begin();
            double sum = 0;
            for (int b = 0; b < B; b += batch) {
                g.upload_pairs(source.data() + b * NS, nullptr, NS, in.data() + b * S, out.data() + b * S, batch, S);
                g.forward(true);
                g.loss(true, 1.0f / float(B * S));
                g.backward(b + batch == B);
                sum += g.mean_loss() * batch / B;
            }
            return std::pair{sum, flat_grads(g)};
        };
        const auto [all, gradients] = losses(B);
        const auto [each, same] = losses(1);
        CHECK(each == doctest::Approx(all).epsilon(1e-6));
        CHECK(norm_error(same, gradients) < 1e-6);
    }
}

TEST_CASE("lora of pairs: each product of both stacks drops other numbers, and so do all other sites") {
    static std::vector<uint64_t> inputs, others;
    Ops<double> ops = reference_ops();
    ops.drop_inputs = [](double* y, const double* x, int64_t n, Dropout drop) {
        inputs.push_back(drop.seed);
        reference_ops().drop_inputs(y, x, n, drop);
    };
    ops.add_scaled = [](double* y, const double* a, const double* b, float scale, int64_t n, Dropout drop) {
        if (drop.rate > 0) others.push_back(drop.seed);
        reference_ops().add_scaled(y, a, b, scale, n, drop);
    };
    Config c = adapted(encoder_kinds(TOY)[0].c, 0.5f);
    c.L = 3, c.encoder_layers = 2;
    const int B = 2, S = 7;
    Model g{Table(ops)};
    toy_model(g, c, {.mode = RunMode::train, .B = B, .S = S, .dropout = 0.1f});
    const std::vector<int> in = toy_tokens(B * S, c.V, 1), out = toy_tokens(B * S, c.V, 2);
    inputs.clear(), others.clear();
    g.train.begin();
    upload_toy(g, in, out, B, S);
    g.forward(true);
    std::set<uint64_t> different(inputs.begin(), inputs.end());
    CHECK(inputs.size() == size_t(4 * c.encoder_layers + 7 * c.L));
    CHECK(different.size() == inputs.size());
    CHECK(others.size() == size_t(1 + 2 * c.encoder_layers + 1 + 3 * c.L));
    different.insert(others.begin(), others.end());
    CHECK(different.size() == inputs.size() + others.size());
}

TEST_CASE("lora of pairs: a dry run's memory and parameters") {
    const Config c = adapted(encoder_kinds(TOY)[0].c);
    const Plan plan = {.mode = RunMode::train, .B = 2, .S = 7, .source = 8, .sources = 2};
    Model g(cpu_ops<float>());
    REQUIRE(g.allocate(c, plan).ok());
    const std::vector<MemoryRow> told = memory_cost(g.op, c, plan).value;
    for (size_t i = 0; i < g.memory.size(); i++) CHECK(g.memory[i].bytes == told[i].bytes);
    int64_t trained = 0;
    for (const Tensor& t : g.tensors) {
        CHECK(t.frozen != t.adapter);
        trained += t.adapter && !t.name.ends_with("_b") ? t.size() : 0;
    }
    for (const AdaptedMatrix& m : adapted_matrices(c)) trained += m.rows * m.rank;
    CHECK(trained_parameters(c) == trained);
    // Adapters of cross-attention alone take nothing in the encoder.
    Config none = c, cross = c;
    none.adapter = cross.adapter = {};
    cross.adapter.ranks[Adapter::cross_q][0] = 8;
    auto of_encoder = [&](const Config& of) {
        for (const MemoryRow& row : memory_cost(g.op, of, plan).value)
            if (row.purpose == std::string("encoder's activations")) return row.bytes;
        return int64_t(-1);
    };
    CHECK(of_encoder(cross) == of_encoder(none));
    CHECK(of_encoder(c) > of_encoder(none));
}

TEST_CASE("lora of pairs: merged weights have the logits of the applied adapter") {
    Toy toy;
    each_adapter([&](const LoraGolden& golden) {
        const std::string name = fs::path(golden.adapter).filename(), merged = toy.dir + "/" + name;
        must({"merge", BASES + name, golden.adapter, merged});
        LoraGolden other = golden;
        other.c = golden.plain;
        other.dir = merged;
        Model g{Table(cpu_ops<float>())}, base{Table(cpu_ops<float>())};
        other.load(g, other.plan(RunMode::infer));
        // The merged weights are bf16, as the base's are.
        other.check_logits(g, 0.05);
        other.dir = golden.dir;
        other.load(base, other.plan(RunMode::infer));
        const std::vector<float> before = other.logits(base);
        CHECK(relative_error(before.data(), golden.expected.at("logits").data(), int64_t(before.size())) > 0.1);
        must({"info", golden.adapter}, 0, "rank up to");
    });
}

TEST_CASE("lora of pairs: trained on pairs, saved in the files of PEFT, resumed, evaluated and sampled") {
    PairsToy toy;
    const std::map<std::string, std::set<std::string>> targets = {
        {"t5", {"q", "k", "v", "o", "wi", "wo"}}, {"bart", {"q_proj", "k_proj", "v_proj", "out_proj", "fc1", "fc2"}}};
    for (const auto& [model, expected] : targets) {
        CAPTURE(model);
        toy.make_base(model);
        const std::string base = toy.path(model), run = base + "-lora", merged = base + "-merged";
        const Words lora = {"--from",  base, "--lora-rank", "4",    "--lora-dropout", "0.1", "--batch", "4",
                            "--steps", "60", "--dtype",     "fp32", "--save-every",   "30",  "--keep",  "0"};
        CHECK(contains(must(with(toy.train(model + "-lora", lora), {"--dry-run"})).out, "in adapters beside"));
        must(toy.train(model + "-lora", lora));
        const std::string newest = toy.newest(model + "-lora");
        const nlohmann::json j = nlohmann::json::parse(read_file(newest + "/adapter_config.json"));
        CHECK(j["task_type"] == "SEQ_2_SEQ_LM");
        CHECK(j["target_modules"].get<std::set<std::string>>() == expected);
        // A run that goes on has the same bits.
        must(with(toy.train(model + "-again", lora), {"--resume", run + "/step_00000030"}), 0, "resumed from");
        CHECK(same_file(newest + "/adapter_model.safetensors",
                        toy.newest(model + "-again") + "/adapter_model.safetensors"));
        // As a run, beside its base and merged, it is one model, better than its base.
        const double found = toy.loss({run});
        CHECK(found < toy.loss({base}) - 0.5);
        CHECK(toy.loss({base, "--adapter", run}) == doctest::Approx(found));
        must({"merge", base, run, merged});
        CHECK(toy.loss({merged}) == doctest::Approx(found).epsilon(1e-4));
        auto sampled = [&](const Words& of) {
            const Words how = {"--source", "abab", "--temperature", "0", "--tokens", "6", "--dtype", "fp32"};
            return must(with(with({"sample"}, of), how)).out;
        };
        CHECK(sampled({base, "--adapter", run}) == sampled({merged}));
    }
    // An adapter of another model.
    must({"eval", toy.path("t5"), "--adapter", toy.newest("bart-lora"), "--pairs", toy.pairs}, 3,
         "the model has no such matrix");
    // The adapters alone as a GGUF file.
    must({"convert", toy.path("t5-lora"), toy.path("alone.gguf"), "--adapter-only"});
    const GgufFile alone = GgufFile::open(toy.path("alone.gguf")).take();
    for (const char* name : {"enc.blk.0.attn_q.weight.lora_a", "dec.blk.0.attn_k.weight.lora_b",
                             "dec.blk.0.cross_attn_v.weight.lora_b", "dec.blk.0.cross_attn_o.weight.lora_a"})
        CHECK_MESSAGE(alone.find(name), name);
}

TEST_CASE("lora of pairs: some matrices, weights of a few bits, and what is refused") {
    PairsToy toy;
    const Words one = {"--steps", "1", "--batch", "4", "--lora-rank", "2"};
    // The ends of names tell the kinds of attention apart.
    const std::map<std::string, std::set<std::string>> ends = {
        {"t5", {"EncDecAttention.q", "EncDecAttention.k", "EncDecAttention.v", "wo"}},
        {"bart", {"encoder_attn.q_proj", "encoder_attn.k_proj", "encoder_attn.v_proj", "fc2"}}};
    for (const auto& [model, expected] : ends) {
        CAPTURE(model);
        toy.make_base(model);
        const Words from = with(one, {"--from", toy.path(model)});
        must(with(toy.train(model + "-some", from), {"--lora-targets", "cross_q,cross_kv,fc2"}));
        const std::string text = read_file(toy.newest(model + "-some") + "/adapter_config.json");
        CHECK(nlohmann::json::parse(text)["target_modules"].get<std::set<std::string>>() == expected);
        CHECK(toy.loss({toy.path(model + "-some")}) ==
              doctest::Approx(toy.loss({toy.path(model), "--adapter", toy.path(model + "-some")})));
        must(with(toy.train("none", from), {"--lora-targets", "lm_head"}), 2,
             "no matrix \"lm_head\"; expected some of all, attention, cross_kv");
    }
    // A GGUF file's weights stay as they are (QLoRA), here with magnitudes.
    const std::string file = toy.path("t5.gguf");
    must({"convert", toy.path("t5"), file, "--type", "q8_0"});
    must(toy.train("bits", {"--from", file, "--steps", "40", "--batch", "4", "--lora-rank", "4", "--lora-dora"}));
    CHECK(toy.losses("bits").back() < toy.losses("bits").front() - 0.5);
    // Stacks whose files hold other matrices.
    toy.make_base("llama", {"--encoder-layers", "1"});
    must(toy.train("none", with(one, {"--from", toy.path("llama")})), 2,
         "hold the encoder's qkv as 1 matrices and the decoder's as 3");
}

TEST_CASE("lora of pairs: ranks and ZeRO have the losses of one process") {
    NEED_MPIRUN();
    PairsToy toy;
    toy.make_base("bart");
    for (const auto& [ranks, zero] : {std::pair{1, "0"}, {2, "0"}, {2, "2"}}) {
        const std::string out = std::to_string(ranks) + zero;
        Words p = toy.train(out, {"--from", toy.path("bart"), "--lora-rank", "2", "--lora-dropout", "0.1", "--steps",
                                  "6", "--batch", ranks == 1 ? "4" : "2", "--zero", zero, "--dtype", "fp32",
                                  "--threads", "1", "--pairs-val", toy.pairs});
        p.insert(p.begin(), flatgpt_binary());
        const ProcessResult r = run_process(ranks == 1 ? p : mpirun(ranks, p), mpirun_options(120));
        INFO(r.err);
        REQUIRE(r.exit_code == 0);
        if (ranks > 1) toy.same_losses("10", out, 1e-5);
    }
}

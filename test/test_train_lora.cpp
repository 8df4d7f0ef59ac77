// test_train_lora.cpp - low-rank adapters by command line: PEFT's losses and files, QLoRA, merging,
// resume, ranks, refusals; training of some tensors.
#include <signal.h>

#include <nlohmann/json.hpp>

#include "files/json.h"
#include "checkpoint/gguf.h"
#include "infer/load.h"
#include "tensors.h"
#include "toy_ranks.h"

namespace {
typedef std::vector<std::string> Words;
const std::string SFT = "test/golden/sft", START = "test/golden/lora/start", END = "test/golden/lora/end";
const std::string DORA = "test/golden/dora/";

Words changed(Words args, const Words& more) {
    for (size_t i = 0; i < more.size(); i++) {
        const bool alone = i + 1 == more.size() || more[i + 1].starts_with("--");
        if (alone) args.push_back(more[i]);
        else RanksToy::set(args, more[i], more[i + 1]), i++;
    }
    return args;
}
// Trains on dev/questions.jsonl as dev/golden_lora.py does.
Words questions(const std::string& out, const Words& more = {}) {
    return changed({"train",
                    "--from",
                    START,
                    "--chat",
                    "dev/questions.jsonl",
                    "--batch",
                    "2",
                    "--lr",
                    "1e-2",
                    "--warmup",
                    "0",
                    "--lr-schedule",
                    "constant",
                    "--weight-decay",
                    "0",
                    "--seq-len",
                    "127",
                    "--total-batch",
                    "508",
                    "--seed",
                    "5",
                    "--steps",
                    "50",
                    "--dtype",
                    "fp32",
                    "--out",
                    out},
                   more);
}
Words with_rank(const std::string& out, const Words& more = {}) {
    return changed(questions(out, {"--from", SFT, "--lora-rank", "4"}), more);
}

// Mean loss of a model, or of a model with adapters, on PEFT's tokens.
struct Golden {
    std::vector<int> ids;
    double applied, merged;
    explicit Golden(const std::string& end = END) {
        const nlohmann::json j = json_parse(read_file(end + "/tokens.json"), "tokens", 4).take();
        for (const auto& id : j["ids"]) ids.push_back(id);
        applied = j["applied"];
        merged = j["merged"];
    }
    double loss(const std::string& model, const Words& adapters = {}, const std::string& dtype = "fp32") const {
        LoadedModel m;
        ModelOptions options;
        options.model = model;
        options.adapters = adapters;
        const int n = int(ids.size()) - 1;
        const Status s = load_model(m, options, {.device = "cpu", .dtype = dtype}, false, [&](const Config&, bool) {
            return Capacity{1, n};
        });
        REQUIRE_MESSAGE(s.ok(), s.message);
        const std::vector<int> in(ids.begin(), ids.end() - 1), out(ids.begin() + 1, ids.end());
        m.model->batch.upload(in.data(), out.data(), 1, n);
        m.model->forward();
        m.model->loss(false, 0);
        return m.model->mean_loss();
    }
};
std::string tensors_text(const std::string& dir) { return read_file(dir + "/adapter_model.safetensors"); }
}    // namespace

TEST_CASE("lora: fifty losses and gradient norms of PEFT, with magnitudes, too") {
    RanksToy toy;
    for (const std::string kind : {"lora", "dora"}) {
        INFO(kind);
        const std::string dir = "test/golden/" + kind;
        must(questions(toy.dir + "/" + kind, {"--from", dir + "/start"}));
        const nlohmann::json golden = json_parse(read_file(dir + "/losses.json"), "losses", 4).take();
        const std::vector<double> losses = toy.losses(kind), norms = toy.losses(kind, "\"grad_norm\":");
        REQUIRE(losses.size() == 50);
        REQUIRE(golden["losses"].size() == 50);
        for (size_t i = 0; i < 50; i++) {
            CHECK(losses[i] == doctest::Approx(golden["losses"][i].get<double>()).epsilon(1e-5));
            CHECK(norms[i] == doctest::Approx(golden["norms"][i].get<double>()).epsilon(1e-4));
        }
        // The trained adapters are PEFT's.
        const Golden g(dir + "/end");
        CHECK(g.loss(toy.newest(kind)) == doctest::Approx(g.applied).epsilon(1e-4));
    }
}

TEST_CASE("lora: magnitudes (DoRA) are applied, merged, saved and resumed as PEFT's") {
    RanksToy toy;
    const Golden g(DORA + "end");
    const std::string& end = DORA + "end";
    CHECK(g.loss(end) == doctest::Approx(g.applied).epsilon(1e-5));
    CHECK(g.loss(SFT, {end}) == doctest::Approx(g.applied).epsilon(1e-5));
    must({"merge", SFT, end, toy.dir + "/merged"});
    must({"convert", end, toy.dir + "/merged.gguf"});
    for (const char* merged : {"/merged", "/merged.gguf"})
        CHECK(g.loss(toy.dir + merged) == doctest::Approx(g.merged).epsilon(1e-5));
    must({"convert", end, toy.dir + "/alone.gguf", "--adapter-only"}, 2, "magnitudes (DoRA)");
    must({"sample", SFT, "--adapter", end + "=0.5", "--prompt", "a", "--tokens", "1"}, 2, "leave out =0.5");
    must({"sample", SFT, "--adapter", START, "--adapter", end, "--prompt", "a", "--tokens", "1"}, 2, "merge one of");
    must({"info", end}, 0, "magnitudes (DoRA)");
    // The rows of a layer without an adapter would have norms of 0.
    AdapterFiles some = adapter_open(end).take();
    std::erase_if(some.modules, [](const AdapterModule& m) { return contains(m.name, "layers.1.self_attn.o_proj"); });
    Config c = checkpoint_config(SFT).take();
    const Status partial = add_adapters(&c, {some});
    CHECK(partial.code == Exit::input);
    CHECK(contains(partial.message, "self_attn.o_proj: it has no adapter, which other layers have"));
    // New ones: the base's norms, so that nothing changes before the first step.
    Words command = with_rank(toy.dir + "/whole", {"--lora-dora", "--save-every", "4", "--steps", "12"});
    must(changed(command, {"--out", toy.dir + "/new", "--steps", "1", "--lr", "0"}));
    CHECK(g.loss(toy.newest("new")) == doctest::Approx(g.loss(SFT)).epsilon(1e-6));
    CHECK(contains(read_file(toy.newest("new") + "/adapter_config.json"), "\"use_dora\": true"));
    must(command);
    killed_and_resumed(toy, command, {1, 6}, [&](const std::string& out) {
        CHECK((tensors_text(toy.newest(out)) == tensors_text(toy.newest("whole"))));
    });
    must(with_rank(toy.dir + "/plain", {"--steps", "12"}));
    CHECK(toy.losses("plain") != toy.losses("whole"));
    const std::string toml = toy.dir + "/whole/run.toml";
    must({"train", "--config", toml, "--resume", "auto", "--steps", "14", "--lora-dropout", "0.1"}, 2, "take none");
    must(with_rank(toy.dir + "/none", {"--lora-dora", "--lora-dropout", "0.1"}), 2, "--lora-d");
}

TEST_CASE("lora: applied and merged adapters have PEFT's loss") {
    RanksToy toy;
    const Golden g;
    CHECK(std::fabs(g.loss(SFT) - g.applied) > 1e-3);
    CHECK(g.loss(END) == doctest::Approx(g.applied).epsilon(1e-5));    // its base by adapter_config.json
    CHECK(g.loss(SFT, {END}) == doctest::Approx(g.applied).epsilon(1e-5));
    CHECK(g.loss(SFT, {END}, "auto") == doctest::Approx(g.applied).epsilon(1e-5));
    must({"merge", SFT, END, toy.dir + "/merged"});
    must({"merge", SFT, END, toy.dir + "/merged.gguf"});
    must({"convert", END, toy.dir + "/converted"});
    for (const char* merged : {"/merged", "/merged.gguf", "/converted"})
        CHECK(g.loss(toy.dir + merged) == doctest::Approx(g.merged).epsilon(1e-5));
    CHECK(!fs::exists(toy.dir + "/merged/adapter_config.json"));
    // Two adapters add up, each with its weight.
    must({"merge", SFT, START + "=0.5", toy.dir + "/half"});
    must({"merge", toy.dir + "/half", END + "=-0.25", toy.dir + "/both"});
    const double both = g.loss(toy.dir + "/both");
    CHECK(g.loss(SFT, {START + "=0.5", END + "=-0.25"}) == doctest::Approx(both).epsilon(1e-5));
    CHECK(std::fabs(both - g.loss(toy.dir + "/half")) > 1e-3);
    CHECK(g.loss(END, {END + "=-1"}) == doctest::Approx(g.loss(SFT)).epsilon(1e-5));
    must({"sample", SFT, "--adapter", END, "--adapter", START + "=0.5", "--prompt", "a", "--tokens", "3"});
    must({"eval", END, "--text", "LICENSE"});
    must({"info", END}, 0, "adapter");
}

TEST_CASE("lora: what is saved is PEFT's format, and goes on as the same adapter") {
    RanksToy toy;
    must(questions(toy.dir + "/zero", {"--steps", "1", "--lr", "0"}));
    const std::string dir = toy.newest("zero");
    const SafetensorsFile before = SafetensorsFile::open(START + "/adapter_model.safetensors").take();
    const SafetensorsFile after = SafetensorsFile::open(dir + "/adapter_model.safetensors").take();
    REQUIRE(before.entries().size() == after.entries().size());
    for (const TensorEntry& e : before.entries()) {
        const auto same = std::ranges::find(after.entries(), e.name, &TensorEntry::name);
        REQUIRE_MESSAGE(same != after.entries().end(), e.name);
        CHECK(same->shape == e.shape);
        std::vector<char> a(size_t(e.end - e.begin)), b(a);
        REQUIRE(before.read_bytes(before.data_begin() + e.begin, a.data(), int64_t(a.size())).ok());
        REQUIRE(after.read_bytes(after.data_begin() + same->begin, b.data(), int64_t(b.size())).ok());
        CHECK((a == b));
    }
    const nlohmann::json j = json_parse(read_file(dir + "/adapter_config.json"), "config", 4).take();
    CHECK(j["r"] == 4);
    CHECK(j["lora_alpha"] == 12);
    CHECK(j["base_model_name_or_path"] == SFT);
    CHECK(j["target_modules"].size() == 6);
    CHECK(!fs::exists(dir + "/model.safetensors"));
    // A new adapter changes nothing before its first step: b is 0.
    must(with_rank(toy.dir + "/new", {"--steps", "1", "--lr", "0", "--lora-targets", "attention,down_proj"}));
    const Golden g;
    CHECK(g.loss(toy.newest("new")) == doctest::Approx(g.loss(SFT)).epsilon(1e-6));
    CHECK(toy.losses("new", "\"grad_norm\":")[0] > 0);    // a is not 0, so that b has a gradient
    const std::string tensors = tensors_text(toy.newest("new"));
    CHECK(contains(tensors, "k_proj.lora_B"));
    CHECK(contains(tensors, "down_proj.lora_A"));
    CHECK(!contains(tensors, "up_proj"));
}

TEST_CASE("lora: the adapters alone are a GGUF file whose products are what a merge adds") {
    RanksToy toy;
    const std::string base = toy.dir + "/base.gguf", merged = toy.dir + "/merged.gguf", alone = toy.dir + "/alone.gguf";
    must({"convert", SFT, base});
    must({"merge", SFT, END, merged});
    must({"convert", END, alone, "--adapter-only"});
    const GgufFile a = GgufFile::open(base).take(), b = GgufFile::open(merged).take(),
                   lora = GgufFile::open(alone).take();
    std::string type;
    REQUIRE(lora.metadata().get("general.type", &type).ok());
    CHECK(type == "adapter");
    auto floats = [](const GgufFile& f, const std::string& name) {
        const GgufTensor* t = f.find(name);
        REQUIRE_MESSAGE(t, name);
        std::vector<float> x(size_t(t->bytes / 4));
        REQUIRE(f.read_bytes(t->at, x.data(), t->bytes).ok());
        return x;
    };
    int adapted = 0;
    for (const GgufTensor& t : a.tensors()) {
        const std::vector<float> before = floats(a, t.name), after = floats(b, t.name);
        if (!lora.find(t.name + ".lora_a")) {
            CHECK((before == after));
            continue;
        }
        adapted++;
        const std::vector<float> low = floats(lora, t.name + ".lora_a"), high = floats(lora, t.name + ".lora_b");
        const size_t rank = 4, C = low.size() / rank;
        CHECK(high.size() == before.size() / C * rank);
        double worst = 0;
        for (size_t i = 0; i < before.size(); i++) {
            double sum = 0;    // alpha / rank is 3
            for (size_t k = 0; k < rank; k++) sum += 3 * double(high[i / C * rank + k]) * double(low[k * C + i % C]);
            worst = worse(worst, std::fabs(double(after[i]) - double(before[i]) - sum));
        }
        INFO(t.name);
        CHECK(worst < 1e-6);
    }
    CHECK(adapted == 2 * 6);
    CHECK(!lora.find("blk.0.attn_k.weight.lora_a"));
    must({"convert", SFT, toy.dir + "/none.gguf", "--adapter-only"}, 2, "expected a MODEL of low-rank adapters");
    must({"convert", END, toy.dir + "/none", "--adapter-only"}, 2, "--adapter-only");
}

TEST_CASE("lora: beside weights of a few bits, whose file stays as it is") {
    RanksToy toy;
    must({"train",
          "--data",
          toy.dir + "/train.bin",
          "--model",
          "llama:d1",
          "--layers",
          "2",
          "--heads",
          "2",
          "--channels",
          "256",
          "--kv-heads",
          "1",
          "--seq-len",
          "16",
          "--batch",
          "2",
          "--steps",
          "1",
          "--dtype",
          "fp32",
          "--out",
          toy.dir + "/base"});
    for (const char* type : {"q8_0", "q4_k_m", "q5_1"}) {
        INFO(type);
        const std::string file = toy.dir + "/" + type + ".gguf", out = toy.dir + "/" + type;
        must({"convert", toy.dir + "/base", file, "--type", type});
        const std::string bytes = read_file(file);
        Words train = {"train",
                       "--from",
                       file,
                       "--data",
                       toy.dir + "/train.bin",
                       "--lora-rank",
                       "4",
                       "--batch",
                       "4",
                       "--seq-len",
                       "16",
                       "--steps",
                       "40",
                       "--lr",
                       "5e-3",
                       "--lora-dropout",
                       "0.1",
                       "--out"};
        if (type == std::string("q5_1")) {
            RanksToy::set(train, "--lora-dropout", "0");
            train.insert(train.begin() + 1, "--lora-dora");
        }
        must(with(train, {out}));
        const std::vector<double> losses = toy.losses(type);
        CHECK(losses[39] < losses[0] - 0.2);
        CHECK((read_file(file) == bytes));
        // In floats, the losses are those of the same weights with products that round less.
        must(with(train, {out + "_fp32", "--dtype", "fp32"}));
        const std::vector<double> exact = toy.losses(std::string(type) + "_fp32");
        CHECK(losses != exact);
        for (size_t i = 0; i < 10; i++) CHECK(losses[i] == doctest::Approx(exact[i]).epsilon(2e-3));
        must({"eval", out, "--data", toy.dir + "/train.bin", "--eval-tokens", "200"});
    }
    // Adapters that are written in several pieces, none a whole number of rows.
    must({"train", "--from", toy.dir + "/q8_0.gguf", "--data", toy.dir + "/train.bin", "--lora-rank", "1000", "--batch",
          "1", "--seq-len", "16", "--steps", "1", "--out", toy.dir + "/large"});
    must({"train", "--from", toy.dir + "/base", "--data", toy.dir + "/train.bin", "--lora-rank", "2", "--quantize",
          "q4_0", "--batch", "2", "--seq-len", "16", "--steps", "2", "--out", toy.dir + "/quantised"});
    must({"train", "--from", toy.dir + "/base", "--data", toy.dir + "/train.bin", "--quantize", "q4_0", "--out",
          toy.dir + "/none"},
         2, "--lora-rank");
}

TEST_CASE("lora: adapters of several ranks, and large ones, come back as they were saved") {
    RanksToy toy;
    const std::string mixed = toy.dir + "/mixed";
    must(with_rank(toy.dir + "/four", {"--steps", "3", "--lora-targets", "q_proj,o_proj"}));
    must(with_rank(toy.dir + "/two", {"--steps", "3", "--lora-rank", "2", "--lora-targets", "q_proj"}));
    // Both together have rank 6 in q_proj and 4 in o_proj, and other factors than one of them.
    const Golden g;
    fs::copy(toy.newest("four"), mixed);
    for (const char* ours : {"/MANIFEST", "/state.json"}) fs::remove(mixed + ours);
    std::string text = read_file(mixed + "/adapter_config.json");
    const std::string was = "\"alpha_pattern\": {}";
    REQUIRE(contains(text, was));
    write_file(mixed + "/adapter_config.json",
               text.replace(text.find(was), was.size(), "\"alpha_pattern\": {\"o_proj\": 20}"));
    const double before = g.loss(mixed);
    CHECK(std::fabs(before - g.loss(toy.newest("four"))) > 1e-5);
    must(questions(toy.dir + "/on", {"--from", mixed, "--steps", "1", "--lr", "0"}));
    CHECK(g.loss(toy.newest("on")) == doctest::Approx(before).epsilon(1e-6));
}

TEST_CASE("lora: an adapter goes on with the dropout that its file names, unless another is given") {
    RanksToy toy;
    const std::string dropped = toy.dir + "/dropped", config = "/adapter_config.json";
    auto run = [&](const std::string& out, const std::string& from, const Words& more, const std::string& row) {
        must(questions(toy.dir + "/" + out, changed({"--from", from, "--steps", "3"}, more)));
        CHECK(contains(read_file(toy.dir + "/" + out + "/run.toml"), "\nlora-dropout = " + row + "\n"));
    };
    auto name = [&](const std::string& value) {
        fs::remove_all(dropped);
        fs::copy(START, dropped);
        std::string text = read_file(dropped + config);
        const size_t at = text.find("\"lora_dropout\": 0.0");
        REQUIRE(at != text.npos);
        write_file(dropped + config, text.replace(at, strlen("\"lora_dropout\": 0.0"), "\"lora_dropout\": " + value));
    };
    name("0.25");
    run("named", dropped, {}, "0.25");
    run("given", START, {"--lora-dropout", "0.25"}, "0.25");
    run("none", START, {}, "0.0");
    run("zero", dropped, {"--lora-dropout", "0"}, "0.0");
    CHECK(toy.losses("named") == toy.losses("given"));
    CHECK(toy.losses("none") == toy.losses("zero"));
    CHECK(toy.losses("none") != toy.losses("named"));
    // The run's own files name the dropout for a run that goes on with them.
    CHECK(contains(read_file(toy.newest("named") + config), "\"lora_dropout\": 0.25"));
    run("again", toy.newest("named"), {}, "0.25");
    for (const char* value : {"1", "-1", "\"x\""}) {
        name(value);
        must(questions(toy.dir + "/bad", {"--from", dropped}), 3, "dropped/adapter_config.json: lora_dropout");
    }
    must(questions(toy.dir + "/bad", {"--lora-dropout", "-0.5"}), 2, "--lora-dropout -0.5: expected 0 to 0.99, or -1");
    must(questions(toy.dir + "/bad", {"--lora-dropout", "1"}), 2, "--lora-dropout");
    CHECK(!fs::exists(toy.dir + "/bad"));
}

TEST_CASE("lora: a killed run goes on with the same bits") {
    RanksToy toy;
    Words command = with_rank(toy.dir + "/whole", {"--save-every", "4", "--steps", "24", "--lora-dropout", "0.1"});
    must(command);
    killed_and_resumed(toy, command, {1, 5, 9, 14}, [&](const std::string& out) {
        CHECK((tensors_text(toy.newest(out)) == tensors_text(toy.newest("whole"))));
        CHECK((read_file(toy.newest(out) + "/optimizer.safetensors") ==
               read_file(toy.newest("whole") + "/optimizer.safetensors")));
    });
    must(with_rank(toy.dir + "/plain", {"--steps", "24"}));    // without dropout
    CHECK(toy.losses("plain") != toy.losses("whole"));
    const std::string toml = toy.dir + "/whole/run.toml";
    must({"train", "--config", toml, "--resume", "auto", "--steps", "26", "--lora-rank", "8"}, 2, "--lora-");
    must({"train", "--config", toml, "--resume", "auto", "--steps", "26", "--lora-alpha", "3"}, 2, "--lora-");
    must({"train", "--config", toml, "--resume", "auto", "--steps", "26"});
}

TEST_CASE("lora: ranks and ZeRO have the losses of one process") {
    NEED_MPIRUN();
    RanksToy toy;
    for (const auto& [dtype, dora] : {std::pair{"fp32", false}, {"fp32", true}, {"bf16", false}}) {
        std::string first;
        for (const auto& [ranks, zero] : {std::pair{1, "0"}, {2, "0"}, {2, "1"}, {2, "2"}}) {
            const std::string out = (dora ? "dora" : dtype) + std::to_string(ranks) + zero;
            Words p = with_rank(toy.dir + "/" + out, {"--zero", zero, "--threads", "1", "--dtype", dtype, "--chat-val",
                                                      "dev/questions.jsonl"});
            if (dora) p.push_back("--lora-dora");
            RanksToy::set(p, "--steps", "8");
            p.insert(p.begin(), flatgpt_binary());
            const ProcessResult r = run_process(ranks == 1 ? p : mpirun(ranks, p), mpirun_options(120));
            INFO(r.err);
            REQUIRE(r.exit_code == 0);
            CHECK(fs::exists(toy.newest(out) + "/adapter_model.safetensors"));
            if (first.empty()) first = out;
            else toy.same_losses(first, out, dtype == std::string("fp32") ? 1e-5 : 1e-3);
        }
    }
}

TEST_CASE("lora: what is wrong is told before anything is written") {
    RanksToy toy;
    const std::string out = toy.dir + "/none", bad = toy.dir + "/bad";
    auto refused = [&](const Words& more, int code, const std::string& says) {
        must(questions(out, more), code, says);
        CHECK(!fs::exists(out));
    };
    refused({"--from", SFT, "--lora-rank", "4", "--lora-targets", "qproj"}, 2, "no matrix \"qproj\"; expected some of");
    refused({"--from", SFT, "--lora-alpha", "4"}, 2, "--lora-alpha needs --lora-rank");
    refused({"--lora-rank", "8"}, 2, "adapters of another rank");
    refused({"--from", SFT, "--lora-rank", "4", "--train-only", "*"}, 2, "--train-only");
    refused({"--train-only", "*"}, 2, "has adapters, which alone are trained");
    refused({"--from", SFT, "--train-only", "*q_proj*"}, 2, "it names 1 of the 3 matrices that are trained together");
    must({"train", "--data", toy.dir + "/train.bin", "--lora-rank", "4", "--out", out}, 2, "give it by --from");
    // Damaged and foreign adapters.
    auto damaged = [&](const std::string& from, const std::string& to, const std::string& says) {
        fs::remove_all(bad);
        fs::copy(START, bad);
        std::string text = read_file(bad + "/adapter_config.json");
        const size_t at = text.find(from);
        REQUIRE(at != text.npos);
        write_file(bad + "/adapter_config.json", text.replace(at, from.size(), to));
        must({"sample", SFT, "--adapter", bad, "--prompt", "a", "--tokens", "1"}, 3, says);
        refused({"--from", bad}, 3, says);
    };
    damaged("\"LORA\"", "\"IA3\"", "peft_type: expected \"LORA\"");
    damaged("\"use_dora\": false", "\"use_dora\": true", "as use_dora says, lora_magnitude_vector (out)");
    damaged("\"use_dora\": false", "\"use_dora\": 1", "use_dora: expected true or false");
    fs::remove_all(bad);
    fs::copy(DORA + "end", bad);
    std::string plain = read_file(bad + "/adapter_config.json");
    write_file(bad + "/adapter_config.json", plain.replace(plain.find("\"use_dora\": true"), 16, "\"use_dora\": null"));
    refused({"--from", bad}, 3, "use_dora is not true");
    damaged("\"bias\": \"none\"", "\"bias\": \"all\"", "bias: expected \"none\"");
    damaged("\"init_lora_weights\": true", "\"init_lora_weights\": \"pissa\"", "init_lora_weights: \"pissa\"");
    damaged("\"lora_alpha\": 12", "\"lora_alpha\": \"x\"", "lora_alpha");
    damaged("\"r\": 4,", "\"r\": 4", "adapter_config.json");
    auto cut = [&](size_t bytes) {
        fs::remove_all(bad);
        fs::copy(START, bad);
        write_file(bad + "/adapter_model.safetensors", tensors_text(START).substr(0, bytes));
        refused({"--from", bad}, 3, "adapter_model.safetensors");
    };
    cut(4);
    cut(3000);
    cut(16000);
    must({"sample", SFT, "--adapter", SFT, "--prompt", "a", "--tokens", "1"}, 3, "expected a directory with adapter");
    must({"sample", SFT, "--adapter", START + "=x", "--prompt", "a", "--tokens", "1"}, 2, "--adapter");
    // Another model's adapter, and one whose base is not there.
    must({"train",      "--data",    toy.dir + "/train.bin",
          "--model",    "llama:d1",  "--channels",
          "64",         "--heads",   "2",
          "--kv-heads", "1",         "--layers",
          "2",          "--seq-len", "16",
          "--batch",    "1",         "--steps",
          "1",          "--out",     toy.dir + "/other"});
    must({"merge", toy.dir + "/other", START, out}, 3, "an adapter of a matrix of 32 x 32; the model's has 64 x 64");
    must({"train",      "--data",    toy.dir + "/train.bin",
          "--model",    "llama:d1",  "--channels",
          "32",         "--heads",   "2",
          "--kv-heads", "2",         "--layers",
          "2",          "--seq-len", "16",
          "--batch",    "1",         "--steps",
          "1",          "--out",     toy.dir + "/wider"});    // keys and values are wider, their input is not
    must({"merge", toy.dir + "/wider", START, out}, 3, "an adapter of a matrix of 16 x 32; the model's has 32 x 32");
    must({"merge", "test/golden/hf_tiny", START, out}, 3, "the model has no such matrix");
    fs::remove_all(bad);
    fs::copy(START, bad);
    std::string text = read_file(bad + "/adapter_config.json");
    write_file(bad + "/adapter_config.json", text.replace(text.find(SFT), SFT.size(), "some-org/model"));
    must({"sample", bad, "--prompt", "a", "--tokens", "1"}, 3, "\"some-org/model\" is not there; give the base");
    CHECK(!fs::exists(out));
}

TEST_CASE("train only: some tensors are trained, all others keep their bits") {
    RanksToy toy;
    must(toy.args("base", {"--steps", "4"}));
    const Words more = {"--from", toy.dir + "/base", "--lr", "1e-2"};
    for (const char* patterns : {"1.*", "*.ln?w,lnfw", "*.attn.*"}) {
        INFO(patterns);
        const std::string out = "only";
        fs::remove_all(toy.dir + "/" + out);
        must(changed(toy.args(out, more), {"--train-only", patterns, "--steps", "6", "--save-every", "3"}));
        const SafetensorsFile before = SafetensorsFile::open(toy.newest("base") + "/model.safetensors").take();
        const SafetensorsFile after = SafetensorsFile::open(toy.newest(out) + "/model.safetensors").take();
        const std::string optimizer = read_file(toy.newest(out) + "/optimizer.safetensors");
        int trained = 0, frozen = 0;
        for (const TensorEntry& e : before.entries()) {
            const auto same = std::ranges::find(after.entries(), e.name, &TensorEntry::name);
            REQUIRE(same != after.entries().end());
            std::vector<char> a(size_t(e.end - e.begin)), b(a);
            REQUIRE(before.read_bytes(before.data_begin() + e.begin, a.data(), int64_t(a.size())).ok());
            REQUIRE(after.read_bytes(after.data_begin() + same->begin, b.data(), int64_t(b.size())).ok());
            const bool has_state = contains(optimizer, "\"m." + e.name + "\"");
            INFO(e.name);
            CHECK((a != b) == has_state);
            (has_state ? trained : frozen)++;
        }
        CHECK(trained > 0);
        CHECK(frozen > 0);
        // Resumed from its middle, the run has the same bits.
        const std::string weights = read_file(toy.newest(out) + "/model.safetensors");
        fs::remove_all(toy.newest(out));
        const std::string toml = toy.dir + "/" + out + "/run.toml";
        must({"train", "--config", toml, "--resume", "auto"});
        CHECK((read_file(toy.newest(out) + "/model.safetensors") == weights));
        must({"train", "--config", toml, "--resume", "auto", "--steps", "9", "--train-only", "*"}, 2, "--train-only");
    }
    must(changed(toy.args("none", more), {"--train-only", "2.*"}), 2, "the model has no such tensor");
    CHECK(!fs::exists(toy.dir + "/none"));
}

// test_encoder_decoder.cpp - encoder-decoders against transformers: tiny models with logits,
// losses, gradients and generated tokens (dev/golden_pairs.py), read, computed and written back;
// training on pairs.
#include <set>

#include "files/json.h"
#include "test.h"
#include "model_checks.h"
#include "pair_goldens.h"
#include "toy_ranks.h"
#include "infer/decode/beam.h"

namespace {
template <class Visit> void each_pair(Visit visit) {
    cpu_set_threads(1);
    for (const std::string name : {"t5", "t5_gated", "mt5", "bart", "marian"}) {
        CAPTURE(name);
        visit(PairGolden(name));
    }
    cpu_set_threads(0);
}
}    // namespace

TEST_CASE("encoder-decoders: logits and losses and gradients are those of transformers") {
    each_pair([](const PairGolden& golden) {
        for (Recompute recompute : {Recompute::none, Recompute::cheap, Recompute::blocks}) {
            Model reference{Table(reference_ops())}, floats{Table(cpu_ops<float>())};
            golden.check_learning(reference, 8e-6, recompute);
            golden.check_learning(floats, 3e-5, recompute);
        }
        // T5's unscaled scores make bf16's rounding errors large.
        if (golden.c.score_scale == 1) return;
        Model halves{Table(cpu_ops<bf16>())};
        golden.check_learning(halves, 0.1);
    });
}

TEST_CASE("encoder-decoders: cached decoding equals whole passes and greedy decoding is that of transformers") {
    each_pair([](const PairGolden& golden) {
        Model g{Table(cpu_ops<float>())};
        golden.load(g, {.mode = RunMode::infer, .B = 3, .S = 20, .source = PairGolden::NS});
        const std::vector<int> sources = golden.tokens("source");
        const int shorter = PairGolden::NS - 5;
        KvCache cache, alone;
        REQUIRE(allocate_cache(g, cache, 3, 20, {.source = PairGolden::NS, .sources = 2}).ok());
        REQUIRE(allocate_cache(g, alone, 1, 20, {.source = PairGolden::NS}).ok());
        // The first two sequences attend to one source, the third one to another, shorter one.
        encode_source(g, cache, 2, sources.data() + PairGolden::NS, shorter);
        encode_source(g, cache, 0, sources.data() + PairGolden::NS, shorter);
        cache.share_source(1, 0);
        encode_source(g, alone, 0, sources.data() + PairGolden::NS, shorter);
        cache.share_source(0, 2);
        cache.share_source(1, 2);
        encode_source(g, cache, 0, sources.data(), PairGolden::NS);    // in the place that is free now
        cache.share_source(1, 0);
        std::vector<int> next(3, golden.c.decoder_start), greedy;
        std::vector<float> logits(size_t(3 * golden.c.V)), other(size_t(golden.c.V));
        const std::vector<int> expected = golden.tokens("greedy");
        for (size_t i = 0; i < expected.size(); i++) {
            compute_logits(g, extend(g, cache, next.data(), 1), logits.data());
            const auto first = logits.begin();
            const int best = int(std::max_element(first, first + golden.c.V) - first);
            CHECK(std::equal(first, first + golden.c.V, first + golden.c.V));
            compute_logits(g, extend(g, alone, next.data(), 1), other.data());
            CHECK(std::equal(other.begin(), other.end(), first + 2 * golden.c.V));
            greedy.push_back(best);
            next.assign(3, best);
        }
        CHECK(greedy == expected);
        // All tokens in one call give the logits of the last step.
        std::vector<float> at_once(size_t(golden.c.V));
        std::vector<int> all = {golden.c.decoder_start};
        all.insert(all.end(), greedy.begin(), greedy.end() - 1);
        cache.table.rewind(0, 0);
        compute_logits(g, extend(g, cache, all.data(), int(all.size()), {0}), at_once.data());
        CHECK(relative_error(at_once.data(), logits.data(), golden.c.V) < 1e-5);
    });
}

TEST_CASE("encoder-decoders: greedy texts and beams are those of transformers") {
    each_pair([](const PairGolden& golden) {
        Model g{Table(cpu_ops<float>())};
        golden.load(g, {.mode = RunMode::infer, .B = 6, .S = 1, .source = PairGolden::NS});
        const Tokenizer bytes = Tokenizer::from_merges({}, Pattern::gpt2, {});    // token i is the byte '!' + i
        GenerationOptions options;
        options.prompts = {{golden.c.decoder_start}};
        options.tokens = PairGolden::LENGTH;
        const std::vector<int> sources = golden.tokens("source");
        options.sources = {{sources.begin(), sources.begin() + PairGolden::NS}};
        options.end_of_text = false;
        options.sampling.temperature = 0;
        auto ids = [](const Result<GenerationResult>& result) {
            REQUIRE_MESSAGE(result.ok(), result.status.message);
            std::vector<int> all;
            for (char ch : result.value.texts[0]) all.push_back(ch - '!');
            return all;
        };
        CHECK(ids(generate(g, bytes, options)) == golden.tokens("greedy"));
        CHECK(ids(beam_search(g, bytes, options, {.beams = 3})) == golden.tokens("beams"));
        // Several sources at a time, each with two texts, in fewer places than there are texts.
        GenerationOptions second = options, several = options;
        second.sources = {{sources.begin() + PairGolden::NS, sources.end() - 5}};
        several.sources = {options.sources[0], second.sources[0], options.sources[0]};
        several.prompts.assign(3, options.prompts[0]);
        several.num = 2;
        several.batch = 3;
        const Result<GenerationResult> all = generate(g, bytes, several), one = generate(g, bytes, second);
        REQUIRE_MESSAGE(all.ok(), all.status.message);
        REQUIRE_MESSAGE(one.ok(), one.status.message);
        for (size_t i = 0; i < 6; i++)
            CHECK(all.value.texts[i] == (i / 2 == 1 ? one.value.texts[0] : all.value.texts[0]));
        CHECK(all.value.texts[0] == generate(g, bytes, options).value.texts[0]);
    });
}

TEST_CASE("encoder-decoders: what is written has the class's names and shapes and bits") {
    each_pair([](const PairGolden& golden) {
        const nlohmann::json written = golden.check_written({.mode = RunMode::train, .B = 1, .S = 4});
        const nlohmann::json theirs = nlohmann::json::parse(read_file(golden.dir + "/config.json"));
        for (const char* key : {"model_type", "architectures", "num_layers", "num_decoder_layers", "encoder_layers",
                                "decoder_layers", "d_kv", "feed_forward_proj", "tie_word_embeddings",
                                "is_encoder_decoder", "scale_embedding", "decoder_start_token_id"})
            CHECK(written.value(key, nlohmann::json()) == theirs.value(key, nlohmann::json()));
    });
}

TEST_CASE("encoder-decoders: pairs are learnt and a resumed run has the same bits; eval and sample use the model") {
    Toy toy;
    std::string lines;
    for (int i = 0; i < 48; i++)
        lines += formatted("{\"source\": \"%s\", \"target\": \"%s\"}\n",
                           i % 3 == 0   ? "abab"
                           : i % 3 == 1 ? "dede"
                                        : "x",
                           i % 3 == 0   ? "the first of all"
                           : i % 3 == 1 ? "here is the next"
                                        : "x y x y");
    const std::string pairs = toy.dir + "/pairs.jsonl", tokenizer = toy.dir + "/tok.json";
    write_file(pairs, lines);
    for (const std::string model : {"t5:d1", "bart:d1", "gpt2:d1"}) {
        CAPTURE(model);
        const std::string run = toy.dir + "/" + model.substr(0, 4), again = run + "-again";
        std::vector<std::string> args = {"train", "--model", model, "--tokenizer", tokenizer, "--pairs", pairs};
        for (const char* arg : {"--pairs-val", "", "--seq-len", "32", "--batch", "8", "--steps", "240", "--lr", "3e-3",
                                "--save-every", "120", "--keep", "0", "--dtype", "fp32", "--out", ""})
            args.push_back(*arg ? arg : args.back() == "--out" ? run : pairs);
        if (model == "gpt2:d1") args.insert(args.end(), {"--encoder-layers", "2"});
        must(args);
        const std::string scores = must({"eval", run, "--pairs", pairs, "--json"}).out;
        CAPTURE(scores);
        // T5 knows positions by the biases of distances alone, so it learns slowly.
        CHECK(number(scores, "\"loss\":") < (model == "t5:d1" ? 1.0 : 0.1));
        if (model != "t5:d1") {
            CHECK(number(scores, "\"exact_match\":") == 1);
            CHECK(number(scores, "\"bleu\":") == doctest::Approx(100));
            CHECK(must({"sample", run, "--source", "abab", "--temperature", "0"}).out == "the first of all\n");
            CHECK(must({"sample", run, "--source", "dede", "--beams", "2", "--tokens", "30"}).out ==
                  "here is the next\n");
            const std::string both = must({"sample", run, "--source", "dede", "--source", "abab", "--num", "2",
                                           "--temperature", "0", "--batch", "3", "--json"})
                                         .out;
            std::istringstream texts(both);
            int i = 0;
            for (std::string line; std::getline(texts, line); i++)
                CHECK(contains(line, i < 2 ? "here is the next" : "the first of all"));
            CHECK(i == 4);
        }
        Toy::set(args, "--out", again);
        args.insert(args.end(), {"--resume", run + "/step_00000120"});
        must(args, 0, "resumed from");
        const std::string ours = checkpoint_list(run).back(), theirs = checkpoint_list(again).back();
        CHECK(same_file(ours + "/model.safetensors", theirs + "/model.safetensors"));
    }
    // What an encoder-decoder lacks is refused by name.
    const std::string run = toy.dir + "/t5:d";
    const std::string data = toy.dir + "/train.bin";
    must({"sample", run, "--prompt", "a"}, 2, "--source TEXT");
    must({"chat", run}, 2, "--source TEXT");
    must({"eval", run, "--data", data}, 2, "encoder-decoder");
    must({"bench", "--model", "t5:d1"}, 2, "encoder-decoder");
    must({"train", "--model", "t5:d1", "--data", data, "--steps", "1", "--out", toy.dir + "/n"}, 2, "expected --pairs");
    must({"train", "--model", "gpt2:d1", "--tokenizer", tokenizer, "--pairs", pairs, "--out", toy.dir + "/n"}, 2,
         "expected an encoder-decoder");
    write_file(toy.dir + "/wrong.jsonl", "{\"source\": 3}\n");
    must({"eval", run, "--pairs", toy.dir + "/wrong.jsonl"}, 3, "source");
}

TEST_CASE("encoder-decoders: ranks, dry runs and limits of sources for pairs") {
    NEED_MPIRUN();
    Toy toy;
    std::string lines;
    for (int i = 0; i < 40; i++)
        lines += formatted("{\"source\": \"%s\", \"target\": \"%s\"}\n", std::string(size_t(3 + i), 'a').c_str(),
                           std::string(size_t(1 + i % 9), 'b').c_str());
    const std::string pairs = toy.dir + "/pairs.jsonl";
    write_file(pairs, lines);
    auto args = [&](const std::string& out, const std::vector<std::string>& more) {
        return with({"train",
                     "--model",
                     "bart:d1",
                     "--tokenizer",
                     toy.dir + "/tok.json",
                     "--pairs",
                     pairs,
                     "--pairs-val",
                     pairs,
                     "--seq-len",
                     "16",
                     "--source-len",
                     "40",
                     "--batch",
                     "4",
                     "--total-batch",
                     "128",
                     "--steps",
                     "6",
                     "--dtype",
                     "fp32",
                     "--threads",
                     "1",
                     "--out",
                     toy.dir + "/" + out},
                    more);
    };
    const std::string one = must(args("one", {})).err;
    CHECK(contains(one, "3 sources cut to 40 tokens and 0 targets to 16"));
    CHECK(contains(must(args("dropped", {"--too-long", "drop", "--dry-run"})).err, "3 pairs left out"));
    const std::string dry = must(args("dry", {"--dry-run"})).out;
    CHECK(contains(dry, "a target for each source"));
    CHECK_MESSAGE(contains(dry,
                           "at most 448 tokens = 4 x (40 of a source + 16 of a target) x 2 (accumulated); 6 steps = "
                           "2.7k tokens"),
                  dry);
    // Without --seq-len, too, sources may be longer than its default, and the run is resumed.
    std::vector<std::string> usual = args("usual", {"--context", "64"});
    usual.erase(std::find(usual.begin(), usual.end(), "--total-batch"),
                std::find(usual.begin(), usual.end(), "--steps"));
    usual.erase(std::find(usual.begin(), usual.end(), "--seq-len"),
                std::find(usual.begin(), usual.end(), "--source-len"));
    must(usual);
    must({"train", "--config", toy.dir + "/usual/run.toml", "--resume", "auto", "--steps", "8"}, 0, "resumed from");
    CHECK(contains(must({"eval", toy.dir + "/one", "--pairs", pairs, "--source-len", "20"}).err, "cut to 20 tokens"));
    must({"eval", toy.dir + "/one", "--pairs", pairs, "--source-len", "9999"}, 2, "context has 40 positions");
    std::vector<std::string> beyond = args("n", {"--context", "64"});
    Toy::set(beyond, "--source-len", "9999");
    must(beyond, 2, "context has 64 positions");
    for (const std::vector<std::string>& other :
         {std::vector<std::string>{"--sample-every", "1"}, {"--teacher", toy.dir}, {"--documents"}})
        must(args("n", other), 2, other[0] + ": expected one of them");
    std::vector<std::string> two = args("two", {"--zero", "2"});
    two.insert(two.begin(), flatgpt_binary());
    const ProcessResult ranks = run_process(mpirun(2, two), mpirun_options(120));
    INFO(ranks.err);
    REQUIRE(ranks.exit_code == 0);
    RanksToy compare;
    compare.dir = toy.dir;
    compare.same_losses("one", "two", 1e-5);
}

TEST_CASE("encoder-decoders: missing spans are learnt from shards, by ranks and resumed as by one process") {
    NEED_MPIRUN();
    RanksToy toy;
    std::vector<std::string> special = {"<|endoftext|>", "<mask>"};
    for (int i = 0; i < 10; i++) special.push_back(formatted("<extra_id_%d>", i));
    write_file(toy.dir + "/tok.json", Tokenizer::from_merges({}, Pattern::gpt2, special).to_json());
    for (const std::string objective : {"span-corruption", "infilling"}) {
        CAPTURE(objective);
        const bool spans = objective == "span-corruption";
        const std::vector<std::string> more = {"--encoder-layers", "1", "--objective", objective, "--source-len",
                                               spans ? "40" : "32"};
        const ProcessResult one = toy.run(1, objective, more);
        INFO(one.err);
        REQUIRE(one.exit_code == 0);
        const std::vector<double> losses = toy.losses(objective);
        CHECK(losses.back() < losses.front() - 0.2);
        REQUIRE(toy.run(2, objective + "-two", more).exit_code == 0);
        toy.same_losses(objective, objective + "-two", 1e-5);
        std::vector<std::string> resumed = more;
        resumed.insert(resumed.end(), {"--resume", toy.dir + "/" + objective + "/step_00000004"});
        REQUIRE(toy.run(1, objective + "-again", resumed).exit_code == 0);
        same_checkpoint(toy, objective, objective + "-again");
        // A source has 44 - 7 kept tokens, two sentinels and the end.
        std::vector<std::string> dry = toy.args("dry", more);
        dry.push_back("--dry-run");
        CHECK(
            contains(must(dry).out, spans ? "(40 of a source + 10 of a target)" : "(32 of a source + 32 of a target)"));
        CHECK(contains(must(dry).out, spans ? "span corruption, 7 of 44 tokens in 2 spans; sources of 40 tokens, "
                                              "targets of 10"
                                            : "infilling, 9 of 31 tokens in spans of about 3"));
        dry.insert(dry.end(), {"--corrupted", "0.3", "--span-length", "4"});
        CHECK(contains(must(dry).out, spans ? "span corruption, 15 of 50 tokens in 4 spans"
                                            : "infilling, 9 of 31 tokens in spans of about 4"));
    }
    must(toy.args("n", {"--objective", "infilling"}), 2, "expected an encoder-decoder");
    must(toy.args("n", {"--encoder-layers", "1"}), 2, "--objective span-corruption or infilling");
    must(toy.args("n", {"--corrupted", "0.2"}), 2, "--objective span-corruption");
    must(toy.args("n", {"--encoder-layers", "1", "--objective", "infilling", "--sample-every", "1"}), 2,
         "--objective infilling, --sample-every: expected one of them");
    must({"train", "--chat", toy.dir + "/c.jsonl", "--objective", "infilling", "--out", toy.dir + "/n"}, 2,
         "--objective infilling");
}

// Each target is its source's word, reversed or copied as the source's first word says, of 4 to 12
// letters: each of its letters is elsewhere in the source.
TEST_CASE("encoder-decoders: reversing and copying are learnt to 99 % of words that were not seen") {
    if (!test_long()) SKIP("takes two minutes: make test-long");
    Toy toy;
    auto pairs = [&](const std::string& name, int n, uint64_t stream) {
        std::string lines;
        for (int i = 0; i < n; i++) {
            auto draw = [&](int k, uint32_t below) {
                return philox(7, stream, uint64_t(i) * 16 + uint64_t(k)).v[0] % below;
            };
            std::string word(4 + draw(0, 9), ' ');
            for (size_t k = 0; k < word.size(); k++) word[k] = char('a' + draw(int(k) + 2, 16));
            const bool reverse = draw(1, 2);
            const std::string target = reverse ? std::string(word.rbegin(), word.rend()) : word;
            lines += formatted("{\"source\": \"%s %s\", \"target\": \"%s\"}\n", reverse ? "reverse" : "copy",
                               word.c_str(), target.c_str());
        }
        write_file(toy.dir + "/" + name, lines);
        return toy.dir + "/" + name;
    };
    ProcessOptions options;
    options.timeout = 1000;
    const std::string run = toy.dir + "/run";
    const std::string words = pairs("train.jsonl", 40000, 1);
    const std::vector<std::string> model = {"--model", "gpt2:d2",    "--layers", "2",       "--encoder-layers",
                                            "2",       "--channels", "128",      "--heads", "4"};
    const std::vector<std::string> steps = {"--seq-len", "32", "--batch", "64", "--steps", "1500", "--lr", "1e-3"};
    const ProcessResult r = run_flatgpt(
        with(with({"train", "--tokenizer", toy.dir + "/tok.json", "--pairs", words, "--out", run}, model), steps),
        options);
    INFO(r.err);
    REQUIRE(r.exit_code == 0);
    const std::string scores = must({"eval", run, "--pairs", pairs("val.jsonl", 400, 2), "--json"}).out;
    CAPTURE(scores);
    CHECK(number(scores, "\"exact_match\":") > 0.99);
}

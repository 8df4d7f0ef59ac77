// test_train_objective.cpp - train and eval: documents, prefixes, masked tokens; eval of texts.
#include "tensors.h"
#include "base/philox.h"
#include "toy_ranks.h"

namespace {
typedef std::vector<std::string> Words;

// A toy whose shards hold documents, each of a few dozen bytes.
struct Documents : RanksToy {
    Documents() {
        std::ofstream lines(dir + "/text.jsonl");
        for (int i = 0; i < 400; i++) {
            std::string text;
            for (uint32_t k = 0, n = 5 + philox(1, 0, uint64_t(i)).v[0] % 60; k < n; k++)
                text += char('a' + (k * 7 + uint32_t(i)) % 20);
            lines << "{\"text\": \"" << text << "\"}\n";
        }
        lines.close();
        must({"tokenize", "--tokenizer", dir + "/tok.json", "--out", dir + "/docs", "--val-fraction", "0.1",
              dir + "/text.jsonl"});
    }
    Words with(Words more) const {
        const Words data = {"--data", dir + "/docs_train_000.bin", "--val", dir + "/docs_val_000.bin"};
        more.insert(more.begin(), data.begin(), data.end());
        return more;
    }
    Words command(const std::string& out, Words more) const {
        Words a = program(out, with({}));
        a.erase(a.begin());
        a.insert(a.end(), more.begin(), more.end());
        return a;
    }
};
const std::vector<Words> OBJECTIVES = {
    {"--documents"},
    {"--objective", "prefix"},
    {"--objective", "mlm"},
    {"--objective", "mlm", "--documents"},
    {"--objective", "mlm", "--window", "3", "--stride", "5", "--global-tokens", "2"}};
}    // namespace

TEST_CASE("train objective: each learns; the same for every batch, after a resume, and from eval") {
    Documents toy;
    for (size_t i = 0; i < OBJECTIVES.size(); i++) {
        const std::string name = "o" + std::to_string(i), dir = toy.dir + "/" + name;
        CAPTURE(OBJECTIVES[i]);
        must(toy.command(name, OBJECTIVES[i]));
        const std::vector<double> losses = toy.losses(name);
        CHECK(losses.back() < losses[0] - 0.05);
        Words other = toy.command(name + "b", OBJECTIVES[i]);
        Toy::set(other, "--batch", "16");
        must(other);
        toy.same_losses(name, name + "b", 1e-5);

        Words eval = {"eval",          dir,    "--data",  toy.dir + "/docs_val_000.bin",
                      "--eval-tokens", "1100", "--dtype", "fp32",
                      "--batch",       "3",    "--json"};
        if (OBJECTIVES[i].back() == "--documents") eval.push_back("--documents");
        CHECK(number(must(eval).out, "{\"loss\":") ==
              doctest::Approx(toy.losses(name, "\"val_loss\":").back()).epsilon(1e-6));

        const std::string whole = toy.metrics(name);
        fs::copy(toy.newest(name), toy.dir + "/whole" + name);
        fs::remove_all(toy.newest(name));
        must({"train", "--config", dir + "/run.toml", "--resume", "auto"}, 0, "after step 4");
        CHECK(toy.metrics(name) == whole);
        CHECK(same_file(toy.newest(name) + "/model.safetensors", toy.dir + "/whole" + name + "/model.safetensors"));
    }
    CHECK(toy.losses("o0") != toy.losses("o1"));
    // --documents changes the losses.
    must(toy.command("plain", {}));
    CHECK(std::fabs(toy.losses("plain").back() - toy.losses("o0").back()) > 1e-4);
}

TEST_CASE("train objective: 1, 2 and 4 ranks have the same losses") {
    NEED_MPIRUN();
    Documents toy;
    for (size_t i : {1, 3}) {
        for (int ranks : {1, 2, 4}) {
            Words p = toy.command("o" + std::to_string(i) + "_" + std::to_string(ranks), OBJECTIVES[i]);
            p.insert(p.begin(), flatgpt_binary());
            const ProcessResult r = run_process(ranks == 1 ? p : mpirun(ranks, p), mpirun_options(120));
            INFO(r.err);
            REQUIRE(r.exit_code == 0);
        }
        for (const char* ranks : {"_2", "_4"})
            toy.same_losses("o" + std::to_string(i) + ranks, "o" + std::to_string(i) + "_1", 1e-5);
    }
}

TEST_CASE("train objective: the mask token is the tokenizer's, a new row of the vocabulary, or a given one") {
    Documents toy;
    const Words mlm = {"--objective", "mlm", "--dry-run"};
    auto dry = [&](Words more, int code, const std::string& says) {
        more.insert(more.begin(), mlm.begin(), mlm.end());
        must(toy.command("dry", more), code, says);
    };
    dry({}, 0, "vocabulary 258,");
    dry({}, 0, "mask token 257");
    dry({}, 0, "objective     mlm, 15 % of the tokens are targets, token 257 masks");
    dry({"--documents", "--mask-fraction", "0.4"}, 0,
        "40 % of the tokens are targets, token 257 masks, documents "
        "apart: token 256 begins one");
    dry({"--mask-token", "3"}, 0, "vocabulary 257,");
    dry({"--vocab", "300"}, 0, "vocabulary 300,");
    std::ofstream(toy.dir + "/masks.json")
        << Tokenizer::from_merges({}, Pattern::gpt2, {"<|endoftext|>", "<mask>"}).to_json();
    must({"train", "--dry-run", "--tokenizer", toy.dir + "/masks.json", "--model", "d2", "--objective", "mlm"}, 0,
         "token 257 masks");

    // A causal model is trained on as a masked-token model.
    must(toy.command("causal", {}));
    Words from = {"train",
                  "--data",
                  toy.dir + "/docs_train_000.bin",
                  "--from",
                  toy.dir + "/causal",
                  "--batch",
                  "4",
                  "--steps",
                  "4",
                  "--dtype",
                  "fp32",
                  "--out",
                  toy.dir + "/from",
                  "--objective",
                  "mlm"};
    must(from, 2, "--objective mlm: the vocabulary of");
    from.push_back("--resize-vocab");
    must(from, 0, "258");
    CHECK(contains(read_file(toy.newest("from") + "/config.json"), "\"flatgpt_sees\": \"all\""));
    CHECK(contains(read_file(toy.newest("from") + "/config.json"), "\"flatgpt_mask_token\": 257"));
    must({"eval", toy.dir + "/from", "--data", toy.dir + "/docs_val_000.bin"});
    must({"info", toy.newest("from")}, 0, "sees all");
    must({"sample", toy.dir + "/from", "--prompt", "abc"}, 2, "cannot write a text");
    must({"chat", toy.dir + "/from"}, 2, "cannot write a text");
    must({"train", "--config", toy.dir + "/from/run.toml", "--steps", "6", "--resume", "auto"});
    must({"train", "--config", toy.dir + "/from/run.toml", "--steps", "8", "--resume", "auto", "--objective", "causal"},
         2, "sees all");
}

TEST_CASE("train objective: what cannot be together is refused, both options named") {
    Documents toy;
    const struct {
        Words more;
        const char* says;
    } rows[] = {
        {{"--objective", "mlm", "--window", "8", "--stride", "4", "--position", "t5"}, "--stride 4, --position t5"},
        {{"--objective", "mlm", "--window", "8", "--global-tokens", "2", "--position", "t5"},
         "--global-tokens 2, --position t5"},
        {{"--objective", "prefix", "--window", "8"}, "--window 8, --objective prefix"},
        {{"--objective", "prefix", "--position", "alibi"}, "--position alibi, --objective prefix"},
        {{"--objective", "prefix", "--documents"}, "--documents, --objective prefix"},
        {{"--mask-token", "3"}, "--mask-token needs --objective mlm"},
        {{"--objective", "prefix", "--mask-fraction", "0.2"}, "--mask-fraction needs --objective mlm"},
        {{"--objective", "mlm", "--sample-every", "4"}, "--sample-every, --objective mlm"},
        {{"--objective", "mlm", "--mask-token", "999"}, "mask token 999"},
        {{"--documents", "--window", "8", "--stride", "4"}, "--stride 4, --documents"},
        {{"--documents", "--window", "8", "--global-tokens", "2"}, "--global-tokens 2, --documents"},
        {{"--objective", "bert"}, "one of auto, causal, prefix, mlm"},
    };
    for (auto& row : rows) must(toy.command("bad", row.more), 2, row.says);
    must({"train", "--dry-run", "--vocab", "50", "--documents"}, 2, "no token that parts documents");
    must(toy.command("a", {}));
    const std::string model = toy.dir + "/a", text = toy.dir + "/text.jsonl", data = toy.dir + "/docs_val_000.bin";
    must({"eval", model}, 2, "--data, --text, --labels, --pairs, --needle or --task is required");
    must({"eval", model, "--data", data, "--text", text}, 2, "--data and --text exclude each other");
    must({"eval", model, "--text", text, "--documents"}, 2, "--documents needs --data");
    must({"eval", model, "--data", data, "--field", "x"}, 2, "--field needs --text");
    must({"eval", model, "--text", toy.dir + "/nothing.txt"}, 3, "nothing.txt");
    std::ofstream(toy.dir + "/plain.txt") << "abc";
    must({"eval", model, "--text", toy.dir + "/plain.txt", "--field", "x"}, 3, "every file is JSON lines");
    must({"eval", model, "--data", data, "--context", "4", "--seq-len", "8"}, 2, "--seq-len 8, --context 4");
    must(toy.command("bad", {"--attention-dropout", "-0.1"}), 2, "--attention-dropout -0.1");
}

TEST_CASE("eval: texts have the losses that each has alone, in lines, JSON lines, and pieces") {
    Documents toy;
    must(toy.command("a", {}));
    const std::string model = toy.dir + "/a";
    const Words texts = {"abcdef", "", "hij", "a much longer text, which fills the model's context more than once."};
    std::ofstream lines(toy.dir + "/t.txt"), json(toy.dir + "/t.jsonl");
    for (auto& text : texts) lines << text << "\r\n", json << (text.empty() ? "" : "{\"t\":\"" + text + "\"}") << "\n";
    lines.close(), json.close();
    auto eval = [&](const std::string& file, Words more = {}) {
        Words a = {"eval", model, "--text", file, "--json", "--dtype", "fp32"};
        a.insert(a.end(), more.begin(), more.end());
        return must(a).out;
    };
    const std::string all = eval(toy.dir + "/t.txt");
    CHECK(eval(toy.dir + "/t.jsonl", {"--field", "t"}) == all);
    std::istringstream rows(all);
    double sum = 0, count = 0;
    std::string row;
    for (int i = 0; i < 3; i++) {
        REQUIRE(std::getline(rows, row));
        const std::string text = texts[size_t(i ? i + 1 : 0)];
        CHECK(number(row, "\"line\":") == (i ? i + 2 : 1));
        CHECK(number(row, "\"tokens\":") == double(text.size()));
        std::ofstream(toy.dir + "/one.txt") << text;
        const std::string alone = eval(toy.dir + "/one.txt", {"--batch", "1"});
        CHECK(number(alone, "\"loss\":") == doctest::Approx(number(row, "\"loss\":")).epsilon(1e-5));
        sum += number(row, "\"loss\":") * double(text.size()), count += double(text.size());
    }
    REQUIRE(std::getline(rows, row));
    CHECK(number(row, "{\"loss\":") == doctest::Approx(sum / count).epsilon(1e-5));
    CHECK(number(row, "\"tokens\":") == count);
    CHECK(number(row, "\"bits_per_byte\":") == doctest::Approx(sum / count / std::log(2.0)).epsilon(1e-5));
}

TEST_CASE("train objective: a prefix model writes, from a prompt longer than a batch, too") {
    Documents toy;
    must(toy.command("p", {"--objective", "prefix", "--sample-every", "8"}), 0, "--- sample after step 8");
    const Words sample = {"sample", toy.dir + "/p", "--prompt", "abcdefghijk", "--tokens", "40", "--num", "3"};
    const std::string three = must(sample).out;
    CHECK(three == must(sample).out);
    CHECK(three.starts_with("--- 1 ---\n" +
                            must({"sample", toy.dir + "/p", "--prompt", "abcdefghijk", "--tokens", "40"}).out));
}

TEST_CASE("sample: prompts of a file's lines, of JSON lines, and a shorter context of a table") {
    Documents toy;
    must(toy.command("a", {}));
    const std::string model = toy.dir + "/a", lines = toy.dir + "/p.txt", json = toy.dir + "/p.jsonl";
    std::ofstream(lines) << "abc\r\n\n de\n";
    std::ofstream(json) << "{\"text\":\"abc\"}\n\n{\"text\":\" de\"}\n";
    const Words more = {"--tokens", "30", "--temperature", "0"};
    auto sample = [&](Words a) {
        a.insert(a.begin(), {"sample", model}), a.insert(a.end(), more.begin(), more.end());
        return must(a);
    };
    const std::string both = sample({"--prompt", "abc", "--prompt", " de"}).out;
    CHECK(sample({"--prompts", lines}).out == both);
    CHECK(sample({"--prompts", json}).out == both);
    CHECK(contains(sample({"--prompt", "abc", "--context", "6"}).err, "context of 6 tokens is full"));
    must({"sample", model, "--context", "6", "--cache", "8"}, 2, "--cache 8, --context 6");
}

TEST_CASE("train objective: a causal run that goes on from masked tokens has no mask") {
    Documents toy;
    must(toy.command("m", {"--objective", "mlm"}));
    must(toy.command("c", {"--from", toy.dir + "/m", "--objective", "causal"}));
    CHECK(!contains(must({"info", toy.dir + "/c"}).out, "mask token"));
    CHECK(contains(must({"info", toy.dir + "/m"}).out, "mask token"));
}

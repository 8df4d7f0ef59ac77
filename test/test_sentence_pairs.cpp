// test_sentence_pairs.cpp - what encoders learn from shards besides masked tokens: whether one text
// follows another (BERT), which tokens were replaced (ELECTRA).
#include <bit>

#include "data/objective.h"
#include "data/encoders/sentence_pairs.h"
#include "toy_run.h"

namespace {
const char* const BERT_TOKENIZER = "test/golden/eval/bert/tokenizer.json";
constexpr int CLS = 2, SEP = 3;

// A shard of documents of these lengths, each behind [CLS]; document d has the tokens 1000 d + 10,
// 1000 d + 11, ... or those of `token`.
std::string documents(
    const std::string& dir, const std::vector<int>& lengths,
    const std::function<int(int d, int i)>& token = [](int d, int i) { return 1000 * d + 10 + i; }) {
    std::vector<int> all;
    for (int d = 0; d < int(lengths.size()); d++) {
        all.push_back(CLS);
        for (int i = 0; i < lengths[size_t(d)]; i++) all.push_back(token(d, i));
    }
    ShardWriter w;
    REQUIRE(w.open(dir + "/docs.bin", 65536).ok());
    REQUIRE(w.append(all.data(), int64_t(all.size())).ok());
    REQUIRE(w.commit().ok());
    return dir + "/docs.bin";
}
std::shared_ptr<const SampleSource> pairs_of(const std::string& shard, int S, uint64_t seed, double fraction = 0.15) {
    const Tokenizer tokenizer = Tokenizer::load(BERT_TOKENIZER).value;
    const Result<PairTemplate> around = pair_template(tokenizer, fraction, seed);
    REQUIRE_MESSAGE(around.ok(), around.status.message);
    Result<std::shared_ptr<const SampleSource>> source =
        sentence_pairs({shard_open(shard, false).value}, around.value, S, 65536);
    REQUIRE_MESSAGE(source.ok(), source.status.message);
    return source.value;
}
struct Sample {
    std::vector<int> tokens, targets;
    std::vector<Text> texts;
};
Sample read(const SampleSource& source, int64_t sample, int S) {
    Sample s = {std::vector<int>(size_t(S)), std::vector<int>(size_t(S)), {}};
    REQUIRE(source.read(sample, s.tokens.data(), s.targets.data(), &s.texts).ok());
    return s;
}
}    // namespace

TEST_CASE("sentence pairs: half of the second texts follow the first; the others are of other documents") {
    constexpr int S = 16;
    const std::vector<int> lengths = {200, 7, 400, 1, 60, 14};    // the document of one token has no pair
    const auto source = pairs_of(documents(temporary_directory(), lengths), S, 5);
    int64_t random = 0, expected = 0, short_ones = 0;
    for (const int n : lengths) expected += n / 13 + (n % 13 >= 2);
    REQUIRE(source->samples() == expected);
    for (int64_t i = 0; i < source->samples(); i++) {
        CAPTURE(i);
        const Sample s = read(*source, i, S);
        CHECK(s.tokens == read(*source, i, S).tokens);
        const int second = s.texts[0].second, used = s.texts.size() > 1 ? s.texts[1].from : S;
        CHECK((s.tokens[0] == CLS && s.tokens[size_t(second - 1)] == SEP && s.tokens[size_t(used - 1)] == SEP));
        CHECK((second >= 3 && used - second >= 2));
        for (int n = 0; n < S; n++) {
            const bool text = n > 0 && n < used - 1 && n != second - 1;
            CHECK(s.targets[size_t(n)] == (text ? s.tokens[size_t(n)] : -1));
            if (text && n > 1 && n != second) CHECK(s.tokens[size_t(n)] == s.tokens[size_t(n - 1)] + 1);
            if (n >= used) CHECK(s.tokens[size_t(n)] == 0);
        }
        const int last = s.tokens[size_t(second - 2)], next = s.tokens[size_t(second)];
        CHECK((s.texts[0].label == 0) == (next == last + 1));
        CHECK((s.texts[0].label == 1) == (next / 1000 != last / 1000));
        random += s.texts[0].label, short_ones += used < S;
    }
    CHECK(short_ones > 0);
    CHECK((random > source->samples() / 4 && random < source->samples() * 3 / 4));
    // Another seed draws other pairs.
    const auto other = pairs_of(documents(temporary_directory(), lengths), S, 6);
    CHECK(read(*other, 0, S).tokens != read(*source, 0, S).tokens);
    CHECK(other->fingerprint() != source->fingerprint());
}

TEST_CASE("sentence pairs: [CLS] and [SEP] are never masked, and each rank counts the targets of all") {
    constexpr int S = 32;
    const auto source = pairs_of(documents(temporary_directory(), {100, 9, 300}), S, 1, 0.4);
    Objective objective = {.mask_kind = MaskKind::all, .mask = 4, .choices = 60000, .fraction = 0.4, .paired = true};
    int64_t found = 0, counted = 0;
    for (int64_t i = 0; i < source->samples(); i++) {
        Sample s = read(*source, i, S);
        const Sample before = s;
        Spans spans;
        objective.apply(i + 7, s.tokens.data(), s.targets.data(), S, S, &spans, s.texts);
        for (size_t n = 0; n < S; n++) {
            found += s.targets[n] >= 0;
            if (s.targets[n] >= 0) CHECK(s.targets[n] == before.targets[n]);
            else CHECK(s.tokens[n] == before.tokens[n]);
        }
        CHECK(spans.labels[0] == s.texts[0].label);
        CHECK(std::count(spans.labels.begin() + 1, spans.labels.end(), -1) == S - 1);
        counted += source->targets(i);
    }
    CHECK(found == counted);
    CHECK(objective.targets(0, source->samples(), S, counted) == counted);
}

TEST_CASE("sentence pairs: what cannot give pairs is refused by name") {
    const std::string dir = temporary_directory();
    const Tokenizer bert = Tokenizer::load(BERT_TOKENIZER).value;
    const PairTemplate around = pair_template(bert, 0.15, 1).value;
    const Tokenizer bytes = Tokenizer::from_merges({}, Pattern::gpt2, {"<|endoftext|>"});
    CHECK(contains(pair_template(bytes, 0.15, 1).status.message, "[SEP]"));
    const Status one = sentence_pairs({shard_open(documents(dir, {30}), false).value}, around, 16, 65536).status;
    CHECK((one.code == Exit::input && contains(one.message, "two documents")));
    const Status small = sentence_pairs({shard_open(documents(dir, {30, 30}), false).value}, around, 4, 65536).status;
    CHECK((small.code == Exit::usage && contains(small.message, "--seq-len 4")));
}

TEST_CASE("replaced tokens: a fraction is replaced and each position is told whether its token is another one") {
    constexpr int S = 200;
    Objective objective = {.mask_kind = MaskKind::all, .choices = 50, .replaces = true};
    std::vector<int> before(S), tokens, targets(S), again;
    for (int s = 0; s < S; s++) before[size_t(s)] = 6 + s % 4;
    for (const bool corpus : {false, true}) {
        if (corpus) objective.drawn = std::make_shared<std::vector<int>>(std::vector<int>{7, 7, 7, 9});
        Spans spans;
        tokens = before;
        objective.apply(3, tokens.data(), targets.data(), S, S, &spans);
        int replaced = 0;
        for (size_t s = 0; s < S; s++) {
            const bool other = tokens[s] != before[s];
            replaced += other;
            CHECK(std::bit_cast<float>(targets[s]) == (other ? 1.0f : 0.0f));
            if (corpus && other) CHECK((tokens[s] == 7 || tokens[s] == 9));
        }
        CHECK((replaced <= 30 && replaced > (corpus ? 12 : 24)));    // a drawn token may be the one that is there
        again = before;
        objective.apply(3, again.data(), targets.data(), S, S, &spans);
        CHECK(again == tokens);
        again = before;
        objective.apply(4, again.data(), targets.data(), S, S, &spans);
        CHECK(again != tokens);
    }
    CHECK(objective.targets(0, 3, S, 0) == 3 * S);
}

TEST_CASE("sentence pairs: BERT learns both losses; a resumed run is the same, and other commands read the model") {
    const std::string dir = temporary_directory();
    // Each document has tokens of its own, so that the pairs can be told apart.
    auto token = [](int d, int i) { return 10 + 5 * (d % 10) + (i * i + d) % 5; };
    const std::string shard = documents(dir, std::vector<int>(60, 90), token);
    std::vector<std::string> args = {
        "train",   "--data",        shard,     "--val",   shard,       "--tokenizer",  BERT_TOKENIZER, "--model",
        "bert:d1", "--objective",   "mlm-nsp", "--batch", "8",         "--seq-len",    "24",           "--steps",
        "120",     "--lr",          "2e-3",    "--dtype", "fp32",      "--save-every", "60",           "--keep",
        "0",       "--eval-tokens", "2000",    "--out",   dir + "/run"};
    must(args);
    const std::string newest = checkpoint_list(dir + "/run").back(), metrics = read_file(dir + "/run/metrics.jsonl");
    CHECK(contains(read_file(newest + "/config.json"), "\"BertForPreTraining\""));
    CHECK(number(metrics.substr(metrics.rfind("\"step\":")), "\"next_sentence_loss\":") < 1);
    const std::string found = must({"eval", dir + "/run", "--data", shard, "--eval-tokens", "2000", "--json"}).out;
    const std::string last = metrics.substr(metrics.rfind("\"val_loss\":"));
    CHECK(number(found, "\"loss\":") + number(found, "\"next_sentence_loss\":") ==
          doctest::Approx(number(last, "\"val_loss\":")).epsilon(1e-4));
    CHECK(number(found, "\"next_sentence_accuracy\":") > 0.5);
    CHECK(number(found, "\"loss\":") < 3);    // ln 66 = 4.2 at first
    Toy::set(args, "--out", dir + "/again");
    args.insert(args.end(), {"--resume", dir + "/run/step_00000060"});
    must(args, 0, "resumed from");
    CHECK(same_file(newest + "/model.safetensors", checkpoint_list(dir + "/again").back() + "/model.safetensors"));
    // mlm drops the second head; labels take its pooler; a masked model gets the head.
    write_file(dir + "/labels.jsonl",
               "{\"text\": \"the cat\", \"label\": \"a\"}\n{\"text\": \"it is\", \"label\": \"b\"}\n");
    must({"train", "--from", dir + "/run", "--labels", dir + "/labels.jsonl", "--batch", "2", "--steps", "2", "--out",
          dir + "/labels"});
    must({"eval", dir + "/run", "--labels", dir + "/labels.jsonl"}, 2, "no classifier");
    must({"train", "--from", dir + "/run", "--data", shard, "--objective", "mlm", "--seq-len", "24", "--steps", "2",
          "--out", dir + "/mlm"});
    CHECK(contains(read_file(checkpoint_list(dir + "/mlm").back() + "/config.json"), "\"BertForMaskedLM\""));
    must({"train", "--from", dir + "/mlm", "--data", shard, "--objective", "mlm-nsp", "--seq-len", "24", "--steps", "2",
          "--out", dir + "/more"});
    CHECK(contains(read_file(checkpoint_list(dir + "/more").back() + "/config.json"), "\"BertForPreTraining\""));
    must({"train", "--data", shard, "--tokenizer", BERT_TOKENIZER, "--model", "roberta:d1", "--objective", "mlm-nsp",
          "--steps", "1", "--out", dir + "/x"},
         2, "roberta has no such head");
}

TEST_CASE("replaced tokens: ELECTRA's discriminator learns to find them, and eval measures it") {
    // Windows of one token each: a replaced token is the one that differs. A body that has learnt
    // masked tokens compares tokens already; random weights would take thousands of steps.
    const std::string dir = temporary_directory(), shard = dir + "/docs.bin";
    std::vector<int> all;
    for (uint64_t i = 0; i < 1000; i++) all.insert(all.end(), 32, 10 + int(philox(1, 2, i).v[0] % 20));
    ShardWriter w;
    REQUIRE(w.open(shard, 65536).ok());
    REQUIRE(w.append(all.data(), int64_t(all.size())).ok());
    REQUIRE(w.commit().ok());
    std::vector<std::string> args = {"train",     "--data",      shard,        "--tokenizer", BERT_TOKENIZER,
                                     "--model",   "electra:d1",  "--channels", "32",          "--heads",
                                     "2",         "--objective", "mlm",        "--batch",     "8",
                                     "--seq-len", "32",          "--steps",    "400",         "--lr",
                                     "5e-3",      "--dtype",     "fp32",       "--out",       dir + "/generator"};
    must(args);
    CHECK(contains(read_file(checkpoint_list(dir + "/generator").back() + "/config.json"), "\"ElectraForMaskedLM\""));
    must({"train",
          "--from",
          dir + "/generator",
          "--data",
          shard,
          "--val",
          shard,
          "--objective",
          "replaced-tokens",
          "--batch",
          "8",
          "--seq-len",
          "32",
          "--steps",
          "400",
          "--lr",
          "3e-3",
          "--dtype",
          "fp32",
          "--eval-tokens",
          "2000",
          "--out",
          dir + "/run"});
    CHECK(contains(read_file(checkpoint_list(dir + "/run").back() + "/config.json"), "\"ElectraForPreTraining\""));
    const std::string metrics = read_file(dir + "/run/metrics.jsonl");
    CHECK(number(metrics, "\"loss\":") > 0.5);    // ln 2 at first
    const std::string found = must({"eval", dir + "/run", "--data", shard, "--eval-tokens", "2000", "--json"}).out;
    CHECK(number(found, "\"loss\":") < 0.2);    // 0.42 if the share of replaced tokens is all that is known
    CHECK(number(found, "\"replaced_accuracy\":") > 0.97);
    CHECK(number(found, "\"replaced_f1\":") > 0.9);
    CHECK(number(metrics.substr(metrics.rfind("\"val_loss\":")), "\"val_loss\":") ==
          doctest::Approx(number(found, "\"loss\":")).epsilon(1e-4).scale(0.1));
    must({"train", "--data", shard, "--tokenizer", BERT_TOKENIZER, "--model", "bert:d1", "--objective",
          "replaced-tokens", "--steps", "1", "--out", dir + "/x"},
         2, "bert has no such head");
}

// test_gguf_encoders.cpp - encoder-decoders and encoders as GGUF files: there and back, texts and
// vectors from a file, keys that have one value, and Unigram's and WordPiece's tokenizers.
#include <cmath>
#include <filesystem>

#include "data/tokenizer_files/tokenizer_gguf.h"
#include "files/json.h"
#include "gguf_parts.h"
#include "model/families/families.h"
#include "tokenizers.h"
#include "toy_run.h"

namespace {
const std::string PIECES = "test/golden/pieces/", PAIRS = "test/golden/pairs/", ENCODERS = "test/golden/encoders/";

std::string converted(const std::string& from, const std::string& to, const std::string& note = "") {
    const ProcessResult r = must({"convert", from, to});
    CHECK_MESSAGE(contains(r.err, note.empty() ? "wrote" : note), r.err);
    return to;
}
// A directory of an encoder-decoder with random weights and a tokenizer of Unigram.
std::string toy_pair(const std::string& dir, const std::string& family) {
    const Tokenizer tokenizer = load_tokenizer("test/golden/seq2seq/t5.json");
    Config c = config_named(family + ":d1").value;
    c.V = tokenizer.vocab_size() + 3;
    c.T = 64;
    c.encoder_layers = 2;
    if (family == "t5") c.logit_scale = 1 / std::sqrt(float(c.C));
    Loaded m;
    REQUIRE(m.g->allocate(c, {RunMode::infer, 1, 1}).ok());
    m.g->init(5);
    REQUIRE(checkpoint_export(dir, weights_reader(*m.g), tokenizer, {}, "", Overwrite::no).ok());
    return dir;
}
}    // namespace

TEST_CASE("gguf encoders: a directory to GGUF and back keeps configuration and bits") {
    const std::string dir = temporary_directory();
    for (const std::string& from :
         {PAIRS + "t5", PAIRS + "t5_gated", PAIRS + "mt5", ENCODERS + "bert", ENCODERS + "bert_base",
          ENCODERS + "distilbert_base", ENCODERS + "bert_texts", ENCODERS + "bert_value", ENCODERS + "modernbert_base",
          ENCODERS + "modernbert_mean"}) {
        CAPTURE(from);
        const std::string name = std::filesystem::path(from).filename();
        const std::string file = converted(from, dir + "/" + name + ".gguf"), back = converted(file, dir + "/" + name);
        const std::vector<float> weights = load(from).weights();
        CHECK(load(file).weights() == weights);
        CHECK(load(back).weights() == weights);
        Config expected = gguf_model(checkpoint_config(from).value);
        if (name == "mt5") expected.family = checkpoint_config(PAIRS + "t5").value.family;
        CHECK(checkpoint_config(file).value == expected);
        CHECK(checkpoint_config(back).value == expected);
    }
    const nlohmann::json bert = nlohmann::json::parse(read_file(dir + "/bert_base/config.json"));
    CHECK(bert["model_type"] == "bert");
    CHECK(bert["architectures"] == nlohmann::json({"BertModel"}));
    // RoBERTa's first two positions are of no text, and its file is BERT's.
    const std::string file = converted(ENCODERS + "roberta", dir + "/r.gguf", "for embed: the head is left out");
    CHECK(checkpoint_config(file).value.family->type == std::string("bert"));
    for (const auto& [name, message] :
         {std::pair{"bert_relu", "its architecture bert has activation gelu"},
          {"bert_tokens", "has head none, this model has head positions"},
          {"distilbert_texts", "head activation tanh, this model has head activation relu"},
          {"modernbert_texts", "has no norm bias, no head transform bias"}}) {
        const ProcessResult r = run_flatgpt({"convert", ENCODERS + name, dir + "/refused.gguf"});
        CHECK(r.exit_code == 2);
        CHECK_MESSAGE(contains(r.err, message), r.err);
    }
}

TEST_CASE("gguf encoders: classifiers of texts, and what llama.cpp makes of a file without a key") {
    const std::string dir = temporary_directory(), path = dir + "/a.gguf";
    auto read = [&](const std::string& from, const std::function<void(Parts&)>& change) {
        REQUIRE(save(*load(ENCODERS + from).g, "q8_0", path).ok());
        Parts p = parts_of(path);
        change(p);
        write_file(path, p.written());
        return checkpoint_config(path);
    };
    auto without = [](const std::string& name) {
        return [name](Parts& p) {
            std::erase_if(p.keys, [&](auto& row) { return row.first == name; });
            std::erase_if(p.tensors, [&](auto& t) { return t.name == name; });
        };
    };
    auto refused = [&](const std::string& from, const std::function<void(Parts&)>& change, const std::string& message) {
        const Status s = read(from, change).status;
        CHECK(s.code == Exit::input);
        CHECK_MESSAGE(contains(s.message, message), s.message);
    };
    // RoBERTa's head is BERT's, whose product before the classes is the pooler.
    const Config roberta = read("roberta_texts", [](Parts&) {}).value;
    CHECK(roberta.family->type == std::string("bert"));
    CHECK(roberta.classes == std::vector<std::string>{"bad", "good"});
    CHECK(roberta.transform_act == Act::tanh);
    CHECK(load(path).weights().size() == load(ENCODERS + "roberta_texts").weights().size() - 2 * 16);
    CHECK(GgufFile::open(path).value.find("cls.output.weight")->format->type == BlockType::f32);
    const std::string labels = "bert.classifier.output_labels", pooling = "modern-bert.classifier.pooling_type";
    CHECK(read("bert_value", without(labels)).value.classes == std::vector<std::string>{"LABEL_0"});
    refused("bert_texts", without(labels), "cls.output");
    refused(
        "bert_texts", [&](Parts& p) { p[labels] = GgufValue::text_array({}); }, "expected 1 to 4096 names");
    CHECK(read("modernbert_mean", without(pooling)).value.mean_pooled);
    CHECK(!read("modernbert_mean", [&](Parts& p) { p[pooling] = GgufValue::integer(2); }).value.mean_pooled);
    CHECK(!read("bert_texts", without("bert.classifier.pooling_type")).value.mean_pooled);
    CHECK(!read("bert_texts", without("cls.bias")).value.transform_bias);
    // llama.cpp's converter drops BERT's pooler: the classes then read the first state.
    // transformers has no such class, flatgpt's own type of directory does.
    auto without_pooler = [&](Parts& p) {
        without("cls.weight")(p);
        without("cls.bias")(p);
    };
    const Config direct = read("bert_texts", without_pooler).value;
    CHECK(direct.transform == HeadTransform::none);
    CHECK(checkpoint_config(converted(path, dir + "/direct")).value == direct);
    CHECK(load(dir + "/direct").weights() == load(path).weights());
    refused("bert_texts", without("cls.output.weight"), "cls.");
}

TEST_CASE("gguf encoders: ModernBERT's windows, thetas and activation") {
    const std::string dir = temporary_directory(), path = dir + "/a.gguf";
    auto read = [&](const std::function<void(Parts&)>& change) {
        REQUIRE(save(*load(ENCODERS + "modernbert_base").g, "f32", path).ok());
        Parts p = parts_of(path);
        change(p);
        write_file(path, p.written());
        return checkpoint_config(path);
    };
    auto with = [&](const std::string& key, const GgufValue& v) {
        return read([&](Parts& p) { p["modern-bert." + key] = v; });
    };
    auto flags = [](const std::vector<int64_t>& each) { return GgufValue{GgufType::boolean, true, each, {}, {}}; };
    const Config c = read([](Parts&) {}).value;
    CHECK(c.window == 5);    // 4 on either side, and the token itself
    CHECK(c.global_every == 3);
    CHECK(c.rope_theta == 160000);
    CHECK(c.rope_local_theta == 1e4f);
    CHECK(with("rope.freq_base_swa", GgufValue::number(5e4f)).value.rope_local_theta == 5e4f);
    const std::string window = "attention.sliding_window", pattern = window + "_pattern";
    CHECK(with(window, GgufValue::integer(7)).value.window == 4);
    CHECK(with(window, GgufValue::integer(0)).value.window == 0);
    CHECK(with(pattern, GgufValue::integer(2)).value.global_every == 2);
    CHECK(with(pattern, flags({0, 1, 0, 1})).value.global_every == 2);
    CHECK(with(pattern, flags({0, 1, 1, 0})).value.global_every == 3);
    CHECK(with(pattern, flags({0, 1, 1, 1})).value.global_every == 4);
    CHECK(contains(with(pattern, flags({1, 1, 0, 1})).status.message, "expected every n-th of 4 layers"));
    CHECK(with("hidden_activation", GgufValue::text("silu")).value.activation == Act::silu);
    CHECK(contains(with("hidden_activation", GgufValue::text("relu")).status.message, "expected gelu or silu"));
}

TEST_CASE("gguf encoders: embed takes an encoder-decoder's encoder, and a file that has it alone") {
    const std::string dir = temporary_directory(), text = dir + "/a.txt";
    write_file(text, "a small test\nanother one, somewhat longer than the first\n");
    auto embed = [&](const std::string& model) {
        return must({"embed", model, "--text", text, "--dtype", "fp32", "--device", "cpu", "--seq-len", "24"}).out;
    };
    for (const std::string family : {"bart", "marian"}) CHECK(!embed(toy_pair(dir + "/" + family, family)).empty());
    must({"embed", toy_pair(dir + "/llama", "llama"), "--text", text}, 2, "is an encoder-decoder: it reads a source");
    const std::string t5 = toy_pair(dir + "/t5", "t5"), vectors = embed(t5), encoder = dir + "/encoder";
    CHECK(embed(converted(t5, dir + "/t5.gguf")) == vectors);
    // transformers' class reads the encoder of a file that has a decoder, too.
    std::filesystem::copy(t5, encoder);
    nlohmann::json config = nlohmann::json::parse(read_file(t5 + "/config.json"));
    config["architectures"] = {"T5EncoderModel"};
    write_file(encoder + "/config.json", config.dump());
    CHECK(embed(encoder) == vectors);
    const std::string file = converted(encoder, dir + "/encoder.gguf"), back = converted(file, dir + "/back");
    CHECK(embed(file) == vectors);
    CHECK(embed(back) == vectors);
    const Config c = checkpoint_config(file).value;
    CHECK(c == checkpoint_config(encoder).value);
    CHECK(c == checkpoint_config(t5).value.body());
    config = nlohmann::json::parse(read_file(back + "/config.json"));
    CHECK(config["model_type"] == "t5");
    CHECK(config["architectures"] == nlohmann::json({"T5EncoderModel"}));
    // An adapter of both stacks is the encoder's, too.
    const std::string pairs = dir + "/pairs.jsonl", run = dir + "/lora";
    write_file(pairs, "{\"source\": \"a small test\", \"target\": \"another one\"}\n");
    must({"train", "--from",    t5,   "--pairs", pairs,  "--lora-rank", "2",   "--steps", "2", "--batch", "1", "--lr",
          "0.1",   "--seq-len", "16", "--dtype", "fp32", "--device",    "cpu", "--out",   run});
    must({"merge", t5, run, dir + "/merged"});
    auto first = [](const std::string& lines) {
        return nlohmann::json::parse(lines.substr(0, lines.find('\n')))["embedding"].get<std::vector<double>>();
    };
    const std::vector<double> adapted = first(embed(run)), merged = first(embed(dir + "/merged"));
    double furthest = 0, moved = 0;
    for (size_t i = 0; i < adapted.size(); i++) {
        furthest = std::max(furthest, std::fabs(adapted[i] - merged[i]));
        moved = std::max(moved, std::fabs(adapted[i] - first(vectors)[i]));
    }
    CHECK(furthest < 1e-6);
    CHECK(moved > 1e-4);
    // It has no names of new models, and does nothing of what a decoder does.
    CHECK(!config_named("t5_encoder:d1").ok());
    must({"sample", encoder, "--prompt", "a"}, 2, "predicts no tokens");
}

TEST_CASE("gguf encoders: texts and vectors from a file are those from its directory") {
    const std::string dir = temporary_directory(), from = toy_pair(dir + "/t5", "t5");
    const std::string file = converted(from, dir + "/t5.gguf", ""), back = converted(file, dir + "/back");
    auto sampled = [](const std::string& model) {
        return must({"sample", model, "--source", "a small test", "--tokens", "12", "--temperature", "1.5", "--seed",
                     "4", "--json"})
            .out;
    };
    CHECK(sampled(from).size() > 20);
    CHECK(sampled(file) == sampled(from));
    CHECK(sampled(back) == sampled(from));
    CHECK(read_file(back + "/tokenizer.json") == read_file(from + "/tokenizer.json"));
    converted(PAIRS + "t5", dir + "/scaled.gguf", "does not multiply this model's logits by 0.25");
    // A sentence-transformers directory, whose pooling is the first position.
    const std::string bert = "test/golden/eval/bert", text = dir + "/texts";
    write_file(text, "a b c\nthe second text\n");
    auto embedded = [&](const std::string& model, const char* pooling = "auto") {
        return must({"embed", model, "--text", text, "--dtype", "fp32", "--device", "cpu", "--pooling", pooling}).out;
    };
    const std::string vectors = converted(bert, dir + "/bert.gguf");
    CHECK(embedded(vectors) == embedded(bert));
    CHECK(embedded(vectors) != embedded(bert, "mean"));
    converted(vectors, dir + "/again.gguf");
    CHECK(embedded(dir + "/again.gguf") == embedded(bert));
    // A body without a pooler begins a classifier.
    const std::string labels = dir + "/labels.jsonl";
    write_file(labels, "{\"text\": \"a b\", \"label\": \"x\"}\n{\"text\": \"c\", \"label\": \"y\"}\n");
    const std::string run = dir + "/run", classifier = dir + "/c.gguf";
    must({"train", "--from", vectors, "--labels", labels, "--steps", "1", "--batch", "2", "--seq-len", "16", "--out",
          run, "--device", "cpu"});
    converted(run, classifier, "both texts of a pair segment 0");
    auto scored = [&](const std::string& model) {
        return must({"eval", model, "--labels", labels, "--json", "--dtype", "fp32", "--device", "cpu"}).out;
    };
    CHECK(scored(classifier) == scored(run));
}

TEST_CASE("gguf encoders: keys with one value, and what files may leave out") {
    const std::string dir = temporary_directory(), path = dir + "/a.gguf";
    auto read = [&](const std::string& from, const std::function<void(Parts&)>& change) {
        REQUIRE(save(*load(from).g, "f32", path).ok());
        Parts p = parts_of(path);
        change(p);
        write_file(path, p.written());
        return checkpoint_config(path);
    };
    auto without = [](const std::string& key) {
        return [key](Parts& p) { std::erase_if(p.keys, [&](auto& row) { return row.first == key; }); };
    };
    auto refused = [&](const std::string& from, const std::function<void(Parts&)>& change, const std::string& message) {
        const Status s = read(from, change).status;
        CHECK(s.code == Exit::input);
        CHECK_MESSAGE(contains(s.message, message), s.message);
    };
    const std::string t5 = PAIRS + "t5", buckets = "t5.attention.relative_buckets_count";
    refused(
        t5, [&](Parts& p) { p[buckets] = GgufValue::integer(16); },
        buckets + ": flatgpt runs only models where it is 32");
    refused(t5, without(buckets), buckets + ": not found");
    const std::string causal = "bert.attention.causal";
    refused(
        ENCODERS + "bert_base", [&](Parts& p) { p[causal] = GgufValue::boolean(true); }, "is false, found true");
    refused(ENCODERS + "bert_base", without(causal), causal + ": not found");
    CHECK(read(t5, without("t5.logit_scale")).value.logit_scale == 0.25f);    // as transformers
    CHECK(read(PAIRS + "t5_gated", without("t5.logit_scale")).value.logit_scale == 1);
    CHECK(read(t5, without("t5.decoder_start_token_id")).value.decoder_start == 0);
    // Without the decoder's number of blocks it has as many as the encoder, so tensors are missing.
    refused(t5, without("t5.decoder_block_count"), "dec.blk.2");
    const std::string unused(RELATIVE_BUCKETS * 3 * 4, '\0');
    auto with_unused = [&](Parts& p) {
        p.tensors.push_back(source("dec.blk.0.cross_attn_rel_b.weight", BlockType::f32, {RELATIVE_BUCKETS, 3}, unused));
    };
    CHECK(read(t5, with_unused).ok());
    // The tables of positions and segments stay floats in any type.
    for (const auto& [from, name] :
         {std::pair{t5, "enc.blk.0.attn_rel_b.weight"}, {ENCODERS + "bert_base", "token_types.weight"}}) {
        REQUIRE(save(*load(from).g, "q8_0", path).ok());
        CHECK(GgufFile::open(path).value.find(name)->format->type == BlockType::f32);
    }
}

TEST_CASE("gguf encoders: arrays keep a tokenizer of Unigram or WordPiece whole") {
    const auto cases = nlohmann::json::parse(read_file(PIECES + "cases.json"));
    // Steps that llama.cpp lacks come with the whole tokenizer.json.
    const std::map<std::string, bool> names = {
        {"bert.json", false},   {"bert_cased.json", false}, {"unigram.model", false}, {"t5.json", true},
        {"t5_runs.json", true}, {"first.json", true},       {"albert.json", true},    {"bytes.json", true}};
    for (const auto& [name, whole] : names) {
        CAPTURE(name);
        const Tokenizer t = load_tokenizer(PIECES + name);
        const Result<GgufTokenizer> g = tokenizer_to_gguf(t);
        REQUIRE_MESSAGE(g.ok(), g.status.message);
        CHECK(!g.value.huggingface.empty() == whole);
        const Result<GgufKeys> keys = gguf_vocabulary(t, t.vocab_size() + 5);
        REQUIRE(keys.ok());
        const std::string path = temporary_directory() + "/a.gguf";
        Parts p;
        p.keys = keys.value;
        write_file(path, p.written());
        const Result<Tokenizer> back = gguf_tokenizer(GgufFile::open(path).value);
        REQUIRE_MESSAGE(back.ok(), back.status.message);
        CHECK(back.value.to_json() == t.to_json());
        CHECK(back.value.fingerprint() == t.fingerprint());
        CHECK(back.value.config_json() == t.config_json());
        for (const std::string text : cases["texts"]) {
            CAPTURE(text);
            CHECK(back.value.encode_text(text, 0, true).ids == t.encode_text(text, 0, true).ids);
        }
    }
    const Tokenizer bart = load_tokenizer("test/golden/seq2seq/bart.json");
    Vocabulary masked = bart.vocabulary();
    masked.mask = 4;
    CHECK(tokenizer_from_gguf(tokenizer_to_gguf(Tokenizer(masked)).value, "t").value.vocabulary().mask == 4);
    // Byte-level encoders: RoBERTa has two tokens between the texts of a pair, ModernBERT one,
    // whose bos and eos have no names.
    for (const bool modern : {false, true}) {
        Vocabulary v = bart.vocabulary();
        v.cls = v.before[0];
        v.sep = v.after[0];
        if (modern) v.bos = v.eos = -1;
        if (modern) v.pair.erase(v.pair.begin() + 2);
        CHECK(v.pair.size() == (modern ? 5 : 6));
        const GgufTokenizer g = tokenizer_to_gguf(Tokenizer(v)).value;
        CHECK(g.add_sep_token == !modern);
        const Tokenizer back = tokenizer_from_gguf(g, "t").value;
        CHECK(back.encode_pair("a b", "c").ids == Tokenizer(v).encode_pair("a b", "c").ids);
    }
    CHECK(beyond_gguf(load_tokenizer(PIECES + "unigram.model")).empty());
    CHECK(contains(beyond_gguf(load_tokenizer(PIECES + "albert.json")), "llama.cpp gives some texts other ids"));
    // A word's beginning has a mark, its continuation none.
    const GgufTokenizer bert = tokenizer_to_gguf(load_tokenizer(PIECES + "bert.json")).value;
    const std::vector<std::string> spelled = load_tokenizer(PIECES + "bert.json").vocabulary().tokens;
    int begins = 0, continues = 0;
    for (size_t id = 5; id < spelled.size(); id++) {
        const bool inside = spelled[id].starts_with("##");
        (inside ? continues : begins)++;
        CHECK(bert.tokens[id] == (inside ? spelled[id].substr(2) : SPACE_MARK + spelled[id]));
    }
    CHECK(begins > 50);
    CHECK(continues > 50);
    CHECK(bert.tokens[2] == "[CLS]");
    CHECK(bert.bos_token_id == 2);
    CHECK(bert.seperator_token_id == 3);
}

TEST_CASE("gguf encoders: hostile arrays of Unigram and WordPiece are exit 3") {
    const GgufTokenizer t5 = tokenizer_to_gguf(load_tokenizer(PIECES + "t5.json")).value;
    const GgufTokenizer keys = tokenizer_to_gguf(load_tokenizer(PIECES + "unigram.model")).value;
    const GgufTokenizer bert = tokenizer_to_gguf(load_tokenizer(PIECES + "bert.json")).value;
    auto refused = [](GgufTokenizer g, const std::function<void(GgufTokenizer&)>& change, const char* message) {
        change(g);
        const Status s = tokenizer_from_gguf(g, "t").status;
        CHECK(s.code == Exit::input);
        CHECK_MESSAGE(contains(s.message, message), s.message);
    };
    refused(
        t5, [](auto& g) { g.scores.pop_back(); }, "scores");
    refused(
        t5, [](auto& g) { g.tokens[7] += "x"; }, "token 7: expected");
    refused(
        t5, [](auto& g) { g.huggingface = "{"; }, "tokenizer.huggingface.json");
    refused(
        t5, [&](auto& g) { g.huggingface = load_tokenizer(PIECES + "bert.json").to_json(); }, "expected Unigram");
    refused(
        t5, [](auto& g) { g.mask_token_id = 5000; }, "mask_token_id");
    refused(
        keys, [](auto& g) { g.charsmap = "damaged"; }, "precompiled_charsmap");
    refused(
        keys, [](auto& g) { g.tokens[9] = g.tokens[8]; }, "two tokens are");
    refused(
        bert, [](auto& g) { g.tokens[9] = std::string(600, 'a'); }, "at most 512 bytes");
    refused(
        bert, [](auto& g) { g.bos_token_id = g.cls_token_id = -1, g.tokens.resize(90), g.token_type.resize(90); },
        "expected [CLS] and [SEP]");
    // Ids at the arrays' end, which only fill the embeddings.
    GgufTokenizer padded = keys;
    padded.eos_token_id = int(padded.tokens.size());
    padded.tokens.push_back("[PAD]"), padded.token_type.push_back(5), padded.scores.push_back(0);
    const Result<Tokenizer> t = tokenizer_from_gguf(padded, "t");
    REQUIRE(t.ok());
    CHECK(t.value.encode_text("a").ids.back() == padded.eos_token_id);
    CHECK(t.value.vocab_size() == padded.eos_token_id + 1);
}

// test_embed.cpp - vectors of texts: against sentence-transformers, in batches, files, search.
#include <nlohmann/json.hpp>

#include "infer/embed/embeddings.h"
#include "layers/cpu.h"
#include "test.h"
#include "toy_model.h"
#include "toy_run.h"

namespace {
const std::string GOLDEN = "test/golden/eval/";
using Rows = std::vector<std::vector<double>>;

double largest_difference(const Rows& a, const Rows& b) {
    REQUIRE(a.size() == b.size());
    double most = 0;
    for (size_t i = 0; i < a.size(); i++) {
        REQUIRE(a[i].size() == b[i].size());
        for (size_t j = 0; j < a[i].size(); j++) most = std::max(most, std::fabs(a[i][j] - b[i][j]));
    }
    return most;
}
// Vectors of JSON lines, whose numbers are 1, 2, ...
Rows vectors(const std::string& lines) {
    Rows rows;
    std::istringstream in(lines);
    for (std::string line; std::getline(in, line);) {
        const nlohmann::json j = nlohmann::json::parse(line);
        CHECK(j["line"] == rows.size() + 1);
        rows.push_back(j["embedding"]);
    }
    return rows;
}
struct Texts {
    std::string dir = temporary_directory(), file = dir + "/texts.jsonl";
    nlohmann::json golden = nlohmann::json::parse(read_file(GOLDEN + "embed.json"));
    Texts() {
        std::string lines;
        for (const auto& text : golden["texts"]) lines += nlohmann::json{{"text", text}}.dump() + "\n";
        write_file(file, lines);
    }
    std::vector<std::string> args(const std::string& model, const std::vector<std::string>& more) const {
        return with({"embed", GOLDEN + model, "--text", file, "--dtype", "fp32", "--device", "cpu"}, more);
    }
};
}    // namespace

TEST_CASE("embed: vectors are those of sentence-transformers, by every pooling") {
    const Texts texts;
    for (const std::string model : {"gpt2", "llama", "bert", "t5"}) {
        CAPTURE(model);
        for (const std::string pooling : {"mean", "first", "last"}) {
            CAPTURE(pooling);
            const Rows found = vectors(must(texts.args(model, {"--pooling", pooling})).out);
            CHECK(largest_difference(found, texts.golden[model][pooling]) < 1e-5);
        }
        const Rows cut =
            vectors(must(texts.args(model, {"--pooling", "mean", "--dims", "8", "--normalize=false"})).out);
        CHECK(largest_difference(cut, texts.golden[model]["mean2"]) < 1e-5);
        // A causal model's last position has seen all others. The directories of BERT and T5 name a
        // pooling.
        const std::string usual = model == "bert" ? "first" : model == "t5" ? "mean" : "last";
        CHECK(must(texts.args(model, {})).out == must(texts.args(model, {"--pooling", usual})).out);
    }
}

TEST_CASE("embed: a text's vector is its own in any batch, and what pads it is not seen") {
    for (const MaskKind mask : {MaskKind::causal, MaskKind::all, MaskKind::prefix}) {
        Config c = {.V = 61, .T = 24, .L = 2, .NH = 4, .C = 32, .F = 64};
        c.mask_kind = mask;
        std::vector<std::vector<int>> texts;
        for (int n : {5, 24, 1, 9, 9, 2}) texts.push_back(toy_tokens(n, c.V, uint64_t(n)));
        for (const Pooling pooling : {Pooling::mean, Pooling::first, Pooling::last}) {
            auto embed = [&](int B, const std::vector<std::vector<int>>& some, const EmbedOptions& o) {
                Model g(cpu_ops<float>());
                REQUIRE(
                    g.allocate(c, {.mode = RunMode::infer, .B = B, .S = c.T, .spans = mask != MaskKind::causal}).ok());
                g.init(3);
                return embed_texts(g, some, o);
            };
            const EmbedOptions whole = {.pooling = pooling};
            const std::vector<float> all = embed(3, texts, whole);
            for (size_t i = 0; i < texts.size(); i++) {
                const std::vector<float> alone = embed(1, {texts[i]}, whole);
                double square = 0;
                for (size_t j = 0; j < 32; j++) {
                    CHECK(all[i * 32 + j] == doctest::Approx(alone[j]).epsilon(1e-5));
                    square += double(alone[j]) * double(alone[j]);
                }
                CHECK(square == doctest::Approx(1).epsilon(1e-6));
            }
            CHECK(all == embed(3, texts, whole));
            // The first numbers of a longer vector, which have length 1 by themselves.
            const std::vector<float> four = embed(2, texts, {.pooling = pooling, .dims = 4});
            REQUIRE(four.size() == texts.size() * 4);
            double square = 0;
            for (int j = 0; j < 4; j++) square += double(four[size_t(j)]) * double(four[size_t(j)]);
            CHECK(square == doctest::Approx(1).epsilon(1e-6));
            CHECK(four[0] / four[1] == doctest::Approx(all[0] / all[1]).epsilon(1e-4));
        }
    }
}

TEST_CASE("embed: a .npy file, cut texts, wrong options and files") {
    const Texts texts;
    const std::string npy = texts.dir + "/e.npy", jsonl = texts.dir + "/e.jsonl";
    const std::string said = must(texts.args("llama", {"--out", npy})).err;
    CHECK(contains(said, "6 vectors of 32 numbers in "));
    const std::string bytes = read_file(npy), header = bytes.substr(0, 128);
    REQUIRE(bytes.size() == 128 + 6 * 32 * 4);
    CHECK(header.substr(0, 10) == std::string("\x93NUMPY\x01\x00\x76\x00", 10));
    CHECK(contains(header, "{'descr': '<f4', 'fortran_order': False, 'shape': (6, 32), }"));
    CHECK(header.back() == '\n');
    must(texts.args("llama", {"--out", jsonl}));
    const Rows rows = vectors(read_file(jsonl));
    for (size_t i = 0; i < 6 * 32; i++) {
        float x;
        memcpy(&x, &bytes[128 + 4 * i], 4);
        CHECK(x == float(rows[i / 32][i % 32]));
    }
    must(texts.args("llama", {"--out", npy}), 2, "it exists");
    must(texts.args("llama", {"--out", npy, "--overwrite"}));
    must(texts.args("llama", {"--out", texts.dir + "/e.txt"}), 2, "ends in .npy or .jsonl");
    must(texts.args("llama", {"--out", texts.dir + "/none/e.npy"}), 4);
    must(texts.args("llama", {"--dims", "33"}), 2, "at most the 32 numbers");
    write_file(texts.dir + "/empty.txt", "\n \n");
    must({"embed", GOLDEN + "llama", "--text", texts.dir + "/empty.txt"}, 3, "expected a text on each line");
    must({"embed", GOLDEN + "none", "--text", texts.file}, 3);
    // A longer text is cut, which a note tells. "a" is as short as that, with the model's BOS.
    const ProcessResult cut = must(texts.args("llama", {"--seq-len", "4"})), whole = must(texts.args("llama", {}));
    CHECK(contains(cut.err, "texts were cut to 4 tokens (--seq-len)"));
    const Rows four = vectors(cut.out), all = vectors(whole.out);
    CHECK(four[1] == all[1]);
    CHECK(four[0] != all[0]);
    must(texts.args("llama", {"--seq-len", "1"}), 2, "expected more than the 1 tokens");
    must(texts.args("llama", {"--seq-len", "100000"}), 2);
    must(texts.args("llama", {"--search", ""}), 2, "expected a text to search for");
    write_file(texts.dir + "/none.jsonl", "{\"text\": \"\"}\n");
    must({"embed", GOLDEN + "gpt2", "--text", texts.dir + "/none.jsonl"}, 3, "none.jsonl:1: expected a text");
    must({"embed", GOLDEN + "gpt2", "--text", texts.dir + "/gone.jsonl"}, 3);
}

TEST_CASE("embed: --search finds the closest texts first, a text itself with cosine 1") {
    const Texts texts;
    const std::string found =
        must(texts.args("llama", {"--search", "def f(x): return x", "--top", "3", "--json", "--pooling", "mean"})).out;
    std::istringstream in(found);
    std::vector<nlohmann::json> hits;
    for (std::string line; std::getline(in, line);) hits.push_back(nlohmann::json::parse(line));
    REQUIRE(hits.size() == 3);
    CHECK(hits[0]["line"] == 5);
    CHECK(hits[0]["text"] == "def f(x): return x");
    CHECK(hits[0]["cosine"].get<double>() == doctest::Approx(1).epsilon(1e-6));
    const Rows golden = texts.golden["llama"]["mean"];
    for (size_t i = 1; i < 3; i++) {
        CHECK(hits[i]["cosine"] <= hits[i - 1]["cosine"]);
        double dot = 0;
        for (size_t j = 0; j < 32; j++) dot += golden[4][j] * golden[hits[i]["line"].get<size_t>() - 1][j];
        CHECK(hits[i]["cosine"].get<double>() == doctest::Approx(dot).epsilon(1e-5));
    }
    for (const char* normalize : {"true", "false"}) {
        const std::string lines =
            must(texts.args("llama", {"--search", "1 2 3", "--top", "1", std::string("--normalize=") + normalize})).out;
        CHECK(lines == " 1.0000         6  1 2 3\n");
    }
    must(texts.args("llama", {"--top", "3"}), 2, "--top needs --search");
    write_file(texts.dir + "/lines.jsonl", "{\"text\": \"1\\n2\\t3\"}\n");
    const ProcessResult one = must({"embed", GOLDEN + "llama", "--text", texts.dir + "/lines.jsonl", "--search", "1"});
    CHECK(contains(one.out, "  1  1 2 3\n"));
    CHECK(contains(one.err, "found 1 of 1 text\n"));
}

TEST_CASE("embed: a sentence-transformers directory names pooling and length, and what flatgpt lacks is refused") {
    const std::string dir = temporary_directory();
    CHECK(!sentence_config(dir).value.pooling.has_value());
    CHECK(usual_pooling(MaskKind::causal) == Pooling::last);
    CHECK(usual_pooling(MaskKind::all) == Pooling::mean);
    CHECK(sentence_config(dir).value.longest == 0);
    fs::create_directory(dir + "/1_Pooling");
    for (const auto& [text, pooling] :
         {std::pair{R"({"pooling_mode_cls_token": true, "pooling_mode_mean_tokens": false})", Pooling::first},
          {R"({"word_embedding_dimension": 8, "pooling_mode_lasttoken": true})", Pooling::last},
          {R"({"pooling_mode": "mean"})", Pooling::mean}}) {
        write_file(dir + "/1_Pooling/config.json", text);
        CHECK(sentence_config(dir).value.pooling == pooling);
    }
    write_file(dir + "/sentence_bert_config.json", R"({"max_seq_length": 7, "do_lower_case": false})");
    CHECK(sentence_config(dir).value.longest == 7);
    write_file(dir + "/modules.json", R"([{"type": "sentence_transformers.models.Transformer"},)"
                                      R"( {"type": "sentence_transformers.models.Normalize"}])");
    CHECK(sentence_config(dir).ok());
    for (const auto& [file, text] :
         {std::pair{"1_Pooling/config.json", "{}"},
          {"1_Pooling/config.json", "[]"},
          {"1_Pooling/config.json", "{"},
          {"1_Pooling/config.json", R"({"pooling_mode_max_tokens": true})"},
          {"1_Pooling/config.json", R"({"pooling_mode_cls_token": true, "pooling_mode_mean_tokens": true})"},
          {"sentence_bert_config.json", R"({"max_seq_length": 0})"},
          {"sentence_bert_config.json", "7"},
          {"modules.json", "{}"},
          {"modules.json", R"([{"type": "sentence_transformers.models.Dense", "path": "none"}])"},
          {"modules.json", R"([{"type": "sentence_transformers.models.LayerNorm"}])"},
          {"modules.json", R"([{"type": "sentence_transformers.models.Normalize"}, {"type": "a.Pooling"}])"},
          {"modules.json", "[3]"}}) {
        CAPTURE(text);
        const std::string path = dir + "/" + file, before = read_file(path);
        write_file(path, text);
        CHECK(sentence_config(dir).status.code == Exit::input);
        write_file(path, before);
    }
    CHECK(sentence_config(dir).ok());
}

TEST_CASE("embed: Dense layers behind the pooling are read whole, or refused by name") {
    const std::string dir = temporary_directory() + "/t5";
    fs::copy(GOLDEN + "t5", dir, fs::copy_options::recursive);
    const std::vector<DenseLayer> layers = sentence_config(dir).value.layers;
    REQUIRE(layers.size() == 2);
    CHECK((layers[0].in == 32 && layers[0].out == 12 && layers[0].tanh));
    CHECK((layers[1].in == 12 && layers[1].out == 20 && !layers[1].tanh));
    CHECK(layers[1].b == std::vector<float>(20));    // it has none
    const std::string file = dir + "/2_Dense/config.json", good = read_file(file);
    auto refused = [&](const char* key, const nlohmann::json& value) {
        nlohmann::json j = nlohmann::json::parse(good);
        j[key] = value;
        write_file(file, j.dump());
        const Status s = sentence_config(dir).status;
        CHECK(s.code == Exit::input);
        return s.message;
    };
    CHECK(
        contains(refused("activation_function", "torch.nn.ReLU"), "expected Tanh or Identity, found 'torch.nn.ReLU'"));
    CHECK(contains(refused("in_features", 31), "linear.weight: expected 12 x 31 numbers"));
    CHECK(contains(refused("out_features", 11), "linear.weight: expected 11 x 32 numbers"));
    CHECK(contains(refused("out_features", 0), "expected an integer from 1"));
    CHECK(
        contains(refused("in_features", 65536), "expected 12 x 65536 numbers, as config.json has them, found 12 x 32"));
    write_file(file, good);
    const std::string own = dir + "/3_Dense/config.json", without = read_file(own);
    nlohmann::json with_bias = nlohmann::json::parse(without);
    with_bias["bias"] = true;
    write_file(own, with_bias.dump());
    CHECK(contains(sentence_config(dir).status.message,
                   "linear.bias: expected a tensor of F32, BF16 or F16, found none"));
    write_file(own, without);
    const std::string tensors = dir + "/2_Dense/model.safetensors", finite = read_file(tensors);
    write_file(tensors, finite.substr(0, finite.size() - 4) + std::string("\0\0\xc0\x7f", 4));    // NaN
    CHECK(sentence_config(dir).status.code == Exit::input);
    write_file(tensors, finite);
    must({"embed", dir, "--text", "LICENSE", "--dims", "21"}, 2, "at most the 20 numbers");
    fs::copy_file(dir + "/3_Dense/config.json", file, fs::copy_options::overwrite_existing);
    fs::copy_file(dir + "/3_Dense/model.safetensors", dir + "/2_Dense/model.safetensors",
                  fs::copy_options::overwrite_existing);
    CHECK(contains(sentence_config(dir).status.message, "3_Dense: expected 20 in_features, found 12"));
    write_file(dir + "/modules.json", R"([{"type": "a.Dense", "path": "../t5/2_Dense"}])");
    CHECK(contains(sentence_config(dir).status.message, "expected the name of a Dense layer's directory"));
    write_file(dir + "/modules.json", R"([{"type": "a.Dense", "path": "2_Dense"}])");
    must({"embed", dir, "--text", "LICENSE"}, 3, "has 12 in_features, the model's states have 32 numbers");
    must({"convert", GOLDEN + "t5", dir + "/a.gguf"}, 0, "the Dense layers behind the pooling");
}

// test_byt5.cpp - ByT5, whose ids are bytes: those of transformers (dev/golden_byt5.py), also
// written and read again, in GGUF and in a model's directory.
#include <filesystem>

#include "data/tokenizer_files/tokenizer_gguf.h"
#include "files/json.h"
#include "gguf_parts.h"
#include "tokenizers.h"
#include "toy_run.h"

namespace {
const std::string GOLDEN = "test/golden/byt5/";
typedef std::vector<int> Ids;
}    // namespace

TEST_CASE("byt5: ids and texts are those of transformers, also written and read again") {
    const auto cases = nlohmann::json::parse(read_file(GOLDEN + "cases.json"));
    const std::string dir = temporary_directory();
    for (const std::string name : {"first", "saved"}) {
        CAPTURE(name);
        const Tokenizer read = load_tokenizer(GOLDEN + name);
        CHECK(read.vocab_size() == 384);
        // Hugging Face's library gives a token outside of the vocabulary the next id.
        const auto vocab = nlohmann::json::parse(read.to_json())["model"]["vocab"];
        CHECK(vocab.size() == 259);
        CHECK(vocab["</s>"] == 1);
        write_file(dir + "/tokenizer.json", read.to_json());
        write_file(dir + "/tokenizer_config.json", read.config_json());
        const Tokenizer again = load_tokenizer(dir);
        const Tokenizer gguf = tokenizer_from_gguf(tokenizer_to_gguf(read).value, "t").value;
        CHECK(again.fingerprint() == read.fingerprint());
        CHECK(again.config_json() == read.config_json());
        for (const Tokenizer* t : {&read, &again, &gguf})
            for (size_t i = 0; i < cases["texts"].size(); i++) {
                const std::string text = cases["texts"][i];
                const Ids expected = cases[name]["ids"][i];
                CAPTURE(text);
                // GGUF has no tokens that take white space along.
                if (t == &gguf && name == "saved" && contains(text, "</s> ")) continue;
                CHECK(t->encode_text(text, 0, true).ids == expected);
                CHECK(t->decode(expected) == cases[name]["decoded"][i].get<std::string>());
            }
        const std::string first = cases["pair"][0], second = cases["pair"][1];
        for (const Tokenizer* t : {&read, &again})
            CHECK(t->encode_pair(first, second).ids == cases[name]["pair"].get<Ids>());
        // Ordinary text has no special tokens, and any bytes come back.
        CHECK(read.encode("</s>") == Ids{63, 50, 118, 65});
        std::string bytes;
        for (int i = 0; i < 256; i++) bytes += char(255 - i);
        CHECK(read.decode(read.encode(bytes)) == bytes);
        CHECK(read.is_special(1));
    }
}

TEST_CASE("byt5: a model's directory needs no vocabulary, and wrong ones are refused") {
    const std::string dir = temporary_directory(), config = dir + "/m/tokenizer_config.json";
    Config c = config_named("t5:d1").value;
    c.V = 384;
    Loaded m;
    REQUIRE(m.g->allocate(c, {RunMode::infer, 1, 1}).ok());
    m.g->init(5);
    REQUIRE(checkpoint_export(dir + "/m", weights_reader(*m.g), Tokenizer(), {}, "", Overwrite::no).ok());
    write_file(config, read_file(GOLDEN + "first/tokenizer_config.json"));
    auto sampled = [&](const std::string& name) {
        return must({"sample", dir + name, "--source", "a\u00E9\u6F22", "--tokens", "6", "--seed", "4", "--json"}).out;
    };
    must({"convert", dir + "/m", dir + "/m.gguf"});
    must({"convert", dir + "/m.gguf", dir + "/back"});
    CHECK(contains(sampled("/m"), "\"text\""));
    CHECK(sampled("/m.gguf") == sampled("/m"));
    CHECK(sampled("/back") == sampled("/m"));
    write_file(config, R"({"tokenizer_class": "ByT5Tokenizer", "extra_ids": 2})");
    CHECK(load_tokenizer(dir + "/m").vocab_size() == 261);
    CHECK(load_tokenizer(config).encode("a</s> ", true) == Ids{100, 1});    // names alone take spaces along
    write_file(config, R"({"tokenizer_class": "ByT5Tokenizer"})");
    CHECK(load_tokenizer(dir + "/m").vocab_size() == 384);
    for (const auto& [text, message] :
         {std::pair{R"({"tokenizer_class": "ByT5Tokenizer", "extra_ids": -1})", "extra_ids: expected 0 to 65536"},
          {R"({"tokenizer_class": "ByT5Tokenizer", "eos_token": {}})", "eos_token: expected a text"},
          {R"({"tokenizer_class": "T5Tokenizer"})", "expected a tokenizer.json"}}) {
        write_file(config, text);
        const Status s = Tokenizer::load(dir + "/m").status;
        CHECK(s.code == Exit::input);
        CHECK_MESSAGE(contains(s.message, message), s.message);
    }
}

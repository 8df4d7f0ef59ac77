// test_tokenizer_gguf.cpp - tokenizers in GGUF's arrays: properties that these cannot hold, end
// tokens, hostile arrays. test_tokenizers.cpp compares the ids.
#include "data/tokenizer_files/tokenizer_gguf.h"

#include <algorithm>

#include "test.h"
#include "tokenizers.h"

namespace {
typedef std::vector<int> Ids;

const std::string FOLDER = "test/golden/tokenizers/";
}    // namespace

TEST_CASE("tokenizers: what a GGUF cannot say is refused by name, or noted") {
    auto refused = [](const Vocabulary& v, const char* property) {
        const Status s = tokenizer_to_gguf(Tokenizer(v)).status;
        CHECK(s.code == Exit::usage);
        CHECK_MESSAGE(s.message.find("GGUF cannot say what this tokenizer does: " + std::string(property)) == 0,
                      s.message);
    };
    auto vocabulary = [](const char* name) { return load_tokenizer(FOLDER + name + ".json").vocabulary(); };
    refused(vocabulary("deepseek_coder"), "normalizer");
    refused(vocabulary("roberta"), "space before a text");
    refused(vocabulary("other"), "pre-tokenizer");
    Vocabulary v = vocabulary("o200k");
    v.ignore_merges = true;
    refused(v, "ignore_merges");
    v = vocabulary("llama3");
    v.before = {v.bos, v.bos};
    refused(v, "tokens put around a text");
    // GGUF's scores would also merge ab with c, which this table of merges does not.
    v = Vocabulary();
    v.symbols = Symbols::characters, v.pattern = Pattern::none;
    v.tokens = {"a", "b", "c", "ab", "bc", "abc"};
    v.merges = {{0, 1, 3}, {1, 2, 4}, {0, 4, 5}};
    refused(v, "merges or normalizer");
    v.merges = {{0, 1, 3}, {1, 2, 4}, {0, 4, 5}, {3, 2, 5}};
    CHECK(tokenizer_to_gguf(Tokenizer(v)).ok());
    CHECK(beyond_gguf(load_tokenizer(FOLDER + "llama3.json")).empty());
    CHECK(beyond_gguf(load_tokenizer(FOLDER + "phi3.json")) ==
          "tokens that take white space next to them along: <|end|>, <|user|>; tokens that are no part of a longer "
          "word: wold");
    v = vocabulary("qwen2");
    v.added[0].normalized = true;
    CHECK(contains(beyond_gguf(Tokenizer(v)), "looked for after normalization: " + v.tokens[size_t(v.added[0].id)]));
    CHECK(beyond_gguf(load_tokenizer(FOLDER + "first.json")) ==
          "no space after added tokens (prepend_scheme first); no space before a text that begins with one "
          "(Metaspace); flatgpt reads it from a key of its own");
    // Only the pre-tokenizer's name says NFC and ignore_merges: equal splits get different names.
    v = vocabulary("qwen2");
    CHECK(tokenizer_to_gguf(Tokenizer(v)).value.pre == "qwen2");
    v.normalization.clear();
    CHECK(tokenizer_to_gguf(Tokenizer(v)).value.pre == "megrez");
    v = vocabulary("llama3");
    CHECK(tokenizer_to_gguf(Tokenizer(v)).value.pre == "llama-bpe");
    v.ignore_merges = false;
    CHECK(tokenizer_to_gguf(Tokenizer(v)).value.pre == "dbrx");
    v.unknown = v.added[0].id, v.ends = {int(v.tokens.size()), 7};    // the first is no token's id
    CHECK(tokenizer_to_gguf(Tokenizer(v)).value.eot_token_id == 7);
    // Gemma has added tokens of several space marks (U+2581). They match runs of spaces in a text.
    v = vocabulary("gemma");
    const int mark = int(std::find(v.tokens.begin(), v.tokens.end(), SPACE_MARK) - v.tokens.begin());
    v.added.push_back({.id = int(v.tokens.size()), .special = false});
    v.merges.insert(v.merges.begin(), {mark, mark, v.added.back().id});
    v.tokens.push_back(std::string(SPACE_MARK) + SPACE_MARK);
    const Result<GgufTokenizer> g = tokenizer_to_gguf(Tokenizer(v));
    REQUIRE_MESSAGE(g.ok(), g.status.message);
    CHECK(g.value.tokens.back() == "  ");
    const Tokenizer theirs = tokenizer_from_gguf(g.value, "t").value;
    for (const Tokenizer& t : {Tokenizer(v), theirs}) {    // results of tokenizers 0.23
        CHECK(t.encode("a  b")[1] == v.added.back().id);
        CHECK(t.decode(t.encode("a  b")) == "a  b");
    }
    CHECK(theirs.encode("a  b") == Tokenizer(v).encode("a  b"));
}

TEST_CASE("tokenizers: a GGUF's pre-tokenizer says ignore_merges, BOS and NFC as llama.cpp and the models have them") {
    const GgufTokenizer plain = tokenizer_to_gguf(load_tokenizer(FOLDER + "llama3.json")).value;
    struct {
        const char* pre;
        bool ignore_merges, bos, nfc;
    } cases[] = {{"llama-bpe", true, true, false}, {"tekken", true, true, false},   {"falcon3", true, true, false},
                 {"falcon-h1", true, true, false}, {"pixtral", true, true, false},  {"midm-2.0", true, true, false},
                 {"lfm2", true, true, false},      {"glm4", true, false, false},    {"jina-v5-nano", true, true, false},
                 {"dbrx", false, false, false},    {"qwen2", false, false, true},   {"smaug-bpe", false, false, false},
                 {"olmo", false, false, true},     {"gpt-4o", false, false, false}, {"command-r", false, false, true}};
    for (const auto& c : cases) {
        CAPTURE(c.pre);
        GgufTokenizer g = plain;
        g.pre = c.pre, g.add_bos_token = -1;
        const Vocabulary v = tokenizer_from_gguf(g, "t").value.vocabulary();
        CHECK(v.ignore_merges == c.ignore_merges);
        CHECK(v.before == (c.bos ? Ids{v.bos} : Ids{}));
        CHECK(v.normalization.size() == size_t(c.nfc));
        g.add_bos_token = 0;
        CHECK(tokenizer_from_gguf(g, "t").value.vocabulary().before.empty());
    }
}

TEST_CASE("tokenizers: what ends an answer by a GGUF's keys and by its tokens' names") {
    GgufTokenizer g = tokenizer_to_gguf(load_tokenizer(FOLDER + "qwen2.json")).value;
    const int text = int(std::find(g.tokens.begin(), g.tokens.end(), "<|endoftext|>") - g.tokens.begin());
    const int turn = int(std::find(g.tokens.begin(), g.tokens.end(), "<|im_end|>") - g.tokens.begin());
    CHECK(tokenizer_from_gguf(g, "t").value.vocabulary().ends == Ids{text, turn});
    g.eos_token_id = turn, g.eot_token_id = 40, g.eom_token_id = 7;
    const Tokenizer t = tokenizer_from_gguf(g, "t").value;
    CHECK(t.vocabulary().ends == Ids{40, 7, text});
    const GgufTokenizer again = tokenizer_to_gguf(t).value;
    CHECK(again.eot_token_id == 40);
    CHECK(again.eom_token_id == 7);
    g.eot_token_id = g.eom_token_id = text;
    CHECK(tokenizer_from_gguf(g, "t").value.vocabulary().ends == Ids{text});
}

TEST_CASE("tokenizers: hostile GGUF arrays are exit 3") {
    GgufTokenizer good = tokenizer_to_gguf(load_tokenizer(FOLDER + "llama3.json")).value;
    struct {
        std::function<void(GgufTokenizer&)> change;
        const char* message;
    } wrong[] = {{[](auto& g) { g.tokens.clear(); }, "tokens: expected 1"},
                 {[](auto& g) { g.token_type.pop_back(); }, "token_type"},
                 {[](auto& g) { g.model = "llama"; }, "scores"},
                 {[](auto& g) { g.model = "rwkv"; }, "expected gpt2, llama, gemma4, t5 or bert, found rwkv"},
                 {[](auto& g) { g.pre = "new"; }, "found new"},
                 {[](auto& g) { g.bos_token_id = 5000; }, "bos_token_id"},
                 {[](auto& g) { g.eot_token_id = 5000; }, "eot_token_id"},
                 {[](auto& g) { g.merges[0] = "ab"; }, "merges[0]"},
                 {[](auto& g) { g.merges[0] = "zq zq"; }, "merges[0]"},
                 {[](auto& g) {
                      g = {.model = "gpt2", .tokens = {"\u6F22", "a", "\u6F22a"}, .merges = {"\u6F22 a"}};
                  },
                  "merges[0]"},
                 {[](auto& g) {
                      g = {.model = "gemma4", .tokens = {"a", "b", "ab"}, .merges = {"a b"}, .token_type = {1, 1, 5}};
                  },
                  "merges[0]"}};
    for (auto& [change, message] : wrong) {
        GgufTokenizer g = good;
        change(g);
        const Status s = tokenizer_from_gguf(g, "t").status;
        CHECK(s.code == Exit::input);
        CHECK_MESSAGE(s.message.find(message) != std::string::npos, s.message);
    }
    const GgufTokenizer nameless = {.model = "llama", .tokens = {"", "a"}, .scores = {0, 0}, .token_type = {3, 1}};
    CHECK(tokenizer_from_gguf(nameless, "t").value.encode("a") == Ids{1});
}

// test_tokenizer_json.cpp - tokenizer.json written, read, damaged.
#include "data/bpe.h"
#include "base/file.h"
#include "test.h"
#include "tokenizers.h"

TEST_CASE("tokenizer.json: what we write reads back; gpt2, ignore_merges, tokens that are always recognised") {
    Result<std::string> text = read_file("test/golden/bpe_torture.txt", 1 << 20);
    REQUIRE(text.ok());
    Tokenizer gpt2 = Tokenizer::gpt2(), t = parse_tokenizer(gpt2.to_json());
    CHECK(t.encode(text.value) == gpt2.encode(text.value));
    CHECK(t.end_of_text() == 50256);
    CHECK(t.to_json() == gpt2.to_json());

    Vocabulary v = Tokenizer::from_merges({{64, 65}, {256, 66}}, Pattern::cl100k, {"<|endoftext|>"}).vocabulary();
    v.tokens.push_back("dcb");    // reached by no merge
    CHECK(parse_tokenizer(Tokenizer(v).to_json()).encode("dcb").size() == 3);
    v.ignore_merges = true;
    Tokenizer whole = parse_tokenizer(Tokenizer(v).to_json());
    CHECK(whole.encode("dcb") == std::vector<int>{whole.vocab_size() - 1});
    v.tokens.push_back("a b");
    v.added.push_back({int(v.tokens.size()) - 1, false});
    Tokenizer always = parse_tokenizer(Tokenizer(v).to_json());
    CHECK(always.encode("xa b") == std::vector<int>{always.encode("x")[0], always.vocab_size() - 1});
    CHECK_FALSE(always.is_special(always.vocab_size() - 1));
    CHECK(always.safe_cut("xa bz", 3) == 0);    // a cut would split "a b"
    CHECK(always.safe_cut("x y z", 3) == 3);
}

TEST_CASE("tokenizer: the fingerprint is that of the ids it makes, not of the file") {
    Tokenizer gpt2 = Tokenizer::gpt2();
    CHECK(gpt2.fingerprint() == parse_tokenizer(gpt2.to_json()).fingerprint());
    CHECK(gpt2.fingerprint() == 11101101988851853793u);    // pinned, because shards hold it
    CHECK(Tokenizer().fingerprint() == 0);
    const Vocabulary base =
        Tokenizer::from_merges({{64, 65}, {66, 67}}, Pattern::gpt2, {"<|endoftext|>", "<|x|>"}).vocabulary();
    const uint64_t first = Tokenizer(base).fingerprint();
    CHECK(parse_tokenizer(Tokenizer(base).to_json()).fingerprint() == first);
    auto changed = [&](const std::function<void(Vocabulary&)>& change) {
        Vocabulary v = base;
        change(v);
        return Tokenizer(v).fingerprint();
    };
    // The list of added tokens has no order.
    CHECK(changed([](Vocabulary& v) { std::swap(v.added[0], v.added[1]); }) == first);
    CHECK(changed([](Vocabulary& v) { v.pattern = Pattern::cl100k; }) != first);
    CHECK(changed([](Vocabulary& v) { std::swap(v.merges[0], v.merges[1]); }) != first);
    CHECK(changed([](Vocabulary& v) { v.merges.pop_back(); }) != first);
    CHECK(changed([](Vocabulary& v) { v.added[1].special = false; }) != first);
    CHECK(changed([](Vocabulary& v) { v.added.pop_back(); }) != first);
    CHECK(changed([](Vocabulary& v) { v.tokens[259] = "<|y|>"; }) != first);
    CHECK(changed([](Vocabulary& v) { v.tokens.push_back("abcd"); }) != first);
    CHECK(changed([](Vocabulary& v) { v.ignore_merges = true; }) != first);
}

TEST_CASE("tokenizer.json: hostile files are exit 3, at every length and with every kind of damage") {
    std::string json = Tokenizer::from_merges({{64, 65}, {256, 66}}, Pattern::cl100k, {"<|endoftext|>"}).to_json();
    REQUIRE(parse_tokenizer(json).encode("abc") == std::vector<int>{257});
    size_t whole = json.find_last_of('}');
    for (size_t n = 0; n <= whole; n++) REQUIRE(Tokenizer::parse(json.substr(0, n), "t").status.code == Exit::input);
    for (size_t i = 0; i < json.size(); i++)    // must not crash
        for (char c : {'"', '9', '\xFF'}) {
            std::string damaged = json;
            damaged[i] = c;
            Result<Tokenizer> t = Tokenizer::parse(damaged, "t");
            // Damage may leave a byte without a token, and encode leaves it out.
            if (t.ok()) REQUIRE(t.value.decode(t.value.encode("abc \xFF")).size() <= 5);
            else REQUIRE(t.status.code == Exit::input);
        }
    struct {
        const char *from, *to, *message;
    } changes[] = {{"\"type\": \"BPE\"", "\"type\": \"WordPiece\"", "no ByteLevel with this model.type"},
                   {"\"normalizer\": null", "\"normalizer\": {\"type\": \"Nmt\"}", "normalizer: expected NFC"},
                   {"\"unk_token\": null", "\"dropout\": 0.1", "occurs twice"},
                   {"\"dropout\": null", "\"dropout\": 0.1", "model.dropout"},
                   {"\"add_prefix_space\": false", "\"add_prefix_space\": true", "add_prefix_space: expected false"},
                   {"\\\\p{N}{1,3}", "\\\\p{N", "the regular expression"},
                   {"\"Isolated\"", "\"Kept\"", "behavior"},
                   {"\"ByteLevel\"", "\"Whitespace\"", "pre_tokenizer.pretokenizers[1]: expected Split"},
                   {"\"post_processor\": null", "\"post_processor\": {\"type\": \"X\"}", "expected TemplateProcessing"},
                   {"\"post_processor\": null",
                    "\"post_processor\": {\"type\": \"BertProcessing\", \"cls\": [\"a\", 999]}", "ids of tokens"},
                   {"\"unk_token\": null", "\"unk_token\": \"none\"", "unk_token: expected a token"},
                   {"\"ab\": 256", "\"ab\": 255", "an id of its own"},
                   {"\"ab\": 256", "\"ab\": -1", "an id from 0 to"},
                   {"\"ab\": 256", "\"ab\": 99999999999999999999", "an id from 0 to"},
                   {"\"ab\": 256", "\"ab\": 4294967552", "an id from 0 to"},
                   {"\"ab\": 256", "\"ab\": 256.0", "an id from 0 to"},
                   {"\"ab\": 256", "\"ab\": \"256\"", "an id from 0 to"},
                   {"\"ab\": 256", "\"ab\": 256, \"ab\": 300", "occurs twice"},
                   {"\"a b\"", "\"a x\"", "whose concatenation is a token"},
                   {"\"a b\"", "\"ab\"", "[\"a\", \"b\"]"},
                   {"\"a b\"", "7", "[\"a\", \"b\"]"},
                   {"\"a b\"", "[\"a\", 1]", "[\"a\", \"b\"]"},
                   {"\"id\": 258", "\"id\": 257", "added_tokens[0].id"},
                   {"\"content\": \"<|endoftext|>\"", "\"content\": \"\"", "not empty"},
                   {"\"version\": \"1.0\"", "\"version\": {", "not JSON"}};
    for (auto& c : changes) {
        std::string damaged = json;
        size_t at = damaged.find(c.from);
        REQUIRE_MESSAGE(at != std::string::npos, c.from);
        damaged.replace(at, strlen(c.from), c.to);
        Status s = Tokenizer::parse(damaged, "t").status;
        CHECK_MESSAGE(s.code == Exit::input, c.to);
        CHECK_MESSAGE(s.message.find(c.message) != std::string::npos, s.message);
    }
    std::string pairs = json;
    pairs.replace(pairs.find("\"a b\""), 5, "[\"a\", \"b\"]");
    CHECK(parse_tokenizer(pairs).encode("abc") == std::vector<int>{257});
    std::string deep(200000, '[');
    CHECK(Tokenizer::parse(deep, "t").status.code == Exit::input);
    CHECK(Tokenizer::parse("{\"a\": " + deep, "t").status.code == Exit::input);
    CHECK(Tokenizer::parse("[]", "t").status.code == Exit::input);
    CHECK(Tokenizer::load(temporary_directory() + "/none.json").status.code == Exit::input);
    CHECK(Tokenizer::load("gpt2").ok());
}

// test_tokenizer_options.cpp - options of tokenizers that change ids or texts, once found by
// dev/compare_tokenizers.py. Expected values in options.json come from Hugging Face's tokenizers
// and from SentencePiece. Files beside a tokenizer, keys of a GGUF, and time on hostile texts.
#include "base/console.h"
#include "base/file.h"
#include "base/philox.h"
#include "data/bpe.h"
#include "data/normalize.h"
#include "data/tokenizer_files/sentencepiece.h"
#include "data/tokenizer_files/tokenizer_gguf.h"
#include "files/json.h"
#include "test.h"
#include "tokenizers.h"

namespace {
using nlohmann::json;
typedef std::vector<int> Ids;

const std::string FOLDER = "test/golden/tokenizers/";
std::string decoded(const Tokenizer& t, const Ids& ids) {
    StreamDecoder whole;
    std::string text = whole.push(t.decode(ids));
    return text += whole.finish();
}
}    // namespace

TEST_CASE("tokenizer options: ids and texts of each kind that once differed, also written and read again") {
    const json cases = json::parse(read_file(FOLDER + "options.json", 1 << 20).value);
    CHECK(cases.size() == 18);
    for (const json& want : cases) {
        const std::string name = want["name"];
        CAPTURE(name);
        const bool pieces = name.ends_with(".model");
        const Tokenizer first = pieces ? load_tokenizer(FOLDER + name) : parse_tokenizer(want["tokenizer"].dump());
        const Tokenizer again = parse_tokenizer(first.to_json());
        CHECK(again.to_json() == first.to_json());
        CHECK(again.fingerprint() == first.fingerprint());
        for (size_t i = 0; i < want["texts"].size(); i++) {
            const std::string text = want["texts"][i];
            CAPTURE(text);
            for (const Tokenizer& t : {first, again}) {
                CHECK(t.encode(text) == want["plain"][i].get<Ids>());
                if (!pieces) CHECK(t.encode(text, true) == want["special"][i].get<Ids>());
                // null: a text with SentencePiece's unknown token.
                const json& right = want[pieces ? "decoded_plain" : "decoded"][i];
                if (!right.is_null()) CHECK(decoded(t, t.encode(text, !pieces)) == right.get<std::string>());
                Ids parts;    // ids of the text cut by safe_cut
                const size_t cut = t.safe_cut(text, text.size() / 2);
                parts = t.encode(text.substr(0, cut));
                for (int id : t.encode(text.substr(cut), false, cut > 0)) parts.push_back(id);
                CHECK(parts == t.encode(text));
            }
        }
    }
}

TEST_CASE("tokenizer options: no text is cut in a symbol with a space inside") {
    std::vector<ScoredPiece> pieces = {{"<unk>", 0, ScoredPiece::unknown},
                                       {"a\xE2\x96\x81"
                                        "b",
                                        0, ScoredPiece::user_defined}};
    for (const char* text : {SPACE_MARK, "a", "b"})
        pieces.push_back({text, -float(pieces.size()), ScoredPiece::normal});
    Vocabulary v = vocabulary_of_pieces(pieces, true, "t").value;
    v.added[1].user_defined = true;
    const Tokenizer t(v);
    CHECK(t.encode("b ba b") == Ids{2, 4, 2, 4, 1});
    CHECK(t.safe_cut("b ba b", 6) == 1);
}

TEST_CASE("tokenizer options: a special token is found in normalized text, and no cut parts it") {
    const json cases = json::parse(read_file(FOLDER + "options.json", 1 << 20).value);
    const auto found =
        std::find_if(cases.begin(), cases.end(), [](auto& c) { return c["name"] == "found with a space"; });
    json file = (*found)["tokenizer"];
    file["added_tokens"] = {{{"id", 8}, {"content", "<x y>"}, {"special", true}, {"normalized", true}},
                            {{"id", 9}, {"content", "<s>"}, {"special", true}, {"normalized", false}},
                            {{"id", 10}, {"content", "b a"}, {"special", true}, {"normalized", false}},
                            {{"id", 11}, {"content", "t!"}, {"special", true}, {"normalized", true}, {"rstrip", true}},
                            {{"id", 12}, {"content", "V i"}, {"special", true}, {"normalized", true}}};
    const Tokenizer t = parse_tokenizer(file.dump());
    CHECK(t.encode("a <x y>", true).back() == 8);
    CHECK(t.encode("<s><x y>", true) == Ids{9, 8});    // the token's normalized name has the prefix
    CHECK(t.first_special("a <x y>") == 8);
    CHECK(t.first_special("<x y>") == 8);
    CHECK(t.first_special("a<x y>") < 0);
    CHECK(t.first_special("<s> a") == 9);
    CHECK(t.safe_cut("a <x y>", 7, true) == 1);
    CHECK(t.safe_cut("<s><x y>", 8, true) == 0);
    // These texts have no unknown characters, so only the added tokens forbid a later cut.
    CHECK(t.safe_cut("<s>V i", 4, true) == 0);
    CHECK(t.safe_cut("<s>t! b", 5, true) == 0);    // the token takes the space behind it
    const char* const parts[] = {"a", "b", " ", " ", "<x y>", "<x ", "y>", "<s>", "b a", "x", "V i", "t!", "V"};
    int cuts = 0;
    for (uint64_t i = 0; i < 2000; i++) {
        std::string text;
        for (uint64_t n = 0; n < 8; n++) text += parts[philox(1, i, n).v[0] % std::size(parts)];
        const size_t known = 1 + philox(1, i, 9).v[0] % text.size();    // bytes seen so far
        CAPTURE(text);
        for (const bool special : {false, true})
            for (size_t cut = known; (cut = t.safe_cut(text.substr(0, known), cut, special)) > 0; cut--, cuts++) {
                Ids ids = t.encode(text.substr(0, cut), special);
                for (int id : t.encode(text.substr(cut), special, true)) ids.push_back(id);
                REQUIRE(ids == t.encode(text, special));
            }
    }
    CHECK(cuts > 1000);
}

TEST_CASE("tokenizer options: added_tokens.json and special_tokens_map.json beside a tokenizer.model") {
    const std::string dir = temporary_directory();
    auto write = [&](const char* name, const std::string& text) { REQUIRE(replace_file(dir + "/" + name, text).ok()); };
    write("tokenizer.model", read_file(FOLDER + "prefixed.model", 1 << 20).value);
    write("added_tokens.json", R"({"<|im_end|>": 750, "<|im_start|>": 751})");
    write("special_tokens_map.json", R"({"eos_token": {"content": "<|im_end|>", "lstrip": false}})");
    write("tokenizer_config.json", R"({"bos_token": "<s>", "eos_token": "</s>", "legacy": true})");
    Tokenizer t = load_tokenizer(dir);
    CHECK(t.vocabulary().eos == 750);    // special_tokens_map.json overrides the config
    CHECK(t.end_of_text() == 750);
    CHECK(t.is_special(750));
    CHECK_FALSE(t.is_special(751));
    CHECK(t.encode("<|im_start|>a<|im_end|>", true).front() == 751);    // no space added before it
    CHECK(t.encode("<|im_start|>a<|im_end|>", true).back() == 750);
    CHECK(t.encode("<|im_start|>") == Ids{751});
    CHECK(t.encode("a<|im_start|>").back() == 751);    // also after text
    CHECK(t.vocabulary().before == Ids{1});
    CHECK(parse_tokenizer(t.to_json()).fingerprint() == t.fingerprint());
    // With added_tokens_decoder in the config both other files are ignored.
    write("tokenizer_config.json", R"({"eos_token": "</s>", "added_tokens_decoder": {"750": {"content": "<x>"}}})");
    t = load_tokenizer(dir);
    CHECK(t.vocabulary().eos == 2);
    CHECK(t.vocab_size() == 751);
    CHECK(t.encode("<x>") == Ids{750});
    write("tokenizer_config.json", "{}");
    for (const char* wrong : {"[]", R"({"<a>": -1})", R"({"<a>": 1e9})", R"({"<a>": "1"})", R"({"<a>": 2})",
                              R"({"</s>": 800})", R"({"": 800})", "{"}) {
        CAPTURE(wrong);
        write("added_tokens.json", wrong);
        const Status s = Tokenizer::load(dir).status;
        CHECK(s.code == Exit::input);
        CHECK_MESSAGE(contains(s.message, "added_tokens.json"), s.message);
    }
    std::string many;
    for (int i = 0; i < 50000; i++)
        many += (i ? ",\"<" : "{\"<") + std::to_string(i) + ">\":" + std::to_string(i + 750);
    write("added_tokens.json", many + "}");
    const double start = now_seconds();
    t = load_tokenizer(dir);
    CHECK_MESSAGE(now_seconds() - start < 10, "quadratic in the tokens: it once took minutes");
    CHECK(t.encode("<49999>") == Ids{50749});
    write("added_tokens.json", R"({"</s>": 2})");    // the model's own id
    write("special_tokens_map.json", R"({"eos_token": "<none>", "pad_token": "<none>", "bos_token": null})");
    CHECK(load_tokenizer(dir).vocabulary().eos == 2);
    const ProcessResult r = run_flatgpt({"info", dir + "/tokenizer.model"});
    CHECK_MESSAGE(contains(r.err, "eos_token is \"<none>\", which is no token of this tokenizer"), r.err);
    CHECK_MESSAGE(contains(r.err, "pad_token is \"<none>\", which is no token of this tokenizer"), r.err);
}

TEST_CASE("tokenizer options: a GGUF keeps how spaces come before texts, and lacks no key without a warning") {
    auto through = [](const Tokenizer& t) {
        Result<GgufTokenizer> g = tokenizer_to_gguf(t);
        REQUIRE_MESSAGE(g.ok(), g.status.message);
        Result<Tokenizer> again = tokenizer_from_gguf(g.value, "t");
        REQUIRE(again.ok());
        return again.value;
    };
    Vocabulary v = load_tokenizer(FOLDER + "first.json").vocabulary();
    for (Spaces spaces : {Spaces::marked, Spaces::marked_first, Spaces::marked_always}) {
        v.spaces = spaces;
        const Tokenizer t(v);
        for (const char* text : {" a", "a", "  a", "<s>a</s> a", ""})
            CHECK(through(t).encode(text, true) == t.encode(text, true));
        CHECK(contains(beyond_gguf(t), "Metaspace") == (spaces != Spaces::marked));
    }
    v.spaces = Spaces::marked_always;
    v.normalization = {{Normalization::Kind::prepend, "", SPACE_MARK}, {Normalization::Kind::replace, " ", SPACE_MARK}};
    CHECK(contains(tokenizer_to_gguf(Tokenizer(v)).status.message, "a space at the beginning of a text"));
    const Tokenizer symbols = load_tokenizer(FOLDER + "user_defined.model");
    CHECK(through(symbols).encode("see [REF]doc") == symbols.encode("see [REF]doc"));
    CHECK(contains(beyond_gguf(symbols), "no space after user-defined symbols: [REF]"));

    const std::string path = temporary_directory() + "/t.gguf";
    auto noted = [&](const std::vector<std::string>& without) {
        GgufKeys keys = gguf_vocabulary(load_tokenizer(FOLDER + "qwen2.json"), 0).value;
        std::erase_if(keys, [&](auto& k) { return std::count(without.begin(), without.end(), k.first); });
        std::string file;
        REQUIRE(gguf_write(keys, {}, [&](const void* data, int64_t bytes) -> Status {
                    file.append(static_cast<const char*>(data), size_t(bytes));
                    return {};
                }).ok());
        REQUIRE(replace_file(path, file).ok());
        write_file(path + ".txt", "a");
        const ProcessResult r =
            run_flatgpt({"tokenize", "--overwrite", "--tokenizer", path, "--out", path, path + ".txt"});
        CHECK_MESSAGE(r.exit_code == 0, r.err);
        return r.err;
    };
    CHECK_FALSE(contains(noted({}), "warning"));
    CHECK(contains(noted({"tokenizer.ggml.pre"}), "tokenizer.ggml.pre is missing"));
    CHECK(contains(noted({"tokenizer.ggml.merges"}), "tokenizer.ggml.merges is missing"));
}

TEST_CASE("tokenizer options: runs of marks are put in order in linear time") {
    const std::vector<Normalization> nfc = {{Normalization::Kind::nfc, "", ""}};
    constexpr int MARKS = 200'000;
    std::string text = "a", want = "\xC3\xA1";
    for (int i = 0; i < MARKS; i++) text += "\xCC\x96\xCC\x81";    // marks below and above
    for (int i = 0; i < MARKS; i++) want += "\xCC\x96";
    for (int i = 1; i < MARKS; i++) want += "\xCC\x81";
    const double begin = now_seconds();
    CHECK(normalized(text, nfc, false) == want);
    CHECK(now_seconds() - begin < 20);    // swaps of pairs took minutes
}

TEST_CASE("tokenizer options: an expression that looks ahead over all of a text has bounded time, and says so") {
    Result<Pretokenizer> p = Pretokenizer::compile({{R"(\p{N}{1,3}(?=(?:\p{N}{3})*(?!\p{N}))|\P{N}+)"}});
    REQUIRE(p.ok());
    auto lengths = [&](const std::string& text) {
        Splitter s(p.value);
        s.start(text);
        std::vector<size_t> all;
        for (std::string_view piece; s.next(piece);) all.push_back(piece.size());
        return all;
    };
    // 7000 digits are within the bound on looking ahead: the groups are exact.
    std::vector<size_t> groups(2334, 3);
    groups[0] = 1;
    CHECK(lengths(std::string(7000, '1')) == groups);
    CHECK(lengths(std::string(3000, 'x') + "12345") == std::vector<size_t>{3000, 2, 3});
    const std::vector<size_t> many = lengths(std::string(400'000, '1'));
    CHECK(*std::max_element(many.begin(), many.end()) == 3);
    CHECK(many.size() < 150'000);
    // A match that begins after the bytes that are seen first.
    p = Pretokenizer::compile({{"b+"}});
    CHECK(lengths(std::string(5000, 'a') + "bb" + std::string(2000, 'a')) == std::vector<size_t>{5000, 2, 2000});
    p = Pretokenizer::compile({{"a+$"}});
    CHECK(lengths(std::string(5000, 'a') + "b") == std::vector<size_t>{5001});
}

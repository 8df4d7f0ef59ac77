// test_pieces.cpp - WordPiece and Unigram as Hugging Face and SentencePiece (dev/golden_pieces.py).
#include "base/console.h"
#include "base/file.h"
#include "base/philox.h"
#include "base/pool.h"
#include "data/bpe.h"
#include "data/objective.h"
#include "data/normalize.h"
#include "data/tokenizer_models/charsmap.h"
#include "data/tokenizer_models/training.h"
#include "files/json.h"
#include "files/picture.h"
#include "test.h"
#include "tokenizers.h"

namespace {
using nlohmann::json;
typedef std::vector<int> Ids;

const std::string FOLDER = "test/golden/pieces/";
std::string content(const std::string& path) {
    Result<std::string> text = read_file(path, 1 << 20);
    REQUIRE_MESSAGE(text.ok(), text.status.message);
    return text.value;
}
const json& cases() {
    static const json all = json::parse(content(FOLDER + "cases.json"));
    return all;
}
std::vector<std::string> texts() { return cases()["texts"]; }
std::string plain(const Tokenizer& t, const Ids& ids) {    // as text of whole characters
    StreamDecoder whole;
    const std::string text = whole.push(t.decode(ids));
    return text + whole.finish();
}
uint32_t draw(uint64_t stream, uint64_t i, uint32_t n) { return philox(43, stream, i).v[0] % n; }

TokenizerTraining training(ModelKind kind, int vocab, std::vector<std::string> lines) {
    TokenizerTraining t;
    t.kind = kind;
    t.vocab = vocab;
    auto at = std::make_shared<size_t>(0);
    t.read = [lines = std::move(lines), at](std::string& text) -> Result<bool> {
        if (*at == lines.size()) return false;
        text = lines[(*at)++];
        return true;
    };
    return t;
}
}    // namespace

TEST_CASE("pieces: each tokenizer gives the ids and texts of Hugging Face") {
    for (const auto& [name, expected] : cases()["tokenizers"].items()) {
        const Tokenizer read = load_tokenizer(FOLDER + name + ".json"), again = parse_tokenizer(read.to_json());
        CHECK_MESSAGE(again.fingerprint() == read.fingerprint(), name);
        for (size_t i = 0; i < texts().size(); i++)
            for (const Tokenizer* t : {&read, &again}) {
                const Ids ids = t->encode(texts()[i], true);
                CHECK_MESSAGE(ids == expected["ids"][i].get<Ids>(), name << ": " << texts()[i]);
                if (expected.contains("decoded")) CHECK(plain(*t, ids) == expected["decoded"][i].get<std::string>());
            }
    }
}

TEST_CASE("pieces: of equal sums the segmentation is the one of Hugging Face, which rounds scores twice") {
    json file = json::parse(content(FOLDER + "t5_runs.json"));
    file["added_tokens"] = json::array();
    file["post_processor"] = nullptr;
    file["model"]["unk_id"] = 0;
    const std::string seven = "ababababababab";
    json vocab = json::array();
    const std::pair<std::string, double> pieces[] = {{"<unk>", 0.0},
                                                     {"\u2581", -3.7276790142059326},
                                                     {"ab", -8.988694190979004},
                                                     {seven, -11.156723022460938},
                                                     {seven + "ab", -11.159041404724121}};
    for (auto& [piece, score] : pieces) vocab.push_back(json::array({piece, score}));
    file["model"]["vocab"] = vocab;
    std::string text;
    while (text.size() < 76) text += "ab";
    CHECK(parse_tokenizer(file.dump()).encode(text) == Ids{1, 4, 4, 4, 3, 3});
}

TEST_CASE("pieces: a text and a pair get the template's tokens and segments at any length") {
    const std::string first = cases()["pair"][0], second = cases()["pair"][1];
    for (const auto& [name, expected] : cases()["tokenizers"].items()) {
        const Tokenizer read = load_tokenizer(FOLDER + name + ".json"), again = parse_tokenizer(read.to_json());
        for (const json& row : expected["pairs"])
            for (const Tokenizer* t : {&read, &again}) {
                const EncodedText pair = t->encode_pair(first, second, row["most"]);
                CHECK(pair.ids == row["ids"].get<Ids>());
                CHECK(pair.segments == row["segments"].get<Ids>());
                const EncodedText one = t->encode_text(first, row["most"]);
                CHECK(one.ids == row["first"].get<Ids>());
                CHECK(one.segments == Ids(one.ids.size()));
            }
    }
    const Tokenizer bert = load_tokenizer(FOLDER + "bert.json");
    CHECK(bert.encode_pair(first, second, 1).ids == Ids{2, 3, 3});    // never less than the template
}

TEST_CASE("pieces: vocab.txt is read as BERT's tokenizer.json is") {
    const std::string folder = temporary_directory();
    const Tokenizer cased = load_tokenizer(FOLDER + "bert_cased.json"), bert = load_tokenizer(FOLDER + "bert.json");
    CHECK(load_tokenizer(FOLDER + "bert").fingerprint() == bert.fingerprint());
    const EncodedText a = load_tokenizer(FOLDER + "bert").encode_pair("a b", "c"), b = bert.encode_pair("a b", "c");
    CHECK(a.ids == b.ids);
    CHECK(a.segments == b.segments);
    std::string lines, config = R"({"do_lower_case": false, "mask_token": {"content": "[MASK]"}})";
    for (const std::string& token : cased.vocabulary().tokens) lines += token + "\r\n";
    REQUIRE(replace_file(folder + "/vocab.txt", lines, Overwrite::no).ok());
    REQUIRE(replace_file(folder + "/tokenizer_config.json", config, Overwrite::no).ok());
    CHECK(load_tokenizer(folder).fingerprint() == cased.fingerprint());
    CHECK(load_tokenizer(folder).vocabulary().mask == 4);
    REQUIRE(replace_file(folder + "/vocab.txt", "[UNK]\n[CLS]\na\n", Overwrite::yes).ok());
    CHECK(Tokenizer::load(folder).status.message.ends_with("expected a line [SEP]"));
    config = R"({"tokenizer_class": "XLMTokenizer"})";
    REQUIRE(replace_file(folder + "/tokenizer_config.json", config, Overwrite::yes).ok());
    CHECK(Tokenizer::load(folder).status.message.ends_with("not of \"XLMTokenizer\""));
}

TEST_CASE("pieces: a unigram model of SentencePiece gives its ids") {
    const Tokenizer t = load_tokenizer(FOLDER + "unigram.model");
    size_t special = 0, ties = 0;
    for (size_t i = 0; i < texts().size(); i++) {
        const std::string text = texts()[i];
        const Ids ids = t.encode(text), expected = cases()["unigram.model"][i].get<Ids>();
        if (ids == expected) continue;
        // SentencePiece adds up scores in single precision, so it may take another equal sum.
        auto total = [&](const Ids& some) {
            double sum = 0;
            for (int id : some) sum += t.vocabulary().scores[size_t(id)];
            return sum;
        };
        CHECK_MESSAGE(t.decode(ids) == t.decode(expected), text);
        CHECK_MESSAGE(std::abs(total(ids) - total(expected)) < 1e-4, text);
        ties++;
    }
    CHECK(ties <= 2);
    for (const std::string& text : texts()) { special += t.first_special(text) >= 0; }
    CHECK(special > 0);
    CHECK(t.vocabulary().after == Ids{1});
    CHECK(t.decode(t.encode("  Hello   there ")) == "Hello there");
}

TEST_CASE("pieces: a cut text has the ids of the whole one") {
    const std::vector<std::string> parts = {" ",      " ",      "  ",     "\n",     "\t",   "a",      "Hello",
                                            "world",  "there",  ".",      "'s",     "1",    "\u00e9", "e\u0301",
                                            "\u6f22", "\u0301", "\u2581", "[SEP]",  "</s>", "\u200b", "\ufb01",
                                            "\u0600", "\xFF",   "\u3000", "\u0430", "\x01"};
    for (const auto& [name, expected] : cases()["tokenizers"].items()) {
        const Tokenizer t = load_tokenizer(FOLDER + name + ".json");
        int cuts = 0;
        for (uint64_t i = 0; i < 400; i++) {
            std::string text;
            for (uint64_t k = 0; k < 1 + i % 60; k++) text += parts[draw(i, k, uint32_t(parts.size()))];
            const Ids whole = t.encode(text);
            for (size_t limit = 1; limit <= text.size(); limit += 3) {
                const size_t cut = t.safe_cut(text, limit);
                if (cut == 0) continue;
                cuts++;
                Ids both = t.encode(text.substr(0, cut));
                const Ids rest = t.encode(text.substr(cut), false, true);
                both.insert(both.end(), rest.begin(), rest.end());
                if (both != whole) CHECK_MESSAGE(both == whole, name << " at " << cut << ": " << text);
            }
        }
        if (name == "bert" || name == "t5" || name == "t5_runs") CHECK_MESSAGE(cuts > 100, name);
    }
}

TEST_CASE("pieces: time is linear in words and texts without an end") {
    for (const char* name : {"bert", "t5", "whole", "albert", "bytes"}) {
        const Tokenizer t = load_tokenizer(FOLDER + name + ".json");
        for (const char* part : {"a", "ab", "x\u0301", "\u6f22", " ", "\u2581", "\n", "the"}) {
            std::string text;
            while (text.size() < 1 << 20) text += part;
            const Ids ids = t.encode(text);          // quadratic time would take hours
            CHECK(ids.size() <= text.size() + 3);    // a mark before it, of three bytes
        }
    }
}

TEST_CASE("pieces: hostile files are refused by name") {
    json good = json::parse(content(FOLDER + "t5.json")), bert = json::parse(content(FOLDER + "bert.json"));
    auto refused = [](json file, const char* where, const json& value, const char* message) {
        file[json::json_pointer(where)] = value;
        const Result<Tokenizer> t = Tokenizer::parse(file.dump(), "bad.json");
        CHECK_MESSAGE(t.status.code == Exit::input, where);
        CHECK_MESSAGE(t.status.message.find(message) != std::string::npos, t.status.message);
    };
    refused(good, "/model/unk_id", 300000, "model.unk_id: expected an id of the vocabulary");
    refused(good, "/model/unk_id", -1, "model.unk_id");
    refused(good, "/model/vocab/9", {"a"}, "model.vocab[9]: expected a text and a score");
    refused(good, "/model/vocab/9/1", nullptr, "model.vocab[9]");
    refused(good, "/model/vocab/9/0", std::string(513, 'a'), "at most 512 bytes");
    refused(good, "/model/vocab", json::array(), "model.vocab");
    refused(good, "/model/type", "WordLevel", "\"BPE\", \"WordPiece\" or \"Unigram\"");
    refused(good, "/normalizer/precompiled_charsmap", "AAAA", "a SentencePiece map");
    refused(good, "/normalizer/precompiled_charsmap", "/////w==", "a SentencePiece map");
    refused(good, "/normalizer/precompiled_charsmap", "no base64", "a SentencePiece map");
    refused(good, "/post_processor/pair/0/Sequence/type_id", -1, "post_processor.pair");
    refused(good, "/post_processor/special_tokens/<~1s>/ids", {99999}, "ids of tokens");
    refused(bert, "/model/max_input_chars_per_word", -1, "max_input_chars_per_word");
    refused(bert, "/decoder/prefix", "@@", "decoder.prefix");
    refused(bert, "/model/unk_token", "[NONE]", "model.unk_token");
    refused(bert, "/pre_tokenizer", {{"type", "ByteLevel"}}, "no ByteLevel");
    std::string huge = good.dump();
    huge.replace(huge.find("[\"<pad>\",") + 9, 3, "1e999");
    CHECK(Tokenizer::parse(huge, "bad.json").status.code == Exit::input);
    for (size_t n = 0; n < 200; n++)    // cut short
        CHECK(Tokenizer::parse(good.dump().substr(0, n * good.dump().size() / 200), "bad.json").status.code ==
              Exit::input);
    // The last of equal pieces counts.
    good["model"]["vocab"].push_back({"Hello", 50.0});
    good["model"]["vocab"].push_back({"Hello", 60.0});
    const int last = int(good["model"]["vocab"].size()) - 1;
    good["added_tokens"].erase(good["added_tokens"].size() - 1);
    CHECK(parse_tokenizer(good.dump()).encode("Hello").back() == last);
}

TEST_CASE("pieces: a damaged map of characters stays within its bytes") {
    std::string map;
    REQUIRE(base64_decode(
        json::parse(content(FOLDER + "t5.json"))["normalizer"]["precompiled_charsmap"].get<std::string>(), map));
    CHECK(mapped_longest("\u2460\u00bd e\u0301", map) == "11/2 \u00e9");
    CHECK(mapped_graphemes("\r\n\u2460\u00bd e\u0301\u0301", map) == " 11/2 \u00e9");
    CHECK(mapped_graphemes("\u2460", "") == "\u2460");
    std::string all;
    for (uint32_t c = 1; c < 0x3000; c++) append_utf8(all, c);
    for (uint64_t i = 0; i < 300; i++) {
        std::string bad = map;
        for (uint64_t k = 0; k < 8; k++) bad[draw(i, 2 * k, uint32_t(bad.size()))] = char(draw(i, 2 * k + 1, 256));
        if (i % 3 == 0) bad.resize(draw(i, 99, uint32_t(bad.size())));
        if (!Charsmap::valid(bad)) continue;
        mapped_longest(all, bad);    // sanitizers see what it reads
        mapped_graphemes(all, bad);
    }
    std::string bytes;
    CHECK_FALSE(base64_decode("AAA", bytes));
    CHECK_FALSE(base64_decode("A===", bytes));
    CHECK_FALSE(base64_decode("AA!A", bytes));
    REQUIRE(base64_decode("Zm9vYg==", bytes));
    CHECK(bytes == "foob");
}

TEST_CASE("pieces: WordPiece training learns the tokens of Hugging Face's trainer") {
    std::vector<std::string> words;
    for (const auto& [word, count] : cases()["counts"].items())
        for (int i = 0; i < count; i++) words.push_back(word + " ");
    Result<Tokenizer> t = train_tokenizer(training(ModelKind::wordpiece, 21, words));
    REQUIRE_MESSAGE(t.ok(), t.status.message);
    std::vector<std::string> learnt;
    for (size_t id = 5; id < 21; id++) {
        const std::string& token = t.value.vocabulary().tokens[id];
        if (token.size() > (token.starts_with("##") ? 3 : 1)) learnt.push_back(token);
    }
    std::sort(learnt.begin(), learnt.end());
    CHECK(learnt == cases()["learnt"].get<std::vector<std::string>>());
    const std::vector<std::string> lines = cases()["corpus"];
    t = train_tokenizer(training(ModelKind::wordpiece, 300, lines));
    REQUIRE_MESSAGE(t.ok(), t.status.message);
    CHECK(t.value.vocab_size() == 300);
    int unknown = 0;
    for (const std::string& line : lines)
        for (int id : t.value.encode(line)) unknown += id == 1;
    CHECK(unknown == 3);    // words of more than 100 characters
    CHECK(t.value.encode_pair("Hello", "THERE", 0).segments.back() == 1);
    CHECK(parse_tokenizer(t.value.to_json()).fingerprint() == t.value.fingerprint());
    CHECK(train_tokenizer(training(ModelKind::wordpiece, 60, lines)).status.code == Exit::usage);
    TokenizerTraining cased = training(ModelKind::wordpiece, 300, lines);
    cased.cased = true;
    const Tokenizer kept = train_tokenizer(cased).value;
    CHECK(kept.decode(kept.encode("Hello")) == "Hello");
}

TEST_CASE("pieces: Unigram training gives equal bits for any number of threads and short texts") {
    const std::vector<std::string> lines = cases()["corpus"];
    const int threads = pool_threads();
    pool_set_threads(1);
    const Result<Tokenizer> one = train_tokenizer(training(ModelKind::unigram, 297, lines));
    pool_set_threads(4);
    const Result<Tokenizer> four = train_tokenizer(training(ModelKind::unigram, 297, lines));
    pool_set_threads(threads);
    REQUIRE_MESSAGE(one.ok(), one.status.message);
    CHECK(one.value.to_json() == four.value.to_json());
    CHECK(one.value.vocab_size() == 297);
    CHECK(parse_tokenizer(one.value.to_json()).fingerprint() == one.value.fingerprint());
    const Tokenizer theirs = load_tokenizer(FOLDER + "t5.json");    // SentencePiece's, of equal size and text
    size_t ours = 0, others = 0;
    for (const std::string& line : lines) {
        ours += one.value.encode(line).size();
        others += theirs.encode(line).size();
        CHECK(one.value.decode(one.value.encode(line)).size() <= line.size() + 1);
    }
    CHECK(double(ours) <= 1.02 * double(others));
    CHECK(train_tokenizer(training(ModelKind::unigram, 20, lines)).status.code == Exit::usage);
    CHECK(train_tokenizer(training(ModelKind::unigram, 300, {})).status.code == Exit::input);
    CHECK(train_tokenizer(training(ModelKind::unigram, 300, {"", " \n"})).status.code == Exit::input);
}

TEST_CASE("pieces: further special tokens are the last ones of a trained vocabulary, and read back") {
    const std::vector<std::string> lines = cases()["corpus"];
    for (const ModelKind kind : {ModelKind::bpe, ModelKind::wordpiece, ModelKind::unigram}) {
        TokenizerTraining t = training(kind, 300, lines);
        t.special = {"<mask>", "<extra_id_0>", "<extra_id_1>"};
        const Result<Tokenizer> trained = train_tokenizer(t);
        REQUIRE_MESSAGE(trained.ok(), trained.status.message);
        const Tokenizer read = parse_tokenizer(trained.value.to_json());
        for (const Tokenizer* each : {&trained.value, &read}) {
            const int V = each->vocab_size();
            CHECK(V == 300);
            if (kind != ModelKind::wordpiece) CHECK(mask_token(*each) == V - 3);    // that has [MASK], too
            CHECK(each->encode("<extra_id_0>", true) == std::vector{V - 2});
            CHECK(each->encode("<extra_id_1>", true) == std::vector{V - 1});
            CHECK(each->is_special(V - 1));
        }
        CHECK(read.fingerprint() == trained.value.fingerprint());
        TokenizerTraining twice = training(kind, 300, lines);
        twice.special = {"<mask>", "<mask>"};
        CHECK(train_tokenizer(twice).status.code == Exit::usage);
        TokenizerTraining nameless = training(kind, 300, lines);
        nameless.special = {""};
        CHECK(train_tokenizer(nameless).status.code == Exit::usage);
    }
    TokenizerTraining spelled = training(ModelKind::bpe, 300, lines);    // byte E9's name in files
    spelled.special = {"\u00e9"};
    CHECK(train_tokenizer(spelled).status.code == Exit::usage);
}

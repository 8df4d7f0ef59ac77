// test_tokenizers.cpp - every kind as Hugging Face or SentencePiece (dev/golden_tokenizers.py).
#include "data/added.h"
#include "data/bpe.h"
#include "data/normalize.h"
#include "data/tokenizer_files/sentencepiece.h"
#include "data/tokenizer_files/tokenizer_gguf.h"

#include "base/file.h"
#include "base/philox.h"
#include "files/json.h"
#include "test.h"
#include "tokenizers.h"

namespace {
using nlohmann::json;
typedef std::vector<int> Ids;

const std::string FOLDER = "test/golden/tokenizers/";
const json& cases() {
    static const json all = [] {
        Result<std::string> text = read_file(FOLDER + "cases.json", 1 << 20);
        REQUIRE_MESSAGE(text.ok(), text.status.message);
        return json::parse(text.value);
    }();
    return all;
}
std::vector<std::string> texts() { return cases()["texts"]; }
uint32_t draw(uint64_t stream, uint64_t i, uint32_t n) { return philox(9, stream, i).v[0] % n; }

// Random text of parts on which the tokenizers' rules depend.
std::string random_text(uint64_t stream, int length) {
    static const std::vector<std::string> parts = {" ",
                                                   " ",
                                                   "  ",
                                                   "\n",
                                                   "\n\n",
                                                   "\r\n",
                                                   "\t",
                                                   "a",
                                                   "b",
                                                   "the",
                                                   "S",
                                                   "'s",
                                                   "1",
                                                   "23",
                                                   "é",
                                                   "e\xCC\x81",
                                                   "漢",
                                                   "字",
                                                   "か",
                                                   "\xE3\x82\x99",
                                                   "가",
                                                   ".",
                                                   "!",
                                                   "/",
                                                   "-",
                                                   "=",
                                                   "$",
                                                   "\xE2\x96\x81",
                                                   "<|endoftext|>",
                                                   "<s>",
                                                   "</s>",
                                                   "<tool_call>",
                                                   "wold",
                                                   "<|user|>",
                                                   "<sep>",
                                                   "\x01",
                                                   "\xFF",
                                                   "\xF0\x9F\x98\x80",
                                                   "\xE2\x80\x83"};
    std::string text;
    for (int i = 0; i < length; i++) text += parts[draw(stream, uint64_t(i), uint32_t(parts.size()))];
    return text;
}

// Ids of a text that arrives in pieces, cut where safe_cut allows.
Ids encode_in_pieces(const Tokenizer& t, const std::string& text, uint64_t stream) {
    Ids ids;
    std::string_view rest = text;
    for (uint64_t i = 0; !rest.empty(); i++) {
        const size_t seen = 1 + draw(stream, i, uint32_t(rest.size()));    // bytes arrived
        size_t cut = t.safe_cut(rest.substr(0, seen), 1 + draw(stream, i + 1000, uint32_t(seen)));
        REQUIRE(cut <= seen);
        if (cut == 0 && draw(stream, i + 2000, 4)) continue;
        if (cut == 0) cut = rest.size();
        for (int id : t.encode(rest.substr(0, cut), false, rest.size() < text.size())) ids.push_back(id);
        rest.remove_prefix(cut);
    }
    return ids;
}
std::vector<std::string> names() {
    std::vector<std::string> all;
    for (auto& [name, unused] : cases()["tokenizers"].items()) all.push_back(name);
    return all;
}
}    // namespace

TEST_CASE("tokenizers: each kind equals Hugging Face's; what we write reads back as the same") {
    for (const std::string& name : names()) {
        CAPTURE(name);
        const json& want = cases()["tokenizers"][name];
        const Tokenizer t = load_tokenizer(FOLDER + name + ".json"), again = parse_tokenizer(t.to_json());
        CHECK(again.to_json() == t.to_json());
        CHECK(again.fingerprint() == t.fingerprint());
        CHECK(t.vocabulary().before == want["before"].get<Ids>());
        CHECK(t.vocabulary().after == want["after"].get<Ids>());
        for (size_t i = 0; i < texts().size(); i++) {
            const std::string text = texts()[i];
            CAPTURE(i);
            const Ids special = want["special"][i];
            CHECK(t.encode(text, true) == special);
            CHECK(again.encode(text, true) == special);
            CHECK(t.encode(text) == want["plain"][i].get<Ids>());
            StreamDecoder decoder;
            const std::string decoded = decoder.push(t.decode(special)) + decoder.finish();
            CHECK(decoded == want["decoded"][i].get<std::string>());
        }
    }
}

TEST_CASE("tokenizers: a text in pieces has the ids of the whole") {
    for (const std::string& name : names()) {
        CAPTURE(name);
        const Tokenizer t = load_tokenizer(FOLDER + name + ".json");
        int splits = 0;
        for (uint64_t i = 0; i < 150; i++) {
            const std::string text = i < texts().size() ? texts()[i] : random_text(i, 30);
            CAPTURE(text);
            CHECK(encode_in_pieces(t, text, i) == t.encode(text));
            splits += !text.empty() && t.safe_cut(text, text.size()) > 0;
        }
        CHECK((splits > 20) == (name != "other"));
    }
}

TEST_CASE("tokenizers: tokenizer.model equals SentencePiece") {
    for (std::string name : {"prefixed", "symbols"}) {
        CAPTURE(name);
        const json& want = cases()["models"][name];
        const Tokenizer t = load_tokenizer(FOLDER + name + ".model"), again = parse_tokenizer(t.to_json());
        CHECK(t.vocab_size() == 750);
        CHECK(t.vocabulary().before == Ids{1});
        CHECK(t.end_of_text() == 2);
        for (size_t i = 0; i < texts().size(); i++) {
            const std::string text = texts()[i];
            CAPTURE(i);
            // Not compared: user-defined symbols are searched before spaces become marks (U+2581),
            // so a mark that is already in the text matches no symbol.
            if (name == "symbols" && text.find(SPACE_MARK) != text.npos) continue;
            CHECK(t.encode(text) == want["plain"][i].get<Ids>());
            CHECK(again.encode(text) == want["plain"][i].get<Ids>());
            StreamDecoder decoder;
            CHECK(decoder.push(t.decode(t.encode(text))) + decoder.finish() == want["decoded"][i].get<std::string>());
        }
        CHECK(t.encode_prompt("a")[0] == 1);
        CHECK(t.encode("a", true) == t.encode("a"));    // BOS only before prompts
        for (uint64_t i = 0; i < 100; i++)
            CHECK(encode_in_pieces(t, random_text(i, 30), i) == t.encode(random_text(i, 30)));
    }
}

TEST_CASE("tokenizers: GGUF's arrays make the same ids") {
    for (std::string name : {"llama3", "qwen2", "o200k", "smollm", "deepseek_v3", "falcon", "neox", "gemma", "phi3"}) {
        CAPTURE(name);
        const Tokenizer t = load_tokenizer(FOLDER + name + ".json");
        Result<GgufTokenizer> g = tokenizer_to_gguf(t);
        REQUIRE_MESSAGE(g.ok(), g.status.message);
        Result<Tokenizer> again = tokenizer_from_gguf(g.value, name);
        REQUIRE_MESSAGE(again.ok(), again.status.message);
        CHECK(again.value.vocabulary().before == t.vocabulary().before);
        // Not compared: a GGUF lacks tokens that take white space or match normalized text.
        if (name == "phi3" || name == "neox") continue;
        for (const std::string& text : texts()) {
            CAPTURE(text);
            CHECK(again.value.encode(text, true) == t.encode(text, true));
        }
    }
}

TEST_CASE("tokenizers: a token may hold a space inside; then words are not parted there") {
    std::vector<ScoredPiece> pieces = {{"<unk>", 0, ScoredPiece::unknown}};
    for (const char* text : {SPACE_MARK, ">", "<", "a", ">\xE2\x96\x81", ">\xE2\x96\x81<"})
        pieces.push_back({text, -float(pieces.size()), ScoredPiece::normal});
    Result<Vocabulary> v = vocabulary_of_pieces(pieces, false, "t");
    REQUIRE(v.ok());
    const Tokenizer t(v.value);
    CHECK(t.encode("a> < a") == Ids{4, 6, 1, 4});
    CHECK(t.safe_cut("a> < a", 6) == 4);
    CHECK(t.safe_cut("a> < a", 3) == 0);
}

TEST_CASE("tokenizers: what becomes of a match, and where o200k may be cut") {
    auto pieces = [](Split::Behavior behavior) {
        Result<Pretokenizer> p = Pretokenizer::compile({{"-", behavior}});
        REQUIRE(p.ok());
        Splitter s(p.value);
        s.start("the-final--countdown");    // the example in Hugging Face's documentation
        std::string all;
        for (std::string_view piece; s.next(piece);) all += std::string(piece) + "|";
        return all;
    };
    CHECK(pieces(Split::Behavior::isolated) == "the|-|final|-|-|countdown|");
    CHECK(pieces(Split::Behavior::removed) == "the|final|countdown|");
    CHECK(pieces(Split::Behavior::contiguous) == "the|-|final|--|countdown|");
    CHECK(pieces(Split::Behavior::merged_with_previous) == "the-|final-|-|countdown|");
    CHECK(pieces(Split::Behavior::merged_with_next) == "the|-final|-|-countdown|");
    CHECK(safe_cut(Pattern::o200k, "a!\n/b", 4) == 0);    // the slash belongs to the punctuation
    CHECK(safe_cut(Pattern::o200k, "a!\nb", 4) == 3);
}

TEST_CASE("tokenizers: a pattern's fast form gives the published pieces, of runs of any length, too") {
    const std::vector<std::string> parts = {
        "a",   "b",      "Z", "é",      "漢",     "か",     "\u30fc", "\u3099", "\u309b", "\u30fb", "\u0301", "1",
        "23",  "\u0664", "½", " ",      "  ",     "\n",     "\r\n",   "\t",     ".",      ",",      "!",      "'s",
        "'LL", "$",      "+", "\u3002", "\u3000", "\u2028", "\u00a0", "\x80",   "\xC3",   "\u200b", "/",      "\u01c5",
        "가",  "_",      "|", "\u0800", "\u0e51", "\u2014", "\u202f", "€",      "\u2208"};
    auto pieces = [](Splitter& s, const std::string& text) {
        s.start(text);
        std::string all;
        for (std::string_view piece; s.next(piece);) all += std::string(piece) + "\1";
        return all;
    };
    for (const PatternRow& row : pattern_rows()) {
        if (!row.fast && !row.scan) continue;
        Result<Pretokenizer> published = Pretokenizer::compile(row.splits);
        REQUIRE(published.ok());
        Splitter slow(published.value), fast(row.pattern);
        for (uint64_t i = 0; i < 4000; i++) {
            std::string text;
            for (int k = 0; k < int(i % 14); k++) text += parts[draw(i, uint64_t(k), uint32_t(parts.size()))];
            REQUIRE_MESSAGE(pieces(slow, text) == pieces(fast, text), row.name, " ",
                            json(text).dump(-1, ' ', true, json::error_handler_t::replace));
        }
        for (const std::string& part : parts) {
            std::string text;
            while (text.size() < 500'000) text += part;
            if (row.pattern != Pattern::bert) CHECK(pieces(fast, text).size() > text.size());
        }
    }
}

TEST_CASE("tokenizers: bytes without a token are left out") {
    const Tokenizer t = load_tokenizer(FOLDER + "smollm.json");
    CHECK(t.encode("a\xC0!") == t.encode("a!"));
    CHECK(t.encode("\xC0").empty());
}

TEST_CASE("tokenizers: normal forms leave what is no UTF-8 alone, and equal the form of the whole") {
    const std::vector<Normalization> nfc = {{Normalization::Kind::nfc, "", ""}};
    const std::vector<Normalization> nfkc = {{Normalization::Kind::nfkc, "", ""}};
    CHECK(normalized("e\xCC\x81 \xFF"
                     "e\xCC\x81\xCC",
                     nfc, false) == "\xC3\xA9 \xFF\xC3\xA9\xCC");
    // Hangul of three parts, then of two.
    CHECK(normalized("\xE1\x84\x80\xE1\x85\xA1\xE1\x86\xA8", nfc, false) == "\xEA\xB0\x81");
    CHECK(normalized("\xEA\xB0\x80\xE1\x86\xA8", nfc, false) == "\xEA\xB0\x81");
    CHECK(normalized("\xE3\x81\x8B\xE3\x82\x99", nfc, false) == "\xE3\x81\x8C");
    CHECK(normalized("a\xCC\xA7\xCC\x81 ", nfc, false) == "\xC3\xA1\xCC\xA7 ");    // marks sorted
    CHECK(normalized("\xC2\xA0\xEF\xAC\x81", nfkc, false) == " fi");
    CHECK(normalized("\xC2\xA0\xEF\xAC\x81", nfc, false) == "\xC2\xA0\xEF\xAC\x81");
    CHECK_FALSE(is_normalized("e\xCC\x81", nfc, false));
    CHECK(is_normalized("caf\xC3\xA9", nfc, false));
    CHECK_FALSE(is_normalized("\xC2\xA0", nfkc, false));
}

TEST_CASE("tokenizers: directories with tokenizer_config.json and a chat template") {
    const std::string dir = temporary_directory();
    const std::string json = read_file(FOLDER + "phi3.json", 1 << 20).value;
    REQUIRE(replace_file(dir + "/tokenizer.json", json).ok());
    CHECK(load_tokenizer(dir).vocabulary().before == Ids{1});    // BOS by tokenizer.json's template
    REQUIRE(replace_file(dir + "/tokenizer_config.json", R"({"add_bos_token": false, "add_eos_token": true,
        "bos_token": "<s>", "eos_token": {"content": "<|end|>"}, "chat_template": [{"name": "x", "template": "1"},
        {"name": "default", "template": "2"}],
        "added_tokens_decoder": {"700": {"content": "<new>", "special": true}}})")
                .ok());
    const Tokenizer t = load_tokenizer(dir);
    const Vocabulary& v = t.vocabulary();
    CHECK(v.before.empty());
    CHECK(v.after == Ids{v.eos});
    CHECK(t.token(v.eos) == "<|end|>");
    CHECK(v.chat_template == "2");
    CHECK(t.encode("<new>", true) == Ids{700});
    CHECK(t.vocab_size() == 701);
    REQUIRE(replace_file(dir + "/chat_template.jinja", "3").ok());
    CHECK(load_tokenizer(dir).vocabulary().chat_template == "3");
    REQUIRE(replace_file(dir + "/tokenizer_config.json", load_tokenizer(dir).config_json()).ok());
    CHECK(load_tokenizer(dir).vocabulary().eos == v.eos);
    CHECK(load_tokenizer(dir).vocabulary().bos == 1);
    for (std::string broken :
         {R"({"added_tokens_decoder": {"x": {"content": "a"}}})", "[", R"({"added_tokens_decoder": 1})",
          R"({"added_tokens_decoder": {"99999999": {"content": "a"}}})",
          R"({"added_tokens_decoder": {"0": {"content": "other"}}})"}) {
        REQUIRE(replace_file(dir + "/tokenizer_config.json", broken).ok());
        CHECK(Tokenizer::load(dir).status.code == Exit::input);
    }
    REQUIRE(replace_file(dir + "/tokenizer_config.json", "{}").ok());
    auto ends = [&](const std::string& config, const std::string& generation) {
        REQUIRE(replace_file(dir + "/config.json", config).ok());
        REQUIRE(replace_file(dir + "/generation_config.json", generation).ok());
        const Result<Tokenizer> read = Tokenizer::load(dir);
        return read.ok() ? read.value.vocabulary().ends : Ids{-int(read.status.code)};
    };
    CHECK(ends("{}", R"({"eos_token_id": null})") == Ids{});
    CHECK(ends(R"({"eos_token_id": 7})", R"({"eos_token_id": [5, 7, -1, 6, 5]})") == Ids{7, 5, 6});
    CHECK(ends(R"({"eos_token_id": -1})", R"({"eos_token_id": 2147483647})") == Ids{2147483647});
    for (std::string broken : {R"("</s>")", "[1, null]", "1e30", "18446744073709551615", "[[1]]", "-2", "2147483648"})
        CHECK(ends("{\"eos_token_id\": " + broken + "}", "{}") == Ids{-int(Exit::input)});
    // `ends` does not repeat eos_token; either flag decides about both sides of a text.
    std::filesystem::remove(dir + "/config.json");
    std::filesystem::remove(dir + "/chat_template.jinja");
    auto configured = [&](const std::string& text) {
        REQUIRE(replace_file(dir + "/tokenizer_config.json", text).ok());
        return load_tokenizer(dir).vocabulary();
    };
    const std::string own = "{\"eos_token_id\": [-1, " + std::to_string(v.eos) + ", 5]}";
    REQUIRE(replace_file(dir + "/generation_config.json", own).ok());
    CHECK(configured(R"({"eos_token": "<|end|>"})").ends == Ids{5});
    CHECK(configured(R"({"add_bos_token": true, "bos_token": "<s>"})").before == Ids{1});
    CHECK(configured(R"({"add_eos_token": true, "bos_token": "<s>", "eos_token": "<|end|>"})").before == Ids{});
    CHECK(configured(R"({"add_eos_token": true, "eos_token": "<|end|>"})").after == Ids{v.eos});
    CHECK(configured(R"({"add_bos_token": false, "eos_token": "<|end|>"})").after == Ids{});
    CHECK(configured("{}").before == Ids{1});    // by tokenizer.json's template
    CHECK(configured(R"({"add_bos_token": false})").before == Ids{});
    CHECK(configured(R"({"add_eos_token": true})").after == Ids{});    // no eos_token is given
    CHECK(configured(R"({"chat_template": [{"name": "x", "template": "1"}, {"name": "y", "template": "2"}]})")
              .chat_template == "1");
    configured(R"({"bos_token": "<s>", "eos_token": "<|end|>", "pad_token": "<new>", "chat_template": "4",
        "added_tokens_decoder": {"700": {"content": "<new>", "special": true}}})");
    const auto out = nlohmann::json::parse(load_tokenizer(dir).config_json());
    for (auto [key, value] : {std::pair("bos_token", "<s>"), std::pair("eos_token", "<|end|>"),
                              std::pair("pad_token", "<new>"), std::pair("unk_token", "<unk>"),
                              std::pair("chat_template", "4"), std::pair("tokenizer_class", "PreTrainedTokenizerFast")})
        CHECK(out[key] == value);
    const std::string empty = temporary_directory();
    CHECK(Tokenizer::load(empty).status.message.find("expected a tokenizer.json, ") != std::string::npos);
}

TEST_CASE("tokenizers: hostile tokenizer.model files are exit 3, at every length and with every kind of damage") {
    const std::string file = read_file(FOLDER + "prefixed.model", 1 << 20).value;
    REQUIRE(sentencepiece_parse(file, "t").ok());
    CHECK(sentencepiece_begins(file));
    CHECK_FALSE(sentencepiece_begins("{\"a\": 1}"));
    for (size_t n = 0; n < file.size(); n += 1 + n / 300) {    // between two fields a cut is valid
        Result<Vocabulary> v = sentencepiece_parse(file.substr(0, n), "t");
        if (!v.ok()) REQUIRE(v.status.code == Exit::input);
        std::string damaged = file;
        for (char c : {'\xFF', '\x00', '\x80', '\x0A'}) {
            damaged[n] = c;
            Result<Vocabulary> d = sentencepiece_parse(damaged, "t");
            if (!d.ok()) REQUIRE(d.status.code == Exit::input);
            else if (n % 16 == 0) (void)Tokenizer(std::move(d.value)).encode("the quick\xFF");
        }
    }
    auto field = [](int number, const std::string& bytes) {
        return std::string(1, char(number << 3 | 2)) + char(bytes.size()) + bytes;
    };
    const std::string piece = field(1, field(1, "a")), bpe = field(2, "\x18\x02");
    const std::string identity = field(3, std::string("\x20\x00", 2));
    CHECK(sentencepiece_parse(piece + bpe + identity, "t").ok());
    struct {
        std::string file, message;
    } wrong[] = {{"", "expected pieces"},
                 {bpe, "expected pieces"},
                 {piece + field(2, "\x18\x03") + identity, "type 3"},
                 {piece + bpe + field(3, "\x12\x01x"), "a map of characters"},
                 {piece + piece + bpe + identity, "two tokens are a"},
                 {field(1, ""), "piece 0"},
                 {field(1, field(1, "a") + "\x18\x09"), "type from 1 to 6"},
                 {field(1, field(1, "ab") + "\x18\x06") + bpe + identity, "<0x00>"},
                 {piece + "\x0A\x7F", "no field"},
                 {piece + "\x07", "no field"},
                 {std::string(11, '\xFF'), "no field"},
                 {field(1, std::string("\x0A\x01"
                                       "a\x15\x00\x00\x80\x7F",
                                       8)),
                  "a score"}};
    for (auto& [text, message] : wrong) {
        const Status s = sentencepiece_parse(text, "t").status;
        CHECK(s.code == Exit::input);
        CHECK_MESSAGE(s.message.find(message) != std::string::npos, s.message);
    }
}

TEST_CASE("tokenizers: a regular expression of a file cannot run for ever, and what PCRE2 has otherwise is refused") {
    for (const char* regex : {"(a+)+$", "(?:a|aa)+$", "(a*)*b", ""}) {
        Result<Pretokenizer> p = Pretokenizer::compile({{regex}});
        REQUIRE(p.ok());
        Splitter s(p.value);
        const std::string text = std::string(5000, 'a') + "!";
        s.start(text);
        size_t bytes = 0;
        for (std::string_view piece; s.next(piece);) bytes += piece.size();
        CHECK(bytes == text.size());
    }
    for (const char* regex : {"[a&&b]", "[a[^b]]", "(*ACCEPT)", "(", "\\C", "a{99999}"})
        CHECK(Pretokenizer::compile({{regex}}).status.code == Exit::input);
}

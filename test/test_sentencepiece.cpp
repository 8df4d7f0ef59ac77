// test_sentencepiece.cpp - tokenizer.model field by field: flags, order of merges, limits.
#include "data/tokenizer_files/sentencepiece.h"

#include "data/bpe.h"
#include "data/merge.h"
#include "test.h"

namespace {
std::string varint(uint64_t x) {
    std::string all;
    for (; x >= 128; x >>= 7) all += char(x | 128);
    return all + char(x);
}
std::string number(uint64_t field, uint64_t x) { return varint(field << 3) + varint(x); }
std::string bytes(uint64_t field, const std::string& text) {
    return varint(field << 3 | 2) + varint(text.size()) + text;
}
std::string piece(const std::string& text, int type = ScoredPiece::normal) {
    return bytes(1, bytes(1, text) + number(3, uint64_t(type)));
}
std::string trainer(const std::string& more = "") { return bytes(2, number(3, 2) + more); }
std::string normalizer(const std::string& more = "") { return bytes(3, number(4, 0) + more); }
Vocabulary read(const std::string& file) {
    const Result<Vocabulary> v = sentencepiece_parse(file, "t");
    REQUIRE_MESSAGE(v.ok(), v.status.message);
    return v.value;
}
void refused(const std::string& file, const char* what) {
    const Status s = sentencepiece_parse(file, "t").status;
    CHECK(s.code == Exit::input);
    CHECK_MESSAGE(contains(s.message, what), s.message);
}
std::vector<std::array<int, 3>> merges(const std::vector<ScoredPiece>& pieces) {
    std::vector<std::array<int, 3>> all;
    const Result<Vocabulary> v = vocabulary_of_pieces(pieces, false, "t");
    REQUIRE_MESSAGE(v.ok(), v.status.message);
    for (const Merge& m : v.value.merges) all.push_back({m.left, m.right, m.id});
    return all;
}
typedef std::vector<std::array<int, 3>> Merges;
}    // namespace

TEST_CASE("sentencepiece: a user-defined symbol with a plain space is in no text, one with marks is") {
    const std::string mark = "\xE2\x96\x81", first = piece("<unk>", 2) + piece("<s>", 3) + piece("</s>", 3);
    for (const char* symbol : {"a b", "  ", " world", "\n ", " ", " a"}) {
        CAPTURE(symbol);
        const std::string letters = piece("a") + piece("b") + piece(mark) + piece("\n") + piece("world");
        const Tokenizer t(read(first + piece(symbol, 4) + letters + trainer() + normalizer()));
        const std::vector<int> ids = t.encode("a b  world\n b a");
        CHECK(std::find(ids.begin(), ids.end(), 3) == ids.end());
        CHECK(t.decode({4, 3}) == std::string("a") + symbol);
        CHECK(t.encode("a b") == std::vector<int>{6, 4, 6, 5});
        const Result<Tokenizer> again = Tokenizer::parse(t.to_json(), "t");
        REQUIRE_MESSAGE(again.ok(), again.status.message);
        CHECK(again.value.encode("a b  world\n b a") == ids);
    }
    for (const std::string& symbol : {mark + mark, "a" + mark + "b", std::string("\n")}) {
        const Tokenizer t(
            read(first + piece(symbol, 4) + piece("a") + piece(mark) + piece("b") + trainer() + normalizer()));
        const std::string text = symbol == "\n" ? "a\nb" : symbol == mark + mark ? "a  b" : "a b";
        const std::vector<int> ids = t.encode(text);
        CHECK(std::find(ids.begin(), ids.end(), 3) != ids.end());
    }
}

TEST_CASE("sentencepiece: each flag, and what holds where it is not written") {
    const std::string pieces = piece("<unk>", 2) + piece("<s>", 3) + piece("</s>", 3) + piece("a") + piece("b", 4) +
                               piece("\xE2\x96\x81") + piece("<0x00>", 6);
    const Vocabulary v = read(pieces + trainer() + normalizer());
    CHECK(v.normalization.size() == 2);    // space prefix; spaces become marks
    CHECK(v.strip == Strip::space);
    CHECK(v.fuse_unknown);
    CHECK_FALSE(v.byte_fallback);
    CHECK(v.unknown == 0);
    CHECK(v.bos == 1);
    CHECK(v.eos == 2);
    CHECK(v.pad == -1);
    CHECK(v.before == std::vector<int>{1});
    CHECK(v.after.empty());
    REQUIRE(v.added.size() == 4);
    for (size_t i = 0; i < 4; i++) {
        CHECK(v.added[i].id == (i < 3 ? int(i) : 4));
        CHECK(v.added[i].special == (i < 3));
        CHECK(v.added[i].user_defined == (i == 3));
    }
    CHECK(Tokenizer(v).encode("a") == std::vector<int>{5, 3});
    CHECK(Tokenizer(v).encode("é漢a") == std::vector<int>{5, 0, 3});    // one <unk> for both

    // add_dummy_prefix is off.
    const Vocabulary bare = read(pieces + trainer() + normalizer(number(3, 0)));
    CHECK(bare.normalization.size() == 1);
    CHECK(bare.strip == Strip::none);
    CHECK(Tokenizer(bare).encode("a") == std::vector<int>{3});
    CHECK(read(pieces + trainer(number(35, 1)) + normalizer()).byte_fallback);

    const uint64_t none = uint64_t(-1);
    const Vocabulary ids = read(pieces + trainer(number(41, 3) + number(42, 4) + number(43, 5)) + normalizer());
    CHECK(ids.bos == 3);
    CHECK(ids.eos == 4);
    CHECK(ids.pad == 5);
    CHECK(ids.before == std::vector<int>{3});
    for (const uint64_t id : {none, uint64_t(7), uint64_t(uint32_t(-1)), uint64_t(1) << 40}) {
        const Vocabulary no = read(pieces + trainer(number(41, id) + number(42, id) + number(43, id)) + normalizer());
        CHECK(no.bos == -1);
        CHECK(no.eos == -1);
        CHECK(no.pad == -1);
        CHECK(no.before.empty());
    }
    CHECK(read(piece("<unk>", 2) + piece("x", 2) + trainer() + normalizer()).unknown == 0);

    CHECK(read(pieces + normalizer()).model == ModelKind::unigram);
    for (const uint64_t type : {0, 3, 4}) {
        const std::string found = "found type " + std::to_string(type);
        refused(pieces + bytes(2, number(3, type)) + normalizer(), found.c_str());
    }
    const Vocabulary squeezed = read(pieces + trainer() + bytes(3, ""));    // remove_extra_whitespaces
    CHECK(Tokenizer(squeezed).encode("  a  a ") == Tokenizer(v).encode("a a"));
    // escape_whitespaces off, treat_whitespace_as_suffix: not supported.
    refused(pieces + trainer() + normalizer(number(5, 0)), "another treatment of spaces");
    refused(pieces + trainer(number(24, 1)) + normalizer(), "another treatment of spaces");
    refused(pieces + trainer() + normalizer(bytes(2, "map")), "damaged bytes");
    CHECK(sentencepiece_begins(pieces));
    CHECK_FALSE(sentencepiece_begins(trainer(bytes(1, "x"))));
    CHECK_FALSE(sentencepiece_begins(bytes(1, number(3, 1))));
    CHECK_FALSE(sentencepiece_begins(bytes(1, "")));
}

TEST_CASE("sentencepiece: fields that are not known are passed over, what is no field is refused") {
    const std::string others = number(9, 300) + bytes(10, "text") + varint(11 << 3 | 1) + "12345678" +
                               varint(12 << 3 | 5) + "1234";
    const std::string one = bytes(1, others + bytes(1, "a") + others);
    const Vocabulary v = read(one + others + trainer(others) + normalizer(others));
    CHECK(v.tokens == std::vector<std::string>{"a"});
    const std::string good = piece("a") + trainer() + normalizer(), inner = bytes(1, "b") + "\x0A\x7F";
    refused(bytes(1, inner) + good, "piece 0");
    refused(good + bytes(1, bytes(1, "b") + number(3, 0)), "piece 1: expected a text, a score and a type from 1 to 6");
    refused(good + bytes(1, bytes(1, "b") + number(3, 7)), "piece 1");
    refused(good + bytes(1, bytes(1, "b") + number(3, (uint64_t(1) << 32) + 1)), "piece 1");
    refused(good + bytes(1, number(3, 1)), "piece 1");
    refused(piece("a") + trainer("\x0A\x7F") + normalizer(), "no field");
    refused(piece("a") + trainer() + normalizer("\x0A\x7F"), "no field");
    // Field number 0, and one beyond 29 bits.
    refused(good + varint(2) + varint(1) + "x", "no field");
    refused(good + varint((uint64_t(1) << 32 | 1) << 3 | 2) + varint(1) + "x", "no field");
    refused(good + varint(1 << 3 | 3), "no field");
    refused(good + varint(4 << 3 | 1) + "1234567", "no field");
    std::string many;
    for (int i = 0; i <= 1 << 20; i++) many += piece("a");
    refused(many, "more than 1048576 pieces");
    const std::string longest(512, 'a');
    CHECK(read(piece(longest) + trainer() + normalizer()).tokens[0] == longest);
    refused(piece(longest + "a") + trainer() + normalizer(), "expected at most 512 bytes, found 513");
}

TEST_CASE("sentencepiece: merges by score, then by the lengths of left and right in characters, then by id") {
    CHECK(merges({{"a", 0}, {"b", 0}, {"c", 0}, {"ab", -1}, {"bc", -2}, {"abc", -3}}) ==
          Merges{{0, 1, 3}, {1, 2, 4}, {3, 2, 5}, {0, 4, 5}});
    CHECK(merges({{"a"}, {"b"}, {"c"}, {"bc"}, {"ab"}, {"abc"}}) == Merges{{4, 2, 5}, {0, 3, 5}, {1, 2, 3}, {0, 1, 4}});
    CHECK(merges({{"é"}, {"x"}, {"éx"}, {"a"}, {"ab"}, {"abx"}, {"b"}}) == Merges{{4, 1, 5}, {0, 1, 2}, {3, 6, 4}});
    CHECK(merges({{"a"}, {"é"}, {"aé"}, {"b"}, {"xy"}, {"bxy"}}) == Merges{{3, 4, 5}, {0, 1, 2}});
    // Only normal pieces are merged, and none is split within a UTF-8 character.
    CHECK(merges({{"a"}, {"b", 0, ScoredPiece::user_defined}, {"ab"}}).empty());
    CHECK(merges({{"a", 0, ScoredPiece::control}, {"b"}, {"ab"}}).empty());
    CHECK(merges({{"a"}, {"b"}, {"ab", 0, ScoredPiece::user_defined}}).empty());
    CHECK(merges({{"\xC3"}, {"\xA9"}, {"\xC3\xA9"}}).empty());
    // Pieces with an empty text are not listed as added tokens.
    const Result<Vocabulary> v = vocabulary_of_pieces({{"a"}, {""}, {"", 0, ScoredPiece::control}}, false, "t");
    REQUIRE(v.ok());
    CHECK(v.value.added.empty());
    CHECK_FALSE(v.value.byte_fallback);
    CHECK(vocabulary_of_pieces({{"<0x0A>", 0, ScoredPiece::byte}}, false, "t").value.byte_fallback);
    Vocabulary outside = vocabulary_of_pieces({{"<unk>", 0, ScoredPiece::unknown}, {"a"}}, false, "t").value;
    outside.tokens.push_back("b");    // not in the model: no merge makes it
    outside.added.push_back({.id = 2, .special = true, .in_model = false});
    CHECK(Tokenizer(outside).encode("ab") == std::vector<int>{1, 0});
    CHECK(Tokenizer(outside).encode("ab", true) == std::vector<int>{1, 2});
    CHECK_FALSE(vocabulary_of_pieces({{"<0x0a>", 0, ScoredPiece::byte}}, false, "t").ok());
    for (const char* byte : {"<0x00>", "<0xFF>", "<0x9A>"}) CHECK(is_byte_token(byte));
    for (const char* none : {"<0x0G>", "<0xG0>", "<0x00", "<0x000>", "<0x00>>", "<1x00>", "<0x0a>", "", "<0x00)"})
        CHECK_FALSE(is_byte_token(none));
    CHECK(byte_of_token("<0x1F>") == '\x1F');
}

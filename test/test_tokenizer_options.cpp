// test_tokenizer_options.cpp - what dev/compare_tokenizers.py found once: options of tokenizers that
// change ids or texts. The right values in options.json are those of Hugging Face's tokenizers and of
// SentencePiece. Files beside a tokenizer, keys of a GGUF, and the time that hostile texts take.
#include "base/console.h"
#include "base/file.h"
#include "data/bpe.h"
#include "data/normalize.h"
#include "data/sentencepiece.h"
#include "data/tokenizer_gguf.h"
#include "files/json.h"
#include "test.h"

namespace {
using nlohmann::json;
typedef std::vector<int> Ids;

const std::string FOLDER = "test/golden/tokenizers/";
Tokenizer load(const std::string& path) {
    Result<Tokenizer> t = Tokenizer::load(path);
    REQUIRE_MESSAGE(t.ok(), t.status.message);
    return t.value;
}
Tokenizer parsed(const std::string& text) {
    Result<Tokenizer> t = Tokenizer::parse(text, "test.json");
    REQUIRE_MESSAGE(t.ok(), t.status.message);
    return t.value;
}
std::string decoded(const Tokenizer& t, const Ids& ids) {
    StreamDecoder whole;
    std::string text = whole.push(t.decode(ids));
    return text += whole.finish();
}
}   // namespace

TEST_CASE("tokenizer options: ids and texts of each kind that once differed, also written and read again") {
    const json cases = json::parse(read_file(FOLDER + "options.json", 1 << 20).value);
    CHECK(cases.size() == 18);
    for (const json& want : cases) {
        const std::string name = want["name"];
        CAPTURE(name);
        const bool pieces = name.ends_with(".model");
        const Tokenizer first = pieces ? load(FOLDER + name) : parsed(want["tokenizer"].dump());
        const Tokenizer again = parsed(first.to_json());
        CHECK(again.to_json() == first.to_json());
        CHECK(again.fingerprint() == first.fingerprint());
        for (size_t i = 0; i < want["texts"].size(); i++) {
            const std::string text = want["texts"][i];
            CAPTURE(text);
            for (const Tokenizer& t : {first, again}) {
                CHECK(t.encode(text) == want["plain"][i].get<Ids>());
                if (!pieces) CHECK(t.encode(text, true) == want["special"][i].get<Ids>());
                const json& right = want[pieces ? "decoded_plain" : "decoded"][i];    // null: SentencePiece's unknown
                if (!right.is_null()) CHECK(decoded(t, t.encode(text, !pieces)) == right.get<std::string>());
                Ids parts;    // a text that is cut where it may be
                const size_t cut = t.safe_cut(text, text.size() / 2);
                parts = t.encode(text.substr(0, cut));
                for (int id : t.encode(text.substr(cut), false, cut > 0)) parts.push_back(id);
                CHECK(parts == t.encode(text));
            }
        }
    }
}

TEST_CASE("tokenizer options: runs of marks are put in order in linear time") {
    const std::vector<Normalization> nfc = {{Normalization::Kind::nfc, "", ""}};
    constexpr int MARKS = 200'000;
    std::string text = "a", want = "\xC3\xA1";
    for (int i = 0; i < MARKS; i++) text += "\xCC\x96\xCC\x81";    // below, above
    for (int i = 0; i < MARKS; i++) want += "\xCC\x96";
    for (int i = 1; i < MARKS; i++) want += "\xCC\x81";
    const double begin = now_seconds();
    CHECK(normalized(text, nfc, false) == want);
    CHECK(now_seconds() - begin < 20);    // pair by pair it took minutes
}

// test_bleu.cpp - BLEU against sacrebleu's scores, exact match.
#include "infer/eval/bleu.h"

#include "test.h"

#include <nlohmann/json.hpp>

namespace {
typedef std::vector<std::string> Texts;
const nlohmann::json& golden() {
    static const nlohmann::json all = nlohmann::json::parse(read_file("test/golden/seq2seq/bleu.json"));
    return all;
}
void check_score(const BleuScore& s, const nlohmann::json& expected) {
    CHECK(std::fabs(s.score - expected["score"].get<double>()) < 1e-9);
    for (size_t n = 0; n < BleuScore::ORDER; n++) {
        CHECK(s.counts[n] == expected["counts"][n].get<int64_t>());
        CHECK(s.totals[n] == expected["totals"][n].get<int64_t>());
        CHECK(std::fabs(s.precisions[n] - expected["precisions"][n].get<double>()) < 1e-9);
    }
    CHECK(std::fabs(s.brevity_penalty - expected["bp"].get<double>()) < 1e-12);
    CHECK(s.length == expected["length"].get<int64_t>());
    CHECK(s.reference_length == expected["reference_length"].get<int64_t>());
    CHECK(bleu_text(s) == expected["text"].get<std::string>());
}
}    // namespace

TEST_CASE("bleu: scores are sacrebleu's to 1e-9: of a corpus and of each text") {
    const Texts texts = golden()["texts"], references = golden()["references"];
    REQUIRE(texts.size() == 240);
    for (const nlohmann::json& expected : golden()["all"]) {
        const bool lowercase = expected["lowercase"];
        check_score(bleu(texts, references, lowercase), expected);
        std::string signature = expected["signature"];
        CHECK(bleu_signature(lowercase) == signature.substr(0, signature.find("version:")) + "version:flatgpt");
    }
    for (size_t i = 0; i < texts.size(); i++) {
        const double each = bleu({texts[i]}, {references[i]}).score,
                     lower = bleu({texts[i]}, {references[i]}, true).score;
        CHECK_MESSAGE(std::fabs(each - golden()["each"][i].get<double>()) < 1e-9, texts[i], " | ", references[i]);
        CHECK_MESSAGE(std::fabs(lower - golden()["each_lower"][i].get<double>()) < 1e-9, texts[i]);
    }
    for (size_t i = 0; i < texts.size(); i += 10) {
        const auto from = long(i), to = from + 10;
        const double score =
            bleu({texts.begin() + from, texts.begin() + to}, {references.begin() + from, references.begin() + to})
                .score;
        CHECK(std::fabs(score - golden()["tens"][i / 10].get<double>()) < 1e-9);
    }
    check_score(bleu(Texts(3, ""), Texts(3, "a b c d e")), golden()["none"]);
    check_score(bleu({"a b c"}, {"a b c"}), golden()["short"]);
    CHECK(bleu({}, {}).score == 0);
    CHECK(bleu({""}, {""}).score == 0);
    CHECK(bleu({"a b c d"}, {"a b c d"}).score == doctest::Approx(100));
}

TEST_CASE("bleu: texts are split as mteval-v13a does") {
    CHECK(golden()["split"].size() > 60);
    for (const nlohmann::json& row : golden()["split"]) CHECK(split_13a(row[0].get<std::string>()) == row[1]);
    CHECK(split_13a("").empty());
    CHECK(split_13a("a\x1F\u2009b\u200B\u3000") == "a b\u200B");
    CHECK(split_13a("Hello, world! 3,5.") == "Hello , world ! 3,5 .");
    CHECK(split_13a("\xFF\xFE.x \xE2\x80") == "\xFF\xFE . x \xE2\x80");    // no UTF-8
}

TEST_CASE("bleu: a long text takes time in proportion") {
    std::string text;
    for (int i = 0; i < 200000; i++) text += "a ";
    CHECK(bleu({text}, {text}).score == doctest::Approx(100));
    CHECK(split_13a(std::string(1 << 20, '&')).size() == (2 << 20) - 1);
}

TEST_CASE("bleu: exact match leaves out white space at both ends") {
    CHECK(exact_match({"a", " b\n", "c d", "", "e"}, {"a", "b", "c  d", "\u3000", "E"}) == 0.6);
    CHECK(exact_match({}, {}) == 0);
}

// test_model_card.cpp - a model's name, licence and languages are kept by every conversion.
#include "checkpoint/model_card.h"

#include "toy_run.h"

#include "gguf_parts.h"

TEST_CASE("model card: name, licence and languages go from a GGUF through a run to a GGUF and a directory") {
    const Toy toy;
    const std::string first = toy.dir + "/first.gguf", last = toy.dir + "/last.gguf", run = toy.dir + "/next";
    must(toy.args("run", {"--steps", "1", "--model", "llama:d1"}));
    must({"convert", toy.dir + "/run", first});
    CHECK(parts_of(first)["general.name"].texts[0] == "first");    // by default the file's name
    Parts p = parts_of(first);
    const std::vector<std::string> languages = {"en", "no", "pt-BR: \"x\""};
    p["general.name"] = GgufValue::text("Toy: the \"first\" #1"), p["general.license"] = GgufValue::text("apache-2.0");
    p["general.languages"] = GgufValue::text_array(languages);
    write_file(first, p.written());
    must(toy.args("next", {"--steps", "1", "--from", first}));
    CHECK(contains(read_file(run + "/README.md"), "\nlicense: \"apache-2.0\"\nlanguage:\n- \"en\"\n- \"no\"\n"));
    must({"convert", run, last, "--type", "q8_0"});
    must({"convert", last, toy.dir + "/hf"});
    must({"convert", toy.dir + "/hf", toy.dir + "/again.gguf"});
    for (const std::string& path : {last, toy.dir + "/again.gguf"}) {
        Parts q = parts_of(path);
        CHECK(q["general.name"].texts == p["general.name"].texts);
        CHECK(q["general.license"].texts == p["general.license"].texts);
        CHECK(q["general.languages"].texts == languages);
        CHECK(q["general.languages"].array);
    }
    const std::string own = "---\nlicense: mit\n---\nmy own\n";    // stays, though it has a card
    write_file(run + "/README.md", own);
    must(toy.args("next", {"--steps", "2", "--from", first, "--resume", "auto"}));
    CHECK(read_file(run + "/README.md") == own);
}

TEST_CASE("model card: the head of a README.md as people write it") {
    const ModelCard card = card_parse(
        "---\nlicense: mit # see LICENSE\nlanguage: [en, 'de', \"fr\"]\nmodel_name: 'A model: B'\ntags:\n  - text\n"
        "  - x\n"
        "datasets:\n- c4\ndescription: |\n  many\n  lines\nmetrics: {a: b}\n---\nlicense: gpl\n");
    CHECK(card == ModelCard{{"license", {"mit"}},
                            {"language", {"en", "de", "fr"}},
                            {"model_name", {"A model: B"}},
                            {"tags", {"text", "x"}}});
    CHECK(card_parse("# A page\nlicense: mit\n").empty());
    CHECK(card_parse("").empty());
    CHECK(card_parse(card_readme(card)) == card);
}

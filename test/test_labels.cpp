// test_labels.cpp - classifiers: files of texts with labels, scores, training and evaluation.
#include <bit>

#include "infer/eval/labels.h"
#include "toy_run.h"

namespace {
LabelScores of_classes(const std::vector<int>& expected, const std::vector<int>& guessed, int K) {
    std::vector<int64_t> counts(size_t(K * K));
    for (size_t i = 0; i < expected.size(); i++) counts[size_t(expected[i] * K + guessed[i])]++;
    return scores_of(counts, K);
}
}    // namespace

// The figures are scikit-learn's and SciPy's.
TEST_CASE("labels: scores are those of scikit-learn") {
    const LabelScores three = of_classes({0, 0, 0, 1, 1, 2, 2, 2, 2, 1}, {0, 1, 0, 1, 2, 2, 2, 0, 2, 1}, 3);
    CHECK(three.targets == 10);
    CHECK(three.accuracy == doctest::Approx(0.7));
    CHECK(three.macro_f1 == doctest::Approx(0.6944444444));
    CHECK(three.matthews == doctest::Approx(0.5454545454));
    const LabelScores two = of_classes({0, 0, 1, 1, 1, 0}, {0, 1, 1, 1, 0, 0}, 2);
    CHECK(two.f1 == doctest::Approx(0.6666666667));
    CHECK(two.matthews == doctest::Approx(0.3333333333));
    CHECK(of_classes({0, 0, 1}, {1, 1, 1}, 2).matthews == 0);
    const LabelScores numbers = scores_of({1, 2.5, 2.5, -1, 4}, {0.5, 2, 3, 0, 3});
    CHECK(numbers.pearson == doctest::Approx(0.9184518942));
    CHECK(numbers.spearman == doctest::Approx(0.9210526316));
    CHECK(scores_of({1, 1}, {2, 3}).pearson == 0);
}

TEST_CASE("labels: a file's classes and kind; what is wrong in it is named") {
    const std::string file = temporary_directory() + "/x.jsonl";
    auto read = [&](const std::string& lines) {
        write_file(file, lines);
        return read_labels(file);
    };
    auto refused = [&](const std::string& lines, const char* what) {
        const Status s = read(lines).status;
        CAPTURE(s.message);
        CHECK(s.code == Exit::input);
        CHECK(contains(s.message, what));
    };
    const LabelledFile words =
        read("{\"text\": \"a\", \"label\": \"no\"}\n{\"text\": \"b\", \"pair\": \"c\", \"label\": \"ja\"}\n").value;
    CHECK(words.classes == std::vector<std::string>{"ja", "no"});
    CHECK((words.lines[1].has_pair && words.lines[1].pair == "c" && !words.lines[0].has_pair));
    CHECK(read("{\"text\": \"a\", \"label\": 10}\n{\"text\": \"b\", \"label\": 9}\n").value.classes ==
          std::vector<std::string>{"9", "10"});
    CHECK(read("{\"text\": \"a\", \"label\": 1}\n{\"text\": \"b\", \"label\": 0.5}\n").value.numbers);
    const LabelledFile apart = read("{\"text\": [\"a\", \"b\"], \"labels\": [\"X\", \"O\"]}\n").value;
    CHECK((apart.kind == HeadKind::positions && apart.classes.size() == 2));
    refused("", "found none");
    refused("[1]\n", "expected a JSON object");
    refused("{\"text\": \"a\"}\n", "label");
    refused("{\"text\": 3, \"label\": 1}\n", "text");
    refused("{\"text\": \"a\", \"label\": null}\n", "label");
    refused("{\"text\": \"a\", \"label\": [1]}\n", "label");
    refused("{\"text\": [\"a\"], \"labels\": [\"X\", \"O\"]}\n", "as long as text");
    refused("{\"text\": [1], \"labels\": [\"X\"]}\n", "list of words");
    refused("{\"text\": [\"a\"], \"labels\": [0.5]}\n", "expected classes");
    refused("{\"text\": \"a\", \"label\": \"x\"}\n{\"text\": [\"a\"], \"labels\": [\"X\"]}\n",
            "as in the lines before");
    refused("{\"text\": \"a\", \"label\": \"x\"}\n{\"text\": \"a\", \"label\": 0.5}\n", "numbers alone");
}

TEST_CASE("labels: a masked model gets a head and learns classes; eval measures them and a resumed run is the same") {
    Toy toy;
    std::string lines;
    for (int i = 0; i < 64; i++)
        lines += formatted("{\"text\": \"%s\", \"pair\": \"%s\", \"label\": \"%s\"}\n", i % 2 ? "abab" : "dede",
                           i % 4 < 2 ? "xyx" : "ab", i % 2 ? "first" : "other");
    write_file(toy.dir + "/labels.jsonl", lines);
    must({"train", "--data", toy.dir + "/train.bin", "--tokenizer", toy.dir + "/tok.json", "--model", "bert:d1",
          "--objective", "mlm", "--batch", "4", "--seq-len", "16", "--steps", "4", "--lr", "1e-3", "--out",
          toy.dir + "/mlm"});
    std::vector<std::string> args = {"train",
                                     "--from",
                                     toy.dir + "/mlm",
                                     "--labels",
                                     toy.dir + "/labels.jsonl",
                                     "--labels-val",
                                     toy.dir + "/labels.jsonl",
                                     "--batch",
                                     "8",
                                     "--steps",
                                     "40",
                                     "--lr",
                                     "2e-3",
                                     "--save-every",
                                     "20",
                                     "--keep",
                                     "0",
                                     "--dtype",
                                     "fp32",
                                     "--out",
                                     toy.dir + "/cls"};
    must(args);
    const std::string scores = must({"eval", toy.dir + "/cls", "--labels", toy.dir + "/labels.jsonl", "--json"}).out;
    CHECK(number(scores, "\"accuracy\":") == 1);
    CHECK(number(scores, "\"f1\":") == 1);
    CHECK(contains(read_file(toy.newest("cls") + "/config.json"), "\"BertForSequenceClassification\""));
    CHECK(contains(read_file(toy.newest("cls") + "/config.json"), "\"0\": \"first\""));
    CHECK(contains(toy.metrics("cls"), "\"matthews\":"));
    Toy::set(args, "--out", toy.dir + "/again");
    args.insert(args.end(), {"--resume", toy.dir + "/cls/step_00000020"});
    Toy::set(args, "--from", toy.dir + "/mlm");
    must(args, 0, "resumed from");
    CHECK(same_file(toy.newest("cls") + "/model.safetensors", toy.newest("again") + "/model.safetensors"));
    // A model of classes measures no text, and one of tokens has no classes.
    must({"eval", toy.dir + "/cls", "--data", toy.dir + "/val.bin"}, 2, "eval --labels");
    must({"eval", toy.dir + "/mlm", "--labels", toy.dir + "/labels.jsonl"}, 2, "no classifier");
    must({"train", "--from", toy.dir + "/cls", "--data", toy.dir + "/train.bin", "--steps", "1", "--out",
          toy.dir + "/x"},
         2, "predicts no tokens");
}

TEST_CASE("labels: numbers and the classes of words are learnt") {
    Toy toy;
    std::string numbers, words;
    for (int i = 0; i < 64; i++) {
        numbers += formatted("{\"text\": \"%s\", \"label\": %s}\n", i % 2 ? "abab" : "dede", i % 2 ? "-0.5" : "1");
        words += formatted("{\"text\": [\"%s\", \"de\"], \"labels\": [\"%s\", \"D\"]}\n", i % 2 ? "ab" : "de",
                           i % 2 ? "A" : "D");
    }
    write_file(toy.dir + "/numbers.jsonl", numbers);
    write_file(toy.dir + "/words.jsonl", words);
    for (const std::string name : {"numbers", "words"}) {
        CAPTURE(name);
        must({"train", "--labels", toy.dir + "/" + name + ".jsonl", "--tokenizer", toy.dir + "/tok.json", "--model",
              "distilbert:d1", "--batch", "8", "--steps", "60", "--lr", "2e-3", "--dtype", "fp32", "--out",
              toy.dir + "/" + name + "-run"});
        const std::string scores =
            must({"eval", toy.dir + "/" + name + "-run", "--labels", toy.dir + "/" + name + ".jsonl", "--json"}).out;
        CAPTURE(scores);
        if (name == "words") CHECK(number(scores, "\"accuracy\":") == 1);
        else CHECK(number(scores, "\"mse\":") < 0.02);
        if (name == "numbers") CHECK(number(scores, "\"pearson\":") > 0.95);
    }
}

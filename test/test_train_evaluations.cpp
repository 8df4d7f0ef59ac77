// test_train_evaluations.cpp - train --eval-tasks: at each validation, after a stop, on ranks.
#include <nlohmann/json.hpp>

#include "toy_ranks.h"

namespace {
typedef nlohmann::json Golden;

// Small files for the toy's tokenizer of bytes and its context of 32.
struct EvaluatedToy : RanksToy {
    std::string tasks;
    EvaluatedToy() {
        std::string boolq, lambada;
        for (int i = 0; i < 31; i++) {
            const std::string letters = {char('a' + i % 26), char('a' + i * 7 % 26), ' ', char('a' + i * 3 % 26)};
            boolq += Golden({{"passage", letters + letters}, {"question", letters}, {"label", i % 2}}).dump() + "\n";
            lambada += Golden({{"text", letters + " " + letters}}).dump() + "\n";
        }
        write_file(dir + "/boolq.jsonl", boolq);
        write_file(dir + "/lambada.jsonl", lambada);
        tasks = "boolq=" + dir + "/boolq.jsonl,lambada=" + dir + "/lambada.jsonl";
    }
    // The rows with evaluations, by step.
    std::map<int, Golden> evaluations(const std::string& out) const {
        std::map<int, Golden> found;
        std::istringstream lines(metrics(out));
        for (std::string line; std::getline(lines, line);)
            if (contains(line, "\"eval\":")) found[int(number(line, "\"step\":"))] = Golden::parse(line)["eval"];
        return found;
    }
};
}    // namespace

TEST_CASE("train evaluations: at each validation, with the figures of eval, and again after a stop") {
    EvaluatedToy toy;
    const std::vector<std::string> options = {"--steps", "6", "--eval-every", "2",      "--save-every", "2",
                                              "--keep",  "0", "--eval-tasks", toy.tasks};
    const ProcessResult whole = must(toy.args("whole", options), 0, "evaluated after step 4: boolq acc ");
    const std::map<int, Golden> found = toy.evaluations("whole");
    REQUIRE(found.size() == 3);
    for (int step : {2, 4, 6}) {
        CHECK(found.at(step)["boolq"]["items"] == 31);
        const ProcessResult r = must({"eval", toy.dir + "/whole", "--checkpoint", std::to_string(step), "--task",
                                      "boolq", "--file", toy.dir + "/boolq.jsonl", "--task", "lambada", "--file",
                                      toy.dir + "/lambada.jsonl", "--json", "--dtype", "fp32"});
        const Golden same = Golden::parse(r.out);
        CHECK(found.at(step)["boolq"]["acc"] == same["boolq"]["acc"]);
        CHECK(found.at(step)["lambada"]["perplexity"].get<double>() ==
              doctest::Approx(same["lambada"]["perplexity"].get<double>()).epsilon(1e-4));
    }
    CHECK(found.at(2)["lambada"]["perplexity"] != found.at(6)["lambada"]["perplexity"]);
    // A run that stops after step 2 and goes on has the rows of the one that did not.
    must(toy.args("parts", options), 0);
    fs::remove_all(toy.dir + "/parts/step_00000006");
    fs::remove_all(toy.dir + "/parts/step_00000004");
    must(toy.args("parts", with(options, {"--resume", "auto"})), 0);
    CHECK(toy.metrics("parts") == toy.metrics("whole"));
    // The weights do not change.
    must(toy.args("none", {"--steps", "6", "--eval-every", "2", "--save-every", "2"}), 0);
    CHECK(same_file(toy.newest("none") + "/model.safetensors", toy.newest("whole") + "/model.safetensors"));
}

TEST_CASE("train evaluations: without --val; wrong files end the run before its first step") {
    EvaluatedToy toy;
    std::vector<std::string> args =
        toy.args("a", {"--steps", "2", "--eval-every", "1", "--eval-tasks", toy.tasks, "--eval-limit", "5"});
    const auto val = std::find(args.begin(), args.end(), "--val");
    args.erase(val, val + 2);
    const auto tokens = std::find(args.begin(), args.end(), "--eval-tokens");
    args.erase(tokens, tokens + 2);
    must(args, 0);
    CHECK(toy.evaluations("a").size() == 2);
    CHECK(toy.evaluations("a").at(1)["boolq"]["items"] == 5);
    CHECK(!contains(toy.metrics("a"), "val_loss"));
    auto refused = [&](const std::string& tasks, int code, const std::string& says) {
        must(toy.args("b", {"--steps", "2", "--eval-tasks", tasks}), code, says);
        CHECK(!fs::exists(toy.dir + "/b"));
    };
    refused("piqa=" + toy.dir + "/boolq.jsonl", 3, "item of task boolq");
    refused("boolq", 2, "NAME=FILE");
    refused("boolqs=x", 2, "boolq");
    refused("boolq=" + toy.dir + "/none.jsonl", 3, "none.jsonl");
    refused("core=" + toy.dir, 3, "core.yaml");
    refused(toy.tasks + "," + toy.tasks, 2, "given twice");
    refused("boolq=-", 2, "standard input");
    must(toy.args("b", {"--steps", "2", "--eval-limit", "3"}), 2, "--eval-tasks");
    // Items of a bundle are read before the first step, too.
    const std::string bundle = fs::absolute("test/golden/eval/bundle").string();
    must(toy.args("b", {"--steps", "2", "--eval-tasks", "core=" + bundle, "--eval-limit", "2"}), 2, "--eval-limit 2");
    const fs::path copy = toy.dir + "/bundle";
    fs::copy(bundle, copy, fs::copy_options::recursive);
    write_file((copy / "eval_data/some/language.jsonl").string(), "{\"context\": \"a\"}\n");
    refused("core=" + copy.string(), 3, "language.jsonl line 1");
}

TEST_CASE("train evaluations: ranks split the items and agree") {
    NEED_MPIRUN();
    EvaluatedToy toy;
    const std::string all = toy.tasks + ",core=" + fs::absolute("test/golden/eval/bundle").string();
    for (int ranks : {1, 3}) {
        const ProcessResult r =
            toy.run(ranks, std::to_string(ranks),
                    {"--total-batch", "384", "--lr", "0", "--eval-every", "4", "--eval-tasks", all});
        INFO(r.err);
        REQUIRE(r.exit_code == 0);
    }
    CHECK(toy.evaluations("1").size() == 2);
    CHECK(toy.evaluations("3") == toy.evaluations("1"));
}

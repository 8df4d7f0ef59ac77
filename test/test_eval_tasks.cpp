// test_eval_tasks.cpp - evaluations against lm-evaluation-harness (dev/golden_eval.py).
#include "infer/load.h"
#include "infer/tasks/core.h"
#include "infer/tasks/eval_tasks.h"
#include "infer/tasks/python_random.h"

#include <filesystem>
#include <nlohmann/json.hpp>
#include <sstream>

#include "test.h"
#include "toy_model.h"
#include "toy_run.h"

using Strings = std::vector<std::string>;
using Golden = nlohmann::json;

namespace {
const std::string GOLDEN = "test/golden/eval/";

// A golden model, with room for `rows` tokens in a pass.
struct Loaded {
    LoadedModel m;
    explicit Loaded(const std::string& name, int rows = 512) {
        ModelOptions options;
        options.model = GOLDEN + name;
        DeviceOptions device;
        device.device = "cpu";
        device.dtype = "fp32";
        const Status s = load_model(m, options, device, true, [&](const Config& c, bool) {
            return Capacity{int(ceil_div(rows, std::min(rows, c.T))), std::min(rows, c.T)};
        });
        REQUIRE_MESSAGE(s.ok(), s.message);
    }
    Model& model() { return *m.model; }
};
const EvalTask& task_of(const std::string& name) {
    const Result<std::vector<const EvalTask*>> found = tasks_named(name);
    REQUIRE(found.ok());
    return *found.value[0];
}
TaskOptions options_of(const Golden& run, int context) {
    const std::string file = GOLDEN + run["file"].get<std::string>();
    return {.file = file + ".jsonl",
            .shots_file = run["where"] == "pool" && run["shots"] > 0 ? file + "_pool.jsonl" : "",
            .shots = run["shots"],
            .limit = run["limit"],
            .context = context};
}
PreparedTask prepared(Loaded& l, const std::string& task, const TaskOptions& options) {
    Result<PreparedTask> t = prepare_task(task_of(task), l.m.tokenizer, options);
    REQUIRE_MESSAGE(t.ok(), t.status.message);
    return t.take();
}
RunResult ran(Loaded& l, const PreparedTask& t, const RunOptions& options = {}) {
    Result<RunResult> r = run_task(l.model(), l.m.tokenizer, t, options);
    REQUIRE_MESSAGE(r.ok(), r.status.message);
    return r.take();
}
std::vector<Likelihood> scored(Loaded& l, const std::vector<LikelihoodRequest>& requests, int groups = 0) {
    Result<std::vector<Likelihood>> found = likelihoods(l.model(), requests, {groups, true, {}});
    REQUIRE_MESSAGE(found.ok(), found.status.message);
    return found.take();
}
Golden read_json(const std::string& name) { return Golden::parse(read_file(GOLDEN + name)); }

// Log-likelihoods by item, each within 1e-4, and what is greedy.
void check_likelihoods(Loaded& l, const Golden& run, const PreparedTask& t) {
    const std::vector<Likelihood> found = scored(l, t.requests);
    double worst = 0;
    int greedy = 0, different = 0;
    for (size_t i = 0; i < t.items.size(); i++) {
        double sum = 0;
        for (size_t k = t.firsts[i]; k < t.firsts[i + 1]; k++) {
            sum += found[k].logprob;
            if (run["task"] == "wikitext") continue;
            const size_t answer = k - t.firsts[i];
            worst = std::max(worst, std::fabs(found[k].logprob - run["logprobs"][i][answer].get<double>()));
            different += found[k].greedy != (run["greedy"][i][answer] == 1);
            greedy += found[k].greedy;
        }
        if (run["task"] == "wikitext")
            worst = std::max(worst, std::fabs(sum / run["logprobs"][i][0].get<double>() - 1) * 10);
    }
    CHECK(worst < 1e-4);
    CHECK(different == 0);
    if (run["task"] == "lambada" && run["shots"] == 0 && contains(l.m.path, "gpt2")) CHECK(greedy >= 10);
}
}    // namespace

TEST_CASE("eval tasks: log-likelihoods and metrics are those of lm-evaluation-harness") {
    for (const char* name : {"gpt2", "llama"}) {
        Loaded l(name);
        const Golden runs = read_json(std::string(name) + ".json");
        CHECK(runs.size() == 18);
        for (const Golden& run : runs) {
            INFO(name << " " << run["task"] << " with " << run["shots"] << " examples");
            const PreparedTask t = prepared(l, run["task"], options_of(run, l.model().c.T));
            REQUIRE(t.items.size() == (run.contains("texts") ? run["texts"] : run["logprobs"]).size());
            const RunResult r = ran(l, t, {.each = true});
            std::vector<double> golden = {};
            if (run["task"] == "gsm8k")
                for (const char* filter : {"exact_match,strict-match", "exact_match,flexible-extract"})
                    golden.push_back(run["metrics"][filter]);
            else
                for (const MetricResult& m : r.result.metrics) golden.push_back(run["metrics"][m.name]);
            REQUIRE(golden.size() == r.result.metrics.size());
            for (size_t k = 0; k < golden.size(); k++) {
                INFO(r.result.metrics[k].name);
                const bool exact = r.result.metrics[k].name.starts_with("acc") && run["task"] != "truthfulqa_mc2";
                CHECK(std::fabs(r.result.metrics[k].value - golden[k]) <= (exact ? 0 : 3e-5) * std::fabs(golden[k]));
            }
            REQUIRE(r.samples.size() == t.items.size());
            if (run["task"] != "gsm8k") check_likelihoods(l, run, t);
            for (size_t i = 0; i < t.items.size() && run["task"] == "gsm8k"; i++)
                CHECK(Golden::parse(r.samples[i].text())["text"] == run["texts"][i]);
        }
    }
}

TEST_CASE("eval tasks: results have the same bits for any number of items at a time, and any size of a pass") {
    Loaded large("llama", 2048), small("llama", 24);
    for (const char* task : {"hellaswag", "winogrande", "mmlu", "truthfulqa_mc1"}) {
        INFO(task);
        const std::string file = std::string(task).starts_with("truth") ? "truthfulqa" : task;
        const TaskOptions options = {.file = GOLDEN + file + ".jsonl", .limit = 40, .context = large.model().c.T};
        const PreparedTask t = prepared(large, task, options);
        const std::vector<Likelihood> first = scored(large, t.requests);
        for (const std::vector<Likelihood>& other :
             {scored(large, t.requests, 1), scored(large, t.requests, 7), scored(small, t.requests)})
            for (size_t i = 0; i < first.size(); i++) {
                CHECK(other[i].logprob == first[i].logprob);
                CHECK(other[i].greedy == first[i].greedy);
            }
    }
}

TEST_CASE("eval tasks: a beginning that many groups share leaves each request's score as it is alone") {
    Loaded l("gpt2", 100);
    for (int from : {30, 36, 40, 44}) {    // the continuation begins inside of the shared 40 tokens, or behind
        std::vector<LikelihoodRequest> requests;
        for (int i = 0; i < 24; i++) {
            LikelihoodRequest r = {{}, from, i / 2};
            for (int k = 0; k < 46 + i % 5; k++)
                r.tokens.push_back(int(philox(4, k < 40 ? 0 : 1 + uint64_t(i), uint64_t(k)).v[0] % 512));
            requests.push_back(r);
        }
        const std::vector<Likelihood> together = scored(l, requests);
        for (size_t i = 0; i < requests.size(); i++)
            CHECK(together[i].logprob == doctest::Approx(scored(l, {requests[i]})[0].logprob).epsilon(1e-6));
    }
}

namespace {
std::vector<Item> items(const char* task, const std::string& path) {
    Result<std::vector<Item>> found = read_items(task_of(task), path);
    REQUIRE_MESSAGE(found.ok(), found.status.message);
    return found.take();
}
void check_equal(const std::vector<Item>& a, const std::vector<Item>& b) {
    REQUIRE(a.size() == b.size());
    for (size_t i = 0; i < a.size(); i++) {
        CHECK(a[i].prompts == b[i].prompts);
        CHECK(a[i].answers == b[i].answers);
        CHECK(a[i].gold == b[i].gold);
        CHECK(a[i].truths == b[i].truths);
        CHECK(a[i].description == b[i].description);
    }
}
std::vector<nlohmann::ordered_json> lines_of(const std::string& file) {
    std::vector<nlohmann::ordered_json> all;
    std::istringstream in(read_file(GOLDEN + file));
    for (std::string line; std::getline(in, line);) all.push_back(nlohmann::ordered_json::parse(line));
    return all;
}
}    // namespace

TEST_CASE("eval tasks: each published form of a file gives the same items") {
    const std::string dir = temporary_directory();
    // ARC and OpenBookQA by AI2: the choices are objects inside of the question.
    for (const char* task : {"arc_easy", "openbookqa"}) {
        const std::string file = std::string(task) == "arc_easy" ? "arc.jsonl" : "openbookqa.jsonl";
        std::string text;
        for (auto& j : lines_of(file)) {
            nlohmann::ordered_json choices = nlohmann::ordered_json::array();
            for (size_t i = 0; i < j["choices"]["text"].size(); i++)
                choices.push_back({{"text", j["choices"]["text"][i]}, {"label", j["choices"]["label"][i]}});
            const auto& stem = j.contains("question") ? j["question"] : j["question_stem"];
            text +=
                nlohmann::ordered_json(
                    {{"id", "x"}, {"question", {{"stem", stem}, {"choices", choices}}}, {"answerKey", j["answerKey"]}})
                    .dump() +
                "\n\n";
        }
        write_file(dir + "/ai2.jsonl", text);
        check_equal(items(task, GOLDEN + file), items(task, dir + "/ai2.jsonl"));
    }
    // BoolQ's answer is a Boolean; all in a JSON array.
    nlohmann::ordered_json array = nlohmann::ordered_json::array();
    for (auto& j : lines_of("boolq.jsonl"))
        array.push_back({{"question", j["question"]}, {"answer", j["label"] == 1}, {"passage", j["passage"]}});
    write_file(dir + "/boolq.json", array.dump(1));
    check_equal(items("boolq", GOLDEN + "boolq.jsonl"), items("boolq", dir + "/boolq.json"));
    // TruthfulQA's authors publish objects from answer to label. Equal answers would be one key.
    array.clear();
    for (auto& j : lines_of("truthfulqa.jsonl")) {
        nlohmann::ordered_json targets = nlohmann::ordered_json::object();
        for (size_t i = 0; i < j["mc2_targets"]["choices"].size(); i++)
            targets[j["mc2_targets"]["choices"][i].get<std::string>()] = j["mc2_targets"]["labels"][i];
        if (targets.size() == j["mc2_targets"]["choices"].size())
            array.push_back({{"question", j["question"]}, {"mc2_targets", targets}});
    }
    write_file(dir + "/mc.json", array.dump());
    const std::vector<Item> all = items("truthfulqa_mc2", dir + "/mc.json");
    CHECK(all.size() > 20);
    CHECK(all[0].answers == items("truthfulqa_mc2", GOLDEN + "truthfulqa.jsonl")[0].answers);
    // MMLU's CSV has no header; the subject is the file's name.
    std::string csv;
    auto quoted = [](std::string text) {
        for (size_t at = 0; (at = text.find('"', at)) != text.npos; at += 2) text.insert(at, "\"");
        return "\"" + text + "\"";
    };
    for (auto& j : lines_of("mmlu.jsonl")) {
        csv += quoted(j["question"]);
        for (const auto& choice : j["choices"]) csv += "," + quoted(choice);
        csv += std::string(",") + "ABCD"[j["answer"].get<size_t>()] + "\r\n";
    }
    write_file(dir + "/abstract_algebra_test.csv", csv);
    check_equal(items("mmlu", GOLDEN + "mmlu.jsonl"), items("mmlu", dir + "/abstract_algebra_test.csv"));
}

TEST_CASE("eval tasks: Python's random numbers, samples and shuffles") {
    PythonRandom random(1234);
    CHECK(random.sample(12, 3) == std::vector<int>{7, 1, 0});
    CHECK(random.sample(100, 6) == std::vector<int>{11, 74, 4, 85, 88, 10});
    CHECK(random.sample(5000, 4) == std::vector<int>{806, 2905, 1939, 142});
    CHECK(random.below(1) == 0);
    std::vector<int> deck = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9};
    PythonRandom(1337).shuffle(deck);
    CHECK(deck == std::vector<int>{0, 3, 7, 2, 1, 6, 4, 5, 8, 9});
}

TEST_CASE("eval tasks: the standard error of a mean, and that of a mean over subjects") {
    CHECK(mean_metric("acc", {0, 1, 1, 0}).stderr_of_mean == doctest::Approx(std::sqrt(1.0 / 3) / 2).epsilon(1e-12));
    CHECK(std::isnan(mean_metric("acc", {1}).stderr_of_mean));
    // Variances within the subjects: 1/3 of three values, 1/4 of four (n - 1).
    const MetricResult m = mean_metric("acc", {0, 1, 1, 1, 1, 0, 1}, {"a", "b", "a", "a", "b", "b", "b"});
    CHECK(m.value == doctest::Approx(5.0 / 7).epsilon(1e-12));
    CHECK(m.stderr_of_mean == doctest::Approx(std::sqrt((2.0 / 3 + 3.0 / 4) / 5 / 7)).epsilon(1e-12));
}

TEST_CASE("eval tasks: MMLU's limit and figures are by subject") {
    Loaded l("gpt2");
    std::string text;
    for (int i = 0; i < 6; i++)
        text += Golden({{"question", "Q" + std::to_string(i)},
                        {"choices", {"a", "b", "c", "d"}},
                        {"answer", i % 4},
                        {"subject", i < 3 ? "virology" : "law"}})
                    .dump() +
                "\n";
    const std::string path = temporary_directory() + "/m.jsonl";
    write_file(path, text);
    const PreparedTask t = prepared(l, "mmlu", {.file = path, .limit = 2, .context = l.model().c.T});
    REQUIRE(t.items.size() == 4);
    CHECK(contains(t.items[2].prompts[0], "Q3"));
    const Golden found = Golden::parse(ran(l, t).result.json().text());
    CHECK(found["subjects"]["law"]["items"] == 2);
    CHECK(found["subjects"]["virology"]["acc"].get<double>() + found["subjects"]["law"]["acc"].get<double>() ==
          doctest::Approx(2 * found["acc"].get<double>()));
}

TEST_CASE("eval tasks: a text of any length is one item; its page as lm-evaluation-harness cleans it") {
    const std::string path = temporary_directory() + "/book.txt";
    write_file(path, std::string(17 << 20, 'x') + "\n");
    const std::vector<Item> found = items("perplexity", path);
    REQUIRE(found.size() == 1);
    CHECK(found[0].answers[0].size() == (17u << 20) + 1);
    CHECK(task_of("wikitext").clean("a /' 5/ b s 't") == "a /'[0-9]/ b s't");
}

TEST_CASE("eval tasks: numbers in answers to GSM8K") {
    CHECK(strict_number("so 3\n#### -1,234.5 apples") == "-1,234.5");
    CHECK(strict_number("#### x #### 7") == "7");
    CHECK(strict_number("the answer is 7") == "[invalid]");
    CHECK(flexible_number("3 and $4.50, then -7") == "-7");
    CHECK(flexible_number("costs $1,000.") == "$1,000.");
    CHECK(flexible_number("- $ x") == "[invalid]");
    CHECK(flexible_number("12-5") == "-5");
    CHECK(numbers_match("$1,000.", "He pays.\n#### 1000"));
    CHECK(numbers_match("5.\n", "#### 5\n"));
    CHECK(!numbers_match("5.0", "#### 5"));
    CHECK(!numbers_match("[invalid]", "#### 5"));
}

TEST_CASE("eval tasks: an answer to GSM8K counts where it is the file's") {
    Loaded l("gpt2");    // a random model, which writes no number: its answer is [invalid]
    const std::string path = temporary_directory() + "/g.jsonl";
    std::string text;
    for (const char* answer : {"#### 7", "[invalid]", "#### 8", "#### 9"})
        text += Golden({{"question", "How many?"}, {"answer", answer}}).dump() + "\n";
    write_file(path, text);
    const RunResult r = ran(l, prepared(l, "gsm8k", {.file = path, .shots = 0, .context = l.model().c.T}));
    REQUIRE(r.result.metrics.size() == 2);
    CHECK(r.result.metrics[0].value == 0.25);
}

TEST_CASE("eval tasks: windows score each token of a text once, after as much context as the stride leaves") {
    std::vector<int> text(100);
    for (int i = 0; i < 100; i++) text[size_t(i)] = i + 1;
    for (int stride : {1, 7, 16}) {
        const std::vector<LikelihoodRequest> windows = rolling_windows(text, 0, 16, stride, 5);
        int next = 1;
        for (size_t w = 0; w < windows.size(); w++) {
            const LikelihoodRequest& r = windows[w];
            CHECK(r.group == int64_t(5 + w));
            CHECK(r.tokens.size() <= 17);
            CHECK((w == 0 || r.tokens.size() == 17));
            if (w > 0 && w + 1 < windows.size()) CHECK(r.from == 17 - stride);
            for (size_t k = size_t(r.from); k < r.tokens.size(); k++) CHECK(r.tokens[k] == next++);
        }
        CHECK(next == 101);
    }
    CHECK(rolling_windows({}, 0, 16, 16, 0).empty());
    CHECK(count_words("a b\n\n c") == 3);
    CHECK(count_words(" a ") == 3);    // as Python's re.split counts
    CHECK(count_words("") == 1);
}

TEST_CASE("eval tasks: a window's score is the sum over its tokens, each after what the window has before it") {
    Loaded l("gpt2");
    const std::string file = GOLDEN + "wikitext.jsonl";
    auto windows = [&](int stride) {
        return prepared(l, "wikitext", {.file = file, .limit = 4, .context = 64, .stride = stride});
    };
    const PreparedTask apart = windows(0), same = windows(64), half = windows(32);
    CHECK(apart.requests.size() == same.requests.size());
    CHECK(!prepare_task(task_of("wikitext"), l.m.tokenizer, {.file = file, .context = 64, .stride = 65}).ok());
    CHECK(half.requests.size() > apart.requests.size() * 3 / 2);
    // Each token's log-probability, computed by one window each.
    const std::vector<LikelihoodRequest>& r = half.requests;
    const std::vector<Likelihood> found = scored(l, r);
    for (size_t i = 0; i < r.size(); i += 5) {
        std::vector<LikelihoodRequest> single;
        for (size_t k = size_t(r[i].from); k < r[i].tokens.size(); k++)
            single.push_back({{r[i].tokens.begin(), r[i].tokens.begin() + ptrdiff_t(k) + 1}, int(k), int64_t(k)});
        double sum = 0;
        for (const Likelihood& one : scored(l, single)) sum += one.logprob;
        CHECK(found[i].logprob == doctest::Approx(sum).epsilon(1e-6));
    }
}

namespace {
std::vector<RunResult> core_of(Loaded& l, const std::string& bundle) {
    const Result<std::vector<PreparedCoreTask>> tasks =
        prepare_core(l.m.tokenizer, {.file = bundle, .context = l.model().c.T});
    REQUIRE_MESSAGE(tasks.ok(), tasks.status.message);
    Result<std::vector<RunResult>> found = run_core(l.model(), tasks.value, {});
    REQUIRE_MESSAGE(found.ok(), found.status.message);
    return found.take();
}
// A bundle of one task without examples.
std::string bundle_of(const std::string& items) {
    const std::string dir = temporary_directory();
    std::filesystem::create_directories(dir + "/eval_data");
    write_file(dir + "/core.yaml",
               "icl_tasks:\n- label: one\n  dataset_uri: x.jsonl\n  num_fewshot: [0]\n"
               "  icl_task_type: multiple_choice\n");
    write_file(dir + "/eval_meta_data.csv", "Eval Task,Random baseline\none,50\n");
    write_file(dir + "/eval_data/x.jsonl", items);
    return dir;
}
}    // namespace

TEST_CASE("eval tasks: a choice of CORE that another one begins with counts as in nanochat") {
    Loaded l("gpt2");
    auto item = [](bool short_first, int gold) {
        const char *a = "cut it", *b = "cut it with a knife";
        return Golden({{"query", "To eat bread,"},
                       {"gold", gold},
                       {"choices", {short_first ? a : b, short_first ? b : a}}})
                   .dump() +
               "\n";
    };
    // The mean of no losses is not a number: Python's min takes it only if it is the first.
    const std::string items = item(true, 0) + item(true, 0) + item(false, 0) + item(true, 1);
    const std::vector<RunResult> found = core_of(l, bundle_of(items));
    CHECK(found[0].result.items == 4);
    CHECK(found[0].result.metrics[0].value == 0.75);
    CHECK(found[0].result.metrics[1].value == 0.5);
}

TEST_CASE("eval tasks: log-likelihoods that are not finite end each task, or are null in training") {
    Loaded l("gpt2");
    typed<float>(l.model(), l.model().w.wpe)[0] = NAN;
    const PreparedTask piqa = prepared(l, "piqa", {.file = GOLDEN + "piqa.jsonl", .limit = 4, .context = 64});
    const Result<std::vector<PreparedCoreTask>> core =
        prepare_core(l.m.tokenizer, {.file = GOLDEN + "bundle", .limit = 4, .context = 64});
    REQUIRE(core.ok());
    CHECK(run_task(l.model(), l.m.tokenizer, piqa, {}).status.code == Exit::diverged);
    CHECK(run_core(l.model(), core.value, {}).status.code == Exit::diverged);
    const RunOptions training = {.not_finite_is_nan = true};
    CHECK(Golden::parse(ran(l, piqa, training).result.json().text())["acc"].is_null());
    const Result<std::vector<RunResult>> found = run_core(l.model(), core.value, training);
    REQUIRE(found.ok());
    CHECK(std::isnan(found.value.back().result.metrics[0].value));
}

TEST_CASE("eval tasks: CORE of a bundle") {
    const Golden golden = read_json("core.json");
    for (const char* name : {"gpt2", "llama"}) {
        Loaded l(name);
        const std::vector<RunResult> found = core_of(l, GOLDEN + "bundle/");
        REQUIRE(found.size() == 4);
        for (const char* task : {"choice", "schema", "language"}) {
            const TaskResult& r = found[size_t(task[0] == 's' ? 1 : task[0] == 'l' ? 2 : 0)].result;
            CHECK(r.task == std::string("core/") + task);
            CHECK(r.metrics[0].value == golden[name][task]["acc"].get<double>());
            CHECK(r.metrics[1].value == doctest::Approx(golden[name][task]["centred"].get<double>()).epsilon(1e-12));
        }
        CHECK(found[3].result.metrics[0].value == doctest::Approx(golden[name]["core"].get<double>()).epsilon(1e-12));
    }
    CHECK(centred(0.25, 25) == 0);
    CHECK(centred(1, 25) == 1);
    CHECK(centred(0.4, 50) == doctest::Approx(-0.2));
}

TEST_CASE("eval tasks: core.yaml and its baselines, whole and damaged") {
    const std::string yaml =
        "a: 1\nicl_tasks:\n- label: one\n  dataset_uri: x.jsonl\n  num_fewshot:\n  - 5\n  icl_task_type: schema\n"
        "  has_categories: true\n# note\n-\n    label: 'two'\n    dataset_uri: y.jsonl # more\n    num_fewshot: [0, "
        "3]\n"
        "    continuation_delimiter: \"\\nA: \"\nother:\n  label: no\n";
    Result<std::vector<CoreTask>> tasks = parse_core_yaml(yaml, "core.yaml");
    REQUIRE_MESSAGE(tasks.ok(), tasks.status.message);
    REQUIRE(tasks.value.size() == 2);
    CHECK((tasks.value[0].label == "one" && tasks.value[0].shots == 5));
    CHECK(tasks.value[0].kind == CoreTask::Kind::schema);
    CHECK((tasks.value[1].label == "two" && tasks.value[1].uri == "y.jsonl" && tasks.value[1].shots == 0));
    CHECK((tasks.value[1].delimiter == "\nA: " && tasks.value[0].delimiter == " "));
    REQUIRE(parse_baselines("Random baseline,Eval Task\n25,one\n\n50.5,two\n", "m.csv", &tasks.value).ok());
    CHECK((tasks.value[0].random == 25 && tasks.value[1].random == 50.5));
    for (const char* csv :
         {"", "Eval Task\none\n", "Eval Task,Random baseline\none,25\n", "Eval Task,Random baseline\none,100\ntwo,3\n",
          "Eval Task,Random baseline\none,x\ntwo,3\n", "Eval Task,Random baseline\n\"one,25\n"})
        CHECK(parse_baselines(csv, "m.csv", &tasks.value).code == Exit::input);
    for (const char* bad : {"", "icl_tasks:\n", "icl_tasks:\n  label: x\n", "icl_tasks:\n-\n  label: x\n",
                            "icl_tasks:\n- label x\n", "icl_tasks:\n- label: \"x\n",
                            "icl_tasks:\n- label: x\n  num_fewshot: [a]\n", "icl_tasks:\n- icl_task_type: other\n"})
        CHECK(parse_core_yaml(bad, "core.yaml").status.code == Exit::input);
}

TEST_CASE("eval tasks: damaged files are refused by file, line and field") {
    const std::string dir = temporary_directory(), path = dir + "/x.jsonl";
    auto refused = [&](const char* task, const std::string& text, const Strings& says) {
        write_file(path, text);
        const Result<std::vector<Item>> found = read_items(task_of(task), path);
        INFO(found.status.message);
        CHECK(found.status.code == Exit::input);
        for (const std::string& part : says) CHECK(contains(found.status.message, part));
    };
    const std::string piqa = R"({"goal":"a","sol1":"b","sol2":"c","label":1})";
    refused("hellaswag", piqa + "\n", {"x.jsonl line 1", "hellaswag", "\"activity_label\"", "item of task piqa"});
    refused("piqa", piqa + "\n\n" + R"({"goal":"a","sol1":"b","label":1})", {"line 3", "\"sol2\"", "found none"});
    refused("piqa", R"({"goal":"a","sol1":"b","sol2":3,"label":1})", {"\"sol2\", a text, found number"});
    refused("piqa", R"({"goal":"a","sol1":"b","sol2":"c","label":2})", {"\"label\"", "from 0 to 1, found 2"});
    refused("piqa", R"({"goal":"a","sol1":"b","sol2":"c","label":-1})", {"found -1"});
    refused("piqa", R"({"goal":"a","sol1":"b","sol2":"c","label":""})", {"\"label\""});
    refused("boolq", R"({"passage":"p","question":"q","answer":"maybe"})", {"\"answer\"", "found maybe"});
    refused("wikitext", R"({"text":"x"})", {"\"page\"", "item of task perplexity"});
    refused("winogrande", R"({"sentence":"no blank","option1":"b","option2":"c","answer":"1"})", {"\"sentence\""});
    refused("winogrande", R"({"sentence":"a _ b","option1":"b","option2":"c","answer":"0"})", {"from 1 to 2, found 0"});
    refused("arc_easy", R"({"question":"q","choices":{"text":["a","b"],"label":["A","B"]},"answerKey":"C"})",
            {"\"answerKey\"", "one of A B, found C"});
    refused("arc_easy", R"({"question":"q","choices":{"text":["a"],"label":["A","B"]},"answerKey":"B"})", {"answer"});
    refused("mmlu", R"({"question":"q","choices":["a","b","c"],"answer":0})",
            {"a list of 4 texts, found an array of 3"});
    refused("truthfulqa_mc2", R"({"question":"q","mc2_targets":{"choices":["a","b"],"labels":[0,0]}})", {"labels"});
    refused("truthfulqa_mc2", R"({"question":"q","mc2_targets":{"choices":["a","b"],"labels":[1,7]}})", {"found 7"});
    refused("piqa", "", {"x.jsonl", "empty"});
    refused("piqa", "[]", {"found none"});
    refused("piqa", "[3]", {"item 1", "an object, found number"});
    refused("piqa", "{\"goal\": \"a\"", {"line 1"});
    refused("piqa", "3\n", {"line 1", "an object"});
    write_file(dir + "/x_test.csv", "q,a,b,c,d,A\nq,a,b\n");
    CHECK(contains(read_items(task_of("mmlu"), dir + "/x_test.csv").status.message,
                   "line 2: expected 6 columns, found 3"));
    CHECK(read_items(task_of("piqa"), dir + "/none.jsonl").status.code == Exit::input);
    CHECK(tasks_named("helaswag").status.code == Exit::usage);
    CHECK(contains(tasks_named("helaswag").status.message, "hellaswag"));
}

TEST_CASE("eval tasks: 300 mutated files end with a result or a message") {
    Loaded l("gpt2");
    int read = 0, refused = 0;
    const std::vector<std::pair<const char*, const char*>> files = {
        {"hellaswag", "hellaswag"}, {"arc_easy", "arc"},    {"winogrande", "winogrande"},
        {"mmlu", "mmlu"},           {"lambada", "lambada"}, {"truthfulqa_mc2", "truthfulqa"}};
    for (int i = 0; i < 300; i++) {
        const auto& [name, file] = files[size_t(i) % files.size()];
        std::string text = read_file(GOLDEN + file + ".jsonl");
        text = text.substr(0, text.find('\n', 1500) + 1);
        auto random = [&, n = 0](uint32_t below) mutable {
            return philox(11, uint64_t(i), uint64_t(n++)).v[0] % below;
        };
        for (uint32_t k = 0, edits = 1 + random(4); k < edits; k++) {
            const size_t at = random(uint32_t(text.size()));
            const char* pieces[] = {"\"",      "{",    "}", "[",    "]",  ",", "\n",
                                    "\\u0000", "\xFF", "9", "null", "\\", "_", " "};
            if (random(3) == 0) text.erase(at, 1 + random(9));
            else if (random(2)) text.insert(at, pieces[random(14)]);
            else text[at] = char(random(256));
        }
        const std::string path = temporary_directory() + "/x.jsonl";
        write_file(path, text);
        const Result<PreparedTask> t = prepare_task(task_of(name), l.m.tokenizer,
                                                    {.file = path, .shots = i % 2 && name[0] != 't', .context = 320});
        INFO(t.status.message);
        if (!t.ok()) CHECK((t.status.code == Exit::input || t.status.code == Exit::usage));
        if (!t.ok()) CHECK(!t.status.message.empty());
        (t.ok() ? read : refused)++;
    }
    CHECK((read > 20 && refused > 100));
}

TEST_CASE("eval tasks: the command") {
    const std::string model = GOLDEN + "gpt2", dir = temporary_directory(), samples = dir + "/s.jsonl";
    auto run = [&](Strings more, int code, const std::string& says = "") {
        Strings args = {"eval", model};
        args.insert(args.end(), more.begin(), more.end());
        const ProcessResult r = run_flatgpt(args);
        INFO(r.err);
        CHECK(r.exit_code == code);
        CHECK(contains(r.out + r.err, says));
        return r;
    };
    const std::string piqa = GOLDEN + "piqa.jsonl", arc = GOLDEN + "arc.jsonl";
    const ProcessResult r = run({"--task", "piqa", "--file", piqa, "--task", "arc_easy", "--file", arc, "--limit", "20",
                                 "--json", "--shots", "1", "--samples", samples},
                                0);
    const Golden found = Golden::parse(r.out);
    CHECK(found["piqa"]["items"] == 20);
    CHECK(found["arc_easy"]["shots"] == 1);
    CHECK(found["arc_easy"].contains("acc_norm_stderr"));
    std::istringstream lines(read_file(samples));
    int n = 0;
    for (std::string line; std::getline(lines, line); n++) {
        const Golden sample = Golden::parse(line);
        CHECK(sample["logprobs"].size() == sample["choices"].size());
        CHECK(contains(sample["prompt"].get<std::string>(), "Question: "));
    }
    CHECK(n == 40);
    run({"--task", "piqa", "--file", piqa, "--limit", "5"}, 0, "acc_norm");
    for (const Golden& golden : read_json("gpt2.json")) {    // by the command's own sizes and layout of weights
        if (golden["task"] != "piqa") continue;
        const Golden all = Golden::parse(
            run({"--task", "piqa", "--file", piqa, "--limit", "100", "--device", "cpu", "--json"}, 0).out);
        CHECK(all["piqa"]["acc"] == golden["metrics"]["acc"]);
        CHECK(all["piqa"]["acc_norm"] == golden["metrics"]["acc_norm"]);
    }
    const std::string text = dir + "/text.txt";
    write_file(text, "The river and the stone.\nA second line.\n");
    CHECK(Golden::parse(run({"--task", "perplexity", "--file", text, "--json"}, 0).out)["perplexity"]["items"] == 1);
    std::string words;
    for (int i = 0; i < 60; i++) words += "The river and the stone of number " + std::to_string(i * i) + ".\n";
    write_file(text, words);
    auto bits = [&](Strings more) {
        Strings args = {"--task", "perplexity", "--file", text, "--seq-len", "64", "--json"};
        args.insert(args.end(), more.begin(), more.end());
        return Golden::parse(run(args, 0).out)["perplexity"]["bits_per_byte"].get<double>();
    };
    CHECK(bits({"--stride", "8"}) != bits({}));
    run({"--task", "piqa", "--file", piqa, "--stride", "8"}, 2, "--stride 8");
    run({"--task", "core", "--file", GOLDEN + "bundle", "--limit", "8"}, 0, "core/schema");
    run({"--task", "core", "--file", GOLDEN + "bundle", "--limit", "2"}, 2, "--limit 2: task choice");
    const std::string truthful = GOLDEN + "truthfulqa.jsonl";
    run({"--task", "truthfulqa_mc", "--file", "-"}, 2, "standard input");
    run({"--task", "truthfulqa_mc", "--file", truthful, "--task", "truthfulqa_mc1", "--file", truthful}, 2, "twice");
    run({"--task", "piqa", "--file", piqa, "--task", "truthfulqa_mc1", "--file", truthful, "--limit", "3", "--shots",
         "1"},
        0, "does not apply to truthfulqa_mc1");
    CHECK(run({"--task", "piqa", "--file", piqa, "--task", "hellaswag", "--file", piqa}, 3, "line 1").out.empty());
    run({"--task", "hellaswag", "--file", piqa}, 3, "piqa.jsonl line 1");
    run({"--task", "piqa", "--task", "arc_easy", "--file", piqa}, 2, "2 tasks and 1 file");
    run({"--task", "nothing", "--file", piqa}, 2, "hellaswag");
    run({"--task", "piqa", "--file", piqa, "--shots", "500"}, 2, "--shots-file");
    run({"--task", "truthfulqa_mc", "--file", truthful, "--shots", "1"}, 2, "takes no examples");
    run({"--task", "piqa"}, 2, "--file");
    run({"--file", piqa}, 2, "--task");
    run({"--task", "piqa", "--file", piqa, "--text", text}, 2);
    run({"--task", "piqa", "--file", "-"}, 3, "stdin");
    run({"--task", "core", "--file", dir}, 3, "core.yaml");
}

TEST_CASE("eval tasks: a missing file is named before the model is read, which is missing, too") {
    const std::string piqa = GOLDEN + "piqa.jsonl", dir = temporary_directory(), none = dir + "/none.jsonl";
    for (const std::string& file : {none, piqa})    // --file is missing, or --shots-file alone
        must({"eval", dir, "--task", "piqa", "--file", file, "--shots-file", none}, 3, "none.jsonl");
}

// test_reward.cpp - GRPO's arithmetic by hand and by central differences; rewards; lines of
// prompts.
#include <sys/stat.h>

#include <chrono>

#include "files/json_write.h"
#include "test.h"
#include "train/reward/policy.h"
#include "train/reward/rewards.h"

#include "model_checks.h"

namespace {
typedef std::vector<double> Doubles;

PromptLine parsed(const std::string& line, bool needs_answer = true) {
    const Result<PromptLine> prompt = prompt_parse(line, "f:1", needs_answer);
    REQUIRE_MESSAGE(prompt.ok(), prompt.status.message);
    return prompt.value;
}
std::string error_of(const std::string& line) {
    const Result<PromptLine> prompt = prompt_parse(line, "f.jsonl:7", true);
    if (prompt.ok()) return "";
    CHECK(prompt.status.code == Exit::input);
    CHECK_MESSAGE(prompt.status.message.starts_with("f.jsonl:7: "), prompt.status.message);
    return prompt.status.message.substr(strlen("f.jsonl:7: "));
}
Doubles rewards_of(const std::string& kind, const std::vector<std::string>& texts, const std::string& expected = "4") {
    const PromptLine line = parsed(Json::object("prompt", "2+2", "answer", expected, "n", 7).text());
    std::vector<SampledAnswer> answers;
    for (const std::string& text : texts) answers.push_back({&line, text});
    const Result<Reward> reward = reward_open(kind, 2);
    REQUIRE_MESSAGE(reward.ok(), reward.status.message);
    const Result<Doubles> all = reward.value(answers);
    REQUIRE_MESSAGE(all.ok(), all.status.message);
    return all.value;
}
std::string script(const std::string& text) {
    const std::string path = temporary_directory() + "/reward";
    write_file(path, "#!/bin/sh\n" + text);
    REQUIRE(chmod(path.c_str(), 0755) == 0);
    return path;
}
// The error of a command that is to reward three answers.
std::string command_error(const std::string& text, double timeout = 2) {
    const PromptLine line = parsed(R"({"prompt": "2+2", "answer": "4"})");
    const Reward reward = reward_open(script(text), timeout).take();
    const Result<Doubles> all = reward(std::vector<SampledAnswer>(3, {&line, "4"}));
    CHECK(all.status.code == Exit::run);
    return all.status.message;
}

// Answers of random tokens in sequences of S positions, with prompts of two or three.
struct ToyAnswers {
    static constexpr int B = 4, S = 7;
    std::vector<int> in, out;
    Doubles advantage = {1.5, -0.5, 0, -1};
    Doubles sampled, reference;    // log-probabilities, by position
    explicit ToyAnswers(const Config& c) : in(toy_tokens(B * S, c.V, 1)), out(toy_tokens(B * S, c.V, 2)) {
        for (int b = 0; b < B; b++)
            for (int s : {0, b == 1 ? 6 : 1}) out[size_t(b * S + s)] = -1;
    }
    int64_t length(int b) const {
        return std::count_if(&out[size_t(b * S)], &out[size_t(b * S)] + S, [](int t) { return t >= 0; });
    }
    double loss(const LossNormRow& norm, const PolicyParams& p, const Doubles& now,
                std::vector<float>* weights = nullptr, std::vector<float>* terms = nullptr) const {
        int64_t all = 0;
        for (int b = 0; b < B; b++) all += length(b);
        double sum = 0;
        for (int b = 0; b < B; b++) {
            double of_answer = 0;
            for (int n = b * S; n < (b + 1) * S; n++) {
                const size_t i = size_t(n);
                const TokenTerms t = token_terms(p, advantage[size_t(b)], {now[i], sampled[i], reference[i]});
                const double factor = out[i] < 0 ? 0 : norm.factor(length(b), all, B, 9);
                of_answer += factor * t.loss;
                if (weights) weights->push_back(float(-factor * t.dlogp));
            }
            sum += of_answer;
            if (terms) terms->push_back(float(of_answer));
        }
        return sum / B;
    }
};
Doubles logps_in_double(Model& g, const ToyAnswers& toy) {
    g.train.begin();
    g.batch.upload(toy.in.data(), toy.out.data(), ToyAnswers::B, ToyAnswers::S);
    g.forward(true);
    g.loss(false, 0);
    REQUIRE(g.head_rows >= ToyAnswers::B * ToyAnswers::S);
    Doubles all(toy.out.size(), 0);
    for (size_t n = 0; n < all.size(); n++) {
        const double* l = typed<double>(g, g.head) + int64_t(n) * g.c.Vp();
        double z = 0;
        for (int v = 0; v < g.c.V; v++) z += std::exp(l[v]);
        if (toy.out[n] >= 0) all[n] = l[toy.out[n]] - std::log(z);
    }
    return all;
}
}    // namespace

TEST_CASE("reward: advantages by hand") {
    const Doubles a = advantages({1, 0, 0, 1}, true), mean = advantages({1, 0, 0, 1}, false);
    const double deviation_by_hand = std::sqrt(4 * 0.25 / 3);
    CHECK(deviation({1, 0, 0, 1}) == doctest::Approx(deviation_by_hand));
    for (size_t i = 0; i < 4; i++) {
        CHECK(a[i] == doctest::Approx((i % 3 ? -0.5 : 0.5) / (deviation_by_hand + 1e-4)).epsilon(1e-12));
        CHECK(mean[i] == (i % 3 ? -0.5 : 0.5));
    }
    CHECK(advantages({0.1, 0.1, 0.1}, true) == Doubles{0, 0, 0});
    CHECK(advantages({0.1, 0.1, 0.1}, false) == Doubles{0, 0, 0});
    CHECK(all_equal({2, 2}));
    CHECK(!all_equal({2, 3}));
    // A large common reward changes nothing.
    CHECK(advantages({1001, 1000}, false) == Doubles{0.5, -0.5});
}

TEST_CASE("reward: ratio, clipping and the divergence by hand") {
    const PolicyParams p = {0.2, 0.28, 0};
    auto at = [&](double advantage, double ratio) { return token_terms(p, advantage, {std::log(ratio) - 3, -3, 0}); };
    for (auto [advantage, ratio, loss, slope] : {std::tuple{2.0, 1.0, -2.0, -2.0},
                                                 {2.0, 1.25, -2.5, -2.5},
                                                 {2.0, 1.5, -2.56, 0.0},
                                                 {2.0, 0.5, -1.0, -1.0},
                                                 {-2.0, 1.0, 2.0, 2.0},
                                                 {-2.0, 1.5, 3.0, 3.0},
                                                 {-2.0, 0.9, 1.8, 1.8},
                                                 {-2.0, 0.5, 1.6, 0.0}}) {
        CAPTURE(advantage);
        CAPTURE(ratio);
        const TokenTerms t = at(advantage, ratio);
        CHECK(t.loss == doctest::Approx(loss));
        CHECK(t.dlogp == doctest::Approx(slope));
        CHECK(t.clipped == (slope == 0));
        CHECK(t.kl == 0);
    }
    CHECK(!at(0, 9).clipped);
    // k3 = q - log q - 1 with q = 1/4, and its derivative by the policy's log-probability, 1 - q.
    const TokenTerms t = token_terms({0.2, 0.2, 0.5}, 0, {-1, -1, -1 - std::log(4)});
    CHECK(t.kl == doctest::Approx(0.25 + std::log(4) - 1));
    CHECK(t.loss == doctest::Approx(0.5 * t.kl));
    CHECK(t.dlogp == doctest::Approx(0.5 * 0.75));
    CHECK(token_terms({0.2, 0.2, 0.5}, 0, {-1, -7, -1}).kl == 0);
    auto factor = [](const char* name) { return loss_norm_named(name).factor(5, 40, 4, 16); };
    CHECK(factor("sequence") == doctest::Approx(1.0 / 5));
    CHECK(factor("tokens") == doctest::Approx(4.0 / 40));
    CHECK(factor("constant") == doctest::Approx(1.0 / 16));
}

TEST_CASE("reward: gradients in double equal central differences") {
    const Config c = {8, 19, 2, 2, 8};
    Model g(reference_ops());
    toy_model(g, c, {.mode = RunMode::train, .B = ToyAnswers::B, .S = ToyAnswers::S, .weighted = true});
    ToyAnswers toy(c);
    toy.sampled.assign(toy.out.size(), 0), toy.reference = toy.sampled;
    const Doubles before = logps_in_double(g, toy);
    // Ratios below, within and above the clipped range.
    for (size_t n = 0; n < before.size(); n++) {
        toy.sampled[n] = before[n] - std::vector<double>{-0.5, 0.05, 0.6}[n % 3];
        toy.reference[n] = before[n] - 0.3 + 0.2 * double(n % 4);
    }
    const PolicyParams p = {0.2, 0.28, 0.4};
    for (const LossNormRow& norm : LOSS_NORMS) {
        std::vector<float> weights, terms;
        const double mean = toy.loss(norm, p, logps_in_double(g, toy), &weights, &terms);
        g.weighted_loss(weights.data(), terms.data(), ToyAnswers::B, 1.0f / ToyAnswers::B);
        g.backward();
        double sum;
        g.op.download(&sum, g.step.loss, sizeof sum);
        CHECK(sum / ToyAnswers::B == doctest::Approx(mean).epsilon(1e-6));
        double *w = typed<double>(g, g.store.params), *dw = typed<double>(g, g.store.grads);
        const Doubles grad(dw, dw + g.store.flat);
        for (const Tensor& t : g.tensors) {
            const int64_t n = t.file_rows * t.cols;
            double analytic = 0, size = 0, ends[2];
            const Doubles saved(w + t.offset, w + t.offset + n);
            for (int i : {0, 1}) {
                for (int64_t k = 0; k < n; k++) {
                    const double d = double(philox_normal(11, uint64_t(t.offset), uint64_t(k)));
                    if (i) analytic += d * grad[size_t(t.offset + k)], size += std::pow(grad[size_t(t.offset + k)], 2);
                    w[t.offset + k] = saved[size_t(k)] + (i ? -1e-6 : 1e-6) * d;
                }
                ends[i] = toy.loss(norm, p, logps_in_double(g, toy));
            }
            std::copy(saved.begin(), saved.end(), w + t.offset);
            INFO(std::string(norm.name) << ", tensor at " << t.offset);
            CHECK(std::fabs(analytic - (ends[0] - ends[1]) / 2e-6) < 1e-4 * std::max(std::sqrt(size), 1e-2));
        }
    }
}

TEST_CASE("reward: exact, regex and json-schema") {
    CHECK(rewards_of("exact", {"4", " 4\n", "44", "", "4."}) == Doubles{1, 1, 0, 0, 0});
    CHECK(rewards_of("exact", {"a b"}, " a b ") == Doubles{1});
    CHECK(rewards_of("regex:^4|[0-9]+ apples$", {"4", "I have 12 apples", "apples", "\xff 3 apples"}) ==
          Doubles{1, 1, 0, 1});
    const std::string schema = temporary_directory() + "/s.json";
    write_file(schema, R"({"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]})");
    CHECK(rewards_of("json-schema:" + schema, {R"({"n": 12})", R"({"n": 1.5})", R"({"n": 12)", "12", R"( {"n":3} )"}) ==
          Doubles{1, 0, 0, 0, 1});
    CHECK(reward_open("regex:(", 1).status.code == Exit::usage);
    CHECK(reward_open("json-schema:" + schema + "x", 1).status.code == Exit::input);
    for (const char* kind : {"exactly", "regex:", "regex", "json-schema:", "", "command"}) {
        CAPTURE(std::string(kind));
        CHECK(reward_open(kind, 1).status.code == Exit::usage);
    }
    CHECK(contains(reward_open("/nowhere/reward", 1).status.message, "/nowhere/reward"));
    CHECK(reward_open("/nowhere/reward", 1).status.code == Exit::usage);
}

TEST_CASE("reward: a command gets a line for each answer and writes a number for each") {
    // The length of a line, so that all fields count.
    const std::string lengths = script("while read -r line; do echo ${#line}; done");
    const size_t fields = std::string(R"({"prompt":"2+2","answer":"","expected":"4","n":7})").size();
    CHECK(rewards_of(lengths, {"", "abc"}) == Doubles{double(fields), double(fields + 3)});
    CHECK(rewards_of(lengths + " with arguments", {"abc"}) == Doubles{double(fields + 3)});
    // Much more than a pipe holds, read whole before anything is written.
    const std::vector<std::string> many(4000, std::string(100, 'x'));
    CHECK(rewards_of(script("sed -u 's/.*/0.25/'"), many) == Doubles(4000, 0.25));
    CHECK(rewards_of(script("cat >/dev/null & while read -r line; do echo 1e-1; done"), {"a"}).size() == 1);
    // The process stays: it counts the answers of both calls.
    const Reward counter = reward_open(script("n=0; while read -r line; do n=$((n+1)); echo $n; done"), 2).take();
    const PromptLine line = parsed(R"({"prompt": "p", "answer": "4"})");
    CHECK(counter({{&line, "a"}, {&line, "b"}}).value == Doubles{1, 2});
    CHECK(counter({{&line, "a"}}).value == Doubles{3});
}

TEST_CASE("reward: a command that dies, is silent or writes something else is named") {
    CHECK(contains(command_error("read -r line; echo 1; exit 9"),
                   "the output's end after 1 of 3; it ended with exit code 9"));
    CHECK(contains(command_error("kill -11 $$"), "signal 11"));
    // A training run ignores SIGPIPE; its commands do not.
    CHECK(contains(command_error("kill -13 $$"), "signal 13"));
    CHECK(contains(command_error("read -r line; echo 1; read -r line; echo good; sleep 9"),
                   "answer 2 of 3, found \"good\""));
    CHECK(contains(command_error("while read -r line; do echo nan; done"), "found \"nan\""));
    CHECK(contains(command_error("while read -r line; do echo; done"), "found \"\""));
    CHECK(contains(command_error("while read -r line; do echo 1 2; done"), "found \"1 2\""));
    CHECK(contains(command_error("read -r line; read -r line; read -r line; printf '1\\n1\\n1\\n1\\n'; sleep 9"),
                   "found more"));
    CHECK(contains(command_error("yes | tr -d '\\n'"), "a line of more than"));
    CHECK(contains(command_error("exec <&-; sleep 9", 0.3), "found none for 0.3 seconds, after 0 of 3"));
    const auto began = std::chrono::steady_clock::now();
    // The process that waits for this one's end is not the command's child.
    CHECK(rewards_of(script("read -r line; read -r rest </proc/$$/task/$$/children || [ -r /proc/$$/task/$$/children ] "
                            "|| rest=missing; echo ${#rest}"),
                     {"a"}) == Doubles{0});
    // A child in the background must not survive and hold the pipes.
    const std::string error = command_error("read -r line; echo 1; sleep 30 & sleep 30", 0.3);
    CHECK(contains(error, "after 1 of 3 (--reward-timeout); it was killed"));
    CHECK(std::chrono::steady_clock::now() - began < std::chrono::seconds(5));
}

TEST_CASE("reward: lines of prompts") {
    const PromptLine line = parsed(R"({"answer": 42, "prompt": "a\nb", "level": [1, {"x": null}]})");
    CHECK(line.prompt == R"("a\nb")");
    CHECK(line.expected == "42");
    CHECK(line.fields == R"("expected":42,"level":[1,{"x":null}])");
    CHECK(parsed(R"({"prompt": [{"role": "user", "content": "q"}], "answer": "a"})").messages.size() == 1);
    CHECK(parsed(R"({"prompt": "q"})", false).fields.empty());
    CHECK(contains(error_of(R"({"answer": "4"})"), "prompt: expected a text or a list of messages, found nothing"));
    CHECK(contains(error_of(R"({"prompt": 4, "answer": "4"})"),
                   "prompt: expected a text or a list of messages, found 4"));
    CHECK(contains(error_of(R"({"prompt": "", "answer": "4"})"), "prompt: expected a prompt, found an empty one"));
    CHECK(contains(error_of(R"({"prompt": [], "answer": "4"})"), "prompt: expected a prompt, found an empty one"));
    CHECK(contains(error_of(R"({"prompt": [{"role": "boss", "content": "q"}], "answer": "4"})"), "role"));
    CHECK(
        contains(error_of(R"({"prompt": [{"role": "assistant", "content": "q"}], "answer": "4"})"), "an assistant's"));
    CHECK(contains(error_of(R"({"prompt": "q"})"), "answer: expected a text or a number"));
    CHECK(contains(error_of(R"({"prompt": "q", "answer": ["a"]})"), "answer: expected a text or a number"));
    CHECK(contains(error_of(R"({"prompt": "q", "answer": " "})"), "answer: expected an answer, found an empty one"));
    CHECK(contains(error_of(R"({"prompt": "q", "answer": "a", "expected": 1})"), "expected"));
    CHECK(contains(error_of(R"(["prompt"])"), "expected a JSON object"));
    CHECK(!error_of(R"({"prompt": "q", "answer)").empty());
}

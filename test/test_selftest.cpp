// test_selftest.cpp - `flatgpt selftest`: passes on this CPU, and reports an entry that is wrong.
#include "tools/selftest/selftest.h"

#include "files/json.h"
#include "layers/cpu.h"

#include <memory>
#include <sstream>
#include <thread>

#include "limit.h"
#include "test.h"

namespace {
// Runs the selftest on a table of operations and keeps the output.
struct Run {
    Selftest test;
    std::string text;
    template <class P> Run(const Ops<float, P>& op, const std::string& filter, bool json = false, int V = 50257) {
        test.filter = filter, test.json = json, test.V = V;
        char* memory = nullptr;
        size_t size = 0;
        test.out = open_memstream(&memory, &size);
        test.run(&op, DTYPE<P>);
        status = test.close(0);
        fclose(test.out);
        text.assign(memory, size);
        free(memory);
    }
    Status status;
    bool says(const std::string& part) const { return text.find(part) != std::string::npos; }
};

void wrong_activation(float* dx, const float* dy, const float*, Act, bool, int N, int F) {
    for (int64_t i = 0; i < int64_t(N) * F; i++) dx[i] = dy[i];
}
void lazy_sum(double*, const float*, int64_t) {}
// Entries that call the right bf16 attention and then do one thing wrong.
const Ops<float, bf16>* right = nullptr;
void late_sum(bf16* y, float* lse, const float* qkv, int B, int S, Heads h) {    // lse off by 1e-3
    right->attention_forward(y, lse, qkv, B, S, h);
    for (int64_t i = 0; i < int64_t(B) * h.NH * S; i++) lse[i] += 1e-3f;
}
void short_scale(float* dqkv, const float* dy, const bf16* y, const float* qkv, const float* lse, int B, int S,
                 Heads h) {
    right->attention_backward(dqkv, dy, y, qkv, lse, B, S, h);
    for (int64_t i = 0; i < int64_t(B) * S * (h.NH + 2 * h.NKV) * h.HS; i++) dqkv[i] *= 0.995f;
}
void holes(bf16* y, float* lse, const float* qkv, int B, int S, Heads h) {    // every 100th y: 0
    right->attention_forward(y, lse, qkv, B, S, h);
    for (int64_t i = 0; i < int64_t(B) * S * h.NH * h.HS; i += 100) y[i] = {};
}
// test/ops/ compares every instruction set with the reference; here a user's instruction set is
// checked with the sizes of models.
template <class P> void model_sizes() {
    auto passes = [](const Ops<float, P>& op, const char* filter, int checks) {
        const Run run(op, filter, false, 3000);
        CAPTURE(std::string(op.name));
        CAPTURE(run.text);
        CHECK(run.status.ok());
        CHECK((run.test.checks >= checks && run.test.failed == 0));
    };
    passes(cpu_ops_isa<P>(cpu_isa()), "", 75);
}
void writes_beyond(float* to, const float* from, int64_t n) {
    cpu_ops<float>().to_floats(to, from, n);
    to[n] = 0;
}
}    // namespace

TEST_CASE("selftest: the CPU's table passes") {
    const Run run(cpu_ops<float>(), "activation_f");
    CHECK(run.status.ok());
    CHECK((run.test.checks == 13 && run.test.failed == 0));
    CHECK(run.says("ok "));
    CHECK(!run.says("FAILED"));
    CHECK(run.says("13 checks, 0 failed"));
}

TEST_CASE("selftest: an entry that is wrong, does nothing or writes beyond its array is reported") {
    Ops<float> op = cpu_ops<float>();
    op.activation_backward = wrong_activation;
    op.sum_of_squares = lazy_sum;
    op.to_floats = writes_beyond;
    const Run activation(op, "activation"), sum(op, "sum_of"), casts(op, "to_floats", true);
    CHECK((activation.test.checks == 26 && activation.test.failed == 13));
    CHECK(activation.status.code == Exit::run);
    CHECK(activation.says("FAILED"));
    CHECK((activation.says("activation_backward") && activation.says("26 checks, 13 failed")));
    CHECK((sum.test.checks == 1 && sum.test.failed == 1 && sum.says("FAILED")));
    CHECK((casts.test.failed == 1 && casts.says("\"ok\":false")));
}

TEST_CASE("selftest: fp32 passes") { model_sizes<float>(); }
TEST_CASE("selftest: bf16 passes") { model_sizes<bf16>(); }
TEST_CASE("selftest: attention in bf16 is held to what it rounds, and no more") {
    right = &cpu_ops_isa<bf16>(cpu_isa());
    Ops<float, bf16> wrong = *right;
    CHECK(Run(wrong, "attention").test.failed == 0);
    // The filter "attention_forward" also matches the linear and the cross-attention's names.
    auto checks = [&](const char* filter) { return Run(wrong, filter).test.checks; };
    const int rows = checks("attention_forward") - checks("linear_attention_forward") -
                     checks("cross_attention_forward");
    CHECK(rows > 10);
    wrong.attention_forward = late_sum, wrong.attention_backward = short_scale;
    CHECK(Run(wrong, "attention_forward").test.failed == rows);
    CHECK(Run(wrong, "attention_backward").test.failed == rows);
    wrong.attention_forward = holes;
    CHECK(Run(wrong, "attention_forward").test.failed == rows);
}

TEST_CASE("selftest: the command") {
    ProcessResult r = run_flatgpt({"selftest", "--device", "cpu", "--filter", "no such operation"});
    CHECK((r.exit_code == 2 && r.err.find("no such operation") != std::string::npos));
    r = run_flatgpt({"selftest", "--device", "cpu", "--dtype", "fp32", "--filter", "norm", "--json"});
    CHECK(r.exit_code == 0);
    std::istringstream lines(r.out);
    int objects = 0;
    for (std::string line; std::getline(lines, line); objects++) CHECK(json_parse(line, "line", 2).ok());
    CHECK(objects == 15);
}
TEST_CASE("selftest: the command on every kind of CPU that can be pretended here") {
    // Each kind of CPU runs only operations that it can change; the best one passed all above.
    struct Kind {
        std::vector<std::string> environment;
        std::string filter, dtype = "auto";
    };
    std::vector<Kind> kinds = {{{"FLATGPT_AMX=pretend"}, "linear_forward", "bf16"},
                               {{"FLATGPT_AMX=pretend"}, "linear_forward", "fp32"},
                               {{"FLATGPT_AMX=refuse"}, cpu_has_amx() ? "attention" : "attention_c", "bf16"}};
    const char* keys[] = {"base", "avx2", "avx512", "avx512bf16"};
    for (int i = 0; i < ISA_COUNT; i++)
        if (cpu_supports(Isa(i))) {
            const std::string set = std::string("FLATGPT_ISA=") + keys[i];
            kinds.push_back({{set}, Isa(i) == cpu_isa() ? "attention_c" : "attention"});
            kinds.push_back({{set, "FLATGPT_AMX=pretend"}, Isa(i) == Isa::avx512bf16 ? "attention_c" : "norm"});
        }
    if (test_long()) kinds.push_back({});
    // Several at once: the reference, on one core, takes most of the time.
    std::vector<std::unique_ptr<Process>> running(kinds.size());
    const size_t at_once = std::clamp<size_t>(std::thread::hardware_concurrency(), 1, 4);
    for (size_t i = 0; i < kinds.size() + at_once - 1; i++) {
        if (i < kinds.size()) {
            ProcessOptions options;
            options.timeout = 900, options.environment = kinds[i].environment;
            const std::string filter = test_long() ? "" : ASAN ? "attention_c" : kinds[i].filter;
            const std::string dtype = test_long() ? "auto" : kinds[i].dtype;
            running[i] =
                std::make_unique<Process>(std::vector<std::string>{flatgpt_binary(), "selftest", "--device", "cpu",
                                                                   "--filter", filter, "--dtype", dtype},
                                          options);
        }
        if (i + 1 < at_once) continue;
        const Kind& kind = kinds[i + 1 - at_once];
        const ProcessResult r = running[i + 1 - at_once]->wait();
        CAPTURE(kind.environment.empty() ? "" : kind.environment[0]);
        CAPTURE(r.out);
        CAPTURE(r.err);
        CHECK(r.exit_code == 0);
        CHECK(r.out.find(" 0 failed") != std::string::npos);
    }
}

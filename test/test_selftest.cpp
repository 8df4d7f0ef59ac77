// test_selftest.cpp - `flatgpt selftest`: passes on this CPU, and reports an entry that is wrong.
#include "selftest/selftest.h"

#include "data/json.h"

#include <sstream>

#include "test.h"

namespace {
// What a table's selftest prints.
struct Run {
    Selftest test;
    std::string text;
    Run(const Ops<float>& op, const std::string& filter, bool json = false) {
        test.filter = filter, test.json = json;
        char* memory = nullptr;
        size_t size = 0;
        test.out = open_memstream(&memory, &size);
        test.run(op, Dtype::fp32);
        status = test.close(0);
        fclose(test.out);
        text.assign(memory, size);
        free(memory);
    }
    Status status;
    bool says(const std::string& part) const { return text.find(part) != std::string::npos; }
};

void wrong_gelu(float* dx, const float* dy, const float*, int64_t n) {
    for (int64_t i = 0; i < n; i++) dx[i] = dy[i];
}
void lazy_sum(double*, const float*, int64_t) {}
void writes_beyond(float* to, const float* from, int64_t n) {
    cpu_ops<float>().to_floats(to, from, n);
    to[n] = 0;
}
}   // namespace

TEST_CASE("selftest: the CPU's table passes") {
    const Run run(cpu_ops<float>(), "gelu");
    CHECK(run.status.ok());
    CHECK((run.test.checks == 5 && run.test.failed == 0));
    CHECK(run.says("ok "));
    CHECK(!run.says("FAILED"));
    CHECK(run.says("5 checks, 0 failed"));
}

TEST_CASE("selftest: an entry that is wrong, does nothing or writes beyond its array is reported") {
    Ops<float> op = cpu_ops<float>();
    op.gelu_backward = wrong_gelu;
    op.sum_of_squares = lazy_sum;
    op.to_floats = writes_beyond;
    const Run gelu(op, "gelu"), sum(op, "sum_of"), casts(op, "to_floats", true);
    CHECK((gelu.test.checks == 5 && gelu.test.failed == 2));
    CHECK(gelu.status.code == Exit::run);
    CHECK(gelu.says("FAILED"));
    CHECK((gelu.says("gelu_backward") && gelu.says("5 checks, 2 failed")));
    CHECK((sum.test.checks == 1 && sum.test.failed == 1 && sum.says("FAILED")));
    CHECK((casts.test.failed == 1 && casts.says("\"ok\":false")));
}

TEST_CASE("selftest: the command") {
    ProcessResult r = run_flatgpt({"selftest", "--device", "cpu", "--filter", "no such operation"});
    CHECK((r.exit_code == 2 && r.err.find("no such operation") != std::string::npos));
    r = run_flatgpt({"selftest", "--device", "cpu", "--dtype", "fp32", "--filter", "layernorm", "--json"});
    CHECK(r.exit_code == 0);
    std::istringstream lines(r.out);
    int objects = 0;
    for (std::string line; std::getline(lines, line); objects++) CHECK(json_parse(line, "line", 2).ok());
    CHECK(objects == 5);
    if (!test_long()) return;
    ProcessOptions patient;
    patient.timeout = 600;
    r = run_flatgpt({"selftest", "--device", "cpu"}, patient);
    CHECK(r.exit_code == 0);
    CHECK(r.out.find(" 0 failed") != std::string::npos);
}

// test_limit.cpp - a test case that hangs fails by name within its limit, and the others still run.
//
// Only the case "limit: a case that never ends ..." runs the hidden ones, in a process of its own.
#include <algorithm>
#include <atomic>
#include <csignal>
#include <filesystem>
#include <set>
#include <sstream>
#include <unistd.h>

#include "base/pool.h"
#include "model/decoder.h"
#include "layers/cpu.h"

#include "test.h"
#include "toy_model.h"

namespace {
// A matrix product that never returns: all chunks of its loop spin.
void endless_forward(float*, const float*, const float*, const float*, const float*, int, int, int, Precision) {
    static std::atomic<int> turns{0};
    each_chunk(4, [&](int64_t, int) {
        while (turns >= 0) turns = (turns + 1) % 1000;
    });
}
// One chunk of the loop spins, and the other threads wait for it at the loop's end.
void endless_part(float* dx, GradTarget<float>, float*, const float*, const float*, const float*, int N, int C, int,
                  Precision) {
    static std::atomic<int> turns{0};
    each_chunk(N, [&](int64_t i, int) {
        while (i == 1 && turns >= 0) turns = (turns + 1) % 1000, dx[i * C] = 0;
    });
}
void step(const Ops<float>& op) {
    Model g(op);
    const int B = 2, S = 16;
    std::vector<int> tok(size_t(B) * S, 1);
    REQUIRE(g.allocate({61, 32, 3, 2, 16, 64, 1e-5f}, {RunMode::train, B, S}).ok());
    g.init(1);
    g.train.begin();
    g.batch.upload(tok.data(), tok.data(), B, S);
    g.forward();
    g.loss(true, 1.0f / float(B * S));
    g.backward();
}
std::string self() { return std::filesystem::read_symlink("/proc/self/exe").string(); }
}    // namespace

TEST_CASE("hidden limit: before" * doctest::skip()) {}
TEST_CASE("hidden limit: a forward product without end" * doctest::skip()) {
    Ops<float> op = cpu_ops<float>();
    op.linear_forward = endless_forward;
    op.linear_gelu_forward = nullptr, op.linear_gelu_backward = nullptr;
    step(op);
}
TEST_CASE("hidden limit: between, skipped" * doctest::skip()) { SKIP("on purpose"); }
TEST_CASE("hidden limit: a backward product, a thread of which has no end" * doctest::skip()) {
    Ops<float> op = cpu_ops<float>();
    op.linear_backward = endless_part;
    op.linear_gelu_forward = nullptr, op.linear_gelu_backward = nullptr;
    step(op);
}
TEST_CASE("hidden limit: a child without end, SIGTERM ignored" * doctest::skip()) {
    signal(SIGTERM, SIG_IGN);
    REQUIRE(chdir("/") == 0);
    Process child({"/bin/sh", "-c", "sleep 1000 & echo $! >\"$PIDS\"; wait"}, {.timeout = 1000});
    child.wait();
}
TEST_CASE("hidden limit: after" * doctest::skip()) {
    CHECK(access("Makefile", R_OK) == 0);    // first working directory restored
    struct sigaction now;
    CHECK((sigaction(SIGTERM, nullptr, &now) == 0 && now.sa_handler != SIG_IGN));    // doctest's
}

TEST_CASE("limit: a case that never ends fails by name, a product that is stuck included, and the others run") {
    const std::string pids = temporary_directory() + "/pids";
    const ProcessOptions patient = {.environment = {"FLATGPT_TEST_LIMIT=2", "PIDS=" + pids}, .timeout = 100};
    const ProcessResult r = run_process({self(), "-tc=hidden limit*", "--no-skip"}, patient);
    CAPTURE(r.out);
    CAPTURE(r.err);
    CHECK(r.exit_code == 1);
    const char* lines[] = {"passed",
                           "hidden limit: before",
                           "FAILED",
                           "hidden limit: a forward product without end",
                           "skipped",
                           "hidden limit: between, skipped",
                           "FAILED",
                           "hidden limit: a backward product, a thread of which has no end",
                           "FAILED",
                           "hidden limit: a child without end, SIGTERM ignored",
                           "passed",
                           "hidden limit: after",
                           "\n2 passed, 3 failed, 1 skipped\n"};
    size_t at = 0;
    for (const char* line : lines) {
        CAPTURE(line);
        at = r.out.find(line, at);
        REQUIRE(at != std::string::npos);
    }
    CHECK(r.out.find("2 passed", at + 2) == std::string::npos);    // a single closing line
    const int pid = atoi(read_file(pids).c_str());
    REQUIRE(pid > 1);
    CHECK(kill(pid, 0) != 0);    // grandchild killed as well
    // With --first and --last: after the hang only cases up to the last one requested run.
    for (auto [last, sum] : {std::pair{"--last=2", "\n0 passed, 1 failed, 0 skipped\n"},
                             std::pair{"--last=3", "\n0 passed, 1 failed, 1 skipped\n"}}) {
        const ProcessResult some = run_process({self(), "-tc=hidden limit*", "--no-skip", "--first=2", last}, patient);
        CAPTURE(some.out);
        CHECK(some.exit_code == 1);
        CHECK(some.out.find(sum) != std::string::npos);
    }
    const ProcessResult wrong = run_process({self(), "-tc=hidden*"}, {.environment = {"FLATGPT_TEST_LIMIT=soon"}});
    CHECK(wrong.exit_code == 2);
    CHECK(wrong.err.find("FLATGPT_TEST_LIMIT=soon: expected seconds") != std::string::npos);
}

TEST_CASE("limit: FLATGPT_TEST_PART takes each case once, in one of its parts") {
    auto cases = [](const std::string& part) {    // "": variable unset
        std::multiset<std::string> names;
        std::istringstream list(run_process({self(), "-ltc"}, {.environment = {"FLATGPT_TEST_PART" + part}}).out);
        for (std::string line; std::getline(list, line);)
            if (line.compare(0, 3, "===") && line.compare(0, 9, "[doctest]")) names.insert(line);
        return names;
    };
    const auto all = cases("");
    auto parts = cases("=0/2");
    CHECK(parts.size() > all.size() / 3);
    CHECK(parts.size() < all.size());
    parts.merge(cases("=3/2"));
    CHECK(parts == all);
    // A case's own test binaries ignore FLATGPT_TEST_PART, because a rank is a case of its own.
    const char* set = getenv("FLATGPT_TEST_PART");
    const std::string ours = set ? set : "";
    setenv("FLATGPT_TEST_PART", "0/2", 1);
    const ProcessResult whole = run_process({self(), "-ltc"});
    set ? setenv("FLATGPT_TEST_PART", ours.c_str(), 1) : unsetenv("FLATGPT_TEST_PART");
    CHECK(whole.out == run_process({self(), "-ltc"}, {.environment = {"FLATGPT_TEST_PART"}}).out);
    const ProcessResult wrong = run_process({self(), "-ltc"}, {.environment = {"FLATGPT_TEST_PART=half"}});
    CHECK(wrong.exit_code == 2);
    CHECK(wrong.err.find("FLATGPT_TEST_PART=half: expected K/N") != std::string::npos);
}

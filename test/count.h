// count.h - the closing line of a test binary: N passed, N failed, N skipped. Include it in its main.cpp, once, behind
// doctest.
#pragma once
#include <atomic>
#include <cstdio>

namespace {
std::atomic<bool> skipped_now{false};

struct Count : doctest::IReporter {
    static inline int passed = 0, failed = 0, skipped = 0;
    const char* name = "";
    double start = 0;
    explicit Count(const doctest::ContextOptions&) {}
    void report_query(const doctest::QueryData&) override {}
    void test_run_start() override {}
    void test_run_end(const doctest::TestRunStats&) override {}
    void test_case_start(const doctest::TestCaseData& t) override { name = t.m_name; skipped_now = false; }
    void test_case_reenter(const doctest::TestCaseData&) override {}
    void test_case_end(const doctest::CurrentTestCaseStats& s) override {
        bool bad = s.failure_flags != 0;
        (bad ? failed : skipped_now ? skipped : passed)++;
        printf("%-7s %7.2f s  %s\n", bad ? "FAILED" : skipped_now ? "skipped" : "passed", s.seconds, name);
        fflush(stdout);
    }
    void test_case_exception(const doctest::TestCaseException&) override {}
    void subcase_start(const doctest::SubcaseSignature&) override {}
    void subcase_end() override {}
    void log_assert(const doctest::AssertData&) override {}
    void log_message(const doctest::MessageData&) override {}
    void test_case_skipped(const doctest::TestCaseData&) override {}
};
REGISTER_LISTENER("count", 1, Count);

// Runs all cases and prints the closing line; the exit status.
int run_counted(int argc, char** argv) {
    doctest::Context context(argc, argv);
    context.setOption("no-breaks", true);
    const int result = context.run();
    if (context.shouldExit()) return result;    // --help and the like
    printf("\n%d passed, %d failed, %d skipped\n", Count::passed, Count::failed, Count::skipped);
    return Count::failed || Count::passed == 0;
}
}   // namespace

void skip(const char* why) {
    printf("skipped: %s\n", why);
    skipped_now = true;
}

// main.cpp - runs all cases and closes with one line: N passed, N failed, N skipped.
#define DOCTEST_CONFIG_IMPLEMENT
#include "test.h"

#include <atomic>
#include <filesystem>
#include <stdexcept>
#include <unistd.h>

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
std::string scratch;
}   // namespace

void skip(const char* why) {
    printf("skipped: %s\n", why);
    skipped_now = true;
}
bool test_long() { return getenv("FLATGPT_TEST_LONG") != nullptr; }
std::string flatgpt_binary() {
    const char* path = getenv("FLATGPT");
    return std::filesystem::absolute(path ? path : "./flatgpt").string();
}
std::string temporary_directory() {
    static int n = 0;
    if (scratch.empty()) {
        scratch = (std::filesystem::temp_directory_path() / "flatgpt-test-XXXXXX").string();
        if (!mkdtemp(scratch.data())) throw std::runtime_error("no temporary directory");
    }
    std::string dir = scratch + "/" + std::to_string(n++);
    std::filesystem::create_directory(dir);
    return dir;
}

int main(int argc, char** argv) {
    doctest::Context context(argc, argv);
    context.setOption("no-breaks", true);
    int rc = context.run();
    if (!scratch.empty()) std::filesystem::remove_all(scratch);
    if (context.shouldExit()) return rc;    // --help and the like
    printf("\n%d passed, %d failed, %d skipped\n", Count::passed, Count::failed, Count::skipped);
    return Count::failed || Count::passed == 0;
}

// count.h - the closing line of a test binary: N passed, N failed, N skipped. Its main.cpp includes
// this file once, after doctest.
//
// A case that exceeds its time limit (limit.h) is reported as failed. Its thread cannot be stopped,
// so the binary executes itself again (execv, same pid) and goes on with the next case.
#pragma once
#include <fcntl.h>
#include <sys/syscall.h>

#include <atomic>
#include <string>

#include "limit.h"

// close_range and CLOSE_RANGE_CLOEXEC: Linux 5.11 has them, older headers do not.
constexpr long CLOSE_RANGE_CALL = 436;
constexpr unsigned ON_EXEC = 1u << 2;

namespace {
std::atomic<bool> skipped_now{false};

// Process state that a case may change: signals, directory, open files. Restored before execv.
struct Given {
    static constexpr int SIGNALS = 65;
    char** argv = nullptr;
    void (*clean_up)() = nullptr;
    sigset_t mask;
    bool ignored[SIGNALS] = {};
    int directory = open(".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    Given() {
        pthread_sigmask(SIG_SETMASK, nullptr, &mask);
        for (int s = 1; s < SIGNALS; s++)
            if (struct sigaction now; sigaction(s, nullptr, &now) == 0) ignored[s] = now.sa_handler == SIG_IGN;
    }
    void restore() const {
        for (int s = 1; s < SIGNALS; s++) signal(s, ignored[s] ? SIG_IGN : SIG_DFL);
        pthread_sigmask(SIG_SETMASK, &mask, nullptr);
        if (directory < 0 || fchdir(directory) != 0) fputs("the working directory is gone\n", stderr);
        syscall(CLOSE_RANGE_CALL, 3u, ~0u, ON_EXEC);
    }
} given;

struct Count : doctest::IReporter {
    static inline int passed = 0, failed = 0, skipped = 0;
    static inline int next = 1;    // index from 1 of the next unfiltered case
    static inline std::string name;
    static inline double limit = 0;    // seconds per case
    explicit Count(const doctest::ContextOptions&) {}
    void report_query(const doctest::QueryData&) override {}
    void test_run_start() override {}
    void test_run_end(const doctest::TestRunStats&) override {}
    void test_case_start(const doctest::TestCaseData& t) override {
        name = t.m_name, skipped_now = false, next++;
        Limit::start(limit);
    }
    void test_case_reenter(const doctest::TestCaseData&) override {}
    void test_case_end(const doctest::CurrentTestCaseStats& s) override {
        Limit::done();
        if (given.clean_up) given.clean_up();
        bool bad = s.failure_flags != 0;
        (bad ? failed : skipped_now ? skipped : passed)++;
        printf("%-7s %7.2f s  %s\n", bad ? "FAILED" : skipped_now ? "skipped" : "passed", s.seconds, name.c_str());
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

const char SO_FAR[] = "FLATGPT_TEST_SO_FAR";    // the previous image's passed, failed, skipped, next

// Runs in Limit's thread while the stuck case is still running.
void start_again() {
    kill_children();
    if (ftrylockfile(stdout) == 0) {    // else the stuck case holds stdout: output lost
        fflush(stdout);
        funlockfile(stdout);
    }
    char text[64];
    snprintf(text, sizeof text, "%d %d %d %d", Count::passed, Count::failed + 1, Count::skipped, Count::next);
    setenv(SO_FAR, text, 1);
    dprintf(1, "FAILED  %7.2f s  %s\n         over its limit (FLATGPT_TEST_LIMIT=%g): ended, the next case follows\n",
            Count::limit, Count::name.c_str(), Count::limit);
    if (given.clean_up) given.clean_up();
    given.restore();
    execv("/proc/self/exe", given.argv);
    dprintf(1, "cannot start again: %s\n\n%d passed, %d failed, %d skipped\n", strerror(errno), Count::passed,
            Count::failed + 1, Count::skipped);
    _exit(1);
}

// FLATGPT_TEST_PART=K/N: only every N-th case, from the K-th on. False: the value is malformed.
bool take_part() {
    const char* text = getenv("FLATGPT_TEST_PART");
    unsigned k = 0, n = 1, i = 0;
    if (text && (sscanf(text, "%u/%u", &k, &n) != 2 || n == 0)) return false;
    for (const auto& c : doctest::detail::getRegisteredTests())
        if (i++ % n != k % n) const_cast<bool&>(c.m_skip) = true;    // m_skip does not affect the set's order
    return true;
}

// The value of doctest's option --NAME, or of its first letter (-N=); 0 without it.
int value_of(const std::string& name, int argc, char** argv) {
    const std::string letter = name.substr(0, 1) + "=", word = name + "=";
    int value = 0;
    for (int i = 1; i < argc; i++)
        for (const std::string& key : {"-" + letter, "--" + word, "-dt-" + letter, "--dt-" + word})
            if (!strncmp(argv[i], key.c_str(), key.size())) value = atoi(argv[i] + key.size());
    return value;
}

// Runs all cases, prints the closing line, returns the exit status. clean_up removes the files that
// a case has left; it runs after each case, and before an execv.
int run_counted(int argc, char** argv, void (*clean_up)() = nullptr) {
    Count::limit = test_limit();
    if (Count::limit == 0) {
        fprintf(stderr, "FLATGPT_TEST_LIMIT=%s: expected seconds above 0\n", getenv("FLATGPT_TEST_LIMIT"));
        return 2;
    }
    if (!take_part()) {
        fprintf(stderr, "FLATGPT_TEST_PART=%s: expected K/N, such as 0/2\n", getenv("FLATGPT_TEST_PART"));
        return 2;
    }
    doctest::Context context(argc, argv);
    context.setOption("no-breaks", true);
    Count::next = std::max(1, value_of("first", argc, argv));
    const int last = value_of("last", argc, argv);
    if (const char* so_far = getenv(SO_FAR)) {
        if (sscanf(so_far, "%d %d %d %d", &Count::passed, &Count::failed, &Count::skipped, &Count::next) != 4) return 2;
        context.setOption("first", Count::next);
        unsetenv(SO_FAR);    // not for binaries that the cases start
    }
    const auto close = [] {
        printf("\n%d passed, %d failed, %d skipped\n", Count::passed, Count::failed, Count::skipped);
        return Count::failed || Count::passed == 0;
    };
    if (last && Count::next > last) return close();    // doctest ignores a last case before the first
    given.argv = argv, given.clean_up = clean_up;
    Limit::watch(start_again);
    const int result = context.run();
    return context.shouldExit() ? result : close();    // --help and similar options run no cases
}
}    // namespace

void skip(const char* why) {
    printf("skipped: %s\n", why);
    skipped_now = true;
}

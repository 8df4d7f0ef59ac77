// main.cpp - runs all cases and closes with one line: N passed, N failed, N skipped.
#define DOCTEST_CONFIG_IMPLEMENT
#include "layers/cpu.h"

#include "test.h"

#include <atomic>
#include <chrono>
#include <csignal>
#include <fcntl.h>
#include <filesystem>
#include <fstream>
#include <spawn.h>
#include <sstream>
#include <stdexcept>
#include <sys/wait.h>
#include <thread>
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

// ---- processes -----------------------------------------------------------------------------------------------------

namespace {
double monotonic() {
    return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}
std::vector<std::string> merged_environment(const std::vector<std::string>& changes) {
    std::vector<std::string> result;
    for (char** e = environ; *e; e++) {
        std::string entry = *e, name = entry.substr(0, entry.find('='));
        bool changed = false;
        for (auto& c : changes) changed |= c.substr(0, c.find('=')) == name;
        if (!changed) result.push_back(entry);
    }
    for (auto& c : changes) if (c.find('=') != std::string::npos) result.push_back(c);
    return result;
}
std::vector<char*> pointers(std::vector<std::string>& strings) {
    std::vector<char*> p;
    for (auto& s : strings) p.push_back(s.data());
    p.push_back(nullptr);
    return p;
}
}   // namespace

Process::Process(const std::vector<std::string>& args, const ProcessOptions& options)
    : files(temporary_directory()), deadline(monotonic() + options.timeout) {
    write_file(files + "/stdin", options.stdin_text);
    std::vector<std::string> argv = args, env = merged_environment(options.environment);
    posix_spawn_file_actions_t actions;
    posix_spawnattr_t attributes;
    posix_spawn_file_actions_init(&actions);
    posix_spawnattr_init(&attributes);
    posix_spawn_file_actions_addopen(&actions, 0, (files + "/stdin").c_str(), O_RDONLY, 0);
    posix_spawn_file_actions_addopen(&actions, 1, (files + "/stdout").c_str(), O_WRONLY | O_CREAT | O_APPEND, 0600);
    posix_spawn_file_actions_addopen(&actions, 2, (files + "/stderr").c_str(), O_WRONLY | O_CREAT | O_APPEND, 0600);
    if (!options.directory.empty()) posix_spawn_file_actions_addchdir_np(&actions, options.directory.c_str());
    // The child starts with signals as a shell would give them, whatever started the tests.
    sigset_t none, all;
    sigemptyset(&none);
    sigemptyset(&all);
    for (int s : {SIGINT, SIGTERM, SIGPIPE, SIGHUP}) sigaddset(&all, s);
    posix_spawnattr_setsigmask(&attributes, &none);
    posix_spawnattr_setsigdefault(&attributes, &all);
    posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF);
    int error = posix_spawnp(&pid, argv[0].c_str(), &actions, &attributes, pointers(argv).data(), pointers(env).data());
    posix_spawn_file_actions_destroy(&actions);
    posix_spawnattr_destroy(&attributes);
    if (error) throw std::runtime_error("cannot start " + argv[0] + ": " + strerror(error));
}
Process::~Process() {
    send(SIGKILL);
    if (!ended) waitpid(pid, &status, 0);
    std::filesystem::remove_all(files);
}
bool Process::running() {
    if (!ended) ended = waitpid(pid, &status, WNOHANG) == pid;
    return !ended;
}
void Process::send(int signal) {
    if (running()) kill(pid, signal);
}
std::string Process::out() const { return read_file(files + "/stdout"); }
std::string Process::err() const { return read_file(files + "/stderr"); }
ProcessResult Process::wait() {
    while (running()) {
        if (!timed_out && monotonic() > deadline) {
            timed_out = true;
            send(SIGKILL);
        }
        std::this_thread::sleep_for(std::chrono::milliseconds(2));
    }
    ProcessResult r;
    r.exit_code = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
    r.signal = WIFSIGNALED(status) ? WTERMSIG(status) : 0;
    r.timed_out = timed_out;
    r.out = out();
    r.err = err();
    return r;
}
ProcessResult run_process(const std::vector<std::string>& args, const ProcessOptions& options) {
    return Process(args, options).wait();
}
ProcessResult run_flatgpt(std::vector<std::string> args, const ProcessOptions& options) {
    args.insert(args.begin(), flatgpt_binary());
    return run_process(args, options);
}
std::string read_file(const std::string& path) {
    std::ostringstream text;
    text << std::ifstream(path, std::ios::binary).rdbuf();
    return text.str();
}
void write_file(const std::string& path, std::string_view text) {
    std::ofstream(path, std::ios::binary) << text;
}

int main(int argc, char** argv) {
    cpu_spin_less(argv);
    doctest::Context context(argc, argv);
    context.setOption("no-breaks", true);
    int rc = context.run();
    if (!scratch.empty()) std::filesystem::remove_all(scratch);
    if (context.shouldExit()) return rc;    // --help and the like
    printf("\n%d passed, %d failed, %d skipped\n", Count::passed, Count::failed, Count::skipped);
    return Count::failed || Count::passed == 0;
}

// main.cpp - runs all cases and closes with one line: N passed, N failed, N skipped.
#define DOCTEST_CONFIG_IMPLEMENT

#include "test.h"
#include "count.h"

#include <chrono>
#include <csignal>
#include <fcntl.h>
#include <filesystem>
#include <fstream>
#include <mutex>
#include <spawn.h>
#include <sstream>
#include <stdexcept>
#include <sys/wait.h>
#include <thread>
#include <unistd.h>

namespace {
std::string scratch;
}    // namespace

bool test_long() { return getenv("FLATGPT_TEST_LONG") != nullptr; }
std::string flatgpt_binary() {
    const char* path = getenv("FLATGPT");
    return std::filesystem::absolute(path ? path : "./flatgpt").string();
}
std::string temporary_directory() {
    static int n = 0;
    static std::mutex one_at_a_time;
    const std::lock_guard hold(one_at_a_time);
    if (scratch.empty()) {
        scratch = (std::filesystem::temp_directory_path() / "flatgpt-test-XXXXXX").string();
        if (!mkdtemp(scratch.data())) throw std::runtime_error("no temporary directory");
    }
    std::string dir = scratch + "/" + std::to_string(n++);
    std::filesystem::create_directories(dir);
    return dir;
}

// ---- processes ----------------------------------------------------------------------------------

namespace {
double monotonic() {
    return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}
std::vector<std::string> merged_environment(const std::vector<std::string>& changes) {
    std::vector<std::string> result;
    for (char** e = environ; *e; e++) {
        std::string entry = *e, name = entry.substr(0, entry.find('='));
        bool changed = name == "FLATGPT_TEST_PART";    // for this process alone
        for (auto& c : changes) changed |= c.substr(0, c.find('=')) == name;
        if (!changed) result.push_back(entry);
    }
    for (auto& c : changes)
        if (c.find('=') != std::string::npos) result.push_back(c);
    return result;
}
std::vector<char*> pointers(std::vector<std::string>& strings) {
    std::vector<char*> p;
    for (auto& s : strings) p.push_back(s.data());
    p.push_back(nullptr);
    return p;
}
}    // namespace

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
    // The child starts with a shell's default signals, whatever the parent of the tests had set.
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
void write_file(const std::string& path, std::string_view text) { std::ofstream(path, std::ios::binary) << text; }

static void remove_scratch() {
    std::error_code ignored;
    if (!scratch.empty()) std::filesystem::remove_all(scratch, ignored);
}
int main(int argc, char** argv) { return run_counted(argc, argv, remove_scratch); }

// command.cpp - rewards from a command, which runs as a child process for the whole run.
//
// Answers are written and numbers read in one loop over poll: a command may read everything before
// it writes, or answer line by line, and neither side waits for the other one's full pipe.
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstring>
#include <vector>

#include "base/console.h"
#include "files/json_write.h"
#include "train/reward/rewards.h"

extern char** environ;

namespace {
constexpr size_t MOST_LINE = 1 << 16;    // bytes of a number's line

struct Child {
    std::string command;
    double timeout = 0;
    pid_t pid = -1;
    int in = -1, out = -1;      // its standard input and output
    int alive = -1;             // never written: it closes when this process ends
    std::string output = {};    // read, but not used yet

    Child(std::string name, double seconds) : command(std::move(name)), timeout(seconds) {}
    Child(const Child&) = delete;
    ~Child() { (void)stop(0); }
    Status start();
    std::string stop(double wait);
    Status failed(const std::string& what, double wait = 0);
    Status wait_for_pipe(bool writes, double& waited, size_t answered, size_t all);
    Status write_some(const std::string& lines, size_t& written);
    Status read_some(bool& ended);
    Result<std::vector<double>> score(const std::vector<SampledAnswer>& answers);
};

// Waits beside the command, in its process group, for the end of file 3. Then this process is gone,
// even by SIGKILL, and a command that hangs must not outlive it. The outer subshell ends at once: a
// command may wait for all of its children, and has none that it does not know.
constexpr const char* WATCH = "( { read -r end; kill -KILL 0; } <&3 3<&- >/dev/null 2>&1 & )\nexec 3<&-\nexec ";

// The command has a process group of its own: a signal from a terminal does not reach it, so that
// a stopped run can finish its step, and stop() ends its children, too. SIGPIPE is ignored here, as
// a dead command is an error of write.
Status Child::start() {
    signal(SIGPIPE, SIG_IGN);
    int to[2], from[2], watch[2];
    std::vector<int> made;
    for (int* ends : {to, from, watch}) {
        if (pipe2(ends, O_CLOEXEC) != 0) {
            const Status none = fail(Exit::run, "--reward: no pipe: %s", strerror(errno));
            for (int end : made) close(end);
            return none;
        }
        made.insert(made.end(), ends, ends + 2);
    }
    posix_spawn_file_actions_t files;
    posix_spawnattr_t attributes;
    posix_spawn_file_actions_init(&files);
    posix_spawnattr_init(&attributes);
    posix_spawn_file_actions_adddup2(&files, to[0], 0);
    posix_spawn_file_actions_adddup2(&files, from[1], 1);
    posix_spawn_file_actions_adddup2(&files, watch[0], 3);
    sigset_t defaults;
    sigemptyset(&defaults);
    for (int s : {SIGPIPE, SIGINT, SIGTERM, SIGHUP}) sigaddset(&defaults, s);
    posix_spawnattr_setsigdefault(&attributes, &defaults);
    posix_spawnattr_setpgroup(&attributes, 0);
    posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETPGROUP | POSIX_SPAWN_SETSIGDEF);
    const std::string text = WATCH + command;
    const char* args[] = {"sh", "-c", text.c_str(), nullptr};
    const int error = posix_spawn(&pid, "/bin/sh", &files, &attributes, const_cast<char**>(args), environ);
    posix_spawn_file_actions_destroy(&files);
    posix_spawnattr_destroy(&attributes);
    for (int theirs : {to[0], from[1], watch[0]}) close(theirs);
    in = to[1];
    out = from[0];
    alive = watch[1];
    fcntl(in, F_SETFL, O_NONBLOCK);
    fcntl(out, F_SETFL, O_NONBLOCK);
    if (error == 0) return {};
    pid = -1;
    return fail(Exit::run, "--reward %s: cannot be started: %s", command.c_str(), strerror(error));
}

void close_pipe(int& end) {
    if (end >= 0) close(end);
    end = -1;
}

// Closes the pipes, waits some seconds, and kills the command and its children. Returns how the
// command ended.
std::string Child::stop(double wait) {
    close_pipe(in);
    close_pipe(out);
    if (pid < 0) return close_pipe(alive), "it was not running";
    siginfo_t info = {};
    for (const double until = now_seconds() + wait; info.si_pid == 0 && now_seconds() < until; usleep(1000))
        if (waitid(P_PID, id_t(pid), &info, WEXITED | WNOHANG | WNOWAIT) != 0) break;
    kill(-pid, SIGKILL);
    close_pipe(alive);
    int status = 0;
    while (waitpid(pid, &status, 0) < 0 && errno == EINTR) continue;
    pid = -1;
    if (info.si_pid == 0) return "it was killed";
    return WIFEXITED(status) ? formatted("it ended with exit code %d", WEXITSTATUS(status))
                             : formatted("it was ended by signal %d", WTERMSIG(status));
}

Status Child::failed(const std::string& what, double wait) {
    const std::string end = stop(wait);
    return fail(Exit::run, "--reward %s: %s; %s", command.c_str(), what.c_str(), end.c_str());
}

// waited: seconds without a number, counted here alone and in parts of a second at most. So a stop
// of this process (SIGSTOP), which lengthens a part, is not held against the command.
Status Child::wait_for_pipe(bool writes, double& waited, size_t answered, size_t all) {
    pollfd pipes[] = {{out, POLLIN, 0}, {in, POLLOUT, 0}};
    for (;;) {
        if (waited >= timeout)
            return failed(
                formatted("expected a number for each answer, found none for %g seconds, after %zu of %zu "
                          "(--reward-timeout)",
                          timeout, answered, all));
        const double part = std::min(timeout - waited, 1.0), began = now_seconds();
        const int n = poll(pipes, writes ? 2 : 1, int(part * 1000) + 1);
        waited += std::min(now_seconds() - began, part);
        if (n > 0) return {};
        if (n < 0 && errno != EINTR) return failed(formatted("poll: %s", strerror(errno)));
        count_progress();    // other ranks know that this one waits: the time limit is its own
    }
}

Status Child::write_some(const std::string& lines, size_t& written) {
    const ssize_t n = write(in, lines.data() + written, lines.size() - written);
    if (n >= 0) written += size_t(n);
    else if (errno == EPIPE) written = lines.size();    // the command may still write its numbers
    else if (errno != EAGAIN && errno != EINTR) return failed(formatted("writing to it: %s", strerror(errno)));
    return {};
}

Status Child::read_some(bool& ended) {
    char bytes[1 << 14];
    const ssize_t n = read(out, bytes, sizeof bytes);
    ended = n == 0;
    if (n > 0) output.append(bytes, size_t(n));
    else if (n < 0 && errno != EAGAIN && errno != EINTR) return failed(formatted("reading: %s", strerror(errno)));
    return {};
}

Result<std::vector<double>> Child::score(const std::vector<SampledAnswer>& answers) {
    if (pid < 0) TRY(start());
    std::string lines;
    for (const SampledAnswer& a : answers)
        lines += "{\"prompt\":" + a.line->prompt + ",\"answer\":" + json_string(a.text) +
                 (a.line->fields.empty() ? "" : ",") + a.line->fields + "}\n";
    std::vector<double> all;
    size_t written = 0;
    bool over = false;
    TRY(read_some(over));    // a number too many, which came late
    if (!output.empty())
        return failed(formatted("expected one number for each answer, found more: %s",
                                json_string(output.substr(0, 60)).c_str()));
    for (double waited = 0; all.size() < answers.size();) {
        TRY(wait_for_pipe(written < lines.size(), waited, all.size(), answers.size()));
        if (written < lines.size()) TRY(write_some(lines, written));
        bool ended = false;
        TRY(read_some(ended));
        for (size_t end; (end = output.find('\n')) != std::string::npos && all.size() < answers.size();) {
            const std::string word = trimmed(output.substr(0, end));
            output.erase(0, end + 1);
            char* rest = nullptr;
            all.push_back(strtod(word.c_str(), &rest));
            if (word.empty() || *rest || !(std::fabs(all.back()) <= 1e6))
                return failed(formatted("expected a number between -1e6 and 1e6 for answer %zu of %zu, found %s",
                                        all.size(), answers.size(), json_string(word.substr(0, 60)).c_str()));
            waited = 0;
        }
        if (ended && all.size() < answers.size())
            return failed(formatted("expected a number for each answer, found the output's end after %zu of %zu",
                                    all.size(), answers.size()),
                          1);
        if (output.size() > MOST_LINE && all.size() < answers.size())
            return failed("expected a number, found a line of more than 65536 bytes");
    }
    if (!output.empty())
        return failed(formatted("expected %zu numbers, found more: %s", answers.size(),
                                json_string(output.substr(0, 60)).c_str()));
    return all;
}

}    // namespace

Result<Reward> reward_command(const std::string& command, double timeout) {
    const std::string program = command.substr(0, command.find(' '));
    if (access(program.c_str(), X_OK) != 0)
        return fail(Exit::usage, "--reward %s: expected a program that can be run, found %s: %s", command.c_str(),
                    program.c_str(), strerror(errno));
    auto child = std::make_shared<Child>(command, timeout);
    return Reward([child](const std::vector<SampledAnswer>& answers) { return child->score(answers); });
}

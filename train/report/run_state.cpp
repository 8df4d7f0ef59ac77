// run_state.cpp - see run_state.h.
#include "train/report/run_state.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <sstream>

#include "base/file.h"
#include "base/toml.h"

namespace {
// Whether a process holds the lock. Trying takes it for a moment, which lock_run waits for.
bool is_held(const std::string& path) {
    const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
    if (fd < 0) return false;
    const bool held = flock(fd, LOCK_SH | LOCK_NB) != 0 && errno == EWOULDBLOCK;
    close(fd);
    return held;
}
void append(int lock, const std::string& line) {
    if (lock < 0 || lseek(lock, 0, SEEK_END) < 0) return;
    [[maybe_unused]] const ssize_t n = write(lock, line.data(), line.size());
}
int64_t steps_in_toml(const std::string& path) {
    const Result<std::string> text = read_file(path, 1 << 20);
    if (!text.ok()) return 0;
    const Result<std::vector<TomlSetting>> settings = toml_parse(text.value, path);
    if (!settings.ok()) return 0;
    for (const TomlSetting& s : settings.value)
        if (s.key == "steps" && s.values.size() == 1) return std::max(0L, strtol(s.values[0].c_str(), nullptr, 10));
    return 0;
}
}    // namespace

std::string end_state(const Status& end) {
    if (end.ok()) return "finished";
    return end.code == Exit::sigint || end.code == Exit::sigterm ? "stopped" : "failed";
}

void note_steps(int lock, int64_t steps) {
    char text[4096];
    const ssize_t bytes = lock < 0 ? 0 : pread(lock, text, sizeof text, 0);
    const void* newline = bytes > 0 ? memchr(text, '\n', size_t(bytes)) : nullptr;
    if (newline && ftruncate(lock, static_cast<const char*>(newline) + 1 - text) == 0)
        append(lock, "steps " + std::to_string(steps) + "\n");
    // Room for how the run ends, which may be that the disk is full.
    [[maybe_unused]] const int room = lock < 0 ? 0 : fallocate(lock, FALLOC_FL_KEEP_SIZE, 0, 1 << 13);
}
void note_end(int lock, int64_t step, const Status& end) {
    std::string reason = end.message.substr(0, std::min<size_t>(end.message.find('\n'), 1000));
    if (reason.ends_with(":")) reason = reason.substr(0, reason.rfind(';'));    // "; to go on:", and a command
    append(lock, end_state(end) + " after step " + std::to_string(step) +
                     (end.ok() || reason.empty() ? "" : ": " + reason) + "\n");
}

RunState run_state(const std::string& run, int64_t last) {
    RunState s;
    const Result<std::string> text = read_file(run + "/lock", 1 << 16);
    std::istringstream lines(text.ok() ? text.value : "");
    for (std::string line; std::getline(lines, line);) {
        if (line.starts_with("steps ")) s.steps = strtoll(line.c_str() + 6, nullptr, 10);
        for (const char* state : {"finished", "stopped", "failed"}) {
            if (!line.starts_with(std::string(state) + " after step ")) continue;
            const size_t colon = line.find(": ");
            s.state = state;
            s.reason = colon == line.npos ? "" : line.substr(colon + 2);
        }
    }
    if (s.steps <= 0) s.steps = steps_in_toml(run + "/run.toml");
    if (is_held(run + "/lock")) {
        s.state = "running";
        s.reason.clear();
    } else if (s.state.empty()) s.state = s.steps > 0 && last >= s.steps ? "finished" : "stopped";
    return s;
}

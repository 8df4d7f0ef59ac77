// limit.h - ends a test that takes too long, whatever it hangs in: an endless loop in a kernel,
// threads that wait for each other, a child process. A thread of its own watches the clock.
#pragma once
#include <dirent.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <thread>

#include "sanitizers.h"

// Seconds: FLATGPT_TEST_LIMIT, or 300 (the longest case takes a fifth of that on two busy cores),
// or 3000 with sanitizers or long cases, which take some ten times as long. 0: not a valid number.
inline double test_limit() {
    const char* text = getenv("FLATGPT_TEST_LIMIT");
    if (!text || !*text) return ASAN || TSAN || getenv("FLATGPT_TEST_LONG") ? 3000 : 300;
    char* end;
    const double seconds = strtod(text, &end);
    return *end == 0 && seconds > 0 && seconds < 1e6 ? seconds : 0;
}

class Limit {
  public:
    // Calls `expired` in the watching thread, at most once, when the time is up; it must not
    // return. start and done block while it runs.
    static void watch(void (*expired)()) {
        sigset_t all, before;
        sigfillset(&all);
        pthread_sigmask(SIG_SETMASK, &all, &before);    // no signals for the watching thread
        std::thread([expired] {
            for (;; std::this_thread::sleep_for(std::chrono::milliseconds(20))) {
                const std::lock_guard hold(lock);
                if (deadline > 0 && now() > deadline) expired();
            }
        }).detach();
        pthread_sigmask(SIG_SETMASK, &before, nullptr);
    }
    static void start(double seconds) {
        const std::lock_guard hold(lock);
        deadline = now() + seconds;
    }
    static void done() {
        const std::lock_guard hold(lock);
        deadline = 0;
    }

  private:
    static double now() {
        return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
    }
    static inline std::mutex lock;
    static inline double deadline = 0;    // 0: no limit at present
};

// Kills all descendants of this process: it adopts those whose own parent has ended.
inline void kill_children() {
    prctl(PR_SET_CHILD_SUBREAPER, 1);
    int found = 1;
    for (int round = 0; found && round < 1000; round++) {
        found = 0;
        DIR* processes = opendir("/proc");
        if (!processes) return;
        while (const dirent* entry = readdir(processes)) {
            char path[300], line[512] = {};
            snprintf(path, sizeof path, "/proc/%s/stat", entry->d_name);
            FILE* file = atoi(entry->d_name) > 0 ? fopen(path, "r") : nullptr;
            if (!file) continue;
            const char* name_end = fgets(line, sizeof line, file) ? strrchr(line, ')') : nullptr;
            fclose(file);
            char state;
            int parent;
            if (!name_end || sscanf(name_end + 1, " %c %d", &state, &parent) != 2 || parent != getpid()) continue;
            found += kill(atoi(entry->d_name), SIGKILL) == 0;
        }
        closedir(processes);
        while (waitpid(-1, nullptr, WNOHANG) > 0) {}
        usleep(2000);
    }
    prctl(PR_SET_CHILD_SUBREAPER, 0);
}

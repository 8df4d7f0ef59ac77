// limit.h - a limit on the time that a part of this process takes, whatever it is stuck in: an endless loop in a
// kernel, threads that wait for each other, a child that never ends. A thread of its own watches the clock.
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

// FLATGPT_TEST_LIMIT, or 300 s: the longest case takes a fifth of that on two busy cores. Sanitizers take some ten
// times as long, and so do the long cases. 0: FLATGPT_TEST_LIMIT is no number of seconds.
inline double test_limit() {
    const char* text = getenv("FLATGPT_TEST_LIMIT");
    if (!text || !*text) return ASAN || TSAN || getenv("FLATGPT_TEST_LONG") ? 3000 : 300;
    char* end;
    const double seconds = strtod(text, &end);
    return *end == 0 && seconds > 0 && seconds < 1e6 ? seconds : 0;
}

class Limit {
  public:
    // `expired` runs in the watching thread, at most once, and does not return. start and done wait for it.
    static void watch(void (*expired)()) {
        sigset_t all, before;
        sigfillset(&all);
        pthread_sigmask(SIG_SETMASK, &all, &before);    // signals are for the threads that the tests know of
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
    static inline double deadline = 0;    // 0: nothing is limited now
};

// Kills all processes that this one has started, and those that they started: these become ours as their parents end.
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

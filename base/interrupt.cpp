// interrupt.cpp - see interrupt.h.
#include "interrupt.h"

#include <csignal>
#include <mutex>
#include <system_error>
#include <thread>
#include <unistd.h>
#include <vector>

namespace {
struct Noted {
    std::mutex mutex;
    bool wanted = false;
    std::vector<std::string> files;
};
Noted& noted() {
    static Noted& all = *new Noted;    // never destroyed: the thread below may outlive statics
    return all;
}
}    // namespace

void note_temporary(const std::string& path) {
    std::lock_guard lock(noted().mutex);
    if (noted().wanted) noted().files.push_back(path);
}

void keep_temporaries() {
    std::lock_guard lock(noted().mutex);
    noted().wanted = false;
    noted().files.clear();
}

// A thread waits for the signals, because a signal handler must not lock the mutex.
void remove_files_on_signals(void (*end)(int signal)) {
    sigset_t awaited, before;
    sigemptyset(&awaited);
    for (const int s : {SIGINT, SIGTERM, SIGHUP}) {
        struct sigaction action = {};
        if (sigaction(s, nullptr, &action) == 0 && action.sa_handler != SIG_IGN) sigaddset(&awaited, s);
    }
    pthread_sigmask(SIG_BLOCK, &awaited, &before);
    noted().wanted = true;
    try {
        std::thread([awaited, end] {
            int s = 0;
            if (sigwait(&awaited, &s) != 0) return;
            // Noting a file needs this lock, so no new temporary appears before the process ends.
            std::lock_guard lock(noted().mutex);
            // Temporary directories stay, because one of them may be replacing an old directory.
            for (const std::string& path : noted().files) unlink(path.c_str());
            signal(s, SIG_DFL);
            pthread_sigmask(SIG_UNBLOCK, &awaited, nullptr);
            raise(s);
            end(s);    // in a container, process 1 survives such signals
        }).detach();
    } catch (const std::system_error&) {    // no thread: files stay, as after SIGKILL
        pthread_sigmask(SIG_SETMASK, &before, nullptr);
    }
}

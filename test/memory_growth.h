// memory_growth.h - how much memory a piece of work takes, measured in a process of its own.
#pragma once
#include <malloc.h>
#include <sys/wait.h>
#include <unistd.h>

#include "test.h"

inline int64_t own_peak() {    // bytes
    const std::string status = read_file("/proc/self/status");
    const size_t at = status.find("VmHWM:");
    return at == std::string::npos ? 0 : 1024 * std::stoll(status.substr(at + 6));
}
// Growth of the peak memory (bytes) while `work` runs, in a child process, whose peak begins at
// what this process holds now. *result: work's return value; -1 if the child fails.
template <class Work> int64_t memory_growth(Work work, int64_t* result) {
    int ends[2];
    REQUIRE(pipe(ends) == 0);
    // Otherwise `work` would reuse memory that earlier cases have freed, and not grow.
    malloc_trim(0);
    const pid_t child = fork();
    REQUIRE(child >= 0);
    if (child == 0) {
        const int64_t before = own_peak(), got = work(), said[2] = {got, own_peak() - before};
        _exit(write(ends[1], said, sizeof said) != sizeof said);
    }
    close(ends[1]);
    int64_t said[2] = {-1, 0};
    if (read(ends[0], said, sizeof said) != sizeof said) said[0] = -1;
    close(ends[0]);
    waitpid(child, nullptr, 0);
    *result = said[0];
    return said[1];
}

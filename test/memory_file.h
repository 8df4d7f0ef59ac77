// memory_file.h - gives a fuzzer's bytes a path, for parsers that open a file.
#pragma once
#include <string>
#include <sys/mman.h>
#include <unistd.h>

#include "base/common.h"

// The path of a file that holds the bytes until the next call.
inline std::string memory_file(const uint8_t* data, size_t size) {
    static const int fd = memfd_create("fuzz", 0);
    CHECK(fd >= 0 && ftruncate(fd, 0) == 0 && pwrite(fd, data, size, 0) == ssize_t(size), "memfd");
    return "/proc/self/fd/" + std::to_string(fd);
}

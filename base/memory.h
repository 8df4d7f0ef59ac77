// memory.h - out of memory without a Status: in a kernel's scratch, or a C library's allocation.
#pragma once
#include <new>

#include "common.h"

// Like a failed `new`: main.cpp's handler ends the process with exit 5. Checkpoints stay complete.
[[noreturn]] inline void out_of_memory() {
    if (const std::new_handler handler = std::get_new_handler()) handler();
    CHECK(false, "out of memory");
}

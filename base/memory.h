// memory.h - the end of memory where no Status can carry it: inside a kernel's scratch, or a C library's allocation.
#pragma once
#include <new>

#include "common.h"

// Does what a failed `new` does: main.cpp's handler ends the process with exit 5. Checkpoints on the disk stay whole.
[[noreturn]] inline void out_of_memory() {
    if (const std::new_handler handler = std::get_new_handler()) handler();
    CHECK(false, "out of memory");
}

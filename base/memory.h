// memory.h - out of memory where no Status can be returned: in kernels and C libraries.
#pragma once
#include <new>

#include "common.h"

// Acts like a failed `new`: main.cpp's handler ends the process with exit 5. Checkpoints stay
// whole.
[[noreturn]] inline void out_of_memory() {
    if (const std::new_handler handler = std::get_new_handler()) handler();
    CHECK(false, "out of memory");
}

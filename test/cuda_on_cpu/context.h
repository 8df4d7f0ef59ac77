// context.h - switches between the stacks of fibers.
#pragma once
#include <cstddef>

#include "emulator.h"

namespace emu {

typedef void* Context;    // address on its stack, which holds the registers
void swap_context(Context* from, Context to);
// A context on this stack that begins in entry(), which must not return.
void make_context(Context& c, char* stack, size_t bytes, void (*entry)());

}    // namespace emu

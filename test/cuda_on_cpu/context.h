// context.h - switching between the stacks of fibers.
#pragma once
#include <cstddef>

#include "emulator.h"

namespace emu {

typedef void* Context;    // a place on its stack: everything else lies there
void swap_context(Context* from, Context to);
// A context that begins in entry(), which does not return, on this stack.
void make_context(Context& c, char* stack, size_t bytes, void (*entry)());

}    // namespace emu

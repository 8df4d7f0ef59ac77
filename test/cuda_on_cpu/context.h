// context.h - switching between the stacks of fibers.
#pragma once
#include <cstddef>

#include "emulator.h"
#if !defined(__x86_64__)
#include <ucontext.h>
#endif

namespace emu {

#if defined(__x86_64__)
typedef void* Context;    // the stack pointer; everything else lies on the stack
void swap_context(Context* from, Context to);
#else
typedef ucontext_t Context;
void swap_context(Context* from, Context& to);
#endif
// A context that begins in entry(), which does not return, on this stack.
void make_context(Context& c, char* stack, size_t bytes, void (*entry)());

}   // namespace emu

// context.cpp - switches between the stacks of fibers.
#include "context.h"

#include <ucontext.h>

#include <new>

namespace emu {

#if defined(__x86_64__)
__attribute__((naked, noinline)) void swap_context(Context* /*from*/, Context /*to*/) {
    asm volatile(
        "pushq %rbp\n pushq %rbx\n pushq %r12\n pushq %r13\n pushq %r14\n pushq %r15\n"
        "movq %rsp, (%rdi)\n movq %rsi, %rsp\n"
        // Most threads of a block stop at the same calls, so the branch predictor gets this return
        // and the next ones right.
        "popq %r15\n popq %r14\n popq %r13\n popq %r12\n popq %rbx\n popq %rbp\n ret\n");
}
EMU_UNSEEN void make_context(Context& c, char* stack, size_t bytes, void (*entry)()) {
    void** top = reinterpret_cast<void**>(stack + bytes);
    *--top = nullptr;    // return address of entry
    *--top = reinterpret_cast<void*>(entry);
    for (int i = 0; i < 6; i++) *--top = nullptr;
    c = top;
}
#else
EMU_UNSEEN void swap_context(Context* from, Context to) {
    ucontext_t here;
    *from = &here;
    swapcontext(&here, static_cast<ucontext_t*>(to));
}
EMU_UNSEEN void make_context(Context& c, char* stack, size_t bytes, void (*entry)()) {
    bytes = (bytes - sizeof(ucontext_t)) / 64 * 64;
    auto* u = new (stack + bytes) ucontext_t;
    getcontext(u);
    u->uc_stack.ss_sp = stack, u->uc_stack.ss_size = bytes, u->uc_link = nullptr;
    makecontext(u, entry, 0);
    c = u;
}
#endif

}    // namespace emu

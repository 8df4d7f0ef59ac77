// emulator.h - what all parts of the emulator share: settings, errors, random draws, what the sanitizers are told.
//
// The emulator compiles CUDA kernel sources as plain C++ and runs them on the CPU. Every thread of a block is a fiber
// (block.h); a block runs on one OS thread and its fibers switch only where CUDA threads meet: barriers, collectives of
// a warp, waits. The blocks of a cooperative grid take turns on one OS thread. So a kernel runs deterministically, in
// an order that a seed chooses: 0 is thread order; any other shuffles blocks and fibers, delays what streams hold
// (runtime.h) and begins kernels that overlap before the one in front has run, which shows missing barriers and waits.
// Shared and device memory starts out as NaN. AddressSanitizer checks bounds and that the host leaves device memory
// alone, UBSan alignment, ThreadSanitizer races between fibers.
#pragma once
#include <cstdint>
#include <cstring>
#include <stdexcept>
#include <string>

#include "test/sanitizers.h"

// Not instrumented, where a fiber leaves one function in the middle of another. Clang's ThreadSanitizer would see the
// entries and exits of the function too.
#define EMU_UNSEEN [[gnu::no_sanitize("thread"), clang::disable_sanitizer_instrumentation]]

namespace emu {

struct Location {
    const char* file = "";
    int line = 0;
    static constexpr Location here(const char* file = __builtin_FILE(), int line = __builtin_LINE()) {
        return {file, line};
    }
    bool operator==(const Location& o) const { return line == o.line && std::strcmp(file, o.file) == 0; }
    std::string text() const { return std::string(file) + ":" + std::to_string(line); }
};
#define EMU_AT emu::Location at = emu::Location::here()

// What no GPU would survive either, or not say: divergent barriers, deadlocks, accesses out of bounds. Thrown from the
// launch, or from the call that waits for it.
struct Error : std::runtime_error {
    using std::runtime_error::runtime_error;
};

struct Config {
    uint64_t seed = 0;                 // EMU_SEED=0, then schedule()
    int devices;                       // EMU_DEVICES=0 is a machine without a GPU
    int capability;                    // EMU_CC=80
    int multiprocessors;               // EMU_SMS=4
    size_t memory_bytes;               // EMU_MEMORY_MB=4096: of the device
    unsigned os_threads;               // EMU_THREADS=1: the blocks of a large launch run on so many (with seed 0)
    size_t cublaslt;                   // EMU_CUBLASLT=130000: its version
    bool runs;                         // EMU_RUN=1. 0: launches are noted and nothing is computed (launch.h)
    size_t shared_limit;               // shared memory of one block, by capability
    size_t stack_bytes = 128 << 10;    // one fiber's stack
};
extern Config config;
// What a multiprocessor holds at a time, and the bytes of shared memory that one block may have.
struct Multiprocessor {
    size_t warps, blocks, shared_limit;
};
Multiprocessor multiprocessor_of(int capability);
// The device's clock: it stands still, unless a test says how long something takes (cublasLt.h).
inline double clock_ms = 0;
// Finishes what the streams hold, then goes on with this seed.
void schedule(uint64_t seed);
int64_t launches(bool overlapping);    // kernels run so far, of graphs too; or only those that overlap

struct Rng {    // splitmix64
    uint64_t state;
    uint64_t operator()() {
        uint64_t z = state += 0x9e3779b97f4a7c15;
        z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9;
        z = (z ^ z >> 27) * 0x94d049bb133111eb;
        return z ^ z >> 31;
    }
    size_t below(size_t n) { return static_cast<size_t>(((*this)() >> 32) * n >> 32); }
};

// ThreadSanitizer sees each fiber as a thread of its own; what the emulator itself does is hidden from it.
struct Hidden {
    Hidden() {
        if (TSAN) AnnotateIgnoreReadsBegin("", 0), AnnotateIgnoreWritesBegin("", 0);
    }
    ~Hidden() {
        if (TSAN) AnnotateIgnoreReadsEnd("", 0), AnnotateIgnoreWritesEnd("", 0);
    }
};
inline void publish(void* at) {
    if (TSAN) __tsan_release(at);
}
inline void observe(void* at) {
    if (TSAN) __tsan_acquire(at);
}

}    // namespace emu

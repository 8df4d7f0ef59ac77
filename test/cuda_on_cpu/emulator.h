// emulator.h - common to the emulator: settings, errors, random draws, hints for sanitizers.
//
// The emulator compiles CUDA kernel sources as plain C++ and runs them on the CPU. Every thread of
// a block is a fiber (block.h); a block runs on one OS thread, and its fibers switch only where
// CUDA threads synchronise: barriers, warp collectives, waits. The blocks of a cooperative grid
// take turns on one OS thread. So a kernel runs deterministically, in an order that a seed chooses:
// 0 is thread order; other seeds shuffle blocks and fibers, delay the work of streams (runtime.h)
// and begin overlapping kernels before the previous one has run, which shows missing barriers and
// waits. Shared and device memory starts as NaN. AddressSanitizer checks bounds and that the host
// does not touch device memory, UBSan alignment, ThreadSanitizer races between fibers.
#pragma once
#include <cstdint>
#include <cstring>
#include <stdexcept>
#include <string>

#include "test/sanitizers.h"

// Not instrumented: a fiber leaves one function in the middle of another. Clang's ThreadSanitizer
// would also record the function's entries and exits.
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

// Errors that no GPU survives either, or that it does not report: divergent barriers, deadlocks,
// accesses out of bounds. The launch throws, or the call that waits for it.
struct Error : std::runtime_error {
    using std::runtime_error::runtime_error;
};

struct Config {
    uint64_t seed = 0;                 // EMU_SEED=0, later schedule()
    int devices;                       // EMU_DEVICES=0: a machine without a GPU
    int capability;                    // EMU_CC=80
    int multiprocessors;               // EMU_SMS=4
    size_t memory_bytes;               // EMU_MEMORY_MB=4096: device memory
    unsigned os_threads;               // EMU_THREADS=1: OS threads for blocks, with seed 0
    size_t cublaslt;                   // EMU_CUBLASLT=130000: version
    bool runs;                         // EMU_RUN=1. 0: launches are only noted (launch.h)
    size_t shared_limit;               // one block's bytes, by capability
    size_t stack_bytes = 128 << 10;    // one fiber's bytes
};
extern Config config;
// A multiprocessor's limits, and the bytes of shared memory that one block may have.
struct Multiprocessor {
    size_t warps, blocks, shared_limit;
};
Multiprocessor multiprocessor_of(int capability);
// The device's clock: it advances only if a test sets durations (cublasLt.h).
inline double clock_ms = 0;
// Finishes the work in all streams, then continues with this seed.
void schedule(uint64_t seed);
int64_t launches(bool overlapping);    // kernels run (graphs included), or only overlapping ones

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

// To ThreadSanitizer each fiber is a thread; the emulator's own accesses are hidden from it.
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

// pool.h - parallel loops. A loop is a number of chunks, which running threads claim one by one. It
// ends when all chunks are done: a thread that the system has put aside costs nothing, unless it
// has a chunk at that time. What a chunk computes must not depend on who claims it, or when.
#pragma once
#include <stdint.h>

// The most threads that run a loop, with its caller. The default is OMP_NUM_THREADS, if it is set,
// else the number of CPUs that the process's affinity allows.
int pool_threads();
void pool_set_threads(int threads);

// Calls body(context, chunk, worker) for each chunk of 0..chunks-1, and returns when all calls have
// returned. Concurrent calls have different workers, of 0..pool_threads()-1. A loop within a chunk,
// or beside a loop of another thread, runs on its caller alone.
typedef void (*ChunkBody)(const void* context, int64_t chunk, int worker);
void pool_run(int64_t chunks, ChunkBody body, const void* context);

// The same with a function f(chunk, worker).
template <class F> static inline void each_chunk(int64_t chunks, const F& f) {
    pool_run(
        chunks,
        [](const void* context, int64_t chunk, int worker) { (*static_cast<const F*>(context))(chunk, worker); }, &f);
}

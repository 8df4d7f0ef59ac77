// pool.h - parallel loops. A loop is divided into chunks. The threads that are running take them
// one by one, and the loop ends when all chunks are done: a thread that the system has put aside
// delays a loop only if it has one of its chunks. What a chunk computes must not depend on which
// thread runs it, or when; its worker's number may only choose scratch memory.
#pragma once
#include <stdint.h>

// The number of CPUs in the calling thread's affinity mask. Hyper-threads count one by one.
int pool_cores();
// At most this many threads, the caller included, run a loop. The default is OMP_NUM_THREADS, if it
// is set, else pool_cores(). pool_set_threads must not be called while a loop runs.
int pool_threads();
void pool_set_threads(int threads);
// The number of loops so far that were divided among threads. The caller of each may have to wait
// for others' last chunks.
int64_t pool_loops();

// Calls body(context, chunk, worker) for each chunk of 0..chunks-1, and returns when all calls have
// returned. Of one loop, calls that run at the same time have different workers, of
// 0..pool_threads()-1. A loop within a chunk runs on that chunk's worker alone, unless the outer
// loop has one chunk. A loop that starts while another thread's loop runs is run by its caller
// alone, as worker 0: scratch memory by worker must belong to one caller. body must not throw.
typedef void (*ChunkBody)(const void* context, int64_t chunk, int worker);
void pool_run(int64_t chunks, ChunkBody body, const void* context);

// For tests: unless it is null, the threads of a divided loop call it before each chunk. It must
// not change while a loop runs.
extern void (*pool_before_chunk)(int64_t chunk, int worker);

// Calls pool_run with a function f(chunk, worker).
template <class F> static inline void each_chunk(int64_t chunks, const F& f) {
    pool_run(
        chunks,
        [](const void* context, int64_t chunk, int worker) { (*static_cast<const F*>(context))(chunk, worker); }, &f);
}
// Likewise, but on the caller alone, as worker 0, unless `parallel`. Not for use within a chunk.
template <class F> static inline void each_chunk_if(bool parallel, int64_t chunks, const F& f) {
    if (parallel) return each_chunk(chunks, f);
    for (int64_t chunk = 0; chunk < chunks; chunk++) f(chunk, 0);
}

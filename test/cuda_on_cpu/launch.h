// launch.h - runs a grid, in the order of its stream's work.
#pragma once
#include <functional>
#include <memory>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include "emulator.h"
#include "types.h"

typedef struct CUstream_st* cudaStream_t;

namespace emu {

struct Grid {
    dim3 blocks, threads;
    size_t shared = 0;        // bytes of dynamic shared memory
    bool serial = false;      // in order: blocks may wait for earlier ones
    bool together = false;    // a cooperative launch: all blocks run at once
    Location at;              // launch site
    bool overlaps = false;    // begins before the previous work has ended
};
// Blocks of a grid that have begun and wait for the previous grid.
class Block;
typedef std::vector<std::shared_ptr<Block>> Begun;
void begin_grid(const Grid& g, void (*body)(void*), void* arg, Begun& begun);    // first blocks of the grid
void run_grid(const Grid& g, void (*body)(void*), void* arg, Begun& begun);    // rest of the begun blocks, then others
void check_launch(const Grid& g);
// Number of blocks of this size that fit on a multiprocessor, not counting static shared arrays.
int blocks_that_fit(size_t threads, size_t shared);
// A launch of a kernel, or of a library's product: then kernel is null and blocks is (m, n, k).
// EMU_LAUNCHES=FILE lists each kernel's block sizes and bytes of dynamic shared memory at the end
// of the process; dev/launches.cpp lists them by operation. note_launch returns false if launches
// are not run (EMU_RUN=0).
struct Launched {
    const void* kernel;
    dim3 blocks;
    unsigned threads;
    size_t shared;
    bool overlaps = false;
    int carveout = -1;    // preferred percent of shared memory; -1: none
};
inline std::vector<Launched>* launched_now = nullptr;    // destination for tests, or null
bool note_launch(Launched l);
void set_carveout(const void* kernel, int percent);
uintptr_t address_in_file(const void* kernel);    // address as printed by nm

// Adds work to a stream. Seed 0 does it at once; another seed perhaps only when a call waits for it
// or, if not at_once, when the next is enqueued. Work may access device memory. what: a literal,
// for the journal. begin: may be called before the previous kernel has run; null: the work waits
// for all.
void enqueue(cudaStream_t stream, std::function<void()> work, bool at_once = true, const char* what = "work",
             std::function<void()> begin = {});

template <class... P, class... A> void launch(void (*kernel)(P...), const Grid& g, cudaStream_t stream, A&&... args) {
    check_launch(g);
    if (!note_launch({reinterpret_cast<const void*>(kernel), g.blocks, g.threads.x * g.threads.y * g.threads.z,
                      g.shared, g.overlaps}))
        return;
    std::tuple<std::decay_t<P>...> params(std::forward<A>(args)...);
    auto body = [kernel, params] { std::apply(kernel, params); };
    struct Call {
        decltype(body) f;
        Begun begun;
    };
    const auto call = std::make_shared<Call>(Call{body, {}});
    const auto of_thread = [](void* c) { static_cast<Call*>(c)->f(); };
    auto begin = [=] { begin_grid(g, of_thread, call.get(), call->begun); };
    enqueue(
        stream, [=] { run_grid(g, of_thread, call.get(), call->begun); }, true, "kernel",
        g.overlaps ? std::function<void()>(begin) : nullptr);
}

}    // namespace emu

// launch.h - running a grid, and the order in which a stream's work is done.
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
    bool serial = false;      // blocks run one at a time, in the seed's order: each may wait for those before it
    bool together = false;    // all blocks run at once: a cooperative launch
    Location at;              // where the launch is written
    bool overlaps = false;    // begins before the work in front of it has ended; all of its threads wait for that
};
// Blocks of a grid that have begun: they have come to where they wait for the grid in front.
class Block;
typedef std::vector<std::shared_ptr<Block>> Begun;
void begin_grid(const Grid& g, void (*body)(void*), void* arg, Begun& begun);    // its first blocks
void run_grid(const Grid& g, void (*body)(void*), void* arg, Begun& begun);      // the rest of these, and all others
void check_launch(const Grid& g);
// How many such blocks fit on a multiprocessor, if what they hold in static arrays does not count.
int blocks_that_fit(size_t threads, size_t shared);
// What is launched: a kernel by its address, or a product of the library (null) by m, n and k. EMU_LAUNCHES=FILE has
// each kernel's block sizes and bytes of dynamic shared memory at the end of the process; dev/launches.cpp has them by
// operation. False: it is only noted, and not run (EMU_RUN=0).
struct Launched {
    const void* kernel;
    dim3 blocks;
    unsigned threads;
    size_t shared;
    bool overlaps = false;
    int carveout = -1;    // percent of shared memory that the kernel prefers; -1: it has no preference
};
inline std::vector<Launched>* launched_now = nullptr;    // where the launches go, as long as somebody wants them
bool note_launch(Launched l);
void set_carveout(const void* kernel, int percent);
uintptr_t address_in_file(const void* kernel);    // as nm shows it

// Does the work when its turn in the stream has come: at once with seed 0; with another one perhaps as late as when
// somebody waits for it, or, if not at_once, the next that is enqueued. Work may read and write the device's memory.
// what: a literal, for the journal. begin: may be called before the kernel in front is run; null: this waits for all.
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

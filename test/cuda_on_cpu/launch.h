// launch.h - running a grid, and the order in which a stream's work is done.
#pragma once
#include <functional>
#include <tuple>
#include <type_traits>
#include <utility>

#include "emulator.h"
#include "types.h"

typedef struct CUstream_st* cudaStream_t;

namespace emu {

struct Grid {
    dim3 blocks, threads;
    size_t shared = 0;        // bytes of dynamic shared memory
    bool in_order = false;    // blocks run by index, whatever the seed
    bool together = false;    // all blocks run at once: a cooperative launch
    Location at;              // where the launch is written
};
void run_grid(const Grid& g, void (*body)(void*), void* arg);
void check_launch(const Grid& g);
// How many such blocks fit on a multiprocessor, if what they hold in static arrays does not count.
int blocks_that_fit(size_t threads, size_t shared);

// Does the work when its turn in the stream has come: at once with seed 0; with another one perhaps as late as when
// somebody waits for it, or, if not at_once, the next that is enqueued. Work may read and write the device's memory.
// what: a literal, for the journal.
void enqueue(cudaStream_t stream, std::function<void()> work, bool at_once = true, const char* what = "work");

template <class... P, class... A>
void launch(void (*kernel)(P...), const Grid& g, cudaStream_t stream, A&&... args) {
    check_launch(g);
    std::tuple<std::decay_t<P>...> params(std::forward<A>(args)...);
    auto body = [kernel, params] { std::apply(kernel, params); };
    enqueue(stream, [g, body]() mutable {
        run_grid(g, [](void* b) { (*static_cast<decltype(body)*>(b))(); }, &body);
    }, true, "kernel");
}

}   // namespace emu

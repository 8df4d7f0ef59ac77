// block.h - one block of threads: fibers, their barriers and collectives, shared memory.
#pragma once
#include <exception>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "context.h"
#include "launch.h"

inline constinit thread_local uint3 threadIdx{}, blockIdx{};
inline constinit thread_local dim3 blockDim{}, gridDim{};
constexpr int warpSize = 32;

namespace emu {

struct Copy {    // a cp.async in flight
    void* to;
    const void* from;
    size_t bytes, zeros;
};

struct Fiber {
    Context context{};
    uint3 index{};    // threadIdx
    int id = 0, stack = -1;
    bool started = false, exited = false, waited = false;    // waited: called wait_for_previous()
    const char* waits_for = nullptr;                         // last wait
    Location at;
    bool (*ready)(void*) = nullptr;    // for a polling wait
    void* ready_arg = nullptr;
    std::vector<Copy> copies;
    std::vector<size_t> copy_groups;    // end of each committed group
    void* fake_stack = nullptr;         // for AddressSanitizer
    void* tsan = nullptr;
    int lane() const { return id & 31; }
    int warp() const { return id >> 5; }
};

// One collective of a warp's lanes. The last lane to arrive acts for all.
struct Meeting {
    unsigned mask = 0, arrived = 0;
    void (*act)(Meeting&) = nullptr;
    const char* what = nullptr;
    Location at;
    void* slot[32];    // each lane's operands
};

struct Barrier {
    const char* what = nullptr;
    Location at;
    int want = 0, arrived = 0, votes = 0, result = 0;
    unsigned phase = 0;
    unsigned waiting[32] = {};    // lanes of each warp
    char sync[2];                 // addresses for ThreadSanitizer, alternating by phase
};

struct Warp {
    unsigned alive = 0;
    unsigned open = 0;                             // bits of open meetings
    std::vector<std::function<void()>> pending;    // wgmma operations in flight
    std::vector<size_t> groups;                    // end of each committed group
    Meeting meetings[16];
    char sync[2];
    unsigned phase = 0;
};

class Block;
inline constinit thread_local Block* block = nullptr;    // block that this OS thread runs
inline constinit thread_local Fiber* self = nullptr;     // fiber that this OS thread runs
// Work of asynchronous units to run when the launch's last block has ended.
inline thread_local std::vector<std::function<void()>> at_launch_end;

// How a block runs. whole: to its end. ahead: until its threads wait for the previous grid, which
// has not run. together: in turns with the other blocks of a cooperative grid. If no thread can
// run, `whole` is a deadlock; otherwise another block or grid may end the wait.
enum class Run { whole, ahead, together };

class Block {
  public:
    Block();
    ~Block();
    Block(const Block&) = delete;
    void run(uint3 index, const Grid& g, void (*body)(void*), void* arg);
    // run() in parts. resume() returns when no thread can run, when all have exited or, with
    // `together`, at random by the seed; false if no thread could run. previous_ended() ends the
    // waits for the previous grid.
    void start(uint3 index, const Grid& g, void (*body)(void*), void* arg, Run how);
    bool resume();
    void previous_ended();
    bool over() const { return alive == 0; }
    [[noreturn]] void deadlock();
    bool failed() const { return error != nullptr; }    // not fit for another run

    // ---- called by the running fiber

    // A collective of the lanes in mask: the last to arrive calls act when all slots are filled.
    void meet(const char* what, Location at, unsigned mask, void* slot, void (*act)(Meeting&), bool fence = false);
    // A barrier. Returns the sum of the votes. want: number of threads, 0: all alive.
    int sync(int id, int want, int vote, const char* what, Location at, bool arrive_only = false);
    void wait_until(const char* what, Location at, bool (*ready)(void*), void* arg);
    void wait_for_grid(Location at);
    void yield();
    void later(std::function<void()> op) { engine.push_back(std::move(op)); }    // work of an asynchronous unit
    [[noreturn]] void fail(const char* what, Location at, const std::string& why);
    bool toss();
    Warp& warp() { return warps[static_cast<size_t>(self->warp())]; }
    void* static_shared(const void* key, size_t bytes, size_t align);
    bool is_shared(const void* p) const { return p >= shared && p < shared + shared_bytes; }

    char* shared = nullptr;    // dynamic shared memory, then the static arrays
    size_t dynamic_bytes = 0;
    std::shared_ptr<void> units;                  // state of asynchronous units (hopper_on_cpu.h)
    std::vector<std::function<void()>> at_end;    // work or checks when all threads have exited
    Rng rng{0};
    // Addresses for ThreadSanitizer: order a run after the host's accesses, and after the last run.
    char begins, ends[2];

  private:
    void allow(size_t at, size_t bytes);
    void prepare_shared(size_t bytes);
    void finish();
    void prepare_stacks(size_t n);
    void prepare_fibers(int n, dim3 dim);
    void abandon_fibers();

    static void entry();
    void begin(Fiber& f, int stack);
    void switch_to(Fiber& to);
    Fiber* leave();
    void wait(const char* what, Location at);
    void conclude(Meeting& m, bool fence);
    void conclude(Barrier& b);
    void wake(int warp, unsigned lanes);
    Fiber* pick();
    bool advance();
    void shuffle_ranks();

    size_t shared_bytes = 0, shared_used = 0, static_end = 0;
    struct Array {
        const void* key;
        size_t at, bytes;
    };
    std::vector<Array> statics;
    std::vector<Fiber> fibers;
    std::vector<Warp> warps;
    dim3 fibers_dim{0, 0, 0};
    Barrier barriers[16];
    unsigned ready[32];          // runnable lanes of each warp
    unsigned ready_ranks = 0;    // warps with runnable lanes, as ranks
    int rank[32], warp_at[32];
    bool fair = false;    // draw the next fiber from all
    Run how = Run::whole;
    bool must_wait = false;    // for the previous grid
    unsigned held[32] = {};    // waiting lanes of each warp
    int threads = 0, alive = 0;
    uint3 index{};    // blockIdx
    unsigned runs = 0;
    std::vector<Fiber*> pollers;
    std::vector<std::function<void()>> engine;
    void (*kernel)(void*) = nullptr;
    void* kernel_arg = nullptr;
    std::exception_ptr error;
    Fiber host;
    const void* host_stack = nullptr;
    size_t host_stack_bytes = 0;
    char* stacks = nullptr;
    size_t capacity = 0, stack_stride = 0, mapped = 0;
    std::vector<int> free_stacks;
};

}    // namespace emu

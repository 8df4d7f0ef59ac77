// block.h - one block of threads: a fiber for each, the points where they meet, and shared memory.
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

struct Copy {    // a cp.async on its way
    void* to;
    const void* from;
    size_t bytes, zeros;
};

struct Fiber {
    Context context{};
    uint3 index{};    // threadIdx
    int id = 0, stack = -1;
    bool started = false, exited = false, waited = false;    // waited: for the grid in front
    const char* waits_for = nullptr;                         // last
    Location at;
    bool (*ready)(void*) = nullptr;    // for a polling wait
    void* ready_arg = nullptr;
    std::vector<Copy> copies;
    std::vector<size_t> copy_groups;    // where each committed group of them ends
    void* fake_stack = nullptr;         // AddressSanitizer's
    void* tsan = nullptr;
    int lane() const { return id & 31; }
    int warp() const { return id >> 5; }
};

// The lanes of one warp that meet in one collective. The last to come acts for all.
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
    unsigned waiting[32] = {};    // the lanes of each warp
    char sync[2];                 // addresses for ThreadSanitizer, alternating by phase
};

struct Warp {
    unsigned alive = 0;
    unsigned open = 0;                             // which of the meetings have begun
    std::vector<std::function<void()>> pending;    // wgmma operations on their way
    std::vector<size_t> groups;                    // where each committed group of them ends
    Meeting meetings[16];
    char sync[2];
    unsigned phase = 0;
};

class Block;
inline constinit thread_local Block* block = nullptr;    // the block that this OS thread runs
inline constinit thread_local Fiber* self = nullptr;     // and its fiber
// What asynchronous units still do when the launch's last block has ended.
inline thread_local std::vector<std::function<void()>> at_launch_end;

// How a block runs: at once; until its threads wait for the grid in front, which has not run; in turns with the other
// blocks of a cooperative grid. If no thread can go on, a whole run is a deadlock; in the others somebody else may end
// the wait.
enum class Run { whole, ahead, together };

class Block {
  public:
    Block();
    ~Block();
    Block(const Block&) = delete;
    void run(uint3 index, const Grid& g, void (*body)(void*), void* arg);
    // The same in parts. resume() comes back when no thread can go on, when all have exited, or, together, as the seed
    // has it; false: no thread could. previous_ended() ends the waits for the grid in front.
    void start(uint3 index, const Grid& g, void (*body)(void*), void* arg, Run how);
    bool resume();
    void previous_ended();
    bool over() const { return alive == 0; }
    [[noreturn]] void deadlock();
    bool failed() const { return error != nullptr; }    // and is not fit for another run

    // ---- called by the running fiber

    // A collective of the lanes in mask: act is called once, by the last to come, when all have left their slots.
    void meet(const char* what, Location at, unsigned mask, void* slot, void (*act)(Meeting&), bool fence = false);
    // A barrier. Returns the sum of the votes. want: how many threads take part, 0 for all that have not exited.
    int sync(int id, int want, int vote, const char* what, Location at, bool arrive_only = false);
    void wait_until(const char* what, Location at, bool (*ready)(void*), void* arg);
    void wait_for_grid(Location at);
    void yield();
    void later(std::function<void()> op) { engine.push_back(std::move(op)); }    // an asynchronous unit's work
    [[noreturn]] void fail(const char* what, Location at, const std::string& why);
    bool toss();
    Warp& warp() { return warps[static_cast<size_t>(self->warp())]; }
    void* static_shared(const void* key, size_t bytes, size_t align);
    bool is_shared(const void* p) const { return p >= shared && p < shared + shared_bytes; }

    char* shared = nullptr;    // dynamic shared memory, then the static arrays
    size_t dynamic_bytes = 0;
    std::shared_ptr<void> units;                  // the state of asynchronous units (hopper_on_cpu.h)
    std::vector<std::function<void()>> at_end;    // what they do, or complain of, when all threads have exited
    Rng rng{0};
    // Addresses for ThreadSanitizer: a run comes behind what the host did, and behind the last run.
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
    unsigned ready[32];          // for each warp, the lanes that can run
    unsigned ready_ranks = 0;    // the warps that have such, by rank: the order in which they run
    int rank[32], warp_at[32];
    bool fair = false;    // whether the next to run is drawn from all
    Run how = Run::whole;
    bool must_wait = false;    // for the grid in front
    unsigned held[32] = {};    // for each warp, the lanes that wait for it
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

// launch.cpp - runs the blocks of a grid, one after the other or on several OS threads.
#include "launch.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <map>
#include <memory>
#include <mutex>
#include <thread>

#include "block.h"
#include "runtime.h"

namespace emu {
namespace {
// Blocks are reused: their stacks and shared memory serve many launches.
std::mutex mutex;
std::vector<std::shared_ptr<Block>> idle;

std::shared_ptr<Block> take_block() {
    std::lock_guard lock(mutex);
    if (idle.empty()) return std::make_shared<Block>();
    auto b = std::move(idle.back());
    idle.pop_back();
    return b;
}
void give_block(std::shared_ptr<Block> b) {
    if (b->failed()) return;
    std::lock_guard lock(mutex);
    idle.push_back(std::move(b));
}

struct Team {
    typedef std::chrono::steady_clock Clock;
    const Grid& g;
    std::vector<uint3> blocks;
    void (*body)(void*);
    void* arg;
    Begun& begun;    // the first blocks
    std::atomic<size_t> next{0};
    std::exception_ptr error;

    void work(Clock::time_point until) {
        Hidden hidden;
        Rng draws{config.seed};
        gridDim = g.blocks;
        std::shared_ptr<Block> b, other;
        try {
            b = take_block();
            if (TSAN) other = take_block();
            for (size_t i; (i = next++) < blocks.size();) {
                // To ThreadSanitizer one Block's runs are ordered. Neighbours run on different
                // ones, so that it finds races between blocks.
                if (TSAN) std::swap(b, other);
                b->rng.state = draws();
                if (i < begun.size()) {
                    begun[i]->previous_ended();
                    begun[i]->resume();
                    observe(&begun[i]->ends[0]), observe(&begun[i]->ends[1]);
                    give_block(std::move(begun[i]));
                } else b->run(blocks[i], g, body, arg);
                if (until != Clock::time_point::max() && Clock::now() > until) break;
            }
            for (auto& f : at_launch_end) f();
        } catch (...) {
            std::lock_guard lock(mutex);
            error = std::current_exception();
            next = blocks.size();
        }
        for (auto* used : {&b, &other})
            if (*used) observe(&(*used)->ends[0]), observe(&(*used)->ends[1]), give_block(std::move(*used));
        at_launch_end.clear();
    }

    // A cooperative grid: all blocks live at once, on this OS thread. In turns each runs until its
    // threads wait for other blocks, or until the seed stops it. If none can, the first reports a
    // deadlock.
    void work_together() {
        Hidden hidden;
        Rng draws{config.seed};
        gridDim = g.blocks;
        std::vector<std::shared_ptr<Block>> all;
        try {
            for (const uint3& at : blocks) {
                all.push_back(take_block());
                all.back()->rng.state = draws();
                all.back()->start(at, g, body, arg, Run::together);
            }
            for (bool moved = true; moved;) {
                moved = false;
                for (size_t i = all.size(); config.seed && i > 1; i--) std::swap(all[i - 1], all[draws.below(i)]);
                for (auto& b : all)
                    if (!b->over()) moved |= b->resume();
            }
            for (auto& b : all)
                if (!b->over()) b->deadlock();
            for (auto& f : at_launch_end) f();
            for (auto& b : all) observe(&b->ends[0]), observe(&b->ends[1]), give_block(std::move(b));
        } catch (...) {    // blocks left in a run are not reused
            error = std::current_exception();
        }
        at_launch_end.clear();
    }
};

std::vector<uint3> order_of_blocks(const Grid& g) {
    std::vector<uint3> blocks;
    for (unsigned z = 0; z < g.blocks.z; z++)
        for (unsigned y = 0; y < g.blocks.y; y++)
            for (unsigned x = 0; x < g.blocks.x; x++) blocks.push_back({x, y, z});
    Rng order{config.seed};
    if (config.seed)
        for (size_t i = blocks.size(); i > 1; i--) std::swap(blocks[i - 1], blocks[order.below(i)]);
    return blocks;
}
}    // namespace

int blocks_that_fit(size_t threads, size_t shared) {    // 1 KiB is reserved by the system
    const Multiprocessor m = multiprocessor_of(config.capability);
    const size_t warps = (threads + 31) / 32;
    return warps ? int(std::min({m.warps / warps, m.blocks, (config.shared_limit + 1024) / (shared + 1024)})) : 0;
}

void check_launch(const Grid& g) {
    const auto refuse = [&](const std::string& why) { throw Error("the launch at " + g.at.text() + ": " + why); };
    const size_t threads = size_t{g.threads.x} * g.threads.y * g.threads.z;
    if (threads == 0 || threads > 1024 || g.threads.z > 64)
        refuse("a block of " + std::to_string(threads) + " threads");
    if (g.blocks.x == 0 || g.blocks.y == 0 || g.blocks.z == 0) refuse("a grid without blocks");
    if (g.blocks.x > 0x7fffffff || g.blocks.y > 65535 || g.blocks.z > 65535)
        refuse("a grid of " + std::to_string(g.blocks.x) + " x " + std::to_string(g.blocks.y) + " x " +
               std::to_string(g.blocks.z) + " blocks: y and z go to 65535");
    const size_t blocks = size_t{g.blocks.x} * g.blocks.y * g.blocks.z;
    const int fit = blocks_that_fit(threads, g.shared) * config.multiprocessors;
    if (g.together && blocks > size_t(fit))
        refuse("a cooperative grid of " + std::to_string(blocks) + " blocks: " + std::to_string(fit) + " fit");
    if (g.shared > config.shared_limit)
        refuse(std::to_string(g.shared) + " bytes of shared memory: sm_" + std::to_string(config.capability) + " has " +
               std::to_string(config.shared_limit));
    if (cudaError_t e = cudaGetLastError())
        refuse(std::string("an earlier call failed and its error was not read: ") + cudaGetErrorString(e));
}

extern "C" const char __executable_start;    // defined by the linker
uintptr_t address_in_file(const void* kernel) { return uintptr_t(kernel) - uintptr_t(&__executable_start); }

namespace {
struct Noted {    // number of launches of each kernel and size
    std::map<std::tuple<const void*, unsigned, size_t>, int64_t> all;
    const char* const path = getenv("EMU_LAUNCHES");
    ~Noted() {
        FILE* f = path ? fopen(path, "w") : nullptr;
        if (!f) return;
        for (auto& [l, times] : all)
            fprintf(f, "%zx %u %zu %lld\n", address_in_file(std::get<0>(l)), std::get<1>(l), std::get<2>(l),
                    (long long)times);
        fclose(f);
    }
} noted;
}    // namespace

static std::map<const void*, int> carveouts;    // percent that a kernel prefers
void set_carveout(const void* kernel, int percent) {
    std::lock_guard lock(mutex);
    carveouts[kernel] = percent;
}
bool note_launch(Launched l) {
    std::lock_guard lock(mutex);
    if (const auto found = carveouts.find(l.kernel); found != carveouts.end()) l.carveout = found->second;
    if (noted.path && l.kernel) noted.all[{l.kernel, l.threads, l.shared}]++;
    if (launched_now) launched_now->push_back(l);
    return config.runs;
}

static std::atomic<int64_t> launched[2];
int64_t launches(bool overlapping) { return launched[1] + (overlapping ? 0 : int64_t(launched[0])); }

[[noreturn]] static void fail_at_launch(const Grid& g, const Error& e) {
    throw Error(std::string(e.what()) + " [launched at " + g.at.text() + "]");
}

void begin_grid(const Grid& g, void (*body)(void*), void* arg, Begun& begun) {
    Hidden hidden;
    begun.clear();
    const std::vector<uint3> blocks = order_of_blocks(g);
    Rng draws{config.seed};
    gridDim = g.blocks;
    try {
        for (size_t i = 0, n = std::min<size_t>(blocks.size(), 1 + config.seed % 4); i < n; i++) {
            begun.push_back(take_block());
            begun[i]->rng.state = draws();
            begun[i]->start(blocks[i], g, body, arg, Run::ahead);
            begun[i]->resume();
        }
    } catch (const Error& e) { fail_at_launch(g, e); }
}

void run_grid(const Grid& g, void (*body)(void*), void* arg, Begun& begun) {
    launched[g.overlaps]++;
    Team team{g, order_of_blocks(g), body, arg, begun, {}, {}};
    const auto never = Team::Clock::time_point::max();
    if (g.together) {
        team.work_together();
    } else if (config.seed || g.serial || config.os_threads < 2) {
        team.work(never);
    } else {    // more OS threads start after 300 us
        team.work(Team::Clock::now() + std::chrono::microseconds(300));
        std::vector<std::thread> others;
        if (team.next < team.blocks.size())
            for (unsigned i = 1; i < config.os_threads; i++) others.emplace_back([&] { team.work(never); });
        team.work(never);
        for (auto& t : others) t.join();
    }
    begun.clear();
    if (!team.error) return;
    try {
        std::rethrow_exception(team.error);
    } catch (const Error& e) { fail_at_launch(g, e); }
}

}    // namespace emu

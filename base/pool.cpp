#include "pool.h"

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <mutex>
#include <sched.h>
#include <system_error>
#include <thread>
#include <unistd.h>
#include <vector>

#include "common.h"

namespace {
// Rounds of waiting, of about 40 cycles each, before a thread sleeps: for the next loop, and for
// the last chunks of this one.
constexpr int NEXT_LOOP = 1000, LAST_CHUNKS = 100;

void pause() {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#endif
}

// Chunks that are not claimed yet, [first, end) as two halves of a word. Its owner claims the
// first, other workers claim the last: the owner's chunks follow each other in memory, and in the
// next loop they are likely to be the same.
struct Unclaimed {
    alignas(64) std::atomic<uint64_t> word{0};

    void set(int64_t first, int64_t end) {
        word.store(uint64_t(first) << 32 | uint64_t(end), std::memory_order_release);
    }
    // Returns a chunk, or -1 if there is none.
    int64_t take(bool owner) {
        uint64_t now = word.load(std::memory_order_acquire);
        while (true) {
            const uint32_t first = uint32_t(now >> 32), end = uint32_t(now);
            if (first >= end) return -1;
            const uint64_t rest = owner ? now + (uint64_t(1) << 32) : now - 1;
            if (word.compare_exchange_weak(now, rest, std::memory_order_acq_rel, std::memory_order_acquire))
                return owner ? first : end - 1;
        }
    }
};

int core_count() {
    cpu_set_t cores;
    if (sched_getaffinity(0, sizeof cores, &cores) == 0) return CPU_COUNT(&cores);
    return std::max(1, int(std::thread::hardware_concurrency()));    // more than 1024 cores
}

thread_local int current_worker = -1;    // worker of this thread's chunk; -1: none

class Pool {
  public:
    // Where the system refuses a thread, those that there are run its chunks, too.
    explicit Pool(int threads) : unclaimed(size_t(threads)) {
        try {
            for (int w = 1; w < threads; w++) others.emplace_back([this, w] { run_loops(w); });
        } catch (const std::system_error&) {}
    }
    ~Pool() {
        stopping = true;
        loop.fetch_add(1);
        loop.notify_all();
        for (std::thread& t : others) t.join();
    }
    int threads() const { return int(unclaimed.size()); }

    void run(int64_t chunks, ChunkBody new_body, const void* new_context) {
        body = new_body;
        context = new_context;
        unfinished.store(int(chunks), std::memory_order_relaxed);
        const int64_t n = threads();
        for (int64_t w = 0; w < n; w++) unclaimed[size_t(w)].set(chunks * w / n, chunks * (w + 1) / n);
        loop.fetch_add(1);
        // More threads than cores would only take the cores from each other: the rest sleeps on.
        const int most_awake = std::min({cores - 1, int(others.size()), int(chunks) - 1});
        for (int awake = int(others.size()) - sleeping; awake < most_awake; awake++) loop.notify_one();
        run_chunks(0);
        for (int round = 0, left; (left = unfinished.load(std::memory_order_acquire)) > 0; round++)
            if (round < LAST_CHUNKS) pause();
            else unfinished.wait(left, std::memory_order_acquire);
    }

  private:
    ChunkBody body = nullptr;
    const void* context = nullptr;
    std::vector<Unclaimed> unclaimed;
    alignas(64) std::atomic<int> loop{0};    // counts the loops
    alignas(64) std::atomic<int> unfinished{0};
    std::atomic<bool> stopping{false};
    const int cores = core_count();
    std::atomic<int> sleeping{0};
    std::vector<std::thread> others;

    // A claimed chunk keeps its loop from ending, so that body and context are this loop's.
    int64_t take(int worker) {
        const int n = threads();
        int64_t chunk = unclaimed[size_t(worker)].take(true);
        for (int i = 1; i < n && chunk < 0; i++) chunk = unclaimed[size_t((worker + i) % n)].take(false);
        return chunk;
    }
    void run_chunks(int worker) noexcept {
        current_worker = worker;
        for (int64_t chunk; (chunk = take(worker)) >= 0;) {
            body(context, chunk, worker);
            if (unfinished.fetch_sub(1, std::memory_order_acq_rel) == 1 && worker > 0) unfinished.notify_one();
        }
        current_worker = -1;
    }
    void run_loops(int worker) {
        for (int seen = 0; !stopping;) {
            int now = loop.load(std::memory_order_acquire);
            for (int round = 0; now == seen && round < NEXT_LOOP; round++) {
                pause();
                now = loop.load(std::memory_order_acquire);
            }
            if (now == seen) {
                sleeping++;
                loop.wait(seen);
                sleeping--;
            } else {
                run_chunks(worker);
            }
            seen = now;
        }
    }
};

int default_threads() {
    const char* asked = getenv("OMP_NUM_THREADS");
    const int threads = asked ? atoi(asked) : 0;
    return threads > 0 ? threads : core_count();
}
std::mutex one_loop;
Pool* pool = nullptr;    // never deleted at exit: after a fork its threads are not there to be joined
pid_t pool_process;
std::atomic<int> wanted{0};
}    // namespace

int pool_threads() {
    if (wanted == 0) wanted = default_threads();
    return wanted;
}
void pool_set_threads(int threads) {
    CHECK(threads > 0 && current_worker < 0, "%d threads, set by worker %d", threads, current_worker);
    const std::lock_guard<std::mutex> lock(one_loop);
    wanted = threads;
}

void pool_run(int64_t chunks, ChunkBody body, const void* context) {
    CHECK(chunks <= INT32_MAX, "%lld chunks", (long long)chunks);
    const int threads = pool_threads();
    if (chunks > 1 && threads > 1 && current_worker < 0 && one_loop.try_lock()) {
        const std::lock_guard<std::mutex> lock(one_loop, std::adopt_lock);
        if (!pool || pool->threads() != threads) {
            if (pool_process == getpid()) delete pool;
            pool = nullptr;
            pool = new Pool(threads);
            pool_process = getpid();
        }
        return pool->run(chunks, body, context);
    }
    const int worker = current_worker < 0 ? 0 : current_worker;
    for (int64_t chunk = 0; chunk < chunks; chunk++) body(context, chunk, worker);
}

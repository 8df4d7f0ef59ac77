#include "pool.h"

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <exception>
#include <mutex>
#include <sched.h>
#include <thread>
#include <unistd.h>
#include <vector>

#include "common.h"

namespace {
// Rounds of active waiting before a thread sleeps, some 20 ns each on x86: of a worker for the next
// loop, of the caller for the last chunks of others. A thread that sleeps leaves its core to other
// processes: with 1000 and 100, training beside two busy processes is 0.75 times as fast.
constexpr int NEXT_LOOP = 8000, LAST_CHUNKS = 20000;

void spin_pause() {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#endif
}

// A worker's chunks that are not taken yet, first..end-1: `first` in the upper half of the word,
// `end` in the lower. Their worker takes the first one, other workers take the last. So a worker's
// chunks follow each other in memory and are mostly those that it had in the loop before, whose
// memory is in its core's caches.
struct ChunksLeft {
    alignas(64) std::atomic<uint64_t> word{0};

    void set(int64_t first, int64_t end) {
        word.store(uint64_t(first) << 32 | uint64_t(end), std::memory_order_release);
    }
    // Returns a chunk, or -1 if there is none.
    int64_t take(bool first_one) {
        uint64_t now = word.load(std::memory_order_acquire);
        while (true) {
            const uint32_t first = uint32_t(now >> 32), end = uint32_t(now);
            if (first >= end) return -1;
            const uint64_t rest = first_one ? now + (uint64_t(1) << 32) : now - 1;
            if (word.compare_exchange_weak(now, rest, std::memory_order_acq_rel, std::memory_order_acquire))
                return first_one ? first : end - 1;
        }
    }
};

// The worker whose chunk this thread runs; -1: none, or a chunk of a loop that runs on its caller
// alone.
thread_local int current_worker = -1;

class Pool {
  public:
    // If the system refuses a thread, the others run its chunks, too.
    explicit Pool(int workers) : chunks_left(size_t(workers)) {
        others.reserve(size_t(workers));
        try {
            for (int w = 1; w < workers; w++) others.emplace_back([this, w] { run_loops(w); });
        } catch (const std::exception&) {}
    }
    ~Pool() {
        stopping = true;
        loop_number.fetch_add(1);
        loop_number.notify_all();
        for (std::thread& t : others) t.join();
    }
    int workers() const { return int(chunks_left.size()); }

    void run(int64_t chunks, ChunkBody new_body, const void* new_context) {
        body = new_body;
        context = new_context;
        unfinished.store(int(chunks), std::memory_order_relaxed);
        const int64_t n = workers();
        for (int64_t w = 0; w < n; w++) chunks_left[size_t(w)].set(chunks * w / n, chunks * (w + 1) / n);
        // A worker raises `sleeping` before it compares loop_number for the last time, and both are
        // sequentially consistent: it either sees this loop or is woken for it.
        loop_number.fetch_add(1);
        // More threads than cores would only take the cores from each other: the rest sleeps on.
        const int most_awake = std::min({cores - 1, int(others.size()), int(chunks) - 1});
        for (int awake = int(others.size()) - sleeping; awake < most_awake; awake++) loop_number.notify_one();
        run_chunks(0);
        for (int round = 0, left; (left = unfinished.load(std::memory_order_acquire)) > 0; round++)
            if (round < LAST_CHUNKS) spin_pause();
            else unfinished.wait(left, std::memory_order_acquire);
    }

  private:
    // Not atomic, and yet safe: a worker reads them after it has taken a chunk, and `run` writes
    // them when all chunks taken before are done.
    ChunkBody body = nullptr;
    const void* context = nullptr;
    std::vector<ChunksLeft> chunks_left;    // by worker
    alignas(64) std::atomic<int> loop_number{0};
    alignas(64) std::atomic<int> unfinished{0};    // chunks
    alignas(64) std::atomic<int> sleeping{0};      // workers
    std::atomic<bool> stopping{false};
    const int cores = pool_cores();
    std::vector<std::thread> others;

    int64_t take(int worker) {
        const int n = workers();
        int64_t chunk = chunks_left[size_t(worker)].take(true);
        for (int i = 1; i < n && chunk < 0; i++) chunk = chunks_left[size_t((worker + i) % n)].take(false);
        return chunk;
    }
    // An exception would leave the loop while other workers use its context.
    void run_chunks(int worker) noexcept {
        current_worker = worker;
        for (int64_t chunk; (chunk = take(worker)) >= 0;) {
            body(context, chunk, worker);
            const bool last = unfinished.fetch_sub(1, std::memory_order_acq_rel) == 1;
            if (last && worker > 0) unfinished.notify_one();    // for worker 0
        }
        current_worker = -1;
    }
    void run_loops(int worker) {
        for (int seen = 0; !stopping;) {
            int now = loop_number.load(std::memory_order_acquire);
            for (int round = 0; now == seen && round < NEXT_LOOP; round++) {
                spin_pause();
                now = loop_number.load(std::memory_order_acquire);
            }
            if (now == seen) {
                sleeping++;
                loop_number.wait(seen);
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
    return threads > 0 ? threads : pool_cores();
}
std::mutex one_loop;
// Never deleted at exit, because a forked child has no threads to join. In such a child the caller
// runs all chunks, until another number of threads makes a new pool.
Pool* pool = nullptr;
pid_t pool_process;
std::atomic<int> wanted_threads{0};
}    // namespace

int pool_cores() {
    cpu_set_t mask;
    const bool fits = sched_getaffinity(0, sizeof mask, &mask) == 0;    // at most 1024 CPUs
    return fits ? CPU_COUNT(&mask) : std::max(1, int(std::thread::hardware_concurrency()));
}
int pool_threads() {
    if (wanted_threads == 0) {
        int unset = 0;
        wanted_threads.compare_exchange_strong(unset, default_threads());
    }
    return wanted_threads;
}
void pool_set_threads(int threads) {
    CHECK(threads > 0 && current_worker < 0, "%d threads, set by worker %d", threads, current_worker);
    const std::lock_guard<std::mutex> lock(one_loop);
    wanted_threads = threads;
}

void pool_run(int64_t chunks, ChunkBody body, const void* context) {
    CHECK(chunks <= INT32_MAX, "%lld chunks", (long long)chunks);
    const int threads = pool_threads();
    if (chunks > 1 && threads > 1 && current_worker < 0 && one_loop.try_lock()) {
        const std::lock_guard<std::mutex> lock(one_loop, std::adopt_lock);
        if (!pool || pool->workers() != threads) {
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

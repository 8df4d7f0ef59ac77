#include "pool.h"

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <exception>
#include <mutex>
#include <pthread.h>
#include <sched.h>
#include <thread>
#include <time.h>
#include <unistd.h>
#include <vector>

#include "common.h"

namespace {
// Rounds of active waiting before a thread sleeps, some 20 ns each on x86: of a worker for the next
// loop, of the caller for the last chunks of others. A thread that sleeps leaves its core to other
// processes: with 1000 and 100, training beside two busy processes is 0.75 times as fast.
constexpr int NEXT_LOOP = 8000, LAST_CHUNKS = 20000;
// A thread that has waited LOOK_EVERY rounds for others' chunks watches for LOOK rounds whether
// their threads run. Most chunks take less time.
constexpr int LOOK_EVERY = 2500, LOOK = 400;

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

// A worker's thread, as other threads see it. If the system has put it aside within a chunk, a
// thread that has no chunk moves it to its own core, where it can run at once. Without that, loops
// beside one other process on two cores would wait for that process half of the time.
class WorkerThread {
  public:
    // Called by the thread itself; another loop's caller may be another thread.
    void enter_loop() {
        thread_local const pid_t own_id = gettid();
        thread_local const clockid_t own_clock = own_cpu_clock();
        thread.store(own_id, std::memory_order_relaxed);
        clock.store(own_clock, std::memory_order_relaxed);
        core.store(sched_getcpu(), std::memory_order_relaxed);
        in_loop.store(true, std::memory_order_release);
    }
    void leave_loop() { in_loop.store(false, std::memory_order_release); }

    // Whether it may have a chunk, and uses no CPU time for LOOK rounds.
    bool is_put_aside() const {
        if (!in_loop || moved != NOT_MOVED) return false;
        const int64_t before = cpu_time();
        for (int round = 0; round < LOOK && in_loop; round++) spin_pause();
        return before >= 0 && in_loop && cpu_time() == before;
    }
    // Moves it to the calling thread's core and returns the core that it had; -1 if the system
    // refuses or another thread was first. The calling thread then leaves its core: it sleeps until
    // the moved thread, after its chunk, goes back (`returns`), or goes to the core returned.
    int move_here(const cpu_set_t& all, bool returns) {
        const int its_core = core, here = sched_getcpu();
        if (here == its_core) return its_core;
        int none = NOT_MOVED;
        if (!moved.compare_exchange_strong(none, returns ? its_core : STAY)) return -1;
        // The moved thread may run before set_core returns, and may settle before it is moved.
        const bool can = set_core(thread, here);
        if (!can) moved = NOT_MOVED;
        else if (moved == NOT_MOVED) sched_setaffinity(thread, sizeof all, &all);
        return can ? its_core : -1;
    }
    bool was_moved() const { return moved.load(std::memory_order_relaxed) != NOT_MOVED; }
    // Called by the thread itself, without a chunk: it goes back, and may run on all cores again.
    void settle(const cpu_set_t& all) {
        const int back = moved.exchange(NOT_MOVED);
        if (back == NOT_MOVED) return;
        if (back >= 0) set_core(0, back);
        sched_setaffinity(0, sizeof all, &all);
    }
    // 0 is the calling thread, which this moves at once.
    static bool set_core(pid_t which, int core) {
        cpu_set_t one;
        CPU_ZERO(&one);
        CPU_SET(core, &one);
        return sched_setaffinity(which, sizeof one, &one) == 0;
    }

  private:
    enum : int { NOT_MOVED = -2, STAY = -1 };    // or the core to which it goes back
    alignas(64) std::atomic<bool> in_loop{false};
    std::atomic<pid_t> thread{0};
    std::atomic<clockid_t> clock{-1};
    std::atomic<int> core{0}, moved{NOT_MOVED};

    static clockid_t own_cpu_clock() {
        clockid_t own;
        return pthread_getcpuclockid(pthread_self(), &own) == 0 ? own : -1;
    }
    int64_t cpu_time() const {    // ns, -1 if the system does not tell
        timespec t;
        return clock_gettime(clock, &t) == 0 ? int64_t(t.tv_sec) * 1000000000 + t.tv_nsec : -1;
    }
};

// The worker whose chunk this thread runs; -1: none, or a chunk of a loop that runs on its caller
// alone.
thread_local int current_worker = -1;

class Pool {
  public:
    // If the system refuses a thread, the others run its chunks, too.
    explicit Pool(int workers) : chunks_left(size_t(workers)), threads(size_t(workers)) {
        can_move = cores > 1 && sched_getaffinity(0, sizeof all_cores, &all_cores) == 0;
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
        bool sleeps = false;
        for (int round = 1, left; (left = unfinished.load(std::memory_order_acquire)) > 0; round++) {
            sleeps = sleeps || round > LAST_CHUNKS || (round % LOOK_EVERY == 0 && move_one_here(0) >= 0);
            if (sleeps) unfinished.wait(left, std::memory_order_acquire);
            else spin_pause();
        }
        if (threads[0].was_moved()) threads[0].settle(all_cores);
    }

  private:
    // Not atomic, and yet safe: a worker reads them after it has taken a chunk, and `run` writes
    // them when all chunks taken before are done.
    ChunkBody body = nullptr;
    const void* context = nullptr;
    std::vector<ChunksLeft> chunks_left;    // by worker
    std::vector<WorkerThread> threads;      // by worker
    cpu_set_t all_cores;                    // those of the process
    bool can_move = false;
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
    // Moves a thread that is put aside within a chunk to this worker's core. Returns the core that
    // the thread had, or -1: none was moved.
    int move_one_here(int worker) {
        for (int w = 0; can_move && w < workers(); w++)
            if (w != worker && threads[size_t(w)].is_put_aside())
                return threads[size_t(w)].move_here(all_cores, worker == 0);
        return -1;
    }
    // An exception would leave the loop while other workers use its context.
    void run_chunks(int worker) noexcept {
        current_worker = worker;
        threads[size_t(worker)].enter_loop();
        for (int64_t chunk; (chunk = take(worker)) >= 0;) {
            if (pool_before_chunk) pool_before_chunk(chunk, worker);
            body(context, chunk, worker);
            const bool last = unfinished.fetch_sub(1, std::memory_order_acq_rel) == 1;
            if (last && worker > 0) unfinished.notify_one();    // for worker 0
        }
        threads[size_t(worker)].leave_loop();
        current_worker = -1;
    }
    // While a worker waits for the next loop, a thread of this one may need its core.
    void help_others(int worker, int round) {
        if (threads[size_t(worker)].was_moved()) threads[size_t(worker)].settle(all_cores);
        if (round % LOOK_EVERY != 0 || unfinished.load(std::memory_order_relaxed) == 0) return;
        const int free_core = move_one_here(worker);
        if (free_core >= 0 && WorkerThread::set_core(0, free_core)) sched_setaffinity(0, sizeof all_cores, &all_cores);
    }
    void run_loops(int worker) {
        for (int seen = 0; !stopping;) {
            int now = loop_number.load(std::memory_order_acquire);
            for (int round = 1; now == seen && round < NEXT_LOOP; round++) {
                spin_pause();
                help_others(worker, round);
                now = loop_number.load(std::memory_order_acquire);
            }
            if (now == seen) {
                sleeping++;
                loop_number.wait(seen);
                sleeping--;
            } else {
                run_chunks(worker);
                if (threads[size_t(worker)].was_moved()) threads[size_t(worker)].settle(all_cores);
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

void (*pool_before_chunk)(int64_t, int) = nullptr;

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

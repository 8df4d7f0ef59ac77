#include "pool.h"

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <mutex>
#include <new>
#include <optional>
#include <pthread.h>
#include <sched.h>
#include <thread>
#include <time.h>
#include <unistd.h>
#include <vector>

#include "common.h"

namespace {
// Rounds of active waiting before a thread sleeps, some 20 ns each on x86: of a worker for the next
// loop, of the caller for the last chunks of others. A thread that sleeps loses its core to other
// processes. So both limits are long: with 1000 and 100, training beside two busy processes is 0.75
// times as fast.
constexpr int NEXT_LOOP = 8000, LAST_CHUNKS = 20000;
// A thread that has waited LOOK_EVERY rounds for others' chunks watches for LOOK rounds whether
// their threads run. Most chunks end within LOOK_EVERY rounds, so an earlier look would find
// nothing.
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

// The calling thread's id, which is kept because gettid is a system call; 0: a forked child's
// thread must ask again.
thread_local pid_t thread_id = 0;

cpu_set_t one_core(int core) {
    cpu_set_t one;
    CPU_ZERO(&one);
    CPU_SET(core, &one);
    return one;
}
// The calling thread goes to one of `cores`, then may run on all cores of `mask`.
void go_to(const cpu_set_t& cores, const cpu_set_t& mask) {
    sched_setaffinity(0, sizeof cores, &cores);
    if (sched_setaffinity(0, sizeof mask, &mask) == 0) return;
    cpu_set_t all;    // the process was given other cores meanwhile
    memset(&all, 0xff, sizeof all);
    sched_setaffinity(0, sizeof all, &all);
}

// The thread of one worker. If it is preempted within a chunk, a thread that waits for it, the
// helper, moves it to the helper's core, at most once a loop. Without that, loops beside one other
// process on two cores would wait for that process half of the time. A thread that blocks looks the
// same. Threads and processes that are started within a chunk may inherit a mask of one core.
class WorkerThread {
  public:
    // The thread itself calls enter_loop and leave_loop. Worker 0 may be another thread in each
    // loop, so enter_loop notes the thread again.
    void enter_loop() {
        if (thread_id == 0) thread_id = gettid();
        clockid_t own_clock = -1;
        pthread_getcpuclockid(pthread_self(), &own_clock);
        thread.store(thread_id, std::memory_order_relaxed);
        clock.store(own_clock, std::memory_order_relaxed);
        core.store(sched_getcpu(), std::memory_order_relaxed);    // the system may move it later
        in_loop.store(true, std::memory_order_release);
    }
    void leave_loop() {
        const std::lock_guard<std::mutex> lock(moving);
        in_loop = false;
        if (!moved) return;
        moved = false;
        go_to(returns ? away : mask, mask);
    }

    // Whether it may have a chunk, and uses no CPU time for LOOK rounds.
    bool is_put_aside() const {
        if (!in_loop || moved) return false;
        const int64_t before = cpu_time();
        for (int round = 0; round < LOOK && in_loop; round++) spin_pause();
        return before >= 0 && in_loop && cpu_time() == before;
    }
    // Moves it to the calling thread's core, which that thread, the helper, must then free. Returns
    // the cores to which one of both threads goes: with `then_returns` the moved one, after its
    // last chunk, while the helper sleeps until the loop ends; else the helper, at once. If both
    // were on one core, nothing moves before that. Returns nothing if the thread has left the loop,
    // another helper was first, or the system refuses.
    std::optional<cpu_set_t> move_here(bool then_returns) {
        // A thread that leaves the loop waits for the lock. So it is never moved afterwards.
        const std::unique_lock<std::mutex> lock(moving, std::try_to_lock);
        if (!lock || !in_loop || moved || sched_getaffinity(thread, sizeof mask, &mask) != 0) return {};
        const int its_core = core, here = sched_getcpu();
        const cpu_set_t one = one_core(here);
        if (its_core != here && sched_setaffinity(thread, sizeof one, &one) != 0) return {};
        away = its_core != here ? one_core(its_core) : mask;
        CPU_CLR(here, &away);
        moved = true;
        returns = then_returns;
        return away;
    }

  private:
    alignas(64) std::atomic<bool> in_loop{false};
    std::atomic<bool> moved{false};
    std::atomic<pid_t> thread{0};
    std::atomic<clockid_t> clock{-1};
    std::atomic<int> core{0};
    std::mutex moving;
    cpu_set_t mask, away;    // the mask that it had; the cores to which one of both threads goes
    bool returns = false;    // this thread goes there, not its helper

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
            sleeps = sleeps || round > LAST_CHUNKS || (round % LOOK_EVERY == 0 && move_one_here(0));
            if (sleeps) unfinished.wait(left, std::memory_order_acquire);
            else spin_pause();
        }
    }

  private:
    // Not atomic, and yet safe: a worker reads them after it has taken a chunk, and `run` writes
    // them when all chunks taken before are done.
    ChunkBody body = nullptr;
    const void* context = nullptr;
    std::vector<ChunksLeft> chunks_left;    // by worker
    std::vector<WorkerThread> threads;      // by worker
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
    // WorkerThread::move_here of the first other worker that is put aside, if any is.
    std::optional<cpu_set_t> move_one_here(int worker) {
        for (int w = 0; cores > 1 && w < workers(); w++)
            if (w != worker && threads[size_t(w)].is_put_aside()) return threads[size_t(w)].move_here(worker == 0);
        return {};
    }
    // noexcept, because an exception would end the context's life while other workers use it.
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
    // A thread of the current loop may need the core on which this worker waits for the next one.
    void free_core(int worker) {
        cpu_set_t mask;
        const std::optional<cpu_set_t> away = move_one_here(worker);
        if (away && sched_getaffinity(0, sizeof mask, &mask) == 0) go_to(*away, mask);
    }
    void run_loops(int worker) {
        for (int seen = 0; !stopping;) {
            int now = loop_number.load(std::memory_order_acquire);
            for (int round = 1; now == seen && round < NEXT_LOOP; round++) {
                spin_pause();
                if (round % LOOK_EVERY == 0 && unfinished.load(std::memory_order_relaxed) > 0) free_core(worker);
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
// Not deleted at exit, when other threads may still run loops. In a forked child callers run all
// chunks, until pool_set_threads is called.
Pool* pool = nullptr;
std::atomic<bool> alone{false};
void enter_child() {
    new (&one_loop) std::mutex;    // another thread may have held it
    pool = nullptr;
    alone = true;
    thread_id = 0;
}
std::atomic<int> wanted_threads{0};
std::atomic<int64_t> divided_loops{0};
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
    alone = false;
}

int64_t pool_loops() { return divided_loops; }

void pool_run(int64_t chunks, ChunkBody body, const void* context) {
    CHECK(chunks <= INT32_MAX, "%lld chunks", (long long)chunks);
    const int threads = pool_threads();
    if (chunks > 1 && threads > 1 && current_worker < 0 && !alone && one_loop.try_lock()) {
        const std::lock_guard<std::mutex> lock(one_loop, std::adopt_lock);
        if (!pool || pool->workers() != threads) {
            static const int watched = pthread_atfork(nullptr, nullptr, enter_child);
            (void)watched;
            delete pool;
            pool = nullptr;
            pool = new Pool(threads);
        }
        divided_loops++;
        return pool->run(chunks, body, context);
    }
    const int worker = current_worker < 0 ? 0 : current_worker;
    for (int64_t chunk = 0; chunk < chunks; chunk++) body(context, chunk, worker);
}

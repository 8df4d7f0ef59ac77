// test_pool.cpp - parallel loops: each chunk runs once, concurrent workers differ, loops within
// loops and beside those of another thread, a worker that is delayed, a forked process.
#include "base/pool.h"

#include <sched.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <thread>
#include <vector>

#include "base/philox.h"
#include "test.h"

namespace {
struct Threads {    // sets the pool's number of threads; the one before comes back
    int before = pool_threads();
    explicit Threads(int n) { pool_set_threads(n); }
    ~Threads() { pool_set_threads(before); }
};
void sleep_us(int us) { std::this_thread::sleep_for(std::chrono::microseconds(us)); }
}    // namespace

TEST_CASE("pool: each chunk runs once, and no worker's number is in use twice at a time") {
    for (const int threads : {1, 2, 3, 7}) {
        const Threads set(threads);
        std::vector<std::atomic<int>> busy(static_cast<size_t>(threads));
        std::atomic<int> clashes{0};
        for (int loop = 0; loop < 200; loop++) {
            const int64_t chunks = loop % 50;
            std::vector<std::atomic<int>> calls(static_cast<size_t>(chunks) + 1);
            each_chunk(chunks, [&](int64_t chunk, int worker) {
                clashes += worker < 0 || worker >= threads || busy[size_t(worker)]++ != 0;
                calls[size_t(chunk)]++;
                if (philox(5, uint64_t(loop), uint64_t(chunk)).v[0] % 8 == 0) sleep_us(50);
                busy[size_t(worker)]--;
            });
            int64_t once = 0;
            for (int64_t i = 0; i < chunks; i++) once += calls[size_t(i)] == 1;
            CHECK(once == chunks);
        }
        CHECK(clashes == 0);
    }
}
TEST_CASE("pool: loops that are divided among threads are counted") {
    const Threads set(2);
    const int64_t before = pool_loops();
    each_chunk(5, [](int64_t, int) { each_chunk(3, [](int64_t, int) {}); });    // the inner ones are not divided
    each_chunk(1, [](int64_t, int) {});
    CHECK(pool_loops() == before + 1);
    const Threads alone(1);
    each_chunk(5, [](int64_t, int) {});
    CHECK(pool_loops() == before + 1);
}
TEST_CASE("pool: a loop sees what was written before it, and its caller what its chunks wrote") {
    const Threads set(3);
    std::vector<int64_t> x(64, 0);
    for (int64_t loop = 1; loop <= 20000; loop++) each_chunk(64, [&](int64_t i, int) { x[size_t(i)] += loop; });
    for (const int64_t sum : x) CHECK(sum == int64_t(20000) * 20001 / 2);
    if (pool_cores() < 2) return;
    std::atomic<int> started{0};
    int late[2] = {};
    each_chunk(2, [&](int64_t chunk, int worker) {
        started++;
        while (started < 2) std::this_thread::yield();    // a second thread has the other chunk
        if (worker > 0) sleep_us(5000);
        late[chunk] = 1;
    });
    CHECK(late[0] + late[1] == 2);
}
TEST_CASE("pool: a loop within a chunk runs on the chunk's worker, one beside another on its caller") {
    const Threads set(2);
    std::atomic<int> wrong{0}, inner{0};
    each_chunk(40, [&](int64_t, int worker) {
        sleep_us(100);    // so that both workers take some
        each_chunk(5, [&](int64_t, int nested) {
            wrong += nested != worker;
            inner++;
        });
    });
    CHECK(wrong == 0);
    CHECK(inner == 200);
    std::atomic<bool> started{false}, ended{false};
    std::thread beside([&] {
        while (!started) std::this_thread::yield();
        const auto self = std::this_thread::get_id();
        each_chunk(10, [&](int64_t, int) { wrong += std::this_thread::get_id() != self; });
        ended = true;
    });
    each_chunk(2, [&](int64_t, int) {
        started = true;
        while (!ended) std::this_thread::yield();
    });
    beside.join();
    CHECK(wrong == 0);
}
// If the second worker takes a chunk, this ends only when all others are done. A loop that divides
// its chunks evenly would not end.
TEST_CASE("pool: while a worker is stuck in a chunk, the others run all other chunks") {
    const Threads set(2);
    std::atomic<int> done{0}, taken{0};
    each_chunk(100, [&](int64_t, int worker) {
        if (worker == 1 && taken++ == 0)
            while (done < 99) std::this_thread::yield();
        else sleep_us(20);
        done++;
    });
    CHECK(done == 100);
}
// A thread that sleeps in a chunk looks like one that the system has put aside: another thread
// gives it its core. Afterwards both may run on all cores again.
TEST_CASE("pool: a thread that is put aside within a chunk is moved to the core of one that waits") {
    if (pool_cores() < 2) SKIP("needs two cores");
    const Threads set(2);
    cpu_set_t all;
    REQUIRE(sched_getaffinity(0, sizeof all, &all) == 0);
    const auto mine = [] {
        cpu_set_t mask;
        return sched_getaffinity(0, sizeof mask, &mask) == 0 ? mask : cpu_set_t{};
    };
    const auto each_worker = [](const auto& f) {    // calls f(worker) once on both threads
        std::atomic<int> started{0};
        each_chunk(2, [&](int64_t, int worker) {
            started++;
            while (started < 2) std::this_thread::yield();
            f(worker);
        });
    };
    const auto part = [&] {    // two threads on one core would not move each other
        each_worker([&](int worker) {
            cpu_set_t own;
            CPU_ZERO(&own);
            for (int core = 0, n = 0; core < CPU_SETSIZE; core++)
                if (CPU_ISSET(core, &all) && n++ % 2 == worker) CPU_SET(core, &own);
            sched_setaffinity(0, sizeof own, &own);
            sched_setaffinity(0, sizeof all, &all);
        });
    };
    int pinned = 0;
    for (const int sleeper : {0, 1}) {
        bool moved = false, free = false;    // other processes may spoil one attempt
        for (int attempt = 0; attempt < 50 && !moved; attempt++) {
            part();
            each_worker([&](int worker) {
                if (worker != sleeper) return;
                sleep_us(20000);
                const cpu_set_t mask = mine();
                moved = CPU_COUNT(&mask) == 1;
            });
            const cpu_set_t mask = mine();
            pinned += CPU_EQUAL(&mask, &all) ? 0 : 1;
        }
        CHECK(moved);
        for (int attempt = 0; attempt < 50 && !free; attempt++) {
            std::atomic<int> on_all{0};
            each_chunk(2, [&](int64_t, int) {
                const cpu_set_t mask = mine();
                on_all += CPU_EQUAL(&mask, &all) ? 1 : 0;
            });
            free = on_all == 2;
        }
        CHECK(free);
    }
    CHECK(pinned == 0);    // the caller's own thread, right after a loop
}
TEST_CASE("pool: a forked process runs loops on its one thread") {
    const Threads set(2);
    std::atomic<int> calls{0};
    each_chunk(4, [&](int64_t, int) { calls++; });
    const pid_t child = fork();
    if (child == 0) {
        std::atomic<int> own{0};
        for (int i = 0; i < 100; i++) each_chunk(50, [&](int64_t, int) { own++; });
        _exit(own == 5000 ? 0 : 1);
    }
    int status = -1;
    REQUIRE(waitpid(child, &status, 0) == child);
    CHECK(status == 0);
}

// main.cpp - a rank of the collectives' tests, started by mpirun: tests all collectives of one
// engine, or measures their speed.
// Usage: mpirun -n N test_ranks mpi|nccl|bench|stuck
#include "ranks_test.h"

#include <csignal>
#include <cstdarg>
#include <unistd.h>

#include "test/limit.h"
#include "model/device.h"

namespace {
int rank_here = 0, failed = 0;

volatile sig_atomic_t handled_by = 0;
void on_signal(int) { handled_by = gettid(); }

struct Handlers {
    void (*of[NSIG])(int) = {};
    Handlers() {
        for (int s = 1; s < NSIG; s++)
            if (struct sigaction now; sigaction(s, nullptr, &now) == 0) of[s] = now.sa_handler;
    }
};
void test_signals(const Handlers& before) {
    const Handlers now;
    for (int s = 1; s < NSIG; s++) expect(now.of[s] == before.of[s], "signal %d has another handler", s);
    // While the main thread blocks SIGTERM, no other thread may handle it.
    sigset_t term;
    sigemptyset(&term);
    sigaddset(&term, SIGTERM);
    pthread_sigmask(SIG_BLOCK, &term, nullptr);
    kill(getpid(), SIGTERM);
    usleep(20000);
    expect(!handled_by, "another thread than the main one took SIGTERM");
    pthread_sigmask(SIG_UNBLOCK, &term, nullptr);
    expect(handled_by == getpid(), "nobody took SIGTERM");
}
void test_broadcast(Comm& comm) {
    for (const std::string& text : {std::string(), std::string("host:1234"), std::string(1000, '\0') + "end"}) {
        const std::string got = mpi_broadcast(comm, comm.rank == 0 ? text : "not this");
        expect(got == text, "mpi_broadcast of %zu bytes gave %zu others", text.size(), got.size());
    }
}
int complain(const Status& s) {
    fprintf(stderr, "rank %d: %s\n", rank_here, s.message.c_str());
    return int(s.code);
}
int close(const Comm& comm) {
    if (rank_here == 0) printf("%s, %d ranks: %d failures on rank 0\n", comm.name().c_str(), comm.ranks, failed);
    return failed > 0;
}

int by_mpi(bool measure) {
    signal(SIGTERM, on_signal);
    const Handlers before;
    const Result<RankInfo> info = comm_rank_info({}, [](const char* name) -> const char* { return getenv(name); });
    if (!info.ok()) return complain(info.status);
    rank_here = info.value.rank;
    Result<std::unique_ptr<Comm>> comm = mpi_open(info.value);
    if (!comm.ok()) return complain(comm.status);
    Activity activity;
    comm.value->activity = &activity;
    const Table cpu = cpu_ops<float>();
    const Engine e = {comm.value.get(), &cpu, true};
    if (measure) return bench(e);
    test_signals(before);
    test_broadcast(*comm.value);
    const int64_t count = progress_count, mark = comm.value->mark();
    expect(mark > 0 && count >= mark, "a pulse of %lld after %lld collectives", static_cast<long long>(count),
           static_cast<long long>(mark));
    test_collectives(e);
    test_in_flight(e);
    expect(!activity.waiting, "still said to be waiting");
    return close(*comm.value);
}
int by_nccl() {
    Ranks ranks;
    if (Status s = ranks.open({}); !s.ok()) return complain(s);
    rank_here = ranks.rank();
    DeviceOptions options;
    options.device = "cuda", options.dtype = "fp32";
    const Result<Device> device = open_device(options, false, ranks.info.local_rank);
    if (Status s = ranks.agree(device.status); !s.ok()) return complain(s);
    if (Status s = ranks.start(true); !s.ok()) return complain(s);
    CHECK(ranks.comm, "no launcher: start it by mpirun");
    const Engine e = {ranks.comm.get(), &device.value.model->op, false};
    test_collectives(e);
    test_in_flight(e);
    return close(*ranks.comm);
}
}    // namespace

bool expect(bool right, const char* format, ...) {
    if (right) return true;
    va_list args;
    va_start(args, format);
    fprintf(stderr, "rank %d: ", rank_here);
    vfprintf(stderr, format, args);
    fputc('\n', stderr);
    va_end(args);
    failed++;
    return false;
}

int main(int argc, char** argv) {
    const std::string engine = argc > 1 ? argv[1] : "";
    Limit::watch([] {
        dprintf(2, "FAILED: rank %d is over its limit of %g s (FLATGPT_TEST_LIMIT)\n", rank_here, test_limit());
        _exit(1);
    });
    Limit::start(test_limit());
    if (engine == "mpi" || engine == "bench") return by_mpi(engine == "bench");
    if (engine == "nccl") return by_nccl();
    // Open MPI 4.1's mpirun may hang when ranks end within MPI_Init, so these are stuck before it.
    if (engine == "stuck") sleep(60);
    fprintf(stderr, "usage: mpirun -n N %s mpi|nccl|bench|stuck\n", argv[0]);
    return 2;
}

// main.cpp - a rank of the collectives' tests, started by mpirun: all of them by one engine, or their speed.
// Usage: mpirun -n N test_ranks mpi|nccl|bench
#include "ranks_test.h"

#include <csignal>
#include <cstdarg>
#include <unistd.h>

namespace {
int rank_here = 0, failed = 0;

Place place_here() {
    auto number = [](const char* name, int otherwise) {
        const char* text = getenv(name);
        return text ? atoi(text) : otherwise;
    };
    Place p;
    p.rank = number("OMPI_COMM_WORLD_RANK", number("PMI_RANK", 0));
    p.ranks = number("OMPI_COMM_WORLD_SIZE", number("PMI_SIZE", 1));
    p.mpi = true;
    return p;
}

volatile sig_atomic_t handled_by = 0;
void on_signal(int) { handled_by = gettid(); }
const int SIGNALS[] = {SIGINT, SIGTERM, SIGSEGV, SIGABRT, SIGUSR1};

void test_signals() {
    for (int s : SIGNALS) {
        struct sigaction now;
        sigaction(s, nullptr, &now);
        expect(now.sa_handler == on_signal, "MPI has another handler for signal %d", s);
    }
    for (int i = 0; i < 20; i++) {
        handled_by = 0;
        kill(getpid(), SIGTERM);
        while (!handled_by) usleep(100);
        expect(handled_by == getpid(), "SIGTERM went to another thread than the main one");
    }
}
void test_broadcast(Comm& comm) {
    for (const std::string& text : {std::string(), std::string("host:1234"), std::string(1000, '\0') + "end"}) {
        const std::string got = mpi_broadcast(comm, comm.rank == 0 ? text : "not this");
        expect(got == text, "mpi_broadcast of %zu bytes gave %zu others", text.size(), got.size());
    }
}
int by_mpi(bool measure) {
    for (int s : SIGNALS) signal(s, on_signal);
    const Place place = place_here();
    rank_here = place.rank;
    Result<std::unique_ptr<Comm>> comm = mpi_open(place);
    if (!comm.ok()) {
        fprintf(stderr, "%s\n", comm.status.message.c_str());
        return int(comm.status.code);
    }
    Pulse pulse;
    comm.value->pulse = &pulse;
    const Engine e = {comm.value.get(), &cpu_ops(Dtype::fp32), true};
    if (measure) return bench(e);
    test_signals();
    test_broadcast(*comm.value);
    const int64_t mark = comm.value->mark(), count = pulse.count;
    expect(count >= mark, "a pulse of %lld after %lld collectives", static_cast<long long>(count),
           static_cast<long long>(mark));
    test_collectives(e);
    test_in_flight(e);
    expect(!pulse.waiting, "still said to be waiting");
    if (place.rank == 0) printf("%s, %d ranks: %d failures at rank 0\n", comm.value->name().c_str(), place.ranks, failed);
    return failed > 0;
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
int failures() { return failed; }

int main(int argc, char** argv) {
    const std::string engine = argc > 1 ? argv[1] : "";
    if (engine == "mpi" || engine == "bench") return by_mpi(engine == "bench");
    fprintf(stderr, "usage: mpirun -n N %s mpi|nccl|bench\n", argv[0]);
    return 2;
}

// comm.h - the ranks of a run: identity, host messages, failure detection, and device collectives.
//
// A rank is a process with one device. Three parts, from the outside in:
//   RankInfo     this process's rank: from flags or variables of torchrun, Open MPI, PMI, Slurm
//   Coordinator  few, small host messages over one TCP connection of each rank to rank 0, and a
//                thread that detects dead or stalled ranks
//   Comm         collectives on device memory, of any number and size: by MPI (CPU) or NCCL (GPU)
#pragma once
#include <algorithm>
#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/element.h"

// ---- identity -----------------------------------------------------------------------------------

struct CommOptions {
    int rank = -1, ranks = 0, local_rank = -1;    // defaults: the launcher's values
    std::string master;                           // HOST:PORT or [IPv6]:PORT of rank 0's rendezvous
    // Time limit in seconds for the rendezvous, and later for a rank without heartbeats or
    // progress.
    double timeout = 60;
};
struct RankInfo {
    int rank = 0, ranks = 1, local_rank = 0;
    int local_ranks = 1;     // ranks on this machine, as the launcher reports
    std::string launcher;    // "--ranks", "torchrun", "Open MPI", "PMI", "Slurm"; "": single process
    bool mpi = false;        // an MPI launcher: MPI transmits rank 0's address
    std::string host;        // rank 0's names or addresses, comma-separated; unused with MPI
    int port = 0;
    std::string job;    // job's name: equal on its ranks, seeds token
};
// Finds this process's rank. Sources: flags first, then torchrun (RANK, WORLD_SIZE, LOCAL_RANK,
// MASTER_ADDR, MASTER_PORT), Open MPI (OMPI_COMM_WORLD_*), PMI (PMI_RANK, PMI_SIZE,
// MPI_LOCALRANKID), Slurm's steps (SLURM_PROCID, SLURM_STEP_NUM_TASKS, SLURM_LOCALID). variable:
// getenv, or a test's substitute. With FLATGPT_ALONE, which a sweep sets for its runs, the process
// is a single one, but keeps its rank's device and its part of the machine: local_rank,
// local_ranks. Exit 2: rank or number of ranks is missing, or a number is invalid.
Result<RankInfo> comm_rank_info(const CommOptions& o, const std::function<const char*(const char*)>& variable);
std::string slurm_first_host(const std::string& list);    // "node[01-04,7],x9": node01; "": no such list

// ---- the coordinator ----------------------------------------------------------------------------

// The main thread's state; written by it, read by the coordinator's thread.
struct Activity {
    std::atomic<bool> waiting{false};              // the main thread waits for other ranks
    std::atomic<const char*> phase{"starting"};    // a literal: "step", "writing a checkpoint"
    std::atomic<int64_t> step{0};
    void enter(const char* now) { phase = now, count_progress(); }
};
// Marks this process as waiting for other ranks during this object's lifetime.
struct Waiting {
    Activity* activity;
    explicit Waiting(Activity* p) : activity(p) {
        if (p) p->waiting = true;
    }
    ~Waiting() {
        if (activity) count_progress(), activity->waiting = false;
    }
};

// A listening socket, opened before its address is sent to other ranks.
struct Listener {
    int fd = -1, port = 0;
    // host "": listens on every address of this machine, IPv6 and IPv4; port 0: on any free port.
    // Exit 7: the port is taken or forbidden.
    static Result<Listener> open(const std::string& host, int port);
    // Addresses at which other machines reach this one, comma-separated, loopback last.
    static std::string addresses();
};
typedef std::string JobToken;                  // 16 bytes; peers with another are dropped
JobToken job_token(const std::string& job);    // from the job text that all its ranks share
JobToken random_job_token();

class Coordinator {
  public:
    // Connects all ranks of info within `timeout` seconds: rank 0 accepts on its listener, the
    // others connect to host (comma-separated, each tried) and port. Unauthenticated peers are
    // dropped. Exit 7, on every rank that came: a rank did not come, or came twice, or expects
    // another number of ranks.
    static Result<std::unique_ptr<Coordinator>> rendezvous(const RankInfo& info, Listener listener,
                                                           const std::string& host, int port, const JobToken& token,
                                                           double timeout);
    ~Coordinator();    // sends goodbye to all ranks
    Coordinator(const Coordinator&) = delete;

    Activity activity;
    int rank() const;
    int ranks() const;
    double timeout() const;              // seconds
    std::string name(int rank) const;    // "rank 3 (host, pid 4711)"

    // Host collectives, in the same order on every rank. A dead or stalled rank ends the process
    // inside them, with exit 7.
    std::vector<std::string> gather(const std::string& mine);    // rank 0: every rank's text; others: empty
    std::string broadcast(const std::string& of_rank_0);
    void barrier();
    // Combines every rank's status. Returns ok if all are; on a rank that failed, its own status;
    // on the others exit 7 naming the failed ranks.
    Status agree(const Status& mine);

    // Ends this process with the message and exit code of `why`. The other ranks end with exit 7
    // and the same message, after the name of this rank.
    [[noreturn]] void abort_ranks(const Status& why);
    // `action` runs before the coordinator ends the process, for at most 2 seconds. Null: no
    // action.
    void exit_hook(std::function<void()> action);
    // The coordinator's thread calls `failure` several times a second; it must not block. If it
    // returns a text for half a second, the run ends with this text as the reason; "" means
    // healthy. Null: no check.
    void health_check(std::function<std::string()> failure);

  private:
    struct State;
    std::unique_ptr<State> s;
    explicit Coordinator(std::unique_ptr<State> state);
};
// Ends this process without returning to main.cpp. Needed if another rank is missing and a thread
// waits for it forever.
[[noreturn]] void end_process(Exit code);

// ---- collectives on the device ------------------------------------------------------------------

// A collective starts after the device work enqueued before it, and overlaps the work enqueued
// after it. join(m) makes the device work enqueued after it wait for all collectives called before
// m = mark(); on a CPU, it blocks the host. All ranks call the same collectives in the same order.
// The order of summation depends on ranks and n alone, so every rank and every run gets equal bits.
// comm_dtype bf16: floats are sent as bf16 and, where possible, summed in float. Pointers are
// device memory, 64-byte aligned.
struct Comm {
    int rank = 0, ranks = 1;
    Activity* activity = nullptr;    // null: no coordinator (tests)

    virtual ~Comm() = default;
    virtual std::string name() const = 0;    // "MPI (Open MPI 4.1.4)", "NCCL 2.28.9"
    // x (n) = sum over ranks of x.
    virtual void all_reduce(void* x, int64_t n, Element type, Element comm_dtype) = 0;
    // out (n) = sum over ranks of x[rank,:]. x (ranks,n) becomes scratch. `out` is x[rank,:], or
    // does not overlap x.
    virtual void reduce_scatter(void* out, void* x, int64_t n, Element type, Element comm_dtype) = 0;
    // Sends x[r,:] of each rank r to all ranks. x (ranks,n).
    virtual void all_gather(void* x, int64_t n, Element type) = 0;
    // Sends x (n) of rank `from` to all ranks.
    virtual void broadcast(void* x, int64_t n, Element type, int from) = 0;
    // Passes n elements on in a ring of `ring` successive ranks, the first a multiple of `ring`:
    // sends `from` to the next rank, and receives `to` from the previous one. The arrays do not
    // overlap.
    virtual void pass_on(void* to, const void* from, int64_t n, Element type, int ring) = 0;
    // Returns the next rank of this rank's ring if `by` is 1, the previous one if it is -1.
    int neighbour(int ring, int by) const { return rank / ring * ring + (rank % ring + ring + by) % ring; }
    virtual int64_t mark() = 0;
    virtual void join(int64_t mark) = 0;
};

// Columns of x (ranks,row) that comm/mpi.cpp exchanges before it adds them. The columns of all
// ranks take 4 MiB, so that they stay in a cache, but a message has at least 256 KiB. Time of an
// all_reduce of 160 MB of floats on 2 and on 4 ranks: with 4 MiB 17 and 65 ms; with 16 MiB 28 and
// 100 ms; with 2 MiB 19 ms and 36 to 94 ms (AMD EPYC, 2 cores, 2026-11-21).
inline int64_t mpi_chunk(int64_t row, int ranks, int64_t element_bytes) {
    const int64_t bytes = std::max<int64_t>((4 << 20) / ranks, 256 << 10);
    return std::min(round_up(row, 64), bytes / element_bytes / 64 * 64);
}
// Defined in comm/mpi.cpp. Exit 7: MPI's library is missing, or MPI's world differs from `info`.
Status mpi_available();                                                // compiled in, and the library is installed
Result<std::unique_ptr<Comm>> mpi_open(const RankInfo& info);          // starts MPI, on a thread of its own
std::string mpi_broadcast(Comm& mpi, const std::string& of_rank_0);    // host bytes, before a coordinator exists
// Defined in comm/nccl.cu; without CUDA, model/device.cpp's definition returns an error. Requires
// an open device. The coordinator sends NCCL's id from rank 0 to the other ranks.
Result<std::unique_ptr<Comm>> nccl_open(Coordinator& coordinator);
void nccl_abort(Comm& nccl);    // from any thread
// Both steps of nccl_open: rank 0 makes an id of 128 bytes (no GPU needed), then all ranks join
// with it.
Result<std::string> nccl_new_id();
// timeout: seconds until all ranks have joined.
Result<std::unique_ptr<Comm>> nccl_join(const std::string& id, int rank, int ranks, Activity* activity, double timeout);

// ---- all parts together, for the commands -------------------------------------------------------

struct Ranks {
    RankInfo info;
    std::unique_ptr<Coordinator> coordinator;    // null: a single process
    // Null for a single process, and for one rank without NCCL. Ranks::start opens it.
    std::unique_ptr<Comm> comm;
    std::string nccl_error;    // why a single GPU rank has no comm
    int rank() const { return info.rank; }
    int count() const { return info.ranks; }
    bool first() const { return info.rank == 0; }
    Activity* activity() { return coordinator ? &coordinator->activity : nullptr; }
    Status agree(const Status& s) { return coordinator ? coordinator->agree(s) : s; }

    ~Ranks() {
        if (coordinator) coordinator->exit_hook(nullptr);
    }
    Status open(const CommOptions& o);    // determines info, connects the ranks
    Status start(bool gpu);               // requires an open device; opens comm
};

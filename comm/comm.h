// comm.h - the ranks of a run: who they are, what they do together, and the watch that lets none of them hang.
//
// A rank is a process with one device. Three parts, from the outside in:
//   Place   who I am: from flags or from the variables of torchrun, Open MPI, PMI and Slurm
//   Watch   host messages between the ranks, few and small, over one TCP connection of each rank to rank 0: meeting,
//           comparing, checkpoints' commits; and a thread that notices who died or stands still, on every rank
//   Comm    collectives on the device's memory, as many and as large as they come: by MPI (CPU) or NCCL (GPU)
#pragma once
#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/element.h"

// ---- who we are -----------------------------------------------------------------------------------------------------

struct CommOptions {
    int rank = -1, ranks = 0, local_rank = -1;    // -1, 0, -1: as the launcher says
    std::string master;                           // HOST:PORT or [IPv6]:PORT of rank 0's rendezvous
    double timeout = 60;                          // seconds to come together; without a sign of life, or of progress
};
struct RankInfo {
    int rank = 0, ranks = 1, local_rank = 0;
    int local_ranks = 1;     // ranks on this machine, as far as the launcher says
    std::string launcher;    // who says so: "--ranks", "torchrun", "Open MPI", "PMI", "Slurm"; "" a process of its own
    bool mpi = false;        // an MPI launcher: MPI tells where rank 0 is
    std::string host;        // where rank 0 is, unless MPI tells it: names or addresses, comma-separated
    int port = 0;
    std::string job;    // text that is the same on every rank of this job and on no other's: the token's seed
};
// Flags first, then torchrun (RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR, MASTER_PORT), Open MPI (OMPI_COMM_WORLD_*),
// PMI (PMI_RANK, PMI_SIZE, MPI_LOCALRANKID), Slurm's steps (SLURM_PROCID, SLURM_STEP_NUM_TASKS, SLURM_LOCALID).
// variable: getenv, or a test's.   exit 2: half of a pair, numbers that cannot be
Result<RankInfo> comm_rank_info(const CommOptions& o, const std::function<const char*(const char*)>& variable);
std::string slurm_first_host(const std::string& list);    // "node[01-04,7],x9": node01; "": no such list

// ---- the watch ------------------------------------------------------------------------------------------------------

// What the main thread is at; written by it, read by the watch's thread.
struct Activity {
    std::atomic<bool> waiting{false};              // for other ranks
    std::atomic<const char*> phase{"starting"};    // a literal: "step", "writing a checkpoint"
    std::atomic<int64_t> step{0};
    void enter(const char* now) { phase = now, count_progress(); }
};
// The pulse says that this process waits, for as long as this object lives.
struct Waiting {
    Activity* activity;
    explicit Waiting(Activity* p) : activity(p) {
        if (p) p->waiting = true;
    }
    ~Waiting() {
        if (activity) count_progress(), activity->waiting = false;
    }
};

// A socket that listens, before anybody is told where.
struct Listener {
    int fd = -1, port = 0;
    // host "": every address of this machine, IPv6 and IPv4; port 0: any free one.  exit 7: taken, or not ours to take
    static Result<Listener> open(const std::string& host, int port);
    // This machine's addresses as others may reach it, comma-separated, its loopback last.
    static std::string addresses();
};
typedef std::string JobToken;                  // 16 bytes: who does not bring them is a stranger
JobToken job_token(const std::string& job);    // from the text that all ranks of a job share
JobToken random_job_token();

class Coordinator {
  public:
    // All ranks of the place, come together within `timeout` seconds: rank 0 on its listener, the others by connecting
    // to host (comma-separated, each tried) and port. Strangers who connect and send anything else are dropped.
    // exit 7, on every rank that came: which ranks did not come, a rank that came twice, other numbers of ranks.
    static Result<std::unique_ptr<Coordinator>> rendezvous(const RankInfo& info, Listener listener,
                                                           const std::string& host, int port, const JobToken& token,
                                                           double timeout);
    ~Coordinator();    // leaves in good order
    Coordinator(const Coordinator&) = delete;

    Activity activity;
    int rank() const;
    int ranks() const;
    double timeout() const;              // seconds
    std::string name(int rank) const;    // "rank 3 (host, pid 4711)"

    // Collectives of the host, in the same order on every rank. A rank that died or stands still ends the process
    // inside them, with exit 7.
    std::vector<std::string> gather(const std::string& mine);    // rank 0: everyone's; others: empty
    std::string broadcast(const std::string& of_rank_0);
    void barrier();
    // Every rank's status at once: ok, or at the ranks that failed their own, at the others exit 7 naming these.
    Status agree(const Status& mine);

    // Ends this process because of `why`: the others are told, and end with exit 7 naming it.
    [[noreturn]] void abort(const Status& why);
    // What is done before the watch ends the process; it has 2 seconds. Null: nothing any more.
    void exit_hook(std::function<void()> action);
    // What the watch's thread looks at several times a second: "", or what is wrong here, which ends the run if it
    // still is half a second later. It must not wait. Null: nothing any more.
    void health_check(std::function<std::string()> failure);

  private:
    struct State;
    std::unique_ptr<State> s;
    explicit Coordinator(std::unique_ptr<State> state);
};
// Ends this process where another rank is missing and a thread waits for it for ever, so that nobody can go back to
// main.cpp.
[[noreturn]] void end_process(Exit code);

// ---- collectives on the device --------------------------------------------------------------------------------------

// Each collective begins when the device has done what was handed to it before, and runs beside what comes after, until
// join(mark()): what is handed to the device after a join comes after the collectives before its mark. On the CPU it is
// the host that waits there. All ranks call the same ones in the same order. Sums are taken in an order that depends on
// ranks and n alone: the same bits on every rank and in every run. wire bf16: floats travel as bf16; where possible
// their sum is taken in float. Pointers are of the device's memory, all 64-byte aligned.
struct Comm {
    int rank = 0, ranks = 1;
    Activity* activity = nullptr;    // null: nobody watches (tests)

    virtual ~Comm() = default;
    virtual std::string name() const = 0;    // "MPI (Open MPI 4.1.4)", "NCCL 2.28.9"
    // x = sum over ranks of x.                                     x (n)
    virtual void all_reduce(void* x, int64_t n, Element type, Element comm_dtype) = 0;
    // out = sum over ranks of their x[rank,:]. x is then scratch.  x (ranks,n)  out (n): x[rank,:] or apart from x
    virtual void reduce_scatter(void* out, void* x, int64_t n, Element type, Element comm_dtype) = 0;
    // x[r,:] of rank r to all.                                     x (ranks,n)
    virtual void all_gather(void* x, int64_t n, Element type) = 0;
    virtual int64_t mark() = 0;
    virtual void join(int64_t mark) = 0;
    // Memory of the device that it takes for collectives of at most n elements.
    virtual int64_t scratch_bytes(int64_t n, Element type, Element comm_dtype) const = 0;
};

// comm/mpi.cpp. exit 7: the library is missing, or its world is another than the place's.
Status mpi_available();                                                // compiled in, and the library is here
Result<std::unique_ptr<Comm>> mpi_open(const RankInfo& info);          // starts MPI, on a thread of its own
std::string mpi_broadcast(Comm& mpi, const std::string& of_rank_0);    // host bytes, before there is a watch
// comm/nccl.cu; without CUDA model/device.cpp says that there is none. To be called once the device is open; the id
// travels over the watch.
Result<std::unique_ptr<Comm>> nccl_open(Coordinator& coordinator);
void nccl_abort(Comm& nccl);    // from any thread
// Its parts: the id that rank 0 makes, 128 bytes (no GPU needed), and joining with it.
Result<std::string> nccl_new_id();
// timeout: seconds for all to come.
Result<std::unique_ptr<Comm>> nccl_join(const std::string& id, int rank, int ranks, Activity* activity, double timeout);

// ---- all of it, for the commands ------------------------------------------------------------------------------------

struct Ranks {
    RankInfo info;
    std::unique_ptr<Coordinator> coordinator;    // null: a process of its own
    std::unique_ptr<Comm> comm;                  // null: likewise, or one rank that has none. After start
    std::string nccl_error;                      // why the one rank on a GPU has none
    int rank() const { return info.rank; }
    int count() const { return info.ranks; }
    bool first() const { return info.rank == 0; }
    Activity* activity() { return coordinator ? &coordinator->activity : nullptr; }
    Status agree(const Status& s) { return coordinator ? coordinator->agree(s) : s; }

    ~Ranks() {
        if (coordinator) coordinator->exit_hook(nullptr);
    }
    Status open(const CommOptions& o);    // finds the place, meets the others
    Status start(bool gpu);               // the device is open: comm
};

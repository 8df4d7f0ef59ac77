// nccl.cu - collectives between GPUs by NCCL. The library is loaded when ranks open, not linked, so
// that the binary starts without it.
//
// Synchronisation: collectives run in order on a CUDA stream of their own. Each waits, on the
// device, for the operations queued when it was called; the operations' stream waits for a
// collective only in join. The host waits for NCCL's initialisation, and when NCCL connects to new
// ranks. A failed collective may never end on the device, so a wait for the device may never end,
// either. Therefore the coordinator's thread polls NCCL for errors and ends the run.
#include "comm.h"
#include "layers/convert.cuh"

#if !__has_include(<nccl.h>)

static const char without[] = "this binary was built without NCCL (nvcc found no nccl.h)";
Result<std::string> nccl_new_id() { return fail(Exit::peer, "%s", without); }
Result<std::unique_ptr<Comm>> nccl_join(const std::string&, int, int, Activity*, double) {
    return fail(Exit::peer, "%s", without);
}
Result<std::unique_ptr<Comm>> nccl_open(Coordinator&) { return fail(Exit::peer, "%s", without); }
void nccl_abort(Comm&) {}

#else

#include <dlfcn.h>
#include <nccl.h>
#include <sched.h>
#include <unistd.h>

#include <mutex>

#include "base/console.h"

namespace {
// Number of CUDA events, which mark() reuses in a ring. If a mark's event was recorded again, a
// join with this mark waits for the newer one, which is right but longer. A step of ZeRO with
// 512 blocks, two collectives each, needs 1024.
constexpr int MARKS = 1100;

// ---- the library --------------------------------------------------------------------------------

// clang-format mistakes a list of macro calls for an expression.
// clang-format off
#define NCCL_FUNCTIONS(X) \
    X(GetVersion) X(GetUniqueId) X(GetErrorString) X(GetLastError) X(CommInitRankConfig) \
    X(CommGetAsyncError) X(CommFinalize) X(CommDestroy) X(CommAbort) X(AllReduce) X(ReduceScatter) \
    X(AllGather) X(Broadcast) X(Send) X(Recv) X(GroupStart) X(GroupEnd)
// clang-format on
#define NCCL_POINTER(f) decltype(&nccl##f) f = nullptr;
struct Library {
    int version = 0;    // 22809 means 2.28.9
    NCCL_FUNCTIONS(NCCL_POINTER)
} nccl;

Status find_functions() {
    if constexpr (EMULATED) {
#define NCCL_LINKED(f) nccl.f = nccl##f;
        NCCL_FUNCTIONS(NCCL_LINKED)
        return {};
    }
    // In-switch sums (NVLS) have no guaranteed order. A user may set the variable to 1.
    setenv("NCCL_NVLS_ENABLE", "0", 0);
    void* library = dlopen("libnccl.so.2", RTLD_NOW | RTLD_LOCAL);
    if (!library)
        return fail(Exit::peer, "ranks on GPUs need NCCL: %s; install libnccl2, or name its folder in LD_LIBRARY_PATH",
                    dlerror());
#define NCCL_LOADED(f)                                                      \
    nccl.f = reinterpret_cast<decltype(nccl.f)>(dlsym(library, "nccl" #f)); \
    if (!nccl.f) return fail(Exit::peer, "this NCCL has no nccl" #f ", needed is 2.14 or newer");
    NCCL_FUNCTIONS(NCCL_LOADED)
    return {};
}

Status load() {
    static const Status found = [] {
        TRY(find_functions());
        if (nccl.GetVersion(&nccl.version) || nccl.version < 21400)
            return fail(Exit::peer, "NCCL's version is %d, needed is 2.14 or newer", nccl.version);
        return Status();
    }();
    return found;
}
std::string version_text() {
    const int v = nccl.version;
    return "NCCL " + std::to_string(v / 10000) + "." + std::to_string(v / 100 % 100) + "." + std::to_string(v % 100);
}

// ---- the communicator ---------------------------------------------------------------------------

ncclDataType_t data_type(Element e) {
    return e == Element::f64 ? ncclFloat64 : e == Element::f32 ? ncclFloat32 : ncclBfloat16;
}
bool casts(Element type, Element comm_dtype) { return type == Element::f32 && comm_dtype == Element::bf16; }

class NcclComm final : public Comm {
  public:
    ~NcclComm() override { close(); }
    Status open(const std::string& id);
    void abort_ranks();                    // from any thread; running collectives end with an error
    std::string async_error();             // from any thread; reason for failed collectives, or ""
    Coordinator* coordinator = nullptr;    // receives failures, if not null
    double timeout = 60;                   // seconds to wait for all ranks

    std::string name() const override { return version_text(); }
    void all_reduce(void* x, int64_t n, Element type, Element comm_dtype) override;
    void reduce_scatter(void* out, void* x, int64_t n, Element type, Element comm_dtype) override;
    void all_gather(void* x, int64_t n, Element type) override;
    void broadcast(void* x, int64_t n, Element type, int from) override;
    void pass_on(void* to, const void* from, int64_t n, Element type, int ring) override;
    int64_t mark() override {
        CUDA_CHECK(cudaEventRecord(marks[next_mark % MARKS], stream));
        return next_mark++;
    }
    void join(int64_t m) override { CUDA_CHECK(cudaStreamWaitEvent(cuda_stream(), marks[m % MARKS], 0)); }

  private:
    std::atomic<ncclComm_t> comm{nullptr};
    std::mutex comm_mutex;    // guards calls, error polls and abort of comm
    std::atomic<bool> aborted{false};
    cudaStream_t stream = nullptr;
    cudaEvent_t before, marks[MARKS];
    int64_t next_mark = 0;
    bf16* staged = nullptr;
    int64_t staged_bytes = 0;

    bool poll_state(ncclResult_t* state);
    ncclResult_t wait_until_done(ncclResult_t r, bool opening = false);
    std::string reason(ncclResult_t r);
    [[noreturn]] void failed(const char* what, ncclResult_t r);
    void begin();
    template <class F> void enqueue(const char* what, F collective);
    template <class F>
    void sum(const char* what, void* x, int64_t n, void* out, Element type, Element comm_dtype, F collective);
    bf16* staging(int64_t n);
    void close();
};

// Sets *state to the result of the calls so far. Returns false if the communicator was aborted.
bool NcclComm::poll_state(ncclResult_t* state) {
    const std::lock_guard lock(comm_mutex);
    if (aborted) return false;
    if (const ncclResult_t r = nccl.CommGetAsyncError(comm, state)) *state = r;
    return true;
}

// Returns "" instead of waiting if another thread uses the communicator: that thread then gets the
// error.
std::string NcclComm::async_error() {
    const std::unique_lock lock(comm_mutex, std::try_to_lock);
    if (!lock || aborted) return "";
    ncclResult_t state = ncclSuccess;
    if (const ncclResult_t r = nccl.CommGetAsyncError(comm, &state)) state = r;
    return state == ncclSuccess || state == ncclInProgress ? "" : "a collective has failed: " + reason(state);
}

// Waits for the end of an NCCL call. The communicator is non-blocking: each call continues in the
// background, and must end before the next one. Most waits are short, so the loop sleeps only after
// 1 ms. opening: the call connects all ranks. This may take longer than the coordinator's timeout,
// so the rank counts progress while it waits. In other calls it counts none, so that the
// coordinator can find the stalled rank; if there is a coordinator, only the coordinator ends such
// a wait.
ncclResult_t NcclComm::wait_until_done(ncclResult_t r, bool opening) {
    if (r != ncclInProgress) return r;
    const double start = now_seconds();
    const Waiting waiting(activity);
    while (poll_state(&r) && r == ncclInProgress) {
        const double waited = now_seconds() - start;
        if (waited > timeout && (opening || !activity)) break;
        if (opening) count_progress();
        if (waited < 1e-3) sched_yield();
        else usleep(100);
    }
    return r;
}

std::string NcclComm::reason(ncclResult_t r) {
    if (r == ncclInProgress) return formatted("not all ranks came within %.3g s (--timeout)", timeout);
    std::string text = nccl.GetErrorString(r);
    if (const char* more = nccl.GetLastError(comm); more && *more) text += std::string(": ") + more;
    return text + " (NCCL_DEBUG=INFO tells more)";
}

void NcclComm::failed(const char* what, ncclResult_t r) {
    if (aborted) {    // the coordinator is about to end the process
        sleep(10);
        end_process(Exit::peer);
    }
    // The other ranks wait for this one in their collectives, so the run must end.
    const Status why = fail(Exit::peer, "%s: %s", what, reason(r).c_str());
    if (coordinator) coordinator->abort_ranks(why);
    fprintf(stderr, "\nrank %d: %s\n", rank, why.message.c_str());
    end_process(Exit::peer);
}

Status NcclComm::open(const std::string& id) {
    int least = 0, greatest = 0;
    CUDA_CHECK(cudaDeviceGetStreamPriorityRange(&least, &greatest));
    CUDA_CHECK(cudaStreamCreateWithPriority(&stream, cudaStreamNonBlocking, greatest));
    CUDA_CHECK(cudaEventCreateWithFlags(&before, cudaEventDisableTiming));
    for (cudaEvent_t& e : marks) CUDA_CHECK(cudaEventCreateWithFlags(&e, cudaEventDisableTiming));
    ncclUniqueId unique;
    CHECK(id.size() == sizeof unique, "an id of %zu bytes", id.size());
    memcpy(&unique, id.data(), sizeof unique);
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    config.blocking = 0;
    ncclComm_t made = nullptr;
    ncclResult_t r = nccl.CommInitRankConfig(&made, ranks, unique, rank, &config);
    comm = made;
    r = made ? wait_until_done(r, true) : r;
    if (r) return fail(Exit::peer, "rank %d of %d cannot open NCCL: %s", rank, ranks, reason(r).c_str());
    return {};
}

void NcclComm::close() {
    if (coordinator) coordinator->exit_hook(nullptr), coordinator->health_check(nullptr);
    const ncclComm_t c = comm;
    if (c && !aborted) {
        ncclResult_t state = ncclSuccess;
        const bool whole = poll_state(&state) && !state && !wait_until_done(nccl.CommFinalize(c));
        if (whole) nccl.CommDestroy(c);
        else abort_ranks();
    }
    if (!stream) return;
    CUDA_CHECK(cudaStreamSynchronize(stream));
    CUDA_CHECK(cudaStreamDestroy(stream));
    CUDA_CHECK(cudaEventDestroy(before));
    for (cudaEvent_t e : marks) CUDA_CHECK(cudaEventDestroy(e));
    CUDA_CHECK(cudaFree(staged));
}

void NcclComm::abort_ranks() {
    {
        const std::lock_guard lock(comm_mutex);
        if (aborted.exchange(true)) return;
    }
    if (comm) nccl.CommAbort(comm);
}

// ---- collectives --------------------------------------------------------------------------------

void NcclComm::begin() {
    ncclResult_t state = ncclSuccess;
    if (!poll_state(&state) || state) failed("a collective before", state);
    CUDA_CHECK(cudaEventRecord(before, cuda_stream()));
    CUDA_CHECK(cudaStreamWaitEvent(stream, before, 0));
}

// Makes NCCL's call, collective(communicator), and waits for its end. Does not return if the call
// failed.
template <class F> void NcclComm::enqueue(const char* what, F collective) {
    ncclResult_t r;
    {
        const std::lock_guard lock(comm_mutex);
        r = aborted ? ncclSystemError : collective(comm.load());
    }
    r = wait_until_done(r);
    if (r) failed(what, r);
}

// A buffer for n elements, shared by all collectives, which run one after the other.
bf16* NcclComm::staging(int64_t n) {
    const int64_t bytes = round_up(n, 128) * int64_t(sizeof(bf16));
    if (bytes > staged_bytes) {
        CUDA_CHECK(cudaStreamSynchronize(stream));
        CUDA_CHECK(cudaFree(staged));
        staged = nullptr, staged_bytes = 0;
        CUDA_CHECK(cudaMalloc(&staged, size_t(bytes)));
        staged_bytes = bytes;
    }
    return staged;
}

// Adds n floats or doubles of all ranks. out: null if the sum replaces x. collective(x, out, type,
// communicator) makes NCCL's call.
template <class F>
void NcclComm::sum(const char* what, void* x, int64_t n, void* out, Element type, Element comm_dtype, F collective) {
    if (n == 0) return;
    begin();
    if (!casts(type, comm_dtype))
        return enqueue(what, [&](ncclComm_t c) { return collective(x, out ? out : x, data_type(type), c); });
    bf16 *s = staging(n), *mine = out ? s + rank * (n / ranks) : s;
    convert(s, static_cast<const float*>(x), n, stream);
    enqueue(what, [&](ncclComm_t c) { return collective(s, mine, ncclBfloat16, c); });
    convert(static_cast<float*>(out ? out : x), mine, out ? n / ranks : n, stream);
}
void NcclComm::all_reduce(void* x, int64_t n, Element type, Element comm_dtype) {
    sum("all_reduce", x, n, nullptr, type, comm_dtype, [&](void* from, void* to, ncclDataType_t t, ncclComm_t c) {
        return nccl.AllReduce(from, to, size_t(n), t, ncclSum, c, stream);
    });
}
void NcclComm::reduce_scatter(void* out, void* x, int64_t n, Element type, Element comm_dtype) {
    sum("reduce_scatter", x, ranks * n, out, type, comm_dtype,
        [&](void* from, void* to, ncclDataType_t t, ncclComm_t c) {
            return nccl.ReduceScatter(from, to, size_t(n), t, ncclSum, c, stream);
        });
}
void NcclComm::all_gather(void* x, int64_t n, Element type) {
    if (n == 0) return;
    begin();
    const char* mine = static_cast<const char*>(x) + rank * n * element_bytes(type);
    enqueue("all_gather", [&](ncclComm_t c) { return nccl.AllGather(mine, x, size_t(n), data_type(type), c, stream); });
}
void NcclComm::broadcast(void* x, int64_t n, Element type, int from) {
    if (n == 0) return;
    begin();
    enqueue("broadcast",
            [&](ncclComm_t c) { return nccl.Broadcast(x, x, size_t(n), data_type(type), from, c, stream); });
}
// In a group, so that no rank waits with its send for a receiver that itself sends first.
void NcclComm::pass_on(void* to, const void* from, int64_t n, Element type, int ring) {
    if (n == 0) return;
    begin();
    enqueue("pass_on", [&](ncclComm_t c) {
        ncclResult_t r = nccl.GroupStart();
        if (r) return r;
        r = nccl.Send(from, size_t(n), data_type(type), neighbour(ring, 1), c, stream);
        if (!r) r = nccl.Recv(to, size_t(n), data_type(type), neighbour(ring, -1), c, stream);
        const ncclResult_t end = nccl.GroupEnd();
        return r ? r : end;
    });
}
}    // namespace

// ---- opening ------------------------------------------------------------------------------------

Result<std::string> nccl_new_id() {
    TRY(load());
    ncclUniqueId id;
    memset(&id, 0, sizeof id);
    if (const ncclResult_t r = nccl.GetUniqueId(&id))
        return fail(Exit::peer, "%s cannot make an id: %s: %s", version_text().c_str(), nccl.GetErrorString(r),
                    nccl.GetLastError(nullptr));
    return std::string(reinterpret_cast<const char*>(&id), sizeof id);
}

Result<std::unique_ptr<Comm>> nccl_join(const std::string& id, int rank, int ranks, Activity* activity,
                                        double timeout) {
    TRY(load());
    auto c = std::make_unique<NcclComm>();
    c->rank = rank;
    c->ranks = ranks;
    c->activity = activity;
    c->timeout = timeout;
    TRY(c->open(id));
    return std::unique_ptr<Comm>(std::move(c));
}

Result<std::unique_ptr<Comm>> nccl_open(Coordinator& coordinator) {
    const Result<std::string> id = coordinator.rank() == 0 ? nccl_new_id() : Result<std::string>(load());
    TRY(coordinator.agree(id.status));
    const std::string mine = version_text(), received = coordinator.broadcast(id.value + mine);
    const bool same = received.size() > sizeof(ncclUniqueId) && received.substr(sizeof(ncclUniqueId)) == mine;
    TRY(coordinator.agree(same ? Status()
                               : fail(Exit::peer, "%s here, another on rank 0: all need the same", mine.c_str())));
    auto comm = nccl_join(received.substr(0, sizeof(ncclUniqueId)), coordinator.rank(), coordinator.ranks(),
                          &coordinator.activity, coordinator.timeout());
    if (comm.ok()) {
        auto* const c = static_cast<NcclComm*>(comm.value.get());
        c->coordinator = &coordinator;
        coordinator.health_check([c] { return c->async_error(); });
    } else if (coordinator.ranks() > 1) {
        coordinator.abort_ranks(comm.status);    // the others wait in NCCL, not in the coordinator
    }
    return comm;
}

void nccl_abort(Comm& comm) { static_cast<NcclComm&>(comm).abort_ranks(); }

#endif

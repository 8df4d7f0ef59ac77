// nccl.cpp - NCCL between processes of one machine, each with an emulated device.
//
// A communicator is a block of shared memory with a slot for each rank. A collective runs in
// chunks: each rank copies its part to its slot, barrier, each reads the slots it needs, barrier.
// It is work of a stream, and done when the stream's schedule reaches it. If other ranks wait in a
// collective that is still queued here, and the host makes no calls, a thread runs the streams'
// work: a device would not wait for its host.
//
// A non-blocking communicator returns ncclInProgress from each call and reaches the stream only
// after a few polls; a call before that is refused, as in NCCL. With EMU_NCCL_CONNECT=1 it also
// waits until all ranks have called, as NCCL does when ranks connect. EMU_NCCL_FAIL=RANK:N: at this
// rank the N-th collective fails on the device; as in NCCL it does not end until it is aborted, and
// polls return the error. EMU_NCCL_VERSION=21000: it reports version 2.10.0.
#include <fcntl.h>
#include <linux/futex.h>
#include <nccl.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <functional>
#include <thread>
#include <vector>

#include "base/element.h"

namespace {
constexpr int MAX_RANKS = 64;
constexpr size_t SLOT = 256 << 10;    // bytes
typedef std::chrono::steady_clock Clock;

struct Call {
    int kind;    // 0: all_reduce, 1: reduce_scatter, 2: all_gather, 3: broadcast, 4: a group of one send and one
                 // receive
    int type;
    size_t n;
    int from = 0;    // broadcast's or this rank's sender
    int to = -1;     // rank to which this rank sends
    bool same(const Call& o) const {
        return kind == o.kind && type == o.type && n == o.n && (kind == 4 || from == o.from);
    }
};
const char* const KINDS[] = {"ncclAllReduce", "ncclReduceScatter", "ncclAllGather", "ncclBroadcast", "ncclSend"};

struct Shared {
    std::atomic<int> ranks, joined;
    std::atomic<uint32_t> bell;    // incremented at each arrival
    struct Rank {
        std::atomic<int> pid;
        std::atomic<uint64_t> called, begun, arrived;    // collectives called, begun on the device; barriers
        Call call;                                       // the current collective
    } rank[MAX_RANKS];
    alignas(64) char slot[MAX_RANKS][SLOT];
};

int seconds_of_patience() {
    const char* text = getenv("EMU_NCCL_SECONDS");
    return text && *text ? atoi(text) : 120;
}
bool has_died(int pid) {
    char path[64], text[512] = {};
    snprintf(path, sizeof path, "/proc/%d/stat", pid);
    const int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) return true;
    const ssize_t n = read(fd, text, sizeof text - 1);
    close(fd);
    const char* after = n > 0 ? strrchr(text, ')') : nullptr;
    return after && after[1] == ' ' && (after[2] == 'Z' || after[2] == 'X');    // ended, but still listed
}
}    // namespace

struct ncclComm {
    Shared* s;
    int rank, ranks, id;    // id: memfd of the unique id, or -1
    std::atomic<bool> aborted{false}, ending{false}, failed{false};
    uint64_t fails_at = 0;    // number of the failing collective, from 1
    std::thread device = {};
    bool blocking = true;
    std::function<void()> under_way = {};    // the call in progress, if non-blocking
    int asked = 0;

    ncclResult_t begin(std::function<void()> call);
    void arrive();
    bool meet();
    void check(const Call& call);
    void run(const Call& call, const char* send, char* recv);
    void go_on();
};

void ncclComm::arrive() {
    s->rank[rank].arrived++;
    s->bell++;
    syscall(SYS_futex, &s->bell, FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
}

// Barrier of all ranks. False: aborted.
bool ncclComm::meet() {
    arrive();
    const uint64_t mine = s->rank[rank].arrived;
    const auto start = Clock::now();
    for (int r = 0; r < ranks;) {
        if (aborted) return false;
        const uint32_t heard = s->bell;
        if (s->rank[r].arrived >= mine) {
            r++;
            continue;
        }
        const timespec limit = {0, 10'000'000};
        syscall(SYS_futex, &s->bell, FUTEX_WAIT, heard, &limit, nullptr, 0);
        const double waited = std::chrono::duration<double>(Clock::now() - start).count();
        const bool died = waited > 2 && has_died(s->rank[r].pid);
        if (died || waited > seconds_of_patience())
            throw emu::Error("NCCL: rank " + std::to_string(rank) + " waits in " + KINDS[s->rank[rank].call.kind] +
                             " for rank " + std::to_string(r) +
                             (died ? ", which has died" : ", which has not arrived"));
    }
    return true;
}

void ncclComm::check(const Call& mine) {
    auto text = [](const Call& c) {
        return std::string(KINDS[c.kind]) + " of " + std::to_string(c.n) + " of type " + std::to_string(c.type);
    };
    for (int r = 0; r < ranks; r++)
        if (!s->rank[r].call.same(mine))
            throw emu::Error("NCCL: rank " + std::to_string(rank) + " calls " + text(mine) + ", rank " +
                             std::to_string(r) + " " + text(s->rank[r].call));
    if (mine.kind == 4 && s->rank[mine.from].call.to != rank)
        throw emu::Error("NCCL: rank " + std::to_string(rank) + " receives from rank " + std::to_string(mine.from) +
                         ", which sends to rank " + std::to_string(s->rank[mine.from].call.to));
}

// ---- the work -----------------------------------------------------------------------------------

namespace {
size_t bytes_of(int type) { return type == ncclFloat64 ? 8 : type == ncclFloat32 ? 4 : 2; }

// out = sum over ranks, from 0 on, of the n elements at byte `at` of their slots
template <class T, class Sum> void add_up(const Shared& s, int ranks, size_t at, char* out, size_t n) {
    for (size_t i = 0; i < n; i++) {
        Sum sum = 0;
        for (int r = 0; r < ranks; r++) {
            T x;
            memcpy(&x, s.slot[r] + at + i * sizeof(T), sizeof(T));
            if constexpr (sizeof(T) == 8) sum += x;
            else sum += to_float(x);
        }
        T x;
        if constexpr (sizeof(T) == 8) x = sum;
        else x = from_float<T>(sum);
        memcpy(out + i * sizeof(T), &x, sizeof(T));
    }
}
}    // namespace

void ncclComm::run(const Call& call, const char* send, char* recv) {
    const size_t size = bytes_of(call.type), parts = call.kind == 1 ? size_t(ranks) : 1, most = SLOT / size / parts;
    s->rank[rank].call = call;
    if (++s->rank[rank].begun == fails_at) {
        for (failed = true; !aborted;) usleep(1000);
        return;
    }
    if (!meet()) return;
    check(call);
    for (size_t at = 0; at < call.n; at += most) {
        const size_t n = std::min(most, call.n - at), bytes = n * size;
        for (size_t p = 0; p < parts; p++) memcpy(s->slot[rank] + p * bytes, send + (p * call.n + at) * size, bytes);
        if (!meet()) return;
        if (call.kind == 2)
            for (int r = 0; r < ranks; r++) memcpy(recv + (size_t(r) * call.n + at) * size, s->slot[r], bytes);
        else if (call.kind >= 3) memcpy(recv + at * size, s->slot[call.from], bytes);
        else {
            const size_t from = call.kind == 1 ? size_t(rank) * bytes : 0;
            auto* const add = call.type == ncclFloat64   ? add_up<double, double>
                              : call.type == ncclFloat32 ? add_up<float, float>
                                                         : add_up<bf16, float>;
            add(*s, ranks, from, recv + at * size, n);
        }
        if (!meet()) return;
    }
}

// The thread that runs the streams' work when the host makes other ranks wait.
void ncclComm::go_on() {
    for (int behind = 0; !ending && !aborted;) {
        std::this_thread::sleep_for(std::chrono::milliseconds(10));
        auto others_wait = [this] {
            for (int r = 0; r < ranks; r++)
                if (s->rank[r].begun > s->rank[rank].begun) return true;
            return false;
        };
        behind = others_wait() ? behind + 1 : 0;
        if (behind < 4) continue;
        try {
            emu::proceed([&] { return ending || !others_wait(); });
        } catch (const emu::Error& e) {
            fprintf(stderr, "\n%s\n", e.what());
            abort();
        }
    }
}

// ---- calls --------------------------------------------------------------------------------------

ncclResult_t ncclGetVersion(int* version) {
    const char* text = getenv("EMU_NCCL_VERSION");
    return *version = text ? atoi(text) : NCCL_VERSION_CODE, ncclSuccess;
}
const char* ncclGetErrorString(ncclResult_t r) {
    switch (r) {
        case ncclSuccess: return "no error";
        case ncclUnhandledCudaError: return "unhandled cuda error";
        case ncclSystemError: return "unhandled system error";
        case ncclInternalError: return "internal error";
        case ncclInvalidArgument: return "invalid argument";
        case ncclInvalidUsage: return "invalid usage";
        case ncclRemoteError: return "remote process exited or there was a network error";
        case ncclInProgress: return "operation in progress";
    }
    return "unknown result code";
}
const char* ncclGetLastError(ncclComm_t) { return ""; }

// The memory has no name: it exists as long as a process has it open or mapped.
ncclResult_t ncclGetUniqueId(ncclUniqueId* id) {
    const int fd = memfd_create("nccl", MFD_CLOEXEC);
    if (fd < 0 || ftruncate(fd, sizeof(Shared))) return ncclSystemError;
    *id = {};
    snprintf(id->internal, sizeof id->internal, "/proc/%d/fd/%d", int(getpid()), fd);
    return ncclSuccess;
}

ncclResult_t ncclCommInitRankConfig(ncclComm_t* comm, int ranks, ncclUniqueId id, int rank, ncclConfig_t* config) {
    *comm = nullptr;
    if (ranks < 1 || ranks > MAX_RANKS || rank < 0 || rank >= ranks || config->magic != 0xcafebeef)
        return ncclInvalidArgument;
    const int fd = open(id.internal, O_RDWR | O_CLOEXEC);
    if (fd < 0) return ncclSystemError;
    void* p = mmap(nullptr, sizeof(Shared), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    close(fd);
    if (p == MAP_FAILED) return ncclSystemError;
    Shared* s = static_cast<Shared*>(p);
    int none = 0, nobody = 0;
    if ((!s->ranks.compare_exchange_strong(none, ranks) && none != ranks) ||
        !s->rank[rank].pid.compare_exchange_strong(nobody, int(getpid()))) {
        munmap(p, sizeof(Shared));
        return ncclInvalidUsage;
    }
    int maker = 0, made = -1;
    if (sscanf(id.internal, "/proc/%d/fd/%d", &maker, &made) != 2 || maker != int(getpid())) made = -1;
    *comm = new ncclComm{.s = s, .rank = rank, .ranks = ranks, .id = made};
    (*comm)->blocking = config->blocking != 0;
    int failing = -1, call = 0;
    const char* fail = getenv("EMU_NCCL_FAIL");
    if (fail && sscanf(fail, "%d:%d", &failing, &call) == 2 && failing == rank) (*comm)->fails_at = uint64_t(call);
    s->joined++;
    ncclResult_t state = ncclInProgress;
    while ((*comm)->blocking && state == ncclInProgress) {
        usleep(1000);
        ncclCommGetAsyncError(*comm, &state);
    }
    return state;
}

ncclResult_t ncclCommGetAsyncError(ncclComm_t c, ncclResult_t* state) {
    *state = c->s->joined < c->ranks ? ncclInProgress : ncclSuccess;
    if (*state == ncclSuccess && !c->device.joinable() && !c->aborted) {
        if (c->id >= 0) close(std::exchange(c->id, -1));
        c->device = std::thread([c] { c->go_on(); });
    }
    if (c->failed) return *state = ncclRemoteError, ncclSuccess;
    if (!c->under_way) return ncclSuccess;
    bool on_its_way = ++c->asked < 3;
    for (int r = 0; r < c->ranks && getenv("EMU_NCCL_CONNECT"); r++)
        on_its_way |= c->s->rank[r].called < c->s->rank[c->rank].called;
    if (on_its_way) return *state = ncclInProgress, ncclSuccess;
    std::exchange(c->under_way, nullptr)();
    return ncclSuccess;
}
ncclResult_t ncclComm::begin(std::function<void()> call) {
    if (under_way) return ncclInvalidArgument;
    if (blocking) return call(), ncclSuccess;
    under_way = std::move(call);
    asked = 0;
    return ncclInProgress;
}
ncclResult_t ncclCommFinalize(ncclComm_t c) { return c->begin(emu::drain); }
ncclResult_t ncclCommDestroy(ncclComm_t c) {
    if (c->under_way) return ncclInvalidArgument;
    c->ending = true;
    if (c->device.joinable()) c->device.join();
    if (c->id >= 0) close(c->id);
    munmap(c->s, sizeof(Shared));
    delete c;
    return ncclSuccess;
}
// Releases waiting ranks. The object is never freed, because queued work refers to it.
ncclResult_t ncclCommAbort(ncclComm_t c) {
    static auto& kept = *new std::vector<ncclComm_t>;
    kept.push_back(c);
    c->aborted = true;
    if (c->device.joinable()) c->device.detach();
    return ncclSuccess;
}

namespace {
ncclResult_t collective(int kind, const void* send, void* recv, size_t n, int type, ncclComm_t c, cudaStream_t s,
                        int from = 0, int to = -1) {
    if (!c || !s || !send || !recv || n > size_t{1} << 48) return ncclInvalidArgument;
    cudaStreamCaptureStatus capturing;
    if (cudaStreamIsCapturing(s, &capturing); capturing != cudaStreamCaptureStatusNone) return ncclInvalidUsage;
    const size_t part = n * bytes_of(type), all = part * size_t(c->ranks), mine = part * size_t(c->rank);
    const char* in = static_cast<const char*>(send);
    char* out = static_cast<char*>(recv);
    const size_t in_bytes = kind == 1 ? all : part, out_bytes = kind == 2 ? all : part;
    const bool in_place = kind == 0 || kind == 3 ? out == in
                          : kind == 1            ? out == in + mine
                                                 : kind == 2 && in == out + mine;
    const bool apart = out + out_bytes <= in || in + in_bytes <= out;
    if (!in_place && !apart) throw emu::Error(std::string(KINDS[kind]) + ": input and output overlap");
    auto on_device = [=] {
        if (!emu::on_device(in, in_bytes) || !emu::on_device(out, out_bytes))
            throw emu::Error(std::string(KINDS[kind]) + ": not all of it lies in an allocation of the device");
    };
    on_device();
    c->s->rank[c->rank].called++;
    return c->begin([=] {
        auto work = [=] {
            if (c->aborted) return;
            on_device();
            c->run({kind, type, n, from, to}, in, out);
        };
        // Not at once: a poll would run it, and wait for other ranks.
        emu::enqueue(s, work, c->blocking, KINDS[kind]);
    });
}
}    // namespace

ncclResult_t ncclAllReduce(const void* send, void* recv, size_t n, ncclDataType_t type, ncclRedOp_t, ncclComm_t comm,
                           cudaStream_t s) {
    return collective(0, send, recv, n, type, comm, s);
}
ncclResult_t ncclReduceScatter(const void* send, void* recv, size_t n, ncclDataType_t type, ncclRedOp_t,
                               ncclComm_t comm, cudaStream_t s) {
    return collective(1, send, recv, n, type, comm, s);
}
ncclResult_t ncclAllGather(const void* send, void* recv, size_t n, ncclDataType_t type, ncclComm_t comm,
                           cudaStream_t s) {
    return collective(2, send, recv, n, type, comm, s);
}
ncclResult_t ncclBroadcast(const void* send, void* recv, size_t n, ncclDataType_t type, int from, ncclComm_t comm,
                           cudaStream_t s) {
    if (comm && (from < 0 || from >= comm->ranks)) return ncclInvalidArgument;
    return collective(3, send, recv, n, type, comm, s, from);
}

// A group has one send and one receive, of equal sizes, and becomes a collective of all ranks.
namespace {
struct Transfer {
    const void* data = nullptr;
    size_t n = 0;
    int type = 0, peer = 0;
    ncclComm_t comm = nullptr;
    cudaStream_t stream = nullptr;
};
struct Group {
    bool open = false;
    Transfer send, receive;
};
thread_local Group group;
ncclResult_t add(Transfer& to, const Transfer& t) {
    if (!t.comm || t.peer < 0 || t.peer >= t.comm->ranks) return ncclInvalidArgument;
    if (!group.open) throw emu::Error("NCCL: a send or receive outside of a group may wait for ever");
    if (to.comm) throw emu::Error("NCCL: this emulator's groups have one send and one receive");
    return to = t, ncclSuccess;
}
}    // namespace
ncclResult_t ncclGroupStart() {
    if (group.open) return ncclInvalidUsage;
    group = {};
    group.open = true;
    return ncclSuccess;
}
ncclResult_t ncclSend(const void* send, size_t n, ncclDataType_t type, int peer, ncclComm_t comm, cudaStream_t s) {
    return add(group.send, {send, n, type, peer, comm, s});
}
ncclResult_t ncclRecv(void* recv, size_t n, ncclDataType_t type, int peer, ncclComm_t comm, cudaStream_t s) {
    return add(group.receive, {recv, n, type, peer, comm, s});
}
ncclResult_t ncclGroupEnd() {
    if (!group.open) return ncclInvalidUsage;
    const auto [open, a, b] = std::exchange(group, {});
    if (!a.comm && !b.comm) return ncclSuccess;
    if (a.comm != b.comm || a.stream != b.stream || a.n != b.n || a.type != b.type)
        throw emu::Error("NCCL: a group's send and receive differ");
    return collective(4, a.data, const_cast<void*>(b.data), a.n, a.type, a.comm, a.stream, b.peer, a.peer);
}

// streams.cpp - streams, events and graphs, and when their work is done.
#include <algorithm>
#include <deque>
#include <mutex>
#include <string_view>
#include <vector>

#include "runtime.h"

struct CUevent_st {
    uint64_t recorded = 0, done = 0;    // number of records; last one reached
    bool captured = false;
    double when = 0;    // by the device's clock
};
namespace emu {
struct Work {
    std::function<void()> run;
    const char* what = "";
    std::function<void()> begin;    // null unless the kernel overlaps the previous one
};
}
struct CUgraph_st {
    std::vector<emu::Work> work;
};
struct CUgraphExec_st : CUgraph_st {};
struct CUstream_st {
    struct Item {
        emu::Work work;
        cudaEvent_t event = nullptr;    // event that the item waits for
        uint64_t record = 0;
    };
    std::deque<Item> queue;
    bool lazy = false;    // by seed: works only for waiting calls
    cudaGraph_t capturing = nullptr;
    cudaError_t capture_error = cudaSuccess;
};

namespace emu {
namespace {
std::recursive_mutex api;
std::vector<cudaStream_t> streams;
Rng draws{0};

// May begin the queue's next overlapping kernel before the work ahead of it has run. Fills of
// memory queued in between are passed over: the emulator adds them (cuda_scratch), a GPU has none.
void begin_next(CUstream_st& s) {
    for (auto& next : s.queue) {
        if (next.work.begin && config.seed && draws.below(4)) next.work.begin();
        if (std::string_view(next.work.what) != "memset") return;
    }
}

// Does the first work in the queue, unless it waits for an event that has not been reached.
bool step(CUstream_st& s) {
    if (s.queue.empty()) return false;
    if (auto& first = s.queue.front(); first.event && first.event->done < first.record) return false;
    auto work = std::move(s.queue.front().work);
    s.queue.pop_front();
    if (!work.run) return true;
    try {
        DeviceAccess access;
        if (std::string_view(work.what) == "kernel") begin_next(s);
        work.run();
    } catch (...) {    // the device has failed: remaining work is lost
        for (cudaStream_t t : streams) t->queue.clear();
        throw;
    }
    return true;
}

template <class Done> void proceed_until(CUstream_st* preferred, Done done) {
    while (!done()) {
        for (size_t i = 0; i < streams.size(); i++)    // streams that are not lazy run first
            while (streams[i] != preferred && !streams[i]->lazy && step(*streams[i])) {}
        if (preferred && step(*preferred)) continue;
        const size_t start = draws.below(streams.size());
        bool moved = false;
        for (size_t i = 0; i < streams.size() && !moved; i++) moved = step(*streams[(start + i) % streams.size()]);
        if (!moved) return;    // an event that was recorded before an error
    }
}

// Seeds 1 to 3: the first stream lags behind the second, the second behind the first, both behind
// the host. From seed 4 on the third lags, too.
bool begins_lazy(size_t stream) { return config.seed >> stream % 3 & 1; }

cudaError_t capture_fails(CUstream_st& s, cudaError_t e) {
    s.capture_error = cudaErrorStreamCaptureInvalidated;
    return set_error(e);
}
}    // namespace

Entered::Entered() { api.lock(); }
Entered::~Entered() { api.unlock(); }

void enqueue(cudaStream_t s, std::function<void()> work, bool at_once, const char* what, std::function<void()> begin) {
    Entered entered;
    if (!s) {
        DeviceAccess access;
        work();
    } else if (s->capturing) {
        s->capturing->work.push_back({std::move(work), what, std::move(begin)});
    } else {
        if (journal) journal->push_back({s, what});
        s->queue.push_back({{std::move(work), what, std::move(begin)}});
        if (config.seed && draws.below(128) == 0) s->lazy = draws.below(2);
        if (at_once && (!config.seed || !s->lazy))
            while (step(*s)) {}
    }
}
void drain() {
    Entered entered;
    proceed_until(nullptr, [] {
        return std::all_of(streams.begin(), streams.end(), [](cudaStream_t s) { return s->queue.empty(); });
    });
}
void proceed(const std::function<bool()>& done) {
    if (std::unique_lock alone(api, std::try_to_lock); alone) proceed_until(nullptr, done);
}
void schedule(uint64_t seed) {
    Entered entered;
    drain();
    config.seed = seed;
    draws = {seed};
    for (size_t i = 0; i < streams.size(); i++) streams[i]->lazy = begins_lazy(i);
}
cudaError_t refuse_while_capturing() {
    for (cudaStream_t s : streams)
        if (s->capturing) return capture_fails(*s, cudaErrorStreamCaptureUnsupported);
    return cudaSuccess;
}
}    // namespace emu

using namespace emu;

// ---- streams ------------------------------------------------------------------------------------

cudaError_t cudaDeviceGetStreamPriorityRange(int* least, int* greatest) { return *least = *greatest = 0, cudaSuccess; }
cudaError_t cudaStreamCreateWithPriority(cudaStream_t* s, unsigned flags, int) {
    return cudaStreamCreateWithFlags(s, flags);
}
cudaError_t cudaStreamCreateWithFlags(cudaStream_t* s, unsigned) {
    Entered entered;
    if (streams.empty()) draws = {config.seed};
    streams.push_back(*s = new CUstream_st);
    (*s)->lazy = begins_lazy(streams.size() - 1);
    return cudaSuccess;
}
cudaError_t cudaStreamDestroy(cudaStream_t s) {
    Entered entered;
    cudaStreamSynchronize(s);
    std::erase(streams, s);
    delete s;
    return cudaSuccess;
}
cudaError_t cudaStreamSynchronize(cudaStream_t s) {
    if (!s) return cudaSuccess;
    Entered entered;
    if (s->capturing) return capture_fails(*s, cudaErrorStreamCaptureUnsupported);
    proceed_until(s, [=] { return s->queue.empty(); });
    return cudaSuccess;
}
cudaError_t cudaDeviceSynchronize() {
    Entered entered;
    if (cudaError_t e = refuse_while_capturing()) return e;
    return drain(), cudaSuccess;
}
cudaError_t cudaStreamWaitEvent(cudaStream_t s, cudaEvent_t e, unsigned) {
    Entered entered;
    if (s->capturing) return e->captured ? cudaSuccess : capture_fails(*s, cudaErrorStreamCaptureIsolation);
    if (e->captured) return set_error(cudaErrorCapturedEvent);    // joining a capture is not emulated
    if (journal) journal->push_back({s, "wait", e, e->recorded});
    s->queue.push_back({{}, e, e->recorded});
    if (!config.seed) step(*s);
    return cudaSuccess;
}

// ---- events -------------------------------------------------------------------------------------

cudaError_t cudaEventCreateWithFlags(cudaEvent_t* e, unsigned) { return *e = new CUevent_st, cudaSuccess; }
cudaError_t cudaEventCreate(cudaEvent_t* e) { return cudaEventCreateWithFlags(e, 0); }
cudaError_t cudaEventDestroy(cudaEvent_t e) {
    Entered entered;
    drain();    // streams refer to the event
    delete e;
    return cudaSuccess;
}
cudaError_t cudaEventRecord(cudaEvent_t e, cudaStream_t s) {
    Entered entered;
    e->captured = s && s->capturing;
    if (e->captured) return cudaSuccess;
    enqueue(
        s, [e, record = ++e->recorded] { e->done = record, e->when = clock_ms; }, true, "record");
    if (journal && s) journal->back().event = e, journal->back().number = e->recorded;
    return cudaSuccess;
}
cudaError_t cudaEventQuery(cudaEvent_t e) {
    Entered entered;
    if (e->captured) return set_error(cudaErrorCapturedEvent);
    for (cudaStream_t s : streams)
        if (config.seed && draws.below(2)) step(*s);
    return e->done < e->recorded ? cudaErrorNotReady : cudaSuccess;
}
cudaError_t cudaEventSynchronize(cudaEvent_t e) {
    Entered entered;
    if (e->captured) return set_error(cudaErrorCapturedEvent);
    proceed_until(nullptr, [e] { return e->done >= e->recorded; });
    return cudaSuccess;
}
cudaError_t cudaEventElapsedTime(float* ms, cudaEvent_t from, cudaEvent_t to) {
    if (from->done < from->recorded || to->done < to->recorded) return set_error(cudaErrorNotReady);
    *ms = float(to->when - from->when);
    return cudaSuccess;
}

// ---- graphs -------------------------------------------------------------------------------------

cudaError_t cudaStreamBeginCapture(cudaStream_t s, cudaStreamCaptureMode) {
    Entered entered;
    if (!s || s->capturing) return set_error(cudaErrorStreamCaptureUnsupported);
    s->capturing = new CUgraph_st;
    s->capture_error = cudaSuccess;
    return cudaSuccess;
}
cudaError_t cudaStreamEndCapture(cudaStream_t s, cudaGraph_t* g) {
    Entered entered;
    if (!s || !s->capturing) return set_error(cudaErrorInvalidValue);
    *g = std::exchange(s->capturing, nullptr);
    if (!s->capture_error) return cudaSuccess;
    delete std::exchange(*g, nullptr);
    return set_error(s->capture_error);
}
cudaError_t cudaStreamIsCapturing(cudaStream_t s, cudaStreamCaptureStatus* status) {
    *status = !s || !s->capturing ? cudaStreamCaptureStatusNone
              : s->capture_error  ? cudaStreamCaptureStatusInvalidated
                                  : cudaStreamCaptureStatusActive;
    return cudaSuccess;
}
cudaError_t cudaGraphInstantiate(cudaGraphExec_t* exec, cudaGraph_t g, unsigned long long) {
    *exec = new CUgraphExec_st{*g};
    return cudaSuccess;
}
cudaError_t cudaGraphLaunch(cudaGraphExec_t exec, cudaStream_t s) {
    if (journal) journal->push_back({s, "graph"});
    auto* kept = std::exchange(journal, nullptr);
    for (auto& work : exec->work) enqueue(s, work.run, &work == &exec->work.back(), work.what, work.begin);
    journal = kept;
    return cudaSuccess;
}
cudaError_t cudaGraphDestroy(cudaGraph_t g) { return delete g, cudaSuccess; }
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t exec) { return delete exec, cudaSuccess; }

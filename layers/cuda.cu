// cuda.cu - the device: memory, streams, graphs, scratch, and the table of operations.
//
// Synchronisation: all operations run on one stream, in order. The host runs ahead of it and waits
// only in download and wait. A second stream uploads the next batch: on the device, upload_async
// waits until use_uploaded has copied the previous batch, and use_uploaded makes the first stream
// wait for the upload. Uploads are staged in pinned memory, so the caller may change its own at
// once. Each stream has a ring of two halves for this; a half is reused when its copies are done.
#include <unistd.h>

#include <algorithm>
#include <cstring>

#include "cuda.cuh"
#include "cuda.h"

namespace {
constexpr int64_t HALF = 4 << 20;    // bytes of half a ring: largest single copy
constexpr int MARKS = 64;            // marks kept; older ones wait for everything

struct Ring {
    cudaStream_t stream = nullptr;
    char* host = nullptr;
    int64_t used = 0;
    int half = 0;
    cudaEvent_t done[2];

    void open(cudaStream_t s) {
        stream = s;
        CUDA_CHECK(cudaMallocHost(&host, size_t(2 * HALF)));
        for (cudaEvent_t& e : done) CUDA_CHECK(cudaEventCreateWithFlags(&e, cudaEventDisableTiming));
    }
    void put(void* to, const void* from, int64_t bytes) {
        for (int64_t at = 0; at < bytes;) {
            if (used == HALF) {
                CUDA_CHECK(cudaEventRecord(done[half], stream));
                half ^= 1, used = 0;
                CUDA_CHECK(cudaEventSynchronize(done[half]));
            }
            const int64_t n = std::min(bytes - at, HALF - used);
            char* staging = host + half * HALF + used;
            memcpy(staging, static_cast<const char*>(from) + at, size_t(n));
            CUDA_CHECK(
                cudaMemcpyAsync(static_cast<char*>(to) + at, staging, size_t(n), cudaMemcpyHostToDevice, stream));
            at += n, used += n;
        }
    }
};

struct Backend {
    bool open = false;
    CudaDevice device;
    int64_t context_bytes = 0;
    cudaStream_t stream = nullptr, side = nullptr;
    cudaEvent_t uploaded, taken, marks[MARKS];
    int64_t next_mark = 0;
    Ring ring, ahead;
    void* scratch = nullptr;
    int64_t scratch_bytes = 0;
    std::vector<void*> outgrown;    // scratch that captured graphs still use
    int graphs = 0;
    bool recording = false;
} b;
}    // namespace

void cuda_failed(const char* file, int line, const char* what, cudaError_t error) {
    fprintf(stderr, "\n%s:%d: the GPU failed: %s: %s\n", file, line, what, cudaGetErrorString(error));
    if (error == cudaErrorMemoryAllocation)
        fputs("its memory is full: a smaller --batch or --recompute blocks needs less\n", stderr);
    fflush(nullptr);
    _exit(int(Exit::device));    // the device's data may be wrong
}

// ---- devices ------------------------------------------------------------------------------------

namespace {
// Peak of dense bf16 products with fp32 sums. Device properties do not give FLOP per clock and
// multiprocessor. Source: NVIDIA's architecture papers (A100 2020: 2048; H100 2022: 4096; Blackwell
// 2024: 8192; others 1024, GeForce half). Hopper and data-centre Blackwell are rated below the
// largest clock: 1.83 of 1.98 GHz (H100 SXM: 989 TFLOP/s), 1.62 of 1.755 (H100 PCIe: 756), 1.86 of
// 1.965 (B200: 2250).
double peak_bf16(const CudaDevice& d, double clock) {
    const bool geforce = d.name.find("GeForce") != std::string::npos;
    double per_clock = geforce ? 512 : 1024;
    if (d.major == 8 && d.minor == 0) per_clock = 2048;
    if (d.major == 9) per_clock = 4096 * 0.924;
    if (d.major == 10) per_clock = 8192 * 0.945;
    return d.multiprocessors * per_clock * clock;
}
}    // namespace

std::vector<CudaDevice> cuda_devices(std::string* why) {
    std::vector<CudaDevice> found;
    int count = 0;
    const cudaError_t error = cudaGetDeviceCount(&count);
    (void)cudaGetLastError();
    if (error != cudaSuccess || count == 0) {
        *why = std::string("no GPU that CUDA can use") + (error ? std::string(": ") + cudaGetErrorString(error) : "");
        if (error == cudaErrorInsufficientDriver)
            *why += " (no NVIDIA driver here, or one older than this binary's CUDA)";
        return found;
    }
    for (int i = 0; i < count; i++) {
        cudaDeviceProp p;
        int clock = 0;
        if (cudaGetDeviceProperties(&p, i) != cudaSuccess) continue;
        CudaDevice d = {i, p.name, p.major, p.minor, p.multiProcessorCount, int64_t(p.totalGlobalMem), 0, 0};
        if (p.major < 8) {
            *why = d.name + " has compute capability " + std::to_string(p.major) + "." + std::to_string(p.minor) +
                   ", needed is 8.0 (Ampere) or newer";
            continue;
        }
        cudaDeviceGetAttribute(&clock, cudaDevAttrClockRate, i);    // kHz
        d.peak_bf16 = peak_bf16(d, 1e3 * clock);
        size_t free = 0, total = 0;    // only the open device has a context
        const bool known = b.open && b.device.index == i && cudaMemGetInfo(&free, &total) == cudaSuccess;
        d.free = known ? int64_t(free) : d.memory;
        found.push_back(d);
    }
    (void)cudaGetLastError();
    return found;
}

Status cuda_open(int index) {
    if (b.open && b.device.index == index) return {};
    CHECK(!b.open, "device %d is open", b.device.index);
    std::string why;
    bool found = false;
    for (const CudaDevice& d : cuda_devices(&why))
        if (d.index == index) b.device = d, found = true;
    if (!found) return fail(Exit::device, "GPU %d: %s", index, why.empty() ? "there is no such device" : why.c_str());
    size_t free = 0, total = 0;
    cudaError_t error = cudaSetDevice(index);
    if (!error) error = cudaMemGetInfo(&free, &total);    // creates the context
    if (error) return fail(Exit::device, "%s: %s", b.device.name.c_str(), cudaGetErrorString(error));
    TRY(cublaslt_load());
    b.open = true;
    CUDA_CHECK(cudaStreamCreateWithFlags(&b.stream, cudaStreamNonBlocking));
    CUDA_CHECK(cudaStreamCreateWithFlags(&b.side, cudaStreamNonBlocking));
    for (cudaEvent_t* e : {&b.uploaded, &b.taken}) CUDA_CHECK(cudaEventCreateWithFlags(e, cudaEventDisableTiming));
    for (cudaEvent_t& e : b.marks) CUDA_CHECK(cudaEventCreateWithFlags(&e, cudaEventDisableTiming));
    b.ring.open(b.stream);
    b.ahead.open(b.side);
    CUDA_CHECK(cudaMemGetInfo(&free, &total));
    b.context_bytes = int64_t(total - free);    // includes other processes' memory
    b.device.memory = int64_t(total), b.device.free = int64_t(free);
    return {};
}
const CudaDevice& cuda_device() { return b.device; }
int64_t cuda_context_bytes() { return b.context_bytes; }
cudaStream_t cuda_stream() { return b.stream; }
int cuda_multiprocessors() { return b.device.multiprocessors; }
int cuda_capability() { return 10 * b.device.major + b.device.minor; }

// An empty kernel, compiled for the same architectures as all others, which tells at run time what
// they are. Below 9.0 the kernels lack griddepcontrol.wait and must not overlap, whatever the GPU
// is.
static __global__ void any_kernel() {}
bool cuda_overlaps() {
    static const bool does = [] {
        cudaFuncAttributes compiled;
        CUDA_CHECK(cudaFuncGetAttributes(&compiled, any_kernel));
        return compiled.ptxVersion >= 90;
    }();
    return does;
}

// ---- memory -------------------------------------------------------------------------------------

void* cuda_scratch(int64_t bytes, int64_t kept) {
    if (bytes > b.scratch_bytes) {
        CHECK(!kept, "%lld bytes of scratch to be kept would be lost", (long long)kept);
        CHECK(!b.recording, "%lld bytes of scratch are needed in a graph capture, %lld are allocated", (long long)bytes,
              (long long)b.scratch_bytes);
        if (b.graphs) b.outgrown.push_back(b.scratch);
        else CUDA_CHECK(cudaFree(b.scratch));    // waits for kernels that use it
        b.scratch = nullptr, b.scratch_bytes = 0;
        CUDA_CHECK(cudaMalloc(&b.scratch, size_t(bytes)));
        b.scratch_bytes = bytes;
    }
    if (EMULATED)    // NaN replaces at most 1 MiB of values
        CUDA_CHECK(cudaMemsetAsync(static_cast<char*>(b.scratch) + kept, 0xff,
                                   size_t(std::min<int64_t>(bytes - kept, 1 << 20)), b.stream));
    return b.scratch;
}
void cuda_scratch_release() {
    CUDA_CHECK(cudaFree(b.scratch));
    b.scratch = nullptr, b.scratch_bytes = 0;
}

namespace {
void zero(void* p, int64_t bytes) { CUDA_CHECK(cudaMemsetAsync(p, 0, size_t(bytes), b.stream)); }
void* allocate(int64_t bytes) {
    void* p = nullptr;
    if (cudaMalloc(&p, size_t(std::max<int64_t>(1, bytes))) != cudaSuccess) {
        (void)cudaGetLastError();
        return nullptr;
    }
    zero(p, bytes);
    CUDA_CHECK(cudaStreamSynchronize(b.stream));    // the second stream may write to it next
    return p;
}
void release(void* p, int64_t) { CUDA_CHECK(cudaFree(p)); }
void* allocate_host(int64_t bytes) {
    void* p = nullptr;
    if (cudaMallocHost(&p, size_t(bytes)) == cudaSuccess) return p;
    (void)cudaGetLastError();
    return nullptr;
}
void release_host(void* p, int64_t) { CUDA_CHECK(cudaFreeHost(p)); }
void copy(void* to, const void* from, int64_t bytes) {
    CUDA_CHECK(cudaMemcpyAsync(to, from, size_t(bytes), cudaMemcpyDeviceToDevice, b.stream));
}
void upload(void* to, const void* from, int64_t bytes) { b.ring.put(to, from, bytes); }
void download_async(void* to, const void* from, int64_t bytes) {
    CUDA_CHECK(cudaMemcpyAsync(to, from, size_t(bytes), cudaMemcpyDeviceToHost, b.stream));
}
void download(void* to, const void* from, int64_t bytes) {
    download_async(to, from, bytes);
    CUDA_CHECK(cudaStreamSynchronize(b.stream));
}

void upload_async(void* staged, const void* from, int64_t bytes) {
    CUDA_CHECK(cudaStreamWaitEvent(b.side, b.taken, 0));
    b.ahead.put(staged, from, bytes);
    CUDA_CHECK(cudaEventRecord(b.uploaded, b.side));
}
void use_uploaded(void* to, const void* staged, int64_t bytes) {
    CUDA_CHECK(cudaStreamWaitEvent(b.stream, b.uploaded, 0));
    copy(to, staged, bytes);
    CUDA_CHECK(cudaEventRecord(b.taken, b.stream));
}

int64_t mark() {
    CUDA_CHECK(cudaEventRecord(b.marks[b.next_mark % MARKS], b.stream));
    return b.next_mark++;
}
void wait(int64_t m) {
    if (m + MARKS <= b.next_mark) CUDA_CHECK(cudaStreamSynchronize(b.stream));
    else CUDA_CHECK(cudaEventSynchronize(b.marks[m % MARKS]));
}
int64_t free_bytes() {
    size_t free = 0, total = 0;
    CUDA_CHECK(cudaMemGetInfo(&free, &total));
    return int64_t(free);
}

// ---- graphs -------------------------------------------------------------------------------------

void begin_capture() {
    CUDA_CHECK(cudaStreamBeginCapture(b.stream, cudaStreamCaptureModeThreadLocal));
    b.recording = true;
}
void* end_capture() {
    cudaGraph_t graph;
    cudaGraphExec_t exec;
    b.recording = false;
    CUDA_CHECK(cudaStreamEndCapture(b.stream, &graph));
    CUDA_CHECK(cudaGraphInstantiate(&exec, graph, 0));
    CUDA_CHECK(cudaGraphDestroy(graph));
    b.graphs++;
    return exec;
}
void launch_graph(void* graph) { CUDA_CHECK(cudaGraphLaunch(static_cast<cudaGraphExec_t>(graph), b.stream)); }
void release_graph(void* graph) {
    CUDA_CHECK(cudaStreamSynchronize(b.stream));
    CUDA_CHECK(cudaGraphExecDestroy(static_cast<cudaGraphExec_t>(graph)));
    if (--b.graphs) return;
    for (void* p : b.outgrown) CUDA_CHECK(cudaFree(p));
    b.outgrown.clear();
}

// ---- the table ----------------------------------------------------------------------------------

template <class T> int64_t scratch_bytes(const CallSizes& call) {
    return cuda_call_scratch(call, sizeof(T), cuda_multiprocessors(), attention_has_sm90());
}

template <class T> Ops<T> make_table(Dtype dtype) {
    static const char* const NAMES[] = {"fp32", "tf32", "bf16", "fp8", "fp8-block"};
    static std::string names[5];
    std::string& name = names[int(dtype)];
    name = b.device.name + " " + NAMES[int(dtype)];
    Ops<T> o = {};
    o.name = name.c_str(), o.fp8 = is_fp8(dtype);
    o.allocate = allocate, o.release = release, o.allocate_host = allocate_host, o.release_host = release_host;
    o.zero = zero, o.copy = copy, o.upload = upload, o.download = download;
    o.upload_async = upload_async, o.use_uploaded = use_uploaded, o.download_async = download_async, o.mark = mark,
    o.wait = wait;
    o.begin_capture = begin_capture, o.end_capture = end_capture, o.launch_graph = launch_graph,
    o.release_graph = release_graph;
    for (const CudaRegistration& enter : CudaRegistration::all()) enter(o, dtype);
    o.logits_bytes = cuda_logits_bytes(b.device.memory);
    o.scratch_bytes = scratch_bytes<T>;
    o.free_bytes = free_bytes;
    const char* missing = missing_operation(o);
    CHECK(!missing, "the operation %s is missing", missing);
    return o;
}
}    // namespace

template <> const Ops<float>& cuda_ops<float>(Dtype dtype) {
    CHECK(b.open && (dtype == Dtype::fp32 || dtype == Dtype::tf32), "cuda_open comes first");
    static const Ops<float> full = make_table<float>(Dtype::fp32), fast = make_table<float>(Dtype::tf32);
    return dtype == Dtype::tf32 ? fast : full;
}
template <> const Ops<bf16>& cuda_ops<bf16>(Dtype dtype) {
    CHECK(b.open && (dtype == Dtype::bf16 || is_fp8(dtype)), "cuda_open comes first");
    static const Ops<bf16> half = make_table<bf16>(Dtype::bf16), per_tensor_fp8 = make_table<bf16>(Dtype::fp8),
                           blocks = make_table<bf16>(Dtype::fp8_block);
    return dtype == Dtype::fp8_block ? blocks : dtype == Dtype::fp8 ? per_tensor_fp8 : half;
}

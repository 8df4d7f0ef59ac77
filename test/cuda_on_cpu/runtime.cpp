// runtime.cpp - errors, the device and its memory.
#include "runtime.h"

#include <algorithm>
#include <map>
#include <mutex>
#include <vector>

namespace emu {
namespace {
int setting(const char* name, int otherwise) {
    const char* text = getenv(name);
    return text && *text ? atoi(text) : otherwise;
}
cudaError_t last_error = cudaSuccess;

// ---- allocations --------------------------------------------------------------------------------

struct Allocation {
    size_t bytes;
    bool device;
};
std::map<const char*, Allocation> allocations;
size_t device_bytes = 0;
struct Report {    // EMU_REPORT=1: printed at the end of the process
    size_t most = 0;
    ~Report() {
        if (getenv("EMU_REPORT")) fprintf(stderr, "emulated GPU: at most %zu bytes\n", most);
    }
} report;
int accesses = 0;

const std::pair<const char* const, Allocation>* find(const void* p, size_t n) {
    const char* at = static_cast<const char*>(p);
    auto after = allocations.upper_bound(at);
    if (after == allocations.begin()) return nullptr;
    auto& a = *std::prev(after);
    return at + n <= a.first + a.second.bytes ? &a : nullptr;
}

void shade(const char* p, size_t bytes) {
    if (ASAN) (accesses ? __asan_unpoison_memory_region : __asan_poison_memory_region)(p, bytes);
}
void shade_all() {
    for (auto& [p, a] : allocations)
        if (ASAN && a.device) shade(p, a.bytes);
}

cudaError_t allocate(void** p, size_t bytes, bool device) {
    Entered entered;
    if (cudaError_t e = refuse_while_capturing()) return e;
    *p = nullptr;
    if (bytes == 0) return cudaSuccess;
    if (device && bytes > config.memory_bytes - std::min(device_bytes, config.memory_bytes))
        return set_error(cudaErrorMemoryAllocation);
    // The exact size, so that AddressSanitizer finds each overrun.
    if (posix_memalign(p, 256, bytes)) return set_error(cudaErrorMemoryAllocation);
    if (config.runs) std::memset(*p, 0xff, bytes);    // without runs, memory stays untouched
    allocations[static_cast<char*>(*p)] = {bytes, device};
    if (device) device_bytes += bytes, shade(static_cast<char*>(*p), bytes);
    report.most = std::max(report.most, device_bytes);
    return cudaSuccess;
}

cudaError_t release(void* p, bool device) {
    if (!p) return cudaSuccess;
    Entered entered;
    if (cudaError_t e = refuse_while_capturing()) return e;
    drain();
    auto a = allocations.find(static_cast<char*>(p));
    if (a == allocations.end() || a->second.device != device) return set_error(cudaErrorInvalidValue);
    if (device) device_bytes -= a->second.bytes;
    if (ASAN) __asan_unpoison_memory_region(p, a->second.bytes);
    allocations.erase(a);
    std::free(p);
    return cudaSuccess;
}

void must_be_on_device(const char* call, const void* p, size_t n) {
    if (!on_device(p, n))
        throw Error(std::string(call) + ": " + std::to_string(n) + " bytes that do not lie in one device allocation");
}
void check_copy(void* to, const void* from, size_t n, cudaMemcpyKind kind) {
    const bool both = kind == cudaMemcpyDeviceToDevice;
    if (both || kind == cudaMemcpyHostToDevice) must_be_on_device("cudaMemcpy to", to, n);
    if (both || kind == cudaMemcpyDeviceToHost) must_be_on_device("cudaMemcpy from", from, n);
    if ((kind == cudaMemcpyHostToDevice && find(from, 1) && find(from, 1)->second.device) ||
        (kind == cudaMemcpyDeviceToHost && find(to, 1) && find(to, 1)->second.device))
        throw Error("cudaMemcpy: the pointer for host memory is the device's");
}
}    // namespace

Multiprocessor multiprocessor_of(int capability) {
    switch (capability) {    // CUDA C++ Programming Guide, technical specifications
        case 80: return {64, 32, 163 << 10};
        case 86: return {48, 16, 99 << 10};
        case 87: return {48, 16, 163 << 10};
        case 89:
        case 120: return {48, 24, 99 << 10};
        default: return {64, 32, 227 << 10};
    }
}
Config config = [] {
    Config c;
    c.seed = static_cast<uint64_t>(setting("EMU_SEED", 0));
    c.devices = setting("EMU_DEVICES", 1);
    c.capability = setting("EMU_CC", 80);
    c.multiprocessors = setting("EMU_SMS", 4);
    c.memory_bytes = static_cast<size_t>(setting("EMU_MEMORY_MB", 4096)) << 20;
    c.os_threads = static_cast<unsigned>(setting("EMU_THREADS", 1));
    c.cublaslt = static_cast<size_t>(setting("EMU_CUBLASLT", 130000));
    c.runs = setting("EMU_RUN", 1);
    c.shared_limit = multiprocessor_of(c.capability).shared_limit;
    return c;
}();

cudaError_t set_error(cudaError_t e) { return last_error = e; }
MemoryUse memory_use() {
    MemoryUse m{device_bytes, 0, 0};
    for (auto& [p, a] : allocations) (a.device ? m.device_blocks : m.host_blocks)++;
    return m;
}
bool on_device(const void* p, size_t n) {
    auto* a = find(p, n);
    return n == 0 || (a && a->second.device);
}
DeviceAccess::DeviceAccess() {
    Entered entered;
    if (accesses++ == 0) shade_all();
}
DeviceAccess::~DeviceAccess() {
    Entered entered;
    if (--accesses == 0) shade_all();
}
}    // namespace emu

using namespace emu;

// ---- errors, the device -------------------------------------------------------------------------

cudaError_t cudaGetLastError() { return std::exchange(last_error, cudaSuccess); }
const char* cudaGetErrorString(cudaError_t e) {
    switch (e) {
        case cudaSuccess: return "no error";
        case cudaErrorInvalidValue: return "invalid argument";
        case cudaErrorMemoryAllocation: return "out of memory";
        case cudaErrorInsufficientDriver: return "CUDA driver version is insufficient for CUDA runtime version";
        case cudaErrorNoDevice: return "no CUDA-capable device is detected";
        case cudaErrorInvalidDevice: return "invalid device ordinal";
        case cudaErrorNotReady: return "device not ready";
        case cudaErrorStreamCaptureUnsupported: return "operation not permitted when stream is capturing";
        case cudaErrorStreamCaptureInvalidated: return "operation failed due to a previous error during capture";
        case cudaErrorStreamCaptureIsolation: return "dependency created on uncaptured work in another stream";
        case cudaErrorCapturedEvent: return "operation not permitted on an event last recorded in a capturing stream";
    }
    return "unrecognized error code";
}

cudaError_t cudaGetDeviceCount(int* count) {
    *count = config.devices;
    return config.devices ? cudaSuccess : set_error(cudaErrorNoDevice);
}
cudaError_t cudaGetDeviceProperties(cudaDeviceProp* p, int device) {
    if (device < 0 || device >= config.devices) return set_error(cudaErrorInvalidDevice);
    *p = {};
    snprintf(p->name, sizeof p->name, "emulated sm_%d", config.capability);
    p->totalGlobalMem = config.memory_bytes;
    p->major = config.capability / 10, p->minor = config.capability % 10;
    p->multiProcessorCount = config.multiprocessors;
    return cudaSuccess;
}
cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int device) {
    if (device < 0 || device >= config.devices) return set_error(cudaErrorInvalidDevice);
    if (attribute != cudaDevAttrClockRate) return set_error(cudaErrorInvalidValue);
    *value = 1'000'000;
    return cudaSuccess;
}
cudaError_t cudaSetDevice(int device) {
    return device >= 0 && device < config.devices ? cudaSuccess : set_error(cudaErrorInvalidDevice);
}

// ---- memory -------------------------------------------------------------------------------------

cudaError_t cudaMalloc(void** p, size_t bytes) { return allocate(p, bytes, true); }
cudaError_t cudaMallocHost(void** p, size_t bytes) { return allocate(p, bytes, false); }
cudaError_t cudaFree(void* p) { return release(p, true); }
cudaError_t cudaFreeHost(void* p) { return release(p, false); }
cudaError_t cudaMemGetInfo(size_t* free, size_t* total) {
    *total = config.memory_bytes, *free = config.memory_bytes - std::min(device_bytes, config.memory_bytes);
    return cudaSuccess;
}

cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t n, cudaMemcpyKind kind, cudaStream_t s) {
    if (!config.runs && kind == cudaMemcpyDeviceToDevice) return cudaSuccess;
    check_copy(to, from, n, kind);
    const bool pageable_from = kind == cudaMemcpyHostToDevice && !find(from, n);
    const bool pageable_to = kind == cudaMemcpyDeviceToHost && !find(to, n);
    const char* what = kind == cudaMemcpyHostToDevice ? "upload" : kind == cudaMemcpyDeviceToHost ? "download" : "copy";
    if (pageable_from) {    // pageable: source is read on return
        const char* bytes = static_cast<const char*>(from);
        enqueue(
            s, [=, kept = std::vector<char>(bytes, bytes + n)] { std::memcpy(to, kept.data(), n); }, true, what);
        return cudaSuccess;
    }
    enqueue(
        s,
        [=] {
            check_copy(to, from, n, kind);    // checked again: a graph may outlive memory
            std::memmove(to, from, n);
        },
        true, what);
    return pageable_to ? cudaStreamSynchronize(s) : cudaSuccess;    // pageable: complete on return
}
cudaError_t cudaMemcpy(void* to, const void* from, size_t n, cudaMemcpyKind kind) {
    if (cudaError_t e = refuse_while_capturing()) return e;
    return cudaMemcpyAsync(to, from, n, kind, nullptr);
}
cudaError_t cudaMemsetAsync(void* p, int value, size_t n, cudaStream_t s) {
    if (!config.runs) return cudaSuccess;
    must_be_on_device("cudaMemset", p, n);
    enqueue(
        s,
        [=] {
            must_be_on_device("cudaMemset", p, n);
            std::memset(p, value, n);
        },
        true, "memset");
    return cudaSuccess;
}
cudaError_t cudaMemset(void* p, int value, size_t n) {
    if (cudaError_t e = refuse_while_capturing()) return e;
    return cudaMemsetAsync(p, value, n, nullptr);
}

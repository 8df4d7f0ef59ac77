// runtime.h - the part of the CUDA runtime API that the project uses: one device, its memory,
// streams, events, graphs.
//
// Device memory is host memory of the exact size, full of NaN, and limited, so that running out of
// it can be tested. With AddressSanitizer the host may touch it only through copies. A stream is a
// queue. With seed 0 work is done when it is enqueued; with other seeds it is delayed, at random,
// until a synchronisation: code that reads too early, or overwrites a copy's source, gets wrong
// numbers with some seed.
#pragma once
#include <cstddef>
#include <vector>

#include "launch.h"

enum cudaError_t {
    cudaSuccess = 0,
    cudaErrorInvalidValue = 1,
    cudaErrorMemoryAllocation = 2,
    cudaErrorInsufficientDriver = 35,
    cudaErrorNoDevice = 100,
    cudaErrorInvalidDevice = 101,
    cudaErrorNotReady = 600,
    cudaErrorStreamCaptureUnsupported = 900,
    cudaErrorStreamCaptureInvalidated = 901,
    cudaErrorStreamCaptureIsolation = 905,
    cudaErrorCapturedEvent = 907,
};
enum cudaMemcpyKind { cudaMemcpyHostToDevice = 1, cudaMemcpyDeviceToHost = 2, cudaMemcpyDeviceToDevice = 3 };
enum cudaDeviceAttr { cudaDevAttrClockRate = 13 };    // kHz
enum cudaFuncAttribute {
    cudaFuncAttributeMaxDynamicSharedMemorySize = 8,
    cudaFuncAttributePreferredSharedMemoryCarveout = 9
};
enum cudaStreamCaptureMode { cudaStreamCaptureModeGlobal, cudaStreamCaptureModeThreadLocal };
enum cudaStreamCaptureStatus {
    cudaStreamCaptureStatusNone,
    cudaStreamCaptureStatusActive,
    cudaStreamCaptureStatusInvalidated
};
enum { cudaStreamNonBlocking = 1, cudaEventDisableTiming = 2 };

typedef struct CUevent_st* cudaEvent_t;
typedef struct CUgraph_st* cudaGraph_t;
typedef struct CUgraphExec_st* cudaGraphExec_t;
struct cudaDeviceProp {
    char name[256];
    size_t totalGlobalMem;
    int major, minor, multiProcessorCount;
};

// ---- errors, the device -------------------------------------------------------------------------

cudaError_t cudaGetLastError();    // and resets it
const char* cudaGetErrorString(cudaError_t e);
cudaError_t cudaGetDeviceCount(int* count);
cudaError_t cudaGetDeviceProperties(cudaDeviceProp* p, int device);
cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int device);
cudaError_t cudaSetDevice(int device);
cudaError_t cudaDeviceSynchronize();
template <class... P> cudaError_t cudaFuncSetAttribute(void (*kernel)(P...), cudaFuncAttribute attribute, int value) {
    if (attribute == cudaFuncAttributePreferredSharedMemoryCarveout) {
        emu::set_carveout(reinterpret_cast<const void*>(kernel), value);
        return value >= -1 && value <= 100 ? cudaSuccess : cudaErrorInvalidValue;
    }
    return value >= 0 && size_t(value) <= emu::config.shared_limit ? cudaSuccess : cudaErrorInvalidValue;
}
template <class... P>
cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessor(int* blocks, void (*)(P...), int threads, size_t shared) {
    return *blocks = emu::blocks_that_fit(size_t(threads), shared), cudaSuccess;
}
struct cudaFuncAttributes {
    int numRegs, ptxVersion;
};
template <class Kernel> cudaError_t cudaFuncGetAttributes(cudaFuncAttributes* of, Kernel*) {
    return *of = {255, emu::config.capability}, cudaSuccess;
}

// ---- memory -------------------------------------------------------------------------------------

cudaError_t cudaMalloc(void** p, size_t bytes);
cudaError_t cudaMallocHost(void** p, size_t bytes);
template <class T> cudaError_t cudaMalloc(T** p, size_t bytes) {
    return cudaMalloc(reinterpret_cast<void**>(p), bytes);
}
template <class T> cudaError_t cudaMallocHost(T** p, size_t bytes) {
    return cudaMallocHost(reinterpret_cast<void**>(p), bytes);
}
cudaError_t cudaFree(void* p);    // waits for all streams
cudaError_t cudaFreeHost(void* p);
cudaError_t cudaMemGetInfo(size_t* free, size_t* total);
cudaError_t cudaMemcpy(void* to, const void* from, size_t n, cudaMemcpyKind kind);
cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t n, cudaMemcpyKind kind, cudaStream_t s = nullptr);
cudaError_t cudaMemset(void* p, int value, size_t n);
cudaError_t cudaMemsetAsync(void* p, int value, size_t n, cudaStream_t s = nullptr);

// ---- streams, events, graphs --------------------------------------------------------------------

cudaError_t cudaDeviceGetStreamPriorityRange(int* least, int* greatest);
cudaError_t cudaStreamCreateWithFlags(cudaStream_t* s, unsigned flags);
cudaError_t cudaStreamCreateWithPriority(cudaStream_t* s, unsigned flags, int priority);
cudaError_t cudaStreamDestroy(cudaStream_t s);
cudaError_t cudaStreamSynchronize(cudaStream_t s);
cudaError_t cudaStreamWaitEvent(cudaStream_t s, cudaEvent_t e, unsigned flags = 0);
cudaError_t cudaEventCreate(cudaEvent_t* e);
cudaError_t cudaEventCreateWithFlags(cudaEvent_t* e, unsigned flags);
cudaError_t cudaEventDestroy(cudaEvent_t e);
cudaError_t cudaEventRecord(cudaEvent_t e, cudaStream_t s = nullptr);
cudaError_t cudaEventQuery(cudaEvent_t e);
cudaError_t cudaEventSynchronize(cudaEvent_t e);
cudaError_t cudaEventElapsedTime(float* ms, cudaEvent_t from, cudaEvent_t to);
cudaError_t cudaStreamBeginCapture(cudaStream_t s, cudaStreamCaptureMode mode);
cudaError_t cudaStreamEndCapture(cudaStream_t s, cudaGraph_t* g);
cudaError_t cudaStreamIsCapturing(cudaStream_t s, cudaStreamCaptureStatus* status);
cudaError_t cudaGraphInstantiate(cudaGraphExec_t* exec, cudaGraph_t g, unsigned long long flags = 0);
cudaError_t cudaGraphLaunch(cudaGraphExec_t exec, cudaStream_t s);
cudaError_t cudaGraphDestroy(cudaGraph_t g);
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t exec);

// ---- the emulator's own -------------------------------------------------------------------------

namespace emu {
struct MemoryUse {
    size_t device_bytes, device_blocks, host_blocks;
};
MemoryUse memory_use();
// Whether all of [p, p + n) lies in one allocation of the device.
bool on_device(const void* p, size_t n);
// While an object of this type lives, AddressSanitizer lets this process touch device memory.
struct DeviceAccess {
    DeviceAccess();
    ~DeviceAccess();
    DeviceAccess(const DeviceAccess&) = delete;
};
// A test's journal: all work that the host hands to the streams, in order; a graph's launch is one
// entry. event and number name one cudaEventRecord, the number-th of this event: the one done here
// ("record"), or the one that is waited for ("wait").
struct Entry {
    cudaStream_t stream;
    std::string what;
    cudaEvent_t event = nullptr;
    uint64_t number = 0;
};
inline std::vector<Entry>* journal = nullptr;
void drain();    // does all work in the streams
// For other threads: does the streams' work until done(), unless the host is in a call.
void proceed(const std::function<bool()>& done);
// Locks the runtime's state for one thread.
struct Entered {
    Entered();
    ~Entered();
    Entered(const Entered&) = delete;
};
cudaError_t set_error(cudaError_t e);
cudaError_t refuse_while_capturing();
}    // namespace emu

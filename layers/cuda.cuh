// cuda.cuh - base of all kernels: launches, shared memory, 16-byte vectors, reductions.
//
// nvcc compiles kernels as CUDA; a C++ compiler with -Itest/cuda_on_cpu/include compiles them for
// the emulator. Kernels therefore have no inline assembly (ptx/ptx.cuh has it), no <<<>>>, no raw
// __shared__ and no __CUDA_ARCH__.
#pragma once
#include <cuda_runtime.h>

#include <type_traits>
#include <utility>
#include <vector>

#include "scratch.h"

// ---- errors -------------------------------------------------------------------------------------

// Prints the failed call and ends the process with Exit::device: device memory may be wrong.
[[noreturn]] void cuda_failed(const char* file, int line, const char* what, cudaError_t error);
#define CUDA_CHECK(call)                                                \
    do {                                                                \
        if (cudaError_t cuda_error = (call); cuda_error != cudaSuccess) \
            cuda_failed(__FILE__, __LINE__, #call, cuda_error);         \
    } while (0)

// ---- the device (cuda.cu) -----------------------------------------------------------------------

cudaStream_t cuda_stream();    // the stream of all operations
int cuda_multiprocessors();
int cuda_capability();        // 80, 89, 90, 100
bool cuda_overlaps();         // Launch::overlaps works: sm_90+ and kernels compiled for it
bool attention_has_sm90();    // attention/sm90.cu is compiled in and fits this device
Status cublaslt_load();       // exit 5: not found; see matmul/cublaslt.h
// One scratch buffer serves all operations, because they run one after the other. It is 256-byte
// aligned, grows to the largest request and never shrinks; its content does not outlive the
// operation. If an operation requests scratch again, the first `kept` bytes are preserved; this
// request must not be larger than the operation's first request.
void* cuda_scratch(int64_t bytes, int64_t kept = 0);
void cuda_sum_of_squares(double* out, const float* x, int64_t n);    // update.cu: the operation

// ---- the table's parts --------------------------------------------------------------------------

// Registers a file's operations. F is a static object's lambda []<class T>(Ops<T>& o, Dtype dtype)
// { o.x = x<T>; }.
struct CudaRegistration {
    void (*floats)(Ops<float>& o, Dtype dtype);
    void (*halves)(Ops<bf16>& o, Dtype dtype);
    template <class F> explicit CudaRegistration(F f) : floats(f), halves(f) { all().push_back(*this); }
    static std::vector<CudaRegistration>& all() {
        static std::vector<CudaRegistration> list;
        return list;
    }
    void operator()(Ops<float>& o, Dtype dtype) const { floats(o, dtype); }
    void operator()(Ops<bf16>& o, Dtype dtype) const { halves(o, dtype); }
};

// ---- launching ----------------------------------------------------------------------------------

struct Launch {
    dim3 grid, block;
    size_t shared = 0;        // bytes of dynamic shared memory: sizeof dynamic_shared's T
    bool serial = false;      // blocks wait for earlier ones; emulated serially
    bool together = false;    // cooperative: blocks wait for each other
    // Programmatic dependent launch. Blocks may begin when every block of the previous kernel has
    // called let_next_start or has ended. All threads call wait_for_previous; before it they may
    // read only weights, and memory written before the previous kernel began: nothing writes
    // weights between the embedding and the logits.
    bool overlaps = false;
    cudaStream_t stream = nullptr;          // default: cuda_stream()
    const char* file = __builtin_FILE();    // launch site, for messages
    int line = __builtin_LINE();
};

// Most rows for which generation's kernels (matmul/gemv.cuh) are used. On an H200 (2026-11-27) a
// token of GPT-2 124M takes 393 us with 4 rows by these kernels, and 507 us with 8 rows by
// cuBLASLt; 8 rows by these kernels are not timed.
constexpr int GEMV_ROWS = 4;

// Shared memory, in percent of a multiprocessor's largest, that is requested for every kernel that
// overlaps the previous one. A kernel with another division of L1 and shared memory than the
// previous one may have to wait (CUDA's manual, cudaFuncSetCacheConfig), and the driver's own
// choice may differ between kernels with dynamic shared memory (matmul/norm_linear.cu) and without.
// No GPU has run this: neither the wait nor the percentage was measured. At 75 %, 7 blocks of
// normed_kernel fit with a row of 8192 in bf16, 5 instead of 6 with four rows of 4096, and 60 KB of
// L1 remain for loads in flight.
constexpr int OVERLAP_CARVEOUT = 75;

template <class... P> cudaError_t prepare_launch(void (*kernel)(P...), const Launch& c) {
    cudaError_t error = cudaSuccess;
    if (c.shared > 48 * 1024)
        error = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, int(c.shared));
    if (!error && c.overlaps && cuda_overlaps())
        error = cudaFuncSetAttribute(kernel, cudaFuncAttributePreferredSharedMemoryCarveout, OVERLAP_CARVEOUT);
    return error;
}

template <class T> struct Same { typedef T type; };

#ifdef __CUDACC__

constexpr bool EMULATED = false;

template <class... P, class... A> void launch(void (*kernel)(P...), Launch c, A&&... args) {
    cudaError_t error = prepare_launch(kernel, c);
    if (!error) {
        const cudaStream_t stream = c.stream ? c.stream : cuda_stream();
        cudaLaunchAttribute how = {};
        if (c.together) {
            how.id = cudaLaunchAttributeCooperative, how.val.cooperative = 1;
        } else {
            how.id = cudaLaunchAttributeProgrammaticStreamSerialization;
            how.val.programmaticStreamSerializationAllowed = 1;
        }
        const bool plain = !c.together && !(c.overlaps && cuda_overlaps());
        const cudaLaunchConfig_t config = {c.grid, c.block, c.shared, stream, &how, plain ? 0u : 1u};
        (void)cudaLaunchKernelEx(&config, kernel, std::forward<A>(args)...);
        error = cudaGetLastError();    // or an earlier call's error
    }
    if (error) cuda_failed(c.file, c.line, "the launch of a kernel", error);
}

// SHARED(float[32], partial) declares a static shared array.
#define SHARED(T, name) __shared__ typename Same<T>::type name

// The block's dynamic shared memory as a T.
template <class T> __device__ T& dynamic_shared() {
    extern __shared__ __align__(1024) unsigned char dynamic_shared_bytes[];
    return *reinterpret_cast<T*>(dynamic_shared_bytes);
}

#else

constexpr bool EMULATED = true;    // results are checked; times mean nothing

template <class... P, class... A> void launch(void (*kernel)(P...), Launch c, A&&... args) {
    (void)prepare_launch(kernel, c);    // emu::launch reports errors
    emu::launch(kernel,
                {c.grid, c.block, c.shared, c.serial, c.together, {c.file, c.line}, c.overlaps && cuda_overlaps()},
                c.stream ? c.stream : cuda_stream(), std::forward<A>(args)...);
}

#define SHARED(T, name)               \
    static const char name##_key = 0; \
    auto& name = *static_cast<typename Same<T>::type*>(emu::block->static_shared(&name##_key, sizeof(T), alignof(T)))

template <class T> T& dynamic_shared() {
    if (sizeof(T) > emu::block->dynamic_bytes)
        throw emu::Error("dynamic_shared: the launch asked for less than sizeof(T)");
    return *reinterpret_cast<T*>(emu::block->shared);
}

#endif

// ---- 16-byte vectors ----------------------------------------------------------------------------

// W elements of T moved at once: one 16-byte access if W * sizeof(T) is 16, one element if W is 1.
template <class T, int W = 16 / int(sizeof(T))> struct alignas(W * sizeof(T)) Vec {
    static constexpr int width = W;
    T v[W];
    __device__ float operator[](int i) const {
        if constexpr (sizeof(T) == 2 && W % 2 == 0) {    // words: one instruction, half a register an element
            uint32_t pair;
            memcpy(&pair, v + i / 2 * 2, 4);
            pair = i % 2 ? pair & 0xffff0000 : pair << 16;
            float x;
            memcpy(&x, &pair, 4);
            return x;
        } else return to_float(v[i]);
    }
    __device__ void set(int i, float x) { v[i] = from_float<T>(x); }
};
template <int W, class T> __device__ inline Vec<T, W> load(const T* from) {
    return *reinterpret_cast<const Vec<T, W>*>(from);
}
template <int W, class T> __device__ inline void store(T* to, const Vec<T, W>& x) {
    *reinterpret_cast<Vec<T, W>*>(to) = x;
}
// Rows of C elements from an aligned base are read by VEC<T> elements if all rows are aligned.
template <class T> constexpr int VEC = 16 / int(sizeof(T));
template <class T> inline bool rows_align(int64_t C) { return C % VEC<T> == 0; }

constexpr float LOG2E = 1.44269504f, LN2 = 0.69314718f;    // log2(e), log(2)

// ---- reductions ---------------------------------------------------------------------------------

// Each of LANES neighbouring lanes gets their sum. The order of additions is fixed.
template <int LANES = 32, class X> __device__ inline X warp_sum(X x) {
#pragma unroll
    for (int bit = LANES / 2; bit; bit >>= 1) x += __shfl_xor_sync(0xffffffff, x, bit);
    return x;
}
// Inclusive prefix sum over the warp's lanes.
__device__ inline int warp_inclusive_sum(int x) {
#pragma unroll
    for (int by = 1; by < 32; by *= 2) {
        const int left = __shfl_up_sync(0xffffffff, x, by);
        if (int(threadIdx.x % 32) >= by) x += left;
    }
    return x;
}
template <int LANES = 32> __device__ inline float warp_max(float x) {
#pragma unroll
    for (int bit = LANES / 2; bit; bit >>= 1) x = fmaxf(x, __shfl_xor_sync(0xffffffff, x, bit));
    return x;
}
// Reduces x over all threads of the block, each of which gets the result. of_warp reduces over a
// warp, with `none` as its neutral element. blockDim.x must be a multiple of 32. Two barriers.
template <class X, class F> __device__ inline X block_reduce(X x, X none, F of_warp) {
    SHARED(X[32], parts);
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, warps = blockDim.x / 32;
    x = of_warp(x);
    if (lane == 0) parts[warp] = x;
    __syncthreads();
    x = of_warp(lane < warps ? parts[lane] : none);
    __syncthreads();    // the next reduction must not overwrite parts
    return x;
}
template <class X> __device__ inline X block_sum(X x) {
    return block_reduce(x, X(0), [](X part) { return warp_sum(part); });
}
__device__ inline float block_max(float x) {
    return block_reduce(x, -INFINITY, [](float part) { return warp_max(part); });
}

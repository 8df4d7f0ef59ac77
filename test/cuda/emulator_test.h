// emulator_test.h - helpers for tests of the emulator itself: launches, errors, memory, seeds.
#pragma once
#include "layers/ptx/ptx.cuh"
#include "cuda_test.h"

namespace {
cudaStream_t stream() { return cuda_stream(); }
template <class K, class... A> void run(K kernel, Launch l, A... args) {
    launch(kernel, l, args...);
    cudaStreamSynchronize(stream());
}
// Message of the error that f() throws.
template <class F> std::string message(F f) {
    try {
        f();
    } catch (const emu::Error& e) { return e.what(); }
    return "no error";
}
void expect_part(const std::string& text, const char* part) {
    CHECK_MESSAGE(text.find(part) != std::string::npos, "'" << std::string(part) << "' is not in: " << text);
}
// Device memory for the time of a test.
template <class X> struct Buffer {
    X* p = nullptr;
    int n;
    explicit Buffer(int n) : n(n) { REQUIRE(cudaMalloc(&p, size_t(n) * sizeof(X)) == cudaSuccess); }
    ~Buffer() { cudaFree(p); }
    Buffer(const Buffer&) = delete;
    operator X*() { return p; }
    std::vector<X> read() {
        std::vector<X> host(static_cast<size_t>(n));
        cudaDeviceSynchronize();
        cudaMemcpy(host.data(), p, host.size() * sizeof(X), cudaMemcpyDeviceToHost);
        return host;
    }
};
struct Pinned {
    int* p = nullptr;
    explicit Pinned(int n) { cudaMallocHost(&p, size_t(n) * sizeof(int)); }
    ~Pinned() { cudaFreeHost(p); }
};
struct SecondStream {
    cudaStream_t s;
    cudaEvent_t done;
    SecondStream() { cudaStreamCreateWithFlags(&s, cudaStreamNonBlocking), cudaEventCreate(&done); }
    ~SecondStream() { cudaEventDestroy(done), cudaStreamDestroy(s); }
};
// Number of seeds from 1 to 16 with which f() returns false. With seed 0 it must return true.
template <class F> int seeds_that_show(F f) {
    int shown = 0;
    for (uint64_t seed = 0; seed <= 16; seed++) {
        emu::schedule(seed);
        const bool right = f();
        if (seed == 0) CHECK(right);
        shown += !right;
    }
    emu::schedule(0);
    return shown;
}

__global__ void set_all(int* out, int x) { out[threadIdx.x] = x; }
}    // namespace

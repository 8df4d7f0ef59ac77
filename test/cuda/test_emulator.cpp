// Tests of the emulator itself: it must report errors and stay usable. Emulator only.
#include <cmath>
#include <cstring>

#include "emulator_test.h"

namespace {
// ---- kernels ------------------------------------------------------------------------------------

__global__ void add(int* out, int x) { out[threadIdx.x] += x; }
__global__ void divergent_barrier() {
    if (threadIdx.x < 32) __syncthreads();
    else __syncthreads();
}
constexpr int DIVERGENT_LINE = __LINE__ - 2;
__global__ void half_of_a_named_barrier() {
    if (threadIdx.x < 32) named_barrier(1, 64);
    __syncthreads();
}
__global__ void mask_of_an_absent_lane() {
    if (threadIdx.x < 16) __shfl_xor_sync(0xffffffff, 1, 1);
    else __syncwarp();
}
__global__ void dynamic_too_small(float* out) { out[0] = dynamic_shared<float[100]>()[0]; }
__global__ void too_much_static() {
    SHARED(float[49 * 256], s);
    s[0] = 0;
}
__global__ void unaligned_row() {
    SHARED(uint4[40], s);
    uint32_t r[4];
    ldmatrix_x4(r, reinterpret_cast<char*>(s) + threadIdx.x * 16 + 4);
}
__global__ void write_behind(int at) {
    SHARED(float[64], s);
    float* p = s;
    p[int(threadIdx.x) + at] = 1;
}
__global__ void unwritten_shared(float* out) {
    SHARED(float[32], s);
    out[threadIdx.x] = s[threadIdx.x];
    out[32 + threadIdx.x] = dynamic_shared<float[32]>()[threadIdx.x];
}
__global__ void sums_of_half_warps(int* out) {
    int x = int(threadIdx.x);
    const unsigned mask = threadIdx.x < 16 ? 0xffff : 0xffff0000;
    for (int bit = 8; bit; bit >>= 1) x += __shfl_xor_sync(mask, x, bit);
    out[threadIdx.x] = x;
}
__global__ void from_a_lane_elsewhere(float* out) {
    if (threadIdx.x < 16) out[threadIdx.x] = __shfl_down_sync(0xffff, 1.0f, 8);
}
__global__ void some_leave(int* out) {
    if (threadIdx.x >= 40) return;
    out[threadIdx.x] = __syncthreads_count(threadIdx.x % 2);
    out[threadIdx.x] += 100 * int(__ballot_sync(threadIdx.x < 32 ? ~0u : 0xff, threadIdx.x < 3));
}
__global__ void indices(int* out) {
    const unsigned t = threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z);
    const unsigned b = blockIdx.x + gridDim.x * (blockIdx.y + gridDim.y * blockIdx.z);
    out[b * blockDim.x * blockDim.y * blockDim.z + t] = int(b * 1000 + t);
}
__global__ void count_blocks(int* out) {
    if (threadIdx.x == 0) atomicAdd(out, 1);
}
// Reads what the previous warp has written. In thread order that works even without a barrier.
template <bool barrier> __global__ void pass_on(int* out) {
    SHARED(int[256], s);
    for (int i = 0; i < 2; i++) {
        s[threadIdx.x] = i;
        if (barrier) __syncthreads();
        out[threadIdx.x] = s[threadIdx.x < 32 ? threadIdx.x : threadIdx.x - 32] == i;
        if (barrier) __syncthreads();
    }
}
__global__ void race_in_a_block(int* out) {
    SHARED(int[64], s);
    s[threadIdx.x] = 1;
    out[threadIdx.x] = s[63 - threadIdx.x];
}
__global__ void race_between_blocks(int* out) {
    if (threadIdx.x == 0) *out += 1;
}
}    // namespace

// ---- errors that it must report -----------------------------------------------------------------

TEST_CASE("emulator: errors say where and what, and the next launch works") {
    Buffer<float> f(64);
    Buffer<int> out(64);
    each_order([&] {
        std::string s = message([&] { run(divergent_barrier, {1, 64}); });
        expect_part(s, "other threads of the block wait in __syncthreads");
        expect_part(s, ("test_emulator.cpp:" + std::to_string(DIVERGENT_LINE)).c_str());
        expect_part(s, "[launched at");
        s = message([&] { run(half_of_a_named_barrier, {1, 64}); });
        expect_part(s, "deadlock in block (0,0,0): 32 threads wait in bar.sync at ");
        expect_part(s, "32 threads wait in __syncthreads at ");
        expect_part(message([&] { run(mask_of_an_absent_lane, {1, 32}); }), "lanes of its mask wait in ");
        expect_part(message([&] { run(dynamic_too_small, {1, 32, 16}, f.p); }), "dynamic_shared");
        expect_part(message([&] { run(too_much_static, {1, 32}); }), "48 KiB");
        expect_part(message([&] { run(unaligned_row, {1, 32}); }), "16 aligned bytes");
        run(set_all, {1, 64}, out.p, 7);
        CHECK(out.read() == std::vector<int>(64, 7));
    });
}

TEST_CASE("emulator: launches that a GPU refuses") {
    Buffer<int> out(64);
    expect_part(message([&] { run(set_all, {1, 1025}, out.p, 0); }), "a block of 1025 threads");
    expect_part(message([&] { run(set_all, {0, 32}, out.p, 0); }), "a grid without blocks");
    expect_part(message([&] { run(set_all, {dim3(1, 65536), 32}, out.p, 0); }), "y and z go to 65535");
    expect_part(message([&] { run(set_all, {1, 32, 228 << 10}, out.p, 0); }), "bytes of shared memory");
    void* p;
    CHECK(cudaMalloc(&p, emu::config.memory_bytes + 1) == cudaErrorMemoryAllocation);
    expect_part(message([&] { run(set_all, {1, 32}, out.p, 0); }), "its error was not read: out of memory");
    run(set_all, {1, 32}, out.p, 0);    // the message above cleared the error
}

TEST_CASE("emulator: writing behind an array in shared memory") {
    if (ASAN) SKIP("AddressSanitizer would end this process");
    run(write_behind, {1, 64}, 0);
    expect_part(message([&] { run(write_behind, {1, 64}, 1); }), "bytes behind its SHARED() array of 256 bytes");
}

TEST_CASE("emulator: memory starts out as NaN") {
    Buffer<float> out(64), fresh(7);
    for (int i = 0; i < 2; i++) {
        run(unwritten_shared, {1, 32, sizeof(float[32])}, out.p);
        for (float x : out.read()) CHECK(std::isnan(x));
    }
    for (float x : fresh.read()) CHECK(std::isnan(x));
}

TEST_CASE("emulator: a missing barrier shows with some seed") {
    Buffer<int> out(256);
    auto right = [&](auto kernel) {
        run(kernel, {1, 256}, out.p);
        return out.read() == std::vector<int>(256, 1);
    };
    CHECK(seeds_that_show([&] { return right(pass_on<true>); }) == 0);
    if (TSAN) return;    // ThreadSanitizer would report the race
    CHECK(seeds_that_show([&] { return right(pass_on<false>); }) >= 8);
}

// ---- threads ------------------------------------------------------------------------------------

TEST_CASE("emulator: indices, collectives of parts of a warp, threads that leave") {
    Buffer<int> out(64), all(2 * 3 * 2 * 120);
    Buffer<float> f(64);
    each_order([&] {
        run(indices, {dim3(2, 3, 2), dim3(4, 5, 6)}, all.p);
        const std::vector<int> got = all.read();
        for (int i = 0; i < all.n; i++) REQUIRE(got[size_t(i)] == i / 120 * 1000 + i % 120);
        run(sums_of_half_warps, {1, 32}, out.p);
        CHECK(out.read()[3] == 120);
        CHECK(out.read()[20] == 376);
        run(from_a_lane_elsewhere, {1, 32}, f.p);
        CHECK(f.read()[3] == 1);
        CHECK(std::isnan(f.read()[12]));
        run(some_leave, {1, 64}, out.p);
        CHECK(out.read()[5] == 720);
        CHECK(out.read()[39] == 20);
    });
}

TEST_CASE("emulator: blocks on several OS threads") {
    Buffer<int> out(1), all(4 * 500 * 120);
    emu::config.os_threads = 3;
    cudaMemset(out, 0, 4);
    run(count_blocks, {20000, 64}, out.p);
    run(indices, {dim3(4, 500), dim3(4, 5, 6)}, all.p);
    emu::config.os_threads = 1;
    CHECK(out.read()[0] == 20000);
    const std::vector<int> got = all.read();
    for (int i = 0; i < all.n; i++) REQUIRE(got[size_t(i)] == i / 120 * 1000 + i % 120);
}

// ---- memory -------------------------------------------------------------------------------------

TEST_CASE("emulator: memory is limited, counted and held to its bounds") {
    const emu::MemoryUse before = emu::memory_use();
    size_t free = 0, total = 0;
    {
        Buffer<char> half(int(emu::config.memory_bytes >> 12));
        CHECK(emu::memory_use().device_bytes == before.device_bytes + size_t(half.n));
        CHECK(emu::memory_use().device_blocks == before.device_blocks + 1);
        cudaMemGetInfo(&free, &total);
        CHECK(free == total - emu::memory_use().device_bytes);
        void* p;
        CHECK(cudaMalloc(&p, free + 1) == cudaErrorMemoryAllocation);
        CHECK(p == nullptr);
        CHECK(cudaGetLastError() == cudaErrorMemoryAllocation);
        CHECK(cudaGetLastError() == cudaSuccess);
    }
    CHECK(emu::memory_use().device_bytes == before.device_bytes);
    Buffer<int> a(16), b(16);
    int host[32];
    expect_part(message([&] { cudaMemcpy(host, a, 65, cudaMemcpyDeviceToHost); }), "65 bytes that do not lie in one");
    expect_part(message([&] { cudaMemcpy(a + 1, b, 64, cudaMemcpyDeviceToDevice); }), "do not lie in one");
    expect_part(message([&] { cudaMemcpy(a, b, 64, cudaMemcpyHostToDevice); }), "host memory is the device's");
    expect_part(message([&] { cudaMemset(host, 0, 64); }), "do not lie in one");
    CHECK(cudaFree(host) == cudaErrorInvalidValue);
    CHECK(cudaGetLastError() == cudaErrorInvalidValue);
}

// ---- streams ------------------------------------------------------------------------------------

TEST_CASE("emulator: who reads what another stream writes must wait for it") {
    SecondStream second;
    Buffer<int> a(32), b(32);
    auto right = [&](bool wait) {
        run(set_all, {1, 32}, a.p, 1);
        cudaMemsetAsync(a, 2, 32 * 4, second.s);
        cudaEventRecord(second.done, second.s);
        if (wait) cudaStreamWaitEvent(stream(), second.done, 0);
        cudaMemcpyAsync(b, a, 32 * 4, cudaMemcpyDeviceToDevice, stream());
        return b.read()[0] == 0x02020202;
    };
    CHECK(seeds_that_show([&] { return right(true); }) == 0);
    CHECK(seeds_that_show([&] { return right(false); }) >= 3);
}

TEST_CASE("emulator: the host must wait before it reads or reuses pinned memory, not other memory") {
    Pinned from(1), to(1);
    Buffer<int> a(1);
    int pageable;
    auto reuse = [&](int* host) {
        *host = 1;
        cudaMemcpyAsync(a, host, 4, cudaMemcpyHostToDevice, stream());
        *host = 2;
        return a.read()[0] == 1;
    };
    CHECK(seeds_that_show([&] { return reuse(&pageable); }) == 0);
    CHECK(seeds_that_show([&] { return reuse(from.p); }) >= 3);
    auto result = [&](int* host, bool wait) {
        launch(set_all, {1, 1}, a.p, 5);
        *host = 0;
        cudaMemcpyAsync(host, a, 4, cudaMemcpyDeviceToHost, stream());
        if (wait) cudaStreamSynchronize(stream());
        const bool right = *host == 5;
        cudaStreamSynchronize(stream());
        return right;
    };
    CHECK(seeds_that_show([&] { return result(&pageable, false); }) == 0);
    CHECK(seeds_that_show([&] { return result(to.p, true); }) == 0);
    CHECK(seeds_that_show([&] { return result(to.p, false); }) >= 3);
}

TEST_CASE("emulator: events come in the order of their stream") {
    SecondStream second;
    Buffer<int> a(1);
    for (uint64_t seed = 0; seed < 8; seed++) {
        emu::schedule(seed);
        cudaMemset(a, 0, 4);
        launch(add, {1, 1}, a.p, 1);
        cudaEventRecord(second.done, stream());
        while (cudaEventQuery(second.done) == cudaErrorNotReady) {}
        int got = 0;
        cudaMemcpy(&got, a, 4, cudaMemcpyDeviceToHost);
        CHECK(got == 1);
        launch(add, {1, 1}, a.p, 1);
        cudaEventRecord(second.done, stream());    // second record: the later one counts
        cudaEventSynchronize(second.done);
        cudaMemcpy(&got, a, 4, cudaMemcpyDeviceToHost);
        CHECK(got == 2);
    }
    emu::schedule(0);
}

TEST_CASE("emulator: what is captured is not done but kept") {
    SecondStream second;
    Buffer<int> a(1);
    cudaGraph_t graph;
    cudaGraphExec_t exec;
    each_order([&] {
        cudaMemset(a, 0, 4);
        REQUIRE(cudaStreamBeginCapture(stream(), cudaStreamCaptureModeThreadLocal) == cudaSuccess);
        launch(add, {1, 1}, a.p, 1);
        launch(add, {1, 1}, a.p, 2);
        REQUIRE(cudaStreamEndCapture(stream(), &graph) == cudaSuccess);
        CHECK(a.read()[0] == 0);
        cudaGraphInstantiate(&exec, graph);
        cudaGraphDestroy(graph);
        for (int i = 1; i <= 3; i++) {
            cudaGraphLaunch(exec, stream());
            CHECK(a.read()[0] == 3 * i);
        }
        cudaGraphExecDestroy(exec);
    });
    auto captured = [&](auto f) {
        cudaStreamBeginCapture(stream(), cudaStreamCaptureModeThreadLocal);
        const cudaError_t error = f();
        const cudaError_t ended = cudaStreamEndCapture(stream(), &graph);
        if (ended == cudaSuccess) cudaGraphDestroy(graph);
        else CHECK(ended == cudaErrorStreamCaptureInvalidated);
        cudaGetLastError();
        return error;
    };
    void* p;
    CHECK(captured([&] { return cudaMalloc(&p, 4); }) == cudaErrorStreamCaptureUnsupported);
    CHECK(captured([&] { return cudaStreamSynchronize(stream()); }) == cudaErrorStreamCaptureUnsupported);
    cudaEventRecord(second.done, second.s);
    CHECK(captured([&] { return cudaStreamWaitEvent(stream(), second.done, 0); }) == cudaErrorStreamCaptureIsolation);
    cudaEvent_t inside;
    cudaEventCreate(&inside);
    CHECK(captured([&] { return cudaEventRecord(inside, stream()), cudaEventSynchronize(inside); }) ==
          cudaErrorCapturedEvent);
    cudaEventDestroy(inside);
}

// ---- errors that sanitizers must report: run_again() starts one of these cases ------------------

TEST_CASE("sanitized: race in a block" * doctest::skip()) {
    Buffer<int> out(64);
    run(race_in_a_block, {1, 64}, out.p);
}
TEST_CASE("sanitized: race between blocks" * doctest::skip()) {
    Buffer<int> out(1);
    run(race_between_blocks, {2, 32}, out.p);
}
TEST_CASE("sanitized: no race" * doctest::skip()) {
    Buffer<int> out(256);
    run(count_blocks, {5, 32}, out.p);
    for (int i = 0; i < 3; i++) run(pass_on<true>, {5, 256}, out.p);
}
TEST_CASE("sanitized: behind device memory" * doctest::skip()) {
    Buffer<int> out(63);
    run(set_all, {1, 64}, out.p, 0);
}
TEST_CASE("sanitized: behind shared memory" * doctest::skip()) { run(write_behind, {1, 64}, 1); }
TEST_CASE("sanitized: the host in device memory" * doctest::skip()) {
    Buffer<int> out(1);
    run(set_all, {1, 1}, out.p, 0);
    CHECK(*out.p == 0);
}

TEST_CASE("emulator: what the sanitizers must report" * doctest::skip(!ASAN && !TSAN)) {
    auto output = [](const char* name) {
        int status;
        const std::string text = run_again("", std::string("--no-skip -tc='sanitized: ") + name + "'", &status);
        CHECK((status == 0) == (text.find("ERROR: AddressSanitizer") == std::string::npos &&
                                text.find("WARNING: ThreadSanitizer") == std::string::npos));
        return text;
    };
    if (TSAN) {
        expect_part(output("race in a block"), "race_in_a_block");
        expect_part(output("race between blocks"), "race_between_blocks");
        expect_part(output("no race"), "1 passed, 0 failed");
    } else {
        expect_part(output("behind device memory"), "set_all");
        expect_part(output("behind shared memory"), "write_behind");
        expect_part(output("the host in device memory"), "use-after-poison");
    }
}

// Tests of how the emulator runs cooperative grids and overlapping kernels. Emulator only.
#include "emulator_test.h"

namespace {
__device__ void meet(unsigned* count, unsigned arrivals, unsigned last) {
    __syncthreads();
    if (threadIdx.x == 0) grid_arrive(count, last), grid_wait(count, arrivals);
    __syncthreads();
}
// In each round every block adds the next block's numbers to its own. Without the grid barrier
// after reading (`first`) or after writing (`second`) sums are wrong.
__global__ void sum_of_neighbours(int* out, unsigned* count, int rounds, bool first, bool second) {
    const unsigned n = gridDim.x, next = (blockIdx.x + 1) % n * 64 + 63 - threadIdx.x;
    const unsigned last = n * unsigned(rounds * (first + second) + 2) - 1;
    unsigned arrivals = 0;
    int* const mine = &out[blockIdx.x * 64 + threadIdx.x];
    *mine = 1;
    meet(count, arrivals += n, last);
    for (int i = 0; i < rounds; i++) {
        const int sum = *mine + out[next];
        if (first) meet(count, arrivals += n, last);
        *mine = sum;
        if (second) meet(count, arrivals += n, last);
    }
    __syncthreads();
    if (threadIdx.x == 0) grid_arrive(count, last);
}
__global__ void one_stays_away(unsigned* count) {
    if (blockIdx.x != 2) meet(count, 4, 4);
}
// Adds 1 to the previous kernel's output. Waits for that kernel first, after reading, or never.
enum class Waits { first, late, never };
template <Waits waits> __global__ void add_after(int* out, const int* in) {
    if (waits == Waits::first) wait_for_previous();
    const int x = in[threadIdx.x];
    if (waits == Waits::late) wait_for_previous();
    out[blockIdx.x * 64 + threadIdx.x] = x + 1;
}
__global__ void starts_next_first() {
    let_next_start();
    wait_for_previous();
}
}    // namespace

TEST_CASE("emulator: blocks of a cooperative grid wait for each other, or are said to wait for ever") {
    const int blocks = 4, rounds = 5;
    Buffer<unsigned> count(1);
    Buffer<int> out(blocks * 64);
    cudaMemset(count, 0, 4);
    const auto sums = [&](Launch l, bool first, bool second) {
        l.together = true;
        run(sum_of_neighbours, l, out.p, count.p, rounds, first, second);
        return out.read() == std::vector<int>(size_t(out.n), 1 << rounds);
    };
    CHECK(seeds_that_show([&] { return sums({blocks, 64}, true, true); }) == 0);
    cudaMemset(count, 0, 4);
    expect_part(message([&] {
                    run(sum_of_neighbours, {blocks, 64}, out.p, count.p, rounds, true, true);
                }),
                "1 threads wait in grid_wait at ");
    for (uint64_t seed = 0; seed < 4; seed++) {
        emu::schedule(seed);
        cudaMemset(count, 0, 4);
        const std::string s =
            message([&] { run(one_stays_away, {.grid = blocks, .block = 64, .together = true}, count.p); });
        expect_part(s, "deadlock in block (");
        expect_part(s, "63 threads wait in __syncthreads at ");
        expect_part(s, "1 threads wait in grid_wait at ");
        expect_part(s, "[launched at");
    }
    emu::schedule(0);
    cudaMemset(count, 0, 4);
    CHECK(sums({blocks, 64}, true, true));
    expect_part(message([&] { sums({1000, 64}, true, true); }), "a cooperative grid of 1000 blocks: 128 fit");
    expect_part(message([&] { sums({5, 64, 150 << 10}, true, true); }), "a cooperative grid of 5 blocks: 4 fit");
    const emu::Config here = emu::config;
    for (auto [capability, fit] : {std::pair{80, 32}, {86, 16}, {89, 24}, {90, 32}, {120, 24}}) {
        emu::config.capability = capability;
        CHECK(emu::blocks_that_fit(32, 0) == fit);
        CHECK(emu::blocks_that_fit(1024, 0) == (fit == 32 ? 2 : 1));
    }
    emu::config = here;
    if (TSAN) return;    // ThreadSanitizer would report the race
    for (bool first : {true, false})
        CHECK(seeds_that_show([&] { return emu::config.seed == 0 || sums({blocks, 64}, first, !first); }) >= 8);
}

TEST_CASE("emulator: a kernel that begins before the one in front has ended must wait for it") {
    if (!cuda_overlaps()) SKIP("before sm_90 no launches overlap: EMU_CC=90");
    Buffer<int> a(64), b(5 * 64);
    auto right = [&](auto kernel, bool overlaps) {
        cudaMemsetAsync(a, 0, 64 * 4, stream());
        launch(set_all, {1, 64}, a.p, 7);
        launch(kernel, {.grid = 5, .block = 64, .overlaps = overlaps}, b.p, a.p);
        return b.read() == std::vector<int>(5 * 64, 8);
    };
    CHECK(seeds_that_show([&] { return right(add_after<Waits::first>, true); }) == 0);
    CHECK(seeds_that_show([&] { return right(add_after<Waits::late>, true); }) >= 5);
    CHECK(seeds_that_show([&] { return right(add_after<Waits::late>, false); }) == 0);
    CHECK(seeds_that_show([&] { return right(add_after<Waits::never>, false); }) == 0);
    each_order([&] {
        const std::string s = message([&] { right(add_after<Waits::never>, true); });
        expect_part(s, "has ended without wait_for_previous()");
        expect_part(s, "[launched at");
    });
    CHECK(right(add_after<Waits::first>, true));
    expect_part(message([&] { run(starts_next_first, {1, 64}); }), "wait_for_previous comes first");
}

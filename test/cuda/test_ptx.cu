// Tests of each function of ptx.cuh and of the reductions of cuda.cuh: data layouts, and which wait
// covers what. On the emulator they test ptx_on_cpu.h, on a GPU our reading of the PTX manual.
// Inputs are whole numbers, so every sum is exact.
#include <cfloat>
#include <cmath>

#include "layers/ptx/ptx.cuh"
#include "cuda_test.h"

namespace {
Memory memory() { return Memory(cuda_ops<float>(Dtype::fp32)); }
Numbers whole_numbers(int64_t n, uint64_t stream) {    // -8 to 8
    Numbers x;
    for (int v : random_tokens(n, 17, stream)) x.push_back(v - 8);
    return x;
}

// ---- products -----------------------------------------------------------------------------------

__device__ uint32_t pair(const float* x, int stride) { return pack_bf16(x[0], x[stride]); }

// d (16,8) += a (16,16) b (16,8), with the register layout that ptx.cuh documents.
__global__ void mma_kernel(float* d, const float* a, const float* b) {
    const int g = threadIdx.x / 4, t = threadIdx.x % 4 * 2;
    const uint32_t of_a[4] = {pair(a + g * 16 + t, 1), pair(a + (g + 8) * 16 + t, 1), pair(a + g * 16 + t + 8, 1),
                              pair(a + (g + 8) * 16 + t + 8, 1)};
    const uint32_t of_b[2] = {pair(b + t * 8 + g, 8), pair(b + (t + 8) * 8 + g, 8)};
    float* const rows[2] = {d + g * 8 + t, d + (g + 8) * 8 + t};
    float of_d[4] = {rows[0][0], rows[0][1], rows[1][0], rows[1][1]};
    mma_m16n8k16(of_d, of_a, of_b);
    for (int i = 0; i < 4; i++) rows[i / 2][i % 2] = of_d[i];
}

// ---- matrices from shared memory ----------------------------------------------------------------

// Element (row, column) of matrix i is 64 i + 8 row + column. Rows lie in reverse, 32 bytes apart.
template <bool TRANS> __global__ void ldmatrix_kernel(int* out) {
    SHARED(uint4[64], rows);
    const int lane = threadIdx.x;
    auto* own = reinterpret_cast<uint16_t*>(rows + 2 * (31 - lane));
    for (int c = 0; c < 8; c++) own[c] = uint16_t(lane * 8 + c);
    __syncwarp();
    uint32_t r[4];
    if (TRANS) ldmatrix_x4_trans(r, own);
    else ldmatrix_x4(r, own);
    for (int i = 0; i < 4; i++) out[lane * 8 + i * 2] = r[i] & 0xffff, out[lane * 8 + i * 2 + 1] = r[i] >> 16;
}

// ---- asynchronous copies ------------------------------------------------------------------------

// Three groups of one copy each; a thread waits for the oldest first. Odd threads' copies are not
// valid, so they write zeros.
__global__ void cp_async_kernel(float* out, const float* in) {
    SHARED(float4[3 * 32], s);
    const int t = threadIdx.x;
    for (int i = 0; i < 3; i++) {
        s[i * 32 + t] = {-1, -1, -1, -1};
        cp_async_16(s + i * 32 + t, in + (i * 32 + t) * 4, t % 2 == 0);
        cp_async_commit();
    }
    auto put = [&](int i) {
        const float4 x = s[i * 32 + t];
        float* to = out + (i * 32 + t) * 4;
        to[0] = x.x, to[1] = x.y, to[2] = x.z, to[3] = x.w;
    };
    cp_async_wait<2>();
    put(0);
    cp_async_wait<1>();
    put(1);
    cp_async_wait<0>();
    put(2);
}
// Other threads' copies are visible after a wait and a barrier.
__global__ void cp_async_shared_kernel(float* out, const float* in) {
    SHARED(float4[128], s);
    const int t = threadIdx.x;
    cp_async_16(s + t, in + t * 4);
    cp_async_commit();
    cp_async_wait<0>();
    __syncthreads();
    out[t] = s[127 - t].z;
}

// ---- barriers of some warps ---------------------------------------------------------------------

// Warp 0 hands ten numbers to warp 1, and warp 2 to warp 3. A warp writes a number once the last
// one has been read, and never waits for the other pair.
__global__ void named_barrier_kernel(int* out) {
    SHARED(int[2 * 32], box);
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, couple = warp / 2;
    const int full = 1 + 2 * couple, empty = 2 + 2 * couple;
    int* mine = box + couple * 32;
    int sum = 0;
    for (int i = 0; i < 10; i++) {
        if (warp % 2 == 0) {
            if (i > 0) named_barrier(empty, 64);
            mine[lane] = 1000 * couple + i * lane;
            named_barrier_arrive(full, 64);
        } else {
            named_barrier(full, 64);
            sum += mine[31 - lane];
            if (i < 9) named_barrier_arrive(empty, 64);
        }
    }
    if (warp % 2) out[couple * 32 + lane] = sum;
}

// ---- arithmetic ---------------------------------------------------------------------------------

__global__ void pack_kernel(int* out, const float* x) {
    const uint32_t p = pack_bf16(x[2 * threadIdx.x], x[2 * threadIdx.x + 1]);
    out[2 * threadIdx.x] = p & 0xffff, out[2 * threadIdx.x + 1] = p >> 16;
}
__global__ void exp2_kernel(float* y, const float* x) { y[threadIdx.x] = exp2_approx(x[threadIdx.x]); }
__global__ void reductions_kernel(float* out, const float* x) {
    const int t = threadIdx.x, n = blockDim.x;
    out[t] = warp_sum(x[t]);
    out[n + t] = warp_max(x[t]);
    out[2 * n + t] = block_sum(x[t]);
    out[3 * n + t] = block_sum(2 * x[t]);    // reuses the scratch of the sum before
    out[4 * n + t] = block_max(x[t]);
    out[5 * n + t] = block_max(x[t] - 1);
}
}    // namespace

TEST_CASE("ptx: a product of 16 x 16 and 16 x 8") {
    const Numbers a = whole_numbers(256, 1), b = whole_numbers(128, 2), d = whole_numbers(128, 3);
    Numbers expected = d;
    for (int i = 0; i < 16; i++)
        for (int j = 0; j < 8; j++)
            for (int k = 0; k < 16; k++) expected[size_t(i * 8 + j)] += a[size_t(i * 16 + k)] * b[size_t(k * 8 + j)];
    each_order([&] {
        Array<float> a_(memory(), a), b_(memory(), b), d_(memory(), d);
        launch(mma_kernel, {1, 32}, static_cast<float*>(d_), static_cast<float*>(a_), static_cast<float*>(b_));
        CHECK(d_.read() == expected);
    });
}

TEST_CASE("ptx: four matrices of 8 x 8, as they are and transposed") {
    each_order([&] {
        Array<int> plain(memory(), 256), transposed(memory(), 256);
        launch(ldmatrix_kernel<false>, {1, 32}, static_cast<int*>(plain));
        launch(ldmatrix_kernel<true>, {1, 32}, static_cast<int*>(transposed));
        const Numbers p = plain.read(), t = transposed.read();
        for (int lane = 0; lane < 32; lane++)
            for (int i = 0; i < 4; i++)
                for (int e = 0; e < 2; e++) {
                    const int row = lane / 4, column = lane % 4 * 2 + e;
                    CHECK(p[size_t(lane * 8 + i * 2 + e)] == 64 * i + 8 * row + column);
                    CHECK(t[size_t(lane * 8 + i * 2 + e)] == 64 * i + 8 * column + row);
                }
    });
}

TEST_CASE("ptx: copies are there after the wait, zero where they are not valid") {
    const Numbers x = random_normal(3 * 128, 4);
    Numbers expected = rounded<float>(x);
    for (size_t i = 0; i < expected.size(); i++)
        if (i / 4 % 2) expected[i] = 0;

    each_order([&] {
        Array<float> in(memory(), x), out(memory(), 3 * 128), all(memory(), random_normal(512, 5));
        Array<float> third(memory(), 128);
        launch(cp_async_kernel, {1, 32}, static_cast<float*>(out), static_cast<float*>(in));
        CHECK(out.read() == expected);
        launch(cp_async_shared_kernel, {1, 128}, static_cast<float*>(third), static_cast<float*>(all));
        const Numbers a = all.read(), b = third.read();
        for (int t = 0; t < 128; t++) CHECK(b[size_t(t)] == a[size_t((127 - t) * 4 + 2)]);
    });
}

TEST_CASE("ptx: barriers among two of four warps") {
    each_order([&] {
        Array<int> out(memory(), 64);
        launch(named_barrier_kernel, {1, 128}, static_cast<int*>(out));
        const Numbers got = out.read();
        for (int i = 0; i < 64; i++) CHECK(got[size_t(i)] == 10000 * (i / 32) + 45 * (31 - i % 32));
    });
}

TEST_CASE("ptx: two floats as bf16 round like one") {
    const float up = 1 + 0x1p-8f, tie = 1 + 3 * 0x1p-8f;    // ties: even neighbour below, and above
    const std::vector<float> x = {0,        -0.0f,     1,       up,      tie,    up + 0x1p-20f, -up, 3.14159f,
                                  INFINITY, -INFINITY, FLT_MAX, FLT_MIN, 1e-40f, -1e-40f,       NAN, -7.25f};
    Array<float> in(memory(), Numbers(x.begin(), x.end()));
    Array<int> out(memory(), 16);
    launch(pack_kernel, {1, 8}, static_cast<int*>(out), static_cast<float*>(in));
    const Numbers got = out.read();
    for (size_t i = 0; i < x.size(); i++) {
        CAPTURE(x[i]);
        CHECK(got[i] == to_bf16(x[i]).bits);
    }
}

TEST_CASE("ptx: powers of two") {
    Numbers x = {-INFINITY, -150, -127, -126, 0, 1, 127, 128, INFINITY, 1e-40};
    while (x.size() < 1000) x.push_back(-126 + 254 * double(x.size()) / 1000);
    Array<float> in(memory(), x), out(memory(), 1000);
    launch(exp2_kernel, {1, 1000}, static_cast<float*>(out), static_cast<float*>(in));
    const Numbers got = out.read();
    for (size_t i = 0; i < x.size(); i++) {
        const double expected = x[i] < -126 ? 0 : x[i] >= 128 ? INFINITY : std::exp2(double(float(x[i])));
        CAPTURE(x[i]);
        if (std::isfinite(expected)) CHECK(std::fabs(got[i] - expected) <= 0x1p-21 * expected);
        else CHECK(got[i] == expected);
    }
}

TEST_CASE("ptx: sums and maxima of warps and blocks") {
    for (int n : {32, 96, 1024}) {
        const Numbers x = whole_numbers(n, 6);
        double sum = 0, most = x[0];
        for (double v : x) sum += v, most = std::fmax(most, v);
        each_order([&] {
            Array<float> in(memory(), x), out(memory(), 6 * n);
            launch(reductions_kernel, {1, unsigned(n)}, static_cast<float*>(out), static_cast<float*>(in));
            const Numbers got = out.read();
            for (int t = 0; t < n; t++) {
                double of_warp = 0, most_of_warp = -100;
                for (int l = t / 32 * 32; l < t / 32 * 32 + 32; l++)
                    of_warp += x[size_t(l)], most_of_warp = std::fmax(most_of_warp, x[size_t(l)]);
                const double expected[6] = {of_warp, most_of_warp, sum, 2 * sum, most, most - 1};
                for (int i = 0; i < 6; i++) REQUIRE(got[size_t(i * n + t)] == expected[i]);
            }
        });
    }
}

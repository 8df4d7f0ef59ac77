// Tests of each function of hopper.cuh: data layouts, and which wait covers what. On the emulator
// they test hopper_on_cpu.h, on an sm_90 GPU our reading of the PTX manual. Inputs are whole
// numbers, so every sum is exact.
#include "layers/attention/sm90.cuh"
#include "cuda_test.h"

namespace {
using sm90::tensor_map;

Memory memory() { return Memory(cuda_ops<bf16>(Dtype::bf16)); }
Numbers whole_numbers(int64_t n, uint64_t stream) {    // -8 to 8
    Numbers x;
    for (int v : random_tokens(n, 17, stream)) x.push_back(v - 8);
    return x;
}

// ---- TMA ----------------------------------------------------------------------------------------

template <int ROWS, int COLUMNS, int WIDTH> struct TmaShared {
    Tile<ROWS, COLUMNS, WIDTH> x;
    uint64_t full;
};
// out (ROWS,COLUMNS) = the rows of one head from `position` on.
template <int ROWS, int COLUMNS, int WIDTH>
__global__ void tma_kernel(bf16* out, const __grid_constant__ CUtensorMap map, int b, int position, int head) {
    if constexpr (SM90A) {
        auto& s = dynamic_shared<TmaShared<ROWS, COLUMNS, WIDTH>>();
        if (threadIdx.x == 0) {
            mbarrier_init(&s.full, 1);
            mbarrier_init_fence();
            mbarrier_arrive_expect(&s.full, s.x.bytes);
            sm90::load(s.x, map, b, position, head, &s.full);
        }
        __syncthreads();
        mbarrier_wait(&s.full, 0);
        for (int i = threadIdx.x * 8; i < ROWS * COLUMNS; i += blockDim.x * 8)
            store(out + i, load<8>(s.x.piece(i / COLUMNS, i % COLUMNS)));
    }
}
template <int ROWS, int COLUMNS, int WIDTH = chunk_columns(COLUMNS)> void check_tma(int b, int position, int head) {
    const int B = 2, S = 150, heads = 3;
    const Numbers x = whole_numbers(int64_t(B) * S * heads * COLUMNS, 1);
    Array<bf16> x_(memory(), x);
    each_order([&] {
        Array<bf16> out(memory(), ROWS * COLUMNS);
        launch(tma_kernel<ROWS, COLUMNS, WIDTH>, {1, 64, sizeof(TmaShared<ROWS, COLUMNS, WIDTH>)},
               static_cast<bf16*>(out), tensor_map(x_, B, S, heads, COLUMNS, ROWS, WIDTH), b, position, head);
        Numbers expected;
        for (int r = position; r < position + ROWS; r++)
            for (int c = 0; c < COLUMNS; c++)
                expected.push_back(r < S ? x[size_t(((b * S + r) * heads + head) * COLUMNS + c)] : 0);
        CHECK(out.read() == expected);
    });
}

// ---- wgmma --------------------------------------------------------------------------------------

enum Source { SHARED_MEMORY, REGISTERS, STORED, STORED_UNFENCED };    // location of a; STORED: written by stmatrix

// Operands as TMA lays them out: ALONG_K (64,K) and (N,K), ALONG_MN (K,64) and (K,N).
template <Along A, Along B, int N, int K> struct ProductShared {
    Tile<A == ALONG_K ? 64 : K, A == ALONG_K ? K : 64> a, copy;
    Tile<B == ALONG_K ? N : K, B == ALONG_K ? K : N> b;
    uint64_t full;
};
template <Along A, Along B, int N, Source SOURCE, int K>
__global__ void product_kernel(float* d, const __grid_constant__ CUtensorMap a, const __grid_constant__ CUtensorMap b) {
    if constexpr (SM90A) {
        auto& s = dynamic_shared<ProductShared<A, B, N, K>>();
        const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
        if (threadIdx.x == 0) {
            mbarrier_init(&s.full, 1);
            mbarrier_init_fence();
            mbarrier_arrive_expect(&s.full, s.a.bytes + s.b.bytes);
            sm90::load(s.a, a, 0, 0, 0, &s.full);
            sm90::load(s.b, b, 0, 0, 0, &s.full);
        }
        __syncthreads();
        mbarrier_wait(&s.full, 0);
        uint32_t of_a[K / 16 * 4];
        if constexpr (SOURCE != SHARED_MEMORY) {
#pragma unroll
            for (int k = 0; k < K; k += 16) {
                const int row = warp * 16 + lane % 16, column = k + lane / 16 * 8;
                uint32_t* x = of_a + k / 4;
                ldmatrix_x4(*reinterpret_cast<uint32_t(*)[4]>(x), s.a.piece(row, column));
                if (SOURCE != REGISTERS) stmatrix_x4(s.copy.piece(row, column), x[0], x[1], x[2], x[3]);
            }
        }
        if (SOURCE == STORED) fence_async();
        __syncthreads();
        float sum[N / 2] = {};
        wgmma_fence(sum);
#pragma unroll
        for (int k = 0; k < K; k += 16) {
            const uint64_t y = B == ALONG_K ? s.b.columns_as_k(0, k) : s.b.rows_as_k(k, 0);
            const auto& x = SOURCE == SHARED_MEMORY ? s.a : s.copy;
            if constexpr (SOURCE == REGISTERS) wgmma<B>(sum, of_a + k / 4, y);
            else wgmma<A, B>(sum, A == ALONG_K ? x.columns_as_k(0, k) : x.rows_as_k(k, 0), y, k > 0);
        }
        wgmma_commit();
        wgmma_wait<0>(sum);
        for (int i = 0; i < N / 2; i++)
            d[(warp * 16 + lane / 4 + i / 2 % 2 * 8) * N + i / 4 * 8 + lane % 4 * 2 + i % 2] = sum[i];
    }
}
template <Along A, Along B, int N, Source SOURCE, int K = 64> void check_product() {
    const Numbers a = whole_numbers(64 * K, 2), b = whole_numbers(N * K, 3);
    Array<bf16> a_(memory(), a), b_(memory(), b);
    const int a_rows = A == ALONG_K ? 64 : K;
    const int b_rows = B == ALONG_K ? N : K, b_columns = B == ALONG_K ? K : N;
    Numbers expected(64 * N);
    for (int m = 0; m < 64; m++)
        for (int n = 0; n < N; n++)
            for (int k = 0; k < K; k++)
                expected[size_t(m * N + n)] += a[size_t(A == ALONG_K ? m * K + k : k * 64 + m)] *
                                               b[size_t(B == ALONG_K ? n * K + k : k * N + n)];
    each_order([&] {
        Array<float> d(memory(), 64 * N);
        launch(product_kernel<A, B, N, SOURCE, K>, {1, 128, sizeof(ProductShared<A, B, N, K>)}, static_cast<float*>(d),
               tensor_map(a_, 1, a_rows, 1, 64 * K / a_rows, a_rows), tensor_map(b_, 1, b_rows, 1, b_columns, b_rows));
        CHECK(d.read() == expected);
    });
}

// ---- bulk copies --------------------------------------------------------------------------------

enum Ending { WAIT, WAIT_READ, NO_WAIT };
constexpr int FLOATS = 512;
struct BulkShared {
    alignas(16) float from[FLOATS], to[FLOATS];
    uint64_t full;
};
// stored = 2 x; added += 2 x
template <Ending ENDING> __global__ void bulk_kernel(float* stored, float* added, const float* x) {
    if constexpr (SM90A) {
        auto& s = dynamic_shared<BulkShared>();
        if (threadIdx.x == 0) {
            mbarrier_init(&s.full, 1);
            mbarrier_init_fence();
            mbarrier_arrive_expect(&s.full, sizeof(s.from));
            bulk_load(s.from, x, sizeof(s.from), &s.full);
        }
        __syncthreads();
        mbarrier_wait(&s.full, 0);
        const float* y = s.from + threadIdx.x * 4;
        store_shared(reinterpret_cast<float4*>(s.to) + threadIdx.x, {2 * y[0], 2 * y[1], 2 * y[2], 2 * y[3]});
        fence_async();
        __syncthreads();
        if (threadIdx.x == 0) {
            bulk_store(stored, s.to, sizeof(s.to));
            bulk_add(added, s.to, sizeof(s.to));
            bulk_commit();
            if (ENDING == WAIT) bulk_wait();
            if (ENDING == WAIT_READ) bulk_wait_read();
        }
    }
}
template <Ending ENDING> void check_bulk() {
    const Numbers x = whole_numbers(FLOATS, 4), before = whole_numbers(FLOATS, 5);
    Array<float> x_(memory(), x);
    each_order([&] {
        Array<float> stored(memory(), FLOATS), added(memory(), before);
        launch(bulk_kernel<ENDING>, {1, FLOATS / 4, sizeof(BulkShared)}, static_cast<float*>(stored),
               static_cast<float*>(added), static_cast<float*>(x_));
        const Numbers got_stored = stored.read(), got_added = added.read();
        for (size_t i = 0; i < FLOATS; i++) {
            CHECK(got_stored[i] == 2 * x[i]);
            CHECK(got_added[i] == before[i] + 2 * x[i]);
        }
    });
}

// ---- order of blocks, registers -----------------------------------------------------------------

// Blocks do x = 3 x + their number one after the other, in order of these numbers. begun counts the
// blocks that have begun and so gives the number; if begun is null, the number is blockIdx.
__global__ void turn_kernel(int* x, int* dq_order, unsigned* begun, int skip) {
    if constexpr (SM90A) {
        if (threadIdx.x == 0) {
            const int i = begun ? block_number(begun) : int(blockIdx.x);
            order_wait(dq_order, i + skip);
            *x = 3 * *x + i;
            order_pass(dq_order, i + 1);
        }
    }
}
void check_turns(int skip, bool numbers = true) {
    Array<int> begun(memory(), Numbers{0});
    each_order([&] {
        for (int blocks : {12, 5}) {
            Array<int> x(memory(), Numbers{1}), dq_order(memory(), Numbers{0});
            launch(turn_kernel, {.grid = unsigned(blocks), .block = 32, .serial = true}, static_cast<int*>(x),
                   static_cast<int*>(dq_order),
                   numbers ? reinterpret_cast<unsigned*>(static_cast<int*>(begun)) : nullptr, skip);
            int expected = 1;
            for (int i = 0; i < blocks; i++) expected = 3 * expected + i;
            const double got = x.read()[0];    // throws the emulator's error, if any
            CHECK(got == expected);
            CHECK(begun.read()[0] == 0);
        }
    });
}

// One warpgroup gives registers to two others, and numbers through a ring of one slot.
__global__ void __launch_bounds__(384, 1) ring_kernel(int* out, int rounds) {
    if constexpr (SM90A) {
        SHARED(uint64_t[2], barrier);
        SHARED(int, slot);
        uint64_t *full = barrier, *free = barrier + 1;
        if (threadIdx.x == 0) {
            mbarrier_init(full, 1);
            mbarrier_init(free, 8);
            mbarrier_init_fence();
        }
        __syncthreads();
        if (threadIdx.x < 128) {
            registers_give<24>();
            if (threadIdx.x == 0)
                for (int i = 0; i < rounds; i++) {
                    mbarrier_wait(free, !(i % 2));
                    slot = i * i;
                    mbarrier_arrive(full);
                }
        } else {
            registers_take<240>();
            for (int i = 0; i < rounds; i++) {
                mbarrier_wait(full, i % 2);
                const int x = slot;
                __syncwarp();
                if (threadIdx.x % 32 == 0) mbarrier_arrive(free);
                if (int(threadIdx.x) - 128 == i) out[i] = x;
            }
        }
    }
}

}    // namespace

TEST_CASE("hopper: tensor maps, swizzled tiles") {
    NEED_SM90();
    check_tma<64, 64>(0, 0, 0);
    check_tma<64, 64>(1, 100, 2);    // 14 rows past the sequence's end
    check_tma<128, 128>(0, 128, 1);
    check_tma<128, 64>(1, 0, 1);
    check_tma<112, 192>(1, 100, 2);
    check_tma<64, 32>(0, 100, 2);    // chunks of 32 columns
    check_tma<128, 96>(1, 40, 1);
    check_tma<64, 192, 32>(1, 40, 1);
}

TEST_CASE("hopper: products of every kind of operand") {
    NEED_SM90();
    check_product<ALONG_K, ALONG_K, 64, SHARED_MEMORY>();
    check_product<ALONG_K, ALONG_K, 128, SHARED_MEMORY>();
    check_product<ALONG_K, ALONG_MN, 128, SHARED_MEMORY>();
    check_product<ALONG_MN, ALONG_K, 64, SHARED_MEMORY>();
    check_product<ALONG_MN, ALONG_MN, 64, SHARED_MEMORY>();
    check_product<ALONG_K, ALONG_K, 64, REGISTERS>();
    check_product<ALONG_K, ALONG_MN, 64, REGISTERS>();
    check_product<ALONG_K, ALONG_MN, 128, REGISTERS>();
    check_product<ALONG_K, ALONG_K, 64, STORED>();
    // Other numbers of columns; chunks of 32 columns along k, and along the result's columns.
    check_product<ALONG_K, ALONG_K, 32, SHARED_MEMORY>();
    check_product<ALONG_K, ALONG_K, 80, SHARED_MEMORY>();
    check_product<ALONG_K, ALONG_K, 96, SHARED_MEMORY, 96>();
    check_product<ALONG_K, ALONG_K, 112, SHARED_MEMORY>();
    check_product<ALONG_K, ALONG_K, 128, SHARED_MEMORY, 32>();
    check_product<ALONG_MN, ALONG_MN, 32, SHARED_MEMORY>();
    check_product<ALONG_MN, ALONG_MN, 96, SHARED_MEMORY>();
    check_product<ALONG_MN, ALONG_MN, 128, SHARED_MEMORY>();
    check_product<ALONG_K, ALONG_MN, 32, REGISTERS>();
    check_product<ALONG_K, ALONG_MN, 96, REGISTERS>();
    check_product<ALONG_K, ALONG_MN, 192, REGISTERS>();
    check_product<ALONG_K, ALONG_MN, 256, REGISTERS>();
    check_product<ALONG_K, ALONG_MN, 96, STORED, 96>();
    check_product<ALONG_K, ALONG_MN, 128, STORED>();
}

TEST_CASE("hopper: bulk copies, turns, rings") {
    NEED_SM90();
    check_bulk<WAIT>();
    check_bulk<WAIT_READ>();    // the write ends with the launch
    check_turns(0);
    each_order([&] {
        Array<int> out(memory(), 100);
        launch(ring_kernel, {1, 384}, static_cast<int*>(out), 100);
        for (int i = 0; i < 100; i++) CHECK(out.read()[size_t(i)] == i * i);
    });
}

TEST_CASE("hopper: what the emulator holds against a kernel") {
    NEED_SM90();
    if (!cuda_emulated()) SKIP("only the emulator notices");
    CHECK_THROWS((check_product<ALONG_K, ALONG_K, 64, STORED_UNFENCED>()));
    CHECK_THROWS(check_bulk<NO_WAIT>());
    CHECK_THROWS(check_turns(1));
    CHECK_THROWS(check_turns(0, false));    // blocks begin in another order than blockIdx
    cuda_schedule(0);
}

// hopper.cuh - instructions that only sm_90a has, as functions: mbarriers, bulk copies (TMA), and
// products by warpgroups of 128 threads (wgmma). test/cuda_on_cpu/include/hopper_on_cpu.h has the
// same functions in plain C++.
//
// All of them run asynchronously, in PTX's async proxy. Four rules keep order:
//   - copied data are valid when the wait on the copy's mbarrier returns;
//   - wgmma's registers, and the shared memory it reads, must not be touched until wgmma_wait;
//   - a thread's writes to shared memory (store_shared, stmatrix_x4) are visible to wgmma and bulk
//     copies only after its fence_async and a barrier after that;
//   - a bulk copy to global memory has read its source after bulk_wait_read, and is done after
//     bulk_wait.
#pragma once
#include <cuda.h>    // types only; the runtime finds the driver

#include "ptx.cuh"

// ---- tiles of bf16: TMA's layout, read by wgmma -------------------------------------------------

// Layout of a product's operand in shared memory: neighbouring values run along k, or along the
// result's rows or columns (PTX: K-major, MN-major).
enum Along { ALONG_K = 0, ALONG_MN = 1 };

// A tile is cut into chunks of 64 columns, or 32 if 64 does not divide it: rows of 128 or 64 bytes.
constexpr int chunk_columns(int columns) { return columns % 64 ? 32 : 64; }

// Descriptor of an operand whose rows have WIDTH values, with a swizzle as wide as a row. chunks:
// bytes from a row's part in one chunk to its part in the next (PTX: leading dimension; read only
// ALONG_MN). Groups of eight rows are contiguous (PTX: stride). from: offset of the operand from p
// in bytes. It is added to the low word alone (a shared address cannot carry into the next field),
// so descriptors that differ only in `from` cost one addition each.
template <int WIDTH> __device__ inline uint64_t wgmma_operand(const void* p, int from, int chunks) {
    constexpr uint64_t row = WIDTH * sizeof(bf16), swizzle = row == 128 ? 1 : 2;
    const uint32_t low = (shared_address(p) & 0x3ffff) >> 4 | uint32_t(chunks >> 4) << 16;
    return (low + uint32_t(from >> 4)) | (8 * row >> 4) << 32 | swizzle << 62;
}

// ROWS x COLUMNS in chunks of WIDTH columns, swizzled: piece i (16 bytes) of row r lies at i ^ r
// within each 1024 bytes with 64 columns, at i ^ r / 2 within each 512 with 32.
template <int ROWS, int COLUMNS, int WIDTH = chunk_columns(COLUMNS)> struct alignas(1024) Tile {
    static_assert(ROWS % 8 == 0 && COLUMNS % WIDTH == 0);
    static constexpr int bytes = ROWS * COLUMNS * int(sizeof(bf16));
    bf16 chunk[COLUMNS / WIDTH][ROWS][WIDTH];

    // ALONG_K operand: 16 columns from `column` on are the k; rows begin at `row`, a multiple of 8.
    __device__ uint64_t columns_as_k(int row, int column) const {
        return wgmma_operand<WIDTH>(&chunk[0][row], from(0, column), 16);
    }
    // ALONG_MN operand: 16 rows from `row` (a multiple of 8) on are the k; columns begin at
    // `column`, a multiple of WIDTH.
    __device__ uint64_t rows_as_k(int row, int column) const {
        return wgmma_operand<WIDTH>(this, from(row, column), int(sizeof(chunk[0])));
    }
    // Byte offset of (row, column), without the swizzle.
    __device__ static int from(int row, int column) {
        return ((column / WIDTH * ROWS + row) * WIDTH + column % WIDTH) * int(sizeof(bf16));
    }
    // Address of the 16 bytes of `row` from `column` (a multiple of 8) on.
    __device__ bf16* piece(int row, int column) {
        return &chunk[column / WIDTH][row][(column % WIDTH / 8 ^ row * WIDTH / 64 % (WIDTH / 8)) * 8];
    }
};

// ---- order of blocks ----------------------------------------------------------------------------

// Number of blocks of the launch that began before the calling one. CUDA does not promise that
// blocks begin in index order; by this number a block waits only for blocks that run or have ended.
// One thread of each block calls it. *begun is 0 between launches: the last block resets it.
__device__ inline int block_number(unsigned* begun) { return int(atomicInc(begun, gridDim.x - 1)); }

#ifndef __CUDACC__
constexpr bool SM90A = true;
#include <hopper_on_cpu.h>
#else

// Kernels that use this file have their body in `if constexpr (SM90A)`, and are empty otherwise.
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
constexpr bool SM90A = true;
#else
constexpr bool SM90A = false;
#pragma nv_diag_suppress 177    // no warning for functions unused here
#endif

// ---- mbarriers ----------------------------------------------------------------------------------

// A phase ends after `arrivals` arrivals, once all announced bytes have been copied.
__device__ inline void mbarrier_init(uint64_t* b, int arrivals) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared_address(b)), "r"(arrivals) : "memory");
}
// Needed after the inits, before the barrier that lets other threads and TMA use the mbarriers.
__device__ inline void mbarrier_init_fence() { asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory"); }
__device__ inline void mbarrier_arrive(uint64_t* b) {
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(shared_address(b)) : "memory");
}
// Arrives, and adds `bytes` to the copies that this phase waits for.
__device__ inline void mbarrier_arrive_expect(uint64_t* b, int bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(b)), "r"(bytes)
                 : "memory");
}
// Waits for the end of the phase with this parity. The first phase has parity 0; a wait for parity
// 1 before it ends returns at once.
__device__ inline void mbarrier_wait(uint64_t* b, int parity) {
    asm volatile(
        "{\n.reg .pred done;\nagain:\nmbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n@!done bra again;\n}" ::
            "r"(shared_address(b)),
        "r"(parity)
        : "memory");
}

// ---- bulk copies --------------------------------------------------------------------------------

// Prefetches a tensor map, so that the first copy does not wait for it.
__device__ inline void tensor_map_prefetch(const CUtensorMap& map) {
    asm volatile("prefetch.tensormap [%0];" ::"l"(&map) : "memory");
}
// Starts a copy of the map's box at these coordinates to shared memory; zeros outside the tensor.
__device__ inline void tma_load(void* to, const CUtensorMap& map, int c0, int c1, int c2, int c3, uint64_t* full) {
    asm volatile(
        "cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%2,%3,%4,%5}], "
        "[%6];" ::"r"(shared_address(to)),
        "l"(&map), "r"(c0), "r"(c1), "r"(c2), "r"(c3), "r"(shared_address(full))
        : "memory");
}
// bulk_load, bulk_store and bulk_add need addresses and sizes in multiples of 16 bytes.
__device__ inline void bulk_load(void* to, const void* from, int bytes, uint64_t* full) {
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(
                     shared_address(to)),
                 "l"(from), "r"(bytes), "r"(shared_address(full))
                 : "memory");
}
// bulk_store and bulk_add keep their target in L2 (evict_last), because it is soon added to again.
__device__ inline void bulk_store(void* to, const void* from, int bytes) {
    asm volatile(
        "{\n.reg .b64 keep;\ncreatepolicy.fractional.L2::evict_last.b64 keep, 1.0;\n"
        "cp.async.bulk.global.shared::cta.bulk_group.L2::cache_hint [%0], [%1], %2, keep;\n}" ::"l"(to),
        "r"(shared_address(from)), "r"(bytes)
        : "memory");
}
__device__ inline void bulk_add(float* to, const float* from, int bytes) {
    asm volatile(
        "{\n.reg .b64 keep;\ncreatepolicy.fractional.L2::evict_last.b64 keep, 1.0;\n"
        "cp.reduce.async.bulk.global.shared::cta.bulk_group.L2::cache_hint.add.f32 [%0], [%1], %2, keep;\n}" ::"l"(to),
        "r"(shared_address(from)), "r"(bytes)
        : "memory");
}
__device__ inline void bulk_commit() { asm volatile("cp.async.bulk.commit_group;" ::: "memory"); }
// Wait for the calling thread's committed stores and adds: for their reads, or for completion.
__device__ inline void bulk_wait_read() { asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory"); }
__device__ inline void bulk_wait() { asm volatile("cp.async.bulk.wait_group 0;" ::: "memory"); }

// ---- shared memory written for the async proxy --------------------------------------------------

__device__ inline void store_shared(float4* to, float4 x) { *to = x; }
// Stores four 8x8 matrices of 16-bit elements: the inverse of ldmatrix_x4.
__device__ inline void stmatrix_x4(void* row, uint32_t r0, uint32_t r1, uint32_t r2, uint32_t r3) {
    asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1,%2,%3,%4};" ::"r"(shared_address(row)), "r"(r0),
                 "r"(r1), "r"(r2), "r"(r3)
                 : "memory");
}
__device__ inline void fence_async() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

// ---- a fixed order of additions to dq -----------------------------------------------------------

// Waits until *dq_order is `mine`. Only a block with a lower block_number may set it to that.
__device__ inline void order_wait(const int* dq_order, int mine) {
    int now;
    do asm volatile("ld.acquire.gpu.global.s32 %0, [%1];" : "=r"(now) : "l"(dq_order) : "memory");
    while (now != mine);
    asm volatile("fence.proxy.async.global;" ::: "memory");    // a bulk copy follows
}
// Called after bulk_wait: the calling thread's copies are then visible to the next block. The
// store's release orders them, so no fence is needed before it.
__device__ inline void order_pass(int* dq_order, int next) {
    asm volatile("st.release.gpu.global.s32 [%0], %1;" ::"l"(dq_order), "r"(next) : "memory");
}

// ---- registers ----------------------------------------------------------------------------------

// All warps of a warpgroup must call these functions. registers_give lowers the thread's registers
// to `count`; registers_take waits until it can raise them to `count`.
template <int count> __device__ inline void registers_give() {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(count));
}
template <int count> __device__ inline void registers_take() {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(count));
}

// ---- products by warpgroup ----------------------------------------------------------------------

// Hides i's value from the compiler, so that it does not compute values that depend on i earlier.
__device__ inline void unknown(int& i) { asm volatile("" : "+r"(i)); }
// Keeps the compiler from moving uses of d across this point.
template <int n> __device__ inline void wgmma_pin(float (&d)[n]) {
#pragma unroll
    for (int i = 0; i < n; i++) asm volatile("" : "+f"(d[i])::"memory");
}
template <int n> __device__ inline void wgmma_pin(uint32_t (&a)[n]) {
#pragma unroll
    for (int i = 0; i < n; i++) asm volatile("" : "+r"(a[i])::"memory");
}
// Must precede products that read or write these registers, if other code has written them.
template <class... R> __device__ inline void wgmma_fence(R&... registers) {
    (wgmma_pin(registers), ...);
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}
__device__ inline void wgmma_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
// Waits for all but the last `but` committed groups. registers: their operands.
template <int but, class... R> __device__ inline void wgmma_wait(R&... registers) {
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(but) : "memory");
    (wgmma_pin(registers), ...);
}

// d (64 x N, float) = a b, or d + a b; a (64 x 16) and b (16 x N) are bf16, and d has N/2
// registers. Warp w has rows 16 w to 16 w + 15: d[4 j + e] is d[e] of mma_m16n8k16 for the columns
// from 8 j on. An `a` in registers has mma_m16n8k16's layout, too: d[8 k] to d[8 k + 7] of another
// product, packed in pairs, are the `a` of columns 16 k to 16 k + 15.
#define WGMMA_D4(d, i) "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3])
#define WGMMA_D8(d, i) WGMMA_D4(d, i), WGMMA_D4(d, i + 4)
#define WGMMA_D16(d) WGMMA_D8(d, 0), WGMMA_D8(d, 8)
#define WGMMA_D32(d) WGMMA_D16(d), WGMMA_D8(d, 16), WGMMA_D8(d, 24)
#define WGMMA_D40(d) WGMMA_D32(d), WGMMA_D8(d, 32)
#define WGMMA_D48(d) WGMMA_D40(d), WGMMA_D8(d, 40)
#define WGMMA_D56(d) WGMMA_D48(d), WGMMA_D8(d, 48)
#define WGMMA_D64(d) WGMMA_D56(d), WGMMA_D8(d, 56)
#define WGMMA_D96(d) WGMMA_D64(d), WGMMA_D8(d, 64), WGMMA_D8(d, 72), WGMMA_D8(d, 80), WGMMA_D8(d, 88)
#define WGMMA_D128(d) WGMMA_D96(d), WGMMA_D8(d, 96), WGMMA_D8(d, 104), WGMMA_D8(d, 112), WGMMA_D8(d, 120)
#define WGMMA_N16 "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15"
#define WGMMA_N32 WGMMA_N16 ",%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31"
#define WGMMA_N40 WGMMA_N32 ",%32,%33,%34,%35,%36,%37,%38,%39"
#define WGMMA_N48 WGMMA_N40 ",%40,%41,%42,%43,%44,%45,%46,%47"
#define WGMMA_N56 WGMMA_N48 ",%48,%49,%50,%51,%52,%53,%54,%55"
#define WGMMA_N64 WGMMA_N56 ",%56,%57,%58,%59,%60,%61,%62,%63"
#define WGMMA_N80 WGMMA_N64 ",%64,%65,%66,%67,%68,%69,%70,%71,%72,%73,%74,%75,%76,%77,%78,%79"
#define WGMMA_N96 WGMMA_N80 ",%80,%81,%82,%83,%84,%85,%86,%87,%88,%89,%90,%91,%92,%93,%94,%95"
#define WGMMA_N112 WGMMA_N96 ",%96,%97,%98,%99,%100,%101,%102,%103,%104,%105,%106,%107,%108,%109,%110,%111"
#define WGMMA_N128 WGMMA_N112 ",%112,%113,%114,%115,%116,%117,%118,%119,%120,%121,%122,%123,%124,%125,%126,%127"

// Defines wgmma for N columns. D: registers of d. x0 to x5: numbers of the asm operands after d's.
#define WGMMA(N, D, x0, x1, x2, x3, x4, x5)                                                                    \
    template <Along A, Along B> __device__ inline void wgmma(float(&d)[D], uint64_t a, uint64_t b, bool add) { \
        asm volatile("{\n.reg .pred add;\nsetp.ne.b32 add, %" #x2                                              \
                     ", 0;\n"                                                                                  \
                     "wgmma.mma_async.sync.aligned.m64n" #N "k16.f32.bf16.bf16 {" WGMMA_N##D                   \
                     "}, "                                                                                     \
                     "%" #x0 ", %" #x1 ", add, 1, 1, %" #x3 ", %" #x4 ";\n}"                                   \
                     : WGMMA_D##D(d)                                                                           \
                     : "l"(a), "l"(b), "r"(int(add)), "n"(int(A)), "n"(int(B)));                               \
    }                                                                                                          \
    /* d += a b, with a in registers. */                                                                       \
    template <Along B> __device__ inline void wgmma(float(&d)[D], const uint32_t* a, uint64_t b) {             \
        asm volatile("wgmma.mma_async.sync.aligned.m64n" #N "k16.f32.bf16.bf16 {" WGMMA_N##D                   \
                     "}, "                                                                                     \
                     "{%" #x0 ",%" #x1 ",%" #x2 ",%" #x3 "}, %" #x4 ", 1, 1, 1, %" #x5 ";"                     \
                     : WGMMA_D##D(d)                                                                           \
                     : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "n"(int(B)));                       \
    }
WGMMA(32, 16, 16, 17, 18, 19, 20, 21)
WGMMA(64, 32, 32, 33, 34, 35, 36, 37)
WGMMA(80, 40, 40, 41, 42, 43, 44, 45)
WGMMA(96, 48, 48, 49, 50, 51, 52, 53)
WGMMA(112, 56, 56, 57, 58, 59, 60, 61)
WGMMA(128, 64, 64, 65, 66, 67, 68, 69)
WGMMA(192, 96, 96, 97, 98, 99, 100, 101)
WGMMA(256, 128, 128, 129, 130, 131, 132, 133)
#undef WGMMA

#endif

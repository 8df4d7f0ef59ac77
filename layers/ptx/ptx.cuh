// ptx.cuh - the sm_80 instructions that CUDA C++ lacks, as functions, and two of sm_90 that do
// nothing on older GPUs. Kernels have no other inline assembly;
// test/cuda_on_cpu/include/ptx_on_cpu.h has the same functions in plain C++.
#pragma once
#include "layers/cuda.cuh"

#ifndef __CUDACC__
#include <ptx_on_cpu.h>
#else
#include <nv/target>

__device__ inline uint32_t shared_address(const void* p) { return static_cast<uint32_t>(__cvta_generic_to_shared(p)); }

// d (16x8, float) += a (16x16) * b (16x8), both bf16, by one warp. With g = lane / 4, t = lane %
// 4 * 2:
//   a[0..3]: rows g, g + 8, g, g + 8; columns t, t, t + 8, t + 8, each with the next column;
//   b[0..1]: rows t, t + 8, each with the next row; column g;
//   d[0..3]: row g, columns t, t + 1; row g + 8, columns t, t + 1.
__device__ inline void mma_m16n8k16(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]) {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

// Loads four 8x8 matrices of 16-bit elements from shared memory. Lane l passes the address of row l
// % 8 of matrix l / 8, and gets in r[i] row lane / 4, columns lane % 4 * 2 and the next, of matrix
// i (_trans: of its transpose).
__device__ inline void ldmatrix_x4(uint32_t (&r)[4], const void* row) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(shared_address(row))
                 : "memory");
}
__device__ inline void ldmatrix_x4_trans(uint32_t (&r)[4], const void* row) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(shared_address(row))
                 : "memory");
}

// Starts a copy of 16 bytes to shared memory, or of 16 zeros if !valid. This thread may read them
// after cp_async_wait, other threads after a barrier that follows it.
__device__ inline void cp_async_16(void* to, const void* from, bool valid = true) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared_address(to)), "l"(from),
                 "r"(valid ? 16 : 0)
                 : "memory");
}
__device__ inline void cp_async_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }
// Waits for all but the last `but` committed groups.
template <int but> __device__ inline void cp_async_wait() {
    asm volatile("cp.async.wait_group %0;" ::"n"(but) : "memory");
}

// Prefetches the 128 bytes around p to L2.
__device__ inline void prefetch_l2(const void* p) { asm volatile("prefetch.global.L2 [%0];" ::"l"(p)); }

// For overlapping kernels (Launch::overlaps). Waits until the previous kernel of the stream has
// ended and its writes are visible; returns at once if nothing overlaps. Kernels must call
// let_next_start after this wait (the emulator checks it). When a kernel begins, all earlier
// kernels except the previous one have then ended.
__device__ inline void wait_for_previous() {
    NV_IF_TARGET(NV_PROVIDES_SM_90, (asm volatile("griddepcontrol.wait;" ::: "memory");))
}
__device__ inline void let_next_start() {
    NV_IF_TARGET(NV_PROVIDES_SM_90, (asm volatile("griddepcontrol.launch_dependents;" ::: "memory");))
}

// Barrier `id` (1 to 15) among `threads` threads of the block.
__device__ inline void named_barrier(int id, int threads) {
    asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(threads) : "memory");
}
__device__ inline void named_barrier_arrive(int id, int threads) {
    asm volatile("bar.arrive %0, %1;" ::"r"(id), "r"(threads) : "memory");
}

// Barrier of a cooperative grid. An arrival raises *count by 1, or sets it to 0 if it was `last` or
// more. A block publishes its writes by a block barrier, then one thread's arrival; it sees those
// of other blocks after one thread's grid_wait, then a block barrier.
__device__ inline void grid_arrive(unsigned* count, unsigned last) {
    asm volatile("red.release.gpu.global.inc.u32 [%0], %1;" ::"l"(count), "r"(last) : "memory");
}
// Waits until *count is at least `arrivals`.
__device__ inline void grid_wait(const unsigned* count, unsigned arrivals) {
    unsigned now;
    do asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(now) : "l"(count) : "memory");
    while (now < arrivals);
}

__device__ inline uint32_t pack_bf16(float low, float high) {
    uint32_t pair;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
    return pair;
}
// 2^x to about 2 ulp; denormal results are 0.
__device__ inline float exp2_approx(float x) {
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

#endif

// ptx_on_cpu.h - the functions of layers/ptx/ptx.cuh for the emulator, in plain C++.
#pragma once
#include "test/cuda_on_cpu/cuda_on_cpu.h"

inline uint32_t shared_address(const void* p) {
    return static_cast<uint32_t>(static_cast<const char*>(p) - emu::block->shared);
}

namespace emu {

inline float bf16_low(uint32_t pair) { return __uint_as_float(pair << 16); }
inline float bf16_high(uint32_t pair) { return __uint_as_float(pair & 0xffff0000); }

// Defined in ptx.cpp.
struct Mma {
    float* d;
    const uint32_t *a, *b;
};
void mma(Meeting& m);
struct LoadMatrix {
    uint32_t row[4];
    uint32_t* r;
};
void ldmatrix(Meeting& m);
void ldmatrix_trans(Meeting& m);
void land(const Copy& c);

inline void load_matrix(uint32_t* r, const void* row, void (*act)(Meeting&), Location at) {
    if (!block->is_shared(row) || reinterpret_cast<uintptr_t>(row) % 16)
        block->fail("ldmatrix", at, "the row is not 16 aligned bytes of shared memory");
    LoadMatrix l{{}, r};
    for (int i = 0; i < 4; i++) l.row[i] = static_cast<const uint32_t*>(row)[i];    // here, for sanitizers
    block->meet("ldmatrix", at, ~0u, &l, act);
}

}    // namespace emu

inline void mma_m16n8k16(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2], EMU_AT) {
    emu::Mma x{d, a, b};
    emu::block->meet("mma.sync", at, ~0u, &x, emu::mma);
}
inline void ldmatrix_x4(uint32_t (&r)[4], const void* row, EMU_AT) { emu::load_matrix(r, row, emu::ldmatrix, at); }
inline void ldmatrix_x4_trans(uint32_t (&r)[4], const void* row, EMU_AT) {
    emu::load_matrix(r, row, emu::ldmatrix_trans, at);
}

// The bytes may land at any time until the wait: here at the last moment or, with a seed, at once.
inline void cp_async_16(void* to, const void* from, bool valid = true, EMU_AT) {
    if (!emu::block->is_shared(to)) emu::block->fail("cp.async", at, "the destination is not shared memory");
    if (reinterpret_cast<uintptr_t>(to) % 16 || reinterpret_cast<uintptr_t>(from) % 16)
        emu::block->fail("cp.async", at, "not 16-byte aligned");
    const emu::Copy c{to, from, valid ? 16u : 0u, valid ? 0u : 16u};
    if (emu::config.seed && emu::block->toss()) emu::land(c);
    else emu::self->copies.push_back(c);
}
inline void cp_async_commit() {
    emu::Fiber& f = *emu::self;
    f.copy_groups.push_back(f.copies.size());
}
template <int but> void cp_async_wait() {
    emu::Fiber& f = *emu::self;
    if (f.copy_groups.size() <= but) return;
    const size_t n = f.copy_groups[f.copy_groups.size() - 1 - but];
    for (size_t i = 0; i < n; i++) emu::land(f.copies[i]);
    f.copies.erase(f.copies.begin(), f.copies.begin() + static_cast<long>(n));
    f.copy_groups.erase(f.copy_groups.begin(), f.copy_groups.end() - but);
    for (size_t& end : f.copy_groups) end -= n;
}

inline void prefetch_l2(const void* p, EMU_AT) {
    if (!emu::on_device(p, 1)) emu::block->fail("prefetch", at, "the address is not the device's");
}
inline void wait_for_previous(EMU_AT) { emu::block->wait_for_grid(at); }
// The emulator starts the next kernel with or without this call.
inline void let_next_start(EMU_AT) {
    if (!emu::self->waited) emu::block->fail("let_next_start", at, "wait_for_previous comes first");
}

inline void named_barrier(int id, int threads, EMU_AT) { emu::block->sync(id, threads, 0, "bar.sync", at); }
inline void named_barrier_arrive(int id, int threads, EMU_AT) {
    emu::block->sync(id, threads, 0, "bar.arrive", at, true);
}

inline void grid_arrive(unsigned* count, unsigned last) {
    emu::Hidden hidden;
    emu::publish(count);
    atomicInc(count, last);
}
inline void grid_wait(const unsigned* count, unsigned arrivals, EMU_AT) {
    emu::Hidden hidden;
    struct Wait {
        const unsigned *count, arrivals;
    } w{count, arrivals};
    emu::block->wait_until(
        "grid_wait", at,
        [](void* p) {
            const auto& w = *static_cast<Wait*>(p);
            return *w.count >= w.arrivals;
        },
        &w);
    emu::observe(const_cast<unsigned*>(count));
}

inline uint32_t pack_bf16(float low, float high) {
    return to_bf16(low).bits | static_cast<uint32_t>(to_bf16(high).bits) << 16;
}
inline float exp2_approx(float x) {
    const float y = exp2f(x);
    return y < 0x1p-126f ? 0 : y;
}

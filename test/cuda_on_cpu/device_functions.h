// device_functions.h - CUDA C++'s functions for kernels.
#pragma once
#include <algorithm>
#include <cmath>
#include <type_traits>

#include "block.h"

// ---- barriers -----------------------------------------------------------------------------------

inline void __syncthreads(EMU_AT) { emu::block->sync(0, 0, 0, "__syncthreads", at); }
inline int __syncthreads_count(int p, EMU_AT) { return emu::block->sync(0, 0, p != 0, "__syncthreads_count", at); }
inline void __syncwarp(unsigned mask = ~0u, EMU_AT) {
    emu::block->meet("__syncwarp", at, mask, nullptr, nullptr, true);
}
// Memory is not weak here: a missing fence has no effect.
namespace emu {
inline char fences;
}
inline void __threadfence() {    // for ThreadSanitizer; blocks run one after another
    emu::Hidden hidden;
    emu::observe(&emu::fences);
    emu::publish(&emu::fences);
}
inline void __threadfence_block() {}

// ---- collectives of a warp ----------------------------------------------------------------------

namespace emu {

template <class T> struct Exchange {
    T in, out;
    int source;    // lane to read from
};
template <class T> void exchange(Meeting& m) {
    for (unsigned lanes = m.arrived; lanes; lanes &= lanes - 1) {
        auto& to = *static_cast<Exchange<T>*>(m.slot[__builtin_ctz(lanes)]);
        if (m.arrived >> to.source & 1) to.out = static_cast<Exchange<T>*>(m.slot[to.source])->in;
        else std::memset(static_cast<void*>(&to.out), 0xff, sizeof(T));    // undefined: the lane does not take part
    }
}
template <class T> T shuffle(const char* what, Location at, unsigned mask, T value, int source) {
    Exchange<T> e{value, value, source};
    block->meet(what, at, mask, &e, exchange<T>);
    return e.out;
}

struct Vote {
    bool in;
    unsigned out;
};
inline void vote(Meeting& m) {
    unsigned set = 0;
    for (unsigned l = m.arrived; l; l &= l - 1)
        set |= unsigned{static_cast<Vote*>(m.slot[__builtin_ctz(l)])->in} << __builtin_ctz(l);
    for (unsigned l = m.arrived; l; l &= l - 1) static_cast<Vote*>(m.slot[__builtin_ctz(l)])->out = set;
}

}    // namespace emu

template <class T> T __shfl_sync(unsigned mask, T v, int lane, int width = 32, EMU_AT) {
    const int me = emu::self->lane();
    return emu::shuffle("__shfl_sync", at, mask, v, (me & ~(width - 1)) + (lane & (width - 1)));
}
template <class T> T __shfl_xor_sync(unsigned mask, T v, int bits, int width = 32, EMU_AT) {
    const int me = emu::self->lane(), to = me ^ bits;
    return emu::shuffle("__shfl_xor_sync", at, mask, v, to <= (me | (width - 1)) ? to : me);
}
template <class T> T __shfl_down_sync(unsigned mask, T v, unsigned by, int width = 32, EMU_AT) {
    const int me = emu::self->lane(), to = me + static_cast<int>(by);
    return emu::shuffle("__shfl_down_sync", at, mask, v, to <= (me | (width - 1)) ? to : me);
}
template <class T> T __shfl_up_sync(unsigned mask, T v, unsigned by, int width = 32, EMU_AT) {
    const int me = emu::self->lane(), to = me - static_cast<int>(by);
    return emu::shuffle("__shfl_up_sync", at, mask, v, to >= (me & ~(width - 1)) ? to : me);
}
inline unsigned __ballot_sync(unsigned mask, int p, EMU_AT) {
    emu::Vote v{p != 0, 0};
    emu::block->meet("__ballot_sync", at, mask, &v, emu::vote);
    return v.out;
}
inline int __any_sync(unsigned mask, int p, EMU_AT) { return __ballot_sync(mask, p, at) != 0; }

// ---- atomics (blocks may run on several OS threads) ---------------------------------------------

namespace emu {
template <class T, class F> T atomic_update(T* p, F f) {
    static_assert(sizeof(T) == 4 || sizeof(T) == 8);
    using Bits = std::conditional_t<sizeof(T) == 8, uint64_t, uint32_t>;
    Bits* at = reinterpret_cast<Bits*>(p);
    Bits old = __atomic_load_n(at, __ATOMIC_RELAXED), next;
    T before;
    do {
        std::memcpy(&before, &old, sizeof(T));
        const T after = f(before);
        std::memcpy(&next, &after, sizeof(T));
    } while (!__atomic_compare_exchange_n(at, &old, next, true, __ATOMIC_RELAXED, __ATOMIC_RELAXED));
    return before;
}
template <class T> using Same = std::common_type_t<T>;
}    // namespace emu

template <class T> T atomicAdd(T* p, emu::Same<T> v) {
    return emu::atomic_update(p, [&](T a) { return static_cast<T>(a + v); });
}
inline unsigned atomicInc(unsigned* p, unsigned top) {
    return emu::atomic_update(p, [&](unsigned a) { return a >= top ? 0 : a + 1; });
}

// ---- arithmetic, loads --------------------------------------------------------------------------

using std::max;
using std::min;
// Products and sums that no compiler contracts: FMAs in emulated kernels are those that nvcc makes.
inline float __fmul_rn(float a, float b) {
    volatile float product = a * b;
    return product;
}
inline float __fmaf_rn(float a, float b, float c) { return std::fma(a, b, c); }
inline float rsqrtf(float x) { return 1.0f / std::sqrt(x); }
// glibc declares __expf and similar names, so these cannot be functions.
#define __expf(x) expf(x)
inline float __fdividef(float a, float b) { return a / b; }
inline int __popc(unsigned x) { return __builtin_popcount(x); }
inline unsigned __float_as_uint(float f) {
    unsigned u;
    std::memcpy(&u, &f, 4);
    return u;
}
inline float __uint_as_float(unsigned u) {
    float f;
    std::memcpy(&f, &u, 4);
    return f;
}
template <class T> T __ldcg(const T* p) { return *p; }

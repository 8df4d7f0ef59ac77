// types.h - the CUDA keywords and vector types in use, for a C++ compiler without the toolkit.
#pragma once
#include <cstdint>
#include <cstring>

#define __global__
#define __device__
#define __host__
#define __constant__
#define __grid_constant__
#define __launch_bounds__(...)
#define __forceinline__ inline __attribute__((always_inline))
#define __align__(n) alignas(n)
// __noinline__ stays undefined: libstdc++ has an attribute of this spelling. So does __shared__:
// shared memory is SHARED() or dynamic_shared<>(), which start as NaN and have red zones.

#define EMU_VECTOR(T, name, align2, align4)                       \
    struct name##2 {                                              \
        alignas(align2) T x;                                      \
        T y;                                                      \
    };                                                            \
    struct name##3 {                                              \
        T x, y, z;                                                \
    };                                                            \
    struct name##4 {                                              \
        alignas(align4) T x;                                      \
        T y, z, w;                                                \
    };                                                            \
    constexpr name##2 make_##name##2(T x, T y) { return {x, y}; } \
    constexpr name##4 make_##name##4(T x, T y, T z, T w) { return {x, y, z, w}; }
EMU_VECTOR(float, float, 8, 16)
EMU_VECTOR(int, int, 8, 16)
EMU_VECTOR(unsigned, uint, 8, 16)
#undef EMU_VECTOR

struct dim3 {
    unsigned x, y, z;
    constexpr dim3(unsigned x = 1, unsigned y = 1, unsigned z = 1) : x(x), y(y), z(z) {}
};

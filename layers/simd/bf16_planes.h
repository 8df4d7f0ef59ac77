// bf16_planes.h - operands of products by AMX tiles: bf16, or floats as the sum of three bf16
// numbers (planes). All that determines the bits of a sum is here: amx.cpp multiplies many rows,
// packed_tiles.cpp few, with the same bits.
#pragma once
#include "amx_tiles.h"

namespace ISA {
constexpr int SIDE = 32;              // rows or columns of a panel of amx.cpp
constexpr int RESIDENT = 800 << 8;    // words; 800 KiB, the reliable half of L2

INLINE int parts(int n, int most) { return (n + most - 1) / most; }

// The number of bf16 planes of an operand, and the planes of A and B that are multiplied, in order.
// block_steps uses DEEP and MOST. A part of a block of k has SUB steps of 32, or SUB_PAST_CACHES if
// results bypass the caches. Each step prefetches PREFETCH_LINES lines of the next panel.
struct OnePlane {    // bf16, or floats rounded to it
    static constexpr int PLANES = 1, PRODUCTS = 1, A[] = {0}, B[] = {0};
    static constexpr int DEEP = 24, MOST = 32, SUB = 16, SUB_PAST_CACHES = 12, PREFETCH_LINES = 3;
};
struct ThreePlanes {    // floats
    static constexpr int PLANES = 3, PRODUCTS = FLOAT_PRODUCTS, A[] = {2, 1, 1, 0, 0, 0}, B[] = {0, 0, 1, 1, 0, 2};
    static constexpr int DEEP = 6, MOST = 6, SUB = 6, SUB_PAST_CACHES = 6, PREFETCH_LINES = 6;
    // Returns the next plane of x, the nearest number with 8 bits, and subtracts it from x. The
    // last plane is the exact rest.
    static INLINE_MEMBER vu take(vf& x, int plane) {
        const vu part = (reinterpret_cast<vu>(x) + (plane + 1 < PLANES ? 0x8000 : 0)) & 0xffff0000;
        x -= reinterpret_cast<vf>(part);
        return part;
    }
    // The next plane of two vectors in one: word i has that of low[i] in its lower half and that of
    // high[i] in its upper half. Of a step's 32 k, low has the first 16 and high the others. Both
    // lose the plane.
    static INLINE_MEMBER vf take(vf& low, vf& high, int plane) {
        return reinterpret_cast<vf>(take(low, plane) >> 16 | take(high, plane));
    }
};

// Returns the number of steps (of 32 k) in a block of k. A block's sums begin at zero and are then
// added to earlier blocks' sums. If K has more than DEEP steps, a block has at most DEEP, and so
// few that all N columns fit into the resident memory. But if fewer than SUB would fit, a block has
// up to MOST, because each further block reads and writes all results again. (The weight gradient
// of 3072 to 768 at 1024 rows has one block instead of two: both gradients take 8 to 12 % less
// time.) The choice must not depend on the numbers of rows and threads: these would change the
// order of a row's sums.
template <class Planes> INLINE int block_steps(int N, int K) {
    const int all = parts(K, 32), fits = RESIDENT / (parts(N, SIDE) * Planes::PLANES * 2 * TILE);
    const int most = all > Planes::DEEP && fits >= Planes::SUB ? least(fits, Planes::DEEP) : Planes::MOST;
    return parts(all, parts(all, most));
}
}    // namespace ISA

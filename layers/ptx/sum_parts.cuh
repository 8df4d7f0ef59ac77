// sum_parts.cuh - the last step of sums over rows: adds the blocks' partial sums in order.
#pragma once
#include "layers/cuda.cuh"

namespace {
// Adds to a (a_columns) and b (b_columns) the sums over p of partial[p,:] (parts,stride); b's
// columns begin at b_from, and a or b may be null. A block has 32 columns; each of its 32 warps
// adds every 32nd part, then the warps' sums are added in order. Bound by reading partial.
template <class G> __global__ void add_parts_kernel(G* a, int a_columns, G* b, int b_columns, const float* partial,
                                                    int b_from, int parts, int stride) {
    SHARED(float[32][32], warp_sums);
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, c = blockIdx.x * 32 + lane;
    const bool first = c < a_columns;
    const int column = first ? c : c - a_columns + b_from;
    G* const to = first ? a : b;
    const bool wanted = c < a_columns + b_columns && to;
    float sum = 0;
    if (wanted)
#pragma unroll 8
        for (int p = warp; p < parts; p += 32) sum += partial[int64_t(p) * stride + column];
    warp_sums[warp][lane] = sum;
    __syncthreads();
    if (warp != 0 || !wanted) return;
    for (int i = 1; i < 32; i++) sum += warp_sums[i][lane];
    to[first ? c : c - a_columns] += sum;
}
template <class G>
void add_parts(G* a, int a_columns, G* b, int b_columns, const float* partial, int b_from, int parts, int stride) {
    if (a || b)
        launch(add_parts_kernel<G>, {unsigned(ceil_div(a_columns + b_columns, 32)), 1024}, a, a_columns, b, b_columns,
               partial, b_from, parts, stride);
}
}    // namespace

// mma_tile.cuh - shared by the mma.sync kernels of attention and experts: swizzled tiles in shared
// memory, and results in registers.
//
// A warp holds its part of a result as float [M][N][4]: element e of piece (m, n) is row 16
// m + lane / 4 + 8 (e / 2), column 8 n + lane % 4 * 2 + e % 2.
#pragma once
#include "ptx.cuh"

namespace sm80 {

// Rows of D elements in shared memory. 16-byte chunk c of row r lies at c ^ x(r), so that one chunk
// of eight rows, which ldmatrix reads at a time, covers all 32 banks. With D = 32 and 96 a row is
// an odd multiple of 16 banks, so two rows share a value of x(r).
template <int ROWS, int D> struct alignas(128) Tile {
    bf16 at[ROWS * D];
    __device__ static int swizzled(int r, int c) { return r * D + (c ^ (D % 64 == 0 ? r % 8 : r / 2 % 4)) * 8; }
    __device__ bf16* chunk(int r, int c) { return at + swizzled(r, c); }
    // This lane's address for ldmatrix of the 16 by 16 elements from row r, column 16 k on. The
    // four matrices are rows 0..7 and 8..15 of the left half, then of the right half.
    __device__ const bf16* piece(int r, int k) const {
        const int lane = threadIdx.x % 32;
        return at + swizzled(r + lane % 16, k * 2 + lane / 16);
    }
};

template <int M, int N, class F> __device__ inline void each(float (&x)[M][N][4], F f) {
#pragma unroll
    for (int m = 0; m < M; m++)
#pragma unroll
        for (int n = 0; n < N; n++)
#pragma unroll
            for (int e = 0; e < 4; e++) f(x[m][n][e], m, n, e);
}

// Writes a warp's results, rounded, to the tile from (row, column) on; column is a multiple of 8.
template <int M, int N, int ROWS, int D>
__device__ inline void put_results(Tile<ROWS, D>& tile, const float (&x)[M][N][4], int row, int column) {
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int m = 0; m < M; m++)
#pragma unroll
        for (int n = 0; n < N; n++)
#pragma unroll
            for (int r = 0; r < 2; r++) {
                bf16* pair = tile.chunk(row + m * 16 + r * 8 + lane / 4, column / 8 + n) + lane % 4 * 2;
                *reinterpret_cast<uint32_t*>(pair) = pack_bf16(x[m][n][r * 2], x[m][n][r * 2 + 1]);
            }
}

}    // namespace sm80

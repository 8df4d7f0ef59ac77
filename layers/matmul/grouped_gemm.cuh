// grouped_gemm.cuh - products of rows ordered by expert. Only the device knows each expert's number
// of rows.
//
// Each expert has n permuted rows and its own w (OC,C). Products of a and b, (rows,columns):
//   y    y (n,OC)   = x (n,C) w^T      a = x, b = w: contiguous along k, the summed dimension
//   dx   dx (n,C)   = dy (n,OC) w      a = dy: contiguous along k; b = w: one k per row
//   dw   dw (OC,C) (+)= dy^T x         a = dy, b = x: k is the permuted rows, one k per row
//   symmetric   (n,n) = x x^T          a = b = x; one expert. Only tiles that touch the diagonal or
//                                      lie below it are computed, and also written mirrored
//
// A block computes a tile of one expert's result over all of k in order, so a row's bits depend
// only on that row, and dw's on the order of its rows. y and dx: the grid has the largest possible
// number of row tiles; a block finds its expert by scanning the offsets, and ends if there is none.
// dw: the block's index gives the expert; one without rows adds nothing, or assigns zeros.
//
// tensor: bf16 by mma.sync, cp.async into STAGES buffers, four warps of 64 x 64 results each.
// An expert with n rows has 2 * n * C * OC FLOPs, which are n for each byte of w. An H200 does 206
// FLOPs in the time that it reads a byte, so below about 200 rows for each expert y and dx are
// bound by reading w, and use tiles of 32 rows.
// plain: all other cases, in float by FMAs, 8 x 8 results a thread.
#pragma once
#include <algorithm>

#include "own_gemm.h"
#include "layers/ptx/mma_tile.cuh"

namespace {
// Whether a factor is stored by k: each row in memory is one k of all the result's rows or columns.
template <Product P> constexpr bool A_BY_K = P == Product::dw;
template <Product P> constexpr bool B_BY_K = P == Product::dx || P == Product::dw;
template <Product P> constexpr bool OF_X = P == Product::y || P == Product::symmetric;    // rows of C elements

// Arguments common to all blocks.
template <class T> struct Groups {
    const int* offsets;    // null: one expert has all rows
    const T *a, *b;
    int E, C, OC;
    bool add;    // out +=, not =
    int rows;    // all experts' rows
};
// A block's task: one tile of the result, whose first element has index `out`. The tile becomes the
// sum over k < K of the products of a and b or, with Groups::add, gains it. M, N: rows and columns
// of the result from the tile's first ones on.
template <class T> struct Task {
    const T *a, *b;
    int64_t out;
    int M, N, K;
    int64_t mirror = -1;    // symmetric: index of the mirrored tile's first element; -1: on the diagonal
};

// The tile's expert and first row. from, n: the expert's first permuted row and number of rows.
struct TileCoord {
    int expert, row, from, n;
};
template <int BM> __device__ bool find_tile(TileCoord& tile_coord, const int* offsets, int E, int rows, int tile) {
    if (!offsets) {
        tile_coord = {0, tile * BM, 0, rows};
        return tile * BM < rows;
    }
    const int lane = threadIdx.x % 32;
    for (int first = 0; first < E; first += 32) {
        const int e = min(first + lane, E - 1), from = offsets[e], n = first + lane < E ? offsets[e + 1] - from : 0;
        const int own = (n + BM - 1) / BM, upto = warp_inclusive_sum(own);    // tiles
        if (const unsigned later = __ballot_sync(0xffffffff, tile < upto)) {
            const int at = __popc((later & -later) - 1);    // the first such lane
            tile_coord.expert = first + at;
            tile_coord.row = (tile - __shfl_sync(0xffffffff, upto - own, at)) * BM;
            tile_coord.from = __shfl_sync(0xffffffff, from, at), tile_coord.n = __shfl_sync(0xffffffff, n, at);
            return true;
        }
        tile -= __shfl_sync(0xffffffff, upto, 31);
    }
    return false;
}

// Finds the block's task. Returns false if there is none.
template <Product P, int BM, int BN, class T> __device__ bool find_task(Task<T>& t, const Groups<T>& g) {
    const int64_t matrix = int64_t(g.C) * g.OC;
    if constexpr (P == Product::dw) {
        const int down = (g.OC + BM - 1) / BM, across = (g.C + BN - 1) / BN;
        const int e = int(blockIdx.x) / (down * across), i = int(blockIdx.x) % (down * across);
        const int row = i / across * BM, column = i % across * BN;
        const int64_t from = g.offsets ? g.offsets[e] : 0, to = g.offsets ? g.offsets[e + 1] : g.rows;
        t = {g.a + from * g.OC + row,
             g.b + from * g.C + column,
             e * matrix + int64_t(row) * g.C + column,
             g.OC - row,
             g.C - column,
             int(to - from)};
        return t.K > 0 || !g.add;
    } else if constexpr (P == Product::symmetric) {
        int down = int((sqrtf(8 * float(blockIdx.x) + 1) - 1) / 2);    // may be off by one
        if (down * (down + 1) / 2 > int(blockIdx.x)) down--;
        if ((down + 1) * (down + 2) / 2 <= int(blockIdx.x)) down++;
        const int row = down * BM, column = (int(blockIdx.x) - down * (down + 1) / 2) * BN;
        t = {g.a + int64_t(row) * g.C,
             g.b + int64_t(column) * g.C,
             int64_t(row) * g.rows + column,
             g.rows - row,
             g.rows - column,
             g.C,
             row == column ? -1 : int64_t(column) * g.rows + row};
        return true;
    } else {
        const int width = P == Product::y ? g.OC : g.C, K = P == Product::y ? g.C : g.OC;
        const int across = (width + BN - 1) / BN, column = int(blockIdx.x) % across * BN;
        TileCoord tile_coord;
        if (!find_tile<BM>(tile_coord, g.offsets, g.E, g.rows, int(blockIdx.x) / across)) return false;
        const int64_t permuted_row = tile_coord.from + tile_coord.row;
        t = {g.a + permuted_row * K,
             g.b + tile_coord.expert * matrix + (P == Product::y ? int64_t(column) * K : column),
             permuted_row * width + column,
             tile_coord.n - tile_coord.row,
             width - column,
             K};
        return true;
    }
}
// Number of blocks of a launch.
template <Product P, class T> unsigned tiles(const Groups<T>& g, int BM, int BN) {
    if (P == Product::dw) return unsigned(g.E * ceil_div(g.OC, BM) * ceil_div(g.C, BN));
    if (const int64_t down = ceil_div(g.rows, BM); P == Product::symmetric) return unsigned(down * (down + 1) / 2);
    return unsigned((std::min(g.E, g.rows) + g.rows / BM) * ceil_div(P == Product::y ? g.OC : g.C, BN));
}

// ---- bf16 ---------------------------------------------------------------------------------------

constexpr int BN = 128, BK = 32, STAGES = 4, TENSOR_THREADS = 128;

// A factor's tile: SIZE rows or columns of the result by BK of k.
template <bool BY_K, int SIZE> struct Factor {
    static constexpr int ROWS = BY_K ? BK : SIZE, COLUMNS = BY_K ? SIZE : BK;
    sm80::Tile<ROWS, COLUMNS> tile;
    // Starts copying the tile. Elements beyond `size` (rows or columns) and k become zeros.
    __device__ void load(const bf16* from, int stride, int size, int k) {
        constexpr int CHUNKS = COLUMNS / 8, STEP = TENSOR_THREADS / CHUNKS;
        const int column = threadIdx.x % CHUNKS, row = threadIdx.x / CHUNKS;
        const int rows = column * 8 < (BY_K ? size : k) ? (BY_K ? k : size) : 0;
        const bf16* source = from + int64_t(row) * stride + column * 8;
#pragma unroll
        for (int i = 0; i < ROWS; i += STEP, source += int64_t(STEP) * stride)
            cp_async_16(tile.chunk(row + i, column), source, row + i < rows);
    }
    // Reads 16 rows or columns of the result, from `at` on, by 16 values of k: step k. f[0] and
    // f[2] have the first eight rows or columns, f[0] and f[1] the first eight k.
    __device__ void get(uint32_t (&f)[4], int at, int k) const {
        if constexpr (BY_K) {
            uint32_t x[4];
            ldmatrix_x4_trans(x, tile.piece(k * 16, at / 16));
            f[0] = x[0], f[1] = x[2], f[2] = x[1], f[3] = x[3];
        } else ldmatrix_x4(f, tile.piece(at, k));
    }
};
template <Product P, int BM> struct Stage {
    Factor<A_BY_K<P>, BM> a;
    Factor<B_BY_K<P>, BN> b;
};
template <Product P, int BM> union Buffers {
    Stage<P, BM> stage[STAGES];
    sm80::Tile<BM, BN> out;
};

// Adds a stage's products to a warp's results, from `row` and `column` on.
template <Product P, int BM, int M, int N>
__device__ void multiply_stage(float (&sum)[M][N][4], const Stage<P, BM>& s, int row, int column) {
#pragma unroll
    for (int k = 0; k < BK / 16; k++) {
        uint32_t a[M][4];
#pragma unroll
        for (int m = 0; m < M; m++) s.a.get(a[m], row + m * 16, k);
#pragma unroll
        for (int n = 0; n < N; n += 2) {
            uint32_t b[4];
            s.b.get(b, column + n * 8, k);
#pragma unroll
            for (int m = 0; m < M; m++) {
                mma_m16n8k16(sum[m][n], a[m], {b[0], b[2]});
                mma_m16n8k16(sum[m][n + 1], a[m], {b[1], b[3]});
            }
        }
    }
}

// Writes a warp's results, rounded, to the tile, and from there in whole chunks to memory.
template <int BM, int M, int N> __device__ void put_rows(bf16* out, int stride, sm80::Tile<BM, BN>& tile,
                                                         float (&sum)[M][N][4], int row, int column, int rows,
                                                         int columns) {
    const int lane = threadIdx.x % 32;
    sm80::put_results(tile, sum, row, column);
    __syncwarp();
    for (int i = lane; i < M * 16 * N; i += 32) {
        const int r = row + i / N, c = column + i % N * 8;
        if (r < rows && c < columns) store<8>(out + int64_t(r) * stride + c, load<8>(tile.chunk(r, c / 8)));
    }
}
// Writes a warp's results, which put_rows has left in the tile, transposed. out: element (0, 0) of
// the mirrored tile.
template <int BM, int M, int N> __device__ void put_mirrored(bf16* out, int stride, sm80::Tile<BM, BN>& tile, int row,
                                                             int column, int rows, int columns) {
    for (int i = threadIdx.x % 32; i < N * 8 * M * 2; i += 32) {
        const int c = column + i / (M * 2), r = row + i % (M * 2) * 8;
        if (r >= rows || c >= columns) continue;
        Vec<bf16, 8> values;
#pragma unroll
        for (int j = 0; j < 8; j++) values.v[j] = tile.chunk(r + j, c / 8)[c % 8];
        store<8>(out + int64_t(c) * stride + r, values);
    }
}
// Adds or assigns a warp's results in memory: four lanes have eight elements of a row.
template <int M, int N, class Out> __device__ void add_rows(Out* out, int stride, float (&sum)[M][N][4], int row,
                                                            int column, int rows, int columns, bool add) {
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int m = 0; m < M; m++)
#pragma unroll
        for (int half = 0; half < 2; half++) {
            const int r = row + m * 16 + half * 8 + lane / 4;
            Out* to = out + int64_t(r) * stride + column + lane % 4 * 2;
#pragma unroll
            for (int n = 0; n < N; n++)
                if (r < rows && column + n * 8 < columns) {
                    Vec<Out, 2> pair = {};
                    if (add) pair = load<2>(to + n * 8);
                    for (int i = 0; i < 2; i++) pair.set(i, pair[i] + sum[m][n][half * 2 + i]);
                    store<2>(to + n * 8, pair);
                }
        }
}

template <Product P, int BM, class Out> __global__ void __launch_bounds__(TENSOR_THREADS)
    tensor_kernel(Out* out, Groups<bf16> g) {
    constexpr int WARPS_DOWN = BM == 128 ? 2 : 1, WARPS_ACROSS = 4 / WARPS_DOWN;
    constexpr int M = BM / WARPS_DOWN / 16, N = BN / WARPS_ACROSS / 8;
    auto& shared = dynamic_shared<Buffers<P, BM>>();
    Task<bf16> t;
    if (!find_task<P, BM, BN>(t, g)) return;
    const int a_row = OF_X<P> ? g.C : g.OC, b_row = g.C, steps = (t.K + BK - 1) / BK;
    auto start = [&](int step) {    // copies of one step
        if (step < steps) {
            Stage<P, BM>& s = shared.stage[step % STAGES];
            const int k = step * BK;
            s.a.load(t.a + (A_BY_K<P> ? int64_t(k) * a_row : k), a_row, t.M, t.K - k);
            s.b.load(t.b + (B_BY_K<P> ? int64_t(k) * b_row : k), b_row, t.N, t.K - k);
        }
        cp_async_commit();
    };
    const int warp = threadIdx.x / 32, row = warp / WARPS_ACROSS * M * 16, column = warp % WARPS_ACROSS * N * 8;
    float sum[M][N][4] = {};
    for (int step = 0; step < STAGES - 1; step++) start(step);
    for (int step = 0; step < steps; step++) {
        cp_async_wait<STAGES - 2>();
        __syncthreads();    // copies visible; the previous stage is free
        start(step + STAGES - 1);
        multiply_stage<P, BM>(sum, shared.stage[step % STAGES], row, column);
    }
    cp_async_wait<0>();
    const int out_row = OF_X<P> ? g.OC : g.C;
    if (P == Product::dw || g.add) return add_rows(out + t.out, out_row, sum, row, column, t.M, t.N, g.add);
    if constexpr (P != Product::dw) {
        __syncthreads();    // the last stage has been read
        put_rows(out + t.out, out_row, shared.out, sum, row, column, t.M, t.N);
        if (t.mirror >= 0) put_mirrored<BM, M, N>(out + t.mirror, out_row, shared.out, row, column, t.M, t.N);
    }
}

// ---- all other cases ----------------------------------------------------------------------------

constexpr int PLAIN = 64, PLAIN_K = 16, PLAIN_THREADS = 64;

// A thread's part of a factor's tile on its way to shared memory: [k][row or column of the result].
template <bool BY_K, class T> struct Part {
    static constexpr int COLUMNS = BY_K ? PLAIN : PLAIN_K, STEP = PLAIN_THREADS / COLUMNS;    // as in memory
    static constexpr int OWN = PLAIN * PLAIN_K / PLAIN_THREADS;                               // elements of a thread
    static constexpr int PADDED = PLAIN + 4;    // row length, a multiple of 16 bytes
    typedef float Tile[PLAIN_K][PADDED];
    float x[OWN];
    __device__ static int column() { return threadIdx.x % COLUMNS; }
    __device__ static int row() { return threadIdx.x / COLUMNS; }
    __device__ void read(const T* from, int stride, int size, int k) {    // zeros beyond `size` and k
        const int rows = column() < (BY_K ? size : k) ? (BY_K ? k : size) - row() : 0;
        const T* source = from + int64_t(row()) * stride + column();
#pragma unroll
        for (int i = 0; i < OWN; i++, source += int64_t(STEP) * stride) x[i] = i * STEP < rows ? to_float(*source) : 0;
    }
    __device__ void put(Tile& tile) const {
#pragma unroll
        for (int i = 0; i < OWN; i++) {
            const int at = row() + i * STEP;
            tile[BY_K ? at : column()][BY_K ? column() : at] = x[i];
        }
    }
};

template <Product P, class T, class Out> __global__ void __launch_bounds__(PLAIN_THREADS)
    plain_kernel(Out* out, Groups<T> g) {
    typedef Part<A_BY_K<P>, T> A;
    typedef Part<B_BY_K<P>, T> B;
    SHARED(typename A::Tile[2], a);
    SHARED(typename B::Tile[2], b);
    Task<T> t;
    if (!find_task<P, PLAIN, PLAIN>(t, g)) return;
    const int a_row = OF_X<P> ? g.C : g.OC, b_row = g.C, out_row = OF_X<P> ? g.OC : g.C;
    A next_a;
    B next_b;
    auto read = [&](int k) {
        next_a.read(t.a + (A_BY_K<P> ? int64_t(k) * a_row : k), a_row, t.M, t.K - k);
        next_b.read(t.b + (B_BY_K<P> ? int64_t(k) * b_row : k), b_row, t.N, t.K - k);
    };
    // A thread has 4 rows from y and 4 from y + 32 on, and columns from x and x + 32 on likewise,
    // so that it reads shared memory by 16 bytes.
    const int x = threadIdx.x % 8 * 4, y = threadIdx.x / 8 * 4;
    float sum[8][8] = {};
    read(0);
    for (int k = 0, buffer = 0; k < t.K; k += PLAIN_K, buffer ^= 1) {
        next_a.put(a[buffer]), next_b.put(b[buffer]);
        __syncthreads();    // the other buffer, too, has been read
        if (k + PLAIN_K < t.K) read(k + PLAIN_K);
#pragma unroll 4
        for (int i = 0; i < PLAIN_K; i++) {
            Vec<float, 4> left[2], right[2];
#pragma unroll
            for (int half = 0; half < 2; half++) {
                left[half] = load<4>(&a[buffer][i][y + 32 * half]);
                right[half] = load<4>(&b[buffer][i][x + 32 * half]);
            }
#pragma unroll
            for (int m = 0; m < 8; m++)
#pragma unroll
                for (int n = 0; n < 8; n++) sum[m][n] += left[m / 4][m % 4] * right[n / 4][n % 4];
        }
    }
#pragma unroll
    for (int m = 0; m < 8; m++)
#pragma unroll
        for (int n = 0; n < 8; n++) {
            const int row = m / 4 * 32 + y + m % 4, column = n / 4 * 32 + x + n % 4;
            if (row >= t.M || column >= t.N) continue;
            Out& to = out[t.out + int64_t(row) * out_row + column];
            to = from_float<Out>(g.add ? to_float(to) + sum[m][n] : sum[m][n]);
            if (t.mirror >= 0) out[t.mirror + int64_t(column) * out_row + row] = to;
        }
}

// ---- launching ----------------------------------------------------------------------------------

template <Product P, class T, class Out> void grouped(Out* out, const Groups<T>& g) {
    if constexpr (sizeof(T) == 2) {
        const auto aligned = [](const void* p) { return uintptr_t(p) % 16 == 0; };
        if (rows_align<T>(g.C) && rows_align<T>(g.OC) && aligned(g.a) && aligned(g.b) && aligned(out)) {
            const auto run = [&]<int BM>() {
                launch(tensor_kernel<P, BM, Out>,
                       {.grid = tiles<P>(g, BM, BN), .block = TENSOR_THREADS, .shared = sizeof(Buffers<P, BM>)}, out,
                       g);
            };
            if constexpr (P == Product::y || P == Product::dx)
                if (g.rows < 64 * int64_t(g.E)) return run.template operator()<32>();
            return run.template operator()<128>();
        }
    }
    launch(plain_kernel<P, T, Out>, {tiles<P>(g, PLAIN, PLAIN), PLAIN_THREADS}, out, g);
}
// Computes `out` from a and b, over the permuted rows of N positions.
template <Product P, class T, class Out> void grouped(Out* out, const T* a, const T* b, const Routes& routes,
                                                      const Router& r, int N, int C, int OC, bool add = false) {
    grouped<P>(out, Groups<T>{routes.offsets, a, b, r.E, C, OC, add, N * r.K});
}
}    // namespace

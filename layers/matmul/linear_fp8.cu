// linear_fp8.cu - linear_forward and linear_backward with Precision::fp8: products of factors
// rounded to 8 bits, with float sums. Before rounding, a number is multiplied by LARGEST / the
// largest one that shares its scale: nothing overflows, and numbers 2^14 (E4M3; E5M2: 2^29) times
// smaller than the largest keep all their bits. The largest is found on the device from the numbers
// themselves ("current scaling"), so a checkpoint has no history to keep. cuBLASLt multiplies sums
// by the inverses.
//     tensor   one scale a tensor; x and w are E4M3, dy is E5M2 for a gradient's range
//              (Micikevicius et al. 2022)
//     block    a scale for 128 neighbours along k, of a weight for 128 x 128; all are E4M3
//              (DeepSeek-V3, 2024, section 3.3). An outlier costs only its neighbours their bits.
//
// cuBLASLt needs both factors with k running fastest (A transposed, B not), at least on sm_89 and
// sm_90:
//     y  (OC,N) = w   (C,OC)^T x    (C,N)     k = C
//     dx (C,N)  = w^T (OC,C)^T dy   (OC,N)    k = OC
//     dw (C,OC) = x^T (N,C)^T  dy^T (N,OC)    k = N
// so the backward pass casts to transposed factors.
//
// Block scales need cuBLAS 12.9 or newer, and sm_90. Its guide ("128-element 1D and 128x128 2D
// Block Scaling For FP8 Data Types"): scales are floats, 16-byte aligned; m and n are multiples of
// 4; with L = k/128 rounded up, 1x128's are (L,m) of A and (L,n) of B; 128x128's are (m/128, L),
// the first rounded up, the second to a multiple of 4; at most one factor has 128x128. So w has
// 128x128 in y and dx, and both factors of dw have 1x128. The guide lists no epilogues;
// TransformerEngine tests biases, accumulation into fp32, and sizes that 128 does not divide.
//
// Casts are bound by memory. tensor: an element of x or w takes 5 bytes of traffic, as it is read
// twice (the second time from L2 where the factor fits) and written once; dy is written twice, for
// dx and dw. block: it takes 3 bytes, as it is read once. An H100 does 590 FLOPs of fp8 in the time
// of a byte (1979 TFLOP/s, 3.35 TB/s). The casts for y move 5 (N C + C OC) bytes for 2 N C OC
// FLOPs, so they take 5 * 590 / 2 (1/OC + 1/N) of the product's time. fp8 saves as much time as its
// product takes: with many rows and OC below about 1500 (block: 900), fp8 is no faster than bf16. A
// weight is cast at each use, twice a batch. A step of gpt2-xl (B=8, T=1024) on an H200
// (2026-11-27) is 1.14 times as fast as in bf16, with block 1.08.
#include "layers/cuda.h"
#include "fp8.cuh"
#include "gemv.cuh"
#include "cublaslt_gemm.cuh"

namespace {
// ---- casts --------------------------------------------------------------------------------------

constexpr int CAST_THREADS = 256, CAST_TILE = 64, BLOCK = Fp8Scratch::BLOCK;

// Target of a cast; null: no target. The numbers written, times *scale, are the original numbers.
template <class F> struct Cast {
    F* to;
    float* scale;
};

__device__ inline uint32_t magnitude(bf16 x) { return x.bits & 0x7fff; }
__device__ inline uint32_t larger(uint32_t a, uint32_t b) { return a > b ? a : b; }
// The block's largest magnitude, as bf16 bits: NaN > infinity > numbers. All threads must call it.
__device__ inline uint32_t block_largest(uint32_t x) {
    return block_reduce(x, 0u, [](uint32_t most) {
#pragma unroll
        for (int bit = 16; bit; bit >>= 1) most = larger(most, __shfl_xor_sync(0xffffffff, most, bit));
        return most;
    });
}

struct Scale {
    float factor, inverse;
};
template <class F> __device__ inline Scale scale_for(uint32_t most) {
    const bool finite = most < 0x7f80;
    // The factor is at most 2^126 (for zeros, or numbers below 2^-110): its inverse must be normal.
    const float factor = finite ? fminf(LARGEST<F> / to_float(bf16{uint16_t(most)}), 0x1p126f) : 1;
    return {factor, finite ? 1 / factor : NAN};
}

// largest[block] = the largest |x| that the block found.    n: a multiple of 8
__global__ void largest_kernel(uint32_t* largest, const bf16* x, int64_t n) {
    uint32_t most = 0;
    const int64_t step = int64_t(gridDim.x) * CAST_THREADS * 8;
    for (int64_t i = (blockIdx.x * int64_t(CAST_THREADS) + threadIdx.x) * 8; i < n; i += step) {
        const Vec<bf16, 8> v = load<8>(x + i);
#pragma unroll
        for (int j = 0; j < 8; j++) most = larger(most, magnitude(v.v[j]));
    }
    most = block_largest(most);
    if (threadIdx.x == 0) largest[blockIdx.x] = most;
}

// Casts x (R,C), with one scale, to `straight` (R,C) and `transposed` (C,R). R, C: multiples of 16.
// A block casts a tile. A thread casts 8 neighbours of two rows, then writes 16 of one column.
template <class F> __global__ void cast_kernel(Cast<F> straight, Cast<F> transposed, const bf16* x,
                                               const uint32_t* largest, int parts, int R, int C) {
    SHARED(uint32_t[CAST_TILE][CAST_TILE / 4 + 1], tile);    // [column][four rows], padded against bank conflicts
    uint32_t most = 0;
    for (int i = threadIdx.x; i < parts; i += CAST_THREADS) most = larger(most, largest[i]);
    const Scale scale = scale_for<F>(block_largest(most));
    if (blockIdx.x == 0 && blockIdx.y == 0 && threadIdx.x == 0) {
        if (straight.to) *straight.scale = scale.inverse;
        if (transposed.to) *transposed.scale = scale.inverse;
    }
    const int r0 = blockIdx.x * CAST_TILE, c0 = blockIdx.y * CAST_TILE;
#pragma unroll
    for (int i = 0; i < 2; i++) {
        const int r = threadIdx.x / 8 + 32 * i, c = threadIdx.x % 8 * 8;
        if (r0 + r >= R || c0 + c >= C) continue;
        const int64_t at = int64_t(r0 + r) * C + c0 + c;
        const Vec<bf16, 8> v = load<8>(x + at);
        Vec<F, 8> out;
#pragma unroll
        for (int j = 0; j < 8; j++) {
            out.v[j] = from_float<F>(v[j] * scale.factor);
            reinterpret_cast<F*>(tile[c + j])[r] = out.v[j];
        }
        if (straight.to) store<8>(straight.to + at, out);
    }
    if (!transposed.to) return;
    __syncthreads();
    const int c = threadIdx.x / 4, r = threadIdx.x % 4 * 16;
    if (c0 + c >= C || r0 + r >= R) return;
    Vec<uint32_t, 4> out;
#pragma unroll
    for (int j = 0; j < 4; j++) out.v[j] = tile[c][r / 4 + j];
    store<4>(reinterpret_cast<uint32_t*>(transposed.to + int64_t(c0 + c) * R + r0 + r), out);
}

// Sets the scale of the 128x128 block in block row `row` and, along k, block `column`. The last
// column also zeroes the padding, because cuBLAS's guide does not exclude that it is read.
__device__ inline void set_square(float* scales, int row, int column, int k, float scale) {
    const int blocks = (k + BLOCK - 1) / BLOCK, padded = (blocks + 3) / 4 * 4;
    float* const at = scales + int64_t(row) * padded;
    at[column] = scale;
    for (int i = blocks; column == blocks - 1 && i < padded; i++) at[i] = 0;
}

// Each of 16 neighbouring lanes has a number for each of 8 rows; lane i gets the largest number of
// row i % 8. All threads must call it.
__device__ inline uint32_t rows_largest(uint32_t (&most)[8]) {
#pragma unroll
    for (int half = 4; half; half /= 2) {    // each lane keeps one half of the rows
        const bool upper = threadIdx.x & half;
#pragma unroll
        for (int i = 0; i < half; i++) {
            const uint32_t kept = upper ? most[i + half] : most[i], given = upper ? most[i] : most[i + half];
            most[i] = larger(kept, __shfl_xor_sync(0xffffffff, given, half));
        }
    }
    return larger(most[0], __shfl_xor_sync(0xffffffff, most[0], 8));
}

// Computes the scales of a tile's columns from v, 8 columns of 8 rows in each thread: `factors` for
// the cast, `inverses` for cuBLASLt.
__device__ inline void column_scales(float (&factors)[BLOCK], float* inverses, const Vec<bf16, 8> (&v)[8],
                                     int columns_left) {
    constexpr int GROUPS = BLOCK / 8, WARPS = CAST_THREADS / 32;
    SHARED(uint32_t[WARPS][BLOCK], largest);
#pragma unroll
    for (int j = 0; j < 8; j++) {
        uint32_t most = 0;
#pragma unroll
        for (int i = 0; i < 8; i++) most = larger(most, magnitude(v[i].v[j]));
        most = larger(most, __shfl_xor_sync(0xffffffff, most, GROUPS));    // a warp has two rows of threads
        if (threadIdx.x % 32 < GROUPS) largest[threadIdx.x / 32][threadIdx.x % GROUPS * 8 + j] = most;
    }
    __syncthreads();
    const int c = threadIdx.x;
    if (c < BLOCK) {
        uint32_t most = 0;
#pragma unroll
        for (int warp = 0; warp < WARPS; warp++) most = larger(most, largest[warp][c]);
        const Scale scale = scale_for<e4m3>(most);
        factors[c] = scale.factor;
        if (c < columns_left) inverses[c] = scale.inverse;
    }
    __syncthreads();
}

// Casts x to `straight` (R,C) and `transposed` (C,R), each with a scale for every 128 neighbours of
// its rows or, with SQUARE, for every tile of 128 x 128. R, C: multiples of 16. A block reads a
// tile of 128 x 128 once; a thread has 8 neighbours of 8 rows, so also 8 neighbours of 8 columns.
template <bool SQUARE>
__global__ void block_cast_kernel(Cast<e4m3> straight, Cast<e4m3> transposed, const bf16* x, int R, int C) {
    typedef Vec<e4m3, 8> Group;
    constexpr int GROUPS = BLOCK / 8;
    // [column][rows / 8 ^ column / 8]: 16 lanes that write 8 columns apart use 16 pairs of banks.
    SHARED(Group[BLOCK][GROUPS], tile);
    SHARED(float[BLOCK], factors);
    const int r0 = blockIdx.x * BLOCK, c0 = blockIdx.y * BLOCK;
    const int rows = threadIdx.x / GROUPS, columns = threadIdx.x % GROUPS;
    const bool inside = r0 + rows * 8 < R && c0 + columns * 8 < C;
    Vec<bf16, 8> v[8];
    uint32_t most[8] = {};    // in each of the thread's rows
#pragma unroll
    for (int i = 0; i < 8; i++)
        v[i] = inside ? load<8>(x + int64_t(r0 + rows * 8 + i) * C + c0 + columns * 8) : Vec<bf16, 8>{};
#pragma unroll
    for (int i = 0; i < 8; i++)
#pragma unroll
        for (int j = 0; j < 8; j++) most[i] = larger(most[i], magnitude(v[i].v[j]));
    Scale scale = {};    // tile's scale, or that of row columns % 8
    if (SQUARE) {
#pragma unroll
        for (int i = 1; i < 8; i++) most[0] = larger(most[0], most[i]);
        scale = scale_for<e4m3>(block_largest(most[0]));
        if (threadIdx.x == 0 && straight.to) set_square(straight.scale, blockIdx.x, blockIdx.y, C, scale.inverse);
        if (threadIdx.x == 0 && transposed.to) set_square(transposed.scale, blockIdx.y, blockIdx.x, R, scale.inverse);
    }
    if (straight.to) {
        const int r = r0 + rows * 8;
        if (!SQUARE) {
            scale = scale_for<e4m3>(rows_largest(most));
            if (columns < 8 && r < R) straight.scale[int64_t(blockIdx.y) * R + r + columns] = scale.inverse;
        }
#pragma unroll
        for (int i = 0; i < 8; i++) {
            const float factor = SQUARE ? scale.factor : __shfl_sync(0xffffffff, scale.factor, i, 8);
            Group out;
#pragma unroll
            for (int j = 0; j < 8; j++) out.set(j, v[i][j] * factor);
            if (inside) store<8>(straight.to + int64_t(r + i) * C + c0 + columns * 8, out);
        }
    }
    if (!transposed.to) return;
    if (!SQUARE) column_scales(factors, transposed.scale + int64_t(blockIdx.x) * C + c0, v, C - c0);
#pragma unroll
    for (int j = 0; j < 8; j++) {
        const float factor = SQUARE ? scale.factor : factors[columns * 8 + j];
        Group out;
#pragma unroll
        for (int i = 0; i < 8; i++) out.set(i, v[i][j] * factor);
        tile[columns * 8 + j][rows ^ columns] = out;
    }
    __syncthreads();
    for (int c = threadIdx.x / GROUPS; c < BLOCK; c += CAST_THREADS / GROUPS) {
        const int r = threadIdx.x % GROUPS;
        if (c0 + c < C && r0 + r * 8 < R)
            store<8>(transposed.to + int64_t(c0 + c) * R + r0 + r * 8, tile[c][r ^ c / 8]);
    }
}

// ---- products -----------------------------------------------------------------------------------

constexpr auto E4M3 = CUDA_R_8F_E4M3, BF16 = CUDA_R_16BF, FLOAT = CUDA_R_32F;
constexpr auto SUMS = CUBLAS_COMPUTE_32F;
constexpr auto T = CUBLAS_OP_T, N_ = CUBLAS_OP_N;
constexpr auto PLAIN = CUBLASLT_EPILOGUE_DEFAULT;
constexpr int NONE = -1;    // no factor

const Ops<bf16>& in_bf16() { return cuda_ops<bf16>(Dtype::bf16); }

bool takes(int N, int C, int OC, std::initializer_list<const void*> pointers) {
    uintptr_t all = 0;
    for (const void* p : pointers) all |= uintptr_t(p);
    return Fp8Scratch::takes(N, C, OC) && all % 16 == 0;
}

// A call's operands converted to fp8, and their scales, in the scratch memory that Fp8Scratch lays
// out.
template <bool BLOCKS> struct Factors {
    typedef std::conditional_t<BLOCKS, e4m3, e5m2> Dy;
    Fp8Scratch at;
    char* memory;
    explicit Factors(Fp8Scratch at) : at(at), memory(static_cast<char*>(cuda_scratch(at.bytes()))) {}

    template <class F> Cast<F> cast_target(int i) const {
        if (i == NONE) return {};
        return {reinterpret_cast<F*>(memory + at.casts[i]), reinterpret_cast<float*>(memory + at.scales[i])};
    }
    // Casts x (R,C) to factor `straight` and x^T to factor `transposed`. square: 128x128 scales.
    template <class F> void cast(int straight, int transposed, const bf16* x, int R, int C, bool square = false) const {
        const Cast<F> to = cast_target<F>(straight), transposed_to = cast_target<F>(transposed);
        const auto tiles = [&](int size) { return dim3(unsigned(ceil_div(R, size)), unsigned(ceil_div(C, size))); };
        if constexpr (BLOCKS) {
            launch(square ? block_cast_kernel<true> : block_cast_kernel<false>, {tiles(BLOCK), CAST_THREADS}, to,
                   transposed_to, x, R, C);
        } else {
            uint32_t* const largest = reinterpret_cast<uint32_t*>(memory);
            const int64_t n = int64_t(R) * C;
            const int parts = int(std::min<int64_t>(at.PARTS, ceil_div(n, CAST_THREADS * 8)));
            launch(largest_kernel, {unsigned(parts), CAST_THREADS}, largest, x, n);
            launch(cast_kernel<F>, {tiles(CAST_TILE), CAST_THREADS}, to, transposed_to, x, largest, parts, R, C);
        }
    }
    Operands operands(int a, int b, const void* c, void* d, const void* bias = nullptr) const {
        const Cast<e4m3> of_a = cast_target<e4m3>(a), of_b = cast_target<e4m3>(b);
        Operands x = {of_a.to, of_b.to, c, d, bias};
        x.a_scale = of_a.scale, x.b_scale = of_b.scale, x.kept = at.kept;
        return x;
    }
};

template <bool BLOCKS> void forward(bf16* y, const bf16* x, const bf16* w, const bf16* b, const bf16* residual, int N,
                                    int C, int OC, Precision precision) {
    if (precision != Precision::fp8 || !takes(N, C, OC, {y, x, w, b, residual}))
        return in_bf16().linear_forward(y, x, w, b, residual, N, C, OC, {});
    const Factors<BLOCKS> factors(Fp8Scratch::forward(N, C, OC));
    Form f = {E4M3, BF16, SUMS, T, N_, OC, N, C, b ? CUBLASLT_EPILOGUE_BIAS : PLAIN, residual != nullptr};
    if (BLOCKS) f.scales = Form::Scales::square;
    const Operands operands = factors.operands(1, 0, residual, y, b);
    if (!takes_steps(f, operands)) {
        factors.template cast<e4m3>(0, NONE, x, N, C);
        factors.template cast<e4m3>(1, NONE, w, OC, C, true);
    }
    multiply(f, operands, [&](const Operands& to) {
        in_bf16().linear_forward(static_cast<bf16*>(to.d), x, w, b, residual, N, C, OC, {});
    });
}

template <bool BLOCKS> void backward(bf16* dx, GradTarget<float> dw, float* db, const bf16* dy, const bf16* x,
                                     const bf16* w, int N, int C, int OC, Precision precision) {
    if (precision != Precision::fp8 || !takes(N, C, OC, {dx, dw.p, dy, x, w}))
        return in_bf16().linear_backward(dx, dw, db, dy, x, w, N, C, OC, {});
    const Factors<BLOCKS> factors(Fp8Scratch::backward(N, C, OC));
    Form dx_form = {E4M3, BF16, SUMS, T, N_, C, N, OC}, dw_form = {E4M3, FLOAT, SUMS, T, N_, C, OC, N, PLAIN, dw.add};
    dx_form.b_e5m2 = dw_form.b_e5m2 = !BLOCKS;
    if (BLOCKS) dx_form.scales = Form::Scales::square, dw_form.scales = Form::Scales::rows;
    const Operands dx_operands = factors.operands(2, 0, nullptr, dx), dw_operands = factors.operands(2, 1, dw.p, dw.p);
    const auto in_steps = [&](const Form& form, const void* a, const void* b) {
        return [=](const Operands& to) {
            Operands wide = {a, b, to.c, to.d};
            wide.kept = to.kept;
            multiply(form, wide);
        };
    };
    const bool dx_cast = dx && !takes_steps(dx_form, dx_operands), dw_cast = dw.p && !takes_steps(dw_form, dw_operands);
    if (dx_cast || dw_cast)
        factors.template cast<typename Factors<BLOCKS>::Dy>(dx_cast ? 0 : NONE, dw_cast ? 1 : NONE, dy, N, OC);
    if (dx_cast) factors.template cast<e4m3>(NONE, 2, w, OC, C, true);
    if (dx) multiply(dx_form, dx_operands, in_steps({BF16, BF16, SUMS, N_, N_, C, N, OC}, w, dy));
    if (dw_cast) factors.template cast<e4m3>(NONE, 2, x, N, C);
    if (dw.p) multiply(dw_form, dw_operands, in_steps({BF16, FLOAT, SUMS, N_, T, C, OC, N, PLAIN, dw.add}, x, dy));
    if (db) column_sums(db, dy, N, OC);
}

const CudaRegistration entries([]<class X>(Ops<X>& o, Dtype dtype) {
    if constexpr (sizeof(X) == 2) {
        if (dtype == Dtype::fp8) o.linear_forward = forward<false>, o.linear_backward = backward<false>;
        if (dtype == Dtype::fp8_block) o.linear_forward = forward<true>, o.linear_backward = backward<true>;
    }
});
}    // namespace

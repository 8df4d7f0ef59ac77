// linear_fp8.cu - linear_forward_fp8 and linear_backward_fp8: products whose factors are rounded to 8 bits, x and w to
// E4M3, dy to E5M2, which has the range that gradients need (Micikevicius et al. 2022). Sums are float.
//
// A factor is multiplied by LARGEST / its largest number before it is rounded: nothing is cut off, and what is 2^14
// (E4M3; E5M2: 2^29) times smaller than the largest still keeps all its bits. That number is this very tensor's, found
// on the device ("current scaling"): no history, so nothing that a checkpoint would have to keep. cuBLASLt multiplies
// sums by the inverses.
//
// cuBLASLt wants both factors with k running fastest (A transposed, B not), on sm_89 and sm_90 at least:
//     y  (OC,N) = w   (C,OC)^T x    (C,N)     k = C
//     dx (C,N)  = w^T (OC,C)^T dy   (OC,N)    k = OC
//     dw (C,OC) = x^T (N,C)^T  dy^T (N,OC)    k = N
// so the casts that the backward pass needs are turned ones.
//
// Casts are bound by memory: a factor is read twice, 2 bytes an element (the second time from L2 where it fits), and
// written in 1 byte; dy in 2. An H100 does 590 FLOPs of fp8 in the time of a byte (1979 TFLOP/s, 3.35 TB/s), so y's
// casts take 5 * 590 / 2 (1/OC + 1/N) of its product's time. In bf16 that takes twice as long: with OC below about 1500
// fp8 is no faster. A weight is cast at each use, twice for each batch. PENDING: not measured.
#include "cuda.h"
#include "fp8.cuh"
#include "linear_kernels.cuh"
#include "products.cuh"

namespace {
// ---- casts ----------------------------------------------------------------------------------------------------------

constexpr int CAST_THREADS = 256, CAST_TILE = 64;

// The block's largest of absolute values, as bits of bf16: infinity is above all numbers, NaN above infinity.
__device__ inline uint32_t block_largest(uint32_t x) {
    return block_reduce(x, 0u, [](uint32_t most) {
#pragma unroll
        for (int bit = 16; bit; bit >>= 1) {
            const uint32_t other = __shfl_xor_sync(0xffffffff, most, bit);
            most = other > most ? other : most;
        }
        return most;
    });
}

// largest[block] = the largest |x| that the block found.    n: a multiple of 8
__global__ void largest_kernel(uint32_t* largest, const bf16* x, int64_t n) {
    uint32_t most = 0;
    const int64_t step = int64_t(gridDim.x) * CAST_THREADS * 8;
    for (int64_t i = (blockIdx.x * int64_t(CAST_THREADS) + threadIdx.x) * 8; i < n; i += step) {
        const Vec<bf16, 8> v = load<8>(x + i);
#pragma unroll
        for (int j = 0; j < 8; j++) {
            const uint32_t magnitude = v.v[j].bits & 0x7fff;
            most = magnitude > most ? magnitude : most;
        }
    }
    most = block_largest(most);
    if (threadIdx.x == 0) largest[blockIdx.x] = most;
}

// to (R,C), turned (C,R) = x (R,C) times F's largest number over x's, rounded; either may be null. *inverse: of that
// factor. R, C: multiples of 16.    A block has a tile; a thread 8 neighbours of two rows, then 16 of a column.
template <class F>
__global__ void cast_kernel(F* to, F* turned, float* inverse, const bf16* x, const uint32_t* largest, int parts, int R,
                            int C) {
    SHARED(uint32_t[CAST_TILE][CAST_TILE / 4 + 1], tile);    // [column][four rows], a word more against bank conflicts
    uint32_t most = 0;
    for (int i = threadIdx.x; i < parts; i += CAST_THREADS) most = largest[i] > most ? largest[i] : most;
    most = block_largest(most);
    const bool finite = most < 0x7f80;
    // At most 2^126, for zeros and where all is below 2^-110: the inverse must stay a normal float.
    const float factor = finite ? fminf(LARGEST<F> / to_float(bf16{uint16_t(most)}), 0x1p126f) : 1;
    if (blockIdx.x == 0 && blockIdx.y == 0 && threadIdx.x == 0) *inverse = finite ? 1 / factor : NAN;
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
            out.v[j] = from_float<F>(v[j] * factor);
            reinterpret_cast<F*>(tile[c + j])[r] = out.v[j];
        }
        if (to) store<8>(to + at, out);
    }
    if (!turned) return;
    __syncthreads();
    const int c = threadIdx.x / 4, r = threadIdx.x % 4 * 16;
    if (c0 + c >= C || r0 + r >= R) return;
    Vec<uint32_t, 4> out;
#pragma unroll
    for (int j = 0; j < 4; j++) out.v[j] = tile[c][r / 4 + j];
    store<4>(reinterpret_cast<uint32_t*>(turned + int64_t(c0 + c) * R + r0 + r), out);
}

// A call's scratch.
struct Casts {
    Fp8Scratch at;
    char* memory;
    explicit Casts(Fp8Scratch at) : at(at), memory(static_cast<char*>(cuda_scratch(at.bytes()))) {}
    template <class F> F* first() const { return reinterpret_cast<F*>(memory + at.CASTS); }
    template <class F> F* second() const { return reinterpret_cast<F*>(memory + at.second); }
    template <class F> F* third() const { return reinterpret_cast<F*>(memory + at.third); }
    float* inverse(int i) const { return reinterpret_cast<float*>(memory + at.CASTS - 256) + 16 * i; }

    // i: which of the call's factors this is
    template <class F> void cast(F* to, F* turned, int i, const bf16* x, int R, int C) const {
        uint32_t* largest = reinterpret_cast<uint32_t*>(memory) + i * at.PARTS;
        const int64_t n = int64_t(R) * C;
        const int parts = int(std::min<int64_t>(at.PARTS, ceil_div(n, CAST_THREADS * 8)));
        launch(largest_kernel, {unsigned(parts), CAST_THREADS}, largest, x, n);
        const dim3 tiles(unsigned(ceil_div(R, CAST_TILE)), unsigned(ceil_div(C, CAST_TILE)));
        launch(cast_kernel<F>, {tiles, CAST_THREADS}, to, turned, inverse(i), x, largest, parts, R, C);
    }
};

// ---- products -------------------------------------------------------------------------------------------------------

constexpr auto E4M3 = CUDA_R_8F_E4M3, BF16 = CUDA_R_16BF, FLOAT = CUDA_R_32F;
constexpr auto SUMS = CUBLAS_COMPUTE_32F;
constexpr auto T = CUBLAS_OP_T, N_ = CUBLAS_OP_N;
constexpr auto PLAIN = CUBLASLT_EPILOGUE_DEFAULT;

const Ops<bf16>& in_bf16() { return cuda_ops<bf16>(Dtype::bf16); }

bool takes(int N, int C, int OC, std::initializer_list<const void*> pointers) {
    uintptr_t all = 0;
    for (const void* p : pointers) all |= uintptr_t(p);
    return Fp8Scratch::takes(N, C, OC) && all % 16 == 0;
}

void forward(bf16* y, const bf16* x, const bf16* w, const bf16* b, const bf16* residual, int N, int C, int OC) {
    if (!takes(N, C, OC, {y, x, w, b, residual}))
        return in_bf16().linear_forward(y, x, w, b, residual, N, C, OC);
    const Casts casts(Fp8Scratch::forward(N, C, OC));
    e4m3 *const x8 = casts.first<e4m3>(), *const w8 = casts.second<e4m3>(), *const none = nullptr;
    casts.cast(x8, none, 0, x, N, C);
    casts.cast(w8, none, 1, w, OC, C);
    const Form f = {E4M3, BF16, SUMS, T, N_, OC, N, C, b ? CUBLASLT_EPILOGUE_BIAS : PLAIN, residual != nullptr};
    Operands operands = {w8, x8, residual, y, b};
    operands.a_scale = casts.inverse(1), operands.b_scale = casts.inverse(0), operands.kept = casts.at.kept;
    multiply(f, operands, [&](const Operands& to) {
        in_bf16().linear_forward(static_cast<bf16*>(to.d), x, w, b, residual, N, C, OC);
    });
}

void backward(bf16* dx, Into<float> dw, float* db, const bf16* dy, const bf16* x, const bf16* w, int N, int C, int OC) {
    if (!takes(N, C, OC, {dx, dw.p, dy, x, w})) return in_bf16().linear_backward(dx, dw, db, dy, x, w, N, C, OC);
    const Casts casts(Fp8Scratch::backward(N, C, OC));
    e5m2 *const dy8 = casts.first<e5m2>(), *const dy8_turned = casts.second<e5m2>();
    e4m3 *const turned = casts.third<e4m3>(), *const none = nullptr;
    casts.cast(dx ? dy8 : nullptr, dy8_turned, 0, dy, N, OC);
    auto product = [&](Form f, Operands operands, int factor, const Form& without, Operands wide) {
        f.b_e5m2 = true;
        operands.a_scale = casts.inverse(factor), operands.b_scale = casts.inverse(0);
        operands.kept = wide.kept = casts.at.kept;
        multiply(f, operands, [&](const Operands& to) {
            wide.c = to.c, wide.d = to.d;
            multiply(without, wide);
        });
    };
    if (dx) {
        casts.cast(none, turned, 1, w, OC, C);
        product({E4M3, BF16, SUMS, T, N_, C, N, OC}, {turned, dy8, nullptr, dx}, 1,
                {BF16, BF16, SUMS, N_, N_, C, N, OC}, {w, dy, nullptr, dx});
    }
    casts.cast(none, turned, 2, x, N, C);
    product({E4M3, FLOAT, SUMS, T, N_, C, OC, N, PLAIN, dw.add}, {turned, dy8_turned, dw.p, dw.p}, 2,
            {BF16, FLOAT, SUMS, N_, T, C, OC, N, PLAIN, dw.add}, {x, dy, dw.p, dw.p});
    if (db) column_sums(db, dy, N, OC);
}

const CudaEntries entries([]<class X>(Ops<X>& o, Dtype dtype) {
    if constexpr (sizeof(X) == 2)
        if (dtype == Dtype::fp8) o.linear_forward_fp8 = forward, o.linear_backward_fp8 = backward;
});
}   // namespace

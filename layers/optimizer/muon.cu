// muon.cu - the steps of whole matrices: Newton-Schulz iterations, and norms of rows.
//
// X is (k,n) with k <= n: a tall matrix is transposed at the start and at the end. An iteration has
// two symmetric products and a full one. Only the lower tiles of a symmetric product are computed,
// about k^2 n and k^3 FLOPs: grouped_gemm.cuh's kernel writes each tile and its mirror image. The
// full product is 2 k^2 n FLOPs, by cuBLASLt. With k = 768 a symmetric product has 21 tiles of
// 128 x 128, fewer than a GPU has SMs, so it takes about as long as one tile's loop.
// The other kernels are bound by memory: they move each element a few times.
#include "layers/matmul/cublaslt_gemm.cuh"
#include "layers/matmul/own_gemm.h"
#include "layers/scratch.h"
#include "layers/cuda.cuh"
#include "layers/cuda.h"
#include "muon.h"

namespace {
constexpr int TILE = 32, TILE_ROWS = 8;    // a tile's side; rows of threads in a block

// to = factor * from (rows,cols), or its transpose. The factor is `scale` or, with a norm's square
// on the device, 1 / (norm + eps).
template <bool TRANSPOSED, class To, class From>
__global__ void scaled_copy_kernel(To* to, const From* from, int rows, int cols, float scale, const double* square) {
    SHARED(float[TILE][TILE + 1], tile);
    const float factor = square ? float(1 / (sqrt(*square) + NewtonSchulz::eps)) : scale;
    const int row = blockIdx.y * TILE, column = blockIdx.x * TILE, lane = threadIdx.x % TILE,
              first = threadIdx.x / TILE;
    for (int i = first; i < TILE; i += TILE_ROWS) {
        const int r = row + i, c = column + lane;
        if (r >= rows || c >= cols) continue;
        const float x = factor * to_float(from[int64_t(r) * cols + c]);
        if constexpr (TRANSPOSED) tile[i][lane] = x;
        else to[int64_t(r) * cols + c] = from_float<To>(x);
    }
    if constexpr (!TRANSPOSED) return;
    __syncthreads();
    for (int i = first; i < TILE; i += TILE_ROWS) {
        const int r = row + lane, c = column + i;
        if (r < rows && c < cols) to[int64_t(c) * rows + r] = from_float<To>(tile[lane][i]);
    }
}
template <class To, class From>
void scaled_copy(To* to, const From* from, int rows, int cols, bool transposed, float scale, const double* square) {
    const Launch tiles = {dim3(unsigned(ceil_div(cols, TILE)), unsigned(ceil_div(rows, TILE))), TILE * TILE_ROWS};
    launch(transposed ? scaled_copy_kernel<true, To, From> : scaled_copy_kernel<false, To, From>, tiles, to, from, rows,
           cols, scale, square);
}

// b = a I + b A + c A A, given A in a and A A in b (k,k)
template <class T> __global__ void polynomial_kernel(T* b, const T* a, int64_t size, int k) {
    const int64_t i = blockIdx.x * 256ll + threadIdx.x;
    if (i >= size) return;
    const float x = float(NewtonSchulz::b) * to_float(a[i]) + float(NewtonSchulz::c) * to_float(b[i]);
    b[i] = from_float<T>(x + (i / k == i % k ? float(NewtonSchulz::a) : 0));
}

// The matrices of `work`, whose elements are floats.
template <class T> struct Work {
    T *x, *next, *a, *b;
    double* square;
    Work(float* work, int64_t size, int64_t square_size) {
        auto take = [&](int64_t n) {
            float* p = work;
            work += round_up(n, 64);
            return reinterpret_cast<T*>(p);
        };
        x = take(size), next = take(size), a = take(square_size), b = take(square_size);
        square = reinterpret_cast<double*>(take(square_size));
    }
};

template <class T, cublasComputeType_t compute>
void orthogonalize(float* x, float* work, float scale, int rows, int cols) {
    constexpr auto type = sizeof(T) == 4 ? CUDA_R_32F : CUDA_R_16BF;
    const bool tall = rows > cols;
    const int k = std::min(rows, cols), n = std::max(rows, cols);
    const int64_t square = int64_t(k) * k;
    Work<T> w(work, int64_t(rows) * cols, square);
    cuda_sum_of_squares(w.square, x, int64_t(rows) * cols);
    scaled_copy(w.x, x, rows, cols, tall, 1, w.square);
    for (int step = 0; step < NEWTON_SCHULZ_STEPS; step++) {
        own_product<T>(Product::symmetric, w.a, w.x, w.x, k, n, k, false);
        own_product<T>(Product::symmetric, w.b, w.a, w.a, k, k, k, false);
        launch(polynomial_kernel<T>, {unsigned(ceil_div(square, 256)), 256}, w.b, w.a, square, k);
        multiply({type, type, compute, CUBLAS_OP_N, CUBLAS_OP_N, n, k, k}, {w.x, w.b, nullptr, w.next});
        std::swap(w.x, w.next);
    }
    scaled_copy(x, w.x, k, n, tall, scale, nullptr);
}

// A block has a row. row_squares (rows): sums of squares after the division.
__global__ void divide_rows_kernel(double* row_squares, float* x, float* v, const Step* step, OptimizerParams a,
                                   int cols) {
    if (step->skipped) return;
    float* row = x + int64_t(blockIdx.x) * cols;
    double sum = 0;
    for (int c = threadIdx.x; c < cols; c += 256) sum += double(row[c]) * double(row[c]);
    sum = block_sum(sum);
    SHARED(float, factor);
    if (threadIdx.x == 0) {
        float& own = v[blockIdx.x];
        own = a.beta2 * own + (1 - a.beta2) * float(sum / cols);
        factor = 1 / (sqrtf(own) + a.eps);
        row_squares[blockIdx.x] = sum * double(factor) * double(factor);
    }
    __syncthreads();
    for (int c = threadIdx.x; c < cols; c += 256) row[c] *= factor;
}
// One block: *total = the sum of x (n)
__global__ void total_kernel(double* total, const double* x, int n) {
    double sum = 0;
    for (int i = threadIdx.x; i < n; i += 256) sum += x[i];
    sum = block_sum(sum);
    if (threadIdx.x == 0) *total = sum;
}
// x (n) *= scale / its root mean square, given its sum of squares
__global__ void to_size_kernel(float* x, const double* total, float scale, const Step* step, int64_t n) {
    const int64_t i = blockIdx.x * 256ll + threadIdx.x;
    if (i >= n || step->skipped || !(*total > 0)) return;
    x[i] *= float(scale * sqrt(double(n) / *total));
}
void normalize_rows(float* x, float* v, float scale, const Step* step, OptimizerParams a, int rows, int cols) {
    auto* row_squares = static_cast<double*>(cuda_scratch(normalize_rows_scratch(rows)));
    const int64_t n = int64_t(rows) * cols;
    launch(divide_rows_kernel, {unsigned(rows), 256}, row_squares, x, v, step, a, cols);
    launch(total_kernel, {1, 256}, row_squares + rows, row_squares, rows);
    launch(to_size_kernel, {unsigned(ceil_div(n, 256)), 256}, x, row_squares + rows, scale, step, n);
}

const CudaRegistration entries([]<class T>(Ops<T>& o, Dtype dtype) {
    if (dtype == Dtype::tf32) o.orthogonalize = orthogonalize<T, CUBLAS_COMPUTE_32F_FAST_TF32>;
    else o.orthogonalize = orthogonalize<T, CUBLAS_COMPUTE_32F>;
    o.normalize_rows = normalize_rows;
});
}    // namespace

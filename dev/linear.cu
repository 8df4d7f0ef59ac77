// linear.cu - `make ladders`: y = gelu(x w^T + b), from one thread per output to cuBLASLt with a
// full epilogue; the gain of fused forms in the backward pass; products of few rows.
//
// The hand-written products show the sources of a library's speed: each output needs C elements of
// x and of w. One thread per output loads all of them from the caches; in shared memory a load
// serves 64 outputs; tensor cores do 4096 FLOPs per instruction and warp, and copies run ahead.
#include "layers/matmul/gemv.cuh"
#include "layers/ptx/ptx.cuh"
#include "ladder.h"
#include "tools/selftest/linear.h"

namespace {
using T = bf16;
const Ops<T>* table;

// ---- forward with GELU --------------------------------------------------------------------------

__device__ void finish(T* y, T* pre, const T* b, float sum, int64_t n, int o, int OC) {
    sum += to_float(b[o]);
    pre[n * OC + o] = to_bf16(sum);
    y[n * OC + o] = to_bf16(gelu(sum));
}

// 0: neighbouring threads share x and read w a row apart (not coalesced).
__global__ void thread_kernel(T* y, T* pre, const T* x, const T* w, const T* b, int N, int C, int OC) {
    const int64_t i = blockIdx.x * int64_t(256) + threadIdx.x, n = i / OC;
    const int o = int(i % OC);
    if (n >= N) return;
    float sum = 0;
    for (int c = 0; c < C; c++) sum += to_float(x[n * C + c]) * to_float(w[int64_t(o) * C + c]);
    finish(y, pre, b, sum, n, o, OC);
}
void a_thread(T* y, T* pre, const T* x, const T* w, const T* b, int N, int C, int OC, Precision) {
    launch(thread_kernel, {unsigned(ceil_div(int64_t(N) * OC, 256)), 256}, y, pre, x, w, b, N, C, OC);
}

// 1: 64 x 64 outputs per block, 4 x 4 per thread: 8 loads from shared memory for 16 multiply-adds.
__global__ void tile_kernel(T* y, T* pre, const T* x, const T* w, const T* b, int N, int C, int OC) {
    constexpr int K = 16;
    SHARED(float[K][65], xs);    // 65, not 64: column writes without bank conflicts
    SHARED(float[K][65], ws);
    const int64_t n0 = blockIdx.x * int64_t(64);
    const int o0 = blockIdx.y * 64, tx = threadIdx.x % 16, ty = threadIdx.x / 16;
    float sum[4][4] = {};
    for (int c0 = 0; c0 < C; c0 += K) {
        for (int i = threadIdx.x; i < 64 * K; i += 256) {
            const int row = i / K, c = c0 + i % K;
            xs[i % K][row] = n0 + row < N && c < C ? to_float(x[(n0 + row) * C + c]) : 0;
            ws[i % K][row] = o0 + row < OC && c < C ? to_float(w[int64_t(o0 + row) * C + c]) : 0;
        }
        __syncthreads();
        for (int k = 0; k < K; k++)
            for (int i = 0; i < 4; i++)
                for (int j = 0; j < 4; j++) sum[i][j] += xs[k][ty + 16 * i] * ws[k][tx + 16 * j];
        __syncthreads();
    }
    for (int i = 0; i < 4; i++)
        for (int j = 0; j < 4; j++)
            if (n0 + ty + 16 * i < N && o0 + tx + 16 * j < OC)
                finish(y, pre, b, sum[i][j], n0 + ty + 16 * i, o0 + tx + 16 * j, OC);
}
void a_tile(T* y, T* pre, const T* x, const T* w, const T* b, int N, int C, int OC, Precision) {
    launch(tile_kernel, {{unsigned(ceil_div(N, 64)), unsigned(ceil_div(OC, 64))}, 256}, y, pre, x, w, b, N, C, OC);
}

// 2: 128 x 128 outputs per block, 64 x 32 per warp; tiles of 32 columns of x and w in three stages,
// two of them in flight. A row has 64 bytes, and its 16-byte chunks are permuted, so that ldmatrix
// reads one chunk of eight rows from all 32 banks.
constexpr int STAGES = 3, KT = 32;
struct Tiles {
    T x[STAGES][128][KT], w[STAGES][128][KT];
};
__device__ int chunk_at(int row, int chunk) { return (chunk ^ (row / 2 % 4)) * 8; }

__device__ void copy_tile(T (&to)[128][KT], const T* from, int64_t first, int64_t rows, int c0, int C) {
    for (int i = threadIdx.x; i < 128 * 4; i += 256) {
        const int row = i / 4, c = c0 + i % 4 * 8;
        const bool valid = first + row < rows && c < C;
        cp_async_16(&to[row][chunk_at(row, i % 4)], valid ? from + (first + row) * C + c : from, valid);
    }
}

__global__ void __launch_bounds__(256, 1)
    mma_kernel(T* y, T* pre, const T* x, const T* w, const T* b, int N, int C, int OC) {    // C, OC: multiples of 8
    Tiles& s = dynamic_shared<Tiles>();
    const int64_t n0 = blockIdx.y * int64_t(128);
    const int o0 = blockIdx.x * 128, lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const int warp_n = warp / 4 * 64, warp_o = warp % 4 * 32, tiles = (C + KT - 1) / KT;
    float sum[4][4][4] = {};
    auto fetch = [&](int tile) {
        copy_tile(s.x[tile % STAGES], x, n0, N, tile * KT, C);
        copy_tile(s.w[tile % STAGES], w, o0, OC, tile * KT, C);
        cp_async_commit();
    };
    for (int tile = 0; tile < STAGES - 1; tile++) fetch(tile);
    for (int tile = 0; tile < tiles; tile++) {
        cp_async_wait<STAGES - 2>();
        __syncthreads();
        fetch(tile + STAGES - 1);    // past the last tile: zeros
        for (int k = 0; k < KT / 8; k += 2) {
            uint32_t a[4][4], bs[2][4];
#pragma unroll
            for (int i = 0; i < 4; i++) {
                const int row = warp_n + i * 16 + lane % 16;
                ldmatrix_x4(a[i], &s.x[tile % STAGES][row][chunk_at(row, k + lane / 16)]);
            }
#pragma unroll
            for (int j = 0; j < 2; j++) {
                const int row = warp_o + j * 16 + lane / 16 * 8 + lane % 8;
                ldmatrix_x4(bs[j], &s.w[tile % STAGES][row][chunk_at(row, k + lane / 8 % 2)]);
            }
#pragma unroll
            for (int i = 0; i < 4; i++)
#pragma unroll
                for (int j = 0; j < 4; j++) {
                    const uint32_t pair[2] = {bs[j / 2][j % 2 * 2], bs[j / 2][j % 2 * 2 + 1]};
                    mma_m16n8k16(sum[i][j], a[i], pair);
                }
        }
    }
#pragma unroll
    for (int i = 0; i < 4; i++)
#pragma unroll
        for (int j = 0; j < 4; j++)
#pragma unroll
            for (int e = 0; e < 4; e++) {
                const int64_t n = n0 + warp_n + i * 16 + lane / 4 + e / 2 * 8;
                const int o = o0 + warp_o + j * 8 + lane % 4 * 2 + e % 2;
                if (n < N && o < OC) finish(y, pre, b, sum[i][j][e], n, o, OC);
            }
}
void an_mma_tile(T* y, T* pre, const T* x, const T* w, const T* b, int N, int C, int OC, Precision) {
    const dim3 grid(unsigned(ceil_div(OC, 128)), unsigned(ceil_div(N, 128)));
    launch(mma_kernel, {grid, 256, sizeof(Tiles)}, y, pre, x, w, b, N, C, OC);
}

// 3: the library's product, then bias and GELU in one more pass over memory.
__global__ void bias_gelu_kernel(T* y, T* pre, const T* b, int64_t n, int OC) {
    const int64_t i = (blockIdx.x * int64_t(256) + threadIdx.x) * 8;
    if (i >= n) return;
    Vec<T> v = load<8>(pre + i), out;
    const Vec<T> bias = load<8>(b + i % OC);
    for (int j = 0; j < 8; j++) {
        const float sum = v[j] + bias[j];
        v.set(j, sum), out.set(j, gelu(sum));
    }
    store<8>(pre + i, v), store<8>(y + i, out);
}
void product_then_kernel(T* y, T* pre, const T* x, const T* w, const T* b, int N, int C, int OC, Precision) {
    const int64_t n = int64_t(N) * OC;
    table->linear_forward(pre, x, w, nullptr, nullptr, N, C, OC, {});
    launch(bias_gelu_kernel, {unsigned(ceil_div(n, 256 * 8)), 256}, y, pre, b, n, OC);
}
void linear_then_gelu(T* y, T* pre, const T* x, const T* w, const T* b, int N, int C, int OC, Precision) {
    table->linear_forward(pre, x, w, b, nullptr, N, C, OC, {});
    table->activation_forward(y, pre, Act::gelu_tanh, false, N, OC);
}

std::string title(const char* op, int N, int C, int OC) {
    return std::string(op) + " bf16 N=" + std::to_string(N) + " C=" + std::to_string(C) + " OC=" + std::to_string(OC);
}

void forward_ladder(int N, int C, int OC) {
    const Ops<T>& op = *table;
    Ladder ladder(title("linear_gelu_forward", N, C, OC), 2.0 * N * C + 2.0 * OC * C + 4.0 * N * OC, 2.0 * N * C * OC);
    const Sets<T> x(op, ladder.sets, int64_t(N) * C), w(op, 1, int64_t(OC) * C, 0.05), b(op, 1, OC);
    const Sets<T> y(op, ladder.sets, int64_t(N) * OC), pre(op, ladder.sets, int64_t(N) * OC);
    for (auto [name, f] :
         {Rung{"a thread an output", a_thread}, Rung{"64 x 64 in shared memory", a_tile},
          Rung{"mma.sync, 128 x 128, three stages", an_mma_tile},
          Rung{"cuBLASLt, then bias and GELU", product_then_kernel},
          Rung{"cuBLASLt with bias, then GELU", linear_then_gelu}, Rung{"production", op.linear_gelu_forward}})
        ladder.rung(name, check_linear_gelu_forward(with(op, &Ops<T>::linear_gelu_forward, f), 150, 136, 200),
                    [&, f = f](int set) { f(y[set], pre[set], x[set], w[0], b[0], N, C, OC, {}); });
}

// ---- backward -----------------------------------------------------------------------------------

// One thread per column, over all rows.
__global__ void column_kernel(float* out, const T* x, int N, int C) {
    const int c = blockIdx.x * 32 + threadIdx.x;
    if (c >= C) return;
    float sum = 0;
    for (int64_t n = 0; n < N; n++) sum += to_float(x[n * C + c]);
    out[c] += sum;
}
void backward_column(T* dx, GradTarget<float> dw, float* db, const T* dy, const T* x, const T* w, int N, int C, int OC,
                     Precision) {
    table->linear_backward(dx, dw, nullptr, dy, x, w, N, C, OC, {});
    launch(column_kernel, {unsigned(ceil_div(OC, 32)), 32}, db, dy, N, OC);
}
void backward_sums(T* dx, GradTarget<float> dw, float* db, const T* dy, const T* x, const T* w, int N, int C, int OC,
                   Precision) {
    table->linear_backward(dx, dw, nullptr, dy, x, w, N, C, OC, {});
    column_sums(db, dy, N, OC);
}
void backward_ladder(int N, int C, int OC) {
    const Ops<T>& op = *table;
    Ladder ladder(title("linear_backward", N, C, OC), 4.0 * N * C + 2.0 * N * OC + 10.0 * OC * C, 4.0 * N * C * OC);
    const int64_t n = int64_t(N) * C;
    const Sets<T> x(op, ladder.sets, n), w(op, 1, int64_t(OC) * C, 0.05), dx(op, ladder.sets, n);
    const Sets<T> dy(op, ladder.sets, int64_t(N) * OC);
    const Sets<float> dw(op, 1, int64_t(OC) * C), db(op, 1, OC);
    for (auto [name, f] : {Rung{"products, db by a thread a column", backward_column},
                           Rung{"products, db by column_sums", backward_sums}, Rung{"production", op.linear_backward}})
        ladder.rung(name, check_linear_backward(with(op, &Ops<T>::linear_backward, f), 150, 72, 104, true, true),
                    [&, f = f](int set) {
                        f(dx[set], {dw[0], true}, db[0], dy[set], x[set], w[0], N, C, OC, {});
                    });
}

void gelu_backward_steps(T* dpre, GradTarget<float> dw, float* db, float* dpre_sum, const T* dy, const T* x, const T* w,
                         const T* pre, int N, int C, int OC) {
    table->linear_backward(dpre, dw, db, dy, x, w, N, C, OC, {});
    table->activation_backward(dpre, dpre, pre, Act::gelu_tanh, false, N, C);
    column_sums(dpre_sum, dpre, N, C);
}
void gelu_backward_ladder(int N, int C, int OC) {
    const Ops<T>& op = *table;
    const double bytes = 6.0 * N * C + 2.0 * N * OC + 10.0 * OC * C;
    Ladder ladder(title("linear_gelu_backward", N, C, OC), bytes, 4.0 * N * C * OC);
    const int64_t n = int64_t(N) * C;
    const Sets<T> x(op, ladder.sets, n), pre(op, ladder.sets, n), dpre(op, ladder.sets, n);
    const Sets<T> w(op, 1, int64_t(OC) * C, 0.05), dy(op, ladder.sets, int64_t(N) * OC);
    const Sets<float> dw(op, 1, int64_t(OC) * C), db(op, 1, OC), sum(op, 1, C);
    for (auto [name, f] : {Rung{"in steps", gelu_backward_steps}, Rung{"production", op.linear_gelu_backward}})
        ladder.rung(name, check_linear_gelu_backward(with(op, &Ops<T>::linear_gelu_backward, f), 150, 72, 104),
                    [&, f = f](int set) {
                        f(dpre[set], {dw[0], true}, db[0], sum[0], dy[set], x[set], w[0], pre[set], N, C, OC);
                    });
}

// ---- few rows -----------------------------------------------------------------------------------

// One thread per output: neighbouring threads read w a row apart (not coalesced).
__global__ void row_thread_kernel(T* y, const T* x, const T* w, const T* b, const T* residual, int N, int C, int OC) {
    const int i = blockIdx.x * 256 + threadIdx.x, n = i / OC, o = i % OC;
    if (n >= N) return;
    float sum = (b ? to_float(b[o]) : 0) + (residual ? to_float(residual[i]) : 0);
    for (int c = 0; c < C; c++) sum += to_float(x[int64_t(n) * C + c]) * to_float(w[int64_t(o) * C + c]);
    y[i] = to_bf16(sum);
}
void row_thread(T* y, const T* x, const T* w, const T* b, const T* residual, int N, int C, int OC, Precision) {
    launch(row_thread_kernel, {unsigned(ceil_div(int64_t(N) * OC, 256)), 256}, y, x, w, b, residual, N, C, OC);
}
// One warp per output, 2 bytes per lane and load.
__global__ void row_warp_kernel(T* y, const T* x, const T* w, const T* b, const T* residual, int N, int C, int OC) {
    const int i = blockIdx.x * 8 + threadIdx.x / 32, n = i / OC, o = i % OC, lane = threadIdx.x % 32;
    if (n >= N) return;
    float sum = 0;
    for (int c = lane; c < C; c += 32) sum += to_float(x[int64_t(n) * C + c]) * to_float(w[int64_t(o) * C + c]);
    sum = warp_sum(sum);
    if (lane == 0) y[i] = to_bf16(sum + (b ? to_float(b[o]) : 0) + (residual ? to_float(residual[i]) : 0));
}
void row_warp(T* y, const T* x, const T* w, const T* b, const T* residual, int N, int C, int OC, Precision) {
    launch(row_warp_kernel, {unsigned(ceil_div(int64_t(N) * OC, 8)), 256}, y, x, w, b, residual, N, C, OC);
}
void up_to_eight(T* y, const T* x, const T* w, const T* b, const T* residual, int N, int C, int OC, Precision) {
    gemv<T, 8>(y, nullptr, x, w, b, residual, N, C, OC);
}

// GEMV_ROWS should be the largest N where gemv is faster than cuBLASLt, which is used from
// GEMV_ROWS + 1 rows on; cuBLASLt's time hardly depends on N here.
void rows_ladder(int C, int OC) {
    const Ops<T>& op = *table;
    const int ROWS = 8;
    Ladder ladder("linear_forward of few rows bf16 C=" + std::to_string(C) + " OC=" + std::to_string(OC), 2.0 * OC * C);
    const Sets<T> x(op, ladder.sets, ROWS * C), y(op, ladder.sets, ROWS * OC), b(op, 1, OC);
    const Sets<T> w(op, ladder.sets, int64_t(OC) * C, 0.05);
    auto rung = [&](const std::string& name, auto f, int N) {
        ladder.rung(name + ", N=" + std::to_string(N),
                    check_linear_forward(with(op, &Ops<T>::linear_forward, f), N, 1544, 19, true, Residual::apart),
                    [&](int set) { f(y[set], x[set], w[set], b[0], nullptr, N, C, OC, {}); });
    };
    rung("a thread an output", row_thread, 1);
    rung("a warp an output", row_warp, 1);
    for (int N = 1; N <= ROWS; N++) {
        rung("gemv", up_to_eight, N);
        if (N > GEMV_ROWS) rung("cuBLASLt", op.linear_forward, N);
    }
}
}    // namespace

int main() {
    if (!ladder_open()) return int(Exit::device);
    table = &cuda_ops<T>(Dtype::bf16);
    const int N = ladder_size(16384, 16), C = ladder_size(768, 64);
    forward_ladder(N, C, 4 * C);
    backward_ladder(N, C, 3 * C);
    gelu_backward_ladder(N, 4 * C, C);
    rows_ladder(C, ladder_size(50304, 64));    // GPT-2's head
    rows_ladder(C, C);
    rows_ladder(4 * C, C);
    return ladder_result();
}

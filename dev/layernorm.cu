// layernorm.cu - the ladder of LayerNorm, from one thread per row to layers/norm.cu; and three ways
// to add the residual. Bound by memory once enough loads are in flight: forward moves 2 N C
// elements, backward 4 N C.
#include "ladder.h"
#include "tools/selftest/norm.h"

namespace {
using T = bf16;
constexpr int W = VEC<T>;

// ---- forward ------------------------------------------------------------------------------------

// 0: neighbouring threads read a row apart: each 2 bytes cost a 32-byte sector, in all 3 passes.
__global__ void forward_thread_kernel(T* y, float* mean, float* rstd, const T* x, const T* w, const T* b, float eps,
                                      int N, int C) {
    const int64_t n = blockIdx.x * int64_t(blockDim.x) + threadIdx.x;
    if (n >= N) return;
    const T* xn = x + n * C;
    float m = 0, v = 0;
    for (int c = 0; c < C; c++) m += to_float(xn[c]);
    m /= float(C);
    for (int c = 0; c < C; c++) v += (to_float(xn[c]) - m) * (to_float(xn[c]) - m);
    const float r = rsqrtf(v / float(C) + eps);
    for (int c = 0; c < C; c++) y[n * C + c] = to_bf16((to_float(xn[c]) - m) * r * to_float(w[c]) + to_float(b[c]));
    mean[n] = m, rstd[n] = r;
}
void forward_thread(T* y, float* mean, float* rstd, const T* x, const T* w, const T* b, Norm norm, int N, int C) {
    launch(forward_thread_kernel, {unsigned(ceil_div(N, 128)), 128}, y, mean, rstd, x, w, b, norm.eps, N, C);
}

// Sum over 256 threads by halving in shared memory: ten barriers.
__device__ float tree_sum(float x) {
    SHARED(float[256], parts);
    parts[threadIdx.x] = x;
    for (int half = 128; half; half /= 2) {
        __syncthreads();
        if (int(threadIdx.x) < half) parts[threadIdx.x] += parts[threadIdx.x + half];
    }
    __syncthreads();
    const float sum = parts[0];
    __syncthreads();
    return sum;
}

// 1: whole sectors, but 2 bytes per thread and access, and most time is spent at barriers.
__global__ void forward_block_kernel(T* y, float* mean, float* rstd, const T* x, const T* w, const T* b, float eps,
                                     int C) {
    const int64_t n = blockIdx.x;
    const T* xn = x + n * C;
    float s = 0, v = 0;
    for (int c = threadIdx.x; c < C; c += 256) s += to_float(xn[c]);
    const float m = tree_sum(s) / float(C);
    for (int c = threadIdx.x; c < C; c += 256) v += (to_float(xn[c]) - m) * (to_float(xn[c]) - m);
    const float r = rsqrtf(tree_sum(v) / float(C) + eps);
    for (int c = threadIdx.x; c < C; c += 256)
        y[n * C + c] = to_bf16((to_float(xn[c]) - m) * r * to_float(w[c]) + to_float(b[c]));
    if (threadIdx.x == 0) mean[n] = m, rstd[n] = r;
}
void forward_block(T* y, float* mean, float* rstd, const T* x, const T* w, const T* b, Norm norm, int N, int C) {
    launch(forward_block_kernel, {unsigned(N), 256}, y, mean, rstd, x, w, b, norm.eps, C);
}

// Calls f(c, vector) for each vector of a warp's row.
template <class F> __device__ void each_vector(const T* row, int C, F f) {
    for (int c = threadIdx.x % 32 * W; c < C; c += 32 * W) f(c, load<W>(row + c));
}

// 2: 16 bytes per thread and access, shuffles instead of barriers. x is read three times, twice
// from L1. A residual, if not null, is added as well: x2 = x + residual.
__global__ void forward_warp_kernel(T* y, T* x2, float* mean, float* rstd, const T* x, const T* residual, const T* w,
                                    const T* b, float eps, int N, int C) {
    const int64_t n = blockIdx.x * int64_t(4) + threadIdx.x / 32;
    if (n >= N) return;
    if (residual) {
        each_vector(x + n * C, C, [&](int c, Vec<T> v) {
            const Vec<T> more = load<W>(residual + n * C + c);
            for (int i = 0; i < W; i++) v.set(i, v[i] + more[i]);
            store<W>(x2 + n * C + c, v);
        });
        x = x2;    // a thread reads its own writes
    }
    float s = 0, q = 0;
    each_vector(x + n * C, C, [&](int, Vec<T> v) {
        for (int i = 0; i < W; i++) s += v[i];
    });
    const float m = warp_sum(s) / float(C);
    each_vector(x + n * C, C, [&](int, Vec<T> v) {
        for (int i = 0; i < W; i++) q += (v[i] - m) * (v[i] - m);
    });
    const float r = rsqrtf(warp_sum(q) / float(C) + eps);
    each_vector(x + n * C, C, [&](int c, Vec<T> v) {
        const Vec<T> weight = load<W>(w + c), bias = load<W>(b + c);
        for (int i = 0; i < W; i++) v.set(i, (v[i] - m) * r * weight[i] + bias[i]);
        store<W>(y + n * C + c, v);
    });
    if (threadIdx.x % 32 == 0) mean[n] = m, rstd[n] = r;
}
void forward_warp(T* y, float* mean, float* rstd, const T* x, const T* w, const T* b, Norm norm, int N, int C) {
    T* const none = nullptr;
    launch(forward_warp_kernel, {unsigned(ceil_div(N, 4)), 128}, y, none, mean, rstd, x, none, w, b, norm.eps, N, C);
}

void forward_ladder(const Ops<T>& op, int N, int C) {
    Ladder ladder("norm_forward bf16 N=" + std::to_string(N) + " C=" + std::to_string(C), 2.0 * 2 * N * C);
    const int64_t n = int64_t(N) * C;
    const Sets<T> x(op, ladder.sets, n), y(op, ladder.sets, n), w(op, 1, C), b(op, 1, C);
    const Sets<float> mean(op, 1, N), rstd(op, 1, N);
    for (auto [name, f] :
         {Rung{"a thread a row", forward_thread}, Rung{"a block a row", forward_block},
          Rung{"a warp a row, vectors", forward_warp}, Rung{"x in registers (production)", op.norm_forward}})
        ladder.rung(name, check_norm_forward(with(op, &Ops<T>::norm_forward, f), 33, C),
                    [&, f = f](int set) { f(y[set], mean[0], rstd[0], x[set], w[0], b[0], Norm(), N, C); });
}

// ---- backward -----------------------------------------------------------------------------------

__global__ void backward_thread_kernel(T* dx, const T* dy, const T* x, const T* w, const float* mean, const float* rstd,
                                       int N, int C) {
    const int64_t n = blockIdx.x * int64_t(blockDim.x) + threadIdx.x;
    if (n >= N) return;
    const float m = mean[n], r = rstd[n];
    float g_sum = 0, gx_sum = 0;
    for (int c = 0; c < C; c++) {
        const float g = to_float(dy[n * C + c]) * to_float(w[c]);
        g_sum += g, gx_sum += g * (to_float(x[n * C + c]) - m) * r;
    }
    for (int c = 0; c < C; c++) {
        const float g = to_float(dy[n * C + c]) * to_float(w[c]), xhat = (to_float(x[n * C + c]) - m) * r;
        dx[n * C + c] = to_bf16(to_float(dx[n * C + c]) + r * (g - g_sum / float(C) - xhat * gx_sum / float(C)));
    }
}
// One thread per column, over all rows.
__global__ void parameters_kernel(float* dw, float* db, const T* dy, const T* x, const float* mean, const float* rstd,
                                  int N, int C) {
    const int c = blockIdx.x * blockDim.x + threadIdx.x;
    if (c >= C) return;
    float w = 0, b = 0;
    for (int64_t n = 0; n < N; n++) {
        const float d = to_float(dy[n * C + c]);
        w += d * (to_float(x[n * C + c]) - mean[n]) * rstd[n], b += d;
    }
    dw[c] += w, db[c] += b;
}
// 0: reads x and dy twice, and one thread sums a whole column.
void backward_thread(T* dx, float* dw, float* db, const T* dy, const T* x, const T* w, const float* mean,
                     const float* rstd, Norm, int N, int C) {
    launch(backward_thread_kernel, {unsigned(ceil_div(N, 128)), 128}, dx, dy, x, w, mean, rstd, N, C);
    launch(parameters_kernel, {unsigned(ceil_div(C, 32)), 32}, dw, db, dy, x, mean, rstd, N, C);
}

// 1: one pass, but all rows add to the same 2 C numbers in arbitrary order: bits vary by run.
__global__ void backward_atomic_kernel(T* dx, float* dw, float* db, const T* dy, const T* x, const T* w,
                                       const float* mean, const float* rstd, int C) {
    const int64_t row = int64_t(blockIdx.x) * C;
    const float m = mean[blockIdx.x], r = rstd[blockIdx.x];
    float g_sum = 0, gx_sum = 0;
    for (int c = threadIdx.x; c < C; c += 256) {
        const float d = to_float(dy[row + c]), xhat = (to_float(x[row + c]) - m) * r, g = d * to_float(w[c]);
        g_sum += g, gx_sum += g * xhat;
        atomicAdd(dw + c, d * xhat);
        atomicAdd(db + c, d);
    }
    const float g_mean = tree_sum(g_sum) / float(C), gx_mean = tree_sum(gx_sum) / float(C);
    for (int c = threadIdx.x; c < C; c += 256) {
        const float g = to_float(dy[row + c]) * to_float(w[c]), xhat = (to_float(x[row + c]) - m) * r;
        dx[row + c] = to_bf16(to_float(dx[row + c]) + r * (g - g_mean - xhat * gx_mean));
    }
}
void backward_atomic(T* dx, float* dw, float* db, const T* dy, const T* x, const T* w, const float* mean,
                     const float* rstd, Norm, int N, int C) {
    launch(backward_atomic_kernel, {unsigned(N), 256}, dx, dw, db, dy, x, w, mean, rstd, C);
}

// 2: dx by one warp per row, in vectors; dw and db in a second pass over 64 ranges of rows: 5 N C
// elements are read, not 3 N C.
__global__ void backward_warp_kernel(T* dx, const T* dy, const T* x, const T* w, const float* mean, const float* rstd,
                                     int N, int C, float inv_C) {
    const int64_t n = blockIdx.x * int64_t(4) + threadIdx.x / 32;
    if (n >= N) return;
    const float m = mean[n], r = rstd[n];
    float g_sum = 0, gx_sum = 0;
    each_vector(dy + n * C, C, [&](int c, Vec<T> d) {
        const Vec<T> weight = load<W>(w + c), xn = load<W>(x + n * C + c);
        for (int i = 0; i < W; i++) g_sum += d[i] * weight[i], gx_sum += d[i] * weight[i] * (xn[i] - m) * r;
    });
    const float g_mean = warp_sum(g_sum) * inv_C, gx_mean = warp_sum(gx_sum) * inv_C;
    each_vector(dy + n * C, C, [&](int c, Vec<T> d) {
        const Vec<T> weight = load<W>(w + c), xn = load<W>(x + n * C + c), old = load<W>(dx + n * C + c);
        for (int i = 0; i < W; i++) d.set(i, old[i] + r * (d[i] * weight[i] - g_mean - (xn[i] - m) * r * gx_mean));
        store<W>(dx + n * C + c, d);
    });
}
__global__ void ranges_kernel(float* partial, const T* dy, const T* x, const float* mean, const float* rstd, int N,
                              int C) {
    const int c = blockIdx.x * blockDim.x + threadIdx.x, ranges = gridDim.y;
    if (c >= C) return;
    float w = 0, b = 0;
    for (int64_t n = blockIdx.y; n < N; n += ranges) {
        const float d = to_float(dy[n * C + c]);
        w += d * (to_float(x[n * C + c]) - mean[n]) * rstd[n], b += d;
    }
    partial[int64_t(blockIdx.y) * 2 * C + c] = w, partial[int64_t(blockIdx.y) * 2 * C + C + c] = b;
}
__global__ void add_ranges_kernel(float* dw, float* db, const float* partial, int ranges, int C) {
    const int c = blockIdx.x * blockDim.x + threadIdx.x;
    if (c >= 2 * C) return;
    float sum = 0;
    for (int p = 0; p < ranges; p++) sum += partial[int64_t(p) * 2 * C + c];
    (c < C ? dw[c] : db[c - C]) += sum;
}
void backward_warp(T* dx, float* dw, float* db, const T* dy, const T* x, const T* w, const float* mean,
                   const float* rstd, Norm, int N, int C) {
    const unsigned ranges = 64;
    float* partial = static_cast<float*>(cuda_scratch(int64_t(ranges) * 2 * C * 4));
    launch(backward_warp_kernel, {unsigned(ceil_div(N, 4)), 128}, dx, dy, x, w, mean, rstd, N, C, 1 / float(C));
    launch(ranges_kernel, {{unsigned(ceil_div(C, 128)), ranges}, 128}, partial, dy, x, mean, rstd, N, C);
    launch(add_ranges_kernel, {unsigned(ceil_div(2 * C, 128)), 128}, dw, db, partial, int(ranges), C);
}

void backward_ladder(const Ops<T>& op, int N, int C) {
    Ladder ladder("norm_backward bf16 N=" + std::to_string(N) + " C=" + std::to_string(C), 4.0 * 2 * N * C);
    const int64_t n = int64_t(N) * C;
    const Sets<T> x(op, ladder.sets, n), dy(op, ladder.sets, n), dx(op, ladder.sets, n), w(op, 1, C);
    const Sets<float> mean(op, 1, N), rstd(op, 1, N), dw(op, 1, C), db(op, 1, C);
    for (auto [name, f] : {Rung{"a thread a row, a thread a column", backward_thread},
                           Rung{"a block a row, atomics on dw and db", backward_atomic},
                           Rung{"a warp a row; dw and db in a second pass", backward_warp},
                           Rung{"one pass (production)", op.norm_backward}})
        ladder.rung(name, check_norm_backward(with(op, &Ops<T>::norm_backward, f), 33, C), [&, f = f](int set) {
            f(dx[set], dw[0], db[0], dy[set], x[set], w[0], mean[0], rstd[0], Norm(), N, C);
        });
}

// ---- the residual -------------------------------------------------------------------------------

// x2 = x + p, y = LayerNorm(x2); p is a product's output.
typedef void (*Residual)(const Ops<T>&, T* y, T* x2, float* mean, float* rstd, const T* x, const T* p, const T* w,
                         const T* b, int N, int C);

__global__ void add_kernel(T* x2, const T* x, const T* p, int64_t n) {
    const int64_t i = (blockIdx.x * int64_t(256) + threadIdx.x) * W;
    if (i >= n) return;    // n is a multiple of W
    Vec<T> v = load<W>(x + i), more = load<W>(p + i);
    for (int j = 0; j < W; j++) v.set(j, v[j] + more[j]);
    store<W>(x2 + i, v);
}
void added_before(const Ops<T>& op, T* y, T* x2, float* mean, float* rstd, const T* x, const T* p, const T* w,
                  const T* b, int N, int C) {
    launch(add_kernel, {unsigned(ceil_div(int64_t(N) * C, 256 * W)), 256}, x2, x, p, int64_t(N) * C);
    op.norm_forward(y, mean, rstd, x2, w, b, Norm(), N, C);
}
void fused(const Ops<T>&, T* y, T* x2, float* mean, float* rstd, const T* x, const T* p, const T* w, const T* b, int N,
           int C) {
    launch(forward_warp_kernel, {unsigned(ceil_div(N, 4)), 128}, y, x2, mean, rstd, x, p, w, b, 1e-5f, N, C);
}

Check check_residual(const Ops<T>& op, Residual f, int N, int C) {
    const Memory m(op);
    Check check;
    check.op = "residual + layernorm", check.shape = "N=" + std::to_string(N) + " C=" + std::to_string(C);
    const int64_t n = int64_t(N) * C;
    const Numbers x = rounded<T>(random_normal(n, 1)), p = rounded<T>(random_normal(n, 2)),
                  w = rounded<T>(random_normal(C, 3)), b = rounded<T>(random_normal(C, 4));
    Numbers sum(x), y(x.size());
    for (size_t i = 0; i < sum.size(); i++) sum[i] += p[i];
    sum = rounded<T>(sum);
    std::vector<float> mean(static_cast<size_t>(N)), rstd(mean);
    reference_ops().norm_forward(y.data(), mean.data(), rstd.data(), sum.data(), w.data(), b.data(), Norm(), N, C);
    Array<T> ax(m, x), ap(m, p), aw(m, w), ab(m, b), ax2(m, n), ay(m, n);
    Array<float> amean(m, N), arstd(m, N);
    f(op, ay, ax2, amean, arstd, ax, ap, aw, ab, N, C);
    check.expect("x2", ax2, sum, ROUNDING<T>);
    check.expect("y", ay, y, ROUNDING<T>);
    return check;
}

void residual_ladder(const Ops<T>& op, int N, int C) {
    const double row = 2.0 * N * C;    // bytes of an (N,C) array
    Ladder ladder("residual and layernorm bf16 N=" + std::to_string(N) + " C=" + std::to_string(C) +
                      ", after a product that writes N C",
                  4 * row);
    const int64_t n = int64_t(N) * C;
    const Sets<T> x(op, ladder.sets, n), p(op, ladder.sets, n), x2(op, ladder.sets, n), y(op, ladder.sets, n);
    const Sets<T> w(op, 1, C);
    const Sets<float> mean(op, 1, N), rstd(op, 1, N);
    auto rung = [&](const char* name, Residual f, double moves) {
        ladder.rung(
            name, check_residual(op, f, 33, C),
            [&](int set) { f(op, y[set], x2[set], mean[0], rstd[0], x[set], p[set], w[0], w[0], N, C); }, moves);
    };
    rung("added, then normalised: 5 N C", added_before, 5 * row);
    rung("in one kernel: 4 N C", fused, 4 * row);
    // The product reads the residual, too, beside its multiplications: 3 N C in all, the fused
    // kernel 4.
    ladder.rung(
        "added by the product (production): 2 N C", check_norm_forward(op, 33, C),
        [&](int set) { op.norm_forward(y[set], mean[0], rstd[0], x2[set], w[0], w[0], Norm(), N, C); }, 2 * row);
}
}    // namespace

int main() {
    if (!ladder_open()) return int(Exit::device);
    const Ops<T>& op = cuda_ops<T>(Dtype::bf16);
    for (int C : {768, 1600}) {
        const int N = ladder_size(32768, 8);
        forward_ladder(op, N, C);
        backward_ladder(op, N, C);
        residual_ladder(op, N, C);
    }
    return ladder_result();
}

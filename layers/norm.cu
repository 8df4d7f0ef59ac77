// norm.cu - LayerNorm and RMSNorm over rows of C.   y = xhat * (w + plus) + b, xhat = (x - mean)
// rstd, in RMSNorm mean 0. Gradients: layers/operations.inc.
//
// Forward: one warp per row, or one block per row if C is large. x stays in registers, so the
// variance is a second pass over registers, not E[x^2] - E[x]^2, which cancels. Bound by memory:
// reads N C, writes N C elements + 8 N bytes.
//
// Backward: a warp has a row of at most 128 16-byte vectors; for longer rows a block has up to 4
// rows at once. A thread has the same columns of all its rows, so their sums for dw and db stay in
// registers. Each block writes its sums to a row of scratch, and a second kernel adds the rows in
// order. The number of blocks is a constant, so the bits depend on N and C alone, not on the GPU.
// Bound by memory: reads 3 N C, writes N C elements, and up to 2 * PARTS * 8 C bytes of partial
// sums that stay in L2. On an H200 (2026-11-27) 32768 rows of 768 take 57 us, and 86 us by the
// block kernel, whose few warps wait for each other in every step. A copy of as many bytes takes 47
// us.
//
// The product before this layer adds the residual (linear_forward) and reads N C more for it: 4 N C
// of traffic from the product's output to y. A fused add + LayerNorm would move 5 N C, as it reads
// the product's output back.
#include <algorithm>

#include "layers/matmul/norm_rows.cuh"
#include "layers/ptx/sum_parts.cuh"
#include "layers/ptx/ptx.cuh"

namespace {
// Kernels are compiled for the two usual norms, without unneeded operands, and for all others.
enum class Kind { layer, rms, any };    // layer: w, b, plus 0. rms: no b
Kind kind_of(Norm norm, bool w, bool b) {
    if (norm.rms) return w && !b ? Kind::rms : Kind::any;
    return w && b && norm.plus == 0 ? Kind::layer : Kind::any;
}
template <Kind K> __device__ inline bool is_rms(Norm norm) { return K == Kind::rms || (K == Kind::any && norm.rms); }
template <class F> void for_kind(Kind kind, F f) {
    if (kind == Kind::layer) f(std::integral_constant<Kind, Kind::layer>());
    else if (kind == Kind::rms) f(std::integral_constant<Kind, Kind::rms>());
    else f(std::integral_constant<Kind, Kind::any>());
}
// W elements of a parameter; 0 if it is missing.
template <Kind K, int W, class T> __device__ inline Vec<T, W> load_any(const T* p, int c) {
    return K != Kind::any || p ? load<W>(p + c) : Vec<T, W>{};
}

// ---- forward ------------------------------------------------------------------------------------

// A warp, or a block if BLOCK, norms a row: VECS vectors a thread, VECS * threads * VEC<T> >= C.
template <class T, int VECS, bool BLOCK, Kind K> __global__ void __launch_bounds__(BLOCK ? 1024 : 128)
    norm_forward_kernel(T* y, float* mean, float* rstd, const T* x, const T* w, const T* b, Norm norm, int N, int C,
                        float inv_C) {
    wait_for_previous();
    let_next_start();
    constexpr int W = VEC<T>;
    const int threads = BLOCK ? blockDim.x : 32, thread = threadIdx.x % threads;
    const int64_t n = BLOCK ? blockIdx.x : blockIdx.x * int64_t(blockDim.x / 32) + threadIdx.x / 32;
    if (n >= N) return;    // whole warps
    auto sum = [](float s) {
        if constexpr (BLOCK) return block_sum(s);
        else return warp_sum(s);
    };
    Vec<T> xn[VECS] = {};    // x[n,:], every threads-th vector
#pragma unroll
    for (int k = 0; k < VECS; k++)
        if (int c = (k * threads + thread) * W; c < C) xn[k] = load<W>(x + n * C + c);
    float m = 0, squares = 0;
    if (!is_rms<K>(norm)) {
        float s = 0;
#pragma unroll
        for (int k = 0; k < VECS; k++)
#pragma unroll
            for (int i = 0; i < W; i++) s += xn[k][i];
        m = norm_mean(sum(s), inv_C);
    }
#pragma unroll
    for (int k = 0; k < VECS; k++)
        if ((k * threads + thread) * W < C)
#pragma unroll
            for (int i = 0; i < W; i++) squares = norm_add_square(squares, xn[k][i], m);
    const float r = norm_rstd(sum(squares), inv_C, norm.eps);
#pragma unroll
    for (int k = 0; k < VECS; k++)
        if (int c = (k * threads + thread) * W; c < C) {
            const Vec<T> weight = load_any<K, W>(w, c), bias = K == Kind::rms ? Vec<T>{} : load_any<K, W>(b, c);
            Vec<T> out;
#pragma unroll
            for (int i = 0; i < W; i++) {
                const float factor = K == Kind::layer ? weight[i] : weight[i] + norm.plus;
                out.set(i, norm_value(xn[k][i], K == Kind::rms ? 0 : m, r, factor, bias[i]));
            }
            store<W>(y + n * C + c, out);
        }
    if (thread == 0) rstd[n] = r;
    if (thread == 0 && !is_rms<K>(norm)) mean[n] = m;
}

// Element c of the norm's factor w + plus, and of the bias b. A null w or b counts as zeros.
template <class T> __device__ inline float factor_at(const T* w, int c, Norm norm) {
    return (w ? to_float(w[c]) : 0.0f) + norm.plus;
}
template <class T> __device__ inline float bias_at(const T* b, int c) { return b ? to_float(b[c]) : 0; }

// A warp norms a row, for any C. x is read three times, but from memory only once.
template <class T> __global__ void norm_forward_any_kernel(T* y, float* mean, float* rstd, const T* x, const T* w,
                                                           const T* b, Norm norm, int N, int C, float inv_C) {
    wait_for_previous();
    let_next_start();
    const int lane = threadIdx.x % 32;
    const int64_t n = blockIdx.x * int64_t(blockDim.x / 32) + threadIdx.x / 32;
    if (n >= N) return;
    const T* xn = x + n * C;
    float s = 0, squares = 0;
    if (!norm.rms)
        for (int c = lane; c < C; c += 32) s += to_float(xn[c]);
    const float m = norm.rms ? 0 : norm_mean(warp_sum(s), inv_C);
    for (int c = lane; c < C; c += 32) squares = norm_add_square(squares, to_float(xn[c]), m);
    const float r = norm_rstd(warp_sum(squares), inv_C, norm.eps);
    for (int c = lane; c < C; c += 32)
        y[n * C + c] = from_float<T>(norm_value(to_float(xn[c]), m, r, factor_at(w, c, norm), bias_at(b, c)));
    if (lane == 0) rstd[n] = r;
    if (lane == 0 && !norm.rms) mean[n] = m;
}

template <class T>
void norm_forward(T* y, float* mean, float* rstd, const T* x, const T* w, const T* b, Norm given, int N, int C) {
    const float inv_C = 1 / float(C);
    const Norm norm = with_weights(given, w);
    auto run = [&](auto kernel, int blocks, int threads) {
        const Launch by = {.grid = unsigned(blocks), .block = unsigned(threads), .overlaps = N <= GEMV_ROWS};
        launch(kernel, by, y, mean, rstd, x, w, b, norm, N, C, inv_C);
    };
    auto warps = [&](auto kernel) { run(kernel, int(ceil_div(N, 4)), 128); };
    const int64_t vectors = C / VEC<T>;
    if (!rows_align<T>(C) || vectors > 4 * 1024) return warps(norm_forward_any_kernel<T>);
    for_kind(kind_of(given, w, b), [&](auto K) {
        switch (ceil_div(vectors, 32)) {
            case 1: return warps(norm_forward_kernel<T, 1, false, K>);
            case 2: return warps(norm_forward_kernel<T, 2, false, K>);
            case 3: return warps(norm_forward_kernel<T, 3, false, K>);
            case 4: return warps(norm_forward_kernel<T, 4, false, K>);
            case 5:
            case 6: return warps(norm_forward_kernel<T, 6, false, K>);
            case 7:
            case 8: return warps(norm_forward_kernel<T, 8, false, K>);
        }
        run(norm_forward_kernel<T, 4, true, K>, N, norm_threads<T>(C));
    });
}

// ---- backward -----------------------------------------------------------------------------------

constexpr int PARTS = NORM_PARTS;    // blocks
// Largest number of threads per block: a block's shared memory then fits every GPU's 99 KB.
constexpr int MAX_THREADS = 224;

// A thread's columns of dy, x and dx, for the R rows that its block works on and the next R, which
// are being copied. A thread copies only elements that it reads itself, so it waits for no other.
// Missing rows and columns are zeros, which add nothing.
template <class T, int VECS> struct Held {
    static constexpr int R = 4 / VECS, VECTORS = 3 * R * VECS;
    static constexpr int SLOTS = 2 * VECTORS + 1;    // odd: no bank conflicts
    enum { DY, X, DX };
    Vec<T>* const mine = &dynamic_shared<Vec<T>>() + threadIdx.x * SLOTS;
    __device__ Vec<T>* at(int phase, int array, int j, int k) const {
        return mine + phase * VECTORS + (array * R + j) * VECS + k;
    }
    static __device__ int column(int k) { return int(k * blockDim.x + threadIdx.x) * VEC<T>; }
    __device__ void fetch(int phase, int64_t first, const T* dy, const T* x, const T* dx, int N, int C) const {
#pragma unroll
        for (int j = 0; j < R; j++)
#pragma unroll
            for (int k = 0; k < VECS; k++) {
                const bool there = first + j < N && column(k) < C;
                const int64_t i = (first + j) * C + column(k);
                cp_async_16(at(phase, DY, j, k), dy + i, there);
                cp_async_16(at(phase, X, j, k), x + i, there);
                cp_async_16(at(phase, DX, j, k), dx + i, there);
            }
        cp_async_commit();
    }
};

// Stores a thread's columns of dw and db to part (2,C), in RMSNorm (C).
template <Kind K, int VECS, int W>
__device__ inline void store_parts(float* part, const float (&dw)[VECS][W], const float (&db)[VECS][W], int C) {
#pragma unroll
    for (int k = 0; k < VECS; k++)
        if (int c = int(k * blockDim.x + threadIdx.x) * W; c < C)
#pragma unroll
            for (int i = 0; i < W; i += 4) {
                store<4>(part + c + i, Vec<float, 4>{dw[k][i], dw[k][i + 1], dw[k][i + 2], dw[k][i + 3]});
                if (K == Kind::rms) continue;
                store<4>(part + C + c + i, Vec<float, 4>{db[k][i], db[k][i + 1], db[k][i + 2], db[k][i + 3]});
            }
}

// One step of norm_backward_kernel: adds this thread's elements to its rows' sums, dw and db.
template <Kind K, class T, int VECS, int R = Held<T, VECS>::R>
__device__ __forceinline__ void add_rows(float (&sums)[2 * R], float (&dw)[VECS][VEC<T>], float (&db)[VECS][VEC<T>],
                                         const Held<T, VECS>& held, int phase, const Vec<T> (&weight)[VECS], float plus,
                                         const float (&m)[R], const float (&r)[R]) {
    typedef Held<T, VECS> H;
#pragma unroll
    for (int j = 0; j < R; j++)
#pragma unroll
        for (int k = 0; k < VECS; k++) {
            const Vec<T> dyn = *held.at(phase, H::DY, j, k), xn = *held.at(phase, H::X, j, k);
#pragma unroll
            for (int i = 0; i < VEC<T>; i++) {
                const float d = dyn[i], product = d * (K == Kind::rms ? xn[i] : xn[i] - m[j]);
                const float factor = K == Kind::layer ? weight[k][i] : weight[k][i] + plus;
                if (K != Kind::rms) sums[2 * j] += d * factor;
                sums[2 * j + 1] += product * factor;
                dw[k][i] += product * r[j];
                if (K != Kind::rms) db[k][i] += d;
            }
        }
}

// Rows of up to 128 vectors: a warp has a row. All of it, and the column sums for dw and db, stay
// in registers, so no warp waits for another before the end. Then a block's warps add up in order.
constexpr int ROW_WARPS = 4, ROW_VECS = 4;                         // warps a block; most vectors a thread
template <int V> constexpr int ROW_BLOCKS = V <= 2 ? 4 : 6 - V;    // per multiprocessor, bound by registers
template <int V> constexpr int ROW_PARTS = 128 * ROW_BLOCKS<V>;    // blocks on 128 multiprocessors
static_assert(ROW_PARTS<1> <= PARTS);

// Shape of partial: see norm_backward_kernel. Required: 32 * V * VEC<T> >= C.
template <class T, int V, Kind K> __global__ void __launch_bounds__(ROW_WARPS * 32, ROW_BLOCKS<V>)
    norm_backward_row_kernel(T* dx, float* partial, const T* dy, const T* x, const T* w, const float* mean,
                             const float* rstd, Norm norm, int N, int C, float inv_C) {
    constexpr int W = VEC<T>;
    SHARED(float[2][32 * V * W], sums);
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    auto column = [&](int k) { return (k * 32 + lane) * W; };
    Vec<T> weight[V] = {};
#pragma unroll
    for (int k = 0; k < V; k++)
        if (column(k) < C) weight[k] = load_any<K, W>(w, column(k));
    auto factor = [&](int k, int i) { return K == Kind::layer ? weight[k][i] : weight[k][i] + norm.plus; };
    float dw[V][W] = {}, db[V][W] = {};
    for (int64_t n = blockIdx.x * int64_t(ROW_WARPS) + warp; n < N; n += int64_t(gridDim.x) * ROW_WARPS) {
        Vec<T> dyn[V] = {}, xn[V] = {}, out[V] = {};
#pragma unroll
        for (int k = 0; k < V; k++)
            if (const int64_t at = n * C + column(k); column(k) < C)
                dyn[k] = load<W>(dy + at), xn[k] = load<W>(x + at), out[k] = load<W>(dx + at);
        const float m = is_rms<K>(norm) ? 0 : mean[n], r = rstd[n];
        auto centred = [&](int k, int i) { return K == Kind::rms ? xn[k][i] : xn[k][i] - m; };
        float shift = 0, slope = 0;
#pragma unroll
        for (int k = 0; k < V; k++)
#pragma unroll
            for (int i = 0; i < W; i++) {
                const float d = dyn[k][i], product = d * centred(k, i);
                if (K != Kind::rms) shift += d * factor(k, i);
                slope += product * factor(k, i);
                dw[k][i] += product * r;
                if (K != Kind::rms) db[k][i] += d;
            }
        // dx += r (w dy - mean(w dy) - (x - m) r^2 mean(w dy (x - m))); RMSNorm: no mean(w dy)
        shift = is_rms<K>(norm) ? 0 : warp_sum(shift) * inv_C;
        slope = warp_sum(slope) * inv_C * r * r;
#pragma unroll
        for (int k = 0; k < V; k++) {
#pragma unroll
            for (int i = 0; i < W; i++)
                out[k].set(i, out[k][i] + r * (dyn[k][i] * factor(k, i) - shift - centred(k, i) * slope));
            if (column(k) < C) store<W>(dx + n * C + column(k), out[k]);
        }
    }
    for (int phase = 0; phase < ROW_WARPS; phase++) {
        if (phase == warp)
#pragma unroll
            for (int k = 0; k < V; k++)
#pragma unroll
                for (int i = 0; i < W; i++) {
                    const int c = column(k) + i;
                    sums[0][c] = phase ? sums[0][c] + dw[k][i] : dw[k][i];
                    if (K != Kind::rms) sums[1][c] = phase ? sums[1][c] + db[k][i] : db[k][i];
                }
        __syncthreads();
    }
    float* part = partial + int64_t(blockIdx.x) * (K == Kind::rms ? 1 : 2) * C;
    for (int c = threadIdx.x; c < C; c += ROW_WARPS * 32) {
        part[c] = sums[0][c];
        if (K != Kind::rms) part[C + c] = sums[1][c];
    }
}

// partial (gridDim.x,2,C), in RMSNorm (gridDim.x,C): the block's sums of dw and db.
// VECS * blockDim.x * VEC<T> >= C
template <class T, int VECS, Kind K> __global__ void __launch_bounds__(MAX_THREADS)
    norm_backward_kernel(T* dx, float* partial, const T* dy, const T* x, const T* w, const float* mean,
                         const float* rstd, Norm norm, int N, int C, float inv_C) {
    typedef Held<T, VECS> H;
    constexpr int W = VEC<T>, R = H::R;
    SHARED(float[2][MAX_THREADS / 32][2 * R], warp_sums);
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, warps = blockDim.x / 32;
    const int64_t step = int64_t(gridDim.x) * R;
    int64_t first = int64_t(blockIdx.x) * R;
    auto statistic = [&](int64_t first) {    // lane 2 j: row j's mean; next: rstd
        const int64_t n = first + lane / 2;
        if (is_rms<K>(norm) && lane % 2 == 0) return 0.0f;
        return lane < 2 * R && n < N ? (lane % 2 ? rstd : mean)[n] : 0;
    };
    const H held;
    held.fetch(0, first, dy, x, dx, N, C);
    float statistics = statistic(first);
    Vec<T> weight[VECS] = {};
#pragma unroll
    for (int k = 0; k < VECS; k++)
        if (int c = H::column(k); c < C) weight[k] = load_any<K, W>(w, c);
    float dw[VECS][W] = {}, db[VECS][W] = {};
    // Like `held`, warp_sums has two phases: a warp may write the next step's sums while another
    // reads this step's sums.
    for (int phase = 0; first < N; first += step, phase ^= 1) {
        held.fetch(phase ^ 1, first + step, dy, x, dx, N, C);
        float m[R], r[R], sums[2 * R] = {};    // per row: sums of w dy, w dy (x-mean)
#pragma unroll
        for (int j = 0; j < R; j++) {
            m[j] = __shfl_sync(0xffffffff, statistics, 2 * j);
            r[j] = __shfl_sync(0xffffffff, statistics, 2 * j + 1);
        }
        statistics = statistic(first + step);
        cp_async_wait<1>();
        add_rows<K, T, VECS>(sums, dw, db, held, phase, weight, norm.plus, m, r);
#pragma unroll
        for (int j = K == Kind::rms; j < 2 * R; j += K == Kind::rms ? 2 : 1) {
            const float sum = warp_sum(sums[j]);
            if (lane == 0) warp_sums[phase][warp][j] = sum;
        }
        __syncthreads();
        float total = 0;    // lane j: the block's total of sums[j]
        for (int i = 0; i < warps; i++) total += lane < 2 * R ? warp_sums[phase][i][lane] : 0;
        total *= inv_C;
#pragma unroll
        for (int j = 0; j < R; j++) {
            // dx += r (w dy - mean(w dy) - (x - m) r^2 mean(w dy (x - m))); RMSNorm: no mean(w dy)
            const float shift = is_rms<K>(norm) ? 0 : __shfl_sync(0xffffffff, total, 2 * j);
            const float slope = __shfl_sync(0xffffffff, total, 2 * j + 1) * r[j] * r[j];
#pragma unroll
            for (int k = 0; k < VECS; k++)
                if (int c = H::column(k); c < C && first + j < N) {
                    const Vec<T> dyn = *held.at(phase, H::DY, j, k), xn = *held.at(phase, H::X, j, k);
                    Vec<T> out = *held.at(phase, H::DX, j, k);
#pragma unroll
                    for (int i = 0; i < W; i++) {
                        const float factor = K == Kind::layer ? weight[k][i] : weight[k][i] + norm.plus;
                        const float centred = K == Kind::rms ? xn[i] : xn[i] - m[j];
                        const float g = K == Kind::rms ? dyn[i] * factor : dyn[i] * factor - shift;
                        out.set(i, out[i] + r[j] * (g - centred * slope));
                    }
                    store<W>(dx + (first + j) * C + c, out);
                }
        }
    }
    cp_async_wait<0>();    // zeros of the last fetch may be copying
    store_parts<K>(partial + int64_t(blockIdx.x) * (K == Kind::rms ? 1 : 2) * C, dw, db, C);
}

// For any C, one row at a time. The sums for a thread's columns are in scratch.
template <class T> __global__ void norm_backward_any_kernel(T* dx, float* partial, const T* dy, const T* x, const T* w,
                                                            const float* mean, const float* rstd, Norm norm, int N,
                                                            int C, float inv_C) {
    float *dw = partial + int64_t(blockIdx.x) * 2 * C, *db = dw + C;
    for (int c = threadIdx.x; c < C; c += blockDim.x) dw[c] = db[c] = 0;
    for (int64_t n = blockIdx.x; n < N; n += gridDim.x) {
        const T *xn = x + n * C, *dyn = dy + n * C;
        const float m = norm.rms ? 0 : mean[n], r = rstd[n];
        float g_sum = 0, gx_sum = 0;
        for (int c = threadIdx.x; c < C; c += blockDim.x) {
            const float d = to_float(dyn[c]), xhat = (to_float(xn[c]) - m) * r, g = d * factor_at(w, c, norm);
            g_sum += g;
            gx_sum += g * xhat;
            dw[c] += d * xhat;
            db[c] += d;
        }
        const float g_mean = norm.rms ? 0 : block_sum(g_sum) * inv_C, gx_mean = block_sum(gx_sum) * inv_C;
        for (int c = threadIdx.x; c < C; c += blockDim.x) {
            const float xhat = (to_float(xn[c]) - m) * r, g = to_float(dyn[c]) * factor_at(w, c, norm);
            dx[n * C + c] = from_float<T>(to_float(dx[n * C + c]) + r * (g - g_mean - xhat * gx_mean));
        }
    }
}

template <class T> void norm_backward(T* dx, Grad<T>* dw, Grad<T>* db, const T* dy, const T* x, const T* w,
                                      const float* mean, const float* rstd, Norm given, int N, int C) {
    const int64_t vectors = rows_align<T>(C) ? C / VEC<T> : INT64_MAX;
    const Norm norm = with_weights(given, w);
    float* partial = static_cast<float*>(cuda_scratch(norm_scratch(N, C)));
    int parts, columns = 2 * C;
    auto run = [&](auto kernel, int64_t groups, int64_t threads, int64_t shared, int most = PARTS) {
        parts = int(std::min<int64_t>(most, groups));
        const Launch where = {unsigned(parts), unsigned(threads), size_t(shared)};
        launch(kernel, where, dx, partial, dy, x, w, mean, rstd, norm, N, C, 1 / float(C));
    };
    auto run_vectors = [&]<int VECS>() {
        const int64_t threads = round_up(ceil_div(vectors, VECS), 32);
        const Kind kind = kind_of(given, w, db);
        if (kind == Kind::rms) columns = C;
        for_kind(kind, [&](auto K) {
            run(norm_backward_kernel<T, VECS, K>, ceil_div(N, 4 / VECS), threads, threads * Held<T, VECS>::SLOTS * 16);
        });
    };
    auto run_rows = [&]<int V>() {
        const Kind kind = kind_of(given, w, db);
        if (kind == Kind::rms) columns = C;
        for_kind(kind, [&](auto K) {
            run(norm_backward_row_kernel<T, V, K>, ceil_div(N, ROW_WARPS), ROW_WARPS * 32, 0, ROW_PARTS<V>);
        });
    };
    if (vectors <= 32) run_rows.template operator()<1>();
    else if (vectors <= 64) run_rows.template operator()<2>();
    else if (vectors <= 96) run_rows.template operator()<3>();
    else if (vectors <= 32 * ROW_VECS) run_rows.template operator()<ROW_VECS>();
    else if (vectors <= MAX_THREADS) run_vectors.template operator()<1>();
    else if (vectors <= 2 * MAX_THREADS) run_vectors.template operator()<2>();
    else if (vectors <= 4 * MAX_THREADS) run_vectors.template operator()<4>();
    else run(norm_backward_any_kernel<T>, N, 256, 0);
    add_parts(dw, C, db, columns - C, partial, C, parts, columns);
}

const CudaRegistration entries([]<class T>(Ops<T>& o, Dtype) {
    o.norm_forward = o.stream_norm_forward = norm_forward<T>;
    o.norm_backward = norm_backward<T>;
});
}    // namespace

// adamw.cu - the end of a step: sums of losses, the gradient's norm, the step's verdict, the
// optimizer, conversions.
//
// All are bound by memory. A thread moves 16 bytes of an fp32 array per access. Bytes:
//   sum_of_squares   4 per element
//   adamw            28 per parameter for fp32 (w, m, v, dw read; w, m, v written); 24 with bf16
//                    w; 30 with an fp32 master of it, which is read instead of w and also written
//   from_floats, to_floats   6 per element for bf16
// adamw's square root and division are IEEE's: memory leaves time for about 180 instructions per
// parameter on an H200. Sums are in double, in an order that depends only on n.
#include "base/philox.h"
#include "convert.cuh"
#include "step_verdict.h"

namespace {
constexpr int THREADS = 256;

// ---- sums ---------------------------------------------------------------------------------------

constexpr int64_t PART = 4 * 4 * THREADS, MAX_PARTS = SQUARES_PARTS;    // floats a block loads at once; most blocks

// partial[p] = the sum of squares of x[p*size], ... x[(p+1)*size-1]; size: a multiple of PART
__global__ void squares_kernel(double* partial, const float* x, int64_t n, int64_t size) {
    const int64_t end = min(n, (blockIdx.x + 1) * size);
    int64_t i = blockIdx.x * size;
    double sum = 0;
    for (; i + PART <= end; i += PART) {
        Vec<float> v[4];    // in flight at once
#pragma unroll
        for (int k = 0; k < 4; k++) v[k] = load<4>(x + i + (k * THREADS + threadIdx.x) * 4);
#pragma unroll
        for (int k = 0; k < 4; k++)
#pragma unroll
            for (int j = 0; j < 4; j++) sum += double(v[k][j]) * double(v[k][j]);
    }
    for (i += threadIdx.x; i < end; i += THREADS) sum += double(x[i]) * double(x[i]);
    sum = block_sum(sum);
    if (threadIdx.x == 0) partial[blockIdx.x] = sum;
}

// *out = (ADD: +=) sum x, by one block; each thread has 8 loads in flight.
template <bool ADD, class X> __global__ void sum_kernel(double* out, const X* x, int64_t n) {
    const int64_t threads = blockDim.x;
    int64_t i = threadIdx.x;
    double sum = 0;
    for (; i + 7 * threads < n; i += 8 * threads) {
        X v[8];
#pragma unroll
        for (int k = 0; k < 8; k++) v[k] = x[i + k * threads];
#pragma unroll
        for (int k = 0; k < 8; k++) sum += double(v[k]);
    }
    for (; i < n; i += threads) sum += double(x[i]);
    sum = block_sum(sum);
    if (threadIdx.x == 0) *out = ADD ? *out + sum : sum;
}

void sum_of_squares(double* out, const float* x, int64_t n) {
    const int64_t size = PART * ceil_div(n, PART * MAX_PARTS), parts = ceil_div(n, size);
    double* partial = static_cast<double*>(cuda_scratch(MAX_PARTS * 8));
    launch(squares_kernel, {unsigned(parts), THREADS}, partial, x, n, size);
    launch(sum_kernel<false, double>, {1, 128}, out, partial, parts);
}

void add_losses(double* total, const float* loss, int64_t n) {
    launch(sum_kernel<true, float>, {1, 1024}, total, loss, n);
}

// ---- step verdict -------------------------------------------------------------------------------

__global__ void step_verdict_kernel(Step* step, const double* loss_total, double loss_scale, const double* squares,
                                    int n, OptimizerParams a, Limits limits) {
    double sum = 0;
    for (int i = threadIdx.x; i < n; i += 32) sum += squares[i];
    sum = warp_sum(sum);
    if (threadIdx.x == 0) decide_step(step, loss_scale * *loss_total, sum, a, limits);
}

void step_verdict(Step* step, const double* loss_total, double loss_scale, const double* squares, int n,
                  OptimizerParams a, Limits limits) {
    launch(step_verdict_kernel, {1, 32}, step, loss_total, loss_scale, squares, n, a, limits);
}

// ---- adamw --------------------------------------------------------------------------------------

template <class T> struct Parameters {
    T* w;
    float *master, *m, *v;
    const float* dw;
    const uint8_t* groups;
};

// Rounds x to one of the two nearest bf16, the nearer one more likely: unbiased. Adding 16 random
// bits to the lower half of x carries into the upper half with the right probability.
template <class T> __device__ inline T round_weight(float x, uint32_t bits) {
    if constexpr (sizeof(T) == 2)
        if (fabsf(x) < INFINITY) return {uint16_t((__float_as_uint(x) + bits) >> 16)};
    return from_float<T>(x);
}

__device__ inline uint32_t word(const Philox4& p, int64_t i) {    // word i % 4; an index would need local memory
    const uint32_t low = i & 1 ? p.v[1] : p.v[0], high = i & 1 ? p.v[3] : p.v[2];
    return i & 2 ? high : low;
}

// Updates elements i to i + W - 1. A bf16 w without a master is rounded with the upper half of word
// i % 4 of philox(seed, updates, i / 4), so a repeated step gives the same bits.
template <int W, bool MASTER, class T> __device__ inline void adamw_elements(const Parameters<T>& p, int64_t i,
                                                                             const Step& step, const OptimizerParams& a,
                                                                             uint64_t seed) {
    const Vec<float, W> dw = load<W>(p.dw + i);
    Vec<float, W> m = load<W>(p.m + i), v = load<W>(p.v + i), master;
    Vec<T, W> w;
    if constexpr (MASTER) master = load<W>(p.master + i);
    else w = load<W>(p.w + i);
    const float decay = p.groups[i / 64] & GROUP_DECAYS ? a.weight_decay : 0;
    const float lr = p.groups[i / 64] & GROUP_FAST ? a.lr * a.fast : a.lr;
    Philox4 random = {};
    if constexpr (!MASTER && sizeof(T) == 2) random = philox(seed, uint64_t(step.updates), uint64_t(i / 4));
#pragma unroll
    for (int j = 0; j < W; j++) {
        const float g = step.scale * dw[j], was = MASTER ? master[j] : w[j];
        m.v[j] = a.beta1 * m[j] + (1 - a.beta1) * g;
        v.v[j] = a.beta2 * v[j] + (1 - a.beta2) * (g * g);
        const float x = was - lr * (m[j] * step.m_correction / (sqrtf(v[j] * step.v_correction) + a.eps) + decay * was);
        if constexpr (MASTER) master.v[j] = x, w.set(j, x);
        else w.v[j] = round_weight<T>(x, word(random, i + j) >> 16);
    }
    store<W>(p.m + i, m);
    store<W>(p.v + i, v);
    if constexpr (MASTER) store<W>(p.master + i, master);
    store<W>(p.w + i, w);
}

template <bool MASTER, class T>
__global__ void adamw_kernel(Parameters<T> p, int64_t n, const Step* step, OptimizerParams a, uint64_t seed) {
    const Step s = *step;
    if (s.skipped) return;
    int64_t i = 4 * (blockIdx.x * int64_t(THREADS) + threadIdx.x);
    if (i + 4 <= n) adamw_elements<4, MASTER>(p, i, s, a, seed);
    else
        for (; i < n; i++) adamw_elements<1, MASTER>(p, i, s, a, seed);
}

template <class T> void adamw(T* w, float* master, float* m, float* v, const Grad<T>* dw, const uint8_t* groups,
                              int64_t n, const Step* step, OptimizerParams a, uint64_t seed) {
    const Parameters<T> p = {w, master, m, v, dw, groups};
    const Launch grid = {unsigned(ceil_div(n, 4 * THREADS)), THREADS};
    launch(master ? adamw_kernel<true, T> : adamw_kernel<false, T>, grid, p, n, step, a, seed);
}

const CudaRegistration entries([]<class T>(Ops<T>& o, Dtype) {
    o.add_losses = add_losses;
    o.sum_of_squares = sum_of_squares;
    o.step_verdict = step_verdict;
    o.adamw = adamw<T>;
    o.from_floats = [](T* to, const float* from, int64_t n) { convert(to, from, n, cuda_stream()); };
    o.to_floats = [](float* to, const T* from, int64_t n) { convert(to, from, n, cuda_stream()); };
});
}    // namespace

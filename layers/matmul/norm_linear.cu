// norm_linear.cu - generation's norm, product and activation in one launch: y = act(norm(x)
// w^T + b).
//
// A decode step of one sequence is a chain of small, dependent kernels: the chain's length counts,
// not the work. A block's first loads of w start before the previous kernel, which writes x, has
// ended (Launch::overlaps). Meanwhile the block itself norms all rows of x into shared memory, with
// norm_forward's bits. Then it computes every gridDim.x-th group of rows of w (gemv.cuh). In a
// gated ffn a warp has two rows of w for an output: the gate's row and the other factor's.
//
// Bound by reading w once, O C elements or twice that. x and the norm's weights come from L2 once
// for each multiprocessor; the norm costs about ten operations an element and block, so a
// multiprocessor has few blocks.
//
// Roundings equal those of separate operations: normed rows are rounded to T, and so is the product
// before its activation, except tanh-form GELU, which linear_gelu_forward applies to the unrounded
// sum. More rows than GEMV_ROWS, or too long ones for shared memory, use separate operations.
#include <algorithm>

#include "layers/cuda.h"
#include "gemv.cuh"
#include "norm_rows.cuh"

namespace {
constexpr int BLOCKS = 6;    // per multiprocessor
// Kernels for one sequence leave registers for a block of the next kernel, which otherwise cannot
// begin early. That is the likely reason why a token of GPT-2 took 290 us on an H200 (2026-11-27)
// when these kernels had 77 registers, and 263 us when they had 72.
template <int N> constexpr int RESIDENT = BLOCKS + (N == 1);
constexpr int64_t MAX_SHARED = int64_t(46) << 10;    // bytes; with the sums below 48 KiB

enum class Finish { none, activated, gated };

// y (N,O) = norm(x) w^T + b, then the activation if F says so.    w (O,C), gated (2*O,C)
template <class T, int W, int N, Finish F> __global__ void __launch_bounds__(GEMV_WARPS * 32, RESIDENT<N>)
    normed_kernel(T* y, const T* x, const NormOf<T> norm, const T* w, const T* b, Act act, int C, int O, int shift) {
    constexpr int R = F == Finish::gated || N > 1 ? 2 : 1, OUTPUTS = F == Finish::gated ? 1 : R;    // per warp
    SHARED(float[GEMV_WARPS][R][N], sums);
    T* const normed = dynamic_shared<Vec<T>>().v;
    const int warp = threadIdx.x / 32, groups = GEMV_WARPS >> shift, each = groups * OUTPUTS;
    int64_t first = blockIdx.x * int64_t(each);
    auto row = [&](int r) {    // rows past the last output repeat it
        const int64_t o = first + (warp >> shift) * OUTPUTS + (F == Finish::gated ? 0 : r), last = o < O ? o : O - 1;
        return w + (F == Finish::gated ? last + r * int64_t(O) : last) * C;
    };
    const int t = threadIdx.x, n = t % N, r = t / N % OUTPUTS, group = t / (N * OUTPUTS);
    GemvLane<T, W, N, R> own(C, 1 << shift);
    T bias[F == Finish::gated ? 2 : 1] = {};
    auto fetch = [&] {    // rows of w, and this thread's biases
        own.fetch(row);
        const int64_t o = first + group * OUTPUTS + r;
        if (!b || group >= groups || o >= O) return;
        bias[0] = b[o];
        if (F == Finish::gated) bias[F == Finish::gated] = b[O + o];
    };
    fetch();
    norm.prefetch(C);
    wait_for_previous();
    let_next_start();
    norm_rows<GEMV_WARPS, T, W, N>(normed, x, norm, C);
    for (;;) {
        for (; own.from < C; own.fetch(row)) own.add(normed);
        own.finish(sums[warp]);
        const int64_t o = first + group * OUTPUTS + r;
        const bool writes = group < groups && o < O;
        float s[F == Finish::gated ? 2 : 1];
#pragma unroll
        for (int i = 0; i < (F == Finish::gated ? 2 : 1); i++) s[i] = to_float(bias[i]);
        first += int64_t(gridDim.x) * each;
        if (first < O) fetch();    // loads overlap the reduction
        __syncthreads();
        if (writes) {
            auto product = [&](int which, int r) {
#pragma unroll
                for (int i = 0; i < GEMV_WARPS; i++)
                    if (i < 1 << shift) s[which] += sums[(group << shift) + i][r][n];
                return s[which];
            };
            float out = product(0, r);
            if (F == Finish::activated)
                out = act == Act::gelu_tanh ? gelu(out) : activated(act, to_float(from_float<T>(out)));
            if (F == Finish::gated)
                out = activated(act, to_float(from_float<T>(out))) *
                      to_float(from_float<T>(product(F == Finish::gated, 1)));
            y[n * int64_t(O) + o] = from_float<T>(out);
        }
        if (first >= O) return;
        __syncthreads();    // the sums have been read
    }
}

template <class T, Finish F, int N = 1>
void normed(T* y, const T* x, const NormOf<T>& norm, const T* w, const T* b, Act act, int rows, int C, int O) {
    if constexpr (N < GEMV_ROWS)
        if (rows > N) return normed<T, F, N + 1>(y, x, norm, w, b, act, rows, C, O);
    constexpr int OUTPUTS = F != Finish::gated && N > 1 ? 2 : 1;
    const int shift = gemv_shift<T>(C);
    const int64_t most = int64_t(BLOCKS) * cuda_multiprocessors();
    const int64_t blocks = std::min(ceil_div(O, (GEMV_WARPS >> shift) * OUTPUTS), most);
    const Launch by = {.grid = unsigned(blocks),
                       .block = GEMV_WARPS * 32,
                       .shared = size_t(round_up(int64_t(N) * C, VEC<T>)) * sizeof(T),
                       .overlaps = true};
    auto run = [&](auto kernel) { launch(kernel, by, y, x, norm, w, b, act, C, O, shift); };
    rows_align<T>(C) ? run(normed_kernel<T, VEC<T>, N, F>) : run(normed_kernel<T, 1, N, F>);
}
template <class T> bool takes(int N, int C) {
    return N <= GEMV_ROWS && round_up(int64_t(N) * C, VEC<T>) * int64_t(sizeof(T)) <= MAX_SHARED;
}

template <class T, Dtype dtype> struct Normed {
    static void linear(T* y, T* between, float* mean, float* rstd, const T* x, const T* nw, const T* nb, Norm norm,
                       const T* w, const T* b, int N, int C, int OC) {
        const NormOf<T> of(nw, nb, norm, C);
        if (takes<T>(N, C)) return normed<T, Finish::none>(y, x, of, w, b, {}, N, C, OC);
        const Ops<T>& op = cuda_ops<T>(dtype);
        op.norm_forward(between, mean, rstd, x, nw, nb, norm, N, C);
        op.linear_forward(y, between, w, b, nullptr, N, C, OC, {});
    }
    static void ffn(T* y, T* pre, T* between, float* mean, float* rstd, const T* x, const T* nw, const T* nb, Norm norm,
                    const T* w, const T* b, Act act, bool gated, int N, int C, int F) {
        const NormOf<T> of(nw, nb, norm, C);
        if (takes<T>(N, C) && gated) return normed<T, Finish::gated>(y, x, of, w, b, act, N, C, F);
        if (takes<T>(N, C)) return normed<T, Finish::activated>(y, x, of, w, b, act, N, C, F);
        const Ops<T>& op = cuda_ops<T>(dtype);
        op.norm_forward(between, mean, rstd, x, nw, nb, norm, N, C);
        if (act == Act::gelu_tanh && !gated) return op.linear_gelu_forward(y, pre, between, w, b, N, C, F, {});
        op.linear_forward(pre, between, w, b, nullptr, N, C, gated ? 2 * F : F, {});
        op.activation_forward(y, pre, act, gated, N, F);
    }
    static void entries(Ops<T>& o) { o.norm_linear_forward = linear, o.norm_ffn_forward = ffn; }
};

const CudaRegistration entries([]<class T>(Ops<T>& o, Dtype dtype) {
    if constexpr (sizeof(T) == 2) Normed<T, Dtype::bf16>::entries(o);
    else if (dtype == Dtype::tf32) Normed<T, Dtype::tf32>::entries(o);
    else Normed<T, Dtype::fp32>::entries(o);
});
}    // namespace

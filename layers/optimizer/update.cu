// update.cu - the end of a step: sums of losses, the gradient's norm, the step's verdict, the
// optimizer, conversions.
//
// All are bound by memory. A thread moves 16 bytes of an fp32 array per access. Bytes:
//   sum_of_squares   4 per element
//   update_weights   with AdamW 28 per parameter for fp32 (w, m, v, dw read; w, m, v written); 24
//                    with bf16 w; 30 with an fp32 master of it, which is read instead of w and also
//                    written; 12 less with states of 8 bits
//   nesterov_momentum   16 per element
//   from_floats, to_floats   6 per element for bf16
// AdamW's square root and division are IEEE's: memory leaves time for about 180 instructions per
// parameter on an H200. Sums are in double, in an order that depends only on n.
#include "base/philox.h"
#include "layers/convert.cuh"
#include "optimizer_state.h"
#include "step_verdict.h"

namespace {
constexpr int THREADS = 256;

// ---- sums ---------------------------------------------------------------------------------------

constexpr int64_t PART = 4 * 4 * THREADS, MAX_PARTS = SQUARES_PARTS;    // floats a block loads at once; most blocks

// partial[p] = the sum of squares of x[p*size], ... x[(p+1)*size-1]. size: a multiple of PART.
// W: 4, or 1 if x is not aligned, as a matrix may begin anywhere in its tensor.
template <int W> __global__ void squares_kernel(double* partial, const float* x, int64_t n, int64_t size) {
    const int64_t end = min(n, (blockIdx.x + 1) * size);
    int64_t i = blockIdx.x * size;
    double sum = 0;
    for (; i + PART <= end; i += PART) {
        Vec<float, W> v[16 / W];    // in flight at once
#pragma unroll
        for (int k = 0; k < 16 / W; k++) v[k] = load<W>(x + i + (k * THREADS + threadIdx.x) * W);
#pragma unroll
        for (int k = 0; k < 16 / W; k++)
#pragma unroll
            for (int j = 0; j < W; j++) sum += double(v[k][j]) * double(v[k][j]);
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

}    // namespace
void cuda_sum_of_squares(double* out, const float* x, int64_t n) {
    const int64_t size = PART * ceil_div(n, PART * MAX_PARTS), parts = ceil_div(n, size);
    double* partial = static_cast<double*>(cuda_scratch(MAX_PARTS * 8));
    const bool aligned = uintptr_t(x) % 16 == 0;
    launch(aligned ? squares_kernel<4> : squares_kernel<1>, {unsigned(parts), THREADS}, partial, x, n, size);
    launch(sum_kernel<false, double>, {1, 128}, out, partial, parts);
}

namespace {
void add_losses(double* total, const float* loss, int64_t n) {
    launch(sum_kernel<true, float>, {1, 1024}, total, loss, n);
}

// ---- step verdict -------------------------------------------------------------------------------

__global__ void step_verdict_kernel(Step* step, const double* loss_total, double loss_scale, const double* squares,
                                    const uint8_t* groups, int n, OptimizerParams a, Limits limits) {
    SHARED(double[GroupFactors::MOST], of_group);
    double sum = 0;
    for (int i = threadIdx.x; i < n; i += 32) sum += squares[i];
    sum = warp_sum(sum);
    if (groups && threadIdx.x < GroupFactors::MOST) {    // a thread has a group
        double own = 0;
        for (int i = 0; i < n; i++) own += groups[i] == threadIdx.x ? squares[i] : 0;
        of_group[threadIdx.x] = own;
    }
    __syncthreads();
    if (threadIdx.x == 0) decide_step(step, loss_scale * *loss_total, sum, groups ? &of_group[0] : nullptr, a, limits);
}

void step_verdict(Step* step, const double* loss_total, double loss_scale, const double* squares, const uint8_t* groups,
                  int n, OptimizerParams a, Limits limits) {
    launch(step_verdict_kernel, {1, 32}, step, loss_total, loss_scale, squares, groups, n, a, limits);
}

// ---- states -------------------------------------------------------------------------------------

constexpr int W = 4;                        // elements of a thread
constexpr int SHARERS = STATE_BLOCK / W;    // threads that share a block of codes, and its scale

// Rounds x to one of the two nearest bf16, the nearer one more likely: unbiased. Adding 16 random
// bits to the lower half of x carries into the upper half with the right probability.
__device__ inline bf16 round_at_random(float x, uint32_t bits) {
    if (fabsf(x) < INFINITY) return {uint16_t((__float_as_uint(x) + bits) >> 16)};
    return from_float<bf16>(x);
}

// The number of a code's magnitude (StateCode): 0.9 (j + 0.5) / 2^e - 0.8, times the decade's end.
template <int BITS, int E = BITS - 1> __device__ inline float number_of(int j) {
    if constexpr (E > 0) {
        if (j < 1 << E) return number_of<BITS, E - 1>(j);
    }
    constexpr float end = float(StateCode<BITS>::decade_end(E)), slope = float(0.9 / (1 << E) * double(end));
    return j == 0 ? 0 : j == StateCode<BITS>::TOP ? 1 : slope * (float(j) + 0.5f) - 0.8f * end;
}
template <int BITS> __device__ inline int code_of(float x) {    // x in 0..1
    typedef StateCode<BITS> Code;
    float factor = Code::factor(0), low = 1;
    find_decade<BITS>(x, factor, low);
    const int j = min(int(x * factor + Code::HALF * low), 2 * int(low) - 1);
    if (BITS == 7) return x < Code::SMALLEST / 2 ? 0 : max(j, int(low));
    return x > 0 ? max(j, int(low)) : 0;
}

template <int BITS> __device__ inline Vec<float, W> read_state(const StateArray& s, int64_t i) {
    if (s.type == Element::f32) return load<W>(static_cast<const float*>(s.p) + i);
    Vec<float, W> x;
    if (s.type == Element::bf16) {
        const Vec<bf16, W> v = load<W>(static_cast<const bf16*>(s.p) + i);
        for (int j = 0; j < W; j++) x.v[j] = v[j];
        return x;
    }
    const uint32_t codes = *reinterpret_cast<const uint32_t*>(static_cast<const uint8_t*>(s.p) + i);
    const float scale = s.scales[i / STATE_BLOCK];
#pragma unroll
    for (int j = 0; j < W; j++) {
        const int code = codes >> 8 * j & 255;
        const float number = scale * number_of<BITS>(BITS == 7 ? code & 127 : code);
        x.v[j] = BITS == 7 && code & 128 ? -number : number;
    }
    return x;
}
// All threads of a warp call it together. inside: the thread's elements exist.
template <int BITS> __device__ inline void write_state(const StateArray& s, int64_t i, const Vec<float, W>& x,
                                                       const Philox4& random, bool inside) {
    if (s.type == Element::uint8) {
        float most = 0;
#pragma unroll
        for (int j = 0; j < W; j++) most = fmaxf(most, inside ? fabsf(x[j]) : 0);
#pragma unroll
        for (int step = SHARERS / 2; step > 0; step /= 2) most = fmaxf(most, __shfl_xor_sync(0xffffffff, most, step));
        if (!inside) return;
        uint32_t codes = 0;
        const float divisor = most > 0 ? most : 1;
#pragma unroll
        for (int j = 0; j < W; j++) {
            const uint32_t code = uint32_t(code_of<BITS>(fabsf(x[j]) / divisor)) | (BITS == 7 && x[j] < 0 ? 128 : 0);
            codes |= code << 8 * j;
        }
        *reinterpret_cast<uint32_t*>(static_cast<uint8_t*>(s.p) + i) = codes;
        if (i % STATE_BLOCK == 0) s.scales[i / STATE_BLOCK] = most;
        return;
    }
    if (!inside) return;
    if (s.type == Element::f32) return store<W>(static_cast<float*>(s.p) + i, x);
    Vec<bf16, W> rounded;
#pragma unroll
    for (int j = 0; j < W; j++)
        rounded.v[j] = round_at_random(x[j], BITS == 7 ? random.v[j] >> 16 : random.v[j] & 0xffff);
    store<W>(static_cast<bf16*>(s.p) + i, rounded);
}
__device__ inline bool rounds_at_random(const StateArray& s) { return s.p && s.type == Element::bf16; }

// ---- update -------------------------------------------------------------------------------------

template <class T> struct Parameters {
    T* w;
    float* master;
    StateArray m, v;
    const float* dw;
    const uint8_t* groups;
    int64_t n;
};
__device__ inline float sign(float x) { return float((x > 0) - (x < 0)); }

// Returns what a step subtracts from a weight, divided by the rate and without decay; updates m, v.
__device__ inline float move_of(UpdateRule rule, float g, float& m, float& v, const Step& s, const OptimizerParams& a) {
    if (rule == UpdateRule::given) return g;
    const float before = a.beta1 * m + (1 - a.beta1) * g;
    m = rule == UpdateRule::lion ? a.beta2 * m + (1 - a.beta2) * g : before;
    if (rule != UpdateRule::adamw) return sign(before);
    v = a.beta2 * v + (1 - a.beta2) * (g * g);
    return m * s.m_correction / (sqrtf(v * s.v_correction) + a.eps);
}

// A thread updates W elements. A bf16 w without a master is rounded with the upper half of word i %
// 4 of philox(seed, updates, i / 4), so a repeated step gives the same bits.
template <bool MASTER, class T>
__global__ void update_kernel(Parameters<T> p, const Step* step, UpdateRule rule, OptimizerParams a, uint64_t seed) {
    const Step& s = *step;
    if (s.skipped) return;
    const int64_t at = W * (blockIdx.x * int64_t(THREADS) + threadIdx.x);
    const bool inside = at < p.n;
    const int64_t i = inside ? at : 0;
    const Vec<float, W> dw = load<W>(p.dw + i);
    Vec<float, W> m = {}, v = {}, master;
    Vec<T, W> w;
    if (p.m.p) m = read_state<7>(p.m, i);
    if (p.v.p) v = read_state<8>(p.v, i);
    if constexpr (MASTER) master = load<W>(p.master + i);
    else w = load<W>(p.w + i);
    const int number = p.groups[i / 64];
    const ParamGroup group = a.groups.of[number];
    const float scale = rule == UpdateRule::given ? 1 : s.scale_of(number);
    const float decay = a.weight_decay * group.decay, lr = a.lr * group.lr;
    Philox4 random = {};
    if constexpr (!MASTER && sizeof(T) == 2) random = philox(seed, uint64_t(s.updates), uint64_t(i / 4));
#pragma unroll
    for (int j = 0; j < W; j++) {
        const float was = MASTER ? master[j] : w[j];
        const float move = move_of(rule, scale * dw[j], m.v[j], v.v[j], s, a);
        const float x = was - lr * (move + (a.cautious && move * was <= 0 ? 0 : decay) * was);
        if constexpr (MASTER) master.v[j] = x, w.set(j, x);
        else if constexpr (sizeof(T) == 2) w.v[j] = round_at_random(x, random.v[j] >> 16);
        else w.v[j] = x;
    }
    if (rounds_at_random(p.m) || rounds_at_random(p.v)) random = philox(seed + 1, uint64_t(s.updates), uint64_t(i / 4));
    if (p.m.p) write_state<7>(p.m, i, m, random, inside);
    if (p.v.p) write_state<8>(p.v, i, v, random, inside);
    if (!inside) return;
    if constexpr (MASTER) store<W>(p.master + i, master);
    store<W>(p.w + i, w);
}
Launch by_elements(int64_t n) { return {unsigned(ceil_div(n, W * THREADS)), THREADS}; }

template <class T> void update_weights(T* w, float* master, StateArray m, StateArray v, const Grad<T>* dw,
                                       const uint8_t* groups, int64_t n, const Step* step, UpdateRule rule,
                                       OptimizerParams a, uint64_t seed) {
    const Parameters<T> p = {w, master, m, v, dw, groups, n};
    launch(master ? update_kernel<true, T> : update_kernel<false, T>, by_elements(n), p, step, rule, a, seed);
}

__global__ void momentum_kernel(float* dw, StateArray m, const uint8_t* groups, int64_t n, const Step* step, float beta,
                                uint64_t seed) {
    const Step& s = *step;
    if (s.skipped) return;
    const int64_t at = W * (blockIdx.x * int64_t(THREADS) + threadIdx.x);
    const bool inside = at < n;
    const int64_t i = inside ? at : 0;
    Vec<float, W> d = load<W>(dw + i), mean = read_state<7>(m, i);
    const float scale = s.scale_of(groups[i / 64]);
#pragma unroll
    for (int j = 0; j < W; j++) {
        const float g = scale * d[j];
        mean.v[j] = beta * mean[j] + (1 - beta) * g;
        d.v[j] = beta * mean[j] + (1 - beta) * g;
    }
    Philox4 random = {};
    if (rounds_at_random(m)) random = philox(seed + 1, uint64_t(s.updates), uint64_t(i / 4));
    write_state<7>(m, i, mean, random, inside);
    if (inside) store<W>(dw + i, d);
}
void nesterov_momentum(float* dw, StateArray m, const uint8_t* groups, int64_t n, const Step* step, OptimizerParams a,
                       uint64_t seed) {
    launch(momentum_kernel, by_elements(n), dw, m, groups, n, step, a.momentum, seed);
}

template <class X> __global__ void average_kernel(float* average, const X* w, float rate, int64_t n, const Step* step) {
    const int64_t i = W * (blockIdx.x * int64_t(THREADS) + threadIdx.x);
    if (i >= n || step->skipped) return;
    Vec<float, W> to = load<W>(average + i);
    const Vec<X, W> from = load<W>(w + i);
#pragma unroll
    for (int j = 0; j < W; j++) to.v[j] += rate * (from[j] - to[j]);
    store<W>(average + i, to);
}
template <class T>
void average_weights(float* average, const T* w, const float* master, float rate, int64_t n, const Step* step) {
    if (master) launch(average_kernel<float>, by_elements(n), average, master, rate, n, step);
    else launch(average_kernel<T>, by_elements(n), average, w, rate, n, step);
}

const CudaRegistration entries([]<class T>(Ops<T>& o, Dtype) {
    o.add_losses = add_losses;
    o.sum_of_squares = cuda_sum_of_squares;
    o.step_verdict = step_verdict;
    o.update_weights = update_weights<T>;
    o.nesterov_momentum = nesterov_momentum;
    o.average_weights = average_weights<T>;
    o.from_floats = [](T* to, const float* from, int64_t n) { convert(to, from, n, cuda_stream()); };
    o.to_floats = [](float* to, const T* from, int64_t n) { convert(to, from, n, cuda_stream()); };
});
}    // namespace

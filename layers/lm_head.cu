// lm_head.cu - softmax and cross entropy of rows of logits, in place.
//
// One block per row, 16 bytes per thread at a time. Each thread keeps a running maximum and the sum
// of exp(x - maximum) (Milakov & Gimelshein 2018), so one pass gives both; the gradient needs
// another. The loss is log(sum) + (maximum - target's logit): finite where -log(p) is not.
//
// Bound by memory: V elements read, Vp written; for the loss alone V read. The second pass reads
// the row from shared memory if a multiprocessor can hold two rows, else from L2, which then moves
// 3 elements instead of 2. GPT-2's 50304 logits in bf16 are 100608 bytes: two rows fit the 228 KB
// of an H100, whose L2 would otherwise be as busy as its memory. They do not fit the 164 KB of an
// A100. There the rows stay in L2: those of two blocks on each of 108 multiprocessors take 21.7 of
// 40 MB. One row would fit shared memory, but one block per multiprocessor would never read and
// write at the same time, which costs more than L2's traffic.
//
// Soft caps and scales (Logits) are applied in both passes: a tanh for each element and pass.
#include "layers/attention/softcap.cuh"

namespace {
constexpr int THREADS = 768;    // with 1024, 32 registers: bf16 would spill

// Running maximum, and sum of exp(x - maximum). The maximum starts at the lowest finite number, so
// that a logit of -inf adds 0 and no NaN; NaN and +inf make the sum NaN.
struct Softmax {
    float top = -3.402823466e38f, sum = 0;

    __device__ static float exp(float x) { return exp2_approx(x * LOG2E); }
    template <class T, int W> __device__ void add(const Vec<T, W>& x) {
        float most = x[0];
        for (int i = 1; i < W; i++) most = fmaxf(most, x[i]);
        if (most > top) {
            sum *= exp(top - most);
            top = most;
        }
        for (int i = 0; i < W; i++) sum += exp(x[i] - top);
    }
};

// Calls f(i, i-th vector of x) for the block's n vectors, several loads in flight.
template <int W> constexpr int AHEAD = W == 1 ? 8 : 2;
template <int W, class T, class F> __device__ inline void each_vector(const T* x, int n, F f) {
    const int step = blockDim.x;
    for (int i = threadIdx.x; i < n; i += AHEAD<W> * step) {
        Vec<T, W> v[AHEAD<W>];
#pragma unroll
        for (int u = 0; u < AHEAD<W>; u++)
            if (i + u * step < n) v[u] = load<W>(x + (i + u * step) * W);
#pragma unroll
        for (int u = 0; u < AHEAD<W>; u++)
            if (i + u * step < n) f(i + u * step, v[u]);
    }
}

// The logit of a product (scale, soft cap), and its derivative. PLAIN: no scale or cap.
template <bool PLAIN> struct Shape {
    Logits z;
    __device__ float value(float x) const {
        if (PLAIN) return x;
        return z.cap != 0 ? z.cap * tanh_of(x * (z.scale / z.cap)) : z.scale * x;
    }
    template <class T, int W> __device__ Vec<float, W> values(const Vec<T, W>& x) const {
        Vec<float, W> v;
#pragma unroll
        for (int i = 0; i < W; i++) v.v[i] = value(x[i]);
        return v;
    }
    __device__ float slope(float value) const {
        if (PLAIN) return 1;
        const float part = z.cap != 0 ? value / z.cap : 0;
        return z.scale * (1 - part * part);
    }
};

// KEEP: the row stays in shared memory. dlogits null: loss only.
template <class T, int W, bool KEEP, bool PLAIN> __global__ void __launch_bounds__(THREADS, 2)
    cross_entropy_row(float* loss, T* dlogits, const T* logits, const int* target, const float* weights, float scale,
                      LossPenalties more, Shape<PLAIN> shape, int V, int Vp) {
    const int64_t n = blockIdx.x;
    const T* x = logits + n * Vp;
    const int vectors = V / W;    // whole vectors; the rest goes element by element
    T* kept = KEEP ? dynamic_shared<Vec<T, W>>().v : nullptr;
    const int y = target[n];
    if (y < 0) {    // ignored: the logits are not read
        if (threadIdx.x == 0) loss[n] = 0;
        for (int v = threadIdx.x; dlogits && v < Vp; v += blockDim.x) dlogits[n * Vp + v] = from_float<T>(0);
        return;
    }
    const float logit = shape.value(to_float(x[y]));    // read before it may be overwritten
    auto add = [&](Softmax& to, const auto& v) {
        if constexpr (PLAIN) to.add(v);
        else to.add(shape.values(v));
    };

    Softmax own;
    each_vector<W>(x, vectors, [&](int i, const Vec<T, W>& v) {
        add(own, v);
        if (KEEP) store<W>(kept + i * W, v);
    });
    for (int v = vectors * W + threadIdx.x; v < V; v += blockDim.x) add(own, load<1>(x + v));
    const float top = block_max(own.top), sum = block_sum(own.sum * Softmax::exp(own.top - top));
    if (threadIdx.x == 0) loss[n] = logf(sum) + (top - logit);
    if (!dlogits) return;

    T* d = dlogits + n * Vp;
    if (weights) scale *= weights[n];
    const float of_lse = more.z_loss != 0 ? 1 + 2 * more.z_loss * (logf(sum) + top) : 1;
    const float factor = scale * of_lse / sum, even = scale * more.label_smoothing / V;
    auto slope = [&](float x) {
        const float z = shape.value(x);
        return (Softmax::exp(z - top) * factor - even) * shape.slope(z);
    };
    each_vector<W>(KEEP ? kept : x, vectors, [&](int i, const Vec<T, W>& v) {    // vectors that this thread stored
        Vec<T, W> g;
        for (int j = 0; j < W; j++) g.set(j, slope(v[j]));
        store<W>(d + i * W, g);
    });
    for (int v = vectors * W + threadIdx.x; v < Vp; v += blockDim.x)
        d[v] = from_float<T>(v < V ? slope(to_float(x[v])) : 0.0f);
    __syncthreads();    // another thread has written the target's element
    const float label = scale * (1 - more.label_smoothing) + even;
    if (threadIdx.x == 0) d[y] = from_float<T>((Softmax::exp(logit - top) * factor - label) * shape.slope(logit));
}

// Bytes of a multiprocessor's shared memory. The system reserves 1 KB of it for each block.
int64_t shared_bytes() {
    const int cc = cuda_capability();
    return 1024 * (cc == 80 || cc == 87 ? 164 : cc >= 90 && cc < 120 ? 228 : 100);
}

template <class T, int W, bool PLAIN> void run(float* loss, T* dlogits, const T* logits, const int* target,
                                               const float* weights, float scale, LossPenalties more, Shape<PLAIN> z,
                                               int N, int V, int Vp) {
    const int64_t row = round_up(V, W) * sizeof(T), threads = round_up(ceil_div(V, W * AHEAD<W>), 32);
    Launch grid = {dim3(unsigned(N)), dim3(unsigned(threads < THREADS ? threads : THREADS))};
    if (W > 1 && dlogits && 2 * (row + 2048) <= shared_bytes()) {
        grid.shared = size_t(row);
        launch(cross_entropy_row<T, W, W != 1, PLAIN>, grid, loss, dlogits, logits, target, weights, scale, more, z, V,
               Vp);
    } else
        launch(cross_entropy_row<T, W, false, PLAIN>, grid, loss, dlogits, logits, target, weights, scale, more, z, V,
               Vp);
}
template <class T> void cross_entropy(float* loss, T* dlogits, const T* logits, const int* target, const float* weights,
                                      float scale, LossPenalties more, Logits z, int N, int V, int Vp) {
    auto with = [&](auto shape) {
        if (rows_align<T>(Vp)) run<T, VEC<T>>(loss, dlogits, logits, target, weights, scale, more, shape, N, V, Vp);
        else run<T, 1>(loss, dlogits, logits, target, weights, scale, more, shape, N, V, Vp);
    };
    if (z.scale == 1 && z.cap == 0) with(Shape<true>{z});
    else with(Shape<false>{z});
}

// ---- one number for each row --------------------------------------------------------------------

// One warp per row. Bound by the writes of dlogits.
template <class T> __global__ void value_loss_kernel(float* loss, T* dlogits, const T* logits, const int* target,
                                                     float scale, bool binary, int Vp) {
    const int64_t n = blockIdx.x;
    const float x = to_float(logits[n * Vp]), y = reinterpret_cast<const float*>(target)[n], e = expf(x < 0 ? x : -x);
    const bool given = y == y;
    __syncwarp();    // dlogits may be logits
    if (threadIdx.x == 0) loss[n] = !given ? 0 : binary ? fmaxf(x, 0) + log1pf(e) - y * x : (x - y) * (x - y);
    if (!dlogits) return;
    const float sigmoid = x < 0 ? e / (1 + e) : 1 / (1 + e), slope = binary ? sigmoid - y : 2 * (x - y);
    for (int v = threadIdx.x; v < Vp; v += 32) dlogits[n * Vp + v] = from_float<T>(v || !given ? 0 : scale * slope);
}
template <class T>
void value_loss(float* loss, T* dlogits, const T* logits, const int* target, float scale, bool binary, int N, int Vp) {
    launch(value_loss_kernel<T>, {unsigned(N), 32}, loss, dlogits, logits, target, scale, binary, Vp);
}

// ---- distillation -------------------------------------------------------------------------------

// One block per row, in three passes over the student's and the teacher's logits: maxima, sums,
// gradient. Bound by memory: 2 V elements from memory, 4 V from L2, Vp written.
constexpr int DISTILL_THREADS = 512;

__device__ inline float logit_of(float x, Logits z) { return Shape<false>{z}.value(x); }
struct Teaching {
    Distillation how;
    Logits z, teacher_z;
};

// dlogits may be logits, as a thread writes only elements that it alone reads; null: loss only.
template <class T> __global__ void __launch_bounds__(DISTILL_THREADS)
    distill_row(float* loss, T* dlogits, const T* logits, const T* teacher, const int* target, float scale, Teaching w,
                int V, int Vp) {
    const int64_t n = blockIdx.x;
    const T *x = logits + n * Vp, *t = teacher + n * Vp;
    const int y = target[n];
    if (y < 0) {
        if (threadIdx.x == 0) loss[n] = 0;
        for (int v = threadIdx.x; dlogits && v < Vp; v += blockDim.x) dlogits[n * Vp + v] = from_float<T>(0);
        return;
    }
    const float inverse = 1 / w.how.temperature, own_share = 1 - w.how.mix, logit = logit_of(to_float(x[y]), w.z);
    float top = -3.402823466e38f, teacher_top = top;
    for (int v = threadIdx.x; v < V; v += blockDim.x) {
        top = fmaxf(top, logit_of(to_float(x[v]), w.z));
        teacher_top = fmaxf(teacher_top, logit_of(to_float(t[v]), w.teacher_z));
    }
    top = block_max(top), teacher_top = block_max(teacher_top);
    float q_sum = 0, p_sum = 0, e_sum = 0, difference = 0;
    for (int v = threadIdx.x; v < V; v += blockDim.x) {
        const float z = logit_of(to_float(x[v]), w.z) - top, u = logit_of(to_float(t[v]), w.teacher_z) - teacher_top;
        const float p = Softmax::exp(u * inverse);
        q_sum += Softmax::exp(z * inverse), p_sum += p, e_sum += Softmax::exp(z);
        difference += p * (u - z);
    }
    q_sum = block_sum(q_sum), p_sum = block_sum(p_sum), e_sum = block_sum(e_sum), difference = block_sum(difference);
    if (threadIdx.x == 0) {
        const float kl = difference / p_sum * inverse - logf(p_sum) + logf(q_sum);
        loss[n] = w.how.mix * w.how.temperature * w.how.temperature * kl + own_share * (logf(e_sum) - (logit - top));
    }
    const float q_factor = scale * w.how.mix * w.how.temperature / q_sum;
    const float p_factor = scale * w.how.mix * w.how.temperature / p_sum, e_factor = scale * own_share / e_sum;
    for (int v = threadIdx.x; dlogits && v < Vp; v += blockDim.x) {
        float g = 0;
        if (v < V) {
            const float z = logit_of(to_float(x[v]), w.z), part = w.z.cap != 0 ? z / w.z.cap : 0;
            const float label = v == y ? scale * own_share : 0;
            g = Softmax::exp((z - top) * inverse) * q_factor -
                Softmax::exp((logit_of(to_float(t[v]), w.teacher_z) - teacher_top) * inverse) * p_factor +
                (Softmax::exp(z - top) * e_factor - label);
            g *= w.z.scale * (1 - part * part);
        }
        dlogits[n * Vp + v] = from_float<T>(g);
    }
}
template <class T> void distill_loss(float* loss, T* dlogits, const T* logits, const T* teacher, const int* target,
                                     float scale, Distillation how, Logits z, Logits teacher_z, int N, int V, int Vp) {
    launch(distill_row<T>, {unsigned(N), DISTILL_THREADS}, loss, dlogits, logits, teacher, target, scale,
           Teaching{how, z, teacher_z}, V, Vp);
}

const CudaRegistration entries([]<class T>(Ops<T>& o, Dtype) {
    o.cross_entropy = cross_entropy<T>;
    o.value_loss = value_loss<T>;
    o.distill_loss = distill_loss<T>;
});
}    // namespace

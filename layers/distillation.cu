// distillation.cu - a loss on a teacher's probabilities and on tokens, for rows of logits.
//
// One block per row, in three passes over the student's and the teacher's logits: maxima, sums,
// gradient. Bound by memory: 2 V elements from memory, 4 V from L2, Vp written.
#include "layers/attention/softcap.cuh"

namespace {
constexpr int THREADS = 512;

struct Teaching {
    Distillation how;
    Logits z, teacher_z;
};
__device__ inline float shaped(float x, Logits z) {
    return z.cap != 0 ? z.cap * tanh_of(x * (z.scale / z.cap)) : z.scale * x;
}
__device__ inline float natural_exp(float x) { return exp2_approx(x * LOG2E); }

// dlogits may be logits, as a thread writes only elements that it alone reads; null: loss only.
template <class T> __global__ void __launch_bounds__(THREADS)
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
    const float inverse = 1 / w.how.temperature, own_share = 1 - w.how.mix, logit = shaped(to_float(x[y]), w.z);
    float top = -3.402823466e38f, teacher_top = top;
    for (int v = threadIdx.x; v < V; v += blockDim.x) {
        top = fmaxf(top, shaped(to_float(x[v]), w.z));
        teacher_top = fmaxf(teacher_top, shaped(to_float(t[v]), w.teacher_z));
    }
    top = block_max(top), teacher_top = block_max(teacher_top);
    float q_sum = 0, p_sum = 0, e_sum = 0, difference = 0;
    for (int v = threadIdx.x; v < V; v += blockDim.x) {
        const float z = shaped(to_float(x[v]), w.z) - top, u = shaped(to_float(t[v]), w.teacher_z) - teacher_top;
        const float p = natural_exp(u * inverse);
        q_sum += natural_exp(z * inverse), p_sum += p, e_sum += natural_exp(z);
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
            const float z = shaped(to_float(x[v]), w.z), part = w.z.cap != 0 ? z / w.z.cap : 0;
            const float label = v == y ? scale * own_share : 0;
            g = natural_exp((z - top) * inverse) * q_factor -
                natural_exp((shaped(to_float(t[v]), w.teacher_z) - teacher_top) * inverse) * p_factor +
                (natural_exp(z - top) * e_factor - label);
            g *= w.z.scale * (1 - part * part);
        }
        dlogits[n * Vp + v] = from_float<T>(g);
    }
}
template <class T> void distill_loss(float* loss, T* dlogits, const T* logits, const T* teacher, const int* target,
                                     float scale, Distillation how, Logits z, Logits teacher_z, int N, int V, int Vp) {
    launch(distill_row<T>, {unsigned(N), THREADS}, loss, dlogits, logits, teacher, target, scale,
           Teaching{how, z, teacher_z}, V, Vp);
}

const CudaRegistration entries([]<class T>(Ops<T>& o, Dtype) { o.distill_loss = distill_loss<T>; });
}    // namespace

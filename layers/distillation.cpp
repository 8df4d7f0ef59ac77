// distillation.cpp - a loss on a teacher's probabilities and on tokens, for rows of logits.
//
// Three passes over both rows, which stay in L2: their maxima; the sums of exponentials, and the
// teacher's mean difference of the logits, from which the divergence follows; the gradient. Bound by
// three exp per element, in passes two and three.
#include "layers/simd/tanh.h"

namespace ISA {
constexpr float LOWEST = -__builtin_inff();

// Logits as Logits shapes them.
template <bool plain> INLINE vf shaped(vf x, Logits l) {
    if constexpr (plain) return x;
    return l.cap != 0 ? tanh(x * (l.scale / l.cap)) * l.cap : x * l.scale;
}
template <bool plain> INLINE float largest(const float* x, Logits l, int V) {
    vf top = set1(LOWEST);
    each_vector(V, [&](int64_t i, auto at) { top = max(at.fill_rest(shaped<plain>(at.get(x + i), l), LOWEST), top); });
    return max(top);
}

// Returns the loss of a row. d, which may be x, gets the gradient; null: loss only.
template <bool plain, class D> INLINE float row(D* d, const float* x, const float* teacher, int target, float scale,
                                                Distillation how, Logits l, Logits teacher_l, int V, int Vp) {
    const float top = largest<plain>(x, l, V), teacher_top = largest<plain>(teacher, teacher_l, V);
    const float inverse = 1 / how.temperature, own_share = 1 - how.mix;
    const float logit = shaped<plain>(set1(x[target]), l)[0];
    vf sums = {}, plain_sums = {}, teacher_sums = {}, differences = {};
    each_vector(V, [&](int64_t i, auto at) {
        const vf z = shaped<plain>(at.get(x + i), l) - top,
                 t = shaped<plain>(at.get(teacher + i), teacher_l) - teacher_top;
        const vf p = at.fill_rest(exp(t * inverse), 0);
        sums += at.fill_rest(exp(z * inverse), 0);
        plain_sums += at.fill_rest(exp(z), 0);
        teacher_sums += p;
        differences += at.fill_rest(p * (t - z), 0);
    });
    const float q_sum = sum(sums), p_sum = sum(teacher_sums), e_sum = sum(plain_sums);
    const float kl = sum(differences) / p_sum * inverse - __builtin_logf(p_sum) + __builtin_logf(q_sum);
    const float loss = how.mix * how.temperature * how.temperature * kl +
                       own_share * (__builtin_logf(e_sum) - (logit - top));
    if (!d) return loss;
    const float q_factor = scale * how.mix * how.temperature / q_sum,
                p_factor = scale * how.mix * how.temperature / p_sum;
    const float e_factor = scale * own_share / e_sum;
    auto slope = [&](vf z) {
        if constexpr (plain) return set1(1);
        const vf part = z * (l.cap != 0 ? 1 / l.cap : 0);
        return (1 - part * part) * l.scale;
    };
    const vf label = (exp(set1(logit - top)) * e_factor - scale * own_share);
    vf at_target = {};    // the target's element, computed apart: its label is subtracted in fp32
    {
        const vf z = set1(logit), t = shaped<plain>(set1(teacher[target]), teacher_l) - teacher_top;
        at_target = (exp((z - top) * inverse) * q_factor - exp(t * inverse) * p_factor + label) * slope(z);
    }
    each_vector(V, [&](int64_t i, auto at) {
        const vf z = shaped<plain>(at.get(x + i), l), t = shaped<plain>(at.get(teacher + i), teacher_l) - teacher_top;
        const vf g = exp((z - top) * inverse) * q_factor - exp(t * inverse) * p_factor + exp(z - top) * e_factor;
        at.put(d + i, g * slope(z));
    });
    store_some(d + target, at_target, 1);
    __builtin_memset(d + V, 0, size_t(Vp - V) * sizeof(D));
    return loss;
}

template <class P> static void distill_loss(float* loss, P* dlogits, const float* logits, const float* teacher,
                                            const int* target, float scale, Distillation how, Logits z,
                                            Logits teacher_z, int N, int V, int Vp) {
    const bool plain = z.scale == 1 && z.cap == 0 && teacher_z.scale == 1 && teacher_z.cap == 0;
    each_range(N, 1, 2 * int64_t(N) * V, [&](Range r, int) {
        for (int64_t n = r.from; n < r.to; n++) {
            P* d = dlogits ? dlogits + n * Vp : nullptr;
            const float *x = logits + n * Vp, *t = teacher + n * Vp;
            if (target[n] < 0) {
                loss[n] = 0;
                if (d) __builtin_memset(d, 0, size_t(Vp) * sizeof(P));
            } else {
                loss[n] = plain ? row<true>(d, x, t, target[n], scale, how, z, teacher_z, V, Vp)
                                : row<false>(d, x, t, target[n], scale, how, z, teacher_z, V, Vp);
            }
        }
    });
}

REGISTER_CPU(distill_loss, distill_loss<P>)
}    // namespace ISA

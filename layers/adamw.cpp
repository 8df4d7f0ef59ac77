// adamw.cpp - one step of the AdamW optimizer in one pass over all tensors, and the sum of squares
// of the gradients, from which their norm follows.
//
// Bound by memory. A step moves 28 bytes per parameter: it reads the weight, m, v and the gradient,
// and writes all but the gradient. A bf16 weight takes 30 bytes with an fp32 master, 24 without
// one. The sum of squares reads 4 bytes. Square root and division are not approximated (IEEE 754).
#include "layers/simd/philox_vec.h"

namespace ISA {
// Blocks start at multiples of BLOCK for any number of threads. So the elements in a loop's scalar
// tail are always the same ones, and no bit depends on the number of threads.
constexpr int64_t BLOCK = 8192, PARTS = 2048, ROW = 64;    // ROW: elements that share a group

// Adds up eight sums in the same order for every instruction set. The square of a float is exact in
// double, so an FMA changes nothing, and all instruction sets give the same bits.
static double block_squares(const float* x, int64_t n) {
    typedef double Sums __attribute__((vector_size(64)));
    typedef float Eight __attribute__((vector_size(32), aligned(4), may_alias));
    Sums s = {};
    int64_t i = 0;
    for (; i + 8 <= n; i += 8) {
        const Sums d = __builtin_convertvector(*reinterpret_cast<const Eight*>(x + i), Sums);
        s += d * d;
    }
    for (; i < n; i++) s[i % 8] += double(x[i]) * double(x[i]);
    double total = 0;
    for (int k = 0; k < 8; k++) total += s[k];
    return total;
}
static void sum_of_squares(double* out, const float* x, int64_t n) {
    double part[PARTS];
    const int64_t size = BLOCK * (1 + n / (BLOCK * PARTS)), parts = (n + size - 1) / size;
    each_item(parts, n / 4, [&](int64_t p) { part[p] = block_squares(x + p * size, least64(size, n - p * size)); });
    double total = 0;
    for (int64_t p = 0; p < parts; p++) total += part[p];
    *out = total;
}

// Updates w, m and v of n elements that share a group. `a` is passed as a copy: with a reference
// the loop would read it again after each store, and take twice as long.
INLINE void step_row(float* w, float* m, float* v, const float* dw, int n, const Step& step, OptimizerParams a,
                     float decay) {
    const float scale = step.scale, rm = step.m_correction, rv = step.v_correction, d1 = 1 - a.beta1, d2 = 1 - a.beta2;
#pragma omp simd
    for (int i = 0; i < n; i++) {
        float g = scale * dw[i];
        m[i] = a.beta1 * m[i] + d1 * g;
        v[i] = a.beta2 * v[i] + d2 * (g * g);
        w[i] -= a.lr * (m[i] * rm / (__builtin_sqrtf(v[i] * rv) + a.eps) + decay * w[i]);
    }
}

// Returns one of the two bf16 next to x, the nearer one more likely: adding 16 random bits to the
// lower half of x carries into the upper half with the right probability. Infinities and NaN stay.
INLINE vf rounded_at_random(vf x, vu random) {
    const vu u = reinterpret_cast<vu>(x);
    return (u & 0x7f800000) == 0x7f800000 ? x : reinterpret_cast<vf>((u + random) & 0xffff0000);
}

// master: fp32 weights of which a bf16 w is the rounded copy, or null. Not used if w is float.
template <class P> static void adamw(P* w, float* master, float* m, float* v, const float* dw, const uint8_t* groups,
                                     int64_t n, const Step* step, OptimizerParams a, uint64_t seed) {
    if (step->skipped) return;
    each_range(n, BLOCK, n / 4, [&](Range r, int) {
        for (int64_t at = r.from; at < r.to; at += ROW) {
            const int count = int(least64(n - at, ROW));
            const float decay = groups[at / ROW] & GROUP_DECAYS ? a.weight_decay : 0;
            OptimizerParams own = a;
            if (groups[at / ROW] & GROUP_FAST) own.lr *= a.fast;
            auto step_of = [&](float* weights) __attribute__((always_inline)) {
                step_row(weights, m + at, v + at, dw + at, count, *step, own, decay);
            };
            if constexpr (sizeof(P) == 4) {
                step_of(w + at);
            } else if (master) {
                step_of(master + at);
                each_vector(count, [&](int64_t i, auto in) { in.put(w + at + i, in.get(master + at + i)); });
            } else {
                float row[ROW];
                uint32_t random[RANDOMS];
                static_assert(RANDOMS == ROW);
                random_words<4, 1>(random, seed, uint64_t(step->updates), uint64_t(at / 4));
                each_vector(count, [&](int64_t i, auto in) { in.put(row + i, in.get(w + at + i)); });
                step_of(row);
                each_vector(count, [&](int64_t i, auto in) {
                    vu bits;
                    __builtin_memcpy(&bits, random + i, sizeof bits);
                    in.put(w + at + i, rounded_at_random(in.get(row + i), bits >> 16));
                });
            }
        }
    });
}

REGISTER_CPU(adamw, adamw<P>)
REGISTER_CPU(sum_of_squares, sum_of_squares)
}    // namespace ISA

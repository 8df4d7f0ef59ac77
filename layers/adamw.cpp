// adamw.cpp - the optimizer's step in one pass over all tensors, and the sum of squares for the gradient norm. Bound by
// memory: 28 bytes a parameter (4 arrays read, 3 written) and 4. Square root and division are IEEE's, not estimates.
#include "vec.h"

namespace ISA {
// Blocks start at multiples of BLOCK from element 0, whatever the number of threads: an element that is in a loop's
// scalar tail is there always.
constexpr int64_t BLOCK = 8192, PARTS = 2048, ROW = 64;    // ROW: elements that decay or do not

void sum_of_squares(double* out, const float* x, int64_t n) {
    double part[PARTS];
    const int64_t size = BLOCK * (1 + n / (BLOCK * PARTS)), parts = (n + size - 1) / size;
#pragma omp parallel for schedule(static) if (parts > 4)
    for (int64_t p = 0; p < parts; p++) {
        double s = 0;
        const float* from = x + p * size;
        const int64_t count = least64(size, n - p * size);
#pragma omp simd reduction(+ : s)
        for (int64_t i = 0; i < count; i++) s += double(from[i]) * double(from[i]);
        part[p] = s;
    }
    double total = 0;
    for (int64_t p = 0; p < parts; p++) total += part[p];
    *out = total;
}

// master: a float w is its own. seed: nothing is rounded.
void adamw(float* w, float*, float* m, float* v, const float* dw, const uint8_t* decays, int64_t n, const Step* step,
           AdamW a, uint64_t) {
    if (step->skipped) return;
    const float scale = step->scale, rm = step->m_scale, rv = step->v_scale, d1 = 1 - a.beta1, d2 = 1 - a.beta2;
#pragma omp parallel for schedule(static) if (n > 4 * BLOCK)
    for (int64_t from = 0; from < n; from += BLOCK)
        for (int64_t at = from; at < least64(n, from + BLOCK); at += ROW) {
            const int64_t to = least64(n, at + ROW);
            const float decay = decays[at / ROW] ? a.weight_decay : 0;
#pragma omp simd
            for (int64_t i = at; i < to; i++) {
                float g = scale * dw[i];
                m[i] = a.beta1 * m[i] + d1 * g;
                v[i] = a.beta2 * v[i] + d2 * (g * g);
                w[i] -= a.lr * (m[i] * rm / (__builtin_sqrtf(v[i] * rv) + a.eps) + decay * w[i]);
            }
        }
}
}   // namespace ISA

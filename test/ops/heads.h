// heads.h - for attention's tests: Heads with a scale, a soft cap and ALiBi, or with a sparse
// pattern; errors of tables that round to bf16.
#pragma once
#include "ops.h"

inline Heads shaped(Heads h, float scale, float softcap, bool alibi = false) {
    h.scale = scale, h.softcap = softcap, h.alibi = alibi;
    return h;
}
inline Heads patterned(Heads h, int stride, int global_tokens) {
    h.stride = stride, h.global_tokens = global_tokens;
    return h;
}

// Error relative to the largest element, for a float table that rounds factors to bf16
// (attention_rounds_to_bf16) and inputs that are bf16 already. Each probability p, and each ds, is
// off by at most 2^-8 of itself, on average by less than half of that. So y is off by about 2^-9
// max |v|, and max |y| is not much less than max |v|: position 0 copies v. The terms of a gradient
// are off by as much, and where they cancel their sum is smaller than they are. Only a CPU has such
// a table, so h may point to host memory. stored: error of storing a number, relative to that
// number.
template <class R> inline double of_largest(const Numbers& got, const std::vector<R>& expected, double stored = 0) {
    double worst = 0, largest = 0;
    for (size_t i = 0; i < got.size(); i++) {
        const double error = std::fabs(got[i] - double(expected[i])), size = std::fabs(double(expected[i]));
        worst = worse(worst, error - stored * size);
        largest = std::fmax(largest, size);
    }
    return worst / largest;
}

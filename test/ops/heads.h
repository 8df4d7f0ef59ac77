// heads.h - Heads with a scale, a soft cap and ALiBi, or with a sparse pattern, for attention's
// tests.
#pragma once
#include "layers/ops.h"

inline Heads shaped(Heads h, float scale, float softcap, bool alibi = false) {
    h.scale = scale, h.softcap = softcap, h.alibi = alibi;
    return h;
}
inline Heads patterned(Heads h, int stride, int global_tokens) {
    h.stride = stride, h.global_tokens = global_tokens;
    return h;
}

// tanh.h - tanh, as exact near 0 as elsewhere: soft caps of small numbers keep their digits.
#pragma once
#include "vec.h"

namespace ISA {
// tanh(x) = m / (m + 2), m = e^2x - 1 = 2^k (2^r - 1) + (2^k - 1), |r| <= 1/2. Beyond |x| = 9.2 it is 1 in float.
// 2^r - 1 is exp2's polynomial less its last term. NaN stays NaN.
INLINE vf tanh(vf x) {
    const float MAGIC = 0x1.8p23f + 127;    // adding it rounds to an integer, which the low bits then hold, plus 127
    const vf y = max(set1(-9.2f), min(set1(9.2f), x)) * (2 * LOG2E), t = y + MAGIC, r = y - (t - MAGIC);
    const vf power = reinterpret_cast<vf>(reinterpret_cast<vi>(t) << 23);
    vf p = set1(0x1.41d334p-13f);
    p = p * r + 0x1.5f456ap-10f;
    p = p * r + 0x1.3b2dbcp-7f;
    p = p * r + 0x1.c6aed4p-5f;
    p = p * r + 0x1.ebfbdap-3f;
    p = p * r + 0x1.62e430p-1f;
    const vf m = power * (p * r) + (power - 1);
    return m / (m + 2);
}
}   // namespace ISA

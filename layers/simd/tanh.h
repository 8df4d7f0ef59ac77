// tanh.h - tanh, with full relative precision near 0: soft caps of small numbers keep their digits.
#pragma once
#include "vec.h"

namespace ISA {
// tanh(x) = m / (m + 2), m = e^2x - 1 = whole * rest + (whole - 1) (vec.h: Power). Beyond |x| = 9.2
// it is 1 or -1 in float. NaN stays NaN.
INLINE vf tanh(vf x) {
    const Power y = power_of_two(max(set1(-9.2f), min(set1(9.2f), x)) * (2 * LOG2E));
    const vf m = y.whole * y.rest + (y.whole - 1);
    return m / (m + 2);
}
}    // namespace ISA

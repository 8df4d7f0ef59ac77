// optimizer_state.h - optimizer states in 8 bits, alike on all devices.
//
// Each block of 64 numbers has a scale, its largest absolute value, and codes of number / scale:
// the dynamic codes of Dettmers et al. 2022 (section 2.1), with two changes. The largest code
// stands for exactly 1, with either sign: otherwise a block's scale would shrink whenever it is
// decoded and encoded again. And a second moment v above 0, whose codes have no sign, never gets
// code 0, because a step divides by sqrt(v).
//
// A code's magnitude j has BITS bits: 7 and a sign for the first moment m, 8 for v. j = 0 stands
// for 0, the largest j for 1. Otherwise decade e = floor(log2 j) holds the numbers from
// 10^(e - BITS) to 10^(e - BITS + 1) in 2^e equal intervals, and j stands for the middle of
// interval j - 2^e, counted from 0. So in a decade j is linear in the number x:
// j = x * 10^(BITS - 1 - e) * 2^e / 0.9 + 8/9 * 2^e, rounded down.
#pragma once
#include "base/common.h"

constexpr int STATE_BLOCK = 64;
template <int BITS> struct StateCode {
    static constexpr int TOP = (1 << BITS) - 1;
    HOST_DEVICE static constexpr double decade_end(int e) {
        double end = 1;
        for (; e < BITS - 1; e++) end /= 10;
        return end;
    }
    HOST_DEVICE static constexpr double middle(int j, int e) {
        return (0.9 * (j + 0.5) / (1 << e) - 0.8) * decade_end(e);
    }
    // Smallest number of decade e, halfway between its first code's number and the last one below.
    HOST_DEVICE static constexpr float threshold(int e) {
        return float((middle((1 << e) - 1, e - 1) + middle(1 << e, e)) / 2);
    }
    HOST_DEVICE static constexpr float factor(int e) { return float((1 << e) / (0.9 * decade_end(e))); }
    HOST_DEVICE static constexpr float value(int j) {
        int e = 0;
        while (j >> (e + 1)) e++;
        return j == 0 ? 0 : j == TOP ? 1 : float(middle(j, e));
    }
    static constexpr float SMALLEST = float(middle(1, 0));
    static constexpr float HALF = float(8.0 / 9);
};

// Finds the decade of x and gives its factor, and 2^e as `low`. V: float, or a vector of them.
template <int BITS, int E = 1, class V>
HOST_DEVICE static inline __attribute__((always_inline)) void find_decade(V x, V& factor, V& low) {
    if constexpr (E < BITS) {
        constexpr float threshold = StateCode<BITS>::threshold(E), its_factor = StateCode<BITS>::factor(E);
        factor = x >= threshold ? V{} + its_factor : factor;
        low = x >= threshold ? V{} + float(1 << E) : low;
        find_decade<BITS, E + 1>(x, factor, low);
    }
}

// Block of decoded values for all 256 codes. m's codes have their sign in bit 7.
struct StateValues {
    float of_m[256], of_v[256];
    constexpr StateValues() : of_m(), of_v() {
        for (int c = 0; c < 256; c++) {
            of_m[c] = (c & 128 ? -1 : 1) * StateCode<7>::value(c & 127);
            of_v[c] = StateCode<8>::value(c);
        }
    }
};

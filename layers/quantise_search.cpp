// quantise_search.cpp - see quantise_search.h. Each lane is one candidate, and sums over the numbers in their order, so
// it has the bits of a loop. Bound by arithmetic: four passes of 16 operations a number and vector.
//
// An FMA in the place of a product and a sum would give other bits than a CPU without it.
#pragma GCC optimize("fp-contract=off")
#include "layers/simd/vec.h"
#include "quantise_search.h"

namespace ISA {
namespace {
INLINE vf rounded(vf x, vf lo, vf hi) {
    const vf round = set1(0x1.8p23f);
    return (min(max(x, lo), hi) + round) - round;
}
INLINE vf inverse(vf d) {
    const vf r = 1 / d;
    return r - r == 0 ? r : vf{};
}
INLINE vf numbered(int first) { return __builtin_convertvector(lanes() + first, vf); }
INLINE bool all(vi mask) {
    int both = -1;
    for (int i = 0; i < VW; i++) both &= mask[i];
    return both != 0;
}

// ---- x ~ d q --------------------------------------------------------------------------------------------------------

constexpr int STEPS = 17, SCALES = 2 * STEPS, TURNS = 2, VECTORS = (SCALES + VW - 1) / VW;

template <int N> bool find_scale(const float* x, float most, int lo, float* best) {
    const vf low = set1(float(lo)), high = set1(float(-lo - 1));
    vf xqs[TURNS * VECTORS], qqs[TURNS * VECTORS], top = {}, top_xq = {}, top_qq = set1(1);
    for (int k = 0; k < VECTORS; k++) {
        const vf c = min(numbered(k * VW), set1(SCALES - 1));    // beyond the last: the last again
        const vf step = (c < STEPS ? c : c - STEPS) - 6;
        vf inv = (c < STEPS ? set1(-1) : set1(1)) * (set1(float(-lo)) - step / 8) / most;
        for (int turn = 0; turn < TURNS; turn++) {
            vf xq = {}, qq = {};
            for (int i = 0; i < N; i++) {
                const vf q = rounded(x[i] * inv, low, high);
                xq += x[i] * q;
                qq += q * q;
            }
            xq = qq > 0 ? xq : vf{};
            qq = qq > 0 ? qq : set1(1);
            const vf gain = xq * xq;
            const vi more = gain * top_qq > top * qq;
            top = more ? gain : top, top_xq = more ? xq : top_xq, top_qq = more ? qq : top_qq;
            xqs[turn * VECTORS + k] = xq, qqs[turn * VECTORS + k] = qq;
            inv = inverse(xq / qq);
        }
    }
    float gain = 0, xq = 0, qq = 1;
    for (int i = 0; i < VW; i++)
        if (top[i] * qq > gain * top_qq[i]) gain = top[i], xq = top_xq[i], qq = top_qq[i];
    *best = xq / qq;
    if (!(gain > 1e-30f && gain < 1e30f)) return false;    // products lose bits, or a number is not finite
    // All that are not behind by more than rounding have these very sums: each gives this scale.
    vi clear = vi{} - 1;
    for (int k = 0; k < TURNS * VECTORS; k++) {
        const vi behind = xqs[k] * xqs[k] * qq < (gain * (1 - 1e-6f)) * qqs[k];
        clear &= behind | ((xqs[k] == xq) & (qqs[k] == qq));
    }
    if (all(clear)) return true;
    float best_gain = 0;    // else as the loop does it
    for (int c = 0; c < SCALES; c++)
        for (int turn = 0; turn < TURNS; turn++) {
            const float xq = xqs[turn * VECTORS + c / VW][c % VW], qq = qqs[turn * VECTORS + c / VW][c % VW];
            if (xq * xq > best_gain * qq) best_gain = xq * xq / qq, *best = xq / qq;
        }
    return true;
}
bool find_scale16(const float* x, float most, float* best) { return find_scale<16>(x, most, -32, best); }

// ---- x ~ d q + m ----------------------------------------------------------------------------------------------------

struct Lines { vf d, m; };
struct Fit { vf q1 = {}, q2 = {}, x1 = {}, xq = {}, error = {}; };

// The sums over 32 numbers and their integers in [0, most]; the squared error.
template <bool sums> INLINE Fit pass(const float* x, Lines line, float most) {
    const vf inv = inverse(line.d), high = set1(most);
    Fit f;
    for (int i = 0; i < 32; i++) {
        const vf q = rounded((x[i] - line.m) * inv, vf{}, high), off = x[i] - (line.d * q + line.m);
        f.error += off * off;
        if (!sums) continue;
        f.q1 += q;
        f.q2 += q * q;
        f.x1 += x[i];
        f.xq += x[i] * q;
    }
    return f;
}
INLINE Lines refit(const Fit& f, Lines line, bool below) {
    const vf det = 32 * f.q2 - f.q1 * f.q1;
    vf m = (f.q2 * f.x1 - f.q1 * f.xq) / det;
    const vi at_zero = below ? m > 0 : vi{};
    const vf d = (at_zero ? f.xq : 32 * f.xq - f.q1 * f.x1) / (at_zero ? f.q2 : det);
    m = at_zero ? vf{} : m;
    const vi good = (det > 0) & (d > 0);
    return {good ? d : line.d, good ? m : line.m};
}

bool find_line(const float* x, float low, float high, float most, bool below, Line* best) {
    constexpr int TURNS = 3, VECTORS = 16 / VW;
    Lines lines[VECTORS][TURNS];
    vf errors[VECTORS][TURNS], least;
    const float width = high - low;
    *best = {width / most, low};
    float whole = 0;    // the error of *best
    for (int k = 0; k < VECTORS; k++) {
        const vf c = numbered(k * VW), cut_low = __builtin_convertvector(__builtin_convertvector(c, vi) >> 2, vf);
        const vf cut_high = c - 4 * cut_low;
        const vf from = low + set1(width * 0.06f) * (cut_low * cut_low) / 2;
        Lines line = {(high - set1(width * 0.06f) * (cut_high * cut_high) / 2 - from) / most, from};
        Fit f = pass<true>(x, line, most);
        if (k == 0) whole = f.error[0], least = set1(whole);    // lane 0 begins with that line
        for (int turn = 0; turn < TURNS; turn++) {
            lines[k][turn] = line = refit(f, line, below);
            f = turn < TURNS - 1 ? pass<true>(x, line, most) : pass<false>(x, line, most);
            errors[k][turn] = f.error;
            least = min(f.error, least);
        }
    }
    float least_error = whole;
    for (int i = 0; i < VW; i++) least_error = least[i] < least_error ? least[i] : least_error;
    if (!(least_error < whole)) return whole - whole == 0;
    for (int c = 0; c < 16; c++)
        for (int turn = 0; turn < TURNS; turn++)
            if (errors[c / VW][turn][c % VW] == least_error) {
                *best = {lines[c / VW][turn].d[c % VW], lines[c / VW][turn].m[c % VW]};
                return true;
            }
    return false;
}

bool find_pair(const float* x, float d, float m, Line near, Line* best) {
    float least = INFINITY;
    *best = near;
    for (int k = 0; k < 9; k += VW) {
        const vf c = min(numbered(k), set1(8));
        const vf s_off = (c > 2 ? set1(1) : vf{}) + (c > 5 ? set1(1) : vf{});
        const vf s = near.d - 1 + s_off, t = near.m - 1 + (c - 3 * s_off);
        const vf error = pass<false>(x, {d * s, -m * t}, 15).error;
        const vi there = (s >= 0) & (s <= 63) & (t >= 0) & (t <= 63);
        for (int i = 0; i < VW && k + i < 9; i++)
            if (there[i] && error[i] < least) least = error[i], *best = {s[i], t[i]};
    }
    return true;
}
}   // namespace

QuantiseSearch quantise_search() { return {find_scale16, find_scale<32>, find_line, find_pair}; }
}   // namespace ISA

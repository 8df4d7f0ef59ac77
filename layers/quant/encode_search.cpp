// encode_search.cpp - see encode_search.h. Each lane is one candidate and sums over the numbers in
// their order, so it has the bits of a loop. Bound by arithmetic: 4 passes, 16 operations a number.
//
// An FMA instead of a product and a sum would give other bits than a CPU without FMAs.
#pragma GCC optimize("fp-contract=off")
#include "layers/simd/vec.h"
#include "encode_search.h"

namespace ISA {
namespace {
INLINE vf nearest(vf x) { return (x + 0x1.8p23f) - 0x1.8p23f; }
INLINE vf rounded(vf x, vf lo, vf hi) { return nearest(min(max(x, lo), hi)); }
INLINE vf inverse(vf d) {
    const vf r = 1 / d;
    return r - r == 0 ? r : vf{};
}
INLINE vf numbered(int first) { return __builtin_convertvector(lanes() + first, vf); }
// Whether a comparison holds in any lane. A template, because other instruction sets lack the name.
template <class V> struct Floats { typedef vf type; };
template <class V> INLINE bool any(V mask) {
    if constexpr (VW == 8) return __builtin_ia32_movmskps256(reinterpret_cast<typename Floats<V>::type>(mask)) != 0;
    int one = 0;
    for (int i = 0; i < VW; i++) one |= mask[i];
    return one != 0;
}
template <class V> INLINE bool all(V mask) { return !any(~mask); }

// ---- x ~ d q ------------------------------------------------------------------------------------

// A candidate scale maps the number of largest magnitude to about lo + step / 4 (one side) or to
// its opposite (the other side), with 9 values of step for each side; 17 values, an eighth apart,
// find the same errors to four digits. Lanes of the other side hold the opposites of its integers,
// so that this number is negative in all lanes: integers are in [lo, -lo - 1], or [lo + 1, -lo].
// In the BOTH steps furthest from lo no number is clamped on either side: both sides then have the
// same sums and share a lane; these lanes come first, in one vector.
constexpr int STEPS = 9, BOTH = 3, LANES = 2 * STEPS - BOTH, VECTORS = 16 / VW;
// First guesses; refitted scales; shared lanes, refitted for the other side.
constexpr int ALL = 2 * VECTORS + 1;
constexpr int TOGETHER = VECTORS > 1 ? 2 : 1;    // vectors: a single one waits for its sums

struct Sums {
    vf xq, qq;
};
struct Limits {
    vf low, high;
};
// K vectors. other: the largest number on the other side of zero.
template <int N, int K>
INLINE void add_up(const float* x, const vf* inv, const Limits* limits, float other, Sums* sums) {
    vf xq[K] = {}, qq[K] = {};
    vi below = vi{} - 1;    // no number is clamped at the high end
    for (int j = 0; j < K; j++) below &= other * inv[j] < limits[j].high + 0.5f;
    const bool meets = !all(below);
    auto add = [&](auto top) {
        for (int i = 0; i < N; i++)
            for (int j = 0; j < K; j++) {
                const vf above = max(x[i] * inv[j], limits[j].low), q = nearest(top(above, limits[j].high));
                xq[j] += x[i] * q;
                qq[j] += q * q;
            }
    };
    if (meets) add([](vf above, vf high) { return min(above, high); });
    else add([](vf above, vf) { return above; });
    for (int j = 0; j < K; j++) sums[j] = {qq[j] > 0 ? xq[j] : vf{}, qq[j] > 0 ? qq[j] : set1(1)};
}

// The best candidate in the loop's order.
float in_order(const Sums* sums, vi joined) {
    float best = 0, best_gain = 0;
    for (int side = -1; side <= 1; side += 2)
        for (int c = STEPS - 1; c >= 0; c--) {
            const bool shared = side > 0 && c < BOTH;
            const int lane = side < 0 || shared ? c : STEPS + c - BOTH, k = lane / VW, i = lane % VW;
            for (int iteration = 0; iteration < 2; iteration++) {
                const Sums& s = sums[iteration == 0 ? k : shared && !joined[i] ? 2 * VECTORS : VECTORS + k];
                const float xq = s.xq[i], qq = s.qq[i];
                if (xq * xq > best_gain * qq) best_gain = xq * xq / qq, best = side < 0 ? xq / qq : -xq / qq;
            }
        }
    return best;
}

template <int N> bool find_scale(const float* x, float most, int lo, float* best) {
    float other = 0;
    for (int i = 0; i < N; i++) other = most > 0 ? (x[i] < other ? x[i] : other) : (x[i] > other ? x[i] : other);
    Sums sums[ALL];
    // Lanes of the first vector that are both sides in the second iteration, too.
    vi joined = {};
    for (int k = 0; k < VECTORS; k += TOGETHER) {
        vf inv[TOGETHER];
        Limits limits[TOGETHER];
        for (int j = 0; j < TOGETHER; j++) {
            const vf c = min(numbered((k + j) * VW), set1(LANES - 1));    // beyond the last: the last again
            const vf step = 5 - (c < STEPS ? c : c - float(STEPS - BOTH));
            limits[j].low = float(lo) + (c < STEPS ? vf{} : set1(1));
            limits[j].high = limits[j].low + float(-2 * lo - 1);
            inv[j] = (step / 4 + float(lo)) / most;
        }
        add_up<N, TOGETHER>(x, inv, limits, other, sums + k);
        for (int j = 0; j < TOGETHER; j++) inv[j] = inverse(sums[k + j].xq / sums[k + j].qq);
        add_up<N, TOGETHER>(x, inv, limits, other, sums + VECTORS + k);
        if (k) continue;
        const vi both = numbered(0) < BOTH;
        joined = (most * inv[0] > set1(float(lo)) + 0.5f) & both;
        sums[2 * VECTORS] = sums[VECTORS];
        for (vf* limit : {&limits[0].low, &limits[0].high}) *limit += both ? set1(1) : vf{};
        if (any(both & ~joined)) add_up<N, 1>(x, inv, limits, other, sums + 2 * VECTORS);
    }
    vf top = {}, top_xq = {}, top_qq = set1(1);
    for (const Sums& s : sums) {
        const vf gain = s.xq * s.xq;
        const vi more = gain * top_qq > top * s.qq;
        top = more ? gain : top;
        top_xq = more ? s.xq : top_xq;
        top_qq = more ? s.qq : top_qq;
    }
    float gain = 0, xq = 0, qq = 1;
    for (int i = 0; i < VW; i++)
        if (top[i] * qq > gain * top_qq[i]) gain = top[i], xq = top_xq[i], qq = top_qq[i];
    if (!(gain > 1e-30f && gain < 1e30f)) return false;    // products lose bits, or are not finite
    // All candidates that are not worse by more than rounding have exactly these sums.
    vi clear = vi{} - 1, near = {}, far = {};    // the side of lo, the other one
    for (int k = 0; k < ALL; k++) {
        const vf c = numbered(k % VECTORS * VW);
        const vi same = (sums[k].xq == xq) & (sums[k].qq == qq);
        clear &= same | (sums[k].xq * sums[k].xq * qq < (gain * (1 - 1e-6f)) * sums[k].qq);
        if (k == 2 * VECTORS) far |= same & (c < BOTH) & ~joined;
        else near |= same & (c < STEPS), far |= same & (c >= STEPS);
        if (k == 0) far |= same & (c < BOTH);
        if (k == VECTORS) far |= same & joined;
    }
    if (!all(clear)) return *best = in_order(sums, joined), true;
    // The loop chooses the far side, which comes later, if by rounding the same gain is more.
    const bool later = any(far) && (!any(near) || gain > gain / qq * qq);
    *best = later ? -xq / qq : xq / qq;
    return true;
}
bool find_scale16(const float* x, float most, float* best) { return find_scale<16>(x, most, -32, best); }

// ---- x ~ d q + m --------------------------------------------------------------------------------

struct Lines {
    vf d, m;
};
struct Fit {
    vf q1 = {}, q2 = {}, x1 = {}, xq = {}, error = {};
};

// Sums over 32 numbers and their integers in [0, most], and the squared error.
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
    constexpr int ITERATIONS = 3, VECTORS = 16 / VW;
    Lines lines[VECTORS][ITERATIONS];
    vf errors[VECTORS][ITERATIONS], least;
    const float width = high - low;
    *best = {width / most, low};
    float whole = 0;    // error of *best
    for (int k = 0; k < VECTORS; k++) {
        const vf c = numbered(k * VW), cut_low = __builtin_convertvector(__builtin_convertvector(c, vi) >> 2, vf);
        const vf cut_high = c - 4 * cut_low;
        const vf from = low + set1(width * 0.06f) * (cut_low * cut_low) / 2;
        Lines line = {(high - set1(width * 0.06f) * (cut_high * cut_high) / 2 - from) / most, from};
        Fit f = pass<true>(x, line, most);
        if (k == 0) whole = f.error[0], least = set1(whole);    // lane 0 begins with that line
        for (int iteration = 0; iteration < ITERATIONS; iteration++) {
            lines[k][iteration] = line = refit(f, line, below);
            f = iteration < ITERATIONS - 1 ? pass<true>(x, line, most) : pass<false>(x, line, most);
            errors[k][iteration] = f.error;
            least = min(f.error, least);
        }
    }
    float least_error = whole;
    for (int i = 0; i < VW; i++) least_error = least[i] < least_error ? least[i] : least_error;
    if (!(least_error < whole)) return whole - whole == 0;
    for (int c = 0; c < 16; c++)
        for (int iteration = 0; iteration < ITERATIONS; iteration++)
            if (errors[c / VW][iteration][c % VW] == least_error) {
                *best = {lines[c / VW][iteration].d[c % VW], lines[c / VW][iteration].m[c % VW]};
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
}    // namespace

QuantiseSearch quantise_search() { return {find_scale16, find_scale<32>, find_line, find_pair}; }
}    // namespace ISA

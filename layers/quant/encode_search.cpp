// encode_search.cpp - see encode_search.h. Each lane is one candidate and sums over the numbers in
// their order, so the result is bit-identical to a scalar loop's. Bound by arithmetic: find_line
// makes four passes over the numbers, with up to 16 operations a number.
//
// Products and sums are not contracted to FMAs, so that CPUs with and without FMAs give equal bits.
#pragma GCC optimize("fp-contract=off")
#include "layers/simd/vec.h"
#include "encode_search.h"

namespace ISA {
namespace {
// Rounds to an integer. vroundps gives -0 where adding and subtracting 1.5 * 2^23 gives +0; no
// result depends on it. A template, as compilers for other instruction sets lack the builtins.
template <class V> INLINE V nearest(V x) {
    if constexpr (VW == 8) return __builtin_ia32_roundps256(x, 8);
    else return (x + 0x1.8p23f) - 0x1.8p23f;
}
// sum + q q for small integers, which is exact: so an FMA has the same bits.
template <class V> INLINE V add_square(V q, V sum) {
    if constexpr (VW == 16) return __builtin_ia32_vfmaddps512_mask(q, q, sum, -1, 4);
    else if constexpr (VW == 8) return __builtin_ia32_vfmaddps256(q, q, sum);
    else return sum + q * q;
}
INLINE vf rounded(vf x, vf lo, vf hi) { return nearest(min(max(x, lo), hi)); }
INLINE vf inverse(vf d) {
    const vf r = 1 / d;
    return r - r == 0 ? r : vf{};
}
INLINE vf numbered(int first) { return __builtin_convertvector(lanes() + first, vf); }
// Floats<V>::type is vf. It depends on V, so that compilers for other instruction sets do not look
// up the built-in functions in `bits`.
template <class V> struct Floats { typedef vf type; };
// A bit for each lane in which a comparison holds.
template <class V> INLINE uint32_t bits(V mask) {
    if constexpr (VW == 16) return uint16_t(__builtin_ia32_cvtd2mask512(mask));
    else if constexpr (VW == 8)
        return uint32_t(__builtin_ia32_movmskps256(reinterpret_cast<typename Floats<V>::type>(mask)));
    uint32_t all = 0;
    for (int i = 0; i < VW; i++) all |= (uint32_t(mask[i]) & 1) << i;
    return all;
}
template <class V> INLINE bool any(V mask) { return bits(mask) != 0; }
template <class V> INLINE bool all(V mask) { return !any(~mask); }

// ---- x ~ d q ------------------------------------------------------------------------------------

// A candidate scale maps the number of largest magnitude (here: the top) to about lo + step / 4
// (the side of lo) or to its opposite (the other side), with 9 values of step for each side. 17
// values, an eighth apart, find the same errors to four digits. Lanes of the other side hold the
// integers with opposite signs, so that the top is negative in all lanes. The integers of a lane
// are in [lo, -lo - 1] for the side of lo, in [lo + 1, -lo] for the other. In the BOTH steps
// furthest from lo no number is clamped on either side. Then the two sides have the same sums and
// share a lane; these lanes come first, in one vector.
constexpr int STEPS = 9, BOTH = 3, LANES = 2 * STEPS - BOTH, VECTORS = 16 / VW;
// Number of vectors of sums: VECTORS for the first guesses, VECTORS for the refitted scales, and
// one for the shared lanes, refitted with the limits of the other side.
constexpr int ALL = 2 * VECTORS + 1;
constexpr int TOGETHER = VECTORS > 1 ? 2 : 1;    // vectors at once: one would wait for sums

struct Sums {
    vf xq, qq;
};
struct Limits {
    vf low, high;
};
// Computes the sums of K vectors of candidates with inverse scales `inv`. other: the largest number
// on the other side of zero, which decides whether numbers are clamped at the high end.
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
                qq[j] = add_square(q, qq[j]);
            }
    };
    if (meets) add([](vf above, vf high) { return min(above, high); });
    else add([](vf above, vf) { return above; });
    for (int j = 0; j < K; j++) sums[j] = {qq[j] > 0 ? xq[j] : vf{}, qq[j] > 0 ? qq[j] : set1(1)};
}

// Goes through the candidates in the order of encode.cpp's loop and returns the best scale.
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

// The smallest and the largest of n numbers and 0, without NaNs.
struct Ends {
    float low, high;
};
INLINE Ends ends(const float* x, int n) {
    vf low = {}, high = {};
    for (int i = 0; i < n; i += VW) {
        low = min(load(x + i), low);
        high = max(load(x + i), high);
    }
    return {-max(-low), max(high)};
}

template <int N> bool find_scale(const float* x, int lo, float* best) {
    const Ends far = ends(x, N);
    float most = far.high > -far.low ? far.high : far.low;    // the first of largest magnitude
    for (int i = 0; i < N && far.high == -far.low; i++)
        if (x[i] == far.high || x[i] == far.low) {
            most = x[i];
            break;
        }
    if (!(most < 0 || most > 0)) return false;
    const float other = most > 0 ? far.low : far.high;
    Sums sums[ALL];
    // Lanes of the first vector whose sums both sides share in the second iteration as well.
    vi joined = {};
    for (int k = 0; k < VECTORS; k += TOGETHER) {
        vf inv[TOGETHER];
        Limits limits[TOGETHER];
        for (int j = 0; j < TOGETHER; j++) {
            const vf c = min(numbered((k + j) * VW), set1(LANES - 1));    // beyond the last: last again
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
    const vf ratio = top / top_qq;
    const uint32_t first = bits(ratio == max(ratio));
    if (!first) return false;
    const int lane = __builtin_ctz(first);
    const float gain = top[lane], xq = top_xq[lane], qq = top_qq[lane];
    if (!(gain > 1e-30f && gain < 1e30f)) return false;    // products lose bits, or numbers are not finite
    // If a candidate equals the best up to rounding but has other sums, in_order decides.
    vi clear = vi{} - 1, near = {}, away = {};    // near: side of lo; away: the other
    for (int k = 0; k < ALL; k++) {
        const vf c = numbered(k % VECTORS * VW);
        const vi same = (sums[k].xq == xq) & (sums[k].qq == qq);
        clear &= same | (sums[k].xq * sums[k].xq * qq < (gain * (1 - 1e-6f)) * sums[k].qq);
        if (k == 2 * VECTORS) away |= same & (c < BOTH) & ~joined;
        else near |= same & (c < STEPS), away |= same & (c >= STEPS);
        if (k == 0) away |= same & (c < BOTH);
        if (k == VECTORS) away |= same & joined;
    }
    if (!all(clear)) return *best = in_order(sums, joined), true;
    // encode.cpp's loop tries the other side later. If both sides have the best sums, the later one
    // wins only if rounding makes gain larger than gain / qq * qq.
    const bool later = any(away) && (!any(near) || gain > gain / qq * qq);
    *best = later ? -xq / qq : xq / qq;
    return true;
}
bool find_scale16(const float* x, float* best) { return find_scale<16>(x, -32, best); }

// ---- x ~ d q + m --------------------------------------------------------------------------------

struct Lines {
    vf d, m;
};
struct Fit {
    vf q1 = {}, q2 = {}, xq = {}, error = {};
};
enum class Pass { sums, error, both };

// Adds to f what `kind` says: the sums that refit needs, or the error, or both, over n numbers and
// their integers in [0, most].
template <Pass kind> INLINE void pass(const float* x, int n, Lines line, float most, Fit& f) {
    const vf inv = inverse(line.d), high = set1(most);
    for (int i = 0; i < n; i++) {
        const vf q = rounded((x[i] - line.m) * inv, vf{}, high);
        if (kind != Pass::sums) {
            const vf off = x[i] - (line.d * q + line.m);
            f.error += off * off;
        }
        if (kind == Pass::error) continue;
        f.q1 += q;
        f.q2 = add_square(q, f.q2);
        f.xq += x[i] * q;
    }
}
INLINE Lines refit(const Fit& f, float x1, Lines line, bool below) {
    const vf det = 32 * f.q2 - f.q1 * f.q1;
    vf m = (f.q2 * x1 - f.q1 * f.xq) / det;
    const vi at_zero = below ? m > 0 : vi{};
    const vf d = (at_zero ? f.xq : 32 * f.xq - f.q1 * x1) / (at_zero ? f.q2 : det);
    m = at_zero ? vf{} : m;
    const vi good = (det > 0) & (d > 0);
    return {good ? d : line.d, good ? m : line.m};
}

bool find_line(const float* x, float most, bool below, LinearFit* best) {
    constexpr int ITERATIONS = 3;
    Lines lines[VECTORS][ITERATIONS];
    vf errors[VECTORS][ITERATIONS], least = load(x), greatest = least;
    vi finite = vi{} - 1;
    for (int i = 0; i < 32; i += VW) {
        const vf v = load(x + i);
        least = min(v, least);
        greatest = max(v, greatest);
        finite &= v - v == 0;
    }
    if (!all(finite)) return false;
    float low = -max(-least);
    const float high = max(greatest);
    if (below && low > 0) low = 0;
    for (int i = 0; i < 32 && low == 0 && !below; i++)    // the first zero's sign is the offset's
        if (x[i] == 0) {
            low = x[i];
            break;
        }
    *best = {0, low};
    if (!(high > low)) return true;
    const float width = high - low;
    *best = {width / most, low};
    float whole = 0, x1 = 0;    // the error of *best; the sum
    for (int i = 0; i < 32; i++) x1 += x[i];
    for (int k = 0; k < VECTORS; k++) {
        const vf c = numbered(k * VW), cut_low = __builtin_convertvector(__builtin_convertvector(c, vi) >> 2, vf);
        const vf cut_high = c - 4 * cut_low;
        const vf from = low + set1(width * 0.06f) * (cut_low * cut_low) / 2;
        Lines line = {(high - set1(width * 0.06f) * (cut_high * cut_high) / 2 - from) / most, from};
        Fit f;
        if (k == 0) {    // lane 0 begins with that line
            pass<Pass::both>(x, 32, line, most, f);
            whole = f.error[0];
            least = set1(whole);
        } else pass<Pass::sums>(x, 32, line, most, f);
        for (int iteration = 0; iteration < ITERATIONS; iteration++) {
            lines[k][iteration] = line = refit(f, x1, line, below);
            f = {};
            iteration < ITERATIONS - 1 ? pass<Pass::both>(x, 32, line, most, f)
                                       : pass<Pass::error>(x, 32, line, most, f);
            errors[k][iteration] = f.error;
            least = min(f.error, least);
        }
    }
    const float least_error = -max(-least);
    if (!(least_error < whole)) return whole - whole == 0;
    for (int k = 0; k < VECTORS; k++) {    // first in the loop's order: lanes, then iterations
        uint32_t found = 0;
        for (int iteration = 0; iteration < ITERATIONS; iteration++) found |= bits(errors[k][iteration] == least_error);
        if (!found) continue;
        const int c = __builtin_ctz(found);
        for (int iteration = 0; iteration < ITERATIONS; iteration++)
            if (errors[k][iteration][c] == least_error) {
                *best = {lines[k][iteration].d[c], lines[k][iteration].m[c]};
                return true;
            }
    }
    return false;
}

bool find_pair(const float* x, float d, float m, LinearFit near, LinearFit* best) {
    float least = INFINITY;
    *best = near;
    for (int k = 0; k < 9; k += VW) {
        const vf c = min(numbered(k), set1(8));
        const vf s_off = (c > 2 ? set1(1) : vf{}) + (c > 5 ? set1(1) : vf{});
        const vf s = near.d - 1 + s_off, t = near.m - 1 + (c - 3 * s_off);
        const vi there = (s >= 0) & (s <= 63) & (t >= 0) & (t <= 63);
        Fit f;
        // An error only grows with further numbers, so after half of them often no pair of this
        // vector can be better than the best so far.
        pass<Pass::error>(x, 16, {d * s, -m * t}, 15, f);
        if (!any(there & (f.error < least))) continue;
        pass<Pass::error>(x + 16, 16, {d * s, -m * t}, 15, f);
        const vf error = there & (f.error < least) ? f.error : set1(INFINITY);
        const float here = -max(-error);
        if (!(here < least)) continue;
        const int i = __builtin_ctz(bits(error == here));
        least = here;
        *best = {s[i], t[i]};
    }
    return true;
}

// ---- numbers as bytes ---------------------------------------------------------------------------

void bytes(const float* x, int n, float m, float inv, float lo, float hi, uint8_t* q) {
    const vf low = set1(lo), high = set1(hi);
    for (int i = 0; i < n; i += VW)
        store_bytes(q + i, __builtin_convertvector(rounded((load(x + i) - m) * inv, low, high) - low, vi));
}
bool find_q8_0(const float* x, float* d, uint8_t* q) {
    const Ends far = ends(x, 32);
    const float most = far.high > -far.low ? far.high : -far.low;
    *d = most / 127;
    const float r = 1 / *d, inv = r - r == 0 ? r : 0;
    vi finite = vi{} - 1;
    for (int i = 0; i < 32; i += VW) {
        const vf v = load(x + i), scaled = min(max(v * inv, set1(-127)), set1(127));
        const vf half = reinterpret_cast<vf>((reinterpret_cast<vu>(scaled) & 0x80000000) | 0x3F000000);
        finite &= v - v == 0;
        store_bytes(q + i, __builtin_convertvector(scaled + half, vi));
    }
    return all(finite);
}
}    // namespace

QuantiseSearch quantise_search() { return {find_scale16, find_scale<32>, find_line, find_pair, bytes, find_q8_0}; }
}    // namespace ISA

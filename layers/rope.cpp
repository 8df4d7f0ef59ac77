// rope.cpp - queries and keys before attention: QK-norm, then rotary positions. A head stays in L1
// between the two, so memory is the bound: 8 bytes per element of queries and keys forward, 12
// backward with a norm, 8 without.
#include "layers/simd/vec.h"

namespace ISA {
namespace {
// A position's query heads or key heads, with `count` norms over `size` elements each.
struct Group {
    int heads, count, size;
};
INLINE Group group_of(int heads, Heads h, QkNormRope t) {
    const bool all = t.norm == QkNormRope::QkNorm::all;
    return {heads, all ? 1 : heads, all ? heads * h.HS : h.HS};
}
INLINE int64_t row_of(Heads h) { return int64_t(h.NH + 2 * h.NKV) * h.HS; }
INLINE int sums_of(Group q, Group k, QkNormRope t) { return t.norms() ? q.count + k.count : 0; }

// Calls f(i, lanes, u, v) for vectors of a head's pairs, from pair i on. u has the first elements,
// v the second ones; f replaces them through references.
template <bool interleaved, class F> INLINE void each_pair(float* y, const float* x, int dims, F f) {
    const int half = dims / 2;
    if constexpr (!interleaved)
        each_vector(half, [&](int64_t i, auto at) {
            vf u = at.get(x + i), v = at.get(x + half + i);
            f(i, at, u, v);
            at.put(y + i, u), at.put(y + half + i, v);
        });
    else {
        // Splits two vectors into even and odd elements, and merges them again.
        const vi even = 2 * lanes(), low = (lanes() & 1) * VW + (lanes() >> 1);
        each_vector(half, [&](int64_t i, auto at) {
            const int n = least(2 * (half - int(i)), 2 * VW);
            const float* from = x + 2 * i;
            float* to = y + 2 * i;
            vf a = n >= VW ? load(from) : load_some(from, n);
            vf b = n == 2 * VW ? load(from + VW) : n > VW ? load_some(from + VW, n - VW) : vf{};
            vf u = __builtin_shuffle(a, b, even), v = __builtin_shuffle(a, b, even + 1);
            f(i, at, u, v);
            a = __builtin_shuffle(u, v, low);
            b = __builtin_shuffle(u, v, low + VW / 2);
            n >= VW ? store(to, a) : store_some(to, a, n);
            if (n == 2 * VW) store(to + VW, b);
            else if (n > VW) store_some(to + VW, b, n - VW);
        });
    }
}

// Writes a head of x to y, rotated or, with `back`, rotated back. y may be x.
template <bool interleaved, bool back>
INLINE void rotate(float* y, const float* x, const float* cos_sin, int dims, int HS) {
    const float *cosines = cos_sin, *sines = cos_sin + dims / 2;
    each_pair<interleaved>(y, x, dims, [&](int64_t i, auto at, vf& u, vf& v) {
        const vf c = at.get(cosines + i), s = back ? -at.get(sines + i) : at.get(sines + i), u0 = u;
        u = u * c - v * s;
        v = v * c + u0 * s;
    });
    if (y != x) each_vector(HS - dims, [&](int64_t d, auto at) { at.put(y + dims + d, at.get(x + dims + d)); });
}
template <bool back> INLINE void rotate(float* y, const float* x, const float* cos_sin, QkNormRope t, int HS) {
    t.interleaved ? rotate<true, back>(y, x, cos_sin, t.dims, HS) : rotate<false, back>(y, x, cos_sin, t.dims, HS);
}

// A norm's factors of channels d and following: 1 without weights.
template <class At, class P> INLINE vf weight(At at, const P* w, int64_t d, QkNormRope t) {
    return w ? at.get(w + d) + t.plus : set1(1);
}

// Writes the queries or keys of one position, normed and then rotated, to y.
template <class P> INLINE void forward_group(float* y, float* rstd, const float* x, const P* w, const float* cos_sin,
                                             Group g, Heads h, QkNormRope t) {
    for (int i = 0; t.norms() && i < g.count; i++, rstd++) {
        const float* xi = x + int64_t(i) * g.size;
        float* yi = y + int64_t(i) * g.size;
        vf q = {};
        each_vector(g.size, [&](int64_t d, auto at) { q += at.get(xi + d) * at.get(xi + d); });
        const float r = 1 / __builtin_sqrtf(sum(q) / float(g.size) + t.eps);
        each_vector(g.size, [&](int64_t d, auto at) { at.put(yi + d, at.get(xi + d) * r * weight(at, w, d, t)); });
        *rstd = r;
    }
    const float* from = t.norms() ? y : x;
    for (int i = 0; i < g.heads; i++) rotate<false>(y + i * h.HS, from + i * h.HS, cos_sin, t, h.HS);
}

// Backward pass of forward_group, in place. part (size) += this position's share of dw.
template <class P> INLINE void backward_group(float* d, float* part, const float* x, const P* w, const float* cos_sin,
                                              const float* rstd, Group g, Heads h, QkNormRope t) {
    for (int i = 0; i < g.heads; i++) rotate<true>(d + i * h.HS, d + i * h.HS, cos_sin, t, h.HS);
    for (int i = 0; t.norms() && i < g.count; i++) {
        const float *xi = x + int64_t(i) * g.size, r = rstd[i];
        float* di = d + int64_t(i) * g.size;
        vf gx_sum = {};
        each_vector(g.size, [&](int64_t c, auto at) {
            const vf dc = at.get(di + c), xhat = at.get(xi + c) * r;
            gx_sum += dc * weight(at, w, c, t) * xhat;
            at.put(part + c, at.get(part + c) + dc * xhat);
        });
        const float gx_mean = sum(gx_sum) / float(g.size);
        each_vector(g.size, [&](int64_t c, auto at) {
            const vf xhat = at.get(xi + c) * r;
            at.put(di + c, r * (at.get(di + c) * weight(at, w, c, t) - xhat * gx_mean));
        });
    }
}

template <class P> void forward(float* y, float* rstd, const float* x, const P* qw, const P* kw, const float* cos_sin,
                                int B, int S, const int* pos, Heads h, QkNormRope t) {
    const int64_t row = row_of(h);
    const Group q = group_of(h.NH, h, t), k = group_of(h.NKV, h, t);
    const int rstd_count = sums_of(q, k, t), v = (h.NH + h.NKV) * h.HS;
    each_item(B * S, B * S * row, [&](int64_t n) {
        const int position = pos ? (pos[n] > 0 ? pos[n] : 0) : n % S;
        const float *from = x + n * row, *at = cos_sin + int64_t(position) * t.dims;
        float *to = y + n * row, *r = rstd + int64_t(n) * rstd_count;
        forward_group(to, r, from, qw, at, q, h, t);
        forward_group(to + h.NH * h.HS, r + q.count, from + h.NH * h.HS, kw, at, k, h, t);
        each_vector(y != x ? h.NKV * h.HS : 0, [&](int64_t d, auto p) { p.put(to + v + d, p.get(from + v + d)); });
    });
}

// Number of sums for dqw and dkw in each range of rows.
int64_t partial_sums(Heads h, QkNormRope t) {
    const Group q = group_of(h.NH, h, t), k = group_of(h.NKV, h, t);
    return t.norms() ? q.size + k.size : 0;
}
int64_t scratch_of(int rows, Heads h, QkNormRope t) {
    return int64_t(sizeof(float)) * least(rows, RANGES) * partial_sums(h, t);
}

template <class P> void backward(float* d, float* dqw, float* dkw, const float* x, const P* qw, const P* kw,
                                 const float* cos_sin, const float* rstd, int B, int S, Heads h, QkNormRope t) {
    const int64_t row = row_of(h), width = partial_sums(h, t);
    const Group q = group_of(h.NH, h, t), k = group_of(h.NKV, h, t);
    const int parts = least(B * S, RANGES), rstd_count = sums_of(q, k, t);
    float* partial = width ? static_cast<float*>(cpu_scratch(scratch_of(B * S, h, t))) : nullptr;    // (parts,width)
    const int64_t N = int64_t(B) * S;
    each_item(parts, N * row, [&](int64_t p) {
        float* part = partial + p * width;
        each_vector(width, [&](int64_t c, auto at) { at.put(part + c, vf{}); });
        for (int64_t n = N * p / parts; n < N * (p + 1) / parts; n++) {
            const float *at = cos_sin + n % S * t.dims, *r = rstd + n * rstd_count, *from = x + n * row;
            float* to = d + n * row;
            backward_group(to, part, from, qw, at, r, q, h, t);
            backward_group(to + h.NH * h.HS, part + q.size, from + h.NH * h.HS, kw, at, r + q.count, k, h, t);
        }
    });
    if (!width) return;
    if (dqw) add_parts(dqw, partial, parts, width, q.size);
    if (dkw) add_parts(dkw, partial + q.size, parts, width, k.size);
}
}    // namespace

static int64_t backward_scratch(const CallSizes& call) { return scratch_of(call.rows, call.heads, call.rope); }

REGISTER_CPU(rope_forward, forward<P>)
REGISTER_CPU_WITH_SCRATCH(rope_backward, backward<P>, backward_scratch)
}    // namespace ISA

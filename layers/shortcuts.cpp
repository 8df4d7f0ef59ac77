// shortcuts.cpp - shortcuts around blocks, as in modded-nanogpt and nanochat: weighted sums of the
// residual stream and the embeddings, the token before (smear), embeddings added to values.
//
// All of them move a few rows once and compute little: memory is the bound. Gradients of weights
// that all rows share are summed over ranges of rows (add_parts in vec.h).
#include "layers/simd/activation_vec.h"

namespace ISA {
// ---- weighted sums of the residual stream -------------------------------------------------------

template <class P> static void residual_mix_forward(float* y, const float* x, const float* x0, const P* factor,
                                                    const P* factor0, int l, float sign, int64_t n) {
    const float a = factor ? widened(factor[l]) : 1, b = sign * widened(factor0[l]);
    each_range(n, VW, n, [&](Range r, int) {
        each_vector(r.to - r.from, [&](int64_t k, auto at) {
            const int64_t i = r.from + k;
            at.put(y + i, rounded_product(at.get(x + i) * a) + at.get(x0 + i) * b);
        });
    });
}
template <class P> static void residual_mix_backward(float* d, float* dx0, float* dfactor, float* dfactor0,
                                                     const float* x, const float* x0, const P* factor, const P* factor0,
                                                     int l, float sign, int64_t n) {
    const float a = factor ? widened(factor[l]) : 1, b = sign * widened(factor0[l]);
    float sums[2][RANGES];
    each_item(RANGES, n, [&](int64_t part) {
        const Range r = part_of(n, VW, part, RANGES);
        vf dot = {}, dot0 = {};
        each_vector(r.to - r.from, [&](int64_t k, auto at) {
            const int64_t i = r.from + k;
            const vf g = at.get(d + i);
            if (dfactor) dot += g * at.get(x + i);
            if (dfactor0) dot0 += g * at.get(x0 + i);
            at.put(dx0 + i, at.get(dx0 + i) + g * b);
            if (factor) at.put(d + i, g * a);
        });
        sums[0][part] = sum(dot), sums[1][part] = sign * sum(dot0);
    });
    if (dfactor) add_parts(dfactor + l, sums[0], RANGES, 1, 1);
    if (dfactor0) add_parts(dfactor0 + l, sums[1], RANGES, 1, 1);
}

// ---- gates --------------------------------------------------------------------------------------

// sigmoid(x . w) and its slope.    x, w (G)
template <class X, class P> INLINE Sigmoid gate_of(const X* x, const P* w, int G) {
    vf dot = {};
    each_vector(G, [&](int64_t c, auto at) { dot += at.get(x + c) * at.get(w + c); });
    return sigmoid(set1(sum(dot)));
}
// y += a x     (G)
template <class X> INLINE void add_gate_row(float* y, float a, const X* x, int G) {
    each_vector(G, [&](int64_t c, auto at) { at.put(y + c, at.get(y + c) + at.get(x + c) * a); });
}

// ---- the token before ---------------------------------------------------------------------------

static bool has_before(const int* pos, int64_t n, int S) { return pos ? pos[n] > 0 : n % S > 0; }

template <class P> static void smear_forward(float* y, const float* x, const float* previous, const P* w,
                                             const P* lambda, int B, int S, int C, const int* pos) {
    const int G = smear_channels(C);
    each_item(B * S, int64_t(B) * S * C, [&](int64_t n) {
        const float *row = x + n * C, *before = previous ? previous + n * C : row - C;
        const bool any = has_before(pos, n, S);
        const vf gate = widened(*lambda) * gate_of(row, w, G).s;
        each_vector(C, [&](int64_t c, auto at) {
            at.put(y + n * C + c, any ? at.get(row + c) + gate * at.get(before + c) : at.get(row + c));
        });
    });
}

constexpr int SMEAR_SUMS = smear_channels(INT32_MAX) + 1;    // dw and dlambda of a range of rows
template <class P> static void smear_backward(float* dx, float* dw, float* dlambda, const float* dy, const float* x,
                                              const P* w, const P* lambda, int B, int S, int C, const int* pos) {
    const int64_t N = int64_t(B) * S;
    const int G = smear_channels(C);
    float sums[RANGES][SMEAR_SUMS] = {};
    const float by = widened(*lambda);
    each_item(RANGES, N * C, [&](int64_t part) {
        const Range rows = part_of(N, 1, part, RANGES);
        for (int64_t n = rows.from; n < rows.to; n++) {
            const float *row = x + n * C, *d = dy + n * C;
            const bool has_previous = has_before(pos, n, S);
            const bool next_has_previous = n + 1 < N && has_before(pos, n + 1, S);
            const vf next = by * (next_has_previous ? gate_of(row + C, w, G).s : vf{});
            vf dot = {};
            each_vector(C, [&](int64_t c, auto at) {
                const vf g = at.get(d + c);
                if (has_previous) dot += g * at.get(row - C + c);
                at.put(dx + n * C + c, next_has_previous ? g + next * at.get(d + C + c) : g);
            });
            if (!has_previous) continue;
            const Sigmoid gate = gate_of(row, w, G);
            const float dgate = sum(dot), dsum = by * gate.slope[0] * dgate;
            add_gate_row(dx + n * C, dsum, w, G);
            add_gate_row(sums[part], dsum, row, G);
            sums[part][G] += gate.s[0] * dgate;
        }
    });
    if (dw) add_parts(dw, sums[0], RANGES, SMEAR_SUMS, G);
    if (dlambda) add_parts(dlambda, sums[0] + G, RANGES, SMEAR_SUMS, 1);
}

static void previous_tokens(int* previous, int* history, const int* tok, const int* sequences, const int* cache_pos,
                            int B, int S, int positions) {
    for (int b = 0; b < B; b++) {
        int* past = history + int64_t(sequences[b]) * positions;
        for (int n = b * S; n < (b + 1) * S; n++) {
            previous[n] = cache_pos[n] > 0 ? past[cache_pos[n] - 1] : 0;
            if (cache_pos[n] >= 0) past[cache_pos[n]] = tok[n];
        }
    }
}

// ---- embeddings added to values -----------------------------------------------------------------

template <class P> static void value_embedding_forward(float* qkv, const P* x, const P* table, const P* gate_w,
                                                       const int* tok, int N, int C, Heads h) {
    const int64_t width = int64_t(h.NKV) * h.HS;
    const int G = value_gate_channels(C);
    each_item(N, N * width, [&](int64_t n) {
        float* v = qkv + n * h.qkv_width() + h.width() + width;
        const P* e = table + (tok ? tok[n] : n) * width;
        for (int k = 0; k < h.NKV; k++, v += h.HS, e += h.HS) {
            const vf gate = VALUE_GATE_SCALE * gate_of(x + n * C, gate_w + k * G, G).s;
            each_vector(h.HS, [&](int64_t i, auto at) { at.put(v + i, at.get(v + i) + gate * at.get(e + i)); });
        }
    });
}

static int64_t value_scratch(int N, int C, const Heads& h) {
    return int64_t(sizeof(float)) * least(N, RANGES) * h.NKV * value_gate_channels(C);
}
template <class P> static void value_embedding_backward(float* dx, float* dvalues, float* dgate_w, const float* dqkv,
                                                        const P* x, const P* table, const P* gate_w, const int* tok,
                                                        int N, int C, Heads h) {
    const int G = value_gate_channels(C);
    const int64_t width = int64_t(h.NKV) * h.HS, gates = int64_t(h.NKV) * G;
    const int parts = least(N, RANGES);
    float* partial = static_cast<float*>(cpu_scratch(value_scratch(N, C, h)));    // (parts,gates)
    each_item(parts, N * width, [&](int64_t part) {
        float* sums = partial + part * gates;
        each_vector(gates, [&](int64_t i, auto at) { at.put(sums + i, vf{}); });
        for (int64_t n = N * part / parts; n < N * (part + 1) / parts; n++)
            for (int64_t k = 0; k < h.NKV; k++) {
                const float* dv = dqkv + n * h.qkv_width() + h.width() + width + k * h.HS;
                const P *e = table + (tok ? tok[n] : n) * width + k * h.HS, *w = gate_w + k * G;
                float* to = dvalues ? dvalues + n * width + k * h.HS : nullptr;
                const Sigmoid gate = gate_of(x + n * C, w, G);
                vf dot = {};
                each_vector(h.HS, [&](int64_t i, auto at) {
                    const vf g = at.get(dv + i);
                    dot += g * at.get(e + i);
                    if (to) at.put(to + i, g * (VALUE_GATE_SCALE * gate.s));
                });
                const float dsum = VALUE_GATE_SCALE * gate.slope[0] * sum(dot);
                add_gate_row(dx + n * C, dsum, w, G);
                add_gate_row(sums + k * G, dsum, x + n * C, G);
            }
    });
    if (dgate_w) add_parts(dgate_w, partial, parts, gates, gates);
}
static int64_t value_call_scratch(const CallSizes& c) { return value_scratch(c.rows, c.in, c.heads); }

REGISTER_CPU(residual_mix_forward, residual_mix_forward<P>)
REGISTER_CPU(residual_mix_backward, residual_mix_backward<P>)
REGISTER_CPU(smear_forward, smear_forward<P>)
REGISTER_CPU(smear_backward, smear_backward<P>)
REGISTER_CPU(previous_tokens, previous_tokens)
REGISTER_CPU(value_embedding_forward, value_embedding_forward<P>)
REGISTER_CPU_WITH_SCRATCH(value_embedding_backward, value_embedding_backward<P>, value_call_scratch)
}    // namespace ISA

// position_bias.cpp - biases of attention's scores by distance, and the gradients of these biases.
//
// The gradient of a score is ds = p (dp - delta), recomputed tile by tile as in backward.cpp: QB
// queries by KB keys of a head. A row of ds is added to adjacent elements of the head's sums by
// distance; distances beyond max_distance share a sum on either side. Each head of a sequence has
// its own sums, which are added up in order afterwards, so the bits depend on the sizes alone. With
// bias_step, a head's ds are added to its query's dbias directly. Bound by FMAs: 4 HS FLOPs and an
// exp for each pair of query and key.
#include "dropout_mask.h"

namespace ISA {
namespace {
constexpr int QB = 48, KB = 128, LDS = KB + VW;
static_assert(QB % MR == 0 && KB % PANEL == 0, "strips and panels are whole");

struct Call {
    const float* dy;
    Results y;
    const float *qkv, *lse;
    int B, S;
    Heads h;
};
struct Tiles {
    float *kt, *vt, *q, *dy, *p, *dp, *delta;
};
int64_t tile_floats(int S, Heads h) { return (2 * KB + 2 * QB) * int64_t(padded(h.HS)) + 2 * QB * LDS + padded(S); }
Tiles make_tiles(float* x, Heads h) {
    const int64_t P = padded(h.HS);
    float *q = x + 2 * KB * P, *p = q + 2 * QB * P;
    return {x, x + KB * P, q, q + QB * P, p, p + QB * LDS, p + 2 * QB * LDS};
}
int row_floats(Heads h) { return padded(h.distances()); }

// sums[distance] += x, for distances first, first + 1, ..., which are clamped to max_distance.
INLINE void add_along(float* sums, int max_distance, int first, vf x) {
    const int last = first + VW - 1;
    if (first >= -max_distance && last <= max_distance) return store(sums + first, load(sums + first) + x);
    if (last <= -max_distance) return void(sums[-max_distance] += sum(x));
    for (int i = 0; i < VW; i++) sums[least(most(first + i, -max_distance), max_distance)] += x[i];
}

// Adds ds of head i, for m queries from i0 on and the packed keys from j0 on, to sums[distance].
// `sums` points to distance 0; with bias_step, to distance 0 of the sequence's first query.
template <bool half> void add_pair(float* sums, const Tiles& t, const Call& c, const ScoreTransform& first, int b,
                                   int i, int i0, int m, int j0) {
    const int D = words<half>(c.h.HS), Q = padded(D), rows = tiles(m, MR) * MR, n = least(KB, c.S - j0);
    const bool pattern = has_pattern(c.h);
    for (int p = 0; p < n; p += PANEL)
        for (int r = 0; r < rows; r += MR) {
            const int columns = padded(least(PANEL, n - p));
            strip<false, half>(columns, D, t.q + r * Q, Q, 1, t.kt + p * Q, PANEL, t.p + r * LDS + p, LDS);
            strip<false, half>(columns, D, t.dy + r * Q, Q, 1, t.vt + p * Q, PANEL, t.dp + r * LDS + p, LDS);
        }
    const float* lse = c.lse + (int64_t(b) * c.h.NH + i) * c.S + i0;
    const float factor = c.h.dropout.factor();
    const bool has_dropout = c.h.dropout.rate > 0;
    DropoutMask<QB, KB> kept;
    if (has_dropout)
        kept.draw(
            c.h.dropout, pair_row(c.h.dropout, b, i, c.h.NH), i0, m, {0, 1, c.S, true}, j0, [](int) { return 0; },
            [&](int) { return n; });
    for (int r = 0; r < m; r++) {
        const Span visible = keys_of(c.h, c.S, b, i0 + r);
        const ScoreTransform shape = first.of(i0 + r);
        const int from = pattern ? 0 : most(0, visible.from - j0) / VW * VW, to = least(n, visible.to - j0);
        for (int u = from; u < to; u += VW) {
            const int distance = j0 + u - i0 - r;
            const vf z = shape(load(t.p + r * LDS + u), lanes() + distance).z;
            vf dp = load(t.dp + r * LDS + u);
            if (has_dropout) dp = kept_lanes(dp * factor, kept.lanes_of(r, u));
            const vf ds = exp2((z - lse[r]) * LOG2E) * (dp - t.delta[i0 + r]);
            vf inside = between(u, most(0, visible.from - j0), to, ds, 0);
            for (int k = 0; k < VW && pattern; k++)
                if (u + k < to && in_pattern(c.h, j0 + u + k)) inside[k] = ds[k];
            add_along(sums + int64_t(i0 + r) * c.h.bias_step, c.h.max_distance, distance, inside);
        }
    }
}

// Computes the sums by distance of head i of sequence b.
template <bool half> void head(float* sums, const Tiles& t, const Call& c, int b, int i) {
    const int HS = c.h.HS, S = c.S, Q = padded(words<half>(HS)), C = c.h.NH * HS;
    const Keys keys = packed_keys(c.qkv, S, c.h);
    const int64_t at = b * keys.sequence + int64_t(i / (c.h.NH / c.h.NKV)) * HS, out = int64_t(b) * S * C + i * HS;
    const bool pattern = has_pattern(c.h);
    const ScoreTransform shape(c.h, i, int64_t(b) * S);
    c.y.with(out, [&](auto* y) { deltas(t.delta, c.dy + out, y, S, C, HS); });
    for (int j0 = 0; j0 < S; j0 += KB) {
        for (int p = 0; p < least(KB, S - j0); p += PANEL) {
            const int64_t row = at + (j0 + p) * keys.row;
            const int n = least(PANEL, S - j0 - p);
            pack_transposed<half>(t.kt + p * Q, PANEL, keys.k + row, keys.row, n, PANEL, HS);
            pack_transposed<half>(t.vt + p * Q, PANEL, keys.v + row, keys.row, n, PANEL, HS);
        }
        for (int i0 = 0; i0 < S; i0 += QB) {
            const int m = least(QB, S - i0), rows = tiles(m, MR) * MR;
            if (keys_of(c.h, S, b, i0 + m - 1).to <= j0) continue;
            if (!pattern && keys_of(c.h, S, b, i0).from >= j0 + KB) continue;
            pack_rows<half>(t.q, c.qkv + b * keys.sequence + i0 * keys.row + i * HS, keys.row, m, rows, HS);
            pack_rows<half>(t.dy, c.dy + out + int64_t(i0) * C, C, m, rows, HS);
            add_pair<half>(sums, t, c, shape, b, i, i0, m, j0);
        }
    }
}

int64_t scratch_of(int B, int S, Heads h) {
    const int64_t threads = pool_threads();
    const int64_t sums = h.bias_step ? 0 : int64_t(B) * h.NH * row_floats(h);
    return int64_t(sizeof(float)) * (threads * tile_floats(S, h) + sums);
}

template <bool half> void backward(float* dbias, const Call& c) {
    const int heads = c.B * c.h.NH, row = row_floats(c.h), n = c.h.distances();
    float* scratch = static_cast<float*>(cpu_scratch(scratch_of(c.B, c.S, c.h)));
    float* sums = scratch + pool_threads() * tile_floats(c.S, c.h);    // (B,NH,row)
    each_chunk(heads, [&](int64_t item, int worker) {
        const Tiles t = make_tiles(scratch + worker * tile_floats(c.S, c.h), c.h);
        const int b = int(item / c.h.NH), i = int(item % c.h.NH);
        float* to = dbias + int64_t(b) * c.S * c.h.bias_step + int64_t(i) * n;
        if (!c.h.bias_step) clear(to = sums + item * row, row);
        head<half>(to + c.h.max_distance, t, c, b, i);
    });
    if (c.h.bias_step) return;
    each_item(c.h.NH, int64_t(heads) * n, [&](int64_t i) {
        for (int b = 0; b < c.B; b++) {
            const float* part = sums + (int64_t(b) * c.h.NH + i) * row;
            each_vector(n, [&](int64_t d, auto at) {
                at.put(dbias + i * n + d, at.get(dbias + i * n + d) + at.get(part + d));
            });
        }
    });
}
template <class P> void attention_bias_backward(float* dbias, const float* dy, const P* y, const float* qkv,
                                                const float* lse, int B, int S, Heads h) {
    backward<sizeof(P) == 2 && NATIVE_BF16>(dbias, {dy, results(y), qkv, lse, B, S, h});
}
int64_t backward_scratch(const CallSizes& call) { return scratch_of(call.B, call.S, call.heads); }

template <class P> void bias_rows_forward(float* bias, const P* table, const int* bucket, int, int NH, int n) {
    for (int h = 0; h < NH; h++)
        for (int i = 0; i < n; i++) bias[h * n + i] = widened(table[bucket[i] * NH + h]);
}
void bias_rows_backward(float* dtable, const float* dbias, const int* bucket, int, int NH, int n) {
    for (int h = 0; h < NH; h++)
        for (int i = 0; i < n; i++) dtable[bucket[i] * NH + h] += dbias[h * n + i];
}
}    // namespace

REGISTER_CPU(bias_rows_forward, bias_rows_forward<P>)
REGISTER_CPU(bias_rows_backward, bias_rows_backward)
REGISTER_CPU_WITH_SCRATCH(attention_bias_backward, attention_bias_backward<P>, backward_scratch)
}    // namespace ISA

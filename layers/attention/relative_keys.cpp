// relative_keys.cpp - products of queries with the keys of distances (Shaw et al. 2018), and their
// gradients.
//
// Items of work are tiles of QB queries of a head; for dkeys, whole heads. Each head has its own
// sums for dkeys, which are added up in order afterwards, so the bits depend on the sizes alone.
// Bound by FMAs: 2 HS FLOPs for each query and distance in a product.
#include "attention_cpu.h"

namespace ISA {
namespace {
constexpr int QB = 48, DEPTH = 128;    // queries of a tile; queries that a product for dkeys sums over
static_assert(QB % MR == 0);

struct Sizes {
    int N, n, P, R;    // queries; distances; HS and n, padded
    Heads h;
    Sizes(int queries, const Heads& heads)
        : N(queries), n(heads.distances()), P(padded(heads.HS)), R(padded(n)), h(heads) {}
    int64_t keys() const { return int64_t(n) * h.HS + int64_t(P) * R + int64_t(R) * P; }
    int64_t tile() const { return int64_t(DEPTH) * (P + R) + QB * R + MR; }
    int64_t dkeys() const { return int64_t(tiles(n, MR) * MR) * P; }    // floats of a head's sum
    int64_t bias(int64_t row, int head) const { return (row * h.NH + head) * n; }
    int64_t q(int64_t row, int head) const { return row * h.qkv_width() + int64_t(head) * h.HS; }
};
// The keys as floats, in the biases' order of distances: a row each, and transposed.
struct PackedKeys {
    float *rows, *transposed;    // (n,P)  (HS,R)
};
template <class T> PackedKeys pack(float* to, const T* keys, const Sizes& s) {
    const int HS = s.h.HS;
    float *plain = to, *rows = plain + int64_t(s.n) * HS, *transposed = rows + int64_t(s.R) * s.P;
    for (int i = 0; i < s.n; i++)
        each_vector(HS, [&](int64_t c, auto at) { at.put(plain + i * HS + c, at.get(keys + (s.n - 1 - i) * HS + c)); });
    pack_rows<false>(rows, plain, HS, s.n, s.n, HS);
    pack_transposed(transposed, s.R, plain, HS, s.n, s.R, HS);
    return {rows, transposed};
}
// A worker's tiles.
struct Tiles {
    float *a, *b;    // (DEPTH,R), (DEPTH,P)
    float* out;      // (QB,R)
    Tiles(float* p, const Sizes& s) : a(p), b(a + DEPTH * s.R + MR), out(b + DEPTH * s.P) {}
};
// Calls f(head, first row, number of rows, the worker's tiles) for each tile of queries.
template <class F> void each_tile(const Sizes& s, float* scratch, F f) {
    each_chunk(int64_t(tiles(s.N, QB)) * s.h.NH, [&](int64_t item, int worker) {
        const int first = int(item / s.h.NH) * QB;
        f(int(item % s.h.NH), first, least(QB, s.N - first), Tiles(scratch + worker * s.tile(), s));
    });
}

template <class P> void relative_keys_forward(float* bias, const float* qkv, const P* keys, int N, Heads h) {
    const Sizes s(N, h);
    float* scratch = static_cast<float*>(cpu_scratch(4 * (s.keys() + pool_threads() * s.tile())));
    const PackedKeys packed = pack(scratch, keys, s);
    const float scale = scale_of(h);
    each_tile(s, scratch + s.keys(), [&](int head, int first, int m, Tiles t) {
        pack_rows<false>(t.b, qkv + s.q(first, head), h.qkv_width(), m, tiles(m, MR) * MR, h.HS);
        for (int r = 0; r < m; r += MR)
            strip<false>(s.R, h.HS, t.b + r * s.P, s.P, 1, packed.transposed, s.R, t.out + r * s.R, s.R);
        for (int r = 0; r < m; r++) {
            float* to = bias + s.bias(first + r, head);
            each_vector(s.n, [&](int64_t i, auto at) { at.put(to + i, at.get(t.out + r * s.R + i) * scale); });
        }
    });
}

// dqkv's queries += scale dbias keys
void add_dq(float* dqkv, const float* dbias, const PackedKeys& packed, const Sizes& s, float* scratch) {
    const float scale = scale_of(s.h);
    each_tile(s, scratch, [&](int head, int first, int m, Tiles t) {
        pack_rows<false>(t.a, dbias + s.bias(first, head), s.bias(1, 0), m, tiles(m, MR) * MR, s.n);
        for (int r = 0; r < m; r += MR)
            strip<false>(s.P, s.n, t.a + r * s.R, s.R, 1, packed.rows, s.P, t.b + r * s.P, s.P);
        for (int r = 0; r < m; r++) {
            float* to = dqkv + s.q(first + r, head);
            each_vector(s.h.HS, [&](int64_t c, auto at) {
                at.put(to + c, at.get(to + c) + at.get(t.b + r * s.P + c) * scale);
            });
        }
    });
}
// dkeys += scale dbias^T q. sums (NH,rounded n,P): each head's sum.
void add_dkeys(float* dkeys, const float* dbias, const float* qkv, const Sizes& s, float* sums, float* scratch) {
    each_chunk(s.h.NH, [&](int64_t head, int worker) {
        const Tiles t(scratch + worker * s.tile(), s);
        float* sum = sums + head * s.dkeys();
        clear(sum, s.dkeys());
        for (int first = 0; first < s.N; first += DEPTH) {
            const int m = least(DEPTH, s.N - first);
            pack_rows<false>(t.a, dbias + s.bias(first, int(head)), s.bias(1, 0), m, m, s.n);
            pack_rows<false>(t.b, qkv + s.q(first, int(head)), s.h.qkv_width(), m, m, s.h.HS);
            for (int i = 0; i < s.n; i += MR)
                strip<true>(s.P, m, t.a + i, 1, s.R, t.b, s.P, sum + int64_t(i) * s.P, s.P);
        }
    });
    const float scale = scale_of(s.h);
    each_item(s.n, int64_t(s.n) * s.h.NH * s.h.HS, [&](int64_t i) {
        float* to = dkeys + (s.n - 1 - i) * s.h.HS;
        for (int head = 0; head < s.h.NH; head++)
            each_vector(s.h.HS, [&](int64_t c, auto at) {
                at.put(to + c, at.get(to + c) + at.get(sums + head * s.dkeys() + i * s.P + c) * scale);
            });
    });
}
template <class P> void relative_keys_backward(float* dqkv, float* dkeys, const float* dbias, const float* qkv,
                                               const P* keys, int N, Heads h) {
    const Sizes s(N, h);
    float* scratch = static_cast<float*>(cpu_scratch(4 * (s.keys() + h.NH * s.dkeys() + pool_threads() * s.tile())));
    float *sums = scratch + s.keys(), *of_workers = sums + h.NH * s.dkeys();
    add_dq(dqkv, dbias, pack(scratch, keys, s), s, of_workers);
    if (dkeys) add_dkeys(dkeys, dbias, qkv, s, sums, of_workers);
}

int64_t scratch_of(const CallSizes& call) {
    const Sizes s(call.S, call.heads);
    return 4 * (s.keys() + call.heads.NH * s.dkeys() + pool_threads() * s.tile());
}
}    // namespace

REGISTER_CPU_WITH_SCRATCH(relative_keys_forward, relative_keys_forward<P>, scratch_of)
REGISTER_CPU_WITH_SCRATCH(relative_keys_backward, relative_keys_backward<P>, scratch_of)
}    // namespace ISA

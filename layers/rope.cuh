// rope.cuh - QK-norm and rotation of a head whose channels lie in its lanes' registers: for
// rope.cu, and for attention kernels that rotate their inputs.
#pragma once
#include "cuda.cuh"

namespace {
typedef QkNormRope::QkNorm QkNorm;

struct RopeCall {
    Heads h;
    QkNormRope t;
    const float* cos_sin;
    const int* pos;
    int N, S;
    float sine;                 // factor of sines: 1; -1 rotates back
    int lanes, pairs, slots;    // per head: lanes; rotated pieces; all pieces
    int heads, copied;          // query and key heads; heads to copy
    int rstd_count;             // rstd per row
    int64_t width;              // elements in a row of qkv

    template <int W> static RopeCall of(const float* cos_sin, const int* pos, int N, int S, Heads h, QkNormRope t) {
        RopeCall c = {};
        c.h = h, c.t = t, c.cos_sin = cos_sin, c.pos = pos, c.N = N, c.S = S, c.sine = 1, c.lanes = 1;
        c.pairs = t.dims / 2 / W, c.slots = c.pairs + int(ceil_div(h.HS - t.dims, 2 * W));
        while (c.lanes < 32 && c.lanes < c.slots) c.lanes *= 2;
        c.heads = c.copied = h.NH + h.NKV, c.rstd_count = t.rstd_count(h.NH, h.NKV), c.width = h.qkv_width();
        return c;
    }
    __device__ const float* rotation(int64_t n) const {
        return cos_sin + int64_t(pos ? max(pos[n], 0) : int(n % S)) * t.dims;
    }
    __device__ bool key(int head) const { return head >= h.NH; }
    // Address of a head's weights; null: the norm has none.
    template <class T> __device__ T* weights(T* qw, T* kw, int head) const {
        T* const w = key(head) ? kw : qw;
        return w && t.norm == QkNorm::all ? w + (key(head) ? head - h.NH : head) * h.HS : w;
    }
    __device__ int64_t sum_at(int64_t n, int head) const {
        return n * rstd_count + (t.norm == QkNorm::all ? int(key(head)) : head);
    }
    __device__ float count(int head) const {    // elements of a norm
        return float(t.norm == QkNorm::all ? (key(head) ? h.NKV : h.NH) * h.HS : h.HS);
    }
};

// A piece: 2 W channels of a head, x[0..W-1] from channel at[0] on, the others from at[1] on;
// channels beyond the head's end are left out. Pair i is (x[i], x[W + i]), or (x[2 i], x[2 i + 1])
// if interleaved.
template <int W, bool INTERLEAVED> struct RopeVector {
    int at[2], HS, slot;
    bool rotates;
    float x[2 * W];

    __device__ RopeVector(const RopeCall& c, int slot) : HS(c.h.HS), slot(slot), rotates(slot < c.pairs) {
        at[0] = !rotates ? c.t.dims + 2 * (slot - c.pairs) * W : INTERLEAVED ? 2 * slot * W : slot * W;
        at[1] = rotates && !INTERLEAVED ? at[0] + c.t.dims / 2 : at[0] + W;
    }
    // Calls f(i, at[k]) for each half k of the piece that lies within the head; x[i] is the half's
    // first element.
    template <class F> __device__ void vectors(F f) const {
#pragma unroll
        for (int k = 0; k < 2; k++)
            if (at[k] < HS) f(k * W, at[k]);
    }
    template <class T> __device__ void load(const T* head) {
#pragma unroll
        for (int i = 0; i < 2 * W; i++) x[i] = 0;
        vectors([&](int first, int at) {
            const Vec<T, W> v = ::load<W>(head + at);
#pragma unroll
            for (int i = 0; i < W; i++) x[first + i] = v[i];
        });
    }
    template <class T> __device__ void store(T* head) const {
        vectors([&](int first, int at) {
            Vec<T, W> v;
#pragma unroll
            for (int i = 0; i < W; i++) v.set(i, x[first + i]);
            ::store<W>(head + at, v);
        });
    }
    // Loads a norm's factors, w + plus. w begins at the head's weights; null: the factors are 1.
    template <class T> __device__ void load_factors(const T* w, float plus) {
        if (w) load(w);
#pragma unroll
        for (int i = 0; i < 2 * W; i++) x[i] = w ? x[i] + plus : 1;
    }
    // Applies a norm. w, plus: as in load_factors. own: 1 / root mean square.
    template <class T> __device__ void norm(const T* w, float own, float plus) {
        vectors([&](int first, int at) {
            Vec<T, W> weight;
            if (w) weight = ::load<W>(w + at);
#pragma unroll
            for (int i = 0; i < W; i++) x[first + i] *= w ? own * (weight[i] + plus) : own;
        });
    }
    __device__ float squares() const {
        float sum = 0;
#pragma unroll
        for (int i = 0; i < 2 * W; i++) sum += x[i] * x[i];
        return sum;
    }
};

// Cosines and sines of a piece.
template <int W> struct Rotation {
    float cos[W], sin[W];
    template <class P> __device__ Rotation(const RopeCall& c, const P& piece, const float* row) {
        if (!piece.rotates) return;
        constexpr int G = W < 4 ? W : 4;
#pragma unroll
        for (int i = 0; i < W; i += G) {
            const float* from = row + piece.slot * W + i;
            const Vec<float, G> a = load<G>(from), b = load<G>(from + c.t.dims / 2);
#pragma unroll
            for (int j = 0; j < G; j++) cos[i + j] = a[j], sin[i + j] = b[j] * c.sine;
        }
    }
    template <bool INTERLEAVED> __device__ void rotate(RopeVector<W, INTERLEAVED>& p) const {
        if (!p.rotates) return;
#pragma unroll
        for (int i = 0; i < W; i++) {
            float &u = p.x[INTERLEAVED ? 2 * i : i], &v = p.x[INTERLEAVED ? 2 * i + 1 : W + i];
            const float u0 = u, v0 = v;
            u = u0 * cos[i] - v0 * sin[i], v = v0 * cos[i] + u0 * sin[i];
        }
    }
};

// Every lane of a head gets the sum over its lanes.
__device__ inline float sum_over(float x, int lanes) {
    for (int bit = lanes / 2; bit; bit /= 2) x += __shfl_xor_sync(0xffffffff, x, bit);
    return x;
}

// Whether vector loads fit: channels, pairs and cos_sin align to vectors, and a head has no more
// pieces (RopeVector) than lanes.
template <class T> bool rope_by_vectors(Heads h, QkNormRope t) {
    const RopeCall c = RopeCall::of<VEC<T>>(nullptr, nullptr, 0, 1, h, t);
    return c.slots <= c.lanes && h.HS % VEC<T> == 0 && t.dims / 2 % VEC<T> == 0;
}
}    // namespace

// rope.cu: rope_forward of operations.inc.
template <class T> void rope_forward(T* y, float* rstd, const T* x, const T* qw, const T* kw, const float* cos_sin,
                                     int B, int S, const int* pos, Heads h, QkNormRope t);

// rope.cu - the ladder of QK-norm and rotation, from two passes over the channels to
// layers/rope.cu. Bound by memory: every element is read once and written once, 2 (NH + 2 NKV) HS
// for each position. All heads of a position share cosines and sines, all positions share weights:
// both should stay in registers or L1.
#include "ladder.h"
#include "tools/selftest/rope.h"

namespace {
using T = bf16;

struct Call {
    T* y;
    float* rstd;
    const T *x, *qw, *kw;
    const float* cos_sin;
    const int* pos;
    int S, heads, normed, HS;    // heads of a position; normed ones come first
    int NH;
    QkNormRope t;
    __device__ float inverse(float squares) const { return rsqrtf(squares / float(HS) + t.eps); }
    // Computes channel d of head i (counted over all positions), normed by r and rotated.
    __device__ void finish(int64_t i, int d, float r) const {
        const int head = int(i % heads);
        const int64_t n = i / heads;
        const T* const from = x + i * HS;
        const T* const w = head < NH ? qw : kw;
        auto value = [&](int c) { return to_float(from[c]) * r * (to_float(w[c]) + t.plus); };
        if (head >= normed) {
            y[i * HS + d] = from[d];
            return;
        }
        float out = value(d);
        if (d < t.dims) {
            const int half = t.dims / 2, pair = d % half;
            const float* const row = cos_sin + (pos ? max(0, pos[n]) : n % S) * t.dims;
            out = d < half ? out * row[pair] - value(d + half) * row[half + pair]
                           : out * row[pair] + value(d - half) * row[half + pair];
        }
        y[i * HS + d] = to_bf16(out);
    }
};

// 0: neighbouring threads read a head apart (not coalesced), and the rotation reads x again.
__global__ void sums_kernel(const Call c, int64_t all) {
    const int64_t i = blockIdx.x * int64_t(blockDim.x) + threadIdx.x;
    if (i >= all || i % c.heads >= c.normed) return;
    float squares = 0;
    for (int d = 0; d < c.HS; d++) squares += to_float(c.x[i * c.HS + d]) * to_float(c.x[i * c.HS + d]);
    c.rstd[i / c.heads * c.normed + i % c.heads] = c.inverse(squares);
}
__global__ void rope_kernel(const Call c, int64_t all) {
    const int64_t at = blockIdx.x * int64_t(blockDim.x) + threadIdx.x, i = at / c.HS;
    if (i >= all) return;
    const bool normed = i % c.heads < c.normed;
    c.finish(i, int(at % c.HS), normed ? c.rstd[i / c.heads * c.normed + i % c.heads] : 1);
}
// Rung 1: one pass. Lane l has channels l, l + 32, ..., and loads one number at a time. cos_sin is
// read again for every head.
__global__ void warp_kernel(const Call c, int64_t all) {
    const int64_t i = blockIdx.x * int64_t(4) + threadIdx.x / 32;
    const int lane = threadIdx.x % 32;
    if (i >= all) return;
    float squares = 0;
    for (int d = lane; d < c.HS; d += 32) squares += to_float(c.x[i * c.HS + d]) * to_float(c.x[i * c.HS + d]);
    const float r = c.inverse(warp_sum(squares));
    for (int d = lane; d < c.HS; d += 32) c.finish(i, d, r);
    if (lane == 0 && i % c.heads < c.normed) c.rstd[i / c.heads * c.normed + i % c.heads] = r;
}

Call call_of(T* y, float* rstd, const T* x, const T* qw, const T* kw, const float* cos_sin, int S, const int* pos,
             Heads h, QkNormRope t) {
    return {y, rstd, x, qw, kw, cos_sin, pos, S, h.NH + 2 * h.NKV, h.NH + h.NKV, h.HS, h.NH, t};
}
void two_passes(T* y, float* rstd, const T* x, const T* qw, const T* kw, const float* cos_sin, int B, int S,
                const int* pos, Heads h, QkNormRope t) {
    const Call c = call_of(y, rstd, x, qw, kw, cos_sin, S, pos, h, t);
    const int64_t all = int64_t(B) * S * c.heads;
    launch(sums_kernel, {unsigned(ceil_div(all, 128)), 128}, c, all);
    launch(rope_kernel, {unsigned(ceil_div(all * h.HS, 256)), 256}, c, all);
}
void warp_a_head(T* y, float* rstd, const T* x, const T* qw, const T* kw, const float* cos_sin, int B, int S,
                 const int* pos, Heads h, QkNormRope t) {
    const Call c = call_of(y, rstd, x, qw, kw, cos_sin, S, pos, h, t);
    const int64_t all = int64_t(B) * S * c.heads;
    launch(warp_kernel, {unsigned(ceil_div(all, 4)), 128}, c, all);
}

void climb(int B, int S, Heads h, QkNormRope t) {
    const Ops<T>& op = cuda_ops<T>(Dtype::bf16);
    const int64_t N = int64_t(B) * S, n = N * h.qkv_width();
    Ladder ladder("rope_forward bf16, QK-norm, B=" + std::to_string(B) + " S=" + std::to_string(S) +
                      " NH=" + std::to_string(h.NH) + " NKV=" + std::to_string(h.NKV) + " HS=" + std::to_string(h.HS),
                  2.0 * 2 * double(n));
    const Sets<T> x(op, ladder.sets, n), y(op, ladder.sets, n), qw(op, 1, h.HS), kw(op, 1, h.HS);
    const Sets<float> rstd(op, ladder.sets, N * t.rstd_count(h.NH, h.NKV)), cos_sin(op, 1, int64_t(S) * t.dims);
    for (auto [name, f] :
         {Rung{"a thread a head, then one a channel", two_passes}, Rung{"a warp a head, one pass", warp_a_head},
          Rung{"vectors, angles kept (production)", op.rope_forward}})
        ladder.rung(name, check_rope_forward(with(op, &Ops<T>::rope_forward, f), 2, 5, 3, h, t), [&, f = f](int set) {
            f(y[set], rstd[set], x[set], qw[0], kw[0], cos_sin[0], B, S, nullptr, h, t);
        });
}
}    // namespace

int main() {
    if (!ladder_open()) return int(Exit::device);
    const int B = ladder_size(8, 1), S = ladder_size(2048, 3);
    climb(B, S, {16, 8, 128}, {128, false, QkNormRope::QkNorm::head});             // Qwen 3 0.6B
    climb(B, S, {4, 1, 256}, {256, false, QkNormRope::QkNorm::head, 1e-6f, 1});    // Gemma 3 1B
    return ladder_result();
}

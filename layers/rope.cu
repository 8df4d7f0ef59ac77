// rope.cu - QK-norm and rotation of queries and keys in one pass; gradients. Formulas:
// layers/operations.inc.
//
// Thread mapping: a block has a row (b,s) of packed qkv. `lanes` lanes share a head; each has 2 W
// channels of it: W whole pairs, or channels without rotation. They stay in registers from load to
// store. A lane has the same channels of all its heads, so it reads their cosines and sines once.
//
// Backward without a norm is a rotation by the negative angles, in place. With a norm, a block
// steps over rows, and each lane keeps the sums for its channels' weights in registers. Blocks
// write these sums to scratch, and a second kernel adds them in order. The number of blocks does
// not depend on the GPU, so neither do the bits.
//
// Bound by memory: forward reads and writes every channel that changes once; backward reads d and,
// with a norm, x, and writes d. cos_sin (8 bytes a pair) comes from L1 but for a row's first head.
#include "layers/ptx/sum_parts.cuh"
#include "rope.cuh"

namespace {
typedef RopeCall Call;

// ---- forward, and backward without a norm -------------------------------------------------------

// Calls f(slot) for this lane's pieces of a head after the first. With vectors (W > 1), none.
template <int W, class F> __device__ inline void other_slots(const Call& c, int lane, F f) {
    if constexpr (W == 1)
        for (int slot = lane + c.lanes; slot < c.slots; slot += c.lanes) f(slot);
}

constexpr int MAX_THREADS = 256;

// y may be x if there is no norm.
template <class T, int W, QkNorm NORM, bool INTERLEAVED> __global__ void __launch_bounds__(MAX_THREADS, 4)
    rope_kernel(T* y, float* rstd, const T* x, const T* qw, const T* kw, const Call c) {
    typedef RopeVector<W, INTERLEAVED> P;
    const int64_t n = blockIdx.x;
    const int lane = threadIdx.x % c.lanes, group = threadIdx.x / c.lanes, groups = blockDim.x / c.lanes;
    const T* const row = x + n * c.width;
    P first(c, lane);
    const float* const angle_row = c.rotation(n);
    const Rotation<W> rotation(c, first, angle_row);
    float r[2] = {1, 1};    // NORM all: of queries, of keys
    if constexpr (NORM == QkNorm::all) {
        float squares[2] = {};
        for (int head = group; head < c.heads; head += groups)
            for (int slot = lane; slot < c.slots; slot += c.lanes) {
                P piece(c, slot);
                piece.load(row + head * c.h.HS);
                (c.key(head) ? squares[1] : squares[0]) += piece.squares();
            }
#pragma unroll
        for (int k = 0; k < 2; k++) {
            r[k] = rsqrtf(block_sum(squares[k]) / c.count(k ? c.h.NH : 0) + c.t.eps);
            if (threadIdx.x == 0) rstd[n * 2 + k] = r[k];
        }
    }
    for (int head = group; head - group < c.copied; head += groups) {    // equally often for all lanes of a warp
        const bool there = head < c.copied, changes = head < c.heads;
        const T* const from = row + head * c.h.HS;
        if (there) first.load(from);
        float own = 1;
        if constexpr (NORM == QkNorm::head) {
            float squares = there ? first.squares() : 0;
            if (there)
                other_slots<W>(c, lane, [&](int slot) {
                    P piece(c, slot);
                    piece.load(from);
                    squares += piece.squares();
                });
            own = rsqrtf(sum_over(squares, c.lanes) / float(c.h.HS) + c.t.eps);
            if (lane == 0 && changes) rstd[n * c.heads + head] = own;
        } else own = c.key(head) ? r[1] : r[0];
        if (!there) continue;
        auto finish = [&](P& piece, const Rotation<W>& rotation) {
            if (changes && NORM != QkNorm::none) piece.norm(c.weights(qw, kw, head), own, c.t.plus);
            if (changes) rotation.rotate(piece);
            piece.store(y + n * c.width + head * c.h.HS);
        };
        finish(first, rotation);
        other_slots<W>(c, lane, [&](int slot) {
            P piece(c, slot);
            piece.load(from);
            finish(piece, Rotation<W>(c, piece, angle_row));
        });
    }
}

// ---- backward with a norm -----------------------------------------------------------------------

// xhat = x rstd; g = the gradient of the norm's output (rotated back); m = mean(g (w + plus) xhat):
//     dx = rstd (g (w + plus) - xhat m)        dw += g xhat

constexpr int MAX_KEPT = 640;    // threads: each then has 96 registers

// Sums a block's query heads into the first one of own (heads,HS), and key heads likewise.
__device__ inline void fold_heads(float* own, const Call& c) {
    __syncthreads();    // all have been written
    for (int i = threadIdx.x; i < 2 * c.h.HS; i += blockDim.x) {
        const int first = i < c.h.HS ? 0 : c.h.NH, heads = i < c.h.HS ? c.h.NH : c.h.NKV;
        float* const column = own + int64_t(first) * c.h.HS + i % c.h.HS;
        float sum = 0;
#pragma unroll 4
        for (int head = 0; head < heads; head++) sum += column[int64_t(head) * c.h.HS];
        *column = sum;
    }
}

// partial (gridDim.x,heads,HS): the block's sums for the weights. A thread has one piece of one
// head.
template <class T, int W, QkNorm NORM, bool INTERLEAVED> __global__ void __launch_bounds__(MAX_KEPT)
    rope_backward_kernel(T* d, float* partial, const T* x, const T* qw, const T* kw, const float* rstd, const Call c) {
    typedef RopeVector<W, INTERLEAVED> P;
    const int head = threadIdx.x / c.lanes;
    const bool there = head < c.heads, key = c.key(head);
    P g(c, threadIdx.x % c.lanes), xs = g, w = g;
    w.load_factors(there ? c.weights(qw, kw, head) : qw, c.t.plus);
    float sums[2 * W] = {};
    for (int64_t n = blockIdx.x; n < c.N; n += gridDim.x) {
        const int64_t at = n * c.width + head * c.h.HS;
        float r = 0, product = 0;    // thread's sum of g (w + plus) x
        if (there) {
            g.load(d + at), xs.load(x + at);
            r = rstd[c.sum_at(n, head)];
            Rotation<W>(c, g, c.rotation(n)).rotate(g);
#pragma unroll
            for (int i = 0; i < 2 * W; i++) product += g.x[i] * w.x[i] * xs.x[i];
        }
        float total;
        if constexpr (NORM == QkNorm::all) {
            const float queries = block_sum(key ? 0 : product), keys = block_sum(key ? product : 0);
            total = key ? keys : queries;
        } else total = sum_over(product, c.lanes);
        if (!there) continue;
        const float slope = total / c.count(head) * r * r;
#pragma unroll
        for (int i = 0; i < 2 * W; i++) {
            sums[i] += g.x[i] * xs.x[i] * r;
            g.x[i] = r * (g.x[i] * w.x[i] - xs.x[i] * slope);
        }
        g.store(d + at);
    }
    float* const own = partial + int64_t(blockIdx.x) * c.heads * c.h.HS;
    if (there)
        g.vectors([&](int first, int at) {
            for (int i = 0; i < W; i++) own[head * c.h.HS + at + i] = sums[first + i];
        });
    if (NORM == QkNorm::head) fold_heads(own, c);
}

// Backward pass for any number and size of heads. A block keeps its weights' sums in scratch.
template <class T, QkNorm NORM, bool INTERLEAVED> __global__ void __launch_bounds__(MAX_THREADS)
    rope_backward_any_kernel(T* d, float* partial, const T* x, const T* qw, const T* kw, const float* rstd,
                             const Call c) {
    typedef RopeVector<1, INTERLEAVED> P;
    const int lane = threadIdx.x % c.lanes, group = threadIdx.x / c.lanes, groups = blockDim.x / c.lanes;
    float* const own = partial + int64_t(blockIdx.x) * c.heads * c.h.HS;
    // Calls f(g, x, w + plus) for this lane's pieces of a head; g: gradient, rotated back.
    auto pieces = [&](int64_t n, int head, auto f) {
        const int64_t at = n * c.width + head * c.h.HS;
        for (int slot = lane; slot < c.slots; slot += c.lanes) {
            P g(c, slot), xs = g, w = g;
            g.load(d + at), xs.load(x + at), w.load_factors(c.weights(qw, kw, head), c.t.plus);
            Rotation<1>(c, g, c.rotation(n)).rotate(g);
            f(g, xs, w);
        }
    };
    auto product = [&](int64_t n, int head) {
        float sum = 0;
        pieces(n, head, [&](P& g, P& xs, P& w) { sum += g.x[0] * w.x[0] * xs.x[0] + g.x[1] * w.x[1] * xs.x[1]; });
        return sum;
    };
    for (int64_t n = blockIdx.x; n < c.N; n += gridDim.x) {
        float totals[2] = {};
        if constexpr (NORM == QkNorm::all) {
            for (int head = group; head < c.heads; head += groups)
                (c.key(head) ? totals[1] : totals[0]) += product(n, head);
            for (float& total : totals) total = block_sum(total);
        }
        for (int head = group; head - group < c.heads; head += groups) {
            const bool there = head < c.heads;
            const float total = NORM == QkNorm::all ? (c.key(head) ? totals[1] : totals[0])
                                                    : sum_over(there ? product(n, head) : 0, c.lanes);
            if (!there) continue;
            const float r = rstd[c.sum_at(n, head)], slope = total / c.count(head) * r * r;
            pieces(n, head, [&](P& g, P& xs, P& w) {
                g.vectors([&](int i, int at) {
                    float& sum = own[head * c.h.HS + at];    // private to this thread
                    sum = (n == blockIdx.x ? 0 : sum) + g.x[i] * xs.x[i] * r;
                    g.x[i] = r * (g.x[i] * w.x[i] - xs.x[i] * slope);
                });
                g.store(d + n * c.width + head * c.h.HS);
            });
        }
    }
    if (NORM == QkNorm::head) fold_heads(own, c);
}

// ---- launchers ----------------------------------------------------------------------------------

// Calls f(W, norm, interleaved), all integral constants. W is VEC<T> if rope_by_vectors allows it
// and a thread for each lane of all heads makes at most `threads` (0: any number); else W is 1.
template <class T, class F> void choose(Heads h, QkNormRope t, int threads, F f) {
    const Call wide = Call::of<VEC<T>>(nullptr, nullptr, 0, 1, h, t);
    const bool vectors = rope_by_vectors<T>(h, t) && (!threads || wide.heads * wide.lanes <= threads);
    auto with_norm = [&](auto W, auto interleaved) {
        if (t.norm == QkNorm::head) f(W, std::integral_constant<QkNorm, QkNorm::head>(), interleaved);
        else if (t.norm == QkNorm::all) f(W, std::integral_constant<QkNorm, QkNorm::all>(), interleaved);
        else f(W, std::integral_constant<QkNorm, QkNorm::none>(), interleaved);
    };
    auto with_width = [&](auto interleaved) {
        if (vectors) with_norm(std::integral_constant<int, VEC<T>>(), interleaved);
        else with_norm(std::integral_constant<int, 1>(), interleaved);
    };
    if (t.interleaved) with_width(std::true_type());
    else with_width(std::false_type());
}

template <class T> void rotate(T* y, float* rstd, const T* x, const T* qw, const T* kw, const float* cos_sin, int B,
                               int S, const int* pos, Heads h, QkNormRope t, float sine) {
    choose<T>(h, t, 0, [&](auto W, auto NORM, auto INTERLEAVED) {
        Call c = Call::of<W>(cos_sin, pos, B * S, S, h, t);
        c.sine = sine;
        if (y != x) c.copied += h.NKV;
        const int64_t threads = std::min<int64_t>(MAX_THREADS, round_up(int64_t(c.copied) * c.lanes, 32));
        launch(rope_kernel<T, W, NORM, INTERLEAVED>, {unsigned(c.N), unsigned(threads)}, y, rstd, x, qw, kw, c);
    });
}
}    // namespace

template <class T> void rope_forward(T* y, float* rstd, const T* x, const T* qw, const T* kw, const float* cos_sin,
                                     int B, int S, const int* pos, Heads h, QkNormRope t) {
    rotate(y, rstd, x, qw, kw, cos_sin, B, S, pos, h, t, 1);
}
template void rope_forward(float*, float*, const float*, const float*, const float*, const float*, int, int, const int*,
                           Heads, QkNormRope);
template void rope_forward(bf16*, float*, const bf16*, const bf16*, const bf16*, const float*, int, int, const int*,
                           Heads, QkNormRope);

namespace {
template <class T> void rope_backward(T* d, Grad<T>* dqw, Grad<T>* dkw, const T* x, const T* qw, const T* kw,
                                      const float* cos_sin, const float* rstd, int B, int S, Heads h, QkNormRope t) {
    if (!t.norms()) return rotate<T>(d, nullptr, d, nullptr, nullptr, cos_sin, B, S, nullptr, h, t, -1);
    float* const partial = static_cast<float*>(cuda_scratch(rope_scratch(int64_t(B) * S, h, t)));
    const int parts = std::min(ROPE_PARTS, B * S), width = (h.NH + h.NKV) * h.HS;
    choose<T>(h, t, MAX_KEPT, [&](auto W, auto NORM, auto INTERLEAVED) {
        if constexpr (NORM != QkNorm::none) {
            Call c = Call::of<W>(cos_sin, nullptr, B * S, S, h, t);
            c.sine = -1;
            const int64_t threads = round_up(int64_t(c.heads) * c.lanes, 32);
            if constexpr (W > 1)
                launch(rope_backward_kernel<T, W, NORM, INTERLEAVED>, {unsigned(parts), unsigned(threads)}, d, partial,
                       x, qw, kw, rstd, c);
            else
                launch(rope_backward_any_kernel<T, NORM, INTERLEAVED>,
                       {unsigned(parts), unsigned(std::min<int64_t>(MAX_THREADS, threads))}, d, partial, x, qw, kw,
                       rstd, c);
        }
    });
    const bool all = t.norm == QkNorm::all;
    add_parts(dqw, all ? h.NH * h.HS : h.HS, dkw, all ? h.NKV * h.HS : h.HS, partial, h.NH * h.HS, parts, width);
}

const CudaRegistration entries([]<class T>(Ops<T>& o, Dtype) {
    o.rope_forward = rope_forward<T>;
    o.rope_backward = rope_backward<T>;
});
}    // namespace

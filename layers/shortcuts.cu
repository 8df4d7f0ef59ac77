// shortcuts.cu - shortcuts around blocks: weighted sums of the residual stream and the embeddings,
// the token before (smear), embeddings added to values. Maths: layers/operations.inc.
//
// All are bound by memory: each array is moved once, by 16-byte vectors where rows are aligned. A
// gate is a sum of 12 or 24 products, computed by a warp wherever it is needed instead of being
// kept. Gradients of weights that all rows share: each block writes its sums to a row of scratch,
// and add_parts adds these rows in order. The number of blocks depends on the sizes alone, and so
// do the bits.
#include "activation.cuh"
#include "layers/ptx/sum_parts.cuh"

namespace {
constexpr int ROWS = 4;    // rows per block, one a warp

template <class T, class F> void for_width(int C, F f) {
    if (rows_align<T>(C)) f(std::integral_constant<int, VEC<T>>());
    else f(std::integral_constant<int, 1>());
}

// ---- weighted sums of the residual stream -------------------------------------------------------

template <class T, int W> __global__ void residual_mix_kernel(T* y, const T* x, const T* x0, const T* factor,
                                                              const T* factor0, int l, float sign, int64_t n) {
    const int64_t at = (blockIdx.x * 256ll + threadIdx.x) * W;
    if (at >= n) return;
    const float a = factor ? to_float(factor[l]) : 1, b = sign * to_float(factor0[l]);
    Vec<T, W> v = load<W>(x + at);
    const Vec<T, W> v0 = load<W>(x0 + at);
#pragma unroll
    for (int j = 0; j < W; j++) v.set(j, a * v[j] + b * v0[j]);
    store<W>(y + at, v);
}
template <class T> void residual_mix_forward(T* y, const T* x, const T* x0, const T* factor, const T* factor0, int l,
                                             float sign, int64_t n) {
    auto run = [&](auto W) {
        launch(residual_mix_kernel<T, W>, {unsigned(ceil_div(n, 256 * W)), 256}, y, x, x0, factor, factor0, l, sign, n);
    };
    n % VEC<T> ? run(std::integral_constant<int, 1>()) : run(std::integral_constant<int, VEC<T>>());
}

// partial (blocks,2): each block's terms of dfactor and dfactor0.
template <class T, int W>
__global__ void residual_mix_backward_kernel(float* partial, T* d, T* dx0, const T* x, const T* x0, const T* factor,
                                             const T* factor0, int l, float sign, int64_t n, bool dots, bool dots0) {
    const float a = factor ? to_float(factor[l]) : 1, b = sign * to_float(factor0[l]);
    float dot = 0, dot0 = 0;
    for (int64_t at = (blockIdx.x * 256ll + threadIdx.x) * W; at < n; at += gridDim.x * 256ll * W) {
        Vec<T, W> g = load<W>(d + at), to = load<W>(dx0 + at), v = {}, v0 = {};
        if (dots) v = load<W>(x + at);
        if (dots0) v0 = load<W>(x0 + at);
#pragma unroll
        for (int j = 0; j < W; j++) {
            dot += g[j] * v[j];
            dot0 += g[j] * v0[j];
            to.set(j, to[j] + b * g[j]);
            g.set(j, a * g[j]);
        }
        store<W>(dx0 + at, to);
        if (factor) store<W>(d + at, g);
    }
    dot = block_sum(dot);
    dot0 = block_sum(dot0);
    if (threadIdx.x == 0) partial[blockIdx.x * 2] = dot, partial[blockIdx.x * 2 + 1] = sign * dot0;
}
template <class T> void residual_mix_backward(T* d, T* dx0, float* dfactor, float* dfactor0, const T* x, const T* x0,
                                              const T* factor, const T* factor0, int l, float sign, int64_t n) {
    float* partial = static_cast<float*>(cuda_scratch(NORM_PARTS * 8));
    auto run = [&](auto W) {
        const int blocks = int(std::min<int64_t>(NORM_PARTS, ceil_div(n, 256 * W)));
        launch(residual_mix_backward_kernel<T, W>, {unsigned(blocks), 256}, partial, d, dx0, x, x0, factor, factor0, l,
               sign, n, dfactor != nullptr, dfactor0 != nullptr);
        add_parts(dfactor ? dfactor + l : nullptr, 1, dfactor0 ? dfactor0 + l : nullptr, 1, partial, 1, blocks, 2);
    };
    n % VEC<T> ? run(std::integral_constant<int, 1>()) : run(std::integral_constant<int, VEC<T>>());
}

// ---- gates --------------------------------------------------------------------------------------

// sigmoid(x . w) and its slope, by a warp.    x, w (G), G <= 32
template <class T> __device__ inline Gate gate_of(const T* x, const T* w, int G) {
    const int lane = threadIdx.x % 32;
    return sigmoid(warp_sum(lane < G ? to_float(x[lane]) * to_float(w[lane]) : 0));
}

// ---- the token before ---------------------------------------------------------------------------

__device__ inline bool has_before(const int* pos, int n, int S) { return pos ? pos[n] > 0 : n % S > 0; }

template <class T, int W> __global__ void smear_kernel(T* y, const T* x, const T* previous, const T* w, const T* lambda,
                                                       int N, int S, int C, const int* pos) {
    const int n = blockIdx.x * ROWS + threadIdx.x / 32;
    if (n >= N) return;
    const T *row = x + int64_t(n) * C, *before = previous ? previous + int64_t(n) * C : row - C;
    const int G = smear_channels(C);
    const bool any = has_before(pos, n, S);
    const float gate = any ? to_float(*lambda) * gate_of(row, w, G).s : 0;
    for (int c = threadIdx.x % 32 * W; c < C; c += 32 * W) {
        Vec<T, W> v = load<W>(row + c), b = {};
        if (any) b = load<W>(before + c);
#pragma unroll
        for (int j = 0; j < W; j++) v.set(j, v[j] + gate * b[j]);
        store<W>(y + int64_t(n) * C + c, v);
    }
}
template <class T> void smear_forward(T* y, const T* x, const T* previous, const T* w, const T* lambda, int B, int S,
                                      int C, const int* pos) {
    const int N = B * S;
    for_width<T>(C, [&](auto W) {
        launch(smear_kernel<T, W>, {unsigned(ceil_div(N, ROWS)), ROWS * 32}, y, x, previous, w, lambda, N, S, C, pos);
    });
}

// A block has every gridDim.x-th row. partial (blocks,G+1): each block's terms of dw and dlambda.
template <class T, int W> __global__ void smear_backward_kernel(float* partial, T* dx, const T* dy, const T* x,
                                                                const T* w, const T* lambda, int N, int S, int C,
                                                                const int* pos) {
    const int G = smear_channels(C), thread = int(threadIdx.x);
    const float by = to_float(*lambda);
    float sum = 0;    // thread c: of dw[c]; thread G: of dlambda
    for (int n = blockIdx.x; n < N; n += gridDim.x) {
        const T *row = x + int64_t(n) * C, *d = dy + int64_t(n) * C;
        const bool has_previous = has_before(pos, n, S);
        const bool next_has_previous = n + 1 < N && has_before(pos, n + 1, S);
        const float next = next_has_previous ? by * gate_of(row + C, w, G).s : 0;
        const Gate gate = gate_of(row, w, G);
        float dot = 0;
        for (int c = threadIdx.x * W; has_previous && c < C; c += blockDim.x * W) {
            const Vec<T, W> g = load<W>(d + c), b = load<W>(row - C + c);
#pragma unroll
            for (int j = 0; j < W; j++) dot += g[j] * b[j];
        }
        dot = block_sum(dot);
        const float dsum = by * gate.slope * dot;    // 0 if nothing is before
        for (int c = threadIdx.x * W; c < C; c += blockDim.x * W) {
            Vec<T, W> g = load<W>(d + c), more = {};
            if (next_has_previous) more = load<W>(d + C + c);
#pragma unroll
            for (int j = 0; j < W; j++) g.set(j, g[j] + next * more[j] + (c + j < G ? dsum * to_float(w[c + j]) : 0));
            store<W>(dx + int64_t(n) * C + c, g);
        }
        if (thread < G) sum += dsum * to_float(row[thread]);
        if (thread == G) sum += gate.s * dot;
    }
    if (thread <= G) partial[blockIdx.x * (G + 1) + thread] = sum;
}
template <class T> void smear_backward(T* dx, float* dw, float* dlambda, const T* dy, const T* x, const T* w,
                                       const T* lambda, int B, int S, int C, const int* pos) {
    const int N = B * S, blocks = std::min(N, NORM_PARTS), G = smear_channels(C);
    float* partial = static_cast<float*>(cuda_scratch(NORM_PARTS * (G + 1) * 4));
    for_width<T>(C, [&](auto W) {
        launch(smear_backward_kernel<T, W>, {unsigned(blocks), 128}, partial, dx, dy, x, w, lambda, N, S, C, pos);
    });
    add_parts(dw, G, dlambda, 1, partial, G, blocks, G + 1);
}

// One thread per position, no races: a sequence's positions are distinct, so writes differ, and
// only its first one reads history, at an earlier position that no thread writes.
__global__ void previous_tokens_kernel(int* previous, int* history, const int* tok, const int* sequences,
                                       const int* cache_pos, int N, int S, int positions) {
    const int n = blockIdx.x * 128 + threadIdx.x;
    if (n >= N) return;
    int* past = history + int64_t(sequences[n / S]) * positions;
    const int pos = cache_pos[n];
    previous[n] = pos <= 0 ? 0 : n % S ? tok[n - 1] : past[pos - 1];
    if (pos >= 0) past[pos] = tok[n];
}
void previous_tokens(int* previous, int* history, const int* tok, const int* sequences, const int* cache_pos, int B,
                     int S, int positions) {
    launch(previous_tokens_kernel, {unsigned(ceil_div(B * S, 128)), 128}, previous, history, tok, sequences, cache_pos,
           B * S, S, positions);
}

// ---- embeddings added to values -----------------------------------------------------------------

template <class T, int W> __global__ void value_embedding_kernel(T* qkv, const T* x, const T* table, const T* gate_w,
                                                                 const int* tok, int N, int C, Heads h) {
    const int n = blockIdx.x * ROWS + threadIdx.x / 32;
    if (n >= N) return;
    const int64_t width = int64_t(h.NKV) * h.HS;
    const int G = value_gate_channels(C);
    T* v = qkv + n * int64_t(h.qkv_width()) + h.width() + width;
    const T* e = table + (tok ? tok[n] : n) * width;
    for (int k = 0; k < h.NKV; k++, v += h.HS, e += h.HS) {
        const T* w = gate_w + k * G;
        const float gate = VALUE_GATE_SCALE * gate_of(x + int64_t(n) * C, w, G).s;
        for (int i = threadIdx.x % 32 * W; i < h.HS; i += 32 * W) {
            Vec<T, W> to = load<W>(v + i);
            const Vec<T, W> more = load<W>(e + i);
#pragma unroll
            for (int j = 0; j < W; j++) to.set(j, to[j] + gate * more[j]);
            store<W>(v + i, to);
        }
    }
}
template <class T> void value_embedding_forward(T* qkv, const T* x, const T* table, const T* gate_w, const int* tok,
                                                int N, int C, Heads h) {
    for_width<T>(h.HS, [&](auto W) {
        launch(value_embedding_kernel<T, W>, {unsigned(ceil_div(N, ROWS)), ROWS * 32}, qkv, x, table, gate_w, tok, N, C,
               h);
    });
}

// dvalues, and dsums (N,NKV): the gradients of the gates' sums x . w. A warp has a row.
template <class T, int W> __global__ void value_embedding_backward_kernel(float* dsums, T* dvalues, const T* dqkv,
                                                                          const T* x, const T* table, const T* gate_w,
                                                                          const int* tok, int N, int C, Heads h) {
    const int n = blockIdx.x * ROWS + threadIdx.x / 32;
    if (n >= N) return;
    const int64_t width = int64_t(h.NKV) * h.HS;
    const int G = value_gate_channels(C);
    const T* dv = dqkv + n * int64_t(h.qkv_width()) + h.width() + width;
    const T* e = table + (tok ? tok[n] : n) * width;
    T* to = dvalues + n * width;
    for (int k = 0; k < h.NKV; k++, dv += h.HS, e += h.HS, to += h.HS) {
        const Gate gate = gate_of(x + int64_t(n) * C, gate_w + k * G, G);
        float dot = 0;
        for (int i = threadIdx.x % 32 * W; i < h.HS; i += 32 * W) {
            Vec<T, W> g = load<W>(dv + i);
            const Vec<T, W> v = load<W>(e + i);
#pragma unroll
            for (int j = 0; j < W; j++) {
                dot += g[j] * v[j];
                g.set(j, VALUE_GATE_SCALE * gate.s * g[j]);
            }
            if (dvalues) store<W>(to + i, g);
        }
        dot = warp_sum(dot);
        if (threadIdx.x % 32 == 0) dsums[int64_t(n) * h.NKV + k] = VALUE_GATE_SCALE * gate.slope * dot;
    }
}
// dx += dsums gate_w, and partial (blocks,NKV,G) = each block's terms of dsums^T x. A block has
// `rows` consecutive rows.
template <class T> __global__ void value_gate_backward_kernel(float* partial, T* dx, const float* dsums, const T* x,
                                                              const T* gate_w, int N, int C, int NKV, int rows) {
    const int G = value_gate_channels(C);
    const int64_t from = int64_t(blockIdx.x) * rows, to = min(from + rows, int64_t(N));
    for (int64_t i = threadIdx.x; i < (to - from) * G; i += blockDim.x) {
        const int64_t n = from + i / G;
        const int c = int(i % G);
        float sum = to_float(dx[n * C + c]);
        for (int k = 0; k < NKV; k++) sum += dsums[n * NKV + k] * to_float(gate_w[k * G + c]);
        dx[n * C + c] = from_float<T>(sum);
    }
    for (int i = threadIdx.x; i < NKV * G; i += blockDim.x) {
        float sum = 0;
        for (int64_t n = from; n < to; n++) sum += dsums[n * NKV + i / G] * to_float(x[n * C + i % G]);
        partial[blockIdx.x * int64_t(NKV) * G + i] = sum;
    }
}
template <class T> void value_embedding_backward(T* dx, T* dvalues, float* dgate_w, const T* dqkv, const T* x,
                                                 const T* table, const T* gate_w, const int* tok, int N, int C,
                                                 Heads h) {
    const ValueEmbeddingScratch layout(N, C, h.NKV);
    char* scratch = static_cast<char*>(cuda_scratch(layout.bytes));
    float *dsums = reinterpret_cast<float*>(scratch), *partial = reinterpret_cast<float*>(scratch + layout.sums);
    for_width<T>(h.HS, [&](auto W) {
        launch(value_embedding_backward_kernel<T, W>, {unsigned(ceil_div(N, ROWS)), ROWS * 32}, dsums, dvalues, dqkv, x,
               table, gate_w, tok, N, C, h);
    });
    const int rows = int(ceil_div(N, NORM_PARTS)), blocks = int(ceil_div(N, rows)),
              gates = h.NKV * value_gate_channels(C);
    launch(value_gate_backward_kernel<T>, {unsigned(blocks), 128}, partial, dx, dsums, x, gate_w, N, C, h.NKV, rows);
    add_parts(dgate_w, gates, static_cast<float*>(nullptr), 0, partial, 0, blocks, gates);
}

const CudaRegistration entries([]<class T>(Ops<T>& o, Dtype) {
    o.residual_mix_forward = residual_mix_forward<T>;
    o.residual_mix_backward = residual_mix_backward<T>;
    o.smear_forward = smear_forward<T>;
    o.smear_backward = smear_backward<T>;
    o.previous_tokens = previous_tokens;
    o.value_embedding_forward = value_embedding_forward<T>;
    o.value_embedding_backward = value_embedding_backward<T>;
});
}    // namespace

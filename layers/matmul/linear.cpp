// linear.cpp - y = x w^T + b + residual and its gradients, with the ffn's GELU.
//
// Bound by FMAs: 2 N C OC FLOPs forward, 4 N C OC backward. With bf16 parameters x is bf16, too,
// and gradients are rounded to bf16; sums and results are float.
#include "layers/matmul/matmul.h"

namespace ISA {
template <class P, Tiles tiles> static void linear_forward(float* y, const P* x, const P* w, const P* b,
                                                           const float* residual, int N, int C, int OC, Precision) {
    Matmul<P, P> m = output<P, tiles>(y, x, w, N, C, OC);
    m.bias = b;
    m.add = residual == y;
    m.residual = m.add ? nullptr : residual;
    matmul(m);
}

// sums[c] += sum_n x[n,c], in chunks of columns; reads 8 rows of them at a time.
template <class X> static void column_sums(float* sums, const X* x, int N, int C) {
    each_range(C, 64, int64_t(N) * C, [&](Range r, int) {
        for (int n = 0; n < N; n += 8) {
            const int rows = least(8, N - n);
            const X* from = x + int64_t(n) * C;
            each_vector(r.to - r.from, [&](int64_t i, auto at) {
                const X* p = from + r.from + i;
                vf s = at.get(p);
                for (int j = 1; j < rows; j++) s += at.get(p + int64_t(j) * C);
                at.put(sums + r.from + i, at.get(sums + r.from + i) + s);
            });
        }
    });
}

// dw (+)= dy^T x   db += sum_n dy
template <class P, Tiles tiles, class Dy>
static void parameters(GradTarget<float> dw, float* db, const Dy* dy, const P* x, int N, int C, int OC) {
    if (dw.p) matmul(weight_gradient<tiles>(dw, db, dy, x, N, C, OC));
    else if (db) column_sums(db, dy, N, OC);
}
template <class P, Tiles tiles, class Dy = float>
static void linear_backward(float* dx, GradTarget<float> dw, float* db, const Dy* dy, const P* x, const P* w, int N,
                            int C, int OC, Precision) {
    if (dx) matmul(input_gradient<tiles>(dx, dy, w, N, C, OC));
    parameters<P, tiles>(dw, db, dy, x, N, C, OC);
}
template <class P, Tiles tiles> static void lm_head_backward(float* dx, GradTarget<float> dw, float* db, const P* dy,
                                                             const P* x, const P* w, int N, int C, int OC,
                                                             Precision precision) {
    linear_backward<P, tiles>(dx, dw, db, dy, x, w, N, C, OC, precision);
}

template <class P, Tiles tiles>
static void linear_gelu_forward(P* y, float* pre, const P* x, const P* w, const P* b, int N, int C, int OC, Precision) {
    Matmul<P, P> m = output<P, tiles>(pre, x, w, N, C, OC);
    m.bias = b;
    m.gelu = y;
    matmul(m);
}

template <class P, Tiles tiles> static void linear_gelu_backward(float* dpre, GradTarget<float> dw, float* db,
                                                                 float* dpre_sum, const float* dy, const P* x,
                                                                 const P* w, const float* pre, int N, int C, int OC) {
    Matmul<float, P> m = input_gradient<tiles>(dpre, dy, w, N, C, OC);
    m.gelu_of = pre;
    matmul(m);
    parameters<P, tiles>(dw, db, dy, x, N, C, OC);
    if (dpre_sum) column_sums(dpre_sum, dpre, N, C);
}

static void keep_blocks(float* x, RowBlocks blocks, int rows, int cols) {
    each_item(rows, int64_t(rows) * cols, [&](int64_t r) {
        const int i = blocks.of(r);
        float* row = x + r * cols;
        const int from = blocks.col[i], to = blocks.col[i + 1];
        __builtin_memset(row, 0, sizeof(float) * size_t(from));
        __builtin_memset(row + to, 0, sizeof(float) * size_t(cols - to));
    });
}

// 1 / |w + scale * sum of b[k] a[k,:]|, k from `from` to `to`; 0 for a norm of 0.    w (C)
template <class P> static float inverse_norm(const P* w, const P* a, const P* b, float scale, int from, int to, int C) {
    vf squares = {};
    each_vector(C, [&](int64_t c, auto at) {
        vf v = at.get(w + c);
        for (int k = from; k < to; k++) v += at.get(a + int64_t(k) * C + c) * (scale * widened(b[k]));
        squares += v * v;
    });
    const float norm = __builtin_sqrtf(sum(squares));
    return norm > 0 ? 1 / norm : 0;
}
float inverse_row_norm(const float* w, const float* a, const float* b, float scale, int from, int to, int C) {
    return inverse_norm(w, a, b, scale, from, to, C);
}
template <class P> static void inverse_row_norms(float* inverse, const P* w, const P* a, const P* b, float scale,
                                                 RowBlocks blocks, int C, int OC, int R) {
    each_item(OC, int64_t(OC) * C, [&](int64_t o) {
        const int i = blocks.of(o), from = blocks.col[i], to = blocks.col[i + 1];
        inverse[o] = from < to ? inverse_norm(w + o * C, a, b + o * R, scale, from, to, C) : 0;
    });
}
template <class P> static void scale_columns_forward(float* y, const float* x, const P* magnitude, const float* inverse,
                                                     const P* b, const float* residual, int N, int C) {
    each_item(N, int64_t(N) * C, [&](int64_t n) {
        each_vector(C, [&](int64_t c, auto at) {
            const vf by = at.get(inverse + c), factor = by != 0 ? at.get(magnitude + c) * by : set1(1);
            vf v = at.get(x + n * C + c) * factor;
            if (b) v += at.get(b + c);
            if (residual) v += at.get(residual + n * C + c);
            at.put(y + n * C + c, v);
        });
    });
}
// Threads have ranges of columns and add up the rows of a column in order.
template <class P> static void scale_columns_backward(float* dx, float* dmagnitude, const float* dy, const float* x,
                                                      const P* magnitude, const float* inverse, int N, int C) {
    each_range(C, 64, int64_t(N) * C, [&](Range r, int) {
        each_vector(r.to - r.from, [&](int64_t i, auto at) {
            const int64_t c = r.from + i;
            const vf by = at.get(inverse + c), factor = by != 0 ? at.get(magnitude + c) * by : set1(1);
            vf s = {};
            for (int64_t k = c; k < int64_t(N) * C; k += C) {
                const vf d = at.get(dy + k);
                s += d * at.get(x + k);
                at.put(dx + k, d * factor);
            }
            if (dmagnitude) at.put(dmagnitude + c, at.get(dmagnitude + c) + s * by);
        });
    });
}

template <class P, Tiles tiles, class Dy = float> static int64_t backward_scratch(const CallSizes& call) {
    const int N = call.rows, C = call.in, OC = call.out;
    const P* w = nullptr;
    const Dy* dy = nullptr;
    const int64_t dx = matmul_scratch(input_gradient<tiles>(nullptr, dy, w, N, C, OC));
    const int64_t dw = matmul_scratch(weight_gradient<tiles>({nullptr, true}, nullptr, dy, w, N, C, OC));
    return dx > dw ? dx : dw;
}
template <class P, Tiles tiles> static int64_t head_scratch(const CallSizes& call) {
    return backward_scratch<P, tiles, P>(call);
}
template <class P, Tiles tiles> static int64_t forward_scratch(const CallSizes& call) {
    const P* w = nullptr;
    return matmul_scratch(output<P, tiles>(nullptr, w, w, call.rows, call.in, call.out));
}

template <class To, class From> static void convert(To* to, const From* from, int64_t n) {
    each_range(n, ONE_THREAD, n, [&](Range r, int) {
        each_vector(r.to - r.from, [&](int64_t k, auto at) { at.put(to + r.from + k, at.get(from + r.from + k)); });
    });
}

REGISTER_CPU_TILES(linear_forward, linear_forward, forward_scratch)
REGISTER_CPU_TILES(linear_backward, linear_backward, backward_scratch)
REGISTER_CPU_TILES(lm_head_backward, lm_head_backward, head_scratch)
REGISTER_CPU_TILES(linear_gelu_forward, linear_gelu_forward, forward_scratch)
REGISTER_CPU_TILES(linear_gelu_backward, linear_gelu_backward, backward_scratch)
REGISTER_CPU(keep_blocks, keep_blocks)
REGISTER_CPU(inverse_row_norms, inverse_row_norms<P>)
REGISTER_CPU(scale_columns_forward, scale_columns_forward<P>)
REGISTER_CPU(scale_columns_backward, scale_columns_backward<P>)
REGISTER_CPU(from_floats, (convert<P, float>))
REGISTER_CPU(to_floats, (convert<float, P>))
}    // namespace ISA

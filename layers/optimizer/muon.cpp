// muon.cpp - the steps of whole matrices: Newton-Schulz iterations, and norms of rows.
//
// An iteration on a matrix with shorter side k and longer side n computes A = X X^T (or X^T X, if
// X is tall) and A A, half of each, and then (a + b A + c A A) X: 3 k^2 n + k^3 FLOPs. So 768 x
// 3072 takes 29 GFLOP in five iterations. Bound by FMAs. A product's lower blocks are computed in
// strips of rows, then rounded, written, and mirrored.
#include "layers/matmul/matmul.h"
#include "muon.h"
#include "squares.h"

namespace ISA {
constexpr int STRIP = 128, MIRROR = 16;    // rows of a strip; size of a mirrored block

static double sum(const double* x, int n) {
    double total = 0;
    for (int i = 0; i < n; i++) total += x[i];
    return total;
}

// A matrix (k,n) whose element (i,j) is x[i * row_stride + j * column_stride].
template <class P> struct MatrixView {
    const P* x;
    int k, n;
    int64_t row_stride, column_stride;
};
// to (k,k) = f(X X^T + diagonal I), symmetric. f(at, in, v) gets a vector of elements from `at` on.
// strip: (STRIP,k)
template <Tiles tiles, class P, class F>
static void symmetric_product(P* to, float* strip, MatrixView<P> x, float diagonal, F f) {
    const int k = x.k;
    for (int first = 0; first < k; first += STRIP) {
        const int rows = least(STRIP, k - first), columns = first + rows;
        Matmul<P, P> m = {.M = rows,
                          .N = columns,
                          .K = x.n,
                          .a = x.x + first * x.row_stride,
                          .ra = x.row_stride,
                          .ca = x.column_stride,
                          .b = x.x,
                          .rb = x.column_stride,
                          .cb = x.row_stride,
                          .c = strip};
        m.tiles = tiles;
        matmul(m);
        each_item(rows, int64_t(rows) * columns, [&](int64_t r) {
            float* row = strip + r * columns;
            const int64_t at = (first + r) * k;
            row[first + r] += diagonal;
            each_vector(columns, [&](int64_t j, auto in) { in.put(to + at + j, f(at + j, in, in.get(row + j))); });
        });
        each_item((first + MIRROR - 1) / MIRROR, int64_t(rows) * first, [&](int64_t block) {
            const int from = int(block) * MIRROR, end = least(first, from + MIRROR);
            for (int i = first; i < first + rows; i++)
                for (int j = from; j < end; j++) to[int64_t(j) * k + i] = to[int64_t(i) * k + j];
        });
    }
}
// to (n) = factor * x
template <class To> static void scaled_copy(To* to, const float* x, float factor, int64_t n) {
    each_range(n, ONE_THREAD, n, [&](Range r, int) {
        each_vector(r.to - r.from,
                    [&](int64_t i, auto in) { in.put(to + r.from + i, factor * in.get(x + r.from + i)); });
    });
}
// The matrices of `work`, whose elements are floats.
template <class P> struct Work {
    P *x, *a, *b;
    float *next, *strip;
    Work(float* work, int64_t size, int64_t square) {
        auto take = [&](int64_t n) {
            float* p = work;
            work += (n + 63) / 64 * 64;
            return p;
        };
        x = reinterpret_cast<P*>(take(size));
        next = take(size);
        a = reinterpret_cast<P*>(take(square));
        b = reinterpret_cast<P*>(take(square));
        strip = take(square);    // at most (STRIP,k), as k^2 if k < STRIP
    }
};
template <class P, Tiles tiles>
static Matmul<P, P> next_product(float* to, const P* b, const P* x, int rows, int cols) {
    const bool tall = rows > cols;
    const int k = tall ? cols : rows;
    Matmul<P, P> m = {.M = rows,
                      .N = cols,
                      .K = k,
                      .a = tall ? x : b,
                      .ra = k,
                      .ca = 1,
                      .b = tall ? b : x,
                      .rb = cols,
                      .cb = 1,
                      .c = to};
    m.tiles = tiles;
    return m;
}

template <class P, Tiles tiles> static void orthogonalize(float* x, float* work, float scale, int rows, int cols) {
    const int64_t size = int64_t(rows) * cols;
    const bool tall = rows > cols;
    const int k = tall ? cols : rows, n = tall ? rows : cols;
    Work<P> w(work, size, int64_t(k) * k);
    double square;
    sum_of_squares(&square, x, size);
    scaled_copy(w.x, x, float(1 / (__builtin_sqrt(square) + NewtonSchulz::eps)), size);
    constexpr float A = float(NewtonSchulz::a), B = float(NewtonSchulz::b), C = float(NewtonSchulz::c);
    for (int step = 0; step < NEWTON_SCHULZ_STEPS; step++) {
        const MatrixView<P> whole = {w.x, k, n, tall ? 1 : cols, tall ? cols : 1}, gram = {w.a, k, k, k, 1};
        symmetric_product<tiles>(w.a, w.strip, whole, 0, [](int64_t, auto, vf v) { return v; });
        symmetric_product<tiles>(w.b, w.strip, gram, A / C,    // b A + c (A A + a / c I)
                                 [&](int64_t at, auto in, vf v) { return B * in.get(w.a + at) + C * v; });
        matmul(next_product<P, tiles>(w.next, w.b, w.x, rows, cols));
        if (step + 1 < NEWTON_SCHULZ_STEPS) scaled_copy(w.x, w.next, 1, size);
    }
    scaled_copy(x, w.next, scale, size);
}
template <class P, Tiles tiles> static int64_t orthogonalize_scratch(const CallSizes& call) {
    const int k = least(call.rows, call.in), n = call.rows + call.in - k;
    const P* p = nullptr;
    const Matmul<P, P> largest = {
        .M = k, .N = k, .K = n, .a = p, .ra = n, .ca = 1, .b = p, .rb = 1, .cb = n, .c = nullptr, .tiles = tiles};
    const int64_t symmetric = max_matmul_scratch(largest);
    const int64_t next = matmul_scratch(next_product<P, tiles>(nullptr, p, p, call.rows, call.in));
    return symmetric > next ? symmetric : next;
}

static void normalize_rows(float* x, float* v, float scale, const Step* step, OptimizerParams a, int rows, int cols) {
    if (step->skipped) return;
    auto* row_squares = static_cast<double*>(cpu_scratch(8 * int64_t(rows)));
    const int64_t size = int64_t(rows) * cols;
    each_item(rows, size, [&](int64_t r) {
        float* row = x + r * cols;
        const double square = block_squares(row, cols);
        v[r] = a.beta2 * v[r] + (1 - a.beta2) * float(square / cols);
        const float factor = 1 / (__builtin_sqrtf(v[r]) + a.eps);
        for (int c = 0; c < cols; c++) row[c] *= factor;
        row_squares[r] = square * double(factor) * double(factor);
    });
    const double norm = __builtin_sqrt(sum(row_squares, rows));
    const float factor = norm > 0 ? float(scale * __builtin_sqrt(double(size)) / norm) : 0;
    each_item(rows, size, [&](int64_t r) {
        for (int c = 0; c < cols; c++) x[r * cols + c] *= factor;
    });
}
static int64_t normalize_rows_scratch(const CallSizes& call) { return 8 * int64_t(call.rows); }

REGISTER_CPU_TILES(orthogonalize, orthogonalize, orthogonalize_scratch)
REGISTER_CPU_WITH_SCRATCH(normalize_rows, normalize_rows, normalize_rows_scratch)
}    // namespace ISA

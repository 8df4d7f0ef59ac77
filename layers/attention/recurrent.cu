// recurrent.cu - attention without softmax (layers/ops.h: LinearAttention), in chunks of 32
// positions. Maths: recurrent.cpp. One kernel does four walks over a sequence, each with other
// factors:
//   out_r = sum_c (L_r . R_c) Z_c + L_r S      S += R^T Z
// where c are the positions of r's chunk up to r (forward), or from r on (backward):
//   Y   forward    L = q~    R = k~    Z = v    out = num
//   DQ  forward    L = g     R = v     Z = k~   out = dq~
//   DK  backward   L = v     R = g     Z = q~   out = dk~
//   DV  backward   L = k~    R = q~    Z = g    out = dv
// S is the state before the chunk (backward: after it). A chunk's decays multiply S: each row has
// its own in Y and DV, each column in DQ and DK. elu's denominator is one more column of v, of
// ones; its gradient is one more column of g.
//
// Thread mapping: a block of 128 threads walks along a key/value head of a sequence for 32 columns
// of Z, out and S, and recomputes the scores L . R. A thread computes tiles of 4 rows by 2 columns
// of scores, out and S from factors in shared memory. Bound by shared memory: 6 reads for 8
// multiply-adds. Sums are float, in an order that depends only on sizes. FLOPs for a position, head
// and 32 columns: 2 (32 HS + 32 * 32 + 2 * 32 HS), for scores, their product with Z, and S.
//
// Performer's features are computed before the walks, and their gradients are turned into those of
// qkv after them, by kernels of their own (MAPPED: the walks read features), in float. A block of
// 128 threads multiplies 16 queries, keys or values by w, which it reads once for every 4 of them.
#include "attention.cuh"

namespace {
constexpr int THREADS = 128, E = 32, ROWS = 4, COLUMNS = 2, ACROSS = E / COLUMNS;    // ACROSS: threads along columns
constexpr int MOST = 32, PITCH = E + 1;
static_assert(MOST / ROWS * ACROSS == THREADS);

enum class Walk { y, dq, dk, dv };

template <class T> struct Call {
    const T *qkv, *gates;
    const float* g;    // (B,S,NH,HS + elu): gradients of num and normaliser
    int B, S;
    Heads h;
    float scale;
    __host__ __device__ bool elu() const { return h.linear == LinearAttention::elu; }
    __host__ __device__ int wide() const { return h.HS + elu(); }
    // With heads above 128, shared memory holds only half as many positions.
    __host__ __device__ int chunk() const { return h.HS > 128 ? MOST / 2 : MOST; }
    __host__ __device__ int pitch() const { return (h.HS + 1) | 1; }    // odd: no bank conflicts
    __device__ int64_t row(int b, int s) const { return (int64_t(b) * S + s) * h.qkv_width(); }
    __device__ int64_t q(int b, int s, int i) const { return row(b, s) + int64_t(i) * h.HS; }
    __device__ int64_t k(int b, int s, int kv) const { return row(b, s) + int64_t(h.NH + kv) * h.HS; }
    __device__ int64_t v(int b, int s, int kv) const { return k(b, s, kv) + int64_t(h.NKV) * h.HS; }
    __device__ int64_t gate(int b, int s, int kv) const { return ((int64_t(b) * S + s) * h.NKV + kv) * h.HS; }
    __device__ int64_t wide_row(int b, int s, int i) const { return ((int64_t(b) * S + s) * h.NH + i) * wide(); }
    __device__ int first(int b, int s) const { return h.keys ? h.keys[int64_t(b) * S + s].from : 0; }
};
template <class T> struct Out {
    float* num;    // (B,S,NH,HS + elu)
    T *dqkv = nullptr, *dgates = nullptr;
    float* qdq = nullptr;    // (B,S,NKV,HS): q dq, summed over query heads
};

__device__ inline float feature(bool elu, float x) { return elu ? (x > 0 ? x + 1 : expf(x)) : x; }
__device__ inline float feature_slope(bool elu, float x) { return elu && x <= 0 ? expf(x) : 1; }
__device__ inline float log_sigmoid(float x) { return fminf(x, 0) - log1pf(expf(-fabsf(x))); }
__device__ inline float gate_decay(float x) { return fmaxf(log_sigmoid(x) * GATE_SCALE, LOG_DECAY_MIN); }
__device__ inline float gate_slope(float x) {
    return log_sigmoid(x) * GATE_SCALE > LOG_DECAY_MIN ? GATE_SCALE / (1 + expf(x)) : 0;
}

// n positions from `from` on. alone: their document has no positions before them (backward: after
// them).
struct Chunk {
    int from, n;
    bool alone;
};
template <class T> __device__ inline Chunk chunk_from(const Call<T>& c, int b, int from, int end, bool begins) {
    if (!c.h.keys) return {from, min(c.chunk(), end - from), begins && from == 0};
    int n = 1;
    while (n < c.chunk() && from + n < end && c.first(b, from + n) != from + n) n++;
    return {from, n, c.first(b, from) == from};
}
template <class T> __device__ inline Chunk chunk_to(const Call<T>& c, int b, int to) {
    int n = 1;
    while (n < c.chunk() && to - n > 0 && c.first(b, to - n) != to - n) n++;
    return {to - n, n, to == c.S || c.first(b, to) == to};
}

// A block's buffers: l, r, up (chunk,pitch); z, scores (chunk,PITCH); s: at least HS + 1 rows of
// PITCH, a multiple of four; later (E).
struct Workspace {
    float *l, *r, *up, *z, *scores, *s, *later;
    __host__ __device__ static int floats(int chunk, int pitch, int HS) {
        return 3 * chunk * pitch + ROWS + 2 * chunk * PITCH + (HS + 2 * ROWS) / ROWS * ROWS * PITCH + E;
    }
    __device__ Workspace(float* x, int chunk, int pitch, int HS) {
        l = x, r = l + chunk * pitch, up = r + chunk * pitch, z = up + chunk * pitch + ROWS;
        scores = z + chunk * PITCH, s = scores + chunk * PITCH, later = s + (HS + 2 * ROWS) / ROWS * ROWS * PITCH;
    }
};

// Fills rows of `width` columns with f(position in the chunk, column), for n positions rounded up
// to a multiple of four.
template <class F> __device__ inline void fill(float* to, int pitch, int n, int width, F f) {
    const int rows = (n + ROWS - 1) / ROWS * ROWS;
    for (int at = int(threadIdx.x); at < rows * width; at += THREADS) {
        const int i = at / width, c = at % width;
        to[i * pitch + c] = i < n ? f(i, c) : 0;
    }
}
// The first row and the j-th column of tile t. A tile has ROWS adjacent rows, and COLUMNS columns
// that are ACROSS apart.
__device__ inline int tile_row(int t) { return t / ACROSS * ROWS; }
__device__ inline int tile_column(int t, int j) { return t % ACROSS + ACROSS * j; }
typedef float Sums[ROWS][COLUMNS];
template <class A, class B> __device__ inline void multiply(Sums& sums, int K, A a, B b) {
    for (int k = 0; k < K; k++) {
        float x[ROWS], y[COLUMNS];
#pragma unroll
        for (int i = 0; i < ROWS; i++) x[i] = a(i, k);
#pragma unroll
        for (int j = 0; j < COLUMNS; j++) y[j] = b(k, j);
#pragma unroll
        for (int i = 0; i < ROWS; i++)
#pragma unroll
            for (int j = 0; j < COLUMNS; j++) sums[i][j] += x[i] * y[j];
    }
}
// Calls f(row, column, sum) for each sum of tile t.
template <class F> __device__ inline void each_sum(const Sums& sums, int t, F f) {
#pragma unroll
    for (int i = 0; i < ROWS; i++)
#pragma unroll
        for (int j = 0; j < COLUMNS; j++) f(tile_row(t) + i, tile_column(t, j), sums[i][j]);
}

template <class T, Walk W, bool MAPPED> struct Walker {
    static constexpr bool BACK = W == Walk::dk || W == Walk::dv;
    static constexpr bool ALONG = W == Walk::y || W == Walk::dv;    // decays along the rows of S
    const Call<T>& c;
    const Out<T>& out;
    const Workspace workspace;
    const int b, kv, e0, HS, P, in, columns;    // in: terms per score; columns: of Z, out
    const bool elu;
    __device__ Walker(const Call<T>& c, const Out<T>& out, int b, int kv, int e0)
        : c(c), out(out), workspace(&dynamic_shared<float>(), c.chunk(), c.pitch(), c.h.HS), b(b), kv(kv), e0(e0),
          HS(c.h.HS), P(c.pitch()), in(ALONG ? HS : c.wide()), columns(W == Walk::y ? c.wide() : HS), elu(c.elu()) {}

    // Computes up = exp(b) of all channels, or only of this block's columns. b: the sum of log a
    // from the chunk's first position on.
    __device__ void load_decays(const Chunk& x) const {
        if (elu) return;
        const int width = ALONG ? HS : min(E, HS - e0), c0 = ALONG ? 0 : e0;
        for (int d = int(threadIdx.x); d < width; d += THREADS) {
            float sum = 0;
            for (int i = 0; i < x.n; i++) {
                sum += c.h.linear == LinearAttention::gated
                           ? gate_decay(to_float(c.gates[c.gate(b, x.from + i, kv) + c0 + d]))
                           : retention();
                workspace.up[i * P + d] = expf(sum);
            }
        }
    }
    __device__ float retention() const {    // retention_decay() of layers/ops.h
        const float steps = c.h.NKV > 1 ? float(c.h.NKV - 1) : 1;
        return log1pf(-exp2f(-5 - 4 * float(kv) / steps));
    }
    __device__ float up(int i, int d) const { return elu ? 1 : workspace.up[i * P + d]; }
    __device__ float mapped(float x) const { return MAPPED ? x : feature(elu, x); }
    __device__ float slope(float x) const { return MAPPED ? 1 : feature_slope(elu, x); }

    // The next four functions load `width` channels of a chunk's rows, from channel c0 on: of k~,
    // q~, v (for elu with a column of ones) and g.
    __device__ void keys(float* to, int pitch, const Chunk& x, int c0, int width) const {
        fill(to, pitch, x.n, width, [&](int i, int d) {
            return c0 + d < HS ? mapped(to_float(c.qkv[c.k(b, x.from + i, kv) + c0 + d])) / up(i, d) : 0;
        });
    }
    __device__ void queries(float* to, int pitch, const Chunk& x, int head, int c0, int width) const {
        fill(to, pitch, x.n, width, [&](int i, int d) {
            const bool is = c0 + d < HS;
            return is ? mapped(to_float(c.qkv[c.q(b, x.from + i, head) + c0 + d])) * up(i, d) * c.scale : 0;
        });
    }
    __device__ void values(float* to, int pitch, const Chunk& x, int c0, int width) const {
        fill(to, pitch, x.n, width, [&](int i, int d) {
            return c0 + d < HS ? to_float(c.qkv[c.v(b, x.from + i, kv) + c0 + d]) : c0 + d == HS ? 1.0f : 0.0f;
        });
    }
    __device__ void gradients(float* to, int pitch, const Chunk& x, int head, int c0, int width) const {
        fill(to, pitch, x.n, width,
             [&](int i, int d) { return c0 + d < c.wide() ? c.g[c.wide_row(b, x.from + i, head) + c0 + d] : 0; });
    }
    __device__ void load_key_side(const Chunk& x) const {
        if constexpr (W == Walk::y) keys(workspace.r, P, x, 0, HS), values(workspace.z, PITCH, x, e0, E);
        if constexpr (W == Walk::dq) values(workspace.r, P, x, 0, in), keys(workspace.z, PITCH, x, e0, E);
        if constexpr (W == Walk::dk) values(workspace.l, P, x, 0, in);
        if constexpr (W == Walk::dv) keys(workspace.l, P, x, 0, HS);
    }
    __device__ void load_query_side(const Chunk& x, int head) const {
        if constexpr (W == Walk::y) queries(workspace.l, P, x, head, 0, HS);
        if constexpr (W == Walk::dq) gradients(workspace.l, P, x, head, 0, in);
        if constexpr (W == Walk::dk)
            gradients(workspace.r, P, x, head, 0, in), queries(workspace.z, PITCH, x, head, e0, E);
        if constexpr (W == Walk::dv)
            queries(workspace.r, P, x, head, 0, HS), gradients(workspace.z, PITCH, x, head, e0, E);
    }

    // Computes the chunk's scores: each row with the positions up to its own or, in a backward
    // walk, from its own on.
    __device__ void score(const Chunk& x) const {
        const int t = int(threadIdx.x);
        if (tile_row(t) >= x.n) return;
        Sums sums = {};
        multiply(
            sums, in, [&](int i, int k) { return workspace.l[(tile_row(t) + i) * P + k]; },
            [&](int k, int j) { return workspace.r[min(tile_column(t, j), x.n - 1) * P + k]; });
        each_sum(sums, t, [&](int i, int j, float sum) {
            if (j < x.n) workspace.scores[i * PITCH + j] = (BACK ? j >= i : j <= i) ? sum : 0;
        });
    }
    __device__ void add_state(Sums& sums, const Chunk& x) const {
        const int t = int(threadIdx.x);
        if (tile_row(t) < x.n)
            multiply(
                sums, in, [&](int i, int k) { return workspace.l[(tile_row(t) + i) * P + k]; },
                [&](int k, int j) { return workspace.s[k * PITCH + tile_column(t, j)]; });
    }
    __device__ void add_chunk(Sums& sums, const Chunk& x) const {
        const int t = int(threadIdx.x);
        if (tile_row(t) < x.n)
            multiply(
                sums, x.n, [&](int i, int k) { return workspace.scores[(tile_row(t) + i) * PITCH + k]; },
                [&](int k, int j) { return workspace.z[k * PITCH + tile_column(t, j)]; });
    }
    // S = R^T Z; if `add`, S += R^T Z. In forward walks S is then multiplied by the chunk's decay.
    __device__ void update(const Chunk& x, bool add) const {
        for (int t = int(threadIdx.x); tile_row(t) < in; t += THREADS) {
            Sums sums = {};
            multiply(
                sums, x.n, [&](int i, int k) { return workspace.r[k * P + tile_row(t) + i]; },
                [&](int k, int j) { return workspace.z[k * PITCH + tile_column(t, j)]; });
            each_sum(sums, t, [&](int d, int e, float sum) {
                float& s = workspace.s[d * PITCH + e];
                s = add ? s + sum : sum;
                if (!BACK) s *= decay(x, d, e);
            });
        }
    }
    // Decay over the whole chunk in row d and column e of S.
    __device__ float decay(const Chunk& x, int d, int e) const {
        const int channel = ALONG ? d : e;
        return channel + (ALONG ? 0 : e0) < HS ? up(x.n - 1, channel) : 1;
    }
    __device__ void decay_state(const Chunk& x) const {
        for (int at = int(threadIdx.x); at < in * E; at += THREADS)
            workspace.s[at / E * PITCH + at % E] *= decay(x, at / E, at % E);
    }

    __device__ void store_queries(const Sums& sums, const Chunk& x, int head) const {
        each_sum(sums, int(threadIdx.x), [&](int i, int e, float sum) {
            if (i >= x.n || e0 + e >= columns) return;
            const int s = x.from + i;
            if constexpr (W == Walk::y) out.num[c.wide_row(b, s, head) + e0 + e] = sum;
            else {
                const int64_t at = c.q(b, s, head) + e0 + e;
                const float q = to_float(c.qkv[at]), dq = sum * up(i, e) * c.scale * slope(q);
                out.dqkv[at] = from_float<T>(dq);
                if (!c.h.gates()) return;
                float& all = out.qdq[c.gate(b, s, kv) + e0 + e];
                all = head % (c.h.NH / c.h.NKV) ? all + q * dq : q * dq;
            }
        });
    }
    __device__ void store_keys(const Sums& sums, const Chunk& x) const {
        each_sum(sums, int(threadIdx.x), [&](int i, int e, float sum) {
            if (i >= x.n || e0 + e >= columns) return;
            const int s = x.from + i;
            if constexpr (W == Walk::dv) out.dqkv[c.v(b, s, kv) + e0 + e] = from_float<T>(sum);
            else {
                const int64_t at = c.k(b, s, kv) + e0 + e;
                const float k = to_float(c.qkv[at]), dk = sum * slope(k) / up(i, e);
                out.dqkv[at] = from_float<T>(dk);
                workspace.scores[i * PITCH + e] = k * dk;
            }
        });
    }
    // Computes the gates' gradients: sums of q dq - k dk over this and later positions.
    __device__ void store_gates(const Chunk& x) const {
        __syncthreads();
        const int e = int(threadIdx.x);
        if (e >= E || e0 + e >= HS) return;
        float sum = x.alone ? 0 : workspace.later[e];
        for (int i = x.n - 1; i >= 0; i--) {
            const int64_t at = c.gate(b, x.from + i, kv) + e0 + e;
            sum += out.qdq[at] - workspace.scores[i * PITCH + e];
            out.dgates[at] = from_float<T>(sum * gate_slope(to_float(c.gates[at])));
        }
        workspace.later[e] = sum;
    }

    __device__ void step(const Chunk& x) const {
        const int group = c.h.NH / c.h.NKV;
        Sums sums = {};
        __syncthreads();    // the previous chunk has been read
        load_decays(x);
        __syncthreads();
        load_key_side(x);
        if (BACK && !x.alone) decay_state(x);
        __syncthreads();
        if (BACK && !x.alone) add_state(sums, x);
        for (int head = kv * group; head < (kv + 1) * group; head++) {
            load_query_side(x, head);
            __syncthreads();
            score(x);
            __syncthreads();
            if constexpr (BACK) {
                add_chunk(sums, x);
                update(x, !x.alone || head > kv * group);
            } else {
                Sums own = {};
                if (!x.alone) add_state(own, x);
                add_chunk(own, x);
                store_queries(own, x, head);
            }
            __syncthreads();
        }
        if constexpr (!BACK) update(x, !x.alone);
        else store_keys(sums, x);
        if constexpr (W == Walk::dk)
            if (c.h.gates()) store_gates(x);
    }

    // Offset of S's element in the stored state: elu's sums (column HS) follow all heads' rows.
    __device__ int64_t offset(int d, int e) const {
        return e < HS ? (int64_t(kv) * HS + d) * HS + e : (int64_t(c.h.NKV) * HS + kv) * HS + d;
    }
    template <class F> __device__ void each_state(F f) const {
        for (int at = int(threadIdx.x); at < HS * E; at += THREADS)
            if (e0 + at % E < columns) f(workspace.s[at / E * PITCH + at % E], offset(at / E, e0 + at % E));
    }
};

template <class T, Walk W, bool MAPPED> __global__ void __launch_bounds__(THREADS)
    walk_kernel(Out<T> out, Call<T> c, States states, const int* pos) {
    const int item = int(blockIdx.x), b = item / c.h.NKV;
    const Walker<T, W, MAPPED> walker(c, out, b, item % c.h.NKV, int(blockIdx.y) * E);
    if constexpr (Walker<T, W, MAPPED>::BACK) {
        for (int end = c.S; end > 0;) {
            const Chunk x = chunk_to(c, b, end);
            walker.step(x);
            end = x.from;
        }
    } else {
        int n = pos ? 0 : c.S;    // positions without padding
        while (pos && n < c.S && pos[int64_t(b) * c.S + n] >= 0) n++;
        const bool begins = !pos || pos[int64_t(b) * c.S] == 0;
        float* state = pos ? static_cast<float*>(states.p) + states.of[b] * states.stride : nullptr;
        if (n == 0) return;
        if (!begins) walker.each_state([&](float& s, int64_t at) { s = state[at]; });
        for (int from = 0; from < n;) {
            const Chunk x = chunk_from(c, b, from, n, begins);
            walker.step(x);
            from += x.n;
        }
        __syncthreads();
        if (state) walker.each_state([&](float& s, int64_t at) { state[at] = s; });
    }
}

// ---- rows ---------------------------------------------------------------------------------------

// Computes y = n num, a warp for each row; n as in finish_row of recurrent.cpp. In generation norms
// is null, and y of padding is 0.
template <class T, bool MAPPED> __global__ void __launch_bounds__(THREADS)
    finish_kernel(T* y, float* norms, const float* num, Call<T> c, const int* pos) {
    const int64_t row = int64_t(blockIdx.x) * (THREADS / 32) + threadIdx.x / 32;
    if (row >= int64_t(c.B) * c.S * c.h.NH) return;
    const int lane = threadIdx.x % 32, HS = c.h.HS;
    const float* from = num + row * c.wide();
    float squares = 0;
    for (int d = lane; d < HS; d += 32) squares += from[d] * from[d];
    squares = warp_sum(squares);
    const float n = c.elu() ? 1 / (from[HS] + (MAPPED ? 0 : LINEAR_ATTENTION_EPS))
                            : 1 / sqrtf(squares / float(HS) + LINEAR_ATTENTION_EPS);
    const int64_t position = row / c.h.NH, head = row % c.h.NH;
    const bool there = !pos || pos[position] >= 0;
    for (int d = lane; d < HS; d += 32) y[row * HS + d] = from_float<T>(there ? from[d] * n : 0);
    if (norms && lane == 0) norms[(position / c.S * c.h.NH + head) * c.S + position % c.S] = n;
}
// Computes g: gradients of the numerator of y and, with the feature map elu, of the denominator.
template <class T> __global__ void __launch_bounds__(THREADS)
    gradients_kernel(float* g, const T* dy, const T* y, const float* norms, Call<T> c) {
    const int64_t row = int64_t(blockIdx.x) * (THREADS / 32) + threadIdx.x / 32;
    if (row >= int64_t(c.B) * c.S * c.h.NH) return;
    const int lane = threadIdx.x % 32, HS = c.h.HS;
    const int64_t position = row / c.h.NH, head = row % c.h.NH;
    const float n = norms[(position / c.S * c.h.NH + head) * c.S + position % c.S];
    float both = 0;
    for (int d = lane; d < HS; d += 32) both += to_float(dy[row * HS + d]) * to_float(y[row * HS + d]);
    both = warp_sum(both);
    const float mean = c.elu() ? 0 : both / float(HS);
    for (int d = lane; d < HS; d += 32)
        g[row * c.wide() + d] = n * (to_float(dy[row * HS + d]) - to_float(y[row * HS + d]) * mean);
    if (c.elu() && lane == 0) g[row * c.wide() + HS] = -n * both;
}

// ---- performer's features -----------------------------------------------------------------------

// Head rows: queries, keys and values of a head, which are adjacent in qkv.
constexpr int FEATURE_ROWS = 16, AT_ONCE = 4;    // head rows of a block, of a thread
template <class T> struct HeadRows {
    const Heads& h;
    int64_t count;    // head rows of all positions
    __device__ explicit HeadRows(const Call<T>& c) : h(c.h), count(int64_t(c.B) * c.S * (c.h.NH + 2 * c.h.NKV)) {}
    __device__ int head(int64_t row) const { return int(row % (h.NH + 2 * h.NKV)); }
    __device__ bool is_key(int64_t row) const { return head(row) >= h.NH && !is_value(row); }
    __device__ bool is_value(int64_t row) const { return head(row) >= h.NH + h.NKV; }
};
// Calls f(row, column, sum) for the product of x (FEATURE_ROWS,HS) and m (HS,HS).
template <class F> __device__ inline void feature_products(const float* x, const float* m, int HS, F f) {
    for (int task = int(threadIdx.x); task < HS * (FEATURE_ROWS / AT_ONCE); task += THREADS) {
        const int column = task % HS, first = task / HS * AT_ONCE;
        float sums[AT_ONCE] = {};
        for (int d = 0; d < HS; d++) {
            const float factor = m[d * HS + column];
#pragma unroll
            for (int r = 0; r < AT_ONCE; r++) sums[r] += x[(first + r) * HS + d] * factor;
        }
#pragma unroll
        for (int r = 0; r < AT_ONCE; r++) f(first + r, column, sums[r]);
    }
}
// Computes f(q), f(k) and v of all positions, in qkv's order.
template <class T> __global__ void __launch_bounds__(THREADS) features_kernel(float* f, Call<T> c, float root) {
    const HeadRows<T> rows(c);
    const int64_t begin = int64_t(blockIdx.x) * FEATURE_ROWS;
    const int HS = c.h.HS, lane = threadIdx.x % 32;
    float *x = &dynamic_shared<float>(), *logs = x + FEATURE_ROWS * HS;
    for (int at = int(threadIdx.x); at < FEATURE_ROWS * HS; at += THREADS) {
        const int64_t row = begin + at / HS;
        x[at] = row < rows.count ? to_float(c.qkv[begin * HS + at]) * (rows.is_value(row) ? 1 : root) : 0;
    }
    __syncthreads();
    feature_products(x, c.h.features + HS * HS, HS, [&](int row, int i, float sum) { logs[row * HS + i] = sum; });
    __syncthreads();
    for (int r = int(threadIdx.x) / 32; r < FEATURE_ROWS && begin + r < rows.count; r += THREADS / 32) {
        const bool is_key = rows.is_key(begin + r), is_value = rows.is_value(begin + r);
        float squares = 0, largest = -INFINITY;
        for (int d = lane; d < HS; d += 32) {
            squares += x[r * HS + d] * x[r * HS + d];
            largest = fmaxf(largest, logs[r * HS + d]);
        }
        squares = warp_sum(squares), largest = warp_max(largest);
        const float shift = is_key ? squares / 2 : largest, least = is_key ? FEATURE_MIN : 0;
        for (int d = lane; d < HS; d += 32) {
            const float feature = fminf(expf(logs[r * HS + d] - shift), FEATURE_MAX) + least;
            f[(begin + r) * HS + d] = is_value ? x[r * HS + d] : feature;
        }
    }
}
// Computes dqkv from df, the gradients of f. All features of a query have a factor in common that
// depends on q, but n cancels it.
template <class T> __global__ void __launch_bounds__(THREADS)
    features_backward_kernel(T* dqkv, const float* df, const float* f, Call<T> c, float root) {
    const HeadRows<T> rows(c);
    const int64_t begin = int64_t(blockIdx.x) * FEATURE_ROWS;
    const int HS = c.h.HS, lane = threadIdx.x % 32;
    float *dlogs = &dynamic_shared<float>(), *totals = dlogs + FEATURE_ROWS * HS;
    for (int r = int(threadIdx.x) / 32; r < FEATURE_ROWS; r += THREADS / 32) {
        const bool there = begin + r < rows.count, is_key = rows.is_key(begin + r);
        float total = 0;
        for (int d = lane; d < HS; d += 32) {
            const int64_t at = (begin + r) * HS + d;
            const float exponential = there ? f[at] - (is_key ? FEATURE_MIN : 0) : FEATURE_MAX;
            const float dlog = exponential < FEATURE_MAX ? df[at] * exponential : 0;
            dlogs[r * HS + d] = dlog;
            total += dlog;
        }
        total = warp_sum(total);
        if (lane == 0) totals[r] = is_key ? root * total : 0;
    }
    __syncthreads();
    feature_products(dlogs, c.h.features, HS, [&](int r, int d, float sum) {
        if (begin + r >= rows.count) return;
        const int64_t at = (begin + r) * HS + d;
        const float dx = root * (sum - totals[r] * to_float(c.qkv[at]));
        dqkv[at] = from_float<T>(rows.is_value(begin + r) ? df[at] : dx);
    });
}

// ---- launchers ----------------------------------------------------------------------------------

template <class T> Call<T> call_of(const T* qkv, const T* gates, const float* g, int B, int S, Heads h) {
    return {qkv, gates, g, B, S, h, h.has_z() ? 1 : h.score_scale()};
}
template <Walk W, bool MAPPED, class T>
void walk(const Out<T>& out, const Call<T>& c, States states = {}, const int* pos = nullptr) {
    const int columns = W == Walk::y ? c.wide() : c.h.HS;
    launch(walk_kernel<T, W, MAPPED>,
           {dim3(unsigned(c.B * c.h.NKV), unsigned(ceil_div(columns, E))), THREADS,
            size_t(Workspace::floats(c.chunk(), c.pitch(), c.h.HS)) * sizeof(float)},
           out, c, states, pos);
}
template <class T> unsigned row_blocks(const Call<T>& c) {
    return unsigned(ceil_div(int64_t(c.B) * c.S * c.h.NH, THREADS / 32));
}
template <class T> Launch feature_blocks(const Call<T>& c) {
    return {unsigned(ceil_div(int64_t(c.B) * c.S * (c.h.NH + 2 * c.h.NKV), FEATURE_ROWS)), THREADS,
            size_t(2 * FEATURE_ROWS * c.h.HS + FEATURE_ROWS) * sizeof(float)};
}
// Computes performer's features of qkv as f, and returns the call of walks over these features.
// Walks treat such features as elu's, because n and the state have the same form.
template <class T> Call<float> mapped_call(float* f, const float* g, const T* qkv, int B, int S, Heads h) {
    const Call<T> c = call_of<T>(qkv, nullptr, g, B, S, h);
    launch(features_kernel<T>, feature_blocks(c), f, c, std::sqrt(h.score_scale()));
    h.linear = LinearAttention::elu;
    return call_of<float>(f, nullptr, g, B, S, h);
}

// norms, pos and states as in the operations; those that an operation lacks are null.
template <class T>
void run(T* y, float* norms, States states, const T* qkv, const T* gates, int B, int S, const int* pos, Heads h) {
    const LinearAttentionScratch scratch(B, S, h);
    float* num = static_cast<float*>(cuda_scratch(scratch.forward()));
    if (h.linear == LinearAttention::performer) {
        const Call<float> c = mapped_call(num + scratch.rows, nullptr, qkv, B, S, h);
        walk<Walk::y, true, float>({num}, c, states, pos);
        launch(finish_kernel<T, true>, {row_blocks(c), THREADS}, y, norms, num,
               call_of<T>(qkv, gates, nullptr, B, S, c.h), pos);
        return;
    }
    const Call<T> c = call_of<T>(qkv, gates, nullptr, B, S, h);
    walk<Walk::y, false, T>({num}, c, states, pos);
    launch(finish_kernel<T, false>, {row_blocks(c), THREADS}, y, norms, num, c, pos);
}
template <class T> void forward(T* y, float* norms, const T* qkv, const T* gates, int B, int S, Heads h) {
    run<T>(y, norms, {}, qkv, gates, B, S, nullptr, h);
}
template <class T>
void cached(T* y, States states, const T* qkv, const T* gates, int B, int S, const int* pos, Heads h) {
    run<T>(y, nullptr, states, qkv, gates, B, S, pos, h);
}
template <bool MAPPED, class T> void walks_back(const Out<T>& out, const Call<T>& c) {
    walk<Walk::dq, MAPPED>(out, c);
    walk<Walk::dk, MAPPED>(out, c);
    walk<Walk::dv, MAPPED>(out, c);
}
template <class T> void backward(T* dqkv, T* dgates, const T* dy, const T* y, const T* qkv, const T* gates,
                                 const float* norms, int B, int S, Heads h) {
    const LinearAttentionScratch scratch(B, S, h);
    float* g = static_cast<float*>(cuda_scratch(scratch.backward()));
    Call<T> c = call_of<T>(qkv, gates, g, B, S, h);
    if (h.linear == LinearAttention::performer) {
        float *f = g + scratch.rows, *df = f + scratch.features;
        const Call<float> walks = mapped_call(f, g, qkv, B, S, h);
        c.h = walks.h;
        launch(gradients_kernel<T>, {row_blocks(c), THREADS}, g, dy, y, norms, c);
        walks_back<true>(Out<float>{nullptr, df}, walks);
        launch(features_backward_kernel<T>, feature_blocks(c), dqkv, df, f, c, std::sqrt(h.score_scale()));
        return;
    }
    launch(gradients_kernel<T>, {row_blocks(c), THREADS}, g, dy, y, norms, c);
    walks_back<false>(Out<T>{nullptr, dqkv, dgates, g + scratch.rows}, c);
}

const CudaRegistration entries([]<class T>(Ops<T>& o, Dtype) {
    o.linear_attention_forward = forward<T>;
    o.linear_attention_backward = backward<T>;
    o.linear_attention_cached = cached<T>;
});
}    // namespace

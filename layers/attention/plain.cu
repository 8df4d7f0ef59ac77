// plain.cu - causal attention by FMAs: for float, and for the head sizes that the tensor cores do not take.
//
// No score leaves its block: forward keeps a running maximum and sum of each row and rescales y as they grow (Dao et
// al. 2022), backward computes p again from lse.
//
// Thread mapping: 128 threads for a tile of 64 queries by 64 keys. A thread has 8 rows and 4 columns of a tile, of
// scores (keys tx + 16 c) or of outputs (columns 4 tx + c). Rows longer than 64 are loaded in chunks of 64 columns. A
// block computes at most D columns of output (64 or 128); wider outputs are divided among blocks that each compute all
// the scores.
//
// Bound by FMAs: for 4 terms of its 32 sums a thread reads 12 times 16 bytes of shared memory, so a warp keeps an SM's
// shared memory busy for 16 cycles and its FMAs for 32. FLOPs for each pair of query and key: forward 4 HS, backward
// 14 HS. Five products would do (10 HS), but dq sums over keys and dk, dv over queries, so the blocks of one kernel
// would add to each other's dq. Here scores and dp are computed twice, for dq and for dk, dv; each output has one
// writer, and the bits are the same every run.
#include "attention.cuh"

namespace {

constexpr int TILE = 64, THREADS = 128, ROWS = 8, COLUMNS = 4;
constexpr int PITCH = TILE + 4;    // rows 4 banks apart: 8 lanes read 16 bytes of 8 rows at once
// Blocks on a multiprocessor. A thread then has 168 registers, or 255; dkv_kernel<128> spills 3 outside inner loops.
template <int D> constexpr int BLOCKS = D == 64 ? 3 : 2;

struct alignas(16) Tile { float x[TILE][PITCH]; };
typedef float Sums[ROWS][COLUMNS];

__device__ inline int tile_row(int r) { return int(threadIdx.x) / 16 + 8 * r; }
__device__ inline int tile_column(int c) { return int(threadIdx.x) % 16 + 16 * c; }

// `count` rows of HS elements, `stride` elements apart. vectors: each row is 16-byte aligned.
template <class T> struct Rows {
    const T* first;
    int64_t stride;
    int count;
    bool vectors;
    __device__ Rows from(int row) const { return {first + row * stride, stride, count - row, vectors}; }
};
// Rows, and the tile through which they are read. kept: the tile already holds their first columns.
template <class T> struct Operand { Tile& tile; Rows<T> rows; bool kept; };

// tile = the rows' columns from c0 on; zero beyond the last row or column.
template <class T> __device__ inline void load_tile(Tile& tile, const Rows<T>& rows, int c0, int HS) {
    if (!rows.vectors) {
#pragma unroll 1
        for (int i = int(threadIdx.x); i < TILE * TILE; i += THREADS) {
            const int r = i / TILE, c = i % TILE;
            tile.x[r][c] = r < rows.count && c0 + c < HS ? to_float(rows.first[r * rows.stride + c0 + c]) : 0;
        }
        return;
    }
    constexpr int W = VEC<T>, PER_ROW = TILE / W, STEP = THREADS / PER_ROW, TIMES = TILE / STEP;
    const int r0 = int(threadIdx.x) / PER_ROW, c = int(threadIdx.x) % PER_ROW * W;
    const T* p = rows.first + r0 * rows.stride + c0 + c;
    Vec<T> x[TIMES];
#pragma unroll
    for (int t = 0; t < TIMES; t++, p += STEP * rows.stride)
        x[t] = r0 + t * STEP < rows.count && c0 + c < HS ? load<W>(p) : Vec<T>{};
#pragma unroll
    for (int t = 0; t < TIMES; t++)
#pragma unroll
        for (int e = 0; e < W; e += 4)
            store(&tile.x[r0 + t * STEP][c + e], Vec<float>{{x[t][e], x[t][e + 1], x[t][e + 2], x[t][e + 3]}});
}

// sums += a b^T, over all HS columns.
template <class T> __device__ inline void add_abt(Sums& sums, const Operand<T>& a, const Operand<T>& b, int HS) {
    for (int c0 = 0; c0 < HS; c0 += TILE) {
        __syncthreads();    // both tiles have been read
        if (!a.kept || HS > TILE) load_tile(a.tile, a.rows, c0, HS);
        if (!b.kept || HS > TILE) load_tile(b.tile, b.rows, c0, HS);
        __syncthreads();
        const int n = min(TILE, HS - c0);
#pragma unroll 1
        for (int d = 0; d < n; d += 4) {
            Vec<float> y[COLUMNS];
#pragma unroll
            for (int c = 0; c < COLUMNS; c++) y[c] = load<4>(&b.tile.x[tile_column(c)][d]);
#pragma unroll
            for (int r = 0; r < ROWS; r++) {
                const Vec<float> x = load<4>(&a.tile.x[tile_row(r)][d]);
#pragma unroll
                for (int e = 0; e < 4; e++)
#pragma unroll
                    for (int c = 0; c < COLUMNS; c++) sums[r][c] += x.v[e] * y[c].v[e];
            }
        }
    }
}
// sums[u] += p b, for the 64 columns of b from c0 + 64 u on.
template <class T, int U>
__device__ inline void add_ab(Sums (&sums)[U], const Tile& p, const Operand<T>& b, int c0, int HS) {
    const int n = min(TILE, b.rows.count);
#pragma unroll
    for (int u = 0; u < U; u++) {
        if (c0 + u * TILE >= HS) break;
        __syncthreads();    // p is there, and the tile has been read
        if (!b.kept || HS > TILE) {
            load_tile(b.tile, b.rows, c0 + u * TILE, HS);
            __syncthreads();
        }
#pragma unroll 1
        for (int j = 0; j < n; j += 4) {
            Vec<float> y[4];
#pragma unroll
            for (int e = 0; e < 4; e++) y[e] = load<4>(&b.tile.x[j + e][threadIdx.x % 16 * 4]);
#pragma unroll
            for (int r = 0; r < ROWS; r++) {
                const Vec<float> x = load<4>(&p.x[tile_row(r)][j]);
#pragma unroll
                for (int e = 0; e < 4; e++)
#pragma unroll
                    for (int c = 0; c < COLUMNS; c++) sums[u][r][c] += x.v[e] * y[e].v[c];
            }
        }
    }
}

// Stores scale[r] * sums[u] to the columns from c0 + 64 u on of the first `count` rows.
template <class T, int U>
__device__ inline void store_sums(T* to, int64_t stride, int count, int c0, int HS, const Sums (&sums)[U],
                                  const float (&scale)[ROWS]) {
#pragma unroll
    for (int u = 0; u < U; u++)
#pragma unroll
        for (int r = 0; r < ROWS; r++) {
            const int c = c0 + u * TILE + int(threadIdx.x) % 16 * 4;
            Vec<T, 4> x;
#pragma unroll
            for (int e = 0; e < 4; e++) x.set(e, sums[u][r][e] * scale[r]);
            T* p = to + tile_row(r) * stride + c;
            if (tile_row(r) < count && HS % 4 == 0 && c < HS) store(p, x);
            if (tile_row(r) < count && HS % 4 != 0)
                for (int e = 0; e < 4 && c + e < HS; e++) p[e] = x.v[e];
        }
}

// One head (q heads first, then k, then v) of a sequence: its rows in qkv, in y or dy, its elements of lse.
template <class T> struct Head {
    int64_t qkv, qkv_stride, y, y_stride, lse;
    bool vectors;
    __device__ Head(Heads h, int S, int b, int head) {
        qkv_stride = int64_t(h.NH + 2 * h.NKV) * h.HS, qkv = int64_t(b) * S * qkv_stride + int64_t(head) * h.HS;
        y_stride = int64_t(h.NH) * h.HS, y = int64_t(b) * S * y_stride + int64_t(head) * h.HS;
        lse = (int64_t(b) * h.NH + head) * S;
        vectors = h.HS % VEC<T> == 0;
    }
    __device__ Rows<T> in_qkv(const T* p, int from, int to) const {
        return {p + qkv + from * qkv_stride, qkv_stride, to - from, vectors};
    }
    __device__ Rows<T> in_y(const T* p, int from, int to) const {
        return {p + y + from * y_stride, y_stride, to - from, vectors};
    }
};

// What a block computes: a tile of rows from `row` on of a head of a sequence, and their columns from `column` on.
struct Work { int b, head, row, column; };
template <int D> __device__ inline Work work(int B, int NH, int S, int HS, bool last_first) {
    const int heads = B * NH, parts = (HS + D - 1) / D, tiles = (S + TILE - 1) / TILE, x = int(blockIdx.x);
    const int tile = last_first ? tiles - 1 - x / heads / parts : x / heads / parts;
    return {x % heads / NH, x % NH, tile * TILE, x / heads % parts * D};
}
template <int D> unsigned blocks(int B, int NH, int S, int HS) {
    return unsigned(ceil_div(S, TILE) * ceil_div(HS, D) * B * NH);
}

// The queries of a thread's rows, at positions from p0 + row: each sees the keys from its first to its own.
struct Sight {
    int first[ROWS], row0;
    __device__ Sight(Heads h, int S, int b, int row, int p0) : row0(p0 + row) {
#pragma unroll
        for (int r = 0; r < ROWS; r++) first[r] = first_key(h, S, b, p0 + min(row + tile_row(r), S - 1));
    }
    __device__ bool sees(int r, int j) const { return first[r] <= j && j <= row0 + tile_row(r); }
};

// ---- forward --------------------------------------------------------------------------------------------------------

// The score of a product.
template <bool SHAPED>
__device__ inline float score(const Scores& scores, float product, float slope, int distance) {
    return SHAPED ? scores.score(scores.inside(product), slope, float(distance)) : product * scores.log2;
}

// Turns a tile of products s into unnormalised probabilities p. Sums and outputs are rescaled to the new maximum.
template <bool SHAPED, int U>
__device__ inline void online_softmax(Tile& p, Sums (&o)[U], float (&top)[ROWS], float (&sum)[ROWS], Sums& s,
                                      const Sight& sight, int j0, const Scores& scores, float slope) {
#pragma unroll
    for (int r = 0; r < ROWS; r++) {
        float now = top[r];
#pragma unroll
        for (int c = 0; c < COLUMNS; c++) {
            const float x = score<SHAPED>(scores, s[r][c], slope, sight.row0 + tile_row(r) - j0 - tile_column(c));
            s[r][c] = sight.sees(r, j0 + tile_column(c)) ? x : -INFINITY;
            now = fmaxf(now, s[r][c]);
        }
        now = warp_max<16>(now);
        const float base = now == -INFINITY ? 0 : now, factor = exp2f(top[r] - base);    // -inf: no key seen so far
        top[r] = now, sum[r] *= factor;
#pragma unroll
        for (int c = 0; c < COLUMNS; c++) {
            const float e = exp2f(s[r][c] - base);
            sum[r] += e;
            p.x[tile_row(r)][tile_column(c)] = e;
#pragma unroll
            for (int u = 0; u < U; u++) o[u][r][c] *= factor;
        }
    }
}

// Where keys and values lie, in packed qkv or in a cache: elements from one row, head, sequence to the next.
template <class T> struct Keys { const T *k, *v; int64_t row, head, sequence; };

struct ForwardShared { Tile q, kv, p; };

// 64 queries of a head, at positions from *pos (null: 0) on. The last tiles, which see most keys, start first.
template <class T, int D, bool SHAPED>
__global__ void __launch_bounds__(THREADS, BLOCKS<D>)
forward_kernel(T* y, float* lse, const T* qkv, Keys<T> keys, int B, int S, const int* pos, Heads h, Scores scores) {
    ForwardShared& sh = dynamic_shared<ForwardShared>();
    const int HS = h.HS;
    const Work w = work<D>(B, h.NH, S, HS, true);
    const int p0 = pos ? *pos : 0, to = min(S, w.row + TILE), end = p0 + to;
    const Head<T> at(h, S, w.b, w.head);
    const Rows<T> q = at.in_qkv(qkv, w.row, to);
    const int64_t keys_at = w.b * keys.sequence + w.head / (h.NH / h.NKV) * keys.head;
    const Rows<T> k = {keys.k + keys_at, keys.row, end, at.vectors}, v = {keys.v + keys_at, keys.row, end, at.vectors};
    const Sight sight(h, S, w.b, w.row, p0);
    const float slope = SHAPED ? scores.slope(w.head) : 0;

    Sums o[D / TILE] = {};
    float top[ROWS], sum[ROWS] = {};    // top: largest score in units of log 2; sum: over this thread's columns
#pragma unroll
    for (int r = 0; r < ROWS; r++) top[r] = -INFINITY;
    const int begin = first_key(h, S, w.b, p0 + w.row);    // later queries see no earlier key
    for (int j0 = begin; j0 < end; j0 += TILE) {
        Sums s = {};
        add_abt(s, Operand<T>{sh.q, q, j0 > begin}, Operand<T>{sh.kv, k.from(j0), false}, HS);
        online_softmax<SHAPED>(sh.p, o, top, sum, s, sight, j0, scores, slope);
        add_ab(o, sh.p, Operand<T>{sh.kv, v.from(j0), false}, w.column, HS);
    }
    float inverse[ROWS];
#pragma unroll
    for (int r = 0; r < ROWS; r++) {
        sum[r] = warp_sum<16>(sum[r]);
        inverse[r] = 1 / sum[r];
        const int i = w.row + tile_row(r);
        if (lse && w.column == 0 && threadIdx.x % 16 == 0 && i < S) lse[at.lse + i] = (top[r] + log2f(sum[r])) * LN2;
    }
    store_sums(y + at.y + w.row * at.y_stride, at.y_stride, to - w.row, w.column, HS, o, inverse);
}

template <class T>
void forward(T* y, float* lse, const T* qkv, Keys<T> keys, int B, int S, const int* pos, Heads h) {
    const Scores scores(h);
    for_shape(scores, [&](auto SHAPED) {
        const bool narrow = h.HS <= 64;
        const unsigned grid = narrow ? blocks<64>(B, h.NH, S, h.HS) : blocks<128>(B, h.NH, S, h.HS);
        launch(narrow ? forward_kernel<T, 64, SHAPED> : forward_kernel<T, 128, SHAPED>,
               {grid, THREADS, sizeof(ForwardShared)}, y, lse, qkv, keys, B, S, pos, h, scores);
    });
}

// ---- backward -------------------------------------------------------------------------------------------------------

// delta (B,NH,S) = dy . y: `lanes` lanes, a power of two, share a row. Bound by memory: 2 HS elements per row.
template <class T>
__global__ void __launch_bounds__(THREADS) delta_kernel(float* delta, const T* dy, const T* y, int B, int S, int lanes,
                                                        Heads h) {
    const int64_t rows = int64_t(B) * S * h.NH, mine = (int64_t(blockIdx.x) * THREADS + threadIdx.x) / lanes;
    const int64_t row = mine < rows ? mine : rows - 1;    // (b,s,head)
    const int lane = int(threadIdx.x) % lanes;
    float sum = 0;
    if (h.HS % VEC<T> == 0) {
        for (int d = lane * VEC<T>; d < h.HS; d += lanes * VEC<T>) {
            const Vec<T> a = load<VEC<T>>(dy + row * h.HS + d), b = load<VEC<T>>(y + row * h.HS + d);
#pragma unroll
            for (int e = 0; e < VEC<T>; e++) sum += a[e] * b[e];
        }
    } else {
        for (int d = lane; d < h.HS; d += lanes) sum += to_float(dy[row * h.HS + d]) * to_float(y[row * h.HS + d]);
    }
    for (int bit = lanes / 2; bit; bit >>= 1) sum += __shfl_xor_sync(0xffffffff, sum, bit);
    const int64_t n = row / h.NH;
    if (lane == 0 && mine < rows) delta[(n / S * h.NH + row % h.NH) * S + n % S] = sum;
}

struct DqShared { Tile q, dy, kv, ds; };

// dq of 64 queries of a head, over the keys they see.
template <class T, int D, bool SHAPED>
__global__ void __launch_bounds__(THREADS, BLOCKS<D>)
dq_kernel(T* dqkv, const T* dy, const T* qkv, const float* lse, const float* delta, int B, int S, Heads h,
          Scores scores) {
    DqShared& sh = dynamic_shared<DqShared>();
    const int HS = h.HS;
    const Work w = work<D>(B, h.NH, S, HS, true);
    const int to = min(S, w.row + TILE), kv = w.head / (h.NH / h.NKV);
    const Head<T> at(h, S, w.b, w.head);
    const Rows<T> q = at.in_qkv(qkv, w.row, to), g = at.in_y(dy, w.row, to);
    const Rows<T> k = Head<T>(h, S, w.b, h.NH + kv).in_qkv(qkv, 0, to);
    const Rows<T> v = Head<T>(h, S, w.b, h.NH + h.NKV + kv).in_qkv(qkv, 0, to);
    const Sight sight(h, S, w.b, w.row, 0);
    const float slope = SHAPED ? scores.slope(w.head) : 0;

    Sums dq[D / TILE] = {};
    const int begin = first_key(h, S, w.b, w.row);
    for (int j0 = begin; j0 < to; j0 += TILE) {
        Sums dp = {}, s = {};
        add_abt(dp, Operand<T>{sh.dy, g, j0 > begin}, Operand<T>{sh.kv, v.from(j0), false}, HS);
#pragma unroll
        for (int r = 0; r < ROWS; r++) {
            const float mean = delta[at.lse + min(w.row + tile_row(r), S - 1)];
#pragma unroll
            for (int c = 0; c < COLUMNS; c++) sh.ds.x[tile_row(r)][tile_column(c)] = dp[r][c] - mean;
        }
        add_abt(s, Operand<T>{sh.q, q, j0 > begin}, Operand<T>{sh.kv, k.from(j0), false}, HS);
#pragma unroll
        for (int r = 0; r < ROWS; r++) {
            const float lse2 = lse[at.lse + min(w.row + tile_row(r), S - 1)] * LOG2E;
#pragma unroll
            for (int c = 0; c < COLUMNS; c++) {
                float& ds = sh.ds.x[tile_row(r)][tile_column(c)];    // written by this thread
                const int j = j0 + tile_column(c);
                const float x = score<SHAPED>(scores, s[r][c], slope, w.row + tile_row(r) - j);
                ds = sight.sees(r, j) ? ds * exp2f(x - lse2) : 0;
                if (SHAPED) ds *= scores.steepness(scores.inside(s[r][c]));
            }
        }
        add_ab(dq, sh.ds, Operand<T>{sh.kv, k.from(j0), true}, w.column, HS);
    }
    float scales[ROWS];
#pragma unroll
    for (int r = 0; r < ROWS; r++) scales[r] = scores.scale;
    store_sums(dqkv + (q.first - qkv), q.stride, q.count, w.column, HS, dq, scales);
}

struct DkvShared { Tile k, v, q, p; };    // q: queries or dy
struct ShapedDkvShared : DkvShared { Tile steepness; };

// dk and dv of 64 keys, over the queries of the group's heads that see them. Rows are keys, columns queries.
template <class T, int D, bool SHAPED>
__global__ void __launch_bounds__(THREADS, BLOCKS<D>)
dkv_kernel(T* dqkv, const T* dy, const T* qkv, const float* lse, const float* delta, int B, int S, Heads h,
           Scores scores) {
    auto& sh = dynamic_shared<std::conditional_t<SHAPED, ShapedDkvShared, DkvShared>>();
    const int HS = h.HS, group = h.NH / h.NKV;
    const Work w = work<D>(B, h.NKV, S, HS, false);
    const int to = min(S, w.row + TILE);
    const Rows<T> k = Head<T>(h, S, w.b, h.NH + w.head).in_qkv(qkv, w.row, to);
    const Rows<T> v = Head<T>(h, S, w.b, h.NH + h.NKV + w.head).in_qkv(qkv, w.row, to);
    int end = S;    // the first query that sees none of these keys
    if (h.window && h.window < S - to) end = to + h.window - 1;
    if (h.doc_end) end = min(end, h.doc_end[int64_t(w.b) * S + to - 1]);

    Sums dk[D / TILE] = {}, dv[D / TILE] = {};
    for (int head = w.head * group; head < (w.head + 1) * group; head++) {
        const Head<T> at(h, S, w.b, head);
        const float slope = SHAPED ? scores.slope(head) : 0;
        for (int i0 = w.row; i0 < end; i0 += TILE) {
            const bool kept = i0 > w.row || head > w.head * group;
            const Rows<T> q = at.in_qkv(qkv, i0, S), g = at.in_y(dy, i0, S);
            Sums s = {}, dp = {};
            add_abt(s, Operand<T>{sh.k, k, kept}, Operand<T>{sh.q, q, false}, HS);
#pragma unroll
            for (int c = 0; c < COLUMNS; c++) {
                const int i = i0 + tile_column(c), known = min(i, S - 1), first = first_key(h, S, w.b, known);
                const float lse2 = lse[at.lse + known] * LOG2E;
#pragma unroll
                for (int r = 0; r < ROWS; r++) {
                    const int j = w.row + tile_row(r);
                    const float p = exp2f(score<SHAPED>(scores, s[r][c], slope, i - j) - lse2);
                    if constexpr (SHAPED)
                        sh.steepness.x[tile_row(r)][tile_column(c)] = scores.steepness(scores.inside(s[r][c]));
                    sh.p.x[tile_row(r)][tile_column(c)] = first <= j && j <= i && i < S ? p : 0;
                }
            }
            add_ab(dv, sh.p, Operand<T>{sh.q, g, false}, w.column, HS);
            add_abt(dp, Operand<T>{sh.v, v, kept}, Operand<T>{sh.q, g, true}, HS);
#pragma unroll
            for (int c = 0; c < COLUMNS; c++) {
                const float mean = delta[at.lse + min(i0 + tile_column(c), S - 1)];
#pragma unroll
                for (int r = 0; r < ROWS; r++) {
                    float& p = sh.p.x[tile_row(r)][tile_column(c)];    // written by this thread
                    p = p == 0 ? 0 : p * (dp[r][c] - mean);
                    if constexpr (SHAPED) p *= sh.steepness.x[tile_row(r)][tile_column(c)];
                }
            }
            add_ab(dk, sh.p, Operand<T>{sh.q, q, false}, w.column, HS);
        }
    }
    float one[ROWS], scales[ROWS];
#pragma unroll
    for (int r = 0; r < ROWS; r++) one[r] = 1, scales[r] = scores.scale;
    store_sums(dqkv + (k.first - qkv), k.stride, k.count, w.column, HS, dk, scales);
    store_sums(dqkv + (v.first - qkv), v.stride, v.count, w.column, HS, dv, one);
}

template <class T, int D>
void backward(T* dqkv, const T* dy, const T* qkv, const float* lse, const float* delta, int B, int S, Heads h) {
    const Scores scores(h);
    for_shape(scores, [&](auto SHAPED) {
        const size_t shared = SHAPED ? sizeof(ShapedDkvShared) : sizeof(DkvShared);
        launch(dkv_kernel<T, D, SHAPED>, {blocks<D>(B, h.NKV, S, h.HS), THREADS, shared}, dqkv, dy, qkv, lse, delta, B,
               S, h, scores);
        launch(dq_kernel<T, D, SHAPED>, {blocks<D>(B, h.NH, S, h.HS), THREADS, sizeof(DqShared)}, dqkv, dy, qkv, lse,
               delta, B, S, h, scores);
    });
}

}   // namespace

// ---- entries --------------------------------------------------------------------------------------------------------

template <class T> void attention_forward_plain(T* y, float* lse, const T* qkv, int B, int S, Heads h) {
    const int64_t row = int64_t(h.NH + 2 * h.NKV) * h.HS;
    const T* k = qkv + int64_t(h.NH) * h.HS;
    forward(y, lse, qkv, Keys<T>{k, k + int64_t(h.NKV) * h.HS, row, h.HS, S * row}, B, S, nullptr, h);
}
template <class T>
void attention_prompt_plain(T* y, const T* k_cache, const T* v_cache, const T* qkv, int B, int S, const int* pos,
                            int maxT, Heads h) {
    const int64_t head = int64_t(maxT) * h.HS;
    forward<T>(y, nullptr, qkv, Keys<T>{k_cache, v_cache, h.HS, head, h.NKV * head}, B, S, pos, h);
}
template <class T>
void attention_backward_plain(T* dqkv, const T* dy, const T* y, const T* qkv, const float* lse, int B, int S,
                              Heads h) {
    float* delta = static_cast<float*>(cuda_scratch(attention_scratch(AttentionKernels::plain, B, S, h)));
    int lanes = 1;
    while (lanes < 32 && lanes * VEC<T> < h.HS) lanes *= 2;
    const int64_t rows = int64_t(B) * S * h.NH;
    launch(delta_kernel<T>, {unsigned(ceil_div(rows * lanes, THREADS)), THREADS}, delta, dy, y, B, S, lanes, h);
    if (h.HS <= 64) backward<T, 64>(dqkv, dy, qkv, lse, delta, B, S, h);
    else backward<T, 128>(dqkv, dy, qkv, lse, delta, B, S, h);
}

#define INSTANCES(T)                                                                                             \
    template void attention_forward_plain(T*, float*, const T*, int, int, Heads);                                \
    template void attention_prompt_plain(T*, const T*, const T*, const T*, int, int, const int*, int, Heads);    \
    template void attention_backward_plain(T*, const T*, const T*, const T*, const float*, int, int, Heads);
INSTANCES(float)
INSTANCES(bf16)

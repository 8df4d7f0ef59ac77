// simt.cuh - common to forward and backward of attention by FMAs: tiles in shared memory, products
// of tiles, a block's rows, the mask.
//
// Thread mapping: 128 threads for a tile of 64 queries by 64 keys. With tx = thread % 16, a thread
// has 8 rows and 4 columns of scores (keys tx + 16 c) or of outputs (columns 4 tx + c). Rows longer
// than 64 are loaded in chunks of 64 columns. A block computes at most D columns of output (64 or
// 128); wider outputs are divided among blocks that each compute all the scores.
//
// Bound by FMAs: for 4 terms of each of its 32 sums a thread does 128 FMAs and reads 12 vectors of
// 16 bytes, one for each row and column. A warp's FMAs take an SM 32 cycles. Its reads take 16: 8
// rows of one cycle, as 16 lanes share an address, and 4 columns of two.
#pragma once
#include "attention.cuh"

namespace simt {

constexpr int TILE = 64, THREADS = 128, ROWS = 8, COLUMNS = 4;
constexpr int PITCH = TILE + 4;    // rows 4 banks apart: no conflicts
// Blocks per multiprocessor. With 3 a thread has 168 registers, with 2 it has 255; dkv_kernel<128>
// then spills 3, outside its inner loops.
template <int D> constexpr int BLOCKS = D == 64 ? 3 : 2;

struct alignas(16) Tile {
    float x[TILE][PITCH];
};
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
    // The stream's rows, up to key `end`.
    __device__ Rows in(const Stream& s, int end) const {
        return {first + s.first * stride, stride * s.step, min(s.keys, end), vectors};
    }
};
// `count` rows of a head of sequence b in a cache: every `step`-th position from `first` on.
struct PagedRows {
    const void* rows;
    const float* factors;
    Pages cache;
    int b, kv, first, step, count;
    __device__ PagedRows from(int row) const {
        PagedRows r = *this;
        r.first += row * step, r.count -= row;
        return r;
    }
    __device__ PagedRows in(const Stream& s, int end) const {
        PagedRows r = *this;
        r.first = s.first, r.step = s.step, r.count = min(s.keys, end);
        return r;
    }
};
// Rows, and the tile that they are loaded into. kept: the tile already has the rows' first 64
// columns; if there are no more, nothing is loaded.
template <class T, class R = Rows<T>> struct Operand {
    Tile& tile;
    R rows;
    bool kept;
};

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

template <class X> __device__ inline void load_paged(Tile& tile, const PagedRows& rows, int c0, int HS) {
    constexpr int PER_ROW = TILE / 4, STEP = THREADS / PER_ROW;
    const int c = int(threadIdx.x) % PER_ROW * 4;
#pragma unroll
    for (int r = int(threadIdx.x) / PER_ROW; r < TILE; r += STEP) {
        Vec<float> x = {};
        if (r < rows.count) {
            const int64_t row = rows.cache.row(rows.b, rows.kv, rows.first + r * rows.step);
            const float factor = LARGEST<X> != 0 ? rows.factors[row] : 1;
            const X* from = static_cast<const X*>(rows.rows) + row * HS + c0 + c;
            if (HS % 4 == 0 && c0 + c < HS) {
                const Vec<X, 4> four = load<4>(from);
#pragma unroll
                for (int e = 0; e < 4; e++) x.v[e] = four[e] * factor;
            } else if (HS % 4 != 0) {
                for (int e = 0; e < 4 && c0 + c + e < HS; e++) x.v[e] = to_float(from[e]) * factor;
            }
        }
        store(&tile.x[r][c], x);
    }
}
// The cache's type is chosen here, not at compile time: a tile's products take far longer.
__device__ inline void load_tile(Tile& tile, const PagedRows& rows, int c0, int HS) {
    switch (rows.cache.type) {
        case Element::bf16: return load_paged<bf16>(tile, rows, c0, HS);
        case Element::fp8: return load_paged<fp8>(tile, rows, c0, HS);
        case Element::int8: return load_paged<int8>(tile, rows, c0, HS);
        default: return load_paged<float>(tile, rows, c0, HS);
    }
}

// sums += a b^T, over all HS columns.
template <class A, class B> __device__ inline void add_abt(Sums& sums, const A& a, const B& b, int HS) {
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
template <class B, int U> __device__ inline void add_ab(Sums (&sums)[U], const Tile& p, const B& b, int c0, int HS) {
    const int n = min(TILE, b.rows.count);
#pragma unroll
    for (int u = 0; u < U; u++) {
        if (c0 + u * TILE >= HS) break;
        __syncthreads();    // p is written, the tile has been read
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

// Stores scale[r] * sums[u] to columns from c0 + 64 u on of rows for which keep(row) is true.
template <class T, int U, class Keep> __device__ inline void store_sums(T* to, int64_t stride, Keep keep, int c0,
                                                                        int HS, const Sums (&sums)[U],
                                                                        const float (&scale)[ROWS]) {
    // With values of another size than keys, rows may begin anywhere.
    const bool vectors = (HS | int(stride)) % 4 == 0 && reinterpret_cast<uintptr_t>(to) % (4 * sizeof(T)) == 0;
#pragma unroll
    for (int u = 0; u < U; u++)
#pragma unroll
        for (int r = 0; r < ROWS; r++) {
            const int c = c0 + u * TILE + int(threadIdx.x) % 16 * 4;
            Vec<T, 4> x;
#pragma unroll
            for (int e = 0; e < 4; e++) x.set(e, sums[u][r][e] * scale[r]);
            T* p = to + tile_row(r) * stride + c;
            if (keep(tile_row(r)) && vectors && c < HS) store(p, x);
            if (keep(tile_row(r)) && !vectors)
                for (int e = 0; e < 4 && c + e < HS; e++) p[e] = x.v[e];
        }
}

// Query head `head` of sequence b and the key/value head that it uses: offsets of their rows in the
// arrays of queries, of keys and values, of y or dy, and in lse.
template <class T> struct Head {
    int64_t q, q_row, k, v, kv_row, y, y_row, lse;
    int key_count;
    bool vectors, value_vectors;    // rows of keys, of values are 16-byte aligned
    __device__ Head(const Heads& h, int S, int b, int head) {
        const int kv = head / (h.NH / h.NKV), HV = h.value_size();
        key_count = h.keys_of(S);
        q_row = h.q_row(), q = int64_t(b) * S * q_row + int64_t(head) * h.HS;
        kv_row = h.kv_row(), k = int64_t(b) * key_count * kv_row + h.first_k() + int64_t(kv) * h.HS;
        v = k + (h.first_v() - h.first_k()) + int64_t(kv) * (HV - h.HS);
        y_row = h.width(), y = int64_t(b) * S * y_row + int64_t(head) * HV;
        lse = (int64_t(b) * h.NH + head) * S;
        vectors = h.HS % VEC<T> == 0 && (q_row | kv_row) % VEC<T> == 0;
        value_vectors = HV % VEC<T> == 0 && vectors;
    }
    __device__ Rows<T> queries(const T* p, int from, int to) const {
        return {p + q + from * q_row, q_row, to - from, vectors};
    }
    __device__ Rows<T> keys(const T* p) const { return {p + k, kv_row, key_count, vectors}; }
    __device__ Rows<T> values(const T* p) const { return {p + v, kv_row, key_count, value_vectors}; }
    __device__ Rows<T> in_y(const T* p, int from, int to) const {
        return {p + y + from * y_row, y_row, to - from, value_vectors};
    }
};

// A block's work: a tile of a head of a sequence, from `row` and `column` on.
struct Work {
    int b, head, row, column;
};
template <int D> __device__ inline Work work(int B, int NH, int S, int HS, bool last_first) {
    const int heads = B * NH, parts = (HS + D - 1) / D, tiles = (S + TILE - 1) / TILE, x = int(blockIdx.x);
    const int tile = last_first ? tiles - 1 - x / heads / parts : x / heads / parts;
    return {x % heads / NH, x % NH, tile * TILE, x / heads % parts * D};
}
template <int D> inline unsigned blocks(int B, int NH, int S, int HS) {
    return unsigned(ceil_div(S, TILE) * ceil_div(HS, D) * B * NH);
}

// Keys visible to the queries of a thread's rows, at positions from p0 + row on. TWO_SIDED: the
// pattern is (visible_keys.h), and `spans` has the queries' spans.
template <bool TWO_SIDED> struct RowMask {
    Span keys[ROWS], spans[TWO_SIDED ? ROWS : 1];
    int row0, last;    // the first row's position; the last row that is a query
    __device__ RowMask(const Heads& h, int S, int b, int row, int p0) : row0(p0 + row), last(S - 1 - row) {
#pragma unroll
        for (int r = 0; r < ROWS; r++) {
            const int i = min(row + tile_row(r), S - 1);
            keys[r] = keys_of(h, S, b, p0 + i);
            if constexpr (TWO_SIDED) spans[r] = h.keys[int64_t(b) * S + i];
        }
    }
    __device__ int row_of(int r) const { return min(tile_row(r), last); }
    // Whether row r sees key t of the stream.
    __device__ bool is_visible(int r, const Stream& stream, int t) const {
        if (stream.all) return keys[r].from <= t && t < keys[r].to;
        if constexpr (TWO_SIDED) {
            const int key = stream.key(t);
            const bool in_window = keys[r].from <= key && key < keys[r].to;
            return t < stream.keys && spans[r].from <= key && key < spans[r].to && !in_window;
        }
        return t < stream.keys && stream.key(t) < keys[r].from;
    }
};
// The range of a stream's keys that queries from..to-1 attend to. Of a two-sided pattern's streams
// it has those in their windows, too. first, last: keys_of() of the first and the last query.
template <bool TWO_SIDED> __device__ inline Span visited(const Stream& stream, const Span& first, const Span& last,
                                                         const Heads& h, int S, int b, int from, int to) {
    if constexpr (TWO_SIDED) {
        const Span* spans = h.keys + int64_t(b) * S;
        if (!stream.all) return stream.within({spans[from].from, spans[to - 1].to});
        const int globals = min(h.global_tokens, to);    // queries before this have no window
        return {first.from, globals > from ? max(spans[globals - 1].to, last.to) : last.to};
    }
    return {stream.of(first).from, stream.of(last).to};
}

// Calls f(SHAPED, TWO_SIDED). Dropout needs SHAPED, and so does TWO_SIDED: a two-sided pattern.
template <class F> void for_mask(const Scores& s, const Heads& h, F f) {
    if (is_two_sided(h)) f(std::true_type(), std::true_type());
    else if (s.shaped()) f(std::true_type(), std::false_type());
    else f(std::false_type(), std::false_type());
}

template <bool SHAPED>
__device__ inline float score(const Scores& scores, float product, const PositionBias& slope, int distance) {
    return SHAPED ? scores.score(scores.inside(product), slope, float(distance)) : product * scores.log2;
}

}    // namespace simt

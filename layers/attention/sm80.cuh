// sm80.cuh - shared by attention's mma.sync kernels: masks, the order in which blocks run, and the
// two products. A warp computes 16 * M rows of a result (M mma tiles of 16 rows) with all their
// columns, so that no kernel reduces across warps. Results are laid out as in ptx/mma_tile.cuh.
#pragma once
#include "base/philox.h"
#include "attention.cuh"
#include "layers/ptx/mma_tile.cuh"

namespace sm80 {

// ---- a call's arguments -------------------------------------------------------------------------

__device__ inline bool meets(Span span, int first, int n) { return first < span.to && first + n > span.from; }
__device__ inline bool holds(Span span, int first, int n) { return first >= span.from && first + n <= span.to; }

struct Call {
    Heads h;                               // window: the longest sequence if unlimited
    int S, keys, heads, tiles, section;    // keys: per sequence; heads: of all sequences
    int64_t q_row, kv_row;                 // elements in a row of q, of kv
    Scores scores;
    Streams streams;

    // A sequence has per_sequence heads, each cut into tiles of `rows` of its `n` positions. bytes:
    // memory that the tiles of one head read.
    Call(int B, int S, Heads asked, int per_sequence, int n, int rows, int64_t bytes)
        : h(asked), S(S), keys(asked.keys_of(S)), heads(B * per_sequence), tiles(int(ceil_div(n, rows))),
          section(int(SECTION / bytes)), q_row(asked.q_row()), kv_row(asked.kv_row()), scores(asked),
          streams(asked, keys) {
        const int longest = std::max(S, keys);
        if (h.window <= 0 || h.window > longest) h.window = longest;
        section = section < 1 ? 1 : section > heads ? heads : section;
    }
    unsigned blocks() const { return unsigned(heads) * unsigned(tiles); }
    // Offsets of query head `head` in q, and of key/value head kv's keys and values in kv.
    __device__ int64_t q(int b, int head) const { return b * (S * q_row) + head * h.HS; }
    __device__ int64_t k(int b, int kv) const { return b * (keys * kv_row) + h.first_k() + kv * h.HS; }
    __device__ int64_t v(int b, int kv) const { return k(b, kv) + h.NKV * h.HS; }

    __device__ Span keys_of(int b, int query) const { return ::keys_of(h, S, b, query); }
    // The bias of query first + i, or of the last one, from the one of query `first`.
    __device__ PositionBias query_bias(const PositionBias& of_first, int first, int i) const {
        return scores.after(of_first, min(i, S - 1 - first));
    }
    // Queries that attend to key t of a stream (visible_keys.h: the keys of a sparse pattern).
    __device__ Span queries_of(int b, const Stream& stream, int t) const {
        const int key = stream.key(t);
        return stream.all ? ::queries_of(h, S, b, key) : Span{key, S};
    }

  private:
    // Blocks run in sections of heads that fit L2, so that K and V come from memory once. Within a
    // section the tiles with most work go first, over all of its heads. The emulator's sections are
    // small, to test several.
    static constexpr int64_t SECTION = EMULATED ? 100 << 10 : 16 << 20;
};

// A block's tile and head. Heads are counted over all sequences. Tiles with most work come first.
struct TileCoord {
    int tile, head;
};
__device__ inline TileCoord tile_coord(const Call& c, unsigned block) {
    const unsigned per_section = unsigned(c.section) * unsigned(c.tiles), first = block / per_section * c.section;
    const unsigned i = block % per_section, heads = min(unsigned(c.section), c.heads - first);
    return {int(i / heads), int(first + i % heads)};
}

// ---- tiles --------------------------------------------------------------------------------------

// Position s of one head is at `at` + s * stride.
template <class T> struct Rows {
    T* at;
    int64_t stride;
};

// Position t of a stream is at `at` + t * stride.
template <class T> __device__ inline Rows<T> in_stream(Rows<T> rows, const Stream& stream) {
    return {rows.at + stream.first * rows.stride, rows.stride * stream.step};
}

// Starts copying positions first..n-1 to a tile; rows beyond n and columns beyond HS become zero.
template <int THREADS, int ROWS, int D>
__device__ void load_tile(Tile<ROWS, D>& tile, Rows<const bf16> from, int first, int n, const Call& c) {
    constexpr int CHUNKS = D / 8, STEP = THREADS / CHUNKS;    // D = 96: a few threads copy nothing
    const int column = threadIdx.x % CHUNKS, row = threadIdx.x < STEP * CHUNKS ? threadIdx.x / CHUNKS : ROWS;
    const int valid = column * 8 < c.h.HS ? n - first : 0;
    const bf16* source = from.at + (first + row) * from.stride + column * 8;
#pragma unroll
    for (int i = 0; i < ROWS; i += STEP, source += STEP * from.stride)
        if (i + row < ROWS) cp_async_16(tile.chunk(i + row, column), source, i + row < valid);
}

// Stores a warp's results to their columns from first_column on, in chunks of 16 bytes. Row i of
// the results goes to position s = first + row + i if keep(s) is true. The results first overwrite
// the tile's rows from `row` on, so no other warp may read these.
template <int M, int N, int ROWS, int D, class Keep>
__device__ void store_rows(Rows<bf16> to, Tile<ROWS, D>& tile, const float (&x)[M][N][4], int row, int first_column,
                           int first, const Call& c, Keep keep) {
    const int lane = threadIdx.x % 32;
    __syncwarp();    // lanes of this warp may still read it
    put_results(tile, x, row, first_column);
    __syncwarp();
    for (int i = lane; i < M * 16 * N; i += 32) {
        const int r = row + i / N, n = first_column / 8 + i % N, s = first + r;
        if (keep(s) && n * 8 < c.h.HS) store<8>(to.at + s * to.stride + n * 8, load<8>(tile.chunk(r, n)));
    }
}

// ---- products of one warp -----------------------------------------------------------------------

// 16 M rows of a tile, from `row` on, as the left factor of a product.
template <int M, int ROWS, int D> struct FromShared {
    const Tile<ROWS, D>& tile;
    int row;
    __device__ void get(uint32_t (&a)[M][4], int k) const {
#pragma unroll
        for (int m = 0; m < M; m++) ldmatrix_x4(a[m], tile.piece(row + m * 16, k));
    }
};
// FromShared's rows, read once and kept in registers.
template <int M, int D> struct FromRegisters {
    uint32_t held[D / 16][M][4];
    template <int ROWS> __device__ FromRegisters(const Tile<ROWS, D>& tile, int row) {
#pragma unroll
        for (int k = 0; k < D / 16; k++) FromShared<M, ROWS, D>{tile, row}.get(held[k], k);
    }
    __device__ void get(uint32_t (&a)[M][4], int k) const {
#pragma unroll
        for (int m = 0; m < M; m++)
#pragma unroll
            for (int i = 0; i < 4; i++) a[m][i] = held[k][m][i];
    }
};

// x = a b^T over D columns, for 8 N rows of b, from `first` on.
template <int M, int N, int ROWS, int D, class A>
__device__ void multiply_transposed(float (&x)[M][N][4], const A& a, const Tile<ROWS, D>& b, int first) {
    each(x, [](float& value, int, int, int) { value = 0; });
#pragma unroll
    for (int k = 0; k < D / 16; k++) {
        uint32_t left[M][4];
        a.get(left, k);
#pragma unroll
        for (int n = 0; n < N; n += 2) {
            uint32_t f[4];
            ldmatrix_x4(f, b.piece(first + n * 8, k));
#pragma unroll
            for (int m = 0; m < M; m++) {
                mma_m16n8k16(x[m][n], left[m], {f[0], f[2]});
                mma_m16n8k16(x[m][n + 1], left[m], {f[1], f[3]});
            }
        }
    }
}

// sum += p b, over b's rows from `first` on, for its columns from first_column on. p, a result of
// multiply_transposed, is rounded to bf16; its registers already have a left factor's layout.
template <int M, int K, int N, int ROWS, int D>
__device__ void multiply_add(float (&sum)[M][N][4], const float (&p)[M][K][4], const Tile<ROWS, D>& b, int first,
                             int first_column = 0) {
#pragma unroll
    for (int k = 0; k < K; k += 2) {
        uint32_t left[M][4];
#pragma unroll
        for (int m = 0; m < M; m++)
#pragma unroll
            for (int i = 0; i < 4; i++) {
                const float* pair = p[m][k + i / 2] + i % 2 * 2;
                left[m][i] = pack_bf16(pair[0], pair[1]);
            }
#pragma unroll
        for (int n = 0; n < N; n += 2) {
            uint32_t f[4];
            ldmatrix_x4_trans(f, b.piece(first + k * 8, (first_column + n * 8) / 16));
#pragma unroll
            for (int m = 0; m < M; m++) {
                mma_m16n8k16(sum[m][n], left[m], {f[0], f[1]});
                mma_m16n8k16(sum[m][n + 1], left[m], {f[2], f[3]});
            }
        }
    }
}

// ---- masks --------------------------------------------------------------------------------------

// A tile of keys: from the `first`-th key on, of one of the block's streams (visible_keys.h: every
// step-th key of the sequence).
struct KeyTile {
    int stream, first;
};
// Key tiles that queries first..last visit: first those of the stream of all keys, then those of a
// sparse pattern's streams (visible_keys.h).
template <int KEYS, bool SPARSE> struct Visits {
    int from, count[SPARSE ? 3 : 1] = {}, all;
    __device__ Visits(const Call& c, int b, int first, int last) {
        const Span end = c.keys_of(b, last);
        from = c.keys_of(b, first).from / KEYS;
        count[0] = all = (min(end.to, c.keys) + KEYS - 1) / KEYS - from;
        if constexpr (SPARSE)
            for (int i = 1; i < c.streams.count; i++) {
                count[i] = (c.streams.s[i].below(end.from) + KEYS - 1) / KEYS;
                all += count[i];
            }
    }
    __device__ KeyTile operator()(int n) const {
        if (!SPARSE || n < count[0]) return {0, (from + n) * KEYS};
        n -= count[0];
        if constexpr (SPARSE)
            if (n >= count[1]) return {2, (n - count[1]) * KEYS};
        return {1, n * KEYS};
    }
};

// Starts copying a tile of keys or values.
template <int THREADS, bool SPARSE, int ROWS, int D>
__device__ void load_keys(Tile<ROWS, D>& to, Rows<const bf16> rows, const KeyTile& tile, const Call& c) {
    const Stream& stream = c.streams.s[tile.stream];
    load_tile<THREADS>(to, SPARSE ? in_stream(rows, stream) : rows, tile.first, SPARSE ? stream.keys : c.keys, c);
}

// Columns visible to a thread's rows. some: to any row of its warp; all: to all rows of its warp.
template <int M> struct RowMask {
    Span rows[M][2], some, all;
    template <class Of> __device__ RowMask(int row, Of of) {    // of(row): its Span
#pragma unroll
        for (int m = 0; m < M; m++)
#pragma unroll
            for (int r = 0; r < 2; r++) rows[m][r] = of(row + m * 16 + r * 8 + threadIdx.x % 32 / 4);
        const Span first = of(row), last = of(row + M * 16 - 1);
        some = {first.from, last.to}, all = {last.from, first.to};
    }
    // Visible keys of a stream, for queries from `row` on.
    __device__ RowMask(const Call& c, int b, int row, int stream)
        : RowMask(row, [&](int query) { return c.streams.s[stream].of(c.keys_of(b, query)); }) {}
    // x = -infinity where a row does not see the column. x begins at `column`.
    template <int N> __device__ void mask(float (&x)[M][N][4], int column) const {
        if (holds(all, column, N * 8)) return;
        each(x, [&](float& value, int m, int n, int e) {
            if (!meets(rows[m][e / 2], column + n * 8 + threadIdx.x % 4 * 2 + e % 2, 1)) value = -INFINITY;
        });
    }
};

// ---- scores -------------------------------------------------------------------------------------

// An element's row among the warp's rows.
__device__ inline int own_row(int m, int e) { return m * 16 + e / 2 * 8 + int(threadIdx.x) % 32 / 4; }
// Applies a soft cap's tanh to each product; without a cap, nothing changes.
template <int M, int N> __device__ inline void apply_cap_tanh(float (&x)[M][N][4], const Scores& s) {
    if (s.inner != 0) each(x, [&](float& value, int, int, int) { value = tanh_of(value * s.inner); });
}
// Distance from an element's key to its query. KEYS: the rows are keys. `row`, `column`: positions
// of the first element; keys are `step` apart.
template <bool KEYS> struct Distance {
    float first, step;
    __device__ Distance(int row, int column, int step) : step(float(step)) {
        const int r = int(threadIdx.x) % 32 / 4, c = int(threadIdx.x) % 4 * 2;
        first = float(KEYS ? column + c - row - step * r : row + r - column - step * c);
    }
    __device__ float at(int m, int n, int e) const {
        const float r = float(16 * m + e / 2 * 8), c = float(8 * n + e % 2);
        return first + (KEYS ? c - step * r : r - step * c);
    }
};

// A bit for each element of a thread's part of a product: whether dropout keeps it. The bits are
// drawn before the product is computed, while its registers are still free. KEYS: the product's
// rows are keys.
template <bool HAS_DROPOUT, bool KEYS, int M, int N> struct Stays {
    uint32_t bits[HAS_DROPOUT ? (M * N * 4 + 31) / 32 : 1] = {};
    // `row`, `column`: positions of the first element. Keys are `step` apart; queries begin at a
    // multiple of 16.
    __device__ Stays(const Heads& h, int b, int head, int row, int column, int step) {
        if constexpr (HAS_DROPOUT) {
            const uint64_t stream = pair_row(h.dropout, b, head, h.NH);
            if (step == 1 && (KEYS ? row : column) % 16 == 0) draw(h.dropout, stream, row, column);
            else draw_apart(h.dropout, stream, row, column, step);
        }
    }
    __device__ void put(int m, int n, int e, bool kept) {
        const int i = (m * N + n) * 4 + e;
        bits[i / 32] |= uint32_t(kept) << i % 32;
    }
    __device__ bool at(int m, int n, int e) const {
        const int i = (m * N + n) * 4 + e;
        return !HAS_DROPOUT || bits[i / 32] >> i % 32 & 1;
    }
    __device__ void draw(const Dropout& d, uint64_t stream, int row, int column) {
        const int r = row + int(threadIdx.x) % 32 / 4, c = column + int(threadIdx.x) % 4 * 2;
#pragma unroll
        for (int m = 0; m < M; m++)
#pragma unroll
            for (int n = 0; n < N; n += 2)
#pragma unroll
                for (int odd = 0; odd < 2; odd++) {    // one call for elements 8 rows, columns apart
                    const int i = r + 16 * m, j = c + 8 * n + odd;
                    const Philox4 words = philox(d.seed, stream, KEYS ? pair_index(j, i) : pair_index(i, j));
#pragma unroll
                    for (int k = 0; k < 4; k++) {
                        const int below = KEYS ? k % 2 : k / 2, right = KEYS ? k / 2 : k % 2;
                        put(m, n + right, odd + 2 * below, words.v[k] >= d.keep_threshold());
                    }
                }
    }
    __device__ void draw_apart(const Dropout& d, uint64_t stream, int row, int column, int step) {
        const int r = int(threadIdx.x) % 32 / 4, c = int(threadIdx.x) % 4 * 2;
#pragma unroll 1
        for (int i = 0; i < M * N * 4; i++) {
            const int e = i % 4, below = i / 4 / N * 16 + r + e / 2 * 8, right = i / 4 % N * 8 + c + e % 2;
            const bool kept = KEYS ? is_pair_kept(d, stream, column + right, row + step * below)
                                   : is_pair_kept(d, stream, row + below, column + step * right);
#pragma unroll
            for (int w = 0; w < int(sizeof bits / 4); w++) bits[w] |= uint32_t(kept && i / 32 == w) << i % 32;
        }
    }
};

// Distances between queries from `row` on and the tile's keys.
template <bool SPARSE> __device__ inline Distance<false> distance_of(const Call& c, int row, const KeyTile& tile) {
    const Stream& keys = c.streams.s[tile.stream];
    return {row, SPARSE ? keys.key(tile.first) : tile.first, SPARSE ? keys.step : 1};
}

// ---- head sizes ---------------------------------------------------------------------------------

// Calls f(D) with the smallest compiled D that holds heads of HS; columns beyond HS are zero.
template <class F> void for_head_size(int HS, F f) {
    if (HS <= 32) f(std::integral_constant<int, 32>());
    else if (HS <= 64) f(std::integral_constant<int, 64>());
    else if (HS <= 96) f(std::integral_constant<int, 96>());
    else if (HS <= 128) f(std::integral_constant<int, 128>());
    else f(std::integral_constant<int, 256>());
}

}    // namespace sm80

// position_bias.cu - learned biases of attention's scores by distance, and their gradients. All
// distances in a bucket have one bias per head (bias_rows_forward in operations.inc).
//
// A score's gradient ds = p (dp - delta) is recomputed. A block has a band: all 64x64 tiles
// (queries by keys) of a head that lie at one offset from the diagonal. It sums these tiles
// elementwise in registers, and at the end adds up along the diagonals of the sum. Another kernel
// adds bands by distance. With bias_step (each query has its own biases), a block has the tiles of
// 64 queries instead, and adds each of their elements to dbias of its query. There are no atomics,
// so the bits are reproducible.
//
// Thread mapping: 128 threads for a tile. bf16 by mma.sync, 16 queries a warp (sm80.cuh); float,
// and head sizes without tensor cores, by FMAs (simt.cuh).
//
// FLOPs for each pair of query and key: 4 HS. Bound by copying tiles of q, k, v and dy: each band
// of a head reads them again. A block's shared memory holds only two tiles, so that several blocks
// fit a multiprocessor, and others compute while one waits.
#include "simt.cuh"
#include "sm80.cuh"

namespace {

constexpr int TILE = BiasScratch::TILE, THREADS = simt::THREADS, DIAGONALS = BiasScratch::DIAGONALS;
constexpr int PITCH = simt::PITCH;
static_assert(TILE == simt::TILE);

struct Bands {
    Heads h;
    int B, S, tiles, count, lowest;    // count: bands; lowest: first band's offset in tiles
    int64_t row;                       // elements in a row of packed qkv
    Scores scores;
    Bands(int B, int S, Heads h, const BiasScratch& s)
        : h(h), B(B), S(S), tiles(s.tiles), count(s.bands), lowest(h.keys ? 1 - s.tiles : 0), row(h.qkv_width()),
          scores(h) {}
};

// A block's band, and the band's tiles that have visible pairs.
struct Band {
    const Bands& c;
    int b, head, offset, band;
    PositionBias tilt;
    __device__ explicit Band(const Bands& c)
        : c(c), b(int(blockIdx.x) % (c.B * c.h.NH) / c.h.NH), head(int(blockIdx.x) % c.h.NH),
          offset(c.lowest + int(blockIdx.x) / (c.B * c.h.NH)), band(int(blockIdx.x) / (c.B * c.h.NH)),
          tilt(c.scores.slope(head, int64_t(b) * c.S)) {}
    __device__ int64_t lse() const { return (int64_t(b) * c.h.NH + head) * c.S; }
    __device__ int64_t y() const { return (int64_t(b) * c.S * c.h.NH + head) * c.h.HS; }
    __device__ int64_t qkv(int which) const { return b * (c.S * c.row) + int64_t(which) * c.h.HS; }
    __device__ int64_t k() const { return qkv(c.h.NH + head / (c.h.NH / c.h.NKV)); }
    __device__ int64_t v() const { return k() + int64_t(c.h.NKV) * c.h.HS; }
    // Calls f(first query's position, first key's position) for each tile that has visible pairs.
    // BY_QUERY: the block's number counts tiles of queries. The last tiles start first: they see
    // most keys.
    template <bool BY_QUERY, class F> __device__ void each_tile(F f) const {
        const int queries = c.tiles - 1 - band;
        for (int i = BY_QUERY ? 0 : max(offset, 0); i < (BY_QUERY ? c.tiles : min(c.tiles, c.tiles + offset)); i++) {
            const int query = (BY_QUERY ? queries : i) * TILE, key = (BY_QUERY ? i : i - offset) * TILE;
            const int last = min(query + TILE, c.S) - 1;
            if (key >= keys_of(c.h, c.S, b, last).to) continue;
            const bool pattern = has_pattern(c.h);
            if (!pattern && key + TILE <= keys_of(c.h, c.S, b, query).from) continue;
            f(query, key);
        }
    }
    // Writes the sum of each diagonal of the band's tiles to partial (B,NH,bands,DIAGONALS), at
    // index key - query + TILE - 1, both counted within a tile.
    __device__ void write(float* partial, const float (&sums)[TILE][PITCH]) const {
        const int d = int(threadIdx.x) - (TILE - 1);
        float sum = 0;
        for (int r = max(0, -d); r < min(TILE, TILE - d); r++) sum += sums[r][r + d];
        partial[((int64_t(b) * c.h.NH + head) * c.count + band) * DIAGONALS + threadIdx.x] = sum;
    }
};

// Adds gradients of scores to dbias of their queries. Two threads share a row of a tile.
struct QueryBiases {
    const Band& at;
    float* dbias;
    float below = 0, beyond = 0;    // the thread's sums over keys at least max_distance before, after the query
    int query = 1 << 30;            // the query of the thread's row in the last tile; 1 << 30: none yet
    __device__ float* biases() const {
        const Heads& h = at.c.h;
        return dbias + (int64_t(at.b) * at.c.S + query) * h.bias_step + at.head * h.distances() + h.max_distance;
    }
    __device__ void add(const float (&tile)[TILE][PITCH], int first_query, int first_key) {
        const int row = int(threadIdx.x) / 2, first = int(threadIdx.x) % 2 * (TILE / 2), most = at.c.h.max_distance;
        query = first_query + row;
        if (query >= at.c.S) return;
        float* to = biases();
        for (int i = first; i < first + TILE / 2; i++) {
            const int distance = first_key + i - query;
            const float x = tile[row][i];
            if (distance <= -most) below += x;
            else if (distance >= most) beyond += x;
            else to[distance] += x;    // no other tile has the pair's query and distance
        }
    }
    __device__ void finish() {
        below += __shfl_xor_sync(0xffffffff, below, 1);
        beyond += __shfl_xor_sync(0xffffffff, beyond, 1);
        if (threadIdx.x % 2 || query >= at.c.S) return;
        biases()[-at.c.h.max_distance] += below;
        biases()[at.c.h.max_distance] += beyond;
    }
};

// The gradients of one query's scores.
struct Query {
    const Band& at;
    Span span;
    PositionBias bias;
    int i;
    float lse2, delta;
    __device__ Query(const Band& at, int i, const float* lse, const float* deltas)
        : at(at), span(keys_of(at.c.h, at.c.S, at.b, i)), bias(at.c.scores.after(at.tilt, min(i, at.c.S - 1))), i(i),
          lse2(i < at.c.S ? lse[at.lse() + i] * LOG2E : 0), delta(i < at.c.S ? deltas[at.lse() + i] : 0) {
        if (i >= at.c.S) span = {0, 0};
    }
    __device__ float gradient(float product, float dp, int j) const {
        const Heads& h = at.c.h;
        if (j >= span.to || (j < span.from && !in_pattern(h, j))) return 0;
        const Scores& s = at.c.scores;
        dp = is_kept(h, at.b, at.head, i, j) ? dp * h.dropout.factor() : 0;
        return exp2f(s.score(s.inside(product), bias, float(i - j)) - lse2) * (dp - delta);
    }
};

// ---- tensor cores -------------------------------------------------------------------------------

template <int D> struct MmaTiles {
    typedef sm80::Tile<TILE, D> Tile;
    union {
        struct {
            Tile left, right;
        };
        float sums[TILE][PITCH];
    };
    __device__ static void load(Tile& tile, const bf16* from, int64_t stride, int first, int S, int HS) {
        for (int i = int(threadIdx.x); i < TILE * D / 8; i += THREADS) {
            const int r = i / (D / 8), c = i % (D / 8), s = first + r;
            const bool there = s < S && c * 8 < HS;
            cp_async_16(tile.chunk(r, c), from + (there ? s * stride + c * 8 : 0), there);
        }
    }
};

// BY_QUERY: `to` is dbias, else the partial sums.
template <int D, bool BY_QUERY> __global__ void __launch_bounds__(THREADS)
    mma_kernel(float* to, const bf16* dy, const bf16* qkv, const float* lse, const float* delta, Bands bands) {
    typedef MmaTiles<D> Tiles;
    Tiles& tiles = dynamic_shared<Tiles>();
    const Band band(bands);
    const int lane = threadIdx.x % 32, row = threadIdx.x / 32 * 16, HS = bands.h.HS, S = bands.S;
    const int64_t y_row = int64_t(bands.h.NH) * HS;
    float sums[1][TILE / 8][4] = {}, p[1][TILE / 8][4], dp[1][TILE / 8][4];
    auto product = [&](float(&x)[1][TILE / 8][4], const bf16* a, int64_t a_row, int query, const bf16* b, int key) {
        __syncthreads();    // all warps have read the previous tiles
        Tiles::load(tiles.left, a, a_row, query, S, HS);
        Tiles::load(tiles.right, b, bands.row, key, S, HS);
        cp_async_commit();
        cp_async_wait<0>();
        __syncthreads();
        sm80::multiply_transposed(x, sm80::FromShared<1, TILE, D>{tiles.left, row}, tiles.right, 0);
    };
    auto put = [&] {
        __syncthreads();
        sm80::each(sums, [&](float& sum, int m, int n, int e) {
            tiles.sums[row + sm80::own_row(m, e)][n * 8 + lane % 4 * 2 + e % 2] = sum;
            sum = 0;
        });
        __syncthreads();
    };
    QueryBiases biases = {band, to};
    band.each_tile<BY_QUERY>([&](int query, int key) {
        product(p, qkv + band.qkv(band.head), bands.row, query, qkv + band.k(), key);
        product(dp, dy + band.y(), y_row, query, qkv + band.v(), key);
        const int i = query + row + lane / 4;
        const Query rows[2] = {{band, i, lse, delta}, {band, i + 8, lse, delta}};
        sm80::each(sums, [&](float& sum, int m, int n, int e) {
            sum += rows[e / 2].gradient(p[m][n][e], dp[m][n][e], key + n * 8 + lane % 4 * 2 + e % 2);
        });
        if (!BY_QUERY) return;
        put();
        biases.add(tiles.sums, query, key);
    });
    if (BY_QUERY) return biases.finish();
    put();
    band.write(to, tiles.sums);
}

// ---- FMAs ---------------------------------------------------------------------------------------

struct PlainTiles {
    simt::Tile left, right;
};

template <class T, bool BY_QUERY> __global__ void __launch_bounds__(THREADS)
    plain_kernel(float* to, const T* dy, const T* qkv, const float* lse, const float* delta, Bands bands) {
    PlainTiles& tiles = dynamic_shared<PlainTiles>();
    const Band band(bands);
    const int HS = bands.h.HS, S = bands.S;
    const int64_t y_row = int64_t(bands.h.NH) * HS;
    simt::Sums sums = {};
    auto product = [&](simt::Sums& x, const T* a, int64_t a_row, int query, const T* b, int key) {
        const bool vectors = HS % VEC<T> == 0;
        const simt::Rows<T> left = {a + query * a_row, a_row, S - query, vectors};
        const simt::Rows<T> right = {b + key * bands.row, bands.row, S - key, vectors};
        simt::add_abt(x, simt::Operand<T>{tiles.left, left, false}, simt::Operand<T>{tiles.right, right, false}, HS);
    };
    auto put = [&] {
        __syncthreads();
#pragma unroll
        for (int r = 0; r < simt::ROWS; r++)
#pragma unroll
            for (int c = 0; c < simt::COLUMNS; c++) {
                tiles.left.x[simt::tile_row(r)][simt::tile_column(c)] = sums[r][c];
                sums[r][c] = 0;
            }
        __syncthreads();
    };
    QueryBiases biases = {band, to};
    band.each_tile<BY_QUERY>([&](int query, int key) {
        simt::Sums p = {}, dp = {};
        product(p, qkv + band.qkv(band.head), bands.row, query, qkv + band.k(), key);
        product(dp, dy + band.y(), y_row, query, qkv + band.v(), key);
#pragma unroll
        for (int r = 0; r < simt::ROWS; r++) {
            const Query row(band, query + simt::tile_row(r), lse, delta);
#pragma unroll
            for (int c = 0; c < simt::COLUMNS; c++)
                sums[r][c] += row.gradient(p[r][c], dp[r][c], key + simt::tile_column(c));
        }
        if (!BY_QUERY) return;
        put();
        biases.add(tiles.left.x, query, key);
    });
    if (BY_QUERY) return biases.finish();
    put();
    band.write(to, tiles.left.x);
}

// ---- sums by distance ---------------------------------------------------------------------------

// dbias[head,x] += the sums at distance x - max_distance; the first and last x include all larger
// distances. A block computes one element; a thread adds every 128th band.
__global__ void __launch_bounds__(THREADS) add_bands_kernel(float* dbias, const float* partial, Bands c) {
    SHARED(float[THREADS / 32], warps);
    const int n = c.h.distances(), x = int(blockIdx.x) % n, head = int(blockIdx.x) / n, far = 1 << 29;
    const int low = x == 0 ? -far : x - c.h.max_distance, high = x == n - 1 ? far : x - c.h.max_distance;
    float sum = 0;
    for (int i = int(threadIdx.x); i < c.B * c.count; i += THREADS) {
        const int band = i % c.count, first = (c.lowest + band) * TILE + TILE - 1;    // the diagonal at distance 0
        const float* p = partial + ((int64_t(i / c.count) * c.h.NH + head) * c.count + band) * DIAGONALS;
        for (int d = max(0, low + first); d <= min(DIAGONALS - 2, high + first); d++) sum += p[d];
    }
    sum = warp_sum<32>(sum);
    if (threadIdx.x % 32 == 0) warps[threadIdx.x / 32] = sum;
    __syncthreads();
    if (threadIdx.x) return;
    for (int w = 1; w < THREADS / 32; w++) sum += warps[w];
    dbias[blockIdx.x] += sum;
}

// to: as in mma_kernel.
template <bool BY_QUERY, class T>
void score_gradients(float* to, const T* dy, const T* qkv, const float* lse, const float* delta, const Bands& bands) {
    const Heads& h = bands.h;
    const unsigned blocks = unsigned(bands.B) * unsigned(h.NH) * unsigned(BY_QUERY ? bands.tiles : bands.count);
    if constexpr (sizeof(T) == 2)
        if (attention_fits_sm80(h))
            return sm80::for_head_size(h.HS, [&](auto D) {
                launch(mma_kernel<D, BY_QUERY>, {blocks, THREADS, sizeof(MmaTiles<D>)}, to, dy, qkv, lse, delta, bands);
            });
    launch(plain_kernel<T, BY_QUERY>, {blocks, THREADS, sizeof(PlainTiles)}, to, dy, qkv, lse, delta, bands);
}
template <class T> void attention_bias_backward(float* dbias, const T* dy, const T* y, const T* qkv, const float* lse,
                                                int B, int S, Heads h) {
    const BiasScratch s(B, S, h);
    float* delta = static_cast<float*>(cuda_scratch(s.bytes));
    float* partial = delta + s.partial / 4;
    const Bands bands(B, S, h, s);
    attention_delta(delta, dy, y, B, S, h);
    if (h.bias_step) return score_gradients<true>(dbias, dy, qkv, lse, delta, bands);
    score_gradients<false>(partial, dy, qkv, lse, delta, bands);
    launch(add_bands_kernel, {unsigned(h.NH * h.distances()), THREADS}, dbias, partial, bands);
}

// ---- biases of distances from the table ---------------------------------------------------------

template <class T> __global__ void __launch_bounds__(THREADS)
    rows_kernel(float* bias, const T* table, const int* bucket, int NH, int n) {
    const int i = int(blockIdx.x) * THREADS + int(threadIdx.x);
    if (i < NH * n) bias[i] = to_float(table[bucket[i % n] * NH + i / n]);
}
// A thread computes one element of dtable: it adds dbias of the bucket's distances in order.
__global__ void __launch_bounds__(THREADS)
    table_kernel(float* dtable, const float* dbias, const int* bucket, int buckets, int NH, int n) {
    const int at = int(blockIdx.x) * THREADS + int(threadIdx.x), head = at % NH;
    if (at >= buckets * NH) return;
    float sum = 0;
    for (int i = 0; i < n; i++)
        if (bucket[i] == at / NH) sum += dbias[head * n + i];
    dtable[at] += sum;
}
template <class T> void bias_rows_forward(float* bias, const T* table, const int* bucket, int, int NH, int n) {
    launch(rows_kernel<T>, {unsigned(ceil_div(NH * n, THREADS)), THREADS}, bias, table, bucket, NH, n);
}
void bias_rows_backward(float* dtable, const float* dbias, const int* bucket, int buckets, int NH, int n) {
    launch(table_kernel, {unsigned(ceil_div(buckets * NH, THREADS)), THREADS}, dtable, dbias, bucket, buckets, NH, n);
}

const CudaRegistration entries([]<class T>(Ops<T>& o, Dtype) {
    o.bias_rows_forward = bias_rows_forward<T>;
    o.bias_rows_backward = bias_rows_backward;
    o.attention_bias_backward = attention_bias_backward<T>;
});
}    // namespace

// relative_keys.cu - products of queries with the keys of distances (Shaw et al. 2018), and their
// gradients.
//
// Thread mapping: 128 threads for a tile of 64 by 64 (simt.cuh), of queries of a head by distances,
// of queries by columns of dq, or of distances by columns of dkeys. Bound by FMAs: 2 HS FLOPs for
// each query and distance in a product. A dkeys block sums over some tiles of queries of a head;
// another kernel adds up these sums in order, so the bits are reproducible.
#include "simt.cuh"

namespace {
using namespace simt;
static_assert(TILE == RelativeKeysScratch::TILE);

// N queries, n distances. A bias of the number i belongs to the key n - 1 - i.
struct Call {
    Heads h;
    int N, n;
    float scale;
    Call(int queries, const Heads& heads) : h(heads), N(queries), n(heads.distances()), scale(heads.score_scale()) {}
    __device__ int64_t bias(int row, int head) const { return (int64_t(row) * h.NH + head) * n; }
    __device__ int64_t q(int row, int head) const { return int64_t(row) * h.qkv_width() + int64_t(head) * h.HS; }
    template <class T> __device__ Rows<T> queries(const T* qkv, int row, int head) const {
        return {qkv + q(row, head), h.qkv_width(), N - row, (h.HS | h.qkv_width()) % VEC<T> == 0};
    }
    template <class T> __device__ Rows<T> keys(const T* from, int first) const {
        return {from + int64_t(first) * h.HS, h.HS, n - first, h.HS % VEC<T> == 0};
    }
    int tiles_of(int rows) const { return int(ceil_div(rows, TILE)); }
};
struct Tiles {
    Tile left, right;
};

// A block has a tile of queries and keys.
template <class T> __global__ void __launch_bounds__(THREADS)
    forward_kernel(float* bias, const T* qkv, const T* keys, Call c, int key_tiles) {
    Tiles& tiles = dynamic_shared<Tiles>();
    const int head = int(blockIdx.x) % c.h.NH, tile = int(blockIdx.x) / c.h.NH;
    const int row0 = tile / key_tiles * TILE, key0 = tile % key_tiles * TILE;
    Sums s = {};
    add_abt(s, Operand<T>{tiles.left, c.queries(qkv, row0, head), false},
            Operand<T>{tiles.right, c.keys(keys, key0), false}, c.h.HS);
#pragma unroll
    for (int r = 0; r < ROWS; r++)
#pragma unroll
        for (int i = 0; i < COLUMNS; i++) {
            const int row = row0 + tile_row(r), key = key0 + tile_column(i);
            if (row < c.N && key < c.n) bias[c.bias(row, head) + c.n - 1 - key] = s[r][i] * c.scale;
        }
}

// tile = dbias of 64 queries by 64 keys, or its transpose with `turned`; 0 beyond the last ones.
__device__ inline void load_dbias(Tile& tile, const float* dbias, const Call& c, int row0, int head, int key0,
                                  bool turned) {
    __syncthreads();    // the tile has been read
    for (int i = int(threadIdx.x); i < TILE * TILE; i += THREADS) {
        const int r = i / TILE, k = i % TILE, row = row0 + r, key = key0 + k;
        const float x = row < c.N && key < c.n ? dbias[c.bias(row, head) + c.n - 1 - key] : 0;
        tile.x[turned ? k : r][turned ? r : k] = x;
    }
}

// dqkv's queries += scale dbias keys. A block has 64 queries and 64 columns.
template <class T> __global__ void __launch_bounds__(THREADS)
    query_kernel(T* dqkv, const float* dbias, const T* keys, Call c, int column_tiles) {
    Tiles& tiles = dynamic_shared<Tiles>();
    const int head = int(blockIdx.x) % c.h.NH, tile = int(blockIdx.x) / c.h.NH;
    const int row0 = tile / column_tiles * TILE, column = tile % column_tiles * TILE;
    Sums sums[1] = {};
    for (int key0 = 0; key0 < c.n; key0 += TILE) {
        load_dbias(tiles.left, dbias, c, row0, head, key0, false);
        add_ab(sums, tiles.left, Operand<T>{tiles.right, c.keys(keys, key0), false}, column, c.h.HS);
    }
#pragma unroll
    for (int r = 0; r < ROWS; r++)
        for (int e = 0; e < COLUMNS; e++) {
            const int row = row0 + tile_row(r), at = column + int(threadIdx.x) % 16 * 4 + e;
            T* to = dqkv + c.q(row, head) + at;
            if (row < c.N && at < c.h.HS) *to = from_float<T>(to_float(*to) + sums[0][r][e] * c.scale);
        }
}

// partial (parts,n,HS) = dbias^T q of a part's queries. A block has 64 keys and 64 columns.
template <class T> __global__ void __launch_bounds__(THREADS)
    key_kernel(float* partial, const float* dbias, const T* qkv, Call c, int key_tiles, int splits) {
    Tiles& tiles = dynamic_shared<Tiles>();
    const int parts = c.h.NH * splits, part = int(blockIdx.x) % parts, tile = int(blockIdx.x) / parts;
    const int head = part / splits, key0 = tile % key_tiles * TILE, column = tile / key_tiles * TILE;
    Sums sums[1] = {};
    for (int row0 = part % splits * TILE; row0 < c.N; row0 += splits * TILE) {
        load_dbias(tiles.left, dbias, c, row0, head, key0, true);
        add_ab(sums, tiles.left, Operand<T>{tiles.right, c.queries(qkv, row0, head), false}, column, c.h.HS);
    }
#pragma unroll
    for (int r = 0; r < ROWS; r++)
        for (int e = 0; e < COLUMNS; e++) {
            const int key = key0 + tile_row(r), at = column + int(threadIdx.x) % 16 * 4 + e;
            if (key < c.n && at < c.h.HS) partial[(int64_t(part) * c.n + key) * c.h.HS + at] = sums[0][r][e];
        }
}
__global__ void __launch_bounds__(THREADS)
    add_parts_kernel(float* dkeys, const float* partial, int parts, int elements, float scale) {
    const int i = int(blockIdx.x) * THREADS + int(threadIdx.x);
    if (i >= elements) return;
    float sum = 0;
    for (int part = 0; part < parts; part++) sum += partial[int64_t(part) * elements + i];
    dkeys[i] += sum * scale;
}

template <class T> void relative_keys_forward(float* bias, const T* qkv, const T* keys, int N, Heads h) {
    const Call c(N, h);
    const int key_tiles = c.tiles_of(c.n);
    launch(forward_kernel<T>, {unsigned(c.tiles_of(N) * key_tiles * h.NH), THREADS, sizeof(Tiles)}, bias, qkv, keys, c,
           key_tiles);
}
template <class T>
void relative_keys_backward(T* dqkv, float* dkeys, const float* dbias, const T* qkv, const T* keys, int N, Heads h) {
    const Call c(N, h);
    const RelativeKeysScratch s(N, h);
    float* partial = static_cast<float*>(cuda_scratch(s.bytes));
    const int key_tiles = c.tiles_of(c.n), column_tiles = c.tiles_of(h.HS), elements = c.n * h.HS;
    launch(query_kernel<T>, {unsigned(c.tiles_of(N) * column_tiles * h.NH), THREADS, sizeof(Tiles)}, dqkv, dbias, keys,
           c, column_tiles);
    if (!dkeys) return;
    launch(key_kernel<T>, {unsigned(s.parts * key_tiles * column_tiles), THREADS, sizeof(Tiles)}, partial, dbias, qkv,
           c, key_tiles, s.splits);
    launch(add_parts_kernel, {unsigned(ceil_div(elements, THREADS)), THREADS}, dkeys, partial, s.parts, elements,
           c.scale);
}

const CudaRegistration entries([]<class T>(Ops<T>& o, Dtype) {
    o.relative_keys_forward = relative_keys_forward<T>;
    o.relative_keys_backward = relative_keys_backward<T>;
});
}    // namespace

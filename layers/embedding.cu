// embedding.cu - sums of rows of wte and wpe; backward: sums of rows of dx by token, by position.
//
// Forward: one warp per row, 16 bytes per lane. Bound by memory: a position reads 2 C elements
// (wpe's from L2) and writes C. In generation it is the first of a chain of overlapping kernels and
// waits for all work before it: positions, pages and weights that later kernels read before their
// own wait are then complete.
//
// Backward: dwte and dwpe are one kind of sum, over rows of dx that share a key: the token or the
// position. Atomics would add in any order, so the positions are sorted by key first: a radix sort,
// or a division for wpe if each sequence is one text. The sorted list is cut into at most PIECES
// pieces of equal length, so a frequent token costs no more than a rare one. Rows of equal keys
// form a run. A piece adds a run within it directly to the gradient. For a run that crosses its
// ends it writes a partial sum, and the piece where the run begins adds the partial sums in order.
// The order of every sum depends only on the tokens and N: the bits are reproducible.
//
// Bound by memory: dx is read once for each table, 2 C elements per position; the gradients' rows
// are read and written once, 8 C bytes for each token and position that occurs. The sort moves 20
// bytes per position and pass.
#include "layers/ptx/ptx.cuh"

namespace {
// ---- forward ------------------------------------------------------------------------------------

constexpr int ROWS = 4;    // rows per block, one a warp

template <class T, int W> __global__ void embed(T* __restrict__ x, const int* tok, const T* __restrict__ wte,
                                                const T* __restrict__ wpe, int N, int S, int C, const int* pos) {
    wait_for_previous();    // free if nothing overlaps
    let_next_start();
    const int n = blockIdx.x * ROWS + threadIdx.x / 32;
    if (n >= N) return;
    const T* e = wte + int64_t(tok[n]) * C;
    const T* p = wpe + int64_t(pos ? max(pos[n], 0) : n % S) * C;
    T* out = x + int64_t(n) * C;    // x[b,s,:]
#pragma unroll 4
    for (int c = threadIdx.x % 32 * W; c < C; c += 32 * W) {
        const Vec<T, W> a = load<W>(e + c), b = wpe ? load<W>(p + c) : Vec<T, W>{};
        Vec<T, W> y;
        for (int i = 0; i < W; i++) y.set(i, a[i] + b[i]);
        store<W>(out + c, y);
    }
}

template <class T>
void embedding_forward(T* x, const int* tok, const T* wte, const T* wpe, int B, int S, int C, const int* pos) {
    const int N = B * S;
    const Launch grid = {dim3(unsigned(ceil_div(N, ROWS))), dim3(32 * ROWS)};
    if (rows_align<T>(C)) launch(embed<T, VEC<T>>, grid, x, tok, wte, wpe, N, S, C, pos);
    else launch(embed<T, 1>, grid, x, tok, wte, wpe, N, S, C, pos);
}

// ---- positions sorted by key ------------------------------------------------------------------

// Radix sort of the positions, least significant digit first, 8 bits of their keys per pass. A
// block sorts a tile, each warp an eighth of it. digit_offset(digit, tile): target index of the
// tile's first position with that digit.
constexpr int BITS = 8, DIGITS = 1 << BITS, WARPS = DIGITS / 32, ROUNDS = 8, TILE = WARPS * 32 * ROUNDS;
static_assert(DIGITS == EmbeddingScratch::DIGITS && TILE == EmbeddingScratch::TILE);

// The i-th position in the order so far; order null: 0, 1, 2, ...
__device__ inline int position(const int* order, int i) { return order ? order[i] : i; }
__device__ inline int digit_of(const int* keys, int n, int shift) { return keys[n] >> shift & (DIGITS - 1); }

// digit_offset (DIGITS, tiles) = number of the tile's positions with the digit.
__global__ void count_digits(int* digit_offset, const int* order, const int* keys, int shift, int N) {
    SHARED(int[DIGITS], count);
    count[threadIdx.x] = 0;
    __syncthreads();
    for (int r = 0; r < ROUNDS; r++) {
        const int i = blockIdx.x * TILE + r * DIGITS + threadIdx.x;
        if (i < N) atomicAdd(&count[digit_of(keys, position(order, i), shift)], 1);
    }
    __syncthreads();
    digit_offset[int64_t(threadIdx.x) * gridDim.x + blockIdx.x] = count[threadIdx.x];
}

// x[i] = sum of x[:i], by one block; each thread sums a range.
constexpr int SCAN_THREADS = 1024;
__global__ void __launch_bounds__(SCAN_THREADS) exclusive_sum(int* x, int n) {
    SHARED(int[SCAN_THREADS / 32], totals);
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, each = (n + SCAN_THREADS - 1) / SCAN_THREADS;
    const int from = min(n, int(threadIdx.x) * each), to = min(n, from + each);
    int own = 0;
    for (int i = from; i < to; i++) own += x[i];
    int sum = own;    // becomes the warp's inclusive prefix sum
    for (int by = 1; by < 32; by *= 2) {
        const int left = __shfl_up_sync(0xffffffff, sum, by);
        if (lane >= by) sum += left;
    }
    if (lane == 31) totals[warp] = sum;
    __syncthreads();
    sum -= own;
    for (int w = 0; w < warp; w++) sum += totals[w];
    for (int i = from; i < to; i++) {
        const int count = x[i];
        x[i] = sum;
        sum += count;
    }
}

// Mask of the used lanes with this lane's digit.
__device__ inline unsigned peers_of(int digit, bool used) {
    unsigned peers = __ballot_sync(0xffffffff, used);
    for (int bit = 0; bit < BITS; bit++) {
        const bool set = digit >> bit & 1;
        const unsigned lanes = __ballot_sync(0xffffffff, set);
        peers &= set ? lanes : ~lanes;
    }
    return peers;
}

// Sorts the tile: writes each position to `to`, behind the earlier ones with its digit.
__global__ void __launch_bounds__(DIGITS)
    scatter(int* to, const int* digit_offset, const int* order, const int* keys, int shift, int N) {
    SHARED(int[WARPS][DIGITS], at);    // per warp and digit: counts, then target indices
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const int first = blockIdx.x * TILE + warp * 32 * ROUNDS + lane;
    for (int d = lane; d < DIGITS; d += 32) at[warp][d] = 0;
    __syncwarp();
    int n[ROUNDS], digit[ROUNDS], rank[ROUNDS];
#pragma unroll
    for (int r = 0; r < ROUNDS; r++) {
        const bool used = first + 32 * r < N;
        n[r] = used ? position(order, first + 32 * r) : 0;
        digit[r] = used ? digit_of(keys, n[r], shift) : 0;
    }
#pragma unroll
    for (int r = 0; r < ROUNDS; r++) {
        const bool used = first + 32 * r < N;
        const unsigned peers = peers_of(digit[r], used), before = peers & ((1u << lane) - 1);
        const int count = at[warp][digit[r]];
        rank[r] = count + __popc(before);
        __syncwarp();    // the first peer overwrites the count
        if (used && !before) at[warp][digit[r]] = count + __popc(peers);
        __syncwarp();
    }
    __syncthreads();
    int next = digit_offset[int64_t(threadIdx.x) * gridDim.x + blockIdx.x];    // one digit a thread
    for (int w = 0; w < WARPS; w++) {
        const int count = at[w][threadIdx.x];
        at[w][threadIdx.x] = next;
        next += count;
    }
    __syncthreads();
#pragma unroll
    for (int r = 0; r < ROUNDS; r++)
        if (first + 32 * r < N) to[at[warp][digit[r]] + rank[r]] = n[r];
}

// Returns the positions sorted by key, equal tokens by position. Scratch: a (N), b (N),
// digit_offset (DIGITS,tiles).
const int* sort_positions(int* a, int* b, int* digit_offset, const int* keys, int N, int V) {
    const unsigned tiles = unsigned(ceil_div(N, TILE));
    const int* order = nullptr;
    for (int shift = 0; shift == 0 || (shift < 31 && (V - 1) >> shift); shift += BITS) {
        int* to = order == a ? b : a;
        launch(count_digits, {tiles, DIGITS}, digit_offset, order, keys, shift, N);
        launch(exclusive_sum, {1, SCAN_THREADS}, digit_offset, DIGITS * int(tiles));
        launch(scatter, {tiles, DIGITS}, to, digit_offset, order, keys, shift, N);
        order = to;
    }
    return order;
}

// ---- sums of rows with equal keys ---------------------------------------------------------------

// The i-th row of dx in sorted order, and its key: its row in the gradient.
struct ByKey {
    const int *order, *keys;
    __device__ int row(int i) const { return order[i]; }
    __device__ int key(int i) const { return keys[order[i]]; }
};
struct ByPosition {
    int B, S;
    __device__ int row(int i) const { return i % B * S + i / B; }
    __device__ int key(int i) const { return i / B; }
};

constexpr int STAGED = 64, AHEAD = 4;    // rows whose indices are staged; rows in flight

template <int W, bool ADD> __device__ inline void put(float* to, const float (&x)[W]) {
    constexpr int G = W < 4 ? W : 4;    // floats in 16 bytes
    for (int g = 0; g < W; g += G) {
        Vec<float, G> y;
        if (ADD) y = load<G>(to + g);
        for (int i = 0; i < G; i++) y.v[i] = ADD ? y.v[i] + x[g + i] : x[g + i];
        store<G>(to + g, y);
    }
}

// Sums one piece of `length` sorted rows, W columns per thread. A run: all rows of one key.
// heads (pieces,C): sum of a run that began in an earlier piece. tails (pieces,C): sum of a run
// that begins here and ends in a later piece.
template <class T, int W, class Rows>
__global__ void sum_pieces(float* dw, float* heads, float* tails, const T* dx, Rows rows, int length, int N, int C) {
    SHARED(int[STAGED], row);
    SHARED(int[STAGED], key);
    const int c = (blockIdx.y * blockDim.x + threadIdx.x) * W;
    const int begin = blockIdx.x * length, end = min(begin + length, N);
    const int before = begin > 0 ? rows.key(begin - 1) : -1, after = end < N ? rows.key(end) : -1;
    const int64_t own = int64_t(blockIdx.x) * C + c;
    int run = rows.key(begin);
    float sum[W] = {};
    for (int i = begin; i < end; i += STAGED) {
        const int count = min(STAGED, end - i);
        __syncthreads();    // the previous rows have been used
        for (int j = threadIdx.x; j < count; j += blockDim.x) row[j] = rows.row(i + j), key[j] = rows.key(i + j);
        __syncthreads();
        if (c >= C) continue;
        for (int j = 0; j < count; j += AHEAD) {
            Vec<T, W> x[AHEAD];
#pragma unroll
            for (int u = 0; u < AHEAD; u++)
                if (j + u < count) x[u] = load<W>(dx + int64_t(row[j + u]) * C + c);
#pragma unroll
            for (int u = 0; u < AHEAD; u++) {
                if (j + u >= count) break;
                if (key[j + u] != run) {
                    if (run == before) put<W, false>(heads + own, sum);
                    else put<W, true>(dw + int64_t(run) * C + c, sum);
                    run = key[j + u];
                    for (int k = 0; k < W; k++) sum[k] = 0;
                }
                for (int k = 0; k < W; k++) sum[k] += x[u][k];
            }
        }
    }
    if (c >= C) return;
    if (run == before) put<W, false>(heads + own, sum);
    else if (run == after) put<W, false>(tails + own, sum);
    else put<W, true>(dw + int64_t(run) * C + c, sum);
}

// Completes the run (rows of one key) that begins in piece p and continues after it: adds p's tail
// and the heads of the pieces that follow to dw.
template <int W, class Rows>
__global__ void join_pieces(float* dw, const float* heads, const float* tails, Rows rows, int length, int N, int C) {
    const int p = blockIdx.x, pieces = gridDim.x, begin = p * length, end = begin + length;
    if (end >= N) return;
    const int run = rows.key(end - 1);
    if (rows.key(end) != run || (begin > 0 && rows.key(begin - 1) == run)) return;
    int last = p + 1;    // first piece that begins with another run
    for (unsigned lanes = ~0u; lanes == ~0u; last += __popc(lanes)) {
        const int q = last + threadIdx.x % 32;
        lanes = __ballot_sync(0xffffffff, q < pieces && rows.key(q * length) == run);
    }
    const int c = (blockIdx.y * blockDim.x + threadIdx.x) * W;
    if (c >= C) return;
    Vec<float, W> sum = load<W>(tails + int64_t(p) * C + c);
#pragma unroll 8
    for (int q = p + 1; q < last; q++) {
        const Vec<float, W> x = load<W>(heads + int64_t(q) * C + c);
        for (int i = 0; i < W; i++) sum.v[i] += x[i];
    }
    put<W, true>(dw + int64_t(run) * C + c, sum.v);
}

template <class T, int W, class Rows> void add_rows(float* dw, float* partial, const T* dx, Rows rows, int N, int C) {
    constexpr int G = W < 4 ? W : 4;
    const EmbeddingScratch parts(N, C);
    const int length = parts.length, pieces = parts.pieces;
    float *heads = partial, *tails = partial + int64_t(pieces) * C;
    auto grid = [&](int width) {    // (pieces, columns)
        const int64_t threads = round_up(ceil_div(C, width), 32), block = threads < 256 ? threads : 256;
        return Launch{dim3(unsigned(pieces), unsigned(ceil_div(threads, block))), dim3(unsigned(block))};
    };
    launch(sum_pieces<T, W, Rows>, grid(W), dw, heads, tails, dx, rows, length, N, C);
    launch(join_pieces<G, Rows>, grid(G), dw, heads, tails, rows, length, N, C);
}

template <class T> void embedding_backward(Grad<T>* dwte, Grad<T>* dwpe, const T* dx, const int* tok, int B, int S,
                                           int C, int V, const int* pos) {
    const int N = B * S;
    const EmbeddingScratch parts(N, C);
    char* scratch = static_cast<char*>(cuda_scratch(parts.bytes()));
    int *a = reinterpret_cast<int*>(scratch), *b = reinterpret_cast<int*>(scratch + parts.order);
    int* digit_offset = reinterpret_cast<int*>(scratch + 2 * parts.order);
    float* partial = reinterpret_cast<float*>(scratch + 2 * parts.order + parts.digit_offset);
    auto add = [&](float* dw, auto rows) {
        if (rows_align<T>(C)) add_rows<T, VEC<T>>(dw, partial, dx, rows, N, C);
        else add_rows<T, 1>(dw, partial, dx, rows, N, C);
    };
    if (dwte) add(dwte, ByKey{sort_positions(a, b, digit_offset, tok, N, V), tok});
    if (dwpe && pos) add(dwpe, ByKey{sort_positions(a, b, digit_offset, pos, N, S), pos});
    else if (dwpe) add(dwpe, ByPosition{B, S});
}

const CudaRegistration entries([]<class T>(Ops<T>& o, Dtype) {
    o.embedding_forward = embedding_forward<T>;
    o.embedding_backward = embedding_backward<T>;
});
}    // namespace

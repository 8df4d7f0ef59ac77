// kv_pages.cu - writes rows of keys and values to a cache's pages: new ones from qkv, and rotated
// copies.
//
// Thread mapping: a warp writes one row of a head; rows of keys come before rows of values. Bound
// by memory: a row is read once, or twice if its type has a scale, the second time from L1.
#include "attention.cuh"

namespace {
constexpr int THREADS = 128, WARPS = THREADS / 32;

// The warp writes x(0..HS-1) to a row of type X, with its scale.
template <class X, class F> __device__ inline void put_row(X* rows, float* factors, int64_t row, int HS, F x) {
    const int lane = int(threadIdx.x) % 32;
    float inverse = 1;
    if constexpr (LARGEST<X> != 0) {
        float most = 0, finite = 0;
        for (int d = lane; d < HS; d += 32) most = fmaxf(most, fabsf(x(d))), finite += x(d) * 0;
        most = warp_max(most) + warp_sum(finite);    // NaN, if an element is not finite
        inverse = most < TINY ? 0 : LARGEST<X> / most;
        if (lane == 0) factors[row] = most < TINY ? 0 : most / LARGEST<X>;
    }
    for (int d = lane; d < HS; d += 32) rows[row * HS + d] = from_float<X>(LARGEST<X> != 0 ? x(d) * inverse : x(d));
}

template <class T, class X> __global__ void __launch_bounds__(THREADS)
    append_kernel(const T* k, int64_t width, Pages cache, int64_t n, int S, const int* pos, int NKV, int HS) {
    const int64_t i = int64_t(blockIdx.x) * WARPS + threadIdx.x / 32, at = i / (2 * NKV);    // at: (b,s)
    if (i >= n || pos[at] < 0) return;
    const int head = int(i % (2 * NKV)), kv = head % NKV;
    const bool value = head >= NKV;
    const int64_t row = cache.row(int(at / S), kv, pos[at]);
    const T* from = k + at * width + head * HS;
    put_row(static_cast<X*>(value ? cache.v : cache.k), value ? cache.v_scale : cache.k_scale, row, HS,
            [&](int d) { return to_float(from[d]); });
}

template <class X> __global__ void __launch_bounds__(THREADS)
    rotate_pages_kernel(Pages cache, const int* pages, int64_t n, const float* cos_sin, Heads h, QkNormRope t) {
    const int64_t i = int64_t(blockIdx.x) * WARPS + threadIdx.x / 32, head = i / Pages::SIZE, copy = head / (2 * h.NKV);
    if (i >= n) return;
    const int kv = int(head % h.NKV), row = int(i % Pages::SIZE);
    const bool value = head / h.NKV % 2;
    const int64_t to = cache.row_of(pages[2 * copy], kv, row), from = cache.row_of(pages[2 * copy + 1], kv, row);
    X* const all = static_cast<X*>(value ? cache.v : cache.k);
    float* const factors = value ? cache.v_scale : cache.k_scale;
    const X* x = all + from * h.HS;
    const float factor = LARGEST<X> != 0 ? factors[from] : 1;
    const float* rotation = cos_sin + copy * t.dims;
    put_row(all, factors, to, h.HS, [&](int d) {
        const float own = to_float(x[d]) * factor;
        if (value || d >= t.dims) return own;
        const int half = t.dims / 2, pair = t.interleaved ? d / 2 : d % half;
        const bool second = t.interleaved ? d % 2 : d >= half;
        const float other = to_float(x[t.interleaved ? d ^ 1 : second ? d - half : d + half]) * factor;
        const float cos = rotation[pair], sin = rotation[half + pair];
        return second ? own * cos + other * sin : own * cos - other * sin;
    });
}

unsigned blocks(int64_t rows) { return unsigned(ceil_div(rows, WARPS)); }
}    // namespace

template <class T> void cache_append(Pages cache, const T* kv, int B, int S, const int* pos, Heads h) {
    const int64_t n = int64_t(B) * S * 2 * h.NKV;
    with_cache_type<T>(cache.type, [&]<class X>(X*) {
        launch(append_kernel<T, X>, {blocks(n), THREADS}, kv + h.first_k(), int64_t(h.kv_row()), cache, n, S, pos,
               h.NKV, h.HS);
    });
}
template <class T>
void cache_rotate(Pages cache, const int* pages, int n, const float* cos_sin, Heads h, QkNormRope t) {
    const int64_t rows = 2 * int64_t(n) * h.NKV * Pages::SIZE;
    with_cache_type<T>(cache.type, [&]<class X>(X*) {
        launch(rotate_pages_kernel<X>, {blocks(rows), THREADS}, cache, pages, rows, cos_sin, h, t);
    });
}
#define INSTANCES(T)                                                          \
    template void cache_append(Pages, const T*, int, int, const int*, Heads); \
    template void cache_rotate<T>(Pages, const int*, int, const float*, Heads, QkNormRope);
INSTANCES(float)
INSTANCES(bf16)

// merge.cu - merges attention to further keys into y by the log-sum-exps, and copies columns
// between rows of different widths, for attention around a ring of ranks (model/ring/ring.h) and
// for sparse attention (model/sparse/sparse_attention.h). Maths: layers/operations.inc.
//
// Thread mapping: a warp has a row, all heads of a position, by 16-byte vectors where rows are
// aligned. Bound by memory: each merge reads and writes y once. That is little in a ring, where
// attention to a part's S keys takes 2 S multiply-adds for each element of y.
#include "attention.cuh"

namespace {
constexpr int ROWS = 4;    // rows per block, one a warp

// The weights of y and part in the merged y, and the merged log-sum-exp, are computed from
// exponentials relative to the larger of the two log-sum-exps, so that none overflows. Without
// `add`, y has weight 0.
struct Shares {
    float keep, take, lse;
    __device__ Shares(float old, float further, bool add) : keep(0), take(1), lse(further) {
        if (!add) return;
        const bool more = further > old;
        const float less = exp2f((more ? old - further : further - old) * LOG2E), share = 1 / (1 + less);
        keep = more ? less * share : share;
        take = more ? share : less * share;
        lse = (more ? further : old) + log2f(1 + less) * LN2;
    }
};

template <class T, int W> __global__ void __launch_bounds__(ROWS * 32)
    merge_kernel(T* y, float* lse, const T* part, const float* part_lse, bool add, int64_t N, int S, Heads h) {
    const int64_t n = int64_t(blockIdx.x) * ROWS + threadIdx.x / 32;
    if (n >= N || (h.keys && h.keys[n].from == h.keys[n].to)) return;
    const int lane = int(threadIdx.x) % 32, HV = h.value_size(), width = h.NH * HV;
    const int64_t first = n / S * h.NH * S + n % S;    // the first head's lse; heads are S apart
    auto shares = [&](int head) {
        const int64_t at = first + int64_t(head) * S;
        return Shares(lse[at], part_lse[at], add);
    };
    for (int c = lane * W; c < width; c += 32 * W) {
        const Shares s = shares(c / HV);
        Vec<T, W> x = load<W>(part + n * width + c), old = {};
        if (add) old = load<W>(y + n * width + c);
#pragma unroll
        for (int j = 0; j < W; j++) x.set(j, old[j] * s.keep + x[j] * s.take);
        store<W>(y + n * width + c, x);
    }
    __syncwarp();    // all lanes have read the old log-sum-exps
    for (int head = lane; head < h.NH; head += 32) lse[first + int64_t(head) * S] = shares(head).lse;
}

template <class T, int W> __global__ void __launch_bounds__(ROWS * 32)
    copy_columns_kernel(T* to, int64_t to_row, const T* from, int64_t from_row, const int* rows, bool add, int N,
                        int C) {
    const int64_t n = int64_t(blockIdx.x) * ROWS + threadIdx.x / 32;
    const int64_t m = n < N && rows ? rows[n] : n;
    if (n >= N || m < 0) return;
    for (int c = int(threadIdx.x) % 32 * W; c < C; c += 32 * W) {
        Vec<T, W> x = load<W>(from + m * from_row + c);
        if (add) {
            const Vec<T, W> old = load<W>(to + n * to_row + c);
#pragma unroll
            for (int j = 0; j < W; j++) x.set(j, old[j] + x[j]);
        }
        store<W>(to + n * to_row + c, x);
    }
}

// Calls f(elements of a vector).
template <class T, class F> void for_vectors(bool aligned, F f) {
    if (aligned) f(std::integral_constant<int, VEC<T>>());
    else f(std::integral_constant<int, 1>());
}
bool is_aligned(const void* p) { return reinterpret_cast<uintptr_t>(p) % 16 == 0; }

template <class T>
void attention_merge(T* y, float* lse, const T* part, const float* part_lse, bool add, int B, int S, Heads h) {
    const int64_t N = int64_t(B) * S;
    for_vectors<T>(rows_align<T>(h.value_size()), [&](auto W) {
        launch(merge_kernel<T, W>, {unsigned(ceil_div(N, ROWS)), ROWS * 32}, y, lse, part, part_lse, add, N, S, h);
    });
}
template <class T>
void copy_columns(T* to, int64_t to_row, const T* from, int64_t from_row, const int* rows, bool add, int N, int C) {
    const bool aligned = rows_align<T>(C) && rows_align<T>(to_row) && rows_align<T>(from_row);
    for_vectors<T>(aligned && is_aligned(to) && is_aligned(from), [&](auto W) {
        launch(copy_columns_kernel<T, W>, {unsigned(ceil_div(N, ROWS)), ROWS * 32}, to, to_row, from, from_row, rows,
               add, N, C);
    });
}

const CudaRegistration entries([]<class T>(Ops<T>& o, Dtype) {
    o.attention_merge = attention_merge<T>;
    o.copy_columns = copy_columns<T>;
});
}    // namespace

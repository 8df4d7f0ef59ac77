// convert.cuh - converts n elements between float and a storage type. A thread converts 4 elements,
// or 1 where a pointer is not aligned. Bound by memory: 6 bytes an element for bf16.
#pragma once
#include "cuda.cuh"

namespace {
constexpr int CONVERT_THREADS = 256;

template <int W, class To, class From> __global__ void convert_kernel(To* to, const From* from, int64_t n) {
    int64_t i = W * (blockIdx.x * int64_t(CONVERT_THREADS) + threadIdx.x);
    if (i + W <= n) {
        const Vec<From, W> v = load<W>(from + i);
        Vec<To, W> out;
#pragma unroll
        for (int j = 0; j < W; j++) out.set(j, v[j]);
        store<W>(to + i, out);
    } else
        for (; i < n; i++) to[i] = from_float<To>(to_float(from[i]));
}

template <class To, class From> void convert(To* to, const From* from, int64_t n, cudaStream_t stream) {
    const auto by_4 = [](auto* p) { return reinterpret_cast<uintptr_t>(p) % (4 * sizeof *p) == 0; };
    const bool aligned = by_4(to) && by_4(from);
    const int W = aligned ? 4 : 1;
    launch(aligned ? convert_kernel<4, To, From> : convert_kernel<1, To, From>,
           {.grid = unsigned(ceil_div(n, W * CONVERT_THREADS)), .block = CONVERT_THREADS, .stream = stream}, to, from,
           n);
}
}    // namespace
